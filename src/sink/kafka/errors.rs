//! The classes, labels and texts of librdkafka's and the brokers' errors.
//!
//! A failure of the class `Row` would repeat at every attempt, whatever the cluster's condition. One of the class `Environment` passes once
//! somebody fixes the cluster, and one of the class `Topic` once somebody fixes the topic. One of the class `Client` is of this client's state.
//! The brokers' codes of each class are closed lists, and any other is of the class `Unlisted`. librdkafka's own codes, which are below -1, say
//! nothing of a record, unless they are listed.
//! Specification: Kafka protocol, "Error Codes", with the column "Retriable"; librdkafka's `rd_kafka_resp_err_t`.

use crate::sink::{Failure, FailureClass, Record, UNLISTED};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::fmt::Display;

/// The class of an error code.
pub(super) fn class(code: RDKafkaErrorCode) -> FailureClass {
    use RDKafkaErrorCode as Code;
    #[allow(clippy::wildcard_enum_match_arm, reason = "librdkafka has some two hundred codes, and grows")]
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidTimestamp
        | Code::InvalidRecord
        | Code::InvalidMessageSize => FailureClass::Row,
        // The cluster has named each partition that the sink writes to. If one is gone, its topic has changed.
        Code::UnknownPartition
        | Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed => FailureClass::Topic,
        Code::Authentication | Code::SaslAuthenticationFailed => FailureClass::LogIn,
        Code::Fatal
        | Code::GaplessGuarantee
        | Code::PurgeQueue
        | Code::PurgeInflight
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerIdMapping
        | Code::InvalidDifferentRecord
        | Code::Inconsistent
        | Code::State
        | Code::Fenced
        | Code::ProducerFenced
        | Code::InvalidProducerEpoch
        | Code::InvalidTransactionalState
        | Code::MessageTimedOut => FailureClass::Client,
        // CORRUPT_MESSAGE (InvalidMessage) is a network card, a disk or a proxy that changes bits.
        Code::InvalidMessage
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::RequestTimedOut
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable
        | Code::NetworkException
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::ClusterAuthorizationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::NotController
        | Code::ConcurrentTransactions
        | Code::TransactionCoordinatorFenced
        | Code::TransactionalIdAuthorizationFailed
        | Code::KafkaStorageError
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::ThrottlingQuotaExceeded
        | Code::UnknownTopicId
        | Code::RebootstrapRequired => FailureClass::Environment,
        code if (code as i32) < Code::Unknown as i32 => FailureClass::Environment,
        _ => FailureClass::Unlisted,
    }
}

/// The labels for metrics, with the codes that each stands for.
const REASONS: [(&str, &[RDKafkaErrorCode]); 11] = {
    use RDKafkaErrorCode as Code;
    [
        ("too_large", &[Code::MessageSizeTooLarge, Code::MessageBatchTooLarge, Code::InvalidMessageSize]),
        ("invalid_topic", &[Code::InvalidTopic]),
        (INVALID_TIMESTAMP, &[Code::InvalidTimestamp]),
        ("invalid_record", &[Code::InvalidRecord]),
        ("unknown_partition", &[Code::UnknownPartition]),
        ("unknown_topic", &[Code::UnknownTopic, Code::UnknownTopicOrPartition]),
        ("authorization", &[Code::TopicAuthorizationFailed, Code::ClusterAuthorizationFailed]),
        ("authentication", &[Code::Authentication, Code::SaslAuthenticationFailed]),
        ("not_enough_replicas", &[Code::NotEnoughReplicas, Code::NotEnoughReplicasAfterAppend]),
        ("unreachable", &[Code::BrokerTransportFailure, Code::AllBrokersDown, Code::Resolve]),
        ("client", &[Code::Fatal, Code::GaplessGuarantee, Code::PurgeQueue, Code::PurgeInflight]),
    ]
};

/// Whether a code is about authentication.
pub(super) fn is_of_login(code: Option<RDKafkaErrorCode>) -> bool {
    code.is_some_and(|code| class(code) == FailureClass::LogIn)
}

/// The failure of authentication.
pub(super) fn of_login(text: String) -> Failure {
    refused_login(Some(RDKafkaErrorCode::Authentication), text)
}

/// The failure if the brokers refuse the credentials with this code.
pub(super) fn refused_login(code: Option<RDKafkaErrorCode>, text: String) -> Failure {
    Failure::new(FailureClass::LogIn, reason(code), text).with_remedy(LOGIN_HINT)
}

/// The fix of a failed authentication.
pub(super) const LOGIN_HINT: &str = "check -X sasl.username, sasl.mechanism, security.protocol, and the password (WALRELAY_KAFKA_SASL_PASSWORD, -X sasl.password=@FILE, -X password-command) or what issues the token (-X oauthbearer-token-command, -X oauthbearer=aws-msk-iam, -X sasl.oauthbearer.token.endpoint.url)";

/// The label of every other code.
const OTHER: &str = "other";

/// The label of a record whose time the brokers refuse.
pub(super) const INVALID_TIMESTAMP: &str = "invalid_timestamp";

/// The label of a header that librdkafka does not keep.
const HEADERS: &str = "headers";

/// The label of a progress topic that cannot be created, or whose `cleanup.policy` would delete progress.
pub(super) const PROGRESS_TOPIC: &str = "progress_topic";

/// The label of a topic with too few replicas for exactly once.
pub(super) const REPLICAS: &str = "replicas";

/// The label of an error without a code.
const TIMED_OUT: &str = "timed_out";

/// The label of a code.
pub(super) fn reason(code: Option<RDKafkaErrorCode>) -> &'static str {
    let Some(code) = code else { return TIMED_OUT };
    if class(code) == FailureClass::Unlisted {
        return UNLISTED;
    }
    REASONS.iter().find(|(_, codes)| codes.contains(&code)).map_or(OTHER, |(reason, _)| *reason)
}

/// Every label that a failure may have.
pub(super) fn reasons() -> impl Iterator<Item = &'static str> {
    REASONS.iter().map(|(reason, _)| *reason).chain([OTHER, TIMED_OUT, PROGRESS_TOPIC, REPLICAS, UNLISTED, HEADERS])
}

/// The labels for which Kafka may refuse a row: for the record's sake, or for the topic's.
pub(super) fn refusals() -> impl Iterator<Item = &'static str> {
    let of_rows = |code: &RDKafkaErrorCode| matches!(class(*code), FailureClass::Row | FailureClass::Topic);
    REASONS.iter().filter(move |(_, codes)| codes.iter().any(of_rows)).map(|(reason, _)| *reason).chain([HEADERS])
}

/// The failure of records whose user may not write any topic: the broker lets no producer of that user begin.
pub(super) fn of_forbidden(topic: &str) -> Failure {
    let code = RDKafkaErrorCode::ClusterAuthorizationFailed;
    let text =
        format!("not allowed to write topic {topic}: the producer's user needs WRITE and DESCRIBE on it ({code})");
    Failure::new(class(code), reason(Some(code)), text)
}

/// The failure of records upon which brokers close the connection, although they answer other requests.
pub(super) fn of_closed() -> Failure {
    let code = RDKafkaErrorCode::BrokerTransportFailure;
    let text = format!(
        "Kafka answers, and closes the connection when records are sent: if its socket.request.max.bytes is smaller than a request, raise it on \
         the brokers, or send smaller ones: walrelay run {SMALL_BATCHES}"
    );
    Failure::new(class(code), reason(Some(code)), text)
}

/// Every broker accepts requests of this size.
const SMALL_BATCHES: &str = "-X batch.size=16384";

/// The failure in a delivery report.
pub(super) fn of_report(topic: &str, error: &KafkaError) -> Failure {
    match error.rdkafka_error_code() {
        Some(code) => Failure::new(class(code), reason(Some(code)), format!("topic {topic}: {code}")),
        None => Failure::new(FailureClass::Client, reason(None), format!("topic {topic}: {error}")),
    }
}

/// The failure of a record whose time the brokers refuse, if the time is not the row's: a clock is wrong, or the record waited out an outage. It is
/// sent again with another time.
pub(super) fn of_time(topic: &str) -> Failure {
    let code = RDKafkaErrorCode::InvalidTimestamp;
    let text = format!(
        "topic {topic}: {code}: it is sent again with the present time; if that is refused, too, the clocks of this machine and of the brokers differ"
    );
    Failure::new(FailureClass::Environment, reason(Some(code)), text)
}

/// The failure of a record with a header that librdkafka would cut at the second sending. `None`: it has none.
pub(super) fn of_headers(record: &Record<'_>) -> Option<Failure> {
    let cut = record.headers.iter().find(|header| header.name.as_bytes().contains(&0))?;
    let text = format!("topic {}: the name of header {:?} has the character NUL", record.topic, cut.name);
    Some(Failure::new(FailureClass::Row, HEADERS, text))
}

/// The failure of a row that asks for a partition that its topic does not have. `for_now`: the partition may have been added a moment ago.
pub(super) fn of_partition(topic: &str, partition: i32, for_now: bool) -> Failure {
    let class = if for_now { FailureClass::Environment } else { FailureClass::Row };
    let text = format!("topic {topic} has no partition {partition}");
    Failure::new(class, reason(Some(RDKafkaErrorCode::UnknownPartition)), text)
}

/// The failure of the client, or of what it needs.
pub(super) fn client(text: impl Display) -> Failure {
    Failure::new(FailureClass::Client, "client", text.to_string())
}

/// The rights that a user may lack. Each of these codes names one.
const FORBIDDEN: [RDKafkaErrorCode; 3] = [
    RDKafkaErrorCode::TransactionalIdAuthorizationFailed,
    RDKafkaErrorCode::ClusterAuthorizationFailed,
    RDKafkaErrorCode::TopicAuthorizationFailed,
];

/// Whether the user lacks a right.
pub(super) fn is_forbidden(code: Option<RDKafkaErrorCode>) -> bool {
    code.is_some_and(|code| FORBIDDEN.contains(&code))
}

/// The failure of a call that exactly once needs. A missing right is of the class `Environment`. After any other failure the client has to
/// be recreated.
pub(super) fn of_call(what: &str, error: &KafkaError) -> Failure {
    let code = error.rdkafka_error_code();
    let (class, reason) = if is_forbidden(code) {
        (FailureClass::Environment, "authorization")
    } else {
        (FailureClass::Client, reason(code))
    };
    Failure::new(class, reason, format!("Kafka did not let the relay {what}: {error}"))
}

/// An example of each failure with a remedy, for the review of hints.
#[cfg(test)]
pub(in crate::sink) fn remedied() -> Vec<Failure> {
    vec![of_login("no".to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_the_label_that_lists_it() {
        assert_eq!(reason(Some(RDKafkaErrorCode::MessageBatchTooLarge)), "too_large");
        assert_eq!(reason(Some(RDKafkaErrorCode::MessageTimedOut)), "other");
        assert_eq!(reason(None), "timed_out");
    }

    #[test]
    fn rows_are_refused_for_what_would_be_so_again_or_for_their_topics_sake() {
        let refusals: Vec<&str> = refusals().collect();
        let expected = [
            "too_large",
            "invalid_topic",
            "invalid_timestamp",
            "invalid_record",
            "unknown_partition",
            "unknown_topic",
            "authorization",
            "headers",
        ];
        assert_eq!(refusals, expected);
    }

    #[test]
    fn a_brokers_code_that_is_in_no_list_says_nothing_of_a_row() {
        use RDKafkaErrorCode as Code;
        let unlisted = [
            Code::Unknown,
            Code::InvalidRequiredAcks,
            Code::InvalidRequest,
            Code::UnsupportedForMessageFormat,
            Code::PolicyViolation,
            Code::OperationNotAttempted,
            Code::UnsupportedCompressionType,
            Code::SecurityDisabled,
            Code::LogDirNotFound,
            Code::UnstableOffsetCommit,
        ];
        for code in unlisted {
            assert_eq!((class(code), reason(Some(code))), (FailureClass::Unlisted, UNLISTED), "{code}");
        }
        for code in [Code::InvalidMessage, Code::NotEnoughReplicas, Code::KafkaStorageError, Code::QueueFull] {
            assert_eq!(class(code), FailureClass::Environment, "{code}");
        }
        assert_eq!(class(Code::InvalidTopic), FailureClass::Topic);
    }
}

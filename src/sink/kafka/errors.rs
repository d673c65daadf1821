//! The classes, labels and texts of librdkafka's and the brokers' errors.
//!
//! A failure of the class `Row` would repeat at every attempt, whatever the cluster's condition. One of the class `Environment` passes once
//! somebody fixes the cluster, and one of the class `Topic` once somebody fixes the topic. All others are of the class `Client`.
//! Specification: Kafka protocol, "Error Codes"; librdkafka's `rd_kafka_resp_err_t`.

use crate::sink::{Failure, FailureClass};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::fmt::Display;

/// The class of an error code.
pub(super) fn class(code: RDKafkaErrorCode) -> FailureClass {
    use RDKafkaErrorCode as Code;
    #[allow(clippy::wildcard_enum_match_arm, reason = "librdkafka has some two hundred codes, and grows")]
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidTopic
        | Code::InvalidTimestamp
        | Code::InvalidRecord
        | Code::InvalidMessage
        | Code::InvalidMessageSize => FailureClass::Row,
        // The cluster has named each partition that the sink writes to. If one is gone, its topic has changed.
        Code::UnknownPartition
        | Code::UnknownTopic
        | Code::UnknownTopicOrPartition
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
        _ => FailureClass::Environment,
    }
}

/// The labels for metrics, with the codes that each stands for.
const REASONS: [(&str, &[RDKafkaErrorCode]); 11] = {
    use RDKafkaErrorCode as Code;
    [
        ("too_large", &[Code::MessageSizeTooLarge, Code::MessageBatchTooLarge, Code::InvalidMessageSize]),
        ("invalid_topic", &[Code::InvalidTopic]),
        ("invalid_timestamp", &[Code::InvalidTimestamp]),
        ("invalid_record", &[Code::InvalidRecord, Code::InvalidMessage]),
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

/// The label of a progress topic that cannot be created, or whose `cleanup.policy` would delete progress.
pub(super) const PROGRESS_TOPIC: &str = "progress_topic";

/// The label of a topic with too few replicas for exactly once.
pub(super) const REPLICAS: &str = "replicas";

/// The label of an error without a code.
const TIMED_OUT: &str = "timed_out";

/// The label of a code.
pub(super) fn reason(code: Option<RDKafkaErrorCode>) -> &'static str {
    let Some(code) = code else { return TIMED_OUT };
    REASONS.iter().find(|(_, codes)| codes.contains(&code)).map_or(OTHER, |(reason, _)| *reason)
}

/// Every label that a failure may have.
pub(super) fn reasons() -> impl Iterator<Item = &'static str> {
    REASONS.iter().map(|(reason, _)| *reason).chain([OTHER, TIMED_OUT, PROGRESS_TOPIC, REPLICAS])
}

/// The labels for which Kafka may refuse a row: for the record's sake, or for the topic's.
pub(super) fn refusals() -> impl Iterator<Item = &'static str> {
    let of_rows = |code: &RDKafkaErrorCode| matches!(class(*code), FailureClass::Row | FailureClass::Topic);
    REASONS.iter().filter(move |(_, codes)| codes.iter().any(of_rows)).map(|(reason, _)| *reason)
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

/// One of each failure with a remedy, for the review of hints.
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
        ];
        assert_eq!(refusals, expected);
    }
}

//! What an error of librdkafka or of a broker says about what to do.
//!
//! A *row fault* would be the same at every attempt, whatever the cluster's condition; an *environment fault* passes once
//! somebody mends the cluster, and so does that of a *topic*, if somebody does. Everything else is the client's own.
//! Specification: Kafka protocol, "Error Codes"; librdkafka's `rd_kafka_resp_err_t`.

use crate::sink::{Enqueue, Failure, FailureClass, Record};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// The class of an error code.
fn class(code: RDKafkaErrorCode) -> FailureClass {
    use RDKafkaErrorCode as Code;
    #[allow(clippy::wildcard_enum_match_arm, reason = "librdkafka has some two hundred codes, and grows")]
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidTopic
        | Code::InvalidTimestamp
        | Code::InvalidRecord
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::UnknownPartition => FailureClass::Row,
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::TopicAuthorizationFailed => FailureClass::Topic,
        Code::Fatal
        | Code::GaplessGuarantee
        | Code::PurgeQueue
        | Code::PurgeInflight
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

/// A label for metrics, from a closed set.
pub(super) fn reason(code: Option<RDKafkaErrorCode>) -> &'static str {
    use RDKafkaErrorCode as Code;
    #[allow(clippy::wildcard_enum_match_arm, reason = "librdkafka has some two hundred codes, and grows")]
    match code {
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize) => "too_large",
        Some(Code::InvalidTopic) => "invalid_topic",
        Some(Code::InvalidTimestamp) => "invalid_timestamp",
        Some(Code::InvalidRecord | Code::InvalidMessage) => "invalid_record",
        Some(Code::UnknownPartition) => "unknown_partition",
        Some(Code::UnknownTopic | Code::UnknownTopicOrPartition) => "unknown_topic",
        Some(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed) => "authorization",
        Some(Code::Authentication | Code::SaslAuthenticationFailed) => "authentication",
        Some(Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend) => "not_enough_replicas",
        Some(Code::BrokerTransportFailure | Code::AllBrokersDown | Code::Resolve) => "unreachable",
        Some(Code::Fatal | Code::GaplessGuarantee | Code::PurgeQueue | Code::PurgeInflight) => "client",
        Some(_) => "other",
        None => "timed_out",
    }
}

/// The word on a topic of the cluster at `brokers`.
pub(super) fn of_topic(topic: &str, code: RDKafkaErrorCode, brokers: &str) -> Failure {
    #[allow(clippy::wildcard_enum_match_arm, reason = "librdkafka has some two hundred codes, and grows")]
    let text = match code {
        RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition => {
            format!(
                "topic {topic} does not exist; to make it: \
                 kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic}"
            )
        }
        RDKafkaErrorCode::LeaderNotAvailable => format!("topic {topic} is being created"),
        RDKafkaErrorCode::TopicAuthorizationFailed => {
            format!("not allowed to write topic {topic}: the producer's user needs WRITE and DESCRIBE on it")
        }
        code => format!("topic {topic}: {code}"),
    };
    Failure { class: class(code), reason: reason(Some(code)), text }
}

/// A delivery report with an error.
pub(super) fn of_report(topic: &str, error: &KafkaError) -> Failure {
    match error.rdkafka_error_code() {
        Some(code) => {
            Failure { class: class(code), reason: reason(Some(code)), text: format!("topic {topic}: {code}") }
        }
        None => Failure { class: FailureClass::Client, reason: reason(None), text: format!("topic {topic}: {error}") },
    }
}

/// The client did not take a record.
pub(super) fn of_send(record: &Record<'_>, error: &KafkaError) -> Enqueue {
    let Some(code) = error.rdkafka_error_code() else {
        return Enqueue::Blocked(of_report(record.topic, error));
    };
    let failure = |text| Failure { class: class(code), reason: reason(Some(code)), text };
    #[allow(clippy::wildcard_enum_match_arm, reason = "librdkafka has some two hundred codes, and grows")]
    match code {
        RDKafkaErrorCode::QueueFull => Enqueue::Full,
        RDKafkaErrorCode::MessageSizeTooLarge => Enqueue::Bad(failure(format!(
            "its {} bytes are more than the producer may send: raise -X message.max.bytes, and with it the topic's max.message.bytes",
            record.bytes()
        ))),
        RDKafkaErrorCode::UnknownPartition => {
            Enqueue::Bad(failure(format!("topic {} has no partition {}", record.topic, record.partition.unwrap_or(-1))))
        }
        code if class(code) == FailureClass::Row => Enqueue::Bad(failure(format!("topic {}: {code}", record.topic))),
        code => Enqueue::Blocked(failure(format!("topic {}: {code}", record.topic))),
    }
}

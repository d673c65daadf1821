//! The meanings of the destinations' labels: the `reason` of refused records and of failed deliveries.
//!
//! In: nothing. Out: one table for the manual. Each destination defines its labels beside the code that uses them. A test below compares
//! both.

/// A label of one destination or of several, for the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The value of `reason`.
    pub name: &'static str,
    /// The event that the label stands for.
    pub meaning: &'static str,
    /// The thing to change.
    pub fix: &'static str,
}

const fn label(name: &'static str, meaning: &'static str, fix: &'static str) -> Label {
    Label { name, meaning, fix }
}

/// All labels, by name.
pub const LABELS: &[Label] = &[
    label(
        "alarm",
        "RabbitMQ blocks publishers: its memory or disk alarm is on",
        "free memory or disk of the RabbitMQ node",
    ),
    label(
        "attributes",
        "the message has more than 10 attributes, or one that AWS does not take",
        "fewer --header, another --headers-column",
    ),
    label(
        "authentication",
        "Kafka does not accept the user or the password",
        "the user, the password and sasl.mechanism",
    ),
    label("authorization", "the user may not write to the topic", "WRITE and DESCRIBE on the topic for the user"),
    label("body", "the value is empty, or has a character that AWS does not take", "a payload that AWS takes"),
    label(
        "client",
        "the client library gave up",
        "nothing: walrelay opens a new client; if it repeats, read the error",
    ),
    label("clock", "AWS refuses requests whose time is wrong", "the clock of the machine on which walrelay runs"),
    label(
        "connection",
        "the connection broke, or could not be opened",
        "network and address; walrelay connects again by itself",
    ),
    label(
        "duplicate",
        "it dropped the row as a repeat of another one with the same id; the row is skipped whatever --on-bad-row says",
        "ids that differ: UUIDs, a stream for each table, or -X msg-id=subject",
    ),
    label(
        "exchange",
        "the row's exchange is not UTF-8, or longer than 255 bytes",
        "the values of the column that -X exchange-column names",
    ),
    label("full", "the stream has reached its limit and takes no more", "the stream's limits, or its discard policy"),
    label(
        "headers",
        "a header has a form that the destination does not take",
        "another --headers-column, --header or --key-column",
    ),
    label(
        "invalid_record",
        "Kafka refuses the record",
        "what the topic's settings ask for, such as a key if it is compacted",
    ),
    label(
        "invalid_timestamp",
        "the record's time is outside of what the topic allows",
        "another --timestamp, or the topic's message.timestamp.after.max.ms (an hour by default) and message.timestamp.before.max.ms",
    ),
    label("invalid_topic", "Kafka refuses the topic's name", "another --topic"),
    label(
        "log_in",
        "the destination does not accept the credentials",
        "the credentials; walrelay tries again by itself",
    ),
    label("memory", "Redis has reached maxmemory", "maxmemory, or -X maxlen for the stream"),
    label("no_ack", "no acknowledgement came in time", "nothing: the record is sent again"),
    label("no_exchange", "the exchange does not exist", "declare the exchange"),
    label("no_stream", "no stream of NATS takes the subject", "a stream with that subject"),
    label(
        "no_subject",
        "the row has no type, and its schema's subject is made of it",
        "another --type-column, or a --schema-subject without {type}",
    ),
    label(
        "not_enough_replicas",
        "fewer replicas are in sync than min.insync.replicas",
        "start the brokers that are down",
    ),
    label("not_permitted", "the user may not write there", "the rights of the user; walrelay tries again by itself"),
    label(
        "not_taken",
        "RabbitMQ did not take the message (basic.nack)",
        "nothing: the record is sent again; if it repeats, read RabbitMQ's log",
    ),
    label("not_writable", "the Redis server takes no writes now", "the server's state; walrelay tries again by itself"),
    label("other", "another code of librdkafka, which the log names", "what the log says"),
    label(
        "other_stream",
        "another stream than -X stream names takes the subject",
        "the subjects of the streams, or another -X stream",
    ),
    label("output", "standard output cannot be written", "whoever reads it"),
    label(
        "progress_topic",
        "the topic of exactly once's progress cannot be created, or its cleanup.policy is not compact",
        "the command in the error; walrelay tries again by itself",
    ),
    label("queue", "the queue or the topic does not exist", "create it, or another --topic"),
    label("refused", "the destination refuses the record", "what the error says"),
    label(
        "replicas",
        "exactly once: a topic has one replica, or min.insync.replicas of 1",
        "the hint of the error: three replicas, two of them in sync; or --accept-one-replica",
    ),
    label("routing_key", "the routing key is empty or longer than 255 bytes", "another --topic"),
    label(
        "schema_registry",
        "the registry does not answer, or refuses the credentials",
        "the registry, its address and its credentials; walrelay tries again by itself",
    ),
    label("sealed", "the stream is sealed", "another stream for the subject"),
    label("service", "the service failed", "nothing: the record is sent again"),
    label("stream", "the stream has no name, or with `dedupe` one with `}` outside of a hash tag", "another --topic"),
    label("throttled", "AWS takes fewer messages in a second", "the quota; the record is sent again"),
    label("timed_out", "no delivery report came in time", "nothing: the record is sent again"),
    label(
        "too_large",
        "the record is larger than the destination takes",
        "the destination's limit, or smaller payloads",
    ),
    label("unavailable", "JetStream does not answer", "the servers; walrelay tries again by itself"),
    label("unknown_partition", "the topic has no such partition", "another --partition-column, or more partitions"),
    label(
        "unknown_subject",
        "the registry does not know the schema's subject",
        "register a schema, or another --schema-subject",
    ),
    label("unknown_topic", "the topic does not exist", "create the topic, or another --topic"),
    label(
        "unlisted",
        "the destination gave an answer that walrelay does not know; no row is skipped for it",
        "what the answer says; `/status` names the row that is sent alone",
    ),
    label("unreachable", "no broker can be reached", "network and --brokers; walrelay connects again by itself"),
    label("unroutable", "no queue is bound for the routing key", "bind a queue"),
    label("wrong_type", "a key of that name holds something else than a stream", "another --topic, or remove that key"),
];

#[cfg(test)]
#[cfg(all(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis", feature = "aws"))]
mod tests {
    use super::super::kinds::KINDS;
    use super::super::registry;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_label_that_a_destination_gives_has_its_line_and_no_other() {
        let given = KINDS.iter().flat_map(|kind| (kind.refusals)().into_iter().chain((kind.reasons)()));
        let given: BTreeSet<&str> = given.chain(registry::REFUSALS).chain(registry::REASONS).collect();
        let listed: Vec<&str> = LABELS.iter().map(|label| label.name).collect();
        assert_eq!(listed, given.into_iter().collect::<Vec<_>>());
    }
}

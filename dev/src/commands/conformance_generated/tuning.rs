//! What a drawn configuration says of its producer's pace, and short names of its classes: no record depends on either.
//!
//! In: a draw that has made everything else, so that a seed's tables and rows stay what they were. Out: keys with values that are legal
//! in Java, those among them that librdkafka does not take.

use std::collections::BTreeMap;

use super::draw::Draw;

/// The producer's keys with their values.
const PACE: [(&str, &[&str]); 16] = [
    ("linger.ms", &["0", "5", "100"]),
    ("batch.size", &["0", "1", "16384", "1000000"]),
    ("max.request.size", &["1048576", "20000000", "2147483647"]),
    ("request.timeout.ms", &["20000", "2147483647"]),
    ("send.buffer.bytes", &["-1", "131072"]),
    ("receive.buffer.bytes", &["-1", "32768"]),
    ("connections.max.idle.ms", &["-1", "540000"]),
    ("metadata.max.age.ms", &["30000", "86400000"]),
    ("reconnect.backoff.ms", &["50", "2000"]),
    ("reconnect.backoff.max.ms", &["100", "1000"]),
    ("retry.backoff.ms", &["0", "100"]),
    ("socket.connection.setup.timeout.ms", &["500", "10000"]),
    ("client.id", &["debezium outbox", "a,b"]),
    ("compression.gzip.level", &["-1", "9"]),
    ("compression.lz4.level", &["1", "17"]),
    ("compression.zstd.level", &["-5", "22"]),
];

/// Classes, and what Kafka Connect takes for them. (Not the connector's own: Debezium 3.6.3 looks it up by its whole name, and does not
/// start.)
const SHORT: [(&str, &[&str]); 5] = [
    ("io.debezium.transforms.outbox.EventRouter", &["EventRouter"]),
    ("io.debezium.converters.BinaryDataConverter", &["BinaryDataConverter", "BinaryData"]),
    ("org.apache.kafka.connect.storage.StringConverter", &["StringConverter", "String"]),
    ("org.apache.kafka.connect.json.JsonConverter", &["JsonConverter", "Json"]),
    ("org.apache.kafka.connect.storage.SimpleHeaderConverter", &["SimpleHeaderConverter", "Simple"]),
];

/// Adds some of the producer's keys, and shortens some classes.
pub(super) fn add(draw: &mut Draw, config: &mut BTreeMap<String, String>) {
    for (key, values) in PACE {
        if draw.is(8) {
            config.insert(format!("producer.override.{key}"), draw.one(values).to_owned());
        }
    }
    // A delegate of a converter is no plugin of Kafka Connect's.
    for (_, class) in config.iter_mut().filter(|(key, _)| !key.contains("delegate")) {
        let short = SHORT.iter().find(|(whole, _)| whole == class).map(|(_, short)| *short);
        if let Some(short) = short.filter(|_| draw.is(6)) {
            draw.one(short).clone_into(class);
        }
    }
}

//! The brokers and the topics that the latest rows would go to.
//!
//! In: what the cluster says of itself, and the rows' topics and sizes. Out: findings. Pure.

use super::report::{Finding, Side};
use super::tables::{Tables, size};
use crate::config::mapping::Topic;
use crate::config::{Fate, RunConfig};
use crate::sink::Failure;
use crate::sink::kafka::{Cluster, Settings, TopicFacts, is_of_advertised_address};
use std::collections::BTreeMap;

/// What a topic takes if nobody said otherwise: `message.max.bytes` of the broker.
const DEFAULT_MESSAGE_BYTES: usize = 1_048_588;

/// What a record costs in a batch beyond key and value, in bytes, generously; with a few headers.
const OVERHEAD_BYTES: usize = 512;

/// More missing topics than this are summed up.
const TOPICS_SHOWN: usize = 20;

fn ok(check: &'static str, finding: impl Into<String>) -> Finding {
    Finding::ok(Side::Kafka, check, finding)
}

fn warn(check: &'static str, finding: impl Into<String>) -> Finding {
    Finding::warn(Side::Kafka, check, finding)
}

fn fail(check: &'static str, finding: impl Into<String>) -> Finding {
    Finding::fail(Side::Kafka, check, finding)
}

/// Nobody answers, or not us.
pub(super) fn unreachable(config: &RunConfig, failure: &Failure) -> Finding {
    if is_of_advertised_address(failure) {
        return misled(fail("advertised", failure.text.clone()));
    }
    let found = fail("connection", failure.text.clone());
    let protocol = config.kafka.properties.iter().find(|(key, _)| key == "security.protocol");
    let protocol = protocol.map_or("plaintext", |(_, value)| value.as_str());
    match failure.reason {
        "authentication" => found.why("the brokers refuse the log-in").mend(
            "walrelay run -X sasl.username=… with WALRELAY_KAFKA_SASL_PASSWORD, and -X sasl.mechanism as the brokers have it",
        ),
        _ => found.why("nothing else could be looked at here").mend(format!(
            "--brokers with the brokers' address; security.protocol is {protocol}: brokers that want TLS or a log-in answer nothing to another one (-X security.protocol=SASL_SSL)"
        )),
    }
}

/// Everything about the cluster.
pub(super) fn findings(config: &RunConfig, settings: &Settings, cluster: &Cluster, tables: &Tables) -> Vec<Finding> {
    let mut found = vec![ok("connection", format!("{} brokers answer", cluster.brokers.len())), protocol(settings)];
    found.extend(advertised(cluster));
    found.push(idempotence(config, cluster));
    found.extend(missing(config, cluster, tables));
    found.extend(dead_letters(config, cluster));
    for name in &tables.topics {
        if let Some(topic) = cluster.topics.get(name) {
            found.extend(topic_findings(config, settings, cluster, name, topic, tables));
        }
    }
    found
}

fn protocol(settings: &Settings) -> Finding {
    let protocol = settings.property("security.protocol").unwrap_or("plaintext").to_ascii_lowercase();
    let encrypted = protocol.contains("ssl");
    let text = format!("security.protocol is {protocol}");
    let verified = settings.property("enable.ssl.certificate.verification").is_none_or(|value| value != "false");
    if encrypted && !verified {
        return warn("security", format!("{text}, and the brokers' certificates are not verified"))
            .why("whoever stands between can read and change records")
            .mend("leave out -X enable.ssl.certificate.verification=false; an authority of your own: -X ssl.ca.location=FILE");
    }
    if encrypted {
        ok("security", text)
    } else {
        ok("security", text).why("records and passwords are not encrypted on the way")
    }
}

fn advertised(cluster: &Cluster) -> Vec<Finding> {
    let all = cluster.unreachable.len() >= cluster.brokers.len();
    cluster
        .unreachable
        .iter()
        .map(|warning| {
            let found = if all { fail("advertised", warning.clone()) } else { warn("advertised", warning.clone()) };
            misled(found)
        })
        .collect()
}

fn misled(found: Finding) -> Finding {
    found.why("clients are sent from the bootstrap address to the advertised ones").mend(
        "server.properties of that broker: advertised.listeners=PLAINTEXT://ADDRESS_FROM_HERE:PORT, then restart it",
    )
}

fn idempotence(config: &RunConfig, cluster: &Cluster) -> Finding {
    match &cluster.idempotence {
        Ok(()) => ok("write", "an idempotent producer gets its identity"),
        Err(_) if cluster.unreachable.len() >= cluster.brokers.len() => {
            warn("write", "not looked at: no broker can be reached at its advertised address")
        }
        Err(error) => fail("write", format!("no identity for an idempotent producer: {error}"))
            .why("every record is written idempotently; the user may write no topic, and not idempotently either")
            .mend(allow(config, &["Write", "Describe"], &topics_by_pattern(config))),
    }
}

/// Gives the relay's user these rights on `resource`, as options of the command.
fn allow(config: &RunConfig, operations: &[&str], resource: &str) -> String {
    format!(
        "kafka-acls.sh --bootstrap-server {} --add --allow-principal User:{} --operation {} {resource}",
        config.kafka.brokers,
        user(config),
        operations.join(" --operation ")
    )
}

/// All topics that records may go to.
fn topics_by_pattern(config: &RunConfig) -> String {
    let head = match &config.mapping.topic {
        Topic::Template(template) => template.split('{').next().unwrap_or_default(),
        Topic::Regex { .. } => "",
    };
    if head.is_empty() {
        "--topic '*'".to_owned()
    } else {
        format!("--topic '{head}' --resource-pattern-type prefixed")
    }
}

fn user(config: &RunConfig) -> &str {
    let name = config.kafka.properties.iter().find(|(key, _)| key == "sasl.username");
    name.map_or("NAME", |(_, value)| value.as_str())
}

/// Topics of the latest rows that are not there.
fn missing(config: &RunConfig, cluster: &Cluster, tables: &Tables) -> Vec<Finding> {
    let missing: Vec<&String> = tables.topics.iter().filter(|name| !cluster.topics.contains_key(*name)).collect();
    if missing.is_empty() {
        let count = tables.topics.len();
        return vec![if count == 0 {
            ok("topics", "no row is there to tell which topics are needed")
        } else {
            ok("topics", format!("the latest rows' topics are there: {count}"))
        }];
    }
    let creates = cluster.settings.as_ref().ok().and_then(|settings| settings.get("auto.create.topics.enable"));
    match creates.map(String::as_str) {
        Some("true") => {
            let names: Vec<&str> = missing.iter().take(TOPICS_SHOWN).map(|name| name.as_str()).collect();
            vec![
                ok("topics", format!("made with their first record: {}", names.join(", ")))
                    .why("with the brokers' defaults for partitions and replicas")
                    .mend(create(config, names.first().copied().unwrap_or_default())),
            ]
        }
        creates => missing
            .into_iter()
            .take(TOPICS_SHOWN)
            .map(|name| {
                let text = format!("topic {name} is not there, or may not be seen");
                let found = if creates.is_some() { fail("topics", text) } else { warn("topics", text) };
                found.why("the relay waits in front of its first record").mend(create(config, name))
            })
            .collect(),
    }
}

/// Where bad rows go, if they go anywhere.
fn dead_letters(config: &RunConfig, cluster: &Cluster) -> Option<Finding> {
    let topic = dead_letter_topic(config)?;
    if cluster.topics.contains_key(topic) {
        return Some(ok("dead_letters", format!("topic {topic} is there")));
    }
    let creates = cluster.settings.as_ref().ok().and_then(|settings| settings.get("auto.create.topics.enable"));
    if creates.is_some_and(|creates| creates == "true") {
        return Some(ok("dead_letters", format!("topic {topic} is made with the first bad row")));
    }
    Some(
        fail("dead_letters", format!("topic {topic} is not there, or may not be seen"))
            .why("the first bad row stops the relay: its dead letter can go nowhere")
            .mend(create(config, topic)),
    )
}

/// The topic of bad rows, where that is their fate.
pub(super) fn dead_letter_topic(config: &RunConfig) -> Option<&str> {
    let wanted = &config.bad_rows;
    let any = wanted.fate == Fate::DeadLetter || wanted.at.iter().any(|(_, fate)| *fate == Fate::DeadLetter);
    any.then_some(wanted.dead_letter_topic.as_str())
}

fn create(config: &RunConfig, topic: &str) -> String {
    format!("kafka-topics.sh --bootstrap-server {} --create --topic {topic} --partitions 12", config.kafka.brokers)
}

fn alter(config: &RunConfig, topic: &str, setting: &str, value: impl std::fmt::Display) -> String {
    format!(
        "kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name {topic} --add-config {setting}={value}",
        config.kafka.brokers
    )
}

fn topic_findings(
    config: &RunConfig,
    settings: &Settings,
    cluster: &Cluster,
    name: &str,
    topic: &TopicFacts,
    tables: &Tables,
) -> Vec<Finding> {
    let of_topic = match &topic.settings {
        Ok(of_topic) => of_topic.clone(),
        Err(refusal) => {
            let text = format!("the settings of topic {name} may not be seen: {refusal}");
            return vec![
                ok("topic", text).why("what is too large, or has too few replicas, shows when records are refused"),
            ];
        }
    };
    let mut found = vec![ok("topic", format!("{name}: {} partitions, {} replicas", topic.partitions, topic.replicas))];
    found.extend(replicas(config, cluster, name, topic, &of_topic));
    found.extend(too_small(config, settings, name, &of_topic, tables.largest_bytes));
    found.extend(compacted(config, name, &of_topic, tables));
    found
}

fn replicas(
    config: &RunConfig,
    cluster: &Cluster,
    name: &str,
    topic: &TopicFacts,
    settings: &BTreeMap<String, String>,
) -> Option<Finding> {
    let least: usize = settings.get("min.insync.replicas")?.parse().ok()?;
    let text =
        format!("{name}: min.insync.replicas is {least}, replicas {}, in sync {}", topic.replicas, topic.in_sync);
    if least > topic.replicas {
        return Some(
            fail("replicas", text).why("no record is ever accepted: the relay writes with acks=all").mend(alter(
                config,
                name,
                "min.insync.replicas",
                topic.replicas.max(1),
            )),
        );
    }
    if topic.in_sync < least {
        return Some(
            fail("replicas", text)
                .why("no record is accepted until more replicas are in sync")
                .mend("start the brokers that are down"),
        );
    }
    if topic.replicas == 1 && cluster.brokers.len() > 1 {
        return Some(
            warn("replicas", text)
                .why("with its one broker away the relay waits, and with its disk the records are gone")
                .mend("kafka-reassign-partitions.sh, with three replicas for each partition"),
        );
    }
    if topic.replicas > 1 && least == 1 {
        return Some(
            warn("replicas", text)
                .why("an acknowledged record may be on one broker only, and is lost with it")
                .mend(alter(config, name, "min.insync.replicas", topic.replicas - 1)),
        );
    }
    (topic.replicas > 1 && least == topic.replicas).then(|| {
        warn("replicas", text).why("with one broker down nothing can be written").mend(alter(
            config,
            name,
            "min.insync.replicas",
            topic.replicas - 1,
        ))
    })
}

fn too_small(
    config: &RunConfig,
    settings: &Settings,
    name: &str,
    of_topic: &BTreeMap<String, String>,
    largest: usize,
) -> Vec<Finding> {
    let needed = largest + OVERHEAD_BYTES;
    let limit = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_MESSAGE_BYTES);
    let of_topic = limit(of_topic.get("max.message.bytes").map(String::as_str));
    let of_client = limit(settings.property("message.max.bytes"));
    let room = needed.next_power_of_two();
    let mut found = Vec::new();
    if needed > of_topic {
        found.push(
            fail(
                "record_size",
                format!("{name} takes {}, the largest record seen has {}", size(of_topic), size(largest)),
            )
            .why("the broker refuses it, and the relay stops in front of it")
            .mend(alter(config, name, "max.message.bytes", room)),
        );
    }
    if needed > of_client {
        found.push(
            fail(
                "record_size",
                format!("message.max.bytes is {}, the largest record seen has {}", size(of_client), size(largest)),
            )
            .why("the client refuses it, and the relay stops in front of it")
            .mend(format!("walrelay run -X message.max.bytes={room}")),
        );
    }
    found
}

fn compacted(config: &RunConfig, name: &str, settings: &BTreeMap<String, String>, tables: &Tables) -> Option<Finding> {
    let compacts = settings.get("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
    (compacts && tables.without_key).then(|| {
        fail("compaction", format!("{name} is compacted, and rows without a key go there"))
            .why("a compacted topic refuses records without a key")
            .mend(alter(config, name, "cleanup.policy", "delete"))
    })
}

pub(super) mod exactly_once;
#[cfg(test)]
mod tests;

//! The commands of Kafka's own tools that texts and hints print.
//!
//! In: settings, names. Out: a command that can be pasted. Pure.

use super::config::KafkaSettings;
use std::fmt::Display;

/// A topic's setting: how many replicas have to be in sync.
pub(super) const MIN_INSYNC: &str = "min.insync.replicas";

/// How many replicas a created topic has.
pub(super) const REPLICAS: usize = 3;

/// How many replicas of a created topic have to be in sync.
pub(super) const LEAST_IN_SYNC: usize = 2;

/// The command that creates a topic with enough replicas. `brokers`: how many the cluster has, 0 if that is not known; a cluster creates no
/// topic with more replicas than brokers. `more`: further options, each with a blank before it.
pub(super) fn create(settings: &KafkaSettings, topic: &str, brokers: usize, more: &str) -> String {
    let rule = if !settings.accepts_one_replica {
        format!(" --replication-factor {REPLICAS} --config {MIN_INSYNC}={LEAST_IN_SYNC}")
    } else if (1..REPLICAS).contains(&brokers) {
        format!(" --replication-factor {brokers}")
    } else {
        String::new()
    };
    format!("kafka-topics.sh --bootstrap-server {} --create --topic {topic}{more}{rule}", settings.brokers)
}

/// The command that changes a topic's setting.
pub(super) fn alter(settings: &KafkaSettings, topic: &str, setting: &str, value: impl Display) -> String {
    format!(
        "kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name {topic} --add-config {setting}={value}",
        settings.brokers
    )
}

/// The command that gives the relay's user these rights. `resource`: the command's options that name it.
pub(super) fn allow(settings: &KafkaSettings, operations: &[&str], resource: &str) -> String {
    let user = settings.property("sasl.username").unwrap_or("NAME");
    format!(
        "kafka-acls.sh --bootstrap-server {} --add --allow-principal User:{user} --operation {} {resource}",
        settings.brokers,
        operations.join(" --operation ")
    )
}

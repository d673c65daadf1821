//! Judges whether a topic has enough replicas for exactly once: the end of a transaction has to survive the crash of a broker.
//!
//! A transaction ends in two steps: its coordinator decides, and then writes a marker to each partition. If all replicas of a partition are
//! down at that moment, it never gets its marker: Kafka 4.3.1 takes it for deleted (`KRaftMetadataCache.getPartitionLeaderEndpoint`).
//! Committed records then stay hidden, or the marker of a later transaction shows aborted ones. With three replicas, two of them in sync,
//! another replica takes over.
//!
//! | replicas | `min.insync.replicas` | verdict |
//! |---|---|---|
//! | 1 | any | refused, unless `--accept-one-replica` |
//! | 2 | any | a warning |
//! | 3 or more | 1 | refused |
//! | 3 or more | 2 or more | kept |
//! | or either is not visible | | a warning |
//!
//! In: a topic's replicas and `min.insync.replicas`. Out: the verdict, with its fix. [`judge`] is pure.
//! Specification: KIP-98, "Transaction Markers"; Kafka protocol, "DescribeConfigs".

use super::admin::Admin;
use super::config::KafkaSettings;
use super::errors;
use super::tools::{self, LEAST_IN_SYNC, MIN_INSYNC, REPLICAS};
use crate::remedy::{Command, Remedy};
use crate::sink::{Failure, FailureClass};
use rdkafka::metadata::MetadataTopic;
use std::collections::BTreeSet;
use std::time::Duration;

/// The topic of Kafka's transaction coordinators.
pub(super) const TRANSACTION_STATE: &str = "__transaction_state";

/// How long the cluster may take to describe a topic, while the relay waits.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The consequence of too few replicas, for people.
const WHY: &str = "if its brokers crash, Kafka may forget to end a transaction there: committed rows stay hidden, or aborted ones appear";

/// The judgement of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReplicaVerdict {
    /// The topic has enough replicas, or the user accepts its only one.
    Kept,
    /// The relay may run, with a warning.
    Risky {
        /// The warning.
        text: String,
    },
    /// The relay must not run.
    Refused {
        /// The reason.
        text: String,
        /// The command that fixes it.
        fix: Remedy,
    },
}

/// Judges a topic. `replicas`: the fewest of a partition; `least`: `min.insync.replicas`; `None`: this user may not see it.
pub(super) fn judge(
    topic: &str,
    replicas: Option<usize>,
    least: Option<usize>,
    settings: &KafkaSettings,
) -> ReplicaVerdict {
    match (replicas, least) {
        (Some(1), _) if settings.accepts_one_replica => ReplicaVerdict::Kept,
        (Some(1), _) => ReplicaVerdict::Refused {
            text: format!("topic {topic} has one replica: {WHY}"),
            fix: Remedy::from(format!(
                "give topic {topic} three replicas (kafka-reassign-partitions.sh) and {MIN_INSYNC}={LEAST_IN_SYNC}; or, where lost and repeated rows are acceptable: "
            ))
            .and(Command::new("run").flag("--accept-one-replica")),
        },
        (Some(2), _) => ReplicaVerdict::Risky {
            text: format!(
                "topic {topic} has two replicas: if one crashes while the other is down, Kafka may forget to end a transaction there, so that committed rows stay hidden, or aborted ones appear"
            ),
        },
        (Some(replicas @ 3..), Some(least)) if least < LEAST_IN_SYNC => ReplicaVerdict::Refused {
            text: format!(
                "topic {topic} has {replicas} replicas and {MIN_INSYNC}={least}, so that one may be in sync alone: {WHY}"
            ),
            fix: tools::alter(settings, topic, MIN_INSYNC, LEAST_IN_SYNC).into(),
        },
        (Some(3..), Some(_)) => ReplicaVerdict::Kept,
        (Some(3..), None) => ReplicaVerdict::Risky {
            text: format!(
                "{MIN_INSYNC} of topic {topic} cannot be seen, which needs the right DescribeConfigs: with 1, {WHY}"
            ),
        },
        (Some(0) | None, _) => ReplicaVerdict::Risky {
            text: format!(
                "the replicas of topic {topic} cannot be seen, which needs the right Describe: with one, {WHY}"
            ),
        },
    }
}

/// The topics of a relay, each checked once.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    checked: BTreeSet<String>,
    /// The reason why the relay must not run.
    refused: Option<Failure>,
    /// The warning about topics with one replica was logged.
    warned: bool,
}

impl Replicas {
    /// Judges a topic with so many replicas (`None`: this user may not see them), unless it was checked before.
    ///
    /// # Errors
    /// The relay must not write to it, or the cluster does not answer.
    pub(super) fn see(
        &mut self,
        topic: &str,
        replicas: Option<usize>,
        settings: &KafkaSettings,
    ) -> Result<(), Failure> {
        if self.is_checked(topic) {
            return Ok(());
        }
        let least = match replicas {
            Some(REPLICAS..) => least_in_sync(topic, settings)?,
            Some(_) | None => None,
        };
        self.see_all(topic, (replicas, least), settings)
    }

    /// Whether the topic was checked.
    pub(super) fn is_checked(&self, topic: &str) -> bool {
        self.checked.contains(topic)
    }

    /// Judges a topic with so many replicas and this `min.insync.replicas`, unless it was checked before. `None`: this user may not see them.
    ///
    /// # Errors
    /// The relay must not write to it.
    pub(super) fn see_all(
        &mut self,
        topic: &str,
        (replicas, least): (Option<usize>, Option<usize>),
        settings: &KafkaSettings,
    ) -> Result<(), Failure> {
        if self.is_checked(topic) {
            return Ok(());
        }
        match judge(topic, replicas, least, settings) {
            ReplicaVerdict::Kept if replicas == Some(1) && !self.warned => {
                self.warned = true;
                tracing::warn!(topic, "exactly once with topics of one replica, as accepted: {WHY}");
            }
            ReplicaVerdict::Kept => {}
            ReplicaVerdict::Risky { text } => tracing::warn!("exactly once: {text}"),
            ReplicaVerdict::Refused { text, fix } => {
                return Err(self.refuse(Failure::new(FailureClass::Client, errors::REPLICAS, text).with_remedy(fix)));
            }
        }
        self.checked.insert(topic.to_owned());
        Ok(())
    }

    /// Notes the reason why the relay must not run.
    pub(super) fn refuse(&mut self, failure: Failure) -> Failure {
        self.refused = Some(failure.clone());
        failure
    }

    /// The reason why the relay must not run.
    pub(super) fn refused(&self) -> Option<&Failure> {
        self.refused.as_ref()
    }
}

/// The fewest replicas of a topic's partitions. `None`: this user may not see them.
pub(super) fn replicas_of(topic: &MetadataTopic) -> Option<usize> {
    topic.partitions().iter().map(|partition| partition.replicas().len()).min()
}

/// Asks for the topic's `min.insync.replicas`. `None`: this user may not see it.
fn least_in_sync(topic: &str, settings: &KafkaSettings) -> Result<Option<usize>, Failure> {
    let admin = Admin::new(settings, ANSWERED_WITHIN).map_err(errors::client)?;
    let seen = admin.setting_of(topic, MIN_INSYNC).map_err(|error| Failure {
        class: FailureClass::Environment,
        ..errors::of_call(&format!("see the settings of topic {topic}"), &error)
    })?;
    Ok(seen.and_then(|least| least.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(accepts_one_replica: bool) -> KafkaSettings {
        KafkaSettings::new("kafka:9092", "walrelay", &[], 1 << 20).unwrap().exactly_once(accepts_one_replica)
    }

    /// The verdict is of this kind, and says these words.
    #[track_caller]
    fn check(replicas: Option<usize>, least: Option<usize>, expected: &str, words: &str) {
        let verdict = judge("orders", replicas, least, &settings(false));
        let (kind, text) = match &verdict {
            ReplicaVerdict::Kept => ("kept", String::new()),
            ReplicaVerdict::Risky { text } => ("risky", text.clone()),
            ReplicaVerdict::Refused { text, fix } => ("refused", format!("{text} {fix}")),
        };
        assert_eq!(kind, expected, "{replicas:?} {least:?}: {text}");
        assert!(text.contains(words) && (text.is_empty() || text.contains("orders")), "{text}");
    }

    #[test]
    fn one_replica_is_refused_and_two_are_warned_of() {
        check(Some(1), Some(1), "refused", "--accept-one-replica");
        check(Some(1), None, "refused", "--accept-one-replica");
        check(Some(2), Some(1), "risky", "two replicas");
        check(Some(2), Some(2), "risky", "while the other is down");
    }

    #[test]
    fn of_three_replicas_two_have_to_be_in_sync() {
        let alter = "kafka-configs.sh --bootstrap-server kafka:9092 --alter --entity-type topics --entity-name orders --add-config min.insync.replicas=2";
        check(Some(3), Some(1), "refused", alter);
        check(Some(5), Some(1), "refused", alter);
        check(Some(3), Some(2), "kept", "");
        check(Some(3), Some(3), "kept", "");
    }

    #[test]
    fn what_cannot_be_seen_is_warned_of() {
        check(Some(3), None, "risky", "DescribeConfigs");
        check(None, None, "risky", "cannot be seen");
        check(None, Some(1), "risky", "cannot be seen");
        check(Some(0), Some(2), "risky", "cannot be seen");
    }

    #[test]
    fn one_replica_is_accepted_by_its_flag_and_nothing_else_is() {
        let settings = settings(true);
        assert_eq!(judge("orders", Some(1), Some(1), &settings), ReplicaVerdict::Kept);
        assert!(matches!(judge("orders", Some(3), Some(1), &settings), ReplicaVerdict::Refused { .. }));
    }
}

//! Checks the cluster's support for `--delivery exactly-once`: rights, replicas, the topic of progress, the length of transactions.
//!
//! In: the cluster's answers, and the name of the relay's transactions. Out: findings. Only [`findings`] asks the cluster; the other
//! functions are pure.

use super::examine::{Cluster, TopicFacts, setting};
use super::rights::{self, ProgressAnswer, RightsRefusal, TRANSACTION_MAX_TIMEOUT};
use super::{MORE_REPLICAS, SIDE};
use crate::check_finding::Finding;
use crate::remedy::Command;
use crate::sink::kafka::config::KafkaSettings;
use crate::sink::kafka::progress::{CLEANUP_POLICY, TOPIC as PROGRESS_TOPIC, create, keeps_the_last};
use crate::sink::kafka::replicas::{ReplicaVerdict, TRANSACTION_STATE, judge};
use crate::sink::kafka::tools::{MIN_INSYNC, allow, alter};
use std::time::Duration;

/// Asks for rights, and makes findings of the answers. `id`: the name of the relay's transactions, which needs an answer of Postgres; `None`: there
/// was none. `was_read`: somebody has read the slot before.
pub(super) fn findings(
    settings: &KafkaSettings,
    cluster: &Cluster,
    (id, was_read): (Option<&str>, bool),
) -> Vec<Finding> {
    let Some(id) = id else {
        return vec![SIDE.warn("transactional_id", "not checked: the name of the transactions comes from Postgres")];
    };
    let mut findings = vec![
        transactions(settings, id, rights::transactions(settings, cluster, id).as_ref()),
        progress(settings, cluster.brokers.len(), &rights::progress(settings, cluster), was_read),
    ];
    let own =
        [TRANSACTION_STATE, PROGRESS_TOPIC].into_iter().filter_map(|name| Some((name, cluster.topics.get(name)?)));
    findings.extend(own.filter_map(|(name, topic)| replicas(settings, name, topic)));
    findings.extend(policy(settings, cluster));
    findings.extend(timeout(settings, cluster));
    findings
}

fn transactions(settings: &KafkaSettings, id: &str, found: Option<&Result<(), RightsRefusal>>) -> Finding {
    match found {
        Some(Ok(())) => SIDE.ok("transactional_id", format!("transactions are allowed as {id}")),
        None => SIDE
            .ok("transactional_id", format!("whether transactions are allowed as {id} is not checked"))
            .why(format!("{TRANSACTION_MAX_TIMEOUT} has no limit here, and asking would end those of a relay")),
        Some(Err(refusal)) => {
            let found = SIDE.fail("transactional_id", format!("no transactions as {id}: {}", refusal.text));
            if refusal.forbidden {
                found.why("with exactly once every record is written in a transaction").safe(allow(
                    settings,
                    &["Write", "Describe"],
                    &format!("--transactional-id {id}"),
                ))
            } else {
                found.why("Kafka's transaction coordinator does not answer: its topic __transaction_state needs as many brokers as it has replicas").words(
                    "server.properties of the brokers: transaction.state.log.replication.factor and transaction.state.log.min.isr, at most the number of brokers",
                )
            }
        }
    }
}

/// The finding about a topic with too few replicas.
pub(super) fn replicas(settings: &KafkaSettings, name: &str, topic: &TopicFacts) -> Option<Finding> {
    let least = setting(&topic.settings, MIN_INSYNC).and_then(|least| least.parse().ok());
    match judge(name, Some(topic.replicas), least, settings) {
        ReplicaVerdict::Kept => None,
        ReplicaVerdict::Risky { text } => Some(SIDE.warn("replicas", text).words(MORE_REPLICAS)),
        ReplicaVerdict::Refused { text, fix } => {
            Some(SIDE.fail("replicas", text).why("the relay does not start").bounded(fix))
        }
    }
}

fn progress(settings: &KafkaSettings, brokers: usize, found: &ProgressAnswer, was_read: bool) -> Finding {
    let rights = || allow(settings, &["Read", "Write", "Create"], &format!("--topic {PROGRESS_TOPIC}"));
    let (problem, fix) = match found {
        ProgressAnswer::There(Ok(())) => {
            return SIDE.ok("progress", format!("topic {PROGRESS_TOPIC} is there and can be read"));
        }
        ProgressAnswer::Absent(Ok(())) if was_read => {
            return SIDE
                .fail("progress", format!("topic {PROGRESS_TOPIC} does not exist, and the slot has been read"))
                .why("rows that were committed to Kafka exactly once, and not confirmed to Postgres, would be published again: the relay does not start")
                .words("only the last transactions of a relay that was killed are such rows; if you accept that, or if no relay of this slot had --delivery exactly-once before: run it once with the --accept-slot-at that its error names");
        }
        ProgressAnswer::Absent(Ok(())) => {
            return SIDE.ok("progress", format!("topic {PROGRESS_TOPIC} is created at the first start"));
        }
        ProgressAnswer::There(Err(refusal)) => (format!("cannot be read: {}", refusal.text), rights()),
        ProgressAnswer::Absent(Err(refusal)) if refusal.forbidden => {
            let problem = format!("is not there, or may not be seen, and cannot be created: {}", refusal.text);
            (problem, rights())
        }
        ProgressAnswer::Absent(Err(refusal)) => {
            (format!("cannot be created: {}", refusal.text), create(settings, brokers))
        }
    };
    SIDE.fail("progress", format!("topic {PROGRESS_TOPIC} {problem}"))
        .why("there the relay keeps how far it has come, in the same transactions")
        .bounded(fix)
}

/// The finding about the progress topic's `cleanup.policy`, if its settings can be seen.
fn policy(settings: &KafkaSettings, cluster: &Cluster) -> Option<Finding> {
    let policy = setting(&cluster.topics.get(PROGRESS_TOPIC)?.settings, CLEANUP_POLICY)?;
    let found = SIDE.fail("progress_policy", format!("{PROGRESS_TOPIC}: {CLEANUP_POLICY}={policy}"));
    let found = found
        .why("the topic would lose the relay's progress, and rows would repeat: the relay does not start")
        .bounded(alter(settings, PROGRESS_TOPIC, CLEANUP_POLICY, "compact"));
    Some(found.ok_if(keeps_the_last(policy)))
}

/// The finding about a transaction timeout above the brokers' limit, if that can be seen.
fn timeout(settings: &KafkaSettings, cluster: &Cluster) -> Option<Finding> {
    let most = setting(&cluster.settings, TRANSACTION_MAX_TIMEOUT)?;
    let (most, ours) = (Duration::from_millis(most.parse().ok()?), settings.transaction_timeout());
    (ours > most).then(|| {
        let text =
            format!("transaction.timeout.ms is {}, {TRANSACTION_MAX_TIMEOUT} {}", ours.as_millis(), most.as_millis());
        SIDE.fail("transaction_timeout", text)
            .why("the brokers refuse transactions that may be open for longer")
            .bounded(Command::new("run").set("-X", format_args!("transaction.timeout.ms={}", most.as_millis())))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cluster, settings, topic};
    use super::*;
    use crate::check_finding::Level;

    fn refusal(forbidden: bool) -> RightsRefusal {
        RightsRefusal { forbidden, text: "no".to_owned() }
    }

    #[track_caller]
    fn check(finding: &Finding, level: Level, fix: &str) {
        assert_eq!(finding.level, level, "{finding:#?}");
        assert!(finding.fix.as_ref().map_or_else(String::new, ToString::to_string).contains(fix), "{finding:#?}");
    }

    #[test]
    fn a_right_that_is_missing_is_distinguished_from_a_coordinator_that_is() {
        let settings = settings(&[("sasl.username", "relay")]);
        let right =
            "--allow-principal User:relay --operation Write --operation Describe --transactional-id walrelay-7-shop";
        check(&transactions(&settings, "walrelay-7-shop", Some(&Err(refusal(true)))), Level::Fail, right);
        let coordinator = "transaction.state.log.replication.factor";
        check(&transactions(&settings, "walrelay-7-shop", Some(&Err(refusal(false)))), Level::Fail, coordinator);
        check(&transactions(&settings, "walrelay-7-shop", Some(&Ok(()))), Level::Ok, "");
        check(&transactions(&settings, "walrelay-7-shop", None), Level::Ok, "");
    }

    #[test]
    fn the_topic_of_progress_is_there_or_can_be_made_or_else() {
        let settings = settings(&[]).exactly_once(false);
        let progress = |found| progress(&settings, 3, &found, false);
        check(&progress(ProgressAnswer::There(Ok(()))), Level::Ok, "");
        check(&progress(ProgressAnswer::Absent(Ok(()))), Level::Ok, "");
        let rights = "--operation Read --operation Write --operation Create --topic walrelay.progress";
        check(&progress(ProgressAnswer::There(Err(refusal(true)))), Level::Fail, rights);
        check(&progress(ProgressAnswer::Absent(Err(refusal(true)))), Level::Fail, rights);
        let created = "--config segment.bytes=16777216 --replication-factor 3 --config min.insync.replicas=2";
        check(&progress(ProgressAnswer::Absent(Err(refusal(false)))), Level::Fail, created);
        let read = super::progress(&settings, 3, &ProgressAnswer::Absent(Ok(())), true);
        check(&read, Level::Fail, "--accept-slot-at");
    }

    #[test]
    fn topics_with_too_few_replicas_fail_and_two_are_no_contradiction() {
        let of = |count, least| {
            let topic = TopicFacts { replicas: count, in_sync: count, ..topic(&[("min.insync.replicas", least)]) };
            replicas(&settings(&[]).exactly_once(false), "orders", &topic)
        };
        check(&of(1, "1").unwrap(), Level::Fail, "--accept-one-replica");
        check(&of(3, "1").unwrap(), Level::Fail, "--entity-name orders --add-config min.insync.replicas=2");
        for least in ["1", "2"] {
            check(&of(2, least).unwrap(), Level::Warn, "three replicas");
        }
        assert_eq!(of(3, "2"), None);
    }

    #[test]
    fn a_topic_of_progress_that_forgets_fails() {
        let of = |settings: &[(&str, &str)]| {
            let mut cluster = cluster(topic(&[]));
            cluster.topics.insert(PROGRESS_TOPIC.to_owned(), topic(settings));
            policy(&super::super::tests::settings(&[]), &cluster).unwrap()
        };
        check(&of(&[]), Level::Fail, "--entity-name walrelay.progress --add-config cleanup.policy=compact");
        check(&of(&[("cleanup.policy", "compact,delete")]), Level::Fail, "cleanup.policy=compact");
        check(&of(&[("cleanup.policy", "compact")]), Level::Ok, "");
    }

    #[test]
    fn transactions_longer_than_the_brokers_admit_fail() {
        let mut cluster = cluster(topic(&[]));
        assert_eq!(timeout(&settings(&[]), &cluster), None);
        cluster.settings = Ok([(TRANSACTION_MAX_TIMEOUT.to_owned(), "60000".to_owned())].into());
        check(&timeout(&settings(&[]), &cluster).unwrap(), Level::Fail, "-X transaction.timeout.ms=60000");
        assert_eq!(timeout(&settings(&[("transaction.timeout.ms", "60000")]), &cluster), None);
    }
}

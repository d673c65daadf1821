use super::*;
use crate::check_finding::Level;
use crate::sink::FailureClass;
use std::collections::BTreeSet;
use std::time::Duration;

/// At `kafka:9092`, with these properties.
pub(super) fn settings(properties: &[(&str, &str)]) -> KafkaSettings {
    let properties: Vec<_> = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    KafkaSettings::new("kafka:9092", "walrelay", &properties, 1 << 20).unwrap()
}

/// What was seen of the rows.
#[derive(Default)]
struct Seen {
    topics: BTreeSet<String>,
    largest_bytes: usize,
    dead_letters: Option<&'static str>,
    times: Option<RecordTimes>,
}

pub(super) fn topic(settings: &[(&str, &str)]) -> TopicFacts {
    let fixed = [("min.insync.replicas", "2"), ("max.message.bytes", "1048588"), ("cleanup.policy", "delete")];
    let settings = fixed.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    TopicFacts { partitions: 12, replicas: 3, in_sync: 3, settings: Ok(settings.collect()) }
}

pub(super) fn cluster(topic: TopicFacts) -> Cluster {
    Cluster {
        brokers: ["127.0.0.1:9092", "localhost:9093", "[::1]:9094"].map(str::to_owned).to_vec(),
        unreachable: Vec::new(),
        topics: [("orders".to_owned(), topic)].into(),
        settings: Ok([("auto.create.topics.enable".to_owned(), "false".to_owned())].into()),
        idempotence: Ok(()),
        forbidden: BTreeSet::new(),
        hidden: BTreeSet::new(),
    }
}

fn seen(topics: &[&str], largest_bytes: usize) -> Seen {
    let topics = topics.iter().map(|name| (*name).to_owned()).collect();
    Seen { topics, largest_bytes, ..Seen::default() }
}

fn found(properties: &[(&str, &str)], cluster: &Cluster, seen: &Seen) -> Vec<Finding> {
    let wanted = Wanted {
        client: "walrelay",
        topics: &seen.topics,
        topics_begin: "outbox.event.",
        dead_letters: seen.dead_letters,
        largest_bytes: seen.largest_bytes,
        without_key: false,
        exactly_once: None,
        one_replica: false,
        was_read: false,
        times: seen.times.unwrap_or(RecordTimes::Sent),
    };
    let found = Check { settings: &settings(properties), cluster, wanted: &wanted }.findings();
    found.into_iter().filter(|finding| finding.level != Level::Ok).collect()
}

#[track_caller]
fn check(cluster: &Cluster, seen: &Seen, name: &str, level: Level, fix: &str) {
    let found = found(&[], cluster, seen);
    let [finding] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((finding.check, finding.level), (name, level), "{finding:#?}");
    assert!(finding.fix.as_ref().map_or_else(String::new, ToString::to_string).contains(fix), "{finding:#?}");
}

#[test]
fn nothing_is_said_of_what_is_well() {
    assert_eq!(found(&[], &cluster(topic(&[])), &seen(&["orders"], 1000)), []);
}

#[test]
fn a_connection_without_tls_is_warned_of_beyond_this_machine() {
    let orders = seen(&["orders"], 0);
    let remote = Cluster { brokers: vec!["localhost:9092".to_owned(), "b:9092".to_owned()], ..cluster(topic(&[])) };
    check(&remote, &orders, "security", Level::Warn, "-X security.protocol=SSL,");
    assert_eq!(found(&[("security.protocol", "ssl")], &remote, &orders), []);
}

#[test]
fn replicas_are_judged_against_what_must_be_in_sync() {
    let orders = seen(&["orders"], 0);
    let least = |least| cluster(topic(&[("min.insync.replicas", least)]));
    check(&least("4"), &orders, "replicas", Level::Fail, "min.insync.replicas=3");
    check(&least("3"), &orders, "replicas", Level::Warn, "min.insync.replicas=2");
    check(&least("1"), &orders, "replicas", Level::Warn, "min.insync.replicas=2");
    // Neither setting is right for two: no fix leads from one to the other.
    for least in ["1", "2"] {
        let two = TopicFacts { replicas: 2, in_sync: 2, ..topic(&[("min.insync.replicas", least)]) };
        check(&cluster(two), &orders, "replicas", Level::Warn, "three replicas");
    }
    let behind = TopicFacts { in_sync: 1, ..topic(&[]) };
    check(&cluster(behind), &orders, "replicas", Level::Fail, "start the brokers");
    let alone = TopicFacts { replicas: 1, in_sync: 1, ..topic(&[("min.insync.replicas", "1")]) };
    check(&cluster(alone.clone()), &orders, "replicas", Level::Warn, "kafka-reassign-partitions.sh");
    // One broker has nothing to choose.
    let single = Cluster { brokers: vec!["localhost:9092".to_owned()], ..cluster(alone) };
    assert_eq!(found(&[], &single, &orders), []);
}

#[test]
fn a_retention_counts_where_records_have_the_rows_own_times() {
    const HOUR: Duration = Duration::from_hours(1);
    let of_rows = |unread_for| Seen { times: Some(RecordTimes::OfRows { unread_for }), ..seen(&["orders"], 0) };
    let keeps = |more: &[(&str, &str)]| cluster(topic(&[&[("retention.ms", "3600000")], more].concat()));
    check(&keeps(&[]), &of_rows(Some(HOUR * 2)), "retention", Level::Warn, "retention.ms=");
    for unread_for in [Some(HOUR / 2), None] {
        assert_eq!(found(&[], &keeps(&[]), &of_rows(unread_for)), []);
    }
    assert_eq!(found(&[], &keeps(&[]), &seen(&["orders"], 0)), []);
    let old = |age| Seen { times: Some(RecordTimes::OfOldRows(age)), ..seen(&["orders"], 0) };
    check(&keeps(&[]), &old(HOUR * 2), "retention", Level::Warn, "retention.ms=");
    assert_eq!(found(&[], &keeps(&[]), &old(HOUR / 2)), []);
    // None of these deletes by the records' times.
    for more in [("cleanup.policy", "compact"), ("message.timestamp.type", "LogAppendTime"), ("retention.ms", "-1")] {
        assert_eq!(found(&[], &keeps(&[more]), &of_rows(Some(HOUR * 2))), [], "{more:?}");
    }
    // A topic that the brokers create has their defaults.
    let defaults =
        [("auto.create.topics.enable", "true"), ("log.retention.hours", "1"), ("log.cleanup.policy", "delete")];
    let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let creates = Cluster { settings: Ok(defaults.into()), ..cluster(topic(&[])) };
    let missing = Seen { times: Some(RecordTimes::OfRows { unread_for: Some(HOUR * 2) }), ..seen(&["returns"], 0) };
    check(&creates, &missing, "retention", Level::Warn, "--timestamp send");
}

#[test]
fn a_topic_that_is_not_there_fails_unless_the_cluster_makes_it() {
    let there = cluster(topic(&[]));
    let missing = seen(&["orders", "returns"], 0);
    check(&there, &missing, "topics", Level::Fail, "--create --topic returns");
    let makes =
        Cluster { settings: Ok([("auto.create.topics.enable".to_owned(), "true".to_owned())].into()), ..there.clone() };
    assert_eq!(found(&[], &makes, &missing), []);
    let settings = [("auto.create.topics.enable", "true"), ("default.replication.factor", "3")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let single =
        Cluster { brokers: vec!["localhost:9092".to_owned()], settings: Ok(settings.clone().into()), ..there.clone() };
    check(&single, &missing, "topics", Level::Fail, "--topic returns --partitions 12 --replication-factor 1");
    let dead = Seen { dead_letters: Some("dead"), ..seen(&["orders"], 0) };
    check(&single, &dead, "dead_letters", Level::Fail, "--topic dead --partitions 12 --replication-factor 1");
    let three = Cluster { settings: Ok(settings.into()), ..there.clone() };
    assert_eq!(found(&[], &three, &missing), []);
    let silent = Cluster { settings: Err("no right".to_owned()), ..there };
    check(&silent, &missing, "topics", Level::Warn, "--create --topic returns");
    for cluster in [makes, silent] {
        let forbidden = Cluster { forbidden: ["returns".to_owned()].into(), ..cluster };
        check(&forbidden, &missing, "topics", Level::Fail, "--create --topic returns");
    }
}

#[test]
fn a_topic_out_of_sight_is_not_to_be_created_but_to_be_allowed() {
    let hidden = Cluster { hidden: ["returns".to_owned(), "dead".to_owned()].into(), ..cluster(topic(&[])) };
    let wanted = Seen { dead_letters: Some("dead"), ..seen(&["orders", "returns"], 0) };
    let found = found(&[], &hidden, &wanted);
    let told: Vec<(&str, Level)> = found.iter().map(|finding| (finding.check, finding.level)).collect();
    assert_eq!(told, [("topics", Level::Fail), ("dead_letters", Level::Fail)]);
    for (finding, words) in found.iter().zip(["--operation Write", "--operation Describe --topic dead"]) {
        let fix = finding.fix.as_ref().unwrap().to_string();
        assert!(fix.contains("kafka-acls.sh") && fix.contains(words) && !fix.contains("--create"), "{fix}");
    }
}

#[test]
fn a_user_who_may_not_write_gets_the_acl() {
    let refused = Cluster { idempotence: Err("ClusterAuthorizationFailed".to_owned()), ..cluster(topic(&[])) };
    let found = found(&[("sasl.username", "relay")], &refused, &seen(&[], 0));
    assert_eq!((found[0].check, found[0].level), ("write", Level::Fail));
    assert!(found[0].fix.as_ref().unwrap().to_string().contains("--allow-principal User:relay --operation Write"));
}

#[test]
fn a_dead_letter_topic_that_is_wanted_has_to_be_there() {
    let there = cluster(topic(&[]));
    let wanted = |topic| found(&[], &there, &Seen { dead_letters: Some(topic), ..Seen::default() });
    let missing = wanted("nowhere");
    assert_eq!((missing[0].check, missing[0].level), ("dead_letters", Level::Fail));
    assert!(missing[0].fix.as_ref().unwrap().to_string().contains("--create --topic nowhere"));
    assert_eq!(wanted("orders"), []);
    assert_eq!(found(&[], &there, &seen(&[], 0)), []);
}

#[test]
fn certificates_that_are_not_verified_are_warned_of() {
    let more = [("security.protocol", "ssl"), ("enable.ssl.certificate.verification", "false")];
    let found = found(&more, &cluster(topic(&[])), &seen(&[], 0));
    assert_eq!((found[0].check, found[0].level), ("security", Level::Warn));
}

#[test]
fn a_refused_log_in_is_distinguished_from_silence() {
    let failure = |class| Failure::new(class, "other", "x");
    let fix = |class| unreachable(&settings(&[]), &failure(class), &Speaks::Nothing).fix.unwrap().to_string();
    assert!(fix(FailureClass::LogIn).contains("sasl.username"));
    let silence = fix(FailureClass::Environment);
    assert!(silence.contains("--brokers") && silence.contains("security.protocol is plaintext"));
}

#[test]
fn a_listener_that_speaks_another_protocol_is_reported_with_the_flags_in_the_right_direction() {
    let failure = Failure::new(FailureClass::Environment, "other", "x");
    let scram = || Speaks::Sasl(vec!["SCRAM-SHA-256".to_owned(), "PLAIN".to_owned()]);
    for (given, speaks, flags) in [
        (&[][..], Speaks::Tls, "-X security.protocol=SSL"),
        (&[("sasl.username", "u")], Speaks::Tls, "-X security.protocol=SASL_SSL"),
        (&[("security.protocol", "SSL")], Speaks::Plain, "-X security.protocol=PLAINTEXT"),
        (&[("security.protocol", "SASL_SSL")], Speaks::Plain, "-X security.protocol=PLAINTEXT"),
        (&[], scram(), "-X security.protocol=SASL_PLAINTEXT -X sasl.mechanism=SCRAM-SHA-256"),
        (
            &[("security.protocol", "SASL_SSL"), ("sasl.mechanism", "PLAIN")],
            scram(),
            "-X security.protocol=SASL_PLAINTEXT -X sasl.mechanism=PLAIN",
        ),
        (&[("security.protocol", "SASL_PLAINTEXT")], scram(), "-X sasl.mechanism=SCRAM-SHA-256"),
    ] {
        let fix = unreachable(&settings(given), &failure, &speaks).fix.unwrap();
        assert_eq!(fix.to_string(), format!("walrelay run {flags}"), "{given:?} {speaks:?}");
    }
    let same = [("security.protocol", "SASL_PLAINTEXT"), ("sasl.mechanism", "PLAIN")];
    assert!(unreachable(&settings(&same), &failure, &scram()).fix.unwrap().to_string().contains("--brokers"));
}

#[test]
fn a_broker_that_takes_no_request_as_large_as_a_batch_fails() {
    let of = |limit: &str| {
        let settings = [("auto.create.topics.enable", "false"), ("socket.request.max.bytes", limit)];
        Cluster {
            settings: Ok(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            ..cluster(topic(&[]))
        }
    };
    let orders = seen(&["orders"], 0);
    check(&of("60000"), &orders, "request_size", Level::Fail, "-X batch.size=30000");
    assert_eq!(found(&[], &of("104857600"), &orders), []);
    assert_eq!(found(&[("batch.size", "30000")], &of("60000"), &orders), []);
}

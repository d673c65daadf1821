//! A record that is sent again is the row's, as when it is sent for the first time: key, value, headers, timestamp, partition.
//!
//! Each test publishes the same rows to two topics. On the way to one of them records have to be sent again. The records of both must be
//! equal.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_dev::consume::Record;
use walrelay_dev::kafka::{self, Kafka, shared_kafka};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::refuser::{Refusal, Refuser};
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::Tap;

use crate::lane::{LONG, Lane, ended, ids, wait_events, wait_log};
use crate::own;

const TABLE: &str =
    "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text, part int,
                     headers jsonb, due timestamptz)";

const FLAGS: [&str; 4] = ["--timestamp=due", "--partition-column=part", "--header=due=due", "--position-header"];

/// Everything that a row decides of its record, but for its position: time, key, value, headers, partition.
type Part = (Option<i64>, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>, i32);

/// Inserts rows of this route, in one transaction: `size` is the payload's length as SQL. Every third row asks for partition 0.
fn insert(lane: &Lane, route: &str, (first, last): (u32, u32), size: &str) {
    lane.sql(&format!(
        "INSERT INTO outbox SELECT n, '{route}', 'k' || n % 7, 't', repeat(md5(n::text), {size}), CASE WHEN n % 3 = 0 THEN 0 END,
                jsonb_build_object('h', n, 'none', null), to_timestamp(1700000000 + n)
         FROM generate_series({first}, {last}) AS n"
    ));
}

/// The records by their ids.
#[track_caller]
fn parts(records: &[Record]) -> BTreeMap<String, Part> {
    let mut parts = BTreeMap::new();
    for record in records {
        let headers = record.headers.iter().filter(|(name, _)| name != "walrelay-position").cloned().collect();
        let part = (record.timestamp, record.key.clone(), record.value.clone(), headers, record.partition);
        let id = record.header("id").unwrap().to_owned();
        let first = parts.entry(id.clone()).or_insert_with(|| part.clone());
        assert_eq!(*first, part, "row {id} came again as another record");
    }
    parts
}

/// Compares the records of `order` with those of `plain`, less `without`.
#[track_caller]
fn check(lane: &Lane, relay: &Relay, without: &[&str]) {
    let (mut plain, order) = (parts(&lane.records("plain")), parts(&lane.records("order")));
    for id in without {
        assert!(plain.remove(*id).is_some());
    }
    let differs = plain.iter().filter(|(id, part)| order.get(*id) != Some(part)).map(|(id, _)| id.as_str());
    let differs: Vec<&str> = differs.collect();
    let first = differs.first().map(|id| (plain.get(*id), order.get(*id)));
    assert!(differs.is_empty(), "{} records differ, {first:?}: {}", differs.len(), relay.log());
    assert_eq!(order.len(), plain.len());
}

fn with_topics(partitions: u32, limit: &str) -> Lane {
    let lane = Lane::with(TABLE, "outbox");
    for (route, limit) in [("plain", "1000000"), ("order", limit)] {
        let settings = [("max.message.bytes", limit)];
        shared_kafka().unwrap().create_topic(&lane.topic(route), partitions, &settings).unwrap();
    }
    lane
}

#[test]
fn batches_that_are_larger_than_their_topic_takes_come_again_with_their_rows_times() {
    let lane = with_topics(1, "20000");
    for route in ["plain", "order"] {
        insert(&lane, route, (1, 2000), "3");
    }
    let mut relay = lane.relay(&FLAGS);
    check(&lane, &relay, &[]);
    assert!(relay.log().contains("reducing batch size"), "no batch was refused: {}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// Row 500 of 1000 is too large for the topic `order`.
#[track_caller]
fn check_one_too_large(partitions: u32, action: &str) {
    let lane = with_topics(partitions, "20000");
    for route in ["plain", "order"] {
        insert(&lane, route, (1, 1000), "CASE n WHEN 500 THEN 1000 ELSE 3 END");
    }
    let flags: Vec<&str> = FLAGS.into_iter().chain([action]).collect();
    let relay = lane.relay(&flags);
    check(&lane, &relay, &["500"]);
    if action.ends_with("dead-letter") {
        let dead_letters = lane.records_now("dead-letter");
        assert_eq!(ids(&dead_letters), ["500"]);
        let plain: Vec<Record> =
            lane.records_now("plain").into_iter().filter(|it| it.header("id") == Some("500")).collect();
        let (dead, meant) = (&dead_letters[0], &plain[0]);
        assert_eq!((&dead.key, &dead.value), (&meant.key, &meant.value));
        // It has the time of its own sending, and says the row's.
        let time = meant.timestamp.unwrap();
        assert!(dead.timestamp.unwrap() > time, "{dead:?}");
        assert_eq!(dead.header("walrelay-timestamp"), Some(time.to_string().as_str()), "{dead:?}");
        let own: Vec<_> = dead.headers.iter().filter(|(name, _)| !name.starts_with("walrelay-")).cloned().collect();
        let expected: Vec<_> =
            meant.headers.iter().filter(|(name, _)| !name.starts_with("walrelay-")).cloned().collect();
        assert_eq!(own, expected);
        // The row asks for no partition.
        assert_eq!(dead.header("walrelay-partition"), None, "{dead:?}");
    }
}

#[test]
#[ignore = "slow"]
fn neighbours_of_a_row_that_is_skipped_keep_their_times() {
    check_one_too_large(1, "--on-bad-row=skip");
}

#[test]
fn a_dead_letter_and_the_neighbours_of_its_row_keep_their_times_and_partitions() {
    check_one_too_large(12, "--on-bad-row=dead-letter");
}

/// A broker's refusals, by their codes: of the record, of the topic, for now, of the producer.
const CODES: [(&str, i16); 8] = [
    ("UNKNOWN_TOPIC_OR_PARTITION", 3),
    ("NOT_ENOUGH_REPLICAS", 19),
    ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", 20),
    ("TOPIC_AUTHORIZATION_FAILED", 29),
    ("POLICY_VIOLATION", 44),
    ("OUT_OF_ORDER_SEQUENCE_NUMBER", 45),
    ("KAFKA_STORAGE_ERROR", 56),
    ("UNKNOWN_PRODUCER_ID", 59),
];

#[test]
fn records_that_a_broker_refuses_for_now_come_again_with_their_rows_times() {
    let tap = Tap::listen().unwrap();
    let options = kafka::Options { advertise_through: Some(tap.port()), ..kafka::Options::default() };
    let kafka = Kafka::start(&options).unwrap();
    let mut lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
    let routes: Vec<String> = CODES.iter().map(|(_, code)| format!("code{code}")).collect();
    let refusal = |(route, (_, code)): (&String, &(&str, i16))| Refusal {
        topic: lane.topic(route),
        code: *code,
        delay: Duration::from_millis(20),
        count: 2,
    };
    let refusals: Vec<Refusal> = routes.iter().zip(&CODES).map(refusal).collect();
    for route in routes.iter().map(String::as_str).chain(["plain"]) {
        kafka.create_topic(&lane.topic(route), 3, &[]).unwrap();
    }
    let refuser = Refuser::start(kafka.tap_target(), refusals).unwrap();
    tap.set_target(refuser.address());
    lane.brokers = tap.address();
    let relay = lane.streaming(&FLAGS);
    for route in routes.iter().map(String::as_str).chain(["plain"]) {
        insert(&lane, route, (1, 60), "1");
    }
    let plain = parts(&lane.records("plain"));
    for (route, (name, _)) in routes.iter().zip(&CODES) {
        assert_eq!(refuser.refused_of(&lane.topic(route)), 2, "{name}");
        assert_eq!(parts(&lane.records(route)), plain, "{name}: {}", relay.log());
    }
}

#[test]
#[ignore = "slow"]
fn records_whose_topic_is_deleted_and_created_again_come_again_with_their_rows_times() {
    let (kafka, _) = own::strict_kafka();
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(TABLE, "outbox");
    for route in ["plain", "order"] {
        kafka.create_topic(&lane.topic(route), 3, &[]).unwrap();
    }
    let relay = lane.streaming(&FLAGS);
    insert(&lane, "order", (1, 3), "1");
    wait_events(&relay, 3);
    let topic = lane.topic("order");
    // Until a partition's folder is renamed, the broker takes records for it, also when its metadata lacks the topic.
    let folders = [0, 1, 2].map(|partition| kafka.partition(&topic, partition));
    assert!(folders.iter().all(|folder| folder.exists()), "{folders:?}");
    kafka.delete_topics(&[&topic]).unwrap();
    wait_until(LONG, "the partitions to go", || Ok(!folders.iter().any(|folder| folder.exists()))).unwrap();
    for route in ["order", "plain"] {
        insert(&lane, route, (4, 500), "1");
    }
    wait_log(&relay, "does not exist");
    kafka.create_topic(&topic, 3, &[]).unwrap();
    check(&lane, &relay, &[]);
}

/// Kafka takes times up to an hour ahead.
const AHEAD: &str = "INSERT INTO outbox VALUES (2, 'order', 'k', 't', 'p', NULL, NULL, now() + interval '3 hours')";

fn stopped_at_row_2(lane: &Lane) {
    let (code, log) = ended(&mut lane.relay(&FLAGS));
    assert!(code == 2 && log.contains("id 2") && log.contains("timestamp"), "{code} {log}");
}

#[test]
fn a_row_whose_time_the_broker_refuses_is_a_bad_row_alone_and_between_others() {
    let lane = with_topics(1, "1000000");
    lane.sql(AHEAD);
    stopped_at_row_2(&lane);
    let relay = lane.relay(&[&FLAGS[..], &["--on-bad-row=skip"]].concat());
    lane.wait_confirmed();
    assert_eq!(relay.metric("walrelay_bad_rows_total").unwrap().to_string(), "1");
    drop(relay);
    lane.sql(&format!(
        "INSERT INTO outbox SELECT n, 'order', 'k', 't', 'p', NULL, NULL, now() FROM generate_series(-50, 1) AS n;
         {AHEAD};
         INSERT INTO outbox SELECT n, 'order', 'k', 't', 'p', NULL, NULL, now() FROM generate_series(3, 50) AS n"
    ));
    stopped_at_row_2(&lane);
    let mut before: Vec<i32> = ids(&lane.records_now("order")).iter().map(|id| id.parse().unwrap()).collect();
    before.dedup();
    assert_eq!(before.last(), Some(&1), "{before:?}");
}

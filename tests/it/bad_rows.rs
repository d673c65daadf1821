//! Rows that cannot be published: which one, why, and that nothing passes it.

use walrelay_dev::consume::Record;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, Lane, ended, hint, ids};

const TABLE: &str = "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text)";

/// Text that no codec makes small, of so many bytes, as SQL.
fn noise(bytes: usize) -> String {
    format!("(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {}))", bytes / 32)
}

/// Runs a relay into a bad row: the log, and the confirmed position.
#[track_caller]
fn stopped(lane: &Lane, relay: &mut Relay, id: &str) -> (String, String) {
    let (code, log) = ended(relay);
    assert_eq!(code, 2, "{log}");
    let confirmed = lane.confirmed();
    let hint = hint(&log);
    assert!(log.contains("error: a row of public.outbox cannot be published"), "{log}");
    assert!(hint.contains(&format!("id {id} ")) && hint.contains(&format!(" at {confirmed}")), "{confirmed}: {hint}");
    (log, confirmed)
}

#[test]
fn a_row_without_a_route_stops_the_relay_right_before_it() {
    let lane = Lane::with(TABLE, "outbox");
    lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', 't', 'p' FROM generate_series(1, 3) AS n");
    lane.sql(
        "INSERT INTO outbox VALUES (4, 'order', 'k', 't', 'p'), (5, NULL, 'k', 't', 'p'), (6, 'order', 'k', 't', 'p')",
    );
    lane.sql("INSERT INTO outbox VALUES (7, 'order', 'k', 't', 'p')");
    let mut relay = lane.relay(&[]);
    let (log, confirmed) = stopped(&lane, &mut relay, "5");
    assert!(log.contains("aggregatetype") && log.contains(":1"), "{log}");
    assert_eq!(ids(&lane.records_now("order")), ["1", "2", "3", "4"]);
    // Again: nothing moves, and only what stands in the bad row's transaction before it repeats.
    relay.start_again().unwrap();
    assert_eq!(stopped(&lane, &mut relay, "5").1, confirmed);
    assert_eq!(ids(&lane.records_now("order")), ["1", "2", "3", "4", "4"]);
    let _fixed = lane.relay(&["--topic", &lane.topic("fixed")]);
    assert_eq!(lane.ids("fixed"), ["4", "5", "6", "7"]);
}

#[test]
fn a_topic_name_that_kafka_does_not_allow_stops_the_relay() {
    let lane = Lane::with(TABLE, "outbox");
    for (id, route) in [(1, "with space"), (2, "smile🙂"), (3, "")] {
        lane.sql(&format!("INSERT INTO outbox VALUES ({id}, '{route}', 'k', 't', 'p')"));
    }
    let long = "x".repeat(250);
    lane.sql(&format!("INSERT INTO outbox VALUES (4, '{long}', 'k', 't', 'p')"));
    let mut relay = lane.relay(&[]);
    let (log, _) = stopped(&lane, &mut relay, "1");
    assert!(log.contains("with space"), "{log}");
    assert!(relay.log().lines().all(|line| line.len() < 2000));
}

#[test]
fn a_record_too_large_for_the_client_stops_the_relay_and_the_limits_named_let_it_through() {
    let lane = Lane::with(TABLE, "outbox");
    let settings = [("max.message.bytes", "4000000")];
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &settings).unwrap();
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p')");
    lane.sql(&format!("INSERT INTO outbox VALUES (2, 'order', 'k', 't', {})", noise(2_000_000)));
    lane.sql("INSERT INTO outbox VALUES (3, 'order', 'k', 't', 'p')");
    let mut relay = lane.relay(&[]);
    let (log, _) = stopped(&lane, &mut relay, "2");
    assert!(log.contains("-X message.max.bytes") && log.contains("max.message.bytes"), "{log}");
    assert_eq!(ids(&lane.records_now("order")), ["1"]);
    let _fixed = lane.relay(&["-X", "message.max.bytes=4000000"]);
    assert_eq!(lane.ids("order"), ["1", "2", "3"]);
}

#[test]
#[ignore = "slow"]
fn nothing_of_its_key_passes_a_record_that_the_topic_refuses_at_its_first_batch() {
    for _ in 0..4 {
        let lane = Lane::with(TABLE, "outbox");
        shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &[]).unwrap();
        lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p')");
        lane.sql(&format!("INSERT INTO outbox VALUES (2, 'order', 'k', 't', {})", noise(2_000_000)));
        lane.sql("INSERT INTO outbox VALUES (3, 'order', 'k', 't', 'p')");
        let mut relay = lane.relay(&["-X", "message.max.bytes=20000000", "--on-bad-row=stop"]);
        let (log, _) = stopped(&lane, &mut relay, "2");
        assert_eq!(ids(&lane.records_now("order")), ["1"], "{log}");
    }
}

/// 200 transactions of 10 rows over 7 keys, to a topic that takes records up to 20 kB; row 1004 is larger.
fn one_too_large(partitions: u32) -> Lane {
    let lane = Lane::with(TABLE, "outbox");
    let settings = [("max.message.bytes", "20000")];
    shared_kafka().unwrap().create_topic(&lane.topic("order"), partitions, &settings).unwrap();
    for first in (0..2000).step_by(10) {
        lane.sql(&format!(
            "INSERT INTO outbox SELECT n, 'order', 'k' || n % 7, 't', repeat(md5(n::text), CASE n WHEN 1004 THEN 1875 ELSE 10 END)
             FROM generate_series({first}, {first} + 9) AS n"
        ));
    }
    lane
}

fn numbers(records: &[Record]) -> Vec<u32> {
    ids(records).iter().map(|id| id.parse().unwrap()).collect()
}

#[test]
#[ignore = "slow"]
fn a_record_too_large_for_its_topic_is_found_among_its_neighbours_and_the_rest_follows_once_the_limit_is_raised() {
    let lane = one_too_large(1);
    let mut relay = lane.relay(&[]);
    let (log, _) = stopped(&lane, &mut relay, "1004");
    assert!(log.contains(":4"), "the fifth row of its transaction: {log}");
    let before = numbers(&lane.records_now("order"));
    assert_eq!(before.last(), Some(&1003), "nothing after it");
    assert!((0..1004).all(|id| before.contains(&id)), "everything before it");
    shared_kafka().unwrap().alter_topic(&lane.topic("order"), &[("max.message.bytes", "1000000")]).unwrap();
    relay.start_again().unwrap();
    let after = numbers(&lane.records("order"));
    // The slot stands before its transaction, so what precedes it there comes again.
    let rest: Vec<u32> = (1000..2000).collect();
    assert_eq!(after[before.len()..], rest, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn nothing_of_its_partition_passes_a_record_too_large_for_its_topic() {
    let lane = one_too_large(3);
    let mut relay = lane.relay(&[]);
    stopped(&lane, &mut relay, "1004");
    let records = lane.records_now("order");
    let partition = records.iter().find(|record| record.key_text() == "k3").unwrap().partition;
    let beside: Vec<Record> = records.iter().filter(|record| record.partition == partition).cloned().collect();
    assert!(numbers(&beside).iter().all(|&id| id < 1004), "{:?}", numbers(&beside));
    assert!((0..1004).all(|id| numbers(&records).contains(&id)), "everything before it");
    shared_kafka().unwrap().alter_topic(&lane.topic("order"), &[("max.message.bytes", "1000000")]).unwrap();
    relay.start_again().unwrap();
    let records = lane.records("order");
    for key in 0..7 {
        let of_key: Vec<Record> = records.iter().filter(|r| r.key_text() == format!("k{key}")).cloned().collect();
        let mut next = key;
        for id in numbers(&of_key) {
            assert!(id <= next, "k{key}: {id} before {next}");
            next = next.max(id + 7);
        }
        assert!(next >= 2000, "k{key} ends before {next}");
    }
}

#[test]
fn a_topics_limit_below_a_full_batch_makes_the_batches_smaller() {
    let lane = Lane::with(TABLE, "outbox");
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &[("max.message.bytes", "20000")]).unwrap();
    lane.sql(&format!(
        "INSERT INTO outbox SELECT n, 'order', 'k', 't', {} FROM generate_series(1, 1000) AS n",
        "repeat(md5(n::text), 3)"
    ));
    let mut relay = lane.relay(&[]);
    let mut seen: Vec<u32> = lane.ids("order").iter().map(|id| id.parse().unwrap()).collect();
    let first_time: Vec<u32> = (1..=1000).collect();
    let mut highest = 0;
    assert!(
        seen.iter().all(|&id| id <= highest + 1 && {
            highest = highest.max(id);
            true
        }),
        "in order"
    );
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, first_time, "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn two_bad_records_are_found_one_after_the_other() {
    let kafka = shared_kafka().unwrap();
    let lane = Lane::with(TABLE, "outbox");
    kafka.create_topic(&lane.topic("order"), 1, &[("max.message.bytes", "20000")]).unwrap();
    for id in 1..=20 {
        let payload = if id % 10 == 0 { noise(30_000) } else { "'small'".to_owned() };
        lane.sql(&format!("INSERT INTO outbox VALUES ({id}, 'order', 'k', 't', {payload})"));
    }
    let mut relay = lane.relay(&[]);
    let (log, _) = stopped(&lane, &mut relay, "10");
    assert!(!log.contains("id 20 "), "{log}");
    let mut found = ids(&lane.records_now("order"));
    found.dedup();
    assert_eq!(found.iter().map(|id| id.parse().unwrap()).max(), Some(9_u32));
}

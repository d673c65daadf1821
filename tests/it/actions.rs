//! What becomes of rows that cannot be published, where that is not to stop the relay.

use walrelay_dev::consume::Record;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, ended, hint, ids};
use crate::own;

const TABLE: &str = "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text)";

/// Text that no codec makes small, of so many bytes, as SQL.
fn noise(bytes: usize) -> String {
    format!("(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {}))", bytes / 32)
}

/// The route's topic takes records up to 20 kB.
fn small_topic(lane: &Lane) {
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 3, &[("max.message.bytes", "20000")]).unwrap();
}

/// Each key's records in order of their first appearance, `bad` ones left out: 0..2000 over 7 keys.
#[track_caller]
fn all_but_in_order(records: &[Record], bad: u32) {
    for key in 0..7 {
        let of_key = records.iter().filter(|record| record.key_text() == format!("k{key}"));
        let mut expected = (key..2000).step_by(7).filter(|&id| id != bad).peekable();
        let mut seen = Vec::new();
        for record in of_key {
            let id: u32 = record.header("id").unwrap().parse().unwrap();
            if !seen.contains(&id) {
                assert_eq!(Some(id), expected.next(), "k{key}");
                seen.push(id);
            }
        }
        assert_eq!(expected.peek(), None, "k{key}");
    }
}

#[test]
#[ignore = "slow"]
fn of_2000_rows_the_one_that_its_topic_refuses_becomes_a_dead_letter_and_order_holds() {
    let lane = Lane::with(TABLE, "outbox");
    small_topic(&lane);
    let mut client = lane.connect();
    for first in (0..2000).step_by(10) {
        let rows = format!(
            "INSERT INTO outbox SELECT n, 'order', 'k' || n % 7, 't', repeat(md5(n::text), CASE n WHEN 1004 THEN 1875 ELSE 10 END)
             FROM generate_series({first}, {first} + 9) AS n"
        );
        client.batch_execute(&rows).unwrap();
    }
    let mut relay = lane.relay(&["--on-bad-row=dead-letter"]);
    all_but_in_order(&lane.records("order"), 1004);
    let dead_letters = lane.records("dead-letter");
    assert!(ids(&dead_letters).iter().all(|id| id == "1004"), "{:?}", ids(&dead_letters));
    let dead_letter = dead_letters.first().unwrap_or_else(|| panic!("no dead letter: {}", relay.log()));
    assert_eq!((dead_letter.key_text(), dead_letter.value_text().len()), ("k3".to_owned(), 60_000));
    assert_eq!(dead_letter.header("eventType"), Some("t"));
    assert_eq!(dead_letter.header("walrelay-table"), Some("public.outbox"));
    assert_eq!(dead_letter.header("walrelay-topic"), Some(lane.topic("order").as_str()));
    assert!(dead_letter.header("walrelay-error").unwrap().contains("MessageSizeTooLarge"));
    assert!(dead_letter.header("walrelay-position").unwrap().ends_with(":4"));
    assert!(relay.get("/metrics").unwrap().body.contains("walrelay_bad_rows_total{"), "counted");
    assert_eq!(relay.metric("walrelay_bad_rows_total").unwrap().to_string(), "1");
    relay.wait_streaming(LONG).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    assert!(relay.log().contains("stopped"), "{}", relay.log());
}

#[test]
fn rows_that_no_record_can_be_made_of_are_dead_letters_with_what_there_is_of_them() {
    let lane = Lane::with(
        "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text, headers text)",
        "outbox",
    );
    lane.sql(
        "INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p', '{}'), (2, NULL, 'k', 't', 'null route', '{\"a\": \"b\"}'),
         (3, 'no topic', 'k', 't', 'p', '{}'), (4, 'order', 'k', 't', 'no object', 'x'), (5, 'order', 'k', 't', 'p', '{}')",
    );
    let mut relay = lane.relay(&["--on-bad-row=dead-letter"]);
    assert_eq!(lane.ids("order"), ["1", "5"], "{}", relay.log());
    let mut dead_letters = lane.records("dead-letter");
    // Their topics differ.
    dead_letters.sort_by_key(|dead_letter| dead_letter.header("id").map(str::to_owned));
    assert_eq!(ids(&dead_letters), ["2", "3", "4"]);
    let texts: Vec<String> = dead_letters.iter().map(Record::value_text).collect();
    assert_eq!(texts, ["null route", "p", "no object"]);
    assert_eq!((dead_letters[0].header("a"), dead_letters[0].key_text().as_str()), (Some("b"), "k"));
    assert_eq!(dead_letters[1].header("walrelay-topic"), Some(lane.topic("no topic").as_str()));
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    // Nothing comes again.
    relay.start_again().unwrap();
    relay.wait_streaming(LONG).unwrap();
    assert_eq!(lane.ids("dead-letter").len(), 3);
}

#[test]
#[ignore = "slow"]
fn a_payload_that_the_dead_letter_topic_does_not_take_either_is_left_out_and_its_size_is_reported() {
    let lane = Lane::with(TABLE, "outbox");
    small_topic(&lane);
    let settings = [("max.message.bytes", "30000")];
    shared_kafka().unwrap().create_topic(&lane.topic("dead-letter"), 1, &settings).unwrap();
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p')");
    lane.sql(&format!("INSERT INTO outbox VALUES (2, 'order', 'k', 't', {})", noise(40_000)));
    lane.sql(&format!("INSERT INTO outbox VALUES (3, 'order', 'k', 't', {})", noise(2_000_000)));
    lane.sql(&format!("INSERT INTO outbox VALUES (4, NULL, 'k', 't', {})", noise(50_000)));
    lane.sql("INSERT INTO outbox VALUES (5, 'order', 'k', 't', 'p')");
    let relay = lane.relay(&["--on-bad-row=dead-letter"]);
    assert_eq!(lane.ids("order"), ["1", "5"], "{}", relay.log());
    let mut dead_letters = lane.records("dead-letter");
    // The broker has refused the second row, and the dead letter of the fourth one.
    dead_letters.sort_by_key(|dead_letter| dead_letter.header("id").map(str::to_owned));
    assert_eq!(ids(&dead_letters), ["2", "3", "4"]);
    assert!(dead_letters.iter().all(|dead_letter| dead_letter.value_text().is_empty()));
    let bytes = |at: usize| dead_letters[at].header("walrelay-payload-bytes");
    assert_eq!([bytes(0), bytes(1), bytes(2)], [Some("40000"), Some("2000000"), Some("49984")]);
    assert!(dead_letters[2].header("walrelay-error").unwrap().contains("\"aggregatetype\" is null"));
    assert_eq!(dead_letters[2].headers.iter().filter(|(name, _)| name.starts_with("walrelay-")).count(), 6);
    assert_eq!(relay.metric("walrelay_bad_rows_total").unwrap().to_string(), "3");
}

#[test]
fn what_the_hint_says_of_one_row_decides_it_and_no_other() {
    let lane = Lane::with(TABLE, "outbox");
    lane.sql(
        "INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p'), (2, NULL, 'k', 't', 'p'), (3, 'order', 'k', 't', 'p')",
    );
    lane.sql("INSERT INTO outbox VALUES (4, NULL, 'k', 't', 'p')");
    lane.sql("INSERT INTO outbox VALUES (5, 'order', 'k', 't', 'p')");
    let mut decided: Vec<String> = Vec::new();
    for action in ["=dead-letter", "=skip"] {
        let (code, log) = ended(&mut lane.relay(&decided.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(code, 2, "{log}");
        let hint = hint(&log);
        let named = hint.split("--bad-row-at ").skip(1).map(|rest| rest.split([' ', ';']).next().unwrap());
        let named = named.filter(|named| named.ends_with(action)).collect::<Vec<_>>();
        assert_eq!(named.len(), 1, "{hint}");
        decided.push(format!("--bad-row-at={}", named[0]));
    }
    let relay = lane.relay(&decided.iter().map(String::as_str).collect::<Vec<_>>());
    lane.wait_confirmed();
    let mut found = lane.ids("order");
    found.dedup();
    assert_eq!(found.last().map(String::as_str), Some("5"), "{}", relay.log());
    assert_eq!(ids(&lane.records_now("dead-letter")).last().map(String::as_str), Some("2"));
}

#[test]
#[ignore = "slow"]
fn a_dead_letter_topic_that_is_missing_or_refuses_stops_the_relay_before_the_row() {
    let (kafka, _) = own::strict_kafka();
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(TABLE, "outbox");
    kafka.create_topic(&lane.topic("order"), 1, &[]).unwrap();
    kafka.create_topic(&lane.topic("tiny"), 1, &[("max.message.bytes", "100")]).unwrap();
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p')");
    lane.sql(&format!(
        "INSERT INTO outbox VALUES (2, 'order', 'k', 't', {}), (3, 'order', 'k', 't', 'p')",
        noise(2_000_000)
    ));
    let tiny = lane.topic("tiny");
    let missing = lane.topic("dead-letter");
    for (topic, said) in [(&missing, "does not exist"), (&tiny, "MessageSizeTooLarge")] {
        let flags = ["--on-bad-row=dead-letter", "--dead-letter-topic", topic];
        let (code, log) = ended(&mut lane.relay(&flags));
        assert_eq!(code, 2, "{log}");
        let error = log.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{log}"));
        assert!(
            error.contains(&format!("dead-letter topic {topic} does not take it")) && error.contains(said),
            "{error}"
        );
        let (hint, confirmed) = (hint(&log), lane.confirmed());
        assert!(hint.contains(&format!("at {confirmed}")) && hint.contains("=skip"), "{hint}");
    }
    kafka.create_topic(&missing, 1, &[]).unwrap();
    let _fixed = lane.relay(&["--on-bad-row=dead-letter"]);
    let mut found = lane.ids("order");
    found.dedup();
    assert_eq!(found, ["1", "3"]);
    assert_eq!(lane.ids("dead-letter"), ["2"]);
}

#[test]
#[ignore = "slow"]
fn a_row_above_max_row_stops_the_relay_or_is_passed_over_and_counted() {
    let lane = Lane::with(TABLE, "outbox");
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p')");
    lane.sql(&format!(
        "INSERT INTO outbox VALUES (2, 'order', 'k', 't', 'p'), (3, 'order', 'k', 't', {}), (4, 'order', 'k', 't', 'p')",
        noise(3_000_000)
    ));
    lane.sql("INSERT INTO outbox VALUES (5, 'order', 'k', 't', 'p')");
    let (code, log) = ended(&mut lane.relay(&["--max-row=1MB", "--on-bad-row=dead-letter"]));
    assert_eq!(code, 2, "{log}");
    let hint = hint(&log);
    assert!(hint.contains("--max-row 4096KiB") && hint.contains(":1=skip") && !hint.contains("=dead-letter"), "{hint}");
    assert_eq!(ids(&lane.records_now("order")), ["1", "2"]);
    let relay = lane.relay(&["--max-row=1MB", "--on-bad-row=skip"]);
    assert_eq!(lane.ids("order"), ["1", "2", "2", "4", "5"], "{}", relay.log());
    assert!(relay.get("/metrics").unwrap().body.contains("reason=\"above_max_row\""));
}

#[test]
#[ignore = "slow"]
fn a_relay_that_holds_on_stop_stays_up_to_say_why() {
    let lane = Lane::with(TABLE, "outbox");
    lane.sql("INSERT INTO outbox VALUES (1, NULL, 'k', 't', 'p')");
    let mut relay = lane.relay(&["--on-stop=hold"]);
    wait_until(LONG, "the stop in /status", || Ok(relay.status().is_ok_and(|status| status["state"] == "stopped")))
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    let ready = relay.get("/readyz").unwrap();
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("aggregatetype") && ready.body.contains("--bad-row-at"), "{}", ready.body);
    assert_eq!(relay.get("/livez").unwrap().status, 200);
    let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
    wait_until(LONG, "the slot to be free", || Ok(!lane.connect().query_one(sql, &[&lane.name])?.get::<_, bool>(0)))
        .unwrap();
    let exit = relay.terminate(LONG).unwrap();
    assert_eq!(exit.code, 2, "{}", relay.log());
}

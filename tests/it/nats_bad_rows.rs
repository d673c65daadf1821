//! Rows that NATS cannot take, and their dead letters.

use serde_json::{Value, json};
use walrelay_dev::brokers::{Broker, Kind, shared};
use walrelay_dev::relay;

use crate::lane::{LONG, Lane, binary, ended, hint};
use crate::nats::{by_name, ids, messages, sorted, start, with_stream};

#[test]
#[ignore = "slow"]
fn a_bad_row_stops_is_skipped_or_goes_to_the_dead_letter_subject() {
    let broker = shared(Kind::Nats).unwrap();
    let rows = "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', 'no subject', 'k', 't', '{}'), ('3', 'order', 'k', 't', '{}')";
    let stopped = with_stream(broker, &json!({}));
    stopped.sql(rows);
    let (code, log) = ended(&mut start(&stopped, broker, &[]));
    assert!(code == 2 && hint(&log).contains("id 2 ") && log.contains("a subject ("), "{log}");
    assert_eq!(ids(broker, &stopped), ["1"]);

    let skipped = with_stream(broker, &json!({}));
    skipped.sql(rows);
    let _relay = start(&skipped, broker, &["--on-bad-row", "skip"]);
    skipped.wait_confirmed();
    assert_eq!(ids(broker, &skipped), ["1", "3"]);

    let dead_lettered = with_stream(broker, &json!({}));
    dead_lettered.sql(rows);
    let _relay = start(&dead_lettered, broker, &["--on-bad-row", "dead-letter"]);
    dead_lettered.wait_confirmed();
    assert_eq!(ids(broker, &dead_lettered), ["1", "3"]);
    let dead_letters = messages(broker, &dead_lettered, "dead-letter");
    assert_eq!(
        (dead_letters.len(), dead_letters[0].header("id"), dead_letters[0].header("key")),
        (1, Some("2"), Some("k"))
    );
    let own = dead_letters[0].header("Nats-Msg-Id");
    assert!(own.is_some_and(|own| own.contains(&format!("/{}/1/", dead_lettered.name))), "{own:?}");
    assert_eq!(own, dead_letters[0].header("walrelay-id"));
    // Corrected, it is no repeat.
    dead_lettered.sql("DELETE FROM outbox WHERE id = '2'; INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '{}')");
    dead_lettered.wait_confirmed();
    assert_eq!(ids(broker, &dead_lettered), ["1", "3", "2"]);
    assert_eq!(dead_letters[0].header("walrelay-table"), Some("public.outbox"));
}

/// The server drops repeats by the id of a message.
#[test]
fn dead_letters_of_rows_with_one_id_are_told_apart() {
    let broker = shared(Kind::Nats).unwrap();
    let lane = with_stream(broker, &json!({}));
    let _relay = start(&lane, broker, &["--on-bad-row", "dead-letter"]);
    let bad = |payload: &str| format!("INSERT INTO outbox VALUES ('7', NULL, 'k', 't', '{payload}')");
    lane.sql(&bad("{\"first\": 1}"));
    lane.sql("DELETE FROM outbox");
    lane.sql(&bad("{\"second\": 2}"));
    lane.wait_confirmed();
    let dead_letters = messages(broker, &lane, "dead-letter");
    let ids = dead_letters.iter().map(|dead_letter| dead_letter.header("id")).collect::<Vec<_>>();
    assert_eq!(ids, [Some("7"), Some("7")]);
}

#[test]
fn dead_letter_messages_are_published_again_and_then_deleted() {
    let broker = shared(Kind::Nats).unwrap();
    let lane = with_stream(broker, &json!({}));
    lane.sql("INSERT INTO outbox SELECT n::text, NULL, 'k' || n, 't', '{}' FROM generate_series(1, 250) AS n");
    let mut relay = start(&lane, broker, &["--on-bad-row", "dead-letter", "--header", "key==h"]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let (url, order) = (broker.url(), lane.topic("order"));
    let command = |more: &[&str]| {
        let fixed = ["dead-letters", "--slot", &lane.name, "--to", &url, "--json"];
        let output = relay::run(&binary(), &[&fixed[..], more].concat()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let left = || messages(broker, &lane, "dead-letter").len();
    let (code, listed, err) = command(&[]);
    assert_eq!((code, listed.lines().count()), (0, 250), "{err}");
    let first: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!((&first["at"], &first["id"]), (&json!("1"), &json!("1")), "{first}");
    let (code, _, err) = command(&["--replay", "--id", "7"]);
    assert_eq!((code, left()), (2, 250), "where to is not known: {err}");
    let (code, said, err) = command(&["--replay", "--id", "7", "--default-topic", &order]);
    assert_eq!((code, said.trim()), (0, r#"{"replayed":1,"failed":0}"#), "{err}");
    let replayed = messages(broker, &lane, "order");
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let counted = pair("Nats-Msg-Id", &format!("{order}:7"));
    let headers = vec![counted, pair("id", "7"), pair("key", "k7"), pair("eventType", "t"), pair("header-key", "h")];
    assert_eq!((replayed.len(), by_name(&replayed[0]), left()), (1, sorted(headers), 249));
    let (code, said, err) = command(&["--replay", "--default-topic", &order]);
    assert_eq!((code, said.trim()), (0, r#"{"replayed":249,"failed":0}"#), "{err}");
    let mut found: Vec<u32> = ids(broker, &lane).iter().map(|id| id.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!((found, left()), ((1..=250).collect(), 0));
    let (code, _, err) = command(&["--dead-letter-topic", "nobody"]);
    assert!(code == 2 && err.contains("nobody does not exist"), "{err}");
}

/// A key of bytes that are no text, as a `bytea` column may hold them.
#[test]
fn a_key_that_no_header_can_hold_is_a_bad_row_and_its_dead_letter_says_so() {
    let broker = shared(Kind::Nats).unwrap();
    let lane = with_stream(broker, &json!({}));
    lane.sql(
        "ALTER TABLE outbox ALTER aggregateid TYPE bytea USING aggregateid::bytea; \
         INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', 'order', '\\xff00', 't', '{}'), \
         ('3', 'order', 'k', 't', '{}')",
    );
    let _relay = start(&lane, broker, &["--on-bad-row", "dead-letter"]);
    lane.wait_confirmed();
    assert_eq!(ids(broker, &lane), ["1", "3"]);
    let dead_letter = messages(broker, &lane, "dead-letter").remove(0);
    let error = dead_letter.header("walrelay-error").unwrap();
    assert!(dead_letter.header("id") == Some("2") && error.contains("the key is not UTF-8"), "{error}");
}

/// Each record that is published again takes the place of the oldest dead-letter message, or nobody may delete one.
#[test]
fn dead_letter_messages_that_are_gone_already_count_as_deleted_and_others_do_not() {
    let broker = shared(Kind::Nats).unwrap();
    for (limits, kept) in [(json!({ "max_msgs": 3 }), 0), (json!({ "deny_delete": true }), 3)] {
        let lane = with_stream(broker, &limits);
        lane.sql("INSERT INTO outbox SELECT n::text, NULL, 'k', 't', '{}' FROM generate_series(1, 3) AS n");
        let mut relay = start(&lane, broker, &["--on-bad-row", "dead-letter"]);
        lane.wait_confirmed();
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
        let (url, order) = (broker.url(), lane.topic("order"));
        let command = ["dead-letters", "--slot", &lane.name, "--to", &url, "--replay", "--default-topic", &order];
        let output = relay::run(&binary(), &command).unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(messages(broker, &lane, "dead-letter").len(), kept, "{err}");
        if kept == 0 {
            assert_eq!(
                (output.status.code(), ids(broker, &lane)),
                (Some(0), ["1", "2", "3"].map(str::to_owned).to_vec()),
                "{err}"
            );
        } else {
            assert_eq!(output.status.code(), Some(2), "{err}");
            assert!(err.contains("deny_delete") && err.contains("hint: "), "{err}");
        }
    }
}

/// One row that the stream, or the server, refuses for its size, between two of its key.
fn with_large_row(broker: &Broker, limits: &Value, bytes: u32) -> Lane {
    let lane = with_stream(broker, limits);
    lane.sql(&format!(
        "INSERT INTO outbox SELECT n::text, 'order', 'k', 't', to_jsonb(repeat('x', CASE n WHEN 2 THEN {bytes} ELSE 9 END)) \
         FROM generate_series(1, 3) AS n"
    ));
    lane
}

#[test]
fn a_row_that_is_too_large_stops_is_skipped_or_goes_to_the_dead_letter_subject() {
    let broker = shared(Kind::Nats).unwrap();
    for (limits, bytes, said) in
        [(json!({ "max_msg_size": 4000 }), 5000, "(10054)"), (json!({}), 1_200_000, "(max_payload)")]
    {
        let stopped = with_large_row(broker, &limits, bytes);
        let (code, log) = ended(&mut start(&stopped, broker, &[]));
        assert!(code == 2 && hint(&log).contains("id 2 ") && log.contains(said), "{log}");
        assert_eq!(ids(broker, &stopped), ["1"], "nothing of the key passes it");

        let skipped = with_large_row(broker, &limits, bytes);
        let _relay = start(&skipped, broker, &["--on-bad-row", "skip"]);
        skipped.wait_confirmed();
        assert_eq!(ids(broker, &skipped), ["1", "3"]);

        let dead_lettered = with_large_row(broker, &limits, bytes);
        let _relay = start(&dead_lettered, broker, &["--on-bad-row", "dead-letter"]);
        dead_lettered.wait_confirmed();
        assert_eq!(ids(broker, &dead_lettered), ["1", "3"]);
        let dead_letters = messages(broker, &dead_lettered, "dead-letter");
        assert_eq!((dead_letters.len(), dead_letters[0].header("id")), (1, Some("2")));
        assert!(dead_letters[0].header("walrelay-payload-bytes").is_some(), "{dead_letters:?}");
    }
}

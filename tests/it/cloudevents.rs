//! `--cloudevents`: records that CloudEvents' own SDK for another language reads.

use serde_json::{Value, json};
use walrelay_dev::consume::Record;
use walrelay_dev::relay;
use walrelay_dev::sdk;

use crate::lane::{LONG, Lane, binary, ids};

/// A lane whose payload column has this type, with these rows: id, key, payload.
fn lane(payload: &str, rows: &str) -> Lane {
    let table = format!(
        "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, payload {payload}, at timestamptz, headers jsonb)"
    );
    let lane = Lane::with(&table, "outbox");
    lane.sql(&format!(
        "INSERT INTO outbox SELECT id, 'order', key, 'Order\u{a0}Placed', payload::{payload}, '2026-05-04 03:02:01.5+00', '{{\"traceparent\": \"00-1-2-01\"}}'
         FROM (VALUES {rows}) AS v (id, key, payload)"
    ));
    lane
}

/// The records, sorted by their ids: other keys may be in other partitions.
fn published(lane: &Lane, mode: &str, more: &[&str]) -> Vec<Record> {
    let flags = ["--cloudevents", mode, "--cloudevents-source", "/shop/orders", "--timestamp", "at"];
    let mut relay = lane.relay(&[&flags[..], more].concat());
    let mut records = lane.records("order");
    records.sort_by(|one, other| one.header("id").cmp(&other.header("id")));
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    records
}

fn attributes(id: &str, subject: Option<&str>, content_type: &str) -> Value {
    let mut all = json!({
        "specversion": "1.0", "id": id, "source": "/shop/orders", "type": "Order\u{a0}Placed",
        "time": "2026-05-04T03:02:01.500Z", "datacontenttype": content_type,
    });
    if let Some(subject) = subject {
        all["subject"] = subject.into();
    }
    all
}

#[test]
fn in_binary_mode_the_sdk_reads_the_attributes_and_the_payload_is_the_value() {
    let lane = lane("jsonb", r#"('a', 'k 1', '{"total": 1.50}'), ('b', NULL, '"é"')"#);
    let records = published(&lane, "binary", &["--header", "team==shop", "--position-header"]);
    assert_eq!(ids(&records), ["a", "b"]);
    let names: Vec<&str> = records[0].headers.iter().map(|(name, _)| name.as_str()).collect();
    let events = ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_subject", "content-type"];
    let rest = ["traceparent", "team", "walrelay-position"];
    assert_eq!(names, [&["id", "eventType"][..], &events, &rest].concat());
    assert_eq!((records[0].value_text().as_str(), records[0].key_text().as_str()), (r#"{"total": 1.50}"#, "k 1"));
    let found = sdk::cloudevents(&records).unwrap();
    assert_eq!(found[0]["attributes"], attributes("a", Some("k 1"), "application/json"));
    assert_eq!(found[1]["attributes"], attributes("b", None, "application/json"));
    assert_eq!(found[0]["data_hex"], "7b22746f74616c223a20312e35307d");
}

#[test]
#[ignore = "slow"]
fn in_structured_mode_the_sdk_reads_json_untouched_text_as_a_string_and_bytes_from_base64() {
    let structured = "application/cloudevents+json; charset=UTF-8";
    for (kind, content_type, payload, member, data) in [
        (
            "json",
            "application/json",
            r#"{"total" :  1.50}"#,
            r#""data":{"total" :  1.50}"#,
            json!({"data": {"total": 1.5}}),
        ),
        ("text", "text/plain; charset=UTF-8", r#"say "hi""#, r#""data":"say \"hi\"""#, json!({"data": "say \"hi\""})),
        ("bytea", "application/octet-stream", r"\x00ff10", r#""data_base64":"AP8Q""#, json!({"data_hex": "00ff10"})),
    ] {
        let lane = lane(kind, &format!("('a', 'k', '{payload}'), ('b', 'k', NULL)"));
        let records = published(&lane, "structured", &[]);
        assert_eq!(records[0].header("content-type"), Some(structured));
        assert!(records[0].value_text().contains(member), "{}", records[0].value_text());
        let found = sdk::cloudevents(&records).unwrap();
        // The SDK takes each header as an attribute as well, and the header's type in the place of the data's.
        let mut expected = attributes("a", Some("k"), structured);
        expected["eventtype"] = expected["type"].clone();
        expected["traceparent"] = "00-1-2-01".into();
        assert_eq!(found[0]["attributes"], expected, "{kind}");
        let content_type = format!("\"datacontenttype\":\"{content_type}\",");
        assert!(records[0].value_text().contains(&content_type), "{}", records[0].value_text());
        let (name, held) = data.as_object().unwrap().iter().next().unwrap();
        assert_eq!(&found[0][name], held, "{kind}");
        let whole: Value = serde_json::from_slice(records[1].value.as_deref().unwrap()).unwrap();
        assert_eq!((whole.get("data"), whole.get("data_base64"), &whole["id"]), (None, None, &"b".into()));
    }
}

#[test]
fn an_event_without_a_type_or_a_source_is_refused_before_it_is_published() {
    let untyped = Lane::with("CREATE TABLE outbox (id int, aggregatetype text, payload text)", "outbox");
    let mut relay = untyped.relay(&["--cloudevents=binary", "--cloudevents-source=/s"]);
    let code = relay.wait_exit(LONG).unwrap();
    assert!(code == 2 && relay.log().contains("has no column for the type"), "{}", relay.log());

    let lane = lane("text", "('a', 'k', 'p'), ('b', 'k', 'p')");
    lane.sql("INSERT INTO outbox VALUES ('c', 'order', 'k', '', 'p'), ('d', 'order', 'k', NULL, 'p')");
    assert_eq!(ids(&published(&lane, "binary", &["--on-bad-row=dead-letter"])), ["a", "b"]);
    let dead_letters = lane.records_now("dead-letter");
    assert_eq!(ids(&dead_letters), ["c", "d"]);
    assert!(dead_letters[0].header("walrelay-error").unwrap().contains("no type, which a CloudEvent needs"));

    for (flags, said) in [
        (&["--cloudevents", "binary"][..], "needs --cloudevents-source"),
        (&["--cloudevents-source", "/s"], "needs --cloudevents"),
        (&["--cloudevents", "binary", "--cloudevents-source", "a b"], "a URI or a path without spaces"),
        (&["--cloudevents", "avro", "--cloudevents-source", "/s"], "expected binary, structured"),
        (&["--cloudevents", "binary", "--cloudevents-source", "/s", "--envelope", "a=b"], "exclude each other"),
        (&["--cloudevents", "binary", "--cloudevents-source", "/s", "--to", "stdout://"], "no binding"),
    ] {
        let output = relay::run(&binary(), &[&["run"], flags].concat()).unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(64) && text.contains(said), "{flags:?}: {text}");
    }
}

//! Tests logical messages as rows.

use super::*;

fn with_prefix() -> Mapping {
    Mapping { message_prefixes: vec!["outbox".into()], ..defaults() }
}

fn message(content: &str) -> LogicalMessage<'_> {
    LogicalMessage { transactional: true, lsn: Lsn::new(1), prefix: "outbox", content: content.as_bytes() }
}

fn through(mapping: Mapping, message: &LogicalMessage<'_>) -> Result<RowOutcome<OwnedRecord>, RowError> {
    Outbox::new(mapping, Vec::new()).unwrap().message(message, &context(), OwnedRecord::of)
}

#[track_caller]
fn kept(mapping: Mapping, content: &str) -> OwnedRecord {
    let RowOutcome::Record(kept) = through(mapping, &message(content)).unwrap() else { panic!("a record is wanted") };
    kept
}

#[track_caller]
fn bad(mapping: Mapping, content: &str) -> BadRow {
    match through(mapping, &message(content)) {
        Err(RowError::Bad(bad)) => *bad,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_is_a_row_without_a_table() {
    let content = r#"{"id": 7, "aggregate_type": "order", "aggregateid": "o\n1", "type": "Placed",
        "payload": {"total" : 1.50}, "headers": {"a": "b"}}"#;
    let kept = kept(Mapping { position_header: true, ..with_prefix() }, content);
    assert_eq!(kept.topic, "outbox.event.order");
    assert_eq!(kept.key.as_deref(), Some(b"o\n1".as_slice()));
    assert_eq!(kept.value_text(), Some(r#"{"total" : 1.50}"#));
    assert_eq!(kept.headers_text(), "id=7 eventType=Placed a=b walrelay-position=16/B374D848:3");
    assert_eq!(kept.timestamp_millis, super::SENT_MILLIS);
}

#[test]
fn a_string_payload_is_its_content_and_null_a_tombstone() {
    let value = |payload: &str| {
        let content = format!(r#"{{"id":"1","type":"t","payload":{payload}}}"#);
        kept(with_prefix(), &content).value_text().map(str::to_owned)
    };
    assert_eq!(value(r#""<a/>\n""#).as_deref(), Some("<a/>\n"));
    assert_eq!(value("null"), None);
    assert_eq!(value("1.50").as_deref(), Some("1.50"));
    assert_eq!(value("[1, 2]").as_deref(), Some("[1, 2]"));
}

#[test]
fn the_last_of_a_repeated_key_counts() {
    assert_eq!(kept(with_prefix(), r#"{"id":1,"type":"a","payload":1,"type":"b"}"#).topic, "outbox.event.b");
}

#[test]
fn settings_apply_and_optional_keys_may_be_left_out() {
    let mapping = || Mapping {
        partition_column: Some("p".into()),
        timestamp: Timestamp::Column("at".into()),
        key_column: Some("k".into()),
        headers: pairs(&[("h", "x")]),
        envelope: pairs(&[("ok", "ok"), ("t", "type")]),
        ..with_prefix()
    };
    let full = kept(mapping(), r#"{"id":1,"type":"a","payload":{},"p":3,"at":5,"k":true,"x":"y","ok":true}"#);
    assert_eq!((full.partition, full.timestamp_millis, full.key.as_deref()), (Some(3), 5, Some(b"true".as_slice())));
    assert_eq!(full.headers_text(), "id=1 eventType=a h=y");
    assert_eq!(full.value_text(), Some(r#"{"payload":{},"ok":true,"t":"a"}"#));
    let bare = kept(mapping(), r#"{"id":1,"type":"a","payload":{}}"#);
    assert_eq!((bare.partition, bare.timestamp_millis, bare.key.as_deref()), (None, super::COMMIT_MILLIS, None));
    assert_eq!(bare.headers_text(), "id=1 eventType=a h");
}

#[test]
fn a_message_that_gives_no_record_is_a_bad_row() {
    let label = |content: &str| bad(with_prefix(), content).reason.label();
    for content in ["", "[]", "1", "null", "{\"id\":1", "{} x"] {
        assert_eq!(label(content), "not_json", "{content}");
    }
    assert_eq!(label(r#"{"type":"a","payload":1}"#), "missing_id");
    assert_eq!(label(r#"{"id":null,"type":"a","payload":1}"#), "missing_id");
    assert_eq!(label(r#"{"id":1,"type":"a"}"#), "missing_payload");
    assert_eq!(label(r#"{"id":1,"payload":1}"#), "null_route");
    assert_eq!(label(r#"{"id":1,"type":null,"payload":1}"#), "null_route");
    let latin1 = LogicalMessage { content: b"{\"id\":\"\xE9\"}", ..message("") };
    assert!(matches!(through(with_prefix(), &latin1), Err(RowError::Bad(bad)) if bad.reason.label() == "not_utf8"));
    let flagged = Mapping { id_column: Some("uid".into()), ..with_prefix() };
    assert_eq!(bad(flagged, r#"{"id":1,"type":"a","payload":1}"#).reason.label(), "missing_id");
    let topic = Mapping { topic: TopicSetting::Template("{region}".into()), ..with_prefix() };
    assert_eq!(bad(topic, r#"{"id":1,"type":"a","payload":1}"#).reason.label(), "null_route");
    let named = bad(with_prefix(), r#"{"id":"e1","type":"a"}"#);
    assert_eq!((named.table.as_str(), named.id.as_deref()), ("message \"outbox\"", Some("e1")));
}

#[test]
fn other_prefixes_and_messages_outside_a_transaction_publish_nothing() {
    let other = LogicalMessage { prefix: "other", ..message("{}") };
    assert_eq!(through(with_prefix(), &other), Ok(RowOutcome::NotPublished));
    assert_eq!(through(defaults(), &message("{}")), Ok(RowOutcome::NotPublished));
    let outside = LogicalMessage { transactional: false, ..message("{}") };
    let ignored = RowOutcome::Ignored(Ignored::NonTransactionalMessage);
    assert_eq!(through(with_prefix(), &outside), Ok(ignored));
}

proptest! {
    #[test]
    fn no_content_panics(content in r#"[{}\[\]":,a-dui0-9\\ ]{0,40}"#) {
        let outcome = through(with_prefix(), &message(&content));
        prop_assert!(matches!(outcome, Ok(RowOutcome::Record(_)) | Err(RowError::Bad(_))), "{outcome:?}");
    }
}

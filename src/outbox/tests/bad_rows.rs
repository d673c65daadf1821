//! Tests rows that give no record, and the reasons.

use super::*;

#[test]
fn a_null_in_the_topic_is_a_bad_row_that_names_table_id_and_column() {
    let bad = debezium().with("aggregatetype", None).bad(defaults());
    assert_eq!(bad.reason.label(), "null_route");
    assert_eq!(
        bad.to_string(),
        "row 0192 of shop.outbox cannot be published: column \"aggregatetype\" is null, and the topic is made of it"
    );
}

#[test]
fn a_topic_that_no_broker_takes_is_a_bad_row_and_the_next_row_is_published() {
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
    outbox.relation(&debezium().relation()).unwrap();
    let spaced = debezium().with("aggregatetype", Some("my order")).insert();
    let Err(RowError::Bad(bad)) = offer(&mut outbox, &spaced) else { panic!("a bad row") };
    let expected = BadReason::InvalidTopic {
        topic: "outbox.event.my order".into(),
        fault: TopicFault::Character(' ', TOPICS.made_of),
    };
    assert_eq!((bad.reason.label(), &bad.reason), ("invalid_topic", &expected));
    assert!(matches!(offer(&mut outbox, &debezium().insert()), Ok(RowOutcome::Record(_))));
    let raw = || Mapping { topic: TopicSetting::Template("{route}".into()), ..defaults() };
    let empty = debezium().with("aggregatetype", Some("")).bad(raw());
    assert!(matches!(empty.reason, BadReason::InvalidTopic { fault: TopicFault::Empty, .. }));
    let long = debezium().with("aggregatetype", Some(&"x".repeat(250))).bad(raw());
    assert!(matches!(long.reason, BadReason::InvalidTopic { fault: TopicFault::TooLong(250, 249), .. }));
    assert!(long.to_string().len() < 300, "values are shortened");
}

#[test]
fn headers_that_are_no_object_are_a_bad_row() {
    for json in ["[]", "1", "\"x\"", "null", "{\"a\":\"\\ud800\"}"] {
        let bad = debezium_and("headers", JSON, Some(json)).bad(defaults());
        let expected = BadReason::HeadersNotObject { column: "headers".into(), value: json.into() };
        assert_eq!((bad.reason.label(), &bad.reason), ("headers_not_object", &expected));
    }
}

#[test]
fn a_row_without_id_is_a_bad_row() {
    let bad = debezium().with("id", None).bad(defaults());
    assert_eq!((bad.id.as_ref(), bad.reason.label()), (None, "missing_id"));
    assert!(bad.to_string().starts_with("row without id of shop.outbox cannot be published"), "{bad}");
}

#[test]
fn text_that_is_not_utf8_is_a_bad_row_only_where_text_is_needed() {
    let latin1 = Some(b"caf\xE9".as_slice());
    let kept = debezium().of_type("payload", TEXT).with_bytes("payload", latin1).with_bytes("aggregateid", latin1);
    assert_eq!(kept.kept(defaults()).value.as_deref(), latin1);
    let label = |given: TestTable, mapping: Mapping| given.bad(mapping).reason.label();
    assert_eq!(label(debezium().with_bytes("aggregatetype", latin1), defaults()), "not_utf8");
    let headers = debezium_and("headers", JSON, None).with_bytes("headers", Some(b"{\"a\":\"\xE9\"}"));
    assert_eq!(label(headers, defaults()), "not_utf8");
    let envelope = Mapping { envelope: pairs(&[("t", "type")]), ..defaults() };
    assert_eq!(label(debezium().with_bytes("type", latin1), envelope), "not_utf8");
}

#[test]
fn values_shown_to_people_are_short_and_on_one_line() {
    let bad = debezium().with("id", Some(&"x".repeat(5000))).with("aggregatetype", None).bad(defaults());
    assert_eq!(bad.id, Some(format!("{}…", "x".repeat(80))));
    let bad = debezium_and("headers", JSON, Some("[\n1]")).bad(defaults());
    assert_eq!(bad.reason, BadReason::HeadersNotObject { column: "headers".into(), value: "[\\n1]".into() });
}

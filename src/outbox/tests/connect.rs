//! Tests rows in the form of Debezium's router and Kafka Connect's converters.

use super::*;
use crate::outbox::connect::{BinaryMode, Connect, Converter, Expand, Json, Modes, Schemas, TimePrecision};

const DATE: u32 = 1082;
const TIMESTAMP: u32 = 1114;
const FLOAT8: u32 = 701;
const TEXT_ARRAY: u32 = 1009;

const PLAIN_JSON: Converter = Converter::Json(Json { schemas: false, numeric_decimals: false });
const SCHEMA_JSON: Converter = Converter::Json(Json { schemas: true, numeric_decimals: false });

/// The mapping that `--from-debezium` makes of a configuration without special settings.
fn router(connect: Connect) -> Mapping {
    let named = |name: &str| Some(name.to_owned());
    Mapping {
        id_column: named("id"),
        key_column: named("aggregateid"),
        payload_column: named("payload"),
        route_column: named("aggregatetype"),
        type_column: named(""),
        headers_column: named(""),
        connect: Some(Box::new(connect)),
        ..defaults()
    }
}

fn of(key: Converter, value: Converter, header: Converter) -> Mapping {
    router(Connect { key, value, header, ..Connect::default() })
}

fn value(converter: Converter) -> Mapping {
    of(Converter::Text, converter, Converter::Simple)
}

/// Checks a header from a column of this type, by this converter.
#[track_caller]
fn header(converter: Converter, type_id: u32, text: Option<&str>, expected: Option<&str>) {
    let mapping = Mapping { headers: pairs(&[("x", "x")]), ..of(Converter::Text, Converter::Text, converter) };
    let kept = debezium_and("x", type_id, text).kept(mapping);
    let found = kept.headers.get(1).unwrap().1.as_deref().map(String::from_utf8_lossy);
    assert_eq!(found.as_deref(), expected, "type {type_id}: {text:?}");
}

fn text_of(mapping: Mapping, given: &TestTable) -> String {
    given.kept(mapping).value_text().unwrap_or("(null)").to_owned()
}

/// The reason why a table is refused.
#[track_caller]
fn refused(mapping: Mapping, given: &TestTable) -> String {
    match Outbox::new(mapping, Vec::new()).unwrap().relation(&given.relation()) {
        Err(error) => error.to_string(),
        Ok(()) => panic!("it is taken"),
    }
}

#[test]
fn strings_are_as_they_are_and_the_type_is_no_header_of_its_own() {
    let kept = debezium().kept(router(Connect::default()));
    assert_eq!(kept.topic, "outbox.event.order");
    assert_eq!(kept.key.as_deref(), Some(b"order-17".as_slice()));
    assert_eq!(kept.value_text(), Some("{\"total\": 1.50}"));
    assert_eq!(kept.headers_text(), "id=0192");
}

#[test]
fn headers_come_in_the_order_placed_and_may_repeat() {
    let headers = pairs(&[("eventType", "type"), ("a", "aggregateid"), ("a", "type")]);
    let kept = debezium().kept(Mapping { headers, ..router(Connect::default()) });
    assert_eq!(kept.headers_text(), "id=0192 eventType=OrderPlaced a=order-17 a=OrderPlaced");
}

#[test]
fn a_headers_column_is_none_of_debeziums() {
    let kept = debezium_and("headers", JSON, Some("{\"a\":\"b\"}")).kept(router(Connect::default()));
    assert_eq!(kept.headers_text(), "id=0192");
}

#[test]
fn simple_headers_by_type() {
    for (type_id, text, expected) in [
        (BOOL, "t", "true"),
        (INT4, "5", "5"),
        (FLOAT8, "1", "1.0"),
        (BYTEA, "\\x666f6fff", "Zm9v/w=="),
        (DATE, "2025-11-21", "20413"),
        (TIMESTAMP, "2025-11-21 09:08:07.654321", "1763716087654321"),
        (TIMESTAMPTZ, "2025-11-21 09:08:07.65+00", "2025-11-21T09:08:07.650000Z"),
        (TEXT_ARRAY, "{a,\"b c\",NULL}", "[\"a\",\"b c\",null]"),
        (UUID, "0192", "0192"),
        (JSON, "{\"a\" : 1}", "{\"a\" : 1}"),
        (TEXT, "", ""),
    ] {
        header(Converter::Simple, type_id, Some(text), Some(expected));
        header(Converter::Simple, type_id, None, None);
    }
}

#[test]
fn json_headers_by_type() {
    for (type_id, text, expected) in [
        (BOOL, "t", "true"),
        (INT4, "5", "5"),
        (FLOAT8, "1e7", "1.0E7"),
        (BYTEA, "\\x666f6fff", "\"Zm9v/w==\""),
        (TEXT, "a\"b", "\"a\\\"b\""),
        (UUID, "0192", "\"0192\""),
        (JSON, "{\"a\": 1}", "\"{\\\"a\\\": 1}\""),
    ] {
        header(PLAIN_JSON, type_id, Some(text), Some(expected));
        header(PLAIN_JSON, type_id, None, Some("null"));
    }
}

#[test]
fn java_headers_by_type() {
    header(Converter::Text, FLOAT8, Some("1"), Some("1.0"));
    header(Converter::Text, TEXT_ARRAY, Some("{a,NULL}"), Some("[a, null]"));
    header(Converter::Text, BOOL, Some("f"), Some("false"));
    header(Converter::Text, TEXT, None, None);
}

#[test]
fn headers_with_schemas_say_what_they_are() {
    let expected =
        r#"{"schema":{"type":"string","optional":true,"name":"io.debezium.data.Uuid","version":1},"payload":"0192"}"#;
    header(SCHEMA_JSON, UUID, Some("0192"), Some(expected));
    header(SCHEMA_JSON, INT8, None, Some(r#"{"schema":{"type":"int64","optional":true},"payload":null}"#));
}

#[test]
fn keys_follow_their_converter() {
    let key = |given: &TestTable, converter: Converter| {
        given.kept(of(converter, Converter::Text, Converter::Simple)).key.map(|key| String::from_utf8(key).unwrap())
    };
    let null = debezium().with("aggregateid", None);
    assert_eq!(key(&debezium(), Converter::Text).as_deref(), Some("order-17"));
    assert_eq!(key(&null, Converter::Text), None);
    assert_eq!(key(&debezium(), PLAIN_JSON).as_deref(), Some("\"order-17\""));
    assert_eq!(key(&null, PLAIN_JSON).as_deref(), Some("null"));
    let integer = debezium().of_type("aggregateid", INT8).with("aggregateid", Some("17"));
    assert_eq!(key(&integer, PLAIN_JSON).as_deref(), Some("17"));
    assert_eq!(key(&integer, Converter::Text).as_deref(), Some("17"));
    let schema = r#"{"schema":{"type":"string","optional":true},"payload":"order-17"}"#;
    assert_eq!(key(&debezium(), SCHEMA_JSON).as_deref(), Some(schema));
}

#[test]
fn a_payload_by_json_converter_is_a_string() {
    assert_eq!(text_of(value(PLAIN_JSON), &debezium()), "\"{\\\"total\\\": 1.50}\"");
    let expected = r#"{"schema":{"type":"string","optional":true,"name":"io.debezium.data.Json","version":1},"payload":"{\"total\": 1.50}"}"#;
    assert_eq!(text_of(value(SCHEMA_JSON), &debezium()), expected);
    assert_eq!(text_of(value(PLAIN_JSON), &debezium().with("payload", None)), "null");
    assert_eq!(text_of(value(Converter::Text), &debezium().with("payload", None)), "(null)");
}

#[test]
fn a_bytea_payload_is_its_bytes_or_base64() {
    let given = debezium().of_type("payload", BYTEA).with("payload", Some("\\x00ff"));
    let bytes = |mapping| given.kept(mapping).value.unwrap();
    assert_eq!(bytes(value(Converter::Bytes { other: None })), [0, 255]);
    assert_eq!(bytes(value(PLAIN_JSON)), b"\"AP8=\"");
    let hex = Modes { binary: BinaryMode::Hex, ..Modes::default() };
    let as_text = router(Connect { modes: hex, ..Connect::default() });
    assert_eq!(bytes(as_text), b"00ff");
    let error = refused(value(Converter::Text), &given);
    assert!(error.starts_with("column \"payload\" of table shop.outbox is bytes"), "{error}");
}

#[test]
fn a_converter_for_bytes_has_another_for_the_rest_or_none() {
    let other = |other| value(Converter::Bytes { other: Some(Box::new(other)) });
    assert_eq!(text_of(other(PLAIN_JSON), &debezium()), "\"{\\\"total\\\": 1.50}\"");
    assert_eq!(text_of(other(Converter::Text), &debezium()), "{\"total\": 1.50}");
    assert!(refused(value(Converter::Bytes { other: None }), &debezium()).contains("is no bytea"));
}

#[test]
fn empty_payloads_are_tombstones_where_that_is_asked_for() {
    let tombstone = |converter| Mapping { tombstone_on_empty_payload: true, ..value(converter) };
    for blank in ["", "  ", "\t\n "] {
        let given = debezium().of_type("payload", TEXT).with("payload", Some(blank));
        assert_eq!(given.kept(tombstone(Converter::Text)).value, None);
        assert_eq!(given.kept(tombstone(PLAIN_JSON)).value, None);
        assert!(given.kept(value(Converter::Text)).value.is_some());
    }
    assert_eq!(debezium().with("payload", None).kept(tombstone(PLAIN_JSON)).value, None);
    assert!(debezium().kept(tombstone(PLAIN_JSON)).value.is_some());
    let empty = debezium().of_type("payload", BYTEA).with("payload", Some("\\x"));
    let bytes = Converter::Bytes { other: None };
    assert_eq!(empty.kept(tombstone(bytes.clone())).value.as_deref(), Some(b"".as_slice()));
    assert_eq!(empty.with("payload", None).kept(tombstone(bytes)).value, None);
}

#[test]
fn a_payload_that_debezium_cannot_convert_is_a_tombstone_where_that_is_asked_for() {
    let nan = debezium_and("x", INT8, Some("7")).of_type("payload", NUMERIC).with("payload", Some("NaN"));
    for mapping in [value(PLAIN_JSON), envelope(PLAIN_JSON)] {
        assert!(nan.kept(mapping.clone()).value.is_some());
        assert_eq!(nan.kept(Mapping { tombstone_on_empty_payload: true, ..mapping }).value, None);
    }
    let fails = Connect { value: PLAIN_JSON, fail_on_conversion: true, ..Connect::default() };
    let bad = nan.bad(Mapping { tombstone_on_empty_payload: true, ..router(fails) });
    assert_eq!(bad.reason.label(), "unwritable");
}

fn envelope(converter: Converter) -> Mapping {
    Mapping { envelope: pairs(&[("eventType", "type"), ("n", "x")]), ..value(converter) }
}

#[test]
fn an_envelope_is_a_structure_in_the_converters_form() {
    let given = debezium_and("x", INT8, Some("7"));
    let expected = r#"{"payload":"{\"total\": 1.50}","eventType":"OrderPlaced","n":7}"#;
    assert_eq!(text_of(envelope(PLAIN_JSON), &given), expected);
    let java = r#"Struct{payload={"total": 1.50},eventType=OrderPlaced,n=7}"#;
    assert_eq!(text_of(envelope(Converter::Text), &given), java);
    let nulls = debezium_and("x", INT8, None);
    assert!(text_of(envelope(PLAIN_JSON), &nulls).ends_with(",\"n\":null}"));
    assert!(text_of(envelope(Converter::Text), &nulls).ends_with(",eventType=OrderPlaced}"));
    let delegate = envelope(Converter::Bytes { other: Some(Box::new(PLAIN_JSON)) });
    assert_eq!(text_of(delegate, &given), expected);
}

#[test]
fn an_envelopes_schema_holds_prefix_table_route_and_version() {
    let schemas = Schemas { prefix: "app".into(), version_column: Some("v".into()) };
    let connect = Connect { value: SCHEMA_JSON, schemas, ..Connect::default() };
    let mapping = Mapping { envelope: pairs(&[("t", "type")]), ..router(connect) };
    let expected = r#"{"schema":{"type":"struct","fields":[{"type":"string","optional":true,"name":"io.debezium.data.Json","version":1,"field":"payload"},{"type":"string","optional":true,"field":"t"}],"optional":false,"name":"app.shop.outbox.order.Value","version":3},"payload":{"payload":"{\"total\": 1.50}","t":"OrderPlaced"}}"#;
    assert_eq!(text_of(mapping.clone(), &debezium_and("v", INT4, Some("3"))), expected);
    let unversioned = text_of(mapping, &debezium_and("v", INT4, None));
    assert!(unversioned.contains(r#""name":"app.shop.outbox.order.Value"},"payload""#), "{unversioned}");
}

#[test]
fn an_empty_payload_in_an_envelope_is_a_tombstone_too() {
    let mapping = Mapping { tombstone_on_empty_payload: true, ..envelope(PLAIN_JSON) };
    let given = debezium_and("x", INT8, Some("7")).of_type("payload", TEXT).with("payload", Some(" "));
    assert_eq!(given.kept(mapping).value, None);
}

fn expanded(converter: Converter, keep_nulls: bool) -> Connect {
    Connect { value: converter, expand: Some(Expand { keep_nulls }), ..Connect::default() }
}

#[test]
fn a_payload_is_expanded_where_it_is_json() {
    let payload = |text| debezium().of_type("payload", TEXT).with("payload", Some(text));
    let plain = || router(expanded(PLAIN_JSON, false));
    assert_eq!(text_of(plain(), &payload(r#"{ "a" : 1, "n": null, "e": [] }"#)), r#"{"a":1}"#);
    assert_eq!(text_of(router(expanded(PLAIN_JSON, true)), &payload(r#"{"n": null}"#)), r#"{"n":null}"#);
    assert_eq!(text_of(plain(), &payload("no json")), "\"no json\"");
    assert_eq!(text_of(plain(), &payload("{broken")), "\"{broken\"");
    assert_eq!(text_of(plain(), &payload("")), "\"\"");
    assert_eq!(text_of(plain(), &debezium().with("payload", None)), "null");
    assert_eq!(text_of(plain(), &debezium()), r#"{"total":1.5}"#);
    let integer = debezium().of_type("payload", INT4).with("payload", Some("5"));
    assert_eq!(text_of(plain(), &integer), "5");
    let enveloped = Mapping { envelope: pairs(&[("t", "type")]), ..plain() };
    assert_eq!(text_of(enveloped, &payload(r#"{"a":[1, 2]}"#)), r#"{"payload":{"a":[1,2]},"t":"OrderPlaced"}"#);
    let broken = payload(r#"{"a":123456789012345678901234567890}"#).bad(plain());
    assert_eq!(broken.reason.label(), "unwritable");
}

#[test]
fn a_payload_is_expanded_as_the_text_that_its_mode_makes_of_it() {
    let by = |binary| {
        let modes = Modes { binary, ..Modes::default() };
        router(Connect { modes, ..expanded(PLAIN_JSON, false) })
    };
    let bytes = |text| debezium().of_type("payload", BYTEA).with("payload", Some(text));
    assert_eq!(text_of(by(BinaryMode::Hex), &bytes("\\x00ff")), "\"00ff\"");
    assert_eq!(text_of(by(BinaryMode::Base64), &bytes("\\x7b7d")), "\"e30=\"");
    let time = debezium().of_type("payload", TIMESTAMPTZ).with("payload", Some("2025-11-21 09:08:07.65+00"));
    assert_eq!(text_of(by(BinaryMode::Hex), &time), "\"2025-11-21T09:08:07.650000Z\"");
}

#[test]
fn a_value_that_debezium_cannot_convert_is_a_null() {
    header(Converter::Simple, NUMERIC, Some("NaN"), None);
    header(PLAIN_JSON, NUMERIC, Some("-Infinity"), Some("null"));
    header(PLAIN_JSON, 19, Some("a name"), Some("null"));
    let nan = debezium_and("x", NUMERIC, Some("NaN"));
    let with_header = |connect| Mapping { headers: pairs(&[("x", "x")]), ..router(connect) };
    let json = with_header(Connect { header: PLAIN_JSON, ..Connect::default() });
    let kept = catalogued(json.clone(), &[("x", true, None)], &debezium_and("x", NUMERIC, Some("1")));
    assert_eq!(kept.headers_text(), r#"id="0192" x={"scale":0,"value":"AQ=="}"#);
    let texts = with_header(Connect::default());
    assert_eq!(catalogued(texts, &[("x", true, None)], &nan).headers_text(), "id=0192 x");
    let bad = nan.bad(with_header(Connect { fail_on_conversion: true, ..Connect::default() }));
    assert_eq!(bad.reason, BadReason::Unwritable { column: "x".into(), value: "NaN".into() });
}

#[test]
fn a_null_that_cannot_be_where_schemas_are_is_a_bad_row() {
    let headers = pairs(&[("x", "x")]);
    let mapping = Mapping { headers, ..of(Converter::Text, Converter::Text, PLAIN_JSON) };
    let given = debezium_and("x", NUMERIC, Some("NaN"));
    let mut outbox = Outbox::new(mapping, Vec::new()).unwrap();
    let name = ("shop".to_owned(), "outbox".to_owned(), "x".to_owned());
    let detail = ColumnDetail { not_null: true, default: None };
    outbox.details(Details { columns: [(name, detail)].into(), ..Details::default() });
    outbox.relation(&given.relation()).unwrap();
    assert!(offer(&mut outbox, &given.insert()).is_err());
}

#[test]
fn a_value_that_has_no_form_is_a_bad_row() {
    let mapping = Mapping { headers: pairs(&[("x", "x")]), ..router(Connect::default()) };
    let bad = debezium_and("x", TEXT_ARRAY, Some("{{a},{b}}")).bad(mapping);
    assert_eq!(bad.reason.label(), "unwritable");
    let latin1 = debezium().of_type("payload", TEXT).with_bytes("payload", Some(b"\xE9"));
    assert_eq!(latin1.bad(value(PLAIN_JSON)).reason.label(), "not_utf8");
    assert_eq!(latin1.kept(value(Converter::Text)).value.as_deref(), Some(b"\xE9".as_slice()));
}

#[test]
fn a_column_without_a_form_is_refused_at_the_start() {
    let with_header = |connect: Connect| Mapping { headers: pairs(&[("x", "x")]), ..router(connect) };
    let of_box = debezium_and("x", 603, Some("(1,1),(0,0)"));
    let error = refused(with_header(Connect::default()), &of_box);
    assert!(error.starts_with("column \"x\" of table shop.outbox is of a type that Debezium leaves out"), "{error}");
    let passes_over = Connect { skip_missing: true, ..Connect::default() };
    let envelope = pairs(&[("x", "x"), ("t", "type")]);
    let kept = of_box.kept(Mapping { envelope, ..with_header(Connect { value: PLAIN_JSON, ..passes_over }) });
    assert_eq!(kept.headers_text(), "id=0192");
    assert_eq!(kept.value_text(), Some(r#"{"payload":"{\"total\": 1.50}","t":"OrderPlaced"}"#));
    for type_id in [600, 1231, 1562, 1001] {
        let texts = Connect { header: Converter::Text, ..Connect::default() };
        let error = refused(with_header(texts), &debezium_and("x", type_id, None));
        assert!(error.contains("Java's memory"), "{error}");
    }
    let connect_times = Modes { time: TimePrecision::Connect, ..Modes::default() };
    let dates = with_header(Connect { modes: connect_times, ..Connect::default() });
    assert!(refused(dates.clone(), &debezium_and("x", DATE, None)).contains("zone of Java's machine"));
    let json_dates = Connect { modes: connect_times, header: PLAIN_JSON, ..Connect::default() };
    let kept = debezium_and("x", TIMESTAMP, Some("1970-01-01 00:00:01")).kept(with_header(json_dates));
    assert_eq!(kept.headers_text(), "id=\"0192\" x=1000");
}

#[test]
fn an_unused_column_may_be_of_any_type() {
    debezium_and("x", 790, Some("$1.00")).kept(router(Connect::default()));
}

#[test]
fn columns_that_may_be_missing_are_left_out() {
    let mapping = |skip_missing| Mapping {
        headers: pairs(&[("a", "none"), ("b", "type")]),
        partition_column: Some("none".into()),
        ..router(Connect { skip_missing, ..Connect::default() })
    };
    assert_eq!(debezium().kept(mapping(true)).headers_text(), "id=0192 b=OrderPlaced");
    assert!(refused(mapping(false), &debezium()).contains("has no column \"none\""));
}

#[test]
fn a_null_header_is_left_out_where_debezium_server_leaves_it_out() {
    let headers = |skip_null_headers, header| {
        let mapping = router(Connect { header, skip_null_headers, ..Connect::default() });
        let mapping = Mapping { headers: pairs(&[("a", "x"), ("b", "type")]), ..mapping };
        debezium_and("x", TEXT, None).kept(mapping).headers_text()
    };
    assert_eq!(headers(false, Converter::Simple), "id=0192 a b=OrderPlaced");
    assert_eq!(headers(true, Converter::Simple), "id=0192 b=OrderPlaced");
    assert_eq!(headers(true, PLAIN_JSON), "id=\"0192\" a=null b=\"OrderPlaced\"");
}

#[test]
fn partition_and_timestamp_are_as_ever() {
    let mapping = Mapping {
        partition_column: Some("p".into()),
        timestamp: Timestamp::Column("at".into()),
        ..router(Connect::default())
    };
    let given = debezium_and("p", INT4, Some("3")).and("at", TIMESTAMP, Some("1970-01-01 00:00:01"));
    let kept = given.kept(mapping);
    assert_eq!((kept.partition, kept.timestamp_millis), (Some(3), 1000));
}

#[test]
fn the_catalogue_is_asked_again_of_a_table_that_may_have_changed_since() {
    let mapping = Mapping { headers: pairs(&[("x", "x")]), ..router(Connect::default()) };
    let given = debezium_and("x", 20_000, Some("sad"));
    let mut outbox = Outbox::new(mapping, Vec::new()).unwrap();
    assert!(outbox.wants_details());
    outbox.set_read_position(Lsn::new(100));
    outbox.details(Details::default());
    let asks = |outbox: &Outbox, at| outbox.wants_details_again(&given.relation(), Lsn::new(at));
    assert!(!asks(&outbox, 99) && asks(&outbox, 100));
    assert!(!outbox.knows_types(&given.relation()));
    assert!(matches!(outbox.relation(&given.relation()), Err(PlanError::NotAsDebezium { .. })));
    let mood = |labels: &[&str]| {
        let labels = Some(labels.iter().map(|&label| label.to_owned()).collect());
        TypeDetail { type_id: 20_000, name: "mood".into(), base: 0, base_modifier: -1, element: 0, labels }
    };
    for labels in [["sad"].as_slice(), &["sad", "glad"]] {
        outbox.details_again(Details { types: [(20_000, mood(labels))].into(), ..Details::default() }, Lsn::new(200));
    }
    assert!(!asks(&outbox, 199) && asks(&outbox, 200));
    assert!(outbox.knows_types(&given.relation()));
    // Later labels of an enum are known from the next connection on.
    assert_eq!(outbox.details.types[&20_000], mood(&["sad"]));
    outbox.relation(&given.relation()).unwrap();
    let Ok(RowOutcome::Record(kept)) = offer(&mut outbox, &given.insert()) else { panic!("a record") };
    assert_eq!(kept.headers_text(), "id=0192 x=sad");
}

#[test]
fn an_envelopes_column_that_goes_stays_as_a_null() {
    let connect = Connect { skip_missing: true, value: PLAIN_JSON, ..Connect::default() };
    let mapping = Mapping { envelope: pairs(&[("version", "ver"), ("t", "type")]), ..router(connect) };
    let mut outbox = Outbox::new(mapping, Vec::new()).unwrap();
    let mut value = |given: &TestTable| {
        outbox.relation(&given.relation()).unwrap();
        let Ok(RowOutcome::Record(kept)) = offer(&mut outbox, &given.insert()) else { panic!("a record") };
        kept.value_text().unwrap().to_owned()
    };
    let payload = r#""payload":"{\"total\": 1.50}""#;
    assert_eq!(value(&debezium_and("ver", INT4, Some("1"))), format!(r#"{{{payload},"version":1,"t":"OrderPlaced"}}"#));
    assert_eq!(value(&debezium()), format!(r#"{{{payload},"version":null,"t":"OrderPlaced"}}"#));
    let other = debezium().of_type("payload", TEXT);
    assert!(value(&other).ends_with(r#","t":"OrderPlaced"}"#));
}

/// An outbox with the catalog's details of some columns: whether they are NOT NULL, and their defaults.
fn catalogued(mapping: Mapping, columns: &[(&str, bool, Option<&str>)], given: &TestTable) -> OwnedRecord {
    let detail = |(column, not_null, default): &(&str, bool, Option<&str>)| {
        let name = ("shop".to_owned(), "outbox".to_owned(), (*column).to_owned());
        (name, ColumnDetail { not_null: *not_null, default: default.map(str::to_owned) })
    };
    let mut outbox = Outbox::new(mapping, Vec::new()).unwrap();
    outbox.details(Details { columns: columns.iter().map(detail).collect(), ..Details::default() });
    outbox.relation(&given.relation()).unwrap();
    let Ok(RowOutcome::Record(kept)) = offer(&mut outbox, &given.insert()) else { panic!("a record") };
    kept
}

#[test]
fn schemas_know_what_the_catalogue_says_of_columns() {
    let columns = [("id", true, Some("gen_random_uuid()")), ("aggregateid", true, Some("'x'::text"))];
    let kept = catalogued(of(SCHEMA_JSON, Converter::Text, SCHEMA_JSON), &columns, &debezium());
    let key = r#"{"schema":{"type":"string","optional":false,"default":"x"},"payload":"order-17"}"#;
    assert_eq!(kept.key.as_deref(), Some(key.as_bytes()));
    let id = r#"id={"schema":{"type":"string","optional":false,"name":"io.debezium.data.Uuid","version":1,"default":"00000000-0000-0000-0000-000000000000"},"payload":"0192"}"#;
    assert_eq!(kept.headers_text(), id);
}

#[test]
fn a_default_replaces_a_null() {
    let columns = [
        ("aggregateid", false, Some("'none'::text")),
        ("payload", false, Some("'{\"a\": 1}'::jsonb")),
        ("n", false, Some("(1 + 2)")),
        ("m", false, Some("5")),
    ];
    let nulls = debezium().with("aggregateid", None).with("payload", None).and("n", INT4, None).and("m", INT4, None);
    let headers = pairs(&[("n", "n"), ("m", "m")]);
    let with = |mapping: Mapping| Mapping { headers: headers.clone(), tombstone_on_empty_payload: true, ..mapping };
    let kept = catalogued(with(router(Connect::default())), &columns, &nulls);
    assert_eq!(kept.key.as_deref(), Some(b"none".as_slice()));
    assert_eq!((kept.value_text(), kept.headers_text().as_str()), (Some("{\"a\": 1}"), "id=0192 n m=5"));
    let json = catalogued(with(of(PLAIN_JSON, PLAIN_JSON, PLAIN_JSON)), &columns, &nulls);
    assert_eq!(json.key.as_deref(), Some(b"\"none\"".as_slice()));
    assert_eq!(json.headers_text(), "id=\"0192\" n=null m=5");
    let expanded = catalogued(router(expanded(PLAIN_JSON, false)), &columns, &nulls);
    assert_eq!(expanded.value_text(), Some("{\"a\":1}"));
}

#[test]
fn binary_forms_are_written_the_same() {
    let mapping =
        Mapping { headers: pairs(&[("n", "n"), ("b", "b")]), ..of(PLAIN_JSON, PLAIN_JSON, Converter::Simple) };
    let mut given = given(&[
        ("id", UUID, None),
        ("aggregatetype", TEXT, Some("order")),
        ("aggregateid", INT8, None),
        ("payload", BYTEA, Some("foo")),
        ("n", INT4, None),
        ("b", BOOL, None),
    ]);
    given.binary = true;
    let given = given
        .with_bytes("id", Some(&[0; 16]))
        .with_bytes("aggregateid", Some(&7_i64.to_be_bytes()))
        .with_bytes("n", Some(&5_i32.to_be_bytes()))
        .with_bytes("b", Some(&[1]));
    let kept = given.kept(mapping);
    assert_eq!((kept.key.as_deref(), kept.value_text()), (Some(b"7".as_slice()), Some("\"Zm9v\"")));
    assert_eq!(kept.headers_text(), "id=00000000-0000-0000-0000-000000000000 n=5 b=true");
}

#[test]
fn a_logical_message_is_a_row_of_texts() {
    let mapping = Mapping { message_prefixes: vec!["outbox".into()], ..value(PLAIN_JSON) };
    let content = br#"{"id": "1", "aggregatetype": "a", "aggregateid": "k", "payload": {"x": 1}}"#;
    let message = LogicalMessage { transactional: true, lsn: Lsn::new(1), prefix: "outbox", content };
    let mut outbox = Outbox::new(mapping, Vec::new()).unwrap();
    let Ok(RowOutcome::Record(kept)) = outbox.message(&message, &context(), OwnedRecord::of) else {
        panic!("a record")
    };
    assert_eq!((kept.topic.as_str(), kept.value_text()), ("outbox.event.a", Some("\"{\\\"x\\\": 1}\"")));
}

proptest! {
    #[test]
    fn no_row_panics_as_debezium_would_write_it(
        type_id in proptest::sample::select(vec![BOOL, BYTEA, INT8, TEXT, JSON, UUID, NUMERIC, DATE, TIMESTAMP, TIMESTAMPTZ, 1083, 1266, 1186, FLOAT8, TEXT_ARRAY, 1231]),
        value in any_value(),
        converter in proptest::sample::select(vec![Converter::Simple, PLAIN_JSON, SCHEMA_JSON]),
        binary: bool,
    ) {
        let mapping = Mapping { headers: pairs(&[("x", "x")]), envelope: pairs(&[("y", "x")]), ..of(PLAIN_JSON, SCHEMA_JSON, converter) };
        let mut given = debezium_and("x", type_id, None).with_bytes("x", value.as_deref());
        given.binary = binary;
        let first = given.through(mapping.clone());
        prop_assert_eq!(given.through(mapping), first);
    }
}

#[test]
fn tables_with_other_members_in_their_envelopes_are_refused_where_debezium_would_write_the_first_ones() {
    let plain = |id: u32, name: &str, given: &TestTable| PublishedTable {
        relation: Relation { id, name: name.into(), ..given.relation() },
        ancestors: Vec::new(),
        domains: Vec::new(),
    };
    let with = debezium_and("ver", TEXT, Some("1"));
    let envelope = pairs(&[("version", "ver"), ("t", "type")]);
    let published = |alike_envelopes, tables: &[PublishedTable]| {
        let connect = Connect { skip_missing: true, alike_envelopes, value: PLAIN_JSON, ..Connect::default() };
        let mapping = Mapping { envelope: envelope.clone(), ..router(connect) };
        Outbox::new(mapping, Vec::new()).unwrap().published(tables).map(drop)
    };
    let differing = [plain(1, "one", &with), plain(2, "two", &debezium())];
    let error = published(true, &differing).unwrap_err();
    assert!(error.is_for_all_rows() && error.hint().to_string().contains("--accept-differences"), "{error}");
    assert!(error.to_string().contains(r#"shop.one has ["version", "t"], shop.two has ["t"]"#), "{error}");
    published(false, &differing).unwrap();
    published(true, &[plain(1, "one", &with), plain(2, "two", &with)]).unwrap();
    published(true, &differing[1..]).unwrap();
}

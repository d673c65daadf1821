//! Tests the records of rows as the server sends them.

mod bad_rows;
mod cloudevents;
mod connect;
mod messages;
mod tables;

use super::*;
use crate::outbox::Timestamp;
use crate::pgoutput::{Message, RelationColumn};
use crate::route::TopicSetting;
use crate::route::{TOPICS, TopicFault};
use crate::sink::destination::EventBinding;
use proptest::prelude::*;

const BOOL: u32 = 16;
const BYTEA: u32 = 17;
const INT8: u32 = 20;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const JSON: u32 = 114;
const TIMESTAMPTZ: u32 = 1184;
const NUMERIC: u32 = 1700;
const UUID: u32 = 2950;
const JSONB: u32 = 3802;

const RELATION: RelationId = 7;

/// The position at which the row's transaction commits.
const AT: Lsn = Lsn::new(0x16_B374_D848);

/// An owned copy of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnedRecord {
    topic: String,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    timestamp_millis: i64,
    partition: Option<i32>,
}

impl OwnedRecord {
    fn of(record: &Record<'_>) -> Self {
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        Self {
            topic: record.topic.to_owned(),
            key: owned(record.key),
            value: owned(record.value),
            headers: record.headers.iter().map(|header| (header.name.to_owned(), owned(header.value))).collect(),
            timestamp_millis: record.timestamp_millis,
            partition: record.partition,
        }
    }

    /// Each header as `name=value`. A null is only `name`.
    fn headers_text(&self) -> String {
        let text = |(name, value): &(String, Option<Vec<u8>>)| match value {
            Some(value) => format!("{name}={}", String::from_utf8_lossy(value)),
            None => name.clone(),
        };
        self.headers.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    fn value_text(&self) -> Option<&str> {
        self.value.as_deref().map(|value| std::str::from_utf8(value).unwrap())
    }
}

/// The columns of a table, and one row.
#[derive(Clone)]
struct TestTable {
    columns: Vec<(String, u32, Option<Vec<u8>>)>,
    binary: bool,
}

fn given(columns: &[(&str, u32, Option<&str>)]) -> TestTable {
    let column = |(name, type_id, value): &(&str, u32, Option<&str>)| {
        ((*name).to_owned(), *type_id, value.map(|value| value.as_bytes().to_vec()))
    };
    TestTable { columns: columns.iter().map(column).collect(), binary: false }
}

/// Debezium's table with one more column.
fn debezium_and(name: &str, type_id: u32, value: Option<&str>) -> TestTable {
    debezium().and(name, type_id, value)
}

fn debezium() -> TestTable {
    given(&[
        ("id", UUID, Some("0192")),
        ("aggregatetype", TEXT, Some("order")),
        ("aggregateid", TEXT, Some("order-17")),
        ("type", TEXT, Some("OrderPlaced")),
        ("payload", JSONB, Some("{\"total\": 1.50}")),
    ])
}

impl TestTable {
    fn and(mut self, name: &str, type_id: u32, value: Option<&str>) -> Self {
        self.columns.push((name.to_owned(), type_id, value.map(|value| value.as_bytes().to_vec())));
        self
    }

    fn with(self, name: &str, value: Option<&str>) -> Self {
        self.with_bytes(name, value.map(str::as_bytes))
    }

    fn with_bytes(mut self, name: &str, value: Option<&[u8]>) -> Self {
        self.columns.iter_mut().find(|column| column.0 == name).unwrap().2 = value.map(<[u8]>::to_vec);
        self
    }

    fn of_type(mut self, name: &str, type_id: u32) -> Self {
        self.columns.iter_mut().find(|column| column.0 == name).unwrap().1 = type_id;
        self
    }

    fn relation(&self) -> Relation {
        let column = |(name, type_id, _): &(String, u32, _)| RelationColumn {
            name: name.clone(),
            type_id: *type_id,
            type_modifier: -1,
        };
        Relation {
            id: RELATION,
            namespace: "shop".into(),
            name: "outbox".into(),
            replica_identity: b'd',
            columns: self.columns.iter().map(column).collect(),
        }
    }

    fn insert(&self) -> Vec<u8> {
        let mut bytes = vec![b'I'];
        bytes.extend(RELATION.to_be_bytes());
        bytes.push(b'N');
        bytes.extend(u16::try_from(self.columns.len()).unwrap().to_be_bytes());
        for (_, _, value) in &self.columns {
            match value {
                None => bytes.push(b'n'),
                Some(value) => {
                    bytes.push(if self.binary { b'b' } else { b't' });
                    bytes.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
                    bytes.extend(value);
                }
            }
        }
        bytes
    }

    fn through(&self, mapping: Mapping) -> Result<OwnedRecord, RowError> {
        let mut outbox = Outbox::new(mapping, Vec::new()).unwrap();
        assert_eq!(outbox.relation(&self.relation()), Ok(()));
        let RowOutcome::Record(kept) = offer(&mut outbox, &self.insert())? else { panic!("a record is wanted") };
        Ok(kept)
    }

    #[track_caller]
    fn kept(&self, mapping: Mapping) -> OwnedRecord {
        self.through(mapping).unwrap()
    }

    #[track_caller]
    fn bad(&self, mapping: Mapping) -> BadRow {
        match self.through(mapping) {
            Err(RowError::Bad(bad)) => *bad,
            other => panic!("{other:?}"),
        }
    }
}

/// The commit is at 1763716087.654321 s.
const COMMIT_MILLIS: i64 = 1_763_716_087_654;

/// An hour later.
const SENT_MILLIS: i64 = COMMIT_MILLIS + 3_600_000;

fn context() -> RowContext {
    let commit_time = PgTime::from_unix_micros(1_763_716_087_654_321);
    RowContext {
        commit_time,
        sent_at: PgTime::from_unix_micros(SENT_MILLIS * 1000 + 999),
        position: Position { final_lsn: AT, ordinal: 3 },
    }
}

fn tuple(insert: &[u8]) -> Tuple<'_> {
    let Message::Insert { new, .. } = Message::decode(insert).unwrap() else { panic!("an insert is wanted") };
    new
}

fn offer(outbox: &mut Outbox, insert: &[u8]) -> Result<RowOutcome<OwnedRecord>, RowError> {
    outbox.row(RELATION, &tuple(insert), &context(), OwnedRecord::of)
}

fn defaults() -> Mapping {
    Mapping::default()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, column)| ((*name).to_owned(), (*column).to_owned())).collect()
}

#[test]
fn a_row_becomes_a_record_with_no_setting_at_all() {
    let headers = vec![("id".into(), Some(b"0192".to_vec())), ("eventType".into(), Some(b"OrderPlaced".to_vec()))];
    let expected = OwnedRecord {
        topic: "outbox.event.order".into(),
        key: Some(b"order-17".to_vec()),
        value: Some(b"{\"total\": 1.50}".to_vec()),
        headers,
        timestamp_millis: SENT_MILLIS,
        partition: None,
    };
    assert_eq!(debezium().kept(defaults()), expected);
}

#[test]
fn the_payload_and_the_key_are_not_copied() {
    let insert = debezium().insert();
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
    outbox.relation(&debezium().relation()).unwrap();
    let within = insert.as_ptr_range();
    let made = outbox.row(RELATION, &tuple(&insert), &context(), |record| {
        [record.key, record.value].map(|bytes| within.contains(&bytes.unwrap().as_ptr()))
    });
    assert_eq!(made, Ok(RowOutcome::Record([true, true])));
}

#[test]
fn a_row_that_is_offered_again_gives_the_same_record() {
    let given =
        debezium().of_type("payload", BYTEA).with("payload", Some("\\x00ff")).and("headers", JSON, Some("{\"a\":1}"));
    let mut outbox = Outbox::new(Mapping { position_header: true, ..defaults() }, Vec::new()).unwrap();
    outbox.relation(&given.relation()).unwrap();
    let insert = given.insert();
    let first = offer(&mut outbox, &insert).unwrap();
    assert_eq!(offer(&mut outbox, &insert).unwrap(), first);
    assert!(offer(&mut outbox, &given.clone().with("id", None).insert()).is_err());
    assert_eq!(offer(&mut outbox, &insert).unwrap(), first);
}

#[test]
fn room_does_not_grow_with_the_number_of_rows_nor_stay_after_a_huge_one() {
    let row = |bytes: usize| {
        let payload = format!(r"\x{}", "00".repeat(bytes));
        debezium().of_type("payload", BYTEA).with("payload", Some(&payload)).insert()
    };
    let mut outbox = Outbox::new(Mapping { envelope: pairs(&[("t", "type")]), ..defaults() }, Vec::new()).unwrap();
    outbox.relation(&debezium().of_type("payload", BYTEA).relation()).unwrap();
    let mut offered = |bytes| {
        offer(&mut outbox, &row(bytes)).unwrap();
        outbox.scratch.room_bytes()
    };
    offered(1000);
    let settled = offered(1000);
    assert!((1000..20_000).contains(&settled), "{settled}");
    assert!((0..1000).all(|_| offered(1000) == settled));
    assert!(offered(3_000_000) <= settled);
}

#[test]
fn nulls_make_a_null_key_a_tombstone_and_null_headers() {
    let kept = debezium().with("aggregateid", None).with("payload", None).with("type", None).kept(defaults());
    assert_eq!((kept.key.as_ref(), kept.value.as_ref()), (None, None));
    assert_eq!(kept.headers_text(), "id=0192 eventType");
}

#[test]
fn empty_is_not_null() {
    let kept =
        debezium().of_type("payload", TEXT).with("payload", Some("")).with("aggregateid", Some("")).kept(defaults());
    assert_eq!((kept.key, kept.value), (Some(Vec::new()), Some(Vec::new())));
}

#[test]
fn a_table_without_a_type_has_no_event_type_header() {
    let given = given(&[("id", INT8, Some("1")), ("aggregatetype", TEXT, Some("a")), ("payload", TEXT, Some("x"))]);
    assert_eq!(given.kept(defaults()).headers_text(), "id=1");
}

#[test]
fn bytea_is_raw_in_payload_key_and_headers() {
    let given = debezium()
        .of_type("payload", BYTEA)
        .with("payload", Some(r"\x00ff10"))
        .of_type("aggregateid", BYTEA)
        .with("aggregateid", Some(r"\xfe"))
        .and("blob", BYTEA, Some(r"\x01"));
    let kept = given.kept(Mapping { headers: pairs(&[("blob", "blob")]), ..defaults() });
    assert_eq!((kept.value, kept.key), (Some(vec![0, 255, 16]), Some(vec![0xFE])));
    assert_eq!(kept.headers.last(), Some(&("blob".to_owned(), Some(vec![1]))));
}

#[test]
fn constants_stand_where_they_were_given_and_the_contents_type_behind_them() {
    let constant = |behind, name: &str| Constant { behind, name: name.into(), value: format!("={name}") };
    let mapping = || Mapping {
        headers: pairs(&[("a", "type"), ("b", "type")]),
        constants: vec![constant(0, "x"), constant(1, "y"), constant(2, "z")],
        content_type_header: true,
        position_header: true,
        ..defaults()
    };
    let kept = debezium().kept(mapping());
    let names: Vec<&str> = kept.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["id", "eventType", "x", "a", "y", "b", "z", "content-type", "walrelay-position"]);
    assert_eq!(kept.headers[2].1.as_deref(), Some(&b"=x"[..]));
    for (type_id, payload, expected) in [
        (JSONB, "{}", "application/json"),
        (TEXT, "{}", "text/plain; charset=UTF-8"),
        (BYTEA, r"\x00", "application/octet-stream"),
    ] {
        let kept = debezium().of_type("payload", type_id).with("payload", Some(payload)).kept(mapping());
        assert_eq!(kept.headers[7].1.as_deref(), Some(expected.as_bytes()));
    }
    let enveloped = Mapping { envelope: pairs(&[("type", "type")]), ..mapping() };
    let kept = debezium().of_type("payload", TEXT).with("payload", Some("x")).kept(enveloped);
    assert_eq!(kept.headers[7].1.as_deref(), Some(&b"application/json"[..]));
}

#[test]
fn a_value_is_framed_with_its_schemas_number_from_a_column_or_a_setting() {
    let of = |schema_id| Mapping { schema_id: Some(schema_id), ..defaults() };
    let column = || of(SchemaId::Column("schema".into()));
    let framed = |number: u32, payload: &[u8]| Some([&[0][..], &number.to_be_bytes(), payload].concat());
    let typed = Mapping { content_type_header: true, ..of(SchemaId::Number(0x0102_0304)) };
    let kept = debezium().kept(typed);
    assert_eq!(kept.value, framed(0x0102_0304, b"{\"total\": 1.50}"));
    assert!(kept.headers_text().contains("content-type=application/octet-stream"), "what is framed is no JSON");
    let given = || debezium().of_type("payload", BYTEA).with("payload", Some(r"\x00ff"));
    assert_eq!(given().and("schema", INT8, Some("7")).kept(column()).value, framed(7, &[0, 255]));
    let null = debezium().with("payload", None).and("schema", INT4, None);
    assert_eq!(null.kept(column()).value, None, "a tombstone stays one");
    for value in [None, Some("-1"), Some("2147483648")] {
        let bad = debezium().and("schema", INT8, value).bad(column());
        assert_eq!(bad.reason.label(), "invalid_schema_id", "{value:?}");
    }
}

#[test]
fn binary_columns_give_the_record_that_text_gives() {
    let text = debezium()
        .of_type("aggregateid", INT8)
        .with("aggregateid", Some("17"))
        .with("id", Some("01112131-4151-6171-8191-a1b1c1d1e1f1"))
        .and("ok", BOOL, Some("t"))
        .and("n", INT4, Some("5"));
    let uuid: Vec<u8> = (0..16).map(|index| 0x10 * index + 1).collect();
    let mut binary = text
        .clone()
        .with_bytes("id", Some(&uuid))
        .with_bytes("aggregateid", Some(&17_i64.to_be_bytes()))
        .with_bytes("payload", Some(b"\x01{\"total\": 1.50}"))
        .with_bytes("ok", Some(&[1]))
        .with_bytes("n", Some(&5_i32.to_be_bytes()));
    binary.binary = true;
    let mapping = || Mapping {
        headers: pairs(&[("ok", "ok"), ("n", "n")]),
        partition_column: Some("n".into()),
        topic: TopicSetting::Template("{aggregateid}".into()),
        ..defaults()
    };
    let kept = binary.kept(mapping());
    assert_eq!(kept, text.kept(mapping()));
    assert_eq!(kept.topic, "17");
}

#[test]
fn a_binary_form_that_is_not_understood_asks_for_text() {
    let mut given = debezium_and("at", TIMESTAMPTZ, Some("12345678"));
    given.binary = true;
    let given = given.with_bytes("payload", Some(b"\x01{}")).with_bytes("id", Some(&[0; 16]));
    given.kept(defaults());
    let error = given.through(Mapping { timestamp: Timestamp::Column("at".into()), ..defaults() }).unwrap_err();
    assert_eq!(error, RowError::BinaryForm { table: "shop.outbox".into(), column: "at".into(), type_id: TIMESTAMPTZ });
}

#[test]
fn values_from_before_a_columns_change_of_type_are_asked_for_as_text_from_then_on() {
    let now = debezium().of_type("payload", BYTEA);
    let mut then = debezium().of_type("payload", BYTEA).of_type("aggregateid", TIMESTAMPTZ);
    then.binary = true;
    let then = then.with_bytes("id", Some(&[0; 16]));
    let published = [PublishedTable { relation: now.relation(), ancestors: Vec::new(), domains: Vec::new() }];
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
    assert_eq!(outbox.published(&published), Ok(true));
    assert_eq!(outbox.relation(&then.relation()), Ok(()));
    assert!(matches!(offer(&mut outbox, &then.insert()), Err(RowError::BinaryForm { .. })));
    assert_eq!(outbox.published(&published), Ok(false), "the catalogue says the same as before");
}

#[test]
fn booleans_are_words_in_headers_and_letters_elsewhere() {
    let given = debezium_and("ok", BOOL, Some("t")).of_type("payload", BOOL).with("payload", Some("f"));
    let kept = given.kept(Mapping { headers: pairs(&[("ok", "ok")]), key_column: Some("ok".into()), ..defaults() });
    assert_eq!(kept.headers_text(), "id=0192 eventType=OrderPlaced ok=true");
    assert_eq!((kept.key, kept.value), (Some(b"t".to_vec()), Some(b"f".to_vec())));
}

#[test]
fn headers_come_in_their_fixed_order_and_may_repeat() {
    let json = r#"{"z": "s\n", "id": "again", "n": null, "o": {"a": 1.50}, "b": false}"#;
    let given = debezium_and("headers", JSONB, Some(json)).and("tenant", TEXT, None);
    let mapping = Mapping {
        headers: pairs(&[("tenant", "tenant"), ("kind", "type"), ("kind", "type")]),
        position_header: true,
        ..defaults()
    };
    assert_eq!(
        given.kept(mapping).headers_text(),
        "id=0192 eventType=OrderPlaced z=s\n id=again n o={\"a\": 1.50} b=false tenant kind=OrderPlaced \
         kind=OrderPlaced walrelay-position=16/B374D848:3"
    );
}

#[test]
fn a_null_headers_column_adds_none() {
    let kept = debezium_and("headers", JSON, None).kept(defaults());
    assert_eq!(kept.headers_text(), "id=0192 eventType=OrderPlaced");
}

#[test]
fn an_envelope_carries_the_payload_beside_other_columns() {
    let given = debezium_and("n", INT4, Some("5"))
        .and("amount", NUMERIC, Some("1.50"))
        .and("ok", BOOL, Some("t"))
        .and("note", TEXT, None)
        .and("blob", BYTEA, Some(r"\x666f6f"));
    let envelope =
        pairs(&[("event\"Type", "type"), ("n", "n"), ("a", "amount"), ("ok", "ok"), ("x", "note"), ("b", "blob")]);
    let mapping = || Mapping { envelope: envelope.clone(), ..defaults() };
    let rest = r#""event\"Type":"OrderPlaced","n":5,"a":1.50,"ok":true,"x":null,"b":"Zm9v"}"#;
    let value = |given: &TestTable| given.kept(mapping()).value_text().map(str::to_owned);
    assert_eq!(value(&given), Some(format!(r#"{{"payload":{{"total": 1.50}},{rest}"#)));
    let text = given.clone().of_type("payload", TEXT).with("payload", Some("a \"b\""));
    assert_eq!(value(&text), Some(format!(r#"{{"payload":"a \"b\"",{rest}"#)));
    let null = given.with("payload", None);
    assert_eq!(value(&null), Some(format!(r#"{{"payload":null,{rest}"#)));
}

#[test]
fn an_empty_or_blank_payload_is_a_tombstone_if_asked_for() {
    let value = |type_id, payload: Option<&str>, tombstone_on_empty_payload, envelope: &[(&str, &str)]| {
        let given = debezium().of_type("payload", type_id).with("payload", payload);
        let mapping = Mapping { tombstone_on_empty_payload, envelope: pairs(envelope), ..defaults() };
        given.kept(mapping).value
    };
    assert_eq!(value(TEXT, Some(""), true, &[]), None);
    assert_eq!(value(TEXT, Some(" \t\n"), true, &[]), None);
    assert_eq!(value(TEXT, Some(" \t\n"), false, &[]), Some(b" \t\n".to_vec()));
    assert_eq!(value(TEXT, Some(" x"), true, &[]), Some(b" x".to_vec()));
    assert_eq!(value(BYTEA, Some(r"\x"), true, &[]), None);
    assert_eq!(value(BYTEA, Some(r"\x20"), true, &[]), Some(b" ".to_vec()), "bytes are no white space");
    assert_eq!(value(TEXT, None, true, &[("t", "type")]), None);
    assert_eq!(value(TEXT, Some(" "), true, &[("t", "type")]), None);
}

#[test]
fn the_partition_comes_from_its_column_or_else_from_the_key() {
    let mapping = || Mapping { partition_column: Some("p".into()), ..defaults() };
    let partition = |value: Option<&str>| debezium_and("p", INT8, value).through(mapping()).map(|kept| kept.partition);
    assert_eq!(partition(Some("0")), Ok(Some(0)));
    assert_eq!(partition(Some("2147483647")), Ok(Some(i32::MAX)));
    assert_eq!(partition(None), Ok(None));
    for refused in ["-1", "2147483648"] {
        let bad = debezium_and("p", INT8, Some(refused)).bad(mapping());
        assert_eq!(bad.reason, BadReason::InvalidPartition { column: "p".into(), value: refused.into() });
        assert_eq!(bad.reason.label(), "invalid_partition");
    }
}

#[test]
fn the_timestamp_comes_from_its_column_or_else_from_the_commit() {
    let mapping = || Mapping { timestamp: Timestamp::Column("at".into()), ..defaults() };
    let millis = |type_id, value: Option<&str>| debezium_and("at", type_id, value).kept(mapping()).timestamp_millis;
    assert_eq!(millis(TIMESTAMPTZ, Some("2000-01-01 00:00:00.1239+00")), 946_684_800_123);
    assert_eq!(millis(1114, Some("2000-01-01 00:00:00")), 946_684_800_000);
    assert_eq!(millis(INT8, Some("946684800123")), 946_684_800_123);
    assert_eq!(millis(TIMESTAMPTZ, None), COMMIT_MILLIS);
    for (type_id, refused) in [(TIMESTAMPTZ, "infinity"), (INT8, "-1"), (1114, "1969-12-31 23:59:59")] {
        let bad = debezium_and("at", type_id, Some(refused)).bad(mapping());
        assert_eq!(bad.reason, BadReason::InvalidTimestamp { column: "at".into(), value: refused.into() });
        assert_eq!(bad.reason.label(), "invalid_timestamp");
    }
}

#[test]
fn without_a_column_the_time_is_that_of_the_turn_or_of_the_commit() {
    let millis = |timestamp| debezium().kept(Mapping { timestamp, ..defaults() }).timestamp_millis;
    assert_eq!(millis(Timestamp::Send), SENT_MILLIS);
    assert_eq!(millis(Timestamp::Commit), COMMIT_MILLIS);
    assert_eq!(millis(Timestamp::default()), SENT_MILLIS);
}

#[test]
fn a_row_before_its_relation_is_a_protocol_error() {
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
    let insert = debezium().insert();
    assert_eq!(offer(&mut outbox, &insert), Err(RowError::UnknownRelation(RELATION)));
    outbox.relation(&debezium().relation()).unwrap();
    assert!(offer(&mut outbox, &insert).is_ok());
    outbox.published(&[]).unwrap();
    assert_eq!(offer(&mut outbox, &insert), Err(RowError::UnknownRelation(RELATION)));
    assert_eq!(outbox.update(RELATION, AT), Err(RowError::UnknownRelation(RELATION)));
}

#[test]
fn a_row_of_another_width_than_its_table_is_a_protocol_error() {
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
    outbox.relation(&debezium().relation()).unwrap();
    let wide = debezium_and("more", TEXT, None).insert();
    let expected = RowError::ColumnCount { table: "shop.outbox".into(), relation: 5, row: 6 };
    assert_eq!(offer(&mut outbox, &wide), Err(expected));
}

#[test]
fn a_value_that_was_not_sent_is_never_published() {
    let mut insert = debezium().with("payload", None).insert();
    assert_eq!(insert.pop(), Some(b'n'));
    insert.push(b'u');
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
    outbox.relation(&debezium().relation()).unwrap();
    assert!(matches!(offer(&mut outbox, &insert), Err(RowError::Undecodable(_))));
}

#[test]
fn a_new_shape_takes_effect_at_its_place() {
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
    outbox.relation(&debezium().relation()).unwrap();
    let wider = debezium_and("headers", JSON, Some("{\"a\":\"b\"}"));
    outbox.relation(&wider.relation()).unwrap();
    let Ok(RowOutcome::Record(kept)) = offer(&mut outbox, &wider.insert()) else { panic!("a record") };
    assert_eq!(kept.headers_text(), "id=0192 eventType=OrderPlaced a=b");
    let mut without_payload = debezium();
    without_payload.columns.pop();
    assert!(outbox.relation(&without_payload.relation()).is_err());
    assert_eq!(offer(&mut outbox, &debezium().insert()), Err(RowError::UnknownRelation(RELATION)));
}

#[test]
fn an_update_does_what_its_setting_says() {
    let update = |on_update| {
        let mut outbox = Outbox::new(Mapping { on_update, ..defaults() }, Vec::new()).unwrap();
        outbox.relation(&debezium().relation()).unwrap();
        let id = outbox.shown_id(RELATION, &tuple(&debezium().insert()), &context());
        assert_eq!(id.as_deref(), Some("0192"));
        outbox.update(RELATION, AT)
    };
    assert_eq!(update(OnUpdate::Warn), Ok(Some(OnUpdate::Warn)));
    assert_eq!(update(OnUpdate::Skip), Ok(Some(OnUpdate::Skip)));
    assert_eq!(update(OnUpdate::Stop), Ok(Some(OnUpdate::Stop)));
}

/// A mapping with all settings at once, so that each column is used in each way.
fn everything() -> Mapping {
    Mapping {
        headers: pairs(&[("a", "a"), ("b", "b")]),
        envelope: pairs(&[("c", "c"), ("d", "d")]),
        partition_column: Some("p".into()),
        timestamp: Timestamp::Column("t".into()),
        topic: TopicSetting::Template("{route|kebab}.{a}".into()),
        tombstone_on_empty_payload: true,
        position_header: true,
        ..defaults()
    }
}

fn any_value() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        Just(None),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Some),
        "[0-9:. {}\"\\\\xa-f+-]{0,24}".prop_map(|text| Some(text.into_bytes())),
        Just(Some(br#"{"a":"b","c":null}"#.to_vec())),
    ]
}

fn any_type() -> impl Strategy<Value = u32> {
    proptest::sample::select(vec![BOOL, BYTEA, INT8, INT4, 21, TEXT, JSON, JSONB, UUID, NUMERIC, 1082, 20_000])
}

proptest! {
    #[test]
    fn no_row_panics(
        values in proptest::collection::vec((any_type(), any_value()), 8),
        headers in any_value(),
        partition in any_value(),
        time in any_value(),
        binary: bool,
    ) {
        let names = ["id", "aggregatetype", "aggregateid", "payload", "a", "b", "c", "d"];
        let mut columns: Vec<_> =
            names.iter().zip(values).map(|(name, (type_id, value))| ((*name).to_owned(), type_id, value)).collect();
        columns.extend([("headers".into(), JSONB, headers), ("p".into(), INT8, partition), ("t".into(), 1114, time)]);
        let given = TestTable { columns, binary };
        let first = given.through(everything());
        prop_assert_eq!(given.through(everything()), first);
    }

    #[test]
    fn no_bytes_of_a_row_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let mut insert = vec![b'I', 0, 0, 0, 7, b'N', 0, 5];
        insert.extend(bytes);
        let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
        outbox.relation(&debezium().relation()).unwrap();
        drop(offer(&mut outbox, &insert));
    }
}

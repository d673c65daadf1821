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

/// Where the row's transaction commits.
const AT: Lsn = Lsn::new(0x16_B374_D848);

/// A record that outlives its loan.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    topic: String,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    timestamp_millis: i64,
    partition: Option<i32>,
}

impl Kept {
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

    /// `name=value` each, null as `name`.
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

/// A table's columns, and one row of it.
#[derive(Clone)]
struct Given {
    columns: Vec<(String, u32, Option<Vec<u8>>)>,
    binary: bool,
}

fn given(columns: &[(&str, u32, Option<&str>)]) -> Given {
    let column = |(name, type_id, value): &(&str, u32, Option<&str>)| {
        ((*name).to_owned(), *type_id, value.map(|value| value.as_bytes().to_vec()))
    };
    Given { columns: columns.iter().map(column).collect(), binary: false }
}

/// Debezium's table with one column more.
fn debezium_and(name: &str, type_id: u32, value: Option<&str>) -> Given {
    debezium().and(name, type_id, value)
}

fn debezium() -> Given {
    given(&[
        ("id", UUID, Some("0192")),
        ("aggregatetype", TEXT, Some("order")),
        ("aggregateid", TEXT, Some("order-17")),
        ("type", TEXT, Some("OrderPlaced")),
        ("payload", JSONB, Some("{\"total\": 1.50}")),
    ])
}

impl Given {
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

    fn through(&self, mapping: Mapping) -> Result<Kept, RowError> {
        let mut outbox = Outbox::new(mapping, Vec::new()).unwrap();
        assert_eq!(outbox.relation(&self.relation()), Ok(()));
        let Outcome::Record(kept) = offer(&mut outbox, &self.insert())? else { panic!("a record is wanted") };
        Ok(kept)
    }

    #[track_caller]
    fn kept(&self, mapping: Mapping) -> Kept {
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

fn context() -> RowContext {
    let commit_time = PgTime::from_unix_micros(1_763_716_087_654_321);
    RowContext { commit_time, final_lsn: AT, ordinal: 3 }
}

fn tuple(insert: &[u8]) -> Tuple<'_> {
    let Message::Insert { new, .. } = Message::decode(insert).unwrap() else { panic!("an insert is wanted") };
    new
}

fn offer(outbox: &mut Outbox, insert: &[u8]) -> Result<Outcome<Kept>, RowError> {
    outbox.row(RELATION, &tuple(insert), &context(), Kept::of)
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
    let expected = Kept {
        topic: "outbox.event.order".into(),
        key: Some(b"order-17".to_vec()),
        value: Some(b"{\"total\": 1.50}".to_vec()),
        headers,
        timestamp_millis: 1_763_716_087_654,
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
    let lent = outbox.row(RELATION, &tuple(&insert), &context(), |record| {
        [record.key, record.value].map(|bytes| within.contains(&bytes.unwrap().as_ptr()))
    });
    assert_eq!(lent, Ok(Outcome::Record([true, true])));
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

fn events(binary: Option<EventBinding>) -> Mapping {
    let source = "/shop/größe %".to_owned();
    let events = match binary {
        Some(binding) => CloudEvents::binary(source, binding),
        None => CloudEvents::structured(source),
    };
    Mapping { cloudevents: Some(events), content_type_header: true, ..defaults() }
}

#[test]
fn a_cloud_events_attributes_are_headers_as_the_destinations_binding_has_them() {
    let given = || debezium().with("aggregateid", Some("")).with("type", Some("a b\"%é"));
    let header = |kept: &Kept, name: &str| {
        let found = kept.headers.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.clone());
        found.map(|value| String::from_utf8(value).unwrap())
    };
    let plain = given().kept(events(Some(EventBinding { prefix: "ce_", percent_encoded: false })));
    assert_eq!(header(&plain, "ce_type").as_deref(), Some("a b\"%é"));
    assert_eq!(header(&plain, "ce_source").as_deref(), Some("/shop/größe %"));
    let encoded = given().kept(events(Some(EventBinding { prefix: "ce-", percent_encoded: true })));
    assert_eq!(header(&encoded, "ce-type").as_deref(), Some("a%20b%22%25%C3%A9"));
    assert_eq!(header(&encoded, "ce-source").as_deref(), Some("/shop/gr%C3%B6%C3%9Fe%20%25"));
    assert_eq!(header(&encoded, "ce-id").as_deref(), Some("0192"));
    for kept in [&plain, &encoded] {
        assert_eq!(kept.headers.iter().filter(|(name, _)| name == "content-type").count(), 1);
        assert!(kept.headers.iter().all(|(name, _)| !name.ends_with("subject")), "an empty key is no subject");
        assert_eq!(kept.value_text(), Some("{\"total\": 1.50}"));
    }
}

#[test]
fn a_cloud_event_as_one_object_has_the_payload_as_it_is() {
    let kept = debezium().with("type", Some("a\"b")).kept(events(None));
    let time = "\"time\":\"";
    let text = kept.value_text().unwrap();
    let (start, rest) = text.split_once(time).unwrap();
    assert_eq!(start, "{\"specversion\":\"1.0\",\"source\":\"/shop/größe %\",\"id\":\"0192\",\"type\":\"a\\\"b\",");
    let (_, rest) = rest.split_once("Z\",").unwrap();
    let expected = "\"subject\":\"order-17\",\"datacontenttype\":\"application/json\",\"data\":{\"total\": 1.50}}";
    assert_eq!(rest, expected);
    assert!(kept.headers_text().contains("content-type=application/cloudevents+json; charset=UTF-8"));
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
    let published = [PublishedTable { relation: now.relation(), ancestors: Vec::new() }];
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
    let value = |given: &Given| given.kept(mapping()).value_text().map(str::to_owned);
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
    assert_eq!(millis(TIMESTAMPTZ, None), 1_763_716_087_654);
    for (type_id, refused) in [(TIMESTAMPTZ, "infinity"), (INT8, "-1"), (1114, "1969-12-31 23:59:59")] {
        let bad = debezium_and("at", type_id, Some(refused)).bad(mapping());
        assert_eq!(bad.reason, BadReason::InvalidTimestamp { column: "at".into(), value: refused.into() });
        assert_eq!(bad.reason.label(), "invalid_timestamp");
    }
}

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
fn a_topic_that_no_broker_takes_is_a_bad_row_and_the_next_row_goes_on() {
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
    outbox.relation(&debezium().relation()).unwrap();
    let spaced = debezium().with("aggregatetype", Some("my order")).insert();
    let Err(RowError::Bad(bad)) = offer(&mut outbox, &spaced) else { panic!("a bad row") };
    let expected = BadReason::InvalidTopic {
        topic: "outbox.event.my order".into(),
        fault: TopicFault::Character(' ', TOPICS.made_of),
    };
    assert_eq!((bad.reason.label(), &bad.reason), ("invalid_topic", &expected));
    assert!(matches!(offer(&mut outbox, &debezium().insert()), Ok(Outcome::Record(_))));
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
    let label = |given: Given, mapping: Mapping| given.bad(mapping).reason.label();
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
    let Ok(Outcome::Record(kept)) = offer(&mut outbox, &wider.insert()) else { panic!("a record") };
    assert_eq!(kept.headers_text(), "id=0192 eventType=OrderPlaced a=b");
    let mut without_payload = debezium();
    without_payload.columns.pop();
    assert!(outbox.relation(&without_payload.relation()).is_err());
    assert_eq!(offer(&mut outbox, &debezium().insert()), Err(RowError::UnknownRelation(RELATION)));
}

#[test]
fn only_tables_that_are_listed_are_published() {
    let tables = vec![TableName { schema: "shop".into(), name: "events".into() }];
    let mut outbox = Outbox::new(Mapping { on_update: OnUpdate::Stop, ..defaults() }, tables).unwrap();
    let no_outbox = given(&[("anything", TEXT, None)]);
    assert_eq!(outbox.relation(&no_outbox.relation()), Ok(()));
    assert_eq!(offer(&mut outbox, &no_outbox.insert()), Err(RowError::NewTable("shop.outbox".into())));
    let published = |given: &Given, ancestors: &[(String, String)]| {
        [PublishedTable { relation: given.relation(), ancestors: ancestors.to_vec() }]
    };
    assert_eq!(outbox.published(&published(&no_outbox, &[])), Ok(false));
    assert_eq!(outbox.relation(&no_outbox.relation()), Ok(()));
    assert_eq!(offer(&mut outbox, &no_outbox.insert()), Ok(Outcome::NotPublished));
    assert_eq!(outbox.update(RELATION, AT), Ok(Updated::NotPublished));
    let parent = [("shop".to_owned(), "events".to_owned())];
    assert!(outbox.published(&published(&no_outbox, &parent)).is_err());
    assert_eq!(outbox.published(&published(&debezium(), &parent)), Ok(false));
    assert_eq!(outbox.relation(&debezium().relation()), Ok(()));
    assert!(matches!(offer(&mut outbox, &debezium().insert()), Ok(Outcome::Record(_))));
    assert_eq!(outbox.update(RELATION, AT), Ok(Updated::Stop));
}

#[test]
fn a_table_is_listed_by_schema_and_name_with_their_case() {
    let listing = |schema: &str, name: &str| {
        let other = TableName { schema: "a".into(), name: "b".into() };
        let tables = vec![other, TableName { schema: schema.into(), name: name.into() }];
        let mut outbox = Outbox::new(defaults(), tables).unwrap();
        outbox.relation(&debezium().relation()).unwrap();
        offer(&mut outbox, &debezium().insert()).map(drop)
    };
    let new = Err(RowError::NewTable("shop.outbox".into()));
    assert_eq!(listing("shop", "outbox"), Ok(()));
    assert_eq!(listing("Shop", "outbox"), new);
    assert_eq!(listing("shop", "Outbox"), new);
}

/// Publishes `shop.events`, which has no row of its own.
fn of_events() -> Outbox {
    let tables = vec![TableName { schema: "shop".into(), name: "events".into() }];
    Outbox::new(defaults(), tables).unwrap()
}

/// What a look finds: `shop.outbox`, a table of its own or a partition of `shop.events`.
fn found(given: &Given, is_partition: bool) -> [PublishedTable; 1] {
    let ancestors = if is_partition { vec![("shop".to_owned(), "events".to_owned())] } else { Vec::new() };
    [PublishedTable { relation: given.relation(), ancestors }]
}

/// The look that a row has asked for: taken behind the row.
fn look_again(outbox: &mut Outbox, found: &[PublishedTable]) {
    outbox.looks_at(Lsn::new(AT.bytes() + 1));
    outbox.published(found).unwrap();
}

#[test]
fn a_table_that_is_gone_when_the_publication_is_looked_at_again_is_told_once_and_not_listed() {
    let (mut outbox, passing) = (of_events(), given(&[("nothing", INT4, Some("1"))]));
    outbox.relation(&passing.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &passing.insert()), Err(RowError::NewTable("shop.outbox".into())));
    look_again(&mut outbox, &[]);
    assert_eq!((outbox.take_gone(), outbox.take_gone()), (vec!["shop.outbox".to_owned()], Vec::new()));
    outbox.relation(&passing.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &passing.insert()), Ok(Outcome::NotPublished));
}

#[test]
fn rows_of_a_table_that_is_gone_are_bad_rows_if_it_had_an_outboxs_shape() {
    let (mut outbox, given) = (of_events(), debezium());
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &given.insert()), Err(RowError::NewTable("shop.outbox".into())));
    look_again(&mut outbox, &[]);
    assert_eq!(outbox.take_gone(), Vec::<String>::new(), "its rows will tell");
    outbox.relation(&given.relation()).unwrap();
    let Err(RowError::Bad(bad)) = offer(&mut outbox, &given.insert()) else { panic!("a bad row") };
    assert_eq!(
        (bad.table.as_str(), bad.id.as_deref(), bad.reason),
        ("shop.outbox", Some("0192"), BadReason::GoneTable)
    );
    let remains = outbox.remains(RELATION, &tuple(&given.insert()), &context(), Kept::of);
    let Ok(Outcome::Record(remains)) = remains else { panic!("what a dead letter is made of") };
    assert_eq!((remains.key.as_deref(), remains.value_text()), (Some(&b"order-17"[..]), Some("{\"total\": 1.50}")));
    assert_eq!(outbox.update(RELATION, AT), Ok(Updated::Ignored { warn: true }));
}

#[test]
fn a_partition_stays_covered_when_it_is_detached_or_dropped() {
    for later in [&found(&debezium(), false)[..], &[]] {
        let (mut outbox, given) = (of_events(), debezium());
        outbox.published(&found(&given, true)).unwrap();
        look_again(&mut outbox, later);
        outbox.relation(&given.relation()).unwrap();
        assert!(matches!(offer(&mut outbox, &given.insert()), Ok(Outcome::Record(_))), "{later:?}");
        // The same name again, and another table.
        let other = Relation { id: RELATION + 1, ..given.relation() };
        outbox.relation(&other).unwrap();
        assert!(outbox.plan(RELATION + 1).is_none());
    }
}

#[test]
fn a_table_may_have_been_attached_since_the_last_look_and_each_time_it_is_announced_it_is_asked_for_once() {
    let (mut outbox, given) = (of_events(), debezium());
    let new = Err(RowError::NewTable("shop.outbox".into()));
    outbox.looks_at(AT);
    outbox.published(&found(&given, false)).unwrap();
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &given.insert()), new, "attached after the look, or before the row: who knows");
    look_again(&mut outbox, &found(&given, false));
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &given.insert()), Ok(Outcome::NotPublished));
    let later = Lsn::new(AT.bytes() + 10);
    assert_eq!(outbox.update(RELATION, later), Ok(Updated::NotPublished), "it was not announced anew");
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(outbox.update(RELATION, later), Err(RowError::NewTable("shop.outbox".into())));
    outbox.looks_at(Lsn::new(AT.bytes() + 11));
    outbox.published(&found(&given, true)).unwrap();
    outbox.relation(&given.relation()).unwrap();
    assert!(matches!(offer(&mut outbox, &given.insert()), Ok(Outcome::Record(_))));
}

#[test]
fn a_table_that_cannot_be_attached_is_not_asked_for() {
    let passing = given(&[("nothing", INT4, Some("1"))]);
    let mut outbox = of_events();
    outbox.published(&found(&passing, false)).unwrap();
    outbox.relation(&passing.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &passing.insert()), Ok(Outcome::NotPublished), "it lacks columns");
    let (mut outbox, named) = (of_events(), Relation { id: 1, name: "events".into(), ..debezium().relation() });
    let [beside] = found(&debezium(), false);
    outbox.published(&[beside, PublishedTable { relation: named, ancestors: Vec::new() }]).unwrap();
    outbox.relation(&debezium().relation()).unwrap();
    assert_eq!(
        offer(&mut outbox, &debezium().insert()),
        Ok(Outcome::NotPublished),
        "what is named is no partitioned table"
    );
}

#[test]
fn a_table_that_cannot_be_mapped_now_ends_the_stream_once_everything_from_before_has_come() {
    let mut outbox = Outbox::new(Mapping { payload_column: Some("payload".into()), ..defaults() }, Vec::new()).unwrap();
    let mut renamed = debezium();
    renamed.columns.last_mut().unwrap().0 = "body".into();
    let error = outbox.published(&found(&renamed, false)).unwrap_err();
    outbox.unmappable_from(AT, error.clone());
    assert_eq!(outbox.unmappable_at(Lsn::new(AT.bytes() - 1)), None);
    assert_eq!(outbox.unmappable_at(AT), Some(&error));
    outbox.relation(&debezium().relation()).unwrap();
    assert!(matches!(offer(&mut outbox, &debezium().insert()), Ok(Outcome::Record(_))), "its shape of then");
    assert_eq!(outbox.relation(&renamed.relation()), Err(error));
    assert_eq!(outbox.published(&found(&debezium(), false)), Ok(false));
    assert_eq!(outbox.unmappable_at(AT), None, "fixed");
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
    assert_eq!(update(OnUpdate::Warn), Ok(Updated::Ignored { warn: true }));
    assert_eq!(update(OnUpdate::Skip), Ok(Updated::Ignored { warn: false }));
    assert_eq!(update(OnUpdate::Stop), Ok(Updated::Stop));
}

mod messages {
    use super::*;

    fn with_prefix() -> Mapping {
        Mapping { message_prefixes: vec!["outbox".into()], ..defaults() }
    }

    fn message(content: &str) -> LogicalMessage<'_> {
        LogicalMessage { transactional: true, lsn: Lsn::new(1), prefix: "outbox", content: content.as_bytes() }
    }

    fn through(mapping: Mapping, message: &LogicalMessage<'_>) -> Result<Outcome<Kept>, RowError> {
        Outbox::new(mapping, Vec::new()).unwrap().message(message, &context(), Kept::of)
    }

    #[track_caller]
    fn kept(mapping: Mapping, content: &str) -> Kept {
        let Outcome::Record(kept) = through(mapping, &message(content)).unwrap() else { panic!("a record is wanted") };
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
        assert_eq!(kept.timestamp_millis, 1_763_716_087_654);
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
        assert_eq!(
            (full.partition, full.timestamp_millis, full.key.as_deref()),
            (Some(3), 5, Some(b"true".as_slice()))
        );
        assert_eq!(full.headers_text(), "id=1 eventType=a h=y");
        assert_eq!(full.value_text(), Some(r#"{"payload":{},"ok":true,"t":"a"}"#));
        let bare = kept(mapping(), r#"{"id":1,"type":"a","payload":{}}"#);
        assert_eq!((bare.partition, bare.timestamp_millis, bare.key.as_deref()), (None, 1_763_716_087_654, None));
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
        assert_eq!(through(with_prefix(), &other), Ok(Outcome::NotPublished));
        assert_eq!(through(defaults(), &message("{}")), Ok(Outcome::NotPublished));
        let outside = LogicalMessage { transactional: false, ..message("{}") };
        let ignored = Outcome::Ignored(Ignored::NonTransactionalMessage);
        assert_eq!(through(with_prefix(), &outside), Ok(ignored));
    }

    proptest! {
        #[test]
        fn no_content_panics(content in r#"[{}\[\]":,a-dui0-9\\ ]{0,40}"#) {
            let outcome = through(with_prefix(), &message(&content));
            prop_assert!(matches!(outcome, Ok(Outcome::Record(_)) | Err(RowError::Bad(_))), "{outcome:?}");
        }
    }
}

mod connect;

/// Every setting at once, so that each column is looked at in each way.
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
        let given = Given { columns, binary };
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

//! What a row becomes, and what becomes nothing.

use std::time::SystemTime;

use walrelay_dev::kafka::shared_kafka;

use crate::lane::{LONG, Lane, OUTBOX, ids, values};

/// Keys, and Java's murmur2 of them.
const MURMUR2: [(&str, i32); 6] = [
    ("21", -973_932_308),
    ("foobar", -790_332_482),
    ("a-little-bit-long-string", -985_981_536),
    ("a-little-bit-longer-string", -1_486_304_829),
    ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
    ("abc", 479_470_107),
];

fn millis() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

fn header(name: &str, value: &str) -> (String, Option<Vec<u8>>) {
    (name.to_owned(), Some(value.as_bytes().to_vec()))
}

/// A table with every default role, and the payload as given; `bytea` beside other types makes the stream binary.
#[track_caller]
fn check_payload(type_name: &str, literal: &str, expected: &[u8]) {
    let table = format!(
        "CREATE TABLE outbox (id uuid, aggregatetype varchar(20), aggregateid bigint, type text, payload {type_name},
                              headers jsonb, created_at timestamptz DEFAULT now(), processed boolean)"
    );
    let lane = Lane::with(&table, "outbox");
    let before = millis();
    lane.sql(&format!(
        "INSERT INTO outbox VALUES ('0192d2c8-5b5c-7c3e-9d3e-0d8f6f3a1b2c', 'order', 17, 'OrderPlaced', {literal},
             '{{\"trace\": \"00-ab\", \"n\": 1.50, \"none\": null, \"list\": [1, \"ä\"]}}'),
         ('0192d2c8-5b5c-7c3e-9d3e-0d8f6f3a1b2d', 'order', NULL, NULL, NULL, NULL)"
    ));
    let committed = millis();
    // Without a flag, the time is that of the sending.
    let at_commit = type_name == "bytea";
    let more: &[&str] = if at_commit { &["--timestamp=commit"] } else { &[] };
    let _relay = lane.streaming(more);
    let mut records = lane.records("order");
    let (first, last) = if at_commit { (before, committed) } else { (committed, millis()) };
    records.sort_by_key(|record| record.header("id").map(str::to_owned));
    assert_eq!(records.len(), 2);
    let (full, empty) = (&records[0], &records[1]);
    assert_eq!(full.topic, lane.topic("order"));
    assert_eq!(full.key.as_deref(), Some(&b"17"[..]));
    assert_eq!(full.value.as_deref(), Some(expected), "{type_name}: {}", full.value_text());
    // jsonb orders members by length, then bytes.
    let headers = [
        header("id", "0192d2c8-5b5c-7c3e-9d3e-0d8f6f3a1b2c"),
        header("eventType", "OrderPlaced"),
        header("n", "1.50"),
        header("list", r#"[1, "ä"]"#),
        ("none".to_owned(), None),
        header("trace", "00-ab"),
    ];
    assert_eq!(full.headers, headers, "{type_name}");
    let timestamp = full.timestamp.unwrap();
    assert!((first..=last).contains(&timestamp), "{timestamp} is not from {first} to {last}");
    assert_eq!((&empty.key, &empty.value), (&None, &None));
    let id = "0192d2c8-5b5c-7c3e-9d3e-0d8f6f3a1b2d";
    assert_eq!(empty.headers, [header("id", id), ("eventType".to_owned(), None)]);
}

#[test]
fn a_jsonb_payload_is_what_postgres_writes() {
    check_payload(
        "jsonb",
        r#"'{"total":  1.50, "b":"ä\u00e9", "a":[1,2]}'"#,
        r#"{"a": [1, 2], "b": "äé", "total": 1.50}"#.as_bytes(),
    );
}

#[test]
fn a_json_payload_is_untouched() {
    let text = r#"{"total":  1.50,  "b":"\u00e9", "a" :[1,2], "a":3}"#;
    check_payload("json", &format!("'{text}'"), text.as_bytes());
}

#[test]
fn a_text_payload_is_untouched() {
    check_payload("text", "E'\"quoted\" \\\\ \\n 🦀 \\t'", "\"quoted\" \\ \n 🦀 \t".as_bytes());
}

#[test]
fn a_bytea_payload_is_raw_bytes() {
    check_payload("bytea", r"'\x00ff5c2278c3'", &[0x00, 0xFF, 0x5C, 0x22, 0x78, 0xC3]);
}

#[test]
fn a_keys_partition_is_the_one_that_java_clients_choose() {
    let lane = Lane::debezium();
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 7, &[]).unwrap();
    let _relay = lane.streaming(&[]);
    for (key, _) in MURMUR2 {
        lane.sql(&format!("INSERT INTO outbox VALUES ('{key}', 'order', '{key}', 't', '1')"));
    }
    let records = lane.records("order");
    for (key, hash) in MURMUR2 {
        let record = records.iter().find(|record| record.key_text() == key).unwrap();
        assert_eq!(record.partition, (hash & 0x7fff_ffff) % 7, "{key}");
    }
}

#[test]
fn what_is_rolled_back_publishes_nothing() {
    let lane = Lane::debezium();
    let _relay = lane.streaming(&[]);
    lane.sql(
        "BEGIN; INSERT INTO outbox VALUES ('whole', 'order', 'k', 't', '1'); ROLLBACK;
         BEGIN;
         INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1');
         SAVEPOINT a;
         INSERT INTO outbox VALUES ('in a', 'order', 'k', 't', '1');
         SAVEPOINT b;
         INSERT INTO outbox VALUES ('in b', 'order', 'k', 't', '1');
         RELEASE b;
         ROLLBACK TO a;
         INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '1');
         SAVEPOINT c;
         INSERT INTO outbox VALUES ('3', 'order', 'k', 't', '1');
         RELEASE c;
         COMMIT;
         BEGIN; SAVEPOINT d; INSERT INTO outbox VALUES ('in d', 'order', 'k', 't', '1'); ROLLBACK TO d; COMMIT;",
    );
    assert_eq!(lane.ids("order"), ["1", "2", "3"]);
}

#[test]
fn updates_deletes_and_truncates_publish_nothing() {
    let lane = Lane::empty();
    lane.sql(OUTBOX);
    lane.sql("ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL");
    lane.sql(&format!("CREATE PUBLICATION {} FOR TABLE outbox", lane.name));
    lane.make_slot();
    let relay = lane.streaming(&[]);
    lane.sql(
        "INSERT INTO outbox SELECT n, 'order', 'k', 't', to_jsonb(repeat('x', 5000)) FROM generate_series(1, 3) AS n;
         UPDATE outbox SET type = 'u';
         UPDATE outbox SET id = 'changed' WHERE id = '3';
         DELETE FROM outbox WHERE id = '2';
         BEGIN;
         INSERT INTO outbox VALUES ('4', 'order', 'k', 't', '1'); DELETE FROM outbox WHERE id = '4';
         COMMIT;
         TRUNCATE outbox;
         INSERT INTO outbox VALUES ('5', 'order', 'k', 't', '1');",
    );
    let records = lane.records("order");
    assert_eq!(ids(&records), ["1", "2", "3", "4", "5"]);
    assert_eq!(records[0].header("eventType"), Some("t"));
    assert!((relay.metric("walrelay_ignored_total").unwrap() - 4.0).abs() < 0.1);
    assert_eq!(relay.log().matches("updates publish nothing").count(), 1, "said once: {}", relay.log());
}

#[test]
fn rows_of_a_key_come_in_the_order_of_commits_and_within_a_transaction_of_rows() {
    let lane = Lane::debezium();
    let _relay = lane.streaming(&[]);
    let (mut one, mut other) = (lane.connect(), lane.connect());
    let insert = |id: &str| format!("INSERT INTO outbox VALUES ('{id}', 'order', 'key', 't', '1')");
    one.batch_execute("BEGIN").unwrap();
    other.batch_execute("BEGIN").unwrap();
    for step in 1..=3 {
        one.batch_execute(&insert(&format!("late {step}"))).unwrap();
        other.batch_execute(&insert(&format!("early {step}"))).unwrap();
    }
    other.batch_execute("COMMIT").unwrap();
    lane.sql(&insert("between"));
    one.batch_execute(&insert("late 4")).unwrap();
    one.batch_execute("COMMIT").unwrap();
    let expected = ["early 1", "early 2", "early 3", "between", "late 1", "late 2", "late 3", "late 4"];
    assert_eq!(lane.ids("order"), expected);
}

#[test]
fn rows_committed_between_the_slots_creation_and_the_start_arrive() {
    let lane = Lane::empty();
    lane.sql(OUTBOX);
    lane.publish("outbox");
    lane.sql("INSERT INTO outbox VALUES ('before', 'order', 'k', 't', '1')");
    lane.make_slot();
    lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', 't', '1' FROM generate_series(1, 50) AS n");
    let _relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES ('51', 'order', 'k', 't', '1')");
    let expected: Vec<String> = (1..=51).map(|n| n.to_string()).collect();
    assert_eq!(lane.ids("order"), expected);
}

#[test]
fn rows_of_other_tables_and_of_tables_not_asked_for_publish_nothing() {
    let tables = format!("{OUTBOX}; CREATE TABLE other (LIKE outbox); CREATE TABLE unpublished (LIKE outbox)");
    let lane = Lane::with(&tables, "outbox, other");
    let _relay = lane.streaming(&["--table", "outbox"]);
    for table in ["other", "unpublished", "outbox"] {
        lane.sql(&format!("INSERT INTO {table} VALUES ('{table}', 'order', 'k', 't', '1')"));
    }
    assert_eq!(lane.ids("order"), ["outbox"]);
}

#[test]
fn a_topic_is_made_of_columns_with_filters() {
    let lane = Lane::debezium();
    let topic = format!("{}.{{route|kebab}}.{{type|lower}}", lane.name);
    let _relay = lane.streaming(&["--topic", &topic]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'Order_Line Item', 'k', 'PLACED', '1')");
    assert_eq!(lane.ids("order-line-item.placed"), ["1"]);
}

#[test]
fn flags_name_columns_and_add_headers() {
    let lane = Lane::with(
        "CREATE TABLE outbox (nr serial, uid uuid, who text, what text, \"Body\" text, meta json, extra bytea, flag boolean)",
        "outbox",
    );
    let columns = [
        "--id-column=uid",
        "--key-column=who",
        "--payload-column=Body",
        "--type-column=what",
        "--route-column=what",
        "--headers-column=meta",
        "--header=nr=nr",
        "--header=raw=extra",
        "--header=is=flag",
        "--position-header",
    ];
    let _relay = lane.streaming(&columns);
    lane.sql(
        "INSERT INTO outbox (uid, who, what, \"Body\", meta, extra, flag) VALUES
         ('0192d2c8-5b5c-7c3e-9d3e-0d8f6f3a1b2c', 'me', 'paid', 'body', '{\"b\": \"1\", \"a\": true}', '\\xff00', true)",
    );
    let records = lane.records("paid");
    let record = &records[0];
    assert_eq!((record.key_text(), record.value_text()), ("me".to_owned(), "body".to_owned()));
    let (position, rest) = record.headers.split_last().unwrap();
    let expected = [
        header("id", "0192d2c8-5b5c-7c3e-9d3e-0d8f6f3a1b2c"),
        header("eventType", "paid"),
        header("b", "1"),
        header("a", "true"),
        header("nr", "1"),
        ("raw".to_owned(), Some(vec![0xFF, 0x00])),
        header("is", "true"),
    ];
    assert_eq!(rest, expected);
    assert_eq!(position.0, "walrelay-position");
    assert!(record.header("walrelay-position").unwrap().ends_with(":0"), "{position:?}");
}

#[test]
fn positions_number_the_rows_of_a_transaction_and_rise_with_the_commits() {
    let lane = Lane::debezium();
    let _relay = lane.streaming(&["--position-header"]);
    for transaction in ["a", "b"] {
        let rows = "SELECT '{}' || n, 'order', 'k', 't', '1' FROM generate_series(0, 2) AS n";
        lane.sql(&format!("INSERT INTO outbox {}", rows.replace("{}", transaction)));
    }
    let records = lane.records("order");
    let positions: Vec<(String, String)> = records
        .iter()
        .map(|record| record.header("walrelay-position").unwrap().split_once(':').unwrap())
        .map(|(lsn, row)| (lsn.to_owned(), row.to_owned()))
        .collect();
    let rows: Vec<&str> = positions.iter().map(|(_, row)| row.as_str()).collect();
    assert_eq!(rows, ["0", "1", "2", "0", "1", "2"]);
    assert!(positions[..3].iter().all(|(lsn, _)| *lsn == positions[0].0));
    let mut client = lane.connect();
    let sql = "SELECT $1::text::pg_lsn < $2::text::pg_lsn";
    assert!(client.query_one(sql, &[&positions[0].0, &positions[3].0]).unwrap().get::<_, bool>(0));
}

#[test]
fn a_large_row_goes_through_whole_also_above_what_may_be_in_flight() {
    let lane = Lane::with("CREATE TABLE outbox (id int, type text, payload text)", "outbox");
    let large = "8000000";
    let settings = [("max.message.bytes", large)];
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &settings).unwrap();
    let _relay = lane.streaming(&["--max-in-flight=64KiB", "-X", "message.max.bytes=8000000"]);
    lane.sql("INSERT INTO outbox SELECT n, 'order', repeat('x', 900000) FROM generate_series(1, 4) AS n");
    let lengths: Vec<usize> = values(&lane.records("order")).iter().map(String::len).collect();
    assert_eq!(lengths, [900_000; 4]);
}

#[test]
fn a_value_begins_with_its_schemas_id_and_a_column_without_one_is_a_bad_row() {
    let table =
        "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, payload bytea, schema bigint)";
    let lane = Lane::with(table, "outbox");
    lane.sql(
        r"INSERT INTO outbox VALUES ('a', 'order', 'k', 't', '\x00ff', 258), ('b', 'order', 'k', 't', NULL, NULL),
          ('c', 'order', 'k', 't', '\x01', NULL), ('d', 'order', 'k', 't', '\x02', 2147483647)",
    );
    let mut relay = lane.relay(&["--schema-id", "schema", "--on-bad-row", "dead-letter"]);
    let records = lane.records("order");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let values: Vec<Option<&[u8]>> = records.iter().map(|record| record.value.as_deref()).collect();
    assert_eq!(values, [Some(&[0, 0, 0, 1, 2, 0, 255][..]), None, Some(&[0, 127, 255, 255, 255, 2])]);
    let bad = lane.records_now("dead-letter");
    assert!(bad[0].header("walrelay-error").unwrap().contains("is not a schema id"), "{bad:?}");
}

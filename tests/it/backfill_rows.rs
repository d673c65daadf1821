//! `backfill` of tables and rows of every shape: keys of several columns and none, partitions, bytes, rows that go meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::backfill::{arguments, assert_once, counted, fill, filled, numbers, rows, with_old, with_old_rows};
use crate::lane::{LONG, Lane, OUTBOX, binary, values};

#[test]
fn composite_keys_are_paged_through_and_rows_come_in_the_order_that_is_asked_for() {
    let table = format!(
        "CREATE TABLE outbox (tenant text, id uuid DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, \
           payload text, at int, PRIMARY KEY (tenant, id));
         INSERT INTO outbox (tenant, aggregatetype, aggregateid, payload, at)
         SELECT 't''' || n % 3, 'order', 'k', n::text, CASE WHEN n % 4 > 0 THEN (n * 37) % 100 END FROM generate_series(1, {}) n",
        400
    );
    let stored = |lane: &Lane| -> Vec<String> { values(&lane.records_now("order")) };
    let lane = with_old(&table);
    fill(&lane, &["--chunk", "3"]);
    let mut found: Vec<u32> = stored(&lane).iter().map(|value| value.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, (1..=400).collect::<Vec<_>>());
    let (code, text) = filled(&lane, &["--order-by", "at", "--again"]);
    assert!(code == 64 && text.contains("needs the snapshot of a new slot"), "{text}");
    let lane = Lane::empty();
    lane.sql(&table);
    fill(&lane, &["--setup", "--table", "outbox", "--order-by", "at", "--chunk", "3"]);
    let expected: Vec<String> = lane
        .connect()
        .query("SELECT payload FROM outbox ORDER BY at, tenant, id", &[])
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(stored(&lane), expected);
    let text = fill(&lane, &["--order-by", "at"]);
    assert!(text.contains("nothing to do: its rows were published already"), "{text}");
}

#[test]
fn a_table_without_a_key_is_read_by_place_under_the_snapshot_and_not_without_it() {
    let table = format!("{}; {}", OUTBOX.replace(" PRIMARY KEY", ""), rows(1, 500));
    let lane = with_old(&table);
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("has no primary key"), "{text}");
    let lane = Lane::empty();
    lane.sql(&table);
    let (code, text) = filled(&lane, &["--setup", "--table", "outbox", "--order-by", "aggregateid"]);
    assert!(code == 64 && text.contains("without a key"), "{text}");
    let lane = Lane::empty();
    lane.sql(&table);
    fill(&lane, &["--setup", "--table", "outbox"]);
    let text = fill(&lane, &[]);
    assert!(text.contains("nothing to do: its rows were published already"), "{text}");
    assert_once(&lane, &numbers(1, 500));
}

#[test]
#[ignore = "slow"]
fn partitions_are_read_one_after_the_other_or_as_the_table_that_they_are_of() {
    let table = "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, payload text, at int) PARTITION BY RANGE (at); \
         CREATE TABLE part_1 PARTITION OF outbox (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10);
         CREATE TABLE part_2 PARTITION OF outbox FOR VALUES FROM (10) TO (20);
         CREATE SCHEMA other; CREATE TABLE other.part_3 PARTITION OF outbox DEFAULT;
         INSERT INTO outbox SELECT n, 'order', 'k', n::text, n % 30 FROM generate_series(1, 600) AS n";
    for root in [false, true] {
        let lane = Lane::empty();
        lane.sql(table);
        let publication = format!(
            "CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = {root})",
            lane.name
        );
        lane.sql(&publication);
        fill(&lane, &["--setup", "--table", "outbox", "--chunk", "11"]);
        let relay = lane.streaming(&[]);
        lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', n::text, n % 30 FROM generate_series(601, 630) AS n");
        lane.wait_confirmed();
        drop(relay);
        assert_once(&lane, &numbers(1, 630));
    }
}

#[test]
fn bytes_and_large_values_arrive_as_they_are() {
    let lane = with_old(
        "CREATE TABLE outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload bytea);
         INSERT INTO outbox VALUES (1, 'order', 'k', 't', '\\x00ff5c27'), (2, 'order', 'k', 't', NULL), (3, 'order', 'k', 't', '');
         INSERT INTO outbox SELECT 4, 'order', 'k', 't', decode(string_agg(md5(n::text), ''), 'hex') FROM generate_series(1, 40000) n",
    );
    fill(&lane, &[]);
    let large: Vec<u8> = lane.connect().query_one("SELECT payload FROM outbox WHERE id = 4", &[]).unwrap().get(0);
    assert_eq!(large.len(), 640_000);
    // By id: a broker that is slow to answer may make a row come twice.
    let values = || {
        let records = lane.records_now("order").into_iter();
        records.map(|record| (record.header("id").unwrap().to_owned(), record.value)).collect::<BTreeMap<_, _>>()
    };
    wait_until(LONG, "all four", || Ok(values().len() == 4)).unwrap();
    let expected = [Some(b"\0\xff\\'".to_vec()), None, Some(Vec::new()), Some(large)];
    let found: Vec<Option<Vec<u8>>> = values().into_values().collect();
    assert!(found == expected, "{:?}", found.iter().map(|value| value.as_ref().map(Vec::len)).collect::<Vec<_>>());
}

#[test]
#[ignore = "slow"]
fn rows_deleted_meanwhile_are_no_error_and_a_condition_leaves_rows_out() {
    let lane = with_old_rows(3000);
    let text = fill(&lane, &["--where", "id::int > 1000 -- newer ones", "--dry-run"]);
    assert!(text.contains("public.outbox: 2,000 rows would be published; nothing was"), "{text}");
    assert_eq!(lane.records_now("order").len(), 0);
    let more = ["--where", "id::int > 1000", "--rate", "300"];
    let mut filling = Relay::start(&binary(), &arguments(&lane, &more), &[] as &[(&str, &str)]).unwrap();
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    lane.sql("DELETE FROM outbox WHERE id::int % 2 = 0");
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    let found: BTreeSet<u32> = counted(&lane).keys().map(|id| id.parse().unwrap()).collect();
    assert!((1001..=3000).filter(|id| id % 2 == 1).all(|id| found.contains(&id)), "{found:?}");
    assert!(found.iter().all(|id| *id > 1000) && found.len() < 2000, "{}", found.len());
    let (code, text) = filled(&lane, &["--where", "nonsense", "--again"]);
    assert!(code == 2 && text.contains("nonsense"), "{text}");
}

/// Debezium's outbox router with values of several types as headers.
const DEBEZIUM: &str = "debezium.sink.type=kafka
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.topic.prefix=app
debezium.source.publication.autocreate.mode=disabled
debezium.source.snapshot.mode=no_data
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.table.fields.additional.placement=type:header:eventType, h:header, d:header, b:header, n:header
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.format.key=simplestring
debezium.format.value=simplestring
debezium.format.header=clientprovided
debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter
";

#[test]
fn in_debeziums_form_an_existing_row_is_the_record_that_the_relay_makes_of_its_twin() {
    let row = "INSERT INTO outbox SELECT n, 'order', 'k' || n, 't', '{\"a\": 1.50}', '2026-01-02 03:04:05.678901+01', \
               '2026-01-02', '\\x00ff', 12.50 FROM generate_series(%, % + 4) AS n";
    let lane = with_old(&format!(
        "CREATE TABLE outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb, h timestamptz, \
         d date, b bytea, n numeric(6, 2)); {}",
        row.replace('%', "1")
    ));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("application.properties");
    std::fs::write(&file, DEBEZIUM).unwrap();
    let more = ["--from-debezium", file.to_str().unwrap(), "--accept-differences"];
    let _relay = lane.streaming(&more);
    lane.sql(&row.replace('%', "101"));
    fill(&lane, &more);
    let records = lane.records("order");
    let form = |id: u32| {
        let record = records.iter().find(|record| record.header("id") == Some(&id.to_string())).unwrap();
        let headers: Vec<_> = record.headers.iter().filter(|(name, _)| name != "id").cloned().collect();
        (record.value.clone(), headers)
    };
    // Those that came after the slot come twice.
    assert_eq!(records.len(), 15);
    assert!((1..=5).all(|id| form(id) == form(id + 100)), "{records:?}");
    assert!(form(1).1.iter().any(|(name, value)| name == "h" && value.is_some()), "{records:?}");
}

#[test]
fn topics_that_delete_old_records_by_their_times_are_named_before_the_first_record() {
    let lane = with_old(&format!(
        "{}; {}; ALTER TABLE outbox ADD COLUMN at timestamptz DEFAULT now(); UPDATE outbox SET at = now() - interval '3 days' WHERE id = '7'",
        OUTBOX,
        rows(1, 20)
    ));
    let topic = lane.topic("order");
    shared_kafka().unwrap().create_topic(&topic, 1, &[("retention.ms", "86400000")]).unwrap();
    let warned = |text: &str| {
        let at = |said: &str| text.find(said);
        let warning = at(&format!(
            "{topic} keeps records for 24 h from the rows' own times (--timestamp), and the oldest row is 3 d old"
        ));
        warning.is_some_and(|warning| warning < at("backfill begins").unwrap() && text.contains("retention.ms="))
    };
    let text = fill(&lane, &["--timestamp", "at"]);
    assert!(warned(&text), "{text}");
    // Only the row that is older is, and others are not asked about.
    for flags in [&["--timestamp", "at", "--where", "id <> '7'"][..], &["--timestamp", "commit"], &[]] {
        let text = fill(&lane, &[flags, &["--again"]].concat());
        assert!(!text.contains("own times"), "{flags:?}: {text}");
    }
}

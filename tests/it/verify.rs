//! `walrelay verify`: no alarm beside a healthy relay, and each fault put in by hand is found and named.

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use rustix::process::Signal;
use serde_json::Value;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Postgres, default_major, shared_postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::{self, Relay};

use crate::lane::{LONG, Lane, binary, fresh, hint, wait_events, wait_log};
use crate::own;

/// An outbox whose rows have their time, and may ask for a partition.
const TABLE: &str = "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text, at bigint)";

/// Its records have the row's time, so that they can be made by hand.
const BY_HAND: &str = "--timestamp=at";

/// Starts a comparison, and waits until the window has begun.
#[track_caller]
fn comparing(lane: &Lane, more: &[&str]) -> Relay {
    let comparison = begin(lane, more);
    wait_log(&comparison, "comparing rows with records");
    comparison
}

pub(crate) fn begin(lane: &Lane, more: &[&str]) -> Relay {
    let mut arguments = lane.arguments(&[&["--json", "--follow=0"], more].concat());
    "verify".clone_into(&mut arguments[0]);
    Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap()
}

/// Ends the window: the exit code, the report, and what was said on stderr.
#[track_caller]
pub(crate) fn verdict(comparison: &mut Relay) -> (i32, Value, String) {
    let code = comparison.terminate(LONG).unwrap_or_else(|error| panic!("{error}: {}", comparison.log())).code;
    let (out, log) = (comparison.stdout(), comparison.log());
    assert!(!log.contains("panicked"), "{log}");
    let report = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{log}"));
    (code, report, log)
}

/// The counts of a report, as `right 3, repeated 1`. Those that are 0 are left out, and so is `repeated` with `but_repeated`.
pub(crate) fn counts(report: &Value) -> String {
    let names = [
        "rows",
        "right",
        "missing",
        "altered",
        "out_of_order",
        "stale_keys",
        "other",
        "repeated",
        "dead_lettered",
        "skipped",
        "not_judged",
    ];
    let count = |name: &&str| report[name].as_u64().unwrap();
    let shown = names.iter().filter(|name| count(name) > 0).map(|name| format!("{name} {}", count(name)));
    shown.collect::<Vec<_>>().join(", ")
}

/// Verdict, id, position of each fault, and why.
pub(crate) fn faults(report: &Value) -> Vec<(String, String, bool, String)> {
    let text = |fault: &Value, name: &str| fault[name].as_str().unwrap_or_default().to_owned();
    let one =
        |fault: &Value| (text(fault, "verdict"), text(fault, "id"), !fault["position"].is_null(), text(fault, "why"));
    report["faults"].as_array().unwrap().iter().map(one).collect()
}

/// What there is on the servers beside the lane's own: slots of the database, topics, consumer groups.
pub(crate) fn traces(lane: &Lane) -> (i64, Vec<String>, usize) {
    let sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    let slots = lane.connect().query_one(sql, &[]).unwrap().get(0);
    let topics = shared_kafka().unwrap().topics().unwrap();
    let topics = topics.into_iter().filter(|name| name.starts_with(&lane.name)).collect();
    let consumer: rdkafka::consumer::BaseConsumer = lane.client.create().unwrap();
    let groups = rdkafka::consumer::Consumer::client(&consumer).fetch_group_list(None, LONG).unwrap();
    let ours = groups.groups().iter().filter(|group| group.name().contains("walrelay")).count();
    (slots, topics, ours)
}

#[test]
fn a_busy_relay_that_is_killed_and_started_again_gives_no_alarm_and_nothing_is_left_behind() {
    let lane = Lane::debezium();
    lane.sql("INSERT INTO outbox SELECT 'old ' || n, 'order', 'k', 't', '0' FROM generate_series(1, 50) AS n");
    let mut relay = lane.streaming(&[]);
    lane.wait_confirmed();
    let before = traces(&lane);
    let mut comparison = comparing(&lane, &["--exclusive"]);
    let mut client = lane.connect();
    let mut write = |from: u32, to: u32| {
        for row in from..to {
            let sql = format!(
                "INSERT INTO outbox SELECT 'r{row} ' || n, CASE n % 3 WHEN 0 THEN 'order' ELSE 'invoice' END, 'k' || n % 7, 't',
                        jsonb_build_object('row', n) FROM generate_series(1, 20) AS n"
            );
            client.batch_execute(&sql).unwrap();
        }
        client.batch_execute("BEGIN; INSERT INTO outbox VALUES ('never', 'order', 'k', 't', '1'); ROLLBACK").unwrap();
        let in_and_out = format!(
            "BEGIN; INSERT INTO outbox VALUES ('gone{from}', 'gone', NULL, NULL, NULL); DELETE FROM outbox; COMMIT"
        );
        client.batch_execute(&in_and_out).unwrap();
    };
    write(0, 50);
    relay.kill9().unwrap();
    write(50, 100);
    relay.start_again().unwrap();
    write(100, 150);
    wait_events(&relay, 1000);
    relay.kill9().unwrap();
    relay.start_again().unwrap();
    write(150, 200);
    // Some rows are still under way when the window ends.
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!(code, 0, "{report:#}{log}");
    assert_eq!((&report["rows"], &report["right"]), (&4004.into(), &4004.into()), "{report:#}");
    assert!(report["verified"] == true && report["hint"].is_null() && report["reasons"] == Value::Array(Vec::new()));
    let after = traces(&lane);
    assert_eq!((after.0, after.2), (before.0, before.2));
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// Publishes a record by hand: the route, the id, the key, the value, the time, and the partition if it is not the key's.
pub(crate) struct ByHand {
    producer: BaseProducer,
    lane: String,
    /// The time of its records, in milliseconds since 1970.
    pub(crate) millis: i64,
}

impl ByHand {
    pub(crate) fn new(lane: &Lane) -> Self {
        let mut client = lane.client.clone();
        client.set("partitioner", "murmur2_random").set("acks", "all");
        Self { producer: client.create().unwrap(), lane: lane.name.clone(), millis: 7 }
    }

    pub(crate) fn send(&self, id: &str, key: &str, value: &str, event_type: &str, partition: Option<i32>) {
        let topic = format!("{}.order", self.lane);
        let headers = OwnedHeaders::new()
            .insert(Header { key: "id", value: Some(id) })
            .insert(Header { key: "eventType", value: Some(event_type) });
        let record = BaseRecord::to(&topic).key(key).payload(value).headers(headers).timestamp(self.millis);
        let record = match partition {
            Some(partition) => record.partition(partition),
            None => record,
        };
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.flush(LONG).unwrap();
    }

    /// As the relay would.
    pub(crate) fn rightly(&self, id: &str, key: &str) {
        self.send(id, key, &format!("payload {id}"), "t", None);
    }
}

/// Moves the slot past everything that is committed, as if a relay had published it.
pub(crate) fn advance(lane: &Lane) {
    let sql = format!("SELECT pg_replication_slot_advance('{}', pg_current_wal_lsn())", lane.name);
    lane.sql(&sql);
}

fn by_hand() -> (Lane, ByHand) {
    let lane = Lane::with(TABLE, "outbox");
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 4, &[]).unwrap();
    let hand = ByHand::new(&lane);
    (lane, hand)
}

fn insert(lane: &Lane, rows: &[(&str, &str)]) {
    for (id, key) in rows {
        lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', '{key}', 't', 'payload {id}', 7)"));
    }
}

#[test]
fn a_row_of_a_topic_that_is_new_when_the_window_ends_has_its_record() {
    let lane = Lane::with(TABLE, "outbox");
    let _relay = lane.streaming(&[BY_HAND]);
    let mut comparison = comparing(&lane, &[BY_HAND]);
    // Its look at the topics that is due when it goes on comes before the row.
    comparison.signal(Signal::STOP).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'fresh', 'k', 't', 'payload', 7)");
    lane.wait_confirmed();
    comparison.signal(Signal::CONT).unwrap();
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (0, "rows 1, right 1"), "{report:#}{log}");
}

#[test]
fn each_fault_put_in_by_hand_is_found_and_named() {
    let (lane, hand) = by_hand();
    let mut comparison = comparing(&lane, &[BY_HAND, "--exclusive"]);
    insert(&lane, &[("right", "a"), ("missing", "a"), ("value", "b"), ("header", "c"), ("key", "d"), ("part", "e")]);
    insert(&lane, &[("first", "f"), ("second", "f"), ("third", "f"), ("old", "g"), ("new", "g"), ("late", "h")]);
    hand.rightly("right", "a");
    hand.send("value", "b", "payload Value", "t", None);
    hand.send("header", "c", "payload header", "T", None);
    hand.send("key", "D", "payload key", "t", None);
    let partition = |key: &str| {
        let records = walrelay_dev::consume::read_to_end(&lane.client, &[&lane.topic("order")]).unwrap();
        records.iter().find(|record| record.key_text() == key).unwrap().partition
    };
    hand.send("probe", "e", "no row has this", "t", None);
    hand.send("part", "e", "payload part", "t", Some((partition("e") + 1) % 4));
    for id in ["second", "first", "third"] {
        hand.rightly(id, "f");
    }
    for id in ["old", "new", "old"] {
        hand.rightly(id, "g");
    }
    for id in ["late", "late"] {
        hand.rightly(id, "h");
    }
    advance(&lane);
    let (code, report, log) = verdict(&mut comparison);
    let expected = "rows 12, right 7, missing 1, altered 4, out_of_order 1, stale_keys 1, other 1, repeated 2";
    assert_eq!((code, counts(&report).as_str()), (2, expected), "{report:#}{log}");
    let found = faults(&report);
    let has = |verdict: &str, id: &str, why: &str| {
        let fits =
            |fault: &&(String, String, bool, String)| fault.0 == verdict && fault.1 == id && fault.3.contains(why);
        assert!(
            found.iter().find(fits).is_some_and(|fault| fault.2 || verdict == "other"),
            "{verdict} {id}: {found:?}"
        );
    };
    has("missing", "missing", "no record");
    has("altered", "value", "value: 13 bytes, expected 13 bytes, different from byte 8 on");
    has("altered", "header", "header eventType: 1 bytes, expected 1 bytes");
    has("altered", "key", "key: 1 bytes, expected 1 bytes");
    has("altered", "part", "partition: ");
    has("out_of_order", "second", "comes before that of an earlier row");
    has("stale", "new", "the last record of its key is an earlier row's");
    has("other", "probe", "no row");
    assert_eq!(found.len(), 8);
    assert!(!report.to_string().contains("payload Value") && report["verified"] == false);
    assert!(
        log.contains("1 of 12 rows has no record; 4 of 12 rows have altered records; keys whose records swapped: 1"),
        "{log}"
    );
    assert!(hint(&log).contains("docs/operations/republish.md") && report["hint"].as_str() == Some(&hint(&log)));
    let table = &report["faults"][0]["table"];
    assert_eq!(table, "public.outbox");
}

#[test]
fn differences_show_values_only_if_asked_for_and_the_text_names_the_first_ones() {
    let (lane, hand) = by_hand();
    let mut arguments = lane.arguments(&[BY_HAND, "--follow=0", "--show-values", "--show=2", "--table=outbox"]);
    "verify".clone_into(&mut arguments[0]);
    let mut comparison = Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    wait_log(&comparison, "comparing rows with records");
    insert(&lane, &[("1", "a"), ("2", "a"), ("3", "a"), ("4", "a")]);
    (1..=3).for_each(|id| hand.send(&id.to_string(), "a", "secret", "t", None));
    advance(&lane);
    assert_eq!(comparison.terminate(LONG).unwrap().code, 2);
    let (out, log) = (comparison.stdout(), comparison.log());
    assert!(out.starts_with("verified public.outbox, 0/") && out.contains("1 topic of 127.0.0.1:"), "{out}");
    assert!(
        out.contains("altered: id 1, public.outbox 0/") && out.contains("value: secret, expected payload 1"),
        "{out}"
    );
    assert!(
        out.contains("and 2 more (--show N shows more)") && out.contains("  missing                1"),
        "{out}{log}"
    );
    // Other verdicts do not take its place.
    assert!(out.contains("missing: id 4, public.outbox 0/") && !out.contains("altered: id 2, "), "{out}");
}

#[test]
fn what_the_relay_has_not_confirmed_is_not_judged_and_what_nobody_wrote_is_not_right() {
    let (lane, hand) = by_hand();
    let mut comparison = comparing(&lane, &[BY_HAND, "--wait=1s"]);
    insert(&lane, &[("1", "a"), ("2", "a")]);
    hand.rightly("1", "a");
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (1, "rows 2, right 1, not_judged 1"), "{report:#}{log}");
    let reason = report["reasons"][0].as_str().unwrap();
    assert!(reason.contains("has not confirmed") && reason.contains(&lane.name), "{reason}");

    let mut comparison = comparing(&lane, &[BY_HAND]);
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (1, ""), "{report:#}{log}");
    assert!(log.contains("no row was committed in this time") && report["verified"] == false, "{log}");
}

#[test]
fn rows_that_could_not_be_published_are_right_in_the_dead_letter_topic_or_noted_as_skipped() {
    for (action, expected) in
        [("dead-letter", "rows 4, right 2, dead_lettered 2"), ("skip", "rows 4, right 2, skipped 2")]
    {
        let lane = Lane::with(TABLE, "outbox");
        let kafka = shared_kafka().unwrap();
        kafka.create_topic(&lane.topic("order"), 1, &[("max.message.bytes", "20000")]).unwrap();
        kafka.create_topic(&lane.topic("dead-letter"), 1, &[]).unwrap();
        let relay = lane.streaming(&[&format!("--on-bad-row={action}")]);
        let mut comparison = comparing(&lane, &[&format!("--on-bad-row={action}")]);
        // One is bad by its columns, and one by its size, which only the broker knows.
        lane.sql(
            "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', 'x', 7), ('2', 'no topic', 'k', 't', 'x', 7),
                    ('3', 'order', 'k', 't', repeat('x', 25000), 7), ('4', 'order', 'k', 't', 'x', 7)",
        );
        lane.wait_confirmed();
        let (code, report, log) = verdict(&mut comparison);
        assert_eq!((code, counts(&report).as_str()), (0, expected), "{action}: {report:#}{log}{}", relay.log());
    }
}

/// Does something to Kafka while the comparison is frozen, so that it has not read the records of its rows.
fn unseen(lane: &Lane, comparison: &mut Relay, change: impl FnOnce()) {
    comparison.signal(Signal::STOP).unwrap();
    // The question that is under way is answered with the first record that comes. What comes later is not asked for.
    insert(lane, &[("answered", "a")]);
    lane.wait_confirmed();
    insert(lane, &[("1", "a"), ("2", "b"), ("3", "c")]);
    lane.wait_confirmed();
    change();
    comparison.signal(Signal::CONT).unwrap();
}

#[test]
fn records_that_kafka_deleted_before_they_were_read_are_not_judged() {
    let (lane, hand) = by_hand();
    let _relay = lane.streaming(&[BY_HAND]);
    let mut comparison = comparing(&lane, &[BY_HAND]);
    // The reader has begun.
    insert(&lane, &[("0", "a")]);
    let topic = lane.topic("order");
    unseen(&lane, &mut comparison, || {
        let admin: AdminClient<DefaultClientContext> = lane.client.create().unwrap();
        let mut all = TopicPartitionList::new();
        (0..4).for_each(|partition| all.add_partition_offset(&topic, partition, Offset::End).unwrap());
        let deleted = admin.delete_records(&all, &AdminOptions::new());
        futures_executor::block_on(deleted).unwrap();
    });
    // What comes behind them is read.
    insert(&lane, &[("4", "a")]);
    drop(hand);
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!(code, 1, "{report:#}{log}");
    assert!(report["not_judged"].as_u64().unwrap() >= 3 && report["missing"] == 0, "{report:#}");
    let reason = report["reasons"][0].as_str().unwrap();
    assert!(reason.contains("deleted records") && reason.contains(&topic), "{reason}");
}

#[test]
fn a_topic_that_is_deleted_in_the_window_is_not_judged() {
    let (lane, _) = by_hand();
    let mut relay = lane.streaming(&[BY_HAND]);
    let mut comparison = comparing(&lane, &[BY_HAND, "--wait=5s"]);
    insert(&lane, &[("0", "a")]);
    lane.wait_confirmed();
    unseen(&lane, &mut comparison, || {
        relay.terminate(LONG).unwrap();
        shared_kafka().unwrap().delete_topics(&[&lane.topic("order")]).unwrap();
    });
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, &report["missing"]), (1, &0.into()), "{report:#}{log}");
    assert!(report["not_judged"].as_u64().unwrap() >= 3, "{report:#}");
}

#[test]
fn a_compacted_topic_may_have_lost_a_record_and_is_not_judged() {
    let lane = Lane::with(TABLE, "outbox");
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &[("cleanup.policy", "compact")]).unwrap();
    let hand = ByHand::new(&lane);
    let mut comparison = comparing(&lane, &[BY_HAND]);
    insert(&lane, &[("1", "a"), ("2", "a")]);
    hand.rightly("2", "a");
    advance(&lane);
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (1, "rows 2, right 1, not_judged 1"), "{report:#}{log}");
    assert!(report["reasons"][0].as_str().unwrap().contains("compacted"), "{report:#}");
}

#[test]
fn exactly_once_is_right_through_a_kill_and_a_repeat_is_an_error() {
    let lane = Lane::debezium();
    let mut relay = lane.streaming(&["--delivery=exactly-once"]);
    let mut comparison = comparing(&lane, &["--delivery=exactly-once"]);
    for round in 0..3 {
        for row in 0..30 {
            lane.sql(&format!("INSERT INTO outbox SELECT '{round} {row} ' || n, 'order', 'k' || n % 5, 't', '1' FROM generate_series(1, 20) AS n"));
        }
        relay.kill9().unwrap();
        relay.start_again().unwrap();
    }
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (0, "rows 1800, right 1800"), "{report:#}{log}{}", relay.log());

    let mut comparison = comparing(&lane, &["--delivery=exactly-once"]);
    lane.sql("INSERT INTO outbox VALUES ('twice', 'order', 'k', 't', '1')");
    lane.wait_confirmed();
    let again = lane.records_now("order").into_iter().find(|record| record.header("id") == Some("twice")).unwrap();
    let headers = again.headers.iter().fold(OwnedHeaders::new(), |headers, (name, value)| {
        headers.insert(Header { key: name, value: value.as_ref() })
    });
    let producer: BaseProducer = lane.client.create().unwrap();
    let (topic, key, value) = (again.topic.as_str(), again.key.unwrap(), again.value.unwrap());
    let record = BaseRecord::to(topic).key(&key).payload(&value).headers(headers).partition(again.partition);
    producer.send(record.timestamp(again.timestamp.unwrap())).map_err(|(error, _)| error).unwrap();
    producer.flush(LONG).unwrap();
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (2, "rows 1, right 1, repeated 1"), "{report:#}{log}");
    assert_eq!(report["faults"][0]["id"], "twice");
}

#[test]
fn an_open_transaction_of_another_producer_hides_records_and_they_are_not_judged() {
    let (lane, hand) = by_hand();
    let mut comparison = comparing(&lane, &[BY_HAND, "--wait=3s"]);
    insert(&lane, &[("1", "a")]);
    let mut client = lane.client.clone();
    client.set("transactional.id", fresh("open"));
    let stranger: BaseProducer = client.create().unwrap();
    stranger.init_transactions(LONG).unwrap();
    stranger.begin_transaction().unwrap();
    let topic = lane.topic("order");
    for partition in 0..4 {
        stranger
            .send(BaseRecord::to(&topic).key("k").payload("hidden").partition(partition))
            .map_err(|(error, _)| error)
            .unwrap();
    }
    stranger.flush(LONG).unwrap();
    hand.rightly("1", "a");
    advance(&lane);
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (1, "rows 1, not_judged 1"), "{report:#}{log}");
    assert!(report["reasons"][0].as_str().unwrap().contains("transaction"), "{report:#}");
    stranger.abort_transaction(LONG).unwrap();
}

#[test]
fn a_broken_connection_ends_the_window_and_nothing_is_said_about_its_rows() {
    let (lane, _) = by_hand();
    let mut comparison = comparing(&lane, &[BY_HAND]);
    insert(&lane, &[("1", "a")]);
    lane.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name LIKE 'walrelay_verify%' AND database = current_database()");
    let code = comparison.wait_exit(LONG).unwrap();
    let log = comparison.log();
    assert!(code == 1 && log.contains("the comparison could not be finished"), "{code}: {log}");
    assert_eq!(comparison.stdout(), "");
}

#[test]
fn while_it_waits_for_an_old_transaction_it_says_so_and_ends_on_request() {
    let (lane, _) = by_hand();
    let mut other = lane.connect();
    let mut open = other.transaction().unwrap();
    open.batch_execute("INSERT INTO outbox VALUES ('0', 'order', 'k', 't', 'x', 7)").unwrap();
    let mut comparison = begin(&lane, &[BY_HAND]);
    wait_log(&comparison, "the slot can be created once the transaction of");
    assert_eq!(comparison.terminate(LONG).unwrap().code, 1, "{}", comparison.log());
    assert!(comparison.log().contains("stopped before it was done"));
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    wait_until(LONG, "the temporary slot to go", || Ok(lane.connect().query_one(slots, &[])?.get::<_, i64>(0) == 1))
        .unwrap();
}

#[test]
fn what_cannot_be_compared_is_said_before_anything_is_read() {
    let lane = Lane::empty();
    let run = |more: &[&str]| {
        let mut arguments = lane.arguments(more);
        "verify".clone_into(&mut arguments[0]);
        let output = relay::run(&binary(), &arguments).unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    lane.sql(crate::lane::OUTBOX);
    lane.publish("outbox");
    let (code, said) = run(&[]);
    assert!(code == 2 && said.contains("does not exist"), "{said}");
    let (code, said) = run(&["--exclusive", "--topic={route}"]);
    assert!(code == 64 && said.contains("begins with a fixed text"), "{said}");
    let output = relay::run(&binary(), &["verify", "--source", &lane.source, "--to", "stdout://"]).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(64) && said.contains("cannot be read"), "{said}");
}

/// Debezium's outbox router, with a header of its own and headers that its process adds.
const DEBEZIUM: &str = "debezium.sink.type=kafka
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.topic.prefix=app
debezium.source.publication.autocreate.mode=disabled
debezium.source.snapshot.mode=no_data
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.table.fields.additional.placement=type:header:eventType,region:header
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.format.key=simplestring
debezium.format.value=simplestring
debezium.format.header=clientprovided
debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter
";

/// The records that Debezium writes are made here by a relay of the same files; `make conformance-debezium` compares those of both.
#[test]
fn records_in_debeziums_form_are_right_and_each_setting_that_alters_them_is_found() {
    let lane = Lane::with(
        "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text, region text, other text)",
        "outbox",
    );
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        format!("--from-debezium={}", path.display())
    };
    let router = |option: &str| format!("{DEBEZIUM}debezium.transforms.outbox.{option}\n");
    let right = file("right.properties", DEBEZIUM);
    let _relay = lane.streaming(&[&right, "--accept-differences"]);
    let altered = [
        ("header too many", DEBEZIUM.replace("region:header", "region:header,other:header"), "header other is missing"),
        ("header left out", DEBEZIUM.replace(",region:header", ""), "header region is too many"),
        ("header's name", DEBEZIUM.replace("eventType", "kind"), "header kind is missing"),
        ("envelope", DEBEZIUM.replace("region:header", "region:envelope"), "value: "),
        ("key", router("table.field.event.key=other"), "key: "),
    ];
    let mut comparison = comparing(&lane, &[&right, "--accept-differences"]);
    let mut others: Vec<Relay> = (0..)
        .zip(&altered)
        .map(|(number, (_, text, _))| {
            let file = file(&format!("{number}.properties"), text);
            comparing(&lane, &[&file, "--accept-differences"])
        })
        .collect();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 'Placed', '{}', 'eu', 'x'), ('2', 'order', 'k', 'Placed', '{}', 'eu', 'x')");
    lane.wait_confirmed();
    // Debezium adds these to each record.
    let producer: BaseProducer = lane.client.create().unwrap();
    let headers = [("id", "3"), ("eventType", "Placed"), ("region", "eu"), ("__debezium.context.connectorName", "c")];
    let headers =
        headers.iter().fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: Some(*value) }));
    let written = lane.records_now("order")[0].clone();
    let (topic, key) = (lane.topic("order"), written.key.unwrap());
    producer
        .send(BaseRecord::to(&topic).key(&key).payload("{}").headers(headers).partition(written.partition))
        .map_err(|(error, _)| error)
        .unwrap();
    producer.flush(LONG).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('3', 'order', 'k', 'Placed', '{}', 'eu', 'x')");
    lane.wait_confirmed();
    let (code, report, log) = verdict(&mut comparison);
    // The relay has written the third row's record as well, without them.
    assert_eq!((code, report["rows"].as_u64(), report["right"].as_u64()), (0, Some(3), Some(3)), "{report:#}{log}");
    assert!(report["reasons"].to_string().contains("__debezium.context."), "{report:#}");
    for (comparison, (what, _, why)) in others.iter_mut().zip(&altered) {
        let (code, report, log) = verdict(comparison);
        assert_eq!((code, report["right"].as_u64()), (2, Some(0)), "{what}: {report:#}{log}");
        let found = faults(&report);
        assert!(found.iter().any(|fault| fault.0 == "altered" && fault.3.contains(why)), "{what}: {found:?}");
    }
}

#[test]
fn a_topic_that_is_created_again_in_the_window_is_not_judged() {
    let (lane, _) = by_hand();
    let mut relay = lane.streaming(&[BY_HAND]);
    let mut comparison = comparing(&lane, &[BY_HAND, "--wait=5s"]);
    for id in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        insert(&lane, &[(id, id)]);
    }
    lane.wait_confirmed();
    unseen(&lane, &mut comparison, || {
        relay.terminate(LONG).unwrap();
        shared_kafka().unwrap().delete_topics(&[&lane.topic("order")]).unwrap();
        wait_until(LONG, "the topic to be created again", || {
            Ok(shared_kafka()?.create_topic(&lane.topic("order"), 4, &[]).is_ok())
        })
        .unwrap();
    });
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, &report["missing"]), (1, &0.into()), "{report:#}{log}");
    assert!(report["not_judged"].as_u64().unwrap() >= 3, "{report:#}");
    assert!(report["reasons"].to_string().contains("deleted and created again"), "{report:#}");
}

/// Its first record has a smaller offset than the last one of the topic before.
#[test]
fn nothing_is_concluded_from_records_of_a_topic_that_is_created_again_while_rows_come() {
    let (lane, hand) = by_hand();
    let mut comparison = comparing(&lane, &[BY_HAND]);
    for id in ["1", "2", "3"] {
        insert(&lane, &[(id, "a")]);
        hand.rightly(id, "a");
    }
    shared_kafka().unwrap().delete_topics(&[&lane.topic("order")]).unwrap();
    wait_until(LONG, "the topic to be created again", || {
        Ok(shared_kafka()?.create_topic(&lane.topic("order"), 4, &[]).is_ok())
    })
    .unwrap();
    let hand = ByHand::new(&lane);
    for id in ["4", "5", "6"] {
        insert(&lane, &[(id, "a")]);
        hand.rightly(id, "a");
    }
    hand.rightly("4", "a");
    advance(&lane);
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, report["faults"].as_array().map(Vec::len)), (1, Some(0)), "{report:#}{log}");
    for count in ["missing", "altered", "out_of_order", "stale_keys"] {
        assert_eq!(report[count], 0, "{report:#}");
    }
    let reason = format!("topic {} was not read to its end", lane.topic("order"));
    assert!(report["reasons"].to_string().contains(&reason), "{report:#}");
}

#[test]
fn the_brokers_time_is_not_compared_and_that_is_said() {
    let lane = Lane::with(TABLE, "outbox");
    let settings = [("message.timestamp.type", "LogAppendTime")];
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &settings).unwrap();
    let _relay = lane.streaming(&[BY_HAND]);
    let mut comparison = comparing(&lane, &[BY_HAND]);
    insert(&lane, &[("1", "a")]);
    lane.wait_confirmed();
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (0, "rows 1, right 1"), "{report:#}{log}");
    assert!(report["reasons"].to_string().contains("LogAppendTime"), "{report:#}");
}

#[test]
fn a_slot_that_is_dropped_in_the_window_has_confirmed_nothing() {
    let (lane, hand) = by_hand();
    let mut comparison = comparing(&lane, &[BY_HAND, "--wait=1s"]);
    insert(&lane, &[("1", "a"), ("2", "a")]);
    hand.rightly("1", "a");
    lane.drop_slot(&lane.name);
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (1, "rows 2, right 1, not_judged 1"), "{report:#}{log}");
    assert!(report["reasons"].to_string().contains("has not confirmed"), "{report:#}");
}

#[test]
fn a_broker_that_restarts_gives_no_alarm() {
    let mut kafka = own::kafka();
    let lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
    let _relay = lane.streaming(&[]);
    let mut comparison = comparing(&lane, &[]);
    insert(&lane, &[("1", "a"), ("2", "b")]);
    lane.wait_confirmed();
    kafka.stop().unwrap();
    insert(&lane, &[("3", "a")]);
    kafka.start_again().unwrap();
    insert(&lane, &[("4", "b")]);
    lane.wait_confirmed();
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, &report["rows"], &report["right"]), (0, &4.into(), &4.into()), "{report:#}{log}");
}

#[test]
#[ignore = "slow"]
fn it_leaves_two_walsenders_to_the_relay_and_says_which_prepared_transaction_it_waits_for() {
    let postgres = Postgres::with(default_major(), &[("max_wal_senders", "3"), ("max_prepared_transactions", "2")]);
    let postgres = postgres.unwrap();
    let lane = Lane::on(&postgres, shared_kafka().unwrap()).furnish(TABLE, "outbox");
    lane.sql("BEGIN; INSERT INTO outbox VALUES ('0', 'order', 'k', 't', 'x', 7); PREPARE TRANSACTION 'kept'");
    let mut comparison = begin(&lane, &[BY_HAND]);
    wait_log(&comparison, "kept");
    assert_eq!(comparison.terminate(LONG).unwrap().code, 1, "{}", comparison.log());
    lane.sql("COMMIT PREPARED 'kept'");
    let _relay = lane.streaming(&[BY_HAND]);
    let mut comparison = begin(&lane, &[BY_HAND]);
    let code = comparison.wait_exit(LONG).unwrap();
    let log = comparison.log();
    assert!(code == 2 && log.contains("verify needs one, and leaves two to the relay"), "{code}: {log}");
}

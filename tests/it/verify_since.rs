//! `walrelay verify --since`: rows of the table that no slot brings are found and named, and what nobody can say is not judged.

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay;

use crate::lane::{LONG, Lane, binary, fresh, hint};
use crate::verify::{ByHand, advance, counts, faults, traces};

/// An outbox whose rows have an age.
const TABLE: &str =
    "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text, part int,
    created_at timestamptz DEFAULT now())";

/// Moves the slot past everything that is committed, as a relay would, as long as this is there: other databases write to the same WAL.
pub(crate) struct Advancing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Advancing {
    pub(crate) fn begin(lane: &Lane) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (stopped, mut client, name) = (Arc::clone(&stop), lane.connect(), lane.name.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let sql = "SELECT pg_replication_slot_advance($1, pg_current_wal_flush_lsn()), pg_sleep(0.1)";
                client.execute(sql, &[&name]).unwrap();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Advancing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Compares the rows of the table: the exit code, the report and what was said on stderr.
#[track_caller]
fn since(lane: &Lane, more: &[&str]) -> (i32, Value, String) {
    let (code, out, log) = run(lane, &[&["--json", "--since=1h"], more].concat());
    let report = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{log}"));
    (code, report, log)
}

#[track_caller]
fn run(lane: &Lane, more: &[&str]) -> (i32, String, String) {
    let mut arguments = lane.arguments(more);
    "verify".clone_into(&mut arguments[0]);
    let output = relay::run(&binary(), &arguments).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let log = text(output.stderr);
    assert!(!log.contains("panicked"), "{log}");
    (output.status.code().unwrap(), text(output.stdout), log)
}

fn insert(lane: &Lane, rows: &[(&str, &str)]) {
    for (id, key) in rows {
        let sql = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES";
        lane.sql(&format!("{sql} ('{id}', 'order', '{key}', 't', 'payload {id}')"));
    }
}

/// Writes records of this time.
fn recent(lane: &Lane) -> ByHand {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let mut hand = ByHand::new(lane);
    hand.millis = i64::try_from(now).unwrap();
    hand
}

/// A lane with a topic of four partitions, into which records are written by hand.
fn by_hand() -> (Lane, ByHand) {
    let lane = Lane::with(TABLE, "outbox");
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 4, &[]).unwrap();
    let hand = recent(&lane);
    (lane, hand)
}

#[track_caller]
fn check(found: (i32, Value, String), code: i32, expected: &str) -> Value {
    let (was, report, log) = found;
    assert_eq!((was, counts(&report).as_str()), (code, expected), "{report:#}{log}");
    report
}

#[test]
fn a_row_that_a_moved_slot_left_out_is_found_and_named() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&[]);
    insert(&lane, &[("1", "a"), ("2", "b")]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    insert(&lane, &[("lost", "a")]);
    advance(&lane);
    relay.start_again().unwrap();
    insert(&lane, &[("3", "a")]);
    lane.wait_confirmed();
    let before = traces(&lane);
    let (code, report, log) = since(&lane, &[]);
    assert_eq!((code, counts(&report).as_str()), (2, "rows 4, right 3, missing 1"), "{report:#}{log}");
    let fault = &report["faults"][0];
    assert_eq!((&fault["verdict"], &fault["id"]), (&"missing".into(), &"lost".into()), "{report:#}");
    assert_eq!((&fault["table"], &fault["why"]), (&"public.outbox".into(), &"no record".into()), "{report:#}");
    assert!(report["mode"] == "since" && report["from_lsn"].is_null() && report["to_lsn"].is_string(), "{report:#}");
    assert!(log.contains("1 of 4 rows has no record") && hint(&log).contains("docs/operations/republish.md"), "{log}");
    assert_eq!(traces(&lane), before, "it leaves nothing behind");

    // The same for people. A row's own time may have no record from before.
    let (code, out, _) = run(&lane, &["--since=1h", "--table=outbox", "--where=id <> '3'"]);
    assert_eq!(code, 2, "{out}");
    assert!(out.starts_with("verified public.outbox, rows of the last 1 h 0 min, up to 0/"), "{out}");
    assert!(out.contains("missing: id lost, public.outbox, topic ") && !out.contains("out of order"), "{out}");

    // Publishing it again cures it.
    lane.sql("DELETE FROM outbox WHERE id = 'lost'");
    insert(&lane, &[("lost", "a")]);
    check(since(&lane, &[]), 0, "rows 4, right 4");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn rows_from_before_the_slot_are_not_missing_because_a_row_without_a_time_has_its_record() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&[]);
    insert(&lane, &[("1", "a"), ("untimed", "a")]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    lane.sql("UPDATE outbox SET created_at = NULL WHERE id = 'untimed'");
    insert(&lane, &[("before", "a"), ("untimed before", "a")]);
    lane.sql("UPDATE outbox SET created_at = now() - interval '30 min' WHERE id = 'before'");
    lane.sql("UPDATE outbox SET created_at = NULL WHERE id = 'untimed before'");
    advance(&lane);
    let _advancing = Advancing::begin(&lane);
    let report = check(since(&lane, &[]), 1, "rows 4, right 2, not_judged 2");
    let reasons = report["reasons"].to_string();
    assert!(reasons.contains("no row that is as old") && reasons.contains("they have no time"), "{report:#}");
}

#[test]
fn a_row_that_does_not_come_again_for_a_second_look_is_not_judged() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&[]);
    insert(&lane, &[("1", "a")]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    insert(&lane, &[("lost", "a")]);
    // The row is chosen as long as somebody has the lock.
    let mut holder = lane.connect();
    holder.batch_execute("SELECT pg_advisory_lock(7)").unwrap();
    let lock =
        "SELECT FROM pg_locks JOIN pg_database d ON d.oid = database WHERE objid = 7 AND datname = current_database()";
    let chosen = format!("--where=id <> 'lost' OR EXISTS ({lock} AND locktype = 'advisory')");
    let mut arguments = lane.arguments(&["--json", "--since=1h", &chosen]);
    "verify".clone_into(&mut arguments[0]);
    let mut comparison = relay::Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    // It waits for the slot, which it does behind the first look.
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity q JOIN pg_stat_activity t USING (application_name)
        WHERE application_name = $1 AND t.state = 'idle in transaction' AND q.query_start > t.state_change
          AND q.query LIKE '%pg_replication_slots%')";
    let name = format!("walrelay/verify/{}", lane.name);
    let mut client = lane.connect();
    let asked = || Ok(client.query_one(waits, &[&name])?.get(0));
    wait_until(LONG, "the question for the slot", asked)
        .unwrap_or_else(|error| panic!("{error}: {}", comparison.log()));
    drop(holder);
    let _advancing = Advancing::begin(&lane);
    let code = comparison.wait_exit(LONG).unwrap();
    let report = serde_json::from_str(&comparison.stdout()).unwrap();
    let report = check((code, report, comparison.log()), 1, "rows 2, right 1, not_judged 1");
    assert!(report["reasons"].to_string().contains("did not give them again"), "{report:#}");
}

#[test]
fn a_row_that_was_written_while_the_publication_had_not_its_table_is_missing() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&[]);
    insert(&lane, &[("1", "a")]);
    lane.wait_confirmed();
    relay.terminate(LONG).unwrap();
    lane.sql(&format!("ALTER PUBLICATION {} DROP TABLE outbox", lane.name));
    insert(&lane, &[("lost", "a")]);
    lane.sql(&format!("ALTER PUBLICATION {} ADD TABLE outbox", lane.name));
    insert(&lane, &[("2", "a")]);
    relay.start_again().unwrap();
    lane.wait_confirmed();
    let report = check(since(&lane, &[]), 2, "rows 3, right 2, missing 1");
    assert_eq!(report["faults"][0]["id"], "lost", "{report:#}");
}

#[test]
fn each_fault_put_in_by_hand_is_found_and_named() {
    let (lane, hand) = by_hand();
    insert(&lane, &[("right", "a"), ("missing", "a"), ("value", "b"), ("header", "c"), ("key", "d")]);
    insert(&lane, &[("both", "e"), ("gone", "e"), ("twice", "e")]);
    hand.rightly("right", "a");
    hand.send("value", "b", "payload Value", "t", None);
    hand.send("header", "c", "payload header", "T", None);
    hand.send("key", "D", "payload key", "t", None);
    hand.send("both", "e", "another payload", "t", None);
    for id in ["both", "gone", "twice", "twice"] {
        hand.rightly(id, "e");
    }
    lane.sql("DELETE FROM outbox WHERE id = 'gone'");
    let _advancing = Advancing::begin(&lane);
    let (code, report, log) = since(&lane, &[]);
    // A deleted row's record, and the one that has only the id of another.
    let expected = "rows 7, right 3, missing 1, altered 3, other 2, repeated 1";
    assert_eq!((code, counts(&report).as_str()), (2, expected), "{report:#}{log}");
    let found = faults(&report);
    let has = |verdict: &str, id: &str, why: &str| {
        let fits = |fault: &&(String, String, bool, String)| fault.0 == verdict && fault.1 == id;
        assert!(found.iter().find(fits).is_some_and(|fault| fault.3.contains(why)), "{verdict} {id}: {found:?}");
    };
    has("missing", "missing", "no record");
    has("altered", "value", "value: 13 bytes, expected 13 bytes, different from byte 8 on");
    has("altered", "header", "header eventType: 1 bytes, expected 1 bytes");
    has("altered", "key", "key: 1 bytes, expected 1 bytes");
    has("altered", "value", "the row may have been updated since");
    assert_eq!(found.len(), 4);
    assert!(!report.to_string().contains("payload Value"), "{report:#}");
    // An altered row's record has its place.
    assert!(report["faults"].as_array().unwrap().iter().any(|fault| fault["offset"].is_number()), "{report:#}");
    let (_, shown, _) = run(&lane, &["--since=1h", "--show-values", "--show=9"]);
    assert!(shown.contains("value: payload Value, expected payload value"), "{shown}");
    let (_, shown, _) = run(&lane, &["--since=1h", "--show=1"]);
    assert!(shown.contains("and 3 more (--show N shows more)"), "{shown}");
}

#[test]
fn a_partition_or_a_time_that_is_not_the_rows_is_an_alteration() {
    let (lane, _) = by_hand();
    let hand = ByHand::new(&lane);
    lane.sql(
        "ALTER TABLE outbox ADD at bigint DEFAULT 7;
         INSERT INTO outbox VALUES ('1', 'order', 'k', 't', 'payload 1', 2, now(), 7), ('2', 'order', 'k', 't', 'payload 2', 3, now(), 7),
                                   ('3', 'order', 'k', 't', 'payload 3', 0, now(), 8)",
    );
    hand.send("1", "k", "payload 1", "t", Some(2));
    hand.send("2", "k", "payload 2", "t", Some(2));
    hand.send("3", "k", "payload 3", "t", Some(0));
    let _advancing = Advancing::begin(&lane);
    let more = ["--partition-column=part", "--timestamp=at", "--age-column=created_at"];
    let report = check(since(&lane, &more), 2, "rows 3, right 1, altered 2");
    let found: Vec<String> = faults(&report).into_iter().map(|fault| format!("{} {}", fault.1, fault.3)).collect();
    assert_eq!(found, ["2 partition: 2, expected 3", "3 time: 7 ms, expected 8 ms"]);
    let reasons = report["reasons"].to_string();
    assert!(reasons.contains("the order of records is not judged"), "{reasons}");
}

#[test]
fn records_are_looked_for_from_the_first_one_on_before_a_row_is_missing() {
    let (lane, _) = by_hand();
    // By their time, which is in 1970, these records are older than each row.
    let hand = ByHand::new(&lane);
    insert(&lane, &[("1", "a"), ("2", "b")]);
    hand.rightly("1", "a");
    hand.rightly("2", "b");
    let _advancing = Advancing::begin(&lane);
    let report = check(since(&lane, &[]), 0, "rows 2, right 2");
    assert!(report["verified"] == true && report["hint"].is_null(), "{report:#}");
}

#[test]
fn only_young_rows_count_and_a_quiet_hour_is_right() {
    let (lane, hand) = by_hand();
    check(since(&lane, &[]), 0, "");
    lane.sql(
        "INSERT INTO outbox VALUES ('old', 'order', 'a', 't', 'payload old', NULL, now() - interval '61 min'),
                                   ('young', 'order', 'a', 't', 'payload young', NULL, now() - interval '59 min'),
                                   ('none', 'order', 'a', 't', 'payload none', NULL, NULL),
                                   ('later', 'order', 'a', 't', 'payload later', NULL, now() + interval '1 day')",
    );
    for id in ["young", "none", "later"] {
        hand.rightly(id, "a");
    }
    let _advancing = Advancing::begin(&lane);
    check(since(&lane, &[]), 0, "rows 3, right 3");
    check(since(&lane, &["--where=id <> 'later' -- a comment"]), 0, "rows 2, right 2, other 1");
    let (_, report, _) = since(&lane, &["--since=2h"]);
    assert_eq!(report["rows"], 4, "{report:#}");
}

#[test]
fn what_the_slot_has_not_confirmed_is_not_judged() {
    let (lane, hand) = by_hand();
    insert(&lane, &[("1", "a"), ("2", "a")]);
    hand.rightly("1", "a");
    let report = check(since(&lane, &["--wait=1s"]), 1, "rows 2, right 1, not_judged 1");
    let reason = report["reasons"].to_string();
    assert!(reason.contains("has not confirmed 0/") && reason.contains(&lane.name), "{reason}");
    // If nothing is open, nobody is waited for.
    hand.rightly("2", "a");
    check(since(&lane, &["--wait=10min"]), 0, "rows 2, right 2");
}

#[test]
fn rows_from_before_the_slot_are_not_judged() {
    let lane = Lane::empty();
    lane.sql(TABLE);
    insert(&lane, &[("before", "a")]);
    let lane = lane.furnish("SELECT 1", "outbox");
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &[]).unwrap();
    let hand = recent(&lane);
    insert(&lane, &[("1", "a"), ("lost", "a")]);
    hand.rightly("1", "a");
    let _advancing = Advancing::begin(&lane);
    let report = check(since(&lane, &[]), 2, "rows 3, right 1, missing 1, not_judged 1");
    assert!(report["reasons"].to_string().contains("from before the slot"), "{report:#}");
    assert_eq!(report["faults"][0]["id"], "lost", "{report:#}");
}

#[test]
fn deleted_and_compacted_records_are_not_judged() {
    let (lane, hand) = by_hand();
    insert(&lane, &[("0", "a"), ("1", "a")]);
    hand.rightly("0", "a");
    hand.rightly("1", "a");
    let topic = lane.topic("order");
    let admin: AdminClient<DefaultClientContext> = lane.client.create().unwrap();
    let mut all = TopicPartitionList::new();
    (0..4).for_each(|partition| all.add_partition_offset(&topic, partition, Offset::End).unwrap());
    futures_executor::block_on(admin.delete_records(&all, &AdminOptions::new())).unwrap();
    insert(&lane, &[("2", "a")]);
    hand.rightly("2", "a");
    let _advancing = Advancing::begin(&lane);
    let report = check(since(&lane, &[]), 1, "rows 3, right 1, not_judged 2");
    assert!(report["reasons"].to_string().contains("may have deleted records of these rows"), "{report:#}");

    let lane = Lane::with(TABLE, "outbox");
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &[("cleanup.policy", "compact")]).unwrap();
    let hand = recent(&lane);
    insert(&lane, &[("1", "a"), ("2", "a")]);
    hand.rightly("2", "a");
    let _advancing = Advancing::begin(&lane);
    let report = check(since(&lane, &[]), 1, "rows 2, right 1, not_judged 1");
    assert!(report["reasons"].to_string().contains("compacted"), "{report:#}");
}

#[test]
fn a_topic_that_was_deleted_is_not_judged_and_a_record_that_is_older_than_the_rows_proves_the_front() {
    let (lane, hand) = by_hand();
    insert(&lane, &[("1", "a")]);
    hand.rightly("1", "a");
    let _advancing = Advancing::begin(&lane);
    shared_kafka().unwrap().delete_topics(&[&lane.topic("order")]).unwrap();
    let report = check(since(&lane, &[]), 1, "rows 1, not_judged 1");
    assert!(report["reasons"].to_string().contains("it does not exist"), "{report:#}");

    // Its first records were deleted, but not the last one from before the rows: by its time, 1970.
    let lane = Lane::with(TABLE, "outbox");
    let topic = lane.topic("order");
    shared_kafka().unwrap().create_topic(&topic, 1, &[]).unwrap();
    let hand = ByHand::new(&lane);
    hand.rightly("old 1", "a");
    hand.rightly("old 2", "a");
    let admin: AdminClient<DefaultClientContext> = lane.client.create().unwrap();
    let mut all = TopicPartitionList::new();
    all.add_partition_offset(&topic, 0, Offset::Offset(1)).unwrap();
    futures_executor::block_on(admin.delete_records(&all, &AdminOptions::new())).unwrap();
    let relay = lane.streaming(&[]);
    insert(&lane, &[("1", "a")]);
    lane.wait_confirmed();
    drop(relay);
    insert(&lane, &[("lost", "a")]);
    let _advancing = Advancing::begin(&lane);
    let report = check(since(&lane, &[]), 2, "rows 2, right 1, missing 1");
    assert_eq!(report["faults"][0]["id"], "lost", "{report:#}");
}

#[test]
fn an_open_transaction_of_another_producer_hides_records_and_they_are_not_judged() {
    let (lane, hand) = by_hand();
    insert(&lane, &[("1", "a")]);
    let mut client = lane.client.clone();
    client.set("transactional.id", fresh("open"));
    let stranger: BaseProducer = client.create().unwrap();
    stranger.init_transactions(LONG).unwrap();
    stranger.begin_transaction().unwrap();
    let topic = lane.topic("order");
    for partition in 0..4 {
        let record = BaseRecord::to(&topic).key("k").payload("hidden").partition(partition);
        stranger.send(record).map_err(|(error, _)| error).unwrap();
    }
    stranger.flush(LONG).unwrap();
    hand.rightly("1", "a");
    let _advancing = Advancing::begin(&lane);
    let report = check(since(&lane, &["--wait=2s"]), 1, "rows 1, not_judged 1");
    assert!(report["reasons"].to_string().contains("transaction"), "{report:#}");
    stranger.abort_transaction(LONG).unwrap();
    // Behind the marks of the transaction they are read.
    check(since(&lane, &["--wait=2s"]), 0, "rows 1, right 1");
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
        let action = format!("--on-bad-row={action}");
        let relay = lane.streaming(&[&action]);
        lane.sql(
            "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', 'x'), ('2', 'no topic', 'k', 't', 'x'),
                    ('3', 'order', 'k', 't', repeat('x', 25000)), ('4', 'order', 'k', 't', 'x')",
        );
        lane.wait_confirmed();
        let found = since(&lane, &[&action]);
        assert_eq!(
            (found.0, counts(&found.1).as_str()),
            (0, expected),
            "{action}: {:#}{}{}",
            found.1,
            found.2,
            relay.log()
        );
    }
}

#[test]
fn a_lock_that_keeps_a_table_from_being_read_is_named() {
    let lane = Lane::with(TABLE, "outbox");
    let mut holder = lane.connect();
    holder.batch_execute("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE").unwrap();
    let (code, _, log) = run(&lane, &["--since=1h"]);
    assert!(code == 1 && log.contains("public.outbox is locked by process"), "{log}");
}

#[test]
fn it_ends_on_request_while_it_counts() {
    let lane = Lane::with(TABLE, "outbox");
    insert(&lane, &[("1", "a")]);
    let mut arguments = lane.arguments(&["--since=1h", "--where=pg_sleep(3600) IS NULL"]);
    "verify".clone_into(&mut arguments[0]);
    let mut comparison = relay::Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    let counts = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT count(*)%pg_sleep(3600)%'
                  AND wait_event = 'PgSleep'";
    let mut client = lane.connect();
    wait_until(LONG, "the count to begin", || Ok(client.query_one(counts, &[])?.get::<_, i64>(0) == 1))
        .unwrap_or_else(|error| panic!("{error}: {}", comparison.log()));
    assert_eq!(comparison.terminate(LONG).unwrap().code, 1, "{}", comparison.log());
    wait_until(LONG, "the server to notice", || Ok(client.query_one(counts, &[])?.get::<_, i64>(0) == 0)).unwrap();
}

#[test]
fn rows_beyond_the_memory_are_compared_in_passes() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&[]);
    let many = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
                SELECT 'r' || n, CASE n % 2 WHEN 0 THEN 'order' ELSE 'invoice' END, 'k' || n % 100, 't', 'x' FROM generate_series(1, 70000) AS n";
    lane.sql(many);
    lane.wait_confirmed();
    relay.terminate(LONG).unwrap();
    insert(&lane, &[("lost 1", "a"), ("lost 2", "a"), ("lost 3", "a"), ("lost 4", "a")]);
    let _advancing = Advancing::begin(&lane);
    lane.sql("DELETE FROM outbox WHERE id = 'r7'");
    let (code, report, log) = since(&lane, &["--memory=1MiB"]);
    let expected = "rows 70003, right 69999, missing 4, other 1";
    assert_eq!((code, counts(&report).as_str()), (2, expected), "{report:#}{log}");
    assert!(log.contains("\"passes\":3"), "{log}");
    let mut ids: Vec<String> = faults(&report).into_iter().map(|fault| fault.1).collect();
    ids.sort();
    assert_eq!(ids, ["lost 1", "lost 2", "lost 3", "lost 4"]);
}

#[test]
fn partitions_and_tables_without_a_key_are_read_under_one_snapshot() {
    let tables = "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, payload text, created_at timestamptz DEFAULT now())
                    PARTITION BY LIST (aggregatetype);
                  CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('order');
                  CREATE TABLE outbox_b PARTITION OF outbox FOR VALUES IN ('invoice')";
    let lane = Lane::empty().furnish(tables, "outbox");
    lane.sql(&format!("ALTER PUBLICATION {} SET (publish_via_partition_root = true)", lane.name));
    let _relay = lane.streaming(&[]);
    for route in ["order", "invoice"] {
        lane.sql(&format!(
            "INSERT INTO outbox SELECT '{route}' || n, '{route}', 'k', 't', 'x' FROM generate_series(1, 500) AS n"
        ));
    }
    lane.wait_confirmed();
    check(since(&lane, &[]), 0, "rows 1000, right 1000");
}

#[test]
fn exactly_once_is_right_through_a_kill() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&["--delivery=exactly-once"]);
    for round in 0..3 {
        lane.sql(&format!(
            "INSERT INTO outbox SELECT '{round} ' || n, 'order', 'k' || n % 5, 't', 'x' FROM generate_series(1, 300) AS n"
        ));
        relay.kill9().unwrap();
        relay.start_again().unwrap();
    }
    lane.wait_confirmed();
    check(since(&lane, &["--delivery=exactly-once"]), 0, "rows 900, right 900");
    // The same records once more, outside of any transaction.
    let again = lane.records_now("order");
    let producer: BaseProducer = lane.client.create().unwrap();
    let first = &again[0];
    let headers = first.headers.iter().fold(rdkafka::message::OwnedHeaders::new(), |headers, (name, value)| {
        headers.insert(rdkafka::message::Header { key: name, value: value.as_ref() })
    });
    let (key, value) = (first.key.clone().unwrap(), first.value.clone().unwrap());
    let record = BaseRecord::to(&first.topic).key(&key).payload(&value).headers(headers).partition(first.partition);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(LONG).unwrap();
    let report = check(since(&lane, &["--delivery=exactly-once"]), 2, "rows 900, right 900, repeated 1");
    assert_eq!(report["faults"][0]["verdict"], "repeated", "{report:#}");
}

#[test]
fn what_cannot_be_compared_is_said_before_anything_is_read() {
    let lane = Lane::with(crate::lane::OUTBOX, "outbox");
    let refused = |more: &[&str], code: i32, text: &str| {
        let (was, _, log) = run(&lane, more);
        assert!(was == code && log.contains(text), "{more:?} {was}: {log}");
    };
    refused(&["--since=1h"], 64, "--age-column is needed");
    refused(&["--since=1h", "--exclusive"], 64, "does not go with --since");
    refused(&["--since=1h", "--follow=1s"], 64, "--follow");
    refused(&["--since=1h", "--origin=local"], 64, "which rows were replicated");
    refused(&["--since=1h", "--cloudevents=binary", "--cloudevents-source=/s"], 64, "needs --timestamp COLUMN");
    refused(&["--where=true"], 64, "which only --since reads");
    refused(&["--since=1h", "--slot=no_such_slot"], 2, "does not exist");
    let other = Lane::with(TABLE, "outbox");
    let (code, _, log) = run(&other, &["--since=1h", "--where=no_such_column = 1"]);
    assert!(code != 0 && log.contains("no_such_column"), "{code}: {log}");
}

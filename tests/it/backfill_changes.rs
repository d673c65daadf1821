//! `backfill` of tables that are changed meanwhile, or were since the slot was created.

use std::collections::BTreeSet;

use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::backfill::{arguments, assert_all, assert_once, counted, fill, numbers, rows, set_up, with_old_rows};
use crate::lane::{LONG, Lane, OUTBOX, binary, ids, wait_log};

#[track_caller]
fn filling(lane: &Lane, more: &[&str]) -> Relay {
    let filling = Relay::start(&binary(), &arguments(lane, more), &[] as &[(&str, &str)]).unwrap();
    wait_log(&filling, "backfill begins");
    filling
}

#[test]
fn a_row_that_is_updated_before_it_is_read_is_published_as_it_is_then() {
    let lane = with_old_rows(100);
    let mut filling = filling(&lane, &["--rate", "20", "--chunk", "10"]);
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    lane.sql("UPDATE outbox SET type = 'Changed' WHERE id = '99'");
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    assert_once(&lane, &numbers(1, 100));
}

/// Each row looks as young as the statement.
#[test]
fn partitions_that_were_rewritten_are_published() {
    let lane = Lane::empty();
    lane.sql(&format!(
        "CREATE TABLE outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, payload text) PARTITION BY RANGE (id);
         CREATE TABLE part_1 PARTITION OF outbox FOR VALUES FROM (0) TO (10);
         CREATE TABLE part_2 PARTITION OF outbox FOR VALUES FROM (10) TO (20);
         INSERT INTO outbox SELECT n, 'order', 'k', n::text FROM generate_series(1, 15) AS n;
         CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)",
        lane.name
    ));
    set_up(&lane, "outbox");
    let text = fill(&lane, &["--dry-run"]);
    assert!(text.contains("15 rows would be published"), "{text}");
    lane.sql("ALTER TABLE outbox ADD COLUMN at timestamptz DEFAULT clock_timestamp()");
    fill(&lane, &[]);
    assert_once(&lane, &numbers(1, 15));
}

/// Under the snapshot the new file of the table looks empty.
#[test]
fn no_table_is_rewritten_while_it_is_read_under_the_snapshot() {
    let lane = Lane::empty();
    let other = OUTBOX.replace("TABLE outbox", "TABLE sent");
    lane.sql(&format!("{OUTBOX}; {other}; {}; {}", rows(1, 60), rows(61, 100).replace("INTO outbox", "INTO sent")));
    // For two seconds and a half: the lock is looked for all the time.
    let more = ["--setup", "--table", "outbox", "--table", "sent", "--rate", "40", "--chunk", "10"];
    let mut client = lane.connect();
    let mut filling = filling(&lane, &more);
    let sql = "SELECT count(*) FROM pg_locks WHERE relation = 'sent'::regclass AND granted";
    let is_locked = || Ok(client.query_one(sql, &[])?.get::<_, i64>(0) > 0);
    wait_until(LONG, "the lock before the table's turn", is_locked).unwrap();
    lane.sql("ALTER TABLE sent ADD COLUMN seq bigserial");
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    assert_once(&lane, &numbers(1, 100).into_iter().collect::<BTreeSet<_>>());
}

/// Begins a backfill, and stops it when more than 50 of its rows are published.
#[track_caller]
fn interrupted(lane: &Lane, more: &[&str]) {
    let mut filling = filling(lane, &[&["--rate", "100"], more].concat());
    wait_until(LONG, "some rows", || Ok(lane.records_now("order").len() > 50)).unwrap();
    assert_eq!(filling.terminate(LONG).unwrap().code, 1, "{}", filling.log());
}

/// A partitioned table whose partitions are read by themselves: one of 9 rows, and one of the rows up to 3000.
fn partitioned() -> Lane {
    let lane = Lane::empty();
    lane.sql(&format!(
        "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, payload text) PARTITION BY RANGE (id);
         CREATE TABLE part_1 PARTITION OF outbox (PRIMARY KEY (id)) FOR VALUES FROM (1) TO (10);
         CREATE TABLE part_current PARTITION OF outbox (PRIMARY KEY (id)) FOR VALUES FROM (10) TO (4000);
         INSERT INTO outbox SELECT n, 'order', 'k', n::text FROM generate_series(1, 3000) AS n;
         CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert')",
        lane.name
    ));
    set_up(&lane, "outbox");
    lane
}

/// Another partition takes the name of the one that is read.
const ROTATE: &str = "ALTER TABLE part_current RENAME TO part_0;
     CREATE TABLE part_current PARTITION OF outbox (PRIMARY KEY (id)) FOR VALUES FROM (4000) TO (5000)";

#[test]
fn a_partition_that_is_renamed_meanwhile_is_read_to_its_end() {
    let lane = partitioned();
    interrupted(&lane, &[]);
    lane.sql(ROTATE);
    fill(&lane, &[]);
    assert_all(&lane, &numbers(1, 3000));
    let text = fill(&lane, &[]);
    assert!(text.contains("nothing to do: its rows were published already"), "{text}");
}

#[test]
fn a_partition_whose_name_another_one_takes_while_it_is_read_ends_it_and_is_read_to_its_end_by_the_next_run() {
    let lane = partitioned();
    let mut filling = filling(&lane, &["--rate", "100"]);
    wait_until(LONG, "some rows", || Ok(lane.records_now("order").len() > 50)).unwrap();
    lane.sql(ROTATE);
    assert_eq!(filling.wait_exit(LONG).unwrap(), 1, "{}", filling.log());
    assert!(filling.log().contains("public.part_current was renamed or replaced"), "{}", filling.log());
    fill(&lane, &[]);
    assert_all(&lane, &numbers(1, 3000));
}

#[test]
fn rows_that_come_from_elsewhere_while_it_is_interrupted_are_published() {
    let lane = partitioned();
    interrupted(&lane, &[]);
    lane.sql(
        "CREATE TABLE part_0 (LIKE part_1 INCLUDING ALL); INSERT INTO part_0 VALUES (4001, 'order', 'k', '4001');
         ALTER TABLE outbox ATTACH PARTITION part_0 FOR VALUES FROM (4000) TO (5000)",
    );
    fill(&lane, &[]);
    assert_all(&lane, &numbers(1, 3000).into_iter().chain(["4001".to_owned()]).collect());

    let lane = with_old_rows(3000);
    interrupted(&lane, &[]);
    lane.sql(&format!(
        "ALTER TABLE outbox RENAME TO before; {OUTBOX};
         INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ('01', 'order', 'k', 'Placed', '{{}}');
         ALTER PUBLICATION {} ADD TABLE outbox",
        lane.name
    ));
    fill(&lane, &["--table", "outbox"]);
    assert!(counted(&lane).contains_key("01"), "the row of the other table of that name");
}

#[test]
fn rows_that_the_relay_leaves_out_while_it_is_interrupted_are_published() {
    let lane = with_old_rows(3000);
    lane.sql(&OUTBOX.replace("TABLE outbox", "TABLE other"));
    lane.sql(&format!("ALTER PUBLICATION {} ADD TABLE other", lane.name));
    let relay = |more: &[&str]| {
        let mut relay = lane.streaming(more);
        lane.wait_confirmed();
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    };
    relay(&[]);
    interrupted(&lane, &["--table", "outbox"]);
    // Behind the greatest key of the beginning.
    lane.sql(&rows(9990, 9999));
    relay(&["--table", "other"]);
    relay(&[]);
    fill(&lane, &["--table", "outbox"]);
    assert_all(&lane, &numbers(1, 3000).into_iter().chain(numbers(9990, 9999)).collect());
}

/// Another key has another order, in which rows before the last one that was read were not read.
#[test]
fn a_table_whose_key_is_changed_meanwhile_is_read_from_its_beginning() {
    let lane = with_old_rows(3000);
    lane.sql("ALTER TABLE outbox ADD COLUMN code text; UPDATE outbox SET code = (10000 - id::int)::text");
    interrupted(&lane, &[]);
    lane.sql("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; ALTER TABLE outbox ADD PRIMARY KEY (code)");
    fill(&lane, &[]);
    assert_all(&lane, &numbers(1, 3000));
}

#[test]
fn without_a_marker_nothing_says_that_the_slot_is_the_one_of_the_backfill_before() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; {}; CREATE PUBLICATION {} FOR TABLE outbox", rows(1, 3000), lane.name));
    let create = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", lane.name);
    lane.sql(&create);
    interrupted(&lane, &[]);
    lane.sql(&format!("SELECT pg_drop_replication_slot('{}')", lane.name));
    lane.sql(&rows(9990, 9999));
    lane.sql(&create);
    let says_why = |text: &str| {
        let marks = format!("walrelay setup --apply --publication {0} --slot {0}", lane.name);
        text.contains("no setup marker") && text.contains(&marks)
    };
    let text = fill(&lane, &[]);
    assert!(says_why(&text), "{text}");
    assert_all(&lane, &numbers(1, 3000).into_iter().chain(numbers(9990, 9999)).collect());
    let times = || counted(&lane)["9999"];
    let text = fill(&lane, &[]);
    assert!(says_why(&text) && times() == 2, "{text}");
    set_up(&lane, "outbox");
    let text = fill(&lane, &[]);
    assert!(!text.contains("no setup marker") && times() == 3, "{text}");
    let text = fill(&lane, &[]);
    assert!(text.contains("nothing to do: its rows were published already") && times() == 3, "{text}");
}

#[test]
fn without_a_marker_it_resumes_while_the_slot_is_older_than_the_backfill() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; {}; CREATE PUBLICATION {} FOR TABLE outbox", rows(1, 3000), lane.name));
    lane.sql(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", lane.name));
    interrupted(&lane, &[]);
    fill(&lane, &[]);
    assert_once(&lane, &numbers(1, 3000));
}

#[test]
fn what_was_recorded_for_an_earlier_slot_does_not_count_and_the_hint_names_the_slot() {
    let lane = with_old_rows(5);
    fill(&lane, &[]);
    lane.sql(&format!("SELECT pg_drop_replication_slot('{}')", lane.name));
    lane.sql(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", lane.name));
    let text = fill(&lane, &[]);
    let hint = format!("walrelay setup --apply --after-loss --publication {0} --slot {0}", lane.name);
    assert!(text.contains("what earlier backfills recorded does not count") && text.contains(&hint), "{text}");
    assert!(counted(&lane).values().all(|times| *times == 2), "{:?}", counted(&lane));
}

/// Any role may write a note.
#[test]
fn progress_that_a_role_without_rights_has_written_is_not_believed() {
    let lane = with_old_rows(5);
    fill(&lane, &[]);
    let role = crate::lane::fresh("stranger");
    let note = "SELECT objoid, description FROM pg_description WHERE starts_with(description, 'walrelay backfill: ')";
    lane.sql(&format!(
        "CREATE ROLE {role} LOGIN;
         DO $$ DECLARE note record; BEGIN
             {note} INTO note;
             PERFORM lo_unlink(note.objoid);
             SET LOCAL ROLE {role};
             EXECUTE format('COMMENT ON LARGE OBJECT %s IS %L', lo_create(0), note.description);
         END $$"
    ));
    assert_eq!(lane.connect().query(note, &[]).unwrap().len(), 1);
    let text = fill(&lane, &[]);
    assert!(text.contains("backfill of a table is done"), "{text}");
    assert_eq!(ids(&lane.records_now("order")).len(), 10);
    lane.sql(&format!("SELECT lo_unlink(oid) FROM pg_largeobject_metadata; DROP OWNED BY {role}; DROP ROLE {role}"));
}

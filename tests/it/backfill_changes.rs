//! `backfill` of tables that are changed meanwhile, or were since the slot was created.

use std::collections::BTreeSet;

use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::backfill::{arguments, assert_once, fill, numbers, rows, set_up, with_old_rows};
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

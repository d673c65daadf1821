//! `backfill` of tables that are changed meanwhile, or were since the slot was created.

use std::collections::BTreeSet;

use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::backfill::{arguments, assert_once, fill, filled, numbers, rows, set_up, with_old, with_old_rows};
use crate::lane::{LONG, Lane, OUTBOX, binary, hint, wait_log};

#[track_caller]
fn filling(lane: &Lane, more: &[&str]) -> Relay {
    let filling = Relay::start(&binary(), &arguments(lane, more), &[] as &[(&str, &str)]).unwrap();
    wait_log(&filling, "backfill begins");
    filling
}

/// An index gives the rows in its own order.
#[test]
#[ignore = "slow"]
fn a_table_without_a_key_is_resumed_behind_the_last_row_whatever_the_planner_chooses() {
    let lane = with_old(&format!(
        "{}; INSERT INTO outbox SELECT n::text, 'order', 'k', 't', '{{}}', 1500 - n FROM generate_series(1, 1500) AS n;
         CREATE INDEX ON outbox (back)",
        OUTBOX.replace(" PRIMARY KEY", "").replace("payload jsonb", "payload jsonb, back int")
    ));
    let off = ["enable_seqscan", "enable_tidscan", "enable_bitmapscan"];
    lane.sql(&off.map(|name| format!("ALTER DATABASE {} SET {name} = off", lane.name)).join("; "));
    let more = ["--where", "back >= 0", "--rate", "200"];
    let mut filling = filling(&lane, &more);
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    assert_eq!(filling.terminate(LONG).unwrap().code, 1, "{}", filling.log());
    fill(&lane, &more[..2]);
    assert_once(&lane, &numbers(1, 1500));
}

/// It had been read as if the slot carried it.
#[test]
fn a_row_that_is_updated_before_it_is_read_is_refused_before_the_table_counts_as_done() {
    let lane = with_old_rows(100);
    let mut filling = filling(&lane, &["--rate", "20", "--chunk", "10"]);
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    lane.sql("UPDATE outbox SET type = 'Changed' WHERE id = '99'");
    let code = filling.wait_exit(LONG).unwrap();
    let log = filling.log();
    assert!(code == 2 && log.contains("may have been updated after") && hint(&log).contains("republish"), "{log}");
    assert!(!log.contains("backfill of a table is done"), "{log}");
    fill(&lane, &["--leave-updated"]);
    assert_once(&lane, &numbers(1, 98).into_iter().chain(["100".to_owned()]).collect());
}

/// Each row looks as young as the statement.
#[test]
fn a_table_that_was_rewritten_since_is_refused_whatever_was_changed_later() {
    let lane = with_old_rows(9);
    lane.sql("ALTER TABLE outbox ADD COLUMN seq bigserial; GRANT SELECT ON outbox TO PUBLIC");
    lane.sql("VACUUM FULL outbox");
    for more in [&["--dry-run"][..], &[], &["--leave-updated"]] {
        let (code, text) = filled(&lane, more);
        assert!(code == 2 && text.contains("was rewritten by ALTER TABLE"), "{text}");
    }
    assert_eq!(lane.records_now("order").len(), 0);
}

#[test]
#[ignore = "slow"]
fn a_table_that_was_changed_in_other_ways_or_emptied_is_not_refused() {
    let lane = with_old_rows(9);
    lane.sql("ALTER TABLE outbox ADD COLUMN seq int DEFAULT 5; GRANT SELECT ON outbox TO PUBLIC");
    lane.sql("CREATE INDEX ON outbox (type); CLUSTER outbox USING outbox_pkey; REINDEX TABLE outbox");
    lane.sql("VACUUM FULL outbox");
    fill(&lane, &[]);
    assert_once(&lane, &numbers(1, 9));

    // Rows that came after it are the slot's.
    let lane = with_old_rows(9);
    lane.sql("TRUNCATE outbox");
    lane.sql(&rows(10, 12));
    let relay = lane.streaming(&[]);
    fill(&lane, &[]);
    lane.wait_confirmed();
    drop(relay);
    assert_once(&lane, &numbers(10, 12));
}

#[test]
fn partitions_that_were_rewritten_are_refused_also_where_the_whole_table_has_a_key() {
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
    // A partition that was created later has no row from before.
    lane.sql("CREATE TABLE part_3 PARTITION OF outbox FOR VALUES FROM (20) TO (30); INSERT INTO outbox VALUES (20)");
    let text = fill(&lane, &["--dry-run"]);
    assert!(text.contains("15 rows would be published"), "{text}");
    lane.sql("ALTER TABLE outbox ADD COLUMN at timestamptz DEFAULT clock_timestamp()");
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("part_1 was rewritten by ALTER TABLE"), "{text}");
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

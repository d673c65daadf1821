//! What `prune` does with partitions, children and tables that were published later than their rows came.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use walrelay_dev::postgres::default_major;
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, hint};
use crate::prune::{AGED, finished, left, noted, old, proven, pruned, set_up, state_published, waiting};

#[test]
fn children_by_inheritance_that_are_not_published_stay() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql("CREATE TABLE child () INHERITS (outbox)");
    lane.sql(&old(&["published"]));
    lane.sql(&old(&["never"]).replace("INTO outbox", "INTO child"));
    let _relay = lane.streaming(&["--table", "ONLY outbox"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows deleted"), "{text}");
    assert_eq!(left(&lane), ["never"]);
}

#[test]
fn partitions_that_are_not_published_stay() {
    let lane = Lane::empty();
    lane.sql(&format!("{} PARTITION BY LIST (id)", AGED.replace("text PRIMARY KEY", "text")));
    lane.sql(
        "CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a'); CREATE TABLE outbox_b PARTITION OF outbox FOR VALUES IN ('b')",
    );
    lane.publish("outbox_a");
    lane.make_slot();
    set_up(&lane, &[]);
    noted(&lane, &["--table=outbox_a"]);
    lane.sql(&old(&["a", "b"]));
    let _relay = lane.streaming(&["--table=outbox_a"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--table", "outbox"]);
    assert!(code == 2 && text.contains("partition public.outbox_b: the publication does not send all"), "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows deleted"), "{text}");
    assert_eq!(left(&lane), ["b"]);
}

/// A table that is partitioned by its id, with a slot that `setup` has created.
pub(crate) fn by_id() -> Lane {
    let lane = Lane::empty();
    lane.sql(&format!("{} PARTITION BY LIST (id)", AGED.replace("text PRIMARY KEY", "text")));
    lane.sql("CREATE TABLE outbox_z PARTITION OF outbox FOR VALUES IN ('z')");
    set_up(&lane, &["--table", "outbox"]);
    noted(&lane, &["--table", "outbox"]);
    lane
}

#[test]
fn rows_of_a_partition_that_was_created_as_one_later_are_known() {
    let lane = by_id();
    lane.sql(&format!("BEGIN; CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a'); {}; COMMIT", old(&["a"])));
    let _relay = lane.streaming(&["--table", "outbox"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows deleted"), "{text}");
    assert_eq!(lane.ids("order"), ["a"]);
}

/// Nobody has received these: the publication had only the tables that they were not in.
#[test]
fn rows_that_a_partition_had_when_it_was_attached_stay() {
    let lane = by_id();
    lane.sql("CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a'); CREATE TABLE outbox_b (LIKE outbox INCLUDING DEFAULTS)");
    lane.sql(&old(&["b0"]).replace("INTO outbox", "INTO outbox_b"));
    lane.sql("ALTER TABLE outbox ATTACH PARTITION outbox_b FOR VALUES IN ('b0', 'b1')");
    lane.sql(&old(&["a"]));
    let _relay = lane.streaming(&["--table", "outbox"]);
    assert_eq!(lane.ids("order"), ["a"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("partition public.outbox_b: nothing says"), "{text}");
    assert_eq!(left(&lane), ["a", "b0"], "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--dry-run"]);
    assert!(code == 2 && text.contains("partition public.outbox_b"), "{text}");
    // What is printed publishes them, and they may go.
    if default_major() >= 15 {
        lane.sql(hint(&text).split("before that: ").nth(1).unwrap());
        assert_eq!(lane.ids("order"), ["a", "b0"]);
    }
    state_published(&lane, "outbox");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("2 rows deleted"), "{text}");
}

/// Its rows of that time are in no slot, although the partition was empty when the slot was created.
#[test]
fn rows_that_came_into_a_partition_while_it_was_detached_stay() {
    let lane = Lane::empty();
    lane.sql(&format!("{} PARTITION BY LIST (id)", AGED.replace("text PRIMARY KEY", "text")));
    lane.sql("CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a')");
    set_up(&lane, &["--table", "outbox"]);
    let _relay = lane.streaming(&["--table", "outbox"]);
    lane.sql("ALTER TABLE outbox DETACH PARTITION outbox_a");
    lane.sql(&old(&["a"]).replace("INTO outbox", "INTO outbox_a"));
    lane.sql("ALTER TABLE outbox ATTACH PARTITION outbox_a FOR VALUES IN ('a')");
    assert_eq!(lane.ids("order").len(), 0);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("partition public.outbox_a: nothing says"), "{text}");
    assert_eq!(left(&lane), ["a"]);
}

/// As pg_partman does, days before its first row.
#[test]
#[ignore = "slow"]
fn a_partition_that_the_relay_has_seen_attached_and_empty_is_known() {
    let lane = by_id();
    let _relay = lane.streaming(&["--table", "outbox"]);
    lane.sql("CREATE TABLE outbox_a (LIKE outbox INCLUDING DEFAULTS); ALTER TABLE outbox ATTACH PARTITION outbox_a FOR VALUES IN ('a')");
    wait_noted(&lane, "outbox_a");
    lane.sql(&old(&["a"]));
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    let is_known = default_major() >= 15;
    assert!(if is_known { code == 0 && text.contains("1 rows deleted") } else { code == 2 }, "{text}");
}

/// As a ring of partitions does.
#[test]
#[ignore = "slow"]
fn a_partition_that_the_relay_has_seen_empty_is_known_after_it_was_truncated_and_rewritten() {
    let lane = by_id();
    let _relay = lane.streaming(&["--table", "outbox"]);
    lane.sql("CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a')");
    wait_noted(&lane, "outbox_a");
    lane.sql(&old(&["a"]));
    lane.sql("TRUNCATE outbox_a");
    lane.sql(&old(&["a"]));
    lane.sql("VACUUM FULL outbox_a");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows deleted"), "{text}");
}

/// Waits until the relay has noted that a table has no row.
#[track_caller]
fn wait_noted(lane: &Lane, table: &str) {
    let noted = format!(
        "SELECT EXISTS (SELECT FROM pg_description WHERE description LIKE 'walrelay tables: %' || '{table}'::regclass::oid || '%')"
    );
    let mut client = lane.connect();
    wait_until(LONG, "the relay's look", || Ok(client.query_one(&noted, &[])?.get(0))).unwrap();
}

#[test]
fn rows_that_a_table_had_when_it_came_into_a_published_schema_stay() {
    if default_major() < 15 {
        return;
    }
    let lane = Lane::empty();
    lane.sql(&format!(
        "CREATE SCHEMA events; {}; CREATE PUBLICATION {} FOR TABLES IN SCHEMA events WITH (publish = 'insert')",
        AGED.replace("outbox", "events.other"),
        lane.name
    ));
    lane.make_slot();
    set_up(&lane, &[]);
    lane.sql(&format!("{AGED}; {}; ALTER TABLE outbox SET SCHEMA events", old(&["before"])));
    lane.sql(&old(&["after"]).replace("INTO outbox", "INTO events.outbox"));
    let _relay = lane.streaming(&["--table=events.outbox", "--table=events.other"]);
    assert_eq!(lane.ids("order"), ["after"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("events.outbox: nothing says"), "{text}");
    let left = lane.connect().query("SELECT id FROM events.outbox ORDER BY id", &[]).unwrap();
    assert_eq!(left.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["after", "before"]);
}

/// Each of them comes while a partition with many rows is dropped, and waits.
#[test]
fn readers_of_the_whole_table_are_not_ended_while_a_partition_is_dropped() {
    let lane = in_partitions();
    set_up(&lane, &[]);
    let _relay = lane.streaming(&["--table", "outbox", "--on-bad-row=skip"]);
    lane.sql("INSERT INTO outbox SELECT n::text, 'order', 'k', 'p' FROM generate_series(1, 100000) AS n");
    lane.wait_confirmed();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = lane.connect();
                    while !stop.load(Ordering::Relaxed) {
                        client.query_one("SELECT count(*) FROM outbox", &[]).unwrap();
                    }
                })
            })
            .collect();
        let (code, text) = pruned(&lane, &["--older-than", "1h", "--partitions"]);
        let mut said = text;
        for _ in 0..50 {
            if said.contains("dropped partition") {
                break;
            }
            said = pruned(&lane, &["--older-than", "1h", "--partitions"]).1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(code == 0 && said.contains("dropped partition"), "{said}");
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// With one partition, which is old, and rows that go there.
pub(crate) fn in_partitions() -> Lane {
    let lane = Lane::empty();
    lane.sql(&format!(
        "{} PARTITION BY RANGE (created_at)",
        AGED.replace("text PRIMARY KEY", "text").replace("interval '1 day'", "interval '3 days'")
    ));
    lane.sql(
        "DO $$ BEGIN EXECUTE format('CREATE TABLE outbox_old PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
                                    current_date - 4, current_date - 1); END $$",
    );
    lane.publish("outbox");
    lane.make_slot();
    lane
}

#[test]
fn old_partitions_are_dropped_once_delivered_and_none_is_created() {
    let lane = proven(in_partitions());
    lane.sql(&old(&["1", "2"]));
    let child = waiting(&lane, &["--older-than", "1h", "--partitions"]);
    let there = |name: &str| -> bool {
        lane.connect().query_one("SELECT to_regclass($1) IS NOT NULL", &[&name]).unwrap().get(0)
    };
    assert!(there("outbox_old") && left(&lane) == ["1", "2"]);
    lane.sql(&old(&["late"]));
    let _relay = lane.streaming(&["--table", "outbox"]);
    let text = finished(child);
    assert!(text.contains("dropped partition public.outbox_old"), "{text}");
    assert!(!there("outbox_old"));
    let partitions = || lane.connect().query("SELECT FROM pg_inherits", &[]).unwrap().len();
    assert_eq!(partitions(), 0, "it creates none");
    lane.sql(
        "DO $$ BEGIN EXECUTE format('CREATE TABLE outbox_now PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
                                    current_date - 1, current_date + 1); END $$",
    );
    lane.sql("INSERT INTO outbox VALUES ('now', 'order', 'k', 'p', now())");
    assert_eq!(lane.ids("order"), ["1", "2", "late", "now"], "what came meanwhile is published");
    let (_, again) = pruned(&lane, &["--older-than", "1h", "--partitions"]);
    assert!(again.contains("no partition is older") && partitions() == 1, "{again}");
}

/// Their rows were sent by the publication, although the table itself is not in it, and each drop changes it.
#[test]
fn old_partitions_are_dropped_where_the_publication_names_only_partitions() {
    let lane = in_partitions();
    lane.sql(
        "DO $$ BEGIN EXECUTE format('CREATE TABLE outbox_older PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
                                    current_date - 8, current_date - 4); END $$",
    );
    lane.sql(&format!("DROP PUBLICATION {}", lane.name));
    lane.publish("outbox_old, outbox_older");
    let lane = proven(lane);
    let _relay = lane.streaming(&[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--partitions", "--table", "outbox"]);
    let is_dropped = |name: &str| text.contains(&format!("dropped partition public.{name}\n"));
    assert!(code == 0 && is_dropped("outbox_old") && is_dropped("outbox_older"), "{text}");
}

/// They may be the ones that nobody has received.
#[test]
fn a_partition_with_rows_that_the_role_does_not_see_is_not_dropped() {
    let lane = in_partitions();
    lane.sql(&old(&["before"]));
    let lane = proven(lane);
    let role = format!("{}_owner", lane.name);
    lane.sql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA public TO {role}; ALTER TABLE outbox OWNER TO {role};
         ALTER TABLE outbox_old OWNER TO {role}; ALTER TABLE outbox_old ENABLE ROW LEVEL SECURITY;
         ALTER TABLE outbox_old FORCE ROW LEVEL SECURITY; CREATE POLICY shown ON outbox_old USING (id <> 'before')"
    ));
    lane.sql(&old(&["after"]));
    let _relay = lane.streaming(&["--table", "outbox"]);
    let source = lane.source.replace("postgres@", &format!("{role}@"));
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--partitions", "--source", &source]);
    assert_eq!(left(&lane), ["after", "before"], "{text}");
    assert!(code == 64 && text.contains("row security hides rows of partition public.outbox_old"), "{text}");
    lane.sql(&format!("REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}; DROP ROLE {role}"));
}

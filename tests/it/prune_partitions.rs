//! What `prune` does with partitions, children and tables that were published later than their rows came.

use walrelay_dev::postgres::default_major;

use crate::lane::Lane;
use crate::prune::{AGED, finished, left, old, proven, pruned, waiting};

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
    let lane = proven(lane);
    lane.sql(&old(&["a", "b"]));
    let _relay = lane.streaming(&["--table=outbox_a"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("does not have all of its partitions"), "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--table", "outbox_a"]);
    assert!(code == 0 && text.contains("1 rows deleted"), "{text}");
    assert_eq!(left(&lane), ["b"]);
}

/// Nobody has received these: the publication had only the tables that they were not in.
#[test]
#[ignore = "slow"]
fn rows_that_a_partition_had_when_it_was_attached_stay() {
    for via_root in ["true", "false"] {
        let lane = Lane::empty();
        lane.sql(&format!("{} PARTITION BY LIST (id)", AGED.replace("text PRIMARY KEY", "text")));
        lane.publish("outbox");
        lane.sql(&format!("ALTER PUBLICATION {} SET (publish_via_partition_root = {via_root})", lane.name));
        lane.make_slot();
        let lane = proven(lane);
        lane.sql("CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a'); CREATE TABLE outbox_b (LIKE outbox INCLUDING DEFAULTS)");
        lane.sql(&old(&["b0"]).replace("INTO outbox", "INTO outbox_b"));
        lane.sql("ALTER TABLE outbox ATTACH PARTITION outbox_b FOR VALUES IN ('b0', 'b1')");
        lane.sql(&old(&["a", "b1"]));
        let _relay = lane.streaming(&["--table", "outbox"]);
        let received = lane.ids("order");
        let (_, looked) = pruned(&lane, &["--older-than", "1h", "--dry-run"]);
        let (code, text) = pruned(&lane, &["--older-than", "1h"]);
        if default_major() < 15 {
            // That server does not notice that the table is published now, and sends none of its later rows.
            assert!(code == 0 && received == ["a"] && left(&lane) == ["b0", "b1"], "{received:?}: {text}");
            continue;
        }
        assert_eq!(received, ["a", "b1"]);
        assert!(looked.contains("public.outbox: 2 rows are older"), "{looked}");
        assert!(code == 0 && text.contains("2 rows deleted"), "{text}");
        assert_eq!(left(&lane), ["b0"], "{text}");
        assert!(text.contains("1 rows stay that outbox_b had before"), "{text}");
        // What is printed publishes them, and they may go.
        let statement = text.split("never were: ").nth(1).and_then(|rest| rest.split("; to delete").next()).unwrap();
        lane.sql(statement);
        assert_eq!(lane.ids("order"), ["a", "b1", "b0"]);
        let (code, text) = pruned(&lane, &["--older-than", "1h"]);
        assert!(code == 0 && text.contains("1 rows deleted") && !text.contains("stay"), "{text}");
    }
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
    let lane = proven(lane);
    lane.sql(&format!("{AGED}; {}; ALTER TABLE outbox SET SCHEMA events", old(&["before"])));
    lane.sql(&old(&["after"]).replace("INTO outbox", "INTO events.outbox"));
    let _relay = lane.streaming(&["--table=events.outbox", "--table=events.other"]);
    assert_eq!(lane.ids("order"), ["after"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("events.outbox: 1 rows deleted"), "{text}");
    let left = lane.connect().query("SELECT id FROM events.outbox", &[]).unwrap();
    assert_eq!(left.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["before"]);
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
    assert!(text.contains("rows still come into partition public.outbox_old"), "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--partitions"]);
    assert!(code == 0 && text.contains("dropped partition public.outbox_old"), "{text}");
    assert!(!there("outbox_old"));
    let partitions = || lane.connect().query("SELECT FROM pg_inherits", &[]).unwrap().len();
    assert_eq!(partitions(), 0, "it creates none");
    lane.sql(
        "DO $$ BEGIN EXECUTE format('CREATE TABLE outbox_now PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
                                    current_date - 1, current_date + 1); END $$",
    );
    lane.sql("INSERT INTO outbox VALUES ('now', 'order', 'k', 'p', now())");
    assert_eq!(lane.ids("order"), ["1", "2", "late", "now"]);
    let (_, again) = pruned(&lane, &["--older-than", "1h", "--partitions"]);
    assert!(again.contains("no partition is older") && partitions() == 1, "{again}");
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

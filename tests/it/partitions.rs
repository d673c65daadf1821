//! Partitions come, go and take places while the relay reads them.

use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::tap::Tap;

use crate::lane::{LONG, Lane, ended, hint, ids, values, wait_events};

/// A partitioned table that gets a partition while the relay runs, and one with columns in another order.
#[track_caller]
fn check_partitions(via_root: bool, more: &[&str]) {
    let lane = Lane::empty();
    lane.sql(
        "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload jsonb, day int) PARTITION BY RANGE (day);
         CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (1) TO (2)",
    );
    lane.sql(&format!(
        "CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = {via_root})",
        lane.name
    ));
    lane.make_slot();
    let relay = lane.streaming(more);
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', '1', 1)");
    wait_events(&relay, 1);
    lane.sql(
        "CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (2) TO (3);
         INSERT INTO outbox VALUES (2, 'order', 'k', 't', '2', 2);
         CREATE TABLE late (payload jsonb, day int, gone text, type text, aggregateid text, aggregatetype text, id int);
         ALTER TABLE late DROP gone;
         ALTER TABLE outbox ATTACH PARTITION late FOR VALUES FROM (3) TO (4);
         BEGIN;
         INSERT INTO outbox VALUES (3, 'order', 'k', 't', '3', 3), (4, 'order', 'k', 't', '4', 1);
         CREATE TABLE outbox_4 PARTITION OF outbox FOR VALUES FROM (4) TO (5);
         INSERT INTO outbox VALUES (5, 'order', 'k', 't', '5', 4);
         COMMIT;
         INSERT INTO outbox VALUES (6, 'order', 'k', 't', '6', 2)",
    );
    let records = lane.records("order");
    let expected = ["1", "2", "3", "4", "5", "6"];
    assert_eq!(ids(&records), expected, "{}", relay.log());
    assert_eq!(values(&records), expected);
}

#[test]
fn a_partition_that_is_attached_live_is_published_as_itself() {
    check_partitions(false, &[]);
}

#[test]
fn a_partition_that_is_attached_live_is_published_as_its_root() {
    check_partitions(true, &[]);
}

#[test]
fn a_partition_that_is_attached_live_belongs_to_the_table_that_is_asked_for() {
    check_partitions(false, &["--table=outbox"]);
}

#[test]
fn a_partition_that_is_attached_live_is_published_as_its_root_that_is_asked_for() {
    check_partitions(true, &["--table=public.outbox"]);
}

/// A partitioned table with two partitions, a publication that shows them, and a slot.
fn partitioned(published: &str) -> Lane {
    let lane = Lane::empty();
    lane.sql(
        "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload jsonb, day int) PARTITION BY RANGE (day);
         CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (1) TO (2);
         CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (2) TO (3)",
    );
    lane.sql(&format!("CREATE PUBLICATION {} FOR {published} WITH (publish = 'insert')", lane.name));
    lane.make_slot();
    lane
}

#[test]
fn rows_of_a_partition_that_was_dropped_before_the_relay_came_stop_it_and_the_hint_lets_them_through() {
    let lane = partitioned("TABLE outbox");
    for (id, day) in [(1, 1), (2, 2), (3, 1)] {
        lane.sql(&format!("INSERT INTO outbox VALUES ({id}, 'order', 'k', 't', '{id}', {day})"));
    }
    lane.sql("ALTER TABLE outbox DETACH PARTITION outbox_2");
    lane.sql("DROP TABLE outbox_2");
    let (code, log) = ended(&mut lane.relay(&["--table=outbox"]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("error: a row of public.outbox_2 cannot be published"), "{log}");
    let hint = hint(&log);
    assert!(hint.contains("id 2 ") && hint.contains(&format!(" at {}", lane.confirmed())), "{hint}");
    assert!(hint.contains("leave out --table") && hint.contains("=skip"), "{hint}");
    assert_eq!(ids(&lane.records_now("order")), ["1"]);
    let relay = lane.relay(&[]);
    assert_eq!(lane.ids("order"), ["1", "2", "3"], "{}", relay.log());
}

#[test]
fn rows_of_a_partition_that_is_gone_may_be_passed_over_or_become_dead_letters_if_that_is_asked_for() {
    let lane = partitioned("TABLE outbox");
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', '1', 2), (2, 'order', 'k', 't', '2', 1)");
    lane.sql("ALTER TABLE outbox DETACH PARTITION outbox_2");
    let mut relay = lane.relay(&["--table=outbox", "--on-bad-row=dead-letter"]);
    assert_eq!(lane.ids("order"), ["2"], "{}", relay.log());
    let dead_letters = lane.records_now("dead-letter");
    assert_eq!((ids(&dead_letters), values(&dead_letters)), (vec!["1".to_owned()], vec!["1".to_owned()]));
    assert_eq!(dead_letters[0].header("walrelay-table"), Some("public.outbox_2"));
    assert_eq!(relay.metric("walrelay_bad_rows_total").unwrap().to_string(), "1");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// Two partitions with rows that the relay has not read go, one for good.
#[track_caller]
fn check_partitions_that_go(published: &str) {
    let lane = partitioned(published);
    let tap = Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port())).unwrap();
    let source = format!("postgres://postgres@{}/{}", tap.address(), lane.name);
    let relay = lane.streaming(&["--source", &source, "--table=outbox"]);
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', '1', 1)");
    wait_events(&relay, 1);
    tap.refuse(true);
    tap.cut();
    lane.sql("INSERT INTO outbox VALUES (2, 'order', 'k', 't', '2', 2), (3, 'order', 'k', 't', '3', 1)");
    lane.sql("ALTER TABLE outbox DETACH PARTITION outbox_1");
    lane.sql("ALTER TABLE outbox DETACH PARTITION outbox_2");
    lane.sql("DROP TABLE outbox_2");
    lane.sql("CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES FROM (3) TO (4)");
    lane.sql("INSERT INTO outbox VALUES (4, 'order', 'k', 't', '4', 3)");
    tap.refuse(false);
    assert_eq!(lane.ids("order"), ["1", "2", "3", "4"], "{}", relay.log());
}

#[test]
fn a_partition_that_goes_while_the_relay_is_cut_off_leaves_no_row_behind() {
    check_partitions_that_go("TABLE outbox");
}

#[test]
fn a_partition_that_goes_while_the_relay_of_a_publication_of_all_tables_is_cut_off_leaves_no_row_behind() {
    check_partitions_that_go("ALL TABLES");
}

#[test]
fn an_update_that_moves_a_row_to_another_partition_is_published_as_the_insert_that_it_is() {
    let lane = partitioned("TABLE outbox");
    let relay = lane.streaming(&["--table=outbox"]);
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', '1', 1)");
    lane.sql("UPDATE outbox SET payload = '2'");
    lane.sql("UPDATE outbox SET day = 2");
    assert_eq!(values(&lane.records("order")), ["1", "2"], "{}", relay.log());
}

#[test]
fn a_table_that_is_attached_once_it_was_seen_as_one_of_its_own_is_published_from_then_on() {
    let lane = partitioned("ALL TABLES");
    lane.sql("CREATE TABLE late (LIKE outbox); CREATE TABLE unused (LIKE outbox)");
    let relay = lane.streaming(&["--table=outbox"]);
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', '1', 1)");
    lane.sql("INSERT INTO late VALUES (-1, 'order', 'k', 't', '-1', 3)");
    lane.wait_confirmed();
    lane.sql("INSERT INTO late VALUES (-2, 'order', 'k', 't', '-2', 3)");
    // A row that comes again with the next connection is read with the catalog as it is then.
    lane.wait_confirmed();
    lane.sql("ALTER TABLE outbox ATTACH PARTITION late FOR VALUES FROM (3) TO (4)");
    lane.sql("ALTER TABLE outbox ATTACH PARTITION unused FOR VALUES FROM (4) TO (5)");
    lane.sql("INSERT INTO outbox VALUES (2, 'order', 'k', 't', '2', 3)");
    lane.sql("INSERT INTO outbox VALUES (3, 'order', 'k', 't', '3', 4), (4, 'order', 'k', 't', '4', 3)");
    assert_eq!(lane.ids("order"), ["1", "2", "3", "4"], "{}", relay.log());
}

#[test]
fn rows_of_a_partitioned_table_that_takes_the_place_of_the_one_asked_for_arrive() {
    let lane = Lane::empty();
    lane.sql(&format!(
        "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, payload jsonb);
         CREATE TABLE outbox_new (LIKE outbox) PARTITION BY LIST (type);
         CREATE TABLE outbox_2026_01 PARTITION OF outbox_new DEFAULT;
         CREATE PUBLICATION {} FOR ALL TABLES WITH (publish = 'insert')",
        lane.name
    ));
    lane.make_slot();
    let _relay = lane.streaming(&["--table", "outbox"]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1"]);
    lane.sql("ALTER TABLE outbox RENAME TO outbox_old; ALTER TABLE outbox_new RENAME TO outbox");
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1", "2"]);
}

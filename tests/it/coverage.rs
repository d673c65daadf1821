//! Every row of the outbox tables reaches the slot, or somebody is told: partitions, tables that inherit, `UNLOGGED` tables, publications
//! that are changed.

use std::collections::BTreeSet;

use walrelay_dev::postgres::default_major;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::check::check;
use crate::lane::{LONG, Lane, OUTBOX, ended, hint, ids, wait_events, wait_log};
use crate::shards::Shards;

/// The columns of a partitioned outbox.
const DAYS: &str =
    "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text, day int)
                    PARTITION BY LIST (day)";

/// The first version with row filters, column lists and publications of schemas.
const FIFTEEN: u32 = 15;

/// A partitioned outbox with two partitions, and a publication of these tables.
fn partitioned(published: &str) -> Lane {
    let lane = Lane::empty();
    lane.sql(&format!(
        "{DAYS};
         CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1);
         CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES IN (2);
         CREATE PUBLICATION {} FOR {published}",
        lane.name
    ));
    lane.make_slot();
    lane
}

/// A publication of all tables.
fn of_all(tables: &str) -> Lane {
    let lane = Lane::empty();
    lane.sql(&format!("{tables}; CREATE PUBLICATION {} FOR ALL TABLES WITH (publish = 'insert')", lane.name));
    lane.make_slot();
    lane
}

/// A row of a partition.
fn row(lane: &Lane, id: u32, day: u32) {
    lane.sql(&format!("INSERT INTO outbox VALUES ({id}, 'order', 'k', 't', 'p', {day})"));
}

/// The error and the hint of a start that ends with 2.
#[track_caller]
fn refused(lane: &Lane, more: &[&str], words: &[&str]) -> String {
    let (code, log) = ended(&mut lane.relay(more));
    assert_eq!(code, 2, "{log}");
    for word in words {
        assert!(log.contains(word), "{word:?} is not in {log}");
    }
    let found = check(lane, more);
    assert_ne!(found.code, 0, "check: {:#}", found.report);
    let fix = found.level("publication", "fail", &[]);
    let hint = hint(&log);
    assert_eq!(fix.split_whitespace().next(), hint.split_whitespace().next(), "check: {fix}; run: {hint}");
    hint
}

/// Waits until `/readyz` says 503 with these words. Returns the SQL of its hint.
#[track_caller]
fn not_ready(relay: &Relay, words: &[&str]) -> String {
    let mut body = String::new();
    let found = wait_until(LONG, "503", || {
        let answer = relay.get("/readyz")?;
        body = answer.body;
        Ok(answer.status == 503 && words.iter().all(|word| body.contains(word)))
    });
    found.unwrap_or_else(|error| panic!("{error}: {words:?} {body} {}", relay.log()));
    body.split("hint: ").nth(1).unwrap_or_default().to_owned()
}

#[track_caller]
fn ready(relay: &Relay) {
    let mut body = String::new();
    let found = wait_until(LONG, "200", || {
        let answer = relay.get("/readyz")?;
        body = answer.body;
        Ok(answer.status == 200)
    });
    found.unwrap_or_else(|error| panic!("{error}: {body} {}", relay.log()));
}

#[test]
fn a_partition_that_is_not_published_while_another_one_is_ends_the_start_and_the_hint_publishes_it() {
    for more in [&[][..], &["--table=outbox"]] {
        let lane = partitioned("TABLE outbox_1");
        let hint = refused(&lane, more, &["partition public.outbox_2 is not in publication", "public.outbox"]);
        assert!(hint.contains("ADD TABLE \"public\".\"outbox\";"), "{hint}");
        lane.sql(&hint);
        let relay = lane.streaming(more);
        row(&lane, 1, 1);
        row(&lane, 2, 2);
        assert_eq!(lane.ids("order"), ["1", "2"], "{}", relay.log());
        ready(&relay);
    }
    // One partition alone, which is what was asked for.
    let lane = partitioned("TABLE outbox_1");
    let relay = lane.streaming(&["--table=outbox_1"]);
    row(&lane, 1, 1);
    row(&lane, 2, 2);
    assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
}

#[test]
fn a_partition_that_comes_and_is_not_published_makes_the_relay_unready_until_its_statement_has_run() {
    for more in [&[][..], &["--table=outbox"]] {
        let lane = partitioned("TABLE outbox_1, outbox_2");
        assert!(check(&lane, more).level("partitions", "warn", &["one by one"]).contains("ADD TABLE"));
        let relay = lane.streaming(more);
        ready(&relay);
        lane.sql("CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)");
        let sql = not_ready(&relay, &["public.outbox_3", "ADD TABLE \"public\".\"outbox\";"]);
        row(&lane, 1, 1);
        lane.sql(&sql);
        ready(&relay);
        row(&lane, 2, 3);
        assert_eq!(lane.ids("order"), ["1", "2"], "{}", relay.log());
    }
}

#[test]
fn the_statement_for_a_partition_has_the_filter_and_the_columns_of_the_others() {
    if default_major() < FIFTEEN {
        return;
    }
    let columns = "(id, aggregatetype, aggregateid, type, payload)";
    let lane = partitioned(&format!("TABLE outbox_1 {columns} WHERE (id > 0) WITH (publish = 'insert')"));
    let hint = refused(&lane, &["--table=outbox"], &["outbox_2"]);
    assert!(
        hint.contains("ADD TABLE \"public\".\"outbox_2\" (\"id\", ") && hint.contains("WHERE ((id > 0))"),
        "{hint}"
    );
    lane.sql(&hint);
    let relay = lane.streaming(&["--table=outbox"]);
    row(&lane, 1, 2);
    row(&lane, 0, 2);
    row(&lane, 2, 1);
    assert_eq!(lane.ids("order"), ["1", "2"], "{}", relay.log());
    ready(&relay);
    lane.sql(&format!("ALTER PUBLICATION {} SET TABLE outbox_1 WHERE (id > 0), outbox_2", lane.name));
    lane.sql("CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)");
    let hint = not_ready(&relay, &["outbox_3"]);
    assert!(hint.contains("ADD TABLE …") && hint.contains("the others differ"), "{hint}");
}

#[test]
fn a_child_wants_to_be_named_or_left_out_and_both_are_in_the_hint() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; CREATE TABLE archive (at int) INHERITS (outbox)"));
    lane.publish("outbox");
    lane.make_slot();
    let hint = refused(&lane, &["--table=outbox"], &["public.archive inherits from public.outbox"]);
    assert!(hint.contains("--table public.outbox --table public.archive"), "{hint}");
    assert!(hint.contains("--table 'ONLY public.outbox'"), "{hint}");
    let relay = lane.streaming(&["--table", "ONLY outbox"]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', 'null')");
    lane.sql("INSERT INTO archive VALUES ('no', 'order', 'k', 't', 'null', 1)");
    assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
    ready(&relay);
    drop(relay);
    let relay = lane.streaming(&["--table=outbox", "--table=archive"]);
    lane.sql("INSERT INTO archive VALUES ('2', 'order', 'k', 't', 'null', 1)");
    assert_eq!(lane.ids("order"), ["1", "2"], "{}", relay.log());
    ready(&relay);
}

#[test]
fn a_child_that_comes_makes_the_relay_unready_and_one_that_is_not_published_ends_a_start() {
    for more in [&[][..], &["--table=outbox"]] {
        let lane = Lane::debezium();
        let mut relay = lane.streaming(more);
        ready(&relay);
        lane.sql("CREATE TABLE outbox_2020 () INHERITS (outbox)");
        not_ready(&relay, &["public.outbox_2020 inherits from public.outbox", "ADD TABLE \"public\".\"outbox_2020\";"]);
        wait_log(&relay, "public.outbox_2020 inherits from public.outbox");
        lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', 'null')");
        assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
        assert_eq!(relay.terminate(LONG).unwrap().code, 0);
        let hint = refused(&lane, more, &["public.outbox_2020 inherits from public.outbox"]);
        let sql = hint.split("ALTER").nth(1).unwrap().split(';').next().unwrap();
        lane.sql(&format!("ALTER{sql}"));
        let named = ["--table=outbox", "--table=outbox_2020"];
        let relay = lane.streaming(if more.is_empty() { &[] } else { &named });
        lane.sql("INSERT INTO outbox_2020 VALUES ('2', 'order', 'k', 't', 'null')");
        assert_eq!(lane.ids("order"), ["1", "2"], "{}", relay.log());
        ready(&relay);
    }
}

#[test]
fn setup_adds_a_table_without_the_tables_that_inherit_if_only_comes_before_it() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; CREATE TABLE archive () INHERITS (outbox)"));
    let _relay = lane.streaming(&["--setup", "--table", "ONLY outbox"]);
    let sql = "SELECT string_agg(tablename, ',') FROM pg_publication_tables WHERE pubname = $1";
    let published: String = lane.connect().query_one(sql, &[&lane.name]).unwrap().get(0);
    assert_eq!(published, "outbox");
}

#[test]
fn an_unlogged_partition_ends_the_start_and_its_statement_lets_it_begin() {
    let lane = partitioned("TABLE outbox WITH (publish = 'insert')");
    lane.sql("CREATE UNLOGGED TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)");
    for more in [&[][..], &["--table=outbox"]] {
        let hint = refused(&lane, more, &["public.outbox_3 is UNLOGGED"]);
        assert!(hint.starts_with("ALTER TABLE \"public\".\"outbox_3\" SET LOGGED;"), "{hint}");
    }
    lane.sql("ALTER TABLE outbox_3 SET LOGGED");
    let relay = lane.streaming(&["--table=outbox"]);
    row(&lane, 1, 3);
    assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
}

#[test]
fn a_table_that_is_set_unlogged_makes_the_relay_unready_as_long_as_it_is() {
    let lane = of_all(&format!("{OUTBOX}; CREATE UNLOGGED TABLE cache (id int)"));
    let relay = lane.streaming(&["--table=outbox"]);
    ready(&relay);
    lane.sql("ALTER TABLE outbox SET UNLOGGED");
    let sql = not_ready(&relay, &["public.outbox is UNLOGGED"]);
    lane.sql(&sql);
    ready(&relay);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', 'null')");
    assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
    lane.sql("ALTER TABLE outbox SET UNLOGGED");
    drop(relay);
    let hint = refused(&lane, &["--table=outbox"], &["public.outbox is UNLOGGED"]);
    assert!(hint.starts_with("ALTER TABLE"), "{hint}");
}

#[test]
fn a_foreign_partition_is_named_and_its_statement_detaches_it() {
    let lane = partitioned("TABLE outbox WITH (publish = 'insert')");
    lane.sql("CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER there FOREIGN DATA WRAPPER elsewhere");
    let relay = lane.streaming(&["--table=outbox"]);
    ready(&relay);
    lane.sql("CREATE FOREIGN TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3) SERVER there");
    not_ready(&relay, &["public.outbox_3 of public.outbox is a foreign table"]);
    let mut relay = relay;
    assert_eq!(relay.terminate(LONG).unwrap().code, 0);
    let hint = refused(&lane, &["--table=outbox"], &["public.outbox_3"]);
    lane.sql(&hint);
    let relay = lane.streaming(&["--table=outbox"]);
    ready(&relay);
}

#[test]
fn a_partitioned_table_without_partitions_is_waited_with() {
    for published in ["TABLE outbox", "ALL TABLES"] {
        let lane = Lane::empty();
        lane.sql(DAYS);
        lane.sql(&format!("CREATE PUBLICATION {} FOR {published} WITH (publish = 'insert')", lane.name));
        lane.make_slot();
        let more = if published == "TABLE outbox" { &[][..] } else { &["--table=outbox"] };
        let found = check(&lane, more);
        found.level("partitions", "ok", &["no partition yet"]);
        found.level("publication", "ok", &[]);
        let mut relay = lane.streaming(more);
        ready(&relay);
        lane.sql("CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1)");
        row(&lane, 1, 1);
        assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
        lane.sql("ALTER TABLE outbox DETACH PARTITION outbox_1");
        lane.sql("DROP TABLE outbox_1");
        assert_eq!(relay.terminate(LONG).unwrap().code, 0);
        let relay = lane.streaming(more);
        ready(&relay);
    }
}

#[test]
fn a_publication_that_grows_by_itself_wants_the_tables_named() {
    let lane = of_all(OUTBOX);
    lane.sql("CREATE TABLE copy AS TABLE outbox");
    let hint = refused(&lane, &[], &["all tables", "has to be said"]);
    assert!(hint.contains("--table public.copy --table public.outbox") && hint.contains("; leave out"), "{hint}");
    let hint = refused(&lane, &["--message-prefix=outbox"], &["all tables"]);
    assert!(hint.contains("--table public."), "{hint}");
    if default_major() >= FIFTEEN {
        let lane = Lane::empty();
        lane.sql(&format!("{OUTBOX}; CREATE PUBLICATION {} FOR TABLES IN SCHEMA public", lane.name));
        lane.make_slot();
        let hint = refused(&lane, &[], &["all tables of a schema"]);
        assert!(hint.contains("walrelay run --table public.outbox"), "{hint}");
        let _relay = lane.streaming(&["--table=outbox"]);
    }
}

#[test]
fn messages_alone_are_published_from_a_publication_without_tables() {
    let lane = Lane::empty();
    lane.sql(&format!("CREATE PUBLICATION {} WITH (publish = 'insert')", lane.name));
    lane.make_slot();
    let relay = lane.streaming(&["--message-prefix=outbox"]);
    lane.sql(
        "SELECT pg_logical_emit_message(true, 'outbox', '{\"id\": 1, \"aggregatetype\": \"order\", \"payload\": 1}')",
    );
    assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
    ready(&relay);
}

/// What happens to the publication while the relay reads its table `outbox`, and what mends it.
const CHANGES: [(&str, &str); 3] = [
    ("ALTER PUBLICATION {} SET TABLE other", "ALTER PUBLICATION {} ADD TABLE outbox"),
    ("ALTER PUBLICATION {} SET (publish = 'update')", "ALTER PUBLICATION {} SET (publish = 'insert')"),
    (
        "BEGIN; DROP PUBLICATION {}; CREATE PUBLICATION {} FOR TABLE other WITH (publish = 'insert'); COMMIT",
        "ALTER PUBLICATION {} ADD TABLE outbox",
    ),
];

#[test]
fn a_publication_that_loses_the_table_makes_the_relay_unready_as_long_as_it_is_so() {
    for more in [&[][..], &["--table=outbox"]] {
        let lanes = CHANGES.map(|change| {
            let lane = Lane::with(&format!("{OUTBOX}; CREATE TABLE other (LIKE outbox)"), "outbox, other");
            let relay = lane.streaming(more);
            (lane, relay, change)
        });
        // The relay has looked at the publication once.
        for (_, relay, _) in &lanes {
            let looked = || Ok(relay.get("/metrics")?.body.contains("walrelay_slot_lag_bytes{"));
            wait_until(LONG, "a look at the slot", looked).unwrap();
            ready(relay);
        }
        let sql = |lane: &Lane, text: &str| lane.sql(&text.replace("{}", &lane.name));
        for (lane, _, (change, _)) in &lanes {
            sql(lane, change);
        }
        for (lane, relay, (change, mend)) in &lanes {
            not_ready(relay, &[if change.contains("update") { "inserts" } else { "public.outbox" }]);
            sql(lane, mend);
        }
        for (_, relay, _) in &lanes {
            ready(relay);
        }
    }
}

#[test]
fn rows_that_filters_and_shards_leave_out_do_not_count_and_tables_of_shards_do() {
    if default_major() < FIFTEEN {
        return;
    }
    let shards = Shards::with(&format!(
        "{DAYS}; CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1);
         CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES IN (2)"
    ));
    shards.done(&["setup", "--shards", "2", "--apply", "--table", "outbox"]);
    let relays = shards.relays(2);
    row(&shards.lane, 1, 1);
    relays.iter().for_each(ready);
    shards.lane.sql("CREATE UNLOGGED TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)");
    for relay in &relays {
        not_ready(relay, &["public.outbox_3 is UNLOGGED"]);
    }
    shards.lane.sql("DROP TABLE outbox_3");
    relays.iter().for_each(ready);
}

#[test]
fn rows_of_a_table_that_lost_its_parent_before_the_relay_came_stop_it() {
    for detach in ["partition", "child"] {
        let lane = of_all(&if detach == "partition" {
            format!(
                "{DAYS}; CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1);
                 CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES IN (2)"
            )
        } else {
            format!("{}; CREATE TABLE outbox_2 () INHERITS (outbox)", DAYS.replace("PARTITION BY LIST (day)", ""))
        });
        lane.sql("INSERT INTO outbox_2 VALUES (1, 'order', 'k', 't', 'p', 2)");
        lane.sql(if detach == "partition" {
            "ALTER TABLE outbox DETACH PARTITION outbox_2"
        } else {
            "ALTER TABLE outbox_2 NO INHERIT outbox"
        });
        // A copy is no partition that was detached.
        lane.sql("CREATE TABLE copy (LIKE outbox); INSERT INTO copy VALUES (-1, 'order', 'k', 't', 'p', 2)");
        let (code, log) = ended(&mut lane.relay(&["--table=outbox"]));
        assert_eq!(code, 2, "{log}");
        assert!(log.contains("a row of public.outbox_2 cannot be published"), "{log}");
        assert!(hint(&log).contains("--table as well"), "{log}");
        let relay = lane.streaming(&["--table=outbox", "--table=outbox_2"]);
        lane.sql("INSERT INTO outbox_2 VALUES (2, 'order', 'k', 't', 'p', 2)");
        assert_eq!(lane.ids("order"), ["1", "2"], "{}", relay.log());
        drop(relay);
        // What it gets from now on is its own affair.
        let relay = lane.streaming(&["--table=outbox"]);
        lane.sql("INSERT INTO outbox_2 VALUES (-2, 'order', 'k', 't', 'p', 2)");
        lane.sql(if detach == "partition" {
            "INSERT INTO outbox VALUES (3, 'order', 'k', 't', 'p', 1)"
        } else {
            "INSERT INTO outbox VALUES (3, 'order', 'k', 't', 'p', 2)"
        });
        assert_eq!(lane.ids("order"), ["1", "2", "3"], "{}", relay.log());
    }
}

#[test]
fn a_partition_whose_rows_come_as_its_roots_ends_the_start_with_the_root() {
    let lane = partitioned("TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)");
    let hint = refused(&lane, &["--table=outbox_1"], &["come as rows of public.outbox"]);
    assert!(hint.contains("walrelay run --table public.outbox"), "{hint}");
    let relay = lane.streaming(&["--table=outbox"]);
    row(&lane, 1, 1);
    assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
}

#[test]
fn a_table_that_is_read_for_the_first_time_while_the_relay_runs_is_announced_once() {
    for more in [&[][..], &["--table=outbox"]] {
        let lane = partitioned("TABLE outbox WITH (publish = 'insert')");
        let relay = lane.streaming(more);
        row(&lane, 1, 1);
        wait_events(&relay, 1);
        lane.sql("CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)");
        row(&lane, 2, 3);
        row(&lane, 3, 3);
        // On a busy machine, the connection that reads the new partition may repeat rows.
        let arrived: BTreeSet<String> = lane.ids("order").into_iter().collect();
        assert_eq!(arrived.iter().collect::<Vec<_>>(), ["1", "2", "3"], "{}", relay.log());
        let announced = |table: &str| {
            let log = relay.log();
            log.lines().filter(|line| line.contains("for the first time") && line.contains(table)).count()
        };
        wait_until(LONG, "the announcement", || Ok(announced("public.outbox_3") == 1)).unwrap();
        assert_eq!(announced("public.outbox_1"), 0, "{}", relay.log());
    }
}

/// The first version whose `pgoutput` leaves rows of other origins out.
const ORIGINS: u32 = 16;

#[test]
fn rows_of_another_origin_are_left_out_if_that_is_asked_for() {
    let lane = Lane::debezium();
    if default_major() < ORIGINS {
        let (code, log) = ended(&mut lane.relay(&["--origin=local"]));
        assert!(code == 2 && log.contains("--origin local needs Postgres 16"), "{log}");
        return;
    }
    let applied = |id: u32| {
        format!(
            "SELECT pg_replication_origin_session_setup('there'); BEGIN;
             INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', 'null'); COMMIT;
             SELECT pg_replication_origin_session_reset()"
        )
    };
    let relay = lane.streaming(&["--origin=local"]);
    lane.sql("SELECT pg_replication_origin_create('there') WHERE NOT EXISTS (SELECT FROM pg_replication_origin WHERE roname = 'there')");
    lane.sql(&applied(1));
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', 'null')");
    assert_eq!(lane.ids("order"), ["2"], "{}", relay.log());
    ready(&relay);
    drop(relay);
    let relay = lane.streaming(&[]);
    lane.sql(&applied(3));
    assert_eq!(lane.ids("order"), ["2", "3"], "{}", relay.log());
}

#[test]
fn a_subscription_that_writes_the_outbox_is_reported() {
    let (here, there) = (Lane::debezium(), Lane::debezium());
    let name = &here.name;
    here.sql(&format!(
        "CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION {} WITH (create_slot = false, enabled = false, copy_data = false, slot_name = NONE)",
        there.source, there.name
    ));
    let found = check(&here, &[]);
    let fix = found.level("subscription", "warn", &["writes it", "public.outbox"]);
    if default_major() >= ORIGINS {
        assert!(fix.contains("--origin local"), "{fix}");
        check(&here, &["--origin=local"]).level("subscription", "ok", &["--origin local leaves out"]);
    }
    here.sql(&format!("DROP SUBSCRIPTION {name}"));
}

#[test]
fn a_relay_whose_partition_is_unready_goes_on_after_its_connection_was_lost() {
    let lane = partitioned("TABLE outbox_1, outbox_2");
    let relay = lane.streaming(&["--table=outbox"]);
    lane.sql("CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)");
    not_ready(&relay, &["public.outbox_3"]);
    lane.sql(&format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'",
        lane.name
    ));
    row(&lane, 1, 1);
    assert_eq!(ids(&lane.records("order")), ["1"], "{}", relay.log());
    not_ready(&relay, &["public.outbox_3"]);
}

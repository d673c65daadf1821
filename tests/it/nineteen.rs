//! What is new in Postgres 19. `make postgres-19` runs these tests; on other versions there is nothing to test.

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Options, Postgres, default_major};

use crate::check;
use crate::lane::{Lane, OUTBOX, binary, ended, hint};

fn is_nineteen() -> bool {
    default_major() >= 19
}

/// Runs a command of ours on the lane: its exit code, and what it printed.
fn command(lane: &Lane, words: &[&str]) -> (i32, String) {
    let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let output = std::process::Command::new(binary()).args(words).args(place).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn wal_level_replica_is_enough() {
    if !is_nineteen() {
        return;
    }
    let settings = vec![("wal_level".to_owned(), "replica".to_owned())];
    let server = Postgres::start(&Options { settings, ..Options::default() }).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap());
    lane.sql(OUTBOX);
    let (code, said) = command(&lane, &["setup", "--table", "outbox"]);
    assert!(code == 0 && !said.contains("wal_level"), "{code} {said}");
    let (code, said) = command(&lane, &["setup", "--apply", "--table", "outbox"]);
    assert_eq!(code, 0, "{said}");
    let mut relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1"]);
    let mut arguments = lane.arguments(&["--json"]);
    "check".clone_into(&mut arguments[0]);
    check::checked(&arguments).level("wal_level", "ok", &["replica", "effective_wal_level is logical"]);
    assert_eq!(relay.terminate(crate::lane::LONG).unwrap().code, 0, "{}", relay.log());
    let shards = Lane::on(&server, shared_kafka().unwrap());
    shards.sql(OUTBOX);
    let (code, said) = command(&shards, &["setup", "--apply", "--shards", "2", "--table", "outbox"]);
    assert_eq!(code, 0, "{said}");
}

/// A publication of all tables that leaves these out.
fn all_except(lane: &Lane, tables: &str) {
    lane.sql(&format!(
        "CREATE PUBLICATION {} FOR ALL TABLES EXCEPT (TABLE {tables}) WITH (publish = 'insert')",
        lane.name
    ));
}

#[test]
fn a_table_that_is_left_out_is_published_by_the_hint_and_by_setup() {
    if !is_nineteen() {
        return;
    }
    for by_setup in [false, true] {
        let lane = Lane::empty();
        lane.sql(&format!("{OUTBOX}; CREATE TABLE other (id int)"));
        all_except(&lane, "outbox, other");
        if by_setup {
            let (code, said) = command(&lane, &["setup", "--apply", "--table", "outbox"]);
            assert_eq!(code, 0, "{said}");
        } else {
            lane.make_slot();
            let (code, log) = ended(&mut lane.relay(&["--table", "outbox"]));
            let fix = hint(&log);
            assert!(code == 2 && fix.starts_with("ALTER PUBLICATION"), "{code} {log}");
            assert!(fix.contains("SET ALL TABLES EXCEPT (TABLE \"public\".\"other\")"), "{fix}");
            lane.sql(&fix);
        }
        let _relay = lane.streaming(&["--table", "outbox"]);
        lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
        assert_eq!(lane.ids("order"), ["1"]);
    }
}

#[test]
fn rows_from_a_time_when_the_table_was_left_out_are_neither_taken_for_published_nor_deleted() {
    if !is_nineteen() {
        return;
    }
    let lane = Lane::empty();
    lane.sql(&format!(
        "{OUTBOX}; CREATE TABLE other (id int); ALTER TABLE outbox ADD COLUMN created_at timestamptz DEFAULT now()"
    ));
    lane.sql(&format!("CREATE PUBLICATION {} FOR ALL TABLES WITH (publish = 'insert')", lane.name));
    let (code, said) = command(&lane, &["setup", "--apply"]);
    assert_eq!(code, 0, "{said}");
    lane.sql(&format!("ALTER PUBLICATION {} SET ALL TABLES EXCEPT (TABLE outbox)", lane.name));
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    lane.sql(&format!("ALTER PUBLICATION {} SET ALL TABLES", lane.name));
    let mut relay = lane.streaming(&["--table", "outbox"]);
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["2"]);
    assert_eq!(relay.terminate(crate::lane::LONG).unwrap().code, 0);
    let topic = lane.topic("{route}");
    let (code, said) =
        command(&lane, &["backfill", "--table", "outbox", "--yes", "--brokers", &lane.brokers, "--topic", &topic]);
    assert_eq!(code, 0, "{said}");
    assert!(lane.ids("order").contains(&"1".to_owned()), "{said}");
    let (code, said) = command(&lane, &["prune", "--table", "outbox", "--older-than", "1h"]);
    assert!(code == 2 && said.contains("EXCEPT"), "{code} {said}");
    let left: i64 = lane.connect().query_one("SELECT count(*) FROM outbox", &[]).unwrap().get(0);
    assert_eq!(left, 2, "{said}");
}

//! A relay on a copy of the cluster, which has the same identifier, slot and timeline, publishes to the same Kafka exactly once.

use std::process::Command;

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Mode, Options, Postgres};

use crate::exactly_once::{EXACTLY_ONCE, TABLE};
use crate::lane::{LONG, Lane, ended, hint};

fn copy(from: &str, to: &str) {
    assert!(Command::new("cp").args(["-a", from, to]).status().unwrap().success());
}

fn insert(lane: &Lane, kind: &str, rows: u32) {
    lane.sql(&format!("INSERT INTO outbox SELECT n, 'order', 'k', '{kind}', 'p' FROM generate_series(1, {rows}) AS n"));
}

/// How many records have each type.
fn count(lane: &Lane, kind: &str) -> usize {
    lane.records_now("order").iter().filter(|record| record.header("eventType") == Some(kind)).count()
}

#[test]
fn the_progress_of_a_copy_of_the_cluster_moves_the_original_past_no_row() {
    let mut postgres = Postgres::start(&Options::default()).unwrap();
    let lane = Lane::on(&postgres, shared_kafka().unwrap()).furnish(TABLE, "outbox");
    insert(&lane, "first", 1);
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let data: String = lane.connect().query_one("SHOW data_directory", &[]).unwrap().get(0);
    let original = format!("{data}.original");
    postgres.stop(Mode::Fast).unwrap();
    copy(&data, &original);

    postgres.start_again().unwrap();
    lane.sql("CREATE TABLE busy AS SELECT n, md5(n::text) FROM generate_series(1, 50000) AS n");
    insert(&lane, "of the copy", 1);
    relay.start_again().unwrap();
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    postgres.stop(Mode::Fast).unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&original, &data).unwrap();
    postgres.start_again().unwrap();

    insert(&lane, "of the original", 80);
    // Its log goes further than the copy's.
    lane.sql("CREATE TABLE busy AS SELECT n, md5(n::text) FROM generate_series(1, 200000) AS n");
    insert(&lane, "the last", 1);
    let before = lane.confirmed();
    relay.start_again().unwrap();
    let (code, log) = ended(&mut relay);
    assert!(code == 2 && log.contains("is not in this server's history"), "{log}");
    assert_eq!(lane.confirmed(), before);
    assert_eq!(count(&lane, "of the original"), 0);
    assert!(hint(&log).contains(&format!("--accept-slot-at {before}")), "{log}");
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "--accept-slot-at", &before]);
    lane.wait_confirmed();
    assert_eq!((count(&lane, "of the original"), count(&lane, "the last")), (80, 1), "{}", relay.log());
    // It is over: the flag is not needed again.
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, "the last", 1);
    lane.wait_confirmed();
    assert_eq!(count(&lane, "the last"), 2, "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

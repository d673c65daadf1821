//! An older copy of the cluster in its place: the same identifier and timeline, and a log that ends earlier.

use std::process::Command;

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Mode, Options, Postgres};

use crate::lane::{Lane, OUTBOX, ended};

fn copy(from: &str, to: &str) {
    assert!(Command::new("cp").args(["-a", from, to]).status().unwrap().success());
}

#[test]
fn an_older_copy_of_the_cluster_ends_the_run_and_the_next_one_begins_where_its_slot_stands() {
    let mut postgres = Postgres::start(&Options::default()).unwrap();
    let lane = Lane::on(&postgres, shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let insert = |id: &str| lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '1')"));
    let data: String = lane.connect().query_one("SHOW data_directory", &[]).unwrap().get(0);
    let older = format!("{data}.older");
    postgres.stop(Mode::Fast).unwrap();
    copy(&data, &older);
    postgres.start_again().unwrap();

    let mut relay = lane.streaming(&[]);
    // More than the copy will have written by the time that it is asked.
    lane.sql("CREATE TABLE busy AS SELECT n, md5(n::text) FROM generate_series(1, 50000) AS n");
    insert("lost with the newer copy");
    assert_eq!(lane.ids("order"), ["lost with the newer copy"]);
    lane.wait_confirmed();
    postgres.stop(Mode::Fast).unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&older, &data).unwrap();
    postgres.start_again().unwrap();
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("an older copy of the cluster"), "{log}");

    insert("new");
    let _relay = lane.streaming(&[]);
    assert_eq!(lane.ids("order"), ["lost with the newer copy", "new"]);
}

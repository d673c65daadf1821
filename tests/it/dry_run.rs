//! Looking without touching.

use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, binary};

#[test]
fn a_dry_run_prints_records_as_json_lines_and_leaves_no_trace() {
    let mut lane = Lane::debezium();
    lane.brokers = "127.0.0.1:1".to_owned();
    let before = lane.confirmed();
    lane.sql("INSERT INTO outbox VALUES ('old', 'order', 'k', 't', '1')");
    let mut relay = lane.streaming(&["--dry-run"]);
    lane.sql(
        "INSERT INTO outbox VALUES ('1', 'order', 'k', 'Placed', '{\"a\": 1.50}'), ('2', 'bad topic', 'k', NULL, NULL)",
    );
    let slots = || -> i64 {
        let sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
        lane.connect().query_one(sql, &[]).unwrap().get(0)
    };
    wait_until(LONG, "a line", || Ok(relay.stdout().contains('\n'))).unwrap();
    let mut first: Value = serde_json::from_str(relay.stdout().lines().next().unwrap()).unwrap();
    assert!(first["timestamp"].take().is_i64());
    let expected = json!({
        "topic": lane.topic("order"), "key": "k", "value": "{\"a\": 1.50}",
        "headers": [["id", "1"], ["eventType", "Placed"]], "timestamp": null,
    });
    assert_eq!(first, expected);
    // The second row is no record: that is what a dry run is for.
    let code = relay.wait_exit(LONG).unwrap();
    assert!(code == 2 && relay.log().contains("bad topic"), "{code}: {}", relay.log());
    wait_until(LONG, "the temporary slot to go", || Ok(slots() == 1)).unwrap();
    assert_eq!(lane.confirmed(), before);
}

#[test]
fn a_dry_run_needs_no_slot_and_ends_on_request() {
    let lane = Lane::empty();
    lane.sql(crate::lane::OUTBOX);
    lane.publish("outbox");
    let mut relay = lane.streaming(&["--dry-run"]);
    lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', 't', '1' FROM generate_series(1, 500) AS n");
    wait_until(LONG, "500 lines", || Ok(relay.stdout().matches('\n').count() == 500)).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn a_dry_run_whose_output_nobody_reads_ends_on_request() {
    let lane = Lane::debezium();
    let (reader, writer) = std::io::pipe().unwrap();
    let full = writer.try_clone().unwrap();
    let mut relay = Command::new(binary())
        .args(["run", "--dry-run", "--http", "off", "--source", &lane.source, "--publication", &lane.name])
        .args(["--slot", &lane.name, "--shutdown-timeout", "1s"])
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The first rows may come before its slot. How many bytes a pipe holds depends on how they were written: it is full when
    // nothing more can be written.
    wait_until(LONG, "a full pipe", || {
        lane.sql(
            "INSERT INTO outbox SELECT gen_random_uuid()::text, 'order', 'k', 't', to_jsonb(repeat('1', 1000))
             FROM generate_series(1, 50)",
        );
        Ok(rustix::event::poll(&mut [PollFd::new(&full, PollFlags::OUT)], Some(&Timespec::default()))? == 0)
    })
    .unwrap();
    let pid = Pid::from_raw(i32::try_from(relay.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = wait_until(LONG, "the dry run to end", || Ok(relay.try_wait()?.is_some()));
    drop((relay.kill(), relay.wait()));
    drop(reader);
    ended.unwrap();
}

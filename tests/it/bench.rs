//! `walrelay bench` on real servers: figures come out, and nothing stays behind.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use walrelay_dev::cluster::Cluster;
use walrelay_dev::kafka::{self, shared_kafka};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, binary};
use crate::own;

/// Measurements come one after the other: topics belong to no database.
static TURN: Mutex<()> = Mutex::new(());

/// Schemas, publications and slots of measurements in the lane's database.
fn left(lane: &Lane) -> i64 {
    let sql = "SELECT (SELECT count(*) FROM pg_namespace WHERE starts_with(nspname, 'walrelay_bench_'))
                    + (SELECT count(*) FROM pg_publication)
                    + (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())";
    lane.connect().query_one(sql, &[]).unwrap().get(0)
}

/// A broker may still name a topic a moment after it was deleted.
#[track_caller]
fn wait_no_topics() {
    let is_ours = |topic: &String| topic.starts_with("walrelay-bench-");
    wait_until(LONG, "the topics to go", || Ok(!shared_kafka()?.topics()?.iter().any(is_ours))).unwrap();
}

fn bench(lane: &Lane) -> Command {
    let mut command = Command::new(binary());
    command.args(["bench", "--source", &lane.source, "--json"]);
    command.env("WALRELAY_BROKERS", &lane.brokers);
    command.stdin(Stdio::null());
    command
}

#[test]
#[ignore = "slow"]
fn a_measurement_tells_rates_and_latencies_and_leaves_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Rows that take longer than five seconds are missing: what others write is decoded, too.
    let postgres = own::postgres();
    let lane = Lane::on(&postgres, shared_kafka().unwrap());
    for sink in ["kafka", "null"] {
        let amount = ["--rows", "5005", "--payload-bytes", "500", "--rate", "50", "--seconds", "1", "--sink", sink];
        let output = bench(&lane).args(amount).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{sink}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["drain"]["rows_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{report}");
        assert_eq!(report["steady"]["rows"], 50, "{report}");
        assert_eq!(report["steady"]["missing"], 0, "{report}");
        assert!(report["steady"]["commit_to_acknowledgement_millis"]["p50"].is_number(), "{report}");
        assert_eq!(left(&lane), 0, "{sink}: {said}");
        wait_no_topics();
    }
}

#[test]
#[ignore = "slow"]
fn a_measurement_tells_how_far_the_brokers_are() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start(1, &kafka::Options::default()).unwrap();
    cluster.taps()[0].set_distance(Duration::from_millis(20));
    let lane = Lane::empty();
    let amount = ["--rows", "100", "--rate", "20", "--seconds", "1", "--brokers", &cluster.tapped_brokers()];
    let output = bench(&lane).args(amount).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let at = |place: &str| report.pointer(place).and_then(Value::as_f64).unwrap();
    let (near, far) = (at("/round_trip_millis/postgres"), at("/round_trip_millis/destination"));
    assert!(near > 0.0 && far >= 40.0, "{report}");
    assert!(at("/steady/commit_to_acknowledgement_millis/p50") >= 40.0, "{report}");
}

#[test]
fn no_slot_stays_when_a_measurement_is_stopped_before_it_has_one_or_killed() {
    let lane = Lane::empty();
    let slots = |condition: &str| {
        let sql =
            format!("SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND {condition}");
        lane.connect().query_one(&sql, &[]).unwrap().get::<_, i64>(0)
    };
    let start = || {
        let mut command = bench(&lane);
        command.args(["--sink", "null", "--rows", "1000", "--rate", "10", "--seconds", "600"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut writer = lane.connect();
    writer.batch_execute("BEGIN; CREATE TABLE t ()").unwrap();
    let mut child = start();
    wait_until(LONG, "the slot to wait for the transaction", || Ok(slots("confirmed_flush_lsn IS NULL") == 1)).unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    wait_until(LONG, "the measurement to end", || Ok(child.try_wait()?.is_some())).unwrap();
    assert_eq!((child.wait().unwrap().code(), left(&lane)), (Some(1), 0));
    writer.batch_execute("ROLLBACK").unwrap();
    let mut child = start();
    wait_until(LONG, "the slot to be read", || Ok(slots("active AND confirmed_flush_lsn IS NOT NULL") == 1)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(LONG, "the slot to go", || Ok(slots("true") == 0)).unwrap();
}

#[test]
#[ignore = "slow"]
fn a_measurement_that_is_interrupted_leaves_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lane = Lane::empty();
    let mut child = bench(&lane)
        .args(["--rows", "1000", "--rate", "10", "--seconds", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(LONG, "the slot to be read", || {
        let sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND active";
        Ok(lane.connect().query_one(sql, &[])?.get::<_, i64>(0) == 1)
    })
    .unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    wait_until(LONG, "the measurement to end", || Ok(child.try_wait()?.is_some())).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stopped before it was done"));
    assert_eq!(left(&lane), 0);
    wait_no_topics();
}

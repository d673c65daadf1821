//! Commands that work in chunks end on request, as a container asks.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, binary};
use crate::prune::proven;

/// With a column that says how old a row is.
const AGED: &str = "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, payload text, \
                    created_at timestamptz NOT NULL DEFAULT now() - interval '1 day')";

/// A prune that goes on, of a lane without a relay.
fn pruning(lane: &Lane) -> Child {
    Command::new(binary())
        .args(["prune", "--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name])
        .args(["--older-than", "1h", "--every", "1s"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[track_caller]
fn ends(mut child: Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_until(LONG, "prune to end", || Ok(child.try_wait()?.is_some())).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_prune_between_two_rounds_ends_on_request() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let mut child = pruning(&lane);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("0 rows deleted"), "{line}");
    ends(child);
}

#[test]
fn a_prune_that_waits_for_the_relay_ends_on_request_and_has_deleted_nothing() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'p')");
    let child = pruning(&lane);
    let messages = format!(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{0}', NULL, NULL, 'proto_version', '1',
             'publication_names', '{0}', 'messages', 'true') WHERE get_byte(data, 0) = ascii('M')",
        lane.name
    );
    wait_until(LONG, "prune to wait", || Ok(lane.connect().query_one(&messages, &[])?.get::<_, i64>(0) > 0)).unwrap();
    ends(child);
    let rows: i64 = lane.connect().query_one("SELECT count(*) FROM outbox", &[]).unwrap().get(0);
    assert_eq!(rows, 1);
}

//! Graceful shutdowns, stops that run out of time, and kills.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, Lane, wait_events};
use crate::load::Load;
use crate::own;

/// Commits rows of one key one by one, in a hurry.
fn backlog(load: &Load, numbers: Range<u32>) {
    let Range { start, end } = numbers;
    let mut client = load.connect();
    client.batch_execute("SET synchronous_commit = off").unwrap();
    let body = format!(
        "DO $$ BEGIN FOR n IN {start} + 1..{end} LOOP
             WITH sent AS (INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'order-backlog', 'Small', to_jsonb(n)) RETURNING *)
             INSERT INTO truth SELECT id::text, 'order-backlog', n, md5(payload::text) FROM sent;
             COMMIT;
         END LOOP; END $$"
    );
    client.batch_execute(&body).unwrap();
}

#[track_caller]
fn stop(relay: &mut Relay) {
    let exit = relay.terminate(LONG).unwrap();
    assert_eq!(exit.code, 0, "{}", relay.log());
}

#[test]
fn an_idle_relay_stops_on_each_signal() {
    let lane = Lane::debezium();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut relay = lane.streaming(&[]);
        relay.signal(signal).unwrap();
        assert_eq!(relay.wait_exit(LONG).unwrap(), 0, "{signal:?}: {}", relay.log());
    }
}

#[test]
fn a_relay_that_waits_for_postgres_stops_on_request() {
    let lane = Lane::debezium();
    let mut relay = lane.relay(&["--source", "postgres://postgres@127.0.0.1:1/x"]);
    crate::lane::wait_log(&relay, "Postgres connection failed; retrying");
    stop(&mut relay);
}

#[test]
#[ignore = "slow"]
fn clean_stops_under_load_lose_nothing_and_repeat_nothing() {
    let load = Load::shared();
    let mut relay = load.lane.relay(&[]);
    let shop = load.shop();
    for _ in 0..5 {
        wait_events(&relay, 150);
        stop(&mut relay);
        relay.start_again().unwrap();
    }
    shop.close().unwrap();
    load.assert_exact(&relay);
}

#[test]
fn a_clean_stop_in_the_middle_of_a_backlog_repeats_nothing() {
    let load = Load::shared();
    let mut sent = 0;
    let mut more = || {
        backlog(&load, sent..sent + 6000);
        sent += 6000;
    };
    more();
    let mut relay = load.lane.relay(&[]);
    for _ in 0..2 {
        wait_events(&relay, 300);
        stop(&mut relay);
        // However little the stop has left of the last one.
        more();
        relay.start_again().unwrap();
    }
    load.assert_exact(&relay);
}

#[test]
#[ignore = "slow"]
fn a_clean_stop_in_the_middle_of_a_large_transaction_reads_it_to_its_end() {
    let load = Load::shared();
    let mut client = load.connect();
    Load::bulk(&mut client, "order-before", 0..100);
    Load::bulk(&mut client, "order-large", 0..50_000);
    Load::bulk(&mut client, "order-after", 0..50_000);
    let mut relay = load.lane.relay(&[]);
    wait_events(&relay, 1000);
    let before = load.lane.confirmed();
    stop(&mut relay);
    let sql = "SELECT $1::text::pg_lsn < $2::text::pg_lsn AND $2::text::pg_lsn < pg_current_wal_lsn()";
    let advanced: bool = client.query_one(sql, &[&before, &load.lane.confirmed()]).unwrap().get(0);
    assert!(advanced, "the slot stands behind the large transaction, and before the end");
    relay.start_again().unwrap();
    load.assert_exact(&relay);
}

#[test]
#[ignore = "slow"]
fn a_kill_loses_nothing_and_repeats_no_more_than_a_tail() {
    let load = Load::shared();
    let mut relay = load.lane.relay(&[]);
    let shop = load.shop();
    for _ in 0..3 {
        relay.wait_streaming(LONG).unwrap();
        load.lane.wait_confirmed();
        let events = relay.metric("walrelay_events_total").unwrap();
        wait_until(LONG, "more records", || Ok(relay.metric("walrelay_events_total")? > events + 50.0)).unwrap();
        relay.kill9().unwrap();
        relay.start_again().unwrap();
    }
    shop.close().unwrap();
    let report = load.assert_complete(&relay);
    assert!(report.repeated < report.committed, "{report:#?}");
}

#[test]
#[ignore = "slow"]
fn a_kill_in_the_middle_of_a_large_transaction_loses_nothing() {
    let load = Load::shared();
    let mut client = load.connect();
    Load::bulk(&mut client, "order-large", 0..20_000);
    let mut relay = load.lane.relay(&[]);
    wait_events(&relay, 1000);
    relay.kill9().unwrap();
    Load::bulk(&mut client, "order-after", 0..10);
    relay.start_again().unwrap();
    load.assert_complete(&relay);
}

#[test]
fn a_stop_that_runs_out_of_time_says_so_and_a_second_signal_ends_at_once() {
    let mut kafka = own::kafka();
    let load = Load::on(walrelay_dev::postgres::shared_postgres().unwrap(), &kafka);
    // Topics are known and the connection is made: what follows hangs in flight.
    let mut relay = load.lane.streaming(&["--shutdown-timeout=1s"]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-1", 0..10);
    wait_events(&relay, 10);
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-2", 0..10);
    wait_until(LONG, "records in flight", || Ok(relay.metric("walrelay_in_flight_records")? > 9.0)).unwrap();
    let exit = relay.terminate(LONG).unwrap();
    let log = relay.log();
    assert_eq!(exit.code, 1, "{log}");
    assert!(log.contains("records in flight: 10") && log.contains("hint: "), "{log}");
    kafka.resume().unwrap();
    for (first, second, code) in [(Signal::TERM, Signal::TERM, 143), (Signal::INT, Signal::INT, 130)] {
        let mut relay = load.lane.streaming(&[]);
        load.lane.wait_confirmed();
        kafka.suspend().unwrap();
        Load::bulk(&mut client, &format!("order-{code}"), 0..10);
        wait_until(LONG, "records in flight", || Ok(relay.metric("walrelay_in_flight_records")? > 9.0)).unwrap();
        relay.signal(first).unwrap();
        wait_until(LONG, "the stop", || Ok(relay.status()?["state"] == "stopping")).unwrap();
        // A signal that comes sooner is the first one again.
        thread::sleep(Duration::from_millis(400));
        relay.signal(second).unwrap();
        assert_eq!(relay.wait_exit(LONG).unwrap(), code, "{}", relay.log());
        kafka.resume().unwrap();
    }
    let relay = load.lane.relay(&[]);
    load.assert_complete(&relay);
}

#[test]
fn a_clean_stop_waits_for_a_broker_that_comes_back() {
    let mut kafka = own::kafka();
    let load = Load::on(walrelay_dev::postgres::shared_postgres().unwrap(), &kafka);
    let mut relay = load.lane.streaming(&[]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-1", 0..10);
    wait_events(&relay, 10);
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-2", 0..10);
    wait_until(LONG, "records in flight", || Ok(relay.metric("walrelay_in_flight_records")? > 9.0)).unwrap();
    relay.signal(Signal::TERM).unwrap();
    wait_until(LONG, "the stop", || Ok(relay.status()?["state"] == "stopping")).unwrap();
    kafka.resume().unwrap();
    assert_eq!(relay.wait_exit(LONG).unwrap(), 0, "{}", relay.log());
    relay.start_again().unwrap();
    load.assert_exact(&relay);
}

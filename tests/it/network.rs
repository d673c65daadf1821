//! The line to Postgres: cut without a word, one-way, slow; and a server that waits long for a slow reader.
//!
//! `wal_sender_timeout` is the session's own, set through the connection string, so that the server's patience is short here
//! and nowhere else.

use std::time::Duration;

use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::{Direction, Tap};

use crate::lane::{LONG, wait_events, wait_log};
use crate::load::Load;
use crate::own;

/// A lane behind a tap, with the server's patience in seconds.
fn behind(tap: &Tap, load: &Load, patience: u32) -> String {
    format!(
        "postgres://postgres@{}/{}?options=-c%20wal_sender_timeout%3D{patience}s&tcp_user_timeout=0",
        tap.address(),
        load.lane.name
    )
}

fn tap() -> Tap {
    Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port())).unwrap()
}

#[track_caller]
pub(crate) fn wait_in_flight(relay: &Relay, records: f64) {
    wait_until(LONG, "records in flight", || Ok(relay.metric("walrelay_in_flight_records")? >= records))
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
}

fn walsender(load: &Load) -> Option<i32> {
    let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
    load.connect().query_one(sql, &[&load.lane.name]).unwrap().get(0)
}

#[test]
#[ignore = "slow"]
fn a_server_that_is_gone_without_a_word_is_left_and_found_again() {
    let (load, tap) = (Load::shared(), tap());
    let mut relay = load.lane.streaming(&["--source", &behind(&tap, &load, 4)]);
    let mut client = load.connect();
    for round in 0..3 {
        Load::bulk(&mut client, &format!("order-{round}"), 0..100);
        wait_events(&relay, 200 * round + 100);
        tap.half_open();
        Load::bulk(&mut client, &format!("order-unheard-{round}"), 0..100);
        wait_until(LONG, "the relay to notice", || {
            Ok(relay.metric("walrelay_reconnects_total")? > f64::from(round) + 0.5)
        })
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
        wait_events(&relay, 200 * (round + 1));
    }
    load.assert_exact(&relay);
    assert!(relay.log().contains("has been silent for 4 s"), "{}", relay.log());
    assert_eq!(relay.exited().unwrap(), None);
}

#[test]
#[ignore = "slow"]
fn a_black_hole_in_one_direction_or_both_loses_and_repeats_nothing() {
    let (load, tap) = (Load::shared(), tap());
    let mut relay = load.lane.streaming(&["--source", &behind(&tap, &load, 4)]);
    let mut client = load.connect();
    for (round, directions) in
        [&[Direction::ToClient][..], &[Direction::ToServer], &[Direction::ToClient, Direction::ToServer]]
            .iter()
            .enumerate()
    {
        Load::bulk(&mut client, &format!("order-{round}"), 0..100);
        load.lane.wait_confirmed();
        let before = relay.metric("walrelay_reconnects_total").unwrap();
        directions.iter().for_each(|&direction| tap.stall(direction));
        Load::bulk(&mut client, &format!("order-held-{round}"), 0..100);
        wait_until(LONG, "the connection to be given up", || Ok(relay.metric("walrelay_reconnects_total")? > before))
            .unwrap_or_else(|error| panic!("{directions:?} {error}: {}", relay.log()));
        tap.cut();
        tap.flow();
        load.lane.wait_confirmed();
    }
    load.assert_exact(&relay);
    assert_eq!(relay.exited().unwrap(), None);
}

#[test]
#[ignore = "slow"]
fn a_slow_line_to_postgres_keeps_the_connection() {
    let (load, tap) = (Load::shared(), tap());
    let relay = load.lane.streaming(&["--source", &behind(&tap, &load, 4)]);
    let pid = walsender(&load);
    tap.delay(Direction::ToClient, Duration::from_millis(200));
    tap.delay(Direction::ToServer, Duration::from_millis(200));
    tap.limit(Direction::ToClient, 250_000);
    let mut client = load.connect();
    for batch in 0..10 {
        Load::bulk(&mut client, &format!("order-{batch}"), 0..800);
    }
    load.assert_exact(&relay);
    assert!(walsender(&load) == pid && relay.metric("walrelay_reconnects_total").unwrap() < 0.5, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_broker_that_hangs_for_longer_than_the_servers_patience_costs_no_connection() {
    let mut kafka = own::kafka();
    let load = Load::on(shared_postgres().unwrap(), &kafka);
    let patient = format!("{}?options=-c%20wal_sender_timeout%3D4s", load.lane.source);
    let relay = load.lane.streaming(&["--source", &patient, "--max-in-flight=256KiB", "--disconnect-after=10min"]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-known", 0..10);
    wait_events(&relay, 10);
    let pid = walsender(&load);
    kafka.suspend().unwrap();
    // More than fits in flight and into the sockets: the server is in the middle of sending it.
    Load::bulk(&mut client, "order-large", 0..40_000);
    wait_in_flight(&relay, 100.0);
    let status = |name: &str| relay.metric(name).unwrap();
    wait_until(LONG, "twice the server's patience", || Ok(status("walrelay_oldest_in_flight_seconds") > 9.0)).unwrap();
    let sql = "SELECT confirmed_flush_lsn < pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = $1";
    assert!(client.query_one(sql, &[&load.lane.name]).unwrap().get::<_, bool>(0));
    assert!(walsender(&load) == pid && status("walrelay_reconnects_total") < 0.5, "{}", relay.log());
    assert_eq!(relay.get("/livez").unwrap().status, 200);
    kafka.resume().unwrap();
    load.assert_exact(&relay);
    assert_eq!(walsender(&load), pid, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn half_of_a_transaction_is_sent_and_postgres_restarts_meanwhile() {
    let (mut postgres, mut kafka) = (own::postgres(), own::kafka());
    let load = Load::on(&postgres, &kafka);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-large", 0..60_000);
    drop(client);
    let mut relay = load.lane.relay(&["--disconnect-after=2s", "--max-in-flight=1MiB"]);
    wait_events(&relay, 5000);
    kafka.suspend().unwrap();
    wait_log(&relay, "disconnected from Postgres, slot kept");
    postgres.kill().unwrap();
    postgres.start_again().unwrap();
    kafka.resume().unwrap();
    // The slot's server was another one meanwhile, so what was in flight is sent again.
    load.assert_complete(&relay);
    assert_eq!(relay.exited().unwrap(), None);
}

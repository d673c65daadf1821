//! A relay whose records are old, and that cannot ask who holds its slot: its stream goes on, and nothing is sent unproven.

use postgres::Client;
use walrelay_dev::postgres::{self as servers, Postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, wait_events, wait_log};
use crate::load::{Load, PARKED, UNPROVEN};
use crate::own;

fn server(settings: &[(&str, &str)], hba: &[&str]) -> Postgres {
    let hba = hba.iter().map(|&line| line.to_owned()).collect();
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Postgres::start(&servers::Options { settings, hba, ..servers::Options::default() }).unwrap()
}

/// The walsender that reads the lane's slot.
fn walsender(client: &mut Client, load: &Load) -> Option<i32> {
    let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
    client.query_one(sql, &[&load.lane.name]).unwrap().get(0)
}

fn wait_old(relay: &Relay, seconds: f64) {
    let is_old = || Ok(relay.metric("walrelay_oldest_in_flight_seconds")? > seconds);
    wait_until(LONG, "records in flight to become old", is_old).unwrap();
}

#[test]
#[ignore = "slow"]
fn without_a_walsender_to_spare_the_slots_holder_is_asked_over_an_ordinary_connection() {
    let (postgres, mut kafka) = (server(&[("max_wal_senders", "1")], &[]), own::kafka());
    let load = Load::on(&postgres, &kafka);
    let relay = load.lane.streaming(&[]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-1", 0..10);
    wait_events(&relay, 10);
    let before = walsender(&mut client, &load);
    for round in 0..3 {
        kafka.suspend().unwrap();
        Load::bulk(&mut client, "order-2", round * 1000..(round + 1) * 1000);
        wait_old(&relay, 5.0);
        kafka.resume().unwrap();
        load.lane.wait_confirmed();
    }
    load.assert_exact(&relay);
    let log = relay.log();
    assert!(!log.contains(PARKED) && !log.contains(UNPROVEN), "{log}");
    assert_eq!(walsender(&mut client, &load), before, "the stream is the same: {log}");
}

#[test]
#[ignore = "slow"]
fn a_relay_takes_its_slot_back_with_the_only_walsender() {
    let (postgres, mut kafka) = (server(&[("max_wal_senders", "1")], &[]), own::kafka());
    let load = Load::on(&postgres, &kafka);
    let mut relay = load.lane.streaming(&["--disconnect-after=1s"]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-1", 0..10);
    wait_events(&relay, 10);
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-2", 0..1000);
    wait_log(&relay, "disconnected from Postgres, slot kept");
    kafka.resume().unwrap();
    relay.wait_streaming(LONG).unwrap();
    load.assert_complete(&relay);
}

//! A relay whose records are old, and that cannot ask who holds its slot: its stream goes on, and nothing is sent unproven.

use postgres::{Client, NoTls};
use walrelay_dev::postgres::{self as servers, Postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, wait_events, wait_log};
use crate::load::{Load, PARKED, UNPROVEN};
use crate::own;

/// The line of a sink that goes on.
const UNPARKED: &str = "sending goes on";

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

#[test]
#[ignore = "slow"]
fn a_line_of_pg_hba_that_is_taken_away_ends_no_stream_and_repeats_nothing_again_and_again() {
    let line = "host all,replication all 127.0.0.1/32 trust";
    let (postgres, mut kafka) = (server(&[], &[line]), own::kafka());
    let load = Load::on(&postgres, &kafka);
    let relay = load.lane.streaming(&[]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-1", 0..10);
    wait_events(&relay, 10);
    let before = walsender(&mut client, &load);
    let mut local = Client::connect(&postgres.socket_url(&load.lane.name), NoTls).unwrap();
    // A connection that is open already goes on answering.
    let asking = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND pid IS DISTINCT FROM $1";
    wait_until(LONG, "the first question's connection to end", || {
        Ok(local.query_one(asking, &[&before])?.get::<_, i64>(0) == 0)
    })
    .unwrap();
    let file: String = local.query_one("SHOW hba_file", &[]).unwrap().get(0);
    let write = |client: &mut Client, host: &str| {
        let lines = format!("(VALUES (1, 'local all,replication postgres trust'){host})");
        let sql = format!("COPY (SELECT line FROM {lines} AS lines (n, line) ORDER BY n) TO '{file}'");
        client.batch_execute(&format!("{sql}; SELECT pg_reload_conf()")).unwrap();
    };
    write(&mut local, "");
    wait_until(LONG, "the line to be gone", || Ok(Client::connect(&load.lane.source, NoTls).is_err())).unwrap();
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-2", 0..1000);
    wait_log(&relay, PARKED);
    // The figures follow within a tenth of a second.
    wait_until(LONG, "the reason on /readyz", || {
        let ready = relay.get("/readyz")?;
        Ok(ready.status == 503 && ready.body.contains("who holds the slot") && ready.body.contains("pg_hba.conf"))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?} {}", relay.get("/readyz"), relay.log()));
    kafka.resume().unwrap();
    // What Kafka had in its buffers comes, and nothing else.
    wait_old(&relay, 12.0);
    assert!(!relay.log().contains(UNPARKED), "{}", relay.log());
    write(&mut local, &format!(", (2, '{line}')"));
    wait_log(&relay, UNPARKED);
    let report = load.assert_complete(&relay);
    let log = relay.log();
    assert_eq!((log.matches(PARKED).count(), log.matches(UNPARKED).count()), (1, 1), "{log}");
    assert!(!log.contains(UNPROVEN) && report.repeated <= 1000, "{}: {log}", report.repeated);
    assert_eq!(walsender(&mut client, &load), before, "the stream is the same: {log}");
}

//! Outages of either side: the process stays, nothing is lost, and nothing is repeated but what a crash of Kafka may repeat.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use postgres::Client;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self as servers, Mode, Postgres, shared_postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::Tap;

use crate::lane::{LONG, wait_events, wait_log};
use crate::load::{Load, UNPROVEN};
use crate::own;

/// Waits until so many more records are acknowledged.
#[track_caller]
fn wait_more(relay: &Relay, count: u32) {
    let now = relay.metric("walrelay_events_total").unwrap();
    let found =
        wait_until(LONG, "more records", || Ok(relay.metric("walrelay_events_total")? >= now + f64::from(count)));
    found.unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
}

/// Waits until the relay has asked Postgres so many times who holds the slot, over a connection to this client's database.
#[track_caller]
fn wait_asked(client: &mut Client, times: usize) {
    let sql = "SELECT query_start::text FROM pg_stat_activity
               WHERE datname = current_database() AND query LIKE 'SELECT active\\_pid, confirmed\\_flush\\_lsn %'";
    let mut asked = HashSet::new();
    wait_until(LONG, "the relay to ask for the slot's holder", || {
        asked.extend(client.query(sql, &[])?.iter().filter_map(|row| row.get::<_, Option<String>>(0)));
        Ok(asked.len() >= times)
    })
    .unwrap();
}

#[track_caller]
fn assert_same_process(relay: &mut Relay, pid: Option<u32>) {
    assert_eq!((relay.exited().unwrap(), relay.pid()), (None, pid), "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_terminated_walsender_is_replaced_without_loss_or_repeats() {
    let load = Load::shared();
    let mut relay = load.lane.streaming(&[]);
    let pid = relay.pid();
    let shop = load.shop();
    let mut client = load.connect();
    for _ in 0..5 {
        wait_more(&relay, 100);
        // In the predecessor's second, records in flight go on only while Postgres answers within half a second.
        relay.wait_streaming(LONG).unwrap();
        let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active";
        wait_until(LONG, "a walsender to end", || Ok(client.execute(sql, &[&load.lane.name])? == 1)).unwrap();
    }
    wait_more(&relay, 100);
    shop.close().unwrap();
    load.assert_exact(&relay);
    assert_same_process(&mut relay, pid);
    assert!(relay.metric("walrelay_reconnects_total").unwrap() > 3.5, "{}", relay.log());
    assert!(relay.log().matches(UNPROVEN).count() < 5, "records in flight mostly arrive: {}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_walsender_terminated_in_the_middle_of_a_large_transaction_repeats_nothing() {
    let load = Load::shared();
    let mut client = load.connect();
    Load::bulk(&mut client, "order-large", 0..30_000);
    Load::bulk(&mut client, "order-after", 0..100);
    let mut relay = load.lane.relay(&[]);
    let pid = relay.pid();
    wait_events(&relay, 1000);
    let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active";
    assert_eq!(client.execute(sql, &[&load.lane.name]).unwrap(), 1);
    load.assert_exact(&relay);
    assert_same_process(&mut relay, pid);
}

#[test]
#[ignore = "slow"]
fn postgres_may_restart_and_crash_under_load() {
    let mut postgres = own::postgres();
    let load = Load::on(&postgres, shared_kafka().unwrap());
    let mut relay = load.lane.streaming(&[]);
    let pid = relay.pid();
    let shop = load.shop();
    for mode in [Mode::Fast, Mode::Immediate, Mode::Fast] {
        wait_more(&relay, 100);
        postgres.restart(mode).unwrap();
    }
    wait_more(&relay, 100);
    postgres.kill().unwrap();
    postgres.start_again().unwrap();
    wait_more(&relay, 100);
    shop.close().unwrap();
    load.assert_exact(&relay);
    assert_same_process(&mut relay, pid);
    assert!(relay.get("/livez").unwrap().status == 200);
}

#[test]
fn kafka_may_restart_and_crash_under_load() {
    let mut kafka = own::kafka();
    let load = Load::on(shared_postgres().unwrap(), &kafka);
    let mut relay = load.lane.streaming(&[]);
    let pid = relay.pid();
    let shop = load.shop();
    wait_more(&relay, 100);
    kafka.restart().unwrap();
    wait_more(&relay, 100);
    kafka.kill().unwrap();
    kafka.start_again().unwrap();
    wait_more(&relay, 100);
    shop.close().unwrap();
    // The broker may repeat what librdkafka sends again in a new epoch: see duplicates.md.
    load.assert_complete(&relay);
    assert_same_process(&mut relay, pid);
    assert!(relay.log().contains("Kafka client error"), "{}", relay.log());
    wait_log(&relay, "Kafka recovered");
    relay.wait_streaming(LONG).unwrap();
}

/// Nothing is delivered meanwhile that would say so.
#[test]
fn what_an_idle_relay_says_of_a_kafka_that_was_away_goes_once_it_is_back() {
    let mut kafka = own::kafka();
    let load = Load::on(shared_postgres().unwrap(), &kafka);
    Load::bulk(&mut load.connect(), "order-1", 0..100);
    let relay = load.lane.streaming(&[]);
    load.lane.wait_confirmed();
    let last_error = || Ok::<_, anyhow::Error>(relay.status()?["last_error"].clone());
    kafka.kill().unwrap();
    let said = || Ok(last_error()?.as_str().is_some_and(|error| error.contains("Connection refused")));
    wait_until(LONG, "the relay to say so", said).unwrap();
    kafka.start_again().unwrap();
    wait_until(LONG, "that it is over", || Ok(last_error()?.is_null()))
        .unwrap_or_else(|error| panic!("{error}: {:?} {}", relay.status(), relay.log()));
}

#[test]
#[ignore = "slow"]
fn a_kafka_that_is_down_at_the_start_is_waited_for() {
    let mut kafka = own::kafka();
    let load = Load::on(shared_postgres().unwrap(), &kafka);
    kafka.stop().unwrap();
    Load::bulk(&mut load.connect(), "order-1", 0..100);
    let mut relay = load.lane.relay(&[]);
    wait_log(&relay, "Kafka unavailable, retrying");
    wait_until(LONG, "the reason in /readyz", || {
        let answer = relay.get("/readyz")?;
        Ok(answer.status == 503 && answer.body.contains("Kafka at"))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?} {}", relay.get("/readyz"), relay.log()));
    kafka.start_again().unwrap();
    load.assert_exact(&relay);
    assert_eq!(relay.exited().unwrap(), None);
}

#[test]
#[ignore = "slow"]
fn postgres_that_is_down_at_the_start_is_waited_for() {
    let mut postgres = own::postgres();
    let load = Load::on(&postgres, shared_kafka().unwrap());
    Load::bulk(&mut load.connect(), "order-1", 0..100);
    postgres.stop(Mode::Fast).unwrap();
    let mut relay = load.lane.relay(&[]);
    wait_log(&relay, "Postgres connection failed; retrying");
    assert_eq!(relay.get("/readyz").unwrap().status, 503);
    postgres.start_again().unwrap();
    relay.wait_streaming(LONG).unwrap();
    load.assert_exact(&relay);
}

#[test]
#[ignore = "slow"]
fn postgres_that_shuts_down_while_kafka_hangs_is_let_go_and_nothing_is_lost() {
    let (mut postgres, mut kafka) = (own::postgres(), own::kafka());
    let load = Load::on(&postgres, &kafka);
    let mut relay = load.lane.streaming(&["--disconnect-after=1s"]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-1", 0..10);
    wait_events(&relay, 10);
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-2", 0..10);
    drop(client);
    wait_log(&relay, "disconnected from Postgres, slot kept");
    wait_until(LONG, "the state", || Ok(relay.status()?["state"] == "blocked")).unwrap();
    postgres.restart(Mode::Fast).unwrap();
    kafka.resume().unwrap();
    // While Postgres was down, nothing proved that no other relay had the slot: what Kafka had in its buffers may come again.
    load.assert_complete(&relay);
    assert_eq!(relay.exited().unwrap(), None);
}

#[test]
#[ignore = "slow"]
fn an_outage_of_kafka_beyond_disconnect_after_repeats_nothing_while_nobody_takes_the_slot() {
    let mut kafka = own::kafka();
    let load = Load::on(shared_postgres().unwrap(), &kafka);
    let relay = load.lane.streaming(&["--disconnect-after=1s"]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-1", 0..10);
    wait_events(&relay, 10);
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-2", 0..1000);
    wait_log(&relay, "disconnected from Postgres, slot kept");
    wait_asked(&mut client, 40);
    kafka.resume().unwrap();
    load.assert_exact(&relay);
    assert!(!relay.log().contains(UNPROVEN), "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_shutdown_of_postgres_waits_for_no_relay_whose_kafka_hangs() {
    for mode in [Mode::Smart, Mode::Fast] {
        let (mut postgres, mut kafka) = (own::postgres(), own::kafka());
        let load = Load::on(&postgres, &kafka);
        // Longer than this test waits for the shutdown.
        let relay = load.lane.streaming(&["--disconnect-after=10min"]);
        let mut client = load.connect();
        Load::bulk(&mut client, "order-1", 0..10);
        wait_events(&relay, 10);
        kafka.suspend().unwrap();
        Load::bulk(&mut client, "order-2", 0..10);
        wait_asked(&mut client, 2);
        drop(client);
        postgres.stop_within(mode, LONG).unwrap_or_else(|error| panic!("{mode:?}: {error}: {}", relay.log()));
        kafka.resume().unwrap();
        postgres.start_again().unwrap();
        load.assert_complete(&relay);
    }
}

#[test]
#[ignore = "slow"]
fn a_slot_is_not_invalidated_as_idle_while_kafka_hangs() {
    if servers::default_major() < 18 {
        // Before, no slot is.
        return;
    }
    let setting = ("idle_replication_slot_timeout".to_owned(), "8s".to_owned());
    let postgres =
        Postgres::start(&servers::Options { settings: vec![setting], ..servers::Options::default() }).unwrap();
    let mut kafka = own::kafka();
    let load = Load::on(&postgres, &kafka);
    let relay = load.lane.streaming(&["--disconnect-after=1s"]);
    let mut client = load.connect();
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-1", 0..10);
    wait_log(&relay, "disconnected from Postgres, slot kept");
    // Each checkpoint invalidates slots that have been idle for too long. The relay uses its slot four times in that span.
    let (sql, mut used) =
        ("SELECT invalidation_reason, inactive_since::text FROM pg_replication_slots", HashSet::new());
    wait_until(LONG, "the slot to be used again and again", || {
        client.batch_execute("CHECKPOINT")?;
        let slot = client.query_one(sql, &[])?;
        anyhow::ensure!(slot.get::<_, Option<String>>(0).is_none(), "the slot is invalid");
        used.extend(slot.get::<_, Option<String>>(1));
        Ok(used.len() > 9)
    })
    .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    kafka.resume().unwrap();
    load.assert_exact(&relay);
}

/// Answers each connection's first bytes with these, and closes it.
fn answering(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            drop(stream.read(&mut [0; 1024]).and_then(|_| stream.write_all(answer)));
        }
    });
    address
}

#[test]
#[ignore = "slow"]
fn a_server_without_processes_or_a_proxy_in_its_place_ends_nothing() {
    let load = Load::shared();
    let server = format!("127.0.0.1:{}", shared_postgres().unwrap().port());
    let tap = Tap::start(server.as_str()).unwrap();
    let source = format!("postgres://postgres@{}/{}", tap.address(), load.lane.name);
    let mut client = load.connect();
    for mode in ["prefer", "disable"] {
        tap.set_target(server.as_str());
        let mut relay = load.lane.streaming(&["--source", &format!("{source}?sslmode={mode}")]);
        let pid = relay.pid();
        Load::bulk(&mut client, &format!("order-{mode}-before"), 0..10);
        wait_events(&relay, 10);
        for answer in
            [&b"Ecould not fork new process for connection\n\0"[..], b"HTTP/1.1 503 Service Unavailable\r\n\r\n"]
        {
            tap.set_target(answering(answer));
            let before = tap.accepted();
            tap.cut();
            wait_until(LONG, "attempts", || Ok(tap.accepted() > before + 2 || relay.exited()?.is_some())).unwrap();
            assert_same_process(&mut relay, pid);
        }
        tap.set_target(server.as_str());
        Load::bulk(&mut client, &format!("order-{mode}-after"), 0..10);
        load.assert_exact(&relay);
        assert_same_process(&mut relay, pid);
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
}

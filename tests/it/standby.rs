//! A second relay on the same slot.

use std::time::Duration;

use walrelay_dev::apart::Apart;
use walrelay_dev::cluster::Cluster;
use walrelay_dev::kafka::{self, Kafka, shared_kafka};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::settings;
use walrelay_dev::tap::Tap;

use crate::lane::{LONG, Lane, OUTBOX, wait_events};
use crate::load::Load;
use crate::own;

#[test]
#[ignore = "slow"]
fn a_second_relay_waits_for_the_slot_and_takes_over_and_back() {
    let load = Load::shared();
    let mut relays = [load.lane.streaming(&[]), load.lane.relay(&[])];
    let shop = load.shop();
    for round in 0..4 {
        let [active, waiting] = &mut relays;
        wait_until(LONG, "the second one to wait", || {
            Ok(waiting.status().is_ok_and(|status| status["state"] == "waiting-for-slot"))
        })
        .unwrap_or_else(|error| panic!("{error}: {}", waiting.log()));
        let answer = waiting.get("/readyz").unwrap();
        assert_eq!(answer.status, 503);
        assert!(answer.body.starts_with("waiting-for-slot"), "{}", answer.body);
        wait_events(active, 100);
        assert_eq!(active.terminate(LONG).unwrap().code, 0, "{}", active.log());
        let took = waiting.wait_streaming(LONG).unwrap();
        println!("round {round}: took over within {took:?}");
        active.start_again().unwrap();
        relays.reverse();
    }
    shop.close().unwrap();
    load.assert_exact(&relays[0]);
}

#[test]
fn a_waiting_relay_stops_on_request() {
    let lane = Lane::debezium();
    let _active = lane.streaming(&[]);
    let mut waiting = lane.relay(&[]);
    wait_until(LONG, "it to wait", || Ok(waiting.status().is_ok_and(|status| status["state"] == "waiting-for-slot")))
        .unwrap();
    assert_eq!(waiting.terminate(LONG).unwrap().code, 0, "{}", waiting.log());
}

/// The brokers' addresses are others than `--brokers`, as behind most load balancers.
#[test]
fn a_waiting_relay_opens_no_further_connections_to_kafka_and_takes_over() {
    let [bootstrap, advertised] = [(); 2].map(|()| Tap::listen().unwrap());
    let options = kafka::Options { advertise_through: Some(advertised.port()), ..kafka::Options::default() };
    let kafka = Kafka::start(&options).unwrap();
    for tap in [&bootstrap, &advertised] {
        tap.set_target(kafka.tap_target());
    }
    let mut lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(OUTBOX, "outbox");
    let mut active = lane.streaming(&[]);
    lane.brokers = bootstrap.address();
    let mut waiting = lane.relay(&[]);
    let waits = |seconds: f64| {
        let found = wait_until(LONG, "it to have waited", || {
            let waits = |status: serde_json::Value| {
                status["state"] == "waiting-for-slot" && status["uptime_seconds"].as_f64() > Some(seconds)
            };
            Ok(waiting.status().is_ok_and(waits))
        });
        found.unwrap_or_else(|error| panic!("{error}: {}", waiting.log()));
        bootstrap.accepted() + advertised.accepted()
    };
    let (before, after) = (waits(12.0), waits(30.0));
    assert_eq!(before, after, "{}", waiting.log());
    assert_eq!(active.terminate(LONG).unwrap().code, 0, "{}", active.log());
    waiting.wait_streaming(LONG).unwrap();
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', '123')");
    assert_eq!(lane.ids("order"), ["1"]);
    assert_eq!(waiting.terminate(LONG).unwrap().code, 0, "{}", waiting.log());
}

#[test]
#[ignore = "slow"]
fn a_relay_that_lost_its_slot_to_another_in_the_middle_goes_on_behind_it() {
    let load = Load::shared();
    let mut client = load.connect();
    let mut first = load.lane.streaming(&[]);
    Load::bulk(&mut client, "order-1", 0..10);
    load.lane.wait_confirmed();
    let mut second = load.lane.relay(&[]);
    wait_until(LONG, "it to wait", || Ok(second.status().is_ok_and(|status| status["state"] == "waiting-for-slot")))
        .unwrap();
    // The first one is frozen, so the server's timeout or an operator takes the slot from it.
    first.signal(rustix::process::Signal::STOP).unwrap();
    Load::bulk(&mut client, "order-2", 0..10);
    let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active";
    client.execute(sql, &[&load.lane.name]).unwrap();
    second.wait_streaming(LONG).unwrap();
    load.lane.wait_confirmed();
    first.signal(rustix::process::Signal::CONT).unwrap();
    wait_until(LONG, "the first to wait", || {
        Ok(first.status().is_ok_and(|status| status["state"] == "waiting-for-slot"))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", first.log()));
    assert_eq!(second.terminate(LONG).unwrap().code, 0);
    first.wait_streaming(LONG).unwrap();
    Load::bulk(&mut client, "order-3", 0..10);
    // What lay in the first one's socket when it froze it may publish again: nobody can take it back.
    load.assert_complete(&first);
}

#[test]
#[ignore = "slow"]
fn rows_that_wait_in_postgres_have_an_age_though_nothing_is_received() {
    // What others write is WAL that may hold rows, too: on a server where they do, nothing is ever known to wait for no time.
    let postgres = own::postgres();
    let lane = Lane::on(&postgres, shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let mut active = lane.streaming(&[]);
    let waiting = lane.relay(&[]);
    // Absent until the slot was looked at, so that the sum of its samples alone says nothing.
    let age = || -> anyhow::Result<Option<f64>> {
        let text = waiting.get("/metrics")?.body;
        let sample = text.lines().find(|line| line.starts_with("walrelay_oldest_unpublished_seconds{"));
        Ok(sample.and_then(|line| line.rsplit(' ').next()).map(str::parse).transpose()?)
    };
    wait_until(LONG, "a look at a slot without backlog", || Ok(age().is_ok_and(|age| age == Some(0.0))))
        .unwrap_or_else(|error| panic!("{error}: {}", waiting.log()));
    active.signal(rustix::process::Signal::STOP).unwrap();
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', '123')");
    wait_until(LONG, "the row to age", || Ok(age()?.is_some_and(|seconds| seconds > 1.0))).unwrap();
    assert!(waiting.metric("walrelay_lag_seconds").unwrap() < f64::EPSILON);
    active.signal(rustix::process::Signal::CONT).unwrap();
    wait_until(LONG, "no row to wait", || Ok(age()? == Some(0.0))).unwrap();
    lane.wait_confirmed();
}

/// Two brokers, of which the second one advertises to a waiting relay an address that answers nothing, not even with a refusal. What the relay needs
/// is on the first one. How long it took to stream past the dead broker, and with both.
#[track_caller]
fn check_takeover_past_a_dead_broker(more: &[&str], topics: &[&str]) -> [Duration; 2] {
    let apart = Apart::make().unwrap();
    apart.cut().unwrap();
    let dead = format!("PLAINTEXT://127.0.0.1:{{port}},TAPPED://{}:9092,SECOND://127.0.0.1:1", apart.far_address());
    let cluster = Cluster::start_each(2, |id| kafka::Options {
        properties: settings(&[("min.insync.replicas", "1"), ("advertised.listeners", &dead)][..usize::from(id)]),
        ..kafka::Options::default()
    })
    .unwrap();
    let mut lane = Lane::on(shared_postgres().unwrap(), &cluster.brokers()[0]).furnish(OUTBOX, "outbox");
    lane.client = cluster.client_config();
    for topic in topics.iter().map(|&topic| topic.to_owned()).chain([lane.topic("order")]) {
        let mut create = cluster.brokers()[0].tool("org.apache.kafka.tools.TopicCommand");
        create.args(["--bootstrap-server", &cluster.plain_brokers(), "--create", "--topic", &topic]);
        create.args(["--replica-assignment", "1", "--config", "cleanup.policy=compact"]);
        let output = create.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    lane.brokers = cluster.plain_brokers();
    let mut active = lane.streaming(more);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1"]);
    // The first one takes over past the dead broker, and the second one with both, to compare.
    let places = [("2", cluster.taps()[0].address()), ("3", cluster.plain_brokers())];
    let took = places.map(|(id, brokers)| {
        lane.brokers = brokers;
        let mut waiting = lane.relay(more);
        let waits = |status: serde_json::Value| {
            status["state"] == "waiting-for-slot" && status["uptime_seconds"].as_f64() > Some(10.0)
        };
        wait_until(LONG, "it to have waited", || Ok(waiting.status().is_ok_and(waits)))
            .unwrap_or_else(|error| panic!("{error}: {}", waiting.log()));
        assert_eq!(active.terminate(LONG).unwrap().code, 0, "{}", active.log());
        let took = waiting.wait_streaming(LONG).unwrap();
        lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '1')"));
        lane.wait_confirmed();
        active = waiting;
        took
    });
    assert_eq!(lane.ids("order"), ["1", "2", "3"], "{}", active.log());
    assert_eq!(active.terminate(LONG).unwrap().code, 0, "{}", active.log());
    took
}

#[test]
#[ignore = "slow"]
fn a_waiting_relay_takes_over_past_a_broker_whose_address_drops_packets() {
    println!("{:?}", check_takeover_past_a_dead_broker(&[], &[]));
}

#[test]
#[ignore = "slow"]
fn a_waiting_relay_with_exactly_once_takes_over_past_a_broker_whose_address_drops_packets() {
    let needed = ["__transaction_state", "walrelay.progress"];
    println!("{:?}", check_takeover_past_a_dead_broker(&["--delivery=exactly-once", "--accept-one-replica"], &needed));
}

//! The brokers other than Kafka: start, crash, hang, come back with what they acknowledged, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use walrelay_dev::arrivals::{Arrivals, Drained, Place};
use walrelay_dev::brokers::{Broker, Kind, Reply};
use walrelay_dev::gate::Gate;
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::shop::{self, Shop};
use walrelay_dev::stage::Stage;
use walrelay_dev::{process, relay};

const PATIENCE: Duration = Duration::from_mins(1);

/// One is enough where each costs a download; all of them with `WALRELAY_TEST_ALL_BROKERS=1`.
fn kinds() -> Vec<Kind> {
    let all = std::env::var_os("WALRELAY_TEST_ALL_BROKERS").is_some();
    Kind::ALL.into_iter().filter(|kind| all || *kind == Kind::Valkey).collect()
}

#[test]
fn each_starts_crashes_comes_back_on_the_same_port_and_is_gone_after_drop() {
    for kind in kinds() {
        let mut broker = Broker::start(kind, &[]).unwrap();
        let (url, first) = (broker.url(), broker.pid().unwrap());
        broker.kill().unwrap();
        assert!(!process::is_alive(first) && broker.pid().is_none(), "{kind:?}");
        broker.start_again().unwrap();
        broker.stop().unwrap();
        broker.start_again().unwrap();
        assert_eq!(broker.url(), url);
        let (last, folder) = (broker.pid().unwrap(), broker.folder().to_owned());
        drop(broker);
        process::wait_until(Duration::from_secs(10), "its process to end", || Ok(!process::is_alive(last))).unwrap();
        assert!(!folder.exists(), "{kind:?}");
    }
}

#[test]
fn valkey_keeps_what_it_acknowledged_through_a_crash_and_takes_settings() {
    let mut broker = Broker::start(Kind::Valkey, &["maxmemory 64mb"]).unwrap();
    let mut client = broker.resp().unwrap();
    assert!(matches!(client.call(&["XADD", "s", "*", "n", "1"]).unwrap(), Reply::Bytes(_)));
    assert_eq!(client.call(&["GET", "s"]).unwrap().text().split(' ').next(), Some("WRONGTYPE"));
    broker.kill().unwrap();
    assert!(broker.resp().is_err());
    broker.start_again().unwrap();
    let mut client = broker.resp().unwrap();
    assert_eq!(client.call(&["XLEN", "s"]).unwrap().integer(), Some(1));
    let memory = client.call(&["CONFIG", "GET", "maxmemory"]).unwrap();
    assert_eq!(memory.items().last().map(Reply::text), Some("67108864".to_owned()));
    broker.suspend().unwrap();
    broker.resume().unwrap();
    assert_eq!(client.call(&["PING"]).unwrap(), Reply::Text("PONG".to_owned()));
}

#[test]
fn what_arrives_is_followed_through_a_crash_and_read_again_with_each_key_in_its_order() {
    for kind in kinds().into_iter().filter(|kind| *kind != Kind::ElasticMq) {
        let mut broker = Broker::start(kind, &[]).unwrap();
        let arrivals = Arrivals::prepare(&broker, "t", true).unwrap();
        let options = shop::Options { rows: Some(2000), ..shop::Options::default() };
        let postgres = shared_postgres().unwrap();
        let stage = Stage::build_to(postgres, &broker.url(), arrivals.clone(), &relay::built(), "t", &options).unwrap();
        stage.setup().unwrap();
        let mut relay = stage.relay(&[]).unwrap();
        let rows = usize::try_from(Shop::open(&stage.source, &options).unwrap().finish().unwrap().committed).unwrap();
        stage.wait_confirmed(PATIENCE).unwrap();
        relay.terminate(PATIENCE).unwrap();
        let topics = stage.topics();
        let (mut follower, mut gauge) = (arrivals.follow(&topics).unwrap(), arrivals.gauge(&topics).unwrap());
        let mut followed = HashSet::new();
        while followed.len() < rows {
            if followed.len() == rows / 2 {
                broker.kill().unwrap();
                broker.start_again().unwrap();
            }
            let record = follower.next(PATIENCE).unwrap().unwrap_or_else(|| panic!("{kind:?} {}", followed.len()));
            followed.insert(record.header("id").unwrap().to_owned());
        }
        assert!(follower.next(Duration::from_millis(100)).unwrap().is_none(), "{kind:?}");
        assert_eq!(gauge.count().unwrap(), rows as u64, "{kind:?}");
        let report = stage.compare().unwrap();
        assert!(report.is_clean() && report.received == rows, "{kind:?} {report}");
        stage.drop_database().unwrap();
    }
}

#[test]
fn what_queues_gave_away_can_be_followed_and_read_again_through_a_crash() {
    let mut broker = Broker::start(Kind::ElasticMq, &[]).unwrap();
    let arrivals = Arrivals::prepare(&broker, "t", true).unwrap();
    let topics = [arrivals.address("t.of", "a")];
    let [queue] = topics.each_ref().map(String::as_str);
    assert_eq!(queue, "t-of-a.fifo");
    arrivals.create(&[queue]).unwrap();
    let (mut follower, mut gauge) = (arrivals.follow(&topics).unwrap(), arrivals.gauge(&topics).unwrap());
    let mut followed = Vec::new();
    for number in 0..30 {
        if number == 15 {
            assert_eq!(gauge.count().unwrap(), 15);
            followed.push(follower.next(Duration::from_mins(1)).unwrap().unwrap());
            broker.kill().unwrap();
            broker.start_again().unwrap();
        }
        broker
            .queues()
            .send(queue, if number % 2 == 0 { "even" } else { "odd" }, &format!("id-{number:02}"), "x")
            .unwrap();
    }
    assert_eq!(gauge.ends().unwrap().into_values().collect::<Vec<_>>(), [30]);
    while followed.len() < 30 {
        followed.push(follower.next(Duration::from_mins(1)).unwrap().unwrap());
    }
    assert!(follower.next(Duration::from_millis(100)).unwrap().is_none());
    let mut again = Vec::new();
    arrivals.read(&topics, |record| again.push(record)).unwrap();
    assert_eq!((again.len(), gauge.count().unwrap()), (30, 30));
    for records in [followed, again] {
        for key in ["even", "odd"] {
            let its = records.iter().filter(|record| record.key_text() == key);
            let ids: Vec<&str> = its.map(|record| record.header("id").unwrap()).collect();
            assert!(ids.len() == 15 && ids.is_sorted(), "{ids:?}");
        }
    }
    arrivals.remove(&[queue]).unwrap();
    assert!(broker.queues().count(queue).is_err());
}

#[test]
fn what_a_queue_gives_away_again_is_followed_and_read_once() {
    let broker = Broker::start(Kind::ElasticMq, &[]).unwrap();
    let gate = Gate::start(broker.port()).unwrap();
    let arrivals = Arrivals::Other(Place::Queues(Arc::new(Drained::on(gate.port()))));
    let topics = [arrivals.address("t", "a")];
    let [queue] = topics.each_ref().map(String::as_str);
    arrivals.create(&[queue]).unwrap();
    let mut gauge = arrivals.gauge(&topics).unwrap();
    for id in ["1", "2", "3"] {
        broker.queues().send(queue, "k", id, "x").unwrap();
    }
    gate.lose_deletions(1);
    let mut follower = arrivals.follow(&topics).unwrap();
    let mut ids: Vec<String> = Vec::new();
    while ids.len() < 3 {
        let record = follower.next(Duration::from_mins(1)).unwrap().unwrap();
        ids.push(record.header("id").unwrap().to_owned());
    }
    assert_eq!(ids, ["1", "2", "3"]);
    assert_eq!(gauge.count().unwrap(), 6, "they are still there");
    assert_eq!(gauge.ends().unwrap().into_values().collect::<Vec<_>>(), [3], "after all of them were received again");
    assert_eq!(gauge.count().unwrap(), 3, "and deleted");
    assert!(follower.next(Duration::from_millis(100)).unwrap().is_none());
    let mut read = Vec::new();
    arrivals.read(&topics, |record| read.push(record.header("id").unwrap().to_owned())).unwrap();
    assert_eq!(read, ids);
}

#[test]
fn an_unknown_broker_names_the_known_ones() {
    let error = Kind::of("zeromq").unwrap_err().to_string();
    assert!(error.contains("redis, nats, rabbitmq, sqs"), "{error}");
}

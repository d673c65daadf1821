//! The brokers other than Kafka: start, crash, hang, come back with what they acknowledged, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use walrelay_dev::brokers::{Broker, Kind, Reply};
use walrelay_dev::process;

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
fn an_unknown_broker_names_the_known_ones() {
    let error = Kind::of("zeromq").unwrap_err().to_string();
    assert!(error.contains("redis, nats, rabbitmq, sqs"), "{error}");
}

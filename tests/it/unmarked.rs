//! Exactly once, and a broker that was killed before it had marked what was committed: Kafka 4.3.1 then calls the transaction ended
//! when it is back, and marks nothing.

use std::time::Duration;

use rdkafka::producer::Producer as _;
use walrelay_dev::consume::Record;
use walrelay_dev::kafka::{Kafka, Options};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::{Direction, Tap};

use crate::exactly_once::{EXACTLY_ONCE, TABLE, each_once, insert, meter};
use crate::lane::{LONG, Lane, wait_log};
use crate::transactions::strangers_transaction;

/// A broker that sends itself its markers by a line, as it sends them to others.
struct Marker {
    kafka: Kafka,
    line: Tap,
}

impl Marker {
    fn start() -> Self {
        let line = Tap::listen().unwrap();
        // The line is the markers' alone: a broker also asks itself, for each partition, whether the transaction is open.
        let properties =
            [("inter.broker.listener.name", "TAPPED"), ("transaction.partition.verification.enable", "false")];
        let properties = properties.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let options = Options { advertise_through: Some(line.port()), properties, ..Options::default() };
        let mut kafka = Kafka::prepare(&options).unwrap();
        line.set_target(kafka.tap_target().unwrap());
        kafka.start_again().unwrap();
        Self { kafka, line }
    }

    /// Kills it, and starts it again after that time.
    fn die_for(&mut self, time: Duration) {
        self.kafka.kill().unwrap();
        self.line.cut();
        self.line.flow();
        std::thread::sleep(time);
        self.kafka.start_again().unwrap();
    }

    /// A lane whose relay has written a hundred rows to a topic of six partitions.
    fn lane(&self, more: &[&str]) -> (Lane, Relay) {
        let lane = Lane::on(shared_postgres().unwrap(), &self.kafka).furnish(TABLE, "outbox");
        self.kafka.create_topic(&lane.topic("order"), 6, &[]).unwrap();
        let relay = lane.streaming(&[&[EXACTLY_ONCE], more].concat());
        insert(&lane, 1, 100);
        each_once(&lane.records("order"), 100);
        (lane, relay)
    }

    /// The hundred rows to `last` are committed, and not marked.
    fn commit_unmarked(&self, lane: &Lane, last: u32) {
        self.line.stall_both();
        insert(lane, last - 99, last);
        lane.wait_confirmed();
        assert_eq!(rows(lane).len() + 100, last as usize, "nothing is marked");
    }
}

/// What is seen of the rows, without what was written to show them.
#[track_caller]
fn rows(lane: &Lane) -> Vec<Record> {
    let mut records = lane.records_now("order");
    records.retain(|record| !record.is_marker());
    records
}

/// Every row to `last` is seen once.
#[track_caller]
fn rows_are_seen(lane: &Lane, relay: &Relay, last: u32) {
    wait_until(LONG, "the rows to be seen", || Ok(rows(lane).len() >= last as usize))
        .unwrap_or_else(|error| panic!("{error}, {} of them: {}", rows(lane).len(), relay.log()));
    each_once(&rows(lane), last);
}

#[test]
fn rows_that_a_killed_broker_has_not_marked_are_seen_although_no_other_comes() {
    let mut marker = Marker::start();
    let (lane, mut relay) = marker.lane(&[]);
    // It forgets what it has to mark in one of two or three times.
    for last in [200, 300] {
        marker.commit_unmarked(&lane, last);
        marker.die_for(Duration::ZERO);
        rows_are_seen(&lane, &relay, last);
    }
    insert(&lane, 301, 400);
    rows_are_seen(&lane, &relay, 400);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn rows_that_a_killed_broker_has_not_marked_are_seen_although_the_relay_died_as_well() {
    let mut marker = Marker::start();
    let (lane, mut relay) = marker.lane(&[]);
    marker.commit_unmarked(&lane, 200);
    relay.kill9().unwrap();
    marker.die_for(Duration::ZERO);
    relay.start_again().unwrap();
    rows_are_seen(&lane, &relay, 200);
    insert(&lane, 201, 300);
    rows_are_seen(&lane, &relay, 300);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// What the relay committed last lies behind the stranger's open transaction in the topic of progress; it tells nothing of the next.
#[test]
fn rows_that_a_killed_broker_has_not_aborted_stay_unseen_although_anothers_transaction_is_open() {
    let mut marker = Marker::start();
    let postgres = Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port().unwrap())).unwrap();
    let (mut lane, relay) = marker.lane(&["-X", "transaction.timeout.ms=10000"]);
    drop(relay);
    lane.source = format!("postgres://postgres@{}/{}", postgres.address(), lane.name);
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "-X", "transaction.timeout.ms=10000"]);
    wait_log(&relay, "exactly once: resuming");
    let stranger = strangers_transaction(&lane, "walrelay.progress");
    insert(&lane, 101, 200);
    lane.wait_confirmed();
    let written = meter(&lane);
    let before = written.count().unwrap();
    // So slow that it takes some seconds.
    postgres.limit(Direction::ToClient, 1_000_000);
    insert(&lane, 201, 20_000);
    wait_until(LONG, "a part of them to be written", || Ok(written.count()? > before + 500)).unwrap();
    relay.kill9().unwrap();
    // Longer than the transaction may be open.
    marker.die_for(Duration::from_secs(14));
    postgres.flow();
    relay.start_again().unwrap();
    wait_log(&relay, "waiting for another relay's transaction");
    stranger.abort_transaction(LONG).unwrap();
    rows_are_seen(&lane, &relay, 20_000);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

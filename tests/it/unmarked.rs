//! Exactly once, and a broker that was killed before it had marked what was committed: Kafka 4.3.1 then calls the transaction ended
//! when it is back, and marks nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use rdkafka::producer::Producer as _;
use rustix::process::Signal;
use walrelay_dev::consume::Record;
use walrelay_dev::kafka::{Kafka, Options};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::{Direction, Tap};

use crate::exactly_once::{EXACTLY_ONCE, TABLE, each_once, insert, meter};
use crate::lane::{LONG, Lane, wait_log};
use crate::transactions::strangers_transaction;

/// The broker's answer to a marker of a coordinator before the last one.
const COORDINATOR_FENCED: i16 = 52;

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
        // What was committed before has to be marked, or the next transaction never begins.
        wait_until(LONG, "every transaction to be marked", || Ok(!self.transactions()?.contains("Prepare"))).unwrap();
        self.line.stall_both();
        insert(lane, last - 99, last);
        lane.wait_confirmed();
        assert_eq!(rows(lane).len() + 100, last as usize, "nothing is marked");
    }

    /// Those that the broker knows, with their states.
    fn transactions(&self) -> anyhow::Result<String> {
        let mut tool = self.kafka.tool("org.apache.kafka.tools.TransactionsCommand")?;
        let output = tool.args(["--bootstrap-server", &self.kafka.brokers(), "list"]).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        anyhow::ensure!(said.contains("TransactionState"), "{said}{}", String::from_utf8_lossy(&output.stderr));
        Ok(said)
    }

    /// Marks what was written last to a partition as committed, as the transaction's coordinator does.
    fn mark_committed(&self, topic: &str, partition: i32) {
        let file = self.kafka.partition(topic, partition).unwrap().join("00000000000000000000.log");
        let (producer, epoch) = last_producer(&std::fs::read(file).unwrap());
        // Markers of an older coordinator than the last one's are refused.
        let outcome = (0..100).map(|coordinator| {
            let request = write_txn_markers(producer, epoch, topic, partition, coordinator);
            let mut broker = TcpStream::connect(("127.0.0.1", self.kafka.port().unwrap())).unwrap();
            broker.write_all(&request).unwrap();
            let mut length = [0; 4];
            broker.read_exact(&mut length).unwrap();
            let mut answer = vec![0; u32::from_be_bytes(length) as usize];
            broker.read_exact(&mut answer).unwrap();
            // Behind the correlation id and the tags, one marker's producer id, its topic's name and the partition's number.
            let at = 4 + 1 + 1 + 8 + 1 + 1 + topic.len() + 1 + 4;
            i16::from_be_bytes(answer[at..at + 2].try_into().unwrap())
        });
        assert_eq!(outcome.into_iter().find(|code| *code != COORDINATOR_FENCED), Some(0));
    }
}

/// Producer id and epoch of the last batch of records in a segment (Kafka's implementation notes, "Record Batch").
fn last_producer(segment: &[u8]) -> (i64, i16) {
    const ATTRIBUTES: usize = 21;
    const CONTROL: u8 = 0x20;
    let (mut rest, mut found) = (segment, None);
    while rest.len() > 61 {
        let (batch, behind) = rest.split_at(12 + u32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize);
        if batch[ATTRIBUTES + 1] & CONTROL == 0 {
            let producer = i64::from_be_bytes(batch[43..51].try_into().unwrap());
            found = Some((producer, i16::from_be_bytes(batch[51..53].try_into().unwrap())));
        }
        rest = behind;
    }
    found.unwrap()
}

/// A request with its length (Kafka's protocol guide, "WriteTxnMarkers", version 1).
fn write_txn_markers(producer: i64, epoch: i16, topic: &str, partition: i32, coordinator: i32) -> Vec<u8> {
    const ONE: u8 = 2;
    const NO_TAGS: u8 = 0;
    let mut body = [27_i16, 1].map(i16::to_be_bytes).concat();
    body.extend(1_i32.to_be_bytes());
    body.extend((-1_i16).to_be_bytes());
    body.extend([NO_TAGS, ONE]);
    body.extend(producer.to_be_bytes());
    body.extend(epoch.to_be_bytes());
    body.extend([1, ONE, u8::try_from(topic.len() + 1).unwrap()]);
    body.extend(topic.as_bytes());
    body.push(ONE);
    body.extend(partition.to_be_bytes());
    body.push(NO_TAGS);
    body.extend(coordinator.to_be_bytes());
    body.extend([NO_TAGS, NO_TAGS]);
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
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
pub(crate) fn rows_are_seen(lane: &Lane, relay: &Relay, last: u32) {
    wait_until(LONG, "the rows to be seen", || Ok(rows(lane).len() >= last as usize))
        .unwrap_or_else(|error| panic!("{error}, {} of them: {}", rows(lane).len(), relay.log()));
    each_once(&rows(lane), last);
}

#[test]
#[ignore = "slow"]
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
#[ignore = "slow"]
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

/// Of both relays something is open in the same partitions: the second one's is hidden until the first one has ended its own. The second
/// one stands still while the broker is away, and its client is asked to say nothing of connections that end.
#[test]
#[ignore = "slow"]
fn rows_of_two_relays_that_a_killed_broker_has_not_marked_are_seen() {
    let mut marker = Marker::start();
    let (lane, mut relay) = marker.lane(&[]);
    let other = Lane::on(shared_postgres().unwrap(), &marker.kafka).furnish(TABLE, "outbox");
    let topic = lane.topic("{route}");
    let mut others = other.streaming(&[EXACTLY_ONCE, "--topic", &topic, "-X", "log.connection.close=false"]);
    insert(&other, 1, 100);
    other.wait_confirmed();
    let of_both = |last: u32, logs: &dyn Fn() -> String| {
        let seen = || Ok(rows(&lane).len() >= 2 * last as usize);
        wait_until(LONG, "the rows of both to be seen", seen)
            .unwrap_or_else(|error| panic!("{error}, {}: {}", rows(&lane).len(), logs()));
    };
    of_both(100, &|| relay.log() + &others.log());
    for last in [200, 300, 400] {
        wait_until(LONG, "every transaction to be marked", || Ok(!marker.transactions()?.contains("Prepare"))).unwrap();
        marker.line.stall_both();
        for lane in [&lane, &other] {
            insert(lane, last - 99, last);
            lane.wait_confirmed();
        }
        // The second one looks while the first one has yet to end what is its own.
        others.signal(Signal::STOP).unwrap();
        marker.die_for(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1500));
        others.signal(Signal::CONT).unwrap();
        of_both(last, &|| relay.log() + &others.log());
    }
    assert_eq!(rows(&lane).len(), 800);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    assert_eq!(others.terminate(LONG).unwrap().code, 0, "{}", others.log());
}

/// The record of progress is seen by then, so that alone does not tell which rows were committed with it.
#[test]
#[ignore = "slow"]
fn rows_that_a_killed_broker_has_not_marked_are_seen_although_it_has_marked_their_progress() {
    let mut marker = Marker::start();
    let (lane, mut relay) = marker.lane(&[]);
    for last in [200, 300, 400] {
        marker.commit_unmarked(&lane, last);
        relay.kill9().unwrap();
        marker.mark_committed("walrelay.progress", 0);
        marker.die_for(Duration::ZERO);
        relay.start_again().unwrap();
        rows_are_seen(&lane, &relay, last);
    }
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// What the relay committed last lies behind the stranger's open transaction in the topic of progress; it tells nothing of the next.
#[test]
#[ignore = "slow"]
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

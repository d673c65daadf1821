//! Servers that refuse everything with codes that no list has, for a while or every few seconds: no row is at fault.
//!
//! A proxy before each server answers in its place. Whatever it says, and whatever `--on-bad-row` says, rows wait, and arrive once it lets
//! them through.

use std::collections::{BTreeMap, BTreeSet};

use postgres::Client;
use serde_json::json;
use walrelay_dev::brokers::{Broker, Kind, shared};
use walrelay_dev::gate::Gate;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::objector::{Objector, Protocol};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::refuser::Refuser;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::Tap;

use crate::elsewhere;
use crate::lane::{LONG, Lane, OUTBOX, ids};
use crate::{nats, rabbitmq, redis, sns, sqs};

/// How many codes a server invents.
const CODES: usize = 20;

/// Rows that are inserted at once, of three keys that others do not have: those wait for pauses of their own.
const ROWS: u32 = 21;
const KEYS: u32 = 3;

/// Inserts rows `first` to `first + ROWS - 1`.
fn insert(client: &mut Client, first: u32) {
    let sql = format!(
        "INSERT INTO outbox SELECT n::text, 'order', '{first}-' || n % {KEYS}, 'Placed', '{{}}' FROM generate_series({first}, {}) AS n",
        first + ROWS - 1
    );
    client.batch_execute(&sql).unwrap();
}

/// Every row up to `last` arrived, and those of a key are in their order where they appear first.
#[track_caller]
fn assert_complete(stored: &[String], last: u32) {
    let (mut seen, mut latest) = (BTreeSet::new(), BTreeMap::new());
    for id in stored.iter().map(|id| id.parse::<u32>().unwrap()) {
        if seen.insert(id) {
            let before = latest.insert(((id - 1) / ROWS, id % KEYS), id).unwrap_or(0);
            assert!(before < id, "{id} of its key came after {before}");
        }
    }
    let missing: Vec<u32> = (1..=last).filter(|id| !seen.contains(id)).collect();
    assert!(missing.is_empty() && seen.len() == last as usize, "missing: {missing:?}");
}

/// A destination before which something refuses messages.
struct Place<'a> {
    lane: &'a Lane,
    /// Starts a relay with these arguments.
    start: &'a dyn Fn(&[&str]) -> Relay,
    /// From now on all messages are refused with the code of this number; `None` ends that.
    refuse: &'a dyn Fn(Option<usize>),
    /// How many answers with a code there were.
    refused: &'a dyn Fn() -> usize,
    /// The ids of the rows that arrived.
    arrived: &'a dyn Fn() -> Vec<String>,
}

impl Place<'_> {
    /// Waits for so many more answers with a code.
    #[track_caller]
    fn wait_refused(&self, relay: &Relay, before: usize, more: usize) {
        let enough = wait_until(LONG, &format!("{more} refusals"), || Ok((self.refused)() >= before + more));
        enough.unwrap_or_else(|error| panic!("{error}, there are {}: {}", (self.refused)() - before, relay.log()));
    }

    /// All rows up to this one arrived, each key in its order, and none was at fault. Ends the relay.
    #[track_caller]
    fn assert_none_at_fault(&self, mut relay: Relay, last: u32) {
        self.lane.wait_confirmed();
        assert_eq!(relay.metric("walrelay_bad_rows_total").unwrap().to_string(), "0", "{}", relay.log());
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
        assert_complete(&(self.arrived)(), last);
    }

    /// Everything is refused, with one code after the other.
    #[track_caller]
    fn check_outage(&self, codes: usize) {
        let relay = (self.start)(&["--on-bad-row=skip"]);
        let mut writer = self.lane.connect();
        insert(&mut writer, 1);
        self.lane.wait_confirmed();
        let (mut last, mut first_refused) = (ROWS, String::new());
        for number in 0..codes {
            let before = (self.refused)();
            (self.refuse)(Some(number));
            insert(&mut writer, last + 1);
            last += ROWS;
            if number == 0 {
                first_refused = writer.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
            }
            self.wait_refused(&relay, before, 1);
        }
        let tried = || relay.status().map(|status| status["tried_alone"].clone()).unwrap_or_default();
        wait_until(LONG, "a row to be named", || Ok(!tried().is_null()))
            .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
        let mut ready = String::new();
        wait_until(LONG, "/readyz to name it", || {
            let answer = relay.get("/readyz")?;
            ready = answer.body;
            Ok(answer.status == 503 && ready.contains("does not know this answer"))
        })
        .unwrap_or_else(|error| panic!("{error}: {ready}: {}", relay.log()));
        let sql = "SELECT confirmed_flush_lsn < $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2";
        let row = writer.query_one(sql, &[&first_refused, &self.lane.name]).unwrap();
        assert!(row.get::<_, bool>(0), "{}", relay.log());
        (self.refuse)(None);
        self.assert_none_at_fault(relay, last);
    }

    /// Everything is refused, and then nothing, in turns.
    #[track_caller]
    fn check_quota(&self, turns: usize, refusals: usize) {
        let relay = (self.start)(&["--on-bad-row=stop"]);
        let mut writer = self.lane.connect();
        let mut last = 0;
        for number in 0..turns {
            let before = (self.refused)();
            (self.refuse)(Some(number));
            insert(&mut writer, last + 1);
            last += ROWS;
            self.wait_refused(&relay, before, refusals);
            let events = || relay.metric("walrelay_events_total");
            let arrived = events().unwrap();
            (self.refuse)(None);
            wait_until(LONG, "rows to arrive", || Ok(events()? > arrived))
                .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
        }
        self.assert_none_at_fault(relay, last);
    }
}

/// Both checks of a server behind an objector, each on a lane of its own. `code`: the code of each number.
fn check_behind_objector(
    broker: &Broker,
    protocol: impl Fn(&Lane) -> Protocol,
    code: fn(usize) -> u16,
    lane: impl Fn() -> Lane,
    start: impl Fn(&Lane, &str, &[&str]) -> Relay,
    arrived: impl Fn(&Lane) -> Vec<String>,
) {
    for is_outage in [true, false] {
        let lane = lane();
        let objector = Objector::start(broker.port(), protocol(&lane)).unwrap();
        let url = broker.url_through(objector.port());
        let place = Place {
            lane: &lane,
            start: &|more| start(&lane, &url, more),
            refuse: &|number| objector.refuse(number.map(code)),
            refused: &|| objector.refused(),
            arrived: &|| arrived(&lane),
        };
        if is_outage {
            place.check_outage(CODES);
        } else {
            place.check_quota(6, 3);
        }
    }
}

fn check_redis(flags: &[&str]) {
    let broker = shared(Kind::Valkey).unwrap();
    check_behind_objector(
        broker,
        |_| Protocol::Redis,
        |number| u16::try_from(number).unwrap(),
        elsewhere::lane,
        |lane, url, more| elsewhere::start(lane, url, &[flags, more].concat()),
        |lane| redis::ids(broker, &lane.topic("order")),
    );
}

#[test]
#[ignore = "slow"]
fn redis_refuses_everything_with_invented_codes_and_no_row_is_skipped() {
    check_redis(&[]);
}

#[test]
#[ignore = "slow"]
fn redis_refuses_scripts_with_invented_codes_and_no_row_is_skipped() {
    check_redis(&["-X", "dedupe=1h"]);
}

fn check_nats(atomic: bool) {
    let broker = shared(Kind::Nats).unwrap();
    check_behind_objector(
        broker,
        |lane| Protocol::Nats(format!("{}.", lane.name)),
        |number| u16::try_from(10_400 + number).unwrap(),
        || nats::with_stream(broker, &json!({ "allow_atomic": atomic })),
        |lane, url, more| {
            let (stream, atomic) = (format!("stream={}", lane.name), format!("atomic={atomic}"));
            elsewhere::start(lane, url, &[&["-X", &stream, "-X", &atomic], more].concat())
        },
        |lane| nats::ids(broker, lane),
    );
}

#[test]
#[ignore = "slow"]
fn nats_refuses_everything_with_invented_codes_and_no_row_is_skipped() {
    check_nats(false);
}

#[test]
#[ignore = "slow"]
fn nats_refuses_batches_with_invented_codes_and_no_row_is_skipped() {
    check_nats(true);
}

/// The codes of AMQP that no list has, and others that AMQP does not have.
fn check_rabbitmq(protocol: &Protocol, code: fn(usize) -> u16) {
    let broker = rabbitmq::broker();
    check_behind_objector(
        broker,
        |_| protocol.clone(),
        code,
        || rabbitmq::bound(broker),
        rabbitmq::start_to,
        |lane| rabbitmq::ids(broker, lane),
    );
}

fn code_of(known: &[u16], number: usize) -> u16 {
    known.get(number).copied().unwrap_or_else(|| u16::try_from(600 + number).unwrap())
}

#[test]
#[ignore = "slow"]
fn rabbitmq_closes_channels_with_invented_codes_and_no_row_is_skipped() {
    check_rabbitmq(&Protocol::Channels, |number| code_of(&[312, 313, 405], number));
}

#[test]
#[ignore = "slow"]
fn rabbitmq_closes_connections_with_invented_codes_and_no_row_is_skipped() {
    check_rabbitmq(&Protocol::Connections, |number| code_of(&[402, 501, 502, 504, 505, 540, 541], number));
}

/// Codes of SQS and SNS that no list has.
const OF_AWS: [&str; CODES] = [
    "RequestAbortedException",
    "AccountProblem",
    "ServiceQuotaExceededException",
    "InvalidState",
    "AWS.SimpleQueueService.Invented5",
    "com.amazonaws.sqs#Invented6",
    "Invented7Exception",
    "Invented8",
    "Invented9",
    "Invented10",
    "Invented11",
    "Invented12",
    "Invented13",
    "Invented14",
    "Invented15",
    "Invented16",
    "Invented17",
    "Invented18",
    "Invented19",
    "Invented20",
];

fn check_behind_gate(
    lane: &Lane,
    gate: &Gate,
    start: &dyn Fn(&[&str]) -> Relay,
    arrived: &dyn Fn() -> Vec<String>,
    is_outage: bool,
) {
    let place = Place {
        lane,
        start,
        refuse: &|number| gate.throttle(number.map(|number| (400, OF_AWS[number]))),
        refused: &|| gate.throttled(),
        arrived,
    };
    if is_outage {
        place.check_outage(CODES);
    } else {
        place.check_quota(6, 3);
    }
}

#[test]
#[ignore = "slow"]
fn sqs_refuses_everything_with_invented_codes_and_no_row_is_skipped() {
    let broker = sqs::broker();
    for is_outage in [true, false] {
        let lane = sqs::with_queue(broker.queues());
        let gate = Gate::start(broker.port()).unwrap();
        let start = |more: &[&str]| sqs::start(&lane, &gate.url(), more);
        check_behind_gate(&lane, &gate, &start, &|| sqs::ids(broker.queues(), &lane, "order"), is_outage);
    }
}

#[test]
#[ignore = "slow"]
fn sns_refuses_everything_with_invented_codes_and_no_row_is_skipped() {
    for is_outage in [true, false] {
        let (lane, gate) = (elsewhere::lane(), sns::topics());
        let start = |more: &[&str]| sns::start(&lane, &gate, more);
        check_behind_gate(&lane, &gate, &start, &|| sns::ids(&gate, "order"), is_outage);
    }
}

/// Codes of Kafka's table that no list has, since no broker should answer records with them. A code that librdkafka's table does not have ends the
/// process: the library `rdkafka` makes a Rust enum of it.
const OF_KAFKA: [i16; CODES] = [-1, 42, 43, 44, 55, 76, 35, 40, 60, 68, 50, 94, 80, 84, 110, 111, 112, 113, 117, 118];

/// A cluster behind a refuser, and a lane on it whose topic has a few partitions.
fn with_kafka(check: impl FnOnce(&Place<'_>), partitions: u32, more: &[&str]) {
    let tap = Tap::listen().unwrap();
    let options = kafka::Options { advertise_through: Some(tap.port()), ..kafka::Options::default() };
    let kafka = Kafka::start(&options).unwrap();
    let refuser = Refuser::start(kafka.tap_target(), Vec::new()).unwrap();
    tap.set_target(refuser.address());
    let mut lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(OUTBOX, "outbox");
    lane.brokers = tap.address();
    kafka.create_topic(&lane.topic("order"), partitions, &[]).unwrap();
    check(&Place {
        lane: &lane,
        start: &|flags| lane.streaming(&[flags, more].concat()),
        refuse: &|number| refuser.refuse(number.map(|number| OF_KAFKA[number])),
        refused: &|| refuser.refused(),
        arrived: &|| ids(&lane.records_now("order")),
    });
}

#[test]
#[ignore = "slow"]
fn kafka_refuses_everything_with_unlisted_codes_and_no_row_is_skipped() {
    with_kafka(|place| place.check_outage(CODES), 96, &[]);
    with_kafka(|place| place.check_quota(6, 3), 96, &[]);
}

/// Each refusal aborts a transaction, and the relay waits as a whole, for longer each time.
#[test]
#[ignore = "slow"]
fn kafka_refuses_everything_with_unlisted_codes_and_exactly_once_skips_and_repeats_no_row() {
    let flags = ["--delivery=exactly-once"];
    with_kafka(|place| place.check_outage(6), 3, &flags);
    with_kafka(|place| place.check_quota(3, 2), 3, &flags);
}

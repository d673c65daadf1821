//! A relay that is cut off from its destination, and another that takes its slot: what the first one still sends.
//!
//! The packets between the first relay and Kafka are dropped in the kernel, on both sides of a way of its own: see `apart`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use walrelay_dev::apart::Apart;
use walrelay_dev::consume;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, Lane, OUTBOX, binary, wait_events, wait_log};
use crate::load::UNPROVEN;
use crate::own;

const KEYS: i64 = 64;
const PARTITIONS: u32 = 12;

/// Writes rows of all keys with rising numbers, until it is dropped.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Writer {
    /// 4,000 rows a second.
    fn start(lane: &Lane) -> Self {
        let (stop, mut client) = (Arc::new(AtomicBool::new(false)), lane.connect());
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let sql = "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'key-' || n % $2::bigint, 'Changed',
                       jsonb_build_object('seq', n) FROM generate_series($1::bigint, $1 + 39) AS n";
            let (mut next, began) = (0_i64, Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                client.execute(sql, &[&next, &KEYS]).unwrap();
                next += 40;
                let due = Duration::from_micros(u64::try_from(next).unwrap() * 250);
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
        });
        Self { stop, thread: Some(thread) }
    }

    fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// What a consumer that keeps the last value of each key has at the end.
#[derive(Debug, PartialEq, Eq)]
struct Last {
    /// Keys whose last record is not their newest.
    stale_keys: usize,
    /// Records behind the newest one of their key.
    stale_records: usize,
}

fn last(lane: &Lane) -> Last {
    let mut keys = std::collections::BTreeMap::<String, Vec<i64>>::new();
    consume::read_topic(&lane.client, &lane.topic("order"), |record| {
        let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        keys.entry(record.key_text()).or_default().push(value["seq"].as_i64().unwrap());
    })
    .unwrap();
    assert_eq!(keys.len(), usize::try_from(KEYS).unwrap());
    let behind = |seqs: &Vec<i64>| {
        let newest = seqs.iter().max().unwrap();
        seqs.iter().rev().take_while(|seq| *seq != newest).count()
    };
    let behind: Vec<usize> = keys.values().map(behind).collect();
    Last { stale_keys: behind.iter().filter(|count| **count > 0).count(), stale_records: behind.iter().sum() }
}

struct Stage {
    apart: Apart,
    lane: Lane,
    first: Relay,
    second: Relay,
    _kafka: Kafka,
}

/// A relay on the other side that streams, and one on this side that waits for its slot. `whole`: the first one reaches Postgres by the
/// same way as Kafka; otherwise by its socket, which is never cut.
fn stage(postgres: &Postgres, whole: bool, more: &[&str]) -> Stage {
    let apart = Apart::make().unwrap();
    let properties = [
        ("listeners", "PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:{controller_port}".to_owned()),
        ("advertised.listeners", format!("PLAINTEXT://{}:{{port}}", apart.address())),
    ];
    let properties = properties.map(|(key, value)| (key.to_owned(), value)).to_vec();
    let kafka = Kafka::start(&kafka::Options { properties, ..kafka::Options::default() }).unwrap();
    let mut lane = Lane::on(postgres, &kafka).furnish(OUTBOX, "outbox");
    lane.brokers = format!("{}:{}", apart.address(), kafka.port());
    kafka.create_topic(&lane.topic("order"), PARTITIONS, &[]).unwrap();
    let by_socket = postgres.socket_url(&lane.name);
    let by_way = format!("postgres://postgres@{}:{}/{}", apart.address(), postgres.port(), lane.name);
    let source = ["--source", if whole { &by_way } else { &by_socket }];
    let (program, inside) = apart.inside(&binary());
    let arguments = lane.arguments(&[&source, more].concat()).into_iter().map(Into::into);
    let arguments = inside.into_iter().chain(arguments).collect::<Vec<_>>();
    let first = Relay::start(&program, &arguments, &[] as &[(&str, &str)]).unwrap();
    wait_log(&first, "streaming");
    let second = lane.relay(more);
    wait_log(&second, "waiting as standby");
    Stage { apart, lane, first, second, _kafka: kafka }
}

/// Cuts the first relay off, lets `leave` take it from the slot, and makes the way whole again once the second one has published
/// everything: what is stale then.
fn cut_and_heal(stage: &mut Stage, leave: impl FnOnce(&mut Relay)) -> Last {
    let Stage { apart, lane, first, second, .. } = stage;
    let writer = Writer::start(lane);
    let enough = || Ok(consume::count(&lane.client, &lane.topic("order"))? > 8_000);
    wait_until(LONG, "records of the first relay", enough).unwrap();
    apart.cut().unwrap();
    let cut = Instant::now();
    thread::sleep(Duration::from_millis(500));
    leave(first);
    wait_log(second, "streaming");
    let took = cut.elapsed();
    wait_events(second, 4_000);
    writer.stop();
    lane.wait_confirmed();
    let healthy = last(lane);
    // The kernel's attempts are some 13 and 26 s behind the cut: what leaves at all leaves then.
    thread::sleep(Duration::from_secs(15).saturating_sub(cut.elapsed()));
    apart.heal().unwrap();
    thread::sleep(Duration::from_secs(32).saturating_sub(cut.elapsed()));
    assert_eq!(healthy, NONE, "before the way was whole again; taken over after {took:?}");
    last(lane)
}

const NONE: Last = Last { stale_keys: 0, stale_records: 0 };

#[test]
#[ignore = "slow"]
fn a_relay_that_was_killed_while_its_packets_were_dropped_sends_nothing_later() {
    let postgres = own::postgres();
    let mut stage = stage(&postgres, false, &[]);
    let last = cut_and_heal(&mut stage, |first| first.kill9().unwrap());
    assert_eq!(last, NONE, "{}", stage.second.log());
}

#[test]
#[ignore = "slow"]
fn a_relay_that_is_cut_off_from_kafka_sends_nothing_once_another_has_its_slot() {
    let postgres = own::postgres();
    let mut stage = stage(&postgres, false, &["--disconnect-after=2s"]);
    let last = cut_and_heal(&mut stage, |_| {});
    assert_eq!(last, NONE, "{}\n{}", stage.first.log(), stage.second.log());
    assert!(stage.first.log().contains("another relay holds the slot"), "{}", stage.first.log());
}

#[test]
#[ignore = "slow"]
fn a_relay_that_is_cut_off_from_kafka_and_postgres_sends_nothing_once_another_has_its_slot() {
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let postgres = Postgres::start(&postgres::Options {
        settings: vec![setting("listen_addresses", "*"), setting("wal_sender_timeout", "5s")],
        hba: ["127.0.0.1/32", "10.0.0.0/8"].map(|net| format!("host all,replication all {net} trust")).to_vec(),
        ..postgres::Options::default()
    })
    .unwrap();
    let mut stage = stage(&postgres, true, &["--disconnect-after=2s"]);
    let last = cut_and_heal(&mut stage, |_| {});
    assert_eq!(last, NONE, "{}\n{}", stage.first.log(), stage.second.log());
}

#[test]
#[ignore = "slow"]
fn a_relay_that_was_frozen_sends_what_its_connections_had_at_most_once_another_has_its_slot() {
    let (postgres, kafka) = (own::postgres(), kafka::shared_kafka().unwrap());
    let lane = Lane::on(&postgres, kafka).furnish(OUTBOX, "outbox");
    kafka.create_topic(&lane.topic("order"), PARTITIONS, &[]).unwrap();
    let mut first = lane.streaming(&[]);
    let mut second = lane.relay(&[]);
    wait_log(&second, "waiting as standby");
    let writer = Writer::start(&lane);
    wait_events(&first, 4_000);
    first.signal(Signal::STOP).unwrap();
    let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active";
    lane.connect().execute(sql, &[&lane.name]).unwrap();
    second.wait_streaming(LONG).unwrap();
    wait_events(&second, 4_000);
    writer.stop();
    lane.wait_confirmed();
    first.signal(Signal::CONT).unwrap();
    wait_log(&first, UNPROVEN);
    thread::sleep(Duration::from_secs(2));
    let last = last(&lane);
    println!("{last:?}");
    // Requests that librdkafka's threads send before the relay's thread has its turn: five for each connection.
    assert!(last.stale_records <= 200, "{last:?}\n{}\n{}", first.log(), second.log());
}

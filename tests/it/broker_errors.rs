//! Broker errors: those on demand, slowness, limits, a topic that the first record makes.
//!
//! Errors that a real broker shows only in a condition that is hard to bring about come from librdkafka's mock cluster, which
//! the relay's process connects to as to any other.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use walrelay_dev::kafka::{self, Kafka, shared_kafka};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::{Direction, Tap};

use crate::lane::{LONG, Lane, OUTBOX, ended, hint, ids, wait_events, wait_log};
use crate::load::Load;
use crate::own;

type Mock = MockCluster<'static, DefaultProducerContext>;

/// A lane on a mock cluster.
struct Errors {
    mock: Mock,
    lane: Lane,
}

impl Errors {
    fn new(brokers: i32, partitions: i32) -> Self {
        let mock = MockCluster::new(brokers).unwrap();
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", mock.bootstrap_servers());
        let mut lane = Lane::debezium();
        (lane.brokers, lane.client) = (mock.bootstrap_servers(), client);
        mock.create_topic(&lane.topic("order"), partitions, 1).unwrap();
        Self { mock, lane }
    }

    /// The next requests to produce fail so.
    fn fail(&self, errors: &[RDKafkaRespErr]) {
        self.mock.request_errors(RDKafkaApiKey::Produce, errors);
    }
}

fn insert(lane: &Lane, numbers: std::ops::RangeInclusive<u32>) {
    let (first, last) = (numbers.start(), numbers.end());
    lane.sql(&format!(
        "INSERT INTO outbox SELECT n, 'order', 'k' || n % 7, 't', '1' FROM generate_series({first}, {last}) AS n"
    ));
}

fn numbers(lane: &Lane) -> Vec<u32> {
    ids(&lane.records("order")).iter().map(|id| id.parse().unwrap()).collect()
}

fn counted(relay: &Relay, name: &str) -> f64 {
    relay.metric(name).unwrap()
}

/// Refused for as long as it takes to see that the slot stays; then taken, each record once.
#[track_caller]
fn check_passing(error: RDKafkaRespErr) {
    let Errors { mock, lane } = Errors::new(1, 1);
    let relay = lane.streaming(&[]);
    insert(&lane, 1..=10);
    wait_events(&relay, 10);
    lane.wait_confirmed();
    let before = lane.confirmed();
    mock.request_errors(RDKafkaApiKey::Produce, &[error; 2000]);
    insert(&lane, 11..=110);
    wait_until(LONG, "them to be in flight", || Ok(counted(&relay, "walrelay_in_flight_records") > 99.0)).unwrap();
    // Keepalives and status updates pass meanwhile.
    lane.sql("CREATE TABLE busy AS SELECT n, md5(n::text) FROM generate_series(1, 20000) AS n");
    wait_until(LONG, "two status updates", || Ok(counted(&relay, "walrelay_oldest_in_flight_seconds") > 2.0)).unwrap();
    let sql = "SELECT $1::text::pg_lsn < pg_current_wal_lsn() - 1000000 AND confirmed_flush_lsn <
               pg_current_wal_lsn() - 1000000 FROM pg_replication_slots WHERE slot_name = $2";
    assert!(lane.connect().query_one(sql, &[&before, &lane.name]).unwrap().get::<_, bool>(0), "the slot waits");
    assert!(counted(&relay, "walrelay_events_total") < 11.0);
    mock.clear_request_errors(RDKafkaApiKey::Produce);
    assert_eq!(numbers(&lane), (1..=110).collect::<Vec<_>>(), "{error:?}: {}", relay.log());
}

#[test]
fn a_full_disk_is_waited_out() {
    check_passing(RDKafkaRespErr::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR);
}

#[test]
fn too_few_replicas_are_waited_for() {
    check_passing(RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS);
}

/// One at a time, since this cluster looks at no sequence numbers: it would take the request behind the one that failed. What brokers
/// do with several is in `first_batch`.
#[test]
fn one_request_that_fails_loses_swaps_and_repeats_nothing() {
    let errors = Errors::new(1, 1);
    let one = "max.in.flight.requests.per.connection=1";
    let relay = errors.lane.streaming(&["-X", "linger.ms=0", "-X", one]);
    for (round, code) in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
    ]
    .into_iter()
    .enumerate()
    {
        let first = u32::try_from(round).unwrap() * 20 + 1;
        errors.fail(&[code]);
        for id in first..first + 20 {
            insert(&errors.lane, id..=id);
        }
        let found = numbers(&errors.lane);
        assert_eq!(found, (1..first + 20).collect::<Vec<_>>(), "{code:?}: {}", relay.log());
    }
}

/// A partition that does not know the producer yet takes any sequence number, so that the next batch's success says nothing of the
/// first one: as when the first record makes the topic, and its leader is not ready.
#[test]
#[ignore = "slow"]
fn the_first_batch_of_a_partition_that_is_refused_is_not_taken_for_delivered_with_the_next() {
    let errors = Errors::new(1, 1);
    errors.mock.broker_round_trip_time(-1, Duration::from_millis(100)).unwrap();
    for id in 1..=20 {
        insert(&errors.lane, id..=id);
    }
    errors.fail(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION]);
    let relay = errors.lane.relay(&["-X", "linger.ms=0", "-X", "batch.num.messages=1"]);
    assert_eq!(numbers(&errors.lane), (1..=20).collect::<Vec<_>>(), "{}", relay.log());
}

/// A broker that does not know the producer takes a batch of any sequence number: what comes behind a first batch that is refused for
/// good must not be under way with it. The mock cluster looks at no sequence number at all.
#[track_caller]
fn check_first_batch_refused_for_good(flags: &[&str], producers: &str) {
    for delay in [50, 200] {
        let errors = Errors::new(1, 1);
        errors.mock.broker_round_trip_time(-1, Duration::from_millis(delay)).unwrap();
        errors.fail(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
        let relay = errors.lane.streaming(&[flags, &["-X", "linger.ms=0", "-X", producers]].concat());
        for id in 1..=10 {
            insert(&errors.lane, id..=id);
            std::thread::sleep(Duration::from_millis(10));
        }
        if flags == ["--on-bad-row=skip"] {
            assert_eq!(numbers(&errors.lane), (2..=10).collect::<Vec<_>>(), "{delay} ms: {}", relay.log());
            continue;
        }
        let mut relay = relay;
        let (code, log) = ended(&mut relay);
        assert_eq!(code, 2, "{log}");
        assert!(hint(&log).contains("id 1 "), "{log}");
        assert_eq!(errors.lane.records_now("order").len(), 0, "{delay} ms, a later row is there: {log}");
    }
}

#[test]
#[ignore = "slow"]
fn nothing_passes_the_first_batch_of_a_partition_that_is_refused_for_good() {
    for producers in ["producers=1", "producers=4"] {
        check_first_batch_refused_for_good(&["--on-bad-row=stop"], producers);
        check_first_batch_refused_for_good(&["--on-bad-row=skip"], producers);
    }
}

#[test]
#[ignore = "slow"]
fn one_partition_of_twelve_without_its_leader_holds_its_keys_and_swaps_none() {
    let Errors { mock, lane } = Errors::new(2, 12);
    let topic = lane.topic("order");
    let relay = lane.streaming(&["-X", "linger.ms=0"]);
    insert(&lane, 1..=7);
    let records = lane.records("order");
    let partition = records.iter().find(|record| record.key_text() == "k3").unwrap().partition;
    let held = u32::try_from(records.iter().filter(|record| record.partition == partition).count()).unwrap();
    for other in 0..12 {
        mock.partition_leader(&topic, other, Some(if other == partition { 2 } else { 1 })).unwrap();
    }
    insert(&lane, 8..=700);
    lane.wait_confirmed();
    mock.broker_down(2).unwrap();
    insert(&lane, 701..=1400);
    wait_until(LONG, "the others to pass", || {
        Ok(counted(&relay, "walrelay_in_flight_records") < f64::from(held * 100) + 0.5
            && counted(&relay, "walrelay_events_total") > f64::from(1400 - held * 100) - 0.5)
    })
    .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    mock.partition_leader(&topic, partition, Some(1)).unwrap();
    let records = lane.records("order");
    for key in 0..7 {
        let found: Vec<u32> = records
            .iter()
            .filter(|record| record.key_text() == format!("k{key}"))
            .map(|record| record.header("id").unwrap().parse().unwrap())
            .collect();
        let expected: Vec<u32> = (1..=1400).filter(|n| n % 7 == key).collect();
        assert_eq!(found, expected, "k{key}: {}", relay.log());
    }
}

#[test]
fn a_topic_that_its_first_record_makes_has_them_all_in_order() {
    let lane = Lane::debezium();
    lane.sql(
        "INSERT INTO outbox SELECT n, 'route' || n % 5, 'k' || n % 3, 't', '1' FROM generate_series(1, 20000) AS n",
    );
    let relay = lane.streaming(&[]);
    lane.wait_confirmed();
    for route in 0..5 {
        let records = lane.records_now(&format!("route{route}"));
        assert_eq!(records.len(), 4000, "{}", relay.log());
        for key in ["k0", "k1", "k2"] {
            let of_key = records.iter().filter(|record| record.key_text() == key);
            let numbers: Vec<u32> = of_key.map(|record| record.header("id").unwrap().parse().unwrap()).collect();
            assert!(!numbers.is_empty() && numbers.is_sorted(), "{route} {key}: {numbers:?}");
        }
    }
}

#[test]
#[ignore = "slow"]
fn a_slow_line_to_the_broker_loses_and_repeats_nothing() {
    let tap = Tap::listen().unwrap();
    let options = kafka::Options { advertise_through: Some(tap.port()), ..kafka::Options::default() };
    let kafka = Kafka::start(&options).unwrap();
    tap.set_target(kafka.tap_target());
    let mut load = Load::on(shared_postgres().unwrap(), &kafka);
    load.lane.brokers = tap.address();
    let mut relay = load.lane.streaming(&["--max-in-flight=256KiB"]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-fast", 0..1000);
    wait_events(&relay, 1000);
    tap.delay(Direction::ToClient, Duration::from_millis(300));
    tap.limit(Direction::ToServer, 200_000);
    Load::bulk(&mut client, "order-slow", 0..2000);
    wait_events(&relay, 1500);
    assert!(counted(&relay, "walrelay_in_flight_bytes") < 262_145.0);
    // Bytes stop, and nobody says so; then the line breaks.
    tap.stall_both();
    Load::bulk(&mut client, "order-stalled", 0..1000);
    wait_until(LONG, "records in flight", || Ok(counted(&relay, "walrelay_in_flight_records") > 0.5)).unwrap();
    tap.cut();
    tap.flow();
    load.assert_exact(&relay);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_client_that_the_broker_throttles_gets_everything_through() {
    let (kafka, load) = (shared_kafka().unwrap(), Load::shared());
    let client_id = format!("walrelay/{}", load.lane.name);
    let mut command = kafka.tool("kafka.admin.ConfigCommand");
    command.args(["--bootstrap-server", &kafka.brokers(), "--alter", "--add-config", "producer_byte_rate=60000"]);
    let output = command.args(["--entity-type", "clients", "--entity-name", &client_id]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let relay = load.lane.streaming(&["--max-in-flight=64KiB"]);
    let mut client = load.connect();
    for batch in 0..6 {
        Load::bulk(&mut client, &format!("order-{batch}"), 0..1000);
    }
    load.assert_exact(&relay);
    assert!(counted(&relay, "walrelay_reconnects_total") < 0.5, "{}", relay.log());
}

#[test]
fn a_partition_that_is_not_there_is_a_bad_row() {
    let lane = Lane::with(
        "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text, part int)",
        "outbox",
    );
    let topic = lane.topic("order");
    shared_kafka().unwrap().create_topic(&topic, 3, &[]).unwrap();
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p', 3)");
    let mut relay = lane.relay(&["--partition-column=part"]);
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains(&format!("topic {topic} has no partition 3")), "{log}");
}

#[test]
#[ignore = "slow"]
fn a_frozen_broker_is_reported_after_seconds_and_readiness_ends_when_it_is_set_to() {
    let mut kafka = own::kafka();
    let lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(OUTBOX, "outbox");
    let mut relay = lane.streaming(&["--unready-after=10min", "--disconnect-after=10min"]);
    lane.sql("INSERT INTO outbox VALUES ('a', 'order', 'k', 't', '1')");
    lane.wait_confirmed();
    kafka.suspend().unwrap();
    lane.sql("INSERT INTO outbox VALUES ('b', 'order', 'k', 't', '1')");
    wait_log(&relay, "has acknowledged nothing");
    wait_until(LONG, "the state", || Ok(relay.status()?["state"] == "blocked")).unwrap();
    let error = relay.status().unwrap()["last_error"].to_string();
    assert!(error.contains("Kafka has acknowledged nothing"), "{error}");
    assert_eq!(relay.get("/readyz").unwrap().status, 200, "that has another threshold");
    kafka.resume().unwrap();
    wait_log(&relay, "acknowledges again");
    assert_eq!(lane.ids("order"), ["a", "b"]);
    wait_until(LONG, "the error to go", || Ok(relay.status()?["last_error"].is_null())).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());

    let relay = lane.streaming(&["--unready-after=1s", "--disconnect-after=10min"]);
    kafka.suspend().unwrap();
    lane.sql("INSERT INTO outbox VALUES ('c', 'order', 'k', 't', '1')");
    let unready = |reason: &str| {
        let mut last = String::new();
        let ended = wait_until(LONG, "readiness to end", || {
            let ready = relay.get("/readyz")?;
            last = ready.body;
            Ok(ready.status == 503 && last.contains(reason))
        });
        ended.unwrap_or_else(|error| panic!("{error}: {last}: {}", relay.log()));
    };
    // A new relay knows nothing of the topic, and asks.
    unready("does not answer");
    kafka.resume().unwrap();
    lane.wait_confirmed();
    wait_until(LONG, "readiness", || Ok(relay.get("/readyz")?.status == 200)).unwrap();
    kafka.suspend().unwrap();
    lane.sql("INSERT INTO outbox VALUES ('d', 'order', 'k', 't', '1')");
    unready("none acknowledged in the last 1 s");
    kafka.resume().unwrap();
    assert_eq!(lane.ids("order"), ["a", "b", "c", "d"]);
}

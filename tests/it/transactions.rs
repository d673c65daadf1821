//! Kafka transactions that fail: fenced, held up by others, refused by the brokers at each step.
//!
//! What only a broker in a rare condition answers comes from librdkafka's mock cluster. It knows no isolation: what an aborted
//! transaction wrote stays to be seen there, so that with it only loss and order are looked at.

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rustix::process::Signal;
use walrelay_dev::consume;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::process::wait_until;

use crate::check::check;
use crate::exactly_once::{EXACTLY_ONCE, TABLE, each_once, insert};
use crate::lane::{LONG, Lane, ended, hint, ids, wait_log};
use crate::own;
use crate::prune::set_up;

/// Waits until the slot's walsender has handed everything that is committed now to its socket.
#[track_caller]
fn wait_sent(lane: &Lane) {
    let mut client = lane.connect();
    let end: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
    let sql = "SELECT r.sent_lsn >= $1::text::pg_lsn FROM pg_stat_replication AS r
               JOIN pg_replication_slots AS s ON r.pid = s.active_pid WHERE s.slot_name = $2";
    wait_until(LONG, &format!("{end} to be sent"), || Ok(client.query_one(sql, &[&end, &lane.name])?.get(0))).unwrap();
}

/// A relay that stood still, woke up, and has rows to send that its successor has sent already.
#[test]
#[ignore = "slow"]
fn a_relay_that_wakes_up_behind_its_successor_writes_nothing_and_stands_by() {
    let lane = Lane::with(TABLE, "outbox");
    let mut first = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 500);
    lane.wait_confirmed();
    let mut second = lane.relay(&[EXACTLY_ONCE]);
    wait_log(&second, "waiting as standby");
    first.signal(Signal::STOP).unwrap();
    // These wait in the socket of the one that sleeps.
    insert(&lane, 501, 700);
    wait_sent(&lane);
    let terminate = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1";
    lane.connect().execute(terminate, &[&lane.name]).unwrap();
    second.wait_streaming(LONG).unwrap();
    each_once(&lane.records("order"), 700);
    first.signal(Signal::CONT).unwrap();
    // Fenced, if it reads those rows before it hears that its connection is gone.
    wait_log(&first, "waiting as standby");
    insert(&lane, 701, 1000);
    each_once(&lane.records("order"), 1000);
    assert!(!second.log().contains("fenced"), "the one that stands by takes nothing back: {}", second.log());
    second.kill9().unwrap();
    insert(&lane, 1001, 1100);
    each_once(&lane.records("order"), 1100);
}

/// A transaction of another program's in partition 0 of the topic, with one record, which stays open.
pub(crate) fn strangers_transaction(lane: &Lane, topic: &str) -> BaseProducer {
    let mut client = lane.client.clone();
    client.set("transactional.id", "stranger").set("transaction.timeout.ms", "600000");
    let stranger: BaseProducer = client.create().unwrap();
    stranger.init_transactions(LONG).unwrap();
    stranger.begin_transaction().unwrap();
    let record = BaseRecord::to(topic).key("1/another").payload("{}").partition(0);
    stranger.send(record).map_err(|(error, _)| error).unwrap();
    stranger.flush(LONG).unwrap();
    stranger
}

/// What a broker has forgotten to end after a crash looks like this.
#[test]
#[ignore = "slow"]
fn an_open_transaction_on_the_progress_topic_is_named_with_the_command_that_ends_it() {
    let kafka = own::kafka();
    let lane = Lane::on(walrelay_dev::postgres::shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "--disconnect-after=2s"]);
    insert(&lane, 1, 100);
    lane.wait_confirmed();
    let stranger = strangers_transaction(&lane, "walrelay.progress");
    // What the relay commits now lies behind the open transaction, where nobody sees it yet.
    insert(&lane, 101, 200);
    lane.wait_confirmed();
    relay.kill9().unwrap();
    relay.start_again().unwrap();
    insert(&lane, 201, 300);
    let ready = || relay.get("/readyz").map_or_else(|_| String::new(), |answer| answer.body);
    let named = || Ok(ready().contains("kafka-transactions.sh"));
    wait_until(LONG, "the relay to name the command", named).unwrap_or_else(|e| panic!("{e}: {}", relay.log()));
    assert_eq!(lane.records_now("order").len(), 200, "nothing is sent before it is known what was");
    // Kafka answers, so the slot is kept: for longer than it is where Kafka is silent.
    let uptime = || Ok::<_, anyhow::Error>(relay.status()?["uptime_seconds"].as_f64().unwrap());
    let began = uptime().unwrap();
    wait_until(LONG, "time to pass", || Ok(uptime()? > began + 5.0)).unwrap();
    assert!(!relay.log().contains("connection is closed"), "{}", relay.log());
    assert_eq!(relay.log().matches("waiting for an open transaction").count(), 1, "{}", relay.log());
    let body = ready();
    let command = body.split_once("kafka-transactions.sh ").unwrap_or_else(|| panic!("{body}")).1;
    let mut tool = kafka.tool("org.apache.kafka.tools.TransactionsCommand");
    let output = tool.args(command.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    each_once(&lane.records("order"), 300);
    drop(stranger);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// A Kafka that makes no topic by itself, whose topic of progress may be deleted, and a lane on it.
fn lane_whose_progress_goes() -> (Kafka, Lane) {
    let kafka = Kafka::start(&kafka::Options { auto_create_topics: false, ..kafka::Options::default() }).unwrap();
    kafka.prepare_transactions().unwrap();
    let lane = Lane::on(walrelay_dev::postgres::shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
    kafka.create_topic(&lane.topic("order"), 2, &[]).unwrap();
    (kafka, lane)
}

#[test]
#[ignore = "slow"]
fn the_topic_of_progress_that_is_deleted_while_rows_flow_is_made_again_and_every_row_is_there_once() {
    let (kafka, lane) = lane_whose_progress_goes();
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 500);
    lane.wait_confirmed();
    for last in [700, 900] {
        kafka.delete_topics(&["walrelay.progress"]).unwrap();
        insert(&lane, last - 199, last);
        each_once(&lane.records("order"), last);
    }
    // Killed before Postgres heard of the last commit: what is kept there again says so.
    insert(&lane, 901, 1000);
    relay.kill9().unwrap();
    relay.start_again().unwrap();
    each_once(&lane.records("order"), 1000);
    assert!(relay.log().contains("topic walrelay.progress is not there any more"), "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_start_without_the_topic_of_progress_that_was_there_stops_and_says_what_it_means() {
    let (kafka, lane) = lane_whose_progress_goes();
    // A slot that was never read is one that nothing was committed from.
    check(&lane, &[EXACTLY_ONCE]).level("progress", "ok", &["is created at the first start"]);
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 100);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    kafka.delete_topics(&["walrelay.progress"]).unwrap();
    insert(&lane, 101, 200);
    check(&lane, &[EXACTLY_ONCE]).level(
        "progress",
        "fail",
        &["walrelay.progress does not exist, and the slot has been read"],
    );
    relay.start_again().unwrap();
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("Kafka has no progress of this slot, and the slot has been read"), "{log}");
    assert!(!kafka.topics().unwrap().contains(&"walrelay.progress".to_owned()), "it would forget what was committed");
    // Nor does an empty topic say that nothing was committed.
    kafka.create_topic("walrelay.progress", 1, &[("cleanup.policy", "compact")]).unwrap();
    relay.start_again().unwrap();
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    let hint = hint(&log);
    let (_, rest) = hint.split_once("--accept-slot-at ").unwrap_or_else(|| panic!("{hint}"));
    let accepted = rest.split_whitespace().next().unwrap();
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "--accept-slot-at", accepted]);
    each_once(&lane.records("order"), 200);
    // It worked once, and what it published is known.
    relay.kill9().unwrap();
    relay.start_again().unwrap();
    insert(&lane, 201, 300);
    each_once(&lane.records("order"), 300);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// Without it, nobody could tell a slot that was read and has no progress yet from one whose progress is gone.
#[test]
fn the_first_progress_is_committed_before_there_is_a_row() {
    let (_kafka, lane) = lane_whose_progress_goes();
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    wait_until(LONG, "the first progress", || {
        let kept = consume::read_to_end(&lane.client, &["walrelay.progress"])?;
        Ok(kept.iter().any(|record| record.value_text().contains("\"0/0\"")))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    assert!(lane.records_now("order").is_empty());
    relay.kill9().unwrap();
    insert(&lane, 1, 100);
    relay.start_again().unwrap();
    each_once(&lane.records("order"), 100);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn a_relay_that_is_killed_right_after_its_first_start_has_committed_nothing_and_starts_again() {
    let (_kafka, lane) = lane_whose_progress_goes();
    // The marker says where the slot was created. Of one without, the server's count says that a relay has read it.
    set_up(&lane, &[]);
    insert(&lane, 1, 100);
    let mut relay = lane.relay(&[EXACTLY_ONCE]);
    let sql = "SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = $1";
    let mut client = lane.connect();
    wait_until(LONG, "the server to count what was read", || {
        let counted = client.query_opt(sql, &[&lane.name])?.map(|row| row.get::<_, i64>(0));
        Ok(counted > Some(0))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    relay.kill9().unwrap();
    relay.start_again().unwrap();
    each_once(&lane.records("order"), 100);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// Rows flow on after the next requests of that kind are answered so.
#[track_caller]
fn check_recovers(lane: &Lane, mock: &MockCluster<'_, impl rdkafka::producer::ProducerContext>, first: u32) -> u32 {
    let cases = [
        // Retriable.
        (RDKafkaApiKey::AddPartitionsToTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS),
        (RDKafkaApiKey::AddPartitionsToTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS),
        (RDKafkaApiKey::EndTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE),
        (RDKafkaApiKey::EndTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR),
        // Abortable.
        (RDKafkaApiKey::AddPartitionsToTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED),
        (RDKafkaApiKey::EndTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH),
        // Fatal.
        (RDKafkaApiKey::AddPartitionsToTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING),
        (RDKafkaApiKey::EndTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_TXN_STATE),
        (RDKafkaApiKey::EndTxn, RDKafkaRespErr::RD_KAFKA_RESP_ERR_PRODUCER_FENCED),
        (RDKafkaApiKey::InitProducerId, RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS),
    ];
    let mut last = first;
    for (key, error) in cases {
        mock.request_errors(key, &[error; 2]);
        insert(lane, last + 1, last + 50);
        last += 50;
        lane.wait_confirmed();
        mock.clear_request_errors(key);
    }
    last
}

#[test]
#[ignore = "slow"]
fn errors_of_transactions_whether_retriable_abortable_or_fatal_are_recovered_from() {
    let mock = MockCluster::new(1).unwrap();
    let mut lane = Lane::with(TABLE, "outbox");
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", mock.bootstrap_servers());
    (lane.brokers, lane.client) = (mock.bootstrap_servers(), client);
    mock.create_topic(&lane.topic("order"), 2, 1).unwrap();
    mock.create_topic("walrelay.progress", 1, 1).unwrap();
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 50);
    lane.wait_confirmed();
    let last = check_recovers(&lane, &mock, 50);
    let log = relay.log();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{log}");
    assert!(log.matches("restarting from the confirmed LSN").count() >= 5, "the errors came through: {log}");
    assert!(log.contains("Topic authorization failed"), "what the purged records went down with is told: {log}");
    assert!(!log.contains("Purged in queue"), "{log}");
    // A new process reads how far the last one has come.
    relay.start_again().unwrap();
    insert(&lane, last + 1, last + 50);
    let mut seen = Vec::new();
    for id in ids(&lane.records("order")) {
        if !seen.contains(&id) {
            seen.push(id);
        }
    }
    let mut numbers: Vec<u32> = seen.iter().map(|id| id.parse().unwrap()).collect();
    for key in 0..7 {
        assert!(numbers.iter().filter(|number| *number % 7 == key).is_sorted(), "k{key} is out of order");
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=last + 50).collect::<Vec<_>>(), "{}", relay.log());
}

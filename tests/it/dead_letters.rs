//! `walrelay dead-letters`: what is listed, what is published again, and that no kill loses anything.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;
use walrelay_dev::consume::{self, Meter, Record};
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay;

use crate::lane::{LONG, Lane, binary, fresh, hint, ids, values};

const TABLE: &str = "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text, headers text, part int)";

/// What the command is given at this place, `more` last.
fn arguments(lane: &Lane, more: &[&str]) -> Vec<String> {
    let fixed = ["dead-letters", "--slot", &lane.name, "--brokers", &lane.brokers];
    fixed.iter().chain(more).map(|&argument| argument.to_owned()).collect()
}

/// Its exit code, and what it said on stdout and stderr.
fn dead_letters(lane: &Lane, more: &[&str]) -> (i32, String, String) {
    let output = relay::run(&binary(), &arguments(lane, more)).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Its lines of JSON, and its exit code.
#[track_caller]
fn lines(lane: &Lane, more: &[&str]) -> (i32, Vec<Value>) {
    let (code, out, err) = dead_letters(lane, &[&["--json"], more].concat());
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert!(!err.contains("panicked"), "{err}");
    (code, out.lines().map(line).collect())
}

/// What a replay says at its end: how many were published, how many failed, the exit code.
#[track_caller]
fn replayed(lane: &Lane, more: &[&str]) -> (u64, u64, i32) {
    let (code, lines) = lines(lane, &[&["--replay"], more].concat());
    let last = lines.last().unwrap();
    let count = |name: &str| last[name].as_u64().unwrap();
    assert_eq!(lines.len() as u64, count("failed") + 1, "a line for each that failed, and the last");
    (count("replayed"), count("failed"), code)
}

/// How often each id is among the records.
fn counted(records: &[Record]) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for id in ids(records) {
        *counts.entry(id.parse().unwrap()).or_default() += 1;
    }
    counts
}

/// A thousand rows, all of them bad: without a route, with one that is not a topic name, with headers that are no object, for a
/// partition that is not there, too large for their topic, with a partition below 0.
fn a_thousand_bad_rows() -> Lane {
    let lane = Lane::with(TABLE, "outbox");
    let kafka = shared_kafka().unwrap();
    kafka.create_topic(&lane.topic("order"), 3, &[("max.message.bytes", "20000")]).unwrap();
    kafka.create_topic(&lane.topic("dead-letter"), 2, &[]).unwrap();
    lane.sql(
        "INSERT INTO outbox SELECT n, CASE n % 5 WHEN 0 THEN NULL WHEN 1 THEN 'no topic' ELSE 'order' END, 'k' || n % 7, 't',
                CASE WHEN n % 5 = 4 AND n <= 200 THEN repeat('x', 25000) ELSE 'payload ' || n END,
                CASE n % 5 WHEN 2 THEN 'no object' ELSE '{\"trace\": \"' || n || '\"}' END,
                CASE n % 5 WHEN 3 THEN 7 WHEN 4 THEN CASE WHEN n > 200 THEN -1 END END
         FROM generate_series(1, 1000) AS n",
    );
    let mut relay = lane.relay(&["--on-bad-row=dead-letter", "--partition-column=part"]);
    let dead = lane.topic("dead-letter");
    wait_until(LONG, "a thousand dead letters", || Ok(consume::count(&lane.client, &dead)? >= 1000))
        .unwrap_or_else(|error| panic!("{error}, {:?}: {}", consume::count(&lane.client, &dead), relay.log()));
    assert_eq!(lane.records("dead-letter").len(), 1000, "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    lane
}

/// Starts a replay whose output nobody reads, so that it cannot come to its end, and kills it once something has come to `route`.
fn kill_a_replay(lane: &Lane, route: &str, more: &[&str]) {
    let meter = Meter::new(&lane.client, &[lane.topic(route)]).unwrap();
    let before = meter.count().unwrap();
    let mut command = Command::new(binary());
    command.args(arguments(lane, &[&["--replay", "--json"], more].concat())).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let some = wait_until(LONG, "some to be published again", || Ok(meter.count()? > before));
    some.unwrap_or_else(|error| panic!("{error}: {route}, {:?}", child.try_wait()));
    assert_eq!(child.try_wait().unwrap(), None, "it has not come to its end");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "slow"]
fn a_thousand_bad_rows_are_published_once_their_causes_are_fixed_and_kills_lose_none() {
    let (lane, kafka) = (a_thousand_bad_rows(), shared_kafka().unwrap());
    let (code, listed) = lines(&lane, &[]);
    assert_eq!((code, listed.len()), (0, 1000));
    let first = |id: &str| listed.iter().find(|line| line["id"] == id).unwrap();
    assert_eq!((&first("5")["topic"], &first("6")["topic"]), (&Value::Null, &lane.topic("no topic").into()));
    assert_eq!((&first("3")["topic"], &first("3")["partition"]), (&lane.topic("order").into(), &7.into()));
    assert_eq!(first("7")["topic"], lane.topic("order"), "though its headers are bad");
    assert!(first("7")["error"].as_str().unwrap().contains("is not a JSON object"), "{}", first("7"));
    assert_eq!(first("7")["table"], "public.outbox");

    // Nothing is fixed yet: what a record can be made of arrives, with kills in the middle, and the rest stays.
    let elsewhere = lane.topic("elsewhere");
    kafka.create_topic(&elsewhere, 1, &[]).unwrap();
    kill_a_replay(&lane, "order", &[]);
    kill_a_replay(&lane, "elsewhere", &["--default-topic", &elsewhere]);
    let (_, stay, code) = replayed(&lane, &[]);
    assert!(code == 2 && stay >= 240, "{code} {stay}");
    let arrived = counted(&lane.records_now("order"));
    let fine: Vec<u32> = (1..=1000).filter(|n| n % 5 == 2 || (n % 5 == 4 && *n > 200)).collect();
    assert_eq!(arrived.keys().copied().collect::<Vec<_>>(), fine);
    assert_eq!((lines(&lane, &[]).1.len() as u64, lines(&lane, &["--again"]).1.len()), (stay, 1000));
    assert_eq!(replayed(&lane, &[]), (0, stay, 2), "what has arrived is remembered");

    kafka.alter_topic(&lane.topic("order"), &[("max.message.bytes", "1000000")]).unwrap();
    kafka.add_partitions(&lane.topic("order"), 8).unwrap();
    assert_eq!(replayed(&lane, &["--default-topic", &elsewhere]), (stay, 0, 0));
    assert_eq!((lines(&lane, &[]).1.len(), replayed(&lane, &[])), (0, (0, 0, 0)));

    let (order, other) = (lane.records_now("order"), lane.records_now("elsewhere"));
    let (arrived, others) = (counted(&order), counted(&other));
    assert!((1..=1000).all(|n| arrived.contains_key(&n) != others.contains_key(&n)), "each at one place");
    assert!(others.keys().all(|n| n % 5 < 2));
    assert!(arrived.iter().all(|(n, times)| fine.contains(n) || *times == 1), "without a kill each once");
    for record in order.iter().chain(&other) {
        let id: u32 = record.header("id").unwrap().parse().unwrap();
        assert!(record.headers.iter().all(|(name, _)| !name.starts_with("walrelay-")), "{:?}", record.headers);
        assert_eq!(record.key_text(), format!("k{}", id % 7));
        assert_eq!(record.header("trace").is_some(), id % 5 != 2);
        assert!(record.partition == 7 || id % 5 != 3, "{id} is in partition {}", record.partition);
        let whole = if id % 5 == 4 && id <= 200 { "x".repeat(25_000) } else { format!("payload {id}") };
        assert_eq!(record.value_text(), whole);
    }
}

/// Rows 1 to 4 without a route, dead letters of a relay with these flags.
fn four_bad_rows(more: &[&str]) -> Lane {
    let lane = Lane::with(TABLE, "outbox");
    shared_kafka().unwrap().create_topic(&lane.topic("dead-letter"), 1, &[]).unwrap();
    lane.sql("INSERT INTO outbox SELECT n, NULL, 'k', 't', 'payload ' || n, '{\"a\": \"b\"}' FROM generate_series(1, 4) AS n");
    let mut relay = lane.relay(&[&["--on-bad-row=dead-letter"], more].concat());
    assert_eq!(lane.ids("dead-letter"), ["1", "2", "3", "4"], "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    lane
}

#[test]
#[ignore = "slow"]
fn one_is_shown_whole_and_one_is_published_by_its_id() {
    let lane = four_bad_rows(&[]);
    let (code, out, _) = dead_letters(&lane, &["--show", "--id", "3"]);
    assert!(code == 0 && out.contains("payload 3") && out.contains("a: b") && !out.contains("payload 2"), "{out}");
    let (code, shown) = lines(&lane, &["--show", "--id", "3"]);
    assert_eq!((code, shown.len()), (0, 1));
    assert_eq!((&shown[0]["payload"], &shown[0]["key"]), (&"payload 3".into(), &"k".into()));
    let (code, out, _) = dead_letters(&lane, &[]);
    assert!(code == 0 && out.contains("4 records in") && out.contains("--replay publishes it again"), "{out}");

    let (code, out, err) = dead_letters(&lane, &["--replay", "--id", "3"]);
    assert!(code == 2 && out.contains("--default-topic") && out.contains("0 records published again"), "{out}{err}");
    assert!(hint(&err).contains("walrelay dead-letters --replay"), "{err}");
    let order = lane.topic("order");
    assert_eq!(replayed(&lane, &["--id", "3", "--id", "nobody", "--default-topic", &order]), (1, 0, 0));
    assert_eq!(ids(&lane.records_now("order")), ["3"]);
    let left: Vec<Value> = lines(&lane, &[]).1.iter().map(|line| line["id"].clone()).collect();
    assert_eq!(left, ["1", "2", "4"]);
    // Once more, since it is asked for.
    assert_eq!(replayed(&lane, &["--id", "3", "--default-topic", &order]), (0, 0, 0));
    assert_eq!(replayed(&lane, &["--id", "3", "--again", "--default-topic", &order]), (1, 0, 0));
    assert_eq!(ids(&lane.records_now("order")), ["3", "3"]);
}

#[test]
#[ignore = "slow"]
fn what_a_relay_has_put_there_exactly_once_is_published_and_marks_are_seen_behind_an_open_transaction() {
    let lane = four_bad_rows(&["--delivery=exactly-once"]);
    let (order, dead) = (lane.topic("order"), lane.topic("dead-letter"));
    // A stranger's transaction is open from now on: what stands behind it is not committed, and marks will.
    let mut client = lane.client.clone();
    client.set("transactional.id", fresh("open"));
    let stranger: rdkafka::producer::BaseProducer = client.create().unwrap();
    open_transaction(&stranger, &dead);
    assert_eq!(replayed(&lane, &["--default-topic", &order]), (4, 0, 0));
    assert_eq!(replayed(&lane, &["--default-topic", &order]), (0, 0, 0));
    let records = lane.records_now("order");
    assert_eq!(ids(&records), ["1", "2", "3", "4"]);
    assert_eq!(values(&records)[3], "payload 4");
}

/// Leaves a transaction open with a record in `topic`.
fn open_transaction(producer: &rdkafka::producer::BaseProducer, topic: &str) {
    use rdkafka::producer::{BaseRecord, Producer as _};
    producer.init_transactions(LONG).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::to(topic).key("k").payload("of a stranger")).unwrap();
    producer.flush(LONG).unwrap();
}

#[test]
fn an_empty_topic_is_empty_a_missing_one_is_named_and_not_created_and_other_kinds_say_that_they_cannot() {
    let (lane, kafka) = (Lane::empty(), shared_kafka().unwrap());
    let (code, _, err) = dead_letters(&lane, &[]);
    let topic = lane.topic("dead-letter");
    assert!(code == 2 && err.contains(&format!("{topic} does not exist")), "{err}");
    assert!(hint(&err).contains("--dead-letter-topic"), "{err}");
    assert!(!kafka.topics().unwrap().contains(&topic), "looking creates nothing");
    kafka.create_topic(&topic, 3, &[]).unwrap();
    let (code, out, _) = dead_letters(&lane, &[]);
    assert_eq!((code, out.trim_end()), (0, format!("0 records in {topic}").as_str()));
    assert_eq!(replayed(&lane, &[]), (0, 0, 0));
    // What is not ours is counted, and left alone.
    consume::write(&lane.client, &topic, "k", "of somebody else").unwrap();
    assert!(dead_letters(&lane, &[]).1.contains("1 record of somebody else"));
    assert_eq!(replayed(&lane, &[]), (0, 0, 0));
    let (code, _, err) = {
        let output = relay::run(&binary(), &["dead-letters", "--to", "stdout://"]).unwrap();
        (output.status.code().unwrap(), output.stdout, String::from_utf8(output.stderr).unwrap())
    };
    assert!(code == 64 && err.contains("standard output cannot be read"), "{err}");
}

#[test]
fn a_replay_publishes_all_though_nobody_reads_what_it_says() {
    let lane = Lane::with(TABLE, "outbox");
    let kafka = shared_kafka().unwrap();
    kafka.create_topic(&lane.topic("dead-letter"), 1, &[]).unwrap();
    lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', 't', 'p', 'no object' FROM generate_series(1, 5) AS n");
    let mut relay = lane.relay(&["--on-bad-row=dead-letter"]);
    let dead = lane.topic("dead-letter");
    wait_until(LONG, "five dead letters", || Ok(consume::count(&lane.client, &dead)? >= 5)).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let mut command = Command::new(binary());
    command.args(arguments(&lane, &["--replay"])).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not all of the output could be written"), "{said}");
    assert_eq!(counted(&lane.records_now("order")).len(), 5);
}

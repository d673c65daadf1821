//! `--delivery exactly-once`: a consumer of what is committed sees every row once, whatever happens to the relay.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rdkafka::ClientConfig;
use walrelay_dev::consume::{self, Meter, Record};
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Mode, Options, Postgres, default_major, shared_postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::{Direction, Tap};

use crate::lane::{LONG, Lane, binary, ended, hint, ids, wait_log};
use crate::own;

pub(crate) const TABLE: &str =
    "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text)";

pub(crate) const EXACTLY_ONCE: &str = "--delivery=exactly-once";

/// Rows `from` to `to` in one transaction, over 7 keys.
pub(crate) fn insert(lane: &Lane, from: u32, to: u32) {
    lane.sql(&format!(
        "INSERT INTO outbox SELECT n, 'order', 'k' || n % 7, 't', repeat('x', 200) FROM generate_series({from}, {to}) AS n"
    ));
}

/// A client that sees what is written, committed or not.
fn of_everything(lane: &Lane) -> ClientConfig {
    let mut client = lane.client.clone();
    client.set("isolation.level", "read_uncommitted");
    client
}

/// What is in the route's topic, committed or not.
fn uncommitted(lane: &Lane) -> Vec<Record> {
    consume::read_to_end(&of_everything(lane), &[&lane.topic("order")]).unwrap()
}

/// Counts it.
pub(crate) fn meter(lane: &Lane) -> Meter {
    Meter::new(&of_everything(lane), &[lane.topic("order")]).unwrap()
}

/// A line to the lane's database on the shared server that takes so many bytes a second of what is read, and the source at
/// its end. A row of [`insert`] has about 280.
fn narrow(lane: &Lane, bytes_per_second: u32) -> (Tap, String) {
    let tap = Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port())).unwrap();
    tap.limit(Direction::ToClient, bytes_per_second);
    let source = format!("postgres://postgres@{}/{}", tap.address(), lane.name);
    (tap, source)
}

/// Every row from 1 to `last` is there once, in order for each key.
#[track_caller]
pub(crate) fn each_once(records: &[Record], last: u32) {
    let mut numbers: Vec<u32> = records.iter().map(|record| record.header("id").unwrap().parse().unwrap()).collect();
    for key in 0..7 {
        let of_key: Vec<u32> = numbers.iter().copied().filter(|number| number % 7 == key).collect();
        assert!(of_key.is_sorted(), "k{key} is out of order");
    }
    numbers.sort_unstable();
    let count = numbers.len();
    numbers.dedup();
    assert_eq!((count, numbers.len()), (last as usize, last as usize), "missing or repeated");
}

#[test]
fn a_relay_killed_before_the_commit_repeats_nothing_for_consumers_of_what_is_committed() {
    let lane = Lane::with(TABLE, "outbox");
    // Two seconds for each transaction.
    let (_tap, source) = narrow(&lane, 3_000_000);
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "--source", &source]);
    insert(&lane, 1, 500);
    lane.wait_confirmed();
    let mut last = 500;
    let meter = meter(&lane);
    for _ in 0..3 {
        let before = meter.count().unwrap();
        insert(&lane, last + 1, last + 20_000);
        last += 20_000;
        // More than the markers of the one before, which count as well.
        wait_until(LONG, "a part of the transaction to be written", || Ok(meter.count()? > before + 10))
            .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
        relay.kill9().unwrap();
        relay.start_again().unwrap();
        lane.wait_confirmed();
    }
    let seen = uncommitted(&lane).len();
    each_once(&lane.records_now("order"), last);
    assert!(seen > last as usize, "no transaction was aborted: {seen}");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    // A clean start finds nothing to do, and single rows flow.
    relay.start_again().unwrap();
    relay.wait_streaming(LONG).unwrap();
    insert(&lane, last + 1, last + 1);
    each_once(&lane.records("order"), last + 1);
    assert!(!relay.log().contains("PartitionEOF"), "the end of what is read is no error: {}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_transaction_that_is_interrupted_goes_on_where_it_was() {
    let lane = Lane::with(TABLE, "outbox");
    // So narrow that there are seconds of the transaction left when a third of it is seen in the topic.
    let (tap, source) = narrow(&lane, 2_000_000);
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "--source", &source]);
    insert(&lane, 1, 10);
    lane.wait_confirmed();
    let meter = meter(&lane);
    insert(&lane, 11, 60_000);
    // So many that they are to be committed as soon as their transaction ends.
    wait_until(LONG, "a part of the transaction to be written", || Ok(meter.count()? > 20_000))
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    tap.cut();
    tap.flow();
    wait_log(&relay, "Postgres connection failed; retrying");
    each_once(&lane.records("order"), 60_000);
    assert_eq!(uncommitted(&lane).len(), 60_000, "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_dead_letter_is_in_the_same_transaction_as_its_neighbours() {
    let lane = Lane::with(TABLE, "outbox");
    let settings = [("max.message.bytes", "20000")];
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &settings).unwrap();
    lane.sql(
        "INSERT INTO outbox SELECT n, 'order', 'k', 't', (SELECT string_agg(md5((n * 1000 + m)::text), '') FROM
         generate_series(1, CASE n WHEN 50 THEN 2000 ELSE 3 END) AS m) FROM generate_series(1, 100) AS n",
    );
    let mut relay = lane.relay(&[EXACTLY_ONCE, "--on-bad-row=dead-letter"]);
    let expected: Vec<String> = (1..=100).filter(|n| *n != 50).map(|n| n.to_string()).collect();
    assert_eq!(lane.ids("order"), expected, "{}", relay.log());
    assert_eq!(lane.ids("dead-letter"), ["50"]);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn another_cluster_in_the_place_of_the_one_that_was_read_is_refused_across_restarts() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 10);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    // What another cluster at this address left under this slot's name, and nothing of this one.
    let place = lane.source.rsplit('@').next().unwrap().split('?').next().unwrap().to_owned();
    let slot = format!("{}_b", lane.name);
    lane.sql(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    let value = format!("{{\"timeline\":1,\"end_lsn\":\"0/10\",\"source\":\"{place}\"}}");
    consume::write(&lane.client, "walrelay.progress", &format!("12345/{slot}"), &value).unwrap();
    let arguments = lane.arguments(&[EXACTLY_ONCE, "--slot", &slot]);
    let mut other = Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    let (code, log) = ended(&mut other);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("another cluster") && log.contains("12345"), "{log}");
    assert!(hint(&log).contains("another --slot"), "{log}");
    lane.drop_slot(&slot);
    assert!(!ids(&lane.records_now("order")).is_empty());
}

#[test]
#[ignore = "slow"]
fn a_standby_fences_nobody_until_it_owns_the_slot() {
    let lane = Lane::with(TABLE, "outbox");
    let mut first = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 100);
    lane.wait_confirmed();
    let second = lane.relay(&[EXACTLY_ONCE]);
    wait_log(&second, "waiting as standby");
    insert(&lane, 101, 200);
    each_once(&lane.records("order"), 200);
    assert!(!first.log().contains("restarting from the confirmed LSN"), "{}", first.log());
    insert(&lane, 201, 20_000);
    first.kill9().unwrap();
    each_once(&lane.records("order"), 20_000);
    assert!(second.log().contains("exactly once: resuming"), "{}", second.log());
}

#[test]
#[ignore = "slow"]
fn two_clusters_with_the_same_slot_name_share_a_kafka() {
    let server = Postgres::start(&Options { another_cluster: true, ..Options::default() }).unwrap();
    let kafka = shared_kafka().unwrap();
    let one = Lane::on(shared_postgres().unwrap(), kafka).furnish(TABLE, "outbox");
    let other = Lane::on(&server, kafka).furnish(TABLE, "outbox");
    other.sql(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", one.name));
    let mut first = one.streaming(&[EXACTLY_ONCE]);
    let mut second = other.relay(&[EXACTLY_ONCE, "--slot", &one.name]);
    second.wait_streaming(LONG).unwrap();
    for round in 0..5 {
        insert(&one, round * 10 + 1, round * 10 + 10);
        insert(&other, round * 10 + 1, round * 10 + 10);
        one.wait_confirmed();
    }
    each_once(&one.records("order"), 50);
    other.wait_confirmed_of(&one.name);
    each_once(&other.records_now("order"), 50);
    for relay in [&mut first, &mut second] {
        assert!(!relay.log().contains("restarting from the confirmed LSN"), "{}", relay.log());
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
    other.drop_slot(&one.name);
}

#[test]
#[ignore = "slow"]
fn an_outage_longer_than_a_transaction_may_take_is_recovered_from() {
    let mut kafka = own::kafka();
    let lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "-X", "transaction.timeout.ms=3000"]);
    insert(&lane, 1, 100);
    lane.wait_confirmed();
    kafka.suspend().unwrap();
    insert(&lane, 101, 200);
    wait_log(&relay, "was given up");
    kafka.resume().unwrap();
    insert(&lane, 201, 300);
    each_once(&lane.records("order"), 300);
    relay.wait_streaming(LONG).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_transaction_that_takes_longer_than_kafkas_may_is_said_to() {
    let lane = Lane::with(TABLE, "outbox");
    insert(&lane, 1, 10);
    insert(&lane, 11, 20_000);
    // Five seconds' worth, whatever the machine.
    let (_tap, source) = narrow(&lane, 1_000_000);
    let more = [EXACTLY_ONCE, "--source", &source, "-X", "transaction.timeout.ms=2000"];
    let (code, log) = ended(&mut lane.relay(&more));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("too large for exactly once") && hint(&log).contains("--delivery at-least-once"), "{log}");
    let _fixed = lane.relay(&[EXACTLY_ONCE]);
    let records = lane.records("order");
    each_once(&records, 20_000);
}

/// A line to the shared Postgres, and the lane's source over it.
fn over_a_line(lane: &Lane) -> (Tap, String) {
    let tap = Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port())).unwrap();
    let source = format!("postgres://postgres@{}/{}", tap.address(), lane.name);
    (tap, source)
}

#[test]
#[ignore = "slow"]
fn a_transaction_that_is_read_for_longer_than_kafka_may_be_silent_is_committed_once() {
    let lane = Lane::with(TABLE, "outbox");
    let (tap, source) = over_a_line(&lane);
    let arguments = [EXACTLY_ONCE, "--source", &source, "--disconnect-after=2s", "--max-in-flight=1MiB"];
    let mut relay = lane.streaming(&arguments);
    // Some seven seconds for some 60 MB.
    tap.limit(Direction::ToClient, 8_000_000);
    insert(&lane, 1, 200_000);
    each_once(&lane.records("order"), 200_000);
    assert!(!relay.log().contains("no acknowledgement"), "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn postgres_that_shuts_down_before_kafka_could_be_taken_over_is_let_go() {
    let (mut postgres, mut kafka) = (own::postgres(), own::kafka());
    let lane = Lane::on(&postgres, &kafka).furnish(TABLE, "outbox");
    insert(&lane, 1, 100);
    kafka.suspend().unwrap();
    let mut relay = lane.relay(&[EXACTLY_ONCE, "--disconnect-after=1s"]);
    wait_log(&relay, "disconnected from Postgres, slot kept");
    assert_eq!(relay.status().unwrap()["state"], "blocked");
    postgres.restart(Mode::Fast).unwrap();
    kafka.resume().unwrap();
    each_once(&lane.records("order"), 100);
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
}

/// Two good transactions, of rows 1 to 10 and 11 to 20, and then this one.
fn two_good_ones_and(lane: &Lane, transaction: &str) {
    insert(lane, 1, 10);
    insert(lane, 11, 20);
    lane.sql(transaction);
}

/// Two good transactions, and one of 20,000 rows with one in its middle that the topic refuses.
fn one_of_many_too_large() -> Lane {
    let lane = Lane::with(TABLE, "outbox");
    let settings = [("max.message.bytes", "20000")];
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 3, &settings).unwrap();
    two_good_ones_and(
        &lane,
        "INSERT INTO outbox SELECT n, 'order', 'k' || n % 7, 't', repeat(md5(n::text), CASE n WHEN 10000 THEN 1875 ELSE 3 END)
         FROM generate_series(21, 20020) AS n",
    );
    lane
}

#[test]
#[ignore = "slow"]
fn a_refused_record_in_the_middle_of_a_large_transaction_is_skipped_or_a_dead_letter_or_stops_the_relay() {
    let expected: BTreeSet<u32> = (1..=20_020).filter(|id| *id != 10_000).collect();
    for (action, dead_letters) in [("skip", 0), ("dead-letter", 1)] {
        let lane = one_of_many_too_large();
        let mut relay = lane.relay(&[EXACTLY_ONCE, "--on-bad-row", action]);
        let found = lane.ids("order");
        assert_eq!(found.len(), expected.len(), "{action}, each once: {}", relay.log());
        assert!(found.iter().map(|id| id.parse().unwrap()).collect::<BTreeSet<u32>>() == expected, "{action}");
        if dead_letters > 0 {
            assert_eq!(lane.ids("dead-letter"), ["10000"]);
        }
        assert!(relay.log().contains("row not published"), "{}", relay.log());
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
    let lane = one_of_many_too_large();
    let (code, log) = ended(&mut lane.relay(&[EXACTLY_ONCE]));
    assert!(code == 2 && hint(&log).contains("id 10000 ") && hint(&log).contains(&lane.confirmed()), "{log}");
    each_once(&lane.records_now("order"), 20);
}

#[test]
#[ignore = "slow"]
fn good_transactions_before_a_bad_row_are_committed_though_they_gathered_with_it() {
    let lane = Lane::with(TABLE, "outbox");
    two_good_ones_and(&lane, "INSERT INTO outbox VALUES (21, 'order', 'k', 't', 'p'), (22, NULL, 'k', 't', 'p')");
    let mut relay = lane.relay(&[EXACTLY_ONCE]);
    for _ in 0..2 {
        let (code, log) = ended(&mut relay);
        assert_eq!(code, 2, "{log}");
        assert!(hint(&log).contains("id 22 ") && hint(&log).contains(&format!(" at {}", lane.confirmed())), "{log}");
        each_once(&lane.records_now("order"), 20);
        relay.start_again().unwrap();
    }
    let log = relay.log();
    assert!(log.contains("committing what precedes") && !log.contains("delivery failed"), "nothing has failed: {log}");
    drop(relay);
    let skipped = lane.relay(&[EXACTLY_ONCE, "--on-bad-row=skip"]);
    each_once(&lane.records("order"), 21);
    assert!(skipped.log().contains("row not published"), "{}", skipped.log());
}

/// The producer refuses it when its turn in its partition comes: no broker is asked.
#[test]
fn good_transactions_before_a_record_too_large_for_the_client_are_committed() {
    let lane = Lane::with(TABLE, "outbox");
    two_good_ones_and(&lane, "INSERT INTO outbox VALUES (21, 'order', 'k0', 't', repeat('x', 30000))");
    let (code, log) = ended(&mut lane.relay(&[EXACTLY_ONCE, "-Xmessage.max.bytes=20000"]));
    assert!(code == 2 && hint(&log).contains("id 21 "), "{log}");
    each_once(&lane.records_now("order"), 20);
}

#[test]
#[ignore = "slow"]
fn good_transactions_before_a_table_that_cannot_be_mapped_are_committed() {
    let lane = Lane::with(TABLE, "outbox");
    // In the WAL the table lacks a column that it has again when the relay looks at it.
    two_good_ones_and(
        &lane,
        "ALTER TABLE outbox RENAME payload TO note; INSERT INTO outbox VALUES (21, 'order', 'k', 't', 'p');",
    );
    lane.sql("ALTER TABLE outbox RENAME note TO payload");
    let (code, log) = ended(&mut lane.relay(&[EXACTLY_ONCE]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("payload"), "{log}");
    each_once(&lane.records_now("order"), 20);
}

#[test]
#[ignore = "slow"]
fn an_outage_that_uses_up_a_transactions_time_and_ends_within_it_is_recovered_from() {
    let mut kafka = own::kafka();
    let lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
    let (tap, source) = over_a_line(&lane);
    let arguments = [EXACTLY_ONCE, "--source", &source, "-X", "transaction.timeout.ms=12000"];
    let mut relay = lane.streaming(&arguments);
    insert(&lane, 1, 100);
    lane.wait_confirmed();
    // So slow that it would take half a minute.
    tap.limit(Direction::ToClient, 1_000_000);
    let meter = meter(&lane);
    let before = meter.count().unwrap();
    insert(&lane, 101, 100_000);
    wait_until(LONG, "a part of the transaction to be written", || Ok(meter.count()? > before)).unwrap();
    kafka.suspend().unwrap();
    let old = || Ok(relay.metric("walrelay_oldest_in_flight_seconds")? > 7.0);
    wait_until(LONG, "most of its time to pass", old).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    kafka.resume().unwrap();
    wait_log(&relay, "was given up");
    tap.flow();
    each_once(&lane.records("order"), 100_000);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn the_old_primary_in_the_place_of_the_promoted_one_is_refused_across_a_restart() {
    let mut primary = Postgres::start(&Options::default()).unwrap();
    let standby = primary.standby(&[]).unwrap();
    let mut lane = Lane::on(&primary, shared_kafka().unwrap()).furnish(TABLE, "outbox");
    let old = std::mem::replace(&mut lane.source, standby.url(&lane.name));
    wait_until(LONG, "the table on the standby", || {
        let Ok(mut client) = postgres::Client::connect(&lane.source, postgres::NoTls) else { return Ok(false) };
        Ok(client.query("SELECT FROM pg_publication", &[])?.len() == 1)
    })
    .unwrap();
    standby.promote().unwrap();
    lane.make_slot();
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 10);
    each_once(&lane.records("order"), 10);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    // The address leads to the old primary again, which has gone on by itself.
    lane.source = old;
    insert(&lane, 11, 20);
    let (code, log) = ended(&mut lane.relay(&[EXACTLY_ONCE]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("earlier timeline") && hint(&log).contains("another --slot"), "{log}");
    each_once(&lane.records_now("order"), 10);
}

#[test]
#[ignore = "slow"]
fn librdkafkas_log_lines_keep_nobody_from_committing() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "-X", "debug=eos,broker"]);
    let (stop, last) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| trade(&lane, 1, 5, &stop, &last));
        // More of them than are committed in one transaction.
        let committed = wait_until(LONG, "transactions to be committed while rows come", || {
            Ok(relay.metric("walrelay_transactions_total")? > 500.0)
        });
        stop.store(true, Ordering::Relaxed);
        committed.unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    });
    each_once(&lane.records("order"), last.load(Ordering::Relaxed));
    assert!(!relay.log().contains("given up"), "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// Commits transactions of a few rows, one after another, and now and then one of `most`, until `stop`; the last row.
fn trade(lane: &Lane, first: u32, most: u32, stop: &AtomicBool, last: &AtomicU32) {
    let mut client = lane.connect();
    let sql =
        "INSERT INTO outbox SELECT n, 'order', 'k' || n % 7, 't', 'p' FROM generate_series($1::int, $2::int) AS n";
    let (mut next, mut turn) = (first, 0);
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let end = next + if turn % 100 == 0 { most } else { 5 } - 1;
        client.execute(sql, &[&i32::try_from(next).unwrap(), &i32::try_from(end).unwrap()]).unwrap();
        last.store(end, Ordering::Relaxed);
        next = end + 1;
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
#[ignore = "slow"]
fn a_broker_that_is_dead_for_longer_than_a_transaction_may_take_makes_nothing_appear_twice() {
    let mut kafka = own::kafka();
    let lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
    kafka.create_topic(&lane.topic("order"), 6, &[]).unwrap();
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "-X", "transaction.timeout.ms=10000"]);
    insert(&lane, 1, 100);
    lane.wait_confirmed();
    let last = AtomicU32::new(100);
    for _ in 0..2 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (first, lane, stop, last) = (last.load(Ordering::Relaxed) + 1, &lane, &stop, &last);
            scope.spawn(move || trade(lane, first, 3000, stop, last));
            wait_until(LONG, "rows", || Ok(last.load(Ordering::Relaxed) > first + 500)).unwrap();
            kafka.kill().unwrap();
            // This is what is tested: longer than a transaction may be open.
            std::thread::sleep(Duration::from_secs(25));
            stop.store(true, Ordering::Relaxed);
        });
        kafka.start_again().unwrap();
        lane.wait_confirmed();
    }
    each_once(&lane.records("order"), last.load(Ordering::Relaxed));
    relay.wait_streaming(LONG).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_standby_is_refused_until_it_is_promoted() {
    if default_major() < 16 {
        // No standby decodes.
        return;
    }
    let mut primary = Postgres::start(&Options::default()).unwrap();
    let standby = primary.standby(&[]).unwrap();
    let mut lane = Lane::on(&primary, shared_kafka().unwrap());
    lane.sql(TABLE);
    lane.publish("outbox");
    lane.source = standby.url(&lane.name);
    wait_until(LONG, "the publication on the standby", || {
        let Ok(mut client) = postgres::Client::connect(&lane.source, postgres::NoTls) else { return Ok(false) };
        Ok(client.query("SELECT FROM pg_publication", &[])?.len() == 1)
    })
    .unwrap();
    let mut on_primary = primary.connect(Some(&lane.name)).unwrap();
    std::thread::scope(|scope| {
        let making = scope.spawn(|| lane.make_slot());
        // It waits for word of what runs on the primary.
        wait_until(LONG, "the slot on the standby", || {
            on_primary.execute("SELECT pg_log_standby_snapshot()", &[])?;
            Ok(making.is_finished())
        })
        .unwrap();
    });
    let mut relay = lane.relay(&[EXACTLY_ONCE]);
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("cannot read from a standby") && hint(&log).contains("target_session_attrs"), "{log}");
    drop(primary);
    standby.promote().unwrap();
    relay.start_again().unwrap();
    insert(&lane, 1, 100);
    each_once(&lane.records("order"), 100);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_primary_that_comes_back_as_a_standby_is_not_read_before_its_promotion() {
    let mut postgres = Postgres::start(&Options::default()).unwrap();
    let lane = Lane::on(&postgres, shared_kafka().unwrap()).furnish(TABLE, "outbox");
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 100);
    lane.wait_confirmed();
    postgres.demote().unwrap();
    wait_log(&relay, "is a standby");
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
    lane.sql("SELECT pg_promote()");
    insert(&lane, 101, 200);
    each_once(&lane.records("order"), 200);
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
}

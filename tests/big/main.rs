//! What is large: the relay's binary against sizes that the suite has no time for. `make big` runs it.
//!
//! Each test prints what it measured, with the relay's peak resident memory as the kernel tells it (`VmHWM`), and fails where
//! the promise is broken: what is in flight, what one row takes, and a constant.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "what was measured")]

#[allow(dead_code, reason = "what other tests need of it")]
#[path = "../it/lane.rs"]
mod lane;
#[allow(dead_code, reason = "what other tests need of it")]
#[path = "../it/load.rs"]
mod load;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use lane::{Lane, hint, ids};
use load::Load;
use walrelay_dev::consume;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{Options, Postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

/// A deadline that only a failure reaches.
const HOUR: Duration = Duration::from_hours(1);

/// What the process may take beyond its settings, in MiB.
const CONSTANT_MIB: u64 = 40;

/// The default of `--max-in-flight`, in MiB.
const IN_FLIGHT_MIB: u64 = 16;

const TABLE: &str = "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text)";

fn servers(settings: &[(&str, &str)]) -> (Postgres, Kafka) {
    let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let postgres = Postgres::start(&Options { settings, ..Options::default() }).unwrap();
    (postgres, Kafka::start(&kafka::Options::default()).unwrap())
}

fn peak_mib(relay: &Relay) -> u64 {
    relay.usage().unwrap().memory.peak / 1024
}

/// The peak until its end, which takes the figure with it.
fn peak_mib_until_end(relay: &mut Relay) -> u64 {
    let mut peak = 0;
    wait_until(HOUR, "the relay's end", || {
        peak = relay.usage().map_or(peak, |usage| usage.memory.peak);
        Ok(relay.exited()?.is_some())
    })
    .unwrap();
    peak / 1024
}

/// As [`Lane::wait_confirmed`], for as long as it takes.
#[track_caller]
fn wait_all(lane: &Lane, relay: &Relay) {
    let mut client = lane.connect();
    let sql =
        "SELECT pg_current_wal_lsn() - confirmed_flush_lsn < 1000000 FROM pg_replication_slots WHERE slot_name = $1";
    wait_until(HOUR, "the slot to follow", || Ok(client.query_one(sql, &[&lane.name])?.get(0)))
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
}

#[track_caller]
fn assert_below(what: &str, peak: u64, allowed: u64) {
    println!("{what}: peak RSS {peak} MiB, allowed {allowed} MiB");
    assert!(peak <= allowed, "{what}: {peak} MiB is above {allowed} MiB");
}

#[test]
fn a_transaction_of_a_million_rows_passes_through_a_bounded_memory() {
    let (postgres, kafka) = servers(&[("wal_sender_timeout", "10s"), ("max_wal_size", "4GB")]);
    let load = Load::on(&postgres, &kafka);
    Load::bulk(&mut load.connect(), "order-large", 0..1_000_000);
    let started = Instant::now();
    let relay = load.lane.relay(&[]);
    wait_all(&load.lane, &relay);
    println!("a million rows in one transaction: {:.0} s", started.elapsed().as_secs_f64());
    load.assert_exact(&relay);
    assert!(relay.metric("walrelay_reconnects_total").unwrap() < 0.5, "{}", relay.log());
    assert_below("a transaction of 1 M rows", peak_mib(&relay), IN_FLIGHT_MIB + CONSTANT_MIB);
}

#[test]
fn a_row_of_100_mb_is_a_bad_row_and_takes_no_more_than_the_limits() {
    let (postgres, kafka) = servers(&[]);
    let lane = Lane::on(&postgres, &kafka).furnish(TABLE, "outbox");
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'small')");
    lane.sql("INSERT INTO outbox VALUES (2, 'order', 'k', 't', repeat('0123456789', 10000000))");
    let mut relay = lane.relay(&["--max-row=128MiB"]);
    let peak = peak_mib_until_end(&mut relay);
    let log = relay.log();
    assert!(log.contains("-X message.max.bytes") && hint(&log).contains("id 2 "), "{log}");
    assert_eq!(ids(&lane.records_now("order")), ["1"]);
    assert_below("a row of 100 MB", peak, 128 + IN_FLIGHT_MIB + CONSTANT_MIB);
}

#[test]
fn a_row_above_what_may_be_in_flight_goes_through() {
    let (postgres, kafka) = servers(&[]);
    let lane = Lane::on(&postgres, &kafka).furnish(TABLE, "outbox");
    kafka.create_topic(&lane.topic("order"), 1, &[("max.message.bytes", "60000000")]).unwrap();
    for id in 1..=3 {
        lane.sql(&format!("INSERT INTO outbox VALUES ({id}, 'order', 'k', 't', repeat('0123456789', 4000000))"));
    }
    let relay = lane.streaming(&["--max-row=64MiB", "-X", "message.max.bytes=60000000"]);
    lane.wait_confirmed();
    let mut client = lane.client.clone();
    client.set("fetch.message.max.bytes", "60000000").set("receive.message.max.bytes", "200000000");
    let records = consume::read_to_end(&client, &[&lane.topic("order")]).unwrap();
    assert_eq!(ids(&records), ["1", "2", "3"]);
    assert!(records.iter().all(|record| record.value.as_ref().is_some_and(|value| value.len() == 40_000_000)));
    // Read buffer, the client's copy, and what it copies to send.
    assert_below("rows of 40 MB", peak_mib(&relay), 64 + 2 * 40 + CONSTANT_MIB);
}

#[test]
fn headers_count_as_in_flight_while_the_broker_is_frozen() {
    let (postgres, mut kafka) = servers(&[]);
    let lane = Lane::on(&postgres, &kafka).furnish(TABLE, "outbox");
    lane.sql("ALTER TABLE outbox ADD COLUMN headers jsonb");
    let relay = lane.streaming(&[]);
    // The relay knows the topic, whose partitions it could not ask for.
    lane.sql("INSERT INTO outbox VALUES (0, 'order', 'k', 't', 'p')");
    lane.wait_confirmed();
    kafka.suspend().unwrap();
    let mut client = lane.connect();
    let sql =
        "INSERT INTO outbox SELECT n, 'order', 'k' || n % 50, 't', 'p', jsonb_build_object('trace', repeat('x', 10000))
               FROM generate_series($1::int, $1::int + 99) AS n";
    for first in (1..=30_000).step_by(100) {
        client.execute(sql, &[&first]).unwrap();
    }
    let reached = || Ok(relay.status()?["in_flight_bytes"].as_u64() > Some(15 << 20));
    wait_until(HOUR, "as much in flight as may be", reached).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    kafka.resume().unwrap();
    wait_all(&lane, &relay);
    assert_eq!(lane.records("order").len(), 30_001, "{}", relay.log());
    // librdkafka's requests hold the records once more.
    assert_below("headers of 300 MB", peak_mib(&relay), 160);
}

#[test]
fn ten_thousand_open_savepoints_publish_what_was_kept() {
    let (postgres, kafka) = servers(&[]);
    let lane = Lane::on(&postgres, &kafka).furnish(TABLE, "outbox");
    kafka.create_topic(&lane.topic("order"), 1, &[]).unwrap();
    let relay = lane.streaming(&[]);
    let mut client = lane.connect();
    client.batch_execute("BEGIN").unwrap();
    for id in 1..=10_000 {
        let sql = format!("SAVEPOINT s{id}; INSERT INTO outbox VALUES ({id}, 'order', 'k', 't', 'p')");
        client.batch_execute(&sql).unwrap();
    }
    // With it go the thousand behind it.
    client.batch_execute("ROLLBACK TO s9001; COMMIT").unwrap();
    let expected: Vec<String> = (1..=9000).map(|id| id.to_string()).collect();
    assert_eq!(lane.ids("order"), expected, "{}", relay.log());
    assert_below("10,000 savepoints", peak_mib(&relay), IN_FLIGHT_MIB + CONSTANT_MIB);
}

#[test]
fn a_thousand_transactions_at_once_all_arrive() {
    let (postgres, kafka) = servers(&[("max_connections", "1100")]);
    let lane = Lane::on(&postgres, &kafka).furnish(TABLE, "outbox");
    let relay = lane.streaming(&[]);
    let all_open = Arc::new(Barrier::new(1000));
    let writers: Vec<_> = (0..1000)
        .map(|writer| {
            let (source, all_open) = (lane.source.clone(), Arc::clone(&all_open));
            let write = move || {
                let mut client = postgres::Client::connect(&source, postgres::NoTls).unwrap();
                client.batch_execute("BEGIN").unwrap();
                for row in 0..3 {
                    let (id, key) = (writer * 3 + row, writer % 50);
                    client
                        .batch_execute(&format!("INSERT INTO outbox VALUES ({id}, 'order', 'k{key}', 't', 'p')"))
                        .unwrap();
                }
                all_open.wait();
                client.batch_execute("COMMIT").unwrap();
            };
            thread::Builder::new().stack_size(256 * 1024).spawn(write).unwrap()
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let mut found: Vec<u32> = lane.ids("order").iter().map(|id| id.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, (0..3000).collect::<Vec<_>>(), "{}", relay.log());
    assert_below("1,000 transactions at once", peak_mib(&relay), IN_FLIGHT_MIB + CONSTANT_MIB);
}

/// How long `COPY … TO STDOUT` takes for the table.
fn copied(lane: &Lane) -> Duration {
    let mut client = lane.connect();
    let started = Instant::now();
    let mut reader = client.copy_out("COPY outbox TO STDOUT").unwrap();
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    started.elapsed()
}

#[test]
fn a_million_existing_rows_pass_through_a_bounded_memory_beside_writers() {
    const ROWS: u32 = 1_000_000;
    let (postgres, kafka) = servers(&[("max_wal_size", "4GB")]);
    let lane = Lane::on(&postgres, &kafka);
    lane.sql(&format!(
        "{TABLE}; INSERT INTO outbox SELECT n, 'order', 'k' || n % 1000, 't', repeat(md5(n::text), 9) FROM generate_series(1, {ROWS}) AS n;
         ALTER TABLE outbox ADD PRIMARY KEY (id)"
    ));
    lane.sql("VACUUM ANALYZE outbox");
    let copy = copied(&lane);
    let mut arguments = lane.arguments(&["--setup", "--table", "outbox"]);
    "backfill".clone_into(&mut arguments[0]);
    let started = Instant::now();
    let mut filling = Relay::start(&lane::binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    let mut writer = lane.connect();
    let (mut peak, mut cpu, mut written) = (0, Duration::ZERO, ROWS);
    wait_until(HOUR, "the end of the backfill", || {
        if let Ok(usage) = filling.usage() {
            (peak, cpu) = (usage.memory.peak, usage.cpu);
        }
        written += 1;
        writer.execute("INSERT INTO outbox VALUES ($1, 'order', 'new', 't', 'new')", &[&i32::try_from(written)?])?;
        Ok(filling.exited()?.is_some())
    })
    .unwrap();
    let took = started.elapsed();
    assert_eq!(filling.exited().unwrap(), Some(0), "{}", filling.log());
    let rate = |took: Duration| f64::from(ROWS) / took.as_secs_f64();
    println!(
        "{ROWS} existing rows of 300 bytes: {:.0} rows/s, {:.1} µs of CPU a row; COPY TO STDOUT {:.0} rows/s",
        rate(took),
        cpu.as_secs_f64() * 1e6 / f64::from(ROWS),
        rate(copy)
    );
    let relay = lane.relay(&[]);
    wait_all(&lane, &relay);
    lane.wait_confirmed();
    let records = consume::count(&lane.client, &lane.topic("order")).unwrap();
    let rows: i64 = lane.connect().query_one("SELECT count(*) FROM outbox", &[]).unwrap().get(0);
    assert_eq!(records, rows, "each row once");
    assert_below("existing rows", peak / 1024, CONSTANT_MIB + 2 * IN_FLIGHT_MIB);
}

/// Each column can be sent, and both together are above the most that Postgres puts into a message.
#[test]
fn a_row_whose_texts_are_together_above_1_gb_stops_with_its_position_its_transaction_and_its_table() {
    let (postgres, kafka) = servers(&[]);
    let lane = Lane::on(&postgres, &kafka).furnish(TABLE, "outbox");
    lane.sql("ALTER TABLE outbox ADD COLUMN more text");
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'small')");
    // A statement may not make such a row either; it takes values that are stored, compressed.
    lane.sql("CREATE TABLE long AS SELECT repeat('x', 540000000) AS text");
    lane.sql(
        "INSERT INTO outbox SELECT n, 'order', 'k', 't', CASE n WHEN 3 THEN text ELSE 'small' END, CASE n WHEN 3 THEN text END
           FROM long, generate_series(2, 4) AS n",
    );
    let mut relay = lane.relay(&[]);
    let peak = peak_mib_until_end(&mut relay);
    let log = relay.log();
    assert!(
        log.contains("Postgres cannot send the row of public.outbox at ") && hint(&log).contains("errors.md"),
        "{log}"
    );
    assert_below("a row that Postgres cannot send", peak, IN_FLIGHT_MIB + CONSTANT_MIB);
    // As the page says.
    let (_, rest) = log.split_once("that commits at ").unwrap();
    let commits = rest.split(':').next().unwrap();
    lane.sql(&format!("SELECT pg_replication_slot_advance('{}', '{commits}'::pg_lsn + 1)", lane.name));
    lane.sql("INSERT INTO outbox VALUES (5, 'order', 'k', 't', 'small')");
    relay.start_again().unwrap();
    wait_until(HOUR, "the row behind it", || Ok(ids(&lane.records_now("order")).last().is_some_and(|id| id == "5")))
        .unwrap();
}

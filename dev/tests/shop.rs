//! The shop's truth holds by itself, also through a crash of Postgres in the middle.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self, Postgres, shared_postgres, unique_name};
use walrelay_dev::shop::{self, Shapes, Shop};
use walrelay_dev::stage::Stage;
use walrelay_dev::witness::Witness;
use walrelay_dev::{process, truth};

fn truth_agrees_with_outbox(server: &Postgres, database: Option<&str>) -> usize {
    let mut client = server.connect(database).unwrap();
    let mut rows = truth::load(&mut client).unwrap();
    let sql = "SELECT count(*) FROM outbox JOIN truth ON outbox.id = truth.id::uuid
               AND aggregateid = key AND md5(payload::text) = md5 AND (payload->>'seq')::bigint = seq";
    let joined: i64 = client.query_one(sql, &[]).unwrap().get(0);
    let outbox: i64 = client.query_one("SELECT count(*) FROM outbox", &[]).unwrap().get(0);
    assert_eq!((usize::try_from(joined).unwrap(), outbox), (rows.len(), joined));
    rows.sort_by_key(|row| row.seq);
    let mut per_key: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for row in &rows {
        per_key.entry(row.key.clone()).or_default().push(row.seq);
    }
    for (key, seqs) in per_key {
        assert!(seqs.iter().copied().eq(1..=i64::try_from(seqs.len()).unwrap()), "{key}: {seqs:?}");
    }
    rows.len()
}

#[test]
fn what_is_committed_is_the_truth_and_what_is_rolled_back_leaves_no_trace() {
    let server = shared_postgres().unwrap();
    let database = server.create_unique_database("shop").unwrap();
    let options = shop::Options { rows: Some(500), ..shop::Options::default() };
    shop::create_tables(&mut server.connect(Some(&database)).unwrap(), &options).unwrap();
    let tally = Shop::open(&server.url(&database), &options).unwrap().finish().unwrap();
    assert!(tally.committed >= 500 && tally.rolled_back > 0, "{tally:?}");
    let rows = truth_agrees_with_outbox(server, Some(&database));
    assert_eq!(u64::try_from(rows).unwrap(), tally.committed);
}

#[test]
fn a_crash_of_postgres_is_outlived_and_the_truth_still_holds() {
    let mut server = Postgres::start(&postgres::Options::default()).unwrap();
    let options = shop::Options::default();
    shop::create_tables(&mut server.connect(None).unwrap(), &options).unwrap();
    let shop = Shop::open(&server.url("postgres"), &options).unwrap();
    process::wait_until(Duration::from_secs(20), "rows", || Ok(shop.tally().committed > 100)).unwrap();
    server.kill().unwrap();
    server.start_again().unwrap();
    let before = shop.tally().committed;
    process::wait_until(Duration::from_secs(20), "more rows", || Ok(shop.tally().committed > before + 100)).unwrap();
    let tally = shop.close().unwrap();
    let rows = truth_agrees_with_outbox(&server, None);
    assert!(u64::try_from(rows).unwrap() >= tally.committed, "{rows} {tally:?}");
}

#[test]
fn what_was_committed_below_a_position_is_witnessed_once_with_messages_and_partitions_and_without_rollbacks() {
    let server = shared_postgres().unwrap();
    let database = server.create_unique_database("shop").unwrap();
    let mut client = server.connect(Some(&database)).unwrap();
    let every = Shapes::Every { messages: true, thousands: false, misrouted: 0.0, oversized: 0.0 };
    let options = shop::Options { shapes: every, rows: Some(1000), ..shop::Options::default() };
    shop::create_tables(&mut client, &options).unwrap();
    let mut witness = Witness::create(&mut client, &database).unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let before = seen.len();
        Shop::open(&server.url(&database), &options).unwrap().finish().unwrap();
        let end: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
        seen.extend(witness.committed_up_to(&mut client, &end).unwrap());
        assert!(seen.len() >= before + 1000);
    }
    let mut truth: Vec<String> = truth::load(&mut client).unwrap().into_iter().map(|row| row.id).collect();
    truth.sort();
    seen.sort();
    assert_eq!(seen, truth);
    client.execute("SELECT pg_drop_replication_slot($1)", &[&format!("{database}_witness")]).unwrap();
}

#[test]
fn a_stage_that_is_struck_leaves_nothing_on_services_that_live_on() {
    let (server, kafka) = (shared_postgres().unwrap(), shared_kafka().unwrap());
    let binary = std::path::Path::new("/bin/false");
    let stage = Stage::build(server, kafka, binary, &unique_name("walrelay-shop"), &shop::Options::default()).unwrap();
    let slot = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    stage.connect().unwrap().execute(slot, &[&stage.name]).unwrap();
    assert_eq!(stage.compare().unwrap(), truth::Report::default());
    assert!(stage.setup().is_err());
    stage.strike(kafka).unwrap();
    assert!(stage.connect().is_err() && stage.confirmed().is_err());
    let topics = kafka.topics().unwrap();
    assert!(!topics.iter().any(|topic| topic.starts_with(&stage.topic_prefix)), "{topics:?}");
}

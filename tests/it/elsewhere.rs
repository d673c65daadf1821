//! Lanes whose records go to another destination than Kafka: the table, the relay, rows whose order can be told, the truth.

use std::collections::{BTreeMap, BTreeSet};

use postgres::Client;
use rdkafka::ClientConfig;
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::relay::{self, Relay};

use crate::lane::{Lane, OUTBOX, binary};

/// Keys of the rows that [`insert`] inserts.
const KEYS: u32 = 7;

/// A lane without Kafka.
pub(crate) fn lane() -> Lane {
    let postgres = shared_postgres().unwrap();
    let name = postgres.create_unique_database("lane").unwrap();
    let source = postgres.url(&name);
    Lane { name, source, brokers: String::new(), client: ClientConfig::new() }.furnish(OUTBOX, "outbox")
}

/// A relay from the lane to `url`.
pub(crate) fn start(lane: &Lane, url: &str, more: &[&str]) -> Relay {
    let topic = lane.topic("{route}");
    let place = ["run", "--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let destination = ["--to", url, "--topic", &topic, "--shutdown-timeout=50s"];
    let arguments: Vec<&str> = place.iter().chain(&destination).chain(more).copied().collect();
    Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap()
}

/// What `check --json` finds.
pub(crate) fn check(lane: &Lane, url: &str, more: &[&str]) -> String {
    let topic = lane.topic("{route}");
    let place = ["check", "--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let arguments: Vec<&str> =
        place.iter().chain(&["--to", url, "--topic", &topic, "--json"]).chain(more).copied().collect();
    let output = relay::run(&binary(), &arguments).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Rows `first` to `last` of seven keys, ten a transaction.
pub(crate) fn insert(client: &mut Client, first: u32, last: u32) {
    for start in (first..=last).step_by(10) {
        let end = last.min(start + 9);
        let sql = format!(
            "INSERT INTO outbox SELECT n::text, 'order', 'k' || n % {KEYS}, 'Placed', '{{}}' FROM generate_series({start}, {end}) AS n"
        );
        client.batch_execute(&sql).unwrap();
    }
}

/// Every row of 1 to `last` is among the ids that are stored, and those of a key are in their order where they appear first. How many
/// repeats there are.
#[track_caller]
pub(crate) fn assert_complete(stored: &[String], last: u32) -> usize {
    let stored: Vec<u32> = stored.iter().map(|id| id.parse().unwrap()).collect();
    let mut seen = BTreeSet::new();
    let mut latest = BTreeMap::new();
    for id in &stored {
        if seen.insert(*id) {
            let before = latest.insert(id % KEYS, *id).unwrap_or(0);
            assert!(before < *id, "{id} of its key came after {before}");
        }
    }
    let missing: Vec<u32> = (1..=last).filter(|id| !seen.contains(id)).collect();
    assert!(missing.is_empty() && seen.len() == last as usize, "missing: {missing:?}");
    stored.len() - seen.len()
}

//! Lanes whose records go to another destination than Kafka: the table, the relay, rows whose order can be checked, the truth.

use std::collections::{BTreeMap, BTreeSet};

use postgres::Client;
use rdkafka::ClientConfig;
use walrelay_dev::brokers::Broker;
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::{self, Relay};

use crate::hints::words;
use crate::lane::{LONG, Lane, OUTBOX, binary};

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

/// Waits until the relay's `/status` has a command of this tool: it with all that follows, as a shell has the words.
#[track_caller]
pub(crate) fn command_of(relay: &Relay, tool: &str) -> Vec<String> {
    let mut said = String::new();
    wait_until(LONG, &format!("a command of {tool}"), || {
        relay.status()?["last_error"].as_str().unwrap_or_default().clone_into(&mut said);
        Ok(said.contains(tool))
    })
    .unwrap_or_else(|error| panic!("{error}: {said} {}", relay.log()));
    words(&said[said.find(tool).unwrap()..])
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

/// Writes 300 rows a round and kills relay and server in turns, each time while rows are on their way. Once all are confirmed: the last
/// row. `count`: how many messages are stored.
pub(crate) fn killed_in_turns(
    lane: &Lane,
    relay: &mut Relay,
    broker: &mut Broker,
    rounds: u32,
    count: impl Fn(&Broker) -> anyhow::Result<u64>,
) -> u32 {
    let mut writer = lane.connect();
    for round in 0..rounds {
        let before = 300 * round;
        insert(&mut writer, before + 1, before + 300);
        wait_until(LONG, "some of them to arrive", || Ok(count(broker)? > u64::from(before))).unwrap();
        if round % 2 == 0 {
            relay.kill9().unwrap();
            relay.start_again().unwrap();
        } else {
            broker.kill().unwrap();
            broker.start_again().unwrap();
        }
    }
    lane.wait_confirmed();
    300 * rounds
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

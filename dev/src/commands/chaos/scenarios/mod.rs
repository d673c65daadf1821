//! What needs a relay of its own: each scenario has a database, a slot, topics and a relay beside the load, on the same services and
//! through the same taps, and says itself what of the promises it found broken.
//!
//! A scenario that finds nothing returns an empty list; what it cannot do at all is an error.

pub(super) mod credentials;
pub(super) mod headers;
pub(super) mod refused;
pub(super) mod slot;
pub(super) mod topic;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::Result;
use walrelay_dev::postgres::unique_name;
use walrelay_dev::relay::Relay;
use walrelay_dev::servers::Servers;
use walrelay_dev::shop;
use walrelay_dev::stage::Stage;

use super::world::{PATIENCE, World};

/// A stage beside the world's, behind the same taps.
fn aside(world: &World, partitions: u32) -> Result<Stage> {
    let kafka = world.servers.first_kafka()?;
    let (binary, prefix) = (&world.stage.binary, unique_name("aside"));
    let options = shop::Options::default();
    let mut stage = Stage::build_with(&world.postgres, kafka, binary, &prefix, &options, partitions, &[])?;
    stage.relay_source = format!("postgres://postgres@{}/{}", world.postgres_tap.address(), stage.name);
    stage.to = world.servers.to();
    stage.arrivals = world.servers.arrivals();
    stage.setup()?;
    Ok(stage)
}

/// Its relay, once it streams.
fn streaming(stage: &Stage, more: &[&str]) -> Result<Relay> {
    let mut relay = stage.relay(more)?;
    relay.wait_streaming(PATIENCE)?;
    Ok(relay)
}

/// Removes all of it, whatever the relay's end was.
fn strike_down(world: &World, stage: &Stage, mut relay: Relay) -> Result<()> {
    relay.kill9()?;
    let kafka = world.servers.first_kafka()?;
    let mut client = stage.connect()?;
    let sql = "SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name = $1 AND active";
    walrelay_dev::process::wait_until(PATIENCE, "the slot to be released", || {
        Ok(client.query_one(sql, &[&stage.name])?.get(0))
    })?;
    drop(client);
    stage.strike(kafka)
}

fn every_broker(world: &mut World, act: impl Fn(&mut Servers, usize) -> Result<()>) -> Result<()> {
    (0..world.servers.len()).try_for_each(|place| act(&mut world.servers, place))
}

/// Numbered rows of a kind, from the first to the last, dealt out among so many keys in turn, in one transaction.
pub(super) fn insert(
    client: &mut ::postgres::Client,
    kind: &str,
    numbers: std::ops::RangeInclusive<i64>,
    keys: i64,
) -> Result<()> {
    let sql = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
               SELECT gen_random_uuid(), $1::text, 'key-' || n % $4::bigint, 'Numbered', jsonb_build_object('number', n)
               FROM generate_series($2::bigint, $3::bigint) AS n";
    client.execute(sql, &[&kind, numbers.start(), numbers.end(), &keys])?;
    Ok(())
}

/// What a topic holds of such rows.
#[derive(Debug, Default)]
struct Seen {
    numbers: HashSet<i64>,
    repeated: usize,
    /// Rows that came for the first time behind a later one of their key, or twice in a row's place.
    swapped: Vec<i64>,
}

fn look_at(stage: &Stage, topic: &str) -> Result<Seen> {
    let (mut seen, mut last) = (Seen::default(), HashMap::new());
    stage.arrivals.read(&[topic.to_owned()], |record| {
        let Some(number) = number_of(&record.value_text()) else { return };
        if !seen.numbers.insert(number) {
            seen.repeated += 1;
            return;
        }
        let newest = last.entry(record.key_text()).or_insert(i64::MIN);
        if number < *newest {
            seen.swapped.push(number);
        }
        *newest = number.max(*newest);
    })?;
    Ok(seen)
}

impl Seen {
    /// What is wrong with it, if all of these rows were written.
    fn broken(&self, rows: i64) -> Option<String> {
        let missing = (1..=rows).filter(|number| !self.numbers.contains(number)).count();
        let (swapped, repeated) = (self.swapped.len(), self.repeated);
        let words = || format!("{missing} of {rows} rows missing, {repeated} repeated, {swapped} swapped");
        (missing + swapped + repeated > 0).then(words)
    }
}

pub(super) fn number_of(payload: &str) -> Option<i64> {
    serde_json::from_str::<serde_json::Value>(payload).ok()?.get("number")?.as_i64()
}

/// Waits until everything committed is confirmed; what it is at otherwise, or how the relay has ended.
fn unconfirmed(stage: &Stage, relay: &mut Relay, limit: Duration) -> Result<Option<String>> {
    let waited = stage.wait_confirmed(limit);
    Ok(match (relay.exited()?, waited) {
        (Some(code), _) => Some(format!("the relay has ended with {code}")),
        (None, Err(error)) => Some(format!("{error:#}")),
        (None, Ok(())) => None,
    })
}

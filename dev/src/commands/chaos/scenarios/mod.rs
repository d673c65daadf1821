//! Scenarios: faults with a database, a slot, topics and a relay of their own beside the load, on the same services and through the same
//! taps. Each returns the promises that it found broken, and an error if it could not be played.

pub(super) mod credentials;
pub(super) mod headers;
pub(super) mod refused;
pub(super) mod slot;
pub(super) mod topic;

use std::time::Duration;

use anyhow::Result;
use walrelay_dev::postgres::unique_name;
use walrelay_dev::relay::Relay;
use walrelay_dev::servers::Servers;
use walrelay_dev::shop;
use walrelay_dev::stage::Stage;

use super::judge::Judge;
use super::world::{PATIENCE, World};

/// The stage of a scenario, behind the same taps as the world's.
fn aside(world: &World, partitions: u32) -> Result<Stage> {
    let (binary, prefix) = (&world.stage.binary, unique_name("aside"));
    let stage = world.servers.stage(&world.postgres, binary, &prefix, &shop::Options::default(), partitions, &[])?;
    let stage = stage.behind(&world.postgres_tap);
    stage.setup()?;
    Ok(stage)
}

/// Starts the relay of a scenario, and waits until it streams.
fn streaming(stage: &Stage, more: &[&str]) -> Result<Relay> {
    let mut relay = stage.relay(more)?;
    relay.wait_streaming(PATIENCE)?;
    Ok(relay)
}

/// Removes the stage of a scenario; its relay may still run.
fn strike_down(world: &World, stage: &Stage, mut relay: Relay) -> Result<()> {
    relay.kill9()?;
    world.servers.strike(stage, PATIENCE)
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
fn look_at(stage: &Stage, topic: &str) -> Result<Judge> {
    Judge::of(&stage.arrivals, &[topic.to_owned()])
}

/// Waits until everything committed is confirmed. Returns why that failed: the slot's position, or the end of the relay.
fn unconfirmed(stage: &Stage, relay: &mut Relay, limit: Duration) -> Result<Option<String>> {
    let waited = stage.wait_confirmed(limit);
    Ok(match (relay.exited()?, waited) {
        (Some(code), _) => Some(format!("the relay has ended with {code}")),
        (None, Err(error)) => Some(format!("{error:#}")),
        (None, Ok(())) => None,
    })
}

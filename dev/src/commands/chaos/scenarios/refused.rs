//! A partition's first batch is refused while later rows of its key come: none of them may be in the topic before it.
//!
//! A broker that does not know a producer in a partition takes a batch of any sequence number, so that whatever is under way behind a
//! refused one is appended. Each of some rounds has a topic, a slot and a relay of its own, which is what makes a batch the first.

use std::time::Duration;

use anyhow::{Context as _, Result};
use walrelay_dev::process;
use walrelay_dev::refuser::{Refusal, Refuser};

use super::super::world::{PATIENCE, World};

const ROUNDS: u64 = 3;

/// Rows of the key.
const ROWS: i64 = 12;

/// Codes of Kafka's table. A message too large, a corrupt one, an invalid topic, a record list too large, invalid acks, an invalid
/// timestamp, an unsupported version, a policy, an unknown server error, an unsupported compression, an invalid record: they are final.
/// Rights on the topic and the cluster: so to librdkafka.
const FINAL: [i16; 13] = [10, 2, 17, 18, 21, 32, 35, 44, -1, 76, 87, 29, 31];

/// These pass by themselves: no such partition, no leader, not the leader, timed out, loading, no coordinator, not enough replicas,
/// before and after the append, a storage error, a fenced leader's epoch.
const PASSING: [i16; 10] = [3, 5, 6, 7, 14, 16, 19, 20, 56, 74];

pub(in super::super) fn play(world: &mut World, dice: u64) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for round in 0..ROUNDS {
        // Each play begins with a code that is final.
        let codes = if round % 2 == 0 { &FINAL[..] } else { &PASSING };
        let place = usize::try_from(dice.wrapping_add(round) % 997)? % codes.len();
        let code = codes.get(place).copied().unwrap_or(10);
        let delay = Duration::from_millis(50 + dice.rotate_left(7).wrapping_add(round * 113) % 350);
        let gap = Duration::from_millis(10 + dice.rotate_left(13).wrapping_add(round * 29) % 70);
        broken.extend(refuse_once(world, code, delay, gap)?);
    }
    Ok(broken)
}

fn refuse_once(world: &mut World, code: i16, delay: Duration, gap: Duration) -> Result<Vec<String>> {
    let stage = super::aside(world, 1)?;
    let topic = stage.topics().into_iter().next().context("no topic")?;
    let refusal = Refusal { topic: topic.clone(), code, delay, count: 1 };
    let mut refusers = Vec::new();
    for (broker, tap) in world.servers.kafka()?.brokers().iter().zip(world.servers.taps()) {
        let refuser = Refuser::start(broker.tap_target(), refusal.clone())?;
        tap.set_target(refuser.address());
        refusers.push(refuser);
    }
    let mut relay = super::streaming(&stage, &["--shutdown-timeout=30s"])?;
    let mut client = stage.connect()?;
    for number in 1..=ROWS {
        super::insert(&mut client, "order", number..=number, 1)?;
        std::thread::sleep(gap);
    }
    // It stops at a row that is refused for good, or delivers all of them.
    process::wait_until(PATIENCE, "the relay to stop or to deliver", || {
        Ok(relay.exited()?.is_some() || stage.wait_confirmed(Duration::from_millis(50)).is_ok())
    })?;
    let ended = relay.exited()?;
    let seen = super::look_at(&stage, &topic)?;
    for (broker, tap) in world.servers.kafka()?.brokers().iter().zip(world.servers.taps()) {
        tap.set_target(broker.tap_target());
    }
    super::strike_down(world, &stage, relay)?;
    let mut broken = Vec::new();
    let refused: usize = refusers.iter().map(Refuser::refused).sum();
    if refused == 0 {
        broken.push(format!("no request was refused with {code}"));
    }
    let (numbers, swapped) = (seen.numbers(), seen.found().swapped);
    let in_order = i64::try_from(numbers.len())?;
    if seen.missing(in_order) + swapped > 0 {
        broken.push(format!(
            "refused once with {code} after {delay:?}, rows {gap:?} apart: the topic holds {numbers:?}, {swapped} swapped, exit {ended:?}"
        ));
    }
    match ended {
        Some(2) => {}
        Some(code) => broken.push(format!("the relay ended with {code}")),
        None if in_order < ROWS => broken.push(format!("of {ROWS} rows only {in_order} are in the topic")),
        None => {}
    }
    Ok(broken)
}

//! One of two topics is deleted under load, created again once the relay says so, and the brokers are frozen for a while: when they are
//! back, the backlog has to fall again within a bound, and the other topic's rows are all there, in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use walrelay_dev::process;
use walrelay_dev::servers::Servers;
use walrelay_dev::stage::Stage;

use super::super::world::{PATIENCE, World};

const PARTITIONS: u32 = 4;

/// Rows of each transaction and of each topic, so many transactions a second: a thousand rows a second together.
const BATCH: i64 = 10;
const TRANSACTIONS: u32 = 50;

const KEYS: i64 = 50;

/// How long the brokers are frozen.
const FROZEN: Duration = Duration::from_secs(20);

/// From then on, all that was committed until then has to be confirmed within so long.
const BOUND: Duration = Duration::from_secs(30);

pub(in super::super) fn play(world: &mut World) -> Result<Vec<String>> {
    let stage = super::aside(world, PARTITIONS)?;
    let mut relay = super::streaming(&stage, &["--shutdown-timeout=30s"])?;
    let stop = AtomicBool::new(false);
    let (rows, mut broken) = thread::scope(|scope| {
        let writer = scope.spawn(|| write(&stage, &stop));
        let played = fail(world, &stage, &mut relay);
        stop.store(true, Ordering::SeqCst);
        let rows = writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        anyhow::Ok((rows, played?))
    })?;
    broken.extend(super::unconfirmed(&stage, &mut relay, PATIENCE)?);
    let [untouched, _] = topics(&stage)?;
    let untouched = super::look_at(&stage, &untouched)?.broken(rows);
    broken.extend(untouched.map(|what| format!("the other topic: {what}")));
    super::strike_down(world, &stage, relay)?;
    Ok(broken)
}

fn topics(stage: &Stage) -> Result<[String; 2]> {
    stage.topics().try_into().map_err(|_| anyhow!("a stage has two topics"))
}

/// Writes to both topics at a fixed rate until it is stopped; the last number of each.
fn write(stage: &Stage, stop: &AtomicBool) -> Result<i64> {
    let mut client = stage.connect()?;
    let (mut last, started, mut turn) = (0, Instant::now(), 0);
    while !stop.load(Ordering::SeqCst) {
        for kind in ["order", "invoice"] {
            super::insert(&mut client, kind, last + 1..=last + BATCH, KEYS)?;
        }
        last += BATCH;
        turn += 1;
        let due = started + Duration::from_secs(1) * turn / TRANSACTIONS;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(last)
}

fn fail(world: &mut World, stage: &Stage, relay: &mut walrelay_dev::relay::Relay) -> Result<Vec<String>> {
    let [_, deleted] = topics(stage)?;
    process::wait_until(PATIENCE, "some records", || Ok(relay.metric("walrelay_events_total")? > 1000.0))?;
    let kafka = world.servers.first_kafka()?;
    kafka.delete_topics(&[&deleted])?;
    process::wait_until(PATIENCE, "the relay to notice", || {
        let status = relay.status()?;
        Ok(status.get("state").and_then(serde_json::Value::as_str).is_some_and(|state| state != "streaming"))
    })?;
    process::wait_until(PATIENCE, "the topic to be created again", || {
        let created = kafka.create_topic(&deleted, PARTITIONS, &[]).is_ok();
        thread::sleep(Duration::from_millis(100));
        Ok(created)
    })?;
    super::every_broker(world, Servers::suspend)?;
    thread::sleep(FROZEN);
    super::every_broker(world, Servers::resume)?;
    let thawed = Instant::now();
    let late = stage.wait_confirmed(BOUND).err().map(|error| {
        let status = relay.status().map_or_else(|error| format!("{error:#}"), |status| status.to_string());
        format!("{:.0?} after the brokers were back the backlog has not fallen: {error:#}; {status}", thawed.elapsed())
    });
    Ok(late.into_iter().collect())
}

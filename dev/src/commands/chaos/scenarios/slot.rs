//! The slot is dropped and created again while the relay is disconnected, with rows between: nobody can know them delivered, so the
//! relay has to stop with 2 and not to continue behind them.

use std::time::{Duration, Instant};

use anyhow::Result;
use walrelay_dev::process;
use walrelay_dev::servers::Servers;

use super::super::world::{PATIENCE, World};

/// Rows between the drop and the creation.
const BETWEEN: i64 = 5;

/// A relay that is ready for so long has gone on.
const READY: Duration = Duration::from_secs(10);

pub(in super::super) fn play(world: &mut World) -> Result<Vec<String>> {
    let stage = super::aside(world, 1)?;
    let mut relay = super::streaming(&stage, &["--shutdown-timeout=30s", "--disconnect-after=1s"])?;
    let mut client = stage.connect()?;
    super::insert(&mut client, "order", 1..=100, 10)?;
    stage.wait_confirmed(PATIENCE)?;
    super::every_broker(world, Servers::suspend)?;
    super::insert(&mut client, "order", 101..=200, 10)?;
    let dropped = "SELECT count(pg_drop_replication_slot(slot_name)) = 1 FROM pg_replication_slots
                   WHERE slot_name = $1 AND NOT active";
    process::wait_until(PATIENCE, "the relay to disconnect", || Ok(client.query_one(dropped, &[&stage.name])?.get(0)))?;
    super::insert(&mut client, "order", 201..=200 + BETWEEN, 1)?;
    client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&stage.name])?;
    super::every_broker(world, Servers::resume)?;

    let (mut ready, started) = (None::<Instant>, Instant::now());
    let ended = loop {
        if let Some(code) = relay.exited()? {
            break Some(code);
        }
        let is_ready = relay.get("/readyz").is_ok_and(|answer| answer.status == 200);
        ready = is_ready.then(|| ready.unwrap_or_else(Instant::now));
        if ready.is_some_and(|since| since.elapsed() > READY) || started.elapsed() > PATIENCE {
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let topic = stage.topics().into_iter().next().unwrap_or_default();
    let seen = super::look_at(&stage, &topic)?;
    let missing = seen.missing(200 + BETWEEN);
    drop(client);
    super::strike_down(world, &stage, relay)?;
    Ok(match ended {
        Some(2) => Vec::new(),
        Some(code) => vec![format!("the relay ended with {code}, not with 2")],
        None => vec![format!("the relay continued over a slot that is another one: {missing} rows are missing")],
    })
}

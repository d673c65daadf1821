//! Faults: how each begins, and how it ends.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::Signal;
use walrelay_dev::postgres::Mode;
use walrelay_dev::process;
use walrelay_dev::servers::Servers;
use walrelay_dev::tap::{Direction, Tap};

use super::plan::{Kind, Strike};
use super::world::{PATIENCE, World};

/// Rows of one large transaction, and of a backlog in transactions of so many.
const BULK_ROWS: i64 = 500_000;
const BULK_BATCH: i64 = 1000;

/// A fault that has begun.
#[derive(Debug, Default)]
pub(super) struct Struck {
    /// Whether there was something to strike at; what was down already cannot be killed.
    pub(super) hit: bool,
    /// The exit code of a graceful shutdown.
    pub(super) code: Option<i32>,
    frozen: Option<u32>,
}

impl Struck {
    const HIT: Self = Self { hit: true, code: None, frozen: None };
    const MISSED: Self = Self { hit: false, code: None, frozen: None };
}

/// Begins a fault. A fault that needs no end is over when this returns.
pub(super) fn begin(world: &mut World, strike: Strike) -> Result<Struck> {
    match strike.kind {
        Kind::RelayKill | Kind::RelayTerm | Kind::RelayFreeze if !is_up(world)? => return Ok(Struck::MISSED),
        Kind::RelayKill => world.relay.kill9()?,
        Kind::RelayTerm => {
            let exit = world.relay.terminate(PATIENCE)?;
            return Ok(Struck { code: Some(exit.code), ..Struck::HIT });
        }
        Kind::RelayFreeze => world.relay.signal(Signal::STOP)?,
        Kind::PostgresKill => world.postgres.kill()?,
        Kind::PostgresImmediate => drop(world.postgres.stop_within(Mode::Immediate, PATIENCE)?),
        Kind::PostgresFast => drop(world.postgres.stop_within(Mode::Fast, PATIENCE)?),
        Kind::PostgresFreeze => world.postgres.suspend()?,
        Kind::WalsenderTerminate => {
            if !world.stage.terminate_walsender()? {
                return Ok(Struck::MISSED);
            }
        }
        Kind::WalsenderFreeze => {
            let Some(pid) = world.stage.walsender()? else { return Ok(Struck::MISSED) };
            let frozen = u32::try_from(pid).ok();
            signal(frozen, Signal::STOP);
            return Ok(Struck { frozen, ..Struck::HIT });
        }
        Kind::PostgresCut => world.postgres_tap.cut(),
        Kind::PostgresLost => world.postgres_tap.lose(),
        Kind::PostgresHalfOpen => world.postgres_tap.half_open(),
        Kind::PostgresStall => stall(&world.postgres_tap, strike.dice),
        Kind::PostgresSlow => slow(&world.postgres_tap, strike.dice),
        Kind::BrokerKill | Kind::BrokerGone => with_victims(world, strike, Servers::kill)?,
        Kind::BrokerRestart => with_victims(world, strike, Servers::stop)?,
        Kind::BrokerFreeze => with_victims(world, strike, Servers::suspend)?,
        Kind::BrokerCut => taps(world, strike).for_each(Tap::cut),
        Kind::BrokerLost => taps(world, strike).for_each(Tap::lose),
        Kind::BrokerStall => taps(world, strike).for_each(|tap| stall(tap, strike.dice)),
        Kind::BrokerSlow => taps(world, strike).for_each(|tap| slow(tap, strike.dice)),
        Kind::Ddl => build(world, strike)?,
        Kind::LeadersMoved if world.servers.count() == 1 => return Ok(Struck::MISSED),
        Kind::LeadersMoved => world.servers.kafka()?.move_leaders(&world.stage.topics())?,
        Kind::BrokerFull => world.servers.fill_up(strike.dice)?,
        Kind::HalfTransaction => {
            half_of_a_transaction(world)?;
            with_victims(world, strike, Servers::kill)?;
        }
        Kind::Backlog => {
            let exit = world.relay.terminate(PATIENCE)?;
            world.write_bulk(BULK_ROWS, BULK_BATCH)?;
            return Ok(Struck { code: Some(exit.code), ..Struck::HIT });
        }
    }
    Ok(Struck::HIT)
}

/// Ends a fault: everything that it stopped runs again.
pub(super) fn end(world: &mut World, strike: Strike, struck: &Struck) -> Result<()> {
    match strike.kind {
        Kind::RelayKill | Kind::RelayTerm | Kind::Backlog => world.relay.start_again(),
        Kind::RelayFreeze => world.relay.signal(Signal::CONT),
        Kind::PostgresKill | Kind::PostgresImmediate | Kind::PostgresFast => world.postgres.start_again(),
        Kind::PostgresFreeze => world.postgres.resume(),
        Kind::WalsenderFreeze => {
            signal(struck.frozen, Signal::CONT);
            Ok(())
        }
        Kind::PostgresStall | Kind::PostgresSlow => {
            world.postgres_tap.flow();
            Ok(())
        }
        Kind::BrokerKill | Kind::BrokerRestart | Kind::BrokerGone | Kind::HalfTransaction => {
            if strike.kind == Kind::HalfTransaction {
                world.postgres.stop_within(Mode::Fast, PATIENCE)?;
                world.postgres.start_again()?;
            }
            // A quorum may need all of them, before the first one is ready.
            with_victims(world, strike, Servers::launch)?;
            with_victims(world, strike, Servers::wait_until_ready)
        }
        Kind::BrokerFreeze => with_victims(world, strike, Servers::resume),
        Kind::BrokerFull => world.servers.make_room(),
        Kind::BrokerStall | Kind::BrokerSlow => {
            world.servers.taps().iter().for_each(Tap::flow);
            Ok(())
        }
        Kind::WalsenderTerminate
        | Kind::PostgresCut
        | Kind::PostgresLost
        | Kind::PostgresHalfOpen
        | Kind::BrokerCut
        | Kind::BrokerLost
        | Kind::Ddl
        | Kind::LeadersMoved => Ok(()),
    }
}

/// Whether the relay runs; that another fault has ended it is no error, that it ended by itself is one.
fn is_up(world: &mut World) -> Result<bool> {
    match world.relay.exited()? {
        Some(code) => anyhow::bail!("the relay has ended with {code}"),
        None => Ok(world.relay.pid().is_some()),
    }
}

fn signal(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid {
        process::signal_stranger(pid, signal);
    }
}

fn with_victims(world: &mut World, strike: Strike, act: impl Fn(&mut Servers, usize) -> Result<()>) -> Result<()> {
    for place in victims(world, strike) {
        act(&mut world.servers, place)?;
    }
    Ok(())
}

/// One broker; of three now and then two are killed, so that too few are in sync.
fn victims(world: &World, strike: Strike) -> Vec<usize> {
    let count = world.servers.count();
    let first = usize::try_from(strike.dice % 1021).unwrap_or(0);
    let long = matches!(strike.kind, Kind::BrokerGone | Kind::HalfTransaction);
    let two = count == 3 && (long || strike.kind == Kind::BrokerKill && strike.dice.is_multiple_of(4));
    (0..if two { 2 } else { 1 }).map(|more| (first + more) % count).collect()
}

/// All taps before the brokers, or one of them.
fn taps(world: &World, strike: Strike) -> impl Iterator<Item = &Tap> {
    let count = world.servers.count();
    let one = usize::try_from(strike.dice % 1021).unwrap_or(0) % count;
    let all = strike.dice.is_multiple_of(2);
    world.servers.taps().iter().enumerate().filter(move |(place, _)| all || *place == one).map(|(_, tap)| tap)
}

fn stall(tap: &Tap, dice: u64) {
    match dice % 3 {
        0 => tap.stall(Direction::ToServer),
        1 => tap.stall(Direction::ToClient),
        _ => tap.stall_both(),
    }
}

fn slow(tap: &Tap, dice: u64) {
    let mut rng = StdRng::seed_from_u64(dice);
    for direction in [Direction::ToServer, Direction::ToClient] {
        tap.delay(direction, Duration::from_millis(rng.random_range(10..200)));
        tap.limit(direction, rng.random_range(50_000..1_000_000));
    }
}

/// Commits one large transaction and waits until half of it has arrived.
fn half_of_a_transaction(world: &mut World) -> Result<()> {
    const EVENTS: &str = "walrelay_events_total";
    let before = world.relay.metric(EVENTS)?;
    world.write_bulk(BULK_ROWS, BULK_ROWS)?;
    let half = before + f64::from(u32::try_from(BULK_ROWS / 2)?);
    process::wait_until(PATIENCE, "half of the transaction", || Ok(world.relay.metric(EVENTS)? >= half))
}

/// One change after the other for as long as it holds.
fn build(world: &mut World, strike: Strike) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(strike.dice);
    let mut client = world.connect()?;
    let until = Instant::now() + strike.hold;
    loop {
        world.builder.change(&mut client, &world.shop_options, &mut rng).context("changing the tables")?;
        if Instant::now() >= until {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(rng.random_range(20..150)));
    }
}

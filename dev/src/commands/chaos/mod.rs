//! Chaos rounds: faults of the relay, of Postgres, of the brokers and of the network between them, at random moments
//! under load; in the end, what was committed is compared with what the topics hold.
//!
//! In: a seed and how many rounds. Out: a line for each round, a table by kinds of faults, the books, PASS or FAIL with
//! the command that does the same again. What the machine does at the same time is not in the seed: a round repeats its
//! faults, not its microseconds.
//!
//! With `--standby` a second relay waits for the slot ([`standby`]), and what counts is what publishes behind it.
//!
//! With `--verify`, `walrelay verify` runs beside the rounds, and what it says is compared with the books ([`beside`]).
//!
//! [`upgrade`] has the same load and the same books for programs of two versions in turn.
//!
//! [`plan`] chooses the faults, [`world`] has the services and the load, [`faults`] begins and ends each fault.
//! [`reader`] reads along, [`report`] judges.

mod aborted;
mod beside;
mod faults;
mod judge;
mod plan;
mod reader;
mod report;
mod standby;
pub(crate) mod upgrade;
mod world;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use walrelay_dev::{brokers, provision};

use crate::binary::Binary;
use crate::screen::{again, line};
use crate::to::To;
use plan::{Brokers, Kind, Round, Wishes, plan};
use report::{Outcome, Report};
use world::{Settings, World};

/// How long a fault is put off so that it meets records in flight: after a start the server first decodes again what it
/// has decoded before, and later many faults would come between two batches.
const PUT_OFF: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    #[command(flatten)]
    wishes: Wishes,
    /// Only this one of the rounds
    #[arg(long)]
    at: Option<usize>,
    /// With a relay that waits for the slot: only faults that make the active one lose it, or these of them
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0..)]
    standby: Option<Vec<standby::Fault>>,
    #[command(flatten)]
    settings: Settings,
}

/// Whether everything that is promised held.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let (mut wishes, settings) = (arguments.wishes.clone(), &arguments.settings);
    let binary = arguments.binary.path()?;
    let kafka = settings.to == To::Kafka;
    settings.ensure_possible()?;
    if let Some(only) = &arguments.standby {
        let rounds = standby::Rounds { count: wishes.rounds, at: arguments.at, only: only.clone() };
        let passed = standby::run(settings, &rounds, &binary)?;
        line(&format!("{}  again: {}", if passed { "PASS" } else { "FAIL" }, again(settings.seed)));
        return Ok(passed);
    }
    // One replica of each topic keeps no promise of exactly once through a crash of its broker.
    if wishes.brokers == Brokers::Both && settings.exactly_once() {
        wishes.brokers = Brokers::Three;
    }
    let rounds = plan(&wishes, settings.seed, kafka);
    let rounds: Vec<Round> =
        rounds.into_iter().filter(|round| arguments.at.is_none_or(|at| at == round.number)).collect();
    line(&format!("chaos: {} rounds, seed {}", rounds.len(), settings.seed));

    let mut report = Report::default();
    let mut broken = Vec::new();
    for brokers in [1, 3] {
        let part: Vec<Round> = rounds.iter().filter(|round| round.brokers == brokers).cloned().collect();
        if !part.is_empty() {
            run_part(settings, brokers, &part, wishes.rounds, &binary, &mut report, &mut broken)?;
        }
    }
    report.print(settings);
    broken.extend(report.broken(settings));
    for what in &broken {
        line(what);
    }
    let verdict = if broken.is_empty() { "PASS" } else { "FAIL" };
    line(&format!("{verdict}  again: {}", again(settings.seed)));
    Ok(broken.is_empty())
}

/// The rounds on one cluster. What goes wrong is in `report`, or in `broken` when it ended the part.
fn run_part(
    settings: &Settings,
    brokers: u16,
    rounds: &[Round],
    all: usize,
    binary: &Path,
    report: &mut Report,
    broken: &mut Vec<String>,
) -> Result<()> {
    let started = Instant::now();
    let mut world = World::start(settings, brokers, binary)?;
    let name = settings.to.kind().map_or("Kafka", brokers::Kind::name);
    line(&format!(
        "{name} ({brokers}) and Postgres {} are up after {:.1} s",
        settings.postgres,
        started.elapsed().as_secs_f64()
    ));
    let before = report.outcomes.len();
    if let Err(error) = play(&mut world, settings, rounds, all, report) {
        let number = rounds.get(report.outcomes.len() - before).map_or(0, |round| round.number);
        broken.push(format!("round {number}: {error:#}"));
    } else {
        report.verdicts.push(world.end().context("comparing the books")?);
    }
    for outcome in report.outcomes.iter_mut().skip(before) {
        outcome.repeats = world.reader.repeats(outcome.round.number);
    }
    if !broken.is_empty() || !report.broken(settings).is_empty() {
        let folder = folder(settings.seed, brokers);
        world.keep_logs(&folder)?;
        line(&format!("logs are kept in {}", folder.display()));
    }
    world.close()
}

fn play(world: &mut World, settings: &Settings, rounds: &[Round], all: usize, report: &mut Report) -> Result<()> {
    for round in rounds {
        let outcome = play_round(world, settings, round)?;
        line(&outcome.describe(all));
        let memory = world.relay.usage().map(|usage| usage.memory.peak).unwrap_or_default();
        report.peak_kib = report.peak_kib.max(memory);
        report.outcomes.push(outcome);
    }
    Ok(())
}

fn play_round(world: &mut World, settings: &Settings, round: &Round) -> Result<Outcome> {
    world.reader.begin_round(round.number);
    std::thread::sleep(round.calm);
    let in_flight = world.caught_in_flight(PUT_OFF);
    let given_up = world.given_up();
    let began = Instant::now();
    let first = faults::begin(world, round.first)?;
    let mut absent = Vec::new();
    let mut struck_second = None;
    if let Some((after, strike)) = round.second {
        std::thread::sleep(after);
        let second = faults::begin(world, strike)?;
        struck_second = second.hit.then_some(strike.kind);
        std::thread::sleep(round.first.hold.saturating_sub(after));
        faults::end(world, round.first, &first)?;
        std::thread::sleep(strike.hold);
        faults::end(world, strike, &second)?;
    } else {
        if round.first.kind == Kind::RelayKill && !settings.exactly_once() {
            // Nobody adds to the topics now.
            absent = world.absent_below_confirmed(true)?;
        }
        std::thread::sleep(round.first.hold);
        faults::end(world, round.first, &first)?;
    }
    let held = began.elapsed();
    let (recovery, standstill) = world.recover().with_context(|| format!("after {}", round.first.kind.name()))?;
    world.settle()?;
    world.look_at_comparison()?;
    absent.extend(world.absent_below_confirmed(false)?);
    let crashed = matches!(round.first.kind, Kind::PostgresKill | Kind::PostgresImmediate);
    // On a busy machine a fault may hold longer than it was to.
    let lost = round.first.kind.loses_answers()
        || struck_second.is_some_and(Kind::loses_answers)
        || settings.may_be_left_after(held);
    Ok(Outcome {
        round: round.clone(),
        in_flight,
        lost,
        given_up: world.given_up().saturating_sub(given_up),
        second: struck_second,
        killed: (round.first.kind == Kind::RelayKill && first.hit) || struck_second == Some(Kind::RelayKill),
        code: first.code,
        recovery,
        standstill,
        repeats: world.reader.repeats(round.number),
        absent,
        moved_back: world.moved_back(crashed)?,
    })
}

/// Where logs are kept after a failure.
fn folder(seed: u64, brokers: u16) -> PathBuf {
    provision::dev_dir().join("chaos").join(format!("seed-{seed}-{}-{brokers}", std::process::id()))
}

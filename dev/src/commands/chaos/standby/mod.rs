//! Rounds with a standby: the active relay loses the slot while records of it are under way, the standby publishes the same rows and
//! newer ones of the same keys, and then the active one can do again what it could not.
//!
//! ```text
//!  writer ──▶ Postgres ──┬▶ tap ──▶ active relay ──▶ taps ─────┬──▶ brokers ──▶ judge: which keys end with an old value?
//!                        └──────▶ standby ──▶ taps of its own ─┘
//! ```
//!
//! Each round has a database, a slot, topics and two relays of its own. A tap that is stalled holds the relay's bytes back as a kernel
//! does whose packets are dropped: they arrive later if the relay closed its connection, and not if it reset it.

mod faults;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use walrelay_dev::postgres::{Postgres, unique_name};
use walrelay_dev::process;
use walrelay_dev::relay::Relay;
use walrelay_dev::servers::Servers;
use walrelay_dev::shop;
use walrelay_dev::stage::Stage;
use walrelay_dev::tap::Tap;
use walrelay_dev::{brokers, provision};

use super::judge::{Found, Judge};
use super::world::{self, Settings};
use crate::screen::line;
pub(crate) use faults::Fault;
use faults::{Round, plan};

/// How long anything may take that has to happen.
const PATIENCE: Duration = Duration::from_mins(2);

/// Postgres takes the slot from a silent relay this soon.
const WAL_SENDER_TIMEOUT: &str = "5s";

/// The keys of each round.
const KEYS: i64 = 64;

/// Rows of a transaction.
const BATCH: i64 = 16;

const PARTITIONS: u32 = 12;

/// What all addresses begin with.
const PREFIX: &str = "outbox.event";

/// Once no record has come for this long, all that was in flight has arrived.
const QUIET: Duration = Duration::from_secs(2);

/// Which rounds are played.
#[derive(Debug, Clone)]
pub(super) struct Rounds {
    pub(super) count: usize,
    /// Only this one of them.
    pub(super) at: Option<usize>,
    /// All when empty.
    pub(super) only: Vec<Fault>,
}

/// A relay and its standby, and what faults are done to.
pub(super) struct Pair<'a> {
    servers: &'a Servers,
    postgres_tap: &'a Tap,
    stage: &'a Stage,
    active: Relay,
    standby: Relay,
}

/// The result of a round.
struct Outcome {
    round: Round,
    /// Of the active relay, when the fault began.
    in_flight: u64,
    takeover: Duration,
    found: Found,
    broken: Vec<String>,
}

/// Whether everything that is promised held.
pub(super) fn run(settings: &Settings, Rounds { count, at, only }: &Rounds, binary: &Path) -> Result<bool> {
    let rounds = plan(settings.seed, *count, only);
    let rounds: Vec<Round> = rounds.into_iter().filter(|round| at.is_none_or(|at| at == round.number)).collect();
    line(&format!("chaos with a standby: {} rounds, seed {}", rounds.len(), settings.seed));
    let servers = match settings.to.kind() {
        None => Servers::start(None, 1, &world::kafka_options(), PREFIX)?,
        Some(kind) => Servers::other(kind, PREFIX, &[], false)?,
    };
    servers.take_repeats()?;
    let postgres = Postgres::with(settings.postgres, &[("wal_sender_timeout", WAL_SENDER_TIMEOUT)])?;
    let postgres_tap = Tap::start(format!("127.0.0.1:{}", postgres.port()))?;
    let mut outcomes = Vec::new();
    for round in rounds {
        let outcome = play(settings, round, &postgres, (&servers, &postgres_tap), binary)
            .with_context(|| format!("round {}, {}", round.number, round.fault.name()))?;
        line(&outcome.describe(*count));
        outcome.broken.iter().for_each(|what| line(&format!("  {what}")));
        outcomes.push(outcome);
    }
    print_table(&outcomes);
    Ok(outcomes.iter().all(|outcome| outcome.broken.is_empty()))
}

fn play(
    settings: &Settings,
    round: Round,
    postgres: &Postgres,
    (servers, postgres_tap): (&Servers, &Tap),
    binary: &Path,
) -> Result<Outcome> {
    let stage = build(postgres, servers, binary)?;
    let mut beside_taps = stage.clone();
    beside_taps.to = servers.second_to();
    let arguments = arguments(settings);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut active = stage.clone().behind(postgres_tap).relay(&arguments)?;
    active.wait_streaming(PATIENCE)?;
    let standby = beside_taps.relay(&arguments)?;
    let mut pair = Pair { servers, postgres_tap, stage: &stage, active, standby };
    process::wait_until(PATIENCE, "the standby to wait", || Ok(pair.standby.log().contains("waiting as standby")))?;
    let stop = AtomicBool::new(false);
    let (last, played) = thread::scope(|scope| {
        let writer = scope.spawn(|| write(&stage, settings, &stop));
        let played = pair.lose_slot(round);
        stop.store(true, Ordering::SeqCst);
        let last = writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        anyhow::Ok((last, played?))
    })?;
    let (in_flight, takeover) = played;
    stage.wait_confirmed(PATIENCE).context("by the standby")?;
    round.fault.end(&mut pair)?;
    let judge = pair.settle()?;
    let found = judge.found();
    let mut broken = broken(settings, round, &found, judge.missing(last));
    if !broken.is_empty() {
        broken.push(format!("logs are kept in {}", pair.keep_logs(settings.seed, round)?.display()));
    }
    pair.strike_down()?;
    Ok(Outcome { round, in_flight, takeover, found, broken })
}

fn build(postgres: &Postgres, servers: &Servers, binary: &Path) -> Result<Stage> {
    let prefix = format!("{PREFIX}.{}", unique_name("round"));
    let stage = servers.stage(postgres, binary, &prefix, &shop::Options::default(), PARTITIONS, &[])?;
    stage.setup()?;
    Ok(stage)
}

fn arguments(settings: &Settings) -> Vec<String> {
    let mut arguments = vec!["--disconnect-after=1s".to_owned()];
    if settings.exactly_once() {
        // The pair has one broker, which no fault kills.
        arguments.extend(["--delivery=exactly-once", "--accept-one-replica"].map(str::to_owned));
    }
    arguments.extend(settings.relay.iter().cloned());
    arguments
}

/// Writes numbered rows until it is stopped; the last number.
fn write(stage: &Stage, settings: &Settings, stop: &AtomicBool) -> Result<i64> {
    const INSERT: &str = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
        SELECT gen_random_uuid(), 'order', 'key-' || n % $3::bigint, 'Numbered', jsonb_build_object('number', n)
        FROM generate_series($1::bigint, $2::bigint) AS n";
    let mut client = stage.connect()?;
    // ElasticMQ and RabbitMQ take far fewer messages.
    let pause = match settings.to.kind() {
        None | Some(brokers::Kind::Valkey | brokers::Kind::Nats) => Duration::from_millis(4),
        Some(brokers::Kind::RabbitMq) => Duration::from_millis(20),
        Some(brokers::Kind::ElasticMq) => Duration::from_millis(200),
    };
    let mut last = 0;
    while !stop.load(Ordering::SeqCst) {
        client.execute(INSERT, &[&(last + 1), &(last + BATCH), &KEYS])?;
        last += BATCH;
        thread::sleep(pause);
    }
    Ok(last)
}

impl Pair<'_> {
    /// The records in flight when the fault began, and the time until the standby had taken over.
    fn lose_slot(&mut self, round: Round) -> Result<(u64, Duration)> {
        let arrived = || Ok(self.active.metric("walrelay_events_total")? > 0.0);
        process::wait_until(PATIENCE, "some records", arrived)?;
        thread::sleep(round.calm);
        let in_flight = self.active.in_flight();
        let began = Instant::now();
        round.fault.begin(self)?;
        self.standby.wait_streaming(PATIENCE).context("the standby")?;
        let takeover = began.elapsed();
        thread::sleep(round.more);
        Ok((in_flight, takeover))
    }

    /// Waits until nothing is under way any more, and reads what has arrived.
    fn settle(&mut self) -> Result<Judge> {
        self.stage.wait_confirmed(PATIENCE)?;
        let mut gauge = self.stage.arrivals.gauge(&self.stage.topics())?;
        let (mut count, mut since) = (gauge.count()?, Instant::now());
        process::wait_until(PATIENCE, "nothing to be in flight", || {
            let now = gauge.count()?;
            if now != count || self.active.in_flight() + self.standby.in_flight() > 0 {
                (count, since) = (now, Instant::now());
            }
            Ok(since.elapsed() >= QUIET)
        })?;
        Judge::of(&self.stage.arrivals, &self.stage.topics())
    }

    fn keep_logs(&self, seed: u64, round: Round) -> Result<std::path::PathBuf> {
        let folder = provision::dev_dir().join("chaos").join(format!("standby-{seed}-{}", round.number));
        std::fs::create_dir_all(&folder)?;
        for (relay, name) in [(&self.active, "active.log"), (&self.standby, "standby.log")] {
            std::fs::copy(relay.log_path(), folder.join(name))?;
        }
        Ok(folder)
    }

    fn strike_down(mut self) -> Result<()> {
        self.active.kill9()?;
        self.standby.kill9()?;
        self.servers.strike(self.stage, PATIENCE)
    }
}

fn broken(settings: &Settings, round: Round, found: &Found, missing: usize) -> Vec<String> {
    let mut broken = Vec::new();
    if missing > 0 {
        broken.push(format!("{missing} rows have no record"));
    }
    if found.stale_records > 0 && (settings.exactly_once() || !round.fault.freezes()) {
        broken.push(format!("{} of {} keys end with an old value", found.stale_keys, found.keys));
    }
    if found.repeats > 0 && settings.exactly_once() {
        broken.push(format!("{} records came again", found.repeats));
    }
    broken
}

impl Outcome {
    fn describe(&self, rounds: usize) -> String {
        let Self { round, in_flight, takeover, found, .. } = self;
        format!(
            "{:>5}/{rounds}  {:<14} {in_flight:>5} in flight  takeover in {:>4.1} s  {:>6} records  {:>5} repeats  {:>5} stale  {:>2} of {} keys stale",
            round.number,
            round.fault.name(),
            takeover.as_secs_f64(),
            found.records,
            found.repeats,
            found.stale_records,
            found.stale_keys,
            found.keys
        )
    }
}

fn print_table(outcomes: &[Outcome]) {
    line("");
    line("fault           rounds  broken  stale records  stale keys  repeats  takeover max");
    for fault in <Fault as clap::ValueEnum>::value_variants() {
        let these: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.round.fault == *fault).collect();
        let sum = |part: &dyn Fn(&Found) -> usize| these.iter().map(|outcome| part(&outcome.found)).sum::<usize>();
        if !these.is_empty() {
            line(&format!(
                "{:<14} {:>7} {:>7} {:>14} {:>11} {:>8} {:>11.1} s",
                fault.name(),
                these.len(),
                these.iter().filter(|outcome| !outcome.broken.is_empty()).count(),
                sum(&|found| found.stale_records),
                sum(&|found| found.stale_keys),
                sum(&|found| found.repeats),
                these.iter().map(|outcome| outcome.takeover).max().unwrap_or_default().as_secs_f64()
            ));
        }
    }
    line("");
}

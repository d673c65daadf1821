//! Chaos rounds: the relay is killed or stopped at random moments under load, and started again; in the end, what was
//! committed is compared with what the topics hold.
//!
//! A background reader attributes each repeat to the round it appeared in, so that clean stops are held to "repeats
//! nothing" also when kills are mixed in.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use walrelay_dev::consume::Follower;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::relay::Relay;
use walrelay_dev::shop::{self, Shop, Tally};
use walrelay_dev::stage::Stage;
use walrelay_dev::{consume, process, truth};

use crate::Binary;
use crate::screen::{line, thousands};

/// How long the relay may take to stream again, to stop, and to deliver what is left in the end.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// How often the relay is ended
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Repeats moments and the shop's choices [default: random, printed]
    #[arg(long)]
    seed: Option<u64>,
    /// How it is ended
    #[arg(long, value_enum, default_value_t = Mode::Kill)]
    mode: Mode,
    /// Connections that write
    #[arg(long, default_value_t = 4)]
    connections: u32,
    /// The longest time between two ends, in milliseconds
    #[arg(long, default_value_t = 1000)]
    longest: u64,
    /// Postgres' major version
    #[arg(long, default_value_t = 17)]
    postgres: u32,
    /// Further arguments of the relay
    #[arg(last = true)]
    relay: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// SIGKILL
    Kill,
    /// SIGTERM: a clean stop, which must repeat nothing and exit with 0
    Term,
    /// Either, at random
    Mixed,
}

/// One end of the relay.
#[derive(Debug, Clone)]
struct Round {
    killed: bool,
    lived: Duration,
    /// Records handed to Kafka and not acknowledged, as `/status` said just before.
    in_flight: Option<u64>,
    back_after: Duration,
    code: Option<i32>,
}

/// Whether nothing was lost, swapped, invented, or repeated by a clean stop.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(|| rand::random_range(1..1_000_000));
    line(&format!("chaos: {} rounds, mode {:?}, seed {seed}", arguments.rounds, arguments.mode));
    let binary = arguments.binary.path()?;
    let (postgres, kafka) = start(arguments.postgres)?;
    let options = shop::Options { connections: arguments.connections, seed, keys: KEYS, ..shop::Options::default() };
    let stage = Stage::build(&postgres, &kafka, &binary, "outbox.event", &options)?;
    stage.setup()?;
    let more: Vec<&str> = arguments.relay.iter().map(String::as_str).collect();
    let mut relay = stage.relay(&more)?;
    relay.wait_streaming(PATIENCE)?;

    let reader = Reader::start(&stage)?;
    let shop = Shop::open(&stage.source, &options)?;
    let rounds = end_again_and_again(arguments, seed, &mut relay, &reader)
        .with_context(|| format!("the relay's last words:\n{}", process::tail(&relay.log_path(), 20)))?;
    let tally = shop.close()?;
    let delivered = stage.wait_confirmed(PATIENCE);
    let code = relay.terminate(PATIENCE)?.code;
    let repeats = reader.stop(arguments.rounds)?;
    let report = stage.compare()?;

    print(&rounds, &repeats, tally, &report, seed);
    let clean = report.is_clean() && code == 0 && stops_were_clean(&rounds, &repeats);
    if let Err(error) = &delivered {
        line(&format!("not delivered: {error:#}"));
    }
    let passed = clean && delivered.is_ok();
    if !passed {
        explain(&report, &relay, &binary);
    }
    line(if passed { "PASS" } else { "FAIL" });
    Ok(passed)
}

fn start(major: u32) -> Result<(Postgres, Kafka)> {
    let kafka = std::thread::spawn(|| Kafka::start(&kafka::Options::default()));
    // The keys' rows are updated all the time: without a vacuum each second the load would fade.
    let settings = vec![("autovacuum_naptime".to_owned(), "1s".to_owned())];
    let postgres = Postgres::start(&postgres::Options { major, settings, ..postgres::Options::default() })?;
    let kafka = kafka.join().map_err(|_| anyhow!("starting Kafka panicked"))??;
    Ok((postgres, kafka))
}

fn end_again_and_again(arguments: &Arguments, seed: u64, relay: &mut Relay, reader: &Reader) -> Result<Vec<Round>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rounds = Vec::new();
    for number in 1..=arguments.rounds {
        let lived = Duration::from_micros(rng.random_range(0..=arguments.longest * 1000));
        let killed = match arguments.mode {
            Mode::Kill => true,
            Mode::Term => false,
            Mode::Mixed => rng.random_bool(0.5),
        };
        std::thread::sleep(lived);
        let round = end_once(relay, killed, lived, || reader.next_round())?;
        line(&describe(number, &round));
        rounds.push(round);
    }
    Ok(rounds)
}

/// Ends the relay, says that a new round begins while it is down, starts it again.
fn end_once(relay: &mut Relay, killed: bool, lived: Duration, down: impl FnOnce() -> Result<()>) -> Result<Round> {
    let in_flight = if killed { caught_in_flight(relay) } else { in_flight(relay) };
    let code = if killed {
        relay.kill9()?;
        None
    } else {
        Some(relay.terminate(PATIENCE)?.code)
    };
    down()?;
    relay.start_again()?;
    let back_after = relay.wait_streaming(PATIENCE)?;
    Ok(Round { killed, lived, in_flight, back_after, code })
}

/// Keys of the load: enough that its connections seldom wait for each other, few enough that each has many records.
const KEYS: u32 = 100;

/// How long a kill is put off so that it meets records in flight: after a start the server first decodes again what it has
/// decoded before, and later most kills would come between two batches.
const KILL_PUT_OFF: Duration = Duration::from_secs(2);

/// What was in flight when last looked at: as soon as something was, at the latest when time is up.
fn caught_in_flight(relay: &Relay) -> Option<u64> {
    let until = Instant::now() + KILL_PUT_OFF;
    loop {
        let seen = in_flight(relay);
        if seen.is_some_and(|count| count > 0) || Instant::now() >= until {
            return seen;
        }
    }
}

fn in_flight(relay: &Relay) -> Option<u64> {
    relay.status().ok()?.get("in_flight_records")?.as_u64()
}

fn describe(number: usize, round: &Round) -> String {
    let how = match (round.killed, round.code) {
        (true, _) => "kill -9".to_owned(),
        (false, code) => format!("SIGTERM, exit {}", code.unwrap_or(-1)),
    };
    let in_flight = round.in_flight.map_or_else(|| "?".to_owned(), |count| count.to_string());
    format!(
        "  round {number:>3}  {how} after {:>4} ms, {in_flight:>5} in flight; streaming again after {:>4} ms",
        round.lived.as_millis(),
        round.back_after.as_millis()
    )
}

fn print(rounds: &[Round], repeats: &[usize], tally: Tally, report: &truth::Report, seed: u64) {
    let kills = rounds.iter().filter(|round| round.killed).count();
    let seen_in_flight =
        rounds.iter().filter(|round| round.killed && round.in_flight.is_some_and(|count| count > 0)).count();
    let by_kill = |(round, repeats): (&Round, &usize)| {
        round.killed && (*repeats > 0 || round.in_flight.is_some_and(|count| count > 0))
    };
    let open = rounds.iter().zip(repeats).filter(|pair| by_kill((pair.0, pair.1))).count();
    let of = |killed: bool| {
        rounds
            .iter()
            .zip(repeats)
            .filter(|(round, _)| round.killed == killed)
            .map(|(_, repeats)| repeats)
            .sum::<usize>()
    };
    line(&format!("seed {seed}"));
    line(&format!(
        "rounds        {} kills, {} clean stops (exit codes other than 0: {})",
        kills,
        rounds.len() - kills,
        rounds.iter().filter(|round| round.code.is_some_and(|code| code != 0)).count()
    ));
    line(&format!(
        "in flight     at {seen_in_flight} kills by /status just before; unconfirmed at {open}, repeats included"
    ));
    line(&format!(
        "load          {} transactions, {} rows committed, {} rolled back",
        thousands(tally.transactions),
        thousands(tally.committed),
        thousands(tally.rolled_back)
    ));
    line(&format!("repeats       {} by kills, {} by clean stops", of(true), of(false)));
    line(&format!("truth         {report}"));
}

fn stops_were_clean(rounds: &[Round], repeats: &[usize]) -> bool {
    let clean = |(round, repeats): (&Round, &usize)| round.killed || (round.code == Some(0) && *repeats == 0);
    rounds.iter().zip(repeats).all(clean)
}

fn explain(report: &truth::Report, relay: &Relay, binary: &Path) {
    for offender in &report.offenders {
        line(&format!("  {offender}"));
    }
    line(&format!("last words of {}:\n{}", binary.display(), process::tail(&relay.log_path(), 20)));
}

/// Reads along and counts, for each round, the records that had been there before.
struct Reader {
    stage: Stage,
    round: Arc<AtomicUsize>,
    read: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    repeats: Arc<Mutex<Vec<usize>>>,
    thread: JoinHandle<Result<()>>,
}

impl Reader {
    fn start(stage: &Stage) -> Result<Self> {
        let topics = stage.topics();
        let follower = Follower::from_beginning(&stage.client, &topics.iter().map(String::as_str).collect::<Vec<_>>())?;
        let (round, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (read, repeats) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let shared = (Arc::clone(&round), Arc::clone(&stop), Arc::clone(&read), Arc::clone(&repeats));
        let thread = std::thread::spawn(move || read_along(&follower, &shared.0, &shared.1, &shared.2, &shared.3));
        Ok(Self { stage: stage.clone(), round, read, stop, repeats, thread })
    }

    /// To be called while the relay is down: reads what there is, then begins a new round.
    fn next_round(&self) -> Result<()> {
        let there =
            self.stage.topics().iter().map(|topic| consume::count(&self.stage.client, topic)).sum::<Result<i64>>()?;
        let there = usize::try_from(there)?;
        process::wait_until(PATIENCE, "the reader to catch up", || Ok(self.read.load(Ordering::SeqCst) >= there))?;
        self.round.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The repeats after each of `rounds` ends.
    fn stop(self, rounds: usize) -> Result<Vec<usize>> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| anyhow!("the reader panicked"))??;
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        repeats.resize(rounds + 1, 0);
        if repeats.first().is_some_and(|before_any| *before_any > 0) {
            bail!("{repeats:?}: records were repeated before the relay was ended for the first time");
        }
        Ok(repeats.split_off(1))
    }
}

fn read_along(
    follower: &Follower,
    round: &AtomicUsize,
    stop: &AtomicBool,
    read: &AtomicUsize,
    repeats: &Mutex<Vec<usize>>,
) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    let mut last_news = Instant::now();
    // Goes on for a moment after the end: what is there has to come.
    while !stop.load(Ordering::SeqCst) || last_news.elapsed() < Duration::from_millis(500) {
        let Some(record) = follower.next(Duration::from_millis(50))? else { continue };
        last_news = Instant::now();
        let round = round.load(Ordering::SeqCst);
        let repeated = !seen.insert(record.header("id").unwrap_or_default().to_owned());
        let mut repeats = repeats.lock().unwrap_or_else(PoisonError::into_inner);
        if repeats.len() <= round {
            repeats.resize(round + 1, 0);
        }
        if let Some(count) = repeats.get_mut(round) {
            *count += usize::from(repeated);
        }
        read.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

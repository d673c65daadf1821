//! A broker that is away for long, and what the relay does with what it has in hand: three scenarios, each with the
//! relay's memory and the books afterwards.
//!
//! In: which one, how large, how long. Out: lines as it goes, then the books and PASS or FAIL. Nothing may be lost and
//! nothing repeated: the relay lives through all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Mode, Postgres};
use walrelay_dev::process;
use walrelay_dev::relay::Relay;
use walrelay_dev::shop::{self, Shop};
use walrelay_dev::stage::Stage;

use crate::Binary;
use crate::screen::{line, thousands};

/// How long the relay may take for what is left when the broker is back; also for a large backlog.
const PATIENCE: Duration = Duration::from_mins(30);

/// Keys among which bulk rows are dealt out.
const KEYS: i64 = 50;

/// Rows of one transaction of a backlog.
const BATCH: i64 = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// What happens
    #[arg(value_enum)]
    scenario: Scenario,
    /// Rows of the transaction, or of the backlog [default: 1000000, of the backlog 5000000]
    #[arg(long)]
    rows: Option<i64>,
    /// For how long the broker is down [default: 120, under load 300]
    #[arg(long)]
    seconds: Option<u64>,
    /// Postgres' major version
    #[arg(long, default_value_t = 17)]
    postgres: u32,
    /// Further arguments of the relay
    #[arg(last = true)]
    relay: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Scenario {
    /// The broker goes when half of one large transaction is sent, and Postgres is restarted before it is back
    HalfTransaction,
    /// The broker goes under load and comes back
    Load,
    /// The relay is down while rows are written
    Backlog,
}

/// Whether nothing was lost, and nothing repeated.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let binary = arguments.binary.path()?;
    let mut services = start(arguments.postgres)?;
    let options = shop::Options { pause: Duration::from_millis(5), connections: 8, ..shop::Options::default() };
    let stage = Stage::build(&services.0, &services.1, &binary, "outbox.event", &options)?;
    stage.setup()?;
    let more: Vec<&str> = arguments.relay.iter().map(String::as_str).collect();
    let mut relay = stage.relay(&more)?;
    relay.wait_streaming(PATIENCE)?;

    let gauge = Gauge::default();
    match arguments.scenario {
        Scenario::HalfTransaction => half_transaction(arguments, &mut services, &stage, &mut relay, &gauge)?,
        Scenario::Load => load(arguments, &mut services, &stage, &mut relay, &gauge, &options)?,
        Scenario::Backlog => backlog(arguments, &stage, &mut relay, &gauge)?,
    }
    let started = Instant::now();
    stage.wait_confirmed(PATIENCE).map_err(|error| anyhow!("{error:#}\n{}", process::tail(&relay.log_path(), 20)))?;
    line(&format!("everything is confirmed after {:.1} s", started.elapsed().as_secs_f64()));
    let peak = gauge.end(&relay)?;
    let code = relay.terminate(PATIENCE)?.code;
    let report = stage.compare()?;
    let passed = report.is_clean() && report.repeated == 0 && code == 0;
    line(&format!("memory   {} MB at most", peak / 1024));
    line(&format!("truth    {report}"));
    for offender in &report.offenders {
        line(offender);
    }
    line(if passed { "PASS" } else { "FAIL" });
    Ok(passed)
}

fn start(major: u32) -> Result<(Postgres, Kafka)> {
    let kafka = std::thread::spawn(|| Kafka::start(&kafka::Options::default()));
    let settings =
        vec![("max_wal_size".to_owned(), "4GB".to_owned()), ("autovacuum_naptime".to_owned(), "1s".to_owned())];
    let postgres = Postgres::start(&postgres::Options { major, settings, ..postgres::Options::default() })?;
    let kafka = kafka.join().map_err(|_| anyhow!("starting Kafka panicked"))??;
    Ok((postgres, kafka))
}

fn half_transaction(
    arguments: &Arguments,
    services: &mut (Postgres, Kafka),
    stage: &Stage,
    relay: &mut Relay,
    gauge: &Gauge,
) -> Result<()> {
    let rows = arguments.rows.unwrap_or(1_000_000);
    let down = Duration::from_secs(arguments.seconds.unwrap_or(120));
    shop::bulk(&mut stage.connect()?, 1..=rows, KEYS)?;
    gauge.watch(relay)?;
    let half = u32::try_from(rows / 2)?;
    process::wait_until(PATIENCE, "half of the transaction", || {
        Ok(relay.metric("walrelay_events_total")? >= f64::from(half))
    })?;
    services.1.kill()?;
    line(&format!("kill -9 broker after {} of {rows} rows", relay.metric("walrelay_events_total")?));
    std::thread::sleep(down / 2);
    let took = services.0.stop(Mode::Fast)?;
    services.0.start_again()?;
    line(&format!(
        "restarted Postgres (fast) after {} s, which took {:.1} s to stop",
        down.as_secs() / 2,
        took.as_secs_f64()
    ));
    std::thread::sleep(down / 2);
    services.1.start_again()?;
    line(&format!("broker is back, {} MB until now", gauge.peak() / 1024));
    Ok(())
}

fn load(
    arguments: &Arguments,
    services: &mut (Postgres, Kafka),
    stage: &Stage,
    relay: &mut Relay,
    gauge: &Gauge,
    options: &shop::Options,
) -> Result<()> {
    let down = Duration::from_secs(arguments.seconds.unwrap_or(300));
    gauge.watch(relay)?;
    let shop = Shop::open(&stage.source, options)?;
    std::thread::sleep(Duration::from_secs(5));
    services.1.kill()?;
    line(&format!("kill -9 broker under load, {} MB until now", gauge.peak() / 1024));
    std::thread::sleep(down);
    let before = shop.tally();
    services.1.start_again()?;
    line(&format!("broker is back after {} s, {} MB until now", down.as_secs(), gauge.peak() / 1024));
    std::thread::sleep(Duration::from_secs(5));
    let tally = shop.close()?;
    line(&format!(
        "{} rows were committed while it was down, {} in all",
        thousands(before.committed),
        thousands(tally.committed)
    ));
    Ok(())
}

fn backlog(arguments: &Arguments, stage: &Stage, relay: &mut Relay, gauge: &Gauge) -> Result<()> {
    let rows = arguments.rows.unwrap_or(5_000_000);
    relay.terminate(PATIENCE)?;
    let mut client = stage.connect()?;
    for first in (1..=rows).step_by(usize::try_from(BATCH)?) {
        shop::bulk(&mut client, first..=rows.min(first + BATCH - 1), KEYS)?;
    }
    line(&format!("{} rows were written while the relay was down", thousands(rows.unsigned_abs())));
    relay.start_again()?;
    gauge.watch(relay)
}

/// Watches how much memory the relay holds.
#[derive(Debug, Default)]
struct Gauge {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: std::cell::RefCell<Option<JoinHandle<()>>>,
}

impl Gauge {
    fn watch(&self, relay: &Relay) -> Result<()> {
        let pid = relay.pid().ok_or_else(|| anyhow!("the relay does not run"))?;
        let (peak, stop) = (Arc::clone(&self.peak), Arc::clone(&self.stop));
        *self.thread.borrow_mut() = Some(std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                if let Ok(memory) = process::memory_kib(pid) {
                    peak.fetch_max(memory.peak, Ordering::SeqCst);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        }));
        Ok(())
    }

    /// In KiB, until now.
    fn peak(&self) -> u64 {
        self.peak.load(Ordering::SeqCst)
    }

    /// The last look, in KiB.
    fn end(&self, relay: &Relay) -> Result<u64> {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.borrow_mut().take() {
            thread.join().map_err(|_| anyhow!("the gauge panicked"))?;
        }
        Ok(self.peak().max(relay.usage()?.memory.peak))
    }
}

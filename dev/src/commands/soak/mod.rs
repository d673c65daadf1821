//! Hours of load with a fault every few minutes: what grows, what is lost.
//!
//! In: how long, how fast, how often a fault. Out: a line each minute, the samples as JSON and as a table, PASS or FAIL.
//! `walrelay prune` deletes what is delivered meanwhile, the topic drops what is old, and the books are kept by key: nothing here
//! grows with the time.
//!
//! [`writers`] write, [`reader`] compares what arrives, [`faults`] kill, [`samples`] are taken and shown.

mod faults;
mod reader;
mod samples;
mod writers;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::Signal;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::Postgres;
use walrelay_dev::process::{self, Guarded, LastWill};
use walrelay_dev::relay::Relay;
use walrelay_dev::stage::Stage;

use crate::binary::Binary;
use crate::machine;
use crate::screen::{again, line, thousands};
use faults::Faults;
use reader::Reader;
use samples::{Sample, Samples};
use writers::Writers;

/// How long anything may take that has to happen.
const PATIENCE: Duration = Duration::from_mins(3);

/// The pause between two looks at the programs.
const TICK: Duration = Duration::from_millis(100);

/// How often a sample is taken.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// How often a line is printed, and the results are written.
const TELL_EVERY: Duration = Duration::from_mins(1);

/// Where the rows go, whose route is `soak`.
const TOPIC: &str = "soak.soak";

/// Partitions of the topic.
const PARTITIONS: u32 = 12;

/// A partition keeps so little that hours of rows fit on a disk; the reader is never so far behind.
const TOPIC_SETTINGS: [(&str, &str); 2] = [("retention.bytes", "268435456"), ("segment.bytes", "67108864")];

/// The most file descriptors that the relay may hold: some for each broker and producer, none for each row, fault or hour.
const MOST_FILES: u64 = 200;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// How long, in hours
    #[arg(long, default_value_t = 2.0)]
    hours: f64,
    /// Rows committed a second
    #[arg(long, default_value_t = 10_000)]
    rate: u64,
    /// Bytes of each payload
    #[arg(long, default_value_t = 1000)]
    payload: i32,
    /// Seconds between two faults: half to one and a half times as many
    #[arg(long, default_value_t = 180)]
    fault_every: u64,
    /// Repeats the faults and their moments [default: random, printed]
    #[arg(long, default_value_t = rand::random_range(1..1_000_000), hide_default_value = true)]
    seed: u64,
    /// More memory than this of the relay is a failure, in MiB
    #[arg(long, default_value_t = 128)]
    most_memory: u64,
    /// Postgres' major version
    #[arg(long, default_value_t = 17)]
    postgres: u32,
    /// Folder for soak.md and soak.json
    #[arg(long, default_value = "benches/results")]
    results: PathBuf,
}

/// The servers and programs that run.
struct Ground {
    postgres: Postgres,
    kafka: Kafka,
    stage: Stage,
    relay: Relay,
    prune: Guarded,
}

/// Whether nothing was lost or swapped, and nothing grew.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let mut ground = Ground::prepare(arguments)?;
    line(&format!(
        "soak          {} h, {} rows a second of {} B, a fault each {} s, seed {}",
        arguments.hours,
        thousands(arguments.rate),
        arguments.payload,
        arguments.fault_every,
        arguments.seed
    ));
    let reader = Reader::start(&ground.kafka.client_config(), TOPIC)?;
    let writers = Writers::start(&ground.stage.source, arguments.rate, arguments.payload);
    let mut samples = Samples::new(arguments);
    let broken = play(arguments, &mut ground, &reader, &mut samples);
    let written = writers.stop()?;
    samples.failures.extend(broken.err().map(|error| format!("{error:#}")));
    if samples.failures.is_empty() {
        ground.settle(&reader, &mut samples)?;
    }
    samples.failures.extend(reader.stop().err().map(|error| format!("{error:#}")));
    samples.judge(arguments.most_memory * 1024, MOST_FILES);
    machine::write(&arguments.results, "soak", &samples.markdown(), &samples.json())?;
    line(&format!("written       {} transactions of {}", thousands(written), writers::BATCH));
    line(&samples.verdict());
    let passed = samples.failures.is_empty();
    line(&format!("{}  again: {}", if passed { "PASS" } else { "FAIL" }, again(arguments.seed)));
    Ok(passed)
}

/// Until the time is over, or a program has ended by itself.
fn play(arguments: &Arguments, ground: &mut Ground, reader: &Reader, samples: &mut Samples) -> Result<()> {
    let mut faults = Faults::new(StdRng::seed_from_u64(arguments.seed), Duration::from_secs(arguments.fault_every));
    let (started, mut sampled, mut told) = (Instant::now(), Instant::now(), Instant::now());
    let (mut seen, mut since) = (0, started);
    while started.elapsed().as_secs_f64() < arguments.hours * 3600.0 {
        std::thread::sleep(TICK);
        let fault = faults.turn(ground)?;
        samples.faults.extend(fault);
        ground.still_running()?;
        reader.still_running()?;
        let arrived = reader.books().arrived;
        samples.longest_standstill = samples.longest_standstill.max(since.elapsed());
        if arrived != seen {
            (seen, since) = (arrived, Instant::now());
        }
        ensure!(since.elapsed() < PATIENCE, "nothing has arrived for {PATIENCE:?}: {}", ground.relay_tail());
        if sampled.elapsed() >= SAMPLE_EVERY {
            sampled = Instant::now();
            // While Postgres is down, no sample can be taken.
            samples.all.extend(ground.sample(started, reader).ok());
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            line(&samples.last_line());
            samples.books = reader.books();
            machine::write(&arguments.results, "soak", &samples.markdown(), &samples.json())?;
        }
    }
    faults.end(ground)
}

impl Ground {
    fn prepare(arguments: &Arguments) -> Result<Self> {
        let binary = arguments.binary.path()?;
        // Checkpoints come often, so that Postgres is soon back after a kill.
        let settings = [
            ("max_wal_size", "512MB"),
            ("checkpoint_timeout", "30s"),
            ("autovacuum_naptime", "5s"),
            ("wal_sender_timeout", "10s"),
        ];
        let postgres = Postgres::with(arguments.postgres, &settings)?;
        let kafka = Kafka::start(&kafka::Options::default())?;
        let stage = Stage::bare(&postgres, &kafka, &binary, TOPIC, PARTITIONS, &TOPIC_SETTINGS)?;
        writers::create_tables(&mut stage.connect()?)?;
        stage.setup()?;
        let mut relay = stage.relay(&[])?;
        relay.wait_streaming(PATIENCE)?;
        let mut prune = Command::new(&binary);
        prune.args(stage.arguments("prune", &["--older-than", "1min", "--every", "30s"]));
        prune.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let prune = Guarded::spawn("prune", &mut prune, &LastWill::default())?;
        Ok(Self { postgres, kafka, stage, relay, prune })
    }

    fn still_running(&mut self) -> Result<()> {
        if let Some(code) = self.relay.exited()? {
            anyhow::bail!("the relay has ended with {code}:\n{}", self.relay_tail());
        }
        let pruned = self.prune.exited()?.map(process::code);
        ensure!(pruned.is_none(), "prune has ended with {pruned:?}");
        Ok(())
    }

    fn relay_tail(&self) -> String {
        process::tail(&self.relay.log_path(), 15)
    }

    fn sample(&self, started: Instant, reader: &Reader) -> Result<Sample> {
        const SQL: &str = "SELECT (SELECT sum(seq)::bigint FROM soak_keys),
               pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint,
               pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, pg_table_size('outbox')
          FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.stage.connect()?.query_one(SQL, &[&self.stage.name])?;
        let number = |place: usize| u64::try_from(row.get::<_, i64>(place)).unwrap_or_default();
        let (usage, files) =
            (self.relay.usage()?, process::files(self.relay.pid().context("the relay does not run")?)?);
        Ok(Sample {
            second: started.elapsed().as_secs(),
            committed: number(0),
            arrived: reader.books().distinct(),
            behind_bytes: number(1),
            retained_bytes: number(2),
            table_bytes: number(3),
            memory_kib: usage.memory.now,
            peak_kib: usage.memory.peak,
            files,
        })
    }

    /// Waits until everything has arrived, stops the programs, and compares.
    fn settle(&mut self, reader: &Reader, samples: &mut Samples) -> Result<()> {
        let mut client = self.stage.connect()?;
        let keys: Vec<(String, i64)> =
            client.query("SELECT key, seq FROM soak_keys", &[])?.iter().map(|row| (row.get(0), row.get(1))).collect();
        let keys: Vec<(String, u64)> =
            keys.into_iter().filter_map(|(key, seq)| Some((key, seq.try_into().ok()?))).collect();
        let arrived = process::wait_until(PATIENCE, "all rows to arrive", || {
            std::thread::sleep(TICK);
            Ok(keys.iter().all(|(key, seq)| reader.highest(key) >= *seq))
        });
        samples.failures.extend(arrived.err().map(|error| format!("{error:#}")));
        self.prune.signal(Signal::TERM)?;
        let codes = [self.relay.terminate(PATIENCE)?.code, process::code(self.prune.wait(PATIENCE)?)];
        if codes != [0, 0] {
            samples.failures.push(format!("relay and prune stopped with {codes:?}"));
        }
        samples.books = reader.books();
        samples.committed = keys.iter().map(|(_, seq)| seq).sum();
        let missing: u64 = keys.iter().map(|(key, seq)| seq.saturating_sub(reader.highest(key))).sum();
        if missing > 0 {
            samples.failures.push(format!("{missing} rows have not arrived"));
        }
        Ok(())
    }
}

/// A share of `span` between a half and one and a half.
fn about(rng: &mut StdRng, span: Duration) -> Duration {
    span.mul_f64(rng.random_range(0.5..1.5))
}

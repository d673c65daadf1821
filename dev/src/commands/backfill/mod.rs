//! `walrelay backfill` of a large table, beside a relay and writers, with either program killed at random.
//!
//! In: how many rows, how many kills, how fast others write. Out: each row with the side that published it, compared with what was
//! committed; rates, beside `COPY … TO STDOUT` of the same rows; the peak memory of both programs.
//!
//! Each side puts a header of its own on its records. The writers begin before the slot is made, so that it is made in the middle of their
//! transactions. The slot is there when the backfill begins, so rows that were committed since may come from both sides.

mod sides;
mod writers;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use walrelay_dev::consume::Meter;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::Postgres;
use walrelay_dev::process;
use walrelay_dev::relay::Relay;
use walrelay_dev::stage::Stage;

use crate::binary::Binary;
use crate::screen::{line, per_second, thousands};
use sides::Sides;
use writers::Writers;

/// How long anything may take.
const HOUR: Duration = Duration::from_hours(1);

/// How long a relay may take to stream again.
const PATIENCE: Duration = Duration::from_mins(2);

/// The pause between two samples of the programs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long writers write before the slot is made.
const AHEAD: Duration = Duration::from_secs(2);

/// Where the rows go, whose route is `order`.
const TOPIC: &str = "backfill.order";

/// Partitions of the topic.
const PARTITIONS: u32 = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Rows that are there before the slot
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Bytes of each payload
    #[arg(long, default_value_t = 100)]
    payload: usize,
    /// Rows that others write each second meanwhile
    #[arg(long, default_value_t = 500)]
    writes: u64,
    /// How often the backfill or the relay is killed
    #[arg(long, default_value_t = 30)]
    kills: usize,
    /// Repeats the moments of the kills [default: random, printed]
    #[arg(long, default_value_t = rand::random_range(1..1_000_000), hide_default_value = true)]
    seed: u64,
    /// Postgres' major version
    #[arg(long, default_value_t = 17)]
    postgres: u32,
}

/// The servers, and what is on them.
struct Ground {
    _postgres: Postgres,
    kafka: Kafka,
    stage: Stage,
}

/// The figures of a run.
#[derive(Debug, Default)]
struct Taken {
    wall: Duration,
    kills: [usize; 2],
    /// The most memory of the backfill and of the relay, in KiB.
    peaks: [u64; 2],
    /// CPU time of the backfill since its last start.
    cpu: Duration,
}

/// Whether no row was lost, and each row from before the slot came from the table.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let binary = arguments.binary.path()?;
    line(&format!(
        "backfill      {} rows, {} kills, {} writes a second, seed {}",
        thousands(arguments.rows),
        arguments.kills,
        arguments.writes,
        arguments.seed
    ));
    let ground = Ground::prepare(arguments, &binary)?;
    let copied = ground.copy()?;
    let rate = |took: Duration| per_second(arguments.rows, took);
    line(&format!("copy          COPY outbox TO STDOUT: {} rows/s", rate(copied)));
    let writers = Writers::start(&ground.stage.source, arguments.writes);
    std::thread::sleep(AHEAD);
    ground.stage.setup()?;
    let mut relay = ground.start("run", "slot", &[])?;
    relay.wait_streaming(PATIENCE)?;
    let mut taken = ground.fill(arguments, &mut relay)?;
    let written = writers.stop()?;
    taken.peaks[1] = ground.finish(relay)?.max(taken.peaks[1]);
    line(&format!(
        "published     {} rows/s with {} kills of the backfill and {} of the relay, beside {} writes a second",
        rate(taken.wall),
        taken.kills[0],
        taken.kills[1],
        written.rate()
    ));
    if taken.kills[0] == 0 {
        let micros = taken.cpu.as_secs_f64() * 1e6 / to_float(arguments.rows);
        line(&format!("cpu           {micros:.1} µs a row of the backfill"));
    }
    line(&format!(
        "memory        peak {} MiB of the backfill, {} MiB of the relay",
        taken.peaks[0] / 1024,
        taken.peaks[1] / 1024
    ));
    let mut sides = Sides::new(arguments.rows, arguments.payload, &written.counts);
    walrelay_dev::consume::read_topic(&ground.kafka.client_config(), TOPIC, |record| sides.see(&record))?;
    let verdict = sides.finish();
    line(&format!("truth         {verdict}"));
    let passed = verdict.is_clean() && (arguments.kills > 0 || verdict.repeated() == 0);
    line(if passed { "PASS" } else { "FAIL" });
    Ok(passed)
}

impl Ground {
    fn prepare(arguments: &Arguments, binary: &Path) -> Result<Self> {
        let postgres = Postgres::with(arguments.postgres, &[("max_wal_size", "4GB")])?;
        let kafka = Kafka::start(&kafka::Options::default())?;
        let stage = Stage::bare(&postgres, &kafka, binary, TOPIC, PARTITIONS, &[])?;
        let mut client = stage.connect()?;
        client.batch_execute(&format!(
            "CREATE TABLE outbox (id bigint, aggregatetype text, aggregateid text, type text, payload text);
             INSERT INTO outbox SELECT n, 'order', 'k' || n % 1000, 'Placed', lpad(n::text, {}, 'payload ')
               FROM generate_series(1, {}) AS n;
             ALTER TABLE outbox ADD PRIMARY KEY (id)",
            arguments.payload, arguments.rows
        ))?;
        client.batch_execute("VACUUM ANALYZE outbox")?;
        client.batch_execute("CHECKPOINT")?;
        Ok(Self { _postgres: postgres, kafka, stage })
    }

    /// How long the rows take to be copied out, by a client that drops them.
    fn copy(&self) -> Result<Duration> {
        let mut client = self.stage.connect()?;
        let started = Instant::now();
        let mut reader = client.copy_out("COPY outbox TO STDOUT")?;
        std::io::copy(&mut reader, &mut std::io::sink())?;
        Ok(started.elapsed())
    }

    fn start(&self, command: &str, side: &str, more: &[&str]) -> Result<Relay> {
        let header = format!("side=={side}");
        self.stage.publisher(command, &[&["--header", &header, "--shutdown-timeout", "30s"], more].concat())
    }

    /// Runs the backfill beside the relay until it is done.
    fn fill(&self, arguments: &Arguments, relay: &mut Relay) -> Result<Taken> {
        let meter = Meter::new(&self.kafka.client_config(), &[TOPIC.to_owned()])?;
        let mut rng = StdRng::seed_from_u64(arguments.seed);
        let first = arguments.rows / 50;
        let mut moments: Vec<u64> = (0..arguments.kills).map(|_| rng.random_range(first..=arguments.rows)).collect();
        moments.sort_unstable_by(|one, other| other.cmp(one));
        let (started, mut taken) = (Instant::now(), Taken::default());
        let mut filling = self.start("backfill", "table", &["--yes"])?;
        let code = loop {
            if let Some(code) = filling.exited()? {
                break code;
            }
            taken.look(&filling, relay);
            ensure!(started.elapsed() < HOUR, "the backfill does not end");
            let count = u64::try_from(meter.count()?)?;
            if moments.pop_if(|moment| *moment <= count).is_some() {
                taken.kill(&mut rng, &mut filling, relay)?;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        taken.wall = started.elapsed();
        ensure!(code == 0, "the backfill ended with {code}:\n{}", process::tail(&filling.log_path(), 15));
        Ok(taken)
    }

    /// Waits until the relay has confirmed everything; its peak memory, in KiB.
    fn finish(&self, mut relay: Relay) -> Result<u64> {
        relay.start_again()?;
        relay.wait_streaming(PATIENCE)?;
        self.stage.wait_confirmed(HOUR)?;
        let peak = relay.usage()?.memory.peak;
        relay.terminate(PATIENCE)?;
        Ok(peak)
    }
}

impl Taken {
    fn look(&mut self, filling: &Relay, relay: &Relay) {
        for (peak, program) in self.peaks.iter_mut().zip([filling, relay]) {
            // A program that has just ended has none.
            *peak = program.usage().map_or(*peak, |usage| usage.memory.peak.max(*peak));
        }
        self.cpu = filling.usage().map_or(self.cpu, |usage| usage.cpu);
    }

    /// Kills the backfill, or once in three times the relay, and starts it again after a moment.
    fn kill(&mut self, rng: &mut StdRng, filling: &mut Relay, relay: &mut Relay) -> Result<()> {
        let which = usize::from(rng.random_range(0..3) == 0);
        let program = if which == 0 { filling } else { relay };
        program.kill9()?;
        std::thread::sleep(Duration::from_millis(rng.random_range(0..800)));
        program.start_again()?;
        *self.kills.get_mut(which).context("there are two")? += 1;
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure that is shown with one decimal")]
const fn to_float(rows: u64) -> f64 {
    rows as f64
}

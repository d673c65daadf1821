//! What `walrelay prune` costs those beside it: writers' commits and the relay's rate, with and without it, and the table afterwards.
//!
//! The table is filled with old rows, which the relay delivers. Then the same writers write twice for the same time, as fast as they
//! can: alone, and while prune deletes the old rows. Ratios say more than figures: the machine is the same in both.
//!
//! Then, with `--churn`, so many rows pass through the table by and by, while prune keeps running beside autovacuum as it comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use rand::SeedableRng as _;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::process::{Guarded, LastWill};
use walrelay_dev::relay::Relay;
use walrelay_dev::shop;
use walrelay_dev::stage::Stage;

use crate::Binary;
use crate::screen::{line, percentile, thousands};

/// How long the backlog may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// Rows of the fill in one transaction.
const FILL: u64 = 20_000;

const INSERT: &str = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
                      SELECT $1::text::uuid, 'order', 'order-' || $2::bigint % 100, 'OrderPlaced',
                             jsonb_build_object('total', '29.99', 'note', repeat('x', 250))";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Old rows to delete
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// Connections that write
    #[arg(long, default_value_t = 2)]
    connections: u64,
    /// How long the writers write alone; beside prune they write as long as it takes
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Rows of one transaction of prune
    #[arg(long, default_value_t = 2000)]
    chunk: u32,
    /// Rows that are written afterwards, while prune deletes each a minute after it came
    #[arg(long, default_value_t = 0)]
    churn: u64,
    /// At most so many of them a second
    #[arg(long, default_value_t = 20_000)]
    churn_rate: u64,
}

/// Rows of one transaction, while rows pass through.
const CHURN: u64 = 1_000;

/// How often the table is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// One stretch of writing.
struct Stretch {
    took: Duration,
    /// Milliseconds of each commit, sorted.
    commits: Vec<f64>,
    /// Records that the relay had acknowledged at the end, and not at the beginning.
    published: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let binary = arguments.binary.path()?;
    let postgres = Postgres::start(&postgres::Options::default())?;
    let kafka = Kafka::start(&kafka::Options { for_benchmarks: true, ..kafka::Options::default() })?;
    let stage = Stage::build(&postgres, &kafka, &binary, "outbox.event", &shop::Options::default())?;
    stage.connect()?.batch_execute(
        "ALTER TABLE outbox ADD created_at timestamptz NOT NULL DEFAULT now();
         CREATE INDEX outbox_created_at ON outbox (created_at);",
    )?;
    stage.setup()?;
    let mut relay = stage.relay(&[])?;
    relay.wait_streaming(PATIENCE)?;
    fill(&stage, arguments.rows)?;
    stage.wait_confirmed(PATIENCE)?;
    stage.connect()?.batch_execute("VACUUM ANALYZE outbox")?;
    line(&format!("{} old rows are delivered", thousands(arguments.rows)));
    table(&stage, "before")?;
    let alone = write(&stage, &relay, arguments.connections, || {
        std::thread::sleep(Duration::from_secs(arguments.seconds));
        Ok(())
    })?;
    let beside = write(&stage, &relay, arguments.connections, || prune(&stage, arguments))?;
    print("alone", &alone);
    print("beside", &beside);
    let ratio = |part: fn(&Stretch) -> f64| part(&beside) / part(&alone).max(f64::MIN_POSITIVE);
    line(&format!(
        "ratios        commit p50 {:.2}, p99 {:.2}; writers' rate {:.2}; relay's rate {:.2}",
        ratio(|stretch| percentile(&stretch.commits, 50.0)),
        ratio(|stretch| percentile(&stretch.commits, 99.0)),
        ratio(Stretch::commit_rate),
        ratio(Stretch::publish_rate)
    ));
    table(&stage, "after")?;
    stage.connect()?.batch_execute("VACUUM outbox")?;
    table(&stage, "vacuumed")?;
    churn(&stage, arguments)?;
    relay.terminate(PATIENCE).map(drop)
}

impl Stretch {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    fn commit_rate(&self) -> f64 {
        self.commits.len() as f64 / self.took.as_secs_f64()
    }

    fn publish_rate(&self) -> f64 {
        self.published / self.took.as_secs_f64()
    }
}

/// Rows that are a day old.
fn fill(stage: &Stage, rows: u64) -> Result<()> {
    let mut client = stage.connect()?;
    let sql = "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'order-' || n % 100, 'OrderPlaced',
                      jsonb_build_object('total', '29.99', 'note', repeat('x', 250)), now() - interval '1 day'
                 FROM generate_series(1, $1::bigint) AS n";
    let mut left = rows;
    while left > 0 {
        let part = left.min(FILL);
        client.execute(sql, &[&i64::try_from(part)?])?;
        left -= part;
    }
    Ok(())
}

fn prune(stage: &Stage, arguments: &Arguments) -> Result<()> {
    let started = Instant::now();
    let output = std::process::Command::new(&stage.binary)
        .args(["prune", "--source", &stage.source, "--publication", &stage.name, "--slot", &stage.name])
        .args(["--table", "outbox", "--older-than", "1h", "--force", "--chunk", &arguments.chunk.to_string()])
        .output()?;
    ensure!(output.status.success(), "prune failed: {}", String::from_utf8_lossy(&output.stderr));
    line(String::from_utf8_lossy(&output.stdout).trim_end());
    let rate = arguments.rows * 1000 / u64::try_from(started.elapsed().as_millis())?.max(1);
    line(&format!("prune         {} rows/s", thousands(rate)));
    Ok(())
}

/// Lets rows pass through the table.
fn churn(stage: &Stage, arguments: &Arguments) -> Result<()> {
    if arguments.churn == 0 {
        return Ok(());
    }
    let mut command = std::process::Command::new(&stage.binary);
    command.args(["prune", "--source", &stage.source, "--publication", &stage.name, "--slot", &stage.name]);
    command
        .args(["--table", "outbox", "--older-than", "1min", "--force", "--every", "5s"])
        .stdout(std::process::Stdio::null());
    let mut prune = Guarded::spawn("prune", &mut command, &LastWill::default())?;
    let mut client = stage.connect()?;
    let (started, mut looked, mut written) = (Instant::now(), Instant::now(), 0);
    while written < arguments.churn {
        client.execute(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'order-' || n % 100, 'OrderPlaced',
                    jsonb_build_object('total', '29.99', 'note', repeat('x', 250))
               FROM generate_series(1, $1::bigint) AS n",
            &[&i64::try_from(CHURN)?],
        )?;
        written += CHURN;
        let due = Duration::from_millis(written * 1000 / arguments.churn_rate);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            table(stage, &format!("{} M", written / 1_000_000))?;
        }
    }
    ensure!(prune.exited()?.is_none(), "prune ended under way: see its log");
    let seconds = started.elapsed().as_secs_f64();
    line(&format!("churn         {} rows passed through in {seconds:.0} s", thousands(written)));
    table(stage, "passed")
}

/// Writes from several connections, one row a transaction, while `during` lasts.
fn write(stage: &Stage, relay: &Relay, connections: u64, during: impl FnOnce() -> Result<()>) -> Result<Stretch> {
    let stop = &AtomicBool::new(false);
    let published = || relay.metric("walrelay_events_total");
    let (before, started) = (published()?, Instant::now());
    let (mut commits, took) = std::thread::scope(|scope| {
        let writers: Vec<_> =
            (0..connections).map(|seed| scope.spawn(move || write_until(stage, stop, started, seed))).collect();
        let outcome = during();
        let took = started.elapsed();
        stop.store(true, Ordering::SeqCst);
        let mut commits = Vec::new();
        for writer in writers {
            commits.extend(writer.join().map_err(|_| anyhow!("a writer panicked"))??);
        }
        outcome.map(|()| (commits, took))
    })?;
    commits.sort_by(f64::total_cmp);
    Ok(Stretch { took, commits, published: published()? - before })
}

fn write_until(stage: &Stage, stop: &AtomicBool, started: Instant, seed: u64) -> Result<Vec<f64>> {
    let mut client = stage.connect()?;
    let insert = client.prepare(INSERT)?;
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed + u64::from(started.elapsed().subsec_nanos()));
    let mut commits = Vec::new();
    let mut number: i64 = 0;
    while !stop.load(Ordering::SeqCst) {
        let (id, begun) = (shop::new_id(&mut rng), Instant::now());
        client.execute(&insert, &[&id, &number])?;
        commits.push(begun.elapsed().as_secs_f64() * 1000.0);
        number += 1;
    }
    Ok(commits)
}

fn print(name: &str, stretch: &Stretch) {
    let at = |percent| percentile(&stretch.commits, percent);
    line(&format!(
        "{name:<13} {:>5.1} s  commits {:>6.0}/s  p50 {:.2} ms  p99 {:.2} ms  max {:.1} ms  relay {:>6.0} records/s",
        stretch.took.as_secs_f64(),
        stretch.commit_rate(),
        at(50.0),
        at(99.0),
        at(100.0),
        stretch.publish_rate()
    ));
}

fn table(stage: &Stage, when: &str) -> Result<()> {
    let sql =
        "SELECT pg_relation_size('outbox') / 1048576, pg_indexes_size('outbox') / 1048576, n_live_tup, n_dead_tup,
                      autovacuum_count FROM pg_stat_user_tables WHERE relname = 'outbox'";
    let row = stage.connect()?.query_one(sql, &[])?;
    let number = |at: usize| row.get::<_, i64>(at);
    line(&format!(
        "table {when:<9} {} MiB, indexes {} MiB, {} rows, {} dead, {} autovacuums",
        number(0),
        number(1),
        number(2),
        number(3),
        number(4)
    ));
    Ok(())
}

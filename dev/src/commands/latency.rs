//! How long a committed row takes to a consumer, at a steady rate of single-row transactions.
//!
//! Three clocks: from the return of COMMIT to the consumer (what an application waits for), from the commit's time in
//! Postgres to the broker's append time (milliseconds only), and what the relay itself says about acknowledgements.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use rand::SeedableRng as _;
use walrelay_dev::consume::{Follower, Record};
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::stage::Stage;
use walrelay_dev::{provision, shop};

use crate::Binary;
use crate::screen::{line, percentile};

const PATIENCE: Duration = Duration::from_mins(1);

/// Rows before the measurement begins, at most: five seconds' worth.
const WARM_UP: u32 = 200;

/// Transactions a second that one writer is asked for.
const PER_WRITER: u32 = 1500;

const INSERT: &str = "INSERT INTO outbox VALUES ($1::text::uuid, 'order', 'order-' || $2::bigint % 100, 'OrderPlaced',
                      jsonb_build_object('total', '29.99', 'note', repeat('x', 250)))";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Transactions a second
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// How long
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Postgres' major version
    #[arg(long, default_value_t = provision::DEFAULT_POSTGRES)]
    postgres: u32,
    /// Further arguments of the relay
    #[arg(last = true)]
    relay: Vec<String>,
}

/// When each row's COMMIT returned.
type Commits = Mutex<HashMap<String, Instant>>;

/// What a steady stream showed.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    /// Transactions a second that were asked for, and that were written.
    pub(crate) rate: u32,
    pub(crate) written_per_second: f64,
    pub(crate) seconds: u32,
    /// How late the writers were at most.
    pub(crate) late: Duration,
    /// From the return of COMMIT to a consumer, in milliseconds, sorted.
    pub(crate) to_consumer: Vec<f64>,
    /// From the commit's time to the broker's append time, in milliseconds, sorted; the broker's clock has whole ones only.
    pub(crate) to_append: Vec<f64>,
    /// The relay's CPU time, as a share of one core.
    pub(crate) cpu_share: f64,
    pub(crate) peak_mib: u64,
    /// The relay's metrics in the end.
    metrics: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let binary = arguments.binary.path()?;
    let postgres = start_postgres(arguments.postgres)?;
    let kafka = Kafka::start(&kafka::Options { for_benchmarks: true, ..kafka::Options::default() })?;
    let measured = measure(&postgres, &kafka, &binary, arguments.rate, arguments.seconds, &arguments.relay)?;
    report(&measured);
    Ok(())
}

/// Writes at a steady rate beside a relay of its own, and follows each row. The server keeps commit timestamps.
pub(crate) fn measure(
    postgres: &Postgres,
    kafka: &Kafka,
    binary: &Path,
    rate: u32,
    seconds: u32,
    relay: &[String],
) -> Result<Measured> {
    let append_time = [("message.timestamp.type", "LogAppendTime")];
    let prefix = format!("steady-{rate}");
    let stage = Stage::build_with(postgres, kafka, binary, &prefix, &shop::Options::default(), &append_time)?;
    stage.setup()?;
    let more: Vec<&str> = relay.iter().map(String::as_str).collect();
    let mut relay = stage.relay(&more)?;
    relay.wait_streaming(PATIENCE)?;

    let warm_up = WARM_UP.min(rate * 5);
    let rows = rate * seconds + warm_up;
    let topics = stage.topics();
    let mut config = stage.client.clone();
    config.set("fetch.wait.max.ms", "100").set("fetch.min.bytes", "1");
    let consumer = Follower::from_end(&config, &topics.iter().map(String::as_str).collect::<Vec<_>>())?;
    let commits = Commits::default();
    let (started, before) = (Instant::now(), relay.usage()?);
    let (arrivals, (late, took)) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_from_all(&stage, rate, rows, &commits));
        let arrivals = gather(&consumer, rows)?;
        let written = writer.join().map_err(|_| anyhow!("a writer panicked"))??;
        anyhow::Ok((arrivals, written))
    })?;
    let usage = relay.usage()?;
    let cpu_share = usage.cpu.saturating_sub(before.cpu).as_secs_f64() / started.elapsed().as_secs_f64();
    let measured = arrivals.get(usize::try_from(warm_up)?..).unwrap_or_default();
    let measured = Measured {
        rate,
        written_per_second: f64::from(rows) / took.as_secs_f64(),
        seconds,
        late,
        to_consumer: to_consumer(&commits, measured)?,
        to_append: to_append(&stage, measured)?,
        cpu_share,
        peak_mib: usage.memory.peak / 1024,
        metrics: relay.get("/metrics")?.body,
    };
    relay.terminate(PATIENCE)?;
    stage.strike(kafka)?;
    Ok(measured)
}

/// A Postgres that keeps commit timestamps. A commit's time is taken before its WAL is on the disk, which takes as long as the disk
/// likes, and is not what is measured here: nothing is waited for.
pub(crate) fn start_postgres(major: u32) -> Result<Postgres> {
    let settings = [("track_commit_timestamp", "on"), ("fsync", "off")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    Postgres::start(&postgres::Options { major, settings, ..postgres::Options::default() })
}

/// Shares the rate among as many writers as it takes; the longest delay behind the clock, and the time it all took.
fn write_from_all(stage: &Stage, rate: u32, rows: u32, commits: &Commits) -> Result<(Duration, Duration)> {
    let writers = rate.div_ceil(PER_WRITER);
    let started = Instant::now();
    let lates = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| scope.spawn(move || write_steadily(stage, (rate, rows), (writer, writers), started, commits)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a writer panicked"))?);
        joined.collect::<Result<Vec<Duration>>>()
    })?;
    Ok((lates.into_iter().max().unwrap_or_default(), started.elapsed()))
}

/// Writes every `writers`-th row by the clock; gives the longest delay behind it.
fn write_steadily(
    stage: &Stage,
    (rate, rows): (u32, u32),
    (writer, writers): (u32, u32),
    started: Instant,
    commits: &Commits,
) -> Result<Duration> {
    let mut client = stage.connect()?;
    let insert = client.prepare(INSERT)?;
    let mut rng = rand::rngs::StdRng::seed_from_u64(writer.into());
    let mut late = Duration::ZERO;
    for number in (writer..rows).step_by(usize::try_from(writers)?) {
        let due = started + Duration::from_secs(1) * number / rate;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        late = late.max(due.elapsed());
        let id = shop::new_id(&mut rng);
        client.execute(&insert, &[&id, &i64::from(number)])?;
        commits.lock().map_err(|_| anyhow!("a thread panicked"))?.insert(id, Instant::now());
    }
    Ok(late)
}

fn gather(consumer: &Follower, rows: u32) -> Result<Vec<(Instant, Record)>> {
    let mut arrivals = Vec::new();
    let mut last_news = Instant::now();
    while arrivals.len() < usize::try_from(rows)? {
        if let Some(record) = consumer.next(Duration::from_millis(100))? {
            last_news = Instant::now();
            arrivals.push((last_news, record));
        } else if last_news.elapsed() > PATIENCE {
            return Err(anyhow!("only {} of {rows} rows arrived", arrivals.len()));
        }
    }
    Ok(arrivals)
}

fn to_consumer(commits: &Commits, arrivals: &[(Instant, Record)]) -> Result<Vec<f64>> {
    let commits = commits.lock().map_err(|_| anyhow!("a thread panicked"))?;
    let times = arrivals.iter().filter_map(|(arrival, record)| {
        // The consumer can be faster than the return of COMMIT to its client.
        let returned = commits.get(record.header("id")?)?;
        Some(arrival.saturating_duration_since(*returned).as_secs_f64() * 1000.0)
    });
    Ok(sorted(times.collect()))
}

fn to_append(stage: &Stage, arrivals: &[(Instant, Record)]) -> Result<Vec<f64>> {
    let commit_times = commit_times(stage)?;
    let times = arrivals.iter().filter_map(|(_, record)| {
        let append = i32::try_from(record.timestamp? % 1_000_000_000).ok()?;
        let commit = commit_times.get(record.header("id")?)?;
        Some((f64::from(append) - commit % 1e9).max(0.0))
    });
    Ok(sorted(times.collect()))
}

fn sorted(mut milliseconds: Vec<f64>) -> Vec<f64> {
    milliseconds.sort_by(f64::total_cmp);
    milliseconds
}

/// Milliseconds since the epoch at which each row was committed.
fn commit_times(stage: &Stage) -> Result<HashMap<String, f64>> {
    let sql = "SELECT id::text, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000)::float8 FROM outbox";
    let rows = stage.connect()?.query(sql, &[]).context("cannot read commit times")?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn report(measured: &Measured) {
    line(&format!(
        "{} single-row transactions a second for {} s; the writers were at most {:.1?} late",
        measured.rate, measured.seconds, measured.late
    ));
    print_percentiles("COMMIT to consumer", &measured.to_consumer);
    print_percentiles("commit time to append time", &measured.to_append);
    line(&format!(
        "relay                      {:.1} % of one core, peak RSS {} MB",
        measured.cpu_share * 100.0,
        measured.peak_mib
    ));
    print_histogram(&measured.metrics);
}

fn print_percentiles(what: &str, milliseconds: &[f64]) {
    let at = |percent| percentile(milliseconds, percent);
    line(&format!(
        "{what:<26} p50 {:>6.2} ms  p90 {:>6.2} ms  p99 {:>6.2} ms  p99.9 {:>6.2} ms  max {:>7.2} ms  ({} rows)",
        at(50.0),
        at(90.0),
        at(99.0),
        at(99.9),
        at(100.0),
        milliseconds.len()
    ));
}

/// The relay's own histogram, as the upper bounds that half and 99 % of the records stay below.
fn print_histogram(metrics: &str) {
    let buckets: Vec<(f64, f64)> = metrics.lines().filter_map(bucket).collect();
    let total = buckets.last().map_or(0.0, |(_, count)| *count);
    let below = |share: f64| buckets.iter().find(|(_, count)| *count >= total * share).map_or(0.0, |(bound, _)| *bound);
    if total > 0.0 {
        line(&format!(
            "relay's own histogram      p50 below {} ms, p99 below {} ms  ({total} records)",
            below(0.5) * 1000.0,
            below(0.99) * 1000.0
        ));
    }
}

/// Reads `walrelay_publish_latency_seconds_bucket{slot="…",le="0.005"} 17`.
fn bucket(sample: &str) -> Option<(f64, f64)> {
    let rest = sample.strip_prefix("walrelay_publish_latency_seconds_bucket{")?;
    let bound = rest.split("le=\"").nth(1)?.split('"').next()?;
    let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
    let count = rest.rsplit_once("} ")?.1.split(' ').next()?.parse().ok()?;
    Some((bound, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_read_with_its_bound() {
        let sample = "walrelay_publish_latency_seconds_bucket{slot=\"a\",le=\"0.005\"} 17";
        assert_eq!(bucket(sample), Some((0.005, 17.0)));
        assert_eq!(bucket(&sample.replace("0.005", "+Inf")), Some((f64::INFINITY, 17.0)));
        assert_eq!(bucket("walrelay_publish_latency_seconds_sum 3"), None);
    }
}

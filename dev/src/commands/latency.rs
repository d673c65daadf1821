//! How long a committed row takes to a consumer, at a steady rate of single-row transactions.
//!
//! Three clocks: from the return of COMMIT to the consumer (what an application waits for), from the commit's time in
//! Postgres to the broker's append time (milliseconds only), and what the relay itself says about acknowledgements.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ::postgres::Client;
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

/// Rows before the measurement begins.
const WARM_UP: u32 = 200;

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

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let binary = arguments.binary.path()?;
    let postgres = start_postgres(arguments.postgres)?;
    let kafka = Kafka::start(&kafka::Options { for_benchmarks: true, ..kafka::Options::default() })?;
    let append_time = [("message.timestamp.type", "LogAppendTime")];
    let stage = Stage::build_with(&postgres, &kafka, &binary, "outbox.event", &shop::Options::default(), &append_time)?;
    stage.setup()?;
    let more: Vec<&str> = arguments.relay.iter().map(String::as_str).collect();
    let mut relay = stage.relay(&more)?;
    relay.wait_streaming(PATIENCE)?;

    let rows = arguments.rate * arguments.seconds + WARM_UP;
    let topics = stage.topics();
    let mut config = stage.client.clone();
    config.set("fetch.wait.max.ms", "100").set("fetch.min.bytes", "1");
    let consumer = Follower::from_end(&config, &topics.iter().map(String::as_str).collect::<Vec<_>>())?;
    let commits = Commits::default();
    let (arrivals, late) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_steadily(&mut stage.connect()?, arguments.rate, rows, &commits));
        let arrivals = gather(&consumer, rows)?;
        let late = writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        anyhow::Ok((arrivals, late))
    })?;
    report(arguments, &stage, &commits, &arrivals, late)?;
    let usage = relay.usage()?;
    line(&format!("relay                      {:?} CPU, peak RSS {} MB", usage.cpu, usage.memory.peak / 1024));
    print_histogram(&relay.get("/metrics")?.body);
    relay.terminate(PATIENCE).map(drop)
}

fn start_postgres(major: u32) -> Result<Postgres> {
    let settings = vec![("track_commit_timestamp".to_owned(), "on".to_owned())];
    Postgres::start(&postgres::Options { major, settings, ..postgres::Options::default() })
}

/// Writes one row at a time by the clock; gives the longest delay behind it.
fn write_steadily(client: &mut Client, rate: u32, rows: u32, commits: &Commits) -> Result<Duration> {
    let insert = client.prepare(INSERT)?;
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    let (started, mut late) = (Instant::now(), Duration::ZERO);
    for number in 0..rows {
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

fn report(
    arguments: &Arguments,
    stage: &Stage,
    commits: &Commits,
    arrivals: &[(Instant, Record)],
    late: Duration,
) -> Result<()> {
    line(&format!(
        "{} single-row transactions a second for {} s; the writer was at most {late:.1?} late",
        arguments.rate, arguments.seconds
    ));
    let commits = commits.lock().map_err(|_| anyhow!("a thread panicked"))?;
    let measured = arrivals.get(usize::try_from(WARM_UP)?..).unwrap_or_default();
    let to_consumer = measured.iter().filter_map(|(arrival, record)| {
        // The consumer can be faster than the return of COMMIT to its client.
        let returned = commits.get(record.header("id")?)?;
        Some(arrival.saturating_duration_since(*returned).as_secs_f64() * 1000.0)
    });
    print_percentiles("COMMIT to consumer", to_consumer.collect());
    let commit_times = commit_times(stage)?;
    let to_append = measured.iter().filter_map(|(_, record)| {
        let append = i32::try_from(record.timestamp? % 1_000_000_000).ok()?;
        let commit = commit_times.get(record.header("id")?)?;
        Some((f64::from(append) - commit % 1e9).max(0.0))
    });
    print_percentiles("commit time to append time", to_append.collect());
    Ok(())
}

/// Milliseconds since the epoch at which each row was committed.
fn commit_times(stage: &Stage) -> Result<HashMap<String, f64>> {
    let sql = "SELECT id::text, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000)::float8 FROM outbox";
    let rows = stage.connect()?.query(sql, &[]).context("cannot read commit times")?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn print_percentiles(what: &str, mut milliseconds: Vec<f64>) {
    milliseconds.sort_by(f64::total_cmp);
    let at = |percent| percentile(&milliseconds, percent);
    line(&format!(
        "{what:<26} p50 {:>6.2} ms  p90 {:>6.2} ms  p99 {:>6.2} ms  max {:>7.2} ms  ({} rows)",
        at(50.0),
        at(90.0),
        at(99.0),
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

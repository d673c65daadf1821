//! How fast 1, 2, 4 relays publish one backlog that they share, and what decoding the same WAL several times costs.
//!
//! In: how many shards, how many rows. Out: a table: rows a second, CPU time of each walsender and of each relay. Every set has slots of
//! its own that are older than the backlog, so each measurement reads the same WAL. `0` stands for one slot without row filters.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use walrelay_dev::arrivals::Arrivals;
use walrelay_dev::consume;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::Postgres;
use walrelay_dev::process;
use walrelay_dev::relay::{self, Relay};
use walrelay_dev::stage::Stage;

use crate::binary::Binary;
use crate::screen::{line, per_second};

/// How long one measurement may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// Connections that write the backlog.
const WRITERS: u64 = 4;

/// Partitions of each topic.
const PARTITIONS: u32 = 12;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Numbers of shards; 0: one slot without row filters
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,4")]
    shards: Vec<u8>,
    /// Rows of the backlog
    #[arg(long, default_value_t = 400_000)]
    rows: u64,
    /// Bytes of each payload
    #[arg(long, default_value_t = 300)]
    payload: usize,
    /// How often each is measured, after one time that does not count
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Postgres' major version, from 15
    #[arg(long, default_value_t = 17)]
    postgres: u32,
}

/// One number of shards, measured once.
#[derive(Debug, Clone, Default)]
struct Run {
    wall: Duration,
    /// Of each walsender.
    walsenders: Vec<Duration>,
    relays: Duration,
}

/// Whether each row was published once.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let postgres = Postgres::with(arguments.postgres, &[("max_wal_size", "4GB")])?;
    let kafka = Kafka::start(&kafka::Options::default())?;
    let to = format!("kafka://{}", kafka.brokers());
    let arrivals = Arrivals::Kafka(Box::new(kafka.client_config()));
    let stage = Stage::empty(&postgres, &to, arrivals, &arguments.binary.path()?, "")?;
    let ground = Ground { kafka, stage };
    ground.stage.connect()?.batch_execute(
        "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)",
    )?;
    let sets: Vec<(u8, String)> = (0..=arguments.runs)
        .flat_map(|round| arguments.shards.iter().map(move |count| (*count, format!("s{round}_{count}"))))
        .collect();
    for (count, name) in &sets {
        ground.prepare(*count, name)?;
    }
    ground.write(arguments)?;
    let mut runs: Vec<(u8, Run)> = Vec::new();
    for (at, (count, name)) in sets.iter().enumerate() {
        let run = ground.measure(*count, name, arguments.rows)?;
        // The first of each warms up the broker and the files' cache.
        if at >= arguments.shards.len() {
            runs.push((*count, run));
        }
    }
    for text in table(&arguments.shards, &runs, arguments.rows) {
        line(&text);
    }
    Ok(true)
}

/// Kafka, and the database.
struct Ground {
    kafka: Kafka,
    stage: Stage,
}

impl Ground {
    /// The stage of a set, whose slots, publication and topic have its name.
    fn of_set(&self, name: &str) -> Stage {
        let mut stage = self.stage.clone();
        (stage.name, stage.topic_prefix) = (name.to_owned(), name.to_owned());
        stage
    }

    fn prepare(&self, count: u8, name: &str) -> Result<()> {
        let shards = count.to_string();
        let mut setup = vec!["--apply", "--table", "outbox"];
        if count > 0 {
            setup.extend(["--shards", &shards]);
        }
        relay::run_well(&self.stage.binary, &self.of_set(name).arguments("setup", &setup))?;
        self.kafka.create_topic(&format!("{name}.order"), PARTITIONS, &[])
    }

    /// Ten rows a transaction.
    fn write(&self, arguments: &Arguments) -> Result<()> {
        let each = arguments.rows.div_ceil(WRITERS * 10);
        let payload = arguments.payload.saturating_sub(24);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let mut client = self.stage.connect()?;
                let sql = format!(
                    "INSERT INTO outbox SELECT '{writer}.' || $1::bigint * 10 + n, 'order', 'k' || ($1::bigint * 10 + n) % 1000, 'Placed', \
                       jsonb_build_object('seq', n, 'text', repeat('x', {payload})) FROM generate_series(1, 10) AS n"
                );
                Ok(std::thread::spawn(move || -> Result<()> {
                    client.batch_execute("SET synchronous_commit = off")?;
                    let insert = client.prepare(&sql)?;
                    for transaction in 0..i64::try_from(each)? {
                        client.execute(&insert, &[&transaction])?;
                    }
                    Ok(())
                }))
            })
            .collect::<Result<_>>()?;
        for writer in writers {
            writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        self.stage.connect()?.batch_execute("CHECKPOINT")?;
        Ok(())
    }

    /// Starts all relays of a set, and waits until each has confirmed the end.
    fn measure(&self, count: u8, name: &str, rows: u64) -> Result<Run> {
        let mut client = self.stage.connect()?;
        let slots = if count == 0 { name.to_owned() } else { format!("{name}\\_%\\_of\\_{count}") };
        let end: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[])?.get(0);
        let started = Instant::now();
        let mut relays = self.relays(count, name)?;
        let sql = "SELECT count(*) FILTER (WHERE confirmed_flush_lsn >= $1::text::pg_lsn), array_remove(array_agg(active_pid), NULL)
                     FROM pg_replication_slots WHERE slot_name LIKE $2";
        let (all, mut walsenders) = (relays.len(), Vec::new());
        process::wait_until(PATIENCE, "the backlog to be confirmed", || {
            std::thread::sleep(Duration::from_millis(20));
            let row = client.query_one(sql, &[&end, &slots])?;
            walsenders = row.get::<_, Option<Vec<i32>>>(1).unwrap_or_default();
            Ok(usize::try_from(row.get::<_, i64>(0))? == all)
        })?;
        let wall = started.elapsed();
        let cpu = |pid: &i32| process::cpu_time(u32::try_from(*pid)?);
        let walsenders: Vec<Duration> = walsenders.iter().map(cpu).collect::<Result<_>>()?;
        ensure!(walsenders.len() == all, "a walsender of {name} has ended");
        let mut taken = Duration::ZERO;
        for relay in &mut relays {
            taken += relay.terminate(PATIENCE)?.cpu;
        }
        let published = u64::try_from(consume::count(&self.kafka.client_config(), &format!("{name}.order"))?)?;
        ensure!(published == rows, "{name} published {published} of {rows} rows");
        self.kafka.delete_topics(&[&format!("{name}.order")])?;
        line(&format!("  {name:<8} {:>9} rows/s, walsenders {}", per_second(rows, wall), seconds(&walsenders)));
        Ok(Run { wall, walsenders, relays: taken })
    }

    fn relays(&self, count: u8, name: &str) -> Result<Vec<Relay>> {
        let stage = self.of_set(name);
        let start = |shard: Option<u8>| {
            let shard = shard.map(|index| format!("{index}/{count}"));
            let shard = shard.iter().flat_map(|shard| ["--shard", shard]);
            stage.relay(&["--table", "outbox"].into_iter().chain(shard).collect::<Vec<_>>())
        };
        if count == 0 { Ok(vec![start(None)?]) } else { (0..count).map(|index| start(Some(index))).collect() }
    }
}

/// The medians, as a table.
fn table(shards: &[u8], runs: &[(u8, Run)], rows: u64) -> Vec<String> {
    let mut lines = vec![
        "| shards | rows/s | CPU-s per 1 M rows: all walsenders | each | all relays |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    for count in shards {
        let mut of: Vec<&Run> = runs.iter().filter(|(of, _)| of == count).map(|(_, run)| run).collect();
        of.sort_by_key(|run| run.wall);
        let (Some(median), Some(best), Some(worst)) = (of.get(of.len() / 2), of.first(), of.last()) else { continue };
        let per_million =
            |time: Duration| time.as_secs_f64() * 1e6 / f64::from(u32::try_from(rows).unwrap_or(u32::MAX));
        let all: Duration = median.walsenders.iter().sum();
        let each = per_million(all) / f64::from(u32::try_from(median.walsenders.len()).unwrap_or(1));
        lines.push(format!(
            "| {} | {} ({}–{}) | {:.1} | {each:.1} | {:.1} |",
            if *count == 0 { "one slot, no filter".to_owned() } else { count.to_string() },
            per_second(rows, median.wall),
            per_second(rows, worst.wall),
            per_second(rows, best.wall),
            per_million(all),
            per_million(median.relays)
        ));
    }
    lines
}

fn seconds(times: &[Duration]) -> String {
    times.iter().map(|time| format!("{:.2} s", time.as_secs_f64())).collect::<Vec<_>>().join(", ")
}

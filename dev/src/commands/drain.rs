//! How fast a backlog is drained.
//!
//! One table is filled once (rows of about 300 B jsonb, some rows to a transaction) behind a base slot. Each run copies
//! that slot, so that every subject reads the same WAL from the same place: `pg_recvlogical -f /dev/null --endpos` as
//! the reference, walrelay, and if wanted another program. Runs alternate, because a machine's speed drifts.
//!
//! A subject that writes to Kafka is done when its topic holds every row, by the brokers' own offsets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ::postgres::Client;
use anyhow::{Context as _, Result, bail};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rustix::process::Signal;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::process::{self, Guarded, LastWill};
use walrelay_dev::{consume, provision, run_dir};

use crate::Binary;
use crate::screen::{line, percentile, thousands};

/// How long one run may take.
const LONGEST_RUN: Duration = Duration::from_mins(10);

/// How often a subject is looked at.
const LOOK: Duration = Duration::from_millis(20);

const TABLES: &str = "
CREATE TABLE outbox (
    id uuid NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE PUBLICATION drain FOR TABLE outbox WITH (publish = 'insert');
";

/// Fills the table; `{rows}` in transactions of `{batch}`. The payload is about 300 B as text.
const FILL: &str = "
DO $$
BEGIN
    FOR n IN 0 .. {rows} / {batch} - 1 LOOP
        INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', 'order-' || (n * {batch} + i) % 1000, 'OrderPlaced',
            jsonb_build_object('order', n * {batch} + i, 'customer', md5(n::text), 'total', '29.99',
                'lines', jsonb_build_array(md5(i::text), md5((n + i)::text), md5((n - i)::text)), 'note', repeat('x', 86))
        FROM generate_series(0, {batch} - 1) AS i;
        COMMIT;
    END LOOP;
END
$$";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Rows in the backlog
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Rows to a transaction
    #[arg(long, default_value_t = 10)]
    batch: u64,
    /// Runs of each subject
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// How Postgres is reached
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,socket")]
    over: Vec<Way>,
    /// Partitions of the topic
    #[arg(long, default_value_t = 12)]
    partitions: u32,
    /// Records written to Kafka before, because a fresh Java is slow
    #[arg(long, default_value_t = 3_000_000)]
    warm_up: u64,
    /// The reference [default: `pg_recvlogical` of the path, if there is one]
    #[arg(long, default_value = "pg_recvlogical")]
    pg_recvlogical: PathBuf,
    /// Another program to measure, with `{source}`, `{slot}`, `{publication}`, `{brokers}` and `{topic}` filled in
    #[arg(long, value_name = "COMMAND")]
    other: Option<String>,
    /// Postgres' major version
    #[arg(long, default_value_t = provision::DEFAULT_POSTGRES)]
    postgres: u32,
    /// Further arguments of the relay
    #[arg(last = true)]
    relay: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    Tcp,
    Socket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    PgRecvlogical,
    Walrelay,
    Other,
}

/// What one run took.
#[derive(Debug, Clone, Copy)]
struct Cost {
    seconds: f64,
    cpu: Duration,
    walsender_cpu: Duration,
    peak_kib: u64,
}

/// What all runs share.
struct Bench<'a> {
    arguments: &'a Arguments,
    binary: PathBuf,
    postgres: Postgres,
    kafka: Kafka,
    end: String,
    database: &'static str,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let binary = arguments.binary.path()?;
    let bench = Bench::prepare(arguments, binary)?;
    let mut costs: BTreeMap<String, Vec<Cost>> = BTreeMap::new();
    for number in 1..=arguments.runs {
        for (subject, way) in bench.subjects() {
            let cost = bench.measure(subject, way, number)?;
            let name = format!("{subject:?} over {way:?}").to_lowercase();
            line(&format!("  run {number}  {}", bench.describe(&name, &cost)));
            costs.entry(name).or_default().push(cost);
        }
    }
    line("medians");
    for (name, costs) in &costs {
        line(&format!("         {}", bench.describe(name, &median(costs))));
    }
    Ok(())
}

impl<'a> Bench<'a> {
    fn prepare(arguments: &'a Arguments, binary: PathBuf) -> Result<Self> {
        let kafka_options =
            kafka::Options { partitions: arguments.partitions, for_benchmarks: true, ..kafka::Options::default() };
        let kafka = Kafka::start(&kafka_options)?;
        let settings = [("max_wal_size", "8GB"), ("checkpoint_timeout", "1h"), ("synchronous_commit", "off")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        line(&format!("Postgres {} with {settings:?}, Kafka with 1 GiB of heap", arguments.postgres));
        let postgres = Postgres::start(&postgres::Options {
            major: arguments.postgres,
            settings,
            ..postgres::Options::default()
        })?;
        let end = fill(&mut postgres.connect(None)?, arguments)?;
        warm_up(&kafka, arguments.warm_up)?;
        Ok(Self { arguments, binary, postgres, kafka, end, database: "postgres" })
    }

    fn subjects(&self) -> Vec<(Subject, Way)> {
        let mut subjects = vec![Subject::Walrelay];
        if Command::new(&self.arguments.pg_recvlogical).arg("--version").stdout(Stdio::null()).status().is_ok() {
            subjects.insert(0, Subject::PgRecvlogical);
        }
        if self.arguments.other.is_some() {
            subjects.push(Subject::Other);
        }
        let ways = &self.arguments.over;
        ways.iter().flat_map(|way| subjects.iter().map(|subject| (*subject, *way))).collect()
    }

    fn measure(&self, subject: Subject, way: Way, number: u32) -> Result<Cost> {
        let slot = format!("run_{number}_{subject:?}_{way:?}").to_lowercase();
        let topic = slot.replace('_', "-");
        let mut client = self.postgres.connect(None)?;
        client.execute("SELECT pg_copy_logical_replication_slot('base', $1)", &[&slot])?;
        if subject != Subject::PgRecvlogical {
            self.kafka.create_topic(&topic, self.arguments.partitions, &[])?;
        }
        let cost = self.run_to_end(subject, way, &slot, &topic)?;
        let drop_slot = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
                         WHERE slot_name = $1 AND NOT active";
        process::wait_until(Duration::from_secs(10), "the slot to be released", || {
            Ok(client.execute(drop_slot, &[&slot])? == 1)
        })?;
        if subject != Subject::PgRecvlogical {
            self.kafka.delete_topic(&topic)?;
        }
        Ok(cost)
    }

    fn run_to_end(&self, subject: Subject, way: Way, slot: &str, topic: &str) -> Result<Cost> {
        let mut command = self.command(subject, way, slot, topic)?;
        let folder = provision::dev_dir().join("drain-logs");
        std::fs::create_dir_all(&folder)?;
        let log = folder.join(format!("{slot}.log"));
        let file = std::fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let writes = subject != Subject::PgRecvlogical;
        let meter = writes.then(|| consume::Meter::new(&self.kafka.client_config(), topic)).transpose()?;
        let started = Instant::now();
        let mut process = Guarded::spawn(slot, &mut command, &LastWill::default())?;
        let mut watch = Watch::new(&self.postgres, slot);
        let done = |process: &Guarded| -> Result<bool> {
            match &meter {
                Some(meter) if process::is_alive(process.pid()) => {
                    Ok(u64::try_from(meter.count()?)? >= self.arguments.rows)
                }
                _ => Ok(!process::is_alive(process.pid())),
            }
        };
        while !done(&process)? {
            if started.elapsed() > LONGEST_RUN {
                bail!("{slot} is not done after {LONGEST_RUN:?}:\n{}", process::tail(&log, 15));
            }
            watch.look(process.pid());
            std::thread::sleep(LOOK);
        }
        let seconds = started.elapsed().as_secs_f64();
        watch.look(process.pid());
        let ended_by_itself = !process::is_alive(process.pid());
        if ended_by_itself == writes {
            bail!("{slot} ended before it was done:\n{}", process::tail(&log, 15));
        }
        process.signal(Signal::TERM)?;
        process.wait(LONGEST_RUN)?;
        Ok(Cost { seconds, cpu: process.cpu()?, walsender_cpu: watch.walsender_cpu, peak_kib: watch.peak_kib })
    }

    fn command(&self, subject: Subject, way: Way, slot: &str, topic: &str) -> Result<Command> {
        let source = match way {
            Way::Tcp => self.postgres.url(self.database),
            Way::Socket => self.postgres.socket_url(self.database)?,
        };
        Ok(match subject {
            Subject::PgRecvlogical => self.pg_recvlogical(&source, slot),
            Subject::Walrelay => self.walrelay(&source, slot, topic)?,
            Subject::Other => self.other(&source, slot, topic)?,
        })
    }

    fn pg_recvlogical(&self, source: &str, slot: &str) -> Command {
        let mut command = Command::new(&self.arguments.pg_recvlogical);
        command.args(["-d", source, "-S", slot, "--start", "-f", "/dev/null", "--endpos", &self.end]);
        command.args(["-o", "proto_version=1", "-o", "publication_names=drain"]);
        command
    }

    fn walrelay(&self, source: &str, slot: &str, topic: &str) -> Result<Command> {
        let mut command = Command::new(&self.binary);
        let brokers = self.kafka.brokers();
        command.args(["run", "--source", source, "--slot", slot, "--publication", "drain"]);
        command.args(["--brokers", &brokers, "--topic", topic, "--log-format", "text"]);
        command.arg(format!("--http=127.0.0.1:{}", run_dir::free_port()?)).args(&self.arguments.relay);
        Ok(command)
    }

    fn other(&self, source: &str, slot: &str, topic: &str) -> Result<Command> {
        let words = self.arguments.other.as_deref().unwrap_or_default();
        let brokers = self.kafka.brokers();
        let places =
            [("source", source), ("slot", slot), ("publication", "drain"), ("brokers", &brokers), ("topic", topic)];
        let filled = |word: &str| {
            places.iter().fold(word.to_owned(), |word, (name, value)| word.replace(&format!("{{{name}}}"), value))
        };
        let mut words = words.split_whitespace().map(filled);
        let program = words.next().context("--other names no program")?;
        let mut command = Command::new(Path::new(&program));
        command.args(words);
        Ok(command)
    }

    fn describe(&self, name: &str, cost: &Cost) -> String {
        // Rows are far below 2^52.
        #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
        let rows = self.arguments.rows as f64;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate")]
        let rate = (rows / cost.seconds) as u64;
        let per_million = |cpu: Duration| cpu.as_secs_f64() * 1e6 / rows;
        format!(
            "{name:<24} {:>9} rows/s  {:>6.2} CPU-s/M  peak RSS {:>4} MB  walsender {:>6.2} CPU-s/M  ({:.2} s)",
            thousands(rate),
            per_million(cost.cpu),
            cost.peak_kib / 1024,
            per_million(cost.walsender_cpu),
            cost.seconds
        )
    }
}

/// What can only be seen while it runs.
struct Watch<'a> {
    postgres: &'a Postgres,
    slot: &'a str,
    client: Option<Client>,
    walsender: Option<u32>,
    walsender_cpu: Duration,
    peak_kib: u64,
}

impl<'a> Watch<'a> {
    fn new(postgres: &'a Postgres, slot: &'a str) -> Self {
        Self { postgres, slot, client: None, walsender: None, walsender_cpu: Duration::ZERO, peak_kib: 0 }
    }

    fn look(&mut self, pid: u32) {
        self.peak_kib = process::memory_kib(pid).map_or(self.peak_kib, |memory| memory.peak);
        if self.walsender.is_none() {
            self.walsender = self.find_walsender();
        }
        if let Some(cpu) = self.walsender.and_then(|walsender| process::cpu_time(walsender).ok()) {
            self.walsender_cpu = cpu;
        }
    }

    fn find_walsender(&mut self) -> Option<u32> {
        if self.client.is_none() {
            self.client = self.postgres.connect(None).ok();
        }
        let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.client.as_mut()?.query_one(sql, &[&self.slot]).ok()?;
        u32::try_from(row.get::<_, Option<i32>>(0)?).ok()
    }
}

/// Makes table, publication, base slot and backlog; gives the position behind it.
fn fill(client: &mut Client, arguments: &Arguments) -> Result<String> {
    let started = Instant::now();
    client.batch_execute(TABLES)?;
    client.batch_execute("SELECT pg_create_logical_replication_slot('base', 'pgoutput')")?;
    let fill = FILL.replace("{rows}", &arguments.rows.to_string()).replace("{batch}", &arguments.batch.to_string());
    client.batch_execute(&fill).context("cannot fill the table")?;
    let row = client.query_one(
        "SELECT pg_current_wal_insert_lsn()::text, count(*), avg(length(payload::text))::int FROM outbox",
        &[],
    )?;
    let (end, count, length): (String, i64, i32) = (row.get(0), row.get(1), row.get(2));
    line(&format!(
        "{count} rows of {length} B, {} to a transaction, written in {:.0?}",
        arguments.batch,
        started.elapsed()
    ));
    Ok(end)
}

/// Lets Kafka compile what it will need.
fn warm_up(kafka: &Kafka, records: u64) -> Result<()> {
    if records == 0 {
        return Ok(());
    }
    let started = Instant::now();
    kafka.create_topic("warm-up", 12, &[])?;
    let mut config = kafka.client_config();
    config.set("linger.ms", "5").set("enable.idempotence", "true").set("queue.buffering.max.messages", "200000");
    let producer: BaseProducer = config.create()?;
    let payload = "x".repeat(300);
    for number in 0..records {
        let key = (number % 1000).to_string();
        let mut record = BaseRecord::to("warm-up").key(&key).payload(&payload);
        while let Err((_, back)) = producer.send(record) {
            producer.poll(Duration::from_millis(10));
            record = back;
        }
        if number.is_multiple_of(1000) {
            producer.poll(Duration::ZERO);
        }
    }
    producer.flush(Duration::from_mins(1))?;
    kafka.delete_topic("warm-up")?;
    line(&format!("Kafka warmed up with {} records in {:.0?}", thousands(records), started.elapsed()));
    Ok(())
}

fn median(costs: &[Cost]) -> Cost {
    let middle = |of: fn(&Cost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        percentile(&values, 50.0)
    };
    Cost {
        seconds: middle(|cost| cost.seconds),
        cpu: Duration::from_secs_f64(middle(|cost| cost.cpu.as_secs_f64())),
        walsender_cpu: Duration::from_secs_f64(middle(|cost| cost.walsender_cpu.as_secs_f64())),
        peak_kib: costs.iter().map(|cost| cost.peak_kib).max().unwrap_or_default(),
    }
}

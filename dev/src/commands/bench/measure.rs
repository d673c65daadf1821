//! One run of one subject, from its own copy of the slot.
//!
//! The rate counts from the first record that the brokers have to the last, so that nobody is charged for its start; that is a
//! figure of its own. `pg_recvlogical`, which writes nothing, counts from the walsender's appearance. CPU times are of the
//! same span.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::postgres::Client;
use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use serde::Serialize;
use walrelay_dev::process::{self, Guarded, LastWill};

use super::case::Reading;
use super::ground::{Ground, Job, Loaded};
use super::subject::{Name, Subjects};
use super::table::whole;
use super::verify::{self, Verdict};

/// How long one run may take.
const LONGEST_RUN: Duration = Duration::from_mins(10);

/// The pause between two samples. Before the subject streams, a sample is only a query to Postgres.
const LOOK: Duration = Duration::from_millis(20);
const FIRST_LOOKS: Duration = Duration::from_millis(2);

/// A sample of a thousand partitions keeps the broker busy. So the pause is this many times as long as the sample before it took, and
/// no longer than [`LOOK_LONGEST`].
const LOOK_SHARE: u32 = 10;
const LOOK_LONGEST: Duration = Duration::from_millis(250);

/// How long a subject may take to stop when asked; a Java takes some seconds.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// The figures of one run. A run that lost a row has no rate.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Run {
    /// From the first record (see above) to the last.
    pub(super) seconds: f64,
    pub(super) rows_per_second: Option<f64>,
    /// Of key and value.
    pub(super) megabytes_per_second: Option<f64>,
    /// CPU-seconds per million rows.
    #[serde(rename = "tool_cpu_seconds_per_million")]
    pub(super) tool_cpu: f64,
    #[serde(rename = "walsender_cpu_seconds_per_million")]
    pub(super) walsender_cpu: f64,
    #[serde(rename = "broker_cpu_seconds_per_million")]
    pub(super) broker_cpu: f64,
    pub(super) peak_mib: f64,
    /// From the start of the process until the slot is being read; `None`: it was over before it was seen.
    #[serde(rename = "start_to_streaming_seconds")]
    pub(super) streaming_seconds: Option<f64>,
    /// From the start of the process to the first record.
    #[serde(rename = "start_to_first_record_seconds")]
    pub(super) first_record_seconds: f64,
    /// WAL not confirmed when the last record was there.
    #[serde(rename = "wal_behind_bytes")]
    pub(super) behind_bytes: i64,
    #[serde(flatten)]
    pub(super) verdict: Verdict,
}

impl Run {
    /// Rows a second; 0 if it lost something.
    pub(super) fn rate(&self) -> f64 {
        self.rows_per_second.unwrap_or_default()
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.verdict.is_true() {
            return write!(f, "no rate, {:?}", self.verdict);
        }
        write!(
            f,
            "{:>9} rows/s  CPU-s/M: tool {:>5.2} walsender {:>5.2} broker {:>5.2}  peak {:>4.0} MB  first record {:>5.2} s  ({:.2} s)",
            whole(self.rate()),
            self.tool_cpu,
            self.walsender_cpu,
            self.broker_cpu,
            self.peak_mib,
            self.first_record_seconds,
            self.seconds
        )
    }
}

/// A sample of a run.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    rows: u64,
    tool: Duration,
    walsender: Duration,
    broker: Duration,
}

/// What a sample is taken with.
struct Watch<'a> {
    ground: &'a Ground,
    reading: &'a Reading,
    slot: &'a str,
    client: Client,
    walsender: Option<u32>,
    walsender_cpu: Duration,
    tool_cpu: Duration,
    peak_kib: u64,
}

pub(super) fn measure(
    ground: &Ground,
    subjects: &Subjects,
    name: Name,
    loaded: &Loaded,
    reading: &Reading,
    number: usize,
) -> Result<Run> {
    let run = |job: &Job<'_>, topics: &[String]| run_to_end(subjects, name, job, topics);
    let (run, verdict) = on_a_copy(ground, name, loaded, reading, number, run)?;
    let rate = |rate: Option<f64>| rate.filter(|_| verdict.is_true());
    let (rows_per_second, megabytes_per_second) = (rate(run.rows_per_second), rate(run.megabytes_per_second));
    Ok(Run { rows_per_second, megabytes_per_second, verdict, ..run })
}

/// Does something with a subject's own copy of the slot and topics of its own, and compares what the topics hold in the end.
pub(super) fn on_a_copy<T>(
    ground: &Ground,
    name: Name,
    loaded: &Loaded,
    reading: &Reading,
    number: usize,
    run: impl FnOnce(&Job<'_>, &[String]) -> Result<T>,
) -> Result<(T, Verdict)> {
    let slot = format!("run_{number}");
    let topic = ground.topic("bench", number);
    let topics = topics(&topic, loaded.load.topics);
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let mut client = ground.postgres.connect(Some(&loaded.database))?;
    client.execute("SELECT pg_copy_logical_replication_slot('base', $1)", &[&slot])?;
    if name.writes() {
        let settings = [("max.message.bytes", "2000000"), ("segment.index.bytes", index_bytes(loaded.load.topics))];
        ground.create_topics(&names, reading.partitions, &settings)?;
    }
    ground.move_away(reading);
    let folder = ground.folder.join("run");
    empty(&folder)?;
    let job = Job { ground, loaded, reading, slot: &slot, topic: &topic, folder };
    let measured = run(&job, &topics).and_then(|run| {
        let writes = name.writes().then(|| verify::verify(ground, &topics, loaded, reading)).transpose()?;
        Ok((run, writes.unwrap_or_default()))
    });
    drop_slot(&mut client, &slot)?;
    if name.writes() {
        ground.remove_topics(&names, reading)?;
    }
    measured
}

/// The names of a run's topics, in the order of the routes.
pub(super) fn topics(topic: &str, count: u64) -> Vec<String> {
    match count {
        1 => vec![topic.to_owned()],
        _ => (0..count).map(|number| format!("{topic}.t{number}")).collect(),
    }
}

/// Kafka maps two index files of 10 MiB into memory for each partition, and a kernel that reads ahead fills them with zeroes in the
/// course of a run: with a thousand topics that took seven tenths of the broker's time. Theirs are large enough for 85 MB each.
pub(super) const fn index_bytes(topics: u64) -> &'static str {
    if topics == 1 { "10485760" } else { "262144" }
}

/// Makes the folder, with nothing in it.
pub(super) fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(std::fs::create_dir_all(folder)?)
}

pub(super) fn drop_slot(client: &mut Client, slot: &str) -> Result<()> {
    let sql =
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active";
    process::wait_until(Duration::from_secs(10), "the slot to be released", || Ok(client.execute(sql, &[&slot])? == 1))
}

fn run_to_end(subjects: &Subjects, name: Name, job: &Job<'_>, topics: &[String]) -> Result<Run> {
    let mut gauge = name.writes().then(|| job.ground.arrivals(job.reading).gauge(topics)).transpose()?;
    let opened = gauge.as_mut().map_or(Ok(0), |gauge| gauge.count())?;
    let mut watch = Watch::new(job)?;
    let started = Instant::now();
    let (mut process, log) = spawn(subjects, name, job)?;
    while !watch.sees_walsender()? && process::is_alive(process.pid()) && started.elapsed() < LONGEST_RUN {
        std::thread::sleep(FIRST_LOOKS);
    }
    let streaming_seconds = watch.walsender.map(|_| started.elapsed().as_secs_f64());
    let (mut first, rows) = (None::<Moment>, job.loaded.load.rows);
    let last = loop {
        let alive = process::is_alive(process.pid());
        let looked = Instant::now();
        let written = gauge.as_mut().map(|gauge| gauge.count()).transpose()?;
        let written = written.map(|records| records.saturating_sub(opened));
        let moment = watch.look(&mut process, written.unwrap_or(if alive { 0 } else { rows }))?;
        if first.is_none() && (moment.rows > 0 || (gauge.is_none() && watch.walsender.is_some())) {
            first = Some(moment);
        }
        if moment.rows >= rows {
            break moment;
        }
        if !alive {
            bail!("it ended before it was done:\n{}", process::tail(&log, 15));
        }
        if started.elapsed() > LONGEST_RUN {
            bail!(
                "it is not done after {LONGEST_RUN:?} ({} of {rows} rows):\n{}",
                moment.rows,
                process::tail(&log, 15)
            );
        }
        std::thread::sleep((looked.elapsed() * LOOK_SHARE).clamp(LOOK, LOOK_LONGEST));
    };
    let behind_bytes = behind(&mut watch.client, job)?;
    end(&mut process)?;
    let first = first.unwrap_or(last);
    let run = watch.run(&first, &last, started, job.loaded, behind_bytes);
    Ok(Run { streaming_seconds, ..run })
}

/// Starts a subject, whose output is appended to `<slot>.log`.
pub(super) fn spawn(subjects: &Subjects, name: Name, job: &Job<'_>) -> Result<(Guarded, PathBuf)> {
    let mut command = subjects.command(name, job)?;
    let log = job.ground.folder.join(format!("{}.log", job.slot));
    let file = File::options().create(true).append(true).open(&log)?;
    command.stdout(file.try_clone()?).stderr(file);
    Ok((Guarded::spawn(job.slot, &mut command, &LastWill::default())?, log))
}

/// Starts a subject and waits until it reads the slot.
pub(super) fn started(subjects: &Subjects, name: Name, job: &Job<'_>, client: &mut Client) -> Result<Guarded> {
    let (process, log) = spawn(subjects, name, job)?;
    let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
    let reads = || Ok(client.query_one(sql, &[&job.slot])?.get(0));
    process::wait_until(Duration::from_mins(1), "the slot to be read", reads)
        .with_context(|| process::tail(&log, 15))?;
    Ok(process)
}

/// The backlog's WAL that the slot has not confirmed.
pub(super) fn behind(client: &mut Client, job: &Job<'_>) -> Result<i64> {
    let sql = "SELECT greatest(0, pg_wal_lsn_diff($1::text::pg_lsn, confirmed_flush_lsn))::bigint
               FROM pg_replication_slots WHERE slot_name = $2";
    Ok(client.query_one(sql, &[&job.loaded.end, &job.slot])?.get(0))
}

/// Ends a subject as an operator would: by SIGTERM, and by SIGKILL if it does not end.
pub(super) fn end(process: &mut Guarded) -> Result<()> {
    process.signal(Signal::TERM)?;
    if process.wait(STOP_WITHIN).is_err() {
        process.kill_tree()?;
    }
    Ok(())
}

impl<'a> Watch<'a> {
    fn new(job: &Job<'a>) -> Result<Self> {
        let client = job.ground.postgres.connect(Some(&job.loaded.database))?;
        Ok(Self {
            ground: job.ground,
            reading: job.reading,
            slot: job.slot,
            client,
            walsender: None,
            walsender_cpu: Duration::ZERO,
            tool_cpu: Duration::ZERO,
            peak_kib: 0,
        })
    }

    /// Whether the slot is, or was, being read.
    fn sees_walsender(&mut self) -> Result<bool> {
        if self.walsender.is_none() {
            let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
            let pid: Option<i32> = self.client.query_one(sql, &[&self.slot])?.get(0);
            self.walsender = pid.and_then(|pid| u32::try_from(pid).ok());
        }
        Ok(self.walsender.is_some())
    }

    fn look(&mut self, process: &mut Guarded, rows: u64) -> Result<Moment> {
        self.peak_kib = process::memory_kib(process.pid()).map_or(self.peak_kib, |memory| memory.peak);
        self.tool_cpu = process.cpu()?;
        self.sees_walsender()?;
        if let Some(cpu) = self.walsender.and_then(|walsender| process::cpu_time(walsender).ok()) {
            self.walsender_cpu = cpu;
        }
        let broker = self.ground.broker_cpu(self.reading)?;
        Ok(Moment { at: Instant::now(), rows, tool: self.tool_cpu, walsender: self.walsender_cpu, broker })
    }

    // Counts of rows and bytes are far below 2^52.
    #[allow(clippy::cast_precision_loss, reason = "counts of rows")]
    fn run(&self, first: &Moment, last: &Moment, started: Instant, loaded: &Loaded, behind_bytes: i64) -> Run {
        // Rows and times both begin with the first sample.
        let rows = (last.rows - first.rows.min(last.rows)).max(1) as f64;
        let seconds = last.at.duration_since(first.at).as_secs_f64().max(1e-3);
        let per_million = |until: Duration, since: Duration| until.saturating_sub(since).as_secs_f64() * 1e6 / rows;
        let rows_per_second = rows / seconds;
        Run {
            seconds,
            rows_per_second: Some(rows_per_second),
            megabytes_per_second: Some(rows_per_second * loaded.row_bytes / 1e6),
            tool_cpu: per_million(last.tool, first.tool),
            walsender_cpu: per_million(last.walsender, first.walsender),
            broker_cpu: per_million(last.broker, first.broker),
            peak_mib: self.peak_kib as f64 / 1024.0,
            streaming_seconds: None,
            first_record_seconds: first.at.duration_since(started).as_secs_f64(),
            behind_bytes,
            verdict: Verdict::default(),
        }
    }
}

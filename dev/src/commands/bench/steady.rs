//! A steady stream of single-row transactions beside each subject in turn: how long a row takes from its statement to the broker's
//! append and to a consumer.
//!
//! ```text
//!  for each rate, each reading, for each run, each subject:
//!      a fresh database ─▶ the subject streams ─▶ writers at a fixed rate ─▶ a consumer beside the brokers ─▶ compare
//! ```
//!
//! One clock for all: the machine's. A row's time begins when its statement is sent, so that what COMMIT takes is in it, and the
//! walsender may be faster than COMMIT's return. The broker's append time has whole milliseconds. A run in which a row is missing gives
//! no figures.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow, ensure};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use walrelay_dev::arrivals::Follow;
use walrelay_dev::postgres;
use walrelay_dev::process;

use super::case::{Kind, Load, Reading, Size};
use super::figure::{Figure, figure_of};
use super::ground::{self, Ground, Job, Loaded};
use super::subject::{Name, Subjects};
use super::table::{self, Found, Row, dash, median};
use super::{measure, verify};
use crate::screen::{percentile, thousands};

/// Rows of so many seconds come first and do not count.
const WARM_UP_SECONDS: u32 = 5;

/// Writers at least, and the transactions a second that one of more is asked for.
const WRITERS: u32 = 4;
const PER_WRITER: u32 = 1500;

/// Prime, so that a writer's rows are of every key.
const KEYS: u64 = 997;

/// How long no row may come while some are due.
const PATIENCE: Duration = Duration::from_mins(1);

/// Which percentiles are shown.
const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 100.0];

const INSERT: &str = "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
                      VALUES (lpad(to_hex($1::bigint), 32, '0')::uuid, {route}, 'order-' || $1::bigint % {keys}, 'OrderPlaced',
                              jsonb_build_object('total', '29.99', 'note', repeat('x', 250)))";

/// A load that each subject gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Case {
    /// Transactions a second.
    pub(super) rate: u32,
    pub(super) topics: u64,
    pub(super) reading: Reading,
}

/// All runs of one case.
#[derive(Debug)]
pub(super) struct Steady {
    case: Case,
    seconds: u32,
    rows: Vec<Row<Run>>,
}

/// One run of one subject.
#[derive(Debug, Clone, Serialize)]
struct Run {
    written_per_second: f64,
    /// How late the writers were at most.
    #[serde(rename = "writers_late_seconds", serialize_with = "in_seconds")]
    late: Duration,
    /// Milliseconds at each of [`PERCENTILES`].
    #[serde(rename = "statement_to_append_millis", serialize_with = "by_name")]
    to_append: [f64; 5],
    #[serde(rename = "statement_to_consumer_millis", serialize_with = "by_name")]
    to_consumer: [f64; 5],
    /// Of one core.
    #[serde(rename = "cpu_share_of_a_core")]
    cpu_share: f64,
    peak_mib: u64,
    repeated: u64,
}

/// When the writers wrote.
struct Written {
    /// When each row's statement was sent, in milliseconds since the epoch.
    sent: Vec<f64>,
    late: Duration,
    took: Duration,
}

/// A record as it came: the row, and when it was appended and was there, in milliseconds since the epoch.
struct Arrival {
    row: u64,
    appended: f64,
    came: f64,
}

/// Measures each case for so many seconds a run; subjects take turns.
pub(super) fn measure(
    ground: &Ground,
    subjects: &Subjects,
    found: &Found,
    cases: &[Case],
    seconds: u32,
    runs: usize,
) -> Result<Vec<Steady>> {
    let Some(highest) = cases.iter().max_by_key(|case| case.rate) else { return Ok(Vec::new()) };
    wait_for_disk(ground, false)?;
    if let Some((first, _)) = found.iter().find(|(name, found)| name.writes() && found.is_ok()) {
        // A broker that has just started is slow at small batches.
        drop(run(ground, subjects, *first, highest, WARM_UP_SECONDS, 0));
    }
    let mut number = 0;
    let all = cases.iter().map(|case| of_case(ground, subjects, found, case, seconds, runs, &mut number)).collect();
    wait_for_disk(ground, true)?;
    Ok(all)
}

/// Sets whether a COMMIT waits for the disk, which is not what is measured here.
fn wait_for_disk(ground: &Ground, wait: bool) -> Result<()> {
    let mut client = ground.postgres.connect(None)?;
    client.batch_execute(&format!("ALTER SYSTEM SET fsync = {wait}"))?;
    Ok(client.batch_execute("SELECT pg_reload_conf()")?)
}

fn of_case(
    ground: &Ground,
    subjects: &Subjects,
    found: &Found,
    case: &Case,
    seconds: u32,
    runs: usize,
    number: &mut usize,
) -> Steady {
    let mut rows = table::rows(found, &case.load(0), &case.reading, ground.kind());
    rows.retain(|row| row.subject.writes());
    let mut steady = Steady { case: case.clone(), seconds, rows };
    for round in 1..=runs {
        for row in steady.rows.iter_mut().filter(|row| row.note.is_none()) {
            *number += 1;
            let measured = run(ground, subjects, row.subject, case, seconds, *number);
            row.take(&format!("steady {round}  {}/s, {}", case.rate, case.reading), measured, true);
        }
    }
    steady
}

fn run(ground: &Ground, subjects: &Subjects, name: Name, case: &Case, seconds: u32, number: usize) -> Result<Run> {
    let database = ground.postgres.create_unique_database("steady")?;
    let (slot, topic) = (database.replace('-', "_"), ground.topic("steady", number));
    let mut client = ground.postgres.connect(Some(&database))?;
    // A backlog has `off`. Here rows would wait for the next flush: a walsender sends only what is flushed.
    let settings = format!("ALTER DATABASE {} SET synchronous_commit = on", postgres::quote_identifier(&database));
    client.batch_execute(&settings)?;
    client.batch_execute(&ground::tables(Kind::Jsonb))?;
    client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&slot])?;
    let topics = measure::topics(&topic, case.topics);
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let settings =
        [("message.timestamp.type", "LogAppendTime"), ("segment.index.bytes", measure::index_bytes(case.topics))];
    ground.create_topics(&names, case.reading.partitions, &settings)?;
    ground.move_away(&case.reading);

    let folder = ground.folder.join("run");
    measure::empty(&folder)?;
    let loaded =
        Loaded { load: case.load(0), database: database.clone(), end: String::new(), row_bytes: 0.0, hash: None };
    let job = Job { ground, loaded: &loaded, reading: &case.reading, slot: &slot, topic: &topic, folder };
    let mut consumer = ground.arrivals(&case.reading).follow(&topics)?;
    let mut subject = measure::started(subjects, name, &job, &mut client)?;

    let warm = u64::from(case.rate * WARM_UP_SECONDS);
    let rows = warm + u64::from(case.rate * seconds);
    let (started, before) = (Instant::now(), subject.cpu()?);
    let (arrivals, repeated, written) = std::thread::scope(|scope| {
        let writers = scope.spawn(|| write(ground, &database, case, rows));
        let (arrivals, repeated) = gather(consumer.as_mut(), rows)?;
        let written = writers.join().map_err(|_| anyhow!("a writer panicked"))??;
        anyhow::Ok((arrivals, repeated, written))
    })?;
    let cpu = subject.cpu()?.saturating_sub(before);
    let peak_mib = process::memory_kib(subject.pid())?.peak / 1024;
    let cpu_share = cpu.as_secs_f64() / started.elapsed().as_secs_f64();
    measure::end(&mut subject)?;

    measure::drop_slot(&mut client, &slot)?;
    drop(client);
    ground.drop_database(&database)?;
    drop(consumer);
    ground.remove_topics(&names, &case.reading)?;
    let counted: Vec<&Arrival> = arrivals.iter().filter(|arrival| arrival.row >= warm).collect();
    let times = |at: fn(&Arrival) -> f64| {
        let times = counted.iter().filter_map(|arrival| Some(at(arrival) - written.sent_at(arrival.row)?));
        let mut times: Vec<f64> = times.map(|time| time.max(0.0)).collect();
        times.sort_by(f64::total_cmp);
        PERCENTILES.map(|percent| percentile(&times, percent))
    };
    #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
    let written_per_second = rows as f64 / written.took.as_secs_f64();
    let (to_append, to_consumer) = (times(|arrival| arrival.appended), times(|arrival| arrival.came));
    Ok(Run { written_per_second, late: written.late, to_append, to_consumer, cpu_share, peak_mib, repeated })
}

/// Shares the rate among the writers.
fn write(ground: &Ground, database: &str, case: &Case, rows: u64) -> Result<Written> {
    let writers = u64::from(case.rate.div_ceil(PER_WRITER).max(WRITERS));
    let route = if case.topics == 1 { "'order'".to_owned() } else { format!("'t' || $1::bigint % {}", case.topics) };
    let insert = INSERT.replace("{route}", &route).replace("{keys}", &KEYS.to_string());
    let started = Instant::now();
    let parts = std::thread::scope(|scope| {
        let insert = &insert;
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                scope.spawn(move || {
                    let its = (writer..rows).step_by(usize::try_from(writers)?);
                    write_by_the_clock(ground, database, insert, case.rate, its, started)
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a writer panicked"))?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    let took = started.elapsed();
    let mut sent = vec![0.0; usize::try_from(rows)?];
    let mut latest = Duration::ZERO;
    for (late, times) in parts {
        latest = latest.max(late);
        for (row, at) in times {
            if let Some(place) = usize::try_from(row).ok().and_then(|row| sent.get_mut(row)) {
                *place = at;
            }
        }
    }
    Ok(Written { sent, late: latest, took })
}

/// Writes each row when it is due; the longest delay behind that, and when each statement was sent.
fn write_by_the_clock(
    ground: &Ground,
    database: &str,
    insert: &str,
    rate: u32,
    rows: impl Iterator<Item = u64>,
    started: Instant,
) -> Result<(Duration, Vec<(u64, f64)>)> {
    let mut client = ground.postgres.connect(Some(database))?;
    let insert = client.prepare(insert)?;
    let (mut late, mut sent) = (Duration::ZERO, Vec::new());
    for row in rows {
        #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
        let due = started + Duration::from_secs_f64(row as f64 / f64::from(rate));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        late = late.max(due.elapsed());
        sent.push((row, millis()?));
        client.execute(&insert, &[&i64::try_from(row)?])?;
    }
    Ok((late, sent))
}

/// Takes records until every row has come; how many came again.
fn gather(consumer: &mut dyn Follow, rows: u64) -> Result<(Vec<Arrival>, u64)> {
    let mut seen = vec![false; usize::try_from(rows)?];
    let (mut arrivals, mut repeated, mut news) = (Vec::with_capacity(seen.len()), 0, Instant::now());
    while arrivals.len() < seen.len() {
        let Some(record) = consumer.next(Duration::from_millis(100))? else {
            ensure!(news.elapsed() < PATIENCE, "of {rows} rows only {} came", arrivals.len());
            continue;
        };
        let came = millis()?;
        // RabbitMQ does not say when it has stored a message.
        #[allow(clippy::cast_precision_loss, reason = "milliseconds since the epoch")]
        let appended = record.timestamp.map_or(came, |at| at as f64);
        news = Instant::now();
        // Each partition's first record is none of a row.
        let Some(row) = verify::row_of(&record) else { continue };
        let place = usize::try_from(row).ok().and_then(|row| seen.get_mut(row));
        let place = place.ok_or_else(|| anyhow!("row {row} was never written"))?;
        if std::mem::replace(place, true) {
            repeated += 1;
            continue;
        }
        arrivals.push(Arrival { row, appended, came });
    }
    Ok((arrivals, repeated))
}

/// Now, in milliseconds since the epoch.
fn millis() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1000.0)
}

impl Case {
    fn load(&self, rows: u64) -> Load {
        Load { rows, batch: 1, payload: Size(300), kind: Kind::Jsonb, topics: self.topics, keys: KEYS }
    }

    fn title(&self) -> String {
        let topics = if self.topics == 1 { String::new() } else { format!(" over {} topics", self.topics) };
        format!("{} single-row transactions a second{topics}", thousands(self.rate.into()))
    }
}

impl Written {
    fn sent_at(&self, row: u64) -> Option<f64> {
        self.sent.get(usize::try_from(row).ok()?).copied()
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [append, _, append_99, ..] = self.to_append;
        let [consumer, _, consumer_99, ..] = self.to_consumer;
        write!(
            f,
            "append p50 {append:.1} p99 {append_99:.1} ms, consumer p50 {consumer:.1} p99 {consumer_99:.1} ms, \
             CPU {:.1} %, peak {} MB, writers {:.0}/s and {:.1?} late",
            self.cpu_share * 100.0,
            self.peak_mib,
            self.written_per_second,
            self.late
        )
    }
}

fn by_name<Z: Serializer>(times: &[f64; 5], to: Z) -> Result<Z::Ok, Z::Error> {
    to.collect_map(["p50", "p90", "p99", "p99.9", "max"].iter().zip(times))
}

fn in_seconds<Z: Serializer>(time: &Duration, to: Z) -> Result<Z::Ok, Z::Error> {
    to.serialize_f64(time.as_secs_f64())
}

impl Steady {
    /// Everything.
    pub(super) fn json(&self) -> Value {
        json!({
            "per_second": self.case.rate,
            "topics": self.case.topics,
            "reading": self.case.reading.to_string(),
            "seconds": self.seconds,
            "subjects": self.rows,
        })
    }

    /// As a section of the report.
    pub(super) fn markdown(&self) -> String {
        let head = "| | append p50 | p90 | p99 | p99.9 | max | consumer p50 | p99 | CPU of a core | peak MB | |";
        format!(
            "\n## {}\n\n{}; {} s a run, {WRITERS} writers or more, {KEYS} keys, fsync = off. Milliseconds from the statement: medians of the runs'\n\
             percentiles, with their range. The broker's append time has whole ones.\n\n{}",
            self.case.title(),
            self.case.reading,
            self.seconds,
            table::markdown(head, self.rows.iter().map(cells))
        )
    }
}

fn cells(Row { subject, runs, note }: &Row<Run>) -> Vec<String> {
    let millis = |of: fn(&Run) -> [f64; 5], place: usize| {
        figure_of(runs.iter().filter_map(|run| of(run).get(place).copied())).map_or_else(dash, words)
    };
    let mut cells = vec![subject.to_string()];
    cells.extend((0..PERCENTILES.len()).map(|place| millis(|run| run.to_append, place)));
    cells.extend([0, 2].map(|place| millis(|run| run.to_consumer, place)));
    cells.push(median(figure_of(runs.iter().map(|run| run.cpu_share * 100.0)), 1, " %"));
    cells.push(runs.iter().map(|run| run.peak_mib).max().map_or_else(dash, |most| most.to_string()));
    let repeated: u64 = runs.iter().map(|run| run.repeated).sum();
    let repeats = (repeated > 0).then(|| format!("{repeated} repeats"));
    cells.push(repeats.into_iter().chain(note.clone()).collect::<Vec<_>>().join("; "));
    cells
}

fn words(Figure { median, least, most }: Figure) -> String {
    format!("{median:.1} ({least:.1}–{most:.1})")
}

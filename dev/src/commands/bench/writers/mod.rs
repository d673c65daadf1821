//! What a relay costs those who write: eight writers with nobody beside them, and with each relay in turn.
//!
//! ```text
//!  for each rate, for each round, for each relay:  a fresh database ─▶ the relay streams ─▶ pgbench ─▶ until all is there ─▶ compare
//! ```
//!
//! Everything runs on one machine, so that what a relay and the broker take from the processors is in these figures.

mod pgbench;
mod polling;

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::postgres::Client;
use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use walrelay_dev::background::Background;
use walrelay_dev::consume::{self, Meter};
use walrelay_dev::process::Guarded;

use super::case::{Kind, Load, Reading, Size};
use super::figure::{Figure, figure_of};
use super::ground::{Ground, Job, Loaded};
use super::report::{Row, dash, median, table};
use super::subject::{Name, Subjects};
use super::{ground, measure};
use crate::screen::thousands;
use pgbench::Written;

/// The writers go on for so long before anything counts.
const WARM_UP_SECONDS: u32 = 3;

/// What is not there so long after the last write is reported as missing then.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(5);

/// Until then everything must be.
const THERE_WITHIN: Duration = Duration::from_mins(3);

const LOOK: Duration = Duration::from_millis(5);

/// Who reads what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nobody,
    Relay(Name),
    Polling,
}

const ALL: [Beside; 4] =
    [Beside::Nobody, Beside::Relay(Name::Walrelay), Beside::Relay(Name::DebeziumTuned), Beside::Polling];

/// One run.
#[derive(Debug, Serialize)]
struct Run {
    #[serde(flatten)]
    written: Written,
    /// The relay's processor time, as a share of one core; unknown of what runs within this program.
    #[serde(rename = "relay_cpu_share_of_a_core")]
    cpu_share: Option<f64>,
    /// From the last COMMIT until the topic held everything; `None`: not within [`CAUGHT_UP_WITHIN`].
    #[serde(rename = "seconds_until_all_there")]
    there_seconds: Option<f64>,
    /// From the last COMMIT until the slot was confirmed as far as that; `None`: not within that time, or there is none.
    #[serde(rename = "seconds_until_confirmed")]
    confirmed_seconds: Option<f64>,
    repeated: u64,
}

/// All runs at one rate.
#[derive(Debug)]
pub(super) struct Writers {
    rate: u32,
    seconds: u32,
    rows: Vec<Row<Beside, Run>>,
}

/// Measures each rate (0: as fast as they can) for so many seconds a run.
pub(super) fn measure(ground: &Ground, subjects: &Subjects, rates: &[u32], seconds: u32, runs: usize) -> Vec<Writers> {
    rates.iter().map(|rate| at_rate(ground, subjects, *rate, seconds, runs)).collect()
}

fn at_rate(ground: &Ground, subjects: &Subjects, rate: u32, seconds: u32, runs: usize) -> Writers {
    let mut writers = Writers { rate, seconds, rows: Vec::new() };
    for beside in ALL {
        let missing = beside.relay().and_then(|name| subjects.look(name).err());
        writers.rows.push(Row::new(beside, missing.map(|why| format!("not available: {why}"))));
    }
    for round in 1..=runs {
        for row in writers.rows.iter_mut().filter(|row| row.note.is_none()) {
            row.take(&format!("writers {round}"), run(ground, subjects, row.subject, rate, seconds), true);
        }
    }
    writers
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("nobody"),
            Self::Relay(name) => name.fmt(f),
            Self::Polling => f.write_str("polling worker"),
        }
    }
}

impl Beside {
    const fn relay(self) -> Option<Name> {
        match self {
            Self::Relay(name) => Some(name),
            Self::Nobody | Self::Polling => None,
        }
    }
}

/// A relay at work; ends with it.
enum Working {
    None,
    Process(Guarded),
    Thread(Background<()>),
}

fn run(ground: &Ground, subjects: &Subjects, beside: Beside, rate: u32, seconds: u32) -> Result<Run> {
    let database = ground.postgres.create_unique_database("writers")?;
    let slot = database.replace('-', "_");
    let mut client = prepare(ground, &database, &slot, beside)?;
    let topic = format!("writers-{slot}");
    ground.kafka()?.create_topic(&topic, 12, &[])?;
    let folder = ground.folder.join("writers");
    measure::empty(&folder)?;
    let mut working = start(
        ground,
        subjects,
        beside,
        &mut client,
        &Names { database: &database, slot: &slot, topic: &topic, folder: &folder },
    )?;
    let url = ground.postgres.url(&database);
    pgbench::write(subjects.pgbench(), &url, &folder, rate, WARM_UP_SECONDS)?;
    let (started, cpu) = (Instant::now(), working.cpu()?);
    let written = pgbench::write(subjects.pgbench(), &url, &folder, rate, seconds)?;
    let cpu_share = match (cpu, working.cpu()?) {
        (Some(before), Some(after)) => {
            Some(after.saturating_sub(before).as_secs_f64() / started.elapsed().as_secs_f64())
        }
        _ => None,
    };
    let mut run = Run { written, cpu_share, there_seconds: None, confirmed_seconds: None, repeated: 0 };
    if beside != Beside::Nobody {
        catch_up(ground, &mut client, &topic, &slot, beside, &mut run)?;
    }
    working.end()?;
    if beside != Beside::Nobody {
        run.repeated = compare(ground, &mut client, &topic)?;
    }
    if beside.relay().is_some() {
        measure::drop_slot(&mut client, &slot)?;
    }
    drop(client);
    ground.drop_database(&database)?;
    ground.kafka()?.delete_topics(&[&topic])?;
    Ok(run)
}

/// Tables and, for who reads one, a slot. COMMIT waits for the disk, as it does by default.
fn prepare(ground: &Ground, database: &str, slot: &str, beside: Beside) -> Result<Client> {
    let mut client = ground.postgres.connect(Some(database))?;
    client.batch_execute(&format!("ALTER DATABASE \"{database}\" SET synchronous_commit = on"))?;
    client.batch_execute(&ground::tables(Kind::Jsonb))?;
    // VACUUM goes by itself.
    for statement in pgbench::BUSINESS.split(';').filter(|statement| !statement.trim().is_empty()) {
        client.batch_execute(statement)?;
    }
    match beside {
        Beside::Nobody => {}
        Beside::Polling => client.batch_execute(polling::COLUMNS)?,
        Beside::Relay(_) => {
            client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&slot])?;
        }
    }
    Ok(client)
}

struct Names<'a> {
    database: &'a str,
    slot: &'a str,
    topic: &'a str,
    folder: &'a Path,
}

/// Starts who reads, and waits until the slot is being read.
fn start(
    ground: &Ground,
    subjects: &Subjects,
    beside: Beside,
    client: &mut Client,
    names: &Names<'_>,
) -> Result<Working> {
    let name = match beside {
        Beside::Nobody => return Ok(Working::None),
        Beside::Polling => {
            let worker = ground.postgres.connect(Some(names.database))?;
            return Ok(Working::Thread(polling::start(worker, &ground.client_config()?, names.topic)?));
        }
        Beside::Relay(name) => name,
    };
    let load = Load { rows: 0, batch: 1, payload: Size(300), kind: Kind::Jsonb, topics: 1, keys: 1 };
    let loaded = Loaded { load, database: names.database.to_owned(), end: String::new(), row_bytes: 0.0, hash: None };
    let folder: PathBuf = names.folder.join("relay");
    std::fs::create_dir_all(&folder)?;
    let reading = &Reading::default();
    let job = Job { ground, loaded: &loaded, reading, slot: names.slot, topic: names.topic, folder };
    Ok(Working::Process(measure::started(subjects, name, &job, client)?))
}

/// Waits until everything that was written is where it belongs, and books how long that took.
fn catch_up(
    ground: &Ground,
    client: &mut Client,
    topic: &str,
    slot: &str,
    beside: Beside,
    run: &mut Run,
) -> Result<()> {
    let ended = Instant::now();
    let row = client.query_one("SELECT count(*), pg_current_wal_insert_lsn()::text FROM outbox", &[])?;
    let (rows, end): (i64, String) = (row.get(0), row.get(1));
    let meter = Meter::new(&ground.client_config()?, &[topic.to_owned()])?;
    let confirmed = "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2";
    let in_time =
        |ended: Instant| Some(ended.elapsed()).filter(|took| *took <= CAUGHT_UP_WITHIN).map(|took| took.as_secs_f64());
    let (mut there, mut sealed) = (false, beside == Beside::Polling);
    while !there || (!sealed && ended.elapsed() < CAUGHT_UP_WITHIN) {
        if !there && meter.count()? >= rows {
            (there, run.there_seconds) = (true, in_time(ended));
        }
        if !sealed && client.query_one(confirmed, &[&end, &slot])?.get::<_, bool>(0) {
            (sealed, run.confirmed_seconds) = (true, in_time(ended));
        }
        ensure!(ended.elapsed() < THERE_WITHIN, "of {rows} rows only {} are there", meter.count()?);
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Whether the topic holds every row; how many it holds more than once.
fn compare(ground: &Ground, client: &mut Client, topic: &str) -> Result<u64> {
    let mut due: HashSet<String> =
        client.query("SELECT id::text FROM outbox", &[])?.iter().map(|row| row.get(0)).collect();
    let (rows, mut records, mut foreign) = (due.len(), 0, 0);
    let mut seen = HashSet::with_capacity(rows);
    consume::read_topic(&ground.client_config()?, topic, |record| {
        records += 1;
        let id = record.header("id").unwrap_or_default().to_owned();
        foreign += u64::from(!due.remove(&id) && !seen.contains(&id));
        seen.insert(id);
    })?;
    ensure!(due.is_empty() && foreign == 0, "of {rows} rows {} are missing; {foreign} foreign", due.len());
    Ok(records - u64::try_from(rows)?)
}

impl Working {
    fn cpu(&mut self) -> Result<Option<Duration>> {
        match self {
            Self::Process(process) => process.cpu().map(Some),
            Self::None | Self::Thread(_) => Ok(None),
        }
    }

    fn end(self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Process(mut process) => measure::end(&mut process),
            Self::Thread(worker) => worker.stop(),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Written { per_second, p50_millis, p99_millis, commit_millis } = self.written;
        let seconds = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.2} s"));
        write!(
            f,
            "{per_second:>6.0} tx/s  p50 {p50_millis:.2} ms  p99 {p99_millis:.2} ms  COMMIT {commit_millis:.2} ms  all there after {}  confirmed after {}",
            seconds(self.there_seconds),
            seconds(self.confirmed_seconds)
        )
    }
}

impl Writers {
    /// The figure with its ratio to the same without anybody.
    fn against_nobody(&self, runs: &[Run], of: fn(&Run) -> f64, digits: usize) -> String {
        let nobody = self.rows.iter().find(|row| row.subject == Beside::Nobody);
        let base = nobody.and_then(|row| figure_of(row.runs.iter().map(of)));
        let Some(Figure { median, least, most }) = figure_of(runs.iter().map(of)) else { return dash() };
        let ratio = base.map_or_else(String::new, |base| format!(", {:.2} ×", median / base.median));
        format!("{median:.digits$} ({least:.digits$}–{most:.digits$}){ratio}")
    }

    fn title(&self) -> String {
        match self.rate {
            0 => format!("{} writers, as fast as they can, {} s a run", pgbench::CLIENTS, self.seconds),
            rate => {
                format!(
                    "{} writers, {} transactions a second, {} s a run",
                    pgbench::CLIENTS,
                    thousands(rate.into()),
                    self.seconds
                )
            }
        }
    }

    /// Everything.
    pub(super) fn json(&self) -> Value {
        json!({"rate": self.rate, "seconds": self.seconds, "clients": pgbench::CLIENTS, "subjects": self.rows})
    }

    /// As a section of the report.
    pub(super) fn markdown(&self) -> String {
        let cells = |Row { subject, runs, note }: &Row<Beside, Run>| {
            let share = figure_of(runs.iter().filter_map(|run| run.cpu_share.map(|share| share * 100.0)));
            vec![
                subject.to_string(),
                self.against_nobody(runs, |run| run.written.per_second, 0),
                self.against_nobody(runs, |run| run.written.p50_millis, 2),
                self.against_nobody(runs, |run| run.written.p99_millis, 1),
                self.against_nobody(runs, |run| run.written.commit_millis, 2),
                median(share, 0, " %"),
                seconds(*subject != Beside::Nobody, runs, |run| run.there_seconds),
                seconds(subject.relay().is_some(), runs, |run| run.confirmed_seconds),
                note.clone().unwrap_or_default(),
            ]
        };
        let head = "| beside the writers | transactions/s | transaction p50 ms | p99 ms | COMMIT mean ms | CPU of a core | all in Kafka after | slot confirmed after | |";
        format!(
            "\n## {}\n\npgbench: update an order, insert into the outbox (300 B jsonb), COMMIT, with fsync and synchronous_commit on. Medians with the\n\
             range, and their ratio to nobody's. Relay, broker, Postgres and pgbench share the machine's cores.\n\n{}",
            self.title(),
            table(head, self.rows.iter().map(cells))
        )
    }
}

/// The median of how long it took; where some did not get there in time, that.
fn seconds(applies: bool, runs: &[Run], of: fn(&Run) -> Option<f64>) -> String {
    let times: Vec<f64> = runs.iter().filter_map(of).collect();
    match figure_of(times.iter().copied()) {
        _ if !applies || runs.is_empty() => dash(),
        figure if times.len() == runs.len() => median(figure, 2, " s"),
        Some(_) | None => {
            format!("{} of {} runs not within {CAUGHT_UP_WITHIN:?}", runs.len() - times.len(), runs.len())
        }
    }
}

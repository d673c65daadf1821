//! A backlog whose relay is killed in the middle, and started again as a supervisor would start it.
//!
//! In: a backlog, how many kills. Out: for each relay, what is missing, repeated or out of order by key in the end, as another client than
//! the relay's reads it. A kill comes as soon as its share of the rows has arrived, wherever the relay then is. A relay that ends by itself
//! is started again as well.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::{Value, json};
use walrelay_dev::process;

use super::case::Reading;
use super::ground::{Ground, Job, Loaded};
use super::measure;
use super::subject::{Name, Subjects};
use super::table::{self, Found, Row, Table, dash};
use super::verify::Verdict;
use crate::screen::thousands;

/// The pause between two counts.
const LOOK: Duration = Duration::from_millis(20);

/// If there are as many records as rows, the run is over once no record has come for this long.
const SETTLED: Duration = Duration::from_secs(5);

/// If records are missing and the slot is confirmed, the run is over once no record has come for this long: those rows are lost.
const GIVEN_UP: Duration = Duration::from_mins(1);

/// The slot of a relay that has published everything may be this many bytes before the end: at the last commit, or at the one before.
const NEARLY: i64 = 16 << 10;

/// The longest time for one relay.
const LONGEST: Duration = Duration::from_mins(10);

/// The result of one relay.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Outcome {
    kills: u32,
    /// How often it ended by itself.
    ends: u32,
    /// From the first start until the last record had arrived.
    seconds: f64,
    #[serde(flatten)]
    verdict: Verdict,
}

/// Kills each of these relays `kills` times.
pub(super) fn measure(
    ground: &Ground,
    subjects: &Subjects,
    found: &Found,
    loaded: &Loaded,
    reading: &Reading,
    kills: u32,
) -> Table<Outcome> {
    let can = |name: &Name| name.writes() && name.cannot(&loaded.load, reading, ground.kind()).is_none();
    let mut rows = Vec::new();
    for (place, (name, _)) in found.iter().filter(|(name, found)| found.is_ok() && can(name)).enumerate() {
        // Numbers that no run has: those of runs count from 1.
        let number = usize::MAX - place;
        let run = |job: &Job<'_>, topics: &[String]| through_kills(subjects, *name, job, topics, kills);
        let outcome = measure::on_a_copy(ground, *name, loaded, reading, number, run);
        let outcome = outcome.map(|(outcome, verdict)| Outcome { verdict, ..outcome });
        let mut row = Row::new(*name, None);
        row.take("kills", outcome, true);
        rows.push(row);
    }
    Table { load: loaded.load, reading: reading.clone(), rows }
}

fn through_kills(subjects: &Subjects, name: Name, job: &Job<'_>, topics: &[String], kills: u32) -> Result<Outcome> {
    let mut gauge = job.ground.arrivals(job.reading).gauge(topics)?;
    let opened = gauge.count()?;
    let rows = job.loaded.load.rows;
    let (started, mut killed, mut ends) = (Instant::now(), 0, 0);
    let (mut arrived, mut came) = (0, started);
    let mut client = job.ground.postgres.connect(Some(&job.loaded.database))?;
    let (mut process, log) = measure::spawn(subjects, name, job)?;
    loop {
        let now = gauge.count()?.saturating_sub(opened);
        if now != arrived {
            (arrived, came) = (now, Instant::now());
        }
        if killed < kills && now >= rows * u64::from(killed + 1) / u64::from(kills + 1) {
            process.kill_tree()?;
            killed += 1;
            (process, _) = measure::spawn(subjects, name, job)?;
        } else if process.exited()?.is_some() {
            ends += 1;
            std::thread::sleep(LOOK);
            (process, _) = measure::spawn(subjects, name, job)?;
        }
        let quiet = came.elapsed();
        let complete = now >= rows && quiet > SETTLED;
        // A repeat that the broker drops is not counted. So the slot, too, has to say how far the relay is.
        let lost = !complete && quiet > GIVEN_UP && measure::behind(&mut client, job)? < NEARLY;
        if killed == kills && (complete || lost) {
            measure::end(&mut process)?;
            let seconds = came.duration_since(started).as_secs_f64();
            return Ok(Outcome { kills, ends, seconds, verdict: Verdict::default() });
        }
        if started.elapsed() > LONGEST {
            bail!(
                "{now} of {rows} rows after {LONGEST:?}, {killed} kills and {ends} ends:\n{}",
                process::tail(&log, 15)
            );
        }
        std::thread::sleep(LOOK);
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, ends, seconds, verdict: Verdict { missing, repeated, out_of_order, wrong, .. } } = self;
        write!(f, "{kills} kills, {ends} ends of its own, {seconds:.1} s: ")?;
        write!(f, "{missing} missing, {repeated} repeated, {out_of_order} out of order, {wrong} wrong")
    }
}

impl Outcome {
    fn cells(&self) -> Vec<String> {
        let Self { kills, ends, seconds, verdict } = self;
        let [missing, repeated, swapped] = [verdict.missing, verdict.repeated, verdict.out_of_order].map(thousands);
        vec![kills.to_string(), ends.to_string(), missing, repeated, swapped, format!("{seconds:.1} s")]
    }

    fn note(&self) -> String {
        match (self.verdict.wrong, self.verdict.altered) {
            (0, false) => String::new(),
            (wrong, _) => format!("{wrong} wrong or altered"),
        }
    }
}

impl Table<Outcome> {
    /// As a section of the report.
    pub(super) fn markdown(&self) -> String {
        let cells = |row: &Row<Outcome>| {
            let outcome = row.runs.first();
            let figures = outcome.map_or_else(|| vec![dash(); 6], Outcome::cells);
            let note = outcome.map(Outcome::note).or_else(|| row.note.clone()).unwrap_or_default();
            [vec![row.subject.to_string()], figures, vec![note]].concat()
        };
        let head = "| | kills | ends of its own | rows missing | repeated | out of order by key | complete after | |";
        format!(
            "\n## Killed in the middle: {}\n\n{}. SIGKILL as soon as each share of the rows had arrived, and a new start at once.\n\n{}",
            self.load,
            self.reading,
            table::markdown(head, self.rows.iter().map(cells))
        )
    }

    /// Everything.
    pub(super) fn json(&self) -> Value {
        json!({"load": self.load.to_string(), "reading": self.reading.to_string(), "subjects": self.rows})
    }
}

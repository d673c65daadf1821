//! What comes of a backlog whose relay is killed in the middle, and started again as a supervisor would.
//!
//! In: a backlog, how many kills. Out: for each relay, what is missing, repeated or out of order by key in the end, as another client than
//! the relay's reads it. A kill comes as soon as its share of the rows has arrived, wherever the relay then is. A relay that ends by itself
//! is started again as well.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use walrelay_dev::process::{self, Guarded, LastWill};

use super::case::{Load, Reading};
use super::ground::{Ground, Job, Loaded};
use super::measure;
use super::subject::{Name, Subjects};
use super::verify::Verdict;
use crate::screen::{failure, line, thousands};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Everything may be there, and nothing has come for so long: it is over.
const SETTLED: Duration = Duration::from_secs(5);

/// Something is missing, the slot says that nothing is, and nothing has come for so long: it never will.
const GIVEN_UP: Duration = Duration::from_mins(1);

/// A relay that has dealt with everything may leave the slot so many bytes before the end: at its last commit, or one before.
const NEARLY: i64 = 16 << 10;

/// How long one relay may take.
const LONGEST: Duration = Duration::from_mins(10);

/// All relays on one backlog.
#[derive(Debug)]
pub(super) struct Kills {
    load: Load,
    reading: Reading,
    rows: Vec<(Name, Result<Outcome, String>)>,
}

/// What came of one.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    kills: u32,
    /// Ends of its own.
    ends: u32,
    /// From the first start until the last record had arrived.
    seconds: f64,
    verdict: Verdict,
}

/// Kills each of these relays so many times.
pub(super) fn measure(
    ground: &Ground,
    subjects: &Subjects,
    found: &[(Name, Result<String, String>)],
    loaded: &Loaded,
    reading: &Reading,
    kills: u32,
) -> Kills {
    let can = |name: &Name| name.is_relay() && name.cannot(&loaded.load, reading, ground.kind()).is_none();
    let mut rows = Vec::new();
    for (place, (name, _)) in found.iter().filter(|(name, found)| found.is_ok() && can(name)).enumerate() {
        // Numbers that no run has: those of runs count from 1.
        let number = usize::MAX - place;
        let run = |job: &Job<'_>, topics: &[String]| through_kills(subjects, *name, job, topics, kills);
        let outcome = measure::on_a_copy(ground, *name, loaded, reading, number, run);
        let outcome = outcome.map(|(outcome, verdict)| Outcome { verdict, ..outcome });
        let outcome = outcome.map_err(|error| failure(&error));
        line(&format!("  kills  {:<22} {}", name.to_string(), words(&outcome)));
        rows.push((*name, outcome));
    }
    Kills { load: loaded.load, reading: reading.clone(), rows }
}

fn through_kills(subjects: &Subjects, name: Name, job: &Job<'_>, topics: &[String], kills: u32) -> Result<Outcome> {
    let log = job.ground.folder.join(format!("{}.log", job.slot));
    let mut gauge = job.ground.arrivals(job.reading).gauge(topics)?;
    let opened = gauge.count()?;
    let rows = job.loaded.load.rows;
    let (started, mut killed, mut ends) = (Instant::now(), 0, 0);
    let (mut arrived, mut came) = (0, started);
    let mut client = job.ground.postgres.connect(Some(&job.loaded.database))?;
    let mut process = start(subjects, name, job, &log)?;
    loop {
        let now = gauge.count()?.saturating_sub(opened);
        if now != arrived {
            (arrived, came) = (now, Instant::now());
        }
        if killed < kills && now >= rows * u64::from(killed + 1) / u64::from(kills + 1) {
            process.kill_tree()?;
            killed += 1;
            process = start(subjects, name, job, &log)?;
        } else if process.exited()?.is_some() {
            ends += 1;
            std::thread::sleep(LOOK);
            process = start(subjects, name, job, &log)?;
        }
        let quiet = came.elapsed();
        let complete = now >= rows && quiet > SETTLED;
        // What comes again, and is dropped as a repeat, is not counted: the slot says how far it is.
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

fn start(subjects: &Subjects, name: Name, job: &Job<'_>, log: &Path) -> Result<Guarded> {
    let mut command = subjects.command(name, job)?;
    let file = std::fs::File::options().create(true).append(true).open(log)?;
    command.stdout(file.try_clone()?).stderr(file);
    Guarded::spawn(job.slot, &mut command, &LastWill::default())
}

fn words(outcome: &Result<Outcome, String>) -> String {
    match outcome {
        Err(why) => why.clone(),
        Ok(Outcome { kills, ends, seconds, verdict }) => {
            let Verdict { missing, repeated, out_of_order, wrong, .. } = verdict;
            format!(
                "{kills} kills, {ends} ends of its own, {seconds:.1} s: {missing} missing, {repeated} repeated, {out_of_order} out of order, {wrong} wrong"
            )
        }
    }
}

impl Kills {
    /// As a section of the report.
    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "\n## Killed in the middle: {}\n\n{}. SIGKILL as soon as each share of the rows had arrived, and a new start at once.\n\n\
             | | kills | ends of its own | rows missing | repeated | out of order by key | complete after | |\n|---|---|---|---|---|---|---|---|\n",
            self.load, self.reading
        );
        for (name, outcome) in &self.rows {
            let row = match outcome {
                Err(why) => format!("| {name} | – | – | – | – | – | – | {why} |\n"),
                Ok(Outcome { kills, ends, seconds, verdict }) => {
                    let notes = match (verdict.wrong, verdict.altered) {
                        (0, false) => String::new(),
                        (wrong, _) => format!("{wrong} wrong or altered"),
                    };
                    let [missing, repeated, swapped] =
                        [verdict.missing, verdict.repeated, verdict.out_of_order].map(thousands);
                    format!(
                        "| {name} | {kills} | {ends} | {missing} | {repeated} | {swapped} | {seconds:.1} s | {notes} |\n"
                    )
                }
            };
            text.push_str(&row);
        }
        text
    }

    /// Everything.
    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(name, outcome)| match outcome {
            Err(why) => json!({"subject": name.to_string(), "note": why}),
            Ok(Outcome { kills, ends, seconds, verdict }) => json!({
                "subject": name.to_string(),
                "kills": kills,
                "ends": ends,
                "seconds": seconds,
                "missing": verdict.missing,
                "repeated": verdict.repeated,
                "out_of_order": verdict.out_of_order,
                "wrong": verdict.wrong,
                "altered": verdict.altered,
            }),
        });
        json!({"load": self.load.to_string(), "reading": self.reading.to_string(), "subjects": rows.collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{Kind, Size};
    use super::*;

    #[test]
    fn what_was_lost_repeated_or_swapped_is_reported_and_who_failed_says_why() {
        let verdict = Verdict { missing: 1, repeated: 2345, out_of_order: 6, ..Verdict::default() };
        let outcome = Outcome { kills: 3, ends: 1, seconds: 7.25, verdict };
        let kills = Kills {
            load: Load { rows: 10, batch: 1, payload: Size(300), kind: Kind::Jsonb, topics: 1, keys: 2 },
            reading: Reading::default(),
            rows: vec![(Name::Walrelay, Ok(outcome)), (Name::Debezium, Err("failed: no Java".to_owned()))],
        };
        let text = kills.markdown();
        assert!(text.contains("| walrelay | 3 | 1 | 1 | 2,345 | 6 | 7.2 s |  |"), "{text}");
        assert!(text.contains("| Debezium, default settings | – | – | – | – | – | – | failed: no Java |"), "{text}");
        assert_eq!(kills.json()["subjects"][0]["repeated"], 2345);
    }
}

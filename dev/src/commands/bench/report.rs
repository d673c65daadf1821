//! What was measured, as a table for people, and as JSON.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use walrelay_dev::brokers::Kind;

use super::case::{Load, Reading};
use super::figure::{Figure, figure_of};
use super::kills::Kills;
use super::measure::Run;
use super::steady::Steady;
use super::subject::Name;
use super::verify::Verdict;
use super::writers::Writers;
use crate::machine;
use crate::screen::{failure, line, thousands};

/// What was run of one subject, and why nothing, or no more.
#[derive(Debug, Serialize)]
pub(super) struct Row<S: fmt::Display, R> {
    #[serde(serialize_with = "as_text")]
    pub(super) subject: S,
    pub(super) note: Option<String>,
    pub(super) runs: Vec<R>,
}

fn as_text<S: fmt::Display, Z: Serializer>(subject: &S, to: Z) -> Result<Z::Ok, Z::Error> {
    to.collect_str(subject)
}

impl<S: fmt::Display, R: fmt::Display> Row<S, R> {
    /// Nothing yet; `why`: nor later.
    pub(super) fn new(subject: S, why: Option<String>) -> Self {
        Self { subject, note: why, runs: Vec::new() }
    }

    /// Shows a run, and keeps it if it counts. One that failed is its subject's last.
    pub(super) fn take(&mut self, head: &str, run: Result<R>, counts: bool) {
        match run {
            Ok(run) => {
                line(&format!("  {head}  {:<22} {run}", self.subject.to_string()));
                self.runs.extend(counts.then_some(run));
            }
            Err(error) => {
                line(&format!("  {head}  {} failed: {error:#}", self.subject));
                self.note = Some(failure(&error));
            }
        }
    }
}

/// Each subject, or why it is not available.
pub(super) type Found = [(Name, Result<String, String>)];

/// A row without runs for each subject; those that do not take part say why.
pub(super) fn rows<R: fmt::Display>(
    found: &Found,
    load: &Load,
    reading: &Reading,
    to: Option<Kind>,
) -> Vec<Row<Name, R>> {
    let row = |(name, found): &(Name, Result<String, String>)| {
        let missing = found.as_ref().err().map(|why| format!("not available: {why}"));
        Row::new(*name, missing.or_else(|| name.cannot(load, reading, to).map(str::to_owned)))
    };
    found.iter().map(row).collect()
}

/// One case.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) load: Load,
    pub(super) reading: Reading,
    pub(super) rows: Vec<Row<Name, Run>>,
}

/// Everything.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) machine: Value,
    pub(super) services: String,
    pub(super) command: String,
    /// Each subject, or why it is not available.
    pub(super) subjects: Vec<(Name, Result<String, String>)>,
    pub(super) tables: Vec<Table>,
    pub(super) kills: Vec<Kills>,
    pub(super) steady: Vec<Steady>,
    pub(super) writers: Vec<Writers>,
}

impl Row<Name, Run> {
    /// Over the runs that lost nothing; `None` when a run lost something, or there is none.
    fn figure(&self, of: fn(&Run) -> f64) -> Option<Figure> {
        if self.runs.iter().any(|run| !run.verdict.is_true()) {
            return None;
        }
        figure_of(self.runs.iter().map(of))
    }

    fn words(&self) -> String {
        let untrue: Vec<&Verdict> =
            self.runs.iter().map(|run| &run.verdict).filter(|verdict| !verdict.is_true()).collect();
        let repeated: u64 = self.runs.iter().map(|run| run.verdict.repeated).sum();
        let gaps = untrue.first().map(|first| format!("{} run(s) with gaps, no rate: {first:?}", untrue.len()));
        let repeats = (repeated > 0).then(|| format!("{repeated} repeats"));
        gaps.into_iter().chain(repeats).chain(self.note.clone()).collect::<Vec<_>>().join("; ")
    }

    fn json(&self) -> Value {
        json!({
            "subject": self.subject.to_string(),
            "rows_per_second": self.figure(Run::rate),
            "tool_cpu_seconds_per_million": self.figure(|run| run.tool_cpu),
            "peak_mib": self.figure(|run| run.peak_mib),
            "note": self.words(),
            "runs": self.runs,
        })
    }

    fn cells(&self) -> Vec<String> {
        let rate = self.figure(Run::rate).map_or_else(dash, |figure| {
            format!("{} ({}–{})", whole(figure.median), whole(figure.least), whole(figure.most))
        });
        let number = |of: fn(&Run) -> f64, digits: usize| median(self.figure(of), digits, "");
        vec![
            self.subject.to_string(),
            rate,
            number(|run| run.megabytes_per_second.unwrap_or_default(), 1),
            number(|run| run.tool_cpu, 2),
            number(|run| run.walsender_cpu, 2),
            number(|run| run.broker_cpu, 2),
            self.figure(|run| run.peak_mib).map_or_else(dash, |figure| format!("{:.0}", figure.most)),
            median(figure_of(self.runs.iter().filter_map(|run| run.streaming_seconds)), 3, " s"),
            median(self.figure(|run| run.first_record_seconds), 2, " s"),
            self.words(),
        ]
    }
}

impl Report {
    /// As Markdown.
    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "# Side by side\n\n{}. {}.\n\n```\n{}\n```\n\n",
            machine::line(&self.machine),
            self.services,
            self.command
        );
        text.push_str("Medians with the range in parentheses. CPU is in CPU-seconds per million rows. Every run that writes was compared\nwith what had been committed.\n\n");
        for (name, found) in &self.subjects {
            let words = match found {
                Ok(version) => version.clone(),
                Err(reason) => format!("not available ({reason})"),
            };
            let line = format!("- {name}: {words}\n");
            text.push_str(&line);
        }
        for of in &self.tables {
            let head =
                "| | rows/s | MB/s | CPU tool | CPU walsender | CPU broker | peak MB | streaming | first record | |";
            let section =
                format!("\n## {}\n\n{}\n\n{}", of.load, of.reading, table(head, of.rows.iter().map(Row::cells)));
            text.push_str(&section);
        }
        text.extend(self.kills.iter().map(Kills::markdown));
        text.extend(self.steady.iter().map(Steady::markdown));
        text.extend(self.writers.iter().map(Writers::markdown));
        text
    }

    fn json(&self) -> Value {
        let subjects: Vec<Value> = self
            .subjects
            .iter()
            .map(|(name, found)| json!({"subject": name.to_string(), "is": found.as_ref().ok(), "missing": found.as_ref().err()}))
            .collect();
        let case = |table: &Table| {
            let rows: Vec<Value> = table.rows.iter().map(Row::json).collect();
            json!({"load": table.load.to_string(), "reading": table.reading.to_string(), "subjects": rows})
        };
        json!({
            "machine": self.machine,
            "services": self.services,
            "command": self.command,
            "subjects": subjects,
            "backlog": self.tables.iter().map(case).collect::<Vec<_>>(),
            "kills": self.kills.iter().map(Kills::json).collect::<Vec<_>>(),
            "steady": self.steady.iter().map(Steady::json).collect::<Vec<_>>(),
            "writers": self.writers.iter().map(Writers::json).collect::<Vec<_>>(),
        })
    }

    /// Writes `name.md` and `name.json`.
    pub(super) fn write(&self, folder: &Path, name: &str) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        std::fs::write(folder.join(format!("{name}.md")), self.markdown())?;
        std::fs::write(folder.join(format!("{name}.json")), format!("{:#}\n", self.json()))?;
        Ok(())
    }
}

/// Rows of cells below a head.
pub(super) fn table(head: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let columns = head.matches('|').count().saturating_sub(1);
    let head = format!("{head}\n|{}\n", "---|".repeat(columns));
    std::iter::once(head).chain(rows.map(|cells| format!("| {} |\n", cells.join(" | ")))).collect()
}

/// A figure's median with its unit.
pub(super) fn median(figure: Option<Figure>, digits: usize, unit: &str) -> String {
    figure.map_or_else(dash, |figure| format!("{:.digits$}{unit}", figure.median))
}

/// What stands where there is no figure.
pub(super) fn dash() -> String {
    "–".to_owned()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate")]
pub(super) fn whole(rate: f64) -> String {
    thousands(rate.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rate: f64, missing: u64) -> Run {
        Run {
            seconds: 1.0,
            rows_per_second: Some(rate),
            megabytes_per_second: Some(1.0),
            tool_cpu: 1.0,
            walsender_cpu: 1.0,
            broker_cpu: 1.0,
            peak_mib: 1.0,
            streaming_seconds: None,
            first_record_seconds: 1.0,
            behind_bytes: 0,
            verdict: Verdict { missing, ..Verdict::default() },
        }
    }

    fn row(runs: Vec<Run>) -> Row<Name, Run> {
        Row { subject: Name::Walrelay, runs, note: None }
    }

    #[test]
    fn the_median_and_the_range_of_runs_that_lost_nothing_are_reported() {
        let figure = row(vec![run(3.0, 0), run(1.0, 0), run(2.0, 0)]).figure(Run::rate);
        assert_eq!(figure, Some(Figure { median: 2.0, least: 1.0, most: 3.0 }));
    }

    #[test]
    fn a_subject_with_a_gap_in_any_run_has_no_rate_and_says_why() {
        let row = row(vec![run(3.0, 0), run(1.0, 7)]);
        assert_eq!(row.figure(Run::rate), None);
        assert!(row.words().contains("missing: 7"), "{}", row.words());
        assert!(row.json()["rows_per_second"].is_null());
        assert_eq!(row.json()["runs"][1]["missing"], 7);
    }
}

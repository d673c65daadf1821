//! What was measured, as a table for people, and as JSON.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::case::{Load, Reading};
use super::figure::{Figure, figure_of};
use super::kills::Kills;
use super::measure::Run;
use super::steady;
use super::subject::Name;
use super::writers::Writers;
use crate::machine;
use crate::screen::thousands;

/// All runs of one subject on one case.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) subject: Name,
    pub(super) runs: Vec<Run>,
    /// Why it has none, or fewer.
    pub(super) note: Option<String>,
}

/// One case.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) load: Load,
    pub(super) reading: Reading,
    pub(super) rows: Vec<Row>,
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
    pub(super) steady: Vec<steady::Steady>,
    pub(super) writers: Vec<Writers>,
}

impl Row {
    /// Over the runs that lost nothing; `None` when a run lost something, or there is none.
    pub(super) fn figure(&self, of: fn(&Run) -> f64) -> Option<Figure> {
        if self.runs.is_empty() || self.runs.iter().any(|run| !run.verdict.is_true()) {
            return None;
        }
        figure_of(self.runs.iter().map(of))
    }

    fn words(&self) -> String {
        let untrue = self.runs.iter().filter(|run| !run.verdict.is_true()).count();
        let repeated: u64 = self.runs.iter().map(|run| run.verdict.repeated).sum();
        let mut words = Vec::new();
        if untrue > 0 {
            let verdict =
                self.runs.iter().find(|run| !run.verdict.is_true()).map(|run| run.verdict).unwrap_or_default();
            words.push(format!("{untrue} run(s) with gaps, no rate: {verdict:?}"));
        }
        if repeated > 0 {
            words.push(format!("{repeated} repeats"));
        }
        words.extend(self.note.clone());
        words.join("; ")
    }

    fn json(&self) -> Value {
        let figure = |of: fn(&Run) -> f64| {
            self.figure(of).map(|figure| json!({"median": figure.median, "least": figure.least, "most": figure.most}))
        };
        let runs: Vec<Value> = self.runs.iter().map(run_json).collect();
        json!({
            "subject": self.subject.to_string(),
            "rows_per_second": figure(|run| run.rows_per_second),
            "tool_cpu_seconds_per_million": figure(|run| run.tool_cpu),
            "peak_mib": figure(|run| run.peak_mib),
            "note": self.words(),
            "runs": runs,
        })
    }
}

fn run_json(run: &Run) -> Value {
    json!({
        "seconds": run.seconds,
        "rows_per_second": run.verdict.is_true().then_some(run.rows_per_second),
        "megabytes_per_second": run.verdict.is_true().then_some(run.megabytes_per_second),
        "tool_cpu_seconds_per_million": run.tool_cpu,
        "walsender_cpu_seconds_per_million": run.walsender_cpu,
        "broker_cpu_seconds_per_million": run.broker_cpu,
        "peak_mib": run.peak_mib,
        "start_to_streaming_seconds": run.streaming_seconds,
        "start_to_first_record_seconds": run.first_record_seconds,
        "wal_behind_bytes": run.behind_bytes,
        "missing": run.verdict.missing,
        "repeated": run.verdict.repeated,
        "out_of_order": run.verdict.out_of_order,
        "wrong": run.verdict.wrong,
        "altered": run.verdict.altered,
    })
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
        for table in &self.tables {
            let line = format!("\n## {}\n\n{}\n\n{}", table.load, table.reading, markdown_table(table));
            text.push_str(&line);
        }
        for kills in &self.kills {
            text.push_str(&kills.markdown());
        }
        for steady in &self.steady {
            text.push_str(&steady.markdown());
        }
        for writers in &self.writers {
            text.push_str(&writers.markdown());
        }
        text
    }

    fn json(&self) -> Value {
        let subjects: Vec<Value> = self
            .subjects
            .iter()
            .map(|(name, found)| json!({"subject": name.to_string(), "is": found.as_ref().ok(), "missing": found.as_ref().err()}))
            .collect();
        let cases: Vec<Value> = self
            .tables
            .iter()
            .map(|table| {
                let rows: Vec<Value> = table.rows.iter().map(Row::json).collect();
                json!({"load": table.load.to_string(), "reading": table.reading.to_string(), "subjects": rows})
            })
            .collect();
        let steady: Vec<Value> = self.steady.iter().map(steady::Steady::json).collect();
        json!({
            "machine": self.machine,
            "services": self.services,
            "command": self.command,
            "subjects": subjects,
            "backlog": cases,
            "kills": self.kills.iter().map(Kills::json).collect::<Vec<_>>(),
            "steady": steady,
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

fn markdown_table(table: &Table) -> String {
    let mut text = "| | rows/s | MB/s | CPU tool | CPU walsender | CPU broker | peak MB | streaming | first record | |\n|---|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for row in &table.rows {
        let rate = row.figure(|run| run.rows_per_second).map_or_else(dash, |figure| {
            format!("{} ({}–{})", whole(figure.median), whole(figure.least), whole(figure.most))
        });
        let number = |of: fn(&Run) -> f64, digits: usize| {
            row.figure(of).map_or_else(dash, |figure| format!("{:.digits$}", figure.median))
        };
        let line = format!(
            "| {} | {rate} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.subject,
            number(|run| run.megabytes_per_second, 1),
            number(|run| run.tool_cpu, 2),
            number(|run| run.walsender_cpu, 2),
            number(|run| run.broker_cpu, 2),
            row.figure(|run| run.peak_mib).map_or_else(dash, |figure| format!("{:.0}", figure.most)),
            seconds(figure_of(row.runs.iter().filter_map(|run| run.streaming_seconds)), 3),
            seconds(row.figure(|run| run.first_record_seconds), 2),
            row.words()
        );
        text.push_str(&line);
    }
    text
}

fn seconds(figure: Option<Figure>, digits: usize) -> String {
    figure.map_or_else(dash, |figure| format!("{:.digits$} s", figure.median))
}

fn dash() -> String {
    "–".to_owned()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate")]
fn whole(rate: f64) -> String {
    thousands(rate.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::verify::Verdict;
    use super::*;

    fn run(rate: f64, missing: u64) -> Run {
        Run {
            seconds: 1.0,
            rows_per_second: rate,
            megabytes_per_second: 1.0,
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

    fn row(runs: Vec<Run>) -> Row {
        Row { subject: Name::Walrelay, runs, note: None }
    }

    #[test]
    fn the_median_and_the_range_of_runs_that_lost_nothing_are_reported() {
        let figure = row(vec![run(3.0, 0), run(1.0, 0), run(2.0, 0)]).figure(|run| run.rows_per_second);
        assert_eq!(figure, Some(Figure { median: 2.0, least: 1.0, most: 3.0 }));
    }

    #[test]
    fn a_subject_with_a_gap_in_any_run_has_no_rate_and_says_why() {
        let row = row(vec![run(3.0, 0), run(1.0, 7)]);
        assert_eq!(row.figure(|run| run.rows_per_second), None);
        assert!(row.words().contains("missing: 7"), "{}", row.words());
        assert!(run_json(&run(1.0, 7))["rows_per_second"].is_null());
    }
}

//! What was measured, as a table for people, and as JSON.

use serde_json::{Value, json};

use super::figure::{Figure, figure_of};
use super::kills::Outcome;
use super::measure::Run;
use super::steady::Steady;
use super::subject::Name;
use super::table::{Row, Table, dash, markdown, median, whole};
use super::verify::Verdict;
use crate::machine;

/// Everything.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) machine: Value,
    pub(super) services: String,
    pub(super) command: String,
    /// Each subject, or why it is not available.
    pub(super) subjects: Vec<(Name, Result<String, String>)>,
    pub(super) tables: Vec<Table<Run>>,
    pub(super) kills: Vec<Table<Outcome>>,
    pub(super) steady: Vec<Steady>,
}

impl Row<Run> {
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
                format!("\n## {}\n\n{}\n\n{}", of.load, of.reading, markdown(head, of.rows.iter().map(Row::cells)));
            text.push_str(&section);
        }
        text.extend(self.kills.iter().map(Table::markdown));
        text.extend(self.steady.iter().map(Steady::markdown));
        text
    }

    /// Everything.
    pub(super) fn json(&self) -> Value {
        let subjects: Vec<Value> = self
            .subjects
            .iter()
            .map(|(name, found)| json!({"subject": name.to_string(), "is": found.as_ref().ok(), "missing": found.as_ref().err()}))
            .collect();
        let case = |table: &Table<Run>| {
            let rows: Vec<Value> = table.rows.iter().map(Row::json).collect();
            json!({"load": table.load.to_string(), "reading": table.reading.to_string(), "subjects": rows})
        };
        json!({
            "machine": self.machine,
            "services": self.services,
            "command": self.command,
            "subjects": subjects,
            "backlog": self.tables.iter().map(case).collect::<Vec<_>>(),
            "kills": self.kills.iter().map(Table::json).collect::<Vec<_>>(),
            "steady": self.steady.iter().map(Steady::json).collect::<Vec<_>>(),
        })
    }
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

    fn row(runs: Vec<Run>) -> Row<Run> {
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

//! The tables of a report: a row for each subject, with its runs.

use std::fmt;

use anyhow::Result;
use serde::Serialize;
use walrelay_dev::brokers::Kind;

use super::case::{Load, Reading};
use super::figure::Figure;
use super::subject::Name;
use crate::screen::{failure, line, thousands};

/// Each subject, or why it is not available.
pub(super) type Found = [(Name, Result<String, String>)];

/// All subjects on one backlog, which is read in one way.
#[derive(Debug)]
pub(super) struct Table<R> {
    pub(super) load: Load,
    pub(super) reading: Reading,
    pub(super) rows: Vec<Row<R>>,
}

/// The runs of one subject, and why there are none, or no more.
#[derive(Debug, Serialize)]
pub(super) struct Row<R> {
    pub(super) subject: Name,
    pub(super) note: Option<String>,
    pub(super) runs: Vec<R>,
}

impl<R: fmt::Display> Row<R> {
    /// A row without runs. With a note it gets none.
    pub(super) fn new(subject: Name, note: Option<String>) -> Self {
        Self { subject, note, runs: Vec::new() }
    }

    /// Shows a run, and keeps it if it counts. A run that failed is the last one of its subject.
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

/// A row without runs for each subject. A subject that does not take part says why in its note.
pub(super) fn rows<R: fmt::Display>(found: &Found, load: &Load, reading: &Reading, to: Option<Kind>) -> Vec<Row<R>> {
    let row = |(name, found): &(Name, Result<String, String>)| {
        let missing = found.as_ref().err().map(|why| format!("not available: {why}"));
        Row::new(*name, missing.or_else(|| name.cannot(load, reading, to).map(str::to_owned)))
    };
    found.iter().map(row).collect()
}

/// Rows of cells below a head, as Markdown.
pub(super) fn markdown(head: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let columns = head.matches('|').count().saturating_sub(1);
    let head = format!("{head}\n|{}\n", "---|".repeat(columns));
    std::iter::once(head).chain(rows.map(|cells| format!("| {} |\n", cells.join(" | ")))).collect()
}

/// A figure's median with its unit.
pub(super) fn median(figure: Option<Figure>, digits: usize, unit: &str) -> String {
    figure.map_or_else(dash, |figure| format!("{:.digits$}{unit}", figure.median))
}

/// The cell of a figure that there is not.
pub(super) fn dash() -> String {
    "–".to_owned()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate")]
pub(super) fn whole(rate: f64) -> String {
    thousands(rate.round() as u64)
}

//! `verify`: did every row arrive, as it is?
//!
//! ```text
//!  rows:     temporary slot ─► Relay (the code of run) ─► Collector ─┐
//!                                                                    ├─► Matcher ─► report, exit code
//!  records:  topics ─► RecordReader ─────────────────────────────────┘
//! ```
//!
//! `--since` takes the rows from the table instead of a slot, and matches them in a `row_set`.
//!
//! In: the settings of a run, how long to look, or how far back. Out: a report on `out`, and an error if a row is not right or was not judged. Nothing is
//! written: no record, no row, no permanent slot, no consumer group.
//!
//! | file | what |
//! |---|---|
//! | `window` | `--follow`: the window in time, and the two threads |
//! | `since` | `--since`: the rows of the table |
//! | `collector` | the sink that keeps what rows give |
//! | `records` | what is compared of a record; pure |
//! | `matcher`, `comparison`, `fingerprints` | which row has which record; pure |
//! | `faults` | what is wrong, and how much of it is shown; pure |
//! | `row_set` | the same for the rows of a table, in 32 bytes each; pure |
//! | `tails` | how far topics are read; pure, but for a clock |
//! | `skips` | which rows the relay has skipped on purpose |
//! | `report` | what is printed |
//!
//! Invariant: exit code 0 only if each row has its record, and nothing is out of order. Without a row it is 0 only if a table was read.

mod collector;
mod comparison;
mod faults;
mod fingerprints;
mod matcher;
mod records;
mod report;
mod row_set;
mod since;
mod skips;
mod tails;
mod window;

use super::error::CommandError;
use super::run::RunRequest;
use report::Report;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The request: the rows that are compared, and how.
#[derive(Debug, Clone)]
pub struct VerifyRequest {
    /// The relay's settings.
    pub run: RunRequest,
    /// How long new rows are compared. `None`: until it is stopped. It means nothing with `since`.
    pub follow: Option<Duration>,
    /// The rows of the table are compared instead of new ones.
    pub since: Option<TableWindow>,
    /// How long the slot may take to confirm rows that are open at the end.
    pub wait: Duration,
    /// Whether the topics are this slot's alone, so that a record without a row is a fault. The topics have a common prefix then.
    pub exclusive: bool,
    /// The most faults that are shown.
    pub show: usize,
    /// Whether keys, values and headers are shown.
    pub show_values: bool,
    /// The most memory for rows and records, in bytes; at least 1 MiB.
    pub memory: u64,
    /// Print JSON.
    pub json: bool,
}

/// Which rows of the tables are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableWindow {
    /// The age of the oldest row.
    pub age: Duration,
    /// Which of these rows, as SQL. `None`: all.
    pub condition: Option<String>,
    /// The column with a row's time. `None`: found by its name.
    pub age_column: Option<String>,
}

/// Compares rows with records, and reports. `stop` becomes true when a signal has come.
///
/// # Errors
/// A row is not right or was not judged, or the comparison could not be finished.
pub fn verify(request: &VerifyRequest, out: &mut dyn Write, stop: &Arc<AtomicBool>) -> Result<(), CommandError> {
    let client = format!("walrelay/verify/{}", request.run.slot);
    let reader = || request.run.destination.reader(&client).map_err(CommandError::no_reader);
    let seen = if let Some(rows) = &request.since {
        since::since(request, rows, &reader, stop)?
    } else {
        let reader = reader()?;
        if request.exclusive && !reader.lists_topics() {
            return Err(CommandError::not_exclusive(request.run.destination.kind().title));
        }
        window::follow(request, reader, stop)?
    };
    let report = Report::new(request, &seen);
    if request.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        write!(out, "{}", report.text())?;
    }
    report.verdict()
}

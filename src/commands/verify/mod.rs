//! `verify`: did every row arrive, as it is?
//!
//! ```text
//!  rows:     temporary slot ─► Relay (the code of run) ─► Collector ─┐
//!                                                                    ├─► Matcher ─► report, exit code
//!  records:  topics ─► RecordReader ─────────────────────────────────┘
//! ```
//!
//! In: the settings of a run, how long to look. Out: a report on `out`, and an error if a row is not right or was not judged. Nothing is
//! written: no record, no row, no permanent slot, no consumer group.
//!
//! | file | what |
//! |---|---|
//! | `window` | the window in time, and the two threads |
//! | `collector` | the sink that keeps what rows give |
//! | `matcher`, `comparison`, `fingerprints` | which row has which record; pure |
//! | `report` | what is printed |
//!
//! Invariant: exit code 0 only if there was a row, each row of the window has its record, and nothing is out of order.

mod collector;
mod comparison;
mod fingerprints;
mod matcher;
mod report;
mod window;

use super::error::CommandError;
use super::run::RunRequest;
use report::Report;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What is compared, and how.
#[derive(Debug, Clone)]
pub struct VerifyRequest {
    /// The relay's settings.
    pub run: RunRequest,
    /// How long new rows are compared. `None`: until it is stopped.
    pub follow: Option<Duration>,
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

/// Compares rows with records, and reports. `stop` becomes true when a signal has come.
///
/// # Errors
/// A row is not right or was not judged, or the comparison could not be finished.
pub fn verify(request: &VerifyRequest, out: &mut dyn Write, stop: &Arc<AtomicBool>) -> Result<(), CommandError> {
    let client = format!("walrelay/verify/{}", request.run.slot);
    let reader = request.run.destination.reader(&client).map_err(CommandError::no_reader)?;
    let seen = window::follow(request, reader, stop)?;
    let report = Report::new(request, &seen);
    if request.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        write!(out, "{}", report.text())?;
    }
    report.verdict()
}

//! Says before the first record which topics would delete the records of old rows, where records have the rows' own times.
//!
//! In: the settings, the parts to read. Out: warnings in the log. How old the oldest row is, the server says within [`PATIENCE`]; what a topic
//! keeps, `check` finds. Where either is not to be seen, the warning says what may happen.

use super::parts::{PageSettings, Part};
use crate::check_finding::Level;
use crate::commands::{check, run};
use crate::outbox::Timestamp;
use crate::pg::{self, Connection, Purpose, identifier};
use std::time::Duration;

/// How long the server may look for the oldest row, as SQL.
const PATIENCE: &str = "SET statement_timeout = '10s'";

/// Warns of topics that delete records by their times.
pub(super) fn warn_of_deletion(run: &run::RunRequest, asked: &PageSettings, parts: &[Part]) {
    let Some(limit) = run.destination.deletes_by_time() else { return };
    let time = match &run.mapping.timestamp {
        Timestamp::Send => return,
        // The records get the time at which their rows are read.
        Timestamp::Commit if !asked.commit_times => return,
        Timestamp::Commit => "pg_catalog.pg_xact_commit_timestamp(xmin)".to_owned(),
        Timestamp::Column(column) => format!("{}::timestamptz", identifier(column)),
    };
    let oldest =
        oldest(run, asked, parts, &time).inspect_err(|error| tracing::debug!(%error, "the oldest row is not known"));
    let Ok(Some(oldest)) = oldest else { return warn_of(limit) };
    let Ok(found) = check::retention(run, oldest) else { return warn_of(limit) };
    for finding in found.iter().filter(|finding| finding.level != Level::Ok) {
        let hint = finding.fix.as_ref().map(ToString::to_string);
        tracing::warn!(hint, "{}; {}", finding.finding, finding.why.as_deref().unwrap_or_default());
    }
}

fn warn_of(limit: &str) {
    tracing::warn!(
        limit,
        hint = "--timestamp send",
        "records get the rows' own times; those older than the limit may be deleted before a consumer reads them"
    );
}

/// The age of the oldest row that is to be read. `None`: there is no row, or none with a time.
fn oldest(
    run: &run::RunRequest,
    asked: &PageSettings,
    parts: &[Part],
    time: &str,
) -> Result<Option<Duration>, pg::Error> {
    let mut connection = Connection::open(&run.source, Purpose::Control)?;
    connection.query(PATIENCE)?;
    let mut oldest = None;
    for part in parts {
        let rows = connection.query(&part.oldest(asked, time))?;
        let seconds: Option<i64> = rows.first().and_then(|row| row.parse(0));
        oldest = oldest.max(seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))));
    }
    Ok(oldest)
}

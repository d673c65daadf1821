//! Where a backfill begins: with the first row, or behind the last one of a run before.
//!
//! In: what was noted, and what is asked for now. Out: what is left of the parts. Pure. Invariant: a row that was acknowledged and
//! noted is not read again, unless that is asked for; a backfill of other rows of the same table is never taken for the same one.

use super::parts::{Part, Start};
use crate::commands::error::CommandError;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::pg::backfill_progress::{BackfillProgress, TableProgress};

/// Which rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedRows<'a> {
    /// As SQL.
    pub(super) condition: Option<&'a str>,
    /// By which column first.
    pub(super) order: Option<&'a str>,
    /// Whatever was published before.
    pub(super) again: bool,
}

/// The progress that is of the slot whose marker has this token.
///
/// Without a token, nothing says that the slot is the one of then, and a later one lacks rows that came in between. But one that begins before the
/// backfill did is older than it. What its relay has read since is not known, so that nothing is done.
pub(super) fn of_slot(before: &BackfillProgress, token: &str, restart_lsn: Lsn) -> BackfillProgress {
    if before.token != token {
        return BackfillProgress::default();
    }
    let mut progress = before.clone();
    if token.is_empty() {
        let is_older = |at: Lsn| restart_lsn > Lsn::ZERO && restart_lsn < at;
        progress.tables.retain(|_, table| !table.done && is_older(table.at));
    }
    progress
}

/// Returns the progress so far, and the parts that have not been read. `before`: that of the slot.
pub(super) fn resume(
    asked: &AskedRows<'_>,
    before: BackfillProgress,
    token: &str,
    tables: &[TableName],
    parts: Vec<Part>,
) -> Result<(BackfillProgress, Vec<Part>), CommandError> {
    let mut progress = BackfillProgress { token: token.to_owned(), ..before };
    let mut left = parts;
    for (at, name) in tables.iter().enumerate() {
        let title = name.to_string();
        let found = progress.tables.remove(&title).filter(|_| !asked.again);
        let fresh = || TableProgress {
            condition: asked.condition.map(str::to_owned),
            order: asked.order.map(str::to_owned),
            ..TableProgress::default()
        };
        let mut table = found.unwrap_or_else(fresh);
        if table.condition.as_deref() != asked.condition || table.order.as_deref() != asked.order {
            return Err(CommandError::other_backfill(&title, table.rows, &other(&table)));
        }
        // A key of other columns, or of another type, has another order.
        let has_key = |part: &Part| table.parts.get(&part.oid).is_none_or(|found| found.columns == part.columns());
        if !table.done && !left.iter().filter(|part| part.table == at).all(has_key) {
            table = fresh();
        }
        left = of_table(left, at, &table);
        // What was not read may have been dropped since.
        table.done = !left.iter().any(|part| part.table == at);
        progress.tables.insert(title, table);
    }
    Ok((progress, left))
}

/// The flags of the earlier one.
fn other(table: &TableProgress) -> String {
    let flags = [("--where", &table.condition), ("--order-by", &table.order)];
    let given: Vec<String> =
        flags.into_iter().filter_map(|(flag, value)| Some(format!("{flag} {:?}", value.as_ref()?))).collect();
    if given.is_empty() { "without --where and --order-by".to_owned() } else { format!("with {}", given.join(" ")) }
}

/// Without what is done of one table.
fn of_table(parts: Vec<Part>, at: usize, table: &TableProgress) -> Vec<Part> {
    let left = |mut part: Part| {
        if part.table != at {
            return Some(part);
        }
        let found = table.parts.get(&part.oid);
        if table.done || found.is_some_and(|found| found.done) {
            return None;
        }
        if let Some(found) = found {
            part.begin = found.last.as_ref().map_or(Start::First, |key| Start::After(key.as_slice().into()));
            part.until = found.until.as_deref().map(Into::into);
        }
        Some(part)
    };
    parts.into_iter().filter_map(left).collect()
}

#[cfg(test)]
mod tests;

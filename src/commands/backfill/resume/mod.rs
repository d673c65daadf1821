//! Where a backfill begins: with the first row, or behind the last one of a run before.
//!
//! In: what was noted, and what is asked for now. Out: what is left of the parts. Pure. Invariant: a row that was acknowledged and
//! noted is not read again, unless that is asked for; a backfill of other rows of the same table is never taken for the same one.

use super::parts::{Part, Start};
use crate::commands::error::CommandError;
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

/// Returns the progress so far, and the parts that have not been read.
pub(super) fn resume(
    asked: &AskedRows<'_>,
    before: Option<BackfillProgress>,
    token: &str,
    tables: &[TableName],
    parts: Vec<Part>,
) -> Result<(BackfillProgress, Vec<Part>), CommandError> {
    let fresh = || BackfillProgress { token: token.to_owned(), ..BackfillProgress::default() };
    let mut progress = before.filter(|before| before.token == token).unwrap_or_else(fresh);
    // Without a token, nothing says that the slot is the one of then: a new one lacks rows that came in between.
    if token.is_empty() {
        progress.tables.retain(|_, table| !table.done);
    }
    let mut left = parts;
    for (at, name) in tables.iter().enumerate() {
        let title = name.to_string();
        let found = progress.tables.remove(&title).filter(|_| !asked.again);
        let fresh = || TableProgress {
            condition: asked.condition.map(str::to_owned),
            order: asked.order.map(str::to_owned),
            ..TableProgress::default()
        };
        let table = found.unwrap_or_else(fresh);
        if table.condition.as_deref() != asked.condition || table.order.as_deref() != asked.order {
            return Err(CommandError::other_backfill(&title, table.rows, &other(&table)));
        }
        left = of_table(left, at, &table);
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
    let Some((schema, name)) = table.part.clone().filter(|_| !table.done) else {
        return parts.into_iter().filter(|part| part.table != at || !table.done).collect();
    };
    let reached = TableName { schema, name };
    let is_left = |part: &Part| part.table != at || part.name >= reached;
    let mut left: Vec<Part> = parts.into_iter().filter(is_left).collect();
    if let Some(part) = left.iter_mut().find(|part| part.table == at && part.name == reached) {
        part.begin = Start::After(table.key.clone().into());
    }
    for part in left.iter_mut().filter(|part| part.table == at) {
        part.until = table.until.get(&part.name.to_string()).map(|key| key.clone().into());
    }
    left
}

#[cfg(test)]
mod tests;

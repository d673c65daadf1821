//! Stores a backfill's progress where it survives a crash of walrelay, of the server and of the machine.
//!
//! In: per table, the last row before which all are acknowledged. Out: the same, after a restart. It stands as JSON in a note of the slot
//! (see `pg::large_object_state`), so that no right on any table is needed.
//!
//! Invariant: what is written down is acknowledged. What is written for one snapshot says nothing of another: a slot that was created
//! again begins from the first row.

use super::connection::Connection;
use super::error::Error;
use super::large_object_state::{self as state, Of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The note's prefix. The slot, a blank and the JSON follow it.
const PREFIX: &str = "walrelay backfill: ";

/// The advisory lock that backfills of one slot take, one after the other, with the hash of its name: "fill" in ASCII.
const LOCK: u32 = 0x6669_6c6c;

/// The progress of the backfill of one slot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BackfillProgress {
    /// The snapshot before which rows are meant.
    pub snapshot: String,
    /// Rows that were dealt with, of all tables: the number of the last one.
    pub rows: u64,
    /// By `schema.table`.
    pub tables: BTreeMap<String, TableProgress>,
}

/// The progress in one table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TableProgress {
    /// Which rows, as SQL.
    #[serde(rename = "where")]
    pub condition: Option<String>,
    /// By which column first.
    pub order: Option<String>,
    /// Rows that were dealt with.
    pub rows: u64,
    /// The partition, or the table itself, that the last of them stands in: schema and name.
    pub part: Option<(String, String)>,
    /// The file of that partition, where rows are found by their place in it.
    pub file: Option<u32>,
    /// The key of that row.
    pub key: Vec<Option<String>>,
    /// All rows are dealt with.
    pub done: bool,
}

/// Reads what is written down of `slot`, our own role's first; what cannot be understood is none.
///
/// # Errors
/// The connection broke.
pub fn read(connection: &mut Connection, slot: &str) -> Result<Option<BackfillProgress>, Error> {
    let found = state::find(connection, &format!("{PREFIX}{slot} "), Of::Anybody)?;
    Ok(found.iter().find_map(|note| serde_json::from_str(&note.text).ok()))
}

/// Where a backfill is written down that has begun and not ended, of rows before `snapshot`: the large object; `None`: there is none.
///
/// # Errors
/// The connection broke.
pub fn unfinished(connection: &mut Connection, slot: &str, snapshot: &str) -> Result<Option<u32>, Error> {
    let found = state::find(connection, &format!("{PREFIX}{slot} "), Of::Anybody)?;
    let is_open = |progress: &BackfillProgress| {
        progress.snapshot == snapshot && progress.tables.values().any(|table| !table.done && table.rows > 0)
    };
    let open = found.iter().find(|note| serde_json::from_str(&note.text).is_ok_and(|progress| is_open(&progress)));
    Ok(open.map(|note| note.place))
}

/// Writes it down, in one transaction.
///
/// # Errors
/// The connection broke, or the server takes no writes.
pub fn write(connection: &mut Connection, slot: &str, progress: &BackfillProgress) -> Result<(), Error> {
    let prefix = format!("{PREFIX}{slot} ");
    let text = format!("{prefix}{}", serde_json::to_string(progress).unwrap_or_default());
    connection.query("BEGIN")?;
    let written = state::find(connection, &prefix, Of::Own)
        .and_then(|own| state::put(connection, own.first().map(|note| note.place), &text));
    match written {
        Ok(_) => connection.query("COMMIT").map(drop),
        Err(error) => {
            // The first error says more.
            drop(connection.query("ROLLBACK"));
            Err(error)
        }
    }
}

/// Takes the lock for as long as the connection lasts; `false`: another backfill of this slot has it.
///
/// # Errors
/// The connection broke.
pub fn lock(connection: &mut Connection, slot: &str) -> Result<bool, Error> {
    let slot = super::quoting::literal(slot);
    let rows =
        connection.query(&format!("SELECT pg_catalog.pg_try_advisory_lock({LOCK}, pg_catalog.hashtext({slot}))"))?;
    Ok(rows.first().is_some_and(|row| row.is_true(0)))
}

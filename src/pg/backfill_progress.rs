//! Stores a backfill's progress in the database, so that it survives a crash of walrelay, of the server and of the machine.
//!
//! In: for each table, the last row up to which all are acknowledged. Out: the same, after a restart. The progress is JSON in a note of
//! the slot (see `pg::large_object_state`), so it needs no right on any table.
//!
//! Invariant: all rows up to the stored one are acknowledged. Progress counts only with the token of the setup marker that it was written
//! with. So if the slot was created again, the backfill starts from the first row.

use super::connection::Connection;
use super::error::Error;
use super::large_object_state::{self as state, NoteOwner};
use crate::lsn::Lsn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The note's prefix. The slot's name, a blank and the JSON follow.
const PREFIX: &str = "walrelay backfill: ";

/// The advisory lock of a slot's backfills, of which only one may run: "fill" in ASCII, and the hash of the slot's name.
const LOCK: u32 = 0x6669_6c6c;

/// The progress of the backfill of one slot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BackfillProgress {
    /// The token of the setup marker. Empty: the slot has no marker with a token.
    pub token: String,
    /// The number of rows that were handled, in all tables.
    pub rows: u64,
    /// The progress of each table, by `schema.table`.
    pub tables: BTreeMap<String, TableProgress>,
}

/// The progress in one table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TableProgress {
    /// The condition that selects the rows, as SQL.
    #[serde(rename = "where")]
    pub condition: Option<String>,
    /// The column by which rows are ordered first.
    pub order: Option<String>,
    /// The number of rows that were handled.
    pub rows: u64,
    /// The partition, or the table itself, that has the last handled row: schema and name.
    pub part: Option<(String, String)>,
    /// The key of the last handled row.
    pub key: Vec<Option<String>>,
    /// Whether all rows were handled.
    pub done: bool,
    /// The position before which each committed row is in the backfill. Later ones come through the slot.
    #[serde(default)]
    pub at: Lsn,
    /// The greatest key of each partition (`schema.table`), or of the table itself, when the backfill began: later keys are not read. Empty: the
    /// slot's own snapshot is read.
    #[serde(default)]
    pub until: BTreeMap<String, Vec<Option<String>>>,
    /// The fingerprint of each partition, or of the table itself (`pg_class.oid`), when the backfill began.
    #[serde(default)]
    pub leaves: BTreeMap<u32, String>,
}

/// Reads the progress of `slot`. The connection's role comes before others. A note that cannot be parsed counts as none.
///
/// # Errors
/// The connection broke.
pub fn read(connection: &mut Connection, slot: &str) -> Result<Option<BackfillProgress>, Error> {
    let found = state::read(connection, &prefix(slot), NoteOwner::Any)?;
    Ok(found.iter().find_map(|note| serde_json::from_str(&note.text).ok()))
}

/// Returns the large object of a backfill of the marker with this token that has begun and not ended. `None`: there is none.
///
/// # Errors
/// The connection broke.
pub fn unfinished(connection: &mut Connection, slot: &str, token: &str) -> Result<Option<u32>, Error> {
    let found = state::read(connection, &prefix(slot), NoteOwner::Any)?;
    let is_open = |progress: &BackfillProgress| {
        progress.token == token && progress.tables.values().any(|table| !table.done && table.rows > 0)
    };
    let open = found.iter().find(|note| serde_json::from_str(&note.text).is_ok_and(|progress| is_open(&progress)));
    Ok(open.map(|note| note.large_object))
}

/// Writes the progress, in one transaction.
///
/// # Errors
/// The connection broke, or the server is read-only.
pub fn write(connection: &mut Connection, slot: &str, progress: &BackfillProgress) -> Result<(), Error> {
    let text = serde_json::to_string(progress).unwrap_or_default();
    state::update(connection, &prefix(slot), |_| true, |_| Some(text))
}

/// The beginning of the notes of a slot.
pub(super) fn prefix(slot: &str) -> String {
    format!("{PREFIX}{slot} ")
}

/// Takes the lock until the connection ends. `false`: another backfill of this slot has it.
///
/// # Errors
/// The connection broke.
pub fn lock(connection: &mut Connection, slot: &str) -> Result<bool, Error> {
    let slot = super::quoting::literal(slot);
    let rows =
        connection.query(&format!("SELECT pg_catalog.pg_try_advisory_lock({LOCK}, pg_catalog.hashtext({slot}))"))?;
    Ok(rows.first().is_some_and(|row| row.is_true(0)))
}

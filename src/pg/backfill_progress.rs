//! Stores a backfill's progress in the database, so that it survives a crash of walrelay, of the server and of the machine.
//!
//! In: for each table and partition, the last row up to which all are acknowledged. Out: the same, after a restart. The progress is JSON in a
//! note of the slot (see `pg::large_object_state`), so it needs no right on any table. Partitions have their oid there, since a name may be
//! that of another one later.
//!
//! Invariant: all rows up to the stored one are acknowledged. Progress counts only with the token of the setup marker that it was written
//! with. So if the slot was created again, the backfill starts from the first row. A note in a form that is not known is a newer version's: no
//! backfill begins beside it, and it is never changed.

use super::connection::Connection;
use super::error::Error;
use super::large_object_state::{self as state, Note, NoteOwner};
use crate::lsn::Lsn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The note's prefix. The slot's name, a blank and the JSON follow.
const PREFIX: &str = "walrelay backfill: ";

/// The advisory lock of a slot's backfills, of which only one may run: "fill" in ASCII, and the hash of the slot's name.
const LOCK: u32 = 0x6669_6c6c;

/// The progress of the backfill of one slot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub struct TableProgress {
    /// The condition that selects the rows, as SQL.
    #[serde(rename = "where")]
    pub condition: Option<String>,
    /// The column by which rows are ordered first.
    pub order: Option<String>,
    /// The number of rows that were handled.
    pub rows: u64,
    /// Whether all rows were handled.
    pub done: bool,
    /// The position before which each committed row is in the backfill. Later ones come through the slot.
    pub at: Lsn,
    /// The progress of each partition, or of the table itself (`pg_class.oid`), whose rows are read by themselves.
    pub parts: BTreeMap<u32, PartProgress>,
    /// The fingerprint of each partition, or of the table itself (`pg_class.oid`), when the backfill began. `None`: it had none.
    pub leaves: BTreeMap<u32, Option<String>>,
}

/// The progress in a partition, or in a table that is read as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartProgress {
    /// The columns of the key by which its rows are read, each with its type. Empty: they are read by their place.
    pub columns: Vec<String>,
    /// The key of the last handled row. `None`: none was handled.
    pub last: Option<Vec<Option<String>>>,
    /// The greatest key when the backfill began: later keys are not read. `None`: the slot's own snapshot is read.
    pub until: Option<Vec<Option<String>>>,
    /// Whether all rows were handled.
    pub done: bool,
}

/// The stored progress of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredProgress {
    /// No backfill has stored any.
    Nothing,
    /// The progress. That of the connection's role comes before that of others.
    Known(BackfillProgress),
    /// There is progress in a form that is not known.
    Unknown {
        /// The large object that has it.
        large_object: u32,
    },
}

/// Reads the progress of `slot` that the connection's role has written, or a role that is trusted with `publication`: any other might say that
/// rows are published which are not.
///
/// # Errors
/// The connection broke.
pub fn read(connection: &mut Connection, slot: &str, publication: &str) -> Result<StoredProgress, Error> {
    Ok(stored(&state::read_own_and_trusted(connection, &prefix(slot), publication)?))
}

/// The content of a slot's notes.
fn stored(notes: &[Note]) -> StoredProgress {
    if let Some(note) = notes.iter().find(|note| parse(&note.text).is_none()) {
        return StoredProgress::Unknown { large_object: note.large_object };
    }
    let first = notes.iter().find_map(|note| parse(&note.text));
    first.map_or(StoredProgress::Nothing, StoredProgress::Known)
}

/// Returns the large object of a backfill of the marker with this token that has begun and not ended, or may have: its form is not known.
/// `None`: there is none.
///
/// # Errors
/// The connection broke.
pub fn unfinished(connection: &mut Connection, slot: &str, token: &str) -> Result<Option<u32>, Error> {
    let found = state::read(connection, &prefix(slot), NoteOwner::Any)?;
    let is_open = |progress: &BackfillProgress| {
        progress.token == token && progress.tables.values().any(|table| !table.done && table.rows > 0)
    };
    let open = found.iter().find(|note| parse(&note.text).is_none_or(|progress| is_open(&progress)));
    Ok(open.map(|note| note.large_object))
}

/// Writes the progress, in one transaction.
///
/// # Errors
/// The connection broke, or the server is read-only.
pub fn write(connection: &mut Connection, slot: &str, progress: &BackfillProgress) -> Result<(), Error> {
    let text = json(progress);
    state::update(connection, &prefix(slot), |text| parse(text).is_some(), |_| Some(text))
}

fn json(progress: &BackfillProgress) -> String {
    // Strings, numbers, positions and truth values: nothing that JSON cannot say.
    serde_json::to_string(progress).unwrap_or_default()
}

/// Reads a note's text behind its prefix, and writes it again. `None`: its form is not known.
pub fn rewritten(text: &str) -> Option<String> {
    parse(text).as_ref().map(json)
}

/// The number of rows from which on a note is not one of a backfill. Numbers of rows are positions (`backfill::feed`), and so have 64 bits.
const ROWS: u64 = 1 << 62;

/// Reads a note's text behind its prefix. `None`: its form is not known.
fn parse(text: &str) -> Option<BackfillProgress> {
    let progress: BackfillProgress = serde_json::from_str(text).ok()?;
    let mut rows = progress.tables.values().map(|table| table.rows).chain([progress.rows]);
    rows.all(|rows| rows < ROWS).then_some(progress)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_written, golden};

    fn progress() -> BackfillProgress {
        let part = PartProgress {
            columns: vec!["created_at timestamp with time zone".to_owned(), "id bigint".to_owned()],
            last: Some(vec![Some("2026-11-29 00:00:00+00".to_owned()), None]),
            until: Some(vec![Some("2026-11-30 00:00:00+00".to_owned()), Some("99".to_owned())]),
            done: false,
        };
        let table = TableProgress {
            condition: Some("id > 5".to_owned()),
            order: Some("created_at".to_owned()),
            rows: 10,
            done: false,
            at: Lsn::new(1000),
            parts: [(16385, part)].into(),
            leaves: [(16385, Some("c3d4".to_owned())), (16390, None)].into(),
        };
        let tables = [("public.outbox".to_owned(), table)].into();
        BackfillProgress { token: "a1b2.77.5".to_owned(), rows: 10, tables }
    }

    fn note(large_object: u32, text: String) -> Note {
        Note { large_object, text, own: true, owner: "r".to_owned() }
    }

    #[test]
    fn the_note_that_each_version_has_written_is_read_and_one_of_another_form_is_not() {
        assert_written("backfill.txt", &format!("{}{}\n", prefix("shop"), json(&progress())));
        for golden in golden("backfill.txt") {
            let text = golden.text.trim_end().strip_prefix(&prefix("shop")).unwrap();
            assert_eq!(parse(text), Some(progress()), "{}", golden.version);
            for (part, more) in [("{", r#""form":2,"#), (r#""public.outbox":{"#, r#""pages":[],"#)] {
                assert!(text.contains(part), "{part}");
                assert_eq!(parse(&text.replacen(part, &format!("{part}{more}"), 1)), None, "{more}");
            }
        }
    }

    #[test]
    fn a_number_of_rows_that_no_backfill_reaches_is_another_form() {
        let text = json(&progress());
        for rows in [text.replacen("10", "4611686018427387904", 1), text.replacen(":10", ":18446744073709551615", 2)] {
            assert_ne!(rows, text);
            assert_eq!(parse(&rows), None, "{rows}");
        }
    }

    #[test]
    fn progress_beside_that_of_a_newer_form_does_not_count() {
        let known = note(1, json(&progress()));
        assert_eq!(stored(&[]), StoredProgress::Nothing);
        assert_eq!(stored(std::slice::from_ref(&known)), StoredProgress::Known(progress()));
        let newer = note(2, r#"{"form":2}"#.to_owned());
        assert_eq!(stored(&[known, newer]), StoredProgress::Unknown { large_object: 2 });
    }
}

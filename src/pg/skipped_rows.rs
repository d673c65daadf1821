//! Stores which rows the relay has skipped, for `prune`: their payload is only in their table.
//!
//! In: a row's id as messages show it. Out: the ids, and whether there are more. They are JSON in a note of the slot (see
//! `pg::large_object_state`), which is written only if a row is skipped.
//!
//! Invariant: before a row is skipped, the note has its id, or says that it does not have all ids. Their number is limited, and an id
//! that cannot be compared is not listed. Only `lo_unlink` removes ids. (A setting of the role would be more usual, but a server lets
//! only superusers store settings that it does not know.)
//! Specification: PostgreSQL manual, chapter 35 "Large Objects", "COMMENT", 53.30 "pg_largeobject_metadata".

use super::connection::Connection;
use super::error::Error;
use super::large_object_state::{self as state, NoteOwner};
use serde::{Deserialize, Serialize};

/// The most ids that a slot's note has.
const MOST_ROWS: usize = 100;

/// The number of an id's characters that are compared. Messages cut longer ids off.
pub(crate) const COMPARED: usize = 64;

/// The advisory lock that relays of one role take, one after the other: "kept" and "rows" in ASCII.
const LOCK: u64 = 0x6b65_7074_726f_7773;

/// The skipped rows of one slot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SkippedRows {
    /// The first `COMPARED` characters of each id. Each id is there once.
    pub ids: Vec<String>,
    /// Whether further rows were skipped whose ids are not listed.
    pub others: bool,
}

impl SkippedRows {
    /// Adds a row. Returns whether that changed the list.
    fn add(&mut self, id: Option<&str>) -> bool {
        // Messages show an id with escapes for control characters, and with a replacement for bytes that are not text. Such an id
        // cannot be compared.
        let id = id.filter(|id| !id.contains(['\\', char::REPLACEMENT_CHARACTER]));
        let id = id.map(|id| id.chars().take(COMPARED).collect::<String>());
        match id {
            Some(id) if self.ids.contains(&id) => false,
            Some(id) if self.ids.len() < MOST_ROWS => {
                self.ids.push(id);
                true
            }
            Some(_) | None => !std::mem::replace(&mut self.others, true),
        }
    }

    fn join(&mut self, other: Self) {
        self.others |= other.others;
        self.ids.extend(other.ids);
    }
}

/// The note's prefix. The slot's name, a blank and the JSON follow.
const PREFIX: &str = "walrelay passed over: ";

/// The rows of `slot` that relays of any role have skipped, and the large objects that have the notes.
///
/// # Errors
/// The connection broke.
pub fn read(connection: &mut Connection, slot: &str) -> Result<(SkippedRows, Vec<u32>), Error> {
    let mut skipped = SkippedRows::default();
    let notes = notes(connection, slot, NoteOwner::Any)?;
    let large_objects = notes.iter().map(|(large_object, _)| *large_object).collect();
    for (_, note) in notes {
        // A note that cannot be parsed may have any row.
        skipped.join(note.unwrap_or(SkippedRows { ids: Vec::new(), others: true }));
    }
    Ok((skipped, large_objects))
}

/// Notes that a row of `slot` is skipped. `id`: as messages show it.
///
/// # Errors
/// The connection broke, or the server is read-only.
pub fn note(connection: &mut Connection, slot: &str, id: Option<&str>) -> Result<(), Error> {
    // The slot's position survives a crash of the server, so the note has to, whatever the role's `synchronous_commit` is.
    connection.query(&format!(
        "BEGIN; SELECT pg_catalog.set_config('synchronous_commit', 'local', true)
          WHERE pg_catalog.current_setting('synchronous_commit') = 'off';
         SELECT pg_catalog.pg_advisory_xact_lock({LOCK})"
    ))?;
    let (large_object, mut skipped) = match notes(connection, slot, NoteOwner::Own)?.into_iter().next() {
        Some((large_object, skipped)) => (Some(large_object), skipped.unwrap_or_default()),
        None => (None, SkippedRows::default()),
    };
    if skipped.add(id) || large_object.is_none() {
        let text = format!("{PREFIX}{slot} {}", serde_json::to_string(&skipped).unwrap_or_default());
        state::write(connection, large_object, &text)?;
    }
    connection.query("COMMIT").map(drop)
}

/// Copies the notes of the slot `from` to the slot `to`, whose relay publishes its rows from now on.
///
/// # Errors
/// The connection broke, or the server is read-only.
pub fn copy(connection: &mut Connection, from: &str, to: &str) -> Result<(), Error> {
    for note in state::read(connection, &format!("{PREFIX}{from} "), NoteOwner::Any)? {
        state::write(connection, None, &format!("{PREFIX}{to} {}", note.text))?;
    }
    Ok(())
}

/// Each large object with a note of `slot`, and the note. `None`: the note cannot be parsed.
fn notes(connection: &mut Connection, slot: &str, of: NoteOwner) -> Result<Vec<(u32, Option<SkippedRows>)>, Error> {
    let found = state::read(connection, &format!("{PREFIX}{slot} "), of)?;
    Ok(found.into_iter().map(|note| (note.large_object, serde_json::from_str(&note.text).ok())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_once_and_beyond_the_bound_it_is_said_that_there_are_others() {
        let mut skipped = SkippedRows::default();
        assert!(skipped.add(Some("a")) && !skipped.add(Some("a")) && !skipped.others);
        for row in 0..MOST_ROWS - 1 {
            assert!(skipped.add(Some(&row.to_string())));
        }
        assert!(skipped.add(Some("one more")) && skipped.others && skipped.ids.len() == MOST_ROWS);
        assert!(!skipped.add(Some("another")));
    }

    #[test]
    fn an_id_that_cannot_be_compared_is_one_of_the_others() {
        for id in [None, Some("a\\n"), Some("\u{FFFD}")] {
            let mut skipped = SkippedRows::default();
            assert!(skipped.add(id));
            assert_eq!(skipped, SkippedRows { ids: Vec::new(), others: true });
        }
        let mut skipped = SkippedRows::default();
        skipped.add(Some(&"ä".repeat(80)));
        assert_eq!(skipped.ids, ["ä".repeat(COMPARED)]);
    }
}

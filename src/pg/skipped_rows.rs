//! Stores which rows the relay has skipped, for `prune`: their payload is only in their table.
//!
//! In: a row's id as messages show it. Out: the ids, and whether there are more. They are JSON in a note of the slot (see
//! `pg::large_object_state`), which is written only if a row is skipped.
//!
//! Invariant: before the slot's position passes a skipped row, a note has its id, or says that it does not have all ids. Their number is
//! limited, and an id that cannot be compared is not listed. A note in a form that is not known is a newer version's: it may have any row, and
//! it is never changed. Only `lo_unlink` removes ids. (A setting of the role would be more usual, but a server lets
//! only superusers store settings that it does not know.)
//! Specification: PostgreSQL manual, chapter 35 "Large Objects", "COMMENT", 53.30 "pg_largeobject_metadata".

use super::connection::Connection;
use super::error::Error;
use super::large_object_state::{self as state, NoteOwner};
use super::quoting::literal;
use crate::lsn::Lsn;
use serde::{Deserialize, Serialize};

/// The most ids that a slot's note has.
const MOST_ROWS: usize = 100;

/// The number of an id's characters that are compared. Messages cut longer ids off.
pub(crate) const COMPARED: usize = 64;

/// The skipped rows of one slot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkippedRows {
    /// The first `COMPARED` characters of each id. Each id is there once.
    pub ids: Vec<String>,
    /// Whether further rows were skipped whose ids are not listed.
    pub others: bool,
}

impl SkippedRows {
    /// Adds a row. Returns whether that changed the list.
    pub(crate) fn add(&mut self, id: Option<&str>) -> bool {
        if self.others && self.ids.len() >= MOST_ROWS {
            return false;
        }
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

    /// Adds the rows of `other`. Returns whether that changed the list.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        let has_others = other.others && !std::mem::replace(&mut self.others, true);
        other.ids.iter().fold(has_others, |changed, id| self.add(Some(id)) || changed)
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
    let notes = state::read(connection, &prefix_of(slot), NoteOwner::Any)?;
    let large_objects = notes.iter().map(|note| note.large_object).collect();
    for note in &notes {
        // A note that cannot be parsed may have any row.
        skipped.join(parse(&note.text).unwrap_or(SkippedRows { ids: Vec::new(), others: true }));
    }
    Ok((skipped, large_objects))
}

/// Notes that `rows` of `slot` are skipped, in one transaction. Returns the position up to which the standbys of
/// `synchronized_standby_slots` have to have the log, if the slot is one that they may take over: see [`standbys_without`].
///
/// # Errors
/// The connection broke, or the server is read-only.
pub(crate) fn note(connection: &mut Connection, slot: &str, rows: &SkippedRows) -> Result<Option<Lsn>, Error> {
    state::update(
        connection,
        &prefix_of(slot),
        |text| parse(text).is_some(),
        |text| {
            let mut skipped = text.and_then(parse).unwrap_or_default();
            let is_changed = skipped.merge(rows);
            (is_changed || text.is_none()).then(|| json(&skipped))
        },
    )?;
    // The column is there from version 17 on.
    let position = connection.query(&format!(
        "SELECT pg_catalog.pg_current_wal_flush_lsn() FROM pg_catalog.pg_replication_slots AS s
          WHERE s.slot_name = {} AND pg_catalog.to_jsonb(s) ->> 'failover' = 'true'",
        literal(slot)
    ))?;
    Ok(position.first().and_then(|row| row.parse(0)))
}

/// The standbys of `synchronized_standby_slots` that do not have the log up to `at`, by their slots.
///
/// # Errors
/// The connection broke.
pub(crate) fn standbys_without(connection: &mut Connection, slot: &str, at: Lsn) -> Result<Option<String>, Error> {
    let rows = connection.query(&format!(
        "SELECT pg_catalog.string_agg(standby.slot_name, ', ' ORDER BY standby.slot_name)
           FROM pg_catalog.pg_replication_slots AS standby
          WHERE standby.slot_type = 'physical' AND standby.slot_name <> {}
            AND standby.slot_name = ANY (pg_catalog.string_to_array(pg_catalog.translate(
                  pg_catalog.current_setting('synchronized_standby_slots', true), ' \"', ''), ','))
            AND (standby.restart_lsn IS NULL OR standby.restart_lsn < '{at}'::pg_lsn)",
        literal(slot)
    ))?;
    Ok(rows.first().and_then(|row| row.text(0)).map(str::to_owned))
}

/// Copies the notes of the slot `from` to the slot `to`, whose relay publishes its rows from now on.
///
/// # Errors
/// The connection broke, or the server is read-only.
pub fn copy(connection: &mut Connection, from: &str, to: &str) -> Result<(), Error> {
    for note in state::read(connection, &prefix_of(from), NoteOwner::Any)? {
        state::write(connection, None, &(prefix_of(to) + &note.text))?;
    }
    Ok(())
}

fn prefix_of(slot: &str) -> String {
    format!("{PREFIX}{slot} ")
}

fn json(skipped: &SkippedRows) -> String {
    // Strings and a truth value: nothing that JSON cannot say.
    serde_json::to_string(skipped).unwrap_or_default()
}

/// Reads a note's text behind its prefix, and writes it again. `None`: its form is not known.
pub fn rewritten(text: &str) -> Option<String> {
    parse(text).as_ref().map(json)
}

/// Reads a note's text behind its prefix. `None`: its form is not known.
fn parse(text: &str) -> Option<SkippedRows> {
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_written, golden};

    #[test]
    fn the_note_that_each_version_has_written_is_read_and_one_of_another_form_is_not() {
        let skipped = SkippedRows { ids: vec!["order-7".into(), "ä".into()], others: true };
        assert_written("skipped-rows.txt", &format!("{}{}\n", prefix_of("shop"), json(&skipped)));
        for note in golden("skipped-rows.txt") {
            let text = note.text.trim_end().strip_prefix(&prefix_of("shop"));
            assert_eq!(text.and_then(parse), Some(skipped.clone()), "{}", note.version);
        }
        for text in [r#"{"form":2,"ids":[],"others":false}"#, r#"{"ids":[]}"#, r#"{"ids":["1-9"],"others":0}"#, "x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

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

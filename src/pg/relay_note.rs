//! Stores what the relay of a slot reads: which tables, and which column has the ids of their rows.
//!
//! In: the relay's settings, and the position from which it reads. Out: the same, for `prune`. The note is JSON in a note of the slot (see
//! `pg::large_object_state`).
//!
//! Invariant: the note only loses trust by itself. A table that the relay did not read for a while, or read with another id column, is read
//! since the position at which it is read again: what was committed before is in no topic, or cannot be found by its id. A trusted note in a
//! form that is not known is a newer version's. It may say that the relay did not read a table, so nothing is known from the other notes of the
//! slot either (`StoredNote::Unknown`), and it is never changed.

use super::connection::{Connection, Row};
use super::error::Error;
use super::large_object_state::{self as state, Note};
use super::marker;
use crate::lsn::Lsn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The note's prefix. The slot's name, a blank and the JSON follow.
const PREFIX: &str = "walrelay relay: ";

/// In the place of a table, that the relay reads all tables of the publication.
pub(crate) const ALL: &str = "*";

/// A relay's note.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RelayNote {
    /// The marker's token.
    pub(crate) token: String,
    /// The end of the WAL when the note was written. The latest note counts.
    pub(crate) at: Lsn,
    /// The tables that it reads (`pg_class.oid`), or [`ALL`], each with the position since which it does.
    pub(crate) reads: BTreeMap<String, Lsn>,
    /// The id's column of each table (`pg_class.oid`, of partitions the topmost table above them), with the position since which it is that one.
    /// Also of tables that it does not read now: rows that it has skipped are listed by that column. A table that is not here has no such row.
    pub(crate) ids: BTreeMap<String, (String, Lsn)>,
    /// Whether it leaves out rows that a subscription applied.
    #[serde(default)]
    pub(crate) only_local: bool,
}

/// The tables and columns that a relay reads now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reading {
    /// The names of the tables: schema and name. Empty: all tables of the publication.
    pub(crate) tables: Vec<(String, String)>,
    /// The id's column of each table: schema and name.
    pub(crate) ids: BTreeMap<(String, String), String>,
    /// Whether rows are left out that a subscription applied.
    pub(crate) only_local: bool,
}

impl RelayNote {
    /// Since when the relay has read a table: the table itself or one above it in `chain`, by [`super::leaves::Leaf::chain`]. `None`: it does
    /// not read it.
    pub(crate) fn since(&self, chain: &[u32]) -> Option<Lsn> {
        let named = chain.iter().filter_map(|oid| self.reads.get(&oid.to_string()));
        named.chain(self.reads.get(ALL)).min().copied()
    }

    /// The id's column of a table, with the position since which it is that one. `chain`: as for [`Self::since`]. `None`: no row of it is listed
    /// by its id.
    pub(crate) fn id(&self, chain: &[u32]) -> Option<&(String, Lsn)> {
        self.ids.get(&chain.last()?.to_string())
    }

    /// The note that follows `former`, for a relay that reads the slot from `position` on. `unread`: nobody has read the slot before.
    fn next(former: Option<&Self>, token: &str, now: &Self, position: Lsn, unread: bool) -> Self {
        let new = if former.is_none() && unread { Lsn::ZERO } else { position };
        // What a relay has left out is in no topic, though it reads the table.
        let former = former.filter(|former| now.only_local || !former.only_local);
        let all = former.and_then(|former| former.reads.get(ALL)).copied();
        let since = |table: &String| former.and_then(|former| former.reads.get(table).copied()).or(all).unwrap_or(new);
        let mut ids = former.map(|former| former.ids.clone()).unwrap_or_default();
        for (table, (column, _)) in &now.ids {
            let known = ids.entry(table.clone()).or_insert_with(|| (column.clone(), Lsn::ZERO));
            if known.0 != *column {
                *known = (column.clone(), position);
            }
        }
        Self {
            token: token.to_owned(),
            at: now.at,
            reads: now.reads.keys().map(|table| (table.clone(), since(table))).collect(),
            ids,
            only_local: now.only_local,
        }
    }

    /// Whether it says the same as another one.
    fn says_same(&self, other: &Self) -> bool {
        let of = |note: &Self| (note.token.clone(), note.reads.clone(), note.ids.clone(), note.only_local);
        of(self) == of(other)
    }
}

/// The content of a slot's trusted notes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoredNote {
    /// No relay has noted anything with the marker's token.
    Nothing,
    /// The latest note with the marker's token.
    Known {
        note: RelayNote,
        /// Whether the connection's role owns it.
        own: bool,
    },
    /// At least one note has a form that is not known. Nothing is known from the others.
    Unknown {
        /// The large objects of all trusted notes of the slot. An older note must not outlive the unknown one, since it would be believed.
        large_objects: Vec<u32>,
    },
}

impl StoredNote {
    /// Reads the trusted notes of a slot.
    fn of(notes: &[Note], token: &str) -> Self {
        let mut latest: Option<(RelayNote, bool)> = None;
        for found in notes {
            let Some(note) = parse(&found.text) else {
                return Self::Unknown { large_objects: notes.iter().map(|note| note.large_object).collect() };
            };
            let is_later = latest.as_ref().is_none_or(|(last, own)| (last.at, *own) <= (note.at, found.own));
            if note.token == token && is_later {
                latest = Some((note, found.own));
            }
        }
        latest.map_or(Self::Nothing, |(note, own)| Self::Known { note, own })
    }

    /// The note, if its form is known.
    pub(crate) fn note(self) -> Option<RelayNote> {
        match self {
            Self::Known { note, .. } => Some(note),
            Self::Nothing | Self::Unknown { .. } => None,
        }
    }
}

/// Reads what the trusted notes of the slot say with this token.
///
/// # Errors
/// The connection broke.
pub(crate) fn read(
    connection: &mut Connection,
    (publication, slot): (&str, &str),
    token: &str,
) -> Result<StoredNote, Error> {
    Ok(StoredNote::of(&state::read_trusted(connection, &prefix(slot), publication)?, token))
}

/// The outcome of writing a note.
#[derive(Debug)]
pub(crate) enum Noted {
    /// It is written, or was there, or the publication has no marker that a note could go with.
    Yes,
    /// It could not be written. `contradicts`: an earlier note says something else, or may do so, and would be believed: one of a newer form
    /// by the version that has written it.
    No { error: Error, contradicts: bool },
}

/// Notes what a relay reads from `position` on, before it reads the first row. A server in recovery takes no note: nobody can delete rows by
/// a slot of a standby. `accepted`: rows from before the position may be in no topic, whatever an earlier note says.
///
/// Beside a note of a newer form, what is written counts from `position` on, each time anew: that version finds the latest, and goes on with it.
///
/// # Errors
/// The connection broke, or a question was refused.
pub(crate) fn keep(
    connection: &mut Connection,
    (publication, slot): (&str, &str),
    comment: Option<&str>,
    reading: &Reading,
    (position, accepted): (Lsn, bool),
) -> Result<Noted, Error> {
    let Some(token) = marker::token_of_here(connection, comment, slot)? else { return Ok(Noted::Yes) };
    let listed = marker::statements(comment, slot).first().map(|listed| listed.at).unwrap_or_default();
    let stored = read(connection, (publication, slot), &token)?;
    let (is_any, is_unknown) = (stored != StoredNote::Nothing, matches!(stored, StoredNote::Unknown { .. }));
    let former = match stored {
        StoredNote::Known { note, own } => Some((note, own)),
        StoredNote::Nothing | StoredNote::Unknown { .. } => None,
    };
    let oids = oids(connection, reading.tables.iter().chain(reading.ids.keys()))?;
    let named = reading.tables.iter().filter_map(|table| oids.get(table).cloned());
    let reads = if reading.tables.is_empty() { vec![ALL.to_owned()] } else { named.collect() };
    let id_of = |(table, id): (&_, &String)| Some((oids.get(table)?.clone(), (id.clone(), Lsn::ZERO)));
    let now = RelayNote {
        at: Lsn::ZERO,
        token: String::new(),
        reads: reads.into_iter().map(|table| (table, Lsn::ZERO)).collect(),
        ids: reading.ids.iter().filter_map(id_of).collect(),
        only_local: reading.only_local,
    };
    let next = |before: Option<&RelayNote>| {
        let unread = before.is_none() && !is_unknown && position <= listed && !accepted;
        RelayNote::next(before.filter(|_| !accepted), &token, &now, position, unread)
    };
    let is_said = former.as_ref().is_some_and(|(former, _)| former.says_same(&next(Some(former))));
    if is_said && former.as_ref().is_some_and(|(_, own)| *own) {
        return Ok(Noted::Yes);
    }
    let written = at(connection).and_then(|at| {
        // Another process of this role may have written since.
        let after = |own: Option<&str>| {
            let own = own.and_then(parse).filter(|own| own.token == token && !is_unknown);
            let before = latest(former.as_ref().map(|(note, _)| note), own.as_ref());
            Some(json(&RelayNote { at, ..next(before) }))
        };
        state::update(connection, &prefix(slot), |text| parse(text).is_some(), after)
    });
    match written {
        // The note of another role says it, too.
        Err(Error::Server { .. }) if is_said => Ok(Noted::Yes),
        Err(error @ Error::Server { .. }) => Ok(Noted::No { error, contradicts: is_any }),
        written => written.map(|()| Noted::Yes),
    }
}

/// The later one of two notes. Of two with the same position, the other one.
fn latest<'a>(one: Option<&'a RelayNote>, other: Option<&'a RelayNote>) -> Option<&'a RelayNote> {
    one.into_iter().chain(other).max_by_key(|note| note.at)
}

fn at(connection: &mut Connection) -> Result<Lsn, Error> {
    Ok(connection.value("SELECT pg_catalog.pg_current_wal_insert_lsn()")?.unwrap_or_default())
}

/// The oids of tables, as texts, by schema and name. A table that is not there is left out.
fn oids<'a>(
    connection: &mut Connection,
    tables: impl Iterator<Item = &'a (String, String)>,
) -> Result<BTreeMap<(String, String), String>, Error> {
    let names: Vec<String> =
        tables.map(|(schema, name)| format!("({}, {})", super::literal(schema), super::literal(name))).collect();
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let rows = connection.query(&format!(
        "SELECT n.nspname, c.relname, c.oid FROM pg_catalog.pg_class AS c
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE (n.nspname::text, c.relname::text) IN ({})",
        names.join(", ")
    ))?;
    let text = |row: &Row, index| row.text(index).map(str::to_owned);
    Ok(rows.iter().filter_map(|row| Some(((text(row, 0)?, text(row, 1)?), text(row, 2)?))).collect())
}

/// The beginning of the notes of a slot.
pub(super) fn prefix(slot: &str) -> String {
    format!("{PREFIX}{slot} ")
}

fn json(note: &RelayNote) -> String {
    // Strings, positions and a truth value: nothing that JSON cannot say.
    serde_json::to_string(note).unwrap_or_default()
}

/// Reads a note's text behind its prefix, and writes it again. `None`: its form is not known.
pub fn rewritten(text: &str) -> Option<String> {
    parse(text).as_ref().map(json)
}

/// Reads a note's text behind its prefix. `None`: its form is not known.
fn parse(text: &str) -> Option<RelayNote> {
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_written, golden};

    #[test]
    fn the_note_that_each_version_has_written_is_read_and_one_of_another_form_is_not() {
        let note = RelayNote {
            token: "a1b2.77.5".to_owned(),
            at: Lsn::new(1000),
            reads: [("16385".to_owned(), Lsn::new(500))].into(),
            ids: [("16385".to_owned(), ("event_id".to_owned(), Lsn::new(500)))].into(),
            only_local: true,
        };
        assert_written("relay-note.txt", &format!("{}{}\n", prefix("shop"), json(&note)));
        for golden in golden("relay-note.txt") {
            let text = golden.text.trim_end().strip_prefix(&prefix("shop")).unwrap();
            assert_eq!(parse(text), Some(note.clone()), "{}", golden.version);
            assert_eq!(parse(&text.replacen('{', r#"{"form":2,"#, 1)), None, "{}", golden.version);
            let more = text.replace(r#"["event_id","0/1F4"]"#, r#"["event_id","0/1F4",2]"#);
            assert_eq!((parse(&more), more != text), (None, true), "{}", golden.version);
        }
    }

    #[test]
    fn the_latest_note_counts_and_one_of_a_newer_form_leaves_nothing_known() {
        let of = |large_object, at, own, token: &str| {
            let note = RelayNote { at: Lsn::new(at), token: token.to_owned(), ..reads(&[("1", at)]) };
            Note { large_object, text: json(&note), own, owner: "r".to_owned() }
        };
        let known = |at, own| StoredNote::Known { note: RelayNote { at: Lsn::new(at), ..reads(&[("1", at)]) }, own };
        let notes = [of(1, 7, true, "t"), of(2, 9, false, "t"), of(3, 11, true, "of an earlier marker")];
        assert_eq!(StoredNote::of(&notes, "t"), known(9, false));
        assert_eq!(StoredNote::of(&[of(1, 9, true, "t"), of(2, 9, false, "t")], "t"), known(9, true));
        assert_eq!(StoredNote::of(&notes, "another"), StoredNote::Nothing);
        let newer = Note { text: r#"{"form":2,"token":"t"}"#.to_owned(), ..of(4, 0, false, "t") };
        let notes: Vec<Note> = notes.into_iter().chain([newer]).collect();
        assert_eq!(StoredNote::of(&notes, "t"), StoredNote::Unknown { large_objects: vec![1, 2, 3, 4] });
        assert_eq!(StoredNote::of(&notes, "t").note(), None);
    }

    #[test]
    fn of_two_notes_the_later_one_counts_and_of_two_with_one_position_the_second() {
        let at = |at, since| RelayNote { at: Lsn::new(at), ..reads(&[("1", since)]) };
        let (former, own) = (at(7, 1), at(7, 2));
        assert_eq!(latest(Some(&former), Some(&own)), Some(&own));
        assert_eq!(latest(Some(&at(9, 1)), Some(&own)), Some(&at(9, 1)));
        assert_eq!(latest(Some(&former), Some(&at(8, 2))), Some(&at(8, 2)));
        assert_eq!((latest(Some(&former), None), latest(None, Some(&own))), (Some(&former), Some(&own)));
        assert_eq!(latest(None, None), None);
    }

    fn reads(tables: &[(&str, u64)]) -> RelayNote {
        let reads = tables.iter().map(|(table, since)| ((*table).to_owned(), Lsn::new(*since))).collect();
        RelayNote { token: "t".to_owned(), reads, ..RelayNote::default() }
    }

    fn with_id(column: &str, since: u64, note: RelayNote) -> RelayNote {
        RelayNote { ids: [("1".to_owned(), (column.to_owned(), Lsn::new(since)))].into(), ..note }
    }

    #[track_caller]
    fn check(former: Option<&RelayNote>, now: &RelayNote, unread: bool, expected: &RelayNote) {
        assert_eq!(&RelayNote::next(former, "t", now, Lsn::new(500), unread), expected);
    }

    #[test]
    fn a_table_that_was_not_read_for_a_while_is_read_since_it_is_read_again() {
        check(None, &reads(&[("1", 0)]), true, &reads(&[("1", 0)]));
        check(None, &reads(&[("1", 0)]), false, &reads(&[("1", 500)]));
        check(Some(&reads(&[("1", 7), ("2", 7)])), &reads(&[("1", 0)]), false, &reads(&[("1", 7)]));
        check(Some(&reads(&[("1", 7)])), &reads(&[("1", 0), ("2", 0)]), false, &reads(&[("1", 7), ("2", 500)]));
        check(Some(&reads(&[("*", 7)])), &reads(&[("1", 0)]), false, &reads(&[("1", 7)]));
        check(Some(&reads(&[("1", 7)])), &reads(&[("*", 0)]), false, &reads(&[("*", 500)]));
    }

    #[test]
    fn rows_that_a_relay_has_left_out_are_read_since_none_is() {
        let local = |note: RelayNote| RelayNote { only_local: true, ..note };
        let (before, now) = (reads(&[("1", 7)]), reads(&[("1", 0)]));
        check(Some(&before), &local(now.clone()), false, &local(before.clone()));
        check(Some(&local(before.clone())), &local(now.clone()), false, &local(before.clone()));
        check(Some(&local(before)), &now, false, &reads(&[("1", 500)]));
    }

    #[test]
    fn another_id_column_counts_since_the_relay_has_it() {
        let table = || reads(&[("1", 0)]);
        let before = with_id("id", 0, table());
        check(Some(&before), &with_id("id", 0, table()), false, &before);
        check(Some(&before), &with_id("event_id", 0, table()), false, &with_id("event_id", 500, table()));
    }

    /// A start that ends since another table cannot be mapped names no column.
    #[test]
    fn the_id_column_of_a_table_is_remembered_where_a_relay_does_not_name_one() {
        let table = || reads(&[("1", 0)]);
        let before = with_id("id", 0, table());
        check(Some(&before), &table(), false, &before);
        check(None, &table(), true, &table());
        check(Some(&table()), &with_id("event_id", 0, table()), false, &with_id("event_id", 0, table()));
    }

    #[test]
    fn a_partition_is_read_with_the_table_that_it_is_a_part_of() {
        let note = reads(&[("1", 7), ("3", 9)]);
        assert_eq!(note.since(&[2, 1]), Some(Lsn::new(7)));
        assert_eq!(note.since(&[2, 4]), None);
        assert_eq!(reads(&[("*", 3)]).since(&[2, 4]), Some(Lsn::new(3)));
    }
}

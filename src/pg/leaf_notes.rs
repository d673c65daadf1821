//! Decides of which tables it is known that each of their rows is published, or will come through the slot.
//!
//! In: the setup marker, the notes of the slot, and the tables of the publication as they are now (`pg::leaves`). Out: for each table,
//! since which position in the WAL that is known. Positive records alone count:
//!
//! | record | written by | says |
//! |---|---|---|
//! | the marker's list | `setup`, once the slot is there | the table had no row |
//! | the marker's list, and the table was created as a partition of a table in it | `setup` | the table is younger than the list |
//! | a statement in the marker | a person, by `setup --published` | its rows are published |
//! | a note | the relay, which looks from time to time | the table had no row while it was published |
//! | a note | `backfill`, at the end of a table | its rows are published |
//!
//! Invariant: each record has the fingerprint of the table, and counts while the table has that fingerprint. A note counts with the
//! marker's token, and if its owner is trusted. A note in a form that is not known says nothing, which takes nothing from the others, and is never
//! changed. A line of the marker in such a form may take something from each record: then nothing is known.

use super::backfill_progress;
use super::connection::Connection;
use super::error::Error;
use super::large_object_state as state;
use super::leaves::{self, Leaf};
use super::marker::{self, TableStatement};
use super::relay_note;
use crate::lsn::Lsn;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The note's prefix. The slot's name, a blank and the JSON follow.
const PREFIX: &str = "walrelay tables: ";

/// A note of tables.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeafNote {
    /// The marker's token.
    token: String,
    /// For each table (`pg_class.oid`) its fingerprint, and the position.
    tables: BTreeMap<u32, (String, Lsn)>,
}

/// The records of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// The marker's token.
    pub(crate) token: String,
    /// The tables that `setup` listed.
    listed: TableStatement,
    /// All other records: for each table its fingerprints, with the positions.
    stated: Vec<(u32, String, Lsn)>,
    /// The large object of a trusted note in a form that is not known.
    pub(crate) unknown_note: Option<u32>,
}

impl Known {
    /// Reads the records. `comment`: that of the publication. `None`: its marker has no token, or is that of another database, or has a line in a
    /// form that is not known ([`marker::unknown_line`]).
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) fn read(
        connection: &mut Connection,
        publication: &str,
        slot: &str,
        comment: Option<&str>,
    ) -> Result<Option<Self>, Error> {
        if marker::unknown_line(comment, slot).is_some() {
            return Ok(None);
        }
        let Some(token) = marker::token_of_here(connection, comment, slot)? else { return Ok(None) };
        let mut statements = marker::statements(comment, slot).into_iter();
        let listed = statements.next().unwrap_or_default();
        let mut stated: Vec<(u32, String, Lsn)> = statements
            .flat_map(|statement| {
                let at = statement.at;
                statement.known.into_iter().map(move |(oid, fingerprint)| (oid, fingerprint, at))
            })
            .collect();
        let mut unknown_note = None;
        for found in state::read_trusted(connection, &prefix(slot), publication)? {
            match parse(&found.text) {
                Some(note) if note.token == token => {
                    stated.extend(note.tables.into_iter().map(|(oid, (fingerprint, at))| (oid, fingerprint, at)));
                }
                Some(_) => {}
                None => unknown_note = Some(found.large_object),
            }
        }
        Ok(Some(Self { token, listed, stated, unknown_note }))
    }

    /// The latest position for which a record says of the table that its rows until then are published. `None`: no record does. `all`: the
    /// tables as they are now.
    pub(crate) fn since(&self, leaf: &Leaf, all: &BTreeMap<u32, Leaf>) -> Option<Lsn> {
        self.recorded(leaf).max(self.is_listed(leaf, all).then_some(self.listed.at))
    }

    /// As [`Self::since`], by the records that name the table itself. They outlive that it is rewritten.
    fn recorded(&self, leaf: &Leaf) -> Option<Lsn> {
        let fingerprint = leaf.fingerprint.as_ref()?;
        let stated = self.stated.iter().filter(|(oid, known, _)| *oid == leaf.oid && known == fingerprint);
        let listed = (self.listed.known.get(&leaf.oid) == Some(fingerprint)).then_some(self.listed.at);
        stated.map(|(_, _, at)| *at).chain(listed).max()
    }

    /// Whether the marker lists the table as empty, or the table was created later, in a partitioned table that it lists.
    fn is_listed(&self, leaf: &Leaf, all: &BTreeMap<u32, Leaf>) -> bool {
        let Some(fingerprint) = &leaf.fingerprint else { return false };
        if self.listed.has(leaf.oid) {
            return self.listed.known.get(&leaf.oid) == Some(fingerprint);
        }
        let parent = leaf.parent().and_then(|parent| all.get(&parent));
        leaf.is_born && parent.is_some_and(|parent| self.is_listed(parent, all))
    }
}

/// Notes tables that are known from the position on, with their fingerprints. Tables that are gone, or are not as they were, are forgotten. Of
/// two positions the later one stays.
///
/// # Errors
/// The server is read-only, the role has no right to write notes, or the connection broke.
pub(crate) fn note(
    connection: &mut Connection,
    (slot, token): (&str, &str),
    tables: &[(u32, String)],
    at: Lsn,
    all: &BTreeMap<u32, Leaf>,
) -> Result<(), Error> {
    state::update(
        connection,
        &prefix(slot),
        |text| parse(text).is_some(),
        |text| {
            let found = text.and_then(parse).unwrap_or_default();
            let mut note = Some(found).filter(|note| note.token == token).unwrap_or_default();
            token.clone_into(&mut note.token);
            let is_now =
                |oid: u32, print: &String| all.get(&oid).is_some_and(|leaf| leaf.fingerprint.as_ref() == Some(print));
            note.tables.retain(|oid, (fingerprint, _)| is_now(*oid, fingerprint));
            for (oid, fingerprint) in tables.iter().filter(|(oid, fingerprint)| is_now(*oid, fingerprint)) {
                let found = note.tables.entry(*oid).or_insert_with(|| (fingerprint.clone(), at));
                found.1 = found.1.max(at);
            }
            Some(json(&note))
        },
    )
}

fn json(note: &LeafNote) -> String {
    // Strings, numbers and positions: nothing that JSON cannot say.
    serde_json::to_string(note).unwrap_or_default()
}

/// Reads a note's text behind its prefix, and writes it again. `None`: its form is not known.
pub fn rewritten(text: &str) -> Option<String> {
    parse(text).as_ref().map(json)
}

/// Reads a note's text behind its prefix. `None`: its form is not known.
fn parse(text: &str) -> Option<LeafNote> {
    serde_json::from_str(text).ok()
}

/// Notes those tables of the publication that have no row now, and that no record names since the relay reads them.
///
/// # Errors
/// As [`note`], or a table is locked.
pub(crate) fn note_empty(connection: &mut Connection, publication: &str, slot: &str) -> Result<(), Error> {
    let mark = super::catalog::publication_mark(connection, publication)?;
    let Some(known) = Known::read(connection, publication, slot, mark.comment.as_deref())? else { return Ok(()) };
    let at: Lsn = connection.value("SELECT pg_catalog.pg_current_wal_insert_lsn()")?.unwrap_or_default();
    let all = leaves::look(connection, publication)?;
    let is_fifteen = connection.value::<u32>("SELECT current_setting('server_version_num')")? >= Some(150_000);
    // Before version 15 a walsender may not notice that a table was attached: see `leaves::empty_list`.
    let may_be = |leaf: &&Leaf| is_fifteen || leaf.is_born || leaf.parent().is_none();
    let relay = relay_note::read(connection, (publication, slot), &known.token)?.note().unwrap_or_default();
    let is_known =
        |leaf: &Leaf| known.recorded(leaf).is_some_and(|at| relay.since(&leaf.chain).is_none_or(|since| since <= at));
    let unknown: Vec<&Leaf> = all
        .values()
        .filter(|leaf| !leaf.is_partitioned && leaf.fingerprint.is_some() && !is_known(leaf))
        .filter(may_be)
        .collect();
    let empty = leaves::empty(connection, unknown.iter().map(|leaf| leaf.oid))?;
    let found: Vec<(u32, String)> = unknown
        .into_iter()
        .filter(|leaf| empty.contains(&leaf.oid))
        .filter_map(|leaf| Some((leaf.oid, leaf.fingerprint.clone()?)))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    note(connection, (slot, &known.token), &found, at, &all)
}

/// The tables (`pg_class.oid`) of which every row is known to be published by the relay of the slot, or to come through the slot.
///
/// # Errors
/// The connection broke.
pub(crate) fn published(connection: &mut Connection, publication: &str, slot: &str) -> Result<BTreeSet<u32>, Error> {
    let mark = super::catalog::publication_mark(connection, publication)?;
    let Some(known) = Known::read(connection, publication, slot, mark.comment.as_deref())? else {
        return Ok(BTreeSet::new());
    };
    let Some(relay) = relay_note::read(connection, (publication, slot), &known.token)?.note() else {
        return Ok(BTreeSet::new());
    };
    let all = leaves::look(connection, publication)?;
    let is_published = |leaf: &&Leaf| {
        let since = relay.since(&leaf.chain);
        known.since(leaf, &all).zip(since).is_some_and(|(known, read)| read <= known)
    };
    Ok(all.values().filter(is_published).map(|leaf| leaf.oid).collect())
}

/// Removes the notes of a slot that goes, but for those of rows that its relay has skipped: they are still in no topic.
///
/// # Errors
/// The connection broke.
pub(crate) fn remove_of_slot(connection: &mut Connection, slot: &str) -> Result<(), Error> {
    [prefix(slot), relay_note::prefix(slot), backfill_progress::prefix(slot)]
        .iter()
        .try_for_each(|prefix| state::remove(connection, prefix))
}

fn prefix(slot: &str) -> String {
    format!("{PREFIX}{slot} ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_written, golden};

    #[test]
    fn the_note_that_each_version_has_written_is_read_and_one_of_another_form_is_not() {
        let tables = [(16385, ("c3d4".to_owned(), Lsn::new(1000)))].into();
        let note = LeafNote { token: "a1b2.77.5".to_owned(), tables };
        assert_written("table-notes.txt", &format!("{}{}\n", prefix("shop"), json(&note)));
        for golden in golden("table-notes.txt") {
            let text = golden.text.trim_end().strip_prefix(&prefix("shop")).unwrap();
            assert_eq!(parse(text), Some(note.clone()), "{}", golden.version);
            assert_eq!(parse(&text.replacen('{', r#"{"form":2,"#, 1)), None, "{}", golden.version);
            let more = text.replace(r#"["c3d4","0/3E8"]"#, r#"["c3d4","0/3E8",false]"#);
            assert_eq!((parse(&more), more != text), (None, true), "{}", golden.version);
        }
    }

    fn leaf(oid: u32, parent: Option<u32>, is_born: bool, fingerprint: &str) -> Leaf {
        Leaf {
            oid,
            name: ("public".to_owned(), format!("t{oid}")),
            is_partitioned: parent.is_none(),
            fingerprint: Some(fingerprint.to_owned()),
            chain: [Some(oid), parent].into_iter().flatten().collect(),
            is_filtered: false,
            is_born,
        }
    }

    /// A partitioned table 1 with a partition 2 that was empty, and one, 3, that was not.
    fn known() -> Known {
        let listed = TableStatement {
            at: Lsn::new(100),
            known: [(1, "a".to_owned()), (2, "b".to_owned())].into(),
            others: [3].into(),
        };
        Known { token: "t".to_owned(), listed, stated: Vec::new(), unknown_note: None }
    }

    #[track_caller]
    fn check(known: &Known, leaf: &Leaf, parent: &str, expected: Option<u64>) {
        let all = [(1, self::leaf(1, None, false, parent))].into();
        assert_eq!(known.since(leaf, &all), expected.map(Lsn::new), "{leaf:?}");
    }

    #[test]
    fn a_table_is_known_by_an_equal_fingerprint_and_by_nothing_else() {
        check(&known(), &leaf(2, Some(1), true, "b"), "a", Some(100));
        check(&known(), &leaf(2, Some(1), true, "changed"), "a", None);
        check(&known(), &leaf(3, Some(1), true, "c"), "a", None);
        let not_published = Leaf { fingerprint: None, ..leaf(2, Some(1), true, "b") };
        check(&known(), &not_published, "a", None);
    }

    #[test]
    fn a_later_partition_is_known_if_it_was_created_as_one_of_a_table_that_is_known() {
        check(&known(), &leaf(4, Some(1), true, "d"), "a", Some(100));
        check(&known(), &leaf(4, Some(1), false, "d"), "a", None);
        check(&known(), &leaf(4, Some(1), true, "d"), "changed", None);
        check(&known(), &leaf(4, Some(9), true, "d"), "a", None);
    }

    #[test]
    fn the_latest_of_several_records_counts() {
        let stated = vec![
            (3, "c".to_owned(), Lsn::new(300)),
            (3, "old".to_owned(), Lsn::new(400)),
            (2, "b".to_owned(), Lsn::new(200)),
        ];
        let known = Known { stated, ..known() };
        check(&known, &leaf(3, Some(1), true, "c"), "a", Some(300));
        check(&known, &leaf(2, Some(1), true, "b"), "a", Some(200));
    }
}

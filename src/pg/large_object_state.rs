//! Stores notes in a database in which the role has no right to write anything.
//!
//! In and out: a text with a prefix that names its kind. The text is the comment on an empty large object of the role. Any role may
//! create a large object, so this needs no table and no right, and any role may read the comment. Comments are transactional, survive
//! crashes, and reach physical standbys. [`super::skipped_rows`] and [`super::backfill_progress`] interpret the texts.
//! Specification: PostgreSQL manual, chapter 35 "Large Objects", "COMMENT", 53.30 "pg_largeobject_metadata".

use super::connection::{Connection, Row};
use super::error::{Error, sqlstate};
use super::quoting::literal;

/// A note: the comment on a large object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    /// The large object's oid.
    pub(super) large_object: u32,
    /// The text after the prefix.
    pub(super) text: String,
    /// Whether the connection's role owns it, and so may change it.
    pub(super) own: bool,
}

/// The owner of the notes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoteOwner {
    /// The connection's role.
    Own,
    /// Any role. The notes of the connection's role come first.
    Any,
}

/// Creates an empty large object for a note.
const CREATE: &str = "SELECT pg_catalog.lo_create(0)";

/// The right that the role lacks to create a note. `None`: the error has another cause. Only an administrator can have revoked that
/// right, since all roles have it by default.
pub(crate) fn right_to_note(error: &Error, role: &str) -> Option<String> {
    let Error::Server { doing, error } = error else { return None };
    let is_it = doing == CREATE && error.code == sqlstate::INSUFFICIENT_PRIVILEGE;
    is_it.then(|| format!("GRANT EXECUTE ON FUNCTION pg_catalog.lo_create(oid) TO {role};"))
}

/// Reads the notes that begin with `prefix`.
pub(super) fn read(connection: &mut Connection, prefix: &str, of: NoteOwner) -> Result<Vec<Note>, Error> {
    let rows = connection.query(&format!(
        "SELECT m.oid, pg_catalog.substr(d.description, {}), r.oid IS NOT NULL
           FROM pg_catalog.pg_largeobject_metadata AS m
           JOIN pg_catalog.pg_description AS d
             ON d.objoid = m.oid AND d.classoid = 'pg_catalog.pg_largeobject'::regclass AND d.objsubid = 0
           LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = m.lomowner AND r.rolname = current_user
          WHERE pg_catalog.starts_with(d.description, {}) ORDER BY r.oid IS NULL, m.oid",
        prefix.chars().count() + 1,
        literal(prefix)
    ))?;
    let note = |row: &Row| {
        Some(Note {
            large_object: row.parse(0)?,
            text: row.text(1).unwrap_or_default().to_owned(),
            own: row.is_true(2),
        })
    };
    Ok(rows.iter().filter_map(note).filter(|note| note.own || of == NoteOwner::Any).collect())
}

/// Writes a note into the large object `large_object` of the connection's role, or into a new one. Returns its oid.
pub(super) fn write(connection: &mut Connection, large_object: Option<u32>, text: &str) -> Result<u32, Error> {
    let large_object = if let Some(large_object) = large_object {
        large_object
    } else {
        connection.value(CREATE)?.unwrap_or_default()
    };
    connection.query(&format!("COMMENT ON LARGE OBJECT {large_object} IS {}", literal(text)))?;
    Ok(large_object)
}

//! Stores notes in a database in which the role has no right to write anything.
//!
//! In and out: a text that begins with a word for what it is about. It stands in the comment on a large object that is empty and the
//! role's own: any role may create one, so no table and no right is needed, and anybody may read the comment. That is transactional,
//! survives crashes, and goes to physical standbys. What a text means is the affair of [`super::skipped_rows`] and [`super::progress`].
//! Specification: PostgreSQL manual, chapter 35 "Large Objects", "COMMENT", 53.30 "pg_largeobject_metadata".

use super::connection::{Connection, Row};
use super::error::{Error, sqlstate};
use super::quoting::literal;

/// A note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    /// The large object.
    pub(super) place: u32,
    /// The text behind the prefix.
    pub(super) text: String,
    /// Our role owns it, and may change it.
    pub(super) own: bool,
}

/// Whose notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Our role's.
    Own,
    /// Any role's; our own come first.
    Anybody,
}

/// Creates the empty large object for a note.
const CREATE: &str = "SELECT pg_catalog.lo_create(0)";

/// Returns the right that a role lacks if this error says that it may not even create a note: an administrator has revoked it from
/// all roles.
pub(crate) fn right_to_note(error: &Error, role: &str) -> Option<String> {
    let Error::Server { doing, error } = error else { return None };
    let is_it = doing == CREATE && error.code == sqlstate::INSUFFICIENT_PRIVILEGE;
    is_it.then(|| format!("GRANT EXECUTE ON FUNCTION pg_catalog.lo_create(oid) TO {role};"))
}

/// The notes that begin with `prefix`.
pub(super) fn find(connection: &mut Connection, prefix: &str, of: Of) -> Result<Vec<Note>, Error> {
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
        Some(Note { place: row.parse(0)?, text: row.text(1).unwrap_or_default().to_owned(), own: row.is_true(2) })
    };
    Ok(rows.iter().filter_map(note).filter(|note| note.own || of == Of::Anybody).collect())
}

/// Writes a note, in the large object `place` of our role's, or in a new one. Returns the large object.
pub(super) fn put(connection: &mut Connection, place: Option<u32>, text: &str) -> Result<u32, Error> {
    let place = if let Some(place) = place {
        place
    } else {
        let rows = connection.query(CREATE)?;
        rows.first().and_then(|row| row.parse(0)).unwrap_or_default()
    };
    connection.query(&format!("COMMENT ON LARGE OBJECT {place} IS {}", literal(text)))?;
    Ok(place)
}

//! Stores notes in a database in which the role has no right to write anything.
//!
//! In and out: a text with a prefix that names its kind. The text is the comment on an empty large object of the role. Any role may
//! create a large object, so this needs no table and no right, and any role may read the comment. Comments are transactional, survive
//! crashes, and reach physical standbys. [`super::skipped_rows`], [`super::backfill_progress`], [`super::leaf_notes`] and
//! [`super::relay_note`] interpret the texts.
//!
//! Any role that may log in can write a note. So a note that lets rows be deleted, or not be published, counts only if its owner is trusted: it
//! may act as the owner of the publication, or it may replicate.
//! Specification: PostgreSQL manual, chapter 35 "Large Objects", "COMMENT", 53.30 "pg_largeobject_metadata".

use super::catalog::REPLICATES;
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
    /// The name of its owner.
    pub(super) owner: String,
}

/// The owner of the notes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoteOwner {
    /// The connection's role.
    Own,
    /// Any role. The notes of the connection's role come first.
    Any,
}

/// The advisory lock of those who read a note and write it again, one after the other in a database: "notelock" in ASCII.
const LOCK: u64 = 0x6e6f_7465_6c6f_636b;

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
    let notes = query(connection, prefix, "true")?;
    Ok(notes.into_iter().filter(|note| note.own || of == NoteOwner::Any).collect())
}

/// Reads the notes that begin with `prefix`, and whose owner may act as the owner of `publication`, or may replicate.
pub(super) fn read_trusted(connection: &mut Connection, prefix: &str, publication: &str) -> Result<Vec<Note>, Error> {
    query(connection, prefix, &trusted(publication))
}

/// Reads the notes as [`read_trusted`], and before them those of the connection's role, whatever it may do.
pub(super) fn read_own_and_trusted(
    connection: &mut Connection,
    prefix: &str,
    publication: &str,
) -> Result<Vec<Note>, Error> {
    query(connection, prefix, &format!("(r.rolname = current_user OR {})", trusted(publication)))
}

/// As SQL, whether the owner `r` of a note is trusted.
fn trusted(publication: &str) -> String {
    format!(
        "({REPLICATES} OR EXISTS (SELECT FROM pg_catalog.pg_publication AS p
                                   WHERE p.pubname = {} AND pg_catalog.pg_has_role(r.oid, p.pubowner, 'USAGE')))",
        literal(publication)
    )
}

fn query(connection: &mut Connection, prefix: &str, condition: &str) -> Result<Vec<Note>, Error> {
    let rows = connection.query(&format!(
        "SELECT m.oid, pg_catalog.substr(d.description, {}), r.rolname = current_user, r.rolname
           FROM pg_catalog.pg_largeobject_metadata AS m
           JOIN pg_catalog.pg_description AS d
             ON d.objoid = m.oid AND d.classoid = 'pg_catalog.pg_largeobject'::regclass AND d.objsubid = 0
           JOIN pg_catalog.pg_roles AS r ON r.oid = m.lomowner
          WHERE pg_catalog.starts_with(d.description, {}) AND {condition} ORDER BY r.rolname <> current_user, m.oid",
        prefix.chars().count() + 1,
        literal(prefix)
    ))?;
    let note = |row: &Row| {
        Some(Note {
            large_object: row.parse(0)?,
            text: row.text(1).unwrap_or_default().to_owned(),
            own: row.is_true(2),
            owner: row.text(3).unwrap_or_default().to_owned(),
        })
    };
    Ok(rows.iter().filter_map(note).collect())
}

/// Replaces the note of the connection's role that begins with `prefix`, or writes the first one, in one transaction. `change` takes the
/// text after the prefix of the present note, and returns the next one. `None`: the note stays as it is. `is_known`: whether a text has a
/// form that this version knows. A note of another form is a newer version's, and is never changed.
///
/// # Errors
/// The server is read-only, the role lacks [`right_to_note`], or the connection broke.
pub(super) fn update(
    connection: &mut Connection,
    prefix: &str,
    is_known: impl Fn(&str) -> bool,
    change: impl FnOnce(Option<&str>) -> Option<String>,
) -> Result<(), Error> {
    // What is written survives a crash, whatever the role's `synchronous_commit` is. The read comes after the lock, and sees what the one
    // before has written.
    connection.query(&format!(
        "BEGIN; SELECT pg_catalog.set_config('synchronous_commit', 'local', true)
          WHERE pg_catalog.current_setting('synchronous_commit') = 'off';
         SELECT pg_catalog.pg_advisory_xact_lock({LOCK})"
    ))?;
    let written = || {
        let note = read(connection, prefix, NoteOwner::Own)?.into_iter().find(|note| is_known(&note.text));
        match change(note.as_ref().map(|note| note.text.as_str())) {
            Some(text) => {
                write(connection, note.map(|note| note.large_object), &format!("{prefix}{text}"))?;
                Ok(())
            }
            None => Ok(()),
        }
    };
    match written() {
        Ok(()) => connection.query("COMMIT").map(drop),
        Err(error) => {
            // The first error says more than one of the ROLLBACK.
            drop(connection.query("ROLLBACK"));
            Err(error)
        }
    }
}

/// Removes the notes that begin with `prefix`, as far as the role may: those of others stay, and say nothing without their marker.
///
/// # Errors
/// The connection broke.
pub(super) fn remove(connection: &mut Connection, prefix: &str) -> Result<(), Error> {
    for note in read(connection, prefix, NoteOwner::Any)? {
        match connection.query(&format!("SELECT pg_catalog.lo_unlink({})", note.large_object)) {
            Ok(_) | Err(Error::Server { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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

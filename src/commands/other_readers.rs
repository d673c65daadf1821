//! Looks for other readers of a publication that is to be dropped.
//!
//! In: a publication, its own slot, and the slots that are known or said to read it, too. Out: nothing, or the slot that may read it as well. A
//! reader whose publication is dropped stops for good at its next change, or loses rows in silence (Postgres 18). Reads only.
//!
//! A slot has no publication: its reader names one when it begins to stream. What is seen of it is the reader's statement in
//! `pg_stat_activity`, while it streams and if the role may see it.

use super::error::CommandError;
use crate::pg::{self, Connection, Row, literal, names};

/// Another slot of the database that `pgoutput` decodes.
struct OtherSlot {
    name: String,
    /// The statement of its reader. `None`: nobody reads it, or the statement is hidden.
    statement: Option<String>,
}

/// Checks that nobody else reads the publication. `own`: the slot that goes. `known`: slots of which the user is told, or has told.
///
/// # Errors
/// Another slot is read with it, or may be.
pub(super) fn refuse(
    connection: &mut Connection,
    publication: &str,
    own: &str,
    known: &[String],
) -> Result<(), CommandError> {
    let elsewhere = names::slots_of_others(connection, publication)?;
    for slot in others(connection)? {
        let named = format!("\"{}\"", publication.replace('"', "\"\""));
        match &slot.statement {
            _ if slot.name == own => {}
            Some(statement) if statement.contains(&named) => {
                return Err(CommandError::read_by_another(publication, &slot.name));
            }
            Some(_) => {}
            None if elsewhere.contains(&slot.name) || known.contains(&slot.name) => {}
            None => return Err(CommandError::may_be_read(publication, &slot.name)),
        }
    }
    Ok(())
}

fn others(connection: &mut Connection) -> Result<Vec<OtherSlot>, pg::Error> {
    let rows = connection.query(
        "SELECT s.slot_name, a.query FROM pg_catalog.pg_replication_slots AS s
           LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid
          WHERE s.plugin = 'pgoutput' AND s.database = pg_catalog.current_database() AND NOT s.temporary ORDER BY 1",
    )?;
    // A statement that the role may not see, or that does not name a publication any more, shows nothing.
    let shown = |row: &Row| row.text(1).filter(|text| text.contains("publication_names")).map(str::to_owned);
    let other = |row: &Row| Some(OtherSlot { name: row.text(0)?.to_owned(), statement: shown(row) });
    Ok(rows.iter().filter_map(other).collect())
}

/// The publications of the database whose markers name a slot, or say that it is to be created.
///
/// # Errors
/// The connection broke.
pub(super) fn marked_by(connection: &mut Connection, slot: &str) -> Result<Vec<String>, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT pubname FROM pg_catalog.pg_publication AS p
          WHERE pg_catalog.string_to_array(pg_catalog.obj_description(p.oid, 'pg_publication'), E'\\n')
                && ARRAY['walrelay slot: ' || {0}, 'walrelay creating: ' || {0}] ORDER BY 1",
        literal(slot)
    ))?;
    Ok(rows.iter().filter_map(|row| row.text(0).map(str::to_owned)).collect())
}

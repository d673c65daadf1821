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
    /// The publications that its reader has named. `None`: nobody reads it, or its statement is hidden or cut off.
    publications: Option<Vec<String>>,
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
        match &slot.publications {
            _ if slot.name == own => {}
            Some(named) if named.iter().any(|named| named == publication) => {
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
    let publications = |row: &Row| row.text(1).and_then(publications);
    let other = |row: &Row| Some(OtherSlot { name: row.text(0)?.to_owned(), publications: publications(row) });
    Ok(rows.iter().filter_map(other).collect())
}

/// The publications that the statement of a reader names. `None`: it names none any more, is cut off (`track_activity_query_size`), or reads by
/// a function of SQL, whose arguments may be anything. The option's value is a text of SQL, and in it a list of identifiers, which need quotes
/// only as elsewhere in SQL.
fn publications(statement: &str) -> Option<Vec<String>> {
    /// Neither a statement nor a name has it.
    const QUOTE: &str = "\0";
    let (_, options) = statement.trim_start().strip_prefix("START_REPLICATION ")?.split_once('(')?;
    let (_, value) = options.split_once("publication_names")?.1.split_once('\'')?;
    let value = value.replace("''", QUOTE);
    let list = value.split_once('\'')?.0.replace(QUOTE, "'").replace("\"\"", QUOTE);
    let names = list.split('"').enumerate().flat_map(|(at, part)| match at % 2 {
        0 => part.split(',').map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()).collect(),
        _ => vec![part.replace(QUOTE, "\"")],
    });
    Some(names.collect()).filter(|names: &Vec<_>| !names.is_empty())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expected: Option<&[&str]>) {
        let statement = format!(
            "START_REPLICATION SLOT \"publication_names\" LOGICAL 0/0 (proto_version '1', \"publication_names\" {value}"
        );
        let expected = expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(publications(&statement), expected, "{value}");
    }

    #[test]
    fn the_publications_of_a_statement_are_read_with_quotes_and_without() {
        check(r#"'"walrelay"')"#, Some(&["walrelay"]));
        check("'walrelay', messages 'true')", Some(&["walrelay"]));
        check(r#"'Dbz , "a,""B" ,c')"#, Some(&["dbz", "a,\"B", "c"]));
        check(r#"'"it''s",other')"#, Some(&["it's", "other"]));
    }

    #[test]
    fn a_statement_that_is_cut_off_or_names_no_publication_shows_nothing() {
        check("'a,b", None);
        check("'a''", None);
        check("'')", None);
        for statement in [
            "SELECT 1",
            r#"START_REPLICATION SLOT "publication_names" LOGICAL 0/0 (proto_version '1')"#,
            "SELECT * FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, 'proto_version', '1', 'publication_names', 'a')",
        ] {
            assert_eq!(publications(statement), None, "{statement}");
        }
    }
}

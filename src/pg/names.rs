//! Looks for names that the user may have meant, and for columns that a publication hides.
//!
//! In: a control connection. Out: names, and SQL that changes a publication's column list. This file only reads.
//! Specification: PostgreSQL manual, chapter 53 "System Catalogs"; ALTER PUBLICATION.

use super::connection::{Connection, Row};
use super::error::Error;
use super::marker::{self, MoveState};
use super::shard::Shard;
use super::{identifier, literal, server};
use crate::pgoutput::{PublishedTable, RelationColumn};

/// Column lists and row filters came with this version.
pub(super) const LISTS_SINCE: u32 = 150_000;

/// The most names that are returned.
const MOST: u32 = 100;

/// The publications of the connection's database, by name.
///
/// # Errors
/// The connection broke.
pub fn publications(connection: &mut Connection) -> Result<Vec<String>, Error> {
    names(connection, "SELECT pubname FROM pg_catalog.pg_publication ORDER BY 1")
}

/// The shards of a publication and a slot, and the progress of each in a move. `whole`: the common names of all shards.
///
/// # Errors
/// The connection broke.
pub(crate) fn shards(
    connection: &mut Connection,
    whole: (&str, &str),
) -> Result<Vec<(Shard, Option<MoveState>)>, Error> {
    let rows = connection.query(
        "SELECT pubname, pg_catalog.obj_description(oid, 'pg_publication') FROM pg_catalog.pg_publication ORDER BY pubname",
    )?;
    let shard = |row: &Row| {
        let comment = row.text(1);
        Some((marker::shard_of(comment, row.text(0)?, whole)?, marker::moving(comment)))
    };
    Ok(rows.iter().filter_map(shard).collect())
}

/// The slots that a relay on the connection's database could read, by name.
///
/// # Errors
/// The connection broke.
pub fn slots(connection: &mut Connection) -> Result<Vec<String>, Error> {
    names(
        connection,
        "SELECT slot_name FROM pg_catalog.pg_replication_slots
          WHERE plugin = 'pgoutput' AND database = current_database() AND NOT temporary ORDER BY 1",
    )
}

/// The slots in the setup markers of other publications than `publication`.
///
/// # Errors
/// The connection broke.
pub fn slots_of_others(connection: &mut Connection, publication: &str) -> Result<Vec<String>, Error> {
    let comments = names(
        connection,
        &format!(
            "SELECT pg_catalog.obj_description(oid, 'pg_publication') FROM pg_catalog.pg_publication WHERE pubname <> {}",
            literal(publication)
        ),
    )?;
    Ok(comments.iter().flat_map(|comment| marker::slots(Some(comment))).map(str::to_owned).collect())
}

/// The database of a slot. `None`: it is the connection's.
///
/// # Errors
/// The connection broke.
pub fn other_database_of(connection: &mut Connection, slot: &str) -> Result<Option<String>, Error> {
    connection.value(&format!(
        "SELECT database FROM pg_catalog.pg_replication_slots
          WHERE slot_name = {} AND database <> current_database()",
        literal(slot)
    ))
}

fn names(connection: &mut Connection, sql: &str) -> Result<Vec<String>, Error> {
    connection.texts(&format!("{sql} LIMIT {MOST}"))
}

/// Tables that have a column with one of these names, with all their columns. Partitions are not among them.
///
/// # Errors
/// The connection broke.
pub fn tables_with(connection: &mut Connection, columns: &[&str]) -> Result<Vec<PublishedTable>, Error> {
    let columns: Vec<String> = columns.iter().map(|name| literal(name)).collect();
    let rows = connection.query(&format!(
        "SELECT c.oid, n.nspname, c.relname, a.attname, a.atttypid, a.atttypmod
           FROM (SELECT c.* FROM pg_catalog.pg_class AS c
                  WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
                    AND EXISTS (SELECT FROM pg_catalog.pg_attribute AS p
                                 WHERE p.attrelid = c.oid AND p.attname IN ({}) AND NOT p.attisdropped)
                  ORDER BY c.oid LIMIT {MOST}) AS c
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
          ORDER BY 2, 3, a.attnum",
        columns.join(", ")
    ))?;
    Ok(server::tables(&rows))
}

/// The columns of a table that a publication lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnList {
    /// All columns of the table, except for generated ones.
    pub columns: Vec<RelationColumn>,
    /// SQL that lists the table with all of them, and with its present row filter.
    pub widened: String,
}

/// The table's column list in the publication. `None`: it has none.
///
/// # Errors
/// The connection broke.
pub fn column_list(connection: &mut Connection, publication: &str, oid: u32) -> Result<Option<ColumnList>, Error> {
    let version = server::setting(connection, "server_version_num")?.and_then(|text| text.parse().ok());
    if version < Some(LISTS_SINCE) {
        return Ok(None);
    }
    let rows = connection.query(&format!(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.pg_get_expr(m.prqual, m.prrelid)
           FROM pg_catalog.pg_publication_rel AS m
           JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid AND p.pubname = {}
           JOIN pg_catalog.pg_class AS c ON c.oid = m.prrelid
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE m.prrelid = {oid} AND m.prattrs IS NOT NULL",
        literal(publication)
    ))?;
    let Some((row, name)) = rows.first().and_then(|row| Some((row, row.text(0)?))) else { return Ok(None) };
    Ok(Some(ColumnList {
        columns: columns(connection, oid)?,
        widened: with_columns(publication, name, &[], row.text(1)),
    }))
}

/// All columns of a table, except for generated ones.
///
/// # Errors
/// The connection broke.
pub fn columns(connection: &mut Connection, oid: u32) -> Result<Vec<RelationColumn>, Error> {
    let rows = connection.query(&format!(
        "SELECT attname, atttypid, atttypmod FROM pg_catalog.pg_attribute
          WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
    ))?;
    Ok(rows.iter().filter_map(|row| server::column(row, 0)).collect())
}

/// SQL that sets the columns and the row filter of a table in the publication. `table`: as SQL names it. Without `columns`, all are
/// published.
pub fn with_columns(publication: &str, table: &str, columns: &[&str], filter: Option<&str>) -> String {
    let publication = identifier(publication);
    let columns: Vec<String> = columns.iter().map(|column| identifier(column)).collect();
    let list = if columns.is_empty() { String::new() } else { format!(" ({})", columns.join(", ")) };
    let filter = filter.map_or_else(String::new, |filter| format!(" WHERE ({filter})"));
    format!(
        "BEGIN; ALTER PUBLICATION {publication} DROP TABLE {table}; ALTER PUBLICATION {publication} ADD TABLE {table}{list}{filter}; COMMIT;"
    )
}

//! Rows of a table, listed in one snapshot by their ctid and xmin.
//!
//! In: a table and a condition. Out: chunks of [`RowVersion`]s, in order, from a cursor that the server keeps: our memory is one chunk.
//! Invariant: a ctid is used again once its row is gone, so no row is deleted before [`delete`] has seen, under a lock, that the
//! same transaction's row with the same id still has it.

use crate::pg::{self, Connection, Row, identifier, literal};
use std::time::Duration;

/// How long listing may take, and one chunk.
pub(super) const PATIENCE: Duration = Duration::from_hours(24);

/// A version of a row, and the row's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowVersion {
    /// `tableoid`: the partition.
    table: String,
    /// As SQL writes it: `(0,1)`.
    ctid: String,
    xmin: String,
    id: String,
}

/// The most rows of a list. The server keeps them in a file until the list is closed.
pub(super) const MOST: u64 = 1_000_000;

/// Opens the list, in a snapshot of its own, and returns the number of its rows. `table`: as SQL names it; `id`: its column.
pub(super) fn open(connection: &mut Connection, table: &str, id: &str, condition: &str) -> Result<u64, pg::Error> {
    let declare = format!(
        "BEGIN; DECLARE walrelay_rows SCROLL CURSOR WITH HOLD FOR
         SELECT *, count(*) OVER () FROM (
             SELECT tableoid, ctid, xmin, {}::text FROM {table} WHERE {condition} LIMIT {MOST}) AS listed; COMMIT",
        identifier(id)
    );
    if let Err(error) = connection.query_within(&declare, PATIENCE) {
        drop(connection.query("ROLLBACK"));
        return Err(error);
    }
    let first = connection.query("FETCH FORWARD 1 FROM walrelay_rows; MOVE ABSOLUTE 0 IN walrelay_rows")?;
    Ok(first.first().and_then(|row| row.parse(4)).unwrap_or_default())
}

/// The one number that a query gives.
///
/// # Errors
/// As [`Connection::query_within`].
pub(super) fn counted(connection: &mut Connection, sql: &str) -> Result<u64, pg::Error> {
    let rows = connection.query_within(sql, PATIENCE)?;
    Ok(rows.first().and_then(|row| row.parse(0)).unwrap_or_default())
}

/// Forgets the list.
pub(super) fn close(connection: &mut Connection) -> Result<(), pg::Error> {
    connection.query("CLOSE walrelay_rows").map(drop)
}

/// The next `rows` of the list; empty at its end.
pub(super) fn next(connection: &mut Connection, rows: u32) -> Result<Vec<RowVersion>, pg::Error> {
    let found = connection.query(&format!("FETCH FORWARD {rows} FROM walrelay_rows"))?;
    Ok(found.iter().filter_map(version).collect())
}

fn version(row: &Row) -> Option<RowVersion> {
    let text = |at| row.text(at).map(str::to_owned);
    Some(RowVersion { table: text(0)?, ctid: text(1)?, xmin: text(2)?, id: text(3).unwrap_or_default() })
}

/// The beginning of a statement: `gone` has the rows of `versions` that are still as they were listed and that nobody else has locked. They
/// are deleted. `table`: as SQL names it. `stays`: as SQL, which rows of `t` are left out though they were listed.
pub(super) fn delete(table: &str, id: &str, versions: &[RowVersion], stays: Option<&str>) -> String {
    let array = |part: fn(&RowVersion) -> &str| literal(&array(versions.iter().map(part)));
    let tids = array(|version| &version.ctid);
    format!(
        "WITH listed (tab, tid, x, id) AS (
             SELECT * FROM ROWS FROM (pg_catalog.unnest({}::oid[]), pg_catalog.unnest({tids}::tid[]),
                                      pg_catalog.unnest({}::xid[]), pg_catalog.unnest({}::text[])) AS u),
              locked AS MATERIALIZED (
             SELECT t.tableoid AS tab, t.ctid AS tid FROM {table} AS t
               JOIN listed AS l ON l.tid = t.ctid AND l.tab = t.tableoid AND l.x = t.xmin AND l.id = COALESCE(t.{}::text, '')
              WHERE t.ctid = ANY ({tids}::tid[]){}
                FOR UPDATE OF t SKIP LOCKED),
              gone AS (DELETE FROM {table} AS t USING locked AS k WHERE t.ctid = k.tid AND t.tableoid = k.tab RETURNING t.*)",
        array(|version| &version.table),
        array(|version| &version.xmin),
        array(|version| &version.id),
        identifier(id),
        stays.map_or_else(String::new, |stays| format!(" AND NOT ({stays})")),
    )
}

/// An array's text form.
fn array<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let quoted = |item: &str| format!("\"{}\"", item.replace('\\', "\\\\").replace('"', "\\\""));
    format!("{{{}}}", items.map(quoted).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_quoted_whatever_they_hold() {
        assert_eq!(array(["a", "b\"c", "d\\e", "", "NULL"].into_iter()), r#"{"a","b\"c","d\\e","","NULL"}"#);
    }

    #[test]
    fn a_row_is_recognised_by_ctid_transaction_and_id() {
        let version =
            RowVersion { table: "1".to_owned(), ctid: "(0,1)".to_owned(), xmin: "7".to_owned(), id: "it's".to_owned() };
        let sql = delete("\"public\".\"outbox\"", "event_id", &[version], None);
        for part in
            ["l.tid = t.ctid", "l.x = t.xmin", "t.\"event_id\"::text", "SKIP LOCKED", "it''s", "l.tab = t.tableoid"]
        {
            assert!(sql.contains(part), "{part} is not in {sql}");
        }
        assert!(!sql.contains("NOT"), "{sql}");
    }

    #[test]
    fn rows_that_stay_are_neither_locked_nor_done_anything_to() {
        let sql = delete("outbox", "id", &[], Some("t.\"id\" IN ('a')"));
        assert!(
            sql.contains("::tid[]) AND NOT (t.\"id\" IN ('a'))\n                FOR UPDATE OF t SKIP LOCKED)"),
            "{sql}"
        );
    }
}

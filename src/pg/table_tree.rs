//! Reads the outbox tables with the tables below them, and whether the publication publishes each.
//!
//! A table's *tree* is the table with its partitions, or with its children by `INHERITS`, at any depth. In: a publication, and the tables
//! at the top of the trees. Out: [`TreeTable`]s. This file decides nothing. It reads catalogs alone, so it waits for no lock on a table,
//! and one query reads all trees.
//! Specification: PostgreSQL manual, sections 5.11 "Inheritance", 5.12 "Table Partitioning", 29.1 "Publication"; chapter 53 "System Catalogs".

use super::catalog::NOT_LEFT_OUT;
use super::connection::{Connection, Row};
use super::error::Error;
use super::locked;
use super::names::LISTS_SINCE;
use super::quoting::literal;
use super::server;

/// The kind of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// It has rows of its own.
    Plain,
    /// It is `PARTITION BY`: its partitions have its rows.
    Partitioned,
    /// A foreign table: another server has its rows.
    Foreign,
    /// A view or a materialized view, which no publication has.
    View,
}

/// A table of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeTable {
    /// `pg_class.oid`.
    pub oid: u32,
    /// Schema and name.
    pub name: (String, String),
    /// Its kind.
    pub kind: TableKind,
    /// Whether it is `UNLOGGED`: Postgres writes no WAL for its rows.
    pub unlogged: bool,
    /// Whether it is a partition.
    pub is_partition: bool,
    /// The table above it, by which it is in the tree. `None`: it is at the top of the tree.
    pub parent: Option<u32>,
    /// Whether the publication has it: by its own name or its schema, by those of a partitioned table above it, or as one of all tables.
    /// Rows that the WAL does not have are not sent all the same.
    pub published: bool,
    /// For a table at the top: the topmost partitioned table above it that the publication has, if rows of partitions come as that one's
    /// (`publish_via_partition_root`).
    pub comes_as: Option<(String, String)>,
    /// The name of its access method. `None`: it has none.
    pub access_method: Option<String>,
}

/// The tables at the top of the trees.
#[derive(Debug, Clone, Copy)]
pub enum Roots<'a> {
    /// These tables, by schema and name, as far as they exist.
    Named(&'a [(String, String)]),
    /// The tables that the publication has, for partitions the root. And `also` these, by `pg_class.oid`, as far as they exist.
    Published {
        /// Tables that the publication may have no longer.
        also: &'a [u32],
    },
}

/// Reads the trees of `publication`. A table that is in a tree in two ways is there twice. Without the publication, there are none.
///
/// # Errors
/// The connection broke.
pub fn tables(connection: &mut Connection, publication: &str, roots: Roots<'_>) -> Result<Vec<TreeTable>, Error> {
    let roots = match roots {
        Roots::Named([]) => return Ok(Vec::new()),
        Roots::Named(names) => named_roots(names),
        Roots::Published { also } => published_roots(also),
    };
    let (own, of_child) = (has("a"), has("c"));
    let rows = connection.query(&format!(
        "{NO_JIT} WITH RECURSIVE p AS (
             SELECT oid, puballtables, pubviaroot FROM pg_catalog.pg_publication WHERE pubname = {}),
              schemas (oid) AS ({SCHEMAS}),
              roots (oid) AS ({roots}),
              below (oid, parent, published) AS (
             SELECT c.oid, NULL::oid, CASE WHEN NOT c.relispartition THEN {of_child} ELSE (
                        SELECT CASE WHEN p.puballtables THEN bool_and({own}) ELSE bool_or({own}) END
                          FROM pg_catalog.pg_partition_ancestors(c.oid) AS up (relid)
                          JOIN pg_catalog.pg_class AS a ON a.oid = up.relid) END
               FROM roots JOIN pg_catalog.pg_class AS c ON c.oid = roots.oid CROSS JOIN p
              UNION
             SELECT c.oid, below.oid, CASE WHEN NOT c.relispartition THEN {of_child}
                                           WHEN p.puballtables THEN below.published AND {of_child}
                                           ELSE below.published OR {of_child} END
               FROM below JOIN pg_catalog.pg_inherits AS i ON i.inhparent = below.oid AND NOT i.inhdetachpending
               JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid AND c.relpersistence <> 't' CROSS JOIN p)
         SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence = 'u', c.relispartition, below.parent, below.published,
                CASE WHEN below.parent IS NULL AND c.relispartition AND p.pubviaroot THEN (
                    SELECT pg_catalog.jsonb_build_array(an.nspname, a.relname)
                      FROM pg_catalog.pg_partition_ancestors(c.oid) WITH ORDINALITY AS up (relid, level)
                      JOIN pg_catalog.pg_class AS a ON a.oid = up.relid AND a.oid <> c.oid
                      JOIN pg_catalog.pg_namespace AS an ON an.oid = a.relnamespace
                     WHERE {own} ORDER BY up.level DESC LIMIT 1) END,
                (SELECT m.amname FROM pg_catalog.pg_am AS m WHERE m.oid = c.relam)
           FROM below JOIN pg_catalog.pg_class AS c ON c.oid = below.oid
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace CROSS JOIN p
          ORDER BY 2, 3",
        literal(publication)
    ))?;
    Ok(rows.iter().filter_map(tree_table).collect())
}

/// The planner cannot know how few rows a recursive query has. It would compile the query for seconds, and run it for milliseconds. The
/// setting ends with the transaction, which is that of both statements.
const NO_JIT: &str = "SET LOCAL jit = off;";

/// As SQL, whether the publication `p` itself has the row `table` of `pg_class`, whatever it has above that.
fn has(table: &str) -> String {
    format!(
        "CASE WHEN p.puballtables
              THEN NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel AS m WHERE m.prpubid = p.oid AND m.prrelid = {table}.oid)
              ELSE EXISTS (SELECT FROM pg_catalog.pg_publication_rel AS m
                            WHERE m.prpubid = p.oid AND m.prrelid = {table}.oid AND {NOT_LEFT_OUT})
                   OR {table}.relnamespace IN (SELECT oid FROM schemas) END"
    )
}

fn named_roots(names: &[(String, String)]) -> String {
    let names: Vec<String> =
        names.iter().map(|(schema, name)| format!("({}, {})", literal(schema), literal(name))).collect();
    format!(
        "SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE (n.nspname, c.relname) IN ({}) AND c.relkind IN ('r', 'p', 'f', 'v', 'm')",
        names.join(", ")
    )
}

/// The first `oid` that a user's object can have (FirstNormalObjectId).
const FIRST_OF_USERS: u32 = 16_384;

fn published_roots(also: &[u32]) -> String {
    let also: Vec<String> = also.iter().map(u32::to_string).collect();
    format!(
        "SELECT DISTINCT CASE WHEN c.relispartition THEN COALESCE(pg_catalog.pg_partition_root(c.oid)::oid, c.oid) ELSE c.oid END
           FROM pg_catalog.pg_class AS c CROSS JOIN p
          WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.oid >= {FIRST_OF_USERS}
            AND (p.puballtables OR c.relnamespace IN (SELECT oid FROM schemas) OR c.oid = ANY ('{{{}}}'::oid[])
                 OR c.oid IN (SELECT m.prrelid FROM pg_catalog.pg_publication_rel AS m WHERE m.prpubid = p.oid))",
        also.join(",")
    )
}

fn tree_table(row: &Row) -> Option<TreeTable> {
    let kind = match row.text(3)? {
        "r" => TableKind::Plain,
        "p" => TableKind::Partitioned,
        "f" => TableKind::Foreign,
        _ => TableKind::View,
    };
    Some(TreeTable {
        oid: row.parse(0)?,
        name: (row.text(1)?.to_owned(), row.text(2)?.to_owned()),
        kind,
        unlogged: row.is_true(4),
        is_partition: row.is_true(5),
        parent: row.parse(6),
        published: row.is_true(7),
        comes_as: row.text(8).and_then(|json| serde_json::from_str(json).ok()),
        access_method: row.text(9).map(str::to_owned),
    })
}

/// The tables of the publication, as `pg_class.oid`, that have no parent, and that have had a table like one of `tables` as their parent:
/// as partitions of it, or by `INHERITS`. They have lost it since the position of `slot`.
///
/// To lose a parent is the one change that writes the catalog's row of each inherited column again, apart from getting one and from changes
/// of the columns themselves. So a table counts if it has all columns of one of `tables`, as its own, and if the rows of all of them
/// are younger than the table, and young enough for the slot to need them.
///
/// # Errors
/// The connection broke.
pub fn lost_parents(
    connection: &mut Connection,
    (publication, slot): (&str, &str),
    tables: &[(String, String)],
) -> Result<Vec<u32>, Error> {
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    let (has, named) = (has("c"), named_roots(tables));
    let rows = connection.query(&format!(
        "{NO_JIT} WITH p AS (SELECT oid, puballtables FROM pg_catalog.pg_publication WHERE pubname = {}),
              schemas (oid) AS ({SCHEMAS}),
              named (oid) AS ({named}),
              slot (xmin) AS (SELECT catalog_xmin FROM pg_catalog.pg_replication_slots WHERE slot_name = {})
         SELECT c.oid
           FROM pg_catalog.pg_class AS c
           JOIN pg_catalog.pg_attribute AS made ON made.attrelid = c.oid AND made.attnum = -1
          CROSS JOIN p CROSS JOIN slot
          WHERE c.relkind = 'r' AND NOT c.relispartition AND c.oid >= {FIRST_OF_USERS} AND {has}
            AND c.oid NOT IN (SELECT oid FROM named)
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = c.oid)
            AND EXISTS (
                SELECT FROM named
                 WHERE NOT EXISTS (
                       SELECT FROM pg_catalog.pg_attribute AS a
                        WHERE a.attrelid = named.oid AND a.attnum > 0 AND NOT a.attisdropped
                          AND NOT EXISTS (
                              SELECT FROM pg_catalog.pg_attribute AS b
                               WHERE b.attrelid = c.oid AND b.attname = a.attname AND b.atttypid = a.atttypid
                                 AND b.attinhcount = 0 AND NOT b.xmin = made.xmin AND age(b.xmin) <= age(slot.xmin))))",
        literal(publication),
        literal(slot)
    ))?;
    Ok(rows.iter().filter_map(|row| row.parse(0)).collect())
}

/// As SQL, the schemas that the publication `p` has all tables of.
const SCHEMAS: &str = "SELECT o.refobjid FROM p
               JOIN pg_catalog.pg_depend AS s ON s.refclassid = 'pg_catalog.pg_publication'::regclass AND s.refobjid = p.oid
               JOIN pg_catalog.pg_depend AS o ON o.classid = s.classid AND o.objid = s.objid
                                             AND o.refclassid = 'pg_catalog.pg_namespace'::regclass";

/// The part of a table that the publication sends, if it names the table. The default: everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restriction {
    /// `pg_class.oid`.
    pub oid: u32,
    /// The row filter, as SQL. `None`: all rows.
    pub filter: Option<String>,
    /// The listed columns. Empty: all columns.
    pub columns: Vec<String>,
}

/// The part that the publication sends of each table among `oids` that it names. Since version 16, this waits for locks on them, but not for
/// long.
///
/// # Errors
/// A table is locked ([`Error::Locked`]), or the connection broke.
pub fn restrictions(connection: &mut Connection, publication: &str, oids: &[u32]) -> Result<Vec<Restriction>, Error> {
    let oids: Vec<String> = oids.iter().map(u32::to_string).collect();
    let version = server::setting(connection, "server_version_num")?.and_then(|text| text.parse().ok());
    let (filter, columns) = if version < Some(LISTS_SINCE) {
        ("NULL", "NULL")
    } else {
        (
            "pg_catalog.pg_get_expr(m.prqual, m.prrelid)",
            "(SELECT pg_catalog.jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute AS a
               WHERE a.attrelid = m.prrelid AND a.attnum = ANY (m.prattrs::int2[]))",
        )
    };
    let sql = format!(
        "SELECT m.prrelid, {filter}, {columns}
           FROM pg_catalog.pg_publication_rel AS m JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid
          WHERE p.pubname = {} AND m.prrelid = ANY ('{{{}}}'::oid[]) AND {NOT_LEFT_OUT}",
        literal(publication),
        oids.join(",")
    );
    let restriction = |row: &Row| {
        Some(Restriction {
            oid: row.parse(0)?,
            filter: row.text(1).map(str::to_owned),
            columns: row.text(2).and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default(),
        })
    };
    Ok(locked::query(connection, publication, &sql)?.iter().filter_map(restriction).collect())
}

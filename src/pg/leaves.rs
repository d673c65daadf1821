//! Looks at the tables whose rows a publication sends: tables, and the partitions that have the rows of partitioned tables.
//!
//! In: a publication. Out: each of them with its fingerprint. Reads only.
//!
//! A fingerprint is a hash of everything that decides whether the publication sends the rows of a table, as the catalog has it now: the
//! table, its persistence and its storage, its schema, the publication, and for each step up the partition tree the row that attaches it
//! and the row that publishes it. Each catalog row is there with its `oid` and its `xmin`. A row that was changed and changed back has
//! another `xmin`. So while the fingerprint is equal, the publication has sent each row that was inserted into the table. `DETACH` and
//! `ATTACH`, `SET SCHEMA` out of the schema and back, `SET UNLOGGED` and `SET LOGGED`, and `publish` changed and changed back all give
//! another fingerprint.
//!
//! Invariant: fingerprints are compared for equality only. Which of two versions of a row is the older one is never asked, since
//! transactions have 32 bits there.
//!
//! A table without a single page has no row, whatever transactions are open ([`empty`]). This needs no right on the table, and neither a
//! snapshot, nor a rewrite, nor row security can hide a row from it.
//!
//! Specification: PostgreSQL manual, chapter 53 "System Catalogs"; 9.28.7 "Database Object Management Functions".

use super::connection::{Connection, Row};
use super::error::Error;
use super::literal;
use std::collections::{BTreeMap, BTreeSet};

/// The first version that publishes whole schemas. It also checks again whether a table is published when the table is attached.
const FIFTEEN: u32 = 150_000;

/// The first version whose publications of all tables may leave tables out. No trace stays of a time in which they did.
const NINETEEN: u32 = 190_000;

/// A table, or a node of a partition tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// `pg_class.oid`.
    pub(crate) oid: u32,
    /// Its schema and its name.
    pub(crate) name: (String, String),
    /// Whether it is partitioned, so that it has no rows itself.
    pub(crate) is_partitioned: bool,
    /// `None`: the publication does not send all of its rows, or nothing would show that it once did not.
    pub(crate) fingerprint: Option<String>,
    /// Itself, and the partitioned tables above it, the nearest first.
    pub(crate) chain: Vec<u32>,
    /// Whether the publication has a row filter on it, or on a table above it.
    pub(crate) is_filtered: bool,
    /// Whether it was created as the partition that it is, and never rewritten.
    pub(crate) is_born: bool,
}

impl Leaf {
    /// The partitioned table that it is a partition of.
    pub(crate) fn parent(&self) -> Option<u32> {
        self.chain.get(1).copied()
    }

    /// Its name for people and for `regclass`.
    pub(crate) fn shown(&self) -> String {
        format!("{}.{}", self.name.0, self.name.1)
    }
}

/// Looks at the tables of a publication, and at all nodes of their partition trees, by `pg_class.oid`. That includes partitions that it does
/// not publish.
///
/// # Errors
/// The connection broke.
pub(crate) fn look(connection: &mut Connection, publication: &str) -> Result<BTreeMap<u32, Leaf>, Error> {
    let version: u32 = connection.value("SELECT current_setting('server_version_num')")?.unwrap_or_default();
    let rows = connection.query(&format!(
        "SELECT oid, schema, name, kind = 'p', fingerprint, chain, filtered, born FROM ({}) AS l",
        sql(publication, version)
    ))?;
    Ok(rows.iter().filter_map(parse).map(|leaf| (leaf.oid, leaf)).collect())
}

fn parse(row: &Row) -> Option<Leaf> {
    let text = |at| row.text(at).map(str::to_owned);
    Some(Leaf {
        oid: row.parse(0)?,
        name: (text(1)?, text(2)?),
        is_partitioned: row.is_true(3),
        fingerprint: text(4),
        chain: row.text(5)?.split(' ').filter_map(|oid| oid.parse().ok()).collect(),
        is_filtered: row.is_true(6),
        is_born: row.is_true(7),
    })
}

/// The tables among these that have no page, and so no row. The fingerprint of a table has to be read before this.
///
/// # Errors
/// A table is locked, or the connection broke.
pub(crate) fn empty(connection: &mut Connection, tables: impl Iterator<Item = u32>) -> Result<BTreeSet<u32>, Error> {
    let oids: Vec<String> = tables.map(|oid| oid.to_string()).collect();
    if oids.is_empty() {
        return Ok(BTreeSet::new());
    }
    let rows = connection.query(&format!(
        "SET LOCAL lock_timeout = '2s';
         SELECT c.oid FROM pg_catalog.pg_class AS c
          WHERE c.oid = ANY ('{{{}}}'::oid[]) AND c.relkind = 'r' AND pg_catalog.pg_relation_size(c.oid) = 0",
        oids.join(",")
    ))?;
    Ok(rows.iter().filter_map(|row| row.parse(0)).collect())
}

/// The files of tables: `pg_class.oid` and `pg_relation_filenode`. Partitioned tables have none.
///
/// # Errors
/// The connection broke.
pub(crate) fn files(connection: &mut Connection, tables: &[u32]) -> Result<BTreeMap<u32, u32>, Error> {
    let oids: Vec<String> = tables.iter().map(u32::to_string).collect();
    let rows = connection.query(&format!(
        "SELECT c.oid, pg_catalog.pg_relation_filenode(c.oid) FROM pg_catalog.pg_class AS c
          WHERE c.relkind = 'r' AND (c.oid = ANY ('{{{0}}}'::oid[]) OR c.oid IN (
                SELECT t.relid FROM pg_catalog.unnest('{{{0}}}'::oid[]) AS o (oid), pg_catalog.pg_partition_tree(o.oid) AS t))",
        oids.join(",")
    ))?;
    Ok(rows.iter().filter_map(|row| Some((row.parse(0)?, row.parse(1)?))).collect())
}

/// As SQL, the list of a [`super::marker::TableStatement`]: which tables of the publication are empty now, and those of `carried`, of which all
/// rows are known to be published by the slots before. `made`: the slot is new, and all
/// transactions that were open before it have ended. Partitioned tables are then listed as empty, so that a partition that is created
/// later in one of them is known ([`super::leaf_notes::Known`]).
///
/// Before version 15 a walsender that has decoded a row of a table before the table was attached does not send its later rows. So with a
/// slot that was there before, an attached table is not listed as empty there.
pub(crate) fn empty_list(publication: &str, version: u32, made: bool, carried: &BTreeSet<u32>) -> String {
    let carried: Vec<String> = carried.iter().map(u32::to_string).collect();
    let carried = carried.join(",");
    let leaf = if made || version >= FIFTEEN { "true" } else { "(born OR chain NOT LIKE '% %')" };
    format!(
        "(SELECT COALESCE(pg_catalog.string_agg(CASE WHEN fingerprint IS NOT NULL AND (
                     CASE WHEN oid = ANY ('{{{carried}}}'::oid[]) THEN true
                          WHEN kind = 'r' THEN {leaf} AND pg_catalog.pg_relation_size(oid) = 0 ELSE {made} END)
                 THEN oid || ':' || fingerprint ELSE oid::text END, ',' ORDER BY oid), '-')
            FROM ({}) AS l)",
        sql(publication, version)
    )
}

/// As SQL, whether the table `c` was created by the statement that attached it (`i` of `pg_inherits`), and never rewritten. Attaching a table
/// writes the rows of its columns anew. The first file of a table has the number of its `oid`, and each rewrite makes another one: so a table
/// does not count that was `UNLOGGED`, had rows then, and was made `LOGGED`.
const BORN: &str = "EXISTS (SELECT FROM pg_catalog.pg_attribute AS s JOIN pg_catalog.pg_attribute AS a
                       ON a.attrelid = s.attrelid AND a.attnum > 0 AND a.xmin = s.xmin AND a.cmin = s.cmin
                    WHERE s.attrelid = c.oid AND s.attnum = -1 AND s.xmin = i.xmin)
                       AND (c.relkind = 'p' OR c.relfilenode = c.oid)";

/// The query behind [`look`]: `oid`, `schema`, `name`, `kind`, `fingerprint`, `chain` (with blanks between), `filtered`, `born`.
fn sql(publication: &str, version: u32) -> String {
    let (of_schemas, by_schema) = if version >= FIFTEEN {
        (
            "UNION SELECT c.oid FROM p JOIN pg_catalog.pg_publication_namespace AS n ON n.pnpubid = p.oid
               JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.pnnspid AND c.relkind IN ('r', 'p')",
            "LEFT JOIN pg_catalog.pg_publication_namespace AS n ON n.pnpubid = p.oid AND n.pnnspid = c.relnamespace",
        )
    } else {
        ("", "LEFT JOIN (SELECT NULL::oid AS oid, NULL::xid AS xmin_) AS n ON false")
    };
    let xmin_of_schema = if version >= FIFTEEN { "n.xmin" } else { "n.xmin_" };
    let shows_all = version < NINETEEN;
    format!(
        "WITH RECURSIVE p AS (
             SELECT oid, xmin AS version, puballtables FROM pg_catalog.pg_publication WHERE pubname = {name}),
              member (oid) AS (
             SELECT m.prrelid FROM p JOIN pg_catalog.pg_publication_rel AS m ON m.prpubid = p.oid
              UNION
             SELECT c.oid FROM p JOIN pg_catalog.pg_class AS c ON p.puballtables AND c.relkind IN ('r', 'p') AND c.oid >= 16384
              {of_schemas}),
              root (oid) AS (
             SELECT DISTINCT COALESCE(pg_catalog.pg_partition_root(oid)::oid, oid) FROM member),
              tree (oid) AS (
             SELECT oid FROM root UNION SELECT t.relid::oid FROM root, pg_catalog.pg_partition_tree(root.oid) AS t),
              up (leaf, node, step) AS (
             SELECT oid, oid, 0 FROM tree
              UNION ALL
             SELECT up.leaf, i.inhparent, up.step + 1
               FROM up JOIN pg_catalog.pg_class AS c ON c.oid = up.node AND c.relispartition
               JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = up.node),
              steps AS (
             SELECT up.leaf, up.node, up.step, p.puballtables OR m.oid IS NOT NULL OR n.oid IS NOT NULL AS carries,
                    m.oid IS NOT NULL AS named, pg_catalog.to_jsonb(m) ->> 'prqual' IS NOT NULL AS filters,
                    up.step = 0 AND i.inhrelid IS NOT NULL AND {BORN} AS born,
                    pg_catalog.concat(up.node, ' i', i.inhparent, '.', i.xmin, ' s', d.refobjid, '.', d.xmin,
                                      ' m', m.oid, '.', m.xmin, ' n', n.oid, '.', {xmin_of_schema}) AS words
               FROM p CROSS JOIN up JOIN pg_catalog.pg_class AS c ON c.oid = up.node
               LEFT JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = up.node AND c.relispartition
               LEFT JOIN pg_catalog.pg_depend AS d
                 ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = up.node AND d.objsubid = 0
                    AND d.refclassid = 'pg_catalog.pg_namespace'::regclass
               LEFT JOIN pg_catalog.pg_publication_rel AS m ON m.prpubid = p.oid AND m.prrelid = up.node
               {by_schema}),
              folded AS (
             SELECT leaf, pg_catalog.bool_or(carries) AS carries, pg_catalog.bool_or(step = 0 AND named) AS named,
                    pg_catalog.bool_or(filters) AS filtered, pg_catalog.bool_or(born) AS born,
                    pg_catalog.string_agg(words, ',' ORDER BY step) AS words,
                    pg_catalog.string_agg(node::text, ' ' ORDER BY step) AS chain
               FROM steps GROUP BY leaf)
         SELECT c.oid, ns.nspname AS schema, c.relname AS name, c.relkind AS kind, f.chain, f.filtered, f.born,
                CASE WHEN f.carries AND c.relpersistence = 'p' AND c.relkind IN ('r', 'p') AND ({shows_all} OR NOT p.puballtables)
                     THEN pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
                              pg_catalog.concat(p.oid, '.', p.version, ' ', f.words, ' ',
                                                CASE WHEN NOT f.named THEN COALESCE(NULLIF(c.reltoastrelid, 0), c.relfilenode) END),
                              'UTF8')), 'hex'), 12) END AS fingerprint
           FROM p CROSS JOIN folded AS f JOIN pg_catalog.pg_class AS c ON c.oid = f.leaf
           JOIN pg_catalog.pg_namespace AS ns ON ns.oid = c.relnamespace",
        name = literal(publication)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statement_has_what_its_servers_version_lacks() {
        assert!(!sql("p", 140_000).contains("pg_publication_namespace"));
        assert!(sql("p", 150_000).contains("pg_publication_namespace"));
        assert!(sql("p", 180_000).contains("(true OR NOT p.puballtables)"));
        assert!(sql("p", 190_000).contains("(false OR NOT p.puballtables)"));
        for (version, made, listed) in
            [(140_000, false, "born OR"), (140_000, true, "THEN true AND"), (150_000, false, "THEN true AND")]
        {
            assert!(empty_list("p", version, made, &BTreeSet::new()).contains(listed), "{version} {made}");
        }
    }
}

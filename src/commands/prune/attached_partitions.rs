//! Rows that a table had before the publication had the table: those of a partition that was attached later, of a table that was moved
//! into a published schema later, and of one that was `UNLOGGED` for a while.
//!
//! In: a table that is pruned, its publication. Out: which of its partitions came in that way since the mark, and as SQL, which rows may be
//! from before. None of that changes the publication, so that its mark does not tell.
//!
//! | came in by | what tells since when | what tells that it was so from the beginning |
//! |---|---|---|
//! | `ATTACH PARTITION` | the row in `pg_inherits` | a column whose row in `pg_attribute` is as old as those of the system columns: attaching rewrites that of each column |
//! | `SET SCHEMA` | the row in `pg_depend` that ties it to its schema | that row is as old as those of the system columns |
//! | `SET LOGGED` | that writes the table anew ([`REWRITTEN`]) | it was not written anew, or a publication names it: then it cannot be `UNLOGGED` |
//!
//! "As old" is the same transaction and the same command. A partition of which nothing tells that it was one from the beginning counts as
//! attached when `pg_inherits` says so: then the rows of older transactions stay for nothing. So do those of a table that was written anew by
//! another statement than `SET LOGGED`, which nothing distinguishes from it.
//!
//! Invariant: with such a transaction known, only rows of younger transactions are proven. Those of the transaction itself are not, nor those of
//! an older one that inserted them after it. Before version 15 none are of a table that had been there before: once a walsender has decoded a
//! row of it that was not published, it takes the table for one that is not, until the connection ends.
//!
//! # Limit
//!
//! A transaction has its number from its first write. One that attaches a table long after that may be older than rows that others have
//! inserted into the table meanwhile, before it was attached. These look as if they had come later.
//!
//! Specification: PostgreSQL manual, chapter 53 "System Catalogs".

use crate::pg::catalog::REWRITTEN;
use crate::pg::{self, Connection, Row, catalog, literal};
use std::collections::BTreeMap;

/// The first version that publishes whole schemas, and that asks again whether a table is published once that is attached.
const FIFTEEN: u32 = 150_000;

/// Whether a catalogue's row (`of`) of the table `oid` is as old as the table itself, as SQL.
fn is_as_old(of: &str, oid: &str) -> String {
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_attribute AS s
                  WHERE s.attrelid = {oid} AND s.attnum = -1 AND s.xmin = {of}.xmin AND s.cmin = {of}.cmin)"
    )
}

/// The tables with rows that came in later, by `pg_class.oid`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AttachedPartitions(BTreeMap<u32, Proven>);

/// Which rows of such a table are proven.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Proven {
    /// Rows of transactions younger than the one by which the table came in (the lower 32 bits).
    After(String),
    /// None.
    Never,
}

impl AttachedPartitions {
    /// Looks for the partitions of `table` that came in since the transaction `since` (64 bits: with its epoch); `None`: that is too long ago
    /// to be told. `publications`: those whose slots carry the rows.
    pub(super) fn look<'a>(
        connection: &mut Connection,
        publications: impl Iterator<Item = &'a str>,
        table: u32,
        since: Option<u64>,
    ) -> Result<Self, pg::Error> {
        let is_fifteen = catalog::server(connection)?.version >= FIFTEEN;
        let names: Vec<String> = publications.map(literal).collect();
        let rows = connection.query(&sql(&names.join(", "), table, since, is_fifteen))?;
        let one = |row: &Row| {
            let is_proven = is_fifteen || row.is_true(2);
            let proven = if is_proven { Proven::After(row.text(1)?.to_owned()) } else { Proven::Never };
            Some((row.parse(0)?, proven))
        };
        // The youngest comes last, and counts.
        Ok(Self(rows.iter().filter_map(one).collect()))
    }

    /// As SQL, whether a row may be from before; `None`: there is none of that kind.
    pub(super) fn before(&self) -> Option<String> {
        let (mut after, mut never) = (Vec::new(), Vec::new());
        for (oid, proven) in &self.0 {
            match proven {
                Proven::After(xid) => after.push(format!("\"{oid}\":\"{xid}\"")),
                Proven::Never => never.push(oid.to_string()),
            }
        }
        let map = format!("'{{{}}}'::jsonb", after.join(","));
        let xid = format!("({map} ->> tableoid::oid::text)::xid");
        let after = (!after.is_empty())
            .then(|| format!("({map} ? tableoid::oid::text AND (age(xmin) >= age({xid}) OR age(xmin) < 0))"));
        let never = (!never.is_empty()).then(|| format!("tableoid = ANY ('{{{}}}'::oid[])", never.join(",")));
        let parts: Vec<String> = after.into_iter().chain(never).collect();
        (!parts.is_empty()).then(|| format!("({})", parts.join(" OR ")))
    }

    /// Whether everything that came later is known here.
    pub(super) fn has_all_of(&self, later: &Self) -> bool {
        later.0.iter().all(|(oid, proven)| self.0.get(oid) == Some(proven))
    }

    /// As [`AttachedPartitions::before`], of one table alone.
    pub(super) fn before_of(&self, oid: u32) -> Option<String> {
        Some(match self.0.get(&oid)? {
            Proven::After(xid) => format!("(age(xmin) >= age('{xid}'::xid) OR age(xmin) < 0)"),
            Proven::Never => "true".to_owned(),
        })
    }
}

/// Walks from each leaf up to where it is clear that the publication has its rows: behind `table` itself, and a member of the publication.
fn sql(publications: &str, table: u32, since: Option<u64>, schemas: bool) -> String {
    let in_schema = if schemas {
        "EXISTS (SELECT FROM pg_catalog.pg_publication_namespace AS n JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.pnnspid
                  WHERE n.pnpubid = p.oid AND c.oid = up.node)"
    } else {
        "false"
    };
    let named =
        "EXISTS (SELECT FROM pg_catalog.pg_publication_rel AS m WHERE m.prpubid = p.oid AND m.prrelid = up.node)";
    let came_later =
        since.map_or_else(|| "age(xmin) >= 0".to_owned(), |xid| format!("NOT {}", catalog::older_than(xid)));
    format!(
        "WITH RECURSIVE up (leaf, node, passed) AS (
             SELECT l.oid, l.oid, l.oid = {table}::oid
               FROM (SELECT {table}::oid UNION SELECT relid::oid FROM pg_catalog.pg_partition_tree({table}) WHERE isleaf) AS l (oid)
              UNION ALL
             SELECT up.leaf, i.inhparent, up.passed OR i.inhparent = {table}::oid
               FROM up JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = up.node
               JOIN pg_catalog.pg_class AS c ON c.oid = up.node AND c.relispartition
               JOIN pg_catalog.pg_publication AS p ON p.pubname IN ({publications})
              WHERE NOT (up.passed AND (p.puballtables OR {named} OR {in_schema}))),
              joined (leaf, xmin, new) AS (
             SELECT up.leaf, i.xmin, EXISTS (SELECT FROM pg_catalog.pg_attribute AS s
                                             WHERE s.attrelid = up.node AND s.attnum = -1 AND s.xmin = i.xmin)
               FROM up JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = up.node
               JOIN pg_catalog.pg_class AS c ON c.oid = up.node AND c.relispartition
               JOIN pg_catalog.pg_publication AS p ON p.pubname IN ({publications})
              WHERE NOT (up.passed AND (p.puballtables OR {named} OR {in_schema}))
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
                                 WHERE a.attrelid = up.node AND a.attnum > 0 AND {as_column})
              UNION ALL
             SELECT up.leaf, d.xmin, false
               FROM up JOIN pg_catalog.pg_depend AS d
                 ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = up.node AND d.objsubid = 0
                    AND d.refclassid = 'pg_catalog.pg_namespace'::regclass
               JOIN pg_catalog.pg_publication AS p ON p.pubname IN ({publications})
              WHERE NOT p.puballtables AND NOT {named} AND {in_schema} AND NOT {as_schema}
              UNION ALL
             SELECT up.leaf, r.xmin, true
               FROM up JOIN pg_catalog.pg_class AS c ON c.oid = up.node
               JOIN pg_catalog.pg_publication AS p ON p.pubname IN ({publications}), {REWRITTEN}
              WHERE up.node = up.leaf AND NOT {named})
         SELECT leaf, xmin, new FROM joined WHERE {came_later} ORDER BY age(xmin) DESC",
        as_column = is_as_old("a", "up.node"),
        as_schema = is_as_old("d", "up.node"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(of: &[(u32, &str)]) -> AttachedPartitions {
        AttachedPartitions(of.iter().map(|(oid, xid)| (*oid, Proven::After((*xid).to_owned()))).collect())
    }

    #[test]
    fn rows_of_what_came_later_are_those_of_its_transaction_and_of_older_ones() {
        assert_eq!(AttachedPartitions::default().before(), None);
        let mut three = attached(&[(16400, "751"), (16410, "760")]);
        let map = r#"'{"16400":"751","16410":"760"}'::jsonb"#;
        let two = format!(
            "({map} ? tableoid::oid::text AND (age(xmin) >= age(({map} ->> tableoid::oid::text)::xid) OR age(xmin) < 0))"
        );
        assert_eq!(three.before().unwrap(), format!("({two})"));
        assert_eq!(three.before_of(16410).unwrap(), "(age(xmin) >= age('760'::xid) OR age(xmin) < 0)");
        assert_eq!(three.before_of(1), None);
        three.0.insert(16420, Proven::Never);
        assert_eq!(three.before().unwrap(), format!("({two} OR tableoid = ANY ('{{16420}}'::oid[]))"));
        assert_eq!(three.before_of(16420).unwrap(), "true");
    }

    #[test]
    fn what_is_gone_is_no_news_and_what_came_again_is() {
        let before = attached(&[(16400, "751"), (16410, "760")]);
        assert!(before.has_all_of(&attached(&[(16410, "760")])));
        assert!(!before.has_all_of(&attached(&[(16410, "770")])) && !before.has_all_of(&attached(&[(16420, "751")])));
    }
}

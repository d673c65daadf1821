//! Finds rows that were in a table before the publication published that table. No slot has such rows, so `prune` must not delete them.
//!
//! In: a table that is pruned, and its publications. Out: the tables that were added since the setup marker was written, and as SQL, which
//! of their rows may be older than that. A table is added when it becomes a partition, when it moves into a published schema, and when it
//! stops being `UNLOGGED`. None of these changes the publication, so the marker does not show them.
//!
//! | the table was added by | the transaction that added it | the table was published from the beginning if |
//! |---|---|---|
//! | `ATTACH PARTITION` | `xmin` of its row in `pg_inherits` | a column's row in `pg_attribute` is as old as the rows of the system columns, since attaching rewrites the row of each column |
//! | `SET SCHEMA` | `xmin` of the row in `pg_depend` that ties it to its schema | that row is as old as the rows of the system columns |
//! | `SET LOGGED` | the one that rewrote the table ([`REWRITTEN`]) | the table was not rewritten, or a publication names it, since then it cannot be `UNLOGGED` |
//!
//! Two rows are equally old if the same command of the same transaction wrote them. If nothing shows that a partition was one from the
//! beginning, it counts as attached by the transaction in `pg_inherits`. Then rows of older transactions stay without need. The same is
//! true of a table that another statement than `SET LOGGED` rewrote, since the catalog does not show which one it was.
//!
//! Invariant: if a transaction has added a table, only rows of younger transactions are proven to be in a slot. Rows of that transaction
//! are not proven, and rows that an older transaction inserted after it are not proven either. Before version 15, no row is proven of a
//! table that existed before it was added: if a walsender has decoded a row of the table before that, it does not publish the table until
//! its connection ends.
//!
//! # Limit
//!
//! A transaction gets its number at its first write. If it attaches a table long after that, other transactions with higher numbers may
//! have inserted rows into the table before. These rows look as if they had been inserted after the table was attached.
//!
//! Specification: PostgreSQL manual, chapter 53 "System Catalogs".

use crate::pg::catalog::REWRITTEN;
use crate::pg::{self, Connection, Row, catalog, literal};
use std::collections::BTreeMap;

/// The first version that publishes whole schemas. It also checks again whether a table is published when the table is attached.
const FIFTEEN: u32 = 150_000;

/// SQL that tells whether a row of a catalog (`of`) about the table `oid` is as old as the table itself.
fn is_as_old(of: &str, oid: &str) -> String {
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_attribute AS s
                  WHERE s.attrelid = {oid} AND s.attnum = -1 AND s.xmin = {of}.xmin AND s.cmin = {of}.cmin)"
    )
}

/// The tables that were added later, by `pg_class.oid`, each with the transaction that added it (the lower 32 bits): rows of younger
/// transactions are proven to be in a slot. `None`: no rows are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AttachedPartitions(BTreeMap<u32, Option<String>>);

impl AttachedPartitions {
    /// Looks for the partitions of `table` that were added since the transaction `since` (64 bits: with its epoch). `None`: that transaction
    /// is too old to be compared. `publications`: the ones whose slots carry the rows.
    pub(super) fn look(
        connection: &mut Connection,
        publications: &[&str],
        table: u32,
        since: Option<u64>,
    ) -> Result<Self, pg::Error> {
        let is_fifteen = catalog::server(connection)?.version >= FIFTEEN;
        let names: Vec<String> = publications.iter().copied().map(literal).collect();
        let rows = connection.query(&sql(&names.join(", "), table, since, is_fifteen))?;
        let one = |row: &Row| {
            let is_proven = is_fifteen || row.is_true(2);
            Some((row.parse(0)?, row.text(1).filter(|_| is_proven).map(str::to_owned)))
        };
        // The youngest transaction comes last, and replaces the others.
        Ok(Self(rows.iter().filter_map(one).collect()))
    }

    /// SQL that tells whether a row may be older than its table in the publication. `None`: no table was added.
    pub(super) fn before(&self) -> Option<String> {
        let (mut after, mut never) = (Vec::new(), Vec::new());
        for (oid, added_by) in &self.0 {
            match added_by {
                Some(xid) => after.push(format!("\"{oid}\":\"{xid}\"")),
                None => never.push(oid.to_string()),
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

    /// Whether each table of `later` is here, with the same transaction.
    pub(super) fn has_all_of(&self, later: &Self) -> bool {
        later.0.iter().all(|(oid, added_by)| self.0.get(oid) == Some(added_by))
    }

    /// SQL as that of [`AttachedPartitions::before`], for one table.
    pub(super) fn before_of(&self, oid: u32) -> Option<String> {
        Some(match self.0.get(&oid)? {
            Some(xid) => format!("(age(xmin) >= age('{xid}'::xid) OR age(xmin) < 0)"),
            None => "true".to_owned(),
        })
    }
}

/// SQL that walks from each leaf up to a member of the publication that is `table` itself or above it. From there on it is clear that the
/// publication has the rows.
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
        AttachedPartitions(of.iter().map(|(oid, xid)| (*oid, Some((*xid).to_owned()))).collect())
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
        three.0.insert(16420, None);
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

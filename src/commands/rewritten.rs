//! Which transaction has written a table anew: each of its rows looks as if that one had inserted it.
//!
//! These forms of `ALTER TABLE` create the table's TOAST table again, with its rows in `pg_attribute`, which nothing changes later. `TRUNCATE`,
//! `VACUUM FULL` and `CLUSTER` keep them (the last two keep the rows' transactions as well), and so do changes that write no row anew. A table
//! without a TOAST table has another file than its first one; the transaction is then that of the last change to the table.
//!
//! Specification: PostgreSQL manual, 65.2 "TOAST", 53.7 "pg_attribute".

/// As SQL, a relation `r`: the transaction (`xmin`) that wrote the table `c` of `pg_class` anew last; no row: none has since it was created.
pub(super) const REWRITTEN: &str = "LATERAL (
    SELECT last.xmin FROM (SELECT a.xmin FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.reltoastrelid AND a.attnum = 1
                           UNION ALL
                           SELECT c.xmin WHERE c.reltoastrelid = 0 AND pg_catalog.pg_relation_filenode(c.oid) <> c.oid) AS last (xmin)
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS s WHERE s.attrelid = c.oid AND s.attnum = -1 AND s.xmin = last.xmin)) AS r";

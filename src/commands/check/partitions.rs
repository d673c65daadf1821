//! Whether the partitions of tomorrow are there.
//!
//! In: the published tables. Out: a finding for each that is partitioned by range of a time, and has no partition for some hour of tomorrow.
//! Days are those of the server's time zone. Reads only.

use super::facts::Facts;
use crate::check_finding::{Finding, Side};
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, Row};

/// One finding for each table without such a partition.
pub(super) fn findings(source: &Source, facts: &Facts) -> Vec<Finding> {
    let ids: Vec<u32> = facts.tables.iter().map(|table| table.published.relation.id).collect();
    match look(source, &ids) {
        Ok(lacking) => lacking.iter().filter_map(judge).collect(),
        Err(error) => {
            vec![Side::Table.ok("next_partition", format!("tomorrow's partitions were not checked: {error}"))]
        }
    }
}

/// The finding for a row of [`look`].
fn judge(lacking: &Row) -> Option<Finding> {
    let (table, tomorrow, create) = (lacking.text(0)?, lacking.text(1)?, lacking.text(2)?);
    let finding = Side::Table
        .warn("next_partition", format!("no partition takes all rows of tomorrow ({tomorrow})"))
        .why("an insert that no partition takes fails, and its transaction with it; walrelay prune --partitions drops old partitions and creates none");
    Some(finding.safe(create).of(table))
}

/// The tables that lack a partition for tomorrow: `schema.table`, the day, and SQL that creates the partition. `ids`: `pg_class.oid` of
/// partitioned tables, or of their partitions.
fn look(source: &Source, ids: &[u32]) -> Result<Vec<Row>, pg::Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    // A day that another partition covers in part begins where that one ends. A bound that is no time is MINVALUE or MAXVALUE.
    Connection::open(source, Purpose::Control)?.query(&format!(
        "SELECT n.nspname || '.' || c.relname, d.day::text,
                pg_catalog.format('CREATE TABLE %I.%I PARTITION OF %I.%I FOR VALUES FROM (%L) TO (%L);',
                    n.nspname, pg_catalog.left(c.relname, 53) || pg_catalog.to_char(d.day, '\"_p\"YYYYMMDD'), n.nspname, c.relname,
                    GREATEST(d.day::timestamptz, parts.upto)::text, (d.day + 1)::text)
           FROM pg_catalog.pg_partitioned_table AS p
           JOIN pg_catalog.pg_class AS c ON c.oid = p.partrelid
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
          CROSS JOIN (SELECT current_date + 1) AS d (day)
          CROSS JOIN LATERAL (
                SELECT pg_catalog.range_agg(pg_catalog.tstzrange(b.since, b.upto)) AS taken,
                       max(b.upto) FILTER (WHERE b.upto < d.day + 1) AS upto
                  FROM (SELECT pg_catalog.substring(bound, 'FROM \\(''([^'']+)''\\)')::timestamptz,
                               pg_catalog.substring(bound, 'TO \\(''([^'']+)''\\)')::timestamptz
                          FROM pg_catalog.pg_inherits AS i
                          JOIN pg_catalog.pg_class AS part ON part.oid = i.inhrelid
                         CROSS JOIN pg_catalog.pg_get_expr(part.relpartbound, part.oid) AS bound
                         WHERE i.inhparent = c.oid AND NOT i.inhdetachpending) AS b (since, upto)) AS parts
          WHERE c.oid IN (SELECT pg_catalog.pg_partition_root(t.oid)::oid FROM pg_catalog.pg_class AS t WHERE t.oid IN ({ids}))
            AND p.partstrat = 'r' AND p.partnatts = 1 AND p.partdefid = 0
            AND a.atttypid IN ('timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype)
            AND NOT COALESCE(parts.taken @> pg_catalog.tstzrange(d.day, d.day + 1), false)
          ORDER BY 1"
    ))
}

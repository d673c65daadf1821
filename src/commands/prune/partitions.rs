//! `prune --partitions`: whole partitions are detached and dropped once they are old and delivered.
//!
//! In: a table that is partitioned by range of its age column. Out: the partitions that were dropped. It creates none: `check` warns where
//! no partition takes tomorrow's rows. Old partitions are looked up, and the
//! oldest transaction that runs then is noted; once the slot has confirmed what stands behind that, a partition is locked, and detached
//! and dropped if no transaction from that one on has left a row in it: what is older had ended before, so it is delivered.

use super::Round;
use super::row_cursor;
use super::table::Table;
use crate::commands::error::CommandError;
use crate::commands::output::duration;
use crate::pg::{self, catalog, sqlstate};
use std::io::Write;

/// The end of a partition `c` as a time, as SQL; null where it has none.
const UPTO: &str = "substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid) FROM 'TO \\(''([^'']+)''\\)')::timestamptz";

/// Detaches and drops.
pub(super) fn prune(round: &mut Round<'_>, table: &Table, out: &mut dyn Write) -> Result<(), CommandError> {
    let key = key(round, table)?;
    let age = duration(round.request.older_than);
    let old = old(round, table)?;
    round.nothing_attached(table)?;
    if round.request.dry_run {
        for name in &old {
            writeln!(out, "{}: partition {name} is older than {age} by {key}", table.name)?;
        }
        return Ok(());
    }
    if old.is_empty() {
        writeln!(out, "{}: no partition is older than {age} by {key}", table.name)?;
        return Ok(());
    }
    let oldest = catalog::oldest_running(&mut round.connection)?.unwrap_or_default();
    round.confirmed()?;
    let passed_over = round.passed_over(table, "");
    for name in old {
        if has_rows(round, &name, passed_over.as_deref())? {
            writeln!(out, "{}: rows that the relay skipped stay in partition {name}", table.name)?;
            continue;
        }
        let outcome = drop_partition(round, table, &name, oldest)?;
        writeln!(out, "{}: {outcome} partition {name}", table.name)?;
    }
    Ok(())
}

/// The one column that it is partitioned by; it has to be the age's.
fn key(round: &mut Round<'_>, table: &Table) -> Result<String, CommandError> {
    let refused = |why: &str| CommandError::no_partitions(&table.name, why);
    let rows = round.connection.query(&format!(
        "SELECT a.attname, a.atttypid::regtype::text FROM pg_catalog.pg_partitioned_table AS p
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
          WHERE p.partrelid = {} AND p.partstrat = 'r' AND p.partnatts = 1
            AND a.atttypid::regtype::text IN ('timestamp with time zone', 'timestamp without time zone', 'date')",
        table.shape.oid
    ))?;
    let key = rows.first().and_then(|row| row.text(0)).map(str::to_owned);
    let key = key.ok_or_else(|| refused("it is not partitioned by range of one column with a time"))?;
    if table.age.name() == key {
        return Ok(key);
    }
    Err(refused(&format!("it is partitioned by {key}, and age is taken from {}", table.age.name())))
}

/// Partitions whose last moment is old enough, without those with rows that may be from before the slot. Rows that the role does not see
/// could be such rows.
fn old(round: &mut Round<'_>, table: &Table) -> Result<Vec<String>, CommandError> {
    let rows = round.connection.query(&format!(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.row_security_active(c.oid)
           FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE i.inhparent = {} AND c.relkind = 'r' AND NOT i.inhdetachpending
            AND {UPTO}
                < pg_catalog.now() - interval '{} ms'
          ORDER BY c.relname",
        table.shape.oid,
        round.request.older_than.as_millis()
    ))?;
    if let Some(hidden) = rows.iter().find(|row| row.is_true(1)).and_then(|row| row.text(0)) {
        let why = format!("row security hides rows of partition {hidden} from this role");
        return Err(CommandError::no_partitions(&table.name, &why));
    }
    let (keeps, mut proven) = (round.keeps(table), Vec::new());
    for name in rows.iter().filter_map(|row| row.text(0)) {
        if !has_rows(round, name, keeps.as_deref())? {
            proven.push(name.to_owned());
        }
    }
    Ok(proven)
}

/// Whether a partition has rows that are to stay, by this condition.
fn has_rows(round: &mut Round<'_>, name: &str, stays: Option<&str>) -> Result<bool, pg::Error> {
    let Some(stays) = stays else { return Ok(false) };
    let one = format!("SELECT FROM {name} WHERE {stays} LIMIT 1");
    Ok(!round.connection.query_within(&one, row_cursor::PATIENCE)?.is_empty())
}

/// Drops a partition that has no newer row, and says what it did. The lock lets nobody add a row between the look and the end.
fn drop_partition(round: &mut Round<'_>, table: &Table, name: &str, oldest: u64) -> Result<&'static str, pg::Error> {
    let parent = table.name.sql();
    let newer = format!("SELECT FROM {name} WHERE NOT ({}) LIMIT 1", catalog::older_than(oldest));
    let connection = &mut round.connection;
    let dropped = connection
        .query(&format!("BEGIN; LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE"))
        .and_then(|_| connection.query_within(&newer, row_cursor::PATIENCE))
        .and_then(|rows| {
            let drop = format!("ALTER TABLE {parent} DETACH PARTITION {name}; DROP TABLE {name}; COMMIT");
            if rows.is_empty() { connection.query(&drop).map(|_| true) } else { Ok(false) }
        });
    let why = match dropped {
        Ok(true) => return Ok("dropped"),
        Ok(false) => "rows still come into",
        Err(error) if error.code() == Some(sqlstate::LOCK_NOT_AVAILABLE) => "somebody uses",
        Err(error) => return Err(error),
    };
    connection.query("ROLLBACK").map(|_| why)
}

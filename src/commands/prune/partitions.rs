//! `prune --partitions`: whole partitions are detached and dropped once they are old and delivered.
//!
//! In: a table that is partitioned by range of its age column. Out: the partitions that were dropped. It creates none: `check` warns where
//! no partition takes tomorrow's rows.
//!
//! ```text
//!  wait until the slot has confirmed what is committed now
//!    ─► lock the partition against writers; its readers go on
//!    ─► commit a logical message: behind every row of the partition; wait until the slot has confirmed it
//!    ─► lock the parent, detach, drop
//! ```
//!
//! Invariant: while the partition is locked, no row comes into it, and all of its rows are from before the message. So no row has to be
//! looked at. The locks are asked for with less patience than the server has before it looks for deadlocks: whoever meets them waits, and
//! is not ended.

use super::Round;
use super::row_cursor;
use super::table::Table;
use crate::commands::error::CommandError;
use crate::commands::output::duration;
use crate::pg::{self, Connection, Purpose, sqlstate};
use serde_json::json;
use std::io::Write;
use std::time::Duration;

/// The end of a partition `c` as a time, as SQL; null where it has none.
const UPTO: &str = "substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid) FROM 'TO \\(''([^'']+)''\\)')::timestamptz";

/// A transaction whose locks are given up before the server ends somebody because of a deadlock with them.
const BEGIN: &str = "BEGIN; SELECT pg_catalog.set_config('lock_timeout', (setting::int / 2)::text, true)
    FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'";

/// How long writers may be kept out of an old partition.
const UNDER_LOCK: Duration = Duration::from_secs(5);

/// A partition that is old as a whole.
struct Old {
    oid: u32,
    /// As SQL names it.
    name: String,
}

/// Detaches and drops.
pub(super) fn prune(round: &mut Round<'_>, table: &Table, out: &mut dyn Write) -> Result<(), CommandError> {
    let key = key(round, table)?;
    let age = duration(round.request.older_than);
    let old = old(round, table)?;
    let oids: Vec<u32> = old.iter().map(|partition| partition.oid).collect();
    round.evidence.iter().try_for_each(|known| known.covers(table, Some(&oids)))?;
    if round.request.dry_run {
        for Old { name, .. } in &old {
            let text = format!("partition {name} is older than {age} by {key}");
            round.say(table, out, &text, json!({ "partition": name, "result": "is old" }))?;
        }
        return Ok(());
    }
    if old.is_empty() {
        let text = format!("no partition is older than {age} by {key}");
        return round.say(table, out, &text, json!({ "partition": null }));
    }
    // The relay may be far behind: that is waited for without a lock.
    round.confirmed(table, Some(&oids))?;
    let patience = round.patience;
    round.patience = Some(patience.map_or(UNDER_LOCK, |patience| patience.min(UNDER_LOCK)));
    let dropped = drop_each(round, table, &old, out);
    // The next table is waited for without a lock again.
    round.patience = patience;
    dropped
}

/// Drops each partition that nobody uses.
fn drop_each(round: &mut Round<'_>, table: &Table, old: &[Old], out: &mut dyn Write) -> Result<(), CommandError> {
    let mut locker = Connection::open(&round.request.carrier.source, Purpose::Control)?;
    for partition in old {
        let outcome = drop_partition(round, table, partition, &mut locker)?;
        let text = format!("{outcome} partition {}", partition.name);
        round.say(table, out, &text, json!({ "partition": partition.name, "result": outcome }))?;
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

/// Partitions whose last moment is old enough.
fn old(round: &mut Round<'_>, table: &Table) -> Result<Vec<Old>, CommandError> {
    let rows = round.connection.query(&format!(
        "SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.row_security_active(c.oid)
           FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE i.inhparent = {} AND c.relkind = 'r' AND NOT i.inhdetachpending
            AND {UPTO}
                < pg_catalog.now() - interval '{} ms'
          ORDER BY c.relname",
        table.shape.oid,
        round.request.older_than.as_millis()
    ))?;
    // Rows that the relay has skipped may be among those that the role does not see.
    if let Some(hidden) = rows.iter().find(|row| row.is_true(2)).and_then(|row| row.text(1)) {
        let why = format!("row security hides rows of partition {hidden} from this role");
        return Err(CommandError::no_partitions(&table.name, &why));
    }
    Ok(rows.iter().filter_map(|row| Some(Old { oid: row.parse(0)?, name: row.text(1)?.to_owned() })).collect())
}

/// Drops a partition, and says what it did.
fn drop_partition(
    round: &mut Round<'_>,
    table: &Table,
    partition: &Old,
    locker: &mut Connection,
) -> Result<&'static str, CommandError> {
    let (parent, name) = (table.name.sql(), &partition.name);
    if !is_locked(locker, &format!("{BEGIN}; LOCK TABLE {name} IN SHARE MODE"))? {
        locker.query("ROLLBACK")?;
        return Ok("somebody uses");
    }
    let dropped = match round.confirmed(table, Some(&[partition.oid])) {
        Err(error) => {
            drop(locker.query("ROLLBACK"));
            return Err(error);
        }
        Ok(()) if has_kept(round, table, name)? => "rows that the relay skipped, or that are in no shard, stay in",
        Ok(()) => {
            let drop = format!("ALTER TABLE {parent} DETACH PARTITION {name}; DROP TABLE {name}");
            if is_locked(locker, &format!("LOCK TABLE ONLY {parent} IN ACCESS EXCLUSIVE MODE; {drop}"))? {
                // Nobody can have moved the table's rows to other shards since the publication was looked at: the partition is locked.
                round.slots.look_at_members(locker)?;
                locker.query("COMMIT")?;
                return Ok("dropped");
            }
            "somebody uses"
        }
    };
    locker.query("ROLLBACK")?;
    Ok(dropped)
}

/// Runs statements that take locks. `false`: somebody else has one for longer than a deadlock is waited for.
fn is_locked(locker: &mut Connection, sql: &str) -> Result<bool, pg::Error> {
    match locker.query(sql) {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(sqlstate::LOCK_NOT_AVAILABLE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a partition has rows that stay, however old they are.
fn has_kept(round: &mut Round<'_>, table: &Table, name: &str) -> Result<bool, pg::Error> {
    let Some(kept) = round.kept(table) else { return Ok(false) };
    let one = format!("SELECT FROM {name} WHERE {kept} LIMIT 1");
    Ok(!round.connection.query_within(&one, row_cursor::PATIENCE)?.is_empty())
}

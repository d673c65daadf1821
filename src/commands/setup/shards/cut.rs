//! The cut: one transaction, in which the rows of the tables go over from the old set to the new one.
//!
//! In: a plan. Out: the cut is done, or nothing is changed. The lock waits for transactions that have written to the tables, and while it
//! waits, those that begin to write wait behind it. So it waits for a bounded time only, lets them go, and tries again for longer.
//!
//! Invariants: the lock is held until the transaction ends, and nothing is changed without it, nor while a slot of the new set is missing or lost.

use super::plan::Plan;
use super::{SetupRequest, sql};
use crate::commands::error::CommandError;
use crate::commands::output::session;
use crate::commands::setup::{Voice, Wait};
use crate::pg::shard::Shard;
use crate::pg::{self, Connection, catalog, literal, server, sqlstate};
use crate::supervise::check_slot;
use std::time::Duration;

/// The first bound.
const SHORTEST: Duration = Duration::from_millis(100);

/// The last one, where there is one table: so long writers may have to wait.
const LONGEST: Duration = Duration::from_secs(5);

/// The last one, where there are several. Writers lock them in any order, and after a second (`deadlock_timeout`) the server would end one
/// of them to resolve a deadlock.
const LONGEST_OF_SEVERAL: Duration = Duration::from_millis(500);

/// How a try ended.
enum Tried {
    Done,
    /// The lock was not had in time.
    Locked,
    /// A slot of the new set has to be made first.
    NoSlot,
}

/// Tries until it is done, or the voice says to stop. `false`: the slots of the new set have to be made first.
pub(super) fn cut(
    connection: &mut Connection,
    request: &SetupRequest,
    plan: &Plan,
    voice: &mut Voice<'_>,
) -> Result<bool, CommandError> {
    let longest = if plan.tables.len() > 1 { LONGEST_OF_SEVERAL } else { LONGEST };
    let mut bound = SHORTEST;
    let mut wait = Wait::begin();
    loop {
        match attempt(connection, request, plan, bound)? {
            Tried::Done => break,
            Tried::Locked => {}
            Tried::NoSlot => return Ok(false),
        }
        let writers = writers(connection, plan)?;
        wait.turn(voice, || {
            format!("waiting: the cut can be made once writers of the tables have ended: {}", writers.join("; "))
        })?;
        bound = (bound * 2).min(longest);
    }
    (voice.say)(&format!("cut: rows that commit from now on are rows of {}", plan.shown()))?;
    Ok(true)
}

fn attempt(
    connection: &mut Connection,
    request: &SetupRequest,
    plan: &Plan,
    bound: Duration,
) -> Result<Tried, CommandError> {
    connection.query("BEGIN")?;
    // The cut survives a crash of the server from its commit on, whatever the role's default is.
    connection.query(&format!("SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = {}", bound.as_millis()))?;
    match connection.query(&sql::lock(plan)) {
        Ok(_) => {}
        Err(error) if error.code() == Some(sqlstate::LOCK_NOT_AVAILABLE) => {
            connection.query("ROLLBACK")?;
            return Ok(Tried::Locked);
        }
        Err(error) => return Err(refused(error)),
    }
    connection.query("SET LOCAL lock_timeout = 0")?;
    if !has_slots(connection, request, plan)? {
        connection.query("ROLLBACK")?;
        return Ok(Tried::NoSlot);
    }
    for statement in sql::cut(request, plan) {
        connection.query(&statement).map_err(refused)?;
    }
    connection.query("COMMIT")?;
    Ok(Tried::Done)
}

/// Whether each slot of the new set is there, made, and not lost since: nobody reads them yet, and the waits before have no bound. From
/// the cut on it would be too late.
fn has_slots(connection: &mut Connection, request: &SetupRequest, plan: &Plan) -> Result<bool, pg::Error> {
    for name in Shard::all(plan.count).map(|shard| shard.name(&request.slot)) {
        let slot = server::slot(connection, &name)?.filter(|slot| slot.confirmed_flush_lsn.is_some());
        if slot.is_none_or(|slot| check_slot(&name, &plan.database, &slot).is_err()) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn refused(error: pg::Error) -> CommandError {
    let fix = "run it as the owner of the publications and of their tables";
    CommandError::from(error).with_fix("make the cut".to_owned(), fix)
}

/// Describes the sessions that hold a lock as writers do.
fn writers(connection: &mut Connection, plan: &Plan) -> Result<Vec<String>, pg::Error> {
    let names: Vec<String> = plan
        .tables
        .iter()
        .map(|table| format!("({}, {})", literal(&table.name.schema), literal(&table.name.name)))
        .collect();
    let rows = connection.query(&format!(
        "SELECT DISTINCT l.pid FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE l.granted AND l.pid IS NOT NULL AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock', 'ShareLock', 'ShareUpdateExclusiveLock')
            AND (n.nspname, c.relname) IN ({}) ORDER BY 1 LIMIT 3",
        names.join(", ")
    ))?;
    let mut found = Vec::new();
    for pid in rows.iter().filter_map(|row| row.parse(0)) {
        found.extend(catalog::session(connection, Some(pid))?.map(|holder| session(&holder)));
    }
    if found.is_empty() {
        found.push("they are gone, or are prepared transactions".to_owned());
    }
    Ok(found)
}

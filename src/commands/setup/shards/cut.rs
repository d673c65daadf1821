//! The cut: one transaction, in which the rows of the tables go over from the old set to the new one.
//!
//! In: a plan. Out: the cut is done, or nothing is changed. The lock waits for transactions that have written to the tables. Transactions
//! that begin to write meanwhile wait behind it. So the lock waits only for a limited time, lets them go, and is tried again for longer.
//!
//! Invariants: the lock is kept until the transaction ends. Nothing is changed without the lock, or while a slot of the new set is missing
//! or invalidated.

use super::{Move, readable, sql};
use crate::commands::error::CommandError;
use crate::commands::output::session;
use crate::commands::setup::Wait;
use crate::commands::shards::Member;
use crate::pg::{self, catalog, leaf_notes, literal, server, sqlstate};
use std::collections::BTreeSet;
use std::time::Duration;

/// The limit of the first try.
const SHORTEST: Duration = Duration::from_millis(100);

/// The largest limit for one table. Writers may have to wait for this time.
const LONGEST: Duration = Duration::from_secs(5);

/// The largest limit for several tables. Writers lock them in any order, and after a second (`deadlock_timeout`) the server would end one of
/// the writers to resolve a deadlock.
const LONGEST_OF_SEVERAL: Duration = Duration::from_millis(500);

impl Move<'_, '_> {
    /// Step 3. Tries until it is done, or the voice says to stop.
    pub(super) fn cut(&mut self) -> Result<(), CommandError> {
        let longest = if self.plan.tables.len() > 1 { LONGEST_OF_SEVERAL } else { LONGEST };
        let mut bound = SHORTEST;
        let mut wait = Wait::begin();
        while !self.try_cut(bound)? {
            let writers = self.writers()?;
            wait.pause(self.voice, || {
                format!("waiting: the cut can be made once writers of the tables have ended: {}", writers.join("; "))
            })?;
            bound = (bound * 2).min(longest);
        }
        Ok((self.voice.say)(&format!("cut: rows that commit from now on are rows of {}", self.plan.target.shown()))?)
    }

    /// Makes the cut. `false`: the lock was not granted in time, and nothing is changed.
    fn try_cut(&mut self, bound: Duration) -> Result<bool, CommandError> {
        self.connection.query("BEGIN")?;
        // The cut survives a crash of the server from its commit on, whatever the role's default is.
        let limits = format!("SET LOCAL synchronous_commit = on; SET LOCAL lock_timeout = {}", bound.as_millis());
        self.connection.query(&limits)?;
        match self.connection.query(&sql::lock(self.plan)) {
            Ok(_) => {}
            Err(error) if error.code() == Some(sqlstate::LOCK_NOT_AVAILABLE) => {
                self.connection.query("ROLLBACK")?;
                return Ok(false);
            }
            Err(error) => return Err(refused(error)),
        }
        self.connection.query("SET LOCAL lock_timeout = 0")?;
        // Nobody has read these slots, and the waits before have no limit. If a slot is lost after the cut, its rows are lost.
        for Member { slot: name, .. } in &self.plan.target.members {
            readable(name, &self.plan.database, server::slot(self.connection, name)?, false)?;
        }
        let carried = self.published_by_the_old_set()?;
        for statement in sql::cut(self.plan, &carried) {
            self.connection.query(&statement).map_err(refused)?;
        }
        self.connection.query("COMMIT")?;
        Ok(true)
    }

    /// The tables of which every row is published by the old set, once it is drained. `prune` knows them of the new set, too.
    fn published_by_the_old_set(&mut self) -> Result<BTreeSet<u32>, pg::Error> {
        let mut all: Option<BTreeSet<u32>> = None;
        for member in self.plan.old() {
            let of_one = leaf_notes::published(self.connection, &member.publication, &member.slot)?;
            all = Some(all.map_or_else(|| of_one.clone(), |all| &all & &of_one));
        }
        Ok(all.unwrap_or_default())
    }

    /// Describes the sessions that have a lock as writers do.
    fn writers(&mut self) -> Result<Vec<String>, pg::Error> {
        let tables = self.plan.tables.iter();
        let tables: Vec<String> =
            tables.map(|table| format!("{}::pg_catalog.regclass", literal(&table.name.sql()))).collect();
        let rows = self.connection.query(&format!(
            "SELECT DISTINCT pid FROM pg_catalog.pg_locks
              WHERE granted AND pid IS NOT NULL AND relation IN ({})
                AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock', 'ShareLock', 'ShareUpdateExclusiveLock')
              ORDER BY 1 LIMIT 3",
            tables.join(", ")
        ))?;
        let mut found = Vec::new();
        for pid in rows.iter().filter_map(|row| row.parse(0)) {
            found.extend(catalog::session(self.connection, Some(pid))?.map(|holder| session(&holder)));
        }
        if found.is_empty() {
            found.push("they are gone, or are prepared transactions".to_owned());
        }
        Ok(found)
    }
}

fn refused(error: pg::Error) -> CommandError {
    let fix = "run it as the owner of the publications and of their tables";
    CommandError::from(error).with_fix("make the cut".to_owned(), fix)
}

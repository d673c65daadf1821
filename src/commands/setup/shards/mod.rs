//! `setup --shards` and `setup --reshard`: creates a set of shards, and moves the rows of another set, or of one slot, to it.
//!
//! ```text
//!  1 prepare   publications of the new set, without tables; each says that its relay must wait
//!  2 slots     of the new set: from here on they keep the WAL, and have no rows, since their publications have no tables
//!  3 cut       one transaction, with the tables locked against writers:   old publications … WHERE (false)
//!                                                                         new publications + tables WHERE (hash of the key)
//!  4 drain     wait until each old slot has confirmed a position after the cut
//!  5 drop      the old slots
//!  6 open      one transaction: drop the old publications; the new ones no longer say that their relays must wait
//! ```
//!
//! In: names, and the number of shards. Out: SQL, or what was done. A new set without an old one takes the same steps.
//!
//! # Why no row is lost, repeated or swapped
//!
//! *Each row is in exactly one slot.* `pgoutput` looks a publication up as of each change. The cut locks the tables in a mode that conflicts
//! with the locks of writers, and writers keep their locks until their transactions end. So a transaction with rows of these tables ends
//! before the cut commits, or writes its first row after that. No transaction is on both sides, whether or not its rows are in
//! subtransactions. Rows from before the cut pass the filters of the old set, and the new publications have no tables for them. Rows from
//! after the cut pass the filters of the new set, and no old one. In each set a row passes exactly one filter ([`crate::pg::shard`]).
//!
//! *No row is lost.* The new slots exist before the cut, and each relay reads its slot from its beginning. An old slot is dropped only after
//! it has confirmed a position after the cut, which means that every record before the cut is acknowledged.
//!
//! *No two rows of a key are swapped.* Two rows of a key in one set are in one slot, in the order of their commits. If one row is from
//! before the cut and one from after it, a relay of the new set publishes the second one. That relay waits until step 6, and in step 4 the
//! first one was acknowledged.
//!
//! *None is repeated,* except by a relay that is killed before it has confirmed, as at any time: the sets have no row in common.
//!
//! *The command may be killed at any step.* Steps 1, 3 and 6 are one transaction each, and the others can be repeated. The publications
//! record the progress: the new ones have tables once the cut is done, and the old ones say that they drain, and later that they are
//! drained. Only an old set that is drained may lack its slots. If another slot of either set is missing or invalidated, it was lost, and
//! the command ends: the hint says how to create the slot again. The same command resumes. Until then no relay of the new set publishes,
//! and the rows wait in its slots.

mod cut;
mod plan;
mod sql;

use super::{SetupRequest, Voice, Wait};
use crate::commands::error::CommandError;
use crate::commands::other_readers;
use crate::commands::output::bytes;
use crate::commands::shards::Member;
use crate::lsn::Lsn;
use crate::pg::marker::MoveState;
use crate::pg::server::{self, Slot};
use crate::pg::{Connection, identifier, skipped_rows, sqlstate};
use crate::remedy::Remedy;
use crate::supervise::{RunCause, RunError, check_owner, check_slot};
use plan::Plan;
use std::time::{Duration, Instant};

/// The largest lag of an old slot at the cut. Its relay publishes that much before the new relays begin.
const NEAR_BYTES: u64 = 16 << 20;

/// The time that an old slot may have no relay before the cut. A relay that restarts is back by then.
const RELAY_PATIENCE: Duration = Duration::from_secs(15);

/// The set of shards that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    /// The number of shards, from 1 to [`MOST`](crate::pg::shard::MOST).
    pub count: u8,
    /// Whether rows of another set, or of one slot, move to it.
    pub moves: bool,
    /// The column of `--key-column`. Empty: records have no key. `None`: it is found by its name.
    pub key_column: Option<String>,
    /// The column of `--id-column`. `None`: it is found by its name.
    pub id_column: Option<String>,
}

/// Returns the steps as a script for `psql`.
///
/// # Errors
/// The rows cannot be moved.
pub(super) fn script(
    connection: &mut Connection,
    request: &SetupRequest,
    shards: &Shards,
) -> Result<String, CommandError> {
    Ok(sql::script(request, shards, &plan::look(connection, request, shards)?))
}

/// Carries the steps out. The connection has the lock of setups.
///
/// # Errors
/// As [`super::setup`]; and the rows cannot be moved.
pub(super) fn set_up(
    connection: &mut Connection,
    request: &SetupRequest,
    shards: &Shards,
    voice: &mut Voice<'_>,
) -> Result<(), CommandError> {
    let plan = plan::look(connection, request, shards)?;
    if plan.target.is_done() {
        (voice.say)(&format!("nothing to do: {} are there", plan.target.shown()))?;
    } else {
        has_no_other_reader(connection, request, &plan)?;
        Move { connection, request, plan: &plan, voice }.carry_out()?;
    }
    for (shard, _) in plan.target.shards() {
        (voice.say)(&format!("next: {}", sql::run_command(request, shard)))?;
    }
    Ok(())
}

/// Checks that nobody else reads the old publications, which have no new rows after the cut.
fn has_no_other_reader(connection: &mut Connection, request: &SetupRequest, plan: &Plan) -> Result<(), CommandError> {
    let own = plan.old().iter().chain(&plan.target.members).map(|member| member.slot.clone());
    let known: Vec<String> = own.chain(request.also_read_by.iter().cloned()).collect();
    let old = plan.old().iter().filter(|member| member.exists);
    old.into_iter().try_for_each(|member| other_readers::refuse(connection, &member.publication, &member.slot, &known))
}

/// A plan that is being carried out.
struct Move<'a, 'b> {
    connection: &'a mut Connection,
    request: &'a SetupRequest,
    plan: &'a Plan,
    voice: &'a mut Voice<'b>,
}

impl Move<'_, '_> {
    fn carry_out(&mut self) -> Result<(), CommandError> {
        if !self.plan.is_cut {
            self.create_publications()?;
            self.create_slots()?;
            self.wait_for_relays()?;
            self.cut()?;
        }
        self.drain()?;
        self.drop_slots()?;
        self.open()
    }

    /// Step 1.
    fn create_publications(&mut self) -> Result<(), CommandError> {
        let plan = self.plan;
        self.connection.query("BEGIN")?;
        for (shard, member) in plan.missing_publications() {
            for statement in sql::publication(shard, member) {
                let (database, user) = (identifier(&plan.database), identifier(&plan.user));
                let fix = Remedy::sql(format!("GRANT CREATE ON DATABASE {database} TO {user};"));
                self.connection.query(&statement).map_err(|error| {
                    CommandError::from(error).with_fix(format!("create publication \"{}\"", member.publication), fix)
                })?;
            }
        }
        self.connection.query("COMMIT")?;
        for (_, member) in plan.missing_publications() {
            (self.voice.say)(&format!("created publication \"{}\", still without tables", member.publication))?;
        }
        Ok(())
    }

    /// Step 2.
    fn create_slots(&mut self) -> Result<(), CommandError> {
        let mut wait = Wait::begin();
        for Member { slot: name, .. } in &self.plan.target.members {
            while let Some(slot) = server::slot(self.connection, name)? {
                check_owner(name, &self.plan.database, &slot)?;
                let is_finished = slot.confirmed_flush_lsn.is_some();
                if is_finished && !readable(name, &self.plan.database, Some(slot), false)?.row.active {
                    break;
                }
                // A command that was killed leaves its statement running for a moment, and a slot that goes with it.
                wait.pause(self.voice, || format!("waiting: slot \"{name}\" is in use, or still being created"))?;
            }
            if server::slot(self.connection, name)?.is_none() {
                let (of_shard, step) = self.plan.slot_step(self.request, name);
                let maker = super::replicating(&self.request.source)?;
                let (_, lsn) = super::slot::make(maker, &of_shard, &step, self.voice)?;
                (self.voice.say)(&format!("created slot \"{name}\" at {lsn}"))?;
            }
        }
        Ok(())
    }

    /// Waits until the old relays are near the end of the WAL, so that the new ones need not wait for long.
    fn wait_for_relays(&mut self) -> Result<(), CommandError> {
        let started = Instant::now();
        let mut wait = Wait::begin();
        for member in self.plan.old() {
            loop {
                let slot = self.slot_with_rows(&member.slot)?;
                if slot.row.active && slot.lag_bytes.is_some_and(|lag| lag <= NEAR_BYTES) {
                    break;
                }
                if !slot.row.active && started.elapsed() >= RELAY_PATIENCE {
                    return Err(CommandError::unread(&member.slot, member.command()));
                }
                wait.pause(self.voice, || {
                    let lag = bytes(slot.lag_bytes.unwrap_or_default());
                    format!("waiting: slot \"{}\" is {lag} behind the server; nothing was moved yet", member.slot)
                })?;
            }
        }
        Ok(())
    }

    /// Step 4. Every row from before the cut is below the position that is queried here.
    fn drain(&mut self) -> Result<(), CommandError> {
        let Some(source) = self.plan.source.as_ref().filter(|source| !source.is(MoveState::Drained)) else {
            return Ok(());
        };
        let started = Instant::now();
        let rows = self.connection.query("SELECT pg_catalog.pg_current_wal_flush_lsn()")?;
        let cut: Lsn = rows.first().and_then(|row| row.parse(0)).unwrap_or_default();
        let mut wait = Wait::begin();
        for member in &source.members {
            loop {
                let slot = self.slot_with_rows(&member.slot)?;
                if slot.confirmed_flush_lsn >= Some(cut) {
                    break;
                }
                wait.pause(self.voice, || {
                    let relay = if slot.row.active { "its relay publishes" } else { "no relay reads it" };
                    format!(
                        "waiting: slot \"{}\" has to confirm {cut} and is at {}; {relay} ({})",
                        member.slot,
                        slot.confirmed_flush_lsn.unwrap_or_default(),
                        member.command()
                    )
                })?;
            }
        }
        self.connection.query("BEGIN")?;
        for member in &source.members {
            self.connection.query(&sql::comment(member, MoveState::Drained))?;
        }
        self.connection.query("COMMIT")?;
        let slots = if source.members.len() == 1 { "" } else { ", each of them" };
        let took = started.elapsed().as_millis();
        Ok((self.voice.say)(&format!("drained {}{slots} up to {cut}, in {took} ms", source.shown()))?)
    }

    fn slot_with_rows(&mut self, name: &str) -> Result<Slot, CommandError> {
        readable(name, &self.plan.database, server::slot(self.connection, name)?, true)
    }

    /// Step 5. Ends the connections of the old relays, whose records are all acknowledged and confirmed.
    fn drop_slots(&mut self) -> Result<(), CommandError> {
        let mut wait = Wait::begin();
        for member in self.plan.old() {
            let name = &member.slot;
            while let Some(slot) = server::slot(self.connection, name)? {
                check_owner(name, &self.plan.database, &slot)?;
                if let Some(pid) = slot.row.active_pid {
                    let step = format!("end the connection that reads slot \"{name}\"");
                    let fix =
                        Remedy::from("stop its relay (").and(member.command()).and("), then the same command again");
                    let ended = self.connection.query(&format!("SELECT pg_catalog.pg_terminate_backend({pid}, 5000)"));
                    ended.map_err(|error| CommandError::from(error).with_fix(step, fix))?;
                }
                match self.connection.query(&sql::drop_slot(name)) {
                    Ok(_) => (self.voice.say)(&format!("dropped slot \"{name}\""))?,
                    // The relay has connected again.
                    Err(error) if error.code() == Some(sqlstate::OBJECT_IN_USE) => wait.pause(self.voice, || {
                        format!("waiting: a relay takes slot \"{name}\" again and again; stop it")
                    })?,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Step 6.
    fn open(&mut self) -> Result<(), CommandError> {
        for member in &self.plan.target.members {
            self.slot_with_rows(&member.slot)?;
        }
        self.connection.query("BEGIN")?;
        // The old notes stay, since they may be another role's.
        for old in self.plan.old() {
            for new in &self.plan.target.members {
                skipped_rows::copy(self.connection, &old.slot, &new.slot)?;
            }
        }
        for statement in sql::open(self.plan) {
            self.connection.query(&statement)?;
        }
        self.connection.query("COMMIT")?;
        for member in self.plan.old() {
            (self.voice.say)(&format!("dropped publication \"{}\"", member.publication))?;
        }
        let rows = if self.plan.source.is_some() { "after the cut" } else { "from the cut on" };
        Ok((self.voice.say)(&format!(
            "opened {}: their relays publish rows committed {rows}",
            self.plan.target.shown()
        ))?)
    }
}

/// Checks that a slot is there and can be read. `has_rows`: it is one of the old set, or the cut is done.
fn readable(name: &str, database: &str, slot: Option<Slot>, has_rows: bool) -> Result<Slot, CommandError> {
    let slot = slot.ok_or_else(|| CommandError::shard_lost(name, None, has_rows))?;
    match check_slot(name, database, &slot) {
        Err(RunError { cause: RunCause::SlotLost { reason, .. }, .. }) => {
            Err(CommandError::shard_lost(name, Some(&reason), has_rows))
        }
        checked => Ok(checked.map(|_| slot)?),
    }
}

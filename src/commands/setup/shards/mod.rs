//! `setup --shards` and `setup --reshard`: makes a set of shards, and moves the rows of another set, or of one slot, over to it.
//!
//! ```text
//!  1 prepare   publications of the new set, without tables; each says that its relay must wait
//!  2 slots     of the new set: from here on they keep the WAL, and have no rows, since their publications have no tables
//!  3 cut       one transaction, with the tables locked against writers:   old publications … WHERE (false)
//!                                                                         new publications + tables WHERE (hash of the key)
//!  4 drain     wait until each old slot has confirmed a position behind the cut
//!  5 drop      the old slots
//!  6 open      one transaction: drop the old publications; the new ones no longer say that their relays must wait
//! ```
//!
//! In: names, how many shards. Out: SQL, or what was done. A new set alone takes the same way, without an old one.
//!
//! # Why no row is lost, repeated or swapped
//!
//! *Each row is in exactly one slot.* `pgoutput` looks a publication up as of each change. The cut locks the tables in a mode that writers'
//! locks conflict with, and writers keep theirs until they end: so each transaction with rows of these tables ends before the cut
//! commits, or takes its first row after that. No transaction is on both sides, whether or not its rows are in subtransactions. Rows from
//! before the cut pass the filters of the old set, and the new publications have no tables for them. Rows from behind it pass
//! the filters of the new set, and no old one. In each set a row passes exactly one filter ([`crate::pg::shard`]).
//!
//! *No row is lost.* The new slots are there before the cut, and each relay reads its slot from its beginning. The old slots stay until each
//! has confirmed a position behind the cut, which means that every record before it is acknowledged.
//!
//! *No two rows of a key are swapped.* Two rows of a key in one set are in one slot, in the order of their commits. If a row is before the cut
//! and one behind it, the second is published by a relay of the new set. That one waits until step 6, and by then step 4 has seen the
//! first acknowledged.
//!
//! *None is repeated,* but by a relay that is killed before it has confirmed, as at any time: the sets have no row in common.
//!
//! *It may be killed at any place.* Steps 1, 3 and 6 are one transaction each, and the others can be done again. Its progress is recorded in the
//! publications: the new ones have tables once the cut is done; the old ones say that they drain, and later that they are
//! drained. Only what is drained may lack its slot: a slot that is gone before that was lost, and ends the command. The same command
//! resumes. Meanwhile no relay of the new set publishes; the rows wait in its slots.

mod cut;
mod plan;
mod sql;

use super::{SetupRequest, Voice, Wait, begin};
use crate::commands::error::CommandError;
use crate::commands::shards::{Set, has_row_filters};
use crate::lsn::Lsn;
use crate::pg::marker::MoveState;
use crate::pg::shard::Shard;
use crate::pg::{Connection, identifier, literal, server, sqlstate};
use crate::remedy::Remedy;
use crate::supervise::{RunCause, RunError, check_owner, check_slot};
use plan::Plan;
use std::io::Write;
use std::time::{Duration, Instant};

/// The largest lag of an old slot at the cut: its relay publishes that before the new relays begin.
const NEAR_BYTES: u64 = 16 << 20;

/// How long an old slot may have no relay before the cut: one that restarts is back by then.
const RELAY_PATIENCE: Duration = Duration::from_secs(15);

/// How many shards there are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    /// 1 to [`MOST`](crate::pg::shard::MOST).
    pub count: u8,
    /// Rows of another set are moved over.
    pub moves: bool,
    /// `--key-column`: empty for no key; `None`: found by its name.
    pub key_column: Option<String>,
    /// `--id-column`; `None`: found by its name.
    pub id_column: Option<String>,
}

/// Prints or does it.
///
/// # Errors
/// As [`super::setup`]; and where the rows cannot be moved, why.
pub(super) fn set_up(
    mut connection: Connection,
    request: &SetupRequest,
    shards: &Shards,
    out: &mut dyn Write,
    wait: &mut dyn FnMut(&str),
    stop: &dyn Fn() -> bool,
) -> Result<(), CommandError> {
    if !request.apply {
        let plan = plan::look(&mut connection, request, shards)?;
        return Ok(out.write_all(sql::script(request, shards, &plan).as_bytes())?);
    }
    let mut voice = Voice { say: &mut |line| writeln!(out, "{line}"), wait, stop };
    has_row_filters(&mut connection)?;
    let mut connection = begin(connection, &mut voice)?;
    let plan = plan::look(&mut connection, request, shards)?;
    if plan.is_done() {
        (voice.say)(&format!("nothing to do: {} are there", plan.target.shown()))?;
    } else {
        carry_out(&mut connection, request, &plan, &mut voice)?;
    }
    for shard in Shard::all(shards.count) {
        (voice.say)(&format!("next: {}", sql::run_command(request, shard)))?;
    }
    Ok(())
}

fn carry_out(
    connection: &mut Connection,
    request: &SetupRequest,
    plan: &Plan,
    voice: &mut Voice<'_>,
) -> Result<(), CommandError> {
    prepare(connection, request, plan, voice)?;
    make_slots(connection, request, plan, voice)?;
    if !plan.is_cut {
        if let Some(source) = &plan.source {
            near(connection, source, &plan.database, voice)?;
        }
        while !cut::cut(connection, request, plan, voice)? {
            make_slots(connection, request, plan, voice)?;
        }
    }
    if let Some(source) = &plan.source {
        drain(connection, source, &plan.database, voice)?;
        drop_slots(connection, source, &plan.database, voice)?;
    }
    open(connection, request, plan, voice)
}

/// Step 1.
fn prepare(
    connection: &mut Connection,
    request: &SetupRequest,
    plan: &Plan,
    voice: &mut Voice<'_>,
) -> Result<(), CommandError> {
    let missing: Vec<Shard> = plan.missing_publications().collect();
    if missing.is_empty() {
        return Ok(());
    }
    connection.query("BEGIN")?;
    for shard in &missing {
        for statement in sql::publication(request, *shard) {
            let step = format!("create publication \"{}\"", shard.name(&request.publication));
            let (database, user) = (identifier(&plan.database), identifier(&plan.user));
            let fix = Remedy::sql(format!("GRANT CREATE ON DATABASE {database} TO {user};"));
            connection.query(&statement).map_err(|error| CommandError::from(error).with_fix(step, fix))?;
        }
    }
    connection.query("COMMIT")?;
    for shard in missing {
        (voice.say)(&format!("created publication \"{}\", still without tables", shard.name(&request.publication)))?;
    }
    Ok(())
}

/// Step 2. After the cut, a slot that is missing was lost.
fn make_slots(
    connection: &mut Connection,
    request: &SetupRequest,
    plan: &Plan,
    voice: &mut Voice<'_>,
) -> Result<(), CommandError> {
    let mut wait = Wait::begin();
    for shard in Shard::all(plan.count) {
        let name = shard.name(&request.slot);
        while let Some(slot) = server::slot(connection, &name)? {
            match check_slot(&name, &plan.database, &slot) {
                // It has had no rows, since its publication had no tables.
                Err(RunError { cause: RunCause::SlotLost { reason, .. }, .. }) if !plan.is_cut && !slot.row.active => {
                    drop_lost(connection, &name, &reason, voice)?;
                    continue;
                }
                checked => readable(checked)?,
            }
            if plan.is_cut || (!slot.row.active && slot.confirmed_flush_lsn.is_some()) {
                break;
            }
            // A command that was killed leaves its statement running for a moment, and a slot that goes with it.
            wait.turn(voice, || format!("waiting: slot \"{name}\" is in use, or still being created"))?;
        }
        if server::slot(connection, &name)?.is_some() {
            continue;
        }
        if plan.is_cut {
            return Err(RunError::no_slot(&name, true).into());
        }
        let of_shard = SetupRequest { slot: name.clone(), failover: plan.failover, ..request.clone() };
        let step = super::plan::Step::new_slot(&of_shard, &plan.user);
        let maker = super::replicating(&request.source)?;
        let (_, lsn) = super::slot::make(maker, &of_shard, &step, voice)?;
        (voice.say)(&format!("created slot \"{name}\" at {lsn}"))?;
    }
    Ok(())
}

/// Drops a slot of the new set that is of no use, so that it is made again.
fn drop_lost(connection: &mut Connection, name: &str, reason: &str, voice: &mut Voice<'_>) -> Result<(), CommandError> {
    if (voice.stop)() {
        return Err(CommandError::interrupted());
    }
    connection.query(&format!("SELECT pg_catalog.pg_drop_replication_slot({})", literal(name)))?;
    Ok((voice.say)(&format!("dropped slot \"{name}\", which was lost before it had rows ({reason})"))?)
}

/// Waits until the old relays are near the end of the WAL, so that the new ones need not wait for long.
fn near(connection: &mut Connection, source: &Set, database: &str, voice: &mut Voice<'_>) -> Result<(), CommandError> {
    let started = Instant::now();
    let mut wait = Wait::begin();
    for member in &source.members {
        loop {
            let slot = existing(connection, &member.slot, database)?;
            if slot.row.active && slot.lag_bytes.is_some_and(|lag| lag <= NEAR_BYTES) {
                break;
            }
            if !slot.row.active && started.elapsed() >= RELAY_PATIENCE {
                return Err(CommandError::unread(&member.slot, member.command()));
            }
            wait.turn(voice, || {
                let lag = crate::commands::output::bytes(slot.lag_bytes.unwrap_or_default());
                format!("waiting: slot \"{}\" is {lag} behind the server; nothing was moved yet", member.slot)
            })?;
        }
    }
    Ok(())
}

/// Step 4. Whatever was committed before the cut lies below the position that is asked for here.
fn drain(connection: &mut Connection, source: &Set, database: &str, voice: &mut Voice<'_>) -> Result<(), CommandError> {
    if source.is(MoveState::Drained) {
        return Ok(());
    }
    let started = Instant::now();
    let rows = connection.query("SELECT pg_catalog.pg_current_wal_flush_lsn()")?;
    let cut: Lsn = rows.first().and_then(|row| row.parse(0)).unwrap_or_default();
    let mut wait = Wait::begin();
    for member in &source.members {
        loop {
            let slot = existing(connection, &member.slot, database)?;
            if slot.confirmed_flush_lsn >= Some(cut) {
                break;
            }
            wait.turn(voice, || {
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
    connection.query("BEGIN")?;
    for member in &source.members {
        connection.query(&sql::comment(&member.publication, member.comment.as_deref(), MoveState::Drained))?;
    }
    connection.query("COMMIT")?;
    let drained = source.shown();
    let slots = if source.members.len() == 1 { "" } else { ", each of them" };
    let took = started.elapsed().as_millis();
    Ok((voice.say)(&format!("drained {drained}{slots} up to {cut}, in {took} ms"))?)
}

/// A slot that is there and can be read, or the error that says what is lost.
fn existing(connection: &mut Connection, name: &str, database: &str) -> Result<server::Slot, CommandError> {
    let missing = || RunError::no_slot(name, true);
    let slot = server::slot(connection, name)?.ok_or_else(missing)?;
    readable(check_slot(name, database, &slot))?;
    Ok(slot)
}

/// Says of a slot that is lost what that means for its rows.
fn readable(checked: Result<(), RunError>) -> Result<(), CommandError> {
    match checked {
        Err(RunError { cause: RunCause::SlotLost { slot, reason, .. }, .. }) => {
            Err(CommandError::shard_lost(&slot, &reason))
        }
        checked => Ok(checked?),
    }
}

/// Step 5. Ends the connection of whoever reads a slot: all that he had is acknowledged and confirmed.
fn drop_slots(
    connection: &mut Connection,
    source: &Set,
    database: &str,
    voice: &mut Voice<'_>,
) -> Result<(), CommandError> {
    let mut wait = Wait::begin();
    for member in &source.members {
        let name = &member.slot;
        while let Some(slot) = server::slot(connection, name)? {
            check_owner(name, database, &slot)?;
            if let Some(pid) = slot.row.active_pid {
                let step = format!("end the connection that reads slot \"{name}\"");
                let fix = Remedy::from("stop its relay (").and(member.command()).and("), then the same command again");
                let ended = connection.query(&format!("SELECT pg_catalog.pg_terminate_backend({pid}, 5000)"));
                ended.map_err(|error| CommandError::from(error).with_fix(step, fix))?;
            }
            match connection.query(&format!("SELECT pg_catalog.pg_drop_replication_slot({})", literal(name))) {
                Ok(_) => (voice.say)(&format!("dropped slot \"{name}\""))?,
                // The relay was faster.
                Err(error) if error.code() == Some(sqlstate::OBJECT_IN_USE) => {
                    wait.turn(voice, || format!("waiting: a relay takes slot \"{name}\" again and again; stop it"))?;
                }
                Err(error) => {
                    let fix = "the role needs REPLICATION";
                    return Err(CommandError::from(error).with_fix(format!("drop slot \"{name}\""), fix));
                }
            }
        }
    }
    Ok(())
}

/// Step 6.
fn open(
    connection: &mut Connection,
    request: &SetupRequest,
    plan: &Plan,
    voice: &mut Voice<'_>,
) -> Result<(), CommandError> {
    let old: Vec<&str> =
        plan.source.iter().flat_map(|source| &source.members).map(|member| member.publication.as_str()).collect();
    for name in Shard::all(plan.count).map(|shard| shard.name(&request.slot)) {
        existing(connection, &name, &plan.database)?;
    }
    connection.query("BEGIN")?;
    for publication in &old {
        connection.query(&format!("DROP PUBLICATION {}", identifier(publication)))?;
    }
    for shard in Shard::all(plan.count) {
        connection.query(&sql::opened(request, shard))?;
    }
    connection.query("COMMIT")?;
    for publication in old {
        (voice.say)(&format!("dropped publication \"{publication}\""))?;
    }
    let rows = if plan.source.is_some() { "rows committed after the cut" } else { "rows committed from the cut on" };
    Ok((voice.say)(&format!("opened {}: their relays publish {rows}", plan.shown()))?)
}

//! `teardown`: drops the slot, and if asked for the publication.
//!
//! In: names, and somebody to ask. Out: what is lost, said before; what was done, after. A slot that is read is not touched, and of shards
//! keeps all of them.
//! Repeatable: what is gone already is nothing to do, and a teardown that was ended is finished by another one. Tables and their rows stay as
//! they are.
//!
//! Invariants: the marker is the last to go, so what an ended teardown has left is found by it. What is dropped is what was agreed to. No lock
//! is kept while a person thinks. So once it is agreed, the lock of those who write markers is taken, and everything is looked at again.

use super::dialogue::Finishing;
use super::error::CommandError;
use super::other_readers;
use super::output::{Told, bytes, setup_shards};
use crate::outbox::TableName;
use crate::pg::catalog::PublicationMark;
use crate::pg::marker;
use crate::pg::server::Slot;
use crate::pg::shard::Shard;
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, catalog, identifier, leaf_notes, literal, server, sqlstate};
use crate::remedy::{Command, Remedy};
use crate::supervise::{RunError, check_owner};
use std::io::{BufRead, Write};

/// The names of the objects to drop.
#[derive(Debug, Clone)]
pub struct TeardownRequest {
    /// The database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot.
    pub slot: String,
    /// The publication, too; else only the mark on it.
    pub publication_too: bool,
    /// The slots and publications of so many shards, instead.
    pub shards: Option<u8>,
    /// Without asking.
    pub yes: bool,
    /// Also a slot that no setup marker of the database names.
    pub unmarked: bool,
    /// Slots that may be read with the publication, too.
    pub also_read_by: Vec<String>,
    /// As in [`setup::SetupRequest`](super::setup::SetupRequest).
    pub typed_source: Option<String>,
}

impl TeardownRequest {
    /// One for each slot.
    fn each(&self) -> Vec<Self> {
        let Some(count) = self.shards else { return vec![self.clone()] };
        let of = |shard: Shard| Self {
            publication: shard.name(&self.publication),
            slot: shard.name(&self.slot),
            publication_too: true,
            ..self.clone()
        };
        Shard::all(count).map(of).collect()
    }
}

/// The state of these objects in the database.
struct TeardownFacts {
    database: String,
    slot: Option<Slot>,
    publication: Option<PublicationMark>,
    tables: Vec<TableName>,
}

/// Drops what is to go. `terminal`: where the answer is read from; `None` when nobody is there.
///
/// # Errors
/// The slot is in use or is not one of this database's; nobody can be asked; the server cannot be reached or refuses.
pub fn teardown(
    request: &TeardownRequest,
    out: &mut dyn Write,
    terminal: Option<&mut dyn BufRead>,
) -> Result<(), CommandError> {
    let mut out = Finishing::new(out);
    let mut connection = Connection::open(&request.source, Purpose::Control)?;
    let work = work(&mut connection, request)?;
    let Some((_, facts, _)) = work.iter().find(|(_, _, steps)| !steps.is_empty()) else {
        writeln!(out, "nothing to do: {}", gone(request))?;
        return out.end();
    };
    writeln!(out, "In database \"{}\" ({}), this drops:", facts.database, connection.host())?;
    for step in work.iter().flat_map(|(_, _, steps)| steps) {
        writeln!(out, "  {}", step.what)?;
    }
    if !request.yes && !out.agreed(terminal, "teardown")? {
        writeln!(out, "nothing was dropped")?;
        return out.end();
    }
    connection.query(&format!("SELECT pg_catalog.pg_advisory_lock({})", marker::lock_key()))?;
    let now = self::work(&mut connection, request)?;
    let done =
        |work: &[Work]| work.iter().flat_map(|(_, _, steps)| steps).map(|step| step.done.clone()).collect::<Vec<_>>();
    if done(&now) != done(&work) {
        return Err(CommandError::changed_meanwhile());
    }
    for (each, _, steps) in &now {
        let (slot, publication): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|step| step.is_of_slot);
        let mut execute = |connection: &mut Connection, steps: Vec<&Step>| {
            steps.into_iter().try_for_each(|step| -> Result<(), CommandError> {
                step.execute(connection, each)?;
                Ok(writeln!(out, "{}", step.done)?)
            })
        };
        execute(&mut connection, slot)?;
        leaf_notes::remove_of_slot(&mut connection, &each.slot)?;
        execute(&mut connection, publication)?;
    }
    write!(out, "{}", ending(request, facts))?;
    out.end()
}

/// One slot and its publication, with what is to be dropped of them.
type Work = (TeardownRequest, TeardownFacts, Vec<Step>);

fn work(connection: &mut Connection, request: &TeardownRequest) -> Result<Vec<Work>, CommandError> {
    let mut work = Vec::new();
    for each in request.each() {
        let facts = look(connection, &each)?;
        refuse(connection, &each, &facts)?;
        let steps = plan(&each, &facts);
        let comment = facts.publication.as_ref().and_then(|mark| mark.comment.as_deref());
        // It may say that what is to go is still needed.
        if let Some(line) = marker::unknown_line(comment, &each.slot).filter(|_| !steps.is_empty()) {
            return Err(RunError::unknown_marker(&each.slot, &each.publication, line).into());
        }
        work.push((each, facts, steps));
    }
    Ok(work)
}

fn look(connection: &mut Connection, request: &TeardownRequest) -> Result<TeardownFacts, CommandError> {
    let publication = match server::publication(connection, &request.publication)? {
        Some(_) => Some(catalog::publication_mark(connection, &request.publication)?),
        None => None,
    };
    let tables = server::published_tables(connection, &request.publication)?;
    Ok(TeardownFacts {
        database: catalog::server(connection)?.database,
        slot: server::slot(connection, &request.slot)?,
        publication,
        tables: tables.iter().map(|table| TableName::of(&table.relation)).collect(),
    })
}

fn refuse(connection: &mut Connection, request: &TeardownRequest, facts: &TeardownFacts) -> Result<(), CommandError> {
    if let Some(mark) = facts.publication.as_ref().filter(|_| request.publication_too) {
        let marked = marker::slots(mark.comment.as_deref()).map(str::to_owned);
        let known: Vec<String> = marked.chain(request.also_read_by.iter().cloned()).collect();
        other_readers::refuse(connection, &request.publication, &request.slot, &known)?;
    }
    let Some(slot) = &facts.slot else { return Ok(()) };
    // Whatever else is wrong with it is a reason to drop it.
    check_owner(&request.slot, &facts.database, slot)?;
    if slot.row.active {
        return Err(in_use(connection, &request.slot, slot.row.active_pid)?);
    }
    let is_shards = facts.publication.as_ref().is_some_and(|mark| marker::shard(mark.comment.as_deref()).is_some());
    if request.unmarked || is_shards || !other_readers::marked_by(connection, &request.slot)?.is_empty() {
        return Ok(());
    }
    Err(CommandError::unmarked_slot(&request.slot))
}

fn in_use(connection: &mut Connection, slot: &str, pid: Option<u32>) -> Result<CommandError, pg::Error> {
    let reading = catalog::session(connection, pid)?;
    Ok(CommandError::slot_in_use(slot, pid, reading.as_ref()))
}

/// One thing to drop.
struct Step {
    /// The object, and what is lost with it.
    what: String,
    sql: String,
    /// Whether it is the slot. Notes of the slot go after it, and before the marker.
    is_of_slot: bool,
    /// That it was dropped.
    done: String,
    fix: Remedy,
}

impl Step {
    fn execute(&self, connection: &mut Connection, request: &TeardownRequest) -> Result<(), CommandError> {
        let error = match connection.query(&self.sql) {
            Ok(_) => return Ok(()),
            Err(error @ pg::Error::Server { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        if error.code() == Some(sqlstate::OBJECT_IN_USE) {
            // A relay took it since we looked.
            let slot = server::slot(connection, &request.slot)?;
            return Err(in_use(connection, &request.slot, slot.and_then(|slot| slot.row.active_pid))?);
        }
        Err(CommandError::refused(format!("drop {}", self.what), Some(self.fix.clone()), error))
    }
}

fn plan(request: &TeardownRequest, facts: &TeardownFacts) -> Vec<Step> {
    let slot = facts.slot.as_ref().map(|slot| drop_slot(&request.slot, slot));
    let publication = facts.publication.as_ref().and_then(|mark| {
        if request.publication_too { Some(drop_publication(request, facts, mark)) } else { remove_mark(request, mark) }
    });
    slot.into_iter().chain(publication).collect()
}

fn drop_slot(name: &str, slot: &Slot) -> Step {
    let confirmed = slot.confirmed_flush_lsn.map_or_else(|| "nothing".to_owned(), |lsn| lsn.to_string());
    let lag = slot.lag_bytes.map_or_else(String::new, |lag| format!(", {} behind the server", bytes(lag)));
    Step {
        what: format!(
            "slot \"{name}\" (confirmed {confirmed}{lag}): rows committed since and not yet published will not be published"
        ),
        sql: format!("SELECT pg_catalog.pg_drop_replication_slot({})", literal(name)),
        is_of_slot: true,
        done: format!("dropped slot \"{name}\""),
        fix: "the role needs REPLICATION, or membership in what a managed service has in place of it".into(),
    }
}

fn drop_publication(request: &TeardownRequest, facts: &TeardownFacts, mark: &PublicationMark) -> Step {
    let name = &request.publication;
    let tables: Vec<String> = facts.tables.iter().map(ToString::to_string).collect();
    let others: Vec<&str> = marker::slots(mark.comment.as_deref()).filter(|slot| *slot != request.slot).collect();
    let also = if others.is_empty() {
        String::new()
    } else {
        format!(", which slot {} reads, too: its relay will stop", others.join(", "))
    };
    Step {
        what: format!("publication \"{name}\" ({}){also}", tables.join(", ")),
        sql: format!("DROP PUBLICATION {}", identifier(name)),
        is_of_slot: false,
        done: format!("dropped publication \"{name}\""),
        fix: "run it as the owner of the publication".into(),
    }
}

fn remove_mark(request: &TeardownRequest, mark: &PublicationMark) -> Option<Step> {
    let comment = mark.comment.as_deref();
    if !marker::is_set(comment, &request.slot) && !marker::is_creating(comment, &request.slot) {
        return None;
    }
    let left = marker::removed(comment, &request.slot).map_or_else(|| "NULL".to_owned(), |text| literal(&text));
    Some(Step {
        what: format!("the setup marker of publication \"{}\"", request.publication),
        sql: format!("COMMENT ON PUBLICATION {} IS {left}", identifier(&request.publication)),
        is_of_slot: false,
        done: format!("dropped the setup marker of publication \"{}\"", request.publication),
        fix: "run it as the owner of the publication".into(),
    })
}

fn gone(request: &TeardownRequest) -> String {
    match request.shards {
        Some(count) => format!("there are no {count} shards"),
        None if request.publication_too => {
            format!("slot \"{}\" and publication \"{}\" do not exist", request.slot, request.publication)
        }
        None => format!("slot \"{}\" does not exist", request.slot),
    }
}

/// Says what is left, and how to set it up again.
fn ending(request: &TeardownRequest, facts: &TeardownFacts) -> String {
    let source = request.typed_source.as_deref();
    let goes = request.publication_too || request.shards.is_some();
    let tables = if goes { facts.tables.as_slice() } else { &[] };
    let told = Told { source, publication: &request.publication, slot: &request.slot, tables };
    if let Some(count) = request.shards {
        return format!("to start over: {}\n", told.add_to(setup_shards("--shards", count)));
    }
    let mut left: Vec<String> = Vec::new();
    if facts.publication.is_some() && !request.publication_too {
        left.push(format!("publication \"{}\" (to drop it, too: --publication-too)", request.publication));
    }
    left.extend(facts.tables.iter().map(|table| format!("table {table}")));
    let left = if left.is_empty() { "nothing".to_owned() } else { left.join(", ") };
    format!("left: {left}\nto start over: {}\n", told.add_to(Command::new("setup").flag("--apply")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::pg::source::Environment;
    use serde_json::json;

    fn request(publication_too: bool) -> TeardownRequest {
        let source = Source::resolve(Some("postgres://app@localhost/shop"), &Environment::default()).unwrap().source;
        TeardownRequest {
            source,
            publication: "pub".to_owned(),
            slot: "orders".to_owned(),
            publication_too,
            shards: None,
            yes: false,
            unmarked: false,
            also_read_by: Vec::new(),
            typed_source: None,
        }
    }

    fn facts(comment: Option<&str>) -> TeardownFacts {
        let slot = Slot {
            row: serde_json::from_value(json!({"plugin": "pgoutput", "database": "shop"})).unwrap(),
            confirmed_flush_lsn: Some(Lsn::new(0x20)),
            restart_lsn: None,
            lag_bytes: Some(2048),
            retained_wal_bytes: None,
        };
        let publication = PublicationMark { comment: comment.map(str::to_owned), owned: true };
        TeardownFacts {
            database: "shop".to_owned(),
            slot: Some(slot),
            publication: Some(publication),
            tables: vec![TableName::parse("public.outbox").unwrap()],
        }
    }

    fn sql(request: &TeardownRequest, facts: &TeardownFacts) -> Vec<String> {
        plan(request, facts).into_iter().map(|step| step.sql).collect()
    }

    #[test]
    fn the_publication_loses_only_the_mark_unless_it_is_to_go_too() {
        let facts = facts(Some("events\nwalrelay slot: orders"));
        let slot = "SELECT pg_catalog.pg_drop_replication_slot('orders')";
        assert_eq!(sql(&request(false), &facts), [slot, "COMMENT ON PUBLICATION \"pub\" IS 'events'"]);
        assert_eq!(sql(&request(true), &facts), [slot, "DROP PUBLICATION \"pub\""]);
    }

    #[test]
    fn what_is_gone_is_nothing_to_do() {
        let facts = TeardownFacts { slot: None, ..facts(None) };
        assert!(plan(&request(false), &facts).is_empty());
        assert!(plan(&request(true), &TeardownFacts { publication: None, ..facts }).is_empty());
    }

    #[test]
    fn what_is_lost_is_said_before() {
        let plan = plan(&request(true), &facts(Some("walrelay slot: returns")));
        assert!(plan[0].what.contains("confirmed 0/20, 2.0 KiB behind the server"));
        assert!(plan[1].what.contains("which slot returns reads, too"));
    }

    #[test]
    fn the_way_back_names_the_tables_once_the_publication_is_gone() {
        let text = ending(&request(true), &facts(None));
        assert!(text.ends_with("walrelay setup --apply --publication pub --slot orders --table public.outbox\n"));
        assert!(ending(&request(false), &facts(None)).starts_with("left: publication \"pub\""));
    }
}

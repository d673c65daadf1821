//! `setup --published`: records that a person says of tables that all of their rows are published.
//!
//! In: tables. Out: a line in the setup marker, after a question. `prune` then deletes their rows. The record counts for the marker and for the
//! tables as they are now: once a partition is attached again, or the slot is another one, it says nothing of it.
//!
//! Invariant: nothing is recorded before the relay has noted that it reads the tables, since rows that come later have to be published as
//! well.

use super::{SetupRequest, Voice, begin};
use crate::commands::carrier::Carrier;
use crate::commands::dialogue::Finishing;
use crate::commands::error::CommandError;
use crate::commands::output::counted;
use crate::outbox::TableName;
use crate::pg::leaves::{self, Leaf};
use crate::pg::marker::{self, TableStatement};
use crate::pg::relay_note::{self, StoredNote};
use crate::pg::shape::shape;
use crate::pg::{Connection, catalog, leaf_notes};
use crate::remedy::Command;
use crate::supervise::RunError;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Duration;

/// How long counting may take.
const COUNTING: Duration = Duration::from_hours(1);

/// Records it.
pub(super) fn record(
    mut connection: Connection,
    request: &SetupRequest,
    out: &mut dyn Write,
    terminal: Option<&mut dyn BufRead>,
) -> Result<(), CommandError> {
    if request.tables.is_empty() {
        let example = Command::new("setup").flag("--apply").set("--table", "public.outbox").flag("--published");
        return Err(CommandError::flag_needed("--table", "--published is said of tables", example));
    }
    let whole = Carrier {
        source: request.source.clone(),
        publication: request.publication.clone(),
        slot: request.slot.clone(),
        shard: None,
    };
    let carriers = whole.each_slot(&mut connection)?;
    let mut tables = Vec::new();
    for name in &request.tables {
        let found = shape(&mut connection, &name.schema, &name.name)?;
        let found = found.ok_or_else(|| CommandError::no_table(name, &request.source.dbname))?;
        tables.push((name.clone(), found.oid));
    }
    for carrier in &carriers {
        statement(&mut connection, carrier, &tables)?;
    }
    let mut out = Finishing::new(out);
    for (name, oid) in &tables {
        let rows = count(&mut connection, &carriers, name, *oid)?;
        let line = if request.json {
            json!({ "table": name.to_string(), "not_known": rows }).to_string()
        } else {
            format!(
                "{name}: {} of which it is not known that they are published; walrelay prune will delete them by their age",
                counted(rows, "row")
            )
        };
        writeln!(out, "{line}")?;
    }
    if !request.yes && !out.agreed(terminal, "setup --published")? {
        writeln!(out, "nothing was recorded")?;
        return out.end();
    }
    let mut voice = Voice { say: &mut |_| Ok(()), wait: &mut |_| {}, stop: &|| false };
    let mut connection = begin(connection, &mut voice)?;
    connection.query("BEGIN")?;
    for carrier in &carriers {
        let (stated, comment) = statement(&mut connection, carrier, &tables)?;
        let text = marker::with_published(comment.as_deref(), &carrier.slot, &stated);
        connection.query(&marker::comment_sql(&carrier.publication, text.as_deref())).map_err(|error| {
            CommandError::from(error).with_fix(
                format!("mark publication \"{}\"", carrier.publication),
                "run it as the owner of the publication",
            )
        })?;
    }
    connection.query("COMMIT")?;
    let names: Vec<String> = tables.iter().map(|(name, _)| name.to_string()).collect();
    if request.json {
        writeln!(out, "{}", json!({ "published": names }))?;
    } else {
        writeln!(out, "recorded: all rows of {} are published", names.join(", "))?;
    }
    out.end()
}

/// The record to make of one slot, and the comment of its publication.
fn statement(
    connection: &mut Connection,
    carrier: &Carrier,
    tables: &[(TableName, u32)],
) -> Result<(TableStatement, Option<String>), CommandError> {
    let Carrier { publication, slot, .. } = carrier;
    let comment = catalog::publication_mark(connection, publication)?.comment;
    if let Some(line) = marker::unknown_line(comment.as_deref(), slot) {
        return Err(RunError::unknown_marker(slot, publication, line).into());
    }
    let token = marker::token_of_here(connection, comment.as_deref(), slot)?.ok_or_else(|| {
        let is_marked = marker::token(comment.as_deref(), slot).is_some();
        let why = "there is no setup marker of this database";
        CommandError::no_proof(slot, publication, (carrier.shard.is_some(), is_marked), why)
    })?;
    let relay = match relay_note::read(connection, (publication, slot), &token)? {
        StoredNote::Known { note, .. } => note,
        StoredNote::Nothing => return Err(CommandError::relay_not_noted(slot, carrier.run_command())),
        StoredNote::Unknown { large_objects } => {
            return Err(CommandError::unknown_relay_note(slot, &large_objects, carrier.run_command()));
        }
    };
    // Rows that are committed later come through the slot.
    let at = connection.value("SELECT pg_catalog.pg_current_wal_insert_lsn()")?.unwrap_or_default();
    let all = leaves::look(connection, publication)?;
    let mut stated = TableStatement { at, ..TableStatement::default() };
    for (name, oid) in tables {
        for leaf in of_table(&all, *oid) {
            if relay.since(&leaf.chain).is_none() {
                return Err(CommandError::not_read(
                    name,
                    "its relay does not read it, as far as the relay has noted",
                    carrier.run_command(),
                ));
            }
            if let Some(fingerprint) = &leaf.fingerprint {
                stated.known.insert(leaf.oid, fingerprint.clone());
            }
        }
    }
    Ok((stated, comment))
}

fn of_table(all: &BTreeMap<u32, Leaf>, table: u32) -> impl Iterator<Item = &Leaf> {
    all.values().filter(move |leaf| !leaf.is_partitioned && leaf.chain.contains(&table))
}

/// Counts the rows of which it is not known now that they are published.
fn count(connection: &mut Connection, carriers: &[Carrier], name: &TableName, table: u32) -> Result<u64, CommandError> {
    let mut unknown = BTreeMap::new();
    for carrier in carriers {
        let known = leaf_notes::published(connection, &carrier.publication, &carrier.slot)?;
        let all = leaves::look(connection, &carrier.publication)?;
        unknown.extend(
            of_table(&all, table).filter(|leaf| !known.contains(&leaf.oid)).map(|leaf| (leaf.oid, leaf.clone())),
        );
    }
    let mut total = 0;
    for leaf in unknown.values() {
        let of_leaf = TableName { schema: leaf.name.0.clone(), name: leaf.name.1.clone() };
        let rows = connection.query_within(&format!("SELECT count(*) FROM ONLY {}", of_leaf.sql()), COUNTING);
        let rows = rows.map_err(|error| {
            let fix = format!("as its owner: GRANT SELECT ON {} TO the role that does it;", name.sql());
            CommandError::from(error).with_fix(format!("count rows of {name}"), fix)
        })?;
        total += rows.first().and_then(|row| row.parse::<u64>(0)).unwrap_or_default();
    }
    Ok(total)
}

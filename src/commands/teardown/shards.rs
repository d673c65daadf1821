//! Drops a set of shards: all slots, then all publications.
//!
//! In: how many shards. Out: as [`super::teardown`] of each; asked once. A slot that is read keeps all of them.

use super::{Facts, Request, Step, agreed, look, plan, refuse};
use crate::commands::error::CommandError;
use crate::commands::output::{Told, command};
use crate::pg::Connection;
use crate::pg::shard::Shard;
use std::io::{BufRead, Write};

pub(super) fn teardown(
    connection: &mut Connection,
    request: &Request,
    count: u8,
    out: &mut dyn Write,
    terminal: Option<&mut dyn BufRead>,
) -> Result<(), CommandError> {
    let mut work: Vec<(Request, Facts, Vec<Step>)> = Vec::new();
    for shard in Shard::all(count) {
        let of_shard = Request {
            publication: shard.name(&request.publication),
            slot: shard.name(&request.slot),
            publication_too: true,
            ..request.clone()
        };
        let facts = look(connection, &of_shard)?;
        refuse(connection, &of_shard, &facts)?;
        let steps = plan(&of_shard, &facts);
        work.push((of_shard, facts, steps));
    }
    let steps = || work.iter().flat_map(|(of_shard, _, steps)| steps.iter().map(move |step| (of_shard, step)));
    let Some((_, facts, _)) = work.iter().find(|(_, _, steps)| !steps.is_empty()) else {
        writeln!(out, "nothing to do: there are no {count} shards")?;
        return Ok(());
    };
    writeln!(out, "In database \"{}\" ({}), this drops:", facts.database, connection.host())?;
    for (_, step) in steps() {
        writeln!(out, "  {}", step.what)?;
    }
    if !request.yes && !agreed(out, terminal)? {
        writeln!(out, "nothing was dropped")?;
        return Ok(());
    }
    for (of_shard, step) in steps() {
        step.execute(connection, of_shard)?;
        writeln!(out, "{}", step.done)?;
    }
    let source = request.typed_source.as_deref();
    let (publication, slot) = (request.publication.as_str(), request.slot.as_str());
    let told = Told { source, publication, slot, tables: &facts.tables };
    writeln!(out, "to start over: {}", command(&format!("setup --shards {count} --apply"), &told))?;
    Ok(())
}

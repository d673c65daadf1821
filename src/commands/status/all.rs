//! `status --all`: reports every shard, and the slot without shards if it exists.
//!
//! In: the common names of publication and slot. Out: one report for each slot, also for the slots that a set lacks. The relays are not
//! asked, since each has an HTTP address of its own.

use super::report::StatusReport;
use super::{StatusRequest, look, with_relay};
use crate::commands::error::CommandError;
use crate::commands::shards::sets;
use crate::pg::marker::MoveState;
use crate::pg::{Connection, Purpose};
use crate::supervise::RunError;
use serde::Serialize;
use serde_json::json;
use std::io::Write;

/// One slot.
#[derive(Serialize)]
struct SlotEntry {
    /// `0/3`; null: it is the one without shards.
    shard: Option<String>,
    /// The stage of a move: `waits`, `drains`, `drained`; `unknown`: a newer version's; null: there is no move.
    moving: Option<&'static str>,
    #[serde(flatten)]
    report: StatusReport,
}

pub(super) fn status(request: &StatusRequest, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut connection = Connection::open(&request.source, Purpose::Control)?;
    let sets = sets(&mut connection, (&request.publication, &request.slot))?;
    let mut slots = Vec::new();
    let mut outcome = Ok(());
    for member in sets.into_iter().flat_map(|set| set.members) {
        let (shard, moving) = (member.shard, member.moving());
        let of = StatusRequest { publication: member.publication, slot: member.slot, http: None, ..request.clone() };
        let (report, of_relay) = with_relay(&of, Ok(look(&mut connection, &of)?));
        outcome = outcome.and(of_relay);
        slots.push(SlotEntry {
            shard: shard.map(|shard| shard.to_string()),
            moving: moving.map(MoveState::word),
            report,
        });
    }
    if slots.is_empty() {
        outcome = Err(RunError::no_slot(&request.slot, false));
    }
    if request.json {
        writeln!(out, "{:#}", json!({ "slots": slots }))?;
    } else {
        let tables: Vec<String> = slots.iter().map(shown).collect();
        write!(out, "{}", tables.join("\n"))?;
    }
    outcome.map_err(Into::into)
}

fn shown(entry: &SlotEntry) -> String {
    let shard = entry.shard.as_ref().map_or_else(String::new, |shard| format!("{:<13}{shard}\n", "shard"));
    let moving = match entry.moving {
        Some(moving) => format!("{:<13}{moving}: walrelay setup has not finished\n", "move"),
        None => String::new(),
    };
    format!("{shard}{moving}{}", entry.report.table())
}

//! Decides of which tables every row, past and future, is known to be published.
//!
//! In: for each slot of the outbox the setup marker, the notes and the publication's tables. Out: nothing, or which table is not known, why,
//! and what helps. Reads only.
//!
//! Invariant: a table passes only by positive records ([`leaf_notes`]): one that says that the rows that were there at a position were
//! published, or that there were none; and the relay's own note that it has read the table since that position or earlier. Nothing is
//! inferred from a row's transaction, from an age, or from statistics.

use super::table::Table;
use crate::commands::carrier::{Carrier, objection};
use crate::commands::error::CommandError;
use crate::outbox::TableName;
use crate::pg::leaf_notes::Known;
use crate::pg::leaves::{self, Leaf};
use crate::pg::relay_note::{self, RelayNote, StoredNote};
use crate::pg::slot_sighting::Sighting;
use crate::pg::{Connection, catalog, marker, server};
use crate::supervise::RunError;
use std::collections::BTreeMap;

/// The knowledge of the tables of one slot.
#[derive(Debug)]
pub(super) struct Evidence {
    carrier: Carrier,
    known: Known,
    relay: RelayNote,
    /// The tables of the publication, and their partitions.
    all: BTreeMap<u32, Leaf>,
}

/// Why the rows of a table may not be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    NotSent,
    Filtered,
    Unknown,
    NotRead,
    OnlyLocal,
    /// A record is from before the relay has read the table.
    ReadLater,
}

impl Why {
    /// For people, after the table's name.
    const fn text(self) -> &'static str {
        match self {
            Self::NotSent => {
                "the publication does not send all of its rows (it is not in the publication, or is unlogged or foreign; or Postgres 19 may have left it out of a publication of all tables, by EXCEPT)"
            }
            Self::Filtered => "the publication has a row filter on it: rows that it leaves out are never published",
            Self::Unknown => {
                "nothing says that all of its rows are published: it had rows when the slot was set up, or when it was added, attached, moved or rewritten later"
            }
            Self::NotRead => "its relay does not read it, as far as the relay has noted",
            Self::OnlyLocal => {
                "its relay leaves out rows that a subscription applied (--origin local), and nothing tells them from others"
            }
            Self::ReadLater => {
                "its relay has not read it all the time, or with another id column or origin: rows from before may be in no topic"
            }
        }
    }
}

impl Evidence {
    /// Reads what is known. `slot`: the one that is there now.
    pub(super) fn find(connection: &mut Connection, carrier: &Carrier, slot: &Sighting) -> Result<Self, CommandError> {
        let mark = catalog::publication_mark(connection, &carrier.publication)?;
        let comment = mark.comment.as_deref();
        if let Some(line) = marker::unknown_line(comment, &carrier.slot) {
            return Err(RunError::unknown_marker(&carrier.slot, &carrier.publication, line).into());
        }
        let is_marked = marker::token(comment, &carrier.slot).is_some();
        let missing = |why: &str| {
            CommandError::no_proof(&carrier.slot, &carrier.publication, (carrier.shard.is_some(), is_marked), why)
        };
        let Some(known) = Known::read(connection, &carrier.publication, &carrier.slot, comment)? else {
            if server::publication(connection, &carrier.publication)?.is_none() {
                return Err(RunError::no_publication(&carrier.publication, &carrier.source.dbname).into());
            }
            if marker::is_creating(comment, &carrier.slot) {
                return Err(RunError::setup_unfinished(&carrier.slot, &carrier.publication).into());
            }
            return Err(missing("its setup marker does not say which tables were empty, or is of another database"));
        };
        if let Some(why) = objection(comment, &carrier.slot, Some(slot)) {
            return Err(missing(why));
        }
        let names = (carrier.publication.as_str(), carrier.slot.as_str());
        let relay = match relay_note::read(connection, names, &known.token)? {
            StoredNote::Known { note, .. } => note,
            StoredNote::Nothing => return Err(CommandError::relay_not_noted(&carrier.slot, carrier.run_command())),
            StoredNote::Unknown { large_objects } => {
                return Err(CommandError::unknown_relay_note(&carrier.slot, &large_objects, carrier.run_command()));
            }
        };
        let all = leaves::look(connection, &carrier.publication)?;
        Ok(Self { carrier: carrier.clone(), known, relay, all })
    }

    /// The tables that the relay reads, if it names them.
    pub(super) fn tables(&self) -> Option<Vec<TableName>> {
        let name = |leaf: &Leaf| TableName { schema: leaf.name.0.clone(), name: leaf.name.1.clone() };
        let named = self.relay.reads.keys().map(|oid| Some(name(self.all.get(&oid.parse().ok()?)?)));
        if self.relay.reads.contains_key(relay_note::ALL) { None } else { Some(named.flatten().collect()) }
    }

    /// The id's column of a table, as the relay reads it. `None`: its note does not say.
    pub(super) fn id(&self, table: u32) -> Option<String> {
        let (column, _) = self.relay.id(&self.all.get(&table)?.chain)?;
        Some(column.clone())
    }

    /// Whether it is of the same marker as another one.
    pub(super) fn is_of_marker(&self, other: &Self) -> bool {
        self.known.token == other.known.token
    }

    /// Checks that every row of a table is known to be published, or to come through the slot. `only`: of these partitions alone.
    pub(super) fn covers(&self, table: &Table, only: Option<&[u32]>) -> Result<(), CommandError> {
        if !self.all.contains_key(&table.shape.oid) {
            return Err(CommandError::not_proven(&table.name, Why::NotSent.text(), &self.carrier.publication));
        }
        let of_table = |leaf: &&Leaf| !leaf.is_partitioned && leaf.chain.contains(&table.shape.oid);
        let wanted = |leaf: &&Leaf| only.is_none_or(|only| only.contains(&leaf.oid));
        let first =
            self.all.values().filter(of_table).filter(wanted).find_map(|leaf| Some((leaf, self.why(leaf, table)?)));
        match first {
            Some((leaf, why)) => Err(self.refusal(table, leaf, why)),
            None => Ok(()),
        }
    }

    fn why(&self, leaf: &Leaf, table: &Table) -> Option<Why> {
        if leaf.fingerprint.is_none() {
            return Some(Why::NotSent);
        }
        // The filters of shards are looked at together.
        if leaf.is_filtered && table.shared.is_none() {
            return Some(Why::Filtered);
        }
        if self.relay.only_local {
            return Some(Why::OnlyLocal);
        }
        let Some(known) = self.known.since(leaf, &self.all) else { return Some(Why::Unknown) };
        let Some(read) = self.relay.since(&leaf.chain) else { return Some(Why::NotRead) };
        let by_id = self.relay.id(&leaf.chain).map(|(_, since)| *since).unwrap_or_default();
        (read.max(by_id) > known).then_some(Why::ReadLater)
    }

    fn refusal(&self, table: &Table, leaf: &Leaf, why: Why) -> CommandError {
        let whole = leaf.oid == table.shape.oid;
        let mut text =
            if whole { why.text().to_owned() } else { format!("partition {}: {}", leaf.shown(), why.text()) };
        if let (Why::Unknown | Why::ReadLater, Some(note)) = (why, self.known.unknown_note) {
            text =
                format!("{text}; large object {note} has a note of tables in a form that this version does not know");
        }
        match why {
            Why::NotSent | Why::Filtered | Why::OnlyLocal => {
                CommandError::not_proven(&table.name, &text, &self.carrier.publication)
            }
            Why::NotRead => CommandError::not_read(&table.name, &text, self.carrier.run_command()),
            Why::Unknown | Why::ReadLater => {
                let condition = if whole { "true".to_owned() } else { format!("tableoid = {}", leaf.oid) };
                CommandError::not_known(&table.name, &text, &table.publishing_again(&condition))
            }
        }
    }
}

//! [`Carrier`]: a database with the publication and the slot that carry the rows of its outbox tables.
//!
//! In: names. Out: the slots that carry the rows, the position of one, whether it is the one that the setup marker is for, and the statement that
//! publishes rows again. Reads only.

use super::AGE_COLUMNS;
use super::error::CommandError;
use super::shards;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::pg::shape::Shape;
use crate::pg::shard::Shard;
use crate::pg::slot_sighting::{Agreement, Sighting};
use crate::pg::source::Source;
use crate::pg::{Connection, catalog, marker, server};
use crate::remedy::Command;
use crate::supervise::{REPUBLISH_PAGE, RunError, check_slot};

/// The way by which rows leave a database: a publication and a slot.
#[derive(Debug, Clone)]
pub struct Carrier {
    /// The database.
    pub source: Source,
    /// The publication that carries their rows.
    pub publication: String,
    /// The slot that carries their rows.
    pub slot: String,
    /// The shard that publication and slot are of. `None`: they are the common names of all shards, or there are no shards.
    pub shard: Option<Shard>,
}

impl Carrier {
    /// The carrier of each slot that the rows come by: this one, or those of a complete set of shards.
    pub(super) fn each_slot(&self, connection: &mut Connection) -> Result<Vec<Self>, CommandError> {
        let Some(set) = shards::current(connection, (&self.publication, &self.slot))? else {
            return Ok(vec![self.clone()]);
        };
        let carrier = |member: shards::Member| Self {
            publication: member.publication,
            slot: member.slot,
            shard: member.shard,
            ..self.clone()
        };
        Ok(set.members.into_iter().map(carrier).collect())
    }

    /// Returns the command that runs the relay of the slot.
    pub(super) fn run_command(&self) -> Command {
        match self.shard {
            Some(shard) => Command::new("run").set("--shard", shard),
            None => Command::new("run").set("--slot", &self.slot),
        }
    }
}

/// Returns the statement that publishes rows of a table once more, in the order of their age and their ids, or names the page where the
/// statement would do more than that.
pub(super) fn publishing_again(shape: &Shape, table: &TableName, condition: &str, id: &str) -> String {
    let order: Vec<&str> = AGE_COLUMNS
        .into_iter()
        .find(|age| shape.columns.iter().any(|have| have.name == *age))
        .into_iter()
        .chain([id])
        .collect();
    shape.publishing_again(&table.sql(), condition, &order).unwrap_or_else(|| {
        format!("see {REPUBLISH_PAGE}, since triggers, rules, row security or foreign keys take part")
    })
}

/// The slot's position, if it is one that a relay on this database can read.
pub(super) fn confirmed(connection: &mut Connection, carrier: &Carrier) -> Result<Lsn, CommandError> {
    let Some(slot) = server::slot(connection, &carrier.slot)? else {
        if let Some(shard) = carrier.shard {
            return Err(CommandError::shard_incomplete(shard, &shards::no_slot(&carrier.slot)));
        }
        let mark = catalog::publication_mark(connection, &carrier.publication)?;
        let was_there = marker::is_set(mark.comment.as_deref(), &carrier.slot);
        return Err(RunError::no_slot(&carrier.slot, was_there).into());
    };
    Ok(check_slot(&carrier.slot, &carrier.source.dbname, &slot)?)
}

/// Says why the setup marker may be that of another slot than the one that is there `now`. `None`: nothing speaks against it.
pub(super) fn objection(comment: Option<&str>, slot: &str, now: Option<&Sighting>) -> Option<&'static str> {
    const NOT_ANCHORED: &str = "which slot of that name it was written for was not written down";
    let agreement = marker::anchor(comment, slot).zip(now).map(|(anchor, now)| anchor.agrees(now));
    agreement.map_or(Some(NOT_ANCHORED), Agreement::objection)
}

//! What a change of an outbox table becomes.
//!
//! ```text
//!  Relation ──► Plan, kept per relation ─┐
//!  Insert's Tuple ───────────────────────┴─► Record, lent to the caller
//!  LogicalMessage ──► its JSON object as a row ──► Record
//! ```
//!
//! In: decoded messages, and the settings that say which column means what. Out: a [`Record`] lent to a closure, or that
//! there is nothing to publish, or a typed reason why the row cannot be published. The same row offered again gives the
//! same record, so that a full destination costs only a retry. A row usually allocates nothing and copies no payload.
//! Deliberately not here: policies for bad rows, counting rows, positions, sockets, clocks, logs.

mod fault;
mod json;
mod kind;
mod message;
mod plan;
mod record;
mod time;
mod value;

pub use fault::{BadReason, BadRow, RowError};
pub use plan::{Plan, PlanError, Role};

use crate::config::mapping::{Mapping, OnUpdate};
use crate::lsn::Lsn;
use crate::pgoutput::{LogicalMessage, PgTime, Relation, RelationId, Tuple};
use crate::route::{Topic, TopicError};
use crate::sink::Record;
use std::collections::BTreeMap;

/// Settings, and what is known of each table.
#[derive(Debug)]
pub struct Outbox {
    mapping: Mapping,
    topic: Topic,
    /// Empty: every table.
    tables: Vec<TableFilter>,
    /// By the latest Relation message of each on this connection.
    relations: BTreeMap<RelationId, Entry>,
    scratch: record::Scratch,
}

#[derive(Debug)]
enum Entry {
    /// Kept whole: it may turn out to be a partition of a table that is listed.
    NotListed(Relation),
    Listed(Plan),
}

/// A table by name, case as in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFilter {
    /// Schema.
    pub schema: String,
    /// Table.
    pub name: String,
}

impl TableFilter {
    fn names(&self, relation: &Relation) -> bool {
        self.schema == relation.namespace && self.name == relation.name
    }
}

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowContext {
    /// When its transaction was committed.
    pub commit_time: PgTime,
    /// Begin's `final_lsn`.
    pub final_lsn: Lsn,
    /// Its number in the transaction, from 0.
    pub ordinal: u64,
}

/// What became of a row or message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The record was lent out, and this came back.
    Record(T),
    /// Another table's row, or a message with another prefix.
    NotPublished,
    /// It publishes nothing by design, and counts as that.
    Ignored(Ignored),
}

/// What publishes nothing by design.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// A message with a prefix that is asked for, but outside any transaction: it may come twice, or without its commit.
    NonTransactionalMessage,
    /// An update of an outbox row.
    Update,
}

impl Ignored {
    /// A label for metrics, from a closed set.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NonTransactionalMessage => "non_transactional_message",
            Self::Update => "update",
        }
    }
}

/// What an update of a row asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updated {
    /// Another table's row.
    NotPublished,
    /// To be counted as [`Ignored::Update`], and where `warn` is set, logged.
    Ignored {
        /// `--on-update warn`.
        warn: bool,
    },
    /// The run ends.
    Stop,
}

/// Whether a relation's rows are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// They are.
    Listed,
    /// `--table` does not name it. It may still be a partition of one that is named: see [`Outbox::list`].
    NotListed,
}

impl Outbox {
    /// With no table known yet. `tables`: `--table`; empty for every table of the publication.
    ///
    /// # Errors
    /// The topic setting is not well-formed.
    pub fn new(mapping: Mapping, tables: Vec<TableFilter>) -> Result<Self, TopicError> {
        let topic = Topic::new(&mapping.topic)?;
        Ok(Self { mapping, topic, tables, relations: BTreeMap::new(), scratch: record::Scratch::default() })
    }

    /// Takes a table's shape, in place of an earlier one.
    ///
    /// # Errors
    /// The table is listed and lacks what it needs. Its rows are then those of an unknown relation.
    pub fn relation(&mut self, relation: Relation) -> Result<Listing, PlanError> {
        let id = relation.id;
        self.relations.remove(&id);
        let listed = self.tables.is_empty() || self.tables.iter().any(|table| table.names(&relation));
        if !listed {
            self.relations.insert(id, Entry::NotListed(relation));
            return Ok(Listing::NotListed);
        }
        let plan = Plan::new(&relation, &self.mapping, &self.topic)?;
        self.relations.insert(id, Entry::Listed(plan));
        Ok(Listing::Listed)
    }

    /// Publishes a relation that `--table` does not name itself, until its next Relation message: the caller found it to
    /// be a partition of one that is named.
    ///
    /// # Errors
    /// As [`Outbox::relation`].
    pub fn list(&mut self, relation: RelationId) -> Result<(), PlanError> {
        if let Some(Entry::NotListed(shape)) = self.relations.get(&relation) {
            let plan = Plan::new(shape, &self.mapping, &self.topic)?;
            self.relations.insert(relation, Entry::Listed(plan));
        }
        Ok(())
    }

    /// Forgets every table: a new connection announces them anew.
    pub fn forget_relations(&mut self) {
        self.relations.clear();
    }

    /// The plan of a relation that is published.
    pub fn plan(&self, relation: RelationId) -> Option<&Plan> {
        match self.relations.get(&relation) {
            Some(Entry::Listed(plan)) => Some(plan),
            Some(Entry::NotListed(_)) | None => None,
        }
    }

    /// Lends the record of an inserted row to `take`.
    ///
    /// # Errors
    /// The row is not one that this connection may send, or cannot be published.
    #[inline]
    pub fn row<T>(
        &mut self,
        relation: RelationId,
        tuple: &Tuple<'_>,
        context: &RowContext,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<Outcome<T>, RowError> {
        let plan = match self.relations.get(&relation) {
            Some(Entry::Listed(plan)) => plan,
            Some(Entry::NotListed(_)) => return Ok(Outcome::NotPublished),
            None => return Err(RowError::UnknownRelation(relation)),
        };
        let Self { mapping, topic, scratch, .. } = self;
        let columns = scratch.columns(plan, tuple)?;
        let row = record::Row { plan, columns: &columns, mapping, topic, context };
        let lent = row.lend(scratch, take);
        scratch.return_columns(columns);
        lent.map(Outcome::Record)
    }

    /// What an update asks for.
    ///
    /// # Errors
    /// [`RowError::UnknownRelation`].
    pub fn update(&self, relation: RelationId) -> Result<Updated, RowError> {
        match self.relations.get(&relation) {
            Some(Entry::Listed(_)) => Ok(self.on_update()),
            Some(Entry::NotListed(_)) => Ok(Updated::NotPublished),
            None => Err(RowError::UnknownRelation(relation)),
        }
    }

    const fn on_update(&self) -> Updated {
        match self.mapping.on_update {
            OnUpdate::Warn => Updated::Ignored { warn: true },
            OnUpdate::Skip => Updated::Ignored { warn: false },
            OnUpdate::Stop => Updated::Stop,
        }
    }

    /// A row's id for a log or an error, shortened; `None` when it is null or the row is not one of a published table.
    pub fn shown_id(&mut self, relation: RelationId, tuple: &Tuple<'_>, context: &RowContext) -> Option<String> {
        let Some(Entry::Listed(plan)) = self.relations.get(&relation) else {
            return None;
        };
        let columns = self.scratch.columns(plan, tuple).ok()?;
        let row = record::Row { plan, columns: &columns, mapping: &self.mapping, topic: &self.topic, context };
        row.shown_id()
    }

    /// Lends the record of a logical message to `take`.
    ///
    /// # Errors
    /// [`RowError::Bad`]: the content gives no record.
    pub fn message<T>(
        &mut self,
        message: &LogicalMessage<'_>,
        context: &RowContext,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<Outcome<T>, RowError> {
        if !self.mapping.message_prefixes.iter().any(|prefix| prefix == message.prefix) {
            return Ok(Outcome::NotPublished);
        }
        if !message.transactional {
            return Ok(Outcome::Ignored(Ignored::NonTransactionalMessage));
        }
        let Self { mapping, topic, scratch, .. } = self;
        let table = format!("message {:?}", message.prefix);
        let mut members =
            message::members(message).map_err(|reason| Box::new(BadRow { table: table.clone(), id: None, reason }))?;
        message::complete(&mut members, mapping);
        let plan = message::plan(table.clone(), &members, mapping, topic)
            .map_err(|reason| Box::new(BadRow { table, id: message::shown_id(&members, mapping), reason }))?;
        let row = record::Row { plan: &plan, columns: &message::columns(&members), mapping, topic, context };
        row.lend(scratch, take).map(Outcome::Record)
    }
}

#[cfg(test)]
mod tests;

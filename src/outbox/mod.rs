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

mod connect;
mod fault;
mod json;
mod kind;
mod message;
mod plan;
mod record;
mod time;
mod value;

pub use connect::{ColumnDetail, Details, TypeDetail};
pub use fault::{BadReason, BadRow, RowError};
use plan::Connected;
pub use plan::{Plan, PlanError, Role};

use crate::config::mapping::{Mapping, OnUpdate};
use crate::config::{TableName, TablePatterns};
use crate::lsn::Lsn;
use crate::pgoutput::{LogicalMessage, PgTime, PublishedTable, Relation, RelationId, Tuple};
use crate::route::{Topic, TopicError};
use crate::sink::Record;
use std::collections::{BTreeMap, HashMap};

/// Settings, and what is known of each table.
#[derive(Debug)]
pub struct Outbox {
    mapping: Mapping,
    topic: Topic,
    /// Empty: every table that `patterns` capture.
    tables: Vec<TableName>,
    patterns: TablePatterns,
    /// The tables that the publication is known to hold, by schema and name, and whether `--table` covers them: itself, or
    /// as partitions of what it names.
    published: HashMap<(String, String), bool>,
    /// By the latest Relation message of each on this connection.
    relations: BTreeMap<RelationId, Entry>,
    /// What the catalogue said of types and columns, when it was asked last.
    details: Details,
    /// Types that it did not know even when asked for them.
    unknown_types: Vec<u32>,
    scratch: record::Scratch,
}

#[derive(Debug)]
enum Entry {
    NotListed,
    Listed(Plan),
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

/// A table's rows cannot be told from others, or not be mapped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelationError {
    /// The table is listed and lacks what it needs.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// `--table` does not name the table, and the publication was last looked at before it was there: it may be a new
    /// partition of one that is named.
    #[error("table {0}.{1} is new")]
    New(String, String),
}

impl Outbox {
    /// With no table known yet. `tables`: `--table`; empty for every table of the publication.
    ///
    /// # Errors
    /// The topic setting is not well-formed.
    pub fn new(mapping: Mapping, tables: Vec<TableName>) -> Result<Self, TopicError> {
        let topic = Topic::new(&mapping.topic)?;
        let (published, relations, scratch) = (HashMap::new(), BTreeMap::new(), record::Scratch::default());
        let patterns = TablePatterns::default();
        let (details, unknown_types) = (Details::default(), Vec::new());
        Ok(Self { mapping, topic, tables, patterns, published, relations, details, unknown_types, scratch })
    }

    /// Whether [`Outbox::details`] is to be called before [`Outbox::published`].
    pub fn wants_details(&self) -> bool {
        self.mapping.connect.is_some()
    }

    /// Takes what the catalogue says of types and columns now.
    pub fn details(&mut self, details: Details) {
        self.details = details;
    }

    /// Restricts it to the tables that are captured; counts only where no table is named.
    #[must_use]
    pub fn with_patterns(self, patterns: TablePatterns) -> Self {
        Self { patterns, ..self }
    }

    /// Whether any of the tables that the publication is known to hold is published from.
    pub fn covers_any(&self) -> bool {
        self.published.values().any(|covered| *covered)
    }

    /// Takes what the publication holds now, and forgets earlier tables: a new connection announces them anew. Whether its
    /// values should come in binary form: that spares a `bytea` the doubling of its text form, and no other column minds.
    ///
    /// # Errors
    /// A listed table lacks what it needs.
    pub fn published(&mut self, tables: &[PublishedTable]) -> Result<bool, PlanError> {
        self.relations.clear();
        self.published = tables.iter().map(|table| (table.relation.full_name(), self.covers(table))).collect();
        let plans: Vec<Plan> = tables
            .iter()
            .filter(|table| self.covers(table))
            .map(|table| self.catalogued(&table.relation))
            .collect::<Result<_, _>>()?;
        Ok(plans.iter().any(Plan::uses_bytea) && plans.iter().all(Plan::binary_safe))
    }

    /// The plan of a table as the catalogue has it.
    fn catalogued(&self, relation: &Relation) -> Result<Plan, PlanError> {
        match Plan::with_connect(relation, &self.mapping, &self.topic, &self.details)? {
            Connected::Plan(plan) => Ok(plan),
            Connected::Stale(error) => Err(error),
        }
    }

    fn covers(&self, table: &PublishedTable) -> bool {
        if self.tables.is_empty() {
            return self.patterns.capture(&table.relation);
        }
        self.tables.iter().any(|filter| filter.covers(table))
    }

    /// Takes a table's shape, in place of an earlier one.
    ///
    /// # Errors
    /// The table is listed and lacks what it needs, or it is not known whether it is listed. Its rows are then those of an
    /// unknown relation.
    pub fn relation(&mut self, relation: Relation) -> Result<(), RelationError> {
        let id = relation.id;
        self.relations.remove(&id);
        let entry =
            if self.is_listed(&relation)? { Entry::Listed(self.announced(&relation)?) } else { Entry::NotListed };
        self.relations.insert(id, entry);
        Ok(())
    }

    /// The plan of a table as the stream has it. A type that the catalogue did not know may be new: it is asked once more.
    fn announced(&mut self, relation: &Relation) -> Result<Plan, RelationError> {
        let error = match Plan::with_connect(relation, &self.mapping, &self.topic, &self.details)? {
            Connected::Plan(plan) => return Ok(plan),
            Connected::Stale(error) => error,
        };
        let types = relation.columns.iter().map(|column| column.type_id);
        let unknown =
            types.filter(|id| kind::is_custom(*id) && !self.details.types.contains_key(id)).collect::<Vec<_>>();
        if unknown.iter().any(|id| self.unknown_types.contains(id)) {
            return Err(error.into());
        }
        self.unknown_types.extend(unknown);
        let (schema, name) = relation.full_name();
        Err(RelationError::New(schema, name))
    }

    fn is_listed(&self, relation: &Relation) -> Result<bool, RelationError> {
        if self.tables.is_empty() {
            return Ok(self.patterns.capture(relation));
        }
        if self.tables.iter().any(|table| table.names(relation)) {
            return Ok(true);
        }
        let (schema, name) = relation.full_name();
        match self.published.get(&(schema.clone(), name.clone())) {
            Some(listed) => Ok(*listed),
            None => Err(RelationError::New(schema, name)),
        }
    }

    /// The plan of a relation that is published.
    pub fn plan(&self, relation: RelationId) -> Option<&Plan> {
        match self.relations.get(&relation) {
            Some(Entry::Listed(plan)) => Some(plan),
            Some(Entry::NotListed) | None => None,
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
            Some(Entry::NotListed) => return Ok(Outcome::NotPublished),
            None => return Err(RowError::UnknownRelation(relation)),
        };
        let Self { mapping, topic, scratch, .. } = self;
        let columns = scratch.columns(plan, tuple)?;
        let row = record::Row { plan, columns: &columns, mapping, topic, context };
        let lent = match &plan.connect {
            None => row.lend(scratch, take),
            Some(connect) => row.lend_connect(connect, scratch, take),
        };
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
            Some(Entry::NotListed) => Ok(Updated::NotPublished),
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

    /// Whether messages of this prefix are published.
    pub fn wants_message(&self, prefix: &str) -> bool {
        self.mapping.message_prefixes.iter().any(|wanted| wanted == prefix)
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
        if !self.wants_message(message.prefix) {
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
        match &plan.connect {
            None => row.lend(scratch, take),
            Some(connect) => row.lend_connect(connect, scratch, take),
        }
        .map(Outcome::Record)
    }
}

#[cfg(test)]
mod tests;

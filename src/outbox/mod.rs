//! Turns changes of outbox tables into records.
//!
//! ```text
//!  Relation ──► TablePlan, kept per relation ┐
//!  Insert's Tuple ───────────────────────┴─► Record, for the caller
//!  LogicalMessage ──► its JSON object as a row ──► Record
//! ```
//!
//! In: decoded messages, and the settings that say which column means what. Out: a [`Record`] that a closure sees, or that
//! there is nothing to publish, or a typed reason why the row cannot be published. The same row offered again gives the
//! same record, so that a full destination costs only a retry. A row usually allocates nothing and copies no payload.
//! Deliberately not here: policies for bad rows, counting rows, what is confirmed, sockets, clocks, logs.
//!
//! Which tables `--table` covers is the catalogue's word of now on rows of the past: what was a partition then may be a table of
//! its own since, or gone. `tables` has what is made of that.

mod cloudevents;
#[cfg_attr(not(feature = "debezium"), path = "connect/off.rs")]
pub mod connect;
mod details;
mod fault;
mod json;
mod kind;
mod mapping;
mod message;
mod partial_record;
mod patterns;
mod plan;
mod record;
pub mod table_name;
mod tables;
mod time;
mod value;

pub use cloudevents::CloudEvents;
pub use details::{ColumnDetail, Details, TypeDetail};
pub use fault::{BadKind, BadReason, BadRow, RowError};
pub(crate) use json::push_base64;
use kind::Domains;
pub use mapping::{Constant, Mapping, OnUpdate, SchemaId, Timestamp};
pub use patterns::{List, TablePatterns};
pub use plan::{Cause, Lack, PlanError, Role, TablePlan, Within};
pub use table_name::TableName;
use tables::{Standing, Tables};
pub(crate) use time::push_rfc3339;

use crate::lsn::Lsn;
use crate::pgoutput::{DataType, LogicalMessage, PgTime, PublishedTable, Relation, RelationId, Tuple};
use crate::route::{TopicError, TopicRule};
use crate::sink::Record;
use std::collections::BTreeMap;

/// Settings, and what is known of each table.
#[derive(Debug)]
pub struct Outbox {
    mapping: Mapping,
    topic: TopicRule,
    /// The tables that are published.
    tables: Tables,
    /// The position at which the catalog had a table that cannot be mapped, and the reason: see [`Outbox::unmappable_from`].
    unmappable: Option<(Lsn, PlanError)>,
    /// The state of each table, by its latest Relation message on this connection.
    relations: BTreeMap<RelationId, RelationEntry>,
    /// A value came in an unknown binary form: its column had another type then than the catalog has now, and such values may come
    /// again.
    text_only: bool,
    /// The known domains.
    domains: Domains,
    /// Details of types and columns, from the last query of the catalog.
    details: Details,
    /// The end of the WAL before that query. The details hold for transactions that commit before it; later DDL may have changed
    /// them.
    details_as_of: Lsn,
    /// See [`Outbox::readings`].
    readings: Vec<TableReading>,
    scratch: record::Scratch,
}

/// How a table is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableReading {
    /// `schema.table`.
    pub table: String,
    /// Role and column: see [`TablePlan::roles`].
    pub columns: Vec<(String, String)>,
    /// Its records have no key, and no setting says that none is wanted.
    pub lacks_key: bool,
}

#[derive(Debug)]
enum RelationEntry {
    NotListed,
    /// The server announced the table, and the last look at the publication may be out of date or did not know it. Whether the
    /// table is listed shows once a row comes. The partitions of a table that is published as their root are announced without ever
    /// sending one.
    Unsettled(Unsettled),
    Listed(Box<TablePlan>),
    /// `--table` does not name the table and the publication no longer has it, but it has an outbox's shape. Most likely it is a
    /// partition that was detached or dropped since. Its rows are bad rows, so that none is skipped in silence.
    Gone(Box<TablePlan>),
}

/// A table that the last look at the publication does not settle.
#[derive(Debug)]
struct Unsettled {
    name: (String, String),
    /// It has an outbox's shape.
    mappable: bool,
    /// The look knew it, and that it was not covered: so much holds for rows from before the look.
    known: bool,
    /// The look knew it by the name that it has since, and covered it: how rows from before the look are read.
    earlier: Option<Box<TablePlan>>,
}

/// A row's place: its transaction and its number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowContext {
    /// When its transaction was committed.
    pub commit_time: PgTime,
    /// Begin's `final_lsn`.
    pub final_lsn: Lsn,
    /// Its number in the transaction, from 0.
    pub ordinal: u64,
}

/// The result for a row or message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOutcome<T> {
    /// The record was built, and the closure returned this.
    Record(T),
    /// Another table's row, or a message with another prefix.
    NotPublished,
    /// It publishes nothing by design, and counts as that.
    Ignored(Ignored),
}

/// A change that publishes nothing by design.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// A message with a prefix that is asked for, but outside any transaction: it may come twice, or without its commit.
    NonTransactionalMessage,
    /// An update of an outbox row.
    Update,
}

impl Ignored {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::NonTransactionalMessage, Self::Update];

    /// A label for metrics, from a closed set.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NonTransactionalMessage => "non_transactional_message",
            Self::Update => "update",
        }
    }
}

/// The action for an update of a row.
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

impl Outbox {
    /// An outbox that knows no table yet. `tables`: `--table`; empty for every table of the publication.
    ///
    /// # Errors
    /// The topic setting is not well-formed.
    pub fn new(mapping: Mapping, tables: Vec<TableName>) -> Result<Self, TopicError> {
        let topic = TopicRule::new(&mapping.topic, mapping.addresses)?;
        let (tables, unmappable) = (Tables::new(tables), None);
        let (relations, scratch) = (BTreeMap::new(), record::Scratch::default());
        let (details, details_as_of, text_only) = (Details::default(), Lsn::ZERO, false);
        let (readings, domains) = (Vec::new(), Domains::default());
        Ok(Self {
            mapping,
            topic,
            tables,
            unmappable,
            relations,
            text_only,
            domains,
            details,
            details_as_of,
            readings,
            scratch,
        })
    }

    /// Whether [`Outbox::details`] is to be called before [`Outbox::published`].
    pub fn wants_details(&self) -> bool {
        self.mapping.connect.is_some()
    }

    /// Takes what the catalogue says of types and columns now, read behind the position of [`Outbox::looks_at`].
    pub fn details(&mut self, details: Details) {
        self.details = details;
        self.details_as_of = self.tables.looked_at();
    }

    /// Whether the catalogue is to be asked before [`Outbox::relation`] takes this shape, which the server announces in the transaction
    /// that commits at `position`: DDL may have changed the table since it was asked last.
    pub fn wants_details_again(&self, relation: &Relation, position: Lsn) -> bool {
        self.wants_details() && position >= self.details_as_of && self.tables.standing(relation) == Standing::Covered
    }

    /// Whether the catalogue has told of every type of a table's columns.
    pub fn knows_types(&self, relation: &Relation) -> bool {
        let is_known = |type_id| !kind::is_custom(type_id) || self.details.types.contains_key(&type_id);
        relation.columns.iter().all(|column| is_known(column.type_id))
    }

    /// Takes what the catalogue says in the middle of a stream, read when the WAL went up to `as_of`. What is known of types stays: an
    /// enum that has got further labels has them from the next connection on, as in Debezium.
    pub fn details_again(&mut self, details: Details, as_of: Lsn) {
        let known = std::mem::replace(&mut self.details, details);
        self.details.types.extend(known.types);
        self.details_as_of = as_of;
    }

    /// Restricts it to the tables that are captured; counts only where no table is named.
    #[must_use]
    pub fn with_patterns(mut self, patterns: TablePatterns) -> Self {
        self.tables.restrict(patterns);
        self
    }

    /// Whether any of the tables that the publication is known to hold is published from.
    pub fn covers_any(&self) -> bool {
        self.tables.covers_any()
    }

    /// Sets the position of the next look at the publication: whatever [`Outbox::published`] is told next was read there or behind
    /// it. Before the first call, that is the beginning of the WAL, so that the look holds for no row.
    pub fn looks_at(&mut self, position: Lsn) {
        self.tables.looks_at(position);
    }

    /// Takes what the publication holds now, and forgets earlier tables: a new connection announces them again. Whether its
    /// values should come in binary form: that spares a `bytea` the doubling of its text form, and no other column minds.
    ///
    /// # Errors
    /// A listed table lacks what it needs, now. Everything else is taken all the same: rows from before may come with another
    /// shape.
    pub fn published(&mut self, tables: &[PublishedTable]) -> Result<bool, PlanError> {
        self.relations.clear();
        self.unmappable = None;
        self.tables.published(tables);
        self.readings.clear();
        for table in tables {
            self.domains.listed(&table.domains);
        }
        let covered: Vec<&PublishedTable> = tables.iter().filter(|table| self.tables.covers(table)).collect();
        let plans: Vec<TablePlan> =
            covered.iter().map(|table| self.mapped(&table.relation)).collect::<Result<_, _>>()?;
        self.readings = covered.into_iter().zip(&plans).map(|(table, plan)| self.reading(table, plan)).collect();
        self.readings.dedup();
        self.alike(&plans)?;
        Ok(!self.text_only && plans.iter().any(TablePlan::uses_bytea) && plans.iter().all(TablePlan::binary_safe))
    }

    /// Sees that the envelopes of all tables have the same members, where that is asked for.
    fn alike(&self, plans: &[TablePlan]) -> Result<(), PlanError> {
        let asked = self.mapping.connect.as_ref().is_some_and(|connect| connect.wants_alike_envelopes());
        let Some(first) = plans.first().filter(|_| asked) else { return Ok(()) };
        let members = |plan: &TablePlan| format!("{} has {:?}", plan.table(), plan.envelope_names);
        match plans.iter().find(|plan| plan.envelope_names != first.envelope_names) {
            Some(other) => Err(PlanError::EnvelopesDiffer { one: members(first), other: members(other) }),
            None => Ok(()),
        }
    }

    /// How the tables are read that [`Outbox::published`] was told of last; partitions that are read alike are named by their table.
    pub fn readings(&self) -> &[TableReading] {
        &self.readings
    }

    fn reading(&self, table: &PublishedTable, plan: &TablePlan) -> TableReading {
        let lacks_key = plan.column(Role::Key).is_none() && self.mapping.key_column.as_deref() != Some("");
        TableReading { table: TableName::of_whole(table).to_string(), columns: plan.roles(), lacks_key }
    }

    /// The catalogue has a table that cannot be mapped, and had it at `position`. What was committed before that comes with the
    /// shapes of its time, which may be others, and those decide; once all of it has come, so does this.
    pub fn unmappable_from(&mut self, position: Lsn, error: PlanError) {
        self.unmappable = Some((position, error));
    }

    /// Why the stream ends where it has come to `position`: see [`Outbox::unmappable_from`].
    pub fn unmappable_at(&self, position: Lsn) -> Option<&PlanError> {
        self.unmappable.as_ref().filter(|(from, _)| position >= *from).map(|(_, error)| error)
    }

    /// Whether a row of a table that the last look did not find made the publication be looked at again.
    pub fn asks(&self) -> bool {
        self.tables.asks()
    }

    /// The tables, as `schema.table`, whose rows made the publication be looked at again and which it does not hold any
    /// more: dropped, renamed or taken out meanwhile. `--table` does not name them, and they have no outbox's shape, so their
    /// rows are not published; each is reported once. Rows of those that have one are bad rows.
    pub fn take_gone(&mut self) -> Vec<String> {
        self.tables.take_gone().into_iter().map(|(schema, name)| format!("{schema}.{name}")).collect()
    }

    fn mapped(&self, relation: &Relation) -> Result<TablePlan, PlanError> {
        TablePlan::with_connect(relation, &self.mapping, &self.topic, (&self.domains, &self.details))
    }

    /// Takes a type that is not built in. It comes before the shapes of the tables that have it.
    pub fn data_type(&mut self, data_type: DataType<'_>) {
        self.domains.announced(data_type);
    }

    /// Takes a table's shape, in place of an earlier one.
    ///
    /// # Errors
    /// The table is listed and lacks what it needs. Its rows are then those of an unknown relation.
    pub fn relation(&mut self, relation: &Relation) -> Result<(), PlanError> {
        let id = relation.id;
        self.relations.remove(&id);
        let entry = match self.tables.standing(relation) {
            Standing::Covered => RelationEntry::Listed(Box::new(self.mapped(relation)?)),
            Standing::Renamed => {
                let earlier = Some(Box::new(self.mapped(relation)?));
                RelationEntry::Unsettled(Unsettled { earlier, ..self.unsettled(relation, false) })
            }
            Standing::Beside => RelationEntry::NotListed,
            Standing::Apart => {
                let unsettled = self.unsettled(relation, true);
                // A partition that is attached has every column of its parent.
                if unsettled.mappable { RelationEntry::Unsettled(unsettled) } else { RelationEntry::NotListed }
            }
            Standing::Unknown => RelationEntry::Unsettled(self.unsettled(relation, false)),
            Standing::Gone => {
                self.plain(relation).map_or(RelationEntry::NotListed, |plan| RelationEntry::Gone(Box::new(plan)))
            }
        };
        self.relations.insert(id, entry);
        Ok(())
    }

    fn unsettled(&self, relation: &Relation, known: bool) -> Unsettled {
        Unsettled { name: relation.full_name(), mappable: self.plain(relation).is_some(), known, earlier: None }
    }

    /// The plan of a table, if it has an outbox's shape.
    fn plain(&self, relation: &Relation) -> Option<TablePlan> {
        TablePlan::new(relation, &self.mapping, &self.topic, &self.domains).ok()
    }

    /// A row or an update, in the transaction that commits at `position`, of a relation that is not known to be listed or not.
    ///
    /// Once told that it was not listed before the last look, it stays so until it is announced again: to be attached changes a
    /// table, and the server announces what has changed.
    #[cold]
    fn settle(&mut self, relation: RelationId, position: Lsn) -> Result<(), RowError> {
        let Some(entry) = self.relations.get_mut(&relation) else { return Err(RowError::UnknownRelation(relation)) };
        let RelationEntry::Unsettled(Unsettled { name, mappable, known, earlier }) = entry else { return Ok(()) };
        let is_older = self.tables.is_older(position);
        if let Some(plan) = earlier.take_if(|_| is_older) {
            *entry = RelationEntry::Listed(plan);
            return Ok(());
        }
        if *known && is_older {
            *entry = RelationEntry::NotListed;
            return Ok(());
        }
        let error = RowError::NewTable(format!("{}.{}", name.0, name.1));
        self.tables.ask(name.clone(), *mappable);
        Err(error)
    }

    /// A row of a table that the publication has no more.
    #[cold]
    fn gone(&mut self, relation: RelationId, tuple: &Tuple<'_>, context: &RowContext) -> RowError {
        let id = self.shown_id(relation, tuple, context);
        let table = self.plan(relation).map_or("?", TablePlan::table).to_owned();
        Box::new(BadRow { table, id, reason: BadReason::GoneTable }).into()
    }

    /// The plan of a relation whose rows are published, or would be.
    pub fn plan(&self, relation: RelationId) -> Option<&TablePlan> {
        match self.relations.get(&relation) {
            Some(RelationEntry::Listed(plan) | RelationEntry::Gone(plan)) => Some(plan),
            Some(RelationEntry::NotListed | RelationEntry::Unsettled(_)) | None => None,
        }
    }

    /// The topic with `<column>` in the place of values: what a table's rows will go to, as long as none is there.
    pub fn topic_example(&self, plan: &TablePlan) -> String {
        let names: Vec<String> = plan.topic_columns().map(|name| format!("<{name}>")).collect();
        let mut topic = String::new();
        self.topic.render(|at| names.get(at).map_or("", String::as_str), &mut topic);
        topic
    }

    /// Whether a table with these columns could be an outbox, as the settings are.
    ///
    /// # Errors
    /// What it lacks.
    pub fn could_read(&self, relation: &Relation) -> Result<(), PlanError> {
        TablePlan::new(relation, &self.mapping, &self.topic, &self.domains).map(drop)
    }

    /// The names that a payload's column may have.
    pub fn payload_names(&self) -> Vec<&str> {
        match &self.mapping.payload_column {
            Some(name) => vec![name],
            None => Role::Payload.names().to_vec(),
        }
    }

    /// Calls `take` with the record of an inserted row.
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
    ) -> Result<RowOutcome<T>, RowError> {
        let plan = match self.relations.get(&relation) {
            Some(RelationEntry::Listed(plan)) => plan,
            Some(RelationEntry::NotListed) => return Ok(RowOutcome::NotPublished),
            Some(RelationEntry::Gone(_)) => return Err(self.gone(relation, tuple, context)),
            Some(RelationEntry::Unsettled(_)) | None => {
                self.settle(relation, context.final_lsn)?;
                let Some(RelationEntry::Listed(plan)) = self.relations.get(&relation) else {
                    return Ok(RowOutcome::NotPublished);
                };
                plan
            }
        };
        let Self { mapping, topic, scratch, .. } = self;
        let columns = scratch.columns(plan, tuple)?;
        let row = record::Row { plan, columns: &columns, mapping, topic, context };
        let made = match &plan.connect {
            None => row.with_record(scratch, take),
            Some(connect) => row.with_connect_record(connect, scratch, take),
        };
        scratch.return_columns(columns);
        self.text_only |= matches!(made, Err(RowError::BinaryForm { .. }));
        made.map(RowOutcome::Record)
    }

    /// Returns the action for an update in the transaction that commits at `final_lsn`.
    ///
    /// # Errors
    /// [`RowError::UnknownRelation`], [`RowError::NewTable`].
    pub fn update(&mut self, relation: RelationId, final_lsn: Lsn) -> Result<Updated, RowError> {
        match self.relations.get(&relation) {
            Some(RelationEntry::Listed(_) | RelationEntry::Gone(_)) => Ok(self.on_update()),
            Some(RelationEntry::NotListed) => Ok(Updated::NotPublished),
            Some(RelationEntry::Unsettled(_)) | None => {
                self.settle(relation, final_lsn)?;
                let is_listed = matches!(self.relations.get(&relation), Some(RelationEntry::Listed(_)));
                Ok(if is_listed { self.on_update() } else { Updated::NotPublished })
            }
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

    /// The place of a prefix among those that are asked for, from 0; their number, for any other.
    pub fn message_prefix_place(&self, prefix: &str) -> u32 {
        let wanted = &self.mapping.message_prefixes;
        let place = wanted.iter().position(|wanted| wanted == prefix).unwrap_or(wanted.len());
        u32::try_from(place).unwrap_or(u32::MAX)
    }

    /// The prefix at a place.
    pub fn message_prefix(&self, place: u32) -> Option<&str> {
        self.mapping.message_prefixes.get(place as usize).map(String::as_str)
    }

    /// A row's id for a log or an error, shortened; `None` when it is null or the row is not one of a published table.
    pub fn shown_id(&mut self, relation: RelationId, tuple: &Tuple<'_>, context: &RowContext) -> Option<String> {
        let Some(RelationEntry::Listed(plan) | RelationEntry::Gone(plan)) = self.relations.get(&relation) else {
            return None;
        };
        let columns = self.scratch.columns(plan, tuple).ok()?;
        let row = record::Row { plan, columns: &columns, mapping: &self.mapping, topic: &self.topic, context };
        row.shown_id()
    }

    /// A message's id, as [`Outbox::shown_id`].
    pub fn shown_message_id(&self, message: &LogicalMessage<'_>) -> Option<String> {
        message::shown_id(&message::members(message).ok()?, &self.mapping)
    }

    /// Calls `take` with the record of a logical message.
    ///
    /// # Errors
    /// [`RowError::Bad`]: the content gives no record.
    pub fn message<T>(
        &mut self,
        message: &LogicalMessage<'_>,
        context: &RowContext,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<RowOutcome<T>, RowError> {
        if !self.wants_message(message.prefix) {
            return Ok(RowOutcome::NotPublished);
        }
        if !message.transactional {
            return Ok(RowOutcome::Ignored(Ignored::NonTransactionalMessage));
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
            None => row.with_record(scratch, take),
            Some(connect) => row.with_connect_record(connect, scratch, take),
        }
        .map(RowOutcome::Record)
    }
}

#[cfg(test)]
mod tests;

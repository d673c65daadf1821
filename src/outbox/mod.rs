//! Turns changes of outbox tables into records.
//!
//! ```text
//!  Relation ──► TablePlan, kept per relation ┐
//!  Insert's Tuple ───────────────────────┴─► Record, for the caller
//!  LogicalMessage ──► its JSON object as a row ──► Record
//! ```
//!
//! In: decoded messages, and the settings that say which column means what. Out: a [`Record`], which a closure takes; or that there is
//! nothing to publish; or why the row cannot be published. The same row gives the same record again, so after a full destination the
//! row can simply be offered again. A row usually allocates nothing and copies no payload. This folder has no actions for bad rows,
//! counters, confirmed positions, sockets, clocks or logs.
//!
//! The catalog of now says which tables `--table` covers, but the rows are older. A table that was a partition when a row was committed
//! may have been detached or dropped since. `tables` decides what then happens.

mod cloudevents;
mod column_kind;
#[cfg_attr(not(feature = "debezium"), path = "connect/off.rs")]
pub mod connect;
mod fault;
mod json;
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

pub use crate::pg::details::{ColumnDetail, Details, TypeDetail};
use column_kind::Domains;
pub use fault::{BadKind, BadReason, BadRow, RowError};
pub use mapping::{CloudEvents, Constant, Mapping, OnUpdate, SchemaId, Timestamp};
pub use patterns::{List, TablePatterns};
pub use plan::{ColumnSetting, HiddenColumns, MissingColumn, PlanError, Role, TablePlan};
pub use table_name::TableName;
use tables::{Standing, Tables};
pub(crate) use time::push_rfc3339;

use crate::lsn::{Lsn, Position};
use crate::pgoutput::{DataType, LogicalMessage, PgTime, PublishedTable, Relation, RelationId, Tuple};
use crate::route::{TopicError, TopicRule};
use crate::sink::Record;
use std::collections::{BTreeMap, BTreeSet};

/// The settings, and the known tables.
#[derive(Debug)]
pub struct Outbox {
    mapping: Mapping,
    topic: TopicRule,
    /// The tables that are published.
    tables: Tables,
    /// The position from which the catalog has a table that cannot be mapped, and the reason: see [`Outbox::unmappable_from`].
    unmappable: Option<(Lsn, PlanError)>,
    /// Each table's entry, by its latest Relation message on this connection.
    relations: BTreeMap<RelationId, RelationEntry>,
    /// Whether values must come as text. A value came in an unknown binary form: its column had another type than the catalog has now,
    /// and more such values may come.
    text_only: bool,
    /// The known domains.
    domains: Domains,
    /// Details of types and columns, from the last query of the catalog.
    details: Details,
    /// The end of the WAL before that query. The details are true for transactions that commit before it. Later DDL may have changed them.
    details_as_of: Lsn,
    /// See [`Outbox::readings`].
    readings: Vec<TableReading>,
    /// The id's column of each table, when [`Outbox::published`] last took them all.
    ids: BTreeMap<RelationId, String>,
    /// The tables that have had another id column since this process began.
    other_ids: BTreeSet<RelationId>,
    /// The tables that are or were published. `None`: the publication was not read yet.
    known: Option<BTreeSet<RelationId>>,
    /// See [`Outbox::take_new_tables`].
    new_tables: Vec<String>,
    scratch: record::Scratch,
}

/// The columns that a table's records are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableReading {
    /// The table, or the topmost one above a partition.
    pub table: TableName,
    /// Each role with its column: see [`TablePlan::roles`].
    pub columns: Vec<(String, String)>,
    /// Whether its records have no key although no setting asks for that.
    pub lacks_key: bool,
}

#[derive(Debug)]
enum RelationEntry {
    /// The table is not published.
    NotPublished,
    /// The server has announced the table. The relay has not read the publication since, or did not find the table in it. Only a row
    /// decides whether the relay has to read the publication again: partitions that are published as their root are announced, but
    /// never have a row.
    Undecided(Undecided),
    /// The table is published by this plan.
    Published(Box<TablePlan>),
    /// As [`RelationEntry::Published`], and no row of it was read before. A row makes it published.
    New(Box<TablePlan>),
    /// The table is not published, and has lost a parent. See [`Standing::LostParent`].
    LostParent(Box<TablePlan>),
    /// The publication no longer has the table, and `--table` does not name it. But it has the shape of an outbox, so most likely it is
    /// a partition that was detached or dropped. Its rows are bad rows, so that none is skipped silently.
    Removed(Box<TablePlan>),
}

impl RelationEntry {
    /// The plan of a table whose rows are published, or are bad rows.
    fn plan(&self) -> Option<&TablePlan> {
        match self {
            Self::Published(plan) | Self::New(plan) | Self::LostParent(plan) | Self::Removed(plan) => Some(plan),
            Self::NotPublished | Self::Undecided(_) => None,
        }
    }
}

/// A table for which the publication, as last read, does not decide whether it is published.
#[derive(Debug)]
struct Undecided {
    name: (String, String),
    /// Whether it has the shape of an outbox.
    mappable: bool,
    /// Whether the publication, when last read, had it as a table that is not covered. That is true for rows of transactions before
    /// that read.
    known: bool,
    /// The plan for rows of transactions before that read, if the publication then had the table under its later name, and it was
    /// covered.
    earlier: Option<Box<TablePlan>>,
}

/// A row's position, and the times of its transaction and its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowContext {
    /// When the transaction was committed.
    pub commit_time: PgTime,
    /// When the row's record is handed over: the time of the loop's turn.
    pub sent_at: PgTime,
    /// The row's position in the stream.
    pub position: Position,
}

impl RowContext {
    /// The time of a record whose column gives none.
    fn time_without_column(&self, timestamp: &Timestamp) -> PgTime {
        match timestamp {
            Timestamp::Send => self.sent_at,
            Timestamp::Commit | Timestamp::Column(_) => self.commit_time,
        }
    }
}

/// The result for a row or a logical message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOutcome<T> {
    /// The record was built. This is the result of the closure.
    Record(T),
    /// It is a row of another table, or a message with another prefix.
    NotPublished,
    /// It publishes nothing by design, and is counted.
    Ignored(Ignored),
}

/// A change that publishes nothing by design.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// A message with a prefix of `--message-prefix`, but outside any transaction. It might come twice, or although its transaction was
    /// rolled back.
    NonTransactionalMessage,
    /// An update of an outbox row.
    Update,
}

impl Ignored {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::NonTransactionalMessage, Self::Update];

    /// The label in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NonTransactionalMessage => "non_transactional_message",
            Self::Update => "update",
        }
    }
}

impl Outbox {
    /// An outbox that knows no table yet. `tables`: the values of `--table`. Empty: every table of the publication.
    ///
    /// # Errors
    /// The topic setting is not well-formed.
    pub fn new(mapping: Mapping, tables: Vec<TableName>) -> Result<Self, TopicError> {
        let topic = TopicRule::new(&mapping.topic, mapping.addresses)?;
        Ok(Self {
            mapping,
            topic,
            tables: Tables::new(tables),
            unmappable: None,
            relations: BTreeMap::new(),
            text_only: false,
            domains: Domains::default(),
            details: Details::default(),
            details_as_of: Lsn::ZERO,
            readings: Vec::new(),
            ids: BTreeMap::new(),
            other_ids: BTreeSet::new(),
            known: None,
            new_tables: Vec::new(),
            scratch: record::Scratch::default(),
        })
    }

    /// Whether the time of a record is its row's, by a column.
    pub fn has_own_times(&self) -> bool {
        matches!(self.mapping.timestamp, Timestamp::Column(_))
    }

    /// Whether [`Outbox::details`] must be called before [`Outbox::published`].
    pub fn wants_details(&self) -> bool {
        self.mapping.connect.is_some()
    }

    /// Takes the details of the catalog. They were read after the position given to [`Outbox::set_read_position`].
    pub fn details(&mut self, details: Details) {
        self.details = details;
        self.details_as_of = self.tables.read_position();
    }

    /// Whether the catalog must be queried before [`Outbox::relation`] takes this Relation. It came in the transaction that commits at
    /// `position`, and DDL may have changed the table since the last query.
    pub fn wants_details_again(&self, relation: &Relation, position: Lsn) -> bool {
        self.wants_details() && position >= self.details_as_of && self.tables.standing(relation) == Standing::Published
    }

    /// Whether the details have every type of the table's columns.
    pub fn knows_types(&self, relation: &Relation) -> bool {
        let is_known = |type_id| !column_kind::is_custom(type_id) || self.details.types.contains_key(&type_id);
        relation.columns.iter().all(|column| is_known(column.type_id))
    }

    /// Takes details that were read in the middle of a stream, when the WAL ended at `as_of`. Types that are already known stay as they
    /// are. So new labels of an enum are known only on the next connection, as in Debezium.
    pub fn details_again(&mut self, details: Details, as_of: Lsn) {
        let known = std::mem::replace(&mut self.details, details);
        self.details.types.extend(known.types);
        self.details_as_of = as_of;
    }

    /// Restricts the outbox to the tables that `patterns` capture. This has an effect only if no table is named.
    #[must_use]
    pub fn with_patterns(mut self, patterns: TablePatterns) -> Self {
        self.tables.restrict(patterns);
        self
    }

    /// Whether the publication has a table that is published.
    pub fn covers_any(&self) -> bool {
        self.tables.covers_any()
    }

    /// Sets the position of the next read of the publication: the tables for [`Outbox::published`] are read there or later. Before the
    /// first call, it is the beginning of the WAL, so that the read counts for no row.
    pub fn set_read_position(&mut self, position: Lsn) {
        self.tables.set_read_position(position);
    }

    /// Takes the tables that the publication has now, and forgets the announced tables: a new connection announces them again.
    /// Returns whether values should come in binary form. That makes a `bytea` half as long, and has no advantage for other types.
    ///
    /// # Errors
    /// A published table lacks something that it needs. All tables are taken nonetheless, since earlier rows may come with another
    /// shape.
    pub fn published(&mut self, tables: &[PublishedTable]) -> Result<bool, PlanError> {
        self.relations.clear();
        self.unmappable = None;
        self.tables.published(tables);
        self.readings.clear();
        for table in tables {
            self.domains.add_from_catalog(&table.domains);
        }
        let covered: Vec<&PublishedTable> = tables.iter().filter(|table| self.tables.covers(table)).collect();
        let ids = covered.iter().map(|table| table.relation.id);
        match &mut self.known {
            None => self.known = Some(ids.collect()),
            Some(known) => {
                let new = covered.iter().filter(|table| known.insert(table.relation.id));
                self.new_tables.extend(new.map(|table| TableName::of(&table.relation).to_string()));
            }
        }
        let plans: Vec<TablePlan> =
            covered.iter().map(|table| self.mapped(&table.relation)).collect::<Result<_, _>>()?;
        let id_of = |(table, plan): (&&PublishedTable, &TablePlan)| {
            Some((table.relation.id, plan.column(Role::Id)?.to_owned()))
        };
        let ids: BTreeMap<_, _> = covered.iter().zip(&plans).filter_map(id_of).collect();
        let is_other = |table: &&RelationId| ids.get(table).is_some_and(|now| self.ids.get(table) != Some(now));
        self.other_ids.extend(self.ids.keys().filter(is_other));
        self.ids = ids;
        self.readings = covered.into_iter().zip(&plans).map(|(table, plan)| self.reading(table, plan)).collect();
        self.readings.dedup();
        self.check_envelopes_alike(&plans)?;
        Ok(!self.text_only && plans.iter().any(TablePlan::uses_bytea) && plans.iter().all(TablePlan::binary_safe))
    }

    /// Checks that the envelopes of all tables have the same members, if a setting asks for it.
    fn check_envelopes_alike(&self, plans: &[TablePlan]) -> Result<(), PlanError> {
        let asked = self.mapping.connect.as_ref().is_some_and(|connect| connect.wants_alike_envelopes());
        let Some(first) = plans.first().filter(|_| asked) else { return Ok(()) };
        let members = |plan: &TablePlan| plan.envelope.iter().map(|member| member.name.clone()).collect::<Vec<_>>();
        let shown = |plan: &TablePlan| format!("{} has {:?}", plan.table(), members(plan));
        match plans.iter().find(|plan| members(plan) != members(first)) {
            Some(other) => Err(PlanError::EnvelopesDiffer { one: shown(first), other: shown(other) }),
            None => Ok(()),
        }
    }

    /// Takes the tables that have lost a parent since the slot's position: they were partitions or children of a table, and nothing in the
    /// publication shows that now. To be called between [`Outbox::set_read_position`] and the first [`Outbox::published`].
    pub fn lost_parents(&mut self, tables: impl IntoIterator<Item = RelationId>) {
        self.tables.lost_parents(tables);
    }

    /// Returns, as `schema.table`, the tables whose rows are published for the first time, apart from those that the publication had when it
    /// was first read. Each is returned once.
    pub fn take_new_tables(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new_tables)
    }

    /// The columns of the tables that [`Outbox::published`] took last. Partitions that are read alike appear once, under the name of
    /// their table.
    pub fn readings(&self) -> &[TableReading] {
        &self.readings
    }

    /// Whether the ids of all rows of a table, of those in flight too, come from the column that [`Outbox::readings`] has for it: not if another
    /// column has had its role in the stream or in the catalog since this process began, nor while a table cannot be mapped.
    pub fn has_noted_id(&self, relation: RelationId) -> bool {
        self.unmappable.is_none() && !self.other_ids.contains(&relation)
    }

    fn reading(&self, table: &PublishedTable, plan: &TablePlan) -> TableReading {
        let lacks_key = plan.column(Role::Key).is_none() && self.mapping.key_column.as_deref() != Some("");
        TableReading { table: TableName::of_whole(table), columns: plan.roles(), lacks_key }
    }

    /// The catalog had a table at `position` that cannot be mapped. Earlier transactions come with the tables of their time, which may
    /// be fine. So the stream ends with `error` only once it has reached `position`.
    pub fn unmappable_from(&mut self, position: Lsn, error: PlanError) {
        self.unmappable = Some((position, error));
    }

    /// The error that ends the stream at `position`, if there is one: see [`Outbox::unmappable_from`].
    pub fn unmappable_at(&self, position: Lsn) -> Option<&PlanError> {
        self.unmappable.as_ref().filter(|(from, _)| position >= *from).map(|(_, error)| error)
    }

    /// Whether the publication must be read again, because of a row of a table that was not found in it.
    pub fn wants_read(&self) -> bool {
        self.tables.wants_read()
    }

    /// Returns, as `schema.table`, the tables whose rows made the relay read the publication again, and that it does not have: they
    /// were dropped, renamed or removed. `--table` does not name them, and they do not have the shape of an outbox, so their rows are
    /// not published. Each is returned once. Rows of tables with the shape of an outbox are bad rows.
    pub fn take_not_found(&mut self) -> Vec<String> {
        self.tables.take_not_found().into_iter().map(|(schema, name)| format!("{schema}.{name}")).collect()
    }

    fn mapped(&self, relation: &Relation) -> Result<TablePlan, PlanError> {
        let plan = TablePlan::new(relation, &self.mapping, &self.topic, &self.domains)?;
        plan.connected(Some(relation), &self.mapping, &self.details)
    }

    /// Takes a type that is not built in. It comes before the tables that use it.
    pub fn data_type(&mut self, data_type: DataType<'_>) {
        self.domains.add_from_stream(data_type);
    }

    /// Takes a table's columns. They replace earlier ones.
    ///
    /// # Errors
    /// The table is published and lacks something that it needs. Its rows then count as those of an unknown table.
    pub fn relation(&mut self, relation: &Relation) -> Result<(), PlanError> {
        let id = relation.id;
        self.relations.remove(&id);
        let entry = match self.tables.standing(relation) {
            Standing::Published if self.known.as_ref().is_some_and(|known| !known.contains(&id)) => {
                RelationEntry::New(Box::new(self.mapped(relation)?))
            }
            Standing::Published => RelationEntry::Published(Box::new(self.mapped(relation)?)),
            Standing::LostParent => self
                .plan_if_mappable(relation)
                .map_or(RelationEntry::NotPublished, |plan| RelationEntry::LostParent(Box::new(plan))),
            Standing::Renamed => {
                let earlier = Some(Box::new(self.mapped(relation)?));
                RelationEntry::Undecided(Undecided { earlier, ..self.undecided(relation, false) })
            }
            Standing::NotPublished => RelationEntry::NotPublished,
            Standing::MaybeAttached => {
                let undecided = self.undecided(relation, true);
                // Only a table with all columns of its parent can be attached as a partition.
                if undecided.mappable { RelationEntry::Undecided(undecided) } else { RelationEntry::NotPublished }
            }
            Standing::Unknown => RelationEntry::Undecided(self.undecided(relation, false)),
            Standing::NotFound => self
                .plan_if_mappable(relation)
                .map_or(RelationEntry::NotPublished, |plan| RelationEntry::Removed(Box::new(plan))),
        };
        let now = entry.plan().and_then(|plan| plan.column(Role::Id));
        if now.is_some_and(|now| self.ids.get(&id).is_some_and(|noted| noted != now)) {
            self.other_ids.insert(id);
        }
        self.relations.insert(id, entry);
        Ok(())
    }

    fn undecided(&self, relation: &Relation, known: bool) -> Undecided {
        Undecided {
            name: relation.full_name(),
            mappable: self.plan_if_mappable(relation).is_some(),
            known,
            earlier: None,
        }
    }

    /// The plan of a table, if it has the shape of an outbox.
    fn plan_if_mappable(&self, relation: &Relation) -> Option<TablePlan> {
        TablePlan::new(relation, &self.mapping, &self.topic, &self.domains).ok()
    }

    /// Decides on a table without a decision, for a row or an update of a transaction that commits at `position`.
    ///
    /// A table that was not published when the publication was last read stays so until the server announces it again: to attach a
    /// partition changes the table, and the server announces changed tables.
    #[cold]
    fn decide(&mut self, relation: RelationId, position: Lsn) -> Result<(), RowError> {
        let Some(entry) = self.relations.get_mut(&relation) else { return Err(RowError::UnknownRelation(relation)) };
        if let RelationEntry::New(plan) = entry {
            self.known.get_or_insert_default().insert(relation);
            self.new_tables.push(plan.table().to_owned());
            *entry = RelationEntry::Published(plan.clone());
            return Ok(());
        }
        let RelationEntry::Undecided(Undecided { name, mappable, known, earlier }) = entry else { return Ok(()) };
        let is_decided_by_read = self.tables.is_decided_by_read(position);
        if let Some(plan) = earlier.take_if(|_| is_decided_by_read) {
            *entry = RelationEntry::Published(plan);
            return Ok(());
        }
        if *known && is_decided_by_read {
            *entry = RelationEntry::NotPublished;
            return Ok(());
        }
        let error = RowError::NewTable(format!("{}.{}", name.0, name.1));
        self.tables.request_read(name.clone(), *mappable);
        Err(error)
    }

    /// The error for a row of a table that the publication no longer has.
    #[cold]
    fn removed_table_row(&mut self, relation: RelationId, tuple: &Tuple<'_>, context: &RowContext) -> RowError {
        let id = self.shown_id(relation, tuple, context);
        let table = self.table(relation).to_owned();
        Box::new(BadRow { table, id, reason: BadReason::GoneTable }).into()
    }

    /// The plan of a table whose rows are published or are bad rows.
    pub fn plan(&self, relation: RelationId) -> Option<&TablePlan> {
        self.relations.get(&relation).and_then(RelationEntry::plan)
    }

    /// The table's name, for people.
    pub fn table(&self, relation: RelationId) -> &str {
        self.plan(relation).map_or("?", TablePlan::table)
    }

    /// The topic of a table's rows, with `<column>` instead of values.
    pub fn topic_example(&self, plan: &TablePlan) -> String {
        let names: Vec<String> = plan.topic_columns().map(|name| format!("<{name}>")).collect();
        let mut topic = String::new();
        self.topic.render(|at| names.get(at).map_or("", String::as_str), &mut topic);
        topic
    }

    /// Whether a table with these columns could be an outbox, with the given settings.
    ///
    /// # Errors
    /// It lacks something.
    pub fn could_read(&self, relation: &Relation) -> Result<(), PlanError> {
        TablePlan::new(relation, &self.mapping, &self.topic, &self.domains).map(drop)
    }

    /// The names that the payload's column may have.
    pub fn payload_names(&self) -> Vec<&str> {
        match &self.mapping.payload_column {
            Some(name) => vec![name],
            None => Role::Payload.names().to_vec(),
        }
    }

    /// Calls `take` with the record of an inserted row.
    ///
    /// # Errors
    /// The row must not come on this connection, or cannot be published.
    #[inline]
    pub fn row<T>(
        &mut self,
        relation: RelationId,
        tuple: &Tuple<'_>,
        context: &RowContext,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<RowOutcome<T>, RowError> {
        let plan = match self.relations.get(&relation) {
            Some(RelationEntry::Published(plan)) => plan,
            Some(RelationEntry::Removed(_)) => return Err(self.removed_table_row(relation, tuple, context)),
            Some(RelationEntry::LostParent(_)) if self.tables.may_have_had_parent(context.position.final_lsn) => {
                return Err(self.removed_table_row(relation, tuple, context));
            }
            Some(RelationEntry::NotPublished | RelationEntry::LostParent(_)) => return Ok(RowOutcome::NotPublished),
            Some(RelationEntry::New(_) | RelationEntry::Undecided(_)) | None => {
                self.decide(relation, context.position.final_lsn)?;
                let Some(RelationEntry::Published(plan)) = self.relations.get(&relation) else {
                    return Ok(RowOutcome::NotPublished);
                };
                plan
            }
        };
        let Self { mapping, topic, scratch, .. } = self;
        let columns = scratch.columns(plan, tuple)?;
        let row = record::MappedRow { plan, columns: &columns, mapping, topic, context };
        let made = row.with_record(scratch, take);
        scratch.return_columns(columns);
        self.text_only |= matches!(made, Err(RowError::BinaryForm { .. }));
        made.map(RowOutcome::Record)
    }

    /// Returns the reaction to an update in the transaction that commits at `final_lsn`. `None`: it is a row of another table.
    ///
    /// # Errors
    /// [`RowError::UnknownRelation`], [`RowError::NewTable`].
    pub fn update(&mut self, relation: RelationId, final_lsn: Lsn) -> Result<Option<OnUpdate>, RowError> {
        if let Some(RelationEntry::Undecided(_)) | None = self.relations.get(&relation) {
            self.decide(relation, final_lsn)?;
        }
        let entry = self.relations.get(&relation).filter(|entry| !matches!(entry, RelationEntry::LostParent(_)));
        Ok(entry.and_then(RelationEntry::plan).map(|_| self.mapping.on_update))
    }

    /// Whether records have the rows' own times. Otherwise they have the time of their sending.
    pub fn records_have_rows_times(&self) -> bool {
        self.mapping.timestamp != Timestamp::Send
    }

    /// Whether messages with this prefix are published.
    pub fn wants_message(&self, prefix: &str) -> bool {
        self.mapping.message_prefixes.iter().any(|wanted| wanted == prefix)
    }

    /// The index of a prefix in `--message-prefix`, from 0. For another prefix, the number of prefixes.
    pub fn message_prefix_index(&self, prefix: &str) -> u32 {
        let wanted = &self.mapping.message_prefixes;
        let index = wanted.iter().position(|wanted| wanted == prefix).unwrap_or(wanted.len());
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// The prefix with this index.
    pub fn message_prefix(&self, index: u32) -> Option<&str> {
        self.mapping.message_prefixes.get(index as usize).map(String::as_str)
    }

    /// A row's id for a log line or an error, shortened. `None` if it is null, or if the table is not published.
    pub fn shown_id(&mut self, relation: RelationId, tuple: &Tuple<'_>, context: &RowContext) -> Option<String> {
        let plan = self.relations.get(&relation).and_then(RelationEntry::plan)?;
        let columns = self.scratch.columns(plan, tuple).ok()?;
        let row = record::MappedRow { plan, columns: &columns, mapping: &self.mapping, topic: &self.topic, context };
        row.shown_id()
    }

    /// A message's id, in the form of [`Outbox::shown_id`].
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
        let row = record::MappedRow { plan: &plan, columns: &message::columns(&members), mapping, topic, context };
        row.with_record(scratch, take).map(RowOutcome::Record)
    }
}

#[cfg(test)]
mod tests;

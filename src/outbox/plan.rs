//! `Plan`: which column of a table plays which role.
//!
//! ```text
//!  Relation (or the catalogue's names and types) + Mapping + Topic's names ──► Plan: indexes into a row
//! ```
//!
//! Made once per Relation message, so that a row costs no look-up by name. Names are compared as the catalogue has them,
//! case and all; a name that a flag gives beats the names tried; an empty one turns an optional role off. A table that
//! lacks what it needs is an error that says what was tried, what is there and which flag helps. Reads no row.

use super::connect::{ConnectPlan, Details, NoPlan};
use super::kind::{Kind, binary_safe, type_name};
use crate::outbox::TablePatterns;
use crate::outbox::{Mapping, SchemaId, Timestamp};
use crate::pgoutput::{Relation, RelationColumn};
use crate::route::{Name, Topic};
use std::fmt;

/// Which column plays which role in one table. Every index is below the number of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(super) table: String,
    pub(super) columns: Vec<PlanColumn>,
    pub(super) id: usize,
    pub(super) key: Option<usize>,
    pub(super) payload: usize,
    /// The role `type`.
    pub(super) event_type: Option<usize>,
    pub(super) headers: Option<usize>,
    pub(super) partition: Option<usize>,
    pub(super) timestamp: Option<usize>,
    pub(super) schema_id: Option<usize>,
    /// For each of [`Topic::names`] its column.
    pub(super) topic: Vec<usize>,
    /// Header name and column.
    pub(super) extra_headers: Vec<(String, usize)>,
    /// The member's name as JSON text, and its column.
    pub(super) envelope: Vec<(String, usize)>,
    /// The same names as they are.
    pub(super) envelope_names: Vec<String>,
    /// How Debezium would write it, where that is asked for.
    pub(super) connect: Option<Box<ConnectPlan>>,
}

/// A plan, or why the catalogue is to be asked again before there is one.
pub(super) enum Connected {
    Plan(Plan),
    /// The error that it is when the catalogue knows no more.
    Stale(PlanError),
}

const UNKNOWN_TYPE: &str = "of a type that the catalogue does not know (any more)";

/// A column as far as records care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlanColumn {
    pub(super) name: String,
    pub(super) type_id: u32,
    pub(super) kind: Kind,
}

/// What a column is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Names the event: header `id`.
    Id,
    /// The record's key.
    Key,
    /// The record's value.
    Payload,
    /// Header `eventType`.
    Type,
    /// Picks the topic.
    Route,
    /// A JSON object of headers.
    Headers,
}

impl Role {
    const IN_TOPICS: [(&'static str, Self); 4] =
        [("id", Self::Id), ("route", Self::Route), ("key", Self::Key), ("type", Self::Type)];

    /// The names tried, in order.
    pub(crate) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Id => &["id", "event_id"],
            Self::Key => &["aggregateid", "aggregate_id"],
            Self::Payload => &["payload", "event_data", "data"],
            Self::Type => &["type", "event_type", "task_type"],
            Self::Route => &["aggregatetype", "aggregate_type"],
            Self::Headers => &["headers"],
        }
    }

    /// The flag that names its column.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Id => "--id-column",
            Self::Key => "--key-column",
            Self::Payload => "--payload-column",
            Self::Type => "--type-column",
            Self::Route => "--route-column",
            Self::Headers => "--headers-column",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id => "id",
            Self::Key => "key",
            Self::Payload => "payload",
            Self::Type => "type",
            Self::Route => "route",
            Self::Headers => "headers",
        })
    }
}

/// A table that cannot be read as an outbox. An operator must act: see [`PlanError::hint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No column for a role that is needed.
    #[error("table {table} has no column for the {role}: tried {}; it has {}", tried.join(", "), listed(present))]
    NoColumnForRole {
        /// `schema.table`.
        table: String,
        /// The role.
        role: Role,
        /// The names tried.
        tried: Vec<String>,
        /// The columns that are there.
        present: Vec<String>,
        /// The one of them that comes nearest to a name tried, if one comes near.
        nearest: Option<String>,
    },
    /// A setting names a column that is not there.
    #[error("table {table} has no column \"{column}\", which {flag} names; it has {}", listed(present))]
    NoSuchColumn {
        /// `schema.table`.
        table: String,
        /// The setting.
        flag: &'static str,
        /// The column that it names.
        column: String,
        /// The columns that are there.
        present: Vec<String>,
        /// The one of them that comes nearest, if one comes near.
        nearest: Option<String>,
    },
    /// A column's type has no form that Debezium would give it.
    #[error("column \"{column}\" of table {table} is {why}")]
    NotAsDebezium {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// What it is, and what helps.
        why: &'static str,
    },
    /// A column cannot do what a setting wants of it.
    #[error("column \"{column}\" of table {table}, which {flag} names, is {type_name}: {wanted} is wanted")]
    WrongType {
        /// `schema.table`.
        table: String,
        /// The setting.
        flag: &'static str,
        /// The column that it names.
        column: String,
        /// Its type.
        type_name: String,
        /// What it should be.
        wanted: &'static str,
    },
}

impl PlanError {
    /// What fixes it, in one sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::NoColumnForRole { role, nearest, present, .. } => {
                let flag = role.flag();
                let name = match nearest {
                    Some(nearest) => nearest.clone(),
                    None if present.is_empty() => "with a column that the publication sends".to_owned(),
                    None => format!("with one of {}", listed(present)),
                };
                match role {
                    Role::Route => format!("name it: {flag} {name}, or give a --topic without {{route}}"),
                    Role::Id | Role::Key | Role::Payload | Role::Type | Role::Headers => {
                        format!("name it: {flag} {name}")
                    }
                }
            }
            Self::NoSuchColumn { flag, nearest: Some(nearest), .. } => {
                format!("did you mean \"{nearest}\"? set {flag}")
            }
            Self::NoSuchColumn { flag, nearest: None, .. } => {
                format!(
                    "set {flag} to one of the table's columns (a generated one is sent by Postgres 18 and later, where the publication says so: publish_generated_columns = stored)"
                )
            }
            Self::NotAsDebezium { .. } => {
                "the records would not be Debezium's: change what the message names in its files".to_owned()
            }
            Self::WrongType { flag, wanted, .. } => format!("set {flag} to a column of type {wanted}"),
        }
    }
}

fn listed(columns: &[String]) -> String {
    if columns.is_empty() { "no column that is published".to_owned() } else { columns.join(", ") }
}

impl Plan {
    /// Finds each role's column. A start-up check may build the [`Relation`] from the catalogue: only names and types
    /// are looked at.
    ///
    /// # Errors
    /// A column that is needed or that a setting names is not there, or has a type that cannot serve.
    pub fn new(relation: &Relation, mapping: &Mapping, topic: &Topic) -> Result<Self, PlanError> {
        let table = format!("{}.{}", relation.namespace, relation.name);
        let plan = Self::resolve(table, relation.columns.iter().map(PlanColumn::from).collect(), mapping, topic)?;
        plan.check_types(mapping)?;
        Ok(plan)
    }

    /// As [`Plan::new`], whatever the types are.
    pub(super) fn resolve(
        table: String,
        columns: Vec<PlanColumn>,
        mapping: &Mapping,
        topic: &Topic,
    ) -> Result<Self, PlanError> {
        let captured = mapping.connect.as_ref().map(|connect| connect.captured());
        let find = Finder { table: &table, columns: &columns, mapping, captured: captured.as_ref() };
        let envelope = find.pairs("--envelope", &mapping.envelope)?;
        let timestamp = match &mapping.timestamp {
            Timestamp::Commit => None,
            Timestamp::Column(name) => Some(find.flagged("--timestamp", name)?),
        };
        Ok(Self {
            id: find.needed(Role::Id)?,
            key: find.role(Role::Key)?,
            payload: find.needed(Role::Payload)?,
            event_type: match mapping.cloudevents {
                Some(_) => Some(find.needed(Role::Type)?),
                None => find.role(Role::Type)?,
            },
            headers: find.headers()?,
            partition: find.additional("--partition-column", mapping.partition_column.as_deref())?,
            timestamp,
            schema_id: find.additional("--schema-id", mapping.schema_id.as_ref().and_then(SchemaId::column))?,
            topic: topic.names().into_iter().map(|name| find.topic_name(name)).collect::<Result<_, _>>()?,
            extra_headers: find.pairs("--header", &mapping.headers)?,
            envelope_names: envelope.iter().map(|(name, _)| name.clone()).collect(),
            envelope: envelope.into_iter().map(as_json_name).collect(),
            connect: None,
            table,
            columns,
        })
    }

    /// As [`Plan::new`], with what is needed to write records as Debezium does.
    ///
    /// # Errors
    /// As [`Plan::new`]; or a column has no form that Debezium would give it.
    pub(super) fn with_connect(
        relation: &Relation,
        mapping: &Mapping,
        topic: &Topic,
        details: &Details,
    ) -> Result<Connected, PlanError> {
        let plan = Self::new(relation, mapping, topic)?;
        plan.connected(Some(relation), mapping, details)
    }

    /// Adds how Debezium would write it, where that is asked for.
    pub(super) fn connected(
        mut self,
        relation: Option<&Relation>,
        mapping: &Mapping,
        details: &Details,
    ) -> Result<Connected, PlanError> {
        let Some(connect) = &mapping.connect else { return Ok(Connected::Plan(self)) };
        self.without_left_out(relation, connect, details);
        match ConnectPlan::new(&self, relation, mapping, connect, details) {
            Ok(plan) => {
                self.connect = Some(Box::new(plan));
                Ok(Connected::Plan(self))
            }
            Err(NoPlan::Stale { index }) => Ok(Connected::Stale(self.not_as_debezium(index, UNKNOWN_TYPE))),
            Err(NoPlan::Column { index, why }) => Err(self.not_as_debezium(index, why)),
        }
    }

    fn not_as_debezium(&self, index: usize, why: &'static str) -> PlanError {
        let (table, column) = (self.table.clone(), self.column_name(index).to_owned());
        PlanError::NotAsDebezium { table, column, why }
    }

    fn check_types(&self, mapping: &Mapping) -> Result<(), PlanError> {
        self.check_type(self.headers, Role::Headers.flag(), Kind::may_hold_json, "json or jsonb")?;
        self.check_type(self.timestamp, "--timestamp", Kind::may_hold_time, "timestamp, timestamptz or bigint")?;
        let integer = "smallint, integer or bigint";
        let schema_id = mapping.schema_id.as_ref().and(self.schema_id);
        self.check_type(schema_id, "--schema-id", Kind::may_hold_integer, integer)?;
        let partition = mapping.partition_column.as_ref().and(self.partition);
        self.check_type(partition, "--partition-column", Kind::may_hold_integer, integer)
    }

    fn check_type(
        &self,
        column: Option<usize>,
        flag: &'static str,
        may: impl Fn(Kind) -> bool,
        wanted: &'static str,
    ) -> Result<(), PlanError> {
        match column.and_then(|index| self.columns.get(index)) {
            Some(column) if !may(column.kind) => Err(PlanError::WrongType {
                table: self.table.clone(),
                flag,
                column: column.name.clone(),
                type_name: type_name(column.type_id),
                wanted,
            }),
            _ => Ok(()),
        }
    }

    /// The table, as `schema.table`.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The column of a role; `None`: no column plays it, or it is the route, for which [`Plan::topic_columns`] stands.
    pub fn column(&self, role: Role) -> Option<&str> {
        let index = match role {
            Role::Id => Some(self.id),
            Role::Key => self.key,
            Role::Payload => Some(self.payload),
            Role::Type => self.event_type,
            Role::Headers => self.headers,
            Role::Route => None,
        };
        index.map(|index| self.column_name(index))
    }

    /// The columns that the topic is made of, in the order of [`Topic::names`].
    pub fn topic_columns(&self) -> impl Iterator<Item = &str> {
        self.topic.iter().map(|index| self.column_name(*index))
    }

    /// What each column is for, for people: roles first, then what settings ask for.
    pub fn roles(&self) -> Vec<(String, String)> {
        let roles = [Role::Id, Role::Key, Role::Payload, Role::Type, Role::Headers];
        let found = roles.into_iter().filter_map(|role| Some((role.to_string(), self.column(role)?.to_owned())));
        let topic = self.topic_columns().map(|name| ("topic".to_owned(), name.to_owned()));
        let named = |name: &str, index: Option<usize>| Some((name.to_owned(), self.column_name(index?).to_owned()));
        let more = [("partition", self.partition), ("timestamp", self.timestamp), ("schema id", self.schema_id)];
        let more = more.into_iter().filter_map(|(name, index)| named(name, index));
        let paired = |kind: &'static str, pairs: Vec<(String, usize)>| {
            pairs.into_iter().map(move |(name, index)| (format!("{kind} {name}"), index))
        };
        let envelope = self.envelope_names.iter().cloned().zip(self.envelope.iter().map(|(_, index)| *index)).collect();
        let pairs = paired("header", self.extra_headers.clone()).chain(paired("envelope", envelope));
        let pairs = pairs.map(|(name, index)| (name, self.column_name(index).to_owned()));
        found.chain(topic).chain(more).chain(pairs).collect()
    }

    /// Whether the binary form of every column that is used is understood, so that the connection may ask for it.
    pub fn binary_safe(&self) -> bool {
        self.used().filter_map(|index| self.columns.get(index)).all(|column| binary_safe(column.type_id))
    }

    /// Whether a `bytea` is among the columns that are used.
    pub fn uses_bytea(&self) -> bool {
        self.used().filter_map(|index| self.columns.get(index)).any(|column| column.kind == Kind::Bytea)
    }

    /// The columns that a record is made of; some more than once.
    fn used(&self) -> impl Iterator<Item = usize> {
        let optional = [self.key, self.event_type, self.headers, self.partition, self.timestamp, self.schema_id];
        let paired = self.extra_headers.iter().chain(&self.envelope).map(|(_, index)| *index);
        [self.id, self.payload]
            .into_iter()
            .chain(optional.into_iter().flatten())
            .chain(self.topic.iter().copied())
            .chain(paired)
    }

    /// The column's name, for people.
    pub(super) fn column_name(&self, index: usize) -> &str {
        self.columns.get(index).map_or("?", |column| &column.name)
    }
}

/// The id's column, whatever else is missing.
pub(super) fn id_column(columns: &[PlanColumn], mapping: &Mapping) -> Option<usize> {
    Finder { table: "", columns, mapping, captured: None }.role(Role::Id).ok().flatten()
}

fn as_json_name((name, index): (String, usize)) -> (String, usize) {
    (serde_json::Value::String(name).to_string(), index)
}

impl From<&RelationColumn> for PlanColumn {
    fn from(column: &RelationColumn) -> Self {
        Self { name: column.name.clone(), type_id: column.type_id, kind: Kind::of(column.type_id) }
    }
}

/// Finds columns by name in one table.
struct Finder<'a> {
    table: &'a str,
    columns: &'a [PlanColumn],
    mapping: &'a Mapping,
    /// Others are as if they were not there; `None`: all are.
    captured: Option<&'a TablePatterns>,
}

impl Finder<'_> {
    fn named(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name).filter(|_| self.is_captured(name))
    }

    fn is_captured(&self, name: &str) -> bool {
        self.captured.is_none_or(|captured| captured.capture_column(self.table, name))
    }

    fn flagged(&self, flag: &'static str, name: &str) -> Result<usize, PlanError> {
        self.named(name).ok_or_else(|| PlanError::NoSuchColumn {
            table: self.table.to_owned(),
            flag,
            column: name.to_owned(),
            present: self.present(),
            nearest: self.nearest(&[name]),
        })
    }

    fn optional(&self, flag: &'static str, name: Option<&str>) -> Result<Option<usize>, PlanError> {
        name.filter(|name| !name.is_empty()).map(|name| self.flagged(flag, name)).transpose()
    }

    fn setting(&self, role: Role) -> Option<&str> {
        let mapping = self.mapping;
        let setting = match role {
            Role::Id => &mapping.id_column,
            Role::Key => &mapping.key_column,
            Role::Payload => &mapping.payload_column,
            Role::Type => &mapping.type_column,
            Role::Route => &mapping.route_column,
            Role::Headers => &mapping.headers_column,
        };
        setting.as_deref()
    }

    fn role(&self, role: Role) -> Result<Option<usize>, PlanError> {
        match (self.setting(role), role) {
            (Some(name), _) => self.optional(role.flag(), Some(name)),
            (None, Role::Route) => self.tried(role).map_or_else(|| self.role(Role::Type), |index| Ok(Some(index))),
            (None, _) => Ok(self.tried(role)),
        }
    }

    fn tried(&self, role: Role) -> Option<usize> {
        role.names().iter().find_map(|name| self.named(name))
    }

    fn needed(&self, role: Role) -> Result<usize, PlanError> {
        self.role(role)?.ok_or_else(|| self.no_column_for(role))
    }

    /// Found by name it must be able to hold a JSON object; named by the flag, [`Plan::check_types`] says so.
    fn headers(&self) -> Result<Option<usize>, PlanError> {
        let found = self.role(Role::Headers)?;
        let by_name = self.setting(Role::Headers).is_none();
        Ok(found.filter(|&index| !by_name || self.columns.get(index).is_some_and(|column| column.kind.may_hold_json())))
    }

    fn topic_name(&self, name: Name<'_>) -> Result<usize, PlanError> {
        let name = match name {
            Name::Route => return self.needed(Role::Route),
            Name::ColumnOrRole(name) => name,
        };
        let role = Role::IN_TOPICS.iter().find(|(known, _)| *known == name).map(|(_, role)| *role);
        match (self.named(name), role) {
            (Some(index), _) => Ok(index),
            (None, Some(role)) => self.needed(role),
            (None, None) => self.flagged("--topic", name),
        }
    }

    /// Whether a table may lack this column, which a header, an envelope or the partition would be made of.
    fn may_lack(&self, name: &str) -> bool {
        self.mapping.connect.as_ref().is_some_and(|connect| connect.skip_missing) && self.named(name).is_none()
    }

    fn additional(&self, flag: &'static str, name: Option<&str>) -> Result<Option<usize>, PlanError> {
        self.optional(flag, name.filter(|name| !self.may_lack(name)))
    }

    fn pairs(&self, flag: &'static str, pairs: &[(String, String)]) -> Result<Vec<(String, usize)>, PlanError> {
        let wanted = pairs.iter().filter(|(_, column)| !self.may_lack(column));
        wanted.map(|(name, column)| Ok((name.clone(), self.flagged(flag, column)?))).collect()
    }

    #[cold]
    fn no_column_for(&self, role: Role) -> PlanError {
        let mut tried: Vec<&str> = role.names().to_vec();
        if role == Role::Route {
            match self.setting(Role::Type) {
                Some(name) => tried.extend(Some(name).filter(|name| !name.is_empty())),
                None => tried.extend(Role::Type.names()),
            }
        }
        PlanError::NoColumnForRole {
            table: self.table.to_owned(),
            role,
            nearest: self.nearest(&tried),
            tried: tried.into_iter().map(str::to_owned).collect(),
            present: self.present(),
        }
    }

    fn present(&self) -> Vec<String> {
        let names = self.columns.iter().map(|column| column.name.clone());
        names.filter(|name| self.is_captured(name)).collect()
    }

    /// The column whose name is likest to one of `names`, if one is like enough to be a slip.
    fn nearest(&self, names: &[&str]) -> Option<String> {
        const LIKE_ENOUGH: f64 = 0.85;
        let likeness = |column: &PlanColumn| {
            let lower = column.name.to_lowercase();
            names.iter().map(|name| strsim::jaro_winkler(&lower, &name.to_lowercase())).fold(0.0, f64::max)
        };
        let columns = self.columns.iter().filter(|column| self.is_captured(&column.name));
        let best = columns.map(|column| (likeness(column), column)).max_by(|a, b| a.0.total_cmp(&b.0))?;
        (best.0 >= LIKE_ENOUGH).then(|| best.1.name.clone())
    }
}

#[cfg(test)]
mod tests;

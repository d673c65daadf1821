//! [`TablePlan`]: the role of each column of a table.
//!
//! ```text
//!  Relation (or the catalog's names and types) + Mapping + TopicRule's names ──► TablePlan: indexes into a row
//! ```
//!
//! A plan is created once for each Relation message, so a row costs no look-up by name. Names are compared in the catalog's case. If a
//! flag names a column, no other name is tried; an empty name turns an optional role off. If a table lacks a column that it needs, the
//! error says which names were tried, which columns there are, and which flag helps. This file reads no rows.

mod error;

pub use error::{ColumnSetting, HiddenColumns, MissingColumn, PlanError};

use super::column_kind::{ColumnKind, Domains, binary_safe, type_name};
use super::connect::{ConnectPlan, NoPlan};
use crate::outbox::TablePatterns;
use crate::outbox::{Details, Mapping, SchemaId, Timestamp};
use crate::pgoutput::{Relation, RelationColumn};
use crate::route::{TopicInput, TopicRule, TopicSetting};
use std::fmt;

/// The roles of one table's columns. Every index is below the number of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePlan {
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
    /// The column of each of [`TopicRule::names`].
    pub(super) topic: Vec<usize>,
    /// The name and the column of each header.
    pub(super) extra_headers: Vec<(String, usize)>,
    /// The members beside the payload.
    pub(super) envelope: Vec<EnvelopeMember>,
    /// The plan for Debezium's form, if a setting asks for it.
    pub(super) connect: Option<Box<ConnectPlan>>,
}

/// A member of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnvelopeMember {
    pub(super) name: String,
    /// The name as a JSON string.
    pub(super) quoted_name: String,
    pub(super) column: usize,
}

/// The facts about a column that records need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlanColumn {
    pub(super) name: String,
    /// `pg_type.oid`. For a domain, that of the type below it.
    pub(super) type_id: u32,
    pub(super) kind: ColumnKind,
}

/// The role of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The event's id, which becomes the header `id`.
    Id,
    /// The record's key.
    Key,
    /// The record's value.
    Payload,
    /// The event's type, which becomes the header `eventType`.
    Type,
    /// The value from which the topic is made.
    Route,
    /// A JSON object of headers.
    Headers,
}

/// Names of columns that may contain the id. They are used only if a flag names them. A hint proposes such a column.
const ID_NAMES: [&str; 5] = ["uuid", "guid", "message_id", "messageid", "outbox_id"];

/// Words in the names of columns that have a kind of event. A hint proposes such a column.
const ROUTE_NAMES: [&str; 6] = ["type", "kind", "topic", "stream", "aggregate", "entity"];

impl Role {
    const ALL: [Self; 6] = [Self::Id, Self::Key, Self::Payload, Self::Type, Self::Route, Self::Headers];

    const IN_TOPICS: [(&'static str, Self); 4] =
        [("id", Self::Id), ("route", Self::Route), ("key", Self::Key), ("type", Self::Type)];

    /// The names that are tried, in order.
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

impl TablePlan {
    /// Finds each role's column. `check` may build the [`Relation`] from the catalog, since only names and types are used.
    ///
    /// # Errors
    /// The table lacks a column that is needed or that a setting names, or a column's type does not fit its role.
    pub(super) fn new(
        relation: &Relation,
        mapping: &Mapping,
        topic: &TopicRule,
        domains: &Domains,
    ) -> Result<Self, PlanError> {
        let table = format!("{}.{}", relation.namespace, relation.name);
        let columns = relation.columns.iter().map(|column| PlanColumn::new(column, domains)).collect();
        let plan = Self::resolve(table, columns, mapping, topic)?;
        plan.check_types(mapping)?;
        Ok(plan)
    }

    /// Finds each role's column, without a check of types.
    pub(super) fn resolve(
        table: String,
        columns: Vec<PlanColumn>,
        mapping: &Mapping,
        topic: &TopicRule,
    ) -> Result<Self, PlanError> {
        let captured = mapping.connect.as_ref().map(|connect| connect.captured());
        let find = Finder { table: &table, columns: &columns, mapping, captured: captured.as_ref() };
        let mut found = MissingColumns::default();
        let envelope = find.pairs("--envelope", &mapping.envelope, &mut found);
        let timestamp = match &mapping.timestamp {
            Timestamp::Send | Timestamp::Commit => None,
            Timestamp::Column(name) => found.take(find.flagged("--timestamp", name)),
        };
        let (id, key) = (found.take(find.needed(Role::Id)), found.optional(find.role(Role::Key)));
        let payload = found.take(find.needed(Role::Payload));
        let event_type = match mapping.cloudevents {
            Some(_) => found.take(find.needed(Role::Type)),
            None => found.optional(find.role(Role::Type)),
        };
        let headers = found.optional(find.headers());
        let partition = found.optional(find.additional("--partition-column", mapping.partition_column.as_deref()));
        let schema_id = mapping.schema_id.as_ref().and_then(SchemaId::column);
        let schema_id = found.optional(find.additional("--schema-id", schema_id));
        let names = topic.names();
        let topic = names.into_iter().filter_map(|name| found.take(find.topic_name(name))).collect();
        let extra_headers = find.pairs("--header", &mapping.headers, &mut found);
        let (Some(id), Some(payload), true) = (id, payload, found.lacks.is_empty()) else {
            return Err(find.lacking(found.lacks));
        };
        Ok(Self {
            id,
            key,
            payload,
            event_type,
            headers,
            partition,
            timestamp,
            schema_id,
            topic,
            extra_headers,
            envelope: envelope.into_iter().map(EnvelopeMember::new).collect(),
            connect: None,
            table,
            columns,
        })
    }

    /// Adds the plan for Debezium's form, if a setting asks for it.
    ///
    /// # Errors
    /// Debezium has no form for a column.
    pub(super) fn connected(
        mut self,
        relation: Option<&Relation>,
        mapping: &Mapping,
        details: &Details,
    ) -> Result<Self, PlanError> {
        let Some(connect) = &mapping.connect else { return Ok(self) };
        self.without_left_out(relation, connect, details);
        let no_plan = |NoPlan { index, why }| {
            let (table, column) = (self.table.clone(), self.column_name(index).to_owned());
            PlanError::NotAsDebezium { table, column, why }
        };
        let plan = ConnectPlan::new(&self, relation, mapping, connect, details).map_err(no_plan)?;
        self.connect = Some(Box::new(plan));
        Ok(self)
    }

    fn check_types(&self, mapping: &Mapping) -> Result<(), PlanError> {
        self.check_type(self.headers, Role::Headers.flag(), ColumnKind::may_hold_json, "json or jsonb")?;
        self.check_type(self.timestamp, "--timestamp", ColumnKind::may_hold_time, "timestamp, timestamptz or bigint")?;
        let integer = "smallint, integer or bigint";
        let schema_id = mapping.schema_id.as_ref().and(self.schema_id);
        self.check_type(schema_id, "--schema-id", ColumnKind::may_hold_integer, integer)?;
        let partition = mapping.partition_column.as_ref().and(self.partition);
        self.check_type(partition, "--partition-column", ColumnKind::may_hold_integer, integer)
    }

    fn check_type(
        &self,
        column: Option<usize>,
        flag: &'static str,
        may: impl Fn(ColumnKind) -> bool,
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

    /// The column of a role. `None`: no column has the role. For the route, see [`TablePlan::topic_columns`].
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

    /// The columns that the topic needs, in the order of [`TopicRule::names`].
    pub fn topic_columns(&self) -> impl Iterator<Item = &str> {
        self.topic.iter().map(|index| self.column_name(*index))
    }

    /// Each role with its column, for people. The columns that settings name come last.
    pub fn roles(&self) -> Vec<(String, String)> {
        let roles = [Role::Id, Role::Key, Role::Payload, Role::Type, Role::Headers];
        let found = roles.into_iter().filter_map(|role| Some((role.to_string(), self.column(role)?.to_owned())));
        let topic = self.topic_columns().map(|name| ("topic".to_owned(), name.to_owned()));
        let more = [("partition", self.partition), ("timestamp", self.timestamp), ("schema id", self.schema_id)];
        let more = more.into_iter().filter_map(|(name, index)| Some((name.to_owned(), index?)));
        let headers = self.extra_headers.iter().map(|(name, index)| (format!("header {name}"), *index));
        let envelope = self.envelope.iter().map(|member| (format!("envelope {}", member.name), member.column));
        let more = more.chain(headers).chain(envelope).map(|(name, index)| (name, self.column_name(index).to_owned()));
        found.chain(topic).chain(more).collect()
    }

    /// Whether walrelay understands the binary form of all used columns, so that the connection may ask for it.
    pub fn binary_safe(&self) -> bool {
        self.used().filter_map(|index| self.columns.get(index)).all(|column| binary_safe(column.type_id))
    }

    /// Whether a used column is a `bytea`.
    pub fn uses_bytea(&self) -> bool {
        self.used().filter_map(|index| self.columns.get(index)).any(|column| column.kind == ColumnKind::Bytea)
    }

    /// The columns that a record is made of. Some come more than once.
    fn used(&self) -> impl Iterator<Item = usize> {
        let optional = [self.key, self.event_type, self.headers, self.partition, self.timestamp, self.schema_id];
        [self.id, self.payload]
            .into_iter()
            .chain(optional.into_iter().flatten())
            .chain(self.topic.iter().copied())
            .chain(self.extra_headers.iter().map(|(_, index)| *index))
            .chain(self.envelope.iter().map(|member| member.column))
    }

    /// The column's name, for people.
    pub(super) fn column_name(&self, index: usize) -> &str {
        self.columns.get(index).map_or("?", |column| &column.name)
    }
}

/// The column of the id, even if other columns are missing.
pub(super) fn id_column(columns: &[PlanColumn], mapping: &Mapping) -> Option<usize> {
    Finder { table: "", columns, mapping, captured: None }.role(Role::Id).ok().flatten()
}

impl EnvelopeMember {
    fn new((name, column): (String, usize)) -> Self {
        Self { quoted_name: serde_json::Value::from(name.as_str()).to_string(), name, column }
    }
}

impl PlanColumn {
    fn new(column: &RelationColumn, domains: &Domains) -> Self {
        let type_id = domains.below(column.type_id);
        Self { name: column.name.clone(), type_id, kind: ColumnKind::of(type_id) }
    }
}

/// Collects the roles for which no column was found.
#[derive(Default)]
struct MissingColumns {
    /// Each once.
    lacks: Vec<MissingColumn>,
}

impl MissingColumns {
    fn take(&mut self, found: Result<usize, MissingColumn>) -> Option<usize> {
        self.optional(found.map(Some))
    }

    fn optional(&mut self, found: Result<Option<usize>, MissingColumn>) -> Option<usize> {
        found.unwrap_or_else(|lack| {
            if !self.lacks.contains(&lack) {
                self.lacks.push(lack);
            }
            None
        })
    }
}

/// Finds columns by name in one table.
struct Finder<'a> {
    table: &'a str,
    columns: &'a [PlanColumn],
    mapping: &'a Mapping,
    /// Only these columns count. `None`: all columns count.
    captured: Option<&'a TablePatterns>,
}

impl Finder<'_> {
    fn named(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name).filter(|_| self.is_captured(name))
    }

    fn is_captured(&self, name: &str) -> bool {
        self.captured.is_none_or(|captured| captured.capture_column(self.table, name))
    }

    fn flagged(&self, flag: &'static str, name: &str) -> Result<usize, MissingColumn> {
        self.valued(flag, name, || ColumnSetting::Name)
    }

    /// Finds the column of a setting whose value has more in it than the column's name.
    fn valued(
        &self,
        flag: &'static str,
        name: &str,
        setting: impl FnOnce() -> ColumnSetting,
    ) -> Result<usize, MissingColumn> {
        let lack =
            || MissingColumn::Named { flag, column: name.to_owned(), meant: self.nearest(&[name]), setting: setting() };
        self.named(name).ok_or_else(lack)
    }

    fn optional(&self, flag: &'static str, name: Option<&str>) -> Result<Option<usize>, MissingColumn> {
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

    fn role(&self, role: Role) -> Result<Option<usize>, MissingColumn> {
        match (self.setting(role), role) {
            (Some(name), _) => self.optional(role.flag(), Some(name)),
            (None, Role::Route) => self.tried(role).map_or_else(|| self.role(Role::Type), |index| Ok(Some(index))),
            (None, _) => Ok(self.tried(role)),
        }
    }

    fn tried(&self, role: Role) -> Option<usize> {
        role.names().iter().find_map(|name| self.named(name))
    }

    fn needed(&self, role: Role) -> Result<usize, MissingColumn> {
        self.role(role)?.ok_or_else(|| self.no_column_for(role))
    }

    /// Finds the headers column. If it is found by its name, it must be able to contain a JSON object. If a flag names it,
    /// [`TablePlan::check_types`] checks that.
    fn headers(&self) -> Result<Option<usize>, MissingColumn> {
        let found = self.role(Role::Headers)?;
        let by_name = self.setting(Role::Headers).is_none();
        Ok(found.filter(|&index| !by_name || self.columns.get(index).is_some_and(|column| column.kind.may_hold_json())))
    }

    fn topic_name(&self, name: TopicInput<'_>) -> Result<usize, MissingColumn> {
        let name = match name {
            TopicInput::Route => return self.needed(Role::Route),
            TopicInput::ColumnOrRole(name) => name,
        };
        let role = Role::IN_TOPICS.iter().find(|(known, _)| *known == name).map(|(_, role)| *role);
        match (self.named(name), role) {
            (Some(index), _) => Ok(index),
            (None, Some(role)) => self.needed(role),
            (None, None) => self.valued("--topic", name, || self.topic_setting()),
        }
    }

    fn topic_setting(&self) -> ColumnSetting {
        match &self.mapping.topic {
            TopicSetting::Template(template) => ColumnSetting::Template(template.clone()),
            TopicSetting::Regex { .. } => ColumnSetting::Name,
        }
    }

    /// Whether a table may lack this column, which a header, an envelope or the partition needs.
    fn may_lack(&self, name: &str) -> bool {
        self.mapping.connect.as_ref().is_some_and(|connect| connect.skips_missing()) && self.named(name).is_none()
    }

    fn additional(&self, flag: &'static str, name: Option<&str>) -> Result<Option<usize>, MissingColumn> {
        self.optional(flag, name.filter(|name| !self.may_lack(name)))
    }

    fn pairs(
        &self,
        flag: &'static str,
        pairs: &[(String, String)],
        found: &mut MissingColumns,
    ) -> Vec<(String, usize)> {
        let wanted = pairs.iter().filter(|(_, column)| !self.may_lack(column));
        let pair = |(name, column): &(String, String)| {
            let setting = || ColumnSetting::List { name: name.clone(), list: self.list_of(flag, pairs) };
            let index = found.take(self.valued(flag, column, setting))?;
            Some((name.clone(), index))
        };
        wanted.filter_map(pair).collect()
    }

    /// The values of a setting that is a list, in order.
    #[cold]
    fn list_of(&self, flag: &str, pairs: &[(String, String)]) -> Vec<String> {
        let mut list: Vec<String> = pairs.iter().map(|(name, column)| format!("{name}={column}")).collect();
        if flag == "--header" {
            for (earlier, constant) in self.mapping.constants.iter().enumerate() {
                let at = (constant.behind + earlier).min(list.len());
                list.insert(at, format!("{}=={}", constant.name, constant.value));
            }
        }
        list
    }

    #[cold]
    fn lacking(&self, lacks: Vec<MissingColumn>) -> PlanError {
        PlanError::Lacks { table: self.table.to_owned(), lacks, present: self.present(), cause: None }
    }

    #[cold]
    fn no_column_for(&self, role: Role) -> MissingColumn {
        let mut tried: Vec<&str> = role.names().to_vec();
        if role == Role::Route {
            match self.setting(Role::Type) {
                Some(name) => tried.extend(Some(name).filter(|name| !name.is_empty())),
                None => tried.extend(Role::Type.names()),
            }
        }
        let likely = self.nearest(&tried).or_else(|| self.only_one_for(role));
        let topic = if role == Role::Route { self.topic_without_route() } else { None };
        MissingColumn::Role { role, tried: tried.into_iter().map(str::to_owned).collect(), likely, topic }
    }

    /// The topic's template with the table's name instead of the route, so that all of its rows go to one topic.
    fn topic_without_route(&self) -> Option<String> {
        let TopicSetting::Template(template) = &self.mapping.topic else { return None };
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
        let name: String = self.table.rsplit('.').next()?.chars().filter(is_plain).collect();
        let (before, after) = template.split_once("{route")?;
        Some(format!("{before}{name}{}", after.split_once('}')?.1))
    }

    /// The column without a role whose type or name fits `role`, if there is exactly one.
    fn only_one_for(&self, role: Role) -> Option<String> {
        let could_be = |column: &&PlanColumn| match role {
            Role::Id => column.kind == ColumnKind::Uuid || ID_NAMES.contains(&column.name.as_str()),
            Role::Payload => matches!(column.kind, ColumnKind::Json | ColumnKind::Jsonb | ColumnKind::Bytea),
            Role::Route | Role::Type => {
                column.kind == ColumnKind::Text && ROUTE_NAMES.iter().any(|part| column.name.contains(part))
            }
            Role::Key | Role::Headers => false,
        };
        let free = self.columns.iter().filter(|column| self.is_captured(&column.name) && !self.has_role(&column.name));
        let mut fitting = free.filter(could_be);
        let first = fitting.next()?;
        fitting.next().is_none().then(|| first.name.clone())
    }

    fn has_role(&self, name: &str) -> bool {
        Role::ALL.into_iter().any(|role| {
            let index = self.role(role).ok().flatten();
            index.and_then(|index| self.columns.get(index)).is_some_and(|column| column.name == name)
        })
    }

    fn present(&self) -> Vec<String> {
        let names = self.columns.iter().map(|column| column.name.clone());
        names.filter(|name| self.is_captured(name)).collect()
    }

    /// The column whose name is nearest to one of `names`, if it may be a typing error.
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

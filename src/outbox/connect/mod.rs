//! Records as Debezium's outbox router and Kafka Connect's converters wrote them.
//!
//! ```text
//!  Relation + catalogue ──types──► a Type per column ──Encoder::new──► ConnectPlan, beside the table's Plan
//!  text of a column ──Type::read──► Value ──Encoder──► bytes of key, header, value
//! ```
//!
//! Everything that depends on a type, a converter or a mode is decided once per Relation message; a column whose bytes are
//! the text that Postgres sends ([`Encoder::AsIs`]) costs no more than without all this.
//! Deliberately not here: topics, partitions, timestamps, which are the same either way.
//! Specification: Debezium's `EventRouterDelegate`, Kafka Connect's converters.

mod array;
mod expand;
mod number;
mod row;
mod schema;
mod temporal;
mod types;
mod value;

pub use types::TypeDetail;

use super::plan::Plan;
use crate::config::connect::{BinaryMode, Connect, Converter, Expand, Json};
use crate::config::mapping::Mapping;
use crate::pgoutput::Relation;
use std::collections::HashMap;
use types::{NoType, Reader, Type};

/// What the catalogue says of a column, beyond what a Relation message does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColumnDetail {
    /// `NOT NULL`.
    pub not_null: bool,
    /// It has a `DEFAULT`.
    pub has_default: bool,
}

/// What the catalogue says of published tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// Types that are not built in, by oid.
    pub types: HashMap<u32, TypeDetail>,
    /// Columns by schema, table and name.
    pub columns: HashMap<(String, String, String), ColumnDetail>,
}

/// Why a table's rows cannot be written as Debezium does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoPlan {
    /// A column of a type that the catalogue was not asked for yet.
    Stale { index: usize },
    /// A column, and why not.
    Column { index: usize, why: &'static str },
}

/// How one table's columns become bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectPlan {
    id: Encoder,
    key: Encoder,
    /// As the plan's `extra_headers`.
    headers: Vec<Encoder>,
    value: ValuePlan,
    /// An empty text becomes a tombstone; Java's byte buffers are never empty to it.
    blank_counts: bool,
}

/// How the value is made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ValuePlan {
    /// The payload alone.
    Payload { encoder: Encoder, expand: Option<Expand> },
    /// `{"payload":…,"name":…}`.
    Json { members: Vec<(String, Encoder)>, expand: Option<Expand>, schema: Option<EnvelopeSchema> },
    /// `Struct{payload=…,name=…}`.
    Java { members: Vec<(String, Encoder)> },
}

/// An envelope's schema but for its name, which holds the route.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EnvelopeSchema {
    /// Up to and with the quote before the name, and the name up to the route.
    before_route: String,
    route: usize,
    /// The column of the version.
    version: Option<usize>,
}

/// How a column becomes bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Encoder {
    /// There is no such column: a null.
    Absent {
        null: Null,
    },
    /// The text that Postgres sends, a bytea's bytes.
    AsIs,
    Write {
        reader: Reader,
        way: Way,
        null: Null,
    },
}

/// Ways to write a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    Java,
    Simple,
    Json(Json),
    /// With `{"schema":…,"payload":` before it and `}` behind it.
    JsonWithSchema {
        json: Json,
        before: String,
    },
}

/// What a null is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Null {
    /// No bytes at all.
    Nothing,
    /// A text.
    Text(String),
}

const NO_BYTES: &str = "bytes, of which this converter writes no text that can be had here: set binary.handling.mode, or a converter for bytes";
const BYTES_ALONE: &str = "no bytea, and the converter takes bytes alone";
const JAVA_DATE: &str =
    "a date or time, and with time.precision.mode=connect its text depends on the zone of Java's machine";
const VARIABLE: &str = "a numeric without a scale, for which this converter writes where it lies in Java's memory: set decimal.handling.mode";
const DEFAULTED: &str = "a column with a DEFAULT, which the schema in each record would name; without schemas (schemas.enable=false) it does not count";

impl Encoder {
    fn new(kind: &Type, converter: &Converter, optional: bool) -> Result<Self, &'static str> {
        let write = |way| Ok(Self::Write { reader: kind.reader.clone(), way, null: Null::Nothing });
        let is_bytes = matches!(kind.reader, Reader::Bytes(BinaryMode::Bytes));
        match converter {
            Converter::Bytes { .. } if is_bytes => Ok(Self::AsIs),
            Converter::Bytes { other: Some(other) } => Self::new(kind, other, optional),
            Converter::Bytes { other: None } => Err(BYTES_ALONE),
            Converter::Text | Converter::Simple if is_java_date(kind) => Err(JAVA_DATE),
            Converter::Text | Converter::Simple if is_its_text(&kind.reader) => Ok(Self::AsIs),
            Converter::Text if is_bytes => Err(NO_BYTES),
            Converter::Text if kind.schema.kind == "struct" => Err(VARIABLE),
            Converter::Text => write(Way::Java),
            Converter::Simple => write(Way::Simple),
            Converter::Json(json) => Ok(Self::json(kind, *json, optional)),
        }
    }

    fn json(kind: &Type, json: Json, optional: bool) -> Self {
        let reader = kind.reader.clone();
        if !json.schemas {
            return Self::Write { reader, way: Way::Json(json), null: Null::Text("null".to_owned()) };
        }
        let before = format!("{{\"schema\":{},\"payload\":", schema::json(&kind.schema, optional, None));
        let null = Null::Text(format!("{before}null}}"));
        Self::Write { reader, way: Way::JsonWithSchema { json, before }, null }
    }

    /// As a member of an envelope, whose schema is the envelope's.
    fn member(kind: &Type, json: Json) -> Self {
        Self::json(kind, Json { schemas: false, ..json }, true)
    }
}

/// Booleans are words already where text is asked for as words.
const fn is_its_text(reader: &Reader) -> bool {
    reader.is_text() || matches!(reader, Reader::Integer | Reader::Boolean)
}

fn is_java_date(kind: &Type) -> bool {
    let name = kind.schema.name.unwrap_or_default();
    name.starts_with("org.apache.kafka.connect.data.") && !name.ends_with(".Decimal")
}

/// What a plan is made from.
struct Planner<'a> {
    plan: &'a Plan,
    relation: Option<&'a Relation>,
    connect: &'a Connect,
    details: &'a Details,
}

impl ConnectPlan {
    /// `relation`: `None` for a logical message, whose columns are all texts.
    pub(super) fn new(
        plan: &Plan,
        relation: Option<&Relation>,
        mapping: &Mapping,
        connect: &Connect,
        details: &Details,
    ) -> Result<Self, NoPlan> {
        let planner = Planner { plan, relation, connect, details };
        let absent = if matches!(connect.key, Converter::Json(_)) { "null" } else { "" };
        let null = if absent.is_empty() { Null::Nothing } else { Null::Text(absent.to_owned()) };
        let payload = planner.kind(plan.payload)?;
        Ok(Self {
            id: planner.encoder(plan.id, &connect.header)?,
            key: plan.key.map_or(Ok(Encoder::Absent { null }), |index| planner.encoder(index, &connect.key))?,
            headers: plan
                .extra_headers
                .iter()
                .map(|(_, index)| planner.encoder(*index, &connect.header))
                .collect::<Result<_, _>>()?,
            value: planner.value(mapping)?,
            blank_counts: !matches!(payload.reader, Reader::Bytes(BinaryMode::Bytes)),
        })
    }
}

impl Planner<'_> {
    fn kind(&self, index: usize) -> Result<Type, NoPlan> {
        let column = self.relation.and_then(|relation| relation.columns.get(index));
        let Some(column) = column else { return Ok(Type::plain_text()) };
        let kind = Type::of(column.type_id, column.type_modifier, self.connect.modes, &self.details.types);
        kind.map_err(|no| match no {
            NoType::Unknown => NoPlan::Stale { index },
            NoType::Unsupported(why) => NoPlan::Column { index, why },
        })
    }

    fn detail(&self, index: usize) -> ColumnDetail {
        let name = self.plan.column_name(index).to_owned();
        let key = self.relation.map(|relation| (relation.namespace.clone(), relation.name.clone(), name));
        key.and_then(|key| self.details.columns.get(&key)).copied().unwrap_or_default()
    }

    fn encoder(&self, index: usize, converter: &Converter) -> Result<Encoder, NoPlan> {
        let kind = self.kind(index)?;
        if converter.writes_schemas() {
            self.check_default(index, &kind)?;
        }
        let optional = !self.detail(index).not_null;
        Encoder::new(&kind, converter, optional).map_err(|why| NoPlan::Column { index, why })
    }

    /// A default is part of a schema. Debezium reads none of uuid.
    fn check_default(&self, index: usize, kind: &Type) -> Result<(), NoPlan> {
        let read = self.detail(index).has_default && kind.schema.name != Some("io.debezium.data.Uuid");
        if read { Err(NoPlan::Column { index, why: DEFAULTED }) } else { Ok(()) }
    }

    fn value(&self, mapping: &Mapping) -> Result<ValuePlan, NoPlan> {
        let (payload, expand) = (self.plan.payload, self.connect.expand);
        if self.plan.envelope.is_empty() {
            let encoder = self.encoder(payload, &self.connect.value)?;
            return Ok(ValuePlan::Payload { encoder, expand: expand.filter(|_| self.is_text(payload)) });
        }
        self.envelope(&self.connect.value, mapping)
    }

    fn is_text(&self, index: usize) -> bool {
        self.kind(index).is_ok_and(|kind| kind.schema.kind == "string")
    }

    fn envelope(&self, converter: &Converter, mapping: &Mapping) -> Result<ValuePlan, NoPlan> {
        let payload = self.plan.payload;
        match converter {
            Converter::Bytes { other: Some(other) } => self.envelope(other, mapping),
            Converter::Bytes { other: None } | Converter::Simple => {
                Err(NoPlan::Column { index: payload, why: BYTES_ALONE })
            }
            Converter::Text => {
                let member =
                    |(name, index): (&str, usize)| Ok((name.to_owned(), self.encoder(index, &Converter::Text)?));
                let members = self.members().into_iter().map(member).collect::<Result<_, NoPlan>>()?;
                Ok(ValuePlan::Java { members })
            }
            Converter::Json(json) => {
                let member = |(name, index): (&str, usize)| {
                    Ok((format!("{}:", schema::quoted(name)), Encoder::member(&self.kind(index)?, *json)))
                };
                let members = self.members().into_iter().map(member).collect::<Result<_, NoPlan>>()?;
                let schema = json.schemas.then(|| self.envelope_schema(mapping)).transpose()?;
                let expand = self.connect.expand.filter(|_| self.is_text(payload));
                Ok(ValuePlan::Json { members, expand, schema })
            }
        }
    }

    /// The payload first, then each in the order given.
    fn members(&self) -> Vec<(&str, usize)> {
        let further = self.plan.envelope_names.iter().map(String::as_str).zip(&self.plan.envelope);
        std::iter::once(("payload", self.plan.payload))
            .chain(further.map(|(name, (_, index))| (name, *index)))
            .collect()
    }

    fn envelope_schema(&self, mapping: &Mapping) -> Result<EnvelopeSchema, NoPlan> {
        let mut fields = Vec::new();
        for (name, index) in self.members() {
            let kind = self.kind(index)?;
            self.check_default(index, &kind)?;
            fields.push(schema::json(&kind.schema, !self.detail(index).not_null, Some(name)));
        }
        let named = |name: &Option<String>| {
            name.as_ref().and_then(|name| self.plan.columns.iter().position(|column| column.name == *name))
        };
        let prefix = &self.connect.schemas.prefix;
        let table = &self.plan.table;
        let name = schema::quoted(&format!("{prefix}.{table}."));
        let name = name.strip_suffix('"').unwrap_or(&name);
        Ok(EnvelopeSchema {
            before_route: format!(
                "{{\"schema\":{{\"type\":\"struct\",\"fields\":[{}],\"optional\":false,\"name\":{name}",
                fields.join(",")
            ),
            route: named(&mapping.route_column).unwrap_or(self.plan.payload),
            version: named(&self.connect.schemas.version_column),
        })
    }
}

//! Records as Debezium's outbox router and Kafka Connect's converters wrote them.
//!
//! ```text
//!  Relation + catalogue ──types──► a Type per column ──Encoder::new──► ConnectPlan, beside the table's Plan
//!  text of a column ──Type::read──► Value ──Encoder──► bytes of key, header, value
//! ```
//!
//! Everything that depends on a type, a converter or a mode is decided once per Relation message; a column whose bytes are
//! the text that Postgres sends (`Encoder::AsIs`) costs no more than without all this.
//! Deliberately not here: topics, partitions, timestamps, which are the same either way.
//! Specification: Debezium's `EventRouterDelegate`, Kafka Connect's converters.

mod array;
mod default;
mod expand;
mod number;
mod row;
mod schema;
mod settings;
mod temporal;
mod types;
mod value;

pub use settings::{
    BinaryMode, Connect, Converter, DecimalMode, Expand, IntervalMode, Json, Modes, Schemas, TimePrecision,
};
pub use types::TypeDetail;

use super::mapping::Mapping;
use super::plan::Plan;
use crate::pgoutput::Relation;
use std::collections::HashMap;
use types::{NoType, Reader, Type};

/// What the catalogue says of a column, beyond what a Relation message does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnDetail {
    /// `NOT NULL`.
    pub not_null: bool,
    /// Its `DEFAULT`, as `pg_get_expr` writes it.
    pub default: Option<String>,
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
    /// What stands in the place of a payload that is null, in Postgres' text.
    payload_default: Option<String>,
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
    AsIs {
        null: Null,
    },
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

/// A column as converters see it.
struct Column {
    kind: Type,
    optional: bool,
    /// The value that stands for a null, in Postgres' text.
    default: Option<String>,
}

impl Encoder {
    fn new(column: &Column, converter: &Converter) -> Result<Self, &'static str> {
        let kind = &column.kind;
        let is_bytes = matches!(kind.reader, Reader::Bytes(BinaryMode::Bytes));
        match converter {
            Converter::Bytes { .. } if is_bytes => Ok(Self::AsIs { null: Null::Nothing }),
            Converter::Bytes { other: Some(other) } => Self::new(column, other),
            Converter::Bytes { other: None } => Err(BYTES_ALONE),
            Converter::Text | Converter::Simple if is_java_date(kind) => Err(JAVA_DATE),
            Converter::Text if is_bytes => Err(NO_BYTES),
            Converter::Text if kind.schema.kind == "struct" => Err(VARIABLE),
            Converter::Text => Ok(Self::text(column, Way::Java)),
            Converter::Simple => Ok(Self::text(column, Way::Simple)),
            Converter::Json(json) => Ok(Self::json(column, *json)),
        }
    }

    fn text(column: &Column, way: Way) -> Self {
        let null = Null::of(column, &way).unwrap_or(Null::Nothing);
        if is_its_text(&column.kind.reader) {
            return Self::AsIs { null };
        }
        Self::Write { reader: column.kind.reader.clone(), way, null }
    }

    fn json(column: &Column, json: Json) -> Self {
        let reader = column.kind.reader.clone();
        if !json.schemas {
            let way = Way::Json(json);
            let null = Null::of(column, &way).unwrap_or_else(|| Null::Text("null".to_owned()));
            return Self::Write { reader, way, null };
        }
        let before = format!("{{\"schema\":{},\"payload\":", column.schema(json, None));
        let otherwise = Null::Text(format!("{before}null}}"));
        let way = Way::JsonWithSchema { json, before };
        let null = Null::of(column, &way).unwrap_or(otherwise);
        Self::Write { reader, way, null }
    }

    /// As a member of an envelope, whose schema is the envelope's.
    fn member(column: &Column, json: Json) -> Self {
        Self::json(column, Json { schemas: false, ..json })
    }
}

impl Null {
    /// The default's bytes, where there is one.
    fn of(column: &Column, way: &Way) -> Option<Self> {
        let mut out = Vec::new();
        row::write(&column.kind.reader, way, column.default.as_ref()?.as_bytes(), &mut out).ok()?;
        String::from_utf8(out).ok().map(Self::Text)
    }
}

impl Column {
    /// Its schema's JSON; `field`: its name in a structure.
    fn schema(&self, json: Json, field: Option<&str>) -> String {
        let way = Way::Json(json);
        let default = Null::of(self, &way).and_then(|default| match default {
            Null::Text(default) => Some(default),
            Null::Nothing => None,
        });
        schema::json(&self.kind.schema, self.optional, default.as_deref(), field)
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
        let payload = planner.column(plan.payload)?;
        Ok(Self {
            id: planner.encoder(plan.id, &connect.header)?,
            key: plan.key.map_or(Ok(Encoder::Absent { null }), |index| planner.encoder(index, &connect.key))?,
            headers: plan
                .extra_headers
                .iter()
                .map(|(_, index)| planner.encoder(*index, &connect.header))
                .collect::<Result<_, _>>()?,
            value: planner.value(mapping)?,
            blank_counts: !matches!(payload.kind.reader, Reader::Bytes(BinaryMode::Bytes)),
            payload_default: payload.default,
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

    fn detail(&self, index: usize) -> Option<&ColumnDetail> {
        let name = self.plan.column_name(index).to_owned();
        let relation = self.relation?;
        self.details.columns.get(&(relation.namespace.clone(), relation.name.clone(), name))
    }

    fn column(&self, index: usize) -> Result<Column, NoPlan> {
        let kind = self.kind(index)?;
        let detail = self.detail(index);
        let type_id = self.relation.and_then(|relation| relation.columns.get(index)).map_or(0, |column| column.type_id);
        let scale = if let Reader::Decimal { scale, .. } = kind.reader { scale } else { None };
        let is_enum = kind.schema.name == Some(types::ENUM);
        let expression = detail.and_then(|detail| detail.default.as_deref());
        let default = expression.and_then(|expression| default::text(expression, type_id, is_enum, scale));
        Ok(Column { kind, optional: !detail.is_some_and(|detail| detail.not_null), default })
    }

    fn encoder(&self, index: usize, converter: &Converter) -> Result<Encoder, NoPlan> {
        Encoder::new(&self.column(index)?, converter).map_err(|why| NoPlan::Column { index, why })
    }

    fn value(&self, mapping: &Mapping) -> Result<ValuePlan, NoPlan> {
        let (payload, expand) = (self.plan.payload, self.connect.expand);
        // An envelope stays one where the table lacks all of its columns.
        if mapping.envelope.is_empty() {
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
                    Ok((format!("{}:", schema::quoted(name)), Encoder::member(&self.column(index)?, *json)))
                };
                let members = self.members().into_iter().map(member).collect::<Result<_, NoPlan>>()?;
                let schema = json.schemas.then(|| self.envelope_schema(mapping, *json)).transpose()?;
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

    fn envelope_schema(&self, mapping: &Mapping, json: Json) -> Result<EnvelopeSchema, NoPlan> {
        let mut fields = Vec::new();
        for (name, index) in self.members() {
            fields.push(self.column(index)?.schema(json, Some(name)));
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

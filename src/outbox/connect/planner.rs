//! How a table's columns become bytes, decided once for each Relation message.
//!
//! In: a table's plan, the catalog's details, the settings. Out: a [`ConnectPlan`], or the column of which Debezium writes what cannot be
//! written here. Reads no row.

use super::super::mapping::Mapping;
use super::super::plan::TablePlan;
use super::envelope::{EnvelopeField, EnvelopeSchema};
use super::reader::TypeReader;
use super::row;
use super::settings::{BinaryMode, Connect, Converter, DecimalMode, Json};
use super::types::{NoType, Schema, Type};
use super::value::ConnectValue;
use super::{ConnectPlan, Encoder, NoPlan, ValueForm, ValuePlan, default, schema};
use crate::outbox::{ColumnDetail, Details};
use crate::pgoutput::Relation;

const ANOTHER_TIME: &str =
    "of a type with infinity or 24:00, and that is its default, of which Debezium makes another time";
const UNKNOWN_TYPE: &str = "of a type that the catalogue does not know (any more)";
const LEFT_OUT: &str = "of a type that Debezium leaves out of its records, and so its task ends where the router looks for the column (additional columns: table.field.additional.missing=ignore skips it)";
const NO_BYTES: &str = "bytes, of which this converter writes no text that can be had here: set binary.handling.mode, or a converter for bytes";
const BYTES_ALONE: &str = "no bytea, and the converter takes bytes alone";
const JAVA_DATE: &str =
    "a date or time, and with time.precision.mode=connect its text depends on the zone of Java's machine";
const NO_TEXT: &str = "of a type for which this converter writes where its bytes lie in Java's memory (of numerics without a scale: set decimal.handling.mode)";
const OTHER_BYTES: &str = "bytes, but no bytea, which this converter does not take";

/// A column, as converters get it.
struct ConnectColumn {
    kind: Type,
    optional: bool,
    /// The value that replaces a null, in Postgres' text form.
    default: Option<String>,
    /// Whether a value that cannot be converted ends the task.
    must_convert: bool,
}

impl Encoder {
    fn new(column: &ConnectColumn, converter: &Converter) -> Result<Self, &'static str> {
        let kind = &column.kind;
        let is_bytes = matches!(kind.reader, TypeReader::Bytes(BinaryMode::Bytes));
        match converter {
            Converter::Bytes { .. } if is_bytes => Ok(Self::AsIs { null: None }),
            Converter::Bytes { .. } if kind.schema.kind == "bytes" => Err(OTHER_BYTES),
            Converter::Bytes { other: Some(other) } => Self::new(column, other),
            Converter::Bytes { other: None } => Err(BYTES_ALONE),
            Converter::Text | Converter::Simple if is_java_date(&kind.schema) => Err(JAVA_DATE),
            Converter::Text if is_bytes => Err(NO_BYTES),
            Converter::Text if kind.schema.has_no_java_text() => Err(NO_TEXT),
            Converter::Text => Ok(Self::text(column, ValueForm::Java)),
            Converter::Simple => Ok(Self::text(column, ValueForm::Simple)),
            Converter::Json(json) => Ok(Self::json(column, *json)),
        }
    }

    fn text(column: &ConnectColumn, form: ValueForm) -> Self {
        let null = column.default_text(&form);
        if is_its_text(&column.kind.reader) {
            return Self::AsIs { null };
        }
        Self::Write { reader: column.kind.reader.clone(), form, null, must_convert: column.must_convert }
    }

    fn json(column: &ConnectColumn, json: Json) -> Self {
        let reader = column.kind.reader.clone();
        let (form, otherwise) = if json.schemas {
            let before = format!("{{\"schema\":{},\"payload\":", column.schema(json, None));
            let null = format!("{before}null}}");
            (ValueForm::JsonWithSchema { json, before }, null)
        } else {
            (ValueForm::Json(json), "null".to_owned())
        };
        let null = column.default_text(&form).or(Some(otherwise));
        Self::Write { reader, form, null, must_convert: column.must_convert || column.has_no_null() }
    }

    /// The encoder of a member of an envelope. The envelope has the member's schema.
    fn member(column: &ConnectColumn, json: Json) -> Self {
        Self::json(column, Json { schemas: false, ..json })
    }
}

impl ConnectColumn {
    /// The default as the converter writes it. It replaces a null.
    fn default_text(&self, form: &ValueForm) -> Option<String> {
        let mut out = Vec::new();
        let is_written = row::write(&self.kind.reader, form, self.default.as_ref()?.as_bytes(), &mut out).ok()?;
        String::from_utf8(out).ok().filter(|_| is_written)
    }

    /// Whether a null is an error if there are schemas.
    fn has_no_null(&self) -> bool {
        !self.optional && self.default.is_none()
    }

    /// The column's schema in JSON. `field`: its name in a structure.
    fn schema(&self, json: Json, field: Option<&str>) -> String {
        let default = self.default_text(&ValueForm::Json(json));
        schema::json(&self.kind.schema, self.optional, default.as_deref(), field)
    }
}

/// Whether the text that Postgres sends is the value's text. A boolean is not: its text is a word.
const fn is_its_text(reader: &TypeReader) -> bool {
    reader.is_text() || matches!(reader, TypeReader::Integer | TypeReader::Boolean)
}

fn is_java_date(schema: &Schema) -> bool {
    let name = schema.name.unwrap_or_default();
    let is_one = name.starts_with("org.apache.kafka.connect.data.") && !name.ends_with(".Decimal");
    is_one || schema.items.as_ref().is_some_and(|items| is_java_date(items))
}

/// The inputs of a plan.
struct Planner<'a> {
    plan: &'a TablePlan,
    relation: Option<&'a Relation>,
    connect: &'a Connect,
    details: &'a Details,
}

impl TablePlan {
    /// Removes the extra columns that Debezium leaves out, if the router skips missing ones.
    pub(in crate::outbox) fn without_left_out(
        &mut self,
        relation: Option<&Relation>,
        connect: &Connect,
        details: &Details,
    ) {
        let Some(relation) = relation.filter(|_| connect.skip_missing) else { return };
        let is_left_out = |index: usize| {
            let column = relation.columns.get(index);
            let kind =
                column.map(|column| Type::of(column.type_id, column.type_modifier, connect.modes, &details.types));
            kind == Some(Err(NoType::LeftOut))
        };
        self.extra_headers.retain(|(_, index)| !is_left_out(*index));
        self.envelope.retain(|member| !is_left_out(member.column));
    }
}

impl ConnectPlan {
    /// Creates the plan of a table. `relation` is `None` for a logical message, whose columns are all texts.
    pub(in crate::outbox) fn new(
        plan: &TablePlan,
        relation: Option<&Relation>,
        mapping: &Mapping,
        connect: &Connect,
        details: &Details,
    ) -> Result<Self, NoPlan> {
        let planner = Planner { plan, relation, connect, details };
        let payload = planner.column(plan.payload)?;
        let is_bytes = payload.kind.reader == TypeReader::Bytes(BinaryMode::Bytes);
        let is_text = payload.kind.schema.kind == "string";
        Ok(Self {
            id: planner.encoder(plan.id, &connect.header)?,
            key: plan.key.map(|index| planner.encoder(index, &connect.key)).transpose()?,
            absent_key: matches!(connect.key, Converter::Json(_)).then(|| "null".to_owned()),
            headers: plan
                .extra_headers
                .iter()
                .map(|(_, index)| planner.encoder(*index, &connect.header))
                .collect::<Result<_, _>>()?,
            value: planner.value(mapping)?,
            expand: connect.expand.filter(|_| is_text),
            blank_counts: !is_bytes,
            payload_default: payload.default,
            payload_is_text: is_text,
            payload_reader: Some(payload.kind.reader).filter(|reader| !is_bytes && !is_its_text(reader)),
        })
    }
}

impl Planner<'_> {
    fn kind(&self, index: usize) -> Result<Type, NoPlan> {
        let column = self.relation.and_then(|relation| relation.columns.get(index));
        let Some(column) = column else { return Ok(Type::plain_text()) };
        let kind = Type::of(column.type_id, column.type_modifier, self.connect.modes, &self.details.types);
        kind.map_err(|no| match no {
            NoType::Unknown => NoPlan { index, why: UNKNOWN_TYPE },
            NoType::LeftOut => NoPlan { index, why: LEFT_OUT },
            NoType::Unsupported(why) => NoPlan { index, why },
        })
    }

    fn detail(&self, index: usize) -> Option<&ColumnDetail> {
        let name = self.plan.column_name(index).to_owned();
        let relation = self.relation?;
        self.details.columns.get(&(relation.namespace.clone(), relation.name.clone(), name))
    }

    fn column(&self, index: usize) -> Result<ConnectColumn, NoPlan> {
        let kind = self.kind(index)?;
        let detail = self.detail(index);
        let type_id = self.relation.and_then(|relation| relation.columns.get(index)).map_or(0, |column| column.type_id);
        let scale = if let TypeReader::Decimal { scale, .. } = kind.reader { scale } else { None };
        let its = self.details.types.get(&type_id).filter(|detail| detail.labels.is_some());
        let any_scale =
            matches!(kind.reader, TypeReader::Decimal { mode: DecimalMode::Double | DecimalMode::Text, .. });
        let column =
            default::DefaultColumn { type_id, enum_name: its.map(|detail| detail.name.as_str()), scale, any_scale };
        let expression = detail.and_then(|detail| detail.default.as_deref());
        let default = expression.and_then(|expression| default::text(expression, column));
        if default.as_deref().is_some_and(|text| default::is_another_time(type_id, text)) {
            return Err(NoPlan { index, why: ANOTHER_TIME });
        }
        let default =
            default.filter(|text| kind.reader.read(text.as_bytes()).is_some_and(|read| read != ConnectValue::Nothing));
        let optional = !detail.is_some_and(|detail| detail.not_null);
        Ok(ConnectColumn { kind, optional, default, must_convert: self.connect.fail_on_conversion })
    }

    fn encoder(&self, index: usize, converter: &Converter) -> Result<Encoder, NoPlan> {
        Encoder::new(&self.column(index)?, converter).map_err(|why| NoPlan { index, why })
    }

    fn value(&self, mapping: &Mapping) -> Result<ValuePlan, NoPlan> {
        // A value stays an envelope even if the table has none of its other columns.
        if mapping.envelope.is_empty() {
            return self.encoder(self.plan.payload, &self.connect.value).map(ValuePlan::Payload);
        }
        self.envelope(&self.connect.value, mapping)
    }

    fn envelope(&self, converter: &Converter, mapping: &Mapping) -> Result<ValuePlan, NoPlan> {
        match converter {
            Converter::Bytes { other: Some(other) } => self.envelope(other, mapping),
            Converter::Bytes { other: None } | Converter::Simple => {
                Err(NoPlan { index: self.plan.payload, why: BYTES_ALONE })
            }
            Converter::Text => {
                let member = |(name, index): (&str, usize)| {
                    let column = self.column(index)?;
                    let column = ConnectColumn { must_convert: column.must_convert || column.has_no_null(), ..column };
                    let encoder = Encoder::new(&column, &Converter::Text);
                    Ok((name.to_owned(), encoder.map_err(|why| NoPlan { index, why })?))
                };
                let members = self.members().into_iter().map(member).collect::<Result<_, NoPlan>>()?;
                Ok(ValuePlan::Java { members })
            }
            Converter::Json(json) => {
                let member = |(name, index): (&str, usize)| {
                    Ok((format!("{}:", schema::quoted(name)), Encoder::member(&self.column(index)?, *json)))
                };
                let members = self.members().into_iter().map(member).collect::<Result<_, NoPlan>>()?;
                let schema = self.envelope_schema(mapping, *json)?;
                Ok(ValuePlan::Json { members, schema })
            }
        }
    }

    /// The members: the payload first, then the others in the order of the setting.
    fn members(&self) -> Vec<(&str, usize)> {
        let further = self.plan.envelope.iter().map(|member| (member.name.as_str(), member.column));
        std::iter::once(("payload", self.plan.payload)).chain(further).collect()
    }

    fn envelope_schema(&self, mapping: &Mapping, json: Json) -> Result<EnvelopeSchema, NoPlan> {
        let (mut schemas, mut fields) = (Vec::new(), Vec::new());
        for (name, index) in self.members() {
            let column = self.column(index)?;
            schemas.push(column.schema(json, Some(name)));
            let null = column.default_text(&ValueForm::Json(json)).unwrap_or_else(|| "null".to_owned());
            let nullable = ConnectColumn { optional: true, default: None, ..column }.schema(json, Some(name));
            fields.push(EnvelopeField { name: format!("{}:", schema::quoted(name)), null, nullable });
        }
        let named = |name: &Option<String>| {
            name.as_ref().and_then(|name| self.plan.columns.iter().position(|column| column.name == *name))
        };
        let name = sanitized(&format!("{}.{}", self.connect.schemas.prefix, self.plan.table));
        let before_route = format!(
            "{{\"schema\":{{\"type\":\"struct\",\"fields\":[{}],\"optional\":false,\"name\":\"{name}.",
            schemas.join(",")
        );
        Ok(EnvelopeSchema {
            before_route: json.schemas.then_some(before_route),
            payload: self.column(self.plan.payload)?.schema(json, None),
            fields,
            route: named(&mapping.route_column).unwrap_or(self.plan.payload),
            version: named(&self.connect.schemas.version_column),
        })
    }
}

/// The name with an underscore instead of each of Java's characters that a topic cannot have. Debezium names a table's topic like
/// this, and its schemas after the topic.
fn sanitized(name: &str) -> String {
    const LONGEST: usize = 249;
    let is_valid = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let units = name.chars().flat_map(|c| std::iter::repeat_n(Some(c).filter(is_valid).unwrap_or('_'), c.len_utf16()));
    units.take(LONGEST).collect()
}

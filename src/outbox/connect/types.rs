//! What Debezium makes of a column's type.
//!
//! In: a type's oid and modifier, what the catalogue says of types that are not built in, the handling modes. Out: a [`Type`],
//! which reads the type's text as a [`Value`] and knows its schema; or why there is none.
//! Specification: Debezium's PostgreSQL connector, "Data type mappings"; `PostgresValueConverter`.

use super::super::kind::is_custom;
use super::array;
use super::number::Decimal;
use super::temporal::{self, Unit};
use super::value::Value;
use crate::outbox::connect::{BinaryMode, DecimalMode, IntervalMode, Modes, TimePrecision};
use std::borrow::Cow;
use std::collections::HashMap;

/// What the catalogue says of a type that is not built in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeDetail {
    /// `pg_type.oid`.
    pub type_id: u32,
    /// `pg_type.typname`.
    pub name: String,
    /// The type under a domain; 0: it is no domain.
    pub base: u32,
    /// The modifier that a domain gives its base type; -1: none.
    pub base_modifier: i32,
    /// The type of an array's elements; 0: it is no array.
    pub element: u32,
    /// An enum's labels in their order; `None`: it is no enum.
    pub labels: Option<Vec<String>>,
}

/// Types that are not built in, by oid.
pub(in crate::outbox) type TypeDetails = HashMap<u32, TypeDetail>;

/// How a type's text reads, and what its schema says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) reader: Reader,
    pub(super) schema: Schema,
}

/// How a type's text (bytes for bytea) reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reader {
    Boolean,
    Integer,
    Float,
    Double,
    Text,
    Bytes(BinaryMode),
    Days,
    TimeOfDay(Unit),
    Timestamp(Unit),
    ZonedTimestamp {
        fraction_digits: usize,
    },
    ZonedTime,
    Interval(IntervalMode),
    /// Without a scale each value has its own.
    Decimal {
        mode: DecimalMode,
        scale: Option<i32>,
    },
    List(Box<Self>),
}

/// A schema, but for its name in a structure, and whether it is optional.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Schema {
    /// `string`, `int64`, `array`…
    pub(super) kind: &'static str,
    /// A semantic type; their version is always 1.
    pub(super) name: Option<&'static str>,
    /// In this order.
    pub(super) parameters: Vec<(&'static str, String)>,
    /// Of an array.
    pub(super) items: Option<Box<Self>>,
    /// An array's items cannot be null: so it is with enums alone.
    pub(super) items_required: bool,
}

/// Why a column cannot be written as Debezium does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoType {
    /// The catalogue was not asked for this type yet.
    Unknown,
    /// There is no form here.
    Unsupported(&'static str),
}

/// Digits of a second where a column does not say.
const DEFAULT_FRACTION: i32 = 6;

fn typed(reader: Reader, kind: &'static str, name: Option<&'static str>) -> Type {
    Type { reader, schema: Schema { kind, name, ..Schema::default() } }
}

fn text(name: Option<&'static str>) -> Type {
    typed(Reader::Text, "string", name)
}

impl Type {
    /// A text without more to it.
    pub(super) fn plain_text() -> Self {
        text(None)
    }

    pub(super) fn of(type_id: u32, modifier: i32, modes: Modes, details: &TypeDetails) -> Result<Self, NoType> {
        if let Some(builtin) = scalar(type_id, modifier, modes) {
            return builtin;
        }
        if let Some(element) = element_of(type_id) {
            return list(element, modifier, modes);
        }
        if !is_custom(type_id) {
            return Err(NoType::Unsupported("of a type that is not written as Debezium does"));
        }
        let detail = details.get(&type_id).ok_or(NoType::Unknown)?;
        if detail.base != 0 {
            let modifier = if modifier == -1 { detail.base_modifier } else { modifier };
            return Self::of(detail.base, modifier, modes, details);
        }
        if detail.element != 0 {
            let element = Self::of(detail.element, modifier, modes, details)?;
            let items_required = element.schema.name == Some(ENUM);
            let list = list_of(element);
            return Ok(Self { schema: Schema { items_required, ..list.schema }, ..list });
        }
        match (&detail.labels, detail.name.as_str()) {
            (Some(labels), _) => Ok(enumeration(labels)),
            (None, "citext" | "isbn") => Ok(text(None)),
            (None, "ltree") => Ok(text(Some("io.debezium.data.Ltree"))),
            _ => Err(NoType::Unsupported("of an extension's type that is not written as Debezium does")),
        }
    }
}

pub(super) const ENUM: &str = "io.debezium.data.Enum";

fn enumeration(labels: &[String]) -> Type {
    let schema = Schema {
        kind: "string",
        name: Some(ENUM),
        parameters: vec![("allowed", labels.join(","))],
        ..Schema::default()
    };
    Type { reader: Reader::Text, schema }
}

fn list(element: u32, modifier: i32, modes: Modes) -> Result<Type, NoType> {
    let Some(Ok(element)) = scalar(element, modifier, modes) else {
        return Err(NoType::Unsupported("an array of a type that is not written as Debezium does"));
    };
    Ok(list_of(element))
}

fn list_of(element: Type) -> Type {
    let schema = Schema { kind: "array", items: Some(Box::new(element.schema)), ..Schema::default() };
    Type { reader: Reader::List(Box::new(element.reader)), schema }
}

/// Element types of the arrays that are read. Those with times are left out: Java's driver takes them through the zone of its
/// machine.
const fn element_of(array: u32) -> Option<u32> {
    Some(match array {
        1000 => 16,
        1002 => 18,
        1005 => 21,
        1007 => 23,
        1009 => 25,
        1014 => 1042,
        1015 => 1043,
        1016 => 20,
        1021 => 700,
        1022 => 701,
        1028 => 26,
        1040 => 829,
        1041 => 869,
        1182 => 1082,
        1231 => 1700,
        199 => 114,
        2951 => 2950,
        3807 => 3802,
        651 => 650,
        775 => 774,
        _ => return None,
    })
}

fn scalar(type_id: u32, modifier: i32, modes: Modes) -> Option<Result<Type, NoType>> {
    let fraction = if modifier == -1 { DEFAULT_FRACTION } else { modifier };
    Some(Ok(match type_id {
        16 => typed(Reader::Boolean, "boolean", None),
        21 => typed(Reader::Integer, "int16", None),
        23 => typed(Reader::Integer, "int32", None),
        20 | 26 => typed(Reader::Integer, "int64", None),
        700 => typed(Reader::Float, "float", None),
        701 => typed(Reader::Double, "double", None),
        18 | 25 | 1042 | 1043 | 650 | 774 | 829 | 869 | 3904 | 3906 | 3908 | 3910 | 3912 | 3926 => text(None),
        114 | 3802 => text(Some("io.debezium.data.Json")),
        142 => text(Some("io.debezium.data.Xml")),
        2950 => text(Some("io.debezium.data.Uuid")),
        3614 => text(Some("io.debezium.data.Tsvector")),
        17 if modes.binary == BinaryMode::Bytes => typed(Reader::Bytes(modes.binary), "bytes", None),
        17 => typed(Reader::Bytes(modes.binary), "string", None),
        1700 => decimal(modifier, modes.decimal),
        1082 => return Some(date(modes.time)),
        1083 => return Some(time_of_day(fraction, modes.time)),
        1114 => return Some(timestamp(fraction, modes.time)),
        1184 | 1266 | 1186 if modes.time == TimePrecision::Other => return Some(Err(OTHER_TIMES)),
        1184 => {
            let fraction_digits = usize::try_from(fraction).unwrap_or(0);
            typed(Reader::ZonedTimestamp { fraction_digits }, "string", Some("io.debezium.time.ZonedTimestamp"))
        }
        1266 => typed(Reader::ZonedTime, "string", Some("io.debezium.time.ZonedTime")),
        1186 => match modes.interval {
            IntervalMode::Numeric => {
                typed(Reader::Interval(modes.interval), "int64", Some("io.debezium.time.MicroDuration"))
            }
            IntervalMode::Text => typed(Reader::Interval(modes.interval), "string", Some("io.debezium.time.Interval")),
        },
        _ => return None,
    }))
}

const OTHER_TIMES: NoType = NoType::Unsupported("a time, and time.precision.mode is not one that is known here");

fn date(mode: TimePrecision) -> Result<Type, NoType> {
    match mode {
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds => {
            Ok(typed(Reader::Days, "int32", Some("io.debezium.time.Date")))
        }
        TimePrecision::Connect => Ok(typed(Reader::Days, "int32", Some("org.apache.kafka.connect.data.Date"))),
        TimePrecision::Microseconds | TimePrecision::Nanoseconds | TimePrecision::Other => Err(OTHER_TIMES),
    }
}

fn time_of_day(fraction: i32, mode: TimePrecision) -> Result<Type, NoType> {
    let (unit, kind, name) = match mode {
        TimePrecision::Adaptive if fraction <= 3 => (Unit::Millis, "int32", "io.debezium.time.Time"),
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds | TimePrecision::Microseconds => {
            (Unit::Micros, "int64", "io.debezium.time.MicroTime")
        }
        TimePrecision::Connect => (Unit::Millis, "int32", "org.apache.kafka.connect.data.Time"),
        TimePrecision::Nanoseconds => (Unit::Nanos, "int64", "io.debezium.time.NanoTime"),
        TimePrecision::Other => return Err(OTHER_TIMES),
    };
    Ok(typed(Reader::TimeOfDay(unit), kind, Some(name)))
}

fn timestamp(fraction: i32, mode: TimePrecision) -> Result<Type, NoType> {
    let (unit, name) = match mode {
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds if fraction <= 3 => {
            (Unit::Millis, "io.debezium.time.Timestamp")
        }
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds | TimePrecision::Microseconds => {
            (Unit::Micros, "io.debezium.time.MicroTimestamp")
        }
        TimePrecision::Connect => (Unit::Millis, "org.apache.kafka.connect.data.Timestamp"),
        TimePrecision::Nanoseconds => (Unit::Nanos, "io.debezium.time.NanoTimestamp"),
        TimePrecision::Other => return Err(OTHER_TIMES),
    };
    Ok(typed(Reader::Timestamp(unit), "int64", Some(name)))
}

/// The modifier holds precision and scale, 4 more than they are.
fn decimal(modifier: i32, mode: DecimalMode) -> Type {
    let declared = (modifier >= 4).then(|| ((modifier - 4) >> 16, (modifier - 4) & 0x7FF));
    let reader = Reader::Decimal { mode, scale: declared.map(|(_, scale)| scale) };
    match (mode, declared) {
        (DecimalMode::Double, _) => typed(reader, "double", None),
        (DecimalMode::Text, _) => typed(reader, "string", None),
        (DecimalMode::Precise, None) => typed(reader, "struct", Some("io.debezium.data.VariableScaleDecimal")),
        (DecimalMode::Precise, Some((precision, scale))) => Type {
            reader,
            schema: Schema {
                kind: "bytes",
                name: Some("org.apache.kafka.connect.data.Decimal"),
                parameters: vec![("scale", scale.to_string()), ("connect.decimal.precision", precision.to_string())],
                ..Schema::default()
            },
        },
    }
}

impl Reader {
    /// Whether the value is the text itself.
    pub(super) const fn is_text(&self) -> bool {
        matches!(self, Self::Text)
    }

    /// The value; `None`: it cannot be read.
    pub(super) fn read<'a>(&self, bytes: &'a [u8]) -> Option<Value<'a>> {
        if let Self::Bytes(mode) = self {
            return Some(binary(bytes, *mode));
        }
        if self.is_text() {
            return Some(Value::Text(Cow::Borrowed(bytes)));
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let owned = |text: String| Value::Text(Cow::Owned(text.into_bytes()));
        Some(match self {
            Self::Boolean => Value::Boolean(matches!(text, "t" | "true")),
            Self::Integer => Value::Integer(text.parse().ok()?),
            Self::Float => Value::Float(text.parse().ok()?),
            Self::Double => Value::Double(text.parse().ok()?),
            Self::Days => Value::Integer(temporal::days(text)?),
            Self::TimeOfDay(unit) => Value::Integer(temporal::time_of_day(text, *unit)?),
            Self::Timestamp(unit) => Value::Integer(temporal::timestamp(text, *unit)?),
            Self::ZonedTimestamp { fraction_digits } => owned(temporal::zoned_timestamp(text, *fraction_digits)?),
            Self::ZonedTime => owned(temporal::zoned_time(text)?),
            Self::Interval(IntervalMode::Numeric) => Value::Integer(temporal::interval_micros(text)?),
            Self::Interval(IntervalMode::Text) => owned(temporal::interval_text(text)?),
            Self::Decimal { mode, scale } => read_decimal(text, *mode, *scale)?,
            Self::List(element) => read_list(text, element)?,
            Self::Text | Self::Bytes(_) => return None,
        })
    }
}

fn binary(bytes: &[u8], mode: BinaryMode) -> Value<'_> {
    match mode {
        BinaryMode::Bytes => Value::Bytes(Cow::Borrowed(bytes)),
        BinaryMode::Base64 => Value::Text(Cow::Owned(base64(bytes))),
        BinaryMode::Base64UrlSafe => {
            let safe = |byte| match byte {
                b'+' => b'-',
                b'/' => b'_',
                other => other,
            };
            Value::Text(Cow::Owned(base64(bytes).into_iter().map(safe).collect()))
        }
        BinaryMode::Hex => {
            let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
            Value::Text(Cow::Owned(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()))
        }
    }
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    super::super::json::push_base64(&mut out, bytes);
    out.retain(|byte| *byte != b'"');
    out
}

/// `NaN` and infinities end Debezium's task, but for doubles.
fn read_decimal(text: &str, mode: DecimalMode, scale: Option<i32>) -> Option<Value<'_>> {
    if mode == DecimalMode::Double {
        return Some(Value::Double(text.parse().ok()?));
    }
    let decimal = Decimal::parse(text)?;
    Some(match (mode, scale) {
        (DecimalMode::Text, _) => Value::Text(Cow::Borrowed(text.as_bytes())),
        (_, None) => Value::VariableDecimal(decimal.stripped()),
        (_, Some(_)) => Value::Decimal(decimal),
    })
}

fn read_list<'a>(text: &'a str, element: &Reader) -> Option<Value<'a>> {
    let read = |item: Option<Cow<'a, str>>| match item {
        None => Some(None),
        Some(Cow::Borrowed(text)) => element.read(text.as_bytes()).map(Some),
        Some(Cow::Owned(text)) => element.read(text.as_bytes()).map(owned).map(Some),
    };
    array::elements(text)?.into_iter().map(read).collect::<Option<Vec<_>>>().map(Value::List)
}

fn owned<'a>(value: Value<'_>) -> Value<'a> {
    match value {
        Value::Boolean(value) => Value::Boolean(value),
        Value::Integer(value) => Value::Integer(value),
        Value::Float(value) => Value::Float(value),
        Value::Double(value) => Value::Double(value),
        Value::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
        Value::Bytes(bytes) => Value::Bytes(Cow::Owned(bytes.into_owned())),
        Value::Decimal(decimal) => Value::Decimal(decimal),
        Value::VariableDecimal(decimal) => Value::VariableDecimal(decimal),
        Value::List(items) => Value::List(items.into_iter().map(|item| item.map(owned)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(type_id: u32, modifier: i32, modes: Modes) -> Type {
        Type::of(type_id, modifier, modes, &TypeDetails::new()).unwrap()
    }

    /// The simple text of a value.
    #[track_caller]
    fn check(type_id: u32, modifier: i32, modes: Modes, text: &str, expected: &str) {
        let mut out = Vec::new();
        let kind = of(type_id, modifier, modes);
        kind.reader.read(text.as_bytes()).expect(text).push_simple(&mut out, false).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected, "type {type_id} {modifier}: {text}");
    }

    #[track_caller]
    fn default(type_id: u32, text: &str, expected: &str) {
        check(type_id, -1, Modes::default(), text, expected);
    }

    #[test]
    fn each_type_reads_as_debezium_has_it_by_default() {
        default(16, "t", "true");
        default(16, "false", "false");
        default(21, "-7", "-7");
        default(23, "7", "7");
        default(20, "9223372036854775807", "9223372036854775807");
        default(26, "4294967295", "4294967295");
        default(700, "1", "1.0");
        default(701, "1e+20", "1.0E20");
        default(701, "Infinity", "Infinity");
        default(25, "ä\"", "ä\"");
        default(1043, "", "");
        default(1042, "ab  ", "ab  ");
        default(2950, "0192", "0192");
        default(3802, "{\"a\": 1.50}", "{\"a\": 1.50}");
        default(17, "foo", "Zm9v");
        default(869, "10.0.0.1", "10.0.0.1");
        default(1082, "2025-11-21", "20413");
        default(1083, "13:51:30.123456", "49890123456");
        default(1114, "2025-11-21 09:08:07.654321", "1763716087654321");
        default(1184, "2025-11-21 09:08:07.65+00", "2025-11-21T09:08:07.650000Z");
        default(1266, "13:51:30+02", "11:51:30Z");
        default(1186, "1 day", "86400000000");
        default(1700, "1.50", r#"{"scale":1,"value":"Dw=="}"#);
        default(1007, "{1,NULL,3}", "[1,null,3]");
        default(1009, "{a,\"b\\\"\"}", r#"["a","b\""]"#);
        default(1231, "{1.5}", r#"[{"scale":1,"value":"Dw=="}]"#);
    }

    #[test]
    fn a_columns_digits_choose_the_unit() {
        let modes = Modes::default();
        for modifier in 0..=3 {
            check(1114, modifier, modes, "2025-11-21 09:08:07.65", "1763716087650");
            check(1083, modifier, modes, "00:00:01", "1000");
        }
        for modifier in 4..=6 {
            check(1114, modifier, modes, "2025-11-21 09:08:07.65", "1763716087650000");
            check(1083, modifier, modes, "00:00:01", "1000000");
        }
        check(1184, 3, modes, "2025-11-21 09:08:07.65+00", "2025-11-21T09:08:07.650Z");
        check(1184, 0, modes, "2025-11-21 09:08:07+00", "2025-11-21T09:08:07Z");
    }

    #[test]
    fn modes_choose_other_forms() {
        let time = |time| Modes { time, ..Modes::default() };
        check(1083, 0, time(TimePrecision::AdaptiveTimeMicroseconds), "00:00:01", "1000000");
        check(1114, 0, time(TimePrecision::AdaptiveTimeMicroseconds), "1970-01-01 00:00:01", "1000");
        check(1114, -1, time(TimePrecision::Nanoseconds), "1970-01-01 00:00:01", "1000000000");
        check(1083, 0, time(TimePrecision::Microseconds), "00:00:01", "1000000");
        let binary = |binary| Modes { binary, ..Modes::default() };
        check(17, -1, binary(BinaryMode::Base64), "~~?", "fn4/");
        check(17, -1, binary(BinaryMode::Base64UrlSafe), "~~?", "fn4_");
        check(17, -1, binary(BinaryMode::Hex), "~", "7e");
        let decimal = |decimal| Modes { decimal, ..Modes::default() };
        check(1700, -1, decimal(DecimalMode::Text), "1.50", "1.50");
        check(1700, -1, decimal(DecimalMode::Double), "1.50", "1.5");
        let interval = Modes { interval: IntervalMode::Text, ..Modes::default() };
        check(1186, -1, interval, "1 day", "P0Y0M1DT0H0M0S");
    }

    #[test]
    fn a_declared_scale_is_in_the_schema() {
        // numeric(10,2)
        let modifier = ((10 << 16) | 2) + 4;
        check(1700, modifier, Modes::default(), "1.50", "1.50");
        let schema = of(1700, modifier, Modes::default()).schema;
        assert_eq!(schema.parameters, [("scale", "2".to_owned()), ("connect.decimal.precision", "10".to_owned())]);
    }

    #[test]
    fn values_that_debezium_cannot_read_are_none() {
        for (type_id, text) in
            [(1700, "NaN"), (1082, "infinity"), (1007, "{{1},{2}}"), (23, "x"), (1266, "24:00:00+00")]
        {
            assert_eq!(of(type_id, -1, Modes::default()).reader.read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn types_that_are_not_built_in_are_what_the_catalogue_says() {
        let detail = |type_id, name: &str, base, labels: Option<&[&str]>| {
            let labels = labels.map(|labels| labels.iter().map(|&label| label.to_owned()).collect());
            (type_id, TypeDetail { type_id, name: name.to_owned(), base, base_modifier: -1, element: 0, labels })
        };
        let details = TypeDetails::from([
            detail(20_001, "mood", 0, Some(&["sad", "glad"])),
            detail(20_002, "small", 23, None),
            detail(20_003, "citext", 0, None),
            detail(20_004, "hstore", 0, None),
            (20_006, TypeDetail { element: 20_001, ..detail(20_006, "_mood", 0, None).1 }),
        ]);
        let of = |type_id| Type::of(type_id, -1, Modes::default(), &details);
        assert_eq!(of(20_001).unwrap().schema.parameters, [("allowed", "sad,glad".to_owned())]);
        assert_eq!(of(20_002).unwrap().schema.kind, "int32");
        assert_eq!(of(20_003).unwrap(), Type::plain_text());
        assert!(matches!(of(20_004), Err(NoType::Unsupported(_))));
        assert_eq!(of(20_006).unwrap().schema.items.unwrap().name, Some("io.debezium.data.Enum"));
        assert_eq!(of(20_005), Err(NoType::Unknown));
    }

    #[test]
    fn types_without_a_form_are_refused() {
        for type_id in [19, 790, 600, 1560, 1562, 1115, 1185, 1001, 1003] {
            assert!(
                matches!(Type::of(type_id, -1, Modes::default(), &TypeDetails::new()), Err(NoType::Unsupported(_))),
                "{type_id}"
            );
        }
        let other = Modes { time: TimePrecision::Other, ..Modes::default() };
        for type_id in [1082, 1083, 1114, 1184, 1266, 1186] {
            assert!(Type::of(type_id, -1, other, &TypeDetails::new()).is_err(), "{type_id}");
        }
    }
}

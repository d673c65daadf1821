//! Maps a column's type to the type and schema that Debezium gives it.
//!
//! In: a type's oid and modifier, the catalog's details of types that are not built in, and the handling modes. Out: a [`Type`], which
//! has a [`TypeReader`] and a schema; or why there is none.
//! Specification: Debezium's PostgreSQL connector, "Data type mappings"; `PostgresValueConverter`.

use super::super::column_kind::is_custom;
use super::reader::TypeReader;
use super::temporal::Unit;
use crate::outbox::TypeDetail;
use crate::outbox::connect::{BinaryMode, DecimalMode, HstoreMode, IntervalMode, Modes, TimePrecision};
use std::collections::HashMap;

/// Types that are not built in, by oid.
type TypeDetails = HashMap<u32, TypeDetail>;

/// How a type's text is read, and its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) reader: TypeReader,
    pub(super) schema: Schema,
}

/// A schema, without its name in a structure and whether it is optional.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Schema {
    /// `string`, `int64`, `array`…
    pub(super) kind: &'static str,
    /// The name of a semantic type. Its version is always 1.
    pub(super) name: Option<&'static str>,
    /// The parameters, in this order.
    pub(super) parameters: Vec<(&'static str, String)>,
    /// The schema of an array's items.
    pub(super) items: Option<Box<Self>>,
    /// Whether an array's items cannot be null. That is only so for enums.
    pub(super) items_required: bool,
}

/// The reason why a column cannot be written as by Debezium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoType {
    /// The catalog does not have the type.
    Unknown,
    /// Debezium leaves the column out.
    LeftOut,
    /// walrelay has no form for the type.
    Unsupported(&'static str),
}

/// `bit[]`, int2vector, oidvector and arrays of these. Debezium makes lists of them, whose form walrelay does not know.
const OTHER_LISTS: [u32; 5] = [1561, 22, 30, 1006, 1013];

/// The digits of a second if the column does not declare any.
const DEFAULT_FRACTION: i32 = 6;

fn typed(reader: TypeReader, kind: &'static str, name: Option<&'static str>) -> Type {
    Type { reader, schema: Schema { kind, name, ..Schema::default() } }
}

fn text(name: Option<&'static str>) -> Type {
    typed(TypeReader::Text, "string", name)
}

impl Type {
    /// A text without a semantic type.
    pub(super) fn plain_text() -> Self {
        text(None)
    }

    fn with_parameters(mut self, parameters: Vec<(&'static str, String)>) -> Self {
        self.schema.parameters = parameters;
        self
    }

    pub(super) fn of(type_id: u32, modifier: i32, modes: Modes, details: &TypeDetails) -> Result<Self, NoType> {
        if let Some(builtin) = scalar(type_id, modifier, modes) {
            return Ok(builtin);
        }
        if let Some(element) = element_of(type_id).and_then(|element| scalar(element, modifier, modes)) {
            return Ok(list_of(element));
        }
        match type_id {
            _ if OTHER_LISTS.contains(&type_id) => {
                return Err(NoType::Unsupported("of a type that is not written as Debezium does"));
            }
            // Without `include.unknown.datatypes`, Debezium leaves these columns out.
            _ if !is_custom(type_id) => return Err(NoType::LeftOut),
            _ => {}
        }
        let detail = details.get(&type_id).ok_or(NoType::Unknown)?;
        if detail.base != 0 {
            let modifier = if modifier == -1 { detail.base_modifier } else { modifier };
            return Self::of(detail.base, modifier, modes, details);
        }
        if detail.element != 0 {
            if details.get(&detail.element).is_some_and(|element| element.base != 0) {
                return Err(NoType::LeftOut);
            }
            return Ok(list_of(Self::of(detail.element, modifier, modes, details)?));
        }
        match (&detail.labels, detail.name.as_str()) {
            (Some(labels), _) => Ok(text(Some(ENUM)).with_parameters(vec![("allowed", labels.join(","))])),
            (None, "citext" | "isbn") => Ok(text(None)),
            (None, "ltree") => Ok(text(Some("io.debezium.data.Ltree"))),
            (None, "hstore") => Ok(hstore(modes.hstore)),
            (None, "geometry" | "geography" | "vector" | "halfvec" | "sparsevec") => {
                Err(NoType::Unsupported("of an extension's type that is not written as Debezium does"))
            }
            (None, _) => Err(NoType::LeftOut),
        }
    }
}

const TSVECTOR: &str = "io.debezium.data.Tsvector";
const ENUM: &str = "io.debezium.data.Enum";
const DECIMAL: &str = "org.apache.kafka.connect.data.Decimal";
pub(super) const POINT: &str = "io.debezium.data.geometry.Point";

fn hstore(mode: HstoreMode) -> Type {
    let reader = TypeReader::Hstore(mode);
    match mode {
        HstoreMode::Json => typed(reader, "string", Some("io.debezium.data.Json")),
        HstoreMode::Map => typed(reader, "map", None),
    }
}

fn list_of(element: Type) -> Type {
    let required = [ENUM, TSVECTOR].map(Some).contains(&element.schema.name);
    let schema =
        Schema { kind: "array", items: Some(Box::new(element.schema)), items_required: required, ..Schema::default() };
    Type { reader: TypeReader::List { element: Box::new(element.reader), required }, schema }
}

/// The type of an array's elements, if walrelay reads such arrays. Java's driver converts times in them with the zone of its machine,
/// which counts as UTC here.
const fn element_of(array: u32) -> Option<u32> {
    Some(match array {
        1000 => 16,
        1001 => 17,
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
        1115 => 1114,
        1182 => 1082,
        1183 => 1083,
        1185 => 1184,
        1270 => 1266,
        1231 => 1700,
        199 => 114,
        2951 => 2950,
        3807 => 3802,
        651 => 650,
        775 => 774,
        3643 => 3614,
        3905 => 3904,
        3907 => 3906,
        3909 => 3908,
        3911 => 3910,
        3913 => 3912,
        3927 => 3926,
        _ => return None,
    })
}

fn scalar(type_id: u32, modifier: i32, modes: Modes) -> Option<Type> {
    let fraction = if modifier == -1 { DEFAULT_FRACTION } else { modifier };
    Some(match type_id {
        16 => typed(TypeReader::Boolean, "boolean", None),
        21 => typed(TypeReader::Integer, "int16", None),
        23 => typed(TypeReader::Integer, "int32", None),
        20 | 26 => typed(TypeReader::Integer, "int64", None),
        700 => typed(TypeReader::Float, "float", None),
        701 => typed(TypeReader::Double, "double", None),
        18 | 25 | 1042 | 1043 | 650 | 774 | 829 | 869 | 3904 | 3906 | 3908 | 3910 | 3912 | 3926 => text(None),
        114 | 3802 => text(Some("io.debezium.data.Json")),
        142 => text(Some("io.debezium.data.Xml")),
        2950 => text(Some("io.debezium.data.Uuid")),
        3614 => text(Some(TSVECTOR)),
        17 if modes.binary == BinaryMode::Bytes => typed(TypeReader::Bytes(modes.binary), "bytes", None),
        17 => typed(TypeReader::Bytes(modes.binary), "string", None),
        1700 => decimal(modifier, modes.decimal),
        790 => money(modes.decimal, modes.money_digits),
        1560 | 1562 => bits(type_id, modifier),
        600 => typed(TypeReader::Point, "struct", Some(POINT)),
        19 => typed(TypeReader::Nothing, "string", None),
        1082 => date(modes.time),
        1083 => time_of_day(fraction, modes.time),
        1114 => timestamp(fraction, modes.time),
        1184 => {
            let fraction_digits = usize::try_from(fraction).unwrap_or(0);
            typed(TypeReader::ZonedTimestamp { fraction_digits }, "string", Some("io.debezium.time.ZonedTimestamp"))
        }
        1266 => typed(TypeReader::ZonedTime, "string", Some("io.debezium.time.ZonedTime")),
        1186 => match modes.interval {
            IntervalMode::Numeric => {
                typed(TypeReader::Interval(modes.interval), "int64", Some("io.debezium.time.MicroDuration"))
            }
            IntervalMode::Text => {
                typed(TypeReader::Interval(modes.interval), "string", Some("io.debezium.time.Interval"))
            }
        },
        _ => return None,
    })
}

fn date(mode: TimePrecision) -> Type {
    match mode {
        TimePrecision::Connect => typed(TypeReader::Days, "int32", Some("org.apache.kafka.connect.data.Date")),
        TimePrecision::IsoString => text_of(TypeReader::IsoDate, "io.debezium.time.IsoDate"),
        TimePrecision::Adaptive
        | TimePrecision::AdaptiveTimeMicroseconds
        | TimePrecision::Microseconds
        | TimePrecision::Nanoseconds => typed(TypeReader::Days, "int32", Some("io.debezium.time.Date")),
    }
}

fn time_of_day(fraction: i32, mode: TimePrecision) -> Type {
    let (unit, kind, name) = match mode {
        TimePrecision::Adaptive if fraction <= 3 => (Unit::Millis, "int32", "io.debezium.time.Time"),
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds | TimePrecision::Microseconds => {
            (Unit::Micros, "int64", "io.debezium.time.MicroTime")
        }
        TimePrecision::Connect => (Unit::Millis, "int32", "org.apache.kafka.connect.data.Time"),
        TimePrecision::Nanoseconds => (Unit::Nanos, "int64", "io.debezium.time.NanoTime"),
        TimePrecision::IsoString => return text_of(TypeReader::IsoTime, "io.debezium.time.IsoTime"),
    };
    typed(TypeReader::TimeOfDay(unit), kind, Some(name))
}

fn timestamp(fraction: i32, mode: TimePrecision) -> Type {
    let (unit, name) = match mode {
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds if fraction <= 3 => {
            (Unit::Millis, "io.debezium.time.Timestamp")
        }
        TimePrecision::Adaptive | TimePrecision::AdaptiveTimeMicroseconds | TimePrecision::Microseconds => {
            (Unit::Micros, "io.debezium.time.MicroTimestamp")
        }
        TimePrecision::Connect => (Unit::Millis, "org.apache.kafka.connect.data.Timestamp"),
        TimePrecision::Nanoseconds => (Unit::Nanos, "io.debezium.time.NanoTimestamp"),
        TimePrecision::IsoString => return text_of(TypeReader::IsoTimestamp, "io.debezium.time.IsoTimestamp"),
    };
    typed(TypeReader::Timestamp(unit), "int64", Some(name))
}

fn text_of(reader: TypeReader, name: &'static str) -> Type {
    typed(reader, "string", Some(name))
}

/// A numeric. The modifier has precision and scale, plus 4. As Java's driver does, a negative scale is read without its sign: -2 is
/// 2046.
fn decimal(modifier: i32, mode: DecimalMode) -> Type {
    let declared = (modifier >= 4).then(|| ((modifier - 4) >> 16, (modifier - 4) & 0x7FF));
    let reader = TypeReader::Decimal { mode, scale: declared.map(|(_, scale)| scale) };
    match (mode, declared) {
        (DecimalMode::Double, _) => typed(reader, "double", None),
        (DecimalMode::Text, _) => typed(reader, "string", None),
        (DecimalMode::Precise, None) => typed(reader, "struct", Some("io.debezium.data.VariableScaleDecimal")),
        (DecimalMode::Precise, Some((precision, scale))) => typed(reader, "bytes", Some(DECIMAL))
            .with_parameters(vec![("scale", scale.to_string()), ("connect.decimal.precision", precision.to_string())]),
    }
}

fn money(mode: DecimalMode, digits: i32) -> Type {
    let reader = TypeReader::Money { mode, digits };
    match mode {
        DecimalMode::Double => typed(reader, "double", None),
        DecimalMode::Text => typed(reader, "string", None),
        DecimalMode::Precise => {
            typed(reader, "bytes", Some(DECIMAL)).with_parameters(vec![("scale", digits.to_string())])
        }
    }
}

/// Bits. `bit` without a length is one bit, `bit varying` any number.
fn bits(type_id: u32, modifier: i32) -> Type {
    let length = match (type_id, modifier) {
        (_, 1..) => modifier,
        (1560, _) => 1,
        _ => i32::MAX,
    };
    if length == 1 {
        return typed(TypeReader::Bit, "boolean", None);
    }
    let bits = typed(TypeReader::Bits, "bytes", Some("io.debezium.data.Bits"));
    bits.with_parameters(vec![("length", length.to_string())])
}

impl Schema {
    /// Whether Java's `toString` writes the value's address, and not the value.
    pub(super) fn has_no_java_text(&self) -> bool {
        let is_array_of_bytes = self.kind == "bytes" && self.name != Some(DECIMAL);
        let of_items = || self.items.as_ref().is_some_and(|items| items.has_no_java_text());
        is_array_of_bytes || self.kind == "struct" || of_items()
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::ConnectValue;
    use super::*;

    fn of(type_id: u32, modifier: i32, modes: Modes) -> Type {
        Type::of(type_id, modifier, modes, &TypeDetails::new()).unwrap()
    }

    /// Checks the simple text of a value.
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
    fn values_that_are_not_known_are_none() {
        for (type_id, text) in [(1082, "x"), (1009, "{{a},{b}}"), (23, "x"), (790, "1,5 €"), (1182, "{x}")] {
            assert_eq!(of(type_id, -1, Modes::default()).reader.read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn values_that_debezium_cannot_convert_are_nothing() {
        for (type_id, text) in [(1700, "NaN"), (1700, "-Infinity"), (1231, "{1,NaN}"), (19, "x")] {
            let read = of(type_id, -1, Modes::default()).reader.read(text.as_bytes());
            assert_eq!(read, Some(ConnectValue::Nothing), "{text}");
        }
        let double = Modes { decimal: DecimalMode::Double, ..Modes::default() };
        check(1700, -1, double, "-Infinity", "-Infinity");
    }

    #[test]
    fn odd_types_read_as_debezium_has_them() {
        default(790, "-$1,234.50", "-1234.50");
        default(1560, "1", "true");
        default(1562, "101", "BQ==");
        default(600, "(1,2)", r#"{"x":1.0,"y":2.0,"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAABA","srid":null}"#);
        default(1007, "{{1,2},{3,4}}", "[null,null]");
        default(1001, "{\"\\\\x0102\",NULL}", "[\"AQI=\",null]");
        default(1115, "{\"2025-01-02 03:04:05.678901\",NULL}", "[1735787045678901,null]");
        default(1183, "{10:00:00.123456}", "[36000123000]");
        default(1185, "{infinity}", "[\"infinity\"]");
        default(1270, "{10:00:00+02}", "[\"08:00:00Z\"]");
        let modes = Modes { decimal: DecimalMode::Text, money_digits: 3, ..Modes::default() };
        check(790, -1, modes, "$1.50", "1.50");
        let schema = of(790, -1, Modes { money_digits: 3, ..Modes::default() }).schema;
        assert_eq!(schema.parameters, [("scale", "3".to_owned())]);
        assert_eq!(of(1560, 8, Modes::default()).schema.parameters, [("length", "8".to_owned())]);
        assert_eq!(of(1562, -1, Modes::default()).schema.parameters, [("length", "2147483647".to_owned())]);
        assert_eq!(of(1562, 1, Modes::default()).schema.kind, "boolean");
    }

    #[test]
    fn a_negative_scale_is_a_large_one() {
        // numeric(5,-2)
        let modifier = ((5 << 16) | 0x7FE) + 4;
        let ConnectValue::Decimal(read) = of(1700, modifier, Modes::default()).reader.read(b"12300").unwrap() else {
            panic!()
        };
        assert_eq!((read.scale(), read.text().len()), (2046, "12300.".len() + 2046));
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
            detail(20_007, "cube", 0, None),
            detail(20_008, "vector", 0, None),
            (20_009, TypeDetail { element: 20_002, ..detail(20_009, "_small", 0, None).1 }),
            detail(20_010, "pair", 0, None),
            (20_011, TypeDetail { element: 20_010, ..detail(20_011, "_pair", 0, None).1 }),
            detail(20_012, "checked", 20_010, None),
            (20_006, TypeDetail { element: 20_001, ..detail(20_006, "_mood", 0, None).1 }),
        ]);
        let of = |type_id| Type::of(type_id, -1, Modes::default(), &details);
        assert_eq!(of(20_001).unwrap().schema.parameters, [("allowed", "sad,glad".to_owned())]);
        assert_eq!(of(20_002).unwrap().schema.kind, "int32");
        assert_eq!(of(20_003).unwrap(), Type::plain_text());
        assert_eq!(of(20_004).unwrap().schema.name, Some("io.debezium.data.Json"));
        // 20_010 is a composite type, 20_011 an array of it, 20_012 a domain over it.
        for type_id in [20_007, 20_009, 20_010, 20_011, 20_012] {
            assert_eq!(of(type_id), Err(NoType::LeftOut), "{type_id}");
        }
        assert!(matches!(of(20_008), Err(NoType::Unsupported(_))));
        assert_eq!(of(20_006).unwrap().schema.items.unwrap().name, Some("io.debezium.data.Enum"));
        assert_eq!(of(20_005), Err(NoType::Unknown));
    }

    #[test]
    fn types_without_a_form_are_refused() {
        let of = |type_id| Type::of(type_id, -1, Modes::default(), &TypeDetails::new());
        assert!(matches!(of(1561), Err(NoType::Unsupported(_))));
        for type_id in [603, 3220, 3615, 4451, 2205, 1187, 1003, 791, 5069, 5038, 83] {
            assert_eq!(of(type_id), Err(NoType::LeftOut), "{type_id}");
        }
    }
}

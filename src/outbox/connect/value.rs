//! [`ConnectValue`]: a column's value as Debezium has it, and its written forms.
//!
//! In: a [`ConnectValue`]. Out: bytes. Java and Kafka Connect write a value in three ways: Java's `toString` (`StringConverter`),
//! `Values.convertToString` (`SimpleHeaderConverter`), and JSON (`JsonConverter`, by Jackson).

use super::super::json::push_base64;
use super::number::{self, Decimal};
use super::special_types::well_known_binary;
use crate::outbox::connect::Json;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::borrow::Cow;
use std::io::Write;

/// A column's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ConnectValue<'a> {
    Boolean(bool),
    Integer(i64),
    Float(f32),
    Double(f64),
    /// A string. If the database has another encoding, its bytes may not be UTF-8.
    Text(Cow<'a, [u8]>),
    Bytes(Cow<'a, [u8]>),
    /// A decimal with the scale that its schema has.
    Decimal(Decimal),
    /// A decimal with a scale of its own.
    VariableDecimal(Decimal),
    Point(f64, f64),
    /// A structure with any names. `None`: null.
    Map(Vec<(String, Option<String>)>),
    List(Vec<Option<Self>>),
    /// Debezium cannot convert the value, and takes it for null.
    Nothing,
}

/// The reason why a value has no bytes: a text is not UTF-8, or the value cannot be read, or this form has no such value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwritable {
    NotUtf8,
    NoForm,
}

type Written = Result<(), Unwritable>;

impl ConnectValue<'_> {
    /// Writes the text of `toString`.
    pub(super) fn push_java(&self, out: &mut Vec<u8>) -> Written {
        match self {
            Self::Decimal(decimal) => out.extend(decimal.text().as_bytes()),
            // `toString` writes the address of an array, and not its content.
            Self::Bytes(_) | Self::VariableDecimal(_) | Self::Point(..) | Self::Nothing => {
                return Err(Unwritable::NoForm);
            }
            Self::Map(members) => push_java_map(out, members),
            Self::List(items) => push_list(out, items, b", ", |out, item| item.push_java(out))?,
            Self::Boolean(_) | Self::Integer(_) | Self::Float(_) | Self::Double(_) | Self::Text(_) => {
                self.push_scalar(out);
            }
        }
        Ok(())
    }

    /// Writes the text of `Values.convertToString`.
    pub(super) fn push_simple(&self, out: &mut Vec<u8>, embedded: bool) -> Written {
        match self {
            Self::Text(text) if embedded => push_simple_string(out, text),
            Self::Bytes(bytes) if embedded => push_base64(out, bytes),
            Self::Bytes(bytes) => out.extend(BASE64_STANDARD.encode(bytes).as_bytes()),
            Self::Decimal(decimal) => out.extend(decimal.text().as_bytes()),
            Self::VariableDecimal(decimal) => push_variable(out, decimal),
            Self::Point(x, y) => push_point(out, *x, *y),
            Self::Map(members) => push_map(out, members, |out, text| push_simple_string(out, text.as_bytes())),
            Self::Nothing => return Err(Unwritable::NoForm),
            Self::List(items) => push_list(out, items, b",", |out, item| item.push_simple(out, true))?,
            Self::Boolean(_) | Self::Integer(_) | Self::Float(_) | Self::Double(_) | Self::Text(_) => {
                self.push_scalar(out);
            }
        }
        Ok(())
    }

    /// Writes JSON.
    pub(super) fn push_json(&self, out: &mut Vec<u8>, json: Json) -> Written {
        match self {
            Self::Text(text) => push_string(out, std::str::from_utf8(text).map_err(|_| Unwritable::NotUtf8)?),
            Self::Bytes(bytes) => push_base64(out, bytes),
            Self::Decimal(decimal) if json.numeric_decimals => out.extend(decimal.text().as_bytes()),
            Self::Decimal(decimal) => push_base64(out, &decimal.unscaled_bytes()),
            Self::VariableDecimal(decimal) => push_variable(out, decimal),
            Self::Point(x, y) => push_point(out, *x, *y),
            Self::Map(members) => push_map(out, members, push_string),
            Self::Nothing => return Err(Unwritable::NoForm),
            Self::Float(value) if !value.is_finite() => push_string(out, &number::float(*value)),
            Self::Double(value) => push_double(out, *value),
            Self::List(items) => push_list(out, items, b",", |out, item| item.push_json(out, json))?,
            Self::Boolean(_) | Self::Integer(_) | Self::Float(_) => self.push_scalar(out),
        }
        Ok(())
    }

    /// Writes the values that have the same form in each way.
    fn push_scalar(&self, out: &mut Vec<u8>) {
        // Writing to a vector does not fail.
        match self {
            Self::Boolean(value) => write!(out, "{value}").unwrap_or_default(),
            Self::Integer(value) => write!(out, "{value}").unwrap_or_default(),
            Self::Float(value) => out.extend(number::float(*value).as_bytes()),
            Self::Double(value) => out.extend(number::float(*value).as_bytes()),
            Self::Text(text) => out.extend(text.iter()),
            Self::Bytes(_)
            | Self::Decimal(_)
            | Self::VariableDecimal(_)
            | Self::Point(..)
            | Self::Map(_)
            | Self::List(_)
            | Self::Nothing => {}
        }
    }
}

/// Writes a list in brackets. All three ways write a null element as `null`.
fn push_list<'a>(
    out: &mut Vec<u8>,
    items: &[Option<ConnectValue<'a>>],
    separator: &[u8],
    push: impl Fn(&mut Vec<u8>, &ConnectValue<'a>) -> Written,
) -> Written {
    out.push(b'[');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.extend(separator);
        }
        match item {
            Some(item) => push(out, item)?,
            None => out.extend(b"null"),
        }
    }
    out.push(b']');
    Ok(())
}

/// Writes a structure with the scale and the unscaled value. Two of the ways do it alike.
fn push_variable(out: &mut Vec<u8>, decimal: &Decimal) {
    write!(out, "{{\"scale\":{},\"value\":", decimal.scale()).unwrap_or_default();
    push_base64(out, &decimal.unscaled_bytes());
    out.push(b'}');
}

/// Writes a structure with both numbers, and the point as bytes. Two of the ways do it alike.
fn push_point(out: &mut Vec<u8>, x: f64, y: f64) {
    for (name, number) in [("{\"x\":", x), (",\"y\":", y)] {
        out.extend(name.as_bytes());
        push_double(out, number);
    }
    out.extend(b",\"wkb\":");
    push_base64(out, &well_known_binary(x, y));
    out.extend(b",\"srid\":null}");
}

/// Writes a double as JSON. Infinities and `NaN` are strings.
pub(super) fn push_double(out: &mut Vec<u8>, value: f64) {
    let text = number::float(value);
    if value.is_finite() { out.extend(text.as_bytes()) } else { push_string(out, &text) }
}

fn push_map(out: &mut Vec<u8>, members: &[(String, Option<String>)], push: impl Fn(&mut Vec<u8>, &str)) {
    out.push(b'{');
    for (at, (name, value)) in members.iter().enumerate() {
        out.extend(if at > 0 { b",".as_slice() } else { b"" });
        push(out, name);
        out.push(b':');
        match value {
            Some(value) => push(out, value),
            None => out.extend(b"null"),
        }
    }
    out.push(b'}');
}

fn push_java_map(out: &mut Vec<u8>, members: &[(String, Option<String>)]) {
    out.push(b'{');
    for (at, (name, value)) in members.iter().enumerate() {
        out.extend(if at > 0 { b", ".as_slice() } else { b"" });
        out.extend(name.as_bytes());
        out.push(b'=');
        out.extend(value.as_deref().unwrap_or("null").as_bytes());
    }
    out.push(b'}');
}

/// Writes a string in which only backslashes and quotes are escaped.
fn push_simple_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// Writes a JSON string as Jackson does into bytes: characters beyond 16 bits are two escapes, and hex digits are capitals.
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    push_escaped(out, text, true);
}

/// Appends a JSON string. With `wide`, characters beyond 16 bits are escaped, too. Jackson does not escape them when it writes into a
/// text.
fn push_escaped(out: &mut Vec<u8>, text: &str, wide: bool) {
    out.push(b'"');
    for character in text.chars() {
        match character {
            '"' => out.extend(b"\\\""),
            '\\' => out.extend(b"\\\\"),
            '\u{8}' => out.extend(b"\\b"),
            '\t' => out.extend(b"\\t"),
            '\n' => out.extend(b"\\n"),
            '\u{C}' => out.extend(b"\\f"),
            '\r' => out.extend(b"\\r"),
            '\u{10000}'.. if !wide => out.extend(character.encode_utf8(&mut [0; 4]).bytes()),
            '\0'..='\u{1F}' | '\u{10000}'.. => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a vector does not fail.
                    write!(out, "\\u{unit:04X}").unwrap_or_default();
                }
            }
            _ => out.extend(character.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    out.push(b'"');
}

/// Writes members as one JSON object, as Jackson does into a text.
pub(super) fn members_json(members: &[(String, Option<String>)]) -> Vec<u8> {
    let mut out = Vec::new();
    push_map(&mut out, members, |out, text| push_escaped(out, text, false));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Json = Json { schemas: false, numeric_decimals: false };

    fn text(text: &str) -> ConnectValue<'_> {
        ConnectValue::Text(Cow::Borrowed(text.as_bytes()))
    }

    /// Checks Java's text, the simple text and JSON. `-`: there is none.
    #[track_caller]
    fn check(value: &ConnectValue<'_>, expected: [&str; 3]) {
        let written = |write: &dyn Fn(&mut Vec<u8>) -> Written| {
            let mut out = Vec::new();
            write(&mut out).map_or_else(|_| "-".to_owned(), |()| String::from_utf8(out).unwrap())
        };
        let ways = [
            written(&|out| value.push_java(out)),
            written(&|out| value.push_simple(out, false)),
            written(&|out| value.push_json(out, PLAIN)),
        ];
        assert_eq!(ways, expected);
    }

    #[test]
    fn each_way_writes_each_value() {
        check(&ConnectValue::Boolean(true), ["true"; 3]);
        check(&ConnectValue::Integer(-5), ["-5"; 3]);
        check(&ConnectValue::Float(0.1), ["0.1"; 3]);
        check(&ConnectValue::Double(1e7), ["1.0E7"; 3]);
        check(&ConnectValue::Double(f64::NAN), ["NaN", "NaN", "\"NaN\""]);
        check(&text("a\"b"), ["a\"b", "a\"b", "\"a\\\"b\""]);
        check(&ConnectValue::Bytes(Cow::Borrowed(b"foo\xFF")), ["-", "Zm9v/w==", "\"Zm9v/w==\""]);
        check(&ConnectValue::Bytes(Cow::Borrowed(b"")), ["-", "", "\"\""]);
        let decimal = Decimal::parse("1.50").unwrap();
        check(&ConnectValue::Decimal(decimal.clone()), ["1.50", "1.50", "\"AJY=\""]);
        check(
            &ConnectValue::VariableDecimal(decimal),
            ["-", r#"{"scale":2,"value":"AJY="}"#, r#"{"scale":2,"value":"AJY="}"#],
        );
    }

    #[test]
    fn each_way_writes_lists() {
        let list = ConnectValue::List(vec![Some(text("a\\\"\n")), None, Some(ConnectValue::Integer(1))]);
        check(&list, ["[a\\\"\n, null, 1]", "[\"a\\\\\\\"\n\",null,1]", "[\"a\\\\\\\"\\n\",null,1]"]);
        check(&ConnectValue::List(vec![]), ["[]"; 3]);
    }

    #[test]
    fn decimals_are_numbers_where_that_is_asked_for() {
        let mut out = Vec::new();
        let json = Json { numeric_decimals: true, ..PLAIN };
        ConnectValue::Decimal(Decimal::parse("1.50").unwrap()).push_json(&mut out, json).unwrap();
        assert_eq!(out, b"1.50");
    }

    #[test]
    fn strings_are_escaped_as_jackson_does_surrogates_included() {
        let mut out = Vec::new();
        push_string(&mut out, "\u{8}\t\n\u{C}\r\u{1}\u{1F}\u{7F}/ü😀\u{2028}");
        assert_eq!(String::from_utf8(out).unwrap(), "\"\\b\\t\\n\\f\\r\\u0001\\u001F\u{7F}/ü\\uD83D\\uDE00\u{2028}\"");
    }

    #[test]
    fn text_that_is_no_utf8_has_no_json() {
        let latin1 = ConnectValue::Text(Cow::Borrowed(b"\xE9"));
        assert_eq!(latin1.push_json(&mut Vec::new(), PLAIN), Err(Unwritable::NotUtf8));
        assert_eq!(latin1.push_java(&mut Vec::new()), Ok(()));
    }
}

//! Reads the members of a JSON object in order, and writes a value as a member of an envelope.
//!
//! In: JSON text of Postgres or of an application. Out: names and values, which borrow from the text unless something in them is
//! escaped. Numbers, objects and arrays keep their text, as in `1.50`, with their white space. Names may repeat.

use super::column_kind::ColumnKind;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The value of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Member<'a> {
    Null,
    /// A string's content, without escapes.
    Text(Cow<'a, str>),
    /// The text of another value.
    Json(&'a str),
}

impl<'a> Member<'a> {
    fn of(raw: &'a RawValue) -> serde_json::Result<Self> {
        let text = raw.get();
        let Some(inside) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
            return Ok(if text == "null" { Self::Null } else { Self::Json(text) });
        };
        if inside.contains('\\') {
            return serde_json::from_str(text).map(|content| Self::Text(Cow::Owned(content)));
        }
        Ok(Self::Text(Cow::Borrowed(inside)))
    }

    /// The string's content, or the text of another value. `None`: null.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Null => None,
            Self::Text(text) => Some(text),
            Self::Json(text) => Some(text),
        }
    }
}

/// Calls `each` for each member of the object `text`, in order.
///
/// # Errors
/// `text` is not one JSON object. `each` has been called for the members before the fault.
pub(super) fn members<'a>(text: &'a str, each: impl FnMut(Cow<'a, str>, Member<'a>)) -> serde_json::Result<()> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    (&mut deserializer).deserialize_map(Members(each))?;
    deserializer.end()
}

struct Members<F>(F);

impl<'de, F: FnMut(Cow<'de, str>, Member<'de>)> Visitor<'de> for Members<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(MemberName(name)) = map.next_key()? {
            let value = Member::of(map.next_value()?).map_err(A::Error::custom)?;
            (self.0)(name, value);
        }
        Ok(())
    }
}

/// A member's name. It borrows unless it has escapes.
#[derive(Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

/// Appends a column's value to `out` as JSON: JSON as it is, numbers and booleans without quotes, a bytea in base64, and other types as
/// a string. `None` is null.
///
/// # Errors
/// A text is not UTF-8.
pub(super) fn push_value(out: &mut Vec<u8>, value: Option<&[u8]>, kind: ColumnKind) -> Result<(), std::str::Utf8Error> {
    match value {
        None => out.extend(b"null"),
        Some(bytes) if bare(bytes, kind) => out.extend(bytes),
        Some(bytes) if kind == ColumnKind::Bytea => push_base64(out, bytes),
        Some(bytes) => push_text(out, std::str::from_utf8(bytes)?),
    }
    Ok(())
}

/// Whether the type's text is a JSON value. `NaN` and `Infinity` are not.
fn bare(text: &[u8], kind: ColumnKind) -> bool {
    match kind {
        ColumnKind::Json
        | ColumnKind::Jsonb
        | ColumnKind::Bool
        | ColumnKind::Int2
        | ColumnKind::Int4
        | ColumnKind::Int8 => true,
        ColumnKind::Number => text.iter().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte)),
        ColumnKind::Bytea
        | ColumnKind::Text
        | ColumnKind::Uuid
        | ColumnKind::Timestamp
        | ColumnKind::Timestamptz
        | ColumnKind::Custom
        | ColumnKind::Other => false,
    }
}

pub(super) fn push_text(out: &mut Vec<u8>, text: &str) {
    // A string written to a vector does not fail.
    serde_json::to_writer(out, text).unwrap_or_default();
}

/// Appends bytes as a JSON string in base64.
pub(super) fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let start = out.len();
    out.resize(start + base64::encoded_len(bytes.len(), true).unwrap_or_default(), 0);
    // The room has the length of the text, so this does not fail.
    let _length = BASE64_STANDARD.encode_slice(bytes, out.get_mut(start..).unwrap_or_default());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> serde_json::Result<Vec<(String, Member<'_>)>> {
        let mut all = Vec::new();
        members(text, |name, value| all.push((name.into_owned(), value))).map(|()| all)
    }

    #[test]
    fn members_come_in_their_order_repeated_names_included() {
        let text = r#" {"z": "s", "a" : 1.50,"z":null, "o": { "k" : [1, 2] }, "t":true, "n":"null"} "#;
        let expected = [
            ("z", Member::Text("s".into())),
            ("a", Member::Json("1.50")),
            ("z", Member::Null),
            ("o", Member::Json(r#"{ "k" : [1, 2] }"#)),
            ("t", Member::Json("true")),
            ("n", Member::Text("null".into())),
        ];
        assert_eq!(read(text).unwrap(), expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(read("{}").unwrap(), []);
    }

    #[test]
    fn strings_are_their_content() {
        let text = r#"{"\u00e4\"": "line\nbreak \ud83d\ude00", "plain": "ü😀", "empty": ""}"#;
        let expected = [("ä\"", "line\nbreak 😀"), ("plain", "ü😀"), ("empty", "")];
        assert_eq!(read(text).unwrap(), expected.map(|(name, value)| (name.to_owned(), Member::Text(value.into()))));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "null", "1", "[]", "\"a\"", "{", "{\"a\":}", "{} {}", "{\"a\":\"\\ud800\"}", "{a:1}"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_in_an_envelope_follows_its_type() {
        #[track_caller]
        fn check(value: Option<&[u8]>, kind: ColumnKind, expected: &str) {
            let mut out = Vec::new();
            push_value(&mut out, value, kind).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        check(None, ColumnKind::Json, "null");
        check(Some(br#"{"a" : 1.50}"#), ColumnKind::Json, r#"{"a" : 1.50}"#);
        check(Some(b"-5"), ColumnKind::Int8, "-5");
        check(Some(b"true"), ColumnKind::Bool, "true");
        check(Some(b"1.50"), ColumnKind::Number, "1.50");
        check(Some(b"1e+20"), ColumnKind::Number, "1e+20");
        check(Some(b"NaN"), ColumnKind::Number, "\"NaN\"");
        check(Some(b"-Infinity"), ColumnKind::Number, "\"-Infinity\"");
        check(Some("a\"b\\\n\u{1}ü".as_bytes()), ColumnKind::Text, "\"a\\\"b\\\\\\n\\u0001ü\"");
        check(Some(b""), ColumnKind::Bytea, "\"\"");
        check(Some(b"f"), ColumnKind::Bytea, "\"Zg==\"");
        check(Some(b"fo"), ColumnKind::Bytea, "\"Zm8=\"");
        check(Some(b"foo\xFF"), ColumnKind::Bytea, "\"Zm9v/w==\"");
        assert!(push_value(&mut Vec::new(), Some(b"\xFF"), ColumnKind::Text).is_err());
    }
}

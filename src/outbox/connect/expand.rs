//! Expands a payload's JSON text into the structure that Debezium makes of it.
//!
//! In: a text. Out: JSON as `JsonConverter` writes that structure. It is one line, without nulls and empty arrays. If a name repeats,
//! its last value replaces the first. Each object in an array has the members of all of them. Else the result is that the
//! text stays a string, or that Debezium's task would end.
//! Specification: Debezium's `JsonSchemaData`, `EventRouterDelegate`.

use super::value::{push_double, push_string};
use crate::outbox::connect::Expand;
use serde::de::IgnoredAny;

/// The result of expanding a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expanded {
    Json(Vec<u8>),
    /// The text is written as a string.
    String,
    /// The value does not fit the structure that Debezium infers, so its task would end.
    Broken,
}

/// A parsed text.
#[derive(Debug, Clone, PartialEq)]
enum JsonNode {
    Null,
    Boolean(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    /// An integer of more than 64 bits.
    BigInteger,
    String(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// The schema that is inferred from a node.
#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Boolean,
    Int,
    Long,
    Double,
    String,
    /// The shape of null, if nulls are kept.
    Bytes,
    List(Box<Self>),
    Object(Vec<(String, Self)>),
}

/// The text stays a string.
struct StaysString;

/// A node does not fit the shape.
struct Misfit;

/// Expands a text that is not empty.
pub(super) fn expand(text: &str, how: Expand) -> Expanded {
    if !text.starts_with(['{', '[']) {
        return Expanded::String;
    }
    // The parser below expects well-formed text, so serde_json checks it first, with its depth. Text after the value is ignored, as by
    // Jackson.
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let Some(Ok(_)) = values.next() else { return Expanded::String };
    let Some(node) = (Parser { rest: text }).node() else { return Expanded::String };
    let Ok(Some(shape)) = infer(&node, how) else { return Expanded::String };
    let mut out = Vec::new();
    match write(&node, &shape, &mut out) {
        Ok(()) => Expanded::Json(out),
        Err(Misfit) => Expanded::Broken,
    }
}

/// Parses text that is well-formed.
struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn node(&mut self) -> Option<JsonNode> {
        self.blanks();
        match self.rest.bytes().next()? {
            b'{' => self.object(),
            b'[' => self.list(),
            b'"' => self.string().map(JsonNode::String),
            b't' => self.word("true", JsonNode::Boolean(true)),
            b'f' => self.word("false", JsonNode::Boolean(false)),
            b'n' => self.word("null", JsonNode::Null),
            _ => self.number(),
        }
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    /// Skips the next character if it is this one. Returns whether it was.
    fn takes(&mut self, character: char) -> bool {
        self.blanks();
        let after = self.rest.strip_prefix(character);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn word(&mut self, word: &str, node: JsonNode) -> Option<JsonNode> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(node)
    }

    fn number(&mut self) -> Option<JsonNode> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c)).unwrap_or(self.rest.len());
        let (text, after) = self.rest.split_at_checked(end)?;
        self.rest = after;
        if text.contains(['.', 'e', 'E']) {
            return text.parse().ok().map(JsonNode::Double);
        }
        Some(match (text.parse(), text.parse()) {
            (Ok(int), _) => JsonNode::Int(int),
            (_, Ok(long)) => JsonNode::Long(long),
            _ => JsonNode::BigInteger,
        })
    }

    fn string(&mut self) -> Option<String> {
        let mut escaped = false;
        let end = self.rest.char_indices().skip(1).find(|&(_, character)| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        });
        let (text, after) = self.rest.split_at_checked(end?.0 + 1)?;
        self.rest = after;
        serde_json::from_str(text).ok()
    }

    fn list(&mut self) -> Option<JsonNode> {
        let mut items = Vec::new();
        self.rest = self.rest.strip_prefix('[')?;
        while !self.takes(']') {
            items.push(self.node()?);
            self.takes(',');
        }
        Some(JsonNode::List(items))
    }

    fn object(&mut self) -> Option<JsonNode> {
        let mut members = Vec::<(String, JsonNode)>::new();
        self.rest = self.rest.strip_prefix('{')?;
        while !self.takes('}') {
            let name = self.string()?;
            self.takes(':');
            let value = self.node()?;
            match members.iter_mut().find(|(known, _)| *known == name) {
                Some((_, earlier)) => *earlier = value,
                None => members.push((name, value)),
            }
            self.takes(',');
            self.blanks();
        }
        Some(JsonNode::Object(members))
    }
}

/// The shape of a node. `None`: a member with such a value is left out.
fn infer(node: &JsonNode, how: Expand) -> Result<Option<Shape>, StaysString> {
    Ok(Some(match node {
        JsonNode::Null => return Ok(how.keep_nulls.then_some(Shape::Bytes)),
        JsonNode::Boolean(_) => Shape::Boolean,
        JsonNode::Int(_) => Shape::Int,
        JsonNode::Long(_) => Shape::Long,
        JsonNode::Double(_) | JsonNode::BigInteger => Shape::Double,
        JsonNode::String(_) => Shape::String,
        JsonNode::List(items) if items.is_empty() => return Ok(None),
        JsonNode::List(items) => Shape::List(Box::new(infer_items(items, how)?)),
        JsonNode::Object(members) => {
            let mut shapes = Vec::new();
            for (name, member) in members {
                match infer(member, how)? {
                    Some(_) if name.is_empty() => return Err(StaysString),
                    shape => shapes.extend(shape.map(|shape| (name.clone(), shape))),
                }
            }
            Shape::Object(shapes)
        }
    }))
}

/// The common shape of an array's items. They must be of one kind, and numbers of one width. The shape of objects has the members of
/// all of them.
fn infer_items(items: &[JsonNode], how: Expand) -> Result<Shape, StaysString> {
    let present = || items.iter().filter(|item| **item != JsonNode::Null);
    let Some(first) = present().next() else {
        return infer(&JsonNode::Null, how)?.ok_or(StaysString);
    };
    if present().any(|item| kind(item) != kind(first)) {
        return Err(StaysString);
    }
    if !matches!(first, JsonNode::Object(_)) {
        return infer(first, how)?.ok_or(StaysString);
    }
    let mut merged = Vec::<(String, Shape)>::new();
    for item in present() {
        let Some(Shape::Object(members)) = infer(item, how)? else { continue };
        for (name, shape) in members {
            match merged.iter_mut().find(|(known, _)| *known == name) {
                None => merged.push((name, shape)),
                Some((_, known)) if *known == Shape::Bytes => *known = shape,
                Some(_) => {}
            }
        }
    }
    Ok(Shape::Object(merged))
}

/// The kind of a node. An array may have only one kind.
const fn kind(node: &JsonNode) -> u8 {
    match node {
        JsonNode::Null => 0,
        JsonNode::Boolean(_) => 1,
        JsonNode::Int(_) => 2,
        JsonNode::Long(_) => 3,
        JsonNode::Double(_) | JsonNode::BigInteger => 4,
        JsonNode::String(_) => 5,
        JsonNode::List(_) => 6,
        JsonNode::Object(_) => 7,
    }
}

fn write(node: &JsonNode, shape: &Shape, out: &mut Vec<u8>) -> Result<(), Misfit> {
    match (node, shape) {
        (JsonNode::Null, _) => out.extend(b"null"),
        (JsonNode::Boolean(value), Shape::Boolean) => out.extend(value.to_string().as_bytes()),
        (JsonNode::Int(value), Shape::Int) => out.extend(value.to_string().as_bytes()),
        (JsonNode::Long(value), Shape::Long) => out.extend(value.to_string().as_bytes()),
        (JsonNode::Double(value), Shape::Double) => push_double(out, *value),
        (JsonNode::String(text), Shape::String) => push_string(out, text),
        (JsonNode::List(items), Shape::List(shape)) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                out.extend(if at > 0 { b",".as_slice() } else { b"" });
                write(item, shape, out)?;
            }
            out.push(b']');
        }
        (JsonNode::Object(members), Shape::Object(shapes)) => write_object(members, shapes, out)?,
        _ => return Err(Misfit),
    }
    Ok(())
}

/// Writes an object in the given shape. Members that are not in the shape are left out. Members that the object lacks are null.
fn write_object(members: &[(String, JsonNode)], shapes: &[(String, Shape)], out: &mut Vec<u8>) -> Result<(), Misfit> {
    out.push(b'{');
    for (at, (name, shape)) in shapes.iter().enumerate() {
        out.extend(if at > 0 { b",".as_slice() } else { b"" });
        push_string(out, name);
        out.push(b':');
        let member = members.iter().find(|(known, _)| known == name).map_or(&JsonNode::Null, |(_, member)| member);
        write(member, shape, out)?;
    }
    out.push(b'}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DROPPED: Expand = Expand { keep_nulls: false };

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(expand(text, DROPPED), Expanded::Json(expected.as_bytes().to_vec()), "{text}");
    }

    #[test]
    fn an_object_is_one_line_without_nulls_and_empty_arrays() {
        check(r#"{ "b" : 1 , "a" : [ ] , "n" : null, "t": true, "o": { "x": null } }"#, r#"{"b":1,"t":true,"o":{}}"#);
        check("{}", "{}");
        check(r#"{"a":null}"#, "{}");
        check(r#"{"big":9223372036854775807,"s":"A\u00e9\/\n"}"#, r#"{"big":9223372036854775807,"s":"Aé/\n"}"#);
    }

    #[test]
    fn numbers_with_a_point_are_javas() {
        check(r#"{"a":1.50,"b":1e3,"c":1E10,"d":-0.0}"#, r#"{"a":1.5,"b":1000.0,"c":1.0E10,"d":-0.0}"#);
    }

    #[test]
    fn the_last_of_a_repeated_name_takes_the_place_of_the_first() {
        check(r#"{"a":1,"b":2,"a":3}"#, r#"{"a":3,"b":2}"#);
    }

    #[test]
    fn arrays_hold_one_kind() {
        check("[1, 2]", "[1,2]");
        check(r#"{"a":["x",null]}"#, r#"{"a":["x",null]}"#);
        check(r#"{"a":[[1],[2]]}"#, r#"{"a":[[1],[2]]}"#);
        for text in ["[1,\"a\"]", "[1,1.5]", "[1,10000000000]", "[null]", "{\"a\":[null]}", "[[]]", "[]"] {
            assert_eq!(expand(text, DROPPED), Expanded::String, "{text}");
        }
    }

    #[test]
    fn objects_of_one_array_have_the_members_of_all() {
        check(r#"[{"a":1},{"b":"x"}]"#, r#"[{"a":1,"b":null},{"a":null,"b":"x"}]"#);
        check(r#"[{"o":{"x":1}},{"o":{"x":2,"y":3}}]"#, r#"[{"o":{"x":1}},{"o":{"x":2}}]"#);
        check(r#"[{"a":1},null]"#, r#"[{"a":1},null]"#);
    }

    #[test]
    fn doubles_that_are_too_large_are_javas_infinity() {
        check(r#"{"a":1e400,"b":[-1e400]}"#, r#"{"a":"Infinity","b":["-Infinity"]}"#);
    }

    #[test]
    fn text_after_the_value_is_ignored() {
        for behind in ["x", " x", "]", "}", "{\"b\":2}", "false"] {
            check(&format!("{{\"a\":1}}{behind}"), r#"{"a":1}"#);
        }
    }

    #[test]
    fn a_member_without_a_name_keeps_the_text_a_string() {
        for text in [r#"{"":1}"#, r#"{"a":1,"o":{"":2}}"#, r#"[{"":"x"}]"#] {
            assert_eq!(expand(text, DROPPED), Expanded::String, "{text}");
        }
        check(r#"{"":null,"a":1}"#, r#"{"a":1}"#);
    }

    #[test]
    fn what_is_no_object_or_array_stays_a_string() {
        for text in ["x", " {}", "1", "\"a\"", "{", "{a:1}"] {
            assert_eq!(expand(text, DROPPED), Expanded::String, "{text}");
        }
    }

    #[test]
    fn what_ends_debeziums_task_is_broken() {
        for text in [r#"[{"a":1},{"a":"x"}]"#, "[[1],[\"a\"]]", r#"{"a":123456789012345678901234567890}"#] {
            assert_eq!(expand(text, DROPPED), Expanded::Broken, "{text}");
        }
    }

    #[test]
    fn nulls_can_be_kept() {
        let kept = |text| expand(text, Expand { keep_nulls: true });
        assert_eq!(kept(r#"{"a":null,"b":[]}"#), Expanded::Json(br#"{"a":null}"#.to_vec()));
        assert_eq!(kept(r#"[{"a":null},{"a":1}]"#), Expanded::Json(br#"[{"a":null},{"a":1}]"#.to_vec()));
        assert_eq!(kept("[null]"), Expanded::Json(b"[null]".to_vec()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r#"[\[{][{}\[\]":,a-cnulltre0-9.eE\\ -]{0,40}"#, keep_nulls: bool) {
            let _expanded = expand(&text, Expand { keep_nulls });
        }

        #[test]
        fn what_comes_out_is_json(text in r#"\{("[a-c]":(1|"x"|null|\[\]|\[1\]|\{\}),){0,4}"z":1\.5\}"#) {
            let Expanded::Json(json) = expand(&text, DROPPED) else { panic!("{text}") };
            prop_assert!(serde_json::from_slice::<IgnoredAny>(&json).is_ok());
        }
    }
}

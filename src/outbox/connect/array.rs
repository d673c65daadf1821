//! Reads the elements of an array in Postgres' text form.
//!
//! In: `{a,"b c",NULL}`, `[0:1]={1,2}`. Out: the elements of the outermost dimension. Bounds are skipped, as by Java's driver. Debezium
//! has no form for an inner array, so it is not read.
//! Specification: PostgreSQL manual, section 8.15.6 "Array Input and Output Syntax".

use std::borrow::Cow;

/// An element of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element<'a> {
    Null,
    Text(Cow<'a, str>),
    /// An inner array.
    List,
}

/// The elements. `None`: the text is no array.
pub(super) fn elements(text: &str) -> Option<Vec<Element<'_>>> {
    let text = if text.starts_with('[') { text.split_once('=')?.1 } else { text };
    let mut rest = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    if rest.is_empty() {
        return Some(elements);
    }
    loop {
        let (element, after) = match rest.bytes().next() {
            Some(b'"') => quoted(rest)?,
            Some(b'{') => list(rest)?,
            _ => bare(rest)?,
        };
        elements.push(element);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => return Some(elements),
            None => return None,
        }
    }
}

type Rest<'a> = (Element<'a>, &'a str);

/// Reads up to the closing brace.
fn list(text: &str) -> Option<Rest<'_>> {
    let (mut depth, mut in_quotes, mut escaped) = (0_usize, false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => in_quotes = !in_quotes,
            '{' if !in_quotes => depth += 1,
            '}' if !in_quotes && depth == 1 => return Some((Element::List, text.get(at + 1..)?)),
            '}' if !in_quotes => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bare(text: &str) -> Option<Rest<'_>> {
    let (element, after) = text.split_at_checked(text.find(',').unwrap_or(text.len()))?;
    if element.is_empty() || element.contains(['{', '}', '"', '\\']) {
        return None;
    }
    Some((if element == "NULL" { Element::Null } else { Element::Text(Cow::Borrowed(element)) }, after))
}

/// Reads a quoted element, in which a backslash escapes the next character.
fn quoted(text: &str) -> Option<Rest<'_>> {
    let inside = text.strip_prefix('"')?;
    let end = inside.find(['"', '\\'])?;
    if inside.get(end..)?.starts_with('"') {
        return Some((Element::Text(Cow::Borrowed(inside.get(..end)?)), inside.get(end + 1..)?));
    }
    let (element, after) = unescaped(inside)?;
    Some((Element::Text(Cow::Owned(element)), after))
}

/// Reads up to and with the closing quote. A backslash escapes the next character. Returns the text, and what follows the quote.
pub(super) fn unescaped(inside: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = inside.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((text, inside.get(at + 1..)?)),
            '\\' => text.push(characters.next()?.1),
            _ => text.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expected: &[Option<&str>]) {
        let expected = expected.iter().map(|text| match text {
            None => Element::Null,
            Some("{}") => Element::List,
            Some(text) => Element::Text(Cow::Borrowed(*text)),
        });
        assert_eq!(elements(text).expect(text), expected.collect::<Vec<_>>(), "{text}");
    }

    #[test]
    fn elements_are_bare_quoted_or_null() {
        check("{}", &[]);
        check("{1,2}", &[Some("1"), Some("2")]);
        check(
            r#"{a,"b, c",NULL,"NULL","","q\"\\x"}"#,
            &[Some("a"), Some("b, c"), None, Some("NULL"), Some(""), Some("q\"\\x")],
        );
    }

    #[test]
    fn inner_arrays_are_not_read_and_bounds_are_skipped() {
        check("{{1,2},{3,NULL}}", &[Some("{}"), Some("{}")]);
        check(r#"{{"}\"{"},{{x}}}"#, &[Some("{}"), Some("{}")]);
        check("[0:1]={1,2}", &[Some("1"), Some("2")]);
        check("[0:0][1:2]={{1,2}}", &[Some("{}")]);
    }

    #[test]
    fn what_is_no_array_is_not_read() {
        for text in ["", "{1", "{1,}", "{\"a}", "{\"a\"b}", "{,1}", "[0:1]", "{{1}", "{{1}x}"] {
            assert_eq!(elements(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[{}a,\"\\\\NUL]{0,20}") {
            let _read = elements(&text);
        }
    }
}

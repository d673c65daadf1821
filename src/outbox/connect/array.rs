//! An array's elements from Postgres' text.
//!
//! In: `{a,"b c",NULL}`. Out: each element's text, `None` for null. Arrays of arrays, and those that do not begin at 1, are
//! not read: Debezium has no form for them.
//! Specification: PostgreSQL manual, section 8.15.6 "Array Input and Output Syntax".

use std::borrow::Cow;

/// The elements; `None`: it is no array of one dimension.
pub(super) fn elements(text: &str) -> Option<Vec<Option<Cow<'_, str>>>> {
    let mut rest = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    if rest.is_empty() {
        return Some(elements);
    }
    loop {
        let (element, after) = if rest.starts_with('"') { quoted(rest)? } else { bare(rest)? };
        elements.push(element);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => return Some(elements),
            None => return None,
        }
    }
}

type Element<'a> = (Option<Cow<'a, str>>, &'a str);

fn bare(text: &str) -> Option<Element<'_>> {
    let (element, after) = text.split_at_checked(text.find(',').unwrap_or(text.len()))?;
    if element.is_empty() || element.contains(['{', '}', '"', '\\']) {
        return None;
    }
    Some(((element != "NULL").then_some(Cow::Borrowed(element)), after))
}

/// Within quotes a backslash stands before what it hides.
fn quoted(text: &str) -> Option<Element<'_>> {
    let inside = text.strip_prefix('"')?;
    let end = inside.find(['"', '\\'])?;
    if inside.get(end..)?.starts_with('"') {
        return Some((Some(Cow::Borrowed(inside.get(..end)?)), inside.get(end + 1..)?));
    }
    let mut element = String::new();
    let mut characters = inside.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((Some(Cow::Owned(element)), inside.get(at + 1..)?)),
            '\\' => element.push(characters.next()?.1),
            _ => element.push(character),
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
        let read = elements(text).expect(text);
        assert_eq!(read.iter().map(Option::as_deref).collect::<Vec<_>>(), expected, "{text}");
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
    fn what_has_no_form_is_not_read() {
        for text in ["{{1},{2}}", "[0:1]={1,2}", "", "{1", "{1,}", "{\"a}", "{\"a\"b}", "{,1}"] {
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

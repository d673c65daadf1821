//! Parses Java's `.properties` files.
//!
//! In: a file's bytes. Out: its entries in their order, with their lines. If a key repeats, both entries are there. If the bytes are
//! not UTF-8, they count as Latin-1, as in earlier versions of Java.
//! Specification: `java.util.Properties.load`.

use std::str::Chars;

/// One entry. It has no `Debug`, since it may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PropertyEntry {
    pub(super) key: String,
    pub(super) value: String,
    /// The first line of the entry, from 1.
    pub(super) line: usize,
}

/// A `\u` without four hex digits after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadEscape {
    /// The first line of the entry, from 1.
    pub(super) line: usize,
}

/// The file's text.
pub(super) fn decode(bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes);
    let text = text.map_or_else(|_| bytes.iter().map(|&byte| char::from(byte)).collect(), str::to_owned);
    match text.strip_prefix('\u{FEFF}') {
        Some(text) => text.to_owned(),
        None => text,
    }
}

/// Reads the entries.
pub(super) fn parse(text: &str) -> Result<Vec<PropertyEntry>, BadEscape> {
    logical_lines(text).into_iter().map(|(line, text)| entry(&text, line)).collect()
}

/// The logical lines: a backslash at the end of a line joins it with the next one. Comments and blank lines are left out.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::<(usize, String)>::new();
    let mut continues = false;
    for (number, natural) in natural_lines(text).into_iter().enumerate() {
        let line = natural.trim_start_matches(is_blank);
        if !continues && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        let open = backslashes % 2 == 1;
        let line = if open { line.get(..line.len() - 1).unwrap_or_default() } else { line };
        match lines.last_mut().filter(|_| continues) {
            Some((_, joined)) => joined.push_str(line),
            None => lines.push((number + 1, line.to_owned())),
        }
        continues = open;
    }
    lines
}

/// Splits the text at `\n`, `\r` and `\r\n`.
fn natural_lines(text: &str) -> Vec<&str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r')).collect()
}

const fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\x0C')
}

/// Splits a line into key and value. The key ends at the first `=`, `:` or blank without a backslash before it.
fn entry(line: &str, number: usize) -> Result<PropertyEntry, BadEscape> {
    let mut escaped = false;
    let end = line.find(|character| {
        let ends = !escaped && (is_blank(character) || matches!(character, '=' | ':'));
        escaped = character == '\\' && !escaped;
        ends
    });
    let (key, rest) = line.split_at_checked(end.unwrap_or(line.len())).unwrap_or((line, ""));
    let rest = rest.trim_start_matches(is_blank);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(is_blank);
    let unescaped = |text| unescape(text).ok_or(BadEscape { line: number });
    Ok(PropertyEntry { key: unescaped(key)?, value: unescaped(value)?, line: number })
}

/// Resolves escapes. `None`: a `\u` is not well-formed.
fn unescape(text: &str) -> Option<String> {
    let mut units = Vec::<u16>::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        let plain = match character {
            '\\' => match rest.next() {
                Some('u') => {
                    units.push(unicode(&mut rest)?);
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\x0C',
                Some(other) => other,
                None => continue,
            },
            plain => plain,
        };
        units.extend(plain.encode_utf16(&mut [0; 2]).iter());
    }
    String::from_utf16(&units).ok()
}

/// Reads four hex digits.
fn unicode(rest: &mut Chars<'_>) -> Option<u16> {
    let digits = rest.by_ref().take(4).collect::<String>();
    (digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
        .then(|| u16::from_str_radix(&digits, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<(String, String, usize)>, BadEscape> {
        Ok(parse(text)?.into_iter().map(|entry| (entry.key, entry.value, entry.line)).collect())
    }

    #[track_caller]
    fn check(text: &str, key: &str, value: &str) {
        assert_eq!(read(text), Ok(vec![(key.to_owned(), value.to_owned(), 1)]), "{text:?}");
    }

    #[test]
    fn a_key_ends_at_an_equals_sign_a_colon_or_a_blank() {
        for text in ["a.b=c d", "a.b = c d", "a.b:c d", "a.b : c d", "a.b c d", "  a.b\t=\tc d", "a.b   c d"] {
            check(text, "a.b", "c d");
        }
        check("a=b=c", "a", "b=c");
        check("a==b", "a", "=b");
        check("a", "a", "");
        check("a=", "a", "");
        check("=b", "", "b");
    }

    #[test]
    fn blanks_at_the_end_of_a_value_stay() {
        check("a=b  ", "a", "b  ");
    }

    #[test]
    fn backslashes_escape() {
        check(r"a\=b\:c\ d=e", "a=b:c d", "e");
        check(r"a=\t\n\r\f\\\q\=", "a", "\t\n\r\x0C\\q=");
        check(r"a=\u00e4\ud83d\ude00\u0041", "a", "ä😀A");
        check(r"a=C:\\data", "a", r"C:\data");
    }

    #[test]
    fn a_backslash_at_the_end_joins_lines() {
        check("a=b,\\\n   c,\\\n\td", "a", "b,c,d");
        check("a=b\\\\", "a", "b\\");
        check("a=b\\", "a", "b");
        check("a=b\\\n# no comment", "a", "b# no comment");
    }

    #[test]
    fn comments_and_blank_lines_are_skipped() {
        let text = "# a\n! b\n\n  \n  # c=d\\\nx=1\r\ny=2\rz=3";
        let owned = |key: &str, value: &str, line| (key.to_owned(), value.to_owned(), line);
        assert_eq!(read(text), Ok(vec![owned("x", "1", 6), owned("y", "2", 7), owned("z", "3", 8)]));
    }

    #[test]
    fn an_entry_has_the_line_on_which_it_begins() {
        let lines = |text| read(text).unwrap().into_iter().map(|(_, _, line)| line).collect::<Vec<_>>();
        assert_eq!(lines("\na=b\\\nc\nd=e"), [2, 4]);
    }

    #[test]
    fn a_malformed_unicode_escape_is_an_error_with_its_line() {
        for text in ["\na=\\u12", "\na=\\u12xy", "\n\\u+123=a", "\na=\\ud83d"] {
            assert_eq!(read(text), Err(BadEscape { line: 2 }), "{text:?}");
        }
    }

    #[test]
    fn a_file_is_utf8_or_latin_1() {
        assert_eq!(decode("ä".as_bytes()), "ä");
        assert_eq!(decode(b"caf\xE9"), "café");
        assert_eq!(decode("\u{FEFF}a=b".as_bytes()), "a=b");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z=: \\\\u0-9\n\r#!]{0,60}") {
            let _read = parse(&text).is_ok();
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _read = parse(&decode(&bytes)).is_ok();
        }
    }
}

//! Texts of others, as messages show them: on one line of bounded length.
//!
//! In: any bytes. Out: the same for people. Pure.

use std::path::Path;

/// A value, in characters.
const LONGEST_VALUE: usize = 80;

/// A path, in characters: of one that is cut nobody knows which it is.
const LONGEST_PATH: usize = 500;

/// A value for people: control characters escaped, cut after some 80 characters.
pub fn shown(value: &[u8]) -> String {
    // No character takes more than four bytes, so the rest need not be looked at.
    let head = value.get(..value.len().min(4 * LONGEST_VALUE + 4)).unwrap_or_default();
    one_line(&String::from_utf8_lossy(head), LONGEST_VALUE)
}

/// A path for people.
pub fn shown_path(path: &Path) -> String {
    one_line(&path.to_string_lossy(), LONGEST_PATH)
}

/// A text for people: control characters escaped, cut after so many `characters`, those of escapes included.
pub fn one_line(text: &str, characters: usize) -> String {
    let mut line = String::new();
    let mut left = characters;
    for character in text.chars() {
        let Some(rest) = left.checked_sub(escaped(character).count()) else {
            line.push('…');
            break;
        };
        line.extend(escaped(character));
        left = rest;
    }
    line
}

/// A connection string without its password. One that holds a secret in another form is not shown at all.
pub fn shown_source(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let Some((scheme, rest)) = text.split_once("://") else {
        return if lower.contains("password") { "…".to_owned() } else { text.to_owned() };
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if path.to_ascii_lowercase().contains("password") || path.contains('@') {
        return "…".to_owned();
    }
    match authority.rsplit_once('@') {
        Some((user, hosts)) => {
            format!("{scheme}://{}@{hosts}{path}", user.split_once(':').map_or(user, |(name, _)| name))
        }
        None => text.to_owned(),
    }
}

fn escaped(character: char) -> impl Iterator<Item = char> {
    let control = character.is_control();
    let (escape, plain) = if control { (Some(character.escape_default()), None) } else { (None, Some(character)) };
    escape.into_iter().flatten().chain(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_line_and_cut() {
        assert_eq!(shown(b"a\nb\xff\xc3\xa9"), "a\\nb\u{fffd}\u{e9}");
        assert_eq!(shown(&[b'x'; 80]), "x".repeat(80));
        assert_eq!(shown("\u{10000}".repeat(100).as_bytes()), format!("{}…", "\u{10000}".repeat(80)));
        assert_eq!(shown_path(Path::new("/a\rb")), "/a\\rb");
    }

    #[test]
    fn what_is_escaped_counts_as_it_is_written() {
        assert_eq!(one_line("a\0b", 6), "a\\u{0}…");
        assert_eq!(one_line("a\0b", 7), "a\\u{0}b");
        assert_eq!(one_line(&"\0".repeat(1000), 600).chars().count(), 601);
    }

    #[test]
    fn no_password_is_shown() {
        for (text, shown) in [
            ("postgres://u:secret@h:5432/d?sslmode=require", "postgres://u@h:5432/d?sslmode=require"),
            ("postgres://u:se@cret@h/d", "postgres://u@h/d"),
            ("postgres://u@h/d?password=secret", "…"),
            ("postgres://u:se/cret@h/d", "…"),
            ("postgres://u:secret?@h/d", "…"),
            ("host=h PassWord=secret", "…"),
            ("host=h user=u", "host=h user=u"),
            ("postgres:///d", "postgres:///d"),
        ] {
            assert_eq!(shown_source(text), shown);
        }
    }
}

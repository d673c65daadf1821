//! Parses a connection string of keywords.
//!
//! In: `host=db dbname='my shop' …`. Out: pairs. Neither keywords nor values are checked.
//! Invariant: no error quotes a part of the string, since the part after a space may belong to a password.
//! Specification: PostgreSQL manual, section 32.1.1.1 "Keyword/Value Connection Strings".

use std::iter::{Enumerate, Peekable};
use std::str::Chars;

use super::error::SourceProblem;
use super::keywords::{Pair, is_known};

/// Parses the string.
pub(super) fn parse(text: &str) -> Result<Vec<Pair>, SourceProblem> {
    let mut cursor = Cursor { characters: text.chars().enumerate().peekable(), length: text.chars().count() };
    let mut pairs = Vec::<Pair>::new();
    loop {
        cursor.skip_spaces();
        if cursor.peek().is_none() {
            return Ok(pairs);
        }
        let keyword = cursor.keyword()?;
        let is_quoted = cursor.peek() == Some('\'');
        let value = cursor.value()?;
        // This is the syntax of .NET. The password would be a part of a value, which messages show.
        if !is_quoted && keyword != "password" && has_another(&value) {
            return Err(cursor.malformed("another keyword follows a semicolon: separate keywords by spaces"));
        }
        let after_password = pairs.iter().any(|pair| pair.keyword == "password");
        pairs.push(Pair { keyword, value, quotable: !after_password });
    }
}

/// Whether the value has a semicolon, followed by another keyword and its value.
fn has_another(value: &str) -> bool {
    let is_one =
        |piece: &str| piece.split_once('=').is_some_and(|(keyword, _)| is_known(&keyword.to_ascii_lowercase()));
    value.split(';').skip(1).any(is_one)
}

struct Cursor<'a> {
    characters: Peekable<Enumerate<Chars<'a>>>,
    /// The number of characters.
    length: usize,
}

impl Cursor<'_> {
    fn peek(&mut self) -> Option<char> {
        self.characters.peek().map(|(_, character)| *character)
    }

    fn next(&mut self) -> Option<char> {
        self.characters.next().map(|(_, character)| character)
    }

    fn skip_spaces(&mut self) {
        while self.characters.next_if(|(_, character)| character.is_ascii_whitespace()).is_some() {}
    }

    fn malformed(&mut self, what: &'static str) -> SourceProblem {
        let at = self.characters.peek().map_or(self.length, |(index, _)| *index) + 1;
        SourceProblem::with_hint(
            format!("the connection string is malformed at character {at}: {what}"),
            "keyword=value, with a value that has spaces in single quotes: host=db dbname='my shop'",
        )
    }

    fn keyword(&mut self) -> Result<String, SourceProblem> {
        let mut keyword = String::new();
        while let Some((_, character)) = self.characters.next_if(|(_, c)| *c != '=' && !c.is_ascii_whitespace()) {
            keyword.push(character);
        }
        self.skip_spaces();
        match self.peek() {
            Some('=') if !keyword.is_empty() => self.next(),
            _ => return Err(self.malformed("a keyword and = are missing")),
        };
        self.skip_spaces();
        Ok(keyword)
    }

    fn value(&mut self) -> Result<String, SourceProblem> {
        if self.peek() == Some('\'') {
            self.next();
            return self.quoted_value();
        }
        let mut value = String::new();
        while let Some((_, character)) = self.characters.next_if(|(_, c)| !c.is_ascii_whitespace()) {
            // As in libpq, a backslash at the very end is ignored.
            value.extend(if character == '\\' { self.next() } else { Some(character) });
        }
        Ok(value)
    }

    fn quoted_value(&mut self) -> Result<String, SourceProblem> {
        let mut value = String::new();
        loop {
            match self.next() {
                Some('\'') => return Ok(value),
                Some('\\') => value.extend(self.next()),
                Some(character) => value.push(character),
                None => return Err(self.malformed("the closing quote is missing")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, &str)]) {
        let pairs = parse(text).unwrap();
        let pairs = pairs.iter().map(|pair| (pair.keyword.as_str(), pair.value.as_str())).collect::<Vec<_>>();
        assert_eq!(pairs, expected, "{text}");
    }

    #[test]
    fn spaces_quotes_and_backslashes_are_libpqs() {
        check("", &[]);
        check("host=db port = 5432", &[("host", "db"), ("port", "5432")]);
        check(r"dbname='my shop' user=it\'s", &[("dbname", "my shop"), ("user", "it's")]);
        check(r"password='a\'b\\c' host=''", &[("password", r"a'b\c"), ("host", "")]);
        check("user=a\\", &[("user", "a")]);
        check("user= host=h", &[("user", "host=h")]);
        check("user=a;b=c password=x;user=y", &[("user", "a;b=c"), ("password", "x;user=y")]);
        check("dbname='a;user=b'", &[("dbname", "a;user=b")]);
    }

    #[test]
    fn malformed_strings_are_refused_by_place() {
        for (text, at) in [
            ("host", 5),
            ("host db", 6),
            ("=x", 1),
            ("host='db", 9),
            ("user=app;password=hush dbname=d", 23),
            ("port=1;Host=h", 14),
        ] {
            let problem = parse(text).err().unwrap();
            assert!(problem.text.contains(&format!("malformed at character {at}: ")), "{text}: {}", problem.text);
        }
    }

    #[test]
    fn what_follows_a_password_is_not_to_be_quoted() {
        let pairs = parse("host=h password=my hunter2=x").unwrap();
        assert_eq!(pairs.iter().map(|pair| pair.quotable).collect::<Vec<_>>(), [true, true, false]);
    }
}

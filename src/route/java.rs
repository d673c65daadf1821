//! Java's regular expressions and replacements, as Debezium's `route.topic.regex` and `route.topic.replacement` use them.
//!
//! In: both settings in Java's syntax. Out: the topic for a value. If the expression does not match the whole value, the value is the
//! topic. Else the *first* match in the value is replaced, as by Java's `matches` and `replaceFirst`. That match is the whole value,
//! unless the expression also matches a part of it. Where Java's syntax differs from that of the crate `regex`, it is translated (`\d`,
//! `\w`, `\s` are ASCII; `\Q…\E`; POSIX classes; `\h`). If the crate cannot do something, the setting is refused, and the error marks
//! the character.
//! Specification: `java.util.regex.Pattern`, `java.util.regex.Matcher.appendReplacement`.

use super::{TopicError, TopicProblem};
use regex::Regex;
use std::iter::Peekable;
use std::str::CharIndices;

const REGEX_FLAG: &str = "--topic-regex";
const REPLACEMENT_FLAG: &str = "--topic-replacement";

/// A regular expression with its replacement.
#[derive(Debug, Clone)]
pub(super) struct JavaRegex {
    /// The expression, anchored at both ends.
    whole: Regex,
    first: Regex,
    replacement: Vec<ReplacementPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ReplacementPart {
    Literal(String),
    Group(usize),
}

impl JavaRegex {
    pub(super) fn new(regex: &str, replacement: &str) -> Result<Self, TopicError> {
        let pattern = Translator::of(regex)?;
        let first = compile(regex, &pattern)?;
        let whole = compile(regex, &format!(r"\A(?:{pattern})\z"))?;
        let replacement = parse_replacement(replacement, &first)?;
        Ok(Self { whole, first, replacement })
    }

    /// Parses an expression that matches only whole texts, without regard to case.
    pub(super) fn whole_ignoring_case(regex: &str) -> Result<Regex, TopicError> {
        compile(regex, &format!(r"(?i)\A(?:{})\z", Translator::of(regex)?))
    }

    pub(super) fn render(&self, value: &str, out: &mut String) {
        let found = self.whole.is_match(value).then(|| self.first.captures(value)).flatten();
        let Some((captures, matched)) = found.and_then(|captures| captures.get(0).map(|all| (captures, all.range())))
        else {
            return out.push_str(value);
        };
        out.push_str(value.get(..matched.start).unwrap_or_default());
        for part in &self.replacement {
            match part {
                ReplacementPart::Literal(text) => out.push_str(text),
                // A group that matched nothing is empty.
                ReplacementPart::Group(group) => out.push_str(captures.get(*group).map_or("", |group| group.as_str())),
            }
        }
        out.push_str(value.get(matched.end..).unwrap_or_default());
    }
}

fn compile(given: &str, pattern: &str) -> Result<Regex, TopicError> {
    Regex::new(pattern).map_err(|error| TopicError {
        flag: REGEX_FLAG,
        text: given.to_owned(),
        at: None,
        // If the user's expression is wrong, the error marks the character in it, and not in its translation.
        problem: TopicProblem::Regex(Regex::new(given).err().unwrap_or(error).to_string()),
        hint: None,
    })
}

fn parse_replacement(text: &str, regex: &Regex) -> Result<Vec<ReplacementPart>, TopicError> {
    let error = |at, problem| TopicError::new(REPLACEMENT_FLAG, text, at, problem);
    let mut parts = Vec::new();
    let mut rest = text.char_indices().peekable();
    while let Some((at, character)) = rest.next() {
        match character {
            '\\' => match rest.next() {
                Some((_, escaped)) => push_literal(&mut parts, escaped),
                None => return Err(error(at, TopicProblem::LoneBackslash)),
            },
            '$' => {
                parts
                    .push(ReplacementPart::Group(group(text, &mut rest, regex).map_err(|problem| error(at, problem))?));
            }
            _ => push_literal(&mut parts, character),
        }
    }
    Ok(parts)
}

fn push_literal(parts: &mut Vec<ReplacementPart>, character: char) {
    match parts.last_mut() {
        Some(ReplacementPart::Literal(text)) => text.push(character),
        _ => parts.push(ReplacementPart::Literal(character.to_string())),
    }
}

/// Reads the group that follows a `$`.
fn group(text: &str, rest: &mut Peekable<CharIndices<'_>>, regex: &Regex) -> Result<usize, TopicProblem> {
    match rest.next() {
        Some((at, '{')) => {
            let name = text.get(at + 1..).and_then(|inside| inside.split_once('}')).map(|(name, _)| name);
            let name = name.filter(|name| !name.is_empty()).ok_or(TopicProblem::BadReference)?;
            rest.by_ref().take(name.chars().count() + 1).for_each(drop);
            let position = regex.capture_names().position(|known| known == Some(name));
            position.ok_or_else(|| TopicProblem::NoGroup(name.to_owned()))
        }
        Some((_, first)) => numbered(first.to_digit(10).ok_or(TopicProblem::BadReference)?, rest, regex.captures_len()),
        None => Err(TopicProblem::BadReference),
    }
}

/// Parses a group's number. A further digit belongs to it only if there is such a group: with one group, `$12` is group 1 and a `2`.
fn numbered(first: u32, rest: &mut Peekable<CharIndices<'_>>, groups: usize) -> Result<usize, TopicProblem> {
    let mut number = first as usize;
    if number >= groups {
        return Err(TopicProblem::NoGroup(number.to_string()));
    }
    while let Some(digit) = rest.peek().and_then(|(_, next)| next.to_digit(10)) {
        let longer = number * 10 + digit as usize;
        if longer >= groups {
            break;
        }
        number = longer;
        rest.next();
    }
    Ok(number)
}

/// Translates one Java expression, character by character.
struct Translator<'p> {
    java: &'p str,
    rest: Peekable<CharIndices<'p>>,
    /// The number of open `[`.
    depth: usize,
    /// The part before is a whole quantifier, so a `+` would make it possessive.
    quantified: bool,
    previous: char,
    out: String,
}

impl<'p> Translator<'p> {
    fn of(java: &'p str) -> Result<String, TopicError> {
        let rest = java.char_indices().peekable();
        let mut pass = Self { java, rest, depth: 0, quantified: false, previous: '\0', out: String::new() };
        while let Some((at, character)) = pass.rest.next() {
            let step = match character {
                '\\' => pass.escape(),
                _ if pass.depth > 0 => {
                    pass.within_class(character);
                    Ok(())
                }
                _ => pass.outside(character, at),
            };
            step.map_err(|what| TopicError::new(REGEX_FLAG, java, at, TopicProblem::Unsupported(what)))?;
            pass.previous = if character == '\\' { '\0' } else { character };
        }
        Ok(pass.out)
    }

    fn outside(&mut self, character: char, at: usize) -> Result<(), &'static str> {
        let quantified = std::mem::replace(&mut self.quantified, false);
        match character {
            '[' => self.depth += 1,
            '(' => refuse_group(self.java.get(at + 1..).unwrap_or_default())?,
            '+' if quantified => return Err("a possessive quantifier"),
            '?' if quantified => {}
            '*' | '+' | '?' | '}' => self.quantified = true,
            _ => {}
        }
        self.out.push(character);
        Ok(())
    }

    /// Escapes a character within brackets, where the crate knows `--`, `~~` and `[:name:]` and Java does not.
    fn within_class(&mut self, character: char) {
        match character {
            '[' => self.depth += 1,
            ']' if !matches!(self.previous, '[') && !self.out.ends_with("[^") => self.depth -= 1,
            '~' => self.out.push('\\'),
            '-' if self.previous == '-' => self.out.push('\\'),
            ':' if self.previous == '[' => self.out.push('\\'),
            _ => {}
        }
        self.out.push(character);
    }

    fn escape(&mut self) -> Result<(), &'static str> {
        self.quantified = false;
        let Some((_, escaped)) = self.rest.next() else {
            self.out.push('\\');
            return Ok(());
        };
        match escaped {
            'Q' => {
                let quoted = self.up_to(r"\E");
                self.out.push_str(&regex::escape(quoted.strip_suffix(r"\E").unwrap_or(&quoted)));
            }
            'E' => {}
            '1'..='9' | 'k' => return Err("a back reference"),
            'G' => return Err(r"\G"),
            'X' => return Err(r"\X"),
            'R' if self.depth == 0 => self.out.push_str(r"(?:\r\n|[\n\x0B\x0C\r\x{85}\x{2028}\x{2029}])"),
            'Z' => self.out.push_str(r"\z"),
            'e' => self.out.push_str(r"\x1B"),
            'p' | 'P' => self.property(escaped == 'P'),
            'd' => self.set("0-9", false),
            'D' => self.set("0-9", true),
            'w' => self.set("a-zA-Z0-9_", false),
            'W' => self.set("a-zA-Z0-9_", true),
            's' => self.set(r"\x20\t\n\x0B\x0C\r", false),
            'S' => self.set(r"\x20\t\n\x0B\x0C\r", true),
            'h' => self.set(r"\x20\t\x{A0}\x{1680}\x{180E}\x{2000}-\x{200A}\x{202F}\x{205F}\x{3000}", false),
            _ if escaped.is_ascii_alphanumeric() => self.same(escaped),
            _ => self.out.push_str(&regex::escape(escaped.encode_utf8(&mut [0; 4]))),
        }
        Ok(())
    }

    /// Copies an escape that has the same meaning in the crate. Its braces are copied, too, so that they are not taken for a
    /// quantifier.
    fn same(&mut self, escaped: char) {
        self.out.extend(['\\', escaped]);
        if matches!(escaped, 'x' | 'u') && self.rest.peek().is_some_and(|(_, next)| *next == '{') {
            let braces = self.up_to("}");
            self.out.push_str(&braces);
        }
    }

    fn set(&mut self, members: &str, negated: bool) {
        match (negated, self.depth) {
            (true, _) => self.out.extend(["[^", members, "]"]),
            (false, 0) => self.out.extend(["[", members, "]"]),
            (false, _) => self.out.push_str(members),
        }
    }

    /// Translates `\p{…}`. `\p{Alpha}` and the like are ASCII in Java and Unicode in the crate. The others are the same.
    fn property(&mut self, negated: bool) {
        const POSIX: [&str; 13] = [
            "Lower", "Upper", "ASCII", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print", "Blank", "Cntrl",
            "XDigit", "Space",
        ];
        let braced = self.rest.peek().is_some_and(|(_, next)| *next == '{');
        let name = if braced { self.up_to("}") } else { String::new() };
        match POSIX.iter().find(|posix| name.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) == Some(**posix))
        {
            Some(posix) => {
                let (open, close) = if self.depth == 0 { ("[", "]") } else { ("", "") };
                let caret = if negated { "^" } else { "" };
                self.out.extend([open, "[:", caret, &posix.to_ascii_lowercase(), ":]", close]);
            }
            None => self.out.extend([if negated { r"\P" } else { r"\p" }, &name]),
        }
    }

    /// Reads up to and with `end`. If it does not come, reads the whole rest.
    fn up_to(&mut self, end: &str) -> String {
        let mut text = String::new();
        for (_, character) in self.rest.by_ref() {
            text.push(character);
            if text.ends_with(end) {
                break;
            }
        }
        text
    }
}

fn refuse_group(inside: &str) -> Result<(), &'static str> {
    const UNSUPPORTED: [(&str, &str); 5] = [
        ("?=", "a look-ahead"),
        ("?!", "a look-ahead"),
        ("?<=", "a look-behind"),
        ("?<!", "a look-behind"),
        ("?>", "an atomic group"),
    ];
    UNSUPPORTED.iter().find(|(start, _)| inside.starts_with(start)).map_or(Ok(()), |(_, what)| Err(*what))
}

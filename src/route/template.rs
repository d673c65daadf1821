//! Topic templates: `outbox.event.{route}`, `{type|kebab}`.
//!
//! In: the text of `--topic`. Out: literals, and values with filters. `{{` and `}}` stand for one brace. Spaces around a name or a
//! filter are ignored. A literal with a character that no topic may have is refused here, before the first row.

use super::{AddressRule, TopicError, TopicProblem};

const FLAG: &str = "--topic";

const HINT: &str =
    "--topic 'outbox.event.{route}': a column, or route, key, type or id, in braces; filters after it: {route|kebab}";

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    /// Each name once.
    names: Vec<String>,
    parts: Vec<TemplatePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Literal(String),
    /// The value of a name, which `name` gives as an index into [`Template::names`].
    Value {
        name: usize,
        filters: Vec<Filter>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filter {
    Lower,
    Kebab,
}

impl Filter {
    const ALL: [(&'static str, Self); 2] = [("lower", Self::Lower), ("kebab", Self::Kebab)];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, filter)| *filter)
    }

    fn apply(self, text: &str) -> String {
        let lower = text.to_lowercase();
        match self {
            Self::Lower => lower,
            Self::Kebab => lower.replace(['_', ' '], "-"),
        }
    }
}

impl Template {
    pub(super) fn new(text: &str, rule: &'static AddressRule) -> Result<Self, TopicError> {
        let template = Self { names: Vec::new(), parts: Vec::new() };
        let template = Parser { text, rule, at: 0, template }.parse()?;
        if template.parts.is_empty() {
            return Err(refused(text, 0, TopicProblem::Empty));
        }
        Ok(template)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub(super) fn render<'v>(&self, value: impl Fn(usize) -> &'v str, out: &mut String) {
        for part in &self.parts {
            match part {
                TemplatePart::Literal(text) => out.push_str(text),
                TemplatePart::Value { name, filters } => match filters.split_first() {
                    None => out.push_str(value(*name)),
                    Some((first, rest)) => {
                        let start = first.apply(value(*name));
                        out.push_str(&rest.iter().fold(start, |text, filter| filter.apply(&text)));
                    }
                },
            }
        }
    }

    fn push_literal(&mut self, character: char) {
        match self.parts.last_mut() {
            Some(TemplatePart::Literal(text)) => text.push(character),
            _ => self.parts.push(TemplatePart::Literal(character.to_string())),
        }
    }

    fn name(&mut self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }
}

fn refused(text: &str, at: usize, problem: TopicProblem) -> TopicError {
    TopicError { hint: Some(HINT), ..TopicError::new(FLAG, text, at, problem) }
}

/// Parses a template. `at` is the index of the next character of `text`, in bytes.
struct Parser<'t> {
    text: &'t str,
    rule: &'static AddressRule,
    at: usize,
    template: Template,
}

impl<'t> Parser<'t> {
    fn parse(mut self) -> Result<Template, TopicError> {
        while let Some(character) = self.rest().chars().next() {
            match character {
                '{' | '}' if self.doubled(character) => self.literal(character, 2)?,
                '{' => self.value()?,
                '}' => return Err(self.error(self.at, TopicProblem::Unopened)),
                _ => self.literal(character, character.len_utf8())?,
            }
        }
        Ok(self.template)
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn doubled(&self, brace: char) -> bool {
        self.rest().chars().nth(1) == Some(brace)
    }

    fn error(&self, at: usize, problem: TopicProblem) -> TopicError {
        refused(self.text, at, problem)
    }

    fn literal(&mut self, character: char, bytes: usize) -> Result<(), TopicError> {
        if !(self.rule.allows)(character) {
            return Err(self.error(self.at, TopicProblem::Character(character, self.rule.made_of)));
        }
        self.template.push_literal(character);
        self.at += bytes;
        Ok(())
    }

    /// Parses from behind a `{` up to its `}`.
    fn value(&mut self) -> Result<(), TopicError> {
        let open = self.at;
        let start = open + 1;
        let inside = self.text.get(start..).unwrap_or_default();
        let Some(end) = inside.find('}') else {
            return Err(self.error(open, TopicProblem::Unclosed));
        };
        let inside = inside.get(..end).unwrap_or_default();
        if let Some(nested) = inside.find('{') {
            return Err(self.error(start + nested, TopicProblem::Nested));
        }
        let (name, filters) = self.pieces(inside, start)?;
        let name = self.template.name(name);
        self.template.parts.push(TemplatePart::Value { name, filters });
        self.at = start + end + 1;
        Ok(())
    }

    /// Parses `name|filter|filter`, which begins at the byte `at`.
    fn pieces(&self, inside: &'t str, mut at: usize) -> Result<(&'t str, Vec<Filter>), TopicError> {
        let mut pieces = inside.split('|');
        let first = pieces.next().unwrap_or_default();
        let name = first.trim();
        if name.is_empty() {
            return Err(self.error(at, TopicProblem::NoName));
        }
        at += first.len();
        let mut filters = Vec::new();
        for piece in pieces {
            at += 1;
            let blank = piece.len() - piece.trim_start().len();
            filters.push(Filter::named(piece.trim()).ok_or_else(|| self.error(at + blank, unknown(piece.trim())))?);
            at += piece.len();
        }
        Ok((name, filters))
    }
}

fn unknown(name: &str) -> TopicProblem {
    let nearest =
        Filter::ALL.iter().map(|(known, _)| *known).find(|known| strsim::damerau_levenshtein(known, name) <= 2);
    TopicProblem::UnknownFilter { name: name.to_owned(), nearest }
}

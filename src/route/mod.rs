//! Determines the topic of a row.
//!
//! ```text
//!  setting ──► TopicRule::new ──► names() ──► the table's plan says which columns they are
//!  a row's values for them ──► LastTopic::resolve ──► a checked topic name
//! ```
//!
//! In: a template, or a regular expression with its replacement; and for each row, the values of the names that it uses. Out: a name
//! that the destination's [`AddressRule`] allows, or why there is none. The rows of a transaction mostly go to one topic. So if the values are
//! the same as for the row before, the topic is not made again. This folder does not know columns, or whether a topic exists.

mod address_rule;
mod java;
mod template;

pub use address_rule::{AddressRule, TOPICS, TopicFault};

use crate::setting_text::shown;
use java::JavaRegex;
use regex::Regex;
use std::fmt;
use template::Template;

/// Parses a regular expression in Java's syntax, which matches only whole texts, without regard to case.
///
/// # Errors
/// The expression is not well-formed, or the crate `regex` has no counterpart of it.
pub(crate) fn whole_match(java: &str) -> Result<Regex, TopicProblem> {
    JavaRegex::whole_ignoring_case(java).map_err(|error| error.problem)
}

/// The setting from which records get their topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicSetting {
    /// A template such as `outbox.event.{route}`.
    Template(String),
    /// A regular expression, and a replacement. Both apply to the value of the route.
    Regex {
        /// Java's syntax.
        regex: String,
        /// Java's syntax: `$1`, `${name}`, `\$`.
        replacement: String,
    },
}

impl TopicSetting {
    /// The common prefix of the topics of all rows. Empty: it is not known.
    pub fn begins(&self) -> &str {
        match self {
            Self::Template(template) => template.split('{').next().unwrap_or_default(),
            Self::Regex { .. } => "",
        }
    }
}

impl Default for TopicSetting {
    fn default() -> Self {
        Self::Template("outbox.event.{route}".to_owned())
    }
}

/// The parsed rule by which rows get their topics.
#[derive(Debug, Clone)]
pub struct TopicRule {
    form: TopicForm,
    rule: &'static AddressRule,
}

#[derive(Debug, Clone)]
enum TopicForm {
    Template(Template),
    Regex(JavaRegex),
}

/// A value that a [`TopicRule`] needs from each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicInput<'t> {
    /// The column of this name or, if the table has none, the role.
    ColumnOrRole(&'t str),
    /// The column with the role `route`, whatever its name.
    Route,
}

impl TopicRule {
    /// Parses the setting. `rule`: the form that every topic must have.
    ///
    /// # Errors
    /// The template or the regular expression is not well-formed, or can never give a valid topic. The error marks the character.
    pub fn new(setting: &TopicSetting, rule: &'static AddressRule) -> Result<Self, TopicError> {
        let form = match setting {
            TopicSetting::Template(text) => TopicForm::Template(Template::new(text, rule)?),
            TopicSetting::Regex { regex, replacement } => TopicForm::Regex(JavaRegex::new(regex, replacement)?),
        };
        Ok(Self { form, rule })
    }

    /// The names of the values that the rule needs, each once, in the order in which [`TopicRule::render`] asks for them.
    pub fn names(&self) -> Vec<TopicInput<'_>> {
        match &self.form {
            TopicForm::Template(template) => template.names().map(TopicInput::ColumnOrRole).collect(),
            TopicForm::Regex(_) => vec![TopicInput::Route],
        }
    }

    /// Appends the topic to `out`. `value` returns the text for an index into [`TopicRule::names`].
    pub fn render<'v>(&self, value: impl Fn(usize) -> &'v str, out: &mut String) {
        match &self.form {
            TopicForm::Template(template) => template.render(value, out),
            TopicForm::Regex(regex) => regex.render(value(0), out),
        }
    }
}

/// The topic of the last row, and the values that gave it. It has only names that the [`AddressRule`] allows.
#[derive(Debug, Clone, Default)]
pub struct LastTopic {
    /// The values in the order of [`TopicRule::names`]. Only meaningful if `name` is not empty.
    values: Vec<String>,
    /// Empty: there was no row yet.
    name: String,
}

impl LastTopic {
    /// Returns the topic for `values`, which are in the order of [`TopicRule::names`].
    ///
    /// # Errors
    /// The values give no valid topic.
    pub fn resolve<'v, V>(&mut self, topic: &TopicRule, values: V) -> Result<&str, NoTopic>
    where
        V: ExactSizeIterator<Item = &'v [u8]> + Clone,
    {
        if !self.repeats(values.clone()) {
            self.render(topic, values)?;
        }
        Ok(&self.name)
    }

    #[inline]
    fn repeats<'v>(&self, values: impl ExactSizeIterator<Item = &'v [u8]>) -> bool {
        !self.name.is_empty()
            && self.values.len() == values.len()
            && self.values.iter().zip(values).all(|(last, value)| last.as_bytes() == value)
    }

    fn render<'v>(&mut self, topic: &TopicRule, values: impl Iterator<Item = &'v [u8]>) -> Result<(), NoTopic> {
        self.name.clear();
        self.values.clear();
        for (name, value) in values.enumerate() {
            let text = std::str::from_utf8(value).map_err(|_| NoTopic::NotUtf8 { name })?;
            self.values.push(text.to_owned());
        }
        topic.render(|name| self.values.get(name).map_or("", String::as_str), &mut self.name);
        topic.rule.check(&self.name).map_err(|fault| NoTopic::Invalid { topic: std::mem::take(&mut self.name), fault })
    }
}

/// The reason for which a row's values give no topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoTopic {
    /// The value with this index in [`TopicRule::names`] is not UTF-8.
    NotUtf8 {
        /// The index.
        name: usize,
    },
    /// The result is not a topic name.
    Invalid {
        /// The whole result.
        topic: String,
        /// The fault in it.
        fault: TopicFault,
    },
}

/// A `--topic`, `--topic-regex` or `--topic-replacement` that cannot be parsed. Its text has three lines. The last one marks the
/// character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicError {
    /// The setting's flag.
    pub flag: &'static str,
    /// The setting, as the user gave it.
    pub text: String,
    /// The index of the wrong character, from 0. `None`: the text of the problem marks it.
    pub at: Option<usize>,
    /// The fault there.
    pub problem: TopicProblem,
    /// The form of the setting, if that needs an explanation.
    pub hint: Option<&'static str>,
}

impl TopicError {
    fn new(flag: &'static str, text: &str, at_byte: usize, problem: TopicProblem) -> Self {
        let at = text.char_indices().take_while(|&(byte, _)| byte < at_byte).count();
        Self { flag, text: text.to_owned(), at: Some(at), problem, hint: None }
    }
}

impl std::error::Error for TopicError {}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.flag, self.problem)?;
        match self.at {
            // A line break within the setting would move the mark to a wrong character.
            Some(at) => write!(f, "\n  {}\n  {:>2$}", self.text.replace(char::is_control, " "), "^", at + 1),
            None => Ok(()),
        }
    }
}

/// The fault of a topic setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicProblem {
    /// The setting is empty.
    #[error("it is empty")]
    Empty,
    /// A `{` is never closed.
    #[error("this '{{' has no '}}'")]
    Unclosed,
    /// A `}` that closes nothing.
    #[error("this '}}' closes nothing ('}}}}' writes one)")]
    Unopened,
    /// A `{` within braces.
    #[error("a '{{' within braces")]
    Nested,
    /// There is no name between braces, or before a filter.
    #[error("a column or one of id, route, key, type is wanted here")]
    NoName,
    /// A filter that does not exist.
    #[error("\"{}\" is not a filter{}: lower and kebab are", shown(name.as_bytes()), did_you_mean(*.nearest))]
    UnknownFilter {
        /// The filter's name in the template.
        name: String,
        /// The nearest known filter, if there is one.
        nearest: Option<&'static str>,
    },
    /// A character that no topic may have, and the allowed ones: [`AddressRule::made_of`].
    #[error("{0:?} is not allowed in {1}")]
    Character(char, &'static str),
    /// The regular expression is not well-formed. The text is the crate's, and marks the character.
    #[error("{0}")]
    Regex(String),
    /// A part of Java's syntax that has no counterpart.
    #[error("{0} is not supported in a regular expression")]
    Unsupported(&'static str),
    /// A `$` that names no group.
    #[error("a group is wanted after '$': a number or {{name}} ('\\$' writes a dollar)")]
    BadReference,
    /// A group that the regular expression does not have.
    #[error("the regular expression has no group {}", shown(.0.as_bytes()))]
    NoGroup(String),
    /// A backslash at the end.
    #[error("nothing follows this backslash")]
    LoneBackslash,
}

fn did_you_mean(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(" (did you mean {name}?)"))
}

#[cfg(test)]
mod tests;

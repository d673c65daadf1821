//! The form of a destination's addresses: one rule for templates, for the addresses that rows give, and for dead letters.
//!
//! In: a name. Out: whether the destination could have such an address, or what is wrong with it. Whether it has is the
//! destination's to say.

use std::fmt;

/// A destination's rule.
pub struct Rule {
    /// The valid form, for messages.
    pub expected: &'static str,
    /// An address and what it may be made of, for messages: `a topic (letters, digits, '.', '_' and '-' are)`.
    pub made_of: &'static str,
    /// Whether an address may hold the character, wherever.
    pub allows: fn(char) -> bool,
    /// The longest address, in bytes.
    pub longest_bytes: usize,
    /// Finds a fault in an address of allowed characters.
    pub also: fn(&str) -> Option<TopicFault>,
}

/// Topics that Kafka's brokers accept: `[a-zA-Z0-9._-]{1,249}`, but not `.` or `..`. A broker's file names contain the topic.
pub static TOPICS: Rule = Rule {
    expected: "1 to 249 letters, digits, dots, underscores and hyphens",
    made_of: "a topic (letters, digits, '.', '_' and '-' are)",
    allows: |character| character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-'),
    longest_bytes: 249,
    also: |name| matches!(name, "." | "..").then_some(TopicFault::Dots),
};

impl Rule {
    /// Whether `name` may be an address.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, name: &str) -> Result<(), TopicFault> {
        if name.is_empty() {
            return Err(TopicFault::Empty);
        }
        if let Some(character) = name.chars().find(|&character| !(self.allows)(character)) {
            return Err(TopicFault::Character(character, self.made_of));
        }
        if name.len() > self.longest_bytes {
            return Err(TopicFault::TooLong(name.len(), self.longest_bytes));
        }
        (self.also)(name).map_or(Ok(()), Err)
    }
}

impl Default for &'static Rule {
    fn default() -> Self {
        &TOPICS
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.expected == other.expected
    }
}

impl Eq for Rule {}

/// A fault in an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicFault {
    /// No character at all.
    #[error("it is empty")]
    Empty,
    /// `.` or `..`.
    #[error("a name of dots alone is not allowed")]
    Dots,
    /// A character that is not allowed, and where not: [`Rule::made_of`].
    #[error("{0:?} is not allowed in {1}")]
    Character(char, &'static str),
    /// Its length, and the longest that is allowed.
    #[error("it has {0} characters, {1} are allowed")]
    TooLong(usize, usize),
    /// Nothing stands before, between or behind dots.
    #[error("a part between its dots is empty")]
    EmptyPart,
    /// It is not of this shape.
    #[error("it is not {0}")]
    Shape(&'static str),
    /// It begins with what the server keeps for itself.
    #[error("names that begin with {0} are the server's own")]
    Reserved(&'static str),
}

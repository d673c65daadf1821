//! [`AddressRule`]: the form that a destination's addresses must have. The same rule applies to templates, for the addresses of rows, and for
//! dead letters.
//!
//! In: a name. Out: whether it is a valid address, or what is wrong with it. Whether the address exists, only the destination knows.

use std::fmt;

/// A destination's rule.
pub struct AddressRule {
    /// The valid form, for messages.
    pub expected: &'static str,
    /// The kind of address and its allowed characters, for messages: `a topic (letters, digits, '.', '_' and '-' are)`.
    pub made_of: &'static str,
    /// Whether an address may have the character, anywhere.
    pub allows: fn(char) -> bool,
    /// The longest address, in bytes.
    pub longest_bytes: usize,
    /// Finds any other fault in an address whose characters are all allowed.
    pub also: fn(&str) -> Option<TopicFault>,
}

/// Topics that Kafka's brokers accept: `[a-zA-Z0-9._-]{1,249}`, but not `.` or `..`. A broker's file names contain the topic.
pub static TOPICS: AddressRule = AddressRule {
    expected: "1 to 249 letters, digits, dots, underscores and hyphens",
    made_of: "a topic (letters, digits, '.', '_' and '-' are)",
    allows: |character| character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-'),
    longest_bytes: 249,
    also: |name| matches!(name, "." | "..").then_some(TopicFault::Dots),
};

impl AddressRule {
    /// Whether `name` is a valid address.
    ///
    /// # Errors
    /// The fault in it.
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

impl Default for &'static AddressRule {
    fn default() -> Self {
        &TOPICS
    }
}

impl fmt::Debug for AddressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }
}

impl PartialEq for AddressRule {
    fn eq(&self, other: &Self) -> bool {
        self.expected == other.expected
    }
}

impl Eq for AddressRule {}

/// A fault in an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicFault {
    /// It has no characters.
    #[error("it is empty")]
    Empty,
    /// `.` or `..`.
    #[error("a name of dots alone is not allowed")]
    Dots,
    /// It has a character that is not allowed. The text has the allowed ones: [`AddressRule::made_of`].
    #[error("{0:?} is not allowed in {1}")]
    Character(char, &'static str),
    /// Its length, and the longest that is allowed.
    #[error("it has {0} characters, {1} are allowed")]
    TooLong(usize, usize),
    /// A part before, between or behind dots is empty.
    #[error("a part between its dots is empty")]
    EmptyPart,
    /// It does not have this form.
    #[error("it is not {0}")]
    Shape(&'static str),
    /// It begins with a prefix that the server reserves.
    #[error("names that begin with {0} are the server's own")]
    Reserved(&'static str),
}

//! Hints as values: words, SQL, and commands of this program.
//!
//! In: the parts of a hint, and the flags that the user typed. Out: the hint as a text, in which each command also has those flags, so that
//! it can be pasted and loses nothing. Pure. No secret comes out.

mod typed_flags;

pub use typed_flags::TypedFlags;

use crate::setting_text::{is_secret, names_a_file, shell_quoted, shown_source};
use serde::{Serialize, Serializer};
use std::fmt;

/// A hint: it tells the user how to fix a problem. A text becomes one by `from`, SQL by [`Remedy::sql`], and [`Remedy::and`] joins them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy(Vec<Part>);

/// A part of a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Words for people, with the blanks around a command.
    Text(String),
    /// Statements with their semicolons, for `psql`.
    Sql(String),
    /// A command of this program.
    Command(Command),
}

impl Remedy {
    /// Statements that can be pasted into `psql`.
    pub fn sql(statements: impl Into<String>) -> Self {
        Self(vec![Part::Sql(statements.into())])
    }

    /// Drops a slot and creates it again.
    pub fn new_slot(slot: &str) -> Self {
        let drop = Command::new("teardown").set("--slot", slot).flag("--yes");
        Self::from(drop).and(" && ").and(Command::new("setup").flag("--apply").set("--slot", slot))
    }

    /// The remedy with more behind it.
    #[must_use]
    pub fn and(mut self, more: impl Into<Self>) -> Self {
        for part in more.into().0 {
            match (self.0.last_mut(), part) {
                (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
                (_, part) => self.0.push(part),
            }
        }
        self
    }

    /// Its parts, in the order in which they are read.
    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    /// The remedy whose commands also have the flags that the user typed, as far as each takes them.
    #[must_use]
    pub fn with(mut self, typed: &TypedFlags) -> Self {
        for part in &mut self.0 {
            if let Part::Command(command) = part {
                typed.complete(command);
            }
        }
        self
    }
}

impl From<&str> for Remedy {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Self(vec![Part::Text(text)])
    }
}

impl From<Command> for Remedy {
    fn from(command: Command) -> Self {
        Self(vec![Part::Command(command)])
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| part.fmt(f))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Sql(text) => f.write_str(text),
            Self::Command(command) => command.fmt(f),
        }
    }
}

impl Serialize for Remedy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A command of this program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// `run`.
    name: &'static str,
    /// Its flags, in the order in which they are typed.
    arguments: Vec<Argument>,
}

impl Command {
    /// The command of this name, without flags.
    pub const fn new(name: &'static str) -> Self {
        Self { name, arguments: Vec::new() }
    }

    /// The command with one more flag, which has no value.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.arguments.push(Argument { flag: flag.to_owned(), value: None });
        self
    }

    /// The command with one more flag, which has a value.
    #[must_use]
    pub fn set(mut self, flag: &str, value: impl fmt::Display) -> Self {
        self.arguments.push(Argument { flag: flag.to_owned(), value: Some(value.to_string()) });
        self
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "walrelay {}", self.name)?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// A flag, with its value if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// `--topic`, or `-X` where there is no long name; with `=` and the value where that is no word of its own.
    flag: String,
    /// The word behind it.
    value: Option<String>,
}

impl Argument {
    /// A flag as the user typed it. An address loses its password, and a property that is a secret its value.
    pub fn typed(flag: &str, value: Option<&str>) -> Self {
        let shown = |value: &str| match value.split_once('=') {
            _ if ADDRESSES.contains(&flag) => shown_source(value),
            _ if flag.ends_with("-password") && !names_a_file(value) => "…".to_owned(),
            Some((key, secret)) if flag == "-X" && is_secret(key) && !names_a_file(secret) => format!("{key}=…"),
            _ => value.to_owned(),
        };
        Self { flag: flag.to_owned(), value: value.map(shown) }
    }

    /// The flag, without a value in the same word.
    fn name(&self) -> &str {
        self.flag.split('=').next().unwrap_or_default()
    }

    /// Whether a command that has this one must not have the other.
    fn replaces(&self, other: &Self) -> bool {
        fn key(value: &str) -> Option<&str> {
            value.split('=').next()
        }
        if EXCLUDING.iter().any(|(of_shards, others)| {
            let is = |one: &Self, two: &Self| one.name() == *of_shards && others.contains(&two.name());
            is(self, other) || is(other, self)
        }) {
            return true;
        }
        self.name() == other.name()
            && match (&self.value, &other.value) {
                (Some(own), Some(other)) if KEYED.contains(&self.flag.as_str()) => key(own) == key(other),
                _ => true,
            }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.flag)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, " {}", shell_quoted(value)))
    }
}

/// The flags of shards, each with those that `setup` refuses beside it.
const EXCLUDING: [(&str, &[&str]); 2] = [
    ("--shards", &["--reshard", "--backfill", "--create-table", "--role"]),
    ("--reshard", &["--backfill", "--create-table", "--role"]),
];

/// Flags with `KEY=VALUE`, of which each key has one value.
const KEYED: [&str; 4] = ["-X", "--header", "--envelope", "--bad-row-at"];

/// Flags with an address that may have a password in it.
const ADDRESSES: [&str; 3] = ["--source", "--to", "--schema-registry"];

#[cfg(test)]
mod tests;

//! A setting before it means anything: its text, and where its user gave it.
//!
//! In: texts. Out: [`Given`], the error that names its [`Origin`], durations and sizes, the nearest known word, words of a shell, what
//! messages quote. Knows no setting, no command and no destination; those who do say what is valid.

mod error;
mod nearest;
mod percent;
mod shell;
mod shown;
pub mod units;

pub use error::SettingError;
pub use nearest::nearest;
pub use percent::{percent_decoded, percent_encoded};
pub use shell::shell_quoted;
pub use shown::{one_line, shown, shown_path};

use std::fmt;
use std::path::PathBuf;

/// A value as its user gave it. No `Debug`: it may be a secret.
#[derive(Clone)]
pub struct Given {
    /// The value.
    pub text: String,
    /// Where it was given.
    pub origin: Origin,
}

impl Given {
    /// The error that the value is not valid.
    pub fn invalid(&self, expected: impl Into<String>, nearest: Option<String>) -> SettingError {
        SettingError::Value {
            origin: self.origin.clone(),
            value: self.text.clone(),
            expected: expected.into(),
            nearest,
        }
    }

    /// The error that it needs another setting.
    pub fn needs(&self, other: &'static str) -> SettingError {
        SettingError::Needs { origin: self.origin.clone(), other }
    }

    /// The error that it and another exclude each other.
    pub fn excludes(&self, other: &Self) -> SettingError {
        SettingError::Exclusive { first: self.origin.clone(), second: other.origin.clone() }
    }
}

/// Whether a property's value may be a secret, or have one in it.
pub fn is_secret(property: &str) -> bool {
    // What runs to print a secret is none.
    let is_command = property.ends_with("command");
    let parts = ["password", "secret", "pem", "private", "oauthbearer.config", "jaas"];
    property == "token" || !is_command && parts.iter().any(|part| property.contains(part))
}

/// Where a setting was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// On the command line, as `--slot`.
    Flag(String),
    /// In a file that a flag, a variable or a key names: `-X password=@FILE`.
    FlagFile(Box<FlagFile>),
    /// In the environment, as `WALRELAY_SLOT`.
    Variable(String),
    /// In the file.
    Key(Box<Key>),
    /// In a file of another program (`--from-debezium`).
    Translated(Box<Key>),
}

/// What names the file with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagFile {
    /// Where it does, as `-X password`.
    pub flag: String,
    /// The file.
    pub file: PathBuf,
}

/// A key of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1.
    pub line: usize,
    /// The key as it is written there.
    pub name: String,
}

/// Of a key's name, in characters, for messages.
const LONGEST_KEY: usize = 200;

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => f.write_str(name),
            // Debezium's may hold anything.
            Self::Variable(name) => f.write_str(&one_line(name, LONGEST_KEY)),
            Self::FlagFile(given) => f.write_str(&given.flag),
            Self::Key(key) | Self::Translated(key) => {
                let name = one_line(&key.name, LONGEST_KEY);
                write!(f, "{name} ({}, line {})", shown_path(&key.file), key.line)
            }
        }
    }
}

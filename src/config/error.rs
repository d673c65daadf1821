//! What can be wrong with settings, and what to type instead.
//!
//! Each names the setting as its user gave it: the flag, the variable, or the file's key and line.
//! Invariant: no text here holds the value of a setting that may be a secret.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::cli;
use crate::debezium::DebeziumError;
use crate::pg::source::{Place, SourceError};

/// Where a setting was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// On the command line, as `--slot`.
    Flag(String),
    /// In the environment, as `WALRELAY_SLOT`.
    Variable(String),
    /// In the file.
    Key(Box<Key>),
    /// In a file of another program (`--from-debezium`).
    Translated(Box<Key>),
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

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::Key(key) | Self::Translated(key) => {
                write!(f, "{} ({}, line {})", key.name, key.file.display(), key.line)
            }
        }
    }
}

/// Settings that are wrong. Nothing was contacted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The arguments.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// What to type instead.
        hint: String,
    },
    /// A value.
    #[error("{origin}: \"{value}\" is not valid: expected {expected}")]
    Value {
        /// Where it was given.
        origin: Origin,
        /// The value.
        value: String,
        /// What is valid.
        expected: String,
        /// What is nearest to it.
        nearest: Option<String>,
    },
    /// A list where one value belongs.
    #[error("{origin}: expected one value, not a list")]
    List {
        /// Where it was given.
        origin: Origin,
    },
    /// A key of the file that is no setting.
    #[error("{}, line {line}: unknown key \"{key}\"", file.display())]
    UnknownKey {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The setting that was probably meant.
        nearest: Option<String>,
    },
    /// A `WALRELAY_*` variable that is no setting.
    #[error("unknown variable {name}")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The variable that was probably meant.
        nearest: Option<String>,
    },
    /// A variable or key for something that only a command line can ask for.
    #[error("{origin}: this is given on the command line only")]
    CommandLineOnly {
        /// Where it was given.
        origin: Origin,
        /// The flag.
        flag: String,
    },
    /// A file that cannot be read.
    #[error("{origin}: cannot read {}", file.display())]
    Unreadable {
        /// The setting that names it.
        origin: Origin,
        /// The file.
        file: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file's syntax.
    #[error("{}, line {line}: {message}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// Two settings that exclude each other.
    #[error("{first} and {second} exclude each other")]
    Exclusive {
        /// One.
        first: Origin,
        /// The other.
        second: Origin,
    },
    /// A setting that needs another.
    #[error("{origin} needs {other}")]
    Needs {
        /// The one given.
        origin: Origin,
        /// The one missing.
        other: &'static str,
    },
    /// A property of librdkafka that would break a guarantee.
    #[error("{origin}: {setting} is refused: {reason}")]
    Refused {
        /// Where it was given.
        origin: Origin,
        /// The property, with its value where that is part of the reason.
        setting: String,
        /// The guarantee.
        reason: &'static str,
        /// What to do instead.
        hint: Option<String>,
    },
    /// Files of `--from-debezium`.
    #[error(transparent)]
    Debezium(#[from] DebeziumError),
    /// The source.
    #[error("{origin}")]
    Source {
        /// Where the wrong part was given.
        origin: String,
        /// What is wrong with it.
        source: SourceError,
    },
}

impl ConfigError {
    /// An error about the source, whose connection string was given at `text`.
    pub(super) fn source(source: SourceError, text: Option<&Origin>) -> Self {
        let origin = match (&source.place, text) {
            (Place::Text, Some(origin)) => origin.to_string(),
            (place, _) => place.to_string(),
        };
        Self::Source { origin, source }
    }

    /// What to type instead; `None` when the error says it all.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => Some(hint.clone()),
            Self::Value { nearest, .. } => {
                nearest.as_ref().map(|nearest| format!("the nearest valid value is {nearest}"))
            }
            Self::UnknownKey { nearest, .. } => {
                Some(nearest.as_ref().map_or_else(settings_in_help, |nearest| format!("the nearest key is {nearest}")))
            }
            Self::UnknownVariable { nearest, .. } => Some(
                nearest.as_ref().map_or_else(settings_in_help, |nearest| format!("the nearest variable is {nearest}")),
            ),
            Self::CommandLineOnly { flag, .. } => Some(format!("--{flag}")),
            Self::Exclusive { .. } => Some("leave one of them out".to_owned()),
            Self::Refused { hint, .. } => hint.clone(),
            Self::Debezium(error) => error.hint(),
            Self::Source { source, .. } => source.hint(),
            Self::List { .. } | Self::Unreadable { .. } | Self::Syntax { .. } | Self::Needs { .. } => None,
        }
    }
}

fn settings_in_help() -> String {
    "walrelay run --help lists the settings".to_owned()
}

/// Why there is nothing to run.
#[derive(Debug)]
pub enum Exit {
    /// Help or version was asked for: this text, for stdout, and exit code 0.
    Asked(String),
    /// The settings are wrong: exit code 64.
    Wrong(ConfigError),
}

impl Exit {
    /// The process' exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Asked(_) => 0,
            Self::Wrong(_) => 64,
        }
    }
}

impl fmt::Display for Exit {
    /// All that is to be printed: help, or the error's line with its causes and the hint's line. Ends with a newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(text) => f.write_str(text),
            Self::Wrong(error) => {
                write!(f, "error: {error}")?;
                let mut cause = std::error::Error::source(error);
                while let Some(error) = cause {
                    write!(f, ": {error}")?;
                    cause = error.source();
                }
                writeln!(f)?;
                error.hint().map_or(Ok(()), |hint| writeln!(f, "hint: {hint}"))
            }
        }
    }
}

impl From<ConfigError> for Exit {
    fn from(error: ConfigError) -> Self {
        Self::Wrong(error)
    }
}

impl From<cli::Refused> for Exit {
    fn from(refused: cli::Refused) -> Self {
        match refused {
            cli::Refused::Asked(text) => Self::Asked(text),
            cli::Refused::Usage { message, hint } => Self::Wrong(ConfigError::Usage { message, hint }),
        }
    }
}

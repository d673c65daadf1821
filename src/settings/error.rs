//! What can be wrong with settings, and what to type instead.
//!
//! Each names the setting as its user gave it: the flag, the variable, or the file's key and line.
//! Invariant: no text here holds the value of a setting that may be a secret.

use std::fmt;
use std::path::PathBuf;

use crate::debezium::DebeziumError;
use crate::given::{Origin, SettingError};
use crate::pg::source::{SourceError, SourcePlace};
use crate::supervise::{ExitKind, chain};

/// Settings that are wrong. Nothing was contacted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// One setting's value, or that of two together.
    #[error(transparent)]
    Setting(#[from] SettingError),
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
    /// As [`SettingError::usage`].
    pub(super) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        SettingError::usage(message, hint).into()
    }

    /// An error about the source, whose connection string was given at `text`.
    pub(super) fn source(source: SourceError, text: Option<&Origin>) -> Self {
        let origin = match (&source.place, text) {
            (SourcePlace::Text, Some(origin)) => origin.to_string(),
            (place, _) => place.to_string(),
        };
        Self::Source { origin, source }
    }

    /// What to type instead; `None` when the error says it all.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Setting(error) => error.hint(),
            Self::UnknownKey { nearest, .. } => {
                Some(nearest.as_ref().map_or_else(settings_in_help, |nearest| format!("the nearest key is {nearest}")))
            }
            Self::UnknownVariable { nearest, .. } => Some(
                nearest.as_ref().map_or_else(settings_in_help, |nearest| format!("the nearest variable is {nearest}")),
            ),
            Self::CommandLineOnly { flag, .. } => Some(format!("--{flag}")),
            Self::Debezium(error) => error.hint(),
            Self::Source { source, .. } => source.hint(),
            Self::List { .. } | Self::Syntax { .. } => None,
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
            Self::Wrong(_) => ExitKind::Settings.exit_code(),
        }
    }
}

impl fmt::Display for Exit {
    /// All that is to be printed: help, or the error's line with its causes and the hint's line. Ends with a newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(text) => f.write_str(text),
            Self::Wrong(error) => {
                writeln!(f, "error: {}", chain(error))?;
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

impl From<SettingError> for Exit {
    fn from(error: SettingError) -> Self {
        Self::Wrong(error.into())
    }
}

//! Errors in a source's settings, and the hints that fix them.
//!
//! Invariant: no text here has a password, or a part of a connection string that might be one. A part that might be a password is
//! described by its position and not quoted. A quoted part is shortened, and has one line.

use std::fmt;

use crate::secret::SecretError;
use crate::setting_text::shown;

/// The origin of a part of the source, for messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourcePart {
    /// The connection URI or keyword string itself.
    Text,
    /// A section of a service file.
    Service(String),
    /// An environment variable, such as `PGSSLMODE`.
    Variable(&'static str),
    /// A setting of walrelay, such as `--source-password-file`.
    Setting(&'static str),
    /// The default.
    Default,
}

impl fmt::Display for SourcePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("the connection string"),
            Self::Service(name) => write!(f, "service {}", shown(name.as_bytes())),
            Self::Variable(name) | Self::Setting(name) => f.write_str(name),
            Self::Default => f.write_str("libpq's defaults"),
        }
    }
}

/// A wrong setting of a source, and its origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", problem.text)]
pub struct SourceError {
    /// The origin of the setting.
    pub part: SourcePart,
    /// The problem with that setting.
    pub problem: SourceProblem,
}

/// The problem with a setting of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceProblem {
    /// The problem, for people.
    pub text: String,
    /// The text to type instead. `None`: the error says enough.
    pub hint: Option<String>,
}

impl SourceProblem {
    /// A problem whose text is enough.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), hint: None }
    }

    /// A problem, and what to type instead.
    pub(super) fn with_hint(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { text: text.into(), hint: Some(hint.into()) }
    }

    /// A text that is no connection string.
    pub(super) fn no_source(text: impl Into<String>) -> Self {
        Self::with_hint(text, "postgres://user@host:5432/dbname?sslmode=verify-full")
    }

    /// A value that the keyword does not allow. `nearest`: the valid value that was probably meant.
    pub(super) fn value(keyword: &str, value: &str, expected: &str, nearest: Option<&str>) -> Self {
        Self {
            text: format!("{keyword} \"{}\" is not valid: expected {expected}", shown(value.as_bytes())),
            hint: nearest.map(|nearest| format!("the nearest valid value is {nearest}")),
        }
    }

    /// The problem with its origin.
    pub(super) const fn at(self, part: SourcePart) -> SourceError {
        SourceError { part, problem: self }
    }
}

impl From<SecretError> for SourceProblem {
    fn from(error: SecretError) -> Self {
        Self::new(error.to_string())
    }
}

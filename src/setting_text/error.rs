//! The error of settings, whichever they are: what is wrong, and what to type instead.
//!
//! Each names the setting as its user gave it: the flag, the variable, or the file's key and line.
//! Invariant: no text here holds the value of a setting that may be a secret.

use super::Origin;
use std::error::Error;
use std::io;
use std::path::Path;

/// A setting that is wrong. Nothing was contacted.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct SettingError {
    text: String,
    /// The text to type instead; `None` when the error says it all.
    pub hint: Option<String>,
    /// The settings are right, but a secret that they name cannot be had.
    pub lacks_secret: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SettingError {
    /// An error in words alone.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), hint: None, lacks_secret: false, source: None }
    }

    /// An error in words, with the text to type instead.
    pub fn usage(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..Self::new(text) }
    }

    /// A fault in the syntax of a file; `line`: from 1.
    pub fn syntax(file: &Path, line: usize, message: &str) -> Self {
        Self::new(format!("{}, line {line}: {message}", file.display()))
    }

    /// A file that cannot be read, with the setting that names it and the operating system's reason.
    pub fn unreadable(setting: impl std::fmt::Display, file: &Path, source: io::Error) -> Self {
        Self::new(format!("{setting}: cannot read {}", file.display())).caused_by(source)
    }

    /// Two settings that exclude each other.
    pub fn exclusive(first: &Origin, second: &Origin) -> Self {
        Self::usage(format!("{first} and {second} exclude each other"), "leave one of them out")
    }

    /// A setting that would break a guarantee; `setting`: with its value where that is part of the reason.
    pub fn refused(origin: &Origin, setting: &str, reason: &str) -> Self {
        Self::new(format!("{origin}: {setting} is refused: {reason}"))
    }

    /// A property that its destination does not have. `hint`: the property that was probably meant; else those that there are.
    pub fn unknown_property(origin: &Origin, destination: &str, property: &str, hint: String) -> Self {
        Self::usage(format!("{origin}: {destination} has no property \"{property}\""), hint)
    }

    /// Marks the error as one of a secret that cannot be had, though the settings are right.
    #[must_use]
    pub fn lacking_secret(self) -> Self {
        Self { lacks_secret: true, ..self }
    }

    /// Replaces the hint.
    #[must_use]
    pub fn with_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }
}

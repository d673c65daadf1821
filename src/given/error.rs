//! What can be wrong with a setting, whichever it is, and what to type instead.
//!
//! Each error names the setting as its user gave it. Invariant: no text here holds the value of a setting that may be a secret.

use super::Origin;
use std::io;
use std::path::PathBuf;

/// A setting that is wrong. Nothing was contacted.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
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
    /// The client of a destination refuses what it was given, in its own words.
    #[error("{text}")]
    Client {
        /// They name what is wrong, and show no secret.
        text: String,
        /// What to set, where that is known.
        hint: Option<String>,
    },
    /// Nothing is wrong with what was set, but a secret that it names cannot be had.
    #[error("{text}")]
    Credentials {
        /// It names the setting and the reason, and shows no secret.
        text: String,
    },
    /// A property that its destination does not have.
    #[error("{origin}: {destination} has no property \"{property}\"")]
    UnknownProperty {
        /// Where it was given.
        origin: Origin,
        /// The destination's title.
        destination: &'static str,
        /// As it was given.
        property: String,
        /// The property that was probably meant; else what there is.
        hint: String,
    },
}

impl SettingError {
    /// The arguments are wrong. `hint`: what to type instead.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: hint.into() }
    }

    /// What to type instead; `None` when the error says it all.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } | Self::UnknownProperty { hint, .. } => Some(hint.clone()),
            Self::Value { nearest, .. } => {
                nearest.as_ref().map(|nearest| format!("the nearest valid value is {nearest}"))
            }
            Self::Exclusive { .. } => Some("leave one of them out".to_owned()),
            Self::Refused { hint, .. } | Self::Client { hint, .. } => hint.clone(),
            Self::Unreadable { .. } | Self::Needs { .. } | Self::Credentials { .. } => None,
        }
    }
}

//! Errors in the files of a Debezium configuration that are found before their keys are translated.
//!
//! Invariant: no text here has a value, since it may be a secret.

use std::io;
use std::path::PathBuf;

/// The files cannot be read or understood.
#[derive(Debug, thiserror::Error)]
pub enum DebeziumError {
    /// A file cannot be read.
    #[error("--from-debezium: cannot read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file is neither properties nor a connector's JSON.
    #[error("{}, line {line}: {message}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The fault, without the key's value.
        message: String,
    },
    /// The files are not one Debezium configuration.
    #[error("--from-debezium: {message}")]
    Together {
        /// The reason.
        message: String,
        /// What to write instead.
        hint: &'static str,
    },
    /// Some keys cannot be carried over.
    #[error("{}", counted(problems))]
    Problems {
        /// The problems, each with its key, the key's place, and its effect.
        problems: Vec<String>,
        /// Whether `--accept-differences` would allow all of them.
        acceptable: bool,
    },
}

fn counted(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        several => format!("{} keys cannot be carried over: {}", several.len(), several.join("; ")),
    }
}

impl DebeziumError {
    /// The change that fixes the error.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Together { hint, .. } => Some((*hint).to_owned()),
            Self::Problems { acceptable: true, .. } => Some(
                "--accept-differences runs all the same; walrelay check --from-debezium FILE shows it all".to_owned(),
            ),
            Self::Problems { .. } => Some("walrelay check --from-debezium FILE shows it all".to_owned()),
            Self::Unreadable { .. } | Self::Syntax { .. } => None,
        }
    }
}

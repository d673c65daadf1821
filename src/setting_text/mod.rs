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
pub use shown::{one_line, shown, shown_path, shown_source};

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
        let text = format!("{}: \"{}\" is not valid: expected {}", self.origin, self.text, expected.into());
        SettingError::new(text).with_hint(nearest.map(|nearest| format!("the nearest valid value is {nearest}")))
    }

    /// The error that it needs another setting.
    pub fn needs(&self, other: &str) -> SettingError {
        SettingError::new(format!("{} needs {other}", self.origin))
    }

    /// The error that it and another exclude each other.
    pub fn excludes(&self, other: &Self) -> SettingError {
        SettingError::exclusive(&self.origin, &other.origin)
    }
}

/// Whether a value that may say `@FILE` does. `@@` begins a text with an `@`.
pub fn names_a_file(value: &str) -> bool {
    value.strip_prefix('@').is_some_and(|file| !file.starts_with('@'))
}

/// Whether a property's value may be a secret, or have one in it.
pub fn is_secret(property: &str) -> bool {
    // Variables have these names, too.
    let property = property.to_ascii_lowercase().replace(['_', '-'], ".");
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
    /// In the configuration of another program (`--from-debezium`).
    Translated(Box<Foreign>),
}

/// The flag or variable that names the file with the value.
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

/// A key of another program's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The name that it has there.
    pub name: String,
    /// Its file and its line, from 1; `None`: a variable, or what counts where nothing is said.
    pub place: Option<(PathBuf, usize)>,
}

impl Origin {
    /// Another program's, in no file.
    pub fn foreign(name: impl Into<String>) -> Self {
        Self::Translated(Box::new(Foreign { name: name.into(), place: None }))
    }
}

/// Of a key's name, in characters, for messages.
const LONGEST_KEY: usize = 200;

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, file, line) = match self {
            Self::Flag(name) => return f.write_str(name),
            Self::Variable(name) => return f.write_str(&one_line(name, LONGEST_KEY)),
            Self::FlagFile(given) => return f.write_str(&given.flag),
            Self::Key(key) => (&key.name, &key.file, key.line),
            Self::Translated(foreign) => match &foreign.place {
                Some((file, line)) => (&foreign.name, file, *line),
                None => return f.write_str(&one_line(&foreign.name, LONGEST_KEY)),
            },
        };
        write!(f, "{} ({}, line {line})", one_line(name, LONGEST_KEY), shown_path(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_however_its_name_is_written() {
        for name in
            ["sasl.password", "PASSWORD", "SECRET_ACCESS_KEY", "secret-access-key", "sasl-oauthbearer-config", "TOKEN"]
        {
            assert!(is_secret(name), "{name}");
        }
        for name in ["sasl.username", "password-command", "PASSWORD_COMMAND", "max.tokens"] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn only_a_single_at_names_a_file() {
        let named = ["@/run/key", "@", "@@key", "key", "", "a=@key"].map(names_a_file);
        assert_eq!(named, [true, true, false, false, false, false]);
    }
}

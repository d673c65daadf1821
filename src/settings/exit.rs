//! Why there is nothing to run: help was asked for, or a setting is wrong.

use std::fmt;

use crate::setting_text::SettingError;
use crate::supervise::{ExitKind, chain};

/// Why there is nothing to run.
#[derive(Debug)]
pub enum Exit {
    /// Help or version was asked for: this text, for stdout, and exit code 0.
    Asked(String),
    /// The settings are wrong: exit code 64.
    Wrong(SettingError),
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
                error.hint.as_ref().map_or(Ok(()), |hint| writeln!(f, "hint: {hint}"))
            }
        }
    }
}

impl From<SettingError> for Exit {
    fn from(error: SettingError) -> Self {
        Self::Wrong(error)
    }
}

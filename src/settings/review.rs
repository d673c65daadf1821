//! `walrelay check --from-debezium`: what a Debezium configuration means here.
//!
//! In: what the settings' reader made of the files. Out: the report on stdout, and the error that `run` would end with: it is
//! the reader's own, so that the two cannot disagree.
//! Contacts nothing.

use crate::setting_text::SettingError;
use std::io::Write;

/// The report on a Debezium configuration.
#[derive(Debug)]
pub struct Review {
    /// For stdout; no secret is in it.
    pub report: String,
    /// Whether `run` would take the files.
    pub verdict: Result<(), SettingError>,
}

impl Review {
    /// Prints the report.
    ///
    /// # Errors
    /// `run` would not take the files.
    pub fn print(self, out: &mut dyn Write) -> Result<(), SettingError> {
        // A reader that went away does not want the rest.
        drop(out.write_all(self.report.as_bytes()));
        self.verdict
    }
}

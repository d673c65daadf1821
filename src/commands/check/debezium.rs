//! `walrelay check`: what a Debezium set-up means here.
//!
//! In: what the settings' reader made of the files. Out: the report on stdout, and the error that `run` would end with.
//! Contacts nothing.

use crate::config::CheckConfig;
use crate::debezium::DebeziumError;
use std::io::Write;

/// Prints the report.
///
/// # Errors
/// `run` would not take the files.
pub fn check(config: CheckConfig) -> Result<(), DebeziumError> {
    // A reader that went away does not want the rest.
    drop(std::io::stdout().write_all(config.report.as_bytes()));
    config.verdict
}

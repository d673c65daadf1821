//! Replaces `debezium` in a build without that feature. It reads no files.

use std::path::PathBuf;

use crate::outbox::TablePatterns;
use crate::outbox::connect::Connect;
use crate::pg::source::Environment;
use crate::setting_text::{Origin, SettingError};

/// A Debezium configuration's translation. In a build without the feature, it has no values.
#[derive(Debug)]
pub enum Translation {}

/// Refuses the files.
///
/// # Errors
/// Always.
pub fn read(_: &[PathBuf], _: &Environment) -> Result<Translation, SettingError> {
    Err(SettingError::usage(
        "--from-debezium: this walrelay was built without the feature \"debezium\"",
        "use a build with it: cargo build --features debezium",
    ))
}

impl Translation {
    /// A setting's values, and their origin.
    pub fn setting(&self, _: &str) -> Option<(&Vec<String>, &Origin)> {
        match *self {}
    }

    /// librdkafka's properties.
    pub fn properties(&self) -> std::iter::Empty<(&String, &Vec<String>, &Origin)> {
        match *self {}
    }

    /// The conversion of keys, values and headers.
    pub fn connect(&self, _: bool) -> Connect {
        match *self {}
    }

    /// The tables that are captured.
    pub fn tables(&self) -> &TablePatterns {
        match *self {}
    }

    /// Whether walrelay may run with the configuration.
    ///
    /// # Errors
    /// A note forbids it.
    pub fn verdict(&self, _: bool) -> Result<(), SettingError> {
        match *self {}
    }

    /// A line to log for each note that matters.
    pub fn warnings(&self) -> Vec<String> {
        match *self {}
    }

    /// The whole report.
    pub fn report(&self, _: &[PathBuf], _: bool) -> String {
        match *self {}
    }
}

//! In the place of `debezium` in a build without that feature: no file is read.

use std::path::PathBuf;

use crate::given::Origin;
use crate::outbox::TablePatterns;
use crate::outbox::connect::Connect;
use crate::pg::source::Environment;

/// A Debezium configuration's translation. It has no values in a build without the feature.
#[derive(Debug)]
pub enum Translation {}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[error("--from-debezium: this walrelay was built without the feature \"debezium\"")]
pub struct DebeziumError;

/// Refuses the files.
///
/// # Errors
/// Always.
pub fn read(_: &[PathBuf], _: &Environment) -> Result<Translation, DebeziumError> {
    Err(DebeziumError)
}

impl DebeziumError {
    /// The fix: none, since another build is needed.
    pub fn hint(&self) -> Option<String> {
        Some("use a build with it: cargo build --features debezium".to_owned())
    }
}

impl Translation {
    /// A setting's values, and where they come from.
    pub fn setting(&self, _: &str) -> Option<(&Vec<String>, &Origin)> {
        match *self {}
    }

    /// As the function of the same name in a build with the feature.
    pub fn properties(&self) -> std::iter::Empty<(&String, &Vec<String>, &Origin)> {
        match *self {}
    }

    /// How keys, values and headers are made.
    pub fn connect(&self, _: bool) -> Connect {
        match *self {}
    }

    /// Which tables are captured.
    pub fn tables(&self) -> &TablePatterns {
        match *self {}
    }

    /// Whether it may run.
    ///
    /// # Errors
    /// A note says that it may not.
    pub fn verdict(&self, _: bool) -> Result<(), DebeziumError> {
        match *self {}
    }

    /// As the function of the same name in a build with the feature.
    pub fn warnings(&self) -> Vec<String> {
        match *self {}
    }

    /// The whole report.
    pub fn report(&self, _: &[PathBuf], _: bool) -> String {
        match *self {}
    }
}

//! The arguments with which the commands that compare the relay with Debezium choose their cases.

use crate::binary::Binary;

/// The cases to run, the version of Postgres, and the binary of the relay.
#[derive(Debug, clap::Args)]
pub(crate) struct Chosen {
    /// The relay's binary.
    #[command(flatten)]
    pub(crate) binary: Binary,
    /// Postgres' major version, 14 to 18
    #[arg(long, default_value_t = 18)]
    pub(crate) postgres: u32,
    /// Only those whose names hold this
    #[arg(long)]
    only: Option<String>,
}

impl Chosen {
    /// Whether a case of this name is one of them.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

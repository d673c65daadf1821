//! Which cases a command runs, with what: for the commands that hold the relay beside Debezium.

use crate::binary::Binary;

/// Which cases, on which server, of which binary.
#[derive(Debug, clap::Args)]
pub(crate) struct Chosen {
    /// The relay's.
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

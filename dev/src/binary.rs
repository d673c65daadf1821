//! Where the relay's binary is: what most commands run.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use walrelay_dev::relay;

/// Where the relay's binary is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Binary {
    /// The relay's binary [default: `WALRELAY_BIN`, or `walrelay` beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
}

impl Binary {
    /// As an absolute path to a file.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let beside = std::env::current_exe().context("cannot find this program's folder")?.with_file_name("walrelay");
        let path = self.binary.clone().unwrap_or_else(|| relay::binary(beside));
        std::path::absolute(&path).ok().filter(|path| path.is_file()).with_context(|| {
            format!("there is no {}: build it (cargo build -p walrelay) or give --binary", path.display())
        })
    }
}

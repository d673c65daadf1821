//! NATS with JetStream on disk, synced before each acknowledgement.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Program, text};
use crate::{http, run_dir};

/// NATS by its program.
#[derive(Debug)]
pub(super) struct Nats {
    pub(super) program: PathBuf,
}

/// Where the port for its health is noted.
const HEALTH: &str = "health-port";

impl Program for Nats {
    fn configure(&self, folder: &Path, port: u16, more: &[String]) -> Result<()> {
        let health = run_dir::free_port()?;
        let store = folder.join("jetstream");
        let lines = [
            format!("listen: \"127.0.0.1:{port}\""),
            format!("http: \"127.0.0.1:{health}\""),
            "server_name: dev".to_owned(),
            format!("jetstream {{ store_dir: \"{}\", max_file_store: 1GB, sync_interval: always }}", store.display()),
        ];
        fs::write(folder.join(HEALTH), health.to_string())?;
        Ok(fs::write(folder.join("nats.conf"), text(&lines, more))?)
    }

    fn command(&self, folder: &Path, _port: u16) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(folder.join("nats.conf"));
        command
    }

    fn answers(&self, folder: &Path, _port: u16) -> bool {
        let port = fs::read_to_string(folder.join(HEALTH)).ok().and_then(|text| text.parse().ok());
        let answer = port.map(|port| http::get(port, "/healthz?js-enabled-only=true"));
        answer.is_some_and(|answer| answer.is_ok_and(|answer| answer.status == 200))
    }
}

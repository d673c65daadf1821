//! Valkey: append-only file, synced before each reply; refuses writes rather than evict.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Program, Reply, RespConnection, text};

/// Valkey by its program.
#[derive(Debug)]
pub(super) struct Valkey {
    pub(super) program: PathBuf,
}

impl Program for Valkey {
    fn configure(&self, folder: &Path, port: u16, more: &[String]) -> Result<()> {
        let lines = [
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("dir {}", folder.display()),
            "daemonize no".to_owned(),
            "save \"\"".to_owned(),
            "appendonly yes".to_owned(),
            "appendfsync always".to_owned(),
            "maxmemory 2gb".to_owned(),
            "maxmemory-policy noeviction".to_owned(),
        ];
        Ok(fs::write(folder.join("valkey.conf"), text(&lines, more))?)
    }

    fn command(&self, folder: &Path, _port: u16) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(folder.join("valkey.conf"));
        command
    }

    /// While it reads its file back it answers with an error.
    fn answers(&self, _folder: &Path, port: u16) -> bool {
        let reply = RespConnection::open(port).and_then(|mut connection| connection.call(&["PING"]));
        // A server that asks for a password serves, too.
        reply.is_ok_and(|reply| match reply {
            Reply::Error(text) => text.starts_with("NOAUTH"),
            Reply::Text(_) | Reply::Bytes(_) | Reply::Null | Reply::Integer(_) | Reply::Array(_) => true,
        })
    }
}

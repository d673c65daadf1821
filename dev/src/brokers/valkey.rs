//! Valkey or Redis: append-only file, synced before each reply; refuses writes rather than evict.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Program, Reply, RespConnection, text};

/// Valkey or Redis by its command.
#[derive(Debug)]
pub(super) struct Valkey {
    /// The program, with what has to stand in front of it.
    pub(super) command: Vec<PathBuf>,
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
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().map_or_else(|| "valkey-server".as_ref(), |word| word.as_os_str()));
        command.args(words).arg(folder.join("valkey.conf"));
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

//! What a Redis destination is asked for: where, as whom, and how entries are added.
//!
//! Contacts nobody. Certificates, and a password that stands in a file, are read at each connection, so that the files can change.

use super::entry::Adding;
use crate::secret::Secret;
use crate::sink::lanes::socket::Tls;
use std::time::Duration;

/// A server and how to use it. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(super) host: String,
    pub(super) port: u16,
    /// The database's number.
    pub(super) database: u32,
    pub(super) tls: Option<Tls>,
    /// `None`: the default user.
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) adding: Adding,
    /// What is waited for after each batch; `None`: the reply alone.
    pub(super) wait: Option<Wait>,
    /// How long a connection may be silent while replies are due: a server that hangs longer is connected to again.
    pub(super) timeout: Duration,
    /// The client's name there.
    pub(super) client: String,
    /// Bytes.
    pub(super) max_in_flight: usize,
}

/// What is waited for: this many replicas, and the append-only file on disk, where the server has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    /// Replicas that must have it.
    pub(super) replicas: u32,
    /// How long to wait before it is asked for again.
    pub(super) patience: Duration,
}

impl Settings {
    /// `host:port`, for people.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

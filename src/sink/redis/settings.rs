//! What a Redis destination is asked for: where, as whom, and how entries are added.
//!
//! Contacts nobody. Certificates, and a password that stands in a file, are read at each connection, so that the files can change.

use super::entry::Adding;
use crate::secret::Secret;
use crate::sink::lanes::address::Server;
use crate::sink::lanes::socket::Tls;
use std::time::Duration;

/// A server and how to use it. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) place: Place,
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

/// Where the server is.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// There: one server, or a node of a cluster, whatever it says itself.
    Server(Server),
    /// They are nodes of a cluster, at least two; any of them will do.
    Nodes(Vec<Server>),
    /// Sentinels know it.
    Sentinels(Sentinels),
}

/// Who knows where a primary is.
#[derive(Debug, Clone)]
pub(super) struct Sentinels {
    /// At least one; any of them will do.
    pub(super) servers: Vec<Server>,
    /// What they call the primary.
    pub(super) primary: String,
    /// As whom they are asked; `None`: the default user.
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
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
    /// The same, under this client's name.
    pub(super) fn named(&self, client: &str) -> Self {
        Self { client: client.to_owned(), ..self.clone() }
    }
}

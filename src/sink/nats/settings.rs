//! What a NATS destination is asked for: where, as whom, and how messages are sent.
//!
//! Contacts nobody. Certificates, passwords and keys that stand in files are read at each connection, so that the files can
//! change.

use super::message::MessageId;
use crate::secret::Secret;
use crate::sink::lanes::address::Server;
use crate::sink::lanes::socket::Tls;
use std::time::Duration;

/// Servers and how to use them. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// At least one; any of them will do.
    pub(super) servers: Vec<Server>,
    /// Nothing is sent without encryption.
    pub(super) tls_wanted: bool,
    /// Encryption begins before the server says anything.
    pub(super) tls_first: bool,
    /// How, where it is wanted or the server requires it.
    pub(super) tls: Tls,
    pub(super) login: LogIn,
    /// What the subjects of answers begin with.
    pub(super) inbox: String,
    /// The stream that has to take every message; `None`: whichever does.
    pub(super) stream: Option<String>,
    /// Messages of a key go together, all or none of them, where the stream allows it.
    pub(super) atomic: bool,
    pub(super) id: MessageId,
    /// How long the server may be silent while acknowledgements are due; it is asked whether it is there long before.
    pub(super) timeout: Duration,
    /// The client's name there.
    pub(super) client: String,
    /// Bytes.
    pub(super) max_in_flight: usize,
}

/// As whom.
#[derive(Debug, Clone)]
pub(super) enum LogIn {
    /// As nobody.
    None,
    /// A user, whose password may be empty.
    Password(String, Secret),
    /// A token that all clients share.
    Token(Secret),
    /// A key's seed.
    Nkey(Secret),
    /// A JWT with a key's seed.
    Credentials(Secret),
}

impl Settings {
    /// The same, under this client's name.
    pub(super) fn named(&self, client: &str) -> Self {
        Self { client: client.to_owned(), ..self.clone() }
    }
}

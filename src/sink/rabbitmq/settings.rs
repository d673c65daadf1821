//! What a RabbitMQ destination is asked for: where, as whom, and which exchange.
//!
//! Contacts nobody. Secrets and certificates are read at each connection, so that they can change.

use crate::secret::Secret;
use crate::sink::lanes::address::Server;
use crate::sink::lanes::socket::Tls;
use std::time::Duration;

/// A broker and how to use it. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Those of one cluster; at least one.
    pub(super) servers: Vec<Server>,
    pub(super) vhost: String,
    pub(super) tls: Option<Tls>,
    pub(super) login: Login,
    /// Where messages go; empty: the default exchange, in which a routing key is a queue's name.
    pub(super) exchange: String,
    /// The column that names a row's own exchange; where it is null or empty, `exchange` counts.
    pub(super) exchange_column: Option<String>,
    /// The queue that is declared or looked at.
    pub(super) queue: Option<String>,
    /// Exchange and queue are declared at each connection.
    pub(super) declare: bool,
    /// How often either side says that it is there.
    pub(super) heartbeat: Duration,
    /// The client's name there.
    pub(super) client: String,
    /// Bytes.
    pub(super) max_in_flight: usize,
}

/// How we prove who we are.
#[derive(Debug, Clone)]
pub(super) enum Login {
    /// By a password, or a token in its place.
    Plain { user: String, password: Secret },
    /// By the client's certificate.
    External,
}

impl Settings {
    /// The same, under this client's name.
    pub(super) fn named(&self, client: &str) -> Self {
        Self { client: client.to_owned(), ..self.clone() }
    }

    /// The exchange, for people.
    pub(super) fn exchange_shown(&self) -> &str {
        if self.exchange.is_empty() { super::judge::DEFAULT_EXCHANGE } else { &self.exchange }
    }
}

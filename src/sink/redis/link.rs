//! One connection to a server: reached, encrypted where asked for, logged in.
//!
//! In: where, as whom. Out: a connection that commands can be written to and replies read from. It does not reconnect and sends
//! nothing a second time.

use super::judge::{CONNECTION, environment, of_login};
use super::resp::{Token, Tokens, code, length, words};
use super::settings::Settings;
use crate::secret::Secret;
use crate::sink::lanes::LOG_IN_LABEL;
use crate::sink::lanes::address::Server;
use crate::sink::lanes::socket::{Peer, Socket};
use crate::sink::{Failure, FailureClass};
use std::io;
use std::time::Duration;

/// How long reaching the server and logging in may take.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// How long a peer may stay silent before its connection counts as broken, where the network says nothing.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// A connection.
pub(super) struct Link {
    socket: Socket,
    host: String,
    /// The server's, for people.
    address: String,
}

impl Link {
    /// Reaches this server, and logs in.
    ///
    /// # Errors
    /// It cannot be reached, or refuses the user.
    pub(super) async fn open_at(settings: &Settings, server: &Server) -> Result<Self, Failure> {
        let opening = async {
            let mut link = Self::reach(settings, server).await?;
            link.log_in(settings).await?;
            Ok(link)
        };
        match tokio::time::timeout(REACHED_WITHIN, opening).await {
            Ok(opened) => opened,
            Err(_late) => Err(unanswered(&server.address())),
        }
    }

    /// The same, and its reply to INFO.
    ///
    /// # Errors
    /// It cannot be reached, or refuses the user.
    pub(super) async fn open_and_ask(settings: &Settings, server: &Server) -> Result<(Self, Vec<u8>), Failure> {
        let mut link = Self::open_at(settings, server).await?;
        let info = link.ask(&[b"INFO"]).await?;
        Ok((link, info))
    }

    /// Reaches this server.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(super) async fn reach(settings: &Settings, server: &Server) -> Result<Self, Failure> {
        let (address, tls) = (server.address(), settings.tls.as_ref());
        let peer = Peer { host: &server.host, port: server.port, tls, unread_at_most: Some(DEAD_AFTER) };
        match Socket::connect(peer).await {
            Ok(socket) => Ok(Self { socket, host: server.host.clone(), address }),
            Err(error) => Err(broken(&address, &error.to_string())),
        }
    }

    /// Says who it is.
    ///
    /// # Errors
    /// The server refuses it, or the connection is lost.
    pub(super) async fn authenticate(&mut self, user: Option<&str>, password: Option<&Secret>) -> Result<(), Failure> {
        let password = password.map(Secret::read).transpose().map_err(|error| Failure {
            class: FailureClass::LogIn,
            reason: LOG_IN_LABEL,
            text: format!("Redis at {}: {error}", self.address),
        })?;
        let password = password.as_ref().map(secrecy::ExposeSecret::expose_secret);
        let auth: Option<Vec<&[u8]>> = match (user, password) {
            (Some(user), Some(password)) => Some(vec![b"AUTH", user.as_bytes(), password.as_bytes()]),
            (None, Some(password)) => Some(vec![b"AUTH", password.as_bytes()]),
            (_, None) => None,
        };
        match auth {
            Some(auth) => self.expect_ok(&auth).await,
            None => Ok(()),
        }
    }

    async fn log_in(&mut self, settings: &Settings) -> Result<(), Failure> {
        self.authenticate(settings.user.as_deref(), settings.password.as_ref()).await?;
        let database = settings.database.to_string();
        if settings.database != 0 {
            self.expect_ok(&[b"SELECT", database.as_bytes()]).await?;
        }
        // Names cannot hold spaces, and who may not set one does without.
        let name = settings.client.replace(' ', "-");
        let named = self.call(&[b"CLIENT", b"SETNAME", name.as_bytes()]).await?;
        match Tokens::of(&named).next() {
            Some(Token::Error(error)) if code(error) == b"NOAUTH" => Err(environment(&self.address, error)),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the user may send batches. Where MULTI is refused, the server does at once what was to be a part of a transaction.
    ///
    /// # Errors
    /// The user may not, or the connection is lost.
    pub(super) async fn may_batch(&mut self, settings: &Settings) -> Result<(), Failure> {
        if settings.adding.dedupe.is_some() {
            return Ok(());
        }
        for command in [b"MULTI".as_slice(), b"EXEC"] {
            let reply = self.ask(&[command]).await?;
            if let Some(Token::Error(error)) = Tokens::of(&reply).next() {
                return Err(environment(&self.address, error));
            }
        }
        Ok(())
    }

    async fn expect_ok(&mut self, command: &[&[u8]]) -> Result<(), Failure> {
        let reply = self.call(command).await?;
        match Tokens::of(&reply).next() {
            Some(Token::Error(error)) => Err(of_login(&self.address, error)),
            Some(_) | None => Ok(()),
        }
    }

    /// Sends a command and waits for its reply, while nothing else is under way.
    ///
    /// # Errors
    /// The connection is lost. An error of the server's is a reply.
    pub(super) async fn call(&mut self, command: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        self.call_for(command, 1).await
    }

    /// The same, where the server is to answer as soon as it is reached.
    ///
    /// # Errors
    /// The connection is lost, or the server hangs.
    pub(super) async fn ask(&mut self, command: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        match tokio::time::timeout(REACHED_WITHIN, self.call(command)).await {
            Ok(replied) => replied,
            Err(_late) => Err(unanswered(&self.address)),
        }
    }

    /// The same for a command behind others that were written: waits for so many replies.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn call_for(&mut self, command: &[&[u8]], replies: usize) -> Result<Vec<u8>, Failure> {
        words(self.output(), command);
        loop {
            match length(self.input(), replies) {
                Err(_) => return Err(broken(&self.address, "it does not speak Redis' protocol")),
                Ok(Some(length)) => {
                    let reply = self.input().get(..length).unwrap_or_default().to_owned();
                    self.consume(length);
                    return Ok(reply);
                }
                Ok(None) => {}
            }
            self.turn().await.map_err(|error| broken(&self.address, &error.to_string()))?;
        }
    }

    /// As [`Socket::turn`].
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn turn(&mut self) -> io::Result<()> {
        self.socket.turn().await.map(drop)
    }

    /// Where commands are written.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.socket.output
    }

    /// The server's address, for people.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The name or address that it was reached by.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// What has come.
    pub(super) fn input(&self) -> &[u8] {
        self.socket.input()
    }

    /// The first `length` bytes of that have been looked at.
    pub(super) fn consume(&mut self, length: usize) {
        self.socket.consume(length);
    }
}

fn unanswered(address: &str) -> Failure {
    broken(address, &format!("no answer within {} s", REACHED_WITHIN.as_secs()))
}

/// The connection cannot be had, or is lost.
pub(super) fn broken(address: &str, reason: &str) -> Failure {
    let text = format!("Redis at {address} cannot be reached: {reason}");
    Failure { class: FailureClass::Environment, reason: CONNECTION, text }
}

//! One connection to a broker: reached, encrypted where asked for, authenticated, and opened on its vhost.
//!
//! In: where, as whom. Out: a connection on which channels can be opened. It does not reconnect and sends nothing a second time.
//! Specification: AMQP 0-9-1, section 2.2.4; RabbitMQ, "Authentication", "Heartbeats".

#![allow(clippy::wildcard_enum_match_arm, reason = "what a peer says beyond what is asked is not heeded")]

use super::judge::{broken, closed, no_login, not_declared};
use super::method::{self, Closing, Method};
use super::settings::{Login, Settings};
use super::token;
use super::wire::{self, Garbled, PROTOCOL, Sort};
use crate::sink::lanes::address::Server;
use crate::sink::lanes::socket::{Peer, Socket};
use crate::sink::{Failure, FailureClass};
use secrecy::{ExposeSecret as _, SecretString};
use std::time::{Duration, Instant, SystemTime};

/// How long reaching a broker and authenticating may take.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// How long a broker may take to say goodbye.
const LEFT_WITHIN: Duration = Duration::from_millis(500);

/// A connection that has lasted for less is not replaced for its token's sake: another one would not be better.
const RENEWED_AFTER: Duration = Duration::from_secs(5);

/// The largest frame that is agreed on, in bytes.
const LARGEST_FRAME: u32 = 128 << 10;

/// The channel on which questions are asked while nothing else is open.
pub(super) const ASKING: u16 = 1;

/// A connection.
pub(super) struct Session {
    pub(super) socket: Socket,
    /// Its host and port, for people.
    pub(super) server: String,
    /// What is agreed on: bytes of a frame at most, channels at most, and how often either side says that it is there.
    pub(super) frame_bytes: usize,
    pub(super) channels: u16,
    pub(super) heartbeat: Duration,
    /// When the token that we logged in with ends, where it is one that says so.
    token_ends: Option<SystemTime>,
    opened: Instant,
    /// What it says of itself, such as `RabbitMQ` and `4.0.5`.
    pub(super) product: String,
    pub(super) version: String,
}

/// The server closed the channel over what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn of(closing: Closing<'_>) -> Self {
        Self { code: closing.code, text: String::from_utf8_lossy(closing.text).into_owned() }
    }

    pub(super) fn closing(&self) -> Closing<'_> {
        Closing { code: self.code, text: self.text.as_bytes() }
    }
}

impl Session {
    /// Reaches the host of this number and authenticates.
    pub(super) async fn open(settings: &Settings, host: usize) -> Result<Self, Failure> {
        let Server { host: name, port } = settings.servers.get(host).cloned().unwrap_or_default();
        let server = format!("{name}:{port}");
        let opening = async {
            let secret = secret(settings, &server).await?;
            let peer = Peer { host: &name, port, tls: settings.tls.as_ref(), unread_at_most: None };
            let socket = Socket::connect(peer).await.map_err(|error| broken(&server, &error.to_string()))?;
            let mut session = Self {
                socket,
                server: server.clone(),
                frame_bytes: LARGEST_FRAME as usize,
                channels: u16::MAX,
                heartbeat: settings.heartbeat,
                token_ends: secret.as_ref().and_then(|secret| token::end(secret.expose_secret())),
                opened: Instant::now(),
                product: String::new(),
                version: String::new(),
            };
            session.begin(settings, secret).await?;
            session.declare(settings).await?;
            Ok::<Self, Failure>(session)
        };
        match tokio::time::timeout(REACHED_WITHIN, opening).await {
            Ok(opened) => {
                if let (Err(failure), Login::Plain { password, .. }) = (&opened, &settings.login)
                    && failure.class == FailureClass::LogIn
                {
                    // The next attempt asks the program again, and does not take what it printed a moment ago.
                    password.refused();
                }
                opened
            }
            Err(_late) => Err(broken(&server, &format!("no answer within {} s", REACHED_WITHIN.as_secs()))),
        }
    }

    async fn begin(&mut self, settings: &Settings, secret: Option<SecretString>) -> Result<(), Failure> {
        self.socket.output.extend_from_slice(&PROTOCOL);
        let (mechanism, response) = match (&settings.login, &secret) {
            (Login::Plain { user, .. }, Some(secret)) => ("PLAIN", format!("\0{user}\0{}", secret.expose_secret())),
            (Login::Plain { .. } | Login::External, _) => ("EXTERNAL", String::new()),
        };
        let offered = self.wait(|_, said| match said {
            Method::Start { properties, mechanisms } => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let (mut product, mut version, mut properties) = (String::new(), String::new(), properties);
                let read = properties.table(&mut |name, value| match name {
                    b"product" => product = text(value),
                    b"version" => version = text(value),
                    _ => {}
                });
                let offers = text(mechanisms).split(' ').any(|offered| offered == mechanism);
                Some(read.map(|()| (product, version, offers)))
            }
            _ => None,
        });
        let (product, version, offers) = offered.await?.map_err(|garbled| self.garbled(garbled))?;
        if !offers {
            return Err(no_login(&self.server, &format!("it does not offer {mechanism}")));
        }
        (self.product, self.version) = (product, version);
        method::start_ok(&mut self.socket.output, &settings.client, mechanism, response.as_bytes());
        let tuned = self.wait(|_, said| match said {
            Method::Tune { channels, frame_bytes, heartbeat_seconds } => {
                Some((channels, frame_bytes, heartbeat_seconds))
            }
            _ => None,
        });
        let (channels, frame_bytes, seconds) = tuned.await?;
        self.tune(channels, frame_bytes, seconds);
        method::open(&mut self.socket.output, &settings.vhost);
        self.wait(|_, said| matches!(said, Method::OpenOk).then_some(())).await
    }

    /// The lower of either side's bounds; 0 is none.
    fn tune(&mut self, channels: u16, frame_bytes: u32, seconds: u16) {
        let frame_bytes = if frame_bytes == 0 { LARGEST_FRAME } else { frame_bytes.min(LARGEST_FRAME) };
        let ours = u16::try_from(self.heartbeat.as_secs()).unwrap_or(u16::MAX);
        let heartbeat = if seconds == 0 { ours } else { ours.min(seconds) };
        method::tune_ok(&mut self.socket.output, channels, frame_bytes, heartbeat);
        self.frame_bytes = usize::try_from(frame_bytes).unwrap_or(usize::MAX);
        self.channels = if channels == 0 { u16::MAX } else { channels };
        self.heartbeat = Duration::from_secs(heartbeat.into());
    }

    /// Waits for what `heed` wants of the methods that come.
    pub(super) async fn wait<T>(&mut self, mut heed: impl FnMut(u16, Method<'_>) -> Option<T>) -> Result<T, Failure> {
        loop {
            let input = self.socket.take_input();
            let (looked_at, found) = self.look(&input, &mut heed);
            self.socket.give_back(input, looked_at);
            if let Some(found) = found {
                return found;
            }
            self.socket.turn().await.map_err(|error| broken(&self.server, &error.to_string()))?;
        }
    }

    /// How many bytes were looked at, and what was found.
    fn look<T>(
        &self,
        input: &[u8],
        heed: &mut impl FnMut(u16, Method<'_>) -> Option<T>,
    ) -> (usize, Option<Result<T, Failure>>) {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            let (frame, length) = match wire::frame(rest, self.frame_bytes) {
                Ok(None) => return (at, None),
                Ok(Some(found)) => found,
                Err(garbled) => return (at, Some(Err(self.garbled(garbled)))),
            };
            at += length;
            if frame.sort != Sort::Method {
                continue;
            }
            match Method::of(frame.payload) {
                Err(garbled) => return (at, Some(Err(self.garbled(garbled)))),
                Ok(Method::Close(closing)) => return (at, Some(Err(closed(&self.server, closing)))),
                Ok(said) => {
                    if let Some(found) = heed(frame.channel, said) {
                        return (at, Some(Ok(found)));
                    }
                }
            }
        }
    }

    /// Whether the broker may refuse us now because the token is over that we logged in with. It then keeps the connection and refuses
    /// what is asked on it; another connection has another token.
    pub(super) fn has_expired(&self) -> bool {
        let is_over = |end| token::may_be_over(end, SystemTime::now());
        self.token_ends.is_some_and(is_over) && self.opened.elapsed() >= RENEWED_AFTER
    }

    pub(super) fn garbled(&self, _garbled: Garbled) -> Failure {
        broken(&self.server, "it does not speak AMQP 0-9-1")
    }

    /// Asks one thing on a channel that is opened for it.
    pub(super) async fn ask(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<Result<(), Refusal>, Failure> {
        method::channel_open(&mut self.socket.output, ASKING);
        self.wait(|_, said| matches!(said, Method::ChannelOpenOk).then_some(())).await?;
        write(&mut self.socket.output);
        let answer = self.wait(|_, said| match said {
            Method::Done | Method::Selected => Some(Ok(())),
            Method::ChannelClose(closing) => Some(Err(Refusal::of(closing))),
            _ => None,
        });
        let answer = answer.await?;
        if answer.is_err() {
            method::channel_close_ok(&mut self.socket.output, ASKING);
        } else {
            method::channel_close(&mut self.socket.output, ASKING);
            self.wait(|_, said| matches!(said, Method::ChannelCloseOk).then_some(())).await?;
        }
        Ok(answer)
    }

    /// Declares exchange and queue, where that is asked for. What is there already stays as it is.
    async fn declare(&mut self, settings: &Settings) -> Result<(), Failure> {
        let Settings { exchange, queue, .. } = settings;
        if !settings.declare {
            return Ok(());
        }
        if !exchange.is_empty() && self.ask(|out| method::exchange_declare(out, ASKING, exchange, true)).await?.is_err()
        {
            let done = self.ask(|out| method::exchange_declare(out, ASKING, exchange, false)).await?;
            done.map_err(|refusal| not_declared(&self.server, &format!("exchange {exchange}"), refusal.closing()))?;
        }
        let Some(queue) = queue else { return Ok(()) };
        let server = self.server.clone();
        let refused = |refusal: Refusal| not_declared(&server, &format!("queue {queue}"), refusal.closing());
        if self.ask(|out| method::queue_declare(out, ASKING, queue, true)).await?.is_err() {
            let done = self.ask(|out| method::queue_declare(out, ASKING, queue, false)).await?;
            done.map_err(refused)?;
        }
        if exchange.is_empty() {
            return Ok(());
        }
        self.ask(|out| method::queue_bind(out, ASKING, queue, exchange, "#")).await?.map_err(refused)
    }

    /// Leaves, so that the server does not take it for a loss.
    pub(super) async fn leave(&mut self) {
        method::close(&mut self.socket.output);
        let left = self.wait(|_, said| matches!(said, Method::CloseOk).then_some(()));
        // Whoever does not answer is left all the same.
        drop(tokio::time::timeout(LEFT_WITHIN, left).await);
    }
}

/// The password as it is now. A program may take seconds.
async fn secret(settings: &Settings, server: &str) -> Result<Option<SecretString>, Failure> {
    let Login::Plain { password, .. } = &settings.login else { return Ok(None) };
    let password = password.clone();
    let read = tokio::task::spawn_blocking(move || password.read()).await;
    let failed = |error: &dyn std::fmt::Display| no_login(server, &error.to_string());
    read.map_err(|error| failed(&error))?.map(Some).map_err(|error| failed(&error))
}

//! [`RabbitmqSession`]: the library's client behind the ordered queue. It connects, publishes batches, and judges the answers.
//!
//! In: records from the ordered queue. Out: their outcomes. Several channels of one connection carry a batch each at a time. No two
//! messages under way are of one key, so that no later one can get in before an earlier one. Messages that were under way when a connection
//! or a channel was lost go back into the queue: neither the library nor this file sends a message a second time by itself.
//!
//! ```text
//!   queue ──▶ batch on a channel ──▶ ack                delivered
//!     ▲                           ├─▶ return, then ack    refused: unroutable
//!     │                           ├─▶ nack                the same message again, after a pause
//!     └──────── unknown ◀─────────┴─▶ channel closed      refused, if it was alone there; else each goes alone
//! ```
//!
//! The library attaches a returned message to the confirm that comes next, whichever that is. So the session judges a batch once all its
//! messages are confirmed, and finds the returned ones by address and key.
//!
//! The library's thread and tasks would outlive a dropped client. So a client's runtime ends with its connection, and drops queue and socket.
//! Specification: RabbitMQ, "Consumer Acknowledgements and Publisher Confirms", "Authentication", "Heartbeats"; RFC 7519, `exp`.

use super::errors::{self, Closing, RabbitmqFault};
use super::message::{self, Outgoing, short};
use super::{KIND, Login, RabbitSettings};
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::runtime::ClientRuntime;
use crate::sink::ordered_queue::socket::{self, Peer, Stream};
use crate::sink::ordered_queue::{
    KeyHash, Receiver, RecordIndex, RecordOutcome, Session, Size, TakenRecord, drive, within,
};
use crate::sink::{Failure, FailureClass};
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::tcp::AsyncTcpStream;
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPUri, AMQPUserInfo, SASLMechanism};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

/// How long a broker may take to answer the end of a connection.
const LEFT_WITHIN: Duration = Duration::from_millis(500);

/// A connection that is younger is not replaced because its token has ended: a new token would not be better.
const RENEWED_AFTER: Duration = Duration::from_secs(5);

/// The most by which the broker's clock may be ahead of this machine's.
const CLOCKS_DIFFER: Duration = Duration::from_mins(1);

/// The largest frame that walrelay accepts, in bytes. The library has memory for 32 frames to write and 32 to read.
const LARGEST_FRAME: u32 = 128 << 10;

/// The channels of a connection. Each is a process at the server, and has one batch under way.
const CHANNELS: u16 = 8;

/// The most messages and bytes of a batch, unless it is one message: the library keeps another copy.
const BATCH: Size = Size { records: 128, bytes: 256 << 10 };

/// The pause of all messages if the exchange is missing, or if the broker closed a channel and no message is the cause.
const LATER: Duration = Duration::from_millis(500);

/// How long a message may be unconfirmed before its connection is given up: at first, and at most. The time doubles each time. A queue that
/// is not ready yet after its broker's crash may lose a message without an answer.
const CONFIRMED_WITHIN: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(5));

/// The text for a connection whose end the library does not explain.
const WENT: &str = "the connection was lost";

/// Runs until the relay has dropped the sink.
pub(super) async fn run(settings: &RabbitSettings, receiver: &mut Receiver) {
    let patience = Cell::new(CONFIRMED_WITHIN.0);
    drive::<RabbitmqSession<'_>>((settings, &patience), receiver).await;
}

type Landing = Pin<Box<dyn Future<Output = lapin::Result<Landed>>>>;

/// A connection, and its batches under way.
pub(super) struct RabbitmqSession<'a> {
    settings: &'a RabbitSettings,
    connection: RabbitmqConnection,
    /// The channels without a batch. `None`: the channel has to be opened.
    free: Vec<Option<Channel>>,
    /// The batches under way, and since when.
    under_way: BTreeMap<u64, Instant>,
    /// The outcomes of these batches, once they come.
    landing: FuturesUnordered<Landing>,
    /// How many batches were published.
    published: u64,
    /// An empty list, whose memory is used again.
    taken: Vec<TakenRecord<RecordIndex>>,
    /// Since when messages could have been confirmed.
    able: Instant,
    /// How long a message may be unconfirmed.
    patience: Duration,
    /// How long the next session lets a message be unconfirmed.
    next_patience: &'a Cell<Duration>,
    /// Nothing is published before this time.
    later: Option<Instant>,
    /// The alarm for which the server blocks publishers.
    alarm: Option<Failure>,
    /// The failure that passes by itself, for which messages are sent again.
    obstacle: Option<Failure>,
    /// The failure for which the connection is of no more use.
    lost: Option<Failure>,
}

/// An event on the connection.
pub(super) enum RabbitmqEvent {
    /// The library reports something. `None`: its client has ended.
    Library(Option<lapin::Event>),
    /// A batch is confirmed, or lost.
    Landed(lapin::Result<Landed>),
    /// The session has to look whether a confirm is overdue.
    Look,
}

impl<'a> Session for RabbitmqSession<'a> {
    /// With the settings, how long the next session lets a message be unconfirmed.
    type Settings = (&'a RabbitSettings, &'a Cell<Duration>);
    type Event = RabbitmqEvent;

    async fn open((settings, next_patience): Self::Settings, attempt: usize) -> Result<Self, Failure> {
        let connection = RabbitmqConnection::open(settings, attempt % settings.servers.len().max(1)).await?;
        let channels = CHANNELS.min(connection.library.configuration().channel_max());
        Ok(Self {
            settings,
            connection,
            free: (0..channels).map(|_| None).collect(),
            under_way: BTreeMap::new(),
            landing: FuturesUnordered::new(),
            published: 0,
            taken: Vec::new(),
            able: Instant::now(),
            patience: next_patience.replace(CONFIRMED_WITHIN.0),
            next_patience,
            later: None,
            alarm: None,
            obstacle: None,
            lost: None,
        })
    }

    fn fill(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        let now = Instant::now();
        if self.alarm.is_some() || self.later.is_some_and(|later| now < later) {
            return Ok(());
        }
        self.later = None;
        while receiver.has_ready()
            && let Some(channel) = self.free.pop()
        {
            let (mut size, mut taken) = (Size::default(), std::mem::take(&mut self.taken));
            receiver.take(&mut taken, 1, |record| size.fit(record, BATCH));
            let batch = self.batch(&taken, receiver);
            let none = taken.is_empty();
            taken.clear();
            self.taken = taken;
            if batch.is_empty() {
                self.free.push(channel);
            } else {
                self.published += 1;
                self.under_way.insert(self.published, now);
                let library = Arc::clone(&self.connection.library);
                let mandatory = self.settings.mandatory;
                self.landing.push(Box::pin(publish(library, channel, self.published, mandatory, batch)));
            }
            if none {
                break;
            }
        }
        Ok(())
    }

    async fn event(&mut self) -> RabbitmqEvent {
        let wake = self.wake();
        tokio::select! {
            biased;
            event = self.connection.events.next() => RabbitmqEvent::Library(event),
            Some(landed) = self.landing.next() => RabbitmqEvent::Landed(landed),
            () = tokio::time::sleep_until(wake) => RabbitmqEvent::Look,
        }
    }

    fn heed(&mut self, event: RabbitmqEvent, receiver: &mut Receiver) -> Result<(), Failure> {
        match event {
            RabbitmqEvent::Library(event) => self.heed_library(event),
            RabbitmqEvent::Landed(landed) => self.land(landed, receiver),
            RabbitmqEvent::Look => self.look(),
        }
        self.lost.take().map_or(Ok(()), Err)
    }

    fn blocked(&self) -> Option<&Failure> {
        self.alarm.as_ref().or(self.obstacle.as_ref())
    }

    fn drain(&mut self, receiver: &mut Receiver) {
        while let Some(Some(landed)) = self.landing.next().now_or_never() {
            self.land(landed, receiver);
        }
    }

    async fn leave(&self) {
        self.connection.leave().await;
    }
}

impl RabbitmqSession<'_> {
    /// When the session has something to do even if nothing comes.
    fn wake(&self) -> Instant {
        let now = Instant::now();
        // If this time has passed, the session waits for something else.
        let later = self.later.filter(|later| *later > now);
        [later, self.stalls()].into_iter().flatten().fold(now + self.connection.heartbeat(), Instant::min)
    }

    /// When the oldest batch has been unconfirmed for too long.
    fn stalls(&self) -> Option<Instant> {
        let oldest = self.under_way.values().next()?;
        self.alarm.is_none().then(|| (*oldest).max(self.able) + self.patience)
    }

    fn look(&mut self) {
        if self.stalls().is_some_and(|stalls| Instant::now() >= stalls) {
            self.next_patience.set((self.patience * 2).min(CONFIRMED_WITHIN.1));
            let reason = format!("a message was not confirmed for {} s", self.patience.as_secs());
            self.lost = Some(KIND.broken(&self.connection.server, &reason));
        } else if !self.connection.library.status().connected() {
            self.lost = Some(KIND.broken(&self.connection.server, WENT));
        }
    }

    fn heed_library(&mut self, event: Option<lapin::Event>) {
        match event {
            Some(lapin::Event::ConnectionBlocked(reason)) => {
                self.alarm = Some(errors::alarm(&self.connection.server, &reason));
            }
            Some(lapin::Event::ConnectionUnblocked) => {
                self.alarm = None;
                self.able = Instant::now();
            }
            // The end of a channel is judged with its batch.
            Some(lapin::Event::Error(error)) => {
                if !self.connection.library.status().connected() {
                    self.lost = Some(self.connection.failed(&error));
                }
            }
            Some(_) => {}
            None => self.lost = Some(KIND.broken(&self.connection.server, WENT)),
        }
    }

    /// Turns records into messages. Settles those that cannot be messages as refused.
    fn batch(
        &self,
        taken: &[TakenRecord<RecordIndex>],
        receiver: &mut Receiver,
    ) -> Vec<(TakenRecord<RecordIndex>, KeyHash, Outgoing)> {
        let mut batch = Vec::with_capacity(taken.len());
        for taken in taken {
            let Some(record) = receiver.record(taken.item) else { continue };
            let (owner, exchange) = (message::owner(record), message::exchange_of(self.settings, record));
            match Outgoing::of(exchange, record, self.connection.frame_bytes()) {
                Ok(outgoing) => batch.push((*taken, owner, outgoing)),
                Err(failure) => {
                    receiver.settle(*taken, &RecordOutcome::Refused(failure));
                }
            }
        }
        batch
    }

    /// Settles a batch.
    fn land(&mut self, landed: lapin::Result<Landed>, receiver: &mut Receiver) {
        let landed = match landed {
            Ok(landed) => landed,
            Err(error) => {
                self.lost = Some(self.connection.failed(&error));
                return;
            }
        };
        self.under_way.remove(&landed.number);
        let fault = landed.lost().and_then(|error| self.fault(error));
        if let Some(returned) = landed.returned(self.settings) {
            self.settle(&landed, returned, fault.as_ref(), receiver);
        } else {
            let all: Vec<_> = landed.messages.iter().map(|(taken, _)| *taken).collect();
            receiver.send_each_alone(&all);
        }
        self.free.push(landed.channel);
    }

    fn settle(
        &mut self,
        landed: &Landed,
        returned: Vec<Option<Failure>>,
        fault: Option<&(Closing, RabbitmqFault)>,
        receiver: &mut Receiver,
    ) {
        let unconfirmed = landed
            .confirms
            .iter()
            .zip(&returned)
            .zip(&landed.messages)
            .filter(|((confirm, back), _)| confirm.is_err() && back.is_none());
        let suspects: Vec<_> = unconfirmed.map(|(_, (taken, _))| *taken).collect();
        if let Some((closing, fault @ RabbitmqFault::Unlisted)) = fault {
            let to = suspects.first().and_then(|taken| receiver.record(taken.item));
            let to = to.map_or(("", ""), |record| (message::exchange_of(self.settings, record), record.topic()));
            let failure = errors::refused(self.settings, to, *fault, closing);
            receiver.search(&suspects, &failure);
        }
        let mut blamed = false;
        for ((confirm, back), (taken, _)) in landed.confirms.iter().zip(returned).zip(&landed.messages) {
            let record = receiver.record(taken.item);
            let to = record.map_or(("", ""), |record| (message::exchange_of(self.settings, record), record.topic()));
            let outcome = match (back, confirm, fault) {
                (Some(failure), _, _) if receiver.sendings(taken) > 0 => {
                    RecordOutcome::RefusedPerhapsStored(errors::kept_perhaps(failure))
                }
                (Some(failure), _, _) => RecordOutcome::RefusedPerhapsStored(failure),
                (None, Ok(Confirmation::Ack(_)), _) => {
                    self.obstacle = None;
                    RecordOutcome::Delivered
                }
                (None, Ok(Confirmation::Nack(_)), _) => RecordOutcome::Later(errors::not_taken(to.0, to.1)),
                (None, Err(_), Some((closing, fault))) if fault.is_of_record() && suspects.len() == 1 => {
                    RecordOutcome::Refused(errors::refused(self.settings, to, *fault, closing))
                }
                // The exchange is missing for all messages. One of them is enough to ask again.
                (None, Err(_), Some((closing, fault @ RabbitmqFault::Exchange)))
                    if !blamed && !self.settings.declare =>
                {
                    blamed = true;
                    RecordOutcome::Refused(errors::refused(self.settings, to, *fault, closing))
                }
                // The driver puts it back with all others.
                (None, Err(_), _) if self.lost.is_some() => continue,
                (None, Ok(Confirmation::NotRequested) | Err(_), _) => RecordOutcome::Unknown,
            };
            receiver.settle(*taken, &outcome);
        }
        if suspects.len() > 1 && fault.is_some_and(|(_, fault)| fault.is_of_record()) {
            receiver.mark_each_alone(&suspects);
        }
    }

    /// The error for which the server closed a channel, and its meaning. Mostly one of the channel's messages is the cause, and the error
    /// does not say which. The server dropped the messages behind that one, and may have taken those before it. `None`: the connection is
    /// of no more use.
    fn fault(&mut self, error: &lapin::Error) -> Option<(Closing, RabbitmqFault)> {
        let Some(closing) = Closing::of_channel(error).filter(|_| self.connection.library.status().connected()) else {
            self.lost = Some(self.connection.failed(error));
            return None;
        };
        if closing.code == errors::ACCESS_REFUSED && self.connection.has_expired() {
            self.lost = Some(errors::expired(&self.connection.server, &closing));
            return None;
        }
        let fault = errors::fault(closing.code, self.settings.exchange_column.is_some());
        match fault {
            RabbitmqFault::Record
            | RabbitmqFault::NotPermitted
            | RabbitmqFault::OwnExchange
            | RabbitmqFault::Unlisted => {}
            // The next connection declares it.
            RabbitmqFault::Exchange if self.settings.declare => {
                self.lost = Some(errors::channel_closed(&self.connection.server, &closing));
            }
            RabbitmqFault::Exchange => self.later = Some(Instant::now() + LATER),
            RabbitmqFault::Broker => {
                self.later = Some(Instant::now() + LATER);
                self.obstacle = Some(errors::channel_closed(&self.connection.server, &closing));
            }
        }
        Some((closing, fault))
    }
}

/// A batch that is confirmed, or whose channel is lost.
pub(super) struct Landed {
    number: u64,
    /// The channel, to be used again.
    channel: Option<Channel>,
    messages: Vec<(TakenRecord<RecordIndex>, KeyHash)>,
    /// The confirm of each message.
    confirms: Vec<lapin::Result<Confirmation>>,
}

/// Publishes a batch and waits until all its messages are confirmed. Opens a channel if there is none.
///
/// # Errors
/// No channel can be opened.
async fn publish(
    library: Arc<Connection>,
    channel: Option<Channel>,
    number: u64,
    mandatory: bool,
    batch: Vec<(TakenRecord<RecordIndex>, KeyHash, Outgoing)>,
) -> lapin::Result<Landed> {
    let messages: Vec<_> = batch.iter().map(|(taken, owner, _)| (*taken, *owner)).collect();
    let channel = match channel {
        Some(channel) => channel,
        None => confirming(&library).await?,
    };
    let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
    let publishing = batch.into_iter().map(async |(_, _, outgoing)| {
        let Outgoing { exchange, key, properties, body } = outgoing;
        let confirm = channel.basic_publish(exchange, key, options, &body, properties).await?;
        drop(body);
        confirm.await
    });
    let confirms = join_all(publishing).await;
    let is_whole = confirms.iter().all(Result::is_ok);
    Ok(Landed { number, channel: is_whole.then_some(channel), messages, confirms })
}

impl Landed {
    /// For each message, the failure if the broker returned it. `None`: it is not clear which messages came back.
    fn returned(&self, settings: &RabbitSettings) -> Option<Vec<Option<Failure>>> {
        let mut found = vec![None; self.messages.len()];
        for confirm in &self.confirms {
            let Ok(Confirmation::Ack(Some(message)) | Confirmation::Nack(Some(message))) = confirm else { continue };
            let owner = message::owner_of(message);
            let mut alike = self.messages.iter().zip(&mut found).filter(|((_, known), _)| *known == owner);
            let (Some((_, found)), None) = (alike.next(), alike.next()) else { return None };
            *found = Some(errors::unroutable(settings, message));
        }
        Some(found)
    }

    /// The error for which the broker closed the channel, or the connection was lost.
    fn lost(&self) -> Option<&lapin::Error> {
        let mut lost = self.confirms.iter().filter_map(|confirm| confirm.as_ref().err()).peekable();
        // The errors of later messages say only that the channel is closed.
        let first = lost.peek().copied();
        lost.find(|error| Closing::of(error).is_some()).or(first)
    }
}

/// A connection, with the library's client on threads of its own.
pub(super) struct RabbitmqConnection {
    library: Arc<Connection>,
    events: BoxStream<'static, lapin::Event>,
    /// The host and port, for people.
    server: String,
    /// The end of the token of this connection, if it has one and says so.
    token_ends: Option<SystemTime>,
    opened: Instant,
    _runtime: ClientRuntime,
}

/// The outcome of a message to a queue that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Probe {
    /// The broker returned and confirmed the message.
    Returned,
    /// The broker blocks publishers, for this reason.
    Blocked(String),
    /// The user may not publish it.
    Refused(Closing),
    /// The broker did not answer.
    Nothing,
}

/// The broker's answer to a request: done, or refused for this reason. The failure is the connection's.
pub(super) type Asked = Result<Result<(), Closing>, Failure>;

/// The runtime for the library. It hands the library a socket that is open, and never opens one by itself.
#[derive(Debug, Clone)]
struct Sockets(Tokio);

impl Reactor for Sockets {
    type TcpStream = Compat<Box<dyn Stream>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl futures_util::AsyncRead + futures_util::AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl futures_util::Stream<Item = std::time::Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        _address: std::net::SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

impl RabbitmqConnection {
    /// Connects to the host with this index and authenticates.
    pub(super) async fn open(settings: &RabbitSettings, host: usize) -> Result<Self, Failure> {
        let server = settings.servers.get(host).cloned().unwrap_or_default();
        let address = server.address();
        let opening = async {
            let connection = Self::connect(settings, server).await?;
            connection.declare(settings).await?;
            Ok::<Self, Failure>(connection)
        };
        let opened = within(&KIND, &address, opening).await;
        if let (Err(failure), Login::Plain { password, .. }) = (&opened, &settings.login)
            && failure.class == FailureClass::LogIn
        {
            // The next attempt runs the program again, and does not use its last output.
            password.refused();
        }
        opened
    }

    async fn connect(settings: &RabbitSettings, server: Server) -> Result<Self, Failure> {
        let address = server.address();
        let secret = secret(settings, &address).await?;
        let token_ends = secret.as_ref().and_then(|secret| end_of_token(secret.expose_secret()));
        let failed = |error: &dyn std::fmt::Display| KIND.broken(&address, &error.to_string());
        let (runtime, alive) = ClientRuntime::new("rabbitmq-client").map_err(|error| failed(&error))?;
        let (uri, tls) = (uri(settings, &server, secret.as_ref()), settings.tls.clone());
        let properties = ConnectionProperties::default()
            .with_connection_name(settings.client.as_str().into())
            .with_client_property("product".into(), "walrelay".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let connecting = async move {
            let peer = Peer { host: &server.host, port: server.port, tls: tls.as_ref(), unread_at_most: None };
            // The socket is opened here and not in the function below, whose timers the library's thread would poll after the runtime's end.
            let socket = Mutex::new(Some(socket::connect(peer).await?.compat()));
            let reach = async move |_uri: AMQPUri, _runtime: Runtime<RuntimeParts<Tokio, Sockets>>| {
                // The library's thread has this function beside the socket, and drops both.
                let _alive = &alive;
                let socket = socket.lock().unwrap_or_else(PoisonError::into_inner).take();
                socket.map(AsyncTcpStream::Plain).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
            };
            let tokio = Tokio::current();
            let parts = RuntimeParts::new(tokio.clone(), Sockets(tokio));
            Connection::connector(uri, Runtime::new(parts), reach, properties).await
        };
        let connection = runtime.run(connecting).await.map_err(|error| failed(&error))?;
        let connection = connection.map_err(|error| errors::of_error(&address, settings.heartbeat, &error))?;
        let events = connection.events_listener().boxed();
        let library = Arc::new(connection);
        Ok(Self { library, events, server: address, token_ends, opened: Instant::now(), _runtime: runtime })
    }

    /// The failure of a connection that is of no more use.
    fn failed(&self, error: &lapin::Error) -> Failure {
        errors::of_error(&self.server, self.heartbeat(), error)
    }

    pub(super) fn heartbeat(&self) -> Duration {
        Duration::from_secs(self.library.configuration().heartbeat().into())
    }

    /// The most bytes of a frame.
    pub(super) fn frame_bytes(&self) -> usize {
        usize::try_from(self.library.configuration().frame_max()).unwrap_or(usize::MAX)
    }

    /// Whether the broker may refuse requests now because the connection's token has ended. The broker keeps such a connection. A new
    /// connection has a new token.
    fn has_expired(&self) -> bool {
        self.token_ends.is_some_and(|end| may_be_over(end, SystemTime::now())) && self.opened.elapsed() >= RENEWED_AFTER
    }

    /// Sends a request on a channel of its own.
    async fn ask(&self, ask: impl AsyncFnOnce(&Channel) -> lapin::Result<()>) -> Asked {
        let channel = self.library.create_channel().await.map_err(|error| self.failed(&error))?;
        match ask(&channel).await {
            Ok(()) => {
                // The request is done, whatever becomes of its channel.
                drop(channel.close(200, "bye".into()).await);
                Ok(Ok(()))
            }
            Err(error) => {
                Closing::of_channel(&error).map_or_else(|| Err(self.failed(&error)), |closing| Ok(Err(closing)))
            }
        }
    }

    /// Declares a durable topic exchange. `passive`: asks only whether an exchange of that name exists.
    pub(super) async fn exchange_declare(&self, exchange: &str, passive: bool) -> Asked {
        let options = ExchangeDeclareOptions { passive, durable: !passive, ..ExchangeDeclareOptions::default() };
        let declare = async |channel: &Channel| {
            channel.exchange_declare(short(exchange), ExchangeKind::Topic, options, FieldTable::default()).await
        };
        self.ask(declare).await
    }

    /// Declares a quorum queue. `passive`: asks only whether a queue of that name exists.
    pub(super) async fn queue_declare(&self, queue: &str, passive: bool) -> Asked {
        let options = QueueDeclareOptions { passive, durable: !passive, ..QueueDeclareOptions::default() };
        let mut arguments = FieldTable::default();
        if !passive {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        }
        self.ask(async |channel| channel.queue_declare(short(queue), options, arguments).await.map(drop)).await
    }

    pub(super) async fn queue_bind(&self, queue: &str, exchange: &str, key: &str) -> Asked {
        let (queue, exchange, key) = (short(queue), short(exchange), short(key));
        let bind = async |channel: &Channel| {
            channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default()).await
        };
        self.ask(bind).await
    }

    pub(super) async fn queue_delete(&self, queue: &str) -> Asked {
        let options = QueueDeleteOptions::default();
        self.ask(async |channel| channel.queue_delete(short(queue), options).await.map(drop)).await
    }

    /// Declares exchange and queue, if the settings ask for it. Existing ones stay as they are.
    async fn declare(&self, settings: &RabbitSettings) -> Result<(), Failure> {
        let RabbitSettings { exchange, queue, .. } = settings;
        if !settings.declare {
            return Ok(());
        }
        let refused =
            |what: String| move |closing: Closing| errors::not_declared(settings, &self.server, &what, &closing);
        if !exchange.is_empty() && self.exchange_declare(exchange, true).await?.is_err() {
            self.exchange_declare(exchange, false).await?.map_err(refused(format!("exchange {exchange}")))?;
        }
        let Some(queue) = queue else { return Ok(()) };
        if self.queue_declare(queue, true).await?.is_err() {
            self.queue_declare(queue, false).await?.map_err(refused(format!("queue {queue}")))?;
        }
        if exchange.is_empty() {
            return Ok(());
        }
        self.queue_bind(queue, exchange, "#").await?.map_err(refused(format!("queue {queue}")))
    }

    /// Publishes a message without a body to a queue that does not exist, which changes nothing. A broker tells only publishers that it
    /// blocks them.
    pub(super) async fn probe(&mut self) -> Result<Probe, Failure> {
        let channel = confirming(&self.library).await.map_err(|error| self.failed(&error))?;
        let key = format!("walrelay-check-{}", std::process::id());
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let publishing = async {
            channel.basic_publish(short(""), short(&key), options, &[], BasicProperties::default()).await?.await
        };
        let mut publishing = std::pin::pin!(publishing);
        let said = loop {
            tokio::select! {
                said = &mut publishing => break said,
                Some(event) = self.events.next() => if let lapin::Event::ConnectionBlocked(reason) = event {
                    return Ok(Probe::Blocked(reason));
                },
            }
        };
        // The broker reports an alarm before the confirm. Both may have come by now.
        while let Some(Some(event)) = self.events.next().now_or_never() {
            if let lapin::Event::ConnectionBlocked(reason) = event {
                return Ok(Probe::Blocked(reason));
            }
        }
        match said {
            Ok(Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_))) => Ok(Probe::Returned),
            Ok(Confirmation::Ack(None) | Confirmation::Nack(None) | Confirmation::NotRequested) => Ok(Probe::Nothing),
            Err(error) => Closing::of_channel(&error).map(Probe::Refused).ok_or_else(|| self.failed(&error)),
        }
    }

    /// Closes the connection, so that the server does not log a lost one.
    pub(super) async fn leave(&self) {
        let leaving = self.library.close(200, "bye".into());
        // Without an answer the connection is dropped all the same.
        drop(tokio::time::timeout(LEFT_WITHIN, leaving).await);
    }
}

/// A channel on which messages are confirmed.
async fn confirming(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

fn uri(settings: &RabbitSettings, server: &Server, secret: Option<&SecretString>) -> AMQPUri {
    let (username, mechanism) = match &settings.login {
        Login::Plain { user, .. } => (user.clone(), SASLMechanism::Plain),
        Login::External => (String::new(), SASLMechanism::External),
    };
    let password = secret.map(|secret| secret.expose_secret().to_owned()).unwrap_or_default();
    AMQPUri {
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo { username, password },
            host: server.host.clone(),
            port: server.port,
        },
        vhost: settings.vhost.clone(),
        query: AMQPQueryString {
            frame_max: Some(LARGEST_FRAME),
            heartbeat: u16::try_from(settings.heartbeat.as_secs()).ok(),
            auth_mechanism: Some(mechanism),
            ..AMQPQueryString::default()
        },
        ..AMQPUri::default()
    }
}

/// Reads the present password. A program may take seconds for it.
async fn secret(settings: &RabbitSettings, server: &str) -> Result<Option<SecretString>, Failure> {
    let Login::Plain { password, .. } = &settings.login else { return Ok(None) };
    let password = password.clone();
    let read = tokio::task::spawn_blocking(move || password.read()).await;
    let failed = |error: &dyn std::fmt::Display| errors::no_login(server, &error.to_string());
    read.map_err(|error| failed(&error))?.map(Some).map_err(|error| failed(&error))
}

/// The end of a token, if it is a JSON Web Token. Only the broker checks its signature.
fn end_of_token(secret: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let mut parts = secret.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(exp).ok()?)
}

/// Whether a token with this end may have ended by the broker's clock.
fn may_be_over(end: SystemTime, now: SystemTime) -> bool {
    end <= now + CLOCKS_DIFFER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::read_in_test;
    use std::io::Read as _;

    #[test]
    fn a_connection_that_is_given_up_closes_its_socket() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let settings = read_in_test("amqp", &address, &[], |asked| RabbitSettings::read(asked)).unwrap();
        crate::sink::ordered_queue::block_on(async {
            let (hello, hears) = tokio::sync::oneshot::channel();
            let server = std::thread::spawn(move || {
                let (mut socket, _) = listener.accept().unwrap();
                let mut header = [0; 8];
                socket.read_exact(&mut header).unwrap();
                hello.send(()).unwrap();
                (socket, header)
            });
            tokio::select! {
                opened = RabbitmqConnection::open(&settings, 0) => panic!("{:?}", opened.map(drop)),
                heard = hears => heard.unwrap(),
            }
            // What opened it is dropped, and waits for the library's thread.
            let (mut socket, header) = server.join().unwrap();
            assert_eq!(&header, b"AMQP\0\0\x09\x01");
            socket.set_nonblocking(true).unwrap();
            let read = socket.read(&mut [0]);
            assert!(
                read.as_ref().map_or_else(|error| error.kind() == io::ErrorKind::ConnectionReset, |read| *read == 0),
                "{read:?}"
            );
            Ok::<(), Failure>(())
        })
        .unwrap();
    }

    #[test]
    fn a_token_says_when_it_ends_and_a_password_does_not() {
        let token = |claims: &str| format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(end_of_token(&token(r#"{"sub":"relay","exp":1800000060}"#)), at(1_800_000_060));
        assert_eq!(end_of_token(&token(r#"{"exp":1.8e9}"#)), at(1_800_000_000));
        for none in ["", "hush", "a.b.c", "a.b", &token(r#"{"sub":"relay"}"#), &token(r#"{"exp":-1}"#), &token("[]")] {
            assert_eq!(end_of_token(none), None, "{none}");
        }
        let now = UNIX_EPOCH + Duration::from_hours(500_000);
        assert!(may_be_over(now - CLOCKS_DIFFER, now) && may_be_over(now + CLOCKS_DIFFER, now));
        assert!(!may_be_over(now + 2 * CLOCKS_DIFFER, now));
    }
}

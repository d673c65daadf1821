//! One connection of the library's, over a socket of ours: reached, encrypted where asked for, logged in. And where streams are: on one
//! server, on the one that Sentinels name, or on the nodes of a cluster.
//!
//! In: settings, commands. Out: replies; views of a cluster. It does not reconnect and sends nothing a second time.
//!
//! The library is given a socket that is open, and runs in the future that drives it here: it ends, and the socket with it, when the
//! [`Connection`] is dropped. The socket's own rules (what is sent when it is closed, files of certificates that are read again) and bounds
//! (how long a reply may be, how long nothing may come) are those of the other destinations.
//!
//! What a server says itself decides whether it is one of several: `cluster_enabled` of INFO. Several hosts in the settings are always nodes
//! of a cluster; Sentinels know none. Sentinels are asked before each connection, on one of their own; nothing is remembered, so that a
//! failover needs no more than another connection. One that is cut off from the others may go on naming a server that is gone or has become
//! a replica: then the next one is asked. The library's own client for Sentinels opens its connections itself, and asks one of them.
//! Specification: Redis, "Guidelines for Redis clients with support for Redis Sentinel".

use super::cluster::View;
use super::errors::{self, CONNECTION, Redirect, allow, environment, of_login, said, with_fix};
use super::message::slot;
use super::{Place, Sentinels, Settings};
use crate::secret::Secret;
use crate::sink::destination::Destination as _;
use crate::sink::ordered_queue::LOG_IN_LABEL;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::socket::{Peer, Stream, connect};
use crate::sink::{Failure, FailureClass};
use futures_util::FutureExt as _;
use futures_util::future::{Fuse, FusedFuture as _};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisResult, Value, cmd};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// How long reaching the server and logging in may take.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// How long a peer may stay silent before its connection counts as broken, where the network says nothing.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// How long a Sentinel may take: another may know as well.
const ASKED_WITHIN: Duration = Duration::from_secs(2);

/// So much may come for what is under way: the longest is a cluster's view of 16,384 ranges.
const ANSWER_BYTES: usize = 16 << 20;

/// So much of the last that has come is kept, for a server's last words.
const LAST_WORDS_BYTES: usize = 512;

/// Writes that the library takes at a time without waiting: more than are ever under way.
pub(super) const QUEUE: usize = 128;

/// As many nodes as a command about one key is sent to, each because the one before it has named it.
const MOST_NODES: usize = 5;

/// Replies that are due, one for each command of a write.
pub(super) type Replies = Pin<Box<dyn Future<Output = RedisResult<Vec<Value>>>>>;

/// A connection.
pub(super) struct Connection {
    library: MultiplexedConnection,
    /// Reads and writes; ends with the connection.
    driver: Fuse<Pin<Box<dyn Future<Output = ()> + Send>>>,
    traffic: Arc<Mutex<Traffic>>,
    host: String,
    /// The server's, for people.
    address: String,
}

/// What has been read and written.
#[derive(Debug)]
struct Traffic {
    /// When something last was.
    last: Instant,
    /// Bytes that were read since replies were last taken.
    read: usize,
    /// As many there may be.
    most: usize,
    /// The last of these bytes.
    last_words: Vec<u8>,
    /// Why nothing is any more.
    ended: Option<String>,
}

/// The socket that the library is given.
struct Counted {
    stream: Box<dyn Stream>,
    traffic: Arc<Mutex<Traffic>>,
}

impl Traffic {
    fn heed_read(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.last = Instant::now();
        self.read += bytes.len();
        self.last_words
            .extend_from_slice(bytes.get(bytes.len().saturating_sub(LAST_WORDS_BYTES)..).unwrap_or_default());
        let old = self.last_words.len().saturating_sub(LAST_WORDS_BYTES);
        self.last_words.drain(..old);
        if self.read > self.most {
            return Err(io::Error::other(format!("its reply is longer than {} bytes", self.most)));
        }
        Ok(())
    }
}

fn locked(traffic: &Mutex<Traffic>) -> MutexGuard<'_, Traffic> {
    traffic.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counted {
    fn heed<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            locked(&self.traffic).ended.get_or_insert_with(|| error.to_string());
        }
        result
    }

    fn wrote<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled.map(|result| {
            locked(&self.traffic).last = Instant::now();
            self.heed(result)
        })
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, room);
        polled.map(|result| {
            let new = room.filled().get(before..).unwrap_or_default();
            let heeded = result.and_then(|()| locked(&self.traffic).heed_read(new));
            self.heed(heeded)
        })
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        polled.map(|result| self.heed(result))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connection {
    /// Reaches this server, and logs in.
    ///
    /// # Errors
    /// It cannot be reached, or refuses the user.
    pub(super) async fn open_at(settings: &Settings, server: &Server) -> Result<Self, Failure> {
        let opening = async {
            let mut connection = Self::reach(settings, server).await?;
            connection.log_in(settings).await?;
            Ok(connection)
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
    pub(super) async fn open_and_ask(settings: &Settings, server: &Server) -> Result<(Self, Info), Failure> {
        let mut connection = Self::open_at(settings, server).await?;
        let info = connection.ask(&cmd("INFO")).await?;
        Ok((connection, Info(info)))
    }

    /// Reaches this server.
    async fn reach(settings: &Settings, server: &Server) -> Result<Self, Failure> {
        let (address, tls) = (server.address(), settings.tls.as_ref());
        let peer = Peer { host: &server.host, port: server.port, tls, unread_at_most: Some(DEAD_AFTER) };
        let stream = connect(peer).await.map_err(|error| broken(&address, &error.to_string()))?;
        let traffic = Arc::new(Mutex::new(Traffic {
            last: Instant::now(),
            read: 0,
            most: ANSWER_BYTES,
            last_words: Vec::new(),
            ended: None,
        }));
        let counted = Counted { stream, traffic: Arc::clone(&traffic) };
        // Unless told, it gives up what is not answered within half a second; and it would log in by itself, and say who it is.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUE);
        let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
        let connecting = MultiplexedConnection::new_with_config(&nobody, counted, config).await;
        let (library, driver) = connecting.map_err(|error| broken(&address, &error.to_string()))?;
        let driver: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(driver);
        Ok(Self { library, driver: driver.fuse(), traffic, host: server.host.clone(), address })
    }

    /// Says who it is.
    async fn authenticate(&mut self, user: Option<&str>, password: Option<&Secret>) -> Result<(), Failure> {
        let Some(password) = password else { return Ok(()) };
        let password = password.read().map_err(|error| Failure {
            class: FailureClass::LogIn,
            reason: LOG_IN_LABEL,
            text: format!("Redis at {}: {error}", self.address),
        })?;
        let mut auth = cmd("AUTH");
        auth.arg(user).arg(secrecy::ExposeSecret::expose_secret(&password));
        self.expect_ok(&auth).await
    }

    async fn log_in(&mut self, settings: &Settings) -> Result<(), Failure> {
        self.authenticate(settings.user.as_deref(), settings.password.as_ref()).await?;
        if settings.database != 0 {
            self.expect_ok(cmd("SELECT").arg(settings.database)).await?;
        }
        // Names cannot hold spaces, and who may not set one does without.
        let name = settings.client.replace(' ', "-");
        let named = self.call(cmd("CLIENT").arg("SETNAME").arg(name)).await?;
        match said(&named) {
            Some(error) if errors::code(&error) == "NOAUTH" => Err(environment(&self.address, &error)),
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
        for command in ["MULTI", "EXEC"] {
            let reply = self.ask(&cmd(command)).await?;
            if let Some(error) = said(&reply) {
                return Err(self.forbidden(settings, &error, &["+multi", "+exec"]));
            }
        }
        Ok(())
    }

    /// What an error says, with the command that gives the user these rights where they are missing.
    pub(super) fn forbidden(&self, settings: &Settings, error: &str, rights: &[&str]) -> Failure {
        with_fix(environment(&self.address, error), || allow(settings, rights))
    }

    async fn expect_ok(&mut self, command: &Cmd) -> Result<(), Failure> {
        let reply = self.call(command).await?;
        said(&reply).map_or(Ok(()), |error| Err(of_login(&self.address, &error)))
    }

    /// Sends a command and waits for its reply, while nothing else is under way.
    ///
    /// # Errors
    /// The connection is lost. An error of the server's is a reply.
    pub(super) async fn call(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let mut commands = Pipeline::new();
        commands.add_command(command.clone());
        Ok(self.call_all(commands).await?.pop().unwrap_or_default())
    }

    /// The same, where the server is to answer as soon as it is reached.
    ///
    /// # Errors
    /// The connection is lost, or the server hangs.
    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        match tokio::time::timeout(REACHED_WITHIN, self.call(command)).await {
            Ok(replied) => replied,
            Err(_late) => Err(unanswered(&self.address)),
        }
    }

    /// The same for several commands in one write.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn call_all(&mut self, commands: Pipeline) -> Result<Vec<Value>, Failure> {
        let mut replies = self.send(commands);
        let replied = tokio::select! {
            biased;
            replied = &mut replies => replied,
            // It may have ended behind them.
            () = &mut self.driver => replies.await,
        };
        let replied = replied.map_err(|_error| self.lost())?;
        self.settled();
        Ok(replied)
    }

    /// Gives the library one command or more; the driver writes them.
    pub(super) fn send(&self, commands: Pipeline) -> Replies {
        let mut library = self.library.clone();
        let sending = async move { library.send_packed_commands(&commands, 0, commands.len()).await };
        let mut replies: Replies = Box::pin(tokio::task::unconstrained(sending));
        // It goes into the library's queue, which has room, when it is polled first.
        let mut nobody = Context::from_waker(std::task::Waker::noop());
        match replies.as_mut().poll(&mut nobody) {
            Poll::Pending => replies,
            Poll::Ready(ended) => Box::pin(std::future::ready(ended)),
        }
    }

    /// Writes and reads what can be. Ready once the connection has ended.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        pin!(&mut self.driver).poll(context)
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.driver.is_terminated()
    }

    /// Replies were taken: others may come.
    pub(super) fn settled(&self) {
        let mut traffic = locked(&self.traffic);
        traffic.read = 0;
        traffic.last_words.clear();
    }

    /// So much may come at a time.
    pub(super) fn expect(&self, most: usize) {
        locked(&self.traffic).most = most;
    }

    /// When something was last read or written.
    pub(super) fn heard(&self) -> Instant {
        locked(&self.traffic).last
    }

    /// The error of a server that has closed the connection over what it was sent, where that is what it said last.
    pub(super) fn last_error(&self) -> Option<String> {
        let traffic = locked(&self.traffic);
        let text = std::str::from_utf8(&traffic.last_words).ok()?.strip_suffix("\r\n")?;
        let line = text.rsplit("\r\n").next()?;
        line.strip_prefix('-').filter(|error| errors::code(error) == "ERR").map(str::to_owned)
    }

    /// The connection is lost: for the reason that the socket has, or else since the library has not understood what has come.
    pub(super) fn lost(&self) -> Failure {
        let traffic = locked(&self.traffic);
        broken(&self.address, traffic.ended.as_deref().unwrap_or("it does not speak Redis' protocol"))
    }

    /// The server's address, for people.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The name or address that it was reached by.
    pub(super) fn host(&self) -> &str {
        &self.host
    }
}

/// What a server says about itself: the reply to INFO, or to CLUSTER INFO. A user who may not ask leaves it unknown.
#[derive(Debug, Default)]
pub(super) struct Info(pub(super) Value);

/// The oldest Redis with WAITAOF, as its protocol's version; every Valkey says 7.2 or newer.
const WAITS_FOR_FILE: (u32, u32) = (7, 2);

impl Info {
    /// One of its fields.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let Value::BulkString(text) = &self.0 else { return None };
        let text = std::str::from_utf8(text).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Whether it writes an append-only file, and has the command that waits for it.
    pub(super) fn has_file_to_wait_for(&self) -> bool {
        self.field("aof_enabled") == Some("1") && self.version().is_some_and(|version| version >= WAITS_FOR_FILE)
    }

    /// Major and minor version.
    fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version")?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// Where streams are.
pub(super) enum Found {
    /// On the server at the other end, and its reply to INFO.
    Server(Connection, Info),
    /// On nodes.
    Cluster(View),
}

/// Connects, and asks. `is_node`: what is known already.
///
/// # Errors
/// No server answers, or it refuses the user.
pub(super) async fn find(settings: &Settings, is_node: bool) -> Result<Found, Failure> {
    let server = match &settings.place {
        Place::Nodes(nodes) => return View::read(settings, nodes).await.map(Found::Cluster),
        Place::Sentinels(sentinels) => {
            return primary(settings, sentinels).await.map(|(connection, info)| Found::Server(connection, info));
        }
        Place::Server(server) => server,
    };
    let (mut connection, info) = Connection::open_and_ask(settings, server).await?;
    if is_node || info.field("cluster_enabled") == Some("1") {
        return View::of(&mut connection).await.map(Found::Cluster);
    }
    Ok(Found::Server(connection, info))
}

/// The reply to a command about one key, by the server that holds it, and that server's address. An error may be the reply.
///
/// # Errors
/// The server is not reached.
pub(super) async fn call(settings: &Settings, key: &str, command: &Cmd) -> Result<(String, Value), Failure> {
    call_for(settings, key, command, ANSWER_BYTES).await
}

/// The same, where the reply may have so many bytes.
///
/// # Errors
/// The server is not reached, or replies more.
pub(super) async fn call_for(
    settings: &Settings,
    key: &str,
    command: &Cmd,
    most: usize,
) -> Result<(String, Value), Failure> {
    let mut connection = holder(settings, key).await?;
    let mut ask = false;
    for _ in 0..MOST_NODES {
        if std::mem::take(&mut ask) {
            connection.call(&cmd("ASKING")).await?;
        }
        connection.expect(most);
        let reply = connection.call(command).await?;
        let redirect = said(&reply).and_then(|error| Redirect::of(&error));
        let Some(redirect) = redirect else { return Ok((connection.address, reply)) };
        let server = redirect.server(connection.host());
        let server =
            server.ok_or_else(|| broken(connection.address(), "it does not know the address of another node"))?;
        ask = redirect.ask;
        connection = Connection::open_at(settings, &server).await?;
    }
    Err(environment(connection.address(), "TRYAGAIN nodes name one another for the key"))
}

/// A connection to the server that holds a key.
async fn holder(settings: &Settings, key: &str) -> Result<Connection, Failure> {
    match find(settings, false).await? {
        Found::Server(connection, _) => Ok(connection),
        Found::Cluster(view) => {
            let slot = slot(key);
            let server = view.owner(slot).ok_or_else(|| view.unserved(slot))?;
            Connection::open_at(settings, server).await
        }
    }
}

/// A connection to the primary, and its reply to INFO. Where no server that Sentinels name is one: to the first replica.
async fn primary(settings: &Settings, sentinels: &Sentinels) -> Result<(Connection, Info), Failure> {
    let (mut reasons, mut tried, mut replica, mut unreached) = (Vec::new(), Vec::new(), None, None);
    for server in &sentinels.servers {
        let address = server.address();
        match tokio::time::timeout(ASKED_WITHIN, ask_sentinel(settings, sentinels, server)).await {
            Ok(Ok(Some(primary))) if tried.contains(&primary) => {}
            Ok(Ok(Some(primary))) => {
                match Connection::open_and_ask(settings, &primary).await {
                    Ok((connection, info)) if info.field("role") == Some("slave") => {
                        replica = replica.or(Some((connection, info)));
                    }
                    Ok(found) => return Ok(found),
                    Err(failure) => unreached = unreached.or(Some(failure)),
                }
                tried.push(primary);
            }
            Ok(Ok(None)) => reasons.push(format!("Sentinel at {address} knows no primary of that name")),
            // Nobody else's login differs.
            Ok(Err(failure)) if failure.class == FailureClass::LogIn => return Err(failure),
            Ok(Err(failure)) => reasons.push(failure.text),
            Err(_late) => {
                reasons.push(format!("Sentinel at {address} has not answered in {} s", ASKED_WITHIN.as_secs()));
            }
        }
    }
    replica.ok_or_else(|| unreached.unwrap_or_else(|| broken(&settings.address(), &reasons.join("; "))))
}

/// `None`: it does not know the name.
async fn ask_sentinel(settings: &Settings, sentinels: &Sentinels, server: &Server) -> Result<Option<Server>, Failure> {
    let mut connection = Connection::reach(settings, server).await?;
    connection.authenticate(sentinels.user.as_deref(), sentinels.password.as_ref()).await?;
    let reply = connection.call(cmd("SENTINEL").arg("get-master-addr-by-name").arg(&sentinels.primary)).await?;
    of_sentinel(&server.address(), &reply)
}

/// Host and port, or nothing.
fn of_sentinel(address: &str, reply: &Value) -> Result<Option<Server>, Failure> {
    if let Some(error) = said(reply) {
        return Err(environment(address, &error));
    }
    if *reply == Value::Nil {
        return Ok(None);
    }
    let items: &[Value] = if let Value::Array(items) = reply { items } else { &[] };
    let [Value::BulkString(host), Value::BulkString(port)] = items else {
        return Err(broken(address, "it is not a Sentinel"));
    };
    let host = String::from_utf8_lossy(host).into_owned();
    let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
    port.map(|port| Some(Server { host, port })).ok_or_else(|| broken(address, "its reply has no port"))
}

fn unanswered(address: &str) -> Failure {
    broken(address, &format!("no answer within {} s", REACHED_WITHIN.as_secs()))
}

/// The connection cannot be had, or is lost.
pub(super) fn broken(address: &str, reason: &str) -> Failure {
    let text = format!("Redis at {address} cannot be reached: {reason}");
    Failure { class: FailureClass::Environment, reason: CONNECTION, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(reply: &str) -> Value {
        redis::parse_redis_value(reply.as_bytes()).unwrap()
    }

    #[test]
    fn the_append_only_file_can_be_waited_for_where_there_is_one_and_the_command() {
        let said = |version: &str, file: &str| {
            let text = format!("# Server\r\nredis_version:{version}\r\n# Persistence\r\naof_enabled:{file}\r\n");
            Info(Value::BulkString(text.into_bytes()))
        };
        assert!(said("7.2.4", "1").has_file_to_wait_for() && said("8.0.2", "1").has_file_to_wait_for());
        assert!(!said("7.0.15", "1").has_file_to_wait_for() && !said("8.0.2", "0").has_file_to_wait_for());
        assert!(!Info(parsed("-NOPERM no\r\n")).has_file_to_wait_for());
        assert_eq!(said("7.2.4", "1").field("role"), None);
    }

    #[test]
    fn a_reply_names_the_primary_or_does_not_know_it_or_is_no_sentinels() {
        let of = |reply: &str| of_sentinel("s:1", &parsed(reply));
        let found = of("*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n");
        assert_eq!(found, Ok(Some(Server { host: "127.0.0.1".to_owned(), port: 6379 })));
        assert_eq!(of("*-1\r\n"), Ok(None));
        assert_eq!(of("-NOAUTH Authentication required.\r\n").unwrap_err().class, FailureClass::LogIn);
        for reply in ["-ERR unknown\r\n", "*2\r\n$1\r\nh\r\n$1\r\nx\r\n", "+OK\r\n", "*1\r\n$1\r\nh\r\n"] {
            assert_eq!(of(reply).unwrap_err().class, FailureClass::Environment);
        }
    }

    #[test]
    fn a_servers_last_words_are_an_error_only_where_nothing_follows_and_a_reply_has_a_bound() {
        let mut traffic = Traffic { last: Instant::now(), read: 0, most: 1000, last_words: Vec::new(), ended: None };
        traffic.heed_read(&[b'x'; 600]).unwrap();
        assert_eq!(traffic.last_words.len(), LAST_WORDS_BYTES);
        assert!(traffic.heed_read(&[]).is_err());
        let long = traffic.heed_read(&[b'x'; 600]).unwrap_err();
        assert_eq!(long.to_string(), "its reply is longer than 1000 bytes");
    }
}

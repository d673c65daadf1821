//! [`RedisConnection`]: a connection of the library over walrelay's own socket.
//!
//! In: settings, a server, commands. Out: replies. It does not reconnect and sends nothing a second time.
//!
//! The library gets a socket that is open, and runs in a future that this file drives. When the [`RedisConnection`] is dropped, the future and
//! the socket end. So the socket has the rules of the other destinations (no byte leaves after the close, certificate files are read again),
//! and limits of its own (how long a reply may be, how long the server may be silent).

use super::errors::{self, allow, environment, log_in_fails, of_login, said, with_fix};
use super::{KIND, RedisSettings};
use crate::secret::Secret;
use crate::sink::Failure;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::socket::{Peer, Stream, connect};
use crate::sink::ordered_queue::within;
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

/// How long sent bytes may stay unacknowledged by the peer before the connection counts as broken.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// The most bytes of the replies under way. The longest reply is a cluster's view of 16,384 ranges.
pub(super) const ANSWER_BYTES: usize = 16 << 20;

/// How many of the last received bytes are kept, for the error before a server closes the connection.
const LAST_WORDS_BYTES: usize = 512;

/// The size of the library's queue of writes, larger than the number of writes under way.
pub(super) const QUEUE: usize = 128;

/// The pending replies of a write, one for each command.
pub(super) type Replies = Pin<Box<dyn Future<Output = RedisResult<Vec<Value>>>>>;

/// A connection to a server.
pub(super) struct RedisConnection {
    library: MultiplexedConnection,
    /// The future that reads and writes. It ends with the connection.
    driver: Fuse<Pin<Box<dyn Future<Output = ()> + Send>>>,
    traffic: Arc<Mutex<Traffic>>,
    host: String,
    /// The server's address, for people.
    address: String,
}

/// The traffic of a connection.
#[derive(Debug)]
struct Traffic {
    /// When bytes were last read or written.
    last: Instant,
    /// How many bytes were read since replies were last taken.
    read: usize,
    /// The limit of `read`.
    most: usize,
    /// The last of these bytes.
    last_words: Vec<u8>,
    /// The error that ended the connection.
    ended: Option<String>,
}

/// The socket for the library, which counts its traffic.
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

impl RedisConnection {
    /// Connects to this server, and logs in.
    ///
    /// # Errors
    /// It cannot be reached, or refuses the user.
    pub(super) async fn open_at(settings: &RedisSettings, server: &Server) -> Result<Self, Failure> {
        let opening = async {
            let mut connection = Self::reach(settings, server).await?;
            connection.log_in(settings).await?;
            Ok(connection)
        };
        within(&KIND, &server.address(), opening).await
    }

    /// Asks for INFO.
    ///
    /// # Errors
    /// The connection is lost, or the user may not ask.
    pub(super) async fn info(&mut self) -> Result<Info, Failure> {
        let reply = self.ask(&cmd("INFO")).await?;
        said(&reply).map_or_else(|| Ok(Info::of(&reply)), |error| Err(environment(&self.address, &error)))
    }

    /// Connects to this server, without logging in.
    pub(super) async fn reach(settings: &RedisSettings, server: &Server) -> Result<Self, Failure> {
        let (address, tls) = (server.address(), settings.tls.as_ref());
        let peer = Peer { host: &server.host, port: server.port, tls, unread_at_most: Some(DEAD_AFTER) };
        let stream = connect(peer).await.map_err(|error| KIND.broken(&address, &error.to_string()))?;
        Self::over(stream, server).await
    }

    /// Makes a connection of the library over an open socket to this server.
    async fn over(stream: Box<dyn Stream>, server: &Server) -> Result<Self, Failure> {
        let address = server.address();
        let traffic = Arc::new(Mutex::new(Traffic {
            last: Instant::now(),
            read: 0,
            most: ANSWER_BYTES,
            last_words: Vec::new(),
            ended: None,
        }));
        let counted = Counted { stream, traffic: Arc::clone(&traffic) };
        // By default the library gives up commands after half a second, logs in by itself, and sends its own name.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUE);
        let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
        let connecting = MultiplexedConnection::new_with_config(&nobody, counted, config).await;
        let (library, driver) = connecting.map_err(|error| KIND.broken(&address, &error.to_string()))?;
        let driver: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(driver);
        Ok(Self { library, driver: driver.fuse(), traffic, host: server.host.clone(), address })
    }

    /// Authenticates, if there is a password.
    pub(super) async fn authenticate(&mut self, user: Option<&str>, password: Option<&Secret>) -> Result<(), Failure> {
        let Some(password) = password else { return Ok(()) };
        let password = password.read().map_err(|error| log_in_fails(&self.address, &error.to_string()))?;
        let mut auth = cmd("AUTH");
        auth.arg(user).arg(secrecy::ExposeSecret::expose_secret(&password));
        self.expect_ok(&auth).await
    }

    async fn log_in(&mut self, settings: &RedisSettings) -> Result<(), Failure> {
        self.authenticate(settings.user.as_deref(), settings.password.as_ref()).await?;
        if settings.database != 0 {
            self.expect_ok(cmd("SELECT").arg(settings.database)).await?;
        }
        // A name has no spaces. If the user may not set one, the connection has none.
        let name = settings.client.replace(' ', "-");
        let named = self.call(cmd("CLIENT").arg("SETNAME").arg(name)).await?;
        match said(&named) {
            Some(error) if errors::code(&error) == "NOAUTH" => Err(environment(&self.address, &error)),
            Some(_) | None => Ok(()),
        }
    }

    /// Tries each command that adding needs beside XADD, in a form that adds nothing. If the server refused one of them later, it would add
    /// records all the same: without MULTI it would execute the transaction's commands at once, and what WAIT waits for is added already.
    /// `file`: the mode waits for the append-only file as well.
    ///
    /// # Errors
    /// The server does not take a command, or the connection is lost.
    pub(super) async fn may_add(&mut self, settings: &RedisSettings, file: bool) -> Result<(), Failure> {
        match settings.adding.dedupe {
            Some(_) => self.must_take(settings, "EVAL", &["return 1", "0"], ("-X dedupe", &["+eval"])).await?,
            None => {
                for command in ["MULTI", "EXEC"] {
                    self.must_take(settings, command, &[], ("a batch", &["+multi", "+exec"])).await?;
                }
            }
        }
        let wait = ("-X wait", ["+wait", "+waitaof"].as_slice());
        match settings.wait {
            None => Ok(()),
            Some(_) if file => self.must_take(settings, "WAITAOF", &["0", "0", "1"], wait).await,
            Some(_) => self.must_take(settings, "WAIT", &["0", "1"], wait).await,
        }
    }

    /// Sends a command that `what` needs. `rights`: those that the user needs for it.
    async fn must_take(
        &mut self,
        settings: &RedisSettings,
        name: &str,
        words: &[&str],
        (what, rights): (&str, &[&str]),
    ) -> Result<(), Failure> {
        let reply = self.ask(cmd(name).arg(words)).await?;
        let Some(error) = said(&reply) else { return Ok(()) };
        let failure = self.forbidden(settings, &error, rights);
        Err(Failure { text: format!("{what} needs {name}: {}", failure.text), ..failure })
    }

    /// The failure of an error, with the command that gives the user these rights if they are missing.
    pub(super) fn forbidden(&self, settings: &RedisSettings, error: &str, rights: &[&str]) -> Failure {
        with_fix(environment(&self.address, error), || allow(settings, rights))
    }

    async fn expect_ok(&mut self, command: &Cmd) -> Result<(), Failure> {
        let reply = self.call(command).await?;
        said(&reply).map_or(Ok(()), |error| Err(of_login(&self.address, &error)))
    }

    /// Sends a command and waits for its reply, while no other command is under way.
    ///
    /// # Errors
    /// The connection is lost. An error of the server is a reply.
    pub(super) async fn call(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let mut commands = Pipeline::new();
        commands.add_command(command.clone());
        Ok(self.call_all(commands).await?.pop().unwrap_or_default())
    }

    /// Sends a command and waits for its reply as [`within`] does.
    ///
    /// # Errors
    /// The connection is lost, or the server hangs.
    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let address = self.address.clone();
        within(&KIND, &address, self.call(command)).await
    }

    /// Sends several commands in one write and waits for their replies.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn call_all(&mut self, commands: Pipeline) -> Result<Vec<Value>, Failure> {
        let mut replies = self.send(commands);
        let replied = tokio::select! {
            biased;
            replied = &mut replies => replied,
            // The connection may have ended behind the replies.
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
        // The first poll puts the commands into the library's queue, which has room.
        let mut nobody = Context::from_waker(std::task::Waker::noop());
        match replies.as_mut().poll(&mut nobody) {
            Poll::Pending => replies,
            Poll::Ready(ended) => Box::pin(std::future::ready(ended)),
        }
    }

    /// Writes and reads as much as the socket allows. Ready once the connection has ended.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        pin!(&mut self.driver).poll(context)
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.driver.is_terminated()
    }

    /// Notes that replies were taken: the count of bytes begins again.
    pub(super) fn settled(&self) {
        let mut traffic = locked(&self.traffic);
        traffic.read = 0;
        traffic.last_words.clear();
    }

    /// Sets the most bytes of the replies under way.
    pub(super) fn expect(&self, most: usize) {
        locked(&self.traffic).most = most;
    }

    /// When bytes were last read or written.
    pub(super) fn heard(&self) -> Instant {
        locked(&self.traffic).last
    }

    /// The error that the server sent last, before it closed the connection over a command.
    pub(super) fn last_error(&self) -> Option<String> {
        let traffic = locked(&self.traffic);
        let text = std::str::from_utf8(&traffic.last_words).ok()?.strip_suffix("\r\n")?;
        let line = text.rsplit("\r\n").next()?;
        line.strip_prefix('-').filter(|error| errors::code(error) == "ERR").map(str::to_owned)
    }

    /// The failure of a lost connection: the error that the server sent last, or the socket's, or else a reply that the library did not
    /// understand. A server with too many clients sends its error before it reads a command, so that the library gives it to nobody.
    pub(super) fn lost(&self) -> Failure {
        let ended = self.last_error().or_else(|| locked(&self.traffic).ended.clone());
        KIND.broken(&self.address, ended.as_deref().unwrap_or("it does not speak Redis' protocol"))
    }

    /// The server's address, for people.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The name or address to which this connection was made.
    pub(super) fn host(&self) -> &str {
        &self.host
    }
}

/// A server's reply to INFO or CLUSTER INFO. Empty if the user may not ask.
#[derive(Debug, Default)]
pub(super) struct Info(String);

/// The oldest version of Redis with WAITAOF. Every Valkey says 7.2 or newer.
const WAITS_FOR_FILE: (u32, u32) = (7, 2);

impl Info {
    pub(super) fn of(reply: &Value) -> Self {
        let Value::BulkString(text) = reply else { return Self::default() };
        Self(String::from_utf8_lossy(text).into_owned())
    }

    /// The value of a field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Whether the server writes an append-only file, and has the command that waits for it.
    pub(super) fn has_file_to_wait_for(&self) -> bool {
        self.field("aof_enabled") == Some("1") && self.version().is_some_and(|version| version >= WAITS_FOR_FILE)
    }

    /// The major and minor version.
    fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version")?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_append_only_file_can_be_waited_for_where_there_is_one_and_the_command() {
        let said = |version: &str, file: &str| {
            let text = format!("# Server\r\nredis_version:{version}\r\n# Persistence\r\naof_enabled:{file}\r\n");
            Info(text)
        };
        assert!(said("7.2.4", "1").has_file_to_wait_for() && said("8.0.2", "1").has_file_to_wait_for());
        assert!(!said("7.0.15", "1").has_file_to_wait_for() && !said("8.0.2", "0").has_file_to_wait_for());
        assert!(!Info::of(&Value::Nil).has_file_to_wait_for());
        assert_eq!(said("7.2.4", "1").field("role"), None);
    }

    #[tokio::test]
    async fn a_server_that_closes_with_an_error_before_it_reads_a_command_is_quoted() {
        let said = b"-ERR max number of clients reached\r\n";
        let stream = Box::new(tokio::io::join(said.as_slice(), tokio::io::sink()));
        let server = Server { host: "h".to_owned(), port: 6379 };
        let mut connection = RedisConnection::over(stream, &server).await.unwrap();
        let lost = connection.call(&cmd("PING")).await.unwrap_err();
        assert_eq!(lost, KIND.broken("h:6379", "ERR max number of clients reached"));
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

//! [`Connection`]: one connection to a Postgres server, with its start-up and simple queries.
//!
//! In: a [`Source`] and the connection's [`Purpose`]. Out: rows of text. Calls block, for at most the connect timeout at start-up and
//! [`QUERY_TIMEOUT`] for a query. The login is in `login`. `copy_both` turns a connection into the stream of a slot, and `rows` reads
//! results that are too large for memory. The relay and `check` use the same client, so `check` sees what `run` will get. There are no
//! extended queries, no COPY of data and no notifications.
//! Specification: PostgreSQL manual, sections 54.2 "Message Flow", 54.4.

use super::error::{Error, Recovery, ServerError, sqlstate};
use super::frame::{FrameError, ReadBuffer};
use super::lookup::Lookup;
use super::socket::{Socket, read_answer};
use super::source::{Host, Source, SslMode, TargetSessionAttrs};
use super::stream::ServerStream;
use super::tls::{self, Tls};
use crate::wire::{DecodeError, Reader};
use bytes::BytesMut;
use postgres_protocol::message::frontend;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The default time to connect to one address and log in. libpq's default is no limit, but a relay that hangs there would report
/// nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that an ordinary query may take.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest message outside the stream, and the largest result of a query, in bytes. This is enough for the latest rows of an outbox
/// table, which `check` reads, and for the columns of some ten thousand tables.
const LARGEST_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The largest message of a login, and the largest result of a query about one thing, in bytes. The longest of these is a comment.
const SMALL_ANSWER_BYTES: usize = 1024 * 1024;

/// The settings of each session, of either purpose: the defaults of a role, a database or the server decide on none of them.
///
/// They are set after the login, and not in the start-up packet. A pooler refuses a parameter there that it does not know, or drops it.
const PINNED: [(&str, &str); 15] = [
    // No limit of time but walrelay's own. `statement_timeout` is the first, since it may end the statements that set the others.
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    // Notes are written, and a second statement of a transaction sees what others have written since the first one.
    ("default_transaction_read_only", "off"),
    ("default_transaction_isolation", "read committed"),
    // A backslash in a literal is a plain character, and an error leaves the connection open.
    ("standard_conforming_strings", "on"),
    ("exit_on_error", "off"),
    ("quote_all_identifiers", "off"),
    // The text form of values.
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
];

/// Ends a session whose transaction lasts longer: for a walsender, that of the rows that it sends.
const TRANSACTION_TIMEOUT: &str = "transaction_timeout";

/// The first version that has [`TRANSACTION_TIMEOUT`]. Earlier ones end the session of a client that sets it.
const TRANSACTION_TIMEOUT_SINCE: u32 = 17;

/// The encoding of a database without an encoding, whose texts are any bytes. A server that is asked for UTF-8 checks texts. At a row
/// with other bytes, it would stop for good.
const NO_ENCODING: &str = "SQL_ASCII";

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Ordinary queries.
    Control,
    /// Replication commands, and simple queries.
    Replication,
}

/// An open, idle connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) stream: ServerStream,
    pub(super) buffer: ReadBuffer,
    pub(super) host: String,
    backend_pid: u32,
    /// Whether the database has [`NO_ENCODING`].
    is_without_encoding: bool,
    /// The server's major version. 0: it has not said so.
    major_version: u32,
    /// Why there is no TLS, if there is none.
    without_tls: String,
}

/// A row of a simple query's result, in text form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row(Vec<Option<String>>);

impl Row {
    /// The column at `index`, from 0. `None`: SQL null, or there is no such column.
    pub fn text(&self, index: usize) -> Option<&str> {
        self.0.get(index)?.as_deref()
    }

    /// As [`Row::text`], parsed. `None` also if the text cannot be parsed.
    pub fn parse<T: std::str::FromStr>(&self, index: usize) -> Option<T> {
        self.text(index)?.parse().ok()
    }

    /// Its bytes in memory.
    fn bytes(&self) -> usize {
        let values: usize = self.0.iter().map(|value| size_of_val(value) + value.as_ref().map_or(0, String::len)).sum();
        size_of::<Self>() + values
    }

    /// Whether a boolean column is true.
    pub fn is_true(&self, index: usize) -> bool {
        self.text(index) == Some("t")
    }
}

impl Connection {
    /// Connects to the first host of `source` that answers and fits `target_session_attrs`. The files and programs of `source` are read
    /// again before.
    ///
    /// # Errors
    /// The last host's failure. If another host would not help (authentication, certificates), the first one's.
    pub fn open(source: &Source, purpose: Purpose) -> Result<Self, Error> {
        let open = || {
            let source = source.renewed().map_err(|error| Error::Source(Box::new(error)))?;
            Self::open_first(&source, purpose)
        };
        let opened = open();
        if opened.as_ref().is_err_and(Error::is_of_credentials) && source.password_refused() { open() } else { opened }
    }

    fn open_first(source: &Source, purpose: Purpose) -> Result<Self, Error> {
        let mut failure = None;
        for host in &source.hosts {
            match Self::open_host(source, host, purpose).and_then(|connection| connection.accepted(source)) {
                Ok(connection) => return Ok(connection),
                Err(error) if error.recovery() == Recovery::Stop => return Err(error),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure
            .unwrap_or_else(|| Error::WrongSession { hosts: "none".to_owned(), wanted: source.target_session_attrs }))
    }

    fn open_host(source: &Source, host: &Host, purpose: Purpose) -> Result<Self, Error> {
        let prefers_tls = source.sslmode == SslMode::Prefer;
        let opened = match Self::open_host_as(source, host, purpose, source.sslmode) {
            Err(error) if prefers_tls && may_go_without_tls(&error, host) => {
                let opened = Self::open_host_as(source, host, purpose, SslMode::Disable);
                match opened {
                    Ok(mut connection) => {
                        connection.without_tls = error.to_string();
                        Ok(connection)
                    }
                    // The error with TLS says more than the error without TLS.
                    Err(_) => Err(error),
                }
            }
            opened => opened,
        };
        opened.inspect(|connection| {
            if let Some(reason) = connection.unencrypted().filter(|_| prefers_tls) {
                warn_of(host, &reason);
            }
        })
    }

    /// Opens a session, within one connect timeout. With `exit_on_error`, a `statement_timeout` of a millisecond may end the session
    /// at the statement that lifts both.
    fn open_host_as(source: &Source, host: &Host, purpose: Purpose, sslmode: SslMode) -> Result<Self, Error> {
        let (deadline, mut pause) = (Instant::now() + connect_timeout(source), Duration::from_millis(1));
        loop {
            match Self::open_session(source, host, purpose, sslmode) {
                Err(error) if error.is_session_end_by(sqlstate::QUERY_CANCELED) && Instant::now() < deadline => {
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                opened => return opened,
            }
        }
    }

    fn open_session(source: &Source, host: &Host, purpose: Purpose, sslmode: SslMode) -> Result<Self, Error> {
        let name = host.to_string();
        let (socket, deadline) =
            connect(host, source).map_err(|error| Error::Connect { host: name.clone(), source: error })?;
        let stream = encrypt(socket, source, sslmode, host, &name, deadline)?;
        let buffer = ReadBuffer::new(SMALL_ANSWER_BYTES);
        let without_tls = match sslmode {
            SslMode::Disable => "sslmode=disable",
            SslMode::Prefer | SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                "the server offers none (ssl = off)"
            }
        };
        let without_tls = without_tls.to_owned();
        let mut connection = Self {
            stream,
            buffer,
            host: name,
            backend_pid: 0,
            is_without_encoding: false,
            major_version: 0,
            without_tls,
        };
        match connection.start_up(source, host, purpose, deadline) {
            Ok(()) => Ok(connection),
            Err(error) => Err(connection.certificate_refused(&error, deadline).unwrap_or(error)),
        }
    }

    /// The error if the server has refused the client certificate. With TLS 1.3, a server checks it after the client has ended its
    /// handshake. So the refusal comes as the answer to the start-up packet, or before that is sent, which then fails.
    fn certificate_refused(&mut self, error: &Error, deadline: Instant) -> Option<Error> {
        let Error::Io { source, .. } = error else { return None };
        let refusal = tls::refusal(source).or_else(|| {
            let is_closed = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset].contains(&source.kind());
            let answer = || self.stream.read_some(&mut self.buffer, deadline).err();
            is_closed.then(answer).flatten().as_ref().and_then(tls::refusal)
        })?;
        Some(Error::Tls { host: self.host.clone(), reason: format!("the server refuses our certificate: {refusal}") })
    }

    /// Returns the connection if it is as `target_session_attrs` requires.
    fn accepted(mut self, source: &Source) -> Result<Self, Error> {
        let wanted = source.target_session_attrs;
        if matches!(wanted, TargetSessionAttrs::Any | TargetSessionAttrs::PreferStandby) {
            return Ok(self);
        }
        // The session itself may write. What counts is the default that it had.
        let rows = self.query(
            "SELECT pg_catalog.pg_is_in_recovery(), reset_val = 'on' FROM pg_catalog.pg_settings
              WHERE name = 'default_transaction_read_only'",
        )?;
        let (standby, read_only) = rows.first().map_or((false, false), |row| (row.is_true(0), row.is_true(1)));
        let fits = match wanted {
            TargetSessionAttrs::Any | TargetSessionAttrs::PreferStandby => true,
            TargetSessionAttrs::ReadWrite => !standby && !read_only,
            TargetSessionAttrs::ReadOnly => standby || read_only,
            TargetSessionAttrs::Primary => !standby,
            TargetSessionAttrs::Standby => standby,
        };
        if fits { Ok(self) } else { Err(Error::WrongSession { hosts: self.host, wanted }) }
    }

    /// The host and port that are tried first, for messages.
    pub fn first_host(source: &Source) -> String {
        source.hosts.first().map_or_else(String::new, ToString::to_string)
    }

    /// Whether others on the network can read the bytes: over TCP without TLS, to a host that is not loopback.
    pub fn is_exposed(&self) -> bool {
        self.stream.is_exposed()
    }

    /// Why others on the network can read the bytes. `None`: they cannot.
    pub fn unencrypted(&self) -> Option<String> {
        self.is_exposed().then(|| self.without_tls.clone())
    }

    /// Host and port, for messages.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The process id of the server process.
    pub fn backend_pid(&self) -> u32 {
        self.backend_pid
    }

    /// Runs a simple query. Returns the rows of its last statement that returned any.
    ///
    /// # Errors
    /// The server refuses the query (the connection can still be used), or the connection broke.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Row>, Error> {
        self.query_within(sql, QUERY_TIMEOUT)
    }

    /// As [`Connection::query`], but waits at most `patience`.
    ///
    /// # Errors
    /// As there.
    pub fn query_within(&mut self, sql: &str, patience: Duration) -> Result<Vec<Row>, Error> {
        self.send_query(sql)?;
        self.answer(sql, Instant::now() + patience, LARGEST_ANSWER_BYTES)
    }

    /// As [`Connection::query`], for a query about one thing: its result may have at most `SMALL_ANSWER_BYTES`.
    ///
    /// # Errors
    /// As there.
    pub fn query_small(&mut self, sql: &str) -> Result<Vec<Row>, Error> {
        self.send_query(sql)?;
        self.answer(sql, Instant::now() + QUERY_TIMEOUT, SMALL_ANSWER_BYTES)
    }

    /// Runs a query that returns one value. `None`: there is no row, the value is null, or it cannot be parsed.
    ///
    /// # Errors
    /// As [`Connection::query_small`].
    pub fn value<T: std::str::FromStr>(&mut self, sql: &str) -> Result<Option<T>, Error> {
        Ok(self.query_small(sql)?.first().and_then(|row| row.parse(0)))
    }

    /// Runs a query. Returns the first column of its rows, without nulls.
    ///
    /// # Errors
    /// As [`Connection::query`].
    pub fn texts(&mut self, sql: &str) -> Result<Vec<String>, Error> {
        Ok(self.query(sql)?.iter().filter_map(|row| row.parse(0)).collect())
    }

    pub(super) fn send_query(&mut self, sql: &str) -> Result<(), Error> {
        let mut message = BytesMut::new();
        frontend::query(sql, &mut message).map_err(broke("encoding a query"))?;
        self.stream.write_all(&message).map_err(broke("sending a query"))
    }

    /// The rows that come before `deadline`, of at most `most` bytes.
    fn answer(&mut self, sql: &str, deadline: Instant, most: usize) -> Result<Vec<Row>, Error> {
        let (mut rows, mut refusal, mut left) = (Vec::new(), None, most);
        loop {
            let message = match self.message(deadline, "waiting for a query's result") {
                Ok(message) => message,
                Err(error) => return Err(broke_after(refusal, error)),
            };
            match message.tag {
                b'Z' => break,
                b'T' => rows.clear(),
                b'D' => {
                    let row = row(&message.body)?;
                    let oversized = || Error::Oversized { doing: shortened(sql), limit: most };
                    left = left.checked_sub(row.bytes()).ok_or_else(oversized)?;
                    rows.push(row);
                }
                b'E' => refusal = Some(server_error(&message.body)?),
                b'C' | b'I' => {}
                tag => return Err(Error::Unexpected { tag, doing: "running a query" }),
            }
        }
        match refusal {
            Some(error) => Err(Error::Server { doing: shortened(sql), error: Box::new(error) }),
            None => Ok(rows),
        }
    }

    /// The next message that is not only informative.
    pub(super) fn message(&mut self, deadline: Instant, doing: &'static str) -> Result<OwnedMessage, Error> {
        loop {
            while let Some(frame) = self.buffer.frame().map_err(not_a_row)? {
                let (owned, length) = (OwnedMessage { tag: frame.tag, body: frame.body.to_vec() }, frame.len());
                self.buffer.consume(length);
                match owned.tag {
                    b'S' => self.note_parameter(&owned.body)?,
                    // This is a NotificationResponse.
                    b'A' => {}
                    b'N' => tracing::debug!(notice = %server_error(&owned.body)?, "server notice"),
                    _ => return Ok(owned),
                }
            }
            self.stream.read_some(&mut self.buffer, deadline).map_err(broke(doing))?;
        }
    }

    fn start_up(&mut self, source: &Source, host: &Host, purpose: Purpose, deadline: Instant) -> Result<(), Error> {
        let mut parameters = vec![
            ("user", source.user.as_str()),
            ("database", source.dbname.as_str()),
            ("application_name", source.application_name.as_deref().unwrap_or("walrelay")),
        ];
        if purpose == Purpose::Replication {
            parameters.push(("replication", "database"));
        }
        parameters.extend(source.options.as_deref().map(|options| ("options", options)));
        // The server's errors until the settings are pinned are in this encoding.
        parameters.push(("client_encoding", "UTF8"));
        let mut message = BytesMut::new();
        frontend::startup_message(parameters, &mut message).map_err(broke("encoding the start-up packet"))?;
        self.stream.write_all(&message).map_err(broke("starting up"))?;
        let deadline = self.authenticate(source, host, deadline)?;
        self.until_ready(deadline)?;
        self.buffer.set_limit(LARGEST_ANSWER_BYTES);
        self.pin_settings(deadline)?;
        self.stream.established();
        Ok(())
    }

    /// Gives the session its settings. A `statement_timeout` of a millisecond may end the statement that lifts it, which is then sent
    /// again.
    fn pin_settings(&mut self, deadline: Instant) -> Result<(), Error> {
        let sql = pinning(self.major_version, self.is_without_encoding);
        loop {
            self.send_query(&sql)?;
            match self.answer(&sql, deadline, SMALL_ANSWER_BYTES) {
                Err(error) if error.code() == Some(sqlstate::QUERY_CANCELED) && Instant::now() < deadline => {}
                pinned => return pinned.map(drop),
            }
        }
    }

    /// Takes a ParameterStatus.
    fn note_parameter(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let mut reader = Reader::new("ParameterStatus", body);
        match reader.bytes()? {
            b"server_encoding" => self.is_without_encoding = reader.bytes()? == NO_ENCODING.as_bytes(),
            b"server_version" => self.major_version = major_version(reader.bytes()?),
            _ => {}
        }
        Ok(())
    }

    fn until_ready(&mut self, deadline: Instant) -> Result<(), Error> {
        loop {
            let message = self.message(deadline, "starting up")?;
            match message.tag {
                b'Z' => return Ok(()),
                b'K' => self.backend_pid = Reader::new("BackendKeyData", &message.body).u32()?,
                b'E' => return Err(self.refused(&message.body)?),
                tag => return Err(Error::Unexpected { tag, doing: "starting up" }),
            }
        }
    }

    pub(super) fn refused(&self, body: &[u8]) -> Result<Error, Error> {
        let error = Box::new(server_error(body)?);
        Ok(Error::LoginRefused { host: self.host.clone(), error })
    }
}

/// The statements that give a session its settings, in one query.
fn pinning(major_version: u32, is_without_encoding: bool) -> String {
    let timeout = (major_version >= TRANSACTION_TIMEOUT_SINCE).then_some((TRANSACTION_TIMEOUT, "0"));
    let encoding = is_without_encoding.then_some(("client_encoding", NO_ENCODING));
    // `transaction_timeout` ends the session, so it goes first.
    let settings = timeout.into_iter().chain(PINNED).chain(encoding);
    settings.map(|(name, value)| format!("SET {name} = '{value}'")).collect::<Vec<_>>().join("; ")
}

/// The number that `server_version` begins with, as in `17.5 (Debian 17.5-1)` or `19rc1`. 0: it begins with none.
fn major_version(server_version: &[u8]) -> u32 {
    let digits = server_version.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u32, digit| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
}

/// The error for a frame with such a length. Outside a stream no message is large, so the length is malformed.
fn not_a_row(error: FrameError) -> FrameError {
    match error {
        FrameError::TooLarge { tag, length, .. } => {
            FrameError::BadLength { tag, length: i32::try_from(length - 1).unwrap_or(i32::MAX) }
        }
        bad @ FrameError::BadLength { .. } => bad,
    }
}

/// The error of a connection that broke. If the server has said before why it ends the session, that is the cause.
pub(super) fn broke_after(refusal: Option<ServerError>, error: Error) -> Error {
    match (refusal, error) {
        (Some(refusal), Error::Io { doing, source }) => {
            Error::Io { doing, source: io::Error::new(source.kind(), refusal) }
        }
        (_, error) => error,
    }
}

/// A message taken out of the buffer.
pub(super) struct OwnedMessage {
    pub(super) tag: u8,
    pub(super) body: Vec<u8>,
}

pub(super) fn broke(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { doing, source }
}

fn connect_timeout(source: &Source) -> Duration {
    match source.connect_timeout {
        None => CONNECT_TIMEOUT,
        // With libpq, 0 means no limit.
        Some(Duration::ZERO) => Duration::from_hours(24),
        Some(timeout) => timeout,
    }
}

/// Returns a socket to the first address that answers, and the deadline of the login. As in libpq, each address has the whole timeout,
/// so a silent address does not shorten the time of the next one.
fn connect(host: &Host, source: &Source) -> io::Result<(Socket, Instant)> {
    let timeout = connect_timeout(source);
    let addresses: Vec<SocketAddr> = match host {
        Host::Unix { .. } => return Ok((Socket::unix(host.to_string().as_ref())?, Instant::now() + timeout)),
        Host::Tcp { port, address: Some(address), .. } => vec![SocketAddr::new(*address, *port)],
        Host::Tcp { name, port, .. } => {
            let _lookup = Lookup::begin(name);
            (name.as_str(), *port).to_socket_addrs()?.collect()
        }
    };
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        let deadline = Instant::now() + timeout;
        match Socket::tcp(&address, timeout, source) {
            Ok(socket) => return Ok((socket, deadline)),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Warns that `sslmode=prefer` goes on without TLS, once for each reason that differs from the last one: each connection would repeat it.
fn warn_of(host: &Host, reason: &str) {
    static WARNED: Mutex<Option<String>> = Mutex::new(None);
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if warned.as_deref() == Some(reason) {
        return;
    }
    tracing::warn!(
        %host,
        reason,
        hint = "sslmode=verify-full in --source, once the reason is gone",
        "the connection to Postgres is not encrypted, as sslmode=prefer allows"
    );
    *warned = Some(reason.to_owned());
}

/// Whether libpq would try again without TLS: the handshake failed, or the server refuses the login by `pg_hba.conf`.
fn may_go_without_tls(error: &Error, host: &Host) -> bool {
    matches!(host, Host::Tcp { .. })
        && (matches!(error, Error::Tls { .. } | Error::UnsupportedKey { .. })
            || error.code() == Some(sqlstate::INVALID_AUTHORIZATION))
}

/// Negotiates TLS as `sslmode` requires. As in libpq, there is no TLS on a Unix socket.
fn encrypt(
    mut socket: Socket,
    source: &Source,
    sslmode: SslMode,
    host: &Host,
    name: &str,
    deadline: Instant,
) -> Result<ServerStream, Error> {
    let Host::Tcp { name: host_name, .. } = host else { return Ok(ServerStream::plain(socket)) };
    if sslmode == SslMode::Disable {
        return Ok(ServerStream::plain(socket));
    }
    let mut message = BytesMut::new();
    frontend::ssl_request(&mut message);
    io::Write::write_all(&mut socket, &message).map_err(broke("asking for TLS"))?;
    match read_answer(&mut socket, deadline).map_err(broke("asking for TLS"))? {
        b'S' => Tls::connect(socket, source, host_name, name, deadline).map(ServerStream::tls),
        b'N' if source.sslmode == SslMode::Prefer => Ok(ServerStream::plain(socket)),
        b'N' => Err(Error::Tls { host: name.to_owned(), reason: "the server does not do TLS (ssl = off)".to_owned() }),
        // This is an ErrorResponse. The server's identity is not proven yet, so its text is not shown, as in libpq.
        b'E' => {
            let source = io::Error::other("it has no room for another connection now");
            Err(Error::Connect { host: name.to_owned(), source })
        }
        tag => Err(Error::Unexpected { tag, doing: "asking for TLS" }),
    }
}

fn row(body: &[u8]) -> Result<Row, DecodeError> {
    let mut reader = Reader::new("DataRow", body);
    let columns = reader.u16()?;
    let mut values = Vec::new();
    for _ in 0..columns {
        values.push(match reader.i32()? {
            -1 => None,
            length => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                Some(String::from_utf8_lossy(reader.take(length)?).into_owned())
            }
        });
    }
    Ok(Row(values))
}

/// Decodes ErrorResponse and NoticeResponse.
///
/// # Errors
/// The fields are malformed.
pub fn server_error(body: &[u8]) -> Result<ServerError, DecodeError> {
    let mut reader = Reader::new("ErrorResponse", body);
    let mut error = ServerError::default();
    loop {
        let field = match reader.u8()? {
            0 => return Ok(error),
            b'V' => &mut error.severity,
            b'C' => &mut error.code,
            b'M' => &mut error.message,
            b'D' => &mut error.detail,
            b'H' => &mut error.hint,
            b'R' => &mut error.routine,
            _ => {
                reader.bytes()?;
                continue;
            }
        };
        *field = String::from_utf8_lossy(reader.bytes()?).into_owned();
    }
}

/// The beginning of a statement's first line, for messages.
pub(super) fn shortened(sql: &str) -> String {
    let words = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", words.get(..end).unwrap_or_default()),
        None => words,
    }
}

#[cfg(test)]
mod tests;

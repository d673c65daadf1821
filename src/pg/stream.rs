//! [`ServerStream`]: the bytes of a session over a [`Socket`], with or without TLS, and the Terminate at its end.
//!
//! In: a socket. It reads bytes into a [`ReadBuffer`], and writes the bytes of a slice. Each wait has a limit. Under TLS, a buffer is
//! between the socket and rustls, which would read 4 KB at a time.

use super::frame::ReadBuffer;
use super::socket::{Socket, is_loopback};
use super::tls::Tls;
use rustix::event::PollFlags;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The number of open sessions of this process.
static SESSIONS: AtomicUsize = AtomicUsize::new(0);

/// Waits at most `patience` until every session of this process has ended with Terminate. Threads end their sessions a moment after
/// they are asked to. If the process ended before them, Postgres would log and count their sessions as abandoned.
pub fn wait_for_session_ends(patience: Duration) {
    let deadline = Instant::now() + patience;
    while SESSIONS.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Terminate, the last message of a session.
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// The bytes of a connection. It sends Terminate when it is dropped, so that Postgres does not log and count the session as abandoned.
#[derive(Debug)]
pub(super) struct ServerStream {
    transport: Transport,
    /// Whether the login has succeeded. Before that, Terminate must not be sent.
    in_session: bool,
}

/// A socket, with TLS once that is negotiated.
#[derive(Debug)]
enum Transport {
    Plain(Socket),
    Tls(Box<Tls>),
}

impl Drop for ServerStream {
    fn drop(&mut self) {
        let last: &[u8] = if self.in_session { &TERMINATE } else { &[] };
        // It does not matter whether it arrives.
        drop(match &mut self.transport {
            Transport::Plain(socket) => socket.without_waiting().write_all(last),
            Transport::Tls(tls) => tls.end(last),
        });
        if self.in_session {
            SESSIONS.fetch_sub(1, Ordering::Release);
        }
    }
}

impl ServerStream {
    pub(super) fn plain(socket: Socket) -> Self {
        Self { transport: Transport::Plain(socket), in_session: false }
    }

    pub(super) fn tls(tls: Tls) -> Self {
        Self { transport: Transport::Tls(Box::new(tls)), in_session: false }
    }

    /// The server has accepted the login.
    pub(super) fn established(&mut self) {
        if !std::mem::replace(&mut self.in_session, true) {
            SESSIONS.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether nobody on the network can read the bytes: over TLS, or over a Unix socket.
    pub(super) fn is_private(&self) -> bool {
        matches!(self.transport, Transport::Tls(_) | Transport::Plain(Socket::Unix(_)))
    }

    /// Whether others on the network can read the bytes: over TCP without TLS, to a host that is not loopback.
    pub(super) fn is_exposed(&self) -> bool {
        match &self.transport {
            Transport::Plain(Socket::Tcp(stream, _)) => !stream.peer_addr().is_ok_and(|peer| is_loopback(peer.ip())),
            Transport::Plain(Socket::Unix(_)) | Transport::Tls(_) => false,
        }
    }

    /// The hash of the server's certificate, for channel binding. `None`: there is no TLS.
    pub(super) fn channel_binding(&self) -> Option<Vec<u8>> {
        match &self.transport {
            Transport::Plain(_) => None,
            Transport::Tls(tls) => tls.channel_binding(),
        }
    }

    /// Waits at most `patience` for bytes, and appends them. Returns their number. 0: none came.
    ///
    /// # Errors
    /// `UnexpectedEof` if the peer closed the connection, else the error that broke it.
    pub(super) fn read(&mut self, buffer: &mut ReadBuffer, patience: Duration) -> io::Result<usize> {
        let room = buffer.space();
        // Under load, bytes are there already, and this saves a system call.
        let mut read = self.read_now(room);
        if matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            if patience.is_zero() || !self.socket().wait(PollFlags::IN, patience)? {
                return Ok(0);
            }
            read = self.read_now(room);
        }
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                buffer.filled(length);
                Ok(length)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// As [`ServerStream::read`], but it is an error if nothing came before the deadline.
    ///
    /// # Errors
    /// `TimedOut`, or as [`ServerStream::read`].
    pub(super) fn read_some(&mut self, buffer: &mut ReadBuffer, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // The deadline also counts while bytes come: the peer may send without end.
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.read(buffer, left.min(Duration::from_secs(1)))? > 0 {
                return Ok(());
            }
        }
    }

    /// The receive window in bytes, if it is small.
    pub(super) fn window(&self) -> Option<usize> {
        self.socket().window()
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The connection broke, or the peer took no bytes for half a minute.
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.transport {
            Transport::Plain(socket) => socket.write_all(bytes),
            Transport::Tls(tls) => tls.write_all(bytes),
        }
    }

    fn read_now(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match &mut self.transport {
            Transport::Plain(socket) => socket.read(room),
            Transport::Tls(tls) => tls.read(room),
        }
    }

    fn socket(&self) -> &Socket {
        match &self.transport {
            Transport::Plain(socket) => socket,
            Transport::Tls(tls) => tls.socket(),
        }
    }
}

//! A session's bytes over a [`Socket`], plain or under TLS, and its goodbye.
//!
//! In: a socket. Out: bytes into a [`ReadBuffer`], bytes from a slice. It never blocks longer than it is told.
//! Under TLS a buffer stands between the socket and rustls, which would read 4 KB at a time.

use super::frame::ReadBuffer;
use super::socket::{Socket, is_loopback};
use super::tls::Tls;
use rustix::event::PollFlags;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many sessions this process has at servers.
static SESSIONS: AtomicUsize = AtomicUsize::new(0);

/// Waits at most `patience` until every session of this process has said goodbye. Threads that are told to end close theirs a moment
/// later, and a process that ends before them leaves sessions that Postgres logs and counts as abandoned.
pub fn wait_for_goodbyes(patience: Duration) {
    let deadline = Instant::now() + patience;
    while SESSIONS.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Terminate, the last message of a session.
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// A connection's bytes, which says goodbye when it is dropped, so that Postgres counts and logs no session as abandoned.
#[derive(Debug)]
pub(super) struct ServerStream {
    transport: Transport,
    /// The login is over: before that, Terminate has no place.
    in_session: bool,
}

/// A socket, with TLS once that has been negotiated.
#[derive(Debug)]
enum Transport {
    Plain(Socket),
    Tls(Box<Tls>),
}

impl Drop for ServerStream {
    fn drop(&mut self) {
        let last: &[u8] = if self.in_session { &TERMINATE } else { &[] };
        // Whether it still arrives changes nothing for us.
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

    /// The server has let us in.
    pub(super) fn established(&mut self) {
        if !std::mem::replace(&mut self.in_session, true) {
            SESSIONS.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether nobody between us and the server reads along: TLS, or a Unix socket.
    pub(super) fn is_private(&self) -> bool {
        matches!(self.transport, Transport::Tls(_) | Transport::Plain(Socket::Unix(_)))
    }

    /// Whether others on the network can read along: TCP without TLS to a host that is not loopback.
    pub(super) fn is_exposed(&self) -> bool {
        match &self.transport {
            Transport::Plain(Socket::Tcp(stream, _)) => !stream.peer_addr().is_ok_and(|peer| is_loopback(peer.ip())),
            Transport::Plain(Socket::Unix(_)) | Transport::Tls(_) => false,
        }
    }

    /// The hash of the server's certificate that ties authentication to this connection; `None` without TLS.
    pub(super) fn channel_binding(&self) -> Option<Vec<u8>> {
        match &self.transport {
            Transport::Plain(_) => None,
            Transport::Tls(tls) => tls.channel_binding(),
        }
    }

    /// Waits at most `patience` for bytes and appends what is there; 0 when nothing came.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer closed the connection; whatever else broke it.
    pub(super) fn read(&mut self, buffer: &mut ReadBuffer, patience: Duration) -> io::Result<usize> {
        let room = buffer.space();
        // Under load bytes are there already: one system call instead of two.
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

    /// As [`ServerStream::read`], but nothing within the whole time is an error.
    ///
    /// # Errors
    /// `TimedOut`, or as [`ServerStream::read`].
    pub(super) fn read_some(&mut self, buffer: &mut ReadBuffer, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Also while bytes come: a peer that sends without end is not waited for without end.
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.read(buffer, left.min(Duration::from_secs(1)))? > 0 {
                return Ok(());
            }
        }
    }

    /// The receive window where it is small, in bytes.
    pub(super) fn window(&self) -> Option<usize> {
        self.socket().window()
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The connection broke, or the peer took nothing for half a minute.
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

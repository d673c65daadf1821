//! [`Socket`]: a socket to the server, without TLS. Each wait on it has a limit.
//!
//! In: an address. Out: bytes. The socket is non-blocking, and waits only in poll(2). So a server that freezes in the middle of a TLS
//! record does not block walrelay. On connections to this machine's own addresses, the receive window is small (see `window`).

use super::source::Source;
use super::window::{self, Trickle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the peer may take no bytes before the connection counts as broken.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// The silence before the first keepalive probe on a TCP connection, the time between probes, and how many may stay unanswered.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// A socket.
#[derive(Debug)]
pub(super) enum Socket {
    /// A TCP connection. The [`Trickle`] watches its receive window if that is small.
    Tcp(TcpStream, Option<Trickle>),
    Unix(UnixStream),
}

impl Socket {
    /// # Errors
    /// Nothing answers at the address within `timeout`.
    pub(super) fn tcp(address: &SocketAddr, timeout: Duration, source: &Source) -> io::Result<Self> {
        let (stream, trickle) = if is_near(address) {
            (connect_near(address, timeout)?, Some(Trickle::default()))
        } else {
            (TcpStream::connect_timeout(address, timeout)?, None)
        };
        stream.set_nodelay(true)?;
        let keepalives = source.keepalives;
        sockopt::set_socket_keepalive(&stream, keepalives.enabled)?;
        if keepalives.enabled {
            sockopt::set_tcp_keepidle(&stream, keepalives.idle.unwrap_or(KEEPALIVE.0))?;
            sockopt::set_tcp_keepintvl(&stream, keepalives.interval.unwrap_or(KEEPALIVE.1))?;
            sockopt::set_tcp_keepcnt(&stream, keepalives.count.unwrap_or(KEEPALIVE.2))?;
        }
        if let Some(timeout) = source.tcp_user_timeout {
            sockopt::set_tcp_user_timeout(&stream, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))?;
        }
        stream.set_nonblocking(true)?;
        Ok(Self::Tcp(stream, trickle))
    }

    /// # Errors
    /// Nothing listens on the socket.
    pub(super) fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        Ok(Self::Unix(stream))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream, _) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }

    /// The receive window in bytes, if it is small.
    pub(super) fn window(&self) -> Option<usize> {
        match self {
            Self::Tcp(_, Some(_)) => Some(window::SMALL_BYTES),
            Self::Tcp(_, None) | Self::Unix(_) => None,
        }
    }

    pub(super) fn without_waiting(&mut self) -> WithoutWaiting<'_> {
        WithoutWaiting(self)
    }

    /// Whether the socket became ready within `patience`.
    pub(super) fn wait(&self, events: PollFlags, patience: Duration) -> io::Result<bool> {
        wait(self.fd(), events, patience)
    }
}

impl Read for Socket {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream, trickle) => {
                let length = stream.read(room)?;
                if trickle.as_mut().is_some_and(|trickle| trickle.came(length, Instant::now())) {
                    *trickle = None;
                    let widened = window::widen(stream);
                    tracing::debug!(?widened, "the small receive window was too small");
                }
                Ok(length)
            }
            Self::Unix(stream) => stream.read(room),
        }
    }
}

impl Write for Socket {
    /// Writes. If there is no room, waits for at most [`SEND_TIMEOUT`].
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.without_waiting().write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(PollFlags::OUT, SEND_TIMEOUT)? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes only as much as there is room for at once.
pub(super) struct WithoutWaiting<'a>(&'a mut Socket);

impl Write for WithoutWaiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0 {
            Socket::Tcp(stream, _) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether bytes to this address stay on this machine.
pub(super) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Whether the address is one of this machine's own. It is if packets to it would come from the same address.
fn is_near(address: &SocketAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // To connect a datagram socket sends nothing.
    let own = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    address.ip().is_loopback() || own.is_ok_and(|own: SocketAddr| own.ip() == address.ip())
}

/// Connects as [`TcpStream::connect_timeout`] does, with a small window from the first packet on.
fn connect_near(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    window::narrow(&socket)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => finish_connecting(&socket, timeout)?,
        Err(errno) => return Err(errno.into()),
    }
    Ok(TcpStream::from(socket))
}

fn finish_connecting(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if wait(socket.as_fd(), PollFlags::OUT, left)? {
            return sockopt::socket_error(socket)?.map_err(Into::into);
        }
    }
}

/// Whether the socket became ready within `patience`.
fn wait(socket: BorrowedFd<'_>, events: PollFlags, patience: Duration) -> io::Result<bool> {
    let timeout = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::from_borrowed_fd(socket, events)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads the server's one-byte answer to SSLRequest. It reads no further byte, so that none that was sent before TLS is taken for one
/// that came under TLS.
///
/// # Errors
/// Nothing came in time.
pub(super) fn read_answer(socket: &mut Socket, deadline: Instant) -> io::Result<u8> {
    let mut answer = [0];
    loop {
        match socket.read(&mut answer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(answer[0]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_readable(socket, deadline)?,
            Err(error) => return Err(error),
        }
    }
}

/// Waits until there are bytes to read.
///
/// # Errors
/// `TimedOut` after the deadline.
pub(super) fn wait_readable(socket: &Socket, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    socket.wait(PollFlags::IN, left).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::source::Environment;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_window_to_this_machine_is_small_until_it_causes_delays() {
        let source = Source::resolve(Some("postgres://u@h/d"), &Environment::default()).unwrap().source;
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut socket = Socket::tcp(&address, Duration::from_secs(10), &source).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        assert_eq!(socket.window(), Some(window::SMALL_BYTES));
        let buffer = sockopt::socket_recv_buffer_size(socket.fd()).unwrap();
        // The bytes come as from a sender that waits for its timer each time.
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(200));
            peer.write_all(&[0; 5000]).unwrap();
            let (mut left, deadline) = (5000, Instant::now() + Duration::from_secs(10));
            while left > 0 {
                wait_readable(&socket, deadline).unwrap();
                left -= socket.read(&mut vec![0; left]).unwrap();
            }
        }
        assert_eq!(socket.window(), None);
        assert!(sockopt::socket_recv_buffer_size(socket.fd()).unwrap() > buffer);
    }

    #[test]
    fn loopback_is_loopback_in_each_notation() {
        for (address, expected) in [
            ("127.0.0.1", true),
            ("127.8.9.10", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.1", false),
            ("10.0.0.1", false),
            ("fd00::2", false),
            ("::ffff:192.0.2.1", false),
        ] {
            assert_eq!(is_loopback(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn no_other_window_is_small() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(Socket::unix(&path).unwrap().window(), None);
        assert!(!is_near(&"192.0.2.1:5432".parse().unwrap()), "an address for documentation (RFC 5737)");
    }
}

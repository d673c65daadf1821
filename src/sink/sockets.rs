//! Sets options of the sockets that a library's client has, so that no bytes leave the kernel once the client is closed.
//!
//! After a close or a kill, the kernel goes on sending the bytes that the peer has not acknowledged, for minutes. If packets to the broker
//! were dropped, these bytes arrive behind records that another relay has published meanwhile. With `SO_LINGER` of zero seconds, the
//! kernel drops them at the close and at a kill. The clients of `rdkafka` and `async-nats` give nobody their sockets. So the process
//! looks through its own descriptors for connections to a broker's port.
//!
//! In: the ports of the brokers. Out: options set, connections reset. The process duplicates a descriptor before it looks at it, so that
//! it changes the socket that it has looked at, even if another thread closes the number meanwhile.

use rustix::fd::{BorrowedFd, OwnedFd, RawFd};
use rustix::net::sockopt;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
#[cfg(feature = "kafka")]
use std::time::Instant;

/// How often the process looks for new connections while records are in flight.
#[cfg(feature = "kafka")]
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The folder with the descriptors of this process.
const DESCRIPTORS: &str = "/proc/self/fd";

/// The process's connections to brokers, by their ports.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    ports: BTreeSet<u16>,
    #[cfg(feature = "kafka")]
    looked: Option<Instant>,
}

impl Sockets {
    /// The connections to these ports.
    pub(super) fn to(ports: impl IntoIterator<Item = u16>) -> Self {
        let mut sockets = Self::default();
        sockets.ports.extend(ports);
        sockets
    }

    /// Adds ports.
    #[cfg(feature = "kafka")]
    pub(super) fn add(&mut self, ports: impl IntoIterator<Item = u16>) {
        self.ports.extend(ports);
    }

    /// Sets the options of new connections, at most every [`LOOK_EVERY`].
    #[cfg(feature = "kafka")]
    pub(super) fn look(&mut self, now: Instant) {
        if self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY) {
            self.looked = Some(now);
            self.empty_at_close();
        }
    }

    /// Lets the kernel drop unacknowledged bytes when a connection is closed.
    pub(super) fn empty_at_close(&self) {
        for socket in self.all() {
            if let Err(error) = sockopt::set_socket_linger(&socket, Some(Duration::ZERO)) {
                tracing::debug!(%error, "a connection to a broker keeps its SO_LINGER");
            }
        }
    }

    /// Resets all connections now, whatever their threads are doing.
    #[cfg(feature = "kafka")]
    pub(super) fn reset(&self) {
        for socket in self.all() {
            if let Err(error) = rustix::net::connect_unspec(&socket) {
                tracing::debug!(%error, "a connection to a broker cannot be reset");
            }
        }
    }

    fn all(&self) -> Vec<OwnedFd> {
        let Ok(entries) = std::fs::read_dir(DESCRIPTORS) else { return Vec::new() };
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
        numbers.filter_map(duplicate).filter(|socket| self.is_broker(socket)).collect()
    }

    fn is_broker(&self, socket: &OwnedFd) -> bool {
        let peer = rustix::net::getpeername(socket).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        peer.is_some_and(|peer| self.ports.contains(&peer.port()))
    }
}

#[allow(unsafe_code, reason = "descriptors of other threads are known by their numbers alone")]
fn duplicate(number: RawFd) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: the number is not -1. It may be closed, or mean another file by now: then the call fails, or gives that file, which is
    // looked at like any other. It is borrowed for this call only.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(borrowed, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read as _};
    use std::net::{TcpListener, TcpStream};

    fn connected() -> (u16, TcpStream, TcpStream) {
        let broker = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = broker.local_addr().unwrap();
        let ours = TcpStream::connect(address).unwrap();
        (address.port(), ours, broker.accept().unwrap().0)
    }

    #[test]
    fn connections_to_brokers_are_reset_and_others_are_left_alone() {
        let (port, mut ours, mut theirs) = connected();
        let (_, other, mut others_end) = connected();
        let sockets = Sockets::to([port]);
        sockets.empty_at_close();
        assert_eq!(sockopt::socket_linger(&ours).unwrap(), Some(Duration::ZERO));
        assert_eq!(sockopt::socket_linger(&other).unwrap(), None);
        sockets.reset();
        assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(matches!(ours.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
        drop(other);
        assert_eq!(others_end.read(&mut [0]).unwrap(), 0);
    }
}

//! Makes the receive window of a connection to a server on this machine small, and wide again if that causes delays.
//!
//! A walsender sends each row by itself. If the window is open, each row costs a pass through TCP. If it is closed, rows gather in the
//! walsender's socket, and leave together once the relay reads. In measurements side by side, a row cost the walsender 4.4 to 4.9
//! microseconds of CPU instead of 6.2 to 7.3, and the rate was 1.2 to 1.5 times as high. With `TCP_WINDOW_CLAMP` instead of a small
//! buffer, that was so only in some runs, since the kernel forgets the clamp when it measures the overhead of packets. On a connection
//! to another machine, the kernel decides on the window: a small one would limit the rate by the round trip.
//!
//! There is a disadvantage. In a buffer of a fixed size, the kernel may offer a window below half of the widest one that it ever
//! offered. The sender then finds no window worth a packet. It sends only one packet each 200 ms, by its timer for closed windows (RFC
//! 9293, 3.8.6.2.1), without end. This was seen after the reader had paused, at 115 kB/s. [`Trickle`] detects it, and [`widen`] ends
//! it.

use rustix::net::sockopt;
use std::io;
use std::os::fd::AsFd;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The receive buffer in bytes. The kernel doubles it, and offers half of that as the window.
pub(super) const SMALL_BYTES: usize = 32 * 1024;

/// The buffer and the window after a small one has caused delays.
const WIDE_BYTES: u32 = 1024 * 1024;

/// A packet by the sender's timer comes at least so long after the one before. Linux' timer has at least 200 ms.
const TIMER: Duration = Duration::from_millis(150);
const LEAST_BYTES: usize = 4096;

/// So many such packets in a row are no coincidence. A table with such a row each 200 ms looks alike, and then only loses the small
/// window.
const ENOUGH: u32 = 3;

/// Watches when bytes come, to detect a sender that waits for its timer each time.
#[derive(Debug, Default)]
pub(super) struct Trickle {
    last: Option<Instant>,
    in_a_row: u32,
}

impl Trickle {
    /// So many bytes were received at that time. Returns whether the window has to be widened.
    pub(super) fn came(&mut self, bytes: usize, now: Instant) -> bool {
        let waited = self.last.replace(now).is_some_and(|last| now.saturating_duration_since(last) >= TIMER);
        self.in_a_row = if waited && bytes >= LEAST_BYTES { self.in_a_row + 1 } else { 0 };
        self.in_a_row >= ENOUGH
    }
}

/// Makes the window small. This has to happen before the connection is made: set later, it stalled.
pub(super) fn narrow(socket: &impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_recv_buffer_size(socket, SMALL_BYTES)?)
}

/// Makes the window wide until the connection ends.
pub(super) fn widen(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size(socket, WIDE_BYTES as usize)?;
    clamp(socket, WIDE_BYTES)
}

/// Raises the limit of the window, which the kernel derived from the first buffer (tcp(7)).
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "rustix has no such option")]
fn clamp(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP);
    // SAFETY: the descriptor is open as long as the borrow; the pointer is to four bytes on this stack.
    let outcome = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw const bytes).cast(), 4) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn clamp(_: &impl AsFd, _: u32) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds bytes, each with the milliseconds since the ones before. Returns how many it takes until the window is widened.
    fn takes(came: impl IntoIterator<Item = (usize, u64)>) -> Option<usize> {
        let (mut trickle, mut now) = (Trickle::default(), Instant::now());
        came.into_iter().position(|(bytes, after)| {
            now += Duration::from_millis(after);
            trickle.came(bytes, now)
        })
    }

    #[test]
    fn a_packet_each_200_ms_is_a_sender_that_waits_for_its_timer() {
        assert_eq!(takes([(22_974, 5000), (22_974, 204), (22_974, 203), (22_974, 205)]), Some(3));
    }

    #[test]
    fn a_stream_that_flows_or_that_has_little_to_say_is_none() {
        assert_eq!(takes((0..100).map(|_| (65_536, 1))), None, "a backlog");
        assert_eq!(takes((0..100).map(|_| (400, 250))), None, "four rows a second, or keepalives");
        let pairs = (0..100).map(|n| if n % 2 == 0 { (22_974, 200) } else { (22_974, 0) });
        assert_eq!(takes(pairs), None, "what comes right behind was not waited for");
    }

    /// The size of the buffer and the limit of the window, in bytes.
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code, reason = "rustix has no such option")]
    fn sizes(socket: &std::net::TcpStream) -> (usize, u32) {
        let (mut bound, mut length) = (0_u32, 4);
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP);
        // SAFETY: the descriptor is open as long as the borrow; the pointers are to four bytes each on this stack.
        let outcome =
            unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut bound).cast(), &raw mut length) };
        assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
        (sockopt::socket_recv_buffer_size(socket).unwrap(), bound)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_window_is_narrowed_and_widened() {
        use rustix::net::{self, AddressFamily, SocketType};
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        narrow(&socket).unwrap();
        net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
        let stream = std::net::TcpStream::from(socket);
        let (buffer, bound) = sizes(&stream);
        assert!(buffer <= 2 * SMALL_BYTES && bound as usize <= SMALL_BYTES, "{buffer}, {bound}");
        widen(&stream).unwrap();
        let (wide, unbound) = sizes(&stream);
        assert!(wide >= 4 * buffer && unbound >= 4 * bound, "{wide}, {unbound}");
    }
}

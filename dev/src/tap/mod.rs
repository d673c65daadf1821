//! A TCP proxy that breaks connections on demand.
//!
//! In: a target address. Out: a loopback port that forwards to it. On demand it cuts, delays, stalls, throttles or refuses connections,
//! leaves them half-open, or loses them without a word to either end. It does not look at the bytes, but a [`Watcher`] may.
//!
//! ```text
//!  client ──▶ reader ──▶ queue ──▶ writer ──▶ server      (a pair of threads for each direction)
//!                                    ▲ distance, delay, stall, limit
//! ```
//!
//! The queue is bounded: a stalled direction pushes back on its sender as a full network does. A distance is no bound of the rate:
//! what it has under way fits besides (`queue`, shown by `pace`). That a connection is opened takes no longer than without.

pub mod pace;
mod queue;
pub mod statements;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::{Condvar, Mutex};

use crate::listener::Listener;
use queue::Queue;

/// The largest piece that is forwarded at once, in bytes.
const PIECE: usize = 64 * 1024;

/// How much later than asked the kernel may wake a thread, in nanoseconds; 50,000 by default, which is much beside a short distance.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::MIN;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From who connected to the target.
    ToServer,
    /// From the target to who connected.
    ToClient,
}

/// Who looks at the bytes, and decides about them.
pub trait Watcher: Send + Sync + std::fmt::Debug {
    /// A piece has come over the connection of this number, counted from 1. Until this returns, its direction of that connection waits.
    fn see(&self, connection: usize, direction: Direction, piece: &[u8]) -> Verdict;
}

/// What becomes of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is forwarded.
    Pass,
    /// It disappears.
    Swallow,
    /// It disappears, and its connection is closed.
    Cut,
    /// It disappears, and every connection is closed. New ones are refused.
    CutAll,
}

/// A proxy; it ends when dropped, with its connections.
#[derive(Debug)]
pub struct Tap {
    line: Arc<Line>,
    listener: Listener,
}

/// What the threads share.
#[derive(Debug, Default)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    target: Option<String>,
    /// Which connections go elsewhere, and where to.
    diverted: Vec<(usize, String)>,
    closed: bool,
    refusing: bool,
    to_server: Weather,
    to_client: Weather,
    /// How much longer each direction takes, also after [`Tap::flow`].
    distance: Duration,
    connections: Vec<Connection>,
    accepted: usize,
    watcher: Option<Arc<dyn Watcher>>,
}

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    stalled: bool,
    delay: Duration,
    bytes_per_second: Option<u32>,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// What is sent disappears, and neither end is told of the other's.
    lost: Arc<AtomicBool>,
    /// Held by each of its threads.
    alive: Weak<()>,
}

impl Tap {
    /// Forwards a free loopback port to `target` (`host:port`).
    ///
    /// # Errors
    /// No port can be opened.
    pub fn start(target: impl Into<String>) -> Result<Self> {
        let tap = Self::listen()?;
        tap.set_target(target);
        Ok(tap)
    }

    /// Opens the port before there is a target; connections are refused until then.
    ///
    /// # Errors
    /// No port can be opened.
    pub fn listen() -> Result<Self> {
        let line = Arc::new(Line::default());
        let shared = Arc::clone(&line);
        let listener = Listener::start(move |client| accept(&client, &shared))?;
        Ok(Self { line, listener })
    }

    /// Where new connections go from now on.
    pub fn set_target(&self, target: impl Into<String>) {
        self.line.state.lock().target = Some(target.into());
    }

    /// The connection of this number, counted from 1, goes to another target.
    pub fn divert(&self, connection: usize, target: impl Into<String>) {
        self.line.state.lock().diverted.push((connection, target.into()));
    }

    /// Shows the bytes of connections that are accepted from now on to somebody.
    pub fn watched_by(&self, watcher: Arc<dyn Watcher>) {
        self.line.state.lock().watcher = Some(watcher);
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The address to connect to.
    pub fn address(&self) -> String {
        self.listener.address()
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.line.state.lock().accepted
    }

    /// Closes every connection; new ones are taken.
    pub fn cut(&self) {
        for connection in self.line.state.lock().connections.drain(..) {
            connection.shut();
        }
    }

    /// Whether new connections are closed at once.
    pub fn refuse(&self, refusing: bool) {
        self.line.state.lock().refusing = refusing;
    }

    /// How far away the target is: each byte takes that much longer, in both directions, whatever else happens. It limits no rate.
    pub fn set_distance(&self, distance: Duration) {
        self.line.state.lock().distance = distance;
    }

    /// Each byte arrives that much later.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.change(direction, |weather| weather.delay = delay);
    }

    /// Nothing arrives any more; connections stay open, and what waits goes on with [`Tap::flow`].
    pub fn stall(&self, direction: Direction) {
        self.change(direction, |weather| weather.stalled = true);
    }

    /// [`Tap::stall`] for both directions: a black hole.
    pub fn stall_both(&self) {
        self.stall(Direction::ToServer);
        self.stall(Direction::ToClient);
    }

    /// At most that many bytes a second.
    pub fn limit(&self, direction: Direction, bytes_per_second: u32) {
        self.change(direction, |weather| weather.bytes_per_second = Some(bytes_per_second.max(1)));
    }

    /// Ends stalls, delays, limits and refusals.
    pub fn flow(&self) {
        let mut state = self.line.state.lock();
        state.refusing = false;
        (state.to_server, state.to_client) = (Weather::default(), Weather::default());
        drop(state);
        self.line.changed.notify_all();
    }

    /// The server sees every connection closed; the client sees nothing, and what it sends disappears.
    pub fn half_open(&self) {
        for connection in &self.line.state.lock().connections {
            connection.lost.store(true, Ordering::SeqCst);
            drop(connection.server.shutdown(Shutdown::Both));
        }
    }

    /// What is sent over the present connections disappears in both directions, and neither end is ever told, as if a cable were cut.
    /// New connections are taken.
    pub fn lose(&self) {
        for connection in &self.line.state.lock().connections {
            connection.lost.store(true, Ordering::SeqCst);
        }
    }

    fn change(&self, direction: Direction, change: impl FnOnce(&mut Weather)) {
        change(self.line.state.lock().weather_mut(direction));
        self.line.changed.notify_all();
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.listener.close();
        self.line.state.lock().closed = true;
        self.line.changed.notify_all();
        self.cut();
    }
}

impl Line {
    fn distance(&self) -> Duration {
        self.state.lock().distance
    }

    /// Closes every connection, and refuses new ones.
    fn end(&self) {
        let mut state = self.state.lock();
        state.refusing = true;
        for connection in state.connections.drain(..) {
            connection.shut();
        }
    }

    /// Waits out a stall. `None`: the tap is closed.
    fn weather(&self, direction: Direction) -> Option<Weather> {
        let stalled = |state: &mut State| state.weather_mut(direction).stalled && !state.closed;
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, stalled);
        let mut weather = *state.weather_mut(direction);
        weather.delay += state.distance;
        (!state.closed).then_some(weather)
    }
}

impl State {
    fn weather_mut(&mut self, direction: Direction) -> &mut Weather {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

impl Connection {
    fn shut(&self) {
        drop(self.client.shutdown(Shutdown::Both));
        drop(self.server.shutdown(Shutdown::Both));
    }
}

fn accept(client: &TcpStream, line: &Arc<Line>) {
    let target = {
        let mut state = line.state.lock();
        state.accepted += 1;
        let elsewhere = state.diverted.iter().find(|(connection, _)| *connection == state.accepted);
        let target = elsewhere.map(|(_, target)| target).or(state.target.as_ref());
        if state.refusing || state.closed { None } else { target.cloned() }
    };
    // A client that cannot be served sees its connection closed.
    if let Some(target) = target {
        drop(serve(client, &target, line));
    }
}

fn serve(client: &TcpStream, target: &str, line: &Arc<Line>) -> Result<()> {
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (lost, alive) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
    // A cut must find the connection before a byte has passed.
    let (number, watcher) = {
        let mut state = line.state.lock();
        state.connections.retain(|connection| connection.alive.strong_count() > 0);
        state.connections.push(Connection {
            client: client.try_clone()?,
            server: server.try_clone()?,
            lost: Arc::clone(&lost),
            alive: Arc::downgrade(&alive),
        });
        (state.accepted, state.watcher.clone())
    };
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (from, to) = match direction {
            Direction::ToServer => (client.try_clone()?, server.try_clone()?),
            Direction::ToClient => (server.try_clone()?, client.try_clone()?),
        };
        let filled = Arc::new(Queue::default());
        let emptied = Arc::clone(&filled);
        let (its, line, lost) = (Arc::clone(line), Arc::clone(line), Arc::clone(&lost));
        let (reading, writing) = (Arc::clone(&alive), Arc::clone(&alive));
        let watcher = watcher.clone();
        let verdict =
            move |piece: &[u8]| watcher.as_ref().map_or(Verdict::Pass, |watcher| watcher.see(number, direction, piece));
        thread::spawn(move || {
            read(from, &filled, &its, direction, &verdict);
            drop(reading);
        });
        thread::spawn(move || {
            write(to, &emptied, &line, direction, &lost);
            drop(writing);
        });
    }
    Ok(())
}

/// Ends with the connection, or when the writer has gone.
///
/// The kernel of a sender that resets its connection sends nothing more of what it had. So what a stall holds back does not arrive
/// then: without the tap, it would still be with the sender.
fn read(mut from: TcpStream, queue: &Queue, line: &Line, direction: Direction, verdict: &dyn Fn(&[u8]) -> Verdict) {
    let mut buffer = vec![0; PIECE];
    let is_reset = loop {
        match from.read(&mut buffer) {
            Ok(0) => break false,
            Ok(count) => {
                let piece = buffer.get(..count).unwrap_or_default();
                match verdict(piece) {
                    Verdict::Pass => {}
                    Verdict::Swallow => continue,
                    Verdict::Cut => {
                        drop(from.shutdown(Shutdown::Both));
                        break false;
                    }
                    Verdict::CutAll => {
                        line.end();
                        break false;
                    }
                }
                if !queue.push(piece, queue::room(line.distance())) {
                    break false;
                }
            }
            Err(error) => break error.kind() == ErrorKind::ConnectionReset,
        }
    };
    if is_reset && line.state.lock().weather_mut(direction).stalled {
        queue.drop_all();
    }
    queue.end();
}

fn write(mut to: TcpStream, queue: &Queue, line: &Line, direction: Direction, lost: &AtomicBool) {
    // Where it is refused, distances are a little longer.
    let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK));
    let mut piece = Vec::with_capacity(PIECE);
    while let Some(came) = queue.next() {
        if lost.load(Ordering::SeqCst) {
            queue.take(came, PIECE, &mut piece);
            continue;
        }
        let Some(weather) = line.weather(direction) else { break };
        thread::sleep((came + weather.delay).saturating_duration_since(Instant::now()));
        let limited = weather.bytes_per_second.is_some();
        let until = if limited { came } else { Instant::now().checked_sub(weather.delay).unwrap_or(came) };
        queue.take(until, PIECE, &mut piece);
        // A stall may have begun during the delay.
        if line.weather(direction).is_none() {
            break;
        }
        if lost.load(Ordering::SeqCst) {
            continue;
        }
        if to.write_all(&piece).is_err() && !lost.load(Ordering::SeqCst) {
            break;
        }
        if let Some(rate) = weather.bytes_per_second {
            let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            thread::sleep(Duration::from_secs(1) * length / rate);
        }
    }
    queue.end();
    if !lost.load(Ordering::SeqCst) {
        drop(to.shutdown(Shutdown::Write));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use std::net::TcpListener;

    /// A server that sends back what it gets.
    fn echo() -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        address
    }

    fn connect(tap: &Tap) -> TcpStream {
        let stream = TcpStream::connect(tap.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn round_trip(stream: &mut TcpStream) -> std::io::Result<[u8; 4]> {
        let mut answer = [0; 4];
        stream.write_all(b"ping")?;
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn bytes_pass_in_both_directions_until_the_cut() {
        let tap = Tap::start(echo()).unwrap();
        let mut stream = connect(&tap);
        assert_eq!(&round_trip(&mut stream).unwrap(), b"ping");
        tap.cut();
        assert!(round_trip(&mut stream).is_err());
        assert_eq!(&round_trip(&mut connect(&tap)).unwrap(), b"ping");
        assert_eq!(tap.accepted(), 2);
    }

    #[test]
    fn what_a_stall_holds_back_of_a_connection_that_is_reset_does_not_arrive() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let tap = Tap::start(listener.local_addr().unwrap().to_string()).unwrap();
        let mut client = connect(&tap);
        let mut server = listener.accept().unwrap().0;
        client.write_all(b"before").unwrap();
        let mut before = [0; 6];
        server.read_exact(&mut before).unwrap();
        let threads = || tap.line.state.lock().connections.first().map_or(0, |it| it.alive.strong_count());
        // The way back may not have its threads yet.
        process::wait_until(Duration::from_secs(10), "all four threads", || Ok(threads() == 4)).unwrap();
        tap.stall_both();
        client.write_all(b"behind").unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        process::wait_until(Duration::from_secs(10), "the reader to hear of the reset", || Ok(threads() < 4)).unwrap();
        tap.flow();
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).unwrap();
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }

    #[test]
    fn a_stalled_direction_holds_bytes_back_and_loses_none() {
        let tap = Tap::start(echo()).unwrap();
        let mut stream = connect(&tap);
        round_trip(&mut stream).unwrap();
        tap.stall(Direction::ToClient);
        stream.write_all(b"later").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(stream.read(&mut [0; 5]).is_err());
        tap.flow();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"later");
    }

    /// A server that keeps what it gets.
    fn keeper() -> (String, std::sync::mpsc::Receiver<Vec<u8>>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (told, kept) = std::sync::mpsc::channel();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut all = Vec::new();
                drop(stream.read_to_end(&mut all));
                drop(told.send(all));
            }
        });
        (address, kept)
    }

    #[test]
    fn what_a_stall_holds_back_arrives_after_a_close() {
        let (address, kept) = keeper();
        let tap = Tap::start(address).unwrap();
        let mut stream = connect(&tap);
        process::wait_until(Duration::from_secs(5), "the connection", || Ok(tap.accepted() == 1)).unwrap();
        tap.stall_both();
        stream.write_all(b"held back").unwrap();
        drop(stream);
        tap.flow();
        assert_eq!(kept.recv_timeout(Duration::from_secs(10)).unwrap(), b"held back");
    }

    #[test]
    fn a_delay_holds_for_each_byte_and_keeps_the_order() {
        let tap = Tap::start(echo()).unwrap();
        tap.delay(Direction::ToServer, Duration::from_millis(40));
        let mut stream = connect(&tap);
        let started = Instant::now();
        assert_eq!(&round_trip(&mut stream).unwrap(), b"ping");
        assert!(started.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn a_half_open_connection_swallows_what_the_client_sends() {
        let tap = Tap::start(echo()).unwrap();
        let mut stream = connect(&tap);
        round_trip(&mut stream).unwrap();
        tap.half_open();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        for _ in 0..5 {
            let kind = round_trip(&mut stream).unwrap_err().kind();
            assert!(matches!(kind, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{kind:?}");
        }
    }

    #[test]
    fn a_lost_connection_swallows_both_directions_and_new_ones_are_taken() {
        let tap = Tap::start(echo()).unwrap();
        let mut stream = connect(&tap);
        round_trip(&mut stream).unwrap();
        tap.lose();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let kind = round_trip(&mut stream).unwrap_err().kind();
        assert!(matches!(kind, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{kind:?}");
        tap.flow();
        assert_eq!(&round_trip(&mut connect(&tap)).unwrap(), b"ping");
        assert!(round_trip(&mut stream).is_err());
    }

    #[test]
    fn a_distance_stays_when_everything_else_ends() {
        let tap = Tap::start(echo()).unwrap();
        tap.set_distance(Duration::from_millis(20));
        tap.flow();
        let mut stream = connect(&tap);
        let started = Instant::now();
        assert_eq!(&round_trip(&mut stream).unwrap(), b"ping");
        assert!(started.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn new_connections_can_be_refused() {
        let tap = Tap::listen().unwrap();
        assert!(round_trip(&mut connect(&tap)).is_err());
        tap.set_target(echo());
        tap.refuse(true);
        assert!(round_trip(&mut connect(&tap)).is_err());
        tap.flow();
        assert!(round_trip(&mut connect(&tap)).is_ok());
    }

    #[test]
    fn a_limit_slows_down_and_loses_nothing() {
        let tap = Tap::start(echo()).unwrap();
        tap.limit(Direction::ToServer, 1_000_000);
        let mut stream = connect(&tap);
        let sent: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let started = Instant::now();
        stream.write_all(&sent).unwrap();
        let mut got = vec![0; sent.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == sent && started.elapsed() >= Duration::from_millis(50));
    }
}

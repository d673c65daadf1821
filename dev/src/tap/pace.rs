//! What a tap itself costs: bytes a second through it, and a round trip.
//!
//! In: a distance, or none of a tap at all. Out: rates and times of a stream on loopback. Measurements across a distance show with it
//! that the tap makes nobody slower than the distance does.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::Tap;

/// How much is sent for one rate, in bytes.
const STREAM: usize = 64 << 20;

/// What is written at once, in bytes.
const WRITE: usize = 256 << 10;

/// How many round trips give one time.
const ROUND_TRIPS: usize = 25;

/// What lies between the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// Nothing: loopback.
    Nothing,
    /// A tap at that distance.
    Tap(Duration),
}

/// Bytes a second from the first byte that arrives to the last.
///
/// # Errors
/// Loopback fails.
pub fn throughput(between: Between) -> Result<f64> {
    let (mut sender, receiver, _tap) = connected(between)?;
    let sending = thread::spawn(move || -> Result<()> {
        let piece = vec![0; WRITE];
        for _ in 0..STREAM / WRITE {
            sender.write_all(&piece)?;
        }
        Ok(())
    });
    let seconds = drain(receiver)?;
    sending.join().map_err(|_| anyhow!("the sender panicked"))??;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(STREAM as f64 / seconds)
}

/// What some round trips take, the shortest first.
///
/// # Errors
/// Loopback fails.
pub fn round_trips(between: Between) -> Result<Vec<Duration>> {
    let (mut near, mut far, _tap) = connected(between)?;
    let echo = thread::spawn(move || -> Result<()> {
        let mut byte = [0];
        for _ in 0..ROUND_TRIPS {
            far.read_exact(&mut byte)?;
            far.write_all(&byte)?;
        }
        Ok(())
    });
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let started = Instant::now();
        near.write_all(&[1])?;
        near.read_exact(&mut [0])?;
        times.push(started.elapsed());
    }
    echo.join().map_err(|_| anyhow!("the other end panicked"))??;
    times.sort();
    Ok(times)
}

/// Both ends of a connection, and what lies between them.
fn connected(between: Between) -> Result<(TcpStream, TcpStream, Option<Tap>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?.to_string();
    let tap = match between {
        Between::Nothing => None,
        Between::Tap(distance) => {
            let tap = Tap::start(address.clone())?;
            tap.set_distance(distance);
            Some(tap)
        }
    };
    let near = TcpStream::connect(tap.as_ref().map_or(address, Tap::address))?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far, tap))
}

/// Seconds from the first byte to the last.
fn drain(mut receiver: TcpStream) -> Result<f64> {
    let (mut buffer, mut left) = (vec![0; WRITE], STREAM);
    receiver.read_exact(buffer.get_mut(..1).unwrap_or_default())?;
    left -= 1;
    let started = Instant::now();
    while left > 0 {
        let count = receiver.read(&mut buffer)?;
        anyhow::ensure!(count > 0, "the stream ended {left} bytes too early");
        left = left.saturating_sub(count);
    }
    Ok(started.elapsed().as_secs_f64().max(1e-6))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Between = Between::Tap(Duration::ZERO);

    #[test]
    fn a_distance_makes_a_round_trip_longer_by_twice_itself_and_by_little_more() {
        // A busy machine makes some of them longer, and none of them shorter.
        let shortest = |between| round_trips(between).unwrap()[0];
        let near = shortest(NEAR);
        for distance in [2500, 20_000].map(Duration::from_micros) {
            let far = shortest(Between::Tap(distance));
            let grown = far.saturating_sub(near).as_secs_f64() / (2 * distance).as_secs_f64();
            assert!((0.9..2.0).contains(&grown), "{distance:?}: {near:?} became {far:?}");
        }
    }

    /// What holds less than a distance has under way makes the sender wait for it.
    #[test]
    fn all_that_is_sent_is_under_way_before_the_first_byte_arrives() {
        let (mut near, mut far, _tap) = connected(Between::Tap(Duration::from_secs(30))).unwrap();
        far.set_nonblocking(true).unwrap();
        near.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        for _ in 0..32 << 20 >> 18 {
            near.write_all(&vec![0; 1 << 18]).unwrap();
        }
        let arrived = far.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(arrived, Err(std::io::ErrorKind::WouldBlock));
    }
}

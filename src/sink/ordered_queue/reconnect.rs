//! [`within`]: the limit of the time in which a server is reached. [`Reconnect`]: the pauses of a client that connects again.
//!
//! In: futures. Out: their results, and pauses that grow with each attempt.

use crate::sink::Failure;
use crate::sink::destination::Kind;
use std::time::Duration;

/// How long a server may take, even a distant one: to connect, log in and answer takes several round trips.
pub const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// The shortest and the longest pause between two attempts to connect. Each pause is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The attempts to connect since the destination last worked. Then the caller makes a new `Reconnect`: the driver once a record was stored, a
/// node of Redis Cluster once it has answered.
#[derive(Debug)]
pub struct Reconnect {
    pause: Duration,
}

/// Waits for the server at `address` for [`REACHED_WITHIN`] at most.
///
/// # Errors
/// The server does not answer, or `reaching` fails.
pub async fn within<T>(
    kind: &Kind,
    address: &str,
    reaching: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = |_elapsed| Err(kind.broken(address, &format!("no answer within {} s", REACHED_WITHIN.as_secs())));
    tokio::time::timeout(REACHED_WITHIN, Box::pin(reaching)).await.unwrap_or_else(late)
}

impl Default for Reconnect {
    fn default() -> Self {
        Self { pause: PAUSES.0 }
    }
}

impl Reconnect {
    /// The pause before the next attempt. The one after it is twice as long.
    pub fn pause(&mut self) -> Duration {
        let next = (self.pause * 2).min(PAUSES.1);
        std::mem::replace(&mut self.pause, next)
    }
}

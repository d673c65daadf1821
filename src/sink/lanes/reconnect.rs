//! What stands between a client's connections: why one ended, and the pause before the next.

use super::Receiver;
use crate::sink::Failure;
use std::time::Duration;

/// Pauses between attempts to connect: the first, doubled up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Why a connection has ended.
#[derive(Debug)]
pub enum End {
    /// The relay wants nothing more.
    Closed,
    /// It failed, and another is needed.
    Lost(Failure),
}

/// The attempts to connect since a server last answered: a new one of these after each answer.
#[derive(Debug)]
pub struct Reconnect {
    pause: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self { pause: PAUSES.0 }
    }
}

impl Reconnect {
    /// Reports the failure to the relay, and waits until the next attempt is due; takes over records meanwhile. `None`: the relay wants
    /// nothing more.
    pub async fn wait(&mut self, receiver: &mut Receiver, failure: Failure) -> Option<()> {
        receiver.set_blocked(Some(failure));
        let pause = self.pause();
        receiver.while_listening(tokio::time::sleep(pause)).await
    }

    /// How long to wait before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let next = (self.pause * 2).min(PAUSES.1);
        std::mem::replace(&mut self.pause, next)
    }
}

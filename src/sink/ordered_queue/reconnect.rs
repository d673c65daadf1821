//! [`Reconnect`]: the pauses of a client that connects again.
//!
//! In: failures. Out: a report to the relay, and a pause that grows until a server has answered.

use super::Receiver;
use crate::sink::Failure;
use std::time::Duration;

/// The shortest and the longest pause between two attempts to connect. Each pause is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The attempts to connect since a server last answered. After an answer, the client makes a new `Reconnect`.
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
    /// Reports the failure to the relay, and waits until the next attempt is due. Takes over records meanwhile. `None`: the relay has
    /// dropped the sink.
    pub async fn wait(&mut self, receiver: &mut Receiver, failure: Failure) -> Option<()> {
        receiver.set_blocked(Some(failure));
        let pause = self.pause();
        receiver.while_listening(tokio::time::sleep(pause)).await
    }

    /// The pause before the next attempt. The one after it is twice as long.
    pub fn pause(&mut self) -> Duration {
        let next = (self.pause * 2).min(PAUSES.1);
        std::mem::replace(&mut self.pause, next)
    }
}

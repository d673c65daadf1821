//! [`Backoff`]: the pause before the next attempt. It is longer each time, differs between two relays, and is at most 5 s.
//!
//! This file also has the limits of a server's silence ([`Silence`]), and of the time in which wrong credentials are tried again
//! ([`CredentialsWait`]).

use crate::secret::CREDENTIALS_WITHIN;
use std::time::{Duration, Instant};

/// The first pause.
const FIRST: Duration = Duration::from_millis(100);

/// The longest pause if the peer refuses at once. A server that restarts does so, and should be connected to soon.
const LONGEST_REFUSED: Duration = Duration::from_millis(1500);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(5);

/// A connection that lasted for so long has worked, even if there was nothing to do.
const STEADY: Duration = Duration::from_secs(10);

/// The most times that the allowed silence is doubled: 60 s become about an hour.
const MOST_DOUBLINGS: u32 = 6;

/// The allowed silence of a server without a limit of its own (`wal_sender_timeout = 0`). TCP alone would notice a broken connection
/// only after a quarter of an hour. A working server answers when the relay asks it.
const WITHOUT_TIMEOUT: Duration = Duration::from_mins(1);

/// How long a server may be silent in a stream. Up to version 15, a walsender neither sends nor reads while it decodes changes of which
/// it sends none, such as those of a large materialized view. After a new connection it decodes the same changes again.
#[derive(Debug, Default)]
pub(super) struct Silence {
    doublings: u32,
}

impl Silence {
    /// The silence that the server of the next stream is allowed.
    pub(super) fn allowed(&self, wal_sender_timeout: Option<Duration>) -> Duration {
        wal_sender_timeout.unwrap_or(WITHOUT_TIMEOUT).saturating_mul(1 << self.doublings)
    }

    /// A stream has ended. `silent`: because the server was silent. `moved`: the position advanced in the stream.
    pub(super) fn ended(&mut self, silent: bool, moved: bool) {
        if moved {
            self.doublings = 0;
        } else if silent {
            self.doublings = (self.doublings + 1).min(MOST_DOUBLINGS);
        }
    }
}

/// How long the credentials have been wrong.
#[derive(Debug, Default)]
pub(super) struct CredentialsWait {
    since: Option<Instant>,
}

impl CredentialsWait {
    /// Starts at this time.
    #[cfg(test)]
    pub(super) fn since(since: Instant) -> Self {
        Self { since: Some(since) }
    }

    /// The server refused the credentials again. Returns whether to try again.
    pub(super) fn has_time_left(&mut self, now: Instant) -> bool {
        now.saturating_duration_since(*self.since.get_or_insert(now)) < CREDENTIALS_WITHIN
    }
}

/// The pauses, which double from 100 ms.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// The next pause. `dice` is any number, by which the pause is up to a quarter longer or shorter. `refused`: the peer refused at
    /// once, and was not silent.
    pub(super) fn next(&mut self, refused: bool, dice: u64) -> Duration {
        let longest = if refused { LONGEST_REFUSED } else { LONGEST };
        let pause = FIRST.saturating_mul(1 << self.attempts.min(16)).min(longest * 4 / 5);
        self.attempts += 1;
        let permille = u32::try_from(dice % 500).unwrap_or(0) + 750;
        (pause * permille / 1000).min(longest)
    }

    /// A stream has ended that lasted for `lasted`. `moved`: the position advanced in it. If it worked, the next failure counts as the
    /// first one. If each stream fails as soon as it is open, the pauses grow, so that neither server is flooded.
    pub(super) fn ended(&mut self, lasted: Duration, moved: bool) {
        if moved || lasted >= STEADY {
            self.attempts = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_silent_again_and_again_is_given_more_time_until_something_moves() {
        let minutes = |silence: &Silence| silence.allowed(None).as_secs() / 60;
        let mut silence = Silence::default();
        let mut found = Vec::new();
        for _ in 0..8 {
            found.push(minutes(&silence));
            silence.ended(true, false);
        }
        assert_eq!(found, [1, 2, 4, 8, 16, 32, 64, 64]);
        silence.ended(false, false);
        assert_eq!(minutes(&silence), 64, "the connection broke in the middle of it");
        silence.ended(true, true);
        assert_eq!(minutes(&silence), 1);
        assert_eq!(silence.allowed(Some(Duration::from_secs(10))), Duration::from_secs(10));
    }

    #[test]
    fn pauses_double_up_to_their_bound_and_start_again_after_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..10).map(|_| backoff.next(false, 250).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 4000, 4000, 4000, 4000]);
        backoff.ended(Duration::ZERO, true);
        assert_eq!(backoff.next(false, 250).as_millis(), 100);
    }

    #[test]
    fn a_stream_that_fails_each_time_as_soon_as_it_is_open_is_no_success() {
        let mut backoff = Backoff::default();
        for expected in [100, 200, 400] {
            assert_eq!(backoff.next(false, 250).as_millis(), expected);
            backoff.ended(Duration::from_secs(1), false);
        }
        backoff.ended(STEADY, false);
        assert_eq!(backoff.next(false, 250).as_millis(), 100);
    }

    #[test]
    fn wrong_credentials_are_waited_out_for_a_bounded_time_from_the_first_refusal() {
        let (mut wait, first) = (CredentialsWait::default(), Instant::now());
        assert!(wait.has_time_left(first));
        assert!(wait.has_time_left(first + CREDENTIALS_WITHIN / 2));
        assert!(!wait.has_time_left(first + CREDENTIALS_WITHIN));
        assert!(
            CredentialsWait::default().has_time_left(first + CREDENTIALS_WITHIN),
            "streaming in between starts over"
        );
    }

    #[test]
    fn jitter_keeps_within_the_bounds() {
        for dice in 0..2000 {
            let mut backoff = Backoff { attempts: 30 };
            let pause = backoff.next(false, dice);
            assert!(pause >= Duration::from_secs(3) && pause <= LONGEST, "{pause:?}");
            assert!(backoff.next(true, dice) <= LONGEST_REFUSED);
        }
    }
}

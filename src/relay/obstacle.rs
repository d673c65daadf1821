//! [`Obstacle`]: a failure for which records wait, and its lines in the log.
//!
//! In: the sink's failure in each turn of the loop, the time. Out: a line in the log once the failure has lasted, one for each news of an answer
//! that is in no list, and another one when it is over. A topic that is created on demand takes a moment, so a short failure is not logged. Reads no clock.

use crate::sink::{Failure, FailureClass};
use std::time::{Duration, Instant};

/// If records wait for so long, the relay logs it.
const LOGGED_AFTER: Duration = Duration::from_secs(2);

/// A failure for which records wait.
#[derive(Debug)]
pub(super) struct Obstacle {
    failure: Failure,
    since: Instant,
    is_logged: bool,
}

impl Obstacle {
    /// Records wait for `failure`. `before`: the obstacle of the last turn, if it is still the same. `unready_after`: when the relay stops
    /// being ready, which it does not do without a line in the log.
    pub(super) fn new(failure: Failure, before: Option<&Self>, now: Instant, unready_after: Duration) -> Self {
        let since = before.map_or(now, |before| before.since);
        let was_logged = before.is_some_and(|before| before.is_logged);
        // The text of an answer that is in no list changes once it is known which row gets it, and once other records arrive.
        let is_news =
            failure.class == FailureClass::Unlisted && before.is_some_and(|it| it.failure.text != failure.text);
        let is_logged = was_logged || now.saturating_duration_since(since) >= LOGGED_AFTER.min(unready_after);
        if is_logged && (!was_logged || is_news) {
            tracing::warn!(reason = %failure, hint = failure.logged_remedy(), "publishing blocked; no data lost; Postgres retains WAL");
        }
        Self { failure, since, is_logged }
    }

    /// Records wait no longer.
    pub(super) fn over(&self) {
        if self.is_logged {
            tracing::info!(was = %self.failure, "publishing resumed");
        }
    }

    /// Since when records wait.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn class(&self) -> FailureClass {
        self.failure.class
    }

    /// The failure's text, once it was logged.
    pub(super) fn logged(&self) -> Option<&str> {
        Some(self.failure.text.as_str()).filter(|_| self.is_logged)
    }
}

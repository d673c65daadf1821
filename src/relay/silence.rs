//! Reports a destination that has fallen silent: records are in flight, or a commit is under way, and no report has come for a while.
//!
//! In: the times of the last report, and of the oldest record without one. Out: a line in the log when the silence is noticed and when it
//! ends, and the last error. A frozen destination closes no connection, so its client reports no error for half a minute or longer.

use super::{Clock, Relay};
use crate::sink::Sink;
use std::time::{Duration, Instant};

/// After so long without an acknowledgement, the destination counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(5);

impl<S: Sink, C: Clock> Relay<S, C> {
    /// Logs the beginning and the end of each silence.
    pub(super) fn look_for_silence(&mut self, now: Instant) {
        let long_ago = |at: Instant| now.saturating_duration_since(at) >= SILENT_AFTER;
        let silent = self.oldest_unanswered().is_some_and(long_ago) && self.reported.is_none_or(long_ago);
        if silent == self.silent {
            return;
        }
        self.silent = silent;
        let (name, in_flight) = (self.metrics.destination(), self.in_flight());
        if silent {
            let text = format!("{name} has acknowledged nothing for {} s", SILENT_AFTER.as_secs());
            tracing::warn!(in_flight, "{text}; no data lost, retrying");
            self.metrics.last_error(Some(text));
        } else {
            tracing::info!("{name} acknowledges again");
        }
    }
}

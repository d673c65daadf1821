//! Says when the destination falls silent: records are in flight, or a commit is under way, and nothing at all comes back.
//!
//! In: when a report came last, since when one is owed. Out: a line in the log at its beginning and its end, and the last error. A
//! destination that is frozen closes no connection, so that its client has nothing to tell for half a minute and longer.

use super::{Clock, Relay};
use crate::sink::Sink;
use std::time::{Duration, Instant};

/// Nothing acknowledged for so long is worth a word.
const SILENT_AFTER: Duration = Duration::from_secs(5);

impl<S: Sink, C: Clock> Relay<S, C> {
    /// Tells once of each silence.
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

//! Limits how many of librdkafka's log lines walrelay logs.
//!
//! With `-X debug=…` librdkafka writes tens of thousands of lines a second. To log each would cost more than the records do.
//! In: the time of each line. Out: whether to log it, and how many lines were dropped. Reads no clock.

use std::time::{Duration, Instant};

/// The most lines that are logged in a [`SPAN`].
const MOST_LINES: u32 = 1_000;

/// The time for which lines are counted.
const SPAN: Duration = Duration::from_secs(1);

/// The lines of one span.
#[derive(Debug, Default)]
pub(in crate::sink::kafka) struct Lines {
    since: Option<Instant>,
    shown: u32,
    dropped: u64,
}

impl Lines {
    /// Decides on the next line. `None`: it is dropped. `Some`: it is shown, and if it is the first of a span, so many lines were dropped in
    /// the span before.
    pub(in crate::sink::kafka) fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= SPAN) {
            return Some(std::mem::replace(self, Self { since: Some(now), shown: 1, dropped: 0 }).dropped);
        }
        if self.shown < MOST_LINES {
            self.shown += 1;
            return Some(0);
        }
        self.dropped += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_lines_are_shown_in_a_second_and_the_others_counted() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let shown = (0..5_000).filter(|_| lines.take(start) == Some(0)).count();
        assert_eq!(shown, 1_000);
        assert_eq!(lines.take(start + SPAN), Some(4_000));
        assert_eq!(lines.take(start + SPAN), Some(0));
        assert_eq!(lines.take(start + SPAN * 3), Some(0), "nothing was dropped");
    }
}

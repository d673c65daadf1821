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

/// The decision on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sink::kafka) enum Line {
    Shown,
    /// The line is shown, as the first of a span. So many lines were dropped in the span before, at least 1.
    ShownAfter(u64),
    Dropped,
}

impl Lines {
    /// Decides on the next line.
    pub(in crate::sink::kafka) fn take(&mut self, now: Instant) -> Line {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= SPAN) {
            let dropped = std::mem::replace(self, Self { since: Some(now), shown: 1, dropped: 0 }).dropped;
            return if dropped == 0 { Line::Shown } else { Line::ShownAfter(dropped) };
        }
        if self.shown < MOST_LINES {
            self.shown += 1;
            return Line::Shown;
        }
        self.dropped += 1;
        Line::Dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_lines_are_shown_in_a_second_and_the_others_counted() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let shown = (0..5_000).filter(|_| lines.take(start) == Line::Shown).count();
        assert_eq!(shown, 1_000);
        assert_eq!(lines.take(start + SPAN), Line::ShownAfter(4_000));
        assert_eq!(lines.take(start + SPAN), Line::Shown);
        assert_eq!(lines.take(start + SPAN * 3), Line::Shown, "nothing was dropped");
    }
}

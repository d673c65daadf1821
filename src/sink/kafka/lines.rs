//! How many of librdkafka's log lines are shown.
//!
//! With `-X debug=…` it writes tens of thousands a second, and showing each would cost more than the records do.
//! In: the time of each line. Out: whether it is shown, and how many were not. Reads no clock.

use std::time::{Duration, Instant};

/// So many lines are shown in a [`SPAN`], at most.
const MOST_LINES: u32 = 1_000;

/// They are counted for so long.
const SPAN: Duration = Duration::from_secs(1);

/// The lines of one span.
#[derive(Debug, Default)]
pub(super) struct Lines {
    since: Option<Instant>,
    shown: u32,
    dropped: u64,
}

/// What to do with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Shown,
    /// Shown, as the first of a span; so many were dropped in the one before, at least 1.
    ShownAfter(u64),
    Dropped,
}

impl Lines {
    /// A line comes.
    pub(super) fn take(&mut self, now: Instant) -> Line {
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

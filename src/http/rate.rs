//! Records a second, as a person wants to read it: over the last minute, from a counter noted now and then.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often the counter is noted.
pub(super) const STEP: Duration = Duration::from_secs(1);

/// How far back the rate reaches.
const WINDOW: Duration = Duration::from_mins(1);

/// What the counter was, oldest first, over [`WINDOW`] at the most.
#[derive(Debug, Default)]
pub(super) struct Rate(VecDeque<(Instant, u64)>);

impl Rate {
    /// The counter stands at `total` now.
    pub(super) fn note(&mut self, now: Instant, total: u64) {
        while self.0.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back((now, total));
    }

    /// Between the oldest and the newest note; `None` before there are two.
    #[allow(clippy::cast_precision_loss, reason = "shown to people, with one decimal")]
    pub(super) fn per_second(&self) -> Option<f64> {
        let ((from, first), (to, last)) = self.0.front().zip(self.0.back())?;
        let seconds = to.saturating_duration_since(*from).as_secs_f64();
        (seconds > 0.0).then(|| last.saturating_sub(*first) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_reaches_back_for_a_minute_and_no_further() {
        let start = Instant::now();
        let mut rate = Rate::default();
        rate.note(start, 1_000_000);
        assert_eq!(rate.per_second(), None);
        for second in 1..=100 {
            rate.note(start + Duration::from_secs(second), 1_000_000 + second * 50);
        }
        assert_eq!(rate.per_second(), Some(50.0));
        assert_eq!(rate.0.len(), 61);
    }
}

//! Whether the program stood still between two looks at it: stopped, swapped out, or with its machine.
//!
//! In: the time, at the end of each round and at the beginning of the next. Out: whether more lies between than a round takes.
//! The monotonic clock counts what a stopped process misses, but not what a suspended machine does: that shows in the wall clock. Where
//! neither runs on, as in a virtual machine that is paused, nothing shows.

use std::time::{Duration, Instant, SystemTime};

/// No round takes as long where all is well: what waits for an answer waits for so long at most. A broker takes longer to come back.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// Both clocks.
pub(super) type Clocks = (Instant, SystemTime);

/// What they say.
pub(super) fn now() -> Clocks {
    (Instant::now(), SystemTime::now())
}

/// Since when nobody looks.
#[derive(Debug, Default)]
pub(super) struct Stillness {
    left: Option<Clocks>,
}

impl Stillness {
    /// A round ends.
    pub(super) fn left(&mut self, now: Clocks) {
        self.left = Some(now);
    }

    /// Whether it stood still since the last round ended. A wall clock that is set forward looks the same; one that is set back does not.
    pub(super) fn is_over(&self, (now, wall): Clocks) -> bool {
        self.left.is_some_and(|(then, wall_then)| {
            let passed = now.saturating_duration_since(then).max(wall.duration_since(wall_then).unwrap_or_default());
            passed >= STOOD_STILL
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many milliseconds of either clock have passed since the last round ended.
    #[track_caller]
    fn check(monotonic: u64, wall: i64, expected: bool) {
        let start = (Instant::now(), SystemTime::now());
        let mut stillness = Stillness::default();
        assert!(!stillness.is_over(start), "there was no round before");
        stillness.left(start);
        let by = Duration::from_millis(wall.unsigned_abs());
        let wall = if wall < 0 { start.1 - by } else { start.1 + by };
        assert_eq!(stillness.is_over((start.0 + Duration::from_millis(monotonic), wall)), expected);
    }

    #[test]
    fn a_round_of_usual_length_is_none() {
        check(0, 0, false);
        check(100, 100, false);
        check(999, 999, false);
    }

    #[test]
    fn a_stopped_process_stood_still_and_so_did_a_suspended_machine() {
        check(1_000, 1_000, true);
        check(5, 60_000, true);
    }

    #[test]
    fn a_wall_clock_that_is_set_back_hides_nothing() {
        check(5, -60_000, false);
        check(1_000, -60_000, true);
    }
}

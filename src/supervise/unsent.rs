//! [`UnsentRow`]: notices that streams end again and again before the same row.
//!
//! Postgres cannot send every row: its text is too long, or an extension's library is gone. Each new stream then decodes the transaction again up to
//! that row, and ends. In: the row at which each stream of a server that failed has ended, the time. Out: from the third time in a row on, how
//! long that has lasted and how long to pause. Streams that end because the destination failed, or looks for a record, say nothing here. Reads
//! no clock.

use crate::lsn::Position;
use std::time::{Duration, Instant};

/// So many streams have to end at one row.
const TIMES: u32 = 3;

/// The first pause, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The row at which the last streams have ended.
#[derive(Debug, Default)]
pub(super) struct UnsentRow {
    row: Option<(Position, Instant)>,
    times: u32,
}

/// Postgres has failed to send this row three times or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Again {
    /// The time since the first of these ends.
    pub(super) lasted: Duration,
    /// The pause before the next stream.
    pub(super) pause: Duration,
}

impl UnsentRow {
    /// A stream has ended before it brought the row at `next`.
    pub(super) fn ended(&mut self, next: Position, now: Instant) -> Option<Again> {
        let since = self.row.filter(|(row, _)| *row == next).map_or(now, |(_, since)| since);
        self.times = if since == now { 1 } else { self.times + 1 };
        self.row = Some((next, since));
        let again = self.times.checked_sub(TIMES)?;
        let pause = FIRST_PAUSE.saturating_mul(1 << again.min(16)).min(LONGEST_PAUSE);
        Some(Again { lasted: now.saturating_duration_since(since), pause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    #[test]
    fn the_third_end_at_one_row_is_noticed_and_the_pause_grows_to_half_a_minute() {
        let (mut unsent, start) = (UnsentRow::default(), Instant::now());
        let row = |ordinal| Position { final_lsn: Lsn::new(200), ordinal };
        let mut ended = |ordinal, second| unsent.ended(row(ordinal), start + Duration::from_secs(second));
        assert_eq!([ended(1, 0), ended(1, 1), ended(2, 2), ended(2, 3)], [None; 4], "it went on by a row");
        let pauses: Vec<u64> = (4..11).map(|second| ended(2, second).unwrap().pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(ended(2, 12).unwrap().lasted, Duration::from_secs(10));
        assert_eq!(ended(3, 13), None);
    }
}

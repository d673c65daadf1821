//! Careful mode: finds the one record that a broker refuses.
//!
//! A refusal fails a whole batch, and says not which record of it is to blame. So the stream begins again from the confirmed
//! position, and between the first and the last record that was in flight *one record is in flight in all*: a refusal then names
//! exactly that one. If none is refused on its own, the batch as a whole was too large, and the next ones are made smaller.
//!
//! ```text
//!   confirmed          first in flight            last enqueued
//!      │  full pace         │  one record at a time     │  full pace, maybe smaller batches
//!  ────┴────────────────────┴───────────────────────────┴──────────►
//! ```
//!
//! In: positions of failures, of rows. Out: whether the next record must go alone, and who is guilty. Pure.

use crate::outbox::BadRow;
use crate::sink::Pace;
use crate::tracker::Position;

/// Batches of what size, in bytes, are tried once single records turn out fine: what Java clients send by default, then
/// records one by one.
const SMALLER_BATCHES: [usize; 2] = [16_384, 1];

/// Where care is needed.
#[derive(Debug, Default)]
pub struct Careful {
    /// Between these, both included, one record is in flight in all. Outlives the connections that the search takes.
    suspects: Option<(Position, Position)>,
    /// The record that is alone in flight.
    alone: Option<(Position, BadRow)>,
    /// How many times the batches were made smaller.
    smaller: usize,
}

impl Careful {
    /// One of the records from `first` to `last` was refused.
    pub fn suspect(&mut self, first: Position, last: Position) {
        self.suspects = Some((first, last));
        self.alone = None;
    }

    /// Whether there are suspects.
    pub fn is_on(&self) -> bool {
        self.suspects.is_some()
    }

    /// Whether the record at `position` must wait until nothing else is in flight: it is a suspect, or the first behind
    /// the last of them.
    #[inline]
    pub fn alone_at(&self, position: Position) -> bool {
        self.suspects.is_some_and(|(first, _)| first <= position)
    }

    /// Nothing is in flight and `position` comes next: true once, when that lies behind the last suspect and none was
    /// refused, so that the sink should be made anew with [`Careful::pace`].
    pub fn passed(&mut self, position: Position) -> bool {
        let passed = self.suspects.is_some_and(|(_, last)| position > last);
        if passed {
            self.suspects = None;
            self.alone = None;
            self.smaller += 1;
        }
        passed
    }

    /// A record was enqueued alone.
    pub fn enqueued(&mut self, position: Position, row: BadRow) {
        self.alone = Some((position, row));
    }

    /// No record is alone in flight any more: it was delivered, or given up with the sink.
    pub fn settled(&mut self) {
        self.alone = None;
    }

    /// The record that was alone, when one was.
    pub fn guilty(&mut self) -> Option<(Position, BadRow)> {
        self.alone.take()
    }

    /// How the sink should hand over.
    pub fn pace(&self) -> Pace {
        match self.smaller.checked_sub(1) {
            None => Pace::Full,
            Some(step) => Pace::Batches(SMALLER_BATCHES.get(step).copied().unwrap_or(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;
    use crate::outbox::BadReason;

    fn at(final_lsn: u64, ordinal: u64) -> Position {
        Position { final_lsn: Lsn::new(final_lsn), ordinal }
    }

    #[test]
    fn only_what_was_in_flight_goes_alone() {
        let mut careful = Careful::default();
        assert!(!careful.alone_at(at(1, 0)));
        careful.suspect(at(10, 5), at(20, 3));
        assert!(!careful.alone_at(at(10, 4)));
        assert!(careful.alone_at(at(10, 5)) && careful.alone_at(at(15, 0)) && careful.alone_at(at(20, 3)));
        assert!(careful.alone_at(at(20, 4)), "the last suspect's fate comes first");
        assert!(careful.passed(at(20, 4)));
        assert!(!careful.alone_at(at(20, 4)));
    }

    #[test]
    fn a_record_that_was_delivered_alone_is_not_blamed_for_a_later_refusal() {
        let mut careful = Careful::default();
        careful.suspect(at(10, 0), at(20, 0));
        let row = BadRow { table: "public.outbox".into(), id: None, reason: BadReason::Updated };
        careful.enqueued(at(10, 0), row);
        careful.settled();
        assert_eq!(careful.guilty(), None);
    }

    #[test]
    fn when_no_single_record_is_refused_the_batches_get_smaller_each_time() {
        let mut careful = Careful::default();
        assert_eq!(careful.pace(), Pace::Full);
        careful.suspect(at(10, 0), at(20, 0));
        assert_eq!(careful.pace(), Pace::Full);
        assert!(!careful.passed(at(20, 0)));
        assert!(careful.passed(at(20, 1)));
        assert!(!careful.passed(at(20, 2)), "once");
        assert_eq!(careful.pace(), Pace::Batches(16_384));
        for _ in 0..3 {
            careful.suspect(at(30, 0), at(30, 0));
            assert!(careful.passed(at(31, 0)));
            assert_eq!(careful.pace(), Pace::Batches(1));
        }
    }
}

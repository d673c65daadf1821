//! Exactly once, keeps what is known of rows whose records or dead letters were refused, until the rows come again.
//!
//! A refusal aborts the destination's transaction, and the stream begins again at the confirmed position. When the row comes again, its action
//! is taken instead: nothing has to wait, since a transaction arrives whole or not at all.
//!
//! ```text
//!  refused ──► the transaction is aborted ──► its row comes again ──► skipped │ stops the relay │ dead letter instead
//!                                                                       refused as well ──► … without payload ──► stop
//! ```
//!
//! In: positions, failures. Out: the same, by position, for `bad_rows`. Pure.
//! Invariant: a row is known until the position behind its transaction is confirmed, so that no refusal is met twice as if it were new.

use crate::lsn::{Lsn, Position};
use crate::sink::Failure;
use std::collections::BTreeMap;

/// Rows whose records or dead letters were refused, as long as they may come again.
#[derive(Debug, Default)]
pub(super) struct RejectedRows(BTreeMap<Position, Rejected>);

/// The relay's knowledge of one row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rejected {
    /// Why its record was refused. `None`: it was not, the row is bad by itself.
    pub(super) failure: Option<Failure>,
    /// Its dead-letter record was refused, and goes without its payload.
    pub(super) without_payload: bool,
    /// Why its dead-letter record is refused even so.
    pub(super) dead_letter_refused: Option<Failure>,
}

impl RejectedRows {
    /// The facts about the row at `position`, if anything of it was refused.
    #[inline]
    pub(super) fn get(&self, position: Position) -> Option<&Rejected> {
        if self.0.is_empty() { None } else { self.0.get(&position) }
    }

    /// The row's record was refused.
    pub(super) fn record(&mut self, position: Position, failure: Failure) {
        self.0.entry(position).or_default().failure = Some(failure);
    }

    /// The row's dead-letter record was refused. `for_good`: also without its payload.
    pub(super) fn dead_letter(&mut self, position: Position, failure: Failure, for_good: bool) {
        let rejected = self.0.entry(position).or_default();
        if rejected.dead_letter_refused.is_some() {
            // A record that only looks like a dead letter: it is the row's own.
            rejected.failure = Some(failure);
        } else if rejected.without_payload || for_good {
            rejected.dead_letter_refused = Some(failure);
        } else {
            rejected.without_payload = true;
        }
    }

    /// Everything that commits before `confirmed` will not come again.
    pub(super) fn confirmed(&mut self, confirmed: Lsn) {
        while let Some(first) = self.0.first_entry().filter(|first| first.key().final_lsn < confirmed) {
            first.remove();
        }
    }

    /// Positions from `switch_point` on belong to other rows now.
    pub(super) fn forget_from(&mut self, switch_point: Lsn) {
        self.0.retain(|position, _| position.final_lsn < switch_point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureClass;

    fn at(final_lsn: u64, ordinal: u64) -> Position {
        Position { final_lsn: Lsn::new(final_lsn), ordinal }
    }

    fn refusal() -> Failure {
        Failure::new(FailureClass::Row, "too_large", "too large")
    }

    #[test]
    fn a_dead_letter_that_is_refused_goes_without_its_payload_and_then_not_at_all() {
        let mut rejected = RejectedRows::default();
        rejected.record(at(15, 0), refusal());
        let known = |rejected: &RejectedRows| rejected.get(at(15, 0)).cloned().unwrap();
        assert_eq!(known(&rejected), Rejected { failure: Some(refusal()), ..Rejected::default() });
        rejected.dead_letter(at(15, 0), refusal(), false);
        assert!(known(&rejected).without_payload && known(&rejected).dead_letter_refused.is_none());
        rejected.dead_letter(at(15, 0), refusal(), false);
        assert_eq!(known(&rejected).dead_letter_refused, Some(refusal()));
        rejected.dead_letter(at(16, 0), refusal(), true);
        let other = rejected.get(at(16, 0)).unwrap();
        assert_eq!(
            (other.without_payload, other.dead_letter_refused.as_ref()),
            (false, Some(&refusal())),
            "its topic is missing"
        );
    }

    #[test]
    fn a_row_whose_own_record_looks_like_a_dead_letter_comes_to_an_end() {
        let mut rejected = RejectedRows::default();
        (0..3).for_each(|_| rejected.dead_letter(at(15, 0), refusal(), false));
        let known = rejected.get(at(15, 0)).unwrap();
        assert!(known.failure.is_some() && known.dead_letter_refused.is_some(), "it stops the relay");
    }

    #[test]
    fn a_row_is_known_until_it_is_confirmed_or_its_timeline_is_left() {
        let mut rejected = RejectedRows::default();
        for position in [at(10, 1), at(15, 0), at(20, 3)] {
            rejected.record(position, refusal());
        }
        rejected.confirmed(Lsn::new(15));
        rejected.forget_from(Lsn::new(20));
        assert_eq!([at(10, 1), at(15, 0), at(20, 3)].map(|at| rejected.get(at).is_some()), [false, true, false]);
    }
}

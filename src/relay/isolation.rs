//! Isolation (state `careful`): finds the one record that a broker refuses, where the sink does not name it (exactly once). It blocks
//! everything until the action for that row is taken.
//!
//! A refusal fails a whole batch, and does not say which record is at fault. So the stream begins again from the confirmed position.
//! Between the first and the last record that was in flight, *only one record is in flight*: a refusal then names exactly that one.
//! If none is refused alone, the batch as a whole was too large. The sink makes the next ones smaller by itself.
//!
//! ```text
//!   confirmed          first in flight            last enqueued
//!      │  full pace         │  one record at a time     │  full pace
//!  ────┴────────────────────┴───────────────────────────┴──────────►
//! ```
//!
//! A record that is sent alone, a suspect or a dead-letter record, leaves its row's frame in the buffer until its report has come. So
//! a row that turns out to be bad is still there, and no later row can have been enqueued.
//!
//! In: positions of failures, of rows. Out: whether the next record must go alone, and what is known of its row. Pure.

use crate::lsn::Lsn;
use crate::outbox::{BadReason, BadRow};
use crate::positions::Position;
use crate::sink::Failure;
use std::collections::BTreeMap;
use std::time::Instant;

/// The records that are sent alone, and the rows that are known to be bad.
#[derive(Debug, Default)]
pub struct Isolation {
    /// The suspects outlive the connections that the search takes.
    suspects: Option<Suspects>,
    /// The record that is alone in flight, or that was and has been delivered. Its row's frame stays the next in the buffer.
    alone: Option<Alone>,
    /// The record in `alone` has been delivered.
    delivered: bool,
    /// Rows that are known to be bad, as long as they may come again.
    rejected: BTreeMap<Position, Rejected>,
    /// The position of a record that was refused because of its topic, and the moment before which it is not tried again.
    pause: Option<(Position, Instant, Failure)>,
}

/// From `first` to `last`, both included, only one record is in flight at a time.
#[derive(Debug)]
struct Suspects {
    first: Position,
    last: Position,
    /// The broker refused a suspect that was sent alone.
    found: bool,
}

/// A record that goes alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alone {
    /// Its row's place.
    pub position: Position,
    /// Which row it is; the reason counts only if it is a dead letter.
    pub row: BadRow,
    /// Whether it is the row's record or its dead letter.
    pub what: What,
    /// The topic that it goes to.
    pub topic: String,
}

/// The kind of record that is sent alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The row's own record.
    Record,
    /// Its dead letter.
    DeadLetter {
        /// Without the payload.
        bare: bool,
    },
}

/// The state of the record that goes alone.
#[derive(Debug, PartialEq, Eq)]
pub enum AloneReport {
    /// There is none.
    Nobody,
    /// It is in flight.
    Awaited,
    /// It was delivered: its row is done with.
    Delivered(Alone),
}

/// The facts about a bad row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The row, and why it is bad.
    pub row: BadRow,
    /// Its dead-letter record has no payload.
    pub bare: bool,
    /// The broker refuses its dead-letter record even so.
    pub dead_letter_refused: Option<Failure>,
}

impl Isolation {
    /// Suspects the records from `first` to `last`: the broker refused at least one of them.
    pub fn suspect(&mut self, first: Position, last: Position) {
        self.suspects = Some(Suspects { first, last, found: false });
        self.settled();
    }

    /// Whether there are suspects.
    pub fn is_on(&self) -> bool {
        self.suspects.is_some()
    }

    /// Whether isolation has a say before the record at `position` is enqueued.
    #[inline]
    pub fn concerns(&self, position: Position) -> bool {
        self.alone.is_some() || self.goes_alone(position) || !self.rejected.is_empty()
    }

    /// Whether the record at `position` must wait until nothing else is in flight: it is a suspect, or the first behind
    /// the last of them.
    #[inline]
    pub fn goes_alone(&self, position: Position) -> bool {
        self.suspects.as_ref().is_some_and(|suspects| suspects.first <= position)
    }

    /// Nothing is in flight and `position` comes next: true once, when that lies behind the last suspect and none was refused.
    pub fn passed(&mut self, position: Position) -> bool {
        self.suspects.take_if(|suspects| position > suspects.last).is_some_and(|Suspects { found, .. }| !found)
    }

    /// Positions from `switch_point` on belong to other rows now.
    pub fn forget_from(&mut self, switch_point: Lsn) {
        self.rejected.retain(|position, _| position.final_lsn < switch_point);
        self.suspects.take_if(|suspects| suspects.last.final_lsn >= switch_point);
        self.pause.take_if(|(position, ..)| position.final_lsn >= switch_point);
    }

    /// A record was enqueued alone.
    pub fn enqueued(&mut self, alone: Alone) {
        self.alone = Some(alone);
        self.delivered = false;
    }

    /// Whether one is alone in flight.
    pub fn awaits(&self) -> bool {
        self.alone.is_some() && !self.delivered
    }

    /// A record was delivered. If one was alone in flight, it was that one.
    pub fn delivered(&mut self) {
        self.delivered = self.alone.is_some();
    }

    /// Returns the state of the record that is alone, now that the row at `position` comes.
    pub fn report(&mut self, position: Position) -> AloneReport {
        if self.awaits() {
            return AloneReport::Awaited;
        }
        match self.alone.take() {
            // Another relay may have published its row meanwhile, so that the row does not come again.
            Some(alone) if alone.position == position => AloneReport::Delivered(alone),
            Some(_) | None => AloneReport::Nobody,
        }
    }

    /// No record is alone any more: it was given up with the sink.
    pub fn settled(&mut self) {
        self.alone = None;
        self.delivered = false;
    }

    /// Returns the record that is alone in flight, if there is one: the broker refused it.
    pub fn guilty(&mut self) -> Option<Alone> {
        if self.awaits() { self.alone.take() } else { None }
    }

    /// The broker will never accept the record or dead-letter record that was alone.
    pub fn reject(&mut self, alone: Alone, failure: Failure) {
        if let Some(suspects) = &mut self.suspects {
            suspects.first = suspects.first.max(alone.position);
            suspects.found = true;
        }
        let known = self.rejected.get(&alone.position).cloned();
        let Alone { position, row, what, .. } = alone;
        let known = known.unwrap_or(Rejected { row, bare: false, dead_letter_refused: None });
        let rejected = match what {
            What::Record => {
                let reason = BadReason::Refused { label: failure.reason, text: failure.text };
                Rejected { row: BadRow { reason, ..known.row }, ..known }
            }
            What::DeadLetter { bare: false } => Rejected { bare: true, ..known },
            What::DeadLetter { bare: true } => Rejected { dead_letter_refused: Some(failure), ..known },
        };
        self.rejected.insert(position, rejected);
    }

    /// The dead-letter topic refuses the record of the row at `position`.
    pub fn dead_letter_refused(&mut self, alone: Alone, failure: Failure) {
        let Alone { position, row, .. } = alone;
        let rejected = Rejected { row, bare: true, dead_letter_refused: Some(failure) };
        self.rejected.insert(position, rejected);
    }

    /// Returns the facts about the row at `position`, if it is bad.
    pub fn rejected(&self, position: Position) -> Option<&Rejected> {
        self.rejected.get(&position)
    }

    /// Everything that commits before `confirmed` will not come again.
    pub fn confirmed(&mut self, confirmed: Lsn) {
        while let Some(first) = self.rejected.first_entry().filter(|first| first.key().final_lsn < confirmed) {
            first.remove();
        }
    }

    /// The record at `position` is not to be tried again before `until`, for this reason.
    pub fn pause(&mut self, position: Position, until: Instant, failure: Failure) {
        self.pause = Some((position, until, failure));
    }

    /// Returns the reason for which the record at `position` is not to be tried yet.
    pub fn paused(&self, position: Position, now: Instant) -> Option<Failure> {
        let (at, until, failure) = self.pause.as_ref()?;
        (*at == position && now < *until).then(|| failure.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureClass;
    use std::time::Duration;

    fn at(final_lsn: u64, ordinal: u64) -> Position {
        Position { final_lsn: Lsn::new(final_lsn), ordinal }
    }

    fn alone(position: Position, what: What) -> Alone {
        let row = BadRow { table: "public.outbox".into(), id: None, reason: BadReason::Updated };
        Alone { position, row, what, topic: "orders".into() }
    }

    fn refusal() -> Failure {
        Failure { class: FailureClass::Row, reason: "too_large", text: "too large".into() }
    }

    #[test]
    fn only_what_was_in_flight_goes_alone() {
        let mut isolation = Isolation::default();
        assert!(!isolation.goes_alone(at(1, 0)));
        isolation.suspect(at(10, 5), at(20, 3));
        assert!(!isolation.goes_alone(at(10, 4)));
        assert!(isolation.goes_alone(at(10, 5)) && isolation.goes_alone(at(15, 0)) && isolation.goes_alone(at(20, 3)));
        assert!(isolation.goes_alone(at(20, 4)), "the last suspect's action comes first");
        assert!(isolation.passed(at(20, 4)));
        assert!(!isolation.goes_alone(at(20, 4)));
    }

    #[test]
    fn a_record_that_was_delivered_alone_is_not_blamed_for_a_later_refusal() {
        let mut isolation = Isolation::default();
        isolation.suspect(at(10, 0), at(20, 0));
        isolation.enqueued(alone(at(10, 0), What::Record));
        assert_eq!(isolation.report(at(10, 0)), AloneReport::Awaited);
        isolation.delivered();
        assert_eq!(isolation.guilty(), None);
        assert_eq!(isolation.report(at(10, 0)), AloneReport::Delivered(alone(at(10, 0), What::Record)));
        assert_eq!(isolation.report(at(10, 1)), AloneReport::Nobody);
    }

    #[test]
    fn when_no_single_record_is_refused_that_is_said_once() {
        let mut isolation = Isolation::default();
        isolation.suspect(at(10, 0), at(20, 0));
        assert!(!isolation.passed(at(20, 0)));
        assert!(isolation.passed(at(20, 1)));
        assert!(!isolation.passed(at(20, 2)), "once");
    }

    #[test]
    fn what_lies_beyond_a_switch_of_timelines_is_known_no_more() {
        let mut isolation = Isolation::default();
        isolation.suspect(at(10, 0), at(20, 0));
        isolation.reject(alone(at(10, 1), What::Record), refusal());
        isolation.reject(alone(at(15, 0), What::Record), refusal());
        let now = Instant::now();
        isolation.pause(at(15, 1), now + Duration::from_secs(1), refusal());
        isolation.forget_from(Lsn::new(15));
        assert!(isolation.rejected(at(10, 1)).is_some() && isolation.rejected(at(15, 0)).is_none());
        assert!(!isolation.is_on() && isolation.paused(at(15, 1), now).is_none());
        isolation.suspect(at(10, 0), at(14, 0));
        isolation.forget_from(Lsn::new(15));
        assert!(isolation.is_on(), "those come again as they were");
    }

    #[test]
    fn where_a_record_is_refused_on_its_own_batches_stay_as_they_are() {
        let mut isolation = Isolation::default();
        isolation.suspect(at(10, 0), at(20, 0));
        isolation.enqueued(alone(at(15, 0), What::Record));
        let guilty = isolation.guilty().unwrap();
        isolation.reject(guilty, refusal());
        assert!(!isolation.goes_alone(at(14, 0)) && isolation.goes_alone(at(15, 0)), "what lies before it is cleared");
        assert_eq!(isolation.rejected(at(15, 0)).unwrap().row.reason.label(), "too_large");
        isolation.confirmed(Lsn::new(15));
        assert!(isolation.rejected(at(15, 0)).is_some(), "it may come again");
        isolation.confirmed(Lsn::new(16));
        assert_eq!(isolation.rejected(at(15, 0)), None);
        assert!(!isolation.passed(at(20, 1)));
        assert!(!isolation.is_on());
    }

    #[test]
    fn a_dead_letter_that_is_refused_goes_without_its_payload_and_then_not_at_all() {
        let mut isolation = Isolation::default();
        isolation.reject(alone(at(15, 0), What::DeadLetter { bare: false }), refusal());
        let rejected = isolation.rejected(at(15, 0)).unwrap();
        assert_eq!((rejected.bare, rejected.row.reason.label()), (true, "updated"));
        isolation.reject(alone(at(15, 0), What::DeadLetter { bare: true }), refusal());
        assert_eq!(isolation.rejected(at(15, 0)).unwrap().dead_letter_refused, Some(refusal()));
    }
}

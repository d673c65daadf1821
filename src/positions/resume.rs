//! Decides where a connection begins, and which of the rows that it sends were already received.
//!
//! A new connection starts from the confirmed position, so it sends again what was enqueued and not yet confirmed.
//! In: each transaction's Begin and each row's number. Out: take it, or skip it. Pure.
//!
//! The decision is made at Begin, by the server's own rule: it skips a transaction whose commit record *starts* before a
//! given position. `end_lsn`, which comes only with Commit, would be too late. So with `E` the `end_lsn` of the last transaction
//! that was enqueued whole:
//!
//! ```text
//!  final_lsn <  E                      received: skip all of it
//!  final_lsn == the half-taken one's   received up to row n: skip those
//!  else                                new
//! ```
//!
//! Invariant: a row is skipped only when its record was enqueued by this process, in the same timeline, and has not
//! been given up since. Positions of an abandoned timeline belong to other transactions: [`Resume::forget`].

use super::position::Position;
use crate::lsn::Lsn;

/// The position up to which transactions and rows have been enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resume {
    /// `E`: `end_lsn` of the last transaction that was enqueued whole.
    whole: Lsn,
    /// The transaction that was begun and not ended.
    half: Option<Half>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Half {
    final_lsn: Lsn,
    /// Rows and messages dealt with, whether or not they made a record.
    rows: u64,
}

/// The treatment of a transaction that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginVerdict {
    /// It is new.
    Take,
    /// Its first `rows` rows were already received (possibly 0), and it is still open.
    Continue {
        /// The number of rows to skip.
        rows: u64,
    },
    /// It was already received whole.
    AlreadyReceived,
}

/// The server sent another transaction than the one that must come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the transaction that commits at {expected} was interrupted and does not come again: {came} came instead")]
pub struct Missing {
    /// The interrupted transaction's `final_lsn`.
    pub expected: Lsn,
    /// `final_lsn` of the transaction that came.
    pub came: Lsn,
}

impl Resume {
    /// Only transactions that commit before `start` count as received.
    pub(super) fn new(start: Lsn) -> Self {
        Self { whole: start, half: None }
    }

    /// A transaction comes.
    ///
    /// # Errors
    /// It commits after one that was interrupted and has not come again.
    pub(super) fn begin(&mut self, final_lsn: Lsn) -> Result<BeginVerdict, Missing> {
        if final_lsn < self.whole {
            return Ok(BeginVerdict::AlreadyReceived);
        }
        match self.half {
            Some(half) if half.final_lsn == final_lsn => Ok(BeginVerdict::Continue { rows: half.rows }),
            Some(half) => Err(Missing { expected: half.final_lsn, came: final_lsn }),
            None => {
                self.half = Some(Half { final_lsn, rows: 0 });
                Ok(BeginVerdict::Take)
            }
        }
    }

    /// The next row of the open transaction has been dealt with.
    #[inline]
    pub(super) fn row(&mut self) {
        if let Some(half) = &mut self.half {
            half.rows += 1;
        }
    }

    /// The open transaction has been enqueued whole.
    pub(super) fn commit(&mut self, end_lsn: Lsn) {
        self.half = None;
        self.whole = self.whole.max(end_lsn);
    }

    /// Another relay has delivered everything that commits before `confirmed`.
    pub(super) fn raise(&mut self, confirmed: Lsn) {
        self.whole = self.whole.max(confirmed);
        self.half = self.half.filter(|half| half.final_lsn >= confirmed);
    }

    /// Forgets the enqueued records: everything that commits from `start` on is new again. If `delivered` is given, the rows before
    /// it in its transaction are not.
    pub(super) fn forget(&mut self, start: Lsn, delivered: Option<Position>) {
        let half = delivered.map(|Position { final_lsn, ordinal }| Half { final_lsn, rows: ordinal });
        *self = Self { whole: start, half };
    }

    /// `final_lsn` of the transaction that was received in part, else [`Resume::whole`].
    pub(super) fn last_begun(&self) -> Lsn {
        self.half.map_or(self.whole, |half| half.final_lsn)
    }

    /// The number of received rows of that transaction.
    pub(super) fn rows(&self) -> u64 {
        self.half.map_or(0, |half| half.rows)
    }

    /// `end_lsn` of the last transaction that was received whole.
    pub(super) fn whole(&self) -> Lsn {
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lsn(bytes: u64) -> Lsn {
        Lsn::new(bytes)
    }

    #[test]
    fn a_transaction_that_was_enqueued_whole_is_passed_over_and_its_neighbour_is_not() {
        let mut resume = Resume::new(lsn(100));
        assert_eq!(resume.begin(lsn(100)), Ok(BeginVerdict::Take));
        resume.commit(lsn(148));
        assert_eq!(resume.begin(lsn(100)), Ok(BeginVerdict::AlreadyReceived));
        assert_eq!(resume.begin(lsn(148)), Ok(BeginVerdict::Take), "the next commit record starts where this one ends");
    }

    #[test]
    fn a_half_taken_transaction_goes_on_behind_its_last_row() {
        let mut resume = Resume::new(lsn(100));
        resume.begin(lsn(200)).unwrap();
        resume.row();
        resume.row();
        assert_eq!(resume.begin(lsn(200)), Ok(BeginVerdict::Continue { rows: 2 }));
        resume.row();
        assert_eq!(resume.begin(lsn(200)), Ok(BeginVerdict::Continue { rows: 3 }));
        resume.commit(lsn(248));
        assert_eq!(resume.begin(lsn(200)), Ok(BeginVerdict::AlreadyReceived));
    }

    #[test]
    fn an_interrupted_transaction_that_does_not_come_again_is_never_forgotten_silently() {
        let mut resume = Resume::new(lsn(100));
        resume.begin(lsn(200)).unwrap();
        assert_eq!(resume.begin(lsn(300)), Err(Missing { expected: lsn(200), came: lsn(300) }));
    }

    #[test]
    fn what_another_relay_finished_is_not_waited_for() {
        let mut resume = Resume::new(lsn(100));
        resume.begin(lsn(200)).unwrap();
        resume.row();
        resume.raise(lsn(248));
        assert_eq!(resume.begin(lsn(200)), Ok(BeginVerdict::AlreadyReceived));
        assert_eq!(resume.begin(lsn(300)), Ok(BeginVerdict::Take));
    }

    #[test]
    fn what_was_given_up_is_new_again() {
        let mut resume = Resume::new(lsn(100));
        resume.begin(lsn(200)).unwrap();
        resume.commit(lsn(248));
        resume.forget(lsn(100), None);
        assert_eq!(resume.begin(lsn(200)), Ok(BeginVerdict::Take));
        resume.commit(lsn(248));
        resume.forget(lsn(100), Some(Position { final_lsn: lsn(200), ordinal: 7 }));
        assert_eq!(resume.begin(lsn(200)), Ok(BeginVerdict::Continue { rows: 7 }));
    }
}

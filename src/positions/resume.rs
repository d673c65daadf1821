//! Decides where a connection begins, and which of the rows that it sends were already received.
//!
//! On a new connection, the server starts from the confirmed position. So it sends again the rows that are enqueued and not confirmed.
//! In: each transaction's Begin, and each row. Out: whether to take or to skip the transaction or the row. Pure.
//!
//! [`Resume`] decides at Begin, by the server's own rule: the server skips a transaction whose commit record *starts* before the given
//! position. `end_lsn` comes only with Commit, which is too late. `E` is the `end_lsn` of the last transaction that was received whole:
//!
//! ```text
//!  final_lsn <  E                      received: skip all of it
//!  final_lsn == the partial one's      received up to row n: skip these rows
//!  else                                new
//! ```
//!
//! Invariant: a row is skipped only if this process has enqueued its record, in the same timeline, and has not forgotten the record
//! since. In a new timeline, the same positions may belong to other transactions: [`Resume::forget`].

use crate::lsn::{Lsn, Position};

/// The position up to which transactions and rows have been enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resume {
    /// `E`: `end_lsn` of the last transaction that was received whole.
    received_lsn: Lsn,
    /// The transaction that was received in part, and whose Commit has not come.
    partial: Option<PartialTransaction>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PartialTransaction {
    final_lsn: Lsn,
    /// The number of rows and messages that were handled, whether or not they gave a record.
    rows: u64,
}

/// The treatment of a transaction that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginVerdict {
    /// It is new.
    Take,
    /// Its first `rows` rows were already received, perhaps 0. It is still open.
    Continue {
        /// The number of rows to skip.
        rows: u64,
    },
    /// It was already received whole.
    AlreadyReceived,
}

/// The server sent another transaction than the one that must come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the transaction that commits at {expected} was interrupted and does not come again: {came} came instead")]
pub struct Missing {
    /// The interrupted transaction's `final_lsn`.
    pub expected: Lsn,
    /// `final_lsn` of the transaction that came.
    pub came: Lsn,
}

impl Resume {
    /// Counts only the transactions that commit before `start` as received.
    pub(super) fn new(start: Lsn) -> Self {
        Self { received_lsn: start, partial: None }
    }

    /// The server sent a Begin.
    ///
    /// # Errors
    /// The transaction commits after a partial one that has not come again.
    pub(super) fn begin(&mut self, final_lsn: Lsn) -> Result<BeginVerdict, Missing> {
        if final_lsn < self.received_lsn {
            return Ok(BeginVerdict::AlreadyReceived);
        }
        match self.partial {
            Some(partial) if partial.final_lsn == final_lsn => Ok(BeginVerdict::Continue { rows: partial.rows }),
            Some(partial) => Err(Missing { expected: partial.final_lsn, came: final_lsn }),
            None => {
                self.partial = Some(PartialTransaction { final_lsn, rows: 0 });
                Ok(BeginVerdict::Take)
            }
        }
    }

    /// The next row of the open transaction was handled.
    #[inline]
    pub(super) fn row(&mut self) {
        if let Some(partial) = &mut self.partial {
            partial.rows += 1;
        }
    }

    /// The open transaction was received whole.
    pub(super) fn commit(&mut self, end_lsn: Lsn) {
        self.partial = None;
        self.received_lsn = self.received_lsn.max(end_lsn);
    }

    /// Another relay has delivered everything that commits before `confirmed`.
    pub(super) fn raise(&mut self, confirmed: Lsn) {
        self.received_lsn = self.received_lsn.max(confirmed);
        self.partial = self.partial.filter(|partial| partial.final_lsn >= confirmed);
    }

    /// Forgets the enqueued records: all transactions that commit at `start` or later are new. If `delivered` is given, the rows before
    /// it in its transaction still count as received.
    pub(super) fn forget(&mut self, start: Lsn, delivered: Option<Position>) {
        let partial = delivered.map(|Position { final_lsn, ordinal }| PartialTransaction { final_lsn, rows: ordinal });
        *self = Self { received_lsn: start, partial };
    }

    /// The next row of the transaction that was received in part; without one, the next transaction commits at this position or later.
    pub(super) fn next_row(&self) -> Position {
        let next = Position { final_lsn: self.received_lsn, ordinal: 0 };
        self.partial.map_or(next, |partial| Position { final_lsn: partial.final_lsn, ordinal: partial.rows })
    }

    /// `final_lsn` of the transaction that was received in part, else [`Resume::received_lsn`].
    pub(super) fn last_begun(&self) -> Lsn {
        self.partial.map_or(self.received_lsn, |partial| partial.final_lsn)
    }

    /// `end_lsn` of the last transaction that was received whole.
    pub(super) fn received_lsn(&self) -> Lsn {
        self.received_lsn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lsn(bytes: u64) -> Lsn {
        Lsn::new(bytes)
    }

    #[test]
    fn a_transaction_that_was_enqueued_whole_is_skipped_and_the_next_one_is_not() {
        let mut resume = Resume::new(lsn(100));
        assert_eq!(resume.begin(lsn(100)), Ok(BeginVerdict::Take));
        resume.commit(lsn(148));
        assert_eq!(resume.begin(lsn(100)), Ok(BeginVerdict::AlreadyReceived));
        assert_eq!(resume.begin(lsn(148)), Ok(BeginVerdict::Take), "the next commit record starts where this one ends");
    }

    #[test]
    fn a_partial_transaction_continues_after_its_last_row() {
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

//! [`Notes`]: skipped rows whose notes are not committed yet.
//!
//! ```text
//!  a table's row is skipped,       ──► ledger: a note is open ──► handed to the noter ──► committed ──► ledger: it is not
//!  or its dead letter has no payload
//! ```
//!
//! The payload of such a row is in its table alone, and `prune` deletes rows that no note names once the position has passed them. So the
//! position waits for the note as it waits for a record. The loop never waits: the noter has a thread and a connection of its own, and notes
//! all rows that wait at once.
//!
//! In: skipped rows with their tokens, the number of notes that are committed. Out: calls of the ledger. Notes come into being in the order in
//! which rows are handed over, so numbers are enough to know them.
//! Invariant: what is open here is open in the ledger. When the ledger forgets, so does this: the rows come again, and are noted again.

use crate::positions::Ledger;
use crate::sink::{Failure, Token};
use std::collections::VecDeque;

/// Notes the rows of one slot that are skipped, on a thread of its own. Waits for nothing.
pub trait NoteSkipped: Send {
    /// Takes a row. `id`: as messages show it; `None`: it is not known.
    fn note(&mut self, id: Option<&str>);

    /// The number of rows, of those taken since the start in their order, whose notes have been committed.
    fn noted(&mut self) -> u64;

    /// Why the last attempt failed, if rows wait for the next one.
    fn failure(&mut self) -> Option<Failure>;
}

/// The rows whose notes are open.
#[derive(Default)]
pub(super) struct Notes {
    /// `None`: nobody notes rows.
    noter: Option<Box<dyn NoteSkipped>>,
    /// The number of rows that were handed over.
    handed_over: u64,
    /// The number of rows that are noted, or whose rows were forgotten.
    settled: u64,
    /// Open notes: for each token, the number of its last row. In the order of the numbers, which are above `settled`.
    open: VecDeque<(u64, Token)>,
}

impl Notes {
    pub(super) fn by(noter: Box<dyn NoteSkipped>) -> Self {
        Self { noter: Some(noter), ..Self::default() }
    }

    /// Whether a note is open.
    #[inline]
    pub(super) fn are_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The row's payload will be in no topic. `token`: as for [`Ledger::noting`].
    #[cold]
    pub(super) fn skipped(&mut self, id: Option<&str>, token: Token, ledger: &mut Ledger) {
        let Some(noter) = &mut self.noter else { return };
        let token = Token { topic: 0, ..token };
        ledger.noting(token);
        noter.note(id);
        self.handed_over += 1;
        match self.open.back_mut().filter(|(_, last)| *last == token) {
            Some((number, _)) => *number = self.handed_over,
            None => self.open.push_back((self.handed_over, token)),
        }
    }

    /// Takes the notes that have been committed.
    #[inline]
    pub(super) fn take(&mut self, ledger: &mut Ledger) {
        if self.are_open() {
            self.take_open(ledger);
        }
    }

    #[cold]
    fn take_open(&mut self, ledger: &mut Ledger) {
        let noted = self.noter.as_mut().map_or(0, |noter| noter.noted());
        assert!(noted <= self.handed_over, "a note of no row");
        while let Some((number, token)) = self.open.front().copied().filter(|_| noted > self.settled) {
            let rows = number.min(noted) - self.settled;
            ledger.noted(token, u32::try_from(rows).unwrap_or(u32::MAX));
            self.settled += rows;
            if number <= noted {
                self.open.pop_front();
            }
        }
    }

    /// The ledger forgets the rows.
    pub(super) fn forget(&mut self) {
        self.open.clear();
        self.settled = self.handed_over;
    }

    /// Why notes that are open are not committed, if that is known.
    pub(super) fn failure(&mut self) -> Option<Failure> {
        self.noter.as_mut().filter(|_| !self.open.is_empty())?.failure()
    }
}

//! [`Ledger`]: knows the rows that were received, the records that are in flight, and so the LSN that may be confirmed.
//!
//! ```text
//!  ring:  [ 17: 3 undelivered, end 0/A0 │ 18: 0, end 0/B0 │ 19: 2, open ]
//!           ▲ keeps flush_lsn back        ▲ done, waits      ▲ rows are still coming
//! ```
//!
//! In: begin, row, enqueued, commit, delivered, keepalive. Out: which rows of a transaction are new ([`BeginVerdict`]), and
//! `flush_lsn`, the only position that may be confirmed. All records of the transactions that commit before `flush_lsn` are delivered.
//! Reports may come in any order. This file reads no clock. A report may not prove delivery yet, if the destination's transaction may
//! still be aborted. It then counts in two steps: after [`Ledger::reported`] the record is no longer in flight, and after
//! [`Ledger::counted`] it is delivered. A row that is skipped has a note instead of a record ([`Ledger::noting`]): the position waits for
//! it as for a record, and it is not in flight. Every operation is O(1), amortised. The ring has the open transaction and those with records;
//! a transaction without records raises the end of the one before it. One record that stays in flight keeps all later transactions in
//! the ring, delivered or not. So the ring has a limit of its own: [`Ledger::is_full`].
//!
//! The ledger changes the records in flight and the received rows (`resume`) together, so no other code can change one without the
//! other.
//!
//! Invariants: `flush_lsn` never goes back, except by [`Ledger::fall_back_to`]. It never passes a transaction with an undelivered
//! record or an open note. A keepalive moves it only if the ring is empty. Each record is reported once. The asserts stay on in release builds: a wrong
//! position loses rows for good, but after a crash the slot sends the rows again.

use super::resume::{BeginVerdict, Missing, Resume};
use crate::lsn::{Lsn, Position};
use crate::pgoutput::{Begin, PgTime};
use crate::sink::Token;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Records enqueued within this time share one age.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// The most ages that are kept. Later records share the newest age. This is half of the ticks that the 16 bits of a token can
/// distinguish.
const MOST_TICKS: usize = 1 << 15;

/// The most transactions in the ring. Delivered ones behind an undelivered record count, too. They take 10 MB, and are some seconds of
/// the fastest stream.
pub(super) const MOST_TRANSACTIONS: usize = 1 << 18;

/// Transactions in flight, in commit order.
#[derive(Debug)]
pub struct Ledger {
    /// Oldest first. Only the last transaction may be open. After [`Ledger::settle`], a transaction has an undelivered record, or is
    /// open, or is behind one with an undelivered record.
    ring: VecDeque<Transaction>,
    /// The number of the first transaction in the ring, modulo 2^32. No two transactions with records have the same number.
    first: u32,
    /// Every record of a transaction that commits before this is delivered.
    flush_lsn: Lsn,
    /// The records in flight by the time when they were enqueued, oldest first. The first age has records, unless it is the only one.
    ages: VecDeque<TickAge>,
    /// The number of the first age, modulo 2^16.
    first_tick: u16,
    /// Records in flight whose transaction another relay had delivered. The ledger has removed that transaction.
    orphans: u64,
    /// The rows that are already received: in flight or delivered.
    resume: Resume,
    /// The last position of a status update that the server is known to have received. A broken connection may have lost later updates.
    server_received: Lsn,
}

#[derive(Debug)]
struct Transaction {
    final_lsn: Lsn,
    commit_time: PgTime,
    /// Records that are enqueued and not delivered, and open notes.
    undelivered: u32,
    /// Records enqueued.
    records: u32,
    /// `None` while the transaction is open. Not below `final_lsn`.
    end_lsn: Option<Lsn>,
}

#[derive(Debug)]
struct TickAge {
    since: Instant,
    /// The position of its first record.
    from: Position,
    /// Records that are enqueued and not reported.
    in_flight: u32,
    /// Notes that are not committed.
    notes: u32,
}

impl TickAge {
    fn new(since: Instant, from: Position) -> Self {
        Self { since, from, in_flight: 0, notes: 0 }
    }

    /// Whether no token of this age is out.
    fn is_over(&self) -> bool {
        self.in_flight == 0 && self.notes == 0
    }
}

/// The server sent a transaction that must not come now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfOrder {
    /// Another transaction must come first.
    Missing(Missing),
    /// The relay has confirmed a position behind it.
    Confirmed,
}

/// The records that still count as received after the sink was recreated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The delivered records.
    Delivered,
    /// None. Only confirmed records count as received.
    Nothing,
}

/// A transaction with records that has been fully delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// When Postgres committed it.
    pub commit_time: PgTime,
    /// Its records; at least 1.
    pub records: u32,
}

impl Ledger {
    /// Creates a ledger with nothing in flight. All transactions that commit before `flush_lsn` are confirmed.
    pub fn new(flush_lsn: Lsn) -> Self {
        Self {
            ring: VecDeque::new(),
            first: 0,
            flush_lsn,
            ages: VecDeque::new(),
            first_tick: 0,
            orphans: 0,
            resume: Resume::new(flush_lsn),
            server_received: flush_lsn,
        }
    }

    /// The position to confirm.
    pub fn flush_lsn(&self) -> Lsn {
        self.flush_lsn
    }

    /// The furthest position that the server has sent. Its WAL reaches at least this far.
    pub fn seen(&self) -> Lsn {
        self.flush_lsn.max(self.resume.last_begun())
    }

    /// `end_lsn` of the last transaction that was received whole.
    pub fn received_lsn(&self) -> Lsn {
        self.resume.received_lsn()
    }

    /// The next row to receive: of the open transaction or, without one, of the next that commits at this position or later.
    pub fn next_row(&self) -> Position {
        self.resume.next_row()
    }

    /// The server has received the position `confirmed`.
    pub fn server_received(&mut self, confirmed: Lsn) {
        self.server_received = confirmed;
    }

    /// Whether a transaction is in flight, or is delivered and the server may not know it yet.
    pub fn is_unfinished(&self) -> bool {
        !self.ring.is_empty() || self.server_received < self.resume.received_lsn()
    }

    /// The server sent a Begin. The transaction is opened, unless it was already received.
    ///
    /// # Errors
    /// The transaction must not come now.
    ///
    /// # Panics
    /// Another transaction is open.
    pub fn begin(&mut self, begin: &Begin) -> Result<BeginVerdict, OutOfOrder> {
        let Begin { final_lsn, commit_time, .. } = *begin;
        let verdict = self.resume.begin(final_lsn).map_err(OutOfOrder::Missing)?;
        if verdict == BeginVerdict::Take {
            if final_lsn < self.flush_lsn {
                return Err(OutOfOrder::Confirmed);
            }
            assert!(!self.is_open(), "a transaction begins inside another");
            self.ring.push_back(Transaction { final_lsn, commit_time, undelivered: 0, records: 0, end_lsn: None });
        }
        Ok(verdict)
    }

    /// The relay has handled the next row of the open transaction, whether or not it gave a record.
    #[inline]
    pub fn row_done(&mut self) {
        self.resume.row();
    }

    /// Whether no further transaction should begin before reports have come. At least one record is in flight then.
    pub fn is_full(&self) -> bool {
        self.ring.len() >= MOST_TRANSACTIONS
    }

    /// Whether a transaction is open: its Begin has come, and its Commit has not.
    pub fn is_open(&self) -> bool {
        self.open_transaction().is_some()
    }

    /// `final_lsn` of the open transaction.
    pub fn open_transaction(&self) -> Option<Lsn> {
        self.ring.back().filter(|transaction| transaction.end_lsn.is_none()).map(|transaction| transaction.final_lsn)
    }

    /// Sets the time from which the age of the next records counts, exact to a tenth of a second. `from` is the position of the first
    /// of these records.
    pub fn tick(&mut self, now: Instant, from: Position) {
        let full = self.ages.len() >= MOST_TICKS;
        match self.ages.back_mut() {
            Some(age) if age.is_over() => *age = TickAge::new(now, from),
            Some(age) if full || now.saturating_duration_since(age.since) < TICK => {}
            Some(_) | None => self.ages.push_back(TickAge::new(now, from)),
        }
    }

    /// The token of the next record of the open transaction. `topic`: the topic's number in the metrics.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "both count modulo the width of their field")]
    pub fn token(&self, topic: u16) -> Token {
        Token {
            transaction: self.first.wrapping_add(self.ring.len().wrapping_sub(1) as u32),
            tick: self.first_tick.wrapping_add(self.ages.len().wrapping_sub(1) as u16),
            topic,
        }
    }

    /// The sink has taken a record that has the token returned last.
    ///
    /// # Panics
    /// No transaction is open, or [`Ledger::tick`] was not called yet.
    #[inline]
    pub fn enqueued(&mut self) {
        let (Some(transaction), Some(age)) = (self.ring.back_mut(), self.ages.back_mut()) else {
            panic!("a record was enqueued outside any transaction or time");
        };
        assert!(transaction.end_lsn.is_none(), "a record was enqueued after its transaction's commit");
        transaction.undelivered += 1;
        transaction.records += 1;
        age.in_flight += 1;
    }

    /// The server sent the Commit of the open transaction.
    ///
    /// # Panics
    /// No transaction is open, or it ends before it began.
    pub fn commit(&mut self, end_lsn: Lsn) {
        let Some(transaction) = self.ring.back_mut().filter(|transaction| transaction.end_lsn.is_none()) else {
            panic!("a commit without a transaction");
        };
        assert!(end_lsn >= transaction.final_lsn, "a transaction ends before its commit record starts");
        self.resume.commit(end_lsn);
        if transaction.records > 0 || transaction.undelivered > 0 {
            transaction.end_lsn = Some(end_lsn);
            return;
        }
        self.ring.pop_back();
        match self.ring.back_mut() {
            Some(predecessor) => predecessor.end_lsn = Some(end_lsn),
            None => self.advance(end_lsn),
        }
    }

    /// `records` records with this `token` were delivered.
    ///
    /// # Panics
    /// Fewer records with this token are in flight.
    pub fn delivered(&mut self, token: Token, records: u32) {
        self.reported(token, records);
        self.counted(token, records);
    }

    /// Reports came for `records` records with this `token`. They are no longer in flight, but count as delivered only after
    /// [`Ledger::counted`]. Until then `flush_lsn` does not pass them.
    ///
    /// # Panics
    /// Fewer records with this token are in flight.
    pub fn reported(&mut self, token: Token, records: u32) {
        let age = usize::from(token.tick.wrapping_sub(self.first_tick));
        let Some(age) = self.ages.get_mut(age).filter(|age| age.in_flight >= records) else {
            panic!("more reports than records of that age");
        };
        age.in_flight -= records;
    }

    /// A row is skipped, and its note is not committed yet. `token`: that of the row's record, which is still in flight, or the one returned
    /// last, if the row's transaction is open and gives no record for the row.
    ///
    /// # Panics
    /// The token's tick is over, or [`Ledger::tick`] was not called yet.
    pub fn noting(&mut self, token: Token) {
        let Some(age) = self.ages.get_mut(usize::from(token.tick.wrapping_sub(self.first_tick))) else {
            panic!("a note of a tick that is over");
        };
        age.notes += 1;
        match self.ring.get_mut(token.transaction.wrapping_sub(self.first) as usize) {
            Some(transaction) => transaction.undelivered += 1,
            None => self.orphans += 1,
        }
    }

    /// The notes of `rows` skipped rows with this `token` are committed.
    ///
    /// # Panics
    /// Fewer notes with this token are open.
    pub fn noted(&mut self, token: Token, rows: u32) {
        let age = usize::from(token.tick.wrapping_sub(self.first_tick));
        let Some(age) = self.ages.get_mut(age).filter(|age| age.notes >= rows) else {
            panic!("more notes than skipped rows of that age");
        };
        age.notes -= rows;
        self.counted(token, rows);
    }

    /// `records` reported records with this `token` count as delivered. The token's tick is not used.
    ///
    /// # Panics
    /// Fewer records were enqueued.
    pub fn counted(&mut self, token: Token, records: u32) {
        let index = token.transaction.wrapping_sub(self.first) as usize;
        if let Some(transaction) = self.ring.get_mut(index) {
            assert!(transaction.undelivered >= records, "more reports than records");
            transaction.undelivered -= records;
        } else {
            assert!(self.orphans >= u64::from(records), "a report for no known record");
            self.orphans -= u64::from(records);
        }
    }

    /// The record with this `token` was refused and is no longer in flight. The relay decides on its row.
    ///
    /// # Panics
    /// No record with this token is in flight.
    pub fn withdrawn(&mut self, token: Token) {
        self.delivered(token, 1);
        let index = token.transaction.wrapping_sub(self.first) as usize;
        if let Some(transaction) = self.ring.get_mut(index) {
            transaction.records -= 1;
        }
    }

    /// Removes the delivered transactions at the front of the ring, raises `flush_lsn` to their end, and calls `each` for each of them that
    /// has records.
    pub fn settle(&mut self, mut each: impl FnMut(Settled)) {
        while let Some(&Transaction { undelivered: 0, end_lsn: Some(end_lsn), commit_time, records, .. }) =
            self.ring.front()
        {
            self.pop_front();
            self.advance(end_lsn);
            if records > 0 {
                each(Settled { commit_time, records });
            }
        }
        while self.ages.len() > 1 && self.ages.front().is_some_and(TickAge::is_over) {
            self.ages.pop_front();
            self.first_tick = self.first_tick.wrapping_add(1);
        }
    }

    /// The server has sent all transactions that commit before `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if self.ring.is_empty() && wal_end > self.flush_lsn {
            self.advance(wal_end);
        }
    }

    /// The slot's confirmed position is `confirmed`. If `flush_lsn` is lower, another relay has delivered the transactions before
    /// `confirmed`. The ledger removes them, since their Commits will not come.
    pub fn raise(&mut self, confirmed: Lsn) {
        self.resume.raise(confirmed);
        if confirmed <= self.flush_lsn {
            return;
        }
        // If the server starts from `confirmed`, it skips a transaction whose commit record starts before that.
        while self.ring.front().is_some_and(|front| front.final_lsn < confirmed) {
            self.pop_front();
        }
        self.advance(confirmed);
    }

    /// Forgets every record in flight and every open note, since no report of them will come. `flush_lsn` stays. With [`Keep::Delivered`], one transaction
    /// may stay open: the first one that is not fully delivered. Its rows before the first one in flight, or with an open note, still count as
    /// received.
    pub fn forget(&mut self, keep: Keep) {
        let first = match keep {
            Keep::Delivered => self.first_open().filter(|position| position.ordinal > 0),
            Keep::Nothing => None,
        };
        let kept = self.ring.pop_front().filter(|front| first.is_some_and(|first| first.final_lsn == front.final_lsn));
        let mut resume = Resume::new(self.flush_lsn);
        resume.forget(self.flush_lsn, first.filter(|_| kept.is_some()));
        *self = Self { resume, server_received: self.server_received, ..Self::new(self.flush_lsn) };
        self.ring.extend(kept.map(|transaction| Transaction { undelivered: 0, end_lsn: None, ..transaction }));
    }

    /// Whether a received transaction is behind `switch_point`, where the server has left the timeline. The new timeline has the
    /// transactions whose commit record is before that point.
    pub fn reaches_beyond(&self, switch_point: Lsn) -> bool {
        self.resume.received_lsn() > switch_point
            || self.open_transaction().is_some_and(|final_lsn| final_lsn >= switch_point)
            || self.flush_lsn > switch_point
    }

    /// Lowers `flush_lsn` to `position` if it is higher, and forgets all that is not confirmed: the server's WAL from there on may have
    /// other transactions, or another relay may have published them.
    pub fn fall_back_to(&mut self, position: Lsn) {
        *self = Self { server_received: self.server_received, ..Self::new(self.flush_lsn.min(position)) };
    }

    /// Transactions that are open or in flight.
    pub fn transactions(&self) -> usize {
        self.ring.len()
    }

    /// When the oldest record in flight was enqueued, exact to a tenth of a second.
    pub fn oldest_in_flight(&self) -> Option<Instant> {
        self.ages.iter().find(|age| age.in_flight > 0).map(|age| age.since)
    }

    /// When the oldest row with an open note was skipped, exact to a tenth of a second.
    pub fn oldest_note(&self) -> Option<Instant> {
        self.ages.iter().find(|age| age.notes > 0).map(|age| age.since)
    }

    /// A position before which no record is in flight, and no note is open.
    pub fn first_open(&self) -> Option<Position> {
        self.ages.iter().find(|age| !age.is_over()).map(|age| age.from)
    }

    /// When the oldest transaction that is not fully delivered was committed.
    pub fn oldest_commit(&self) -> Option<PgTime> {
        self.ring.front().map(|transaction| transaction.commit_time)
    }

    fn advance(&mut self, lsn: Lsn) {
        assert!(lsn >= self.flush_lsn, "flush_lsn would go back from {} to {lsn}", self.flush_lsn);
        self.flush_lsn = lsn;
    }

    fn pop_front(&mut self) {
        if let Some(front) = self.ring.pop_front() {
            self.first = self.first.wrapping_add(1);
            self.orphans += u64::from(front.undelivered);
        }
    }
}

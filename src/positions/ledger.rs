//! All positions: what was already received, what is in flight, and up to where Postgres may forget. It decides which LSN is confirmed.
//!
//! ```text
//!  ring:  [ 17: 3 undelivered, end 0/A0 │ 18: 0, end 0/B0 │ 19: 2, open ]
//!           ▲ holds flush_lsn back        ▲ done, waits      ▲ rows are still coming
//! ```
//!
//! In: begin, row, enqueued, commit, delivered, keepalive. Out: what of a transaction is new ([`BeginVerdict`]), and `flush_lsn`, the one
//! position that may be confirmed: the `end_lsn` of the last transaction before which, itself included, everything is delivered.
//! Reports may come in any order. Reads no clock.
//! If a report does not prove delivery yet (the destination's transaction may still be aborted), it counts in two steps: after
//! [`Ledger::reported`] a record is no longer in flight, after [`Ledger::counted`] it is delivered.
//! Every operation is O(1), amortised. The ring holds only transactions that are open or have records in flight (an empty
//! one raises its predecessor's end). One record that stays in flight keeps all later transactions in the ring, delivered or
//! not, so the ring has a limit of its own: [`Ledger::is_full`].
//!
//! It moves what is in flight and what was already received (`resume`) together, so nobody else can move one without the other.
//!
//! Invariants: `flush_lsn` never goes back, except to where a timeline was left ([`Ledger::left_at`]). It never passes a transaction
//! with an undelivered record. A keepalive moves it only when the ring is empty. Each record is reported once. The asserts stay on in
//! release builds: a wrong position loses rows for good; a crash is fixed by a restart, since the slot replays.

use super::position::Position;
use super::resume::{BeginVerdict, Missing, Resume};
use crate::lsn::Lsn;
use crate::pgoutput::{Begin, PgTime};
use crate::sink::Token;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Records enqueued within this time share one age.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// The most ages that are kept apart. Later records share the newest age. It is half of the ticks that a token's 16 bits
/// distinguish.
const MOST_TICKS: usize = 1 << 15;

/// Most transactions kept, delivered ones behind an undelivered record included: 10 MB, and some seconds of the fastest stream.
pub(super) const MOST_TRANSACTIONS: usize = 1 << 18;

/// Transactions in flight, in commit order.
#[derive(Debug)]
pub struct Ledger {
    /// Oldest first. Only the last may be open; only an open one, or one with undelivered records before it, may have
    /// none undelivered itself once [`Ledger::settle`] has run.
    ring: VecDeque<Transaction>,
    /// The number of the ring's front, modulo 2^32. Numbers with records are never used twice.
    first: u32,
    /// Every record of a transaction that commits before this is delivered.
    flush_lsn: Lsn,
    /// Records in flight by when they were enqueued, oldest first; the front is never empty unless it is alone.
    ages: VecDeque<TickAge>,
    /// The tick of the front age, modulo 2^16.
    first_tick: u16,
    /// Records in flight whose transaction was closed because another relay had delivered it.
    orphans: u64,
    /// The rows that are already received: in flight or delivered.
    resume: Resume,
    /// The position that the server is known to have heard. A status update on a connection that broke since may never have
    /// arrived.
    heard: Lsn,
}

#[derive(Debug)]
struct Transaction {
    final_lsn: Lsn,
    commit_time: PgTime,
    /// Records enqueued and not delivered.
    undelivered: u32,
    /// Records enqueued.
    records: u32,
    /// `None` while open. Not below `final_lsn`.
    end_lsn: Option<Lsn>,
}

#[derive(Debug)]
struct TickAge {
    since: Instant,
    /// The position of its first record.
    from: Position,
    /// Records enqueued and not reported.
    in_flight: u32,
}

/// A transaction that must not come here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfOrder {
    /// Another transaction must come first.
    Missing(Missing),
    /// Its position was confirmed before.
    Confirmed,
}

/// The records that still count as received after the sink was recreated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The delivered ones.
    Delivered,
    /// None: only confirmed records count as received, and no report of another one.
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
    /// A ledger with nothing in flight. Postgres knows that everything before `flush_lsn` is done.
    pub fn new(flush_lsn: Lsn) -> Self {
        Self {
            ring: VecDeque::new(),
            first: 0,
            flush_lsn,
            ages: VecDeque::new(),
            first_tick: 0,
            orphans: 0,
            resume: Resume::new(flush_lsn),
            heard: flush_lsn,
        }
    }

    /// The position to confirm.
    pub fn flush_lsn(&self) -> Lsn {
        self.flush_lsn
    }

    /// The furthest position that the server has shown. Its WAL reaches at least this far.
    pub fn seen(&self) -> Lsn {
        self.flush_lsn.max(self.resume.last_begun())
    }

    /// `end_lsn` of the last transaction that was received whole.
    pub fn whole(&self) -> Lsn {
        self.resume.whole()
    }

    /// The position behind the last received row.
    pub fn next(&self) -> Position {
        Position { final_lsn: self.resume.last_begun(), ordinal: self.resume.rows() }
    }

    /// The server has heard that everything before `confirmed` is done.
    pub fn heard(&mut self, confirmed: Lsn) {
        self.heard = confirmed;
    }

    /// Whether a transaction is in flight, or delivered and not known to be heard by the server.
    pub fn is_unfinished(&self) -> bool {
        !self.ring.is_empty() || self.heard < self.resume.whole()
    }

    /// A transaction comes. It begins, unless it was already received.
    ///
    /// # Errors
    /// It has no place here.
    ///
    /// # Panics
    /// When another one is open.
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

    /// The next row of the open transaction has been dealt with, whether or not it made a record.
    #[inline]
    pub fn row_done(&mut self) {
        self.resume.row();
    }

    /// Whether no further transaction should begin until reports have come: some record is in flight then.
    pub fn is_full(&self) -> bool {
        self.ring.len() >= MOST_TRANSACTIONS
    }

    /// Whether a transaction has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.ring.back().is_some_and(|transaction| transaction.end_lsn.is_none())
    }

    /// `final_lsn` of the open transaction.
    pub fn open_transaction(&self) -> Option<Lsn> {
        self.ring.back().filter(|transaction| transaction.end_lsn.is_none()).map(|transaction| transaction.final_lsn)
    }

    /// Sets the time from which the age of the next records counts, to a tenth of a second. `from` is the position of the first of
    /// them.
    pub fn tick(&mut self, now: Instant, from: Position) {
        let full = self.ages.len() >= MOST_TICKS;
        match self.ages.back_mut() {
            Some(age) if age.in_flight == 0 => *age = TickAge { since: now, from, in_flight: 0 },
            Some(age) if full || now.saturating_duration_since(age.since) < TICK => {}
            Some(_) | None => self.ages.push_back(TickAge { since: now, from, in_flight: 0 }),
        }
    }

    /// The token for the next record of the open transaction, to the metrics' topic number `topic`.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "both count modulo the width of their field")]
    pub fn token(&self, topic: u16) -> Token {
        Token {
            transaction: self.first.wrapping_add(self.ring.len().wrapping_sub(1) as u32),
            tick: self.first_tick.wrapping_add(self.ages.len().wrapping_sub(1) as u16),
            topic,
        }
    }

    /// The sink has taken a record with the token given last.
    ///
    /// # Panics
    /// When no transaction is open, or before the first [`Ledger::tick`].
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

    /// The open transaction ends.
    ///
    /// # Panics
    /// When none is open, or it ends before it began.
    pub fn commit(&mut self, end_lsn: Lsn) {
        let Some(transaction) = self.ring.back_mut().filter(|transaction| transaction.end_lsn.is_none()) else {
            panic!("a commit without a transaction");
        };
        assert!(end_lsn >= transaction.final_lsn, "a transaction ends before its commit record starts");
        self.resume.commit(end_lsn);
        if transaction.records > 0 {
            transaction.end_lsn = Some(end_lsn);
            return;
        }
        self.ring.pop_back();
        match self.ring.back_mut() {
            Some(predecessor) => predecessor.end_lsn = Some(end_lsn),
            None => self.advance(end_lsn),
        }
    }

    /// `records` reports came for `token`.
    ///
    /// # Panics
    /// When that many are not in flight.
    pub fn delivered(&mut self, token: Token, records: u32) {
        self.reported(token, records);
        self.counted(token, records);
    }

    /// `records` reports came for `token` that count only once [`Ledger::counted`] says so: until then the position does not
    /// pass them.
    ///
    /// # Panics
    /// When that many are not in flight.
    pub fn reported(&mut self, token: Token, records: u32) {
        let age = usize::from(token.tick.wrapping_sub(self.first_tick));
        let Some(age) = self.ages.get_mut(age).filter(|age| age.in_flight >= records) else {
            panic!("more reports than records of that age");
        };
        age.in_flight -= records;
    }

    /// `records` that were reported for `token` count. Its tick means nothing any more.
    ///
    /// # Panics
    /// When more count than were enqueued.
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

    /// The record with `token`, of the open transaction, was refused and counts no more. The relay decides its row's action again.
    ///
    /// # Panics
    /// When no such record is in flight.
    pub fn withdrawn(&mut self, token: Token) {
        self.delivered(token, 1);
        let index = token.transaction.wrapping_sub(self.first) as usize;
        if let Some(transaction) = self.ring.get_mut(index) {
            transaction.records -= 1;
        }
    }

    /// Moves `flush_lsn` over the finished front of the ring, and calls `each` for each finished transaction.
    pub fn settle(&mut self, mut each: impl FnMut(Settled)) {
        while let Some(&Transaction { undelivered: 0, end_lsn: Some(end_lsn), commit_time, records, .. }) =
            self.ring.front()
        {
            self.pop_front();
            self.advance(end_lsn);
            each(Settled { commit_time, records });
        }
        while self.ages.len() > 1 && self.ages.front().is_some_and(|age| age.in_flight == 0) {
            self.ages.pop_front();
            self.first_tick = self.first_tick.wrapping_add(1);
        }
    }

    /// The server has sent everything that commits before `wal_end`.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        if self.ring.is_empty() && wal_end > self.flush_lsn {
            self.advance(wal_end);
        }
    }

    /// The slot's confirmed position is `confirmed`. If that is ahead of ours, another relay has delivered the transactions before
    /// it. They are closed, since their commits will never come again.
    pub fn raise(&mut self, confirmed: Lsn) {
        self.resume.raise(confirmed);
        if confirmed <= self.flush_lsn {
            return;
        }
        while self.ring.front().is_some_and(|front| front.lies_before(confirmed)) {
            self.pop_front();
        }
        self.advance(confirmed);
    }

    /// Forgets every record in flight, since its report will never come. The position stays. With [`Keep::Delivered`], the
    /// delivered rows of the first transaction that is not delivered whole still count as received, up to its first row in flight.
    /// That transaction is open then.
    pub fn forget(&mut self, keep: Keep) {
        let first = match keep {
            Keep::Delivered => self.first_in_flight().filter(|position| position.ordinal > 0),
            Keep::Nothing => None,
        };
        let kept = self.ring.pop_front().filter(|front| first.is_some_and(|first| first.final_lsn == front.final_lsn));
        let mut resume = Resume::new(self.flush_lsn);
        resume.forget(self.flush_lsn, first.filter(|_| kept.is_some()));
        *self = Self { resume, heard: self.heard, ..Self::new(self.flush_lsn) };
        self.ring.extend(kept.map(|transaction| Transaction { undelivered: 0, end_lsn: None, ..transaction }));
    }

    /// Whether a transaction of ours lies beyond the position where its timeline was left. A commit record that begins before it is
    /// whole there: such a transaction comes again as it was.
    pub fn reaches_beyond(&self, switch_point: Lsn) -> bool {
        self.resume.whole() > switch_point
            || self.open_transaction().is_some_and(|final_lsn| final_lsn >= switch_point)
            || self.flush_lsn > switch_point
    }

    /// The server left the timeline of our positions there. The ledger forgets everything that is not confirmed, and everything
    /// beyond.
    pub fn left_at(&mut self, switch_point: Lsn) {
        *self = Self { heard: self.heard, ..Self::new(self.flush_lsn.min(switch_point)) };
    }

    /// Transactions that are open or in flight.
    pub fn transactions(&self) -> usize {
        self.ring.len()
    }

    /// When the oldest record in flight was enqueued, to a tenth of a second.
    pub fn oldest_in_flight(&self) -> Option<Instant> {
        self.oldest_age().map(|age| age.since)
    }

    /// A position before which no record is in flight.
    pub fn first_in_flight(&self) -> Option<Position> {
        self.oldest_age().map(|age| age.from)
    }

    fn oldest_age(&self) -> Option<&TickAge> {
        self.ages.iter().find(|age| age.in_flight > 0)
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

impl Transaction {
    /// Follows the server's own rule: it skips a transaction whose commit record starts before the confirmed position.
    fn lies_before(&self, confirmed: Lsn) -> bool {
        self.final_lsn < confirmed
    }
}

//! What is in flight, and how far Postgres may forget.
//!
//! ```text
//!  ring:  [ 17: 3 undelivered, end 0/A0 │ 18: 0, end 0/B0 │ 19: 2, open ]
//!           ▲ holds flush_lsn back        ▲ done, waits      ▲ rows are still coming
//! ```
//!
//! In: begin, enqueued, commit, delivered, keepalive. Out: `flush_lsn`, the one position that may be confirmed: the
//! `end_lsn` of the last transaction of the fully delivered prefix. Reports may come in any order. Reads no clock.
//! Where a report says less than that (the destination's transaction may yet be aborted), it is taken in two steps: by
//! [`Tracker::reported`] a record is no longer in flight, by [`Tracker::counted`] it is delivered.
//! Every operation is O(1), amortised; the ring holds only transactions that are open or have records in flight (an empty
//! one raises its predecessor's end). One record that stays in flight holds everything behind it in the ring, delivered or
//! not, so the ring has a bound of its own: [`Tracker::is_full`].
//!
//! Invariants: `flush_lsn` never goes back; it never passes a transaction with an undelivered record; a keepalive
//! moves it only when the ring is empty; each record is reported once. The asserts stay on in release builds: a wrong
//! position loses rows for ever, a crash is fixed by a restart, since the slot replays.

use crate::lsn::Lsn;
use crate::pgoutput::{Begin, PgTime};
use crate::sink::Token;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Records enqueued within this time share one age.
const TICK: Duration = Duration::from_millis(100);

/// Most ages kept apart: beyond, the newest is shared by all. Half of what a token's 16 bits tell apart.
const MOST_TICKS: usize = 1 << 15;

/// Most transactions kept, delivered ones behind an undelivered record included: 10 MB, and some seconds of the fastest stream.
const MOST_TRANSACTIONS: usize = 1 << 18;

/// Transactions in flight, in commit order.
#[derive(Debug)]
pub struct Tracker {
    /// Oldest first. Only the last may be open; only an open one, or one with undelivered records before it, may have
    /// none undelivered itself once [`Tracker::settle`] has run.
    ring: VecDeque<Transaction>,
    /// The number of the ring's front, modulo 2^32. Numbers with records are never used twice.
    first: u32,
    /// Everything that commits before this is delivered.
    flush_lsn: Lsn,
    /// Records in flight by when they were enqueued, oldest first; the front is never empty unless it is alone.
    ages: VecDeque<Age>,
    /// The tick of the front age, modulo 2^16.
    first_tick: u16,
    /// Records in flight whose transaction was closed because another relay had delivered it.
    orphans: u64,
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
struct Age {
    since: Instant,
    /// Where its first record stands.
    from: Position,
    /// Records enqueued and not reported.
    in_flight: u32,
}

/// A row's place in the stream: rises from row to row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Begin's `final_lsn`.
    pub final_lsn: Lsn,
    /// The row's number in the transaction, from 0.
    pub ordinal: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.final_lsn, self.ordinal)
    }
}

/// The text is no row's place such as `16/B374D848:3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a row's place such as 16/B374D848:3")]
pub struct ParsePositionError;

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, ParsePositionError> {
        let (lsn, ordinal) = text.split_once(':').ok_or(ParsePositionError)?;
        let final_lsn = lsn.parse().map_err(|_| ParsePositionError)?;
        let plain = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
        let ordinal = ordinal.parse().ok().filter(|_| plain).ok_or(ParsePositionError)?;
        Ok(Self { final_lsn, ordinal })
    }
}

/// A transaction with records that has been fully delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// When Postgres committed it.
    pub commit_time: PgTime,
    /// Its records; at least 1.
    pub records: u32,
}

impl Tracker {
    /// Nothing in flight; Postgres holds that everything before `flush_lsn` is done.
    pub fn new(flush_lsn: Lsn) -> Self {
        Self { ring: VecDeque::new(), first: 0, flush_lsn, ages: VecDeque::new(), first_tick: 0, orphans: 0 }
    }

    /// The position to confirm.
    pub fn flush_lsn(&self) -> Lsn {
        self.flush_lsn
    }

    /// A transaction begins.
    ///
    /// # Panics
    /// When one is open.
    pub fn begin(&mut self, begin: &Begin) {
        assert!(!self.is_open(), "a transaction begins inside another");
        let Begin { final_lsn, commit_time, .. } = *begin;
        self.ring.push_back(Transaction { final_lsn, commit_time, undelivered: 0, records: 0, end_lsn: None });
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

    /// Time goes on: records enqueued from here on, the first of them at `from`, count their age from `now`, to a tenth of a
    /// second.
    pub fn tick(&mut self, now: Instant, from: Position) {
        let full = self.ages.len() >= MOST_TICKS;
        match self.ages.back_mut() {
            Some(age) if age.in_flight == 0 => *age = Age { since: now, from, in_flight: 0 },
            Some(age) if full || now.saturating_duration_since(age.since) < TICK => {}
            Some(_) | None => self.ages.push_back(Age { since: now, from, in_flight: 0 }),
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
    /// When no transaction is open, or before the first [`Tracker::tick`].
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

    /// `records` reports came for `token` that count only once [`Tracker::counted`] says so: until then the position does not
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

    /// The record with `token`, of the open transaction, was refused and is to be counted no more: its row's fate is decided
    /// anew.
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

    /// Moves `flush_lsn` over the finished front, telling `each` transaction that is done.
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

    /// The slot's confirmed position is `confirmed`. Where that is ahead of ours, another relay has delivered what lies
    /// before: those transactions are closed, since their commits will never come again.
    pub fn raise(&mut self, confirmed: Lsn) {
        if confirmed <= self.flush_lsn {
            return;
        }
        while self.ring.front().is_some_and(|front| front.lies_before(confirmed)) {
            self.pop_front();
        }
        self.advance(confirmed);
    }

    /// Forgets everything in flight, whose reports will never come. The position stays. Of the first transaction that is not
    /// delivered whole, those rows stay counted that stand before the returned position, when there are any: it is open then.
    pub fn forget(&mut self) -> Option<Position> {
        let first = self.first_in_flight().filter(|position| position.ordinal > 0);
        let kept = self.ring.pop_front().filter(|front| first.is_some_and(|first| first.final_lsn == front.final_lsn));
        *self = Self::new(self.flush_lsn);
        let transaction = kept?;
        self.ring.push_back(Transaction { undelivered: 0, end_lsn: None, ..transaction });
        first
    }

    /// Forgets what was reported as well, where nothing of that counts. The position stays.
    pub fn forget_all(&mut self) {
        *self = Self::new(self.flush_lsn);
    }

    /// Transactions that are open or in flight.
    pub fn transactions(&self) -> usize {
        self.ring.len()
    }

    /// When the oldest record in flight was enqueued, to a tenth of a second.
    pub fn oldest_in_flight(&self) -> Option<Instant> {
        self.oldest_age().map(|age| age.since)
    }

    /// A position that no record in flight stands before.
    pub fn first_in_flight(&self) -> Option<Position> {
        self.oldest_age().map(|age| age.from)
    }

    fn oldest_age(&self) -> Option<&Age> {
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
    /// By the server's own rule: it skips a transaction whose commit record starts before the confirmed position.
    fn lies_before(&self, confirmed: Lsn) -> bool {
        self.final_lsn < confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tracker() -> Tracker {
        let mut tracker = Tracker::new(Lsn::new(100));
        tracker.tick(Instant::now(), Position::default());
        tracker
    }

    fn at(final_lsn: u64) -> Position {
        Position { final_lsn: Lsn::new(final_lsn), ordinal: 0 }
    }

    fn begin(tracker: &mut Tracker, final_lsn: u64) {
        tracker.begin(&Begin { final_lsn: Lsn::new(final_lsn), commit_time: PgTime(0), xid: 1 });
    }

    /// One whole transaction; the tokens of its records.
    fn transaction(tracker: &mut Tracker, final_lsn: u64, records: u32) -> Vec<Token> {
        begin(tracker, final_lsn);
        let tokens = (0..records)
            .map(|_| {
                let token = tracker.token(0);
                tracker.enqueued();
                token
            })
            .collect();
        tracker.commit(Lsn::new(final_lsn + 8));
        tokens
    }

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let position = Position { final_lsn: Lsn::new(0x16_B374_D848), ordinal: 3 };
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in ["", "16/B374D848", "16/B374D848:", "16/B374D848:x", "16/B374D848:+1", ":1", "16:1"] {
            assert_eq!(text.parse::<Position>(), Err(ParsePositionError), "{text}");
        }
    }

    #[test]
    fn a_transaction_whose_only_record_was_withdrawn_counts_as_one_without_records() {
        let mut tracker = tracker();
        begin(&mut tracker, 200);
        let token = tracker.token(0);
        tracker.enqueued();
        tracker.withdrawn(token);
        tracker.commit(Lsn::new(208));
        let mut settled = 0;
        tracker.settle(|_| settled += 1);
        assert_eq!((tracker.flush_lsn(), settled), (Lsn::new(208), 0));
    }

    #[track_caller]
    fn expect(tracker: &mut Tracker, flush_lsn: u64) {
        tracker.settle(|_| {});
        assert_eq!(tracker.flush_lsn(), Lsn::new(flush_lsn));
    }

    #[test]
    fn the_position_waits_for_the_oldest_transaction() {
        let mut tracker = tracker();
        let first = transaction(&mut tracker, 200, 2);
        let second = transaction(&mut tracker, 300, 1);
        tracker.delivered(second[0], 1);
        expect(&mut tracker, 100);
        tracker.delivered(first[0], 2);
        expect(&mut tracker, 308);
    }

    #[test]
    fn an_open_transaction_holds_the_position_though_all_its_records_are_delivered() {
        let mut tracker = tracker();
        begin(&mut tracker, 200);
        let token = tracker.token(0);
        tracker.enqueued();
        tracker.delivered(token, 1);
        expect(&mut tracker, 100);
        tracker.commit(Lsn::new(208));
        expect(&mut tracker, 208);
    }

    #[test]
    fn what_was_reported_and_does_not_count_yet_is_not_in_flight_and_holds_the_position() {
        let mut tracker = tracker();
        let tokens = transaction(&mut tracker, 200, 2);
        tracker.reported(tokens[0], 2);
        expect(&mut tracker, 100);
        assert_eq!((tracker.oldest_in_flight(), tracker.transactions()), (None, 1));
        // The age is another's by now.
        tracker.tick(Instant::now(), at(300));
        let later = transaction(&mut tracker, 300, 1);
        tracker.counted(tokens[0], 2);
        expect(&mut tracker, 208);
        assert_eq!(tracker.first_in_flight(), Some(at(300)));
        tracker.reported(later[0], 1);
        tracker.forget_all();
        assert_eq!((tracker.flush_lsn(), tracker.transactions()), (Lsn::new(208), 0));
    }

    #[test]
    fn empty_transactions_take_no_room_and_raise_their_predecessors_end() {
        let mut tracker = tracker();
        let tokens = transaction(&mut tracker, 200, 1);
        for final_lsn in 300..400 {
            transaction(&mut tracker, final_lsn, 0);
        }
        assert_eq!(tracker.transactions(), 1);
        tracker.delivered(tokens[0], 1);
        expect(&mut tracker, 407);
        transaction(&mut tracker, 500, 0);
        expect(&mut tracker, 508);
    }

    #[test]
    fn one_record_that_stays_in_flight_fills_the_ring_and_no_more() {
        let mut tracker = tracker();
        let stuck = transaction(&mut tracker, 200, 1);
        for final_lsn in (300..).step_by(10).take(MOST_TRANSACTIONS - 1) {
            assert!(!tracker.is_full());
            let tokens = transaction(&mut tracker, final_lsn, 1);
            tracker.delivered(tokens[0], 1);
            tracker.settle(|_| {});
        }
        assert!(tracker.is_full());
        tracker.delivered(stuck[0], 1);
        tracker.settle(|_| {});
        assert!(!tracker.is_full() && tracker.transactions() == 0);
    }

    #[test]
    fn a_keepalive_counts_only_when_nothing_is_open_or_in_flight() {
        let mut tracker = tracker();
        tracker.keepalive(Lsn::new(150));
        expect(&mut tracker, 150);
        begin(&mut tracker, 200);
        tracker.keepalive(Lsn::new(900));
        expect(&mut tracker, 150);
        let token = tracker.token(0);
        tracker.enqueued();
        tracker.commit(Lsn::new(208));
        tracker.keepalive(Lsn::new(900));
        expect(&mut tracker, 150);
        tracker.delivered(token, 1);
        tracker.settle(|_| {});
        tracker.keepalive(Lsn::new(90));
        expect(&mut tracker, 208);
    }

    #[test]
    fn what_another_relay_delivered_is_closed_and_its_late_reports_are_harmless() {
        let mut tracker = tracker();
        let first = transaction(&mut tracker, 200, 1);
        begin(&mut tracker, 300);
        let second = tracker.token(0);
        tracker.enqueued();
        tracker.raise(Lsn::new(350));
        expect(&mut tracker, 350);
        assert_eq!(tracker.transactions(), 0);
        let third = transaction(&mut tracker, 400, 1);
        tracker.delivered(second, 1);
        tracker.delivered(first[0], 1);
        expect(&mut tracker, 350);
        tracker.delivered(third[0], 1);
        expect(&mut tracker, 408);
    }

    #[test]
    fn a_raise_below_the_open_transaction_keeps_it_open() {
        let mut tracker = tracker();
        begin(&mut tracker, 300);
        tracker.raise(Lsn::new(300));
        assert!(tracker.is_open());
        tracker.commit(Lsn::new(308));
        expect(&mut tracker, 308);
    }

    #[test]
    fn the_age_of_the_oldest_record_is_known_to_a_tick() {
        let start = Instant::now();
        let mut tracker = Tracker::new(Lsn::new(1));
        tracker.tick(start, at(0));
        assert_eq!(tracker.oldest_in_flight(), None);
        let old = transaction(&mut tracker, 10, 1);
        tracker.tick(start + TICK, at(20));
        let new = transaction(&mut tracker, 20, 1);
        assert_eq!(tracker.oldest_in_flight(), Some(start));
        assert_eq!(tracker.first_in_flight(), Some(at(0)));
        tracker.delivered(old[0], 1);
        tracker.settle(|_| {});
        assert_eq!(tracker.oldest_in_flight(), Some(start + TICK));
        assert_eq!(tracker.first_in_flight(), Some(at(20)));
        tracker.delivered(new[0], 1);
        tracker.settle(|_| {});
        assert_eq!(tracker.oldest_in_flight(), None);
    }

    #[test]
    #[should_panic(expected = "more reports than records")]
    fn a_second_report_for_one_record_is_our_own_mistake() {
        let mut tracker = tracker();
        let tokens = transaction(&mut tracker, 200, 1);
        transaction(&mut tracker, 300, 1);
        tracker.delivered(tokens[0], 1);
        tracker.delivered(tokens[0], 1);
    }

    /// The same thing done slowly: a list of all transactions ever, with the set of undelivered records of each.
    #[derive(Default)]
    struct Naive {
        transactions: Vec<(Vec<bool>, Option<u64>)>,
        keepalive: u64,
    }

    impl Naive {
        fn flush_lsn(&self) -> u64 {
            let done =
                self.transactions.iter().take_while(|(records, end)| end.is_some() && records.iter().all(|&r| r));
            done.filter_map(|(_, end)| *end).last().unwrap_or(0).max(self.keepalive)
        }

        fn idle(&self) -> bool {
            self.transactions.iter().all(|(records, end)| end.is_some() && records.iter().all(|&r| r))
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Transaction(u8),
        Report(prop::sample::Index),
        Keepalive(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0u8..6).prop_map(Step::Transaction),
            6 => any::<prop::sample::Index>().prop_map(Step::Report),
            1 => (0u8..50).prop_map(Step::Keepalive),
        ]
    }

    proptest! {
        #[test]
        fn any_order_of_reports_gives_the_naive_models_position(steps in prop::collection::vec(step(), 1..200)) {
            let (mut tracker, mut naive) = (Tracker::new(Lsn::ZERO), Naive::default());
            let (mut wal, mut in_flight, mut now) = (1u64, Vec::new(), Instant::now());
            for step in steps {
                now += Duration::from_millis(40);
                tracker.tick(now, Position::default());
                match step {
                    Step::Transaction(records) => {
                        let tokens = transaction(&mut tracker, wal, u32::from(records));
                        naive.transactions.push((vec![false; usize::from(records)], Some(wal + 8)));
                        let number = naive.transactions.len() - 1;
                        in_flight.extend(tokens.into_iter().enumerate().map(|(row, token)| (number, row, token)));
                        wal += 10;
                    }
                    Step::Report(index) if !in_flight.is_empty() => {
                        let (number, row, token) = in_flight.swap_remove(index.index(in_flight.len()));
                        naive.transactions[number].0[row] = true;
                        tracker.delivered(token, 1);
                    }
                    Step::Report(_) => {}
                    Step::Keepalive(ahead) => {
                        wal += u64::from(ahead);
                        if naive.idle() {
                            naive.keepalive = wal;
                        }
                        tracker.settle(|_| {});
                        tracker.keepalive(Lsn::new(wal));
                    }
                }
                tracker.settle(|_| {});
                prop_assert_eq!(tracker.flush_lsn().bytes(), naive.flush_lsn());
                prop_assert_eq!(tracker.oldest_in_flight().is_some(), !in_flight.is_empty());
            }
        }
    }
}

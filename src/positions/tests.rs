//! Tests the ledger's rules one by one. Then compares it, for any order of events, with a simpler and slower model.

use super::ledger::*;
use super::*;
use crate::lsn::{Lsn, Position};
use crate::pgoutput::{Begin, PgTime};
use crate::sink::Token;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(Lsn::new(100));
    ledger.tick(Instant::now(), Position::default());
    ledger
}

fn at(final_lsn: u64) -> Position {
    Position { final_lsn: Lsn::new(final_lsn), ordinal: 0 }
}

fn begin(ledger: &mut Ledger, final_lsn: u64) {
    let begun = ledger.begin(&Begin { final_lsn: Lsn::new(final_lsn), commit_time: PgTime(0), xid: 1 });
    assert_eq!(begun, Ok(BeginVerdict::Take));
}

/// Enqueues a whole transaction. Returns the tokens of its records.
fn transaction(ledger: &mut Ledger, final_lsn: u64, records: u32) -> Vec<Token> {
    begin(ledger, final_lsn);
    let tokens = (0..records)
        .map(|_| {
            let token = ledger.token(0);
            ledger.enqueued();
            token
        })
        .collect();
    ledger.commit(Lsn::new(final_lsn + 8));
    tokens
}

#[test]
fn a_transaction_whose_only_record_was_withdrawn_counts_as_one_without_records() {
    let mut ledger = ledger();
    begin(&mut ledger, 200);
    let token = ledger.token(0);
    ledger.enqueued();
    ledger.withdrawn(token);
    ledger.commit(Lsn::new(208));
    let mut settled = 0;
    ledger.settle(|_| settled += 1);
    assert_eq!((ledger.flush_lsn(), settled), (Lsn::new(208), 0));
}

#[track_caller]
fn expect(ledger: &mut Ledger, flush_lsn: u64) {
    ledger.settle(|_| {});
    assert_eq!(ledger.flush_lsn(), Lsn::new(flush_lsn));
}

#[test]
fn the_position_waits_for_the_oldest_transaction() {
    let mut ledger = ledger();
    let first = transaction(&mut ledger, 200, 2);
    let second = transaction(&mut ledger, 300, 1);
    ledger.delivered(second[0], 1);
    expect(&mut ledger, 100);
    ledger.delivered(first[0], 2);
    expect(&mut ledger, 308);
}

#[test]
fn an_open_transaction_holds_the_position_though_all_its_records_are_delivered() {
    let mut ledger = ledger();
    begin(&mut ledger, 200);
    let token = ledger.token(0);
    ledger.enqueued();
    ledger.delivered(token, 1);
    expect(&mut ledger, 100);
    ledger.commit(Lsn::new(208));
    expect(&mut ledger, 208);
}

#[test]
fn what_was_reported_and_does_not_count_yet_is_not_in_flight_and_holds_the_position() {
    let mut ledger = ledger();
    let tokens = transaction(&mut ledger, 200, 2);
    ledger.reported(tokens[0], 2);
    expect(&mut ledger, 100);
    assert_eq!((ledger.oldest_in_flight(), ledger.transactions()), (None, 1));
    // By now, the age has another number.
    ledger.tick(Instant::now(), at(300));
    let later = transaction(&mut ledger, 300, 1);
    ledger.counted(tokens[0], 2);
    expect(&mut ledger, 208);
    assert_eq!(ledger.first_open(), Some(at(300)));
    ledger.reported(later[0], 1);
    ledger.forget(Keep::Nothing);
    assert_eq!((ledger.flush_lsn(), ledger.transactions()), (Lsn::new(208), 0));
}

#[test]
fn empty_transactions_take_no_room_and_raise_their_predecessors_end() {
    let mut ledger = ledger();
    let tokens = transaction(&mut ledger, 200, 1);
    for final_lsn in (300..400).step_by(10) {
        transaction(&mut ledger, final_lsn, 0);
    }
    assert_eq!(ledger.transactions(), 1);
    ledger.delivered(tokens[0], 1);
    expect(&mut ledger, 398);
    transaction(&mut ledger, 500, 0);
    expect(&mut ledger, 508);
}

#[test]
fn one_record_that_stays_in_flight_fills_the_ring_and_no_more() {
    let mut ledger = ledger();
    let stuck = transaction(&mut ledger, 200, 1);
    for final_lsn in (300..).step_by(10).take(MOST_TRANSACTIONS - 1) {
        assert!(!ledger.is_full());
        let tokens = transaction(&mut ledger, final_lsn, 1);
        ledger.delivered(tokens[0], 1);
        ledger.settle(|_| {});
    }
    assert!(ledger.is_full());
    ledger.delivered(stuck[0], 1);
    ledger.settle(|_| {});
    assert!(!ledger.is_full() && ledger.transactions() == 0);
}

#[test]
fn a_keepalive_counts_only_when_nothing_is_open_or_in_flight() {
    let mut ledger = ledger();
    ledger.keepalive(Lsn::new(150));
    expect(&mut ledger, 150);
    begin(&mut ledger, 200);
    ledger.keepalive(Lsn::new(900));
    expect(&mut ledger, 150);
    let token = ledger.token(0);
    ledger.enqueued();
    ledger.commit(Lsn::new(208));
    ledger.keepalive(Lsn::new(900));
    expect(&mut ledger, 150);
    ledger.delivered(token, 1);
    ledger.settle(|_| {});
    ledger.keepalive(Lsn::new(90));
    expect(&mut ledger, 208);
}

#[test]
fn what_another_relay_delivered_is_closed_and_its_late_reports_are_harmless() {
    let mut ledger = ledger();
    let first = transaction(&mut ledger, 200, 1);
    begin(&mut ledger, 300);
    let second = ledger.token(0);
    ledger.enqueued();
    ledger.raise(Lsn::new(350));
    expect(&mut ledger, 350);
    assert_eq!(ledger.transactions(), 0);
    let third = transaction(&mut ledger, 400, 1);
    ledger.delivered(second, 1);
    ledger.delivered(first[0], 1);
    expect(&mut ledger, 350);
    ledger.delivered(third[0], 1);
    expect(&mut ledger, 408);
}

#[test]
fn a_raise_below_the_open_transaction_keeps_it_open() {
    let mut ledger = ledger();
    begin(&mut ledger, 300);
    ledger.raise(Lsn::new(300));
    assert!(ledger.is_open());
    ledger.commit(Lsn::new(308));
    expect(&mut ledger, 308);
}

#[test]
fn the_age_of_the_oldest_record_is_known_to_a_tick() {
    let start = Instant::now();
    let mut ledger = Ledger::new(Lsn::new(1));
    ledger.tick(start, at(0));
    assert_eq!(ledger.oldest_in_flight(), None);
    let old = transaction(&mut ledger, 10, 1);
    ledger.tick(start + TICK, at(20));
    let new = transaction(&mut ledger, 20, 1);
    assert_eq!(ledger.oldest_in_flight(), Some(start));
    assert_eq!(ledger.first_open(), Some(at(0)));
    ledger.delivered(old[0], 1);
    ledger.settle(|_| {});
    assert_eq!(ledger.oldest_in_flight(), Some(start + TICK));
    assert_eq!(ledger.first_open(), Some(at(20)));
    ledger.delivered(new[0], 1);
    ledger.settle(|_| {});
    assert_eq!(ledger.oldest_in_flight(), None);
}

#[test]
#[should_panic(expected = "more reports than records")]
fn a_second_report_for_one_record_is_our_own_mistake() {
    let mut ledger = ledger();
    let tokens = transaction(&mut ledger, 200, 1);
    transaction(&mut ledger, 300, 1);
    ledger.delivered(tokens[0], 1);
    ledger.delivered(tokens[0], 1);
}

/// A slow model: a list of all transactions, each with its undelivered records.
#[derive(Default)]
struct Naive {
    transactions: Vec<(Vec<bool>, Option<u64>)>,
    keepalive: u64,
}

impl Naive {
    fn flush_lsn(&self) -> u64 {
        let done = self.transactions.iter().take_while(|(records, end)| end.is_some() && records.iter().all(|&r| r));
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
        let (mut ledger, mut naive) = (Ledger::new(Lsn::ZERO), Naive::default());
        let (mut wal, mut in_flight, mut now) = (1u64, Vec::new(), Instant::now());
        for step in steps {
            now += Duration::from_millis(40);
            ledger.tick(now, Position::default());
            match step {
                Step::Transaction(records) => {
                    let tokens = transaction(&mut ledger, wal, u32::from(records));
                    naive.transactions.push((vec![false; usize::from(records)], Some(wal + 8)));
                    let number = naive.transactions.len() - 1;
                    in_flight.extend(tokens.into_iter().enumerate().map(|(row, token)| (number, row, token)));
                    wal += 10;
                }
                Step::Report(index) if !in_flight.is_empty() => {
                    let (number, row, token) = in_flight.swap_remove(index.index(in_flight.len()));
                    naive.transactions[number].0[row] = true;
                    ledger.delivered(token, 1);
                }
                Step::Report(_) => {}
                Step::Keepalive(ahead) => {
                    wal += u64::from(ahead);
                    if naive.idle() {
                        naive.keepalive = wal;
                    }
                    ledger.settle(|_| {});
                    ledger.keepalive(Lsn::new(wal));
                }
            }
            ledger.settle(|_| {});
            prop_assert_eq!(ledger.flush_lsn().bytes(), naive.flush_lsn());
            prop_assert_eq!(ledger.oldest_in_flight().is_some(), !in_flight.is_empty());
        }
    }
}

/// A server that sends its WAL from the requested position, and a destination that reports in any order.
struct Pair {
    ledger: Ledger,
    /// The number of rows of each transaction. The transaction with index N commits at 100 * (N + 1).
    log: Vec<u64>,
    /// The next message of the connection: its transaction, its row, and the row up to which the connection skips.
    next: (usize, u64, Option<u64>),
    in_flight: Vec<(Token, (usize, u64))>,
    /// How often each row was enqueued since it was last forgotten, and whether it arrived.
    enqueued: std::collections::BTreeMap<(usize, u64), (u32, bool)>,
}

impl Pair {
    fn lsn(transaction: usize) -> Lsn {
        Lsn::new(100 * (transaction as u64 + 1))
    }

    /// The next message of the WAL: a Begin, a row or a Commit.
    fn message(&mut self) {
        let (transaction, row, taken) = self.next;
        let Some(rows) = self.log.get(transaction).copied() else { return };
        let Some(skip) = taken else {
            let begin = Begin { final_lsn: Self::lsn(transaction), commit_time: PgTime(0), xid: 1 };
            let skip = match self.ledger.begin(&begin).unwrap() {
                BeginVerdict::Take => 0,
                BeginVerdict::Continue { rows } => rows,
                BeginVerdict::AlreadyReceived => u64::MAX,
            };
            self.next = (transaction, 0, Some(skip));
            return;
        };
        if row == rows {
            if skip < u64::MAX {
                self.ledger.commit(Lsn::new(Self::lsn(transaction).bytes() + 50));
            }
            self.next = (transaction + 1, 0, None);
            return;
        }
        self.next.1 += 1;
        if row < skip {
            return;
        }
        let position = Position { final_lsn: Self::lsn(transaction), ordinal: row };
        self.ledger.tick(Instant::now(), position);
        let token = self.ledger.token(0);
        self.ledger.enqueued();
        self.ledger.row_done();
        self.in_flight.push((token, (transaction, row)));
        self.enqueued.entry((transaction, row)).or_default().0 += 1;
    }

    fn report(&mut self, index: prop::sample::Index) {
        if self.in_flight.is_empty() {
            return;
        }
        let (token, row) = self.in_flight.swap_remove(index.index(self.in_flight.len()));
        self.ledger.delivered(token, 1);
        self.ledger.settle(|_| {});
        self.enqueued.get_mut(&row).unwrap().1 = true;
    }

    /// A new connection sends what commits from the confirmed position on.
    fn reconnect(&mut self) {
        let confirmed = self.ledger.flush_lsn();
        let first = (0..self.log.len()).find(|at| Self::lsn(*at) >= confirmed).unwrap_or(self.log.len());
        self.next = (first, 0, None);
    }

    fn start_over(&mut self, keep: Keep) {
        self.ledger.forget(keep);
        let flush_lsn = self.ledger.flush_lsn();
        self.in_flight.clear();
        self.enqueued.retain(|(transaction, _), (times, has_arrived)| {
            *times = 0;
            *has_arrived && (keep == Keep::Delivered || Self::lsn(*transaction) < flush_lsn)
        });
        self.reconnect();
    }

    /// Checks that the position passes no row that has not arrived.
    fn check(&self) {
        let flush_lsn = self.ledger.flush_lsn();
        for (transaction, rows) in self.log.iter().enumerate().filter(|(at, _)| Self::lsn(*at) < flush_lsn) {
            for row in 0..*rows {
                let has_arrived = self.enqueued.get(&(transaction, row)).is_some_and(|(_, has_arrived)| *has_arrived);
                assert!(has_arrived, "row {row} of transaction {transaction} is confirmed, and has not arrived");
            }
        }
        assert!(self.enqueued.values().all(|(times, _)| *times <= 1), "a row that is in hand was enqueued again");
    }
}

#[derive(Debug, Clone)]
enum Event {
    Messages(u8),
    Report(prop::sample::Index),
    Reconnect,
    StartOver(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1u8..8).prop_map(Event::Messages),
        8 => any::<prop::sample::Index>().prop_map(Event::Report),
        1 => Just(Event::Reconnect),
        1 => any::<bool>().prop_map(Event::StartOver),
    ]
}

proptest! {
    #[test]
    fn connections_that_break_and_sinks_that_start_over_lose_nothing_and_repeat_only_what_was_given_up(
        log in prop::collection::vec(0u64..5, 1..12),
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut pair = Pair {
            ledger: Ledger::new(Lsn::ZERO),
            log,
            next: (0, 0, None),
            in_flight: Vec::new(),
            enqueued: std::collections::BTreeMap::new(),
        };
        for event in events {
            match event {
                Event::Messages(count) => (0..count).for_each(|_| pair.message()),
                Event::Report(index) => pair.report(index),
                Event::Reconnect => pair.reconnect(),
                Event::StartOver(delivered) => {
                    pair.start_over(if delivered { Keep::Delivered } else { Keep::Nothing });
                }
            }
            pair.check();
        }
        while pair.next.0 < pair.log.len() {
            pair.message();
        }
        while let Some((token, row)) = pair.in_flight.pop() {
            pair.ledger.delivered(token, 1);
            pair.enqueued.get_mut(&row).unwrap().1 = true;
        }
        pair.ledger.settle(|_| {});
        pair.check();
        prop_assert_eq!(pair.ledger.flush_lsn(), Lsn::new(Pair::lsn(pair.log.len() - 1).bytes() + 50));
    }
}

#[test]
fn a_skipped_row_keeps_the_position_until_its_note_is_committed_and_is_not_in_flight() {
    let mut ledger = ledger();
    begin(&mut ledger, 200);
    let token = ledger.token(0);
    (0..2).for_each(|_| ledger.noting(token));
    ledger.commit(Lsn::new(208));
    ledger.keepalive(Lsn::new(900));
    expect(&mut ledger, 100);
    assert_eq!((ledger.oldest_in_flight(), ledger.oldest_note().is_some()), (None, true));
    assert_eq!(ledger.first_open(), Some(at(0)));
    ledger.noted(token, 1);
    expect(&mut ledger, 100);
    ledger.noted(token, 1);
    let mut delivered = 0;
    ledger.settle(|_| delivered += 1);
    assert_eq!((ledger.flush_lsn(), ledger.oldest_note(), delivered), (Lsn::new(208), None, 0));
}

#[test]
fn a_refused_record_whose_row_is_skipped_leaves_its_place_to_the_note() {
    let mut ledger = ledger();
    let tokens = transaction(&mut ledger, 200, 1);
    ledger.noting(tokens[0]);
    ledger.withdrawn(tokens[0]);
    expect(&mut ledger, 100);
    // By now, another relay has published the transaction.
    ledger.raise(Lsn::new(300));
    ledger.noted(tokens[0], 1);
    expect(&mut ledger, 300);
}

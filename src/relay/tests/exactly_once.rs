//! Cases of a destination with transactions, and of what a stream waits for.

use super::*;
use crate::relay::{AskHolder, HeldSlot, HolderAnswer};
use crate::sink::{FailureClass, Initialized, Owner, Token};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Once;

/// A destination with transactions, as it stands.
#[allow(clippy::struct_excessive_bools, reason = "each is a thing that it may fail to do")]
struct Broker {
    /// It can be taken over.
    yields: bool,
    /// Why it takes no records of a topic.
    obstacle: Option<(&'static str, Failure)>,
    /// It reports what it has taken.
    reports: bool,
    /// But not now.
    silence: Range<Instant>,
    /// It commits the first progress.
    commits_first: bool,
    /// It commits what it is asked to behind that.
    commits: bool,
    in_flight: Vec<Token>,
    /// The progress of each commit behind it.
    committed: Vec<String>,
    /// The progress that an earlier process has stored, by its key.
    stored: Vec<(String, String)>,
}

struct Transactional(Rc<RefCell<Broker>>, TestClock);

impl Sink for Transactional {
    fn try_enqueue(&mut self, record: &Record<'_>, Tag { token, .. }: Tag) -> Enqueue {
        let mut broker = self.0.borrow_mut();
        if let Some((_, failure)) = broker.obstacle.as_ref().filter(|(topic, _)| *topic == record.topic) {
            return Enqueue::Blocked(failure.clone());
        }
        broker.in_flight.push(token);
        Enqueue::Taken
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        let mut broker = self.0.borrow_mut();
        if broker.reports && !broker.silence.contains(&self.1.now()) {
            let reported = broker.in_flight.drain(..);
            reported.for_each(|token| each(Report::Delivered(Delivered { token, records: 1, bytes: 1 })));
        }
    }

    fn in_flight(&self) -> InFlight {
        InFlight { records: self.0.borrow().in_flight.len() as u64, ..InFlight::default() }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.0.borrow_mut().in_flight.clear();
        Ok(())
    }

    fn problem(&self) -> Option<String> {
        None
    }

    fn transaction_timeout(&self) -> Option<Duration> {
        Some(TRANSACTION_TIMEOUT)
    }

    fn init_transactions(&mut self, _owner: &Owner) -> Result<Initialized, Failure> {
        Ok(if self.0.borrow().yields {
            Initialized::Ready(self.0.borrow().stored.clone())
        } else {
            Initialized::Pending { reason: None, answered: false }
        })
    }

    fn commit(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        let mut broker = self.0.borrow_mut();
        let is_first = value == Identity::default().first_value();
        assert!(!is_first || broker.committed.is_empty(), "it would forget what is committed");
        let commits = if is_first { broker.commits_first } else { broker.commits };
        if commits {
            broker.stored = vec![(key.to_owned(), value.to_owned())];
            if !is_first {
                broker.committed.push(value.to_owned());
            }
        }
        Ok(commits)
    }
}

/// How long the destination's transactions may take.
const TRANSACTION_TIMEOUT: Duration = Duration::from_mins(2);

/// A relay that delivers exactly once, its slot at 1000, between a server and a destination under a clock of their own.
struct Fixture {
    relay: Relay<Transactional, TestClock>,
    broker: Rc<RefCell<Broker>>,
    clock: TestClock,
    /// What the server sends: after so much of the connection's time this.
    sends: Vec<(Duration, Vec<u8>)>,
    /// When the destination reports nothing, by the same time.
    silence: Range<Duration>,
    /// What the server's connection can contain, where that is little.
    window: Option<usize>,
}

impl Fixture {
    fn new() -> Self {
        let (now, in_flight, committed) = (Instant::now(), Vec::new(), Vec::new());
        let (yields, obstacle, reports, commits_first, commits) = (true, None, true, true, true);
        let stored = Vec::new();
        let silence = now..now;
        let broker =
            Broker { yields, obstacle, reports, silence, commits_first, commits, in_flight, committed, stored };
        let (broker, clock) = (Rc::new(RefCell::new(broker)), TestClock(Rc::new(Cell::new(now)), now));
        let limits = Limits {
            coalesce: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(8),
            disconnect_after: Duration::from_secs(30),
        };
        let mapping = Mapping { message_prefixes: vec!["p".to_owned()], ..Mapping::default() };
        let outbox = Outbox::new(mapping, Vec::new()).unwrap();
        let metrics = Arc::new(Metrics::new("s", "p", clock.now()));
        let sink = Transactional(Rc::clone(&broker), clock.clone());
        let mut relay = Relay::new(outbox, sink, clock.clone(), metrics, Arc::default(), limits);
        relay.acquired(Lsn::new(1000));
        Self { relay, broker, clock, sends: Vec::new(), silence: Duration::ZERO..Duration::ZERO, window: None }
    }

    /// One connection, on which the server says no more after `until`: how it ended, and after what time.
    fn stream(&mut self, until: Duration) -> (StreamEnd, Duration) {
        let began = self.clock.now();
        let (buffer, clock, sends) = (ReadBuffer::new(LIMIT), self.clock.clone(), self.sends.clone().into());
        self.broker.borrow_mut().silence = began + self.silence.start..began + self.silence.end;
        let mut server = Server { buffer, clock, began, until, sends, window: self.window };
        (self.relay.stream(&mut server, None), self.clock.now() - began)
    }
}

/// A transaction that goes on for so many seconds, with a row in each.
fn rows_for(duration: u64) -> Vec<(Duration, Vec<u8>)> {
    let rows = (0..duration).map(|second| (seconds(second), row("\"order\"")));
    [(Duration::ZERO, begin(2000))].into_iter().chain(rows).collect()
}

#[test]
fn a_transaction_whose_records_are_reported_stalls_nothing_however_long_it_takes() {
    let mut fixture = Fixture::new();
    fixture.sends = rows_for(100);
    fixture.sends.push((seconds(100), commit(2000, 2040)));
    let (ended, _) = fixture.stream(seconds(110));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    assert_eq!(fixture.broker.borrow().committed.len(), 1);
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(2040));
}

#[test]
fn a_record_that_is_not_reported_stalls_it_though_others_were() {
    let mut fixture = Fixture::new();
    fixture.sends = rows_for(100);
    let (ended, _) = fixture.stream(seconds(20));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    fixture.broker.borrow_mut().reports = false;
    let (ended, after) = fixture.stream(seconds(100));
    assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
    assert!(after >= seconds(49) && after < seconds(52), "the rows before it are in hand: {after:?}");
}

#[test]
fn a_commit_that_is_not_answered_stalls_it_and_is_waited_for() {
    let mut fixture = Fixture::new();
    fixture.broker.borrow_mut().commits = false;
    fixture.sends = rows_for(1);
    fixture.sends.push((seconds(1), commit(2000, 2040)));
    let (ended, after) = fixture.stream(seconds(100));
    assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
    assert!(after >= seconds(31) && after < seconds(33), "{after:?}");
    assert!(fixture.relay.awaits_sink() && fixture.relay.in_flight() == 0);
    fixture.broker.borrow_mut().commits = true;
    fixture.relay.idle(seconds(1)).unwrap();
    assert!(!fixture.relay.awaits_sink());
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(2040));
}

#[test]
fn a_destination_that_cannot_be_taken_over_stalls_it() {
    let mut fixture = Fixture::new();
    fixture.broker.borrow_mut().yields = false;
    let (ended, after) = fixture.stream(seconds(100));
    assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
    assert!(after >= seconds(30) && after < seconds(32), "{after:?}");
}

#[test]
fn a_destination_that_is_not_taken_over_blocks_it_once_that_lasts() {
    let mut fixture = Fixture::new();
    fixture.broker.borrow_mut().yields = false;
    for (duration, state) in [(29, State::Streaming), (31, State::Blocked)] {
        fixture.relay.limits.disconnect_after = seconds(duration);
        let (ended, _) = fixture.stream(seconds(120));
        assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
        assert_eq!(fixture.relay.metrics.state(), state, "after {duration} s");
    }
    assert!(fixture.relay.metrics.ready(fixture.clock.now()).is_err());
}

#[test]
fn a_row_that_waits_for_its_topic_ends_readiness_after_the_time_that_is_set_and_names_it() {
    let mut fixture = Fixture::new();
    let metrics = Metrics::new("s", "p", fixture.clock.now()).with_unready_after(seconds(1));
    fixture.relay.metrics = Arc::new(metrics);
    fixture.relay.limits.disconnect_after = Duration::from_millis(1500);
    let text = "the topic is unavailable".to_owned();
    let failure = Failure::new(FailureClass::Environment, "connection", text);
    fixture.broker.borrow_mut().obstacle = Some(("outbox.event.order", failure));
    fixture.sends = rows_for(1);
    let (ended, _) = fixture.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
    let ready = fixture.relay.metrics.ready(fixture.clock.now());
    assert_eq!(ready, Err("blocked: the topic is unavailable".to_owned()));
}

#[test]
fn what_is_whole_before_a_bad_rows_transaction_is_committed() {
    let mut fixture = Fixture::new();
    let order = row("\"order\"");
    let backlog = [
        begin(2000),
        order.clone(),
        commit(2000, 2040),
        begin(3000),
        order.clone(),
        commit(3000, 3040),
        begin(4000),
        order,
        row("null"),
        commit(4000, 4040),
    ];
    fixture.sends = backlog.map(|message| (Duration::ZERO, message)).into();
    let (ended, _) = fixture.stream(seconds(10));
    assert!(matches!(ended, StreamEnd::StartOver(Why::WholeFirst)), "{ended:?}");
    assert_eq!(fixture.broker.borrow().committed.len(), 0, "all of them were in one");
    fixture.relay.start_over().unwrap();
    let (ended, _) = fixture.stream(seconds(10));
    let StreamEnd::BadRow(bad) = &ended else { panic!("{ended:?}") };
    assert_eq!((bad.position.final_lsn, bad.position.ordinal), (Lsn::new(4000), 1));
    assert_eq!(bad.confirmed, Lsn::new(3040));
    let progress =
        r#"{"timeline":0,"end_lsn":"0/BE0","source":"","last":{"final_lsn":"0/BB8","xid":0,"commit_time":0}}"#;
    assert!(fixture.broker.borrow().committed.iter().eq([progress]));
}

#[test]
fn the_first_progress_is_committed_before_the_first_row_is_taken() {
    let mut fixture = Fixture::new();
    fixture.broker.borrow_mut().commits_first = false;
    fixture.sends = backlog(&[1500]);
    fixture.stream(seconds(10));
    assert!(fixture.broker.borrow().in_flight.is_empty() && fixture.broker.borrow().stored.is_empty());
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1000));
    fixture.broker.borrow_mut().commits_first = true;
    fixture.stream(seconds(10));
    assert_eq!((fixture.broker.borrow().committed.len(), fixture.relay.flush_lsn()), (1, Lsn::new(1540)));
}

#[test]
fn a_first_progress_moves_nothing_and_a_slot_that_was_read_wants_a_progress_or_a_word() {
    let identity = Identity { was_read: true, flushed: Lsn::new(10_000), ..Identity::default() };
    let resumed = |stored: Vec<(String, String)>, accepts_slot| {
        let mut fixture = Fixture::new();
        fixture.broker.borrow_mut().stored = stored;
        fixture.relay.identified(Identity { accepts_slot, ..identity.clone() });
        // Taken by a process that knows nothing of the slot.
        fixture.relay.transaction.slot_taken(Lsn::new(1000), Lsn::ZERO);
        fixture.sends = backlog(&[1500]);
        let (ended, _) = fixture.stream(seconds(10));
        (ended, fixture.relay.flush_lsn())
    };
    let (ended, position) = resumed(Vec::new(), false);
    let StreamEnd::ProgressMismatch(ProgressMismatch::Missing { confirmed }) = ended else { panic!("{ended:?}") };
    assert_eq!((confirmed, position), (Lsn::new(1000), Lsn::new(1000)));
    assert_eq!(resumed(Vec::new(), true).1, Lsn::new(1540), "the operator has said so");
    assert_eq!(resumed(vec![(identity.key(), identity.first_value())], false).1, Lsn::new(1540), "it is there");
}

/// A relay at 1000 whose destination has stored that all up to 2040 is published, the transaction at 2000 as the last one.
fn resumed(xid: u32, accepts_slot: bool) -> Fixture {
    let mut fixture = Fixture::new();
    let identity = Identity { accepts_slot, flushed: Lsn::new(10_000), ..Identity::default() };
    let last = LastTransaction { final_lsn: Lsn::new(2000), xid, commit_time: crate::pgoutput::PgTime(0) };
    fixture.broker.borrow_mut().stored = vec![(identity.key(), identity.value(Lsn::new(2040), Some(last)))];
    fixture.relay.identified(identity);
    fixture
}

/// Transactions with a row each, and keepalives (negative), all at once.
fn backlog(transactions: &[i64]) -> Vec<(Duration, Vec<u8>)> {
    let one = |at: &i64| {
        let at_lsn = at.unsigned_abs();
        if *at < 0 {
            vec![keepalive(at_lsn)]
        } else {
            vec![begin(at_lsn), row("\"order\""), commit(at_lsn, at_lsn + 40)]
        }
    };
    transactions.iter().flat_map(one).map(|message| (Duration::ZERO, message)).collect()
}

#[test]
fn a_progress_ahead_of_the_slot_counts_once_its_last_transaction_has_come_again() {
    let mut fixture = resumed(0, false);
    fixture.sends = backlog(&[1500, -1600]);
    fixture.stream(seconds(10));
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1000), "nothing is proven");
    fixture.sends = backlog(&[1500, 2000, -2100, 2200]);
    let (ended, _) = fixture.stream(seconds(10));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(2240));
    let committed = fixture.broker.borrow().committed.clone();
    assert!(committed.len() == 1 && committed[0].contains("0/8C0"), "the last row alone: {committed:?}");
}

#[test]
fn a_progress_whose_last_transaction_does_not_come_is_of_another_history_and_moves_nothing() {
    for (xid, sends) in [(1, vec![1500, 2000]), (0, vec![1500, 2030]), (0, vec![-1900, -2100])] {
        let mut fixture = resumed(xid, false);
        fixture.sends = backlog(&sends);
        let (ended, _) = fixture.stream(seconds(10));
        let StreamEnd::ProgressMismatch(ProgressMismatch::OtherHistory { published, confirmed }) = ended else {
            panic!("{sends:?}: {ended:?}")
        };
        assert_eq!((published.final_lsn, confirmed), (Lsn::new(2000), Lsn::new(1000)), "{sends:?}");
        assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1000), "{sends:?}");
    }
}

#[test]
fn the_slots_position_counts_instead_of_another_historys_progress_if_the_operator_says_so() {
    let mut fixture = resumed(1, true);
    fixture.sends = backlog(&[1500, 2000, 2200]);
    let (ended, _) = fixture.stream(seconds(10));
    assert!(matches!(ended, StreamEnd::StartOver(Why::ProgressGivenUp)), "{ended:?}");
    fixture.relay.start_over().unwrap();
    fixture.stream(seconds(10));
    assert_eq!((fixture.relay.acknowledged, fixture.relay.flush_lsn()), (3, Lsn::new(2240)), "from the slot on");
}

#[test]
fn nothing_is_committed_with_a_progress_behind_a_skipped_row_before_its_note() {
    let mut fixture = Fixture::new();
    let (relay, noter) = noting(fixture.relay);
    fixture.relay = relay.with_bad_rows(BadRows { action: BadRowAction::Skip, ..BadRows::default() });
    let [table, skipped] = table_and_row(["1", "a b", "a", "t", "{}"]);
    let sent = [begin(2000), table, skipped, commit(2000, 2040), begin(3000), row("\"order\""), commit(3000, 3040)];
    fixture.sends = sent.map(|message| (Duration::ZERO, message)).into();
    let (ended, _) = fixture.stream(seconds(10));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    assert_eq!((fixture.broker.borrow().committed.len(), fixture.relay.flush_lsn()), (0, Lsn::new(1000)));
    noter.commit(1);
    fixture.relay.idle(seconds(1)).unwrap();
    assert_eq!(fixture.broker.borrow().committed.len(), 1);
    assert_eq!((noter.ids().len(), fixture.relay.flush_lsn()), (1, Lsn::new(3040)));
}

/// A transaction that outlasts the destination's is given up after nine tenths of those.
#[track_caller]
fn runs_out(fixture: &mut Fixture) {
    let (ended, after) = fixture.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::StartOver(Why::OutOfTime(age)) if age >= seconds(108)), "{ended:?}");
    assert!(after >= seconds(108) && after < seconds(110), "{after:?}");
    fixture.relay.start_over().unwrap();
}

#[test]
fn a_transaction_that_runs_out_of_time_twice_in_a_row_is_too_long_and_what_comes_before_it_is_committed() {
    let mut fixture = Fixture::new();
    fixture.sends = [begin(1500), row("\"order\""), commit(1500, 1540)].map(|message| (Duration::ZERO, message)).into();
    fixture.sends.extend(rows_for(120));
    runs_out(&mut fixture);
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1000), "they were in one");
    let (ended, _) = fixture.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::TransactionTooLong { records: 108.., .. }), "{ended:?}");
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(1540));
}

#[test]
fn a_transaction_whose_time_an_outage_took_is_not_too_long() {
    let mut fixture = Fixture::new();
    fixture.relay.limits.disconnect_after = seconds(120);
    fixture.sends = rows_for(120);
    runs_out(&mut fixture);
    // The destination is away, and back long before the time is over.
    fixture.silence = seconds(20)..seconds(80);
    runs_out(&mut fixture);
    fixture.silence = Duration::ZERO..Duration::ZERO;
    runs_out(&mut fixture);
    let (ended, _) = fixture.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::TransactionTooLong { .. }), "{ended:?}");
}

#[test]
fn a_transaction_that_waits_for_a_topic_is_not_too_long() {
    let mut fixture = Fixture::new();
    fixture.relay.limits.disconnect_after = seconds(200);
    let failure = Failure::new(FailureClass::Topic, "unknown_topic", "it is missing");
    fixture.broker.borrow_mut().obstacle = Some(("outbox.event.invoice", failure));
    fixture.sends = [begin(2000), row("\"order\""), row("\"invoice\""), commit(2000, 2040)]
        .map(|message| (Duration::ZERO, message))
        .into();
    for _ in 0..3 {
        runs_out(&mut fixture);
    }
    fixture.broker.borrow_mut().obstacle = None;
    fixture.stream(seconds(20));
    assert_eq!(fixture.relay.flush_lsn(), Lsn::new(2040));
}

#[test]
fn a_transaction_whose_time_was_spent_without_a_stream_is_not_too_long() {
    let mut fixture = Fixture::new();
    fixture.sends = rows_for(120);
    runs_out(&mut fixture);
    let (ended, _) = fixture.stream(seconds(20));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    fixture.relay.idle(seconds(60)).unwrap();
    let (ended, after) = fixture.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::StartOver(Why::OutOfTime(_))) && after < seconds(30), "{after:?}: {ended:?}");
    fixture.relay.start_over().unwrap();
    let (ended, _) = fixture.stream(seconds(20));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    let ended = fixture.relay.idle(seconds(120)).unwrap_err();
    assert!(matches!(*ended, StreamEnd::StartOver(Why::OutOfTime(_))), "{ended:?}");
}

thread_local! {
    /// What this thread logs, while that is of interest.
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

struct ThreadLog;

impl std::io::Write for ThreadLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.iter_mut().for_each(|log| log.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What this thread logs meanwhile.
///
/// One subscriber takes the lines of all threads: `tracing` asks about a line once, in whichever thread logs it first, and remembers for all
/// threads that nobody wants it.
fn logged(act: impl FnOnce()) -> String {
    static SUBSCRIBES: Once = Once::new();
    SUBSCRIBES.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| ThreadLog).finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        // Another thread may have logged a line before the subscriber was set.
        tracing::callsite::rebuild_interest_cache();
    });
    LOG.set(Some(Vec::new()));
    act();
    String::from_utf8(LOG.take().unwrap()).unwrap()
}

#[test]
fn a_destination_is_said_to_acknowledge_again_only_once_it_does() {
    let mut fixture = Fixture::new();
    fixture.sends = rows_for(3);
    fixture.silence = Duration::ZERO..seconds(20);
    let log = logged(|| drop(fixture.stream(seconds(10))));
    assert!(log.contains("has acknowledged nothing for 5 s"), "{log}");
    let log = logged(|| {
        fixture.relay.start_over().unwrap();
        fixture.relay.idle(seconds(1)).unwrap();
    });
    assert_eq!(log, "", "nothing is in flight any more");
    fixture.silence = Duration::ZERO..seconds(10);
    let log = logged(|| drop(fixture.stream(seconds(20))));
    assert!(log.contains("acknowledges again"), "{log}");
}

/// Whether the relay pauses after a read that brings so many rows with that payload.
fn pauses_after(rows: usize, payload: &str, window: Option<usize>) -> bool {
    let pause = Duration::from_mins(7);
    let mut fixture = Fixture::new();
    fixture.relay.limits.coalesce = pause;
    fixture.window = window;
    fixture.sends = vec![(Duration::ZERO, begin(2000))];
    fixture.sends.resize(1 + rows, (Duration::ZERO, row_with("\"order\"", payload)));
    let (_, after) = fixture.stream(seconds(1));
    after >= pause
}

#[test]
fn rows_gather_except_long_ones_in_a_small_window() {
    let long = format!("\"{}\"", "o".repeat(LIMIT - 200));
    let small = Some(32 * 1024);
    assert!(pauses_after(20, "{}", small), "short ones, a small window");
    assert!(!pauses_after(5, &long, small), "long ones, a small window");
    assert!(pauses_after(5, &long, None), "long ones, a wide window");
}

/// Says nothing of who holds a slot.
struct Nobody;

impl AskHolder for Nobody {
    fn ask(&mut self, _now: Duration) {}

    fn answer(&mut self) -> Option<HolderAnswer> {
        None
    }
}

#[test]
fn a_relay_that_may_not_send_yet_is_not_ready() {
    let mut fixture = Fixture::new();
    let since = fixture.clock.since_boot();
    let slot = HeldSlot {
        asks: Box::new(Nobody),
        walsender: 7,
        since,
        patience: None,
        released: None,
        sends_from: since + seconds(1),
        log_end: None,
    };
    fixture.relay.holds(slot);
    let (began, mut session) = (fixture.clock.now(), Session::new(fixture.clock.now(), None, Lsn::new(1000)));
    let (buffer, clock, sends, until) = (ReadBuffer::new(LIMIT), fixture.clock.clone(), VecDeque::new(), seconds(9));
    let mut server = Server { buffer, clock, began, until, sends, window: None };
    let mut ready_after = |fixture: &mut Fixture, after| {
        while fixture.clock.now() < began + after {
            fixture.relay.turn(&mut server, &mut session).unwrap();
        }
        fixture.relay.metrics.ready(fixture.clock.now())
    };
    let waits = ready_after(&mut fixture, Duration::from_millis(900)).unwrap_err();
    assert!(waits.starts_with("waiting-for-slot"), "{waits}");
    assert_eq!(ready_after(&mut fixture, Duration::from_millis(1500)), Ok(()));
}

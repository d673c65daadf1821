//! Single cases of the loop; what follows from many of them at once is the simulation's (tests/sim).

use super::*;
use crate::outbox::Mapping;
use crate::pg::frame::ReadBuffer;
use crate::pgoutput::{PgTime, Relation, RelationColumn, encode};
use crate::relay::{AskHolder, HeldSlot, HolderAnswer};
use crate::sink::{
    Enqueue, HeaderRoom, InFlight, Initialized, OwnedRecord, Owner, Record, RefusalId, Refused, Resolution, Tag, Token,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;

/// Bytes of the largest frame that is read.
const LIMIT: usize = 1000;

/// A server that has sent everything it will, and says no more.
struct Script {
    buffer: ReadBuffer,
    /// Status updates that it got.
    got: Vec<Vec<u8>>,
}

impl Script {
    fn of(copy_data: &[Vec<u8>]) -> Self {
        let mut buffer = ReadBuffer::new(LIMIT);
        for body in copy_data {
            arrives(&mut buffer, body);
        }
        Self { buffer, got: Vec::new() }
    }
}

/// A CopyData message comes; the length of its frame.
fn arrives(buffer: &mut ReadBuffer, body: &[u8]) -> usize {
    let length = u32::try_from(body.len() + 4).unwrap();
    let frame = [&b"d"[..], &length.to_be_bytes(), body].concat();
    buffer.space()[..frame.len()].copy_from_slice(&frame);
    buffer.filled(frame.len());
    frame.len()
}

impl Upstream for Script {
    fn buffer(&self) -> &ReadBuffer {
        &self.buffer
    }

    fn buffer_mut(&mut self) -> &mut ReadBuffer {
        &mut self.buffer
    }

    fn read(&mut self, _patience: Duration) -> Result<usize, pg::Error> {
        Err(pg::Error::Ended)
    }

    fn send(&mut self, message: &[u8]) -> Result<(), pg::Error> {
        self.got.push(message.to_vec());
        Ok(())
    }
}

/// Takes nothing, and reports nothing of what is in flight.
#[derive(Default)]
struct Idle {
    problem: Option<String>,
    in_flight: InFlight,
    /// What is in flight becomes one record less with each poll.
    draining: bool,
}

impl Sink for Idle {
    fn try_enqueue(&mut self, _record: &Record<'_>, _tag: Tag) -> Enqueue {
        Enqueue::Full
    }

    fn try_enqueue_refused(&mut self, _record: &Record<'_>, _tag: Tag, _failure: &Failure) -> Enqueue {
        Enqueue::Full
    }

    fn poll(&mut self, _each: &mut dyn FnMut(Report)) {
        if self.draining {
            self.in_flight.records -= 1;
        }
    }

    fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    fn restart(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn problem(&self) -> Option<String> {
        self.problem.clone()
    }
}

/// A relay whose slot stands at 1000.
fn relay(sink: Idle) -> Relay<Idle, SystemClock> {
    let limits = Limits {
        coalesce: Duration::ZERO,
        shutdown_timeout: Duration::from_secs(8),
        disconnect_after: Duration::from_secs(30),
    };
    let outbox = Outbox::new(Mapping::default(), Vec::new()).unwrap();
    let metrics = Arc::new(Metrics::new("s", "p", Instant::now()));
    let mut relay = Relay::new(outbox, sink, SystemClock, metrics, Arc::default(), limits);
    relay.acquired(Lsn::new(1000));
    relay
}

fn xlog_data(message: &[u8]) -> Vec<u8> {
    [&b"w"[..], &[0; 24], message].concat()
}

fn keepalive(wal_end: u64) -> Vec<u8> {
    [&b"k"[..], &wal_end.to_be_bytes(), &[0; 8], &[0]].concat()
}

fn begin(final_lsn: u64) -> Vec<u8> {
    xlog_data(&[&b"B"[..], &final_lsn.to_be_bytes(), &[0; 12]].concat())
}

fn commit(commit_lsn: u64, end_lsn: u64) -> Vec<u8> {
    xlog_data(&[&b"C\0"[..], &commit_lsn.to_be_bytes(), &end_lsn.to_be_bytes(), &[0; 8]].concat())
}

#[track_caller]
fn out_of_place(sent: &[Vec<u8>], expected: &str) {
    let ended = relay(Idle::default()).stream(&mut Script::of(sent), None);
    let StreamEnd::Protocol(error) = &ended else { panic!("{ended:?}") };
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_transaction_in_front_of_what_is_confirmed_ends_the_stream_and_not_the_process() {
    let sent = [begin(1000), commit(1000, 1040), keepalive(3000), begin(2000), commit(2000, 2040)];
    out_of_place(&sent, "Begin in front of what has been confirmed, at 0/BB8");
}

#[test]
fn a_transaction_that_ends_in_front_of_its_commit_ends_the_stream_and_not_the_process() {
    out_of_place(&[begin(2000), commit(2000, 1999)], "Commit in front of its own transaction, at 0/0");
}

#[test]
fn a_destinations_problem_is_no_obstacle_while_nothing_is_in_flight() {
    let problem = || Some("broker 1 is down".to_owned());
    let ready = |relay: &mut Relay<Idle, SystemClock>| {
        relay.shown = None;
        relay.idle(Duration::ZERO).unwrap();
        relay.metrics.set_state(State::Streaming);
        relay.metrics.status_sent(Instant::now());
        relay.metrics.ready(Instant::now())
    };
    let mut relay = relay(Idle { problem: problem(), ..Idle::default() });
    assert_eq!(ready(&mut relay), Ok(()));
    assert_eq!(relay.metrics.status(Instant::now()).last_error, problem());
    relay.sink.in_flight.records = 1;
    assert_eq!(ready(&mut relay), Err("broker 1 is down".to_owned()));
    relay.sink.in_flight.records = 0;
    assert_eq!(ready(&mut relay), Ok(()));
}

#[test]
fn what_came_before_a_row_above_the_limit_is_delivered_and_reported_first() {
    let mut relay =
        relay(Idle { in_flight: InFlight { records: 3, ..InFlight::default() }, draining: true, ..Idle::default() });
    let mut script = Script::of(&[keepalive(3000), vec![0; LIMIT]]);
    let ended = relay.stream(&mut script, None);
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Frame(FrameError::TooLarge { .. }))), "{ended:?}");
    assert_eq!(relay.in_flight(), 0);
    assert_eq!(script.got.last().unwrap()[6..14], 3000_u64.to_be_bytes());
}

/// A clock that moves when somebody waits, and when it began.
#[derive(Clone)]
struct Hands(Rc<Cell<Instant>>, Instant);

impl Clock for Hands {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn since_boot(&self) -> Duration {
        self.now() - self.1
    }

    fn wall(&self) -> PgTime {
        PgTime(0)
    }

    fn pause(&self, duration: Duration) {
        self.0.set(self.0.get() + duration);
        assert!(self.now() - self.1 < Duration::from_hours(1), "it does not come to an end");
    }
}

/// A destination with transactions, as it stands.
struct Ledger {
    /// It can be taken over.
    yields: bool,
    /// Why it takes no records of a topic.
    obstacle: Option<(&'static str, Failure)>,
    /// It reports what it has taken.
    reports: bool,
    /// But not now.
    silence: Range<Instant>,
    /// It commits what it is asked to.
    commits: bool,
    in_flight: Vec<Token>,
    /// The progress of each commit.
    committed: Vec<String>,
}

struct Transactional(Rc<RefCell<Ledger>>, Hands);

impl Sink for Transactional {
    fn try_enqueue(&mut self, record: &Record<'_>, Tag { token, .. }: Tag) -> Enqueue {
        let mut ledger = self.0.borrow_mut();
        if let Some((_, failure)) = ledger.obstacle.as_ref().filter(|(topic, _)| *topic == record.topic) {
            return Enqueue::Blocked(failure.clone());
        }
        ledger.in_flight.push(token);
        Enqueue::Taken
    }

    fn try_enqueue_refused(&mut self, _record: &Record<'_>, _tag: Tag, _failure: &Failure) -> Enqueue {
        panic!("a transaction takes a dead letter at once")
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        let mut ledger = self.0.borrow_mut();
        if ledger.reports && !ledger.silence.contains(&self.1.now()) {
            let reported = ledger.in_flight.drain(..);
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
        Some(KAFKAS_PATIENCE)
    }

    fn init_transactions(&mut self, _owner: &Owner) -> Result<Initialized, Failure> {
        Ok(if self.0.borrow().yields {
            Initialized::Ready(Vec::new())
        } else {
            Initialized::Pending { reason: None, answered: false }
        })
    }

    fn commit(&mut self, _key: &str, value: &str) -> Result<bool, Failure> {
        let mut ledger = self.0.borrow_mut();
        if ledger.commits {
            ledger.committed.push(value.to_owned());
        }
        Ok(ledger.commits)
    }
}

/// How long the destination's transactions may take.
const KAFKAS_PATIENCE: Duration = Duration::from_mins(2);

/// A relay that delivers exactly once, its slot at 1000, between a server and a destination under a clock of their own.
struct Stage {
    relay: Relay<Transactional, Hands>,
    ledger: Rc<RefCell<Ledger>>,
    clock: Hands,
    /// What the server sends: after so much of the connection's time this.
    sends: Vec<(Duration, Vec<u8>)>,
    /// When the destination reports nothing, by the same time.
    silence: Range<Duration>,
    /// What the server's connection can hold, where that is little.
    window: Option<usize>,
}

impl Stage {
    fn new() -> Self {
        let (now, in_flight, committed) = (Instant::now(), Vec::new(), Vec::new());
        let (yields, obstacle, reports, commits) = (true, None, true, true);
        let ledger = Ledger { yields, obstacle, reports, silence: now..now, commits, in_flight, committed };
        let (ledger, clock) = (Rc::new(RefCell::new(ledger)), Hands(Rc::new(Cell::new(now)), now));
        let limits = Limits {
            coalesce: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(8),
            disconnect_after: Duration::from_secs(30),
        };
        let mapping = Mapping { message_prefixes: vec!["p".to_owned()], ..Mapping::default() };
        let outbox = Outbox::new(mapping, Vec::new()).unwrap();
        let metrics = Arc::new(Metrics::new("s", "p", clock.now()));
        let sink = Transactional(Rc::clone(&ledger), clock.clone());
        let mut relay = Relay::new(outbox, sink, clock.clone(), metrics, Arc::default(), limits);
        relay.acquired(Lsn::new(1000));
        Self { relay, ledger, clock, sends: Vec::new(), silence: Duration::ZERO..Duration::ZERO, window: None }
    }

    /// One connection, on which the server says no more after `until`: how it ended, and after what time.
    fn stream(&mut self, until: Duration) -> (StreamEnd, Duration) {
        let began = self.clock.now();
        let (buffer, clock, sends) = (ReadBuffer::new(LIMIT), self.clock.clone(), self.sends.clone().into());
        self.ledger.borrow_mut().silence = began + self.silence.start..began + self.silence.end;
        let mut server = Server { buffer, clock, began, until, sends, window: self.window };
        (self.relay.stream(&mut server, None), self.clock.now() - began)
    }
}

/// A server that sends at a fixed rate.
struct Server {
    buffer: ReadBuffer,
    clock: Hands,
    began: Instant,
    until: Duration,
    sends: VecDeque<(Duration, Vec<u8>)>,
    window: Option<usize>,
}

impl Upstream for Server {
    fn buffer(&self) -> &ReadBuffer {
        &self.buffer
    }

    fn buffer_mut(&mut self) -> &mut ReadBuffer {
        &mut self.buffer
    }

    fn read(&mut self, patience: Duration) -> Result<usize, pg::Error> {
        self.clock.pause(patience);
        let now = self.clock.now() - self.began;
        if now >= self.until {
            return Err(pg::Error::Ended);
        }
        let mut length = 0;
        while let Some((_, body)) = self.sends.pop_front_if(|(at, _)| *at <= now) {
            length += arrives(&mut self.buffer, &body);
        }
        Ok(length)
    }

    fn window(&self) -> Option<usize> {
        self.window
    }

    fn send(&mut self, _message: &[u8]) -> Result<(), pg::Error> {
        Ok(())
    }
}

/// A row, as a message; without a route it is a bad one.
fn row(route: &str) -> Vec<u8> {
    row_with(route, "{}")
}

fn row_with(route: &str, payload: &str) -> Vec<u8> {
    let content =
        format!(r#"{{"id": "1", "aggregatetype": {route}, "aggregateid": "k", "type": "t", "payload": {payload}}}"#);
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    xlog_data(&[&b"M\x01"[..], &[0; 8], b"p\0", &length, content.as_bytes()].concat())
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A transaction that goes on for so many seconds, with a row in each.
fn rows_for(duration: u64) -> Vec<(Duration, Vec<u8>)> {
    let rows = (0..duration).map(|second| (seconds(second), row("\"order\"")));
    [(Duration::ZERO, begin(2000))].into_iter().chain(rows).collect()
}

#[test]
fn a_transaction_whose_records_are_reported_stalls_nothing_however_long_it_takes() {
    let mut stage = Stage::new();
    stage.sends = rows_for(100);
    stage.sends.push((seconds(100), commit(2000, 2040)));
    let (ended, _) = stage.stream(seconds(110));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    assert_eq!(stage.ledger.borrow().committed.len(), 1);
    assert_eq!(stage.relay.flush_lsn(), Lsn::new(2040));
}

#[test]
fn a_record_that_is_not_reported_stalls_it_though_others_were() {
    let mut stage = Stage::new();
    stage.sends = rows_for(100);
    let (ended, _) = stage.stream(seconds(20));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    stage.ledger.borrow_mut().reports = false;
    let (ended, after) = stage.stream(seconds(100));
    assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
    assert!(after >= seconds(49) && after < seconds(52), "the rows before it are in hand: {after:?}");
}

#[test]
fn a_commit_that_is_not_answered_stalls_it_and_is_waited_for() {
    let mut stage = Stage::new();
    stage.ledger.borrow_mut().commits = false;
    stage.sends = rows_for(1);
    stage.sends.push((seconds(1), commit(2000, 2040)));
    let (ended, after) = stage.stream(seconds(100));
    assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
    assert!(after >= seconds(31) && after < seconds(33), "{after:?}");
    assert!(stage.relay.awaits_sink() && stage.relay.in_flight() == 0);
    stage.ledger.borrow_mut().commits = true;
    stage.relay.idle(seconds(1)).unwrap();
    assert!(!stage.relay.awaits_sink());
    assert_eq!(stage.relay.flush_lsn(), Lsn::new(2040));
}

#[test]
fn a_destination_that_cannot_be_taken_over_stalls_it() {
    let mut stage = Stage::new();
    stage.ledger.borrow_mut().yields = false;
    let (ended, after) = stage.stream(seconds(100));
    assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
    assert!(after >= seconds(30) && after < seconds(32), "{after:?}");
}

#[test]
fn a_destination_that_is_not_taken_over_blocks_it_once_that_lasts() {
    let mut stage = Stage::new();
    stage.ledger.borrow_mut().yields = false;
    for (duration, state) in [(29, State::Streaming), (31, State::Blocked)] {
        stage.relay.limits.disconnect_after = seconds(duration);
        let (ended, _) = stage.stream(seconds(120));
        assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
        assert_eq!(stage.relay.metrics.state(), state, "after {duration} s");
    }
    assert!(stage.relay.metrics.ready(stage.clock.now()).is_err());
}

#[test]
fn a_row_that_waits_for_its_topic_ends_readiness_after_the_time_that_is_set_and_names_it() {
    let mut stage = Stage::new();
    let metrics = Metrics::new("s", "p", stage.clock.now()).with_unready_after(seconds(1));
    stage.relay.metrics = Arc::new(metrics);
    stage.relay.limits.disconnect_after = Duration::from_millis(1500);
    let text = "the topic is unavailable".to_owned();
    let failure = Failure::new(FailureClass::Environment, "connection", text);
    stage.ledger.borrow_mut().obstacle = Some(("outbox.event.order", failure));
    stage.sends = rows_for(1);
    let (ended, _) = stage.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::Stalled), "{ended:?}");
    let ready = stage.relay.metrics.ready(stage.clock.now());
    assert_eq!(ready, Err("blocked: the topic is unavailable".to_owned()));
}

#[test]
fn what_is_whole_before_a_bad_rows_transaction_is_committed() {
    let mut stage = Stage::new();
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
    stage.sends = backlog.map(|message| (Duration::ZERO, message)).into();
    let (ended, _) = stage.stream(seconds(10));
    assert!(matches!(ended, StreamEnd::StartOver(Why::WholeFirst)), "{ended:?}");
    assert_eq!(stage.ledger.borrow().committed.len(), 0, "all of them were in one");
    stage.relay.start_over().unwrap();
    let (ended, _) = stage.stream(seconds(10));
    let StreamEnd::BadRow(bad) = &ended else { panic!("{ended:?}") };
    assert_eq!((bad.position.final_lsn, bad.position.ordinal), (Lsn::new(4000), 1));
    assert_eq!(bad.confirmed, Lsn::new(3040));
    assert!(stage.ledger.borrow().committed.iter().eq([r#"{"timeline":0,"end_lsn":"0/BE0","source":""}"#]));
}

/// A transaction that outlasts the destination's is given up after nine tenths of those.
#[track_caller]
fn runs_out(stage: &mut Stage) {
    let (ended, after) = stage.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::StartOver(Why::OutOfTime(age)) if age >= seconds(108)), "{ended:?}");
    assert!(after >= seconds(108) && after < seconds(110), "{after:?}");
    stage.relay.start_over().unwrap();
}

#[test]
fn a_transaction_that_runs_out_of_time_twice_in_a_row_is_too_long_and_what_comes_before_it_is_committed() {
    let mut stage = Stage::new();
    stage.sends = [begin(1500), row("\"order\""), commit(1500, 1540)].map(|message| (Duration::ZERO, message)).into();
    stage.sends.extend(rows_for(120));
    runs_out(&mut stage);
    assert_eq!(stage.relay.flush_lsn(), Lsn::new(1000), "they were in one");
    let (ended, _) = stage.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::TransactionTooLong { records: 108.., .. }), "{ended:?}");
    assert_eq!(stage.relay.flush_lsn(), Lsn::new(1540));
}

#[test]
fn a_transaction_whose_time_an_outage_took_is_not_too_long() {
    let mut stage = Stage::new();
    stage.relay.limits.disconnect_after = seconds(120);
    stage.sends = rows_for(120);
    runs_out(&mut stage);
    // The destination is away, and back long before the time is over.
    stage.silence = seconds(20)..seconds(80);
    runs_out(&mut stage);
    stage.silence = Duration::ZERO..Duration::ZERO;
    runs_out(&mut stage);
    let (ended, _) = stage.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::TransactionTooLong { .. }), "{ended:?}");
}

#[test]
fn a_transaction_that_waits_for_a_topic_is_not_too_long() {
    let mut stage = Stage::new();
    stage.relay.limits.disconnect_after = seconds(200);
    let failure = Failure::new(FailureClass::Topic, "unknown_topic", "it is missing");
    stage.ledger.borrow_mut().obstacle = Some(("outbox.event.invoice", failure));
    stage.sends = [begin(2000), row("\"order\""), row("\"invoice\""), commit(2000, 2040)]
        .map(|message| (Duration::ZERO, message))
        .into();
    for _ in 0..3 {
        runs_out(&mut stage);
    }
    stage.ledger.borrow_mut().obstacle = None;
    stage.stream(seconds(20));
    assert_eq!(stage.relay.flush_lsn(), Lsn::new(2040));
}

#[test]
fn a_transaction_whose_time_was_spent_without_a_stream_is_not_too_long() {
    let mut stage = Stage::new();
    stage.sends = rows_for(120);
    runs_out(&mut stage);
    let (ended, _) = stage.stream(seconds(20));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    stage.relay.idle(seconds(60)).unwrap();
    let (ended, after) = stage.stream(seconds(120));
    assert!(matches!(ended, StreamEnd::StartOver(Why::OutOfTime(_))) && after < seconds(30), "{after:?}: {ended:?}");
    stage.relay.start_over().unwrap();
    let (ended, _) = stage.stream(seconds(20));
    assert!(matches!(ended, StreamEnd::Disconnected(pg::Error::Ended)), "{ended:?}");
    let ended = stage.relay.idle(seconds(120)).unwrap_err();
    assert!(matches!(*ended, StreamEnd::StartOver(Why::OutOfTime(_))), "{ended:?}");
}

/// Whether the relay pauses after a read that brings so many rows with that payload.
fn pauses_after(rows: usize, payload: &str, window: Option<usize>) -> bool {
    let pause = Duration::from_mins(7);
    let mut stage = Stage::new();
    stage.relay.limits.coalesce = pause;
    stage.window = window;
    stage.sends = vec![(Duration::ZERO, begin(2000))];
    stage.sends.resize(1 + rows, (Duration::ZERO, row_with("\"order\"", payload)));
    let (_, after) = stage.stream(seconds(1));
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
    let mut stage = Stage::new();
    let since = stage.clock.since_boot();
    let slot = HeldSlot {
        asks: Box::new(Nobody),
        walsender: 7,
        since,
        patience: None,
        released: None,
        sends_from: since + seconds(1),
        log_end: None,
    };
    stage.relay.holds(slot);
    let (began, mut session) = (stage.clock.now(), Session::new(stage.clock.now(), None, Lsn::new(1000)));
    let (buffer, clock, sends, until) = (ReadBuffer::new(LIMIT), stage.clock.clone(), VecDeque::new(), seconds(9));
    let mut server = Server { buffer, clock, began, until, sends, window: None };
    let mut ready_after = |stage: &mut Stage, after| {
        while stage.clock.now() < began + after {
            stage.relay.turn(&mut server, &mut session).unwrap();
        }
        stage.relay.metrics.ready(stage.clock.now())
    };
    let waits = ready_after(&mut stage, Duration::from_millis(900)).unwrap_err();
    assert!(waits.starts_with("waiting-for-slot"), "{waits}");
    assert_eq!(ready_after(&mut stage, Duration::from_millis(1500)), Ok(()));
}

/// A destination that delivers at the next poll. A key whose next record is refused waits for what takes its place.
#[derive(Default)]
struct ByKey {
    keys: BTreeMap<Vec<u8>, VecDeque<Waiting>>,
    refusals: u64,
    /// Why it takes no dead letters now, or ever.
    no_dead_letters: Option<Enqueue>,
    /// It never takes a dead letter with a payload.
    bare: bool,
    /// It takes records in transactions.
    transactions: bool,
    /// The topic and the event of each record that was delivered.
    delivered: Vec<String>,
}

struct Waiting {
    record: OwnedRecord,
    tag: Tag,
    refused: Option<Failure>,
    /// The refusal that the relay knows of.
    told: Option<RefusalId>,
}

const DEAD: &str = "dead";

fn too_large() -> Failure {
    Failure::new(FailureClass::Row, "too_large", "it is too large")
}

impl ByKey {
    /// Its answer to this dead letter, if it does not take it.
    fn refuses(&self, record: &Record<'_>) -> Option<Enqueue> {
        match &self.no_dead_letters {
            _ if self.bare && record.value.is_some() => Some(Enqueue::Bad(too_large())),
            Some(Enqueue::Bad(failure)) => Some(Enqueue::Bad(failure.clone())),
            Some(_) => Some(Enqueue::Full),
            None => None,
        }
    }

    fn take(&mut self, record: &Record<'_>, tag: Tag, refused: Option<Failure>) -> Enqueue {
        let record_of = Waiting { record: OwnedRecord::of(record), tag, refused, told: None };
        self.keys.entry(record.key.unwrap_or_default().to_vec()).or_default().push_back(record_of);
        Enqueue::Taken
    }
}

struct Shared(Rc<RefCell<ByKey>>);

impl Sink for Shared {
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        if record.value == Some(b"never") && record.topic != DEAD {
            return Enqueue::Bad(too_large());
        }
        let refuses = if record.topic == DEAD { self.0.borrow().refuses(record) } else { None };
        refuses.unwrap_or_else(|| self.0.borrow_mut().take(record, tag, None))
    }

    fn try_enqueue_refused(&mut self, record: &Record<'_>, tag: Tag, failure: &Failure) -> Enqueue {
        self.0.borrow_mut().take(record, tag, Some(failure.clone()))
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        let ByKey { keys, refusals, delivered, .. } = &mut *self.0.borrow_mut();
        for queue in keys.values_mut() {
            while let Some(Waiting { record, tag, .. }) = queue.pop_front_if(|first| first.refused.is_none()) {
                delivered.push(record.with_record(&mut HeaderRoom::default(), |record| {
                    let header = |name: &str| record.headers.iter().find(|it| it.name == name).and_then(|it| it.value);
                    let text = |name| header(name).map(|value| String::from_utf8_lossy(value).into_owned());
                    let parts = [Some(record.topic.to_owned()), text("eventType"), text("walrelay-error")];
                    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
                }));
                each(Report::Delivered(Delivered { token: tag.token, records: 1, bytes: 1 }));
            }
            if let Some(Waiting { record, tag, refused: Some(failure), told: told @ None }) = queue.front_mut() {
                *refusals += 1;
                let id = RefusalId(*refusals);
                *told = Some(id);
                let (record, failure) = (record.clone(), failure.clone());
                each(Report::Refused(Box::new(Refused { id, tag: *tag, record, failure })));
            }
        }
    }

    fn resolve(&mut self, refusal: RefusalId, resolution: Resolution<'_>) -> Enqueue {
        let Resolution::ReplaceWith(record, token) = resolution else { panic!("{resolution:?}") };
        let mut sink = self.0.borrow_mut();
        if let Some(refuses) = sink.refuses(record) {
            return refuses;
        }
        let is_its = |queue: &&mut VecDeque<Waiting>| queue.front().is_some_and(|first| first.told == Some(refusal));
        let first = sink.keys.values_mut().find(is_its).and_then(|queue| queue.front_mut()).expect("a refused record");
        (first.record, first.tag.token, first.refused) = (OwnedRecord::of(record), token, None);
        Enqueue::Taken
    }

    fn in_flight(&self) -> InFlight {
        let sink = self.0.borrow();
        let is_held = |queue: &&VecDeque<Waiting>| queue.front().is_some_and(|first| first.told.is_some());
        let count = |records: u64, queue: &VecDeque<Waiting>| records + queue.len() as u64;
        let held = sink.keys.values().filter(is_held).fold(0, count);
        InFlight { records: sink.keys.values().fold(0, count), held, ..InFlight::default() }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.0.borrow_mut().keys.clear();
        Ok(())
    }

    fn transaction_timeout(&self) -> Option<Duration> {
        self.0.borrow().transactions.then(|| seconds(60))
    }

    fn problem(&self) -> Option<String> {
        None
    }
}

/// A row of this key, as a message; its route may be bad.
fn row_of(key: &str, route: &str, kind: &str, payload: &str) -> Vec<u8> {
    let content = format!(
        r#"{{"id": "{kind}", "aggregatetype": {route}, "aggregateid": "{key}", "type": "{kind}", "payload": {payload}}}"#
    );
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    xlog_data(&[&b"M\x01"[..], &[0; 8], b"p\0", &length, content.as_bytes()].concat())
}

/// A table's columns, and a row of it.
fn table_and_row(values: [&str; 5]) -> [Vec<u8>; 2] {
    let column = |name: &str| RelationColumn { name: name.to_owned(), type_id: 25, type_modifier: -1 };
    let columns = ["id", "aggregatetype", "aggregateid", "type", "payload"].map(column).to_vec();
    let (namespace, name) = ("public".to_owned(), "outbox".to_owned());
    let (mut table, mut row) = (Vec::new(), Vec::new());
    encode::relation(&mut table, &Relation { id: 7, namespace, name, replica_identity: b'd', columns });
    encode::insert(&mut row, 7, values.len());
    for text in values {
        encode::value(&mut row, Some(text.as_bytes()));
    }
    [xlog_data(&table), xlog_data(&row)]
}

/// A relay whose bad rows become dead letters, its slot at 1000, and its server.
fn with_dead_letters(sent: &[Vec<u8>]) -> (Relay<Shared, Hands>, Server, Rc<RefCell<ByKey>>) {
    with_dead_letters_in(ByKey::default(), sent)
}

fn with_dead_letters_in(sink: ByKey, sent: &[Vec<u8>]) -> (Relay<Shared, Hands>, Server, Rc<RefCell<ByKey>>) {
    let (sink, clock) = (Rc::new(RefCell::new(sink)), Hands(Rc::new(Cell::new(Instant::now())), Instant::now()));
    let limits =
        Limits { coalesce: Duration::ZERO, shutdown_timeout: seconds(8), disconnect_after: Duration::from_mins(5) };
    let mapping = Mapping { message_prefixes: vec!["p".to_owned()], ..Mapping::default() };
    let outbox = Outbox::new(mapping, Vec::new()).unwrap();
    let metrics = Arc::new(Metrics::new("s", "p", clock.now()));
    let relay = Relay::new(outbox, Shared(Rc::clone(&sink)), clock.clone(), metrics, Arc::default(), limits);
    let action = BadRowAction::DeadLetter;
    let bad_rows = BadRows { action, dead_letter_topic: DEAD.to_owned(), ..BadRows::default() };
    let mut relay = relay.with_bad_rows(bad_rows);
    relay.acquired(Lsn::new(1000));
    let sends = sent.iter().map(|message| (Duration::ZERO, message.clone())).collect();
    let began = clock.now();
    let server = Server { buffer: ReadBuffer::new(1 << 16), clock, began, until: seconds(2), sends, window: None };
    (relay, server, sink)
}

#[test]
fn a_bad_row_waits_for_its_turn_and_holds_up_its_key_alone() {
    let sent = [
        begin(2000),
        row_of("a", "\"order\"", "a1", "{}"),
        row_of("a", "\"order\"", "a2", "\"never\""),
        row_of("a", "\"order\"", "a3", "{}"),
        row_of("b", "\"order\"", "b1", "{}"),
        row_of("c", "null", "c1", "{}"),
        row_of("b", "\"order\"", "b2", "{}"),
        commit(2000, 2040),
    ];
    let (mut relay, mut server, sink) = with_dead_letters(&sent);
    sink.borrow_mut().no_dead_letters = Some(Enqueue::Full);
    relay.stream(&mut server, None);
    let topic = "outbox.event.order";
    assert_eq!(sink.borrow().delivered, ["a1", "b1", "b2"].map(|kind| format!("{topic} {kind}")));
    assert_eq!((relay.acknowledged, relay.in_flight(), relay.flush_lsn()), (3, 3, Lsn::new(1000)));
    assert_eq!(relay.handled_bad_rows, 0, "none is finished");
    sink.borrow_mut().no_dead_letters = None;
    relay.idle(seconds(1)).unwrap();
    let delivered = sink.borrow().delivered[3..].to_vec();
    let [first, second, third] = delivered.as_slice() else { panic!("{delivered:?}") };
    assert_eq!([first, second], [&format!("{DEAD} a2 it is too large"), &format!("{topic} a3")]);
    assert!(third.starts_with(&format!("{DEAD} c1 column")), "{third}");
    assert_eq!((relay.in_flight(), relay.flush_lsn(), relay.handled_bad_rows), (0, Lsn::new(2040), 2));
}

#[test]
fn a_bad_row_whose_dead_letter_is_refused_stops_the_relay_for_its_own_reason() {
    let sent = [begin(2000), row_of("c", "null", "c1", "{}"), row_of("b", "\"order\"", "b1", "{}"), commit(2000, 2040)];
    let (mut relay, mut server, sink) = with_dead_letters(&sent);
    let failure = Failure::new(FailureClass::Row, "too_large", "it is too large as well");
    sink.borrow_mut().no_dead_letters = Some(Enqueue::Bad(failure.clone()));
    let ended = relay.stream(&mut server, None);
    let StreamEnd::BadRow(bad) = &ended else { panic!("{ended:?}") };
    assert_eq!((bad.row.id.as_deref(), bad.row.reason.label()), (Some("c1"), "null_route"));
    assert_eq!((bad.position.ordinal, bad.confirmed), (0, Lsn::new(1000)));
    assert_eq!(bad.dead_letter_refused, Some((DEAD.to_owned(), failure)));
    assert_eq!(relay.in_flight(), 1, "the bad row alone");
}

#[test]
fn the_loss_of_a_payload_is_noted_once_however_often_the_dead_letter_is_offered() {
    for transactions in [false, true] {
        let [table, row] = table_and_row(["1", "order", "a", "a1", "never"]);
        let sink = ByKey { transactions, bare: true, no_dead_letters: Some(Enqueue::Full), ..ByKey::default() };
        let (relay, mut server, sink) = with_dead_letters_in(sink, &[begin(2000), table, row, commit(2000, 2040)]);
        server.until = Duration::from_hours(1);
        let noted = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&noted);
        let mut relay = relay.telling(Box::new(move |id| {
            assert_eq!(id, Some("1"));
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        let mut session = Session::new(relay.clock().now(), None, Lsn::new(1000));
        let mut turn = |relay: &mut Relay<_, _>| (0..500).for_each(|_| relay.turn(&mut server, &mut session).unwrap());
        turn(&mut relay);
        assert_eq!((noted.load(Ordering::Relaxed), sink.borrow().delivered.len()), (1, 0), "{transactions}");
        sink.borrow_mut().no_dead_letters = None;
        turn(&mut relay);
        assert_eq!((noted.load(Ordering::Relaxed), sink.borrow().delivered.len()), (1, 1), "{transactions}");
    }
}

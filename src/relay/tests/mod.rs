//! Single cases of the loop. The simulation (`tests/sim`) shows what follows from many of them at once.
//!
//! This file has the cases without records, and the server, clock and messages that all cases use.

use super::*;
use crate::metrics::State;
use crate::outbox::Mapping;
use crate::pg::frame::ReadBuffer;
use crate::pgoutput::{PgTime, Relation, RelationColumn, encode};
use crate::sink::{Enqueue, InFlight, Record, Tag};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Mutex;

mod dead_letters;
mod exactly_once;
mod notes;
mod turns;

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
fn out_of_order(sent: &[Vec<u8>], expected: &str) {
    let ended = relay(Idle::default()).stream(&mut Script::of(sent), None);
    let StreamEnd::Protocol(error) = &ended else { panic!("{ended:?}") };
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_transaction_in_front_of_what_is_confirmed_ends_the_stream_and_not_the_process() {
    let sent = [begin(1000), commit(1000, 1040), keepalive(3000), begin(2000), commit(2000, 2040)];
    out_of_order(&sent, "Begin in front of what has been confirmed, at 0/BB8");
}

#[test]
fn a_transaction_that_ends_in_front_of_its_commit_ends_the_stream_and_not_the_process() {
    out_of_order(&[begin(2000), commit(2000, 1999)], "Commit in front of its own transaction, at 0/0");
}

#[test]
fn a_destinations_problem_is_no_obstacle_while_nothing_is_in_flight() {
    let problem = || Some("broker 1 is down".to_owned());
    let ready = |relay: &mut Relay<Idle, SystemClock>| {
        relay.shown.at = None;
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
struct TestClock(Rc<Cell<Instant>>, Instant);

impl Clock for TestClock {
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

/// A server that sends at a fixed rate.
struct Server {
    buffer: ReadBuffer,
    clock: TestClock,
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

/// A noter whose notes are committed when the test says so.
#[derive(Clone, Default)]
struct TestNoter(Arc<Mutex<(Vec<Option<String>>, u64)>>);

impl TestNoter {
    /// The rows that were handed over.
    fn ids(&self) -> Vec<Option<String>> {
        self.0.lock().unwrap().0.clone()
    }

    /// The notes of the first `rows` rows are committed.
    fn commit(&self, rows: u64) {
        self.0.lock().unwrap().1 = rows;
    }
}

impl NoteSkipped for TestNoter {
    fn note(&mut self, id: Option<&str>) {
        self.0.lock().unwrap().0.push(id.map(str::to_owned));
    }

    fn noted(&mut self) -> u64 {
        self.0.lock().unwrap().1
    }

    fn failure(&mut self) -> Option<Failure> {
        None
    }
}

/// The relay with a noter.
fn noting<S: Sink>(relay: Relay<S, TestClock>) -> (Relay<S, TestClock>, TestNoter) {
    let noter = TestNoter::default();
    (relay.with_notes(Box::new(noter.clone())), noter)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

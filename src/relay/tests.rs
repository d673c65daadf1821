//! Single cases of the loop; what follows from many of them at once is the simulation's (tests/sim).

use super::*;
use crate::config::mapping::Mapping;
use crate::pg::frame::ReadBuffer;
use crate::sink::{Enqueue, InFlight, Pace, Record, Token};

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
            let length = u32::try_from(body.len() + 4).unwrap();
            let frame = [&b"d"[..], &length.to_be_bytes(), body].concat();
            buffer.space()[..frame.len()].copy_from_slice(&frame);
            buffer.filled(frame.len());
        }
        Self { buffer, got: Vec::new() }
    }
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
    trouble: Option<String>,
    in_flight: InFlight,
    /// What is in flight becomes one record less with each poll.
    draining: bool,
}

impl Sink for Idle {
    fn try_enqueue(&mut self, _record: &Record<'_>, _token: Token) -> Enqueue {
        Enqueue::Full
    }

    fn poll(&mut self, _each: &mut dyn FnMut(Delivered)) {
        if self.draining {
            self.in_flight.records -= 1;
        }
    }

    fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    fn ran_dry(&mut self) {}

    fn restart(&mut self, _pace: Pace) -> Result<(), Failure> {
        Ok(())
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.clone()
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
    let Ended::Protocol(error) = &ended else { panic!("{ended:?}") };
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
fn a_destinations_trouble_is_no_obstacle_while_nothing_is_in_flight() {
    let trouble = || Some("broker 1 is down".to_owned());
    let ready = |relay: &mut Relay<Idle, SystemClock>| {
        relay.shown = None;
        relay.idle(Duration::ZERO).unwrap();
        relay.metrics.set_state(State::Streaming);
        relay.metrics.status_sent(Instant::now());
        relay.metrics.ready(Instant::now())
    };
    let mut relay = relay(Idle { trouble: trouble(), ..Idle::default() });
    assert_eq!(ready(&mut relay), Ok(()));
    assert_eq!(relay.metrics.status(Instant::now()).last_error, trouble());
    relay.sink.in_flight.records = 1;
    assert_eq!(ready(&mut relay), Err("broker 1 is down".to_owned()));
    relay.sink.in_flight.records = 0;
    assert_eq!(ready(&mut relay), Ok(()));
}

#[test]
fn what_came_before_a_row_above_the_limit_is_delivered_and_told_first() {
    let mut relay = relay(Idle { in_flight: InFlight { records: 3, bytes: 0 }, draining: true, ..Idle::default() });
    let mut script = Script::of(&[keepalive(3000), vec![0; LIMIT]]);
    let ended = relay.stream(&mut script, None);
    assert!(matches!(ended, Ended::Disconnected(pg::Error::Frame(FrameError::TooLarge { .. }))), "{ended:?}");
    assert_eq!(relay.in_flight(), 0);
    assert_eq!(script.got.last().unwrap()[6..14], 3000_u64.to_be_bytes());
}

//! A row costs no allocation of ours: the real loop takes ten times the rows, and allocates as often as before.
//!
//! The stream is a script and the broker librdkafka's own mock of one, so that everything from the read buffer to librdkafka's door
//! is as in production. librdkafka's own allocations (C) are not counted, rdkafka's in the loop's thread are: it makes a list for
//! each batch of delivery reports.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

#[path = "sim/bytes.rs"]
#[allow(dead_code, reason = "shared with the simulation")]
mod bytes;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use walrelay::lsn::Lsn;
use walrelay::metrics::Metrics;
use walrelay::outbox::{CloudEvents, Mapping, Outbox};
use walrelay::pg::frame::ReadBuffer;
use walrelay::pg::{Error, Upstream};
use walrelay::pgoutput::PgTime;
use walrelay::relay::{Limits, Relay, StreamEnd, SystemClock};
use walrelay::route::TopicSetting;
use walrelay::sink::Sink;
use walrelay::sink::destination::EventBinding;
use walrelay::sink::kafka::{KafkaSettings, KafkaSink};
use walrelay::sink::null::NullSink;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts for each thread.
struct Counting;

#[allow(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: everything is the system allocator's doing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's word is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count() {
    // A thread that ends may have no place for it any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

const RELATION: u32 = 16_384;
const ROWS_PER_TRANSACTION: u64 = 10;
const COLUMNS: [(&str, u32); 6] =
    [("id", 2950), ("aggregatetype", 25), ("aggregateid", 25), ("type", 25), ("payload", 3802), ("headers", 3802)];

/// A server that sends so many transactions, and after that nothing, until everything is confirmed.
struct Script {
    buffer: ReadBuffer,
    /// What is sent again and again, but for the positions: a Begin, its rows, a Commit.
    rows: Vec<u8>,
    transactions: u64,
    sent: u64,
    pending: Vec<u8>,
    stop: Arc<AtomicBool>,
}

impl Script {
    fn of(headers: &str, transactions: u64, stop: &Arc<AtomicBool>) -> Self {
        let payload = format!("{{\"note\": \"{}\"}}", "x".repeat(250));
        let values = [
            Some("7c9446fc-c879-4f44-9977-55ef9a843807"),
            Some("order"),
            Some("order-17"),
            Some("OrderPlaced"),
            Some(payload.as_str()),
            Some(headers),
        ];
        let row = bytes::xlog_data(Lsn::new(1), Lsn::new(1), &bytes::insert(RELATION, &values));
        let relation = bytes::xlog_data(Lsn::new(1), Lsn::new(1), &bytes::relation(RELATION, "outbox", &COLUMNS));
        let mut pending = Vec::with_capacity(1 << 16);
        pending.extend(relation);
        Self {
            buffer: ReadBuffer::new(1 << 20),
            rows: row.repeat(usize::try_from(ROWS_PER_TRANSACTION).unwrap()),
            transactions,
            sent: 0,
            pending,
            stop: Arc::clone(stop),
        }
    }

    /// The next transaction's bytes. Those that change are made here, and are not the relay's to answer for.
    fn refill(&mut self) {
        let before = ALLOCATIONS.get();
        let lsn = |n: u64| Lsn::new(1000 + n * 100);
        let begin = bytes::begin(lsn(self.sent), PgTime(0), 1);
        let commit = bytes::commit(lsn(self.sent), Lsn::new(1050 + self.sent * 100), PgTime(0));
        self.pending.extend(bytes::xlog_data(lsn(self.sent), lsn(self.sent), &begin));
        self.pending.extend_from_slice(&self.rows);
        self.pending.extend(bytes::xlog_data(lsn(self.sent), lsn(self.sent), &commit));
        self.sent += 1;
        ALLOCATIONS.set(before);
    }
}

impl Upstream for Script {
    fn buffer(&self) -> &ReadBuffer {
        &self.buffer
    }

    fn buffer_mut(&mut self) -> &mut ReadBuffer {
        &mut self.buffer
    }

    fn read(&mut self, patience: Duration) -> Result<usize, Error> {
        if self.pending.is_empty() {
            if self.sent == self.transactions {
                self.stop.store(true, Ordering::Relaxed);
                // What a socket does that has nothing to say: the relay would turn without rest.
                std::thread::sleep(patience);
                return Ok(0);
            }
            self.refill();
        }
        let room = self.buffer.space();
        let length = room.len().min(self.pending.len());
        room[..length].copy_from_slice(&self.pending[..length]);
        self.buffer.filled(length);
        self.pending.drain(..length);
        Ok(length)
    }

    fn send(&mut self, _message: &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

/// Streams so many transactions into `sink`; the allocations that the loop's thread made.
fn allocations(sink: impl Sink, transactions: u64) -> u64 {
    allocations_of(Mapping::default(), "{\"trace\": \"0af7651916cd43dd8448eb211c80319c\"}", sink, transactions)
}

/// The same, with rows that have these headers and become records like this.
fn allocations_of(mapping: Mapping, headers: &str, sink: impl Sink, transactions: u64) -> u64 {
    let stop = Arc::new(AtomicBool::new(false));
    let mut script = Script::of(headers, transactions, &stop);
    let mapping = Mapping { topic: TopicSetting::Template("outbox.event.{route}".to_owned()), ..mapping };
    let outbox = Outbox::new(mapping, Vec::new()).unwrap();
    let limits = Limits {
        coalesce: Duration::ZERO,
        shutdown_timeout: Duration::from_mins(1),
        disconnect_after: Duration::from_mins(1),
    };
    let metrics = Arc::new(Metrics::new("slot", "publication", Instant::now()));
    let mut relay = Relay::new(outbox, sink, SystemClock, metrics, stop, limits);
    relay.acquired(Lsn::new(100));
    let before = ALLOCATIONS.get();
    let ended = relay.stream(&mut script, None);
    let made = ALLOCATIONS.get() - before;
    assert!(matches!(ended, StreamEnd::Stopped), "{ended:?}");
    assert_eq!(relay.flush_lsn(), Lsn::new(1050 + (transactions - 1) * 100), "everything is delivered");
    made
}

#[test]
fn the_loop_allocates_as_often_for_ten_thousand_transactions_as_for_one_thousand() {
    let (few, many) = (allocations(NullSink::default(), 1_000), allocations(NullSink::default(), 10_000));
    // What grows by doubling, does so a few times more.
    assert!(few > 0 && many <= few + 16, "{few} for 10,000 rows, {many} for 100,000");
}

#[test]
fn cloud_events_cost_no_allocation_of_a_row_either() {
    let binding = EventBinding { prefix: "ce-", percent_encoded: true };
    let source = || "/shop/größe".to_owned();
    for events in [CloudEvents::binary(source(), binding), CloudEvents::structured(source())] {
        let mapping = || Mapping { cloudevents: Some(events.clone()), ..Mapping::default() };
        let few = allocations_of(mapping(), "{}", NullSink::default(), 1_000);
        let many = allocations_of(mapping(), "{}", NullSink::default(), 10_000);
        assert!(few > 0 && many <= few + 16, "{few} for 10,000 rows, {many} for 100,000: {events:?}");
    }
}

#[test]
fn a_record_reaches_librdkafka_without_an_allocation() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("outbox.event.order", 1, 1).unwrap();
    let sink =
        || KafkaSink::new(KafkaSettings::new(&cluster.bootstrap_servers(), "test", &[], 16 << 20).unwrap()).unwrap();
    let (few, many) = (allocations(sink(), 100), allocations(sink(), 10_100));
    let rows = 10_000 * ROWS_PER_TRANSACTION;
    // A batch of reports costs rdkafka two allocations; how many records it holds is a matter of time. One for each row would be too many.
    assert!(many < few + rows, "{few} for 1,000 rows, {many} for {rows} more");
}

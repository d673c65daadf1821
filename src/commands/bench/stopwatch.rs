//! [`Stopwatch`]: a sink that notes when single rows are acknowledged.
//!
//! In: another sink, to which it gives all records. Out: the time of each row's report, once [`Acknowledged::begin`] was called. The stopwatch
//! knows a row by its header `id`, and a report by its transaction. So each row must have a transaction of its own from then on.

use super::load::row_of;
use crate::sink::{Enqueue, Failure, Record, Report, Sink, Tag, hand_on};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The times that the stopwatch saw, shared with their reader.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    on: AtomicBool,
    rows: Mutex<HashMap<u64, Instant>>,
}

impl Acknowledged {
    /// Rows whose records are enqueued from now on are noted.
    pub(super) fn begin(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    /// When each noted row was acknowledged.
    pub(super) fn rows(&self) -> HashMap<u64, Instant> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }
}

/// A sink that wraps another one.
pub(super) struct Stopwatch<S> {
    sink: S,
    seen: Arc<Acknowledged>,
    /// Rows in flight by their transaction.
    in_flight: HashMap<u32, u64>,
}

impl<S> Stopwatch<S> {
    pub(super) fn new(sink: S, seen: Arc<Acknowledged>) -> Self {
        Self { sink, seen, in_flight: HashMap::new() }
    }
}

impl<S: Sink> Sink for Stopwatch<S> {
    hand_on!(self => self.sink; resolve, in_flight, on_idle, blocked, tried_alone, problem);

    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        let taken = self.sink.try_enqueue(record, tag);
        if self.seen.is_on() && matches!(taken, Enqueue::Taken) {
            let id = record.headers.iter().find(|header| header.name == "id").and_then(|header| header.value);
            if let Some(row) = id.and_then(row_of) {
                self.in_flight.insert(tag.token.transaction, row);
            }
        }
        taken
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        let Self { sink, seen, in_flight } = self;
        sink.poll(&mut |report| {
            if let Report::Delivered(delivered) = &report
                && let Some(row) = in_flight.remove(&delivered.token.transaction)
            {
                seen.rows.lock().unwrap_or_else(PoisonError::into_inner).insert(row, Instant::now());
            }
            each(report);
        });
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.in_flight.clear();
        self.sink.restart()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::null::NullSink;
    use crate::sink::{Content, Header, Origin, Token};

    #[test]
    fn rows_are_noted_once_it_is_on() {
        let seen = Arc::new(Acknowledged::default());
        let mut sink = Stopwatch::new(NullSink::default(), Arc::clone(&seen));
        let mut pass = |row: u64| {
            let id = format!("{row:032x}");
            let headers = [Header { name: "id", value: Some(id.as_bytes()) }];
            let record = Record {
                topic: "t",
                key: None,
                value: None,
                headers: &headers,
                timestamp_millis: 0,
                partition: None,
                content: Content::Unknown,
            };
            let token = Token { transaction: u32::try_from(row).unwrap(), tick: 0, topic: 0 };
            assert!(matches!(sink.try_enqueue(&record, Tag { token, origin: Origin::default() }), Enqueue::Taken));
            sink.poll(&mut |_| {});
        };
        pass(7);
        seen.begin();
        pass(8);
        assert_eq!(seen.rows().keys().collect::<Vec<_>>(), [&8]);
    }
}

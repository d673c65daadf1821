//! A sink whose transactions become spans, in front of the destination's.
//!
//! In: records on their way, and which transactions are delivered. Out: the same, unchanged; and a span for each transaction with a sampled
//! context. What a new start of the sink repeats becomes a span when it is delivered.
//!
//! Invariant: nothing here changes, delays or refuses a record.

use super::pending::Pending;
use super::queue::Queue;
use crate::metrics::{Metrics, SpanOutcome};
use crate::relay::Clock;
use crate::sink::{Enqueue, Failure, Record, Sink, Tag, hand_on};
use std::sync::Arc;
use std::time::Duration;

/// The sink.
#[derive(Debug)]
pub struct Traced<S, C> {
    sink: S,
    clock: C,
    pending: Pending,
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
}

impl<S, C> Traced<S, C> {
    pub(super) fn new(sink: S, clock: C, queue: Arc<Queue>, metrics: Arc<Metrics>) -> Self {
        Self { sink, clock, pending: Pending::default(), queue, metrics }
    }
}

impl<S: Sink, C: Clock> Sink for Traced<S, C> {
    hand_on!(sink: poll, resolve, in_flight, on_idle, blocked, problem, reach, lanes, transaction_timeout, init_transactions, commit, abandon);

    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        let outcome = self.sink.try_enqueue(record, tag);
        if matches!(outcome, Enqueue::Taken) && self.pending.taken(record, tag.token, || self.clock.wall()) {
            self.metrics.spans(SpanOutcome::Dropped, 1);
        }
        outcome
    }

    fn settled(&mut self, transaction: u32, latency: Duration) {
        self.sink.settled(transaction, latency);
        if let Some(span) = self.pending.settled(transaction, latency, || self.clock.wall())
            && !self.queue.push(span)
        {
            self.metrics.spans(SpanOutcome::Dropped, 1);
        }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.pending.forget();
        self.sink.restart()
    }
}

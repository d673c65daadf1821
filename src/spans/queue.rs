//! Spans that wait to be exported, between the relay's thread and the exporter's.
//!
//! In: one span at a time. Out: batches. A span that finds no room is the caller's to count.
//!
//! Invariants: at most [`MOST_QUEUED`] wait, with at most [`ALL_LINKS`] links; [`Queue::push`] waits for nobody but for a lock that is held for a copy of pointers; an idle relay
//! wakes nobody.

use super::pending::{ALL_LINKS, Span};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Spans that wait, at most.
pub(super) const MOST_QUEUED: usize = 8192;

/// Spans of one request, at most: OpenTelemetry's default (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
pub(super) const BATCH: usize = 512;

/// How long a span waits for others.
const GATHERED: Duration = Duration::from_secs(1);

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Span>,
    /// Links of all of them.
    links: usize,
    /// In the batch that is being exported.
    taken: usize,
    is_closed: bool,
}

impl Queue {
    /// Puts a span behind the others, without its links if there are too many. False: there is no room.
    pub(super) fn push(&self, mut span: Span) -> bool {
        let mut state = self.lock();
        if state.is_closed || state.waiting.len() >= MOST_QUEUED {
            return false;
        }
        if state.links + span.links.len() > ALL_LINKS {
            let dropped = u32::try_from(span.links.len()).unwrap_or(u32::MAX);
            span.dropped_links = span.dropped_links.saturating_add(dropped);
            span.links = Vec::new();
        }
        state.links += span.links.len();
        state.waiting.push(span);
        let worth_a_look = [1, BATCH].contains(&state.waiting.len());
        drop(state);
        if worth_a_look {
            self.changed.notify_one();
        }
        true
    }

    /// Waits for the next batch, in the order in which its spans came. The one before counts as dealt with. `None`: it is closed, and empty.
    pub(super) fn next(&self) -> Option<Vec<Span>> {
        let mut state = self.lock();
        state.taken = 0;
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
        state = self.changed.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
        let gathers = |state: &mut State| state.waiting.len() < BATCH && !state.is_closed;
        let waited = self.changed.wait_timeout_while(state, GATHERED, gathers);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.taken = state.waiting.len().min(BATCH);
        let taken = state.taken;
        let batch: Vec<Span> = state.waiting.drain(..taken).collect();
        state.links -= batch.iter().map(|span| span.links.len()).sum::<usize>();
        (taken > 0).then_some(batch)
    }

    /// Waits for `duration`, or until it is closed.
    pub(super) fn pause(&self, duration: Duration) {
        drop(self.changed.wait_timeout_while(self.lock(), duration, |state| !state.is_closed));
    }

    /// Whether it takes no more.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Takes no more; what waits is still given out, at once.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Spans that wait, or are in the batch given out last.
    pub(super) fn unfinished(&self) -> usize {
        let state = self.lock();
        state.waiting.len() + state.taken
    }

    /// A poisoned mutex still holds whole values.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::context::Context;
    use super::super::pending::MOST_LINKS;
    use super::*;
    use crate::pgoutput::PgTime;
    use std::thread;

    /// A span of so many records.
    pub(in crate::spans) fn span(records: u32) -> Span {
        Span {
            parent: Context { trace_id: [1; 16], span_id: [2; 8], flags: 1 },
            state: String::new(),
            links: Vec::new(),
            dropped_links: 0,
            topic: Some("order".to_owned()),
            message_id: None,
            records,
            start: PgTime(0),
            end: PgTime(1000),
            latency: Duration::from_millis(5),
        }
    }

    fn numbers(batch: Option<Vec<Span>>) -> Vec<u32> {
        batch.unwrap().iter().map(|span| span.records).collect()
    }

    #[test]
    fn batches_are_bounded_and_keep_the_order() {
        let queue = Queue::default();
        let all = u32::try_from(BATCH).unwrap() + 3;
        assert!((0..all).all(|n| queue.push(span(n))));
        assert_eq!(numbers(queue.next()), (0..all - 3).collect::<Vec<_>>());
        assert_eq!(queue.unfinished(), BATCH + 3, "the batch is not dealt with yet");
        assert_eq!(numbers(queue.next()), (all - 3..all).collect::<Vec<_>>(), "the rest, after a pause for company");
        assert_eq!(queue.unfinished(), 3);
    }

    #[test]
    fn what_finds_no_room_is_refused() {
        let queue = Queue::default();
        assert!((0..MOST_QUEUED).all(|_| queue.push(span(1))));
        assert!(!queue.push(span(1)));
        queue.next();
        assert!(queue.push(span(1)));
    }

    #[test]
    fn links_beyond_the_bound_are_dropped_and_counted() {
        let queue = Queue::default();
        let linked = || Span { links: vec![span(1).parent; MOST_LINKS], ..span(1) };
        assert!((0..ALL_LINKS / MOST_LINKS).all(|_| queue.push(linked())) && queue.push(linked()));
        while queue.unfinished() > BATCH {
            let batch = queue.next().unwrap();
            let is_last = queue.lock().waiting.is_empty();
            let kept: Vec<(usize, u32)> = batch.iter().map(|span| (span.links.len(), span.dropped_links)).collect();
            assert_eq!(kept.contains(&(0, 128)), is_last, "{kept:?}");
        }
        assert_eq!(queue.lock().links, 0);
        assert!(queue.push(linked()) && queue.lock().links == MOST_LINKS);
    }

    #[test]
    fn closed_it_gives_out_what_waits_takes_no_more_and_ends_every_wait() {
        let queue = Queue::default();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.next());
            queue.push(span(4));
            queue.close();
            assert_eq!(numbers(waiting.join().unwrap()), [4]);
        });
        assert!(!queue.push(span(5)));
        assert!(queue.next().is_none());
        queue.pause(Duration::from_hours(1));
        assert!(queue.is_closed());
    }
}

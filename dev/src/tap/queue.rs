//! The bytes that are under way in one direction of a connection.
//!
//! In: pieces, each with the time it came. Out: the same pieces in the same order. It is bounded in bytes, not in pieces. The
//! bound grows with the distance, at a rate that no loopback reaches: so a distance alone never slows a sender down, and a direction that
//! is stalled still pushes back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The bound without any distance, in bytes.
const ROOM: usize = 1 << 20;

/// How many more bytes fit for each microsecond of distance: 8 GB a second.
const ROOM_PER_MICROSECOND: usize = 8000;

/// Between the thread that reads and the one that writes.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<Held>,
    changed: Condvar,
}

/// The bytes lie in one ring, which grows to what was under way at most: new memory for each piece costs more than the
/// rest of a tap.
#[derive(Debug, Default)]
struct Held {
    /// When each piece came, and its length.
    pieces: VecDeque<(Instant, usize)>,
    bytes: VecDeque<u8>,
    /// No more pieces come, or no thread takes them.
    ended: bool,
}

/// How many bytes fit over that distance.
pub(super) fn room(distance: Duration) -> usize {
    let more = usize::try_from(distance.as_micros()).unwrap_or(usize::MAX).saturating_mul(ROOM_PER_MICROSECOND);
    ROOM.saturating_add(more)
}

impl Queue {
    /// Waits until there is room and adds a piece, which came before the wait. Returns false if no thread takes pieces any more.
    pub(super) fn push(&self, piece: &[u8], room: usize) -> bool {
        let came = Instant::now();
        let full = |held: &mut Held| held.bytes.len() >= room && !held.ended;
        let mut held = self.state.lock();
        self.changed.wait_while(&mut held, full);
        if held.ended {
            return false;
        }
        held.bytes.extend(piece);
        held.pieces.push_back((came, piece.len()));
        drop(held);
        self.changed.notify_all();
        true
    }

    /// Waits for the next piece and says when it came; `None`: there is none left, and none comes.
    pub(super) fn next(&self) -> Option<Instant> {
        let empty = |held: &mut Held| held.pieces.is_empty() && !held.ended;
        let mut held = self.state.lock();
        self.changed.wait_while(&mut held, empty);
        held.pieces.front().map(|(came, _)| *came)
    }

    /// Takes the next piece into `into`, and the pieces behind it that came until `until`, up to `most` bytes.
    pub(super) fn take(&self, until: Instant, most: usize, into: &mut Vec<u8>) {
        into.clear();
        let mut held = self.state.lock();
        let mut count = 0;
        while let Some((came, length)) = held.pieces.front().copied()
            && (count == 0 || (came <= until && count + length <= most))
        {
            count += length;
            held.pieces.pop_front();
        }
        let (front, back) = held.bytes.as_slices();
        let split = count.min(front.len());
        into.extend_from_slice(front.get(..split).unwrap_or_default());
        into.extend_from_slice(back.get(..count - split).unwrap_or_default());
        drop(held.bytes.drain(..count));
        drop(held);
        self.changed.notify_all();
    }

    /// Nothing more is added; what is there can be taken.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Nothing more is added, and what is there is gone.
    pub(super) fn drop_all(&self) {
        *self.state.lock() = Held { ended: true, ..Held::default() };
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    fn taken(queue: &Queue, until: Instant, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        queue.take(until, most, &mut bytes);
        bytes
    }

    #[test]
    fn pieces_come_out_in_their_order_and_the_end_behind_them() {
        let queue = Queue::default();
        assert!(queue.push(&[1], ROOM));
        let first = queue.next().unwrap();
        assert!(queue.push(&[2, 3], ROOM) && queue.push(&[4], ROOM));
        queue.end();
        assert_eq!(taken(&queue, first, 10), [1]);
        assert_eq!(taken(&queue, Instant::now(), 10), [2, 3, 4]);
        assert!(queue.next().is_none());
        assert!(!queue.push(&[5], ROOM));
    }

    #[test]
    fn no_more_is_taken_than_asked_for_but_always_a_piece() {
        let queue = Queue::default();
        assert!(queue.push(&[1; 8], ROOM) && queue.push(&[2; 3], ROOM));
        assert_eq!(taken(&queue, Instant::now(), 4), [1; 8]);
        assert_eq!(taken(&queue, Instant::now(), 4), [2; 3]);
    }

    #[test]
    fn a_full_queue_waits_until_a_piece_is_taken() {
        let queue = Arc::new(Queue::default());
        assert!(queue.push(&[0; 8], 8));
        let theirs = Arc::clone(&queue);
        let waiting = thread::spawn(move || theirs.push(&[1], 8));
        assert_eq!(taken(&queue, Instant::now(), 8).len(), 8);
        assert!(waiting.join().unwrap());
        assert_eq!(taken(&queue, Instant::now(), 8), [1]);
    }

    #[test]
    fn many_small_pieces_fit_as_well_as_few_large_ones() {
        let queue = Queue::default();
        for _ in 0..100_000 {
            assert!(queue.push(&[0; 10], ROOM));
        }
        assert!(room(Duration::from_millis(20)) > 100 * ROOM);
    }
}

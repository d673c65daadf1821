//! [`Pool`]: buffers for waiting records, used again and again.
//!
//! Invariants: free buffers take at most [`KEPT_BYTES`]; a record gets no buffer of more than four times the bytes that it needs, or twice
//! [`SMALLEST`]. So waiting records take no more than a few times the bytes that they count for.

use crate::sink::OwnedRecord;

/// The most bytes of free buffers: enough for thousands of short records, which wait while a live stream's partitions wait for answers.
const KEPT_BYTES: usize = 4 << 20;

/// A larger buffer is not kept, since few records need it.
const LARGEST: usize = 64 << 10;

/// Buffers up to this size are in one list.
const SMALLEST: usize = 256;

/// How many powers of two there are from [`SMALLEST`] to [`LARGEST`].
const SIZES: usize = 9;

const _: () = assert!(SMALLEST << (SIZES - 1) == LARGEST);

/// The free buffers.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// The buffers by size: a list has those up to its power of two, and above the one before.
    free: [Vec<OwnedRecord>; SIZES],
    bytes: usize,
}

/// The list for buffers of so many bytes. A number beyond the last list: none.
fn list(bytes: usize) -> usize {
    let size = bytes.max(SMALLEST).checked_next_power_of_two().unwrap_or(usize::MAX);
    usize::try_from(size.ilog2() - SMALLEST.ilog2()).unwrap_or(SIZES)
}

impl Pool {
    /// Takes a buffer for a record that needs so many bytes: a used one of that size, or of the next one, since buffers grow while they are
    /// filled; or else a new one.
    pub(super) fn take(&mut self, bytes: usize) -> OwnedRecord {
        let mut lists = self.free.iter_mut().skip(list(bytes)).take(2);
        let record = lists.find_map(Vec::pop).unwrap_or_default();
        self.bytes -= record.room_bytes();
        record
    }

    /// Keeps a used buffer, or drops it if there is no room.
    pub(super) fn keep(&mut self, record: OwnedRecord) {
        let bytes = record.room_bytes();
        if self.bytes + bytes <= KEPT_BYTES
            && let Some(list) = self.free.get_mut(list(bytes))
        {
            self.bytes += bytes;
            list.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Clients, NotTaken, PartitionTarget, Partitions, RECORD_OVERHEAD_BYTES, Ticket};
    use super::*;
    use crate::sink::{Content, Enqueue, Origin, Record, Tag, Token};
    use std::time::Instant;

    fn record(value: &[u8]) -> Record<'_> {
        Record {
            topic: "orders",
            key: None,
            value: Some(value),
            headers: &[],
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        }
    }

    fn owned(bytes: usize) -> OwnedRecord {
        OwnedRecord::of(&record(&vec![7; bytes]))
    }

    #[test]
    fn what_is_kept_is_given_again_and_is_bounded() {
        let mut pool = Pool::default();
        pool.keep(owned(1000));
        assert!(pool.take(1000).room_bytes() >= 1000);
        assert_eq!((pool.bytes, pool.take(1000).room_bytes()), (0, 0));
        pool.keep(owned(LARGEST + 1));
        assert_eq!(pool.bytes, 0);
        (0..200).for_each(|_| pool.keep(owned(50_000)));
        assert!(pool.bytes <= KEPT_BYTES && pool.bytes > KEPT_BYTES - 60_000);
        while pool.bytes > 0 {
            pool.take(50_000);
        }
        assert!(pool.free.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_buffer_fits_what_it_is_given_for() {
        for needed in [0, 1, 100, SMALLEST, SMALLEST + 1, 1000, 5000, LARGEST - 8, LARGEST, usize::MAX] {
            for bytes in [1, 100, 300, 1000, 3000, 20_000, LARGEST - 8] {
                let mut pool = Pool::default();
                pool.keep(owned(bytes));
                // What was filled once has grown to less than twice what it had.
                let fits = (needed..2 * needed.min(LARGEST)).contains(&pool.bytes);
                let room = pool.take(needed).room_bytes();
                assert!(room <= needed.saturating_mul(4).max(2 * SMALLEST), "{room} bytes for {needed}");
                assert!(room > 0 || !fits, "one of {bytes} was not used for {needed}");
            }
        }
    }

    /// Takes everything.
    #[derive(Default)]
    struct Taker(Vec<Ticket>);

    impl Clients for Taker {
        fn hand_over(&mut self, _: PartitionTarget, _: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
            self.0.push(ticket);
            Ok(())
        }

        fn collect(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
            self.hand_over(target, record, ticket)
        }

        fn send_collected(&mut self) {}

        fn request_bytes(&self) -> u64 {
            u64::MAX
        }
    }

    /// One partition is stuck with short records, while long ones wait and leave in another.
    #[test]
    fn what_waits_takes_no_more_room_than_it_counts_for_whatever_waited_before() {
        let (mut partitions, mut taker, now) = (Partitions::default(), Taker::default(), Instant::now());
        let tag = Tag { token: Token::unpack(0), origin: Origin::default() };
        let [stuck, busy] = [0, 1]
            .map(|producer| partitions.add(PartitionTarget { topic: 0, partition: producer.into(), producer }, now));
        let long = vec![7; 60_000];
        partitions.enqueue(stuck, &record(b"short"), tag, now, &mut taker);
        taker.0.clear();
        for _ in 0..1000 {
            for _ in 0..2 {
                assert!(matches!(partitions.enqueue(busy, &record(&long), tag, now, &mut taker), Enqueue::Taken));
            }
            for _ in 0..2 {
                for ticket in taker.0.drain(..) {
                    partitions.delivered(ticket, now);
                }
                partitions.advance(now, &mut taker, &mut |_| {});
            }
            partitions.producer_renewed(1, now);
            partitions.enqueue(stuck, &record(b"short"), tag, now, &mut taker);
        }
        let queues = partitions.list.iter().map(|partition| &partition.queue);
        let (waiting, room) = queues
            .flatten()
            .fold((0, 0), |(waiting, room), queued| (waiting + 1_u64, room + queued.record.room_bytes() as u64));
        assert_eq!(waiting, 1000);
        let counted = partitions.in_flight().bytes + waiting * RECORD_OVERHEAD_BYTES;
        assert!(room <= counted, "{room} bytes, and {counted} count");
    }
}

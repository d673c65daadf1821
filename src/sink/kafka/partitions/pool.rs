//! Buffers that records wait in, used again and again.
//!
//! Invariant: what is kept free takes at most [`KEPT_BYTES`].

use crate::sink::OwnedRecord;

/// Enough for what waits for answers of a live stream's partitions: thousands of short records.
const KEPT_BYTES: usize = 4 << 20;

/// A larger one is not kept: few records need it.
const LARGEST: usize = 64 << 10;

/// What is free.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Vec<OwnedRecord>,
    bytes: usize,
}

impl Pool {
    /// A buffer: one that was used before, if there is any.
    pub(super) fn take(&mut self) -> OwnedRecord {
        let record = self.free.pop().unwrap_or_default();
        self.bytes -= record.room_bytes();
        record
    }

    /// Keeps a buffer that is not needed any more, or drops it.
    pub(super) fn keep(&mut self, record: OwnedRecord) {
        let bytes = record.room_bytes();
        if bytes <= LARGEST && self.bytes + bytes <= KEPT_BYTES {
            self.bytes += bytes;
            self.free.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Content, Record};

    fn owned(bytes: usize) -> OwnedRecord {
        let value = vec![7; bytes];
        OwnedRecord::of(&Record {
            topic: "orders",
            key: None,
            value: Some(&value),
            headers: &[],
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        })
    }

    #[test]
    fn what_is_kept_is_given_again_and_is_bounded() {
        let mut pool = Pool::default();
        pool.keep(owned(1000));
        assert!(pool.take().room_bytes() >= 1000);
        assert_eq!((pool.bytes, pool.take().room_bytes()), (0, 0));
        pool.keep(owned(LARGEST + 1));
        assert_eq!(pool.bytes, 0);
        (0..200).for_each(|_| pool.keep(owned(50_000)));
        assert!(pool.bytes <= KEPT_BYTES && pool.bytes > KEPT_BYTES - 60_000);
        while pool.bytes > 0 {
            pool.take();
        }
        assert!(pool.free.is_empty());
    }
}

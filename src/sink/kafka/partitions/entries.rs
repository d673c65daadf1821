//! [`Entries`]: an [`RecordEntry`] for each record in flight, found by its [`Ticket`].
//!
//! In: a taken record. Out: a ticket that fits into librdkafka's opaque pointer, and later, once, the entry. The memory of entries is used
//! again, the most recent first: a record costs no allocation.
//!
//! While a backlog drains, thousands of records are in flight, and their reports come in another order: each look-up misses the cache. So
//! an entry is one cache line, a new entry is written without reading the old one, and the entries of a batch are loaded together.
//!
//! Invariant: a ticket is redeemed once. A second report for one record is a mistake of this program, and ends the process.

use crate::sink::{Record, Tag};

/// The number of a record in flight: its entry's index, and how often that was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    index: u32,
    generation: u32,
}

impl Ticket {
    /// The ticket as one integer.
    pub const fn pack(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The ticket that [`Ticket::pack`] made this integer of.
    #[allow(clippy::cast_possible_truncation, reason = "each field takes its own bits")]
    pub const fn unpack(packed: u64) -> Self {
        Self { index: packed as u32, generation: (packed >> 32) as u32 }
    }
}

/// The entry of a record in flight. It is packed, so that four bytes of its cache line are left for a [`EntrySlot`]'s generation.
#[derive(Debug, Clone, Copy)]
#[repr(Rust, packed(4))]
pub(super) struct RecordEntry {
    pub(super) tag: Tag,
    /// The record's time. librdkafka gives a failed record back without it.
    pub(super) timestamp_millis: i64,
    /// The index of the record's partition.
    pub(super) at: u32,
    /// Whether the row asked for that partition. librdkafka returns each failed record with a partition.
    pub(super) by_row: bool,
    pub(super) sequence: Sequence,
    /// The bytes of key and value.
    pub(super) bytes: u32,
    /// The bytes that count for the limit of records in flight.
    pub(super) memory: u32,
}

/// The number of a record in its partition, modulo 2^32. Fewer than 2^31 records are in flight, so two of their numbers have an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sequence(u32);

impl Sequence {
    pub(super) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    pub(super) fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }

    /// The distance from `other` to this number. Negative: this one is before it.
    pub(super) fn distance_from(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }
}

/// The bytes of a record, as an entry has them. No row of Postgres comes near 2^32.
pub(super) fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A slot for an entry. The entry is in use if `generation` is that of its ticket.
#[derive(Debug)]
#[repr(align(64))]
struct EntrySlot {
    generation: u32,
    entry: RecordEntry,
}

const _: () = assert!(size_of::<EntrySlot>() == 64, "an entry is one cache line");

/// The entries of all records in flight.
#[derive(Debug, Default)]
pub(super) struct Entries {
    slots: Vec<EntrySlot>,
    /// The next tickets of free slots.
    free: Vec<Ticket>,
}

impl RecordEntry {
    /// The entry of a record for the partition with this index, which is number `sequence` there.
    #[inline]
    pub(super) fn new(record: &Record<'_>, tag: Tag, at: u32, sequence: Sequence) -> Self {
        Self {
            tag,
            timestamp_millis: record.timestamp_millis,
            at,
            by_row: record.partition.is_some(),
            sequence,
            bytes: size(record.bytes()),
            memory: size(record.held_bytes()),
        }
    }
}

impl Entries {
    /// Adds an entry.
    ///
    /// # Panics
    /// With 2^32 records in flight.
    pub(super) fn add(&mut self, entry: RecordEntry) -> Ticket {
        let Some(ticket) = self.free.pop() else {
            let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            assert!(index < u32::MAX, "too many records in flight");
            self.slots.push(EntrySlot { generation: 0, entry });
            return Ticket { index, generation: 0 };
        };
        let Some(slot) = self.slots.get_mut(ticket.index as usize) else { panic!("a free slot outside the entries") };
        *slot = EntrySlot { generation: ticket.generation, entry };
        ticket
    }

    /// Whether all these records are in flight. This loads their entries into the cache together, which costs less than one by one.
    pub(super) fn have(&self, tickets: impl Iterator<Item = Ticket>) -> bool {
        tickets.fold(true, |all, ticket| all & self.slots.get(ticket.index as usize).is_some_and(|it| it.is(ticket)))
    }

    /// The entry of a ticket.
    ///
    /// # Panics
    /// The ticket was redeemed before.
    pub(super) fn get(&self, ticket: Ticket) -> &RecordEntry {
        let Some(slot) = self.slots.get(ticket.index as usize).filter(|slot| slot.is(ticket)) else {
            panic!("a record that is not in flight")
        };
        &slot.entry
    }

    /// The entry of a ticket, to change it.
    ///
    /// # Panics
    /// The ticket was redeemed before.
    pub(super) fn get_mut(&mut self, ticket: Ticket) -> &mut RecordEntry {
        let Some(slot) = self.slots.get_mut(ticket.index as usize).filter(|slot| slot.is(ticket)) else {
            panic!("a record that is not in flight")
        };
        &mut slot.entry
    }

    /// Redeems a ticket: removes the entry.
    ///
    /// # Panics
    /// The ticket was redeemed before.
    pub(super) fn take(&mut self, ticket: Ticket) -> RecordEntry {
        let Some(slot) = self.slots.get_mut(ticket.index as usize).filter(|slot| slot.is(ticket)) else {
            panic!("a second report for one record")
        };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(Ticket { index: ticket.index, generation: slot.generation });
        slot.entry
    }
}

impl EntrySlot {
    #[inline]
    fn is(&self, ticket: Ticket) -> bool {
        self.generation == ticket.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Origin, Token};

    fn entry(bytes: u32) -> RecordEntry {
        let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
        RecordEntry { tag, timestamp_millis: 7, at: 0, by_row: false, sequence: Sequence::default(), bytes, memory: 2 }
    }

    #[test]
    fn room_is_used_again_under_another_ticket() {
        let mut entries = Entries::default();
        let first = entries.add(entry(1));
        assert_eq!(Ticket::unpack(first.pack()), first);
        assert_eq!(entries.take(first).bytes, 1);
        let second = entries.add(entry(2));
        assert_eq!((second.index, entries.slots.len()), (first.index, 1));
        assert_ne!(first, second);
        assert_eq!(entries.get(second).bytes, 2);
        assert!(entries.have([second].into_iter()));
        assert!(!entries.have([second, first].into_iter()));
        assert!(!entries.have([Ticket { index: 1, generation: 0 }].into_iter()));
    }

    #[test]
    fn records_of_a_partition_keep_their_order_where_the_numbers_begin_again() {
        let last = Sequence(u32::MAX);
        let next = last.next();
        assert!(last.is_before(next) && !next.is_before(last) && !last.is_before(last));
        let mut found = [next.next(), last, next];
        found.sort_unstable_by_key(|sequence| sequence.distance_from(last));
        assert_eq!(found, [last, next, next.next()]);
    }

    #[test]
    #[should_panic(expected = "a second report for one record")]
    fn a_ticket_is_redeemed_once() {
        let mut entries = Entries::default();
        let ticket = entries.add(entry(1));
        entries.take(ticket);
        entries.add(entry(2));
        entries.take(ticket);
    }
}

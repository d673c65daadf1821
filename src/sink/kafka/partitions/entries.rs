//! What is known of each record in flight, found by its ticket.
//!
//! In: a record is taken. Out: a [`Ticket`] that fits into librdkafka's opaque pointer, and later, once, what was noted. Room is used
//! again, most recent first: a record costs no allocation.
//!
//! Thousands are in flight while a backlog drains, and reports come in another order than records went: each look is a look into memory
//! that is far away. So an entry is one cache line, is written without a look at what was there, and a batch's are fetched at once.
//!
//! Invariant: a ticket is redeemed once. A second report for one record is a mistake of ours, and ends the process.

use crate::sink::Tag;
use std::num::NonZeroU32;

/// Names a record in flight: its entry's place, and how often that was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    place: u32,
    generation: u32,
}

impl Ticket {
    /// As one integer.
    pub const fn pack(self) -> u64 {
        (self.generation as u64) << 32 | self.place as u64
    }

    /// Back from [`Ticket::pack`].
    #[allow(clippy::cast_possible_truncation, reason = "each field takes its own bits")]
    pub const fn unpack(packed: u64) -> Self {
        Self { place: packed as u32, generation: (packed >> 32) as u32 }
    }
}

/// What is noted of a record. Packed, so that it leaves room for the four bytes that a [`Slot`] adds.
#[derive(Debug, Clone, Copy)]
#[repr(Rust, packed(4))]
pub(super) struct Entry {
    pub(super) tag: Tag,
    /// The record's time. librdkafka gives a failed record back without it.
    pub(super) timestamp_millis: i64,
    pub(super) chosen: Chosen,
    /// The partition that resumes once it is delivered, where it replaces a record that was refused.
    pub(super) releases: Option<Released>,
    pub(super) sequence: Sequence,
    /// Its bytes of key and value.
    pub(super) bytes: u32,
    /// What it counts for in flight.
    pub(super) held: u32,
}

/// The place of a record's partition, and whether its row names that partition. librdkafka gives each failed record back with a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen(u32);

impl Chosen {
    const BY_ROW: u32 = 1 << 31;

    /// Places are below 2^31.
    pub(super) fn new(at: u32, by_row: bool) -> Self {
        Self(at & !Self::BY_ROW | if by_row { Self::BY_ROW } else { 0 })
    }

    pub(super) fn at(self) -> u32 {
        self.0 & !Self::BY_ROW
    }

    pub(super) fn by_row(self) -> bool {
        self.0 & Self::BY_ROW != 0
    }
}

/// A record's number among those of its partition, modulo 2^32. Fewer than 2^31 of them are in flight, so two of them have an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sequence(u32);

impl Sequence {
    pub(super) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    pub(super) fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }

    /// How far it is behind `other`. Negative: before it.
    pub(super) fn distance_from(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }
}

/// The place of a partition, in a form of which "none" takes no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Released(NonZeroU32);

impl Released {
    /// None for the one place that can't be: there are never so many partitions.
    pub(super) fn new(at: u32) -> Option<Self> {
        NonZeroU32::new(!at).map(Self)
    }

    pub(super) fn at(self) -> u32 {
        !self.0.get()
    }
}

/// Bytes of a record, as an entry notes them: no row of Postgres comes near the bound.
pub(super) fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Room for one: its ticket is out while `generation` is the ticket's.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    generation: u32,
    entry: Entry,
}

const _: () = assert!(size_of::<Slot>() == 64, "an entry is one cache line");

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Entries {
    slots: Vec<Slot>,
    /// The next tickets of places that are free.
    free: Vec<Ticket>,
}

impl Entries {
    /// Notes a record.
    ///
    /// # Panics
    /// With 2^32 records in flight.
    pub(super) fn add(&mut self, entry: Entry) -> Ticket {
        let Some(ticket) = self.free.pop() else {
            let place = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            assert!(place < u32::MAX, "too many records in flight");
            self.slots.push(Slot { generation: 0, entry });
            return Ticket { place, generation: 0 };
        };
        let Some(slot) = self.slots.get_mut(ticket.place as usize) else { panic!("a free place outside the entries") };
        *slot = Slot { generation: ticket.generation, entry };
        ticket
    }

    /// Whether all these records are in flight. Loads their entries into the cache together, which costs less than one by one.
    pub(super) fn have(&self, tickets: impl Iterator<Item = Ticket>) -> bool {
        tickets.fold(true, |all, ticket| all & self.slots.get(ticket.place as usize).is_some_and(|it| it.is(ticket)))
    }

    /// What was noted.
    ///
    /// # Panics
    /// When the ticket was redeemed before.
    pub(super) fn get(&self, ticket: Ticket) -> &Entry {
        let Some(slot) = self.slots.get(ticket.place as usize).filter(|slot| slot.is(ticket)) else {
            panic!("a record that is not in flight")
        };
        &slot.entry
    }

    /// What was noted, to be changed.
    ///
    /// # Panics
    /// When the ticket was redeemed before.
    pub(super) fn get_mut(&mut self, ticket: Ticket) -> &mut Entry {
        let Some(slot) = self.slots.get_mut(ticket.place as usize).filter(|slot| slot.is(ticket)) else {
            panic!("a record that is not in flight")
        };
        &mut slot.entry
    }

    /// Redeems a ticket.
    ///
    /// # Panics
    /// When it was redeemed before.
    pub(super) fn take(&mut self, ticket: Ticket) -> Entry {
        let Some(slot) = self.slots.get_mut(ticket.place as usize).filter(|slot| slot.is(ticket)) else {
            panic!("a second report for one record")
        };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(Ticket { place: ticket.place, generation: slot.generation });
        slot.entry
    }
}

impl Slot {
    #[inline]
    fn is(&self, ticket: Ticket) -> bool {
        self.generation == ticket.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Origin, Token};

    fn entry(bytes: u32) -> Entry {
        let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
        let (chosen, sequence) = (Chosen::new(0, false), Sequence::default());
        Entry { tag, timestamp_millis: 7, chosen, sequence, bytes, held: 2, releases: None }
    }

    #[test]
    fn room_is_used_again_under_another_ticket() {
        let mut entries = Entries::default();
        let first = entries.add(entry(1));
        assert_eq!(Ticket::unpack(first.pack()), first);
        assert_eq!(entries.take(first).bytes, 1);
        let second = entries.add(entry(2));
        assert_eq!((second.place, entries.slots.len()), (first.place, 1));
        assert_ne!(first, second);
        assert_eq!(entries.get(second).bytes, 2);
        assert!(entries.have([second].into_iter()));
        assert!(!entries.have([second, first].into_iter()));
        assert!(!entries.have([Ticket { place: 1, generation: 0 }].into_iter()));
    }

    #[test]
    fn the_place_of_a_partition_comes_back() {
        assert_eq!([0, 1, u32::MAX - 1].map(|at| Released::new(at).map(Released::at)), [0, 1, u32::MAX - 1].map(Some));
    }

    #[test]
    fn a_partition_is_chosen_by_its_row_or_not() {
        for (at, by_row) in [(0, false), (7, true), (u32::MAX >> 1, true), (u32::MAX >> 1, false)] {
            let chosen = Chosen::new(at, by_row);
            assert_eq!((chosen.at(), chosen.by_row()), (at, by_row));
        }
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

//! What is known of each record in flight, found by its ticket.
//!
//! In: a record is taken. Out: a [`Ticket`] that fits into librdkafka's opaque pointer, and later, once, what was noted. Room is used
//! again, most recent first: a record costs no allocation.
//!
//! Invariant: a ticket is redeemed once. A second report for one record is a mistake of ours, and ends the process.

use crate::sink::Tag;

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

/// What is noted of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) tag: Tag,
    /// The place of its partition.
    pub(super) partition: u32,
    /// Rises with each record that is taken.
    pub(super) sequence: u64,
    /// Its bytes of key and value.
    pub(super) bytes: u64,
    /// What it counts for in flight.
    pub(super) held: u64,
    /// The partition that goes on once it is delivered: it stands for a record that was refused there.
    pub(super) releases: Option<u32>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Entries {
    slots: Vec<(u32, Option<Entry>)>,
    free: Vec<u32>,
}

impl Entries {
    /// Notes a record.
    ///
    /// # Panics
    /// With 2^32 records in flight.
    pub(super) fn add(&mut self, entry: Entry) -> Ticket {
        let place = self.free.pop().unwrap_or_else(|| {
            let place = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            assert!(place < u32::MAX, "too many records in flight");
            self.slots.push((0, None));
            place
        });
        let Some((generation, slot)) = self.slots.get_mut(place as usize) else {
            panic!("a free place outside the entries");
        };
        *slot = Some(entry);
        Ticket { place, generation: *generation }
    }

    /// What was noted.
    ///
    /// # Panics
    /// When the ticket was redeemed before.
    pub(super) fn get(&self, ticket: Ticket) -> &Entry {
        let slot = self.slots.get(ticket.place as usize).filter(|(generation, _)| *generation == ticket.generation);
        let Some((_, Some(entry))) = slot else { panic!("a record that is not in flight") };
        entry
    }

    /// What was noted, to be changed.
    ///
    /// # Panics
    /// When the ticket was redeemed before.
    pub(super) fn get_mut(&mut self, ticket: Ticket) -> &mut Entry {
        let slot = self.slots.get_mut(ticket.place as usize).filter(|(generation, _)| *generation == ticket.generation);
        let Some((_, Some(entry))) = slot else { panic!("a record that is not in flight") };
        entry
    }

    /// Redeems a ticket.
    ///
    /// # Panics
    /// When it was redeemed before.
    pub(super) fn take(&mut self, ticket: Ticket) -> Entry {
        let slot = self.slots.get_mut(ticket.place as usize).filter(|(generation, _)| *generation == ticket.generation);
        let taken = slot.and_then(|(generation, entry)| {
            *generation = generation.wrapping_add(1);
            entry.take()
        });
        let Some(entry) = taken else { panic!("a second report for one record") };
        self.free.push(ticket.place);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Origin, Token};

    fn entry(sequence: u64) -> Entry {
        let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
        Entry { tag, partition: 0, sequence, bytes: 1, held: 2, releases: None }
    }

    #[test]
    fn room_is_used_again_under_another_ticket() {
        let mut entries = Entries::default();
        let first = entries.add(entry(1));
        assert_eq!(Ticket::unpack(first.pack()), first);
        assert_eq!(entries.take(first).sequence, 1);
        let second = entries.add(entry(2));
        assert_eq!((second.place, entries.slots.len()), (first.place, 1));
        assert_ne!(first, second);
        assert_eq!(entries.get(second).sequence, 2);
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

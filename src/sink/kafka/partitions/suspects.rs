//! [`Suspects`]: exactly once, the records of a refused batch, until it is known which of them is at fault.
//!
//! A refused batch aborts its transaction, and the stream begins again. In the next transactions, while a record of the batch is under way, its
//! partition has no more under way than a sixteenth of the batch. So the next refused batch is that much smaller, and after a few transactions it
//! is a single record.
//! A transaction may be much longer than a batch, and its time is limited. So the partition's other records go in halves of the batch, in case
//! the broker refuses any batch of that size: for half an hour if no record is refused alone, and else until the transaction is committed.
//!
//! In: refused batches, taken records, commits. Out: how much may be under way with a record, and windows of partitions. Pure.
//! Invariant: a refused batch has records that are in no batch refused before, or it is smaller than each of those that has them all. So the
//! search ends.

use super::Partitions;
use super::entries::Ticket;
use super::partition::WINDOW_HOLDS;
use super::{Event, WIRE_OVERHEAD_BYTES};
use crate::lsn::Position;
use crate::sink::Origin;
use std::time::Instant;

/// A batch is searched in so many parts.
const PARTS: u64 = 16;

/// The records of one refused batch. Records of other partitions between them in the stream count, too: a record without a key may go to
/// another partition the next time.
#[derive(Debug)]
pub(super) struct Suspects {
    first: Position,
    last: Position,
    /// The most bytes under way in a partition while one of them is. A larger record goes alone.
    bytes: u64,
    /// The batch's partition.
    at: u32,
    /// A suspect was refused alone.
    found: bool,
    /// The last of them, or a later record, was taken into the present transaction.
    pub(super) passed: bool,
}

impl Suspects {
    /// A record is taken into the present transaction.
    pub(super) fn taken(&mut self, origin: Origin) {
        self.passed |= origin.position >= self.last;
    }

    fn have(&self, row: Position) -> bool {
        (self.first..=self.last).contains(&row)
    }
}

/// The most bytes that a record's partition may have under way with it, as far as it is among suspects.
#[inline]
pub(super) fn most_with(suspects: &[Suspects], origin: impl Fn() -> Origin) -> u64 {
    if suspects.is_empty() {
        return u64::MAX;
    }
    let row = origin().position;
    suspects.iter().filter(|suspects| suspects.have(row)).map(|suspects| suspects.bytes).min().unwrap_or(u64::MAX)
}

impl Partitions {
    /// A batch of a transaction was refused, and these records may be the cause: a single one is known to be it. `bytes`: those of the
    /// whole batch.
    pub fn refused_in_transaction(&mut self, records: &[Ticket], bytes: u64, now: Instant) {
        let rows = || records.iter().map(|ticket| self.entries.get(*ticket).tag.origin.position);
        let (Some(first), Some(last), [ticket, others @ ..]) = (rows().min(), rows().max(), records) else { return };
        if others.is_empty() {
            self.suspects.iter_mut().filter(|suspects| suspects.have(first)).for_each(|suspects| suspects.found = true);
            return;
        }
        let at = self.partition_of(*ticket);
        // A batch with a suspect is small because of the search, and says nothing about the other records.
        let is_of_search = self.suspects.iter().any(|suspects| suspects.have(first) || suspects.have(last));
        if let Some(partition) = self.list.get_mut(at as usize).filter(|_| !is_of_search) {
            partition.window = Some(((bytes / 2).max(1), now + WINDOW_HOLDS));
        }
        let bytes = (bytes / PARTS).max(1);
        self.suspects.push(Suspects { first, last, bytes, at, found: false, passed: false });
    }

    /// The transaction was committed, so no record in it is at fault. If a record of each refused batch was refused alone, batches may be as
    /// large as before. Otherwise the broker accepts only smaller ones.
    pub fn committed(&mut self) {
        self.trial_committed();
        let passed: Vec<Suspects> = self.suspects.extract_if(.., |suspects| suspects.passed).collect();
        for Suspects { at, .. } in &passed {
            let Some(partition) = self.list.get_mut(*at as usize) else { continue };
            let Some((bytes, _)) = partition.window else { continue };
            let event = (partition.target, Event::SmallerBatches { bytes });
            if passed.iter().all(|it| it.found || it.at != *at) {
                partition.window = None;
            } else if !self.events.contains(&event) {
                self.events.push(event);
            }
        }
    }

    /// The bytes of a record in flight, as a batch has them.
    pub fn bytes_of(&self, ticket: Ticket) -> u64 {
        u64::from(self.entries.get(ticket).memory) + WIRE_OVERHEAD_BYTES
    }
}

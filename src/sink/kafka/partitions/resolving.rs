//! Holds a record that is refused alone, and its partition with it, until the relay decides on it.
//!
//! In: a refusal, its resolution. Out: reports for the relay, dead-letter records instead of refused ones. If the dead-letter record goes
//! to another partition, the records behind the refused one wait until its report.

use super::entries::{RecordEntry, size};
use super::partition::{PartitionState, Queued};
use super::{Clients, Partitions, RecordIndex, WIRE_OVERHEAD_BYTES};
use crate::sink::{Enqueue, Failure, Record, RefusalId, Refused, Report, Resolution, Tag, Token};
use std::time::Instant;

impl Partitions {
    /// Holds the partition: its first record is refused, and stays until it is resolved.
    pub(super) fn hold(&mut self, at: u32, failure: Failure) {
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        assert!(partition.under_way == 0, "a partition is held while something of it is under way");
        let Some(front) = partition.queue.front() else {
            partition.goes_on(PartitionState::Unproven);
            return;
        };
        self.refusals += 1;
        let id = RefusalId(self.refusals);
        let refused = Refused {
            id,
            tag: self.entries.get(front.ticket).tag,
            record: front.record.clone(),
            failure: failure.clone(),
        };
        partition.state = PartitionState::Held { failure };
        self.held.insert(id, at);
        self.reports.push(Report::Refused(Box::new(refused)));
        self.list_it(at);
    }

    /// Applies the relay's decision on a refused record. `to`: the partition of the record that takes its place.
    pub fn resolve(
        &mut self,
        id: RefusalId,
        resolution: Resolution<'_>,
        to: u32,
        now: Instant,
        clients: &mut impl Clients,
    ) -> Enqueue {
        let Some(at) = self.held.get(&id).copied() else { return Enqueue::Taken };
        match resolution {
            Resolution::Retry => {
                self.held.remove(&id);
                self.retry(at, now);
            }
            Resolution::Skip => {
                self.held.remove(&id);
                self.skip(at, now);
            }
            Resolution::ReplaceWith(record, token) if to == at => {
                self.held.remove(&id);
                self.replace_in_place(at, record, token);
            }
            Resolution::ReplaceWith(record, token) => return self.replace(id, at, record, token, to, now, clients),
        }
        Enqueue::Taken
    }

    fn retry(&mut self, at: u32, now: Instant) {
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        let PartitionState::Held { failure } = std::mem::replace(&mut partition.state, PartitionState::Unproven) else {
            return;
        };
        partition.search.suspects = partition.search.suspects.max(1);
        partition.search.refused_bytes = 0;
        partition.rest(now, failure);
    }

    /// Gives up the first record.
    fn skip(&mut self, at: u32, now: Instant) {
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        let Some(Queued { ticket, record, .. }) = partition.queue.pop_front() else { return };
        self.pool.keep(record);
        let RecordEntry { memory, sequence, .. } = self.entries.take(ticket);
        partition.resume(now);
        self.uncount(memory);
        self.resume_behind((at, sequence), now);
    }

    /// Lets the partitions go on that wait for this dead-letter record.
    pub(super) fn resume_behind(&mut self, dead_letter: RecordIndex, now: Instant) {
        for (at, _) in self.replaced.extract_if(.., |(_, awaited)| *awaited == dead_letter) {
            self.list.get_mut(at as usize).into_iter().for_each(|partition| partition.resume(now));
        }
    }

    /// Replaces the refused record with a dead-letter record for the same partition.
    fn replace_in_place(&mut self, at: u32, record: &Record<'_>, token: Token) {
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        let Some(front) = partition.queue.front_mut() else { return };
        front.record.set(record);
        let memory = size(record.held_bytes());
        front.bytes = u64::from(memory) + WIRE_OVERHEAD_BYTES;
        let entry = self.entries.get_mut(front.ticket);
        self.in_flight.bytes = self.in_flight.bytes + u64::from(memory) - u64::from(entry.memory);
        (entry.memory, entry.bytes, entry.tag.token) = (memory, size(record.bytes()), token);
        (entry.timestamp_millis, entry.by_row) = (record.timestamp_millis, record.partition.is_some());
        partition.search.suspects = 1;
        partition.search.refused_bytes = 0;
        partition.goes_on(PartitionState::Searching);
    }

    #[allow(clippy::too_many_arguments, reason = "what goes where, in place of what")]
    fn replace(
        &mut self,
        id: RefusalId,
        at: u32,
        record: &Record<'_>,
        token: Token,
        to: u32,
        now: Instant,
        clients: &mut impl Clients,
    ) -> Enqueue {
        let front = self.list.get(at as usize).and_then(|partition| partition.queue.front());
        let Some(ticket) = front.map(|front| front.ticket) else { return Enqueue::Taken };
        let tag = Tag { token, ..self.entries.get(ticket).tag };
        let outcome = self.enqueue(to, record, tag, now, clients);
        let dead_letter = self.list.get(to as usize).map(|partition| (to, partition.taken));
        let (Enqueue::Taken, Some(dead_letter)) = (&outcome, dead_letter) else { return outcome };
        self.held.remove(&id);
        let Some(partition) = self.list.get_mut(at as usize) else { return outcome };
        if let Some(Queued { ticket, record, .. }) = partition.queue.pop_front() {
            self.pool.keep(record);
            let RecordEntry { memory, sequence, .. } = self.entries.take(ticket);
            partition.state = PartitionState::Replaced;
            // If the replaced record is a dead-letter record itself, the partitions that waited for it wait for the new one.
            let waited = self.replaced.iter_mut().filter(|(_, awaited)| *awaited == (at, sequence));
            waited.for_each(|(_, awaited)| *awaited = dead_letter);
            self.replaced.push((at, dead_letter));
            self.uncount(memory);
        }
        outcome
    }
}

//! Keeps records whose partition is not chosen yet, until the cluster has said how many partitions their topic has.
//!
//! ```text
//!  enqueue ──► the topic's partition UNCHOSEN ──┬── a choice ──► the chosen partition's queue
//!                                               └── none is possible ──► held, as any refused record, and then skipped or replaced
//! ```
//!
//! In: records in the order in which they were taken, choices. Out: the same records in other partitions, in the same order.
//! Invariants: a record moves with its ticket and its tag, and is counted once; of two records for one partition, the first one taken is
//! the first one there, since later records wait here as long as earlier ones do.

use super::Partitions;
use super::partition::{PartitionState, Queued};
use crate::sink::{Failure, HeaderRoom, Record};
use std::collections::VecDeque;

/// The records that wait for a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// No record waits.
    Nothing,
    /// Records wait, and the first one is refused already: the relay decides on it, or its dead-letter record is under way.
    Decided,
    /// Records wait. The first one asks for this partition, if it asks for one.
    For(Option<i32>),
}

impl Partitions {
    /// The records that wait in the partition `at`, which is an [`UNCHOSEN`](super::UNCHOSEN) one.
    pub fn waiting(&self, at: u32) -> Waiting {
        let Some(partition) = self.list.get(at as usize) else { return Waiting::Nothing };
        match (partition.queue.front(), &partition.state) {
            (None, PartitionState::Unchosen) => Waiting::Nothing,
            (Some(front), PartitionState::Unchosen) => Waiting::For(front.record.partition()),
            (_, _) => Waiting::Decided,
        }
    }

    /// Moves the waiting records of `at` to the partitions that `choose` returns. Those for which it returns none stay, in their order.
    pub fn choose_for_waiting(&mut self, at: u32, mut choose: impl FnMut(&Record<'_>, &Self) -> Option<u32>) {
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        if !matches!(partition.state, PartitionState::Unchosen) {
            return;
        }
        partition.obstacle = None;
        let (waiting, mut rest) = (std::mem::take(&mut partition.queue), VecDeque::new());
        let mut room = HeaderRoom::default();
        for queued in waiting {
            match queued.record.with_record(&mut room, |record| choose(record, self)) {
                Some(to) => self.move_to(at, to, queued),
                None => rest.push_back(queued),
            }
        }
        if let Some(partition) = self.list.get_mut(at as usize) {
            partition.queue = rest;
        }
    }

    fn move_to(&mut self, from: u32, to: u32, queued: Queued) {
        let entry = self.entries.get_mut(queued.ticket);
        let Some(partition) = self.list.get_mut(to as usize) else { return };
        partition.taken = partition.taken.next();
        let (before, after) = ((from, entry.sequence), (to, partition.taken));
        (entry.at, entry.sequence) = after;
        if partition.queue.is_empty() {
            // It has waited for long enough.
            partition.queued_at = None;
        }
        partition.queue.push_back(queued);
        let awaited = self.replaced.iter_mut().filter(|(_, awaited)| *awaited == before);
        awaited.for_each(|(_, awaited)| *awaited = after);
        self.list_it(to);
    }

    /// Notes why the waiting records of `at` wait.
    pub fn waits_for(&mut self, at: u32, failure: Failure) {
        if let Some(partition) = self.list.get_mut(at as usize) {
            partition.obstacle = Some(failure);
        }
    }

    /// Refuses the first waiting record of `at`: none of its topic's partitions can take it.
    pub fn refuse_waiting(&mut self, at: u32, failure: Failure) {
        if matches!(self.waiting(at), Waiting::For(_)) {
            self.hold(at, failure);
        }
    }
}

//! Records that are sent alone, since the broker's answer is in no list.
//!
//! In: a partition whose first record is refused alone; deliveries. Out: the pause before the next attempt, and what operators see. Nothing here
//! gives a record up: such an answer is no evidence about its row.
//! At least once, the partition rests until the next attempt, and other partitions go on. Exactly once, an answer aborts the transaction, so that
//! the whole relay waits: the record is remembered over the restart, and is not taken before its time.

use super::Partitions;
use super::entries::{Sequence, Ticket};
use crate::lsn::Position;
use crate::sink::{Failure, Origin, TriedAlone};
use std::time::Instant;

/// A record that is sent alone: the first of its partition.
#[derive(Debug)]
pub(super) struct Trial {
    at: u32,
    sequence: Sequence,
    seen: TriedAlone,
    /// A record of its topic was delivered since the last attempt.
    other_arrived: bool,
}

/// Exactly once, the record whose transactions are aborted.
#[derive(Debug)]
pub(super) struct TransactionTrial {
    seen: TriedAlone,
    /// It is not taken before.
    until: Instant,
    /// It, or a later record, was taken into the present transaction.
    passed: bool,
}

impl TransactionTrial {
    fn row(&self) -> Position {
        self.seen.origin.position
    }
}

impl Partitions {
    /// The partition's first record is refused alone, by an answer that is in no list.
    pub(super) fn try_alone(&mut self, at: u32, failure: Failure, now: Instant) {
        let Self { list, entries, trials, .. } = self;
        let Some(partition) = list.get_mut(at as usize) else { return };
        let Some(front) = partition.queue.front() else { return };
        let entry = entries.get(front.ticket);
        let (sequence, origin) = (entry.sequence, entry.tag.origin);
        trials.retain(|trial| trial.at != at || trial.sequence == sequence);
        let known = trials.iter().position(|trial| trial.at == at).unwrap_or_else(|| {
            let seen = TriedAlone::new(origin, front.record.topic(), &failure, now);
            trials.push(Trial { at, sequence, seen, other_arrived: false });
            trials.len() - 1
        });
        let Some(trial) = trials.get_mut(known) else { return };
        let pause = trial.seen.refused(&failure, std::mem::take(&mut trial.other_arrived));
        partition.rest_alone(now, pause, failure);
    }

    /// A record was delivered while some are sent alone.
    #[cold]
    pub(super) fn arrived(&mut self, at: u32, sequence: Sequence) {
        let topic = |at: u32| self.list.get(at as usize).map(|partition| partition.target.topic);
        let its = topic(at);
        self.trials.retain(|trial| (trial.at, trial.sequence) != (at, sequence));
        for trial in self.trials.iter_mut().filter(|trial| topic(trial.at) == its) {
            trial.other_arrived = true;
        }
    }

    /// Exactly once, a record was refused alone by an answer that is in no list. The transaction is aborted.
    pub fn try_alone_in_transaction(&mut self, ticket: Ticket, topic: &str, failure: &Failure, now: Instant) {
        let origin = self.tag(ticket).origin;
        let mut trial =
            self.transaction_trial.take().filter(|trial| trial.row() == origin.position).unwrap_or_else(|| {
                TransactionTrial { seen: TriedAlone::new(origin, topic, failure, now), until: now, passed: false }
            });
        (trial.until, trial.passed) = (now + trial.seen.refused(failure, false), false);
        self.transaction_trial = Some(trial);
    }

    /// Exactly once, the answer for which the record waits, if it is not its time yet.
    pub fn waits_alone(&self, origin: Origin, now: Instant) -> Option<&Failure> {
        let trial = self.transaction_trial.as_ref()?;
        (trial.row() == origin.position && now < trial.until).then_some(&trial.seen.answer)
    }

    /// Exactly once, notes that a record is taken into the present transaction.
    pub(super) fn passes_trial(&mut self, origin: Origin) {
        if let Some(trial) = &mut self.transaction_trial {
            trial.passed |= origin.position >= trial.row();
        }
    }

    /// Exactly once, the transaction was committed.
    pub(super) fn trial_committed(&mut self) {
        self.transaction_trial = self.transaction_trial.take().filter(|trial| !trial.passed);
    }

    /// Exactly once, notes that the records of the present transaction are forgotten.
    pub(super) fn trial_forgotten(&mut self) {
        self.trials.clear();
        if let Some(trial) = &mut self.transaction_trial {
            trial.passed = false;
        }
    }

    /// The record that is sent alone; of several, the one of the earliest row.
    pub fn tried_alone(&self) -> Option<&TriedAlone> {
        let transaction = self.transaction_trial.as_ref().map(|trial| &trial.seen);
        self.trials.iter().map(|trial| &trial.seen).chain(transaction).min_by_key(|seen| seen.origin.position)
    }
}

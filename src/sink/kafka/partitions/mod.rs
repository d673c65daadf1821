//! [`Partitions`]: decides for each partition which records are sent now, which wait, and which ones a refused record blocks.
//!
//! ```text
//!  enqueue ──┬── may be sent now ──► Clients: the partition's producer ──► reports ──► delivered
//!            └── copied into the partition's queue ──────▲              └──► failed: back into the queue, in front
//! ```
//!
//! A broker may not know a producer in a partition: the producer is new, the broker has forgotten it, or the topic was recreated. The
//! broker then accepts a batch of *any* sequence number. With two requests of such a partition in flight, it may refuse the first and
//! accept the second. If it refuses the first for a while only, librdkafka takes it for delivered, since a later one was, and it is lost.
//! If it refuses the first for good, a later row of the key is in the log before anybody has decided on the earlier one. So:
//!
//! > **Never two requests in flight for a partition that may not know the producer.**
//!
//! The first record of a partition goes alone, and the next ones wait in the partition's queue until its report. That report is a *proof*:
//! from then on librdkafka may pipeline requests, since the broker refuses the batches behind a refused one. After any failure, with another
//! producer, and after a pause, a partition has to be proven again. If several requests wait for their answers for hours, another producer
//! sends them again before the broker forgets the first one. Each partition has its own `PartitionState`, so none waits for another.
//!
//! A topic that is recreated while several requests are in flight has a broker that does not know the producer, all the same. Offsets tell:
//! see `implied`.
//!
//! The *search producer* searches a refused batch for the record at fault, with one request of the partition in flight. It sends
//! halves of the batch, until one record is refused alone. That record and its partition are then held until [`Partitions::resolve`]. If the
//! answer is in no list, the record is not held: it is sent alone again and again, ever more rarely (`trials`).
//!
//! In: records, reports, the time. Out: records to [`Clients`], reports for the relay. It knows neither librdkafka nor a clock.
//! Invariants: see `partition`; each record is reported once; a partition's records go to a single producer, or to the search producer.

mod entries;
mod implied;
mod partition;
mod pool;
mod resolving;
mod searching;
mod suspects;
#[cfg(test)]
mod tests;
mod trials;
mod unchosen;

pub use entries::Ticket;
pub use partition::{PartitionTarget, UNCHOSEN};
pub use unchosen::Waiting;

use super::super::{
    Delivered, Enqueue, Failure, FailureClass, HeaderRoom, InFlight, OwnedRecord, Record, RefusalId, Report, Tag,
};
use entries::{Entries, RecordEntry, Sequence};
use partition::{Partition, PartitionState, Queued, Returned};
use pool::Pool;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use suspects::Suspects;
use trials::{TransactionTrial, Trial};

/// The memory of a record in flight beyond its bytes: its message, its entry, its place in queues. It was measured at around 450 with three
/// short headers. It counts for the limit, so that short records are limited too.
pub const RECORD_OVERHEAD_BYTES: u64 = 512;

/// The most bytes of a record in a request beyond key, value and headers.
const WIRE_OVERHEAD_BYTES: u64 = 64;

/// How often [`Partitions::forgotten`] looks at all partitions.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// The producers, as [`Partitions`] needs them.
pub trait Clients {
    /// Hands a record to the producer that `target` names.
    ///
    /// # Errors
    /// The producer did not take it.
    fn hand_over(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken>;

    /// Adds a record to the next request of the search producer, which [`Clients::send_collected`] sends.
    ///
    /// # Errors
    /// The producer did not take it.
    fn collect(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken>;

    /// Sends the collected records, as one request for each partition.
    fn send_collected(&mut self);

    /// The most bytes of a request of the search producer.
    fn request_bytes(&self) -> u64;
}

/// The reason why a producer did not take a record.
#[derive(Debug)]
pub enum NotTaken {
    /// The producer has ended. Another one will take the record.
    Later,
    /// No producer will ever take the record ([`FailureClass::Row`]), or none before its topic has changed.
    Refused(Failure),
}

/// An event of a partition, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The broker has refused a batch. The search for the record at fault begins.
    Searching {
        /// How many records the search begins with.
        records: usize,
    },
    /// The broker refuses no record alone. From now on the partition's batches are smaller.
    SmallerBatches {
        /// The most bytes of a batch.
        bytes: u64,
    },
    /// The partition has its own producer again.
    SearchEnded,
}

/// A record in flight, by the index of its partition and its number there.
type RecordIndex = (u32, Sequence);

/// All partitions that records went to.
#[derive(Debug, Default)]
pub struct Partitions {
    /// How often [`Partitions::flushed`] was called.
    flushes: u64,
    list: Vec<Partition>,
    entries: Entries,
    in_flight: InFlight,
    pool: Pool,
    room: HeaderRoom,
    refusals: u64,
    /// The partitions that wait for a resolution.
    held: HashMap<RefusalId, u32>,
    /// The partitions in the state `Replaced`, each with the dead-letter record that it waits for.
    replaced: Vec<(u32, RecordIndex)>,
    /// Partitions that [`Partitions::advance`] has to look at: they have waiting records, or are in a state that ends.
    listed: Vec<u32>,
    /// Exactly once: the refused batches, until their records are committed.
    suspects: Vec<Suspects>,
    /// The records that are sent alone, since the broker's answer is in no list.
    trials: Vec<Trial>,
    transaction_trial: Option<TransactionTrial>,
    reports: Vec<Report>,
    events: Vec<(PartitionTarget, Event)>,
    /// When [`Partitions::forgotten`] last looked at all partitions.
    looked: Option<Instant>,
    /// The producers must be flushed: since the last turn, a record was enqueued that must not linger, or a waiting record needs the
    /// reports of earlier ones.
    urgent: bool,
}

impl Partitions {
    /// Notes that the producers are flushed for the sake of live rows: the waiting records should leave as soon as they may.
    pub fn flushed(&mut self) {
        self.flushes += 1;
    }

    /// Adds a partition, and returns its index.
    pub fn add(&mut self, target: PartitionTarget, now: Instant) -> u32 {
        self.list.push(Partition::new(target, now));
        u32::try_from(self.list.len() - 1).unwrap_or(u32::MAX)
    }

    /// The targets of all partitions.
    #[cfg(test)]
    pub(super) fn targets(&self) -> impl Iterator<Item = PartitionTarget> {
        self.list.iter().map(|partition| partition.target)
    }

    /// The index and the target of the partition that a refusal holds.
    pub fn held_at(&self, id: RefusalId) -> Option<(u32, PartitionTarget)> {
        let at = self.held.get(&id).copied()?;
        self.list.get(at as usize).map(|partition| (at, partition.target))
    }

    /// The target of the partition with this index.
    pub fn target(&self, at: u32) -> Option<PartitionTarget> {
        self.list.get(at as usize).map(|partition| partition.target)
    }

    /// The records that were taken and not yet reported.
    #[inline]
    pub fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    /// The records that were taken and not yet reported, with the held ones and those being searched.
    pub fn in_flight_by_state(&self) -> InFlight {
        let mut in_flight = self.in_flight;
        if !self.suspects.is_empty() {
            in_flight.searched = in_flight.records;
        }
        for partition in self.listed.iter().filter_map(|at| self.list.get(*at as usize)) {
            let waiting = partition.queue.len() as u64;
            match partition.state {
                PartitionState::Held { .. } => in_flight.held += waiting,
                PartitionState::Searching if partition.search.suspects > 0 => {
                    in_flight.searched += waiting + u64::from(partition.under_way);
                }
                PartitionState::Unchosen
                | PartitionState::Unproven
                | PartitionState::Proven
                | PartitionState::Draining
                | PartitionState::Resting { .. }
                | PartitionState::Searching
                | PartitionState::Replaced => {}
            }
        }
        in_flight
    }

    /// The failure of a partition that waits for something that passes by itself.
    pub fn blocked(&self) -> Option<&Failure> {
        self.listed.iter().filter_map(|at| self.list.get(*at as usize)).find_map(|partition| match &partition.state {
            PartitionState::Held { failure } => Some(failure).filter(|failure| failure.class != FailureClass::Row),
            // A record is sent again now, or after a pause, or its topic is asked for.
            PartitionState::Unchosen
            | PartitionState::Draining
            | PartitionState::Resting { .. }
            | PartitionState::Searching => partition.obstacle.as_ref(),
            PartitionState::Unproven | PartitionState::Proven | PartitionState::Replaced => None,
        })
    }

    /// Whether the partition sends its next record at once. Records without a key prefer such partitions.
    pub fn is_open(&self, at: u32) -> bool {
        self.list.get(at as usize).is_some_and(|partition| match partition.state {
            PartitionState::Proven => partition.queue.is_empty(),
            PartitionState::Unproven => partition.under_way == 0,
            PartitionState::Unchosen
            | PartitionState::Draining
            | PartitionState::Resting { .. }
            | PartitionState::Searching
            | PartitionState::Held { .. }
            | PartitionState::Replaced => false,
        })
    }

    /// Takes a record for the partition with this index.
    #[inline]
    pub fn enqueue(
        &mut self,
        at: u32,
        record: &Record<'_>,
        tag: Tag,
        now: Instant,
        clients: &mut impl Clients,
    ) -> Enqueue {
        if self.transaction_trial.is_some() {
            self.passes_trial(tag.origin);
        }
        let Self { list, entries, urgent, flushes, suspects, .. } = self;
        let Some(partition) = list.get_mut(at as usize) else { return Enqueue::Full };
        for suspects in suspects.iter_mut() {
            suspects.taken(tag.origin);
        }
        partition.taken = partition.taken.next();
        let entry = RecordEntry::new(record, tag, at, partition.taken);
        let memory = entry.memory;
        let ticket = entries.add(entry);
        let bytes = u64::from(memory) + WIRE_OVERHEAD_BYTES;
        let most = suspects::most_with(suspects, || tag.origin);
        let fits = partition.fits_search(bytes, most);
        // If it waits, the records under way must not linger.
        *urgent |= !fits;
        if partition.queue.is_empty() && fits && partition.may_send(bytes, now, *flushes) {
            match clients.hand_over(partition.target, record, ticket) {
                Ok(()) => {
                    *urgent |= matches!(partition.state, PartitionState::Unproven);
                    partition.sent(bytes, most, now, *flushes);
                    self.count(memory);
                    return Enqueue::Taken;
                }
                Err(NotTaken::Refused(failure)) => {
                    entries.take(ticket);
                    let is_row = failure.class == FailureClass::Row;
                    return if is_row { Enqueue::Bad(failure) } else { Enqueue::Blocked(failure) };
                }
                Err(NotTaken::Later) => partition.state = PartitionState::Draining,
            }
        }
        self.wait(at, record, ticket, bytes);
        self.count(memory);
        Enqueue::Taken
    }

    #[inline]
    fn count(&mut self, memory: u32) {
        self.in_flight.records += 1;
        self.in_flight.bytes += u64::from(memory);
    }

    /// Puts the record into its partition's queue.
    fn wait(&mut self, at: u32, record: &Record<'_>, ticket: Ticket, bytes: u64) {
        let mut owned = self.pool.take(OwnedRecord::needed_bytes(record));
        owned.set(record);
        if let Some(partition) = self.list.get_mut(at as usize) {
            if partition.queue.is_empty() {
                partition.queued_at = Some(self.flushes);
            }
            partition.queue.push_back(Queued { ticket, record: owned, bytes });
        }
        self.list_it(at);
    }

    fn list_it(&mut self, at: u32) {
        if let Some(partition) = self.list.get_mut(at as usize)
            && !std::mem::replace(&mut partition.listed, true)
        {
            self.listed.push(at);
        }
    }

    #[inline]
    fn uncount(&mut self, memory: u32) {
        self.in_flight.records -= 1;
        self.in_flight.bytes -= u64::from(memory);
    }

    /// Loads the entries of records that are about to be reported as delivered.
    ///
    /// # Panics
    /// A record is not in flight.
    pub fn prepare(&self, tickets: impl Iterator<Item = Ticket>) {
        assert!(self.entries.have(tickets), "a second report for one record");
    }

    /// A record was delivered.
    #[inline]
    pub fn delivered(&mut self, ticket: Ticket, now: Instant) -> Delivered {
        let entry = self.entries.take(ticket);
        self.ended(entry, now)
    }

    /// The record with this entry, which has no ticket any more, was delivered.
    fn ended(&mut self, entry: RecordEntry, now: Instant) -> Delivered {
        let RecordEntry { tag, at, sequence, bytes, memory, .. } = entry;
        self.uncount(memory);
        if let Some(partition) = self.list.get_mut(at as usize) {
            partition.answered(u64::from(memory) + WIRE_OVERHEAD_BYTES);
            if partition.delivered.is_before(sequence) {
                partition.delivered = sequence;
            }
            partition.moved = now;
            if !partition.returned.is_empty() {
                overtaken(partition, sequence, &mut self.reports);
            }
            if partition.obstacle.is_some() {
                partition.obstacle = None;
            }
            if matches!(partition.state, PartitionState::Unproven) {
                // The waiting records have waited for a round trip: they leave at once.
                partition.queued_at = None;
            }
            if matches!(partition.state, PartitionState::Unproven | PartitionState::Proven) {
                partition.state = PartitionState::Proven;
            }
        }
        if !self.replaced.is_empty() {
            self.resume_behind((at, sequence), now);
        }
        if !self.trials.is_empty() {
            self.arrived(at, sequence);
        }
        Delivered { token: tag.token, records: 1, bytes: u64::from(bytes) }
    }

    /// A record was not delivered. `record`: the one that librdkafka returns, whose time and partition may differ.
    pub fn failed(&mut self, ticket: Ticket, mut record: OwnedRecord, failure: Failure) {
        let RecordEntry { at, by_row, timestamp_millis, sequence, memory, .. } = *self.entries.get(ticket);
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        record.restore(timestamp_millis, by_row.then_some(partition.target.partition));
        let bytes = u64::from(memory) + WIRE_OVERHEAD_BYTES;
        partition.answered(bytes);
        if sequence.is_before(partition.delivered) {
            self.reports.push(out_of_order(&failure));
        }
        if !matches!(partition.state, PartitionState::Searching) {
            partition.state = PartitionState::Draining;
        }
        let refused = matches!(failure.class, FailureClass::Row | FailureClass::Unlisted);
        let queued = Queued { ticket, record, bytes };
        partition.failed(Returned { sequence, queued, refused }, failure);
        self.list_it(at);
    }

    /// Notes that there is a new producer with this number. The old one still reports its records.
    pub fn producer_renewed(&mut self, producer: u8, now: Instant) {
        for at in 0..self.list.len() {
            let Some(partition) = self.list.get_mut(at).filter(|partition| partition.target.producer == producer)
            else {
                continue;
            };
            if !matches!(partition.state, PartitionState::Searching) {
                partition.moved = now;
            }
            if matches!(partition.state, PartitionState::Unproven | PartitionState::Proven) {
                partition.state =
                    if partition.under_way > 0 { PartitionState::Draining } else { PartitionState::Unproven };
                self.list_it(u32::try_from(at).unwrap_or(u32::MAX));
            }
        }
    }

    /// Finds a partition with several records under way whose broker may soon forget their producer: they must not arrive after that.
    /// Returns its target, and whether the records are the search producer's. A single record is safe, since none follows it before its
    /// report. It looks once a minute.
    pub fn forgotten(&mut self, now: Instant) -> Option<(PartitionTarget, bool)> {
        let looked = *self.looked.get_or_insert(now);
        if now.saturating_duration_since(looked) < LOOK_EVERY {
            return None;
        }
        for at in 0..self.list.len() {
            let Some(partition) = self.list.get_mut(at).filter(|partition| partition.is_forgotten(now)) else {
                continue;
            };
            if partition.under_way > 1 {
                return Some((partition.target, matches!(partition.state, PartitionState::Searching)));
            }
            if matches!(partition.state, PartitionState::Proven) {
                partition.state = PartitionState::Draining;
                self.list_it(u32::try_from(at).unwrap_or(u32::MAX));
            }
        }
        self.looked = Some(now);
        None
    }

    /// The target of the partition that has waited longest for a report, if it has waited for `at_least`.
    pub fn unanswered(&self, at_least: Duration, now: Instant) -> Option<PartitionTarget> {
        let waits = |partition: &&Partition| {
            partition.under_way > 0 && now.saturating_duration_since(partition.moved) >= at_least
        };
        self.list.iter().filter(waits).min_by_key(|partition| partition.moved).map(|partition| partition.target)
    }

    /// Notes that there is a new search producer, which no broker knows yet.
    pub fn search_producer_renewed(&mut self, now: Instant) {
        for partition in &mut self.list {
            if matches!(partition.state, PartitionState::Searching) {
                partition.moved = now;
            }
            partition.search.proven = false;
            partition.search.outdated = partition.search.attempt > 0;
        }
    }

    /// The tag of a record in flight.
    pub fn tag(&self, ticket: Ticket) -> Tag {
        self.entries.get(ticket).tag
    }

    /// Gives a record in flight another time, with which it is sent again.
    pub fn set_time(&mut self, ticket: Ticket, timestamp_millis: i64) {
        self.entries.get_mut(ticket).timestamp_millis = timestamp_millis;
    }

    /// The partition of a record in flight.
    pub fn partition_of(&self, ticket: Ticket) -> u32 {
        self.entries.get(ticket).at
    }

    /// Forgets all records in flight. Their tickets must never be redeemed.
    pub fn forget(&mut self, now: Instant) {
        let Self { list, pool, .. } = self;
        for partition in list.iter_mut() {
            let window = partition.window;
            let queue = std::mem::take(&mut partition.queue);
            for queued in queue {
                pool.keep(queued.record);
            }
            *partition = Partition { window, ..Partition::new(partition.target, now) };
        }
        self.suspects.iter_mut().for_each(|suspects| suspects.passed = false);
        self.trial_forgotten();
        self.entries = Entries::default();
        self.in_flight = InFlight::default();
        self.held.clear();
        self.replaced.clear();
        self.listed.clear();
        self.reports.clear();
        self.events.clear();
    }

    /// Takes the events since the last call, each with its partition.
    pub fn take_events(&mut self) -> Vec<(PartitionTarget, Event)> {
        std::mem::take(&mut self.events)
    }

    /// Hands over the records that may go now, and calls `each` with the reports of refused ones. Returns whether records must not linger:
    /// they had waited, or others wait for their reports.
    pub fn advance(&mut self, now: Instant, clients: &mut impl Clients, each: &mut dyn FnMut(Report)) -> bool {
        let mut index = 0;
        while let Some(at) = self.listed.get(index).copied() {
            self.look_at(at, now, clients);
            let Some(partition) = self.list.get_mut(at as usize) else { break };
            self.urgent |= matches!(partition.state, PartitionState::Replaced);
            let is_plain =
                matches!(partition.state, PartitionState::Unchosen | PartitionState::Unproven | PartitionState::Proven);
            if is_plain && partition.queue.is_empty() && partition.implied.is_empty() {
                partition.listed = false;
                self.listed.swap_remove(index);
            } else {
                index += 1;
            }
        }
        self.reports.drain(..).for_each(each);
        std::mem::take(&mut self.urgent)
    }

    fn look_at(&mut self, at: u32, now: Instant, clients: &mut impl Clients) {
        self.expire_implied(at, now);
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        match &partition.state {
            PartitionState::Unproven | PartitionState::Proven => self.pump(at, now, clients),
            PartitionState::Draining if partition.under_way == 0 => {
                self.drained(at, now);
                self.pump(at, now, clients);
            }
            PartitionState::Resting { until } if now >= *until => {
                partition.state = PartitionState::Searching;
                self.continue_search(at, now, clients);
            }
            PartitionState::Searching if partition.under_way == 0 => self.continue_search(at, now, clients),
            PartitionState::Unchosen
            | PartitionState::Draining
            | PartitionState::Resting { .. }
            | PartitionState::Searching
            | PartitionState::Held { .. }
            | PartitionState::Replaced => {}
        }
    }

    /// Hands records from the queue to the partition's producer, as many as may go.
    fn pump(&mut self, at: u32, now: Instant, clients: &mut impl Clients) {
        let Self { list, entries, pool, room, urgent, flushes, suspects, .. } = self;
        let Some(partition) = list.get_mut(at as usize) else { return };
        while let Some(front) = partition.queue.front() {
            let bytes = front.bytes;
            let most = suspects::most_with(suspects, || entries.get(front.ticket).tag.origin);
            let fits = partition.fits_search(bytes, most);
            *urgent |= !fits;
            if !fits || !partition.may_send(bytes, now, *flushes) {
                break;
            }
            let Some(Queued { ticket, record, .. }) = partition.queue.front() else { break };
            let target = partition.target;
            match record.with_record(room, |record| clients.hand_over(target, record, *ticket)) {
                Ok(()) => {
                    // Records of a backlog may linger in librdkafka, unless the producers were flushed meanwhile.
                    *urgent |=
                        partition.queued_at != Some(*flushes) || matches!(partition.state, PartitionState::Unproven);
                    partition.sent(bytes, most, now, *flushes);
                    partition.queue.pop_front().into_iter().for_each(|queued| pool.keep(queued.record));
                }
                Err(NotTaken::Later) => {
                    partition.state = PartitionState::Draining;
                    return;
                }
                Err(NotTaken::Refused(failure)) => {
                    if partition.under_way == 0 {
                        self.hold(at, failure);
                    }
                    // Otherwise the records under way come first.
                    return;
                }
            }
        }
    }
}

/// A record was delivered while others of its partition have failed. If one of those is an earlier one, it must not be sent behind this one.
#[cold]
fn overtaken(partition: &Partition, delivered: Sequence, reports: &mut Vec<Report>) {
    if partition.returned.iter().any(|returned| returned.sequence.is_before(delivered)) {
        reports.extend(partition.cause.as_ref().map(out_of_order));
    }
}

/// A later record arrived before one that failed. Only a new start from the confirmed position restores the order.
#[cold]
fn out_of_order(failure: &Failure) -> Report {
    let text = format!("a later record was delivered before one that failed: {}", failure.text);
    Report::Failed(Failure::new(FailureClass::Client, failure.reason, text))
}

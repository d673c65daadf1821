//! The client's side of the hand-over: queues the records by their keys, gives batches to the client, and takes the outcome of each record.
//!
//! In: chunks of records, and decisions on refused ones, from the relay's side; outcomes from the client. Out: batches by the rule of
//! [`OrderedQueue`]; reports and empty chunks for the relay's side.
//!
//! Invariant: after a restart, no record from before it is reported.

use super::hand_over::{Decision, DeliveredRun, KEPT_BYTES, Message, SharedState};
use super::{Chunk, Fit, KeyHash, KeyId, OrderedQueue, Stored, TakenRecord};
use crate::sink::{DUPLICATE, Delivered, Failure, FailureClass, OwnedRecord, RefusalId, Refused};
use slab::Slab;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

/// How long a refused or postponed record waits before it is sent again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The client's side of the hand-over: the client takes records from it, and settles each.
#[derive(Debug)]
pub struct Receiver {
    from: UnboundedReceiver<Message>,
    pub(super) shared: Arc<SharedState>,
    generation: u64,
    /// Since a restart, until the client has ended: the relay's thread, which waits for that.
    restarted: Option<SyncSender<()>>,
    chunks: Slab<KeptChunk>,
    queue: OrderedQueue<RecordPlace>,
    refusals: HashMap<RefusalId, (KeyId, Failure)>,
    refusal: u64,
    /// Keys whose first record is tried again, and why it was refused or postponed. A key leaves when that record is delivered, skipped or
    /// replaced.
    obstacles: BTreeMap<KeyId, Failure>,
    /// Records whose number is not below this one were never sent before.
    doubtful: u64,
    /// Keys whose first record is to be tried again, and when.
    pauses: VecDeque<(Instant, KeyId)>,
    runs: VecDeque<DeliveredRun>,
    refused: Vec<Refused>,
    empty: Vec<(Chunk, usize)>,
    /// How many of the next records are taken one at a time.
    alone: usize,
}

/// A chunk of which some records are not settled.
#[derive(Debug)]
struct KeptChunk {
    chunk: Chunk,
    /// How many are not settled.
    left: usize,
}

/// The place of a record in the chunks of the client's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    chunk: u32,
    number: u32,
}

/// The outcome of a record that a client has taken.
#[derive(Debug, Clone)]
pub enum RecordOutcome {
    /// The destination has stored the record.
    Delivered,
    /// The destination has dropped the record as a repeat: it has stored one with the same id.
    Duplicate,
    /// The destination refuses the record, and has not stored the records of its key that follow it in the batch.
    Refused(Failure),
    /// Nobody knows whether the destination has stored the record. It is sent again.
    Unknown,
    /// The destination has not stored the record, and the record is not the cause. It is sent again.
    NotStored,
    /// The destination has no room for records of this key now, but for others. The record is sent again after a pause.
    Later(Failure),
}

fn duplicate() -> Failure {
    let text =
        "the destination has dropped it as a repeat of a record with the same id, and it was sent for the first time"
            .to_owned();
    Failure::new(FailureClass::Row, DUPLICATE, text)
}

impl Receiver {
    pub(super) fn new(from: UnboundedReceiver<Message>, shared: Arc<SharedState>) -> Self {
        Self {
            from,
            shared,
            generation: 0,
            restarted: None,
            chunks: Slab::new(),
            queue: OrderedQueue::default(),
            refusals: HashMap::new(),
            refusal: 0,
            obstacles: BTreeMap::new(),
            doubtful: 0,
            pauses: VecDeque::new(),
            runs: VecDeque::new(),
            refused: Vec::new(),
            empty: Vec::new(),
            alone: 0,
        }
    }

    /// Waits for `something`, and takes over records meanwhile. `None`: the relay has dropped the sink.
    pub async fn while_listening<T>(&mut self, something: impl Future<Output = T>) -> Option<T> {
        let mut something = std::pin::pin!(something);
        loop {
            tokio::select! {
                done = &mut something => return Some(done),
                work = self.next() => work?,
            }
        }
    }

    /// Waits until something has happened on the relay's side, and takes over all that has: there may be more records to take. `None`: the
    /// relay has dropped the sink, and the client ends.
    pub async fn next(&mut self) -> Option<()> {
        let message = match self.pauses.front() {
            None => self.from.recv().await,
            Some((until, _)) => match tokio::time::timeout_at(*until, self.from.recv()).await {
                Ok(message) => message,
                Err(_over) => {
                    self.resume();
                    return Some(());
                }
            },
        };
        self.heed(message?);
        self.take_over();
        Some(())
    }

    /// Takes over all messages that have come.
    fn take_over(&mut self) {
        while let Ok(message) = self.from.try_recv() {
            self.heed(message);
        }
    }

    /// The client has ended, with its connections. The records that it had under way wait again. If the relay's thread waits for this end,
    /// it goes on.
    pub(super) fn client_ended(&mut self) {
        self.take_over();
        self.doubtful = self.queue.pushed();
        self.queue.return_all();
        if let Some(ended) = self.restarted.take() {
            self.shared.client_ended(self.generation);
            // The relay's thread waits for a second at most.
            let _waits = ended.send(()).is_ok();
        }
    }

    /// Whether the relay has asked for a restart, and the client has not ended yet.
    pub(super) fn is_restarted(&self) -> bool {
        self.restarted.is_some()
    }

    /// Lets keys whose pause is over try again.
    fn resume(&mut self) {
        let now = Instant::now();
        while let Some((_, key)) = self.pauses.pop_front_if(|(until, _)| *until <= now) {
            self.queue.resume(key);
        }
        // The records of these keys are not held any more.
        self.publish();
    }

    fn heed(&mut self, message: Message) {
        match message {
            Message::Records(chunk) => {
                let (records, held) = (chunk.len(), self.queue.held());
                let at = self.keep(chunk);
                for number in (0..records).filter_map(|number| u32::try_from(number).ok()) {
                    let place = RecordPlace { chunk: at, number };
                    let Some(record) = self.record(place) else { continue };
                    let hash = KeyHash::of(record.topic(), record.key());
                    let key = self.queue.key(hash);
                    self.queue.push(key, place);
                }
                // A relay that stops waits until all records in flight are held.
                if self.queue.held() > held {
                    self.publish();
                }
            }
            Message::Resolve(id, decision) => self.decide(id, decision),
            Message::Restart { generation, ended } => {
                self.generation = generation;
                self.restarted = Some(ended);
                self.forget();
            }
        }
    }

    fn decide(&mut self, id: RefusalId, decision: Decision) {
        let Some((key, failure)) = self.refusals.remove(&id) else { return };
        let old = match decision {
            Decision::Retry => {
                self.pause(key, failure);
                self.publish();
                return;
            }
            Decision::Skip => self.queue.resolve(key, None),
            Decision::ReplaceWith(mut chunk) => {
                let origin = self.queue.first(key).and_then(|place| Some(self.record(place)?.tag().origin));
                chunk.set_origin(origin.unwrap_or_default());
                let replacement = RecordPlace { chunk: self.keep(chunk), number: 0 };
                self.queue.resolve(key, Some(replacement))
            }
        };
        self.obstacles.remove(&key);
        if let Some(old) = old {
            self.give_back(old);
        }
        self.publish();
    }

    /// Lets the key's first record wait for [`RETRY_AFTER`].
    fn pause(&mut self, key: KeyId, failure: Failure) {
        self.pauses.push_back((Instant::now() + RETRY_AFTER, key));
        self.obstacles.insert(key, failure);
    }

    fn keep(&mut self, chunk: Chunk) -> u32 {
        let at = self.chunks.insert(KeptChunk { left: chunk.len(), chunk });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn give_back(&mut self, place: RecordPlace) {
        let Some(kept) = self.chunks.get_mut(place.chunk as usize) else { return };
        kept.left -= 1;
        if kept.left == 0 {
            let kept = self.chunks.remove(place.chunk as usize);
            self.empty_out(kept.chunk);
        }
    }

    fn empty_out(&mut self, mut chunk: Chunk) {
        let bytes = chunk.bytes();
        chunk.clear(KEPT_BYTES);
        self.empty.push((chunk, bytes));
    }

    fn forget(&mut self) {
        self.queue.clear();
        self.refusals.clear();
        self.obstacles.clear();
        self.pauses.clear();
        self.runs.clear();
        self.refused.clear();
        self.alone = 0;
        for (_, kept) in std::mem::take(&mut self.chunks) {
            self.empty_out(kept.chunk);
        }
        self.publish();
    }

    /// The record at this place.
    pub fn record(&self, place: RecordPlace) -> Option<Stored<'_>> {
        self.chunks.get(place.chunk as usize)?.chunk.get(place.number as usize)
    }

    /// Takes records as [`OrderedQueue::take`] does. Takes none once the hold has run out.
    pub fn take(
        &mut self,
        batch: &mut Vec<TakenRecord<RecordPlace>>,
        most_of_a_key: u32,
        mut fit: impl FnMut(Stored<'_>) -> Fit,
    ) {
        if self.restarted.is_some() || self.shared.is_cut() {
            return;
        }
        let Self { queue, chunks, alone, .. } = self;
        let (is_alone, before) = (*alone > 0, batch.len());
        let mut is_taken = false;
        queue.take(batch, if is_alone { 1 } else { most_of_a_key }, |place| {
            if is_alone && is_taken {
                return Fit::Full;
            }
            let record = chunks.get(place.chunk as usize).and_then(|kept| kept.chunk.get(place.number as usize));
            let fit = record.map_or(Fit::NotThis, &mut fit);
            is_taken |= fit == Fit::Takes;
            fit
        });
        *alone = alone.saturating_sub(batch.len() - before);
    }

    /// Lets so many more of the next records be taken one at a time. A client calls it if one of these records is at fault, and it does not
    /// know which: alone, each gets an answer of its own.
    pub fn take_alone(&mut self, records: usize) {
        self.alone += records;
    }

    /// Whether there are records to take.
    pub fn has_ready(&self) -> bool {
        self.queue.has_ready()
    }

    /// Reports the outcome of a record. The records of a batch are settled in its order. Returns `false`, and does nothing, if an earlier
    /// record of the key was not delivered: then this one is back in the queue with it.
    pub fn settle(&mut self, taken: TakenRecord<RecordPlace>, outcome: &RecordOutcome) -> bool {
        let TakenRecord { key, item, .. } = taken;
        if self.queue.under_way(key) == 0 {
            return false;
        }
        match outcome {
            RecordOutcome::Duplicate if self.is_first_time(taken) => {
                if self.queue.under_way(key) > 1 {
                    // The destination may have stored those behind it, and gets them again.
                    self.doubtful = self.queue.pushed();
                }
                self.queue.refused(key);
                self.refuse(key, item, &duplicate());
            }
            RecordOutcome::Delivered | RecordOutcome::Duplicate => {
                self.queue.delivered(key);
                if !self.obstacles.is_empty() {
                    self.obstacles.remove(&key);
                }
                self.count(item);
                self.give_back(item);
            }
            RecordOutcome::Refused(failure) => {
                self.queue.refused(key);
                self.refuse(key, item, failure);
            }
            RecordOutcome::NotStored => self.queue.returned(key),
            RecordOutcome::Unknown => {
                self.doubtful = self.queue.pushed();
                self.queue.returned(key);
            }
            RecordOutcome::Later(failure) => {
                self.doubtful = self.queue.pushed();
                self.queue.postponed(key);
                self.pause(key, failure.clone());
            }
        }
        true
    }

    /// Whether neither this process nor a relay that had the slot before can have sent the record: then another row has the same id. A
    /// dead-letter record counts as sent before.
    fn is_first_time(&self, taken: TakenRecord<RecordPlace>) -> bool {
        let committed = self.record(taken.item).map(|record| record.tag().origin.final_lsn);
        let alone_from = self.shared.alone_from.load(Ordering::Relaxed);
        taken.number >= self.doubtful
            && !self.queue.is_replacement(taken.key)
            && committed.is_some_and(|lsn| lsn > alone_from)
    }

    /// The first `records` of the key, all under way, have been delivered.
    pub fn delivered(&mut self, key: KeyId, records: usize) {
        for _ in 0..records {
            let Some(item) = self.queue.first(key) else { return };
            self.settle(TakenRecord { key, number: 0, item }, &RecordOutcome::Delivered);
        }
    }

    fn count(&mut self, place: RecordPlace) {
        let Some(record) = self.record(place) else { return };
        let (token, bytes, held_bytes) = (record.tag().token, record.bytes() as u64, record.held_bytes() as u64);
        match self.runs.back_mut().filter(|run| run.delivered.token == token) {
            Some(run) => {
                run.delivered.records += 1;
                run.delivered.bytes += bytes;
                run.held_bytes += held_bytes;
            }
            None => self.runs.push_back(DeliveredRun { delivered: Delivered { token, records: 1, bytes }, held_bytes }),
        }
    }

    #[cold]
    fn refuse(&mut self, key: KeyId, place: RecordPlace, failure: &Failure) {
        let Some(record) = self.record(place) else { return };
        let (tag, record) = (record.tag(), record.with_record(OwnedRecord::of));
        self.refusal += 1;
        let id = RefusalId(self.refusal);
        self.refusals.insert(id, (key, failure.clone()));
        self.refused.push(Refused { id, tag, record, failure: failure.clone() });
    }

    /// Makes what was settled visible to the relay's side.
    pub fn publish(&mut self) {
        let mut back = self.shared.back();
        back.chunks.append(&mut self.empty);
        if back.generation == self.generation {
            back.runs.append(&mut self.runs);
            back.refused.append(&mut self.refused);
            back.held = self.queue.held();
            back.obstacle = self.obstacles.first_key_value().map(|(_, failure)| failure.clone());
        } else {
            self.runs.clear();
            self.refused.clear();
        }
        drop(back);
        self.shared.news.store(true, Ordering::Release);
    }

    /// Sets what all records wait for and what passes by itself. `None`: it has passed.
    pub fn set_blocked(&self, blocked: Option<Failure>) {
        let mut back = self.shared.back();
        back.problem = blocked.as_ref().map(|failure| failure.text.clone());
        back.blocked = blocked;
        back.reached = true;
    }

    /// The client gives up: no record is reported any more before a restart.
    pub fn fail(&self, failure: Failure) {
        let mut back = self.shared.back();
        back.problem = Some(failure.text.clone());
        if back.generation == self.generation {
            back.failed = Some(failure);
        }
        drop(back);
        self.shared.news.store(true, Ordering::Release);
    }
}

//! The client's side of the hand-over: queues the records by their keys, gives batches to the client, and takes the outcome of each record.
//!
//! In: chunks of records, and decisions on refused ones, from the relay's side; outcomes from the client. Out: batches by the rule of
//! [`OrderedQueue`]; reports and empty chunks for the relay's side.
//!
//! Invariant: after a restart, no record from before it is reported.

use super::hand_over::{Decision, DeliveredRun, KEPT_BYTES, Message, SharedState};
use super::suspects::{Room, Suspects, Turn};
use super::{Chunk, Fit, KeyHash, KeyId, OrderedQueue, Stored, TakenRecord};
use crate::sink::destination::CONNECTION;
use crate::sink::{DUPLICATE, Delivered, Failure, FailureClass, Origin, OwnedRecord, RefusalId, Refused};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
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
    queue: OrderedQueue<RecordIndex>,
    refusals: HashMap<RefusalId, KeyRefusal>,
    refusal: u64,
    /// Keys whose first record is tried again, and why it was refused or postponed. A key leaves when that record is delivered, skipped or
    /// replaced.
    obstacles: BTreeMap<KeyId, Failure>,
    /// Records whose number is not below this one were never sent before.
    doubtful: u64,
    /// Keys whose first record is to be tried again, and when. The earliest comes first.
    pauses: BinaryHeap<Reverse<(Instant, KeyId)>>,
    runs: VecDeque<DeliveredRun>,
    refused: Vec<Refused>,
    empty: Vec<(Chunk, usize)>,
    suspects: Suspects,
    /// Something has changed that the relay's side cannot see yet.
    is_changed: bool,
    /// A record was stored since [`Receiver::take_stored`].
    is_stored: bool,
}

/// A refusal that the relay has to decide on.
#[derive(Debug)]
struct KeyRefusal {
    key: KeyId,
    failure: Failure,
    /// The pause, if the relay lets the record be sent again.
    pause: Duration,
}

/// A chunk of which some records are not settled.
#[derive(Debug)]
struct KeptChunk {
    chunk: Chunk,
    /// How many are not settled.
    left: usize,
}

/// The index of a record in the chunks of the client's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordIndex {
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
    /// The destination refuses the record, and has not stored the records of its key that follow it in the batch. If the failure is of the
    /// class [`FailureClass::Unlisted`], this is no refusal: the record, which was alone in its request, is sent alone after a growing pause.
    Refused(Failure),
    /// As [`RecordOutcome::Refused`], but some destinations store the record all the same. If the relay lets it be sent again, the pauses grow.
    RefusedPerhapsStored(Failure),
    /// The record was sent, and no answer says what became of it. It is sent again at once, then after pauses that grow, whatever else succeeds.
    Unanswered,
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
            pauses: BinaryHeap::new(),
            runs: VecDeque::new(),
            refused: Vec::new(),
            empty: Vec::new(),
            suspects: Suspects::default(),
            is_changed: false,
            is_stored: false,
        }
    }

    /// Waits for `something`, and takes over records meanwhile. `None`: the relay has dropped the sink.
    pub(super) async fn while_listening<T>(&mut self, something: impl Future<Output = T>) -> Option<T> {
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
        let message = match self.pauses.peek() {
            None => Ok(self.from.recv().await),
            Some(Reverse((until, _))) => tokio::time::timeout_at(*until, self.from.recv()).await,
        };
        match message {
            Ok(message) => self.heed(message?),
            Err(_over) => self.resume(),
        }
        self.take_over();
        self.publish();
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
        self.publish();
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
        while let Some(Reverse((until, key))) = self.pauses.peek().copied()
            && until <= now
        {
            self.pauses.pop();
            self.queue.resume(key);
        }
        // The records of these keys are not held any more.
        self.is_changed = true;
    }

    /// Ends the pause of the key that goes on first. Returns what was left of it, in whole seconds.
    #[cfg(test)]
    pub(super) fn end_pause(&mut self) -> u64 {
        let Reverse((until, key)) = self.pauses.pop().unwrap();
        self.queue.resume(key);
        self.is_changed = true;
        self.publish();
        (until + Duration::from_millis(500) - Instant::now()).as_secs()
    }

    fn heed(&mut self, message: Message) {
        match message {
            Message::Records(chunk) => {
                let (records, held) = (chunk.len(), self.queue.held());
                let at = self.keep(chunk);
                for number in (0..records).filter_map(|number| u32::try_from(number).ok()) {
                    let index = RecordIndex { chunk: at, number };
                    let Some(record) = self.record(index) else { continue };
                    let hash = KeyHash::of(record.topic(), record.key());
                    let key = self.queue.key(hash);
                    self.queue.push(key, index);
                }
                // A relay that stops waits until all records in flight are held.
                self.is_changed |= self.queue.held() > held;
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
        let Some(KeyRefusal { key, failure, pause }) = self.refusals.remove(&id) else { return };
        self.is_changed = true;
        if !matches!(decision, Decision::Retry) {
            self.clear_first(key);
        }
        let old = match decision {
            Decision::Retry => {
                self.pause(key, failure, pause);
                return;
            }
            Decision::Skip => self.queue.resolve(key, None),
            Decision::ReplaceWith(mut chunk) => {
                let origin = self.queue.first(key).and_then(|index| Some(self.record(index)?.tag().origin));
                chunk.set_origin(origin.unwrap_or_default());
                let replacement = RecordIndex { chunk: self.keep(chunk), number: 0 };
                self.queue.resolve(key, Some(replacement))
            }
        };
        self.obstacles.remove(&key);
        if let Some(old) = old {
            self.give_back(old);
        }
    }

    /// Lets the key's first record wait for `pause`.
    fn pause(&mut self, key: KeyId, failure: Failure, pause: Duration) {
        self.pauses.push(Reverse((Instant::now() + pause, key)));
        self.obstacles.insert(key, failure);
    }

    /// The key's first record is about to leave the queue.
    fn clear_first(&mut self, key: KeyId) {
        if !self.suspects.is_quiet()
            && let Some(number) = self.queue.first_number(key)
        {
            self.suspects.cleared(key, number);
        }
    }

    fn keep(&mut self, chunk: Chunk) -> u32 {
        let at = self.chunks.insert(KeptChunk { left: chunk.len(), chunk });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn give_back(&mut self, index: RecordIndex) {
        let Some(kept) = self.chunks.get_mut(index.chunk as usize) else { return };
        kept.left -= 1;
        if kept.left == 0 {
            let kept = self.chunks.remove(index.chunk as usize);
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
        self.suspects = Suspects::default();
        for (_, kept) in std::mem::take(&mut self.chunks) {
            self.empty_out(kept.chunk);
        }
        self.is_changed = true;
    }

    /// The record with this index.
    pub fn record(&self, index: RecordIndex) -> Option<Stored<'_>> {
        self.chunks.get(index.chunk as usize)?.chunk.get(index.number as usize)
    }

    /// Takes records as [`OrderedQueue::take`] does. Takes none once the hold has run out.
    pub fn take(
        &mut self,
        batch: &mut Vec<TakenRecord<RecordIndex>>,
        most_of_a_key: u32,
        mut fit: impl FnMut(Stored<'_>) -> Fit,
    ) {
        if self.restarted.is_some() || self.shared.is_cut() {
            return;
        }
        let Self { queue, chunks, suspects, .. } = self;
        let mut fit = |index: &RecordIndex| {
            let record = chunks.get(index.chunk as usize).and_then(|kept| kept.chunk.get(index.number as usize));
            record.map_or(Fit::NotThis, &mut fit)
        };
        if suspects.is_empty() {
            return queue.take(batch, most_of_a_key, |_, index| fit(index));
        }
        let turn = suspects.turn(queue.all_under_way(), |it| queue.ready_numbers().any(|number| it.is_sole(number)));
        if turn == Turn::Nobody {
            return;
        }
        let (mut room, before) = (Room::of(turn), batch.len());
        queue.take(batch, most_of_a_key, |number, index| {
            let fits = suspects.fits(&room, number);
            let fit = if fits == Fit::Takes { fit(index) } else { fits };
            if fit == Fit::Takes {
                suspects.taken(&mut room, number);
            }
            fit
        });
        if turn == Turn::Sole && batch.len() > before {
            suspects.took_sole();
        }
    }

    /// A record among these, which are under way, is refused, and the destination does not say which: each goes alone, and gets an answer of its
    /// own.
    pub fn send_each_alone(&mut self, taken: &[TakenRecord<RecordIndex>]) {
        self.mark_each_alone(taken);
        for taken in taken {
            self.settle(*taken, &RecordOutcome::Unknown);
        }
    }

    /// From now on each of these records, which are in the queue, goes alone.
    pub fn mark_each_alone(&mut self, taken: &[TakenRecord<RecordIndex>]) {
        self.suspects.mark(taken.iter().map(|taken| taken.number), 1, false);
    }

    /// Whether the record is in the queue, and not under way.
    pub fn has(&self, taken: &TakenRecord<RecordIndex>) -> bool {
        self.queue.under_way(taken.key) == 0
            && self.queue.first_number(taken.key).is_some_and(|first| first <= taken.number)
    }

    /// Whether the record goes with other suspects, or alone.
    pub fn is_suspect(&self, taken: &TakenRecord<RecordIndex>) -> bool {
        self.suspects.has(taken.number)
    }

    /// How often the record was sent, and it is not known whether it was stored.
    pub fn sendings(&self, taken: &TakenRecord<RecordIndex>) -> u32 {
        self.suspects.sendings(taken.key, taken.number)
    }

    /// The destination does not take these records, which are under way, and any of them may be the cause. If the answer is in a list, each goes
    /// alone, and gets one of its own; a single one is refused. Otherwise they go in smaller batches, until one is left.
    #[cold]
    pub fn search(&mut self, taken: &[TakenRecord<RecordIndex>], answer: &Failure) {
        match taken {
            _ if answer.class == FailureClass::Unlisted => self.search_among(taken, answer, false),
            [one] => {
                self.settle(*one, &RecordOutcome::Refused(answer.clone()));
            }
            several => self.send_each_alone(several),
        }
    }

    fn search_among(&mut self, taken: &[TakenRecord<RecordIndex>], answer: &Failure, is_sole: bool) {
        let answer = Failure { class: FailureClass::Unlisted, ..answer.clone() };
        self.suspects.search(taken.iter().map(|taken| taken.number), is_sole);
        if let [one] = taken {
            self.settle(*one, &RecordOutcome::Refused(answer));
            return;
        }
        for taken in taken {
            if self.settle(*taken, &RecordOutcome::Unknown) {
                self.obstacles.insert(taken.key, answer.clone());
            }
        }
    }

    /// The connection has ended with these records under way, which were sent and are not answered. If its oldest record was under way at two
    /// earlier ends, or the destination has said something before it closed the connection (`is_said`), one of the records may be the cause:
    /// then they go in smaller batches, each with a connection for itself, until one is left.
    #[cold]
    pub fn connection_lost(&mut self, taken: &[TakenRecord<RecordIndex>], failure: &Failure, is_said: bool) {
        let Some(oldest) = taken.iter().min_by_key(|taken| taken.number) else { return };
        let (key, number) = (oldest.key, oldest.number);
        if is_said || self.suspects.is_sole_under_way() || self.suspects.is_suspicious(key, number) {
            return self.search_among(taken, failure, true);
        }
        for taken in taken {
            self.settle(*taken, &RecordOutcome::Unanswered);
        }
    }

    /// The key's records under way.
    pub fn taken_of(&self, key: KeyId) -> Vec<TakenRecord<RecordIndex>> {
        let mut taken = self.queue.taken();
        taken.retain(|taken| taken.key == key);
        taken
    }

    /// The records under way.
    pub fn taken(&self) -> Vec<TakenRecord<RecordIndex>> {
        self.queue.taken()
    }

    /// Whether there are records to take.
    pub fn has_ready(&self) -> bool {
        self.queue.has_ready()
    }

    /// Reports the outcome of a record. The records of a batch are settled in its order. Returns `false`, and does nothing, if an earlier
    /// record of the key was not delivered: then this one is back in the queue with it.
    pub fn settle(&mut self, taken: TakenRecord<RecordIndex>, outcome: &RecordOutcome) -> bool {
        let TakenRecord { key, item, .. } = taken;
        if self.queue.under_way(key) == 0 {
            return false;
        }
        self.is_changed = true;
        match outcome {
            RecordOutcome::Duplicate if self.is_first_time(taken) => {
                if self.queue.under_way(key) > 1 {
                    // The destination may have stored those behind it, and gets them again.
                    self.doubtful = self.queue.pushed();
                }
                self.queue.refused(key);
                self.refuse(key, item, &duplicate(), RETRY_AFTER);
            }
            RecordOutcome::Delivered | RecordOutcome::Duplicate => {
                self.is_stored = true;
                self.clear_first(key);
                self.queue.delivered(key);
                if !self.obstacles.is_empty() {
                    self.obstacles.remove(&key);
                }
                self.count(item);
                self.give_back(item);
            }
            RecordOutcome::Refused(failure) | RecordOutcome::RefusedPerhapsStored(failure)
                if failure.class == FailureClass::Unlisted =>
            {
                self.not_taken_alone(key, item, failure);
            }
            RecordOutcome::Refused(failure) => {
                self.queue.refused(key);
                self.refuse(key, item, failure, RETRY_AFTER);
            }
            RecordOutcome::RefusedPerhapsStored(failure) => {
                self.doubtful = self.queue.pushed();
                let pause = self.unanswered(key);
                self.queue.refused(key);
                self.refuse(key, item, failure, pause.max(RETRY_AFTER));
            }
            RecordOutcome::Unanswered => {
                self.doubtful = self.queue.pushed();
                let pause = self.unanswered(key);
                if pause.is_zero() {
                    self.queue.returned(key);
                } else {
                    self.queue.postponed(key);
                    let failure = self.not_answered(key, item, pause);
                    self.pause(key, failure, pause);
                }
            }
            RecordOutcome::NotStored => self.queue.returned(key),
            RecordOutcome::Unknown => {
                self.doubtful = self.queue.pushed();
                self.queue.returned(key);
            }
            RecordOutcome::Later(failure) => {
                self.doubtful = self.queue.pushed();
                self.queue.postponed(key);
                self.pause(key, failure.clone(), RETRY_AFTER);
            }
        }
        true
    }

    /// The destination has answered the key's first record, which was alone in its request, with something that is in no list.
    #[cold]
    fn not_taken_alone(&mut self, key: KeyId, index: RecordIndex, failure: &Failure) {
        self.doubtful = self.queue.pushed();
        self.queue.postponed(key);
        let number = self.queue.first_number(key).unwrap_or_default();
        let Self { suspects, chunks, .. } = self;
        let record = chunks.get(index.chunk as usize).and_then(|kept| kept.chunk.get(index.number as usize));
        let (origin, topic) =
            record.map_or_else(|| (Origin::default(), ""), |record| (record.tag().origin, record.topic()));
        let now = Instant::now().into_std();
        let pause = suspects.refused_alone((key, number), (origin, topic), failure, now);
        self.pause(key, failure.clone(), pause);
    }

    /// The pause before the key's first record is sent again, of which nobody knows whether it was stored.
    #[cold]
    fn unanswered(&mut self, key: KeyId) -> Duration {
        let number = self.queue.first_number(key).unwrap_or_default();
        self.suspects.unanswered(key, number)
    }

    #[cold]
    fn not_answered(&self, key: KeyId, index: RecordIndex, pause: Duration) -> Failure {
        let number = self.queue.first_number(key).unwrap_or_default();
        let sendings = self.suspects.sendings(key, number);
        let topic = self.record(index).map_or("", |record| record.topic());
        let text = format!(
            "a record for {topic} was sent {sendings} times, and no answer says whether it is stored; it is sent again after {} s",
            pause.as_secs()
        );
        Failure::new(FailureClass::Environment, CONNECTION, text)
    }

    /// Whether neither this process nor a relay that had the slot before can have sent the record: then another row has the same id. A
    /// dead-letter record counts as sent before.
    fn is_first_time(&self, taken: TakenRecord<RecordIndex>) -> bool {
        let committed = self.record(taken.item).map(|record| record.tag().origin.position.final_lsn.bytes());
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

    fn count(&mut self, index: RecordIndex) {
        let Some(record) = self.record(index) else { return };
        if self.suspects.has_trials() {
            let topic = record.topic().to_owned();
            self.suspects.arrived(&topic);
        }
        let Some(record) = self.record(index) else { return };
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
    fn refuse(&mut self, key: KeyId, index: RecordIndex, failure: &Failure, pause: Duration) {
        let Some(record) = self.record(index) else { return };
        let (tag, record) = (record.tag(), record.with_record(OwnedRecord::of));
        self.refusal += 1;
        let id = RefusalId(self.refusal);
        self.refusals.insert(id, KeyRefusal { key, failure: failure.clone(), pause });
        self.refused.push(Refused { id, tag, record, failure: failure.clone() });
    }

    /// Whether a record was stored since the last call.
    pub(super) fn take_stored(&mut self) -> bool {
        std::mem::take(&mut self.is_stored)
    }

    /// Makes what has changed visible to the relay's side.
    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let mut back = self.shared.back();
        back.chunks.append(&mut self.empty);
        if back.generation == self.generation {
            back.runs.append(&mut self.runs);
            back.refused.append(&mut self.refused);
            back.held = self.queue.held();
            back.obstacle = self.obstacles.first_key_value().map(|(_, failure)| failure.clone());
            if back.tried_alone.is_some() || self.suspects.has_trials() {
                back.tried_alone = self.suspects.tried_alone().cloned();
            }
        } else {
            self.runs.clear();
            self.refused.clear();
        }
        drop(back);
        self.shared.news.store(true, Ordering::Release);
    }

    /// Sets what all records wait for and what passes by itself. `None`: it has passed.
    pub(super) fn set_blocked(&self, blocked: Option<Failure>) {
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

//! From the relay's thread to the client's and back: chunks of records one way, reports and empty chunks the other.
//!
//! In, on the relay's side: records and decisions on refused ones. Out, on the client's: batches by the rule of [`Lanes`]. In
//! there: what became of each record. Out, back on the relay's side: reports.
//!
//! ```text
//!   relay's thread                     │                client's thread
//!   Sender: record ─▶ chunk ───────────┼──▶ Receiver: lanes ─▶ batch ─▶ destination
//!           reports ◀── one lock a poll┼──── outcome ◀────────────────────────┘
//! ```
//!
//! Invariants: nothing is done for a row alone but one copy into a chunk that is used again; what both sides hold together stays
//! below the bound, but for one record that goes alone; after a restart nothing of before is reported.

use super::sender::Sender;
use super::shared::Shared;
use super::{Chunk, Fit, Lane, Lanes, Owner, Stored, Taken, Verdict};
use crate::sink::{DUPLICATE, Delivered, Failure, FailureClass, OwnedRecord, RefusalId, Refused};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

/// A chunk is handed over before it would hold more; a larger record has one of its own.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// A chunk that comes back keeps at most so much room: only one record can have needed more.
pub(super) const KEPT_BYTES: usize = CHUNK_BYTES;

/// What a record costs beyond its bytes: its places in chunk and lanes, and what a client keeps of it.
pub const RECORD_OVERHEAD_BYTES: u64 = 256;

/// How long a record waits that is to be tried again, refused or postponed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is sent to the client's side.
#[derive(Debug)]
pub(super) enum Message {
    Records(Chunk),
    Resolve(RefusalId, Decision),
    /// The client ends, and says so.
    Restart {
        generation: u64,
        ended: SyncSender<()>,
    },
}

#[derive(Debug)]
pub(super) enum Decision {
    Retry,
    Skip,
    /// A chunk with one record.
    Instead(Chunk),
}

/// Delivered records in a row with equal tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) delivered: Delivered,
    pub(super) held_bytes: u64,
}

/// The client's side.
#[derive(Debug)]
pub struct Receiver {
    from: UnboundedReceiver<Message>,
    pub(super) shared: Arc<Shared>,
    generation: u64,
    /// Who waits for the client's end since the last restart.
    restarted: Option<SyncSender<()>>,
    chunks: Vec<Kept>,
    free: Vec<u32>,
    lanes: Lanes<Place>,
    refusals: HashMap<RefusalId, (Lane, Failure)>,
    refusal: u64,
    /// Why the first record of a lane was refused or postponed that is tried again: until it is delivered, or gives way.
    obstacles: BTreeMap<Lane, Failure>,
    /// Of the records that were pushed after so many, none has left before.
    doubtful: u64,
    /// Lanes whose first record is to be tried again, and when.
    pauses: VecDeque<(Instant, Lane)>,
    runs: VecDeque<Run>,
    refused: Vec<Refused>,
    empty: Vec<(Chunk, usize)>,
}

/// A chunk, with how many of its records are not reported.
#[derive(Debug, Default)]
struct Kept {
    chunk: Chunk,
    left: usize,
}

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    chunk: u32,
    number: u32,
}

/// What has happened on the relay's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// There may be more to take.
    Work,
    /// The relay wants nothing more.
    Closed,
}

/// What became of a record that was taken.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The destination keeps it.
    Delivered,
    /// The destination has dropped it as a repeat: it keeps a record with the same id.
    Duplicate,
    /// The destination refuses it, and has not taken any of its lane that follow it in the batch.
    Refused(Failure),
    /// It is not known: it is sent again.
    Unknown,
    /// It was not stored, for no reason of its own: it is sent again.
    NotStored,
    /// The destination has no room for it now, where that concerns its lane and not all: it is sent again after a pause.
    Later(Failure),
}

fn duplicate() -> Failure {
    let text =
        "the destination has dropped it as a repeat of a record with the same id, and it was sent for the first time"
            .to_owned();
    Failure { class: FailureClass::Row, reason: DUPLICATE, text }
}

/// Both sides; `bound`: bytes in flight at most.
pub(super) fn hand_over(bound: u64) -> (Sender, Receiver) {
    let (to, from) = unbounded_channel();
    let shared = Arc::new(Shared::default());
    let sender = Sender::new(to, Arc::clone(&shared), bound);
    let receiver = Receiver {
        from,
        shared,
        generation: 0,
        restarted: None,
        chunks: Vec::new(),
        free: Vec::new(),
        lanes: Lanes::default(),
        refusals: HashMap::new(),
        refusal: 0,
        obstacles: BTreeMap::new(),
        doubtful: 0,
        pauses: VecDeque::new(),
        runs: VecDeque::new(),
        refused: Vec::new(),
        empty: Vec::new(),
    };
    (sender, receiver)
}

impl Receiver {
    /// Waits for something while records are taken over. `None`: the relay wants nothing more.
    pub async fn while_listening<T>(&mut self, something: impl Future<Output = T>) -> Option<T> {
        let mut something = std::pin::pin!(something);
        loop {
            tokio::select! {
                done = &mut something => return Some(done),
                event = self.next() => if event == Event::Closed {
                    return None;
                },
            }
        }
    }

    /// Waits until something has happened, and takes all that has.
    pub async fn next(&mut self) -> Event {
        let message = match self.pauses.front() {
            None => self.from.recv().await,
            Some((until, _)) => match tokio::time::timeout_at(*until, self.from.recv()).await {
                Ok(message) => message,
                Err(_over) => {
                    self.resume();
                    return Event::Work;
                }
            },
        };
        let Some(message) = message else { return Event::Closed };
        self.heed(message);
        self.take_over();
        Event::Work
    }

    /// Takes over what has come.
    fn take_over(&mut self) {
        while let Ok(message) = self.from.try_recv() {
            self.heed(message);
        }
    }

    /// The client has ended, with its connections: what it had under way is first in its lanes again. Who restarted it may go on.
    pub(super) fn client_ended(&mut self) {
        self.take_over();
        self.doubtful = self.lanes.pushed();
        self.lanes.return_all();
        if let Some(ended) = self.restarted.take() {
            self.shared.client_ended(self.generation);
            // Once its second is over, nobody waits any more.
            let _waits = ended.send(()).is_ok();
        }
    }

    /// Whether the client has to end for a restart.
    pub(super) fn is_restarted(&self) -> bool {
        self.restarted.is_some()
    }

    /// Lanes whose pause is over try again.
    fn resume(&mut self) {
        let now = Instant::now();
        while let Some((_, lane)) = self.pauses.pop_front_if(|(until, _)| *until <= now) {
            self.lanes.resolve(lane, Verdict::Again);
            self.lanes.resume(lane);
        }
    }

    fn heed(&mut self, message: Message) {
        match message {
            Message::Records(chunk) => {
                let records = chunk.len();
                let at = self.keep(chunk);
                for number in (0..records).filter_map(|number| u32::try_from(number).ok()) {
                    let place = Place { chunk: at, number };
                    let owner = self.record(place).map(|record| Owner::of(record.topic(), record.key()));
                    if let Some(owner) = owner {
                        let lane = self.lanes.lane(owner);
                        self.lanes.push(lane, place);
                    }
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
        let Some((lane, failure)) = self.refusals.remove(&id) else { return };
        let old = match decision {
            Decision::Retry => {
                self.pause(lane, failure);
                self.publish();
                return;
            }
            Decision::Skip => self.lanes.resolve(lane, Verdict::Gone),
            Decision::Instead(mut chunk) => {
                let origin = self.lanes.first(lane).and_then(|place| Some(self.record(place)?.tag().origin));
                chunk.set_origin(origin.unwrap_or_default());
                let instead = Place { chunk: self.keep(chunk), number: 0 };
                self.lanes.resolve(lane, Verdict::Instead(instead))
            }
        };
        self.obstacles.remove(&lane);
        if let Some(old) = old {
            self.give_back(old);
        }
        self.publish();
    }

    /// The lane's first record is tried again after a while.
    fn pause(&mut self, lane: Lane, failure: Failure) {
        self.pauses.push_back((Instant::now() + RETRY_AFTER, lane));
        self.obstacles.insert(lane, failure);
    }

    fn keep(&mut self, chunk: Chunk) -> u32 {
        let kept = Kept { left: chunk.len(), chunk };
        if let Some(at) = self.free.pop() {
            if let Some(place) = self.chunks.get_mut(at as usize) {
                *place = kept;
            }
            return at;
        }
        self.chunks.push(kept);
        u32::try_from(self.chunks.len() - 1).unwrap_or(u32::MAX)
    }

    fn give_back(&mut self, place: Place) {
        let Some(kept) = self.chunks.get_mut(place.chunk as usize) else { return };
        kept.left -= 1;
        if kept.left == 0 {
            let chunk = std::mem::take(&mut kept.chunk);
            self.free.push(place.chunk);
            self.empty_out(chunk);
        }
    }

    fn empty_out(&mut self, mut chunk: Chunk) {
        let bytes = chunk.bytes();
        chunk.clear(KEPT_BYTES);
        self.empty.push((chunk, bytes));
    }

    fn forget(&mut self) {
        self.lanes.clear();
        self.refusals.clear();
        self.obstacles.clear();
        self.pauses.clear();
        self.runs.clear();
        self.refused.clear();
        for kept in std::mem::take(&mut self.chunks) {
            if kept.left > 0 {
                self.empty_out(kept.chunk);
            }
        }
        self.free.clear();
        self.publish();
    }

    /// A record that was taken.
    pub fn record(&self, place: Place) -> Option<Stored<'_>> {
        self.chunks.get(place.chunk as usize)?.chunk.get(place.number as usize)
    }

    /// Takes what may be under way beside all that is: see [`Lanes::take`]. Takes nothing once the hold has run out.
    pub fn take(&mut self, batch: &mut Vec<Taken<Place>>, most_of_a_lane: u32, mut fit: impl FnMut(Stored<'_>) -> Fit) {
        if self.restarted.is_some() || self.shared.is_cut() {
            return;
        }
        let Self { lanes, chunks, .. } = self;
        lanes.take(batch, most_of_a_lane, |place| {
            let record = chunks.get(place.chunk as usize).and_then(|kept| kept.chunk.get(place.number as usize));
            record.map_or(Fit::NotThis, &mut fit)
        });
    }

    /// Whether anything could be taken.
    pub fn has_ready(&self) -> bool {
        self.lanes.has_ready()
    }

    /// What became of a record, in the order of its batch. `false`: an earlier one of its lane was refused or unknown, so that it has
    /// gone back with that one, and nothing happens.
    pub fn settle(&mut self, taken: Taken<Place>, outcome: &Outcome) -> bool {
        let Taken { lane, item, .. } = taken;
        if self.lanes.under_way(lane) == 0 {
            return false;
        }
        match outcome {
            Outcome::Duplicate if self.is_first_time(taken) => {
                if self.lanes.under_way(lane) > 1 {
                    // Those behind it may have been stored, and come again.
                    self.doubtful = self.lanes.pushed();
                }
                self.lanes.refused(lane);
                self.refuse(lane, item, &duplicate());
            }
            Outcome::Delivered | Outcome::Duplicate => {
                self.lanes.delivered(lane);
                if !self.obstacles.is_empty() {
                    self.obstacles.remove(&lane);
                }
                self.count(item);
                self.give_back(item);
            }
            Outcome::Refused(failure) => {
                self.lanes.refused(lane);
                self.refuse(lane, item, failure);
            }
            Outcome::NotStored => self.lanes.returned(lane),
            Outcome::Unknown => {
                self.doubtful = self.lanes.pushed();
                self.lanes.returned(lane);
            }
            Outcome::Later(failure) => {
                self.doubtful = self.lanes.pushed();
                self.lanes.postponed(lane);
                self.pause(lane, failure.clone());
            }
        }
        true
    }

    /// Whether nobody can have sent the record before, neither this process nor a relay that had the slot before it: what it repeats is
    /// another row. Dead-letter records are repeats of what they were made of, as far as that goes.
    fn is_first_time(&self, taken: Taken<Place>) -> bool {
        let committed = self.record(taken.item).map(|record| record.tag().origin.final_lsn);
        let alone_from = self.shared.alone_from.load(Ordering::Relaxed);
        taken.number >= self.doubtful
            && !self.lanes.is_instead(taken.lane)
            && committed.is_some_and(|lsn| lsn > alone_from)
    }

    /// The first `records` of the lane, which are all under way, have been delivered.
    pub fn delivered(&mut self, lane: Lane, records: usize) {
        for _ in 0..records {
            let Some(item) = self.lanes.first(lane) else { return };
            self.settle(Taken { lane, number: 0, item }, &Outcome::Delivered);
        }
    }

    fn count(&mut self, place: Place) {
        let Some(record) = self.record(place) else { return };
        let (token, bytes, held_bytes) = (record.tag().token, record.bytes() as u64, record.held_bytes() as u64);
        match self.runs.back_mut().filter(|run| run.delivered.token == token) {
            Some(run) => {
                run.delivered.records += 1;
                run.delivered.bytes += bytes;
                run.held_bytes += held_bytes;
            }
            None => self.runs.push_back(Run { delivered: Delivered { token, records: 1, bytes }, held_bytes }),
        }
    }

    #[cold]
    fn refuse(&mut self, lane: Lane, place: Place, failure: &Failure) {
        let Some(record) = self.record(place) else { return };
        let (tag, record) = (record.tag(), record.with_record(OwnedRecord::of));
        self.refusal += 1;
        let id = RefusalId(self.refusal);
        self.refusals.insert(id, (lane, failure.clone()));
        self.refused.push(Refused { id, tag, record, failure: failure.clone() });
    }

    /// Lets the relay see what was settled.
    pub fn publish(&mut self) {
        let mut back = self.shared.back();
        back.chunks.append(&mut self.empty);
        if back.generation == self.generation {
            back.runs.append(&mut self.runs);
            back.refused.append(&mut self.refused);
            back.held = self.lanes.held();
            back.obstacle = self.obstacles.first_key_value().map(|(_, failure)| failure.clone());
        } else {
            self.runs.clear();
            self.refused.clear();
        }
        drop(back);
        self.shared.news.store(true, Ordering::Release);
    }

    /// What everything waits for that passes by itself; `None` once it has passed.
    pub fn set_blocked(&self, blocked: Option<Failure>) {
        let mut back = self.shared.back();
        back.problem = blocked.as_ref().map(|failure| failure.text.clone());
        back.blocked = blocked;
        back.reached = true;
    }

    /// The client gives up: nothing more is reported until a restart.
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

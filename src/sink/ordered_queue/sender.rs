//! The relay's side of the hand-over: gathers records into chunks, and hands reports to the relay.
//!
//! In: records, decisions on refused ones. Out: chunks for the client's side; reports. Only a restart waits, for a second at most.
//!
//! Each chunk costs both sides a wake-up. So a record leaves at once while the client's side has nothing to do. Otherwise it waits until
//! its chunk is full, the relay says that the stream is idle, or no record was pushed between two polls.

use super::Chunk;
use super::hand_over::{CHUNK_BYTES, Decision, DeliveredRun, KEPT_BYTES, Message, RECORD_OVERHEAD_BYTES, SharedState};
use super::receiver::Receiver;
use crate::lsn::Lsn;
use crate::sink::{
    Enqueue, Failure, FailureClass, HeaderRoom, InFlight, Origin, Record, RefusalId, Report, Resolution, Tag,
    TriedAlone,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// How long a restart waits for the client's end.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// The relay's side of the hand-over.
#[derive(Debug)]
pub(super) struct Sender {
    to: UnboundedSender<Message>,
    shared: Arc<SharedState>,
    filling: Chunk,
    spare: Vec<Chunk>,
    /// Whether a record was pushed since the last poll.
    pushed: bool,
    in_flight: InFlight,
    /// The memory of the chunks that the client's side has.
    lent_bytes: usize,
    bound: u64,
    generation: u64,
    /// The bytes of each refused record that is not resolved.
    refused: HashMap<RefusalId, u64>,
}

impl Sender {
    /// Makes both sides. `bound`: the most bytes in flight.
    pub(super) fn with_receiver(bound: u64) -> (Self, Receiver) {
        let (to, from) = unbounded_channel();
        let shared = Arc::new(SharedState::default());
        let receiver = Receiver::new(from, Arc::clone(&shared));
        let sender = Self {
            to,
            shared,
            filling: Chunk::default(),
            spare: Vec::new(),
            pushed: false,
            in_flight: InFlight::default(),
            lent_bytes: 0,
            bound,
            generation: 0,
            refused: HashMap::new(),
        };
        (sender, receiver)
    }

    /// Copies a record, if there is room. If there is none, hands over what was gathered.
    pub(super) fn push(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        let bytes = record.held_bytes() as u64;
        if self.in_flight.records > 0 && self.held() + bytes + RECORD_OVERHEAD_BYTES > self.bound {
            self.flush();
            return Enqueue::Full;
        }
        if self.filling.bytes() + record.held_bytes() > CHUNK_BYTES {
            self.flush();
        }
        self.filling.push(record, tag);
        self.pushed = true;
        self.in_flight.records += 1;
        self.in_flight.bytes += bytes;
        Enqueue::Taken
    }

    /// Bytes in flight. A chunk's memory counts until the last of its records is settled.
    fn held(&self) -> u64 {
        let chunks = (self.lent_bytes + self.filling.bytes()) as u64;
        chunks.max(self.in_flight.bytes) + self.in_flight.records * RECORD_OVERHEAD_BYTES
    }

    /// Hands the gathered records over to the client's side.
    pub(super) fn flush(&mut self) {
        if self.filling.is_empty() {
            return;
        }
        let next = self.spare.pop().unwrap_or_default();
        let full = std::mem::replace(&mut self.filling, next);
        self.lent_bytes += full.bytes();
        self.send(Message::Records(full));
    }

    /// Sends a message to the client's side. If its thread has ended, it has said why, and the message is lost.
    fn send(&self, message: Message) {
        let _ended = self.to.send(message).is_err();
    }

    /// Hands the reports that have come to the relay. Hands over the gathered records if the client's side has nothing to do, or if no
    /// record was pushed since the last poll.
    pub(super) fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        self.take_back(each);
        if !std::mem::take(&mut self.pushed) || self.lent_bytes == 0 {
            self.flush();
        }
    }

    fn take_back(&mut self, each: &mut dyn FnMut(Report)) {
        if !self.shared.news.swap(false, Ordering::AcqRel) {
            return;
        }
        // `each` runs without the lock: it may take long.
        loop {
            let run = self.shared.back().runs.pop_front();
            let Some(DeliveredRun { delivered, held_bytes }) = run else { break };
            self.in_flight.records -= u64::from(delivered.records);
            self.in_flight.bytes -= held_bytes;
            each(Report::Delivered(delivered));
        }
        let (refused, failed) = {
            let mut back = self.shared.back();
            for (chunk, bytes) in back.chunks.drain(..) {
                self.lent_bytes -= bytes;
                self.spare.push(chunk);
            }
            self.in_flight.held = back.held;
            (std::mem::take(&mut back.refused), back.failed.take())
        };
        // More chunks than the bound needs would keep the memory of a burst.
        self.spare.truncate(usize::try_from(self.bound).unwrap_or(usize::MAX) / CHUNK_BYTES + 1);
        for refused in refused {
            let bytes =
                refused.record.with_record(&mut HeaderRoom::default(), |record: &Record<'_>| record.held_bytes());
            self.refused.insert(refused.id, bytes as u64);
            each(Report::Refused(Box::new(refused)));
        }
        if let Some(failure) = failed {
            each(Report::Failed(failure));
        }
    }

    /// Decides on a refused record. Does nothing if there is no refusal with this id.
    pub(super) fn resolve(&mut self, id: RefusalId, resolution: Resolution<'_>) {
        let Some(bytes) = self.refused.remove(&id) else { return };
        let decision = match resolution {
            Resolution::Retry => Decision::Retry,
            Resolution::Skip => {
                self.in_flight.records -= 1;
                self.in_flight.bytes -= bytes;
                Decision::Skip
            }
            Resolution::ReplaceWith(record, token) => {
                let mut chunk = self.spare.pop().unwrap_or_default();
                // The client's side sets the origin: it has the refused record.
                chunk.push(record, Tag { token, origin: Origin::default() });
                self.lent_bytes += chunk.bytes();
                self.in_flight.bytes = self.in_flight.bytes - bytes + record.held_bytes() as u64;
                Decision::ReplaceWith(chunk)
            }
        };
        self.send(Message::Resolve(id, decision));
    }

    pub(super) fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    /// Lets the client send until then.
    pub(super) fn hold_until(&self, until: Option<Duration>) {
        self.shared.hold_until(until);
    }

    /// No other relay can have sent a row that was committed after `lsn`.
    pub(super) fn alone_from(&self, lsn: Lsn) {
        self.shared.alone_from.store(lsn.bytes(), Ordering::Relaxed);
    }

    /// Forgets all records, and ends the client with its connections. Waits for that end for a second at most: a client that has not ended
    /// by then sends nothing, since its thread is busy with something else, and it is dropped before it can send.
    pub(super) fn restart(&mut self) {
        self.filling.clear(KEPT_BYTES);
        self.in_flight = InFlight::default();
        self.refused.clear();
        self.generation += 1;
        let mut back = self.shared.back();
        back.generation = self.generation;
        back.runs.clear();
        back.refused.clear();
        back.failed = None;
        back.obstacle = None;
        back.tried_alone = None;
        back.held = 0;
        drop(back);
        let (ended, ends) = sync_channel(1);
        self.shared.end_client(self.generation);
        self.send(Message::Restart { generation: self.generation, ended });
        if ends.recv_timeout(ENDS_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::debug!("a client's thread does not answer: it ends later");
        }
    }

    /// The failure that all records wait for, or else the one that a key waits for.
    pub(super) fn blocked(&self) -> Option<Failure> {
        let back = self.shared.back();
        back.blocked.as_ref().or(back.obstacle.as_ref()).cloned()
    }

    /// The record that is sent alone for an answer that is in no list.
    pub(super) fn tried_alone(&self) -> Option<TriedAlone> {
        self.shared.back().tried_alone.clone()
    }

    /// Whether the client reached the destination, or why it could not. `None`: it has not said yet.
    pub(super) fn reached(&self) -> Option<Result<(), Failure>> {
        let back = self.shared.back();
        back.reached.then(|| back.blocked.clone().map_or(Ok(()), Err))
    }

    pub(super) fn problem(&self) -> Option<String> {
        let back = self.shared.back();
        let obstacle = || {
            back.obstacle.as_ref().filter(|it| matches!(it.class, FailureClass::Environment | FailureClass::Unlisted))
        };
        back.problem.clone().or_else(|| obstacle().map(|failure| failure.text.clone()))
    }
}

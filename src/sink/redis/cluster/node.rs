//! One node of a cluster: what waits to be sent to it, and its connection.
//!
//! In: records that were taken from the queue for streams whose slots the node has. Out: steps of its conversation. It connects when there is
//! something to send, and does not decide where records go.
//!
//! Invariant: the records of a key that wait here belong to one command. A key's records are taken together, and none while others of
//! it are under way; within a step they stand together with those of their stream.

use super::routes::Way;
use crate::sink::Failure;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::{Receiver, Reconnect, RecordOutcome, RecordPlace, TakenRecord};
use crate::sink::redis::Settings;
use crate::sink::redis::client::{Conversation, Size, Waiting};
use crate::sink::redis::connection::{Connection, Info};
use redis::cmd;
use std::collections::VecDeque;
use std::pin::Pin;
use tokio::time::Instant;

/// A record that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    slot: u16,
    /// Behind ASKING.
    asking: bool,
    taken: TakenRecord<RecordPlace>,
}

/// A connection being opened.
pub(super) type Opening<'a> = Pin<Box<dyn Future<Output = Result<Box<Conversation<'a>>, Failure>> + 'a>>;

/// Its connection.
pub(super) enum State<'a> {
    /// There is none, and none before that time.
    Closed(Option<Instant>),
    /// Since then.
    Opening(Opening<'a>, Instant),
    Open(Box<Conversation<'a>>),
}

/// A node.
pub(super) struct Node<'a> {
    settings: &'a Settings,
    pub(super) server: Server,
    pub(super) state: State<'a>,
    /// In shares.
    pending: VecDeque<Pending>,
    /// How much was taken at a time, from the first on.
    shares: VecDeque<Size>,
    /// What was taken and is no share yet.
    share: Size,
    reconnect: Reconnect,
    /// Why there is no connection.
    failure: Option<Failure>,
    /// So many records are to be sent one by one, as the last connection has it.
    alone: usize,
}

impl<'a> Node<'a> {
    pub(super) fn new(settings: &'a Settings, server: Server) -> Self {
        Self {
            settings,
            server,
            state: State::Closed(None),
            pending: VecDeque::new(),
            shares: VecDeque::new(),
            share: Size::default(),
            reconnect: Reconnect::default(),
            failure: None,
            alone: 0,
        }
    }

    /// Whether it sends records one by one.
    pub(super) fn is_alone(&self) -> bool {
        self.alone() > 0
    }

    fn alone(&self) -> usize {
        match &self.state {
            State::Open(conversation) => conversation.alone(),
            State::Closed(_) | State::Opening(..) => self.alone,
        }
    }

    /// Whether nothing waits and no replies are due.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && !self.has_steps()
    }

    /// Whether replies are due.
    pub(super) fn has_steps(&self) -> bool {
        matches!(&self.state, State::Open(conversation) if !conversation.is_idle())
    }

    /// Takes a record over, to be sent with the others of its share.
    pub(super) fn push(&mut self, way: Way, taken: TakenRecord<RecordPlace>, bytes: usize) {
        self.pending.push_back(Pending { slot: way.slot, asking: way.asking, taken });
        self.share.records += 1;
        self.share.bytes += bytes;
    }

    /// Those that were taken since the last are a share.
    pub(super) fn end_share(&mut self) {
        if self.share.records > 0 {
            self.shares.push_back(std::mem::take(&mut self.share));
        }
    }

    /// Sends what may be under way, or connects for it. `batch`: room to be used again.
    pub(super) fn send(&mut self, receiver: &Receiver, batch: &mut Vec<Pending>) {
        let now = Instant::now();
        if let State::Open(conversation) = &self.state
            && conversation.renews()
        {
            self.alone = conversation.alone();
            self.state = State::Closed(None);
        }
        match &mut self.state {
            State::Closed(until) if !self.pending.is_empty() && until.is_none_or(|until| until <= now) => {
                let opening = open(self.settings, self.server.clone(), self.alone);
                self.state = State::Opening(Box::pin(opening), now);
            }
            State::Closed(_) | State::Opening(..) => {}
            State::Open(conversation) => {
                while conversation.has_room() && !self.shares.is_empty() {
                    batch.clear();
                    let mut size = Size::default();
                    while let Some(share) = self.shares.front()
                        && size.add(*share)
                    {
                        batch.extend(self.pending.drain(..share.records.min(self.pending.len())));
                        self.shares.pop_front();
                    }
                    send(conversation, batch, size.bytes, receiver);
                }
            }
        }
    }

    /// It is connected. What was to be asked may have become old meanwhile.
    pub(super) fn opened(&mut self, conversation: Box<Conversation<'a>>, receiver: &mut Receiver) {
        self.state = State::Open(conversation);
        self.failure = None;
        if self.pending.iter().any(|pending| pending.asking) {
            self.give_back_pending(receiver);
        }
    }

    /// The connection is lost, or cannot be had: what was under way and what waits goes back into the queue.
    pub(super) fn lost(&mut self, failure: Failure, receiver: &mut Receiver) {
        self.alone = self.alone();
        let before = std::mem::replace(&mut self.state, State::Closed(None));
        if let State::Open(mut conversation) = before {
            conversation.give_back(receiver);
            self.alone = conversation.alone();
            if conversation.has_answered() {
                self.reconnect = Reconnect::default();
            }
        }
        self.state = State::Closed(Some(Instant::now() + self.reconnect.pause()));
        self.failure = Some(failure);
        self.give_back_pending(receiver);
    }

    /// What waits goes back into the queue.
    pub(super) fn give_back_pending(&mut self, receiver: &mut Receiver) {
        self.shares.clear();
        while let Some(pending) = self.pending.pop_back() {
            receiver.settle(pending.taken, &RecordOutcome::Unknown);
        }
        receiver.publish();
    }

    /// What its records wait for.
    pub(super) fn blocked(&self) -> Option<&Failure> {
        match &self.state {
            // What it said last, it said of records that are elsewhere now.
            _ if self.is_idle() => None,
            State::Open(conversation) => conversation.blocked(),
            State::Closed(_) | State::Opening(..) => self.failure.as_ref(),
        }
    }

    /// When it is to be looked at again, though nothing comes; `None`: nothing is due.
    pub(super) fn wake(&self) -> Option<Instant> {
        match &self.state {
            State::Open(conversation) => conversation.wake(),
            State::Closed(until) if !self.pending.is_empty() => *until,
            State::Closed(_) | State::Opening(..) => None,
        }
    }
}

/// Sends `batch` as one step: for each stream one command.
fn send(conversation: &mut Conversation<'_>, batch: &mut [Pending], bytes: usize, receiver: &Receiver) {
    let stream = |pending: &Pending| receiver.record(pending.taken.item).map_or("", |record| record.topic());
    batch.sort_unstable_by(|one, other| {
        let by_slot = one.slot.cmp(&other.slot);
        let by_stream = || stream(one).cmp(stream(other)).then(one.asking.cmp(&other.asking));
        by_slot.then_with(by_stream).then(one.taken.number.cmp(&other.taken.number))
    });
    let mut step = conversation.step();
    let alike = |one: &Pending, other: &Pending| {
        one.slot == other.slot && one.asking == other.asking && stream(one) == stream(other)
    };
    for part in batch.chunk_by(alike) {
        let first = step.taken.len();
        step.taken.extend(part.iter().map(|pending| pending.taken));
        let (records, asking) = (first..step.taken.len(), part.first().is_some_and(|pending| pending.asking));
        conversation.write(&mut step, records, asking, receiver);
    }
    conversation.sent(step, bytes);
}

async fn open(settings: &Settings, server: Server, alone: usize) -> Result<Box<Conversation<'_>>, Failure> {
    let mut connection = Connection::open_at(settings, &server).await?;
    connection.may_batch(settings).await?;
    let waiting = match settings.wait {
        Some(_) => {
            let info = Info(connection.ask(&cmd("INFO")).await?);
            Waiting::of(settings, connection.address(), &info)?
        }
        None => None,
    };
    Ok(Box::new(Conversation::new(settings, connection, waiting, alone)))
}

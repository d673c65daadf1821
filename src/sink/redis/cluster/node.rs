//! [`Node`]: a node of a cluster, with the records that wait for it and its connection.
//!
//! In: records that were taken from the queue for streams whose slots the node has. Out: steps of its conversation. It connects when there is
//! something to send, and does not decide where records go.
//!
//! Invariant: the waiting records of a key belong to one command. The queue gives a key's records together, and none while others of the key
//! are under way; within a step they are together with the other records of their stream.

use super::routes::Way;
use crate::sink::Failure;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::{Receiver, Reconnect, RecordIndex, RecordOutcome, Size, TakenRecord};
use crate::sink::redis::RedisSettings;
use crate::sink::redis::connection::RedisConnection;
use crate::sink::redis::conversation::{BATCH, Conversation};
use crate::sink::redis::errors::{allow, with_fix};
use std::collections::VecDeque;
use std::pin::Pin;
use tokio::time::Instant;

/// A waiting record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    slot: u16,
    /// Whether its command has to be behind ASKING.
    asking: bool,
    taken: TakenRecord<RecordIndex>,
}

/// The records that were taken at a time.
#[derive(Debug, Clone, Copy)]
struct Share {
    size: Size,
    /// It has suspects: no other share goes into its batch.
    is_apart: bool,
}

/// An attempt to connect.
pub(super) type Opening<'a> = Pin<Box<dyn Future<Output = Result<Box<Conversation<'a>>, Failure>> + 'a>>;

/// The state of a node's connection.
pub(super) enum NodeState<'a> {
    /// There is no connection. The next attempt is not before that time.
    Closed(Option<Instant>),
    /// The client is connecting, since then.
    Opening(Opening<'a>, Instant),
    Open(Box<Conversation<'a>>),
}

/// A node of a cluster.
pub(super) struct Node<'a> {
    settings: &'a RedisSettings,
    pub(super) server: Server,
    pub(super) state: NodeState<'a>,
    /// The waiting records, one share after the other.
    pending: VecDeque<Pending>,
    /// The shares, from the first on.
    shares: VecDeque<Share>,
    /// The size of the records behind the last share, which are no share yet.
    share: Size,
    reconnect: Reconnect,
    /// The reason why there is no connection.
    failure: Option<Failure>,
}

impl<'a> Node<'a> {
    pub(super) fn new(settings: &'a RedisSettings, server: Server) -> Self {
        Self {
            settings,
            server,
            state: NodeState::Closed(None),
            pending: VecDeque::new(),
            shares: VecDeque::new(),
            share: Size::default(),
            reconnect: Reconnect::default(),
            failure: None,
        }
    }

    /// Whether no records wait and no replies are due.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && !self.has_steps()
    }

    /// Whether replies are due.
    pub(super) fn has_steps(&self) -> bool {
        matches!(&self.state, NodeState::Open(conversation) if !conversation.is_idle())
    }

    /// Adds a record, which is sent with the others of its share.
    pub(super) fn push(&mut self, way: Way, taken: TakenRecord<RecordIndex>, bytes: usize) {
        self.pending.push_back(Pending { slot: way.slot, asking: way.asking, taken });
        self.share.records += 1;
        self.share.bytes += bytes;
    }

    /// Makes a share of the records since the last one. `is_apart`: no other share goes into its batch.
    pub(super) fn end_share(&mut self, is_apart: bool) {
        if self.share.records > 0 {
            self.shares.push_back(Share { size: std::mem::take(&mut self.share), is_apart });
        }
    }

    /// Sends as many shares as may be under way, or begins to connect. `batch`: an empty list, whose memory is used again.
    pub(super) fn send(&mut self, receiver: &Receiver, batch: &mut Vec<Pending>) {
        let now = Instant::now();
        if let NodeState::Open(conversation) = &self.state
            && conversation.renews()
        {
            self.state = NodeState::Closed(None);
        }
        match &mut self.state {
            NodeState::Closed(until) if !self.pending.is_empty() && until.is_none_or(|until| until <= now) => {
                let opening = open(self.settings, self.server.clone());
                self.state = NodeState::Opening(Box::pin(opening), now);
            }
            NodeState::Closed(_) | NodeState::Opening(..) => {}
            NodeState::Open(conversation) => {
                while conversation.has_room() && !self.shares.is_empty() {
                    batch.clear();
                    let (mut size, mut is_full) = (Size::default(), false);
                    while let Some(Share { size: share, is_apart }) = self.shares.front().copied()
                        && !is_full
                        && (!is_apart || batch.is_empty())
                        && size.add(share, BATCH)
                    {
                        batch.extend(self.pending.drain(..share.records.min(self.pending.len())));
                        self.shares.pop_front();
                        is_full = is_apart;
                    }
                    send(conversation, batch, size.bytes, receiver);
                }
            }
        }
    }

    /// Notes that the connection is open. A waiting ASK may have become old meanwhile.
    pub(super) fn opened(&mut self, conversation: Box<Conversation<'a>>, receiver: &mut Receiver) {
        self.state = NodeState::Open(conversation);
        self.failure = None;
        if self.pending.iter().any(|pending| pending.asking) {
            self.give_back_pending(receiver);
        }
    }

    /// Notes that the connection is lost, or could not be opened. Puts all records, under way or waiting, back into the queue.
    pub(super) fn lost(&mut self, failure: Failure, receiver: &mut Receiver) {
        let before = std::mem::replace(&mut self.state, NodeState::Closed(None));
        if let NodeState::Open(mut conversation) = before {
            receiver.connection_lost(&conversation.give_back(), &failure, false);
            if conversation.has_answered() {
                self.reconnect = Reconnect::default();
            }
        }
        self.state = NodeState::Closed(Some(Instant::now() + self.reconnect.pause()));
        self.failure = Some(failure);
        self.give_back_pending(receiver);
    }

    /// Puts the waiting records back into the queue.
    pub(super) fn give_back_pending(&mut self, receiver: &mut Receiver) {
        self.shares.clear();
        while let Some(pending) = self.pending.pop_back() {
            receiver.settle(pending.taken, &RecordOutcome::Unknown);
        }
    }

    /// The failure that its records wait for.
    pub(super) fn blocked(&self) -> Option<&Failure> {
        match &self.state {
            // The node's last failure was about records that are elsewhere now.
            _ if self.is_idle() => None,
            NodeState::Open(conversation) => conversation.blocked(),
            NodeState::Closed(_) | NodeState::Opening(..) => self.failure.as_ref(),
        }
    }

    /// When the client has to look at the node again even if nothing comes. `None`: no time is due.
    pub(super) fn wake(&self) -> Option<Instant> {
        match &self.state {
            NodeState::Open(conversation) => conversation.wake(),
            NodeState::Closed(until) if !self.pending.is_empty() => *until,
            NodeState::Closed(_) | NodeState::Opening(..) => None,
        }
    }
}

/// Sends `batch` as one step, with one command for each stream.
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

async fn open(settings: &RedisSettings, server: Server) -> Result<Box<Conversation<'_>>, Failure> {
    let mut connection = RedisConnection::open_at(settings, &server).await?;
    let mut file = false;
    if settings.wait.is_some() {
        let info = connection.info().await.map_err(|failure| with_fix(failure, || allow(settings, &["+info"])))?;
        file = info.has_file_to_wait_for();
    }
    connection.may_add(settings, file).await?;
    Ok(Box::new(Conversation::new(settings, connection, file)))
}

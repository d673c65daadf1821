//! The client of a cluster: takes records from the ordered queue, gives each node its share, follows slots from node to node.
//!
//! In: records from the ordered queue, a first view of the cluster. Out: their outcomes.
//!
//! ```text
//!   queue ──take──▶ by slot ──▶ node: share ──▶ step: one command a stream ──▶ delivered
//!     ▲                                                     │
//!     └──── MOVED, ASK, a connection lost: in order, first of their key
//! ```
//!
//! A command has records of one stream, since it may concern one slot only, and since ASK is about one key. Records that a node did not
//! add go back into the queue, and are routed again. So a key's records are never under way to two nodes, or in two commands.
//!
//! walrelay has this client of its own, over single connections of the library. The library's client for clusters has three faults here. It
//! connects again by itself, with the first password and the first certificates. It sends commands again after a redirect or a lost
//! connection, which adds entries twice. It sends ASKING as a write of its own, so that another stream's command may follow it. Without
//! retries it follows no redirect.
//!
//! Invariant: that of the whole destination. This client sends nothing a second time by itself, and no loop runs without a pause: it
//! follows a redirect a few times at once, asks for a view at most every 100 ms, and connects to a node as to a single server.
//! Specification: Redis, "Redis cluster specification".

mod node;
pub(super) mod routes;
mod view;

pub(super) use view::View;
#[cfg(test)]
pub(super) use view::tests::{slots, view};

use super::conversation::{BATCH, Conversation};
use super::{KIND, RedisSettings, Topology};
use crate::sink::Failure;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::{Fit, Receiver, RecordIndex, Size, TakenRecord};
use node::{Node, NodeState, Pending};
use routes::Routes;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use view::number_of;

/// If a node is silent for so long while replies are due, it may have lost its slots: the client asks the others.
const SUSPECT_AFTER: Duration = Duration::from_secs(2);

/// The shortest and the longest pause between two views. Each is twice the one before, until no view was needed for `CALM_AFTER`.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
const CALM_AFTER: Duration = Duration::from_secs(10);

/// An event at a node.
pub(super) enum Happened<'a> {
    Viewed(Result<View, Failure>),
    /// A connection is open, or could not be opened.
    Opened(usize, Result<Box<Conversation<'a>>, Failure>),
    /// Replies have come, or the connection is lost.
    Replied(usize),
}

/// A question for a view.
type Viewing<'a> = Pin<Box<dyn Future<Output = Result<View, Failure>> + 'a>>;

/// All nodes of the cluster.
pub(super) struct Cluster<'a> {
    settings: &'a RedisSettings,
    routes: Routes,
    /// The nodes, by their numbers in `routes`.
    nodes: Vec<Node<'a>>,
    replicas: Vec<Server>,
    viewing: Option<Viewing<'a>>,
    /// The client asks for no view before this time.
    view_from: Instant,
    view_pause: Duration,
    /// The node that is polled first. It changes, so that no node waits for the others.
    first: usize,
    /// The failure of a waiting record whose slot no node has.
    unserved: Option<Failure>,
    taken: Vec<TakenRecord<RecordIndex>>,
    batch: Vec<Pending>,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(settings: &'a RedisSettings, view: &View) -> Self {
        let routes = Routes::of(view);
        let nodes = routes.servers().iter().map(|server| Node::new(settings, server.clone())).collect();
        Self {
            settings,
            routes,
            nodes,
            replicas: view.replicas.clone(),
            viewing: None,
            view_from: Instant::now(),
            view_pause: PAUSES.0,
            first: 0,
            unserved: None,
            taken: Vec::new(),
            batch: Vec::new(),
        }
    }

    /// Looks at all connections, takes records, and sends as many as may be under way.
    pub(super) fn fill(&mut self, receiver: &mut Receiver) {
        self.look_round(receiver);
        self.take(receiver);
        for node in &mut self.nodes {
            node.send(receiver, &mut self.batch);
        }
    }

    /// Takes records from the queue, and gives each node its share. The limit of bytes in flight also limits the records that wait at nodes.
    fn take(&mut self, receiver: &mut Receiver) {
        let mut unserved = None;
        while receiver.has_ready() {
            let Self { routes, nodes, taken, .. } = self;
            let mut size = Size::default();
            receiver.take(taken, u32::MAX, |record| {
                let way = match routes.way(record.topic()) {
                    Ok(way) => way,
                    Err(slot) => {
                        unserved = Some(slot);
                        return Fit::NotThis;
                    }
                };
                if nodes.get(way.node).is_none() {
                    return Fit::NotThis;
                }
                size.fit(record, BATCH)
            });
            if taken.is_empty() {
                break;
            }
            // A batch has either suspects or none.
            let is_apart = taken.first().is_some_and(|taken| receiver.is_suspect(taken));
            for taken in taken.drain(..) {
                let Some(record) = receiver.record(taken.item) else { continue };
                if let Ok(way) = routes.way(record.topic())
                    && let Some(node) = nodes.get_mut(way.node)
                {
                    node.push(way, taken, record.held_bytes());
                }
            }
            for node in nodes.iter_mut() {
                node.end_share(is_apart);
            }
        }
        self.routes.asked();
        self.unserved = unserved.map(|slot| self.routes.unserved(slot));
        if self.unserved.is_some() {
            self.routes.stale = true;
        }
    }

    /// Gives up connections that were silent for too long, and asks for a view if the present one may be old.
    fn look_round(&mut self, receiver: &mut Receiver) {
        let now = Instant::now();
        for number in 0..self.nodes.len() {
            let Some(node) = self.nodes.get(number) else { break };
            let (suspect, useless, overdue) = match &node.state {
                NodeState::Open(conversation) => {
                    let silent = conversation.silent_for(SUSPECT_AFTER).is_some_and(|time| time <= now);
                    // A node that is cut off from its replicas may be cut off from the other nodes as well.
                    let useless = silent || conversation.waits_again();
                    (useless || node.blocked().is_some(), useless, conversation.overdue())
                }
                NodeState::Opening(_, since) => (*since + SUSPECT_AFTER <= now, false, None),
                NodeState::Closed(_) => (!node.is_idle(), false, None),
            };
            if suspect {
                self.routes.stale = true;
            }
            let replaced = useless && node.has_steps() && !self.routes.is_owner(number);
            let replaced = replaced
                .then(|| KIND.broken(&node.server.address(), "it acknowledges nothing, and has no slots any more"));
            if let Some(failure) = overdue.or(replaced) {
                self.lost(number, failure, receiver);
            }
        }
        if self.routes.stale && self.viewing.is_none() && self.view_from <= now {
            self.viewing = Some(Box::pin(View::read(self.settings, self.informants())));
        }
    }

    /// The nodes to ask for a view, in this order: one that a redirect named, nodes that answer, all others, and those of the settings.
    fn informants(&mut self) -> Vec<Server> {
        let mut all: Vec<Server> = self.routes.refreshing().into_iter().collect();
        let now = Instant::now();
        let answers = |node: &&Node<'a>| match &node.state {
            NodeState::Open(conversation) => conversation.silent_for(SUSPECT_AFTER).is_none_or(|time| now < time),
            NodeState::Closed(_) | NodeState::Opening(..) => false,
        };
        all.extend(self.nodes.iter().filter(answers).map(|node| node.server.clone()));
        all.extend(self.nodes.iter().filter(|node| !answers(node)).map(|node| node.server.clone()));
        all.extend(self.replicas.iter().cloned());
        match &self.settings.topology {
            Topology::Server(server) => all.push(server.clone()),
            Topology::Nodes(nodes) => all.extend(nodes.iter().cloned()),
            Topology::Sentinels(_) => {}
        }
        let mut once = Vec::with_capacity(all.len());
        for server in all {
            number_of(&mut once, server);
        }
        once
    }

    /// The failure of the first node whose records wait.
    pub(super) fn blocked(&self) -> Option<&Failure> {
        self.nodes.iter().find_map(Node::blocked).or(self.unserved.as_ref())
    }

    /// When the client has to look at its connections even if nothing comes. `None`: no time is due.
    pub(super) fn wake(&self) -> Option<Instant> {
        let now = Instant::now();
        let look = self.nodes.iter().filter_map(|node| match &node.state {
            NodeState::Open(conversation) => conversation.silent_for(SUSPECT_AFTER),
            NodeState::Opening(_, since) => Some(*since + SUSPECT_AFTER),
            NodeState::Closed(_) => None,
        });
        // If this time has passed, the client waits for the next view already.
        let look = look.filter(|time| *time > now);
        let view = (self.routes.stale && self.viewing.is_none()).then_some(self.view_from);
        self.nodes.iter().filter_map(Node::wake).chain(look).chain(view).min()
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Happened<'a>> {
        if let Some(viewing) = &mut self.viewing
            && let Poll::Ready(viewed) = viewing.as_mut().poll(context)
        {
            return Poll::Ready(Happened::Viewed(viewed));
        }
        let nodes = self.nodes.len();
        for number in (self.first..nodes).chain(0..self.first.min(nodes)) {
            let Some(node) = self.nodes.get_mut(number) else { continue };
            let happened = match &mut node.state {
                NodeState::Closed(_) => continue,
                NodeState::Opening(opening, _) => {
                    opening.as_mut().poll(context).map(|opened| Happened::Opened(number, opened))
                }
                NodeState::Open(conversation) => conversation.poll(context).map(|()| Happened::Replied(number)),
            };
            if happened.is_ready() {
                self.first = number + 1;
                return happened;
            }
        }
        Poll::Pending
    }

    pub(super) fn heed(&mut self, happened: Happened<'a>, receiver: &mut Receiver) {
        match happened {
            Happened::Viewed(viewed) => {
                self.viewing = None;
                let now = Instant::now();
                let calm = now.duration_since(self.view_from) > CALM_AFTER;
                self.view_pause = if calm { PAUSES.0 } else { (self.view_pause * 2).min(PAUSES.1) };
                self.view_from = now + self.view_pause;
                // If no node gives a view, the nodes' own failures are reported.
                if let Ok(view) = viewed {
                    self.apply(&view, receiver);
                }
            }
            Happened::Opened(number, Ok(conversation)) => {
                if let Some(node) = self.nodes.get_mut(number) {
                    node.opened(conversation, receiver);
                }
            }
            Happened::Opened(number, Err(failure)) => self.lost(number, failure, receiver),
            Happened::Replied(number) => self.read(number, receiver),
        }
    }

    fn read(&mut self, number: usize, receiver: &mut Receiver) {
        let Self { routes, nodes, settings, .. } = self;
        let Some(node) = nodes.get_mut(number) else { return };
        let NodeState::Open(conversation) = &mut node.state else { return };
        let failure = conversation.read(receiver, Some((&mut *routes, number))).err();
        let known = nodes.len();
        for named in routes.servers().iter().skip(known) {
            nodes.push(Node::new(settings, named.clone()));
        }
        if let Some(failure) = failure {
            self.lost(number, failure, receiver);
        }
    }

    fn lost(&mut self, number: usize, failure: Failure, receiver: &mut Receiver) {
        if let Some(node) = self.nodes.get_mut(number) {
            node.lost(failure, receiver);
        }
        self.routes.stale = true;
    }

    /// Takes over a view. Waiting records are routed again. Batches under way stay so, until their node answers or is given up.
    fn apply(&mut self, view: &View, receiver: &mut Receiver) {
        self.replicas.clone_from(&view.replicas);
        let nodes = &self.nodes;
        let Some(numbers) = self.routes.apply(view, |number| nodes.get(number).is_some_and(Node::has_steps)) else {
            return;
        };
        let mut known: Vec<Option<Node<'a>>> = Vec::new();
        known.resize_with(self.routes.servers().len(), || None);
        for (mut node, number) in self.nodes.drain(..).zip(numbers) {
            node.give_back_pending(receiver);
            if let Some(entry) = number.and_then(|number| known.get_mut(number)) {
                *entry = Some(node);
            }
        }
        let servers = self.routes.servers().iter();
        let nodes = known.into_iter().zip(servers);
        let nodes = nodes.map(|(node, server)| node.unwrap_or_else(|| Node::new(self.settings, server.clone())));
        self.nodes = nodes.collect();
    }
}

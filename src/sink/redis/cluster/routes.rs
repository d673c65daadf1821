//! [`Routes`]: the node that a stream's records go to.
//!
//! In: views, redirects. Out: a node's number for a stream. This file does no I/O and reads no clock.
//!
//! ```text
//!   view ─────▶ owner of each slot ◀───── MOVED: this slot, and the view is old
//!   ASK ──────▶ for this stream once, behind ASKING
//! ```
//!
//! Invariant: the client sends ASKING only for a stream for which a node has just said ASK. If the move of a slot starts over, its old node
//! may still have the stream, and the entry would create it a second time on the new node.
//! Specification: Redis, "Redis cluster specification", section "Redirection and resharding".

use super::view::{View, number_of};
use crate::sink::Failure;
use crate::sink::ordered_queue::RecordOutcome;
use crate::sink::ordered_queue::address::Server;
use crate::sink::redis::errors::Redirect;
use crate::sink::redis::message::slot;
use std::collections::HashMap;

/// The number of no node.
const NONE: u16 = u16::MAX;

/// How many redirects of a stream in a row the client follows at once. Each further one has to wait.
const AT_ONCE: u32 = 5;

/// The route of a stream's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) slot: u16,
    /// The node's number.
    pub(super) node: usize,
    /// Whether their command has to be behind ASKING.
    pub(super) asking: bool,
}

/// The nodes, their slots and the redirects.
#[derive(Debug)]
pub(in crate::sink::redis) struct Routes {
    /// The nodes by number.
    servers: Vec<Server>,
    /// The node of each slot.
    owners: Vec<u16>,
    /// For streams whose slot moves: the node that gets one command behind ASKING.
    asks: HashMap<String, u16>,
    /// How many redirects of a stream there were in a row.
    redirects: HashMap<String, u32>,
    /// The last view.
    view: View,
    /// Whether that view may be old.
    pub(super) stale: bool,
    /// The node that a MOVED named, which has a newer view.
    knows: Option<Server>,
}

impl Routes {
    pub(super) fn of(view: &View) -> Self {
        Self {
            servers: view.primaries.clone(),
            owners: view.owners(),
            asks: HashMap::new(),
            redirects: HashMap::new(),
            view: view.clone(),
            stale: false,
            knows: None,
        }
    }

    /// All known nodes, by number.
    pub(super) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The route of this stream's records.
    ///
    /// # Errors
    /// No node has the stream's slot, which is returned.
    pub(super) fn way(&self, stream: &str) -> Result<Way, u16> {
        let slot = slot(stream);
        if !self.asks.is_empty()
            && let Some(node) = self.asks.get(stream)
        {
            return Ok(Way { slot, node: usize::from(*node), asking: true });
        }
        match self.owners.get(usize::from(slot)) {
            Some(&node) if node != NONE => Ok(Way { slot, node: usize::from(node), asking: false }),
            Some(_) | None => Err(slot),
        }
    }

    /// The failure of records for this slot, which no node has.
    pub(super) fn unserved(&self, slot: u16) -> Failure {
        self.view.unserved(slot)
    }

    /// Whether the node has slots.
    pub(super) fn is_owner(&self, node: usize) -> bool {
        self.owners.iter().any(|owner| usize::from(*owner) == node)
    }

    /// Forgets all ASKs: the next records go to the slot's node again.
    pub(super) fn asked(&mut self) {
        self.asks.clear();
    }

    /// Notes that the client asks for a view now. Returns the node to ask first, if a redirect named one.
    pub(super) fn refreshing(&mut self) -> Option<Server> {
        self.stale = false;
        self.knows.take()
    }

    /// Takes over a view. Nodes that it does not name stay known if `keeps` says so of their number. Returns the new number of each node by
    /// its old one. `None`: nothing has changed.
    pub(super) fn apply(&mut self, view: &View, keeps: impl Fn(usize) -> bool) -> Option<Vec<Option<usize>>> {
        self.view.clone_from(view);
        let owners = view.owners();
        let old = self.owners.iter().map(|owner| self.servers.get(usize::from(*owner)));
        let new = owners.iter().map(|owner| view.primaries.get(usize::from(*owner)));
        if old.eq(new) {
            return None;
        }
        let mut servers = view.primaries.clone();
        let numbers = self.servers.iter().enumerate().map(|(number, server)| {
            let known = servers.iter().position(|known| known == server);
            known.or_else(|| keeps(number).then(|| number_of(&mut servers, server.clone())))
        });
        let numbers = numbers.collect();
        self.servers = servers;
        self.owners = owners;
        self.asks.clear();
        self.redirects.clear();
        Some(numbers)
    }

    /// Decides on records of `stream` that the node `from` did not add. `None`: they are sent again at once. Otherwise they are sent again
    /// after a pause, and the failure is returned.
    pub(in crate::sink::redis) fn redirected(
        &mut self,
        from: usize,
        stream: &str,
        redirect: &Redirect,
        failure: Failure,
    ) -> Option<Failure> {
        let said_by = self.servers.get(from).map_or("", |server| server.host.as_str());
        let Some(server) = redirect.server(said_by) else {
            self.stale = true;
            return Some(failure);
        };
        let known = if redirect.ask {
            self.asks.contains_key(stream)
        } else {
            // These records were sent before the slot's node was known.
            self.owners.get(usize::from(redirect.slot)).is_some_and(|owner| usize::from(*owner) != from)
        };
        if known {
            return None;
        }
        if !redirect.ask {
            self.stale = true;
            self.knows = Some(server.clone());
        }
        let redirects = self.redirects.entry(stream.to_owned()).or_default();
        *redirects += 1;
        let at_once = *redirects <= AT_ONCE;
        let number = u16::try_from(number_of(&mut self.servers, server)).unwrap_or(NONE);
        if !redirect.ask {
            if let Some(owner) = self.owners.get_mut(usize::from(redirect.slot)) {
                *owner = number;
            }
        } else if at_once {
            self.asks.insert(stream.to_owned(), number);
        }
        (!at_once).then_some(failure)
    }

    /// Notes the outcomes of records of `stream`, in their order.
    pub(in crate::sink::redis) fn classified(&mut self, stream: &str, outcomes: &[RecordOutcome]) {
        if let Some(RecordOutcome::Later(_)) = outcomes.first() {
            // No node has the slot, or the node that answers is cut off from the others.
            self.stale = true;
        } else if !self.redirects.is_empty() {
            self.redirects.remove(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::view;
    use super::*;
    use crate::sink::FailureClass;

    /// The slot of `foo` is 12182.
    fn routes() -> Routes {
        Routes::of(&view(&[(0, 9999, "a:1"), (10000, 16383, "b:2")]))
    }

    fn failure() -> Failure {
        Failure::new(FailureClass::Environment, "not_writable", "x")
    }

    fn redirected(routes: &mut Routes, by: usize, error: &str) -> Option<Failure> {
        routes.redirected(by, "foo", &Redirect::of(error).unwrap(), failure())
    }

    fn at(routes: &Routes) -> (String, bool) {
        let way = routes.way("foo").unwrap();
        (routes.servers()[way.node].address(), way.asking)
    }

    #[test]
    fn moved_moves_the_slot_and_makes_the_view_old() {
        let mut routes = routes();
        assert_eq!(at(&routes), ("b:2".to_owned(), false));
        assert_eq!(redirected(&mut routes, 1, "MOVED 12182 c:3"), None);
        assert_eq!((at(&routes), routes.stale), (("c:3".to_owned(), false), true));
        // The others that were under way say the same.
        for _ in 0..20 {
            assert_eq!(redirected(&mut routes, 1, "MOVED 12182 c:3"), None);
        }
        assert_eq!((routes.servers().len(), routes.refreshing().unwrap().port), (3, 3));
        assert_eq!(routes.slot_after("hello"), "a:1");
    }

    #[test]
    fn ask_is_for_one_stream_once() {
        let mut routes = routes();
        assert_eq!(redirected(&mut routes, 1, "ASK 12182 a:1"), None);
        assert_eq!((at(&routes), routes.stale), (("a:1".to_owned(), true), false));
        assert_eq!(routes.slot_after("{foo}2"), "b:2");
        routes.asked();
        assert_eq!(at(&routes), ("b:2".to_owned(), false));
    }

    #[test]
    fn nodes_that_name_one_another_are_followed_a_few_times_at_once() {
        let mut routes = routes();
        let mut at_once = 0;
        while redirected(&mut routes, 1, "ASK 12182 a:1").is_none() {
            routes.asked();
            at_once += 1;
        }
        assert_eq!((at_once, at(&routes).1), (AT_ONCE, false));
        routes.classified("foo", &[RecordOutcome::Delivered]);
        assert_eq!(redirected(&mut routes, 1, "ASK 12182 a:1"), None);
        let mut by = 0;
        while redirected(&mut routes, by, &format!("MOVED 12182 {}", ["b:2", "a:1"][by])).is_none() {
            by = 1 - by;
            assert!(routes.redirects["foo"] <= AT_ONCE);
        }
    }

    #[test]
    fn a_node_that_nobody_can_name_is_waited_for() {
        let mut routes = routes();
        assert_eq!(redirected(&mut routes, 1, "MOVED 12182 ?:3"), Some(failure()));
        assert!(routes.stale && at(&routes).0 == "b:2");
        assert_eq!(redirected(&mut routes, 1, "MOVED 12182 :3"), None);
        assert_eq!(at(&routes).0, "b:3");
    }

    #[test]
    fn a_view_renumbers_nodes_and_one_that_says_the_same_changes_nothing() {
        let mut routes = routes();
        assert_eq!(routes.apply(&view(&[(0, 9999, "a:1"), (10000, 16383, "b:2 c:3")]), |_| true), None);
        let failed_over = view(&[(0, 9999, "c:3"), (10000, 16383, "b:2 a:1")]);
        assert_eq!(routes.apply(&failed_over, |_| false), Some(vec![None, Some(1)]));
        assert_eq!(routes.slot_after("hello"), "c:3");
        let back = view(&[(0, 16383, "b:2")]);
        assert_eq!(routes.apply(&back, |node| node == 0), Some(vec![Some(1), Some(0)]));
        assert!(routes.is_owner(0) && !routes.is_owner(1));
        assert!(routes.apply(&view(&[(0, 9999, "b:2")]), |_| false).is_some() && routes.way("foo").is_err());
    }

    impl Routes {
        fn slot_after(&self, stream: &str) -> String {
            self.servers()[self.way(stream).unwrap().node].address()
        }
    }
}

//! [`View`]: the nodes of a cluster and their slots, as one node sees them.
//!
//! In: the replies to CLUSTER INFO and CLUSTER SLOTS. Out: primaries, their slots, their replicas. A view may be old when it is used. Nodes
//! then answer with redirects.
//! Specification: Redis, commands CLUSTER SLOTS, CLUSTER INFO; "Redis cluster specification".

use crate::sink::destination::Destination as _;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::within;
use crate::sink::redis::connection::{Info, RedisConnection};
use crate::sink::redis::errors::{NOT_PERMITTED, NOT_WRITABLE, environment, said, server};
use crate::sink::redis::message::SLOTS;
use crate::sink::redis::{KIND, RedisSettings};
use crate::sink::{Failure, FailureClass};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{Value, cmd, from_redis_value_ref};
use std::ops::RangeInclusive;
use std::time::Duration;

/// How long the client waits for a node before it asks the next one as well.
const ASKED_BESIDE_AFTER: Duration = Duration::from_secs(2);

/// The cluster as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink::redis) struct View {
    /// The address of that node.
    pub(in crate::sink::redis) by: String,
    /// The value of `cluster_state`: `fail` if the node cannot see too many of the others, so that its view may be old.
    pub(in crate::sink::redis) state: Option<String>,
    /// The primaries that have slots.
    pub(in crate::sink::redis) primaries: Vec<Server>,
    /// The slots, with the number of their primary.
    ranges: Vec<(RangeInclusive<u16>, usize)>,
    /// Slots whose primary announces no address.
    nameless: Vec<RangeInclusive<u16>>,
    pub(in crate::sink::redis) replicas: Vec<Server>,
}

impl View {
    /// Asks these nodes for a view. Returns the first view of a node that is not cut off from the others, or else one of a node that is. Asks
    /// in their order: the next node if one has failed, or has not answered for [`ASKED_BESIDE_AFTER`].
    ///
    /// # Errors
    /// No node gives a view.
    pub(in crate::sink::redis) async fn read(settings: &RedisSettings, nodes: Vec<Server>) -> Result<Self, Failure> {
        let (mut failures, mut cut_off, mut asked) = (Vec::new(), None, FuturesUnordered::new());
        let mut left = nodes.into_iter();
        loop {
            asked.extend(left.next().map(|node| ask(settings, node)));
            match tokio::time::timeout(ASKED_BESIDE_AFTER, asked.next()).await {
                Ok(None) => break,
                Ok(Some(Ok(view))) if view.state.as_deref() == Some("fail") => cut_off = cut_off.or(Some(view)),
                Ok(Some(Ok(view))) => return Ok(view),
                // Each node has users of its own: another node may accept this one.
                Ok(Some(Err(failure))) => failures.push(failure),
                // A node that answers later is asked again the next time.
                Err(_late) if left.len() == 0 && cut_off.is_some() => break,
                Err(_late) => {}
            }
        }
        cut_off.ok_or_else(|| none_says(settings, failures))
    }

    /// Asks the node at the other end of a connection.
    ///
    /// # Errors
    /// The node gives no view.
    pub(in crate::sink::redis) async fn of(connection: &mut RedisConnection) -> Result<Self, Failure> {
        let info = Info::of(&connection.ask(cmd("CLUSTER").arg("INFO")).await?);
        let state = info.field("cluster_state").map(str::to_owned);
        let reply = connection.ask(cmd("CLUSTER").arg("SLOTS")).await?;
        Self::of_reply(connection.address(), connection.host(), state, &reply)
    }

    fn of_reply(by: &str, host: &str, state: Option<String>, reply: &Value) -> Result<Self, Failure> {
        let mut view = Self {
            by: by.to_owned(),
            state,
            primaries: Vec::new(),
            ranges: Vec::new(),
            nameless: Vec::new(),
            replicas: Vec::new(),
        };
        if let Some(error) = said(reply) {
            return Err(environment(by, &error));
        }
        let none = || KIND.broken(by, "its reply names no slots");
        let Value::Array(ranges) = reply else { return Err(none()) };
        for range in ranges {
            view.add(range, host).ok_or_else(none)?;
        }
        Ok(view)
    }

    /// Adds a range of slots from a reply: the first and the last slot, the primary, its replicas. `None`: it is no range.
    fn add(&mut self, range: &Value, host: &str) -> Option<()> {
        let Value::Array(range) = range else { return None };
        let [first, last, nodes @ ..] = range.as_slice() else { return None };
        let slot = |value: &Value| {
            let Value::Int(slot) = value else { return None };
            u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS)
        };
        let range = slot(first)?..=slot(last)?;
        for (number, node) in nodes.iter().enumerate() {
            let (named, port) = named(node)?;
            let Some(server) = server(&named, port, host) else {
                if number == 0 {
                    self.nameless.push(range.clone());
                }
                continue;
            };
            if number > 0 {
                number_of(&mut self.replicas, server);
                continue;
            }
            let primary = number_of(&mut self.primaries, server);
            self.ranges.push((range.clone(), primary));
        }
        Some(())
    }

    /// The primary that has the slot.
    pub(in crate::sink::redis) fn owner(&self, slot: u16) -> Option<&Server> {
        let (_, primary) = self.ranges.iter().find(|(range, _)| range.contains(&slot))?;
        self.primaries.get(*primary)
    }

    /// The number of the primary for each slot. `u16::MAX`: there is none.
    pub(super) fn owners(&self) -> Vec<u16> {
        let mut owners = vec![u16::MAX; SLOTS];
        for (range, primary) in &self.ranges {
            let slots = owners.get_mut(usize::from(*range.start())..=usize::from(*range.end()));
            slots.unwrap_or_default().fill(u16::try_from(*primary).unwrap_or(u16::MAX));
        }
        owners
    }

    /// The slots that no node has, as ranges.
    pub(in crate::sink::redis) fn uncovered(&self) -> Vec<String> {
        let owners = self.owners();
        let slots = (0..).zip(owners).filter(|(slot, owner)| *owner == u16::MAX && !is_in(&self.nameless, *slot));
        let slots: Vec<u16> = slots.map(|(slot, _)| slot).collect();
        let runs = slots.chunk_by(|slot, next| slot + 1 == *next);
        shown(&runs.filter_map(|run| Some(*run.first()?..=*run.last()?)).collect::<Vec<_>>())
    }

    /// The slots whose node announces no address, as ranges.
    pub(in crate::sink::redis) fn nameless(&self) -> Vec<String> {
        shown(&self.nameless)
    }

    /// The failure of a record whose slot no reachable node has.
    pub(in crate::sink::redis) fn unserved(&self, slot: u16) -> Failure {
        let text = if is_in(&self.nameless, slot) {
            format!("Redis at {}: the node that has slot {slot} announces no address", self.by)
        } else {
            format!("Redis at {}: no node of the cluster has slot {slot}", self.by)
        };
        Failure::new(FailureClass::Environment, NOT_WRITABLE, text)
    }
}

/// Connects to a node and asks it.
async fn ask(settings: &RedisSettings, node: Server) -> Result<View, Failure> {
    let asking = async { View::of(&mut RedisConnection::open_at(settings, &node).await?).await };
    within(&KIND, &node.address(), asking).await
}

/// The failure if no node gives a view: the one that an operator has to fix, if there is one.
fn none_says(settings: &RedisSettings, mut failures: Vec<Failure>) -> Failure {
    if let Some(index) = failures.iter().position(|failure| failure.class == FailureClass::LogIn) {
        return failures.swap_remove(index);
    }
    let text = failures.iter().map(|failure| failure.text.as_str()).collect::<Vec<_>>().join("; ");
    match failures.into_iter().find(|failure| failure.reason == NOT_PERMITTED) {
        Some(failure) => Failure { text, ..failure },
        None => KIND.broken(&settings.address(), &text),
    }
}

fn is_in(ranges: &[RangeInclusive<u16>], slot: u16) -> bool {
    ranges.iter().any(|range| range.contains(&slot))
}

fn shown(ranges: &[RangeInclusive<u16>]) -> Vec<String> {
    let one = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    ranges.iter().map(one).collect()
}

/// The host and the port of a node in a reply, which may have more parts. `None`: it is no node.
fn named(node: &Value) -> Option<(String, u16)> {
    let Value::Array(node) = node else { return None };
    let [host, Value::Int(port), ..] = node.as_slice() else { return None };
    let host: Option<String> = from_redis_value_ref(host).ok()?;
    // An empty host stands for the address at which that node was asked.
    Some((host.unwrap_or_default(), u16::try_from(*port).ok()?))
}

/// The number of a server, which is appended unless it is there.
pub(super) fn number_of(servers: &mut Vec<Server>, server: Server) -> usize {
    servers.iter().position(|known| *known == server).unwrap_or_else(|| {
        servers.push(server);
        servers.len() - 1
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Of ranges, each with its nodes as `host:port`, the primary first.
    pub(in crate::sink::redis) fn view(ranges: &[(u16, u16, &str)]) -> View {
        View::of_reply("seed:1", "seed", Some("ok".to_owned()), &parsed(&slots(ranges))).unwrap()
    }

    fn parsed(reply: &str) -> Value {
        redis::parse_redis_value(reply.as_bytes()).unwrap()
    }

    /// The reply to CLUSTER SLOTS, as servers from Redis 7 on have it.
    pub(in crate::sink::redis) fn slots(ranges: &[(u16, u16, &str)]) -> String {
        let node = |node: &str| {
            let (host, port) = node.rsplit_once(':').unwrap();
            let host = if host == "null" { "$-1".to_owned() } else { format!("${}\r\n{host}", host.len()) };
            format!("*4\r\n{host}\r\n:{port}\r\n$2\r\nid\r\n*2\r\n$2\r\nip\r\n$1\r\n1\r\n")
        };
        let range = |(first, last, nodes): &(u16, u16, &str)| {
            let nodes: Vec<String> = nodes.split(' ').map(node).collect();
            format!("*{}\r\n:{first}\r\n:{last}\r\n{}", nodes.len() + 2, nodes.concat())
        };
        format!("*{}\r\n{}", ranges.len(), ranges.iter().map(range).collect::<String>())
    }

    #[test]
    fn slots_have_the_primaries_that_the_reply_names() {
        let view = view(&[(0, 99, "a:1 b:2"), (100, 100, "c:3"), (200, 16383, "a:1 d:4 b:2")]);
        let owner = |slot: u16| view.owner(slot).map(Server::address);
        assert_eq!((owner(0), owner(100)), (Some("a:1".to_owned()), Some("c:3".to_owned())));
        assert_eq!((owner(101), owner(16383)), (None, Some("a:1".to_owned())));
        assert_eq!(view.uncovered(), ["101-199"]);
        assert_eq!((view.primaries.len(), view.replicas.len()), (2, 2));
        let owners = view.owners();
        assert_eq!((owners[99], owners[100], owners[150], owners[200]), (0, 1, u16::MAX, 0));
    }

    #[test]
    fn a_host_that_is_empty_is_that_of_the_node_asked_and_a_question_mark_is_nobodys() {
        let view = view(&[(0, 1, ":7"), (2, 3, "null:8"), (4, 5, "?:9 e:1")]);
        let addresses: Vec<String> = view.primaries.iter().map(Server::address).collect();
        assert_eq!(addresses, ["seed:7", "seed:8"]);
        assert_eq!((view.owner(4), view.uncovered()), (None, vec!["6-16383".to_owned()]));
        assert_eq!(view.nameless(), ["4-5"]);
        assert!(view.unserved(5).to_string().contains("slot 5 announces no address"));
        assert!(view.unserved(6).to_string().contains("no node of the cluster has slot 6"));
    }

    #[test]
    fn what_is_no_such_reply_is_a_failure() {
        let failure = |reply: &str| View::of_reply("s:1", "s", None, &parsed(reply)).unwrap_err();
        let single = failure("-ERR This instance has cluster support disabled\r\n").to_string();
        assert!(single.contains("support disabled"));
        assert_eq!(failure("-NOAUTH no\r\n").class, FailureClass::LogIn);
        for reply in ["+OK\r\n", "*1\r\n:1\r\n", "*1\r\n*2\r\n:1\r\n:99999\r\n", "*1\r\n*3\r\n:1\r\n:2\r\n*1\r\n:3\r\n"]
        {
            assert_eq!(failure(reply).class, FailureClass::Environment, "{reply}");
        }
    }
}

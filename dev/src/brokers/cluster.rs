//! A cluster of Valkey: primaries that share the slots, and replicas of them.
//!
//! In: how many of each. Out: a cluster that takes writes, whose nodes can be killed, suspended and started again, and whose slots can be
//! moved. Nodes are told of one another by their own commands; no other program is needed.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Broker, Kind, Reply};
use crate::process::{self, wait_until};
use crate::run_dir;

/// How many slots a cluster has.
const SLOTS: usize = 16_384;

/// How long it may take to agree, on a machine that has more to do.
const AGREE: Duration = Duration::from_mins(1);

/// A node that is silent for so long counts as failed, in milliseconds.
const NODE_TIMEOUT: &str = "cluster-node-timeout 1500";

/// A cluster of our own; it ends when dropped.
#[derive(Debug)]
pub struct Cluster {
    /// Primaries first, then their replicas, as they were at the start.
    pub nodes: Vec<Broker>,
}

impl Cluster {
    /// Starts `primaries`, which share the slots evenly, and one replica of each of the first `replicas` of them; `more` lines of
    /// configuration.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(primaries: usize, replicas: usize, more: &[&str]) -> Result<Self> {
        let start = || -> Result<Broker> {
            let bus = format!("cluster-port {}", run_dir::free_port()?);
            // A replica would wait five seconds for others.
            let own = ["cluster-enabled yes", NODE_TIMEOUT, "repl-diskless-sync-delay 0", &bus];
            Broker::start(Kind::Valkey, &[&own, more].concat())
        };
        let nodes = (0..primaries + replicas).map(|_| start()).collect::<Result<Vec<_>>>()?;
        let cluster = Self { nodes };
        cluster.introduce(primaries)?;
        cluster.wait_until_ok()?;
        for number in 0..replicas {
            let primary = cluster.id(number)?;
            cluster.until(primaries + number, &["CLUSTER", "REPLICATE", &primary], "OK")?;
        }
        for number in 0..replicas {
            cluster.wait_for_replica(number)?;
        }
        Ok(cluster)
    }

    /// Gives the primaries their slots, and each node the address of the first.
    fn introduce(&self, primaries: usize) -> Result<()> {
        let (port, bus) = (self.node(0)?.port().to_string(), bus(self.node(0)?)?);
        for number in 0..self.nodes.len() {
            self.expect_ok(number, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            if number < primaries {
                let (first, last) = (SLOTS * number / primaries, SLOTS * (number + 1) / primaries - 1);
                self.expect_ok(number, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            }
            if number > 0 {
                self.expect_ok(number, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            }
        }
        Ok(())
    }

    /// Waits until every node that runs sees all slots, all nodes and no failure.
    ///
    /// # Errors
    /// That takes too long.
    pub fn wait_until_ok(&self) -> Result<()> {
        let all = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
            wait_until(AGREE, "the cluster", || {
                let info = node.resp()?.call(&["CLUSTER", "INFO"])?.text();
                Ok(info.contains("cluster_state:ok") && info.contains(&all))
            })?;
        }
        Ok(())
    }

    /// Waits until a node has a replica that has received everything.
    ///
    /// # Errors
    /// That takes too long.
    pub fn wait_for_replica(&self, number: usize) -> Result<()> {
        wait_until(AGREE, "a replica", || {
            Ok(self.call(number, &["INFO", "replication"])?.text().contains("state=online"))
        })
    }

    /// Waits until this node is a primary.
    ///
    /// # Errors
    /// That takes too long.
    pub fn wait_until_primary(&self, number: usize) -> Result<()> {
        wait_until(AGREE, "the failover", || {
            Ok(self.call(number, &["ROLE"])?.items().first().is_some_and(|role| role.text() == "master"))
        })
    }

    /// One of the nodes.
    ///
    /// # Errors
    /// There are not so many.
    pub fn node(&self, number: usize) -> Result<&Broker> {
        self.nodes.get(number).context("no such node")
    }

    /// What `--to` takes for it: all of its nodes.
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis://{}", nodes.join(","))
    }

    /// The nodes' ports on 127.0.0.1.
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(Broker::port).collect()
    }

    /// CPU time of all nodes.
    ///
    /// # Errors
    /// One does not run.
    pub fn cpu(&self) -> Result<Duration> {
        self.nodes.iter().filter_map(Broker::server_pid).map(process::cpu_time).sum()
    }

    /// A node's reply to a command; an error may be one.
    ///
    /// # Errors
    /// It does not answer.
    pub fn call<A: AsRef<[u8]>>(&self, number: usize, words: &[A]) -> Result<Reply> {
        self.node(number)?.resp()?.call(words)
    }

    /// The reply to a command about a key, by the node that has it.
    ///
    /// # Errors
    /// That is an error, or no node answers.
    pub fn of_key(&self, key: &str, words: &[&str]) -> Result<Reply> {
        // A node that is down, or has not heard of a move yet, does not have it.
        for _ in 0..100 {
            for node in &self.nodes {
                match node.resp().and_then(|mut connection| connection.call(words)) {
                    Ok(Reply::Error(error)) => {
                        let passes = ["MOVED", "ASK", "CLUSTERDOWN", "LOADING", "TRYAGAIN"];
                        ensure!(passes.iter().any(|code| error.starts_with(code)), "{words:?}: {error}");
                    }
                    Ok(reply) => return Ok(reply),
                    Err(_down) => {}
                }
            }
            thread::sleep(Duration::from_millis(50));
        }
        bail!("no node has {key}")
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// The first node does not answer.
    pub fn slot(&self, key: &str) -> Result<u16> {
        let slot = self.call(0, &["CLUSTER", "KEYSLOT", key])?.integer().context("no slot")?;
        Ok(u16::try_from(slot)?)
    }

    /// The number of the node that has a slot, as the first node sees it.
    ///
    /// # Errors
    /// There is none.
    pub fn owner(&self, slot: u16) -> Result<usize> {
        let ranges = self.call(0, &["CLUSTER", "SLOTS"])?;
        let has = |range: &&Reply| {
            let ends: Vec<i64> = range.items().iter().take(2).filter_map(Reply::integer).collect();
            matches!(ends[..], [first, last] if (first..=last).contains(&i64::from(slot)))
        };
        let range = ranges.items().iter().find(has).context("nobody has the slot")?;
        let port = range.items().get(2).and_then(|node| node.items().get(1)?.integer()).context("no port")?;
        self.nodes.iter().position(|node| i64::from(node.port()) == port).context("a node that is not ours")
    }

    /// Begins to move a slot on both nodes: from now on, a key that its old node does not have is asked for at `to`.
    ///
    /// # Errors
    /// A node refuses.
    pub fn begin_move(&self, slot: u16, to: usize) -> Result<()> {
        let (from, number) = (self.owner(slot)?, slot.to_string());
        self.expect_ok(to, &["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.id(from)?])?;
        self.expect_ok(from, &["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.id(to)?])
    }

    /// Moves at most this many keys of the slot. Returns whether any are left.
    ///
    /// # Errors
    /// A node refuses.
    pub fn move_keys(&self, slot: u16, to: usize, most: usize) -> Result<bool> {
        let (from, port) = (self.owner(slot)?, self.node(to)?.port().to_string());
        let number = slot.to_string();
        let keys = self.call(from, &["CLUSTER", "GETKEYSINSLOT", &number, &most.to_string()])?;
        let keys: Vec<String> = keys.items().iter().map(Reply::text).collect();
        if !keys.is_empty() {
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let reply = self.call(from, &words)?;
            ensure!(["OK", "NOKEY"].contains(&reply.text().as_str()), "MIGRATE: {reply:?}");
        }
        Ok(self.call(from, &["CLUSTER", "COUNTKEYSINSLOT", &number])?.integer() > Some(0))
    }

    /// Ends the move: `to` has the slot now.
    ///
    /// # Errors
    /// A node refuses.
    pub fn end_move(&self, slot: u16, to: usize) -> Result<()> {
        let (from, id, number) = (self.owner(slot)?, self.id(to)?, slot.to_string());
        for node in [to, from] {
            self.expect_ok(node, &["CLUSTER", "SETSLOT", &number, "NODE", &id])?;
        }
        wait_until(AGREE, "the slot's move", || Ok(self.owner(slot)? == to))
    }

    /// Moves the slot as a whole, which Valkey knows from version 9 on.
    ///
    /// # Errors
    /// A node refuses, or it takes too long.
    pub fn move_at_once(&self, slot: u16, to: usize) -> Result<()> {
        let (from, number) = (self.owner(slot)?, slot.to_string());
        self.expect_ok(from, &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &number, &number, "NODE", &self.id(to)?])?;
        wait_until(AGREE, "the slot's move", || Ok(self.owner(slot)? == to))
    }

    /// The node's own name for itself.
    fn id(&self, number: usize) -> Result<String> {
        Ok(self.call(number, &["CLUSTER", "MYID"])?.text())
    }

    fn expect_ok(&self, number: usize, words: &[&str]) -> Result<()> {
        let reply = self.call(number, words)?;
        ensure!(reply == Reply::Text("OK".to_owned()), "{words:?}: {reply:?}");
        Ok(())
    }

    /// Repeats a command until its reply is this.
    fn until(&self, number: usize, words: &[&str], expected: &str) -> Result<()> {
        wait_until(AGREE, expected, || Ok(self.call(number, words)?.text() == expected))
    }
}

/// The port by which other nodes reach it.
fn bus(node: &Broker) -> Result<String> {
    let reply = node.resp()?.call(&["CONFIG", "GET", "cluster-port"])?;
    Ok(reply.items().get(1).context("no port for the cluster")?.text())
}

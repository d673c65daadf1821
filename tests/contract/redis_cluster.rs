//! Redis' streams on a cluster of Valkey: the script's addresses lie on several nodes.

use walrelay::sink::Sink;
use walrelay_dev::brokers::{Cluster, Reply};

use crate::redis::{open, payloads, wholes};
use crate::script::Ground;

/// Three primaries.
struct Nodes(Cluster);

impl Nodes {
    fn new() -> Self {
        Self(Cluster::start(3, 0, &[]).unwrap())
    }

    fn everywhere(&self, words: &[&str]) {
        for node in 0..self.0.nodes.len() {
            let reply = self.0.call(node, words).unwrap();
            assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
        }
    }
}

impl Ground for Nodes {
    /// What is kept beside it has to be in its slot.
    fn address(&self, name: &str) -> String {
        format!("{{{name}}}")
    }

    fn open(&self, max_in_flight: usize) -> Box<dyn Sink> {
        open(self.0.url().trim_start_matches("redis://"), &[], max_in_flight)
    }

    fn stored(&self, address: &str) -> Vec<String> {
        let address = self.address(address);
        payloads(&self.0.of_key(&address, &["XRANGE", &address, "-", "+"]).unwrap())
    }

    fn whole(&self, address: &str) -> Vec<(String, String)> {
        let address = self.address(address);
        wholes(&self.0.of_key(&address, &["XRANGE", &address, "-", "+"]).unwrap())
    }

    fn refuse(&self, address: &str) {
        let (address, kept) = (self.address(address), format!("{}:kept", self.address(address)));
        self.0.of_key(&address, &["EVAL", crate::redis::REFUSE, "2", &address, &kept]).unwrap();
    }

    fn allow(&self, address: &str) {
        let (address, kept) = (self.address(address), format!("{}:kept", self.address(address)));
        self.0.of_key(&address, &["EVAL", crate::redis::ALLOW, "2", &address, &kept]).unwrap();
    }

    fn fill(&self) {
        self.everywhere(&["CONFIG", "SET", "maxmemory", "1"]);
    }

    fn make_room(&self) {
        self.everywhere(&["CONFIG", "SET", "maxmemory", "0"]);
    }

    fn cut(&self) {
        self.everywhere(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
}

crate::contract!(Nodes);

//! Redis' streams, on Valkey: plain, waiting for the append-only file, and with repeats dropped.

use std::sync::Mutex;

use walrelay::sink::Sink;
use walrelay::sink::redis;
use walrelay_dev::brokers::{Broker, Kind, Reply, RespConnection};

use crate::script::{Ground, opened};

/// A server, and how the sink is to use it.
struct Valkey {
    broker: Broker,
    client: Mutex<RespConnection>,
    properties: &'static [(&'static str, &'static str)],
}

impl Valkey {
    fn with(properties: &'static [(&'static str, &'static str)]) -> Self {
        let broker = Broker::start(Kind::Valkey, &[]).unwrap();
        let client = Mutex::new(broker.resp().unwrap());
        Self { broker, client, properties }
    }

    fn call(&self, words: &[&str]) -> Reply {
        let reply = self.client.lock().unwrap().call(words).unwrap();
        assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
        reply
    }
}

/// A key of another type takes the stream's place, and the stream gets another name. In one step: what the sink adds between two commands
/// would be lost.
pub(crate) const REFUSE: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[2]) end \
     return redis.call('SET', KEYS[1], 'no stream')";

/// Ends that.
pub(crate) const ALLOW: &str = "redis.call('DEL', KEYS[1]) \
     return redis.call('EXISTS', KEYS[2]) == 1 and redis.call('RENAME', KEYS[2], KEYS[1])";

/// The sink, as settings name it.
pub(crate) fn open(address: &str, properties: &[(&str, &str)], max_in_flight: usize) -> Box<dyn Sink> {
    opened(&redis::KIND, "redis", address, properties, max_in_flight)
}

/// Of the entries that XRANGE replies with.
pub(crate) fn payloads(entries: &Reply) -> Vec<String> {
    let payload = |entry: &Reply| {
        let fields = entry.items()[1].items();
        let pairs: Vec<(String, String)> = fields.chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
        pairs.iter().find(|(name, _)| name == "payload").map(|(_, value)| value.clone()).unwrap()
    };
    entries.items().iter().map(payload).collect()
}

/// Of the same entries: the payload, and all fields.
pub(crate) fn wholes(entries: &Reply) -> Vec<(String, String)> {
    let fields = |entry: &Reply| {
        let fields = entry.items()[1].items().chunks(2).map(|pair| format!("{}={}", pair[0].text(), pair[1].text()));
        fields.collect::<Vec<_>>().join(" ")
    };
    payloads(entries).into_iter().zip(entries.items().iter().map(fields)).collect()
}

impl Ground for Valkey {
    fn open(&self, max_in_flight: usize) -> Box<dyn Sink> {
        open(&format!("127.0.0.1:{}", self.broker.port()), self.properties, max_in_flight)
    }

    fn stored(&self, address: &str) -> Vec<String> {
        payloads(&self.call(&["XRANGE", address, "-", "+"]))
    }

    fn whole(&self, address: &str) -> Vec<(String, String)> {
        wholes(&self.call(&["XRANGE", address, "-", "+"]))
    }

    fn refuse(&self, address: &str) {
        self.call(&["EVAL", REFUSE, "2", address, &format!("{address}:kept")]);
    }

    fn allow(&self, address: &str) {
        self.call(&["EVAL", ALLOW, "2", address, &format!("{address}:kept")]);
    }

    fn fill(&self) {
        self.call(&["CONFIG", "SET", "maxmemory", "1"]);
    }

    fn make_room(&self) {
        self.call(&["CONFIG", "SET", "maxmemory", "0"]);
    }

    fn cut(&self) {
        self.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
}

mod plain {
    struct Plain;

    impl Plain {
        #[allow(clippy::new_ret_no_self, reason = "the script's ground is the server")]
        fn new() -> super::Valkey {
            super::Valkey::with(&[])
        }
    }

    crate::contract!(Plain);
}

mod waiting {
    struct Waiting;

    impl Waiting {
        #[allow(clippy::new_ret_no_self, reason = "the script's ground is the server")]
        fn new() -> super::Valkey {
            super::Valkey::with(&[("wait", "0,1000")])
        }
    }

    crate::contract!(Waiting);
}

mod deduplicating {
    struct Deduplicating;

    impl Deduplicating {
        #[allow(clippy::new_ret_no_self, reason = "the script's ground is the server")]
        fn new() -> super::Valkey {
            super::Valkey::with(&[("dedupe", "1h"), ("maxlen", "1000000")])
        }
    }

    crate::contract!(Deduplicating);
}

//! NATS JetStream: with the id alone, and with subject and id, as what repeats are dropped by; and in atomic batches to one stream.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::{Value, json};
use walrelay::sink::Sink;
use walrelay::sink::nats;
use walrelay_dev::brokers::{Broker, JetStream, Kind};
use walrelay_dev::tap::Tap;

use crate::script::{Ground, opened};

/// What the script sends to.
const ADDRESSES: [&str; 12] =
    ["taken", "other", "full", "large", "blocked", "refused", "free", "dead", "held", "restart", "order0", "order1"];

/// A server, and how the sink is to use it.
struct Nats {
    tap: Tap,
    client: Mutex<JetStream>,
    properties: &'static [(&'static str, &'static str)],
    /// What takes each address: the stream of all of them, or one of its own, which is called like it.
    one: Option<&'static str>,
    /// Addresses that are refused.
    refused: Mutex<BTreeSet<String>>,
    // Ends after its connections.
    _broker: Broker,
}

impl Nats {
    fn with(properties: &'static [(&'static str, &'static str)], one: Option<&'static str>) -> Self {
        let broker = Broker::start(Kind::Nats, &[]).unwrap();
        let mut client = broker.jetstream(&Value::Null).unwrap();
        for address in ADDRESSES.into_iter().filter(|_| one.is_none()) {
            client.create_stream(address, &[address], &json!({ "discard": "new" })).unwrap();
        }
        if let Some(stream) = one {
            let more = json!({ "discard": "new", "allow_atomic": true });
            client.create_stream(stream, &ADDRESSES, &more).unwrap();
        }
        let tap = Tap::start(format!("127.0.0.1:{}", broker.port())).unwrap();
        Self { tap, client: Mutex::new(client), properties, one, refused: Mutex::default(), _broker: broker }
    }

    fn update(&self, stream: &str, changes: &Value) {
        self.client.lock().unwrap().update_stream(stream, changes).unwrap();
    }

    fn update_all(&self, changes: &Value) {
        let all = self.one.as_ref().map_or(&ADDRESSES[..], std::slice::from_ref);
        for stream in all {
            self.update(stream, changes);
        }
    }

    /// The streams take what is not refused.
    fn take_subjects(&self, changed: &str) {
        let refused = self.refused.lock().unwrap();
        let off = format!("{changed}.off");
        let (stream, known) = self.one.map_or_else(|| (changed, vec![changed]), |one| (one, ADDRESSES.to_vec()));
        let taken: Vec<&str> =
            known.into_iter().filter(|address| !refused.contains(*address)).chain([off.as_str()]).collect();
        self.update(stream, &json!({ "subjects": taken }));
    }
}

impl Ground for Nats {
    fn open(&self, max_in_flight: usize) -> Box<dyn Sink> {
        opened(&nats::KIND, "nats", &self.tap.address(), self.properties, max_in_flight)
    }

    fn stored(&self, address: &str) -> Vec<String> {
        let messages = self.client.lock().unwrap().messages(self.one.unwrap_or(address)).unwrap();
        let here = messages.into_iter().filter(|message| message.subject == address);
        here.map(|message| String::from_utf8(message.data).unwrap()).collect()
    }

    fn whole(&self, address: &str) -> Vec<(String, String)> {
        let messages = self.client.lock().unwrap().messages(self.one.unwrap_or(address)).unwrap();
        let here = messages.into_iter().filter(|message| message.subject == address);
        // A batch's number and a message's place in it are the batch's.
        here.map(|mut message| {
            message.headers.retain(|(name, _)| !name.starts_with("Nats-Batch-"));
            // The library keeps no order of names.
            message.headers.sort();
            (String::from_utf8(message.data).unwrap(), format!("{:?}", message.headers))
        })
        .collect()
    }

    /// No stream takes its subject any more.
    fn refuse(&self, address: &str) {
        self.refused.lock().unwrap().insert(address.to_owned());
        self.take_subjects(address);
    }

    fn allow(&self, address: &str) {
        self.refused.lock().unwrap().remove(address);
        self.take_subjects(address);
    }

    fn fill(&self) {
        self.update_all(&json!({ "max_bytes": 1 }));
    }

    fn make_room(&self) {
        self.update_all(&json!({ "max_bytes": -1 }));
    }

    fn cut(&self) {
        self.tap.cut();
    }
}

mod by_id {
    struct ById;

    impl ById {
        #[allow(clippy::new_ret_no_self, reason = "the script's ground is the server")]
        fn new() -> super::Nats {
            super::Nats::with(&[("msg-id", "id")], None)
        }
    }

    crate::contract!(ById);
}

mod by_subject_and_id {
    struct BySubjectAndId;

    impl BySubjectAndId {
        #[allow(clippy::new_ret_no_self, reason = "the script's ground is the server")]
        fn new() -> super::Nats {
            super::Nats::with(&[], None)
        }
    }

    crate::contract!(BySubjectAndId);
}

mod in_batches {
    struct InBatches;

    impl InBatches {
        #[allow(clippy::new_ret_no_self, reason = "the script's ground is the server")]
        fn new() -> super::Nats {
            super::Nats::with(&[("stream", "contract"), ("atomic", "true")], Some("contract"))
        }
    }

    crate::contract!(InBatches);
}

//! NATS JetStream: with the id alone, and with subject and id, as what repeats are dropped by.

use std::sync::Mutex;

use serde_json::{Value, json};
use walrelay::given::{Given, Origin};
use walrelay::sink::Sink;
use walrelay::sink::nats::{self, Settings};
use walrelay_dev::brokers::{Broker, JetStream, Kind};
use walrelay_dev::tap::Tap;

use crate::script::Ground;

/// What the script sends to; each has a stream of its own.
const ADDRESSES: [&str; 12] =
    ["taken", "other", "full", "large", "blocked", "refused", "free", "dead", "held", "restart", "order0", "order1"];

/// A server, and how the sink is to use it.
struct Nats {
    tap: Tap,
    client: Mutex<JetStream>,
    properties: &'static [(&'static str, &'static str)],
    // Ends after its connections.
    _broker: Broker,
}

impl Nats {
    fn with(properties: &'static [(&'static str, &'static str)]) -> Self {
        let broker = Broker::start(Kind::Nats, &[]).unwrap();
        let mut client = broker.jetstream(&Value::Null).unwrap();
        for address in ADDRESSES {
            client.create_stream(address, &[address], &json!({ "discard": "new" })).unwrap();
        }
        let tap = Tap::start(format!("127.0.0.1:{}", broker.port())).unwrap();
        Self { tap, client: Mutex::new(client), properties, _broker: broker }
    }

    fn update(&self, stream: &str, changes: &Value) {
        self.client.lock().unwrap().update_stream(stream, changes).unwrap();
    }

    fn update_all(&self, changes: &Value) {
        for address in ADDRESSES {
            self.update(address, changes);
        }
    }
}

impl Ground for Nats {
    fn open(&self, max_in_flight: usize) -> Box<dyn Sink> {
        let given = |text: &str| Given { text: text.to_owned(), origin: Origin::Flag("-X".to_owned()) };
        let properties: Vec<(&str, Given)> = self.properties.iter().map(|(name, text)| (*name, given(text))).collect();
        let property = |name: &str| properties.iter().find(|(known, _)| *known == name).map(|(_, given)| given);
        let address = given(&self.tap.address());
        Box::new(nats::open(Settings::read("nats", &address, property, max_in_flight).unwrap()).unwrap())
    }

    fn stored(&self, address: &str) -> Vec<String> {
        let messages = self.client.lock().unwrap().messages(address).unwrap();
        messages.into_iter().map(|message| String::from_utf8(message.data).unwrap()).collect()
    }

    /// Its stream takes another subject, and none takes this one.
    fn refuse(&self, address: &str) {
        self.update(address, &json!({ "subjects": [format!("{address}.off")] }));
    }

    fn allow(&self, address: &str) {
        self.update(address, &json!({ "subjects": [address] }));
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
            super::Nats::with(&[])
        }
    }

    crate::contract!(ById);
}

mod by_subject_and_id {
    struct BySubjectAndId;

    impl BySubjectAndId {
        #[allow(clippy::new_ret_no_self, reason = "the script's ground is the server")]
        fn new() -> super::Nats {
            super::Nats::with(&[("msg-id", "subject")])
        }
    }

    crate::contract!(BySubjectAndId);
}

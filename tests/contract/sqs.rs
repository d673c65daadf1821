//! FIFO queues of SQS, on ElasticMQ behind a gate that refuses and throttles in the service's words.

use std::collections::BTreeMap;
use std::sync::Mutex;

use walrelay::sink::Sink;
use walrelay::sink::sqs;
use walrelay_dev::brokers::{Broker, Kind, SqsMessage, shared};
use walrelay_dev::gate::Gate;
use walrelay_dev::postgres::unique_name;

use crate::script::{Ground, opened};

/// What the script sends to.
const ADDRESSES: [&str; 12] =
    ["taken", "other", "full", "large", "blocked", "refused", "free", "dead", "held", "restart", "order0", "order1"];

/// A server, a gate of one's own before it, and a queue for each address.
struct Queued {
    broker: &'static Broker,
    gate: Gate,
    name: String,
    /// What was taken out of each queue.
    taken: Mutex<BTreeMap<String, Vec<SqsMessage>>>,
}

impl Queued {
    fn new() -> Self {
        let broker = shared(Kind::ElasticMq).unwrap();
        let (name, gate) = (unique_name("contract"), Gate::start(broker.port()).unwrap());
        let ground = Self { broker, gate, name, taken: Mutex::default() };
        for address in ADDRESSES {
            broker.queues().create(&ground.queue(address), &[]).unwrap();
        }
        ground
    }

    fn queue(&self, address: &str) -> String {
        format!("{}-{address}.fifo", self.name)
    }

    /// Everything that was in an address' queue.
    fn messages(&self, address: &str) -> Vec<SqsMessage> {
        let messages = self.broker.queues().drain(&self.queue(address)).unwrap();
        let mut taken = self.taken.lock().unwrap();
        let of_address = taken.entry(address.to_owned()).or_default();
        of_address.extend(messages);
        of_address.clone()
    }
}

impl Ground for Queued {
    fn address(&self, address: &str) -> String {
        self.queue(address)
    }

    fn open(&self, max_in_flight: usize) -> Box<dyn Sink> {
        let address = format!("test:test@127.0.0.1:{}/elasticmq", self.gate.port());
        opened(&sqs::KIND, "sqs+http", &address, &[], max_in_flight)
    }

    fn stored(&self, address: &str) -> Vec<String> {
        self.messages(address).into_iter().map(|message| message.body).collect()
    }

    fn whole(&self, address: &str) -> Vec<(String, String)> {
        let messages = self.messages(address).into_iter();
        messages.map(|it| (it.body, format!("{} {} {:?}", it.group, it.deduplication_id, it.attributes))).collect()
    }

    fn refuse(&self, address: &str) {
        self.gate.refuse(&self.queue(address), "com.amazon.coral.service#AccessDeniedException");
    }

    fn allow(&self, address: &str) {
        self.gate.allow(&self.queue(address));
    }

    fn fill(&self) {
        self.gate.throttle(Some((400, "ThrottlingException")));
    }

    fn make_room(&self) {
        self.gate.throttle(None);
    }

    fn cut(&self) {
        self.gate.cut();
    }
}

crate::contract!(Queued);

/// The server may take some messages of a batch and refuse others.
#[test]
fn records_of_a_key_keep_their_order_while_the_server_refuses_and_allows_them() {
    crate::script::switched(&Queued::new());
}

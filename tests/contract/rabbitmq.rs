//! RabbitMQ: quorum queues behind a topic exchange, one for each address.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use walrelay::sink::Sink;
use walrelay::sink::rabbitmq;
use walrelay_dev::brokers::{AmqpConnection, AmqpMessage, Broker, Kind, shared};
use walrelay_dev::postgres::unique_name;
use walrelay_dev::tap::Tap;

use crate::script::{Ground, opened};

/// An alarm is the whole broker's, which costs seconds to start: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// What the script sends to.
const ADDRESSES: [&str; 11] =
    ["taken", "other", "full", "large", "blocked", "refused", "free", "dead", "held", "order0", "order1"];

/// A broker, an exchange of one's own, and a queue for each address.
struct Rabbit {
    broker: &'static Broker,
    tap: Tap,
    exchange: String,
    client: Mutex<AmqpConnection>,
    /// What was taken out of each queue.
    taken: Mutex<BTreeMap<String, Vec<AmqpMessage>>>,
    _turn: MutexGuard<'static, ()>,
}

impl Rabbit {
    fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let broker = shared(Kind::RabbitMq).unwrap();
        let exchange = unique_name("contract");
        let mut client = broker.amqp().unwrap();
        client.exchange(&exchange, "topic").unwrap();
        let ground = Self {
            tap: Tap::start(format!("127.0.0.1:{}", broker.port())).unwrap(),
            broker,
            client: Mutex::new(client),
            taken: Mutex::default(),
            exchange,
            _turn: turn,
        };
        ground.make_room();
        for address in ADDRESSES.into_iter().chain(["restart"]) {
            ground.client.lock().unwrap().queue(&ground.queue(address), &[("x-queue-type", "quorum")]).unwrap();
            ground.allow(address);
        }
        ground
    }

    fn queue(&self, address: &str) -> String {
        format!("{}.{address}", self.exchange)
    }

    /// Everything that was in an address' queue.
    fn messages(&self, address: &str) -> Vec<AmqpMessage> {
        let messages = self.client.lock().unwrap().drain(&self.queue(address)).unwrap();
        let mut taken = self.taken.lock().unwrap();
        let of_address = taken.entry(address.to_owned()).or_default();
        of_address.extend(messages);
        of_address.clone()
    }
}

impl Ground for Rabbit {
    fn open(&self, max_in_flight: usize) -> Box<dyn Sink> {
        let properties = [("exchange", self.exchange.as_str())];
        opened(&rabbitmq::KIND, "amqp", &self.tap.address(), &properties, max_in_flight)
    }

    fn stored(&self, address: &str) -> Vec<String> {
        self.messages(address).iter().map(AmqpMessage::text).collect()
    }

    fn whole(&self, address: &str) -> Vec<(String, String)> {
        let messages = self.messages(address).into_iter();
        messages.map(|it| (it.text(), format!("{} {:?} {:?}", it.key, it.properties, it.headers))).collect()
    }

    /// No queue takes them.
    fn refuse(&self, address: &str) {
        self.client.lock().unwrap().unbind(&self.queue(address), &self.exchange, address).unwrap();
    }

    fn allow(&self, address: &str) {
        self.client.lock().unwrap().bind(&self.queue(address), &self.exchange, address).unwrap();
    }

    /// An alarm: the broker takes nothing from those who publish.
    fn fill(&self) {
        self.broker.control(&["set_vm_memory_high_watermark", "absolute", "1MB"]).unwrap();
    }

    fn make_room(&self) {
        self.broker.control(&["set_vm_memory_high_watermark", "absolute", "1GB"]).unwrap();
    }

    fn cut(&self) {
        self.tap.cut();
    }
}

crate::contract!(Rabbit);

/// The server may take some messages of a batch and refuse others.
#[test]
fn records_of_a_key_keep_their_order_while_the_server_refuses_and_allows_them() {
    crate::script::switched(&Rabbit::new());
}

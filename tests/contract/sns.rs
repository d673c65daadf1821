//! FIFO topics of SNS, behind a gate that keeps them itself.

use walrelay::sink::Sink;
use walrelay::sink::sqs;
use walrelay_dev::gate::Gate;

use crate::script::{Ground, opened};

/// What the script sends to.
const ADDRESSES: [&str; 12] =
    ["taken", "other", "full", "large", "blocked", "refused", "free", "dead", "held", "restart", "order0", "order1"];

/// Topics.
struct Notified(Gate);

impl Notified {
    fn new() -> Self {
        let ground = Self(Gate::of_topics().unwrap());
        for address in ADDRESSES {
            ground.0.create_topic(&ground.address(address));
        }
        ground
    }
}

impl Ground for Notified {
    fn address(&self, name: &str) -> String {
        format!("arn:aws:sns:region-1:123456789012:{name}.fifo")
    }

    fn open(&self, max_in_flight: usize) -> Box<dyn Sink> {
        let address = format!("test:test@127.0.0.1:{}/region-1", self.0.port());
        opened(&sqs::TOPICS_KIND, "sns+http", &address, &[], max_in_flight)
    }

    fn stored(&self, address: &str) -> Vec<String> {
        self.0.published(&self.address(address)).into_iter().map(|message| message.body).collect()
    }

    fn whole(&self, address: &str) -> Vec<(String, String)> {
        let messages = self.0.published(&self.address(address)).into_iter();
        messages.map(|it| (it.body, format!("{} {} {:?}", it.group, it.deduplication_id, it.attributes))).collect()
    }

    fn refuse(&self, address: &str) {
        self.0.refuse(&self.address(address), "AuthorizationError");
    }

    fn allow(&self, address: &str) {
        self.0.allow(&self.address(address));
    }

    fn fill(&self) {
        self.0.throttle(Some((429, "Throttled")));
    }

    fn make_room(&self) {
        self.0.throttle(None);
    }

    fn cut(&self) {
        self.0.cut();
    }
}

crate::contract!(Notified);

//! Exactly once, and a partition without a leader while its transaction ends: Kafka 4.3.1 takes it for deleted, and never marks it. Here
//! its only replica is on one of three brokers.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use walrelay_dev::cluster::Cluster;
use walrelay_dev::kafka::Options;
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::{Direction, Tap};

use crate::exactly_once::{EXACTLY_ONCE, TABLE, insert, meter};
use crate::lane::{LONG, Lane};
use crate::unmarked::rows_are_seen;

/// What a relay says that has taken its transactions over.
const TAKEN_OVER: &str = "exactly once: resuming";

/// Three brokers that send each other what they send by lines, and a relay that writes to a topic of two partitions.
struct Three {
    cluster: Cluster,
    postgres: Tap,
    lane: Lane,
    relay: Relay,
    /// The place of the broker that alone has the first partition. Others lead where transactions end and where progress is written: two
    /// replicas have to be in sync there, and with its lines held up this one has none.
    only: usize,
    started: usize,
}

impl Three {
    /// A hundred rows are written.
    fn start() -> Self {
        let properties = vec![("inter.broker.listener.name".to_owned(), "TAPPED".to_owned())];
        let cluster = Cluster::start(3, &Options { properties, ..Options::default() }).unwrap();
        let mut lane = Lane::on(shared_postgres().unwrap(), &cluster.brokers()[0]).furnish(TABLE, "outbox");
        (lane.brokers, lane.client) = (cluster.plain_brokers(), cluster.client_config());
        let postgres = Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port().unwrap())).unwrap();
        lane.source = format!("postgres://postgres@{}/{}", postgres.address(), lane.name);
        let relay = lane.streaming(&[EXACTLY_ONCE]);
        let mut three = Self { cluster, postgres, lane, relay, only: 0, started: 1 };
        three.wait_taken_over();
        let taken = ["__transaction_state", "walrelay.progress"].map(|topic| three.leader(topic, 0).unwrap());
        three.only = (0..3).zip(1..).find(|(_, id)| !taken.contains(id)).unwrap().0;
        three.make_topic();
        insert(&three.lane, 1, 100);
        rows_are_seen(&three.lane, &three.relay, 100);
        three
    }

    fn make_topic(&self) {
        let name = self.lane.topic("order");
        let replicas = format!("{},{}", self.only + 1, (self.only + 1) % 3 + 1);
        let mut tool = self.cluster.brokers()[0].tool("org.apache.kafka.tools.TopicCommand").unwrap();
        tool.args(["--bootstrap-server", &self.lane.brokers, "--create", "--topic", &name]);
        tool.args(["--replica-assignment", &replicas, "--config", "min.insync.replicas=1"]);
        let made = tool.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        wait_until(LONG, "the topic to have leaders", || {
            Ok((0..2).all(|partition| self.leader(&name, partition).is_some()))
        })
        .unwrap();
    }

    fn leader(&self, topic: &str, partition: i32) -> Option<i32> {
        let consumer: BaseConsumer = self.lane.client.create().unwrap();
        let metadata = consumer.fetch_metadata(None, LONG).unwrap();
        let topic = metadata.topics().iter().find(|found| found.name() == topic)?;
        let found = topic.partitions().iter().find(|found| found.id() == partition)?;
        Some(found.leader()).filter(|leader| *leader >= 0)
    }

    /// Kills the broker that alone has the first partition, and waits until the others know.
    fn kill_only(&mut self) {
        self.cluster.broker(self.only).unwrap().kill().unwrap();
        let topic = self.lane.topic("order");
        wait_until(LONG, "the partition to have no leader", || Ok(self.leader(&topic, 0).is_none())).unwrap();
    }

    fn start_only(&mut self) {
        self.cluster.broker(self.only).unwrap().start_again().unwrap();
    }

    fn restart_relay(&mut self) {
        self.relay.start_again().unwrap();
        self.started += 1;
    }

    fn wait_taken_over(&self) {
        let taken_over = || Ok(self.relay.log().matches(TAKEN_OVER).count() >= self.started);
        wait_until(LONG, "the relay to take over", taken_over)
            .unwrap_or_else(|error| panic!("{error}: {}", self.relay.log()));
    }

    #[track_caller]
    fn end(mut self, last: u32) {
        self.lane.wait_confirmed();
        rows_are_seen(&self.lane, &self.relay, last);
        assert_eq!(self.relay.terminate(LONG).unwrap().code, 0, "{}", self.relay.log());
    }
}

#[test]
#[ignore = "slow"]
fn rows_that_were_aborted_while_their_partition_had_no_leader_stay_unseen() {
    let mut three = Three::start();
    let written = meter(&three.lane);
    let before = written.count().unwrap();
    // So slow that it takes some seconds.
    three.postgres.limit(Direction::ToClient, 1_000_000);
    insert(&three.lane, 101, 20_000);
    wait_until(LONG, "a part of them to be written", || Ok(written.count()? > before + 500)).unwrap();
    three.relay.kill9().unwrap();
    three.kill_only();
    three.postgres.flow();
    three.restart_relay();
    // Their transaction is aborted by now.
    three.wait_taken_over();
    std::thread::sleep(Duration::from_secs(1));
    three.start_only();
    three.end(20_000);
}

#[test]
#[ignore = "slow"]
fn rows_that_were_committed_while_their_partition_had_no_leader_are_seen() {
    let mut three = Three::start();
    let line = &three.cluster.taps()[three.only];
    // Its markers are on their way. So is what it is to have of other partitions, without which these do.
    line.stall_both();
    insert(&three.lane, 101, 200);
    three.lane.wait_confirmed();
    three.relay.kill9().unwrap();
    three.kill_only();
    let line = &three.cluster.taps()[three.only];
    line.cut();
    line.flow();
    three.start_only();
    three.restart_relay();
    rows_are_seen(&three.lane, &three.relay, 200);
    insert(&three.lane, 201, 300);
    three.end(300);
}

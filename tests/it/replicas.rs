//! Exactly once asks for replicas: one is refused unless it is accepted, and of three two have to be in sync.

use walrelay_dev::cluster::Cluster;
use walrelay_dev::kafka::Options;
use walrelay_dev::postgres::shared_postgres;

use crate::exactly_once::{EXACTLY_ONCE, TABLE, each_once, insert};
use crate::lane::{LONG, Lane, ended, hint};
use crate::prune::set_up;

/// Three brokers whose topics have one replica, and nothing in sync, unless they are created otherwise.
struct Three {
    cluster: Cluster,
    lane: Lane,
}

impl Three {
    fn start() -> Self {
        let properties = [("default.replication.factor", "1"), ("min.insync.replicas", "1")];
        let properties = properties.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let cluster = Cluster::start(3, &Options { properties, ..Options::default() }).unwrap();
        let mut lane = Lane::on(shared_postgres().unwrap(), &cluster.brokers()[0]).furnish(TABLE, "outbox");
        (lane.brokers, lane.client) = (cluster.plain_brokers(), cluster.client_config());
        set_up(&lane, &[]);
        Self { cluster, lane }
    }

    /// Runs one of Kafka's tools; what it prints.
    #[track_caller]
    fn tool(&self, class: &str, arguments: &[&str]) -> String {
        let mut tool = self.cluster.brokers()[0].tool(class);
        let output = tool.args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn topics(&self, arguments: &[&str]) -> String {
        let class = "org.apache.kafka.tools.TopicCommand";
        self.tool(class, &[&["--bootstrap-server", &self.lane.brokers], arguments].concat())
    }

    fn create(&self, topic: &str, replicas: &str) {
        self.topics(&["--create", "--topic", topic, "--replication-factor", replicas, "--partitions", "2"]);
    }
}

#[test]
fn one_replica_is_refused_before_anything_is_written_unless_it_is_accepted() {
    let lane = Lane::with(TABLE, "outbox");
    set_up(&lane, &[]);
    insert(&lane, 1, 10);
    let (code, log) = ended(&mut lane.relay(&[EXACTLY_ONCE, "--accept-one-replica=false"]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("topic __transaction_state has one replica"), "{log}");
    assert!(hint(&log).contains("--accept-one-replica") && hint(&log).contains("three replicas"), "{log}");
    assert_eq!(lane.records_now("order").len(), 0);
    let mut relay = lane.streaming(&[EXACTLY_ONCE, "--accept-one-replica"]);
    each_once(&lane.records("order"), 10);
    assert!(relay.log().contains("topics of one replica, as accepted"), "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_topic_of_which_one_replica_may_be_in_sync_alone_is_refused_until_the_hint_is_followed() {
    let three = Three::start();
    let lane = &three.lane;
    three.create(&lane.topic("order"), "3");
    insert(lane, 1, 10);
    let mut relay = lane.relay(&[EXACTLY_ONCE]);
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains(&format!("topic {} has 3 replicas and min.insync.replicas=1", lane.topic("order"))), "{log}");
    assert_eq!(lane.records_now("order").len(), 0);
    // Its own topic has what is needed, whatever the cluster's defaults.
    let progress = three.topics(&["--describe", "--topic", "walrelay.progress"]);
    assert!(progress.contains("ReplicationFactor: 3") && progress.contains("min.insync.replicas=2"), "{progress}");
    let fix = hint(&log);
    let command = fix.split_once("kafka-configs.sh ").unwrap_or_else(|| panic!("{fix}")).1;
    three.tool("kafka.admin.ConfigCommand", &command.split_whitespace().collect::<Vec<_>>());
    relay.start_again().unwrap();
    each_once(&lane.records("order"), 10);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_topic_of_one_replica_that_comes_while_the_relay_runs_is_refused_and_two_replicas_are_warned_of() {
    let three = Three::start();
    let lane = &three.lane;
    three.create(&lane.topic("order"), "2");
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(lane, 1, 10);
    each_once(&lane.records("order"), 10);
    assert!(relay.log().contains(&format!("topic {} has two replicas", lane.topic("order"))), "{}", relay.log());
    // It is created on demand, with one replica.
    lane.sql("INSERT INTO outbox VALUES (11, 'returns', 'k', 't', 'p')");
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains(&format!("topic {} has one replica", lane.topic("returns"))), "{log}");
    assert_eq!(lane.records_now("returns").len(), 0);
    each_once(&lane.records_now("order"), 10);
    let mut accepting = lane.streaming(&[EXACTLY_ONCE, "--accept-one-replica"]);
    assert_eq!(lane.ids("returns"), ["11"]);
    assert_eq!(accepting.terminate(LONG).unwrap().code, 0, "{}", accepting.log());
}

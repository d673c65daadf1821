//! Kafka behind taps: one broker, or three of which two have to be in sync.
//!
//! In: how many brokers, what they have in common. Out: brokers that can be killed, stopped and suspended one by one, and a tap in
//! front of each: who bootstraps from [`Cluster::tapped_brokers`] stays behind the taps, because the brokers advertise
//! them; [`Cluster::plain_brokers`] and [`Cluster::client_config`] go around them.
//!
//! ```text
//!  relay ──▶ tap 1 ──▶ TAPPED    ┐
//!  standby ──▶ its tap ─▶ SECOND ┼ broker 1 ◀──▶ brokers 2, 3 (each with its tap)
//!  consumer, admin ──▶ PLAINTEXT ┘
//! ```

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::metadata::MetadataTopic;
use serde_json::json;

use crate::kafka::{self, Kafka, Member, Options};
use crate::tap::Tap;
use crate::{process, provision, run_dir};

/// How long one request may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Brokers with a tap in front of each.
#[derive(Debug)]
pub struct Cluster {
    brokers: Vec<Kafka>,
    taps: Vec<Tap>,
    second_taps: Vec<Tap>,
}

impl Cluster {
    /// Starts `count` brokers on empty storage, all with these options; topics that are created through one of them have a replica
    /// on each.
    ///
    /// # Errors
    /// They cannot be brought, or do not start; the message carries the end of a log.
    pub fn start(count: u16, common: &Options) -> Result<Self> {
        Self::start_each(count, |_| common.clone())
    }

    /// The same, each with options of its own, by its id from 1.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_each(count: u16, own: impl Fn(u16) -> Options) -> Result<Self> {
        let controllers = (0..count).map(|_| run_dir::free_port()).collect::<Result<Vec<_>>>()?;
        let taps = (0..count).map(|_| Tap::listen()).collect::<Result<Vec<_>>>()?;
        let second_taps = (0..count).map(|_| Tap::listen()).collect::<Result<Vec<_>>>()?;
        let cluster = kafka::cluster_id();
        let options = (1..=count).zip(taps.iter().zip(&second_taps)).map(|(id, (tap, second))| Options {
            advertise_through: Some(tap.port()),
            advertise_second: Some(second.port()),
            member: Some(Member { id, controllers: controllers.clone(), cluster: cluster.clone() }),
            ..own(id)
        });
        let starting: Vec<_> = options.map(|options| thread::spawn(move || launched(&options))).collect();
        let mut brokers = Vec::new();
        for broker in starting {
            brokers.push(broker.join().map_err(|_| anyhow!("starting Kafka panicked"))??);
        }
        brokers.iter_mut().try_for_each(Kafka::wait_until_ready)?;
        for (broker, (tap, second)) in brokers.iter().zip(taps.iter().zip(&second_taps)) {
            tap.set_target(broker.tap_target());
            second.set_target(broker.second_tap_target());
        }
        Ok(Self { brokers, taps, second_taps })
    }

    /// How many brokers there are, up or down.
    pub fn count(&self) -> usize {
        self.brokers.len()
    }

    /// All brokers, in the order of their ids.
    pub fn brokers(&self) -> &[Kafka] {
        &self.brokers
    }

    /// One of them, by its place from 0 (counted round).
    ///
    /// # Errors
    /// There is none at all.
    pub fn broker(&mut self, place: usize) -> Result<&mut Kafka> {
        let count = self.brokers.len().max(1);
        self.brokers.get_mut(place % count).ok_or_else(|| anyhow!("a cluster without brokers"))
    }

    /// The taps, in the order of their brokers.
    pub fn taps(&self) -> &[Tap] {
        &self.taps
    }

    /// Bootstrap servers behind the taps.
    pub fn tapped_brokers(&self) -> String {
        self.taps.iter().map(Tap::address).collect::<Vec<_>>().join(",")
    }

    /// Bootstrap servers behind the second taps.
    pub fn second_tapped_brokers(&self) -> String {
        self.second_taps.iter().map(Tap::address).collect::<Vec<_>>().join(",")
    }

    /// Bootstrap servers around the taps.
    pub fn plain_brokers(&self) -> String {
        self.brokers.iter().map(Kafka::brokers).collect::<Vec<_>>().join(",")
    }

    /// Gives each partition of these topics another of its brokers as leader, one after the other, by Kafka's own tools.
    ///
    /// # Errors
    /// The brokers do not answer, or refuse.
    pub fn move_leaders(&self, topics: &[String]) -> Result<()> {
        let broker = self.brokers.first().ok_or_else(|| anyhow!("a cluster without brokers"))?;
        let consumer: BaseConsumer = self.client_config().create()?;
        let mut partitions = Vec::new();
        for topic in topics {
            let metadata = consumer.fetch_metadata(Some(topic), ANSWER)?;
            for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions) {
                let mut replicas = partition.replicas().to_vec();
                // The first one is preferred as leader.
                replicas.sort_by_key(|id| (*id <= partition.leader(), *id));
                partitions.push(json!({"topic": topic, "partition": partition.id(), "replicas": replicas}));
            }
        }
        let plan = run_dir::make(&provision::dev_dir().join("run"), "leaders")?;
        let file = plan.join("plan.json");
        std::fs::write(&file, json!({"version": 1, "partitions": partitions}).to_string())?;
        let mut reassign = broker.tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand");
        reassign.args(["--execute", "--reassignment-json-file"]).arg(&file);
        let mut elect = broker.tool("org.apache.kafka.tools.LeaderElectionCommand");
        elect.args(["--election-type", "preferred", "--all-topic-partitions"]);
        for mut command in [reassign, elect] {
            process::finish(command.args(["--bootstrap-server", &self.plain_brokers()]))
                .context("cannot move leaders")?;
        }
        Ok(std::fs::remove_dir_all(plan)?)
    }

    /// A client configuration that reaches every broker without the taps.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = self.brokers.first().map(Kafka::client_config).unwrap_or_default();
        config.set("bootstrap.servers", self.plain_brokers());
        config
    }
}

fn launched(options: &Options) -> Result<Kafka> {
    let mut broker = Kafka::prepare(options)?;
    broker.launch()?;
    Ok(broker)
}

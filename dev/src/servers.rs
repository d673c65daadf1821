//! The servers that the relay publishes to, behind taps: Kafka's brokers, or one server of another kind.
//!
//! In: the kind of server and settings. Out: servers that can be killed, frozen, cut and filled up, each by its place from 0.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::arrivals::Arrivals;
use crate::brokers::{self, Broker};
use crate::cluster::Cluster;
use crate::gate::Gate;
use crate::kafka::{self, Kafka};
use crate::postgres::Postgres;
use crate::stage::Stage;
use crate::tap::Tap;
use crate::{process, shop};

/// Memory of Redis that no run fills.
const ROOM: &str = "2gb";

/// How many more messages a stream of NATS takes until it is full: more than arrive while the limit is being set.
const ALMOST: u64 = 300;

/// The shortest time for which a stream of NATS drops repeats, in nanoseconds.
const SHORTEST_WINDOW: u64 = 100_000_000;

/// A stream is empty when nothing has come for so long; that takes no longer than this.
const NOTHING_FOR: Duration = Duration::from_millis(200);
const EMPTY_WITHIN: Duration = Duration::from_mins(1);

/// The servers of one destination.
#[derive(Debug)]
pub enum Servers {
    /// Kafka's brokers.
    Kafka(Cluster),
    /// One server of another kind.
    Other(Box<Other>),
}

/// One server of another kind.
#[derive(Debug)]
pub struct Other {
    broker: Broker,
    /// Between tap and server, where it is one of queues.
    gate: Option<Gate>,
    tap: Tap,
    second_tap: Tap,
    arrivals: Arrivals,
}

impl Servers {
    /// Starts those of a destination (`None`: Kafka): so many brokers with these options, or one server as [`Servers::other`] does, whose
    /// records can be read again.
    ///
    /// # Errors
    /// They cannot be brought, or do not start.
    pub fn start(to: Option<brokers::Kind>, brokers: u16, options: &kafka::Options, prefix: &str) -> Result<Self> {
        match to {
            None => Cluster::start(brokers, options).map(Self::Kafka),
            Some(kind) => Self::other(kind, prefix, &[], true),
        }
    }

    /// Starts one that is not Kafka, prepared for what is published to `prefix.…`. `again`: what has arrived can be read while more
    /// comes, and again. What it acknowledges survives its crash, unless `more` lines of configuration say otherwise.
    ///
    /// # Errors
    /// It cannot be brought, or does not start.
    pub fn other(kind: brokers::Kind, prefix: &str, more: &[&str], again: bool) -> Result<Self> {
        let broker = Broker::start(kind, &[configuration(kind), more].concat())?;
        let gated = again && kind == brokers::Kind::ElasticMq;
        let gate = gated.then(|| Gate::start(broker.port())).transpose()?;
        let target = format!("127.0.0.1:{}", gate.as_ref().map_or_else(|| broker.port(), Gate::port));
        let (tap, second_tap) = (Tap::start(target.as_str())?, Tap::start(target.as_str())?);
        let arrivals = Arrivals::prepare(&broker, prefix, again)?;
        Ok(Self::Other(Box::new(Other { broker, gate, tap, second_tap, arrivals })))
    }

    /// What `--to` takes, around the taps.
    pub fn plain_to(&self) -> String {
        match self {
            Self::Kafka(cluster) => format!("kafka://{}", cluster.plain_brokers()),
            Self::Other(other) => other.broker.url(),
        }
    }

    /// CPU time of all servers.
    ///
    /// # Errors
    /// One does not run.
    pub fn cpu(&self) -> Result<Duration> {
        let pids = match self {
            Self::Kafka(cluster) => cluster.brokers().iter().map(Kafka::pid).collect(),
            Self::Other(other) => vec![other.broker.server_pid()],
        };
        pids.into_iter().flatten().map(process::cpu_time).sum()
    }

    /// Removes what has arrived at these addresses. It does nothing for Kafka, whose topics are deleted.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn empty(&self, topics: &[&str]) -> Result<()> {
        let Self::Other(other) = self else { return Ok(()) };
        let broker = &other.broker;
        match broker.kind() {
            brokers::Kind::Valkey => {
                let words: Vec<&str> = std::iter::once("UNLINK").chain(topics.iter().copied()).collect();
                broker.resp()?.call(&words).map(drop)
            }
            brokers::Kind::Nats => {
                let mut connection = broker.jetstream(&json!(null))?;
                // Messages that a killed client had sent may arrive after a purge.
                process::wait_until(EMPTY_WITHIN, "an empty stream", || {
                    connection.api("STREAM.PURGE.OUTBOX", &json!(null))?;
                    std::thread::sleep(NOTHING_FOR);
                    Ok(connection.count("OUTBOX")? == 0)
                })
            }
            brokers::Kind::RabbitMq => broker.amqp()?.purge("OUTBOX"),
            brokers::Kind::ElasticMq => other.arrivals.remove(topics),
        }
    }

    /// What `--to` takes, behind the taps.
    pub fn to(&self) -> String {
        match self {
            Self::Kafka(cluster) => format!("kafka://{}", cluster.tapped_brokers()),
            Self::Other(other) => other.broker.url_through(other.tap.port()),
        }
    }

    /// What `--to` takes for a standby, behind taps of its own.
    pub fn second_to(&self) -> String {
        match self {
            Self::Kafka(cluster) => format!("kafka://{}", cluster.second_tapped_brokers()),
            Self::Other(other) => other.broker.url_through(other.second_tap.port()),
        }
    }

    /// Repeats are repeats for it, however late: a stream of NATS drops those that come within hours otherwise.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn take_repeats(&self) -> Result<()> {
        match self {
            Self::Other(other) if other.broker.kind() == brokers::Kind::Nats => {
                let mut connection = other.broker.jetstream(&json!(null))?;
                connection.update_stream("OUTBOX", &json!({ "duplicate_window": SHORTEST_WINDOW }))
            }
            Self::Kafka(_) | Self::Other(_) => Ok(()),
        }
    }

    /// What it is, if not Kafka.
    pub fn kind(&self) -> Option<brokers::Kind> {
        match self {
            Self::Kafka(_) => None,
            Self::Other(other) => Some(other.broker.kind()),
        }
    }

    /// Where what has arrived is read, around the taps.
    pub fn arrivals(&self) -> Arrivals {
        match self {
            Self::Kafka(cluster) => Arrivals::Kafka(Box::new(cluster.client_config())),
            Self::Other(other) => other.arrivals.clone(),
        }
    }

    /// A stage whose relays publish here, behind the taps. Partitions and settings are of Kafka's topics.
    ///
    /// # Errors
    /// See [`Stage::build`].
    pub fn stage(
        &self,
        postgres: &Postgres,
        binary: &Path,
        prefix: &str,
        shop: &shop::Options,
        partitions: u32,
        settings: &[(&str, &str)],
    ) -> Result<Stage> {
        if let Self::Other(_) = self {
            return Stage::build_to(postgres, &self.to(), self.arrivals(), binary, prefix, shop);
        }
        let mut stage = Stage::build_with(postgres, self.first_kafka()?, binary, prefix, shop, partitions, settings)?;
        (stage.to, stage.arrivals) = (self.to(), self.arrivals());
        Ok(stage)
    }

    /// Removes such a stage, once nobody reads its slot any more.
    ///
    /// # Errors
    /// Somebody reads it for longer than `limit`, or something cannot be removed.
    pub fn strike(&self, stage: &Stage, limit: Duration) -> Result<()> {
        stage.wait_released(limit)?;
        if let Self::Kafka(_) = self {
            return stage.strike(self.first_kafka()?);
        }
        stage.drop_database()?;
        stage.arrivals.remove(&stage.topics().iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Kafka, where it is that.
    ///
    /// # Errors
    /// It is not.
    pub fn kafka(&self) -> Result<&Cluster> {
        match self {
            Self::Kafka(cluster) => Ok(cluster),
            Self::Other(other) => bail!("{} is not Kafka", other.broker.kind().name()),
        }
    }

    /// One of Kafka's brokers.
    ///
    /// # Errors
    /// It is not Kafka.
    pub fn first_kafka(&self) -> Result<&Kafka> {
        self.kafka()?.brokers().first().context("no broker")
    }

    /// How many servers there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Kafka(cluster) => cluster.count(),
            Self::Other(_) => 1,
        }
    }

    /// The taps, one before each.
    pub fn taps(&self) -> &[Tap] {
        match self {
            Self::Kafka(cluster) => cluster.taps(),
            Self::Other(other) => std::slice::from_ref(&other.tap),
        }
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// The process does not do it.
    pub fn kill(&mut self, place: usize) -> Result<()> {
        self.act(place, Kafka::kill, Broker::kill)
    }

    /// Ends it cleanly.
    ///
    /// # Errors
    /// The process does not do it.
    pub fn stop(&mut self, place: usize) -> Result<()> {
        self.act(place, Kafka::stop, Broker::stop)
    }

    /// SIGSTOP.
    ///
    /// # Errors
    /// The process does not do it.
    pub fn suspend(&mut self, place: usize) -> Result<()> {
        self.act(place, Kafka::suspend, Broker::suspend)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// The process does not do it.
    pub fn resume(&mut self, place: usize) -> Result<()> {
        self.act(place, Kafka::resume, Broker::resume)
    }

    /// Starts it again; it may not serve yet.
    ///
    /// # Errors
    /// The process does not do it.
    pub fn launch(&mut self, place: usize) -> Result<()> {
        self.act(place, Kafka::launch, Broker::start_again)
    }

    /// Waits until it serves.
    ///
    /// # Errors
    /// It does not in time.
    pub fn wait_until_ready(&mut self, place: usize) -> Result<()> {
        self.act(place, Kafka::wait_until_ready, |_| Ok(()))
    }

    fn act(
        &mut self,
        place: usize,
        kafka: impl Fn(&mut Kafka) -> Result<()>,
        other: impl Fn(&mut Broker) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Kafka(cluster) => kafka(cluster.broker(place)?),
            Self::Other(server) => other(&mut server.broker),
        }
    }

    /// Makes it refuse messages: its memory, disk or stream is full, it throttles, or it takes only some messages of each batch.
    ///
    /// # Errors
    /// It has no such bound, or does not answer.
    pub fn fill_up(&mut self, dice: u64) -> Result<()> {
        let Self::Other(other) = self else { bail!("Kafka has no bound that is set while it runs") };
        let broker = &other.broker;
        match broker.kind() {
            brokers::Kind::Valkey => set_memory(broker, "1"),
            brokers::Kind::Nats => {
                let mut connection = broker.jetstream(&json!(null))?;
                // With fewer than there are, the oldest would go.
                let most = connection.count("OUTBOX")? + ALMOST;
                connection.update_stream("OUTBOX", &json!({ "max_msgs": most, "discard": "new" }))
            }
            brokers::Kind::RabbitMq if dice.is_multiple_of(2) => control(broker, &["set_disk_free_limit", "9000GB"]),
            brokers::Kind::RabbitMq => control(broker, &["set_vm_memory_high_watermark", "absolute", "10MB"]),
            brokers::Kind::ElasticMq => {
                other.gate.as_ref().context("no gate before the queues")?.disturb(dice);
                Ok(())
            }
        }
    }

    /// Ends what [`Servers::fill_up`] began.
    ///
    /// # Errors
    /// It does not answer.
    pub fn make_room(&mut self) -> Result<()> {
        let Self::Other(other) = self else { return Ok(()) };
        let broker = &other.broker;
        match broker.kind() {
            brokers::Kind::Valkey => set_memory(broker, ROOM),
            brokers::Kind::Nats => {
                let mut connection = broker.jetstream(&json!(null))?;
                connection.update_stream("OUTBOX", &json!({ "max_msgs": -1, "discard": "old" }))
            }
            brokers::Kind::RabbitMq => {
                control(broker, &["set_disk_free_limit", "50MB"])?;
                control(broker, &["set_vm_memory_high_watermark", "absolute", "1GB"])
            }
            brokers::Kind::ElasticMq => {
                other.gate.iter().for_each(Gate::ease);
                Ok(())
            }
        }
    }

    /// The servers' logs, by names for their copies.
    pub fn logs(&self) -> Vec<(String, PathBuf)> {
        match self {
            Self::Kafka(cluster) => {
                let numbered = (1..).zip(cluster.brokers());
                numbered.map(|(number, broker)| (format!("kafka-{number}.log"), broker.log())).collect()
            }
            Self::Other(other) => vec![(format!("{}.log", other.broker.kind().name()), other.broker.log())],
        }
    }
}

/// Further lines of configuration, so that a busy disk does not set the pace if a crash of the process loses nothing by it. It would with
/// Valkey: with a sync each second, Valkey holds back what it has acknowledged while a sync is under way.
fn configuration(kind: brokers::Kind) -> &'static [&'static str] {
    match kind {
        // The default of NATS: a sync every two minutes.
        brokers::Kind::Nats => &["jetstream { store_dir: \"jetstream\", max_file_store: 4GB }"],
        brokers::Kind::Valkey | brokers::Kind::RabbitMq | brokers::Kind::ElasticMq => &[],
    }
}

fn set_memory(broker: &Broker, bytes: &str) -> Result<()> {
    broker.resp()?.call(&["CONFIG", "SET", "maxmemory", bytes]).map(drop)
}

fn control(broker: &Broker, arguments: &[&str]) -> Result<()> {
    broker.control(arguments).map(drop)
}

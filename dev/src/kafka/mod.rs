//! A Kafka of one's own: one KRaft node, or a member of a [cluster](crate::cluster).
//!
//! In: broker properties, memory. Out: a broker that answers, on a free loopback port, that can be stopped, killed,
//! suspended and started again on the same data and port. A cluster that the user has (`WALRELAY_TEST_BROKERS`) can
//! stand in where nothing of that is needed.
//!
//! Ready means that a metadata request names the broker: the port is open well before that, and a broker that was
//! killed is fenced until its old session has expired (about 6 s).

mod node;
mod options;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use futures_executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, Producer as _};
use rustix::process::Signal;

use crate::given::{self, Given, Replaceable};
use crate::provision;
pub(crate) use node::cluster_id;
use node::{Node, PATIENCE, base_config};
pub use options::{Member, Options};

/// Names a Kafka of the user's own for tests and demo: bootstrap servers.
pub const BROKERS_VARIABLE: &str = "WALRELAY_TEST_BROKERS";

/// How long one request may take.
const REQUEST: Duration = Duration::from_mins(1);

/// How long brokers that were frozen or killed may stay fenced: no replica is placed on them so long.
const FENCED: Duration = Duration::from_mins(1);

/// A Kafka: our own, or one that the user has, by its bootstrap servers.
#[derive(Debug)]
pub struct Kafka(Given<Node>);

impl Replaceable for Node {
    const NAME: &'static str = "Kafka";
    const VARIABLE: &'static str = BROKERS_VARIABLE;
}

impl Kafka {
    /// Starts a broker of our own on empty storage.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(options: &Options) -> Result<Self> {
        let mut kafka = Self::prepare(options)?;
        kafka.start_again()?;
        Ok(kafka)
    }

    /// Formats the storage of a broker that does not run yet: [`Kafka::launch`] and [`Kafka::wait_until_ready`].
    ///
    /// # Errors
    /// It cannot be brought, or not be formatted.
    pub fn prepare(options: &Options) -> Result<Self> {
        Ok(Self(Given::Own(Box::new(Node::prepare(provision::kafka()?, options)?))))
    }

    /// The cluster of `WALRELAY_TEST_BROKERS` if that is set, else one of our own with default options.
    ///
    /// # Errors
    /// As [`Kafka::start`]; or the named cluster cannot be reached.
    pub fn given_or_own() -> Result<Self> {
        let Some(given) = Given::named().map(Self) else { return Self::start(&Options::default()) };
        given.topics().with_context(|| format!("the Kafka of {BROKERS_VARIABLE} does not answer"))?;
        Ok(given)
    }

    /// Whether the cluster is the user's, so that it cannot be stopped.
    pub fn is_external(&self) -> bool {
        self.0.is_external()
    }

    /// Its bootstrap servers.
    pub fn brokers(&self) -> String {
        match &self.0 {
            Given::Own(node) => format!("127.0.0.1:{}", node.port),
            Given::External(brokers) => brokers.clone(),
        }
    }

    /// A client configuration that reaches it.
    pub fn client_config(&self) -> ClientConfig {
        match &self.0 {
            Given::Own(node) => node.client_config(),
            Given::External(brokers) => base_config(brokers),
        }
    }

    /// Its port on 127.0.0.1.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn port(&self) -> Result<u16> {
        Ok(self.0.own("ask for the port of")?.port)
    }

    /// Where a tap forwards to; see [`Options::advertise_through`].
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn tap_target(&self) -> Result<String> {
        Ok(format!("127.0.0.1:{}", self.0.own("put a tap in front of")?.tap_port))
    }

    /// The same for [`Options::advertise_second`].
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn second_tap_target(&self) -> Result<String> {
        Ok(format!("127.0.0.1:{}", self.0.own("put a tap in front of")?.second_tap_port))
    }

    /// The broker's process id; `None` while it is down.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn pid(&self) -> Result<Option<u32>> {
        Ok(self.0.own("ask for the process of")?.service.pid())
    }

    /// Its log.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn log(&self) -> Result<PathBuf> {
        Ok(self.0.own("read the log of")?.service.log())
    }

    /// The folder of a partition.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn partition(&self, topic: &str, partition: i32) -> Result<PathBuf> {
        Ok(self.0.own("read the data of")?.data().join(format!("{topic}-{partition}")))
    }

    /// A Java tool of Kafka's by its class, such as `org.apache.kafka.tools.TopicCommand`.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn tool(&self, class: &str) -> Result<Command> {
        Ok(self.0.own("use the tools of")?.java(class))
    }

    /// The topics there are, without Kafka's own.
    ///
    /// # Errors
    /// It does not answer.
    pub fn topics(&self) -> Result<Vec<String>> {
        let client: BaseConsumer = self.client_config().create()?;
        let metadata = client.fetch_metadata(None, REQUEST)?;
        let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
        Ok(names.filter(|name| !name.starts_with("__")).collect())
    }

    /// Creates a topic with topic settings such as `max.message.bytes`, and a replica on each broker of ours, once all of
    /// them are in service.
    ///
    /// # Errors
    /// There is one of that name, or it is refused, for a minute where brokers are missing.
    pub fn create_topic(&self, name: &str, partitions: u32, settings: &[(&str, &str)]) -> Result<()> {
        self.create_topics(&[name], partitions, settings)
    }

    /// The same for many that are alike, in requests that a controller takes: it refuses one for which it would write more
    /// than 10,000 records, one for each topic and each partition.
    ///
    /// # Errors
    /// As there, for the first that is refused.
    pub fn create_topics(&self, names: &[&str], partitions: u32, settings: &[(&str, &str)]) -> Result<()> {
        let each = usize::try_from(partitions).context("too many partitions")?.saturating_add(1);
        names.chunks((5_000 / each).max(1)).try_for_each(|some| self.create_some(some, partitions, settings))
    }

    fn create_some(&self, names: &[&str], partitions: u32, settings: &[(&str, &str)]) -> Result<()> {
        let partitions = i32::try_from(partitions).context("too many partitions")?;
        let plain = names.iter().map(|name| NewTopic::new(name, partitions, TopicReplication::Fixed(self.replicas())));
        let topics: Vec<_> =
            plain.map(|topic| settings.iter().fold(topic, |topic, (key, value)| topic.set(key, value))).collect();
        let deadline = Instant::now() + FENCED;
        loop {
            let results = block_on(self.admin()?.create_topics(&topics, &admin_options()))?;
            let too_few = Some(RDKafkaErrorCode::InvalidReplicationFactor);
            let fenced = results.iter().any(|result| result.as_ref().err().map(|(_, code)| *code) == too_few);
            if !fenced || Instant::now() >= deadline {
                return refused(results);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Has it make its own topic of transactions, for which the first to begin one would wait.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn prepare_transactions(&self) -> Result<()> {
        let mut client = self.client_config();
        let producer: BaseProducer = client.set("transactional.id", "walrelay-dev").create()?;
        Ok(producer.init_transactions(REQUEST)?)
    }

    /// Gives a topic these settings, and the defaults for all others.
    ///
    /// # Errors
    /// There is no such topic, or it is refused.
    pub fn alter_topic(&self, name: &str, settings: &[(&str, &str)]) -> Result<()> {
        let change = AlterConfig::new(ResourceSpecifier::Topic(name));
        let change = settings.iter().fold(change, |change, (key, value)| change.set(key, value));
        for result in block_on(self.admin()?.alter_configs([&change], &admin_options()))? {
            result.map_err(|(_, code)| anyhow!("Kafka refuses that for topic {name}: {code}"))?;
        }
        Ok(())
    }

    /// Adds partitions to a topic, so that it has so many.
    ///
    /// # Errors
    /// There is no such topic, or it has as many, or it is refused.
    pub fn add_partitions(&self, name: &str, count: usize) -> Result<()> {
        refused(block_on(self.admin()?.create_partitions([&NewPartitions::new(name, count)], &admin_options()))?)
    }

    /// Deletes topics with their records.
    ///
    /// # Errors
    /// One is not there, or it is refused.
    pub fn delete_topics(&self, names: &[&str]) -> Result<()> {
        refused(block_on(self.admin()?.delete_topics(names, &admin_options()))?)
    }

    /// Stops it cleanly; waits for at most 60 s.
    ///
    /// # Errors
    /// The cluster is the user's, or it does not end in time.
    pub fn stop(&mut self) -> Result<()> {
        self.0.own_mut("stop")?.service.stop(Signal::TERM, PATIENCE).map(drop)
    }

    /// SIGKILL: a crash.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn kill(&mut self) -> Result<()> {
        self.0.own_mut("kill")?.service.kill().map(drop)
    }

    /// SIGSTOP: it hangs, connections stay open.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn suspend(&mut self) -> Result<()> {
        self.0.own_mut("suspend")?.service.signal(Signal::STOP)
    }

    /// Ends what [`Kafka::suspend`] began.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn resume(&mut self) -> Result<()> {
        self.0.own_mut("resume")?.service.signal(Signal::CONT)
    }

    /// Starts it on the same data and the same port after a stop or a kill; nothing happens when it is up.
    ///
    /// # Errors
    /// The cluster is the user's, or does not start.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch()?;
        self.wait_until_ready()
    }

    /// Starts its process and does not wait.
    ///
    /// # Errors
    /// The cluster is the user's, or there is no Java.
    pub fn launch(&mut self) -> Result<()> {
        self.0.own_mut("start")?.launch()
    }

    /// Waits until the broker itself names itself among those that serve.
    ///
    /// # Errors
    /// The cluster is the user's, or it does not start.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.0.own_mut("wait for")?.wait_until_ready()
    }

    /// Stops and starts it.
    ///
    /// # Errors
    /// As [`Kafka::stop`] and [`Kafka::start_again`].
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        Ok(self.client_config().create()?)
    }

    fn replicas(&self) -> i32 {
        match &self.0 {
            Given::Own(node) => i32::try_from(node.member.controllers.len()).unwrap_or(1),
            Given::External(_) => 1,
        }
    }
}

/// One broker for all tests of a process that need none of their own; use topics with names of your own
/// ([`crate::postgres::unique_name`]). It ends with the process, however that ends.
///
/// # Errors
/// As [`Kafka::given_or_own`]; the same error for everybody who asks.
pub fn shared_kafka() -> Result<&'static Kafka> {
    static SHARED: OnceLock<Result<Kafka, String>> = OnceLock::new();
    given::shared(&SHARED, Kafka::given_or_own)
}

fn admin_options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST)).operation_timeout(Some(REQUEST))
}

fn refused(results: Vec<rdkafka::admin::TopicResult>) -> Result<()> {
    for result in results {
        result.map_err(|(name, code)| anyhow!("Kafka refuses that for topic {name}: {code}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_of_the_users_is_not_stopped() {
        let mut given = Kafka(Given::External("h:9092".to_owned()));
        for error in [given.stop().unwrap_err(), given.kill().unwrap_err(), given.suspend().unwrap_err()] {
            assert!(error.to_string().contains(BROKERS_VARIABLE), "{error}");
        }
        assert_eq!(given.brokers(), "h:9092");
    }
}

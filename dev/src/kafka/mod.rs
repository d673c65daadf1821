//! A Kafka of one's own: one KRaft node, or a member of a [cluster](crate::cluster).
//!
//! In: broker properties, memory. Out: a broker that answers, on a free loopback port, that can be stopped, killed,
//! suspended and started again on the same data and port.
//!
//! Ready means that a metadata request names the broker: the port is open well before that, and a broker that was
//! killed is fenced until its old session has expired (about 6 s).

mod node;
mod options;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use futures_executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, Producer as _};
use rustix::process::Signal;

use crate::provision;
use crate::service;
pub use node::Kafka;
use node::PATIENCE;
pub(crate) use node::cluster_id;
pub use options::{Member, Options};

/// How long one request may take.
const REQUEST: Duration = Duration::from_mins(1);

/// How long brokers that were frozen or killed may stay fenced: no replica is placed on them so long.
const FENCED: Duration = Duration::from_mins(1);

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

    /// Its bootstrap servers.
    pub fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where a tap forwards to; see [`Options::advertise_through`].
    pub fn tap_target(&self) -> String {
        format!("127.0.0.1:{}", self.tap_port)
    }

    /// The same for [`Options::advertise_second`].
    pub fn second_tap_target(&self) -> String {
        format!("127.0.0.1:{}", self.second_tap_port)
    }

    /// The broker's process id; `None` while it is down.
    pub fn pid(&self) -> Option<u32> {
        self.service.pid()
    }

    /// Its log.
    pub fn log(&self) -> PathBuf {
        self.service.log()
    }

    /// The folder of a partition.
    pub fn partition(&self, topic: &str, partition: i32) -> PathBuf {
        self.data().join(format!("{topic}-{partition}"))
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
    /// It does not end in time.
    pub fn stop(&mut self) -> Result<()> {
        self.service.stop(Signal::TERM, PATIENCE).map(drop)
    }

    /// SIGKILL: a crash.
    ///
    /// # Errors
    /// It cannot be ended.
    pub fn kill(&mut self) -> Result<()> {
        self.service.kill().map(drop)
    }

    /// SIGSTOP: it hangs, connections stay open.
    ///
    /// # Errors
    /// The signal may not be sent.
    pub fn suspend(&mut self) -> Result<()> {
        self.service.signal(Signal::STOP)
    }

    /// Ends what [`Kafka::suspend`] began.
    ///
    /// # Errors
    /// The signal may not be sent.
    pub fn resume(&mut self) -> Result<()> {
        self.service.signal(Signal::CONT)
    }

    /// Starts it on the same data and the same port after a stop or a kill; nothing happens when it is up.
    ///
    /// # Errors
    /// It does not start; the message carries the end of its log.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch()?;
        self.wait_until_ready()
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
        i32::try_from(self.member.controllers.len()).unwrap_or(1)
    }
}

/// Makes the next starts of brokers quicker; starts one for that, and stops it.
///
/// # Errors
/// As [`Kafka::start`], or Java writes no archive.
pub fn archive_classes() -> Result<()> {
    provision::archive_classes(&provision::kafka()?.libs, |argument| {
        let mut kafka = Kafka::start(&Options { java_arguments: vec![argument], ..Options::default() })?;
        kafka.create_topic("classes", 1, &[])?;
        kafka.stop()
    })
}

/// One broker for all tests of a process that need none of their own; use topics with names of your own
/// ([`crate::postgres::unique_name`]). It ends with the process, however that ends.
///
/// # Errors
/// As [`Kafka::start`]; the same error for everybody who asks.
pub fn shared_kafka() -> Result<&'static Kafka> {
    static SHARED: OnceLock<Result<Kafka, String>> = OnceLock::new();
    service::shared(&SHARED, || Kafka::start(&Options::default()))
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

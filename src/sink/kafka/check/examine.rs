//! Asks a cluster for its brokers, topics and settings, and whether this user may write, for `walrelay check`.
//!
//! In: [`KafkaSettings`], and the topics that matter. Out: plain values. It changes nothing. It asks for all topics at once, since a question
//! about one topic creates it on a cluster that creates topics on demand. It writes no record: the user may write if the cluster gives an
//! idempotent producer its identity.
//! Specification: KIP-98, KIP-679 (who may write a topic may write idempotently), KIP-133 "DescribeConfigs".

use super::super::admin::{Admin, SettingsSeen};
use super::super::config::{KafkaSettings, SettingsError};
use super::super::errors;
use super::super::metadata::advertised;
use super::probe;
use crate::sink::Failure;
use rdkafka::ClientContext;
use rdkafka::admin::ResourceSpecifier;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::producer::{DeliveryResult, NoCustomPartitioner, Producer, ProducerContext};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(5);

/// A cluster's answers about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink::kafka) struct Cluster {
    /// The advertised `host:port` of each broker.
    pub brokers: Vec<String>,
    /// Warnings about brokers that cannot be reached from here.
    pub unreachable: Vec<String>,
    /// Every topic that the user may see.
    pub topics: BTreeMap<String, TopicFacts>,
    /// The settings of one broker, or why they cannot be seen.
    pub settings: SettingsSeen,
    /// Whether an idempotent producer gets its identity, or why not.
    pub idempotence: Result<(), String>,
    /// The wanted topics that do not exist and that the user may not create. `rights` fills it.
    pub forbidden: BTreeSet<String>,
    /// The wanted topics that the user may not see, whether they exist or not. `rights` fills it.
    pub hidden: BTreeSet<String>,
}

/// A topic's partitions, replicas and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink::kafka) struct TopicFacts {
    /// How many partitions.
    pub partitions: usize,
    /// The fewest replicas of a partition.
    pub replicas: usize,
    /// The fewest in-sync replicas of a partition.
    pub in_sync: usize,
    /// The settings, or why they cannot be seen. Empty for topics that are not wanted.
    pub settings: SettingsSeen,
}

/// Returns a setting of a topic or of the brokers, if it can be seen.
pub(super) fn setting<'s>(seen: &'s SettingsSeen, name: &str) -> Option<&'s str> {
    seen.as_ref().ok()?.get(name).map(String::as_str)
}

/// Asks the cluster. `wanted`: the topics whose settings matter.
///
/// # Errors
/// Nobody answers, or the answer is a refusal.
pub(in crate::sink::kafka) fn examine(settings: &KafkaSettings, wanted: &[&str]) -> Result<Cluster, Failure> {
    let failed = |error: SettingsError| {
        let is_of_login = matches!(error, SettingsError::Login(_));
        if is_of_login { errors::of_login(error.to_string()) } else { errors::client(error) }
    };
    let mut sink = super::super::KafkaSink::with_producers(settings.clone(), 1).map_err(failed)?;
    let metadata = sink.metadata(REQUEST)?;
    let brokers = advertised(&metadata);
    let unreachable = probe::unreachable(&settings.brokers, &brokers);
    let mut topics: BTreeMap<String, TopicFacts> =
        metadata.topics().iter().map(|topic| (topic.name().to_owned(), topic_facts(topic))).collect();
    let mut of_broker = Err("nobody was asked".to_owned());
    if unreachable.len() < brokers.len() {
        of_broker = configurations(settings, &metadata, wanted, &mut topics);
    }
    let idempotence = idempotence(settings);
    let (forbidden, hidden) = (BTreeSet::new(), BTreeSet::new());
    Ok(Cluster { brokers, unreachable, topics, settings: of_broker, idempotence, forbidden, hidden })
}

/// Whether a failure is about an address that only the cluster has named.
pub(in crate::sink::kafka) fn is_of_advertised_address(failure: &Failure) -> bool {
    failure.text.contains(super::probe::ADVERTISES)
}

fn topic_facts(topic: &MetadataTopic) -> TopicFacts {
    let partitions = topic.partitions();
    let fewest = |count: fn(&rdkafka::metadata::MetadataPartition) -> usize| partitions.iter().map(count).min();
    TopicFacts {
        partitions: partitions.len(),
        replicas: fewest(|partition| partition.replicas().len()).unwrap_or_default(),
        in_sync: fewest(|partition| partition.isr().len()).unwrap_or_default(),
        settings: Ok(BTreeMap::new()),
    }
}

/// Returns the settings of one broker, and sets those of the wanted topics.
fn configurations(
    settings: &KafkaSettings,
    metadata: &Metadata,
    wanted: &[&str],
    topics: &mut BTreeMap<String, TopicFacts>,
) -> SettingsSeen {
    let there: Vec<&str> = wanted.iter().copied().filter(|name| topics.contains_key(*name)).collect();
    let broker = metadata.brokers().first().map_or(0, rdkafka::metadata::MetadataBroker::id);
    let mut asked: Vec<ResourceSpecifier<'_>> = there.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
    asked.push(ResourceSpecifier::Broker(broker));
    let admin = Admin::new(settings, REQUEST).map_err(|error| error.to_string())?;
    let mut answers = admin.settings_of(&asked).map_err(|error| error.to_string())?;
    let of_broker = answers.pop().unwrap_or_else(|| Err("no answer".to_owned()));
    for (name, answer) in there.into_iter().zip(answers) {
        if let Some(topic) = topics.get_mut(name) {
            topic.settings = answer;
        }
    }
    of_broker
}

/// A producer's context that keeps its state and its last problem.
#[derive(Default)]
struct Listener {
    /// The last state of the idempotent producer.
    state: Mutex<String>,
    /// The producer's last problem.
    problem: Mutex<Option<String>>,
}

impl ClientContext for Listener {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "walrelay::librdkafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "Kafka client error");
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
    }

    fn stats_raw(&self, statistics: &[u8]) {
        let Ok(all) = serde_json::from_slice::<serde_json::Value>(statistics) else { return };
        let state = all.pointer("/eos/idemp_state").and_then(serde_json::Value::as_str).unwrap_or_default();
        state.clone_into(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl ProducerContext<NoCustomPartitioner> for Listener {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// Whether the cluster gives an idempotent producer its identity.
fn idempotence(settings: &KafkaSettings) -> Result<(), String> {
    let mut client = settings.client.clone();
    client.set("statistics.interval.ms", "100");
    let producer = settings.producer_of(client, Listener::default()).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + REQUEST;
    while Instant::now() < deadline {
        producer.poll(Duration::from_millis(20));
        if let Some((_, text)) = producer.client().fatal_error() {
            return Err(text);
        }
        if *producer.context().state.lock().unwrap_or_else(PoisonError::into_inner) == "Assigned" {
            return Ok(());
        }
    }
    let problem = producer.context().problem.lock().unwrap_or_else(PoisonError::into_inner).take();
    Err(problem.unwrap_or_else(|| format!("no answer within {} s", REQUEST.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    fn settings(brokers: &str) -> KafkaSettings {
        KafkaSettings::new(brokers, "walrelay", &[], 1 << 20).unwrap()
    }

    #[test]
    fn a_cluster_is_looked_at_and_no_topic_is_made() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 4, 1).unwrap();
        let found = examine(&settings(&cluster.bootstrap_servers()), &["nowhere"]).unwrap();
        assert_eq!(found.topics.keys().collect::<Vec<_>>(), ["orders"]);
        assert_eq!((found.topics["orders"].partitions, found.topics["orders"].replicas), (4, 1));
        assert_eq!(found.idempotence, Ok(()));
        assert_eq!(found.unreachable, Vec::<String>::new());
    }

    #[test]
    fn a_user_who_may_not_write_gets_no_identity() {
        let cluster = MockCluster::new(1).unwrap();
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        cluster.request_errors(RDKafkaApiKey::InitProducerId, &[refused; 8]);
        let error = idempotence(&settings(&cluster.bootstrap_servers())).unwrap_err();
        assert!(error.to_lowercase().contains("authoriz"), "{error}");
    }
}

//! Finds out whether this user may write exactly once, for `walrelay check`.
//!
//! In: [`KafkaSettings`], and the name of the relay's transactions. Out: plain values. It changes nothing, and disturbs no relay that works
//! under that name. The broker first checks the right to a transactional id, and then the length of its transactions. So it refuses a
//! producer that asks for transactions of 24 days before it fences the producer that has the name. If a broker admits even those, walrelay
//! does not ask. If the broker's settings cannot be seen, walrelay assumes a limit, which is the default. It creates the topic of progress
//! for trial only (`validate_only`).
//! Specification: KIP-98, "InitProducerIdRequest"; Kafka's `TransactionCoordinator.handleInitProducerId`.

use super::super::admin::Admin;
use super::super::config::{KafkaSettings, LONGEST_TRANSACTION_MS, SettingsError};
use super::super::errors;
use super::super::progress::{TOPIC, new_topic, passes, read_from_the_beginning};
use super::examine::{Cluster, setting};
use rdkafka::admin::{NewTopic, TopicReplication, TopicResult};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::Producer;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long one question may take. The cluster may have to create its topic of transactions first.
const PATIENCE: Duration = Duration::from_secs(10);

/// The broker's setting that limits the relay's `transaction.timeout.ms`.
pub(in crate::sink::kafka) const TRANSACTION_MAX_TIMEOUT: &str = "transaction.max.timeout.ms";

/// The topic of progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink::kafka) enum ProgressAnswer {
    /// The topic exists. Whether the user may read it.
    There(Result<(), RightsRefusal>),
    /// The topic does not exist, or the user may not see it. Whether the user may create it.
    Absent(Result<(), RightsRefusal>),
}

/// The reason why something is not possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink::kafka) struct RightsRefusal {
    /// The user lacks a right.
    pub forbidden: bool,
    /// librdkafka's words.
    pub text: String,
}

impl From<KafkaError> for RightsRefusal {
    fn from(error: KafkaError) -> Self {
        Self { forbidden: errors::is_forbidden(error.rdkafka_error_code()), text: error.to_string() }
    }
}

impl From<SettingsError> for RightsRefusal {
    fn from(error: SettingsError) -> Self {
        Self { forbidden: false, text: error.to_string() }
    }
}

/// Asks whether the user may begin transactions under `name`, the name of the relay's. `None`: the broker has no limit of their length, so
/// that a question would end the transactions of a relay.
pub(in crate::sink::kafka) fn transactions(
    settings: &KafkaSettings,
    cluster: &Cluster,
    name: &str,
) -> Option<Result<(), RightsRefusal>> {
    let most = setting(&cluster.settings, TRANSACTION_MAX_TIMEOUT);
    most.is_none_or(|most| most != LONGEST_TRANSACTION_MS).then(|| inadmissible(settings, name))
}

fn inadmissible(settings: &KafkaSettings, name: &str) -> Result<(), RightsRefusal> {
    match settings.inadmissible(name)?.init_transactions(PATIENCE) {
        Err(error) if error.rdkafka_error_code() != Some(RDKafkaErrorCode::InvalidTransactionTimeout) => {
            Err(error.into())
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Asks whether the topic of progress can be read, or else created.
pub(in crate::sink::kafka) fn progress(settings: &KafkaSettings, cluster: &Cluster) -> ProgressAnswer {
    if cluster.topics.contains_key(TOPIC) {
        ProgressAnswer::There(readable(settings))
    } else {
        ProgressAnswer::Absent(makeable(settings, cluster.brokers.len()))
    }
}

fn readable(settings: &KafkaSettings) -> Result<(), RightsRefusal> {
    let consumer = settings.reader("read_uncommitted")?;
    read_from_the_beginning(&consumer)?;
    let deadline = Instant::now() + PATIENCE;
    while let Some(polled) = consumer.poll(deadline.saturating_duration_since(Instant::now())) {
        match polled {
            Ok(_) | Err(KafkaError::PartitionEOF(_)) => return Ok(()),
            Err(error) if error.rdkafka_error_code().is_some_and(passes) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(RightsRefusal { forbidden: false, text: format!("no answer within {} s", PATIENCE.as_secs()) })
}

fn makeable(settings: &KafkaSettings, brokers: usize) -> Result<(), RightsRefusal> {
    made_for_trial(settings, &[new_topic(brokers)])?.into_iter().try_for_each(|outcome| match outcome {
        Ok(_) => Ok(()),
        Err((_, code)) => Err(RightsRefusal { forbidden: errors::is_forbidden(Some(code)), text: code.to_string() }),
    })
}

/// Returns the topics from `names` that this user may not create. None, if the cluster does not answer. The topics do not exist.
pub(in crate::sink::kafka) fn not_to_be_created(settings: &KafkaSettings, names: &[&str]) -> BTreeSet<String> {
    let topics: Vec<NewTopic<'_>> =
        names.iter().map(|name| NewTopic::new(name, 1, TopicReplication::Fixed(-1))).collect();
    if topics.is_empty() {
        return BTreeSet::new();
    }
    let outcomes = made_for_trial(settings, &topics).unwrap_or_default().into_iter();
    outcomes
        .filter_map(Result::err)
        .filter(|(_, code)| errors::is_forbidden(Some(*code)))
        .map(|(name, _)| name)
        .collect()
}

/// Returns the topics from `names` that this user may not see, and that may exist. None, if the cluster cannot be asked. A consumer asks: its
/// question creates no topic.
pub(in crate::sink::kafka) fn not_to_be_seen(settings: &KafkaSettings, names: &[&str]) -> BTreeSet<String> {
    if names.is_empty() {
        return BTreeSet::new();
    }
    let Ok(asker) = settings.reader("read_uncommitted") else { return BTreeSet::new() };
    let is_refused = |topic: &MetadataTopic| {
        topic.error().map(RDKafkaErrorCode::from) == Some(RDKafkaErrorCode::TopicAuthorizationFailed)
    };
    let is_hidden = |name: &&&str| {
        asker.fetch_metadata(Some(name), PATIENCE).is_ok_and(|answer| answer.topics().iter().any(is_refused))
    };
    names.iter().filter(is_hidden).map(|name| (*name).to_owned()).collect()
}

/// The cluster's answers to a request to create topics for trial.
fn made_for_trial(settings: &KafkaSettings, topics: &[NewTopic<'_>]) -> Result<Vec<TopicResult>, RightsRefusal> {
    Ok(Admin::new(settings, PATIENCE)?.create(topics, true)?)
}

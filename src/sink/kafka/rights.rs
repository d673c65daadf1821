//! Whether this user may write exactly once, for `walrelay check`.
//!
//! In: [`Settings`], and the name of the relay's transactions. Out: plain values. Changes nothing, and disturbs no relay that works under
//! that name: the broker looks at the right to a transactional id first and at the length of its transactions next, and a producer that
//! asks for transactions of 24 days is refused before the one that has the name is fenced. A broker that admits even those is not asked;
//! where its settings may not be seen either, it is taken for one that keeps a bound, as all do that were not told otherwise. The topic
//! of progress is made for trial only.
//! Specification: KIP-98, "InitProducerIdRequest"; Kafka's `TransactionCoordinator.handleInitProducerId`.

use super::examine::Cluster;
use super::progress::{PARTITION, TOPIC, new_topic, passes};
use super::settings::{LONGEST_TRANSACTION_MS, Settings, SettingsError};
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication, TopicResult};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::Producer;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long one question may take: the cluster may have to make its own topic of transactions first.
const PATIENCE: Duration = Duration::from_secs(10);

/// The broker's setting that bounds the relay's `transaction.timeout.ms`.
pub(super) const TRANSACTION_MAX_TIMEOUT: &str = "transaction.max.timeout.ms";

/// What exactly once needs of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExactlyOnce {
    /// Whether transactions may be begun under the relay's name; `None`: a broker that admits them however long they are cannot be
    /// asked without ending a relay's.
    pub transactions: Option<Result<(), Refusal>>,
    /// The topic that keeps how far the relay has come.
    pub progress: Progress,
}

/// The topic of progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is there; whether it may be read.
    There(Result<(), Refusal>),
    /// It is not there, or may not be seen; whether it may be made.
    Absent(Result<(), Refusal>),
}

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// A right is missing.
    pub forbidden: bool,
    /// librdkafka's words.
    pub text: String,
}

/// Looks at it; `name`: of the relay's transactions.
pub(super) fn exactly_once(settings: &Settings, cluster: &Cluster, name: &str) -> ExactlyOnce {
    let most = cluster.settings.as_ref().ok().and_then(|settings| settings.get(TRANSACTION_MAX_TIMEOUT));
    let asked = most.is_none_or(|most| most != LONGEST_TRANSACTION_MS);
    let progress = if cluster.topics.contains_key(TOPIC) {
        Progress::There(readable(settings))
    } else {
        Progress::Absent(makeable(settings, cluster.brokers.len()))
    };
    ExactlyOnce { transactions: asked.then(|| transactions(settings, name)), progress }
}

impl Refusal {
    fn new(error: &KafkaError) -> Self {
        Self::of(error.rdkafka_error_code(), error)
    }

    fn of(code: Option<RDKafkaErrorCode>, words: &dyn Display) -> Self {
        let forbidden = matches!(
            code,
            Some(
                RDKafkaErrorCode::TransactionalIdAuthorizationFailed
                    | RDKafkaErrorCode::ClusterAuthorizationFailed
                    | RDKafkaErrorCode::TopicAuthorizationFailed
            )
        );
        Self { forbidden, text: words.to_string() }
    }
}

impl From<SettingsError> for Refusal {
    fn from(error: SettingsError) -> Self {
        Self { forbidden: false, text: error.to_string() }
    }
}

fn transactions(settings: &Settings, name: &str) -> Result<(), Refusal> {
    let producer = settings.inadmissible(name)?;
    match producer.init_transactions(PATIENCE) {
        Ok(()) => Ok(()),
        Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::InvalidTransactionTimeout) => Ok(()),
        Err(error) => Err(Refusal::new(&error)),
    }
}

fn readable(settings: &Settings) -> Result<(), Refusal> {
    let consumer = settings.reader("read_uncommitted")?;
    let mut all = TopicPartitionList::new();
    let whole = all.add_partition_offset(TOPIC, PARTITION, Offset::Beginning);
    whole.and_then(|()| consumer.assign(&all)).map_err(|error| Refusal::new(&error))?;
    let deadline = Instant::now() + PATIENCE;
    while let Some(polled) = consumer.poll(deadline.saturating_duration_since(Instant::now())) {
        match polled {
            Ok(_) | Err(KafkaError::PartitionEOF(_)) => return Ok(()),
            Err(error) if error.rdkafka_error_code().is_some_and(passes) => {}
            Err(error) => return Err(Refusal::new(&error)),
        }
    }
    Err(Refusal { forbidden: false, text: format!("no answer within {} s", PATIENCE.as_secs()) })
}

fn makeable(settings: &Settings, brokers: usize) -> Result<(), Refusal> {
    made_for_trial(settings, &[new_topic(brokers)])?.into_iter().try_for_each(|outcome| match outcome {
        Ok(_) => Ok(()),
        Err((_, code)) => Err(Refusal::of(Some(code), &code)),
    })
}

/// Of topics that are not there, those that this user may not create. Where that cannot be asked: none.
pub(super) fn not_to_be_created(settings: &Settings, names: &[&str]) -> BTreeSet<String> {
    let topics: Vec<NewTopic<'_>> =
        names.iter().map(|name| NewTopic::new(name, 1, TopicReplication::Fixed(-1))).collect();
    if topics.is_empty() {
        return BTreeSet::new();
    }
    let outcomes = made_for_trial(settings, &topics).unwrap_or_default().into_iter();
    outcomes
        .filter_map(Result::err)
        .filter(|(_, code)| Refusal::of(Some(*code), code).forbidden)
        .map(|(name, _)| name)
        .collect()
}

/// Of topics that are not listed, those that this user may not see: they may well be there. Where that cannot be asked: none. A
/// consumer asks, whose question creates no topic.
pub(super) fn not_to_be_seen(settings: &Settings, names: &[&str]) -> BTreeSet<String> {
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

/// The cluster judges the request, and creates nothing.
fn made_for_trial(settings: &Settings, topics: &[NewTopic<'_>]) -> Result<Vec<TopicResult>, Refusal> {
    let admin = settings.admin()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Refusal { forbidden: false, text: error.to_string() })?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE)).validate_only(true);
    runtime.block_on(admin.create_topics(topics, &options)).map_err(|error| Refusal::new(&error))
}

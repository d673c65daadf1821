//! The topic that holds how far relays have come: made, looked at, read.
//!
//! In: settings. Out: the last value of each key, as of a moment when nothing of ours was open any more. It reads a step at a
//! time, each no longer than a second. What keys and values say is not known here.

use super::context::Context;
use super::failure;
use super::retire::retire;
use super::settings::Settings;
use super::transactions::{broken, client};
use super::written::{self, Ends};
use crate::sink::{Failure, FailureClass};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Where progress is kept: compacted, so that the last of each key stays.
pub(super) const TOPIC: &str = "walrelay.progress";

/// Of one partition: all keys together are a few hundred bytes for each relay.
pub(super) const PARTITION: i32 = 0;

/// A relay that is busy writes ten records a second, and each relay reads all of them when it starts: what compaction leaves
/// alone, the newest segment, is kept small.
const SEGMENT_BYTES: &str = "16777216";

/// What is waited for as a rule, for people.
pub(super) const READING: &str = "reading walrelay.progress";

/// How long a step takes records that come, and how long one may wait for an answer.
pub(super) const SLICE: Duration = Duration::from_millis(100);
pub(super) const LONG_SLICE: Duration = Duration::from_secs(1);

/// Transactions of others are open for moments. What is open for longer may be ours.
pub(super) const OPEN_FOR: Duration = Duration::from_secs(2);

/// How reading goes.
pub(super) enum Read {
    /// Ask again; whether somebody has answered.
    Pending { answered: bool },
    /// Something is open, and nothing that comes behind it is shown so long: its first record. Where it is ours, a
    /// [cover](super::cover) ends it before the next step.
    Open(First),
    /// The last of each key.
    Done(Kept),
}

/// The last of each key.
pub(super) type Kept = BTreeMap<String, Value>;

/// What a record of the progress topic says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) text: String,
    /// Up to where its transaction wrote.
    pub(super) written: Option<Ends>,
}

/// A record of the progress topic: whose it is, its key says.
pub(super) struct First {
    pub(super) key: String,
    /// `None`: a [cover](super::cover)'s.
    pub(super) value: Option<String>,
}

/// Reads the progress topic to the end that it had when the transactions of others under our name were over.
pub(super) struct Reading {
    settings: Settings,
    step: Step,
    kept: Kept,
    /// Whose transaction is waited for, by the key of its first record.
    stranger: Option<String>,
}

enum Step {
    /// The topic is looked for, and made.
    Topic,
    /// Where it ends, with everything that is still open.
    End { uncommitted: BaseConsumer<Context> },
    /// A stranger's transaction may still be open before that end: what comes behind it is not shown so long. `first`: what was read
    /// where it begins, which counts if it still begins there.
    Stable { end: i64, committed: BaseConsumer<Context>, since: Instant, first: Option<(i64, First)> },
    /// The record at `stable` is read, the first of what is open.
    Open { end: i64, stable: i64, uncommitted: BaseConsumer<Context>, since: Instant },
    /// An end of the partition that comes from here on lies at or behind that end.
    Records { committed: BaseConsumer<Context> },
}

impl Reading {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { settings: settings.clone(), step: Step::Topic, kept: BTreeMap::new(), stranger: None }
    }

    /// The transaction is another relay's. What is waited for.
    pub(super) fn wait_for(&mut self, stranger: String) -> String {
        if self.stranger.as_ref() != Some(&stranger) {
            tracing::warn!(key = stranger, "waiting for another relay's transaction in {TOPIC} to end");
        }
        self.stranger = Some(stranger);
        self.reason()
    }

    /// What is waited for, for people.
    pub(super) fn reason(&self) -> String {
        let stranger =
            |key| format!("waiting for the transaction of {key} in {TOPIC}, which is another relay's, to end");
        self.stranger.as_deref().map_or_else(|| READING.to_owned(), stranger)
    }

    /// The readers of the step before are done.
    fn turn_to(&mut self, step: Step) {
        let before = std::mem::replace(&mut self.step, step);
        if !matches!(before, Step::Topic) {
            retire(before);
        }
    }

    /// One step; everything, once it is there.
    pub(super) fn read(&mut self) -> Result<Read, Failure> {
        match &mut self.step {
            Step::Topic => {
                make_topic(&self.settings)?;
                let uncommitted = self.consumer("read_uncommitted")?;
                self.turn_to(Step::End { uncommitted });
            }
            Step::End { uncommitted } => {
                let Some(end) = high_watermark(uncommitted)? else { return Ok(Read::Pending { answered: false }) };
                if end == 0 {
                    return Ok(Read::Done(Kept::new()));
                }
                let committed = self.consumer("read_committed")?;
                self.turn_to(Step::Stable { end, committed, since: Instant::now(), first: None });
            }
            Step::Stable { end, committed, since, first } => {
                let end = *end;
                let Some(stable) = high_watermark(committed)? else { return Ok(Read::Pending { answered: false }) };
                if stable < end && since.elapsed() >= OPEN_FOR {
                    if let Some((_, first)) = first.take().filter(|(at, _)| *at == stable) {
                        *since = Instant::now();
                        return Ok(Read::Open(first));
                    }
                    let since = *since;
                    let uncommitted = self.consumer("read_uncommitted")?;
                    read_from(&uncommitted, Offset::Offset(stable))?;
                    self.turn_to(Step::Open { end, stable, uncommitted, since });
                    return Ok(Read::Pending { answered: true });
                }
                if stable < end {
                    return Ok(Read::Pending { answered: true });
                }
                read_from(committed, Offset::Beginning)?;
                let Step::Stable { committed, .. } = std::mem::replace(&mut self.step, Step::Topic) else {
                    return Ok(Read::Pending { answered: true });
                };
                self.step = Step::Records { committed };
            }
            Step::Open { end, stable, uncommitted, since } => {
                let (end, stable, since, mut first) = (*end, *stable, *since, None);
                let is_read = take_records(uncommitted, &mut |message| {
                    first.get_or_insert_with(|| (stable, First::of(message)));
                })?;
                if is_read || first.is_some() {
                    let committed = self.consumer("read_committed")?;
                    self.turn_to(Step::Stable { end, committed, since, first });
                }
            }
            Step::Records { committed } => {
                if take_records(committed, &mut |message| keep(&mut self.kept, message))? {
                    return Ok(Read::Done(std::mem::take(&mut self.kept)));
                }
            }
        }
        Ok(Read::Pending { answered: true })
    }

    fn consumer(&self, isolation: &str) -> Result<BaseConsumer<Context>, Failure> {
        self.settings.reader(isolation).map_err(|error| client(error.to_string()))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.turn_to(Step::Topic);
    }
}

fn read_from(reader: &BaseConsumer<Context>, offset: Offset) -> Result<(), Failure> {
    let mut all = TopicPartitionList::new();
    let whole = all.add_partition_offset(TOPIC, PARTITION, offset);
    whole.and_then(|()| reader.assign(&all)).map_err(|error| broken("read its progress", &error))
}

/// Takes what comes within a slice; whether the end has been seen.
fn take_records(reader: &BaseConsumer<Context>, each: &mut dyn FnMut(&BorrowedMessage<'_>)) -> Result<bool, Failure> {
    let until = Instant::now() + SLICE;
    while let Some(polled) = reader.poll(until.saturating_duration_since(Instant::now())) {
        match polled {
            Ok(message) => each(&message),
            Err(KafkaError::PartitionEOF(_)) => return Ok(true),
            Err(error) if error.rdkafka_error_code().is_some_and(passes) => {}
            Err(error) => return Err(broken("read its progress", &error)),
        }
    }
    Ok(false)
}

fn text(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

impl First {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        Self { key: text(message.key()).unwrap_or_default(), value: text(message.payload()) }
    }
}

/// The last of each key counts.
fn keep(kept: &mut Kept, message: &BorrowedMessage<'_>) {
    let header = || message.headers()?.iter().find(|header| header.key == written::HEADER)?.value;
    match (text(message.key()), text(message.payload())) {
        (Some(key), Some(text)) => drop(kept.insert(key, Value { text, written: header().and_then(Ends::read) })),
        (Some(key), None) => drop(kept.remove(&key)),
        (None, _) => {}
    }
}

pub(super) fn passes(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::LeaderNotAvailable
            // librdkafka looks for the coordinator of a group that is never joined: the partition is assigned, with its offset.
            | Code::GroupAuthorizationFailed
    )
}

/// `None`: nobody answers yet.
fn high_watermark(consumer: &BaseConsumer<Context>) -> Result<Option<i64>, Failure> {
    match consumer.fetch_watermarks(TOPIC, PARTITION, LONG_SLICE) {
        Ok((_, high)) => Ok(Some(high)),
        Err(error) if error.rdkafka_error_code().is_some_and(|code| passes(code) || is_young(code)) => Ok(None),
        Err(error) => Err(broken("read its progress", &error)),
    }
}

/// What is said of a topic that was made a moment ago.
pub(super) fn is_young(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::NotLeaderForPartition
    )
}

/// As it is made, with as many replicas as the cluster gives to any topic.
pub(super) fn new_topic() -> NewTopic<'static> {
    NewTopic::new(TOPIC, 1, TopicReplication::Fixed(-1))
        .set("cleanup.policy", "compact")
        .set("segment.bytes", SEGMENT_BYTES)
}

/// Sees that the topic is there and compacted.
fn make_topic(settings: &Settings) -> Result<(), Failure> {
    let admin = settings.admin().map_err(|error| client(error.to_string()))?;
    let outcome = make_topic_with(&admin, settings);
    retire(admin);
    outcome
}

fn make_topic_with(admin: &AdminClient<DefaultClientContext>, settings: &Settings) -> Result<(), Failure> {
    let forbidden = |error: RDKafkaErrorCode| Failure {
        class: FailureClass::Environment,
        reason: failure::PROGRESS_TOPIC,
        text: format!(
            "topic {TOPIC} is not there and cannot be created ({error}): \
             kafka-topics.sh --bootstrap-server {} --create --topic {TOPIC} --partitions 1 \
             --config cleanup.policy=compact --config segment.bytes={SEGMENT_BYTES}",
            settings.brokers()
        ),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| client(error.to_string()))?;
    let options = AdminOptions::new().request_timeout(Some(LONG_SLICE)).operation_timeout(Some(LONG_SLICE));
    let outcome = match runtime.block_on(admin.create_topics([&new_topic()], &options)) {
        Ok(outcomes) => outcomes.into_iter().find_map(Result::err).map(|(_, code)| code),
        Err(error) => Some(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
    };
    match outcome {
        None => tracing::info!(topic = TOPIC, "progress topic created"),
        Some(RDKafkaErrorCode::TopicAlreadyExists) => {}
        // It may be there all the same.
        Some(code) if admin.inner().fetch_metadata(Some(TOPIC), LONG_SLICE).is_ok_and(|found| is_there(&found)) => {
            tracing::debug!(%code, "the progress topic cannot be created, and need not be");
        }
        Some(code) => return Err(forbidden(code)),
    }
    see_that_it_is_compacted(&runtime, admin, &options, settings.brokers())
}

fn is_there(metadata: &rdkafka::metadata::Metadata) -> bool {
    metadata.topics().iter().any(|topic| topic.name() == TOPIC && topic.error().is_none())
}

/// Whether a `cleanup.policy` forgets only what has a successor.
pub(super) fn keeps_the_last(policy: &str) -> bool {
    policy.split(',').all(|part| part.trim() == "compact")
}

fn see_that_it_is_compacted(
    runtime: &tokio::runtime::Runtime,
    admin: &AdminClient<DefaultClientContext>,
    options: &AdminOptions,
    brokers: &str,
) -> Result<(), Failure> {
    let described = runtime.block_on(admin.describe_configs(&[ResourceSpecifier::Topic(TOPIC)], options));
    let config = described.ok().and_then(|configs| configs.into_iter().next()?.ok());
    // Without the right to see them a topic's settings are none, and no error.
    let Some(policy) = config.and_then(|config| config.get("cleanup.policy")?.value.clone()) else {
        tracing::debug!(topic = TOPIC, "its cleanup.policy cannot be seen");
        return Ok(());
    };
    if keeps_the_last(&policy) {
        return Ok(());
    }
    Err(Failure {
        class: FailureClass::Environment,
        reason: failure::PROGRESS_TOPIC,
        text: format!(
            "topic {TOPIC} has cleanup.policy={policy}, and would lose the relay's progress: \
             kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name {TOPIC} --add-config cleanup.policy=compact"
        ),
    })
}

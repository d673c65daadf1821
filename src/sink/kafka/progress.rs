//! The topic that holds how far relays have come: made, looked at, read.
//!
//! In: settings. Out: the last value of each key, as of a moment when nothing of ours was open any more. It reads a step at a
//! time, each no longer than a second. What keys and values say is not known here.

use super::context::Context;
use super::failure;
use super::replicas::{self, LEAST_IN_SYNC, MIN_INSYNC, REPLICAS, Replicas};
use super::retire::retire;
use super::settings::Settings;
use super::transactions::{broken, client, replicas_of};
use crate::sink::{Failure, FailureClass};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
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

/// Of its replicas so many have to be in sync.
const IN_SYNC: &str = "2";
const _: () = assert!(LEAST_IN_SYNC == 2, "IN_SYNC says the same");

/// What is waited for as a rule, for people.
pub(super) const READING: &str = "reading walrelay.progress";

/// How long a step takes records that come, and how long one may wait for an answer.
pub(super) const SLICE: Duration = Duration::from_millis(100);
pub(super) const LONG_SLICE: Duration = Duration::from_secs(1);

/// Transactions of other relays are open for moments. One that is open for longer is named, with what ends it.
const OPEN_FOR: Duration = Duration::from_secs(2);

/// How reading goes.
pub(super) enum Read {
    /// Ask again; whether somebody has answered.
    Pending { answered: bool },
    /// The topic is not there, and so many brokers are.
    Missing { brokers: usize },
    /// The last of each key.
    Done(Kept),
}

/// The last of each key.
pub(super) type Kept = BTreeMap<String, String>;

/// Reads the progress topic to the end that it had when the transactions of others under our name were over.
pub(super) struct Reading {
    settings: Settings,
    step: Step,
    kept: Kept,
    /// Where a transaction is open, and has been for [`OPEN_FOR`].
    open: Option<i64>,
}

enum Step {
    /// The topic is looked for, and made.
    Topic,
    /// Where it ends, with everything that is still open.
    End { uncommitted: BaseConsumer<Context> },
    /// A transaction of another relay may be open before that end: Kafka shows nothing that comes behind its first record, which was last
    /// seen at that offset since then.
    Stable { end: i64, committed: BaseConsumer<Context>, seen: (i64, Instant) },
    /// An end of the partition that comes from here on lies at or behind that end.
    Records { committed: BaseConsumer<Context> },
}

impl Reading {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { settings: settings.clone(), step: Step::Topic, kept: BTreeMap::new(), open: None }
    }

    /// What is waited for, for people.
    pub(super) fn reason(&self) -> String {
        let Some(offset) = self.open else { return READING.to_owned() };
        format!(
            "a transaction is open in {TOPIC} at offset {offset}, and Kafka shows nothing behind it: it ends when its relay starts again, or \
             after that one's transaction.timeout.ms. If it has not ended by then, Kafka has forgotten it: \
             kafka-transactions.sh --bootstrap-server {} abort --topic {TOPIC} --partition {PARTITION} --start-offset {offset}",
            self.settings.brokers()
        )
    }

    /// The readers of the step before are done.
    fn turn_to(&mut self, step: Step) {
        let before = std::mem::replace(&mut self.step, step);
        if !matches!(before, Step::Topic) {
            retire(before);
        }
    }

    /// One step; everything, once it is there. The topic must have replicas enough. `make`: it is made where it is not there.
    pub(super) fn read(&mut self, replicas: &mut Replicas, make: bool) -> Result<Read, Failure> {
        match &mut self.step {
            Step::Topic => {
                match make_topic(&self.settings, replicas, make)? {
                    Topic::There => {}
                    Topic::Young => return Ok(Read::Pending { answered: true }),
                    Topic::Missing { brokers } => return Ok(Read::Missing { brokers }),
                }
                let uncommitted = self.consumer("read_uncommitted")?;
                self.turn_to(Step::End { uncommitted });
            }
            Step::End { uncommitted } => {
                let Some(end) = high_watermark(uncommitted)? else { return Ok(Read::Pending { answered: false }) };
                if end == 0 {
                    return Ok(Read::Done(Kept::new()));
                }
                let committed = self.consumer("read_committed")?;
                self.turn_to(Step::Stable { end, committed, seen: (0, Instant::now()) });
            }
            Step::Stable { end, committed, seen } => {
                let Some(stable) = high_watermark(committed)? else { return Ok(Read::Pending { answered: false }) };
                if stable < *end {
                    if seen.0 != stable {
                        *seen = (stable, Instant::now());
                    }
                    let open = (seen.1.elapsed() >= OPEN_FOR).then_some(stable);
                    if open.is_some() && self.open != open {
                        tracing::warn!(
                            offset = stable,
                            "waiting for an open transaction in {TOPIC} to end; no data lost"
                        );
                    }
                    self.open = open;
                    return Ok(Read::Pending { answered: true });
                }
                read_from_the_beginning(committed)?;
                let Step::Stable { committed, .. } = std::mem::replace(&mut self.step, Step::Topic) else {
                    return Ok(Read::Pending { answered: true });
                };
                (self.step, self.open) = (Step::Records { committed }, None);
            }
            Step::Records { committed } => {
                if take_records(committed, &mut self.kept)? {
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

fn read_from_the_beginning(reader: &BaseConsumer<Context>) -> Result<(), Failure> {
    let mut all = TopicPartitionList::new();
    let whole = all.add_partition_offset(TOPIC, PARTITION, Offset::Beginning);
    whole.and_then(|()| reader.assign(&all)).map_err(|error| broken("read its progress", &error))
}

/// Takes what comes within a slice: the last of each key counts. Whether the end has been seen.
fn take_records(reader: &BaseConsumer<Context>, kept: &mut Kept) -> Result<bool, Failure> {
    let until = Instant::now() + SLICE;
    while let Some(polled) = reader.poll(until.saturating_duration_since(Instant::now())) {
        match polled {
            Ok(message) => match (text(message.key()), text(message.payload())) {
                (Some(key), Some(value)) => drop(kept.insert(key, value)),
                (Some(key), None) => drop(kept.remove(&key)),
                (None, _) => {}
            },
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
fn is_young(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::NotLeaderForPartition
    )
}

/// As it is made: with three replicas, or as many as there are brokers, two of them in sync. With one broker as many as the cluster gives to
/// any topic.
pub(super) fn new_topic(brokers: usize) -> NewTopic<'static> {
    let replicas = i32::try_from(brokers.min(REPLICAS)).unwrap_or(-1);
    let topic = NewTopic::new(TOPIC, 1, TopicReplication::Fixed(if replicas > 1 { replicas } else { -1 }))
        .set("cleanup.policy", "compact")
        .set("segment.bytes", SEGMENT_BYTES);
    if replicas > 1 { topic.set(MIN_INSYNC, IN_SYNC) } else { topic }
}

/// The command that makes it so.
pub(super) fn create(settings: &Settings, brokers: usize) -> String {
    let more = format!(" --partitions 1 --config cleanup.policy=compact --config segment.bytes={SEGMENT_BYTES}");
    replicas::create(TOPIC, settings, brokers, &more)
}

/// The topic, once it was to be there.
enum Topic {
    There,
    /// Not every broker has heard of it.
    Young,
    Missing {
        brokers: usize,
    },
}

/// Sees that the topic is there and compacted, and has replicas enough. `make`: it is made where it is not there.
fn make_topic(settings: &Settings, replicas: &mut Replicas, make: bool) -> Result<Topic, Failure> {
    let admin = settings.admin().map_err(|error| client(error.to_string()))?;
    let found = make_topic_with(&admin, settings, make).and_then(|missing| {
        if let Some(brokers) = missing {
            return Ok(Err(brokers));
        }
        let metadata = admin.inner().fetch_metadata(Some(TOPIC), LONG_SLICE);
        metadata.map(Ok).map_err(|error| Failure {
            class: FailureClass::Environment,
            ..broken("see the replicas of its progress topic", &error)
        })
    });
    retire(admin);
    let found = match found? {
        Ok(found) => found,
        Err(brokers) => return Ok(Topic::Missing { brokers }),
    };
    let Some(count) = found.topics().iter().find(|topic| topic.name() == TOPIC).and_then(replicas_of) else {
        return Ok(Topic::Young);
    };
    replicas.see(TOPIC, Some(count), settings)?;
    Ok(Topic::There)
}

/// Sees that the topic is there: the cluster, asked to make it, says so. Where it is not to `make` it, it is asked for trial, and the
/// topic may be missing: then, how many brokers there are.
fn make_topic_with(
    admin: &AdminClient<DefaultClientContext>,
    settings: &Settings,
    make: bool,
) -> Result<Option<usize>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| client(error.to_string()))?;
    let options = AdminOptions::new().request_timeout(Some(LONG_SLICE)).operation_timeout(Some(LONG_SLICE));
    let to_make = AdminOptions::new().request_timeout(Some(LONG_SLICE)).operation_timeout(Some(LONG_SLICE));
    let to_make = to_make.validate_only(!make);
    let brokers = admin.inner().fetch_metadata(None, LONG_SLICE).map_or(0, |metadata| metadata.brokers().len());
    let forbidden = |error: RDKafkaErrorCode| Failure {
        class: FailureClass::Environment,
        reason: failure::PROGRESS_TOPIC,
        text: format!("topic {TOPIC} is not there and cannot be created ({error}): {}", create(settings, brokers)),
    };
    let outcome = match runtime.block_on(admin.create_topics([&new_topic(brokers)], &to_make)) {
        Ok(outcomes) => outcomes.into_iter().find_map(Result::err).map(|(_, code)| code),
        Err(error) => Some(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
    };
    match outcome {
        None if !make => return Ok(Some(brokers)),
        None => tracing::info!(topic = TOPIC, "progress topic created"),
        Some(RDKafkaErrorCode::TopicAlreadyExists) => {}
        // It may be there all the same.
        Some(code) if admin.inner().fetch_metadata(Some(TOPIC), LONG_SLICE).is_ok_and(|found| is_there(&found)) => {
            tracing::debug!(%code, "the progress topic cannot be created, and need not be");
        }
        Some(code) => return Err(forbidden(code)),
    }
    see_that_it_is_compacted(&runtime, admin, &options, settings.brokers())?;
    Ok(None)
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

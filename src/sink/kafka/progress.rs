//! The progress topic `walrelay.progress`: creates, checks and reads it.
//!
//! In: settings. Out: the last value of each key, read after the end of all transactions under the relay's name. It reads in steps that take
//! a second at most. The meaning of keys and values is not known here.

use super::admin::Admin;
use super::callbacks::Context;
use super::config::KafkaSettings;
use super::describe::topic_in;
use super::errors;
use super::replicas::{ANSWERED_WITHIN, Replicas, replicas_of};
use super::retire::Retirable;
use super::tools::{self, LEAST_IN_SYNC, MIN_INSYNC, REPLICAS};
use crate::sink::{Failure, FailureClass};
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The topic with the progress of all relays. It is compacted, so that the last value of each key stays.
pub(super) const TOPIC: &str = "walrelay.progress";

/// The topic's only partition. The keys of a relay have a few hundred bytes.
pub(super) const PARTITION: i32 = 0;

/// The topic's segments are small: a busy relay writes ten records a second, each relay reads all of them at its start, and compaction does
/// not touch the newest segment.
const SEGMENT_BYTES: &str = "16777216";

/// The topic's setting that keeps the last value of each key.
pub(super) const CLEANUP_POLICY: &str = "cleanup.policy";

/// How many of the topic's replicas have to be in sync.
const IN_SYNC: &str = "2";
const _: () = assert!(LEAST_IN_SYNC == 2, "IN_SYNC says the same");

/// The text, for people, about the wait for the progress.
pub(super) const READING: &str = "reading walrelay.progress";

/// How long a step may block the relay's thread.
pub(super) const SLICE: Duration = Duration::from_millis(100);

/// The transactions of other relays are open for moments. A warning names one that is open for longer, with the command that ends it.
const OPEN_FOR: Duration = Duration::from_secs(2);

/// The result of a step of reading.
pub(super) enum Read {
    /// The reading is not done. Whether a broker has answered.
    Pending { answered: bool },
    /// The topic does not exist, and is not made.
    Missing,
    /// The reading is done: the last value of each key.
    Done(KeptProgress),
}

/// A consumer of the topic.
pub(super) type ProgressConsumer = Retirable<BaseConsumer<Context>>;

/// The last value of each key.
pub(super) type KeptProgress = BTreeMap<String, String>;

/// Reads the progress topic to its end. The transactions of other producers under the relay's name are over before.
pub(super) struct ProgressReading {
    settings: KafkaSettings,
    step: ReadingStep,
    kept: KeptProgress,
    /// The offset of another relay's transaction that has been open for [`OPEN_FOR`].
    open: Option<i64>,
}

enum ReadingStep {
    /// Finds the topic, or creates it.
    Topic,
    /// Asks for the partition's end, open transactions included.
    End { uncommitted: ProgressConsumer },
    /// Waits for open transactions of other relays before that end: Kafka shows no record behind the first one of an open transaction.
    /// `seen`: the offset of that record, and since when it is the same.
    Stable { end: i64, committed: ProgressConsumer, seen: (i64, Instant) },
    /// Reads records. An end of the partition that the consumer reports now is at or behind `end`.
    Records { committed: ProgressConsumer },
}

impl ProgressReading {
    pub(super) fn new(settings: &KafkaSettings) -> Self {
        Self { settings: settings.clone(), step: ReadingStep::Topic, kept: BTreeMap::new(), open: None }
    }

    /// The text, for people, about the present wait.
    pub(super) fn reason(&self) -> String {
        let Some(offset) = self.open else { return READING.to_owned() };
        format!(
            "a transaction is open in {TOPIC} at offset {offset}, and Kafka shows nothing behind it: it ends when its relay starts again, or \
             after that one's transaction.timeout.ms. If it has not ended by then, Kafka has forgotten it: \
             kafka-transactions.sh --bootstrap-server {} abort --topic {TOPIC} --partition {PARTITION} --start-offset {offset}",
            self.settings.brokers
        )
    }

    /// Goes one step. The topic must have enough replicas. `make`: whether to create a missing topic. `brokers`: how many the cluster has, 0
    /// if that is not known.
    pub(super) fn read(&mut self, replicas: &mut Replicas, make: bool, brokers: usize) -> Result<Read, Failure> {
        match &mut self.step {
            ReadingStep::Topic => {
                if let Some(outcome) = make_topic(&self.settings, replicas, (make, brokers))? {
                    return Ok(outcome);
                }
                let uncommitted = self.consumer("read_uncommitted")?;
                self.step = ReadingStep::End { uncommitted };
            }
            ReadingStep::End { uncommitted } => {
                let Some(end) = high_watermark(uncommitted)? else { return Ok(Read::Pending { answered: false }) };
                if end == 0 {
                    return Ok(Read::Done(KeptProgress::new()));
                }
                let committed = self.consumer("read_committed")?;
                self.step = ReadingStep::Stable { end, committed, seen: (0, Instant::now()) };
            }
            ReadingStep::Stable { end, committed, seen } => {
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
                read_from_the_beginning(committed).map_err(|error| errors::of_call("read its progress", &error))?;
                let ReadingStep::Stable { committed, .. } = std::mem::replace(&mut self.step, ReadingStep::Topic)
                else {
                    return Ok(Read::Pending { answered: true });
                };
                (self.step, self.open) = (ReadingStep::Records { committed }, None);
            }
            ReadingStep::Records { committed } => {
                if take_records(committed, &mut self.kept)? {
                    return Ok(Read::Done(std::mem::take(&mut self.kept)));
                }
            }
        }
        Ok(Read::Pending { answered: true })
    }

    fn consumer(&self, isolation: &str) -> Result<ProgressConsumer, Failure> {
        self.settings.reader(isolation).map_err(errors::client)
    }
}

pub(super) fn read_from_the_beginning(reader: &ProgressConsumer) -> KafkaResult<()> {
    let mut all = TopicPartitionList::new();
    all.add_partition_offset(TOPIC, PARTITION, Offset::Beginning)?;
    reader.assign(&all)
}

/// Takes the records that come within a slice. The last one of each key counts. Returns whether the end was reached.
fn take_records(reader: &ProgressConsumer, kept: &mut KeptProgress) -> Result<bool, Failure> {
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
            Err(error) => return Err(errors::of_call("read its progress", &error)),
        }
    }
    Ok(false)
}

fn text(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Whether a consumer's error passes by itself.
pub(super) fn passes(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::LeaderNotAvailable
            // librdkafka looks for the coordinator of a group although the consumer joins none: its partition is assigned.
            | Code::GroupAuthorizationFailed
    )
}

/// The partition's end. `None`: no broker has answered.
fn high_watermark(consumer: &ProgressConsumer) -> Result<Option<i64>, Failure> {
    match consumer.fetch_watermarks(TOPIC, PARTITION, ANSWERED_WITHIN) {
        Ok((_, high)) => Ok(Some(high)),
        Err(error) if error.rdkafka_error_code().is_some_and(|code| passes(code) || is_young(code)) => Ok(None),
        Err(error) => Err(errors::of_call("read its progress", &error)),
    }
}

/// Whether brokers may give this error for a topic that was created a moment ago.
fn is_young(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::NotLeaderForPartition
    )
}

/// The topic as walrelay creates it: with three replicas, or as many as there are brokers, two of them in sync. With a single broker it has
/// the cluster's default.
pub(super) fn new_topic(brokers: usize) -> NewTopic<'static> {
    let replicas = i32::try_from(brokers.min(REPLICAS)).unwrap_or(-1);
    let topic = NewTopic::new(TOPIC, 1, TopicReplication::Fixed(if replicas > 1 { replicas } else { -1 }))
        .set(CLEANUP_POLICY, "compact")
        .set("segment.bytes", SEGMENT_BYTES);
    if replicas > 1 { topic.set(MIN_INSYNC, IN_SYNC) } else { topic }
}

/// The command that creates the topic.
pub(super) fn create(settings: &KafkaSettings, brokers: usize) -> String {
    let more = format!(" --partitions 1 --config {CLEANUP_POLICY}=compact --config segment.bytes={SEGMENT_BYTES}");
    tools::create(settings, TOPIC, brokers, &more)
}

/// Creates the topic unless it exists. Returns whether it does then.
pub(super) fn make(settings: &KafkaSettings, brokers: usize) -> Result<bool, Failure> {
    let admin = Admin::new(settings, ANSWERED_WITHIN).map_err(errors::client)?;
    make_topic_with(&admin, settings, (true, brokers))
}

/// Makes sure that the topic exists, is compacted and has enough replicas. `make`: whether to create a missing topic. Returns the outcome of
/// the step if the topic cannot be read yet: it is missing, or so new that not every broker knows it.
fn make_topic(
    settings: &KafkaSettings,
    replicas: &mut Replicas,
    (make, brokers): (bool, usize),
) -> Result<Option<Read>, Failure> {
    let admin = Admin::new(settings, ANSWERED_WITHIN).map_err(errors::client)?;
    if !make_topic_with(&admin, settings, (make, brokers))? {
        return Ok(Some(Read::Missing));
    }
    see_that_it_is_compacted(&admin, settings)?;
    let found = admin.metadata(Some(TOPIC)).map_err(|error| Failure {
        class: FailureClass::Environment,
        ..errors::of_call("see the replicas of its progress topic", &error)
    })?;
    let Some(count) = topic_in(&found, TOPIC).ok().and_then(replicas_of) else {
        return Ok(Some(Read::Pending { answered: true }));
    };
    replicas.see(TOPIC, Some(count), settings)?;
    Ok(None)
}

/// Asks the cluster to create the topic, whose answer says whether it exists. Without `make` the request is for trial. Returns whether the topic
/// exists then.
fn make_topic_with(admin: &Admin, settings: &KafkaSettings, (make, brokers): (bool, usize)) -> Result<bool, Failure> {
    let outcome = match admin.create(&[new_topic(brokers)], !make) {
        Ok(outcomes) => outcomes.into_iter().find_map(Result::err).map(|(_, code)| code),
        Err(error) => Some(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
    };
    match outcome {
        None if !make => return Ok(false),
        None => tracing::info!(topic = TOPIC, "progress topic created"),
        Some(RDKafkaErrorCode::TopicAlreadyExists) => {}
        // The user may lack the right to create topics, and the topic may exist all the same.
        Some(code) if admin.metadata(Some(TOPIC)).is_ok_and(|found| topic_in(&found, TOPIC).is_ok()) => {
            tracing::debug!(%code, "the progress topic cannot be created, and need not be");
        }
        Some(code) => {
            let text =
                format!("topic {TOPIC} is not there and cannot be created ({code}): {}", create(settings, brokers));
            return Err(Failure::new(FailureClass::Environment, errors::PROGRESS_TOPIC, text));
        }
    }
    Ok(true)
}

/// Whether a topic with this `cleanup.policy` keeps the last value of each key.
pub(super) fn keeps_the_last(policy: &str) -> bool {
    policy.split(',').all(|part| part.trim() == "compact")
}

/// Passes as well if this user may not see the topic's settings.
fn see_that_it_is_compacted(admin: &Admin, settings: &KafkaSettings) -> Result<(), Failure> {
    let policy = admin.setting_of(TOPIC, CLEANUP_POLICY).ok().flatten();
    let Some(policy) = policy.filter(|policy| !keeps_the_last(policy)) else { return Ok(()) };
    let text = format!(
        "topic {TOPIC} has {CLEANUP_POLICY}={policy}, and would lose the relay's progress: {}",
        tools::alter(settings, TOPIC, CLEANUP_POLICY, "compact")
    );
    Err(Failure::new(FailureClass::Environment, errors::PROGRESS_TOPIC, text))
}

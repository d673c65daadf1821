//! Reads a dead-letter topic: its records, and which of them were published again before.
//!
//! ```text
//!  every record, committed or not ──► marks, and the number of records
//!  then every committed record ──────► Kept, replayed if a mark says so
//! ```
//!
//! In: settings, a topic. Out: its records, each partition in its order, up to the ends that the partitions had at the beginning. It reads
//! the marks first, uncommitted ones included, since an open transaction of a relay may hide the marks behind it. It joins no group and
//! commits no offset: the marks in the topic are the memory (see `marks`).

use super::callbacks::{Context, copy};
use super::config::KafkaSettings;
use super::describe::topic_in;
use super::errors;
use super::marks::{self, Offsets};
use super::progress::passes;
use super::retire::Retirable;
use crate::sink::dead_letter;
use crate::sink::destination::{DeadLetterId, DeadLetters, KeptRecord, NextKept, NoDeadLetters};
use crate::sink::{Failure, FailureClass, HeaderRoom, OwnedRecord};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::metadata::MetadataPartition;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long one question may take.
const QUESTION: Duration = Duration::from_secs(2);

/// How long the cluster may take until the topic's partitions are known.
const FOUND_WITHIN: Duration = Duration::from_secs(20);

/// How long the cluster may be silent. After that the command fails: nothing is lost, and it can be run again.
const SILENT_FOR: Duration = Duration::from_mins(1);

/// The remedy for a mark in a form that is not known.
const NEWER: &str = "run the walrelay that has replayed this topic before, or a newer one";

/// How long a poll waits for a record.
const SLICE: Duration = Duration::from_millis(100);

/// The reading of a dead-letter topic.
pub(super) struct TopicReading {
    settings: KafkaSettings,
    topic: String,
    partitions: Vec<i32>,
    /// The consumer of the marks, and then that of the records.
    consumer: Retirable<BaseConsumer<Context>>,
    /// Whether the marks are being read. The records come after them.
    for_marks: bool,
    /// Partitions that are not read to their end yet, with that end.
    open: BTreeMap<i32, i64>,
    replayed: BTreeMap<i32, Offsets>,
    count: u64,
    last_answer: Instant,
    room: HeaderRoom,
}

impl TopicReading {
    pub(super) fn new(settings: KafkaSettings, topic: &str) -> Result<Self, NoDeadLetters> {
        let mut reading = Self {
            consumer: settings.reader("read_uncommitted").map_err(errors::client)?,
            settings,
            topic: topic.to_owned(),
            partitions: Vec::new(),
            for_marks: true,
            open: BTreeMap::new(),
            replayed: BTreeMap::new(),
            count: 0,
            last_answer: Instant::now(),
            room: HeaderRoom::default(),
        };
        reading.partitions = reading.find_partitions()?;
        reading.begin()?;
        Ok(reading)
    }

    /// Asks for the topic's partitions. A consumer's question creates no topic.
    fn find_partitions(&self) -> Result<Vec<i32>, NoDeadLetters> {
        let begun = Instant::now();
        loop {
            let error = match self.consumer.fetch_metadata(Some(&self.topic), QUESTION) {
                Ok(metadata) => match topic_in(&metadata, &self.topic) {
                    Ok(found) => return Ok(found.partitions().iter().map(MetadataPartition::id).collect()),
                    Err(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition) => {
                        return Err(NoDeadLetters::Missing { topic: self.topic.clone() });
                    }
                    Err(RDKafkaErrorCode::TopicAuthorizationFailed) => return Err(self.forbidden().into()),
                    Err(code) => KafkaError::MetadataFetch(code),
                },
                Err(error) => error,
            };
            let context = self.consumer.context();
            if begun.elapsed() >= FOUND_WITHIN || errors::is_of_login(context.problem_code()) {
                return Err(context.unanswered(&error).into());
            }
            // The next question may fail at once, so there is a pause.
            std::thread::sleep(SLICE);
        }
    }

    /// Asks for the ends of the partitions, and assigns those that have records, from their beginning.
    fn begin(&mut self) -> Result<(), Failure> {
        let mut all = TopicPartitionList::new();
        for &partition in &self.partitions {
            let (low, high) = self.watermarks(partition)?;
            if low < high {
                self.open.insert(partition, high);
                let added = all.add_partition_offset(&self.topic, partition, Offset::Offset(low));
                added.map_err(|error| self.broken(&error))?;
            }
        }
        self.consumer.assign(&all).map_err(|error| self.broken(&error))?;
        self.last_answer = Instant::now();
        Ok(())
    }

    fn watermarks(&self, partition: i32) -> Result<(i64, i64), Failure> {
        let begun = Instant::now();
        loop {
            match self.consumer.fetch_watermarks(&self.topic, partition, QUESTION) {
                Ok(marks) => return Ok(marks),
                Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed) => {
                    return Err(self.forbidden());
                }
                Err(error) if begun.elapsed() >= FOUND_WITHIN => {
                    return Err(self.consumer.context().unanswered(&error));
                }
                Err(_) => std::thread::sleep(SLICE),
            }
        }
    }

    /// The next record or mark, with its partition and offset. `None`: nothing has come, or a partition has ended.
    fn poll(&mut self) -> Result<Option<(i32, u64, OwnedRecord)>, Failure> {
        let polled = self.consumer.poll(SLICE);
        if polled.is_some() {
            self.last_answer = Instant::now();
        }
        match polled {
            None if self.last_answer.elapsed() >= SILENT_FOR => {
                let error = KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut);
                Err(self.consumer.context().unanswered(&error))
            }
            None => Ok(None),
            Some(Ok(message)) => {
                let (partition, offset) = (message.partition(), message.offset());
                let Some(&end) = self.open.get(&partition) else { return Ok(None) };
                let is_before = offset < end;
                let record = is_before.then(|| (partition, u64::try_from(offset).unwrap_or_default(), copy(&message)));
                drop(message);
                if offset + 1 >= end {
                    self.open.remove(&partition);
                }
                Ok(record)
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                self.open.remove(&partition);
                Ok(None)
            }
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::TopicAuthorizationFailed) => Err(self.forbidden()),
                Some(code) if passes(code) => Ok(None),
                Some(_) | None => Err(self.broken(&error)),
            },
        }
    }

    /// All marks are read: begins with the records.
    fn turn_to_records(&mut self) -> Result<(), Failure> {
        self.consumer = self.settings.reader("read_committed").map_err(errors::client)?;
        self.for_marks = false;
        self.begin()
    }

    fn forbidden(&self) -> Failure {
        let text = format!("not allowed to read topic {0}: the user needs READ and DESCRIBE on it", self.topic);
        Failure::new(FailureClass::Topic, errors::reason(Some(RDKafkaErrorCode::TopicAuthorizationFailed)), text)
    }

    /// The failure of a mark that may mark any record.
    fn unknown_mark(&self, partition: i32, offset: u64) -> Failure {
        let text = format!(
            "record {partition}:{offset} of topic {} says in a form that this version does not know which records were published again",
            self.topic
        );
        Failure::new(FailureClass::Topic, "client", text).with_remedy(NEWER)
    }

    fn broken(&self, error: &KafkaError) -> Failure {
        errors::client(format!("topic {} cannot be read: {error}", self.topic))
    }
}

impl DeadLetters for TopicReading {
    fn next(&mut self) -> Result<NextKept, Failure> {
        if self.open.is_empty() {
            if self.for_marks {
                self.turn_to_records()?;
                return Ok(NextKept::Waiting);
            }
            return Ok(NextKept::End);
        }
        let Some((partition, offset, record)) = self.poll()? else { return Ok(NextKept::Waiting) };
        let Self { replayed, room, .. } = self;
        let replayed = replayed.entry(partition).or_default();
        let (is_mark, has_unknown_form) = record.with_record(room, |record| {
            (marks::take(record, partition, offset, replayed), dead_letter::unknown_form(record).is_some())
        });
        if is_mark && has_unknown_form {
            return Err(self.unknown_mark(partition, offset));
        }
        if is_mark || self.for_marks {
            self.count += u64::from(self.for_marks && !is_mark);
            return Ok(NextKept::Waiting);
        }
        let replayed = replayed.contains(offset);
        let id =
            DeadLetterId { major: u64::try_from(partition).unwrap_or_default(), between: Some(':'), minor: offset };
        Ok(NextKept::Kept(KeptRecord { id, replayed, record }))
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn mark_replayed(&mut self, ids: &[DeadLetterId]) -> Result<Vec<OwnedRecord>, Failure> {
        let mut marked: BTreeMap<i32, Offsets> = BTreeMap::new();
        for id in ids {
            let partition = i32::try_from(id.major).unwrap_or_default();
            marked.entry(partition).or_default().insert(id.minor, id.minor);
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_millis = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
        Ok(marked
            .iter()
            .map(|(partition, offsets)| marks::mark(&self.topic, *partition, offsets, now_millis))
            .collect())
    }
}

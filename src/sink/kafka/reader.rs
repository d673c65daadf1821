//! [`TopicReader`]: reads many topics at once, each partition from an offset on, for as long as it is asked.
//!
//! ```text
//!  questions (read_uncommitted) ─► ends, partitions, where records were deleted
//!  records   (read_committed)   ─► records, one partition in its order; positions pass the marks of transactions
//! ```
//!
//! In: settings, names of topics, offsets. Out: records, ends, positions, and the reasons for which records may have gone unread. Both clients
//! assign partitions by hand: they join no group, and commit no offset. A question creates no topic.
//!
//! Invariant: no record is passed over without a note. `auto.offset.reset` is `error`, so librdkafka reports it when the broker does not have
//! the next offset any more. Then the partition is read from its present first record, and the topic's records count as unread.

use super::admin::Admin;
use super::callbacks::Context;
use super::config::KafkaSettings;
use super::describe::{Description, TopicId};
use super::errors;
use super::partitioner::Partitioner;
use super::progress::passes;
use super::retire::Retirable;
use crate::sink::reading::{ReadRecord, RecordReader, TopicOffsets};
use crate::sink::{Content, Failure, FailureClass, Header, Record, emptied};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers as _, Message as _, Timestamp};
use rdkafka::metadata::Metadata;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long one question may take.
const QUESTION: Duration = Duration::from_secs(5);

/// How long brokers may be silent. After that the reading fails.
const SILENT_FOR: Duration = Duration::from_mins(1);

/// The pause after a question that has failed at once.
const PAUSE: Duration = Duration::from_millis(200);

/// The most records of one call.
const MOST_RECORDS: usize = 5_000;

/// The clients of a reader hold at most this much that was fetched, in KiB.
const FETCHED_KIB: &str = "16384";

/// The properties that the consumer of records needs beside the settings of other consumers.
const RECORDS: [(&str, &str); 4] = [
    ("auto.offset.reset", "error"),
    ("enable.partition.eof", "false"),
    ("queued.max.messages.kbytes", FETCHED_KIB),
    ("fetch.wait.max.ms", "100"),
];

/// How long a question about a topic's settings may take.
const SETTINGS_WITHIN: Duration = Duration::from_secs(5);

/// The reader.
pub(super) struct TopicReader {
    settings: KafkaSettings,
    records: Retirable<BaseConsumer<Context>>,
    questions: Retirable<BaseConsumer<Context>>,
    partitioner: Partitioner,
    topics: BTreeMap<String, FollowedTopic>,
    /// The ids of the topics, as they were seen first.
    ids: BTreeMap<String, TopicId>,
    /// Topics that have had another id since.
    made_again: BTreeSet<String>,
    /// Whether the consumer has to be told the partitions again.
    is_stale: bool,
    /// Memory for the headers of a record.
    headers: Vec<Header<'static>>,
    /// When a broker answered last.
    answered: Instant,
}

/// A topic that is read.
struct FollowedTopic {
    /// The next offset of each partition. `None`: its first record.
    next: Vec<Option<i64>>,
    /// The number of partitions at first.
    partitions: usize,
    /// The reasons for which its records may have gone unread.
    unread: BTreeSet<String>,
}

impl TopicReader {
    pub(super) fn new(settings: KafkaSettings) -> Result<Self, super::SettingsError> {
        Ok(Self {
            records: settings.reader_with("read_committed", &RECORDS)?,
            questions: settings.reader("read_uncommitted")?,
            partitioner: settings.partitioner(),
            settings,
            topics: BTreeMap::new(),
            ids: BTreeMap::new(),
            made_again: BTreeSet::new(),
            is_stale: false,
            headers: Vec::new(),
            answered: Instant::now(),
        })
    }

    /// Asks again until a broker answers.
    fn ask<T>(&self, question: impl Fn(&BaseConsumer<Context>) -> Result<T, KafkaError>) -> Result<T, Failure> {
        let begun = Instant::now();
        loop {
            let error = match question(&self.questions) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let code = error.rdkafka_error_code();
            let context = self.questions.context();
            if code == Some(RDKafkaErrorCode::TopicAuthorizationFailed) {
                return Err(forbidden());
            }
            if begun.elapsed() >= SILENT_FOR || errors::is_of_login(context.problem_code()) {
                return Err(context.unanswered(&error));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The cluster's metadata: of one topic, or of all.
    fn metadata(&self, topic: Option<&str>) -> Result<Metadata, Failure> {
        self.ask(|client| client.fetch_metadata(topic, QUESTION))
    }

    /// The number of partitions of each of these topics that exists, with the partitions that have a leader.
    fn partitions(
        &self,
        prefix: Option<&str>,
        topics: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Vec<bool>>, Failure> {
        let mut found = BTreeMap::new();
        let mut take = |metadata: &Metadata| {
            for topic in metadata.topics().iter().filter(|topic| topic.error().is_none()) {
                let name = topic.name();
                let is_wanted = prefix.is_some_and(|prefix| name.starts_with(prefix) && !name.starts_with("__"));
                if (is_wanted || topics.contains(name)) && !topic.partitions().is_empty() {
                    let mut led = vec![false; topic.partitions().len()];
                    for partition in topic.partitions() {
                        let at = usize::try_from(partition.id()).ok().and_then(|id| led.get_mut(id));
                        if let Some(led) = at {
                            *led = partition.leader() >= 0;
                        }
                    }
                    found.insert(name.to_owned(), led);
                }
            }
        };
        if prefix.is_some() || topics.len() > MOST_QUESTIONS {
            take(&self.metadata(None)?);
        } else {
            for topic in topics {
                take(&self.metadata(Some(topic))?);
            }
        }
        Ok(found)
    }

    /// The offsets of these partitions at `offset`, which is a beginning, an end, or a time in milliseconds since 1970.
    fn offsets(&self, partitions: &BTreeMap<String, Vec<bool>>, offset: Offset) -> Result<TopicOffsets, Failure> {
        let mut asked = TopicPartitionList::new();
        for (topic, led) in partitions {
            for (partition, _) in led.iter().enumerate().filter(|(_, led)| **led) {
                let partition = i32::try_from(partition).unwrap_or(i32::MAX);
                let added = asked.add_partition_offset(topic, partition, offset);
                added.map_err(|error| self.broken(&error))?;
            }
        }
        let mut found: TopicOffsets =
            partitions.iter().map(|(topic, led)| (topic.clone(), vec![None; led.len()])).collect();
        if asked.count() == 0 {
            return Ok(found);
        }
        let answer = self.ask(|client| client.offsets_for_times(asked.clone(), QUESTION))?;
        for element in answer.elements() {
            let Offset::Offset(offset) = element.offset() else { continue };
            let partition = usize::try_from(element.partition()).ok();
            let at = found.get_mut(element.topic()).zip(partition).and_then(|(all, at)| all.get_mut(at));
            if let Some(at) = at {
                *at = Some(offset);
            }
        }
        Ok(found)
    }

    /// Notes topics that are not the ones any more that were seen first. Offsets do not show that where nothing was read, or where as much was
    /// written again. If the broker does not answer, or gives no ids, they alone are looked at.
    fn look_at_ids<'n>(&mut self, names: impl Iterator<Item = &'n String>) {
        let names: Vec<CString> = names.filter_map(|name| CString::new(name.as_str()).ok()).collect();
        if names.is_empty() {
            return;
        }
        let asked = Description::ask(self.questions.client(), &names, QUESTION);
        let Some(Ok(found)) = asked.map(|asked| asked.answer(QUESTION + PAUSE)) else { return };
        for (name, id) in found.ids {
            if self.ids.get(&name).is_some_and(|first| *first != id) && self.made_again.insert(name.clone()) {
                for next in self.topics.get_mut(&name).into_iter().flat_map(|topic| &mut topic.next) {
                    *next = Some(0);
                }
                self.is_stale = true;
            }
            self.ids.entry(name).or_insert(id);
        }
    }

    /// Notes partitions that were added, and offsets that went back.
    fn look_at(&mut self, ends: &TopicOffsets) {
        for (name, topic) in &mut self.topics {
            let Some(found) = ends.get(name) else { continue };
            if found.len() > topic.next.len() {
                topic.next.resize(found.len(), Some(0));
                self.is_stale = true;
            }
            for (next, end) in topic.next.iter_mut().zip(found) {
                if let (Some(read), Some(end)) = (*next, *end)
                    && end < read
                {
                    topic.unread.insert(WENT_BACK.to_owned());
                    *next = Some(0);
                    self.is_stale = true;
                }
            }
        }
    }

    /// Assigns all partitions, each from its next offset on.
    fn assign(&mut self) -> Result<(), Failure> {
        let mut all = TopicPartitionList::new();
        for (name, topic) in &self.topics {
            for (partition, next) in topic.next.iter().enumerate() {
                let offset = next.map_or(Offset::Beginning, Offset::Offset);
                let added = all.add_partition_offset(name, i32::try_from(partition).unwrap_or(i32::MAX), offset);
                added.map_err(|error| self.broken(&error))?;
            }
        }
        self.records.assign(&all).map_err(|error| self.broken(&error))?;
        self.is_stale = false;
        Ok(())
    }

    /// The client's positions also pass the marks at the end of transactions.
    fn take_positions(&mut self) -> Result<(), Failure> {
        let found = self.records.position().map_err(|error| self.broken(&error))?;
        for element in found.elements() {
            let Offset::Offset(offset) = element.offset() else { continue };
            let topic = self.topics.get_mut(element.topic());
            let partition = usize::try_from(element.partition()).ok();
            let next = topic.zip(partition).and_then(|(topic, at)| topic.next.get_mut(at));
            if let Some(next) = next {
                *next = (*next).max(Some(offset));
            }
        }
        Ok(())
    }

    /// A broker does not have the next offset of a partition: records were deleted before they were read, or the topic is another one.
    fn out_of_range(&mut self) -> Result<(), Failure> {
        self.take_positions()?;
        let names = self.topics.keys().cloned().collect();
        let partitions = self.partitions(None, &names)?;
        let (begins, ends) = (self.offsets(&partitions, Offset::Beginning)?, self.offsets(&partitions, Offset::End)?);
        self.look_at(&ends);
        for (name, topic) in &mut self.topics {
            let Some(begins) = begins.get(name) else { continue };
            for (next, begin) in topic.next.iter_mut().zip(begins) {
                if let (Some(read), Some(begin)) = (*next, *begin)
                    && read < begin
                {
                    topic.unread.insert(DELETED.to_owned());
                    *next = Some(begin);
                }
            }
        }
        self.is_stale = true;
        Ok(())
    }

    fn broken(&self, error: &KafkaError) -> Failure {
        errors::client(format!("the topics at {} cannot be read: {error}", self.settings.brokers))
    }
}

/// Beyond this number of topics, one question about all topics is cheaper than one about each.
const MOST_QUESTIONS: usize = 20;

const DELETED: &str = "Kafka deleted records of it before they were read: retention, or kafka-delete-records.sh";
const WENT_BACK: &str = "its offsets went back: it was deleted and created again, or lost its last records";
const MADE_AGAIN: &str = "it was deleted and created again";
const GONE: &str = "it was deleted";
const COMPACTED: &str = "it is compacted (cleanup.policy), which removes records that have a successor";
const POLICY_UNKNOWN: &str = "Kafka does not say whether it is compacted (cleanup.policy; the user needs DESCRIBE_CONFIGS on it), which would \
                              remove records that have a successor";

impl RecordReader for TopicReader {
    fn ends(&mut self, prefix: Option<&str>, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let partitions = self.partitions(prefix, topics)?;
        self.look_at_ids(partitions.keys());
        for name in topics.iter().filter(|name| !partitions.contains_key(*name)) {
            // It was there, since its records were read.
            let was_there = self.topics.get_mut(name).filter(|topic| topic.next.iter().any(Option::is_some));
            if let Some(topic) = was_there {
                topic.unread.insert(GONE.to_owned());
            }
        }
        let ends = self.offsets(&partitions, Offset::End)?;
        self.answered = Instant::now();
        self.look_at(&ends);
        Ok(ends)
    }

    fn starts(&mut self, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let partitions = self.partitions(None, topics)?;
        self.offsets(&partitions, Offset::Beginning)
    }

    fn offsets_at(&mut self, millis: i64, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let partitions = self.partitions(None, topics)?;
        // Asked for first: a record that comes in between lies behind these ends.
        let mut found = self.offsets(&partitions, Offset::End)?;
        // A negative number would stand for a beginning or an end.
        for (topic, offsets) in self.offsets(&partitions, Offset::Offset(millis.max(0)))? {
            let Some(ends) = found.get_mut(&topic) else { continue };
            for (end, offset) in ends.iter_mut().zip(offsets) {
                // Without such a record the broker names no offset.
                *end = offset.or(*end);
            }
        }
        Ok(found)
    }

    fn follow(&mut self, topic: &str, from: &[Option<i64>]) {
        let new = FollowedTopic { next: from.to_vec(), partitions: from.len(), unread: BTreeSet::new() };
        self.topics.entry(topic.to_owned()).or_insert(new);
        self.is_stale = true;
    }

    fn read(&mut self, wait: Duration, each: &mut dyn FnMut(&ReadRecord<'_>)) -> Result<usize, Failure> {
        if self.is_stale {
            self.assign()?;
        }
        let (mut count, mut is_out_of_range, mut headers) = (0, false, std::mem::take(&mut self.headers));
        while count < MOST_RECORDS {
            let polled = self.records.poll(if count == 0 { wait } else { Duration::ZERO });
            let message = match polled {
                None => break,
                Some(Ok(message)) => message,
                Some(Err(error)) => match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::AutoOffsetReset) => {
                        is_out_of_range = true;
                        break;
                    }
                    Some(RDKafkaErrorCode::TopicAuthorizationFailed) => return Err(forbidden()),
                    // Whether the topic is still there shows when its end is asked for.
                    Some(code) if passes(code) || is_of_missing_topic(code) => break,
                    Some(_) | None => return Err(self.broken(&error)),
                },
            };
            let (partition, offset) = (message.partition(), message.offset());
            let Some(topic) = self.topics.get_mut(message.topic()) else { continue };
            let is_same_count = topic.next.len() == topic.partitions;
            let partitions = i32::try_from(topic.partitions).unwrap_or(i32::MAX);
            let Some(next) = usize::try_from(partition).ok().and_then(|at| topic.next.get_mut(at)) else { continue };
            if next.is_some_and(|next| offset < next) {
                continue;
            }
            *next = Some(offset + 1);
            let mut list: Vec<Header<'_>> = std::mem::take(&mut headers);
            let all = message.headers().into_iter().flat_map(|headers| headers.iter());
            list.extend(all.map(|header| Header { name: header.key, value: header.value }));
            let time = if let Timestamp::CreateTime(millis) = message.timestamp() { Some(millis) } else { None };
            let by_key = if is_same_count { self.partitioner.of(message.key(), partitions) } else { None };
            each(&ReadRecord {
                record: Record {
                    topic: message.topic(),
                    key: message.key(),
                    value: message.payload(),
                    headers: &list,
                    timestamp_millis: time.unwrap_or_default(),
                    partition: Some(partition),
                    content: Content::Unknown,
                },
                offset,
                writers_time: time.is_some(),
                partition_of_key: by_key,
            });
            headers = emptied(list);
            count += 1;
        }
        self.headers = headers;
        if is_out_of_range {
            self.out_of_range()?;
        }
        Ok(count)
    }

    fn positions(&mut self) -> Result<TopicOffsets, Failure> {
        self.take_positions()?;
        Ok(self.topics.iter().map(|(name, topic)| (name.clone(), topic.next.clone())).collect())
    }

    fn unread(&mut self, topic: &str) -> Vec<String> {
        let noted = self.topics.get(topic).map(|topic| topic.unread.iter().cloned().collect::<Vec<_>>());
        let mut reasons = noted.unwrap_or_default();
        self.look_at_ids(std::iter::once(&topic.to_owned()));
        if self.made_again.contains(topic) {
            reasons.insert(0, MADE_AGAIN.to_owned());
        }
        let policy = Admin::new(&self.settings, SETTINGS_WITHIN)
            .ok()
            .and_then(|admin| admin.setting_of(topic, super::progress::CLEANUP_POLICY).ok().flatten());
        reasons.extend(compaction(policy.as_deref()).map(str::to_owned));
        reasons
    }
}

/// The reason for which a topic with this `cleanup.policy` may lack records. `policy`: `None` if it is not known.
fn compaction(policy: Option<&str>) -> Option<&'static str> {
    let Some(policy) = policy else { return Some(POLICY_UNKNOWN) };
    policy.split(',').any(|part| part.trim() == "compact").then_some(COMPACTED)
}

fn forbidden() -> Failure {
    let text = "not allowed to read a topic: the user needs READ and DESCRIBE on the topics";
    Failure::new(FailureClass::Topic, errors::reason(Some(RDKafkaErrorCode::TopicAuthorizationFailed)), text)
}

/// Whether a consumer reports this if a topic or a partition is not there.
fn is_of_missing_topic(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(code, Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_may_lack_records_if_it_is_compacted_or_nobody_says_that_it_is_not() {
        assert_eq!(compaction(Some("delete")), None);
        assert_eq!(compaction(Some("compact")), Some(COMPACTED));
        assert_eq!(compaction(Some("delete, compact")), Some(COMPACTED));
        assert_eq!(compaction(None), Some(POLICY_UNKNOWN));
    }
}

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
//! Invariants: no record is passed over without a note. `auto.offset.reset` is `error`, so librdkafka reports it when the broker does not have
//! the next offset any more. Then the partition is read from its present first record, and the topic's records count as unread. A topic that is
//! another one now is ended: no record is given out of it from then on.

use super::admin::Admin;
use super::callbacks::Context;
use super::config::KafkaSettings;
use super::describe::{Description, TopicId, topic_in};
use super::errors;
use super::partitioner::Partitioner;
use super::progress::passes;
use super::retire::Retirable;
use super::tools;
use crate::sink::reading::{ReadRecord, RecordReader, TopicOffsets};
use crate::sink::{Content, Failure, FailureClass, Header, Record, emptied};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers as _, Message as _, Timestamp};
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long one question may take.
const QUESTION: Duration = Duration::from_secs(5);

/// How long brokers may be silent. After that the reading fails.
const SILENT_FOR: Duration = Duration::from_mins(1);

/// How long a partition may be without a leader. Until one is elected, its offsets are not known.
const LED_WITHIN: Duration = Duration::from_secs(10);

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
    /// Topics that are not the ones any more that were seen first, each with the reason.
    ended: BTreeMap<String, &'static str>,
    /// Topics that this user may not see.
    forbidden: BTreeSet<String>,
    /// Whether the consumer has to be told the partitions again.
    is_stale: bool,
    /// Memory for the headers of a record.
    headers: Vec<Header<'static>>,
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
            ended: BTreeMap::new(),
            forbidden: BTreeSet::new(),
            is_stale: false,
            headers: Vec::new(),
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
                return Err(self.unreadable());
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

    /// Which partitions have a leader, of each of these topics that exists and that the user may see. Topics that he may not see are noted, and are
    /// not looked at again: their records of earlier moments are not known.
    fn partitions(
        &mut self,
        prefix: Option<&str>,
        topics: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Vec<bool>>, Failure> {
        let mut found = BTreeMap::new();
        if prefix.is_some() || topics.len() > MOST_QUESTIONS {
            let all = self.metadata(None)?;
            let is_wanted = |name: &str| {
                topics.contains(name)
                    || prefix.is_some_and(|prefix| name.starts_with(prefix) && !name.starts_with("__"))
            };
            found.extend(all.topics().iter().filter(|topic| is_wanted(topic.name())).filter_map(led));
        }
        // A list of all topics leaves out those that the user may not see.
        for name in topics {
            if found.contains_key(name) || self.forbidden.contains(name) {
                continue;
            }
            let asked = self.metadata(Some(name))?;
            match topic_in(&asked, name) {
                Ok(topic) => found.extend(led(topic)),
                Err(RDKafkaErrorCode::TopicAuthorizationFailed) => drop(self.forbidden.insert(name.clone())),
                Err(_) => {}
            }
        }
        found.retain(|name, _| !self.forbidden.contains(name));
        Ok(found)
    }

    /// The partitions of these topics, and their offsets as [`TopicReader::offsets`] has them. A partition without a leader is waited for.
    ///
    /// # Errors
    /// One has no leader for too long, or as [`TopicReader::partitions`].
    fn known_offsets(
        &mut self,
        topics: &BTreeSet<String>,
        offset: Offset,
    ) -> Result<(BTreeMap<String, Vec<bool>>, TopicOffsets), Failure> {
        let mut wait = LeaderWait::begin();
        loop {
            let partitions = self.partitions(None, topics)?;
            let found = self.offsets(&partitions, offset)?;
            let Some((topic, partition)) = unknown(&found) else { return Ok((partitions, found)) };
            if !wait.goes_on(topic, partition) {
                let text =
                    format!("partition {partition} of topic {topic} has no leader, so its records cannot be read");
                let reason = errors::reason(Some(RDKafkaErrorCode::LeaderNotAvailable));
                return Err(Failure::new(FailureClass::Environment, reason, text));
            }
        }
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
        if let Some(Ok(found)) = asked.map(|asked| asked.answer(QUESTION + PAUSE)) {
            self.take_ids(found.ids);
        }
    }

    fn take_ids(&mut self, ids: BTreeMap<String, TopicId>) {
        for (name, id) in ids {
            if *self.ids.entry(name.clone()).or_insert(id) != id {
                self.end(&name, MADE_AGAIN);
            } else if let Some(topic) = self.topics.get_mut(&name) {
                // A broker did not know it for a moment.
                topic.unread.remove(GONE);
            }
        }
    }

    /// Reads a topic no further.
    fn end(&mut self, name: &str, why: &'static str) {
        if !self.ended.contains_key(name) {
            tracing::warn!(topic = name, why, "the topic is read no further");
            self.ended.insert(name.to_owned(), why);
            self.is_stale = true;
        }
    }

    /// Notes topics that are gone: they were there, since their records were read.
    fn look_for(&mut self, topics: &BTreeSet<String>, found: &BTreeMap<String, Vec<bool>>) {
        for name in topics.iter().filter(|name| !found.contains_key(*name)) {
            let was_there = self.topics.get_mut(name).filter(|topic| topic.next.iter().any(Option::is_some));
            if let Some(topic) = was_there {
                topic.unread.insert(GONE.to_owned());
            }
        }
    }

    /// Notes partitions that were added. Ends topics whose offsets went back.
    fn look_at(&mut self, ends: &TopicOffsets) {
        let mut back = Vec::new();
        for (name, topic) in &mut self.topics {
            let Some(found) = ends.get(name) else { continue };
            if found.len() > topic.next.len() {
                topic.next.resize(found.len(), Some(0));
                self.is_stale = true;
            }
            let went_back =
                |(next, end): (&Option<i64>, &Option<i64>)| next.zip(*end).is_some_and(|(next, end)| end < next);
            if topic.next.iter().zip(found).any(went_back) {
                back.push(name.clone());
            }
        }
        for name in &back {
            self.end(name, WENT_BACK);
        }
    }

    /// Assigns all partitions, each from its next offset on.
    fn assign(&mut self) -> Result<(), Failure> {
        let mut all = TopicPartitionList::new();
        for (name, topic) in self.topics.iter().filter(|(name, _)| !self.ended.contains_key(*name)) {
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
        let names: BTreeSet<String> = self.topics.keys().cloned().collect();
        self.look_at_ids(names.iter());
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

    /// The command that lets the user read a topic.
    fn allow(&self, topic: &str) -> String {
        tools::allow(&self.settings, &["Read", "Describe"], &format!("--topic {topic}"))
    }

    /// The failure if the user may see a topic, and may not read it. Kafka's client does not say which one.
    fn unreadable(&self) -> Failure {
        let all = self.topics.keys().cloned().collect::<Vec<_>>().join(", ");
        let text = format!(
            "not allowed to read one of the topics {all}: the user needs READ and DESCRIBE on each: {}",
            self.allow("TOPIC")
        );
        Failure::new(FailureClass::Topic, errors::reason(Some(RDKafkaErrorCode::TopicAuthorizationFailed)), text)
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
        self.look_for(topics, &partitions);
        self.look_at_ids(partitions.keys());
        let ends = self.offsets(&partitions, Offset::End)?;
        self.look_at(&ends);
        Ok(ends)
    }

    /// A partition that has no leader for long stays without an offset. It may be of a topic that nobody names.
    fn mark(&mut self, prefix: &str, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let mut wait = LeaderWait::begin();
        loop {
            let ends = self.ends(Some(prefix), topics)?;
            if unknown(&ends).is_none_or(|(topic, partition)| !wait.goes_on(topic, partition)) {
                return Ok(ends);
            }
        }
    }

    fn starts(&mut self, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let (partitions, found) = self.known_offsets(topics, Offset::Beginning)?;
        self.look_at_ids(partitions.keys());
        Ok(found)
    }

    fn offsets_at(&mut self, millis: i64, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        // Asked for first: a record that comes in between lies behind these ends.
        let (partitions, mut found) = self.known_offsets(topics, Offset::End)?;
        self.look_at_ids(partitions.keys());
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
                    Some(RDKafkaErrorCode::TopicAuthorizationFailed) => return Err(self.unreadable()),
                    // Whether the topic is still there shows when its end is asked for.
                    Some(code) if passes(code) || is_of_missing_topic(code) => break,
                    Some(_) | None => return Err(self.broken(&error)),
                },
            };
            let (partition, offset) = (message.partition(), message.offset());
            if self.ended.contains_key(message.topic()) {
                continue;
            }
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
        let read = self.topics.iter().filter(|(name, _)| !self.ended.contains_key(*name));
        Ok(read.map(|(name, topic)| (name.clone(), topic.next.clone())).collect())
    }

    fn ended(&self, topic: &str) -> Option<String> {
        if self.forbidden.contains(topic) {
            return Some(format!("the user may not see it: {}", self.allow(topic)));
        }
        let is_gone = self.topics.get(topic).is_some_and(|topic| topic.unread.contains(GONE));
        self.ended.get(topic).copied().or_else(|| is_gone.then_some(GONE)).map(str::to_owned)
    }

    fn unread(&mut self, topic: &str) -> Vec<String> {
        self.look_at_ids(std::iter::once(&topic.to_owned()));
        let mut reasons: Vec<String> = self.ended(topic).into_iter().collect();
        reasons.extend(self.topics.get(topic).into_iter().flat_map(|topic| topic.unread.iter().cloned()));
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

/// Which partitions of a topic have a leader. `None`: it takes no records.
fn led(topic: &MetadataTopic) -> Option<(String, Vec<bool>)> {
    if topic.error().is_some() || topic.partitions().is_empty() {
        return None;
    }
    let mut led = vec![false; topic.partitions().len()];
    for partition in topic.partitions() {
        if let Some(led) = usize::try_from(partition.id()).ok().and_then(|id| led.get_mut(id)) {
            *led = partition.leader() >= 0;
        }
    }
    Some((topic.name().to_owned(), led))
}

/// The first partition without an offset.
fn unknown(offsets: &TopicOffsets) -> Option<(&str, usize)> {
    offsets.iter().find_map(|(topic, all)| Some((topic.as_str(), all.iter().position(Option::is_none)?)))
}

/// The wait for leaders of partitions.
struct LeaderWait {
    begun: Instant,
    is_said: bool,
}

impl LeaderWait {
    fn begin() -> Self {
        Self { begun: Instant::now(), is_said: false }
    }

    /// Waits a moment for the leader of this partition, unless it has taken too long.
    fn goes_on(&mut self, topic: &str, partition: usize) -> bool {
        if self.begun.elapsed() >= LED_WITHIN {
            return false;
        }
        if !std::mem::replace(&mut self.is_said, true) {
            tracing::warn!(topic, partition, "waiting for the leader of a partition");
        }
        std::thread::sleep(PAUSE);
        true
    }
}

/// Whether a consumer reports this if a topic or a partition is not there.
fn is_of_missing_topic(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(code, Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader of `orders`, which has two partitions, with 5 and 7 records before. There is no broker.
    fn reader() -> TopicReader {
        let settings = KafkaSettings::new("127.0.0.1:1", "walrelay", &[], 1 << 20).unwrap();
        let mut reader = TopicReader::new(settings).unwrap();
        reader.take_ids(BTreeMap::from([("orders".to_owned(), (1, 1))]));
        reader.follow("orders", &[Some(5), Some(7)]);
        reader.assign().unwrap();
        reader
    }

    fn offsets(all: &[Option<i64>]) -> TopicOffsets {
        BTreeMap::from([("orders".to_owned(), all.to_vec())])
    }

    #[track_caller]
    fn check_ended(reader: &mut TopicReader, why: &str) {
        assert_eq!(reader.ended("orders").as_deref(), Some(why));
        assert!(reader.is_stale, "the client is told");
        reader.assign().unwrap();
        assert_eq!(reader.records.assignment().unwrap().count(), 0, "nothing is read");
        assert!(reader.positions().unwrap().is_empty(), "no end is waited for");
    }

    #[test]
    fn a_topic_with_another_id_is_ended_and_is_not_read_from_its_beginning() {
        let mut reader = reader();
        reader.take_ids(BTreeMap::from([("orders".to_owned(), (1, 1))]));
        assert_eq!((reader.ended("orders"), reader.is_stale), (None, false));
        assert_eq!(reader.positions().unwrap(), offsets(&[Some(5), Some(7)]));
        reader.take_ids(BTreeMap::from([("orders".to_owned(), (2, 2))]));
        check_ended(&mut reader, MADE_AGAIN);
        // Followed again, it is another one all the same.
        reader.follow("orders", &[Some(0), Some(0)]);
        reader.look_at(&offsets(&[Some(1), Some(1)]));
        check_ended(&mut reader, MADE_AGAIN);
    }

    #[test]
    fn a_topic_whose_offsets_went_back_is_ended_also_if_there_are_no_ids() {
        let mut reader = reader();
        reader.look_at(&offsets(&[Some(5), None]));
        assert_eq!((reader.ended("orders"), reader.is_stale), (None, false));
        reader.look_at(&offsets(&[Some(9), Some(6)]));
        check_ended(&mut reader, WENT_BACK);
    }

    #[test]
    fn a_topic_that_a_broker_did_not_know_for_a_moment_is_not_gone() {
        let mut reader = reader();
        let names = BTreeSet::from(["orders".to_owned(), "other".to_owned()]);
        reader.look_for(&names, &BTreeMap::new());
        assert_eq!((reader.ended("orders").as_deref(), reader.ended("other")), (Some(GONE), None));
        reader.take_ids(BTreeMap::from([("orders".to_owned(), (1, 1))]));
        assert_eq!(reader.ended("orders"), None);
        reader.look_for(&names, &BTreeMap::new());
        reader.take_ids(BTreeMap::from([("orders".to_owned(), (2, 1))]));
        check_ended(&mut reader, MADE_AGAIN);
    }

    #[test]
    fn what_the_user_may_not_see_is_named_with_the_right_that_he_lacks() {
        let mut reader = reader();
        reader.forbidden.insert("orders".to_owned());
        let why = reader.ended("orders").unwrap();
        assert!(why.contains("kafka-acls.sh") && why.contains("Read") && why.contains("--topic orders"), "{why}");
    }

    #[test]
    fn a_partition_without_an_offset_is_found() {
        assert_eq!(unknown(&offsets(&[Some(5), Some(0)])), None);
        assert_eq!(unknown(&offsets(&[Some(5), None])), Some(("orders", 1)));
    }

    #[test]
    fn a_topic_may_lack_records_if_it_is_compacted_or_nobody_says_that_it_is_not() {
        assert_eq!(compaction(Some("delete")), None);
        assert_eq!(compaction(Some("compact")), Some(COMPACTED));
        assert_eq!(compaction(Some("delete, compact")), Some(COMPACTED));
        assert_eq!(compaction(None), Some(POLICY_UNKNOWN));
    }
}

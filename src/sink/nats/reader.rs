//! [`StreamReader`]: reads the messages of streams, each from a sequence number on, for as long as it is asked.
//!
//! ```text
//!  subject ─► its stream ─► messages by their numbers, many questions at once ─► those of subjects that are read
//! ```
//!
//! In: settings, subjects, numbers. Out: records, ends, positions, and the reasons for which messages may have gone unread. It writes nothing,
//! and creates no consumer: a question about a message (`STREAM.MSG.GET`) changes nothing. A topic is one partition, whose offsets are the
//! stream's sequence numbers.
//!
//! A stream is read from front to end, also for subjects that are named later: once a mark names a prefix, messages of all subjects with it
//! are given out.
//! Specification: NATS, JetStream API (`STREAM.NAMES`, `STREAM.INFO`, `STREAM.MSG.GET`).

use super::NatsSettings;
use super::client::NatsConnection;
use super::dead_letters::{Got, NO_MESSAGE, answer, forbidden, millis_of, record, refused};
use super::errors::{Answered, Names};
use crate::setting_text::SettingError;
use crate::sink::reading::{ReadRecord, RecordReader, TopicOffsets};
use crate::sink::{Failure, FailureClass, HeaderRoom, OwnedRecord, Record};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How many questions are under way at once.
const AT_ONCE: i64 = 500;

/// The pause while nothing comes.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a lost connection is tried again.
const SILENT_FOR: Duration = Duration::from_mins(1);

const DELETED: &str = "messages of its stream were deleted before they were read: by its limits, a purge, or by hand";
const SOME_DELETED: &str =
    "messages of its stream were deleted (max_msgs_per_subject, a time to live, rollup, or by hand), perhaps these";
const RETENTION: &str = "its stream deletes messages that consumers have acknowledged (retention is not limits)";
const MADE_AGAIN: &str = "its stream was deleted and created again";
const GONE: &str = "its stream was deleted";

/// The reader.
pub(super) struct StreamReader {
    settings: NatsSettings,
    runtime: Runtime,
    connection: Option<NatsConnection>,
    /// The stream of each subject.
    of_subject: BTreeMap<String, String>,
    streams: BTreeMap<String, ReadStream>,
    /// The next number of each subject that is read.
    subjects: BTreeMap<String, i64>,
    /// Messages of all subjects with this prefix are given out. `None`: only those of subjects that are read.
    prefix: Option<String>,
}

/// A stream that is read.
#[derive(Debug)]
struct ReadStream {
    /// The next number. `None`: nothing of it is read yet.
    next: Option<i64>,
    info: StreamInfo,
    unread: BTreeSet<&'static str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct StreamInfo {
    #[serde(default)]
    created: String,
    config: StreamConfig,
    state: StreamState,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct StreamConfig {
    #[serde(default)]
    retention: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
struct StreamState {
    first_seq: i64,
    last_seq: i64,
    /// Missing numbers between both.
    #[serde(default)]
    num_deleted: i64,
}

impl StreamInfo {
    /// The number of the next message.
    const fn end(&self) -> i64 {
        self.state.last_seq + 1
    }

    /// The number of the first message. 0: none was deleted in front of it.
    const fn start(&self) -> i64 {
        if self.state.first_seq > 1 { self.state.first_seq } else { 0 }
    }
}

impl ReadStream {
    fn look(&mut self, info: StreamInfo) {
        if let Some(next) = self.next {
            if info.created != self.info.created || info.end() < next {
                self.unread.insert(MADE_AGAIN);
                self.next = Some(0);
            } else if info.state.first_seq > next.max(1) {
                self.unread.insert(DELETED);
            }
        }
        self.info = info;
    }

    /// The reasons for which a message may be gone.
    fn reasons(&self) -> BTreeSet<&'static str> {
        let mut reasons = self.unread.clone();
        if !matches!(self.info.config.retention.as_str(), "" | "limits") {
            reasons.insert(RETENTION);
        }
        if self.info.state.num_deleted > 0 {
            reasons.insert(SOME_DELETED);
        }
        reasons
    }
}

impl StreamReader {
    pub(super) fn new(settings: NatsSettings) -> Result<Self, SettingError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            SettingError::usage(format!("cannot start the client: {error}"), "free threads and memory")
        })?;
        Ok(Self {
            settings,
            runtime,
            connection: None,
            of_subject: BTreeMap::new(),
            streams: BTreeMap::new(),
            subjects: BTreeMap::new(),
            prefix: None,
        })
    }

    /// Asks, again for a while if the connection is lost.
    fn ask<T>(&mut self, question: &impl AsyncFn(&mut NatsConnection) -> Result<T, Failure>) -> Result<T, Failure> {
        let begun = Instant::now();
        loop {
            let Self { settings, runtime, connection, .. } = self;
            let answered = runtime.block_on(async {
                if connection.is_none() {
                    *connection = Some(NatsConnection::open(settings, 0).await?);
                }
                match connection {
                    Some(connection) => question(connection).await.map(Some),
                    None => Ok(None),
                }
            });
            match answered {
                Ok(Some(answer)) => return Ok(answer),
                Err(failure) if failure.class != FailureClass::Environment || begun.elapsed() >= SILENT_FOR => {
                    return Err(failure);
                }
                Ok(None) | Err(_) => {
                    self.connection = None;
                    std::thread::sleep(PAUSE * 10);
                }
            }
        }
    }

    /// Finds the streams of these subjects.
    fn find(&mut self, subjects: &BTreeSet<String>) -> Result<(), Failure> {
        for subject in subjects {
            if self.of_subject.contains_key(subject) {
                continue;
            }
            let names = self.ask(&async |connection| {
                let found = answer(connection, subject, "STREAM.NAMES", &json!({ "subject": subject })).await?;
                Ok(serde_json::from_slice::<Names>(&found).unwrap_or_default())
            })?;
            if let Some(stream) = names.streams.unwrap_or_default().into_iter().next() {
                self.of_subject.insert(subject.clone(), stream);
            }
        }
        Ok(())
    }

    /// The server's figures of a stream. `None`: it is missing.
    fn info(&mut self, stream: &str) -> Result<Option<StreamInfo>, Failure> {
        self.ask(&async |connection| match connection.ask(&format!("$JS.API.STREAM.INFO.{stream}"), "").await? {
            Answered::With(data) => Ok(serde_json::from_slice(&data).ok()),
            Answered::Refused(_, Some(NO_STREAM)) => Ok(None),
            Answered::Refused(error, _) => Err(refused(stream, &error)),
            Answered::Forbidden => Err(forbidden(stream, "STREAM.INFO")),
        })
    }

    /// Looks at the streams of these subjects. Returns what is known of each subject's.
    fn look(&mut self, subjects: &BTreeSet<String>) -> Result<BTreeMap<String, StreamInfo>, Failure> {
        self.find(subjects)?;
        let streams: BTreeSet<String> = subjects.iter().filter_map(|name| self.of_subject.get(name).cloned()).collect();
        for name in streams {
            if let Some(info) = self.info(&name)? {
                let new = || ReadStream { next: None, info: info.clone(), unread: BTreeSet::new() };
                self.streams.entry(name).or_insert_with(new).look(info.clone());
                continue;
            }
            if let Some(stream) = self.streams.get_mut(&name) {
                stream.unread.insert(GONE);
            }
            self.of_subject.retain(|_, of| *of != name);
        }
        let known = |subject: &String| {
            let stream = self.streams.get(self.of_subject.get(subject)?)?;
            Some((subject.clone(), stream.info.clone()))
        };
        Ok(subjects.iter().filter_map(known).collect())
    }

    /// Reads the messages of these numbers. Those that are missing are left out.
    fn messages(&mut self, stream: &str, from: i64, to: i64) -> Result<Vec<(i64, OwnedRecord)>, Failure> {
        let questions: Vec<String> = (from..to).map(|number| json!({ "seq": number }).to_string()).collect();
        let request = format!("$JS.API.STREAM.MSG.GET.{stream}");
        let answers = self.ask(&async |connection| connection.ask_all(&request, &questions).await)?;
        let mut found = Vec::with_capacity(answers.len());
        for answer in answers {
            match answer {
                Answered::With(data) => {
                    let Some(stored) = serde_json::from_slice::<Got<'_>>(&data).ok().and_then(|got| got.message) else {
                        continue;
                    };
                    let decoded = |text: &str| BASE64_STANDARD.decode(text).unwrap_or_default();
                    let number = i64::try_from(stored.seq).unwrap_or(i64::MAX);
                    let (headers, data) = (decoded(&stored.hdrs), decoded(&stored.data));
                    found.push((number, record(&stored.subject, &headers, &data, millis_of(&stored.time), true)));
                }
                Answered::Refused(_, Some(NO_MESSAGE)) => {}
                Answered::Refused(error, _) => return Err(refused(stream, &error)),
                Answered::Forbidden => return Err(forbidden(stream, "STREAM.MSG.GET")),
            }
        }
        Ok(found)
    }

    /// The number and the time of the first message from a number on. `None`: there is none.
    fn message_from(&mut self, stream: &str, number: i64) -> Result<Option<(i64, i64)>, Failure> {
        let question = json!({ "seq": number.max(1), "next_by_subj": ">" }).to_string();
        self.ask(&async |connection| match connection
            .ask(&format!("$JS.API.STREAM.MSG.GET.{stream}"), &question)
            .await?
        {
            Answered::With(data) => {
                let got = serde_json::from_slice::<Got<'_>>(&data).ok().and_then(|got| got.message);
                let number = |seq| i64::try_from(seq).unwrap_or(i64::MAX);
                Ok(got.map(|stored| (number(stored.seq), millis_of(&stored.time))))
            }
            Answered::Refused(_, Some(NO_MESSAGE)) => Ok(None),
            Answered::Refused(error, _) => Err(refused(stream, &error)),
            Answered::Forbidden => Err(forbidden(stream, "STREAM.MSG.GET")),
        })
    }

    /// The number of the first message of a time or later. Without such a message: the end.
    fn number_at(&mut self, stream: &str, info: &StreamInfo, millis: i64) -> Result<i64, Failure> {
        let (mut from, mut to) = (info.state.first_seq, info.end());
        while from < to {
            let middle = from + (to - from) / 2;
            match self.message_from(stream, middle)? {
                Some((number, time)) if number < to && time < millis => from = number + 1,
                Some(_) | None => to = middle,
            }
        }
        Ok(from)
    }
}

/// The API's code if there is no such stream.
const NO_STREAM: u16 = 10059;

impl RecordReader for StreamReader {
    fn lists_topics(&self) -> bool {
        false
    }

    /// For each stream of the account, and for subjects that have one, the next number.
    fn mark(&mut self, prefix: &str, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        self.prefix = Some(prefix.to_owned());
        let names = self.ask(&async |connection| {
            let found = answer(connection, prefix, "STREAM.NAMES", &json!({})).await?;
            Ok(serde_json::from_slice::<Names>(&found).unwrap_or_default())
        })?;
        let mut mark: TopicOffsets = TopicOffsets::new();
        for stream in names.streams.unwrap_or_default() {
            if let Some(info) = self.info(&stream)? {
                mark.insert(marked(&stream), vec![Some(info.end())]);
            }
        }
        // They are read from the beginning of the window on.
        self.look(topics)?;
        Ok(mark)
    }

    fn start_at(&mut self, mark: &TopicOffsets, topic: &str) -> Result<Option<Vec<Option<i64>>>, Failure> {
        if let Some(found) = mark.get(topic) {
            return Ok(Some(found.clone()));
        }
        self.look(&BTreeSet::from([topic.to_owned()]))?;
        Ok(self.of_subject.get(topic).and_then(|stream| mark.get(&marked(stream))).cloned())
    }

    fn ends(&mut self, _prefix: Option<&str>, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let found = self.look(topics)?;
        Ok(found.into_iter().map(|(subject, info)| (subject, vec![Some(info.end())])).collect())
    }

    fn starts(&mut self, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let found = self.look(topics)?;
        Ok(found.into_iter().map(|(subject, info)| (subject, vec![Some(info.start())])).collect())
    }

    fn offsets_at(&mut self, millis: i64, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let found = self.look(topics)?;
        let mut numbers: BTreeMap<String, i64> = BTreeMap::new();
        let mut offsets = TopicOffsets::new();
        for (subject, info) in found {
            let Some(stream) = self.of_subject.get(&subject).cloned() else { continue };
            let number = match numbers.get(&stream) {
                Some(number) => *number,
                None => self.number_at(&stream, &info, millis)?,
            };
            numbers.insert(stream, number);
            offsets.insert(subject, vec![Some(number)]);
        }
        Ok(offsets)
    }

    fn follow(&mut self, topic: &str, from: &[Option<i64>]) {
        let from = from.first().copied().flatten().unwrap_or_default();
        let is_new = !self.subjects.contains_key(topic);
        let next = *self.subjects.entry(topic.to_owned()).or_insert(from);
        let Some(stream) = self.of_subject.get(topic).and_then(|stream| self.streams.get_mut(stream)) else { return };
        // Messages of a subject with the prefix were given out already.
        let was_read = self.prefix.as_ref().is_some_and(|prefix| topic.starts_with(prefix)) && stream.next.is_some();
        if is_new && !was_read {
            stream.next = Some(stream.next.map_or(next, |read| read.min(next)));
        }
    }

    fn read(&mut self, wait: Duration, each: &mut dyn FnMut(&ReadRecord<'_>)) -> Result<usize, Failure> {
        let (mut count, mut room) = (0, HeaderRoom::default());
        let streams: Vec<(String, i64)> =
            self.streams.iter().filter_map(|(name, stream)| Some((name.clone(), stream.next?))).collect();
        for (name, next) in streams {
            let Some(mut info) = self.streams.get(&name).map(|stream| stream.info.clone()) else { continue };
            if next >= info.end() {
                let Some(now) = self.info(&name)? else { continue };
                if let Some(stream) = self.streams.get_mut(&name) {
                    stream.look(now.clone());
                }
                info = now;
            }
            let from = next.max(info.state.first_seq);
            let to = info.end().min(from.saturating_add(AT_ONCE));
            if from >= to {
                if let Some(stream) = self.streams.get_mut(&name) {
                    stream.next = Some(next.max(info.end()));
                }
                continue;
            }
            for (offset, record) in self.messages(&name, from, to)? {
                record.with_record(&mut room, |record| {
                    let has_prefix = self.prefix.as_ref().is_some_and(|prefix| record.topic.starts_with(prefix));
                    let known = self.subjects.get_mut(record.topic);
                    if known.as_ref().map_or(!has_prefix, |next| offset < **next) {
                        return;
                    }
                    match known {
                        Some(next) => *next = offset + 1,
                        None => drop(self.subjects.insert(record.topic.to_owned(), offset + 1)),
                    }
                    count += 1;
                    let record = Record { partition: Some(0), ..*record };
                    each(&ReadRecord { record, offset, writers_time: false, partition_of_key: None });
                });
            }
            if let Some(stream) = self.streams.get_mut(&name) {
                stream.next = Some(to);
            }
        }
        if count == 0 {
            std::thread::sleep(PAUSE.min(wait));
        }
        Ok(count)
    }

    fn positions(&mut self) -> Result<TopicOffsets, Failure> {
        let position = |(subject, next): (&String, &i64)| {
            let stream = self.of_subject.get(subject).and_then(|stream| self.streams.get(stream));
            let read = stream.and_then(|stream| stream.next).unwrap_or_default();
            (subject.clone(), vec![Some(read.max(*next))])
        };
        Ok(self.subjects.iter().map(position).collect())
    }

    fn unread(&mut self, topic: &str) -> Vec<String> {
        let stream = self.of_subject.get(topic).and_then(|stream| self.streams.get(stream));
        // A stream that is gone is nobody's any more.
        let reasons = stream.map_or_else(|| BTreeSet::from([GONE]), ReadStream::reasons);
        reasons.into_iter().map(str::to_owned).collect()
    }
}

/// The name of a stream in a mark. No subject has it.
fn marked(stream: &str) -> String {
    format!("stream {stream}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(first_seq: i64, last_seq: i64, num_deleted: i64, created: &str) -> StreamInfo {
        let config = StreamConfig { retention: "limits".to_owned() };
        StreamInfo { created: created.to_owned(), config, state: StreamState { first_seq, last_seq, num_deleted } }
    }

    #[track_caller]
    fn check(next: i64, now: StreamInfo, expected: &[&str]) {
        let mut stream = ReadStream { next: Some(next), info: info(1, 9, 0, "a"), unread: BTreeSet::new() };
        stream.look(now);
        assert_eq!(stream.reasons().into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn messages_that_are_gone_before_they_were_read_are_noted() {
        check(5, info(1, 12, 0, "a"), &[]);
        check(5, info(5, 12, 0, "a"), &[]);
        check(5, info(6, 12, 0, "a"), &[DELETED]);
        check(0, info(1, 12, 0, "a"), &[]);
        check(5, info(1, 12, 1, "a"), &[SOME_DELETED]);
        check(5, info(1, 12, 0, "b"), &[MADE_AGAIN]);
        check(5, info(1, 3, 0, "a"), &[MADE_AGAIN]);
        let mut queue = info(1, 12, 0, "a");
        queue.config.retention = "workqueue".to_owned();
        check(5, queue, &[RETENTION]);
        assert_eq!((info(1, 3, 0, "").start(), info(2, 3, 0, "").start(), info(0, 0, 0, "").end()), (0, 2, 1));
    }

    #[test]
    fn what_the_server_says_is_understood() {
        let text = r#"{"type":"x","config":{"name":"S","retention":"limits"},"created":"2026-11-29T10:00:00Z",
            "state":{"messages":3,"first_seq":1,"last_seq":4,"num_deleted":1}}"#;
        assert_eq!(serde_json::from_str::<StreamInfo>(text).unwrap(), info(1, 4, 1, "2026-11-29T10:00:00Z"));
    }
}

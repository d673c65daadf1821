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
//!
//! Invariant: no number is passed over without a note. If numbers have no message, the stream is looked at again before the reading goes on.
//! Answers of more than `MOST_READ` bytes are not kept at once, unless one message alone has more.
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

/// The most questions that are under way at once.
const AT_ONCE: usize = 500;

/// The most bytes of answers, with which no more of them are awaited.
const MOST_READ: usize = 32 << 20;

/// The bytes that the answers are meant to have at most.
const WANTED: usize = 16 << 20;

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
    /// How many messages are asked for next.
    at_once: usize,
    info: StreamInfo,
    unread: BTreeSet<&'static str>,
}

/// Messages of a stream, with their numbers.
#[derive(Debug)]
struct Batch {
    /// Behind the last number that was answered.
    to: i64,
    /// Those that are there.
    messages: Vec<(i64, OwnedRecord)>,
    /// The bytes of the answers.
    bytes: usize,
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
    fn new(info: StreamInfo) -> Self {
        Self { next: None, at_once: AT_ONCE, info, unread: BTreeSet::new() }
    }

    /// Whether these are the figures of the stream that is read, not of one that was created again.
    fn is_same(&self, info: &StreamInfo) -> bool {
        info.created == self.info.created && self.next.is_none_or(|next| info.end() >= next)
    }

    /// Notes messages that are gone before they were read. Returns whether the stream is the same one. If not, it is read from its front.
    fn look(&mut self, info: StreamInfo) -> bool {
        let is_same = self.is_same(&info);
        self.info = info;
        if is_same {
            self.look_at_front();
        } else {
            self.unread.insert(MADE_AGAIN);
            self.next = self.next.map(|_| 0);
        }
        is_same
    }

    /// Notes messages that are gone between the next number and the first one that is there.
    fn look_at_front(&mut self) {
        if self.next.is_some_and(|next| self.info.state.first_seq > next.max(1)) {
            self.unread.insert(DELETED);
        }
    }

    /// Notes what was read, and goes on behind it. The stream was looked at since if messages are missing.
    fn pass(&mut self, from: i64, batch: &Batch) {
        let there = (batch.to - from.max(self.info.state.first_seq)).max(0);
        if i64::try_from(batch.messages.len()).is_ok_and(|found| found < there) {
            self.unread.insert(SOME_DELETED);
        }
        self.next = Some(batch.to);
        if !batch.messages.is_empty() {
            let fitting = WANTED / (batch.bytes / batch.messages.len()).max(1);
            self.at_once = fitting.clamp(1, self.at_once.saturating_mul(2).min(AT_ONCE));
        }
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
            match self.try_ask(question) {
                Err(failure) if failure.class == FailureClass::Environment && begun.elapsed() < SILENT_FOR => {
                    std::thread::sleep(PAUSE * 10);
                }
                answered => return answered,
            }
        }
    }

    /// Asks once. A connection that fails is given up.
    fn try_ask<T>(&mut self, question: &impl AsyncFn(&mut NatsConnection) -> Result<T, Failure>) -> Result<T, Failure> {
        let Self { settings, runtime, connection, .. } = self;
        let answered = runtime.block_on(async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => NatsConnection::open(settings, 0).await?,
            };
            Ok((question(&mut open).await?, open))
        });
        answered.map(|(answer, open)| {
            *connection = Some(open);
            answer
        })
    }

    /// Finds the streams of these subjects.
    fn find(&mut self, subjects: &BTreeSet<String>) -> Result<(), Failure> {
        for subject in subjects {
            if self.of_subject.contains_key(subject) {
                continue;
            }
            // At most one stream has it.
            let names = self.names(Some(subject), 0)?;
            if let Some(stream) = names.streams.unwrap_or_default().into_iter().next() {
                self.of_subject.insert(subject.clone(), stream);
            }
        }
        Ok(())
    }

    /// A page of the names of streams, from so many on: those that take a subject, or all.
    fn names(&mut self, subject: Option<&str>, offset: usize) -> Result<Names, Failure> {
        let question = subject.map_or_else(|| json!({ "offset": offset }), |subject| json!({ "subject": subject }));
        self.ask(&async |connection| {
            let found = answer(connection, subject.unwrap_or("streams"), "STREAM.NAMES", &question).await?;
            Ok(serde_json::from_slice(&found).unwrap_or_default())
        })
    }

    /// The names of all streams of the account. The server gives so many of them an answer.
    fn all_names(&mut self) -> Result<BTreeSet<String>, Failure> {
        let (mut all, mut asked) = (BTreeSet::new(), 0);
        loop {
            let Names { streams, total } = self.names(None, asked)?;
            let page = streams.unwrap_or_default();
            asked += page.len();
            let is_last = page.is_empty() || asked >= total;
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Looks at a stream again while it is read. `false`: it is another one now, or gone.
    fn look_again(&mut self, name: &str) -> Result<bool, Failure> {
        let info = self.info(name)?;
        let Some(stream) = self.streams.get_mut(name) else { return Ok(false) };
        let Some(info) = info else {
            stream.unread.insert(GONE);
            self.of_subject.retain(|_, of| of != name);
            return Ok(false);
        };
        let is_same = stream.look(info);
        if !is_same {
            // Its numbers begin again.
            for (subject, next) in &mut self.subjects {
                if self.of_subject.get(subject).is_some_and(|of| of == name) {
                    *next = 0;
                }
            }
        }
        Ok(is_same)
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
            if self.streams.contains_key(&name) {
                self.look_again(&name)?;
            } else if let Some(info) = self.info(&name)? {
                self.streams.insert(name.clone(), ReadStream::new(info));
            } else {
                self.of_subject.retain(|_, of| *of != name);
            }
        }
        let known = |subject: &String| {
            let stream = self.streams.get(self.of_subject.get(subject)?)?;
            Some((subject.clone(), stream.info.clone()))
        };
        Ok(subjects.iter().filter_map(known).collect())
    }

    /// Reads the messages of these numbers, or of the first ones if they have many bytes. Those that are missing are left out.
    fn messages(&mut self, stream: &str, from: i64, to: i64) -> Result<Batch, Failure> {
        let questions: Vec<String> = (from..to).map(|number| json!({ "seq": number }).to_string()).collect();
        let request = format!("$JS.API.STREAM.MSG.GET.{stream}");
        let ask = async |connection: &mut NatsConnection| connection.ask_all(&request, &questions, MOST_READ).await;
        let answers = if questions.len() > 1 { self.try_ask(&ask) } else { self.ask(&ask) }?;
        let to = from.saturating_add(i64::try_from(answers.len()).unwrap_or(i64::MAX));
        let (mut found, mut bytes) = (Vec::with_capacity(answers.len()), 0);
        for answer in answers {
            bytes += answer.bytes();
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
        Ok(Batch { to, messages: found, bytes })
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
        let mut mark: TopicOffsets = TopicOffsets::new();
        for stream in self.all_names()? {
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
        let is_at_end = |stream: &ReadStream| Some(stream.next? >= stream.info.end());
        let streams: Vec<(String, bool)> =
            self.streams.iter().filter_map(|(name, stream)| Some((name.clone(), is_at_end(stream)?))).collect();
        for (name, is_at_end) in streams {
            if is_at_end {
                self.look_again(&name)?;
            }
            let Some(stream) = self.streams.get_mut(&name) else { continue };
            let Some(next) = stream.next else { continue };
            // It may have been looked at before it was known from where it is read.
            stream.look_at_front();
            let from = next.max(stream.info.state.first_seq);
            let most = i64::try_from(stream.at_once).unwrap_or(i64::MAX);
            let to = stream.info.end().min(from.saturating_add(most));
            if from >= to {
                stream.next = Some(next.max(stream.info.end()));
                continue;
            }
            let batch = match self.messages(&name, from, to) {
                Err(failure) if failure.class == FailureClass::Environment && to - from > 1 => {
                    // So many answers may take too long. One by one they are tried again for a while.
                    self.streams.entry(name).and_modify(|stream| stream.at_once = 1);
                    continue;
                }
                batch => batch?,
            };
            // Messages may have been deleted since the last look. If the stream was created again, these numbers are nobody's.
            let has_all = i64::try_from(batch.messages.len()).is_ok_and(|found| found == batch.to - from);
            if !has_all && !self.look_again(&name)? {
                continue;
            }
            if let Some(stream) = self.streams.get_mut(&name) {
                stream.pass(from, &batch);
            }
            for (offset, record) in batch.messages {
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
        let mut stream = ReadStream { next: Some(next), ..ReadStream::new(info(1, 9, 0, "a")) };
        let is_same = stream.look(now);
        assert_eq!(stream.reasons().into_iter().collect::<Vec<_>>(), expected);
        let made_again = expected.contains(&MADE_AGAIN);
        assert_eq!((is_same, stream.next), (!made_again, Some(if made_again { 0 } else { next })));
    }

    fn batch(from: i64, to: i64, missing: usize, bytes: usize) -> Batch {
        let messages = (from..to).skip(missing).map(|number| (number, OwnedRecord::default())).collect();
        Batch { to, messages, bytes }
    }

    #[test]
    fn numbers_without_a_message_are_noted_although_the_server_has_forgotten_them_later() {
        let mut stream = ReadStream { next: Some(3), ..ReadStream::new(info(1, 9, 0, "a")) };
        stream.pass(3, &batch(3, 6, 0, 30));
        assert_eq!((stream.next, stream.reasons().len()), (Some(6), 0));
        // 6 is deleted.
        assert!(stream.look(info(1, 9, 1, "a")));
        stream.pass(6, &batch(6, 9, 1, 20));
        // Later all in front of 9 is.
        assert!(stream.look(info(9, 9, 0, "a")));
        assert_eq!((stream.next, stream.reasons()), (Some(9), BTreeSet::from([SOME_DELETED])));
    }

    #[test]
    fn messages_that_are_deleted_from_the_front_while_they_are_asked_for_are_noted_as_that() {
        let mut stream = ReadStream { next: Some(3), ..ReadStream::new(info(1, 9, 0, "a")) };
        assert!(stream.look(info(8, 9, 0, "a")));
        stream.pass(3, &batch(3, 9, 5, 10));
        assert_eq!((stream.next, stream.reasons()), (Some(9), BTreeSet::from([DELETED])));
    }

    #[test]
    fn as_many_messages_are_asked_for_as_fit_by_the_size_of_those_before() {
        let mut stream = ReadStream { next: Some(0), ..ReadStream::new(info(1, 9999, 0, "a")) };
        let mut check = |count: i64, bytes: usize, expected: usize| {
            stream.pass(1, &batch(1, 1 + count, 0, bytes));
            assert_eq!(stream.at_once, expected);
        };
        check(500, 50_000, AT_ONCE);
        check(10, WANTED, 10);
        check(10, 1000, 20);
        check(2, 100 * WANTED, 1);
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

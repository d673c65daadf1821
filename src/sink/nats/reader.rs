//! [`StreamReader`]: reads the messages of streams, each from a sequence number on, for as long as it is asked.
//!
//! ```text
//!  subject ─► its first stream ─► messages by their numbers, many questions at once ─► those of subjects that are read
//! ```
//!
//! In: settings, subjects, numbers. Out: records, ends, positions, and the reasons for which messages may have gone unread. It writes nothing,
//! and creates no consumer: a question about a message (`STREAM.MSG.GET`) changes nothing. A topic is one partition, whose offsets are the
//! stream's sequence numbers.
//!
//! A stream is read from front to end, also for subjects that are named later: once a mark names a prefix, messages of all subjects with it
//! are given out. Streams are known from the mark on. A subject belongs to the first stream that was seen to take it. If it is in another one
//! later, its numbers begin again, so its messages there are not given out, and it gets a reason.
//!
//! Invariants: no number is passed over without a note. Messages are given out only after their stream was looked at behind them: one that was
//! deleted, or created again, has ended for this reader.
//! Specification: NATS, JetStream API (`STREAM.NAMES`, `STREAM.INFO`, `STREAM.MSG.GET`).

use super::NatsSettings;
use super::client::NatsConnection;
use super::dead_letters::{Got, NO_MESSAGE, forbidden, millis_of, record, refused};
use super::errors::{Answered, Names};
use crate::setting_text::SettingError;
use crate::sink::reading::{ReadRecord, RecordReader, TopicOffsets};
use crate::sink::{Failure, FailureClass, HeaderRoom, OwnedRecord, Record};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
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
const MADE_AGAIN: &str = "its stream was deleted and created again, or has lost its last messages";
const GONE: &str = "its stream was deleted";
const MOVED: &str = "it has moved to another stream, or another one has messages of it, too";
const UNTAKEN: &str = "no stream takes it";

/// The reader.
pub(super) struct StreamReader {
    settings: NatsSettings,
    runtime: Runtime,
    connection: Option<NatsConnection>,
    streams: BTreeMap<String, ReadStream>,
    /// The subjects that were asked about and have a stream, and the subjects that were read.
    subjects: BTreeMap<String, ReadSubject>,
    /// Subjects that another stream than their first one takes, or has messages of.
    moved: BTreeSet<String>,
    /// Messages of all subjects with this prefix are given out. `None`: only those of subjects that are read.
    prefix: Option<String>,
}

/// A subject with a stream.
#[derive(Debug)]
struct ReadSubject {
    /// The first stream that was seen to take it.
    stream: String,
    /// The next number. `None`: it is not read.
    next: Option<i64>,
}

/// A stream that is known.
#[derive(Debug)]
struct ReadStream {
    /// The next number. `None`: nothing of it is read yet.
    next: Option<i64>,
    /// How many messages are asked for next.
    at_once: usize,
    /// The stream as it was seen last.
    info: StreamInfo,
    /// The reason for which it is not read any more.
    ended: Option<&'static str>,
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
    /// The patterns of the subjects that it takes.
    #[serde(default)]
    subjects: Vec<String>,
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

    fn takes(&self, subject: &str) -> bool {
        self.config.subjects.iter().any(|pattern| matches(pattern, subject))
    }
}

impl ReadStream {
    fn new(info: StreamInfo) -> Self {
        Self { next: None, at_once: AT_ONCE, info, ended: None, unread: BTreeSet::new() }
    }

    /// Takes the server's present figures. `None`: the stream is missing.
    fn look(&mut self, info: Option<StreamInfo>) {
        match info {
            None => self.end(GONE),
            Some(info) if info.created != self.info.created || info.end() < self.info.end() => self.end(MADE_AGAIN),
            Some(info) => self.info = info,
        }
    }

    /// The first reason stays.
    const fn end(&mut self, reason: &'static str) {
        if self.ended.is_none() {
            self.ended = Some(reason);
        }
    }

    /// Whether messages were deleted between the next number and the first one that is there.
    fn has_lost_front(&self) -> bool {
        self.next.is_some_and(|next| self.info.state.first_seq > next.max(1))
    }

    /// The numbers that are read next. Notes that messages in front of them are gone. `None`: the stream is not read.
    fn numbers(&mut self) -> Option<Range<i64>> {
        let next = self.next.filter(|_| self.ended.is_none())?;
        if self.has_lost_front() {
            self.unread.insert(DELETED);
        }
        let from = next.max(self.info.state.first_seq);
        let most = i64::try_from(self.at_once).unwrap_or(i64::MAX);
        Some(from..self.info.end().min(from.saturating_add(most)).max(from))
    }

    /// Notes what was read, and goes on behind it. The stream was looked at since.
    fn pass(&mut self, from: i64, batch: &Batch) {
        let front = self.info.state.first_seq.clamp(from, batch.to);
        let lacks = |numbers: Range<i64>| {
            let there = batch.messages.iter().filter(|(number, _)| numbers.contains(number)).count();
            i64::try_from(there).is_ok_and(|there| there < numbers.end - numbers.start)
        };
        let reasons = [(from..front, DELETED), (front..batch.to, SOME_DELETED)];
        self.unread.extend(reasons.into_iter().filter(|(numbers, _)| lacks(numbers.clone())).map(|(_, reason)| reason));
        self.next = Some(batch.to);
        if !batch.messages.is_empty() {
            let fitting = WANTED / (batch.bytes / batch.messages.len()).max(1);
            self.at_once = fitting.clamp(1, self.at_once.saturating_mul(2).min(AT_ONCE));
        }
    }

    /// The reasons for which a message may be gone.
    fn reasons(&self) -> BTreeSet<&'static str> {
        let mut reasons = self.unread.clone();
        let retains = matches!(self.info.config.retention.as_str(), "" | "limits");
        reasons.extend((!retains).then_some(RETENTION));
        reasons.extend(self.has_lost_front().then_some(DELETED));
        reasons.extend((self.info.state.num_deleted > 0).then_some(SOME_DELETED));
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
            streams: BTreeMap::new(),
            subjects: BTreeMap::new(),
            moved: BTreeSet::new(),
            prefix: None,
        })
    }

    /// The stream of a subject, if it has one.
    fn stream_of(&self, subject: &str) -> Option<&ReadStream> {
        self.streams.get(&self.subjects.get(subject)?.stream)
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

    /// Finds the streams of subjects that have none yet: among the streams that are known, or else by asking.
    fn find(&mut self, subjects: &BTreeSet<String>) -> Result<(), Failure> {
        let unknown: Vec<&String> = subjects.iter().filter(|subject| !self.subjects.contains_key(*subject)).collect();
        for some in unknown.chunks(AT_ONCE) {
            let mut asked = Vec::new();
            for subject in some {
                let mut takers = self.streams.iter().filter(|(_, stream)| stream.info.takes(subject));
                let Some((name, _)) = takers.next() else {
                    asked.push(*subject);
                    continue;
                };
                // At most one stream takes it at a time.
                if takers.next().is_some() {
                    self.moved.insert((*subject).clone());
                }
                self.subjects.insert((*subject).clone(), ReadSubject { stream: name.clone(), next: None });
            }
            let found = self.takers(&asked)?;
            let new = found.values().filter(|name| !self.streams.contains_key(*name)).cloned().collect();
            let infos = self.infos(&new)?;
            self.know(infos);
            let exists = found.into_iter().filter(|(_, name)| self.streams.contains_key(name));
            let exists: Vec<(String, String)> = exists.collect();
            self.subjects
                .extend(exists.into_iter().map(|(subject, stream)| (subject, ReadSubject { stream, next: None })));
        }
        Ok(())
    }

    /// Remembers streams that are new.
    fn know(&mut self, infos: BTreeMap<String, StreamInfo>) {
        for (name, info) in infos {
            self.streams.entry(name).or_insert_with(|| ReadStream::new(info));
        }
    }

    /// Asks for the stream of each of these subjects. Those without one are left out.
    fn takers(&mut self, subjects: &[&String]) -> Result<BTreeMap<String, String>, Failure> {
        let asked = |subject: &&String| ("$JS.API.STREAM.NAMES".to_owned(), json!({ "subject": subject }).to_string());
        let questions: Vec<(String, String)> = subjects.iter().map(asked).collect();
        self.ask(&async |connection| {
            let mut found = BTreeMap::new();
            for (subject, answer) in subjects.iter().zip(connection.ask_all(&questions, usize::MAX).await?) {
                let names: Option<Names> = parsed(subject, "STREAM.NAMES", &answer)?;
                let name = names.and_then(|names| names.streams?.into_iter().next());
                found.extend(name.map(|name| ((*subject).clone(), name)));
            }
            Ok(found)
        })
    }

    /// The names of all streams that may take a subject of this pattern. The server gives so many of them an answer.
    fn names(&mut self, pattern: &str) -> Result<BTreeSet<String>, Failure> {
        let mut all = BTreeSet::new();
        let mut asked = 0;
        loop {
            let question = json!({ "subject": pattern, "offset": asked }).to_string();
            let names: Names = self.ask(&async |connection| {
                let answer = connection.ask("$JS.API.STREAM.NAMES", &question).await?;
                Ok(parsed(pattern, "STREAM.NAMES", &answer)?.unwrap_or_default())
            })?;
            let page = names.streams.unwrap_or_default();
            asked += page.len();
            let is_last = page.is_empty() || asked >= names.total;
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// The server's figures of these streams. Those that are missing are left out.
    fn infos(&mut self, names: &BTreeSet<String>) -> Result<BTreeMap<String, StreamInfo>, Failure> {
        let names: Vec<&String> = names.iter().collect();
        let mut found = BTreeMap::new();
        for some in names.chunks(AT_ONCE) {
            let asked = |name: &&String| (format!("$JS.API.STREAM.INFO.{name}"), String::new());
            let questions: Vec<(String, String)> = some.iter().map(asked).collect();
            let answers: Vec<Option<StreamInfo>> = self.ask(&async |connection| {
                let answers = some.iter().zip(connection.ask_all(&questions, usize::MAX).await?);
                answers.map(|(name, answer)| parsed(name, "STREAM.INFO", &answer)).collect()
            })?;
            found.extend(some.iter().zip(answers).filter_map(|(name, info)| Some(((*name).clone(), info?))));
        }
        Ok(found)
    }

    /// Looks at these streams again. They are known.
    fn look_again(&mut self, names: &BTreeSet<String>) -> Result<(), Failure> {
        let mut infos = self.infos(names)?;
        for name in names {
            self.streams.entry(name.clone()).and_modify(|stream| stream.look(infos.remove(name)));
        }
        Ok(())
    }

    /// Looks at the streams of these subjects.
    fn look(&mut self, subjects: &BTreeSet<String>) -> Result<(), Failure> {
        self.find(subjects)?;
        let found = subjects.iter().filter_map(|subject| self.subjects.get(subject));
        let names = found.map(|subject| subject.stream.clone()).collect();
        self.look_again(&names)?;
        for subject in subjects {
            if self.stream_of(subject).is_some_and(|stream| !stream.info.takes(subject)) {
                self.moved.insert(subject.clone());
            }
        }
        Ok(())
    }

    /// Looks at the streams of these subjects, and gives for each subject what `offset` says of its stream.
    fn offsets(
        &mut self,
        subjects: &BTreeSet<String>,
        offset: impl Fn(&ReadStream) -> Option<i64>,
    ) -> Result<TopicOffsets, Failure> {
        self.look(subjects)?;
        let of = |subject: &String| Some((subject.clone(), vec![Some(offset(self.stream_of(subject)?)?)]));
        Ok(subjects.iter().filter_map(of).collect())
    }

    /// Reads the messages of these numbers, or of the first ones if they have many bytes. Those that are missing are left out.
    fn messages(&mut self, stream: &str, from: i64, to: i64) -> Result<Batch, Failure> {
        let request = format!("$JS.API.STREAM.MSG.GET.{stream}");
        let questions: Vec<(String, String)> =
            (from..to).map(|number| (request.clone(), json!({ "seq": number }).to_string())).collect();
        let ask = async |connection: &mut NatsConnection| connection.ask_all(&questions, MOST_READ).await;
        let answers = if questions.len() > 1 { self.try_ask(&ask) } else { self.ask(&ask) }?;
        let to = from.saturating_add(i64::try_from(answers.len()).unwrap_or(i64::MAX));
        let (mut found, mut bytes) = (Vec::with_capacity(answers.len()), 0);
        for answer in answers {
            bytes += answer.bytes();
            let Some(Got { message: Some(stored) }) = parsed(stream, "STREAM.MSG.GET", &answer)? else { continue };
            let decoded = |text: &str| BASE64_STANDARD.decode(text).unwrap_or_default();
            let number = i64::try_from(stored.seq).unwrap_or(i64::MAX);
            let (headers, data) = (decoded(&stored.hdrs), decoded(&stored.data));
            found.push((number, record(&stored.subject, &headers, &data, millis_of(&stored.time), true)));
        }
        Ok(Batch { to, messages: found, bytes })
    }

    /// The number and the time of the first message from a number on. `None`: there is none.
    fn message_from(&mut self, stream: &str, number: i64) -> Result<Option<(i64, i64)>, Failure> {
        let question = json!({ "seq": number.max(1), "next_by_subj": ">" }).to_string();
        let request = format!("$JS.API.STREAM.MSG.GET.{stream}");
        self.ask(&async |connection| {
            let answer = connection.ask(&request, &question).await?;
            let got: Option<Got<'_>> = parsed(stream, "STREAM.MSG.GET", &answer)?;
            let number = |seq| i64::try_from(seq).unwrap_or(i64::MAX);
            Ok(got.and_then(|got| got.message).map(|stored| (number(stored.seq), millis_of(&stored.time))))
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

/// The content of an answer to a question about `what`. `None`: there is no such stream or message.
fn parsed<'a, T: Deserialize<'a>>(what: &str, request: &str, answer: &'a Answered) -> Result<Option<T>, Failure> {
    match answer {
        Answered::With(data) => serde_json::from_slice(data)
            .map(Some)
            .map_err(|error| refused(what, &format!("the answer to {request} is not understood: {error}"))),
        Answered::Refused(_, Some(NO_STREAM | NO_MESSAGE)) => Ok(None),
        Answered::Refused(error, _) => Err(refused(what, error)),
        Answered::Forbidden => Err(forbidden(what, request)),
    }
}

/// Whether a pattern of subjects has this one: `*` stands for a token, `>` at the end for one or more.
fn matches(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, tokens.next()) {
            (">", found) => return found.is_some(),
            ("*", Some(_)) => {}
            (wanted, found) if found == Some(wanted) => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// A pattern that has all subjects with this prefix.
fn pattern_of(prefix: &str) -> String {
    let tokens = prefix.rsplit_once('.').map(|(tokens, _)| format!("{tokens}."));
    format!("{}>", tokens.unwrap_or_default())
}

impl RecordReader for StreamReader {
    fn lists_topics(&self) -> bool {
        false
    }

    /// For each stream that may take one of these subjects, the next number.
    fn mark(&mut self, prefix: &str, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        self.prefix = Some(prefix.to_owned());
        let mut names = self.names(&pattern_of(prefix))?;
        for topic in topics {
            names.extend(self.names(topic)?);
        }
        let infos = self.infos(&names)?;
        let mark = infos.iter().map(|(stream, info)| (marked(stream), vec![Some(info.end())])).collect();
        self.know(infos);
        Ok(mark)
    }

    fn start_at(&mut self, mark: &TopicOffsets, topic: &str) -> Result<Option<Vec<Option<i64>>>, Failure> {
        if let Some(found) = mark.get(topic) {
            return Ok(Some(found.clone()));
        }
        self.find(&BTreeSet::from([topic.to_owned()]))?;
        Ok(self.subjects.get(topic).and_then(|subject| mark.get(&marked(&subject.stream))).cloned())
    }

    fn ends(&mut self, _prefix: Option<&str>, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        // A stream that has ended has no end that will be read.
        self.offsets(topics, |stream| stream.ended.is_none().then(|| stream.info.end()))
    }

    fn starts(&mut self, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        self.offsets(topics, |stream| Some(stream.info.start()))
    }

    fn offsets_at(&mut self, millis: i64, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        let mut numbers: BTreeMap<String, Vec<Option<i64>>> = BTreeMap::new();
        let mut offsets = self.ends(None, topics)?;
        for (subject, offset) in &mut offsets {
            let Some(name) = self.subjects.get(subject).map(|subject| subject.stream.clone()) else { continue };
            if !numbers.contains_key(&name)
                && let Some(info) = self.streams.get(&name).map(|stream| stream.info.clone())
            {
                let number = self.number_at(&name, &info, millis)?;
                numbers.insert(name.clone(), vec![Some(number)]);
            }
            if let Some(number) = numbers.get(&name) {
                offset.clone_from(number);
            }
        }
        Ok(offsets)
    }

    fn follow(&mut self, topic: &str, from: &[Option<i64>]) {
        let from = from.first().copied().flatten().unwrap_or_default();
        let Some(subject) = self.subjects.get_mut(topic) else { return };
        let Some(stream) = self.streams.get_mut(&subject.stream) else { return };
        if subject.next.is_some() {
            return;
        }
        subject.next = Some(from);
        // Messages of a subject with the prefix were given out already.
        let was_read = self.prefix.as_ref().is_some_and(|prefix| topic.starts_with(prefix)) && stream.next.is_some();
        if !was_read {
            stream.next = Some(stream.next.map_or(from, |read| read.min(from)));
        }
    }

    fn read(&mut self, wait: Duration, each: &mut dyn FnMut(&ReadRecord<'_>)) -> Result<usize, Failure> {
        let (mut count, mut room) = (0, HeaderRoom::default());
        let is_read = |stream: &ReadStream| stream.next.is_some() && stream.ended.is_none();
        let read: BTreeSet<String> =
            self.streams.iter().filter(|(_, stream)| is_read(stream)).map(|(name, _)| name.clone()).collect();
        let is_at_end =
            |name: &&String| self.streams.get(*name).is_some_and(|stream| stream.next >= Some(stream.info.end()));
        let at_end: BTreeSet<String> = read.iter().filter(is_at_end).cloned().collect();
        self.look_again(&at_end)?;
        for name in read {
            let Some(stream) = self.streams.get_mut(&name) else { continue };
            let Some(numbers) = stream.numbers() else { continue };
            if numbers.is_empty() {
                stream.next = stream.next.max(Some(stream.info.end()));
                continue;
            }
            let batch = match self.messages(&name, numbers.start, numbers.end) {
                Err(failure) if failure.class == FailureClass::Environment && numbers.end - numbers.start > 1 => {
                    // So many answers may take too long. One by one they are tried again for a while.
                    self.streams.entry(name).and_modify(|stream| stream.at_once = 1);
                    continue;
                }
                batch => batch?,
            };
            // If it has ended, these numbers are nobody's.
            self.look_again(&BTreeSet::from([name.clone()]))?;
            let Self { streams, subjects, moved, prefix, .. } = self;
            let Some(stream) = streams.get_mut(&name).filter(|stream| stream.ended.is_none()) else { continue };
            stream.pass(numbers.start, &batch);
            for (offset, record) in batch.messages {
                record.with_record(&mut room, |record| {
                    let has_prefix = prefix.as_ref().is_some_and(|prefix| record.topic.starts_with(prefix));
                    let known = subjects.get_mut(record.topic);
                    if !has_prefix && known.as_ref().is_none_or(|subject| subject.next.is_none()) {
                        return;
                    }
                    let is_elsewhere = match &known {
                        Some(subject) => subject.stream != name,
                        None => !stream.info.takes(record.topic),
                    };
                    if is_elsewhere {
                        moved.insert(record.topic.to_owned());
                        return;
                    }
                    let next = Some(offset + 1);
                    match known {
                        Some(subject) if subject.next >= next => return,
                        Some(subject) => subject.next = next,
                        None => {
                            let subject = ReadSubject { stream: name.clone(), next };
                            subjects.insert(record.topic.to_owned(), subject);
                        }
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
        let position = |(name, subject): (&String, &ReadSubject)| {
            let stream = self.streams.get(&subject.stream).filter(|stream| stream.ended.is_none())?;
            Some((name.clone(), vec![Some(stream.next.unwrap_or_default().max(subject.next?))]))
        };
        Ok(self.subjects.iter().filter_map(position).collect())
    }

    /// A subject that has moved is not read where it is now. The rest of its first stream is read.
    fn ended(&self, topic: &str) -> Option<String> {
        let ended = self.stream_of(topic)?.ended;
        ended.or_else(|| self.moved.contains(topic).then_some(MOVED)).map(str::to_owned)
    }

    fn unread(&mut self, topic: &str) -> Vec<String> {
        let Some(stream) = self.stream_of(topic) else { return vec![UNTAKEN.to_owned()] };
        let reasons = stream.reasons().into_iter().map(str::to_owned);
        self.ended(topic).into_iter().chain(reasons).collect()
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
        let config = StreamConfig { retention: "limits".to_owned(), subjects: vec!["a.>".to_owned()] };
        StreamInfo { created: created.to_owned(), config, state: StreamState { first_seq, last_seq, num_deleted } }
    }

    fn stream(next: i64) -> ReadStream {
        ReadStream { next: Some(next), ..ReadStream::new(info(1, 9, 0, "a")) }
    }

    #[track_caller]
    fn check(next: i64, now: StreamInfo, expected: &[&str]) {
        let mut stream = stream(next);
        stream.look(Some(now));
        assert_eq!(stream.reasons().into_iter().collect::<Vec<_>>(), expected);
        assert!(stream.ended.is_none() && stream.numbers().is_some());
    }

    fn batch(from: i64, to: i64, missing: usize, bytes: usize) -> Batch {
        let messages = (from..to).skip(missing).map(|number| (number, OwnedRecord::default())).collect();
        Batch { to, messages, bytes }
    }

    #[test]
    fn numbers_without_a_message_are_noted_although_the_server_has_forgotten_them_later() {
        let mut stream = stream(3);
        stream.pass(3, &batch(3, 6, 0, 30));
        assert_eq!((stream.next, stream.reasons().len()), (Some(6), 0));
        // 6 is deleted.
        stream.look(Some(info(1, 9, 1, "a")));
        stream.pass(6, &batch(6, 9, 1, 20));
        // Later all in front of 9 is.
        stream.look(Some(info(9, 9, 0, "a")));
        assert_eq!((stream.next, stream.reasons()), (Some(9), BTreeSet::from([SOME_DELETED])));
    }

    #[test]
    fn messages_that_are_deleted_from_the_front_while_they_are_asked_for_are_noted_as_that() {
        let mut gone = stream(3);
        gone.look(Some(info(8, 9, 0, "a")));
        gone.pass(3, &batch(3, 9, 5, 10));
        assert_eq!((gone.next, gone.reasons()), (Some(9), BTreeSet::from([DELETED])));
        // The answers came before that.
        let mut there = stream(3);
        there.look(Some(info(8, 9, 0, "a")));
        there.pass(3, &batch(3, 9, 0, 10));
        assert_eq!((there.next, there.reasons().len()), (Some(9), 0));
    }

    #[test]
    fn a_stream_that_is_gone_or_created_again_has_ended_for_good() {
        for (now, reason) in
            [(Some(info(1, 12, 0, "b")), MADE_AGAIN), (Some(info(1, 8, 0, "a")), MADE_AGAIN), (None, GONE)]
        {
            let mut stream = stream(5);
            stream.look(now);
            stream.look(Some(info(1, 20, 0, "c")));
            assert_eq!((stream.ended, stream.numbers()), (Some(reason), None));
        }
    }

    #[test]
    fn a_subject_ends_with_its_stream_or_when_it_moves() {
        let settings = crate::sink::tests::read_in_test("nats", "h", &[], |asked| NatsSettings::read(asked)).unwrap();
        let mut reader = StreamReader::new(settings).unwrap();
        for name in ["a", "b"] {
            reader.streams.insert(name.to_owned(), stream(5));
        }
        let subjects = [("in.a", "a"), ("in.b", "b"), ("moved", "b")];
        reader.subjects.extend(
            subjects.map(|(subject, stream)| {
                (subject.to_owned(), ReadSubject { stream: stream.to_owned(), next: Some(5) })
            }),
        );
        reader.streams.get_mut("a").unwrap().look(None);
        reader.moved.insert("moved".to_owned());
        let ended = ["in.a", "in.b", "moved", "other"].map(|subject| reader.ended(subject));
        assert_eq!(ended, [Some(GONE.to_owned()), None, Some(MOVED.to_owned()), None]);
        assert_eq!(["in.a", "moved", "other"].map(|subject| reader.unread(subject)), [[GONE], [MOVED], [UNTAKEN]]);
        let positions = reader.positions().unwrap();
        assert_eq!(
            positions.keys().collect::<Vec<_>>(),
            ["in.b", "moved"],
            "no end of a stream that is gone is waited for"
        );
    }

    #[test]
    fn the_numbers_that_are_read_next_begin_at_the_first_message() {
        let mut stream = stream(5);
        assert_eq!(stream.numbers(), Some(5..10));
        stream.look(Some(info(7, 2000, 0, "a")));
        assert_eq!((stream.numbers(), stream.reasons()), (Some(7..507), BTreeSet::from([DELETED])));
        stream.look(Some(info(2001, 2000, 0, "a")));
        assert_eq!(stream.numbers(), Some(2001..2001));
    }

    #[test]
    fn a_pattern_has_the_subjects_that_the_server_puts_into_the_stream() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", false),
            ("a.b", "a", false),
            ("a.*", "a.b", true),
            ("a.*.c", "a.b.d", false),
            ("a.*", "a", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
        ] {
            assert_eq!(matches(pattern, subject), expected, "{pattern} {subject}");
        }
        assert_eq!(
            ["outbox.event.", "outbox.ev", "outbox", ""].map(pattern_of),
            ["outbox.event.>", "outbox.>", ">", ">"]
        );
    }

    #[test]
    fn as_many_messages_are_asked_for_as_fit_by_the_size_of_those_before() {
        let mut stream = stream(0);
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
        let mut queue = info(1, 12, 0, "a");
        queue.config.retention = "workqueue".to_owned();
        check(5, queue, &[RETENTION]);
        assert_eq!((info(1, 3, 0, "").start(), info(2, 3, 0, "").start(), info(0, 0, 0, "").end()), (0, 2, 1));
    }

    #[test]
    fn what_the_server_says_is_understood() {
        let text = r#"{"type":"x","config":{"name":"S","retention":"limits","subjects":["a.>"]},"created":"2026-11-29T10:00:00Z",
            "state":{"messages":3,"first_seq":1,"last_seq":4,"num_deleted":1}}"#;
        assert_eq!(serde_json::from_str::<StreamInfo>(text).unwrap(), info(1, 4, 1, "2026-11-29T10:00:00Z"));
    }
}

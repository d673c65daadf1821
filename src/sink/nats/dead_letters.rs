//! Reads the dead-letter messages of a stream, and removes those that were published again.
//!
//! In: settings, a subject. Out: the records of its messages, up to the last message at the beginning. Settled messages are deleted
//! (`STREAM.MSG.DELETE`), since a stream has no place to remember them. The headers are those that `message` writes; a message's time is
//! the one at which the stream took it.
//! Specification: NATS, JetStream API (`STREAM.NAMES`, `STREAM.MSG.GET`, `STREAM.MSG.DELETE`).

use super::Settings;
use super::client::NatsConnection;
use super::errors::{Answered, ApiError, CONNECTION, NOT_PERMITTED, Names, api_error};
use super::message::{ID, KEY, TAKEN, is_servers, is_taken};
use crate::sink::destination::{DeadLetterPlace, DeadLetters, KeptRecord, NextKept, NoDeadLetters};
use crate::sink::ordered_queue::{Outage, block_on};
use crate::sink::{Content, Failure, FailureClass, Header, OwnedRecord, Record, time};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::UNIX_EPOCH;

/// How many messages are read at once, which limits the memory.
const AT_ONCE: usize = 100;

/// The API's code if there is no such message.
const NO_MESSAGE: u16 = 10037;
const NO_SEQUENCE: u16 = 10043;

/// The API's code if a message cannot be deleted, for any reason: the message may be missing.
const NOT_DELETED: u16 = 10057;

/// The reading of a subject.
pub(super) struct SubjectReading {
    settings: Settings,
    subject: String,
    stream: String,
    /// The least sequence number of the next message.
    next: u64,
    /// The last message at the beginning. `None`: there was none, or all are read.
    last: Option<u64>,
    count: u64,
    read: VecDeque<KeptRecord>,
    outage: Outage,
}

/// A message as the API gives it.
#[derive(Debug, Deserialize)]
struct Stored<'a> {
    seq: u64,
    /// The headers, in base64.
    #[serde(borrow, default)]
    hdrs: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Cow<'a, str>,
    #[serde(borrow, default)]
    time: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
struct Got<'a> {
    #[serde(borrow, default)]
    message: Option<Stored<'a>>,
    #[serde(borrow, default)]
    error: Option<ApiError<'a>>,
}

/// How many messages a subject has.
#[derive(Debug, Deserialize)]
struct Counted {
    state: StreamState,
}

#[derive(Debug, Deserialize)]
struct StreamState {
    #[serde(default)]
    subjects: std::collections::BTreeMap<String, u64>,
}

impl SubjectReading {
    pub(super) fn new(settings: Settings, subject: &str) -> Result<Self, NoDeadLetters> {
        let found = block_on(async {
            let mut connection = NatsConnection::open(&settings, 0).await?;
            let found = answer(&mut connection, subject, "STREAM.NAMES", &json!({ "subject": subject })).await?;
            let names: Names = serde_json::from_slice(found.data()).unwrap_or_default();
            let Some(stream) = names.streams.unwrap_or_default().into_iter().next() else { return Ok(None) };
            let last = get(&mut connection, subject, &stream, &json!({ "last_by_subj": subject })).await?;
            let filter = json!({ "subjects_filter": subject });
            let info = answer(&mut connection, subject, &format!("STREAM.INFO.{stream}"), &filter).await?;
            let counted = serde_json::from_slice::<Counted>(info.data()).map(|info| info.state.subjects.values().sum());
            Ok(Some((stream, last.map(|kept| kept.place.minor), counted.unwrap_or_default())))
        });
        let (stream, last, count) = found?.ok_or_else(|| NoDeadLetters::Missing { topic: subject.to_owned() })?;
        let (subject, read) = (subject.to_owned(), VecDeque::new());
        Ok(Self { settings, subject, stream, next: 1, last, count, read, outage: Outage::default() })
    }

    /// Reads the next messages, up to `last`.
    fn ask(&self, last: u64) -> Result<VecDeque<KeptRecord>, Failure> {
        block_on(async {
            let mut connection = NatsConnection::open(&self.settings, 0).await?;
            let (mut read, mut next) = (VecDeque::new(), self.next);
            while read.len() < AT_ONCE && next <= last {
                let question = json!({ "seq": next, "next_by_subj": self.subject });
                let Some(kept) = get(&mut connection, &self.subject, &self.stream, &question).await? else { break };
                next = kept.place.minor + 1;
                read.push_back(kept);
            }
            Ok(read)
        })
    }

    fn delete(&self, places: &[DeadLetterPlace]) -> Result<(), Failure> {
        block_on(async {
            let mut connection = NatsConnection::open(&self.settings, 0).await?;
            for place in places {
                let question = json!({ "seq": place.minor, "no_erase": true });
                let request = format!("$JS.API.STREAM.MSG.DELETE.{}", self.stream);
                match connection.ask(&request, &question.to_string()).await? {
                    Answered::Forbidden => return Err(forbidden(&self.subject, "STREAM.MSG.DELETE")),
                    // The message was deleted already: by an attempt whose answer was lost, or by the stream's limits.
                    answer @ (Answered::With(_) | Answered::NoResponders) => match code_of(answer.data()) {
                        Some(NO_SEQUENCE) => {}
                        Some(NOT_DELETED) => {
                            let question = json!({ "seq": place.minor });
                            if get(&mut connection, &self.subject, &self.stream, &question).await?.is_some() {
                                return Err(not_deleted(&self.stream, place.minor, &answer));
                            }
                        }
                        _ => refused(&self.subject, &answer)?,
                    },
                }
            }
            Ok(())
        })
    }
}

impl DeadLetters for SubjectReading {
    fn next(&mut self) -> Result<NextKept, Failure> {
        if let Some(kept) = self.read.pop_front() {
            return Ok(NextKept::Kept(kept));
        }
        let Some(last) = self.last else { return Ok(NextKept::End) };
        match self.ask(last) {
            Ok(read) => self.read = read,
            Err(failure) => return self.outage.wait(failure).map(|()| NextKept::Waiting),
        }
        self.outage.over();
        // Another replay may have deleted messages, and new ones may have come.
        self.read.retain(|kept| kept.place.minor <= last);
        match self.read.back() {
            Some(kept) => self.next = kept.place.minor + 1,
            None => self.last = None,
        }
        Ok(NextKept::Waiting)
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn settle(&mut self, places: &[DeadLetterPlace]) -> Result<Vec<OwnedRecord>, Failure> {
        while let Err(failure) = self.delete(places) {
            self.outage.wait(failure)?;
        }
        self.outage.over();
        Ok(Vec::new())
    }
}

/// Asks the API. Returns an answer that is no error.
async fn answer(
    connection: &mut NatsConnection,
    subject: &str,
    request: &str,
    question: &serde_json::Value,
) -> Result<Answered, Failure> {
    match connection.ask(&format!("$JS.API.{request}"), &question.to_string()).await? {
        Answered::Forbidden => Err(forbidden(subject, request)),
        answer @ (Answered::With(_) | Answered::NoResponders) => refused(subject, &answer).map(|()| answer),
    }
}

/// Reads a message. `None`: there is none.
async fn get(
    connection: &mut NatsConnection,
    subject: &str,
    stream: &str,
    question: &serde_json::Value,
) -> Result<Option<KeptRecord>, Failure> {
    let request = format!("STREAM.MSG.GET.{stream}");
    match connection.ask(&format!("$JS.API.{request}"), &question.to_string()).await? {
        Answered::Forbidden => Err(forbidden(subject, &request)),
        answer @ (Answered::With(_) | Answered::NoResponders) if code_of(answer.data()) == Some(NO_MESSAGE) => Ok(None),
        answer @ (Answered::With(_) | Answered::NoResponders) => {
            refused(subject, &answer)?;
            Ok(serde_json::from_slice::<Got<'_>>(answer.data())
                .ok()
                .and_then(|got| got.message)
                .map(|stored| kept(subject, &stored)))
        }
    }
}

/// The error code in an API answer. `None`: it is no error.
fn code_of(data: &[u8]) -> Option<u16> {
    serde_json::from_slice::<Got<'_>>(data).ok()?.error.map(|error| error.err_code)
}

/// The failure of a message that cannot be deleted. Another attempt does not help.
fn not_deleted(stream: &str, sequence: u64, answer: &Answered) -> Failure {
    let error = api_error(answer).unwrap_or_default();
    let text = format!(
        "message {sequence} of stream {stream} was published again, and NATS does not delete it: {error}; the stream must allow that (deny_delete is off), else --replay publishes it once more"
    );
    Failure::new(FailureClass::Topic, NOT_PERMITTED, text)
}

fn forbidden(subject: &str, request: &str) -> Failure {
    let text = format!("NATS does not let this user ask $JS.API.{request}, which reads {subject}");
    Failure::new(FailureClass::Topic, NOT_PERMITTED, text)
}

/// The failure of an answer that may pass: JetStream is not ready, or the stream is missing.
fn refused(subject: &str, answer: &Answered) -> Result<(), Failure> {
    let Some(error) = api_error(answer) else { return Ok(()) };
    let text = format!("{subject} cannot be read: {error}");
    Err(Failure::new(FailureClass::Environment, CONNECTION, text))
}

fn kept(subject: &str, stored: &Stored<'_>) -> KeptRecord {
    let decoded = |text: &str| BASE64_STANDARD.decode(text).unwrap_or_default();
    let (headers, data) = (decoded(&stored.hdrs), decoded(&stored.data));
    let place = DeadLetterPlace { major: 0, between: None, minor: stored.seq };
    KeptRecord { place, settled: false, record: record(subject, &headers, &data, millis_of(&stored.time)) }
}

/// A time in milliseconds since 1970, to the second.
fn millis_of(text: &str) -> i64 {
    let since = time::of_extended(text).and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or_default()
}

/// The record of a message.
fn record(subject: &str, written: &[u8], data: &[u8], timestamp_millis: i64) -> OwnedRecord {
    let (mut key, mut headers) = (None, Vec::new());
    // The first line is the version.
    for line in written.split(|byte| *byte == b'\n').skip(1) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        // A name that is no text is nobody's of ours.
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if name == KEY {
            key = Some(value);
        } else if !is_servers(name) {
            let own = name.strip_prefix(TAKEN).filter(|own| is_taken(own)).unwrap_or(name);
            let header = Header { name: own, value: Some(value) };
            if name == ID { headers.insert(0, header) } else { headers.push(header) }
        }
    }
    OwnedRecord::of(&Record {
        topic: subject,
        key,
        value: Some(data),
        headers: &headers,
        timestamp_millis,
        partition: None,
        content: Content::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::HeaderRoom;
    use crate::sink::tests::read_in_test;
    use std::net::TcpListener;

    #[test]
    fn a_message_becomes_the_record_that_it_was_written_of() {
        let written = b"NATS/1.0\r\nNats-Msg-Id: dead:7\r\nid: 7\r\nNats-Expected-Stream: S\r\nkey: k\r\n\
            eventType: t\r\nheader-Key: own\r\nheader-x:y\r\n\r\n";
        record("dead", written, b"\xff", 9).with_record(&mut HeaderRoom::default(), |record| {
            assert_eq!((record.topic, record.key, record.value), ("dead", Some(&b"k"[..]), Some(&b"\xff"[..])));
            let headers: Vec<_> = record.headers.iter().map(|header| (header.name, header.value)).collect();
            let text = |text: &'static str| Some(text.as_bytes());
            let expected = [("id", text("7")), ("eventType", text("t")), ("Key", text("own")), ("header-x", text("y"))];
            assert_eq!(headers, expected);
        });
        assert_eq!(millis_of("2026-11-22T18:30:05.123456Z"), 1_795_372_205_000);
        let answer = br#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#;
        assert_eq!((code_of(answer), code_of(b"{}"), code_of(b"garbled")), (Some(NO_MESSAGE), None, None));
    }

    #[test]
    fn a_server_that_is_unavailable_is_asked_again_for_a_minute() {
        // Nobody listens any more.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = read_in_test("nats", &address.to_string(), &[], |asked| Settings::read(asked)).unwrap();
        let mut reading = SubjectReading {
            settings,
            subject: "dead".to_owned(),
            stream: "S".to_owned(),
            next: 1,
            last: Some(7),
            count: 1,
            read: VecDeque::new(),
            outage: Outage::default(),
        };
        assert!(matches!(reading.next(), Ok(NextKept::Waiting)));
        reading.outage = Outage::of_long();
        assert_eq!(reading.next().unwrap_err().class, FailureClass::Environment);
        let place = DeadLetterPlace { major: 0, between: None, minor: 7 };
        assert_eq!(reading.settle(&[place]).unwrap_err().class, FailureClass::Environment);
    }
}

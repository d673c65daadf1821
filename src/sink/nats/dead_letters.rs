//! Reads the dead-letter messages of a stream, and removes those that were published again.
//!
//! In: settings, a subject. Out: the records of its messages, up to the last message at the beginning. Settled messages are deleted
//! (`STREAM.MSG.DELETE`), since a stream has no place to remember them. The headers are those that `message` writes; a message's time is
//! the one at which the stream took it.
//! Specification: NATS, JetStream API (`STREAM.NAMES`, `STREAM.MSG.GET`, `STREAM.MSG.DELETE`).

use super::NatsSettings;
use super::client::NatsConnection;
use super::errors::{Answered, NOT_PERMITTED, Names};
use super::message::{ID, KEY, TAKEN, is_servers, is_taken};
use crate::sink::destination::{CONNECTION, DeadLetterId, KeptRecord, NoDeadLetters};
use crate::sink::ordered_queue::{DeadLetterPages, PagedDeadLetters, block_on};
use crate::sink::{Content, Failure, FailureClass, Header, OwnedRecord, Record};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;
use std::collections::VecDeque;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// How many messages are read at once, which limits the memory.
const AT_ONCE: usize = 100;

/// The API's code if there is no such message.
pub(super) const NO_MESSAGE: u16 = 10037;
const NO_SEQUENCE: u16 = 10043;

/// The API's code if a message cannot be deleted, for any reason: the message may be missing.
const NOT_DELETED: u16 = 10057;

/// The server's header with the id by which it drops repeats.
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// The messages to a subject, up to the last one at the beginning.
pub(super) struct SubjectPages {
    settings: NatsSettings,
    subject: String,
    stream: String,
    /// The least sequence number of the next message.
    next: u64,
    /// The last message at the beginning. 0: there was none.
    last: u64,
}

/// A message as the API gives it.
#[derive(Debug, Deserialize)]
pub(super) struct Stored<'a> {
    pub(super) seq: u64,
    #[serde(borrow, default)]
    pub(super) subject: Cow<'a, str>,
    /// The headers, in base64.
    #[serde(borrow, default)]
    pub(super) hdrs: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) data: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) time: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Got<'a> {
    #[serde(borrow, default)]
    pub(super) message: Option<Stored<'a>>,
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

impl SubjectPages {
    pub(super) fn open(settings: NatsSettings, subject: &str) -> Result<PagedDeadLetters<Self>, NoDeadLetters> {
        let found = block_on(async {
            let mut connection = NatsConnection::open(&settings, 0).await?;
            let found = answer(&mut connection, subject, "STREAM.NAMES", &json!({ "subject": subject })).await?;
            let names: Names = serde_json::from_slice(&found).unwrap_or_default();
            let Some(stream) = names.streams.unwrap_or_default().into_iter().next() else { return Ok(None) };
            let last = get(&mut connection, subject, &stream, &json!({ "last_by_subj": subject })).await?;
            let filter = json!({ "subjects_filter": subject });
            let info = answer(&mut connection, subject, &format!("STREAM.INFO.{stream}"), &filter).await?;
            let counted = serde_json::from_slice::<Counted>(&info).map(|info| info.state.subjects.values().sum());
            Ok(Some((stream, last.map_or(0, |kept| kept.id.minor), counted.unwrap_or_default())))
        });
        let (stream, last, count) = found?.ok_or_else(|| NoDeadLetters::Missing { topic: subject.to_owned() })?;
        Ok(PagedDeadLetters::new(Self { settings, subject: subject.to_owned(), stream, next: 1, last }, count))
    }
}

impl DeadLetterPages for SubjectPages {
    fn page(&mut self) -> Result<VecDeque<KeptRecord>, Failure> {
        if self.next > self.last {
            return Ok(VecDeque::new());
        }
        let (mut read, mut next) = (VecDeque::new(), self.next);
        block_on(async {
            let mut connection = NatsConnection::open(&self.settings, 0).await?;
            while read.len() < AT_ONCE && next <= self.last {
                let question = json!({ "seq": next, "next_by_subj": self.subject });
                let Some(kept) = get(&mut connection, &self.subject, &self.stream, &question).await? else { break };
                next = kept.id.minor + 1;
                read.push_back(kept);
            }
            Ok(())
        })?;
        self.next = next;
        // Another replay may have deleted messages, and new ones may have come.
        read.retain(|kept| kept.id.minor <= self.last);
        Ok(read)
    }

    fn remove(&mut self, places: &[DeadLetterId]) -> Result<(), Failure> {
        block_on(async {
            let mut connection = NatsConnection::open(&self.settings, 0).await?;
            for place in places {
                let question = json!({ "seq": place.minor, "no_erase": true });
                let request = format!("$JS.API.STREAM.MSG.DELETE.{}", self.stream);
                match connection.ask(&request, &question.to_string()).await? {
                    // The message may be deleted already: by an attempt whose answer was lost, or by the stream's limits.
                    Answered::With(_) | Answered::Refused(_, Some(NO_SEQUENCE)) => {}
                    Answered::Refused(error, Some(NOT_DELETED)) => {
                        let question = json!({ "seq": place.minor });
                        if get(&mut connection, &self.subject, &self.stream, &question).await?.is_some() {
                            return Err(not_deleted(&self.stream, place.minor, &error));
                        }
                    }
                    Answered::Refused(error, _) => return Err(refused(&self.subject, &error)),
                    Answered::Forbidden => return Err(forbidden(&self.subject, "STREAM.MSG.DELETE")),
                }
            }
            Ok(())
        })
    }
}

/// Asks the API. Returns an answer that is no error.
async fn answer(
    connection: &mut NatsConnection,
    subject: &str,
    request: &str,
    question: &serde_json::Value,
) -> Result<Bytes, Failure> {
    match connection.ask(&format!("$JS.API.{request}"), &question.to_string()).await? {
        Answered::With(data) => Ok(data),
        Answered::Refused(error, _) => Err(refused(subject, &error)),
        Answered::Forbidden => Err(forbidden(subject, request)),
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
        Answered::With(data) => {
            let got = serde_json::from_slice::<Got<'_>>(&data).ok();
            Ok(got.and_then(|got| got.message).map(|stored| kept(subject, &stored)))
        }
        Answered::Refused(_, Some(NO_MESSAGE)) => Ok(None),
        Answered::Refused(error, _) => Err(refused(subject, &error)),
        Answered::Forbidden => Err(forbidden(subject, &request)),
    }
}

/// The failure of a message that cannot be deleted. Another attempt does not help.
fn not_deleted(stream: &str, sequence: u64, error: &str) -> Failure {
    let text = format!(
        "message {sequence} of stream {stream} was published again, and NATS does not delete it: {error}; the stream must allow that (deny_delete is off), else --replay publishes it once more"
    );
    Failure::new(FailureClass::Topic, NOT_PERMITTED, text)
}

pub(super) fn forbidden(subject: &str, request: &str) -> Failure {
    let text = format!("NATS does not let this user ask $JS.API.{request}, which reads {subject}");
    Failure::new(FailureClass::Topic, NOT_PERMITTED, text)
}

/// The failure of an answer that may pass: JetStream is not ready, or the stream is missing.
pub(super) fn refused(subject: &str, error: &str) -> Failure {
    Failure::new(FailureClass::Environment, CONNECTION, format!("{subject} cannot be read: {error}"))
}

fn kept(subject: &str, stored: &Stored<'_>) -> KeptRecord {
    let decoded = |text: &str| BASE64_STANDARD.decode(text).unwrap_or_default();
    let (headers, data) = (decoded(&stored.hdrs), decoded(&stored.data));
    let place = DeadLetterId { major: 0, between: None, minor: stored.seq };
    KeptRecord { id: place, replayed: false, record: record(subject, &headers, &data, millis_of(&stored.time), false) }
}

/// A time in milliseconds since 1970.
pub(super) fn millis_of(text: &str) -> i64 {
    let nanos = OffsetDateTime::parse(text, &Rfc3339).map_or(0, OffsetDateTime::unix_timestamp_nanos);
    i64::try_from(nanos / 1_000_000).unwrap_or_default()
}

/// The record of a message. `id_is_messages`: without a header `id`, the id by which the server drops repeats is the row's.
pub(super) fn record(
    subject: &str,
    written: &[u8],
    data: &[u8],
    timestamp_millis: i64,
    id_is_messages: bool,
) -> OwnedRecord {
    let (mut key, mut headers, mut message_id) = (None, Vec::new(), None);
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
        } else if name.eq_ignore_ascii_case(MESSAGE_ID) {
            message_id = Some(value).filter(|_| id_is_messages);
        } else if !is_servers(name) {
            let own = name.strip_prefix(TAKEN).filter(|own| is_taken(own)).unwrap_or(name);
            let header = Header { name: own, value: Some(value) };
            if name == ID { headers.insert(0, header) } else { headers.push(header) }
        }
    }
    if let Some(value) = message_id.filter(|_| headers.iter().all(|header: &Header<'_>| header.name != ID)) {
        headers.insert(0, Header { name: ID, value: Some(value) });
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
    use crate::sink::tests::assert_dead_letters_are_read;

    #[test]
    fn the_dead_letters_that_each_version_has_written_are_read() {
        assert_dead_letters_are_read("dead-letters/nats.txt", |text| {
            let (headers, data) = text.split_once("\n\n").unwrap();
            let headers = format!("NATS/1.0\r\n{}\r\n\r\n", headers.replace('\n', "\r\n"));
            record("dead", headers.as_bytes(), data.trim_end().as_bytes(), 40_000, false)
        });
    }

    #[test]
    fn a_message_becomes_the_record_that_it_was_written_of() {
        let written = b"NATS/1.0\r\nNats-Msg-Id: dead:7\r\nid: 7\r\nNats-Expected-Stream: S\r\nkey: k\r\n\
            eventType: t\r\nheader-Key: own\r\nheader-x:y\r\n\r\n";
        record("dead", written, b"\xff", 9, true).with_record(&mut HeaderRoom::default(), |record| {
            assert_eq!((record.topic, record.key, record.value), ("dead", Some(&b"k"[..]), Some(&b"\xff"[..])));
            let headers: Vec<_> = record.headers.iter().map(|header| (header.name, header.value)).collect();
            let text = |text: &'static str| Some(text.as_bytes());
            let expected = [("id", text("7")), ("eventType", text("t")), ("Key", text("own")), ("header-x", text("y"))];
            assert_eq!(headers, expected);
        });
        let id_alone = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nkey: k\r\n\r\n";
        for (id_is_messages, expected) in [(true, Some(&b"7"[..])), (false, None)] {
            record("dead", id_alone, b"", 9, id_is_messages).with_record(&mut HeaderRoom::default(), |record| {
                assert_eq!(record.headers.first().and_then(|header| header.value), expected);
            });
        }
        assert_eq!(millis_of("2026-11-22T18:30:05.123456Z"), 1_795_372_205_123);
        let code_of = |data: &'static [u8]| match Answered::of(data.into()) {
            Answered::Refused(_, code) => code,
            Answered::With(_) | Answered::Forbidden => None,
        };
        let answer = br#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#;
        assert_eq!((code_of(answer), code_of(b"{}"), code_of(b"garbled")), (Some(NO_MESSAGE), None, None));
    }
}

//! Turns a record into the library's message.
//!
//! In: records. Out: subjects, headers and data for the library, which writes them. This file does no I/O and classifies no answer.
//!
//! Headers: `Nats-Msg-Id`; `id` if it differs; `Nats-Expected-Stream` if the settings name a stream; `key`; then the record's other headers.
//! NATS' headers are texts without an order, but the values of one name keep theirs. NATS has no null: a header that is null is left out, and
//! a null value becomes an empty message. A record's header with the name of one of the server's headers, or with the name `key`, is written
//! as `header-NAME`.
//! Specification: NATS, ADR-4 (headers), ADR-50 (atomic batches), JetStream's headers.

use crate::sink::ordered_queue::Stored;
use crate::sink::{Header, Record, dead_letter};
use async_nats::header::{NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL, NATS_BATCH_ID, NATS_BATCH_SEQUENCE};
use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use std::borrow::Cow;

/// The header with the key.
pub(super) const KEY: &str = "key";

/// The prefix of a header whose own name is taken.
pub(super) const TAKEN: &str = "header-";

/// The prefix of the server's headers, on which it acts.
const SERVERS: &str = "nats-";

/// The header with the row's id.
pub(super) const ID: &str = "id";

/// The bytes that the library writes around all headers. `AROUND_EACH` is for each name and value.
const AROUND_ALL: usize = "NATS/1.0\r\n\r\n".len();
const AROUND_EACH: usize = ": \r\n".len();

/// The id by which the server drops repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum MessageId {
    /// The row's id alone. If two rows of a stream have the same id, the server drops the second.
    Id,
    /// The subject and the row's id, as `SUBJECT:ID`; the id has a header of its own. Tables whose ids overlap may then share a stream.
    #[default]
    SubjectAndId,
}

/// The settings that each message of a connection is sent with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending<'a> {
    /// The stream that has to take the message. `None`: any stream.
    pub(super) stream: Option<&'a str>,
    pub(super) id: MessageId,
}

/// The sequence number of a message in a batch that JetStream stores as a whole or not at all.
#[derive(Debug, Clone, Copy)]
pub(super) struct InBatch<'a> {
    /// The batch's id, which no other client uses.
    pub(super) batch: &'a str,
    /// The message's number in the batch, from 1.
    pub(super) sequence: usize,
    /// Whether it is the last message, upon which the server stores the batch and answers.
    pub(super) last: bool,
}

/// The reason, for people, why a record's headers cannot be headers of a message. `None`: they can.
pub(super) fn fault(record: &Record<'_>) -> Option<String> {
    if let Some(header) = record.headers.iter().find(|header| !is_name(header.name)) {
        return Some(format!("{:?} cannot be the name of a header", header.name));
    }
    // The headers of a dead-letter record are for people: `Headers::of` replaces characters that a header cannot have.
    if record.headers.iter().any(|header| header.name == dead_letter::ERROR) {
        return None;
    }
    if let Some(fault) = record.key.and_then(fault_of_value) {
        return Some(format!("the key {fault}, and is to be a header"));
    }
    let mut faults = record.headers.iter().filter_map(|header| Some((header.name, fault_of_value(header.value?)?)));
    faults.next().map(|(name, fault)| format!("header {name} {fault}"))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
}

fn fault_of_value(value: &[u8]) -> Option<&'static str> {
    match std::str::from_utf8(value) {
        Err(_) => Some("is not UTF-8"),
        Ok(text) if text.contains(is_break) => Some("holds a line break"),
        // Clients and the server trim the values of headers, also of `Nats-Msg-Id`.
        Ok(text) if text.trim() != text => Some("begins or ends with a blank, which NATS does not keep"),
        Ok(_) => None,
    }
}

fn is_break(character: char) -> bool {
    matches!(character, '\r' | '\n' | '\0')
}

/// Whether a record's header cannot keep this name.
pub(super) fn is_taken(name: &str) -> bool {
    is_servers(name) || name.eq_ignore_ascii_case(KEY)
}

/// Whether the server would act on a header of this name.
pub(super) fn is_servers(name: &str) -> bool {
    name.get(..SERVERS.len()).is_some_and(|start| start.eq_ignore_ascii_case(SERVERS))
}

/// The headers of a message, and how many bytes the library writes for them.
#[derive(Debug)]
pub(super) struct Headers {
    pub(super) map: HeaderMap,
    pub(super) bytes: usize,
}

impl Headers {
    /// The headers of a record's message.
    pub(super) fn of(sending: Sending<'_>, batch: Option<InBatch<'_>>, record: Stored<'_>) -> Self {
        let mut headers = Self { map: HeaderMap::new(), bytes: AROUND_ALL };
        if let Some(InBatch { batch, sequence, last }) = batch {
            headers.add(NATS_BATCH_ID, batch.as_bytes());
            headers.add(NATS_BATCH_SEQUENCE, sequence.to_string().as_bytes());
            if last {
                headers.add(NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL.as_bytes());
            }
        }
        let mut rest = record.headers().peekable();
        let id = rest.next_if(|header| header.name == ID).and_then(|header| header.value);
        match (record.dead_letter_id(), id) {
            (Some(own), _) => headers.add(NATS_MESSAGE_ID, own),
            (None, Some(id)) if sending.id == MessageId::Id => headers.add(NATS_MESSAGE_ID, id),
            (None, Some(id)) => headers.add(NATS_MESSAGE_ID, &[record.topic().as_bytes(), b":", id].concat()),
            (None, None) => {}
        }
        let is_whole = sending.id == MessageId::Id && record.dead_letter_id().is_none();
        if let Some(id) = id.filter(|_| !is_whole) {
            headers.add(HeaderName::from_static(ID), id);
        }
        if let Some(stream) = sending.stream {
            headers.add(NATS_EXPECTED_STREAM, stream.as_bytes());
        }
        if let Some(key) = record.key() {
            headers.add(HeaderName::from_static(KEY), key);
        }
        for Header { name, value } in rest {
            let name = if is_taken(name) { Cow::Owned(format!("{TAKEN}{name}")) } else { Cow::Borrowed(name) };
            if let (Some(value), Ok(name)) = (value, name.parse()) {
                headers.add(name, value);
            }
        }
        headers
    }

    fn add(&mut self, name: HeaderName, value: &[u8]) {
        let text = String::from_utf8_lossy(value);
        // Only dead-letter records have characters to replace.
        let value: HeaderValue = match text.parse() {
            Ok(value) if !text.contains('\0') => value,
            Ok(_) | Err(_) => text.replace(is_break, " ").parse().unwrap_or_default(),
        };
        let length = |text: &str| text.len();
        self.bytes += length(name.as_ref()) + value.as_str().len() + AROUND_EACH;
        self.map.append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::ordered_queue::Chunk;
    use crate::sink::tests::dead_letters_by;
    use crate::sink::{Content, Origin, Tag, Token};
    use crate::tests::assert_written;

    fn record<'a>(key: Option<&'a [u8]>, headers: &'a [Header<'a>]) -> Record<'a> {
        Record {
            topic: "outbox.order",
            key,
            value: None,
            headers,
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        }
    }

    /// Names and values, by their names, each with a line's end; and the bytes that they take.
    fn written(
        record: &Record<'_>,
        stream: Option<&str>,
        id: MessageId,
        batch: Option<InBatch<'_>>,
    ) -> (String, usize) {
        let mut chunk = Chunk::default();
        chunk.push(record, Tag { token: Token::unpack(0), origin: Origin::default() });
        let Headers { map, bytes } = Headers::of(Sending { stream, id }, batch, chunk.get(0).unwrap());
        let line = |(name, values): (&HeaderName, &Vec<HeaderValue>)| {
            values.iter().map(|value| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat()
        };
        let mut lines: Vec<String> = map.iter().map(line).collect();
        lines.sort_unstable();
        (lines.concat(), bytes)
    }

    #[test]
    fn dead_letters_are_written_as_the_last_version_that_changed_them_wrote_them() {
        let message = |record: &Record<'_>| {
            let (headers, _) = written(record, None, MessageId::default(), None);
            format!("{}\n{}\n", headers.replace('\r', ""), String::from_utf8_lossy(record.value.unwrap_or_default()))
        };
        assert_written("dead-letters/nats.txt", &dead_letters_by(message));
    }

    #[test]
    fn a_message_has_its_id_its_key_and_the_other_headers() {
        let said = [
            Header { name: "id", value: Some(b"7") },
            Header { name: "eventType", value: Some(b"Placed") },
            Header { name: "none", value: None },
            Header { name: "Key", value: Some(b"x") },
            Header { name: "twice", value: Some(b"2") },
            Header { name: "NATS-Rollup", value: Some(b"all") },
            Header { name: "twice", value: Some(b"1") },
        ];
        let (text, bytes) = written(&record(Some(b"k"), &said), None, MessageId::Id, None);
        let expected = "Nats-Msg-Id: 7\r\neventType: Placed\r\nheader-Key: x\r\nheader-NATS-Rollup: all\r\nkey: k\r\n\
            twice: 2\r\ntwice: 1\r\n";
        assert_eq!((text.as_str(), bytes), (expected, expected.len() + "NATS/1.0\r\n\r\n".len()));
        let (text, _) = written(&record(None, &said[..1]), Some("OUTBOX"), MessageId::SubjectAndId, None);
        assert_eq!(text, "Nats-Expected-Stream: OUTBOX\r\nNats-Msg-Id: outbox.order:7\r\nid: 7\r\n");
        // The row may come again, corrected or bad in another way, and so may another table's row with the same id.
        let dead_letter = [said[0], Header { name: dead_letter::ID, value: Some(b"c/s/1/0/10:1") }];
        for id in [MessageId::Id, MessageId::SubjectAndId] {
            let (text, _) = written(&record(None, &dead_letter), None, id, None);
            assert_eq!(text, "Nats-Msg-Id: c/s/1/0/10:1\r\nid: 7\r\nwalrelay-id: c/s/1/0/10:1\r\n");
        }
        assert_eq!(written(&record(None, &[]), None, MessageId::Id, None), (String::new(), 12));
    }

    #[test]
    fn the_last_of_a_batch_stores_it() {
        let id = [Header { name: "id", value: Some(b"7") }];
        let text = |sequence, last| {
            let batch = Some(InBatch { batch: "ab12-10", sequence, last });
            written(&record(None, &id), None, MessageId::Id, batch).0
        };
        assert_eq!(text(1, false), "Nats-Batch-Id: ab12-10\r\nNats-Batch-Sequence: 1\r\nNats-Msg-Id: 7\r\n");
        assert!(
            text(2, true).starts_with("Nats-Batch-Commit: 1\r\nNats-Batch-Id: ab12-10\r\nNats-Batch-Sequence: 2\r\n")
        );
    }

    #[test]
    fn what_headers_cannot_hold_is_reported_and_only_in_dead_letters_replaced() {
        let fault_of = |key: &[u8], name, value: &[u8]| {
            let headers = [Header { name, value: Some(value) }];
            fault(&record(Some(key), &headers))
        };
        assert_eq!(fault_of("k\u{e4}".as_bytes(), "a", b"b"), None);
        for (key, name, value) in [
            (&b"k\n"[..], "a", &b"b"[..]),
            (b"k\0", "a", b"b"),
            (b"\xff", "a", b"b"),
            (b"k", "a", b"b\r"),
            (b"k", "a", b"b\xff"),
            (b" k", "a", b"b"),
            (b"k", "a", b"b\t"),
            (b"k", "id", b" p21"),
            (b"k", "a\0", b"b"),
            (b"k", "a b", b"c"),
            (b"k", "a:", b"c"),
            (b"k", "", b""),
        ] {
            assert!(fault_of(key, name, value).is_some(), "{key:?} {name:?} {value:?}");
        }
        let dead_letter = [Header { name: dead_letter::ERROR, value: Some(b"two\nlines") }];
        for (key, shown) in [(&b"\n\0"[..], "  "), (b"\xff", "\u{fffd}")] {
            let record = record(Some(key), &dead_letter);
            assert_eq!(fault(&record), None);
            let (text, _) = written(&record, None, MessageId::Id, None);
            assert_eq!(text, format!("key: {shown}\r\nwalrelay-error: two lines\r\n"));
        }
    }
}

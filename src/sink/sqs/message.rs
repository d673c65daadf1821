//! Turns a record into a message, with body, attributes, group and deduplication id, and refuses records that cannot be messages.
//!
//! In: a record. Out: an entry of a batch, or the reason why there is none. This file does no I/O.
//!
//! Attributes, in this order: `id`, `eventType`, `key`, the record's other headers. A header that is called `key` itself becomes
//! `header.key`. The service has neither null nor empty attributes: such headers are left out. Values that are no text, or have
//! characters in them that no text may have here, are binary. A dead-letter record with more than ten keeps those that say why and
//! whence, nine at most; its others, and those that cannot be attributes, become one attribute, `walrelay-headers`, as JSON.
//!
//! Invariant: what the service would alter in silence is refused here: it stores U+FFFD for characters that it does not allow.
//! Specification: Amazon SQS API Reference, "SendMessageBatch"; Developer Guide, "Message metadata", "Message quotas".

use super::Service;
use crate::sink::dead_letter::{self, ERROR, OURS};
use crate::sink::{Failure, FailureClass, Header, Origin, Record};
use crate::wire::Hex;
use aws_sdk_sns::types::{MessageAttributeValue as SnsValue, PublishBatchRequestEntry};
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{MessageAttributeValue as SqsValue, SendMessageBatchRequestEntry};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};

/// The most messages in a batch.
pub(super) const MOST_MESSAGES: usize = 10;

/// The most attributes of a message.
pub(super) const MOST_ATTRIBUTES: usize = 10;

/// The most bytes of a message, and of all messages of a batch together, bodies and attributes.
pub(super) const LARGEST: usize = 1 << 20;

/// The longest name of an attribute, in characters.
const LONGEST_NAME: usize = 256;

/// The longest group or deduplication id, in characters.
const LONGEST_ID: usize = 128;

/// The group of rows without a key, which keep their order among each other.
const NO_KEY: &str = "walrelay-no-key";

/// The attribute with the key. A header of that name gets another one.
const KEY: &str = "key";
const KEY_TAKEN: &str = "header.key";

/// The attributes that a dead-letter record keeps, besides walrelay's own.
const KEPT: [&str; 3] = ["id", "eventType", KEY];
const OTHERS: &str = "walrelay-headers";

/// The body of a dead-letter record whose payload is null or was left out: a message needs one.
const NO_PAYLOAD: &str = "null";

/// The data types of attributes.
const TEXT: &str = "String";
const BINARY: &str = "Binary";

/// Labels of failures, for metrics.
pub(super) const BODY: &str = "body";
pub(super) const ATTRIBUTES: &str = "attributes";
pub(super) const TOO_LARGE: &str = "too_large";

/// The form of messages, by the settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MessageForm {
    /// The headers that become attributes. `None`: all.
    pub(super) attributes: Option<Vec<String>>,
    /// Whether bodies are base64.
    pub(super) base64: bool,
}

/// An attribute's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttributeValue<'a> {
    /// Its data type is `String`.
    Text(&'a str),
    /// Its data type is `Binary`.
    Bytes(&'a [u8]),
}

impl<'a> AttributeValue<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if is_text(text) => Self::Text(text),
            Ok(_) | Err(_) => Self::Bytes(bytes),
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Text(text) => text.len() + TEXT.len(),
            Self::Bytes(bytes) => bytes.len() + BINARY.len(),
        }
    }
}

/// Whether the service keeps every character as it is.
fn is_text(text: &str) -> bool {
    text.chars().all(|character| match character {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        other => other >= ' ',
    })
}

/// Whether an attribute may have this name.
pub(super) fn is_attribute(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let begins = |start: &str| name.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start));
    let dots = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.bytes().all(allowed)
        && !dots
        && !begins("aws.")
        && !begins("amazon.")
}

/// Whether a text may be a group or a deduplication id.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST_ID && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl MessageForm {
    /// Refuses a record that no queue would take, or that a queue would alter.
    ///
    /// # Errors
    /// The record cannot be a message.
    pub(super) fn admit(&self, record: &Record<'_>) -> Result<(), Failure> {
        let bad = |reason, text| Err(Failure::new(FailureClass::Row, reason, text));
        if let Some(fault) = self.body_fault(record) {
            return bad(BODY, fault.to_owned());
        }
        let (mut count, mut bytes, mut fault) = (0, self.body_bytes(record), None);
        // Hashes of names find repeated ones without an allocation for each record.
        let (hashes, mut names) = (RandomState::new(), [0; MOST_ATTRIBUTES]);
        self.each_attribute(record, |name, value| {
            let hash = hashes.hash_one(name);
            if !is_attribute(name) {
                fault = Some(format!("the header {name:?} cannot be the name of an attribute"));
            } else if names.iter().take(count).any(|known| *known == hash) {
                fault = Some(format!("two headers are called {name}"));
            }
            if let Some(entry) = names.get_mut(count) {
                *entry = hash;
            }
            (count, bytes) = (count + 1, bytes + name.len() + value.bytes());
        });
        match fault {
            Some(text) => bad(ATTRIBUTES, text),
            None if count > MOST_ATTRIBUTES => {
                let text = format!(
                    "{count} attributes with id, type and key; a message may have {MOST_ATTRIBUTES} (-X attributes=NAMES)"
                );
                bad(ATTRIBUTES, text)
            }
            None if bytes > LARGEST => bad(TOO_LARGE, format!("the message has {bytes} bytes; {LARGEST} are allowed")),
            None => Ok(()),
        }
    }

    /// The reason why the payload cannot be a body.
    fn body_fault(&self, record: &Record<'_>) -> Option<&'static str> {
        let value = record.value.unwrap_or_default();
        if value.is_empty() {
            let fault = "the payload is null or empty, and a message needs a body";
            return (!is_dead_letter(record)).then_some(fault);
        }
        match std::str::from_utf8(value) {
            _ if self.base64 => None,
            Ok(text) if is_text(text) => None,
            Ok(_) => Some("the payload has characters that a message cannot have (-X body=base64)"),
            Err(_) => Some("the payload is not UTF-8 text (-X body=base64)"),
        }
    }

    /// The body of a record that was admitted.
    pub(super) fn body<'a>(&self, record: &Record<'a>) -> Cow<'a, str> {
        match record.value.unwrap_or_default() {
            [] => NO_PAYLOAD.into(),
            value if self.base64 => BASE64_STANDARD.encode(value).into(),
            value => String::from_utf8_lossy(value),
        }
    }

    fn body_bytes(&self, record: &Record<'_>) -> usize {
        match record.value.map_or(0, <[u8]>::len) {
            0 => NO_PAYLOAD.len(),
            bytes if self.base64 => bytes.div_ceil(3) * 4,
            bytes => bytes,
        }
    }

    /// Calls `take` with each attribute.
    pub(super) fn each_attribute(&self, record: &Record<'_>, mut take: impl FnMut(&str, AttributeValue<'_>)) {
        let is_wanted = |name: &str| match &self.attributes {
            Some(names) => names.iter().any(|wanted| wanted == name),
            None => true,
        };
        if !is_dead_letter(record) {
            return each(record, |name, value| {
                if is_wanted(name) {
                    take(name, AttributeValue::of(value));
                }
            });
        }
        let mut count = 0;
        each(record, |_, _| count += 1);
        let (mut names, mut others) = (BTreeSet::new(), serde_json::Map::new());
        each(record, |name, value| {
            let is_kept = name.starts_with(OURS) || KEPT.contains(&name);
            // One attribute is for all others.
            let has_room = count <= MOST_ATTRIBUTES || is_kept && names.len() < MOST_ATTRIBUTES - 1;
            if has_room && is_attribute(name) && names.insert(name.to_owned()) {
                take(name, AttributeValue::of(value));
            } else {
                others.insert(name.to_owned(), String::from_utf8_lossy(value).into());
            }
        });
        if !others.is_empty() {
            take(OTHERS, AttributeValue::of(serde_json::Value::Object(others).to_string().as_bytes()));
        }
    }

    /// The most bytes that the service may count for a record with so many bytes, `payload_bytes` of them its payload.
    pub(super) fn most_bytes(&self, held_bytes: usize, payload_bytes: usize) -> usize {
        // The overhead of a header in `held_bytes` is larger than an attribute's type. The key is one more attribute.
        let more = KEY.len() + "String".len() + NO_PAYLOAD.len();
        held_bytes + more + if self.base64 { payload_bytes / 2 + 4 } else { 0 }
    }
}

fn is_dead_letter(record: &Record<'_>) -> bool {
    record.headers.iter().any(|header| header.name == ERROR)
}

/// Calls `take` with each header that has a value, and with the key.
fn each(record: &Record<'_>, mut take: impl FnMut(&str, &[u8])) {
    let parts = record.headers.iter().take_while(|header| matches!(header.name, "id" | "eventType")).count();
    let (parts, others) = record.headers.split_at_checked(parts).unwrap_or_default();
    let key = Header { name: KEY, value: record.key };
    let others = others.iter().map(|header| match header.name {
        KEY => Header { name: KEY_TAKEN, ..*header },
        _ => *header,
    });
    for Header { name, value } in parts.iter().copied().chain([key]).chain(others) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            take(name, value);
        }
    }
}

/// The entry of an admitted record in a batch for a queue. `is_fifo`: whether the queue is a FIFO queue.
pub(super) fn sqs_entry(
    number: usize,
    record: &Record<'_>,
    origin: Origin,
    form: &MessageForm,
    is_fifo: bool,
) -> SendMessageBatchRequestEntry {
    let mut entry = SendMessageBatchRequestEntry::builder().id(number.to_string()).message_body(form.body(record));
    form.each_attribute(record, |name, value| {
        let attribute = match value {
            AttributeValue::Text(text) => SqsValue::builder().data_type(TEXT).string_value(text),
            AttributeValue::Bytes(bytes) => SqsValue::builder().data_type(BINARY).binary_value(Blob::new(bytes)),
        };
        entry = std::mem::take(&mut entry).message_attributes(name, built(attribute.build()));
    });
    if is_fifo {
        entry = entry.message_group_id(group(record.key)).message_deduplication_id(deduplication_id(record, origin));
    }
    built(entry.build())
}

/// The entry of an admitted record in a batch for a topic of SNS.
pub(super) fn sns_entry(
    number: usize,
    record: &Record<'_>,
    origin: Origin,
    form: &MessageForm,
    is_fifo: bool,
) -> PublishBatchRequestEntry {
    let mut entry = PublishBatchRequestEntry::builder().id(number.to_string()).message(form.body(record));
    form.each_attribute(record, |name, value| {
        let attribute = match value {
            AttributeValue::Text(text) => SnsValue::builder().data_type(TEXT).string_value(text),
            AttributeValue::Bytes(bytes) => SnsValue::builder().data_type(BINARY).binary_value(Blob::new(bytes)),
        };
        entry = std::mem::take(&mut entry).message_attributes(name, built(attribute.build()));
    });
    if is_fifo {
        entry = entry.message_group_id(group(record.key)).message_deduplication_id(deduplication_id(record, origin));
    }
    built(entry.build())
}

/// The result of a builder of the SDK, which fails only if a required part is missing.
fn built<T, E: std::fmt::Debug>(built: Result<T, E>) -> T {
    built.unwrap_or_else(|error| unreachable!("each required part is set: {error:?}"))
}

/// The group of a record with this key. Messages of a group keep their order.
fn group(key: Option<&[u8]>) -> Cow<'_, str> {
    key.map_or(Cow::Borrowed(NO_KEY), id)
}

/// The deduplication id of a record, by which the service drops repeats.
fn deduplication_id<'a>(record: &Record<'a>, origin: Origin) -> Cow<'a, str> {
    let own = record.headers.iter().rev().find(|header| header.name == dead_letter::ID);
    if let Some(value) = own.and_then(|header| header.value) {
        return id(value);
    }
    if let Some(Header { name: "id", value: Some(value) }) = record.headers.first() {
        return id(value);
    }
    // A record has no id only if the row's id is null. Its position then identifies the row, for as long as the slot has it.
    let mut hasher = Sha256::new();
    hasher.update(origin.position.final_lsn.bytes().to_be_bytes());
    hasher.update(origin.position.ordinal.to_be_bytes());
    hasher.update(record.key.unwrap_or_default());
    hasher.update(record.value.unwrap_or_default());
    format!("sha256-{}", Hex(&hasher.finalize())).into()
}

/// The text itself if it may be an id, or else its hash.
fn id(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if is_id(text) => text.into(),
        Ok(_) | Err(_) => format!("sha256-{}", Hex(&Sha256::digest(bytes))).into(),
    }
}

/// The messages of one batch.
pub(super) enum Batch {
    Sqs(Vec<SendMessageBatchRequestEntry>),
    Sns(Vec<PublishBatchRequestEntry>),
}

impl Service {
    pub(super) fn batch(self) -> Batch {
        match self {
            Self::Sqs => Batch::Sqs(Vec::with_capacity(MOST_MESSAGES)),
            Self::Sns => Batch::Sns(Vec::with_capacity(MOST_MESSAGES)),
        }
    }
}

impl Batch {
    pub(super) fn push(
        &mut self,
        number: usize,
        record: &Record<'_>,
        origin: Origin,
        form: &MessageForm,
        is_fifo: bool,
    ) {
        match self {
            Self::Sqs(entries) => entries.push(sqs_entry(number, record, origin, form, is_fifo)),
            Self::Sns(entries) => entries.push(sns_entry(number, record, origin, form, is_fifo)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Position;
    use crate::sink::Content;
    use crate::sink::tests::dead_letters_by;
    use crate::tests::assert_written;
    use std::collections::BTreeMap;

    const HEADERS: &[Header<'_>] = &[
        Header { name: "id", value: Some(b"7") },
        Header { name: "eventType", value: Some(b"Placed") },
        Header { name: "trace", value: Some(b"\xff") },
        Header { name: "none", value: None },
        Header { name: "empty", value: Some(b"") },
        Header { name: "key", value: Some(b"K") },
    ];

    const RECORD: Record<'_> = Record {
        topic: "orders.fifo",
        key: Some(b"k"),
        value: Some(b"{}"),
        headers: HEADERS,
        timestamp_millis: 0,
        partition: None,
        content: Content::Unknown,
    };

    fn attributes(form: &MessageForm, record: &Record<'_>) -> Vec<String> {
        let mut found = Vec::new();
        form.each_attribute(record, |name, value| found.push(format!("{name}={value:?}")));
        found
    }

    #[test]
    fn attributes_are_id_type_key_and_headers_without_nulls() {
        let all = attributes(&MessageForm::default(), &RECORD);
        let expected = [
            "id=Text(\"7\")",
            "eventType=Text(\"Placed\")",
            "key=Text(\"k\")",
            "trace=Bytes([255])",
            "header.key=Text(\"K\")",
        ];
        assert_eq!(all, expected);
        let some = MessageForm { attributes: Some(vec!["trace".to_owned(), "id".to_owned()]), base64: false };
        assert_eq!(attributes(&some, &RECORD), ["id=Text(\"7\")", "trace=Bytes([255])"]);
        assert_eq!(MessageForm::default().admit(&RECORD), Ok(()));
        // "{}", and names, types and values of five.
        let counted = 2 + (2 + 1) + (9 + 6) + (3 + 1) + (5 + 1) + (10 + 1) + 5 * 6;
        assert!(MessageForm::default().most_bytes(RECORD.held_bytes(), 2) >= counted);
    }

    #[track_caller]
    fn refused(form: &MessageForm, record: &Record<'_>, reason: &str) {
        let failure = form.admit(record).unwrap_err();
        assert_eq!((failure.class, failure.reason), (FailureClass::Row, reason), "{failure}");
    }

    #[test]
    fn what_the_service_refuses_or_alters_is_no_message() {
        let form = MessageForm::default();
        for value in [None, Some(&b""[..]), Some(b"a\0b"), Some(b"\x1b"), Some(b"\xff"), Some("\u{ffff}".as_bytes())] {
            refused(&form, &Record { value, ..RECORD }, BODY);
        }
        let base64 = MessageForm { base64: true, ..MessageForm::default() };
        let bytes = Record { value: Some(b"\0\xff"), ..RECORD };
        assert_eq!((base64.admit(&bytes), base64.body(&bytes).as_ref()), (Ok(()), "AP8="));
        assert_eq!(form.admit(&Record { value: Some("\t\r\n ä\u{1f600}".as_bytes()), ..RECORD }), Ok(()));
        for name in ["a b", "ä", ".a", "a.", "a..b", "AWS.x", "Amazon.x", ""] {
            refused(&form, &Record { headers: &[Header { name, value: Some(b"x") }], ..RECORD }, ATTRIBUTES);
        }
        let twice = [Header { name: "a", value: Some(b"x") }; 2];
        refused(&form, &Record { headers: &twice, ..RECORD }, ATTRIBUTES);
        let names: Vec<String> = (0..10).map(|number| format!("h{number}")).collect();
        let many: Vec<Header<'_>> = names.iter().map(|name| Header { name, value: Some(b"x") }).collect();
        refused(&form, &Record { headers: &many, ..RECORD }, ATTRIBUTES);
        assert_eq!(form.admit(&Record { headers: &many[1..], ..RECORD }), Ok(()));
        let large = vec![b'x'; LARGEST - 3];
        let bare = Record { key: None, headers: &[], ..RECORD };
        assert_eq!(form.admit(&Record { value: Some(&large), ..bare }), Ok(()));
        refused(&form, &Record { value: Some(&large), ..RECORD }, TOO_LARGE);
        refused(&base64, &Record { value: Some(&large), ..bare }, TOO_LARGE);
    }

    #[test]
    fn dead_letters_are_written_as_the_last_version_that_changed_them_wrote_them() {
        let message = |record: &Record<'_>| {
            let form = MessageForm::default();
            assert_eq!(form.admit(record), Ok(()));
            let mut written = String::new();
            form.each_attribute(record, |name, value| {
                let AttributeValue::Text(text) = value else { panic!("{name}: {value:?}") };
                // The members of an object have no order.
                let sorted = |text| serde_json::from_str::<BTreeMap<String, String>>(text).unwrap();
                let text = if name == OTHERS { serde_json::to_string(&sorted(text)).unwrap() } else { text.to_owned() };
                written += &[name, "\t", &text, "\n"].concat();
            });
            format!("{written}\n{}\n", form.body(record))
        };
        assert_written("dead-letters/sqs.txt", &dead_letters_by(message));
    }

    #[test]
    fn a_dead_letter_record_is_always_a_message() {
        let names: Vec<String> = (0..12).map(|number| format!("h{number}")).collect();
        let mut headers = HEADERS.to_vec();
        headers.extend(names.iter().map(|name| Header { name, value: Some(b"x") }));
        headers
            .extend(["error", "table", "position", "topic", "payload-bytes"].map(|_| Header { name: "", value: None }));
        headers.push(Header { name: ERROR, value: Some(b"bad") });
        headers.push(Header { name: "walrelay-topic", value: Some(b"t") });
        let record = Record { value: None, headers: &headers, ..RECORD };
        assert_eq!(MessageForm::default().admit(&record), Ok(()));
        assert_eq!(MessageForm::default().body(&record), "null");
        let found = attributes(&MessageForm::default(), &record);
        assert_eq!(found.len(), 6, "{found:?}");
        assert!(found[5].starts_with("walrelay-headers=") && found[5].contains("h11"), "{found:?}");
        let headers = [
            Header { name: "a b", value: Some(b"x") },
            Header { name: "c", value: Some(b"1") },
            Header { name: "c", value: Some(b"2") },
            Header { name: ERROR, value: Some(b"bad") },
        ];
        let record = Record { headers: &headers, ..RECORD };
        assert_eq!(MessageForm::default().admit(&record), Ok(()));
        let found = attributes(&MessageForm::default(), &record);
        assert_eq!(found[3], r#"walrelay-headers=Text("{\"a b\":\"x\",\"c\":\"2\"}")"#, "{found:?}");
    }

    #[test]
    fn groups_and_deduplication_ids_are_what_the_service_takes() {
        assert_eq!((group(Some(b"k-1")), group(None)), ("k-1".into(), "walrelay-no-key".into()));
        let long = [b'x'; LONGEST_ID + 1];
        for key in [&b""[..], b"a b", "ä".as_bytes(), b"\xff", &long] {
            let group = group(Some(key));
            assert!(group.starts_with("sha256-") && is_id(&group), "{group}");
        }
        let (first, second) = (
            Origin::default(),
            Origin { position: Position { ordinal: 1, ..Position::default() }, ..Origin::default() },
        );
        assert_eq!(deduplication_id(&RECORD, first), "7");
        let bare = Record { headers: &[], ..RECORD };
        let own = [HEADERS[0], Header { name: dead_letter::ID, value: Some(b"c/s/1/0/10:1") }];
        assert_eq!(deduplication_id(&Record { headers: &own, ..RECORD }, first), "c/s/1/0/10:1");
        assert_eq!(deduplication_id(&bare, first), deduplication_id(&bare, first));
        assert_ne!(deduplication_id(&bare, first), deduplication_id(&bare, second));
    }

    #[test]
    fn an_entry_is_written_as_the_service_takes_it() {
        let form = MessageForm::default();
        let entry = sqs_entry(3, &RECORD, Origin::default(), &form, true);
        assert_eq!((entry.id(), entry.message_body()), ("3", "{}"));
        assert_eq!((entry.message_group_id(), entry.message_deduplication_id()), (Some("k"), Some("7")));
        let attributes = entry.message_attributes().unwrap();
        let text = |name: &str| attributes[name].string_value().map(|text| (attributes[name].data_type(), text));
        assert_eq!((text("id"), text("key")), (Some(("String", "7")), Some(("String", "k"))));
        let trace = &attributes["trace"];
        assert_eq!((trace.data_type(), trace.binary_value().unwrap().as_ref()), ("Binary", b"\xff".as_slice()));
        let bare = Record { key: None, headers: &[], ..RECORD };
        let entry = sns_entry(0, &bare, Origin::default(), &form, false);
        assert_eq!((entry.message(), entry.message_group_id(), entry.message_attributes()), ("{}", None, None));
    }
}

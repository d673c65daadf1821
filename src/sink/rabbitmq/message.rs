//! Turns a record into the library's message, and finds the key that a returned message belongs to.
//!
//! In: a record. Out: exchange, routing key, properties and body for the library, which writes them. This file does no I/O.
//!
//! Properties: `content_type` by the header of that name or the value's column, headers, `delivery_mode` 2 (kept on disk), `message_id` (the id),
//! `timestamp`, `type`, `app_id`. The key is the header `key`, and other headers keep their names. The library keeps headers by name: if a
//! name repeats, its value is an array. A header whose name means something else here is written as `header:NAME`, and so is a filter value
//! that no stream takes. If a property cannot hold a value, a header has it instead.
//! Specification: AMQP 0-9-1, section 4.2.6 and class `basic`; RabbitMQ, "Sender-selected distribution" for `CC` and `BCC`.

use super::RabbitSettings;
use super::errors::bad_headers;
use crate::sink::ordered_queue::{KeyHash, Parts, Stored};
use crate::sink::{Content, Failure, Header, dead_letter};
use lapin::BasicProperties;
use lapin::message::BasicReturnMessage;
use lapin::types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString};
use std::borrow::Cow;

/// The longest text of a property, a routing key or a name, in bytes.
pub(super) const SHORT: usize = 255;

const APPLICATION: &str = "walrelay";

/// The delivery mode of messages that are kept on disk.
const PERSISTENT: u8 = 2;

/// The header that has the record's key.
const KEY: &str = "key";

/// Names of headers that mean something else here, or on which the server acts.
const RESERVED: [&str; 5] = [KEY, "id", "type", "CC", "BCC"];

/// The header by which consumers of a stream choose messages. RabbitMQ 4.0 ends the connection over a value that its streams do not take.
const STREAM_FILTER: &str = "x-stream-filter-value";

/// The longest filter value that a broker takes, in bytes.
const LONGEST_TEXT: usize = 4096;

/// The header of a record with its row's own exchange. Messages do not have it, dead-letter records do.
pub(super) const EXCHANGE: &str = "walrelay-exchange";

/// The header with a value's media type. It stays a header as well.
const CONTENT_TYPE_HEADER: &str = "content-type";

/// The bytes of a message's header frame beside headers and texts: the frame's own, class, weight, length of the body, flags, length of the
/// headers, `delivery_mode`, `timestamp`, `app_id`.
const FIXED_BYTES: usize = 8 + 2 + 2 + 8 + 2 + 4 + 1 + 8 + 1 + APPLICATION.len();

/// The key that a returned message belongs to. A batch has at most one message of a key, but two dead-letter records may look alike.
pub(super) fn owner_of(message: &BasicReturnMessage) -> KeyHash {
    let headers = message.properties.headers().as_ref();
    let key = match headers.and_then(|headers| headers.inner().get(KEY)) {
        Some(AMQPValue::LongString(key)) => Some(key.as_bytes()),
        Some(_) | None => None,
    };
    KeyHash::of(message.routing_key.as_str(), key)
}

/// The key that a record belongs to, by the address and key of its message.
pub(super) fn owner(record: Stored<'_>) -> KeyHash {
    KeyHash::of(record.topic(), record.key())
}

/// A message for the library.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) exchange: ShortString,
    pub(super) key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Vec<u8>,
}

impl Outgoing {
    /// The message of a record. `frame_bytes`: the most bytes of a frame.
    pub(super) fn of(exchange: &str, record: Stored<'_>, frame_bytes: usize) -> Result<Self, Failure> {
        let (parts, body) = (record.parts(), record.value().unwrap_or_default());
        let (id, kind, content) = (fitting(record.repeat_id()), fitting(parts.kind), fitting(content_type(record)));
        let headers = headers(record, &parts, id.is_none() || record.dead_letter_id().is_some(), kind.is_none());
        let texts = [id, kind, content].into_iter().flatten().map(|text| 1 + text.len()).sum::<usize>();
        let bytes = FIXED_BYTES + texts + headers.inner().iter().map(header_bytes).sum::<usize>();
        if bytes > frame_bytes {
            return Err(bad_headers(format!("properties of {bytes} bytes; the broker's frame_max is {frame_bytes}")));
        }
        let mut properties = BasicProperties::default()
            .with_headers(headers)
            .with_delivery_mode(PERSISTENT)
            .with_timestamp(u64::try_from(record.timestamp_millis() / 1000).unwrap_or_default())
            .with_app_id(APPLICATION.into());
        if let Some(id) = id {
            properties = properties.with_message_id(short(id));
        }
        if let Some(kind) = kind {
            properties = properties.with_type(short(kind));
        }
        if let Some(content) = content {
            properties = properties.with_content_type(short(content));
        }
        Ok(Self { exchange: short(exchange), key: short(record.topic()), properties, body: body.to_vec() })
    }
}

/// A text for the library, which panics if one is longer than [`SHORT`]. walrelay refuses longer ones before.
pub(super) fn short(text: &str) -> ShortString {
    ShortString::try_new(text).unwrap_or_default()
}

/// The text of a value that fits into a property. `None`: it does not fit.
fn fitting(value: Option<&[u8]>) -> Option<&str> {
    value.filter(|value| value.len() <= SHORT).and_then(|value| std::str::from_utf8(value).ok())
}

/// The bytes of a header in the frame.
fn header_bytes((name, value): (&ShortString, &AMQPValue)) -> usize {
    1 + name.as_str().len() + 1 + value_bytes(value)
}

fn value_bytes(value: &AMQPValue) -> usize {
    if let AMQPValue::LongString(text) = value {
        return 4 + text.len();
    }
    if let AMQPValue::FieldArray(values) = value {
        return 4 + values.as_slice().iter().map(|value| 1 + value_bytes(value)).sum::<usize>();
    }
    0
}

/// The media type of a value: that of the record's own header, which a CloudEvent has, or else that of the column. `None`: there is no value,
/// or the type is not known.
fn content_type(record: Stored<'_>) -> Option<&[u8]> {
    record.value()?;
    let said = record.headers().find(|header| header.name == CONTENT_TYPE_HEADER).and_then(|header| header.value);
    if fitting(said).is_some() {
        return said;
    }
    match record.content() {
        Content::Json => Some(b"application/json"),
        Content::Text => Some(b"text/plain; charset=utf-8"),
        Content::Bytes => Some(b"application/octet-stream"),
        Content::Unknown => None,
    }
}

/// The exchange of a message: the one that its row names, or else the one in the settings. Dead-letter records always have the latter.
pub(super) fn exchange_of<'a>(settings: &'a RabbitSettings, record: Stored<'a>) -> &'a str {
    let (usual, mut own) = (settings.exchange.as_str(), None);
    if settings.exchange_column.is_none() {
        return usual;
    }
    for header in record.headers() {
        match header.name {
            dead_letter::ERROR => return usual,
            EXCHANGE => own = header.value.and_then(|value| std::str::from_utf8(value).ok()),
            _ => {}
        }
    }
    own.filter(|own| !own.is_empty()).unwrap_or(usual)
}

/// The headers of a record's message.
fn headers(record: Stored<'_>, parts: &Parts<'_>, with_id: bool, with_kind: bool) -> FieldTable {
    let mut table = FieldTable::default();
    let mut add = |name: Cow<'_, str>, value: Option<&[u8]>| {
        // walrelay has refused longer names before.
        let Ok(name) = ShortString::try_new(name) else { return };
        let value = value.map_or(AMQPValue::Void, |value| AMQPValue::LongString(LongString::from(value)));
        let value = match table.inner().get(name.as_str()) {
            None => value,
            Some(AMQPValue::FieldArray(before)) => AMQPValue::FieldArray(appended(before.as_slice(), value)),
            Some(before) => AMQPValue::FieldArray(appended(std::slice::from_ref(before), value)),
        };
        table.insert(name, value);
    };
    let whole = [(KEY, record.key()), ("id", parts.id.filter(|_| with_id)), ("type", parts.kind.filter(|_| with_kind))];
    for (name, value) in whole {
        if value.is_some() {
            add(name.into(), value);
        }
    }
    let is_dead_letter = record.headers().any(|header| header.name == dead_letter::ERROR);
    for Header { name, value } in record.headers().skip(parts.headers) {
        if name == EXCHANGE && !is_dead_letter {
            continue;
        }
        let is_no_filter = name == STREAM_FILTER && !value.is_some_and(is_filter);
        let is_taken = RESERVED.contains(&name) || is_no_filter;
        add(if is_taken { format!("header:{name}").into() } else { name.into() }, value);
    }
    table
}

fn appended(before: &[AMQPValue], value: AMQPValue) -> FieldArray {
    before.iter().cloned().chain([value]).collect::<Vec<_>>().into()
}

/// Whether a stream takes this filter value.
fn is_filter(value: &[u8]) -> bool {
    value.len() <= LONGEST_TEXT && !value.contains(&0) && std::str::from_utf8(value).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::ordered_queue::Chunk;
    use crate::sink::tests::{dead_letters_by, read_in_test};
    use crate::sink::{Origin, Record, Tag, Token};
    use crate::tests::assert_written;
    use lapin::message::Delivery;
    use proptest::prelude::*;

    const ROOM: usize = 4096;

    const HEADERS: &[Header<'_>] = &[
        Header { name: "id", value: Some(b"7") },
        Header { name: "eventType", value: Some(b"Placed") },
        Header { name: "trace", value: Some(b"t") },
        Header { name: "none", value: None },
        Header { name: "trace", value: Some(b"\xff") },
        Header { name: "CC", value: Some(b"other") },
    ];

    const RECORD: Record<'_> = Record {
        topic: "orders",
        key: Some(b"k"),
        value: Some(b"{}"),
        headers: HEADERS,
        timestamp_millis: 7_999,
        partition: None,
        content: Content::Json,
    };

    fn chunk(record: &Record<'_>) -> Chunk {
        let mut chunk = Chunk::default();
        chunk.push(record, Tag { token: Token::unpack(0), origin: Origin::default() });
        chunk
    }

    fn outgoing(record: &Record<'_>, room: usize) -> Result<Outgoing, Failure> {
        let properties = [("exchange", "usual"), ("exchange-column", "exchange")];
        let settings = read_in_test("amqp", "h", &properties, |asked| RabbitSettings::read(asked)).unwrap();
        let chunk = chunk(record);
        let record = chunk.get(0).unwrap();
        Outgoing::of(exchange_of(&settings, record), record, room)
    }

    fn headers_of(record: &Record<'_>) -> Vec<(String, AMQPValue)> {
        let outgoing = outgoing(record, 3 * ROOM).unwrap();
        let headers = outgoing.properties.headers().clone().unwrap();
        headers.inner().iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
    }

    fn text(bytes: &[u8]) -> AMQPValue {
        AMQPValue::LongString(LongString::from(bytes))
    }

    /// What comes back of a message.
    fn back(outgoing: &Outgoing) -> BasicReturnMessage {
        let Outgoing { exchange, key, properties, body, .. } = outgoing;
        let mut delivery = Delivery::mock(0, exchange.clone(), key.clone(), false, body.clone());
        delivery.properties = properties.clone();
        BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() }
    }

    #[test]
    fn dead_letters_are_written_as_the_last_version_that_changed_them_wrote_them() {
        let message = |record: &Record<'_>| {
            let Outgoing { exchange, key, properties, body } = outgoing(record, ROOM).unwrap();
            let mut headers: Vec<String> = headers_of(record)
                .into_iter()
                .map(|(name, value)| {
                    let AMQPValue::LongString(text) = value else { panic!("{value:?}") };
                    format!("{name}\t{text}\n")
                })
                .collect();
            headers.sort_unstable();
            let texts = [
                ("exchange", exchange.to_string()),
                ("routing_key", key.to_string()),
                ("message_id", properties.message_id().as_ref().unwrap().to_string()),
                ("type", properties.kind().as_ref().unwrap().to_string()),
                ("content_type", properties.content_type().as_ref().map(ToString::to_string).unwrap_or_default()),
                ("timestamp", properties.timestamp().unwrap().to_string()),
                ("delivery_mode", properties.delivery_mode().unwrap().to_string()),
                ("app_id", properties.app_id().as_ref().unwrap().to_string()),
            ];
            let texts = texts.map(|(name, text)| format!("({name})\t{text}\n")).concat();
            format!("{texts}{}\n{}\n", headers.concat(), String::from_utf8(body).unwrap())
        };
        assert_written("dead-letters/rabbitmq.txt", &dead_letters_by(message));
    }

    #[test]
    fn a_dead_letter_has_an_id_of_its_own_and_the_rows_as_a_header() {
        let headers = [HEADERS[0], Header { name: dead_letter::ID, value: Some(b"c/s/1/0/10:1") }];
        let record = Record { headers: &headers, ..RECORD };
        let id = outgoing(&record, ROOM).unwrap().properties.message_id().as_ref().map(ShortString::to_string);
        assert_eq!(id.as_deref(), Some("c/s/1/0/10:1"));
        assert!(headers_of(&record).contains(&("id".to_owned(), text(b"7"))));
    }

    #[test]
    fn a_message_has_its_parts_as_properties_and_headers() {
        let Outgoing { exchange, key, properties, body, .. } = outgoing(&RECORD, ROOM).unwrap();
        assert_eq!((exchange.as_str(), key.as_str(), body.as_slice()), ("usual", "orders", &b"{}"[..]));
        let said = |text: &Option<ShortString>| text.as_ref().map(ShortString::to_string);
        let (id, kind) = (said(properties.message_id()), said(properties.kind()));
        assert_eq!((id.as_deref(), kind.as_deref()), (Some("7"), Some("Placed")));
        let (content, app) = (said(properties.content_type()), said(properties.app_id()));
        assert_eq!((content.as_deref(), app.as_deref()), (Some("application/json"), Some("walrelay")));
        assert_eq!((*properties.delivery_mode(), *properties.timestamp()), (Some(2), Some(7)));
        let traces = AMQPValue::FieldArray(vec![text(b"t"), text(b"\xff")].into());
        let expected =
            [("header:CC", text(b"other")), ("key", text(b"k")), ("none", AMQPValue::Void), ("trace", traces)];
        assert_eq!(headers_of(&RECORD), expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn what_a_property_cannot_hold_is_a_header() {
        for value in [&[b'x'; 256][..], b"\xff"] {
            let headers = [Header { name: "id", value: Some(value) }, Header { name: "eventType", value: Some(value) }];
            let record = Record { headers: &headers, key: None, content: Content::Unknown, ..RECORD };
            let properties = outgoing(&record, ROOM).unwrap().properties;
            assert_eq!((properties.message_id(), properties.kind(), properties.content_type()), (&None, &None, &None));
            let expected = [("id".to_owned(), text(value)), ("type".to_owned(), text(value))];
            assert_eq!(headers_of(&record), expected);
        }
    }

    #[test]
    fn a_filter_value_that_no_stream_takes_is_a_header_like_others() {
        let long = [b'x'; 4097];
        for (value, written) in [
            (Some(&b"eu"[..]), STREAM_FILTER.to_owned()),
            (Some(&long[1..]), STREAM_FILTER.to_owned()),
            (None, format!("header:{STREAM_FILTER}")),
            (Some(b"\xff"), format!("header:{STREAM_FILTER}")),
            (Some(b"a\0b"), format!("header:{STREAM_FILTER}")),
            (Some(&long), format!("header:{STREAM_FILTER}")),
        ] {
            let headers = [Header { name: STREAM_FILTER, value }];
            let found = headers_of(&Record { headers: &headers, key: None, ..RECORD });
            assert_eq!(found.iter().map(|(name, _)| name).collect::<Vec<_>>(), [&written], "{value:?}");
        }
    }

    #[test]
    fn a_row_may_name_its_exchange_and_a_dead_letter_record_keeps_the_name() {
        let own = Header { name: EXCHANGE, value: Some(b"own") };
        let dead = Header { name: dead_letter::ERROR, value: Some(b"why") };
        let goes = |headers: &[Header<'_>]| {
            let record = Record { headers, ..RECORD };
            let named = headers_of(&record).iter().any(|(name, _)| name == EXCHANGE);
            (outgoing(&record, ROOM).unwrap().exchange.to_string(), named)
        };
        assert_eq!(goes(&[own]), ("own".to_owned(), false));
        for value in [None, Some(&b""[..])] {
            assert_eq!(goes(&[Header { name: EXCHANGE, value }]), ("usual".to_owned(), false));
        }
        assert_eq!(goes(&[]), ("usual".to_owned(), false));
        assert_eq!(goes(&[own, dead]), ("usual".to_owned(), true));
    }

    #[test]
    fn headers_that_fill_a_frame_are_a_message_and_one_byte_more_is_none() {
        let large = vec![b'x'; ROOM];
        // One element of an array has its type and its length before it, as each header has.
        for (names, around) in [(["h", "i"], 2 * (1 + 1 + 1 + 4)), (["h", "h"], 1 + 1 + 1 + 4 + 2 * (1 + 4))] {
            let headers = names.map(|name| Header { name, value: Some(large.as_slice()) });
            let record = Record { headers: &headers, key: None, content: Content::Unknown, ..RECORD };
            let bytes = FIXED_BYTES + around + 2 * ROOM;
            assert!(outgoing(&record, bytes).is_ok(), "{names:?}");
            assert!(outgoing(&record, bytes - 1).is_err(), "{names:?}");
        }
    }

    proptest! {
        #[test]
        fn a_message_that_comes_back_tells_which_key_it_belongs_to(
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
            topic in "[a-z.#]{1,255}",
        ) {
            let record = Record { topic: &topic, key: key.as_deref(), ..RECORD };
            let back = back(&outgoing(&record, 2 * ROOM).unwrap());
            prop_assert_eq!(owner_of(&back), owner(chunk(&record).get(0).unwrap()));
        }
    }
}

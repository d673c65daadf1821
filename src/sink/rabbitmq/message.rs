//! A record as a message: the method that publishes it, its properties, its body.
//!
//! In: a record. Out: frames. Back: what of a returned message tells which record it was. It does no I/O.
//!
//! Properties: `content_type` by the header of that name or the value's column, headers, `delivery_mode` 2 (kept on disk), `message_id` (the id), `timestamp`,
//! `type`, `app_id`. The key is the header `key`, other headers keep their names. A header with one of the names that mean something
//! else here is written as `header:NAME`, and so is a filter value that no stream takes. What is longer than a property may be is a header instead.
//! Specification: AMQP 0-9-1, section 4.2.6 and class `basic`; RabbitMQ, "Sender-selected distribution" for `CC` and `BCC`.

use super::method;
use super::wire::{FRAME_OVERHEAD, Garbled, SHORT, Sort, Values, Writing};
use crate::sink::lanes::{Parts, Stored};
use crate::sink::{Content, Header};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

const BASIC: u16 = 60;
const APPLICATION: &[u8] = b"walrelay";

/// Which properties there are, in the order in which they are written.
const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 11;
const CORRELATION_ID: u16 = 1 << 10;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const TYPE: u16 = 1 << 5;
const APP_ID: u16 = 1 << 3;

/// Kept on disk.
const PERSISTENT: u8 = 2;

/// The header that has the record's key.
const KEY: &str = "key";

/// Names of headers that say something else here, or would be obeyed by the server.
const RESERVED: [&str; 5] = [KEY, "id", "type", "CC", "BCC"];

/// The header by which consumers of a stream choose messages. RabbitMQ 4.0 ends the connection over a value that its streams do not take.
const STREAM_FILTER: &str = "x-stream-filter-value";

/// The longest text that a broker takes for one, in bytes.
const LONGEST_TEXT: usize = 4096;

/// The header that carries a row's own exchange to where it is written. Messages do not have it; dead-letter records do.
pub(super) const EXCHANGE: &str = "walrelay-exchange";

/// The header that each dead-letter record has.
const DEAD_LETTER: &str = "walrelay-error";

/// The header with a value's media type. It stays a header, too.
const CONTENT_TYPE_HEADER: &str = "content-type";

/// The longest name of a header, in bytes.
pub(super) const LONGEST_NAME: usize = SHORT;

/// Which of the messages under way a returned one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print(u64);

impl Print {
    /// `row_key`: the record's own, of which at most one message with this routing key is under way.
    fn of(key: &[u8], row_key: Option<&[u8]>, id: Option<&[u8]>, body_bytes: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        (key, row_key, id, body_bytes).hash(&mut hasher);
        Self(hasher.finish())
    }

    #[cfg(test)]
    pub(super) fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// The properties do not fit into a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyHeaders {
    /// Bytes that they take.
    pub(super) bytes: usize,
}

/// The media type of a value, as the record's own header says it, which an event has, or else by the column; `None`: there is no value, or it
/// is not known.
fn content_type(record: Stored<'_>) -> Option<&[u8]> {
    record.value()?;
    let said = record.headers().find(|header| header.name == CONTENT_TYPE_HEADER).and_then(|header| header.value);
    if said.is_some_and(|said| fits(&said)) {
        return said;
    }
    match record.content() {
        Content::Json => Some(b"application/json"),
        Content::Text => Some(b"text/plain; charset=utf-8"),
        Content::Bytes => Some(b"application/octet-stream"),
        Content::Unknown => None,
    }
}

/// Whether it can be a property.
fn fits(text: &&[u8]) -> bool {
    text.len() <= SHORT
}

/// Where a message goes: to the exchange that its row names, or else to `usual`, as all dead-letter records do.
pub(super) fn exchange_of<'a>(usual: &'a str, record: Stored<'a>) -> &'a str {
    let mut own = None;
    for header in record.headers() {
        match header.name {
            DEAD_LETTER => return usual,
            EXCHANGE => own = header.value.and_then(|value| std::str::from_utf8(value).ok()),
            _ => {}
        }
    }
    own.filter(|own| !own.is_empty()).unwrap_or(usual)
}

/// Appends the frames of a message; nothing where it cannot be one. `frame_bytes`: the most a frame may have.
pub(super) fn publish(
    out: &mut Vec<u8>,
    channel: u16,
    exchange: &str,
    record: Stored<'_>,
    frame_bytes: usize,
) -> Result<Print, TooManyHeaders> {
    let start = out.len();
    method::publish(out, channel, exchange, record.topic());
    let (parts, body) = (record.parts(), record.value().unwrap_or_default());
    let bytes = header(out, channel, record, &parts, body.len() as u64);
    if bytes > frame_bytes {
        out.truncate(start);
        return Err(TooManyHeaders { bytes });
    }
    for part in body.chunks(frame_bytes.saturating_sub(FRAME_OVERHEAD).max(1)) {
        Writing::begin(out, Sort::Body, channel).raw(part).end();
    }
    Ok(Print::of(record.topic().as_bytes(), record.key(), parts.id.filter(fits), body.len() as u64))
}

/// Appends the frame that precedes a body: its length in bytes.
fn header(out: &mut Vec<u8>, channel: u16, record: Stored<'_>, parts: &Parts<'_>, body_bytes: u64) -> usize {
    let (id, kind, content_type) = (parts.id.filter(fits), parts.kind.filter(fits), content_type(record));
    let flag = |property: Option<&[u8]>, flag| if property.is_some() { flag } else { 0 };
    let flags = HEADERS | DELIVERY_MODE | TIMESTAMP | APP_ID;
    let flags = flags | flag(content_type, CONTENT_TYPE) | flag(id, MESSAGE_ID) | flag(kind, TYPE);
    let seconds = u64::try_from(record.timestamp_millis() / 1000).unwrap_or_default();
    // In the order of their flags.
    Writing::begin(out, Sort::Header, channel)
        .u16(BASIC)
        .u16(0)
        .u64(body_bytes)
        .u16(flags)
        .property(content_type)
        .table(|table| entries(table, record, parts))
        .u8(PERSISTENT)
        .property(id)
        .u64(seconds)
        .property(kind)
        .short(APPLICATION)
        .end()
}

fn entries<'a>(mut table: Writing<'a>, record: Stored<'_>, parts: &Parts<'_>) -> Writing<'a> {
    let too_long = |text: &&[u8]| !fits(text);
    let whole = [(KEY, record.key()), ("id", parts.id.filter(too_long)), ("type", parts.kind.filter(too_long))];
    for (name, value) in whole {
        if value.is_some() {
            table = table.entry(name.as_bytes(), value);
        }
    }
    for Header { name, value } in record.headers().skip(parts.headers) {
        if name == EXCHANGE && !record.headers().any(|header| header.name == DEAD_LETTER) {
            continue;
        }
        let is_no_filter = name == STREAM_FILTER && !value.is_some_and(is_filter);
        table = if RESERVED.contains(&name) || is_no_filter {
            table.entry(&[b"header:", name.as_bytes()].concat(), value)
        } else {
            table.entry(name.as_bytes(), value)
        };
    }
    table
}

/// Whether a stream takes it as a message's filter value.
fn is_filter(value: &[u8]) -> bool {
    value.len() <= LONGEST_TEXT && !value.contains(&0) && std::str::from_utf8(value).is_ok()
}

/// A message that comes back: its routing key, then this header, then a body of so many bytes.
pub(super) fn returned(key: &[u8], header: &[u8]) -> Result<(Print, u64), Garbled> {
    let mut values = Values::of(header);
    values.u16()?;
    values.u16()?;
    let body_bytes = values.u64()?;
    let flags = values.u16()?;
    // The last bit says that more of them follow.
    if flags & 1 == 1 {
        return Err(Garbled);
    }
    for text in [CONTENT_TYPE, CONTENT_ENCODING] {
        if flags & text != 0 {
            values.short()?;
        }
    }
    let mut row_key = None;
    if flags & HEADERS != 0 {
        values.table(&mut |name, value| {
            if name == KEY.as_bytes() {
                row_key = row_key.or(Some(value));
            }
        })?;
    }
    for number in [DELIVERY_MODE, PRIORITY] {
        if flags & number != 0 {
            values.u8()?;
        }
    }
    for text in [CORRELATION_ID, REPLY_TO, EXPIRATION] {
        if flags & text != 0 {
            values.short()?;
        }
    }
    let id = if flags & MESSAGE_ID == 0 { None } else { Some(values.short()?) };
    Ok((Print::of(key, row_key, id, body_bytes), body_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::lanes::Chunk;
    use crate::sink::rabbitmq::wire::frame;
    use crate::sink::{Origin, Record, Tag, Token};
    use proptest::prelude::*;

    const ROOM: usize = 4096;

    const HEADERS: &[Header<'_>] = &[
        Header { name: "id", value: Some(b"7") },
        Header { name: "eventType", value: Some(b"Placed") },
        Header { name: "trace", value: Some(b"t") },
        Header { name: "none", value: None },
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

    /// The payloads of a message's frames, by their sorts.
    fn frames(record: &Record<'_>, room: usize) -> (Print, Vec<(Sort, Vec<u8>)>) {
        let (chunk, mut out, mut found) = (chunk(record), Vec::new(), Vec::new());
        let print = publish(&mut out, 3, "outbox", chunk.get(0).unwrap(), room).unwrap();
        let mut rest = out.as_slice();
        while let Some((whole, length)) = frame(rest, room).unwrap() {
            assert_eq!(whole.channel, 3);
            found.push((whole.sort, whole.payload.to_vec()));
            rest = &rest[length..];
        }
        (print, found)
    }

    #[test]
    fn a_message_has_its_parts_as_properties_and_headers() {
        let (_, frames) = frames(&RECORD, ROOM);
        let method = [&[0, 60, 0, 40, 0, 0, 6][..], b"outbox\x06orders\x01"].concat();
        assert_eq!((frames[0].clone(), frames[2].clone()), ((Sort::Method, method), (Sort::Body, b"{}".to_vec())));
        let mut header = Values::of(&frames[1].1);
        assert_eq!((header.u16(), header.u16(), header.u64()), (Ok(60), Ok(0), Ok(2)));
        assert_eq!((header.u16(), header.short()), (Ok(ALL), Ok(&b"application/json"[..])));
        let mut entries = Vec::new();
        header.table(&mut |name, value| entries.push((name.to_vec(), value.to_vec()))).unwrap();
        let expected = [("key", "k"), ("trace", "t"), ("header:CC", "other")];
        assert_eq!(entries, expected.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())));
        assert_eq!((header.u8(), header.short(), header.u64()), (Ok(2), Ok(&b"7"[..]), Ok(7)));
        assert_eq!((header.short(), header.short()), (Ok(&b"Placed"[..]), Ok(&b"walrelay"[..])));
    }

    const ALL: u16 = CONTENT_TYPE | HEADERS_FLAG | DELIVERY_MODE | MESSAGE_ID | TIMESTAMP | TYPE | APP_ID;
    const HEADERS_FLAG: u16 = super::HEADERS;

    #[test]
    fn what_is_longer_than_a_property_is_a_header() {
        let long = [b'x'; 256];
        let headers = [Header { name: "id", value: Some(&long) }, Header { name: "eventType", value: Some(&long) }];
        let (_, frames) = frames(&Record { headers: &headers, key: None, content: Content::Unknown, ..RECORD }, ROOM);
        let mut header = Values::of(&frames[1].1);
        assert_eq!((header.u16(), header.u16(), header.u64()), (Ok(60), Ok(0), Ok(2)));
        assert_eq!(header.u16(), Ok(HEADERS_FLAG | DELIVERY_MODE | TIMESTAMP | APP_ID));
        let mut entries = Vec::new();
        header.table(&mut |name, value| entries.push((name.to_vec(), value.len()))).unwrap();
        assert_eq!(entries, [(b"id".to_vec(), 256), (b"type".to_vec(), 256)]);
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
            let (_, frames) = frames(&Record { headers: &headers, key: None, ..RECORD }, 2 * ROOM);
            let name = [&[u8::try_from(written.len()).unwrap()], written.as_bytes()].concat();
            assert!(frames[1].1.windows(name.len()).any(|part| part == name), "{value:?}");
        }
    }

    #[test]
    fn a_row_may_name_its_exchange_and_a_dead_letter_record_keeps_the_name() {
        let own = Header { name: EXCHANGE, value: Some(b"own") };
        let dead = Header { name: DEAD_LETTER, value: Some(b"why") };
        let goes = |headers: &[Header<'_>]| {
            let chunk = chunk(&Record { headers, ..RECORD });
            let record = chunk.get(0).unwrap();
            let mut out = Vec::new();
            publish(&mut out, 1, "x", record, ROOM).unwrap();
            let named = out.windows(EXCHANGE.len()).any(|part| part == EXCHANGE.as_bytes());
            (exchange_of("usual", record).to_owned(), named)
        };
        assert_eq!(goes(&[own]), ("own".to_owned(), false));
        for value in [None, Some(&b""[..])] {
            assert_eq!(goes(&[Header { name: EXCHANGE, value }]), ("usual".to_owned(), false));
        }
        assert_eq!(goes(&[]), ("usual".to_owned(), false));
        assert_eq!(goes(&[own, dead]), ("usual".to_owned(), true));
    }

    #[test]
    fn headers_that_fill_a_frame_are_no_message_and_leave_nothing() {
        let large = vec![b'x'; ROOM];
        let headers = [Header { name: "h", value: Some(&large) }];
        let (chunk, mut out) = (chunk(&Record { headers: &headers, ..RECORD }), vec![1, 2]);
        let refused = publish(&mut out, 1, "outbox", chunk.get(0).unwrap(), ROOM);
        assert!(refused.is_err_and(|error| error.bytes > ROOM));
        assert_eq!(out, [1, 2]);
    }

    #[test]
    fn messages_that_differ_by_their_key_alone_are_distinguished_when_they_come_back() {
        let print = |key: Option<&[u8]>| {
            let (print, frames) = frames(&Record { key, headers: &[], ..RECORD }, ROOM);
            assert_eq!(returned(b"orders", &frames[1].1), Ok((print, 2)));
            print
        };
        assert_ne!(print(Some(b"k")), print(Some(b"l")));
        assert_ne!(print(Some(b"")), print(None));
    }

    proptest! {
        #[test]
        fn a_message_that_comes_back_is_known_again(
            id in prop::option::of("[a-z]{0,300}"),
            body in prop::collection::vec(any::<u8>(), 0..9000),
            room in 1000..ROOM,
        ) {
            let headers: Vec<Header<'_>> =
                id.iter().map(|id| Header { name: "id", value: Some(id.as_bytes()) }).collect();
            let record = Record { headers: &headers, value: Some(&body), ..RECORD };
            let (print, frames) = frames(&record, room);
            prop_assert_eq!(returned(b"orders", &frames[1].1), Ok((print, body.len() as u64)));
            let parts: Vec<u8> = frames[2..].iter().flat_map(|(_, part)| part.clone()).collect();
            prop_assert_eq!(parts, body);
        }

        #[test]
        fn a_garbled_header_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _known = returned(b"k", &bytes).is_ok();
        }
    }
}

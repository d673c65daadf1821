//! A record as a message.
//!
//! In: records. Out: bytes of the client protocol. It does no I/O and judges no answer.
//!
//! Headers, in this order: `Nats-Msg-Id`, `id` where that is not the same, `Nats-Expected-Stream` where a stream is asked for, `key`,
//! then the record's others. NATS knows no null: a header that is null is left out, a value that is null is an empty message. A header of the
//! record's that would stand for one of the server's, or for the key, is written as `header-NAME`.
//! Specification: NATS, "Client Protocol" (HPUB), ADR-4 (headers), ADR-50 (atomic batches), JetStream's headers.

use crate::sink::lanes::Stored;
use crate::sink::{Header, Record};

/// What the headers begin with.
const VERSION: &[u8] = b"NATS/1.0\r\n";

/// What the server drops repeats by.
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// What the server compares with the stream that takes the message.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";

/// The header that holds the key.
pub(super) const KEY: &str = "key";

/// What stands before the name of a header whose own name is taken.
pub(super) const TAKEN: &str = "header-";

/// Names that begin so are the server's: it would act on them.
const SERVERS: &str = "nats-";

/// The header that holds the row's id.
pub(super) const ID: &str = "id";

/// The header that each dead-letter record has.
const DEAD_LETTER: &str = "walrelay-error";

/// What the server drops repeats by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum MessageId {
    /// The row's id alone: two rows of one stream that have the same id count as one, and the second is dropped.
    Id,
    /// The subject and the row's id, as `SUBJECT:ID`, and the id in a header of its own: tables that number their rows each by itself
    /// may share a stream.
    #[default]
    SubjectAndId,
}

/// What each message of a connection is sent with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending<'a> {
    /// Where answers go: this and a number.
    pub(super) inbox: &'a str,
    /// The stream that has to take it; `None`: whichever does.
    pub(super) stream: Option<&'a str>,
    pub(super) id: MessageId,
}

/// What no server would take of a record's headers, for people; `None`: nothing.
pub(super) fn fault(record: &Record<'_>) -> Option<String> {
    if let Some(header) = record.headers.iter().find(|header| !is_name(header.name)) {
        return Some(format!("{:?} cannot be the name of a header", header.name));
    }
    // Its text is for people: line breaks in it become spaces.
    if record.headers.iter().any(|header| header.name == DEAD_LETTER) {
        return None;
    }
    let broken = |value: Option<&[u8]>| value.is_some_and(|value| value.iter().any(|byte| is_break(*byte)));
    if broken(record.key) {
        return Some("the key holds a line break, and is to be a header".to_owned());
    }
    let header = record.headers.iter().find(|header| broken(header.value))?;
    Some(format!("header {} holds a line break", header.name))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
}

fn is_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | 0)
}

/// A record's place among several that JetStream stores all or none of.
#[derive(Debug, Clone, Copy)]
pub(super) struct InBatch {
    /// Counted on the connection.
    pub(super) batch: u64,
    /// From 1.
    pub(super) place: u64,
    /// With it the batch is stored, and answered.
    pub(super) last: bool,
}

/// Writes the record's headers, with the line that they begin and the one that they end with.
pub(super) fn headers(out: &mut Vec<u8>, sending: Sending<'_>, batch: Option<InBatch>, record: Stored<'_>) {
    out.extend_from_slice(VERSION);
    if let Some(batch) = batch {
        in_batch(out, sending, batch);
    }
    let mut rest = record.headers().peekable();
    let id = rest.next_if(|header| header.name == ID).and_then(|header| header.value);
    let counts = if record.headers().any(|header| header.name == DEAD_LETTER) {
        // The row may come again, corrected, with its id.
        MessageId::SubjectAndId
    } else {
        sending.id
    };
    match (id, counts) {
        (Some(id), MessageId::Id) => header(out, &[MESSAGE_ID], &[id]),
        (Some(id), MessageId::SubjectAndId) => {
            header(out, &[MESSAGE_ID], &[record.topic().as_bytes(), b":", id]);
            header(out, &[ID], &[id]);
        }
        (None, _) => {}
    }
    if let Some(stream) = sending.stream {
        header(out, &[EXPECTED_STREAM], &[stream.as_bytes()]);
    }
    if let Some(key) = record.key() {
        header(out, &[KEY], &[key]);
    }
    for Header { name, value } in rest {
        match value {
            Some(value) if is_taken(name) => header(out, &[TAKEN, name], &[value]),
            Some(value) => header(out, &[name], &[value]),
            None => {}
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// A batch's id is the connection's inbox and its number: no other client's.
fn in_batch(out: &mut Vec<u8>, sending: Sending<'_>, batch: InBatch) {
    out.extend_from_slice(b"Nats-Batch-Id: ");
    let inbox = sending.inbox.rsplit('.').find(|part| !part.is_empty()).unwrap_or_default();
    out.extend_from_slice(inbox.as_bytes());
    out.push(b'-');
    decimal(out, batch.batch);
    out.extend_from_slice(b"\r\nNats-Batch-Sequence: ");
    decimal(out, batch.place);
    out.extend_from_slice(if batch.last { b"\r\nNats-Batch-Commit: 1\r\n" } else { b"\r\n" });
}

/// Whether a record's header cannot have this name here.
pub(super) fn is_taken(name: &str) -> bool {
    is_servers(name) || name.eq_ignore_ascii_case(KEY)
}

/// Whether the server would act on a header of this name.
pub(super) fn is_servers(name: &str) -> bool {
    name.get(..SERVERS.len()).is_some_and(|start| start.eq_ignore_ascii_case(SERVERS))
}

fn header(out: &mut Vec<u8>, name: &[&str], value: &[&[u8]]) {
    for part in name {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(b": ");
    let start = out.len();
    for part in value {
        out.extend_from_slice(part);
    }
    for byte in out.get_mut(start..).unwrap_or_default() {
        if is_break(*byte) {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the message; `number`: what its answer's subject ends in; `None`: it is answered with the last of its batch.
pub(super) fn publish(
    out: &mut Vec<u8>,
    sending: Sending<'_>,
    number: Option<u64>,
    record: Stored<'_>,
    headers: &[u8],
) {
    let value = record.value().unwrap_or_default();
    out.extend_from_slice(b"HPUB ");
    out.extend_from_slice(record.topic().as_bytes());
    out.push(b' ');
    if let Some(number) = number {
        out.extend_from_slice(sending.inbox.as_bytes());
        decimal(out, number);
        out.push(b' ');
    }
    decimal(out, headers.len() as u64);
    out.push(b' ');
    decimal(out, (headers.len() + value.len()) as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(headers);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn decimal(out: &mut Vec<u8>, number: u64) {
    let start = out.len();
    let mut rest = number;
    loop {
        // The remainder is below ten.
        out.push(b'0' + u8::try_from(rest % 10).unwrap_or(0));
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.get_mut(start..).unwrap_or_default().reverse();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::lanes::Chunk;
    use crate::sink::{Content, Origin, Tag, Token};

    fn record<'a>(key: Option<&'a [u8]>, value: Option<&'a [u8]>, headers: &'a [Header<'a>]) -> Record<'a> {
        Record {
            topic: "outbox.order",
            key,
            value,
            headers,
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        }
    }

    fn written(record: &Record<'_>, stream: Option<&str>, id: MessageId) -> String {
        let mut chunk = Chunk::default();
        chunk.push(record, Tag { token: Token::unpack(0), origin: Origin::default() });
        let sending = Sending { inbox: "_INBOX.a.", stream, id };
        let (mut head, mut out) = (Vec::new(), Vec::new());
        headers(&mut head, sending, None, chunk.get(0).unwrap());
        publish(&mut out, sending, Some(1070), chunk.get(0).unwrap(), &head);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_message_has_its_id_its_key_and_the_other_headers() {
        let said = [
            Header { name: "id", value: Some(b"7") },
            Header { name: "eventType", value: Some(b"Placed") },
            Header { name: "none", value: None },
            Header { name: "Key", value: Some(b"x") },
            Header { name: "NATS-Rollup", value: Some(b"all") },
        ];
        let text = written(&record(Some(b"k"), Some(b"{}"), &said), None, MessageId::Id);
        let head = "NATS/1.0\r\nNats-Msg-Id: 7\r\nkey: k\r\neventType: Placed\r\nheader-Key: x\r\nheader-NATS-Rollup: all\r\n\r\n";
        let length = head.len();
        assert_eq!(text, format!("HPUB outbox.order _INBOX.a.1070 {length} {}\r\n{head}{{}}\r\n", length + 2));
        let text = written(&record(None, None, &said[..1]), Some("OUTBOX"), MessageId::SubjectAndId);
        let ids = "Nats-Msg-Id: outbox.order:7\r\nid: 7\r\n";
        assert!(text.contains(&format!("{ids}Nats-Expected-Stream: OUTBOX\r\n\r\n\r\n")), "{text}");
        let dead_letter = [said[0], Header { name: DEAD_LETTER, value: Some(b"why") }];
        let text = written(&record(None, None, &dead_letter), None, MessageId::Id);
        assert!(text.contains(&format!("{ids}walrelay-error: why\r\n")), "{text}");
        assert!(written(&record(None, None, &[]), None, MessageId::Id).ends_with("NATS/1.0\r\n\r\n\r\n"));
    }

    #[test]
    fn the_last_of_a_batch_stores_it_and_is_answered() {
        let mut chunk = Chunk::default();
        let id = [Header { name: "id", value: Some(b"7") }];
        chunk.push(&record(None, None, &id), Tag { token: Token::unpack(0), origin: Origin::default() });
        let sending = Sending { inbox: "_INBOX.ab12.", stream: None, id: MessageId::Id };
        let text = |place, last| {
            let (mut head, mut out) = (Vec::new(), Vec::new());
            let batch = Some(InBatch { batch: 10, place, last });
            headers(&mut head, sending, batch, chunk.get(0).unwrap());
            publish(&mut out, sending, last.then_some(3), chunk.get(0).unwrap(), &head);
            String::from_utf8(out).unwrap()
        };
        let first = text(1, false);
        assert!(first.starts_with("HPUB outbox.order 76 76\r\n") && !first.contains("Commit"), "{first}");
        assert!(first.contains("Nats-Batch-Id: ab12-10\r\nNats-Batch-Sequence: 1\r\nNats-Msg-Id: 7\r\n"), "{first}");
        let last = text(2, true);
        assert!(last.starts_with("HPUB outbox.order _INBOX.ab12.3 "), "{last}");
        assert!(last.contains("Nats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1\r\n"), "{last}");
    }

    #[test]
    fn what_headers_cannot_hold_is_reported_and_only_dead_letters_lose_their_line_breaks() {
        let fault_of = |key: Option<&[u8]>, name, value: &[u8]| {
            let headers = [Header { name, value: Some(value) }];
            fault(&record(key, None, &headers))
        };
        assert_eq!(fault_of(Some(b"k"), "a", b"b"), None);
        for (key, name, value) in
            [("k\n", "a", "b"), ("k", "a", "b\r"), ("k", "a b", "c"), ("k", "a:", "c"), ("k", "", "")]
        {
            assert!(fault_of(Some(key.as_bytes()), name, value.as_bytes()).is_some(), "{key:?} {name:?} {value:?}");
        }
        let dead_letter = [Header { name: DEAD_LETTER, value: Some(b"two\nlines") }];
        assert_eq!(fault(&record(Some(b"\n"), None, &dead_letter)), None);
        let text = written(&record(Some(b"\n"), None, &dead_letter), None, MessageId::Id);
        assert!(text.contains("key:  \r\nwalrelay-error: two lines\r\n\r\n"), "{text:?}");
    }
}

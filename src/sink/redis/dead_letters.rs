//! Reads a dead-letter stream, and removes entries that were published again.
//!
//! In: settings, a stream. Out: the records of its entries, up to the last entry at the beginning. Replayed entries are deleted (XDEL), since a
//! stream keeps nothing about them. The fields are those that `message` writes; an entry's time is the one at which the server took it.
//! Specification: Redis, commands XRANGE, XREVRANGE, XDEL.

use super::RedisSettings;
use super::client;
use super::errors::{allow, not_understood, of_stream, pattern, said, understood, with_fix};
use super::message::{PARTS, TAKEN};
use crate::sink::destination::{DeadLetterId, KeptRecord, NoDeadLetters};
use crate::sink::ordered_queue::{DeadLetterPages, PagedDeadLetters, block_on};
use crate::sink::{Content, Failure, Header, OwnedRecord, Record};
use redis::{Cmd, Value, cmd};
use std::collections::VecDeque;

/// The most entries that are read at once, which limits the memory: entries are as large as records.
const AT_ONCE: u32 = 100;

/// The most bytes of a reply with entries. The longest text that a server takes by default has half of that.
pub(super) const MOST_BYTES: usize = 1 << 30;

/// The entries of a stream, up to the last one at the beginning.
pub(super) struct StreamPages {
    settings: RedisSettings,
    stream: String,
    /// The position behind which the next entry is, in Redis' syntax.
    behind: String,
    /// How many entries are read next. After a failure one, since the reply may have been too long.
    at_once: u32,
    /// The id of the last entry at the beginning. `None`: the stream was empty.
    last: Option<String>,
}

impl StreamPages {
    pub(super) fn open(settings: RedisSettings, stream: &str) -> Result<PagedDeadLetters<Self>, NoDeadLetters> {
        let mut pages =
            Self { settings, stream: stream.to_owned(), behind: "-".to_owned(), at_once: AT_ONCE, last: None };
        if pages.number("EXISTS")? == 0 {
            return Err(NoDeadLetters::Missing { topic: stream.to_owned() });
        }
        let count = pages.number("XLEN")?;
        let reply = pages.ask(cmd("XREVRANGE").arg(stream).arg("+").arg("-").arg("COUNT").arg(1))?;
        pages.last = entries("XREVRANGE", stream, reply)?.pop_back().map(|last| last.id.to_string());
        Ok(PagedDeadLetters::new(pages, count))
    }

    /// Sends a command. Returns a reply that is no error.
    fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        let asking = client::call(&self.settings, &self.stream, command, MOST_BYTES);
        let (address, reply) = block_on(asking)?;
        let Some(error) = said(&reply) else { return Ok(reply) };
        let rights = || {
            let key = pattern(&self.stream);
            allow(&self.settings, &[&key, "+exists", "+xlen", "+xrange", "+xrevrange", "+xdel"])
        };
        Err(with_fix(of_stream(&address, &error), rights))
    }

    fn number(&self, command: &str) -> Result<u64, Failure> {
        understood(command, &self.stream, self.ask(cmd(command).arg(&self.stream))?)
    }
}

impl DeadLetterPages for StreamPages {
    fn page(&mut self) -> Result<VecDeque<KeptRecord>, Failure> {
        let Some(last) = &self.last else { return Ok(VecDeque::new()) };
        let mut range = cmd("XRANGE");
        let at_once = std::mem::replace(&mut self.at_once, 1);
        range.arg(&self.stream).arg(&self.behind).arg(last).arg("COUNT").arg(at_once);
        let read = entries("XRANGE", &self.stream, self.ask(&range)?)?;
        self.at_once = AT_ONCE.min(2 * at_once);
        if let Some(kept) = read.back() {
            self.behind = format!("({}", kept.id);
        }
        Ok(read)
    }

    fn remove(&mut self, ids: &[DeadLetterId]) -> Result<(), Failure> {
        let ids: Vec<String> = ids.iter().map(DeadLetterId::to_string).collect();
        self.ask(cmd("XDEL").arg(&self.stream).arg(ids)).map(drop)
    }
}

/// A field's name and value.
type Field = (Vec<u8>, Vec<u8>);

/// The entries in a reply to XRANGE, XREVRANGE or XREAD: an array of pairs, each of an id and an array of fields and values.
pub(super) fn entries(command: &str, stream: &str, reply: Value) -> Result<VecDeque<KeptRecord>, Failure> {
    let entries: Vec<(String, Vec<Field>)> = understood(command, stream, reply)?;
    let kept = |(text, fields): (String, Vec<Field>)| {
        let id = dead_letter_id(&text).ok_or_else(|| not_understood(&format!("the id of entry {text}"), stream))?;
        Ok(KeptRecord { id, replayed: false, record: record(stream, id, &fields) })
    };
    entries.into_iter().map(kept).collect()
}

/// The parts of an entry's id.
fn dead_letter_id(id: &str) -> Option<DeadLetterId> {
    let (major, minor) = id.split_once('-')?;
    Some(DeadLetterId { major: major.parse().ok()?, between: Some('-'), minor: minor.parse().ok()? })
}

/// The record of an entry.
fn record(stream: &str, id: DeadLetterId, fields: &[Field]) -> OwnedRecord {
    let (mut key, mut value, mut headers) = (None, None, Vec::new());
    for (name, bytes) in fields {
        // walrelay writes no field whose name is no text.
        let (Ok(name), bytes) = (std::str::from_utf8(name), bytes.as_slice()) else { continue };
        match name {
            "key" => key = Some(bytes),
            "payload" => value = Some(bytes),
            "type" => headers.push(Header { name: "eventType", value: Some(bytes) }),
            name => {
                let taken = name.strip_prefix(TAKEN).filter(|part| PARTS.contains(part));
                headers.push(Header { name: taken.unwrap_or(name), value: Some(bytes) });
            }
        }
    }
    OwnedRecord::of(&Record {
        topic: stream,
        key,
        value,
        headers: &headers,
        timestamp_millis: i64::try_from(id.major).unwrap_or_default(),
        partition: None,
        content: Content::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureClass;
    use crate::sink::HeaderRoom;
    use crate::sink::tests::{assert_dead_letters_are_read, read_in_test};
    use std::net::TcpListener;

    #[test]
    fn the_dead_letters_that_each_version_has_written_are_read() {
        assert_dead_letters_are_read("dead-letters/redis.txt", |text| {
            let fields = text.lines().map(|line| line.split_once('\t').unwrap());
            let fields: Vec<Field> = fields.map(|(name, value)| (name.into(), value.into())).collect();
            record("dead", DeadLetterId { major: 40_000, between: Some('-'), minor: 0 }, &fields)
        });
    }

    #[test]
    fn after_a_reply_that_may_have_been_too_long_one_entry_is_read() {
        // Nobody listens any more.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = read_in_test("redis", &address.to_string(), &[], |asked| RedisSettings::read(asked)).unwrap();
        let (stream, behind) = ("dead".to_owned(), "-".to_owned());
        let mut pages = StreamPages { settings, stream, behind, at_once: AT_ONCE, last: Some("7-1".to_owned()) };
        assert_eq!(pages.page().unwrap_err().class, FailureClass::Environment);
        assert_eq!((pages.at_once, pages.behind.as_str()), (1, "-"));
    }

    #[test]
    fn entries_become_the_records_that_they_were_written_of() {
        let words = |words: &[&[u8]]| Value::Array(words.iter().map(|word| Value::BulkString(word.to_vec())).collect());
        let entry = |id: &[u8], fields| Value::Array(vec![Value::BulkString(id.to_vec()), fields]);
        let fields: [&[u8]; 10] = [b"id", b"a", b"type", b"t", b"key", b"k", b"payload", b"\xff", b"header:key", b"h"];
        let reply = vec![entry(b"7-1", words(&fields)), entry(b"12-0", words(&[b"header:own", b"bad"]))];
        let found = entries("XRANGE", "dead", Value::Array(reply)).unwrap();
        let ids: Vec<String> = found.iter().map(|kept| kept.id.to_string()).collect();
        assert_eq!(ids, ["7-1", "12-0"]);
        found[0].record.with_record(&mut HeaderRoom::default(), |record| {
            assert_eq!((record.topic, record.key, record.value), ("dead", Some(&b"k"[..]), Some(&b"\xff"[..])));
            let headers: Vec<_> = record.headers.iter().map(|header| (header.name, header.value)).collect();
            assert_eq!(headers, [("id", Some(&b"a"[..])), ("eventType", Some(b"t")), ("key", Some(b"h"))]);
            assert_eq!(record.timestamp_millis, 7);
        });
        found[1].record.with_record(&mut HeaderRoom::default(), |record| {
            assert_eq!((record.key, record.value, record.headers.len()), (None, None, 1));
            assert_eq!(record.headers[0].name, "header:own", "only names that are taken are written so");
        });
        assert!(entries("XRANGE", "dead", Value::Nil).unwrap().is_empty());
        let said = |reply| entries("XRANGE", "dead", Value::Array(reply)).unwrap_err().text;
        let text = "stream dead cannot be read: the reply to XRANGE is not understood";
        assert_eq!(said(vec![Value::Int(3)]), text);
        let text = "stream dead cannot be read: the id of entry x is not understood";
        assert_eq!(said(vec![entry(b"7-1", words(&fields)), entry(b"x", words(&fields))]), text);
    }
}

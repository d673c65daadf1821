//! Reads a dead-letter stream, and removes from it what was published again.
//!
//! In: settings, a stream. Out: its entries as the records that they were written of, up to the last one that was there at the beginning.
//! What is settled is deleted (XDEL): a stream has no other place to remember it. An entry's fields are undone as `entry` writes them;
//! its time is the one at which the server took it.
//! Specification: Redis, commands XRANGE, XREVRANGE, XDEL.

use super::entry::{PARTS, TAKEN};
use super::judge::of_stream;
use super::lookup;
use super::resp::{Token, Tokens};
use super::settings::Settings;
use crate::sink::destination::{DeadLetters, Kept, NextKept, NoDeadLetters, Place};
use crate::sink::lanes::{Outage, block_on};
use crate::sink::{Content, Failure, Header, OwnedRecord, Record};
use std::collections::VecDeque;

/// Entries that are read at once. Their number bounds what is held, since entries are as large as records.
const AT_ONCE: &[u8] = b"100";

/// One stream, being read.
pub(super) struct Reading {
    settings: Settings,
    stream: String,
    /// The next entry is behind this one, in Redis' words.
    behind: String,
    /// The last one that was there at the beginning; `None`: it was empty, or everything is read.
    last: Option<String>,
    count: u64,
    read: VecDeque<Kept>,
    outage: Outage,
}

impl Reading {
    pub(super) fn new(settings: Settings, stream: &str) -> Result<Self, NoDeadLetters> {
        let mut reading = Self {
            settings,
            stream: stream.to_owned(),
            behind: "-".to_owned(),
            last: None,
            count: 0,
            read: VecDeque::new(),
            outage: Outage::default(),
        };
        let name = stream.as_bytes();
        if reading.number(&[b"EXISTS", name])? == 0 {
            return Err(NoDeadLetters::Missing { topic: stream.to_owned() });
        }
        reading.count = u64::try_from(reading.number(&[b"XLEN", name])?).unwrap_or_default();
        let reply = reading.ask(&[b"XREVRANGE", name, b"+", b"-", b"COUNT", b"1"])?;
        reading.last = entries(&reply, stream).pop().map(|last| last.place.to_string());
        Ok(reading)
    }

    /// A command's reply, which is no error.
    fn ask(&self, command: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        let (address, reply) = block_on(lookup::call(&self.settings, &self.stream, command))?;
        match Tokens::of(&reply).next() {
            Some(Token::Error(error)) => Err(of_stream(&address, error)),
            Some(_) | None => Ok(reply),
        }
    }

    fn number(&self, command: &[&[u8]]) -> Result<i64, Failure> {
        let reply = self.ask(command)?;
        let first = Tokens::of(&reply).next();
        Ok(if let Some(Token::Integer(number)) = first { number } else { 0 })
    }
}

impl DeadLetters for Reading {
    fn next(&mut self) -> Result<NextKept, Failure> {
        if let Some(kept) = self.read.pop_front() {
            return Ok(NextKept::Kept(kept));
        }
        let Some(last) = &self.last else { return Ok(NextKept::End) };
        let name = self.stream.as_bytes();
        match self.ask(&[b"XRANGE", name, self.behind.as_bytes(), last.as_bytes(), b"COUNT", AT_ONCE]) {
            Ok(reply) => self.read = entries(&reply, &self.stream).into(),
            Err(failure) => return self.outage.wait(failure).map(|()| NextKept::Waiting),
        }
        self.outage.over();
        match self.read.back() {
            Some(kept) => self.behind = format!("({}", kept.place),
            None => self.last = None,
        }
        Ok(NextKept::Waiting)
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn settle(&mut self, places: &[Place]) -> Result<Vec<OwnedRecord>, Failure> {
        let ids: Vec<String> = places.iter().map(Place::to_string).collect();
        let stream = self.stream.clone();
        let mut command: Vec<&[u8]> = vec![b"XDEL", stream.as_bytes()];
        command.extend(ids.iter().map(String::as_bytes));
        while let Err(failure) = self.ask(&command) {
            self.outage.wait(failure)?;
        }
        self.outage.over();
        Ok(Vec::new())
    }
}

/// What XRANGE and XREVRANGE reply: an array of pairs of an id and an array of fields and values.
fn entries(reply: &[u8], stream: &str) -> Vec<Kept> {
    let mut tokens = Tokens::of(reply);
    let Some(Token::Array(count)) = tokens.next() else { return Vec::new() };
    let mut entries = Vec::new();
    for _ in 0..count {
        let Some((place, fields)) = entry(&mut tokens) else { break };
        entries.push(Kept { place, settled: false, record: record(stream, place, &fields) });
    }
    entries
}

type Field<'a> = (&'a str, &'a [u8]);

fn entry<'a>(tokens: &mut Tokens<'a>) -> Option<(Place, Vec<Field<'a>>)> {
    let (Some(Token::Array(2)), Some(Token::Bytes(id))) = (tokens.next(), tokens.next()) else { return None };
    let (major, minor) = std::str::from_utf8(id).ok()?.split_once('-')?;
    let place = Place { major: major.parse().ok()?, between: Some('-'), minor: minor.parse().ok()? };
    let Some(Token::Array(words)) = tokens.next() else { return None };
    let mut fields = Vec::new();
    for _ in 0..words / 2 {
        let (Some(Token::Bytes(name)), Some(Token::Bytes(value))) = (tokens.next(), tokens.next()) else { return None };
        // A name that is no text is nobody's of ours.
        fields.extend(std::str::from_utf8(name).ok().map(|name| (name, value)));
    }
    Some((place, fields))
}

/// The record that an entry was written of.
fn record(stream: &str, place: Place, fields: &[Field<'_>]) -> OwnedRecord {
    let (mut key, mut value, mut headers) = (None, None, Vec::new());
    for &(name, bytes) in fields {
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
        timestamp_millis: i64::try_from(place.major).unwrap_or_default(),
        partition: None,
        content: Content::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureClass;
    use crate::sink::HeaderRoom;
    use crate::sink::redis::resp::words;
    use crate::sink::tests::read_in_test;
    use std::net::TcpListener;

    #[test]
    fn a_server_that_is_unavailable_is_asked_again_for_a_minute() {
        // Nobody listens any more.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = read_in_test("redis", &address.to_string(), &[], |asked| Settings::read(asked)).unwrap();
        let mut reading = Reading {
            settings,
            stream: "dead".to_owned(),
            behind: "-".to_owned(),
            last: Some("7-1".to_owned()),
            count: 1,
            read: VecDeque::new(),
            outage: Outage::default(),
        };
        assert!(matches!(reading.next(), Ok(NextKept::Waiting)));
        reading.outage = Outage::of_long();
        assert_eq!(reading.next().unwrap_err().class, FailureClass::Environment);
        assert_eq!(reading.settle(&[]).unwrap_err().class, FailureClass::Environment);
    }

    #[test]
    fn entries_become_the_records_that_they_were_written_of() {
        let mut reply = b"*2\r\n*2\r\n".to_vec();
        reply.extend(b"$3\r\n7-1\r\n");
        let fields: [&[u8]; 10] = [b"id", b"a", b"type", b"t", b"key", b"k", b"payload", b"\xff", b"header:key", b"h"];
        words(&mut reply, &fields);
        reply.extend(b"*2\r\n$4\r\n12-0\r\n");
        words(&mut reply, &[b"header:own", b"bad"]);
        let found = entries(&reply, "dead");
        let places: Vec<String> = found.iter().map(|kept| kept.place.to_string()).collect();
        assert_eq!(places, ["7-1", "12-0"]);
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
        assert!(entries(b"*-1\r\n", "dead").is_empty() && entries(b"*1\r\n:3\r\n", "dead").is_empty());
    }
}

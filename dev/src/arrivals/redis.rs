//! Streams of Redis, on one server or on the nodes of a cluster.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::{Ends, Source, header, record};
use crate::brokers::{Reply, RespConnection};
use crate::consume::Record;

/// Entries that are read at once.
const AT_ONCE: &str = "500";

/// A stream with the last entry that was read and how many there were.
struct Stream {
    name: String,
    behind: String,
    count: i64,
}

/// Streams of Redis, in a cluster each asked for at the node that has it.
pub(super) struct Streams {
    ports: Vec<u16>,
    each: Vec<Stream>,
    /// By the streams.
    homes: HashMap<String, u16>,
    connections: HashMap<u16, RespConnection>,
}

impl Streams {
    pub(super) fn new(ports: &[u16], topics: &[String]) -> Self {
        let stream = |name: &String| Stream { name: name.clone(), behind: "0-0".to_owned(), count: 0 };
        Self {
            ports: ports.to_owned(),
            each: topics.iter().map(stream).collect(),
            homes: HashMap::new(),
            connections: HashMap::new(),
        }
    }

    /// A command's reply by the node that has the stream.
    fn call(&mut self, stream: &str, words: &[&str]) -> Result<Reply> {
        let mut port = self.homes.get(stream).or_else(|| self.ports.first()).copied().context("no node")?;
        for _ in 0..=self.ports.len() {
            let connection = match self.connections.entry(port) {
                Entry::Occupied(connection) => connection.into_mut(),
                Entry::Vacant(none) => none.insert(RespConnection::open(port)?),
            };
            let reply = connection.call(words)?;
            let Reply::Error(text) = &reply else { return Ok(reply) };
            // `MOVED`, the slot, and the address of the node that has it.
            let moved = text.strip_prefix("MOVED ").and_then(|address| address.rsplit(':').next());
            port = moved.with_context(|| format!("Redis: {text}"))?.parse()?;
            self.homes.insert(stream.to_owned(), port);
        }
        bail!("nodes name one another for {stream}")
    }

    /// Reads the streams from this place on, so many of them, by one command.
    fn read_some(&mut self, from: usize, count: usize, block: &[&str]) -> Result<Vec<Record>> {
        let some: Vec<&Stream> = self.each.iter().skip(from).take(count).collect();
        let names: Vec<String> = some.iter().map(|stream| stream.name.clone()).collect();
        let behind: Vec<String> = some.iter().map(|stream| stream.behind.clone()).collect();
        let Some(first) = names.first() else { return Ok(Vec::new()) };
        let mut words = [&["XREAD", "COUNT", AT_ONCE], block, &["STREAMS"]].concat();
        words.extend(names.iter().chain(&behind).map(String::as_str));
        let reply = self.call(first, &words)?;
        entries(&reply, &mut self.each)
    }
}

impl Source for Streams {
    fn read(&mut self, limit: Duration) -> Result<Vec<Record>> {
        if self.ports.len() == 1 {
            // Without an end, 0 would be.
            let millis = limit.as_millis().max(1).to_string();
            return self.read_some(0, self.each.len(), &["BLOCK", &millis]);
        }
        // A command of a cluster reads streams of one slot.
        let parts = (0..self.each.len()).map(|place| self.read_some(place, 1, &[]));
        Ok(parts.collect::<Result<Vec<_>>>()?.concat())
    }

    fn ends(&mut self) -> Result<Ends> {
        let names: Vec<String> = self.each.iter().map(|stream| stream.name.clone()).collect();
        let end = |name: String| {
            let length = self.call(&name, &["XLEN", &name])?.integer().context("a stream without a length")?;
            Ok(((name, 0), length))
        };
        names.into_iter().map(end).collect()
    }

    fn count(&mut self) -> Result<u64> {
        Ok(u64::try_from(self.ends()?.values().sum::<i64>())?)
    }

    fn disconnect(&mut self) {
        self.connections.clear();
    }
}

/// What XREAD replies, and where it ends.
fn entries(reply: &Reply, each: &mut [Stream]) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for one in reply.items() {
        let [name, entries] = one.items() else { bail!("an answer that is none") };
        let name = name.text();
        let stream = each.iter_mut().find(|stream| stream.name == name);
        let stream = stream.with_context(|| format!("nobody asked for {name}"))?;
        for entry in entries.items() {
            let [id, fields] = entry.items() else { bail!("{name}: an entry that is none") };
            stream.behind = id.text();
            records.push(of_redis(&name, &stream.behind, stream.count, fields));
            stream.count += 1;
        }
    }
    Ok(records)
}

/// An entry's id begins with the time at which it was added.
fn of_redis(stream: &str, id: &str, offset: i64, fields: &Reply) -> Record {
    let mut record = record(stream, offset);
    record.timestamp = id.split('-').next().and_then(|millis| millis.parse().ok());
    for field in fields.items().chunks_exact(2) {
        let [name, Reply::Bytes(value)] = field else { continue };
        match name.text().as_str() {
            "key" => record.key = Some(value.clone()),
            // As Debezium Server's sink names it, and what follows.
            "payload" | "value" => record.value = Some(value.clone()),
            "type" | "EVENTTYPE" => record.headers.push(header("eventType", value)),
            "ID" => record.headers.push(header("id", value)),
            other => record.headers.push(header(other, value)),
        }
    }
    record
}

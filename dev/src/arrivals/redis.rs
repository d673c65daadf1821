//! Streams of Redis on one server, and on the nodes of a cluster.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::{Ends, Gauge, Source, header, record};
use crate::brokers::{Reply, RespConnection};
use crate::consume::Record;

/// Entries that are read at once.
const AT_ONCE: &str = "500";

/// Streams of Redis, each with the last entry that was read and how many there were.
pub(super) struct Streams {
    port: u16,
    each: Vec<(String, String, i64)>,
    connection: Option<RespConnection>,
}

impl Streams {
    pub(super) fn new(port: u16, topics: &[String]) -> Self {
        Self { port, each: from_beginning(topics), connection: None }
    }
}

impl Source for Streams {
    fn read(&mut self, limit: Duration) -> Result<Vec<Record>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(RespConnection::open(self.port)?),
        };
        // Without an end, 0 would be.
        let millis = limit.as_millis().max(1).to_string();
        let mut words = vec!["XREAD", "COUNT", AT_ONCE, "BLOCK", &millis, "STREAMS"];
        words.extend(self.each.iter().map(|(stream, ..)| stream.as_str()));
        words.extend(self.each.iter().map(|(_, behind, _)| behind.as_str()));
        let reply = connection.call(&words)?;
        entries(&reply, &mut self.each)
    }

    fn disconnect(&mut self) {
        self.connection = None;
    }
}

fn from_beginning(topics: &[String]) -> Vec<(String, String, i64)> {
    topics.iter().map(|topic| (topic.clone(), "0-0".to_owned(), 0)).collect()
}

/// What XREAD replies, and where it ends.
fn entries(reply: &Reply, each: &mut [(String, String, i64)]) -> Result<Vec<Record>> {
    if let Reply::Error(text) = reply {
        bail!("Redis: {text}");
    }
    let mut records = Vec::new();
    for one in reply.items() {
        let [name, entries] = one.items() else { bail!("an answer that is none") };
        let name = name.text();
        let stream = each.iter_mut().find(|(stream, ..)| *stream == name);
        let (_, behind, count) = stream.with_context(|| format!("nobody asked for {name}"))?;
        for entry in entries.items() {
            let [id, fields] = entry.items() else { bail!("{name}: an entry that is none") };
            *behind = id.text();
            records.push(of_redis(&name, &id.text(), *count, fields));
            *count += 1;
        }
    }
    Ok(records)
}

/// Streams of Redis on the nodes of a cluster, each asked for at the node that has it.
pub(super) struct Spread {
    ports: Vec<u16>,
    /// As of [`Streams`].
    each: Vec<(String, String, i64)>,
    /// By the streams.
    homes: HashMap<String, u16>,
    connections: HashMap<u16, RespConnection>,
}

impl Spread {
    pub(super) fn new(ports: &[u16], topics: &[String]) -> Self {
        Self {
            ports: ports.to_owned(),
            each: from_beginning(topics),
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
            let Some(moved) = moved_to(&reply) else { return Ok(reply) };
            port = moved?;
            self.homes.insert(stream.to_owned(), port);
        }
        bail!("nodes name one another for {stream}")
    }

    fn lengths(&mut self) -> Result<Ends> {
        let streams: Vec<String> = self.each.iter().map(|(stream, ..)| stream.clone()).collect();
        let mut ends = Ends::new();
        for stream in streams {
            let length = self.call(&stream, &["XLEN", &stream])?.integer().context("a stream without a length")?;
            ends.insert((stream, 0), length);
        }
        Ok(ends)
    }
}

/// The port in what says MOVED: the slot, and the node's address. `None`: it says another thing.
fn moved_to(reply: &Reply) -> Option<Result<u16>> {
    let Reply::Error(text) = reply else { return None };
    let address = text.strip_prefix("MOVED ")?;
    let port = address.rsplit(':').next().unwrap_or_default();
    Some(port.parse().with_context(|| text.clone()))
}

impl Source for Spread {
    fn read(&mut self, _limit: Duration) -> Result<Vec<Record>> {
        let asked: Vec<_> = self.each.iter().map(|(stream, behind, _)| (stream.clone(), behind.clone())).collect();
        let mut records = Vec::new();
        for (stream, behind) in asked {
            let reply = self.call(&stream, &["XREAD", "COUNT", AT_ONCE, "STREAMS", &stream, &behind])?;
            records.append(&mut entries(&reply, &mut self.each)?);
        }
        Ok(records)
    }

    fn disconnect(&mut self) {
        self.connections.clear();
    }
}

impl Gauge for Spread {
    fn ends(&mut self) -> Result<Ends> {
        self.lengths()
    }

    fn count(&mut self) -> Result<u64> {
        Ok(u64::try_from(self.lengths()?.values().sum::<i64>())?)
    }
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

//! What has arrived at a destination, read by another client than the relay's.
//!
//! In: where it is. Out: records as [`crate::consume`] has them, each key's in the order in which they are stored: from the first on and
//! along with what comes, or all that are there now. A connection that is lost while records are followed is made again.
//!
//! RabbitMQ gives each message of a queue away once. So the messages are in two queues: a stream, which can be read again and again,
//! is followed; the quorum queue, which users have, is read in the end.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rdkafka::ClientConfig;
use serde_json::{Value, json};

use crate::brokers::{AmqpConnection, AmqpMessage, Broker, JetStream, Kind, Reply, RespConnection, Stored};
use crate::consume::{self, Follower, Meter, Record};
use crate::drained::{self, Drained};

/// How long a server may be down while it is followed.
const PATIENCE: Duration = Duration::from_mins(4);

/// Between two looks where nothing says that something has come.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The stream of NATS, and the queue of RabbitMQ, that takes everything.
const STREAM: &str = "OUTBOX";

/// The exchange that the relay publishes to unless a setting names another.
const EXCHANGE: &str = "outbox";

/// The stream of RabbitMQ beside the queue.
const LOG: &str = "OUTBOX.log";

/// How long NATS drops repeats, in nanoseconds: longer than any run.
const HOURS: u64 = 4 * 3_600_000_000_000;

/// Entries of Redis that are read at once.
const AT_ONCE: &str = "500";

/// Messages of NATS that are read at once where there are some.
const MANY: u64 = 100;

/// Messages of RabbitMQ that are acknowledged together while more are there.
const TOGETHER: usize = 200;

/// Where it can be read.
#[derive(Debug, Clone)]
pub enum Arrivals {
    /// Kafka, by a client's configuration.
    Kafka(Box<ClientConfig>),
    /// One server of another kind on 127.0.0.1.
    Other {
        /// Which.
        kind: Kind,
        /// Its port.
        port: u16,
        /// The queue that is followed, where it is a queue.
        followed: &'static str,
    },
    /// Nodes of a cluster of Redis, by their ports on 127.0.0.1.
    Nodes(Vec<u16>),
    /// Queues of SQS' protocol.
    Queues(Arc<Drained>),
}

/// Each place, such as a partition, with the offset that its next record will have.
pub type Ends = HashMap<(String, i32), i64>;

/// Gives one record after the other. One without a topic is a mark of [`Gauge::ends`], and nobody's.
pub trait Follow: Send {
    /// The next record; `None` when none comes within `limit`.
    ///
    /// # Errors
    /// The server refuses, or is down for too long.
    fn next(&mut self, limit: Duration) -> Result<Option<Record>>;
}

/// Says how much has arrived.
pub trait Gauge: Send {
    /// Where what has arrived by now ends; places without records may be missing. Followers meet every record before that, or a mark
    /// at its offset.
    ///
    /// # Errors
    /// The server does not answer.
    fn ends(&mut self) -> Result<Ends>;

    /// How many records are there now.
    ///
    /// # Errors
    /// The server does not answer.
    fn count(&mut self) -> Result<u64>;
}

impl Arrivals {
    /// Where a broker's records can be read, once it can take those to `prefix.…`: its stream, exchange and queues are created. `again`:
    /// they can be followed before they are read; else a queue gives each away once.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn prepare(broker: &Broker, prefix: &str, again: bool) -> Result<Self> {
        let followed = if again { LOG } else { STREAM };
        match broker.kind() {
            Kind::Valkey => {}
            Kind::Nats => {
                let subjects = [format!("{prefix}.>")];
                let subjects = subjects.each_ref().map(String::as_str);
                broker.jetstream(&Value::Null)?.create_stream(
                    STREAM,
                    &subjects,
                    &json!({ "duplicate_window": HOURS }),
                )?;
            }
            Kind::RabbitMq => {
                let mut amqp = broker.amqp()?;
                amqp.exchange(EXCHANGE, "topic")?;
                for (queue, sort) in [(STREAM, "quorum"), (LOG, "stream")].into_iter().take(1 + usize::from(again)) {
                    amqp.queue(queue, &[("x-queue-type", sort)])?;
                    amqp.bind(queue, EXCHANGE, &format!("{prefix}.#"))?;
                }
            }
            Kind::ElasticMq => return Ok(Self::Queues(Arc::new(Drained::on(broker.port())))),
        }
        Ok(Self::Other { kind: broker.kind(), port: broker.port(), followed })
    }

    /// Where what begins with `prefix` and goes by `route` is published to.
    pub fn address(&self, prefix: &str, route: &str) -> String {
        match self {
            // Queues have no dots in their names, but for what makes them one of those that keep an order.
            Self::Queues(_) => format!("{}-{route}.fifo", prefix.replace('.', "-")),
            Self::Kafka(_) | Self::Other { .. } | Self::Nodes(_) => format!("{prefix}.{route}"),
        }
    }

    /// Creates what is published to, where each address has to be there: queues. Kafka's topics have settings of their own.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn create(&self, topics: &[&str]) -> Result<()> {
        match self {
            Self::Queues(drained) => topics.iter().try_for_each(|queue| drained.create(queue)),
            Self::Kafka(_) | Self::Other { .. } | Self::Nodes(_) => Ok(()),
        }
    }

    /// Removes it.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn remove(&self, topics: &[&str]) -> Result<()> {
        match self {
            Self::Queues(drained) => topics.iter().try_for_each(|queue| drained.delete(queue)),
            Self::Kafka(_) | Self::Other { .. } | Self::Nodes(_) => Ok(()),
        }
    }

    /// Everything from the first record on.
    ///
    /// # Errors
    /// The server does not answer, or a topic does not exist that has to.
    pub fn follow(&self, topics: &[String]) -> Result<Box<dyn Follow>> {
        Ok(match self {
            Self::Kafka(config) => {
                let names: Vec<&str> = topics.iter().map(String::as_str).collect();
                Box::new(Follower::from_beginning(config, &names)?)
            }
            Self::Other { kind, port, followed } => other_follower(*kind, *port, followed, topics),
            Self::Nodes(ports) => Box::new(Reader::new(Spread::new(ports, topics))),
            Self::Queues(drained) => drained::follow(drained, topics),
        })
    }

    /// Says of these topics how much has arrived.
    ///
    /// # Errors
    /// As [`Arrivals::follow`].
    pub fn gauge(&self, topics: &[String]) -> Result<Box<dyn Gauge>> {
        Ok(match self {
            Self::Kafka(config) => {
                let meter = |topic: &String| Ok((topic.clone(), Meter::new(config, std::slice::from_ref(topic))?));
                Box::new(topics.iter().map(meter).collect::<Result<Vec<_>>>()?)
            }
            Self::Other { kind, port, followed } => {
                Box::new(Asking { kind: *kind, port: *port, queue: followed, topics: topics.to_vec() })
            }
            Self::Nodes(ports) => Box::new(Spread::new(ports, topics)),
            Self::Queues(drained) => drained::gauge(drained, topics),
        })
    }

    /// Hands over all that is there now, while nobody writes. RabbitMQ's queue is empty afterwards.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn read(&self, topics: &[String], mut take: impl FnMut(Record)) -> Result<()> {
        let (mut follower, mut ends): (Box<dyn Follow>, Ends) = match self {
            Self::Kafka(config) => {
                let mut topics = topics.iter();
                return topics.try_for_each(|topic| consume::read_topic(config, topic, &mut take));
            }
            Self::Other { kind, port, .. } => {
                let mut gauge = Asking { kind: *kind, port: *port, queue: STREAM, topics: topics.to_vec() };
                (other_follower(*kind, *port, STREAM, topics), gauge.ends()?)
            }
            Self::Nodes(_) | Self::Queues(_) => (self.follow(topics)?, self.gauge(topics)?.ends()?),
        };
        ends.retain(|_, end| *end > 0);
        let mut heard = Instant::now();
        while !ends.is_empty() {
            let Some(record) = follower.next(Duration::from_secs(1))? else {
                anyhow::ensure!(heard.elapsed() < PATIENCE, "nothing more has come, up to {ends:?}");
                continue;
            };
            heard = Instant::now();
            let place = (record.topic.clone(), record.partition);
            if ends.get(&place).is_some_and(|end| record.offset + 1 >= *end) {
                ends.remove(&place);
            }
            if !record.topic.is_empty() {
                take(record);
            }
        }
        Ok(())
    }
}

fn other_follower(kind: Kind, port: u16, queue: &'static str, topics: &[String]) -> Box<dyn Follow> {
    match kind {
        Kind::RabbitMq => {
            // Only a stream can be read from its beginning.
            let next = (queue == LOG).then_some(0);
            Box::new(Reader::new(Queue { port, name: queue, next, count: 0, connection: None, open: 0 }))
        }
        Kind::Nats => Box::new(Reader::new(Subjects { port, next: 1, some: false, connection: None })),
        Kind::Valkey | Kind::ElasticMq => {
            let streams = topics.iter().map(|topic| (topic.clone(), "0-0".to_owned(), 0)).collect();
            Box::new(Reader::new(Streams { port, each: streams, connection: None }))
        }
    }
}

impl Follow for Follower {
    fn next(&mut self, limit: Duration) -> Result<Option<Record>> {
        Self::next(self, limit)
    }
}

/// Markers of transactions are counted as well: where there are some, followers do not meet all ends.
impl Gauge for Vec<(String, Meter)> {
    fn ends(&mut self) -> Result<Ends> {
        let mut ends = Ends::new();
        for (topic, meter) in self.iter() {
            ends.extend(meter.ends()?.into_iter().map(|(partition, end)| ((topic.clone(), partition), end)));
        }
        Ok(ends)
    }

    fn count(&mut self) -> Result<u64> {
        let counts = self.iter().map(|(_, meter)| Ok(u64::try_from(meter.count()?)?));
        counts.sum()
    }
}

/// What a [`Reader`] asks.
pub(crate) trait Source: Send {
    /// What has come since, which may be nothing; waits up to `limit` where it can. After an error all begins with a new connection.
    fn read(&mut self, limit: Duration) -> Result<Vec<Record>>;

    /// The connection is of no use any more.
    fn disconnect(&mut self);
}

/// Follows a source through outages.
pub(crate) struct Reader<S> {
    source: S,
    read: VecDeque<Record>,
    /// Since when the server is down.
    down: Option<Instant>,
}

impl<S: Source> Reader<S> {
    pub(crate) fn new(source: S) -> Self {
        Self { source, read: VecDeque::new(), down: None }
    }
}

impl<S: Source> Follow for Reader<S> {
    fn next(&mut self, limit: Duration) -> Result<Option<Record>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(record) = self.read.pop_front() {
                return Ok(Some(record));
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.source.read(left) {
                Ok(read) => {
                    self.down = None;
                    self.read = read.into();
                }
                Err(error) => {
                    self.source.disconnect();
                    if self.down.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err(error);
                    }
                }
            }
            if self.read.is_empty() {
                if left.is_zero() {
                    return Ok(None);
                }
                std::thread::sleep(LOOK_AGAIN.min(left));
            }
        }
    }
}

fn header(name: &str, value: &[u8]) -> (String, Option<Vec<u8>>) {
    (name.to_owned(), Some(value.to_vec()))
}

/// Streams of Redis, each with the last entry that was read and how many there were.
struct Streams {
    port: u16,
    each: Vec<(String, String, i64)>,
    connection: Option<RespConnection>,
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
struct Spread {
    ports: Vec<u16>,
    /// As of [`Streams`].
    each: Vec<(String, String, i64)>,
    /// By the streams.
    homes: HashMap<String, u16>,
    connections: HashMap<u16, RespConnection>,
}

impl Spread {
    fn new(ports: &[u16], topics: &[String]) -> Self {
        let each = topics.iter().map(|topic| (topic.clone(), "0-0".to_owned(), 0)).collect();
        Self { ports: ports.to_owned(), each, homes: HashMap::new(), connections: HashMap::new() }
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

fn record(topic: &str, offset: i64) -> Record {
    Record {
        topic: topic.to_owned(),
        partition: 0,
        offset,
        timestamp: None,
        key: None,
        value: None,
        headers: Vec::new(),
    }
}

/// The stream of NATS.
struct Subjects {
    port: u16,
    next: u64,
    /// Some were there when it was asked last.
    some: bool,
    connection: Option<JetStream>,
}

impl Source for Subjects {
    fn read(&mut self, _limit: Duration) -> Result<Vec<Record>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(JetStream::open(self.port, &Value::Null)?),
        };
        let stored = connection.messages_from(STREAM, self.next, if self.some { MANY } else { 1 })?;
        self.some = !stored.is_empty();
        self.next = stored.last().map_or(self.next, |last| last.sequence + 1);
        Ok(stored.into_iter().map(of_nats).collect())
    }

    fn disconnect(&mut self) {
        self.connection = None;
    }
}

fn of_nats(stored: Stored) -> Record {
    let mut record = record(&stored.subject, i64::try_from(stored.sequence).unwrap_or(i64::MAX));
    record.timestamp = Some(stored.millis);
    record.key = stored.header("key").map(|key| key.as_bytes().to_vec());
    record.headers = stored.headers.iter().map(|(name, value)| header(name, value.as_bytes())).collect();
    record.value = Some(stored.data);
    record
}

/// A queue or a stream of RabbitMQ.
struct Queue {
    port: u16,
    name: &'static str,
    /// Of a stream, the next one.
    next: Option<i64>,
    /// How many have come.
    count: i64,
    connection: Option<AmqpConnection>,
    /// Come, and not acknowledged on this connection.
    open: usize,
}

impl Source for Queue {
    fn read(&mut self, limit: Duration) -> Result<Vec<Record>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let mut connection = AmqpConnection::open(self.port)?;
                connection.consume(self.name, self.next)?;
                self.open = 0;
                none.insert(connection)
            }
        };
        let Some(message) = connection.delivered(limit)? else { return Ok(Vec::new()) };
        self.open += 1;
        if self.open.is_multiple_of(TOGETHER) || connection.is_drained() {
            connection.acknowledge(&message)?;
        }
        // A stream begins with the chunk that holds what was asked for.
        let offset = message.stream_offset();
        if let (Some(offset), Some(next)) = (offset, self.next.as_mut()) {
            if offset < *next {
                return Ok(Vec::new());
            }
            *next = offset + 1;
        }
        let offset = offset.unwrap_or(self.count);
        self.count += 1;
        Ok(vec![of_rabbitmq(message, offset)])
    }

    fn disconnect(&mut self) {
        self.connection = None;
    }
}

/// A mark has its number in its body, and went through no exchange.
fn of_rabbitmq(message: AmqpMessage, offset: i64) -> Record {
    if message.exchange.is_empty() {
        return record("", message.text().parse().unwrap_or_default());
    }
    let mut record = record(&message.key, offset);
    for (name, property) in [("id", "message_id"), ("eventType", "type")] {
        if let Some(value) = message.properties.get(property) {
            record.headers.push(header(name, value.as_bytes()));
        }
    }
    for (name, value) in message.headers {
        match name.as_str() {
            "key" => record.key = value.map(String::into_bytes),
            _ => record.headers.push((name, value.map(String::into_bytes))),
        }
    }
    record.value = Some(message.body);
    record
}

/// Asks a server with a connection of its own each time.
struct Asking {
    kind: Kind,
    port: u16,
    queue: &'static str,
    topics: Vec<String>,
}

impl Asking {
    fn ask(&self) -> Result<Ends> {
        static MARKS: AtomicI64 = AtomicI64::new(0);
        let mut ends = Ends::new();
        match self.kind {
            Kind::Nats => {
                let mut connection = JetStream::open(self.port, &Value::Null)?;
                for topic in &self.topics {
                    let last = connection.last_place(STREAM, topic)?;
                    ends.insert((topic.clone(), 0), if last == 0 { 0 } else { i64::try_from(last)? + 1 });
                }
            }
            Kind::RabbitMq => {
                // How long a queue is is known only from time to time. What is published now comes behind all that is there.
                let mark = MARKS.fetch_add(1, Ordering::SeqCst);
                let mut connection = AmqpConnection::open(self.port)?;
                connection.publish(self.queue, mark.to_string().as_bytes())?;
                connection.leave()?;
                ends.insert((String::new(), 0), mark + 1);
            }
            Kind::Valkey | Kind::ElasticMq => {
                let mut connection = RespConnection::open(self.port)?;
                for topic in &self.topics {
                    let length = connection.call(&["XLEN", topic])?.integer().context("a stream without a length")?;
                    ends.insert((topic.clone(), 0), length);
                }
            }
        }
        Ok(ends)
    }
}

/// Asks again while the server is down.
pub(crate) fn patiently<T>(ask: impl Fn() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        match ask() {
            Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(LOOK_AGAIN),
            asked => return asked,
        }
    }
}

impl Gauge for Asking {
    fn count(&mut self) -> Result<u64> {
        match self.kind {
            Kind::Nats => JetStream::open(self.port, &Value::Null)?.count(STREAM),
            Kind::RabbitMq => AmqpConnection::open(self.port)?.length(STREAM),
            Kind::Valkey | Kind::ElasticMq => Ok(u64::try_from(self.ask()?.values().sum::<i64>())?),
        }
    }

    fn ends(&mut self) -> Result<Ends> {
        patiently(|| self.ask())
    }
}

//! What has arrived at a destination, read by another client than the relay's.
//!
//! In: where it is. Out: records as [`crate::consume`] has them, each key's in the order in which they are stored: from the first on and
//! along with what comes, or all that are there now. A connection that is lost while records are followed is made again.
//!
//! RabbitMQ gives each message of a queue away once. So the messages are in two queues: a stream, which can be read again and again,
//! is followed; the quorum queue, which users have, is read in the end.

mod nats;
mod rabbitmq;
mod redis;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rdkafka::ClientConfig;
use serde_json::{Value, json};

use self::nats::Subjects;
use self::rabbitmq::Queue;
use self::redis::{Spread, Streams};
use crate::brokers::{AmqpConnection, Broker, JetStream, Kind, RespConnection};
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
        Kind::RabbitMq => Box::new(Reader::new(Queue::new(port, queue))),
        Kind::Nats => Box::new(Reader::new(Subjects::new(port))),
        Kind::Valkey | Kind::ElasticMq => Box::new(Reader::new(Streams::new(port, topics))),
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

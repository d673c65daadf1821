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
mod sqs;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdkafka::ClientConfig;
use serde_json::{Value, json};

use self::nats::Subjects;
use self::rabbitmq::Queue;
use self::redis::Streams;
pub use self::sqs::Drained;
use self::sqs::Messages;
use crate::brokers::{Broker, Kind};
use crate::consume::{self, Follower, Meter, Record};

/// How long a server may be down while it is followed.
const PATIENCE: Duration = Duration::from_mins(4);

/// The pause between two reads of a server that does not announce new records.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The stream of NATS, and the queue of RabbitMQ, that takes everything.
const STREAM: &str = "OUTBOX";

/// The exchange that the relay publishes to unless a setting names another.
const EXCHANGE: &str = "outbox";

/// The stream of RabbitMQ beside the queue.
const LOG: &str = "OUTBOX.log";

/// How long NATS drops repeats, in nanoseconds: longer than any run.
const HOURS: u64 = 4 * 3_600_000_000_000;

/// Where the records of a destination can be read.
#[derive(Debug, Clone)]
pub enum Arrivals {
    /// Kafka, by a client's configuration.
    Kafka(Box<ClientConfig>),
    /// Another broker.
    Other(Place),
}

/// Where the records of a broker other than Kafka can be read.
#[derive(Debug, Clone)]
pub enum Place {
    /// Streams of Redis, on the nodes with these ports on 127.0.0.1: one server, or a cluster.
    Redis(Vec<u16>),
    /// The stream of NATS, on this port.
    Nats(u16),
    /// RabbitMQ on this port, and the queue that is followed there.
    RabbitMq(u16, &'static str),
    /// Queues of SQS' protocol.
    Queues(Arc<Drained>),
}

/// Each place, such as a partition, with the offset that its next record will have.
pub type Ends = HashMap<(String, i32), i64>;

/// Gives one record after the other. A record without a topic is a mark of [`Gauge::ends`], not a row's.
pub trait Follow: Send {
    /// The next record; `None` when none comes within `limit`.
    ///
    /// # Errors
    /// The server refuses, or is down for too long.
    fn next(&mut self, limit: Duration) -> Result<Option<Record>>;
}

/// Says how much has arrived.
pub trait Gauge: Send {
    /// For each place the offset behind its last record; a place without records may be missing. A follower sees every record before
    /// that offset, or a mark at it.
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
        Ok(Self::Other(match broker.kind() {
            Kind::Valkey => Place::Redis(vec![broker.port()]),
            Kind::Nats => {
                let subjects = format!("{prefix}.>");
                let more = json!({ "duplicate_window": HOURS });
                broker.jetstream(&Value::Null)?.create_stream(STREAM, &[&subjects], &more)?;
                Place::Nats(broker.port())
            }
            Kind::RabbitMq => {
                let mut amqp = broker.amqp()?;
                amqp.exchange(EXCHANGE, "topic")?;
                for (queue, sort) in [(STREAM, "quorum"), (LOG, "stream")].into_iter().take(1 + usize::from(again)) {
                    amqp.queue(queue, &[("x-queue-type", sort)])?;
                    amqp.bind(queue, EXCHANGE, &format!("{prefix}.#"))?;
                }
                Place::RabbitMq(broker.port(), if again { LOG } else { STREAM })
            }
            Kind::ElasticMq => Place::Queues(Arc::new(Drained::on(broker.port()))),
        }))
    }

    /// The address below `prefix` that rows with this route are published to.
    pub fn address(&self, prefix: &str, route: &str) -> String {
        match self.queues() {
            // The name of a queue has no dot except in `.fifo`, which makes it a queue that keeps an order.
            Some(_) => format!("{}-{route}.fifo", prefix.replace('.', "-")),
            None => format!("{prefix}.{route}"),
        }
    }

    fn queues(&self) -> Option<&Arc<Drained>> {
        if let Self::Other(Place::Queues(drained)) = self { Some(drained) } else { None }
    }

    /// Creates the addresses, if they are queues: a queue has to exist before it takes a message. Kafka's topics, which have settings,
    /// are created elsewhere.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn create(&self, topics: &[&str]) -> Result<()> {
        self.queues().map_or(Ok(()), |drained| topics.iter().try_for_each(|queue| drained.create(queue)))
    }

    /// Removes the addresses that [`Arrivals::create`] created.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn remove(&self, topics: &[&str]) -> Result<()> {
        self.queues().map_or(Ok(()), |drained| topics.iter().try_for_each(|queue| drained.delete(queue)))
    }

    /// Follows these topics from their first record on.
    ///
    /// # Errors
    /// The server does not answer, or a topic does not exist that has to.
    pub fn follow(&self, topics: &[String]) -> Result<Box<dyn Follow>> {
        match self {
            Self::Kafka(config) => {
                let names: Vec<&str> = topics.iter().map(String::as_str).collect();
                Ok(Box::new(Follower::from_beginning(config, &names)?))
            }
            Self::Other(place) => Ok(place.reader(topics)),
        }
    }

    /// A gauge of these topics.
    ///
    /// # Errors
    /// As [`Arrivals::follow`].
    pub fn gauge(&self, topics: &[String]) -> Result<Box<dyn Gauge>> {
        match self {
            Self::Kafka(config) => {
                let meter = |topic: &String| Ok((topic.clone(), Meter::new(config, std::slice::from_ref(topic))?));
                Ok(Box::new(topics.iter().map(meter).collect::<Result<Vec<_>>>()?))
            }
            Self::Other(place) => Ok(place.reader(topics)),
        }
    }

    /// Hands over all that is there now, while nobody writes. RabbitMQ's queue is empty afterwards.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn read(&self, topics: &[String], mut take: impl FnMut(Record)) -> Result<()> {
        let place = match self {
            Self::Kafka(config) => {
                let names: Vec<&str> = topics.iter().map(String::as_str).collect();
                return consume::read_topics(config, &names, take);
            }
            Self::Other(Place::RabbitMq(port, _)) => Place::RabbitMq(*port, STREAM),
            Self::Other(place) => place.clone(),
        };
        let (mut ends, mut follower) = (place.reader(topics).ends()?, place.reader(topics));
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

impl Place {
    fn reader(&self, topics: &[String]) -> Box<dyn Both> {
        match self {
            Self::Redis(ports) => Box::new(Reader::new(Streams::new(ports, topics))),
            Self::Nats(port) => Box::new(Reader::new(Subjects::new(*port, topics))),
            Self::RabbitMq(port, queue) => Box::new(Reader::new(Queue::new(*port, queue))),
            Self::Queues(drained) => Box::new(Reader::new(Messages::new(drained, topics))),
        }
    }
}

/// The reader of a broker other than Kafka, which follows records and counts them.
trait Both: Follow + Gauge {}

impl<S: Source> Both for Reader<S> {}

impl Follow for Follower {
    fn next(&mut self, limit: Duration) -> Result<Option<Record>> {
        Self::next(self, limit)
    }
}

/// The counts include the markers of transactions, which no follower sees.
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

/// The client that a [`Reader`] reads with. After an error the reader drops the connection and makes a new one.
trait Source: Send {
    /// The records that have come since the last call, or none. It waits for up to `limit` if the protocol can.
    fn read(&mut self, limit: Duration) -> Result<Vec<Record>>;

    /// See [`Gauge::ends`].
    fn ends(&mut self) -> Result<Ends>;

    /// See [`Gauge::count`].
    fn count(&mut self) -> Result<u64>;

    /// Drops the connection.
    fn disconnect(&mut self);
}

/// Reads from a source, and waits while its server is down.
struct Reader<S> {
    source: S,
    read: VecDeque<Record>,
    /// Since when the server is down.
    down: Option<Instant>,
}

impl<S: Source> Reader<S> {
    fn new(source: S) -> Self {
        Self { source, read: VecDeque::new(), down: None }
    }

    /// Asks again while the server is down.
    fn patiently<T>(&mut self, ask: impl Fn(&mut S) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        loop {
            let asked = ask(&mut self.source);
            if asked.is_ok() || began.elapsed() >= PATIENCE {
                return asked;
            }
            self.source.disconnect();
            std::thread::sleep(LOOK_AGAIN);
        }
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

impl<S: Source> Gauge for Reader<S> {
    fn ends(&mut self) -> Result<Ends> {
        self.patiently(S::ends)
    }

    fn count(&mut self) -> Result<u64> {
        self.patiently(S::count)
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

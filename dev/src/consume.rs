//! Reads topics as a consumer does.
//!
//! In: a client configuration and topics. Out: records with everything a consumer can see of them, each partition in
//! its order. All partitions are assigned, so there is no group to wait for and nothing is committed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::metadata::MetadataPartition;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// How long one request may take, and how long a broker may stay silent.
const PATIENCE: Duration = Duration::from_secs(30);

/// After that long without an answer a new client takes the place of the old one. librdkafka drops all its brokers when
/// metadata name none, as those of a cluster's only broker may while it starts, and is not answered again by itself.
const LOST: Duration = Duration::from_secs(10);

/// Within this time each of several brokers knows a topic that one of them has created.
const SPREAD: Duration = Duration::from_secs(20);

/// A transaction that is still open after this time will not be marked as committed soon.
const OPEN: Duration = Duration::from_secs(10);

/// A record as a consumer receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its offset in the partition.
    pub offset: i64,
    /// Milliseconds since the epoch: `CreateTime`, or `LogAppendTime` where the topic says so.
    pub timestamp: Option<i64>,
    /// Its key; `None`: null.
    pub key: Option<Vec<u8>>,
    /// Its value; `None`: null.
    pub value: Option<Vec<u8>>,
    /// Its headers in their order; a value of `None` is null.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// The first header of that name, as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// The key as text; empty when it is null.
    pub fn key_text(&self) -> String {
        String::from_utf8_lossy(self.key.as_deref().unwrap_or_default()).into_owned()
    }

    /// The value as text; empty when it is null.
    pub fn value_text(&self) -> String {
        String::from_utf8_lossy(self.value.as_deref().unwrap_or_default()).into_owned()
    }

    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(|headers| headers.iter()).into_iter().flatten();
        let headers = headers.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)));
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            timestamp: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers.collect(),
        }
    }
}

/// Follows topics from their beginning (or end) for as long as it is asked.
pub struct Follower {
    config: ClientConfig,
    state: RefCell<Following>,
}

struct Following {
    consumer: BaseConsumer,
    /// The next offset of each partition of each topic.
    places: HashMap<String, HashMap<i32, Offset>>,
    /// When the last record came, or the consumer was made.
    heard: Instant,
}

impl Follower {
    /// Starts at the first record of every partition. The topics must exist.
    ///
    /// # Errors
    /// A topic does not exist, or the brokers do not answer.
    pub fn from_beginning(config: &ClientConfig, topics: &[&str]) -> Result<Self> {
        // Without events of partitions' ends: more records will come.
        let consumer = consumer(config, false)?;
        let mut places: HashMap<String, HashMap<i32, Offset>> = HashMap::new();
        for topic in topics {
            for partition in partitions(&consumer, topic)? {
                places.entry((*topic).to_owned()).or_default().insert(partition, Offset::Beginning);
            }
        }
        let state = Following { consumer, places, heard: Instant::now() };
        state.assign()?;
        Ok(Self { config: config.clone(), state: RefCell::new(state) })
    }

    /// The next record; `None` when none comes within `limit`.
    ///
    /// # Errors
    /// The brokers refuse.
    pub fn next(&self, limit: Duration) -> Result<Option<Record>> {
        let mut state = self.state.borrow_mut();
        if state.heard.elapsed() > LOST {
            state.consumer = consumer(&self.config, false)?;
            state.heard = Instant::now();
            state.assign()?;
        }
        let record = match state.consumer.poll(limit) {
            None => None,
            Some(Ok(message)) => Some(Record::of(&message)),
            Some(Err(error)) if is_passing(&error) => None,
            Some(Err(error)) => return Err(error.into()),
        };
        if let Some(record) = &record {
            state.heard = Instant::now();
            let place = state.places.get_mut(&record.topic).and_then(|places| places.get_mut(&record.partition));
            *place.with_context(|| format!("a record of {} that was not asked for", record.topic))? =
                Offset::Offset(record.offset + 1);
        }
        Ok(record)
    }

    /// Gathers records until `enough` says so of what has come.
    ///
    /// # Errors
    /// It does not within `limit`; the message says how many came.
    pub fn read_until(&self, limit: Duration, mut enough: impl FnMut(&[Record]) -> bool) -> Result<Vec<Record>> {
        let deadline = Instant::now() + limit;
        let mut records = Vec::new();
        while !enough(&records) {
            if Instant::now() >= deadline {
                bail!("after {limit:?} there are only {} records", records.len());
            }
            records.extend(self.next(Duration::from_millis(100))?);
        }
        Ok(records)
    }
}

impl Following {
    fn assign(&self) -> Result<()> {
        let mut list = TopicPartitionList::new();
        for (topic, places) in &self.places {
            for (partition, offset) in places {
                list.add_partition_offset(topic, *partition, *offset)?;
            }
        }
        Ok(self.consumer.assign(&list)?)
    }
}

/// Reads what the topics hold now; while they are read, nobody may write to several of them. A topic that does not exist
/// holds nothing.
///
/// # Errors
/// The brokers do not answer.
pub fn read_to_end(config: &ClientConfig, topics: &[&str]) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    read_topics(config, topics, |record| records.push(record))?;
    Ok(records)
}

/// Hands each record that a topic holds now to `take`, each partition in its order.
///
/// # Errors
/// The brokers do not answer.
pub fn read_topic(config: &ClientConfig, topic: &str, take: impl FnMut(Record)) -> Result<()> {
    read_topics(config, &[topic], take)
}

/// As [`read_topic`] for many at once, into which nobody writes meanwhile.
///
/// # Errors
/// The brokers do not answer.
pub fn read_topics(config: &ClientConfig, topics: &[&str], mut take: impl FnMut(Record)) -> Result<()> {
    let consumer = consumer(config, true)?;
    let mut all = Vec::new();
    for topic in topics {
        all.extend(partitions_if_there(&consumer, topic)?.into_iter().map(|partition| (*topic, partition)));
    }
    // A consumer of ten thousand partitions takes minutes to begin.
    all.chunks(1000).try_for_each(|some| read_partitions(config, &consumer, some, &mut take))
}

fn read_partitions(
    config: &ClientConfig,
    consumer: &BaseConsumer,
    partitions: &[(&str, i32)],
    take: &mut impl FnMut(Record),
) -> Result<()> {
    let mut list = TopicPartitionList::new();
    // The event of an end has the partition's number, not its topic: this counts the topics whose partition is not read to its end.
    let mut unread: BTreeMap<i32, usize> = BTreeMap::new();
    for (topic, partition) in partitions {
        list.add_partition_offset(topic, *partition, Offset::Beginning)?;
        *unread.entry(*partition).or_default() += 1;
    }
    wait_for_markers(config, &list)?;
    consumer.assign(&list)?;
    let mut last_news = Instant::now();
    while unread.values().any(|topics| *topics > 0) {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => take(Record::of(&message)),
            // Not the high watermark: the last offset of a transaction is a marker that never arrives as a record.
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                if let Some(left) = unread.get_mut(&partition) {
                    *left = left.saturating_sub(1);
                }
            }
            Some(Err(error)) if !is_passing(&error) => return Err(error.into()),
            Some(Err(_)) | None if last_news.elapsed() > PATIENCE => {
                let topics: BTreeSet<_> = partitions.iter().map(|(topic, _)| topic).collect();
                bail!("no news of {topics:?} for {PATIENCE:?}, partitions {unread:?} not read to the end");
            }
            Some(Err(_)) | None => continue,
        }
        last_news = Instant::now();
    }
    Ok(())
}

/// Waits until no transaction is open, at most [`OPEN`]. Kafka answers a commit when it is decided, and marks it in each partition
/// afterwards; consumers of what is committed get up to the first that has no marker yet. Those of everything have nothing to wait for.
fn wait_for_markers(config: &ClientConfig, partitions: &TopicPartitionList) -> Result<()> {
    const EVERYTHING: &str = "read_uncommitted";
    if config.get("isolation.level") == Some(EVERYTHING) {
        return Ok(());
    }
    let mut of_everything = config.clone();
    of_everything.set("isolation.level", EVERYTHING);
    let meter = |config| Meter::of(config, consumer(config, false)?, partitions.clone());
    let (committed, written, began) = (meter(config)?, meter(&of_everything)?, Instant::now());
    while committed.ends()? != written.ends()? && began.elapsed() < OPEN {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Asks again and again how many records topics hold, with one request each time.
pub struct Meter {
    config: ClientConfig,
    consumer: RefCell<BaseConsumer>,
    ends: TopicPartitionList,
}

impl Meter {
    /// Connects. The topics must exist.
    ///
    /// # Errors
    /// One does not, or the brokers do not answer.
    pub fn new(config: &ClientConfig, topics: &[String]) -> Result<Self> {
        let consumer = consumer(config, false)?;
        let mut list = TopicPartitionList::new();
        for topic in topics {
            for partition in partitions(&consumer, topic)? {
                list.add_partition(topic, partition);
            }
        }
        Self::of(config, consumer, list)
    }

    fn of(config: &ClientConfig, consumer: BaseConsumer, mut ends: TopicPartitionList) -> Result<Self> {
        ends.set_all_offsets(Offset::End)?;
        Ok(Self { config: config.clone(), consumer: RefCell::new(consumer), ends })
    }

    /// The records in all partitions, by their offsets; the markers of transactions count.
    ///
    /// # Errors
    /// The brokers do not answer.
    pub fn count(&self) -> Result<i64> {
        Ok(self.ends()?.iter().map(|(_, end)| end).sum())
    }

    /// Each partition with the offset that its next record will have.
    ///
    /// # Errors
    /// The brokers do not answer.
    pub fn ends(&self) -> Result<Vec<(i32, i64)>> {
        let deadline = Instant::now() + 2 * PATIENCE;
        let mut asked = Instant::now();
        loop {
            match self.try_ends() {
                Err(error) if is_passing(&error) && Instant::now() < deadline => {
                    if asked.elapsed() >= LOST {
                        *self.consumer.borrow_mut() = consumer(&self.config, false)?;
                        asked = Instant::now();
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                counted => return counted.context("cannot ask how much the topic holds"),
            }
        }
    }

    fn try_ends(&self) -> Result<Vec<(i32, i64)>, KafkaError> {
        let ends = self.consumer.borrow().offsets_for_times(self.ends.clone(), LOST)?;
        let ends = ends.elements().into_iter().map(|end| {
            end.error()?;
            Ok((end.partition(), end.offset().to_raw().unwrap_or_default()))
        });
        ends.collect()
    }
}

/// Writes one record.
///
/// # Errors
/// The brokers do not take it.
pub fn write(config: &ClientConfig, topic: &str, key: &str, value: &str) -> Result<()> {
    let producer: BaseProducer = config.create()?;
    producer.send(BaseRecord::to(topic).key(key).payload(value)).map_err(|(error, _)| error)?;
    Ok(producer.flush(PATIENCE)?)
}

/// How many records the topic's partitions hold now; 0 when it does not exist.
///
/// # Errors
/// The brokers do not answer.
pub fn count(config: &ClientConfig, topic: &str) -> Result<i64> {
    if partitions_if_there(&consumer(config, false)?, topic)?.is_empty() {
        return Ok(0);
    }
    Meter::new(config, &[topic.to_owned()])?.count()
}

fn consumer(config: &ClientConfig, says_ends: bool) -> Result<BaseConsumer> {
    let mut config = config.clone();
    config
        .set("group.id", "walrelay-dev")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", says_ends.to_string())
        .set("auto.offset.reset", "earliest")
        .set("allow.auto.create.topics", "false")
        .set("fetch.wait.max.ms", "50")
        .set("reconnect.backoff.max.ms", "500");
    Ok(config.create()?)
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> Result<Vec<i32>> {
    let deadline = Instant::now() + SPREAD;
    loop {
        let partitions = partitions_if_there(consumer, topic)?;
        if !partitions.is_empty() {
            return Ok(partitions);
        }
        if Instant::now() >= deadline {
            return Err(anyhow!("there is no topic {topic}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The partitions of a topic; none if there is no such topic.
fn partitions_if_there(consumer: &BaseConsumer, topic: &str) -> Result<Vec<i32>> {
    let asked = || format!("cannot ask for the partitions of topic {topic}");
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).with_context(asked)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(Vec::new()) };
    match found.error().map(Code::from) {
        None => Ok(found.partitions().iter().map(MetadataPartition::id).collect()),
        Some(Code::UnknownTopicOrPartition) => Ok(Vec::new()),
        Some(code) => Err(KafkaError::MetadataFetch(code)).with_context(asked),
    }
}

/// Whether an error passes by itself: brokers that come and go, or have not heard of a new topic yet; partitions whose leader is being
/// chosen.
fn is_passing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::OperationTimedOut
                | Code::Resolve
                | Code::NotLeaderForPartition
                | Code::LeaderNotAvailable
                | Code::FencedLeaderEpoch
                | Code::UnknownLeaderEpoch
                | Code::OffsetNotAvailable
                | Code::ReplicaNotAvailable
                | Code::UnknownTopicOrPartition
                // Kafka 3.3 says so of all topics for a moment after its restart. These two are the client's own words for that.
                | Code::UnknownTopic
                | Code::UnknownPartition
                // The client has let go of a broker that it asked, such as one that it knew by its first address alone.
                | Code::DestroyBroker
        )
    )
}

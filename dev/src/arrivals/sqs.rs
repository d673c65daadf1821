//! The messages that were received from queues of SQS' protocol, kept in memory: a queue gives each message to one reader, and here
//! several readers want all of them.
//!
//! In: a port on loopback, names of queues. Out: the records of each queue from the first on, for each reader; those of a group in
//! their order. A message that is received again, since its deletion was lost, counts once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;

use super::{Ends, Source};
use crate::brokers::{Queues, Received, SqsMessage};
use crate::consume::Record;

/// A message that is received and not deleted can be received again after this time. Until then its group gives no other message.
const HIDDEN: Duration = Duration::from_secs(3);

/// How long an answer may take. ElasticMQ, just started again, may leave a request for 20 s, and answers the next one at once.
const ANSWERED_WITHIN: Duration = Duration::from_secs(4);

/// The queues of one server.
#[derive(Debug)]
pub struct Drained {
    queues: Queues,
    logs: Mutex<HashMap<String, Log>>,
}

/// What one queue has given away.
#[derive(Debug, Default)]
struct Log {
    url: String,
    records: Vec<Record>,
    seen: HashSet<String>,
}

impl Drained {
    /// The queues of the server on this port of 127.0.0.1.
    pub fn on(port: u16) -> Self {
        Self { queues: Queues::on(port).asked_within(ANSWERED_WITHIN), logs: Mutex::default() }
    }

    /// Creates a FIFO queue.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub fn create(&self, queue: &str) -> Result<()> {
        // Debezium's messages have no id by which the queue could know a repeat.
        self.queues.create(queue, &[("ContentBasedDeduplication", "true")])
    }

    /// Deletes a queue with its messages, and forgets what it has given away.
    ///
    /// # Errors
    /// As [`Drained::create`].
    pub fn delete(&self, queue: &str) -> Result<()> {
        self.logs.lock().remove(queue);
        self.queues.delete(queue)
    }

    /// The records of a queue behind the first `known`. If there are none yet, it receives once more.
    fn behind(&self, queue: &str, known: usize) -> Result<Vec<Record>> {
        let mut logs = self.logs.lock();
        let log = self.log(&mut logs, queue)?;
        if log.records.len() == known {
            self.draw(log, queue)?;
        }
        Ok(log.records.get(known..).unwrap_or_default().to_vec())
    }

    /// Receives all that a queue has, and says how many records it has taken since its creation.
    fn exhausted(&self, queue: &str) -> Result<usize> {
        loop {
            let mut logs = self.logs.lock();
            let log = self.log(&mut logs, queue)?;
            if self.draw(log, queue)? == 0 && self.queues.left(&log.url)? == 0 {
                return Ok(log.records.len());
            }
        }
    }

    /// About how many records a queue has taken since its creation.
    fn count(&self, queue: &str) -> Result<u64> {
        let mut logs = self.logs.lock();
        let log = self.log(&mut logs, queue)?;
        Ok(self.queues.left(&log.url)? + log.records.len() as u64)
    }

    fn log<'a>(&self, logs: &'a mut HashMap<String, Log>, queue: &str) -> Result<&'a mut Log> {
        if !logs.contains_key(queue) {
            let url = self.queues.url(queue)?;
            logs.insert(queue.to_owned(), Log { url, ..Log::default() });
        }
        logs.get_mut(queue).context("it was put there")
    }

    /// Receives some messages, and deletes them in the queue once they are kept here. Returns how many there were.
    fn draw(&self, log: &mut Log, queue: &str) -> Result<usize> {
        let received = self.queues.receive(&log.url, HIDDEN)?;
        for one in &received {
            if log.seen.insert(one.id.clone()) {
                let offset = i64::try_from(log.records.len()).unwrap_or(i64::MAX);
                log.records.push(record(queue, offset, one));
            }
        }
        if !received.is_empty() {
            self.queues.remove(&log.url, &received)?;
        }
        Ok(received.len())
    }
}

fn record(queue: &str, offset: i64, received: &Received) -> Record {
    let SqsMessage { body, attributes, group, .. } = &received.message;
    let envelope = if attributes.is_empty() { enveloped(body) } else { None };
    let (body, attributes) = envelope.unwrap_or_else(|| (body.clone(), attributes.clone()));
    let header = |(name, value): (&String, &String)| (name.clone(), Some(value.clone().into_bytes()));
    Record {
        topic: queue.to_owned(),
        partition: 0,
        offset,
        timestamp: received.sent_millis,
        key: Some(attributes.get("key").unwrap_or(group).clone().into_bytes()),
        value: Some(body.into_bytes()),
        headers: attributes.iter().filter(|(name, _)| *name != "key").map(header).collect(),
    }
}

/// The payload, and what stands beside it, of an envelope as Debezium Server's sink writes one: it writes no attributes.
fn enveloped(body: &str) -> Option<(String, BTreeMap<String, String>)> {
    let mut members: BTreeMap<String, String> = serde_json::from_str(body).ok()?;
    let payload = members.remove("payload")?;
    Some((payload, members))
}

/// Queues of SQS' protocol, each with how many of its records were read.
pub(super) struct Messages {
    drained: Arc<Drained>,
    each: Vec<(String, usize)>,
}

impl Messages {
    /// From the first record of each queue on.
    pub(super) fn new(drained: &Arc<Drained>, topics: &[String]) -> Self {
        Self { drained: Arc::clone(drained), each: topics.iter().map(|topic| (topic.clone(), 0)).collect() }
    }
}

impl Source for Messages {
    fn read(&mut self, _limit: Duration) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for (queue, known) in &mut self.each {
            let more = self.drained.behind(queue, *known)?;
            *known += more.len();
            records.extend(more);
        }
        Ok(records)
    }

    fn ends(&mut self) -> Result<Ends> {
        let end = |queue: &String| Ok(((queue.clone(), 0), i64::try_from(self.drained.exhausted(queue)?)?));
        self.each.iter().map(|(queue, _)| end(queue)).collect()
    }

    fn count(&mut self) -> Result<u64> {
        self.each.iter().map(|(queue, _)| self.drained.count(queue)).sum()
    }

    fn disconnect(&mut self) {}
}

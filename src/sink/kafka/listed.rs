//! Which topics transactions are written to, kept in the topic of progress before the first record goes to each.
//!
//! ```text
//!  key  <transactional id> <topic>      value  {}
//! ```
//!
//! Whoever takes the transactions over looks there for what is left open ([`super::cover`]). No transaction is
//! needed for that, and none would do: a topic has to be known although the transaction that wrote to it first was never committed.
//! In: a topic. Out: whether it is kept. A step takes a tenth of a second.
//! Invariant: what writes has the credentials of the last [`FRESH_FOR`]. Nobody renews those of a client that is seldom needed.

use super::progress::{Kept, PARTITION, SLICE, TOPIC};
use super::retire::retire_producer;
use super::settings::Settings;
use super::transactions::{broken, client};
use crate::sink::Failure;
use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, NoCustomPartitioner, Producer, ProducerContext};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A client that was made, or was given its record, longer ago is replaced. What it has not written may be written twice: that says the
/// same.
const FRESH_FOR: Duration = Duration::from_secs(30);

/// The topics that are kept.
#[derive(Default)]
pub(super) struct Listed {
    topics: BTreeSet<String>,
    /// And since when it is there, or has its record.
    writer: Option<(BaseProducer<Word>, Instant)>,
    /// On its way.
    writing: Option<String>,
}

/// What became of the record.
#[derive(Default)]
pub(super) struct Word(Mutex<Option<Result<(), KafkaError>>>);

impl ClientContext for Word {}

impl ProducerContext<NoCustomPartitioner> for Word {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let outcome = result.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }
}

impl Listed {
    pub(super) fn topics(&self) -> &BTreeSet<String> {
        &self.topics
    }

    /// What was read in the topic of progress.
    pub(super) fn read(&mut self, kept: &Kept, name: &str) {
        let prefix = key(name, "");
        self.topics.extend(kept.keys().filter_map(|key| key.strip_prefix(&prefix)).map(str::to_owned));
    }

    /// Whether the topic is kept; sees to it where it is not.
    pub(super) fn keep(&mut self, topic: &str, settings: &Settings, name: &str) -> Result<bool, Failure> {
        if self.topics.contains(topic) {
            return Ok(true);
        }
        if let Some((old, _)) = self.writer.take_if(|(_, since)| since.elapsed() >= FRESH_FOR) {
            retire_producer(old);
            self.writing = None;
        }
        let (writer, since) = if let Some(writer) = &mut self.writer {
            writer
        } else {
            let writer = settings.writer(Word::default()).map_err(|error| client(error.to_string()))?;
            self.writer.insert((writer, Instant::now()))
        };
        if self.writing.is_none() {
            let key = key(name, topic);
            let record = BaseRecord::to(TOPIC).key(&key).payload("{}").partition(PARTITION);
            writer.send(record).map_err(|(error, _)| broken("write its progress", &error))?;
            (self.writing, *since) = (Some(topic.to_owned()), Instant::now());
        }
        if writer.flush(SLICE).is_err() {
            return Ok(false);
        }
        let outcome = writer.context().0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let written = self.writing.take();
        match outcome {
            Some(Ok(())) => self.topics.extend(written),
            Some(Err(error)) => return Err(broken("write its progress", &error)),
            // Tried again.
            None => {}
        }
        Ok(self.topics.contains(topic))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.writer.take().into_iter().for_each(|(writer, _)| retire_producer(writer));
    }
}

/// A topic's name has no blank in it, nor has a transactional id.
fn key(name: &str, topic: &str) -> String {
    format!("{name} {topic}")
}

#[cfg(test)]
mod tests {
    use super::super::progress::Value;
    use super::*;

    #[test]
    fn the_topics_of_a_name_are_those_behind_it_and_its_blank() {
        let keys = ["walrelay-7-shop orders", "walrelay-7-shop a.b", "walrelay-7-shop2 other", "7/shop"];
        let kept = keys.map(|key| (key.to_owned(), Value::default())).into();
        let mut listed = Listed::default();
        listed.read(&kept, "walrelay-7-shop");
        assert!(listed.topics().iter().eq(["a.b", "orders"]));
    }
}

//! [`Collector`]: the sink that keeps what each row gives, and acknowledges at once.
//!
//! In: the records that the relay's loop makes of rows, by the code of `run`. Out: [`Expected`] records for the matcher, over a channel, in the
//! order of the rows. Nothing is published.
//!
//! Invariant: a record is acknowledged only once it is in the channel. So every row in front of the confirmed position is there.

use super::comparison::{Hashes, as_read, id_of};
use super::matcher::Expected;
use crate::commands::run::RunRequest;
use crate::sink::destination::ReadBack;
use crate::sink::null::NullSink;
use crate::sink::{Enqueue, Failure, InFlight, OwnedRecord, Record, Report, Sink, Tag};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

/// The most records that wait for room in the channel.
const MOST_WAITING: usize = 10_000;

/// The numbers of topics, which both sides give out.
#[derive(Debug, Clone, Default)]
pub(super) struct TopicNumbers(Arc<Mutex<Vec<String>>>);

impl TopicNumbers {
    /// The number of a topic, which gets one if it has none.
    pub(super) fn number(&self, topic: &str) -> u32 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.iter().position(|known| known == topic).unwrap_or_else(|| {
            all.push(topic.to_owned());
            all.len() - 1
        });
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// The name of a topic.
    pub(super) fn name(&self, number: u32) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(number as usize).cloned().unwrap_or_default()
    }
}

/// Numbers of topics that one side has asked for. It spares the lock.
#[derive(Debug, Default)]
pub(super) struct KnownTopics {
    all: TopicNumbers,
    known: HashMap<String, u32>,
}

impl KnownTopics {
    pub(super) fn of(all: &TopicNumbers) -> Self {
        Self { all: all.clone(), known: HashMap::new() }
    }

    /// The number of a topic.
    pub(super) fn number(&mut self, topic: &str) -> u32 {
        if let Some(number) = self.known.get(topic) {
            return *number;
        }
        let number = self.all.number(topic);
        self.known.insert(topic.to_owned(), number);
        number
    }
}

/// The sink.
pub(super) struct Collector {
    rows: SyncSender<Vec<Expected>>,
    topics: KnownTopics,
    dead_letter_topic: String,
    /// How the records will come back.
    read_back: ReadBack,
    /// Whether times are compared.
    with_time: bool,
    /// Whether the matcher has room for copies of records.
    with_copies: Arc<AtomicBool>,
    waiting: Vec<Expected>,
    acknowledges: NullSink,
}

impl Collector {
    /// A sink that sends to `rows`.
    pub(super) fn new(
        rows: SyncSender<Vec<Expected>>,
        topics: &TopicNumbers,
        run: &RunRequest,
        with_time: bool,
        with_copies: &Arc<AtomicBool>,
    ) -> Self {
        Self {
            rows,
            topics: KnownTopics::of(topics),
            dead_letter_topic: run.bad_rows.dead_letter_topic.clone(),
            read_back: run.destination.reads_back(),
            with_time,
            with_copies: Arc::clone(with_copies),
            waiting: Vec::new(),
            acknowledges: NullSink::default(),
        }
    }

    /// The topic of dead letters.
    pub(super) fn dead_letter_topic(&self) -> &str {
        &self.dead_letter_topic
    }
}

impl Sink for Collector {
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        if self.waiting.len() >= MOST_WAITING {
            return Enqueue::Full;
        }
        let topic = self.topics.number(record.topic);
        let origin = tag.origin;
        let Self { with_time, with_copies, dead_letter_topic, waiting, .. } = self;
        as_read(self.read_back, record, |record| {
            waiting.push(Expected {
                position: origin.position,
                source: origin.source,
                topic,
                hashes: Hashes::of(topic, record),
                id: id_of(record).unwrap_or_default().into(),
                partition: record.partition,
                time: with_time.then_some(record.timestamp_millis),
                is_bad: record.topic == *dead_letter_topic,
                copy: with_copies.load(Ordering::Relaxed).then(|| Box::new(OwnedRecord::of(record))),
            });
        });
        self.acknowledges.try_enqueue(record, tag)
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        if !self.waiting.is_empty() {
            match self.rows.try_send(std::mem::take(&mut self.waiting)) {
                Ok(()) => {}
                // The reader of the channel has ended, and ends the loop.
                Err(TrySendError::Full(rows) | TrySendError::Disconnected(rows)) => {
                    self.waiting = rows;
                    return;
                }
            }
        }
        self.acknowledges.poll(each);
    }

    fn in_flight(&self) -> InFlight {
        self.acknowledges.in_flight()
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.acknowledges.restart()
    }

    fn problem(&self) -> Option<String> {
        None
    }
}

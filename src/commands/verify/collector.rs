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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The most records that wait for room in the channel.
const MOST_WAITING: usize = 10_000;

/// The most batches of rows in the channel.
const BATCHES: usize = 256;

/// A channel of rows, which has room for rows of `most` bytes. The loop waits while there are more.
pub(super) fn rows(most: u64) -> (RowSender, RowReceiver) {
    let (sender, receiver) = sync_channel(BATCHES);
    let under_way = Arc::<AtomicU64>::default();
    let sender = RowSender { sender, under_way: Arc::clone(&under_way), most };
    (sender, RowReceiver { receiver, under_way })
}

/// The end of the channel into which rows go.
pub(super) struct RowSender {
    sender: SyncSender<Vec<Expected>>,
    /// The bytes of rows that are in the channel.
    under_way: Arc<AtomicU64>,
    most: u64,
}

impl RowSender {
    /// The bytes of rows for which there is room.
    fn room(&self) -> u64 {
        self.most.saturating_sub(self.under_way.load(Ordering::Relaxed))
    }

    /// Puts rows of so many bytes into the channel.
    ///
    /// # Errors
    /// The rows, since the channel is full or nobody takes them any more.
    fn try_send(&self, rows: Vec<Expected>, bytes: u64) -> Result<(), Vec<Expected>> {
        // They are counted first: as soon as they are in the channel, they may be taken.
        self.under_way.fetch_add(bytes, Ordering::Relaxed);
        self.sender.try_send(rows).map_err(|error| {
            self.under_way.fetch_sub(bytes, Ordering::Relaxed);
            let (TrySendError::Full(rows) | TrySendError::Disconnected(rows)) = error;
            rows
        })
    }
}

/// The end from which they are taken.
pub(super) struct RowReceiver {
    receiver: Receiver<Vec<Expected>>,
    under_way: Arc<AtomicU64>,
}

impl RowReceiver {
    /// The next rows, if there are any.
    ///
    /// # Errors
    /// There are none, or there will be none.
    pub(super) fn now(&self) -> Result<Vec<Expected>, TryRecvError> {
        self.receiver.try_recv().inspect(|rows| self.taken(rows))
    }

    /// The next rows, if some come within `patience`.
    pub(super) fn within(&self, patience: Duration) -> Option<Vec<Expected>> {
        self.receiver.recv_timeout(patience).ok().inspect(|rows| self.taken(rows))
    }

    /// The next rows. `None`: there will be none.
    pub(super) fn wait(&self) -> Option<Vec<Expected>> {
        self.receiver.recv().ok().inspect(|rows| self.taken(rows))
    }

    /// The bytes of rows that are in the channel.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    fn taken(&self, rows: &[Expected]) {
        let bytes: usize = rows.iter().map(Expected::bytes).sum();
        self.under_way.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

/// The numbers of topics, which both sides give out.
#[derive(Debug, Clone, Default)]
pub(super) struct TopicNumbers(Arc<Mutex<Numbered>>);

#[derive(Debug, Default)]
struct Numbered {
    numbers: HashMap<String, u32>,
    /// The index is the number.
    names: Vec<String>,
}

impl TopicNumbers {
    /// The number of a topic, which gets one if it has none.
    pub(super) fn number(&self, topic: &str) -> u32 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Numbered { numbers, names } = &mut *all;
        if let Some(number) = numbers.get(topic) {
            return *number;
        }
        let number = u32::try_from(names.len()).unwrap_or(u32::MAX);
        numbers.insert(topic.to_owned(), number);
        names.push(topic.to_owned());
        number
    }

    /// The name of a topic.
    pub(super) fn name(&self, number: u32) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.names.get(number as usize).cloned().unwrap_or_default()
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
    rows: RowSender,
    topics: KnownTopics,
    dead_letter_topic: String,
    /// How the records will come back.
    read_back: ReadBack,
    /// Whether times are compared.
    with_time: bool,
    /// Whether the matcher has room for copies of records.
    with_copies: Arc<AtomicBool>,
    /// Rows that are not in the channel yet.
    waiting: Vec<Expected>,
    waiting_bytes: u64,
    acknowledges: NullSink,
}

impl Collector {
    /// A sink that sends to `rows`.
    pub(super) fn new(
        rows: RowSender,
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
            waiting_bytes: 0,
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
        if self.waiting.len() >= MOST_WAITING || self.waiting_bytes >= self.rows.room() {
            return Enqueue::Full;
        }
        let topic = self.topics.number(record.topic);
        let origin = tag.origin;
        let Self { with_time, with_copies, dead_letter_topic, waiting, waiting_bytes, .. } = self;
        as_read(self.read_back, record, |record| {
            let row = Expected {
                position: origin.position,
                source: origin.source,
                topic,
                hashes: Hashes::of(topic, record),
                id: id_of(record).unwrap_or_default().into(),
                partition: record.partition,
                time: with_time.then_some(record.timestamp_millis),
                is_bad: record.topic == *dead_letter_topic,
                copy: with_copies.load(Ordering::Relaxed).then(|| Box::new(OwnedRecord::of(record))),
            };
            *waiting_bytes += row.bytes() as u64;
            waiting.push(row);
        });
        self.acknowledges.try_enqueue(record, tag)
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        if !self.waiting.is_empty() {
            // If the reader of the channel has ended, it ends the loop.
            if let Err(rows) = self.rows.try_send(std::mem::take(&mut self.waiting), self.waiting_bytes) {
                self.waiting = rows;
                return;
            }
            self.waiting_bytes = 0;
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

#[cfg(test)]
mod tests {
    use super::super::matcher::tests::row;
    use super::*;

    #[test]
    fn the_channel_counts_the_bytes_of_rows_until_they_are_taken() {
        let (sender, receiver) = rows(1000);
        let of_size = |size: usize| Expected { id: vec![0; size].into(), copy: None, ..row(1, "k", "a") };
        let all = vec![of_size(900), of_size(100)];
        let bytes: u64 = all.iter().map(|row| row.bytes() as u64).sum();
        assert_eq!(bytes, 1000 + 2 * size_of::<Expected>() as u64);
        assert!(sender.try_send(all, bytes).is_ok());
        assert_eq!((receiver.under_way(), sender.room()), (bytes, 0));
        assert_eq!((receiver.now().unwrap().len(), receiver.under_way(), sender.room()), (2, 0, 1000));
        assert!(receiver.now().is_err() && receiver.within(Duration::ZERO).is_none());
    }

    #[test]
    fn rows_for_which_the_channel_has_no_place_come_back_and_are_not_counted() {
        let (sender, receiver) = rows(1000);
        let one = || vec![row(1, "k", "a")];
        let bytes = one()[0].bytes() as u64;
        (0..BATCHES).for_each(|_| assert!(sender.try_send(Vec::new(), 0).is_ok()));
        assert_eq!(sender.try_send(one(), bytes).map_err(|rows| rows.len()), Err(1));
        assert_eq!((receiver.under_way(), sender.room()), (0, 1000));
        drop(receiver);
        assert_eq!(sender.try_send(one(), bytes).map_err(|rows| rows.len()), Err(1));
        assert_eq!(sender.room(), 1000);
    }

    #[test]
    fn both_sides_give_a_topic_the_same_number_and_the_number_its_name() {
        let all = TopicNumbers::default();
        let (mut one, mut other) = (KnownTopics::of(&all), KnownTopics::of(&all));
        assert_eq!((one.number("a"), other.number("b"), other.number("a"), one.number("b")), (0, 1, 0, 1));
        assert_eq!((all.name(0), all.name(1), all.name(2)), ("a".into(), "b".into(), String::new()));
    }
}

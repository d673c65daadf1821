//! [`Topics`]: the topics that the cluster has confirmed, their partitions, and the choice of a record's partition.
//!
//! The sink chooses the partition, not librdkafka: it has to know the partition before it may hand a record to a client. Records with a key
//! go to the same partition as by librdkafka's partitioners, and so by Java's. Records without a key stay with one partition for the length
//! of a batch, as by Java's, and avoid partitions that have to wait.
//!
//! In: names, the cluster's partition counts. Out: indexes into [`Partitions`]. It asks nobody.
//! Specification: librdkafka's CONFIGURATION.md, `partitioner`; KIP-480.

use super::partitioner::Partitioner;
use super::partitions::{PartitionPlace, Partitions};
use crate::sink::Record;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Records without a key go to one partition for so many bytes, which is the size of a Java client's batch.
const STICKY_BYTES: usize = 16_384;

/// After this time the sink asks again for a topic's partitions, as librdkafka does (`topic.metadata.refresh.interval.ms`).
const ASK_AGAIN: Duration = Duration::from_mins(5);

/// If several partitions of a topic send records again within this time, the sink asks the cluster once. The pause between two attempts of
/// a partition is longer.
const SHARED: Duration = Duration::from_millis(500);

/// Every broker knows an added partition within this time.
const PARTITIONS_KNOWN_WITHIN: Duration = Duration::from_secs(1);

/// If no record has asked for a missing partition for so long, it may have been added meanwhile.
const ASKED_SELDOM: Duration = Duration::from_mins(1);

/// All topics that records went to.
pub(super) struct Topics {
    list: Vec<KnownTopic>,
    numbers: HashMap<String, u32>,
    /// The name and number of the last record's topic, which is mostly the next one's too. Before the first record, the name is empty.
    last: (String, u32),
    partitioner: Partitioner,
    producers: u8,
}

struct KnownTopic {
    name: String,
    /// The index in [`Partitions`] of each partition.
    places: Vec<u32>,
    /// How many partitions the topic has, by the cluster's last answer. 0: the sink has to ask.
    count: i32,
    /// When the sink last asked for the topic.
    last_question: Instant,
    /// When the sink last asked because a record was to be sent again.
    last_retry: Option<Instant>,
    /// The present partition for records without a key, and for how many more bytes.
    sticky: (i32, usize),
}

impl Topics {
    pub(super) fn new(partitioner: Partitioner, producers: u8) -> Self {
        Self { list: Vec::new(), numbers: HashMap::new(), last: (String::new(), 0), partitioner, producers }
    }

    /// Whether this is the last record's topic.
    #[inline]
    pub(super) fn is_last(&self, topic: &str) -> bool {
        self.last.0 == topic
    }

    /// Makes this topic the present one. Returns whether the cluster has confirmed it.
    pub(super) fn turn_to(&mut self, topic: &str) -> bool {
        let Some(number) = self.numbers.get(topic).copied() else { return false };
        if self.list.get(number as usize).is_none_or(|topic| topic.count == 0) {
            return false;
        }
        topic.clone_into(&mut self.last.0);
        self.last.1 = number;
        true
    }

    /// Notes the cluster's answer that the topic has so many partitions. Returns `false` if it had more before.
    pub(super) fn confirm(&mut self, topic: &str, count: i32, now: Instant, partitions: &mut Partitions) -> bool {
        let number = *self.numbers.entry(topic.to_owned()).or_insert_with(|| {
            let (name, places) = (topic.to_owned(), Vec::new());
            self.list.push(KnownTopic { name, places, count: 0, last_question: now, last_retry: None, sticky: (0, 0) });
            u32::try_from(self.list.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(known) = self.list.get_mut(number as usize) else { return false };
        let is_whole = count >= known.count;
        (known.count, known.last_question) = (count, now);
        // Neighbouring partitions get different producers, and the first partitions of different topics mostly do too.
        let first = topic.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        for partition in i32::try_from(known.places.len()).unwrap_or(i32::MAX)..count {
            let producer = first.wrapping_add(partition.cast_unsigned()) % u32::from(self.producers.max(1));
            let producer = u8::try_from(producer).unwrap_or(0);
            known.places.push(partitions.add(PartitionPlace { topic: number, partition, producer }, now));
        }
        is_whole
    }

    /// Forgets the cluster's answers.
    pub(super) fn forget(&mut self) {
        self.last.0.clear();
        self.list.iter_mut().for_each(|topic| topic.count = 0);
    }

    pub(super) fn name(&self, number: u32) -> &str {
        self.list.get(number as usize).map_or("", |topic| topic.name.as_str())
    }

    /// A record of the topic is to be sent again. Returns whether the sink should ask the cluster for the topic before. The question may
    /// take a while.
    pub(super) fn asks_to_retry(&mut self, number: u32, now: Instant) -> bool {
        let Some(topic) = self.list.get_mut(number as usize) else { return false };
        let is_due = topic.last_retry.is_none_or(|at| now.saturating_duration_since(at) >= SHARED);
        if is_due {
            topic.last_retry = Some(now);
        }
        is_due
    }

    /// The next topic that the sink should ask for again. Whatever the answer, all other topics come before it is asked for once more.
    pub(super) fn turn_to_ask(&mut self, now: Instant) -> Option<&str> {
        let old = |topic: &&mut KnownTopic| {
            topic.count > 0 && now.saturating_duration_since(topic.last_question) >= ASK_AGAIN
        };
        let topic = self.list.iter_mut().find(old)?;
        topic.last_question = now;
        Some(topic.name.as_str())
    }

    /// Chooses the partition for a record of the present topic, and returns its index in [`Partitions`].
    ///
    /// # Errors
    /// The record asks for the partition with the returned number, which is not known.
    #[inline]
    pub(super) fn choose(&mut self, record: &Record<'_>, partitions: &Partitions) -> Result<u32, i32> {
        let topic = self.list.get_mut(self.last.1 as usize).ok_or(0)?;
        let partition = record.partition.or_else(|| self.partitioner.of(record.key, topic.count));
        let partition = partition.unwrap_or_else(|| topic.any(record.held_bytes(), partitions));
        let place = usize::try_from(partition).ok().filter(|_| partition < topic.count);
        place.and_then(|place| topic.places.get(place)).copied().ok_or(partition)
    }
}

/// A topic that has fewer partitions than a record asks for.
#[derive(Debug, Default)]
pub(super) struct MissingPartitions {
    count: i32,
    /// When the topic was first, and last, seen with this count.
    seen: Option<(Instant, Instant)>,
}

impl MissingPartitions {
    /// Whether the missing partitions may still appear, since some brokers learn of them later. If no record has asked for them for
    /// [`ASKED_SELDOM`], the wait begins again.
    pub(super) fn may_grow(&mut self, count: i32, now: Instant) -> bool {
        let same =
            self.seen.filter(|(_, last)| self.count == count && now.saturating_duration_since(*last) < ASKED_SELDOM);
        let since = same.map_or(now, |(since, _)| since);
        (self.count, self.seen) = (count, Some((since, now)));
        now.saturating_duration_since(since) < PARTITIONS_KNOWN_WITHIN
    }
}

impl KnownTopic {
    /// The partition for a record without a key, of so many bytes.
    fn any(&mut self, bytes: usize, partitions: &Partitions) -> i32 {
        let is_open = |partition: i32| {
            let place = usize::try_from(partition).ok().and_then(|place| self.places.get(place));
            place.is_some_and(|at| partitions.is_open(*at))
        };
        let (partition, left) = self.sticky;
        if left == 0 || !is_open(partition) {
            let others = (1..=self.count).map(|step| (partition + step) % self.count.max(1));
            let next = others.into_iter().find(|partition| is_open(*partition));
            self.sticky = (next.unwrap_or_else(|| (partition + 1) % self.count.max(1)), STICKY_BYTES);
        }
        self.sticky.1 = self.sticky.1.saturating_sub(bytes);
        self.sticky.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Content;

    fn record(key: Option<&'static [u8]>, partition: Option<i32>) -> Record<'static> {
        Record {
            topic: "orders",
            key,
            value: Some(&[0; 1000]),
            headers: &[],
            timestamp_millis: 0,
            partition,
            content: Content::Unknown,
        }
    }

    #[test]
    fn records_without_a_key_stay_for_a_batch_and_then_go_on() {
        let (mut topics, mut partitions) =
            (Topics::new(Partitioner::named("murmur2_random"), 4), Partitions::default());
        let now = Instant::now();
        assert!(!topics.turn_to("orders"));
        assert!(topics.confirm("orders", 3, now, &mut partitions) && topics.turn_to("orders"));
        let chosen: Vec<_> = (0..51).map(|_| topics.choose(&record(None, None), &partitions)).collect();
        assert!(chosen.chunks(17).all(|batch| batch.iter().all(|at| *at == batch[0])), "{chosen:?}");
        assert!(chosen[0] != chosen[17] && chosen[17] != chosen[34] && chosen[34] != chosen[0]);
        assert_eq!(topics.choose(&record(None, Some(3)), &partitions), Err(3));
        assert!(topics.confirm("orders", 4, now, &mut partitions));
        assert!(topics.choose(&record(None, Some(3)), &partitions).is_ok());
        assert!(!topics.confirm("orders", 2, now, &mut partitions), "it has fewer");
    }

    #[test]
    fn partitions_of_a_topic_that_are_tried_again_together_ask_once() {
        let (mut topics, mut partitions) = (Topics::new(Partitioner::named("murmur2"), 1), Partitions::default());
        let now = Instant::now();
        topics.confirm("orders", 200, now, &mut partitions);
        topics.confirm("invoices", 1, now, &mut partitions);
        let asked = |topics: &mut Topics, now| (0..200).filter(|_| topics.asks_to_retry(0, now)).count();
        assert_eq!(asked(&mut topics, now), 1);
        assert!(topics.asks_to_retry(1, now), "another topic's answer is another");
        assert_eq!((asked(&mut topics, now + SHARED / 2), asked(&mut topics, now + SHARED)), (0, 1));
        assert!(!topics.asks_to_retry(2, now));
    }

    #[test]
    fn partitions_that_are_missing_are_waited_for_again_after_a_while() {
        let (mut missing, now) = (MissingPartitions::default(), Instant::now());
        let after = |millis| now + Duration::from_millis(millis);
        assert!(missing.may_grow(4, now) && missing.may_grow(4, after(999)));
        assert!(
            !missing.may_grow(4, after(1000)) && !missing.may_grow(4, after(2000)),
            "each row of them is a bad one"
        );
        assert!(missing.may_grow(6, after(2001)), "it has grown meanwhile");
        assert!(!missing.may_grow(6, after(3001)));
        assert!(missing.may_grow(6, after(3001) + ASKED_SELDOM), "it may have grown meanwhile");
    }

    #[test]
    fn a_topic_whose_question_fails_keeps_no_other_from_being_asked_for() {
        let (mut topics, mut partitions) = (Topics::new(Partitioner::named("murmur2"), 1), Partitions::default());
        let now = Instant::now();
        for name in ["deleted", "orders"] {
            topics.confirm(name, 1, now, &mut partitions);
        }
        assert_eq!(topics.turn_to_ask(now), None);
        let later = now + ASK_AGAIN;
        assert_eq!(topics.turn_to_ask(later), Some("deleted"));
        assert_eq!(topics.turn_to_ask(later), Some("orders"));
        assert_eq!(topics.turn_to_ask(later), None);
        assert_eq!(topics.turn_to_ask(later + ASK_AGAIN), Some("deleted"));
    }

    #[test]
    fn the_partitions_of_a_topic_are_shared_among_the_producers() {
        let (mut topics, mut partitions) = (Topics::new(Partitioner::named("murmur2"), 4), Partitions::default());
        topics.confirm("orders", 12, Instant::now(), &mut partitions);
        for producer in 0..4 {
            assert_eq!(partitions.places().filter(|place| place.producer == producer).count(), 3);
        }
    }
}

//! Topics that the cluster has confirmed: how many partitions each has, and which of them a record goes to.
//!
//! The sink chooses the partition, not librdkafka: what a partition may be handed is decided before the client sees the record. Keys
//! go where librdkafka's partitioners, and so Java's, send them; null keys stay with one partition for a batch's length, as Java's do,
//! and pass by those that have to wait.
//!
//! In: names, partition counts as the cluster says. Out: numbers of partitions in [`Partitions`]. Asks nobody.
//! Specification: librdkafka's CONFIGURATION.md, `partitioner`; KIP-480.

use super::partitions::{Partitions, Place};
use crate::sink::Record;
use rdkafka::bindings as native;
use std::collections::HashMap;
use std::ptr;
use std::time::{Duration, Instant};

/// Null keys go to one partition for so many bytes: what Java clients send as a batch.
const STICKY_BYTES: usize = 16_384;

/// The cluster is asked again for a topic's partitions after this time, as librdkafka does (`topic.metadata.refresh.interval.ms`).
const ASK_AGAIN: Duration = Duration::from_mins(5);

/// Partitions of a topic whose records are tried again about the same time share one answer of the cluster's. Each is tried after a
/// longer pause.
const SHARED: Duration = Duration::from_millis(500);

/// Partitions that were added are known to every broker within this time.
const PARTITIONS_KNOWN_WITHIN: Duration = Duration::from_secs(1);

/// Partitions that nobody has asked for since then may have been added meanwhile.
const ASKED_SELDOM: Duration = Duration::from_mins(1);

/// How keys are spread over partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Partitioner {
    hash: Hash,
    /// Records without a key (with `consistent_random`, without one or with an empty one) go anywhere.
    spreads: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Murmur2,
    Crc32,
    Fnv1a,
}

impl Partitioner {
    /// By the value of librdkafka's property `partitioner`; others than the deterministic ones are refused before.
    pub(super) fn named(name: &str) -> Self {
        let hash = match name.strip_suffix("_random").unwrap_or(name) {
            "consistent" => Hash::Crc32,
            "fnv1a" => Hash::Fnv1a,
            _ => Hash::Murmur2,
        };
        Self { hash, spreads: name.ends_with("_random") }
    }

    /// The partition of a key; `None`: any.
    fn of(self, key: Option<&[u8]>, count: i32) -> Option<i32> {
        let anywhere = match self.hash {
            Hash::Crc32 => key.is_none_or(<[u8]>::is_empty),
            Hash::Murmur2 | Hash::Fnv1a => key.is_none(),
        };
        (!(self.spreads && anywhere)).then(|| self.hash(key.unwrap_or_default(), count))
    }

    #[allow(unsafe_code, reason = "librdkafka's own, so that other clients agree")]
    fn hash(self, key: &[u8], count: i32) -> i32 {
        let partitioner = match self.hash {
            Hash::Murmur2 => native::rd_kafka_msg_partitioner_murmur2,
            Hash::Crc32 => native::rd_kafka_msg_partitioner_consistent,
            Hash::Fnv1a => native::rd_kafka_msg_partitioner_fnv1a,
        };
        // SAFETY: these read the key, whose pointer and length are a slice's, and the count; not the topic and not the opaques.
        unsafe { partitioner(ptr::null(), key.as_ptr().cast(), key.len(), count, ptr::null_mut(), ptr::null_mut()) }
    }
}

/// All of them.
pub(super) struct Topics {
    list: Vec<Topic>,
    numbers: HashMap<String, u32>,
    /// The topic of the record before, mostly the next one's, too, and its number; no name before the first.
    last: (String, u32),
    partitioner: Partitioner,
    producers: u8,
}

struct Topic {
    name: String,
    /// Numbers in [`Partitions`], by partition.
    places: Vec<u32>,
    /// How many partitions the cluster says it has; 0: it is to be asked.
    count: i32,
    asked: Instant,
    /// When it was asked for since a record was to be tried again.
    retried: Option<Instant>,
    /// Where null keys go now, and for how many bytes more.
    sticky: (i32, usize),
}

/// Where a record goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// To this partition of [`Partitions`].
    At(u32),
    /// It asks for a partition that is not known.
    Unknown(i32),
}

impl Topics {
    pub(super) fn new(partitioner: Partitioner, producers: u8) -> Self {
        Self { list: Vec::new(), numbers: HashMap::new(), last: (String::new(), 0), partitioner, producers }
    }

    /// Whether it is the topic of the record before.
    #[inline]
    pub(super) fn is_last(&self, topic: &str) -> bool {
        self.last.0 == topic
    }

    /// The next record is for this topic. Whether the cluster has confirmed it.
    pub(super) fn turn_to(&mut self, topic: &str) -> bool {
        let Some(number) = self.numbers.get(topic).copied() else { return false };
        if self.list.get(number as usize).is_none_or(|topic| topic.count == 0) {
            return false;
        }
        topic.clone_into(&mut self.last.0);
        self.last.1 = number;
        true
    }

    /// The cluster says that the topic has so many partitions. `false`: it had more before.
    pub(super) fn confirm(&mut self, topic: &str, count: i32, now: Instant, partitions: &mut Partitions) -> bool {
        let number = *self.numbers.entry(topic.to_owned()).or_insert_with(|| {
            let (name, places) = (topic.to_owned(), Vec::new());
            self.list.push(Topic { name, places, count: 0, asked: now, retried: None, sticky: (0, 0) });
            u32::try_from(self.list.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(known) = self.list.get_mut(number as usize) else { return false };
        let is_whole = count >= known.count;
        (known.count, known.asked) = (count, now);
        // Neighbours go to different producers, and different topics begin with different ones.
        let first = topic.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        for partition in i32::try_from(known.places.len()).unwrap_or(i32::MAX)..count {
            let producer = first.wrapping_add(partition.cast_unsigned()) % u32::from(self.producers.max(1));
            let producer = u8::try_from(producer).unwrap_or(0);
            known.places.push(partitions.add(Place { topic: number, partition, producer }, now));
        }
        is_whole
    }

    /// What the cluster has said does not count any more.
    pub(super) fn forget(&mut self) {
        self.last.0.clear();
        self.list.iter_mut().for_each(|topic| topic.count = 0);
    }

    pub(super) fn name(&self, number: u32) -> &str {
        self.list.get(number as usize).map_or("", |topic| topic.name.as_str())
    }

    /// One of its records is to be tried again: whether the cluster should be asked for the topic before. It may take its time.
    pub(super) fn asks_to_retry(&mut self, number: u32, now: Instant) -> bool {
        let Some(topic) = self.list.get_mut(number as usize) else { return false };
        let is_due = topic.retried.is_none_or(|at| now.saturating_duration_since(at) >= SHARED);
        if is_due {
            topic.retried = Some(now);
        }
        is_due
    }

    /// A topic that the cluster should be asked for again. Whatever it answers, the others come first then.
    pub(super) fn turn_to_ask(&mut self, now: Instant) -> Option<&str> {
        let old = |topic: &&mut Topic| topic.count > 0 && now.saturating_duration_since(topic.asked) >= ASK_AGAIN;
        let topic = self.list.iter_mut().find(old)?;
        topic.asked = now;
        Some(topic.name.as_str())
    }

    /// The partition for a record of the topic that was turned to.
    #[inline]
    pub(super) fn choose(&mut self, record: &Record<'_>, partitions: &Partitions) -> Chosen {
        let Some(topic) = self.list.get_mut(self.last.1 as usize) else { return Chosen::Unknown(0) };
        let partition = record.partition.or_else(|| self.partitioner.of(record.key, topic.count));
        let partition = partition.unwrap_or_else(|| topic.any(record.held_bytes(), partitions));
        let place = usize::try_from(partition).ok().filter(|_| partition < topic.count);
        place.and_then(|place| topic.places.get(place)).map_or(Chosen::Unknown(partition), |at| Chosen::At(*at))
    }
}

/// A topic that has fewer partitions than a record asks for.
#[derive(Debug, Default)]
pub(super) struct Short {
    count: i32,
    /// When it was first, and last, seen with so many.
    seen: Option<(Instant, Instant)>,
}

impl Short {
    /// Whether the others may still come: some brokers learn of them later. One that has been wrong for so long that it was not asked for
    /// in between begins again.
    pub(super) fn may_grow(&mut self, count: i32, now: Instant) -> bool {
        let same =
            self.seen.filter(|(_, last)| self.count == count && now.saturating_duration_since(*last) < ASKED_SELDOM);
        let since = same.map_or(now, |(since, _)| since);
        (self.count, self.seen) = (count, Some((since, now)));
        now.saturating_duration_since(since) < PARTITIONS_KNOWN_WITHIN
    }
}

impl Topic {
    /// A partition for a record without a key, of so many bytes.
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

    /// Java's `Utils.murmur2`, as its own tests have it.
    #[test]
    fn keys_go_where_javas_clients_send_them() {
        let java = [("21", -973_932_308_i32), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)];
        for (key, hash) in java {
            let expected = (hash & i32::MAX) % 12;
            assert_eq!(Partitioner::named("murmur2_random").of(Some(key.as_bytes()), 12), Some(expected), "{key}");
        }
        assert_eq!(Partitioner::named("murmur2_random").of(None, 12), None);
        assert_eq!(Partitioner::named("consistent_random").of(Some(b""), 12), None);
        assert!(Partitioner::named("murmur2").of(None, 12).is_some());
        assert_ne!(Partitioner::named("fnv1a").hash, Partitioner::named("consistent").hash);
    }

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
        assert_eq!(topics.choose(&record(None, Some(3)), &partitions), Chosen::Unknown(3));
        assert!(topics.confirm("orders", 4, now, &mut partitions));
        assert!(matches!(topics.choose(&record(None, Some(3)), &partitions), Chosen::At(_)));
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
        let (mut short, now) = (Short::default(), Instant::now());
        let after = |millis| now + Duration::from_millis(millis);
        assert!(short.may_grow(4, now) && short.may_grow(4, after(999)));
        assert!(!short.may_grow(4, after(1000)) && !short.may_grow(4, after(2000)), "each row of them is a bad one");
        assert!(short.may_grow(6, after(2001)), "it has grown meanwhile");
        assert!(!short.may_grow(6, after(3001)));
        assert!(short.may_grow(6, after(3001) + ASKED_SELDOM), "it may have grown meanwhile");
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
    fn the_partitions_of_a_topic_are_dealt_out_among_the_lanes() {
        let (mut topics, mut partitions) = (Topics::new(Partitioner::named("murmur2"), 4), Partitions::default());
        topics.confirm("orders", 12, Instant::now(), &mut partitions);
        for producer in 0..4 {
            assert_eq!(partitions.places().filter(|place| place.producer == producer).count(), 3);
        }
    }
}

//! [`Topics`]: the topics that the cluster has confirmed, their partitions, and the choice of a record's partition.
//!
//! The sink chooses the partition, not librdkafka: it has to know the partition before it may hand a record to a client. Records with a key
//! go to the same partition as by librdkafka's partitioners, and so by Java's. Records without a key stay with one partition for the length
//! of a batch, as by Java's, and avoid partitions that have to wait.
//!
//! ```text
//!  unknown ──► asked ──► known ◄──┐  a record asks for a partition that is not there: asked again
//!                │  ▲             │
//!                ▼  │ again       │
//!              denied ────────────┘
//! ```
//!
//! In: names, the cluster's answers. Out: indexes into [`Partitions`], the topics to ask for, the failures of records that wait. It asks
//! nobody itself.
//! Specification: librdkafka's CONFIGURATION.md, `partitioner`; KIP-480.

use super::errors;
use super::partitioner::Partitioner;
use super::partitions::{PartitionTarget, Partitions, UNCHOSEN};
use crate::sink::{Failure, FailureClass, Record};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Records without a key go to one partition for so many bytes, which is the size of a Java client's batch.
const STICKY_BYTES: usize = 16_384;

/// After this time the sink asks again for a topic's partitions, as librdkafka does (`topic.metadata.refresh.interval.ms`).
const ASK_AGAIN: Duration = Duration::from_mins(5);

/// The pause between two questions for a topic that its records wait for.
const ASK_SOON: Duration = Duration::from_millis(250);

/// That pause once the topic is known not to be on its way. A refused record is sent again as often.
const ASK_SELDOM: Duration = Duration::from_secs(1);

/// A topic that is created on demand is there within this time. Before that, no record is refused for its sake.
const CREATED_WITHIN: Duration = Duration::from_secs(2);

/// An answer that is older than this says nothing any more of a topic that was denied.
const DENIED_FOR: Duration = Duration::from_secs(5);

/// Every broker knows an added partition within this time.
const PARTITIONS_KNOWN_WITHIN: Duration = Duration::from_secs(1);

/// If no record has asked for a missing partition for so long, it may have been added meanwhile.
const ASKED_SELDOM: Duration = Duration::from_mins(1);

/// The most topics in one question.
const MOST_ASKED: usize = 5_000;

/// All topics that records went to, or wait for.
pub(super) struct Topics {
    list: Vec<KnownTopic>,
    numbers: HashMap<String, u32>,
    /// The name and number of the last record's topic, which is mostly the next one's too. Before the first record, the name is empty.
    last: (String, u32),
    /// The topics that the cluster should be asked for. Some of them no longer.
    wanted: Vec<u32>,
    /// The topics with waiting records. Some of them no longer.
    awaited: Vec<u32>,
    partitioner: Partitioner,
    producers: u8,
}

struct KnownTopic {
    name: String,
    /// The index in [`Partitions`] of each partition.
    indexes: Vec<u32>,
    /// How many partitions the topic has, by the cluster's last answer. 0: it is not known.
    count: i32,
    /// The index in [`Partitions`] where records wait until their partitions are chosen. `None`: none has waited yet.
    unchosen: Option<u32>,
    /// The topic is in [`Topics::awaited`].
    is_awaited: bool,
    /// When the cluster should be asked for the topic. `None`: it need not be.
    ask_at: Option<Instant>,
    /// When the cluster was last asked, or answered.
    asked: Instant,
    /// The last answer named fewer partitions than the one before. A broker whose metadata are old does so.
    has_fewer: bool,
    /// The cluster's last answer, if it says that the topic takes no records.
    denied: Option<Denied>,
    /// When the relay last decided that a refused record is to be tried again.
    retried: Option<Instant>,
    missing: MissingPartitions,
    /// The present partition for records without a key, and for how many more bytes.
    sticky: (i32, usize),
}

struct Denied {
    failure: Failure,
    /// When the cluster first, and last, said so.
    since: Instant,
    last: Instant,
}

/// The meaning of the cluster's answer about a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirmed {
    /// It has as many partitions as before, or more.
    Whole,
    /// It has fewer, and may have as many as before all the same: the sink has to ask again.
    Doubtful,
    /// It has fewer, for the second time.
    Shrunk,
}

/// The prospects of the first record among those that wait for a topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Nothing is known yet.
    Waits,
    /// Its partition can be chosen.
    IsKnown,
    /// None of the topic's partitions takes it.
    Refused(Failure),
}

impl Topics {
    pub(super) fn new(partitioner: Partitioner, producers: u8) -> Self {
        Self {
            list: Vec::new(),
            numbers: HashMap::new(),
            last: (String::new(), 0),
            wanted: Vec::new(),
            awaited: Vec::new(),
            partitioner,
            producers,
        }
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

    /// The number of a topic, which is new or not.
    pub(super) fn number(&mut self, topic: &str, now: Instant) -> u32 {
        if let Some(number) = self.numbers.get(topic) {
            return *number;
        }
        let number = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.list.push(KnownTopic {
            name: topic.to_owned(),
            indexes: Vec::new(),
            count: 0,
            unchosen: None,
            is_awaited: false,
            ask_at: None,
            asked: now,
            has_fewer: false,
            denied: None,
            retried: None,
            missing: MissingPartitions::default(),
            sticky: (0, 0),
        });
        self.numbers.insert(topic.to_owned(), number);
        number
    }

    /// The index in [`Partitions`] where a record of the topic waits until its partition is chosen. The cluster should be asked.
    pub(super) fn wait(&mut self, number: u32, now: Instant, partitions: &mut Partitions) -> u32 {
        self.want(number, now);
        let Self { list, awaited, .. } = self;
        let Some(topic) = list.get_mut(number as usize) else { return u32::MAX };
        if !std::mem::replace(&mut topic.is_awaited, true) {
            awaited.push(number);
        }
        let target = PartitionTarget { topic: number, partition: UNCHOSEN, producer: 0 };
        *topic.unchosen.get_or_insert_with(|| partitions.add(target, now))
    }

    /// Lets the cluster be asked for the topic at this time, unless it is to be asked already.
    pub(super) fn want(&mut self, number: u32, at: Instant) {
        let Some(topic) = self.list.get_mut(number as usize).filter(|topic| topic.ask_at.is_none()) else { return };
        topic.ask_at = Some(at);
        self.wanted.push(number);
    }

    /// Lets the cluster be asked for the topics that it was not asked for lately.
    pub(super) fn want_old(&mut self, now: Instant) {
        let is_old = |topic: &KnownTopic| {
            topic.count > 0 && topic.ask_at.is_none() && now.saturating_duration_since(topic.asked) >= ASK_AGAIN
        };
        let old: Vec<u32> =
            (0..).zip(&self.list).filter(|(_, topic)| is_old(topic)).map(|(number, _)| number).collect();
        for number in old {
            self.want(number, now);
        }
    }

    /// Takes the names of the topics that the cluster should be asked for now.
    pub(super) fn take_wanted(&mut self, now: Instant) -> Vec<String> {
        let Self { list, wanted, .. } = self;
        let mut due = Vec::new();
        wanted.retain(|number| {
            let Some(topic) = list.get_mut(*number as usize) else { return false };
            let is_due = topic.ask_at.is_none_or(|at| at <= now) && due.len() < MOST_ASKED;
            if is_due && topic.ask_at.take().is_some() {
                topic.asked = now;
                due.push(topic.name.clone());
            }
            !is_due
        });
        due
    }

    /// Notes the cluster's answer that the topic has so many partitions.
    pub(super) fn confirm(&mut self, number: u32, count: i32, now: Instant, partitions: &mut Partitions) -> Confirmed {
        let Some(known) = self.list.get_mut(number as usize) else { return Confirmed::Whole };
        (known.asked, known.denied, known.ask_at) = (now, None, None);
        let was_doubtful = std::mem::replace(&mut known.has_fewer, count < known.count);
        if count < known.count && !was_doubtful {
            self.want(number, now + ASK_SELDOM);
            return Confirmed::Doubtful;
        }
        let is_whole = count >= known.count;
        (known.count, known.has_fewer) = (count, false);
        known.missing.answered(count, now);
        // Neighbouring partitions get different producers, and the first partitions of different topics mostly do too.
        let first = known.name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        for partition in i32::try_from(known.indexes.len()).unwrap_or(i32::MAX)..count {
            let producer = first.wrapping_add(partition.cast_unsigned()) % u32::from(self.producers.max(1));
            let producer = u8::try_from(producer).unwrap_or(0);
            known.indexes.push(partitions.add(PartitionTarget { topic: number, partition, producer }, now));
        }
        if is_whole { Confirmed::Whole } else { Confirmed::Shrunk }
    }

    /// Notes the cluster's answer that the topic takes no records. A topic that is known stays so: records tell, if it is gone.
    pub(super) fn deny(&mut self, number: u32, failure: Failure, now: Instant) {
        let Some(topic) = self.list.get_mut(number as usize) else { return };
        let since = topic.denied.as_ref().map_or(now, |before| before.since);
        topic.denied = Some(Denied { failure, since, last: now });
        let may_come = now.saturating_duration_since(since) < CREATED_WITHIN;
        topic.ask_at = None;
        if topic.is_awaited {
            self.want(number, now + if may_come { ASK_SOON } else { ASK_SELDOM });
        }
    }

    /// The cluster has not answered about the topic.
    pub(super) fn unanswered(&mut self, number: u32, now: Instant) {
        let Some(topic) = self.list.get_mut(number as usize) else { return };
        topic.ask_at = None;
        if topic.is_awaited {
            self.want(number, now + ASK_SOON);
        }
    }

    /// The reason for which the topic takes no records, as the cluster said a moment ago.
    pub(super) fn denied(&self, number: u32, now: Instant) -> Option<&Failure> {
        let denied = self.list.get(number as usize).filter(|topic| topic.count == 0)?.denied.as_ref()?;
        let is_sure = denied.last.saturating_duration_since(denied.since) >= CREATED_WITHIN
            && now.saturating_duration_since(denied.last) < DENIED_FOR;
        Some(&denied.failure).filter(|failure| is_sure && failure.class == FailureClass::Topic)
    }

    /// The prospects of the first record that waits for the topic. `partition`: the one that it asks for.
    pub(super) fn outlook(&mut self, number: u32, partition: Option<i32>, now: Instant) -> Outlook {
        let count = self.list.get(number as usize).map_or(0, |topic| topic.count);
        if count == 0 {
            let topic = self.list.get(number as usize);
            let is_news = topic.is_some_and(|topic| topic.denied.as_ref().map(|it| it.last) > topic.retried);
            let failure = self.denied(number, now).filter(|_| is_news).cloned();
            return failure.map_or(Outlook::Waits, Outlook::Refused);
        }
        let Some(partition) = partition.filter(|partition| !(0..count).contains(partition)) else {
            return Outlook::IsKnown;
        };
        let Some(topic) = self.list.get_mut(number as usize) else { return Outlook::Waits };
        if topic.missing.asked_for(now) {
            return Outlook::Refused(errors::of_partition(&topic.name, partition, false));
        }
        self.want(number, now + ASK_SOON);
        Outlook::Waits
    }

    /// The failure of a record of the present topic that asks for a partition that the topic does not have, if that is certain. If it is
    /// not, the record has to wait.
    pub(super) fn lacks(&mut self, partition: i32, now: Instant) -> Result<Failure, u32> {
        let number = self.last.1;
        let Some(topic) = self.list.get_mut(number as usize) else { return Err(number) };
        if topic.is_awaited || !topic.missing.asked_for(now) {
            return Err(number);
        }
        let failure = errors::of_partition(&topic.name, partition, false);
        // It may be added one day.
        let next = topic.asked + ASK_SELDOM;
        self.want(number, next.max(now));
        Ok(failure)
    }

    /// The topics whose records wait, each with the index where they do.
    pub(super) fn awaited(&self) -> Vec<(u32, u32)> {
        let unchosen = |number: &u32| Some((*number, self.list.get(*number as usize)?.unchosen?));
        self.awaited.iter().filter_map(unchosen).collect()
    }

    /// The index in [`Partitions`] where records of the topic wait, if any do.
    pub(super) fn waits_at(&self, number: u32) -> Option<u32> {
        self.list.get(number as usize).filter(|topic| topic.is_awaited)?.unchosen
    }

    /// Whether records of a topic wait.
    #[inline]
    pub(super) fn is_any_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// No record of the topic waits any more.
    pub(super) fn is_served(&mut self, number: u32) {
        self.awaited.retain(|awaited| *awaited != number);
        if let Some(topic) = self.list.get_mut(number as usize) {
            topic.is_awaited = false;
        }
    }

    /// Forgets the cluster's answers, and that records wait. What it denied counts for a while.
    pub(super) fn forget(&mut self) {
        self.last.0.clear();
        self.wanted.clear();
        self.awaited.clear();
        for topic in &mut self.list {
            (topic.count, topic.is_awaited, topic.ask_at) = (0, false, None);
            (topic.has_fewer, topic.retried) = (false, None);
        }
    }

    pub(super) fn name(&self, number: u32) -> &str {
        self.list.get(number as usize).map_or("", |topic| topic.name.as_str())
    }

    /// A record of the topic is to be sent again: the cluster should be asked for the topic before.
    pub(super) fn retry(&mut self, number: u32, now: Instant) {
        let Some(topic) = self.list.get_mut(number as usize) else { return };
        topic.retried = Some(now);
        if topic.count > 0 {
            self.want(number, now);
        }
    }

    /// Chooses the partition for a record of the present topic, and returns its index in [`Partitions`].
    ///
    /// # Errors
    /// The record asks for the partition with the returned number, which is not known.
    #[inline]
    pub(super) fn choose(&mut self, record: &Record<'_>, partitions: &Partitions) -> Result<u32, i32> {
        self.choose_in(self.last.1, record, partitions)
    }

    /// As [`Topics::choose`], for the topic of this number.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub(super) fn choose_in(&mut self, number: u32, record: &Record<'_>, partitions: &Partitions) -> Result<u32, i32> {
        let topic = self.list.get_mut(number as usize).ok_or(0)?;
        let partition = record.partition.or_else(|| self.partitioner.of(record.key, topic.count));
        let partition = partition.unwrap_or_else(|| topic.any(record.held_bytes(), partitions));
        let number = usize::try_from(partition).ok().filter(|_| partition < topic.count);
        number.and_then(|number| topic.indexes.get(number)).copied().ok_or(partition)
    }
}

/// Partitions that records ask for, and that the topic does not have. Some brokers learn of an added partition later than others.
#[derive(Debug, Default)]
struct MissingPartitions {
    /// When a record last asked for one.
    asked: Option<Instant>,
    /// How many partitions the cluster has named since then, and when first.
    named: Option<(i32, Instant)>,
    /// The cluster has named as many for so long that the missing ones are not on their way.
    is_sure: bool,
}

impl MissingPartitions {
    /// A record asks for a missing partition. Returns whether it is certain that the partition is not there. If no record has asked for
    /// [`ASKED_SELDOM`], answers before that do not count.
    fn asked_for(&mut self, now: Instant) -> bool {
        if self.asked.is_none_or(|at| now.saturating_duration_since(at) >= ASKED_SELDOM) {
            (self.named, self.is_sure) = (None, false);
        }
        self.asked = Some(now);
        self.is_sure
    }

    /// The cluster has answered that the topic has so many partitions.
    fn answered(&mut self, count: i32, now: Instant) {
        let (named, since) = *self.named.get_or_insert((count, now));
        if named != count {
            (self.named, self.is_sure) = (Some((count, now)), false);
        } else if now.saturating_duration_since(since) >= PARTITIONS_KNOWN_WITHIN {
            self.is_sure = true;
        }
    }
}

impl KnownTopic {
    /// The partition for a record without a key, of so many bytes.
    fn any(&mut self, bytes: usize, partitions: &Partitions) -> i32 {
        let is_open = |partition: i32| {
            let index = usize::try_from(partition).ok().and_then(|index| self.indexes.get(index));
            index.is_some_and(|at| partitions.is_open(*at))
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

    /// Topics with four producers, of which the cluster has named these.
    fn known(topics: &[(&str, i32)], now: Instant) -> (Topics, Partitions) {
        let (mut all, mut partitions) = (Topics::new(Partitioner::named("murmur2_random"), 4), Partitions::default());
        for (name, count) in topics {
            let number = all.number(name, now);
            assert_eq!(all.confirm(number, *count, now, &mut partitions), Confirmed::Whole);
        }
        (all, partitions)
    }

    fn missing() -> Failure {
        Failure::new(FailureClass::Topic, "unknown_topic", "gone")
    }

    #[test]
    fn records_without_a_key_stay_for_a_batch_and_then_go_on() {
        let now = Instant::now();
        let (mut topics, mut partitions) = known(&[], now);
        assert!(!topics.turn_to("orders"));
        let number = topics.number("orders", now);
        assert!(!topics.turn_to("orders"), "the cluster has said nothing");
        topics.confirm(number, 3, now, &mut partitions);
        assert!(topics.turn_to("orders"));
        let chosen: Vec<_> = (0..51).map(|_| topics.choose(&record(None, None), &partitions)).collect();
        assert!(chosen.chunks(17).all(|batch| batch.iter().all(|at| *at == batch[0])), "{chosen:?}");
        assert!(chosen[0] != chosen[17] && chosen[17] != chosen[34] && chosen[34] != chosen[0]);
        assert_eq!(topics.choose(&record(None, Some(3)), &partitions), Err(3));
        topics.confirm(number, 4, now, &mut partitions);
        assert!(topics.choose(&record(None, Some(3)), &partitions).is_ok());
    }

    #[test]
    fn fewer_partitions_count_once_the_cluster_has_named_them_twice() {
        let now = Instant::now();
        let (mut topics, mut partitions) = known(&[("orders", 4)], now);
        let mut confirm = |topics: &mut Topics, count| topics.confirm(0, count, now, &mut partitions);
        assert_eq!(confirm(&mut topics, 3), Confirmed::Doubtful, "a broker's metadata may be old");
        assert_eq!(topics.take_wanted(now + ASK_SELDOM), ["orders"]);
        assert_eq!([confirm(&mut topics, 4), confirm(&mut topics, 2)], [Confirmed::Whole, Confirmed::Doubtful]);
        assert_eq!([confirm(&mut topics, 2), confirm(&mut topics, 2)], [Confirmed::Shrunk, Confirmed::Whole]);
    }

    #[test]
    fn topics_are_asked_for_together_and_each_once() {
        let now = Instant::now();
        let (mut topics, mut partitions) = known(&[("known", 1)], now);
        let numbers = ["orders", "invoices", "known"].map(|name| topics.number(name, now));
        // As the partitions of a topic do that are tried again.
        (0..200).for_each(|_| topics.retry(numbers[2], now));
        numbers[..2].iter().for_each(|number| {
            let at = topics.wait(*number, now, &mut partitions);
            assert_eq!(topics.wait(*number, now, &mut partitions), at);
        });
        assert_eq!(topics.take_wanted(now), ["known", "orders", "invoices"]);
        assert_eq!(topics.take_wanted(now), [""; 0], "they were asked for");
        assert_eq!(topics.awaited().len(), 2);
        topics.is_served(numbers[0]);
        assert_eq!(topics.awaited().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [numbers[1]]);
    }

    #[test]
    fn a_topic_that_was_denied_is_asked_for_again_and_its_record_refused_once_it_cannot_be_on_its_way() {
        let now = Instant::now();
        let (mut topics, mut partitions) = known(&[], now);
        let number = topics.number("orders", now);
        topics.wait(number, now, &mut partitions);
        assert_eq!(topics.take_wanted(now), ["orders"]);
        assert_eq!(topics.outlook(number, None, now), Outlook::Waits);
        topics.deny(number, missing(), now);
        assert_eq!(topics.outlook(number, None, now), Outlook::Waits, "it may be created on demand");
        assert_eq!((topics.take_wanted(now), topics.take_wanted(now + ASK_SOON)), (vec![], vec!["orders".to_owned()]));
        let sure = now + CREATED_WITHIN;
        topics.deny(number, missing(), sure);
        assert_eq!(topics.outlook(number, None, sure), Outlook::Refused(missing()));
        topics.retry(number, sure);
        assert_eq!(topics.outlook(number, None, sure), Outlook::Waits, "until the next answer");
        assert_eq!(topics.take_wanted(sure + ASK_SELDOM), ["orders"]);
        topics.deny(number, missing(), sure + ASK_SELDOM);
        assert_eq!(topics.outlook(number, None, sure + ASK_SELDOM), Outlook::Refused(missing()));
        topics.forget();
        assert_eq!(topics.denied(number, sure + ASK_SELDOM), Some(&missing()), "with another client, too");
        assert_eq!(topics.denied(number, sure + ASK_SELDOM + DENIED_FOR), None);
        topics.confirm(number, 1, sure, &mut partitions);
        assert_eq!(topics.denied(number, sure), None);
        assert_eq!(topics.outlook(number, None, sure), Outlook::IsKnown);
    }

    #[test]
    fn a_record_for_a_partition_that_is_not_there_is_refused_after_a_while_and_the_next_ones_at_once() {
        let now = Instant::now();
        let (mut topics, mut partitions) = known(&[("orders", 2)], now);
        let sure = now + PARTITIONS_KNOWN_WITHIN;
        assert!(topics.turn_to("orders"));
        assert_eq!(topics.lacks(7, now), Err(0));
        topics.wait(0, now, &mut partitions);
        topics.confirm(0, 2, now, &mut partitions);
        assert_eq!(topics.outlook(0, Some(7), now), Outlook::Waits);
        assert_eq!(topics.outlook(0, Some(1), now), Outlook::IsKnown);
        assert_eq!(topics.outlook(0, Some(7), sure), Outlook::Waits, "the cluster has not answered again");
        topics.confirm(0, 2, sure, &mut partitions);
        assert!(
            matches!(topics.outlook(0, Some(7), sure), Outlook::Refused(failure) if failure.text.contains("no partition 7"))
        );
        assert_eq!(topics.lacks(8, sure), Err(0), "others wait before it");
        topics.is_served(0);
        topics.take_wanted(sure);
        let refused = (0..1000).filter(|_| topics.lacks(8, sure).is_ok()).count();
        assert_eq!((refused, topics.take_wanted(sure + ASK_SELDOM).len()), (1000, 1), "they do not ask one by one");
    }

    #[test]
    fn partitions_are_missing_once_the_cluster_has_said_so_for_a_while() {
        let (mut missing, now) = (MissingPartitions::default(), Instant::now());
        let after = |millis| now + Duration::from_millis(millis);
        missing.answered(4, now);
        missing.answered(4, after(5000));
        assert!(!missing.asked_for(after(5000)), "the answers are from before");
        assert!(!missing.asked_for(after(9000)), "nobody has answered since");
        missing.answered(4, after(9000));
        missing.answered(4, after(9999));
        assert!(!missing.asked_for(after(9999)));
        missing.answered(4, after(10_000));
        assert!(missing.asked_for(after(10_000)) && missing.asked_for(after(20_000)), "each row of them is a bad one");
        missing.answered(6, after(20_000));
        assert!(!missing.asked_for(after(20_000)), "it has grown meanwhile");
        missing.answered(6, after(21_000));
        assert!(missing.asked_for(after(21_000)));
        assert!(!missing.asked_for(after(21_000) + ASKED_SELDOM), "it may have grown meanwhile");
    }

    #[test]
    fn topics_are_asked_for_again_from_time_to_time() {
        let now = Instant::now();
        let (mut topics, mut partitions) = known(&[("deleted", 1), ("orders", 1)], now);
        topics.want_old(now);
        let later = now + ASK_AGAIN;
        assert_eq!(topics.take_wanted(later), [""; 0]);
        topics.want_old(later);
        assert_eq!(topics.take_wanted(later), ["deleted", "orders"]);
        topics.confirm(1, 1, later, &mut partitions);
        topics.want_old(later);
        assert_eq!(topics.take_wanted(later), [""; 0], "one without an answer is asked for as seldom");
        topics.want_old(later + ASK_AGAIN);
        assert_eq!(topics.take_wanted(later + ASK_AGAIN), ["deleted", "orders"]);
    }

    #[test]
    fn the_partitions_of_a_topic_are_shared_among_the_producers() {
        let (_, partitions) = known(&[("orders", 12)], Instant::now());
        for producer in 0..4 {
            assert_eq!(partitions.targets().filter(|target| target.producer == producer).count(), 3);
        }
    }
}

//! The place of refused records whose partition nobody knows: the record has no topic, or the cluster names none of that name.
//!
//! In: topics. Out: the index of a partition in [`Partitions`](super::partitions::Partitions) that no cluster has. Its records wait there for
//! their dead-letter records, one after the other. The topic may appear meanwhile, so the sink takes no record of a topic of which one is
//! here: a record of the same key would overtake it.

use super::KafkaSink;
use super::partitions::PartitionPlace;
use crate::sink::Record;

/// The topic number of the place. No topic has it, and its name is empty.
const NO_TOPIC: u32 = u32::MAX;

/// The place, and the topics of the records that wait there.
#[derive(Debug, Default)]
pub(super) struct Nowhere {
    at: Option<u32>,
    topics: Vec<String>,
}

impl KafkaSink {
    /// Whether records of the topic wait in the place.
    #[inline]
    pub(super) fn is_nowhere(&mut self, topic: &str) -> bool {
        !self.nowhere.topics.is_empty() && self.still_nowhere(topic)
    }

    #[cold]
    fn still_nowhere(&mut self, topic: &str) -> bool {
        if self.nowhere.at.is_none_or(|at| self.partitions.has_nothing_waiting(at)) {
            self.nowhere.topics.clear();
        }
        self.nowhere.topics.iter().any(|waiting| waiting == topic)
    }

    /// The index of the partition in which a refused record waits for its turn: its own, or that of its key if it asks for one that its topic
    /// does not have, or the place.
    pub(super) fn choose_refused(&mut self, record: &Record<'_>) -> u32 {
        let is_known =
            !record.topic.is_empty() && !self.is_nowhere(record.topic) && self.resolve_topic(record.topic).is_ok();
        let by_key = Record { partition: None, ..*record };
        let chosen = is_known.then(|| {
            [record, &by_key].into_iter().find_map(|record| self.topics.choose(record, &self.partitions).known())
        });
        chosen.flatten().unwrap_or_else(|| self.send_nowhere(record.topic))
    }

    fn send_nowhere(&mut self, topic: &str) -> u32 {
        let Self { nowhere: Nowhere { at, topics }, partitions, now, .. } = self;
        if !topic.is_empty() && topics.iter().all(|waiting| waiting != topic) {
            topics.push(topic.to_owned());
        }
        *at.get_or_insert_with(|| partitions.add(PartitionPlace { topic: NO_TOPIC, partition: -1, producer: 0 }, *now))
    }
}

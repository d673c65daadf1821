//! [`RecordReader`]: reads the records of topics, and takes nothing away.
//!
//! In: names of topics, offsets. Out: the ends of topics, their records in the order of each partition, and what may have gone unread. A
//! reader writes nothing: no record, no offset, no group. It decides nothing about a record.
//!
//! Only a destination that keeps its records after they were read can have one. A queue gives each message away once.

use super::{Failure, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The next offset of each partition of some topics. The index is the partition's number. `None`: it is not known.
pub type TopicOffsets = BTreeMap<String, Vec<Option<i64>>>;

/// A record that was read. The record has its partition.
#[derive(Debug, Clone, Copy)]
pub struct ReadRecord<'a> {
    /// The record. Its time is 0 if the writer did not set it.
    pub record: Record<'a>,
    /// Its offset in its partition.
    pub offset: i64,
    /// Whether the writer set the time. If not, the broker did.
    pub writers_time: bool,
    /// The partition in which the writer's partitioner puts this key. `None`: any partition will do, or the number of partitions has changed.
    pub partition_of_key: Option<i32>,
}

/// Reads the records of a destination.
pub trait RecordReader: Send {
    /// Whether [`RecordReader::ends`] knows topics by their prefix.
    fn lists_topics(&self) -> bool {
        true
    }

    /// Marks the present: for each topic whose name begins with `prefix`, and for `topics`, [`RecordReader::start_at`] gives the offsets that
    /// come next.
    ///
    /// # Errors
    /// The destination does not answer, or refuses.
    fn mark(&mut self, prefix: &str, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure> {
        self.ends(Some(prefix), topics)
    }

    /// The offsets of a topic that came next at a mark. `None`: the topic did not exist.
    ///
    /// # Errors
    /// As [`RecordReader::mark`].
    fn start_at(&mut self, mark: &TopicOffsets, topic: &str) -> Result<Option<Vec<Option<i64>>>, Failure> {
        Ok(mark.get(topic).cloned())
    }

    /// The present ends of `topics`, and, if the destination lists topics, of all whose names begin with `prefix`. Topics that do not exist are left out. Records of
    /// open transactions lie before the end.
    ///
    /// # Errors
    /// The destination does not answer, or refuses.
    fn ends(&mut self, prefix: Option<&str>, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure>;

    /// The first offset that is still there, of each partition of `topics`. Records in front of it were deleted.
    ///
    /// # Errors
    /// As [`RecordReader::ends`].
    fn starts(&mut self, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure>;

    /// The offset of the first record of `millis` (since 1970) or later, of each partition of `topics`. Without such a record: the end.
    ///
    /// # Errors
    /// As [`RecordReader::ends`].
    fn offsets_at(&mut self, millis: i64, topics: &BTreeSet<String>) -> Result<TopicOffsets, Failure>;

    /// Reads this topic, about which the reader was asked before, too, from these offsets on. A partition without an offset is read from its first
    /// record.
    fn follow(&mut self, topic: &str, from: &[Option<i64>]);

    /// Calls `each` with records that have come. Waits up to `wait` for the first one. Returns how many there were.
    ///
    /// # Errors
    /// The destination refuses.
    fn read(&mut self, wait: Duration, each: &mut dyn FnMut(&ReadRecord<'_>)) -> Result<usize, Failure>;

    /// The next offset of each partition that is read. Records in front of it have been given to `each`, or belong to a transaction that was
    /// aborted.
    ///
    /// # Errors
    /// The client fails.
    fn positions(&mut self) -> Result<TopicOffsets, Failure>;

    /// Why nothing counts that was read of this topic: it is gone, or another one has its name, or it may not be read. It is not read further.
    /// `None`: it is the one that was followed.
    fn ended(&self, _topic: &str) -> Option<String> {
        None
    }

    /// The reasons for which a record of this topic may have been written, and was not read. Empty: there is none.
    fn unread(&mut self, topic: &str) -> Vec<String>;
}

//! How far topics are read: which partitions are behind their ends, and whether reading still advances.
//!
//! In: positions and ends. Out: the partitions that are behind, and the reasons that the report names. Pure, but for the clock of [`Advance`].

use crate::lsn::Lsn;
use crate::sink::reading::TopicOffsets;
use std::time::{Duration, Instant};

/// A partition that is not read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Behind {
    topic: String,
    partition: usize,
    /// The next offset. `None`: the end is not known, so that no offset reaches it.
    at: Option<i64>,
}

/// All partitions that are not read to their ends, of topics that are read.
pub(super) fn behind(positions: &TopicOffsets, ends: &TopicOffsets) -> Vec<Behind> {
    let mut all = Vec::new();
    for (topic, ends) in ends {
        let Some(positions) = positions.get(topic) else { continue };
        for (partition, end) in ends.iter().enumerate() {
            let at = positions.get(partition).copied().flatten().unwrap_or_default();
            if end.is_none_or(|end| at < end) {
                all.push(Behind { topic: topic.clone(), partition, at: end.map(|_| at) });
            }
        }
    }
    all
}

/// The topics of these partitions, each with the reason for which it could not be read to its end. A topic of several is named once.
pub(super) fn held_back(behind: &[Behind]) -> impl Iterator<Item = (String, String)> {
    // Of a topic that comes again, the last reason stays.
    behind.iter().rev().map(|Behind { topic, partition, at }| {
        let why = match at {
            Some(at) => format!(
                "partition {partition} could not be read beyond offset {at}: a transaction may be open there, or its broker is down"
            ),
            None => format!("the end of partition {partition} is not known: its broker may be down"),
        };
        (topic.clone(), why)
    })
}

/// The reason for a row whose record may be among those that were not read.
pub(super) fn unread_records(topic: &str, why: &str) -> String {
    format!("records of topic {topic} may have gone unread: {why}")
}

/// Notices that nothing advances any more.
pub(super) struct Advance {
    last: (Vec<Behind>, Lsn),
    moved: Instant,
}

impl Advance {
    pub(super) fn begin() -> Self {
        Self { last: (Vec::new(), Lsn::new(0)), moved: Instant::now() }
    }

    /// Whether the partitions that are behind, and the rows in front of which all have come, are the same for `patience` by now.
    pub(super) fn is_over(&mut self, behind: &[Behind], rows: Lsn, patience: Duration) -> bool {
        if (behind, rows) == (self.last.0.as_slice(), self.last.1) {
            return self.moved.elapsed() >= patience;
        }
        *self = Self { last: (behind.to_vec(), rows), moved: Instant::now() };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_partition_that_is_not_at_its_end_is_behind_and_one_without_a_known_end_always() {
        let offsets = |all: &[(&str, &[Option<i64>])]| -> TopicOffsets {
            all.iter().map(|(topic, offsets)| ((*topic).to_owned(), offsets.to_vec())).collect()
        };
        let ends = offsets(&[("a", &[Some(3), Some(0), None]), ("b", &[Some(5), Some(5)]), ("other", &[Some(9)])]);
        let check = |positions: &[(&str, &[Option<i64>])], expected: &[(&str, usize, Option<i64>)]| {
            let found = behind(&offsets(positions), &ends);
            let found: Vec<_> = found.iter().map(|found| (found.topic.as_str(), found.partition, found.at)).collect();
            assert_eq!(found, expected);
        };
        let of_a = ("a", 2, None);
        check(&[("a", &[Some(3), None, Some(7)]), ("b", &[Some(5), Some(6)])], &[of_a]);
        check(
            &[("a", &[Some(2), Some(0)]), ("b", &[None])],
            &[("a", 0, Some(2)), of_a, ("b", 0, Some(0)), ("b", 1, Some(0))],
        );
        check(&[("b", &[Some(5), Some(4)])], &[("b", 1, Some(4))]);
    }

    #[test]
    fn reading_goes_on_as_long_as_it_advances_or_the_rows_do_that_it_waits_for() {
        let at = |at| [Behind { topic: "a".to_owned(), partition: 1, at: Some(at) }];
        let mut advance = Advance::begin();
        let mut is_over = |at: &[Behind], rows, patience| advance.is_over(at, Lsn::new(rows), patience);
        assert!(!is_over(&at(1), 0, Duration::ZERO));
        assert!(!is_over(&at(2), 0, Duration::ZERO));
        assert!(!is_over(&at(2), 5, Duration::ZERO), "rows advance");
        assert!(!is_over(&at(2), 5, Duration::MAX));
        assert!(is_over(&at(2), 5, Duration::ZERO));
    }

    #[test]
    fn each_topic_that_is_held_back_has_its_reason() {
        let at = |topic: &str, partition, at| Behind { topic: topic.to_owned(), partition, at };
        let all = [at("a", 1, Some(4)), at("a", 2, None), at("b", 0, None)];
        let reasons: BTreeMap<String, String> = held_back(&all).collect();
        assert_eq!(reasons.len(), 2);
        assert!(reasons["a"].starts_with("partition 1 could not be read beyond offset 4: "), "{reasons:?}");
        assert!(reasons["b"].starts_with("the end of partition 0 is not known: "), "{reasons:?}");
    }
}

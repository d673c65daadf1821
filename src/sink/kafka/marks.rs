//! Marks: how a dead-letter topic itself remembers which of its records were published again.
//!
//! A *mark* is a record of the same partition, behind the records that it marks. It has the header `walrelay-replayed` with the partition's
//! number, and the marked offsets as its value, such as `17-20,25`. When the topic deletes its oldest records, a mark goes later than the
//! records that it marks. It does not expire as a consumer group's offsets do, and needs no right but the one to write the topic. Each mark
//! has a key of its own, so that compaction keeps it.
//!
//! In: offsets, or records. Out: records, or offsets. Pure.

use crate::sink::dead_letter;
use crate::sink::{Header, OwnedRecord, Record};
use std::collections::BTreeMap;

/// The header of a mark.
const REPLAYED: &str = "walrelay-replayed";

/// A set of offsets, as ranges that neither touch nor overlap: first to last, both included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Offsets(BTreeMap<u64, u64>);

impl Offsets {
    /// Adds the offsets from `first` to `last`.
    pub(super) fn insert(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last.max(first));
        // Merges each range that overlaps or touches the new one.
        while let Some((&from, &to)) = self.0.range(..=last.saturating_add(1)).next_back() {
            if to.saturating_add(1) < first {
                break;
            }
            self.0.remove(&from);
            (first, last) = (first.min(from), last.max(to));
        }
        self.0.insert(first, last);
    }

    /// Whether the set has this offset.
    pub(super) fn contains(&self, offset: u64) -> bool {
        self.0.range(..=offset).next_back().is_some_and(|(_, &last)| offset <= last)
    }

    fn text(&self) -> String {
        let range = |(first, last): (&u64, &u64)| {
            if first < last { format!("{first}-{last}") } else { first.to_string() }
        };
        self.0.iter().map(range).collect::<Vec<_>>().join(",")
    }

    /// Adds the ranges in a mark's value. Leaves out ranges that reach `before`, the offset of the mark itself, and text that is no range.
    fn add(&mut self, text: &str, before: u64) {
        for range in text.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            if let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>())
                && first <= last
                && last < before
            {
                self.insert(first, last);
            }
        }
    }
}

/// The mark for some offsets of a partition, at least one.
pub(super) fn mark(topic: &str, partition: i32, offsets: &Offsets, now_millis: i64) -> OwnedRecord {
    let text = offsets.text();
    let number = partition.to_string();
    let key = format!("{REPLAYED}/{partition}/{text}");
    let headers = [Header { name: REPLAYED, value: Some(number.as_bytes()) }];
    OwnedRecord::of(&Record {
        topic,
        key: Some(key.as_bytes()),
        value: Some(text.as_bytes()),
        headers: &headers,
        timestamp_millis: now_millis,
        partition: Some(partition),
        content: crate::sink::Content::Unknown,
    })
}

/// Returns whether a record of `partition` at `offset` is a mark, and adds the offsets that it marks. A mark that was copied from another
/// partition marks nothing, since offsets differ there.
pub(super) fn take(record: &Record<'_>, partition: i32, offset: u64, replayed: &mut Offsets) -> bool {
    let header = record.headers.iter().find(|header| header.name == REPLAYED);
    // A dead-letter record may have this header too, since it has all headers of its row.
    let Some(header) = header.filter(|_| dead_letter::said(record).is_none()) else { return false };
    if header.value == Some(partition.to_string().as_bytes())
        && let Some(text) = record.value.and_then(|value| std::str::from_utf8(value).ok())
    {
        replayed.add(text, offset);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::HeaderRoom;
    use crate::tests::{assert_written, golden};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_mark_that_each_version_has_written_is_read() {
        const NAME: &str = "dead-letters/kafka-mark.txt";
        let mut offsets = Offsets::default();
        offsets.insert(17, 20);
        offsets.insert(25, 25);
        let mark = mark("dead", 3, &offsets, 7);
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
        let written = mark.with_record(&mut HeaderRoom::default(), |record| {
            let [header] = record.headers else { panic!("{:?}", record.headers) };
            format!("{}\t{}\t{}\t{}\n", text(record.key), header.name, text(header.value), text(record.value))
        });
        assert_written(NAME, &written);
        for stored in golden(NAME) {
            let [key, name, number, value] = stored.text.trim_end().split('\t').collect::<Vec<_>>()[..] else {
                panic!("{}", stored.text)
            };
            let headers = [Header { name, value: Some(number.as_bytes()) }];
            let (key, value) = (Some(key.as_bytes()), Some(value.as_bytes()));
            let mut read = Offsets::default();
            let record = Record {
                topic: "dead",
                key,
                value,
                headers: &headers,
                timestamp_millis: 7,
                partition: Some(3),
                content: crate::sink::Content::Unknown,
            };
            assert!(take(&record, 3, 100, &mut read) && read == offsets, "of version {}", stored.version);
        }
    }

    proptest! {
        #[test]
        fn a_mark_says_what_was_put_into_it_in_whatever_order(ranges in prop::collection::vec((0_u64..60, 0_u64..4), 1..20)) {
            let (mut offsets, mut plain) = (Offsets::default(), BTreeSet::new());
            for (first, more) in ranges {
                offsets.insert(first, first + more);
                plain.extend(first..=first + more);
            }
            let mark = mark("dead", 3, &offsets, 7);
            let mut read = Offsets::default();
            mark.with_record(&mut HeaderRoom::default(), |record| assert!(take(record, 3, 100, &mut read)));
            prop_assert_eq!(&read, &offsets);
            for offset in 0..70 {
                prop_assert_eq!(read.contains(offset), plain.contains(&offset), "{}", offset);
            }
            // As few ranges as there can be.
            let starts = plain.iter().filter(|&&at| at == 0 || !plain.contains(&(at - 1))).count();
            prop_assert_eq!(read.0.len(), starts);
        }
    }

    #[test]
    fn a_mark_of_another_partition_or_of_what_comes_behind_it_marks_nothing() {
        let mut offsets = Offsets::default();
        offsets.insert(5, 7);
        let mark = mark("dead", 3, &offsets, 7);
        for (partition, at) in [(2, 100), (3, 7)] {
            let mut read = Offsets::default();
            mark.with_record(&mut HeaderRoom::default(), |record| assert!(take(record, partition, at, &mut read)));
            assert_eq!(read, Offsets::default(), "{partition} {at}");
        }
    }

    #[test]
    fn a_dead_letter_record_with_a_rows_header_of_that_name_is_no_mark() {
        let headers = [
            Header { name: REPLAYED, value: Some(b"0") },
            Header { name: "walrelay-error", value: Some(b"too large") },
        ];
        let record = Record {
            topic: "dead",
            key: None,
            value: Some(b"0-9"),
            headers: &headers,
            timestamp_millis: 7,
            partition: None,
            content: crate::sink::Content::Unknown,
        };
        let mut read = Offsets::default();
        assert!(!take(&record, 0, 100, &mut read));
        assert_eq!(read, Offsets::default());
    }
}

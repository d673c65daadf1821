//! Up to which offset a transaction wrote to each partition, as its progress record says in a header.
//!
//! ```text
//!  walrelay-written: {"orders":{"0":1041,"3":977},"payments":{"1":12}}
//! ```
//!
//! By that a relay that takes over tells a partition where the end of that transaction was never marked from one where another has
//! begun since ([`super::cover`]).
//! In: offsets, as they are reported. Out: the header; and what one says. Without allocation for each record. Pure.

use super::cover::Place;
use std::collections::BTreeMap;

/// The header's name.
pub(super) const HEADER: &str = "walrelay-written";

/// A header that would be larger is left out: some thousands of partitions in one transaction.
const MOST_BYTES: usize = 65_536;

/// An offset that is not known, and is before every other.
const UNKNOWN: i64 = -1;

/// Of the transaction that is open.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// By the partition's number in [`Partitions`](super::partitions::Partitions).
    last: Vec<i64>,
    /// The numbers of those that it wrote to.
    touched: Vec<u32>,
}

impl Written {
    /// A record has arrived at this offset of the partition of this number.
    #[inline]
    pub(super) fn arrived(&mut self, at: u32, offset: i64) {
        if self.last.len() <= at as usize {
            self.last.resize(at as usize + 1, UNKNOWN);
        }
        let Some(last) = self.last.get_mut(at as usize).filter(|last| **last < offset) else { return };
        if *last == UNKNOWN {
            self.touched.push(at);
        }
        *last = offset;
    }

    /// Another transaction begins.
    pub(super) fn clear(&mut self) {
        for at in self.touched.drain(..) {
            if let Some(last) = self.last.get_mut(at as usize) {
                *last = UNKNOWN;
            }
        }
    }

    /// The header's value; `None`: there is too much to say. `name`: of a partition's topic, and its number there.
    pub(super) fn header<'a>(&self, name: impl Fn(u32) -> Option<(&'a str, i32)>) -> Option<String> {
        let mut topics: BTreeMap<&str, BTreeMap<i32, i64>> = BTreeMap::new();
        for at in &self.touched {
            let ((topic, partition), last) = (name(*at)?, self.last.get(*at as usize)?);
            topics.entry(topic).or_default().insert(partition, *last);
        }
        serde_json::to_string(&topics).ok().filter(|text| text.len() <= MOST_BYTES)
    }
}

/// What a header says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ends(BTreeMap<String, BTreeMap<i32, i64>>);

impl Ends {
    /// `None`: it is not what a relay writes.
    pub(super) fn read(header: &[u8]) -> Option<Self> {
        serde_json::from_slice(header).ok().map(Self)
    }

    /// Whether the record at this offset is one of those transactions', or older.
    pub(super) fn have(&self, (topic, partition): &Place, offset: i64) -> bool {
        self.0.get(topic).and_then(|topic| topic.get(partition)).is_some_and(|end| offset <= *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_up_to_where_each_partition_was_written() {
        let names = |at: u32| [("orders", 0), ("orders", 3), ("payments", 1)].get(at as usize).copied();
        let mut written = Written::default();
        for (at, to) in [(2, 12), (0, 1040), (0, 1041), (1, 977), (0, 1039)] {
            written.arrived(at, to);
        }
        let header = written.header(names).unwrap();
        assert_eq!(header, r#"{"orders":{"0":1041,"3":977},"payments":{"1":12}}"#);
        let ends = Ends::read(header.as_bytes()).unwrap();
        let has = |topic: &str, partition, offset| ends.have(&(topic.to_owned(), partition), offset);
        assert!(has("orders", 0, 1041) && has("orders", 3, 5) && !has("orders", 3, 978) && !has("orders", 1, 0));
        written.clear();
        assert_eq!(written.header(names).unwrap(), "{}");
        written.arrived(1, 1000);
        assert_eq!(written.header(names).unwrap(), r#"{"orders":{"3":1000}}"#);
    }

    #[test]
    fn an_offset_that_is_not_known_says_nothing_and_a_header_has_a_bound() {
        let mut written = Written::default();
        written.arrived(0, -1001);
        assert_eq!(written.header(|_| Some(("orders", 0))).unwrap(), "{}");
        (0..10_000).for_each(|at| written.arrived(at, 1_000_000));
        assert_eq!(written.header(|at| Some(("orders", i32::try_from(at).unwrap()))), None);
        assert_eq!(Ends::read(b"no"), None);
    }
}

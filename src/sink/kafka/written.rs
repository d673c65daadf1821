//! Between which offsets the transaction that is open has written to each partition, as its progress record says in a header.
//!
//! ```text
//!  walrelay-written: {"orders":{"0":[1038,1041],"3":[977,977]},"payments":{"1":[12,12]}}
//! ```
//!
//! By that a relay that takes over tells a partition where the end of that transaction was never marked from one where another has
//! begun since ([`super::cover`]): nobody else's record stands where its first one does.
//! In: offsets, as they are reported. Out: the header; and what one says. Without allocation for each record. Pure.

use super::cover::Place;
use std::collections::BTreeMap;

/// The header's name.
pub(super) const HEADER: &str = "walrelay-written";

/// A header that would be larger is left out: about two thousand partitions in one transaction.
const MOST_BYTES: usize = 65_536;

/// An offset that is not known, and is before every other.
const UNKNOWN: i64 = -1;

/// A transaction's records in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    /// The first one's offset, or [`UNKNOWN`].
    first: i64,
    /// The last one's of which it is known, or [`UNKNOWN`].
    last: i64,
}

/// Nothing was written.
const NOTHING: Span = Span { first: i64::MAX, last: UNKNOWN };

/// Of the transaction that is open.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// By the partition's number in [`Partitions`](super::partitions::Partitions).
    spans: Vec<Span>,
    /// The numbers of those that it wrote to.
    touched: Vec<u32>,
}

impl Written {
    /// A record has arrived at this offset of the partition of this number.
    #[inline]
    pub(super) fn arrived(&mut self, at: u32, offset: i64) {
        if self.spans.len() <= at as usize {
            self.spans.resize(at as usize + 1, NOTHING);
        }
        let Some(span) = self.spans.get_mut(at as usize) else { return };
        if *span == NOTHING {
            self.touched.push(at);
        }
        let offset = offset.max(UNKNOWN);
        (span.first, span.last) = (span.first.min(offset), span.last.max(offset));
    }

    /// Another transaction begins.
    pub(super) fn clear(&mut self) {
        for at in self.touched.drain(..) {
            if let Some(span) = self.spans.get_mut(at as usize) {
                *span = NOTHING;
            }
        }
    }

    /// The header's value; `None`: there is too much to say, also for a record of `most` bytes. `name`: of a partition's topic, and its
    /// number there.
    pub(super) fn header<'a>(&self, most: u64, name: impl Fn(u32) -> Option<(&'a str, i32)>) -> Option<String> {
        let mut topics: BTreeMap<&str, BTreeMap<i32, (i64, i64)>> = BTreeMap::new();
        for at in &self.touched {
            let ((topic, partition), span) = (name(*at)?, self.spans.get(*at as usize)?);
            if span.last > UNKNOWN {
                topics.entry(topic).or_default().insert(partition, (span.first, span.last));
            }
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(MOST_BYTES);
        serde_json::to_string(&topics).ok().filter(|text| text.len() <= most)
    }
}

/// What a header says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ends(BTreeMap<String, BTreeMap<i32, (i64, i64)>>);

/// Where the record at an offset stands, by what a header says of its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stands {
    /// It is the transaction's first one there.
    First,
    /// Before it, or nobody knows.
    Before,
    /// Behind it; or the transaction wrote nothing there.
    Elsewhere,
}

impl Ends {
    /// `None`: it is not what a relay writes.
    pub(super) fn read(header: &[u8]) -> Option<Self> {
        serde_json::from_slice(header).ok().map(Self)
    }

    /// Where the record at this offset of a partition that ends at `end` stands. One that ends before what was written there is another
    /// one by now, of a topic that was recreated.
    pub(super) fn stands(&self, (topic, partition): &Place, offset: i64, end: i64) -> Stands {
        let span = self.0.get(topic).and_then(|topic| topic.get(partition)).filter(|(_, last)| *last < end);
        match span {
            Some((first, _)) if *first == offset => Stands::First,
            Some((first, _)) if offset < *first => Stands::Before,
            Some((first, last)) if *first <= UNKNOWN && offset <= *last => Stands::Before,
            Some(_) | None => Stands::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 500_000;

    #[test]
    fn a_header_says_between_which_offsets_each_partition_was_written() {
        let names = |at: u32| [("orders", 0), ("orders", 3), ("payments", 1)].get(at as usize).copied();
        let mut written = Written::default();
        for (at, to) in [(2, 12), (0, 1040), (0, 1041), (1, 977), (0, 1039)] {
            written.arrived(at, to);
        }
        let header = written.header(ROOM, names).unwrap();
        assert_eq!(header, r#"{"orders":{"0":[1039,1041],"3":[977,977]},"payments":{"1":[12,12]}}"#);
        assert_eq!(written.header(20, names), None, "a client that sends short records sends this one");
        let ends = Ends::read(header.as_bytes()).unwrap();
        let stands = |topic: &str, partition, offset| ends.stands(&(topic.to_owned(), partition), offset, 2000);
        assert_eq!(
            [1038, 1039, 1040].map(|at| stands("orders", 0, at)),
            [Stands::Before, Stands::First, Stands::Elsewhere]
        );
        assert_eq!((stands("orders", 1, 0), stands("refunds", 0, 0)), (Stands::Elsewhere, Stands::Elsewhere));
        let recreated = |end| ends.stands(&("orders".to_owned(), 0), 1039, end);
        assert_eq!((recreated(1041), recreated(1042)), (Stands::Elsewhere, Stands::First));
        written.clear();
        assert_eq!(written.header(ROOM, names).unwrap(), "{}");
        written.arrived(1, 1000);
        assert_eq!(written.header(ROOM, names).unwrap(), r#"{"orders":{"3":[1000,1000]}}"#);
    }

    #[test]
    fn an_offset_that_is_not_known_says_nothing_and_a_header_has_a_bound() {
        let mut written = Written::default();
        written.arrived(0, -1001);
        let orders = |_| Some(("orders", 0));
        assert_eq!(written.header(ROOM, orders).unwrap(), "{}");
        written.arrived(0, 7);
        let header = written.header(ROOM, orders).unwrap();
        assert_eq!(header, r#"{"orders":{"0":[-1,7]}}"#);
        let ends = Ends::read(header.as_bytes()).unwrap();
        let stands = [6, 7, 8].map(|at| ends.stands(&("orders".to_owned(), 0), at, 100));
        assert_eq!(stands, [Stands::Before, Stands::Before, Stands::Elsewhere]);
        (0..10_000).for_each(|at| written.arrived(at, 1_000_000));
        assert_eq!(written.header(ROOM, |at| Some(("orders", i32::try_from(at).unwrap()))), None);
        assert_eq!(Ends::read(b"no"), None);
    }
}

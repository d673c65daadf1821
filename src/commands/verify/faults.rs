//! [`Faults`]: what is wrong, counted, and the first examples of each verdict. Pure.
//!
//! In: faults as they are found. Out: their numbers by verdict and topic, and those that a report shows.
//!
//! Invariant: of each verdict and topic at most as many are kept as a report shows. So no verdict takes the room of another one.

use crate::lsn::Position;
use crate::sink::Source;
use std::collections::BTreeMap;

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordAt {
    /// The number of the topic.
    pub(super) topic: u32,
    /// The partition.
    pub(super) partition: i32,
    /// The offset.
    pub(super) offset: i64,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// The row has no record.
    Missing,
    /// The row's record has other bytes, another time, or lies in another partition.
    Altered,
    /// The first record of the row comes before that of an earlier row of its key.
    OutOfOrder,
    /// The last record of the row's key is an earlier row's.
    Stale,
    /// No row has this record.
    Other,
    /// A row had this record before.
    Repeated,
}

impl Verdict {
    /// The name in reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Altered => "altered",
            Self::OutOfOrder => "out_of_order",
            Self::Stale => "stale",
            Self::Other => "other",
            Self::Repeated => "repeated",
        }
    }
}

/// Something that is wrong, with the row and the record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// What it is.
    pub(super) verdict: Verdict,
    /// The row's position. `None`: there is no row.
    pub(super) position: Option<Position>,
    /// The row's table or message.
    pub(super) source: Option<Source>,
    /// The id of the row, or else of the record.
    pub(super) id: Box<[u8]>,
    /// The topic's number.
    pub(super) topic: u32,
    /// The record.
    pub(super) at: Option<RecordAt>,
    /// The difference, for people.
    pub(super) why: String,
}

/// The faults of one verdict in one topic.
#[derive(Debug, Default)]
pub(super) struct OfVerdict {
    /// How many there are.
    pub(super) count: u64,
    /// The first ones.
    shown: Vec<Fault>,
}

/// Faults.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// The most that a report shows.
    show: usize,
    found: BTreeMap<(Verdict, u32), OfVerdict>,
}

impl Faults {
    /// None. A report shows at most `show`.
    pub(super) fn new(show: usize) -> Self {
        Self { show, found: BTreeMap::new() }
    }

    /// Adds a fault.
    pub(super) fn add(&mut self, fault: Fault) {
        let found = self.found.entry((fault.verdict, fault.topic)).or_default();
        found.count += 1;
        if found.shown.len() < self.show {
            found.shown.push(fault);
        }
    }

    /// Adds those of another collection.
    pub(super) fn append(&mut self, other: Self) {
        for (of, OfVerdict { count, shown }) in other.found {
            let found = self.found.entry(of).or_default();
            found.count += count;
            let room = self.show.saturating_sub(found.shown.len());
            found.shown.extend(shown.into_iter().take(room));
        }
    }

    /// Takes away the faults of each topic of which `is_void` says that nothing counts that was read of it. Calls `take` with their verdict, their
    /// topic and their number.
    pub(super) fn withdraw(&mut self, mut is_void: impl FnMut(u32) -> bool, mut take: impl FnMut(Verdict, u32, u64)) {
        self.found.retain(|(verdict, topic), found| {
            let is_void = is_void(*topic);
            if is_void {
                take(*verdict, *topic, found.count);
            }
            !is_void
        });
    }

    /// The faults that are shown, by position: of each verdict the first one, then of each the second, and so on.
    pub(super) fn shown(self) -> Vec<Fault> {
        let place = |fault: &Fault| (fault.position.is_none(), fault.position);
        let mut of_verdict: BTreeMap<Verdict, Vec<Fault>> = BTreeMap::new();
        for ((verdict, _), found) in self.found {
            of_verdict.entry(verdict).or_default().extend(found.shown);
        }
        let mut ranked = Vec::new();
        for (verdict, mut faults) in of_verdict {
            faults.sort_by_key(place);
            ranked.extend(faults.into_iter().enumerate().map(|(rank, fault)| (rank, verdict, fault)));
        }
        ranked.sort_by_key(|(rank, verdict, _)| (*rank, *verdict));
        let mut shown: Vec<Fault> = ranked.into_iter().take(self.show).map(|(_, _, fault)| fault).collect();
        shown.sort_by_key(|fault| (place(fault), fault.verdict));
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    fn fault(verdict: Verdict, topic: u32, at: u64) -> Fault {
        let position = Some(Position { final_lsn: Lsn::new(at), ordinal: 0 });
        Fault { verdict, position, source: None, id: Box::default(), topic, at: None, why: String::new() }
    }

    fn shown(faults: Faults) -> Vec<(Verdict, u64)> {
        let position = |fault: &Fault| fault.position.unwrap().final_lsn.bytes();
        faults.shown().iter().map(|fault| (fault.verdict, position(fault))).collect()
    }

    #[test]
    fn each_verdict_is_among_those_that_are_shown_and_they_are_in_the_order_of_the_rows() {
        let mut faults = Faults::new(3);
        (10..90).for_each(|at| faults.add(fault(Verdict::Altered, 0, at)));
        faults.add(fault(Verdict::Missing, 0, 99));
        faults.add(fault(Verdict::Missing, 1, 98));
        let expected = [(Verdict::Altered, 10), (Verdict::Missing, 98), (Verdict::Missing, 99)];
        assert_eq!(shown(faults), expected);
    }

    #[test]
    fn faults_of_a_void_topic_are_taken_away_with_their_number() {
        let mut faults = Faults::new(2);
        (0..5).for_each(|at| faults.add(fault(Verdict::Altered, 7, at)));
        let mut others = Faults::new(2);
        others.add(fault(Verdict::Altered, 7, 5));
        others.add(fault(Verdict::Missing, 8, 6));
        faults.append(others);
        let mut taken = Vec::new();
        faults.withdraw(|topic| topic == 7, |verdict, topic, count| taken.push((verdict, topic, count)));
        assert_eq!(taken, [(Verdict::Altered, 7, 6)]);
        assert_eq!(shown(faults), [(Verdict::Missing, 6)]);
    }
}

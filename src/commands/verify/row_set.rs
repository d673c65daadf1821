//! [`RowSet`]: the rows of a table in 32 bytes each, and which of them have their record. Pure.
//!
//! ```text
//!  rows ──► push, sort: by the hash of the id
//!  records ──► found: same id, same bytes ─► right, or in another place │ the row had it before: repeated
//!                     same id, other bytes ─► a candidate: altered, unless the right record comes as well
//!                     else: no row has it
//!  rows again ──► state_of: for their names
//! ```
//!
//! In: rows as [`Expected`], then records by their hashes. Out: what each record is, what became of each row.
//!
//! Invariants: each row has at most one record, and each record at most one row. Rows that give equal records are matched one by one.

use super::comparison::Hashes;
use super::matcher::{Expected, FoundAt};
use std::collections::BTreeSet;

/// The partition that stands for none.
const NO_PARTITION: u16 = u16::MAX;

/// A bit of a row's state: a record with the same bytes was found.
const FOUND: u8 = 1;
/// It was found in another partition, or with another time.
const MISPLACED: u8 = 2;
/// A record with its id and other bytes was found.
const CANDIDATE: u8 = 4;
/// No record can be made of the row.
const BAD: u8 = 8;
/// It was asked for.
const NAMED: u8 = 16;

/// The bytes that one row takes.
pub(super) const ROW_BYTES: u64 = size_of::<Row>() as u64;

#[derive(Debug, Clone, Copy)]
struct Row {
    /// The hash of topic and id.
    id: u64,
    /// The hash of the record.
    record: u64,
    /// The row's time, in milliseconds since 1970.
    time: i64,
    /// The number of its topic.
    topic: u32,
    /// The partition that the row asks for.
    partition: u16,
    state: u8,
}

impl Row {
    const fn has(&self, bits: u8) -> bool {
        self.state & bits != 0
    }
}

/// How a record fits the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// The row of this number has it.
    Right(usize),
    /// The row of this number has it, with this difference in place or time.
    Misplaced(usize, Misplaced),
    /// The row of this number has its id, and no record yet.
    Candidate(usize),
    /// Its row has a record already.
    Repeated,
    /// No row has it.
    Other,
}

/// What differs although the bytes are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Misplaced {
    /// The partition, and the one that the row asks for.
    Partition(i32, i32),
    /// The time in milliseconds, and the row's.
    Time(i64, i64),
}

/// The state of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowState {
    /// It has its record.
    Right,
    /// It has its record in another partition, or with another time.
    Misplaced,
    /// A record has its id and other bytes.
    Candidate,
    /// It has none.
    Open,
}

/// The rows.
#[derive(Debug, Default)]
pub(super) struct RowSet {
    rows: Vec<Row>,
    /// Whether times are compared.
    with_time: bool,
}

impl RowSet {
    /// An empty set with room for `count` rows. `with_time`: the rows' times are those of their records. A time below 0 is none.
    pub(super) fn new(count: usize, with_time: bool) -> Self {
        Self { rows: Vec::with_capacity(count), with_time }
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: &Expected) {
        let partition = row.partition.and_then(|partition| u16::try_from(partition).ok()).unwrap_or(NO_PARTITION);
        let state = if row.is_bad { BAD } else { 0 };
        let Hashes { record, id, .. } = row.hashes;
        let (time, topic) = (row.time.unwrap_or(-1), row.topic);
        self.rows.push(Row { id, record, time, topic, partition, state });
    }

    /// Makes the set ready for records.
    pub(super) fn sort(&mut self) {
        self.rows.sort_unstable_by_key(|row| (row.id, row.record));
    }

    /// How many rows there are.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows with this hash of an id: the number of the first one, and all of them.
    fn of_id(&mut self, id: u64) -> (usize, &mut [Row]) {
        let from = self.rows.partition_point(|row| row.id < id);
        let rest = self.rows.get_mut(from..).unwrap_or_default();
        let count = rest.iter().take_while(|row| row.id == id).count();
        (from, rest.get_mut(..count).unwrap_or_default())
    }

    /// A record has come.
    pub(super) fn found(&mut self, found: &FoundAt, hashes: Hashes) -> Match {
        let with_time = self.with_time;
        let (from, rows) = self.of_id(hashes.id);
        let (mut spare, mut had) = (None, false);
        for (at, row) in rows.iter_mut().enumerate().filter(|(_, row)| !row.has(BAD)) {
            if row.record != hashes.record {
                if !row.has(FOUND | CANDIDATE) {
                    spare = spare.or(Some(at));
                }
                continue;
            }
            if row.has(FOUND) {
                had = true;
                continue;
            }
            row.state = (row.state | FOUND) & !CANDIDATE;
            return match misplaced(row, found, with_time) {
                None => Match::Right(from + at),
                Some(how) => {
                    row.state |= MISPLACED;
                    Match::Misplaced(from + at, how)
                }
            };
        }
        if had {
            return Match::Repeated;
        }
        let Some((at, row)) = spare.and_then(|at| Some((at, rows.get_mut(at)?))) else { return Match::Other };
        row.state |= CANDIDATE;
        Match::Candidate(from + at)
    }

    /// Whether a row with this record's id has no record yet.
    pub(super) fn lacks(&mut self, hashes: Hashes) -> bool {
        let (_, rows) = self.of_id(hashes.id);
        rows.iter().any(|row| !row.has(FOUND | BAD))
    }

    /// The topics of rows without a record, bad ones apart.
    pub(super) fn open_topics(&self) -> BTreeSet<u32> {
        self.rows.iter().filter(|row| !row.has(FOUND | BAD)).map(|row| row.topic).collect()
    }

    /// How many rows have no record.
    pub(super) fn open(&self) -> usize {
        self.rows.iter().filter(|row| !row.has(FOUND)).count()
    }

    /// How many rows have no record and did not come a second time.
    pub(super) fn unnamed(&self) -> usize {
        self.rows.iter().filter(|row| !row.has(FOUND | NAMED)).count()
    }

    /// The time of the oldest row with a record. Rows without a time do not count: theirs is 0 or less. `None`: there is none.
    pub(super) fn oldest_found(&self) -> Option<i64> {
        self.rows.iter().filter(|row| row.has(FOUND) && row.time > 0).map(|row| row.time).min()
    }

    /// The state of a row that comes a second time, and its number. Of rows with equal records, each is given once. `None`: it was never added.
    pub(super) fn state_of(&mut self, row: &Expected) -> Option<(usize, RowState)> {
        let (from, rows) = self.of_id(row.hashes.id);
        let is_same = |(_, other): &(usize, &mut Row)| other.record == row.hashes.record && !other.has(NAMED);
        let (at, row) = rows.iter_mut().enumerate().find(is_same)?;
        row.state |= NAMED;
        let state = match () {
            () if row.has(MISPLACED) => RowState::Misplaced,
            () if row.has(FOUND) => RowState::Right,
            () if row.has(CANDIDATE) => RowState::Candidate,
            () => RowState::Open,
        };
        Some((from + at, state))
    }
}

fn misplaced(row: &Row, found: &FoundAt, with_time: bool) -> Option<Misplaced> {
    let partition = found.at.partition;
    if row.partition != NO_PARTITION && i32::from(row.partition) != partition {
        return Some(Misplaced::Partition(partition, i32::from(row.partition)));
    }
    let time = found.time.filter(|time| with_time && row.time >= 0 && *time != row.time)?;
    Some(Misplaced::Time(time, row.time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::verify::faults::RecordAt;
    use crate::lsn::{Lsn, Position};
    use crate::sink::Source;
    use proptest::prelude::*;

    fn hashes(id: u64, bytes: u64) -> Hashes {
        Hashes { id, record: id * 10 + bytes, key: None }
    }

    fn row(id: u64, bytes: u64) -> Expected {
        Expected {
            position: Position { final_lsn: Lsn::new(1), ordinal: 0 },
            source: Source::Table(1),
            topic: 3,
            hashes: hashes(id, bytes),
            id: Box::default(),
            partition: None,
            time: Some(100),
            is_bad: false,
            copy: None,
        }
    }

    fn at(partition: i32, time: Option<i64>) -> FoundAt {
        FoundAt { at: RecordAt { topic: 3, partition, offset: 0 }, time, partition_of_key: None }
    }

    fn set(rows: &[Expected], with_time: bool) -> RowSet {
        let mut set = RowSet::new(rows.len(), with_time);
        for row in rows {
            set.push(row);
        }
        set.sort();
        set
    }

    const HERE: FoundAt =
        FoundAt { at: RecordAt { topic: 3, partition: 0, offset: 0 }, time: None, partition_of_key: None };

    #[test]
    fn a_row_takes_thirty_two_bytes() {
        assert_eq!(ROW_BYTES, 32);
    }

    #[test]
    fn a_record_is_its_rows_or_a_repeat_or_shows_that_the_row_was_altered_or_is_no_rows() {
        let mut set = set(&[row(1, 0), row(2, 0), row(3, 0)], false);
        assert_eq!(set.found(&HERE, hashes(1, 0)), Match::Right(0));
        assert_eq!(set.found(&HERE, hashes(1, 0)), Match::Repeated);
        assert_eq!(set.found(&HERE, hashes(1, 5)), Match::Other);
        assert_eq!(set.found(&HERE, hashes(2, 5)), Match::Candidate(1));
        assert_eq!(set.found(&HERE, hashes(2, 6)), Match::Other);
        assert_eq!(set.found(&HERE, hashes(9, 0)), Match::Other);
        assert_eq!((set.open(), set.open_topics()), (2, BTreeSet::from([3])));
        assert_eq!(set.state_of(&row(1, 0)), Some((0, RowState::Right)));
        assert_eq!(set.state_of(&row(2, 0)), Some((1, RowState::Candidate)));
        assert_eq!(set.state_of(&row(3, 0)), Some((2, RowState::Open)));
        assert_eq!(set.state_of(&row(3, 0)), None);
        // The right one comes as well.
        assert_eq!(set.found(&HERE, hashes(2, 0)), Match::Right(1));
    }

    #[test]
    fn a_place_or_a_time_that_the_row_does_not_give_is_an_alteration() {
        let asks = Expected { partition: Some(2), ..row(1, 0) };
        let timeless = Expected { time: Some(-1), ..row(3, 0) };
        let at_zero = Expected { time: Some(0), ..row(5, 0) };
        let mut set = set(&[asks, row(2, 0), timeless, row(4, 0), at_zero], true);
        let partition = Match::Misplaced(0, Misplaced::Partition(1, 2));
        assert_eq!(set.found(&at(1, Some(100)), hashes(1, 0)), partition);
        assert_eq!(set.found(&at(1, Some(101)), hashes(2, 0)), Match::Misplaced(1, Misplaced::Time(101, 100)));
        assert_eq!(set.found(&at(1, Some(101)), hashes(3, 0)), Match::Right(2));
        assert_eq!(set.found(&at(1, None), hashes(4, 0)), Match::Right(3));
        assert_eq!(set.found(&at(1, Some(0)), hashes(5, 0)), Match::Right(4));
        assert_eq!(set.state_of(&row(2, 0)), Some((1, RowState::Misplaced)));
        assert_eq!(set.oldest_found(), Some(100), "a row without a time is not the oldest one");
    }

    #[test]
    fn rows_without_a_record_that_did_not_come_again_are_counted() {
        let bad = Expected { is_bad: true, ..row(4, 0) };
        let mut set = set(&[row(1, 0), row(2, 0), row(3, 0), bad], false);
        assert_eq!(set.found(&HERE, hashes(1, 0)), Match::Right(0));
        assert_eq!(set.found(&HERE, hashes(2, 5)), Match::Candidate(1));
        assert_eq!(set.unnamed(), 3);
        assert_eq!(set.state_of(&row(3, 0)), Some((2, RowState::Open)));
        // It has other bytes now.
        assert_eq!((set.state_of(&row(2, 1)), set.unnamed()), (None, 2));
    }

    #[test]
    fn a_row_of_which_no_record_can_be_made_has_none() {
        let mut set = set(&[Expected { is_bad: true, ..row(1, 0) }], false);
        assert_eq!(set.found(&HERE, hashes(1, 0)), Match::Other);
        assert!(set.open_topics().is_empty() && set.open() == 1 && !set.lacks(hashes(1, 0)));
    }

    proptest! {
        /// Few ids and bytes, so that rows are equal in part.
        #[test]
        fn as_many_rows_are_right_as_there_are_pairs_of_equal_rows_and_records(
            rows in prop::collection::vec((0_u64..3, 0_u64..2), 0..12),
            records in prop::collection::vec((0_u64..3, 0_u64..2), 0..12),
        ) {
            let all: Vec<Expected> = rows.iter().map(|(id, bytes)| row(*id, *bytes)).collect();
            let mut set = set(&all, false);
            let found: Vec<Match> = records.iter().map(|(id, bytes)| set.found(&HERE, hashes(*id, *bytes))).collect();
            let right = found.iter().filter(|found| matches!(found, Match::Right(_))).count();
            let mut left = records.clone();
            let mut pairs = 0;
            for row in &rows {
                if let Some(at) = left.iter().position(|record| record == row) {
                    left.remove(at);
                    pairs += 1;
                }
            }
            prop_assert_eq!(right, pairs);
            prop_assert_eq!(set.open(), rows.len() - pairs);
            let mut numbers: Vec<usize> = all.iter().map(|row| set.state_of(row).unwrap().0).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..rows.len()).collect::<Vec<_>>());
        }
    }
}

//! What consumers that keep the last value of each key have, while records come and in the end.
//!
//! In: the records of each key in their order, by the numbers of their rows, which rise. Out: keys that end with an old value, and
//! records that came behind a newer one of their key without being the beginning of a repetition of everything up to that.

use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The records seen so far.
#[derive(Debug, Default)]
pub(super) struct Judge {
    keys: BTreeMap<String, Key>,
}

#[derive(Debug, Default)]
struct Key {
    /// The numbers, in the order in which they came.
    numbers: Vec<i64>,
}

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) keys: usize,
    pub(super) records: usize,
    /// Rows that came more than once, counted each time.
    pub(super) repeats: usize,
    /// Keys whose last record is not their newest.
    pub(super) stale_keys: usize,
    /// Records that were older than one before them, and were not followed by everything up to that one.
    pub(super) stale_records: usize,
}

impl Judge {
    pub(super) fn see(&mut self, key: String, number: i64) {
        self.keys.entry(key).or_default().numbers.push(number);
    }

    pub(super) fn found(&self) -> Found {
        let mut found = Found { keys: self.keys.len(), ..Found::default() };
        for key in self.keys.values() {
            found.records += key.numbers.len();
            key.add_to(&mut found);
        }
        found
    }

    /// The rows from 1 to `last` that have no record.
    pub(super) fn missing(&self, last: i64) -> usize {
        let there: HashSet<i64> = self.keys.values().flat_map(|key| key.numbers.iter().copied()).collect();
        (1..=last).filter(|number| !there.contains(number)).count()
    }
}

impl Key {
    fn add_to(&self, found: &mut Found) {
        let (mut seen, mut last, mut newest) = (BTreeSet::new(), i64::MIN, i64::MIN);
        // Records since the last one that was the newest.
        let mut behind = 0;
        for &number in &self.numbers {
            let leaps = number > last && seen.range(last.saturating_add(1)..number).next().is_some();
            if leaps || number <= last {
                found.stale_records += std::mem::take(&mut behind);
            }
            found.repeats += usize::from(!seen.insert(number));
            (last, newest) = (number, newest.max(number));
            behind = if number == newest { 0 } else { behind + 1 };
        }
        found.stale_records += behind;
        found.stale_keys += usize::from(behind > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(numbers: &[i64], stale_keys: usize, stale_records: usize) {
        let mut judge = Judge::default();
        for number in numbers {
            judge.see("a".to_owned(), *number);
        }
        let found = judge.found();
        assert_eq!((found.stale_keys, found.stale_records), (stale_keys, stale_records), "{numbers:?}");
    }

    #[test]
    fn a_repetition_up_to_the_newest_record_is_not_stale() {
        check(&[1, 3, 5], 0, 0);
        check(&[1, 3, 5, 1, 3, 5, 7], 0, 0);
        check(&[1, 3, 5, 5, 7], 0, 0);
    }

    #[test]
    fn old_records_behind_a_newer_one_are_stale_and_the_last_one_makes_the_key_so() {
        check(&[1, 3, 5, 7, 3, 5], 1, 2);
        check(&[1, 3, 5, 7, 3, 5, 3, 5, 7], 0, 2);
        check(&[1, 3, 5, 7, 3, 5, 9], 0, 2);
    }

    #[test]
    fn rows_without_a_record_are_missing() {
        let mut judge = Judge::default();
        for number in [1, 2, 4] {
            judge.see(format!("key-{}", number % 2), number);
        }
        assert_eq!((judge.missing(4), judge.found().records), (1, 3));
    }
}

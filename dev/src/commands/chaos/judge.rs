//! Judges records of rows with rising numbers, for a consumer that counts rows and for one that keeps the last value of each key.
//!
//! In: the records of each key in their order, by the numbers of their rows. Out: rows that are missing or repeated; keys that end with an old value; records that came behind a newer one of their key without being the beginning of a repetition of everything
//! up to that.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;
use walrelay_dev::arrivals::Arrivals;

/// The records seen so far.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The numbers of each key, in the order in which they came.
    keys: BTreeMap<String, Vec<i64>>,
}

/// The counts of what is wrong.
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
    /// Reads what has arrived at these topics of rows whose payload is an object with their `number`.
    pub(super) fn of(arrivals: &Arrivals, topics: &[String]) -> Result<Self> {
        let mut judge = Self::default();
        arrivals.read(topics, |record| {
            let payload = serde_json::from_slice::<Value>(record.value.as_deref().unwrap_or_default());
            let number = payload.ok().and_then(|payload| payload.get("number")?.as_i64());
            // A stream of NATS has all subjects.
            if let Some(number) = number.filter(|_| topics.contains(&record.topic)) {
                judge.see(record.key_text(), number);
            }
        })?;
        Ok(judge)
    }

    fn see(&mut self, key: String, number: i64) {
        self.keys.entry(key).or_default().push(number);
    }

    pub(super) fn found(&self) -> Found {
        let mut found = Found { keys: self.keys.len(), ..Found::default() };
        for numbers in self.keys.values() {
            found.add(numbers);
        }
        found
    }

    /// The rows from 1 to `last` that have no record.
    pub(super) fn missing(&self, last: i64) -> usize {
        let there: BTreeSet<i64> = self.keys.values().flatten().copied().collect();
        (1..=last).filter(|number| !there.contains(number)).count()
    }
}

impl Found {
    /// Adds what is wrong with the numbers of one key.
    fn add(&mut self, numbers: &[i64]) {
        self.records += numbers.len();
        let (mut seen, mut last, mut newest) = (BTreeSet::new(), i64::MIN, i64::MIN);
        // Records since the last one that was the newest.
        let mut behind = 0;
        for &number in numbers {
            let leaps = number > last && seen.range(last.saturating_add(1)..number).next().is_some();
            if leaps || number <= last {
                self.stale_records += std::mem::take(&mut behind);
            }
            self.repeats += usize::from(!seen.insert(number));
            (last, newest) = (number, newest.max(number));
            behind = if number == newest { 0 } else { behind + 1 };
        }
        self.stale_records += behind;
        self.stale_keys += usize::from(behind > 0);
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

    #[test]
    fn a_row_that_came_before_is_repeated() {
        let mut judge = Judge::default();
        for number in [1, 3, 2, 3] {
            judge.see("a".to_owned(), number);
        }
        assert_eq!((judge.missing(4), judge.found().repeats), (1, 1));
    }
}

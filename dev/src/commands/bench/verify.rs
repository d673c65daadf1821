//! Whether a run's topics hold what was written: a rate counts only for a run that lost nothing.
//!
//! In: the records, each partition in its order. Out: what is missing, repeated, out of order or altered. The backlog's
//! rule (see `ground`) says what to expect, so that nothing is kept but a bit for each row.

use std::collections::HashMap;

use anyhow::Result;
use md5::{Digest as _, Md5};
use walrelay_dev::consume::Record;

use super::case::Reading;
use super::ground::{Ground, Loaded};

/// The result of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub(super) struct Verdict {
    pub(super) missing: u64,
    pub(super) repeated: u64,
    /// First appearances after a later row of the same key, or in another partition.
    pub(super) out_of_order: u64,
    /// Records of no row, with another key, or in another topic.
    pub(super) wrong: u64,
    /// The payloads' hashes do not add up.
    pub(super) altered: bool,
}

impl Verdict {
    /// Whether the run's rate counts. It does with repeats: nothing is lost by them.
    pub(super) fn is_true(&self) -> bool {
        self.missing == 0 && self.out_of_order == 0 && self.wrong == 0 && !self.altered
    }
}

/// Looks at one record after the other.
struct Checker<'a> {
    loaded: &'a Loaded,
    seen: Vec<bool>,
    keys: HashMap<u64, (i32, u64)>,
    hash: i128,
    verdict: Verdict,
}

/// Reads the topics of a run and compares.
pub(super) fn verify(ground: &Ground, topics: &[String], loaded: &Loaded, reading: &Reading) -> Result<Verdict> {
    let mut checker = Checker::new(loaded)?;
    let numbers: HashMap<&str, u64> = topics.iter().map(String::as_str).zip(0..).collect();
    ground.arrivals(reading).read(topics, |record| {
        checker.see(numbers.get(record.topic.as_str()).copied(), &record);
    })?;
    Ok(checker.finish())
}

impl<'a> Checker<'a> {
    fn new(loaded: &'a Loaded) -> Result<Self> {
        let seen = vec![false; usize::try_from(loaded.load.rows)?];
        Ok(Self { loaded, seen, keys: HashMap::new(), hash: 0, verdict: Verdict::default() })
    }

    /// `topic`: its number; `None`: it is none of the run's.
    fn see(&mut self, topic: Option<u64>, record: &Record) {
        // The record that `Ground::open` has written.
        if record.offset == 0 && record.value.is_none() && record.headers.is_empty() {
            return;
        }
        let row = row_of(record);
        let place = row.and_then(|row| self.seen.get_mut(usize::try_from(row).ok()?));
        let (Some(topic), Some(row), Some(seen)) = (topic, row, place) else {
            self.verdict.wrong += 1;
            return;
        };
        let key = row % self.loaded.load.keys;
        if unquoted(&record.key_text()) != format!("order-{key}") || row % self.loaded.load.topics != topic {
            self.verdict.wrong += 1;
        }
        if std::mem::replace(seen, true) {
            self.verdict.repeated += 1;
            return;
        }
        self.hash += i128::from(hash(record.value.as_deref().unwrap_or_default()));
        // With several topics, a key's order holds within each.
        let order = self.keys.entry(key * self.loaded.load.topics + topic).or_insert((record.partition, row));
        if row < order.1 || record.partition != order.0 {
            self.verdict.out_of_order += 1;
        }
        order.1 = row;
    }

    fn finish(mut self) -> Verdict {
        self.verdict.missing = self.seen.iter().map(|seen| u64::from(!seen)).sum();
        self.verdict.altered = self.verdict.missing == 0 && self.loaded.hash.is_some_and(|hash| hash != self.hash);
        self.verdict
    }
}

/// Without the quotes of a sink that writes JSON.
fn unquoted(text: &str) -> &str {
    text.trim_matches('"')
}

/// The row of a record, by its id.
pub(super) fn row_of(record: &Record) -> Option<u64> {
    let mut row: u64 = 0;
    for digit in unquoted(record.header("id")?).chars().filter(|digit| *digit != '-') {
        row = row.checked_mul(16)?.checked_add(digit.to_digit(16)?.into())?;
    }
    Some(row)
}

/// The first 60 bits of the MD5.
fn hash(value: &[u8]) -> u64 {
    let digest = Md5::digest(value);
    digest.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes) >> 4)
}

#[cfg(test)]
mod tests {
    use super::super::case::{Kind, Load, Size};
    use super::*;

    fn loaded(rows: u64) -> Loaded {
        let load = Load { rows, batch: 1, payload: Size(3), kind: Kind::Text, topics: 1, keys: 2 };
        let hash = (0..rows).map(|row| i128::from(hash(row.to_string().as_bytes()))).sum();
        Loaded { load, database: String::new(), end: String::new(), row_bytes: 3.0, hash: Some(hash) }
    }

    fn record(row: u64, partition: i32, value: &str) -> Record {
        let id = format!("{row:032x}");
        Record {
            topic: "t".to_owned(),
            partition,
            offset: 0,
            timestamp: None,
            key: Some(format!("order-{}", row % 2).into_bytes()),
            value: Some(value.as_bytes().to_vec()),
            headers: vec![("id".to_owned(), Some(id.into_bytes()))],
        }
    }

    #[track_caller]
    fn check(rows: &[(u64, i32, &str)], expected: Verdict) {
        let loaded = loaded(4);
        let mut checker = Checker::new(&loaded).unwrap();
        for (row, partition, value) in rows {
            checker.see(Some(0), &record(*row, *partition, value));
        }
        assert_eq!(checker.finish(), expected);
    }

    #[test]
    fn everything_in_the_order_of_each_key_is_true() {
        check(&[(1, 1, "1"), (3, 1, "3"), (0, 0, "0"), (2, 0, "2")], Verdict::default());
    }

    #[test]
    fn the_record_that_was_there_before_is_no_row_and_an_empty_one_behind_it_is_wrong() {
        let loaded = loaded(1);
        let mut checker = Checker::new(&loaded).unwrap();
        let empty = |offset| Record { offset, key: None, value: None, headers: Vec::new(), ..record(0, 0, "0") };
        for record in [empty(0), record(0, 0, "0"), empty(2)] {
            checker.see(Some(0), &record);
        }
        assert_eq!(checker.finish(), Verdict { wrong: 1, ..Verdict::default() });
    }

    #[test]
    fn a_record_in_another_runs_topic_is_wrong_and_no_row() {
        let loaded = loaded(2);
        let mut checker = Checker::new(&loaded).unwrap();
        checker.see(None, &record(1, 0, "1"));
        for row in [0, 1] {
            checker.see(Some(0), &record(row, 0, &row.to_string()));
        }
        assert_eq!(checker.finish(), Verdict { wrong: 1, ..Verdict::default() });
    }

    #[test]
    fn what_is_missing_repeated_or_foreign_is_counted() {
        let expected = Verdict { missing: 1, repeated: 1, wrong: 1, ..Verdict::default() };
        check(&[(0, 0, "0"), (0, 0, "0"), (1, 1, "1"), (2, 0, "2"), (9, 0, "9")], expected);
    }

    #[test]
    fn a_key_out_of_order_or_in_two_partitions_is_seen() {
        let out_of_order = Verdict { out_of_order: 1, ..Verdict::default() };
        check(&[(2, 0, "2"), (0, 0, "0"), (1, 1, "1"), (3, 1, "3")], out_of_order);
        check(&[(0, 0, "0"), (2, 1, "2"), (1, 1, "1"), (3, 1, "3")], out_of_order);
    }

    #[test]
    fn ids_and_keys_may_stand_in_quotes() {
        let loaded = loaded(1);
        let mut checker = Checker::new(&loaded).unwrap();
        let plain = record(0, 0, "0");
        let headers = vec![("id".to_owned(), Some(format!("\"{:032x}\"", 0).into_bytes()))];
        checker.see(Some(0), &Record { key: Some(b"\"order-0\"".to_vec()), headers, ..plain });
        assert_eq!(checker.finish(), Verdict::default());
    }

    #[test]
    fn an_altered_value_is_seen() {
        let altered = Verdict { altered: true, ..Verdict::default() };
        check(&[(0, 0, "0"), (2, 0, "2"), (1, 1, "x"), (3, 1, "3")], altered);
        assert!(!altered.is_true());
    }
}

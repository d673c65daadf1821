//! Compares the records that came with the expected ones, topic by topic, in the order of each partition.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::Bytes;
use super::data::Record;
use crate::consume;

/// An expected record, with the name of its case.
pub type Expected<'d> = (&'d str, &'d Record);

/// Compares all records of all topics. `period`: from before the first transaction until after the last record, in milliseconds. Each difference is a line.
pub fn compare(expected: &[Expected<'_>], came: &[consume::Record], period: &RangeInclusive<i64>) -> Vec<String> {
    let mut topics: BTreeMap<&str, (Vec<Expected<'_>>, Vec<&consume::Record>)> = BTreeMap::new();
    for one in expected {
        topics.entry(&one.1.topic).or_default().0.push(*one);
    }
    for record in came {
        topics.entry(&record.topic).or_default().1.push(record);
    }
    topics.into_iter().flat_map(|(topic, (expected, came))| in_topic(topic, expected, came, period)).collect()
}

fn in_topic(
    topic: &str,
    mut expected: Vec<Expected<'_>>,
    mut came: Vec<&consume::Record>,
    period: &RangeInclusive<i64>,
) -> Vec<String> {
    came.sort_by_key(|record| (record.partition, record.offset));
    // Stable: the order within a partition stays.
    expected.sort_by_key(|(_, record)| record.partition.unwrap_or(0));
    let mut out = Vec::new();
    for ((case, expected), came) in expected.iter().zip(&came) {
        out.extend(
            differences(expected, came, period).into_iter().map(|line| format!("{case}: topic {topic}: {line}")),
        );
    }
    for (case, record) in expected.iter().skip(came.len()) {
        out.push(format!("{case}: topic {topic}: missing: {}", serde_json::to_string(record).unwrap_or_default()));
    }
    for record in came.iter().skip(expected.len()) {
        let cases: BTreeSet<&str> = expected.iter().map(|(case, _)| *case).collect();
        out.push(format!("{cases:?}: topic {topic}: one more than expected: {}", shown(record)));
    }
    out
}

/// Compares one record with the expected one.
pub fn differences(expected: &Record, came: &consume::Record, period: &RangeInclusive<i64>) -> Vec<String> {
    let mut out = Vec::new();
    let mut part = |name: &str, expected: String, came: String| out.push(format!("{name} is {came}, not {expected}"));
    if !same(expected.key.as_ref(), came.key.as_deref()) {
        part("the key", text(&expected.key), bytes(came.key.as_deref()));
    }
    if !same(expected.value.as_ref(), came.value.as_deref()) {
        part("the value", text(&expected.value), bytes(came.value.as_deref()));
    }
    let headers = expected.headers.len() == came.headers.len()
        && expected
            .headers
            .iter()
            .zip(&came.headers)
            .all(|((name, expected), (other, came))| name == other && same(expected.as_ref(), came.as_deref()));
    if !headers {
        part("the list of headers", text(&expected.headers), headers_of(came));
    }
    if expected.partition.is_some_and(|partition| partition != came.partition) {
        part("the partition", text(&expected.partition), came.partition.to_string());
    }
    match (expected.timestamp, came.timestamp) {
        (Some(expected), came) if came != Some(expected) => part("the timestamp", expected.to_string(), text(&came)),
        (None, came) if !came.is_some_and(|came| period.contains(&came)) => {
            part("the timestamp", format!("in {period:?}"), text(&came));
        }
        _ => {}
    }
    out
}

fn same(expected: Option<&Bytes>, came: Option<&[u8]>) -> bool {
    match (expected, came) {
        (None, None) => true,
        (Some(expected), Some(came)) => expected.are(came),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// A record as the files have it, without timestamp and partition.
pub fn as_data(came: &consume::Record) -> Record {
    let of = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(Bytes::of);
    Record {
        topic: came.topic.clone(),
        partition: None,
        timestamp: None,
        key: of(&came.key),
        value: of(&came.value),
        headers: came.headers.iter().map(|(name, value)| (name.clone(), of(value))).collect(),
    }
}

fn shown(came: &consume::Record) -> String {
    text(&as_data(came))
}

fn headers_of(came: &consume::Record) -> String {
    text(&as_data(came).headers)
}

fn bytes(bytes: Option<&[u8]>) -> String {
    text(&bytes.map(Bytes::of))
}

fn text<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(key: &str) -> Record {
        let key = Some(Bytes::of(key.as_bytes()));
        Record { topic: "t".to_owned(), partition: None, timestamp: None, key, value: None, headers: vec![] }
    }

    fn came(key: &str, partition: i32, offset: i64) -> consume::Record {
        let (topic, key) = ("t".to_owned(), Some(key.as_bytes().to_vec()));
        consume::Record { topic, partition, offset, timestamp: Some(5), key, value: None, headers: vec![] }
    }

    #[test]
    fn each_part_of_a_record_counts() {
        let base = came("k", 0, 0);
        let differ = |other: consume::Record| differences(&expected("k"), &other, &(0..=9)).len();
        assert_eq!(differ(base.clone()), 0);
        let header = ("h".to_owned(), None);
        let others = [
            consume::Record { key: None, ..base.clone() },
            consume::Record { value: Some(vec![]), ..base.clone() },
            consume::Record { headers: vec![header], ..base.clone() },
            consume::Record { timestamp: Some(10), ..base },
        ];
        assert_eq!(others.map(differ), [1; 4]);
    }

    #[test]
    fn a_missing_a_further_and_a_swapped_record_are_differences() {
        let (a, b) = (expected("a"), expected("b"));
        let both = [("one", &a), ("two", &b)];
        let count = |came: &[consume::Record]| compare(&both, came, &(0..=9)).len();
        assert_eq!(count(&[came("b", 0, 1), came("a", 0, 0)]), 0);
        assert_eq!(count(&[came("a", 0, 0)]), 1);
        assert_eq!(count(&[came("a", 0, 0), came("b", 0, 1), came("b", 0, 2)]), 1);
        assert_eq!(count(&[came("a", 0, 1), came("b", 0, 0)]), 2);
    }
}

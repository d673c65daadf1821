//! Compares a record that was read with the one that its row gives.
//!
//! In: records. Out: their hashes, and the differences as text. Pure. Values are shown only if the user asked for that.
//!
//! Two records are the same if topic, key, value and headers are: names, values and order. The hash covers these. Time and partition are
//! compared apart, since not every topic keeps the writer's time, and a row without a key may be in any partition.

use crate::setting_text::shown;
use crate::sink::destination::ReadBack;
use crate::sink::{Header, Record};
use std::hash::{DefaultHasher, Hasher};

/// The header with the row's id. Every record has it.
const ID: &str = "id";

/// The hashes by which a record is found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hashes {
    /// Of topic, key, value and headers.
    pub(super) record: u64,
    /// Of topic and id. A record without an id has that of the whole record.
    pub(super) id: u64,
    /// Of topic and key. `None`: the key is null, so the record has no order.
    pub(super) key: Option<u64>,
}

impl Hashes {
    /// The hashes of a record. `topic` stands for its topic.
    pub(super) fn of(topic: u32, record: &Record<'_>) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write_u32(topic);
        part(&mut hasher, record.key);
        part(&mut hasher, record.value);
        for Header { name, value } in record.headers {
            part(&mut hasher, Some(name.as_bytes()));
            part(&mut hasher, *value);
        }
        let whole = hasher.finish();
        let short = |bytes| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u32(topic);
            part(&mut hasher, Some(bytes));
            hasher.finish()
        };
        Self { record: whole, id: id_of(record).map_or(whole, short), key: record.key.map(short) }
    }
}

/// The row's id, as the record's header has it.
pub(super) fn id_of<'a>(record: &Record<'a>) -> Option<&'a [u8]> {
    record.headers.iter().find(|header| header.name == ID)?.value
}

/// Calls `take` with the record in the form in which the destination gives it back. Headers without an order are in that of their names.
pub(super) fn as_read<T>(read_back: ReadBack, record: &Record<'_>, take: impl FnOnce(&Record<'_>) -> T) -> T {
    let ReadBack::Unordered { null_value_is_empty } = read_back else { return take(record) };
    let mut headers: Vec<Header<'_>> = record.headers.iter().filter(|header| header.value.is_some()).copied().collect();
    headers.sort_by_key(|header| header.name);
    let value = if null_value_is_empty { record.value.or(Some(&[])) } else { record.value };
    take(&Record { headers: &headers, value, ..*record })
}

/// Null and empty differ, and so do values of which one ends where the other's next begins.
fn part(hasher: &mut DefaultHasher, bytes: Option<&[u8]>) {
    hasher.write_u64(bytes.map_or(u64::MAX, |bytes| bytes.len() as u64));
    hasher.write(bytes.unwrap_or_default());
}

/// How `found` differs from `expected`. `with_values`: values are shown, too.
pub(super) fn differences(expected: &Record<'_>, found: &Record<'_>, with_values: bool) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(difference("key", expected.key, found.key, with_values));
    all.extend(difference("value", expected.value, found.value, with_values));
    all.extend(header_differences(expected.headers, found.headers, with_values));
    all
}

fn header_differences(expected: &[Header<'_>], found: &[Header<'_>], with_values: bool) -> Vec<String> {
    let mut all = Vec::new();
    for (at, header) in expected.iter().enumerate() {
        match counterpart(found, header, expected, at) {
            None => all.push(format!("header {} is missing", header.name)),
            Some(other) => {
                all.extend(difference(&format!("header {}", header.name), header.value, other.value, with_values));
            }
        }
    }
    for (at, header) in found.iter().enumerate() {
        if counterpart(expected, header, found, at).is_none() {
            all.push(format!("header {} is too many", header.name));
        }
    }
    if all.is_empty() && expected != found {
        let names = |headers: &[Header<'_>]| headers.iter().map(|header| header.name).collect::<Vec<_>>().join(", ");
        all.push(format!("headers are in the order {}, not {}", names(found), names(expected)));
    }
    all
}

/// The header among `others` that corresponds to `header`, the one at `at` in `own`: the same of those with its name.
fn counterpart<'a>(others: &[Header<'a>], header: &Header<'_>, own: &[Header<'_>], at: usize) -> Option<Header<'a>> {
    let before = own.iter().take(at).filter(|other| other.name == header.name).count();
    others.iter().filter(|other| other.name == header.name).nth(before).copied()
}

fn difference(what: &str, expected: Option<&[u8]>, found: Option<&[u8]>, with_values: bool) -> Option<String> {
    if expected == found {
        return None;
    }
    let size = |bytes: Option<&[u8]>| bytes.map_or_else(|| "null".to_owned(), |bytes| format!("{} bytes", bytes.len()));
    if with_values {
        let text = |bytes: Option<&[u8]>| bytes.map_or_else(|| "null".to_owned(), shown);
        return Some(format!("{what}: {}, expected {}", text(found), text(expected)));
    }
    let at = expected.zip(found).map(|(expected, found)| {
        let same = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
        format!(", different from byte {same} on")
    });
    Some(format!("{what}: {}, expected {}{}", size(found), size(expected), at.unwrap_or_default()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sink::Content;
    use proptest::prelude::*;

    pub(in crate::commands::verify) fn record<'a>(
        key: Option<&'a [u8]>,
        value: Option<&'a [u8]>,
        headers: &'a [Header<'a>],
    ) -> Record<'a> {
        Record { topic: "t", key, value, headers, timestamp_millis: 0, partition: None, content: Content::Unknown }
    }

    const A: Header<'static> = Header { name: "a", value: Some(b"1") };
    const B: Header<'static> = Header { name: "b", value: None };

    #[track_caller]
    fn check(expected: &[Header<'_>], found: &[Header<'_>], said: &[&str]) {
        assert_eq!(header_differences(expected, found, false), said);
    }

    #[test]
    fn each_difference_of_headers_is_named_without_its_value() {
        check(&[A, B], &[A, B], &[]);
        check(&[A, B], &[B, A], &["headers are in the order b, a, not a, b"]);
        check(&[A, B], &[A], &["header b is missing"]);
        check(&[A], &[A, B], &["header b is too many"]);
        check(&[A, A], &[A], &["header a is missing"]);
        let other = Header { name: "a", value: Some(b"12") };
        check(&[A], &[other], &["header a: 2 bytes, expected 1 bytes, different from byte 1 on"]);
    }

    #[test]
    fn values_are_shown_only_if_asked_for() {
        let (expected, found) = (record(Some(b"k"), Some(b"abc"), &[]), record(None, Some(b"abd"), &[]));
        let said = differences(&expected, &found, false);
        assert_eq!(said, ["key: null, expected 1 bytes", "value: 3 bytes, expected 3 bytes, different from byte 2 on"]);
        assert_eq!(differences(&expected, &found, true), ["key: null, expected k", "value: abd, expected abc"]);
    }

    #[test]
    fn a_record_is_compared_in_the_form_in_which_it_comes_back() {
        let headers = [B, A, Header { name: "0", value: Some(b"2") }];
        let record = record(None, None, &headers);
        assert!(as_read(ReadBack::Same, &record, |record| record.headers == headers && record.value.is_none()));
        for (null_value_is_empty, value) in [(true, Some(&b""[..])), (false, None)] {
            as_read(ReadBack::Unordered { null_value_is_empty }, &record, |record| {
                let names: Vec<&str> = record.headers.iter().map(|header| header.name).collect();
                assert_eq!((names.as_slice(), record.value), (&["0", "a"][..], value));
            });
        }
    }

    type Bytes = Option<Vec<u8>>;
    type Parts = (Bytes, Bytes, Vec<(String, Bytes)>);

    fn parts() -> impl Strategy<Value = Parts> {
        let bytes = || prop::option::of(prop::collection::vec(0_u8..2, 0..3));
        (bytes(), bytes(), prop::collection::vec(("[ab]", bytes()), 0..3))
    }

    fn borrowed(parts: &Parts) -> Vec<Header<'_>> {
        parts.2.iter().map(|(name, value)| Header { name, value: value.as_deref() }).collect()
    }

    proptest! {
        /// Few values, so that many pairs are equal in part.
        #[test]
        fn records_have_one_hash_exactly_if_no_difference_is_named(one in parts(), other in parts()) {
            let (a, b) = (borrowed(&one), borrowed(&other));
            let (a, b) = (record(one.0.as_deref(), one.1.as_deref(), &a), record(other.0.as_deref(), other.1.as_deref(), &b));
            let is_same = Hashes::of(1, &a).record == Hashes::of(1, &b).record;
            prop_assert_eq!(is_same, differences(&a, &b, false).is_empty());
            prop_assert_eq!(is_same, one == other);
            prop_assert!(Hashes::of(1, &a).record != Hashes::of(2, &a).record);
        }
    }
}

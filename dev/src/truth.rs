//! What was committed against what was received.
//!
//! In: the rows of table `truth` and the records of the topics, each partition in its order. Out: what is missing,
//! repeated, out of order, torn, phantom or corrupted, with the first offenders by name.
//!
//! For one key the committed sequence numbers are 1, 2, 3, … (see [`crate::shop`]). A log is in order when each number
//! appears for the first time after every smaller one. A crash may repeat a contiguous tail: after any number comes
//! at most its successor, else the repeat is torn.

use std::collections::HashMap;
use std::fmt;

use ::postgres::Client;
use anyhow::Result;
use md5::{Digest as _, Md5};

use crate::consume::Record;

/// How many offenders of each kind are named.
const NAMED: usize = 5;

/// A row that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The id of the outbox row, and of the record's header `id`.
    pub id: String,
    /// The record's key.
    pub key: String,
    /// Its place among the rows of that key, from 1.
    pub seq: i64,
    /// MD5 of the payload's text, in hex.
    pub md5: String,
}

/// Reads the truth.
///
/// # Errors
/// The database does not answer.
pub fn load(client: &mut Client) -> Result<Vec<Row>> {
    let rows = client.query("SELECT id, key, seq, md5 FROM truth", &[])?;
    Ok(rows.iter().map(|row| Row { id: row.get(0), key: row.get(1), seq: row.get(2), md5: row.get(3) }).collect())
}

/// Holds the truth and looks at one record after the other.
#[derive(Debug)]
pub struct Checker {
    rows: HashMap<String, (Row, bool)>,
    keys: HashMap<String, KeyState>,
    report: Report,
}

#[derive(Debug, Clone, Copy)]
struct KeyState {
    partition: i32,
    last: i64,
    highest: i64,
}

/// The verdict; see [`Report::is_clean`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows committed.
    pub committed: usize,
    /// Records received, repeats included.
    pub received: usize,
    /// Records of rows that had been received already.
    pub repeated: usize,
    /// Rows never received: a loss.
    pub missing: usize,
    /// First appearances after a later one of the same key, or in another partition.
    pub out_of_order: usize,
    /// Places where a key's log leaps forward: a repeat that is no contiguous tail, or a loss.
    pub torn: usize,
    /// Records of no committed row: rolled back, or invented.
    pub phantom: usize,
    /// Records whose key, topic or payload is not the row's.
    pub corrupted: usize,
    /// The first offenders.
    pub offenders: Vec<String>,
}

impl Checker {
    /// Starts with nothing received.
    pub fn new(rows: Vec<Row>) -> Self {
        let report = Report { committed: rows.len(), ..Report::default() };
        let rows = rows.into_iter().map(|row| (row.id.clone(), (row, false))).collect();
        Self { rows, keys: HashMap::new(), report }
    }

    /// Looks at the next record of its partition.
    pub fn see(&mut self, record: &Record) {
        let report = &mut self.report;
        report.received += 1;
        let place = || format!("{} p{} offset {}", record.topic, record.partition, record.offset);
        let Some((row, seen)) = self.rows.get_mut(record.header("id").unwrap_or_default()) else {
            report.phantom += 1;
            return report.name(report.phantom, || format!("phantom: id {:?} at {}", record.header("id"), place()));
        };
        if !is_the_same(row, record) {
            report.corrupted += 1;
            report
                .name(report.corrupted, || format!("corrupted: id {} at {}: {}", row.id, place(), record.value_text()));
        }
        let first = !std::mem::replace(seen, true);
        report.repeated += usize::from(!first);
        let state = self.keys.entry(row.key.clone());
        let state = state.or_insert(KeyState { partition: record.partition, last: 0, highest: 0 });
        if row.seq > state.last + 1 {
            report.torn += 1;
            let (key, last) = (&row.key, state.last);
            report.name(report.torn, || format!("torn: {key} leaps from {last} to {} at {}", row.seq, place()));
        }
        if first && (row.seq < state.highest || record.partition != state.partition) {
            report.out_of_order += 1;
            let (key, highest) = (&row.key, state.highest);
            report.name(report.out_of_order, || {
                format!("out of order: {key} {} after {highest} at {}", row.seq, place())
            });
        }
        state.last = row.seq;
        state.highest = state.highest.max(row.seq);
    }

    /// The verdict over everything seen.
    pub fn finish(mut self) -> Report {
        let missing = self.rows.values().filter(|(_, seen)| !seen).map(|(row, _)| row);
        let mut missing: Vec<&Row> = missing.collect();
        missing.sort_by(|a, b| (&a.key, a.seq).cmp(&(&b.key, b.seq)));
        for (count, row) in (1..).zip(&missing) {
            self.report.name(count, || format!("missing: {} {} id {}", row.key, row.seq, row.id));
        }
        self.report.missing = missing.len();
        self.report
    }
}

/// Compares at once.
pub fn compare<'a>(rows: Vec<Row>, records: impl IntoIterator<Item = &'a Record>) -> Report {
    let mut checker = Checker::new(rows);
    records.into_iter().for_each(|record| checker.see(record));
    checker.finish()
}

fn is_the_same(row: &Row, record: &Record) -> bool {
    let kind = row.key.split('-').next().unwrap_or_default();
    let digest = md5_hex(record.value.as_deref().unwrap_or_default());
    record.key_text() == row.key && record.topic.rsplit('.').next() == Some(kind) && digest == row.md5
}

/// As Postgres' `md5()` writes it.
fn md5_hex(bytes: &[u8]) -> String {
    format!("{:032x}", u128::from_be_bytes(Md5::digest(bytes).into()))
}

impl Report {
    /// Whether nothing is wrong; repeats are not.
    pub fn is_clean(&self) -> bool {
        self.missing + self.out_of_order + self.torn + self.phantom + self.corrupted == 0
    }

    fn name(&mut self, count: usize, offender: impl FnOnce() -> String) {
        if count <= NAMED {
            self.offenders.push(offender());
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, received, repeated, missing, out_of_order, torn, phantom, corrupted, .. } = self;
        write!(
            f,
            "committed {committed}  received {received}  repeated {repeated}  missing {missing}  \
             out of order {out_of_order}  torn {torn}  phantom {phantom}  corrupted {corrupted}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, seq: i64) -> Row {
        Row { id: format!("{key}/{seq}"), key: key.to_owned(), seq, md5: md5_hex(b"{}") }
    }

    fn record(key: &str, seq: i64) -> Record {
        Record {
            topic: "outbox.event.order".to_owned(),
            partition: 0,
            offset: 0,
            timestamp: None,
            key: Some(key.as_bytes().to_vec()),
            value: Some(b"{}".to_vec()),
            headers: vec![("id".to_owned(), Some(format!("{key}/{seq}").into_bytes()))],
        }
    }

    #[track_caller]
    fn check(received: &[i64], wanted: &Report) {
        let rows = (1..=4).map(|seq| row("order-1", seq)).collect();
        let records: Vec<Record> = received.iter().map(|seq| record("order-1", *seq)).collect();
        let mut report = compare(rows, &records);
        report.offenders.clear();
        assert_eq!(report, Report { committed: 4, received: received.len(), ..wanted.clone() });
    }

    #[test]
    fn everything_once_and_a_repeated_tail_are_clean() {
        check(&[1, 2, 3, 4], &Report::default());
        check(&[1, 2, 3, 2, 3, 4], &Report { repeated: 2, ..Report::default() });
        assert!(Report { repeated: 2, ..Report::default() }.is_clean());
    }

    #[test]
    fn a_lost_row_is_missing_and_leaves_a_leap() {
        check(&[1, 2, 4], &Report { missing: 1, torn: 1, ..Report::default() });
        check(&[1, 2, 3], &Report { missing: 1, ..Report::default() });
    }

    #[test]
    fn a_swap_is_out_of_order() {
        check(&[1, 3, 2, 4], &Report { out_of_order: 1, torn: 2, ..Report::default() });
    }

    #[test]
    fn a_repeat_that_leaps_is_torn() {
        check(&[1, 2, 3, 4, 2, 4], &Report { repeated: 2, torn: 1, ..Report::default() });
    }

    #[test]
    fn a_record_of_no_committed_row_is_a_phantom_and_a_changed_one_is_corrupted() {
        check(&[1, 2, 3, 4, 5], &Report { phantom: 1, ..Report::default() });
        let mut changed = record("order-1", 1);
        changed.value = Some(b"{ }".to_vec());
        let report = compare(vec![row("order-1", 1)], &[changed]);
        assert_eq!((report.corrupted, report.is_clean(), report.offenders.len()), (1, false, 1));
    }

    #[test]
    fn a_key_that_changes_its_partition_is_out_of_order() {
        let mut moved = record("order-1", 2);
        moved.partition = 1;
        let report = compare(vec![row("order-1", 1), row("order-1", 2)], &[record("order-1", 1), moved]);
        assert_eq!(report.out_of_order, 1);
    }
}

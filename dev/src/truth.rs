//! Compares committed rows with received records.
//!
//! In: the rows of tables `truth` and `truth_bad`, and the records of the topics, each partition in its order. Out: what
//! is missing, repeated, out of order, torn, without a row or corrupted, with the first offenders by name.
//!
//! For one key the committed sequence numbers are 1, 2, 3, … (see [`crate::shop`]). A log is in order when each number
//! appears for the first time after every smaller one. A crash may repeat a contiguous tail: after any number comes
//! at most its successor, else the repeat is torn. Rows that cannot be published have no number: they must be in the
//! dead-letter topic, all of them and nothing else.
//!
//! Of a row only digests are kept, so that millions of them fit.

use std::collections::HashMap;
use std::fmt;

use ::postgres::Client;
use ::postgres::fallible_iterator::FallibleIterator as _;
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
    let mut rows = Vec::new();
    for_each(client, |row| rows.push(row))?;
    Ok(rows)
}

fn for_each(client: &mut Client, mut take: impl FnMut(Row)) -> Result<()> {
    let nothing: [&str; 0] = [];
    let mut rows = client.query_raw("SELECT id, key, seq, md5 FROM truth", nothing)?;
    while let Some(row) = rows.next()? {
        take(Row { id: row.get(0), key: row.get(1), seq: row.get(2), md5: row.get(3) });
    }
    Ok(())
}

/// Holds the truth and looks at one record after the other.
#[derive(Debug, Default)]
pub struct Checker {
    /// By the id's digest.
    rows: HashMap<u128, Expected>,
    keys: Vec<KeyState>,
    key_numbers: HashMap<String, u32>,
    report: Report,
}

#[derive(Debug, Clone, Copy)]
struct Expected {
    key: u32,
    seen: bool,
    seq: i64,
    md5: u128,
}

#[derive(Debug, Clone)]
struct KeyState {
    key: String,
    partition: Option<i32>,
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
    pub without_row: usize,
    /// Records whose key, topic or payload is not the row's.
    pub corrupted: usize,
    /// The first offenders.
    pub offenders: Vec<String>,
}

impl Checker {
    /// Starts with table `truth`, and nothing received.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn load(client: &mut Client) -> Result<Self> {
        let mut checker = Self::default();
        for_each(client, |row| checker.expect(&row))?;
        Ok(checker)
    }

    /// Adds a row that has to come.
    fn expect(&mut self, row: &Row) {
        let next = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        let key = *self.key_numbers.entry(row.key.clone()).or_insert(next);
        if key == next {
            self.keys.push(KeyState { key: row.key.clone(), partition: None, last: 0, highest: 0 });
        }
        let md5 = u128::from_str_radix(&row.md5, 16).unwrap_or_default();
        self.rows.insert(digest(row.id.as_bytes()), Expected { key, seen: false, seq: row.seq, md5 });
        self.report.committed += 1;
    }

    /// Looks at the next record of its partition.
    pub fn see(&mut self, record: &Record) {
        let report = &mut self.report;
        report.received += 1;
        let id = record.header("id").unwrap_or_default();
        let place = || format!("{} p{} offset {}", record.topic, record.partition, record.offset);
        let known = self.rows.get_mut(&digest(id.as_bytes()));
        let known = known.and_then(|row| self.keys.get_mut(row.key as usize).map(|state| (row, state)));
        let Some((row, state)) = known else {
            report.without_row += 1;
            return report
                .name(report.without_row, || format!("without row: id {:?} at {}", record.header("id"), place()));
        };
        if !is_the_same(&state.key, row.md5, record) {
            report.corrupted += 1;
            report.name(report.corrupted, || format!("corrupted: id {id} at {}: {}", place(), record.value_text()));
        }
        let first = !std::mem::replace(&mut row.seen, true);
        if !first {
            report.repeated += 1;
            report.name(report.repeated, || format!("repeated: {} {} at {}", state.key, row.seq, place()));
        }
        if row.seq > state.last + 1 {
            report.torn += 1;
            let (key, last) = (&state.key, state.last);
            report.name(report.torn, || format!("torn: {key} leaps from {last} to {} at {}", row.seq, place()));
        }
        let partition = *state.partition.get_or_insert(record.partition);
        if first && (row.seq < state.highest || record.partition != partition) {
            report.out_of_order += 1;
            let (key, highest) = (&state.key, state.highest);
            report.name(report.out_of_order, || {
                format!("out of order: {key} {} after {highest} at {}", row.seq, place())
            });
        }
        state.last = row.seq;
        state.highest = state.highest.max(row.seq);
    }

    /// The verdict over everything seen.
    pub fn finish(mut self) -> Report {
        let missing = self.rows.values().filter(|row| !row.seen);
        let named = |row: &Expected| (self.keys.get(row.key as usize).map(|state| state.key.as_str()), row.seq);
        let mut missing: Vec<_> = missing.map(named).collect();
        missing.sort_unstable();
        for (count, (key, seq)) in (1..).zip(&missing) {
            self.report.name(count, || format!("missing: {} {seq}", key.unwrap_or_default()));
        }
        self.report.missing = missing.len();
        self.report
    }
}

fn is_the_same(key: &str, md5: u128, record: &Record) -> bool {
    let kind = key.split('-').next().unwrap_or_default();
    let digest = digest(record.value.as_deref().unwrap_or_default());
    let topic = record.topic.trim_end_matches(".fifo");
    record.key_text() == key && topic.rsplit(['.', '-']).next() == Some(kind) && digest == md5
}

fn digest(bytes: &[u8]) -> u128 {
    u128::from_be_bytes(Md5::digest(bytes).into())
}

/// The bad rows, each of which has to be in the dead-letter topic, and what was seen there.
#[derive(Debug, Default)]
pub struct DeadLetters {
    rows: HashMap<String, (u128, bool)>,
    /// Records whose payload is not the row's, or that do not say what was wrong.
    pub corrupted: usize,
    /// Records of no bad row.
    pub without_row: usize,
    /// Records that came once more.
    pub repeated: usize,
}

impl DeadLetters {
    /// Reads table `truth_bad`.
    ///
    /// # Errors
    /// The database does not answer.
    pub fn load(client: &mut Client) -> Result<Self> {
        let rows = client.query("SELECT id, md5 FROM truth_bad", &[])?;
        let rows = rows.iter().map(|row| {
            let md5 = u128::from_str_radix(row.get(1), 16).unwrap_or_default();
            (row.get(0), (md5, false))
        });
        Ok(Self { rows: rows.collect(), ..Self::default() })
    }

    /// Looks at one record of the dead-letter topic.
    pub fn see(&mut self, record: &Record) {
        let Some((md5, seen)) = self.rows.get_mut(record.header("id").unwrap_or_default()) else {
            self.without_row += 1;
            return;
        };
        let whole = digest(record.value.as_deref().unwrap_or_default()) == *md5;
        self.corrupted += usize::from(!whole || record.header("walrelay-error").is_none());
        self.repeated += usize::from(std::mem::replace(seen, true));
    }

    /// Bad rows that were committed.
    pub fn expected(&self) -> usize {
        self.rows.len()
    }

    /// Bad rows that are not in the topic.
    pub fn missing(&self) -> usize {
        self.rows.values().filter(|(_, seen)| !seen).count()
    }

    /// Whether exactly the bad rows are there; repeats are not wrong.
    pub fn is_exact(&self) -> bool {
        self.missing() + self.without_row + self.corrupted == 0
    }
}

impl fmt::Display for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { corrupted, without_row, repeated, .. } = self;
        write!(
            f,
            "bad rows {}  missing {}  repeated {repeated}  without row {without_row}  corrupted {corrupted}",
            self.expected(),
            self.missing()
        )
    }
}

impl Report {
    /// Whether nothing is wrong; repeats are not.
    pub fn is_clean(&self) -> bool {
        self.missing + self.out_of_order + self.torn + self.without_row + self.corrupted == 0
    }

    fn name(&mut self, count: usize, offender: impl FnOnce() -> String) {
        if count <= NAMED {
            self.offenders.push(offender());
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, received, repeated, missing, out_of_order, torn, without_row, corrupted, .. } = self;
        write!(
            f,
            "committed {committed}  received {received}  repeated {repeated}  missing {missing}  \
             out of order {out_of_order}  torn {torn}  without row {without_row}  corrupted {corrupted}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare<'a>(rows: &[Row], records: impl IntoIterator<Item = &'a Record>) -> Report {
        let mut checker = Checker::default();
        for row in rows {
            checker.expect(row);
        }
        records.into_iter().for_each(|record| checker.see(record));
        checker.finish()
    }

    fn row(key: &str, seq: i64) -> Row {
        Row { id: format!("{key}/{seq}"), key: key.to_owned(), seq, md5: format!("{:032x}", digest(b"{}")) }
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
        let rows: Vec<Row> = (1..=4).map(|seq| row("order-1", seq)).collect();
        let records: Vec<Record> = received.iter().map(|seq| record("order-1", *seq)).collect();
        let mut report = compare(&rows, &records);
        report.offenders.clear();
        assert_eq!(report, Report { committed: 4, received: received.len(), ..wanted.clone() });
    }

    #[test]
    fn everything_once_and_a_repeated_tail_are_clean() {
        check(&[1, 2, 3, 4], &Report::default());
        check(&[1, 2, 3, 2, 3, 4], &Report { repeated: 2, ..Report::default() });
        assert!(Report { repeated: 2, ..Report::default() }.is_clean());
        let twice = compare(&[row("order-1", 1)], &[record("order-1", 1), record("order-1", 1)]);
        assert_eq!(twice.offenders, ["repeated: order-1 1 at outbox.event.order p0 offset 0"]);
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
    fn a_record_of_no_committed_row_is_reported_and_a_changed_one_is_corrupted() {
        check(&[1, 2, 3, 4, 5], &Report { without_row: 1, ..Report::default() });
        let mut changed = record("order-1", 1);
        changed.value = Some(b"{ }".to_vec());
        let report = compare(&[row("order-1", 1)], &[changed]);
        assert_eq!((report.corrupted, report.is_clean(), report.offenders.len()), (1, false, 1));
    }

    #[test]
    fn exactly_the_bad_rows_are_dead_letters() {
        let mut dead_letters = DeadLetters::default();
        let mut dead_letter = record("order-1", 1);
        dead_letter.headers.push(("walrelay-error".to_owned(), Some(b"too large".to_vec())));
        dead_letters.rows.insert("order-1/1".to_owned(), (digest(b"{}"), false));
        assert!(!dead_letters.is_exact());
        dead_letters.see(&dead_letter);
        dead_letters.see(&dead_letter);
        assert!(dead_letters.is_exact() && dead_letters.repeated == 1, "{dead_letters}");
        dead_letters.see(&record("order-1", 2));
        dead_letter.value = None;
        dead_letters.see(&dead_letter);
        assert_eq!((dead_letters.without_row, dead_letters.corrupted), (1, 1));
    }

    #[test]
    fn a_key_that_changes_its_partition_is_out_of_order() {
        let mut moved = record("order-1", 2);
        moved.partition = 1;
        let report = compare(&[row("order-1", 1), row("order-1", 2)], &[record("order-1", 1), moved]);
        assert_eq!(report.out_of_order, 1);
    }
}

//! The judge: knows what was committed, sees every record that a broker appends and every position that is confirmed.
//!
//! * A record is what its row says, and nothing is published that was not committed.
//! * One producer takes each row once, without gaps, in commit order.
//! * In a partition, rows appear for the first time in commit order.
//! * When a position is confirmed, every row that commits before it *is in the broker*.
//! * Before a row of a key appears, the action of every earlier one of that key is decided: in the broker, as a dead letter, or
//!   skipped where that was asked for. Nothing waits for the dead letter of a row of which no record was made.
//! * Only what is bad becomes a dead letter.
//! * Before a position or a progress passes a table's row whose payload is nowhere, the row is noted.
//! * In transactions, no row appears twice.
//! * A record that repeats an older row of its key is followed by all newer ones again: a consumer that keeps the last value of each
//!   key ends with the newest. A relay that publishes after it has lost the slot breaks that.
//! * Only positions that the server has named are confirmed, and they never go back.

use crate::broker::Partition;
use crate::wal::{Row, Wal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use walrelay::lsn::Lsn;
use walrelay::sink::Record;

#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// How often each row was appended.
    pub(crate) appended: Vec<u32>,
    /// Rows whose dead letter was appended.
    pub(crate) dead_letters: BTreeSet<usize>,
    /// Rows of which no record was made, and whose dead letters were taken: nothing waits for them.
    pub(crate) set_aside: BTreeSet<usize>,
    /// Bad rows that may be skipped.
    pub(crate) excused: BTreeSet<usize>,
    /// Rows whose last dead letter went without its payload.
    pub(crate) bare: BTreeSet<usize>,
    /// Rows that are noted as skipped.
    pub(crate) noted: BTreeSet<usize>,
    /// Rows of each topic and key that have been committed and are not known to be decided, and how many rows were looked at.
    unsealed: BTreeMap<(&'static str, String), VecDeque<usize>>,
    looked_at: usize,
    /// Every row before this one was appended, or is lost with its timeline.
    settled: usize,
    /// The last row that appeared for the first time, in each partition.
    newest: BTreeMap<Partition, usize>,
    /// What each topic and key has.
    records: BTreeMap<(&'static str, String), KeyRecords>,
    /// Positions that may be confirmed.
    named: BTreeSet<Lsn>,
    /// No row may appear twice.
    pub(crate) exactly_once: bool,
    /// Records appended more than once.
    pub(crate) repeats: u64,
    /// Status updates judged.
    pub(crate) confirmations: u64,
}

/// The records of one key.
#[derive(Debug, Default)]
struct KeyRecords {
    /// The rows that have one.
    rows: BTreeSet<usize>,
    /// The row of the last record.
    last: usize,
    /// A record left out rows that have records and are newer than the one before it.
    leapt: bool,
}

/// What one producer has taken.
#[derive(Debug, Default, Clone)]
pub(crate) struct Taken {
    rows: BTreeSet<usize>,
    /// The row that must come next, when one has come before.
    next: Option<usize>,
}

impl Taken {
    pub(crate) fn last(&self) -> Option<usize> {
        self.rows.last().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The producer takes row `number`. `begin`: where its stream began; `others`: what the slot had confirmed then, maybe by
    /// another relay.
    pub(crate) fn take(&mut self, number: usize, (wal, truth): (&Wal, &Truth), begin: Lsn, others: Lsn) {
        assert!(self.rows.insert(number), "row {number} was handed to the same producer twice");
        // A row whose timeline was left while it was on its way may still come: the WAL that its stream began in is cut.
        let first = || if wal.rows[number].lost { number } else { first_row(wal, begin) };
        let expected = self.next.unwrap_or_else(first);
        assert!(number >= expected, "row {number} came after row {expected} had its turn");
        for skipped in expected..number {
            let row = &wal.rows[skipped];
            let elsewhere = row.position.final_lsn < others;
            let is_decided = truth.is_decided(skipped, row);
            assert!(is_decided || elsewhere, "row {skipped} at {} was skipped before row {number}", row.position);
        }
        self.next = Some(number + 1);
    }
}

/// The first row that a stream from `begin` carries.
fn first_row(wal: &Wal, begin: Lsn) -> usize {
    wal.transactions.get(wal.from(begin)).map_or(wal.rows.len(), |transaction| transaction.rows.0)
}

impl Truth {
    /// The server names a position: the end of a transaction, a keepalive, its slot's own.
    pub(crate) fn name(&mut self, lsn: Lsn) {
        self.named.insert(lsn);
    }

    /// Positions beyond the point where a timeline was left mean nothing.
    pub(crate) fn cut(&mut self, at: Lsn) {
        self.named.split_off(&Lsn::new(at.bytes() + 1));
        self.named.insert(at);
    }

    /// The broker appends a row's dead letter.
    pub(crate) fn append_dead_letter(&mut self, number: usize, wal: &Wal) {
        if !self.set_aside.contains(&number) {
            self.nothing_before_it_is_open(number, wal);
        }
        self.dead_letters.insert(number);
    }

    /// Whether nothing more is to be expected of the row.
    fn is_decided(&self, number: usize, row: &Row) -> bool {
        row.lost || self.has(number) || self.dead_letters.contains(&number) || self.excused.contains(&number)
    }

    /// Whether the row's payload is nowhere but in its table, and nothing says so.
    fn is_unnoted(&self, number: usize, row: &Row) -> bool {
        let is_published = self.has(number) || self.dead_letters.contains(&number) && !self.bare.contains(&number);
        row.of_table && !row.lost && !is_published && !self.noted.contains(&number)
    }

    /// A progress is committed with the records before it.
    pub(crate) fn progress(&self, end_lsn: Lsn, wal: &Wal) {
        let mut before = wal.rows.iter().enumerate().filter(|(_, row)| row.position.final_lsn < end_lsn);
        if let Some((row, _)) = before.find(|(number, row)| self.is_unnoted(*number, row)) {
            panic!("UNNOTED: {end_lsn} was committed, and row {row} is skipped and not noted");
        }
    }

    /// Whether every earlier row of its topic and key is decided.
    pub(crate) fn is_turn_of(&self, number: usize, wal: &Wal) -> bool {
        let row = &wal.rows[number];
        let mut before = wal.rows.iter().enumerate().take(number);
        before.all(|(at, it)| it.route != row.route || it.key != row.key || it.key.is_none() || self.is_decided(at, it))
    }

    /// No earlier row of its topic and key is without an action.
    fn nothing_before_it_is_open(&mut self, number: usize, wal: &Wal) {
        for (number, row) in wal.rows.iter().enumerate().skip(self.looked_at) {
            if let Some(key) = &row.key {
                self.unsealed.entry((row.route, key.clone())).or_default().push_back(number);
            }
        }
        self.looked_at = wal.rows.len();
        let row = &wal.rows[number];
        let Some(key) = row.key.clone().filter(|_| !row.lost) else { return };
        let place = (row.route, key);
        let mut queue = self.unsealed.remove(&place).unwrap_or_default();
        let is_passed = |row: usize| self.is_decided(row, &wal.rows[row]) || self.set_aside.contains(&row);
        while queue.front().is_some_and(|first| is_passed(*first)) {
            queue.pop_front();
        }
        if let Some(open) = queue.front() {
            assert!(*open >= number, "row {number} appears before the action of row {open} is decided");
        }
        self.unsealed.insert(place, queue);
    }

    /// The broker appends.
    pub(crate) fn append(&mut self, partition: &Partition, number: usize, wal: &Wal) {
        let row = &wal.rows[number];
        self.nothing_before_it_is_open(number, wal);
        if self.appended.len() <= number {
            self.appended.resize(number + 1, 0);
        }
        self.appended[number] += 1;
        self.comes_last(number, wal);
        if self.appended[number] > 1 {
            assert!(!self.exactly_once || row.lost, "row {number} appears twice, and is to appear once");
            self.repeats += 1;
        } else if row.key.is_some() && self.comes_again(number, wal) {
            // (A bad row that is good later, its topic's limit raised, may follow later rows when it comes again.)
            let newest = self.newest.entry(partition.clone()).or_insert(number);
            assert!(*newest <= number, "row {number} appears in {partition:?} after row {newest}, which is later");
            *newest = number;
        }
    }

    fn comes_last(&mut self, number: usize, wal: &Wal) {
        let Some(key) = &wal.rows[number].key else { return };
        let place = (wal.rows[number].route, key.clone());
        let mut records = self.records.remove(&place).unwrap_or_default();
        let left_out = records.rows.range(records.last + 1..number.max(records.last + 1));
        records.leapt |= left_out.into_iter().any(|row| self.comes_again(*row, wal));
        records.rows.insert(number);
        records.last = number;
        self.records.insert(place, records);
    }

    /// Whether each relay that reads the row makes a record of it.
    fn comes_again(&self, number: usize, wal: &Wal) -> bool {
        let is_bad = [&self.dead_letters, &self.set_aside, &self.excused].iter().any(|rows| rows.contains(&number));
        !wal.rows[number].lost && !is_bad
    }

    /// The keys of which an old record was not followed by all newer ones.
    pub(crate) fn stale_keys(&self, wal: &Wal) -> Vec<(&str, &str)> {
        let is_stale = |records: &KeyRecords| {
            let newer = records.rows.range(records.last + 1..);
            records.leapt || newer.into_iter().any(|row| self.comes_again(*row, wal))
        };
        let stale = self.records.iter().filter(|(_, records)| is_stale(records));
        stale.map(|((route, key), _)| (*route, key.as_str())).collect()
    }

    pub(crate) fn has(&self, number: usize) -> bool {
        self.appended.get(number).is_some_and(|times| *times > 0)
    }

    /// The first row that is neither appended nor lost, nor skipped and noted.
    pub(crate) fn first_missing(&mut self, wal: &Wal) -> Option<usize> {
        let is_there = |truth: &Self, number, row| truth.is_decided(number, row) && !truth.is_unnoted(number, row);
        while wal.rows.get(self.settled).is_some_and(|row| is_there(self, self.settled, row)) {
            self.settled += 1;
        }
        (self.settled < wal.rows.len()).then_some(self.settled)
    }

    /// A position is confirmed.
    pub(crate) fn confirm(&mut self, lsn: Lsn, wal: &Wal) {
        self.confirmations += 1;
        assert!(lsn > Lsn::ZERO, "0/0 was confirmed");
        assert!(lsn <= wal.end, "{lsn} was confirmed, and the WAL ends at {}", wal.end);
        assert!(self.named.contains(&lsn), "{lsn} was confirmed, which no commit ends at and no keepalive names");
        if let Some(missing) = self.first_missing(wal) {
            let position = wal.rows[missing].position;
            assert!(
                position.final_lsn >= lsn,
                "LOSS: {lsn} was confirmed, and row {missing} at {position} is not there"
            );
        }
    }
}

/// Where dead letters go.
pub(crate) const DEAD_LETTERS: &str = "walrelay.dead-letter";

/// What a record is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) number: usize,
    pub(crate) dead_letter: bool,
    /// Of key and value.
    pub(crate) bytes: u64,
}

/// Which row a record is, after it was compared with what was committed.
pub(crate) fn identify(record: &Record<'_>, wal: &Wal) -> Found {
    let bytes = record.bytes() as u64;
    if record.topic == DEAD_LETTERS {
        return Found { number: identify_dead_letter(record, wal), dead_letter: true, bytes };
    }
    Found { number: identify_record(record, wal), dead_letter: false, bytes }
}

fn identify_dead_letter(record: &Record<'_>, wal: &Wal) -> usize {
    let header = |name: &str| {
        let header = record.headers.iter().find(|header| header.name == name)?;
        header.value.map(|value| String::from_utf8(value.to_vec()).unwrap())
    };
    let number: usize = header("id").expect("an id").parse().expect("a row's number");
    let row = wal.rows.get(number).expect("a row that was committed");
    assert_eq!(record.key, row.key.as_ref().map(String::as_bytes), "row {number}");
    assert_eq!(header("walrelay-topic"), Some(topic(row)));
    assert_eq!(header("walrelay-position"), Some(row.position.to_string()));
    assert!(header("walrelay-error").is_some() && header("walrelay-table").is_some());
    match header("walrelay-payload-bytes") {
        Some(bytes) => assert_eq!((record.value, bytes), (None, row.payload.len().to_string())),
        None => assert_eq!(record.value, Some(row.payload.as_bytes()), "row {number}"),
    }
    number
}

fn identify_record(record: &Record<'_>, wal: &Wal) -> usize {
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    let id = record.headers.first().filter(|header| header.name == "id").expect("the first header is the id");
    let number: usize = text(id.value).expect("an id").parse().expect("a row's number");
    let row = wal.rows.get(number).expect("a row that was committed");
    assert_eq!(record.topic, topic(row), "row {number}");
    assert_eq!(text(record.key), row.key, "row {number}");
    assert_eq!(text(record.value).as_deref(), Some(row.payload.as_str()), "row {number}");
    assert_eq!(record.timestamp_millis, row.commit_time.unix_millis(), "row {number}");
    assert_eq!(record.partition, None, "row {number}");
    number
}

pub(crate) fn topic(row: &Row) -> String {
    format!("outbox.event.{}", row.route)
}

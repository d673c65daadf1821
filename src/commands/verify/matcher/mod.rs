//! [`Matcher`]: which row has which record. Pure: it does no I/O and reads no clock.
//!
//! ```text
//!  rows of the slot, in their order ──► expect ─┐             ┌─► right, or altered: another time, another partition
//!                                               ├─ same hash ─┤
//!  records, each partition in its order ► found ┘             └─► the order of its key
//!        │
//!        └─ no row yet ─► unknown ─► settle, once the slot is past all rows that were published by then:
//!                                    a row has had this record before: repeated │ a row with this id is open: kept, it may be that row's,
//!                                    altered │ else: other
//! ```
//!
//! In: rows as [`Expected`], records, the end of the window, and at the end what became of the rows that are still open. Out: counts, and the
//! first faults.
//!
//! A row is open from [`Matcher::expect`] until a record with its hash comes. Rows with equal records, and their records, are matched one by
//! one, the oldest first. Rows behind the end of the window are known, so that their records are not *other*, and do not count.
//!
//! Invariants: each record is counted at most once; each row of the window is one of the six in [`Counts`], and may be out of
//! order or stale besides; a key's rows are compared in their order, whichever of row and record came first. Memory: a row that has its record
//! and no open row of its key before it shrinks to 8 bytes.

use super::comparison::{Hashes, differences, id_of};
use super::faults::{Fault, Faults, RecordAt, Verdict};
use super::fingerprints::{Chains, Fingerprints};
use crate::lsn::{Lsn, Position};
use crate::sink::{HeaderRoom, OwnedRecord, Record, Source};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::AddAssign;

/// The index that names no row.
const NONE: u32 = u32::MAX;

/// An entry of a hash table takes about so many bytes beyond its value.
const ENTRY: usize = 24;

/// The record that a row gives.
#[derive(Debug)]
pub(super) struct Expected {
    /// The row's position.
    pub(super) position: Position,
    /// The row's table or message.
    pub(super) source: Source,
    /// The number of its topic.
    pub(super) topic: u32,
    /// The hashes of the record.
    pub(super) hashes: Hashes,
    /// The row's id, as the record has it.
    pub(super) id: Box<[u8]>,
    /// The partition that the row asks for. `None`: the key decides.
    pub(super) partition: Option<i32>,
    /// Milliseconds since 1970. `None`: the time is not compared.
    pub(super) time: Option<i64>,
    /// No record can be made of the row, so a dead letter is expected.
    pub(super) is_bad: bool,
    /// The record itself, to name differences.
    pub(super) copy: Option<Box<OwnedRecord>>,
}

impl Expected {
    /// The memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.kept_bytes()
    }

    fn kept_bytes(&self) -> usize {
        self.id.len() + self.copy.as_ref().map_or(0, |copy| copy.room_bytes())
    }
}

/// The facts of a record beside its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundAt {
    /// Where it lies.
    pub(super) at: RecordAt,
    /// Its writer's time, in milliseconds since 1970. `None`: the broker set the time.
    pub(super) time: Option<i64>,
    /// The partition for its key. `None`: any.
    pub(super) partition_of_key: Option<i32>,
}

/// A record for which there is no row yet.
#[derive(Debug)]
struct Unknown {
    found: FoundAt,
    hashes: Hashes,
    id: Box<[u8]>,
    copy: Option<Box<OwnedRecord>>,
}

/// The witness of what is known of rows and topics when the window is over.
pub(super) trait Witness {
    /// The outcome for a row that has no record. `has_candidate`: a record has its id and other bytes.
    fn explanation(&mut self, row: &Expected, has_candidate: bool) -> Explanation;

    /// Why the last record of a key may not have been read whose newest row has this topic and this position. `None`: it was.
    fn why_unknown(&mut self, topic: u32, newest: Position) -> Option<String>;

    /// Why records of this topic may have gone unread between others that were read. `None`: none has.
    fn why_lost(&mut self, topic: u32) -> Option<String>;

    /// Whether nothing counts that was read of this topic: it is another one now.
    fn is_void(&mut self, topic: u32) -> bool;
}

/// The outcome for a row that has no record at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Explanation {
    /// The relay skipped it, and has noted that.
    Skipped,
    /// Nobody can say, for this reason.
    NotJudged(String),
    /// Nothing explains it.
    Unexplained,
}

/// The counts of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Rows of the window. Each is one of the next six.
    pub(super) rows: u64,
    /// Rows with their record.
    pub(super) right: u64,
    pub(super) missing: u64,
    pub(super) altered: u64,
    /// Bad rows with their dead letter.
    pub(super) dead_lettered: u64,
    /// Bad rows that the relay skipped, and noted.
    pub(super) skipped: u64,
    pub(super) not_judged: u64,
    /// Keys with rows whose first records are in another order.
    pub(super) out_of_order: u64,
    /// Keys whose last record is not that of the newest row.
    pub(super) stale_keys: u64,
    /// Records without a row.
    pub(super) other: u64,
    /// Records beyond the first of a row.
    pub(super) repeated: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, others: Self) {
        // By their names, so that the compiler asks for a new one.
        let Self {
            rows,
            right,
            missing,
            altered,
            dead_lettered,
            skipped,
            not_judged,
            out_of_order,
            stale_keys,
            other,
            repeated,
        } = others;
        self.rows += rows;
        self.right += right;
        self.missing += missing;
        self.altered += altered;
        self.dead_lettered += dead_lettered;
        self.skipped += skipped;
        self.not_judged += not_judged;
        self.out_of_order += out_of_order;
        self.stale_keys += stale_keys;
        self.other += other;
        self.repeated += repeated;
    }
}

/// The result of a window.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The counts.
    pub(super) counts: Counts,
    /// The first faults, by position.
    pub(super) faults: Vec<Fault>,
    /// The reasons for which rows were not judged, with their numbers.
    pub(super) reasons: BTreeMap<String, u64>,
    /// The reasons for which the order of keys was not judged, with their numbers.
    pub(super) keys: BTreeMap<String, u64>,
    /// The topics that were not read as they ought to be, each with the reason.
    pub(super) topics: BTreeMap<String, String>,
}

/// The settings of a [`Matcher`].
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    /// A record without a row is a fault.
    pub(super) exclusive: bool,
    /// A repeated record is a fault.
    pub(super) once: bool,
    /// Keys of a table with a partition column have an order in each partition.
    pub(super) asks_for_partitions: bool,
    /// Differences show values.
    pub(super) with_values: bool,
    /// The most faults that are shown.
    pub(super) show: usize,
    /// The most bytes of memory.
    pub(super) memory: u64,
}

/// A row that is open, or that waits for an open row of its key.
#[derive(Debug)]
struct Open {
    row: Expected,
    /// Behind the end of the window.
    is_beyond: bool,
    /// The row's first record.
    record: Option<RecordAt>,
    /// The next row of the key.
    next_of_key: u32,
}

/// The rows and records of a key. Where rows ask for partitions: of a key in a partition. Rows that do not ask for one have their list under the
/// key alone, and their records under the partition in which they lie.
#[derive(Debug)]
struct KeyState {
    /// Its first and last row in the list of rows.
    first: u32,
    last: u32,
    /// The first record of the last row that left the list.
    left: Option<RecordAt>,
    /// The newest row whose first record is here, and that record.
    newest: Option<(Position, Source, u64)>,
    newest_id: Box<[u8]>,
    /// The last record of a known row.
    last_record: Option<(RecordAt, u64)>,
    /// Records of the key are in several partitions although no row asks for one, so they have no order.
    is_moved: bool,
    /// The first row whose record comes before that of an earlier row.
    swapped: Option<Box<Fault>>,
}

impl Default for KeyState {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
            left: None,
            newest: None,
            newest_id: Box::default(),
            last_record: None,
            is_moved: false,
            swapped: None,
        }
    }
}

impl KeyState {
    /// Whether the last record is not that of the newest row. Records in several partitions have no last one.
    fn is_stale(&self) -> bool {
        let newest = self.newest.map(|(_, _, record)| record);
        !self.is_moved && self.last_record.is_some_and(|(_, record)| newest.is_some_and(|newest| newest != record))
    }

    /// A record of a known row has come. Records do not come in their order: a row may be known only after its record.
    fn has_record(&mut self, at: RecordAt, record: u64) {
        let last = self.last_record.map(|(last, _)| last);
        self.is_moved |= last.is_some_and(|last| last.partition != at.partition);
        if last.is_none_or(|last| last.offset < at.offset) {
            self.last_record = Some((at, record));
        }
    }
}

/// Matches rows and records.
#[derive(Debug)]
pub(super) struct Matcher {
    rules: Rules,
    rows: Vec<Option<Open>>,
    /// Indexes in `rows` without a row.
    free: Vec<u32>,
    by_record: Chains<u32>,
    by_id: Chains<u32>,
    keys: HashMap<u64, KeyState>,
    unknown: VecDeque<Option<Unknown>>,
    /// The number of the first of them.
    first_unknown: u64,
    unknown_by_record: Chains<u64>,
    /// For an open row, a record with its id and other bytes.
    candidates: HashMap<u32, Unknown>,
    /// The ids of dead letters, by position.
    dead_letters: BTreeMap<Position, Box<[u8]>>,
    /// The hashes of records that have had their row. Where rows ask for partitions, also those of the records in their partitions.
    had: Fingerprints,
    end: Option<Lsn>,
    /// The position of the last row.
    last: Option<Lsn>,
    counts: Counts,
    faults: Faults,
    /// The bytes of ids, copies and faults of keys.
    kept_bytes: usize,
    /// The same of records that wait for their row.
    unknown_kept_bytes: usize,
}

impl Matcher {
    /// A matcher that knows no row and no record.
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            rows: Vec::new(),
            free: Vec::new(),
            by_record: Chains::default(),
            by_id: Chains::default(),
            keys: HashMap::new(),
            unknown: VecDeque::new(),
            first_unknown: 0,
            unknown_by_record: Chains::default(),
            candidates: HashMap::new(),
            dead_letters: BTreeMap::new(),
            had: Fingerprints::default(),
            end: None,
            last: None,
            counts: Counts::default(),
            faults: Faults::new(rules.show),
            kept_bytes: 0,
            unknown_kept_bytes: 0,
        }
    }

    /// A row has come. Rows come in the order of their positions.
    pub(super) fn expect(&mut self, row: Expected) {
        let is_beyond = self.end.is_some_and(|end| row.position.final_lsn >= end);
        self.counts.rows += u64::from(!is_beyond);
        self.kept_bytes += row.kept_bytes();
        self.last = self.last.max(Some(row.position.final_lsn));
        let (hashes, is_bad, key) = (row.hashes, row.is_bad, self.key_of(&row));
        let index = self.add(Open { row, is_beyond, record: None, next_of_key: NONE });
        if is_bad {
            return;
        }
        if let Some(key) = key {
            self.append_to_key(key, index);
        }
        if let Some(unknown) = self.take_unknown(hashes.record) {
            self.match_up(index, unknown.found);
        } else {
            self.by_record.push(hashes.record, index);
            self.by_id.push(hashes.id, index);
        }
    }

    /// A record has come.
    pub(super) fn found(&mut self, found: FoundAt, hashes: Hashes, record: &Record<'_>) {
        if let Some(index) = self.by_record.take_first(hashes.record) {
            self.by_id.remove(hashes.id, index);
            self.match_up(index, found);
            return;
        }
        let id = id_of(record).unwrap_or_default().into();
        let copy = self.wants_copies().then(|| Box::new(OwnedRecord::of(record)));
        let unknown = Unknown { found, hashes, id, copy };
        self.kept_bytes += unknown.kept_bytes();
        self.unknown_kept_bytes += unknown.kept_bytes();
        self.unknown_by_record.push(hashes.record, self.next_unknown());
        self.unknown.push_back(Some(unknown));
    }

    /// A dead letter has come, of the row at this position, which has this id.
    pub(super) fn found_dead_letter(&mut self, position: Position, id: &[u8]) {
        self.kept_bytes += size_of::<Position>() + size_of::<Box<[u8]>>() + id.len();
        self.dead_letters.insert(position, id.into());
    }

    /// The number of the next unknown record, for [`Matcher::settle`].
    pub(super) fn next_unknown(&self) -> u64 {
        self.first_unknown + self.unknown.len() as u64
    }

    /// All rows have come whose records are in front of this unknown record.
    pub(super) fn settle(&mut self, before: u64) {
        while self.first_unknown < before {
            let Some(unknown) = self.unknown.pop_front() else { return };
            self.first_unknown += 1;
            let Some(unknown) = unknown else { continue };
            self.unknown_kept_bytes = self.unknown_kept_bytes.saturating_sub(unknown.kept_bytes());
            self.unknown_by_record.remove(unknown.hashes.record, self.first_unknown - 1);
            self.settle_one(unknown);
        }
    }

    fn settle_one(&mut self, unknown: Unknown) {
        let Unknown { found: FoundAt { at, .. }, hashes, .. } = unknown;
        if self.had.contains(hashes.record) {
            self.kept_bytes = self.kept_bytes.saturating_sub(unknown.kept_bytes());
            self.counts.repeated += 1;
            self.repeats(at, hashes);
            if self.rules.once {
                self.faults.add(of_record(Verdict::Repeated, unknown, "the row's record was there before"));
            }
            return;
        }
        match self.by_id.first(hashes.id).filter(|index| !self.candidates.contains_key(index)) {
            Some(index) => drop(self.candidates.insert(index, unknown)),
            None => self.is_other(unknown),
        }
    }

    /// A row's record has come again. Where rows ask for partitions, it may be in another one than the first.
    fn repeats(&mut self, at: RecordAt, hashes: Hashes) {
        let is_moved = self.rules.asks_for_partitions && !self.had.contains(in_partition(hashes.record, at.partition));
        if let Some(state) = self.key_in(hashes.key, Some(at.partition)).and_then(|key| self.keys.get_mut(&key)) {
            state.has_record(at, hashes.record);
            state.is_moved |= is_moved;
        }
        if let Some(state) = self.key_in(hashes.key, None).filter(|_| is_moved).and_then(|key| self.keys.get_mut(&key))
        {
            state.is_moved = true;
        }
    }

    fn is_other_if_any(&mut self, unknown: Option<Unknown>) {
        if let Some(unknown) = unknown {
            self.is_other(unknown);
        }
    }

    fn is_other(&mut self, unknown: Unknown) {
        self.kept_bytes = self.kept_bytes.saturating_sub(unknown.kept_bytes());
        self.counts.other += 1;
        if self.rules.exclusive {
            self.faults.add(of_record(Verdict::Other, unknown, "no row of the window has this record"));
        }
    }

    /// The first position that is behind each row so far. 0: there is no row.
    pub(super) fn behind_rows(&self) -> Lsn {
        self.last.map_or(Lsn::new(0), |last| Lsn::new(last.bytes() + 1))
    }

    /// Ends the window: rows of transactions that commit at `end` or later do not count.
    pub(super) fn end_at(&mut self, end: Lsn) {
        self.end = Some(end);
    }

    /// The last transaction of the window with an open row, or with the newest row of a key whose last record is another one's. `None`: there
    /// is none.
    pub(super) fn last_open(&self) -> Option<Lsn> {
        let open = self.open().map(|(_, open)| open.row.position.final_lsn).max();
        let stale = self.keys.values().filter(|key| key.is_stale());
        open.max(stale.filter_map(|key| Some(key.newest?.0.final_lsn)).max())
    }

    /// The number of rows of the window that have no record so far.
    pub(super) fn open_rows(&self) -> u64 {
        self.counts.rows.saturating_sub(self.counts.right + self.counts.altered)
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The memory that is taken, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let rows = self.rows.len() * (size_of::<Option<Open>>() + 2 * ENTRY);
        let unknown = self.unknown.len() * (size_of::<Option<Unknown>>() + ENTRY);
        let keys = self.keys.len() * (size_of::<KeyState>() + ENTRY);
        let candidates = self.candidates.len() * (size_of::<Unknown>() + ENTRY);
        (rows + unknown + keys + candidates + self.kept_bytes) as u64 + self.had.bytes()
    }

    /// The bytes of records that wait for their row.
    pub(super) fn unknown_bytes(&self) -> u64 {
        (self.unknown.len() * (size_of::<Option<Unknown>>() + ENTRY) + self.unknown_kept_bytes) as u64
    }

    /// Whether copies of records may be kept. Without them a difference cannot be named.
    pub(super) fn wants_copies(&self) -> bool {
        (self.kept_bytes as u64) < self.rules.memory / 8
    }

    /// The verdict on the window.
    pub(super) fn finish(mut self, witness: &mut dyn Witness) -> Outcome {
        let mut outcome = Outcome::default();
        self.finish_keys(witness, &mut outcome.keys);
        let indexes: Vec<u32> = self.all_open().map(|(index, _)| index).collect();
        for index in indexes {
            let candidate = self.candidates.remove(&index);
            let Some(open) = self.rows.get_mut(index as usize).and_then(Option::take) else { continue };
            if open.is_beyond || self.has_dead_letter(&open.row) {
                self.counts.dead_lettered += u64::from(!open.is_beyond);
                self.is_other_if_any(candidate);
                continue;
            }
            match (witness.explanation(&open.row, candidate.is_some()), candidate) {
                (Explanation::Skipped, candidate) => {
                    self.counts.skipped += 1;
                    self.is_other_if_any(candidate);
                }
                (Explanation::NotJudged(reason), candidate) => {
                    self.counts.not_judged += 1;
                    *outcome.reasons.entry(reason).or_default() += 1;
                    self.is_other_if_any(candidate);
                }
                (Explanation::Unexplained, Some(unknown)) => {
                    self.counts.altered += 1;
                    let why = difference(&open.row, &unknown, self.rules.with_values);
                    self.faults.add(of_row(Verdict::Altered, &open.row, Some(unknown.found.at), why));
                }
                (Explanation::Unexplained, None) => {
                    self.counts.missing += 1;
                    let why = if open.row.is_bad { "no dead letter, and not noted as skipped" } else { "no record" };
                    self.faults.add(of_row(Verdict::Missing, &open.row, None, why.to_owned()));
                }
            }
        }
        self.withdraw(witness, &mut outcome.reasons);
        Outcome { counts: self.counts, faults: self.faults.shown(), ..outcome }
    }

    /// Takes back what was said of topics of which nothing counts.
    fn withdraw(&mut self, witness: &mut dyn Witness, reasons: &mut BTreeMap<String, u64>) {
        let Self { faults, counts, .. } = self;
        let mut altered = Vec::new();
        let take = |verdict, topic, count| match verdict {
            Verdict::Missing => counts.missing -= count,
            Verdict::Altered => {
                counts.altered -= count;
                altered.push((topic, count));
            }
            Verdict::OutOfOrder => counts.out_of_order -= count,
            Verdict::Stale => counts.stale_keys -= count,
            Verdict::Other => counts.other -= count,
            Verdict::Repeated => counts.repeated -= count,
        };
        faults.withdraw(|topic| witness.is_void(topic), take);
        for (topic, count) in altered {
            let reason = witness.why_lost(topic).unwrap_or_default();
            self.counts.not_judged += count;
            *reasons.entry(reason).or_default() += count;
        }
    }

    /// The order of the keys that have an open row, and the keys whose last record is old. `reasons`: for which keys are not judged.
    fn finish_keys(&mut self, witness: &mut dyn Witness, reasons: &mut BTreeMap<String, u64>) {
        let keys: Vec<u64> = self.keys.keys().copied().collect();
        for key in keys {
            self.shorten(key, true);
            let Some(state) = self.keys.remove(&key) else { continue };
            if let Err(reason) = self.finish_key(state, witness) {
                *reasons.entry(reason).or_default() += 1;
            }
        }
    }

    /// The verdicts on a key's order. The error is the reason for which it has none.
    fn finish_key(&mut self, state: KeyState, witness: &mut dyn Witness) -> Result<(), String> {
        if state.is_moved {
            return Err("records of a key are in several partitions, which have no common order".to_owned());
        }
        let is_stale = state.is_stale();
        if let Some(fault) = state.swapped {
            witness.why_lost(fault.topic).map_or(Ok(()), Err)?;
            self.counts.out_of_order += 1;
            self.faults.add(*fault);
        }
        if let (Some((position, source, _)), Some((at, _)), true) = (state.newest, state.last_record, is_stale) {
            witness.why_unknown(at.topic, position).or_else(|| witness.why_lost(at.topic)).map_or(Ok(()), Err)?;
            self.counts.stale_keys += 1;
            let why = "the last record of its key is an earlier row's".to_owned();
            let (position, source) = (Some(position), Some(source));
            let (verdict, topic) = (Verdict::Stale, at.topic);
            self.faults.add(Fault { verdict, position, source, id: state.newest_id, topic, at: Some(at), why });
        }
        Ok(())
    }

    /// The row has its record.
    fn match_up(&mut self, index: u32, found: FoundAt) {
        let Some(open) = self.rows.get_mut(index as usize).and_then(Option::as_mut) else { return };
        open.record = Some(found.at);
        let (record, is_beyond) = (open.row.hashes.record, open.is_beyond);
        let differences = placement(&open.row, &found);
        if !is_beyond && differences.is_empty() {
            self.counts.right += 1;
        } else if !is_beyond {
            self.counts.altered += 1;
            let fault = of_row(Verdict::Altered, &open.row, Some(found.at), differences.join("; "));
            self.faults.add(fault);
        }
        self.had.insert(record);
        if self.rules.asks_for_partitions {
            self.had.insert(in_partition(record, found.at.partition));
        }
        let candidate = self.candidates.remove(&index);
        self.is_other_if_any(candidate);
        let Some(open) = self.rows.get(index as usize).and_then(Option::as_ref) else { return };
        let Some(key) = self.key_of(&open.row) else { return drop(self.release(index)) };
        let place = self.key_in(open.row.hashes.key, Some(found.at.partition)).unwrap_or(key);
        let state = self.keys.entry(place).or_default();
        state.has_record(found.at, record);
        if state.newest.is_none_or(|(newest, ..)| newest < open.row.position) {
            self.kept_bytes = (self.kept_bytes + open.row.id.len()).saturating_sub(state.newest_id.len());
            state.newest = Some((open.row.position, open.row.source, record));
            state.newest_id.clone_from(&open.row.id);
        }
        self.shorten(key, false);
    }

    /// Takes rows with records from the front of their key's list, and compares the order of their records. `all`: passes over open ones.
    fn shorten(&mut self, key: u64, all: bool) {
        let Some(state) = self.keys.get_mut(&key) else { return };
        let mut index = state.first;
        while let Some(open) = self.rows.get(index as usize).and_then(Option::as_ref) {
            let next = open.next_of_key;
            let Some(record) = open.record else {
                if !all {
                    break;
                }
                index = next;
                continue;
            };
            let Some(state) = self.keys.get_mut(&key) else { return };
            let before = state.left.filter(|left| left.partition == record.partition && record.offset < left.offset);
            if before.is_none() {
                let asks = self.rules.asks_for_partitions && open.row.partition.is_some();
                state.is_moved |= !asks && state.left.is_some_and(|left| left.partition != record.partition);
                state.left = Some(record);
            }
            let is_first = before.is_some() && !open.is_beyond && state.swapped.is_none();
            if !all {
                state.first = next;
            }
            let released = self.release(index);
            if let (true, Some(open), Some(before)) = (is_first, released, before) {
                let why =
                    format!("its record comes before that of an earlier row of its key, at offset {}", before.offset);
                let fault = of_row(Verdict::OutOfOrder, &open.row, Some(record), why);
                self.kept_bytes += size_of::<Fault>() + fault.id.len() + fault.why.len();
                if let Some(state) = self.keys.get_mut(&key) {
                    state.swapped = Some(Box::new(fault));
                }
            }
            index = next;
        }
        if let Some(state) = self.keys.get_mut(&key)
            && state.first == NONE
        {
            state.last = NONE;
        }
    }

    fn append_to_key(&mut self, key: u64, index: u32) {
        let state = self.keys.entry(key).or_default();
        let last = std::mem::replace(&mut state.last, index);
        if state.first == NONE {
            state.first = index;
        }
        if let Some(open) = self.rows.get_mut(last as usize).and_then(Option::as_mut) {
            open.next_of_key = index;
        }
    }

    fn key_of(&self, row: &Expected) -> Option<u64> {
        self.key_in(row.hashes.key, row.partition).filter(|_| !row.is_bad)
    }

    /// The key in its partition, if rows choose that.
    fn key_in(&self, key: Option<u64>, partition: Option<i32>) -> Option<u64> {
        let partition = partition.filter(|_| self.rules.asks_for_partitions).map_or(0, |partition| partition + 1);
        key.map(|key| key.rotate_left(17) ^ u64::from(partition.cast_unsigned()))
    }

    fn take_unknown(&mut self, record: u64) -> Option<Unknown> {
        let number = self.unknown_by_record.take_first(record)?;
        let at = usize::try_from(number.checked_sub(self.first_unknown)?).ok()?;
        let unknown = self.unknown.get_mut(at)?.take()?;
        self.kept_bytes = self.kept_bytes.saturating_sub(unknown.kept_bytes());
        self.unknown_kept_bytes = self.unknown_kept_bytes.saturating_sub(unknown.kept_bytes());
        Some(unknown)
    }

    fn has_dead_letter(&self, row: &Expected) -> bool {
        self.dead_letters.get(&row.position).is_some_and(|id| *id == row.id)
    }

    /// All rows without a record.
    fn all_open(&self) -> impl Iterator<Item = (u32, &Open)> {
        let rows = (0..).zip(&self.rows).filter_map(|(index, open)| Some((index, open.as_ref()?)));
        rows.filter(|(_, open)| open.record.is_none())
    }

    /// The rows of the window without a record and without a dead letter.
    fn open(&self) -> impl Iterator<Item = (u32, &Open)> {
        self.all_open().filter(|(_, open)| !open.is_beyond && !self.has_dead_letter(&open.row))
    }

    fn add(&mut self, open: Open) -> u32 {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.rows.get_mut(index as usize)
        {
            *slot = Some(open);
            return index;
        }
        self.rows.push(Some(open));
        u32::try_from(self.rows.len() - 1).unwrap_or(NONE)
    }

    fn release(&mut self, index: u32) -> Option<Open> {
        let open = self.rows.get_mut(index as usize)?.take()?;
        self.kept_bytes = self.kept_bytes.saturating_sub(open.row.kept_bytes());
        self.free.push(index);
        Some(open)
    }
}

impl Unknown {
    fn kept_bytes(&self) -> usize {
        self.id.len() + self.copy.as_ref().map_or(0, |copy| copy.room_bytes())
    }
}

/// The hash of a record in a partition.
fn in_partition(record: u64, partition: i32) -> u64 {
    record.rotate_left(29) ^ (u64::from(partition.cast_unsigned()) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// What differs although the bytes are the same.
fn placement(row: &Expected, found: &FoundAt) -> Vec<String> {
    let mut differences = Vec::new();
    if let (Some(expected), Some(time)) = (row.time, found.time)
        && expected != time
    {
        differences.push(format!("time: {time} ms, expected {expected} ms"));
    }
    let partition = row.partition.or(found.partition_of_key);
    if let Some(expected) = partition.filter(|expected| *expected != found.at.partition) {
        differences.push(format!("partition: {}, expected {expected}", found.at.partition));
    }
    differences
}

/// What differs between a row's record and one with its id.
fn difference(row: &Expected, unknown: &Unknown, with_values: bool) -> String {
    let mut room = [HeaderRoom::default(), HeaderRoom::default()];
    let [one, other] = &mut room;
    let (Some(expected), Some(found)) = (&row.copy, &unknown.copy) else {
        return "a record has its id and other bytes".to_owned();
    };
    expected
        .with_record(one, |expected| found.with_record(other, |found| differences(expected, found, with_values)))
        .join("; ")
}

fn of_row(verdict: Verdict, row: &Expected, at: Option<RecordAt>, why: String) -> Fault {
    let (position, source) = (Some(row.position), Some(row.source));
    Fault { verdict, position, source, id: row.id.clone(), topic: row.topic, at, why }
}

fn of_record(verdict: Verdict, unknown: Unknown, why: &str) -> Fault {
    let at = unknown.found.at;
    let (id, topic, why) = (unknown.id, at.topic, why.to_owned());
    Fault { verdict, position: None, source: None, id, topic, at: Some(at), why }
}

#[cfg(test)]
pub(super) mod tests;

//! Which side has published a row: the table's, by `backfill`, or the slot's, by the relay.
//!
//! In: records with the header `side`, and which rows were committed. Out: what is lost, published by the wrong side, or changed. A row that was
//! committed after the slot was created may come from both. A byte for each row: its side, and how often it came.

use std::collections::HashMap;
use std::fmt;

use walrelay_dev::consume::Record;

use super::writers::APART;
use crate::screen::thousands;

/// The bit of a row that came from the slot; another one for the table.
const SLOT: u8 = 0x80;
const TABLE: u8 = 0x40;

/// How often it came, up to this.
const TIMES: u8 = 0x3F;

/// Every row, and what has been seen of it.
pub(super) struct Sides {
    /// Rows that were there before, then those of each writer.
    groups: Vec<Vec<u8>>,
    payload: usize,
    /// The last new row of the table's side in each partition: they come in the order of their key.
    last: HashMap<i32, u64>,
    verdict: Verdict,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    rows: [u64; 2],
    repeated: [u64; 2],
    lost: u64,
    both: u64,
    /// An existing row that came from the slot.
    wrong_side: u64,
    /// A record of no committed row, or with another payload.
    strange: u64,
    swapped: u64,
}

impl Verdict {
    /// Nothing but repeats.
    pub(super) const fn is_clean(&self) -> bool {
        self.lost == 0 && self.wrong_side == 0 && self.strange == 0 && self.swapped == 0
    }

    /// How often a side has published a row again.
    pub(super) const fn repeated(&self) -> u64 {
        let [table, slot] = self.repeated;
        table + slot - self.both
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [table, slot] = self.rows.map(thousands);
        let [table_again, slot_again] = self.repeated.map(thousands);
        write!(
            formatter,
            "{table} rows from the table ({table_again} repeats), {slot} from the slot ({slot_again} repeats); {} lost, {} by both, {} by the wrong one, {} strange, {} swapped",
            self.lost, self.both, self.wrong_side, self.strange, self.swapped
        )
    }
}

impl Sides {
    /// For rows 1 to `rows` with payloads of so many bytes, and the writers' behind them.
    pub(super) fn new(rows: u64, payload: usize, written: &[u64]) -> Self {
        let group = |count: &u64| vec![0; usize::try_from(*count).unwrap_or_default()];
        let groups = std::iter::once(&rows).chain(written).map(group).collect();
        Self { groups, payload, last: HashMap::new(), verdict: Verdict::default() }
    }

    /// Takes the next record.
    pub(super) fn see(&mut self, record: &Record) {
        let id: Option<u64> = record.header("id").and_then(|id| id.parse().ok());
        let side = match record.header("side") {
            Some("table") => TABLE,
            Some("slot") => SLOT,
            Some(_) | None => 0,
        };
        let known = id.filter(|id| self.is_as_written(*id, record));
        let seen = known.and_then(|id| self.place(id));
        let (Some(id), Some(seen), true) = (known, seen, side > 0) else {
            self.verdict.strange += 1;
            return;
        };
        let is_new = *seen == 0;
        *seen = (*seen & !TIMES) | side | ((*seen & TIMES) + 1).min(TIMES);
        if id <= APART && side == SLOT {
            self.verdict.wrong_side += 1;
        }
        if is_new && side == TABLE && self.last.insert(record.partition, id).is_some_and(|last| last > id) {
            self.verdict.swapped += 1;
        }
    }

    fn is_as_written(&self, id: u64, record: &Record) -> bool {
        let value = record.value.as_deref().unwrap_or_default();
        if id > APART {
            return value == b"new";
        }
        let number = id.to_string();
        let padding = b"payload ".iter().cycle().take(self.payload.saturating_sub(number.len()));
        value.len() == self.payload && value.iter().eq(padding.chain(number.as_bytes()))
    }

    fn place(&mut self, id: u64) -> Option<&mut u8> {
        let (group, number) = (usize::try_from(id / APART).ok()?, usize::try_from(id % APART).ok()?);
        self.groups.get_mut(group)?.get_mut(number.checked_sub(1)?)
    }

    /// Counts.
    pub(super) fn finish(mut self) -> Verdict {
        for seen in self.groups.iter().flatten() {
            let (times, side) = (u64::from(seen & TIMES), usize::from(seen & SLOT > 0));
            self.verdict.lost += u64::from(times == 0);
            self.verdict.both += u64::from(seen & (SLOT | TABLE) == SLOT | TABLE);
            if let (Some(rows), Some(repeated)) = (self.verdict.rows.get_mut(side), self.verdict.repeated.get_mut(side))
                && times > 0
            {
                *rows += 1;
                *repeated += times - 1;
            }
        }
        self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u64, side: &str, value: &str) -> Record {
        let header = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
        Record {
            topic: "order".to_owned(),
            partition: 0,
            offset: 0,
            timestamp: None,
            key: None,
            value: Some(value.as_bytes().to_vec()),
            headers: vec![header("id", &id.to_string()), header("side", side)],
        }
    }

    fn judged(records: &[(u64, &str, &str)]) -> Verdict {
        let mut sides = Sides::new(2, 4, &[1]);
        for (id, side, value) in records {
            sides.see(&record(*id, side, value));
        }
        sides.finish()
    }

    const NEW: (u64, &str, &str) = (APART + 1, "slot", "new");

    #[test]
    fn existing_rows_by_the_table_and_new_ones_by_any_side_are_clean_also_where_a_side_repeats() {
        let verdict = judged(&[(1, "table", "pay1"), (2, "table", "pay2"), (1, "table", "pay1"), NEW]);
        assert!(verdict.is_clean(), "{verdict}");
        assert_eq!((verdict.rows, verdict.repeated), ([2, 1], [1, 0]));
        let verdict = judged(&[(1, "table", "pay1"), (2, "table", "pay2"), (APART + 1, "table", "new"), NEW]);
        assert!(verdict.is_clean() && verdict.repeated() == 0, "{verdict}");
    }

    #[test]
    fn what_is_lost_doubled_swapped_or_changed_is_counted() {
        assert_eq!(judged(&[(1, "table", "pay1"), NEW]).lost, 1);
        let verdict = judged(&[(1, "table", "pay1"), (2, "table", "pay2"), (2, "slot", "pay2"), NEW]);
        assert_eq!((verdict.both, verdict.wrong_side), (1, 1));
        assert_eq!(judged(&[(2, "table", "pay2"), (1, "table", "pay1"), NEW]).swapped, 1);
        assert_eq!(judged(&[(1, "table", "pay2"), (3, "table", "pay3"), (2, "else", "pay2"), NEW]).strange, 3);
    }
}

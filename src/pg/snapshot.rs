//! [`Snapshot`]: parses a snapshot's text, and decides which rows it sees.
//!
//! ```text
//!  1000:1007:1002,1005     all before 1000 have ended; none from 1007 on had begun; 1002 and 1005 had not committed
//! ```
//!
//! In: the text of `pg_current_snapshot()` in a transaction that has imported the snapshot of a new slot. Out: a condition on a row's
//! `xmin`. Pure.
//!
//! # Why it is exact
//!
//! `CREATE_REPLICATION_SLOT … EXPORT_SNAPSHOT` returns the snapshot of the decoder itself. Rows that it sees were committed before the
//! slot's first position. Rows that it does not see are decoded from the slot. Unlike the snapshot of an ordinary transaction, it lists
//! all transactions in its range that have not committed, with their subtransactions. So the `xmin` of a row that was written after a
//! savepoint is known, too.
//!
//! Its `xmax` may be below its `xmin`, which the input of `pg_snapshot` does not allow. The decoder moves `xmin` at each record of
//! running transactions, but `xmax` only at commits. So transactions that were rolled back last are between both. A row's transaction
//! is compared with `xmin` first (`XidInMVCCSnapshot`). If it is below, the row is seen, whatever `xmax` is.
//!
//! # Limits
//!
//! A row has the lower 32 bits of its transaction, also once it is frozen. They are enough if the snapshot is less than 2 billion
//! transactions old ([`Snapshot::is_comparable`]). A row that is older than that looks newer than the next transaction, and so counts
//! as old. A row whose transaction is more than 4 billion transactions old may look like one that is newer than the snapshot.
//!
//! Specification: PostgreSQL manual, 9.27.6 "Transaction ID and Snapshot Information Functions", table "Snapshot Components".

use super::catalog;
use std::str::FromStr;

/// A snapshot. Its transactions have 64 bits, with their epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// All transactions before this had ended.
    xmin: u64,
    /// No transaction from this on had begun.
    xmax: u64,
    /// The transactions between `xmin` and `xmax` that had not committed.
    open: Vec<u64>,
}

/// The text is no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not a snapshot")]
pub struct NoSnapshot;

impl FromStr for Snapshot {
    type Err = NoSnapshot;

    fn from_str(text: &str) -> Result<Self, NoSnapshot> {
        let mut parts = text.split(':');
        let mut number = || parts.next()?.parse().ok();
        let (xmin, xmax): (u64, u64) = number().zip(number()).ok_or(NoSnapshot)?;
        let list = parts.next().ok_or(NoSnapshot)?;
        let open: Result<Vec<u64>, _> = list.split(',').filter(|xid| !xid.is_empty()).map(str::parse).collect();
        let snapshot = Self { xmin, xmax: xmax.max(xmin), open: open.map_err(|_| NoSnapshot)? };
        let holds = snapshot.open.iter().all(|xid| (xmin..xmax).contains(xid));
        if holds && parts.next().is_none() { Ok(snapshot) } else { Err(NoSnapshot) }
    }
}

impl Snapshot {
    /// Whether the age of rows can be determined. `next`: the next transaction.
    pub fn is_comparable(&self, next: u64) -> bool {
        catalog::is_comparable(self.xmin, next)
    }

    /// As SQL, whether the snapshot sees the row, by its column `xmin`.
    pub fn sees(&self) -> String {
        let before = catalog::older_than(self.xmax);
        if self.open.is_empty() {
            return before;
        }
        let open: Vec<String> = self.open.iter().map(|xid| (xid & 0xFFFF_FFFF).to_string()).collect();
        format!("({before} AND xmin <> ALL ('{{{}}}'::xid[]))", open.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_seen_if_its_transaction_is_before_the_end_and_none_of_the_open_ones() {
        let snapshot: Snapshot = "4294967300:4294967310:4294967302,4294967305".parse().unwrap();
        assert_eq!(snapshot.sees(), "((age(xmin) > age('14'::xid) OR age(xmin) < 0) AND xmin <> ALL ('{6,9}'::xid[]))");
        let quiet: Snapshot = "7:7:".parse().unwrap();
        assert_eq!(quiet.sees(), "(age(xmin) > age('7'::xid) OR age(xmin) < 0)");
    }

    #[test]
    fn transactions_that_rolled_back_last_put_the_end_before_the_beginning() {
        let snapshot: Snapshot = "9:7:".parse().unwrap();
        assert_eq!(snapshot.sees(), "(age(xmin) > age('9'::xid) OR age(xmin) < 0)");
    }

    #[test]
    fn a_snapshot_of_long_ago_tells_nothing() {
        let snapshot: Snapshot = "1000:1007:".parse().unwrap();
        assert!(snapshot.is_comparable(1_999_999_999) && !snapshot.is_comparable(2_000_001_000));
    }

    #[test]
    fn what_is_no_snapshot_is_refused() {
        for text in ["", "1", "1:2", "2:1:1", "1:5:7", "1:5:0", "1:5:a", "1:5:2:3", "1:5:-2"] {
            assert_eq!(text.parse::<Snapshot>(), Err(NoSnapshot), "{text}");
        }
    }
}

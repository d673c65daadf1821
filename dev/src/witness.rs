//! Which rows were committed below which position, by another reader of the WAL than the relay.
//!
//! In: a slot of its own, read with SQL. Out: the ids of the rows whose transaction ends at or below an LSN. Postgres' own plugin
//! `test_decoding` says what was committed, so that nothing here shares the relay's mistakes: neither `pgoutput` nor the publication.
//!
//! Specification: Postgres' manual, "`test_decoding`". A transaction's changes come before its `COMMIT`, whose LSN is its end.

use std::collections::VecDeque;

use ::postgres::Client;
use anyhow::{Context as _, Result};

/// The ids of outbox rows, of any partition, and of the shop's messages; null of a `COMMIT`. `$1` slot, `$2` up to where.
const READ: &str = r#"
SELECT (lsn - '0/0'::pg_lsn)::bigint,
       coalesce(substring(data FROM 'INSERT: id\[uuid\]:''([^'']+)'''), substring(data FROM '"id" : "([^"]+)"'))
FROM pg_logical_slot_get_changes($1, $2::text::pg_lsn, NULL, 'include-xids', '0')
WHERE data ~ '^(COMMIT|table public\.outbox[a-z0-9_]*: INSERT: |message: transactional: 1 prefix: shop,)'"#;

/// A reader of the WAL by a slot of its own.
#[derive(Debug)]
pub struct Witness {
    slot: String,
    /// The end of the last transaction that was read.
    read_to: u64,
    /// Transactions that were read and not yet asked for: their end, and the ids of their rows.
    ahead: VecDeque<(u64, Vec<String>)>,
}

impl Witness {
    /// Makes the slot `NAME_witness`; what is committed from now on is witnessed.
    ///
    /// # Errors
    /// There is no free slot.
    pub fn create(client: &mut Client, name: &str) -> Result<Self> {
        let slot = format!("{name}_witness");
        client.execute("SELECT pg_create_logical_replication_slot($1, 'test_decoding')", &[&slot])?;
        Ok(Self { slot, read_to: 0, ahead: VecDeque::new() })
    }

    /// The ids of the rows that were committed up to `lsn` and have not been told before.
    ///
    /// # Errors
    /// The database does not answer, or `lsn` is none.
    pub fn committed_up_to(&mut self, client: &mut Client, lsn: &str) -> Result<Vec<String>> {
        let mut open = Vec::new();
        for row in client.query(READ, &[&self.slot, &lsn])? {
            let end = u64::try_from(row.get::<_, i64>(0))?;
            match row.get::<_, Option<String>>(1) {
                Some(id) => open.push(id),
                // After a crash the slot may tell again what it has told.
                None if end > self.read_to => {
                    self.read_to = end;
                    self.ahead.push_back((end, std::mem::take(&mut open)));
                }
                None => open.clear(),
            }
        }
        let (mut rows, lsn) = (Vec::new(), parse_lsn(lsn)?);
        while self.ahead.front().is_some_and(|(end, _)| *end <= lsn) {
            rows.extend(self.ahead.pop_front().into_iter().flat_map(|(_, ids)| ids));
        }
        Ok(rows)
    }
}

/// `16/B374D848` as an integer.
///
/// # Errors
/// It is no LSN.
pub fn parse_lsn(text: &str) -> Result<u64> {
    let (high, low) = text.split_once('/').with_context(|| format!("{text} is no LSN"))?;
    Ok(u64::from_str_radix(high, 16)? << 32 | u64::from_str_radix(low, 16)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_postgres_writes_them() {
        assert_eq!(parse_lsn("16/B374D848").unwrap(), 0x16_B374_D848);
        assert!(parse_lsn("16").is_err());
    }
}

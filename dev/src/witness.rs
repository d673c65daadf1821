//! A second reader of the same publication: which rows were committed below which position.
//!
//! In: a slot of its own, read with SQL. Out: the ids of the rows whose transaction ends at or below an LSN. It decodes the
//! little of `pgoutput` that it needs by itself, so that it does not share the relay's mistakes.
//!
//! Format: Postgres' manual, "Logical Replication Message Formats", protocol 1. The outbox' id is its first column.

use std::collections::VecDeque;

use ::postgres::Client;
use anyhow::{Context as _, Result, anyhow, bail};

/// What one slot has told so far.
#[derive(Debug)]
pub struct Witness {
    slot: String,
    publication: String,
    /// The end of the last transaction that was read.
    read_to: u64,
    /// Transactions that were read and not yet asked for: their end, and the ids of their rows.
    ahead: VecDeque<(u64, Vec<String>)>,
}

/// The part of a message that matters here.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Begin,
    Row(String),
    Commit(u64),
    Other,
}

impl Witness {
    /// Makes the slot `NAME_witness`; what is committed from now on is witnessed.
    ///
    /// # Errors
    /// There is no free slot.
    pub fn create(client: &mut Client, name: &str) -> Result<Self> {
        let slot = format!("{name}_witness");
        client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&slot])?;
        Ok(Self { slot, publication: name.to_owned(), read_to: 0, ahead: VecDeque::new() })
    }

    /// The ids of the rows that were committed up to `lsn` and have not been told before.
    ///
    /// # Errors
    /// The database does not answer, or says what cannot be read.
    pub fn committed_up_to(&mut self, client: &mut Client, lsn: u64) -> Result<Vec<String>> {
        self.read(client, lsn)?;
        let mut rows = Vec::new();
        while self.ahead.front().is_some_and(|(end, _)| *end <= lsn) {
            rows.extend(self.ahead.pop_front().into_iter().flat_map(|(_, ids)| ids));
        }
        Ok(rows)
    }

    fn read(&mut self, client: &mut Client, lsn: u64) -> Result<()> {
        let sql = "SELECT data FROM pg_logical_slot_get_binary_changes($1, $2::text::pg_lsn, NULL,
                       'proto_version', '1', 'publication_names', $3, 'messages', 'true')";
        let publication = format!("\"{}\"", self.publication);
        let mut open = Vec::new();
        for row in client.query(sql, &[&self.slot, &lsn_text(lsn), &publication])? {
            match parse(row.get(0)).context("the witness' slot")? {
                Seen::Begin => open.clear(),
                Seen::Row(id) => open.push(id),
                // After a crash the slot may tell again what it has told.
                Seen::Commit(end) if end > self.read_to => {
                    self.read_to = end;
                    self.ahead.push_back((end, std::mem::take(&mut open)));
                }
                Seen::Commit(_) | Seen::Other => {}
            }
        }
        Ok(())
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

fn lsn_text(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff)
}

fn parse(data: &[u8]) -> Result<Seen> {
    let mut rest = data;
    match take::<1>(&mut rest)? {
        b"B" => Ok(Seen::Begin),
        b"C" => {
            // Flags and the commit record's start, then its end.
            take::<9>(&mut rest)?;
            Ok(Seen::Commit(u64::from_be_bytes(*take::<8>(&mut rest)?)))
        }
        b"I" => {
            // Relation, 'N', the number of columns; then of the first column 't' and its length.
            take::<7>(&mut rest)?;
            if take::<1>(&mut rest)? != b"t" {
                bail!("a row without an id: {data:?}");
            }
            let length = u32::from_be_bytes(*take::<4>(&mut rest)?) as usize;
            let id = rest.get(..length).with_context(|| format!("a row that is too short: {data:?}"))?;
            Ok(Seen::Row(String::from_utf8_lossy(id).into_owned()))
        }
        b"M" => message(rest),
        _ => Ok(Seen::Other),
    }
}

/// A logical message in a row's place is a JSON object with an `id`.
fn message(mut rest: &[u8]) -> Result<Seen> {
    let [transactional, ..] = take::<9>(&mut rest)?;
    let end = rest.iter().position(|byte| *byte == 0).context("a prefix without an end")?;
    let content = rest.get(end + 5..).context("a message that is too short")?;
    let content: serde_json::Value = serde_json::from_slice(content)?;
    match content.get("id").and_then(serde_json::Value::as_str) {
        Some(id) if *transactional == 1 => Ok(Seen::Row(id.to_owned())),
        _ => Ok(Seen::Other),
    }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk().ok_or_else(|| anyhow!("a message that is too short"))?;
    *rest = tail;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_commits_are_read_from_their_bytes() {
        let insert = b"I\0\0\x40\0N\0\x02t\0\0\0\x03abct\0\0\0\x01x";
        assert_eq!(parse(insert).unwrap(), Seen::Row("abc".to_owned()));
        let commit = [&b"C\0"[..], &1_u64.to_be_bytes(), &0x1_0000_0002_u64.to_be_bytes(), &[0; 8]].concat();
        assert_eq!(parse(&commit).unwrap(), Seen::Commit(0x1_0000_0002));
        let content = br#"{"id": "m-1"}"#;
        let message = [&b"M\x01"[..], &[0; 8], b"shop\0", &13_u32.to_be_bytes(), content].concat();
        assert_eq!(parse(&message).unwrap(), Seen::Row("m-1".to_owned()));
        assert_eq!(parse(b"R\0").unwrap(), Seen::Other);
        assert!(parse(b"I\0\0").is_err() && parse(b"").is_err());
    }

    #[test]
    fn positions_are_written_as_postgres_does() {
        assert_eq!(parse_lsn("16/B374D848").unwrap(), 0x16_B374_D848);
        assert_eq!(lsn_text(0x16_B374_D848), "16/B374D848");
        assert!(parse_lsn("16").is_err());
    }
}

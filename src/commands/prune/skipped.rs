//! The rows that the relay has skipped: they were in the slot, and are in no topic, so they stay.
//!
//! In: the notes of the slots. Out: a condition in SQL, and what forgets the rows. Reads only. Invariant: a row is noted before it is
//! skipped, so a look after the slot has confirmed the row's transaction finds it.

use super::table::Table;
use crate::commands::carrier::Carrier;
use crate::commands::error::CommandError;
use crate::pg::{Connection, identifier, literal, skipped_rows};

/// `pg_type.oid` of `bytea`.
const BYTEA: u32 = 17;

/// The skipped rows of all slots of an outbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Skipped {
    /// The first characters of their ids.
    ids: Vec<String>,
    /// The large objects that have the notes.
    notes: Vec<u32>,
}

impl Skipped {
    /// Reads the notes of these slots.
    ///
    /// # Errors
    /// A note says that there are rows without an id; the connection broke.
    pub(super) fn read<'a>(
        connection: &mut Connection,
        carriers: impl Iterator<Item = &'a Carrier>,
    ) -> Result<Self, CommandError> {
        let mut all = Self::default();
        for carrier in carriers {
            let (skipped, notes) = skipped_rows::read(connection, &carrier.slot)?;
            if skipped.others {
                return Err(CommandError::rows_skipped(&carrier.slot, &forget(&notes)));
            }
            all.ids.extend(skipped.ids);
            all.notes.extend(notes);
        }
        Ok(all)
    }

    /// As SQL, whether the relay has skipped a row. `None`: it has skipped none. `row`: the row's alias and a dot, or nothing.
    pub(super) fn condition(&self, table: &Table, row: &str) -> Option<String> {
        let column = format!("{row}{}", identifier(&table.id));
        let is_bytea = table.shape.columns.iter().any(|column| column.name == table.id && column.type_id == BYTEA);
        if is_bytea {
            let each: Vec<String> = self.ids.iter().map(|id| begins_with(&column, id)).collect();
            return (!each.is_empty()).then(|| format!("({})", each.join(" OR ")));
        }
        // As the slot has it: a cast to text would take the blanks off a char(n).
        let text = format!("pg_catalog.concat({column})");
        let ids: Vec<String> = self.ids.iter().map(|id| literal(id)).collect();
        (!ids.is_empty())
            .then(|| format!("pg_catalog.left({text}, {}) IN ({})", skipped_rows::COMPARED, ids.join(", ")))
    }

    /// As SQL, what forgets them.
    pub(super) fn forget(&self) -> String {
        forget(&self.notes)
    }
}

/// As SQL, whether a column of bytes is this text; of a longer one, whether it begins with it.
fn begins_with(column: &str, text: &str) -> String {
    let bytes = text.bytes().fold("pg_catalog.decode('".to_owned(), |bytes, byte| format!("{bytes}{byte:02x}"));
    if text.chars().count() < skipped_rows::COMPARED {
        return format!("{column} = {bytes}', 'hex')");
    }
    format!("pg_catalog.substr({column}, 1, {}) = {bytes}', 'hex')", text.len())
}

/// As SQL, what forgets the rows of these notes.
fn forget(notes: &[u32]) -> String {
    notes.iter().map(|note| format!("SELECT lo_unlink({note});")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_bytes_is_compared_as_the_bytes_of_its_text() {
        assert_eq!(begins_with("id", "aä"), "id = pg_catalog.decode('61c3a4', 'hex')");
        let long = "ä".repeat(skipped_rows::COMPARED);
        assert_eq!(
            begins_with("id", &long),
            format!("pg_catalog.substr(id, 1, 128) = pg_catalog.decode('{}', 'hex')", "c3a4".repeat(64))
        );
    }
}

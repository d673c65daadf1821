//! [`Skips`]: whether the relay has skipped a row on purpose.
//!
//! In: the relay's note of skipped rows, which has ids and no tables. Out: the [`Explanation`] of a row that has no record. Pure, but for
//! [`Skips::read`].
//!
//! Invariant: a row counts as skipped only if the note cannot mean another one. Else nobody can say.

use super::matcher::{Expected, Explanation};
use crate::commands::run::RunRequest;
use crate::pg::skipped_rows::{COMPARED, SkippedRows};
use crate::pg::{self, Connection, literal, skipped_rows};

/// The note.
#[derive(Debug, Default)]
pub(super) struct Skips {
    slot: String,
    rows: SkippedRows,
    /// Whether each row of the slot is of one table, so that an id names one row.
    is_of_one_table: bool,
}

impl Skips {
    /// Reads the note.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) fn read(connection: &mut Connection, run: &RunRequest) -> Result<Self, pg::Error> {
        let (rows, _) = skipped_rows::read(connection, &run.slot)?;
        // Other flags may choose fewer tables than those of the relay do.
        let is_of_one_table = !rows.ids.is_empty()
            && run.mapping.message_prefixes.is_empty()
            && tables(connection, &run.publication)? == 1;
        Ok(Self { slot: run.slot.clone(), rows, is_of_one_table })
    }

    /// The explanation of a row that has no record. `has_candidate`: a record has its id and other bytes. `None`: the note does not explain it.
    pub(super) fn explanation(&self, row: &Expected, has_candidate: bool) -> Option<Explanation> {
        let id = String::from_utf8_lossy(&row.id);
        let compared: String = id.chars().take(COMPARED).collect();
        let slot = &self.slot;
        if !row.id.is_empty() && self.rows.ids.contains(&compared) {
            let is_whole = id.chars().count() < COMPARED;
            if !has_candidate && (row.is_bad || (self.is_of_one_table && is_whole)) {
                return Some(Explanation::Skipped);
            }
            return Some(Explanation::NotJudged(format!(
                "the relay of slot \"{slot}\" has skipped a row with their id, which may be another row"
            )));
        }
        let others = || format!("the relay of slot \"{slot}\" has skipped rows without noting their ids");
        self.rows.others.then(|| Explanation::NotJudged(others()))
    }
}

/// The number of tables in a publication. A table and its partitions are one.
fn tables(connection: &mut Connection, publication: &str) -> Result<i64, pg::Error> {
    let count = connection.value(&format!(
        "SELECT count(DISTINCT COALESCE(pg_catalog.pg_partition_root(c.oid)::oid, c.oid))
           FROM pg_catalog.pg_publication_tables AS t
           JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schemaname
           JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
          WHERE t.pubname = {}",
        literal(publication)
    ))?;
    Ok(count.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::matcher::tests::row;
    use super::*;

    #[test]
    fn a_row_is_skipped_only_if_the_note_cannot_mean_another_one() {
        let long = "x".repeat(COMPARED);
        let check = |id: &str, is_bad: bool, is_of_one_table: bool, has_candidate: bool, expected: &str| {
            let rows = SkippedRows { ids: vec!["7".to_owned(), long.clone()], others: false };
            let skips = Skips { slot: "shop".to_owned(), rows, is_of_one_table };
            let row = Expected { id: id.as_bytes().into(), is_bad, ..row(1, "k", "a") };
            let found = match skips.explanation(&row, has_candidate) {
                None => "nothing",
                Some(Explanation::Skipped) => "skipped",
                Some(_) => "not judged",
            };
            assert_eq!(found, expected, "{id} {is_bad} {is_of_one_table} {has_candidate}");
        };
        check("7", false, true, false, "skipped");
        check("7", true, false, false, "skipped");
        // The note may be of another table's row, or the record may be.
        check("7", false, false, false, "not judged");
        check("7", false, true, true, "not judged");
        // The note has only the beginning of such an id.
        check(&format!("{long} and more"), false, true, false, "not judged");
        check(&long, false, true, false, "not judged");
        check(&format!("{long} and more"), true, true, false, "skipped");
        check("8", false, true, false, "nothing");
        check("", true, true, false, "nothing");
    }

    #[test]
    fn if_not_all_skipped_rows_are_noted_any_row_may_be_one() {
        let rows = SkippedRows { ids: Vec::new(), others: true };
        let skips = Skips { slot: "shop".to_owned(), rows, is_of_one_table: true };
        assert!(matches!(skips.explanation(&row(1, "k", "a"), false), Some(Explanation::NotJudged(_))));
        assert_eq!(Skips::default().explanation(&row(1, "k", "a"), false), None);
    }
}

//! What becomes of a drawn configuration's rows once they are written: some are deleted at once, as many outboxes do it, and some are
//! updated, which nobody should.
//!
//! In: a draw that has made everything else, and its case. Out: the case with more statements. Only rows of the table with a primary key
//! change, and never the last one, which tells that all are there.

use walrelay_dev::conformance::data::{Case, Statement};

use super::draw::Draw;

/// Publishes all that happens to rows.
const PUBLICATION: &str = "FOR TABLE {tables}";

/// Adds the changes. Returns the publication that carries them.
pub(super) fn add(draw: &mut Draw, id_column: &str, case: &mut Case) -> Option<String> {
    if !draw.is(4) {
        return None;
    }
    let all_but_last = case.statements.len().saturating_sub(1);
    for statement in case.statements.iter_mut().take(all_but_last) {
        let Statement::Own(sql) = statement else { continue };
        let inserted = sql.strip_prefix("INSERT INTO outbox VALUES ('").and_then(|rest| rest.split_once('\''));
        let Some(id) = inserted.map(|(id, _)| id.to_owned()) else { continue };
        let row = format!("{id_column} = '{id}'");
        let (deleted, updated) =
            (format!("; DELETE FROM outbox WHERE {row}"), format!("; UPDATE outbox SET {row} WHERE {row}"));
        // In the same transaction.
        let after: &[&str] = match draw.number(0..10) {
            0..=2 => &[&deleted],
            3 => &[&updated, &deleted],
            4 => &[&updated],
            _ => &[],
        };
        for more in after {
            sql.push_str(more);
        }
    }
    Some(PUBLICATION.to_owned())
}

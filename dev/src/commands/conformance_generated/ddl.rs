//! DDL between a drawn configuration's rows, each behind the records of the rows before it: Debezium and the relay look at the
//! catalogue when a table comes that has changed.
//!
//! In: a draw, its table as it is by now. Out: statements, and the table as it is from then on.

use walrelay_dev::conformance::data::Statement;

use super::defaults;
use super::draw::Draw;
use super::table::Table;

/// Draws what happens before the next row; `come`: how many records there are by then.
pub(super) fn draw(draw: &mut Draw, table: &mut Table, come: usize) -> Vec<Statement> {
    if !draw.is(4) || table.extras.is_empty() {
        return Vec::new();
    }
    let at = draw.number(0..table.extras.len());
    let Some(extra) = table.extras.get_mut(at) else { return Vec::new() };
    let name = extra.name.clone();
    let sql = match draw.number(0..6) {
        0 | 1 => {
            let (kind, values) = extra.kind();
            let default = defaults::draw(draw, kind, values);
            extra.has_default = true;
            format!("ALTER TABLE outbox ALTER {name} SET DEFAULT {default}")
        }
        2 => {
            extra.has_default = false;
            format!("ALTER TABLE outbox ALTER {name} DROP DEFAULT")
        }
        3 if !extra.must => {
            // What is there may hold nulls.
            extra.must = true;
            format!("DELETE FROM outbox; ALTER TABLE outbox ALTER {name} SET NOT NULL")
        }
        3 | 4 => {
            extra.must = false;
            format!("ALTER TABLE outbox ALTER {name} DROP NOT NULL")
        }
        _ => {
            table.extras.remove(at);
            format!("ALTER TABLE outbox DROP COLUMN {name}")
        }
    };
    vec![Statement::Await { records: come }, Statement::Own(sql)]
}

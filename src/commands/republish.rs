//! `republish`: publishes rows once more, or rows that no slot has carried, by deleting and inserting them.
//!
//! ```text
//!  list the rows in one snapshot, in order ─► for each chunk, one transaction:
//!      WITH moved AS (DELETE … RETURNING *) INSERT … OVERRIDING SYSTEM VALUE SELECT … ORDER BY …
//! ```
//!
//! In: a table, which rows, in what order. Out: what would be done, or with `apply` what was. The rows keep every value, their ids
//! too; generated columns compute themselves. They are listed once, before the first is moved: a condition that moved rows meet again
//! cannot make it go round. A row that changed after it was listed stays as it is.
//! Invariant: a chunk of which not every row that was deleted was inserted again is rolled back.

use super::error::CommandError;
use super::output::{number, rows, shell_quoted};
use super::progress::Progress;
use super::target::{self, OutboxPlace, Target};
use super::{AGE_COLUMNS, TypedFlags, listed, shards};
use crate::outbox::TableName;
use crate::pg::{Connection, Purpose, identifier};
use std::io::Write;

/// How much of a row is shown, in characters.
const SHOWN_CHARACTERS: usize = 160;

/// What is to be published again.
#[derive(Debug, Clone)]
pub struct Request {
    /// The database, publication and slot.
    pub place: OutboxPlace,
    /// The table.
    pub table: TableName,
    /// Which rows, as SQL; `None`: all.
    pub condition: Option<String>,
    /// In which order, as SQL; `None`: by the age's column, then the id.
    pub order: Option<String>,
    /// Rows that are moved in one transaction; at least 1.
    pub chunk: u32,
    /// Do it.
    pub apply: bool,
    /// Also where more would happen than that rows are published.
    pub force: bool,
}

/// Shows what would be done, or does it. `typed`: what the next command repeats. `stop`: ends it between two chunks.
///
/// # Errors
/// There is no slot, or the publication does not have the table; more would happen than is wanted; the server refuses.
pub fn republish(
    request: &Request,
    typed: &TypedFlags,
    out: &mut dyn Write,
    stop: &dyn Fn() -> bool,
) -> Result<(), CommandError> {
    let mut connection = Connection::open(&request.place.source, Purpose::Control)?;
    let carriers = request.place.carriers(&mut connection)?;
    let Some(target) = look(&mut connection, &carriers, &request.table)? else { return Ok(()) };
    let condition = request.condition.as_ref().map_or_else(|| "true".to_owned(), |sql| format!("({sql})"));
    let order = request.order.clone().unwrap_or_else(|| default_order(&target));
    let reasons = reasons(&target);
    show(&mut connection, &target, &condition, &order, out)?;
    if !request.apply {
        let again = format!(
            "walrelay republish --table {}{}",
            shell_quoted(&target.name.as_typed()),
            more_flags(request, !reasons.is_empty())
        );
        writeln!(out, "nothing was changed; to do it: {}", typed.complete(&again))?;
        return Ok(());
    }
    if !reasons.is_empty() && !request.force {
        return Err(CommandError::Fires { table: target.name.to_string(), reasons });
    }
    let total = listed::open(&mut connection, &target.rows(), &target.id, &condition, &order)?;
    let moved = move_all(&mut connection, request, &target, &order, total, stop)
        .map_err(|error| target.refused("republish", "SELECT, INSERT, UPDATE, DELETE", error))?;
    listed::close(&mut connection)?;
    let left = total - moved;
    let changed = if left > 0 {
        format!("; {} changed meanwhile, or were not reached, and stay", number(left))
    } else {
        String::new()
    };
    writeln!(out, "{} moved: the relay publishes them now{changed}", rows(moved))?;
    let status = if carriers.len() > 1 { "walrelay status --all" } else { "walrelay status --watch" };
    writeln!(out, "next: {}", typed.complete(status))?;
    Ok(())
}

/// The table, and what it is to its slot, or to those of all shards.
fn look(
    connection: &mut Connection,
    carriers: &[OutboxPlace],
    table: &TableName,
) -> Result<Option<Target>, CommandError> {
    let mut found = None;
    for place in carriers {
        target::confirmed(connection, place)?;
        let mut targets = target::targets(connection, place, std::slice::from_ref(table))?;
        if let Some(mut target) = targets.pop() {
            // What one leaves out is another one's.
            let is_share = place.shard.is_some() && shards::is_as_made(connection, &place.publication, &place.slot)?;
            target.filtered &= !is_share;
            let others_filter = found.is_some_and(|found: Target| found.filtered);
            target.filtered |= others_filter;
            found = Some(target);
        }
    }
    Ok(found)
}

fn more_flags(request: &Request, force: bool) -> String {
    let mut flags = String::new();
    for (flag, value) in [("--where", &request.condition), ("--order-by", &request.order)] {
        if let Some(value) = value {
            flags.extend([" ", flag, " ", &shell_quoted(value)]);
        }
    }
    flags.push_str(" --apply");
    if force {
        flags.push_str(" --force");
    }
    flags
}

fn default_order(target: &Target) -> String {
    let has = |name: &&str| target.shape.columns.iter().any(|column| column.name == **name);
    let age = AGE_COLUMNS.iter().copied().find(has);
    let columns: Vec<String> = age.into_iter().chain([target.id.as_str()]).map(identifier).collect();
    columns.join(", ")
}

/// What would happen besides.
fn reasons(target: &Target) -> Vec<String> {
    let shape = &target.shape;
    let mut reasons = Vec::new();
    let mut fires = |what: &str, names: &[String]| {
        if !names.is_empty() {
            reasons.push(format!("{what}: {}", names.join(", ")));
        }
    };
    fires("triggers would fire", &shape.triggers);
    fires("rules would apply", &shape.rules);
    fires("deleting touches other tables by foreign keys", &shape.referenced_by);
    if shape.partitioned {
        reasons.push("it is partitioned: rows may move to another partition".to_owned());
    }
    if shape.row_security {
        reasons.push("row security hides rows from this role".to_owned());
    }
    if target.filtered {
        reasons.push("the publication has a row filter on it: rows that it leaves out are not published".to_owned());
    }
    reasons
}

fn show(
    connection: &mut Connection,
    target: &Target,
    condition: &str,
    order: &str,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let name = target.rows();
    let count = listed::counted(connection, &format!("SELECT count(*) FROM {name} WHERE {condition}"))?;
    writeln!(out, "{} of {} would be deleted and inserted again, ordered by {order}", rows(count), target.name)?;
    let sql = |offset: u64| {
        format!(
            "SELECT pg_catalog.row_to_json(t)::text AS walrelay_row FROM {name} AS t WHERE {condition} ORDER BY {order} LIMIT 1 OFFSET {offset}"
        )
    };
    for (which, offset) in [("first", 0), ("last", count.saturating_sub(1))] {
        let row = connection.query_within(&sql(offset), listed::PATIENCE)?;
        if let Some(text) = row.first().and_then(|row| row.text(0)) {
            writeln!(out, "  {which:<13}{}", shortened(text))?;
        }
    }
    let shape = &target.shape;
    for (what, names) in [
        ("triggers", &shape.triggers),
        ("rules", &shape.rules),
        ("referenced by", &shape.referenced_by),
        ("references", &shape.references),
    ] {
        if !names.is_empty() {
            writeln!(out, "  {what:<13}{}", names.join(", "))?;
        }
    }
    Ok(())
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn move_all(
    connection: &mut Connection,
    request: &Request,
    target: &Target,
    order: &str,
    total: u64,
    stop: &dyn Fn() -> bool,
) -> Result<u64, CommandError> {
    let (name, from, mut seen, mut moved) = (target.sql_name(), target.rows(), 0, 0);
    let columns = target.shape.columns.iter().filter(|column| !column.generated);
    let columns: Vec<String> = columns.map(|column| identifier(&column.name)).collect();
    let columns = columns.join(", ");
    let mut progress = Progress::new("moving", total);
    loop {
        let places = listed::next(connection, request.chunk)?;
        if places.is_empty() || stop() {
            return Ok(moved);
        }
        let sql = format!(
            "{}, moved AS ({} RETURNING t.*),
             put AS (INSERT INTO {name} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM moved AS t ORDER BY {order} RETURNING 1)
             SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM put)",
            listed::locked(&from, &target.id, &places, false, None),
            listed::delete(&from)
        );
        let rows = connection.query_within(&format!("BEGIN; {sql}"), listed::PATIENCE)?;
        let count = |at| rows.first().and_then(|row| row.parse::<u64>(at)).unwrap_or_default();
        let (deleted, put) = (count(0), count(1));
        if put != deleted {
            connection.query("ROLLBACK")?;
            let (table, triggers) = (target.name.to_string(), target.shape.triggers.clone());
            return Err(CommandError::NotPutBack {
                table,
                rows: deleted,
                lacks: deleted.saturating_sub(put),
                triggers,
            });
        }
        connection.query("COMMIT")?;
        moved += put;
        seen += places.len() as u64;
        progress.at(seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::shape::{Shape, ShapeColumn};

    fn target(columns: &[&str]) -> Target {
        let column = |name: &&str| ShapeColumn { name: (*name).to_owned(), type_id: 25, generated: false };
        let shape = Shape { columns: columns.iter().map(column).collect(), ..Shape::default() };
        Target {
            name: TableName::parse("outbox").unwrap(),
            shape,
            id: "id".to_owned(),
            filtered: false,
            partial: false,
        }
    }

    #[test]
    fn rows_go_by_age_then_by_id_unless_an_order_is_given() {
        assert_eq!(default_order(&target(&["id", "created_at"])), "\"created_at\", \"id\"");
        assert_eq!(default_order(&target(&["id", "payload"])), "\"id\"");
    }

    #[test]
    fn whatever_else_would_happen_is_a_reason_not_to() {
        assert_eq!(reasons(&target(&["id"])), Vec::<String>::new());
        let mut odd = target(&["id"]);
        odd.shape.triggers = vec!["audit on outbox".to_owned()];
        odd.shape.referenced_by = vec!["fk of deliveries (ON DELETE CASCADE)".to_owned()];
        odd.shape.partitioned = true;
        odd.filtered = true;
        let reasons = reasons(&odd);
        assert_eq!(reasons.len(), 4);
        assert!(reasons[0].contains("audit") && reasons[1].contains("CASCADE"));
    }
}

//! `prune`: deletes rows that are old and proven to be delivered.
//!
//! ```text
//!  check that every row of the table is known to be published, or to come through the slot
//!    ─► list the old rows: ctid, xmin, id, in one snapshot
//!    ─► commit a logical message: it is in the WAL behind every commit that the snapshot has seen
//!    ─► wait until the slot has confirmed it, or those of all shards have: all of these are delivered
//!    ─► delete in chunks what still stands there as it was listed, and what the relay has not skipped
//! ```
//!
//! Why not otherwise: `pg_current_wal_lsn()` is behind asynchronous commits whose rows are visible already, and
//! `pg_visible_in_snapshot(xmin)` does not know the savepoints of transactions that still run. The message needs neither: whatever a
//! snapshot shows has put its commit into the WAL before, and the WAL has one order.
//!
//! Invariant: no row is deleted before the slot has confirmed what stands behind its insert, and no row of a table of which not every row,
//! past and future, is known to be published (`evidence`, checked before the list is made and again once it is confirmed). The age only
//! says which rows are wanted. A run that is ended at any moment leaves nothing half-done: each chunk is one short transaction.

pub(super) mod age;
mod evidence;
mod partitions;
mod row_cursor;
mod skipped;
mod slots;
mod table;

use super::carrier::Carrier;
use super::dialogue::Finishing;
use super::error::{CommandCause, CommandError};
use super::output::{duration, number};
use super::progress_bar::ProgressBar;
use super::signals;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::pg::shape::{ShapeColumn, shape};
use crate::pg::{self, Connection, Purpose, identifier, server};
use crate::supervise::{ExitKind, RunError};
use age::Age;
use evidence::Evidence;
use serde_json::json;
use skipped::Skipped;
use slots::OutboxSlots;
use std::io::Write;
use std::time::{Duration, Instant};
use table::Table;

/// Rows younger than this may be on their way.
pub const LEAST_AGE: Duration = Duration::from_mins(1);

/// How often the slot is looked at while its confirmation is waited for: at first, and at most.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// After how long a wait is told, and again.
const WORD_EVERY: Duration = Duration::from_secs(10);

/// The longest pause after a chunk. Waiting for a lock is no work that others have to be given time for.
const LONGEST_REST: Duration = Duration::from_millis(200);

/// How long a statement waits for a lock that somebody else has.
const LOCK_PATIENCE: &str = "SET lock_timeout = '5s'";

/// The rights that deleting rows needs.
const RIGHTS: &str = "SELECT, UPDATE, DELETE";

/// The rows to delete.
#[derive(Debug, Clone)]
pub struct PruneRequest {
    /// The database, publication and slot.
    pub carrier: Carrier,
    /// Only these tables; empty: all that the relay reads.
    pub tables: Vec<TableName>,
    /// The least age.
    pub older_than: Duration,
    /// The column that says how old a row is; `None`: found by name.
    pub age_column: Option<String>,
    /// Rows that are deleted in one transaction; at least 1.
    pub chunk: u32,
    /// Where rows go before they are deleted.
    pub archive_to: Option<TableName>,
    /// Again after each such pause; `None`: once.
    pub every: Option<Duration>,
    /// How long to wait for the slot to confirm; `None`: indefinitely.
    pub timeout: Option<Duration>,
    /// Whole partitions.
    pub partitions: bool,
    /// Only say what would be deleted.
    pub dry_run: bool,
    /// JSON lines.
    pub json: bool,
}

/// Deletes. `notes`: what is waited for. `stop`: ends it between two chunks.
///
/// # Errors
/// The slot is missing or not one that can be read; a table is not in the publication; the age cannot be determined; the server refuses.
pub fn prune(
    request: &PruneRequest,
    out: &mut dyn Write,
    notes: &mut dyn Write,
    stop: &dyn Fn() -> bool,
) -> Result<(), CommandError> {
    let mut out = Finishing::new(out);
    loop {
        match (once(request, &mut out, notes, stop), request.every) {
            // With `--every`, a request to stop is the normal end.
            (Err(error), Some(_)) if matches!(error.cause, CommandCause::Interrupted) => return Ok(()),
            (Err(error), Some(_)) if may_pass(&error) => {
                tracing::warn!(%error, "pruning round failed; retrying in the next one");
            }
            (Err(error), _) => return Err(error),
            (Ok(()), None) => return out.end(),
            (Ok(()), Some(_)) if out.is_unheard() => return out.end(),
            (Ok(()), Some(_)) => {}
        }
        if !signals::pause(request.every.unwrap_or_default(), stop) {
            return Ok(());
        }
    }
}

/// Whether a later round may succeed.
fn may_pass(error: &CommandError) -> bool {
    match error.postgres() {
        Some(error) => error.recovery() == pg::Recovery::Reconnect,
        None => error.kind == ExitKind::Restart && matches!(error.cause, CommandCause::Other(_)),
    }
}

fn once(
    request: &PruneRequest,
    out: &mut dyn Write,
    notes: &mut dyn Write,
    stop: &dyn Fn() -> bool,
) -> Result<(), CommandError> {
    let mut connection = Connection::open(&request.carrier.source, Purpose::Control)?;
    let slots = OutboxSlots::look(&mut connection, &request.carrier)?;
    let evidence = slots.evidence(&mut connection)?;
    let tables = tables(&mut connection, request, &slots, &evidence)?;
    if !request.partitions {
        // Before a row of any table is deleted.
        tables.iter().try_for_each(|table| evidence.iter().try_for_each(|known| known.covers(table, None)))?;
    }
    let skipped = Skipped::read(&mut connection, slots.carriers())?;
    connection.query(LOCK_PATIENCE)?;
    let mut round = Round { connection, request, slots, evidence, skipped, patience: request.timeout, notes, stop };
    for table in &tables {
        let pruned =
            if request.partitions { partitions::prune(&mut round, table, out) } else { round.table(table, out) };
        let fix = || match &request.archive_to {
            _ if request.partitions => {
                format!("run it as the owner of {} and of its partitions", table.name.sql())
            }
            Some(archive) => format!("{} GRANT INSERT ON {} TO it;", table.grant(RIGHTS), archive.sql()),
            None => table.grant(RIGHTS),
        };
        pruned.map_err(|error| error.with_fix(format!("prune {}", table.name), fix()))?;
    }
    if request.dry_run && !request.json {
        writeln!(out, "nothing was deleted")?;
    }
    Ok(())
}

fn tables(
    connection: &mut Connection,
    request: &PruneRequest,
    slots: &OutboxSlots,
    evidence: &[Evidence],
) -> Result<Vec<Table>, CommandError> {
    // Those of all shards have the same tables.
    let carrier = slots.first();
    let tracks = server::setting(connection, "track_commit_timestamp")?.is_some_and(|value| value == "on");
    let published = table::published(connection, carrier)?;
    let read = evidence.first().and_then(Evidence::tables).unwrap_or_else(|| table::roots(&published));
    let names = if request.tables.is_empty() { read } else { request.tables.clone() };
    let look = |name: TableName| {
        let Some(shape) = shape(connection, &name.schema, &name.name)? else {
            return Err(CommandError::no_table(&name, &carrier.source.dbname));
        };
        if !published.iter().any(|table| name.covers(table)) {
            let published = table::roots(&published).iter().map(ToString::to_string).collect();
            return Err(RunError::table_not_published(name, &carrier.publication, published).into());
        }
        let noted = evidence.first().and_then(|known| known.id(shape.oid));
        let id = table::id_column(&shape, &name, noted.as_deref())?;
        if let Some(key) = shape.referenced_by.iter().find(|key| key.contains("(ON DELETE ")) {
            return Err(CommandError::cascades(&name, key));
        }
        let shared = slots.shared(connection, shape.oid)?;
        let age = Age::find(request.age_column.as_deref(), &name, &shape, tracks)?;
        Ok(Table { name, shape, id, age, shared })
    };
    names.into_iter().map(look).collect()
}

/// Where rows go before they are deleted.
struct Archive {
    name: TableName,
    /// `INSERT INTO … SELECT …`, for rows of the table.
    insert: String,
    /// Triggers on its rows.
    triggers: Vec<String>,
}

/// One look at all tables.
struct Round<'a> {
    connection: Connection,
    request: &'a PruneRequest,
    /// The slot, or those of all shards.
    slots: OutboxSlots,
    /// The knowledge of the tables of each slot.
    evidence: Vec<Evidence>,
    skipped: Skipped,
    /// How long to wait for the slot to confirm. `None`: indefinitely.
    patience: Option<Duration>,
    notes: &'a mut dyn Write,
    stop: &'a dyn Fn() -> bool,
}

impl Round<'_> {
    fn table(&mut self, table: &Table, out: &mut dyn Write) -> Result<(), CommandError> {
        let started = Instant::now();
        let condition = self.condition(table);
        if self.request.dry_run {
            return self.count(table, &condition, out);
        }
        let archive = self.archive(table)?;
        let (name, mut deleted) = (table.rows(), 0);
        let left = loop {
            let listed = row_cursor::open(&mut self.connection, &name, &table.id, &condition)?;
            let mut gone = 0;
            if listed > 0 {
                self.confirmed(table, None)?;
                gone = self.delete(table, archive.as_ref(), listed)?;
            }
            row_cursor::close(&mut self.connection)?;
            deleted += gone;
            // Where no row of a list could be deleted, the next list would be the same.
            if listed < row_cursor::MOST || gone == 0 || (self.stop)() {
                break listed - gone;
            }
        };
        let why = match self.skipped.condition(table, "") {
            _ if (self.stop)() => "were not reached",
            Some(_) => "were locked, had changed or were skipped by the relay",
            None => "were locked or had changed",
        };
        let changed = if left > 0 { format!(", {} {why}", number(left)) } else { String::new() };
        let took = duration(started.elapsed());
        let text = format!("{} rows deleted{changed} ({took})", number(deleted));
        self.say(table, out, &text, json!({ "deleted": deleted, "left": left }))?;
        self.say_skipped(table, out)
    }

    /// Says something of a table: to people, or to programs.
    fn say(
        &self,
        table: &Table,
        out: &mut dyn Write,
        text: &str,
        mut values: serde_json::Value,
    ) -> Result<(), CommandError> {
        if self.request.json {
            if let Some(values) = values.as_object_mut() {
                values.insert("table".to_owned(), table.name.to_string().into());
            }
            writeln!(out, "{values}")?;
        } else {
            writeln!(out, "{}: {text}", table.name)?;
        }
        Ok(())
    }

    /// The rows that may go.
    fn condition(&self, table: &Table) -> String {
        let older = table.age.older_than(self.request.older_than);
        self.kept(table).map_or_else(|| older.clone(), |kept| format!("{older} AND NOT ({kept})"))
    }

    /// The condition of the rows that stay, however old they are: the relay has skipped them, or no shard has them.
    fn kept(&self, table: &Table) -> Option<String> {
        let of_none = table.shared.as_ref().map(|shared| format!("({shared}) IS NOT TRUE"));
        let keeps: Vec<String> = self.skipped.condition(table, "").into_iter().chain(of_none).collect();
        Some(keeps.join(" OR ")).filter(|kept| !kept.is_empty())
    }

    fn count(&mut self, table: &Table, condition: &str, out: &mut dyn Write) -> Result<(), CommandError> {
        let sql = format!("SELECT count(*) FROM {} WHERE {condition}", table.rows());
        let count = row_cursor::counted(&mut self.connection, &sql)?;
        let age = duration(self.request.older_than);
        let text = format!("{} rows are older than {age} by {}", number(count), table.age.name());
        self.say(table, out, &text, json!({ "old": count }))?;
        self.say_skipped(table, out)
    }

    /// Says what stays because the relay has skipped it.
    fn say_skipped(&mut self, table: &Table, out: &mut dyn Write) -> Result<(), CommandError> {
        let Some(skipped) = self.skipped.condition(table, "") else { return Ok(()) };
        let older = table.age.older_than(self.request.older_than);
        let sql = format!("SELECT count(*) FROM {} WHERE {older} AND {skipped}", table.rows());
        let count = row_cursor::counted(&mut self.connection, &sql)?;
        if count > 0 {
            let forget = self.skipped.forget();
            let text = format!(
                "{} rows that the relay skipped stay: they are in no topic. Once they are, or are not needed, as the relay's role: {forget}",
                number(count)
            );
            self.say(table, out, &text, json!({ "skipped": count, "forget": forget }))?;
        }
        Ok(())
    }

    /// Returns once everything that was committed before this call is confirmed, and what is known of the table is still true. `only`: of these
    /// partitions alone.
    fn confirmed(&mut self, table: &Table, only: Option<&[u32]>) -> Result<(), CommandError> {
        // Visible means that the commit is in the WAL, if only in memory: this message comes behind it, and its own commit flushes both.
        let rows = self.connection.query(
            "BEGIN; SET LOCAL synchronous_commit = on;
             SELECT pg_catalog.pg_logical_emit_message(true, 'walrelay.prune', ''); COMMIT",
        )?;
        let behind: Lsn = rows.first().and_then(|row| row.parse(0)).unwrap_or(Lsn::new(u64::MAX));
        let started = Instant::now();
        let (mut pause, mut next_word) = (LOOK_EVERY.0, WORD_EVERY);
        let mut progress = ProgressBar::new("waiting", 0);
        while let Some(carrier) = self.slots.behind(&mut self.connection, behind)? {
            if (self.stop)() {
                return Err(CommandError::interrupted());
            }
            if self.patience.is_some_and(|timeout| started.elapsed() >= timeout) {
                let (waited, run) = (started.elapsed(), carrier.run_command());
                return Err(CommandError::not_confirmed(&carrier.slot, behind, waited, run));
            }
            let word = format!(
                "waiting for slot \"{}\" to confirm {behind}, for {}: is its relay running?",
                carrier.slot,
                duration(started.elapsed())
            );
            if started.elapsed() >= next_word {
                writeln!(self.notes, "{word}")?;
                next_word += WORD_EVERY;
            }
            progress.note(&word);
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_EVERY.1);
        }
        self.slots.are_unchanged(&mut self.connection)?;
        let now = self.slots.evidence(&mut self.connection)?;
        let is_same = now
            .iter()
            .zip(&self.evidence)
            .all(|(now, before)| now.is_of_marker(before) && now.id(table.shape.oid) == before.id(table.shape.oid));
        if !is_same {
            return Err(CommandError::publication_changed(&self.slots.first().publication));
        }
        now.iter().try_for_each(|known| known.covers(table, only))?;
        // A row is noted before it is skipped: what was meanwhile is there now.
        self.skipped = Skipped::read(&mut self.connection, self.slots.carriers())?;
        Ok(())
    }

    fn delete(&mut self, table: &Table, archive: Option<&Archive>, total: u64) -> Result<u64, CommandError> {
        let mut progress = ProgressBar::new("deleting", total);
        let (name, mut seen, mut deleted) = (table.rows(), 0, 0);
        let stays = self.skipped.condition(table, "t.");
        loop {
            let versions = row_cursor::next(&mut self.connection, self.request.chunk)?;
            if versions.is_empty() || (self.stop)() {
                return Ok(deleted);
            }
            let gone = row_cursor::delete(&name, &table.id, &versions, stays.as_deref());
            let begun = Instant::now();
            deleted += match archive {
                Some(archive) => self.moved(table, &gone, archive)?,
                None => row_cursor::counted(&mut self.connection, &format!("{gone} SELECT count(*) FROM gone"))?,
            };
            seen += versions.len() as u64;
            progress.at(seen);
            // As long as that took: half of the time belongs to those who write.
            std::thread::sleep(begun.elapsed().min(LONGEST_REST));
        }
    }

    /// Deletes what is `gone`, if the archive lets in all of it.
    fn moved(&mut self, table: &Table, gone: &str, archive: &Archive) -> Result<u64, CommandError> {
        let sql = format!(
            "BEGIN; {gone}, kept AS ({} FROM gone RETURNING 1) SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM kept)",
            archive.insert
        );
        let counts = self.connection.query_within(&sql, row_cursor::PATIENCE)?;
        let count = |at| counts.first().and_then(|row| row.parse::<u64>(at)).unwrap_or_default();
        let (rows, kept) = (count(0), count(1));
        if kept == rows {
            self.connection.query("COMMIT")?;
            return Ok(rows);
        }
        self.connection.query("ROLLBACK")?;
        let counts = (rows.saturating_sub(kept), rows);
        Err(CommandError::not_archived(&table.name, &archive.name, counts, &archive.triggers))
    }

    /// The table that rows of `table` go to.
    fn archive(&mut self, table: &Table) -> Result<Option<Archive>, CommandError> {
        let Some(into) = &self.request.archive_to else { return Ok(None) };
        let Some(there) = shape(&mut self.connection, &into.schema, &into.name)? else {
            let database = &self.request.carrier.source.dbname;
            return Err(CommandError::no_archive(&into.sql(), &table.name.sql(), database));
        };
        let publication = &self.slots.first().publication;
        let published = server::published_tables(&mut self.connection, publication)?;
        if *into == table.name || published.iter().any(|table| into.covers(table)) {
            return Err(CommandError::archive_published(into, publication));
        }
        let has = |column: &ShapeColumn| there.columns.iter().find(|have| have.name == column.name);
        if let Some(column) = table.shape.columns.iter().find(|column| has(column).is_none()) {
            return Err(CommandError::archive_lacks(&into.sql(), &column.name, &table.name));
        }
        let is_other = |column: &&ShapeColumn| has(column).is_some_and(|have| !have.takes(column));
        if let Some(column) = table.shape.columns.iter().find(is_other) {
            return Err(CommandError::archive_differs(&into.sql(), &column.name, &table.name));
        }
        if !there.logged {
            return Err(CommandError::archive_unlogged(&into.sql()));
        }
        let kept = there.columns.iter().filter(|column| !column.generated);
        let kept = kept.filter(|column| table.shape.columns.iter().any(|have| have.name == column.name));
        let columns: Vec<String> = kept.map(|column| identifier(&column.name)).collect();
        let columns = columns.join(", ");
        let insert = format!("INSERT INTO {} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns}", into.sql());
        Ok(Some(Archive { name: into.clone(), insert, triggers: there.triggers }))
    }
}

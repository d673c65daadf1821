//! `setup`: creates what a database still needs, or prints the SQL for it.
//!
//! ```text
//!  table ──► publication ──► role ──► intent │ slot │ mark, intent gone
//!  └──────────── one transaction ─────────┘   its own: a transaction that has written cannot make one
//! ```
//!
//! In: names. Out: SQL on `out`, or with `--apply` what was done. `setup` looks before it changes anything, so a second run finds nothing
//! to do. The order matters: `pgoutput` looks the publication up as of each change, so the slot is created after it. Rows that are
//! committed after the slot are published, whenever the relay first runs. The marker is written last, so a marker always means that there
//! was a slot.
//!
//! | the publication's comment says | the slot | then |
//! |---|---|---|
//! | nothing | is not there | all of it is created |
//! | nothing | is there | it is marked |
//! | it is to be created | is not there | it is created, and marked |
//! | it is to be created | is there | it is marked, once it is finished: nothing shows that nobody has read it |
//! | it was created | is there, and fits | there is nothing to do |
//! | it was created | is not there, or does not fit | exit 2: it was lost. With `--after-loss` it is created if it is not there, and marked anew |
//!
//! Invariants: no slot is created before the comment says so; no slot is dropped; `run` reads no slot that is not marked as created while
//! the comment says that it is to be.

mod plan;
mod published;
mod shards;
mod slot;

use super::dialogue::{Dialogue, Finishing};
use super::error::CommandError;
use super::output::{COUNT_LIMIT, Told, as_role, bytes, counted_rows};
use super::shards::{has_no_shards, unfinished};
use crate::outbox::TableName;
use crate::pg::marker;
use crate::pg::slot_sighting;
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, catalog, leaves, literal, server};
use crate::remedy::Command;
use crate::supervise::RunError;
use plan::{Plan, PublicationFacts, SetupFacts, Step, StepKind, TableFacts, plan};
use serde_json::json;
pub use shards::Shards;
pub(super) use slot::make_temporary;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// How often what is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a wait may take before it is reported.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// How often it is reported again.
const WORD_EVERY: Duration = Duration::from_secs(5);

/// The objects to set up.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct SetupRequest {
    /// The database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot.
    pub slot: String,
    /// The outbox tables; needed when the publication has to be made.
    pub tables: Vec<TableName>,
    /// Those of `tables` that were given as `ONLY table`: tables that inherit from them are not added.
    pub without_children: Vec<TableName>,
    /// Do it, instead of printing it.
    pub apply: bool,
    /// A slot that standbys keep, too.
    pub failover: bool,
    /// A role for the relay, too.
    pub role: Option<String>,
    /// The first table, too, if it is not there.
    pub create_table: bool,
    /// Shards, instead of one slot.
    pub shards: Option<Shards>,
    /// The slot that was there was lost: go on with a new one, or with the one that is there.
    pub after_loss: bool,
    /// Only record that the rows of the tables are published.
    pub published: bool,
    /// Do not ask.
    pub yes: bool,
    /// JSON.
    pub json: bool,
    /// For a move to shards: slots that may be read with an old publication, too.
    pub also_read_by: Vec<String>,
    /// The connection string as it was typed as a flag, without secrets ([`shown_source`](crate::setting_text::shown_source)): the next
    /// command repeats it. `None` when it came from elsewhere.
    pub typed_source: Option<String>,
}

impl SetupRequest {
    fn told(&self) -> Told<'_> {
        let source = self.typed_source.as_deref();
        Told { source, publication: &self.publication, slot: &self.slot, tables: &[] }
    }

    /// Returns the next command: `run`, as the role that it is for.
    fn next(&self) -> String {
        let run = |source: Option<&str>| {
            self.tables.iter().fold(Told { source, ..self.told() }.add_to(Command::new("run")), |run, table| {
                run.set("--table", table.as_typed_only(self.without_children.contains(table)))
            })
        };
        let Some(role) = &self.role else { return run(self.typed_source.as_deref()).to_string() };
        match self.typed_source.as_deref().and_then(|source| as_role(source, role)) {
            Some(source) => run(Some(&source)).to_string(),
            None => format!("{}, where the connection string, or PGUSER, names the role {role}", run(None)),
        }
    }
}

/// Prints or does what the database still needs. `stop`: whether to give up waiting. The snapshot that meets the slot, where that was made.
///
/// # Errors
/// The server cannot be reached or refuses; the settings do not fit what is there. What was done before is said on `out`. `out` is closed:
/// the work is done all the same.
pub fn setup(
    request: &SetupRequest,
    dialogue: Dialogue<'_>,
    stop: &dyn Fn() -> bool,
) -> Result<Option<ExportedSnapshot>, CommandError> {
    let Dialogue { out, notes, terminal } = dialogue;
    let mut connection = Connection::open(&request.source, Purpose::Control)?;
    if !request.apply {
        let script = if let Some(shards) = &request.shards {
            let script = shards::script(&mut connection, request, shards)?;
            if request.json { format!("{:#}\n", json!({ "script": script })) } else { script }
        } else {
            is_for_one_slot(&mut connection, request)?;
            let facts = look(&mut connection, request)?;
            let plan = plan(request, &facts)?;
            let rows = rows_before(&mut connection, request, &facts, &plan)?;
            if request.json { plan::json(request, &plan, &rows) } else { plan::script(request, &facts, &plan, &rows) }
        };
        out.write_all(script.as_bytes())?;
        return Ok(None);
    }
    if request.published {
        published::record(connection, request, out, terminal)?;
        return Ok(None);
    }
    let mut out = Finishing::new(out);
    let mut voice = Voice {
        say: &mut |line| {
            if request.json { writeln!(out, "{}", json!({ "said": line })) } else { writeln!(out, "{line}") }
        },
        wait: &mut |line| {
            // Nothing hangs on it, and there is nobody else to tell.
            drop(writeln!(notes, "{line}"));
        },
        stop,
    };
    let mut connection = begin(connection, &mut voice)?;
    if let Some(shards) = &request.shards {
        shards::set_up(&mut connection, request, shards, &mut voice)?;
        out.end()?;
        return Ok(None);
    }
    is_for_one_slot(&mut connection, request)?;
    let exported = apply(connection, request, &mut voice)?;
    if request.json {
        writeln!(out, "{}", json!({ "next": request.next() }))?;
    } else {
        writeln!(out, "next: {}", request.next())?;
    }
    out.end()?;
    Ok(exported)
}

/// Checks that there are no shards, and that no move to shards is under way: after its cut, the one slot has no new rows.
fn is_for_one_slot(connection: &mut Connection, request: &SetupRequest) -> Result<(), CommandError> {
    let (publication, slot) = (&request.publication, &request.slot);
    let sets = has_no_shards(connection, (publication, slot))?;
    let Some((set, resume)) = unfinished(&sets) else { return Ok(()) };
    Err(CommandError::unfinished(&set.shown(), request.told().add_to(resume)))
}

/// For `run --setup`: makes publication, slot and mark where they are missing, once. What is done is logged. Cheap when all is
/// there. The snapshot that meets the slot, where that was made.
///
/// # Errors
/// [`RunCause::NoSlot`](crate::supervise::RunCause::NoSlot) if the mark is there and the slot is not: it was lost, and is not made
/// again in silence. Else as [`setup`].
pub fn once(request: &SetupRequest, stop: &dyn Fn() -> bool) -> Result<Option<ExportedSnapshot>, CommandError> {
    let SetupRequest { source, publication, slot, .. } = request;
    let mut voice = Voice {
        say: &mut |line| {
            tracing::info!(slot, publication, "{line}");
            Ok(())
        },
        wait: &mut |line| tracing::warn!(slot, publication, "{line}"),
        stop,
    };
    let mut connection = Connection::open(source, Purpose::Control)?;
    has_no_shards(&mut connection, (publication, slot))?;
    if is_done(&mut connection, request)? {
        return Ok(None);
    }
    // Another relay may be at it: what counts is what is there once the lock is ours.
    let mut connection = begin(connection, &mut voice)?;
    has_no_shards(&mut connection, (publication, slot))?;
    if is_done(&mut connection, request)? {
        return Ok(None);
    }
    apply(connection, request, &mut voice)
}

/// Whether slot and mark are there.
fn is_done(connection: &mut Connection, request: &SetupRequest) -> Result<bool, CommandError> {
    let mark = catalog::publication_mark(connection, &request.publication)?;
    let marked = marker::is_set(mark.comment.as_deref(), &request.slot);
    match server::slot(connection, &request.slot)? {
        None if marked => Err(RunError::no_slot(&request.slot, true).into()),
        None => Ok(false),
        Some(_) => Ok(marked),
    }
}

/// The snapshot that Postgres exports with a new slot. It lasts as long as this.
#[derive(Debug)]
pub struct ExportedSnapshot {
    /// The connection that the slot was created over. The server forgets the snapshot with its next command.
    #[allow(dead_code, reason = "the snapshot lasts as long as it does")]
    connection: Connection,
    /// Its name, for `SET TRANSACTION SNAPSHOT`.
    snapshot: String,
    /// The files of the tables before the slot was created.
    files: BTreeMap<u32, u32>,
}

impl ExportedSnapshot {
    /// Whether none of these tables was rewritten since before the slot was created. A table that is younger has no row that the snapshot sees.
    pub(super) fn are_as_before(&self, now: &BTreeMap<u32, u32>) -> bool {
        now.iter().all(|(oid, file)| self.files.get(oid).is_none_or(|before| before == file))
    }

    /// As SQL, what begins a transaction that sees what it sees.
    pub(super) fn begin(&self) -> String {
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT {}", literal(&self.snapshot))
    }
}

/// Where lines go, and whether to go on.
struct Voice<'a> {
    /// Takes a line about a step that was done.
    say: &'a mut dyn FnMut(&str) -> io::Result<()>,
    /// Takes a line about a wait.
    wait: &'a mut dyn FnMut(&str),
    stop: &'a dyn Fn() -> bool,
}

/// Makes the session fit for changes, and takes the lock.
fn begin(mut connection: Connection, voice: &mut Voice<'_>) -> Result<Connection, CommandError> {
    notices_our_end(&mut connection)?;
    let mut wait = Wait::begin();
    while !try_lock(&mut connection)? {
        wait.pause(voice, || lock_holder(&mut connection))?;
    }
    Ok(connection)
}

/// A wait that is reported: first after [`FIRST_WORD`], then every [`WORD_EVERY`].
struct Wait {
    started: Instant,
    next_word: Duration,
}

impl Wait {
    fn begin() -> Self {
        Self { started: Instant::now(), next_word: FIRST_WORD }
    }

    /// Reports the wait if it is time for that, and pauses.
    fn pause(&mut self, voice: &mut Voice<'_>, line: impl FnOnce() -> String) -> Result<(), CommandError> {
        self.report(voice, |_| vec![line()])?;
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    /// Reports the wait if it is time for that. `lines` takes how long it has lasted.
    ///
    /// # Errors
    /// It was asked to stop.
    fn report(
        &mut self,
        voice: &mut Voice<'_>,
        lines: impl FnOnce(Duration) -> Vec<String>,
    ) -> Result<(), CommandError> {
        if (voice.stop)() {
            return Err(CommandError::interrupted());
        }
        let waited = self.started.elapsed();
        if waited >= self.next_word {
            for line in lines(waited) {
                (voice.wait)(&line);
            }
            self.next_word = self.started.elapsed() + WORD_EVERY;
        }
        Ok(())
    }
}

/// Lets the server notice when walrelay is gone, so that it leaves no half-made slot and no long statement behind: making a slot can take as
/// long as the oldest transaction.
pub(super) fn notices_our_end(connection: &mut Connection) -> Result<(), CommandError> {
    match connection.query("SET client_connection_check_interval = '1s'") {
        // Not every operating system's kernel can tell the server.
        Ok(_) | Err(pg::Error::Server { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn try_lock(connection: &mut Connection) -> Result<bool, pg::Error> {
    let rows = connection.query(&format!("SELECT pg_catalog.pg_try_advisory_lock({})", marker::lock_key()))?;
    Ok(rows.first().is_some_and(|row| row.is_true(0)))
}

/// Names the session that has the lock, if the server shows it.
fn lock_holder(connection: &mut Connection) -> String {
    let rows = connection.query(&format!(
        "SELECT l.pid FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database
          WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()
            AND l.classid = {} AND l.objid = {} AND l.objsubid = 1",
        marker::LOCK.0,
        marker::LOCK.1
    ));
    let pid = rows.ok().and_then(|rows| rows.first()?.parse(0));
    let holder = catalog::session(connection, pid).ok().flatten();
    let holder = holder.map_or_else(|| "another session".to_owned(), |session| super::output::session(&session));
    format!("waiting: {holder} is setting this database up")
}

/// Looks at the database. Reads only.
fn look(connection: &mut Connection, request: &SetupRequest) -> Result<SetupFacts, CommandError> {
    let server = catalog::server(connection)?;
    let publication = look_at_publication(connection, request)?;
    let published = server::published_tables(connection, &request.publication)?;
    let mut tables = Vec::new();
    for filter in &request.tables {
        let row = catalog::table(connection, &filter.schema, &filter.name, &request.publication)?;
        let covered = row.is_some_and(|row| row.member) || published.iter().any(|table| filter.covers(table));
        tables.push(TableFacts { filter: filter.clone(), row, covered });
    }
    let role = match &request.role {
        Some(name) => catalog::role(connection, name)?,
        None => None,
    };
    let grants_by_role = request.role.is_some() && catalog::grants_replication_by_role(connection)?;
    let slot = server::slot(connection, &request.slot)?;
    let sighting = slot_sighting::sight(connection, &request.slot)?;
    Ok(SetupFacts { server, publication, tables, slot, sighting, role, grants_by_role })
}

fn look_at_publication(
    connection: &mut Connection,
    request: &SetupRequest,
) -> Result<Option<PublicationFacts>, pg::Error> {
    let name = &request.publication;
    let Some(row) = server::publication(connection, name)? else { return Ok(None) };
    let mark = catalog::publication_mark(connection, name)?;
    let has_token = marker::token_of_here(connection, mark.comment.as_deref(), &request.slot)?.is_some();
    let left_out = catalog::left_out(connection, name)?;
    Ok(Some(PublicationFacts { row, mark, has_token, left_out }))
}

/// Waits until the slot of a setup that was ended is finished, or gone with the session that created it.
fn wait_until_finished(
    connection: &mut Connection,
    request: &SetupRequest,
    voice: &mut Voice<'_>,
) -> Result<(), CommandError> {
    let mut wait = Wait::begin();
    let comment = catalog::publication_mark(connection, &request.publication)?.comment;
    while marker::is_creating(comment.as_deref(), &request.slot)
        && server::slot(connection, &request.slot)?.is_some_and(|slot| slot.confirmed_flush_lsn.is_none())
    {
        wait.pause(voice, || format!("waiting: slot \"{}\" is still being created", request.slot))?;
    }
    Ok(())
}

/// Does what is needed. The connection carries the lock and ends with it.
fn apply(
    mut connection: Connection,
    request: &SetupRequest,
    voice: &mut Voice<'_>,
) -> Result<Option<ExportedSnapshot>, CommandError> {
    wait_until_finished(&mut connection, request, voice)?;
    let facts = look(&mut connection, request)?;
    if !facts.server.decodes() {
        return Err(RunError::wal_level(&facts.server.wal_level).into());
    }
    let plan = plan(request, &facts)?;
    // Before anything is changed: the role may have no right to it.
    let maker = plan.step(StepKind::Slot).map(|step| Ok::<_, CommandError>((step, replicating(&request.source)?)));
    let maker = maker.transpose()?;
    if !plan.steps.is_empty() {
        let steps: Vec<String> = plan.steps.iter().filter(|step| step.is_told()).map(Step::to_do).collect();
        (voice.say)(&format!(
            "in database \"{}\" ({}): {}",
            facts.server.database,
            connection.host(),
            steps.join("; ")
        ))?;
    }
    in_one_transaction(&mut connection, &plan)?;
    for step in plan.steps.iter().filter(|step| step.kind.is_transactional() && step.is_told()) {
        (voice.say)(&step.done())?;
    }
    let rows = rows_before(&mut connection, request, &facts, &plan)?;
    let mut exported = None;
    if let Some((step, maker)) = maker {
        let files = files(&mut connection, &request.publication)?;
        let (made, lsn) = slot::make(maker, request, step, voice)?;
        exported = Some(ExportedSnapshot { files, ..made });
        (voice.say)(&format!("{} at {lsn}", step.done()))?;
    }
    if let Some(step) = plan.step(StepKind::Mark) {
        execute(&mut connection, step)?;
        (voice.say)(&step.done())?;
    }
    if exported.is_some() {
        (voice.say)("rows committed from now on will be published")?;
    }
    if plan.steps.is_empty() {
        (voice.say)(&nothing_to_do(request, &facts))?;
    }
    rows.iter().chain(&plan.warnings).try_for_each(|line| (voice.say)(line))?;
    Ok(exported)
}

/// The files of the publication's tables and partitions (`pg_class.oid`, `pg_relation_filenode`). A table that is rewritten has another one, which
/// looks empty to a snapshot from before.
fn files(connection: &mut Connection, publication: &str) -> Result<BTreeMap<u32, u32>, pg::Error> {
    let oids: Vec<u32> = leaves::look(connection, publication)?.into_keys().collect();
    leaves::files(connection, &oids)
}

fn nothing_to_do(request: &SetupRequest, facts: &SetupFacts) -> String {
    let position = facts.slot.as_ref().map_or_else(String::new, |slot| {
        let (confirmed, lag) = (slot.confirmed_flush_lsn.unwrap_or_default(), slot.lag_bytes.unwrap_or_default());
        format!(" (confirmed {confirmed}, {} behind)", bytes(lag))
    });
    format!("nothing to do: publication \"{}\" and slot \"{}\" are there{position}", request.publication, request.slot)
}

/// A connection that may make a slot. Managed services give that right in other ways than by the role's attribute, so this is how to see it.
fn replicating(source: &Source) -> Result<Connection, CommandError> {
    Ok(Connection::open(source, Purpose::Replication)?)
}

fn in_one_transaction(connection: &mut Connection, plan: &Plan) -> Result<(), CommandError> {
    let mut steps = plan.steps.iter().filter(|step| step.kind.is_transactional()).peekable();
    if steps.peek().is_none() {
        return Ok(());
    }
    // A migration may have the lock of the table; an error after a while says more than silence.
    connection.query("BEGIN")?;
    connection.query("SET LOCAL lock_timeout = '20s'")?;
    steps.try_for_each(|step| execute(connection, step))?;
    connection.query("COMMIT")?;
    Ok(())
}

fn execute(connection: &mut Connection, step: &Step) -> Result<(), CommandError> {
    connection.query(&step.sql).map(drop).map_err(|error| step.refused(error))
}

/// Counts the rows that the slot will not carry, since the slot is made now, or their table joins the publication now.
fn rows_before(
    connection: &mut Connection,
    request: &SetupRequest,
    facts: &SetupFacts,
    plan: &Plan,
) -> Result<Vec<String>, CommandError> {
    let makes_slot = plan.step(StepKind::Slot).is_some();
    let mut tables = if makes_slot || plan.step(StepKind::Publication).is_some() {
        request.tables.clone()
    } else {
        plan::lacking(facts).map(|table| table.filter.clone()).collect()
    };
    if makes_slot && tables.is_empty() {
        let published = server::published_tables(connection, &request.publication)?;
        tables.extend(published.iter().map(|table| TableName::of(&table.relation)));
    }
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    let before = if makes_slot { "the slot" } else { "it was in the publication" };
    // Dead rows can make even a bounded count slow.
    connection.query("SET statement_timeout = '10s'")?;
    let lines = tables.iter().map(|table| count(connection, table, before, plan)).collect::<Result<_, _>>();
    connection.query("SET statement_timeout = 0")?;
    lines
}

fn count(connection: &mut Connection, table: &TableName, before: &str, plan: &Plan) -> Result<String, CommandError> {
    match catalog::count_rows(connection, &table.schema, &table.name, COUNT_LIMIT + 1) {
        Ok(rows) => Ok(rows_line(table, before, rows)),
        Err(pg::Error::Server { .. }) if plan.step(StepKind::Table).is_some() => Ok(rows_line(table, before, 0)),
        Err(pg::Error::Server { error, .. }) => Ok(format!(
            "{table}: rows that are there already could not be counted ({error}); they will not be published"
        )),
        Err(error) => Err(error.into()),
    }
}

fn rows_line(table: &TableName, before: &str, rows: u64) -> String {
    if rows == 0 {
        return format!("{table} is empty: nothing from before {before}");
    }
    let (count, they) = (counted_rows(rows), if rows == 1 { "it" } else { "they" });
    format!("{table} holds {count} already, from before {before}: {they} will not be published")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_from_before_the_slot_are_counted_no_further_than_the_limit() {
        let table = TableName::parse("shop.outbox").unwrap();
        assert_eq!(rows_line(&table, "the slot", 0), "shop.outbox is empty: nothing from before the slot");
        assert!(rows_line(&table, "the slot", 12).starts_with("shop.outbox holds 12 rows already"));
        assert!(rows_line(&table, "the slot", 100_000).contains("holds 100,000 rows"));
        assert!(rows_line(&table, "the slot", 100_001).contains("more than 100,000 rows"));
    }
}

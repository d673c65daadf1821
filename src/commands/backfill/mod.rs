//! `backfill`: publishes rows that are in the table and were never in the slot, rather twice than never.
//!
//! ```text
//!  tables ─► parts, pages ─► the relay's loop ─► sink
//!              ▲                   │
//!              └── how far ◄───────┘ acknowledged
//! ```
//!
//! In: what a run is asked for, and which rows. Out: the records that the slot's relay would have made of them. The relay may run meanwhile. It
//! writes to no table.
//!
//! | the slot | rows | how |
//! |---|---|---|
//! | was created by the same command | those that its snapshot sees: they are in no slot, and all others are in this one | under the snapshot, once each |
//! | was there | all that are there at the beginning; those since the slot was created come a second time | by key, up to the greatest one of the beginning, once the transactions that were open have ended |
//!
//! A row whose key is changed meanwhile may be missed in the second way. After a kill a backfill goes on, in the second way, behind what was
//! acknowledged and noted; rows since then repeat.

mod feed;
mod keeper;
mod open_transactions;
mod parts;
mod reader;
mod resume;
mod table_rows;
mod times;

use super::carrier::{Carrier, confirmed};
use super::dialogue::{Dialogue, agreed};
use super::error::CommandError;
use super::output::counted;
use super::row_noter::RowNoter;
use super::run;
use super::setup::{self, ExportedSnapshot};
use super::shards;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::outbox::{Outbox, TableName};
use crate::pg::backfill_progress::{self, BackfillProgress, PartProgress, StoredProgress};
use crate::pg::leaf_notes::Known;
use crate::pg::leaves::{self, Leaf};
use crate::pg::relay_note::{self, StoredNote};
use crate::pg::slot_sighting::{self, Agreement};
use crate::pg::{self, Connection, Purpose, catalog, marker, server};
use crate::pgoutput::PublishedTable;
use crate::relay::{Limits, Relay, StreamEnd, SystemClock};
use crate::remedy::{Command, Remedy, TypedFlags};
use crate::sink::FailureClass;
use crate::sink::destination::Delivery;
use crate::sink::{Failure, Sink};
use crate::supervise::{self, RunError};
use feed::Feed;
use keeper::Keeper;
use parts::{PageSettings, Paging, Part, PartFacts, Start};
use reader::RowReader;
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
pub(super) use table_rows::{Reading, TableRows, WantedRows};

/// Pause after a failure of the destination.
const PAUSE: Duration = Duration::from_secs(1);

/// How long counting may take.
const COUNTING: Duration = Duration::from_hours(24);

/// The rows to publish, and where to.
#[derive(Debug, Clone)]
pub struct BackfillRequest {
    /// Where from, where to, and how rows become records.
    pub run: run::RunRequest,
    /// Which rows, as SQL; `None`: all.
    pub condition: Option<String>,
    /// The column that they are ordered by before their key; `None`: by the key.
    pub order: Option<String>,
    /// Rows a second at most; `None`: no bound.
    pub rate: Option<NonZeroU32>,
    /// Rows that are read by one statement.
    pub chunk: u32,
    /// Begin with the first row, whatever was published before.
    pub again: bool,
    /// Do not ask.
    pub yes: bool,
    /// Run the relay once it is done.
    pub then_run: bool,
}

impl BackfillRequest {
    fn rows(&self) -> resume::AskedRows<'_> {
        resume::AskedRows { condition: self.condition.as_deref(), order: self.order.as_deref(), again: self.again }
    }
}

/// Publishes the rows, or counts them; `exported`: the snapshot that a new slot came with. `typed`: what hints repeat.
///
/// # Errors
/// There is no slot; a table has no key; what a run would end with; stopped before all is done.
pub fn backfill(
    request: BackfillRequest,
    exported: Option<ExportedSnapshot>,
    dialogue: Dialogue<'_>,
    typed: &TypedFlags,
) -> Result<(), CommandError> {
    let stop = super::stop_on_signal()?;
    let stopped = || stop.load(Ordering::Relaxed);
    let exported = if exported.is_none() && request.run.setup && !request.run.dry_run {
        setup::once(&request.run.setup_request(), &stopped)?
    } else {
        exported
    };
    let asks_twice = exported.is_none();
    if let Some(job) = Job::plan(&request, asks_twice, dialogue, typed, &stopped)? {
        job.publish(&request, exported, &stop)?;
    }
    if !request.then_run || request.run.dry_run {
        return Ok(());
    }
    run::run(run::RunRequest { setup: false, ..request.run }, typed)
}

/// Everything that is known before the first row is read.
struct Job {
    /// Over which it was found out; it has the lock.
    connection: Connection,
    outbox: Outbox,
    asked: PageSettings,
    tables: Vec<TableName>,
    parts: Vec<Part>,
    progress: BackfillProgress,
    /// How many rows are expected.
    total: u64,
}

impl Job {
    /// Looks at everything, and decides. `is_late`: the slot was there before, so that no snapshot meets it. `None`: there is nothing to publish.
    fn plan(
        request: &BackfillRequest,
        is_late: bool,
        dialogue: Dialogue<'_>,
        typed: &TypedFlags,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, CommandError> {
        let run = &request.run;
        let carrier = Carrier {
            source: run.source.clone(),
            publication: run.publication.clone(),
            slot: run.slot.clone(),
            shard: None,
        };
        let mut connection = Connection::open(&run.source, Purpose::Control)?;
        shards::has_one_slot(&mut connection, (&carrier.publication, &carrier.slot))?;
        confirmed(&mut connection, &carrier)?;
        let mut outbox =
            Outbox::new(run.mapping.clone(), run.tables.clone())?.with_patterns(run.table_patterns.clone());
        let target = run::target(run);
        supervise::read_tables(&mut connection, &target, &mut outbox)?;
        let (tables, parts) = select(&mut connection, run, request.order.as_deref())?;
        let comment = catalog::publication_mark(&mut connection, &run.publication)?.comment;
        let comment = comment.as_deref();
        if let Some(line) = marker::unknown_line(comment, &run.slot) {
            return Err(RunError::unknown_marker(&run.slot, &run.publication, line).into());
        }
        let token = marker::token_of_here(&mut connection, comment, &run.slot)?.unwrap_or_default();
        let asked = asked(&mut connection, request)?;
        let before = trusted(&mut connection, run, (comment, &token), (&tables, &parts), typed)?;
        let (progress, parts) = resume::resume(&request.rows(), before, &token, &tables, parts)?;
        if is_late && !parts.is_empty() {
            can_be_late(request, &parts)?;
        }
        if run.dry_run {
            count(&mut connection, &asked, &tables, &parts, dialogue.out)?;
            return Ok(None);
        }
        if parts.is_empty() {
            for table in &tables {
                let rows = progress.tables.get(&table.to_string()).map_or(0, |table| table.rows);
                tracing::info!(%table, rows, "nothing to do: its rows were published already");
            }
            // The run before may have ended between its last row and this note.
            Keeper::new(connection, &run.source, &run.slot, progress, tables, 0).note_published(&run.publication)?;
            return Ok(None);
        }
        let total = expected(&mut connection, &asked, &parts)?;
        let mut job = Self { connection, outbox, asked, tables, parts, progress, total };
        let asked = job.tables.iter().filter_map(|name| job.progress.tables.get(&name.to_string()));
        let is_resumed = asked.filter(|table| !table.done).all(|table| table.at > Lsn::ZERO);
        if is_late && !job.agreed(request, is_resumed, dialogue)? {
            return Ok(None);
        }
        if !backfill_progress::lock(&mut job.connection, &run.slot)? {
            return Err(CommandError::backfill_runs(&run.slot));
        }
        if is_late {
            open_transactions::wait(&mut job.connection, stop)?;
        }
        let listed = marker::statements(comment, &run.slot).first().map(|listed| listed.at);
        job.begin(run, is_late, listed)?;
        Ok(Some(job))
    }

    /// Says what comes twice, and asks. A backfill that goes on was agreed to before.
    fn agreed(
        &mut self,
        request: &BackfillRequest,
        is_resumed: bool,
        dialogue: Dialogue<'_>,
    ) -> Result<bool, CommandError> {
        let names: Vec<String> = self.tables.iter().map(ToString::to_string).collect();
        let left_out = if request.condition.is_some() {
            "; --where leaves rows out, so walrelay prune will not know the table"
        } else {
            ""
        };
        let text = format!(
            "about {} of {} are published{}: those that were committed since slot \"{}\" was created, and at most all of them, come a second time{left_out}",
            counted(self.total, "row"),
            names.join(", "),
            if is_resumed { " from the last noted one on" } else { "" },
            request.run.slot
        );
        if is_resumed || request.yes {
            tracing::info!("{text}");
            return Ok(true);
        }
        // The rows themselves may go to stdout.
        writeln!(dialogue.notes, "{text}")?;
        agreed(dialogue.notes, dialogue.terminal, "backfill")
    }

    /// Notes for each table that begins now from where on its rows are the slot's, and its greatest keys.
    fn begin(&mut self, run: &run::RunRequest, is_late: bool, listed: Option<Lsn>) -> Result<(), CommandError> {
        let connection = &mut self.connection;
        let now: Lsn = connection.value("SELECT pg_catalog.pg_current_wal_insert_lsn()")?.unwrap_or_default();
        let all = leaves::look(connection, &run.publication)?;
        let mut without_rows = Vec::new();
        for (at, name) in self.tables.iter().enumerate() {
            let Some(table) = self.progress.tables.get_mut(&name.to_string()) else { continue };
            if table.at == Lsn::ZERO {
                table.leaves =
                    of_table(&all, &self.parts, at).map(|leaf| (leaf.oid, leaf.fingerprint.clone())).collect();
                table.at = if is_late { now } else { listed.unwrap_or(now) };
            }
            for part in self.parts.iter_mut().filter(|part| part.table == at) {
                let fresh = || PartProgress { columns: part.columns(), ..PartProgress::default() };
                let progress = table.parts.entry(part.oid).or_insert_with(fresh);
                let (Paging::Keys(keys), Some(sql)) = (&part.paging, part.greatest()) else { continue };
                if part.until.is_some() || !is_late {
                    continue;
                }
                let rows = ask(connection, part, &sql)?;
                let Some(row) = rows.first() else {
                    let named = connection.query(&format!("SELECT {}", part.is_named()))?;
                    if !named.first().is_some_and(|row| row.is_true(0)) {
                        return Err(CommandError::replaced(&part.name.to_string()));
                    }
                    progress.done = true;
                    without_rows.push(part.oid);
                    continue;
                };
                let key: Vec<Option<String>> = (0..keys.len()).map(|at| row.text(at).map(str::to_owned)).collect();
                progress.until = Some(key.clone());
                part.until = Some(key.into());
            }
        }
        // Their rows will all come through the slot.
        self.parts.retain(|part| !without_rows.contains(&part.oid));
        Ok(())
    }

    /// Reads and publishes until all is acknowledged.
    fn publish(
        self,
        request: &BackfillRequest,
        exported: Option<ExportedSnapshot>,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), CommandError> {
        let run = &request.run;
        let (kind, first) = (run.destination.kind(), self.progress.rows + 1);
        if run.delivery != Delivery::AtLeastOnce {
            tracing::warn!(
                "existing rows are published at least once, outside transactions; consumers see them at once"
            );
        }
        times::warn_of_deletion(run, &self.asked, &self.parts);
        let mut sink = run::open(run, &format!("walrelay/{}/backfill", run.slot), Delivery::AtLeastOnce)?;
        run::probe(&mut sink, kind)?;
        let metrics = Metrics::new(&run.slot, &run.publication, Instant::now());
        let metrics = Arc::new(metrics.with_destination(kind.name, kind.title));
        let limits = Limits {
            coalesce: Duration::ZERO,
            shutdown_timeout: run.limits.shutdown_timeout,
            // No slot is delayed.
            disconnect_after: Duration::MAX,
        };
        let noter = RowNoter::start(&run.source, &run.slot, Arc::clone(&metrics))?;
        let mut relay = Relay::new(self.outbox, sink, SystemClock, metrics, Arc::clone(stop), limits)
            .with_bad_rows(run.bad_rows.clone())
            .with_notes(Box::new(noter));
        // Its positions only count rows: each run of it has its own.
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        relay.set_dead_letter_source(format!("{}/backfill/{began}", run.slot));
        let reader = RowReader::new(&run.source, run.limits.max_row, exported);
        let Self { connection, tables, progress, total, .. } = self;
        tracing::info!(
            tables = tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            rows_before = progress.rows,
            of_about = total,
            "backfill begins"
        );
        let mut keeper = Keeper::new(connection, &run.source, &run.slot, progress, tables, total);
        // A backfill whose progress cannot be stored would start over after each kill.
        keeper.finish(&|| true)?;
        let feed = Feed::new(self.parts, self.asked, reader, keeper, first, request.rate);
        let (ended, mut keeper) = read(relay, feed);
        let kept = keeper.finish(&|| stop.load(Ordering::Relaxed));
        if ended.is_ok() && kept.is_ok() {
            keeper.note_published(&run.publication)?;
        }
        tracing::info!(rows = keeper.rows(), done = ended.is_ok(), "backfill ends");
        ended?;
        kept
    }
}

/// Checks that rows that are left can be read without the snapshot of a new slot.
fn can_be_late(request: &BackfillRequest, parts: &[Part]) -> Result<(), CommandError> {
    if let Some(order) = &request.order {
        return Err(CommandError::order_needs_snapshot(order));
    }
    match parts.iter().find(|part| matches!(part.paging, Paging::Ctids { .. })) {
        Some(part) => Err(CommandError::no_key(&part.name.to_string())),
        None => Ok(()),
    }
}

/// The progress of the backfills before, as far as it still says that rows are published or in the slot. `typed`: what hints repeat.
fn trusted(
    connection: &mut Connection,
    run: &run::RunRequest,
    (comment, token): (Option<&str>, &str),
    of: (&[TableName], &[Part]),
    typed: &TypedFlags,
) -> Result<BackfillProgress, CommandError> {
    let before = match backfill_progress::read(connection, &run.slot, &run.publication)? {
        StoredProgress::Nothing => return Ok(BackfillProgress::default()),
        StoredProgress::Known(progress) => progress,
        StoredProgress::Unknown { large_object } => {
            return Err(CommandError::unknown_backfill(&run.slot, large_object));
        }
    };
    let hint = |setup: Command| {
        Remedy::from(setup.set("--publication", &run.publication).set("--slot", &run.slot)).with(typed).to_string()
    };
    let now = slot_sighting::sight(connection, &run.slot)?;
    let agreement = marker::anchor(comment, &run.slot).zip(now.as_ref()).map(|(anchor, now)| anchor.agrees(now));
    // The rows between the two slots are in neither.
    if let Some(why) = agreement.and_then(Agreement::objection) {
        tracing::warn!(
            slot = run.slot,
            hint = hint(Command::new("setup").flag("--apply").flag("--after-loss")),
            "the setup marker does not fit the slot: {why}; what earlier backfills recorded does not count"
        );
        return Ok(BackfillProgress::default());
    }
    let mut kept = resume::of_slot(&before, token, now.map_or(Lsn::ZERO, |now| now.restart_lsn));
    let is_lost = |name: &TableName| {
        let title = name.to_string();
        before.tables.contains_key(&title) && !kept.tables.contains_key(&title)
    };
    if token.is_empty() && of.0.iter().any(is_lost) {
        tracing::warn!(
            slot = run.slot,
            hint = hint(Command::new("setup").flag("--apply")),
            "no setup marker says that the slot is the one of the backfills before: what they have published is published again"
        );
    }
    forget_changed(connection, run, comment, of, &mut kept)?;
    Ok(kept)
}

/// Takes tables out of the progress of which something is in no topic or may be: a partition, or rows, came from elsewhere since, by being
/// attached, moved or published later; or the relay did not read the table all the time since, or left rows out.
fn forget_changed(
    connection: &mut Connection,
    run: &run::RunRequest,
    comment: Option<&str>,
    (tables, parts): (&[TableName], &[Part]),
    before: &mut BackfillProgress,
) -> Result<(), CommandError> {
    let known = Known::read(connection, &run.publication, &run.slot, comment)?;
    let names = (run.publication.as_str(), run.slot.as_str());
    let relay = match &known {
        Some(known) => relay_note::read(connection, names, &known.token)?,
        None => StoredNote::Nothing,
    };
    let has_read = |leaf: &Leaf, since: Lsn| match &relay {
        // What it will read first is the slot's beginning.
        StoredNote::Nothing => true,
        StoredNote::Known { note, .. } => note.since(&leaf.chain).is_some_and(|read| read <= since),
        StoredNote::Unknown { .. } => false,
    };
    let all = leaves::look(connection, &run.publication)?;
    for (at, name) in tables.iter().enumerate() {
        let Some(table) = before.tables.get(&name.to_string()) else { continue };
        let is_known = |leaf: &Leaf| {
            let own = table.leaves.get(&leaf.oid).filter(|print| **print == leaf.fingerprint);
            let stated = known.as_ref().and_then(|known| known.since(leaf, &all));
            own.map(|_| table.at).max(stated).is_some_and(|since| has_read(leaf, since))
        };
        if !of_table(&all, parts, at).all(is_known) {
            tracing::warn!(table = %name, "rows may be in no topic since the backfill before: the table is published from its first row on");
            before.tables.remove(&name.to_string());
        }
    }
    Ok(())
}

/// The leaves of one of the tables that are asked for.
fn of_table<'a>(
    all: &'a BTreeMap<u32, Leaf>,
    parts: &[Part],
    table: usize,
) -> impl Iterator<Item = &'a Leaf> + use<'a> {
    let oids: Vec<u32> = parts.iter().filter(|part| part.table == table).map(|part| part.oid).collect();
    all.values().filter(move |leaf| !leaf.is_partitioned && leaf.chain.iter().any(|oid| oids.contains(oid)))
}

/// The tables that are asked for, and the parts that their rows are read from, in order.
fn select(
    connection: &mut Connection,
    run: &run::RunRequest,
    order: Option<&str>,
) -> Result<(Vec<TableName>, Vec<Part>), CommandError> {
    let published = server::published_tables(connection, &run.publication)?;
    let covers = |table: &PublishedTable| {
        if run.tables.is_empty() {
            run.table_patterns.capture(&table.relation)
        } else {
            run.tables.iter().any(|name| name.covers(table))
        }
    };
    let published: Vec<PublishedTable> = published.into_iter().filter(covers).collect();
    let filters = parts::filters(connection, &run.publication)?;
    let oids: Vec<u32> = published.iter().map(|table| table.relation.id).collect();
    let found = parts::facts(connection, &oids, order)?;
    let (mut tables, mut parts) = (Vec::new(), Vec::new());
    for table in &published {
        let name = TableName::of_whole(table);
        let at = tables.iter().position(|known| *known == name).unwrap_or_else(|| {
            tables.push(name);
            tables.len() - 1
        });
        let filter = filters.get(&table.relation.full_name()).cloned();
        let own = found.iter().find(|facts| facts.oid == table.relation.id);
        let leaves = match own {
            Some(own) if own.partitioned && !own.has_key() => {
                let leaves = parts::leaves(connection, own.oid)?;
                parts::facts(connection, &leaves, order)?
            }
            own => own.cloned().into_iter().collect(),
        };
        for facts in leaves {
            parts.push(part(order, table, facts, at, filter.clone())?);
        }
    }
    // A table's parts are together, whatever schemas its partitions are in.
    parts.sort_by(|one, other| (one.table, &one.name).cmp(&(other.table, &other.name)));
    Ok((tables, parts))
}

fn part(
    order: Option<&str>,
    table: &PublishedTable,
    facts: PartFacts,
    at: usize,
    filter: Option<String>,
) -> Result<Part, CommandError> {
    let name = facts.name.to_string();
    if facts.row_security {
        return Err(CommandError::rows_hidden(&name));
    }
    let Some(paging) = facts.paging(order) else {
        let column = order.unwrap_or_default();
        return Err(CommandError::no_order(&name, column, facts.has_key()));
    };
    Ok(Part {
        table: at,
        relation: table.relation.clone(),
        oid: facts.oid,
        name: facts.name,
        partitioned: facts.partitioned,
        filter,
        paging,
        begin: Start::First,
        until: None,
    })
}

fn asked(connection: &mut Connection, request: &BackfillRequest) -> Result<PageSettings, CommandError> {
    let commit_times = server::setting(connection, "track_commit_timestamp")?.as_deref() == Some("on");
    // A slow pace should keep no statement open for long.
    let chunk = request.rate.map_or(request.chunk, |rate| request.chunk.min(rate.get()));
    Ok(PageSettings { condition: request.condition.clone(), chunk, commit_times })
}

/// Runs a question about a part's rows, which takes the right to read them.
fn ask(connection: &mut Connection, part: &Part, sql: &str) -> Result<Vec<pg::Row>, CommandError> {
    connection.query_within(sql, COUNTING).map_err(|error| {
        let fix = format!("as the table's owner: GRANT SELECT ON {} TO the role that does it;", part.name.sql());
        CommandError::from(error).with_fix(format!("read {}", part.name), fix)
    })
}

/// How many rows the planner expects.
fn expected(connection: &mut Connection, asked: &PageSettings, parts: &[Part]) -> Result<u64, CommandError> {
    let mut total = 0;
    for part in parts {
        let rows = ask(connection, part, &part.explain(asked))?;
        let plan: Option<serde_json::Value> =
            rows.first().and_then(|row| serde_json::from_str(row.text(0).unwrap_or_default()).ok());
        total += plan.and_then(|plan| plan.pointer("/0/Plan/Plan Rows")?.as_u64()).unwrap_or_default();
    }
    Ok(total)
}

/// Says how many rows would be published.
fn count(
    connection: &mut Connection,
    asked: &PageSettings,
    tables: &[TableName],
    parts: &[Part],
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    for (at, table) in tables.iter().enumerate() {
        let mut total = 0;
        for part in parts.iter().filter(|part| part.table == at) {
            let rows = ask(connection, part, &part.count(asked, &part.begin))?;
            total += rows.first().and_then(|row| row.parse::<u64>(0)).unwrap_or_default();
        }
        writeln!(out, "{table}: {} would be published; nothing was", counted(total, "row"))?;
    }
    Ok(())
}

/// Publishes until all is acknowledged, or something ends it.
fn read<S: Sink>(mut relay: Relay<S, SystemClock>, mut feed: Feed) -> (Result<(), CommandError>, Keeper) {
    relay.acquired(feed.first_lsn());
    let ended = loop {
        let ended = relay.stream(&mut feed, None);
        feed.acknowledged(relay.flush_lsn());
        match ended {
            StreamEnd::Disconnected(pg::Error::Ended) if feed.is_done() => break Ok(()),
            StreamEnd::Disconnected(error) => break Err(feed.take_failure().unwrap_or_else(|| error.into())),
            StreamEnd::Stopped => break Err(CommandError::interrupted()),
            StreamEnd::StopTimedOut { in_flight } => break Err(RunError::stop_timed_out(in_flight).into()),
            StreamEnd::SinkFailed(failure) => {
                if let Err(error) = start_over(&mut relay, &mut feed, &failure) {
                    break Err(error);
                }
            }
            StreamEnd::Stalled | StreamEnd::StartOver(_) => {
                if let Err(failure) = relay.start_over() {
                    break Err(RunError::from(failure).into());
                }
                feed.restart(relay.flush_lsn());
            }
            StreamEnd::BadRow(row) => break Err(CommandError::bad_row(&row)),
            StreamEnd::Unmappable(error) => break Err(RunError::from(error).into()),
            StreamEnd::Protocol(error) => break Err(RunError::from(error).into()),
            // What only a slot's stream comes to.
            StreamEnd::PublicationChanged { .. }
            | StreamEnd::ProgressMismatch(_)
            | StreamEnd::TransactionTooLong { .. }
            | StreamEnd::SlotTaken(_)
            | StreamEnd::ServerStops => {
                break Err(CommandError::interrupted());
            }
        }
    };
    (ended, feed.into_keeper())
}

/// A record was not delivered: what is not acknowledged is read again.
fn start_over<S: Sink>(
    relay: &mut Relay<S, SystemClock>,
    feed: &mut Feed,
    failure: &Failure,
) -> Result<(), CommandError> {
    tracing::warn!(
        reason = failure.reason,
        error = failure.text,
        "delivery failed; unacknowledged rows are read again"
    );
    let at: Lsn = relay.flush_lsn();
    relay.start_over().map_err(RunError::from)?;
    feed.restart(at);
    if failure.class == FailureClass::Row {
        return Ok(());
    }
    match relay.idle(PAUSE) {
        Ok(()) => Ok(()),
        // It is seen again once the stream goes on.
        Err(_) => Ok(relay.start_over().map_err(RunError::from)?),
    }
}

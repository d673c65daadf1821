//! `backfill`: publishes rows that are in the table and were never in the slot, once each.
//!
//! ```text
//!  mark ─► which rows no slot carries ─► parts, pages ─► the relay's loop ─► sink
//!                                          ▲                   │
//!                                          └── how far ◄───────┘ acknowledged
//! ```
//!
//! In: what a run is asked for, and which rows. Out: the records that the slot's relay would have made of them. It may run while the relay does:
//! a row is published by exactly one of both (see `proof`). It writes to no table. After a kill it resumes behind what was acknowledged and
//! written down; rows since then repeat.

mod feed;
mod keeper;
mod parts;
mod proof;
mod reader;
mod resume;
mod times;

use super::error::CommandError;
use super::outbox_place::{OutboxPlace, confirmed};
use super::output::counted;
use super::row_noter::RowNoter;
use super::run;
use super::setup::{self, Held};
use super::shards;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::outbox::{Outbox, TableName};
use crate::pg::backfill_progress::{self, BackfillProgress};
use crate::pg::{self, Connection, Purpose, server};
use crate::pgoutput::PublishedTable;
use crate::relay::{Limits, Relay, StreamEnd, SystemClock};
use crate::remedy::TypedFlags;
use crate::sink::FailureClass;
use crate::sink::destination::Delivery;
use crate::sink::{Failure, Sink};
use crate::supervise::{self, RunError};
use feed::Feed;
use keeper::Keeper;
use parts::{PageSettings, Part, PartFacts, Start};
use proof::Proof;
use reader::RowReader;
use std::io::Write;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
    /// Leave out rows that were updated after the slot was created.
    pub leaves_updated: bool,
    /// Run the relay once it is done.
    pub then_run: bool,
}

impl BackfillRequest {
    fn rows(&self) -> resume::AskedRows<'_> {
        resume::AskedRows { condition: self.condition.as_deref(), order: self.order.as_deref(), again: self.again }
    }
}

/// Publishes the rows, or counts them on `out`; `held`: the snapshot that a new slot came with. `typed`: what hints
/// repeat.
///
/// # Errors
/// Nothing proves which rows no slot carries; what a run would end with; stopped before all is done.
pub fn backfill(
    request: BackfillRequest,
    held: Option<Held>,
    out: &mut dyn Write,
    typed: &TypedFlags,
) -> Result<(), CommandError> {
    let stop = super::stop_on_signal()?;
    let stopped = || stop.load(Ordering::Relaxed);
    let held = if held.is_none() && request.run.setup && !request.run.dry_run {
        setup::once(&request.run.setup_request(), &stopped)?
    } else {
        held
    };
    if let Some(job) = Job::plan(&request, out)? {
        job.publish(&request, held, &stop)?;
    }
    if !request.then_run || request.run.dry_run {
        return Ok(());
    }
    run::run(run::RunRequest { setup: false, ..request.run }, typed)
}

/// Everything that is known before the first row is read.
struct Job {
    proof: Proof,
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
    /// Looks at everything, and decides. `None`: there is nothing to publish.
    fn plan(request: &BackfillRequest, out: &mut dyn Write) -> Result<Option<Self>, CommandError> {
        let run = &request.run;
        let place = OutboxPlace {
            source: run.source.clone(),
            publication: run.publication.clone(),
            slot: run.slot.clone(),
            shard: None,
        };
        let mut connection = Connection::open(&run.source, Purpose::Control)?;
        shards::has_one_slot(&mut connection, (&place.publication, &place.slot))?;
        confirmed(&mut connection, &place)?;
        let mut outbox =
            Outbox::new(run.mapping.clone(), run.tables.clone())?.with_patterns(run.table_patterns.clone());
        let target = run::target(run);
        supervise::read_tables(&mut connection, &target, &mut outbox)?;
        let proof = Proof::find(&mut connection, place)?;
        let (tables, parts) = select(&mut connection, request)?;
        let oids: Vec<u32> = parts.iter().map(|part| part.oid).collect();
        proof.covers(&mut connection, &oids)?;
        proof.not_rewritten(&mut connection, &oids)?;
        let asked = asked(&mut connection, request, &proof)?;
        let before = backfill_progress::read(&mut connection, &run.slot)?;
        let (progress, parts) = resume::resume(&request.rows(), before, &proof.snapshot, &tables, parts)?;
        if run.dry_run {
            count(&mut connection, &asked, &tables, &parts, out)?;
            return Ok(None);
        }
        if parts.is_empty() {
            for table in &tables {
                let rows = progress.tables.get(&table.to_string()).map_or(0, |table| table.rows);
                tracing::info!(%table, rows, "nothing to do: its rows from before the slot were published already");
            }
            return Ok(None);
        }
        if !backfill_progress::lock(&mut connection, &run.slot)? {
            return Err(CommandError::backfill_runs(&run.slot));
        }
        let total = expected(&mut connection, &asked, &parts)?;
        Ok(Some(Self { proof, connection, outbox, asked, tables, parts, progress, total }))
    }

    /// Reads and publishes until all is acknowledged.
    fn publish(
        self,
        request: &BackfillRequest,
        held: Option<Held>,
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
            // No slot is held up.
            disconnect_after: Duration::MAX,
        };
        let noter = RowNoter::start(&run.source, &run.slot, Arc::clone(&metrics))?;
        let mut relay = Relay::new(self.outbox, sink, SystemClock, metrics, Arc::clone(stop), limits)
            .with_bad_rows(run.bad_rows.clone())
            .with_notes(Box::new(noter));
        // Its positions only count rows: each run of it has its own.
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        relay.set_dead_letter_source(format!("{}/backfill/{began}", run.slot));
        let reader = RowReader::new(self.proof, run.limits.max_row, request.leaves_updated, held);
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
        if ended.is_ok() && request.condition.is_none() {
            keeper.note_published(&run.publication)?;
        }
        tracing::info!(rows = keeper.rows(), done = ended.is_ok(), "backfill ends");
        ended?;
        kept
    }
}

/// The tables that are asked for, and the parts that their rows are read from, in order.
fn select(connection: &mut Connection, request: &BackfillRequest) -> Result<(Vec<TableName>, Vec<Part>), CommandError> {
    let run = &request.run;
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
    let found = parts::facts(connection, &oids, request.order.as_deref())?;
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
                parts::facts(connection, &leaves, request.order.as_deref())?
            }
            own => own.cloned().into_iter().collect(),
        };
        for facts in leaves {
            parts.push(part(request, table, facts, at, filter.clone())?);
        }
    }
    // A table's parts are together, whatever schemas its partitions are in.
    parts.sort_by(|one, other| (one.table, &one.name).cmp(&(other.table, &other.name)));
    Ok((tables, parts))
}

fn part(
    request: &BackfillRequest,
    table: &PublishedTable,
    facts: PartFacts,
    at: usize,
    filter: Option<String>,
) -> Result<Part, CommandError> {
    let name = facts.name.to_string();
    if facts.row_security {
        return Err(CommandError::rows_hidden(&name));
    }
    let Some(paging) = facts.paging(request.order.as_deref()) else {
        let column = request.order.as_deref().unwrap_or_default();
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
    })
}

fn asked(connection: &mut Connection, request: &BackfillRequest, proof: &Proof) -> Result<PageSettings, CommandError> {
    let commit_times = server::setting(connection, "track_commit_timestamp")?.as_deref() == Some("on");
    // A slow pace should hold no statement open for long.
    let chunk = request.rate.map_or(request.chunk, |rate| request.chunk.min(rate.get()));
    Ok(PageSettings {
        not_carried: proof.not_carried.clone(),
        condition: request.condition.clone(),
        chunk,
        commit_times,
    })
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

//! `walrelay run`: the relay's thread, and around it what operators and signals need.
//!
//! ```text
//!  control (this thread, tokio): signals ─► stop flag · HTTP, service manager ◄─ metrics ◄─┐
//!  relay   (one OS thread):      supervisor ─► relay ─► sink ──────────────────────────────┘
//!  slot figures (one OS thread): pg_replication_slots, every 10 s ─► metrics
//! ```
//!
//! In: validated settings. Out: the run's outcome. Order at start: what can be wrong without contacting anyone, the HTTP
//! address, the destination's address (an unreachable one is waited for), then Postgres.

mod request;

pub use request::{Limits, OnStop, RunRequest};

use super::error::{CommandCause, CommandError};
use super::notify::Notifier;
use super::row_noter::RowNoter;
use super::setup;
use super::signals::Signals;
use crate::http::HttpAddress;
use crate::http::{self, HttpServer};
use crate::lsn::Lsn;
use crate::metrics::{Metrics, Moment, SlotFigures, State, WalEnd};
use crate::outbox::{BadReason, Ignored, Outbox};
use crate::pg::{self, Connection, Purpose, Recovery, catalog, leaf_notes, server, sqlstate};
use crate::relay::{Relay, SystemClock};
use crate::remedy::TypedFlags;
use crate::sink::destination::{Delivery, Kind};
use crate::sink::registry::{self, Framed};
use crate::sink::stdout::StdoutSink;
use crate::sink::{Reach, Sink};
use crate::supervise::{self, ExitKind, PgServer, RunError, StreamTarget, Supervisor, chain};
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long the destination's address is tried before Postgres' turn comes.
const PROBE: Duration = Duration::from_secs(3);

/// Pause before `--setup` tries again to reach Postgres.
const SETUP_RETRY: Duration = Duration::from_secs(1);

/// How much longer than `--shutdown-timeout` a stop may take before it is not waited for: the relay's thread looks at the time
/// between two attempts to connect, and one of them may hang for longer than container runtimes wait (10 s in all).
const STOP_GRACE: Duration = Duration::from_millis(1500);

/// How long the process stays for threads that are about to close their connections to Postgres.
const GOODBYES: Duration = Duration::from_secs(1);

/// Distance of looks at the slot.
const FIGURES_EVERY: Duration = Duration::from_secs(10);

/// How soon after the relay has found a server the first look comes.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Runs until a signal or an error ends it. `typed`: what the commands of a hint repeat.
///
/// # Errors
/// The exit code of the error is the process's.
pub fn run(config: RunRequest, typed: &TypedFlags) -> Result<(), CommandError> {
    let outbox =
        Outbox::new(config.mapping.clone(), config.tables.clone())?.with_patterns(config.table_patterns.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::not_begun("start the runtime", error))?;
    let control = Control::new(config, outbox)?;
    let sink = match control.sink() {
        // Nothing is wrong with the settings: as where the destination refuses the credentials.
        Err(error) if error.kind == ExitKind::Operator => Err(error),
        sink => Ok(sink?),
    };
    let ended = runtime.block_on(control.serve(sink, typed));
    if !matches!(&ended, Err(error) if matches!(error.cause, CommandCause::Left(_))) {
        pg::wait_for_session_ends(GOODBYES);
    }
    ended
}

/// Tries the destination's address. Only a refusal ends the run: an outage is waited for.
pub(super) fn probe(sink: &mut dyn Sink, kind: &'static Kind) -> Result<(), CommandError> {
    match sink.reach(PROBE) {
        Reach::There(warnings) => {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            Ok(())
        }
        Reach::Refused(failure) => Err(RunError::from(failure).into()),
        Reach::Silent(failure) => {
            tracing::warn!(reason = %failure, hint = failure.logged_remedy(), "{} unavailable, retrying; reading pauses at --max-in-flight", kind.title);
            Ok(())
        }
    }
}

/// The destination's sink, behind the registry of schemas where there is one. Credentials that cannot be had are for an operator: the
/// settings are right.
pub(super) fn open(
    config: &RunRequest,
    client: &str,
    delivery: Delivery,
) -> Result<Box<dyn Sink + Send>, CommandError> {
    let sink = config.destination.open(client, delivery).map_err(|error| {
        let kind = if error.lacks_secret { ExitKind::Operator } else { ExitKind::Settings };
        CommandError { kind, ..error.into() }
    })?;
    Ok(match &config.registry {
        Some(registry) => Box::new(Framed::new(sink, registry, &config.bad_rows.dead_letter_topic)),
        None => sink,
    })
}

/// Returns the target of the stream.
pub(super) fn target(config: &RunRequest) -> StreamTarget {
    StreamTarget {
        messages: !config.mapping.message_prefixes.is_empty(),
        temporary_slot: config.dry_run.then(|| format!("walrelay_dry_run_{}", std::process::id())),
        source: config.source.clone(),
        publication: config.publication.clone(),
        slot: config.slot.clone(),
        shard: config.shard,
        tables: config.tables.clone(),
        without_children: config.without_children.clone(),
        only_local: config.only_local,
        patterns: config.table_patterns.clone(),
        max_row: config.limits.max_row,
        accept_slot_at: config.accept_slot_at,
    }
}

/// The relay's thread has ended, and its connections with it: the process stays up to say why.
fn stay_up(error: &CommandError, typed: &TypedFlags, metrics: &Metrics) {
    let (text, hint) = (chain(error), error.remedy.clone().map(|hint| hint.with(typed)));
    let shown = hint.as_ref().map(ToString::to_string);
    tracing::error!(error = text, hint = shown, "stopped: operator action required, see hint; SIGTERM exits");
    metrics.set_stopped(text, hint);
}

/// Returns the relay's name at the destination.
fn client(config: &RunRequest) -> String {
    format!("walrelay/{}", config.slot)
}

/// The destination's sink, or why there is none though the settings are right.
type Opened = Result<Box<dyn Sink + Send>, CommandError>;

/// The state of the control thread.
struct Control {
    config: RunRequest,
    outbox: Outbox,
    /// Where to serve HTTP.
    listen: Option<http::Address>,
    metrics: Arc<Metrics>,
    stop: Arc<AtomicBool>,
}

impl Control {
    fn new(mut config: RunRequest, outbox: Outbox) -> Result<Self, CommandError> {
        let listen = config.http.as_ref().map(listen_address).transpose()?;
        let name = format!("walrelay/{}", config.slot);
        config.source.application_name.get_or_insert(name);
        let kind = config.destination.kind();
        let metrics = Metrics::new(&config.slot, &config.publication, Instant::now());
        let metrics =
            Arc::new(metrics.with_destination(kind.name, kind.title).with_unready_after(config.limits.unready_after));
        metrics.expect_bad_rows(BadReason::KINDS.map(|kind| kind.label));
        metrics.expect_ignored(Ignored::ALL.map(Ignored::label));
        Ok(Self { config, outbox, listen, metrics, stop: Arc::default() })
    }

    /// A client of the destination, which begins to connect at once: everything that is wrong with settings has to be known by now.
    fn sink(&self) -> Result<Box<dyn Sink + Send>, CommandError> {
        let Self { config, metrics, .. } = self;
        if config.dry_run {
            return Ok(Box::new(StdoutSink::new(std::io::stdout())));
        }
        let kind = config.destination.kind();
        metrics.expect_bad_rows((kind.refusals)());
        if config.registry.is_some() {
            metrics.expect_bad_rows(registry::REFUSALS);
            metrics.expect_publish_failures(registry::REASONS);
        }
        metrics.expect_publish_failures((kind.reasons)());
        open(config, &client(config), config.delivery)
    }

    async fn serve(self, sink: Opened, typed: &TypedFlags) -> Result<(), CommandError> {
        let server = match self.bind() {
            // A look beside a relay that runs: its pages are the ones that count.
            Err(error) if self.config.dry_run => {
                tracing::info!(%error, "HTTP not served during this dry run");
                None
            }
            bound => bound?,
        };
        let mut signals = Signals::listen().map_err(|error| CommandError::not_begun("listen for signals", error))?;
        let (metrics, stop) = (Arc::clone(&self.metrics), Arc::clone(&self.stop));
        let stop_within = self.config.limits.shutdown_timeout + STOP_GRACE;
        let on_stop = self.config.on_stop;
        let looked_at = (!self.config.dry_run).then(|| target(&self.config));
        let mut outcome = self.spawn_relay(sink)?;
        if let Some(target) = looked_at {
            spawn_looks(target, typed.clone(), Arc::clone(&metrics))?;
        }
        let http = async {
            if let Some(server) = server {
                server.serve(Arc::clone(&metrics), std::future::pending()).await;
            }
            std::future::pending::<()>().await;
        };
        let notifier = Notifier::of_process();
        notifier.ready();
        let tending = notifier.tend(&metrics);
        tokio::pin!(http, tending);
        let mut stop_by = None;
        loop {
            let out_of_time = async {
                match stop_by {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = &mut outcome => match ended.map_err(|_| CommandError::vanished())? {
                    Err(error) if on_stop == OnStop::StayUp && error.kind == ExitKind::Operator => {
                        stay_up(&error, typed, &metrics);
                        tokio::select! {
                            _ = signals.next() => {}
                            () = &mut http => {}
                            () = &mut tending => {}
                        }
                        return Err(error);
                    }
                    ended => {
                        if ended.is_ok() {
                            let (confirmed, records) = (metrics.confirmed(), metrics.events_total());
                            tracing::info!(%confirmed, records, "stopped");
                        }
                        return ended;
                    }
                },
                number = signals.next() => {
                    if stop.swap(true, Ordering::Relaxed) {
                        return Err(CommandError::killed(number));
                    }
                    tracing::info!(signal = number, "stopping: waiting for acknowledgements of what was sent; a second signal stops at once");
                    metrics.set_state(State::Stopping);
                    notifier.stopping(stop_within);
                    stop_by = tokio::time::Instant::now().checked_add(stop_within);
                }
                () = out_of_time => return Err(CommandError::unanswered()),
                () = &mut http => {}
                () = &mut tending => {}
            }
        }
    }

    fn bind(&self) -> Result<Option<HttpServer>, CommandError> {
        let Some(address) = &self.listen else { return Ok(None) };
        let server = HttpServer::bind(address, http::HttpLimits::default())?;
        for address in server.addresses() {
            tracing::info!(%address, "serving /metrics, /livez, /readyz, /status");
        }
        Ok(Some(server))
    }

    fn spawn_relay(self, sink: Opened) -> Result<oneshot::Receiver<Result<(), CommandError>>, CommandError> {
        let (report, outcome) = oneshot::channel();
        let kind = self.config.destination.kind();
        let relay = move || {
            let ended = sink.and_then(|mut sink| {
                probe(&mut sink, kind)?;
                self.supervise(sink)
            });
            // The receiver is gone only when the process is ending anyway.
            drop(report.send(ended));
        };
        thread::Builder::new()
            .name("relay".to_owned())
            .spawn(relay)
            .map(|_| outcome)
            .map_err(|error| CommandError::not_begun("start the relay's thread", error))
    }

    /// The relay's thread.
    fn supervise(self, sink: Box<dyn Sink + Send>) -> Result<(), CommandError> {
        if self.config.setup && !self.config.dry_run {
            self.set_up()?;
        }
        let Self { config, outbox, metrics, stop, listen: _ } = self;
        let limits = config.limits.of_relay();
        let target = target(&config);
        let relay =
            Relay::new(outbox, sink, SystemClock, Arc::clone(&metrics), stop, limits).with_bad_rows(config.bad_rows);
        let relay = if config.dry_run {
            relay
        } else {
            let noter = RowNoter::start(&target.source, &target.slot, Arc::clone(&metrics));
            relay.with_notes(Box::new(noter?))
        };
        let asked = target.clone();
        let relay = relay.with_catalogue(Box::new(move || supervise::details_now(&asked)));
        let ended = Supervisor::new(PgServer::new(target), relay, metrics).run();
        ended.map_err(CommandError::from)
    }

    /// Does the work of `setup --apply`, once Postgres is there.
    fn set_up(&self) -> Result<(), CommandError> {
        let request = self.config.setup_request();
        let stop = || may_stop(&self.stop, &self.metrics, Instant::now());
        loop {
            if stop() {
                return Ok(());
            }
            match setup::once(&request, &stop) {
                Err(error) if passes(&error) => {
                    tracing::warn!(error = chain(&error), "the setup has to wait for Postgres; retrying");
                    self.metrics.set_last_error(Some(chain(&error)));
                    thread::sleep(SETUP_RETRY);
                }
                Err(CommandError { cause: CommandCause::Interrupted, .. }) => {}
                ended => return ended.map(drop),
            }
        }
    }
}

/// Whether the setup is to be tried again: the server was unavailable, or a table was locked.
fn passes(error: &CommandError) -> bool {
    error.postgres().is_some_and(|source| source.recovery() == Recovery::Reconnect)
}

/// Whether a wait is to end. To ask is a sign of life: making a slot waits for the oldest transaction, however long that is.
fn may_stop(stop: &AtomicBool, metrics: &Metrics, now: Instant) -> bool {
    metrics.turned(now);
    stop.load(Ordering::Relaxed)
}

fn listen_address(address: &HttpAddress) -> Result<http::Address, CommandError> {
    let Some(host) = &address.host else { return Ok(http::Address::Every(address.port)) };
    let addresses = (host.as_str(), address.port)
        .to_socket_addrs()
        .map_err(|error| CommandError::no_address(&address.to_string(), error))?;
    Ok(http::Address::These(addresses.collect()))
}

/// Looks at slot and publication from time to time, on a connection of its own that is opened for each look: it must delay nothing.
fn spawn_looks(target: StreamTarget, typed: TypedFlags, metrics: Arc<Metrics>) -> Result<(), CommandError> {
    let look = move || {
        let (mut failing, mut publication, mut partitions) = (false, PublicationLook::default(), None);
        loop {
            pause_between_looks(publication.has_looked, &metrics);
            match look((&target, &typed), (&mut publication, &mut partitions), &metrics) {
                Ok(()) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!(slot = target.slot, "slot query succeeds again");
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(
                            slot = target.slot,
                            error = chain(&error),
                            "slot query failed; slot metrics are missing until it succeeds"
                        );
                    }
                    metrics.slot_look_failed();
                }
            }
        }
    };
    thread::Builder::new()
        .name("slot-figures".to_owned())
        .spawn(look)
        .map(drop)
        .map_err(|error| CommandError::not_begun("start the thread for the slot's figures", error))
}

/// Waits for the next look. Until there was one beside a stream, it does not wait for long once a server was found: what the publication has
/// then is what it must not lose.
fn pause_between_looks(has_looked: bool, metrics: &Metrics) {
    let mut waited = Duration::ZERO;
    while waited < FIGURES_EVERY && (waited.is_zero() || has_looked || metrics.server().is_none()) {
        thread::sleep(FIRST_LOOK);
        waited += FIRST_LOOK;
    }
}

/// One look. No other server is asked than the one that the stream comes from, if there is one now.
fn look(
    (target, typed): (&StreamTarget, &TypedFlags),
    (publication, partitions): (&mut PublicationLook, &mut Option<String>),
    metrics: &Metrics,
) -> Result<(), pg::Error> {
    let server = metrics.server();
    publication.has_looked |= server.is_some();
    let mut connection = match &server {
        Some(started_at) => server::open_beside(&target.source, Purpose::Control, started_at)?,
        None => Connection::open(&target.source, Purpose::Control)?,
    };
    let figures = figures(&mut connection, &target.slot)?;
    // Without a stream, whoever wants one finds out.
    let looked = match server {
        Some(_) => publication
            .look(&mut connection, (target, typed), metrics)
            .and_then(|()| note_new_partitions(&mut connection, target, partitions)),
        None => Ok(()),
    };
    metrics.set_slot_figures(figures);
    looked
}

/// Notes new tables and partitions that have no row yet: `prune` then knows that all of their rows come through the slot. `seen`: the partition
/// trees of the database at the last look.
fn note_new_partitions(
    connection: &mut Connection,
    target: &StreamTarget,
    seen: &mut Option<String>,
) -> Result<(), pg::Error> {
    if server::is_in_recovery(connection)? {
        return Ok(());
    }
    let trees = format!(
        "SELECT pg_catalog.concat(count(*), ' ', sum(inhrelid::bigint), ' ', sum(xmin::text::bigint), ' ',
                (SELECT d.xmin FROM pg_catalog.pg_description AS d JOIN pg_catalog.pg_publication AS p ON p.oid = d.objoid
                  WHERE d.classoid = 'pg_catalog.pg_publication'::regclass AND p.pubname = {}), ' ')
           FROM pg_catalog.pg_inherits",
        pg::literal(&target.publication)
    );
    let members = catalog::membership(connection, &target.publication)?.unwrap_or_default();
    let now = connection.value::<String>(&trees)?.map(|trees| trees + &members);
    if now == *seen {
        return Ok(());
    }
    match leaf_notes::note_empty(connection, &target.publication, &target.slot) {
        Err(error) if error.code() == Some(sqlstate::LOCK_NOT_AVAILABLE) => Ok(()),
        // A role that may not write notes was told so at the start.
        Ok(()) | Err(pg::Error::Server { .. }) => {
            *seen = now;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The result of the last look at the publication and the trees of its tables.
#[derive(Default)]
struct PublicationLook {
    /// Whether there was a look.
    has_looked: bool,
    seen: supervise::SeenTables,
    /// The error that the look found.
    gap: Option<String>,
}

impl PublicationLook {
    /// Reports tables whose rows are to be published and reach no slot now: the server continues the stream without those rows.
    fn look(
        &mut self,
        connection: &mut Connection,
        (target, typed): (&StreamTarget, &TypedFlags),
        metrics: &Metrics,
    ) -> Result<(), pg::Error> {
        let found = supervise::uncovered(connection, target, &mut self.seen)?;
        let hint = found.as_ref().and_then(|error| error.remedy.clone()).map(|hint| hint.with(typed).to_string());
        let gap = found.map(|error| error.to_string());
        match &gap {
            Some(error) if self.gap != gap => {
                tracing::warn!(
                    slot = target.slot,
                    error,
                    hint,
                    "rows that are committed now may be in no slot; not ready"
                );
            }
            None if self.gap.is_some() => tracing::info!(
                slot = target.slot,
                "the publication has all tables again; rows committed meanwhile may be in no slot"
            ),
            Some(_) | None => {}
        }
        let with_hint =
            |error: &String| hint.as_ref().map_or_else(|| error.clone(), |hint| format!("{error}; hint: {hint}"));
        metrics.set_publication_gap(gap.as_ref().map(with_hint));
        self.gap = gap;
        Ok(())
    }
}

fn figures(connection: &mut Connection, slot: &str) -> Result<SlotFigures, pg::Error> {
    // Before the question: what is committed by now lies below the end of WAL that the answer has.
    let unix_micros = Moment::now().unix_micros;
    Ok(server::slot(connection, slot)?.map_or_else(SlotFigures::default, |slot| SlotFigures {
        wal_end: slot
            .confirmed_flush_lsn
            .zip(slot.lag_bytes)
            .map(|(from, lag)| WalEnd { position: Lsn::new(from.bytes().saturating_add(lag)), unix_micros }),
        lag_bytes: slot.lag_bytes,
        retained_wal_bytes: slot.retained_wal_bytes,
        safe_wal_bytes: slot.row.safe_wal_size.map(|bytes| u64::try_from(bytes).unwrap_or(0)),
        active: Some(slot.row.active),
        wal_status: slot.row.wal_status,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_up_that_waits_for_hours_is_alive_as_long_as_it_asks_whether_to_stop() {
        let start = Instant::now();
        let (stop, metrics) = (AtomicBool::new(false), Metrics::new("orders", "p", start));
        let hours = start + Duration::from_hours(3);
        assert!(metrics.live(hours).is_err());
        assert!(!may_stop(&stop, &metrics, hours));
        assert_eq!(metrics.live(hours), Ok(()));
        stop.store(true, Ordering::Relaxed);
        assert!(may_stop(&stop, &metrics, hours));
    }
}

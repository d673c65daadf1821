//! Takes the slot: connects, checks the cluster, the publication, its tables and the slot, and starts the stream.
//!
//! In: settings, and the relay's positions. Out: a stream from the right position, or the reason why there is none. Each attempt reads the
//! cluster and its timeline, the publication, the tables, and the slot's state and position again, since each of them may have changed.

use super::StreamTarget;
use super::error::{RunCause, RunError};
use super::holder::SlotHolder;
use super::publication::read_publication_again;
use super::slot_identity::SlotIdentity;
use super::{idle, restart_after_takeover};
use crate::lsn::Lsn;
use crate::metrics::{Metrics, State};
use crate::outbox::{Outbox, PlanError, Role, TableReading};
use crate::pg::catalog;
use crate::pg::marker::{self, MoveState};
use crate::pg::relay_note::{self, Noted, Reading};
use crate::pg::server::{self, FreeSlot, Slot, SystemIdentity};
use crate::pg::slot_sighting::Witness;
use crate::pg::{self, Connection, Error, PluginOptions, Purpose, Recovery, ReplicationStream, identifier, sqlstate};
use crate::pgoutput::PublishedTable;
use crate::relay::{BELIEVED_FREE, Clock, HeldSlot, Identity, Relay, SUCCESSOR_WAITS};
use crate::sink::Sink;
use std::time::Duration;

/// The time between two attempts at a slot that another process reads. A standby takes over within this time.
const SLOT_RETRY: Duration = Duration::from_millis(500);

/// The time between two attempts to make the place for the progress, and how many there are.
const PREPARE_RETRY: Duration = Duration::from_millis(100);
const PREPARATIONS: u32 = 50;

/// The time between two queries whether a shard may be read yet. Each query opens two connections.
const SHARD_RETRY: Duration = Duration::from_secs(1);

/// The number of attempts after which the reader of the slot counts as another relay. Before that, the reader may be the walsender of
/// this relay's earlier connection.
const OTHERS_AFTER: u32 = 10;

/// A stream, with its slot.
#[derive(Debug)]
pub struct Acquired<U> {
    /// The stream that the slot sends.
    pub stream: U,
    /// How long the server waits for a silent client. `None`: without limit.
    pub wal_sender_timeout: Option<Duration>,
    /// The slot's confirmed position, read after this relay has taken the slot.
    pub confirmed: Lsn,
    /// The slot, which is this relay's while the stream is open. `None`: no other relay can take it.
    pub slot: Option<HeldSlot>,
}

/// Why there is no stream.
#[derive(Debug)]
pub enum NotAcquired {
    /// The relay was asked to stop while it waited.
    Stopped,
    /// This attempt failed.
    Failed(RunError),
}

impl<E: Into<RunError>> From<E> for NotAcquired {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Makes a temporary slot of this name over the connection, and returns the position from which it reads.
pub type MakeSlot = Box<dyn FnMut(Connection, &str) -> Result<(Connection, Lsn), NotAcquired> + Send>;

/// Facts about the server that the relay keeps across connections.
#[derive(Default)]
pub(super) struct KnownServer {
    /// Makes temporary slots. `None`: the command is sent, and its answer is waited for.
    pub(super) make_slot: Option<MakeSlot>,
    /// The cluster and its timeline at the last connection. `None`: there was no connection yet.
    pub(super) system: Option<SystemIdentity>,
    /// The running server that the replication connection reaches: see [`server::started_at`].
    started_at: String,
    /// Whether it was a standby when the last attempt began.
    was_standby: bool,
    /// The time after which the server invalidates an unused slot. `None`: without limit.
    pub(super) idle_slot_timeout: Option<Duration>,
    /// Whether this process has ever found the slot.
    slot_seen: bool,
    /// The slot when it was last seen.
    slot_identity: SlotIdentity,
    /// The roles of the tables' columns, as they were last logged.
    readings: Vec<TableReading>,
    /// The publication's tables when they were last read. They are used if a lock keeps the server from listing them again.
    listed: Option<Vec<PublishedTable>>,
}

impl KnownServer {
    /// Opens a connection for queries, to the server that the replication connection reaches.
    pub(super) fn open_query_connection(&self, target: &StreamTarget, purpose: Purpose) -> Result<Connection, Error> {
        server::open_beside(&target.source, purpose, &self.started_at)
    }

    /// Logs the roles of the tables' columns if they have changed.
    fn log_readings(&mut self, readings: &[TableReading]) {
        for reading in readings.iter().filter(|reading| !self.readings.contains(reading)) {
            let table = reading.table.to_string();
            let columns: Vec<String> =
                reading.columns.iter().map(|(role, column)| format!("{role}={column}")).collect();
            tracing::info!(table = table.as_str(), columns = columns.join(" "), "reading table");
            if reading.lacks_key {
                tracing::warn!(
                    table = table.as_str(),
                    hint = "walrelay check, with the same flags, says what gives them one; --key-column '' if they need none",
                    "records have no key: they spread over the partitions, and consumers see them in no order"
                );
            }
        }
        self.readings = readings.to_vec();
    }
}

/// Takes the slot.
pub(super) fn acquire(
    target: &StreamTarget,
    known: &mut KnownServer,
    relay: &mut Relay<impl Sink, impl Clock>,
    metrics: &Metrics,
) -> Result<Acquired<ReplicationStream>, NotAcquired> {
    let mut acquisition = Acquisition { target, known, relay, metrics };
    let mut has_waited = false;
    loop {
        match acquisition.take() {
            Ok(Some(acquired)) => return Ok(acquired),
            Ok(None) => {}
            Err(NotAcquired::Failed(error))
                if acquisition.known.slot_seen && is_failing_over(target, acquisition.known.was_standby, &error) =>
            {
                return Err(Error::NotPromoted { refusal: error.to_string() }.into());
            }
            Err(failure) => {
                acquisition.note_doubt();
                return Err(failure);
            }
        }
        if !std::mem::replace(&mut has_waited, true) {
            let publication = &target.publication;
            tracing::info!(publication, "waiting until walrelay setup is done with this publication and its slot");
            metrics.set_state(State::WaitingForSlot);
        }
        idle(acquisition.relay, SHARD_RETRY)?;
        if acquisition.relay.may_stop() {
            return Err(NotAcquired::Stopped);
        }
    }
}

/// The acquisition of the slot, with everything that it reads and changes.
struct Acquisition<'a, S, C> {
    target: &'a StreamTarget,
    known: &'a mut KnownServer,
    relay: &'a mut Relay<S, C>,
    metrics: &'a Metrics,
}

impl<S: Sink, C: Clock> Acquisition<'_, S, C> {
    /// Tries once to take the slot. `None`: relays of another set of shards may still publish earlier rows, so this shard must not be read
    /// yet.
    fn take(&mut self) -> Result<Option<Acquired<ReplicationStream>>, NotAcquired> {
        let target = self.target;
        self.known.was_standby = false;
        let mut connection = match Connection::open(&target.source, Purpose::Replication) {
            Err(error) if error.code() == Some(sqlstate::TOO_MANY_CONNECTIONS) => {
                // The walsender that is missing may be the one that questions for the slot's holder take.
                self.relay.needs_walsender();
                return Err(error.into());
            }
            opened => opened?,
        };
        self.known.was_standby = server::is_in_recovery(&mut connection)?;
        let flushed = self.identify(&mut connection)?;
        let started_at = server::started_at(&mut connection)?;
        if started_at != self.known.started_at {
            self.relay.server_started();
        }
        self.known.started_at = started_at;
        self.metrics.set_server(Some(self.known.started_at.clone()));
        self.metrics.set_unencrypted(connection.unencrypted());
        // Publication and tables are not queried over the replication connection. Its backend would cache the answers, and then decode
        // earlier rows with the tables' present columns, or leave these rows out.
        let mut control = self.known.open_query_connection(target, Purpose::Control)?;
        check_wal_level(&mut control)?;
        check_origin(&mut control, target)?;
        let mark = catalog::publication_mark(&mut control, &target.publication)?;
        match marker::moving(mark.comment.as_deref()).filter(|_| target.temporary_slot.is_none()) {
            Some(MoveState::Waits) => return Ok(None),
            Some(MoveState::Unknown) => {
                let line = marker::unknown_line(mark.comment.as_deref(), &target.slot).unwrap_or(marker::MOVE);
                return Err(RunError::unknown_marker(&target.slot, &target.publication, line).into());
            }
            Some(MoveState::Drains | MoveState::Drained) | None => {}
        }
        // A setup that was killed goes on later: nobody may have read the slot by then.
        if target.temporary_slot.is_none() && marker::is_creating(mark.comment.as_deref(), &target.slot) {
            if control.query(marker::IS_LOCKED)?.first().is_some_and(|row| row.is_true(0)) {
                return Ok(None);
            }
            return Err(RunError::setup_unfinished(&target.slot, &target.publication).into());
        }
        let (binary, unmappable) =
            read_publication_again(&mut control, target, (flushed, &mut self.known.listed), self.relay.outbox_mut())?;
        self.known.log_readings(self.relay.outbox_mut().readings());
        for table in self.relay.outbox_mut().take_new_tables() {
            tracing::info!(table, "reading a table for the first time");
        }
        let wal_sender_timeout = server::wal_sender_timeout(&mut control)?;
        self.known.idle_slot_timeout = server::idle_slot_timeout(&mut control)?;
        let patience = wal_sender_timeout.into_iter().chain(server::tcp_user_timeout(&mut control)?).min();
        let temporary = target.temporary_slot.as_deref();
        let slot = temporary.unwrap_or(&target.slot);
        let mut confirmed = None;
        if temporary.is_none() {
            self.inspect_slot(&mut control)?;
            let (position, reader) =
                self.known.slot_identity.check(&mut control, target, (self.witness(false), None))?;
            self.reads_from(position, reader)?;
            if !self.known.slot_identity.was_read(mark.comment.as_deref(), slot) {
                self.prepare_destination()?;
            }
            end_at_unmappable(unmappable, flushed, position.max(self.relay.flush_lsn()), self.relay.outbox_mut())?;
        } else {
            end_at_unmappable(unmappable, flushed, flushed, self.relay.outbox_mut())?;
            confirmed = match &mut self.known.make_slot {
                Some(make) => {
                    let (back, lsn) = make(connection, slot)?;
                    connection = back;
                    Some(lsn)
                }
                None => create_temporary_slot(&mut connection, slot)?,
            };
        }
        drop(control);
        let options = PluginOptions { binary, ..target.plugin_options() };
        let (stream, since, freed) = self.start(connection, slot, &options)?;
        if let Some(system) = &self.known.system {
            let source = format!("{}/{}/{}", system.system_identifier, target.slot, system.timeline);
            self.relay.set_dead_letter_source(source);
        }
        let own = stream.backend_pid();
        let (confirmed, slot) = if let Some(lsn) = confirmed {
            (lsn, None)
        } else {
            // From now on the server counts the transactions that this relay reads.
            let was_read = self.known.slot_identity.was_read(mark.comment.as_deref(), &target.slot);
            let (confirmed, reader) = self.confirmed_position(own)?;
            self.set_identity(was_read, confirmed)?;
            self.note_reading(confirmed, false)?;
            // Behind a pooler, this connection's process id is not the server's.
            let walsender = reader.unwrap_or(own);
            let asks = Box::new(SlotHolder::start(target, &self.known.started_at, walsender)?);
            let FreedSlot { released, waits_until, log_end } = freed;
            let sends_from = waits_until.unwrap_or(Duration::ZERO);
            (confirmed, Some(HeldSlot { asks, walsender, since, patience, released, sends_from, log_end }))
        };
        Ok(Some(Acquired { stream, wal_sender_timeout, confirmed, slot }))
    }

    /// The relay's own knowledge of the slot. `watching`: the relay has looked at the slot all the time.
    fn witness(&self, watching: bool) -> Witness {
        Witness { read: self.relay.flush_lsn(), seen: self.relay.seen(), watching }
    }

    /// Checks that the server belongs to the same cluster as before. Returns the end of its WAL.
    fn identify(&mut self, connection: &mut Connection) -> Result<Lsn, RunError> {
        let found = server::identify_system(connection)?;
        if let Some(before) = &self.known.system {
            if before.system_identifier != found.system_identifier {
                return Err(RunError::other_cluster(&before.system_identifier, &found.system_identifier));
            }
            if found.timeline < before.timeline {
                return Err(RunError::earlier_timeline(before.timeline, found.timeline));
            }
            if before.timeline != found.timeline {
                let has_read = self.relay.flush_lsn() > Lsn::ZERO;
                let switch_point = follow_timeline(connection, before.timeline, found.timeline, self.relay)?;
                self.known.slot_identity.timeline_left_at(switch_point, has_read);
            }
        }
        check_not_older(connection, found.flushed, self.relay.seen())?;
        let flushed = found.flushed;
        self.known.system = Some(found);
        Ok(flushed)
    }

    /// Checks that the slot exists and can be read, before the relay waits for it.
    fn inspect_slot(&mut self, connection: &mut Connection) -> Result<(), RunError> {
        let name = &self.target.slot;
        let Some(slot) = server::slot(connection, name)? else {
            let mark = catalog::publication_mark(connection, &self.target.publication)?;
            let was_there = self.known.slot_seen || marker::is_set(mark.comment.as_deref(), name);
            return Err(RunError::no_slot(name, was_there));
        };
        check_slot(name, &self.target.source.dbname, &slot)?;
        self.known.slot_seen = true;
        Ok(())
    }

    /// Starts the stream. If another process reads the slot, waits for it. Also returns a moment before this relay took the slot, and the
    /// facts about the slot at that moment.
    fn start(
        &mut self,
        mut connection: Connection,
        slot: &str,
        options: &PluginOptions<'_>,
    ) -> Result<(ReplicationStream, Duration, FreedSlot), NotAcquired> {
        let (mut waits, mut last_read) = (0_u32, None);
        loop {
            let free = match self.target.temporary_slot {
                Some(_) => FreedSlot::default(),
                None => self.released(&mut connection, slot, last_read)?,
            };
            let since = self.relay.clock().since_boot();
            let (back, error) =
                match connection.start_replication(slot, self.relay.flush_lsn(), options, self.target.max_row) {
                    Ok(stream) => {
                        let taken = self.relay.clock().since_boot();
                        let waits_until = free.waits_until.map(|until| until.max(taken + BELIEVED_FREE));
                        return Ok((stream, since, FreedSlot { waits_until, ..free }));
                    }
                    Err((back, error)) => (back, error),
                };
            if error.code() != Some(sqlstate::OBJECT_IN_USE) {
                return Err(error.into());
            }
            // Another relay publishes the earlier rows. But the table's problem is reported now, and not only when that relay has ended.
            if let Some(error) =
                self.relay.outbox_mut().unmappable_at(Lsn::new(u64::MAX)).filter(|_| waits >= OTHERS_AFTER)
            {
                return Err(Box::new(error.clone()).into());
            }
            if waits == 0 {
                tracing::info!(slot, %error, "slot in use; waiting as standby");
                self.metrics.set_state(State::WaitingForSlot);
            }
            waits += 1;
            last_read = Some(self.relay.clock().since_boot());
            idle(self.relay, SLOT_RETRY)?;
            while waits > OTHERS_AFTER && !self.relay.may_stop() && !self.relay.sink_mut().is_reachable() {
                // A relay that cannot publish leaves the slot to others.
                idle(self.relay, SLOT_RETRY)?;
            }
            if self.relay.may_stop() {
                return Err(NotAcquired::Stopped);
            }
            connection = *back;
            // This comes right before the next attempt, so that little can happen between. It queries only system views: see `take`.
            if self.target.temporary_slot.is_none() {
                let (position, reader) =
                    self.known.slot_identity.check(&mut connection, self.target, (self.witness(true), None))?;
                self.reads_from(position, reader)?;
            }
        }
    }

    /// Exactly once, nobody has read the slot yet: makes the place for the progress before the server counts what is read. A relay that is
    /// killed right after that has committed nothing, and its successor knows so by it. An outage is not waited for here: the relay
    /// waits for it once it streams, and names it.
    fn prepare_destination(&mut self) -> Result<(), NotAcquired> {
        if !self.relay.is_exactly_once() {
            return Ok(());
        }
        for _ in 0..PREPARATIONS {
            match self.relay.sink_mut().prepare() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(failure) => {
                    tracing::debug!(%failure, "the place for the progress is not made yet");
                    return Ok(());
                }
            }
            idle(self.relay, PREPARE_RETRY)?;
            if self.relay.may_stop() {
                return Err(NotAcquired::Stopped);
            }
        }
        Ok(())
    }

    /// Tells the relay that it will read the slot from `position`. `reader`: the walsender that reads the slot now.
    fn reads_from(&mut self, position: Lsn, reader: Option<u32>) -> Result<(), RunError> {
        if self.relay.is_held_by_another(reader) {
            restart_after_takeover(self.relay, "another relay holds the slot", None::<()>)?;
        }
        self.relay.reads_from(position);
        Ok(())
    }

    /// Reads the times and the position of a slot that nobody reads. `last_read`: when another relay was last seen to read it.
    fn released(
        &self,
        connection: &mut Connection,
        slot: &str,
        last_read: Option<Duration>,
    ) -> Result<FreedSlot, Error> {
        let is_fenced = self.relay.is_exactly_once();
        // The relay that held the slot before this process may have been one with at least once, which nothing fences. The takeover of the
        // destination takes most of that second anyway.
        if is_fenced && self.relay.flush_lsn() > Lsn::ZERO {
            return Ok(FreedSlot::default());
        }
        let FreeSlot { released_ago, log_end } = server::free_slot(connection, slot)?.unwrap_or_default();
        // The clock is read after the answer, so the slot was released at this time or before.
        let now = self.relay.clock().since_boot();
        let released = released_ago.map(|ago| now.saturating_sub(ago));
        let is_ours = last_read.is_none() && self.relay.held_just_now(now, released);
        let waits_until = released.or(last_read).filter(|_| !is_ours).map(|since| since + SUCCESSOR_WAITS);
        Ok(FreedSlot { released: released.filter(|_| !is_fenced), waits_until, log_end })
    }

    /// Gives the relay the slot's identity, if the destination stores the progress. The identity is queried after the slot was taken, since
    /// a waiting relay may have waited for long.
    fn set_identity(&mut self, was_read: bool, confirmed: Lsn) -> Result<(), RunError> {
        if !self.relay.is_exactly_once() {
            return Ok(());
        }
        let connection = &mut self.known.open_query_connection(self.target, Purpose::Replication)?;
        let system = server::identify_system(connection)?;
        // The first timeline has no history.
        let history = if system.timeline > 1 { server::history(connection, system.timeline)? } else { Vec::new() };
        let is_standby = server::is_in_recovery(connection)?;
        self.relay.identified(Identity {
            system_identifier: system.system_identifier,
            slot: self.target.slot.clone(),
            timeline: system.timeline,
            history,
            flushed: system.flushed,
            is_standby,
            source: self.target.source.without_user(),
            was_read,
            accepts_slot: self.target.accept_slot_at == Some(confirmed),
        });
        Ok(())
    }

    /// If the slot was refused, since it may be another one, notes so for `prune`: the process that reads it next knows nothing of that.
    fn note_doubt(&mut self) {
        let Some(position) = self.known.slot_identity.take_doubted() else { return };
        if let Err(error) = self.note_reading(position, true) {
            tracing::warn!(
                slot = self.target.slot,
                %error,
                "the doubt about the slot is not recorded: walrelay prune may delete rows from before its position that are in no topic"
            );
        }
    }

    /// Notes which tables the relay reads from `position` on, for `prune`. A relay that cannot do so goes on, unless `prune` would believe
    /// an earlier note that says something else. `is_doubted`: the slot may be another one, so rows from before the position may be in no topic.
    fn note_reading(&mut self, position: Lsn, is_doubted: bool) -> Result<(), RunError> {
        let (target, known) = (self.target, &mut *self.known);
        if known.was_standby {
            return Ok(());
        }
        let mut control = known.open_query_connection(target, Purpose::Control)?;
        let mark = catalog::publication_mark(&mut control, &target.publication)?;
        let reading = reading(target, known.listed.as_deref().unwrap_or_default(), self.relay.outbox_mut());
        let names = (target.publication.as_str(), target.slot.as_str());
        let from_there_only = known.slot_identity.take_accepted() || is_doubted;
        match relay_note::keep(&mut control, names, mark.comment.as_deref(), &reading, (position, from_there_only))? {
            Noted::Yes => Ok(()),
            // Time cures it.
            Noted::No { error, .. } if error.recovery() == Recovery::Reconnect => Err(error.into()),
            Noted::No { error, contradicts: true } => Err(RunError::not_noted(
                &target.slot,
                pg::right_to_note(&error, &identifier(&target.source.user)),
                error,
            )),
            Noted::No { error, .. } => {
                tracing::warn!(
                    slot = target.slot,
                    %error,
                    hint = pg::right_to_note(&error, &identifier(&target.source.user)),
                    "which tables are read is not recorded; walrelay prune deletes no row"
                );
                Ok(())
            }
        }
    }

    /// The slot's position and its reader. They are read when no other relay can move or drop the slot. `own`: this relay's walsender.
    fn confirmed_position(&mut self, own: u32) -> Result<(Lsn, Option<u32>), RunError> {
        let mut control = self.known.open_query_connection(self.target, Purpose::Control)?;
        self.known.slot_identity.check(&mut control, self.target, (self.witness(true), Some(own)))
    }
}

/// The tables that the relay reads: the tables of its settings, or those that Debezium's expressions capture of `listed`.
fn reading(target: &StreamTarget, listed: &[PublishedTable], outbox: &mut Outbox) -> Reading {
    let id = Role::Id.to_string();
    let id_of = |reading: &TableReading| {
        let (_, column) = reading.columns.iter().find(|(role, _)| *role == id)?;
        Some(((reading.table.schema.clone(), reading.table.name.clone()), column.clone()))
    };
    let ids = outbox.readings().iter().filter_map(id_of).collect();
    let named = target.tables.iter().map(|table| (table.schema.clone(), table.name.clone()));
    let captured = listed.iter().map(|table| &table.relation);
    let captured = captured.filter(|relation| !target.patterns.is_empty() && target.patterns.capture(relation));
    Reading {
        tables: named.chain(captured.map(crate::pgoutput::Relation::full_name)).collect(),
        ids,
        only_local: target.only_local,
    }
}

/// Whether the slot is missing or refused because a standby answers. Before its promotion, a standby has no such slot, or has an
/// incomplete copy of it, or cannot decode at all. `was_standby`: the server was a standby when it refused. It may have been promoted
/// since, and then the next attempt succeeds.
fn is_failing_over(target: &StreamTarget, was_standby: bool, error: &RunError) -> bool {
    let refused = error.postgres().is_some_and(|error| {
        error.code().is_some() && error.recovery() == Recovery::Stop && !error.is_of_credentials()
    });
    let by_standby = refused || matches!(error.cause, RunCause::NoSlot { .. });
    let in_recovery = || server::is_in_recovery(&mut Connection::open(&target.source, Purpose::Control)?);
    by_standby && (was_standby || in_recovery().unwrap_or(false))
}

/// Ends the run because of a table that cannot be mapped. The WAL ends at `flushed`, and the relay has handled it up to `from`. If no WAL
/// is left between them, the run ends at once. Otherwise rows may be left that have other columns of the table, so these rows are
/// published first.
fn end_at_unmappable(
    unmappable: Option<PlanError>,
    flushed: Lsn,
    from: Lsn,
    outbox: &mut Outbox,
) -> Result<(), RunError> {
    match unmappable {
        Some(error) if from >= flushed || error.is_for_all_rows() => Err(Box::new(error).into()),
        Some(error) => {
            outbox.unmappable_from(flushed, error);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Checks that the WAL does not end before a position that the server has already sent. It does in an older copy of the cluster. If the
/// relay asked such a server to start from that position, the server would silently skip everything up to there. A standby is not
/// refused, since after a restart it may have to replay WAL that it has sent.
fn check_not_older(connection: &mut Connection, flushed: Lsn, seen: Lsn) -> Result<(), RunError> {
    if flushed >= seen || server::is_in_recovery(connection)? {
        return Ok(());
    }
    Err(RunError::older_copy(seen, flushed))
}

fn follow_timeline(
    connection: &mut Connection,
    before: u32,
    now: u32,
    relay: &mut Relay<impl Sink, impl Clock>,
) -> Result<Lsn, RunError> {
    // If the server's timeline did not branch off ours, our positions mean nothing there.
    let switch_point = server::switch_point(connection, now, before)?.unwrap_or(Lsn::ZERO);
    tracing::warn!(
        from = before, to = now, %switch_point, confirmed = %relay.flush_lsn(),
        "Postgres failed over: this server is on a newer timeline; commits that the old primary made after switch_point are missing here"
    );
    relay.timeline_left_at(switch_point)?;
    Ok(switch_point)
}

fn check_wal_level(connection: &mut Connection) -> Result<(), RunError> {
    let server = catalog::server(connection)?;
    // If a server does not report its wal_level, it is not refused.
    if server.decodes() || server.wal_level.is_empty() {
        return Ok(());
    }
    Err(RunError::wal_level(&server.wal_level))
}

fn check_origin(connection: &mut Connection, target: &StreamTarget) -> Result<(), RunError> {
    /// The first version whose `pgoutput` leaves rows of other origins out.
    const ORIGINS: u32 = 160_000;
    if !target.only_local {
        return Ok(());
    }
    let server = catalog::server(connection)?;
    if server.version < ORIGINS { Err(RunError::no_origin(&server.version_text)) } else { Ok(()) }
}

fn create_temporary_slot(connection: &mut Connection, slot: &str) -> Result<Option<Lsn>, RunError> {
    let command = format!("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT", identifier(slot));
    let rows = connection.query_within(&command, Duration::from_hours(1))?;
    Ok(rows.first().and_then(|row| row.parse(1)))
}

/// Checks that the slot belongs to `database` and is read by `pgoutput`. All databases of a cluster share the names of slots.
pub(crate) fn check_owner(name: &str, database: &str, slot: &Slot) -> Result<(), RunError> {
    match (slot.row.plugin.as_deref(), slot.row.database.as_deref()) {
        (Some(_), Some(found)) if found != database => Err(RunError::slot_of_other_database(name, found, database)),
        // The plugin's name is empty at first while a slot is being created.
        (Some("pgoutput" | ""), _) => Ok(()),
        (Some(plugin), _) => Err(RunError::slot_of_other_plugin(name, &format!("of plugin {plugin}"))),
        (None, _) => Err(RunError::slot_of_other_plugin(name, "a physical slot")),
    }
}

/// Checks that a relay on `database` can read the slot. Returns the slot's position.
pub(crate) fn check_slot(name: &str, database: &str, slot: &Slot) -> Result<Lsn, RunError> {
    check_owner(name, database, slot)?;
    let row = &slot.row;
    if row.temporary {
        return Err(RunError::temporary_slot(name));
    }
    if row.two_phase {
        return Err(RunError::two_phase_slot(name));
    }
    if let Some(reason) = invalidation(slot) {
        return Err(RunError::slot_lost(name, reason, slot.confirmed_flush_lsn.unwrap_or_default()));
    }
    slot.confirmed_flush_lsn.ok_or_else(|| Error::SlotUnfinished { slot: name.to_owned() }.into())
}

/// The reason why the slot cannot be read any more, from the newest column that the server's version has. Version 16 sets `conflicting` for
/// every invalidated slot. A slot whose WAL was removed has no `restart_lsn` either.
fn invalidation(slot: &Slot) -> Option<String> {
    let row = &slot.row;
    let in_conflict = row.conflicting.unwrap_or(false) && slot.restart_lsn.is_some();
    row.invalidation_reason
        .clone()
        .or_else(|| in_conflict.then(|| "conflicting with recovery".to_owned()))
        .or_else(|| (row.wal_status.as_deref() == Some("lost")).then(|| "wal_status = lost".to_owned()))
}

/// The times and the position of a slot that nobody reads.
#[derive(Default)]
struct FreedSlot {
    /// When the slot was last released, if the server reports it.
    released: Option<Duration>,
    /// The time before which a relay that takes the slot must not send: a second after the slot was released. If the server does not
    /// report the release, it is a second after another relay was last seen to read the slot. `None`: the relay need not wait, since it
    /// held the slot itself until now, or the destination keeps an earlier relay out, or no other relay is known.
    waits_until: Option<Duration>,
    /// The end of the server's WAL at the time of the query.
    log_end: Option<Lsn>,
}

/// Explains the error of a walsender that does not find the publication: the publication was dropped, or it did not exist at the slot's
/// position in the WAL. `None`: the error is another one, or the server cannot be queried.
pub(super) fn explain_missing_publication(
    target: &StreamTarget,
    known: &KnownServer,
    error: &Error,
) -> Option<RunError> {
    let Error::Server { error, .. } = error else { return None };
    let passes_over = error.severity == "WARNING" && error.code == sqlstate::NOT_IN_PREREQUISITE_STATE;
    if error.code != sqlstate::UNDEFINED_OBJECT && !passes_over {
        return None;
    }
    let mut control = known.open_query_connection(target, Purpose::Control).ok()?;
    let publication = &target.publication;
    Some(match server::publication(&mut control, publication).ok()? {
        None => RunError::no_publication(publication, &target.source.dbname),
        Some(_) => RunError::publication_too_new(publication, &target.slot),
    })
}

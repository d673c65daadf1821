//! [`Supervisor`]: connects, reconnects, starts over, and decides when the run ends.
//!
//! In: a server, a relay, a stop flag. Out: nothing after a graceful shutdown, else why the run ended. This file handles no rows.
//! Invariant: once a server has answered, no outage ends the run, however long it takes. Only an error on which an operator has to decide
//! does. Before that, invalid messages end it, too ([`Recovery::Restart`]): a restart may help.

mod acquire;
mod advice;
mod backoff;
pub(crate) mod coverage;
mod error;
mod holder;
mod publication;
mod server;
mod slot_identity;
mod unsent;

pub use acquire::{Acquired, MakeSlot, NotAcquired};
pub(crate) use acquire::{check_owner, check_slot};
pub(crate) use advice::Surroundings;
pub(crate) use error::Explained;
pub(crate) use error::LOGIN_RULE;
pub use error::{ExitError, ExitKind, REPUBLISH_PAGE, RunCause, RunError};
pub use holder::ask_holder;
pub(crate) use publication::{SeenTables, details_now, read_tables, refusals, uncovered};
pub use server::{PgServer, Server};
pub(crate) use slot_identity::agrees;

use crate::lsn::{Lsn, Position};
use crate::metrics::{Metrics, Peer, State};
use crate::outbox::{TableName, TablePatterns};
use crate::pg::frame::FrameError;
use crate::pg::shard::Shard;
use crate::pg::source::Source;
use crate::pg::{self, PluginOptions, Recovery, sqlstate};
use crate::relay::{Clock, ProgressMismatch, ProtocolError, Relay, StreamEnd, Why};
use crate::remedy::Remedy;
use crate::secret::CREDENTIALS_WITHIN;
use crate::sink::{FailureClass, Sink};
use backoff::{Backoff, CredentialsWait, Silence};
use std::sync::Arc;
use std::time::Duration;
use unsent::{Again, UnsentRow};

/// How long the server may take to end the copy at a graceful shutdown. After that, the relay queries the confirmed position over
/// another connection.
const FINISH: Duration = Duration::from_millis(300);

/// How long that query may take, if nobody asked for the stop. Else `--shutdown-timeout` limits it.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);

/// The time between two such queries.
const CONFIRMED_CHECK: Duration = Duration::from_millis(50);

/// The most times that the publication is read again because of one row. One read shows whether its table is published, and another one
/// the form of its values.
const READS_FOR_ONE_ROW: u32 = 5;

/// How long the replication connection stays closed if a topic is missing for long, or if the sink cannot be taken over.
const BLOCKED_CHECK: Duration = Duration::from_secs(5);

/// A free slot is used after this part of the server's idle_replication_slot_timeout.
const USED_AFTER: u32 = 4;

/// The time between two queries whether the slot is free, while records are in flight.
const FREE_SLOT_CHECK: Duration = Duration::from_millis(10);

/// The time between two checks of the sink, while the connection is closed because nothing is acknowledged.
const STALLED_CHECK: Duration = Duration::from_millis(500);

/// The server, publication and slot to read.
#[derive(Debug, Clone)]
pub struct StreamTarget {
    /// The server and database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot.
    pub slot: String,
    /// The shard of this publication and slot. `None`: there are no shards.
    pub shard: Option<Shard>,
    /// The tables to publish. Empty: all.
    pub tables: Vec<TableName>,
    /// The tables among `tables` whose children by `INHERITS` are left out.
    pub without_children: Vec<TableName>,
    /// The tables to publish if `tables` is empty.
    pub patterns: TablePatterns,
    /// Whether logical messages are read as well.
    pub messages: bool,
    /// Whether rows are left out that a subscription applied.
    pub only_local: bool,
    /// The largest change, in bytes.
    pub max_row: usize,
    /// The temporary slot to read instead. Nothing is confirmed then.
    pub temporary_slot: Option<String>,
    /// If the slot is at this position, it is read although nothing proves that it is the one that was read before.
    pub accept_slot_at: Option<Lsn>,
}

impl StreamTarget {
    /// The tables that the settings want.
    pub(crate) fn wanted(&self) -> coverage::WantedTables<'_> {
        let Self { tables, without_children, patterns, .. } = self;
        coverage::WantedTables { tables, without_children, patterns }
    }

    /// The options for the output plugin, with values in text form.
    fn plugin_options(&self) -> PluginOptions<'_> {
        let Self { publication, messages, only_local, .. } = self;
        PluginOptions { publication, binary: false, messages: *messages, only_local: *only_local }
    }
}

/// Keeps the stream of one slot running.
pub struct Supervisor<V, S, C> {
    server: V,
    relay: Relay<S, C>,
    metrics: Arc<Metrics>,
    backoff: Backoff,
    silence: Silence,
    unsent: UnsentRow,
    /// How much longer the server may refuse the credentials or other things. `None`: the relay has not streamed yet.
    credentials_wait: Option<CredentialsWait>,
    /// Returns random numbers, by which pauses differ.
    dice: RandomNumbers,
    /// The row because of which the publication was read again last, and how often.
    publication_read_for: Option<(Position, u32)>,
    /// Whether the last connection ended because the progress beside the records was ahead of the server.
    was_behind: bool,
}

/// Returns random numbers.
type RandomNumbers = Box<dyn FnMut() -> u64 + Send>;

impl<V: Server, S: Sink, C: Clock> Supervisor<V, S, C> {
    /// A supervisor without a connection.
    pub fn new(server: V, relay: Relay<S, C>, metrics: Arc<Metrics>) -> Self {
        Self {
            server,
            relay,
            metrics,
            backoff: Backoff::default(),
            silence: Silence::default(),
            unsent: UnsentRow::default(),
            credentials_wait: None,
            dice: Box::new(random_number),
            publication_read_for: None,
            was_behind: false,
        }
    }

    /// Sets the source of random numbers.
    #[must_use]
    pub fn with_dice(self, dice: RandomNumbers) -> Self {
        Self { dice, ..self }
    }

    /// The relay.
    pub fn relay_mut(&mut self) -> &mut Relay<S, C> {
        &mut self.relay
    }

    /// The server.
    pub fn server_mut(&mut self) -> &mut V {
        &mut self.server
    }

    /// Runs until a stop is requested.
    ///
    /// # Errors
    /// An error that a restart or an operator has to fix.
    pub fn run(&mut self) -> Result<(), RunError> {
        let outcome = loop {
            if let Some(outcome) = self.connection() {
                break outcome;
            }
        };
        self.relay.sink_mut().abandon();
        self.relay.close_sink();
        outcome.map_err(|error| self.server.advised(self.relay.outbox_mut(), error))
    }

    /// Runs one connection from beginning to end. `None`: the next one may follow.
    pub fn connection(&mut self) -> Option<Result<(), RunError>> {
        if self.relay.may_stop() {
            return Some(self.stop_without_stream());
        }
        self.metrics.set_state(State::Connecting);
        match self.server.acquire(&mut self.relay, &self.metrics) {
            Ok(acquired) => self.stream(acquired),
            Err(NotAcquired::Stopped) => Some(self.stop_without_stream()),
            Err(NotAcquired::Failed(RunError { cause: RunCause::Postgres(error), remedy, .. }))
                if self.may_pass(&error) =>
            {
                self.connection_lost(&error, remedy).err().map(Err)
            }
            Err(NotAcquired::Failed(error)) => Some(Err(error)),
        }
    }

    /// Whether the run goes on after this error. If the server sent invalid messages after it once was a working server, a new
    /// connection helps as much as a restart would. If credentials were right once, somebody may be replacing them. If the server let
    /// the relay stream before, somebody may be about to allow again what it refuses now.
    fn may_pass(&mut self, error: &pg::Error) -> bool {
        match error.recovery() {
            Recovery::Reconnect => true,
            Recovery::Restart => self.server.system().is_some(),
            Recovery::Stop if error.is_of_credentials() || error.code().is_some() => {
                let now = self.relay.clock().now();
                self.credentials_wait.as_mut().is_some_and(|wait| wait.has_time_left(now))
            }
            Recovery::Stop => false,
        }
    }

    /// Streams until the stream ends. `None`: the next connection may follow.
    fn stream(&mut self, acquired: Acquired<V::Stream>) -> Option<Result<(), RunError>> {
        let Acquired { mut stream, wal_sender_timeout, confirmed, slot } = acquired;
        let was_held = slot.as_ref().map_or(Ok(()), |slot| self.relay.was_held_until(slot, confirmed));
        if let Err(why) = was_held {
            return restart_after_takeover(&mut self.relay, &why, Some(stream)).err().map(Err);
        }
        let first = self.relay.flush_lsn() == Lsn::ZERO;
        if let Some(slot) = slot {
            self.relay.holds(slot);
        }
        self.relay.acquired(confirmed);
        let waits = self.relay.waits_for_last_holder();
        self.metrics.set_state(if waits { State::WaitingForSlot } else { State::Streaming });
        self.credentials_wait = Some(CredentialsWait::default());
        let (began, from) = (self.relay.clock().now(), self.relay.flush_lsn());
        self.server.streams(&stream, from);
        let ended = self.relay.stream(&mut stream, Some(self.silence.allowed(wal_sender_timeout)));
        self.metrics.set_server(None);
        let lasted = self.relay.clock().now().saturating_duration_since(began);
        let moved = self.relay.flush_lsn() > from;
        self.backoff.ended(lasted, moved);
        self.silence.ended(matches!(ended, StreamEnd::Disconnected(pg::Error::Silent { .. })), moved);
        if !first && matches!(ended, StreamEnd::ProgressMismatch(ProgressMismatch::Standby)) {
            // The primary was read before, so the relay waits until a server is promoted.
            let refusal = RunError::on_standby().to_string();
            return self.ended(StreamEnd::Disconnected(pg::Error::NotPromoted { refusal }), stream);
        }
        let is_behind = matches!(
            ended,
            StreamEnd::ProgressMismatch(ProgressMismatch::OlderCopy { .. } | ProgressMismatch::EarlierTimeline { .. })
        );
        if is_behind && !std::mem::replace(&mut self.was_behind, is_behind) {
            // The server's positions were read when the slot was taken. They may be old by the time when the destination answers. Since
            // then, another relay may have published rows, from this server or from a promoted one.
            let why = "what was published is ahead of the server as it was";
            return restart_after_takeover(&mut self.relay, why, Some(stream)).err().map(Err);
        }
        self.was_behind = is_behind;
        self.ended(ended, stream)
    }

    fn ended(&mut self, ended: StreamEnd, stream: V::Stream) -> Option<Result<(), RunError>> {
        match ended {
            StreamEnd::Stopped => Some(self.finish(stream)),
            StreamEnd::StopTimedOut { in_flight } => {
                self.close(stream);
                Some(Err(RunError::stop_timed_out(in_flight)))
            }
            StreamEnd::Disconnected(error) if error.recovery() == Recovery::Reconnect => {
                self.close_stream(stream);
                self.metrics.reconnect(Peer::Postgres);
                match self.fails_again(&error) {
                    Some(again) => self.row_is_not_sent(&error, again).err().map(Err),
                    None => self.connection_lost(&error, None).err().map(Err),
                }
            }
            StreamEnd::Disconnected(error @ pg::Error::Frame(FrameError::TooLarge { .. })) => {
                self.finish_and_log_error(stream);
                Some(Err(error.into()))
            }
            StreamEnd::Disconnected(error) if error.code() == Some(sqlstate::PROGRAM_LIMIT_EXCEEDED) => {
                self.finish_and_log_error(stream);
                Some(Err(RunError::unsent_row(&self.relay.next_row(), &chain(&error))))
            }
            StreamEnd::Disconnected(error) => {
                self.close(stream);
                Some(Err(self.server.explain_missing_publication(&error).unwrap_or_else(|| error.into())))
            }
            StreamEnd::Stalled => {
                self.close_stream(stream);
                self.wait_for_sink().err().map(Err)
            }
            StreamEnd::ServerStops => {
                self.close_stream(stream);
                self.metrics.reconnect(Peer::Postgres);
                self.connection_lost(&pg::Error::Ended, None).err().map(Err)
            }
            StreamEnd::SlotTaken(why) => restart_after_takeover(&mut self.relay, &why, Some(stream)).err().map(Err),
            StreamEnd::SinkFailed(failure) => self.start_over(&failure, Some(stream)).err().map(Err),
            StreamEnd::StartOver(why) => self.start_over_for(why, Some(stream)).err().map(Err),
            StreamEnd::BadRow(row) => {
                // The slot's position shall be right before the row.
                self.finish_and_log_error(stream);
                Some(Err(row.into()))
            }
            StreamEnd::Unmappable(error) => {
                self.finish_and_log_error(stream);
                Some(Err(error.into()))
            }
            StreamEnd::PublicationChanged { position, reason } => {
                self.close_stream(stream);
                self.read_publication_again(position, &reason).err().map(Err)
            }
            StreamEnd::Protocol(error) => {
                self.close(stream);
                Some(Err(error.into()))
            }
            StreamEnd::ProgressMismatch(found) => {
                self.close(stream);
                Some(Err(self.misplaced(found)))
            }
            StreamEnd::TransactionTooLong { records, timeout } => {
                self.finish_and_log_error(stream);
                Some(Err(RunError::transaction_too_long(records, timeout)))
            }
        }
    }

    /// Lets the next connection read the publication, unless it was read often enough because of the same row.
    fn read_publication_again(&mut self, position: Position, reason: &str) -> Result<(), RunError> {
        let before = self.publication_read_for.filter(|(row, _)| *row == position).map_or(0, |(_, looks)| looks);
        self.publication_read_for = Some((position, before + 1));
        if before < READS_FOR_ONE_ROW {
            return Ok(());
        }
        let reason = format!("{reason}, and the publication, which was looked at {before} times, does not settle it");
        Err(ProtocolError::Row { position, reason }.into())
    }

    fn misplaced(&self, found: ProgressMismatch) -> RunError {
        match found {
            ProgressMismatch::Standby => RunError::on_standby(),
            ProgressMismatch::OtherCluster { before } => {
                RunError::other_cluster(&before, self.server.system().unwrap_or_default())
            }
            ProgressMismatch::OlderCopy { seen, flushed } => RunError::older_copy(seen, flushed),
            ProgressMismatch::Missing { confirmed } => RunError::no_progress(confirmed),
            ProgressMismatch::OtherHistory { published, confirmed } => RunError::other_history(&published, confirmed),
            ProgressMismatch::EarlierTimeline { before, found } => RunError::earlier_timeline(before, found),
            ProgressMismatch::Unreadable { key, value } => RunError::strange_progress(&key, &value),
        }
    }

    /// Closes the stream, so that the slot is free. The records in flight stay, and the relay asks who takes the slot.
    fn close_stream(&mut self, stream: V::Stream) {
        drop(stream);
        self.relay.stream_ended();
    }

    /// Recreates the sink, and closes the stream. The order is important. While the connection is open, no other relay can publish, so
    /// the sink is closed first. The position is kept until the connection is closed: with nothing in flight, a keepalive would be
    /// confirmed that is too far.
    fn release(&mut self, stream: Option<V::Stream>) -> Result<(), RunError> {
        self.relay.close_sink();
        if let Some(stream) = stream {
            self.close_stream(stream);
        }
        start_over(&mut self.relay)
    }

    /// Closes the stream at the end of the run. Records in flight must not be sent once the slot is free.
    fn close(&mut self, stream: V::Stream) {
        self.end_sink();
        self.close_stream(stream);
    }

    fn end_sink(&mut self) {
        if self.relay.awaits_sink() {
            self.relay.sink_mut().abandon();
            self.relay.close_sink();
        }
    }

    /// Ends the copy, and checks that the server has read the last status update.
    fn finish(&mut self, mut stream: V::Stream) -> Result<(), RunError> {
        if self.server.finish(&mut stream, FINISH) {
            return Ok(());
        }
        // In the middle of a large transaction, a walsender reads nothing while the relay reads all that it sends. It reads once its
        // socket is full. So the relay stops reading, keeps the connection, and queries the slot.
        let (lsn, since) = (self.relay.flush_lsn(), self.relay.clock().now());
        loop {
            let asked_for = self.relay.stop_requested();
            let waited = self.relay.clock().now().saturating_duration_since(since);
            let too_late = if asked_for { self.relay.stop_timed_out() } else { waited >= CONFIRMED_WITHIN };
            match self.server.has_confirmed(lsn) {
                Ok(true) => return Ok(()),
                Ok(false) if !too_late => self.relay.clock().pause(CONFIRMED_CHECK),
                Ok(false) | Err(_) => return Err(RunError::stop_unconfirmed(lsn)),
            }
        }
    }

    /// As [`Supervisor::finish`], if the run ends for another reason.
    fn finish_and_log_error(&mut self, stream: V::Stream) {
        self.end_sink();
        if let Err(error) = self.finish(stream) {
            tracing::warn!(%error, "error during shutdown");
        }
    }

    fn stop_without_stream(&mut self) -> Result<(), RunError> {
        if !self.relay.is_unfinished() {
            return Ok(());
        }
        match self.relay.in_flight() {
            0 => Err(RunError::stop_unconfirmed(self.relay.flush_lsn())),
            in_flight => Err(RunError::stop_timed_out(in_flight)),
        }
    }

    /// Whether the server itself ended the stream, for the third time in a row before the same row. That it was told to end the stream is no
    /// reason.
    fn fails_again(&mut self, error: &pg::Error) -> Option<Again> {
        let is_own = error.server_error().is_some_and(|error| !error.code.starts_with(sqlstate::OPERATOR_INTERVENTION));
        let next = self.relay.next_row().position;
        is_own.then(|| self.unsent.ended(next, self.relay.clock().now())).flatten()
    }

    /// Postgres does not send the next row: each stream ends before it. Says so until the row has come.
    fn row_is_not_sent(&mut self, error: &pg::Error, Again { lasted, pause }: Again) -> Result<(), RunError> {
        let RunError { cause, remedy, .. } = RunError::unsent_row(&self.relay.next_row(), &chain(error));
        let text = format!("{cause}; each stream has ended there for {} s", lasted.as_secs());
        let hint = remedy.map(|remedy| remedy.to_string());
        tracing::error!(error = text, retry_in = ?pause, hint, "no row behind it is published; no data lost; retrying");
        self.relay.shows_unsent_row(text.clone());
        self.metrics.set_last_error(Some(text));
        self.metrics.set_state(State::Connecting);
        self.idle(pause)
    }

    fn connection_lost(&mut self, error: &pg::Error, remedy: Option<Remedy>) -> Result<(), RunError> {
        let refused = matches!(error, pg::Error::Connect { source, .. }
            if source.kind() == std::io::ErrorKind::ConnectionRefused || source.kind() == std::io::ErrorKind::NotFound)
            || error.code().is_some()
            || matches!(error, pg::Error::Ended | pg::Error::Io { .. });
        let pause = self.backoff.next(refused, (self.dice)());
        let text = chain(error);
        if error.is_of_credentials() {
            tracing::error!(
                error = text,
                retry_in = ?pause,
                gives_up_after = ?CREDENTIALS_WITHIN,
                "Postgres authentication failed; retrying with credentials that are read again at each attempt"
            );
        } else if error.recovery() == Recovery::Stop {
            tracing::error!(
                error = text,
                retry_in = ?pause,
                gives_up_after = ?CREDENTIALS_WITHIN,
                "Postgres refuses the relay, which it let in before; retrying"
            );
        } else {
            let hint = remedy.map(|remedy| remedy.to_string());
            tracing::warn!(error = text, retry_in = ?pause, hint, "Postgres connection failed; retrying");
        }
        self.metrics.set_last_error(Some(text));
        self.metrics.set_state(State::Connecting);
        // If a server answers at once, the relay connects at once. If it does not, the records in flight are parked before the relay waits.
        while self.relay.awaits_sink()
            && !self.relay.is_parked()
            && !self.relay.is_exactly_once()
            && !self.relay.is_slot_free()
            && !self.relay.may_stop()
        {
            self.idle(FREE_SLOT_CHECK)?;
        }
        self.idle(pause)
    }

    /// Waits with a closed connection until the sink acknowledges records again.
    fn wait_for_sink(&mut self) -> Result<(), RunError> {
        let waiting = self.relay.in_flight();
        tracing::warn!(
            in_flight = waiting,
            problem = self.relay.sink_mut().problem(),
            "no acknowledgement for --disconnect-after; disconnected from Postgres, slot kept"
        );
        self.metrics.set_state(State::Blocked);
        if !self.relay.awaits_sink() {
            // A missing topic is known only by its row, and a sink can be taken over only with the slot. So the relay tries again from
            // time to time.
            return self.idle(BLOCKED_CHECK);
        }
        let mut used = self.relay.clock().now();
        // A parked sink acknowledges nothing before the relay has the slot again.
        while self.relay.awaits_sink() && !self.relay.is_parked() && !self.relay.may_stop() {
            self.idle(STALLED_CHECK)?;
            let idle = self.relay.clock().now().saturating_duration_since(used);
            if self.server.idle_slot_timeout().is_some_and(|at_most| idle >= at_most / USED_AFTER) {
                used = self.relay.clock().now();
                self.use_slot();
            }
        }
        Ok(())
    }

    /// Uses the slot, so that Postgres does not invalidate it while the sink is unavailable.
    fn use_slot(&mut self) {
        match self.server.use_slot(self.relay.flush_lsn()) {
            Ok(walsender) => walsender.into_iter().for_each(|walsender| self.relay.also_held(walsender)),
            Err(error) => tracing::debug!(%error, "the slot was not taken, so that it counts as idle"),
        }
    }

    fn start_over(&mut self, failure: &crate::sink::Failure, stream: Option<V::Stream>) -> Result<(), RunError> {
        tracing::warn!(
            reason = failure.reason,
            error = failure.text,
            "delivery failed; restarting from the confirmed LSN, records may repeat"
        );
        self.metrics.set_last_error(Some(failure.text.clone()));
        if failure.class != FailureClass::Row {
            return self.start_over_later(stream);
        }
        self.release(stream)
    }

    /// Starts over without an error: nothing failed, so nothing is reported.
    fn start_over_for(&mut self, why: Why, stream: Option<V::Stream>) -> Result<(), RunError> {
        match why {
            Why::WholeFirst => {
                tracing::info!("committing what precedes the transaction of a row that cannot be published");
                self.release(stream)
            }
            Why::ProgressGivenUp => {
                let from = self.relay.flush_lsn();
                tracing::warn!(
                    %from,
                    "--accept-slot-at: the progress in the destination is of another history of the cluster; resuming at the slot's position, records may repeat"
                );
                self.release(stream)
            }
            Why::OutOfTime(age) => {
                let text = format!("a transaction was open for {} s and was given up", age.as_secs());
                tracing::warn!("{text}: restarting from the confirmed LSN, no data lost");
                self.metrics.set_last_error(Some(text));
                self.start_over_later(stream)
            }
        }
    }

    fn start_over_later(&mut self, stream: Option<V::Stream>) -> Result<(), RunError> {
        self.metrics.set_state(State::Blocked);
        let pause = self.backoff.next(false, (self.dice)());
        // The reports of the old producer are not needed any more.
        self.release(stream)?;
        self.idle(pause)
    }

    fn idle(&mut self, duration: Duration) -> Result<(), RunError> {
        idle(&mut self.relay, duration)
    }
}

/// Recreates the sink.
fn start_over<S: Sink, C: Clock>(relay: &mut Relay<S, C>) -> Result<(), RunError> {
    relay.start_over().map_err(RunError::from)
}

/// Serves the sink for a while.
fn idle<S: Sink, C: Clock>(relay: &mut Relay<S, C>, duration: Duration) -> Result<(), RunError> {
    let Err(ended) = relay.idle(duration) else { return Ok(()) };
    match *ended {
        StreamEnd::SlotTaken(why) => restart_after_takeover(relay, &why, None::<()>),
        StreamEnd::SinkFailed(_) | StreamEnd::StartOver(_) => start_over(relay),
        StreamEnd::BadRow(row) => Err(row.into()),
        // Only a stream ends like this.
        StreamEnd::Stopped
        | StreamEnd::StopTimedOut { .. }
        | StreamEnd::Disconnected(_)
        | StreamEnd::Stalled
        | StreamEnd::ServerStops
        | StreamEnd::Unmappable(_)
        | StreamEnd::PublicationChanged { .. }
        | StreamEnd::Protocol(_)
        | StreamEnd::ProgressMismatch(_)
        | StreamEnd::TransactionTooLong { .. } => Ok(()),
    }
}

/// Starts over as [`Supervisor::release`] does, but another relay may have published rows since.
fn restart_after_takeover<S: Sink, C: Clock, U>(
    relay: &mut Relay<S, C>,
    why: &str,
    stream: Option<U>,
) -> Result<(), RunError> {
    tracing::warn!(
        in_flight = relay.in_flight(),
        "{why}: what is in flight is not sent any more; restarting from the slot's confirmed LSN"
    );
    relay.close_sink();
    if stream.is_some() {
        drop(stream);
        relay.stream_ended();
    }
    Ok(relay.taken_over()?)
}

/// An error and its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// A random number.
fn random_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;

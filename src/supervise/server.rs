//! [`Server`]: the server to read, as the supervisor needs it.
//!
//! In: a relay, whose positions are where the stream begins. Out: a stream of the slot, and facts about the slot. Postgres implements
//! it, and so does the simulation's server. So the supervisor's decisions between two streams are the same in both.

use super::StreamTarget;
use super::acquire::{self, Acquired, KnownServer, MakeSlot, NotAcquired};
use super::advice;
use super::error::RunError;
use crate::check_finding::CHECK;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::pg::pooler::Pooler;
use crate::pg::{self, Connection, Error, Purpose, Recovery, ReplicationStream, Upstream};
use crate::relay::{Clock, Relay};
use crate::remedy::Remedy;
use crate::sink::Sink;
use std::time::Duration;

/// How long a stream may take to end that was opened only to use the slot.
const USED_WITHIN: Duration = Duration::from_millis(300);

/// A server with the slot to read.
pub trait Server {
    /// The stream of the slot.
    type Stream: Upstream;

    /// Takes the slot, if all is as it must be.
    ///
    /// # Errors
    /// There is no stream.
    fn acquire<S: Sink, C: Clock>(
        &mut self,
        relay: &mut Relay<S, C>,
        metrics: &Metrics,
    ) -> Result<Acquired<Self::Stream>, NotAcquired>;

    /// The relay has begun to read the slot from `from`.
    fn streams(&mut self, stream: &Self::Stream, from: Lsn);

    /// Ends the copy. Returns whether the server has then read all that was sent.
    fn finish(&mut self, stream: &mut Self::Stream, within: Duration) -> bool;

    /// How long a slot may be free before the server invalidates it. `None`: without limit.
    fn idle_slot_timeout(&self) -> Option<Duration> {
        None
    }

    /// Takes the free slot and releases it at once, so that the server does not count it as idle. Returns the walsender that held it.
    ///
    /// # Errors
    /// The slot cannot be taken.
    fn use_slot(&mut self, _lsn: Lsn) -> Result<Option<u32>, Error> {
        Ok(None)
    }

    /// Whether the slot has confirmed `lsn`, queried over another connection.
    ///
    /// # Errors
    /// The server cannot be queried.
    fn has_confirmed(&mut self, lsn: Lsn) -> Result<bool, Error>;

    /// The cluster's identifier. `None`: the server was not reached yet.
    fn system(&self) -> Option<&str>;

    /// Explains an error of the stream by the state of the publication.
    fn explain_missing_publication(&mut self, error: &Error) -> Option<RunError>;

    /// Adds a fix to the error that ends the run, by queries of the server.
    fn advised(&self, _outbox: &Outbox, error: RunError) -> RunError {
        error
    }
}

/// A slot of Postgres.
pub struct PgServer {
    target: StreamTarget,
    known: KnownServer,
}

impl PgServer {
    /// A server that was not reached yet.
    pub fn new(target: StreamTarget) -> Self {
        Self { target, known: KnownServer::default() }
    }

    /// The server, with another way to make its temporary slot.
    #[must_use]
    pub fn with_make_slot(mut self, make_slot: MakeSlot) -> Self {
        self.known.make_slot = Some(make_slot);
        self
    }

    /// Adds a remedy to an error of a server that was never reached. The relay tries again, but the address may be wrong.
    fn never_reached(&self, error: RunError) -> RunError {
        let passes = error.postgres().filter(|error| error.recovery() == Recovery::Reconnect);
        let host = Connection::first_host(&self.target.source);
        let remedy = passes.map(|error| Pooler::recognise(&host, error).map_or(CHECK, |pooler| pooler.way_around));
        error.advised(remedy.map(Remedy::from))
    }
}

impl Server for PgServer {
    type Stream = ReplicationStream;

    fn acquire<S: Sink, C: Clock>(
        &mut self,
        relay: &mut Relay<S, C>,
        metrics: &Metrics,
    ) -> Result<Acquired<ReplicationStream>, NotAcquired> {
        match acquire::acquire(&self.target, &mut self.known, relay, metrics) {
            Err(NotAcquired::Failed(error)) if self.known.system.is_none() => {
                Err(NotAcquired::Failed(self.never_reached(error)))
            }
            acquired => acquired,
        }
    }

    fn streams(&mut self, stream: &ReplicationStream, from: Lsn) {
        let StreamTarget { slot, publication, .. } = &self.target;
        tracing::info!(slot, publication, %from, walsender = stream.backend_pid(), "streaming");
    }

    fn finish(&mut self, stream: &mut ReplicationStream, within: Duration) -> bool {
        self.target.temporary_slot.is_some() || stream.finish(within).is_ok()
    }

    fn idle_slot_timeout(&self) -> Option<Duration> {
        self.known.idle_slot_timeout
    }

    /// Reads and confirms nothing of the stream.
    fn use_slot(&mut self, lsn: Lsn) -> Result<Option<u32>, Error> {
        let target = &self.target;
        let connection = self.known.open_query_connection(target, Purpose::Replication)?;
        let started = connection.start_replication(&target.slot, lsn, &target.plugin_options(), target.max_row);
        let mut stream = started.map_err(|(_, error)| error)?;
        stream.finish(USED_WITHIN)?;
        Ok(Some(stream.backend_pid()))
    }

    fn has_confirmed(&mut self, lsn: Lsn) -> Result<bool, Error> {
        let mut control = self.known.open_query_connection(&self.target, Purpose::Control)?;
        let slot = pg::server::slot(&mut control, &self.target.slot)?;
        Ok(slot.is_some_and(|slot| slot.confirmed_flush_lsn >= Some(lsn)))
    }

    fn system(&self) -> Option<&str> {
        self.known.system.as_ref().map(|system| system.system_identifier.as_str())
    }

    fn explain_missing_publication(&mut self, error: &Error) -> Option<RunError> {
        acquire::explain_missing_publication(&self.target, &self.known, error)
    }

    fn advised(&self, outbox: &Outbox, error: RunError) -> RunError {
        advice::advised(&self.target, outbox, error)
    }
}

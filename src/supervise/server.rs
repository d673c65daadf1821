//! The server that is read, as the supervisor needs it.
//!
//! In: a relay, whose positions say where to begin. Out: a stream of a slot that is ours, and what the server says of that slot.
//! Postgres is one implementer, the simulation's server the other: so what is decided between two streams runs in both.

use super::StreamTarget;
use super::acquire::{self, Acquired, KnownServer, NotAcquired};
use super::advice;
use super::error::RunError;
use crate::check_finding::CHECK;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::pg::pooler::Pooler;
use crate::pg::{Error, ReplicationStream, Upstream};
use crate::relay::{Clock, Relay};
use crate::sink::Sink;
use std::time::Duration;

/// How long the end of a stream may take that was opened for the slot's use alone.
const USED_WITHIN: Duration = Duration::from_millis(300);

/// A server with a slot that is read.
pub trait Server {
    /// The stream that the slot sends.
    type Stream: Upstream;

    /// Takes the slot, once everything is as it must be.
    ///
    /// # Errors
    /// There is no stream.
    fn acquire<S: Sink, C: Clock>(
        &mut self,
        relay: &mut Relay<S, C>,
        metrics: &Metrics,
    ) -> Result<Acquired<Self::Stream>, NotAcquired>;

    /// The slot is being read from here on, by the relay's account.
    fn streams(&mut self, stream: &Self::Stream, from: Lsn);

    /// Ends the copy; whether the server thereby has heard all that was sent.
    fn finish(&mut self, stream: &mut Self::Stream, within: Duration) -> bool;

    /// How long a slot may be free before the server invalidates it; `None`: as long as it is.
    fn idle_slot_timeout(&self) -> Option<Duration> {
        None
    }

    /// Takes the free slot and gives it back at once, so that the server does not count it as idle. The walsender that held it.
    ///
    /// # Errors
    /// It cannot be taken.
    fn use_slot(&mut self, _lsn: Lsn) -> Result<Option<u32>, Error> {
        Ok(None)
    }

    /// Whether the slot has confirmed `lsn`, asked over another connection.
    ///
    /// # Errors
    /// The server cannot be asked.
    fn has_confirmed(&mut self, lsn: Lsn) -> Result<bool, Error>;

    /// The cluster's identifier; `None` before it was reached.
    fn system(&self) -> Option<&str>;

    /// Explains an error of the stream by the state of the publication.
    fn publication_gone(&mut self, error: &Error) -> Option<RunError>;

    /// Returns the fix for this error of a server that was never reached, if the error would also come tomorrow.
    fn remedy(&self, error: &Error) -> Option<&'static str>;

    /// Adds a fix to the error that ends the run, from a look at the server.
    fn advised(&self, _outbox: &Outbox, error: RunError) -> RunError {
        error
    }
}

/// A slot of Postgres.
#[derive(Debug)]
pub struct PgServer {
    target: StreamTarget,
    known: KnownServer,
}

impl PgServer {
    /// One that has not been reached yet.
    pub fn new(target: StreamTarget) -> Self {
        Self { target, known: KnownServer::default() }
    }
}

impl Server for PgServer {
    type Stream = ReplicationStream;

    fn acquire<S: Sink, C: Clock>(
        &mut self,
        relay: &mut Relay<S, C>,
        metrics: &Metrics,
    ) -> Result<Acquired<ReplicationStream>, NotAcquired> {
        acquire::acquire(&self.target, &mut self.known, relay, metrics)
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

    fn use_slot(&mut self, lsn: Lsn) -> Result<Option<u32>, Error> {
        let mut stream = acquire::use_slot(&self.target, &self.known, lsn)?;
        stream.finish(USED_WITHIN)?;
        Ok(Some(stream.backend_pid()))
    }

    fn has_confirmed(&mut self, lsn: Lsn) -> Result<bool, Error> {
        acquire::has_confirmed(&self.target, &self.known, lsn)
    }

    fn system(&self) -> Option<&str> {
        self.known.system.as_ref().map(|system| system.system_identifier.as_str())
    }

    fn publication_gone(&mut self, error: &Error) -> Option<RunError> {
        acquire::publication_gone(&self.target, &self.known, error)
    }

    fn remedy(&self, error: &Error) -> Option<&'static str> {
        let host = self.target.source.hosts.first().filter(|_| self.known.system.is_none())?;
        Some(Pooler::recognise(&host.to_string(), error).map_or(CHECK, Pooler::fix))
    }

    fn advised(&self, outbox: &Outbox, error: RunError) -> RunError {
        advice::advised(&self.target, outbox, error)
    }
}

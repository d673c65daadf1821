//! Why a stream ended, with what is known of it.
//!
//! In: what the loop saw. Out: nothing: what follows is for the supervisor to say.

use super::ProgressMismatch;
use crate::lsn::Lsn;
use crate::outbox::{BadRow, PlanError};
use crate::pg;
use crate::positions::Position;
use crate::sink::Failure;
use std::time::Duration;

/// Why a stream ended.
#[derive(Debug)]
pub enum StreamEnd {
    /// On request: everything enqueued is delivered, and the last status update says so.
    Stopped,
    /// On request, but the time ran out: so many records were not acknowledged.
    StopTimedOut {
        /// Records in flight.
        in_flight: u64,
    },
    /// The connection broke, or the server ended it.
    Disconnected(pg::Error),
    /// The sink has owed an answer for long (to a record, to a commit, to what it is asked before it takes either): the server
    /// should be free of us meanwhile.
    Stalled,
    /// Another relay may have published from the slot, for this reason: nothing of what is in flight may leave any more.
    SlotTaken(&'static str),
    /// The server shuts down, and would wait for us; or our walsender is gone, and the stream does not say so yet.
    ServerStops,
    /// A record failed: begin again from the confirmed position, with the sink recreated.
    SinkFailed(Failure),
    /// Nothing failed: the destination's transaction is given up, to begin again from the confirmed position.
    StartOver(Why),
    /// A row will never be published. Everything before it is delivered; exactly once, everything before its transaction, which
    /// is left out whole. Nothing after it was enqueued since the stream began again to find it; in other partitions, rows behind
    /// it may have been delivered before, and will be again.
    BadRow(Box<BadRowAt>),
    /// A table has come that cannot be mapped. What is delivered is as with a bad row, and the last status update says so.
    Unmappable(Box<PlanError>),
    /// A table has come that is not known, or a type has changed: the publication must be looked at again.
    PublicationChanged {
        /// The row that shows it.
        position: Position,
        /// The table or type that was not known.
        reason: String,
    },
    /// The server sent what has no place in the stream.
    Protocol(ProtocolError),
    /// The stored progress belongs to another server, or this server's progress cannot be stored.
    ProgressMismatch(ProgressMismatch),
    /// A transaction takes longer than the destination's transactions may: it was begun twice in a row, no outage is to blame,
    /// and everything before it is delivered.
    TransactionTooLong {
        /// Its records so far.
        records: u64,
        /// How long they may.
        timeout: Duration,
    },
}

/// Why a transaction of the destination's is given up though nothing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Whole transactions of Postgres are in it, and one that will not be published: they are to be committed first.
    WholeFirst,
    /// It was open for so long.
    OutOfTime(Duration),
}

/// The messages do not follow each other as the manual says.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A transaction that must come did not.
    #[error(transparent)]
    Missing(#[from] crate::positions::Missing),
    /// A message out of place.
    #[error("{message} {place}, at {at}")]
    OutOfPlace {
        /// Its name.
        message: &'static str,
        /// Where it should not be.
        place: &'static str,
        /// The last position known.
        at: Lsn,
    },
    /// A row that cannot be read.
    #[error("a row at {position} cannot be read: {reason}")]
    Row {
        /// The row.
        position: Position,
        /// The reason.
        reason: String,
    },
}

/// A bad row and its place.
#[derive(Debug)]
pub struct BadRowAt {
    /// The row.
    pub position: Position,
    /// Where its transaction's predecessor ends: the slot stays here.
    pub confirmed: Lsn,
    /// The row, with the reason why it is bad.
    pub row: BadRow,
    /// The dead-letter topic, and why it does not take the row either; `None`: it was not asked to.
    pub dead_letter_refused: Option<(String, Failure)>,
    /// `walrelay dead-letters` can read dead-letter records.
    pub readable: bool,
}

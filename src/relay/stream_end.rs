//! The reasons for which a stream ends.
//!
//! In: what the loop noticed. Out: nothing. The supervisor (`src/supervise`) decides what follows.

use super::ProgressMismatch;
use crate::lsn::{Lsn, Position};
use crate::outbox::{BadRow, PlanError};
use crate::pg;
use crate::sink::Failure;
use std::time::Duration;

/// Why a stream ended.
#[derive(Debug)]
pub enum StreamEnd {
    /// The relay was asked to stop. Every enqueued record is delivered, and the last status update confirms that.
    Stopped,
    /// The relay was asked to stop, and the time ran out before every record was acknowledged.
    StopTimedOut {
        /// Records in flight.
        in_flight: u64,
    },
    /// The connection broke, or the server ended it.
    Disconnected(pg::Error),
    /// The sink has owed an answer for long: to a record, to a commit, or to the takeover. The relay leaves the server meanwhile.
    Stalled,
    /// An answer of the server says that another relay may have published from the slot: what it says. No record in flight may leave any
    /// more.
    SlotTaken(String),
    /// The server shuts down and would wait for the relay, or our walsender is gone and the stream does not show it yet.
    ServerStops,
    /// A record failed. The relay recreates the sink and starts over from the confirmed position.
    SinkFailed(Failure),
    /// Nothing failed. The relay aborts the destination's transaction and starts over from the confirmed position.
    StartOver(Why),
    /// A row will never be published. Everything before it is delivered; exactly once, everything before its transaction, which
    /// is left out whole. No later row of its sequence was delivered. Of other sequences, rows behind it may have been, and will be
    /// again.
    BadRow(Box<BadRowAt>),
    /// A table has come that cannot be mapped. Everything before it is delivered as with a bad row, and the last status update
    /// confirms that.
    Unmappable(Box<PlanError>),
    /// An unknown table has come, or a type has changed. The relay has to look at the publication again.
    PublicationChanged {
        /// The row that shows the change.
        position: Position,
        /// The table or type that was not known.
        reason: String,
    },
    /// The server sent a message that must not come there.
    Protocol(ProtocolError),
    /// The stored progress belongs to another server, or this server's progress cannot be stored.
    ProgressMismatch(ProgressMismatch),
    /// A transaction takes longer than the destination's transactions may: it was begun twice in a row, no outage is to blame,
    /// and everything before it is delivered.
    TransactionTooLong {
        /// The number of its records so far.
        records: u64,
        /// The longest time that the destination's transactions may take.
        timeout: Duration,
    },
}

/// Why a transaction of the destination's is given up though nothing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It has whole transactions of Postgres, and one that will not be published. The whole ones have to be committed first.
    WholeFirst,
    /// It was open for this long, which is nearly its timeout.
    OutOfTime(Duration),
    /// The stored progress is of another history, and the operator has said that the slot's position counts.
    ProgressGivenUp,
}

/// The messages do not follow each other as the manual says.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A transaction that must come did not.
    #[error(transparent)]
    Missing(#[from] crate::positions::Missing),
    /// A message out of order.
    #[error("{message} {when}, at {at}")]
    OutOfOrder {
        /// Its name.
        message: &'static str,
        /// When it must not come.
        when: &'static str,
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

/// A bad row that stops the relay, and its position.
#[derive(Debug)]
pub struct BadRowAt {
    /// The row.
    pub position: Position,
    /// The confirmed position: the end of the transaction before the row's. The slot stays there.
    pub confirmed: Lsn,
    /// The row, with the reason why it is bad.
    pub row: BadRow,
    /// The dead-letter topic and the reason for which it does not take the row either; `None`: the row was not sent there.
    pub dead_letter_refused: Option<(String, Failure)>,
    /// `walrelay dead-letters` can read dead-letter records.
    pub readable: bool,
}

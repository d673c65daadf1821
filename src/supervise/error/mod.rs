//! Says why a run ended other than on request: the cause, the exit code, and the remedy. Commands use the same type.
//!
//! In: what a relay met. Out: a [`RunError`]. The errors with a text of their own are all in `cases`. The others are those of Postgres, of the
//! stream and of the destination.

mod cases;

pub(crate) use cases::LOGIN_RULE;
pub use cases::REPUBLISH_PAGE;
pub(super) use cases::{for_messages, not_sent};

use crate::lsn::Lsn;
use crate::outbox::{PlanError, TableName};
use crate::pg::{self, Recovery};
use crate::relay::{BadRowAt, ProtocolError};
use crate::remedy::Remedy;
use crate::sink::Failure;
use std::{error, fmt};

/// The kinds of ends of the process, each with its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// A restart may cure it.
    Restart,
    /// An operator must act.
    Operator,
    /// The settings are wrong; nothing was contacted, or nothing was changed.
    Settings,
    /// A second signal of this number ended it.
    Signal(u8),
}

impl ExitKind {
    /// The process's exit code.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Restart => 1,
            Self::Operator => 2,
            Self::Settings => 64,
            Self::Signal(number) => 128 + number,
        }
    }
}

/// The reason why a run or a command ended without having done its work.
#[derive(Debug)]
pub struct ExitError<Cause> {
    /// The kind of end, which has the exit code.
    pub kind: ExitKind,
    /// The event that ended it.
    pub cause: Cause,
    /// A command, SQL or a short text that fixes it.
    pub remedy: Option<Remedy>,
}

/// The reason why a run ended.
pub type RunError = ExitError<RunCause>;

/// The event that ended a run. Callers decide by all of its cases but the last one.
#[derive(Debug, thiserror::Error)]
pub enum RunCause {
    /// Postgres refuses, or speaks what it should not.
    #[error(transparent)]
    Postgres(pg::Error),
    /// No such publication.
    #[error("publication \"{publication}\" does not exist in database \"{database}\"")]
    NoPublication {
        /// Its name.
        publication: String,
        /// The database that was looked at.
        database: String,
    },
    /// The publication has no table.
    #[error("publication \"{publication}\" has no table")]
    NoTables {
        /// Its name.
        publication: String,
    },
    /// The publication gets tables by itself, and no table was asked for.
    #[error("publication \"{publication}\" has {}, so it gets tables by itself: which of them are outboxes has to be said", if *all { "all tables" } else { "all tables of a schema" })]
    Grows {
        /// Its name.
        publication: String,
        /// Whether it is of all tables; else it is of schemas.
        all: bool,
        /// Whether logical messages are published as well.
        messages: bool,
    },
    /// A table that was asked for is not in the publication.
    #[error("table {table} is not in publication \"{publication}\", which has {}", published.join(", "))]
    TableNotPublished {
        /// As it was asked for.
        table: Box<TableName>,
        /// The publication.
        publication: String,
        /// Its tables.
        published: Vec<String>,
    },
    /// A table lacks a column that is needed.
    #[error(transparent)]
    Unmappable(Box<PlanError>),
    /// No such slot; the publication is there.
    #[error("replication slot \"{slot}\" does not exist: was it never created, or has it been lost?")]
    NoSlot {
        /// Its name.
        slot: String,
        /// A slot was there before, as the publication's comment or this run knows.
        was_there: bool,
    },
    /// The slot can no longer be read.
    #[error(
        "replication slot \"{slot}\" has been invalidated ({reason}): rows committed after {confirmed} can no longer be read from it"
    )]
    SlotLost {
        /// Its name.
        slot: String,
        /// Why.
        reason: String,
        /// The last position that it confirmed.
        confirmed: Lsn,
    },
    /// A row cannot be published.
    #[error("a row of {} cannot be published: {}", row.row.table, row.row.reason)]
    BadRow {
        /// The row and where it is.
        row: Box<BadRowAt>,
    },
    /// The graceful shutdown ran out of time.
    #[error(
        "stopped before everything was acknowledged: records in flight: {in_flight}; these and those of unfinished transactions will be published again"
    )]
    StopTimedOut {
        /// Records in flight.
        in_flight: u64,
    },
    /// Everything is published, but Postgres may not have heard of it.
    #[error("stopped before Postgres confirmed {lsn}: what it has not confirmed will be published again")]
    StopUnconfirmed {
        /// The position that Postgres should have confirmed.
        lsn: Lsn,
    },
    /// The destination's client cannot work.
    #[error(transparent)]
    Sink(Failure),
    /// Any other event, which people read.
    #[error(transparent)]
    Other(Box<dyn error::Error + Send + Sync>),
}

impl<Cause: fmt::Display> fmt::Display for ExitError<Cause> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl<Cause: error::Error> error::Error for ExitError<Cause> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.cause.source()
    }
}

impl RunError {
    /// An end with the remedy for it.
    fn ended(kind: ExitKind, cause: impl Into<RunCause>, remedy: impl Into<Remedy>) -> Self {
        Self { kind, cause: cause.into(), remedy: Some(remedy.into()) }
    }

    /// The answer of Postgres that ended the run, if it was that.
    pub fn postgres(&self) -> Option<&pg::Error> {
        if let RunCause::Postgres(error) = &self.cause { Some(error) } else { None }
    }

    /// The error with a remedy that fits better than its own; `None`: its own stays.
    #[must_use]
    pub(super) fn advised(self, remedy: Option<Remedy>) -> Self {
        Self { remedy: remedy.or(self.remedy), ..self }
    }
}

impl From<String> for RunCause {
    fn from(text: String) -> Self {
        Self::Other(text.into())
    }
}

impl From<pg::Error> for RunError {
    fn from(error: pg::Error) -> Self {
        let kind = if error.recovery() == Recovery::Stop { ExitKind::Operator } else { ExitKind::Restart };
        Self { kind, remedy: cases::of_postgres(&error), cause: RunCause::Postgres(error) }
    }
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        Self { kind: ExitKind::Operator, remedy: failure.remedy.clone(), cause: RunCause::Sink(failure) }
    }
}

impl From<Box<PlanError>> for RunError {
    fn from(error: Box<PlanError>) -> Self {
        let remedy = error.hint();
        Self::ended(ExitKind::Operator, RunCause::Unmappable(error), remedy)
    }
}

impl From<ProtocolError> for RunError {
    fn from(error: ProtocolError) -> Self {
        let cause =
            Explained { text: "the stream from Postgres is not as documented".to_owned(), source: error.into() };
        Self { kind: ExitKind::Restart, cause: RunCause::Other(cause.into()), remedy: None }
    }
}

/// A text with the error that it explains.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Explained {
    pub(crate) text: String,
    pub(crate) source: Box<dyn error::Error + Send + Sync>,
}

//! Why a run ended, or did not begin: each case with its exit code and with what to do.

use crate::commands::error::CommandError;
use crate::given::SettingError;
use crate::http::BindError;
use crate::remedy::Remedy;
use crate::route::TopicError;
use crate::sink::Failure;
use crate::sink::destination::Kind;
use crate::supervise::{ExitKind, RunError};

/// Why a run did not end on request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The topic setting.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The destination's settings.
    #[error(transparent)]
    Destination(#[from] SettingError),
    /// The destination's client cannot work.
    #[error("{failure}")]
    Sink {
        /// Why.
        failure: Failure,
        /// Where.
        kind: &'static Kind,
    },
    /// The HTTP address cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The address of HTTP is none.
    #[error("cannot look up --http {address}")]
    Address {
        /// As it was given.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Threads, signals, the runtime.
    #[error("cannot {what}")]
    Start {
        /// What failed.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The run itself.
    #[error(transparent)]
    Run(#[from] RunError),
    /// `--setup`.
    #[error(transparent)]
    Setup(#[from] CommandError),
    /// The relay's thread ended without a word.
    #[error("the relay's thread ended unexpectedly")]
    Vanished,
    /// The time for a graceful shutdown is over, and the relay's thread still waits for somebody.
    #[error("stopped while waiting for an answer: what was delivered and not confirmed will be published again")]
    Unanswered,
    /// A second signal came.
    #[error("stopped at once by a second signal")]
    Killed {
        /// Its number.
        signal: u8,
    },
}

impl Error {
    /// The kind of end, which has the exit code.
    pub fn exit_kind(&self) -> ExitKind {
        match self {
            Self::Destination(SettingError::Credentials { .. }) | Self::Bind(_) | Self::Sink { .. } => {
                ExitKind::Operator
            }
            Self::Topic(_) | Self::Destination(_) | Self::Address { .. } => ExitKind::Settings,
            Self::Start { .. } | Self::Vanished | Self::Unanswered => ExitKind::Restart,
            Self::Run(error) => error.exit_kind(),
            Self::Setup(error) => error.exit_kind(),
            Self::Killed { signal } => ExitKind::Signal(*signal),
        }
    }

    /// What fixes it.
    pub fn hint(&self) -> Option<Remedy> {
        match self {
            Self::Run(error) => error.hint(),
            Self::Setup(error) => error.hint(),
            Self::Sink { failure, kind } => (kind.hint)(failure).map(Remedy::from),
            Self::Topic(error) => error.hint().map(Remedy::from),
            Self::Destination(error) => error.hint().map(Remedy::from),
            Self::Bind(_)
            | Self::Address { .. }
            | Self::Start { .. }
            | Self::Vanished
            | Self::Unanswered
            | Self::Killed { .. } => None,
        }
    }
}

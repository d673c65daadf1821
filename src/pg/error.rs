//! Errors between walrelay and a Postgres server, and how walrelay recovers from each.
//!
//! If the server refuses something, its SQLSTATE decides:
//!
//! | class or code | such as | first start | reconnect | stream |
//! |---|---|---|---|---|
//! | `08` | a pooler's refusal, a connection that broke | waits | waits | reconnects |
//! | `25` | a standby or a read-only role (`25006`), an idle session that was ended (`25P03`) | waits | waits | reconnects |
//! | `40` | a deadlock, a conflict with recovery | waits | waits | reconnects |
//! | `53`, not `53400` | disk full, out of memory, too many connections (`53300`) | waits | waits | reconnects |
//! | `55006`, `55P03` | the slot is in use, a table is locked | waits | waits | reconnects |
//! | `57` | a shutdown, a server that starts, a statement that was cancelled | waits | waits | reconnects |
//! | `58`, `XX` | an error of the operating system or of Postgres itself | waits | waits | reconnects |
//! | `28` | a password, a role, a line of `pg_hba.conf` | exit 2 | 5 minutes | - |
//! | `3D000` | the database was dropped or renamed | exit 2 | 5 minutes | - |
//! | `42501`, `55000`, `0A000`, `22`, `23`, `54000`, `P0001`, … | a right that was revoked, `ALLOW_CONNECTIONS false`, a login trigger that raises an error | exit 2 | 5 minutes | exit 2 |
//! | `42704` | the publication or the slot is gone | exit 2 | 5 minutes, and exit 2 as soon as a query shows it | exit 2 |
//! | `53400` | no replication slot is free | exit 2 | 5 minutes | exit 2 |
//! | `22P05` and any other | a row that cannot be decoded or converted | exit 2 | 5 minutes | exit 2: the same row would come again |
//!
//! "Waits" has no limit. [`ServerError::recovery`] decides the columns "first start" and "stream": [`Recovery::Reconnect`] waits or
//! reconnects, and [`Recovery::Stop`] is exit 2. The supervisor decides the column "reconnect": if the relay has streamed before, it
//! tries for 5 minutes (`CREDENTIALS_WITHIN` in `src/secret.rs`), since somebody may be changing the server's settings.
//!
//! Invariant: control flow branches on [`Error`] and on SQLSTATE. Only `pooler` looks at a text, for a hint or a finding: a
//! pooler has no codes of its own.
//! Specification: PostgreSQL manual, section 54.8 "Error and Notice Message Fields", appendix A "Error Codes".

use super::frame::FrameError;
use super::lock_holder::LockHolder;
use super::source::{SourceError, TargetSessionAttrs};
use crate::wire::DecodeError;
use std::fmt;
use std::io;

/// The reaction to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// The relay connects again, after a pause.
    Reconnect,
    /// The process ends. A restart may help.
    Restart,
    /// The process ends. An operator must act.
    Stop,
}

/// A failure of a connection, or of a query.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection to any of the hosts.
    #[error("cannot connect to Postgres at {host}")]
    Connect {
        /// Host and port, or socket.
        host: String,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// An established connection broke.
    #[error("the connection to Postgres broke while {doing}")]
    Io {
        /// The action under way.
        doing: &'static str,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The server has closed the stream after a time without an update.
    #[error(
        "Postgres ended the stream: it heard nothing from walrelay for {silent_s} s, and gives up after {limit_s} s (its wal_sender_timeout or tcp_user_timeout)"
    )]
    Unheard {
        /// How long the server heard nothing, in seconds.
        silent_s: u64,
        /// The server's limit, in seconds.
        limit_s: u64,
    },
    /// The server refused a query or a command.
    #[error("{doing}: {error}")]
    Server {
        /// The query, or a name for it.
        doing: String,
        /// The server's answer.
        error: Box<ServerError>,
    },
    /// The server is up, and refuses the login.
    #[error("Postgres at {host} refuses the connection: {error}")]
    LoginRefused {
        /// Host and port.
        host: String,
        /// The server's answer.
        error: Box<ServerError>,
    },
    /// The server ended the copy or the connection regularly, such as at a shutdown.
    #[error("Postgres ended the stream")]
    Ended,
    /// The server has been silent for longer than allowed: its `wal_sender_timeout`, or a multiple of it.
    #[error("Postgres has been silent for {seconds} s")]
    Silent {
        /// The allowed time.
        seconds: u64,
    },
    /// A lock on a published table keeps the server from describing the publication.
    #[error("table {table} is locked by {holder}")]
    Locked {
        /// `schema.table`.
        table: String,
        /// The session that has the lock.
        holder: Box<LockHolder>,
    },
    /// The slot's creation has begun, and ends once the transactions have ended that were open at its beginning.
    #[error("replication slot \"{slot}\" is still being created")]
    SlotUnfinished {
        /// Its name.
        slot: String,
    },
    /// The server at this address was the primary, and is a standby.
    #[error("Postgres is a standby there now, and has not been promoted: {refusal}")]
    NotPromoted {
        /// The action that a standby refuses.
        refusal: String,
    },
    /// TLS is required, but the server has none, or it cannot be set up.
    #[error("TLS to Postgres at {host}: {reason}")]
    Tls {
        /// Host and port.
        host: String,
        /// The reason.
        reason: String,
    },
    /// TLS is required or preferred, and the server's certificate has a key that is not supported.
    #[error("TLS to Postgres at {host}: {reason}")]
    UnsupportedKey {
        /// Host and port.
        host: String,
        /// The key, and those that are supported.
        reason: String,
    },
    /// A file that TLS needs cannot be used.
    #[error("cannot use {what} {path}: {reason}")]
    File {
        /// `root certificate`, `client certificate`, `client key`.
        what: &'static str,
        /// Its path.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The server asks for a proof of identity that walrelay does not have, or cannot give.
    #[error("authentication at {host}: {reason}")]
    Authentication {
        /// Host and port.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The server asks for more iterations of SCRAM than can be computed.
    #[error(
        "authentication at {host}: the server asks for {asked} iterations of SCRAM, of which walrelay computed {computed} in {seconds} s"
    )]
    SlowScram {
        /// Host and port.
        host: String,
        /// The server's number: `scram_iterations` at the time when the password was set.
        asked: u32,
        /// As many were computed.
        computed: u32,
        /// In this time, in seconds.
        seconds: u64,
    },
    /// The server asks for the password in clear text, over a connection that others can read.
    #[error("Postgres at {host} asks for the password in clear text, over a connection without TLS: it is not sent")]
    ClearText {
        /// Host and port.
        host: String,
    },
    /// A file or program that the source's settings name cannot be read.
    #[error("{}", .0.part)]
    Source(#[source] Box<SourceError>),
    /// A query beside the stream reached another server than the stream.
    #[error(
        "Postgres at {host} is another server than the one that the stream comes from: several answer at this address"
    )]
    OtherServer {
        /// Host and port of the query.
        host: String,
    },
    /// All hosts answered, but none is as `target_session_attrs` requires.
    #[error("no host is what target_session_attrs={wanted} asks for: tried {hosts}")]
    WrongSession {
        /// The last host that answered.
        hosts: String,
        /// The setting's value.
        wanted: TargetSessionAttrs,
    },
    /// The answer has more bytes than any answer to this query needs.
    #[error("the answer of Postgres is larger than {limit} bytes: {doing}")]
    Oversized {
        /// The query, or a name for it.
        doing: String,
        /// The limit.
        limit: usize,
    },
    /// The server sent something malformed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The server sent a frame that cannot be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The server sent a message that must not come now.
    #[error("unexpected message {:?} while {doing}", char::from(*.tag))]
    Unexpected {
        /// The message's tag.
        tag: u8,
        /// The action under way.
        doing: &'static str,
    },
}

/// The fields of an ErrorResponse that walrelay uses.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `PANIC`.
    pub severity: String,
    /// SQLSTATE: five characters.
    pub code: String,
    /// The message.
    pub message: String,
    /// More about the message. Empty: the server sent none.
    pub detail: String,
    /// The server's hint. Empty: the server sent none.
    pub hint: String,
    /// The function of the server that reported the error. Its name is never translated.
    pub routine: String,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        write!(f, " [SQLSTATE {}]", self.code)
    }
}

impl std::error::Error for ServerError {}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self}", self.severity)
    }
}

/// The SQLSTATEs on which walrelay's behaviour depends.
pub mod sqlstate {
    /// `invalid_password`.
    pub const INVALID_PASSWORD: &str = "28P01";
    /// `invalid_authorization_specification`: no line of `pg_hba.conf`, no such role, or a certificate of another role.
    pub const INVALID_AUTHORIZATION: &str = "28000";
    /// `read_only_sql_transaction`: the server is a standby, or the role is read-only.
    pub const READ_ONLY_TRANSACTION: &str = "25006";
    /// `object_in_use`: the slot is active.
    pub const OBJECT_IN_USE: &str = "55006";
    /// `undefined_object`: there is no such slot or publication.
    pub const UNDEFINED_OBJECT: &str = "42704";
    /// `lock_not_available`: `lock_timeout` has passed.
    pub const LOCK_NOT_AVAILABLE: &str = "55P03";
    /// `insufficient_privilege`.
    pub const INSUFFICIENT_PRIVILEGE: &str = "42501";
    /// `object_not_in_prerequisite_state`: `wal_level` is not logical, the slot is invalid.
    pub const NOT_IN_PREREQUISITE_STATE: &str = "55000";
    /// `invalid_catalog_name`: no such database.
    pub const NO_DATABASE: &str = "3D000";
    /// `untranslatable_character`: a text has bytes that are not characters of the database's encoding.
    pub const UNTRANSLATABLE_CHARACTER: &str = "22P05";
    /// `cannot_connect_now`: the server starts, recovers or shuts down.
    pub const CANNOT_CONNECT_NOW: &str = "57P03";
    /// `too_many_connections`: no connection is free, or no walsender.
    pub const TOO_MANY_CONNECTIONS: &str = "53300";
    /// `query_canceled`: `statement_timeout` has passed, or somebody has cancelled the statement.
    pub const QUERY_CANCELED: &str = "57014";
    /// `configuration_limit_exceeded`: no replication slot is free.
    pub const LIMIT_EXCEEDED: &str = "53400";
    /// `program_limit_exceeded`: a row's text is longer than Postgres can send.
    pub const PROGRAM_LIMIT_EXCEEDED: &str = "54000";
    /// Class 57, `operator_intervention`: the server shuts down, or somebody ended the session.
    pub const OPERATOR_INTERVENTION: &str = "57";
}

/// The server's function that reports that a slot of `synchronized_standby_slots` keeps a walsender from sending. Its SQLSTATE is not
/// enough, since many other notices have the same.
const STANDBY_SLOTS: &str = "StandbySlotsHaveCaughtup";

/// The server's function that reports that no replication slot is free. `temp_file_limit` has the same SQLSTATE.
const CREATE_SLOT: &str = "ReplicationSlotCreate";

impl ServerError {
    /// Whether Postgres waits for a standby or its slot, one of which is missing. No row was skipped, and the wait may end.
    pub fn is_of_standby_slots(&self) -> bool {
        self.routine == STANDBY_SLOTS
    }

    /// Whether the role lacks a right. An error of this SQLSTATE for another reason, as an output plugin that
    /// `output_plugin_libraries` does not have, comes with the server's own hint, which then is the one to follow.
    pub fn lacks_a_right(&self) -> bool {
        self.code == sqlstate::INSUFFICIENT_PRIVILEGE && self.hint.is_empty()
    }

    /// Whether no replication slot is free.
    pub fn lacks_a_free_slot(&self) -> bool {
        self.code == sqlstate::LIMIT_EXCEEDED && self.routine == CREATE_SLOT
    }

    /// The reaction, by SQLSTATE: see the table at the beginning of this file.
    pub fn recovery(&self) -> Recovery {
        match self.code.get(..2) {
            Some("08" | "25" | "40" | "53" | "57" | "58" | "XX") if self.code != sqlstate::LIMIT_EXCEEDED => {
                Recovery::Reconnect
            }
            _ if [sqlstate::OBJECT_IN_USE, sqlstate::LOCK_NOT_AVAILABLE].contains(&self.code.as_str())
                || self.is_of_standby_slots() =>
            {
                Recovery::Reconnect
            }
            _ => Recovery::Stop,
        }
    }
}

impl Error {
    /// The reaction to the error.
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Connect { .. }
            | Self::Io { .. }
            | Self::Ended
            | Self::Silent { .. }
            | Self::Unheard { .. }
            | Self::Locked { .. }
            | Self::SlotUnfinished { .. }
            | Self::NotPromoted { .. }
            | Self::OtherServer { .. }
            | Self::WrongSession { .. } => Recovery::Reconnect,
            Self::Server { error, .. } | Self::LoginRefused { error, .. } => error.recovery(),
            Self::Tls { .. }
            | Self::UnsupportedKey { .. }
            | Self::File { .. }
            | Self::Authentication { .. }
            | Self::SlowScram { .. }
            | Self::ClearText { .. }
            | Self::Source(_)
            // The server would send the same frame again.
            | Self::Frame(FrameError::TooLarge { .. }) => Recovery::Stop,
            Self::Oversized { .. } | Self::Decode(_) | Self::Frame(_) | Self::Unexpected { .. } => Recovery::Restart,
        }
    }

    /// Whether the error is about passwords, certificates or their files. If they were right before, somebody may be replacing them.
    pub fn is_of_credentials(&self) -> bool {
        let is_local = matches!(
            self,
            Self::Tls { .. }
                | Self::UnsupportedKey { .. }
                | Self::File { .. }
                | Self::Authentication { .. }
                | Self::SlowScram { .. }
                | Self::ClearText { .. }
                | Self::Source(_)
        );
        is_local || matches!(self.code(), Some(sqlstate::INVALID_PASSWORD | sqlstate::INVALID_AUTHORIZATION))
    }

    /// Whether the server has ended the session by an error of this SQLSTATE.
    pub fn is_session_end_by(&self, code: &str) -> bool {
        let Self::Io { source, .. } = self else { return false };
        source.get_ref().and_then(|cause| cause.downcast_ref::<ServerError>()).is_some_and(|cause| cause.code == code)
    }

    /// The SQLSTATE. `None`: the server has not refused anything.
    pub fn code(&self) -> Option<&str> {
        self.server_error().map(|error| error.code.as_str())
    }

    /// The server's answer. `None`: the server has not refused anything.
    pub fn server_error(&self) -> Option<&ServerError> {
        if let Self::Server { error, .. } | Self::LoginRefused { error, .. } = self { Some(error) } else { None }
    }
}

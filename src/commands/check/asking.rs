//! Whether the relay could ask who holds its slot while it reads it: over a replication connection beside its stream, and over an ordinary one.
//!
//! In: where the server is. Out: for both ways whether the question was answered, or why not. A replication connection stands in for the
//! relay's stream meanwhile, unless a relay has one.

use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, server};
use crate::supervise::ask_holder;

/// The outcome of both ways.
#[derive(Debug)]
pub(super) struct Asking {
    /// Over a replication connection beside a stream.
    pub(super) beside_stream: Result<(), pg::Error>,
    /// Over one more ordinary connection.
    pub(super) ordinary: Result<(), pg::Error>,
}

/// Opens a replication connection, as `run` does, and asks what only a walsender answers: the cluster's system identifier. Then tries both ways
/// to ask who holds the slot. `is_read`: a relay has its stream already.
///
/// # Errors
/// No replication connection can be had.
pub(super) fn replication(source: &Source, slot: &str, is_read: bool) -> Result<(String, Asking), pg::Error> {
    let mut first = Connection::open(source, Purpose::Replication)?;
    let system_identifier = server::identify_system(&mut first)?.system_identifier;
    let ask = |purpose| ask_holder(&mut Connection::open(source, purpose)?, slot);
    let beside_stream = if is_read { ask_holder(&mut first, slot) } else { ask(Purpose::Replication) };
    Ok((system_identifier, Asking { beside_stream, ordinary: ask(Purpose::Control) }))
}

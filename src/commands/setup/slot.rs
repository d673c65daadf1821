//! Makes the slot, and says what it waits for meanwhile.
//!
//! In: a replication connection. Out: the LSN from which the slot reads, and the snapshot that meets it there. Postgres makes a logical slot only once every
//! transaction that was open when it began has ended, however long that takes: so the statement runs in a thread, and a
//! second session looks on. Invariant: when this is left, by an error or by the process's end, no half-made slot stays: the
//! statement is cancelled, or the server notices that its client is gone.

use super::SetupRequest;
use super::plan::Step;
use super::{ExportedSnapshot, LOOK_EVERY, Voice, Wait, notices_our_end};
use crate::commands::error::CommandError;
use crate::commands::output::{duration, session};
use crate::lsn::Lsn;
use crate::pg::catalog::{self, PreparedTransaction, ServerSession};
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, Row, identifier, literal};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long a cancelled statement may take to end.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// A bound that is none.
const PATIENCE: Duration = Duration::from_hours(365 * 24);

type Outcome = Result<Vec<Row>, pg::Error>;

/// Makes the slot of `step` over `connection`, a replication connection. The snapshot lasts as long as that connection.
pub(super) fn make(
    connection: Connection,
    request: &SetupRequest,
    step: &Step,
    voice: &mut Voice<'_>,
) -> Result<(ExportedSnapshot, Lsn), CommandError> {
    let sql = command(&request.slot, request.failover);
    let (connection, outcome) = make_by(connection, &request.source, sql, voice)?;
    let rows = outcome.map_err(|error| step.refused(error))?;
    let lsn = rows.first().and_then(|row| row.parse(1)).unwrap_or_default();
    let snapshot = rows.first().and_then(|row| row.text(2)).unwrap_or_default().to_owned();
    Ok((ExportedSnapshot { connection, snapshot, files: BTreeMap::new() }, lsn))
}

/// Makes a temporary slot over `connection`, a replication connection, with which it ends. Returns the LSN from which the slot reads.
/// `wait` takes a line about what is waited for.
pub(in crate::commands) fn make_temporary(
    connection: Connection,
    source: &Source,
    slot: &str,
    wait: &mut dyn FnMut(&str),
    stop: &dyn Fn() -> bool,
) -> Result<(Connection, Lsn), CommandError> {
    let sql = format!("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT", identifier(slot));
    let mut voice = Voice { say: &mut |_| Ok(()), wait, stop };
    let (connection, outcome) = make_by(connection, source, sql, &mut voice)?;
    let lsn = outcome?.first().and_then(|row| row.parse(1)).unwrap_or_default();
    Ok((connection, lsn))
}

/// Runs the command that makes a slot, in a thread, while the onlooker says what it waits for.
fn make_by(
    mut connection: Connection,
    source: &Source,
    sql: String,
    voice: &mut Voice<'_>,
) -> Result<(Connection, Outcome), CommandError> {
    notices_our_end(&mut connection)?;
    let pid = connection.backend_pid();
    let (sender, outcome) = channel();
    std::thread::spawn(move || {
        let mut connection = connection;
        let outcome = connection.query_within(&sql, PATIENCE);
        // Nobody listens any more when the wait was given up.
        drop(sender.send((connection, outcome)));
    });
    Onlooker { source, connection: None, pid }.watch(&outcome, voice)
}

/// The replication command. Before version 15 it knows no options in parentheses, and later ones still take those of before.
fn command(slot: &str, failover: bool) -> String {
    let options = if failover { "(SNAPSHOT 'export', FAILOVER true)" } else { "EXPORT_SNAPSHOT" };
    format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}", identifier(slot))
}

/// The second session; opened when it is needed.
struct Onlooker<'a> {
    source: &'a Source,
    connection: Option<Connection>,
    /// The server process that makes the slot.
    pid: u32,
}

impl Onlooker<'_> {
    fn watch(
        &mut self,
        outcome: &Receiver<(Connection, Outcome)>,
        voice: &mut Voice<'_>,
    ) -> Result<(Connection, Outcome), CommandError> {
        let mut wait = Wait::begin();
        loop {
            match outcome.recv_timeout(LOOK_EVERY) {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Disconnected) => return Err(pg::Error::Ended.into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if wait.report(voice, |waited| self.words(waited)).is_err() {
                return self.cancel(outcome);
            }
        }
    }

    /// Ends the statement. It may have come to its end just before: then the slot is there, and whole.
    fn cancel(&mut self, outcome: &Receiver<(Connection, Outcome)>) -> Result<(Connection, Outcome), CommandError> {
        let sql = format!("SELECT pg_catalog.pg_cancel_backend({})", self.pid);
        if self.ask(|connection| connection.query(&sql)).is_err() {
            return Err(CommandError::interrupted());
        }
        match outcome.recv_timeout(CANCEL_PATIENCE) {
            Ok((connection, Ok(rows))) => Ok((connection, Ok(rows))),
            Ok((_, Err(_))) | Err(_) => Err(CommandError::interrupted()),
        }
    }

    /// Says which transactions delay the slot.
    fn words(&mut self, waited: Duration) -> Vec<String> {
        let pid = self.pid;
        let found = self
            .ask(|connection| Ok((catalog::blockers(connection, pid)?, catalog::prepared_blockers(connection, pid)?)));
        match found {
            Ok((sessions, prepared)) => words(waited, &sessions, &prepared),
            Err(error) => vec![format!(
                "waiting for {}: the slot can be created once older transactions have ended (which they are cannot be seen: {error})",
                duration(waited)
            )],
        }
    }

    fn ask<T>(&mut self, question: impl FnOnce(&mut Connection) -> Result<T, pg::Error>) -> Result<T, pg::Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.source, Purpose::Control)?,
        };
        let answer = question(&mut connection)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

fn words(waited: Duration, sessions: &[ServerSession], prepared: &[PreparedTransaction]) -> Vec<String> {
    let waited = duration(waited);
    let mut lines: Vec<String> = sessions
        .iter()
        .map(|holder| {
            format!(
                "waiting for {waited}: the slot can be created once the transaction of {} has ended; to end it: SELECT pg_terminate_backend({});",
                session(holder),
                holder.pid
            )
        })
        .collect();
    lines.extend(prepared.iter().map(|holder| {
        format!(
            "waiting for {waited}: the slot can be created once prepared transaction {} has ended (by {} in database {}, {} ago); to end it, there: COMMIT PREPARED or ROLLBACK PREPARED {};",
            literal(&holder.gid), holder.owner, holder.database, duration(holder.age), literal(&holder.gid)
        )
    }));
    if lines.is_empty() {
        lines.push(format!("waiting for {waited}: the slot can be created once older transactions have ended"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transaction_that_holds_the_slot_up_is_named_with_what_ends_it() {
        let holder = ServerSession {
            pid: 42,
            user: Some("app".to_owned()),
            application: None,
            client: None,
            state: Some("idle in transaction".to_owned()),
            transaction_age: Some(Duration::from_mins(5)),
            statement_age: None,
        };
        let prepared = PreparedTransaction {
            gid: "it's".to_owned(),
            owner: "app".to_owned(),
            database: "shop".to_owned(),
            age: Duration::from_secs(7),
        };
        let lines = words(Duration::from_secs(2), &[holder], &[prepared]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains("process 42 (user app, idle in transaction, transaction open for 5 min 0 s)"));
        assert!(lines[0].contains("pg_terminate_backend(42)"));
        assert!(lines[1].contains("'it''s'") && lines[1].contains("database shop, 7 s ago"));
    }

    #[test]
    fn a_wait_is_reported_also_when_nobody_is_seen_to_cause_it() {
        assert_eq!(words(Duration::from_secs(3), &[], &[]).len(), 1);
    }
}

//! Queries who holds the slot, on a thread of its own: see [`relay::HeldSlot`](crate::relay::HeldSlot).
//!
//! In: requests. Out: answers, each with the time of its query. The connection is to the same running server, in replication mode:
//! other than an ordinary one, it does not delay the server's shutdown while it is idle. While it is open, it counts for
//! `max_wal_senders`. It is closed a few seconds after the last query.

use super::StreamTarget;
use crate::lsn::Lsn;
use crate::pg::{Connection, Error, Purpose, literal, server, sqlstate};
use crate::relay::{ASKS_EVERY, AskHolder, Holder, HolderAnswer};
use crate::sink::hold::since_boot;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// The longest time for an answer. A later answer proves nothing.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The number of queries after one request.
const BURST: u32 = 8;

/// The time after the last query at which the connection is closed.
const CLOSED_AFTER: Duration = Duration::from_secs(5);

/// The most answers that wait to be read.
const MOST_ANSWERS: usize = 256;

/// The relay's side.
#[derive(Debug)]
pub(super) struct SlotHolder {
    questions: SyncSender<()>,
    answers: Receiver<HolderAnswer>,
}

impl SlotHolder {
    /// Starts the thread, for the slot of `target` on the server that was `started_at`.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(super) fn start(target: &StreamTarget, started_at: &str) -> Result<Self, Error> {
        let ((questions, asked), (answering, answers)) = (sync_channel(1), sync_channel(MOST_ANSWERS));
        let (target, started_at) = (target.clone(), started_at.to_owned());
        let asking = move || HolderThread { target, started_at, connection: None }.run(&asked, &answering);
        let spawned = thread::Builder::new().name("slot-holder".to_owned()).spawn(asking);
        spawned.map_err(|source| Error::Io { doing: "starting a thread", source })?;
        Ok(Self { questions, answers })
    }
}

impl AskHolder for SlotHolder {
    fn ask(&mut self, _now: Duration) {
        // If the channel is full, a query is about to be sent anyway.
        let _asked = self.questions.try_send(()).is_ok();
    }

    fn answer(&mut self) -> Option<HolderAnswer> {
        self.answers.try_recv().ok()
    }
}

/// The thread's side.
struct HolderThread {
    target: StreamTarget,
    started_at: String,
    connection: Option<Connection>,
}

impl HolderThread {
    fn run(&mut self, asked: &Receiver<()>, answering: &SyncSender<HolderAnswer>) {
        let mut left = 0;
        loop {
            match asked.recv_timeout(if left > 0 { ASKS_EVERY } else { CLOSED_AFTER }) {
                Ok(()) => left = BURST,
                Err(RecvTimeoutError::Timeout) if left > 0 => left -= 1,
                Err(RecvTimeoutError::Timeout) => {
                    self.connection = None;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let asked = since_boot();
            let holder = match self.ask() {
                Ok(holder) => Some(holder),
                Err(error) => {
                    tracing::debug!(%error, "who holds the slot cannot be asked");
                    self.connection = None;
                    holder_in(&error)
                }
            };
            if let Some(holder) = holder {
                // If the relay reads no answers for a minute, newer ones are dropped. The oldest ones remain, and they prove nothing any
                // more.
                let _full = answering.try_send(HolderAnswer { asked, holder }).is_err();
            }
        }
    }

    fn ask(&mut self) -> Result<Holder, Error> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(server::open_beside(
                &self.target.source,
                Purpose::Replication,
                &self.started_at,
            )?),
        };
        let sql = format!(
            "SELECT active_pid, confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = {}",
            literal(&self.target.slot)
        );
        let rows = connection.query_within(&sql, ANSWERED_WITHIN)?;
        let Some(row) = rows.first() else { return Ok(Holder::Unknown) };
        let nobody = || row.parse::<Lsn>(1).map_or(Holder::Unknown, Holder::Nobody);
        Ok(row.parse(0).map_or_else(nobody, Holder::Walsender))
    }
}

/// The slot's holder, as far as an error shows it.
fn holder_in(error: &Error) -> Option<Holder> {
    if matches!(error, Error::OtherServer { .. }) {
        return Some(Holder::Unknown);
    }
    (error.code() == Some(sqlstate::CANNOT_CONNECT_NOW)).then_some(Holder::NotAccepting)
}

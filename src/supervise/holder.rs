//! Queries who holds the slot, on a thread of its own: see [`relay::HeldSlot`](crate::relay::HeldSlot).
//!
//! In: requests. Out: answers, each with the time of its query, or why there is none. The connection is to the same running server, in
//! replication mode: other than an ordinary one, it does not delay the server's shutdown while it is idle. While it is open, it counts for
//! `max_wal_senders`. It is closed a few seconds after the last query, or when the relay needs a walsender for its stream.
//!
//! If the server has no walsender to spare (53300), each query takes an ordinary connection, which is closed with the answer. Each of them is
//! a log-in, so there is one a second at most.

use super::StreamTarget;
use crate::lsn::Lsn;
use crate::pg::{Connection, Error, Purpose, literal, server, sqlstate};
use crate::relay::{ASKS_EVERY, AskHolder, Holder, HolderAnswer, PLAIN_EVERY};
use crate::sink::hold::since_boot;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The longest time for an answer. A later answer proves nothing.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// For so long after a request, the thread goes on asking.
const BURST: Duration = ASKS_EVERY.saturating_mul(8);

/// The time after the last query at which the connection is closed.
const CLOSED_AFTER: Duration = Duration::from_secs(5);

/// The most answers that wait to be read.
const MOST_ANSWERS: usize = 256;

/// The relay's side.
#[derive(Debug)]
pub(super) struct SlotHolder {
    questions: SyncSender<()>,
    answers: Receiver<HolderAnswer>,
    shared: Arc<Shared>,
}

/// The state that both sides share.
#[derive(Debug, Default)]
struct Shared {
    /// Why the last query has no answer.
    unanswered: Mutex<Option<String>>,
    /// Queries may not take a walsender any more.
    spares_walsenders: AtomicBool,
}

impl Shared {
    fn unanswered(&self) -> MutexGuard<'_, Option<String>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotHolder {
    /// Starts the thread, for the slot of `target` on the server that was `started_at`. `own`: the relay's walsender.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(super) fn start(target: &StreamTarget, started_at: &str, own: u32) -> Result<Self, Error> {
        let ((questions, asked), (answering, answers)) = (sync_channel(1), sync_channel(MOST_ANSWERS));
        let shared = Arc::new(Shared::default());
        let mut thread = HolderThread {
            target: target.clone(),
            started_at: started_at.to_owned(),
            own,
            connection: None,
            plain_at: None,
            shared: Arc::clone(&shared),
        };
        let asking = move || thread.run(&asked, &answering);
        let spawned = thread::Builder::new().name("slot-holder".to_owned()).spawn(asking);
        spawned.map_err(|source| Error::Io { doing: "starting a thread", source })?;
        Ok(Self { questions, answers, shared })
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

    fn why_unanswered(&self) -> Option<String> {
        self.shared.unanswered().clone()
    }

    fn give_walsender_back(&mut self) {
        self.shared.spares_walsenders.store(true, Ordering::Release);
        // The thread notices now. If it is in the middle of a query, it notices behind that.
        let _asked = self.questions.try_send(()).is_ok();
    }
}

/// The thread's side.
struct HolderThread {
    target: StreamTarget,
    started_at: String,
    /// The relay's walsender.
    own: u32,
    connection: Option<Connection>,
    /// When an ordinary connection was opened last.
    plain_at: Option<Duration>,
    shared: Arc<Shared>,
}

impl HolderThread {
    fn run(&mut self, asked: &Receiver<()>, answering: &SyncSender<HolderAnswer>) {
        let mut until = Duration::ZERO;
        loop {
            let now = since_boot();
            match asked.recv_timeout(if now < until { ASKS_EVERY } else { CLOSED_AFTER }) {
                Ok(()) => until = since_boot() + BURST,
                Err(RecvTimeoutError::Timeout) if now < until => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.connection = None;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let asked = since_boot();
            let answer = match self.ask(asked) {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::debug!(%error, "who holds the slot cannot be asked");
                    self.connection = None;
                    *self.shared.unanswered() = Some(super::chain(&error));
                    holder_in(&error).map(|holder| (holder, None))
                }
            };
            if let Some((holder, who)) = answer {
                *self.shared.unanswered() = None;
                // If the relay reads no answers for a minute, newer ones are dropped. The oldest ones remain, and they prove nothing any
                // more.
                let _full = answering.try_send(HolderAnswer { asked, holder, who }).is_err();
            }
        }
    }

    /// Asks over the walsender's connection that there is, over a new one, or over an ordinary one. `None`: it is not time for that yet.
    fn ask(&mut self, now: Duration) -> Result<Option<(Holder, Option<String>)>, Error> {
        let spares_walsenders = self.shared.spares_walsenders.load(Ordering::Acquire);
        if spares_walsenders {
            self.connection = None;
        }
        let is_early = self.plain_at.is_some_and(|at| now < at + PLAIN_EVERY);
        if self.connection.is_none() && is_early {
            return Ok(None);
        }
        if self.connection.is_none() && !spares_walsenders {
            match self.open(Purpose::Replication) {
                Ok(connection) => self.connection = Some(connection),
                Err(error) if error.code() == Some(sqlstate::TOO_MANY_CONNECTIONS) => {}
                Err(error) => return Err(error),
            }
        }
        let (slot, own) = (&self.target.slot, self.own);
        if let Some(connection) = &mut self.connection {
            return holder(connection, slot, own).map(Some);
        }
        self.plain_at = Some(now);
        let mut plain = self.open(Purpose::Control)?;
        holder(&mut plain, slot, own).map(Some)
    }

    fn open(&self, purpose: Purpose) -> Result<Connection, Error> {
        server::open_beside(&self.target.source, purpose, &self.started_at)
    }
}

/// The slot's holder. If that is another process than `own`, who it is as well, as far as the server shows it.
fn holder(connection: &mut Connection, slot: &str, own: u32) -> Result<(Holder, Option<String>), Error> {
    let sql = format!(
        "SELECT active_pid, confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = {}",
        literal(slot)
    );
    let rows = connection.query_within(&sql, ANSWERED_WITHIN)?;
    let Some(row) = rows.first() else { return Ok((Holder::Unknown, None)) };
    let Some(pid) = row.parse(0) else {
        return Ok((row.parse::<Lsn>(1).map_or(Holder::Unknown, Holder::Nobody), None));
    };
    let who = if pid == own { None } else { who(connection, pid).unwrap_or_default() };
    Ok((Holder::Walsender(pid), who))
}

/// Asks who holds the slot as a relay does that reads it.
///
/// # Errors
/// The connection broke, or the server does not answer.
pub fn ask_holder(connection: &mut Connection, slot: &str) -> Result<(), Error> {
    holder(connection, slot, 0).map(drop)
}

/// The application and the address of a process, as far as the server shows them to this role.
fn who(connection: &mut Connection, pid: u32) -> Result<Option<String>, Error> {
    let sql = format!(
        "SELECT application_name, pg_catalog.host(client_addr) FROM pg_catalog.pg_stat_activity WHERE pid = {pid}"
    );
    let rows = connection.query_within(&sql, ANSWERED_WITHIN)?;
    let Some(row) = rows.first() else { return Ok(None) };
    let application = row.text(0).filter(|name| !name.is_empty());
    let named = application.map(|name| format!("application_name {name}"));
    let parts: Vec<String> = named.into_iter().chain(row.text(1).map(|address| format!("from {address}"))).collect();
    Ok((!parts.is_empty()).then(|| parts.join(", ")))
}

/// The slot's holder, as far as an error shows it.
fn holder_in(error: &Error) -> Option<Holder> {
    if matches!(error, Error::OtherServer { .. }) {
        return Some(Holder::Unknown);
    }
    (error.code() == Some(sqlstate::CANNOT_CONNECT_NOW)).then_some(Holder::NotAccepting)
}

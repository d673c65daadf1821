//! [`RowNoter`]: notes the skipped rows of a slot on a thread of its own: see [`relay::NoteSkipped`](crate::relay::NoteSkipped).
//!
//! ```text
//!  relay: row, row, row ──► waiting ids ──► thread: one transaction for all that wait ──► committed: n rows ──► relay
//! ```
//!
//! In: ids. Out: how many of the rows are noted, or why the last attempt failed. However many rows wait, only as many ids are kept as a note has
//! room for. The thread reads the note that is there each time, since somebody may have taken it away. A failed attempt is repeated after a
//! growing pause, without end. The connection is a plain one, which delays a smart shutdown of the server, so it lives two seconds at most.
//! While there is a stream, the note goes to the server that the stream comes from. A standby takes no notes, and no `prune` can ask it.
//!
//! Invariant: a row counts as noted once its note is committed and, if the slot is synchronized, once the standbys that may take the slot over
//! have the note: otherwise a failover could have the position without the note.

use crate::metrics::Metrics;
use crate::pg::skipped_rows::{self, SkippedRows};
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, identifier, server, sqlstate};
use crate::relay::NoteSkipped;
use crate::remedy::Remedy;
use crate::sink::{Failure, FailureClass};
use crate::supervise::chain;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest life of a connection.
const CONNECTION_LIVES: Duration = Duration::from_secs(2);

/// The pause after the first failed attempt, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The time between two questions whether the standbys have a note.
const STANDBY_CHECK: Duration = Duration::from_millis(20);

/// The relay's side.
#[derive(Debug)]
pub(crate) struct RowNoter(Arc<Shared>);

/// The state that both sides use.
#[derive(Debug, Default)]
struct Shared {
    rows: Mutex<NoterState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct NoterState {
    /// The ids of the rows that wait.
    waiting: SkippedRows,
    /// The number of rows that were taken, and of those that are noted.
    taken: u64,
    noted: u64,
    failure: Option<Failure>,
    /// The relay is gone.
    is_closed: bool,
}

impl Shared {
    fn rows(&self) -> MutexGuard<'_, NoterState> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RowNoter {
    /// Starts the thread, for the rows of `slot`. `metrics`: knows the server that the stream comes from.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(crate) fn start(source: &Source, slot: &str, metrics: Arc<Metrics>) -> Result<Self, pg::Error> {
        let shared = Arc::new(Shared::default());
        let thread = NoterThread {
            shared: Arc::clone(&shared),
            source: source.clone(),
            slot: slot.to_owned(),
            metrics,
            connection: None,
        };
        let spawned = thread::Builder::new().name("skipped-rows".to_owned()).spawn(move || thread.run());
        spawned.map_err(|source| pg::Error::Io { doing: "starting a thread", source })?;
        Ok(Self(shared))
    }
}

impl NoteSkipped for RowNoter {
    fn note(&mut self, id: Option<&str>) {
        let mut rows = self.0.rows();
        rows.waiting.add(id);
        rows.taken += 1;
        self.0.changed.notify_one();
    }

    fn noted(&mut self) -> u64 {
        self.0.rows().noted
    }

    fn failure(&mut self) -> Option<Failure> {
        self.0.rows().failure.clone()
    }
}

impl Drop for RowNoter {
    fn drop(&mut self) {
        self.0.rows().is_closed = true;
        self.0.changed.notify_one();
    }
}

/// The thread's side.
struct NoterThread {
    shared: Arc<Shared>,
    source: Source,
    slot: String,
    metrics: Arc<Metrics>,
    /// The connection, and when it ends.
    connection: Option<(Connection, Instant)>,
}

impl NoterThread {
    fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        while let Some((rows, up_to)) = self.next_rows() {
            match self.note(&rows) {
                Ok(()) => {
                    let mut state = self.shared.rows();
                    (state.noted, state.failure) = (up_to, None);
                    pause = FIRST_PAUSE;
                }
                Err(error) => {
                    self.connection = None;
                    tracing::debug!(error = chain(&error), retry_in = ?pause, "skipped rows are not noted");
                    let failure = self.failure(&error);
                    let mut state = self.shared.rows();
                    state.waiting.merge(&rows);
                    state.failure = Some(failure);
                    drop(state);
                    thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Waits for rows. Returns all that wait, and the number of the last one. `None`: the relay is gone.
    fn next_rows(&mut self) -> Option<(SkippedRows, u64)> {
        let mut state = self.shared.rows();
        loop {
            if state.is_closed {
                return None;
            }
            if state.taken > state.noted {
                return Some((std::mem::take(&mut state.waiting), state.taken));
            }
            let left = self.connection.as_ref().map(|(_, ends)| ends.saturating_duration_since(Instant::now()));
            state = match left {
                Some(left) => {
                    let (state, waited) =
                        self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() {
                        self.connection = None;
                    }
                    state
                }
                None => self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Notes the rows, and waits until nothing can take the note back.
    fn note(&mut self, rows: &SkippedRows) -> Result<(), pg::Error> {
        let slot = self.slot.clone();
        let at = match skipped_rows::note(self.connection()?, &slot, rows) {
            Err(error) if error.code() == Some(sqlstate::READ_ONLY_TRANSACTION) => return Ok(()),
            at => at?,
        };
        let Some(at) = at else { return Ok(()) };
        let since = Instant::now();
        while let Some(standbys) = skipped_rows::standbys_without(self.connection()?, &slot, at)? {
            if since.elapsed() >= CONNECTION_LIVES {
                let text = format!(
                    "the note of skipped rows, at {at}, has not reached {standbys} of synchronized_standby_slots, and the position waits for it"
                );
                self.shared.rows().failure = Some(waits(text));
            }
            if self.shared.rows().is_closed {
                break;
            }
            thread::sleep(STANDBY_CHECK);
        }
        Ok(())
    }

    /// The connection, or a new one if it has lived for long enough.
    fn connection(&mut self) -> Result<&mut Connection, pg::Error> {
        let kept = self.connection.take().filter(|(_, ends)| Instant::now() < *ends);
        let connection = match (kept, self.metrics.server()) {
            (Some(kept), _) => kept,
            (None, Some(started_at)) => opened(server::open_beside(&self.source, Purpose::Control, &started_at)?),
            (None, None) => opened(Connection::open(&self.source, Purpose::Control)?),
        };
        Ok(&mut self.connection.insert(connection).0)
    }

    fn failure(&self, error: &pg::Error) -> Failure {
        let failure =
            waits(format!("skipped rows cannot be noted in Postgres, and the position waits for it: {}", chain(error)));
        match pg::right_to_note(error, &identifier(&self.source.user)) {
            Some(right) => failure.with_remedy(Remedy::sql(right)),
            None => failure,
        }
    }
}

fn opened(connection: Connection) -> (Connection, Instant) {
    (connection, Instant::now() + CONNECTION_LIVES)
}

fn waits(text: String) -> Failure {
    Failure::new(FailureClass::Environment, "connection", text)
}

//! The loop: the only code that knows all parts.
//!
//! ```text
//!  turn:  take frames ──► take reports ──► commit ──► send a status update ──► show ──► end? ──► wait for bytes
//! ```
//!
//! In: a stream of frames from a slot, a sink, a clock. Out: records to the sink, status updates to the server, and in the end
//! why the stream ended. One thread runs it; nothing in it is locked, spawned or allocated per row.
//! What outlives a connection (ledger, sink, refused rows) is in [`Relay`]; the state of one is in `Session`.
//!
//! | file | what |
//! |---|---|
//! | `turn` | one turn of the loop |
//! | `rows`, `bad_rows`, `oversized` | a row on its way into the sink; a row that cannot go there; a row above `--max-row` |
//! | `verdict` | what becomes of a row that cannot be published |
//! | `refusals`, `rejected`, `topics` | refused records, at least once and exactly once; topics that fail |
//! | `notes` | skipped rows whose notes for `prune` are not committed |
//! | `hold` | until when records may leave |
//! | `sink_transaction`, `progress` | exactly once: the destination's transaction, and the progress beside its records |
//! | `show`, `obstacle`, `tried_alone` | what operators see |
//! | `session`, `stream_end` | the state of a connection, and why it ended |
//! | `flush_timing`, `pause`, `clock` | when records leave the sink, when the loop pauses, the time |
//!
//! Invariants: a frame is consumed only once what it asks for is done, so a full sink leaves it where it is; a failed report
//! ends the stream before the position can pass it; no status update says more than the ledger.

mod bad_rows;
mod clock;
mod flush_timing;
mod hold;
mod notes;
mod obstacle;
mod oversized;
mod pause;
mod progress;
mod refusals;
mod rejected;
mod rows;
mod session;
mod show;
mod sink_transaction;
mod stream_end;
mod topics;
mod tried_alone;
mod turn;
mod verdict;

pub use bad_rows::{BadRowAction, BadRows};
pub use clock::{Clock, SystemClock};
pub use hold::{ASKS_EVERY, AskHolder, BELIEVED_FREE, HeldSlot, Holder, HolderAnswer, PLAIN_EVERY, SUCCESSOR_WAITS};
pub use notes::NoteSkipped;
pub use progress::{Identity, LastTransaction, ProgressMismatch, transactional_id};
pub use stream_end::{BadRowAt, ProtocolError, StreamEnd, Why};

use crate::lsn::{Lsn, Position};
use crate::metrics::Metrics;
use crate::outbox::{Details, Outbox};
use crate::pg::frame::FrameError;
use crate::pg::{self, Upstream};
use crate::positions::{Keep, Ledger, Reached};
use crate::sink::{Delivered, Failure, Report, Sink};
use hold::{Hold, Parking};
use notes::Notes;
use refusals::Refusals;
use rejected::RejectedRows;
use session::{Session, Turn};
use show::Shown;
use sink_transaction::SinkTransaction;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use topics::TopicStates;

/// The loop's times.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Pause after a short read while rows keep coming; zero for none.
    pub coalesce: Duration,
    /// A graceful shutdown waits so long for acknowledgements.
    pub shutdown_timeout: Duration,
    /// With the oldest record in flight for so long, the replication connection is closed.
    pub disconnect_after: Duration,
}

/// A callback that asks the catalog for types and columns. It also returns the end of the WAL before the question. Its error ends
/// the connection.
pub type Catalogue = Box<dyn FnMut() -> Result<(Details, Lsn), pg::Error> + Send>;

/// The row that a stream was to bring next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRow {
    /// Its position. If its transaction was not begun: the next transaction commits here or later.
    pub position: Position,
    /// Its transaction was begun.
    pub is_begun: bool,
    /// Its table, if the server has announced the table right before the row, or no other table on that connection.
    pub table: Option<String>,
}

/// Everything that outlives a connection.
pub struct Relay<S, C> {
    // The parts and the settings, which stay for the process' life.
    outbox: Outbox,
    sink: S,
    clock: C,
    metrics: Arc<Metrics>,
    stop: Arc<AtomicBool>,
    limits: Limits,
    bad_rows: BadRows,
    /// The cluster, slot and timeline of the rows: positions are unique only within them.
    dead_letter_source: String,
    /// The callback for a table that the server announces and whose columns may have changed.
    catalogue: Option<Catalogue>,
    // The records and rows under way. A new sink, another relay or another timeline makes the relay forget some of them.
    ledger: Ledger,
    notes: Notes,
    transaction: SinkTransaction,
    refusals: Refusals,
    rejected: RejectedRows,
    topics: TopicStates,
    /// The relay's knowledge of the slot, with or without a connection.
    hold: Hold,
    /// The table of the row that the last stream was to bring next, if the server had announced it.
    next_table: Option<String>,
    /// Whether the sink is parked, since nothing proves that the slot is the relay's.
    parking: Parking,
    // The counts and times since the process began.
    /// The number of records that are acknowledged; exactly once: committed.
    acknowledged: u64,
    /// The number of bad rows that did not stop the relay.
    handled_bad_rows: u64,
    warned_of_update: bool,
    /// When the last report came.
    last_report: Option<Instant>,
    /// When the relay noticed the stop.
    stopping_since: Option<Instant>,
    shown: Shown,
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// A relay that has not yet seen its slot.
    pub fn new(
        outbox: Outbox,
        mut sink: S,
        clock: C,
        metrics: Arc<Metrics>,
        stop: Arc<AtomicBool>,
        limits: Limits,
    ) -> Self {
        sink.times_are_rows(outbox.has_own_times());
        metrics.set_producers(sink.producers());
        Self {
            transaction: SinkTransaction::of(sink.transaction_timeout()),
            outbox,
            sink,
            clock,
            metrics,
            stop,
            limits,
            bad_rows: BadRows::default(),
            dead_letter_source: String::new(),
            catalogue: None,
            ledger: Ledger::new(Lsn::ZERO),
            notes: Notes::default(),
            refusals: Refusals::default(),
            rejected: RejectedRows::default(),
            topics: TopicStates::default(),
            hold: Hold::default(),
            next_table: None,
            parking: Parking::default(),
            acknowledged: 0,
            handled_bad_rows: 0,
            warned_of_update: false,
            last_report: None,
            stopping_since: None,
            shown: Shown::default(),
        }
    }

    /// Sets the actions for bad rows. The default is to stop.
    #[must_use]
    pub fn with_bad_rows(self, bad_rows: BadRows) -> Self {
        Self { bad_rows, ..self }
    }

    /// Sets the first part of the ids of dead letters, which the row's position completes: what the position is unique in.
    pub fn set_dead_letter_source(&mut self, source: String) {
        self.dead_letter_source = source;
    }

    fn reached(&self) -> Reached {
        Reached { flush_lsn: self.ledger.flush_lsn(), records: self.acknowledged }
    }

    /// Sets who notes the rows of tables whose payload will be in no topic. Without, they are not noted.
    #[must_use]
    pub fn with_notes(self, notes: Box<dyn NoteSkipped>) -> Self {
        Self { notes: Notes::by(notes), ..self }
    }

    /// Sets the callback that asks the catalog for types and columns in the middle of a stream.
    #[must_use]
    pub fn with_catalogue(self, catalogue: Catalogue) -> Self {
        Self { catalogue: Some(catalogue), ..self }
    }

    /// The position that the next connection should start from; `0/0` before the first.
    pub fn flush_lsn(&self) -> Lsn {
        self.ledger.flush_lsn()
    }

    /// The furthest position that the server has sent: its WAL reaches at least this far.
    pub fn seen(&self) -> Lsn {
        self.ledger.seen()
    }

    /// The row that the last stream was to bring next.
    pub fn next_row(&self) -> NextRow {
        let (position, is_begun) = (self.ledger.next_row(), self.ledger.is_open());
        NextRow { position, is_begun, table: self.next_table.clone() }
    }

    /// Postgres has failed to send the next row again and again: shows `text` until that row, or another one, has come.
    pub fn shows_unsent_row(&mut self, text: String) {
        self.shown.unsent = Some(self.ledger.next_row());
        self.metrics.set_unsent_row(Some(text));
    }

    /// The mapping of rows, which the caller tells what the publication has.
    pub fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// The sink.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The relay has taken the slot, whose position is `confirmed`. If that is ahead of the ledger's, another relay worked meanwhile.
    pub fn acquired(&mut self, confirmed: Lsn) {
        self.transaction.slot_taken(confirmed, self.ledger.flush_lsn());
        if confirmed > self.ledger.flush_lsn() && self.ledger.flush_lsn() > Lsn::ZERO {
            tracing::info!(ours = %self.ledger.flush_lsn(), slot = %confirmed, "another relay advanced the slot; resuming there");
        }
        self.ledger.raise(confirmed);
        self.transaction.slot_is_at(confirmed).into_iter().for_each(|proven| self.ledger.raise(proven));
        self.ledger.server_received(confirmed);
        self.confirmed(confirmed);
        self.forget_refusals_before(confirmed);
    }

    /// The server left the timeline of the relay's positions at `switch_point`. The relay forgets everything beyond it.
    ///
    /// # Errors
    /// The sink cannot be recreated.
    pub fn timeline_left_at(&mut self, switch_point: Lsn) -> Result<(), Failure> {
        self.rejected.forget_from(switch_point);
        if self.ledger.reaches_beyond(switch_point) || self.transaction.is_unproven() {
            self.renew_sink()?;
            self.ledger.fall_back_to(switch_point);
        }
        Ok(())
    }

    /// Starts over with a new sink, once the stream is closed. The next stream begins at the confirmed position. In the first
    /// transaction behind it, the rows before the first one in flight count as received, unless they are in a transaction of the
    /// destination's.
    ///
    /// # Errors
    /// The sink cannot be recreated.
    pub fn start_over(&mut self) -> Result<(), Failure> {
        self.renew_sink()?;
        // With exactly once, the reported records are aborted with the destination's transaction. After a takeover, another relay
        // may have sent older records of the same keys after ours.
        let forgets_delivered = self.transaction.is_on() || self.is_taken_over();
        self.ledger.forget(if forgets_delivered { Keep::Nothing } else { Keep::Delivered });
        Ok(())
    }

    /// Closes the sink if records are in flight: none of them leaves any more. The ledger keeps them. Otherwise a keepalive would
    /// be confirmed beyond them, as long as a stream is open.
    pub fn close_sink(&mut self) {
        if self.awaits_sink() {
            self.sink.close();
        }
    }

    fn renew_sink(&mut self) -> Result<(), Failure> {
        self.sink.restart()?;
        self.notes.forget();
        self.refusals.forget();
        self.transaction.forget();
        self.topics.sink_begins();
        self.sink_begins();
        Ok(())
    }

    /// Reads the stream until it ends. `patience`: how long the server may be silent; `None`: indefinitely.
    pub fn stream<U: Upstream>(&mut self, upstream: &mut U, patience: Option<Duration>) -> StreamEnd {
        let now = self.clock.now();
        let mut session = Session::new(now, patience, self.flush_lsn());
        self.transaction.stream_began(now);
        loop {
            if let Err(ended) = self.turn(upstream, &mut session) {
                let next = session.position();
                let its = session.announced.filter(|seen| next.is_some() && (seen.is_only || seen.next == next));
                self.next_table = its.and_then(|seen| self.refusals.table(seen.table)).map(str::to_owned);
                let ended = session.explained(ended, self.clock.now());
                self.transaction.stream_ended(self.clock.now());
                self.show(Some(&session), true);
                if matches!(
                    *ended,
                    StreamEnd::BadRow(_) | StreamEnd::Disconnected(pg::Error::Frame(FrameError::TooLarge { .. }))
                ) {
                    // The slot's position should be right before the row. If this update fails, the rows since the last update come
                    // again.
                    drop(self.send_status(upstream, &mut session, self.clock.now(), false));
                }
                if matches!(*ended, StreamEnd::Disconnected(pg::Error::Ended)) {
                    // If the server ends the stream in order, it has read every status update.
                    session.feedback.confirmed().into_iter().for_each(|lsn| self.ledger.server_received(lsn));
                }
                return *ended;
            }
        }
    }

    /// Serves the sink while there is no stream, for `duration`, or until the relay may stop.
    ///
    /// # Errors
    /// A record failed.
    pub fn idle(&mut self, duration: Duration) -> Result<(), Box<StreamEnd>> {
        let until = self.clock.now() + duration;
        loop {
            self.metrics.turned(self.clock.now());
            self.check_hold()?;
            self.take_reports()?;
            self.end_at_refusal()?;
            let ending = self.stop_requested();
            self.commit(ending)?;
            self.show(None, false);
            let left = until.saturating_duration_since(self.clock.now());
            if left.is_zero() || self.may_stop() {
                return Ok(());
            }
            self.clock.pause(left.min(Duration::from_millis(10)));
        }
    }

    /// Whether somebody has asked the relay to stop.
    pub fn stop_requested(&mut self) -> bool {
        if self.stopping_since.is_none() && self.stop.load(Ordering::Relaxed) {
            self.stopping_since = Some(self.clock.now());
        }
        self.stopping_since.is_some()
    }

    /// Whether the time for a graceful shutdown has run out.
    pub fn stop_timed_out(&self) -> bool {
        self.stopping_since
            .is_some_and(|since| self.clock.now().saturating_duration_since(since) >= self.limits.shutdown_timeout)
    }

    /// The number of records in flight.
    pub fn in_flight(&self) -> u64 {
        self.sink.in_flight().records
    }

    /// Since when the sink owes an answer: the report of the oldest record in flight, or the confirmation of a commit. Reports that
    /// count only after the commit are answers.
    fn oldest_unanswered(&self) -> Option<Instant> {
        self.ledger.oldest_in_flight().into_iter().chain(self.transaction.committing_since()).min()
    }

    /// Whether the sink owes an answer.
    pub fn awaits_sink(&self) -> bool {
        self.in_flight() > 0 || self.transaction.committing_since().is_some()
    }

    /// Whether a received transaction is not known to be confirmed, so that the server has to receive another status update.
    pub fn is_unfinished(&self) -> bool {
        self.ledger.is_unfinished()
    }

    /// Whether somebody has asked the relay to stop, and it need not wait any longer: nothing is unfinished, or the time has run out.
    pub fn may_stop(&mut self) -> bool {
        self.stop_requested() && (!self.is_unfinished() || self.stop_timed_out())
    }

    /// Takes the delivery reports that have come.
    fn take_reports(&mut self) -> Result<(), Box<StreamEnd>> {
        let Self { sink, ledger, metrics, clock, transaction, topics, acknowledged, last_report, .. } = self;
        let mut failed = None;
        let mut refused = Vec::new();
        let mut now = None;
        sink.poll(&mut |report| match report {
            // After a failure no report counts: those records are sent again.
            Report::Delivered(Delivered { token, records, bytes }) if failed.is_none() => {
                let now = *now.get_or_insert_with(|| clock.now());
                *last_report = Some(now);
                if topics.any_failing() {
                    topics.delivered(token.topic, metrics);
                }
                if transaction.is_on() {
                    ledger.reported(token, records);
                    transaction.reported(token, records, bytes);
                } else {
                    ledger.delivered(token, records);
                    *acknowledged += u64::from(records);
                    metrics.acknowledged(token.topic, records.into(), bytes, now);
                }
            }
            Report::Delivered(_) => {}
            Report::Refused(one) => refused.push(*one),
            Report::Failed(failure) => failed = Some(worse(failed.take(), failure)),
        });
        for one in refused {
            if self.transaction.is_on() {
                failed = Some(worse(failed.take(), self.reject(one)));
            } else if failed.is_none() {
                self.take_refusal(one);
            }
        }
        if failed.is_none() && !self.refusals.is_empty() {
            self.take_due_actions();
        }
        self.notes.take(&mut self.ledger);
        self.settle();
        match failed {
            Some(failure) => {
                self.metrics.publish_failure(failure.reason, 1);
                Err(Box::new(StreamEnd::SinkFailed(failure)))
            }
            None => Ok(()),
        }
    }

    /// Raises `flush_lsn` past the transactions that are delivered.
    fn settle(&mut self) {
        let Self { ledger, metrics, clock, .. } = self;
        let mut wall = None;
        ledger.settle(|settled| {
            let wall = *wall.get_or_insert_with(|| clock.wall());
            let micros = u64::try_from(wall.0.saturating_sub(settled.commit_time.0)).unwrap_or(0);
            metrics.transaction_delivered(Duration::from_micros(micros));
        });
        self.rejected.confirmed(self.ledger.flush_lsn());
    }
}

/// Returns the failure that says more.
fn worse(one: Option<Failure>, other: Failure) -> Failure {
    match one {
        Some(one) if one.class.rank() >= other.class.rank() => one,
        Some(_) | None => other,
    }
}

#[cfg(test)]
mod tests;

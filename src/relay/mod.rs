//! The loop: the only place that knows all parts.
//!
//! ```text
//!  turn:  take frames ──► take reports ──► send feedback ──► show ──► end? ──► wait for bytes
//! ```
//!
//! In: a stream of frames from a slot, a sink, a clock. Out: records to the sink, status updates to the server, and in the end
//! why the stream ended. One thread runs it; nothing in it is locked, spawned or allocated per row.
//! What outlives a connection (ledger, resume state, sink) is in [`Relay`]; the state of one is in `Session`.
//!
//! Invariants: a frame is consumed only once what it asks for is done, so a full sink leaves it where it is; a failed report
//! ends the stream before the position can pass it; no status update says more than the ledger.

mod bad_rows;
mod clock;
mod flush_timing;
mod hold;
mod oversized;
mod pause;
mod progress;
mod refusals;
mod rejected;
mod rows;
mod session;
mod silence;
mod sink_transaction;
mod stream_end;
mod topics;
mod turn;

pub use bad_rows::{BadRowAction, BadRows};
pub use clock::{Clock, SystemClock};
pub use hold::{ASKS_EVERY, AskHolder, BELIEVED_FREE, HeldSlot, Holder, HolderAnswer, SUCCESSOR_WAITS};
pub use progress::{Identity, ProgressMismatch, transactional_id};
pub use stream_end::{BadRowAt, ProtocolError, StreamEnd, Why};

use crate::lsn::Lsn;
use crate::metrics::{Metrics, Peer, State};
use crate::outbox::{Details, Outbox};
use crate::pg::frame::FrameError;
use crate::pg::{self, Upstream};
use crate::positions::{Keep, Ledger, Reached};
use crate::sink::{Delivered, Failure, FailureClass, Report, Sink};
use hold::Hold;
use refusals::Refusals;
use rejected::RejectedRows;
use session::{Session, Turn};
use sink_transaction::SinkTransaction;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use topics::TopicStates;

/// If the sink does not take a topic for so long, the relay logs it.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// The relay updates figures that are costly to find out this often.
const SHOW_EVERY: Duration = Duration::from_millis(100);

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

/// A callback that takes the id of a row, as messages show it. Its error ends the connection, and the row comes again.
pub type OnLost = Box<dyn FnMut(Option<&str>) -> Result<(), pg::Error> + Send>;

/// A callback that asks the catalog for types and columns. It also returns the end of the WAL before the question. Its error ends
/// the connection.
pub type Catalogue = Box<dyn FnMut() -> Result<(Details, Lsn), pg::Error> + Send>;

/// Everything that outlives a connection.
pub struct Relay<S, C> {
    outbox: Outbox,
    sink: S,
    clock: C,
    metrics: Arc<Metrics>,
    stop: Arc<AtomicBool>,
    limits: Limits,
    ledger: Ledger,
    rejected: RejectedRows,
    transaction: SinkTransaction,
    topics: TopicStates,
    refusals: Refusals,
    hold: Hold,
    /// The reason for which sequences of the sink wait, since when they do, and whether that was logged.
    sequences_blocked: Option<(String, Instant, bool)>,
    bad_rows: BadRows,
    /// The callback for each row whose payload will be in no topic. The relay calls it before it skips the row.
    on_lost: Option<OnLost>,
    /// The callback for a table that the server announces and whose columns may have changed.
    catalogue: Option<Catalogue>,
    /// The number of bad rows that did not stop the relay.
    handled_bad_rows: u64,
    /// When a report came last.
    reported: Option<Instant>,
    /// The sink acknowledges nothing, and that has been logged.
    silent: bool,
    /// Records acknowledged, exactly once committed, since the process began.
    acknowledged: u64,
    warned_of_update: bool,
    /// When the stop was seen.
    stopping_since: Option<Instant>,
    /// The sink's problem, and what holds the stream up (that, or a topic), as shown last.
    problem: Option<String>,
    reason: Option<String>,
    shown: Option<Instant>,
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// A relay that has not yet seen its slot.
    pub fn new(
        outbox: Outbox,
        sink: S,
        clock: C,
        metrics: Arc<Metrics>,
        stop: Arc<AtomicBool>,
        limits: Limits,
    ) -> Self {
        metrics.set_producers(sink.producers());
        Self {
            transaction: SinkTransaction::of(sink.transaction_timeout()),
            outbox,
            sink,
            clock,
            metrics,
            stop,
            limits,
            ledger: Ledger::new(Lsn::ZERO),
            rejected: RejectedRows::default(),
            topics: TopicStates::default(),
            refusals: Refusals::default(),
            hold: Hold::default(),
            sequences_blocked: None,
            bad_rows: BadRows::default(),
            on_lost: None,
            catalogue: None,
            handled_bad_rows: 0,
            acknowledged: 0,
            reported: None,
            silent: false,
            warned_of_update: false,
            stopping_since: None,
            problem: None,
            reason: None,
            shown: None,
        }
    }

    /// Sets the actions for bad rows. The default is to stop.
    #[must_use]
    pub fn with_bad_rows(self, bad_rows: BadRows) -> Self {
        Self { bad_rows, ..self }
    }

    fn reached(&self) -> Reached {
        Reached { flush_lsn: self.ledger.flush_lsn(), records: self.acknowledged }
    }

    /// Sets the callback for each row that is skipped and whose payload will be in no topic.
    #[must_use]
    pub fn telling(self, on_lost: OnLost) -> Self {
        Self { on_lost: Some(on_lost), ..self }
    }

    /// Sets the callback that asks the catalog for types and columns in the middle of a stream.
    #[must_use]
    pub fn asking(self, catalogue: Catalogue) -> Self {
        Self { catalogue: Some(catalogue), ..self }
    }

    /// The position that the next connection should start from; `0/0` before the first.
    pub fn flush_lsn(&self) -> Lsn {
        self.ledger.flush_lsn()
    }

    /// The furthest position that the server has shown: its log has come as far as this at least.
    pub fn seen(&self) -> Lsn {
        self.ledger.seen()
    }

    /// The mapping of rows, to be told what the publication holds.
    pub fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// The sink.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Its clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The slot is ours, and its position is `confirmed`. If that is ahead of ours, another relay worked meanwhile.
    pub fn acquired(&mut self, confirmed: Lsn) {
        self.transaction.taken(confirmed, self.ledger.flush_lsn());
        if confirmed > self.ledger.flush_lsn() && self.ledger.flush_lsn() > Lsn::ZERO {
            tracing::info!(ours = %self.ledger.flush_lsn(), slot = %confirmed, "another relay advanced the slot; resuming there");
        }
        self.ledger.raise(confirmed);
        self.ledger.server_received(confirmed);
        self.confirmed(confirmed);
        self.forget_refusals_before(confirmed);
    }

    /// The server left the timeline of our positions at `switch_point`. The relay forgets everything beyond it.
    ///
    /// # Errors
    /// The sink cannot be recreated.
    pub fn timeline_left_at(&mut self, switch_point: Lsn) -> Result<(), Failure> {
        self.rejected.forget_from(switch_point);
        if self.ledger.reaches_beyond(switch_point) {
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
        let nothing = self.transaction.is_on() || self.is_taken_over();
        self.ledger.forget(if nothing { Keep::Nothing } else { Keep::Delivered });
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
        self.refusals.forget();
        self.transaction.forget();
        Ok(())
    }

    /// Reads the stream until it ends. `patience`: how long the server may be silent; `None`: indefinitely.
    pub fn stream<U: Upstream>(&mut self, upstream: &mut U, patience: Option<Duration>) -> StreamEnd {
        let now = self.clock.now();
        let mut session = Session::new(now, patience, self.flush_lsn());
        self.transaction.resumed(now);
        loop {
            if let Err(ended) = self.turn(upstream, &mut session) {
                self.transaction.left(self.clock.now());
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
                    session.told().into_iter().for_each(|told| self.ledger.server_received(told));
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

    /// Whether the stop has been asked for.
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

    /// Records not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.sink.in_flight().records
    }

    /// Since when the sink owes an answer: the report of the oldest record in flight, or the confirmation of a commit. Reports that
    /// are held back until a commit are answers.
    fn oldest_unanswered(&self) -> Option<Instant> {
        self.ledger.oldest_in_flight().into_iter().chain(self.transaction.committing_since()).min()
    }

    /// Whether the sink owes an answer.
    pub fn awaits_sink(&self) -> bool {
        self.in_flight() > 0 || self.transaction.committing_since().is_some()
    }

    /// Whether a server has to be told something: a received transaction is not known to be confirmed.
    pub fn is_unfinished(&self) -> bool {
        self.ledger.is_unfinished()
    }

    /// Whether a stop that has been asked for need not wait any longer: nothing is unfinished, or the time has run out.
    pub fn may_stop(&mut self) -> bool {
        self.stop_requested() && (!self.is_unfinished() || self.stop_timed_out())
    }

    /// Serves the delivery reports that have come.
    fn take_reports(&mut self) -> Result<(), Box<StreamEnd>> {
        let Self { sink, ledger, metrics, clock, transaction, topics, refusals, acknowledged, reported, .. } = self;
        let mut failed = None;
        let mut refused = Vec::new();
        let mut dead_letters = Vec::new();
        let mut now = None;
        sink.poll(&mut |report| match report {
            // After a failure no report counts: those records are sent again.
            Report::Delivered(Delivered { token, records, bytes }) if failed.is_none() => {
                let now = *now.get_or_insert_with(|| clock.now());
                *reported = Some(now);
                if topics.any_failing() {
                    topics.delivered(token.topic, metrics);
                }
                if !refusals.is_empty() {
                    dead_letters.push((token, records));
                }
                if transaction.is_on() {
                    ledger.reported(token, records);
                    transaction.hold(token, records, bytes, now);
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
        for (token, records) in dead_letters {
            self.dead_letters_delivered(token, records);
        }
        for one in refused {
            if self.transaction.is_on() {
                failed = Some(worse(failed.take(), self.reject(one)));
            } else if failed.is_none() {
                self.refused(one);
            }
        }
        if failed.is_none() && !self.refusals.is_empty() {
            self.offer_dead_letters();
        }
        self.settle();
        match failed {
            Some(failure) => {
                self.metrics.publish_failure(failure.reason, 1);
                Err(Box::new(StreamEnd::SinkFailed(failure)))
            }
            None => Ok(()),
        }
    }

    fn settle(&mut self) {
        let Self { ledger, metrics, clock, .. } = self;
        let mut wall = None;
        ledger.settle(|settled| {
            let wall = *wall.get_or_insert_with(|| clock.wall());
            let micros = u64::try_from(wall.0.saturating_sub(settled.commit_time.0)).unwrap_or(0);
            metrics.transaction_delivered(Duration::from_micros(micros));
        });
    }

    /// Updates the metrics and the page.
    fn show(&mut self, session: Option<&Session>, now_at_once: bool) {
        let now = self.clock.now();
        let in_flight = self.sink.in_flight();
        self.metrics.in_flight(in_flight.records, in_flight.bytes);
        if !now_at_once && self.shown.is_some_and(|at| now.saturating_duration_since(at) < SHOW_EVERY) {
            return;
        }
        self.shown = Some(now);
        let flush_lsn = self.ledger.flush_lsn();
        self.rejected.confirmed(flush_lsn);
        let received = session.map_or(flush_lsn, |session| session.received().max(flush_lsn));
        self.metrics.positions(received, flush_lsn);
        self.metrics.oldest_in_flight(self.oldest_unanswered());
        self.metrics.oldest_commit(self.ledger.oldest_commit());
        self.look_at_sequences(now);
        self.look_for_silence(now);
        self.show_problem(session.and_then(Session::obstacle));
        if let Some(session) = session {
            let state = self.state(session, now);
            if self.silent && matches!(state, State::Streaming | State::Careful) {
                self.metrics.set_silent();
            } else {
                self.metrics.set_state(state);
            }
            if state == State::Streaming && !self.silent && self.has_recovered(session) {
                self.metrics.last_error(None);
            }
        }
    }

    /// Logs the reason for which sequences of the sink wait, once it lasts: a topic that is created on demand takes a moment.
    fn look_at_sequences(&mut self, now: Instant) {
        let before = self.sequences_blocked.take();
        let Some(failure) = self.sink.blocked() else {
            // Between two attempts the sink reports no reason. The wait is over once a record has arrived.
            let arrived = |since: Instant| self.reported.is_some_and(|at| at > since);
            if self.in_flight() > 0 && before.as_ref().is_some_and(|(_, since, _)| !arrived(*since)) {
                self.sequences_blocked = before;
                return;
            }
            if let Some((was, _, true)) = before {
                tracing::info!(was, "publishing resumed");
            }
            return;
        };
        let (since, was_told) = before.map_or((now, false), |(_, since, told)| (since, told));
        let told = was_told || now.saturating_duration_since(since) >= TOLD_AFTER;
        if told && !was_told {
            tracing::warn!(reason = %failure, hint = failure.logged_remedy(), "publishing blocked; no data lost; Postgres retains WAL");
        }
        self.sequences_blocked = Some((failure.text, since, told));
    }

    fn show_problem(&mut self, blocked: Option<&str>) {
        let problem = self.sink.problem();
        if self.problem.is_some() && problem.is_none() {
            self.metrics.reconnect(Peer::Destination);
        }
        if problem.is_some() && problem != self.problem {
            self.metrics.last_error(problem.clone());
        }
        // A destination's problem blocks nothing while there is nothing to deliver, and only a delivery would end it.
        let waiting = self.sink.in_flight().records > 0 || self.transaction.is_open();
        let sequences = self.sequences_blocked.as_ref().filter(|(.., told)| *told).map(|(text, ..)| text.clone());
        let reason = blocked.map(str::to_owned).or(sequences).or_else(|| problem.clone().filter(|_| waiting));
        if reason != self.reason {
            if reason.is_some() {
                self.metrics.last_error(reason.clone());
            }
            self.metrics.blocked_on(reason.clone());
        }
        (self.problem, self.reason) = (problem, reason);
    }

    /// Whether the problem is over: Postgres receives our updates, and records are acknowledged.
    fn has_recovered(&self, session: &Session) -> bool {
        let delivers = self.ledger.transactions() == 0 || self.flush_lsn() > session.began();
        self.problem.is_none() && self.reason.is_none() && session.told().is_some() && delivers
    }

    fn state(&self, session: &Session, now: Instant) -> State {
        let oldest = self.oldest_unanswered().into_iter().chain(session.held_up_since()).min();
        let old = oldest.is_some_and(|at| now.saturating_duration_since(at) >= self.metrics.unready_after());
        if self.stopping_since.is_some() {
            State::Stopping
        } else if old || session.obstacle().is_some() || self.sequences_blocked.as_ref().is_some_and(|(.., told)| *told)
        {
            State::Blocked
        } else if self.waits_for_last_holder() {
            State::WaitingForSlot
        } else if self.sink.in_flight().isolating > 0 {
            State::Careful
        } else {
            State::Streaming
        }
    }
}

/// Returns the more telling of two failures: a record's own refusal ranks above the failures that follow from it.
fn worse(one: Option<Failure>, other: Failure) -> Failure {
    let rank = |failure: &Failure| match failure.class {
        FailureClass::Row => 3,
        FailureClass::Topic => 2,
        FailureClass::Environment | FailureClass::LogIn => 1,
        FailureClass::Client => 0,
    };
    match one {
        Some(one) if rank(&one) >= rank(&other) => one,
        Some(_) | None => other,
    }
}

#[cfg(test)]
mod tests;

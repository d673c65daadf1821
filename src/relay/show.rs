//! Shows operators what the loop does: the figures of the metrics, the relay's state, and why it waits.
//!
//! In: the ledger, the sink, the noter, the [`Session`] of an open connection, the time. Out: [`Metrics`](crate::metrics::Metrics), and lines in the log
//! when a wait or a silence is noticed and when it is over. A frozen destination closes no connection, so its client reports no error for half
//! a minute or longer: a silence is noticed by the reports that do not come. Nothing here changes what the loop does.

use super::obstacle::Obstacle;
use super::session::Session;
use super::{Clock, Relay, tried_alone};
use crate::lsn::Position;
use crate::metrics::{Peer, State};
use crate::sink::{Failure, FailureClass, Sink};
use std::time::{Duration, Instant};

/// The relay updates figures that are costly to find out this often.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// After so long without an acknowledgement, the destination counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// The values that were shown last.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) at: Option<Instant>,
    /// The sink's problem.
    problem: Option<String>,
    /// Why the stream waits: for a topic, a sequence of the sink, or the sink's problem.
    reason: Option<String>,
    /// The failure for which sequences of the sink wait.
    sequences: Option<Obstacle>,
    /// The row that Postgres has failed to send again and again.
    pub(super) unsent: Option<Position>,
    /// Why skipped rows cannot be noted.
    pub(super) notes: Option<Obstacle>,
    /// The destination acknowledges nothing, and that has been logged.
    is_silent: bool,
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// Updates the metrics. `at_once`: although it is not time yet.
    pub(super) fn show(&mut self, session: Option<&Session>, at_once: bool) {
        let now = self.clock.now();
        let in_flight = self.sink.in_flight();
        self.metrics.set_in_flight(in_flight.records, in_flight.bytes);
        if !at_once && self.shown.at.is_some_and(|at| now.saturating_duration_since(at) < SHOW_EVERY) {
            return;
        }
        self.shown.at = Some(now);
        let flush_lsn = self.ledger.flush_lsn();
        let received = session.map_or(flush_lsn, |session| session.received.max(flush_lsn));
        self.metrics.set_positions(received, flush_lsn);
        self.metrics.set_oldest_in_flight(self.oldest_unanswered());
        self.metrics.set_oldest_commit(self.ledger.oldest_commit());
        if self.shown.unsent.is_some_and(|row| self.ledger.next_row() != row) {
            self.shown.unsent = None;
            self.metrics.set_unsent_row(None);
        }
        self.show_sequences(now);
        self.show_notes(now);
        self.show_silence(now);
        self.show_reason(session);
        if let Some(session) = session {
            let state = self.state(session, now);
            if self.shown.is_silent && matches!(state, State::Streaming | State::Searching) {
                self.metrics.set_silent();
            } else {
                self.metrics.set_state(state);
            }
            if state == State::Streaming && !self.shown.is_silent && self.has_recovered(session) {
                self.metrics.set_last_error(None);
            }
        }
    }

    /// Looks for a failure for which sequences of the sink wait.
    fn show_sequences(&mut self, now: Instant) {
        let before = self.shown.sequences.take();
        self.shown.sequences = match (self.why_sequences_wait(), before) {
            (Some(failure), before) => Some(Obstacle::new(failure, before.as_ref(), now, self.metrics.unready_after())),
            // Between two attempts the sink reports no failure. The wait is over once a record has arrived.
            (None, Some(before)) if self.in_flight() > 0 && self.last_report.is_none_or(|at| at <= before.since()) => {
                Some(before)
            }
            (None, before) => {
                before.iter().for_each(Obstacle::over);
                None
            }
        };
    }

    /// The failure for which sequences wait. If it is an answer that is in no list, the failure names the row that is tried alone.
    fn why_sequences_wait(&self) -> Option<Failure> {
        let tried = self.sink.tried_alone().map(|tried| {
            let table = self.refusals.source(&self.outbox, tried.origin.source);
            (tried_alone::failure(&tried, &table), tried_alone::figures(&tried, &table))
        });
        let (failure, figures) = tried.unzip();
        self.metrics.set_tried_alone(figures);
        failure.or_else(|| self.sink.blocked())
    }

    /// Looks for a failure for which notes wait.
    fn show_notes(&mut self, now: Instant) {
        let before = self.shown.notes.take();
        let (failure, unready_after) = (self.notes.failure(), self.metrics.unready_after());
        match failure {
            Some(failure) => {
                self.shown.notes = Some(Obstacle::new(failure, before.as_ref(), now, unready_after));
            }
            None => before.iter().for_each(Obstacle::over),
        }
    }

    /// Why the stream waits: for a record that is tried alone, for the session's reason, for another sequence, or for notes.
    fn reason_to_wait<'a>(&'a self, session: Option<&'a Session>) -> Option<&'a str> {
        let logged = |obstacle: &'a Option<Obstacle>| obstacle.as_ref().and_then(Obstacle::logged);
        let sequences = self.shown.sequences.as_ref();
        let named = sequences.filter(|it| it.class() == FailureClass::Unlisted).and_then(Obstacle::logged);
        let reason = named.or_else(|| session.and_then(Session::reason_to_wait));
        reason.or_else(|| logged(&self.shown.sequences)).or_else(|| logged(&self.shown.notes))
    }

    /// Looks for a silence: records are in flight, or a commit is under way, and no report has come for a while. If the relay starts over,
    /// nothing is in flight, and the silence is over without a report.
    fn show_silence(&mut self, now: Instant) {
        let long_ago = |at: Instant| now.saturating_duration_since(at) >= SILENT_AFTER;
        let is_silent = self.unanswered_by_sink().is_some_and(long_ago) && self.last_report.is_none_or(long_ago);
        if is_silent == self.shown.is_silent {
            return;
        }
        self.shown.is_silent = is_silent;
        let (name, in_flight) = (self.metrics.destination(), self.in_flight());
        if is_silent {
            let text = format!("{name} has acknowledged nothing for {} s", SILENT_AFTER.as_secs());
            tracing::warn!(in_flight, "{text}; no data lost, retrying");
            self.metrics.set_last_error(Some(text));
        } else if self.last_report.is_some_and(|at| !long_ago(at)) {
            tracing::info!("{name} acknowledges again");
        }
    }

    /// Shows why the stream waits: the reason, or the sink's problem.
    fn show_reason(&mut self, session: Option<&Session>) {
        let problem = self.sink.problem();
        if self.shown.problem.is_some() && problem.is_none() {
            self.metrics.reconnect(Peer::Destination);
        }
        if problem.is_some() && problem != self.shown.problem {
            self.metrics.set_last_error(problem.clone());
        }
        // A destination's problem blocks nothing while there is nothing to deliver, and only a delivery would end it.
        let is_waiting = self.sink.in_flight().records > 0 || self.transaction.is_open();
        let unproven = self.reason_of_hold();
        let reason = unproven.as_deref().or_else(|| self.reason_to_wait(session));
        let reason = reason.or_else(|| problem.as_deref().filter(|_| is_waiting));
        let reason = reason.map(str::to_owned);
        if reason != self.shown.reason {
            if reason.is_some() {
                self.metrics.set_last_error(reason.clone());
            }
            self.metrics.set_blocked_on(reason.clone());
        }
        (self.shown.problem, self.shown.reason) = (problem, reason);
    }

    /// Whether the last error is over: Postgres receives status updates, and records are acknowledged.
    fn has_recovered(&self, session: &Session) -> bool {
        let delivers = self.ledger.transactions() == 0 || self.flush_lsn() > session.began;
        self.shown.problem.is_none()
            && self.shown.reason.is_none()
            && session.feedback.confirmed().is_some()
            && delivers
    }

    fn state(&self, session: &Session, now: Instant) -> State {
        let oldest = self.oldest_unanswered().into_iter().chain(session.held_up_since()).min();
        let is_old = oldest.is_some_and(|at| now.saturating_duration_since(at) >= self.metrics.unready_after());
        if self.stopping_since.is_some() {
            State::Stopping
        } else if is_old || self.reason_of_hold().is_some() || self.reason_to_wait(Some(session)).is_some() {
            State::Blocked
        } else if self.waits_for_last_holder() {
            State::WaitingForSlot
        } else if self.sink.in_flight().searched > 0 {
            State::Searching
        } else {
            State::Streaming
        }
    }
}

//! One turn of the loop: takes frames, sends status updates, and decides when the stream ends.
//!
//! In: a stream of frames, and the [`Session`] of its connection. Out: rows for `rows`, status updates for the server, the stream's end.
//!
//! Invariants: a frame is consumed only once what it asks for is done. `send_status` alone confirms a position, and that of the ledger. A
//! turn takes frames for [`TURN`] at most, and then one call longer: so status updates go out, the holder of the slot is asked for and the
//! health is shown, however slow the calls for single rows are.

use super::obstacle::Obstacle;
use super::rows::Change;
use super::session::{Announced, Ending, FrameStep, Open, Session, Turn, WaitCause, disconnected};
use super::{Clock, Relay, StreamEnd};
use crate::lsn::{Lsn, Position};
use crate::outbox::{Ignored, RowContext};
use crate::pg::frame::{Frame, FrameError};
use crate::pg::replication::{ReplicationMessage, StandbyStatusUpdate};
use crate::pg::{self, Upstream};
use crate::pgoutput::{Begin, Commit, Message, Relation};
use crate::positions::{BeginVerdict, Due, OutOfOrder};
use crate::sink::Sink;
use std::time::{Duration, Instant};

/// A turn that has taken frames for so long ends, with the rest in the buffer.
const TURN: Duration = Duration::from_millis(100);

/// After so many frames, the turn looks at the clock: some half a millisecond of frames for which nothing waits. After a call that may have
/// waited it looks at once.
const FRAMES: u32 = 64;

/// Longest wait for bytes while records are in flight: their reports are looked at this often.
const WAIT_IN_FLIGHT: Duration = Duration::from_millis(1);

/// Longest wait for bytes when nothing is in flight: the relay notices a stop this late.
const WAIT_IDLE: Duration = Duration::from_millis(100);

/// A table whose types the catalog does not show yet is asked for so often, with this pause between two questions.
const CATALOG_QUESTIONS: u32 = 20;
const CATALOG_EVERY: Duration = Duration::from_millis(100);

/// Pause when the sink has no room, and while it refuses a topic.
const WAIT_FULL: Duration = Duration::from_millis(1);
const WAIT_BLOCKED: Duration = Duration::from_millis(50);

impl<S: Sink, C: Clock> Relay<S, C> {
    /// One turn of the loop.
    pub(super) fn turn<U: Upstream>(&mut self, upstream: &mut U, session: &mut Session) -> Turn<()> {
        let now = self.clock.now();
        self.metrics.turned(now);
        self.check_hold()?;
        let takes_rows = self.init_transactions(session)? && self.may_send();
        let wait = if takes_rows { self.take_frames(upstream, session, now)? } else { self.wait_without_rows() };
        self.take_reports()?;
        self.commit(matches!(wait, WaitCause::ForEnd))?;
        self.send_feedback(upstream, session, now)?;
        self.show(Some(session), false);
        self.end_if_due(upstream, session, &wait)?;
        self.wait(upstream, session, wait, now)
    }

    /// The relay takes no row before the sink has taken the destination over, and before it may send. A stop need not wait for that.
    fn wait_without_rows(&mut self) -> WaitCause {
        if self.stop_requested() && !self.ledger.is_open() { WaitCause::ForEnd } else { WaitCause::ForRoom }
    }

    fn take_frames<U: Upstream>(&mut self, upstream: &mut U, session: &mut Session, now: Instant) -> Turn<WaitCause> {
        let first =
            session.position().unwrap_or_else(|| Position { final_lsn: self.ledger.received_lsn(), ordinal: 0 });
        self.ledger.tick(now, first);
        let mut frames = 0;
        session.sent_at = self.clock.wall();
        loop {
            if self.is_ending(session) {
                return Ok(WaitCause::ForEnd);
            }
            if frames == FRAMES || self.may_have_waited(session) {
                frames = 0;
                if self.clock.now().saturating_duration_since(now) >= TURN {
                    return Ok(WaitCause::TurnOver);
                }
            }
            frames += 1;
            let frame = match upstream.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(WaitCause::ForBytes),
                Err(error @ FrameError::TooLarge { length, .. }) => {
                    match self.take_oversized(upstream.buffer().front(), error, session)? {
                        FrameStep::Done => upstream.buffer_mut().discard(length),
                        FrameStep::Wait(wait) => return Ok(wait),
                    }
                    continue;
                }
                Err(error) => return Err(disconnected(error.into())),
            };
            let length = frame.len();
            match self.take_frame(&frame, session)? {
                FrameStep::Done => {
                    session.last_read.took_message();
                    upstream.buffer_mut().consume(length);
                }
                FrameStep::Wait(wait) => return Ok(wait),
            }
        }
    }

    /// Whether a call since the last question may have waited for somebody: for the destination's answer about a new topic, for Postgres,
    /// or for the end of a poll.
    #[inline]
    fn may_have_waited(&mut self, session: &mut Session) -> bool {
        std::mem::take(&mut session.may_have_waited) | self.topics.take_new()
    }

    /// Whether no further row may be taken: a transaction that has been begun is finished first.
    fn is_ending(&mut self, session: &Session) -> bool {
        session.ending.is_some() || self.refusals.stops() || (self.stop_requested() && !self.ledger.is_open())
    }

    fn take_frame(&mut self, frame: &Frame<'_>, session: &mut Session) -> Turn<FrameStep> {
        match frame.tag {
            b'd' => self.take_copy_data(frame.body, session),
            b'E' => {
                let error = pg::connection::server_error(frame.body).map_err(|error| disconnected(error.into()))?;
                Err(disconnected(pg::Error::Server { doing: "streaming".to_owned(), error: Box::new(error) }))
            }
            b'N' => take_notice(frame.body, session),
            // ParameterStatus.
            b'S' => Ok(FrameStep::Done),
            // CopyDone, CommandComplete, ReadyForQuery: the server ends the stream, as when it shuts down.
            b'c' | b'C' | b'Z' => Err(disconnected(pg::Error::Ended)),
            tag => Err(disconnected(pg::Error::Unexpected { tag, doing: "streaming" })),
        }
    }

    fn take_copy_data(&mut self, body: &[u8], session: &mut Session) -> Turn<FrameStep> {
        match ReplicationMessage::decode(body).map_err(|error| disconnected(error.into()))? {
            ReplicationMessage::XLogData(data) => {
                session.flush_timing.sent(data.sent_at);
                session.sends_again();
                let message = Message::decode(data.data).map_err(|error| disconnected(error.into()))?;
                self.take_message(message, session)
            }
            ReplicationMessage::PrimaryKeepalive(keepalive) => {
                session.received = session.received.max(keepalive.wal_end);
                if session.withheld.as_ref().is_some_and(|(_, at)| keepalive.wal_end > *at) {
                    session.sends_again();
                }
                if keepalive.reply_requested {
                    session.feedback.requested();
                }
                if let Some(ending) = self.unmappable_at(keepalive.wal_end) {
                    return Ok(session.end(ending));
                }
                // Delivery reports that have come and were not taken yet must not keep the position back.
                session.may_have_waited = true;
                self.take_reports()?;
                if self.may_follow(keepalive.wal_end)? {
                    self.ledger.keepalive(keepalive.wal_end);
                }
                Ok(FrameStep::Done)
            }
        }
    }

    fn take_message(&mut self, message: Message<'_>, session: &mut Session) -> Turn<FrameStep> {
        match message {
            Message::Insert { relation, new } => return self.take_row(&Change::Row { relation, new }, session),
            Message::LogicalMessage(message) if message.transactional => {
                return self.take_row(&Change::Message(message), session);
            }
            Message::LogicalMessage(message) => {
                if self.outbox.wants_message(message.prefix) {
                    self.metrics.ignored(Ignored::NonTransactionalMessage.label(), 1);
                }
            }
            Message::Begin(begin) if self.ledger.is_full() || self.must_commit_first(begin.final_lsn) => {
                return Ok(FrameStep::Wait(WaitCause::ForRoom));
            }
            Message::Begin(begin) => {
                if let Some(ending) = self.unmappable_at(begin.final_lsn) {
                    return Ok(session.end(ending));
                }
                self.take_begin(&begin, session)?;
            }
            Message::Commit(commit) => self.take_commit(&commit, session)?,
            Message::Relation(relation) => {
                self.refusals.announced(&relation);
                let is_only = session.announced.is_none_or(|before| before.is_only && before.table == relation.id);
                session.announced = Some(Announced { table: relation.id, next: session.position(), is_only });
                if !self.ask_catalog_again(&relation, session)? {
                    return Ok(FrameStep::Wait(WaitCause::ForRoom));
                }
                if let Err(error) = self.outbox.relation(&relation) {
                    return Ok(session.end(Ending::Unmappable(Box::new(error))));
                }
            }
            Message::Type(data_type) => self.outbox.data_type(data_type),
            Message::Update { relation, new } => return self.take_update(relation, Some(&new), session),
            Message::Delete { .. } | Message::Truncate | Message::Origin | Message::StrayStreamAbort => {}
        }
        Ok(FrameStep::Done)
    }

    /// Asks the catalog again for a table that DDL may have changed since the last question. A type that this transaction created
    /// shows a moment after its commit: with synchronous replication once the standby has it. Returns whether the table can be taken. If
    /// not, the message stays in the buffer, and the next turn comes back to it.
    fn ask_catalog_again(&mut self, relation: &Relation, session: &mut Session) -> Turn<bool> {
        let (Some(ask), Some(position)) = (&mut self.catalogue, session.position()) else { return Ok(true) };
        let questions = match session.catalog_questions {
            Some((questions, last)) if self.clock.now().saturating_duration_since(last) >= CATALOG_EVERY => questions,
            Some(_) => return Ok(false),
            None if !self.outbox.wants_details_again(relation, position.final_lsn) => return Ok(true),
            None => 0,
        };
        let (details, as_of) = ask().map_err(disconnected)?;
        session.may_have_waited = true;
        self.outbox.details_again(details, as_of);
        let is_over = self.outbox.knows_types(relation) || questions + 1 == CATALOG_QUESTIONS;
        session.catalog_questions = (!is_over).then(|| (questions + 1, self.clock.now()));
        Ok(is_over)
    }

    /// The table that cannot be mapped, if the catalog has one at `lsn`.
    fn unmappable_at(&self, lsn: Lsn) -> Option<Ending> {
        self.outbox.unmappable_at(lsn).map(|error| Ending::Unmappable(Box::new(error.clone())))
    }

    fn take_begin(&mut self, begin: &Begin, session: &mut Session) -> Turn<()> {
        if session.open.is_some() {
            return Err(session.out_of_order("Begin", "inside a transaction"));
        }
        if self.was_published(begin)? {
            session.open = Some(Open::AlreadyReceived);
            return Ok(());
        }
        let verdict = match self.ledger.begin(begin) {
            Ok(verdict) => verdict,
            Err(OutOfOrder::Missing(missing)) => return Err(Box::new(StreamEnd::Protocol(missing.into()))),
            Err(OutOfOrder::Confirmed) => {
                return Err(session.out_of_order("Begin", "in front of what has been confirmed"));
            }
        };
        session.flush_timing.began(begin.commit_time);
        let position = Position { final_lsn: begin.final_lsn, ordinal: 0 };
        let context = RowContext { commit_time: begin.commit_time, sent_at: session.sent_at, position };
        session.open = Some(match verdict {
            BeginVerdict::AlreadyReceived => Open::AlreadyReceived,
            BeginVerdict::Continue { rows } => Open::Taken { context, skip: rows },
            BeginVerdict::Take => Open::Taken { context, skip: 0 },
        });
        self.transaction.began(begin);
        Ok(())
    }

    fn take_commit(&mut self, commit: &Commit, session: &mut Session) -> Turn<()> {
        match session.open.take() {
            Some(Open::Taken { context, .. }) if commit.end_lsn < context.position.final_lsn => {
                return Err(session.out_of_order("Commit", "in front of its own transaction"));
            }
            Some(Open::Taken { .. }) => {
                self.transaction.ended();
                self.ledger.commit(commit.end_lsn);
            }
            Some(Open::AlreadyReceived) => {}
            None => return Err(session.out_of_order("Commit", "outside any transaction")),
        }
        for table in self.outbox.take_new_tables() {
            tracing::info!(table, "reading a table for the first time");
        }
        session.received = session.received.max(commit.end_lsn);
        Ok(())
    }

    fn send_feedback<U: Upstream>(&mut self, upstream: &mut U, session: &mut Session, now: Instant) -> Turn<()> {
        match session.feedback.due(now, self.reached()) {
            Due::Nothing => Ok(()),
            Due::Status => self.send_status(upstream, session, now, false),
            Due::StatusAsking => self.send_status(upstream, session, now, true),
            Due::GiveUp => {
                let seconds = session.patience.unwrap_or_default().as_secs();
                Err(disconnected(pg::Error::Silent { seconds }))
            }
        }
    }

    pub(super) fn send_status<U: Upstream>(
        &mut self,
        upstream: &mut U,
        session: &mut Session,
        now: Instant,
        asking: bool,
    ) -> Turn<()> {
        let reached = self.reached();
        let flush_lsn = reached.flush_lsn;
        assert!(flush_lsn > Lsn::ZERO, "0/0 would mean \"invalid\", not \"nothing\"");
        let update = StandbyStatusUpdate { flush_lsn, sent_at: self.clock.wall(), reply_requested: asking };
        upstream.send(&update.encode()).map_err(disconnected)?;
        session.feedback.sent(now, reached, asking);
        self.confirmed(flush_lsn);
        self.metrics.status_sent(now);
        Ok(())
    }

    fn end_if_due<U: Upstream>(&mut self, upstream: &mut U, session: &mut Session, wait: &WaitCause) -> Turn<()> {
        self.end_at_refusal()?;
        let in_flight = self.sink.in_flight().records;
        let uncommitted = self.transaction.is_open() && !self.ledger.is_open();
        if matches!(wait, WaitCause::ForEnd) && in_flight == 0 && !uncommitted && !self.notes.are_open() {
            self.commit_whole_transactions_first()?;
            let end = match session.ending.take() {
                Some(Ending::BadRow(mut row)) => {
                    self.metrics.bad_row(row.row.reason.label());
                    row.confirmed = self.ledger.flush_lsn();
                    return Err(Box::new(StreamEnd::BadRow(row)));
                }
                Some(Ending::Unmappable(error)) => StreamEnd::Unmappable(error),
                None => StreamEnd::Stopped,
            };
            self.send_status(upstream, session, self.clock.now(), false)?;
            return Err(Box::new(end));
        }
        if self.stop_timed_out() {
            self.send_status(upstream, session, self.clock.now(), false)?;
            return Err(Box::new(StreamEnd::StopTimedOut { in_flight }));
        }
        self.end_if_stalled(session)
    }

    /// Ends the stream if the sink has acknowledged nothing for long, so that the server is free of the relay. One stuck record
    /// among others that arrive does not count, nor does the time for which the sink was parked: it was not asked for anything.
    fn end_if_stalled(&mut self, session: &Session) -> Turn<()> {
        let now = self.clock.now();
        let long_ago = |at: Instant| now.saturating_duration_since(at) >= self.limits.disconnect_after;
        let unanswered = self.unanswered_by_sink().filter(|_| self.last_report.is_none_or(long_ago));
        let oldest = unanswered.into_iter().chain(session.held_up_since()).min();
        if !oldest.is_some_and(long_ago) {
            return Ok(());
        }
        // A destination that answers each attempt is there: rows that are committed meanwhile go on.
        if session.held_up_since().is_none() && self.sink.tried_alone().is_some() {
            return Ok(());
        }
        // Records that still wait may wait for long, so a refused row stops the relay now.
        self.stop_at_refusal()?;
        Err(Box::new(StreamEnd::Stalled))
    }

    fn wait<U: Upstream>(
        &mut self,
        upstream: &mut U,
        session: &mut Session,
        wait: WaitCause,
        now: Instant,
    ) -> Turn<()> {
        let was_blocked = session.blocked.take();
        match wait {
            WaitCause::ForBytes => {
                was_blocked.iter().for_each(Obstacle::over);
                return self.wait_for_bytes(upstream, session, now);
            }
            WaitCause::ForRoom | WaitCause::ForEnd => {
                was_blocked.iter().for_each(Obstacle::over);
                if session.flush_timing.is_stale(now) {
                    self.flush_sink(session);
                }
                self.clock.pause(WAIT_FULL);
            }
            WaitCause::TurnOver => {
                was_blocked.iter().for_each(Obstacle::over);
                // A stream that never drains its buffer never waits for bytes.
                if session.flush_timing.is_due(now) || session.flush_timing.is_stale(now) {
                    self.flush_sink(session);
                }
            }
            WaitCause::Blocked(failure) => {
                let before = was_blocked.filter(|before| before.class() == failure.class);
                let (now, unready_after) = (self.clock.now(), self.metrics.unready_after());
                let blocked = Obstacle::new(failure, before.as_ref(), now, unready_after);
                // Nothing could be enqueued since then, so the transaction is not to blame for its age.
                self.transaction.note_outage(blocked.since(), now);
                session.blocked = Some(blocked);
                self.clock.pause(WAIT_BLOCKED);
            }
        }
        // The relay has not read the socket: the server may have sent bytes.
        session.feedback.heard(self.clock.now());
        Ok(())
    }

    /// Tells the sink to send the records that have gathered in it.
    fn flush_sink(&mut self, session: &mut Session) {
        session.flush_timing.take().into_iter().for_each(|rows| self.sink.on_idle(rows));
    }

    /// While rows keep coming in small pieces, a short pause lets them gather.
    fn wait_for_bytes<U: Upstream>(&mut self, upstream: &mut U, session: &mut Session, now: Instant) -> Turn<()> {
        self.hold.caught_up();
        if !self.limits.coalesce.is_zero() && session.last_read.is_worth_a_pause(upstream.window()) {
            self.clock.pause(self.limits.coalesce);
        }
        if session.flush_timing.is_due(now) {
            self.flush_sink(session);
        }
        let mut length = upstream.read(session.flush_timing.dry_after()).map_err(disconnected)?;
        if length == 0 {
            if !session.flush_timing.is_empty() {
                self.flush_sink(session);
                return Ok(());
            }
            let noting = self.notes.are_open() && self.shown.notes.is_none();
            let busy = self.sink.in_flight().records > 0 || self.transaction.is_open() || noting;
            let patience = if busy { WAIT_IN_FLIGHT } else { WAIT_IDLE };
            length = upstream.read(patience).map_err(disconnected)?;
        }
        session.last_read.read(length);
        if length > 0 {
            session.feedback.heard(self.clock.now());
        }
        Ok(())
    }
}

/// NoticeResponse. A walsender has few. One says that it waits for a standby. One says that it skips rows for want of the publication at
/// that position in the log, which servers before version 18 refuse to do: so do we.
fn take_notice(body: &[u8], session: &mut Session) -> Turn<FrameStep> {
    let notice = pg::connection::server_error(body).map_err(|error| disconnected(error.into()))?;
    if notice.is_of_standby_slots() {
        session.withhold(&notice);
        return Ok(FrameStep::Done);
    }
    if notice.severity == "WARNING" && notice.code == pg::sqlstate::NOT_IN_PREREQUISITE_STATE {
        return Err(disconnected(pg::Error::Server { doing: "streaming".to_owned(), error: Box::new(notice) }));
    }
    tracing::warn!(%notice, "Postgres notice");
    Ok(FrameStep::Done)
}

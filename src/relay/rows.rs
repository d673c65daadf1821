//! Makes a record of a row and enqueues it.
//!
//! ```text
//!  row ──► record ──► sink          taken: the row is done; no room, or a topic that fails: the frame stays in the buffer
//!            │          └─ never taken ─┐
//!            └─ none can be made ───────┴─► a bad row: see `bad_rows`
//! ```
//!
//! In: an Insert, Update or message of the open transaction. Out: a record in the sink, or a [`FrameStep`] that says why the row waits.
//!
//! Invariant: a row's frame is consumed only once its record is enqueued, or its action as a bad row is decided.

use super::session::{Ending, FrameStep, Session, Turn, WaitCause, disconnected};
use super::verdict::{Kind, Verdict, decide};
use super::{Clock, ProtocolError, Relay, StreamEnd};
use crate::lsn::Position;
use crate::outbox::{BadReason, BadRow, Ignored, OnUpdate, Outbox, RowContext, RowError, RowOutcome};
use crate::pgoutput::{LogicalMessage, RelationId, Tuple};
use crate::sink::{Enqueue, Failure, FailureClass, Origin, Record, Sink, Source, Tag};
use std::time::Duration;

/// A sink that takes nothing any more reports what was in flight within this time, or never.
const REPORTS_WITHIN: Duration = Duration::from_secs(1);

/// A change that makes a record.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    /// An inserted row.
    Row { relation: RelationId, new: Tuple<'a> },
    /// A transactional message.
    Message(LogicalMessage<'a>),
}

impl Change<'_> {
    /// The name of its message.
    const fn name(&self) -> &'static str {
        match self {
            Self::Row { .. } => "Insert",
            Self::Message(_) => "Message",
        }
    }

    /// The row's table, or the message's prefix.
    #[inline]
    pub(super) fn source(&self, outbox: &Outbox) -> Source {
        match self {
            Self::Row { relation, .. } => Source::Table(*relation),
            Self::Message(message) => Source::Message(outbox.message_prefix_index(message.prefix)),
        }
    }

    /// The row's origin, which the sink gives back with a refusal.
    #[inline]
    pub(super) fn origin(&self, outbox: &Outbox, context: &RowContext) -> Origin {
        Origin { position: context.position, source: self.source(outbox) }
    }

    /// Calls `take` with the row's record.
    #[inline]
    pub(super) fn record<T>(
        &self,
        outbox: &mut Outbox,
        context: &RowContext,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<RowOutcome<T>, RowError> {
        match self {
            Self::Row { relation, new } => outbox.row(*relation, new, context, take),
            Self::Message(message) => outbox.message(message, context, take),
        }
    }

    /// Calls `take` with the row's record or, if none can be made, with a record of the columns that can be read.
    pub(super) fn partial_record<T>(
        &self,
        outbox: &mut Outbox,
        context: &RowContext,
        mut take: impl FnMut(&Record<'_>) -> T,
    ) -> Result<RowOutcome<T>, RowError> {
        match (self.record(outbox, context, &mut take), self) {
            (Err(RowError::Bad(_)), Self::Row { relation, new }) => {
                outbox.partial_record(*relation, new, context, take)
            }
            (Err(RowError::Bad(_)), Self::Message(message)) => {
                Ok(outbox.partial_message_record(message, context, take))
            }
            (outcome, _) => outcome,
        }
    }

    /// Describes the row for people.
    pub(super) fn bad(&self, outbox: &mut Outbox, context: &RowContext, reason: BadReason) -> BadRow {
        let (table, id) = match self {
            Self::Row { relation, new } => {
                (outbox.table(*relation).to_owned(), outbox.shown_id(*relation, new, context))
            }
            Self::Message(message) => (format!("message {:?}", message.prefix), outbox.shown_message_id(message)),
        };
        BadRow { table, id, reason }
    }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// Takes a row or a message of the open transaction.
    pub(super) fn take_row(&mut self, change: &Change<'_>, session: &mut Session) -> Turn<FrameStep> {
        let Some(context) = session.row_context(change.name())? else {
            session.next_row();
            return Ok(FrameStep::Done);
        };
        let rejected = self.rejected.get(context.position);
        if let Some(failure) = rejected.and_then(|rejected| rejected.failure.clone()) {
            let row = change.bad(&mut self.outbox, &context, refusal(failure));
            return self.bad_row(row, change, &context, session);
        }
        match self.named_row(change, &context) {
            Ok(None) => {}
            Ok(Some(row)) => return self.bad_row(row, change, &context, session),
            Err(error) => return Err(unreadable(error, context.position)),
        }
        let Self { outbox, sink, ledger, metrics, topics, clock, .. } = self;
        let origin = change.origin(outbox, &context);
        let outcome = change.record(outbox, &context, |record| {
            let token = ledger.token(topics.number(record.topic, metrics));
            if topics.any_failing()
                && let Some(failure) = topics.given_up(record.topic, clock.now())
            {
                return Enqueue::Blocked(failure);
            }
            sink.try_enqueue(record, Tag { token, origin })
        });
        self.take_outcome(outcome, change, &context, session)
    }

    /// The sink has answered, or the row gives no record: finishes the row, or leaves its frame in the buffer.
    fn take_outcome(
        &mut self,
        outcome: Result<RowOutcome<Enqueue>, RowError>,
        change: &Change<'_>,
        context: &RowContext,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        match outcome {
            Ok(RowOutcome::Record(Enqueue::Taken)) => self.count_enqueued(session),
            Ok(RowOutcome::NotPublished | RowOutcome::Ignored(_)) => {}
            Ok(RowOutcome::Record(Enqueue::Full)) => return Ok(FrameStep::Wait(WaitCause::ForRoom)),
            Ok(RowOutcome::Record(Enqueue::Blocked(failure))) => {
                return self.not_taken(failure, change, context, session);
            }
            Ok(RowOutcome::Record(Enqueue::Bad(failure))) => {
                let row = change.bad(&mut self.outbox, context, refusal(failure));
                return self.bad_row(row, change, context, session);
            }
            Err(RowError::Bad(row)) => return self.bad_row(*row, change, context, session),
            Err(error) => return Err(unreadable(error, context.position)),
        }
        Ok(self.row_done(session))
    }

    /// Counts a record that the sink has taken.
    #[inline]
    pub(super) fn count_enqueued(&mut self, session: &mut Session) {
        self.ledger.enqueued();
        session.flush_timing.enqueued();
        self.transaction.enqueued(|| self.clock.now());
    }

    /// The row is finished: its frame can be consumed.
    #[inline]
    pub(super) fn row_done(&mut self, session: &mut Session) -> FrameStep {
        self.ledger.row_done();
        session.next_row();
        FrameStep::Done
    }

    /// The sink does not take the row's topic now, or takes nothing at all until it is recreated.
    #[cold]
    fn not_taken(
        &mut self,
        failure: Failure,
        change: &Change<'_>,
        context: &RowContext,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let topic = self.topics.last().to_owned();
        let seen = self.what_was_seen(&failure, &topic, Kind::Row, self.clock.now());
        match decide(self.bad_rows.action(context.position), seen, Kind::Row) {
            Verdict::Wait => self.wait_for(failure, session),
            Verdict::DeadLetter { .. } | Verdict::Skip | Verdict::Stop => {
                let row = change.bad(&mut self.outbox, context, refusal(failure));
                self.bad_row(row, change, context, session)
            }
        }
    }

    /// Waits for a failure that blocks the sink. The reports of records in flight have its reason, and may come a little later:
    /// only they show that a record was refused.
    pub(super) fn wait_for(&self, failure: Failure, session: &Session) -> Turn<FrameStep> {
        let waited = session.blocked_since(FailureClass::Client);
        let long = waited.is_some_and(|since| self.clock.now().saturating_duration_since(since) >= REPORTS_WITHIN);
        if failure.class == FailureClass::Client && (long || self.sink.in_flight().records == 0) {
            return Err(Box::new(StreamEnd::SinkFailed(failure)));
        }
        Ok(FrameStep::Wait(WaitCause::Blocked(failure)))
    }

    /// An update publishes nothing.
    pub(super) fn take_update(
        &mut self,
        relation: RelationId,
        new: Option<&Tuple<'_>>,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let Some(context) = session.row_context("Update")? else { return Ok(FrameStep::Done) };
        let position = context.position;
        match self.outbox.update(relation, context.position.final_lsn) {
            Ok(None) => Ok(FrameStep::Done),
            Ok(Some(on_update @ (OnUpdate::Warn | OnUpdate::Skip))) => {
                self.ignore_update(relation, on_update == OnUpdate::Warn);
                Ok(FrameStep::Done)
            }
            Ok(Some(OnUpdate::Stop)) => {
                let id = new.and_then(|new| self.outbox.shown_id(relation, new, &context));
                let row = BadRow { table: self.outbox.table(relation).to_owned(), id, reason: BadReason::Updated };
                Ok(session.end(Ending::BadRow(self.bad_row_at(row, position, None))))
            }
            Err(error) => Err(unreadable(error, position)),
        }
    }

    /// Counts an update, and logs the first one of the run: an application that updates its outbox does so for every row.
    fn ignore_update(&mut self, relation: RelationId, warn: bool) {
        self.metrics.ignored(Ignored::Update.label(), 1);
        if warn && !std::mem::replace(&mut self.warned_of_update, true) {
            tracing::warn!(
                table = self.outbox.table(relation),
                "outbox row updated; updates publish nothing (walrelay_ignored_total counts them, --on-update changes it)"
            );
        }
    }
}

/// The end of the stream after an error that is the connection's, not the row's.
#[allow(clippy::unnecessary_box_returns, reason = "an outcome is always passed on boxed: it is large, and rare")]
pub(super) fn unreadable(error: RowError, position: Position) -> Box<StreamEnd> {
    match error {
        RowError::Undecodable(error) => disconnected(error.into()),
        // A column's type has changed, or a table is new. The relay decides again in which form values come, and which tables are
        // listed.
        error @ (RowError::BinaryForm { .. } | RowError::NewTable(_)) => {
            let reason = error.to_string();
            Box::new(StreamEnd::PublicationChanged { position, reason })
        }
        error @ (RowError::UnknownRelation(_) | RowError::ColumnCount { .. } | RowError::Bad(_)) => {
            let reason = error.to_string();
            Box::new(StreamEnd::Protocol(ProtocolError::Row { position, reason }))
        }
    }
}

/// The reason of a row whose record is refused.
fn refusal(failure: Failure) -> BadReason {
    BadReason::Refused { label: failure.reason, text: failure.text }
}

//! One row becomes a record and goes into the sink; or its action is taken, if it cannot.
//!
//! ```text
//!  row ──► record ──► sink          taken: counted, and done with; no room: the frame stays
//!            │          └─ refused ─┐
//!            └─ none can be made ───┴─► its action: stop │ dead letter, when its turn has come: see `refusals` │ counted and skipped
//! ```
//!
//! Invariants: a row's frame is consumed only once its record is enqueued, or its action is decided. What there is of a bad row's record
//! waits in the sink behind the earlier records of its key, so its dead letter overtakes none of them, no later one overtakes it, and the
//! position cannot pass it.

use super::BadRowAction;
use super::oversized::{Oversized, oversized};
use super::rejected::Rejected;
use super::session::{FrameStep, Session, Turn, WaitCause, disconnected, position};
use super::{BadRowAt, Clock, ProtocolError, Relay, StreamEnd};
use crate::outbox::{BadReason, BadRow, Ignored, Outbox, RowContext, RowError, RowOutcome, TablePlan, Updated};
use crate::pg::frame::FrameError;
use crate::pgoutput::{LogicalMessage, RelationId, Tuple};
use crate::positions::Position;
use crate::sink::dead_letter::DeadLetter;
use crate::sink::{Enqueue, Failure, FailureClass, Origin, Record, Sink, Source, Tag};
use std::time::{Duration, Instant};

/// A sink that takes nothing any more reports what was in flight within this time, or never.
const REPORTS_WITHIN: Duration = Duration::from_secs(1);

/// Where rows may be skipped, a missing or forbidden topic is waited for so long.
pub(super) const TOPIC_WITHIN: Duration = Duration::from_secs(30);

/// The relay waits so long for a dead-letter topic: one that is created on demand takes a moment.
pub(super) const DEAD_LETTER_TOPIC_WITHIN: Duration = Duration::from_secs(5);

/// The relay logs each of the first ten bad rows, and later each whose number is a power of two.
const TOLD_BAD_ROWS: u64 = 10;

/// A change that makes a record.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    /// An inserted row.
    Row { relation: RelationId, new: Tuple<'a> },
    /// A transactional message.
    Message(LogicalMessage<'a>),
}

impl Change<'_> {
    const fn name(&self) -> &'static str {
        match self {
            Self::Row { .. } => "Insert",
            Self::Message(_) => "Message",
        }
    }

    /// The row's origin, which the sink gives back with a refusal.
    #[inline]
    fn origin(&self, outbox: &Outbox, context: &RowContext) -> Origin {
        let source = match self {
            Self::Row { relation, .. } => Source::Table(*relation),
            Self::Message(message) => Source::Message(outbox.message_prefix_index(message.prefix)),
        };
        Origin { final_lsn: context.final_lsn.bytes(), ordinal: context.ordinal, source }
    }

    /// Calls `take` with its record.
    #[inline]
    fn record<T>(
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

    /// Calls `take` with what is there of a record that cannot be built.
    fn partial_record<T>(
        &self,
        outbox: &mut Outbox,
        context: &RowContext,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<RowOutcome<T>, RowError> {
        match self {
            Self::Row { relation, new } => outbox.partial_record(*relation, new, context, take),
            Self::Message(message) => Ok(outbox.partial_message_record(message, context, take)),
        }
    }

    /// Describes the row for people.
    fn bad(&self, outbox: &mut Outbox, context: &RowContext, reason: BadReason) -> BadRow {
        let (table, id) = match self {
            Self::Row { relation, new } => (table(outbox, *relation), outbox.shown_id(*relation, new, context)),
            Self::Message(message) => (format!("message {:?}", message.prefix), outbox.shown_message_id(message)),
        };
        BadRow { table, id, reason }
    }
}

fn table(outbox: &Outbox, relation: RelationId) -> String {
    outbox.plan(relation).map_or("?", TablePlan::table).to_owned()
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// A row or message comes.
    pub(super) fn take_row(&mut self, change: &Change<'_>, session: &mut Session) -> Turn<FrameStep> {
        let Some(context) = session.row_context(change.name())? else {
            session.next_row();
            return Ok(FrameStep::Done);
        };
        let rejected = self.rejected.get(position(&context));
        if let Some(failure) = rejected.and_then(|rejected| rejected.failure.clone()) {
            let row = change.bad(&mut self.outbox, &context, refusal(failure));
            return self.bad_row(row, change, &context, session);
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
        self.dealt_with(outcome, change, &context, session)
    }

    /// Counts the row as handled, or leaves its frame in the buffer.
    fn dealt_with(
        &mut self,
        outcome: Result<RowOutcome<Enqueue>, RowError>,
        change: &Change<'_>,
        context: &RowContext,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        match outcome {
            Ok(RowOutcome::Record(Enqueue::Taken)) => {
                self.ledger.enqueued();
                session.flush_timing.enqueued();
                self.transaction.enqueued(|| self.clock.now());
            }
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
            Err(error) => return broken(error, position(context)),
        }
        Ok(self.done(session))
    }

    /// The row is finished.
    fn done(&mut self, session: &mut Session) -> FrameStep {
        self.ledger.row_done();
        session.next_row();
        FrameStep::Done
    }

    /// The row cannot be published: takes the action that the settings have for it.
    #[cold]
    fn bad_row(
        &mut self,
        row: BadRow,
        change: &Change<'_>,
        context: &RowContext,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let position = position(context);
        match self.bad_rows.action(position) {
            BadRowAction::Stop => Ok(self.stop_at(row, None, position, session)),
            BadRowAction::Skip => {
                if let Change::Row { .. } = change {
                    self.tell_lost(&row)?;
                }
                Ok(self.skip(&row, position, session))
            }
            BadRowAction::DeadLetter if self.transaction.is_on() => {
                self.enqueue_dead_letter(row, change, context, session)
            }
            BadRowAction::DeadLetter => self.enqueue_refused(row, change, context, session),
        }
    }

    /// Hands the sink what there is of a bad row's record, so that the row's dead letter goes out when its turn has come. See `refusals`.
    fn enqueue_refused(
        &mut self,
        row: BadRow,
        change: &Change<'_>,
        context: &RowContext,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let Self { outbox, sink, ledger, metrics, topics, bad_rows, .. } = self;
        let token = ledger.token(topics.number(&bad_rows.dead_letter_topic, metrics));
        let tag = Tag { token, origin: change.origin(outbox, context) };
        let (reason, text) = (row.reason.label(), row.reason.to_string());
        let failure = Failure::new(FailureClass::Row, reason, text);
        let whole = change.record(outbox, context, |record| sink.try_enqueue_refused(record, tag, &failure));
        let outcome = match whole {
            Err(RowError::Bad(_)) => {
                change.partial_record(outbox, context, |record| sink.try_enqueue_refused(record, tag, &failure))
            }
            outcome => outcome,
        };
        match outcome {
            Ok(RowOutcome::Record(Enqueue::Taken)) => {
                self.ledger.enqueued();
                session.flush_timing.enqueued();
                self.refusals.enqueued(position(context), row);
                Ok(self.done(session))
            }
            Ok(RowOutcome::Record(Enqueue::Full | Enqueue::Blocked(_) | Enqueue::Bad(_))) => {
                Ok(FrameStep::Wait(WaitCause::ForRoom))
            }
            // Not reached: a moment ago it was a row to publish.
            Ok(RowOutcome::NotPublished | RowOutcome::Ignored(_)) => Ok(self.done(session)),
            Err(error) => broken(error, position(context)),
        }
    }

    fn skip(&mut self, row: &BadRow, position: Position, session: &mut Session) -> FrameStep {
        self.count_bad_row(row, position, "skip");
        self.done(session)
    }

    /// Calls `on_lost` for a row that is skipped and whose payload is in no topic. An updated row was inserted, and published,
    /// before.
    #[cold]
    pub(super) fn tell_lost(&mut self, row: &BadRow) -> Turn<()> {
        match &mut self.on_lost {
            Some(on_lost) if row.reason != BadReason::Updated => on_lost(row.id.as_deref()).map_err(disconnected),
            Some(_) | None => Ok(()),
        }
    }

    /// Counts and logs a bad row whose action is finished, so that the stream goes on.
    pub(super) fn count_bad_row(&mut self, row: &BadRow, position: Position, action: &'static str) {
        self.metrics.bad_row(row.reason.label());
        self.handled_bad_rows += 1;
        if self.handled_bad_rows <= TOLD_BAD_ROWS || self.handled_bad_rows.is_power_of_two() {
            let (so_far, id) = (self.handled_bad_rows, row.id.as_deref());
            tracing::warn!(table = row.table, id, %position, reason = %row.reason, action, so_far, "row not published");
        }
    }

    /// Exactly once, the dead letter takes the row's place in the transaction, which arrives whole or not at all.
    fn enqueue_dead_letter(
        &mut self,
        row: BadRow,
        change: &Change<'_>,
        context: &RowContext,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let position = position(context);
        let Rejected { bare, dead_letter_refused, .. } = self.rejected.get(position).cloned().unwrap_or_default();
        if dead_letter_refused.is_some() {
            return Ok(self.stop_at(row, dead_letter_refused, position, session));
        }
        let whole = (!bare).then(|| self.offer_dead_letter(&row, false, change, context));
        let outcome = match whole {
            Some(outcome) if !matches!(outcome, Ok(RowOutcome::Record(Enqueue::Bad(_)))) => outcome,
            Some(_) | None => {
                if let Change::Row { .. } = change {
                    // Before the record is enqueued, since the row counts as received from then on.
                    self.note_lost(position, &row)?;
                }
                self.offer_dead_letter(&row, true, change, context)
            }
        };
        match outcome {
            Ok(RowOutcome::Record(Enqueue::Taken)) => {
                self.ledger.enqueued();
                session.flush_timing.enqueued();
                self.transaction.enqueued(|| self.clock.now());
                self.forget_note(position);
                self.count_bad_row(&row, position, "dead-letter");
                Ok(self.done(session))
            }
            Ok(RowOutcome::Record(Enqueue::Full)) => Ok(FrameStep::Wait(WaitCause::ForRoom)),
            Ok(RowOutcome::Record(Enqueue::Bad(failure))) => Ok(self.stop_at(row, Some(failure), position, session)),
            Ok(RowOutcome::Record(Enqueue::Blocked(failure))) => {
                self.dead_letter_not_taken(row, failure, position, session)
            }
            // Not reached: a moment ago it was a row to publish.
            Ok(RowOutcome::NotPublished | RowOutcome::Ignored(_)) => Ok(self.done(session)),
            Err(error) => broken(error, position),
        }
    }

    fn dead_letter_not_taken(
        &mut self,
        row: BadRow,
        failure: Failure,
        position: Position,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let (topic, now) = (&self.bad_rows.dead_letter_topic, self.clock.now());
        if failure.class == FailureClass::Topic
            && self.topics.failed(topic, DEAD_LETTER_TOPIC_WITHIN, &self.metrics, now)
        {
            return Ok(self.stop_at(row, Some(failure), position, session));
        }
        self.wait_for(failure, session)
    }

    fn offer_dead_letter(
        &mut self,
        row: &BadRow,
        bare: bool,
        change: &Change<'_>,
        context: &RowContext,
    ) -> Result<RowOutcome<Enqueue>, RowError> {
        let Self { outbox, sink, ledger, metrics, topics, bad_rows, .. } = self;
        let (error, place) = (row.reason.to_string(), position(context).to_string());
        let dead_letter = DeadLetter {
            topic: &bad_rows.dead_letter_topic,
            error: &error,
            table: &row.table,
            position: &place,
            intended: row.reason.topic(),
            without_payload: bare,
        };
        let token = ledger.token(topics.number(dead_letter.topic, metrics));
        let tag = Tag { token, origin: change.origin(outbox, context) };
        let whole = change.record(outbox, context, |record| {
            let dead_letter = DeadLetter { intended: Some(record.topic), ..dead_letter };
            dead_letter.with_record(record, |record| sink.try_enqueue(record, tag))
        });
        match whole {
            Err(RowError::Bad(_)) => change.partial_record(outbox, context, |record| {
                let known = Some(record.topic).filter(|topic| !topic.is_empty());
                let dead_letter = DeadLetter { intended: row.reason.topic().or(known), ..dead_letter };
                dead_letter.with_record(record, |record| sink.try_enqueue(record, tag))
            }),
            outcome => outcome,
        }
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
        let may_pass = self.bad_rows.action(position(context)) != BadRowAction::Stop;
        if failure.class == FailureClass::Topic && may_pass {
            let topic = self.topics.last().to_owned();
            let now = self.clock.now();
            let given_up = self.topics.given_up(&topic, now).is_some();
            if given_up || self.topics.failed(&topic, TOPIC_WITHIN, &self.metrics, now) {
                let row = change.bad(&mut self.outbox, context, refusal(failure));
                return self.bad_row(row, change, context, session);
            }
        }
        self.wait_for(failure, session)
    }

    /// Waits for a failure that blocks the sink. The reports of records in flight have its reason, and may come a little later:
    /// only they show that a record was refused.
    fn wait_for(&self, failure: Failure, session: &Session) -> Turn<FrameStep> {
        let waited = session.blocked_since(FailureClass::Client);
        let long = waited.is_some_and(|since| self.since(since) >= REPORTS_WITHIN);
        if failure.class == FailureClass::Client && (long || self.sink.in_flight().records == 0) {
            return Err(Box::new(StreamEnd::SinkFailed(failure)));
        }
        Ok(FrameStep::Wait(WaitCause::Blocked(failure)))
    }

    fn since(&self, at: Instant) -> Duration {
        self.clock.now().saturating_duration_since(at)
    }

    /// The stream ends here, once everything before is delivered.
    fn stop_at(
        &mut self,
        row: BadRow,
        dead_letter_refused: Option<Failure>,
        position: Position,
        session: &mut Session,
    ) -> FrameStep {
        let dead_letter_refused = dead_letter_refused.map(|failure| (self.bad_rows.dead_letter_topic.clone(), failure));
        let (confirmed, readable) = (self.ledger.flush_lsn(), self.bad_rows.readable);
        session.bad_row = Some(Box::new(BadRowAt { position, confirmed, row, dead_letter_refused, readable }));
        FrameStep::Wait(WaitCause::ForEnd)
    }

    /// An update publishes nothing.
    pub(super) fn take_update(
        &mut self,
        relation: RelationId,
        new: Option<&Tuple<'_>>,
        session: &mut Session,
    ) -> Turn<()> {
        let Some(context) = session.row_context("Update")? else { return Ok(()) };
        let position = position(&context);
        match self.outbox.update(relation, context.final_lsn) {
            Ok(Updated::NotPublished) => {}
            Ok(Updated::Ignored { warn }) => self.ignore_update(relation, warn),
            Ok(Updated::Stop) => {
                let id = new.and_then(|new| self.outbox.shown_id(relation, new, &context));
                let row = BadRow { table: table(&self.outbox, relation), id, reason: BadReason::Updated };
                self.stop_at(row, None, position, session);
            }
            Err(error) => drop(broken(error, position)?),
        }
        Ok(())
    }

    /// Counts an update, and logs the first one of the run: an application that updates its outbox does so for every row.
    fn ignore_update(&mut self, relation: RelationId, warn: bool) {
        self.metrics.ignored(Ignored::Update.label(), 1);
        if warn && !std::mem::replace(&mut self.warned_of_update, true) {
            let table = self.outbox.plan(relation).map_or("?", TablePlan::table);
            tracing::warn!(
                table,
                "outbox row updated; updates publish nothing (walrelay_ignored_total counts them, --on-update changes it)"
            );
        }
    }

    /// Takes a frame above `--max-row`. `Done`: the stream can skip it.
    #[cold]
    pub(super) fn take_oversized(&mut self, front: &[u8], error: FrameError, session: &mut Session) -> Turn<FrameStep> {
        let Some(found) = oversized(front) else { return Ok(FrameStep::Wait(WaitCause::ForBytes)) };
        match found {
            Oversized::Insert(relation) => {
                let published = |outbox: &mut Outbox, context: &RowContext| {
                    let listed = outbox.update(relation, context.final_lsn)? != Updated::NotPublished;
                    Ok(listed.then(|| table(outbox, relation)))
                };
                self.take_oversized_row("Insert", published, &error, session)
            }
            Oversized::Message { transactional: true, prefix } => {
                let published = |outbox: &mut Outbox, _: &RowContext| {
                    Ok(outbox.wants_message(prefix).then(|| format!("message {prefix:?}")))
                };
                self.take_oversized_row("Message", published, &error, session)
            }
            Oversized::Message { transactional: false, prefix } => {
                if self.outbox.wants_message(prefix) {
                    self.metrics.ignored(Ignored::NonTransactionalMessage.label(), 1);
                }
                Ok(FrameStep::Done)
            }
            Oversized::Update(relation) => {
                self.take_update(relation, None, session)?;
                Ok(if session.is_at_its_end() { FrameStep::Wait(WaitCause::ForEnd) } else { FrameStep::Done })
            }
            Oversized::Delete => Ok(FrameStep::Done),
            // Records before it are delivered first.
            Oversized::Unknown if self.sink.in_flight().records > 0 => Ok(FrameStep::Wait(WaitCause::ForRoom)),
            Oversized::Unknown => Err(disconnected(error.into())),
        }
    }

    /// Takes a row above `--max-row`. Nothing of it can be read, so it cannot become a dead letter either.
    fn take_oversized_row(
        &mut self,
        message: &'static str,
        published: impl FnOnce(&mut Outbox, &RowContext) -> Result<Option<String>, RowError>,
        error: &FrameError,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let Some(context) = session.row_context(message)? else {
            session.next_row();
            return Ok(FrameStep::Done);
        };
        let position = position(&context);
        let table = match published(&mut self.outbox, &context) {
            Ok(Some(table)) => table,
            Ok(None) => return Ok(self.done(session)),
            Err(error) => return broken(error, position),
        };
        let reason = match *error {
            FrameError::TooLarge { length, limit, .. } => BadReason::TooLarge { bytes: length, limit },
            FrameError::BadLength { .. } => return Err(disconnected(error.clone().into())),
        };
        let row = BadRow { table, id: None, reason };
        Ok(match self.bad_rows.action(position) {
            BadRowAction::Skip => {
                self.tell_lost(&row)?;
                self.skip(&row, position, session)
            }
            BadRowAction::Stop | BadRowAction::DeadLetter => self.stop_at(row, None, position, session),
        })
    }
}

/// Turns an error that is the connection's, not the row's, into the end of the stream.
fn broken(error: RowError, position: Position) -> Turn<FrameStep> {
    match error {
        RowError::Undecodable(error) => Err(disconnected(error.into())),
        // A column's type has changed, or a table is new. The relay decides again in which form values come, and which tables are
        // listed.
        error @ (RowError::BinaryForm { .. } | RowError::NewTable(_)) => {
            let reason = error.to_string();
            Err(Box::new(StreamEnd::PublicationChanged { position, reason }))
        }
        error @ (RowError::UnknownRelation(_) | RowError::ColumnCount { .. } | RowError::Bad(_)) => {
            let reason = error.to_string();
            Err(Box::new(StreamEnd::Protocol(ProtocolError::Row { position, reason })))
        }
    }
}

fn refusal(failure: Failure) -> BadReason {
    BadReason::Refused { label: failure.reason, text: failure.text }
}

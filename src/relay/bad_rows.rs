//! Takes the action for a row that cannot be published, before anything of it is sent.
//!
//! ```text
//!  no record can be made of the row ─────────────┐    stop         the stream ends once everything before is delivered
//!  the sink will never take its record ──────────┼──► skip         the row is counted, and noted for `prune`
//!  exactly once: its record was refused before ──┘    dead letter  the sink takes a dead-letter record for the row
//!                                                          ▲
//!  its topic is given up, which only dead letter does ─────┘
//! ```
//!
//! `verdict` decides. In: a bad row, its change, the settings' action. Out: a [`FrameStep`]; the row is done, waits, or ends the stream.
//!
//! Invariants: the position cannot pass a dead-letter record, which is in flight as any other, nor a table's row that is skipped, or whose dead
//! letter goes without payload, before its note (see `notes`). No other row waits for a dead-letter record or a note. The row would be bad
//! again if it were read again, unless its topic is there then, and the order of the key's other records does not depend on it.

use super::rejected::Rejected;
use super::rows::{Change, unreadable};
use super::session::{Ending, FrameStep, Session, Turn, WaitCause};
use super::verdict::{Kind, Seen, Verdict, decide};
use super::{BadRowAt, Clock, Relay};
use crate::lsn::Position;
use crate::outbox::{BadReason, BadRow, RowContext, RowError, RowOutcome};
use crate::pgoutput::PgTime;
use crate::sink::dead_letter::DeadLetter;
use crate::sink::{Enqueue, Failure, Sink, Source, Tag, Token};

/// The relay logs each of the first ten bad rows, and later each whose number is a power of two.
const LOGGED_BAD_ROWS: u64 = 10;

/// The action for one row that cannot be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadRowAction {
    /// The relay stops, with nothing after it confirmed.
    #[default]
    Stop,
    /// The row goes to the dead-letter topic.
    DeadLetter,
    /// The row is counted and skipped.
    Skip,
}

/// The actions for all bad rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BadRows {
    /// The action for each row that `at` does not name.
    pub action: BadRowAction,
    /// The actions for single rows, whether or not they are bad. If a row is there twice, the last action counts.
    pub at: Vec<(Position, BadRowAction)>,
    /// The topic for dead letters: a name that the destination allows.
    pub dead_letter_topic: String,
    /// Whether `walrelay dead-letters` can read them there.
    pub readable: bool,
}

impl BadRows {
    /// The action for the row at `position`, if it is bad.
    pub fn action(&self, position: Position) -> BadRowAction {
        self.named(position).unwrap_or(self.action)
    }

    /// The action for the row at `position`, if `at` names it.
    #[inline]
    fn named(&self, position: Position) -> Option<BadRowAction> {
        self.at.iter().rev().find(|(at, _)| *at == position).map(|(_, action)| *action)
    }

    /// The dead letter of a row whose record has `record_topic`, which is empty if it is not known. `error` and `position`: those of the row
    /// as texts. `id`: the dead letter's own. `sent_at`: now. `keeps_time`: whether the record's time is the row's own.
    pub(super) fn dead_letter<'a>(
        &'a self,
        row: &'a BadRow,
        (error, position, id): (&'a str, &'a str, &'a str),
        record_topic: &'a str,
        without_payload: bool,
        (sent_at, keeps_time): (PgTime, bool),
    ) -> DeadLetter<'a> {
        let known = Some(record_topic).filter(|topic| !topic.is_empty());
        let (topic, table) = (self.dead_letter_topic.as_str(), row.table.as_str());
        let (intended, sent_millis) = (row.reason.topic().or(known), sent_at.unix_millis());
        DeadLetter { topic, error, table, position, id, intended, without_payload, sent_millis, keeps_time }
    }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// The row, if the settings name it and it would be published: its fate does not depend on what the destination says of it, so its record
    /// is not handed over.
    #[inline]
    pub(super) fn named_row(&mut self, change: &Change<'_>, context: &RowContext) -> Result<Option<BadRow>, RowError> {
        if self.bad_rows.named(context.position).is_none() {
            return Ok(None);
        }
        match change.record(&mut self.outbox, context, |_| ()) {
            Ok(RowOutcome::Record(())) => Ok(Some(change.bad(&mut self.outbox, context, BadReason::Named))),
            Ok(RowOutcome::NotPublished | RowOutcome::Ignored(_)) => Ok(None),
            Err(RowError::Bad(row)) => Ok(Some(*row)),
            Err(error) => Err(error),
        }
    }

    /// The row cannot be published: takes the action that the settings have for it.
    #[cold]
    pub(super) fn bad_row(
        &mut self,
        row: BadRow,
        change: &Change<'_>,
        context: &RowContext,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let position = context.position;
        session.may_have_waited = true;
        match decide(self.bad_rows.action(position), Seen::Fault, Kind::Row) {
            Verdict::Skip => Ok(self.skip_row(&row, change.source(&self.outbox), position, session)),
            Verdict::DeadLetter { .. } => self.enqueue_dead_letter(row, change, context, session),
            Verdict::Stop | Verdict::Wait => Ok(self.stop_at(row, position, None, session)),
        }
    }

    /// Hands the sink the row's dead-letter record, with the part of the row's record that can be read.
    fn enqueue_dead_letter(
        &mut self,
        row: BadRow,
        change: &Change<'_>,
        context: &RowContext,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let position = context.position;
        // With at least once, none is kept.
        let Rejected { mut without_payload, dead_letter_refused, .. } =
            self.rejected.get(position).cloned().unwrap_or_default();
        if dead_letter_refused.is_some() {
            return Ok(self.stop_at(row, position, dead_letter_refused, session));
        }
        loop {
            let kind = Kind::DeadLetter { with_payload: !without_payload };
            let (seen, failure) = match self.offer_dead_letter(&row, without_payload, change, context) {
                Ok(RowOutcome::Record(Enqueue::Taken)) => {
                    self.count_enqueued(session);
                    if without_payload {
                        let token = self.ledger.token(0);
                        self.note_skipped(row.id.as_deref(), change.source(&self.outbox), token);
                    }
                    self.count_bad_row(&row, position, "dead-letter");
                    return Ok(self.row_done(session));
                }
                Ok(RowOutcome::Record(Enqueue::Full)) => return Ok(FrameStep::Wait(WaitCause::ForRoom)),
                Ok(RowOutcome::Record(Enqueue::Bad(failure))) => (Seen::Fault, failure),
                Ok(RowOutcome::Record(Enqueue::Blocked(failure))) => {
                    let topic = self.bad_rows.dead_letter_topic.clone();
                    (self.what_was_seen(&failure, &topic, kind, self.clock.now()), failure)
                }
                // Not reached: a moment ago it was a row to publish.
                Ok(RowOutcome::NotPublished | RowOutcome::Ignored(_)) => return Ok(self.row_done(session)),
                Err(error) => return Err(unreadable(error, position)),
            };
            match decide(BadRowAction::DeadLetter, seen, kind) {
                Verdict::Wait => return self.wait_for(failure, session),
                Verdict::DeadLetter { .. } => without_payload = true,
                Verdict::Skip => return Ok(self.skip_row(&row, change.source(&self.outbox), position, session)),
                Verdict::Stop => return Ok(self.stop_at(row, position, Some(failure), session)),
            }
        }
    }

    fn offer_dead_letter(
        &mut self,
        row: &BadRow,
        without_payload: bool,
        change: &Change<'_>,
        context: &RowContext,
    ) -> Result<RowOutcome<Enqueue>, RowError> {
        let Self { outbox, sink, ledger, metrics, topics, bad_rows, dead_letter_source, .. } = self;
        let (error, position) = (row.reason.to_string(), context.position.to_string());
        let id = format!("{dead_letter_source}/{position}");
        let token = ledger.token(topics.number(&bad_rows.dead_letter_topic, metrics));
        let tag = Tag { token, origin: change.origin(outbox, context) };
        let time = (context.sent_at, outbox.records_have_rows_times());
        change.partial_record(outbox, context, |record| {
            let dead_letter = bad_rows.dead_letter(row, (&error, &position, &id), record.topic, without_payload, time);
            dead_letter.with_record(record, |record| sink.try_enqueue(record, tag))
        })
    }

    /// The row is skipped: its frame can be consumed.
    pub(super) fn skip_row(
        &mut self,
        row: &BadRow,
        source: Source,
        position: Position,
        session: &mut Session,
    ) -> FrameStep {
        let token = self.ledger.token(0);
        self.note_skipped(row.id.as_deref(), source, token);
        self.count_bad_row(row, position, "skip");
        self.row_done(session)
    }

    /// The row stops the relay. `dead_letter_refused`: why the dead-letter topic does not take it either.
    pub(super) fn stop_at(
        &self,
        row: BadRow,
        position: Position,
        dead_letter_refused: Option<Failure>,
        session: &mut Session,
    ) -> FrameStep {
        session.end(Ending::BadRow(self.bad_row_at(row, position, dead_letter_refused)))
    }

    /// The payload of a row will be in no topic: if the row is a table's, it is noted. An id counts as missing if it comes from another column
    /// than the one that the relay has noted, since `prune` would look for it there.
    pub(super) fn note_skipped(&mut self, id: Option<&str>, source: Source, token: Token) {
        let Source::Table(relation) = source else { return };
        let id = id.filter(|_| self.outbox.has_noted_id(relation));
        self.notes.skipped(id, token, &mut self.ledger);
    }

    /// Counts and logs a bad row whose action is finished, so that the stream goes on.
    pub(super) fn count_bad_row(&mut self, row: &BadRow, position: Position, action: &'static str) {
        self.metrics.bad_row(row.reason.label());
        self.handled_bad_rows += 1;
        if self.handled_bad_rows <= LOGGED_BAD_ROWS || self.handled_bad_rows.is_power_of_two() {
            let (so_far, id) = (self.handled_bad_rows, row.id.as_deref());
            tracing::warn!(table = row.table, id, %position, reason = %row.reason, action, so_far, "row not published");
        }
    }

    /// A bad row that stops the relay. `dead_letter_refused`: why the dead-letter topic does not take it either.
    pub(super) fn bad_row_at(
        &self,
        row: BadRow,
        position: Position,
        dead_letter_refused: Option<Failure>,
    ) -> Box<BadRowAt> {
        let dead_letter_refused = dead_letter_refused.map(|failure| (self.bad_rows.dead_letter_topic.clone(), failure));
        let (confirmed, readable) = (self.ledger.flush_lsn(), self.bad_rows.readable);
        Box::new(BadRowAt { position, confirmed, row, dead_letter_refused, readable })
    }
}

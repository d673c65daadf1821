//! At least once, takes the action for a row whose record the destination refuses.
//!
//! ```text
//!  Refused ──► verdict ──► skip: its sequence continues
//!                    ├──► dead-letter record instead: its sequence continues once that is delivered
//!                    │                └── refused as well: sent without payload, then stop
//!                    ├──► stop: no further row is taken; everything that can be delivered is
//!                    └──► wait: the sink tries it again
//! ```
//!
//! Exactly once, nothing is resolved: see `rejected`, which `reject` fills.
//!
//! A refused record blocks all later records of its sequence until its action is taken. If that is a dead-letter record, until that is
//! acknowledged. Other sequences continue meanwhile. A dead-letter record says itself which row it is of, so nothing is kept of a row once
//! the sink has taken its dead-letter record. In: refusals, the time. Out: resolutions for the sink, the row that stops the relay.
//! Invariant: each refusal is resolved at most once. Until then, the slot's position stays before its transaction.

use super::session::Turn;
use super::topics::{DEAD_LETTER_TOPIC_WITHIN, TOPIC_WITHIN};
use super::verdict::{Kind, Seen, Verdict, decide};
use super::{BadRowAction, Clock, Relay, StreamEnd};
use crate::lsn::{Lsn, Position};
use crate::outbox::{BadReason, BadRow, Outbox};
use crate::pgoutput::{Relation, RelationId};
use crate::setting_text::shown;
use crate::sink::dead_letter;
use crate::sink::{
    DUPLICATE, Enqueue, Failure, FailureClass, HeaderRoom, OwnedRecord, Record, RefusalId, Refused, Resolution, Sink,
    Source, Tag, Token,
};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// A dead-letter record that its topic does not take yet is offered again after this time.
const OFFER_AGAIN: Duration = Duration::from_millis(50);

/// Rows whose records are refused and whose action is not finished.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    rows: BTreeMap<Position, (RefusedRow, Stage)>,
    /// The tables that the server has announced, by their identifiers.
    tables: HashMap<u32, String>,
    room: HeaderRoom,
}

#[derive(Debug)]
struct RefusedRow {
    row: BadRow,
    source: Source,
    id: RefusalId,
    /// The token with which the record was enqueued.
    token: Token,
    record: OwnedRecord,
    /// The record is the row's dead-letter record, so the row is counted.
    is_dead_letter: bool,
}

/// The next step for a refused row.
#[derive(Debug)]
enum Stage {
    /// The dead-letter record is to be offered to the sink, not before `at`.
    ToOffer { without_payload: bool, at: Instant },
    /// The row stops the relay. The field has the reason for which the dead-letter topic does not take it either.
    Stop { dead_letter_refused: Option<Failure> },
}

impl Refusals {
    /// Whether no row is refused.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The server announces a table.
    pub(super) fn announced(&mut self, relation: &Relation) {
        let (schema, name) = relation.full_name();
        self.tables.insert(relation.id, format!("{schema}.{name}"));
    }

    /// The name of a table that the server has announced.
    pub(super) fn table(&self, id: RelationId) -> Option<&str> {
        self.tables.get(&id).map(String::as_str)
    }

    /// Forgets all rows, since the sink was recreated.
    pub(super) fn forget(&mut self) {
        self.rows.clear();
    }

    /// Whether a row stops the relay.
    #[inline]
    pub(super) fn stops(&self) -> bool {
        !self.rows.is_empty() && self.stop().is_some()
    }

    /// The first row that stops the relay.
    pub(super) fn stop(&self) -> Option<Position> {
        let mut rows = self.rows.iter();
        rows.find(|(_, (_, stage))| matches!(stage, Stage::Stop { .. })).map(|(position, _)| *position)
    }

    /// Whether a row's dead-letter record still has to be offered.
    pub(super) fn is_deciding(&self) -> bool {
        self.rows.values().any(|(_, stage)| matches!(stage, Stage::ToOffer { .. }))
    }

    /// Describes the row of which a record was made. `error`: the reason why the row is bad, if it is not this failure.
    fn row(&mut self, outbox: &Outbox, refused: &Refused, error: Option<String>) -> BadRow {
        let Refused { tag: Tag { origin, .. }, record, failure, .. } = refused;
        let table = self.source(outbox, origin.source);
        let id = record.with_record(&mut self.room, |record| {
            record.headers.iter().find(|header| header.name == "id").and_then(|header| header.value).map(shown)
        });
        let text = error.unwrap_or_else(|| failure.text.clone());
        let reason = BadReason::Refused { label: failure.reason, text };
        BadRow { table, id, reason }
    }

    /// The name of a row's table, or of its message prefix, for people. `?`: the server has not announced the table to this process.
    pub(super) fn source(&self, outbox: &Outbox, source: Source) -> String {
        let name = match source {
            Source::Table(id) => self.table(id).map(str::to_owned),
            Source::Message(index) => outbox.message_prefix(index).map(|prefix| format!("message {prefix:?}")),
        };
        name.unwrap_or_else(|| "?".to_owned())
    }

    /// The kind of a refused record and, if it is a dead letter, the error that it has of its row. `topic`: the one of dead letters.
    fn kind(&mut self, topic: &str, record: &OwnedRecord) -> (Kind, Option<String>) {
        record.with_record(&mut self.room, |record| match dead_letter::said(record).filter(|_| record.topic == topic) {
            Some(said) => (Kind::DeadLetter { with_payload: record.value.is_some() }, Some(said.error.to_owned())),
            None => (Kind::Row, None),
        })
    }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// The observation about a record of this topic that failed.
    pub(super) fn what_was_seen(&mut self, failure: &Failure, topic: &str, kind: Kind, now: Instant) -> Seen {
        match failure.class {
            FailureClass::Row if failure.reason == DUPLICATE => Seen::Dropped,
            FailureClass::Row => Seen::Fault,
            FailureClass::Topic => {
                let patience = if kind == Kind::Row { TOPIC_WITHIN } else { DEAD_LETTER_TOPIC_WITHIN };
                let is_given_up = self.topics.given_up(topic, now).is_some();
                let is_given_up = is_given_up || self.topics.failed(topic, patience, &self.metrics, now);
                if is_given_up { Seen::TopicGivenUp } else { Seen::Other }
            }
            FailureClass::Environment | FailureClass::LogIn | FailureClass::Client | FailureClass::Unlisted => {
                Seen::Other
            }
        }
    }

    /// Decides on a refused record. Returns the verdict, and the error that the record has of its row if it is a dead letter.
    fn verdict_on(&mut self, refused: &Refused, now: Instant) -> (Verdict, Kind, Option<String>) {
        let action = self.bad_rows.action(refused.tag.origin.position);
        let (kind, error) = match action {
            BadRowAction::DeadLetter => self.refusals.kind(&self.bad_rows.dead_letter_topic, &refused.record),
            BadRowAction::Stop | BadRowAction::Skip => (Kind::Row, None),
        };
        let seen = self.what_was_seen(&refused.failure, refused.record.topic(), kind, now);
        let verdict = decide(action, seen, kind);
        if seen == Seen::TopicGivenUp && kind == Kind::Row && verdict != Verdict::Wait {
            self.topics.give_up(refused.record.topic(), &refused.failure, now);
        }
        (verdict, kind, error)
    }

    /// The sink refuses a record: decides on the row's action, or lets the sink send the record again.
    #[cold]
    pub(super) fn take_refusal(&mut self, refused: Refused) {
        let (position, at) = (refused.tag.origin.position, self.clock.now());
        self.metrics.publish_failure(refused.failure.reason, 1);
        let (verdict, kind, error) = self.verdict_on(&refused, at);
        let is_dead_letter = kind != Kind::Row;
        let stage = match verdict {
            Verdict::Wait => {
                self.sink.resolve(refused.id, Resolution::Retry);
                return;
            }
            Verdict::Skip => None,
            Verdict::DeadLetter { without_payload } => Some(Stage::ToOffer { without_payload, at }),
            Verdict::Stop => Some(Stage::Stop { dead_letter_refused: is_dead_letter.then(|| refused.failure.clone()) }),
        };
        let row = self.refusals.row(&self.outbox, &refused, error);
        let Refused { id, tag: Tag { token, origin }, record, .. } = refused;
        let refused = RefusedRow { row, source: origin.source, id, token, record, is_dead_letter };
        match stage {
            None => self.skip_refused(&refused, position),
            Some(stage) => {
                self.refusals.rows.insert(position, (refused, stage));
                self.take_due_actions();
            }
        }
    }

    /// The row is skipped: its sequence continues.
    fn skip_refused(&mut self, refused: &RefusedRow, position: Position) {
        self.note_skipped(refused.row.id.as_deref(), refused.source, refused.token);
        self.sink.resolve(refused.id, Resolution::Skip);
        self.ledger.withdrawn(refused.token);
        if !refused.is_dead_letter {
            self.count_bad_row(&refused.row, position, "skip");
        }
    }

    /// Exactly once, a refused record fails the transaction: keeps what is known of its row for when it comes again. Returns the failure.
    #[cold]
    pub(super) fn reject(&mut self, refused: Refused) -> Failure {
        let position = refused.tag.origin.position;
        match self.verdict_on(&refused, self.clock.now()) {
            (Verdict::Wait, ..) => {}
            (_, Kind::Row, _) => self.rejected.record(position, refused.failure.clone()),
            (verdict, Kind::DeadLetter { .. }, _) => {
                self.rejected.dead_letter(position, refused.failure.clone(), verdict == Verdict::Stop);
            }
        }
        refused.failure
    }

    /// Offers the sink the dead-letter records that are due.
    pub(super) fn take_due_actions(&mut self) {
        let now = self.clock.now();
        let due = self.refusals.rows.iter().filter_map(|(position, (_, stage))| match *stage {
            Stage::ToOffer { without_payload, at } if at <= now => Some((*position, without_payload)),
            Stage::ToOffer { .. } | Stage::Stop { .. } => None,
        });
        let due: Vec<(Position, bool)> = due.collect();
        for (position, without_payload) in due {
            self.offer_again(position, without_payload, now);
        }
    }

    /// Offers the sink the dead-letter record that replaces the refused one.
    fn offer_again(&mut self, position: Position, without_payload: bool, now: Instant) {
        let Self { refusals, sink, topics, metrics, bad_rows, dead_letter_source, outbox, clock, .. } = self;
        let Refusals { rows, room, .. } = refusals;
        let time = (clock.wall(), outbox.records_have_rows_times());
        let Some((refused, _)) = rows.get(&position) else { return };
        let token = Token { topic: topics.number(&bad_rows.dead_letter_topic, metrics), ..refused.token };
        let (error, at) = (refused.row.reason.to_string(), position.to_string());
        let id = format!("{dead_letter_source}/{at}");
        let mut offer = |record: &Record<'_>| {
            let dead_letter =
                bad_rows.dead_letter(&refused.row, (&error, &at, &id), record.topic, without_payload, time);
            dead_letter.with_record(record, |record| sink.resolve(refused.id, Resolution::ReplaceWith(record, token)))
        };
        let outcome = refused.record.with_record(room, |record| match dead_letter::said(record) {
            Some(said) if refused.is_dead_letter => {
                let sent_millis = time.0.unix_millis();
                dead_letter::with_original(record, &said, said.topic.unwrap_or_default(), sent_millis, &mut offer)
            }
            Some(_) | None => offer(record),
        });
        let kind = Kind::DeadLetter { with_payload: !without_payload };
        let (seen, failure) = match outcome {
            Enqueue::Taken => {
                let Some((refused, _)) = self.refusals.rows.remove(&position) else { return };
                if without_payload {
                    self.note_skipped(refused.row.id.as_deref(), refused.source, refused.token);
                }
                if !refused.is_dead_letter {
                    self.count_bad_row(&refused.row, position, "dead-letter");
                }
                return;
            }
            Enqueue::Full => (Seen::Other, None),
            Enqueue::Bad(failure) => (Seen::Fault, Some(failure)),
            Enqueue::Blocked(failure) => {
                let topic = self.bad_rows.dead_letter_topic.clone();
                (self.what_was_seen(&failure, &topic, kind, now), Some(failure))
            }
        };
        let Some((_, stage)) = self.refusals.rows.get_mut(&position) else { return };
        match decide(BadRowAction::DeadLetter, seen, kind) {
            Verdict::Wait => *stage = Stage::ToOffer { without_payload, at: now + OFFER_AGAIN },
            Verdict::DeadLetter { without_payload } => *stage = Stage::ToOffer { without_payload, at: now },
            Verdict::Skip => {
                if let Some((refused, _)) = self.refusals.rows.remove(&position) {
                    self.skip_refused(&refused, position);
                }
            }
            Verdict::Stop => *stage = Stage::Stop { dead_letter_refused: failure },
        }
    }

    /// Another relay has published everything that commits before `confirmed`: forgets refused rows before it.
    pub(super) fn forget_refusals_before(&mut self, confirmed: Lsn) {
        let rest = self.refusals.rows.split_off(&Position { final_lsn: confirmed, ordinal: 0 });
        for (refused, _) in std::mem::replace(&mut self.refusals.rows, rest).into_values() {
            self.sink.resolve(refused.id, Resolution::Skip);
            self.ledger.withdrawn(refused.token);
        }
    }

    /// Ends the stream if a refused row stops the relay, and everything else is delivered that can be.
    pub(super) fn end_at_refusal(&mut self) -> Turn<()> {
        let in_flight = self.sink.in_flight();
        let is_deciding = self.refusals.is_deciding() || self.notes.are_open();
        if self.refusals.is_empty() || in_flight.records > in_flight.held || is_deciding {
            return Ok(());
        }
        self.stop_at_refusal()
    }

    /// Ends the stream if a refused row stops the relay.
    pub(super) fn stop_at_refusal(&mut self) -> Turn<()> {
        let Some(position) = self.refusals.stop() else { return Ok(()) };
        let Some((RefusedRow { row, is_dead_letter, .. }, Stage::Stop { dead_letter_refused })) =
            self.refusals.rows.remove(&position)
        else {
            return Ok(());
        };
        if !is_dead_letter {
            self.metrics.bad_row(row.reason.label());
        }
        Err(Box::new(StreamEnd::BadRow(self.bad_row_at(row, position, dead_letter_refused))))
    }
}

//! At least once, takes the action for a row whose record the destination refuses.
//!
//! ```text
//!  Refused ──► the row's action ──► skip: its sequence continues
//!                    │         └──► dead-letter record in its place: its sequence continues once that is delivered
//!                    │                          └── refused as well: sent without payload, then stop
//!                    ├──► stop: no further row is taken; everything that can be delivered is
//!                    └──► the topic is at fault: tried again, for 30 s if rows may be skipped, else indefinitely
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
use super::{BadRowAction, Clock, Relay, StreamEnd};
use crate::lsn::Lsn;
use crate::outbox::{BadReason, BadRow, Outbox};
use crate::pgoutput::Relation;
use crate::positions::Position;
use crate::setting_text::shown;
use crate::sink::dead_letter;
use crate::sink::{
    DUPLICATE, Enqueue, Failure, FailureClass, HeaderRoom, Origin, OwnedRecord, Record, RefusalId, Refused, Resolution,
    Sink, Source, Tag, Token,
};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// A dead-letter record that its topic does not take yet is offered again after this time.
const OFFER_AGAIN: Duration = Duration::from_millis(50);

/// Rows whose records are refused and whose action is not finished.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    rows: BTreeMap<Position, RefusedRow>,
    /// The tables that the server has announced, by their identifiers.
    tables: HashMap<u32, String>,
    room: HeaderRoom,
}

#[derive(Debug)]
struct RefusedRow {
    row: BadRow,
    /// The row is a table's, so it is noted if its payload will be in no topic.
    is_of_table: bool,
    id: RefusalId,
    /// The token with which the record was enqueued.
    token: Token,
    record: OwnedRecord,
    /// The record is the row's dead-letter record, so the row is counted.
    is_dead_letter: bool,
    stage: Stage,
}

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
        let stops = |(_, row): &(&Position, &RefusedRow)| matches!(row.stage, Stage::Stop { .. });
        self.rows.iter().find(stops).map(|(position, _)| *position)
    }

    /// Whether a row's dead-letter record still has to be offered.
    pub(super) fn is_deciding(&self) -> bool {
        self.rows.values().any(|row| matches!(row.stage, Stage::ToOffer { .. }))
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
            Source::Table(id) => self.tables.get(&id).cloned(),
            Source::Message(place) => outbox.message_prefix(place).map(|prefix| format!("message {prefix:?}")),
        };
        name.unwrap_or_else(|| "?".to_owned())
    }

    /// The error that a dead-letter record has of its row, and whether it has a payload that can be left out. `None`: it is no dead-letter
    /// record.
    fn dead_letter(&mut self, topic: &str, record: &OwnedRecord) -> Option<(String, bool)> {
        record.with_record(&mut self.room, |record| {
            let said = dead_letter::said(record).filter(|_| record.topic == topic)?;
            Some((said.error.to_owned(), record.value.is_some()))
        })
    }
}

fn position(origin: Origin) -> Position {
    Position { final_lsn: Lsn::new(origin.final_lsn), ordinal: origin.ordinal }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// The sink refuses a record: decides on the row's action, or lets the sink send the record again.
    #[cold]
    pub(super) fn take_refusal(&mut self, refused: Refused) {
        let (position, now) = (position(refused.tag.origin), self.clock.now());
        let (topic, failure) = (refused.record.topic(), &refused.failure);
        self.metrics.publish_failure(failure.reason, 1);
        // The destination dropped the record as a duplicate. Neither a stop nor a dead letter would publish it.
        let is_dropped = failure.reason == DUPLICATE;
        let action = self.bad_rows.action(position);
        let dead_letter = match action {
            BadRowAction::DeadLetter => self.refusals.dead_letter(&self.bad_rows.dead_letter_topic, &refused.record),
            BadRowAction::Stop | BadRowAction::Skip => None,
        };
        let is_decided = match failure.class {
            FailureClass::Row => true,
            FailureClass::Topic if dead_letter.is_some() => self.dead_letter_topic_failed(now),
            FailureClass::Topic if action == BadRowAction::Stop => false,
            FailureClass::Topic => {
                let given_up = self.topics.failed(topic, TOPIC_WITHIN, &self.metrics, now);
                if given_up {
                    self.topics.give_up(topic, failure, now);
                }
                given_up
            }
            FailureClass::Environment | FailureClass::LogIn | FailureClass::Client | FailureClass::Unlisted => false,
        };
        if !is_decided {
            self.sink.resolve(refused.id, Resolution::Retry);
            return;
        }
        let (is_dead_letter, at) = (dead_letter.is_some(), now);
        let (error, stage) = match dead_letter {
            _ if is_dropped => (None, None),
            Some((error, true)) if failure.class == FailureClass::Row => {
                (Some(error), Some(Stage::ToOffer { without_payload: true, at }))
            }
            Some((error, _)) => (Some(error), Some(Stage::Stop { dead_letter_refused: Some(failure.clone()) })),
            None => match action {
                BadRowAction::Skip => (None, None),
                BadRowAction::Stop => (None, Some(Stage::Stop { dead_letter_refused: None })),
                BadRowAction::DeadLetter => (None, Some(Stage::ToOffer { without_payload: false, at })),
            },
        };
        let row = self.refusals.row(&self.outbox, &refused, error);
        let Refused { id, tag: Tag { token, origin }, record, .. } = refused;
        let is_of_table = matches!(origin.source, Source::Table(_));
        let Some(stage) = stage else {
            if is_of_table {
                self.notes.skipped(row.id.as_deref(), token, &mut self.ledger);
            }
            self.sink.resolve(id, Resolution::Skip);
            self.ledger.withdrawn(token);
            if !is_dead_letter {
                self.count_bad_row(&row, position, "skip");
            }
            return;
        };
        let refused = RefusedRow { row, is_of_table, id, token, record, is_dead_letter, stage };
        self.refusals.rows.insert(position, refused);
        self.take_due_actions();
    }

    /// Exactly once, a refused record fails the transaction: keeps what is known of its row for when it comes again. Returns the failure.
    #[cold]
    pub(super) fn reject(&mut self, refused: Refused) -> Failure {
        let Refused { tag, record, failure, .. } = refused;
        let (position, topic, now) = (position(tag.origin), record.topic(), self.clock.now());
        let is_dead_letter = self.refusals.dead_letter(&self.bad_rows.dead_letter_topic, &record).is_some();
        match failure.class {
            FailureClass::Row if is_dead_letter => self.rejected.dead_letter(position, failure.clone(), false),
            FailureClass::Row => self.rejected.record(position, failure.clone()),
            FailureClass::Topic if is_dead_letter => {
                if self.topics.failed(topic, DEAD_LETTER_TOPIC_WITHIN, &self.metrics, now) {
                    self.rejected.dead_letter(position, failure.clone(), true);
                }
            }
            FailureClass::Topic if self.bad_rows.action(position) != BadRowAction::Stop => {
                if self.topics.failed(topic, TOPIC_WITHIN, &self.metrics, now) {
                    self.topics.give_up(topic, &failure, now);
                    self.rejected.record(position, failure.clone());
                }
            }
            FailureClass::Topic
            | FailureClass::Environment
            | FailureClass::LogIn
            | FailureClass::Client
            | FailureClass::Unlisted => {}
        }
        failure
    }

    /// Offers the sink the dead-letter records that are due.
    pub(super) fn take_due_actions(&mut self) {
        let now = self.clock.now();
        let due = |(position, row): (&Position, &RefusedRow)| match row.stage {
            Stage::ToOffer { without_payload, at } if at <= now => Some((*position, without_payload)),
            Stage::ToOffer { .. } | Stage::Stop { .. } => None,
        };
        let due: Vec<(Position, bool)> = self.refusals.rows.iter().filter_map(due).collect();
        for (position, without_payload) in due {
            self.offer_again(position, without_payload, now);
        }
    }

    /// Offers the sink the dead-letter record that takes the place of the refused one.
    fn offer_again(&mut self, position: Position, without_payload: bool, now: Instant) {
        let Self { refusals: Refusals { rows, room, .. }, sink, topics, metrics, bad_rows, .. } = self;
        let Some(refused) = rows.get_mut(&position) else { return };
        let topic = &bad_rows.dead_letter_topic;
        let token = Token { topic: topics.number(topic, metrics), ..refused.token };
        let (error, place) = (refused.row.reason.to_string(), position.to_string());
        let mut offer = |record: &Record<'_>| {
            let dead_letter = bad_rows.dead_letter(&refused.row, (&error, &place), record.topic, without_payload);
            dead_letter.with_record(record, |record| sink.resolve(refused.id, Resolution::ReplaceWith(record, token)))
        };
        let outcome = refused.record.with_record(room, |record| match dead_letter::said(record) {
            Some(said) if refused.is_dead_letter => {
                dead_letter::with_original(record, &said, said.topic.unwrap_or_default(), &mut offer)
            }
            Some(_) | None => offer(record),
        });
        let stage = match outcome {
            Enqueue::Taken => {
                let Some(row) = self.refusals.rows.remove(&position) else { return };
                if without_payload && row.is_of_table {
                    self.notes.skipped(row.row.id.as_deref(), row.token, &mut self.ledger);
                }
                if !row.is_dead_letter {
                    self.count_bad_row(&row.row, position, "dead-letter");
                }
                return;
            }
            Enqueue::Bad(_) if !without_payload => Stage::ToOffer { without_payload: true, at: now },
            Enqueue::Bad(failure) => Stage::Stop { dead_letter_refused: Some(failure) },
            Enqueue::Blocked(failure)
                if failure.class == FailureClass::Topic
                    && topics.failed(topic, DEAD_LETTER_TOPIC_WITHIN, metrics, now) =>
            {
                Stage::Stop { dead_letter_refused: Some(failure) }
            }
            Enqueue::Full | Enqueue::Blocked(_) => Stage::ToOffer { without_payload, at: now + OFFER_AGAIN },
        };
        refused.stage = stage;
    }

    /// Another relay has published everything that commits before `confirmed`: forgets refused rows before it.
    pub(super) fn forget_refusals_before(&mut self, confirmed: Lsn) {
        let rest = self.refusals.rows.split_off(&Position { final_lsn: confirmed, ordinal: 0 });
        for (_, row) in std::mem::replace(&mut self.refusals.rows, rest) {
            self.sink.resolve(row.id, Resolution::Skip);
            self.ledger.withdrawn(row.token);
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
        let Some(RefusedRow { row, is_dead_letter, stage: Stage::Stop { dead_letter_refused }, .. }) =
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

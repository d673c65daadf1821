//! At least once, takes the action for a row whose record waits in the sink as refused: by the destination, or before it was sent.
//!
//! ```text
//!  a bad row whose action is a dead letter waits in the sink for its turn (`bad_rows`) ─┐
//!    ┌──────────────────────────────────────────────────────────────────────────────────┘
//!  Refused ──► the row's action ──► skip: its sequence continues
//!                    │         └──► dead-letter record in its place ──► delivered: its sequence continues
//!                    │                          └── refused as well: sent without payload, then stop
//!                    ├──► stop: no further row is taken; everything that can be delivered is
//!                    └──► the topic is at fault: tried again, for 30 s if rows may be skipped, else indefinitely
//! ```
//!
//! Exactly once, nothing is resolved: see `rejected`, which `reject` fills.
//!
//! A refused record blocks all later records of its sequence until its action is taken. If that is a dead-letter record, until that is
//! acknowledged. Other sequences continue meanwhile. In: refusals, the time. Out: resolutions for the sink, the row that stops the relay.
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
    DUPLICATE, Enqueue, Failure, FailureClass, HeaderRoom, Origin, OwnedRecord, RefusalId, Refused, Resolution, Sink,
    Source, Token,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A dead-letter record that its topic does not take yet is offered again after this time.
const OFFER_AGAIN: Duration = Duration::from_millis(50);

/// If `on_skip` fails for a row, the relay calls it again after this time.
const NOTE_AGAIN: Duration = Duration::from_secs(1);

/// Rows whose records are refused and whose action is not finished.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    rows: BTreeMap<Position, RefusedRow>,
    /// Rows that were refused before their records were sent. These records wait in the sink for their turn.
    unsent: BTreeMap<Position, BadRow>,
    /// Rows that are noted as skipped, and whose dead-letter records the sink has not taken yet. These are offered many times.
    noted: BTreeSet<Position>,
    /// How many dead-letter records with a token were delivered while others with it are still under way: those of one transaction
    /// may share a token, and a report does not say which of them it means.
    delivered: HashMap<Token, u32>,
    /// The tables that the server has announced, by their identifiers.
    tables: HashMap<u32, String>,
    room: HeaderRoom,
}

#[derive(Debug)]
struct RefusedRow {
    row: BadRow,
    /// The row is a table's, so `on_skip` is called before it is skipped.
    is_of_table: bool,
    id: RefusalId,
    /// The token with which the record was enqueued.
    token: Token,
    record: OwnedRecord,
    stage: Stage,
}

impl RefusedRow {
    /// Whether a dead-letter record with this token has taken the place of the row's record.
    fn has_dead_letter(&self, token: Token) -> bool {
        matches!(self.stage, Stage::DeadLetter { token: own, .. } if own == token)
    }
}

#[derive(Debug)]
enum Stage {
    /// The row is to be skipped, not before `at`.
    ToSkip { at: Instant },
    /// The dead-letter record is to be offered to the sink, not before `at`.
    ToOffer { without_payload: bool, at: Instant },
    /// The sink has taken a dead-letter record with this token.
    DeadLetter { without_payload: bool, token: Token },
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
        self.unsent.clear();
        self.noted.clear();
        self.delivered.clear();
    }

    /// The sink has taken the record of a bad row, which is not to be sent.
    pub(super) fn unsent(&mut self, position: Position, row: BadRow) {
        self.unsent.insert(position, row);
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

    /// Whether a row still has to be skipped, or its dead-letter record to be offered.
    pub(super) fn is_deciding(&self) -> bool {
        self.rows.values().any(|row| matches!(row.stage, Stage::ToOffer { .. } | Stage::ToSkip { .. }))
    }

    /// So many dead-letter records with this token were delivered. Returns the rows that are finished with that.
    fn dead_letters_delivered(&mut self, token: Token, records: u32) -> Vec<(Position, BadRow)> {
        if !self.rows.values().any(|row| row.has_dead_letter(token)) {
            return Vec::new();
        }
        *self.delivered.entry(token).or_default() += records;
        self.remove_delivered(token)
    }

    /// Removes and returns the rows whose dead-letter records have this token, once each that is not refused was delivered.
    fn remove_delivered(&mut self, token: Token) -> Vec<(Position, BadRow)> {
        let sent = self.rows.iter().filter(|(_, row)| row.has_dead_letter(token));
        let sent: Vec<Position> = sent.map(|(position, _)| *position).collect();
        if self.delivered.get(&token).is_none_or(|delivered| (*delivered as usize) < sent.len()) {
            return Vec::new();
        }
        self.delivered.remove(&token);
        sent.into_iter().filter_map(|position| Some((position, self.rows.remove(&position)?.row))).collect()
    }

    /// The sink has taken the row's dead-letter record, or the row is skipped.
    pub(super) fn forget_note(&mut self, position: Position) {
        self.noted.remove(&position);
    }

    /// Describes the row of which a record was made.
    fn row(&mut self, outbox: &Outbox, origin: Origin, record: &OwnedRecord, failure: &Failure) -> BadRow {
        let table = match origin.source {
            Source::Table(id) => self.tables.get(&id).cloned(),
            Source::Message(place) => outbox.message_prefix(place).map(|prefix| format!("message {prefix:?}")),
        };
        let id = record.with_record(&mut self.room, |record| {
            record.headers.iter().find(|header| header.name == "id").and_then(|header| header.value).map(shown)
        });
        let reason = BadReason::Refused { label: failure.reason, text: failure.text.clone() };
        BadRow { table: table.unwrap_or_else(|| "?".to_owned()), id, reason }
    }
}

fn position(origin: Origin) -> Position {
    Position { final_lsn: Lsn::new(origin.final_lsn), ordinal: origin.ordinal }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// The sink refuses a record: decides on the row's action, or lets the sink send the record again.
    #[cold]
    pub(super) fn take_refusal(&mut self, refused: Refused) {
        let position = position(refused.tag.origin);
        if let Some(row) = self.refusals.unsent.remove(&position) {
            // The action is a dead letter: with another action, nothing waits for its turn.
            let stage = Stage::ToOffer { without_payload: false, at: self.clock.now() };
            return self.add_refused_row(position, row, refused, stage);
        }
        self.metrics.publish_failure(refused.failure.reason, 1);
        if let Some(RefusedRow { stage: Stage::DeadLetter { without_payload, token }, .. }) =
            self.refusals.rows.get(&position)
        {
            let dead_letter = (*without_payload, *token);
            return self.dead_letter_refused(position, dead_letter, refused);
        }
        // The destination dropped the record as a duplicate. Neither a stop nor a dead letter would publish it.
        let is_dropped = refused.failure.reason == DUPLICATE;
        let action = if is_dropped { BadRowAction::Skip } else { self.bad_rows.action(position) };
        let now = self.clock.now();
        let is_decided = match refused.failure.class {
            FailureClass::Row => true,
            FailureClass::Topic if action == BadRowAction::Stop => false,
            FailureClass::Topic => {
                let topic = refused.record.topic();
                let given_up = self.topics.failed(topic, TOPIC_WITHIN, &self.metrics, now);
                if given_up {
                    self.topics.give_up(topic, &refused.failure, now);
                }
                given_up
            }
            FailureClass::Environment | FailureClass::LogIn | FailureClass::Client => false,
        };
        if is_decided {
            self.take_action(position, action, refused);
        } else {
            self.sink.resolve(refused.id, Resolution::Retry);
        }
    }

    /// Exactly once, a refused record fails the transaction: keeps what is known of its row for when it comes again. Returns the failure.
    #[cold]
    pub(super) fn reject(&mut self, refused: Refused) -> Failure {
        let Refused { tag, record, failure, .. } = refused;
        let (position, topic, now) = (position(tag.origin), record.topic(), self.clock.now());
        let is_dead_letter = topic == self.bad_rows.dead_letter_topic
            && record.with_record(&mut self.refusals.room, |record| dead_letter::said(record).is_some());
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
            FailureClass::Topic | FailureClass::Environment | FailureClass::LogIn | FailureClass::Client => {}
        }
        failure
    }

    /// The row's action is due for the refusal.
    fn take_action(&mut self, position: Position, action: BadRowAction, refused: Refused) {
        let Refused { tag, record, failure, .. } = &refused;
        let row = self.refusals.row(&self.outbox, tag.origin, record, failure);
        let stage = match action {
            BadRowAction::Skip => Stage::ToSkip { at: self.clock.now() },
            // The record is itself a dead-letter record, of a row that is not known any more.
            _ if record.topic() == self.bad_rows.dead_letter_topic => {
                Stage::Stop { dead_letter_refused: Some(failure.clone()) }
            }
            BadRowAction::Stop => Stage::Stop { dead_letter_refused: None },
            BadRowAction::DeadLetter => Stage::ToOffer { without_payload: false, at: self.clock.now() },
        };
        self.add_refused_row(position, row, refused, stage);
    }

    fn add_refused_row(&mut self, position: Position, row: BadRow, refused: Refused, stage: Stage) {
        let Refused { id, tag, record, .. } = refused;
        let is_of_table = matches!(tag.origin.source, Source::Table(_));
        self.refusals.rows.insert(position, RefusedRow { row, is_of_table, id, token: tag.token, record, stage });
        self.take_due_actions();
    }

    /// Skips the rows, and offers the dead-letter records to the sink, that are due.
    pub(super) fn take_due_actions(&mut self) {
        let now = self.clock.now();
        let is_due =
            |row: &RefusedRow| matches!(row.stage, Stage::ToOffer { at, .. } | Stage::ToSkip { at } if at <= now);
        let due: Vec<Position> =
            self.refusals.rows.iter().filter(|(_, row)| is_due(row)).map(|(position, _)| *position).collect();
        for position in due {
            match self.refusals.rows.get(&position).map(|row| &row.stage) {
                Some(Stage::ToSkip { .. }) => self.skip_refused(position, now),
                Some(&Stage::ToOffer { without_payload, .. }) => self.offer_again(position, without_payload, now),
                Some(Stage::DeadLetter { .. } | Stage::Stop { .. }) | None => {}
            }
        }
    }

    /// Calls `on_skip` for a refused row of a table, whose payload will be in no topic. Returns whether that succeeded. If not, `stage` is
    /// tried again later.
    fn note_refused(&mut self, position: Position, stage: Stage) -> bool {
        let row = self.refusals.rows.get(&position).filter(|row| row.is_of_table);
        let is_noted = row.map(|row| row.row.clone()).is_none_or(|row| self.note_skipped_once(position, &row).is_ok());
        if !is_noted && let Some(row) = self.refusals.rows.get_mut(&position) {
            row.stage = stage;
        }
        is_noted
    }

    /// Calls `on_skip` for a row whose payload will be in no topic, once before the sink takes its dead-letter record or skips it. Each
    /// call connects to the database.
    pub(super) fn note_skipped_once(&mut self, position: Position, row: &BadRow) -> Turn<()> {
        if !self.refusals.noted.contains(&position) {
            self.note_skipped(row)?;
            self.refusals.noted.insert(position);
        }
        Ok(())
    }

    fn skip_refused(&mut self, position: Position, now: Instant) {
        if !self.note_refused(position, Stage::ToSkip { at: now + NOTE_AGAIN }) {
            return;
        }
        self.refusals.forget_note(position);
        let Some(RefusedRow { row, id, token, .. }) = self.refusals.rows.remove(&position) else { return };
        self.sink.resolve(id, Resolution::Skip);
        self.ledger.withdrawn(token);
        self.count_bad_row(&row, position, "skip");
    }

    /// Offers the sink the dead-letter record that takes the place of the refused one.
    fn offer_again(&mut self, position: Position, without_payload: bool, now: Instant) {
        if without_payload && !self.note_refused(position, Stage::ToOffer { without_payload, at: now + NOTE_AGAIN }) {
            return;
        }
        let Self { refusals: Refusals { rows, room, .. }, sink, topics, metrics, bad_rows, .. } = self;
        let Some(refused) = rows.get_mut(&position) else { return };
        let topic = &bad_rows.dead_letter_topic;
        let token = Token { topic: topics.number(topic, metrics), ..refused.token };
        let (error, place) = (refused.row.reason.to_string(), position.to_string());
        let outcome = refused.record.with_record(room, |record| {
            let dead_letter = bad_rows.dead_letter(&refused.row, (&error, &place), record.topic, without_payload);
            dead_letter.with_record(record, |record| sink.resolve(refused.id, Resolution::ReplaceWith(record, token)))
        });
        refused.stage = match outcome {
            Enqueue::Taken => Stage::DeadLetter { without_payload, token },
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
        if !matches!(refused.stage, Stage::ToOffer { .. }) {
            self.refusals.forget_note(position);
        }
    }

    /// The dead-letter record of a refused one is refused as well.
    fn dead_letter_refused(&mut self, position: Position, (without_payload, token): (bool, Token), refused: Refused) {
        let Refused { id, failure, .. } = refused;
        let now = self.clock.now();
        let waits = match failure.class {
            FailureClass::Row => false,
            FailureClass::Topic => !self.dead_letter_topic_failed(now),
            FailureClass::Environment | FailureClass::LogIn | FailureClass::Client => true,
        };
        if waits {
            self.sink.resolve(id, Resolution::Retry);
            return;
        }
        let is_last = without_payload || failure.class == FailureClass::Topic;
        if let Some(row) = self.refusals.rows.get_mut(&position) {
            row.id = id;
            row.stage = if is_last {
                Stage::Stop { dead_letter_refused: Some(failure) }
            } else {
                Stage::ToOffer { without_payload: true, at: now }
            };
        }
        self.dead_letters_delivered(token, 0);
        self.take_due_actions();
    }

    /// Records with this token were delivered. Dead-letter records may be among them.
    #[cold]
    pub(super) fn dead_letters_delivered(&mut self, token: Token, records: u32) {
        for (position, row) in self.refusals.dead_letters_delivered(token, records) {
            self.count_bad_row(&row, position, "dead-letter");
        }
    }

    /// Another relay has published everything that commits before `confirmed`: forgets refused rows before it. Records that wait in the sink
    /// for their turn are in flight, as any record.
    pub(super) fn forget_refusals_before(&mut self, confirmed: Lsn) {
        let rest = self.refusals.rows.split_off(&Position { final_lsn: confirmed, ordinal: 0 });
        for (_, row) in std::mem::replace(&mut self.refusals.rows, rest) {
            if let Stage::DeadLetter { token, .. } = row.stage {
                self.refusals.delivered.remove(&token);
            }
            if !matches!(row.stage, Stage::DeadLetter { .. }) {
                self.sink.resolve(row.id, Resolution::Skip);
                self.ledger.withdrawn(row.token);
            }
        }
    }

    /// Ends the stream if a refused row stops the relay, and everything else is delivered that can be.
    pub(super) fn end_at_refusal(&mut self) -> Turn<()> {
        let in_flight = self.sink.in_flight();
        if self.refusals.is_empty() || in_flight.records > in_flight.held || self.refusals.is_deciding() {
            return Ok(());
        }
        self.stop_at_refusal()
    }

    /// Ends the stream if a refused row stops the relay.
    pub(super) fn stop_at_refusal(&mut self) -> Turn<()> {
        let Some(position) = self.refusals.stop() else { return Ok(()) };
        let Some(RefusedRow { row, stage: Stage::Stop { dead_letter_refused }, .. }) =
            self.refusals.rows.remove(&position)
        else {
            return Ok(());
        };
        self.metrics.bad_row(row.reason.label());
        Err(Box::new(StreamEnd::BadRow(self.bad_row_at(row, position, dead_letter_refused))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token { transaction: 1, tick: 2, topic: 3 };

    fn dead_letter() -> RefusedRow {
        RefusedRow {
            row: BadRow { table: "public.outbox".into(), id: None, reason: BadReason::Updated },
            is_of_table: true,
            id: RefusalId(1),
            token: TOKEN,
            record: OwnedRecord::default(),
            stage: Stage::DeadLetter { without_payload: false, token: TOKEN },
        }
    }

    fn at(ordinal: u64) -> Position {
        Position { final_lsn: Lsn::new(10), ordinal }
    }

    #[test]
    fn of_two_dead_letter_records_with_one_token_the_one_that_is_refused_is_not_taken_for_the_one_that_arrived() {
        let mut refusals = Refusals::default();
        refusals.rows.extend([(at(8), dead_letter()), (at(9), dead_letter())]);
        assert!(refusals.dead_letters_delivered(TOKEN, 1).is_empty(), "which one it was is not known yet");
        refusals.rows.get_mut(&at(8)).unwrap().stage = Stage::ToOffer { without_payload: true, at: Instant::now() };
        let over: Vec<Position> =
            refusals.dead_letters_delivered(TOKEN, 0).into_iter().map(|(position, _)| position).collect();
        assert_eq!(over, [at(9)]);
        refusals.rows.get_mut(&at(8)).unwrap().stage = Stage::DeadLetter { without_payload: true, token: TOKEN };
        let over = refusals.dead_letters_delivered(TOKEN, 1);
        assert_eq!((over.len(), refusals.rows.len(), refusals.delivered.len()), (1, 0, 0));
    }
}

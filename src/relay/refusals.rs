//! Handles rows whose records are refused: by the destination, or before they were sent by the relay or the sink.
//!
//! ```text
//!  a row gives no record, or the sink will never take it ──► it waits in the sink for its turn ─┐
//!    ┌──────────────────────────────────────────────────────────────────────────────────────────┘
//!  Refused ──► the row's action ──► skip: its sequence continues
//!                    │         └──► dead-letter record in its place ──► delivered: its sequence continues
//!                    │                          └── refused as well: sent without payload, then stop
//!                    ├──► stop: no further row is taken; everything that can be delivered is
//!                    └──► the topic is at fault: tried again, for 30 s if rows may be skipped, else indefinitely
//! ```
//!
//! Exactly once, nothing is resolved: see `rejected`.
//!
//! A refused record blocks all later records of its sequence until its action is taken. If that is a dead-letter record, until that is
//! acknowledged. Other sequences continue meanwhile. In: refusals, the time. Out: resolutions for the sink, what stops the relay.
//! Invariant: each refusal is resolved at most once. Until then, the slot's position stays before its transaction.

use super::BadRowAction;
use super::rows::{DEAD_LETTER_TOPIC_WITHIN, TOPIC_WITHIN};
use super::session::Turn;
use super::{BadRowAt, Clock, Relay, StreamEnd};
use crate::given::shown;
use crate::lsn::Lsn;
use crate::outbox::{BadReason, BadRow, Outbox};
use crate::pgoutput::Relation;
use crate::positions::Position;
use crate::sink::dead_letter::{self, DeadLetter};
use crate::sink::{
    DUPLICATE, Enqueue, Failure, FailureClass, HeaderRoom, Origin, OwnedRecord, RefusalId, Refused, Resolution, Sink,
    Source, Token,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A dead-letter record that its topic does not take yet is offered again after this time.
const OFFER_AGAIN: Duration = Duration::from_millis(50);

/// If `on_lost` fails for a row, the relay calls it again after this time.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Rows whose records are refused and whose action is not finished.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    cases: BTreeMap<Position, Case>,
    /// Rows that were refused before their records were sent. What there is of those waits in the sink for its turn.
    enqueued: BTreeMap<Position, BadRow>,
    /// Rows whose loss has been noted, and whose dead-letter records the sink has not taken yet. They are offered many times.
    noted: BTreeSet<Position>,
    /// How many dead-letter records with a token were delivered while others with it are still under way: those of one transaction
    /// may share a token, and a report does not say which of them it means.
    arrived: HashMap<Token, u32>,
    /// The tables that the server has announced, by their identifiers.
    tables: HashMap<u32, String>,
    room: HeaderRoom,
}

#[derive(Debug)]
struct Case {
    row: BadRow,
    /// The row is a table's, so `on_lost` is called before it is skipped.
    is_row: bool,
    id: RefusalId,
    /// The token with which it was enqueued.
    token: Token,
    record: OwnedRecord,
    stage: Stage,
}

impl Case {
    /// Whether a dead-letter record with this token stands in its place.
    fn has_dead_letter(&self, token: Token) -> bool {
        matches!(self.stage, Stage::DeadLetter { token: its, .. } if its == token)
    }
}

#[derive(Debug)]
enum Stage {
    /// The row is to be skipped, not before `at`.
    Skipped { at: Instant },
    /// The dead-letter record is to be offered to the sink, not before `at`.
    Offered { bare: bool, at: Instant },
    /// A dead-letter record with this token has been enqueued in its place.
    DeadLetter { bare: bool, token: Token },
    /// The row stops the relay. The field has the reason for which the dead-letter topic does not take it either.
    Stop { dead_letter_refused: Option<Failure> },
}

impl Refusals {
    /// Whether no row is refused.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// The server announces a table.
    pub(super) fn announced(&mut self, relation: &Relation) {
        let (schema, name) = relation.full_name();
        self.tables.insert(relation.id, format!("{schema}.{name}"));
    }

    /// Forgets all rows, since the sink was recreated.
    pub(super) fn forget(&mut self) {
        self.cases.clear();
        self.enqueued.clear();
        self.noted.clear();
        self.arrived.clear();
    }

    /// The sink has taken what there is of a bad row's record.
    pub(super) fn enqueued(&mut self, position: Position, row: BadRow) {
        self.enqueued.insert(position, row);
    }

    /// Whether a row stops the relay.
    #[inline]
    pub(super) fn stops(&self) -> bool {
        !self.cases.is_empty() && self.stop().is_some()
    }

    /// The first row that stops the relay.
    pub(super) fn stop(&self) -> Option<Position> {
        let stops = |(_, case): &(&Position, &Case)| matches!(case.stage, Stage::Stop { .. });
        self.cases.iter().find(stops).map(|(position, _)| *position)
    }

    /// Whether a row still has to be skipped, or its dead-letter record to be offered.
    pub(super) fn is_deciding(&self) -> bool {
        self.cases.values().any(|case| matches!(case.stage, Stage::Offered { .. } | Stage::Skipped { .. }))
    }

    /// So many dead-letter records with this token were delivered. Returns the rows that are finished with that.
    fn delivered(&mut self, token: Token, records: u32) -> Vec<(Position, BadRow)> {
        if !self.cases.values().any(|case| case.has_dead_letter(token)) {
            return Vec::new();
        }
        *self.arrived.entry(token).or_default() += records;
        self.remove_delivered(token)
    }

    /// Removes and returns the rows whose dead-letter records have this token, once each that is not refused was delivered.
    fn remove_delivered(&mut self, token: Token) -> Vec<(Position, BadRow)> {
        let sent = self.cases.iter().filter(|(_, case)| case.has_dead_letter(token));
        let sent: Vec<Position> = sent.map(|(position, _)| *position).collect();
        if self.arrived.get(&token).is_none_or(|arrived| (*arrived as usize) < sent.len()) {
            return Vec::new();
        }
        self.arrived.remove(&token);
        sent.into_iter().filter_map(|position| Some((position, self.cases.remove(&position)?.row))).collect()
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
    /// The sink refuses a record: decides on the row's action, or tries again.
    #[cold]
    pub(super) fn refused(&mut self, refused: Refused) {
        let position = position(refused.tag.origin);
        if let Some(row) = self.refusals.enqueued.remove(&position) {
            // The action is a dead letter, since nothing else waits for its turn.
            return self.handle(position, row, refused, Stage::Offered { bare: false, at: self.clock.now() });
        }
        self.metrics.publish_failure(refused.failure.reason, 1);
        if let Some(Case { stage: Stage::DeadLetter { bare, token }, .. }) = self.refusals.cases.get(&position) {
            let dead_letter = (*bare, *token);
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
            self.decide(position, action, refused);
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

    fn decide(&mut self, position: Position, action: BadRowAction, refused: Refused) {
        let Refused { tag, record, failure, .. } = &refused;
        let row = self.refusals.row(&self.outbox, tag.origin, record, failure);
        let stage = match action {
            BadRowAction::Skip => Stage::Skipped { at: self.clock.now() },
            // The record is itself a dead-letter record, of a row that is not known any more.
            _ if record.topic() == self.bad_rows.dead_letter_topic => {
                Stage::Stop { dead_letter_refused: Some(failure.clone()) }
            }
            BadRowAction::Stop => Stage::Stop { dead_letter_refused: None },
            BadRowAction::DeadLetter => Stage::Offered { bare: false, at: self.clock.now() },
        };
        self.handle(position, row, refused, stage);
    }

    fn handle(&mut self, position: Position, row: BadRow, refused: Refused, stage: Stage) {
        let Refused { id, tag, record, .. } = refused;
        let is_row = matches!(tag.origin.source, Source::Table(_));
        self.refusals.cases.insert(position, Case { row, is_row, id, token: tag.token, record, stage });
        self.offer_dead_letters();
    }

    /// Offers dead-letter records to the sink that are due.
    pub(super) fn offer_dead_letters(&mut self) {
        let now = self.clock.now();
        let due = |case: &Case| matches!(case.stage, Stage::Offered { at, .. } | Stage::Skipped { at } if at <= now);
        let due: Vec<Position> =
            self.refusals.cases.iter().filter(|(_, case)| due(case)).map(|(position, _)| *position).collect();
        for position in due {
            match self.refusals.cases.get(&position).map(|case| &case.stage) {
                Some(Stage::Skipped { .. }) => self.skip_refused(position, now),
                Some(Stage::Offered { .. } | Stage::DeadLetter { .. } | Stage::Stop { .. }) | None => {
                    self.offer_refused(position, now);
                }
            }
        }
    }

    /// Calls `on_lost` for a table's row before it is skipped: its payload will be in no topic. Returns whether that succeeded.
    fn tell_refused(&mut self, position: Position) -> bool {
        let case = self.refusals.cases.get(&position).filter(|case| case.is_row);
        case.map(|case| case.row.clone()).is_none_or(|row| self.note_lost(position, &row).is_ok())
    }

    /// Calls `on_lost` for a row whose dead-letter record goes without its payload, once before the sink takes that. Each call connects to
    /// the database.
    pub(super) fn note_lost(&mut self, position: Position, row: &BadRow) -> Turn<()> {
        if !self.refusals.noted.contains(&position) {
            self.tell_lost(row)?;
            self.refusals.noted.insert(position);
        }
        Ok(())
    }

    /// The sink has taken the row's dead-letter record, or the row is skipped.
    pub(super) fn forget_note(&mut self, position: Position) {
        self.refusals.noted.remove(&position);
    }

    fn skip_refused(&mut self, position: Position, now: Instant) {
        if !self.tell_refused(position) {
            if let Some(case) = self.refusals.cases.get_mut(&position) {
                case.stage = Stage::Skipped { at: now + TELL_AGAIN };
            }
            return;
        }
        self.forget_note(position);
        let Some(Case { row, id, token, .. }) = self.refusals.cases.remove(&position) else { return };
        self.sink.resolve(id, Resolution::Skip);
        self.ledger.withdrawn(token);
        self.count_bad_row(&row, position, "skip");
    }

    fn offer_refused(&mut self, position: Position, now: Instant) {
        let is_bare = |case: &Case| matches!(case.stage, Stage::Offered { bare: true, .. });
        if self.refusals.cases.get(&position).is_some_and(is_bare) && !self.tell_refused(position) {
            if let Some(case) = self.refusals.cases.get_mut(&position) {
                case.stage = Stage::Offered { bare: true, at: now + TELL_AGAIN };
            }
            return;
        }
        let Self { refusals: Refusals { cases, room, .. }, sink, topics, metrics, bad_rows, .. } = self;
        let Some(case) = cases.get_mut(&position) else { return };
        let Stage::Offered { bare, .. } = case.stage else { return };
        let topic = &bad_rows.dead_letter_topic;
        let token = Token { topic: topics.number(topic, metrics), ..case.token };
        let (error, place) = (case.row.reason.to_string(), position.to_string());
        let mut offer = |bare| {
            case.record.with_record(room, |record| {
                let known = || Some(record.topic).filter(|topic| !topic.is_empty());
                let intended = case.row.reason.topic().or_else(known);
                let (error, table, position) = (error.as_str(), case.row.table.as_str(), place.as_str());
                let dead_letter = DeadLetter { topic, error, table, position, intended, without_payload: bare };
                dead_letter.with_record(record, |record| sink.resolve(case.id, Resolution::ReplaceWith(record, token)))
            })
        };
        case.stage = match offer(bare) {
            Enqueue::Taken => Stage::DeadLetter { bare, token },
            Enqueue::Bad(_) if !bare => Stage::Offered { bare: true, at: now },
            Enqueue::Bad(failure) => Stage::Stop { dead_letter_refused: Some(failure) },
            Enqueue::Blocked(failure)
                if failure.class == FailureClass::Topic
                    && topics.failed(topic, DEAD_LETTER_TOPIC_WITHIN, metrics, now) =>
            {
                Stage::Stop { dead_letter_refused: Some(failure) }
            }
            Enqueue::Full | Enqueue::Blocked(_) => Stage::Offered { bare, at: now + OFFER_AGAIN },
        };
        if !matches!(case.stage, Stage::Offered { .. }) {
            self.forget_note(position);
        }
    }

    /// The dead-letter record of a refused one is refused as well.
    fn dead_letter_refused(&mut self, position: Position, (bare, token): (bool, Token), refused: Refused) {
        let Refused { id, failure, .. } = refused;
        let (topic, now) = (&self.bad_rows.dead_letter_topic, self.clock.now());
        let waits = match failure.class {
            FailureClass::Row => false,
            FailureClass::Topic => !self.topics.failed(topic, DEAD_LETTER_TOPIC_WITHIN, &self.metrics, now),
            FailureClass::Environment | FailureClass::LogIn | FailureClass::Client => true,
        };
        if waits {
            self.sink.resolve(id, Resolution::Retry);
            return;
        }
        let is_last = bare || failure.class == FailureClass::Topic;
        if let Some(case) = self.refusals.cases.get_mut(&position) {
            case.id = id;
            case.stage = if is_last {
                Stage::Stop { dead_letter_refused: Some(failure) }
            } else {
                Stage::Offered { bare: true, at: now }
            };
        }
        self.dead_letters_delivered(token, 0);
        self.offer_dead_letters();
    }

    /// Dead-letter records may be among what was delivered.
    #[cold]
    pub(super) fn dead_letters_delivered(&mut self, token: Token, records: u32) {
        for (position, row) in self.refusals.delivered(token, records) {
            self.count_bad_row(&row, position, "dead-letter");
        }
    }

    /// Another relay has published everything that commits before `confirmed`: forgets refused rows before it. Those that wait in the sink for
    /// their turn are in flight, as any record.
    pub(super) fn forget_refusals_before(&mut self, confirmed: Lsn) {
        let rest = self.refusals.cases.split_off(&Position { final_lsn: confirmed, ordinal: 0 });
        for (_, case) in std::mem::replace(&mut self.refusals.cases, rest) {
            if let Stage::DeadLetter { token, .. } = case.stage {
                self.refusals.arrived.remove(&token);
            }
            if !matches!(case.stage, Stage::DeadLetter { .. }) {
                self.sink.resolve(case.id, Resolution::Skip);
                self.ledger.withdrawn(case.token);
            }
        }
    }

    /// Everything that can be delivered is, and a refused row stops the relay.
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
        let Some(Case { row, stage: Stage::Stop { dead_letter_refused }, .. }) = self.refusals.cases.remove(&position)
        else {
            return Ok(());
        };
        self.metrics.bad_row(row.reason.label());
        let dead_letter_refused = dead_letter_refused.map(|failure| (self.bad_rows.dead_letter_topic.clone(), failure));
        let (confirmed, readable) = (self.ledger.flush_lsn(), self.bad_rows.readable);
        Err(Box::new(StreamEnd::BadRow(Box::new(BadRowAt { position, confirmed, row, dead_letter_refused, readable }))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token { transaction: 1, tick: 2, topic: 3 };

    fn dead_letter() -> Case {
        Case {
            row: BadRow { table: "public.outbox".into(), id: None, reason: BadReason::Updated },
            is_row: true,
            id: RefusalId(1),
            token: TOKEN,
            record: OwnedRecord::default(),
            stage: Stage::DeadLetter { bare: false, token: TOKEN },
        }
    }

    fn at(ordinal: u64) -> Position {
        Position { final_lsn: Lsn::new(10), ordinal }
    }

    #[test]
    fn of_two_dead_letter_records_with_one_token_the_one_that_is_refused_is_not_taken_for_the_one_that_arrived() {
        let mut refusals = Refusals::default();
        refusals.cases.extend([(at(8), dead_letter()), (at(9), dead_letter())]);
        assert!(refusals.delivered(TOKEN, 1).is_empty(), "which one it was is not known yet");
        refusals.cases.get_mut(&at(8)).unwrap().stage = Stage::Offered { bare: true, at: Instant::now() };
        let over: Vec<Position> = refusals.delivered(TOKEN, 0).into_iter().map(|(position, _)| position).collect();
        assert_eq!(over, [at(9)]);
        refusals.cases.get_mut(&at(8)).unwrap().stage = Stage::DeadLetter { bare: true, token: TOKEN };
        let over = refusals.delivered(TOKEN, 1);
        assert_eq!((over.len(), refusals.cases.len(), refusals.arrived.len()), (1, 0, 0));
    }
}

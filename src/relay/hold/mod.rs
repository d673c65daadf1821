//! Decides whether records may leave: only while no other relay can have published from the slot.
//!
//! Time runs to the right. A loses the slot, B takes it. `═` means that records leave.
//!
//! ```text
//!      take                                 release
//!       │                                      │ A notices it: NOTICED
//!  A ───┼────────────┼═════════════════════════╪═════┼══════════════┼╌╌╌╌ parked, until an answer ╌╌╌╌╌╌╌╌╌╌╌╌╌╌
//!       │            │   │            │              │              └ lapse: the last proof is over
//!       │            │   │            │              └ without a stream: BELIEVED_FREE, and so long after each answer "nobody's";
//!       │            │   │            │                asked each ASKS_EVERY
//!       │            │   │            └ a record is ASKS_AFTER old: asked each ASKS_EVERY, or each PLAIN_EVERY if no walsender is free;
//!       │            │   │              an answer "yours" proves for LONGEST_PROOF at most, from its question on
//!       │            │   └ sends without a question: each turn of the loop proves for UNASKED
//!       │            └ the predecessor's second is over, and an answer has come since BELIEVED_FREE behind the take, or STAYS_OPEN passed
//!
//!  B ───────────── waits for the slot ─────────┼ take ┼───────── SUCCESSOR_WAITS behind the release ─────────┼══════
//! ```
//!
//! B's second is longer than A needs to notice its stream's end and to lapse: `NOTICED + BELIEVED_FREE < SUCCESSOR_WAITS`. An answer "yours"
//! that proves for longer says that the server will not release the slot before it has waited for A for twice as long.
//!
//! The relay takes no row and sends none unless it has a proof. What proves:
//!
//! | what | proves, from its own time on | for |
//! |---|---|---|
//! | a turn of the loop with an open stream, no record in flight older than [`ASKS_AFTER`], every row that was read taken, and no doubt | the slot is held | [`UNASKED`] |
//! | the answer that the relay's own walsender reads the slot | the slot is held, and was all the time | what the server waits for a silent relay, halved, [`LONGEST_PROOF`] at most: [`HeldSlot::proof`]; without a stream [`BELIEVED_FREE`] |
//! | without a stream: nobody reads it, it stands where the relay left it, and the last proof was not over when that was asked | nobody else has sent anything | [`BELIEVED_FREE`] |
//!
//! Doubt: the loop stood still for [`BELIEVED_FREE`], or the slot was just taken. It lasts until an answer, or for [`STAYS_OPEN`]: a server
//! that has no connection to spare gives no answer, and the loop sees the end of its stream meanwhile.
//!
//! | what an answer says | what follows |
//! |---|---|
//! | another process reads the slot, or it stands further than the relay confirmed | taken over: the sink is closed, if anything is in flight, and the slot is read from where it stands |
//! | another server, or one that was started again | the same, if anything is in flight |
//! | the server accepts nobody while the stream is open, or nobody reads the slot though the stream seems open | the slot is let go: the server shuts down, or the walsender is gone |
//! | **nothing, and the last proof is over** | **the sink is parked**: it sends nothing, keeps every record in its order, and the relay goes on asking. The stream stays. Log and `/readyz` name the question and why it has no answer |
//!
//! A parked sink goes on with the next proof. If the stream has ended meanwhile, it goes on once the relay has taken the slot again and
//! the server says that nobody released it after the relay's last proof; else the slot is read from where it stands. So a healthy stream
//! is never ended because nobody answered, and no stale record leaves because nobody said no.
//!
//! After a takeover, also what was acknowledged and is not confirmed comes again: the other relay may have sent a part of it, old records
//! behind newer ones. Without a stream it is asked for that as well, and a server of version 17 or newer says when the slot was released
//! last; but silence is no takeover: so a restart of the server repeats nothing that was acknowledged.
//!
//! With exactly once, the destination keeps the records of an earlier relay out (`fenced`): nothing is parked. What stays: a server that
//! shuts down is let go, another relay that was seen, and the successor's second for a process that takes the slot for the first time,
//! since the relay before it may have been one with at least once.
//!
//! In: answers, the time by the clock that counts a suspended machine. Out: until when records may leave, and the end of a stream after which
//! none may leave any more. `decision` decides, and this file tells the sink. What the stream brings proves nothing: a walsender in the
//! middle of a large transaction does not read for long, the relay does not read its socket while the sink is full, and a keepalive does
//! not say which status update it answers.

mod decision;

use super::{Clock, Relay, StreamEnd, Turn};
use crate::lsn::Lsn;
use crate::sink::{Committed, Sink};
pub(super) use decision::Hold;
use decision::{HoldVerdict, OtherRelays, SinkState, StreamPhase, Unconfirmed};
use std::time::{Duration, Instant};

/// Once a record is in flight for so long, the relay asks who holds the slot.
const ASKS_AFTER: Duration = Duration::from_secs(1);

/// The time between two questions.
pub const ASKS_EVERY: Duration = Duration::from_millis(250);

/// For so long after an answer, a slot that nobody held, and that is where the relay left it, counts as the relay's.
pub const BELIEVED_FREE: Duration = Duration::from_millis(500);

/// The relay notices a stream's end within so long of the slot's release, unless the process stands still.
const NOTICED: Duration = Duration::from_millis(20);

/// A relay that takes a slot sends nothing for so long after the slot's release. It also waits for [`BELIEVED_FREE`] at least after
/// it took the slot: the relay before it may have found the slot free just then, and keep its records in flight.
pub const SUCCESSOR_WAITS: Duration = Duration::from_secs(1);

const _: () = assert!(
    NOTICED.as_millis() + BELIEVED_FREE.as_millis() < SUCCESSOR_WAITS.as_millis(),
    "a successor sends before its predecessor has lapsed"
);

/// The longest time for which one answer is believed.
const LONGEST_PROOF: Duration = Duration::from_secs(15);

/// A turn of the loop proves the hold for so long without a question, while every record in flight is younger than [`ASKS_AFTER`]. After
/// the slot is taken, the first answer has so long to come.
const UNASKED: Duration = Duration::from_secs(2);

/// The doubt of a standstill, or of a slot that was just taken, is forgotten after so long without an answer.
const STAYS_OPEN: Duration = ASKS_EVERY.saturating_mul(3);

/// The time between two questions that take a connection of their own, each of which is a log-in.
pub const PLAIN_EVERY: Duration = Duration::from_secs(1);

/// If the relay takes no row for so long for want of an answer, it says so.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// The holder of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The walsender with this process id.
    Walsender(u32),
    /// Nobody. The slot's confirmed position is this.
    Nobody(Lsn),
    /// The slot is gone, or another server answers.
    Unknown,
    /// The server accepts no connections.
    NotAccepting,
}

/// An answer to the question who holds the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderAnswer {
    /// When the question was sent, by [`Clock::since_boot`].
    pub asked: Duration,
    /// The holder of the slot.
    pub holder: Holder,
    /// Another holder's application and address, for people, as far as the server shows them.
    pub who: Option<String>,
}

/// Asks the server that the stream came from who holds the slot. Waits for nothing.
pub trait AskHolder: Send {
    /// Asks now, and for two seconds more by itself every [`ASKS_EVERY`]: whoever wants to know more says so again. A thread that a
    /// destination holds up for half a second finds out all the same.
    fn ask(&mut self, now: Duration);

    /// An answer that has come; a question that failed has none.
    fn answer(&mut self) -> Option<HolderAnswer>;

    /// Why the last question has no answer, for people. `None`: it has one, or nobody knows yet.
    fn why_unanswered(&self) -> Option<String> {
        None
    }

    /// Gives the walsender back that questions take, since the relay needs one for its stream. From now on, questions take connections of
    /// another kind.
    fn give_walsender_back(&mut self) {}
}

/// Whether the sink is parked, and what was said of it.
#[derive(Debug, Default)]
pub(super) struct Parking {
    is_parked: bool,
    /// When the sink went on last.
    went_on: Option<Instant>,
    /// Log and `/readyz` say that the relay waits for an answer.
    is_said: bool,
}

/// A slot that the relay has taken.
pub struct HeldSlot {
    /// The server to ask.
    pub asks: Box<dyn AskHolder>,
    /// The process id of the relay's walsender.
    pub walsender: u32,
    /// The moment from which the relay certainly held the slot, by [`Clock::since_boot`].
    pub since: Duration,
    /// How long the server waits for a silent client: the shorter of `wal_sender_timeout` and its socket's timeout. `None`: it
    /// never gives up.
    pub patience: Option<Duration>,
    /// The slot's last release before `since`, by [`Clock::since_boot`]. `None`: the server does not report it, as before version
    /// 17.
    pub released: Option<Duration>,
    /// The relay sends nothing before this moment, by [`Clock::since_boot`].
    pub sends_from: Duration,
    /// The end of the server's WAL when the slot was seen to be free, right before it was taken. `None`: it is not known.
    pub log_end: Option<Lsn>,
}

impl std::fmt::Debug for HeldSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldSlot").field("walsender", &self.walsender).finish_non_exhaustive()
    }
}

impl HeldSlot {
    /// How long an answer that the relay holds the slot proves that it does.
    fn proof(&self) -> Duration {
        self.patience.map_or(LONGEST_PROOF, |patience| (patience / 2).min(LONGEST_PROOF))
    }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// The relay has taken the slot.
    pub fn holds(&mut self, slot: HeldSlot) {
        self.sink.alone_from(slot.log_end.unwrap_or(Lsn::new(u64::MAX)));
        self.hold.slot_taken(slot);
    }

    /// The stream has ended, and with it the server's word that the relay holds the slot.
    pub fn stream_ended(&mut self) {
        self.hold.stream_ended(self.clock.since_boot());
    }

    /// Checks that the relay's unconfirmed records are known to be the newest, although there was no stream until it took the slot again
    /// (`taken`, at `stands_at`). The relay went on asking while it took the slot.
    ///
    /// # Errors
    /// Why they may not be.
    pub fn was_held_until(&mut self, taken: &HeldSlot, stands_at: Lsn) -> Result<(), String> {
        let in_flight = self.awaits_sink();
        let asked = (in_flight || self.is_unfinished()) && self.hold.other_relays == OtherRelays::Unseen;
        let sink = if self.is_parked() {
            SinkState::Parked
        } else if in_flight && !self.fences() {
            SinkState::Sends
        } else {
            SinkState::Idle
        };
        if asked { self.hold.was_held_until(taken, stands_at, sink) } else { Ok(()) }
    }

    /// Whether the destination keeps the records of a relay out that has lost its slot.
    fn fences(&self) -> bool {
        self.is_exactly_once()
    }

    /// The relay needs a walsender for its stream: questions must not take it.
    pub fn needs_walsender(&mut self) {
        self.hold.slot.iter_mut().for_each(|slot| slot.asks.give_walsender_back());
    }

    /// The relay has held the slot for a moment, by this walsender.
    pub fn also_held(&mut self, walsender: u32) {
        self.hold.slot.iter_mut().for_each(|slot| slot.walsender = walsender);
    }

    /// Whether the relay's own stream ended so short a time ago that no other relay can have sent anything since. `released`: the slot's
    /// last release.
    pub fn held_just_now(&self, now: Duration, released: Option<Duration>) -> bool {
        let StreamPhase::Ended { at: ended, .. } = self.hold.stream else { return false };
        let is_own_release = |at: Duration| ended <= at + NOTICED && at <= self.hold.records_may_leave_until;
        now < ended + BELIEVED_FREE && released.is_none_or(is_own_release)
    }

    /// The sink begins anew: it has nothing, and sends what it is given.
    pub(super) fn sink_begins(&mut self) {
        self.parking = Parking::default();
    }

    /// Whether it is known since the stream's end that nobody has taken the slot.
    pub fn is_slot_free(&self) -> bool {
        self.hold.slot.is_none() || matches!(self.hold.stream, StreamPhase::Ended { is_slot_free: true, .. })
    }

    /// Checks that the records in flight may leave, and tells the sink until when.
    pub(super) fn check_hold(&mut self) -> Turn<()> {
        if self.hold.slot.is_none() {
            return Ok(());
        }
        let now = self.clock.since_boot();
        let in_flight = self.awaits_sink();
        let any = in_flight || self.is_unfinished();
        let wall = self.clock.now();
        // A server that shuts down takes no new connection for a note, and waits until the relay has confirmed everything.
        let oldest = self.oldest_unanswered().into_iter().chain(self.ledger.oldest_note()).min();
        let old = oldest.is_some_and(|at| wall.saturating_duration_since(at) >= ASKS_AFTER);
        let is_bounded = in_flight || self.hold.stream.is_open();
        match self.hold.decide(now, Unconfirmed { any, in_flight, old }) {
            HoldVerdict::TakenOver(why) if is_bounded || any && self.hold.other_relays == OtherRelays::Unseen => {
                return Err(Box::new(StreamEnd::SlotTaken(why)));
            }
            HoldVerdict::OtherServer(why) if is_bounded => return Err(Box::new(StreamEnd::SlotTaken(why.to_owned()))),
            HoldVerdict::ServerStops => return Err(Box::new(StreamEnd::ServerStops)),
            HoldVerdict::Unproven if !self.fences() => self.park(now),
            HoldVerdict::Unproven | HoldVerdict::TakenOver(_) | HoldVerdict::OtherServer(_) | HoldVerdict::Holds => {
                self.unpark()?;
            }
        }
        self.say_why_unproven(now);
        if !self.fences() && !self.is_parked() {
            self.sink.hold_until(is_bounded.then_some(self.hold.records_may_leave_until));
        }
        Ok(())
    }

    /// Nothing proves that the slot is the relay's: no record leaves any more.
    fn park(&mut self, now: Duration) {
        if self.parking.is_parked {
            return;
        }
        // First the sink, then the log: nothing waits for the reader of a log line.
        self.sink.park();
        self.parking.is_parked = true;
        let unanswered_for = self.hold.unanswered_since.map(|since| now.saturating_sub(since));
        let why = self.hold.why_unanswered();
        tracing::warn!(
            in_flight = self.in_flight(),
            unanswered_for = ?unanswered_for.unwrap_or_default(),
            why,
            last_proof_was_over = ?now.saturating_sub(self.hold.records_may_leave_until),
            "nothing proves that no other relay holds the slot: sending stops until Postgres answers who does; no data lost"
        );
    }

    /// If the slot is proven to be the relay's again, a parked sink goes on.
    fn unpark(&mut self) -> Turn<()> {
        if !self.parking.is_parked || !self.may_send() {
            return Ok(());
        }
        self.sink.unpark().map_err(|failure| Box::new(StreamEnd::SinkFailed(failure)))?;
        self.parking = Parking { is_parked: false, went_on: Some(self.clock.now()), is_said: false };
        tracing::info!(in_flight = self.in_flight(), "the slot is this relay's: sending goes on, records may repeat");
        Ok(())
    }

    /// Shows that the relay waits for an answer, with records in flight or without.
    fn say_why_unproven(&mut self, now: Duration) {
        let waits_long = !self.fences()
            && self.hold.stream.is_open()
            && !self.hold.waits_for_last_holder
            && now >= self.hold.records_may_leave_until + SAID_AFTER;
        let is_said = self.is_parked() || waits_long;
        if waits_long && !self.parking.is_said && !self.is_parked() {
            let why = self.hold.why_unanswered();
            tracing::warn!(
                why,
                "Postgres does not answer who holds the slot: no row is taken until it does; no data lost"
            );
        }
        self.parking.is_said = is_said;
    }

    /// Why the relay sends nothing, for people: nobody answers who holds the slot.
    pub(super) fn reason_of_hold(&self) -> Option<String> {
        let why = || self.hold.why_unanswered().map(|why| format!(": {why}")).unwrap_or_default();
        self.parking.is_said.then(|| format!("Postgres does not answer who holds the slot{}", why()))
    }

    /// Whether the sink is parked.
    pub fn is_parked(&self) -> bool {
        self.parking.is_parked
    }

    /// Since when the sink owes an answer, if it may send: see [`Relay::oldest_unanswered`]. While it was parked it owed none.
    pub(super) fn unanswered_by_sink(&self) -> Option<Instant> {
        let since = self.oldest_unanswered().filter(|_| !self.is_parked())?;
        Some(self.parking.went_on.map_or(since, |went_on| since.max(went_on)))
    }

    /// The slot's position: the relay has confirmed it, or the slot had it when the relay took the slot.
    pub(super) fn confirmed(&mut self, position: Lsn) {
        self.hold.confirmed = position;
    }

    /// Whether rows may be taken: the relay certainly holds the slot, and the relay does not wait for its last holder.
    pub(super) fn may_send(&self) -> bool {
        let is_proven = || self.fences() || self.hold.is_proven(self.clock.since_boot());
        self.hold.slot.is_none() || !self.waits_for_last_holder() && is_proven()
    }

    /// Whether the second of the slot's last holder is not over, or no answer has said since that the relay still holds the slot.
    pub fn waits_for_last_holder(&self) -> bool {
        self.hold.waits_for_last_holder
    }

    /// As [`Relay::start_over`], where another relay may have published since: what the slot has not confirmed counts as never sent.
    ///
    /// # Errors
    /// The sink cannot be recreated.
    pub fn taken_over(&mut self) -> Result<(), crate::sink::Failure> {
        (self.hold.other_relays, self.transaction.committed) = (OtherRelays::Seen, Committed::Unknown);
        self.start_over()
    }

    /// Whether the walsender that reads the slot now is another relay's, although no other relay was seen before, and something is not
    /// confirmed.
    pub fn is_held_by_another(&self, reader: Option<u32>) -> bool {
        let own = self.hold.slot.as_ref().map(|slot| slot.walsender);
        let is_anothers = reader.is_some_and(|pid| own.is_some_and(|own| self.hold.is_server_restarted || own != pid));
        is_anothers && self.hold.other_relays == OtherRelays::Unseen && (self.awaits_sink() || self.is_unfinished())
    }

    /// Whether another relay may have published what was not confirmed.
    pub(super) fn is_taken_over(&self) -> bool {
        self.hold.other_relays == OtherRelays::Seen
    }

    /// The slot will be read from where it is, which is `confirmed`: what another relay may have sent since then comes again.
    pub fn reads_from(&mut self, confirmed: Lsn) {
        if self.hold.other_relays != OtherRelays::Seen {
            return;
        }
        self.hold.other_relays = OtherRelays::LedgerReset;
        if Lsn::ZERO < confirmed && confirmed < self.ledger.flush_lsn() {
            self.ledger.fall_back_to(confirmed);
        }
    }

    /// The server was started again, or it is another one: none of its walsenders is the relay's.
    pub fn server_started(&mut self) {
        self.hold.is_server_restarted = true;
    }
}

#[cfg(test)]
mod tests;

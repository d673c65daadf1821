//! Decides whether records may leave: only while no other relay can have published from the slot.
//!
//! ```text
//!  streaming, every record in flight younger than a second       sent without a question: the successor waits for a second
//!  one is older, or there is no stream                           asked four times a second: who holds the slot?
//!  rows have waited for the destination for half a second        asked as well: the end of a stream comes behind its rows
//!  the loop stood still                                          asked as well, until an answer has come
//!  the slot was taken half a second ago                          asked, and nothing is sent before the answer
//! ```
//!
//! | answer | means |
//! |---|---|
//! | the relay's walsender | proven, from the moment when the question was sent, for as long as the server waits for the relay: [`HeldSlot::proof`] |
//! | nobody, where the relay left it | proven for [`BELIEVED_FREE`]: whoever takes the slot sends nothing for so long, nor before a second after its release ([`SUCCESSOR_WAITS`]). With a stream that seems open, that is over |
//! | another, or it stands further than the relay confirmed | taken over: see below |
//! | another server, or one that was started again | closed, if anything is in flight |
//! | the server accepts nobody while the stream is open | it shuts down: the slot is let go, the records stay |
//! | none, and what was proven is over | closed |
//!
//! Taken over: the sink is closed, if anything is in flight, and the slot is read from where it stands. Also what was acknowledged and is
//! not confirmed comes again then: the other relay may have sent a part of it, old records behind newer ones. Without a stream it is
//! asked for that as well, and a server of version 17 or newer says when the slot was released last; but silence is no takeover: so a
//! restart of the server repeats nothing that was acknowledged.
//!
//! In: answers, the time by the clock that counts a suspended machine. Out: until when records may leave, and the end of a stream after which
//! none may leave any more. `decision` decides, and this file tells the sink. What the stream brings proves nothing: a walsender in the
//! middle of a large transaction does not read for long, and the relay does not read its socket while the sink is full.

mod decision;

use super::{Clock, Relay, StreamEnd, Turn};
use crate::lsn::Lsn;
use crate::sink::{Committed, Sink};
pub(super) use decision::Hold;
use decision::{HoldVerdict, OtherRelays, StreamState, Unconfirmed};
use std::time::Duration;

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

/// The longest time for which one answer is believed.
const LONGEST_PROOF: Duration = Duration::from_secs(15);

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderAnswer {
    /// When the question was sent, by [`Clock::since_boot`].
    pub asked: Duration,
    /// The holder of the slot.
    pub holder: Holder,
}

/// Asks the server that the stream came from who holds the slot. Waits for nothing.
pub trait AskHolder: Send {
    /// Asks now, and for two seconds more by itself every [`ASKS_EVERY`]: whoever wants to know more says so again. A thread that a
    /// destination holds up for half a second finds out all the same.
    fn ask(&mut self, now: Duration);

    /// An answer that has come; a question that failed has none.
    fn answer(&mut self) -> Option<HolderAnswer>;
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
        self.hold.taken(slot);
    }

    /// The stream has ended, and with it the server's word that the relay holds the slot.
    pub fn stream_ended(&mut self) {
        self.hold.stream_ended(self.clock.since_boot());
    }

    /// Whether the relay's unconfirmed records are known to be the newest, although there was no stream until it took the slot again
    /// (`taken`, at `stands_at`). The relay went on asking while it took the slot.
    pub fn was_held_until(&mut self, taken: &HeldSlot, stands_at: Lsn) -> bool {
        let in_flight = self.awaits_sink();
        let asked = (in_flight || self.is_unfinished()) && self.hold.other_relays == OtherRelays::Unseen;
        !asked || self.hold.was_held_until(taken, stands_at, in_flight)
    }

    /// The relay has held the slot for a moment, by this walsender.
    pub fn also_held(&mut self, walsender: u32) {
        self.hold.slot.iter_mut().for_each(|slot| slot.walsender = walsender);
    }

    /// Whether the relay's own stream ended so short a time ago that no other relay can have sent anything since. `released`: the slot's
    /// last release.
    pub fn held_just_now(&self, now: Duration, released: Option<Duration>) -> bool {
        let StreamState::Ended { at: ended, .. } = self.hold.stream else { return false };
        let is_own_release = |at: Duration| ended <= at + NOTICED && at <= self.hold.records_may_leave_until;
        now < ended + BELIEVED_FREE && released.is_none_or(is_own_release)
    }

    /// Whether it is known since the stream's end that nobody has taken the slot.
    pub fn is_slot_free(&self) -> bool {
        self.hold.slot.is_none() || matches!(self.hold.stream, StreamState::Ended { is_slot_free: true, .. })
    }

    /// Checks that the records in flight may leave, and tells the sink until when.
    pub(super) fn check_hold(&mut self) -> Turn<()> {
        let now = self.clock.since_boot();
        let in_flight = self.awaits_sink();
        let any = in_flight || self.is_unfinished();
        let wall = self.clock.now();
        // A server that shuts down takes no new connection for a note, and waits until the relay has confirmed everything.
        let oldest = self.oldest_unanswered().into_iter().chain(self.ledger.oldest_note()).min();
        let old = oldest.is_some_and(|at| wall.saturating_duration_since(at) >= ASKS_AFTER);
        let is_bounded = in_flight || self.hold.stream.is_open();
        match self.hold.decide(now, Unconfirmed { any, in_flight, old }) {
            HoldVerdict::Unproven(why) if is_bounded => return Err(Box::new(StreamEnd::SlotTaken(why))),
            HoldVerdict::TakenOver(why) if is_bounded || any && self.hold.other_relays == OtherRelays::Unseen => {
                return Err(Box::new(StreamEnd::SlotTaken(why)));
            }
            HoldVerdict::ServerStops => return Err(Box::new(StreamEnd::ServerStops)),
            HoldVerdict::Unproven(_) | HoldVerdict::TakenOver(_) | HoldVerdict::Holds => {}
        }
        if self.hold.slot.is_some() {
            self.sink.hold_until(is_bounded.then_some(self.hold.records_may_leave_until));
        }
        Ok(())
    }

    /// The slot's position: the relay has confirmed it, or the slot had it when the relay took the slot.
    pub(super) fn confirmed(&mut self, position: Lsn) {
        self.hold.confirmed = position;
    }

    /// Whether rows may be taken: the relay certainly holds the slot, and the relay does not wait for its last holder.
    pub(super) fn may_send(&self) -> bool {
        self.hold.slot.is_none()
            || self.clock.since_boot() < self.hold.records_may_leave_until && !self.waits_for_last_holder()
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

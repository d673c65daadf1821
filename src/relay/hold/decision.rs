//! [`Hold`]: what the relay knows about its slot, and what follows from it for the records in flight.
//!
//! In: answers about the slot's holder, turns of the loop, the ends of streams, the time since boot. Out: until when records may leave, and
//! a [`HoldVerdict`] for each turn. This file reads no clock; it asks through [`AskHolder`](super::AskHolder).
//!
//! Invariants: `records_may_leave_until` is later than the present only while no other relay can have sent a record from the slot. Once it
//! is not, no turn makes it so again: an answer does, or a slot that is taken anew. A verdict that ends the stream names what an answer said.
//! The head of `hold` has the rules.

use super::{ASKS_EVERY, BELIEVED_FREE, HeldSlot, Holder, HolderAnswer, STAYS_OPEN, UNASKED};
use crate::lsn::Lsn;
use std::time::Duration;

/// The relay's knowledge of the slot. Without a slot, as in commands that hold none, records always leave.
#[derive(Debug, Default)]
pub(in crate::relay) struct Hold {
    pub(super) slot: Option<HeldSlot>,
    pub(super) stream: StreamPhase,
    /// Records may leave until this moment.
    pub(super) records_may_leave_until: Duration,
    /// When the relay last asked who holds the slot.
    last_asked: Duration,
    /// The last position that the relay has confirmed, or the slot's position when the relay took it. A slot that stands further was moved
    /// by another relay.
    pub(super) confirmed: Lsn,
    pub(super) other_relays: OtherRelays,
    /// The server was started again since the relay took the slot, or it is another one: none of its walsenders is the relay's, and when the
    /// slot was released says nothing.
    pub(super) is_server_restarted: bool,
    /// The second of the slot's last holder is not over, or no answer has said since that the slot is still the relay's: the relay takes no
    /// row.
    pub(super) waits_for_last_holder: bool,
    /// The server ended the last stream before the relay took a row from it, and its reason is behind the rows, unread.
    reason_is_unread: bool,
    /// When the first question was asked of those that have no answer yet.
    pub(super) unanswered_since: Option<Duration>,
}

/// The state of the relay's stream.
#[derive(Debug, Default)]
pub(super) enum StreamPhase {
    /// There was none yet.
    #[default]
    Never,
    Open(OpenStream),
    Ended {
        at: Duration,
        /// An answer since then said that nobody holds the slot.
        is_slot_free: bool,
    },
}

/// The relay's knowledge while its stream seems open.
#[derive(Debug)]
pub(super) struct OpenStream {
    /// The loop's last turn.
    last_turn: Duration,
    /// The last turn in which the relay had taken every row that it had read. The end of a stream comes behind its rows.
    last_caught_up: Duration,
    /// The question that needs an answer before turns prove anything again.
    pub(super) open_question: Option<OpenQuestion>,
    /// The moment of the first question whose answer was that nobody holds the slot, although the stream seems open.
    released_since: Option<Duration>,
}

/// Whether the relay still holds the slot. The question arises when the process stood still, or has taken the slot and not sent anything yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenQuestion {
    /// The last moment at which the relay certainly held the slot.
    held_at: Duration,
    /// When the reason came up last. Answers to earlier questions do not count.
    since: Duration,
}

/// The relay's knowledge of other relays since it took the slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum OtherRelays {
    #[default]
    Unseen,
    /// Another relay may have published. The unconfirmed records of this one may be older than its records.
    Seen,
    /// As `Seen`, and the ledger has been set to the slot's position then.
    LedgerReset,
}

/// The consequence for the records in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HoldVerdict {
    Holds,
    /// Nothing proves any more that no other relay holds the slot: no record in flight may leave until an answer decides.
    Unproven,
    /// Another relay holds it, or held it: what an answer said.
    TakenOver(String),
    /// The slot is gone, or another server answers.
    OtherServer(&'static str),
    /// The server shuts down, or the relay's walsender is gone.
    ServerStops,
}

/// The sink's content when the relay takes its slot again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SinkState {
    /// No record is in flight, or the destination keeps an earlier relay's records out by itself.
    Idle,
    /// Records are in flight, and may have left since the stream's end.
    Sends,
    /// Records are in flight, and none has left since nothing proved any more that the slot was the relay's.
    Parked,
}

/// The records that are not confirmed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unconfirmed {
    /// Records are not acknowledged, or acknowledged and not confirmed.
    pub(super) any: bool,
    /// Records are in flight.
    pub(super) in_flight: bool,
    /// A record has been in flight for longer than [`ASKS_AFTER`](super::ASKS_AFTER).
    pub(super) old: bool,
}

impl StreamPhase {
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    fn open_question(&self) -> Option<OpenQuestion> {
        match self {
            Self::Open(open) => open.open_question,
            Self::Never | Self::Ended { .. } => None,
        }
    }
}

impl OpenStream {
    /// The loop turns. After a standstill, turns prove nothing until an answer has come.
    fn turned(&mut self, now: Duration) {
        if now >= self.last_turn + BELIEVED_FREE {
            let held_at = self.open_question.map_or(self.last_turn, |open_question| open_question.held_at);
            self.open_question = Some(OpenQuestion { held_at, since: now });
        }
        self.open_question = self.open_question.filter(|open_question| now < open_question.since + STAYS_OPEN);
        self.last_turn = now;
    }

    /// An answer to a question of this time says that the relay's walsender holds the slot.
    fn is_held(&mut self, asked: Duration) {
        self.open_question = match self.open_question {
            Some(open_question) if asked < open_question.since => {
                Some(OpenQuestion { held_at: asked, ..open_question })
            }
            Some(_) | None => None,
        };
    }

    /// Whether a turn is no proof that the relay holds the slot.
    fn needs_answer(&self, now: Duration, unconfirmed: Unconfirmed) -> bool {
        let is_behind = now >= self.last_caught_up + BELIEVED_FREE;
        unconfirmed.old || is_behind || self.open_question.is_some() || self.released_since.is_some()
    }
}

impl Hold {
    /// The relay has taken the slot.
    pub(super) fn slot_taken(&mut self, mut slot: HeldSlot) {
        // If the slot is lost and taken again within the predecessor's second, that second goes on.
        let before = self.slot.as_ref().map_or(Duration::ZERO, |slot| slot.sends_from);
        slot.sends_from = slot.sends_from.max(before);
        (self.records_may_leave_until, self.last_asked) = (slot.since + slot.proof().min(UNASKED), Duration::ZERO);
        (self.other_relays, self.is_server_restarted, self.unanswered_since) = (OtherRelays::Unseen, false, None);
        // Who held the slot before takes a release within half a second of its own stream's end for its own. So a relay begins to send only
        // if the slot was its own for longer than that: else it may have been released again already, unnoticed. If that was so the last time,
        // the server ends each stream early: the relay reads why.
        let waits = slot.sends_from > slot.since;
        let reason_was_unread = std::mem::take(&mut self.reason_is_unread);
        let asks_first = waits && !reason_was_unread;
        self.waits_for_last_holder = waits;
        self.stream = StreamPhase::Open(OpenStream {
            last_turn: slot.since,
            last_caught_up: slot.since,
            open_question: asks_first
                .then_some(OpenQuestion { held_at: slot.since, since: slot.since + BELIEVED_FREE }),
            released_since: None,
        });
        self.slot = Some(slot);
    }

    /// Every row that was read has been taken, so that the relay reads on.
    pub(in crate::relay) fn caught_up(&mut self) {
        if let StreamPhase::Open(open) = &mut self.stream {
            open.last_caught_up = open.last_turn;
        }
    }

    /// The stream has ended. The next turn asks at once who holds the slot.
    pub(super) fn stream_ended(&mut self, now: Duration) {
        if let StreamPhase::Open(open) = &self.stream {
            let held_at = open.open_question.map_or(now, |open_question| open_question.held_at);
            self.stream = StreamPhase::Ended { at: now, is_slot_free: false };
            (self.records_may_leave_until, self.last_asked) =
                (self.records_may_leave_until.min(held_at + BELIEVED_FREE), Duration::ZERO);
        }
    }

    /// Checks that no other relay was seen until this one took the slot again (`taken`, at `stands_at`). With records in flight, that no
    /// other relay can have sent anything from the slot. The server's word for that is when the slot was released last: if it was while
    /// the relay was known to hold it, nobody has held it since.
    ///
    /// # Errors
    /// What was seen, or what is not known.
    pub(super) fn was_held_until(&mut self, taken: &HeldSlot, stands_at: Lsn, sink: SinkState) -> Result<(), String> {
        let Some(slot) = &mut self.slot else { return Ok(()) };
        while let Some(HolderAnswer { asked, holder, who }) = slot.asks.answer() {
            let until = match holder {
                Holder::Walsender(pid) if pid == slot.walsender => Duration::MAX,
                Holder::Nobody(confirmed) if confirmed <= self.confirmed => self.records_may_leave_until,
                Holder::Walsender(pid) if pid == taken.walsender => Duration::ZERO,
                Holder::NotAccepting => Duration::ZERO,
                Holder::Unknown if sink == SinkState::Idle => Duration::ZERO,
                Holder::Unknown => return Err(OTHER_SERVER.to_owned()),
                Holder::Walsender(pid) => return Err(held_by(pid, who)),
                Holder::Nobody(confirmed) => return Err(moved(confirmed, self.confirmed)),
            };
            if asked < until {
                self.records_may_leave_until = self.records_may_leave_until.max(asked + BELIEVED_FREE);
            }
        }
        if stands_at > self.confirmed {
            return Err(moved(stands_at, self.confirmed));
        }
        let until = self.records_may_leave_until;
        let released = taken.released.filter(|_| !self.is_server_restarted);
        let is_continuous = taken.since < until;
        match (sink, released) {
            (SinkState::Idle, None) => Ok(()),
            (SinkState::Idle | SinkState::Parked, Some(at)) if at <= until => Ok(()),
            (SinkState::Sends | SinkState::Parked, _) if is_continuous => Ok(()),
            (SinkState::Idle | SinkState::Parked, Some(at)) => Err(format!(
                "another relay may have held the slot: it was released {:?} after this relay last knew that it was its own",
                at.saturating_sub(until)
            )),
            (SinkState::Sends | SinkState::Parked, _) => Err(format!(
                "another relay may have held the slot: nobody said whose it was for {:?} before this relay took it again",
                taken.since.saturating_sub(until)
            )),
        }
    }

    /// Why the last question has no answer, for people.
    pub(super) fn why_unanswered(&self) -> Option<String> {
        self.slot.as_ref()?.asks.why_unanswered()
    }

    /// Whether records may leave now.
    pub(super) fn is_proven(&self, now: Duration) -> bool {
        now < self.records_may_leave_until
    }

    /// Takes the answers that have come, decides on the records in flight, and asks if that is due.
    pub(super) fn decide(&mut self, now: Duration, unconfirmed: Unconfirmed) -> HoldVerdict {
        if self.slot.is_none() {
            return HoldVerdict::Holds;
        }
        if let StreamPhase::Open(open) = &mut self.stream {
            open.turned(now);
        }
        let verdict = match self.take_answers() {
            end @ (HoldVerdict::TakenOver(_) | HoldVerdict::OtherServer(_)) => return end,
            verdict @ (HoldVerdict::Holds | HoldVerdict::Unproven | HoldVerdict::ServerStops) => verdict,
        };
        let is_proven = self.is_proven(now);
        let Some(slot) = &mut self.slot else { return HoldVerdict::Holds };
        if now >= slot.sends_from && self.stream.open_question().is_none() {
            self.waits_for_last_holder = false;
        }
        let asks = match &mut self.stream {
            StreamPhase::Open(open) => {
                let needs_answer = open.needs_answer(now, unconfirmed);
                if is_proven && !needs_answer && verdict == HoldVerdict::Holds {
                    self.records_may_leave_until = self.records_may_leave_until.max(now + slot.proof().min(UNASKED));
                }
                needs_answer || !is_proven
            }
            StreamPhase::Never | StreamPhase::Ended { .. } => {
                unconfirmed.any && self.other_relays == OtherRelays::Unseen
            }
        };
        let is_due = |open_question: OpenQuestion| self.last_asked < open_question.since && open_question.since <= now;
        if asks && (now >= self.last_asked + ASKS_EVERY || self.stream.open_question().is_some_and(is_due)) {
            self.last_asked = now;
            self.unanswered_since.get_or_insert(now);
            slot.asks.ask(now);
        }
        if !asks {
            self.unanswered_since = None;
        }
        if is_proven || !unconfirmed.in_flight || verdict == HoldVerdict::ServerStops {
            return verdict;
        }
        HoldVerdict::Unproven
    }

    /// Takes the answers that have come, which may prove the hold for longer.
    fn take_answers(&mut self) -> HoldVerdict {
        let Some(slot) = &mut self.slot else { return HoldVerdict::Holds };
        let (walsender, proof) = (slot.walsender, slot.proof());
        let mut verdict = HoldVerdict::Holds;
        while let Some(HolderAnswer { asked, holder, who }) = slot.asks.answer() {
            self.unanswered_since = None;
            let proven_for = match (holder, &mut self.stream) {
                (Holder::Walsender(pid), StreamPhase::Open(open)) if pid == walsender => {
                    open.is_held(asked);
                    proof
                }
                (Holder::Walsender(pid), _) if pid == walsender => BELIEVED_FREE,
                (Holder::Walsender(pid), _) => return HoldVerdict::TakenOver(held_by(pid, who)),
                (Holder::Nobody(stands_at), _) if stands_at > self.confirmed => {
                    return HoldVerdict::TakenOver(moved(stands_at, self.confirmed));
                }
                (Holder::Nobody(_), StreamPhase::Open(open)) => {
                    self.records_may_leave_until = self.records_may_leave_until.min(asked + BELIEVED_FREE);
                    // The reason for its end is in the socket. The loop reads the socket first, if there is room for its rows.
                    if asked >= *open.released_since.get_or_insert(asked) + ASKS_EVERY {
                        self.reason_is_unread = self.waits_for_last_holder;
                        verdict = HoldVerdict::ServerStops;
                    }
                    continue;
                }
                (Holder::Nobody(_), StreamPhase::Ended { is_slot_free, .. }) => {
                    *is_slot_free = true;
                    // If nothing proved it when the question was asked, another relay may have come and gone.
                    if asked >= self.records_may_leave_until {
                        continue;
                    }
                    BELIEVED_FREE
                }
                (Holder::Nobody(_), StreamPhase::Never) => BELIEVED_FREE,
                (Holder::NotAccepting, StreamPhase::Open(_)) => {
                    verdict = HoldVerdict::ServerStops;
                    continue;
                }
                (Holder::NotAccepting, StreamPhase::Never | StreamPhase::Ended { .. }) => continue,
                (Holder::Unknown, _) => return HoldVerdict::OtherServer(OTHER_SERVER),
            };
            self.records_may_leave_until = self.records_may_leave_until.max(asked + proven_for);
        }
        verdict
    }
}

/// The words for an answer of another server.
const OTHER_SERVER: &str = "the slot is gone, or another server answers";

/// The words for an answer that names another holder.
fn held_by(pid: u32, who: Option<String>) -> String {
    let who = who.map(|who| format!(" ({who})")).unwrap_or_default();
    format!("another relay holds the slot: process {pid}{who}")
}

/// The words for an answer by which the slot stands further than the relay left it.
fn moved(stands_at: Lsn, left: Lsn) -> String {
    format!("another relay has moved the slot to {stands_at}; this one left it at {left}")
}

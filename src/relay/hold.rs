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
//! | our walsender | proven, from the moment when the question was sent, for as long as the server waits for us: [`HeldSlot::proof`] |
//! | nobody, where we left it | proven for [`BELIEVED_FREE`]: whoever takes the slot sends nothing for so long, nor before a second after its release ([`SUCCESSOR_WAITS`]). With a stream that seems open, that is over |
//! | another, or it stands further than we confirmed | taken over: see below |
//! | another server, or one that was started again | closed, if anything is in flight |
//! | the server accepts nobody while our stream is open | it shuts down: the slot is let go, the records stay |
//! | none, and what was proven is over | closed |
//!
//! Taken over: the sink is closed, if anything is in flight, and the slot is read from where it stands. Also what was acknowledged and is
//! not confirmed comes again then: the other relay may have sent a part of it, old records behind newer ones. Without a stream it is
//! asked for that as well, and a server of version 17 or newer says when the slot was released last; but silence is no takeover: so a
//! restart of the server repeats nothing that was acknowledged.
//!
//! In: answers, the time by the clock that counts a suspended machine. Out: until when records may leave, and that none may any more. What
//! the stream brings proves nothing: a walsender in the middle of a large transaction does not read for long, and our socket is not read
//! while the sink is full.

use super::{Clock, Relay, StreamEnd, Turn};
use crate::lsn::Lsn;
use crate::sink::{Committed, Sink};
use std::time::Duration;

/// Once a record is in flight for so long, the relay asks who holds the slot.
const ASKS_AFTER: Duration = Duration::from_secs(1);

/// The time between two questions.
pub const ASKS_EVERY: Duration = Duration::from_millis(250);

/// A turn of the loop proves the hold for so long without a question, while every record in flight is younger than [`ASKS_AFTER`].
/// After the slot is taken, the first answer has so long to come.
const UNASKED: Duration = Duration::from_secs(2);

/// A doubt without an answer is forgotten after so long: a server that has no connection to spare gives no answer.
const DOUBTS: Duration = ASKS_EVERY.saturating_mul(3);

/// For so long after an answer, a slot that nobody held, and that is where we left it, counts as ours.
pub const BELIEVED_FREE: Duration = Duration::from_millis(500);

/// The relay notices a stream's end within so long of the slot's release, unless the process stands still.
const NOTICED: Duration = Duration::from_millis(20);

/// A relay that takes a slot sends nothing for so long after the slot's release. It also waits for [`BELIEVED_FREE`] at least after
/// it took the slot: the relay before it may have found the slot free just then, and keep its records in flight.
pub const SUCCESSOR_WAITS: Duration = Duration::from_secs(1);

/// If no answer comes for so long, the relay gives up the connection, also with nothing in flight.
const GIVES_UP: Duration = Duration::from_secs(5);

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
    /// Our walsender.
    pub walsender: u32,
    /// The moment from which the slot was certainly ours, by [`Clock::since_boot`].
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
    /// How long an answer that the slot is ours proves that it is.
    fn proof(&self) -> Duration {
        self.patience.map_or(LONGEST_PROOF, |patience| (patience / 2).min(LONGEST_PROOF))
    }
}

/// The knowledge about other relays since the slot was ours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Others {
    #[default]
    Unseen,
    /// Another relay may have published. Our unconfirmed records may be older than its records.
    Seen,
    /// As `Seen`, and the ledger has been set to the slot's position then.
    Heeded,
}

/// Whether the relay may begin to send under a slot that it has taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Begins {
    /// It has begun, or may.
    #[default]
    Yes,
    /// The second of the slot's last holder is not over, or no answer has said since that the slot is still ours.
    NotYet,
}

/// The knowledge about the slot. Without a slot, as in commands that hold none, records always leave.
#[derive(Debug, Default)]
pub(super) struct Hold {
    slot: Option<HeldSlot>,
    /// The stream is open.
    streaming: bool,
    /// Records may leave until then.
    until: Duration,
    asked: Duration,
    /// Since when nothing proves that the slot is ours, while the stream is open.
    unproven: Option<Duration>,
    /// When our last stream ended.
    ended_at: Option<Duration>,
    /// An answer since the stream's end said that nobody holds the slot.
    free: bool,
    /// The last position that we confirmed. A slot that stands further was moved by another relay.
    confirmed: Lsn,
    /// Whether another relay was seen since the slot was ours.
    others: Others,
    /// The server was started again since the slot was ours, or it is another one: none of its walsenders is ours, and when the slot was
    /// released says nothing.
    restarted: bool,
    /// When the loop turned last.
    turned: Duration,
    /// The relay had last taken every row that it had read. The end of a stream comes behind its rows.
    caught_up: Duration,
    /// A reason to ask.
    doubt: Option<Doubt>,
    begins: Begins,
    /// The moment of the first question whose answer was that our walsender is gone, although the stream seems open.
    gone: Option<Duration>,
}

/// The process stood still, or has taken the slot and not sent anything yet: turns prove nothing until an answer has come.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    /// The last moment at which the slot was certainly ours.
    sure: Duration,
    /// When the reason came up last. Answers to earlier questions do not count.
    since: Duration,
}

/// The result of a look at the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldVerdict {
    Holds,
    /// Another relay may have the slot: nothing in flight may leave.
    Unproven(&'static str),
    /// Another relay has it, or had it.
    TakenOver(&'static str),
    ServerStops,
}

/// The records that are not confirmed.
#[derive(Debug, Clone, Copy, Default)]
struct Unconfirmed {
    /// Records are not acknowledged, or acknowledged and not confirmed.
    any: bool,
    /// Records are in flight.
    in_flight: bool,
    /// A record has been in flight for longer than [`ASKS_AFTER`].
    old: bool,
}

impl Hold {
    pub(super) fn taken(&mut self, mut slot: HeldSlot) {
        // If the slot is lost and taken again within the predecessor's second, that second goes on.
        let before = self.slot.as_ref().map_or(Duration::ZERO, |slot| slot.sends_from);
        slot.sends_from = slot.sends_from.max(before);
        (self.streaming, self.until, self.asked) = (true, slot.since + slot.proof().min(UNASKED), Duration::ZERO);
        (self.others, self.restarted) = (Others::Unseen, false);
        (self.turned, self.caught_up) = (slot.since, slot.since);
        self.gone = None;
        // Who held the slot before takes a release within half a second of its own stream's end for its own. So a relay begins to send only
        // if the slot was its own for longer than that: else it may have been released again already, unnoticed. If that was so the last time,
        // the server ends each stream early, and says why behind the rows.
        let waits = slot.sends_from > slot.since;
        let asks_first = waits && self.begins == Begins::Yes;
        self.begins = if waits { Begins::NotYet } else { Begins::Yes };
        self.doubt = asks_first.then_some(Doubt { sure: slot.since, since: slot.since + BELIEVED_FREE });
        self.slot = Some(slot);
    }

    /// Every row that was read has been taken, so that the relay reads on.
    pub(super) fn caught_up(&mut self) {
        self.caught_up = self.turned;
    }

    /// The stream has ended. The next look asks at once who holds the slot.
    fn ended(&mut self, now: Duration) {
        if std::mem::take(&mut self.streaming) {
            self.ended_at = Some(now);
            let sure = self.doubt.take().map_or(now, |doubt| doubt.sure);
            (self.until, self.asked, self.free) = (self.until.min(sure + BELIEVED_FREE), Duration::ZERO, false);
        }
    }

    /// Whether no other relay was seen until `taken` was ours; with records in flight, whether no other relay can have held the
    /// slot.
    fn held_until(&mut self, taken: &HeldSlot, stands_at: Lsn, in_flight: bool) -> bool {
        let Some(slot) = &mut self.slot else { return true };
        while let Some(HolderAnswer { asked, holder }) = slot.asks.answer() {
            match holder {
                Holder::Walsender(pid) if pid == slot.walsender => self.until = self.until.max(asked + BELIEVED_FREE),
                Holder::Nobody(confirmed) if confirmed <= self.confirmed => {
                    self.until = self.until.max(asked + BELIEVED_FREE);
                }
                Holder::Walsender(pid) if pid == taken.walsender => {}
                Holder::NotAccepting => {}
                Holder::Unknown if !in_flight => {}
                Holder::Walsender(_) | Holder::Nobody(_) | Holder::Unknown => return false,
            }
        }
        let was_ours = self.restarted || taken.released.is_none_or(|at| at <= self.until);
        stands_at <= self.confirmed && if in_flight { taken.since < self.until } else { was_ours }
    }

    /// Takes the answers that have come, and decides.
    fn look(&mut self, now: Duration, unconfirmed: Unconfirmed) -> HoldVerdict {
        let Some(slot) = &mut self.slot else { return HoldVerdict::Holds };
        let proof = slot.proof();
        let mut verdict = HoldVerdict::Holds;
        if self.streaming && now >= self.turned + BELIEVED_FREE {
            let sure = self.doubt.map_or(self.turned, |doubt| doubt.sure);
            self.doubt = Some(Doubt { sure, since: now });
        }
        self.doubt = self.doubt.filter(|doubt| now < doubt.since + DOUBTS);
        self.turned = now;
        while let Some(HolderAnswer { asked, holder }) = slot.asks.answer() {
            let proven = match holder {
                Holder::Walsender(pid) if pid == slot.walsender => {
                    self.doubt = match self.doubt {
                        Some(doubt) if asked < doubt.since => Some(Doubt { sure: asked, ..doubt }),
                        _ => None,
                    };
                    if self.streaming { proof } else { BELIEVED_FREE }
                }
                Holder::Nobody(confirmed) if confirmed <= self.confirmed && self.streaming => {
                    self.until = self.until.min(asked + BELIEVED_FREE);
                    // The reason for its end is in the socket. The loop reads the socket first, if there is room for its rows.
                    if asked >= *self.gone.get_or_insert(asked) + ASKS_EVERY {
                        verdict = HoldVerdict::ServerStops;
                    }
                    continue;
                }
                Holder::Nobody(confirmed) if confirmed <= self.confirmed => BELIEVED_FREE,
                Holder::NotAccepting if self.streaming => {
                    verdict = HoldVerdict::ServerStops;
                    continue;
                }
                Holder::NotAccepting => continue,
                Holder::Walsender(_) => return HoldVerdict::TakenOver("another relay holds the slot"),
                Holder::Nobody(_) => return HoldVerdict::TakenOver("another relay has moved the slot"),
                Holder::Unknown => return HoldVerdict::Unproven("the slot is gone, or another server answers"),
            };
            self.until = self.until.max(asked + proven);
            self.free |= !self.streaming && matches!(holder, Holder::Nobody(_));
        }
        if now >= slot.sends_from && self.doubt.is_none() {
            self.begins = Begins::Yes;
        }
        let is_proven = now < self.until;
        let is_behind = now >= self.caught_up + BELIEVED_FREE;
        let is_quiet = self.streaming && !unconfirmed.old && !is_behind && self.doubt.is_none() && self.gone.is_none();
        if is_proven && is_quiet && verdict == HoldVerdict::Holds {
            self.until = self.until.max(now + proof.min(UNASKED));
        }
        // With nothing in flight there is time to ask: most likely the process only stood still.
        let since = if is_proven { None } else { Some(self.unproven.unwrap_or(now)) };
        self.unproven = since.filter(|_| self.streaming);
        if !is_proven && (unconfirmed.in_flight || self.unproven.is_some_and(|since| now >= since + GIVES_UP)) {
            return HoldVerdict::Unproven("nothing proves that no other relay holds the slot");
        }
        let asks = if self.streaming {
            unconfirmed.old || is_behind || !is_proven || self.doubt.is_some() || self.gone.is_some()
        } else {
            unconfirmed.any && self.others == Others::Unseen
        };
        let is_due = |doubt: Doubt| self.asked < doubt.since && doubt.since <= now;
        if asks && (now >= self.asked + ASKS_EVERY || self.doubt.is_some_and(is_due)) {
            self.asked = now;
            slot.asks.ask(now);
        }
        verdict
    }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// The slot is ours.
    pub fn holds(&mut self, slot: HeldSlot) {
        self.sink.alone_from(slot.log_end.unwrap_or(Lsn::new(u64::MAX)));
        self.hold.taken(slot);
    }

    /// The stream has ended, and with it the server's word that the slot is ours.
    pub fn stream_ended(&mut self) {
        self.hold.ended(self.clock.since_boot());
    }

    /// Whether our unconfirmed records are known to be the newest, although there was no stream until `taken` was ours with the
    /// slot at `stands_at`. The relay went on asking while it took the slot.
    pub fn held_until(&mut self, taken: &HeldSlot, stands_at: Lsn) -> bool {
        let in_flight = self.awaits_sink();
        let asked = (in_flight || self.is_unfinished()) && self.hold.others == Others::Unseen;
        !asked || self.hold.held_until(taken, stands_at, in_flight)
    }

    /// The walsender that held the slot for a moment was ours.
    pub fn also_held(&mut self, walsender: u32) {
        self.hold.slot.iter_mut().for_each(|slot| slot.walsender = walsender);
    }

    /// Whether our own stream ended so short a time ago that no other relay can have sent anything since, where the slot was `released`
    /// last then.
    pub fn held_just_now(&self, now: Duration, released: Option<Duration>) -> bool {
        self.hold.ended_at.is_some_and(|ended| {
            let is_our_release = |at: Duration| ended <= at + NOTICED && at <= self.hold.until;
            now < ended + BELIEVED_FREE && released.is_none_or(is_our_release)
        })
    }

    /// Whether it is known since the stream's end that nobody has taken the slot.
    pub fn is_slot_free(&self) -> bool {
        self.hold.slot.is_none() || self.hold.free
    }

    /// Checks that the records in flight may leave, and tells the sink until when.
    pub(super) fn look_at_hold(&mut self) -> Turn<()> {
        let now = self.clock.since_boot();
        let in_flight = self.awaits_sink();
        let any = in_flight || self.is_unfinished();
        let wall = self.clock.now();
        let old = self.oldest_unanswered().is_some_and(|at| wall.saturating_duration_since(at) >= ASKS_AFTER);
        let is_bounded = in_flight || self.hold.streaming;
        match self.hold.look(now, Unconfirmed { any, in_flight, old }) {
            HoldVerdict::Unproven(why) if is_bounded => return Err(Box::new(StreamEnd::SlotTaken(why))),
            HoldVerdict::TakenOver(why) if is_bounded || any && self.hold.others == Others::Unseen => {
                return Err(Box::new(StreamEnd::SlotTaken(why)));
            }
            HoldVerdict::ServerStops => return Err(Box::new(StreamEnd::ServerStops)),
            HoldVerdict::Unproven(_) | HoldVerdict::TakenOver(_) | HoldVerdict::Holds => {}
        }
        if self.hold.slot.is_some() {
            self.sink.hold_until(is_bounded.then_some(self.hold.until));
        }
        Ok(())
    }

    /// The slot's position, which we confirmed, or which it had when we took it.
    pub(super) fn confirmed(&mut self, position: Lsn) {
        self.hold.confirmed = position;
    }

    /// Whether rows may be taken: the slot is ours for certain, and the relay does not wait for its last holder.
    pub(super) fn may_send(&self) -> bool {
        self.hold.slot.is_none() || self.clock.since_boot() < self.hold.until && !self.waits_for_last_holder()
    }

    /// Whether the second of the slot's last holder is not over, or no answer has said since that the slot is still ours.
    pub fn waits_for_last_holder(&self) -> bool {
        self.hold.begins == Begins::NotYet
    }

    /// As [`Relay::start_over`], where another relay may have published since: what the slot has not confirmed counts as never sent.
    ///
    /// # Errors
    /// The sink cannot be recreated.
    pub fn taken_over(&mut self) -> Result<(), crate::sink::Failure> {
        (self.hold.others, self.transaction.committed) = (Others::Seen, Committed::Unknown);
        self.start_over()
    }

    /// Whether the walsender that reads the slot now is another relay's, which is news, and something is not confirmed.
    pub fn is_held_by_another(&self, reader: Option<u32>) -> bool {
        let ours = self.hold.slot.as_ref().map(|slot| slot.walsender);
        let is_anothers = reader.is_some_and(|pid| ours.is_some_and(|ours| self.hold.restarted || ours != pid));
        is_anothers && self.hold.others == Others::Unseen && (self.awaits_sink() || self.is_unfinished())
    }

    /// Whether another relay may have published what was not confirmed.
    pub(super) fn is_taken_over(&self) -> bool {
        self.hold.others == Others::Seen
    }

    /// The slot will be read from where it is, which is `confirmed`: what another relay may have sent since then comes again.
    pub fn reads_from(&mut self, confirmed: Lsn) {
        if self.hold.others != Others::Seen {
            return;
        }
        self.hold.others = Others::Heeded;
        if Lsn::ZERO < confirmed && confirmed < self.ledger.flush_lsn() {
            self.ledger.fall_back_to(confirmed);
        }
    }

    /// The server was started again, or it is another one: none of its walsenders is ours.
    pub fn server_started(&mut self) {
        self.hold.restarted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Server {
        asked: Arc<Mutex<Vec<Duration>>>,
        answers: Arc<Mutex<VecDeque<HolderAnswer>>>,
    }

    impl AskHolder for Server {
        fn ask(&mut self, now: Duration) {
            self.asked.lock().unwrap().push(now);
        }

        fn answer(&mut self) -> Option<HolderAnswer> {
            self.answers.lock().unwrap().pop_front()
        }
    }

    const AT: Lsn = Lsn::new(100);

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn taken(patience: Option<Duration>) -> (Hold, Server) {
        let (mut hold, server) = (Hold::default(), Server::default());
        let asks = Box::new(server.clone());
        hold.taken(HeldSlot {
            asks,
            walsender: 7,
            since: ms(1000),
            patience,
            released: None,
            sends_from: Duration::ZERO,
            log_end: None,
        });
        hold.confirmed = AT;
        (hold, server)
    }

    fn answer(server: &Server, asked: u64, holder: Holder) {
        server.answers.lock().unwrap().push_back(HolderAnswer { asked: ms(asked), holder });
    }

    /// Whether records are in flight, and for longer than a second.
    fn in_flight(in_flight: bool, old: bool) -> Unconfirmed {
        Unconfirmed { any: in_flight, in_flight, old }
    }

    const ACKNOWLEDGED: Unconfirmed = Unconfirmed { any: true, in_flight: false, old: false };

    #[test]
    fn nothing_is_asked_while_records_are_answered_within_a_second() {
        let (mut hold, server) = taken(None);
        for now in (1000..60_000).step_by(100) {
            assert_eq!(hold.look(ms(now), in_flight(now % 200 == 0, false)), HoldVerdict::Holds);
            hold.caught_up();
        }
        assert!(server.asked.lock().unwrap().is_empty());
        assert_eq!(hold.until, ms(61_900));
    }

    #[test]
    fn an_old_record_is_asked_for_four_times_a_second_and_leaves_only_while_the_answers_say_so() {
        let (mut hold, server) = taken(Some(ms(10_000)));
        for now in (1000..2000).step_by(50) {
            assert_eq!(hold.look(ms(now), in_flight(true, true)), HoldVerdict::Holds);
        }
        assert_eq!(*server.asked.lock().unwrap(), [ms(1000), ms(1250), ms(1500), ms(1750)]);
        answer(&server, 1750, Holder::Walsender(7));
        assert_eq!(hold.look(ms(2900), in_flight(true, true)), HoldVerdict::Holds);
        assert_eq!(hold.until, ms(6750), "half of what the server waits for us, from the question on");
        assert_eq!(hold.look(ms(6700), in_flight(true, true)), HoldVerdict::Holds);
        assert!(matches!(hold.look(ms(6750), in_flight(true, true)), HoldVerdict::Unproven(_)));
    }

    #[test]
    fn a_free_slot_is_as_good_as_ours_for_half_a_second_where_we_left_it() {
        let (mut hold, server) = taken(None);
        hold.look(ms(1000), in_flight(true, false));
        hold.ended(ms(1100));
        assert_eq!(hold.until, ms(1600));
        assert_eq!(hold.look(ms(1101), in_flight(true, false)), HoldVerdict::Holds);
        assert_eq!(*server.asked.lock().unwrap(), [ms(1101)]);
        answer(&server, 1400, Holder::Nobody(AT));
        assert_eq!(hold.look(ms(1500), in_flight(true, false)), HoldVerdict::Holds);
        assert_eq!(hold.until, ms(1900));
        answer(&server, 1750, Holder::Nobody(Lsn::new(101)));
        assert!(matches!(hold.look(ms(1800), in_flight(true, false)), HoldVerdict::TakenOver(_)));
    }

    #[test]
    fn what_was_in_flight_goes_on_under_a_slot_that_was_free_until_it_was_taken() {
        let again = |since: u64| {
            let (asks, patience) = (Box::new(Server::default()), None);
            HeldSlot {
                asks,
                walsender: 9,
                since: ms(since),
                patience,
                released: None,
                sends_from: Duration::ZERO,
                log_end: None,
            }
        };
        let (mut hold, server) = taken(None);
        hold.ended(ms(1000));
        answer(&server, 1400, Holder::Nobody(AT));
        answer(&server, 1800, Holder::Walsender(9));
        assert!(hold.held_until(&again(1750), AT, true) && !hold.held_until(&again(1900), AT, true));
        assert!(hold.held_until(&again(1900), AT, false), "nothing is in flight, and nobody was seen");
        assert!(!hold.held_until(&again(1750), Lsn::new(101), false), "another relay has moved the slot");
        assert!(
            !hold.held_until(&HeldSlot { released: Some(ms(1901)), ..again(2000) }, AT, false),
            "another relay has held the slot"
        );
        hold.restarted = true;
        assert!(hold.held_until(&HeldSlot { released: Some(ms(1901)), ..again(2000) }, AT, false));
        answer(&server, 1500, Holder::Walsender(8));
        assert!(!hold.held_until(&again(1750), AT, false));
    }

    #[test]
    fn what_is_acknowledged_and_not_confirmed_is_asked_for_and_given_up_once_another_relay_is_seen() {
        let (mut hold, server) = taken(None);
        hold.ended(ms(1000));
        for now in (1000..60_000).step_by(1000) {
            assert_eq!(hold.look(ms(now), ACKNOWLEDGED), HoldVerdict::Holds, "the server is away");
        }
        assert_eq!(server.asked.lock().unwrap().len(), 59);
        answer(&server, 60_000, Holder::Nobody(Lsn::new(101)));
        assert!(matches!(hold.look(ms(60_000), ACKNOWLEDGED), HoldVerdict::TakenOver(_)));
    }

    #[test]
    fn a_second_that_was_not_over_when_the_slot_was_lost_goes_on() {
        let (mut hold, server) = taken(None);
        let again = |sends_from: Duration| {
            let (asks, patience) = (Box::new(server.clone()), None);
            HeldSlot { asks, walsender: 9, since: ms(1500), patience, released: None, sends_from, log_end: None }
        };
        hold.taken(again(ms(2000)));
        hold.taken(again(Duration::ZERO));
        assert_eq!(hold.slot.map(|slot| slot.sends_from), Some(ms(2000)));
    }

    #[test]
    fn who_has_taken_the_slot_sends_nothing_before_an_answer_says_that_it_is_still_held_half_a_second_later() {
        let (mut hold, server) = (Hold::default(), Server::default());
        let asks = Box::new(server.clone());
        let (sends_from, patience) = (ms(1800), None);
        hold.taken(HeldSlot {
            asks,
            walsender: 7,
            since: ms(1000),
            patience,
            released: None,
            sends_from,
            log_end: None,
        });
        hold.confirmed = AT;
        for now in (1000..1900).step_by(100) {
            answer(&server, now, if now < 1300 { Holder::Walsender(7) } else { Holder::NotAccepting });
            hold.look(ms(now), in_flight(false, false));
        }
        assert_eq!(
            *server.asked.lock().unwrap(),
            [ms(1000), ms(1300), ms(1500), ms(1800)],
            "also as soon as it counts"
        );
        assert_eq!(hold.begins, Begins::NotYet, "the slot may have been released since 1.2 s");
        answer(&server, 1499, Holder::Walsender(7));
        hold.look(ms(1900), in_flight(false, false));
        assert_eq!(hold.begins, Begins::NotYet);
        answer(&server, 1500, Holder::Walsender(7));
        hold.look(ms(1950), in_flight(false, false));
        assert_eq!(hold.begins, Begins::Yes);
    }

    #[test]
    fn a_slot_that_was_lost_before_the_relay_began_to_send_needs_no_answer_the_next_time() {
        let (mut hold, server) = (Hold::default(), Server::default());
        let take = |hold: &mut Hold, since: u64| {
            let (asks, sends_from) = (Box::new(server.clone()), ms(since + 500));
            let slot = HeldSlot {
                asks,
                walsender: 7,
                since: ms(since),
                patience: None,
                released: None,
                sends_from,
                log_end: None,
            };
            hold.taken(slot);
            for now in [since, since + 250, since + 500] {
                hold.look(ms(now), in_flight(false, false));
            }
            let begins = hold.begins;
            hold.ended(ms(since + 750));
            begins
        };
        assert_eq!(take(&mut hold, 1000), Begins::NotYet);
        assert_eq!(take(&mut hold, 3000), Begins::Yes);
        assert_eq!(take(&mut hold, 5000), Begins::NotYet);
    }

    #[test]
    fn a_server_without_a_connection_to_spare_holds_up_a_start_for_less_than_a_second_more() {
        let (mut hold, server) = (Hold::default(), Server::default());
        let (asks, sends_from) = (Box::new(server), ms(2000));
        hold.taken(HeldSlot {
            asks,
            walsender: 7,
            since: ms(1000),
            patience: None,
            released: None,
            sends_from,
            log_end: None,
        });
        let waits = (1000..3000).step_by(50).map(|now| {
            hold.look(ms(now), in_flight(false, false));
            hold.begins == Begins::NotYet
        });
        assert_eq!(waits.filter(|waits| *waits).count(), 25, "until 2.25 s");
    }

    #[test]
    fn a_relay_whose_rows_wait_for_the_destination_asks() {
        let (mut hold, server) = taken(None);
        for now in (1000..1500).step_by(100) {
            assert_eq!(hold.look(ms(now), in_flight(true, false)), HoldVerdict::Holds);
        }
        assert_eq!((hold.until, server.asked.lock().unwrap().len()), (ms(3400), 0));
        assert_eq!(hold.look(ms(1500), in_flight(true, false)), HoldVerdict::Holds);
        assert_eq!((hold.until, server.asked.lock().unwrap().len()), (ms(3400), 1), "turns prove nothing");
        answer(&server, 1500, Holder::Walsender(8));
        assert!(matches!(hold.look(ms(1600), in_flight(true, false)), HoldVerdict::TakenOver(_)));
    }

    #[test]
    fn after_a_standstill_turns_prove_nothing_until_an_answer_says_that_it_is_ours() {
        let (mut hold, server) = taken(None);
        hold.look(ms(1000), in_flight(true, false));
        assert_eq!(hold.look(ms(1600), in_flight(true, false)), HoldVerdict::Holds);
        assert_eq!((hold.until, server.asked.lock().unwrap().len()), (ms(3000), 1));
        answer(&server, 1600, Holder::Walsender(7));
        hold.look(ms(1700), in_flight(true, false));
        assert!(hold.until > ms(3000) && hold.doubt.is_none());
        hold.look(ms(2300), in_flight(true, false));
        hold.ended(ms(2310));
        assert_eq!(hold.until, ms(2200), "half a second from the turn before on");
    }

    #[test]
    fn a_stream_whose_walsender_is_gone_is_let_go() {
        let (mut hold, server) = taken(None);
        answer(&server, 1100, Holder::Nobody(AT));
        assert_eq!(hold.look(ms(1200), in_flight(true, false)), HoldVerdict::Holds, "the socket may say why");
        assert_eq!(hold.until, ms(1600));
        answer(&server, 1350, Holder::Nobody(AT));
        assert_eq!(hold.look(ms(1400), in_flight(true, false)), HoldVerdict::ServerStops);
        assert_eq!(hold.until, ms(1600));
    }

    #[test]
    fn another_holder_another_server_and_silence_close() {
        let (mut hold, server) = taken(None);
        answer(&server, 1100, Holder::Walsender(8));
        assert!(matches!(hold.look(ms(1200), in_flight(true, true)), HoldVerdict::TakenOver(_)));
        answer(&server, 1200, Holder::Unknown);
        assert!(matches!(hold.look(ms(1300), in_flight(true, true)), HoldVerdict::Unproven(_)));
        let (mut hold, _) = taken(None);
        hold.ended(ms(1000));
        assert!(matches!(hold.look(ms(1500), in_flight(true, false)), HoldVerdict::Unproven(_)), "it was frozen");
    }

    #[test]
    fn a_server_that_accepts_nobody_beside_our_stream_is_let_go() {
        let (mut hold, server) = taken(None);
        answer(&server, 1100, Holder::NotAccepting);
        assert_eq!(hold.look(ms(1200), in_flight(true, true)), HoldVerdict::ServerStops);
        hold.ended(ms(1200));
        answer(&server, 1300, Holder::NotAccepting);
        assert_eq!(hold.look(ms(1400), in_flight(true, true)), HoldVerdict::Holds);
        assert!(matches!(hold.look(ms(1700), in_flight(true, true)), HoldVerdict::Unproven(_)));
    }

    #[test]
    fn a_process_that_stood_still_asks_before_it_takes_a_row() {
        let (mut hold, server) = taken(None);
        hold.look(ms(1000), in_flight(false, false));
        assert_eq!(hold.look(ms(90_000), in_flight(false, false)), HoldVerdict::Holds);
        assert!(hold.until < ms(90_000), "no turn proves anything by itself now");
        assert_eq!(*server.asked.lock().unwrap(), [ms(90_000)]);
        answer(&server, 90_000, Holder::Walsender(7));
        hold.look(ms(90_010), in_flight(false, false));
        assert!(hold.until > ms(90_010));
        assert_eq!(hold.look(ms(200_000), in_flight(false, false)), HoldVerdict::Holds);
        assert!(matches!(hold.look(ms(205_000), in_flight(false, false)), HoldVerdict::Unproven(_)), "nobody answers");
    }
}

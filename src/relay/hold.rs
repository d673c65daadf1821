//! Whether records may leave: only while no other relay can have published from the slot.
//!
//! ```text
//!  streaming, every record in flight younger than a second       sent without a question: the successor waits for a second
//!  one is older, or there is no stream                           asked four times a second: who holds the slot?
//! ```
//!
//! | answer | means |
//! |---|---|
//! | our walsender | proven, from the moment when the question was sent, for as long as the server waits for us: [`Slot::proof`] |
//! | nobody, where we left it | proven for [`FREE`]: whoever takes the slot sends nothing for a second ([`SUCCESSOR_WAITS`]) |
//! | another, or it has moved, or it is another server | closed |
//! | the server accepts nobody while our stream is open | it shuts down: the slot is let go, the records stay |
//! | none, and what was proven is over | closed |
//!
//! In: answers, the time by the clock that counts a suspended machine. Out: until when records may leave, and that none may any more. What
//! the stream brings proves nothing: a walsender in the middle of a large transaction does not read for long, and our socket is not read
//! while the sink is full.

use super::{Clock, Ended, Relay, Turn};
use crate::lsn::Lsn;
use crate::sink::Sink;
use std::time::Duration;

/// Records in flight for so long are a reason to ask.
const ASKS_AFTER: Duration = Duration::from_secs(1);

/// How often it is asked.
pub const ASKS_EVERY: Duration = Duration::from_millis(250);

/// What a turn of the loop proves by itself while all that is in flight is younger than [`ASKS_AFTER`]. The first answer has so long.
const UNASKED: Duration = Duration::from_secs(2);

/// How long a slot that nobody held where we left it is as good as ours.
const FREE: Duration = Duration::from_millis(500);

/// What a relay that takes a slot waits for before it sends.
pub const SUCCESSOR_WAITS: Duration = Duration::from_secs(1);

/// How long it is asked in vain, with nothing in flight, before the connection is given up.
const GIVES_UP: Duration = Duration::from_secs(5);

/// The longest time for which one answer is believed.
const LONGEST_PROOF: Duration = Duration::from_secs(15);

/// Who holds the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The walsender with this process id.
    Walsender(u32),
    /// Nobody; the slot has confirmed this.
    Nobody(Lsn),
    /// The slot is gone, or another server answers.
    Unknown,
    /// The server accepts no connections.
    NotAccepting,
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// When the question was sent, by [`Clock::since_boot`].
    pub asked: Duration,
    /// Who holds the slot.
    pub holder: Holder,
}

/// Asks the server that the stream came from who holds the slot. Waits for nothing.
pub trait AskHolder: Send {
    /// Asks now, and for two seconds more by itself every [`ASKS_EVERY`]: whoever wants to know more says so again. A thread that a
    /// destination holds up for half a second finds out all the same.
    fn ask(&mut self, now: Duration);

    /// An answer that has come; a question that failed has none.
    fn answer(&mut self) -> Option<Answer>;
}

/// A slot that was taken.
pub struct Slot {
    /// Who can be asked.
    pub asks: Box<dyn AskHolder>,
    /// Our walsender.
    pub walsender: u32,
    /// When it was ours for certain, by [`Clock::since_boot`].
    pub since: Duration,
    /// The server's patience with us: `wal_sender_timeout`, and that of its socket; `None`: it never gives up.
    pub patience: Option<Duration>,
    /// Nothing is sent before that, by [`Clock::since_boot`].
    pub sends_from: Duration,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("walsender", &self.walsender).finish_non_exhaustive()
    }
}

impl Slot {
    /// How long an answer that the slot is ours proves it.
    fn proof(&self) -> Duration {
        self.patience.map_or(LONGEST_PROOF, |patience| (patience / 2).min(LONGEST_PROOF))
    }
}

/// What is known of the slot. Without one, as in commands that hold none, records always leave.
#[derive(Debug, Default)]
pub(super) struct Hold {
    slot: Option<Slot>,
    /// The stream is open.
    streaming: bool,
    /// Records may leave until then.
    until: Duration,
    asked: Duration,
    /// Since when nothing proves that it is ours, while the stream is open.
    unproven: Option<Duration>,
    /// When our last stream ended.
    ended_at: Option<Duration>,
    /// There was an answer since the stream's end.
    free: bool,
    /// Another relay may have published since the slot was ours: what was not confirmed is not known to be the newest.
    pub(super) passed_on: bool,
}

/// What a turn brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    Closed(&'static str),
    ServerStops,
}

impl Hold {
    pub(super) fn taken(&mut self, slot: Slot) {
        (self.streaming, self.until, self.asked) = (true, slot.since + slot.proof().min(UNASKED), Duration::ZERO);
        self.slot = Some(slot);
    }

    /// The stream has ended: at once it is asked who holds the slot.
    fn ended(&mut self, now: Duration) {
        if std::mem::take(&mut self.streaming) {
            self.ended_at = Some(now);
            (self.until, self.asked, self.free) = (self.until.min(now + FREE), Duration::ZERO, false);
        }
    }

    /// Whether it was proven without a gap until `taken` was ours.
    fn held_until(&mut self, taken: &Slot, flush_lsn: Lsn) -> bool {
        let Some(slot) = &mut self.slot else { return true };
        while let Some(Answer { asked, holder }) = slot.asks.answer() {
            match holder {
                Holder::Walsender(pid) if pid == slot.walsender => self.until = self.until.max(asked + FREE),
                Holder::Nobody(confirmed) if confirmed <= flush_lsn => self.until = self.until.max(asked + FREE),
                Holder::Walsender(pid) if pid == taken.walsender => {}
                Holder::NotAccepting => {}
                Holder::Walsender(_) | Holder::Nobody(_) | Holder::Unknown => return false,
            }
        }
        taken.since < self.until
    }

    /// Looks at what is known; `old`: something in flight is older than [`ASKS_AFTER`]; `any`: something is in flight.
    fn look(&mut self, now: Duration, flush_lsn: Lsn, (any, old): (bool, bool)) -> Verdict {
        let Some(slot) = &mut self.slot else { return Verdict::Holds };
        let proof = slot.proof();
        let mut verdict = Verdict::Holds;
        while let Some(Answer { asked, holder }) = slot.asks.answer() {
            let proven = match holder {
                Holder::Walsender(pid) if pid == slot.walsender => {
                    if self.streaming {
                        proof
                    } else {
                        FREE
                    }
                }
                Holder::Nobody(confirmed) if confirmed <= flush_lsn => FREE,
                Holder::NotAccepting if self.streaming => {
                    verdict = Verdict::ServerStops;
                    continue;
                }
                Holder::NotAccepting => continue,
                Holder::Walsender(_) => return Verdict::Closed("another relay holds the slot"),
                Holder::Nobody(_) => return Verdict::Closed("another relay has moved the slot"),
                Holder::Unknown => return Verdict::Closed("the slot is gone, or another server answers"),
            };
            self.until = self.until.max(asked + proven);
            self.free |= !self.streaming && matches!(holder, Holder::Nobody(_));
        }
        let is_proven = now < self.until;
        if is_proven && self.streaming && !old {
            self.until = self.until.max(now + proof.min(UNASKED));
        }
        // With nothing in flight there is time to ask: the process stood still.
        let since = if is_proven { None } else { Some(self.unproven.unwrap_or(now)) };
        self.unproven = since.filter(|_| self.streaming);
        if !is_proven && (any || self.unproven.is_some_and(|since| now >= since + GIVES_UP)) {
            return Verdict::Closed("nothing proves that no other relay holds the slot");
        }
        let asks = if self.streaming { old || !is_proven } else { any };
        if asks && now >= self.asked + ASKS_EVERY {
            self.asked = now;
            slot.asks.ask(now);
        }
        verdict
    }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// The slot is ours.
    pub fn holds(&mut self, slot: Slot) {
        self.hold.taken(slot);
    }

    /// The stream has ended, and with it the server's word that the slot is ours.
    pub fn stream_ended(&mut self) {
        self.hold.ended(self.clock.since_boot());
    }

    /// Whether no other relay can have sent anything before `taken` was ours, though there was no stream for a while. It was asked on
    /// while that one was taken.
    pub fn held_until(&mut self, taken: &Slot) -> bool {
        self.hold.held_until(taken, self.ledger.flush_lsn())
    }

    /// This walsender, which held the slot for a moment, was ours.
    pub fn also_held(&mut self, walsender: u32) {
        self.hold.slot.iter_mut().for_each(|slot| slot.walsender = walsender);
    }

    /// Whether our own stream ended so short a time ago that no other relay can have sent anything since.
    pub fn held_just_now(&self, now: Duration) -> bool {
        self.hold.ended_at.is_some_and(|ended| now < ended + FREE)
    }

    /// Whether it is known since the stream's end that nobody has taken the slot.
    pub fn is_slot_free(&self) -> bool {
        self.hold.slot.is_none() || self.hold.free
    }

    /// Sees that what is in flight may leave, and for how long.
    pub(super) fn look_at_hold(&mut self) -> Turn<()> {
        let now = self.clock.since_boot();
        let any = self.awaits_sink();
        let wall = self.clock.now();
        let old = self.oldest_unanswered().is_some_and(|at| wall.saturating_duration_since(at) >= ASKS_AFTER);
        let verdict = self.hold.look(now, self.ledger.flush_lsn(), (any, old));
        match verdict {
            Verdict::Closed(why) if any || self.hold.streaming => return Err(Box::new(Ended::SlotTaken(why))),
            Verdict::ServerStops => return Err(Box::new(Ended::ServerStops)),
            Verdict::Closed(_) | Verdict::Holds => {}
        }
        if self.hold.slot.is_some() {
            let is_bounded = any || self.hold.streaming;
            self.sink.hold_until(is_bounded.then_some(self.hold.until));
        }
        Ok(())
    }

    /// Whether rows may be taken: the slot is ours for certain, and its last holder's second is over.
    pub(super) fn may_send(&self) -> bool {
        let Some(slot) = &self.hold.slot else { return true };
        let now = self.clock.since_boot();
        now < self.hold.until && now >= slot.sends_from
    }

    /// As [`Relay::start_over`], where another relay may have published since: what the slot has not confirmed counts as never sent.
    ///
    /// # Errors
    /// The sink cannot be recreated.
    pub fn pass_on(&mut self) -> Result<(), crate::sink::Failure> {
        self.hold.passed_on = true;
        self.start_over()
    }

    /// The slot will be read from where it is, which is `confirmed`: what another relay may have sent since then comes again.
    pub fn reads_from(&mut self, confirmed: Lsn) {
        if std::mem::take(&mut self.hold.passed_on) && Lsn::ZERO < confirmed && confirmed < self.ledger.flush_lsn() {
            self.ledger.left_at(confirmed);
        }
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
        answers: Arc<Mutex<VecDeque<Answer>>>,
    }

    impl AskHolder for Server {
        fn ask(&mut self, now: Duration) {
            self.asked.lock().unwrap().push(now);
        }

        fn answer(&mut self) -> Option<Answer> {
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
        hold.taken(Slot { asks, walsender: 7, since: ms(1000), patience, sends_from: Duration::ZERO });
        (hold, server)
    }

    fn answer(server: &Server, asked: u64, holder: Holder) {
        server.answers.lock().unwrap().push_back(Answer { asked: ms(asked), holder });
    }

    #[test]
    fn nothing_is_asked_while_records_are_answered_within_a_second() {
        let (mut hold, server) = taken(None);
        for now in (1000..60_000).step_by(100) {
            assert_eq!(hold.look(ms(now), AT, (now % 200 == 0, false)), Verdict::Holds);
        }
        assert!(server.asked.lock().unwrap().is_empty());
        assert_eq!(hold.until, ms(61_900));
    }

    #[test]
    fn an_old_record_is_asked_for_four_times_a_second_and_leaves_only_while_the_answers_say_so() {
        let (mut hold, server) = taken(Some(ms(10_000)));
        for now in (1000..2000).step_by(50) {
            assert_eq!(hold.look(ms(now), AT, (true, true)), Verdict::Holds);
        }
        assert_eq!(*server.asked.lock().unwrap(), [ms(1000), ms(1250), ms(1500), ms(1750)]);
        answer(&server, 1750, Holder::Walsender(7));
        assert_eq!(hold.look(ms(2900), AT, (true, true)), Verdict::Holds);
        assert_eq!(hold.until, ms(6750), "half of what the server waits for us, from the question on");
        assert_eq!(hold.look(ms(6700), AT, (true, true)), Verdict::Holds);
        assert!(matches!(hold.look(ms(6750), AT, (true, true)), Verdict::Closed(_)));
    }

    #[test]
    fn a_free_slot_is_as_good_as_ours_for_half_a_second_where_we_left_it() {
        let (mut hold, server) = taken(None);
        hold.look(ms(1000), AT, (true, false));
        hold.ended(ms(1100));
        assert_eq!(hold.until, ms(1600));
        assert_eq!(hold.look(ms(1101), AT, (true, false)), Verdict::Holds);
        assert_eq!(*server.asked.lock().unwrap(), [ms(1101)]);
        answer(&server, 1400, Holder::Nobody(AT));
        assert_eq!(hold.look(ms(1500), AT, (true, false)), Verdict::Holds);
        assert_eq!(hold.until, ms(1900));
        answer(&server, 1750, Holder::Nobody(Lsn::new(101)));
        assert!(matches!(hold.look(ms(1800), AT, (true, false)), Verdict::Closed(_)));
    }

    #[test]
    fn what_was_in_flight_goes_on_under_a_slot_that_was_free_until_it_was_taken() {
        let again = |since: u64| {
            let (asks, patience) = (Box::new(Server::default()), None);
            Slot { asks, walsender: 9, since: ms(since), patience, sends_from: Duration::ZERO }
        };
        let (mut hold, server) = taken(None);
        hold.ended(ms(1000));
        answer(&server, 1400, Holder::Nobody(AT));
        answer(&server, 1800, Holder::Walsender(9));
        assert!(hold.held_until(&again(1750), AT) && !hold.held_until(&again(1900), AT));
        answer(&server, 1500, Holder::Walsender(8));
        assert!(!hold.held_until(&again(1750), AT));
    }

    #[test]
    fn another_holder_another_server_and_silence_close() {
        for holder in [Holder::Walsender(8), Holder::Unknown] {
            let (mut hold, server) = taken(None);
            answer(&server, 1100, holder);
            assert!(matches!(hold.look(ms(1200), AT, (true, true)), Verdict::Closed(_)));
        }
        let (mut hold, _) = taken(None);
        hold.ended(ms(1000));
        assert!(matches!(hold.look(ms(1500), AT, (true, false)), Verdict::Closed(_)), "it was frozen");
    }

    #[test]
    fn a_server_that_accepts_nobody_beside_our_stream_is_let_go() {
        let (mut hold, server) = taken(None);
        answer(&server, 1100, Holder::NotAccepting);
        assert_eq!(hold.look(ms(1200), AT, (true, true)), Verdict::ServerStops);
        hold.ended(ms(1200));
        answer(&server, 1300, Holder::NotAccepting);
        assert_eq!(hold.look(ms(1400), AT, (true, true)), Verdict::Holds);
        assert!(matches!(hold.look(ms(1700), AT, (true, true)), Verdict::Closed(_)));
    }

    #[test]
    fn a_process_that_stood_still_asks_before_it_takes_a_row() {
        let (mut hold, server) = taken(None);
        hold.look(ms(1000), AT, (false, false));
        assert_eq!(hold.look(ms(90_000), AT, (false, false)), Verdict::Holds);
        assert!(hold.until < ms(90_000), "no turn proves anything by itself now");
        assert_eq!(*server.asked.lock().unwrap(), [ms(90_000)]);
        answer(&server, 90_000, Holder::Walsender(7));
        hold.look(ms(90_010), AT, (false, false));
        assert!(hold.until > ms(90_010));
        assert_eq!(hold.look(ms(200_000), AT, (false, false)), Verdict::Holds);
        assert!(matches!(hold.look(ms(205_000), AT, (false, false)), Verdict::Closed(_)), "nobody answers");
    }
}

//! [`Suspects`]: the records among which a client searches for the cause of an answer, and the one that is sent alone.
//!
//! ```text
//!  an answer for several records, which may be any one's fault ──► sixteenths of them, without pauses ──► one record is left
//!  the connection ends for the third time with the same oldest record ──┘                                    │ listed: refused
//!                                                            again after 5, 10, 20, 40, then every 60 s ◄────┘ in no list
//! ```
//!
//! In: the numbers of records, outcomes, the time. Out: how many of them a batch may have, the pauses, and what operators see. Pure.
//! A batch has either suspects or none, so the search never makes another record a suspect. *Sole* suspects may be the cause of a connection's
//! end: a batch of them has the connection for itself.
//! Invariants: the search among N records has at most log16 N + 1 rounds, and each sends a record once more; an answer that is in no list is
//! never made a refusal.

use super::{Fit, KeyId};
use crate::sink::{Failure, Origin, TriedAlone};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// A search divides the records into so many parts.
const PARTS: usize = 16;

/// After so many sendings with an unknown outcome, the end of a connection begins a search.
const ENDS: u32 = 3;

/// The longest pause before a record is sent again whose sending may have stored it.
const LONGEST: Duration = Duration::from_mins(1);

/// A record that may be the cause.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    /// The most records of a batch with it.
    most: usize,
    /// It may be the cause of a connection's end.
    is_sole: bool,
}

/// A record that is sent alone.
#[derive(Debug)]
struct Trial {
    number: u64,
    seen: TriedAlone,
    /// A record of its topic was delivered since the last attempt.
    other_arrived: bool,
}

/// The first record of a key, which was sent, and of which nobody knows whether the destination has it.
#[derive(Debug, Clone, Copy)]
struct Unsure {
    number: u64,
    sendings: u32,
}

/// The suspects of a queue.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    records: HashMap<u64, Suspect>,
    /// How many of `records` are sole.
    sole: usize,
    /// A batch of sole suspects is under way.
    is_sole_under_way: bool,
    /// The records that are sent alone: each is the first of its key.
    trials: BTreeMap<KeyId, Trial>,
    unsure: BTreeMap<KeyId, Unsure>,
}

/// The room of a batch, as far as suspects are concerned.
#[derive(Debug, Default)]
pub(super) struct Room {
    taken: usize,
    /// Whether its records are suspects, and the most that it may have. `None`: it has no record yet.
    of: Option<(bool, usize)>,
    /// Only sole suspects fit.
    only_sole: bool,
}

impl Room {
    /// The room of an empty batch.
    pub(super) fn of(turn: Turn) -> Self {
        Self { only_sole: turn == Turn::Sole, ..Self::default() }
    }
}

/// The records that a batch may have now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Any records but sole suspects.
    Others,
    /// Sole suspects alone.
    Sole,
    /// Nothing, until the records under way are settled.
    Nobody,
}

impl Suspects {
    /// Whether there is nothing to heed.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether no record was ever sent with an unknown outcome, searched for, or sent alone, of those that are in the queue.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.records.is_empty() && self.trials.is_empty() && self.unsure.is_empty()
    }

    /// A record among these is the cause of an answer.
    pub(super) fn search(&mut self, numbers: impl ExactSizeIterator<Item = u64>, is_sole: bool) {
        let most = numbers.len().div_ceil(PARTS);
        self.mark(numbers, most, is_sole);
    }

    /// Lets these records go in batches of at most `most`.
    pub(super) fn mark(&mut self, numbers: impl Iterator<Item = u64>, most: usize, is_sole: bool) {
        for number in numbers {
            let before = self.records.insert(number, Suspect { most: most.max(1), is_sole });
            let was_sole = before.is_some_and(|before| before.is_sole);
            self.sole = self.sole + usize::from(is_sole) - usize::from(was_sole);
        }
    }

    /// The record has left the queue, or is decided on.
    pub(super) fn cleared(&mut self, key: KeyId, number: u64) {
        if let Some(Suspect { is_sole: true, .. }) = self.records.remove(&number) {
            self.sole -= 1;
            self.is_sole_under_way &= self.sole > 0;
        }
        if self.trials.get(&key).is_some_and(|trial| trial.number == number) {
            self.trials.remove(&key);
        }
        if self.unsure.get(&key).is_some_and(|unsure| unsure.number == number) {
            self.unsure.remove(&key);
        }
    }

    /// Whether the record may be a cause.
    pub(super) fn has(&self, number: u64) -> bool {
        self.records.contains_key(&number)
    }

    /// Whether the record may be the cause of a connection's end.
    pub(super) fn is_sole(&self, number: u64) -> bool {
        self.records.get(&number).is_some_and(|suspect| suspect.is_sole)
    }

    /// The records that the next batch may have. `under_way`: how many records are. `is_due`: whether a sole suspect is the first of a key that may be sent.
    pub(super) fn turn(&mut self, under_way: u64, is_due: impl FnOnce(&Self) -> bool) -> Turn {
        if under_way == 0 {
            self.is_sole_under_way = false;
        }
        match () {
            () if self.is_sole_under_way => Turn::Nobody,
            () if self.sole == 0 || !is_due(self) => Turn::Others,
            () if under_way > 0 => Turn::Nobody,
            () => Turn::Sole,
        }
    }

    /// Notes that a batch of sole suspects was taken.
    pub(super) fn took_sole(&mut self) {
        self.is_sole_under_way = true;
    }

    /// Whether the batch that was under way had sole suspects.
    pub(super) fn is_sole_under_way(&self) -> bool {
        self.is_sole_under_way
    }

    /// Whether the batch takes the record.
    pub(super) fn fits(&self, room: &Room, number: u64) -> Fit {
        let suspect = self.records.get(&number);
        if suspect.is_some_and(|suspect| suspect.is_sole) != room.only_sole {
            return Fit::NotThis;
        }
        let most = suspect.map_or(usize::MAX, |suspect| suspect.most);
        match room.of {
            None => Fit::Takes,
            Some((are_suspects, _)) if are_suspects != suspect.is_some() => Fit::NotThis,
            Some((_, limit)) if room.taken < limit.min(most) => Fit::Takes,
            Some(_) => Fit::Full,
        }
    }

    /// Notes that the batch has the record.
    pub(super) fn taken(&self, room: &mut Room, number: u64) {
        let suspect = self.records.get(&number);
        let most = suspect.map_or(usize::MAX, |suspect| suspect.most);
        let limit = room.of.map_or(most, |(_, limit)| limit.min(most));
        (room.taken, room.of) = (room.taken + 1, Some((suspect.is_some(), limit)));
    }

    /// The record was sent, and no answer says what became of it. Returns the pause before it is sent again.
    pub(super) fn unanswered(&mut self, key: KeyId, number: u64) -> Duration {
        let unsure = self.unsure.entry(key).or_insert(Unsure { number, sendings: 0 });
        if unsure.number != number {
            *unsure = Unsure { number, sendings: 0 };
        }
        unsure.sendings = unsure.sendings.saturating_add(1);
        // At once, then after 1, 2, 4 … seconds.
        unsure
            .sendings
            .checked_sub(2)
            .map_or(Duration::ZERO, |doublings| Duration::from_secs(1_u64 << doublings.min(6)).min(LONGEST))
    }

    /// How often the record was sent without an answer.
    pub(super) fn sendings(&self, key: KeyId, number: u64) -> u32 {
        self.unsure.get(&key).filter(|unsure| unsure.number == number).map_or(0, |unsure| unsure.sendings)
    }

    /// Whether the end of a connection begins a search: its oldest record was under way at several ends.
    pub(super) fn is_suspicious(&self, key: KeyId, number: u64) -> bool {
        self.sendings(key, number) + 1 >= ENDS
    }

    /// The record was refused alone, by an answer that is in no list. Returns the pause before it is sent again.
    pub(super) fn refused_alone(
        &mut self,
        (key, number): (KeyId, u64),
        (origin, topic): (Origin, &str),
        answer: &Failure,
        now: Instant,
    ) -> Duration {
        let fresh = || Trial { number, seen: TriedAlone::new(origin, topic, answer, now), other_arrived: false };
        let trial = self.trials.entry(key).or_insert_with(fresh);
        if trial.number != number {
            *trial = fresh();
        }
        trial.seen.refused(answer, std::mem::take(&mut trial.other_arrived))
    }

    /// A record of this topic was delivered.
    pub(super) fn arrived(&mut self, topic: &str) {
        self.trials.values_mut().filter(|trial| trial.seen.topic == topic).for_each(|trial| trial.other_arrived = true);
    }

    /// Whether a record is sent alone.
    #[inline]
    pub(super) fn has_trials(&self) -> bool {
        !self.trials.is_empty()
    }

    /// The record that is sent alone; of several, the one that was enqueued first.
    pub(super) fn tried_alone(&self) -> Option<&TriedAlone> {
        self.trials.values().min_by_key(|trial| trial.number).map(|trial| &trial.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureClass;

    #[test]
    fn a_search_among_thousands_ends_after_four_rounds_with_one_record() {
        let (mut suspects, mut left, mut rounds) = (Suspects::default(), 4000_u32, 0);
        while left > 1 {
            suspects.search((0..left).map(u64::from), true);
            let mut room = Room::of(Turn::Sole);
            let taken = (0..u64::from(left)).take_while(|number| {
                let takes = suspects.fits(&room, *number) == Fit::Takes;
                suspects.taken(&mut room, *number);
                takes
            });
            left = u32::try_from(taken.count()).unwrap();
            rounds += 1;
        }
        assert!(rounds <= 4 && suspects.is_sole(0), "{rounds}");
    }

    #[test]
    fn a_batch_has_suspects_or_others_and_sole_ones_wait_for_the_connection() {
        let mut suspects = Suspects::default();
        suspects.search([1, 2, 3].into_iter(), false);
        let mut room = Room::default();
        assert_eq!(suspects.fits(&room, 1), Fit::Takes);
        suspects.taken(&mut room, 1);
        assert_eq!([2, 7].map(|number| suspects.fits(&room, number)), [Fit::Full, Fit::NotThis]);
        let mut room = Room::default();
        suspects.taken(&mut room, 7);
        assert_eq!([8, 2].map(|number| suspects.fits(&room, number)), [Fit::Takes, Fit::NotThis]);
        assert_eq!(suspects.turn(3, |_| true), Turn::Others, "none is sole");
        suspects.search([4, 5].into_iter(), true);
        assert_eq!(suspects.fits(&Room::default(), 4), Fit::NotThis);
        assert_eq!(suspects.turn(3, |_| true), Turn::Nobody, "the others come first");
        assert_eq!(suspects.turn(0, |_| true), Turn::Sole);
        suspects.took_sole();
        assert_eq!(suspects.turn(1, |_| false), Turn::Nobody);
        assert_eq!(suspects.turn(0, |_| false), Turn::Others, "while it pauses, others go on");
        for number in [4, 5] {
            suspects.cleared(KeyId(0), number);
        }
        assert_eq!(suspects.turn(1, |_| true), Turn::Others);
    }

    #[test]
    fn pauses_grow_for_each_record_by_itself() {
        let (mut suspects, key) = (Suspects::default(), KeyId(1));
        let pauses: Vec<u64> = (0..10).map(|_| suspects.unanswered(key, 7).as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(suspects.unanswered(KeyId(2), 8), Duration::ZERO);
        assert_eq!(suspects.unanswered(key, 9), Duration::ZERO, "the key's next record");
        let answer = Failure::new(FailureClass::Unlisted, "unlisted", "ERR no");
        let now = Instant::now();
        let refuse = |suspects: &mut Suspects| {
            suspects.refused_alone((key, 9), (Origin::default(), "orders"), &answer, now).as_secs()
        };
        suspects.arrived("orders");
        assert_eq!([(); 7].map(|()| refuse(&mut suspects)), [5, 10, 20, 40, 60, 60, 60]);
        assert!(!suspects.tried_alone().unwrap().others_arrive);
        suspects.arrived("others");
        refuse(&mut suspects);
        assert!(!suspects.tried_alone().unwrap().others_arrive, "of another topic");
        suspects.arrived("orders");
        refuse(&mut suspects);
        let seen = suspects.tried_alone().unwrap();
        assert_eq!((seen.others_arrive, seen.attempts), (true, 9));
        suspects.cleared(key, 9);
        assert!(suspects.tried_alone().is_none() && suspects.sendings(key, 9) == 0);
    }
}

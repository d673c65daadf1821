//! The order of what is sent to a destination that has an asynchronous client: which records may be under way together.
//!
//! In: records, each with the lane of its address and key, or of its address alone. Out: batches, at most one of which
//! holds records of a lane; what becomes of them; what the relay decides on a refused one. It knows neither records nor
//! destinations nor time.
//!
//! ```text
//!            push                      take                    delivered
//!   record ───────▶ end of its lane ───────────▶ under way ──────────────────▶ forgotten
//!                         ▲                        │    │
//!                         │ front, in order        │    │ refused
//!                         └────────────────────────┘    ▼
//!                              returned (unknown)     held ──▶ resolved: again, or gone
//!                              postponed ──▶ resumed
//! ```
//!
//! A client works only while the relay holds its slot ([`Hold`](crate::sink::hold::Hold)). When the hold runs out, and at a restart, the
//! thread drops the client's future and the runtime that it ran on: with them go its connections and everything that it has spawned. What
//! was under way is first in its lanes again. Another client begins once there is a hold again. So a client has three rules: what it sends
//! over belongs to its future, or to tasks of the runtime that it runs on; it never sends what [`Receiver::take`] did not hand out; and it
//! yields to its runtime, since only then it can be dropped.
//!
//! Invariants: the records of a lane are delivered in the order in which they were pushed; none is under way while an earlier one
//! of its lane is refused and not resolved; each record that was pushed is delivered, resolved as gone, or forgotten, exactly
//! once. Keys that have records at the same time have lanes of their own: in one that two keys shared, each record would wait for a round
//! trip of the other's. Memory is reused: no operation allocates once the most records, of the most keys, at a time have been there.

pub mod address;
mod chunk;
mod client;
mod hand_over;
mod outage;
mod reconnect;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
pub mod runtime;
mod sender;
mod shared;
pub mod socket;
#[cfg(test)]
mod tests;

pub use chunk::{Chunk, Parts, Stored};
pub use client::LaneSink;
pub(super) use client::block_on;
pub use hand_over::{Event, Outcome, Place, RECORD_OVERHEAD_BYTES, Receiver};
pub use outage::Outage;
pub use reconnect::{End, Reconnect};

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The label of failures of the class [`LogIn`](crate::sink::FailureClass::LogIn), for metrics.
pub const LOG_IN_LABEL: &str = "log_in";

/// No slot.
const NONE: u32 = u32::MAX;

/// Whose lane it is: an address and a key, by their hash. Two whose hashes are equal wait for each other without need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u64);

impl Owner {
    /// Of the records that have this address and this key. Those without a key share the address' own.
    pub fn of(address: &str, key: Option<&[u8]>) -> Self {
        let mut hasher = DefaultHasher::new();
        (address, key).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A lane's number: another owner's once it is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(u32);

/// A record with the lane it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken<T> {
    /// Its lane.
    pub lane: Lane,
    /// How many were pushed before it.
    pub number: u64,
    /// What was pushed.
    pub item: T,
}

/// Whether a record goes into a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It does.
    Takes,
    /// It does not; one of another lane may.
    NotThis,
    /// Nothing more does.
    Full,
}

/// What becomes of a refused record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<T> {
    /// It is sent again.
    Again,
    /// It is given up; the ones behind it are sent.
    Gone,
    /// Another takes its place, and goes alone: it has another address, which may refuse it while that of the ones behind it takes them.
    Instead(T),
}

/// All lanes.
#[derive(Debug)]
pub struct Lanes<T> {
    /// One for each number.
    states: Vec<State>,
    /// The lanes of all owners that have records, and of some that had.
    owned: HashMap<Owner, Lane>,
    /// Lanes that became empty, each once; some have records again.
    emptied: Vec<Lane>,
    slots: Vec<Slot<T>>,
    /// The first of the slots that hold nothing.
    free: u32,
    /// Lanes that have something to send, each once, the one with the oldest first record first.
    ready: BinaryHeap<Next>,
    /// While records are taken: lanes that are ready, but do not fit. Empty otherwise.
    unfit: Vec<Next>,
    /// Counts what was pushed.
    pushed: u64,
    /// Records of lanes that are held.
    held: u64,
}

/// The number of a lane's first record, and the lane.
type Next = Reverse<(u64, Lane)>;

/// One lane: a queue in the slots, of which the first `under_way` have been taken.
#[derive(Debug, Clone, Copy)]
struct State {
    owner: Owner,
    first: u32,
    last: u32,
    under_way: u32,
    /// All of its records.
    records: u32,
    waits: Waits,
    /// Its first record takes another's place.
    instead: bool,
    /// It is in `ready`.
    ready: bool,
    /// It is in `emptied`.
    emptied: bool,
}

/// What has to come before anything of a lane is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Not,
    /// The decision on its first record, which is refused.
    Held,
    /// That it is resumed.
    Postponed,
}

#[derive(Debug)]
struct Slot<T> {
    item: T,
    /// When it was pushed, so that a batch keeps the order of all.
    number: u64,
    next: u32,
}

impl<T: Copy> Default for Lanes<T> {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            owned: HashMap::new(),
            emptied: Vec::new(),
            slots: Vec::new(),
            free: NONE,
            ready: BinaryHeap::new(),
            unfit: Vec::new(),
            pushed: 0,
            held: 0,
        }
    }
}

impl State {
    fn empty(owner: Owner) -> Self {
        Self {
            owner,
            first: NONE,
            last: NONE,
            under_way: 0,
            records: 0,
            waits: Waits::Not,
            instead: false,
            ready: false,
            emptied: false,
        }
    }
}

impl<T: Copy> Lanes<T> {
    /// The lane of this owner, which stays its own while it has records.
    pub fn lane(&mut self, owner: Owner) -> Lane {
        if let Some(lane) = self.owned.get(&owner) {
            return *lane;
        }
        let lane = self.unused().unwrap_or_else(|| {
            self.states.push(State::empty(owner));
            Lane(u32::try_from(self.states.len() - 1).unwrap_or(NONE))
        });
        let before = std::mem::replace(&mut self.state(lane).owner, owner);
        self.owned.remove(&before);
        self.owned.insert(owner, lane);
        lane
    }

    /// A lane without records.
    fn unused(&mut self) -> Option<Lane> {
        while let Some(lane) = self.emptied.pop() {
            let state = self.state(lane);
            state.emptied = false;
            if state.records == 0 {
                return Some(lane);
            }
        }
        None
    }

    /// Puts a record at the end of its lane.
    pub fn push(&mut self, lane: Lane, item: T) {
        let number = self.pushed;
        self.pushed += 1;
        let slot = self.fill(Slot { item, number, next: NONE });
        let state = self.state(lane);
        state.records += 1;
        let held = u64::from(state.waits == Waits::Held);
        let last = std::mem::replace(&mut state.last, slot);
        if last == NONE {
            state.first = slot;
        } else if let Some(last) = self.slots.get_mut(last as usize) {
            last.next = slot;
        }
        self.held += held;
        self.make_ready(lane);
    }

    /// Takes records that may be under way together with all that are, from lanes of which nothing is under way or held, as `fit`
    /// says: the lane whose first record is the oldest comes first, since a crash repeats what was delivered after the oldest record
    /// that was not. They are appended to `batch` in the order in which they were pushed.
    pub fn take(&mut self, batch: &mut Vec<Taken<T>>, most_of_a_lane: u32, mut fit: impl FnMut(&T) -> Fit) {
        let start = batch.len();
        while let Some(next) = self.ready.pop() {
            let Reverse((_, lane)) = next;
            let (taken, full) = self.take_of(lane, batch, most_of_a_lane, &mut fit);
            let state = self.state(lane);
            state.under_way = taken;
            state.ready = taken == 0;
            if taken == 0 {
                self.unfit.push(next);
            }
            if full {
                break;
            }
        }
        self.ready.extend(self.unfit.drain(..));
        if let Some(taken) = batch.get_mut(start..) {
            taken.sort_unstable_by_key(|taken| taken.number);
        }
    }

    /// How many were taken of the lane's first ones, and whether the batch is full.
    fn take_of(
        &self,
        lane: Lane,
        batch: &mut Vec<Taken<T>>,
        most: u32,
        fit: &mut impl FnMut(&T) -> Fit,
    ) -> (u32, bool) {
        let Some(state) = self.states.get(lane.0 as usize) else { return (0, false) };
        let most = if state.instead { most.min(1) } else { most };
        let (mut at, mut taken) = (state.first, 0);
        while taken < most
            && let Some(slot) = self.slots.get(at as usize)
        {
            match fit(&slot.item) {
                Fit::Takes => batch.push(Taken { lane, number: slot.number, item: slot.item }),
                Fit::NotThis => return (taken, false),
                Fit::Full => return (taken, true),
            }
            at = slot.next;
            taken += 1;
        }
        (taken, false)
    }

    /// The first record of the lane that is under way has been delivered.
    ///
    /// # Panics
    /// None of the lane is under way: it would be reported twice.
    pub fn delivered(&mut self, lane: Lane) {
        assert!(self.state(lane).under_way > 0, "a record was reported that is not under way");
        self.state(lane).under_way -= 1;
        self.remove_first(lane);
        self.make_ready(lane);
    }

    /// The first record of the lane that is under way is refused: the lane is held until that is resolved. The others of the lane
    /// that are under way have not been taken.
    ///
    /// # Panics
    /// None of the lane is under way.
    pub fn refused(&mut self, lane: Lane) {
        self.give_back(lane);
        let state = self.state(lane);
        state.waits = Waits::Held;
        let records = state.records;
        self.held += u64::from(records);
    }

    /// What became of those of the lane that are under way is not known, or they were not sent: they are first again, in order.
    ///
    /// # Panics
    /// None of the lane is under way.
    pub fn returned(&mut self, lane: Lane) {
        self.give_back(lane);
        self.make_ready(lane);
    }

    /// The destination has no room for those of the lane that are under way: they are first again, in order, and nothing of the lane
    /// is taken until it is resumed.
    ///
    /// # Panics
    /// None of the lane is under way.
    pub fn postponed(&mut self, lane: Lane) {
        self.give_back(lane);
        self.state(lane).waits = Waits::Postponed;
    }

    /// What became of all that is under way is not known: in each lane it is first again, in order.
    pub fn return_all(&mut self) {
        let under_way = |(_, state): &(usize, &State)| state.under_way > 0;
        let lanes = self.states.iter().enumerate().filter(under_way).filter_map(|(at, _)| u32::try_from(at).ok());
        lanes.collect::<Vec<_>>().into_iter().for_each(|at| self.returned(Lane(at)));
    }

    /// Ends that. Nothing happens when the lane is not postponed.
    pub fn resume(&mut self, lane: Lane) {
        let state = self.state(lane);
        if state.waits == Waits::Postponed {
            state.waits = Waits::Not;
            self.make_ready(lane);
        }
    }

    /// What becomes of the lane's refused record; gives back what was pushed, where that is not sent again. `None`, and nothing
    /// happens, when the lane is not held.
    pub fn resolve(&mut self, lane: Lane, verdict: Verdict<T>) -> Option<T> {
        let state = self.state(lane);
        if state.waits != Waits::Held {
            return None;
        }
        state.waits = Waits::Not;
        let (first, records) = (state.first as usize, state.records);
        self.held -= u64::from(records);
        let old = self.slots.get(first).map(|slot| slot.item);
        let old = match verdict {
            Verdict::Again => None,
            Verdict::Gone => {
                self.remove_first(lane);
                old
            }
            Verdict::Instead(item) => {
                if let Some(slot) = self.slots.get_mut(first) {
                    slot.item = item;
                }
                self.state(lane).instead = true;
                old
            }
        };
        self.make_ready(lane);
        old
    }

    /// The lane's first record.
    pub fn first(&self, lane: Lane) -> Option<T> {
        let first = self.states.get(lane.0 as usize)?.first;
        self.slots.get(first as usize).map(|slot| slot.item)
    }

    /// How many of the lane's records are under way.
    pub fn under_way(&self, lane: Lane) -> u32 {
        self.states.get(lane.0 as usize).map_or(0, |state| state.under_way)
    }

    /// Whether anything could be taken.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// How many records were pushed.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Whether the lane's first record took another's place.
    pub fn is_instead(&self, lane: Lane) -> bool {
        self.states.get(lane.0 as usize).is_some_and(|state| state.instead)
    }

    /// How many records are in lanes that are held.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Forgets all records.
    pub fn clear(&mut self) {
        self.slots.clear();
        let slots = std::mem::take(&mut self.slots);
        *self = Self { slots, ..Self::default() };
    }

    fn give_back(&mut self, lane: Lane) {
        let under_way = std::mem::take(&mut self.state(lane).under_way);
        assert!(under_way > 0, "a record was reported that is not under way");
    }

    fn make_ready(&mut self, lane: Lane) {
        let state = self.state(lane);
        let first = state.first;
        if first != NONE
            && state.under_way == 0
            && state.waits == Waits::Not
            && !std::mem::replace(&mut state.ready, true)
        {
            let number = self.slots.get(first as usize).map_or(0, |slot| slot.number);
            self.ready.push(Reverse((number, lane)));
        }
    }

    fn fill(&mut self, slot: Slot<T>) -> u32 {
        let free = self.free;
        if let Some(place) = self.slots.get_mut(free as usize) {
            self.free = place.next;
            *place = slot;
            return free;
        }
        self.slots.push(slot);
        u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
    }

    fn remove_first(&mut self, lane: Lane) {
        let free = self.free;
        let state = self.state(lane);
        state.instead = false;
        let first = state.first;
        if let Some(slot) = self.slots.get_mut(first as usize) {
            let next = std::mem::replace(&mut slot.next, free);
            self.free = first;
            let state = self.state(lane);
            state.first = next;
            state.records -= 1;
            if next == NONE {
                state.last = NONE;
                if !std::mem::replace(&mut state.emptied, true) {
                    self.emptied.push(lane);
                }
            }
        }
    }

    #[allow(clippy::indexing_slicing, reason = "lanes are numbered as they are made")]
    fn state(&mut self, lane: Lane) -> &mut State {
        &mut self.states[lane.0 as usize]
    }
}

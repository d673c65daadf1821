//! The ordered queue: a bounded queue in front of a destination's asynchronous client, which keeps the order of each key.
//!
//! A *key* here is an address together with a record's key; all records of an address without a key are one key. In: items, each with its
//! key. Out: batches, at most one of which holds items of a key at a time. The client says what became of each item, and the relay decides
//! on refused ones. [`OrderedQueue`] knows neither records nor destinations nor time.
//!
//! ```text
//!            push                      take                    delivered
//!   record ───────▶ last of its key ──────────▶ under way ──────────────────▶ forgotten
//!                         ▲                        │    │
//!                         │ front, in order        │    │ refused
//!                         └────────────────────────┘    ▼
//!                              returned (unknown)     held ──▶ resolved: again, or gone
//!                              postponed ──▶ resumed
//! ```
//!
//! If an answer may be the fault of any of several records, or is in no list of the destination, `suspects` decides which of them go together,
//! and when a single one is sent again.
//!
//! A client is a [`Session`] that the driver ([`drive`]) opens again and again. It works only while the relay holds its slot
//! ([`Hold`](crate::sink::hold::Hold)). When the hold runs out, and at a restart, the queue's thread drops the driver with its session, and the
//! runtime that ran it. With them go the client's connections and all tasks that it has spawned. Records that were under way are the first of their
//! keys again. The driver begins anew once the relay holds its slot again. A session's connections therefore belong to it, or to tasks of the
//! runtime that runs it.
//!
//! Invariants: the records of a key are delivered in the order in which they were pushed; no record is under way while an earlier one
//! of its key is refused and not resolved; each record that was pushed is delivered, resolved as gone, or forgotten, exactly
//! once. Keys that have records at the same time never share a [`KeyId`]: if two did, each record would wait for a round trip of the
//! other key's. Memory is reused: no operation allocates unless there are more records or more keys at a time than ever before.

pub mod address;
mod chunk;
mod client;
#[cfg(any(feature = "nats", feature = "redis"))]
mod dead_letters;
mod driver;
mod hand_over;
mod receiver;
mod reconnect;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
pub mod runtime;
mod sender;
pub mod socket;
mod suspects;
#[cfg(test)]
mod tests;

pub use chunk::{Chunk, Parts, Stored};
pub use client::QueueSink;
pub(super) use client::block_on;
#[cfg(any(feature = "nats", feature = "redis"))]
pub use dead_letters::{DeadLetterPages, PagedDeadLetters};
pub use driver::{Session, drive};
pub use hand_over::RECORD_OVERHEAD_BYTES;
pub use receiver::{Receiver, RecordIndex, RecordOutcome};
pub use reconnect::{REACHED_WITHIN, Reconnect, within};

use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The label of failures of the class [`LogIn`](crate::sink::FailureClass::LogIn), for metrics.
pub const LOG_IN_LABEL: &str = "log_in";

/// The index of no slot.
const NONE: u32 = u32::MAX;

/// The hash of an address and a key. Two keys with equal hashes wait for each other without need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hashes an address and a record's key. All records of an address without a key have one hash.
    pub fn of(address: &str, key: Option<&[u8]>) -> Self {
        let mut hasher = DefaultHasher::new();
        (address, key).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// The number of a key that has records. Once it has none, another key may get the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(u32);

/// An item that [`OrderedQueue::take`] handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenRecord<T> {
    /// The item's key.
    pub key: KeyId,
    /// How many items were pushed before this one.
    pub number: u64,
    /// The item as it was pushed.
    pub item: T,
}

/// Whether a record goes into a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The batch takes the record.
    Takes,
    /// The batch does not take this record. It may take one of another key.
    NotThis,
    /// The batch takes nothing more.
    Full,
}

/// How many records there are, and how many bytes they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// The number of records.
    pub records: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Size {
    /// Adds `more`, if the sum is not above `most` or this is empty. Returns whether it did.
    pub fn add(&mut self, more: Self, most: Self) -> bool {
        let sum = Self { records: self.records + more.records, bytes: self.bytes + more.bytes };
        let fits = self.records == 0 || (sum.records <= most.records && sum.bytes <= most.bytes);
        if fits {
            *self = sum;
        }
        fits
    }

    /// Adds a record by the same rule.
    pub fn fit(&mut self, record: Stored<'_>, most: Self) -> Fit {
        let fits = self.add(Self { records: 1, bytes: record.held_bytes() }, most);
        if fits { Fit::Takes } else { Fit::Full }
    }
}

/// Items in the order of their keys.
#[derive(Debug)]
pub struct OrderedQueue<T> {
    /// The states of all keys, by [`KeyId`].
    states: Vec<KeyState>,
    /// All keys that have records, and some that had.
    by_hash: HashMap<KeyHash, KeyId>,
    /// Keys that became empty, each once. Some have records again.
    emptied: Vec<KeyId>,
    slots: Slab<QueuedItem<T>>,
    /// Keys that have records to send, each once. The key with the oldest first record comes first.
    ready: BinaryHeap<ReadyKey>,
    /// While `take` runs: keys that are ready, but did not fit into the batch. Empty otherwise.
    unfit: Vec<ReadyKey>,
    /// How many items were ever pushed.
    pushed: u64,
    /// How many records are of held keys.
    held: u64,
    /// How many records are under way.
    under_way: u64,
}

/// The number of a key's first record, and the key.
type ReadyKey = Reverse<(u64, KeyId)>;

/// One key's records: a linked list in the slots. The first `under_way` of them have been taken.
#[derive(Debug, Clone, Copy)]
struct KeyState {
    hash: KeyHash,
    first: u32,
    last: u32,
    under_way: u32,
    /// How many records the key has, taken or not.
    records: u32,
    waits: Waits,
    /// The key's first record takes the place of a refused one.
    replacement: bool,
    /// The key is in [`OrderedQueue::ready`].
    ready: bool,
    /// The key is in [`OrderedQueue::emptied`].
    emptied: bool,
}

/// The event that a key waits for before its records are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Not,
    /// Its first record is refused: it waits for [`OrderedQueue::resolve`] or [`OrderedQueue::resume`].
    Held,
    /// The destination had no room: it waits for [`OrderedQueue::resume`].
    Postponed,
}

#[derive(Debug)]
struct QueuedItem<T> {
    item: T,
    /// How many items were pushed before: batches are sorted by it.
    number: u64,
    next: u32,
}

impl<T: Copy> Default for OrderedQueue<T> {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            by_hash: HashMap::new(),
            emptied: Vec::new(),
            slots: Slab::new(),
            ready: BinaryHeap::new(),
            unfit: Vec::new(),
            pushed: 0,
            held: 0,
            under_way: 0,
        }
    }
}

impl KeyState {
    fn empty(hash: KeyHash) -> Self {
        Self {
            hash,
            first: NONE,
            last: NONE,
            under_way: 0,
            records: 0,
            waits: Waits::Not,
            replacement: false,
            ready: false,
            emptied: false,
        }
    }
}

impl<T: Copy> OrderedQueue<T> {
    /// The number of this key. It stays the key's own while the key has records.
    pub fn key(&mut self, hash: KeyHash) -> KeyId {
        if let Some(key) = self.by_hash.get(&hash) {
            return *key;
        }
        let key = self.unused().unwrap_or_else(|| {
            self.states.push(KeyState::empty(hash));
            KeyId(u32::try_from(self.states.len() - 1).unwrap_or(NONE))
        });
        let before = std::mem::replace(&mut self.state(key).hash, hash);
        self.by_hash.remove(&before);
        self.by_hash.insert(hash, key);
        key
    }

    /// The number of a key without records.
    fn unused(&mut self) -> Option<KeyId> {
        while let Some(key) = self.emptied.pop() {
            let state = self.state(key);
            state.emptied = false;
            if state.records == 0 {
                return Some(key);
            }
        }
        None
    }

    /// Adds a record behind the others of its key.
    pub fn push(&mut self, key: KeyId, item: T) {
        let number = self.pushed;
        self.pushed += 1;
        let slot = self.slots.insert(QueuedItem { item, number, next: NONE });
        let slot = u32::try_from(slot).unwrap_or(NONE);
        let state = self.state(key);
        state.records += 1;
        let held = u64::from(state.waits == Waits::Held);
        let last = std::mem::replace(&mut state.last, slot);
        if last == NONE {
            state.first = slot;
        } else if let Some(last) = self.slots.get_mut(last as usize) {
            last.next = slot;
        }
        self.held += held;
        self.make_ready(key);
    }

    /// Takes records that may be under way together with all that are, and appends them to `batch` in the order in which they were
    /// pushed. They are of keys that have no record under way and are not held; `fit` says by number and item which ones the batch takes. The
    /// key with the oldest first record comes first: after a crash, walrelay repeats what was delivered behind the oldest record that was not.
    pub fn take(&mut self, batch: &mut Vec<TakenRecord<T>>, most_of_a_key: u32, mut fit: impl FnMut(u64, &T) -> Fit) {
        let start = batch.len();
        while let Some(next) = self.ready.pop() {
            let Reverse((_, key)) = next;
            let (taken, full) = self.take_of(key, batch, most_of_a_key, &mut fit);
            let state = self.state(key);
            state.under_way = taken;
            state.ready = taken == 0;
            self.under_way += u64::from(taken);
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

    /// Takes the key's first records. Returns how many, and whether the batch is full.
    fn take_of(
        &self,
        key: KeyId,
        batch: &mut Vec<TakenRecord<T>>,
        most: u32,
        fit: &mut impl FnMut(u64, &T) -> Fit,
    ) -> (u32, bool) {
        let Some(state) = self.states.get(key.0 as usize) else { return (0, false) };
        let most = if state.replacement { most.min(1) } else { most };
        let (mut at, mut taken) = (state.first, 0);
        while taken < most
            && let Some(slot) = self.slots.get(at as usize)
        {
            match fit(slot.number, &slot.item) {
                Fit::Takes => batch.push(TakenRecord { key, number: slot.number, item: slot.item }),
                Fit::NotThis => return (taken, false),
                Fit::Full => return (taken, true),
            }
            at = slot.next;
            taken += 1;
        }
        (taken, false)
    }

    /// The key's first record has been delivered.
    ///
    /// # Panics
    /// The key has no record under way: one would be reported twice.
    pub fn delivered(&mut self, key: KeyId) {
        assert!(self.state(key).under_way > 0, "a record was reported that is not under way");
        self.state(key).under_way -= 1;
        self.under_way -= 1;
        self.remove_first(key);
        self.make_ready(key);
    }

    /// The destination refuses the key's first record: the key is held until [`OrderedQueue::resolve`] or [`OrderedQueue::resume`]. The
    /// destination has not stored the key's other records that are under way.
    ///
    /// # Panics
    /// The key has no record under way.
    pub fn refused(&mut self, key: KeyId) {
        self.give_back(key);
        let state = self.state(key);
        state.waits = Waits::Held;
        let records = state.records;
        self.held += u64::from(records);
    }

    /// Nobody knows what became of the key's records that are under way, or they were not sent: they wait again, in order.
    ///
    /// # Panics
    /// The key has no record under way.
    pub fn returned(&mut self, key: KeyId) {
        self.give_back(key);
        self.make_ready(key);
    }

    /// The destination has no room for the key's records that are under way: they wait again, in order, and the key is not taken from
    /// before [`OrderedQueue::resume`].
    ///
    /// # Panics
    /// The key has no record under way.
    pub fn postponed(&mut self, key: KeyId) {
        self.give_back(key);
        self.state(key).waits = Waits::Postponed;
    }

    /// Calls [`OrderedQueue::returned`] for each key that has records under way.
    pub fn return_all(&mut self) {
        let under_way = |(_, state): &(usize, &KeyState)| state.under_way > 0;
        let keys = self.states.iter().enumerate().filter(under_way).filter_map(|(at, _)| u32::try_from(at).ok());
        keys.collect::<Vec<_>>().into_iter().for_each(|at| self.returned(KeyId(at)));
    }

    /// The key's records may be taken again, also a refused one. Does nothing if the key is neither held nor postponed.
    pub fn resume(&mut self, key: KeyId) {
        let state = self.state(key);
        let records = state.records;
        if std::mem::replace(&mut state.waits, Waits::Not) == Waits::Held {
            self.held -= u64::from(records);
        }
        self.make_ready(key);
    }

    /// Gives the key's refused record up, and returns its item. If there is a `replacement`, that takes the record's place. It is sent alone:
    /// it has an address of its own, which may refuse it while the address of the records behind it takes them. If the key is not held, does
    /// nothing and returns `None`.
    pub fn resolve(&mut self, key: KeyId, replacement: Option<T>) -> Option<T> {
        let state = self.state(key);
        if state.waits != Waits::Held {
            return None;
        }
        state.waits = Waits::Not;
        let (first, records) = (state.first, state.records);
        self.held -= u64::from(records);
        let refused = self.first(key);
        match (replacement, self.slots.get_mut(first as usize)) {
            (Some(item), Some(slot)) => {
                slot.item = item;
                self.state(key).replacement = true;
            }
            (_, _) => self.remove_first(key),
        }
        self.make_ready(key);
        refused
    }

    /// The key's first record.
    pub fn first(&self, key: KeyId) -> Option<T> {
        let first = self.states.get(key.0 as usize)?.first;
        self.slots.get(first as usize).map(|slot| slot.item)
    }

    /// The number of the key's first record.
    pub fn first_number(&self, key: KeyId) -> Option<u64> {
        let first = self.states.get(key.0 as usize)?.first;
        self.slots.get(first as usize).map(|slot| slot.number)
    }

    /// The numbers of the records that [`OrderedQueue::take`] would look at first, of each key one.
    pub fn ready_numbers(&self) -> impl Iterator<Item = u64> {
        self.ready.iter().map(|Reverse((number, _))| *number)
    }

    /// How many records are under way.
    pub fn all_under_way(&self) -> u64 {
        self.under_way
    }

    /// The records under way, as they were taken.
    pub fn taken(&self) -> Vec<TakenRecord<T>> {
        let mut taken = Vec::new();
        for (key, state) in (0..).map(KeyId).zip(&self.states).filter(|(_, state)| state.under_way > 0) {
            let mut at = state.first;
            for _ in 0..state.under_way {
                let Some(slot) = self.slots.get(at as usize) else { break };
                taken.push(TakenRecord { key, number: slot.number, item: slot.item });
                at = slot.next;
            }
        }
        taken
    }

    /// How many of the key's records are under way.
    pub fn under_way(&self, key: KeyId) -> u32 {
        self.states.get(key.0 as usize).map_or(0, |state| state.under_way)
    }

    /// Whether there are records that [`OrderedQueue::take`] could take.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// How many records were ever pushed.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Whether the key's first record takes the place of a refused one.
    pub fn is_replacement(&self, key: KeyId) -> bool {
        self.states.get(key.0 as usize).is_some_and(|state| state.replacement)
    }

    /// How many records are in keys that are held.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Forgets all records.
    pub fn clear(&mut self) {
        self.slots.clear();
        let slots = std::mem::take(&mut self.slots);
        *self = Self { slots, ..Self::default() };
    }

    fn give_back(&mut self, key: KeyId) {
        let under_way = std::mem::take(&mut self.state(key).under_way);
        assert!(under_way > 0, "a record was reported that is not under way");
        self.under_way -= u64::from(under_way);
    }

    fn make_ready(&mut self, key: KeyId) {
        let KeyState { first, under_way, waits, .. } = *self.state(key);
        let Some(slot) = self.slots.get(first as usize).filter(|_| under_way == 0 && waits == Waits::Not) else {
            return;
        };
        let number = slot.number;
        if !std::mem::replace(&mut self.state(key).ready, true) {
            self.ready.push(Reverse((number, key)));
        }
    }

    fn remove_first(&mut self, key: KeyId) {
        let state = self.state(key);
        state.replacement = false;
        let first = state.first;
        if let Some(QueuedItem { next, .. }) = self.slots.try_remove(first as usize) {
            let state = self.state(key);
            state.first = next;
            state.records -= 1;
            if next == NONE {
                state.last = NONE;
                if !std::mem::replace(&mut state.emptied, true) {
                    self.emptied.push(key);
                }
            }
        }
    }

    #[allow(clippy::indexing_slicing, reason = "a number is given with its state")]
    fn state(&mut self, key: KeyId) -> &mut KeyState {
        &mut self.states[key.0 as usize]
    }
}

//! Tables by hash: [`Chains`], in which several values may have one hash, and [`Fingerprints`], a set of hashes in 8 bytes each.
//!
//! In: 64-bit hashes. Out: what was put in. Pure.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};

/// Values by hash. Those of one hash are in the order in which they came. Almost every hash has one.
#[derive(Debug)]
pub(super) struct Chains<T> {
    first: HashMap<u64, T>,
    /// The values behind the first. A hash is in here only if it is in `first`.
    others: HashMap<u64, VecDeque<T>>,
}

impl<T> Default for Chains<T> {
    fn default() -> Self {
        Self { first: HashMap::new(), others: HashMap::new() }
    }
}

impl<T: Copy + PartialEq> Chains<T> {
    /// Adds a value behind the others of its hash.
    pub(super) fn push(&mut self, hash: u64, value: T) {
        match self.first.entry(hash) {
            Entry::Vacant(free) => drop(free.insert(value)),
            Entry::Occupied(_) => self.others.entry(hash).or_default().push_back(value),
        }
    }

    /// The first value of a hash.
    pub(super) fn first(&self, hash: u64) -> Option<T> {
        self.first.get(&hash).copied()
    }

    /// Takes the first value of a hash.
    pub(super) fn take_first(&mut self, hash: u64) -> Option<T> {
        let first = self.first.remove(&hash)?;
        if let Some(others) = self.others.get_mut(&hash) {
            self.first.extend(others.pop_front().map(|next| (hash, next)));
            if others.is_empty() {
                self.others.remove(&hash);
            }
        }
        Some(first)
    }

    /// Takes this value, if it is there.
    pub(super) fn remove(&mut self, hash: u64, value: T) {
        if self.first(hash) == Some(value) {
            self.take_first(hash);
        } else if let Some(others) = self.others.get_mut(&hash) {
            others.retain(|other| *other != value);
            if others.is_empty() {
                self.others.remove(&hash);
            }
        }
    }
}

/// The most hashes in the part of a set that is no sorted run.
const RECENT: usize = 1 << 16;

/// A set of hashes, to which much is added, and in which little is looked up.
#[derive(Debug, Default)]
pub(super) struct Fingerprints {
    recent: HashSet<u64>,
    /// Sorted, each longer than the sum of those behind it.
    runs: Vec<Vec<u64>>,
}

impl Fingerprints {
    /// Adds a hash.
    pub(super) fn insert(&mut self, hash: u64) {
        self.recent.insert(hash);
        if self.recent.len() < RECENT {
            return;
        }
        let mut run: Vec<u64> = self.recent.drain().collect();
        while self.runs.last().is_some_and(|last| last.len() <= run.len() * 2) {
            run.extend(self.runs.pop().into_iter().flatten());
        }
        run.sort_unstable();
        run.dedup();
        run.shrink_to_fit();
        self.runs.push(run);
    }

    /// Whether the set has this hash.
    pub(super) fn contains(&self, hash: u64) -> bool {
        self.recent.contains(&hash) || self.runs.iter().any(|run| run.binary_search(&hash).is_ok())
    }

    /// The memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let run = |run: &Vec<u64>| run.capacity() * size_of::<u64>();
        (self.runs.iter().map(run).sum::<usize>() + self.recent.len() * 2 * size_of::<u64>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_of_a_hash_leave_in_the_order_in_which_they_came(steps in prop::collection::vec((0_u64..3, 0_u8..3), 0..60)) {
            let (mut chains, mut model) = (Chains::default(), HashMap::<u64, Vec<u32>>::new());
            for (value, (hash, step)) in (0_u32..).zip(steps) {
                let list = model.entry(hash).or_default();
                match step {
                    0 => {
                        chains.push(hash, value);
                        list.push(value);
                    }
                    1 => {
                        let first = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(chains.take_first(hash), first);
                    }
                    _ => {
                        if let Some(last) = list.pop() {
                            chains.remove(hash, last);
                        }
                    }
                }
                prop_assert_eq!(chains.first(hash), list.first().copied());
            }
            prop_assert_eq!(chains.first.len(), model.values().filter(|list| !list.is_empty()).count());
        }
    }

    #[test]
    fn a_set_of_many_hashes_has_each_of_them_in_eight_bytes() {
        let mut set = Fingerprints::default();
        let hash = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let count = 10 * RECENT as u64 + 7;
        (0..count).for_each(|number| set.insert(hash(number)));
        assert!((0..count).all(|number| set.contains(hash(number))));
        assert!((count..count + 1000).all(|number| !set.contains(hash(number))));
        assert!(set.bytes() <= count * 8 + 16 * RECENT as u64, "{}", set.bytes());
    }
}

//! The one source of chance: the same seed and number always draw the same.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

pub(super) struct Draw {
    random: StdRng,
}

impl Draw {
    /// The same seed and number always draw the same.
    pub(super) fn new(seed: u64, number: usize) -> Self {
        Self { random: StdRng::seed_from_u64(seed ^ (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)) }
    }

    /// Once in so many times.
    pub(super) fn is(&mut self, times: u32) -> bool {
        self.random.random_ratio(1, times)
    }

    pub(super) fn number(&mut self, range: Range<usize>) -> usize {
        self.random.random_range(range)
    }

    pub(super) fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        let at = self.number(0..of.len().max(1));
        of.get(at).copied().unwrap_or_default()
    }
}

pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

//! Latencies by buckets that grow evenly, for Prometheus' native histograms: any quantile to within 9 %, whatever the latency.
//!
//! In: latencies. Out: the buckets that have any, as spans and differences. Invariant: what is counted is in one bucket, so that their
//! sum is the count.
//! Specification: Prometheus manual, "Native Histograms", "Data model", with schema 3: eight buckets for each doubling.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A bucket's upper bound is 2^(1/8) times the one's below.
pub(super) const SCHEMA: i32 = 3;

/// Upper bounds of the buckets between a half and one, without one: 0.5 * 2^(i/8).
const WITHIN_DOUBLING: [f64; PER_DOUBLING] = [
    0.5,
    0.545_253_866_332_628_8,
    0.594_603_557_501_360_5,
    0.648_419_777_325_504_8,
    0.707_106_781_186_547_5,
    0.771_105_412_703_970_4,
    0.840_896_415_253_714_5,
    0.917_004_043_204_671_2,
];

const PER_DOUBLING: usize = 8;

/// Doublings below and above a second: from a microsecond to twelve days.
const DOUBLINGS: usize = 20;

/// Latencies up to it, in seconds, count as zero: 2^-20.
pub(super) const ZERO_THRESHOLD: f64 = 1.0 / 1_048_576.0;

/// How many buckets there are.
const BUCKETS: usize = 2 * DOUBLINGS * PER_DOUBLING;

/// Prometheus' number of the first bucket: those with a number up to 0 end at a second or below.
#[allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation, reason = "a small constant")]
const FIRST: i32 = 1 - (DOUBLINGS * PER_DOUBLING) as i32;

/// How many latencies there were of each size.
#[derive(Debug)]
pub(super) struct Native {
    zero: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Native {
    fn default() -> Self {
        Self { zero: AtomicU64::new(0), buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

/// What they were at a moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All.
    pub(super) all: u64,
    /// Those that count as zero.
    pub(super) zero: u64,
    /// Runs of buckets that have any: how many are skipped before each, from bucket 0 on before the first, and how many there are.
    pub(super) spans: Vec<(i32, u32)>,
    /// What each bucket in them has more than the one before.
    pub(super) deltas: Vec<i64>,
}

impl Native {
    pub(super) fn observe(&self, latency: Duration) {
        let place = place(latency.as_secs_f64());
        place.and_then(|place| self.buckets.get(place)).unwrap_or(&self.zero).fetch_add(1, Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let zero = self.zero.load(Relaxed);
        let mut counts = Counts { all: zero, zero, ..Counts::default() };
        let (mut before, mut skipped) = (0, FIRST);
        for bucket in &self.buckets {
            let count = bucket.load(Relaxed);
            if count == 0 {
                skipped += 1;
                continue;
            }
            match counts.spans.last_mut().filter(|_| skipped == 0) {
                Some((_, length)) => *length += 1,
                None => counts.spans.push((skipped, 1)),
            }
            counts.all += count;
            counts.deltas.push(count.cast_signed().wrapping_sub(before));
            (before, skipped) = (count.cast_signed(), 0);
        }
        counts
    }
}

/// The place of its bucket; what is longer than the last one's is counted there. `None`: it counts as zero.
fn place(seconds: f64) -> Option<usize> {
    if seconds <= ZERO_THRESHOLD {
        return None;
    }
    // As C's frexp takes a normal number apart: a part from a half to one, times a power of two.
    let bits = seconds.to_bits();
    let doublings = usize::try_from((bits >> 52) & 0x7ff).ok()?;
    let part = f64::from_bits((bits & ((1 << 52) - 1)) | (1022 << 52));
    let within = WITHIN_DOUBLING.partition_point(|bound| *bound < part);
    let whole = (doublings + DOUBLINGS).saturating_sub(1023);
    Some((whole * PER_DOUBLING + within).saturating_sub(1).min(BUCKETS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a latency's bucket.
    #[allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation, reason = "a small number")]
    fn number(seconds: f64) -> Option<i32> {
        place(seconds).map(|place| place as i32 + FIRST)
    }

    #[test]
    fn a_bucket_ends_with_its_bound_and_begins_after_the_one_below() {
        for bucket in [-159, -80, -9, -8, -1, 0, 1, 7, 8, 9, 100, 159] {
            let bound = 2_f64.powf(f64::from(bucket) / 8.0);
            // The powers are computed, the bounds are constants: a step to either side.
            assert_eq!(number(bound * (1.0 - 1e-12)), Some(bucket), "{bucket}");
            assert_eq!(number(bound * (1.0 + 1e-12)), Some(bucket + 1), "{bucket}");
        }
        assert_eq!([number(0.5), number(1.0), number(2.0), number(4.0)], [Some(-8), Some(0), Some(8), Some(16)]);
    }

    #[test]
    fn what_is_very_short_is_zero_and_what_is_very_long_in_the_last() {
        assert_eq!([place(0.0), place(ZERO_THRESHOLD)], [None, None]);
        assert_eq!(place(ZERO_THRESHOLD * 1.01), Some(0));
        assert_eq!([place(1_048_576.0), place(1e12)], [Some(BUCKETS - 1), Some(BUCKETS - 1)]);
    }

    #[test]
    fn buckets_are_reported_as_runs_and_differences() {
        let native = Native::default();
        assert_eq!(native.counts(), Counts::default());
        for (seconds, times) in [(0.0, 2), (0.99, 3), (1.05, 1), (1.1, 4), (4.0, 1)] {
            (0..times).for_each(|_| native.observe(Duration::from_secs_f64(seconds)));
        }
        let (spans, deltas) = (vec![(0, 3), (13, 1)], vec![3, -2, 3, -3]);
        assert_eq!(native.counts(), Counts { all: 11, zero: 2, spans, deltas });
    }
}

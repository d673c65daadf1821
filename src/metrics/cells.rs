//! The types of the figures: moments, counters by label, latencies.
//!
//! Each is updated through a shared reference, and can be read at any time.
//! Invariant: the same as that of [`Metrics`](super::Metrics).

use prometheus_client::metrics::histogram::{Histogram, NativeHistogramConfig};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most topics with a series of their own. The others share one series, so that a topic from a column with many values does not let
/// the metrics grow without limit.
pub(super) const MAX_TOPICS: usize = 100;

/// The label of the topics beyond [`MAX_TOPICS`], and their index in the table.
pub(super) const OTHER: &str = "other";

/// The most values of a label such as `reason`. The values come from closed sets, so this limit is only a safeguard.
pub(super) const MAX_LABELS: usize = 64;

/// The upper bounds of the latency histogram in milliseconds, in steps of 1, 2.5 and 5. The lowest is for a broker on the same machine,
/// and the highest for an outage.
pub(super) const LATENCY_BOUNDS_MILLIS: [u64; 15] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000];

/// Locks the mutex, even if it is poisoned. Each critical section is one assignment or one copy, so the value is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A moment, in nanoseconds since the start. [`Stamp::NEVER`]: there is none.
#[derive(Debug)]
pub(super) struct Stamp(AtomicU64);

impl Stamp {
    const NEVER: u64 = u64::MAX;

    pub(super) const fn never() -> Self {
        Self(AtomicU64::new(Self::NEVER))
    }

    pub(super) fn set(&self, since_start: Duration) {
        let nanos = u64::try_from(since_start.as_nanos()).unwrap_or(Self::NEVER - 1);
        self.0.store(nanos, Relaxed);
    }

    pub(super) fn clear(&self) {
        self.0.store(Self::NEVER, Relaxed);
    }

    pub(super) fn get(&self) -> Option<Duration> {
        match self.0.load(Relaxed) {
            Self::NEVER => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}

/// The acknowledged records by topic. A topic keeps its index as long as the process runs.
#[derive(Debug)]
pub(super) struct TopicCounters {
    /// The index of each topic. There are at most [`MAX_TOPICS`].
    indices: Mutex<HashMap<String, u16>>,
    /// The count of each index. The last one is that of the other topics.
    acknowledged: [AtomicU64; MAX_TOPICS + 1],
}

impl Default for TopicCounters {
    fn default() -> Self {
        Self { indices: Mutex::default(), acknowledged: [const { AtomicU64::new(0) }; MAX_TOPICS + 1] }
    }
}

impl TopicCounters {
    #[allow(clippy::cast_possible_truncation, reason = "the table has 101 entries")]
    const OTHER_INDEX: u16 = MAX_TOPICS as u16;

    pub(super) fn intern(&self, name: &str) -> u16 {
        // A topic with this name counts as one of the others, since two series must not have the same labels.
        if name == OTHER {
            return Self::OTHER_INDEX;
        }
        let mut indices = lock(&self.indices);
        if let Some(&index) = indices.get(name) {
            return index;
        }
        match u16::try_from(indices.len()) {
            Ok(index) if index < Self::OTHER_INDEX => {
                indices.insert(name.to_owned(), index);
                index
            }
            _ => Self::OTHER_INDEX,
        }
    }

    pub(super) fn add(&self, index: u16, records: u64) {
        let counter = self.acknowledged.get(usize::from(index)).or_else(|| self.acknowledged.last());
        if let Some(counter) = counter {
            counter.fetch_add(records, Relaxed);
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.acknowledged.iter().map(|counter| counter.load(Relaxed)).sum()
    }

    /// The count of each topic, by name. The other topics are there only if they have a count.
    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        let mut indices = lock(&self.indices).clone();
        if self.count(Self::OTHER_INDEX) > 0 {
            indices.insert(OTHER.to_owned(), Self::OTHER_INDEX);
        }
        indices.into_iter().map(|(name, index)| (name, self.count(index))).collect()
    }

    pub(super) fn count(&self, index: u16) -> u64 {
        self.acknowledged.get(usize::from(index)).map_or(0, |counter| counter.load(Relaxed))
    }
}

/// Counts by a label from a closed set. They change rarely.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<BTreeMap<String, u64>>);

impl Tally {
    pub(super) fn add(&self, label: &str, n: u64) {
        let mut counts = lock(&self.0);
        let label = if counts.len() < MAX_LABELS || counts.contains_key(label) { label } else { OTHER };
        match counts.get_mut(label) {
            Some(count) => *count += n,
            None => {
                counts.insert(label.to_owned(), n);
            }
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        lock(&self.0).clone()
    }
}

/// In native buckets, latencies up to this count as zero: 2^-20 seconds.
const ZERO_THRESHOLD: f64 = 1.0 / 1_048_576.0;

/// The schema of native buckets. The upper bound of a bucket is 2^(1/8) times that of the one below, so any quantile is exact to 9 %.
const SCHEMA: i8 = 3;

/// Latencies: by [`LATENCY_BOUNDS_MILLIS`] for [`Latencies`], and for scrapers in a histogram, which also has native buckets.
#[derive(Debug)]
pub(super) struct Latency {
    /// The number of latencies above the bound before and up to this one. The last bucket has no bound.
    buckets: [AtomicU64; LATENCY_BOUNDS_MILLIS.len() + 1],
    /// These latencies in seconds.
    pub(super) histogram: Histogram,
}

impl Default for Latency {
    fn default() -> Self {
        let bounds = LATENCY_BOUNDS_MILLIS.map(|millis| Duration::from_millis(millis).as_secs_f64());
        let native = NativeHistogramConfig::with_schema(SCHEMA).zero_threshold(ZERO_THRESHOLD);
        Self { buckets: Default::default(), histogram: Histogram::new_classic_and_native(bounds, native) }
    }
}

impl Latency {
    pub(super) fn observe(&self, latency: Duration) {
        let index = LATENCY_BOUNDS_MILLIS.partition_point(|&bound| Duration::from_millis(bound) < latency);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Relaxed);
        }
        self.histogram.observe(latency.as_secs_f64());
    }

    /// The number of latencies up to each bound, in order. The last is the number of all.
    pub(super) fn now(&self) -> Latencies {
        let mut sum = 0;
        Latencies(self.buckets.each_ref().map(|bucket| {
            sum += bucket.load(Relaxed);
            sum
        }))
    }

    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }
}

/// The number of transactions that were delivered within each bound in milliseconds, and the number of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latencies([u64; LATENCY_BOUNDS_MILLIS.len() + 1]);

impl Latencies {
    /// The latencies since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let mut counts = self.0;
        for (count, before) in counts.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(before);
        }
        Self(counts)
    }

    /// Whether the quantile `share` (0 to 1) is above the largest bound. Its value is then not known.
    #[allow(clippy::cast_precision_loss, reason = "as in the estimate")]
    pub fn is_above_bounds(self, share: f64) -> bool {
        let [.., within, all] = self.0;
        all > 0 && (within as f64) < share * all as f64
    }

    /// The quantile `share` (0 to 1) as Prometheus' `histogram_quantile` estimates it: latencies are spread evenly in their bucket. If
    /// it is above the largest bound, it is that bound. `None`: there are no latencies.
    #[allow(clippy::cast_precision_loss, reason = "an estimate, for people")]
    pub fn quantile(self, share: f64) -> Option<Duration> {
        let all = self.0.last().copied().filter(|&all| all > 0)?;
        let rank = share * all as f64;
        let (mut lower, mut below) = (0.0, 0_u64);
        for (bound, count) in LATENCY_BOUNDS_MILLIS.into_iter().zip(self.0) {
            let upper = bound as f64;
            if count as f64 >= rank && count > below {
                let part = (rank - below as f64).max(0.0) / (count - below) as f64;
                return Some(Duration::from_secs_f64((lower + (upper - lower) * part) / 1000.0));
            }
            (lower, below) = (upper, count);
        }
        LATENCY_BOUNDS_MILLIS.last().copied().map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_beyond_the_bound_are_counted_together() {
        let tally = Tally::default();
        (0..70).for_each(|n| tally.add(&format!("{n}"), 1));
        tally.add("0", 1);
        assert_eq!(tally.counts().len(), MAX_LABELS + 1);
        assert_eq!(tally.counts()["other"], 6);
        assert_eq!(tally.counts()["0"], 2);
    }

    #[test]
    fn what_is_above_the_largest_bound_is_known_to_be() {
        let latency = Latency::default();
        assert!(!latency.now().is_above_bounds(0.99));
        (0..99).for_each(|_| latency.observe(Duration::from_mins(1)));
        latency.observe(Duration::from_millis(60_001));
        assert_eq!([0.5, 0.99, 0.995].map(|share| latency.now().is_above_bounds(share)), [false, false, true]);
    }

    #[test]
    fn a_latency_on_the_bound_belongs_below_it() {
        let latency = Latency::default();
        for millis in [0, 1, 2, 60_000, 60_001] {
            latency.observe(Duration::from_millis(millis));
        }
        let counts = latency.now().0;
        assert_eq!(counts[..2], [2, 3]);
        assert_eq!(counts[14..], [4, 5]);
        assert_eq!(latency.count(), 5);
    }
}

//! The samples of one metric, and the moment for which they are taken.
//!
//! In: values. Out: samples with their labels, in the format of the encoder. This file knows no metric.

use prometheus_client::encoding::{EncodeMetric as _, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One moment on two clocks. The monotonic one is for the ages of events in this process. The wall clock is for the ages of events in
/// Postgres.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The monotonic clock.
    pub instant: Instant,
    /// The wall clock, in microseconds since 1970.
    pub unix_micros: i64,
}

impl Moment {
    /// The present moment.
    pub fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix_micros: i64::try_from(wall.as_micros()).unwrap_or(i64::MAX) }
    }
}

/// Takes the samples of one metric. Samples of walrelay have the label `slot`. Samples of the process do not, as usual.
pub(super) struct Samples<'a> {
    pub(super) encoder: MetricEncoder<'a>,
    /// The metric's name.
    pub(super) name: &'a str,
    pub(super) kind: MetricType,
    /// The label besides `slot`.
    pub(super) label: Option<&'a str>,
    pub(super) slot: &'a str,
}

impl Samples<'_> {
    /// Writes the metric's only sample.
    pub(super) fn single(&mut self, value: impl Into<SampleValue>) -> fmt::Result {
        self.sample(None, value.into())
    }

    /// Writes the metric's only sample if its value is known.
    pub(super) fn known(&mut self, value: Option<impl Into<SampleValue>>) -> fmt::Result {
        value.map_or(Ok(()), |value| self.single(value))
    }

    /// Writes one of several samples.
    pub(super) fn labelled(&mut self, label: &str, value: impl Into<SampleValue>) -> fmt::Result {
        self.sample(Some(label), value.into())
    }

    pub(super) fn tally(&mut self, counts: impl IntoIterator<Item = (String, u64)>) -> fmt::Result {
        counts.into_iter().try_for_each(|(label, count)| self.labelled(&label, count))
    }

    /// Writes 1 for the choice `chosen`, and 0 for the others.
    pub(super) fn one_of<const N: usize>(&mut self, choices: [&str; N], chosen: &str) -> fmt::Result {
        choices.into_iter().try_for_each(|choice| self.labelled(choice, u64::from(choice == chosen)))
    }

    pub(super) fn histogram(&mut self, histogram: &Histogram) -> fmt::Result {
        histogram.encode(self.encoder.encode_family(&[("slot", self.slot)])?)
    }

    fn sample(&mut self, label: Option<&str>, value: SampleValue) -> fmt::Result {
        let slot = Some(("slot", self.slot)).filter(|_| !self.name.starts_with("process_"));
        let labels: Vec<_> = slot.into_iter().chain(self.label.zip(label)).collect();
        let mut encoder = self.encoder.encode_family(&labels)?;
        match (value, self.kind == MetricType::Counter) {
            (SampleValue::Whole(value), true) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            (SampleValue::Real(value), true) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            (SampleValue::Whole(value), false) => encoder.encode_gauge(&value),
            (SampleValue::Real(value), false) => encoder.encode_gauge(&value),
        }
    }
}

/// The value of a sample.
#[derive(Clone, Copy)]
pub(super) enum SampleValue {
    Whole(u64),
    Real(f64),
}

impl From<u64> for SampleValue {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<Duration> for SampleValue {
    /// Seconds.
    fn from(value: Duration) -> Self {
        Self::Real(value.as_secs_f64())
    }
}

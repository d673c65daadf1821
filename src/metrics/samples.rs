//! The samples of one metric, and the moment for which they are taken.
//!
//! In: values. Out: samples with their labels, in the format whose encoder stands behind. It knows no metric.

use prometheus_client::encoding::{EncodeMetric as _, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One moment on both clocks: ages of what happened here are taken from the one that never jumps, ages of what happened
/// in Postgres from the wall's.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Monotonic.
    pub instant: Instant,
    /// Microseconds since 1970.
    pub unix_micros: i64,
}

impl Moment {
    /// This moment.
    pub fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix_micros: i64::try_from(wall.as_micros()).unwrap_or(i64::MAX) }
    }
}

/// Where the samples of one family are written. Those of walrelay itself carry the label `slot`, those of the process do
/// not, as with every exporter.
pub(super) struct Samples<'a> {
    encoder: MetricEncoder<'a>,
    /// The family's name.
    name: &'a str,
    kind: MetricType,
    /// The label beside the slot.
    label: Option<&'a str>,
    slot: &'a str,
}

impl<'a> Samples<'a> {
    pub(super) fn new(
        encoder: MetricEncoder<'a>,
        family: (&'a str, MetricType, Option<&'a str>),
        slot: &'a str,
    ) -> Self {
        let (name, kind, label) = family;
        Self { encoder, name, kind, label, slot }
    }

    /// The family's only sample.
    pub(super) fn single(&mut self, value: impl Into<Number>) -> fmt::Result {
        self.sample(None, value.into())
    }

    /// The family's only sample, if its value is known.
    pub(super) fn known(&mut self, value: Option<impl Into<Number>>) -> fmt::Result {
        value.map_or(Ok(()), |value| self.single(value))
    }

    /// One sample among several.
    pub(super) fn labelled(&mut self, label: &str, value: impl Into<Number>) -> fmt::Result {
        self.sample(Some(label), value.into())
    }

    pub(super) fn tally(&mut self, counts: impl IntoIterator<Item = (String, u64)>) -> fmt::Result {
        counts.into_iter().try_for_each(|(label, count)| self.labelled(&label, count))
    }

    /// 1 for the choice that holds, 0 for the others.
    pub(super) fn one_of<const N: usize>(&mut self, choices: [&str; N], holds: &str) -> fmt::Result {
        choices.into_iter().try_for_each(|choice| self.labelled(choice, u64::from(choice == holds)))
    }

    pub(super) fn histogram(&mut self, histogram: &Histogram) -> fmt::Result {
        histogram.encode(self.encoder.encode_family(&[("slot", self.slot)])?)
    }

    fn sample(&mut self, label: Option<&str>, value: Number) -> fmt::Result {
        let slot = Some(("slot", self.slot)).filter(|_| !self.name.starts_with("process_"));
        let labels: Vec<_> = slot.into_iter().chain(self.label.zip(label)).collect();
        let mut encoder = self.encoder.encode_family(&labels)?;
        match (value, self.kind == MetricType::Counter) {
            (Number::Whole(value), true) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            (Number::Real(value), true) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
            (Number::Whole(value), false) => encoder.encode_gauge(&value),
            (Number::Real(value), false) => encoder.encode_gauge(&value),
        }
    }
}

/// A sample's value.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<Duration> for Number {
    /// In seconds.
    fn from(value: Duration) -> Self {
        Self::Real(value.as_secs_f64())
    }
}

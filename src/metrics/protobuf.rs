//! `/metrics` for scrapers that take native histograms: Prometheus' messages, each behind its length.
//!
//! In: samples of families. Out: bytes. Histograms carry both kinds of buckets; what has no native ones keeps the names that the text
//! formats have.
//! Specification: Prometheus manual, "Exposition formats", "Protobuf format"; `io/prometheus/client/metrics.proto` of its client model.

use super::cells::{LATENCY_BOUNDS_MILLIS, Latency};
use super::families::{Family, Kind};
use super::native::{SCHEMA, ZERO_THRESHOLD};
use prost::Message as _;
use std::time::Duration;

/// The `Content-Type` that announces it.
pub(super) const CONTENT_TYPE: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

#[derive(Clone, PartialEq, prost::Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    #[prost(enumeration = "MetricType", optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metrics: Vec<Metric>,
    #[prost(string, optional, tag = "5")]
    unit: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

/// One sample, or a histogram.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Metric {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Value>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Label {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

/// A counter's or a gauge's.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Value {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    buckets: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_spans: Vec<Span>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    positive_deltas: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct Span {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

/// One sample of a counter or a gauge.
pub(super) fn sample<'a>(kind: Kind, labels: impl Iterator<Item = (&'a str, &'a str)>, value: f64) -> Metric {
    let value = Some(Value { value: Some(value) });
    let (gauge, counter) = if kind == Kind::Counter { (None, value) } else { (value, None) };
    Metric { labels: list(labels), gauge, counter, histogram: None }
}

/// Latencies in seconds. The count is that of the native buckets, as a scraper demands.
pub(super) fn histogram<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>, latency: &Latency) -> Metric {
    let bounds = LATENCY_BOUNDS_MILLIS.map(|millis| Duration::from_millis(millis).as_secs_f64());
    let bucket = |(bound, count)| Bucket { cumulative_count: Some(count), upper_bound: Some(bound) };
    let buckets = bounds.into_iter().zip(latency.cumulative()).map(bucket).collect();
    let sum = latency.sum().as_secs_f64();
    let counts = latency.native();
    let span = |(offset, length)| Span { offset: Some(offset), length: Some(length) };
    let histogram = Histogram {
        count: Some(counts.all),
        sum: Some(sum),
        buckets,
        schema: Some(SCHEMA),
        zero_threshold: Some(ZERO_THRESHOLD),
        zero_count: Some(counts.zero),
        positive_spans: counts.spans.into_iter().map(span).collect(),
        positive_deltas: counts.deltas,
    };
    Metric { labels: list(labels), gauge: None, counter: None, histogram: Some(histogram) }
}

/// Adds a family with its samples, unless it has none.
pub(super) fn append(out: &mut Vec<u8>, family: &Family, metrics: Vec<Metric>) {
    if metrics.is_empty() {
        return;
    }
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let family = MetricFamily {
        name: Some(family.sample_name()),
        help: Some(family.help.to_owned()),
        kind: Some(kind.into()),
        metrics,
        unit: family.unit().map(str::to_owned),
    };
    out.extend(family.encode_length_delimited_to_vec());
}

fn list<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<Label> {
    labels.map(|(name, value)| Label { name: Some(name.to_owned()), value: Some(value.to_owned()) }).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Format, Metrics, Moment};
    use super::*;
    use std::fmt::Write as _;
    use std::time::Instant;

    fn families(metrics: &Metrics) -> Vec<MetricFamily> {
        decoded(&metrics.render(Format::Protobuf, Moment::now()))
    }

    fn decoded(mut rest: &[u8]) -> Vec<MetricFamily> {
        let mut found = Vec::new();
        while !rest.is_empty() {
            found.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
        }
        found
    }

    /// What the messages say, as lines for people.
    pub(in super::super) fn listed(bytes: &[u8]) -> String {
        let mut text = String::new();
        for family in decoded(bytes) {
            writeln!(text, "{} {:?} [{}] {}", family.name(), family.kind(), family.unit(), family.help()).unwrap();
            for metric in &family.metrics {
                let labels = metric.labels.iter().map(|label| format!("{}={:?} ", label.name(), label.value()));
                let labels: String = labels.collect();
                if let Some(value) = metric.counter {
                    writeln!(text, "  {labels}counter {:?}", value.value()).unwrap();
                }
                if let Some(value) = metric.gauge {
                    writeln!(text, "  {labels}gauge {:?}", value.value()).unwrap();
                }
                let Some(histogram) = &metric.histogram else { continue };
                writeln!(text, "  {labels}count {} sum {:?}", histogram.count(), histogram.sum()).unwrap();
                for bucket in &histogram.buckets {
                    writeln!(text, "    {:?}: {}", bucket.upper_bound(), bucket.cumulative_count()).unwrap();
                }
                let (schema, zero) = (histogram.schema(), histogram.zero_threshold());
                writeln!(text, "    schema {schema} zero {zero:?}: {}", histogram.zero_count()).unwrap();
                for span in &histogram.positive_spans {
                    writeln!(text, "    span {} {}", span.offset(), span.length()).unwrap();
                }
                writeln!(text, "    deltas {:?}", histogram.positive_deltas).unwrap();
            }
        }
        text
    }

    #[test]
    fn a_histogram_has_both_kinds_of_buckets_and_one_count() {
        let metrics = Metrics::new("orders", "outbox_pub", Instant::now());
        for millis in [0, 3, 90_000] {
            metrics.transaction_delivered(Duration::from_millis(millis));
        }
        let families = families(&metrics);
        let family = families.iter().find(|family| family.name() == "walrelay_publish_latency_seconds").unwrap();
        assert_eq!((family.kind(), family.unit()), (MetricType::Histogram, "seconds"));
        let [Metric { labels, histogram: Some(histogram), .. }] = &family.metrics[..] else { panic!("{family:?}") };
        assert_eq!((labels[0].name(), labels[0].value()), ("slot", "orders"));
        assert_eq!((histogram.count(), histogram.zero_count(), histogram.schema()), (3, 1, 3));
        let classic: Vec<u64> = histogram.buckets.iter().map(Bucket::cumulative_count).collect();
        assert_eq!((classic[1], classic[2], classic[14]), (1, 2, 2));
        // 3 ms are in bucket -67, (2^(-68/8), 2^(-67/8)] seconds; 90 s in bucket 52.
        let spans: Vec<(i32, u32)> =
            histogram.positive_spans.iter().map(|span| (span.offset(), span.length())).collect();
        assert_eq!((spans, &histogram.positive_deltas[..]), (vec![(-67, 1), (118, 1)], &[1, 0][..]));
    }

    #[test]
    fn counters_and_gauges_are_named_as_in_the_text() {
        let metrics = Metrics::new("orders", "outbox_pub", Instant::now());
        metrics.in_flight(7, 700);
        let families = families(&metrics);
        let find = |name: &str| families.iter().find(|family| family.name() == name).unwrap();
        let gauge = &find("walrelay_in_flight_records").metrics[0];
        assert_eq!((gauge.gauge.unwrap().value(), gauge.counter), (7.0, None));
        let counter = &find("walrelay_event_bytes_total").metrics[0];
        assert_eq!((counter.counter.unwrap().value(), counter.gauge), (0.0, None));
        assert!(!families.iter().any(|family| family.metrics.is_empty()));
    }
}

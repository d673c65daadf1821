//! Writes `/metrics`, as Prometheus text 0.0.4, OpenMetrics text 1.0, or Prometheus' protobuf messages.
//!
//! In: the figures and a moment. Out: one answer. `prometheus-client` writes all formats from [`FAMILIES`].
//!
//! The two texts differ in a few things. In OpenMetrics, a counter's family is named without `_total`, there are units, a histogram's
//! sum comes before its buckets, whole bounds are `1.0` and not `1`, and the text ends with `# EOF`. `walrelay_state` and
//! `walrelay_build_info` are gauges in both texts, although OpenMetrics has other kinds for them. So a series stays the same if a
//! scraper changes the format. Only the messages have native buckets of latencies.
//!
//! Specifications: Prometheus manual, "Exposition formats"; "OpenMetrics 1.0".

use super::Metrics;
use super::cells::lock;
use super::families::{FAMILIES, Family, Scrape};
use super::process::ProcessFigures;
use super::samples::{Moment, Samples};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_protobuf, prometheus_text, text};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Prometheus,
    /// OpenMetrics text 1.0.0.
    OpenMetrics,
    /// Prometheus' protobuf messages, for native histograms.
    Protobuf,
}

impl Format {
    /// The `Content-Type` of the format.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

impl Metrics {
    /// All metrics at `moment`, with those of the process.
    pub fn render(self: &Arc<Self>, format: Format, moment: Moment) -> Vec<u8> {
        write(format, Scrape { metrics: Arc::clone(self), moment, process: ProcessFigures::read() })
    }

    /// The age of the oldest transaction that is received and not acknowledged. Zero if there is none, or if the server's clock is
    /// ahead of this machine's.
    pub fn lag(&self, moment: Moment) -> Duration {
        let lag_micros = match self.oldest_commit.load(Relaxed) {
            i64::MIN => 0,
            commit => moment.unix_micros.saturating_sub(commit),
        };
        Duration::from_micros(u64::try_from(lag_micros).unwrap_or(0))
    }

    /// The age of the oldest committed row that may be unpublished, received or not. `None`: not known.
    pub fn oldest_unpublished(&self, moment: Moment) -> Option<Duration> {
        let known = |micros: i64| (micros != i64::MIN).then_some(micros);
        let (commit, stream_time) = (self.oldest_commit.load(Relaxed), self.stream_time.load(Relaxed));
        lock(&self.unpublished).age(self.confirmed(), known(commit), known(stream_time), moment.unix_micros)
    }
}

fn write(format: Format, scrape: Scrape) -> Vec<u8> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    // Writing to memory does not fail.
    let _infallible = match format {
        Format::Prometheus => prometheus_text::encode(&mut text, &registry),
        Format::OpenMetrics => text::encode(&mut text, &registry),
        Format::Protobuf => return prometheus_protobuf::encode_to_vec(&registry).unwrap_or_default(),
    };
    text.into_bytes()
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        FAMILIES.iter().try_for_each(|family| {
            let (name, unit) = family.unit();
            let encoder = encoder.encode_descriptor(name, family.help, unit.as_ref(), family.kind)?;
            let Family { name, kind, label, .. } = *family;
            (family.samples)(self, &mut Samples { encoder, name, kind, label, slot: &self.metrics.slot })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Peer, SlotFigures, State, WalEnd};
    use super::*;
    use crate::lsn::Lsn;
    use crate::pgoutput::PgTime;
    use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
        Metric, MetricFamily, MetricType as Kind,
    };
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::path::Path;
    use std::time::Instant;

    /// A relay at second 100 with all figures set.
    fn busy() -> (Arc<Metrics>, Moment) {
        let start = Instant::now();
        let metrics = Metrics::new("orders", "outbox_pub", start).with_destination("kafka", "Kafka");
        let instant = start + Duration::from_secs(100);
        let commit = PgTime(800_000_000_000_000);
        metrics.set_state(State::Streaming);
        metrics.set_positions(Lsn::new(300), Lsn::new(200));
        metrics.set_in_flight(7, 700);
        metrics.set_producers(Some(2));
        metrics.set_oldest_in_flight(Some(start + Duration::from_millis(99_500)));
        metrics.set_oldest_commit(Some(commit));
        metrics.acknowledged(metrics.topic("outbox.event.order"), 42, 4_200, start + Duration::from_secs(98));
        metrics.transaction_delivered(Duration::from_millis(3));
        metrics.transaction_delivered(Duration::from_secs(90));
        metrics.bad_row("topic");
        metrics.ignored("update", 5);
        metrics.publish_failure("MSG_SIZE_TOO_LARGE", 2);
        metrics.reconnect(Peer::Destination);
        metrics.set_slot_figures(SlotFigures {
            lag_bytes: Some(1_000),
            retained_wal_bytes: Some(2_000),
            wal_status: Some("extended".to_owned()),
            safe_wal_bytes: Some(3_000),
            active: Some(true),
            wal_end: Some(WalEnd { position: Lsn::new(300), unix_micros: commit.unix_micros() }),
        });
        (Arc::new(metrics), Moment { instant, unix_micros: commit.unix_micros() + 1_250_000 })
    }

    /// The scrape of a process whose figures are all known.
    fn scrape(metrics: &Arc<Metrics>, moment: Moment) -> Scrape {
        let process = ProcessFigures {
            cpu: Some(Duration::from_millis(1_230)),
            started: Some(Duration::from_millis(1_746_684_700_010)),
            resident_bytes: Some(10_485_760),
            virtual_bytes: Some(104_857_600),
            threads: Some(9),
            open_fds: Some(12),
            max_fds: Some(1_024),
        };
        Scrape { metrics: Arc::clone(metrics), moment, process }
    }

    fn text(metrics: &Arc<Metrics>, format: Format, moment: Moment) -> String {
        String::from_utf8(write(format, scrape(metrics, moment))).unwrap()
    }

    fn messages(scrape: Scrape) -> Vec<MetricFamily> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(scrape));
        prometheus_protobuf::encode(&registry).unwrap()
    }

    /// Writes the protobuf messages as lines for people.
    fn listed(families: &[MetricFamily]) -> String {
        let mut text = String::new();
        for family in families {
            writeln!(text, "{} {:?} [{}] {}", family.name, family.r#type(), family.unit, family.help).unwrap();
            for metric in &family.metric {
                let labels = metric.label.iter().map(|label| format!("{}={:?} ", label.name, label.value));
                let labels = labels.collect::<Vec<_>>().concat();
                if let Some(value) = &metric.counter {
                    writeln!(text, "  {labels}counter {:?}", value.value).unwrap();
                }
                if let Some(value) = &metric.gauge {
                    writeln!(text, "  {labels}gauge {:?}", value.value).unwrap();
                }
                let Some(histogram) = &metric.histogram else { continue };
                writeln!(text, "  {labels}count {} sum {:?}", histogram.sample_count, histogram.sample_sum).unwrap();
                for bucket in &histogram.bucket {
                    writeln!(text, "    {:?}: {}", bucket.upper_bound, bucket.cumulative_count).unwrap();
                }
                let (schema, zero) = (histogram.schema, histogram.zero_threshold);
                writeln!(text, "    schema {schema} zero {zero:?}: {}", histogram.zero_count).unwrap();
                for span in &histogram.positive_span {
                    writeln!(text, "    span {} {}", span.offset, span.length).unwrap();
                }
                writeln!(text, "    deltas {:?}", histogram.positive_delta).unwrap();
            }
        }
        text
    }

    /// Compares all metrics in each format with `tests/golden/metrics`. `WALRELAY_BLESS=1` writes that file instead.
    #[test]
    fn every_format_says_what_was_reviewed() {
        let (metrics, moment) = busy();
        for (file, text) in [
            ("prometheus.txt", text(&metrics, Format::Prometheus, moment)),
            ("openmetrics.txt", text(&metrics, Format::OpenMetrics, moment)),
            ("protobuf.txt", listed(&messages(scrape(&metrics, moment)))),
        ] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/metrics").join(file);
            let text = text.replace(&format!("\"{}\"", env!("CARGO_PKG_VERSION")), "\"VERSION\"");
            if std::env::var_os("WALRELAY_BLESS").is_some() {
                std::fs::write(&file, &text).unwrap();
            }
            let reviewed = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(text == reviewed, "{} differs: WALRELAY_BLESS=1 writes it, for the review\n{text}", file.display());
        }
    }

    #[track_caller]
    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|other| other == line), "no line {line:?} in\n{text}");
    }

    #[test]
    fn the_formats_differ_in_heads_in_buckets_and_in_the_end_alone() {
        let (metrics, moment) = busy();
        let prometheus = text(&metrics, Format::Prometheus, moment);
        let open_metrics = text(&metrics, Format::OpenMetrics, moment);
        has(&prometheus, "# TYPE walrelay_events_total counter");
        has(&open_metrics, "# TYPE walrelay_events counter");
        has(&open_metrics, "# UNIT walrelay_event_bytes bytes");
        assert!(open_metrics.ends_with("\n# EOF\n"));
        assert!(!prometheus.contains("# EOF") && !prometheus.contains("# UNIT"));
        let is_the_same = |line: &&str| !line.starts_with('#') && !line.contains("_bucket{");
        let samples =
            |text: &str| -> BTreeSet<String> { text.lines().filter(is_the_same).map(str::to_owned).collect() };
        assert_eq!(samples(&prometheus), samples(&open_metrics));
    }

    #[test]
    fn what_is_unknown_has_no_sample() {
        let metrics = Arc::new(Metrics::new("orders", "outbox_pub", Instant::now()));
        let scrape = Scrape { metrics, moment: Moment::now(), process: ProcessFigures::default() };
        let text = String::from_utf8(write(Format::Prometheus, scrape)).unwrap();
        for name in [
            "walrelay_slot_lag_bytes{",
            "walrelay_oldest_unpublished_seconds{",
            "walrelay_last_ack_timestamp_seconds{",
            "walrelay_slot_wal_status{",
            "process_start_time_seconds ",
        ] {
            assert!(!text.contains(&format!("\n{name}")), "{name}");
        }
        has(&text, r#"walrelay_lag_seconds{slot="orders"} 0.0"#);
    }

    #[test]
    fn before_the_first_acknowledgement_its_age_is_the_relays() {
        let start = Instant::now();
        let metrics = Arc::new(Metrics::new("orders", "outbox_pub", start));
        let moment = Moment { instant: start + Duration::from_secs(61), unix_micros: 0 };
        has(&text(&metrics, Format::Prometheus, moment), r#"walrelay_seconds_since_last_ack{slot="orders"} 61.0"#);
    }

    #[test]
    fn a_server_whose_clock_is_ahead_is_not_behind() {
        let (metrics, moment) = busy();
        metrics.set_oldest_commit(Some(PgTime(i64::MAX)));
        assert_eq!(metrics.lag(moment), Duration::ZERO);
    }

    #[test]
    fn label_values_are_escaped() {
        let metrics = Arc::new(Metrics::new("a\"b\\c\nd", "p", Instant::now()));
        has(&text(&metrics, Format::OpenMetrics, Moment::now()), r#"walrelay_event_bytes_total{slot="a\"b\\c\nd"} 0"#);
    }

    #[test]
    fn a_histogram_has_both_kinds_of_buckets_and_one_count() {
        let metrics = Arc::new(Metrics::new("orders", "outbox_pub", Instant::now()));
        for millis in [0, 3, 90_000] {
            metrics.transaction_delivered(Duration::from_millis(millis));
        }
        let families = messages(scrape(&metrics, Moment::now()));
        let family = families.iter().find(|family| family.name == "walrelay_publish_latency_seconds").unwrap();
        assert_eq!((family.r#type(), family.unit.as_str()), (Kind::Histogram, "seconds"));
        let [Metric { label, histogram: Some(histogram), .. }] = &family.metric[..] else { panic!("{family:?}") };
        assert_eq!((label[0].name.as_str(), label[0].value.as_str()), ("slot", "orders"));
        assert_eq!((histogram.sample_count, histogram.zero_count, histogram.schema), (3, 1, 3));
        let classic: Vec<u64> = histogram.bucket.iter().map(|bucket| bucket.cumulative_count).collect();
        assert_eq!((classic[1], classic[2], classic[14], classic[15]), (1, 2, 2, 3));
        // 3 ms are in bucket -67, (2^(-68/8), 2^(-67/8)] seconds; 90 s in bucket 52.
        let spans: Vec<(i32, u32)> = histogram.positive_span.iter().map(|span| (span.offset, span.length)).collect();
        assert_eq!((spans, &histogram.positive_delta[..]), (vec![(-67, 1), (118, 1)], &[1, 0][..]));
    }
}

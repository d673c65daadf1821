//! `/metrics`: the figures as Prometheus text 0.0.4, as OpenMetrics text 1.0, or as Prometheus' messages.
//!
//! In: the figures and a moment. Out: one answer. All formats are written from [`FAMILIES`], so they cannot disagree.
//!
//! The texts differ in little: OpenMetrics names a counter's family without `_total`, says units, escapes quotes in
//! help texts, and ends with `# EOF`. Numbers and bucket bounds are written the same in both, so that a series keeps its
//! identity when a scraper changes the format it asks for. `walrelay_state` and `walrelay_build_info` are gauges in both,
//! not OpenMetrics' own kinds for such things, for the same reason.
//!
//! Specifications: Prometheus manual, "Exposition formats"; "OpenMetrics 1.0".

use super::Metrics;
use super::cells::{LATENCY_BOUNDS_MILLIS, Latency, lock};
use super::families::{FAMILIES, Family, Kind, Scrape};
use super::process::Figures;
use super::protobuf::{self, Metric};
use std::fmt::{self, Write as _};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A format for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One for people as well.
    Text(Text),
    /// Prometheus' messages, for native histograms.
    Protobuf,
}

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// Prometheus text 0.0.4.
    Prometheus,
    /// OpenMetrics text 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The `Content-Type` that announces it.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text(Text::Prometheus) => "text/plain; version=0.0.4; charset=utf-8",
            Self::Text(Text::OpenMetrics) => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => protobuf::CONTENT_TYPE,
        }
    }
}

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

impl Metrics {
    /// All metrics at `moment`, and the process's own as they are now.
    pub fn render(&self, format: Format, moment: Moment) -> Vec<u8> {
        let scrape = Scrape { metrics: self, moment, process: Figures::read() };
        match format {
            Format::Text(format) => write_text(format, &scrape).into_bytes(),
            Format::Protobuf => write_messages(&scrape),
        }
    }

    /// Age of the oldest transaction that is received and not acknowledged; zero when there is none, and when the
    /// server's clock is ahead of ours.
    pub fn lag(&self, moment: Moment) -> Duration {
        let lag_micros = match self.oldest_commit.load(Relaxed) {
            i64::MIN => 0,
            commit => moment.unix_micros.saturating_sub(commit),
        };
        Duration::from_micros(u64::try_from(lag_micros).unwrap_or(0))
    }

    /// Age of the oldest committed row that may be unpublished, received or not; `None` when that is not known.
    pub fn oldest_unpublished(&self, moment: Moment) -> Option<Duration> {
        let known = |micros: i64| (micros != i64::MIN).then_some(micros);
        let (commit, stream_time) = (self.oldest_commit.load(Relaxed), self.stream_time.load(Relaxed));
        lock(&self.unpublished).age(self.confirmed(), known(commit), known(stream_time), moment.unix_micros)
    }
}

fn write_text(format: Text, scrape: &Scrape<'_>) -> String {
    let mut text = String::with_capacity(8 * 1024);
    for family in FAMILIES {
        write_head(&mut text, format, family);
        write_samples(Out::Text(&mut text), family, scrape);
    }
    if format == Text::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn write_messages(scrape: &Scrape<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * 1024);
    for family in FAMILIES {
        let mut metrics = Vec::new();
        write_samples(Out::Messages(&mut metrics), family, scrape);
        protobuf::append(&mut bytes, family, metrics);
    }
    bytes
}

fn write_samples(out: Out<'_>, family: &Family, scrape: &Scrape<'_>) {
    (family.samples)(scrape, &mut Samples { out, family, slot: &scrape.metrics.slot });
}

fn write_head(text: &mut String, format: Text, family: &Family) {
    let name = match format {
        Text::Prometheus => family.sample_name(),
        Text::OpenMetrics => family.name.to_owned(),
    };
    append(text, format_args!("# HELP {name} {}\n# TYPE {name} {}\n", family.help, family.kind.name()));
    if let (Text::OpenMetrics, Some(unit)) = (format, family.unit()) {
        append(text, format_args!("# UNIT {name} {unit}\n"));
    }
}

/// Where the samples of one family are written. Those of walrelay itself carry the label `slot`, those of the process do
/// not, as with every exporter.
pub(super) struct Samples<'a> {
    out: Out<'a>,
    family: &'a Family,
    slot: &'a str,
}

/// What samples become.
enum Out<'a> {
    Text(&'a mut String),
    Messages(&'a mut Vec<Metric>),
}

impl Samples<'_> {
    /// The family's only sample.
    pub(super) fn single(&mut self, value: impl Into<Number>) {
        self.known(Some(value));
    }

    /// The family's only sample, if its value is known.
    pub(super) fn known(&mut self, value: Option<impl Into<Number>>) {
        if let Some(value) = value {
            self.line(self.suffix(), None, value.into());
        }
    }

    /// One sample among several.
    pub(super) fn labelled(&mut self, label: &str, value: impl Into<Number>) {
        let label = self.family.label.map(|name| (name, label));
        self.line(self.suffix(), label, value.into());
    }

    pub(super) fn tally(&mut self, counts: impl IntoIterator<Item = (String, u64)>) {
        for (label, count) in counts {
            self.labelled(&label, count);
        }
    }

    /// 1 for the choice that holds, 0 for the others.
    pub(super) fn one_of<const N: usize>(&mut self, choices: [&str; N], holds: &str) {
        for choice in choices {
            self.labelled(choice, u64::from(choice == holds));
        }
    }

    /// In a text, the count is the last bucket's, so that the two agree whatever is observed meanwhile.
    pub(super) fn histogram(&mut self, latency: &Latency) {
        let slot = self.slot();
        if let Out::Messages(metrics) = &mut self.out {
            return metrics.push(protobuf::histogram(slot.into_iter(), latency));
        }
        let bounds = LATENCY_BOUNDS_MILLIS.map(|millis| Number::from(Duration::from_millis(millis)).to_string());
        let bounds = bounds.iter().map(String::as_str).chain(["+Inf"]);
        let mut total = 0;
        for (bound, count) in bounds.zip(latency.cumulative()) {
            self.line("_bucket", Some(("le", bound)), count.into());
            total = count;
        }
        self.line("_sum", None, latency.sum().into());
        self.line("_count", None, total.into());
    }

    fn suffix(&self) -> &'static str {
        if self.family.kind == Kind::Counter { "_total" } else { "" }
    }

    fn line(&mut self, suffix: &str, label: Option<(&str, &str)>, value: Number) {
        let labels = self.slot().into_iter().chain(label);
        match &mut self.out {
            Out::Text(text) => write_line(text, &format_args!("{}{suffix}", self.family.name), labels, value),
            Out::Messages(metrics) => metrics.push(protobuf::sample(self.family.kind, labels, value.into())),
        }
    }
}

impl<'a> Samples<'a> {
    fn slot(&self) -> Option<(&'static str, &'a str)> {
        Some(("slot", self.slot)).filter(|_| !self.family.name.starts_with("process_"))
    }
}

fn write_line<'a>(
    text: &mut String,
    name: &fmt::Arguments<'_>,
    labels: impl Iterator<Item = (&'a str, &'a str)>,
    value: Number,
) {
    append(text, *name);
    let mut before = '{';
    for (name, value) in labels {
        append(text, format_args!("{before}{name}=\"{}\"", Escaped(value)));
        before = ',';
    }
    let after = if before == ',' { "}" } else { "" };
    append(text, format_args!("{after} {value}\n"));
}

fn append(text: &mut String, arguments: fmt::Arguments<'_>) {
    // Writing to a String fails only when a Display does; ours do not.
    let _infallible = text.write_fmt(arguments);
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

impl From<Number> for f64 {
    #[allow(clippy::cast_precision_loss, reason = "as every scraper reads a number")]
    fn from(number: Number) -> Self {
        match number {
            Number::Whole(value) => value as Self,
            Number::Real(value) => value,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => write!(f, "{value}"),
            // `Debug` keeps the ".0" of a whole number: OpenMetrics' canonical form of a bucket's bound.
            Self::Real(value) => write!(f, "{value:?}"),
        }
    }
}

/// A label's value, as both formats quote it.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::tests::listed;
    use super::super::{Peer, SlotFigures, State, WalEnd};
    use super::*;
    use crate::lsn::Lsn;
    use crate::pgoutput::PgTime;
    use std::path::Path;

    /// Second 100 of a relay, with every figure set.
    fn busy() -> (Metrics, Moment) {
        let start = Instant::now();
        let metrics = Metrics::new("orders", "outbox_pub", start).with_destination("kafka", "Kafka");
        let instant = start + Duration::from_secs(100);
        let commit = PgTime(800_000_000_000_000);
        metrics.set_state(State::Streaming);
        metrics.positions(Lsn::new(300), Lsn::new(200));
        metrics.in_flight(7, 700);
        metrics.set_lanes(Some(2));
        metrics.oldest_in_flight(Some(start + Duration::from_millis(99_500)));
        metrics.oldest_commit(Some(commit));
        metrics.acknowledged(metrics.topic("outbox.event.order"), 42, 4_200, start + Duration::from_secs(98));
        metrics.transaction_delivered(Duration::from_millis(3));
        metrics.transaction_delivered(Duration::from_secs(90));
        metrics.bad_row("topic");
        metrics.ignored("update", 5);
        metrics.publish_failure("MSG_SIZE_TOO_LARGE", 2);
        metrics.reconnect(Peer::Destination);
        metrics.slot_figures(SlotFigures {
            lag_bytes: Some(1_000),
            retained_wal_bytes: Some(2_000),
            wal_status: Some("extended".to_owned()),
            safe_wal_bytes: Some(3_000),
            active: Some(true),
            wal_end: Some(WalEnd { position: Lsn::new(300), unix_micros: commit.unix_micros() }),
        });
        (metrics, Moment { instant, unix_micros: commit.unix_micros() + 1_250_000 })
    }

    /// As a process's whose figures are all known.
    fn scrape(metrics: &Metrics, moment: Moment) -> Scrape<'_> {
        let process = Figures {
            cpu: Some(Duration::from_millis(1_230)),
            started: Some(Duration::from_millis(1_746_684_700_010)),
            resident_bytes: Some(10_485_760),
            virtual_bytes: Some(104_857_600),
            threads: Some(9),
            open_fds: Some(12),
            max_fds: Some(1_024),
        };
        Scrape { metrics, moment, process }
    }

    fn text(metrics: &Metrics, format: Text, moment: Moment) -> String {
        write_text(format, &scrape(metrics, moment))
    }

    /// All metrics in each format are what `tests/golden/metrics` says; `WALRELAY_BLESS=1` writes it, for the review.
    #[test]
    fn every_format_says_what_was_reviewed() {
        let (metrics, moment) = busy();
        for (file, text) in [
            ("prometheus.txt", text(&metrics, Text::Prometheus, moment)),
            ("openmetrics.txt", text(&metrics, Text::OpenMetrics, moment)),
            ("protobuf.txt", listed(&write_messages(&scrape(&metrics, moment)))),
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
    fn the_formats_differ_in_heads_and_end_and_in_nothing_else() {
        let (metrics, moment) = busy();
        let prometheus = text(&metrics, Text::Prometheus, moment);
        let open_metrics = text(&metrics, Text::OpenMetrics, moment);
        has(&prometheus, "# TYPE walrelay_events_total counter");
        has(&open_metrics, "# TYPE walrelay_events counter");
        has(&open_metrics, "# UNIT walrelay_event_bytes bytes");
        assert!(open_metrics.ends_with("\n# EOF\n"));
        assert!(!prometheus.contains("# EOF") && !prometheus.contains("# UNIT"));
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&prometheus), samples(&open_metrics));
    }

    #[test]
    fn what_is_unknown_has_no_sample() {
        let metrics = Metrics::new("orders", "outbox_pub", Instant::now());
        let process = Figures::default();
        let text = write_text(Text::Prometheus, &Scrape { metrics: &metrics, moment: Moment::now(), process });
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
        let metrics = Metrics::new("orders", "outbox_pub", start);
        let moment = Moment { instant: start + Duration::from_secs(61), unix_micros: 0 };
        has(&text(&metrics, Text::Prometheus, moment), r#"walrelay_seconds_since_last_ack{slot="orders"} 61.0"#);
    }

    #[test]
    fn a_server_whose_clock_is_ahead_is_not_behind() {
        let (metrics, moment) = busy();
        metrics.oldest_commit(Some(PgTime(i64::MAX)));
        assert_eq!(metrics.lag(moment), Duration::ZERO);
    }

    #[test]
    fn label_values_are_escaped() {
        let metrics = Metrics::new("a\"b\\c\nd", "p", Instant::now());
        has(&text(&metrics, Text::OpenMetrics, Moment::now()), r#"walrelay_event_bytes_total{slot="a\"b\\c\nd"} 0"#);
    }
}

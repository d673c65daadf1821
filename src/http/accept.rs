//! Chooses the format of `/metrics` by the header `Accept`.
//!
//! Prometheus' messages are for scrapers that name them and prefer no text to them: those that take native histograms. OpenMetrics is
//! for scrapers that name it in a supported version, and do not prefer plain text to it. All others get Prometheus text, even if they
//! accept neither, so that a wrong header does not stop their scrapes.
//! Specification: RFC 9110, section 12.5.1.

use crate::metrics::Format;

const OPEN_METRICS: &str = "application/openmetrics-text";
const PROTOBUF: &str = "application/vnd.google.protobuf";

/// The format for these values of `Accept`.
pub(super) fn format<'a>(accept: impl Iterator<Item = &'a str>) -> Format {
    let (mut protobuf, mut open_metrics, mut text) = (0, 0, 0);
    for range in accept.flat_map(|value| value.split(',')).map(Range::parse) {
        if range.is_messages() {
            protobuf = range.weight.max(protobuf);
        } else if range.kind.eq_ignore_ascii_case(OPEN_METRICS) && range.version_served {
            open_metrics = range.weight.max(open_metrics);
        } else if range.kind.eq_ignore_ascii_case("text/plain") {
            text = range.weight.max(text);
        }
    }
    if protobuf > 0 && protobuf >= open_metrics.max(text) {
        Format::Protobuf
    } else if open_metrics > 0 && open_metrics >= text {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    }
}

/// One media range of `Accept`.
struct Range<'a> {
    kind: &'a str,
    /// Whether it has no version, or the version 1.0.0.
    version_served: bool,
    /// The weight in thousandths, 0 to 1000.
    weight: u32,
    /// Whether it names the families of Prometheus' messages, and whether it wants the length before each.
    message: (bool, bool),
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self {
            kind: parts.next().unwrap_or_default(),
            version_served: true,
            weight: 1000,
            message: (false, false),
        };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => range.weight = thousandths(value.trim()),
                "proto" => range.message.0 = value.trim() == "io.prometheus.client.MetricFamily",
                "encoding" => range.message.1 = value.trim() == "delimited",
                "version" => range.version_served = value.trim().trim_matches('"') == "1.0.0",
                _ => {}
            }
        }
        range
    }

    fn is_messages(&self) -> bool {
        self.kind.eq_ignore_ascii_case(PROTOBUF) && self.message == (true, true)
    }
}

/// Parses a weight such as `0.75`. An invalid one counts as 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=1 before")]
fn thousandths(text: &str) -> u32 {
    text.parse::<f64>().map_or(0, |weight| (weight.clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &str, expected: Format) {
        assert_eq!(format([accept].into_iter()), expected, "{accept}");
    }

    #[test]
    fn who_does_not_name_openmetrics_gets_prometheus_text() {
        for accept in ["", "*/*", "text/plain", "text/html,*/*;q=0.8", "application/*", "nonsense;;=;q=x"] {
            check(accept, Format::Prometheus);
        }
        assert_eq!(format(std::iter::empty()), Format::Prometheus);
    }

    #[test]
    fn who_names_it_gets_openmetrics() {
        check("application/openmetrics-text", Format::OpenMetrics);
        check("Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8", Format::OpenMetrics);
        assert_eq!(format(["text/plain;q=0.1", OPEN_METRICS].into_iter()), Format::OpenMetrics);
    }

    #[test]
    fn what_prometheus_servers_send_is_understood() {
        check(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format::OpenMetrics,
        );
        check(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            Format::OpenMetrics,
        );
    }

    #[test]
    fn who_takes_native_histograms_gets_messages() {
        let messages = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        check(&format!("{messages},application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1"), Format::Protobuf);
        check(&format!("{messages};q=0.6,application/openmetrics-text;version=1.0.0;q=0.5"), Format::Protobuf);
        check(&format!("{messages};q=0.3,text/plain;q=0.5"), Format::Prometheus);
        for other in [
            "application/vnd.google.protobuf",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
            "application/vnd.google.protobuf;proto=other;encoding=delimited",
        ] {
            check(other, Format::Prometheus);
        }
    }

    #[test]
    fn weights_decide_and_zero_refuses() {
        check("application/openmetrics-text;q=0.3, text/plain;q=0.8", Format::Prometheus);
        check("application/openmetrics-text;q=0", Format::Prometheus);
        check("application/openmetrics-text;q=NaN", Format::Prometheus);
    }

    #[test]
    fn a_version_that_is_not_served_is_not_a_match() {
        check("application/openmetrics-text;version=2.0.0", Format::Prometheus);
    }
}

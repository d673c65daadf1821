//! The report of a measurement: a table or JSON, the side that was the limit, and advice.

use super::relay::Drain;
use super::{BenchRequest, PayloadType};
use serde_json::{Value, json};
use std::time::Duration;

/// Beyond this share of the looks the destination kept the relay waiting.
const BROKER_SHARE: f64 = 0.3;

/// Beyond this share of the looks the relay kept the walsender waiting.
const RELAY_SHARE: f64 = 0.5;

/// Everything that was measured.
#[derive(Debug)]
pub(super) struct BenchReport<'a> {
    pub(super) request: &'a BenchRequest,
    /// The server's version, and the host.
    pub(super) server: String,
    pub(super) distance: Distance,
    pub(super) fill_seconds: f64,
    pub(super) drain: Drain,
    /// `None`: none was asked for.
    pub(super) steady: Option<Steady>,
    pub(super) peak_kib: Option<u64>,
}

/// The distances to the servers, as round trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Distance {
    pub(super) postgres: Duration,
    /// `None`: there is no destination, or its kind does not tell.
    pub(super) destination: Option<Duration>,
}

/// The figures of the steady phase.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Steady {
    /// From the return of COMMIT to the acknowledgement, sorted.
    pub(super) latencies: Vec<Duration>,
    /// Rows committed and not acknowledged in the end.
    pub(super) missing: usize,
    pub(super) written_per_second: f64,
}

/// The side that set the pace of the drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Walsender,
    Relay,
    Broker,
}

impl Side {
    /// By who waited for whom.
    pub(super) fn of(drain: &Drain) -> Self {
        if drain.full >= BROKER_SHARE {
            Self::Broker
        } else if drain.walsender_waits >= RELAY_SHARE {
            Self::Relay
        } else {
            Self::Walsender
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Walsender => "walsender",
            Self::Relay => "relay",
            Self::Broker => "broker",
        }
    }
}

impl BenchReport<'_> {
    fn rate(&self) -> f64 {
        let Drain { rows, seconds, .. } = self.drain;
        count(rows) / seconds.max(1e-3)
    }

    fn megabytes_per_second(&self) -> f64 {
        count(self.drain.bytes) / 1e6 / self.drain.seconds.max(1e-3)
    }

    /// CPU-microseconds a row.
    fn per_row(&self, cpu_seconds: Option<f64>) -> Option<f64> {
        cpu_seconds.map(|seconds| seconds * 1e6 / count(self.drain.rows.max(1)))
    }

    /// Bytes a second that the bound in flight lets through at that distance, at most, in MB.
    fn most_in_flight(&self, round_trip: Duration) -> f64 {
        count(self.request.limits.max_in_flight as u64) / 1e6 / round_trip.as_secs_f64().max(1e-6)
    }

    /// Says how far the servers are, and what that means for the rest.
    fn distance(&self) -> String {
        let Distance { postgres, destination } = self.distance;
        let postgres = format!("Postgres {} a round trip", millis(Some(postgres)));
        let Some((round_trip, wanted)) = destination.zip(self.request.destination.as_ref()) else { return postgres };
        format!(
            "{postgres}, {} {}: no row is acknowledged sooner, and --max-in-flight lets {:.0} MB/s through at most",
            wanted.kind().title,
            millis(Some(round_trip)),
            self.most_in_flight(round_trip)
        )
    }

    /// Returns advice against the side that sets the pace.
    fn advice(&self) -> Vec<&'static str> {
        let BenchRequest { payload_type, rows_per_transaction, .. } = self.request;
        let mut advice = Vec::new();
        match Side::of(&self.drain) {
            Side::Walsender => {
                if *payload_type == PayloadType::Jsonb {
                    advice.push("json or text instead of jsonb: the server writes jsonb as text again for each row");
                }
                if *rows_per_transaction < 10 {
                    advice.push("more rows to a transaction: each begins and ends with messages of its own");
                }
                advice.push("a slot is decoded by one process on one core: beyond that, a second publication and slot");
            }
            Side::Relay => {
                advice.push("a core of its own for the relay, and fewer headers: each costs an allocation");
            }
            Side::Broker => {
                advice.push("-X compression.type=lz4: fewer bytes for the broker to write");
                let far = self.distance.destination.map(|round_trip| self.most_in_flight(round_trip));
                if far.is_some_and(|most| most < 2.0 * self.megabytes_per_second()) {
                    advice.push("a larger --max-in-flight: at this distance it lets hardly more through than it did");
                }
                advice.push("more partitions on more brokers");
            }
        }
        advice
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { request, drain, .. } = self;
        let mut lines = vec![
            format!(
                "backlog      {} rows of {} B {}, {} to a transaction, written in {:.1} s ({})",
                drain.rows.max(request.rows),
                request.payload_bytes,
                request.payload_type.column(),
                request.rows_per_transaction,
                self.fill_seconds,
                self.server
            ),
            format!("distance     {}", self.distance()),
            format!(
                "drain        {:.0} rows/s, {:.1} MB/s, first after {:.2} s",
                self.rate(),
                self.megabytes_per_second(),
                drain.first_seconds
            ),
            format!(
                "CPU          relay {}, walsender {}",
                micros(self.per_row(drain.cpu_seconds)),
                micros(self.per_row(drain.walsender_cpu_seconds))
            ),
            format!(
                "limit        {} (walsender at work {}, waiting for the relay {}; relay full {})",
                Side::of(drain).name(),
                percent(drain.walsender_works),
                percent(drain.walsender_waits),
                percent(drain.full)
            ),
        ];
        if let Some(kib) = self.peak_kib {
            lines.push(format!("memory       {} MB at most, the measurement itself included", kib / 1024));
        }
        if let Some(steady) = &self.steady {
            lines.push(format!(
                "steady       {} rows/s ({:.0} written) for {} s: COMMIT to acknowledgement p50 {} p90 {} p99 {} max {}",
                request.rate,
                steady.written_per_second,
                request.seconds,
                millis(steady.percentile(50.0)),
                millis(steady.percentile(90.0)),
                millis(steady.percentile(99.0)),
                millis(steady.percentile(100.0))
            ));
            if steady.missing > 0 {
                lines.push(format!(
                    "             {} rows were not acknowledged in time: they are left out",
                    steady.missing
                ));
            }
        }
        lines.extend(self.advice().into_iter().map(|advice| format!("may help     {advice}")));
        lines.join("\n") + "\n"
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let Self { request, drain, .. } = self;
        let steady = self.steady.as_ref().map(|steady| {
            let at = |percent| steady.percentile(percent).map(|latency| latency.as_secs_f64() * 1e3);
            json!({
                "rate": request.rate,
                "written_per_second": steady.written_per_second,
                "seconds": request.seconds,
                "rows": steady.latencies.len(),
                "missing": steady.missing,
                "commit_to_acknowledgement_millis": {"p50": at(50.0), "p90": at(90.0), "p99": at(99.0), "p99.9": at(99.9), "max": at(100.0)},
            })
        });
        json!({
            "server": self.server,
            "sink": request.destination.as_ref().map_or("null", |destination| destination.kind().name),
            "rows": request.rows,
            "payload_bytes": request.payload_bytes,
            "payload_type": request.payload_type.column(),
            "rows_per_transaction": request.rows_per_transaction,
            "fill_seconds": self.fill_seconds,
            "round_trip_millis": {
                "postgres": self.distance.postgres.as_secs_f64() * 1e3,
                "destination": self.distance.destination.map(|time| time.as_secs_f64() * 1e3),
            },
            "drain": {
                "rows": drain.rows,
                "seconds": drain.seconds,
                "rows_per_second": self.rate(),
                "megabytes_per_second": self.megabytes_per_second(),
                "first_seconds": drain.first_seconds,
                "relay_cpu_micros_per_row": self.per_row(drain.cpu_seconds),
                "walsender_cpu_micros_per_row": self.per_row(drain.walsender_cpu_seconds),
                "walsender_works": drain.walsender_works,
                "walsender_waits": drain.walsender_waits,
                "relay_full": drain.full,
                "limit": Side::of(drain).name(),
            },
            "steady": steady,
            "peak_kib": self.peak_kib,
            "advice": self.advice(),
        })
    }
}

impl Steady {
    /// The latency that `percent` of the rows stay within; `None` when there are none.
    pub(super) fn percentile(&self, percent: f64) -> Option<Duration> {
        let last = self.latencies.len().checked_sub(1)?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        let index = (last as f64 * percent / 100.0).round() as usize;
        self.latencies.get(index).copied()
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn count(number: u64) -> f64 {
    number as f64
}

fn micros(value: Option<f64>) -> String {
    value.map_or_else(|| "elsewhere".to_owned(), |value| format!("{value:.2} µs a row"))
}

fn millis(value: Option<Duration>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.2} ms", value.as_secs_f64() * 1e3))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_whom_tells_the_limit() {
        let drain =
            |works, waits, full| Drain { walsender_works: works, walsender_waits: waits, full, ..Drain::default() };
        assert_eq!(Side::of(&drain(0.9, 0.1, 0.0)), Side::Walsender);
        assert_eq!(Side::of(&drain(0.2, 0.8, 0.0)), Side::Relay);
        assert_eq!(Side::of(&drain(0.2, 0.8, 0.7)), Side::Broker);
    }

    #[test]
    fn percentiles_are_latencies_that_occurred() {
        let latencies = [1, 2, 3, 4, 100].map(Duration::from_millis).to_vec();
        let steady = Steady { latencies, missing: 0, written_per_second: 1.0 };
        assert_eq!(steady.percentile(50.0), Some(Duration::from_millis(3)));
        assert_eq!(steady.percentile(100.0), Some(Duration::from_millis(100)));
        assert_eq!(Steady { latencies: Vec::new(), ..steady }.percentile(50.0), None);
    }
}

//! [`FAMILIES`]: the name, kind, label and meaning of each metric, and how its samples are taken.
//!
//! In: the figures at a moment. Out: samples. Both `/metrics` and the manual's table are made from [`FAMILIES`], and no other code has
//! a list of metrics. This file does not know the formats.

use super::process::ProcessFigures;
use super::samples::{Moment, Samples};
use super::{Metrics, State};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The values of `pg_replication_slots.wal_status`.
pub const WAL_STATUSES: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];

/// The value of `peer` for Postgres. Other values are destinations.
const POSTGRES: &str = "postgres";

/// The values for one answer to a scrape.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) metrics: Arc<Metrics>,
    pub(super) moment: Moment,
    pub(super) process: ProcessFigures,
}

impl Scrape {
    /// The time since the last acknowledgement. Before the first one, it is the time since the start, so that an alert on it also fires
    /// for a relay without any.
    fn since_last_ack(&self) -> Duration {
        let now = self.moment.instant;
        self.metrics.age(&self.metrics.last_ack, now).unwrap_or_else(|| self.metrics.since_start(now))
    }

    /// The time since 1970, exact to a millisecond: the two clocks of a moment are read one after the other.
    fn last_ack_time(&self) -> Option<Duration> {
        let age = self.metrics.age(&self.metrics.last_ack, self.moment.instant)?;
        let now = Duration::from_micros(u64::try_from(self.moment.unix_micros).unwrap_or(0));
        let millis = now.saturating_sub(age).as_millis();
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
    }
}

/// Writes the samples of one metric.
type Write = fn(&Scrape, &mut Samples<'_>) -> fmt::Result;

/// A metric: its name, its meaning, and how its samples are taken.
pub struct Family {
    /// The name. A counter's name is without `_total`.
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    /// The label whose values distinguish its samples. All samples also have the label `slot`, and a histogram's buckets have `le`.
    pub label: Option<&'static str>,
    /// The description: one line, without quotes and backslashes.
    pub help: &'static str,
    pub(super) samples: Write,
}

impl Family {
    const fn counter(name: &'static str, help: &'static str, samples: Write) -> Self {
        Self { name, kind: MetricType::Counter, label: None, help, samples }
    }

    const fn gauge(name: &'static str, help: &'static str, samples: Write) -> Self {
        Self { name, kind: MetricType::Gauge, label: None, help, samples }
    }

    /// Gives it a sample for each value of `label`.
    const fn by(self, label: &'static str) -> Self {
        Self { label: Some(label), ..self }
    }

    /// `counter`, `gauge` or `histogram`.
    pub fn kind_name(&self) -> &str {
        self.kind.as_str()
    }

    /// The name of its samples. For a counter, it ends in `_total`.
    pub fn sample_name(&self) -> String {
        format!("{}{}", self.name, if self.kind == MetricType::Counter { "_total" } else { "" })
    }

    /// The name without the unit, and the unit, if it has one. In OpenMetrics, a name must end in its unit.
    pub fn unit(&self) -> (&'static str, Option<Unit>) {
        let before = |unit: Unit| Some((self.name.strip_suffix(unit.as_str())?.strip_suffix('_')?, Some(unit)));
        [Unit::Seconds, Unit::Bytes].into_iter().find_map(before).unwrap_or((self.name, None))
    }
}

/// All metrics, in the order in which they are written.
pub const FAMILIES: &[Family] = &[
    Family::counter("walrelay_events", "Records acknowledged by the destination.", |scrape, out| {
        out.tally(scrape.metrics.topics.counts())
    })
    .by("topic"),
    Family::counter(
        "walrelay_event_bytes",
        "Bytes of key and value acknowledged by the destination.",
        |scrape, out| out.single(scrape.metrics.event_bytes.load(Relaxed)),
    ),
    Family::counter(
        "walrelay_transactions",
        "Transactions with at least one record, fully acknowledged.",
        |scrape, out| out.single(scrape.metrics.latency.count()),
    ),
    Family::counter("walrelay_bad_rows", "Rows that were not published, by reason.", |scrape, out| {
        out.tally(scrape.metrics.bad_rows.counts())
    })
    .by("reason"),
    Family::counter(
        "walrelay_ignored",
        "What publishes nothing by design, by kind: updates, messages outside transactions.",
        |scrape, out| out.tally(scrape.metrics.ignored.counts()),
    )
    .by("kind"),
    Family::counter("walrelay_publish_failures", "Delivery reports with an error, by reason.", |scrape, out| {
        out.tally(scrape.metrics.publish_failures.counts())
    })
    .by("reason"),
    Family::counter("walrelay_reconnects", "Connections lost and opened again, by peer.", |scrape, out| {
        out.labelled(POSTGRES, scrape.metrics.postgres_reconnects.load(Relaxed))?;
        out.labelled(scrape.metrics.destination.0, scrape.metrics.destination_reconnects.load(Relaxed))
    })
    .by("peer"),
    Family::gauge("walrelay_in_flight_records", "Records enqueued and not acknowledged.", |scrape, out| {
        out.single(scrape.metrics.in_flight_records.load(Relaxed))
    }),
    Family::gauge(
        "walrelay_in_flight_bytes",
        "Bytes of key, value and headers enqueued and not acknowledged.",
        |scrape, out| out.single(scrape.metrics.in_flight_bytes.load(Relaxed)),
    ),
    Family::gauge(
        "walrelay_producers",
        "Producers that share Kafka's partitions, each partition always with the same one. 1 with exactly once.",
        |scrape, out| out.known(scrape.metrics.producers()),
    ),
    Family::gauge("walrelay_confirmed_lsn_bytes", "WAL position confirmed to Postgres.", |scrape, out| {
        out.single(scrape.metrics.confirmed.load(Relaxed))
    }),
    Family::gauge("walrelay_received_lsn_bytes", "WAL position received from Postgres.", |scrape, out| {
        out.single(scrape.metrics.received.load(Relaxed))
    }),
    Family::gauge(
        "walrelay_lag_seconds",
        "Age of the oldest transaction received and not acknowledged, 0 if there is none. A backlog that waits in Postgres does not count.",
        |scrape, out| out.single(scrape.metrics.lag(scrape.moment)),
    ),
    Family::gauge(
        "walrelay_oldest_unpublished_seconds",
        "Age of the oldest committed row that may be unpublished, also while it waits in Postgres, 0 if there is none. Exact to 10 s.",
        |scrape, out| out.known(scrape.metrics.oldest_unpublished(scrape.moment)),
    ),
    Family::gauge(
        "walrelay_slot_lag_bytes",
        "WAL between the position confirmed by the slot and the current one, every 10 s.",
        |scrape, out| out.known(scrape.metrics.slot_figures().lag_bytes),
    ),
    Family::gauge(
        "walrelay_slot_retained_wal_bytes",
        "WAL that Postgres keeps because of the slot, every 10 s.",
        |scrape, out| out.known(scrape.metrics.slot_figures().retained_wal_bytes),
    ),
    Family::gauge(
        "walrelay_slot_safe_wal_bytes",
        "WAL that may be written before Postgres may invalidate the slot, if max_slot_wal_keep_size is set, every 10 s.",
        |scrape, out| out.known(scrape.metrics.slot_figures().safe_wal_bytes),
    ),
    Family::gauge("walrelay_slot_active", "1 while a walsender reads the slot, every 10 s.", |scrape, out| {
        out.known(scrape.metrics.slot_figures().active.map(u64::from))
    }),
    Family::counter(
        "walrelay_slot_look_failures",
        "Queries for the slot, every 10 s, that failed. The other walrelay_slot_* are unknown until one works.",
        |scrape, out| out.single(scrape.metrics.slot_look_failures.load(Relaxed)),
    ),
    Family::gauge(
        "walrelay_slot_wal_status",
        "1 for the wal_status that the slot has, 0 for the others.",
        |scrape, out| {
            scrape.metrics.slot_figures().wal_status.map_or(Ok(()), |status| out.one_of(WAL_STATUSES, &status))
        },
    )
    .by("status"),
    Family::gauge(
        "walrelay_seconds_since_last_ack",
        "Time since the last acknowledgement, or since the start before the first. It also rises while the outbox is idle.",
        |scrape, out| out.single(scrape.since_last_ack()),
    ),
    Family::gauge(
        "walrelay_last_ack_timestamp_seconds",
        "Time of the last acknowledgement, since 1970. Absent before the first.",
        |scrape, out| out.known(scrape.last_ack_time()),
    ),
    Family::gauge(
        "walrelay_oldest_in_flight_seconds",
        "Age of the oldest record in flight, 0 if there is none. If it rises, publishing is stuck.",
        |scrape, out| {
            let metrics = &scrape.metrics;
            out.single(metrics.age(&metrics.oldest_in_flight, scrape.moment.instant).unwrap_or_default())
        },
    ),
    Family {
        name: "walrelay_publish_latency_seconds",
        kind: MetricType::Histogram,
        label: None,
        help: "From a transaction's commit time to its last acknowledgement.",
        samples: |scrape, out| out.histogram(&scrape.metrics.latency.histogram),
    },
    Family::gauge("walrelay_state", "1 for the state that the relay is in, 0 for the others.", |scrape, out| {
        out.one_of(State::ALL.map(State::name), scrape.metrics.state().name())
    })
    .by("state"),
    Family::gauge("walrelay_build_info", "1, with the version.", |_, out| out.labelled(env!("CARGO_PKG_VERSION"), 1))
        .by("version"),
    Family::counter("process_cpu_seconds", "User and system CPU time.", |scrape, out| out.known(scrape.process.cpu)),
    Family::gauge("process_start_time_seconds", "Start of the process, since 1970.", |scrape, out| {
        out.known(scrape.process.started)
    }),
    Family::gauge("process_resident_memory_bytes", "Resident memory.", |scrape, out| {
        out.known(scrape.process.resident_bytes)
    }),
    Family::gauge("process_virtual_memory_bytes", "Virtual memory.", |scrape, out| {
        out.known(scrape.process.virtual_bytes)
    }),
    Family::gauge("process_threads", "Threads.", |scrape, out| out.known(scrape.process.threads)),
    Family::gauge("process_open_fds", "Open file descriptors.", |scrape, out| out.known(scrape.process.open_fds)),
    Family::gauge("process_max_fds", "Limit on open file descriptors.", |scrape, out| {
        out.known(scrape.process.max_fds)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_family_is_listed_once_and_its_help_needs_no_escaping() {
        let names: HashSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            assert!(!family.help.contains(['\\', '"', '\n']), "{}", family.name);
            assert!(family.help.ends_with('.') && !family.name.ends_with("_total"), "{}", family.name);
        }
    }
}

//! Writes `/status`: a few figures in JSON, for programs without a parser for metrics.
//!
//! The names of the fields of [`Status`] are the keys of the JSON. They are a part of the interface.

use super::Metrics;
use super::cells::lock;
use crate::lsn::Lsn;
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The figures of one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// The slot's name.
    pub slot: String,
    /// The publication's name.
    pub publication: String,
    /// [`State::name`](super::State::name).
    pub state: &'static str,
    /// The position up to which everything is acknowledged, in Postgres' text form: it was confirmed to the server, or the next status update
    /// confirms it. `0/0` before the first one.
    pub confirmed_lsn: String,
    /// The position that was received from the server, in the same form.
    pub received_lsn: String,
    /// The bytes of WAL between the slot's confirmed position and the server's current one. `None`: not known.
    pub lag_bytes: Option<u64>,
    /// The number of records that are enqueued and not acknowledged.
    pub in_flight_records: u64,
    /// Their bytes of key, value and headers.
    pub in_flight_bytes: u64,
    /// The number of records that were acknowledged since the start.
    pub events_total: u64,
    /// Seconds since the last acknowledgement. `None`: there was none.
    pub last_ack_seconds: Option<f64>,
    /// The row whose record the destination does not take for an answer that is in no list. `None`: there is none.
    pub tried_alone: Option<TriedRowStatus>,
    /// The obstacle or the last error, for people, with the fix.
    pub last_error: Option<String>,
    /// The fix alone. `None`: it is not known.
    pub hint: Option<String>,
    /// Seconds since the start.
    pub uptime_seconds: f64,
    /// walrelay's version.
    pub version: &'static str,
}

/// A row whose record is sent alone, again and again, as the relay sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriedRow {
    /// The table, or the message prefix.
    pub table: String,
    /// The row's position, as `--bad-row-at` takes it.
    pub position: String,
    /// The record's topic.
    pub topic: String,
    /// The destination's last answer.
    pub answer: String,
    /// How often the record was refused alone.
    pub attempts: u32,
    /// When it was first refused alone.
    pub since: Instant,
    /// Whether other records of the topic arrive between two refusals.
    pub others_arrive: bool,
}

/// A [`TriedRow`] at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TriedRowStatus {
    /// [`TriedRow::table`].
    pub table: String,
    /// [`TriedRow::position`].
    pub position: String,
    /// [`TriedRow::topic`].
    pub topic: String,
    /// [`TriedRow::answer`].
    pub answer: String,
    /// [`TriedRow::attempts`].
    pub attempts: u32,
    /// Seconds since it was first refused alone.
    pub seconds: f64,
    /// [`TriedRow::others_arrive`].
    pub others_arrive: bool,
}

impl TriedRow {
    fn status(&self, now: Instant) -> TriedRowStatus {
        let Self { table, position, topic, answer, attempts, since, others_arrive } = self.clone();
        let seconds = seconds(now.saturating_duration_since(since));
        TriedRowStatus { table, position, topic, answer, attempts, seconds, others_arrive }
    }
}

impl Metrics {
    /// The figures at `now`.
    pub fn status(&self, now: Instant) -> Status {
        let text = |lsn: u64| Lsn::new(lsn).to_string();
        Status {
            slot: self.slot.clone(),
            publication: self.publication.clone(),
            state: self.state().name(),
            confirmed_lsn: text(self.confirmed.load(Relaxed)),
            received_lsn: text(self.received.load(Relaxed)),
            lag_bytes: lock(&self.slot_figures).lag_bytes,
            in_flight_records: self.in_flight_records.load(Relaxed),
            in_flight_bytes: self.in_flight_bytes.load(Relaxed),
            events_total: self.events_total(),
            last_ack_seconds: self.age(&self.last_ack, now).map(seconds),
            tried_alone: lock(&self.tried_alone).as_ref().map(|row| row.status(now)),
            last_error: self.problem_with_hint(),
            hint: self.hint().map(|hint| hint.to_string()),
            uptime_seconds: seconds(self.since_start(now)),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// [`Metrics::status`] as one JSON object, with a line break after it.
    pub fn status_json(&self, now: Instant) -> String {
        // Strings, integers and finite numbers always have a JSON form.
        let mut json = serde_json::to_string_pretty(&self.status(now)).unwrap_or_default();
        json.push('\n');
        json
    }
}

/// Seconds with three decimals. More would be noise for a reader.
fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::super::{SlotFigures, State};
    use super::*;
    use serde_json::{Value, json};

    fn parsed(metrics: &Metrics, now: Instant) -> Value {
        serde_json::from_str(&metrics.status_json(now)).unwrap()
    }

    #[test]
    fn what_is_not_known_is_null() {
        let start = Instant::now();
        let metrics = Metrics::new("orders", "outbox_pub", start);
        let expected = json!({
            "slot": "orders", "publication": "outbox_pub", "state": "connecting", "confirmed_lsn": "0/0",
            "received_lsn": "0/0", "lag_bytes": null, "in_flight_records": 0, "in_flight_bytes": 0, "events_total": 0,
            "last_ack_seconds": null, "tried_alone": null, "last_error": null, "hint": null, "uptime_seconds": 0.0, "version": env!("CARGO_PKG_VERSION"),
        });
        assert_eq!(parsed(&metrics, start), expected);
    }

    #[test]
    fn figures_are_those_that_were_set() {
        let start = Instant::now();
        let metrics = Metrics::new("orders", "outbox_pub", start);
        metrics.set_state(State::WaitingForSlot);
        metrics.set_positions(Lsn::new(0x16_B374_D848), Lsn::new(0x16_B374_0000));
        metrics.set_in_flight(3, 99);
        metrics.acknowledged(metrics.topic("a"), 40, 1, start);
        metrics.acknowledged(metrics.topic("b"), 2, 1, start + Duration::from_secs(1));
        metrics.set_last_error(Some("it \"broke\"".to_owned()));
        metrics.set_slot_figures(SlotFigures { lag_bytes: Some(5), ..SlotFigures::default() });
        let (text, since) = (|text: &str| text.to_owned(), start + Duration::from_secs(1));
        let (table, position, topic, answer) = (text("public.outbox"), text("0/10:1"), text("orders"), text("ERR no"));
        let tried = TriedRow { table, position, topic, answer, attempts: 2, since, others_arrive: true };
        metrics.set_tried_alone(Some(tried));
        let status = parsed(&metrics, start + Duration::from_micros(2_500_400));
        for (key, value) in [
            ("state", json!("waiting-for-slot")),
            ("received_lsn", json!("16/B374D848")),
            ("confirmed_lsn", json!("16/B3740000")),
            ("lag_bytes", json!(5)),
            ("in_flight_records", json!(3)),
            ("in_flight_bytes", json!(99)),
            ("events_total", json!(42)),
            ("last_ack_seconds", json!(1.5)),
            (
                "tried_alone",
                json!({"table": "public.outbox", "position": "0/10:1", "topic": "orders", "answer": "ERR no", "attempts": 2,
                    "seconds": 1.5, "others_arrive": true}),
            ),
            ("last_error", json!("it \"broke\"")),
            ("uptime_seconds", json!(2.5)),
        ] {
            assert_eq!(status[key], value, "{key}");
        }
    }
}

//! The report on one slot, and its forms.
//!
//! In: plain values. Out: a table, a line, JSON. The names of the fields that are written are the keys of the JSON; they are
//! part of the interface, and a key is always there: what is not known is null. Pure.

use super::StatusRequest;
use super::relay::RelayReport;
use crate::commands::output::{self, bytes, number};
use crate::lsn::Lsn;
use crate::pg::catalog::ServerSession;
use crate::pg::server::Slot;
use crate::remedy::Remedy;
use crate::supervise::RunError;
use serde::Serialize;
use std::time::Duration;

/// One look at a slot.
#[derive(Debug, Clone, Serialize)]
pub(super) struct StatusReport {
    slot: String,
    /// Absent: there is no such slot, or Postgres cannot be asked.
    #[serde(flatten, serialize_with = "slot_or_nulls")]
    pub(super) slot_row: Option<SlotReport>,
    publication: String,
    /// `None`: Postgres cannot be asked.
    pub(super) publication_exists: Option<bool>,
    /// `schema.table`.
    pub(super) tables: Vec<String>,
    /// Bytes of WAL confirmed in a second; only in a watch, from the second look on.
    #[serde(rename = "confirmed_bytes_per_second")]
    pub(super) rate: Option<u64>,
    /// Records acknowledged in a second, by the relay on this machine; likewise.
    #[serde(rename = "records_per_second")]
    pub(super) records_rate: Option<u64>,
    pub(super) relay: Option<RelayReport>,
    /// Why no relay can read the slot.
    error: Option<String>,
    hint: Option<Remedy>,
}

/// The server's row about a slot.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct SlotReport {
    plugin: Option<String>,
    database: Option<String>,
    active: Option<bool>,
    active_pid: Option<u32>,
    active_application: Option<String>,
    active_client: Option<String>,
    confirmed_lsn: Option<String>,
    restart_lsn: Option<String>,
    lag_bytes: Option<u64>,
    retained_wal_bytes: Option<u64>,
    wal_status: Option<String>,
    failover: Option<bool>,
    #[serde(skip)]
    pub(super) confirmed: Option<Lsn>,
    /// Its reader, in words.
    #[serde(skip)]
    reader: Option<String>,
}

/// Bytes, or records, in a second.
pub(super) fn per_second(count: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(count) * 1000 / time.as_millis().max(1)).unwrap_or(u64::MAX)
}

/// The keys of a slot are there also when the slot is not.
#[allow(clippy::ref_option, reason = "serde calls it with a reference to the field")]
fn slot_or_nulls<S: serde::Serializer>(slot: &Option<SlotReport>, serializer: S) -> Result<S::Ok, S::Error> {
    match slot {
        Some(slot) => slot.serialize(serializer),
        None => SlotReport::default().serialize(serializer),
    }
}

impl SlotReport {
    pub(super) fn new(slot: &Slot, reader: Option<&ServerSession>) -> Self {
        let row = &slot.row;
        let text = |lsn: Option<Lsn>| lsn.map(|lsn| lsn.to_string());
        let pid = row.active_pid.map(|pid| format!("process {pid}"));
        Self {
            plugin: row.plugin.clone(),
            database: row.database.clone(),
            active: Some(row.active),
            active_pid: row.active_pid,
            active_application: reader.and_then(|reader| reader.application.clone()),
            active_client: reader.and_then(|reader| reader.client.clone()),
            confirmed_lsn: text(slot.confirmed_flush_lsn),
            restart_lsn: text(slot.restart_lsn),
            lag_bytes: slot.lag_bytes,
            retained_wal_bytes: slot.retained_wal_bytes,
            wal_status: row.wal_status.clone(),
            failover: Some(row.failover),
            confirmed: slot.confirmed_flush_lsn,
            reader: reader.map(output::reader).or(pid),
        }
    }

    fn activity(&self) -> String {
        match (&self.reader, self.active) {
            (Some(reader), _) => format!("active: {reader}"),
            (None, Some(true)) => "active".to_owned(),
            (None, _) => "inactive: no relay reads it".to_owned(),
        }
    }
}

impl StatusReport {
    /// Nothing is known yet but the names.
    pub(super) fn unknown(request: &StatusRequest) -> Self {
        Self {
            slot: request.slot.clone(),
            slot_row: None,
            publication: request.publication.clone(),
            publication_exists: None,
            tables: Vec::new(),
            rate: None,
            records_rate: None,
            relay: None,
            error: None,
            hint: None,
        }
    }

    /// Takes what stands in the way.
    pub(super) fn failed(&mut self, outcome: &Result<(), RunError>) {
        if let Err(error) = outcome {
            (self.error, self.hint) = (Some(crate::supervise::chain(error)), error.remedy.clone());
        }
    }

    pub(super) fn json_pretty(&self) -> String {
        // Strings, integers, booleans and a relay's own JSON: there is nothing in it that JSON cannot say.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    pub(super) fn json_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// For people: a line each.
    pub(super) fn table(&self) -> String {
        let mut rows = vec![("slot", self.slot_line())];
        rows.extend(self.slot_row.iter().flat_map(slot_rows));
        rows.extend(self.rate_line().map(|line| ("rate", line)));
        rows.extend(self.publication_line().map(|line| ("publication", line)));
        rows.extend(self.relay.iter().flat_map(RelayReport::rows));
        rows.extend(self.error.as_ref().map(|error| ("error", error.clone())));
        rows.iter().flat_map(|(name, text)| [format!("{name:<13}"), text.clone(), "\n".to_owned()]).collect()
    }

    fn slot_line(&self) -> String {
        let Some(row) = &self.slot_row else { return self.slot.clone() };
        let plugin = row.plugin.as_deref().unwrap_or("physical");
        match &row.database {
            Some(database) => format!("{} ({plugin}, database {database})", self.slot),
            None => format!("{} ({plugin})", self.slot),
        }
    }

    fn rate_line(&self) -> Option<String> {
        let records = self.records_rate.map(|rate| format!("{} records/s published", number(rate)));
        let wal = self.rate.map(|rate| format!("{}/s of WAL confirmed", bytes(rate)));
        let known: Vec<String> = records.into_iter().chain(wal).collect();
        (!known.is_empty()).then(|| known.join(", "))
    }

    fn publication_line(&self) -> Option<String> {
        Some(match self.publication_exists? {
            false => format!("{} does not exist", self.publication),
            true if self.tables.is_empty() => format!("{} has no table", self.publication),
            true => format!("{}: {}", self.publication, self.tables.join(", ")),
        })
    }

    /// For logs: one line, `key=value`.
    pub(super) fn line(&self) -> String {
        let row = self.slot_row.clone().unwrap_or_default();
        let size = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |count| bytes(count).replace(' ', ""));
        let text = |text: Option<String>| text.unwrap_or_else(|| "?".to_owned());
        let mut line = vec![
            format!("slot={}", self.slot),
            format!("active={}", row.active.map_or("?", |active| if active { "yes" } else { "no" })),
            format!("confirmed={}", text(row.confirmed_lsn)),
            format!("lag={}", size(row.lag_bytes)),
            format!("retained={}", size(row.retained_wal_bytes)),
            format!("wal_status={}", text(row.wal_status)),
        ];
        line.extend(self.rate.map(|rate| format!("confirmed_wal={}/s", size(Some(rate)))));
        line.extend(self.records_rate.map(|rate| format!("records={rate}/s")));
        line.extend(self.relay.as_ref().map(|relay| format!("relay={}", relay.state)));
        line.extend(self.error.as_ref().map(|error| format!("error={error:?}")));
        line.join(" ")
    }
}

fn slot_rows(row: &SlotReport) -> Vec<(&'static str, String)> {
    let mut rows = vec![("state", row.activity())];
    let behind = row.lag_bytes.map_or_else(String::new, |lag| format!(", {} behind the server", bytes(lag)));
    rows.extend(row.confirmed_lsn.as_ref().map(|lsn| ("confirmed", format!("{lsn}{behind}"))));
    let status = row.wal_status.as_deref().unwrap_or("unknown");
    let retained = row.retained_wal_bytes.map_or_else(|| "none".to_owned(), bytes);
    rows.push(("kept WAL", format!("{retained} (wal_status {status})")));
    rows.push(("failover", if row.failover == Some(true) { "yes" } else { "no" }.to_owned()));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slot() -> Slot {
        let row = json!({"plugin": "pgoutput", "database": "shop", "active": true, "active_pid": 7, "wal_status": "reserved"});
        Slot {
            row: serde_json::from_value(row).unwrap(),
            confirmed_flush_lsn: Some(Lsn::new(0x20)),
            restart_lsn: Some(Lsn::new(0x10)),
            lag_bytes: Some(1_258_292),
            retained_wal_bytes: Some(16 << 20),
        }
    }

    fn report(slot: Option<&Slot>) -> StatusReport {
        StatusReport {
            slot: "orders".to_owned(),
            slot_row: slot.map(|slot| SlotReport::new(slot, None)),
            publication: "walrelay".to_owned(),
            publication_exists: Some(true),
            tables: vec!["public.outbox".to_owned()],
            rate: None,
            records_rate: None,
            relay: None,
            error: None,
            hint: None,
        }
    }

    fn keys(report: &StatusReport) -> Vec<String> {
        let Value::Object(json) = serde_json::from_str(&report.json_line()).unwrap() else { panic!("no object") };
        json.keys().cloned().collect()
    }

    #[test]
    fn the_same_keys_are_there_with_and_without_a_slot() {
        assert_eq!(keys(&report(Some(&slot()))), keys(&report(None)));
        assert_eq!(keys(&report(None)).len(), 21);
    }

    #[test]
    fn sizes_are_integers_for_programs_and_rounded_for_people() {
        let report = report(Some(&slot()));
        let json: Value = serde_json::from_str(&report.json_pretty()).unwrap();
        assert_eq!((&json["lag_bytes"], &json["retained_wal_bytes"]), (&json!(1_258_292), &json!(16 << 20)));
        assert_eq!((&json["confirmed_lsn"], &json["failover"]), (&json!("0/20"), &json!(false)));
        assert_eq!(
            report.table(),
            "slot         orders (pgoutput, database shop)\n\
             state        active: process 7\n\
             confirmed    0/20, 1.2 MiB behind the server\n\
             kept WAL     16.0 MiB (wal_status reserved)\n\
             failover     no\n\
             publication  walrelay: public.outbox\n"
        );
    }

    #[test]
    fn a_missing_slot_still_shows_the_publication_and_says_what_is_wrong() {
        let mut report = report(None);
        report.failed(&Err(RunError::no_slot("orders", false)));
        let table = report.table();
        assert!(
            table.starts_with(
                "slot         orders\npublication  walrelay: public.outbox\nerror        replication slot"
            )
        );
        let json: Value = serde_json::from_str(&report.json_line()).unwrap();
        assert!(json["hint"].as_str().unwrap().contains("walrelay setup --apply"));
    }

    #[test]
    fn a_line_has_no_blanks_inside_its_values() {
        let mut report = report(Some(&slot()));
        report.rate = Some(per_second(4096, Duration::from_secs(2)));
        report.records_rate = Some(per_second(2468, Duration::from_secs(2)));
        assert_eq!(
            report.line(),
            "slot=orders active=yes confirmed=0/20 lag=1.2MiB retained=16.0MiB wal_status=reserved confirmed_wal=2.0KiB/s records=1234/s"
        );
        assert!(report.table().contains("rate         1,234 records/s published, 2.0 KiB/s of WAL confirmed\n"));
    }

    #[test]
    fn a_rate_is_taken_over_the_time_that_really_passed() {
        assert_eq!(per_second(1000, Duration::from_millis(500)), 2000);
        assert_eq!(per_second(5, Duration::ZERO), 5000);
    }
}

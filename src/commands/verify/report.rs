//! What `verify` prints: the report, as text or JSON, and the error that has the exit code.
//!
//! In: what a window has shown. Out: text, JSON, a [`CommandError`]. Pure.

use super::VerifyRequest;
use super::faults::Fault;
use super::matcher::Counts;
use super::window::{Beginning, Seen};
use crate::commands::error::CommandError;
use crate::commands::output::{duration, number};
use crate::setting_text::shown;
use crate::sink::Source;
use crate::sink::destination::Delivery;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The width of the counts.
const WIDTH: usize = 12;

/// A report.
pub(super) struct Report<'a> {
    request: &'a VerifyRequest,
    seen: &'a Seen,
}

impl<'a> Report<'a> {
    pub(super) const fn new(request: &'a VerifyRequest, seen: &'a Seen) -> Self {
        Self { request, seen }
    }

    const fn counts(&self) -> &'a Counts {
        &self.seen.outcome.counts
    }

    const fn is_once(&self) -> bool {
        matches!(self.request.run.delivery, Delivery::ExactlyOnce { .. })
    }

    /// Whether the rows came from a table.
    const fn is_of_table(&self) -> bool {
        matches!(self.seen.from, Beginning::Time(_))
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let (counts, seen) = (self.counts(), self.seen);
        let (destination, topics) = (self.request.run.destination.address(), seen.topics);
        let window = match &seen.from {
            Beginning::Slot(from) => format!("{from} to {}", seen.to),
            Beginning::Time(age) => format!("rows of the last {age}, up to {}", seen.to),
        };
        let mut text = format!(
            "verified {}, {window} ({}), {} of {destination}\n",
            self.subject(),
            duration(seen.lasted),
            if topics == 1 { "1 topic".to_owned() } else { format!("{} topics", number(topics as u64)) },
        );
        let mut line = |name: &str, count: u64, more: &str| {
            // A write into a string cannot fail.
            let more = if more.is_empty() { String::new() } else { format!("   {more}") };
            let _written = writeln!(text, "  {name:<WIDTH$}{:>WIDTH$}{more}", number(count));
        };
        let exclusive = if self.request.exclusive { "" } else { " (an error with --exclusive)" };
        let repeated = if self.is_once() { "exactly once may not repeat" } else { "at least once may repeat" };
        let exclusive = if self.is_of_table() { "" } else { exclusive };
        let order = format!(
            "keys whose records swapped: {}, whose last record is not the newest: {}",
            number(counts.out_of_order),
            number(counts.stale_keys)
        );
        line("right", counts.right, "");
        line("missing", counts.missing, "");
        line("altered", counts.altered, "");
        if !self.is_of_table() {
            line("out of order", counts.out_of_order + counts.stale_keys, &order);
        }
        let others = if self.is_of_table() { "older or deleted rows" } else { "not of this window" };
        line("other", counts.other, &format!("{others}: another writer, backfill, replay{exclusive}"));
        line("repeated", counts.repeated, repeated);
        if counts.dead_lettered > 0 {
            line(
                "dead letters",
                counts.dead_lettered,
                "rows that could not be published, and are in the dead-letter topic",
            );
        }
        if counts.skipped > 0 {
            line("skipped", counts.skipped, "by --on-bad-row, and noted");
        }
        line("not judged", counts.not_judged, "");
        for reason in self.reasons() {
            let _written = writeln!(text, "note: {reason}");
        }
        for fault in &seen.outcome.faults {
            let _written = writeln!(text, "{}", self.line(fault));
        }
        let more = self.faults().saturating_sub(seen.outcome.faults.len() as u64);
        if more > 0 {
            let _written = writeln!(text, "and {} more (--show N shows more)", number(more));
        }
        text
    }

    fn subject(&self) -> String {
        let run = &self.request.run;
        if run.tables.is_empty() {
            return format!("publication {}", run.publication);
        }
        run.tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn line(&self, fault: &Fault) -> String {
        let mut text = format!("{}: ", fault.verdict.name().replace('_', " "));
        if !fault.id.is_empty() {
            let _written = write!(text, "id {}, ", shown(&fault.id));
        }
        let table = self.table(fault).unwrap_or_default();
        match fault.position {
            Some(position) => {
                let _written = write!(text, "{table} {position}, ");
            }
            None if table.is_empty() => {}
            None => {
                let _written = write!(text, "{table}, ");
            }
        }
        let _written = write!(text, "topic {}", self.seen.names.name(fault.topic));
        if let Some(at) = fault.at {
            let _written = write!(text, ", partition {}, offset {}", at.partition, at.offset);
        }
        let _written = write!(text, ": {}", fault.why);
        text
    }

    fn table(&self, fault: &Fault) -> Option<String> {
        Some(match fault.source? {
            Source::Table(relation) => self.seen.tables.get(&relation).cloned().unwrap_or_default(),
            Source::Message(index) => {
                let prefix = self.request.run.mapping.message_prefixes.get(index as usize);
                format!("message {:?}", prefix.map_or("", String::as_str))
            }
        })
    }

    /// Why rows were not judged, and what was not compared.
    fn reasons(&self) -> Vec<String> {
        let rows = |(reason, count): (&String, &u64)| {
            let noun = if *count == 1 { "row" } else { "rows" };
            format!("{} {noun} not judged: {reason}", number(*count))
        };
        let others = self.unjudged().into_iter().map(|(what, why)| format!("{what}: {why}"));
        self.seen.outcome.reasons.iter().map(rows).chain(others).chain(self.seen.notes.iter().cloned()).collect()
    }

    /// Keys and topics that were not judged, with the reasons.
    fn unjudged(&self) -> Vec<(String, &'a str)> {
        let outcome = &self.seen.outcome;
        let topic =
            |(topic, why): (&String, &'a String)| (format!("topic {topic} was not read to its end"), why.as_str());
        let keys = |(why, count): (&'a String, &u64)| {
            let keys = if *count == 1 { "1 key".to_owned() } else { format!("{} keys", number(*count)) };
            (format!("the order of {keys} was not judged"), why.as_str())
        };
        outcome.topics.iter().map(topic).chain(outcome.keys.iter().map(keys)).collect()
    }

    /// For machines.
    pub(super) fn json(&self) -> Value {
        let (counts, seen) = (self.counts(), self.seen);
        let fault = |fault: &Fault| {
            json!({
                "verdict": fault.verdict.name(),
                "table": self.table(fault),
                "id": String::from_utf8_lossy(&fault.id),
                "position": fault.position.map(|position| position.to_string()),
                "topic": seen.names.name(fault.topic),
                "partition": fault.at.map(|at| at.partition),
                "offset": fault.at.map(|at| at.offset),
                "why": fault.why,
            })
        };
        let verdict = self.verdict();
        let hint = verdict.as_ref().err().and_then(|error| error.remedy.as_ref()).map(ToString::to_string);
        json!({
            "verified": verdict.is_ok(),
            "mode": if self.is_of_table() { "since" } else { "follow" },
            "from_lsn": match &seen.from {
                Beginning::Slot(from) => Some(from.to_string()),
                Beginning::Time(_) => None,
            },
            "to_lsn": seen.to.to_string(),
            "seconds": seen.lasted.as_secs_f64(),
            "rows": counts.rows,
            "right": counts.right,
            "missing": counts.missing,
            "altered": counts.altered,
            "out_of_order": counts.out_of_order,
            "stale_keys": counts.stale_keys,
            "other": counts.other,
            "repeated": counts.repeated,
            "dead_lettered": counts.dead_lettered,
            "skipped": counts.skipped,
            "not_judged": counts.not_judged,
            "reasons": self.reasons(),
            "faults": seen.outcome.faults.iter().map(fault).collect::<Vec<_>>(),
            "hint": hint,
        })
    }

    /// How many things are wrong.
    fn faults(&self) -> u64 {
        let Counts { missing, altered, out_of_order, stale_keys, other, repeated, .. } = *self.counts();
        let (other, repeated) =
            (if self.request.exclusive { other } else { 0 }, if self.is_once() { repeated } else { 0 });
        missing + altered + out_of_order + stale_keys + other + repeated
    }

    /// The end of the command.
    pub(super) fn verdict(&self) -> Result<(), CommandError> {
        let counts = self.counts();
        if self.faults() > 0 {
            return Err(CommandError::not_right(&self.wrong(), counts.missing > 0));
        }
        if counts.not_judged > 0 {
            let rows = format!("{} of {} not judged", number(counts.not_judged), counted(counts.rows));
            return Err(CommandError::not_judged(rows, self.reasons().first().map_or("", String::as_str)));
        }
        if let Some((what, why)) = self.unjudged().into_iter().next() {
            return Err(CommandError::not_judged(what, why));
        }
        // A table without a row was read. A window without a row says nothing.
        if counts.rows == 0 && !self.is_of_table() { Err(CommandError::nothing_to_compare()) } else { Ok(()) }
    }

    /// The fault, in one sentence.
    fn wrong(&self) -> String {
        let counts = self.counts();
        let rows = counted(counts.rows);
        let of_rows = |count: u64, what: &str| (count > 0).then(|| format!("{} of {rows} {what}", number(count)));
        let all = |count: u64, what: &str| (count > 0).then(|| format!("{}: {}", what, number(count)));
        let missing = if counts.missing == 1 { "has no record" } else { "have no record" };
        let altered = if counts.altered == 1 { "has an altered record" } else { "have altered records" };
        let parts = [
            of_rows(counts.missing, missing),
            of_rows(counts.altered, altered),
            all(counts.out_of_order, "keys whose records swapped"),
            all(counts.stale_keys, "keys whose last record is not the newest"),
            all(if self.request.exclusive { counts.other } else { 0 }, "records without a row"),
            all(if self.is_once() { counts.repeated } else { 0 }, "repeated records"),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

fn counted(rows: u64) -> String {
    if rows == 1 { "1 row".to_owned() } else { format!("{} rows", number(rows)) }
}

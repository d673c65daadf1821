//! The samples of a run: how they are judged and shown.

use std::time::Duration;

use serde_json::{Value, json};

use super::Arguments;
use super::faults::Fault;
use super::reader::Books;
use crate::machine;
use crate::screen::thousands;

const MIB: f64 = 1024.0 * 1024.0;

/// One sample.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(super) struct Sample {
    /// Since the start.
    pub(super) second: u64,
    /// Rows.
    pub(super) committed: u64,
    /// How many of the committed rows are in the topic.
    pub(super) arrived: u64,
    /// WAL that the slot has not confirmed.
    pub(super) behind_bytes: u64,
    /// WAL that the slot keeps.
    pub(super) retained_bytes: u64,
    /// The outbox table, which `prune` empties.
    pub(super) table_bytes: u64,
    /// The relay's resident memory.
    pub(super) memory_kib: u64,
    /// The most that this memory was since the relay's start.
    pub(super) peak_kib: u64,
    /// The relay's open file descriptors.
    pub(super) files: u64,
}

/// All of a run.
#[derive(Debug)]
pub(super) struct Samples {
    command: String,
    pub(super) all: Vec<Sample>,
    pub(super) faults: Vec<Fault>,
    pub(super) books: Books,
    /// Rows in the end.
    pub(super) committed: u64,
    pub(super) longest_standstill: Duration,
    pub(super) failures: Vec<String>,
}

impl Samples {
    pub(super) fn new(arguments: &Arguments) -> Self {
        let command = format!(
            "walrelay-dev soak --hours {} --rate {} --payload {} --fault-every {} --seed {}",
            arguments.hours, arguments.rate, arguments.payload, arguments.fault_every, arguments.seed
        );
        Self {
            command,
            all: Vec::new(),
            faults: Vec::new(),
            books: Books::default(),
            committed: 0,
            longest_standstill: Duration::ZERO,
            failures: Vec::new(),
        }
    }

    /// Adds the promises that the samples show to be broken to the failures.
    pub(super) fn judge(&mut self, most_memory_kib: u64, most_files: u64) {
        if self.books.gaps > 0 {
            self.failures.push(format!("{} rows came without their predecessor", self.books.gaps));
        }
        let killed = self.faults.contains(&Fault::RelayKilled);
        if self.books.repeated > 0 && !killed {
            self.failures.push(format!("{} rows came again, and the relay was not killed", self.books.repeated));
        }
        let peak = self.all.iter().map(|sample| sample.peak_kib).max().unwrap_or_default();
        let files = self.all.iter().map(|sample| sample.files).max().unwrap_or_default();
        for (what, seen, most) in [("KiB of memory", peak, most_memory_kib), ("file descriptors", files, most_files)] {
            if seen > most {
                self.failures.push(format!("{seen} {what}, more than {most}"));
            }
        }
        if self.all.is_empty() {
            self.failures.push("no sample was taken".to_owned());
        }
    }

    /// The last sample, for people.
    pub(super) fn last_line(&self) -> String {
        let Some(last) = self.all.last() else { return "no sample yet".to_owned() };
        format!(
            "{:>4} min  {} rows committed, {} not arrived yet, slot {:.1} MiB behind, memory {} MiB, {} files, table {:.0} MiB, {} faults, {} repeats, {} gaps",
            last.second / 60,
            thousands(last.committed),
            thousands(last.committed.saturating_sub(last.arrived)),
            float(last.behind_bytes) / MIB,
            last.memory_kib / 1024,
            last.files,
            float(last.table_bytes) / MIB,
            self.faults.len(),
            thousands(self.books.repeated),
            self.books.gaps,
        )
    }

    /// The result, for people.
    pub(super) fn verdict(&self) -> String {
        let mut words = vec![format!(
            "truth         {} rows committed, {} arrived, {} repeats, {} gaps; longest standstill {:.1} s",
            thousands(self.committed),
            thousands(self.books.distinct()),
            thousands(self.books.repeated),
            self.books.gaps,
            self.longest_standstill.as_secs_f64()
        )];
        words.extend(self.failures.iter().map(|failure| format!("failed        {failure}")));
        words.join("\n")
    }

    /// Everything.
    pub(super) fn json(&self) -> Value {
        json!({
            "command": self.command,
            "machine": machine::describe(),
            "rows_committed": self.committed,
            "records_arrived": self.books.arrived,
            "repeats": self.books.repeated,
            "gaps": self.books.gaps,
            "longest_standstill_seconds": self.longest_standstill.as_secs_f64(),
            "faults": Fault::ALL.map(|(fault, name)| json!([name, self.count(fault)])),
            "failures": self.failures,
            "samples": self.all,
        })
    }

    fn count(&self, fault: Fault) -> usize {
        self.faults.iter().filter(|other| **other == fault).count()
    }

    /// As Markdown.
    pub(super) fn markdown(&self) -> String {
        let faults = Fault::ALL.map(|(fault, name)| format!("{name} {} times", self.count(fault))).join(", ");
        let failures = self.failures.iter().map(|failure| format!("**Failed:** {failure}\n\n"));
        let parts = self.all.chunks((self.all.len() / 10).max(1)).map(row);
        format!(
            "# Hours under load\n\n{}.\n\n```\n{}\n```\n\n\
             {} rows committed, {} arrived, {} repeats, {} without their predecessor; the longest time without a record {:.1} s.\n\
             Faults: {faults}.\n\n{}\
             Each tenth of the time, median and most:\n\n\
             | from minute | rows/s | memory MiB | files | slot behind MiB | slot keeps MiB | table MiB |\n|---|---|---|---|---|---|---|\n{}",
            machine::line(&machine::describe()),
            self.command,
            thousands(self.committed.max(self.all.last().map_or(0, |last| last.committed))),
            thousands(self.books.distinct()),
            thousands(self.books.repeated),
            self.books.gaps,
            self.longest_standstill.as_secs_f64(),
            failures.collect::<String>(),
            parts.collect::<String>()
        )
    }
}

fn row(part: &[Sample]) -> String {
    let (Some(first), Some(last)) = (part.first(), part.last()) else { return String::new() };
    let seconds = last.second.saturating_sub(first.second).max(1);
    let cell = |of: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = part.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let median = values.get(values.len() / 2).copied().unwrap_or_default();
        format!("{median:.0}, {:.0}", values.last().copied().unwrap_or_default())
    };
    format!(
        "| {} | {} | {} | {} | {} | {} | {} |\n",
        first.second / 60,
        thousands((last.arrived - first.arrived) / seconds),
        cell(|sample| float(sample.memory_kib) / 1024.0),
        cell(|sample| float(sample.files)),
        cell(|sample| float(sample.behind_bytes) / MIB),
        cell(|sample| float(sample.retained_bytes) / MIB),
        cell(|sample| float(sample.table_bytes) / MIB),
    )
}

#[expect(clippy::cast_precision_loss, reason = "figures that are drawn or shown with few digits")]
const fn float(number: u64) -> f64 {
    number as f64
}

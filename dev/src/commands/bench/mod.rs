//! The side-by-side benchmark, end to end: real Postgres, real Kafka or another broker, every tool from its own copy of one slot.
//!
//! ```text
//!  for each load:   write the backlog ─▶ for each run, each reading, each subject in turn:  copy the slot ─▶ drain ─▶ compare
//!  for each rate:   write at a fixed rate beside each subject in turn ─▶ from the statement to the append and to a consumer
//! ```
//!
//! Runs alternate, because a machine's speed drifts: figures of one report belong together, those of two may not. A subject
//! that cannot be had, or fails, marks its row and holds nobody up; a run with a gap gives no rate. Everything happens in
//! databases, slots and topics of services of its own.

mod case;
mod debezium;
mod figure;
mod ground;
mod kills;
mod measure;
mod report;
mod sinks;
mod steady;
mod subject;
mod table;
mod verify;

use std::path::PathBuf;

use anyhow::Result;
use walrelay_dev::provision;

use crate::binary::Binary;
use crate::distance::Distance;
use crate::machine;
use crate::screen::{line, thousands};
use crate::to::To;
use case::{Delivery, Kind, Load, Reading, Size, Way};
use ground::{Ground, Loaded};
use measure::Run;
use report::Report;
use steady::Case;
use subject::{Name, Programs, Subjects};
use table::{Found, Table};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Where to; Debezium Server publishes by its sink for the destination
    #[arg(long, value_enum, default_value_t = To::Kafka)]
    to: To,
    /// Who is measured
    #[arg(long, value_enum, value_delimiter = ',', default_value = "pg-recvlogical,walrelay,debezium-tuned,debezium")]
    subjects: Vec<Name>,
    /// Runs of each subject, alternating
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Rows in the backlog
    #[arg(long, value_delimiter = ',', default_value = "1000000")]
    rows: Vec<u64>,
    /// Rows to a transaction
    #[arg(long, value_delimiter = ',', default_value = "10")]
    batch: Vec<u64>,
    /// Bytes of a payload as text: 200, 1k, 10k, 900k
    #[arg(long, value_delimiter = ',', default_value = "300")]
    payload: Vec<Size>,
    /// What carries the payload
    #[arg(long, value_enum, value_delimiter = ',', default_value = "jsonb")]
    kind: Vec<Kind>,
    /// Topics that the rows go to in turn
    #[arg(long, value_delimiter = ',', default_value = "1")]
    topics: Vec<u64>,
    /// Distinct keys
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    keys: Vec<u64>,
    /// How Postgres is reached
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,socket")]
    over: Vec<Way>,
    /// How far the brokers are from who is measured, one way, such as 500us or 2.5ms: each byte arrives that much later
    #[arg(long, value_delimiter = ',', default_value = "0")]
    broker_distance: Vec<Distance>,
    /// How far Postgres is from who is measured
    #[arg(long, value_delimiter = ',', default_value = "0")]
    postgres_distance: Vec<Distance>,
    /// Brokers, each of which has every partition: 1, or 3 of which 2 have to be in sync. Of Redis: nodes of a cluster, which is measured
    /// beside one server; with `--topics 30`, the streams are on all of them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3))]
    brokers: u16,
    /// Partitions of each topic
    #[arg(long, value_delimiter = ',', default_value = "12")]
    partitions: Vec<u32>,
    /// librdkafka's compression.type: none, lz4, zstd
    #[arg(long, value_delimiter = ',', default_value = "none")]
    compression: Vec<String>,
    /// The relay's --delivery
    #[arg(long, value_enum, value_delimiter = ',', default_value = "at-least-once")]
    delivery: Vec<Delivery>,
    /// Also measure subjects at these rates of single-row transactions a second, over the first of the ways to Postgres
    #[arg(long, value_delimiter = ',')]
    steady: Vec<u32>,
    /// How long at each rate
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Also SIGKILL subjects so many times in the middle of each backlog, and start them again
    #[arg(long, default_value_t = 0)]
    kills: u32,
    /// Leave the backlogs out
    #[arg(long)]
    no_backlog: bool,
    /// Records written to Kafka before, because a fresh Java is slow; 0: nor is there a first round that does not count
    #[arg(long, default_value_t = 3_000_000)]
    warm_up: u64,
    /// Postgres' major version
    #[arg(long, default_value_t = provision::DEFAULT_POSTGRES)]
    postgres: u32,
    /// Where the report goes: NAME.md and NAME.json
    #[arg(long, default_value = "benches/results")]
    results: PathBuf,
    /// The report's name
    #[arg(long, default_value = "latest")]
    name: String,
    #[command(flatten)]
    programs: Programs,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let subjects = Subjects::new(arguments.binary.path()?, arguments.programs.clone());
    let mut report = Report {
        machine: machine::describe(),
        services: String::new(),
        command: std::env::args().skip(1).fold("walrelay-dev".to_owned(), |line, word| format!("{line} {word}")),
        subjects: arguments.subjects.iter().map(|name| (*name, subjects.look(*name))).collect(),
        tables: Vec::new(),
        kills: Vec::new(),
        steady: Vec::new(),
    };
    line(&machine::line(&report.machine));
    for (name, found) in &report.subjects {
        line(&format!("  {name}: {}", found.as_ref().map_or_else(|why| format!("not available: {why}"), Clone::clone)));
    }
    let ground =
        Ground::start(arguments.postgres, arguments.over.contains(&Way::Tls), arguments.brokers, arguments.to.kind())?;
    report.services = format!("{}; {}", ground.describe(), arguments.warmth());
    let distances = [arguments.broker_distance.as_slice(), arguments.postgres_distance.as_slice()].concat();
    if distances.iter().any(|distance| !distance.is_none()) {
        report.services = format!("{}; {}", report.services, ground::tap_words(&distances)?);
    }
    line(&report.services);
    ground.warm_up(arguments.warm_up)?;
    if !arguments.no_backlog {
        for (number, load) in arguments.loads().into_iter().enumerate() {
            let loaded = ground.load(load)?;
            let first = usize::from(arguments.warm_up == 0 || number > 0);
            report.tables.extend(arguments.backlog(&ground, &subjects, &loaded, &report.subjects, first));
            if let (1.., Some(reading)) = (arguments.kills, arguments.readings().first()) {
                let killed = kills::measure(&ground, &subjects, &report.subjects, &loaded, reading, arguments.kills);
                report.kills.push(killed);
            }
            machine::write(&arguments.results, &arguments.name, &report.markdown(), &report.json())?;
            ground.drop_database(&loaded.database)?;
        }
    }
    let cases = arguments.steady_cases();
    report.steady = steady::measure(&ground, &subjects, &report.subjects, &cases, arguments.seconds, arguments.runs)?;
    machine::write(&arguments.results, &arguments.name, &report.markdown(), &report.json())?;
    line(&report.markdown());
    line(&format!("written to {}", arguments.results.join(&arguments.name).display()));
    Ok(())
}

impl Arguments {
    fn warmth(&self) -> String {
        match self.warm_up {
            _ if self.to != To::Kafka => "a first round that does not count".to_owned(),
            0 => "not warmed up".to_owned(),
            records => format!("warmed up with {} records and a first round that does not count", thousands(records)),
        }
    }

    /// Every combination of what is written.
    fn loads(&self) -> Vec<Load> {
        let mut loads = vec![Load { rows: 0, batch: 1, payload: Size(1), kind: Kind::Jsonb, topics: 1, keys: 1 }];
        loads = each(&loads, &self.rows, |load, rows| Load { rows, ..load });
        loads = each(&loads, &self.batch, |load, batch| Load { batch, ..load });
        loads = each(&loads, &self.payload, |load, payload| Load { payload, ..load });
        loads = each(&loads, &self.kind, |load, kind| Load { kind, ..load });
        loads = each(&loads, &self.topics, |load, topics| Load { topics: topics.max(1), ..load });
        loads = each(&loads, &self.keys, |load, keys| Load { keys: keys.max(1), ..load });
        loads.into_iter().map(Load::bounded).collect()
    }

    /// Every combination of how it is read.
    fn readings(&self) -> Vec<Reading> {
        let mut readings = each(&[Reading::default()], &self.over, |reading, way| Reading { way, ..reading });
        readings = each(&readings, &self.partitions, |reading, partitions| Reading { partitions, ..reading });
        readings = each(&readings, &self.compression, |reading, compression| Reading { compression, ..reading });
        readings = each(&readings, &self.delivery, |reading, delivery| Reading { delivery, ..reading });
        let nodes: &[u16] = if self.to == To::Redis && self.brokers > 1 { &[1, self.brokers] } else { &[1] };
        readings = each(&readings, nodes, |reading, nodes| Reading { nodes, ..reading });
        readings = each(&readings, &self.postgres_distance, |reading, postgres| Reading { postgres, ..reading });
        each(&readings, &self.broker_distance, |reading, broker| Reading { broker, ..reading })
    }

    /// Every combination of a steady stream.
    fn steady_cases(&self) -> Vec<Case> {
        let mut readings = self.readings();
        readings.retain(|reading| Some(&reading.way) == self.over.first());
        let cases: Vec<Case> = readings.into_iter().map(|reading| Case { rate: 0, topics: 1, reading }).collect();
        let cases = each(&cases, &self.topics, |case, topics| Case { topics: topics.max(1), ..case });
        each(&cases, &self.steady, |case, rate| Case { rate, ..case })
    }

    /// All subjects on one load, a table for each reading. A round 0 does not count: each subject has its own ways to write, and the
    /// broker's Java is slow at each of them until it has seen it.
    fn backlog(
        &self,
        ground: &Ground,
        subjects: &Subjects,
        loaded: &Loaded,
        found: &Found,
        first: usize,
    ) -> Vec<Table<Run>> {
        let table = |reading: Reading| Table {
            load: loaded.load,
            rows: table::rows(found, &loaded.load, &reading, self.to.kind()),
            reading,
        };
        let mut tables: Vec<Table<Run>> = self.readings().into_iter().map(table).collect();
        let mut number = 0;
        for run in first..=self.runs {
            for table in &mut tables {
                for row in table.rows.iter_mut().filter(|row| row.note.is_none()) {
                    number += 1;
                    let measured = measure::measure(ground, subjects, row.subject, loaded, &table.reading, number);
                    let way = format!("{:?}", table.reading.way).to_lowercase();
                    row.take(&format!("run {run}  {way:<6}"), measured, run > 0);
                }
            }
        }
        tables
    }
}

/// Every one of `before` with every one of `values`.
fn each<T: Clone, V: Clone>(before: &[T], values: &[V], with: impl Fn(T, V) -> T) -> Vec<T> {
    before.iter().flat_map(|one| values.iter().map(|value| with(one.clone(), value.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_made_once() {
        assert_eq!(each(&[1, 2], &[10, 20, 30], |one, ten| one + ten), [11, 21, 31, 12, 22, 32]);
        assert!(each(&[1], &[] as &[i32], |one, ten| one + ten).is_empty());
    }
}

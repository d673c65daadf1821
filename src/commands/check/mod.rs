//! `walrelay check`: looks at everything that `run` will need and at what bites later, and says what mends it.
//!
//! ```text
//!  Postgres ─► facts ─► postgres, tables (sample: the latest rows through run's own mapping) ─┐
//!                                        └─ topics, sizes ─┐                                  ├─► report
//!  Kafka ────► sink::kafka::examine ─────────────────────► kafka ─────────────────────────────┘
//! ```
//!
//! In: the settings of a `run`. Out: findings, on `out`; an error when one of them stands in the way. What is gathered and what is
//! judged are apart: judging is pure. Changes nothing. With one side away the other is looked at all the same.

pub mod debezium;
mod facts;
mod kafka;
mod postgres;
mod report;
mod sample;
mod service;
mod tables;

use super::error::CommandError;
use crate::config::{Delivery, RunConfig};
use crate::outbox::Outbox;
use crate::pg::Connection;
use crate::relay::transactional_id;
use crate::sink::kafka::{PROGRESS_TOPIC, Settings, examine};
use facts::Place;
pub use report::{Finding, Level, Report, Side, TableReport};
use std::io::Write;
use tables::Tables;

/// What is to be looked at.
#[derive(Debug, Clone)]
pub struct Request {
    /// The settings of the run.
    pub config: RunConfig,
    /// JSON.
    pub json: bool,
}

/// Looks, and prints what was found. `complete`: fills the flags that were typed into a command.
///
/// # Errors
/// Something stands in the way of a run, or the settings are wrong.
pub fn check(request: &Request, out: &mut dyn Write, complete: &dyn Fn(&str) -> String) -> Result<(), CommandError> {
    let mut report = report(&request.config)?;
    for finding in &mut report.findings {
        finding.mend = finding.mend.as_deref().map(complete);
    }
    let text = if request.json { report.json() + "\n" } else { report.text() };
    out.write_all(text.as_bytes())?;
    match report.count(Level::Fail) {
        0 => Ok(()),
        count => Err(CommandError::CheckFailed { count }),
    }
}

/// Looks at both sides.
///
/// # Errors
/// The settings are wrong.
pub fn report(config: &RunConfig) -> Result<Report, CommandError> {
    let outbox = Outbox::new(config.mapping.clone(), config.tables.clone()).map_err(Box::new)?;
    let mut outbox = outbox.with_patterns(config.table_patterns.clone());
    let client_id = format!("walrelay/{}", config.slot);
    let in_flight = config.limits.max_in_flight as u64;
    let settings = Settings::new(&config.kafka.brokers, &client_id, &config.kafka.properties, in_flight)?;
    let (mut report, tables, system_identifier) = of_postgres(config, &mut outbox);
    report.kafka.clone_from(&config.kafka.brokers);
    let exactly_once = config.delivery == Delivery::ExactlyOnce;
    let own = exactly_once.then(|| PROGRESS_TOPIC.to_owned());
    let topics: Vec<String> = tables.topics.iter().cloned().chain(own).collect();
    match examine(&settings, &topics) {
        Ok(cluster) => {
            report.findings.extend(kafka::findings(config, &settings, &cluster, &tables));
            if exactly_once {
                let id = system_identifier.map(|system| transactional_id(&system, &config.slot));
                report.findings.extend(kafka::exactly_once::findings(config, &settings, &cluster, id.as_deref()));
            }
        }
        Err(failure) => report.findings.push(kafka::unreachable(config, &failure)),
    }
    Ok(report)
}

/// Also the cluster's system identifier, where it can be had.
fn of_postgres(config: &RunConfig, outbox: &mut Outbox) -> (Report, Tables, Option<String>) {
    let place = Place { source: &config.source, publication: &config.publication, slot: &config.slot };
    let host = Connection::first_host(&config.source);
    let mut report = Report { postgres: format!("{host}, database {}", config.source.dbname), ..Report::default() };
    let facts = match facts::gather(&place) {
        Ok(facts) => facts,
        Err(error) => {
            report.findings.push(postgres::unreachable(&host, error));
            return (report, Tables::default(), None);
        }
    };
    report.postgres = format!("{}, database {}", facts.host, config.source.dbname);
    let mut tables = tables::tables(config, &facts, outbox);
    report.findings.extend(postgres::findings(config, &facts));
    report.findings.append(&mut tables.findings);
    report.tables.append(&mut tables.reports);
    report.findings.extend(tables::largest(config, tables.largest_bytes));
    (report, tables, facts.replication.ok())
}

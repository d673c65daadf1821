//! `walrelay check`: looks at everything that `run` will need and at what fails later, and says what fixes it.
//!
//! ```text
//!  Postgres ─► facts ─► postgres, tables (sample: the latest rows through run's own mapping) ─┐
//!                                        └─ topics, sizes ─┐                                  ├─► report
//!  destination ────────────────────────────────────────► its own check ───────────────────────┘
//! ```
//!
//! In: the settings of a `run`. Out: findings, on `out`; an error when one of them stands in the way. What is gathered and what is
//! judged are apart: judging is pure. Changes nothing. With one side away the other is looked at all the same.

mod asking;
mod facts;
mod partitions;
mod postgres;
mod registry;
mod relay;
mod report;
mod sample;
mod service;
mod shards;
mod tables;
mod trees;

use super::error::CommandError;
use super::run;
use crate::check_finding::{Finding, Level};
use crate::outbox::{Outbox, Timestamp};
use crate::pg::Connection;
use crate::relay::BadRowAction;
use crate::relay::transactional_id;
use crate::remedy::TypedFlags;
use crate::route::TopicRule;
use crate::sink::destination::{Delivery, RecordTimes, Wanted};
use facts::Facts;
pub use report::{CheckReport, TableReport};
use std::io::Write;
use std::time::Duration;
use tables::Tables;

/// The settings to check.
#[derive(Debug, Clone)]
pub struct CheckRequest {
    /// The settings of the run.
    pub config: run::RunRequest,
    /// JSON.
    pub json: bool,
}

/// Looks, and prints what was found. `typed`: what the commands of a fix repeat.
///
/// # Errors
/// Something stands in the way of a run, or the settings are wrong.
pub fn check(request: &CheckRequest, out: &mut dyn Write, typed: &TypedFlags) -> Result<(), CommandError> {
    let mut report = report(&request.config)?;
    for finding in &mut report.findings {
        finding.fix = finding.fix.take().map(|fix| fix.with(typed));
    }
    let text = if request.json { report.json() + "\n" } else { report.text() };
    out.write_all(text.as_bytes())?;
    match report.count(Level::Fail) {
        0 => Ok(()),
        count => Err(CommandError::checks_fail(count)),
    }
}

/// Looks at both sides.
///
/// # Errors
/// The settings are wrong.
pub fn report(config: &run::RunRequest) -> Result<CheckReport, CommandError> {
    let (mut report, tables) = look(config, None)?;
    report.findings.extend(registry::findings(config, tables.topics.iter().map(String::as_str)));
    Ok(report)
}

/// All but the schema registry. `oldest`: the age of the oldest row, if old rows are published.
fn look(config: &run::RunRequest, oldest: Option<Duration>) -> Result<(CheckReport, Tables), CommandError> {
    let outbox = Outbox::new(config.mapping.clone(), config.tables.clone())?;
    let mut outbox = outbox.with_patterns(config.table_patterns.clone());
    let (mut report, mut tables, facts) = of_postgres(config, &mut outbox);
    tables.topics.extend(only_topic(config));
    let (kind, client) = (config.destination.kind(), format!("walrelay/{}", config.slot));
    report.kind = (kind.name, kind.title);
    report.destination = config.destination.address();
    let system = facts.as_ref().and_then(|facts| facts.replication.as_ref().ok()).map(|(system, _)| system);
    let id = system.map(|system| transactional_id(system, &config.slot));
    report.findings.extend(config.destination.check(&Wanted {
        client: &client,
        topics: &tables.topics,
        topics_begin: config.mapping.topic.begins(),
        dead_letters: dead_letter_topic(config),
        largest_bytes: tables.largest_bytes,
        without_key: tables.without_key,
        exactly_once: (config.delivery != Delivery::AtLeastOnce).then_some(id.as_deref()),
        one_replica: config.delivery == Delivery::ExactlyOnce { one_replica: true },
        was_read: facts.as_ref().is_some_and(|facts| facts.was_read(&config.slot)),
        times: record_times(config, facts.as_ref(), oldest),
    }));
    Ok((report, tables))
}

/// The topics of the latest rows, or of all, that delete records by their times: what they would do to rows of which the oldest one is so old.
///
/// # Errors
/// The settings are wrong.
pub fn retention(config: &run::RunRequest, oldest: Duration) -> Result<Vec<Finding>, CommandError> {
    let (report, _) = look(config, Some(oldest))?;
    Ok(report.findings.into_iter().filter(|finding| finding.check == "retention").collect())
}

/// Which times the records have. `oldest`: the age of the oldest row, if old rows are published.
fn record_times(config: &run::RunRequest, facts: Option<&Facts>, oldest: Option<Duration>) -> RecordTimes {
    match (&config.mapping.timestamp, oldest) {
        (Timestamp::Send, _) => RecordTimes::Sent,
        (Timestamp::Commit | Timestamp::Column(_), Some(oldest)) => RecordTimes::OfOldRows(oldest),
        (Timestamp::Commit | Timestamp::Column(_), None) => {
            RecordTimes::OfRows { unread_for: facts.and_then(|facts| facts.slot.as_ref()?.unread_for) }
        }
    }
}

/// The topic of every row, whatever there is in the tables; `None`: it depends on the row.
fn only_topic(config: &run::RunRequest) -> Option<String> {
    let topic = TopicRule::new(&config.mapping.topic, config.mapping.addresses).ok()?;
    let mut name = String::new();
    topic.names().is_empty().then(|| topic.render(|_| "", &mut name))?;
    Some(name)
}

/// The topic of bad rows, where that is their action.
fn dead_letter_topic(config: &run::RunRequest) -> Option<&str> {
    let wanted = &config.bad_rows;
    let any = wanted.action == BadRowAction::DeadLetter
        || wanted.at.iter().any(|(_, action)| *action == BadRowAction::DeadLetter);
    any.then_some(wanted.dead_letter_topic.as_str())
}

fn of_postgres(config: &run::RunRequest, outbox: &mut Outbox) -> (CheckReport, Tables, Option<Facts>) {
    let host = Connection::first_host(&config.source);
    let mut report =
        CheckReport { postgres: format!("{host}, database {}", config.source.dbname), ..CheckReport::default() };
    let mut facts = match facts::gather(config, outbox) {
        Ok(facts) => facts,
        Err(error) => {
            report.findings.extend(relay::ask(config, false));
            report.findings.push(postgres::unreachable(&host, error));
            return (report, Tables::default(), None);
        }
    };
    report.postgres = format!("{}, database {}", facts.host, config.source.dbname);
    let mut tables = tables::tables(config, &facts, outbox);
    let is_read = facts.slot.as_ref().is_some_and(|slot| slot.reader.is_some());
    report.findings.extend(relay::ask(config, is_read));
    report.findings.extend(postgres::findings(config, &facts));
    report.findings.extend(postgres::coverage(&mut facts));
    shards::add(config, &mut report.findings);
    report.findings.append(&mut tables.findings);
    report.findings.extend(trees::findings(config, &facts));
    report.findings.extend(partitions::findings(&config.source, &facts));
    report.tables.append(&mut tables.reports);
    report.findings.extend(tables::largest(config, tables.largest_bytes));
    (report, tables, Some(facts))
}

//! What it means: settings from all their places, validated once.
//!
//! ```text
//!  arguments ─► cli::Typed ─┐
//!  environment ─────────────┼─► layers ─► one text and its origin per setting ─► Invocation
//!  file (-c) ───────────────┘
//! ```
//!
//! In: the process' arguments and its [`Environment`]. Out: an [`Invocation`], or an [`Exit`]. Reads files that settings name;
//! contacts nothing.
//! Invariants: whoever holds one of these values needs no further check of it; `max_in_flight` is at most the client's
//! queue; no `Debug` of a configuration and no error shows a secret.

mod bad_rows;
mod bench;
mod destination;
mod error;
mod file;
mod layers;
mod mapping;
mod names;
mod read;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use bench::{BenchConfig, PayloadType};
use clap_complete::Shell;
pub use error::{ConfigError, Exit};
use layers::Layers;
use read::Reader;

use crate::cli::{self, CommonArgs, Typed};
use crate::commands::{TypedFlags, check, prune, republish};
use crate::debezium::DebeziumError;
use crate::http::HttpAddress;
use crate::outbox::{Mapping, TableName, TablePatterns};
use crate::pg::source::{Environment, Source};
use crate::relay::BadRows;
use crate::sink::destination::{Delivery, Destination};

/// What the process is to do.
#[derive(Debug)]
pub struct Invocation {
    /// The command.
    pub task: Task,
    /// How to log.
    pub log: LogConfig,
    /// To be logged once logging works.
    pub warnings: Vec<String>,
    /// What was typed of the flags that say where a command is pointed at: hints repeat them.
    pub typed: TypedFlags,
}

/// A command with its settings.
#[derive(Debug)]
pub enum Task {
    /// Read, publish, confirm.
    Run(Box<RunConfig>),
    /// Print or run the SQL that the database needs.
    Setup(Box<SetupConfig>),
    /// Show the slot.
    Status(Box<StatusConfig>),
    /// Ask the relay on this machine whether it is ready (`status --ready`).
    Ready(HttpAddress),
    /// Drop the slot.
    Teardown(Box<TeardownConfig>),
    /// Measure.
    Bench(Box<BenchConfig>),
    /// Show what an old set-up means.
    CheckDebezium(Box<CheckConfig>),
    /// Publish rows once more.
    Republish(Box<republish::Request>),
    /// Delete rows that are delivered.
    Prune(Box<prune::Request>),
    /// Look at what a run needs.
    Check(Box<check::Request>),
    /// Print completions; see [`cli::completions`].
    Completions(Shell),
    /// Write the manual; see [`cli::write_manual`].
    Man(PathBuf),
}

/// Settings of `run`.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// The database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot: `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// Whether to make publication and slot first.
    pub setup: bool,
    /// Only these tables; empty: every table of the publication. Distinct.
    pub tables: Vec<TableName>,
    /// Of these, only what is captured; the default captures every one. Not beside `tables`.
    pub table_patterns: TablePatterns,
    /// The slot at this position is read though nothing proves that it is the one that was read before.
    pub accept_slot_at: Option<crate::lsn::Lsn>,
    /// Print rows from a temporary slot instead of publishing them.
    pub dry_run: bool,
    /// Where records go.
    pub destination: Arc<dyn Destination>,
    /// How rows become records.
    pub mapping: Mapping,
    /// What becomes of rows that cannot be published.
    pub bad_rows: BadRows,
    /// What becomes of a run that an operator must mend.
    pub on_stop: OnStop,
    /// How often a record may appear.
    pub delivery: Delivery,
    /// Where to serve HTTP; `None`: nowhere.
    pub http: Option<HttpAddress>,
    /// Bounds of time and memory.
    pub limits: Limits,
}

/// Bounds of time and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How long a clean stop waits for acknowledgements; zero: not at all.
    pub shutdown_timeout: Duration,
    /// How old the oldest record in flight may grow before the replication connection is closed; at least 100 ms.
    pub disconnect_after: Duration,
    /// Pause after a short read; zero: none, at most 100 ms.
    pub coalesce: Duration,
    /// Bytes in flight: 64 KiB to 2^31 - 1 KiB.
    pub max_in_flight: usize,
    /// Bytes of the largest change message accepted: 1 KiB to 1 GiB.
    pub max_row: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            shutdown_timeout: Duration::from_secs(8),
            disconnect_after: Duration::from_secs(30),
            coalesce: Duration::from_micros(200),
            max_in_flight: 16 << 20,
            max_row: 256 << 20,
        }
    }
}

/// What becomes of a run that an operator must mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStop {
    /// The process ends with exit code 2.
    #[default]
    Exit,
    /// It disconnects from Postgres and stays up to say why, until a signal ends it.
    Hold,
}

/// Settings of `setup`.
#[derive(Debug, Clone)]
pub struct SetupConfig {
    /// The database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot: `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// The outbox tables; may be empty. Distinct.
    pub tables: Vec<TableName>,
    /// Run the SQL instead of printing it.
    pub apply: bool,
    /// Make a slot that is kept through a failover.
    pub failover: bool,
    /// A role to make.
    pub role: Option<String>,
    /// Make the first table, too.
    pub create_table: bool,
    /// `--source` as it was typed; `None` when it came from elsewhere. May hold a password.
    pub typed_source: Option<String>,
}

/// Settings of `status`.
#[derive(Debug, Clone)]
pub struct StatusConfig {
    /// The database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot: `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// Print JSON.
    pub json: bool,
    /// Print again and again.
    pub watch: bool,
    /// Where a relay on this machine serves HTTP; `None`: nowhere.
    pub http: Option<HttpAddress>,
}

/// Settings of `teardown`.
#[derive(Debug, Clone)]
pub struct TeardownConfig {
    /// The database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot: `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// Drop the publication, too.
    pub publication_too: bool,
    /// Do not ask.
    pub yes: bool,
    /// As in [`SetupConfig`].
    pub typed_source: Option<String>,
}

/// What `check --from-debezium` shows.
#[derive(Debug)]
pub struct CheckConfig {
    /// For stdout; no secret is in it.
    pub report: String,
    /// Whether `run` would take the files.
    pub verdict: Result<(), DebeziumError>,
}

/// How to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The lines' form.
    pub format: LogFormat,
    /// A filter in `tracing`'s syntax, which parses.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, filter: "info".to_owned() }
    }
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    /// Text.
    Text,
    /// One JSON object a line.
    Json,
}

/// Reads all settings; the program's name comes first in `arguments`.
///
/// # Errors
/// Help or version was asked for, or a setting is wrong.
pub fn parse(arguments: impl IntoIterator<Item = OsString>, environment: &Environment) -> Result<Invocation, Exit> {
    let read = |common: &_, task: &dyn Fn(&mut Reader<'_>) -> _| read_with(common, &[], environment, task);
    let typed = cli::parse(arguments)?;
    let place = typed.place();
    let invocation = match typed {
        Typed::Run(args) => read_with(&args.common, &args.debezium.from_debezium, environment, &|reader| {
            Ok(Task::Run(reader.run(&args)?.into()))
        }),
        Typed::Check(args) => {
            let run = &args.run;
            read_with(&run.common, &run.debezium.from_debezium, environment, &|reader| reader.check(&args))
        }
        Typed::Setup(args) => read(&args.common, &|reader| Ok(Task::Setup(reader.setup(&args)?.into()))),
        Typed::Status(args) if args.ready => read(&args.common, &|reader| reader.ready(&args).map(Task::Ready)),
        Typed::Status(args) => read(&args.common, &|reader| Ok(Task::Status(reader.status(&args)?.into()))),
        Typed::Teardown(args) => read(&args.common, &|reader| Ok(Task::Teardown(reader.teardown(&args)?.into()))),
        Typed::Bench(args) => read(&args.common, &|reader| Ok(Task::Bench(reader.bench(&args)?.into()))),
        Typed::Completions { shell } => Ok(untyped(Task::Completions(shell))),
        Typed::Man { folder } => Ok(untyped(Task::Man(folder))),
        Typed::Republish(args) => read(&args.common, &|reader| Ok(Task::Republish(reader.republish(&args)?.into()))),
        Typed::Prune(args) => read(&args.common, &|reader| Ok(Task::Prune(reader.prune(&args)?.into()))),
    };
    invocation.map(|invocation| Invocation { typed: place, ..invocation })
}

/// A task without settings.
fn untyped(task: Task) -> Invocation {
    Invocation { task, log: LogConfig::default(), warnings: Vec::new(), typed: TypedFlags::default() }
}

fn read_with(
    common: &CommonArgs,
    debezium: &[String],
    environment: &Environment,
    task: &dyn Fn(&mut Reader<'_>) -> Result<Task, ConfigError>,
) -> Result<Invocation, Exit> {
    let layers = Layers::open(common.config.as_deref(), environment)?.with_debezium(debezium)?;
    let mut reader = Reader { layers: &layers, environment, warnings: Vec::new() };
    let log = reader.log(common)?;
    let task = task(&mut reader)?;
    Ok(Invocation { task, log, warnings: reader.warnings, typed: TypedFlags::default() })
}

#[cfg(test)]
mod tests;

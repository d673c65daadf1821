//! Its settings from all their sources, validated once.
//!
//! ```text
//!  arguments ─► cli ────────┐
//!  environment ─────────────┼─► layers ─► one text and its origin per setting ─► Invocation
//!  file (-c) ───────────────┘
//! ```
//!
//! All of these take the settings from `table`: names, values, defaults, help.
//!
//! In: the process' arguments and its [`Environment`]. Out: an [`Invocation`], or an [`Exit`]. Reads files that settings name;
//! contacts nothing.
//! Invariants: whoever holds one of these values needs no further check of it; `max_in_flight` is at most the client's
//! queue; no `Debug` of a configuration and no error shows a secret.

mod bad_rows;
pub mod cli;
mod dead_letters;
mod destination;
mod exit;
mod file;
mod layers;
mod mapping;
mod measure;
mod names;
mod read;
mod registry;
mod review;
mod shards;
mod table;
mod verify;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap_complete::Shell;
pub use exit::Exit;
use layers::Layers;
pub use layers::variable_of;
use read::SettingsReader;
pub use review::Review;
pub use table::{AnySetting, Definition, Takes, named};

use self::cli::{FlagValues, Typed};
use crate::commands::dead_letters::DeadLettersRequest;
use crate::commands::verify::VerifyRequest;
use crate::commands::{backfill, bench, check, prune, run, setup, status, teardown};
use crate::pg::source::Environment;
use crate::remedy::TypedFlags;
use crate::setting_text::SettingError;

/// The task of the process.
#[derive(Debug)]
pub struct Invocation {
    /// The command.
    pub task: Task,
    /// How to log.
    pub log: LogConfig,
    /// To be logged once logging works.
    pub warnings: Vec<String>,
    /// Which flags were typed: hints repeat them.
    pub typed: TypedFlags,
}

/// A command with its settings.
#[derive(Debug)]
pub enum Task {
    /// Read, publish, confirm.
    Run(Box<run::RunRequest>),
    /// Print or run the SQL that the database needs; then publish the rows that are there already, if the second is there.
    Setup(Box<setup::SetupRequest>, Option<Box<backfill::BackfillRequest>>),
    /// Show the slot.
    Status(Box<status::StatusRequest>),
    /// Ask the relay on this machine, at `host:port`, whether it is ready (`status --ready`).
    Ready(String),
    /// Drop the slot.
    Teardown(Box<teardown::TeardownRequest>),
    /// Measure.
    Bench(Box<bench::BenchRequest>),
    /// Show what a Debezium configuration means.
    CheckDebezium(Box<Review>),
    /// List dead-letter records, or publish them again.
    DeadLetters(Box<DeadLettersRequest>),
    /// Publish rows that are older than the slot.
    Backfill(Box<backfill::BackfillRequest>),
    /// Delete rows that are delivered.
    Prune(Box<prune::PruneRequest>),
    /// Compare rows with records.
    Verify(Box<VerifyRequest>),
    /// Look at what a run needs.
    Check(Box<check::CheckRequest>),
    /// Print completions; see [`cli::completions`].
    Completions(Shell),
    /// Write the manual; see [`cli::write_manual`].
    Man(PathBuf),
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
    let (command, values, typed) = cli::parse(arguments)?;
    let read = |task: &dyn Fn(&mut SettingsReader<'_>) -> _| read_with(values, environment, task);
    let invocation = match command {
        Typed::Run => read(&|reader| Ok(Task::Run(reader.run()?.into()))),
        Typed::Check => read(&|reader| reader.check()),
        Typed::Backfill => read(&|reader| Ok(Task::Backfill(reader.backfill()?.into()))),
        Typed::Setup => read(&|reader| reader.setup()),
        Typed::Status => read(&|reader| reader.status()),
        Typed::Teardown => read(&|reader| Ok(Task::Teardown(reader.teardown()?.into()))),
        Typed::Bench => read(&|reader| Ok(Task::Bench(reader.bench()?.into()))),
        Typed::DeadLetters => read(&|reader| Ok(Task::DeadLetters(reader.dead_letters()?.into()))),
        Typed::Prune => read(&|reader| Ok(Task::Prune(reader.prune()?.into()))),
        Typed::Verify => read(&|reader| Ok(Task::Verify(reader.verify()?.into()))),
        Typed::Completions { shell } => Ok(untyped(Task::Completions(shell))),
        Typed::Man { folder } => Ok(untyped(Task::Man(folder))),
    };
    invocation.map(|invocation| Invocation { typed, ..invocation })
}

/// A task without settings.
fn untyped(task: Task) -> Invocation {
    Invocation { task, log: LogConfig::default(), warnings: Vec::new(), typed: TypedFlags::default() }
}

fn read_with(
    values: FlagValues,
    environment: &Environment,
    task: &dyn Fn(&mut SettingsReader<'_>) -> Result<Task, SettingError>,
) -> Result<Invocation, Exit> {
    let mut reader = SettingsReader { layers: Layers::open(values, environment)?, warnings: Vec::new() };
    let log = reader.log()?;
    let task = task(&mut reader)?;
    // A setting may be read twice, as by `setup --backfill`.
    let mut said = HashSet::new();
    reader.warnings.retain(|warning| said.insert(warning.clone()));
    Ok(Invocation { task, log, warnings: reader.warnings, typed: TypedFlags::default() })
}

// Most of them are of the default destination.
#[cfg(test)]
#[cfg(feature = "kafka")]
mod tests;

//! Defines the command line. The doc comment of a field is its help text.
//!
//! In: the arguments of the process. Out: `Typed`, with the switches of the command, and `FlagValues`, with every other value as text under
//! its flag's name, as in the other layers. Or the text to print instead ([`Exit`](super::Exit)).
//! This module only checks that a flag exists and has a value. [`settings`](crate::settings) knows what values mean, and where else they
//! may come from. It has to distinguish a default from a value that was given, so no flag has a default here.
//!
//! Invariant: no message quotes an argument that may hold a password. No type here has `Debug`, for the same reason.

mod brief;
mod completions;
mod dead_letters;
mod described;
mod flags;
mod others;
mod parse;
mod run;
mod shards;
mod verify;

#[cfg(test)]
#[cfg(feature = "kafka")]
pub(crate) use completions::VALUES;
pub use completions::completions;
pub(crate) use dead_letters::DeadLettersArgs;
pub use described::{Described, SettingValue, described};
pub(crate) use flags::FlagValues;
pub(crate) use others::{BackfillArgs, PruneArgs, SetupArgs, StatusArgs, TeardownArgs};
use others::{BenchArgs, CheckArgs};
pub use parse::write_manual;
pub(crate) use parse::{actions, parse, setting_of_alias, settings};
use run::{OfRunArgs, RunArgs};
use shards::SetupShardsArgs;
pub(crate) use verify::VerifyArgs;

use crate::commands::exit_codes;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

const AFTER_HELP: &str = "\
Every setting of `run` is a flag, a variable WALRELAY_<FLAG> (--max-row: WALRELAY_MAX_ROW; lists with commas) \
and a key of the TOML file given by --config. A flag beats a variable, a variable beats the file.";

const FIRST_STEPS: &str = "\
First steps:
  walrelay setup --apply --create-table --table outbox  create table, publication and slot
  walrelay run --brokers HOST:PORT                      publish; for another broker --to URL
  walrelay check                                        if anything does not work";

const CHECK_HELP: &str = "\
Takes the flags of `run`, checks everything that run needs and what would fail later, and changes nothing. Each line is ok, warn or \
fail, with why it matters and how to fix it. If one side is unavailable, the other is checked. With --from-debezium it contacts \
nothing and shows what that configuration means here: as flags, as TOML, and what has no counterpart.";

const PRUNE_HELP: &str = "\
Lists the old rows in one snapshot, commits a logical message after them, waits until the slot has confirmed it, and deletes \
in short transactions what is still as it was listed. While the relay is stopped, it waits. It refuses to run without the slot. \
Needs SELECT, UPDATE (to lock) and DELETE on the table; with --partitions its owner.

  walrelay prune --older-than 7d --every 1h";

const BACKFILL_HELP: &str = "\
For rows that are in the table and were never in the slot: they become the records that the relay would have made of them, and are \
not rewritten. Needs SELECT on the table, and a slot that setup --apply created, since that records which rows are older. The relay \
may run meanwhile: exactly one of the two publishes a row. Takes the flags of `run`; without --bad-row-at and the like a row that \
cannot be published stops it. After a stop or a crash, the same command resumes after the last acknowledged row.

  walrelay backfill --table outbox --dry-run
  walrelay backfill --setup --table outbox --then-run";

/// The meaning of each exit code of `run`, where it is a special one.
const RUN_CODES: [(u8, &str); 4] = [(0, "stopped on request"), (1, ""), (2, ""), (64, "")];

const BACKFILL_CODES: [(u8, &str); 4] =
    [(0, "all rows are published"), (1, "stopped or failed and a restart may fix it"), (2, ""), (64, "")];

/// A command's text behind its flags, with its exit codes.
fn help(text: &str, codes: &[(u8, &str)]) -> String {
    format!("{text}\n\n{}", exit_codes(codes))
}

/// Publish rows of a Postgres outbox table to a message broker: from the WAL, in order, at least once.
#[derive(Parser)]
#[command(name = "walrelay", version, propagate_version = true, after_help = help(&format!("{FIRST_STEPS}\n\n{AFTER_HELP}"), &RUN_CODES), max_term_width = 100)]
#[command(args_override_self = true, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Typed,
}

/// A command as it was typed.
#[derive(Subcommand)]
pub(crate) enum Typed {
    /// Read the slot, publish each row, confirm what was acknowledged.
    #[command(after_help = help(AFTER_HELP, &RUN_CODES))]
    Run(Box<RunArgs>),
    /// Print the SQL that the database needs: publication and slot.
    Setup(SetupArgs),
    /// Check Postgres and the destination; print what is wrong and how to fix it.
    #[command(after_help = help(CHECK_HELP, &[(0, "nothing fails (warnings are no failure)"), (2, "something fails"), (64, "")]))]
    Check(CheckArgs),
    /// Show the slot: who reads it, what it has confirmed, which WAL it keeps.
    Status(StatusArgs),
    /// Drop the slot; asks first.
    Teardown(TeardownArgs),
    /// List the records of rows that could not be published, and publish them again to the topics that they were meant for.
    #[command(after_help = help(dead_letters::HELP, &dead_letters::CODES))]
    DeadLetters(DeadLettersArgs),
    /// Publish rows that are older than the slot, once each, without rewriting them.
    #[command(after_help = help(BACKFILL_HELP, &BACKFILL_CODES))]
    Backfill(BackfillArgs),
    /// Compare new rows with the records of the destination: whether each arrived, as it is and in order. Writes nothing.
    #[command(after_help = help(verify::HELP, &verify::CODES))]
    Verify(VerifyArgs),
    /// Delete outbox rows that are old and proven to be delivered.
    #[command(after_help = help(PRUNE_HELP, &[(0, ""), (1, ""), (2, ""), (64, "")]))]
    Prune(PruneArgs),
    /// Measure drain rate and latency on your own servers, in a schema, slot and topic created for it and removed afterwards.
    Bench(Box<BenchArgs>),
    /// Print a shell's completions.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual's pages, for packages.
    #[command(hide = true)]
    Man {
        /// The folder that gets them.
        folder: PathBuf,
    },
}

/// Settings that every command has.
#[derive(Args, Clone, Default)]
pub(crate) struct CommonArgs {
    /// Read settings from this TOML file; keys are the names of flags [default: none]
    #[arg(short, long, value_name = "FILE", help_heading = None)]
    config: Option<String>,

    /// Log lines as `text` or `json` [default: text on a terminal, else json]
    #[arg(long, value_name = "FORMAT", help_heading = "Logging")]
    log_format: Option<String>,

    /// What is logged: error, warn, info, debug, trace, or a filter such as walrelay=debug [default: info]
    #[arg(long, value_name = "FILTER", help_heading = "Logging")]
    log_level: Option<String>,
}

/// Which database, and what in it.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Postgres")]
pub(crate) struct SourceArgs {
    /// Connection URI or keyword string, as for psql: postgres://user@host:5432/dbname?sslmode=verify-full
    /// [default: DATABASE_URL, then libpq's PG* variables, also for what a URI leaves out]
    #[arg(short = 'd', long, value_name = "URI", visible_aliases = ["dsn", "database-url"])]
    source: Option<String>,

    #[command(flatten)]
    password: PasswordArgs,

    /// The publication to read [default: walrelay]
    #[arg(short, long, value_name = "NAME")]
    publication: Option<String>,

    /// The replication slot, also this relay's name in logs, metrics and Kafka's client.id [default: walrelay]
    #[arg(short = 'S', long, value_name = "NAME")]
    slot: Option<String>,
}

/// Where the password of the source stands, if not where libpq has it.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Postgres")]
pub(crate) struct PasswordArgs {
    /// Read the password from this file, again at each connection; it comes before any other [default: none]
    #[arg(long, value_name = "FILE")]
    source_password_file: Option<String>,

    /// Run this program, without a shell, for at most 10 s; the first line that it prints is the password, such as a cloud's
    /// token; at each connection, at most once a minute [default: none]
    #[arg(long, value_name = "COMMAND", conflicts_with = "source_password_file")]
    source_password_command: Option<String>,
}

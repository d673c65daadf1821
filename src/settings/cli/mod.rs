//! Defines the command line: the commands here, and their flags from the table of settings. The doc comment of a command is the
//! beginning of its help text; what stands behind the flags is here, too.
//!
//! In: the arguments of the process. Out: `Typed`, the command, and `FlagValues`, with every flag's value as text under its name, as in the
//! other layers. Or the text to print instead ([`Exit`](super::Exit)).
//! This module checks that a flag exists, has a value if it needs one, and goes with the other flags. [`settings`](crate::settings) knows what
//! values mean, and where else they may come from. It has to distinguish a default from a value that was given, so no flag has a default here.
//!
//! Invariant: no message quotes an argument that may contain a password. No type here has `Debug`, for the same reason.

mod brief;
mod completions;
mod flags;
mod parse;

pub use completions::completions;
pub(crate) use flags::FlagValues;
pub use parse::write_manual;
pub(crate) use parse::{actions, parse, setting_of_alias, settings};

use super::table::{self, AnySetting, Definition, Takes};
use crate::commands::exit_codes;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, CommandFactory as _, Parser, Subcommand};
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

const DEAD_LETTERS_HELP: &str = "\
Reads the dead-letter topic from its first record to the end that it has now. With --replay each record goes to the topic that it was \
meant for, with its key, payload, headers and time, and the partition that the key or --partition-column gave it; what fails again \
stays. What was published again is remembered in the dead-letter topic, and left out from then on. It can be stopped, killed and run \
again: nothing is lost, and a kill repeats a second's worth at most. One replay at a time. A replayed record comes after later \
records of its key.

  walrelay dead-letters
  walrelay dead-letters --show --id 4711
  walrelay dead-letters --replay";

const VERIFY_HELP: &str = "\
Takes the flags of `run`: give it those of the relay that it looks at, which runs meanwhile. Reads new rows over a temporary slot, makes \
their records by the code of `run`, and finds each in its topic. Then waits until the relay's slot has confirmed the rows that are still \
open. --since reads the rows from the table instead: it also finds those that no slot will bring. With --from-debezium it expects what Debezium writes, from Debezium's slot: a dry run of the migration. Kafka, NATS and Redis can be read. Needs \
a walsender, and leaves two to the relay; the slot keeps WAL only while the command runs.

  walrelay verify --follow 10min
  walrelay verify --since 2h
  walrelay verify --from-debezium application.properties";

/// The meaning of each exit code of `run`, where it is a special one.
const RUN_CODES: [(u8, &str); 4] = [(0, "stopped on request"), (1, ""), (2, ""), (64, "")];

const BACKFILL_CODES: [(u8, &str); 4] =
    [(0, "all rows are published"), (1, "stopped or failed and a restart may fix it"), (2, ""), (64, "")];

const DEAD_LETTERS_CODES: [(u8, &str); 4] = [
    (0, ""),
    (1, "stopped or failed and another run continues it"),
    (2, "some failed again or an operator must act"),
    (64, ""),
];

const VERIFY_CODES: [(u8, &str); 4] = [
    (0, "each row has its record; new rows in order"),
    (1, "not finished, rows that could not be judged, or no new row"),
    (2, "a row is missing, altered or out of order"),
    (64, ""),
];

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
    Run,
    /// Print the SQL that the database needs: publication and slot.
    Setup,
    /// Check Postgres and the destination; print what is wrong and how to fix it.
    #[command(after_help = help(CHECK_HELP, &[(0, "nothing fails (warnings are no failure)"), (2, "something fails"), (64, "")]))]
    Check,
    /// Show the slot: who reads it, what it has confirmed, which WAL it keeps.
    Status,
    /// Drop the slot; asks first.
    Teardown,
    /// List the records of rows that could not be published, and publish them again to the topics that they were meant for.
    #[command(after_help = help(DEAD_LETTERS_HELP, &DEAD_LETTERS_CODES))]
    DeadLetters,
    /// Publish rows that are older than the slot, once each, without rewriting them.
    #[command(after_help = help(BACKFILL_HELP, &BACKFILL_CODES))]
    Backfill,
    /// Compare new rows with the records of the destination: whether each arrived, as it is and in order. Writes nothing.
    #[command(after_help = help(VERIFY_HELP, &VERIFY_CODES))]
    Verify,
    /// Delete outbox rows that are old and proven to be delivered.
    #[command(after_help = help(PRUNE_HELP, &[(0, ""), (1, ""), (2, ""), (64, "")]))]
    Prune,
    /// Measure drain rate and latency on your own servers, in a schema, slot and topic created for it and removed afterwards.
    Bench,
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

/// All commands with their flags.
fn command() -> Command {
    with_flags(|command| table::of(command).into_iter().map(|row| argument(row)).collect())
}

/// All commands, each with the flags that `flags` makes of its name.
fn with_flags(flags: impl Fn(&str) -> Vec<Arg>) -> Command {
    Cli::command().mut_subcommands(|command| {
        let flags = flags(command.get_name());
        command.args(flags)
    })
}

/// The flag of a setting.
fn argument(setting: &Definition) -> Arg {
    let help = match setting.default {
        default if !default.is_empty() && setting.takes != Takes::Nothing => {
            format!("{} [default: {default}]", setting.help)
        }
        _ => setting.help.to_owned(),
    };
    let arg = Arg::new(setting.name)
        .long((!setting.is_short_only).then_some(setting.name))
        .short(setting.short)
        .visible_aliases(setting.aliases.iter().copied())
        .help(help)
        .help_heading((!setting.group.is_empty()).then_some(setting.group))
        .conflicts_with_all(setting.excludes.iter().copied());
    let arg = setting.requires.iter().fold(arg, |arg, other| arg.requires(*other));
    match setting.takes {
        Takes::Nothing => arg.action(ArgAction::SetTrue),
        Takes::One => arg.value_name(setting.value),
        Takes::Many => arg.value_name(setting.value).action(ArgAction::Append),
        Takes::Switch => {
            arg.value_name(setting.value).num_args(0..=1).require_equals(true).default_missing_value("true")
        }
    }
}

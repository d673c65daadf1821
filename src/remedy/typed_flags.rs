//! The flags that the user typed, for the commands of a remedy.
//!
//! Settings from the environment or a file are there for the next command, too, and are not repeated.

use super::{Argument, Command};
use std::collections::{BTreeMap, BTreeSet};

/// Flags with which the user says that something is meant, each time anew.
const CONSENT: [&str; 9] = [
    "--apply",
    "--yes",
    "--replay",
    "--again",
    "--publication-too",
    "--unmarked",
    "--also-read-by",
    "--after-loss",
    "--published",
];

/// Settings of `run` that are about that one run.
const OF_ONE_RUN: [&str; 2] = ["--setup", "--dry-run"];

/// Commands to which `--table` means the same: which tables are published.
const SAME_TABLES: [&str; 4] = ["run", "check", "setup", "backfill"];

/// The command that the user typed, with its flags, and the flags that each command takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypedFlags {
    /// The command.
    pub command: String,
    /// Its flags.
    pub arguments: Vec<Argument>,
    /// The names of the flags that each command takes.
    pub known: BTreeMap<String, BTreeSet<String>>,
}

impl TypedFlags {
    /// Adds the flags that the command takes and does not have. Where the user typed a backfill, a run with flags becomes one.
    pub(super) fn complete(&self, command: &mut Command) {
        if command.name == "run" && self.command == "backfill" && !command.arguments.is_empty() {
            command.name = "backfill";
        }
        let has = |typed: &Argument| command.arguments.iter().any(|own| own.replaces(typed));
        let missing = self.arguments.iter().filter(|typed| self.is_for(typed.name(), command.name) && !has(typed));
        let missing: Vec<Argument> = missing.cloned().collect();
        command.arguments.extend(missing);
    }

    /// Whether a flag that was typed belongs to this command as well.
    fn is_for(&self, flag: &str, command: &str) -> bool {
        if CONSENT.contains(&flag) || !self.takes(command, flag) {
            return false;
        }
        let is_setting = self.takes("run", flag) && !OF_ONE_RUN.contains(&flag);
        let is_same_table =
            flag != "--table" || [self.command.as_str(), command].iter().all(|of| SAME_TABLES.contains(of));
        self.command == command || (is_setting && is_same_table)
    }

    fn takes(&self, command: &str, flag: &str) -> bool {
        self.known.get(command).is_some_and(|flags| flags.contains(flag))
    }
}

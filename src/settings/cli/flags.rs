//! Which flags there are, and which of them were typed: what hints repeat, and what the flags say.
//!
//! In: the commands' definitions, and what clap read. Out: [`TypedFlags`], which hold no secret, and [`FlagValues`].

use crate::commands::{CommandFlags, Flag, TypedFlag, TypedFlags};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::collections::BTreeMap;

/// What was typed behind each flag, by its long name; behind `-X`, by `property`.
#[derive(Default)]
pub(crate) struct FlagValues(BTreeMap<String, Vec<String>>);

impl FlagValues {
    /// Of the flags of a command of `cli`.
    pub(super) fn of(cli: &Command, matches: &ArgMatches) -> Self {
        let (name, matches) = matches.subcommand().unwrap_or(("", matches));
        let arguments = cli.find_subcommand(name).into_iter().flat_map(Command::get_arguments);
        let values = arguments.map(|argument| {
            let id = argument.get_id().as_str();
            (argument.get_long().unwrap_or(id).to_owned(), raw_values(matches, id).collect())
        });
        Self(values.collect())
    }

    /// Each of them, in the order in which they were typed.
    pub(crate) fn all(&self, flag: &str) -> &[String] {
        self.0.get(flag).map_or(&[], Vec::as_slice)
    }

    /// The one that counts where there may be one.
    pub(crate) fn last(&self, flag: &str) -> Option<&str> {
        self.all(flag).last().map(String::as_str)
    }

    /// Takes a flag as not typed.
    pub(crate) fn forget(&mut self, flag: &str) {
        self.0.remove(flag);
    }

    /// As if a flag had been typed.
    #[cfg(test)]
    pub(crate) fn with(mut self, flag: &str, value: &str) -> Self {
        self.0.entry(flag.to_owned()).or_default().push(value.to_owned());
        self
    }
}

/// What was typed of the flags of a command of `cli`.
pub(super) fn typed(cli: &Command, matches: &ArgMatches) -> TypedFlags {
    let commands = cli.get_subcommands().filter(|command| !command.is_hide_set());
    let commands = commands.map(|command| CommandFlags {
        name: command.get_name().to_owned(),
        flags: command.get_arguments().filter_map(flag).collect(),
    });
    let commands = commands.collect();
    let Some((name, matches)) = matches.subcommand() else {
        return TypedFlags { commands, ..TypedFlags::default() };
    };
    let arguments = cli.find_subcommand(name).into_iter().flat_map(Command::get_arguments);
    let flags = arguments.flat_map(|argument| occurrences(argument, matches)).collect();
    TypedFlags { command: name.to_owned(), flags, commands }
}

/// `None`: it is no flag.
fn flag(argument: &Arg) -> Option<Flag> {
    let (long, short) = (argument.get_long(), argument.get_short());
    let name = long.map(|long| format!("--{long}")).or_else(|| short.map(|short| format!("-{short}")))?;
    let takes_value = argument.get_action().takes_values() && !argument.is_require_equals_set();
    Some(Flag { name, short: short.filter(|_| long.is_some()), takes_value })
}

/// Each time that it was typed.
fn occurrences(argument: &Arg, matches: &ArgMatches) -> Vec<TypedFlag> {
    let id = argument.get_id().as_str();
    let Some(flag) = flag(argument).filter(|_| matches.value_source(id) == Some(ValueSource::CommandLine)) else {
        return Vec::new();
    };
    let values = raw_values(matches, id);
    match (argument.get_action().takes_values(), flag.takes_value) {
        (false, _) => vec![TypedFlag::new(&flag.name, None)],
        (true, true) => values.map(|value| TypedFlag::new(&flag.name, Some(&value))).collect(),
        // Its value is in the same word, and left out where it is the one that it has without.
        (true, false) => values.map(|value| TypedFlag::new(&in_one_word(&flag.name, &value), None)).collect(),
    }
}

fn raw_values(matches: &ArgMatches, id: &str) -> impl Iterator<Item = String> {
    matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned())
}

fn in_one_word(name: &str, value: &str) -> String {
    if value == "true" { name.to_owned() } else { format!("{name}={value}") }
}

//! Which flags there are, and which of them were typed: what hints repeat, and what the flags say.
//!
//! In: the commands' definitions, and what clap read. Out: [`TypedFlags`], which have no secret, and [`FlagValues`].

use crate::remedy::{Argument, TypedFlags};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::collections::BTreeMap;

/// The values that the user typed, by the flag's long name; those of `-X`, by `property`.
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

/// The flags that the user typed for a command of `cli`.
pub(super) fn typed(cli: &Command, matches: &ArgMatches) -> TypedFlags {
    let commands = cli.get_subcommands().filter(|command| !command.is_hide_set());
    let flags = |command: &Command| command.get_arguments().filter_map(flag_name).collect();
    let known = commands.map(|command| (command.get_name().to_owned(), flags(command))).collect();
    let Some((name, matches)) = matches.subcommand() else {
        return TypedFlags { known, ..TypedFlags::default() };
    };
    let arguments = cli.find_subcommand(name).into_iter().flat_map(Command::get_arguments);
    let arguments = arguments.flat_map(|argument| occurrences(argument, matches)).collect();
    TypedFlags { command: name.to_owned(), arguments, known }
}

/// `--topic`; `-X` where there is no long name; `None`: it is no flag.
fn flag_name(argument: &Arg) -> Option<String> {
    let short = || argument.get_short().map(|short| format!("-{short}"));
    argument.get_long().map(|long| format!("--{long}")).or_else(short)
}

/// Each time that it was typed.
fn occurrences(argument: &Arg, matches: &ArgMatches) -> Vec<Argument> {
    let id = argument.get_id().as_str();
    let Some(flag) = flag_name(argument).filter(|_| matches.value_source(id) == Some(ValueSource::CommandLine)) else {
        return Vec::new();
    };
    let values = raw_values(matches, id);
    match (argument.get_action().takes_values(), argument.is_require_equals_set()) {
        (false, _) => vec![Argument::typed(&flag, None)],
        (true, false) => values.map(|value| Argument::typed(&flag, Some(&value))).collect(),
        // Its value is in the same word, and left out where it is the one that it has without.
        (true, true) => values.map(|value| Argument::typed(&in_one_word(&flag, &value), None)).collect(),
    }
}

fn raw_values(matches: &ArgMatches, id: &str) -> impl Iterator<Item = String> {
    matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned())
}

fn in_one_word(name: &str, value: &str) -> String {
    if value == "true" { name.to_owned() } else { format!("{name}={value}") }
}

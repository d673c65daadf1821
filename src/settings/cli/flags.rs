//! Which flags there are, and which of them were typed: what hints repeat.
//!
//! In: the commands' definitions, and what clap read. Out: [`TypedFlags`]. No secret comes out.

use crate::commands::{CommandFlags, Flag, TypedFlag, TypedFlags};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

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
    let values = matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
    match (argument.get_action().takes_values(), flag.takes_value) {
        (false, _) => vec![TypedFlag::new(&flag.name, None)],
        (true, true) => values.map(|value| TypedFlag::new(&flag.name, Some(&value))).collect(),
        // Its value is in the same word, and left out where it is the one that it has without.
        (true, false) => values.map(|value| TypedFlag::new(&in_one_word(&flag.name, &value), None)).collect(),
    }
}

fn in_one_word(name: &str, value: &str) -> String {
    if value == "true" { name.to_owned() } else { format!("{name}={value}") }
}

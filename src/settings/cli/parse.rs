//! From the arguments of the process to a command, or to what is printed instead; and what else is known of the flags.
//!
//! Invariant: no message quotes an argument that may contain a password.

use super::{Cli, FlagValues, Typed, brief, command, flags, table};
use crate::remedy::TypedFlags;
use crate::setting_text::{SettingError, nearest};
use crate::settings::Exit;
use clap::FromArgMatches as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::path::Path;

/// Reads the arguments, the program's name first: the command, what its flags say, and which of them were typed.
///
/// # Errors
/// Help or version was asked for, or the arguments are wrong.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<(Typed, FlagValues, TypedFlags), Exit> {
    let arguments = arguments.into_iter().collect::<Vec<_>>();
    let parsed = command().try_get_matches_from(&arguments).and_then(|matches| {
        let cli = command();
        let (values, typed) = (FlagValues::of(&cli, &matches), flags::typed(&cli, &matches));
        Cli::from_arg_matches(&matches).map(|cli| (cli.command, values, typed))
    });
    parsed.map_err(|error| {
        let is_brief = error.kind() == ErrorKind::DisplayHelp && arguments.iter().any(|argument| argument == "-h");
        let brief = is_brief.then(|| brief::brief().try_get_matches_from(&arguments).err()).flatten();
        refusal(&brief.unwrap_or(error), command_in(&arguments).as_deref())
    })
}

/// The command that was typed, if it is one.
fn command_in(arguments: &[OsString]) -> Option<String> {
    let typed = arguments.get(1)?.to_str()?;
    command_names().into_iter().find(|name| name == typed)
}

/// Writes the pages of the manual, one for each command, into a folder.
///
/// # Errors
/// A page cannot be written.
pub fn write_manual(folder: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(command(), folder)
}

/// The names of settings: those of flags of `run`, without `config`.
pub(crate) fn settings() -> Vec<&'static str> {
    long_flags("run").into_iter().filter(|name| *name != table::run::CONFIG.name).collect()
}

/// The long names of flags that are no settings and stand on the command line alone.
pub(crate) fn actions() -> Vec<&'static str> {
    let known = long_flags("run");
    let all = command_names().into_iter().flat_map(|command| long_flags(&command));
    all.filter(|name| !known.contains(name)).collect()
}

/// The setting that another name stands for.
pub(crate) fn setting_of_alias(alias: &str) -> Option<&'static str> {
    table::named().find(|row| row.aliases.contains(&alias)).map(|row| row.name)
}

/// The long names of a command's flags, in alphabetical order.
fn long_flags(command: &str) -> Vec<&'static str> {
    let flags = table::of(command).into_iter().filter(|row| !row.is_short_only);
    let mut names = flags.map(|row| row.name).collect::<Vec<_>>();
    names.sort_unstable();
    names
}

fn command_names() -> Vec<String> {
    let cli = command();
    let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_owned()).collect()
}

fn refusal(error: &clap::Error, command: Option<&str>) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Exit::Asked(error.render().to_string());
    }
    if [ErrorKind::MissingSubcommand, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand].contains(&error.kind()) {
        return SettingError::usage("no command is given", commands_hint()).into();
    }
    SettingError::usage(message(error), hint(error, command)).into()
}

/// The first paragraph of clap's text, on one line.
fn message(error: &clap::Error) -> String {
    if typed(error).is_some_and(is_delicate) {
        return "an argument is neither a flag nor a flag's value; it is not shown, since it may hold a password"
            .to_owned();
    }
    if let (ErrorKind::TooManyValues, Some(flag)) = (error.kind(), typed(error)) {
        return format!("{flag} takes no value");
    }
    let text = error.render().to_string();
    let paragraph =
        text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
    paragraph.strip_prefix("error: ").unwrap_or(&paragraph).to_owned()
}

fn hint(error: &clap::Error, command: Option<&str>) -> String {
    let help = command.map_or_else(|| "walrelay --help".to_owned(), |command| format!("walrelay {command} --help"));
    match (typed(error), command) {
        (Some(typed), _) if is_delicate(typed) => {
            "a connection string goes to --source, a property of the destination to -X".to_owned()
        }
        (Some(typed), _) if error.kind() == ErrorKind::InvalidSubcommand => {
            let names = command_names();
            let nearest = nearest(typed, names.iter().map(String::as_str));
            nearest.map_or_else(commands_hint, |nearest| format!("the nearest command is {nearest}"))
        }
        (Some(typed), Some(command)) if error.kind() == ErrorKind::UnknownArgument && typed.starts_with("--") => {
            flag_hint(typed.trim_start_matches('-'), command).unwrap_or(help)
        }
        _ => help,
    }
}

/// The argument that an error is about.
fn typed(error: &clap::Error) -> Option<&str> {
    [ContextKind::InvalidSubcommand, ContextKind::InvalidArg].into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    })
}

/// Connection strings and properties are what passwords come in.
fn is_delicate(argument: &str) -> bool {
    ["://", "@", "=", ":"].iter().any(|mark| argument.contains(mark)) && !argument.starts_with("--")
}

/// The command whose flag it is, or the nearest flag of this command.
fn flag_hint(flag: &str, command: &str) -> Option<String> {
    let owner = command_names().into_iter().find(|name| long_flags(name).contains(&flag));
    if let Some(owner) = owner {
        return Some(format!("--{flag} is a flag of walrelay {owner}"));
    }
    let aliases = table::named().flat_map(|row| row.aliases.iter().copied());
    let known = long_flags(command).into_iter().chain(aliases).chain(["help", "version"]);
    nearest(flag, known).map(|flag| format!("the nearest flag is --{flag}"))
}

fn commands_hint() -> String {
    format!("the commands are {}; walrelay --help says more", command_names().join(", "))
}

//! A shell's completions: commands, flags, and the values of those flags that have only some.
//!
//! In: a shell. Out: its script. What a value means, and that it is one, is [`settings`](crate::settings)'s: here it is only offered.

use super::Cli;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory as _, ValueHint};
use clap_complete::Shell;

/// Flags with only some values.
pub(crate) const VALUES: [(&str, &[&str]); 9] = [
    ("delivery", &["at-least-once", "exactly-once"]),
    ("on-bad-row", &["stop", "dead-letter", "skip"]),
    ("on-update", &["warn", "skip", "stop"]),
    ("on-stop", &["exit", "hold"]),
    ("cloudevents", &["binary", "structured"]),
    ("log-format", &["text", "json"]),
    ("log-level", &["error", "warn", "info", "debug", "trace"]),
    ("payload-type", &["jsonb", "json", "text", "bytea"]),
    ("sink", &["kafka", "null"]),
];

/// Flags with the path of a file.
const FILES: [&str; 3] = ["config", "source-password-file", "from-debezium"];

/// A shell's completions.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = offering(Cli::command());
    clap_complete::generate(shell, &mut command, "walrelay", &mut script);
    script
}

/// The commands for a shell that offers values. Not for parsing: an unknown value is refused with the nearest one elsewhere.
fn offering(command: Command) -> Command {
    command.mut_subcommands(|subcommand| subcommand.mut_args(with_values))
}

fn with_values(argument: Arg) -> Arg {
    let long = argument.get_long().unwrap_or_default().to_owned();
    if let Some((_, values)) = VALUES.iter().find(|(name, _)| *name == long) {
        return argument.value_parser(PossibleValuesParser::new(*values));
    }
    if argument.is_require_equals_set() {
        return argument.value_parser(PossibleValuesParser::new(["true", "false"]));
    }
    if FILES.contains(&long.as_str()) { argument.value_hint(ValueHint::FilePath) } else { argument }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_offered_where_there_are_only_some() {
        let script = |shell| String::from_utf8(completions(shell)).unwrap();
        for (flag, values) in VALUES {
            assert!(script(Shell::Bash).contains(&values.join(" ")), "{flag} in bash");
            assert!(script(Shell::Zsh).contains(&format!("({})", values.join(" "))), "{flag} in zsh");
            let fish = script(Shell::Fish);
            assert!(values.iter().all(|value| fish.contains(&format!("{value}\\t''"))), "{flag} in fish");
        }
        assert!(script(Shell::Zsh).contains("FILE:_files"), "files are offered as such");
    }

    #[test]
    fn every_flag_that_is_offered_values_is_one() {
        let cli = Cli::command();
        let known = |name: &str| {
            let mut arguments = cli.get_subcommands().flat_map(Command::get_arguments);
            arguments.any(|argument| argument.get_long() == Some(name))
        };
        for name in VALUES.iter().map(|(name, _)| *name).chain(FILES) {
            assert!(known(name), "{name}");
        }
    }
}

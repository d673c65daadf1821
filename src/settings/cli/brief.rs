//! The text of `-h`: the flags that most people need, a line each. `--help` prints all of them, whole.
//!
//! In: the table of settings. Out: the commands with shorter texts and with seldom flags left out. The texts are the beginnings of the
//! whole ones, so that there is one source of them.

use super::{Definition, argument, table, with_flags};
use clap::{Arg, Command};

/// Commands with more flags than this are cut to those that most people need.
const MOST_FLAGS: usize = 20;

/// A default that is longer than this is left to `--help`.
const LONGEST_DEFAULT: usize = 28;

/// The characters that end the first clause of a text.
const ENDS: [&str; 3] = [": ", "; ", " ("];

/// All commands, as `-h` shows them.
pub(super) fn brief() -> Command {
    with_flags(|command| {
        let rows = table::of(command);
        let cut = rows.len() > MOST_FLAGS;
        rows.iter().map(|row| shortened(row, cut)).collect()
    })
    .mut_subcommands(|command| {
        let more = match command.get_arguments().filter(|flag| flag.is_hide_set()).count() {
            0 => format!("walrelay {} --help says more.", command.get_name()),
            count => format!("walrelay {} --help says more, and has {count} more flags.", command.get_name()),
        };
        command.next_line_help(false).after_help(more)
    })
}

/// A flag with the beginning of its text, and with its default where that is short.
fn shortened(setting: &Definition, cut: bool) -> Arg {
    let help = first_clause(setting.help, setting.default);
    argument(setting).help(help).hide(cut && setting.is_seldom)
}

fn first_clause(text: &str, default: &str) -> String {
    let end = ENDS.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    let clause = text.get(..end).unwrap_or(text);
    match default.len() {
        1..=LONGEST_DEFAULT if default != "none" && default != "false" => format!("{clause} [default: {default}]"),
        _ => clause.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_behind_its_first_clause_and_keeps_a_short_default() {
        for (text, default, brief) in [
            ("Where records go: kafka://HOST:PORT", "--brokers", "Where records go [default: --brokers]"),
            ("Only this table; repeatable", "none", "Only this table"),
            ("The publication to read", "walrelay", "The publication to read [default: walrelay]"),
            ("Print again", "", "Print again"),
        ] {
            assert_eq!(first_clause(text, default), brief);
        }
    }
}

//! The text of `-h`: the flags that most people need, a line each. `--help` prints all of them, whole.
//!
//! In: the commands as they are declared. Out: the same with shorter texts and with seldom flags left out. The texts are the
//! beginnings of the whole ones, so that there is one source of them.

use super::described::text_and_default;
use clap::Command;

/// Flags that few need. They work as any other.
const SELDOM: [&str; 35] = [
    "accept-differences",
    "accept-one-replica",
    "accept-slot-at",
    "bad-row-at",
    "cloudevents",
    "cloudevents-source",
    "coalesce",
    "content-type-header",
    "disconnect-after",
    "envelope",
    "header",
    "headers-column",
    "log-format",
    "max-row",
    "message-prefix",
    "on-stop",
    "on-update",
    "origin",
    "partition-column",
    "position-header",
    "route-column",
    "schema-id",
    "schema-registry",
    "schema-registry-ca",
    "schema-registry-password",
    "schema-registry-user",
    "schema-subject",
    "shutdown-timeout",
    "source-password-command",
    "source-password-file",
    "timestamp",
    "tombstone-on-empty-payload",
    "topic-regex",
    "topic-replacement",
    "unready-after",
];

/// Commands with more flags than this are cut to those that most people need.
const MOST_FLAGS: usize = 20;

/// A default that is longer than this is left to `--help`.
const LONGEST_DEFAULT: usize = 28;

/// The characters that end the first clause of a text.
const ENDS: [&str; 3] = [": ", "; ", " ("];

/// All commands, as `-h` shows them.
pub(super) fn brief(cli: Command) -> Command {
    let names: Vec<String> = cli.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.into_iter().fold(cli, |cli, name| cli.mut_subcommand(name, shortened))
}

fn shortened(command: Command) -> Command {
    let cut = command.get_arguments().count() > MOST_FLAGS;
    let is_seldom = |name: &str| cut && SELDOM.contains(&name);
    let left_out = command.get_arguments().filter_map(clap::Arg::get_long).filter(|name| is_seldom(name)).count();
    let more = match left_out {
        0 => format!("walrelay {} --help says more.", command.get_name()),
        count => format!("walrelay {} --help says more, and has {count} more flags.", command.get_name()),
    };
    command
        .mut_args(|arg| {
            let hidden = arg.is_hide_set() || arg.get_long().is_some_and(is_seldom);
            let text = arg.get_help().map(|text| first_clause(&text.to_string())).unwrap_or_default();
            arg.help(text).hide(hidden)
        })
        .next_line_help(false)
        .after_help(more)
}

/// The beginning of a text, with its default where that is short.
fn first_clause(text: &str) -> String {
    let (text, default) = text_and_default(text);
    let default = default.unwrap_or_default();
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
        for (text, brief) in [
            ("Where records go: kafka://HOST:PORT [default: --brokers]", "Where records go [default: --brokers]"),
            ("Only this table; repeatable [default: none]", "Only this table"),
            ("The publication to read [default: walrelay]", "The publication to read [default: walrelay]"),
            ("Print help", "Print help"),
        ] {
            assert_eq!(first_clause(text), brief);
        }
    }
}

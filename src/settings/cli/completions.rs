//! A shell's completions: commands, flags, and the values of those flags that have only some.
//!
//! In: a shell. Out: its script. What a value means, and that it is one, is [`settings`](crate::settings)'s: here it is only offered.

use super::{AnySetting, Takes, argument, table, with_flags};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ValueHint};
use clap_complete::Shell;

/// A shell's completions.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    // The flags for a shell that offers values. Not for parsing: an unknown value is refused with the nearest one elsewhere.
    let mut command = with_flags(|command| table::of(command).into_iter().map(offering).collect());
    clap_complete::generate(shell, &mut command, "walrelay", &mut script);
    script
}

fn offering(row: &dyn AnySetting) -> Arg {
    let argument = argument(row);
    match row.words() {
        _ if row.takes == Takes::Switch => argument.value_parser(PossibleValuesParser::new(["true", "false"])),
        words if !words.is_empty() => argument.value_parser(PossibleValuesParser::new(words)),
        _ if row.value == "FILE" => argument.value_hint(ValueHint::FilePath),
        _ => argument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_offered_where_there_are_only_some() {
        let script = |shell| String::from_utf8(completions(shell)).unwrap();
        let (bash, zsh, fish) = (script(Shell::Bash), script(Shell::Zsh), script(Shell::Fish));
        let with_words = |command| table::of(command).into_iter().filter(|row| !row.words().is_empty());
        let mut count = 0;
        for row in with_words("run").chain(with_words("bench")) {
            let (flag, values) = (row.name, row.words());
            assert!(bash.contains(&values.join(" ")), "{flag} in bash");
            assert!(zsh.contains(&format!("({})", values.join(" "))), "{flag} in zsh");
            assert!(values.iter().all(|value| fish.contains(&format!("{value}\\t''"))), "{flag} in fish");
            count += 1;
        }
        assert!(count > 9 && zsh.contains("FILE:_files"), "files are offered as such");
    }
}

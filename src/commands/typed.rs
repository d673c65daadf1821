//! The flags that say where a command was pointed at, for the commands that hints name: so that they can be pasted.
//!
//! In: a text with commands in it, and what was typed. Out: the text, with the flags that a command in it lacks. Pure. What came from the
//! environment is there for the next command, too, and is not repeated. No secret comes out.

use super::output::{shell_quoted, shown_source};

/// Commands that take these flags.
const COMMANDS: [&str; 9] =
    ["run", "setup", "check", "status", "teardown", "republish", "prune", "dead-letters", "backfill"];

/// The one that asks no database.
const WITHOUT_SOURCE: &str = "dead-letters";

/// Flags that have no value.
const WITHOUT_VALUE: [&str; 19] = [
    "--apply",
    "--yes",
    "--setup",
    "--watch",
    "--ready",
    "--json",
    "--failover",
    "--create-table",
    "--publication-too",
    "--dry-run",
    "--force",
    "--partitions",
    "--replay",
    "--show",
    "--again",
    "--backfill",
    "--leave-updated",
    "--then-run",
    "--all",
];

/// What was typed of the flags that every command has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypedFlags {
    /// `--config`.
    pub config: Option<String>,
    /// `--source`, without its password.
    pub source: Option<String>,
    /// `--publication`.
    pub publication: Option<String>,
    /// `--slot`.
    pub slot: Option<String>,
}

impl TypedFlags {
    /// Takes the arguments as they came; a connection string loses its password.
    pub fn new(
        config: Option<&String>,
        source: Option<&String>,
        publication: Option<&String>,
        slot: Option<&String>,
    ) -> Self {
        let source = source.map(|source| shown_source(source));
        Self { config: config.cloned(), source, publication: publication.cloned(), slot: slot.cloned() }
    }

    /// `text`, where each command of ours has these flags, too.
    pub fn complete(&self, text: &str) -> String {
        let mut done = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("walrelay ") {
            let (before, from) = rest.split_at(at);
            let length = command_length(from);
            let (command, after) = from.split_at(length.unwrap_or("walrelay ".len()));
            done.extend([before, command]);
            if length.is_some() {
                done.push_str(&self.missing(command));
            }
            rest = after;
        }
        done + rest
    }

    fn missing(&self, command: &str) -> String {
        let flags = [
            ("--config", "-c", &self.config),
            ("--source", "-d", &self.source),
            ("--publication", "-p", &self.publication),
            ("--slot", "-S", &self.slot),
        ];
        let has = |long: &str, short: &str| {
            command.split(' ').any(|word| word == short || word.split('=').next() == Some(long))
        };
        let without_source = command.split(' ').nth(1).map(trimmed) == Some(WITHOUT_SOURCE);
        let takes = |long: &str| !(without_source && ["--source", "--publication"].contains(&long));
        let missing = flags.into_iter().filter(|(long, short, _)| takes(long) && !has(long, short));
        missing.filter_map(|(long, _, value)| Some(format!(" {long} {}", shell_quoted(value.as_ref()?)))).collect()
    }
}

/// How many bytes of `text`, which begins with our name, are a command; `None`: it is none.
fn command_length(text: &str) -> Option<usize> {
    let mut words = words(text).into_iter().skip(1);
    let (_, subcommand, mut end) = words.next()?;
    if !COMMANDS.contains(&trimmed(subcommand)) {
        return None;
    }
    let mut wants_value = false;
    let mut last = subcommand;
    for (start, word, word_end) in words {
        let is_flag = word.starts_with('-') && word.len() > 1;
        if trimmed(last) != last || start != end + 1 || !(is_flag || wants_value) {
            break;
        }
        wants_value = is_flag && !word.contains('=') && !WITHOUT_VALUE.contains(&trimmed(word));
        (last, end) = (word, word_end);
    }
    Some(end - (last.len() - trimmed(last).len()))
}

/// Without what ends a sentence or a clause.
fn trimmed(word: &str) -> &str {
    word.trim_end_matches([',', ';', '.', ')', ':'])
}

/// The words with where they begin and end; quotes hold a word together.
fn words(text: &str) -> Vec<(usize, &str, usize)> {
    let mut found = Vec::new();
    let (mut start, mut quote) = (0, None);
    for (at, character) in text.char_indices().chain([(text.len(), ' ')]) {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '\'' | '"') => quote = Some(character),
            (None, ' ' | '\n') | (Some(_), '\n') => {
                found.extend(text.get(start..at).filter(|word| !word.is_empty()).map(|word| (start, word, at)));
                (start, quote) = (at + character.len_utf8(), None);
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, completed: &str) {
        let typed = TypedFlags {
            source: Some("postgres://u@h/d?a=1&b=2".to_owned()),
            slot: Some("orders".to_owned()),
            ..TypedFlags::default()
        };
        let flags = " --source 'postgres://u@h/d?a=1&b=2' --slot orders";
        assert_eq!(typed.complete(text), completed.replace('§', flags));
    }

    #[test]
    fn a_command_in_a_hint_gets_the_flags_that_were_typed() {
        check("walrelay setup --apply", "walrelay setup --apply§");
        check(
            "Never made: walrelay setup --apply, then run. (walrelay teardown --yes)",
            "Never made: walrelay setup --apply§, then run. (walrelay teardown --yes§)",
        );
        check("walrelay run, or ALTER ROLE x; walrelay run", "walrelay run§, or ALTER ROLE x; walrelay run§");
        check("walrelay setup --apply && walrelay run", "walrelay setup --apply§ && walrelay run§");
        check(
            "walrelay republish --table x --where 'a > 1, b' --apply, once it is there",
            "walrelay republish --table x --where 'a > 1, b' --apply§, once it is there",
        );
    }

    #[test]
    fn what_a_command_has_is_not_said_twice() {
        let with_source = "walrelay setup --apply --slot s --source 'postgres://u@h/d?a=1&b=2'";
        check("walrelay setup --apply --slot s", with_source);
        check("walrelay run --source=x -S y", "walrelay run --source=x -S y");
    }

    #[test]
    fn a_command_that_asks_no_database_gets_no_source() {
        check("walrelay dead-letters --replay shows", "walrelay dead-letters --replay --slot orders shows");
    }

    #[test]
    fn what_is_no_command_stays() {
        for text in ["restart walrelay", "use walrelay here", "start walrelay again", "walrelay --help", ""] {
            check(text, text);
        }
        assert_eq!(TypedFlags::default().complete("walrelay run"), "walrelay run");
    }

    #[test]
    fn a_password_is_not_repeated() {
        let source = "postgres://u:hunter2@h/d".to_owned();
        let typed = TypedFlags::new(None, Some(&source), None, None);
        assert_eq!(typed.complete("walrelay run"), "walrelay run --source postgres://u@h/d");
    }
}

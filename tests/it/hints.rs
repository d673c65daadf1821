//! Reads the commands that a hint names, as somebody would paste them.
//!
//! In: a text. Out: words. Knows of each flag only whether a value follows.

/// The words of the first command of ours in a text, and of those that follow it with `&&`; without our name.
pub(crate) fn first_commands(text: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut rest = text.find("walrelay ").map(|at| &text[at..]);
    while let Some(from) = rest {
        let (command, after) = command(from);
        let is_one = command.first().is_some_and(|name| COMMANDS.contains(&name.as_str()));
        if is_one {
            commands.push(command);
        }
        rest = match after.trim_start().strip_prefix("&& ") {
            Some(next) => Some(next),
            None if commands.is_empty() => after.find("walrelay ").map(|at| &after[at..]),
            None => None,
        };
    }
    commands
}

const COMMANDS: [&str; 5] = ["run", "setup", "check", "teardown", "backfill"];

/// Flags without a value of their own.
const BARE: [&str; 5] = ["--apply", "--yes", "--setup", "--json", "--dry-run"];

/// The words of a command as a shell has them, and what comes behind it.
fn command(text: &str) -> (Vec<String>, &str) {
    let (mut words, mut rest, mut wants_value) = (Vec::new(), text.strip_prefix("walrelay ").unwrap(), false);
    loop {
        let (word, raw) = word(rest);
        let ends = word.trim_end_matches([',', ';', ')', ':']);
        if raw == 0 || !(words.is_empty() || wants_value || word.starts_with('-')) {
            return (words, rest);
        }
        words.push(ends.to_owned());
        if ends != word {
            return (words, &rest[raw..]);
        }
        wants_value = word.starts_with('-') && !word.contains('=') && !BARE.contains(&word.as_str());
        rest = rest[raw..].trim_start_matches(' ');
    }
}

/// The words of a text, up to its end, as a shell has them.
pub(crate) fn words(text: &str) -> Vec<String> {
    let (mut words, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let (next, raw) = word(rest);
        words.push(next);
        rest = rest[raw..].trim_start();
    }
    words
}

/// The first word without its quotes, and how many bytes it has with them.
fn word(text: &str) -> (String, usize) {
    let (mut word, mut quoted, mut escaped) = (String::new(), false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => {
                escaped = false;
                word.push(character);
            }
            '\'' => quoted = !quoted,
            '\\' if !quoted => escaped = true,
            ' ' | '\n' if !quoted => return (word, at),
            other => word.push(other),
        }
    }
    (word, text.len())
}

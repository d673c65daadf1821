//! The flags that were typed, for the commands that hints name: so that they can be pasted and lose nothing.
//!
//! In: a text with commands in it, what was typed, and what each command takes. Out: the text, with the flags that a command in it lacks.
//! Pure. What came from the environment or a file is there for the next command, too, and is not repeated. No secret comes out.

use super::output::{shell_quoted, shown_source};
use crate::given::is_secret;

/// Flags that say that something is meant: nobody's but the user's, each time.
const CONSENT: [&str; 6] = ["--apply", "--yes", "--force", "--replay", "--again", "--publication-too"];

/// Settings of `run` that are about that one run.
const OF_ONE_RUN: [&str; 2] = ["--setup", "--dry-run"];

/// Commands to which `--table` means the same: which tables are published.
const SAME_TABLES: [&str; 4] = ["run", "check", "setup", "backfill"];

/// Flags with `KEY=VALUE`, of which each key has one value.
const KEYED: [&str; 4] = ["-X", "--header", "--envelope", "--bad-row-at"];

/// Flags with an address that may have a password in it.
const ADDRESSES: [&str; 3] = ["--source", "--to", "--schema-registry"];

/// A flag that a command takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// `--topic`; `-X` where there is no long name.
    pub name: String,
    /// `t` of `-t`, beside the long name.
    pub short: Option<char>,
    /// Whether a value follows as a word of its own.
    pub takes_value: bool,
}

/// What a command takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandFlags {
    /// `run`.
    pub name: String,
    /// Its flags.
    pub flags: Vec<Flag>,
}

/// A flag that was typed.
#[derive(Clone, PartialEq, Eq)]
pub struct TypedFlag {
    /// [`Flag::name`]; with `=` and its value where that is no word of its own.
    name: String,
    /// Its value, without secrets; `None`: it has none.
    value: Option<String>,
}

impl std::fmt::Debug for TypedFlag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl TypedFlag {
    /// As it was typed; an address loses its password, and a property that is a secret its value.
    pub fn new(name: &str, value: Option<&str>) -> Self {
        let shown = |value: &str| match value.split_once('=') {
            _ if ADDRESSES.contains(&name) => shown_source(value),
            _ if name.ends_with("-password") && !value.starts_with('@') => "…".to_owned(),
            Some((key, secret)) if name == "-X" && is_secret(key) && !secret.starts_with('@') => format!("{key}=…"),
            _ => value.to_owned(),
        };
        Self { name: name.to_owned(), value: value.map(shown) }
    }

    /// Its name, without a value in the same word.
    fn base(&self) -> &str {
        self.name.split('=').next().unwrap_or_default()
    }

    /// As words of a command.
    fn text(&self) -> String {
        match &self.value {
            Some(value) => format!("{} {}", self.name, shell_quoted(value)),
            None => self.name.clone(),
        }
    }

    /// Whether a word of a command, with the one that follows it, says what this would.
    fn is_said_by(&self, short: Option<char>, word: &str, next: Option<&str>) -> bool {
        let of_short = short.is_some_and(|short| word.strip_prefix('-').is_some_and(|rest| rest == short.to_string()));
        if !of_short && word.split('=').next() != Some(self.base()) {
            return false;
        }
        let key = |value: &str| value.trim_matches('\'').split('=').next().unwrap_or_default().to_owned();
        match (&self.value, next) {
            (Some(value), Some(next)) if KEYED.contains(&self.name.as_str()) => key(value) == key(next),
            _ => true,
        }
    }
}

/// What was typed, and what each command takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypedFlags {
    /// The command that was typed.
    pub command: String,
    /// Its flags.
    pub flags: Vec<TypedFlag>,
    /// All commands.
    pub commands: Vec<CommandFlags>,
}

impl TypedFlags {
    /// `text`, where each command of ours has the flags that were typed and that it takes, too.
    pub fn complete(&self, text: &str) -> String {
        let mut done = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("walrelay ") {
            let (before, from) = rest.split_at(at);
            let length = self.command_length(from);
            let (command, after) = from.split_at(length.unwrap_or("walrelay ".len()));
            done.push_str(before);
            if length.is_some() {
                done.push_str(&self.of_the_same_job(command));
                done.push_str(&self.missing(command));
            } else {
                done.push_str(command);
            }
            rest = after;
        }
        done + rest
    }

    /// The SQL that a text begins with, and the commands of ours in it: what can be pasted as it is.
    pub fn commands(&self, text: &str) -> Vec<String> {
        let mut found: Vec<String> = leading_sql(text).map(str::to_owned).into_iter().collect();
        let mut rest = text;
        while let Some((_, from)) = rest.find("walrelay ").map(|at| rest.split_at(at)) {
            let length = self.command_length(from);
            found.extend(length.and_then(|length| from.get(..length)).map(str::to_owned));
            rest = from.get(length.unwrap_or("walrelay ".len())..).unwrap_or_default();
        }
        found
    }

    /// Whoever backfills is told what to type for a backfill where a run has the same flags.
    fn of_the_same_job(&self, command: &str) -> String {
        match command.strip_prefix("walrelay run --") {
            Some(flags) if self.command == "backfill" => format!("walrelay backfill --{flags}"),
            _ => command.to_owned(),
        }
    }

    fn missing(&self, command: &str) -> String {
        let words: Vec<&str> = words(command).into_iter().map(|(_, word, _)| word).collect();
        let name = words.get(1).map(|name| trimmed(name)).unwrap_or_default();
        let name = if name == "run" && self.command == "backfill" && words.len() > 2 { "backfill" } else { name };
        let said = |flag: &TypedFlag| {
            let short = self.flag(name, flag.base()).and_then(|known| known.short);
            words.iter().enumerate().any(|(at, word)| flag.is_said_by(short, word, words.get(at + 1).copied()))
        };
        let missing = self.flags.iter().filter(|flag| self.is_carried(flag, name) && !said(flag));
        missing.flat_map(|flag| [" ".to_owned(), flag.text()]).collect()
    }

    /// Whether a flag that was typed belongs to this command of a hint.
    fn is_carried(&self, flag: &TypedFlag, command: &str) -> bool {
        let name = flag.base();
        if CONSENT.contains(&name) || self.flag(command, name).is_none() {
            return false;
        }
        let is_setting = self.flag("run", name).is_some() && !OF_ONE_RUN.contains(&name);
        let is_same_table =
            name != "--table" || [self.command.as_str(), command].iter().all(|of| SAME_TABLES.contains(of));
        self.command == command || (is_setting && is_same_table)
    }

    fn flag(&self, command: &str, name: &str) -> Option<&Flag> {
        self.commands.iter().find(|known| known.name == command)?.flags.iter().find(|flag| flag.name == name)
    }

    /// How many bytes of `text`, which begins with our name, are a command; `None`: it is none.
    fn command_length(&self, text: &str) -> Option<usize> {
        let mut words = words(text).into_iter().skip(1);
        let (_, subcommand, mut end) = words.next()?;
        let known = self.commands.iter().find(|known| known.name == trimmed(subcommand))?;
        let mut wants_value = false;
        let mut last = subcommand;
        for (start, word, word_end) in words {
            let is_flag = word.starts_with('-') && word.len() > 1;
            if trimmed(last) != last || start != end + 1 || !(is_flag || wants_value) {
                break;
            }
            let name = trimmed(word);
            let short = name.strip_prefix('-').and_then(|rest| rest.chars().next());
            let flag = known.flags.iter().find(|flag| flag.name == name || (flag.short == short && name.len() == 2));
            wants_value = is_flag && !word.contains('=') && flag.is_none_or(|flag| flag.takes_value);
            (last, end) = (word, word_end);
        }
        Some(end - (last.len() - trimmed(last).len()))
    }
}

/// The statements that a text begins with: each begins with a word in capitals and has its semicolon.
fn leading_sql(text: &str) -> Option<&str> {
    let is_sql = |part: &str| {
        let word = part.split_whitespace().next().map_or("", trimmed);
        part.ends_with(';') && word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    let length = text.split_inclusive(';').take_while(|part| is_sql(part)).map(str::len).sum();
    text.get(..length).filter(|sql| !sql.is_empty())
}

/// Without what ends a sentence or a clause.
fn trimmed(word: &str) -> &str {
    word.trim_end_matches([',', ';', '.', ')', ':'])
}

/// The words with where they begin and end; quotes hold a word together.
fn words(text: &str) -> Vec<(usize, &str, usize)> {
    let mut found = Vec::new();
    let (mut start, mut quote, mut escaped) = (0, None, false);
    for (at, character) in text.char_indices().chain([(text.len(), ' ')]) {
        let is_escaped = escaped;
        escaped = quote.is_none() && character == '\\' && !is_escaped;
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '\'' | '"') if is_escaped => {}
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

    const SETTINGS: [(&str, Option<char>); 8] = [
        ("--config", Some('c')),
        ("--source", Some('d')),
        ("--slot", Some('S')),
        ("--table", Some('t')),
        ("--topic", None),
        ("-X", None),
        ("--header", None),
        ("--bad-row-at", None),
    ];

    fn command(name: &str, settings: &[&str], actions: &[(&str, bool)]) -> CommandFlags {
        let known = SETTINGS.iter().filter(|(flag, _)| settings.is_empty() || settings.contains(flag));
        let known = known.map(|(name, short)| Flag { name: (*name).to_owned(), short: *short, takes_value: true });
        let own =
            actions.iter().map(|(name, value)| Flag { name: (*name).to_owned(), short: None, takes_value: *value });
        CommandFlags { name: name.to_owned(), flags: known.chain(own).collect() }
    }

    fn typed(command_name: &str, flags: &[(&str, Option<&str>)]) -> TypedFlags {
        let place = ["--config", "--source", "--slot", "--table"];
        TypedFlags {
            command: command_name.to_owned(),
            flags: flags.iter().map(|(name, value)| TypedFlag::new(name, *value)).collect(),
            commands: vec![
                command("run", &[], &[("--dry-run", false)]),
                command("check", &[], &[("--json", false)]),
                command("backfill", &[], &[("--rate", true), ("--where", true), ("--again", false)]),
                command("setup", &place, &[("--apply", false), ("--role", true), ("--create-table", false)]),
                command("teardown", &["--config", "--source", "--slot"], &[("--yes", false)]),
                command("dead-letters", &["--config", "--slot"], &[("--replay", false)]),
            ],
        }
    }

    const PLACE: [(&str, Option<&str>); 2] =
        [("--source", Some("postgres://u@h/d?a=1&b=2")), ("--slot", Some("orders"))];

    #[track_caller]
    fn check(text: &str, completed: &str) {
        let flags = " --source 'postgres://u@h/d?a=1&b=2' --slot orders";
        assert_eq!(typed("run", &PLACE).complete(text), completed.replace('§', flags));
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
            "walrelay backfill --table x --where 'a > 1, b' --again, once it is there",
            "walrelay backfill --table x --where 'a > 1, b' --again§, once it is there",
        );
        check(
            r"walrelay backfill --where 'at > now() - interval '\''1 day'\''' --again, once it is there",
            r"walrelay backfill --where 'at > now() - interval '\''1 day'\''' --again§, once it is there",
        );
    }

    #[test]
    fn what_a_command_has_is_not_said_twice() {
        let with_source = "walrelay setup --apply --slot s --source 'postgres://u@h/d?a=1&b=2'";
        check("walrelay setup --apply --slot s", with_source);
        check("walrelay run --source=x -S y", "walrelay run --source=x -S y");
    }

    #[test]
    fn every_setting_that_was_typed_stays_and_the_hints_own_wins() {
        let flags = [
            ("--topic", Some("x.{route}")),
            ("-X", Some("linger.ms=5")),
            ("-X", Some("security.protocol=SSL")),
            ("--header", Some("a=typ")),
            ("--header", Some("b=at")),
            ("--dry-run", None),
        ];
        let hint = "walrelay run -X security.protocol=PLAINTEXT --header a=type";
        assert_eq!(
            typed("check", &flags).complete(hint),
            format!("{hint} --topic 'x.{{route}}' -X linger.ms=5 --header b=at")
        );
        // The same job once more.
        assert!(typed("run", &flags).complete("walrelay run --topic x").ends_with("--dry-run"));
    }

    #[test]
    fn a_command_gets_no_flag_that_it_does_not_take_and_no_consent() {
        let flags = [("--table", Some("a")), ("--topic", Some("t")), ("--apply", None), ("--role", Some("r"))];
        let said = |command: &str, hint: &str| typed(command, &flags).complete(hint);
        assert_eq!(said("run", "walrelay setup"), "walrelay setup --table a");
        assert_eq!(said("setup", "walrelay setup"), "walrelay setup --table a --role r");
        assert_eq!(said("run", "walrelay teardown"), "walrelay teardown");
        // It says which table is pruned, not which are published.
        assert_eq!(said("prune", "walrelay run"), "walrelay run --topic t");
    }

    #[test]
    fn what_can_be_pasted_is_found_in_a_text() {
        let commands = |text: &str| typed("run", &[]).commands(text);
        assert_eq!(
            commands("row 7 stays: walrelay run --topic 'a b', or walrelay teardown --yes; then start walrelay again"),
            ["walrelay run --topic 'a b'", "walrelay teardown --yes"]
        );
        assert_eq!(commands("ALTER ROLE x REPLICATION;"), ["ALTER ROLE x REPLICATION;"]);
        assert_eq!(
            commands("BEGIN; ALTER x; COMMIT; -- older rows: walrelay backfill --table t; and more;"),
            ["BEGIN; ALTER x; COMMIT;", "walrelay backfill --table t"]
        );
        assert_eq!(commands("if it is gone: SELECT pg_terminate_backend(7);"), [""; 0]);
        assert_eq!(commands("restart walrelay"), [""; 0]);
    }

    #[test]
    fn the_hint_of_a_backfill_says_how_to_backfill() {
        let flags = [("--rate", Some("5/s")), ("--again", None)];
        let said = |hint: &str| typed("backfill", &flags).complete(hint);
        assert_eq!(said("walrelay run --topic x"), "walrelay backfill --topic x --rate 5/s");
        assert_eq!(said("walrelay run"), "walrelay run");
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
    fn a_secret_is_not_repeated() {
        let flags = [
            ("--source", Some("postgres://u:hunter2@h/d")),
            ("-X", Some("sasl.password=hunter2")),
            ("-X", Some("ssl.key.password=@/run/key")),
            ("--schema-registry-password", Some("hunter2")),
        ];
        let typed = typed("run", &flags);
        let said = "walrelay run --source postgres://u@h/d -X 'sasl.password=…' -X ssl.key.password=@/run/key";
        assert_eq!(typed.complete("walrelay run"), said);
        assert!(!format!("{typed:?}").contains("hunter2"));
    }
}

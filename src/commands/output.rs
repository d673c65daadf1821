//! Figures, names and commands as people read them.
//!
//! In: values. Out: text and commands. Nothing here writes anything.

use crate::outbox::TableName;
use crate::pg::catalog::ServerSession;
use crate::remedy::Command;
use crate::setting_text::percent_encoded;
pub(super) use crate::setting_text::units::{bytes, number};
use std::time::Duration;

/// The name that publication and slot have when none is given.
const DEFAULT_NAME: &str = "walrelay";

/// The limit up to which existing rows are counted.
pub(super) const COUNT_LIMIT: u64 = 100_000;

/// `1 row`, `2,000 rows`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{} {noun}s", number(count)) }
}

/// As [`counted`], of rows that were counted up to [`COUNT_LIMIT`] and one more.
pub(super) fn counted_rows(count: u64) -> String {
    if count > COUNT_LIMIT { format!("more than {}", counted(COUNT_LIMIT, "row")) } else { counted(count, "row") }
}

/// In the two largest units: `42 s`, `3 min 20 s`, `2 h 5 min`.
pub(super) fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A session: who it is and what it has been doing for how long. Never what it says.
pub(super) fn session(session: &ServerSession) -> String {
    let mut facts = Vec::new();
    facts.extend(session.user.as_ref().map(|user| format!("user {user}")));
    facts.extend(session.application.as_ref().map(|name| format!("application {name}")));
    facts.extend(session.client.as_ref().map(|address| format!("from {address}")));
    facts.extend(session.state.clone());
    facts.extend(session.transaction_age.map(|age| format!("transaction open for {}", duration(age))));
    facts.extend(session.statement_age.map(|age| format!("latest statement begun {} ago", duration(age))));
    if facts.is_empty() {
        format!("process {}", session.pid)
    } else {
        format!("process {} ({})", session.pid, facts.join(", "))
    }
}

/// A slot's reader: who it is, and not since when, since a walsender's one statement began when it connected.
pub(super) fn reader(reader: &ServerSession) -> String {
    session(&ServerSession { state: None, transaction_age: None, statement_age: None, ..reader.clone() })
}

/// The flags that the next command needs again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told<'a> {
    /// The connection string that was typed, without secrets.
    pub(super) source: Option<&'a str>,
    pub(super) publication: &'a str,
    pub(super) slot: &'a str,
    pub(super) tables: &'a [TableName],
}

impl Told<'_> {
    /// The command with the flags that are not the default.
    pub(super) fn add_to(&self, command: Command) -> Command {
        let command = self.source.iter().fold(command, |command, source| command.set("--source", source));
        let names = [("--publication", self.publication), ("--slot", self.slot)];
        let names = names.into_iter().filter(|(_, name)| *name != DEFAULT_NAME);
        let command = names.fold(command, |command, (flag, name)| command.set(flag, name));
        with_tables(command, self.tables)
    }
}

/// Makes a set of shards, or moves rows to one: `--shards` or `--reshard`.
pub(super) fn setup_shards(verb: &str, count: u8) -> Command {
    Command::new("setup").set(verb, count).flag("--apply")
}

/// Drops a set of shards.
pub(super) fn teardown_shards(count: u8) -> Command {
    Command::new("teardown").set("--shards", count)
}

/// The command with a `--table` for each of the tables.
pub(super) fn with_tables<'a>(command: Command, tables: impl IntoIterator<Item = &'a TableName>) -> Command {
    tables.into_iter().fold(command, |command, table| command.set("--table", table.as_typed()))
}

/// A connection string without secrets as another role's; `None`: it is not known how.
pub(super) fn as_role(source: &str, role: &str) -> Option<String> {
    let Some((scheme, rest)) = source.split_once("://") else {
        let others = source.split_whitespace().filter(|pair| !pair.starts_with("user="));
        let is_simple =
            !source.contains(['\'', '\\', '…']) && role.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let user = format!("user={role}");
        return is_simple.then(|| others.chain([user.as_str()]).collect::<Vec<_>>().join(" "));
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    Some(format!("{scheme}://{}@{hosts}{path}", percent_encoded(role)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal_and_never_wrap() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_258_291, "1.1 MiB"),
            (16 << 20, "16.0 MiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (5 << 40, "5.0 TiB"),
        ] {
            assert_eq!(bytes(count), text, "{count}");
        }
        assert!(bytes(u64::MAX).ends_with("PiB"));
    }

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 100_000, 1_234_567].map(number), ["0", "999", "1,000", "100,000", "1,234,567"]);
    }

    #[test]
    fn durations_show_two_units() {
        let shown = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!([59, 200, 7500].map(shown), ["59 s", "3 min 20 s", "2 h 5 min"]);
    }

    #[test]
    fn a_command_repeats_only_what_is_not_the_default() {
        let tables = ["public.outbox", "shop.\"A b.c\""].map(|table| TableName::parse(table).unwrap());
        let told = Told { source: None, publication: "walrelay", slot: "walrelay", tables: &[] };
        assert_eq!(told.add_to(Command::new("run")).to_string(), "walrelay run");
        let told = Told { source: Some("postgres://u@h/d?a=1&b=2"), publication: "it's", slot: "s", tables: &tables };
        assert_eq!(
            told.add_to(Command::new("run")).to_string(),
            r#"walrelay run --source 'postgres://u@h/d?a=1&b=2' --publication 'it'\''s' --slot s --table public.outbox --table 'shop."A b.c"'"#
        );
    }

    #[test]
    fn a_connection_string_becomes_another_roles() {
        for (text, shown) in [
            ("postgres://postgres@h:5432/d?sslmode=require", Some("postgres://my%20role@h:5432/d?sslmode=require")),
            ("postgres://h/d", Some("postgres://my%20role@h/d")),
            ("postgres:///d?host=/tmp", Some("postgres://my%20role@/d?host=/tmp")),
            ("host=h user=u dbname=d", None),
        ] {
            assert_eq!(as_role(text, "my role").as_deref(), shown, "{text}");
        }
        assert_eq!(as_role("host=h user=u dbname=d", "relay").as_deref(), Some("host=h dbname=d user=relay"));
    }

    #[test]
    fn a_session_is_described_by_what_may_be_seen_of_it() {
        let mut seen = ServerSession {
            pid: 7,
            user: Some("app".to_owned()),
            application: Some("psql".to_owned()),
            client: None,
            state: Some("idle in transaction".to_owned()),
            transaction_age: Some(Duration::from_secs(90)),
            statement_age: Some(Duration::from_secs(3)),
        };
        assert_eq!(
            session(&seen),
            "process 7 (user app, application psql, idle in transaction, transaction open for 1 min 30 s, latest statement begun 3 s ago)"
        );
        (seen.user, seen.application, seen.state, seen.transaction_age, seen.statement_age) =
            (None, None, None, None, None);
        assert_eq!(session(&seen), "process 7");
    }
}

//! The password file, `~/.pgpass`.
//!
//! In: the file's text, and whom to log in to. Out: the password of the first line that matches.
//! Invariant: a file that others may read is not used, as in libpq, and said so.
//! Specification: PostgreSQL manual, section 32.16 "The Password File".

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use secrecy::SecretString;

use super::Host;

/// Where libpq's own build has the server's sockets; a host there is `localhost` in the file.
const DEFAULT_SOCKET_DIRS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// A password file's text, or the reason why it is not used.
pub(super) fn read(path: &Path, named: bool) -> Result<String, Option<String>> {
    let unused = |why: &str| Some(format!("password file {} is not used: {why}", path.display()));
    let metadata = fs::metadata(path).map_err(|error| unused(&error.to_string()).filter(|_| named))?;
    if !metadata.is_file() {
        return Err(unused("it is not a plain file"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(unused("group or others have access to it; chmod 600 it"));
    }
    fs::read_to_string(path).map_err(|error| unused(&error.to_string()))
}

/// The password for a user of a database on a host.
pub(super) fn find(file: &str, host: &Host, dbname: &str, user: &str) -> Option<SecretString> {
    let (name, port) = match host {
        Host::Tcp { name, port, .. } => (name.clone(), port),
        Host::Unix { dir, port } => (socket_host(dir), port),
    };
    let wanted = [name.as_str(), &port.to_string(), dbname, user];
    file.lines().filter(|line| !line.starts_with('#')).find_map(|line| password(line, wanted))
}

fn socket_host(dir: &Path) -> String {
    let default = DEFAULT_SOCKET_DIRS.iter().any(|default| Path::new(default) == dir);
    if default { "localhost".to_owned() } else { dir.display().to_string() }
}

/// The fifth field of a line whose first four match.
fn password(line: &str, wanted: [&str; 4]) -> Option<SecretString> {
    let mut rest = line.trim_end_matches('\r');
    for wanted in wanted {
        let (field, after) = split_field(rest)?;
        if field != "*" && unescape(field) != wanted {
            return None;
        }
        rest = after;
    }
    let password = unescape(split_field(rest).map_or(rest, |(field, _)| field));
    (!password.is_empty()).then(|| password.into())
}

/// The text before the first colon that no backslash precedes, and the text after it.
fn split_field(text: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b':' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

fn unescape(field: &str) -> String {
    let mut characters = field.chars();
    let mut plain = String::with_capacity(field.len());
    while let Some(character) = characters.next() {
        plain.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn tcp(name: &str, port: u16) -> Host {
        Host::Tcp { name: name.into(), port, address: None }
    }

    #[track_caller]
    fn check(file: &str, host: &Host, expected: Option<&str>) {
        let found = find(file, host, "shop", "app");
        assert_eq!(found.as_ref().map(ExposeSecret::expose_secret), expected);
    }

    #[test]
    fn the_first_matching_line_wins() {
        let file = "# db:5432:shop:app:comment\nother:5432:shop:app:no\ndb:5432:shop:app:first\n*:*:*:*:last\n";
        check(file, &tcp("db", 5432), Some("first"));
        check(file, &tcp("db", 5433), Some("last"));
    }

    #[test]
    fn a_backslash_escapes_colons_and_itself() {
        check(r"\:\:1:*:shop:app:a\:b\\c:ignored", &tcp("::1", 5432), Some(r"a:b\c"));
    }

    #[test]
    fn a_default_socket_is_localhost_and_another_is_its_directory() {
        let file = "localhost:*:*:*:default\n/srv/pg:*:*:*:own\n";
        check(file, &Host::Unix { dir: "/var/run/postgresql".into(), port: 5432 }, Some("default"));
        check(file, &Host::Unix { dir: "/srv/pg".into(), port: 5432 }, Some("own"));
    }

    #[test]
    fn short_lines_and_empty_passwords_match_nothing() {
        check("db:5432:shop\n*:*:*:*:\n", &tcp("db", 5432), None);
    }

    #[test]
    fn a_file_that_others_may_read_is_not_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "*:*:*:*:secret\n").unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read(file.path(), false).unwrap_err().unwrap().contains("chmod 600"));
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(file.path(), false).unwrap(), "*:*:*:*:secret\n");
    }

    #[test]
    fn a_missing_file_is_only_worth_a_word_when_it_was_named() {
        let missing = Path::new("/nonexistent/pgpass");
        assert_eq!(read(missing, false), Err(None));
        assert!(read(missing, true).unwrap_err().is_some());
    }
}

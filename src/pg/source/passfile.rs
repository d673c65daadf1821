//! Reads the password file, `~/.pgpass`.
//!
//! In: the file's text, a host, a database and a user. Out: the password of the first line that matches.
//! Invariant: as in libpq, a file that others may read is not used, and a warning says so.
//! Specification: PostgreSQL manual, section 32.16 "The Password File".

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use secrecy::SecretString;

use super::Host;
use crate::setting_text::shown_path;

/// The socket directories of libpq's own builds. In the file, a host with such a directory is `localhost`.
const DEFAULT_SOCKET_DIRS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// Reads the file. The error is the reason why the file is not used.
pub(super) fn read(path: &Path, named: bool) -> Result<String, Option<String>> {
    let unused = |why: &str| Some(format!("password file {} is not used: {why}", shown_path(path)));
    let metadata = fs::metadata(path).map_err(|error| unused(&error.to_string()).filter(|_| named))?;
    if !metadata.is_file() {
        return Err(unused("it is not a plain file"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(unused("group or others have access to it; chmod 600 it"));
    }
    fs::read_to_string(path).map_err(|error| unused(&error.to_string()))
}

/// The password for a user, a database and a host, from the first line that matches. `None`: no line matches, or the line has none.
pub(super) fn find(file: &str, host: &Host, dbname: &str, user: &str) -> Option<SecretString> {
    let (name, port) = match host {
        Host::Tcp { name, port, .. } => (name.clone(), port),
        Host::Unix { dir, port } => (socket_host(dir), port),
    };
    let wanted = [name.as_str(), &port.to_string(), dbname, user];
    // A password has no NUL: see `keywords::admit`.
    let lines = file.lines().filter(|line| !line.starts_with('#') && !line.contains('\0'));
    let mut lines = lines.map(|line| line.trim_end_matches('\r'));
    lines.find_map(|line| wanted.into_iter().try_fold(line, behind)).and_then(password)
}

fn socket_host(dir: &Path) -> String {
    let default = DEFAULT_SOCKET_DIRS.iter().any(|default| Path::new(default) == dir);
    if default { "localhost".to_owned() } else { dir.display().to_string() }
}

/// The rest of `line` after its first field, if that field matches. A backslash escapes the next character. A colon that `wanted` has
/// at the same place needs no backslash.
fn behind<'l>(line: &'l str, wanted: &str) -> Option<&'l str> {
    if let Some(rest) = line.strip_prefix("*:") {
        return Some(rest);
    }
    let mut rest = line.chars();
    for character in wanted.chars() {
        let found = rest.next()?;
        let found = if found == '\\' { rest.next()? } else { found };
        if found != character {
            return None;
        }
    }
    rest.as_str().strip_prefix(':')
}

/// The last field, up to a colon. A backslash at its end is a part of it.
fn password(field: &str) -> Option<SecretString> {
    let mut characters = field.chars();
    let mut password = String::with_capacity(field.len());
    while let Some(character) = characters.next().filter(|character| *character != ':') {
        password.push(if character == '\\' { characters.next().unwrap_or(character) } else { character });
    }
    (!password.is_empty()).then(|| password.into())
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
    fn a_colon_that_the_host_has_too_needs_no_backslash() {
        check("::1:5432:shop:app:of that host\n*:*:*:*:last", &tcp("::1", 5432), Some("of that host"));
        check("::1:5432:shop:app:of another\n*:*:*:*:last", &tcp("::", 5432), Some("last"));
    }

    #[test]
    fn a_backslash_at_the_end_is_part_of_the_password() {
        check("*:*:*:*:a\\b\\", &tcp("db", 5432), Some("ab\\"));
    }

    #[test]
    fn a_line_with_the_character_that_ends_texts_in_c_matches_nothing() {
        check("db:5432:shop:app:a\0b\n*:*:*:*:last", &tcp("db", 5432), Some("last"));
    }

    #[test]
    fn a_short_line_matches_nothing_and_one_without_password_ends_the_search() {
        check("db:5432:shop\ndb:5432:shop:app\n*:*:*:*:last", &tcp("db", 5432), Some("last"));
        check("*:*:*:*:\n*:*:*:*:last\n", &tcp("db", 5432), None);
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

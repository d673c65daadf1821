//! The process's environment: variables, home directory, user name, the server's usual socket directory.
//!
//! In: the process, once, through [`Environment::of_process`]; tests write their own. Out: plain data. No other code reads a variable
//! or the user's name, so arguments and [`Environment`] decide everything.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory in which Linux packages of Postgres create their sockets.
const SOCKET_DIR: &str = "/var/run/postgresql";

/// The environment of the process. It has no `Debug`, since variables may contain passwords.
#[derive(Clone, Default)]
pub struct Environment {
    /// The variables. An empty one counts as not set.
    pub variables: BTreeMap<String, String>,
    /// The home directory, which may have libpq's files. `None`: there is none.
    pub home: Option<PathBuf>,
    /// The operating system's user name. It is the default user at Postgres.
    pub user: Option<String>,
    /// The directory of the server's Unix sockets, which is the default host. `None`: it does not exist.
    pub socket_dir: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process. In variables, bytes that are not UTF-8 are replaced.
    pub fn of_process() -> Self {
        let variables = env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect::<BTreeMap<_, _>>();
        let account = Account::of_effective_user();
        let set = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
        Self {
            home: set("HOME").map(PathBuf::from).or(account.home),
            user: account.name.or_else(|| set("USER")).or_else(|| set("LOGNAME")),
            socket_dir: Some(PathBuf::from(SOCKET_DIR)).filter(|dir| dir.is_dir()),
            variables,
        }
    }

    /// The value of a variable. `None`: it is not set, or empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The path of a file in the home directory.
    pub(super) fn in_home(&self, file: &str) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(file))
    }
}

/// A user's entry in the password database.
#[derive(Default)]
struct Account {
    name: Option<String>,
    home: Option<PathBuf>,
}

impl Account {
    /// Reads `/etc/passwd` only, since other directories of users need a C library. `$USER` and `$HOME` are used instead.
    fn of_effective_user() -> Self {
        let id = rustix::process::geteuid().as_raw();
        fs::read_to_string("/etc/passwd").ok().and_then(|text| Self::find(&text, id)).unwrap_or_default()
    }

    fn find(passwd: &str, id: u32) -> Option<Self> {
        passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find_map(|fields| match fields.as_slice() {
            [name, _, uid, _, _, home, ..] if uid.parse() == Ok(id) => Some(Self {
                name: Some((*name).to_owned()),
                home: Some(Path::new(home).to_owned()).filter(|home| home.is_absolute()),
            }),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_id() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\napp:x:1000:1000::/home/app:/bin/sh\n";
        let account = Account::find(passwd, 1000).unwrap();
        assert_eq!(account.name.as_deref(), Some("app"));
        assert_eq!(account.home.as_deref(), Some(Path::new("/home/app")));
        assert!(Account::find(passwd, 7).is_none());
    }

    #[test]
    fn an_empty_variable_counts_as_not_set() {
        let mut environment = Environment::default();
        environment.variables.insert("PGHOST".into(), String::new());
        assert_eq!(environment.variable("PGHOST"), None);
        environment.variables.insert("PGHOST".into(), "db".into());
        assert_eq!(environment.variable("PGHOST"), Some("db"));
    }
}

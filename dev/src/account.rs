//! Under which account Postgres runs: it refuses to run as root.
//!
//! In: who we are. Out: `None` (as ourselves) or the account to switch to, and whether that account can reach a
//! folder. It creates no account and loosens no folder that it did not make.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The names looked for, in this order.
const CANDIDATES: [&str; 2] = ["postgres", "nobody"];

/// An account other than root that Postgres runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account to switch to: `None` when we are not root.
    ///
    /// # Errors
    /// We are root, and neither `postgres` nor `nobody` exists.
    pub fn for_postgres() -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
        match CANDIDATES.iter().find_map(|name| Self::find(&passwd, name)) {
            Some(account) => Ok(Some(account)),
            None => bail!("Postgres does not run as root, and there is no account `postgres` or `nobody` to run it as"),
        }
    }

    fn find(passwd: &str, name: &str) -> Option<Self> {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(str::parse);
        Some(Self { uid: ids.next()?.ok()?, gid: ids.next()?.ok()? })
    }

    /// Whether the account can pass every folder down to `path`, this one included.
    pub fn can_reach(self, path: &Path) -> bool {
        path.ancestors().all(|folder| match fs::metadata(folder) {
            Ok(found) if found.uid() == self.uid => found.mode() & 0o100 != 0,
            Ok(found) => found.mode() & 0o001 != 0,
            // Not made yet; it will be by us.
            Err(_) => true,
        })
    }
}

/// Makes `command` run under the account, if there is one.
pub fn switch(command: &mut Command, account: Option<Account>) -> &mut Command {
    if let Some(Account { uid, gid }) = account {
        command.uid(uid).gid(gid);
    }
    command
}

/// Gives a file or folder to the account, if there is one.
///
/// # Errors
/// The owner cannot be changed.
pub fn give(path: &Path, account: Option<Account>) -> Result<()> {
    if let Some(Account { uid, gid }) = account {
        std::os::unix::fs::chown(path, Some(uid), Some(gid))
            .with_context(|| format!("cannot give {} to another account", path.display()))?;
    }
    Ok(())
}

/// Makes a folder and its missing parents, passable for every account whatever the umask is.
///
/// # Errors
/// It cannot be made.
pub fn make_passable(folder: &Path) -> Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    for part in missing.into_iter().rev() {
        match fs::create_dir(part) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => {
                made.with_context(|| format!("cannot make {}", part.display()))?;
                fs::set_permissions(part, fs::Permissions::from_mode(0o755))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/bash\npostgres2:x:1:2::/:/bin/sh\nnobody:x:65534:65533:n:/:/bin/sh\n";

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        assert_eq!(Account::find(PASSWD, "postgres"), None);
        assert_eq!(Account::find(PASSWD, "nobody"), Some(Account { uid: 65534, gid: 65533 }));
    }

    #[test]
    fn a_folder_below_a_closed_one_is_out_of_reach() {
        let closed = std::env::temp_dir().join(format!("walrelay-closed-{}", std::process::id()));
        make_passable(&closed.join("inner")).unwrap();
        let stranger = Account { uid: 4_000_000_000, gid: 4_000_000_000 };
        assert!(stranger.can_reach(&closed.join("inner/not-there-yet")));
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!stranger.can_reach(&closed.join("inner")));
        fs::remove_dir_all(&closed).unwrap();
    }
}

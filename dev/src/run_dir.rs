//! The folder and the ports of one running service.
//!
//! In: where services run. Out: an empty folder whose name says which process it belongs to, and free loopback ports.
//! Folders that a crashed machine left behind are swept when the next one is made.

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::{account, process};

/// Below the range that Linux takes for outgoing connections (32768 and up), so that the port is still free when a
/// service comes back to it.
const PORTS: std::ops::Range<u16> = 10_240..32_000;

/// By when the watchdog of a process that is gone has removed its folders. A hundred thousand files take it half a minute, which nobody
/// who starts meanwhile is to wait for.
const WATCHDOG: Duration = Duration::from_hours(1);

/// Makes the folder `kind-PID-N` in `run`.
///
/// # Errors
/// It cannot be made.
pub fn make(run: &Path, kind: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    sweep(run, kind);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = run.join(format!("{kind}-{}-{number}", std::process::id()));
    account::make_passable(&folder)?;
    Ok(folder)
}

/// A loopback port that nobody listens on, and that no process that still runs was given before: who has it may not listen
/// yet, or just not while it starts again.
///
/// # Errors
/// None of a hundred tried is free.
pub fn free_port() -> Result<u16> {
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok() && is_claimed(*port);
    let found = (0..100).map(|_| rand::random_range(PORTS)).find(free);
    found.with_context(|| format!("no free port on 127.0.0.1 between {} and {}", PORTS.start, PORTS.end))
}

/// Whether the port is this process' own from now on: suites that run side by side draw from the same ones. A file of its number has the
/// number of the process.
fn is_claimed(port: u16) -> bool {
    let file = claims().join(port.to_string());
    let owner = fs::read_to_string(&file).ok().and_then(|pid| pid.parse().ok());
    if owner.is_some_and(|pid| !process::is_alive(pid)) {
        drop(fs::remove_file(&file));
    }
    let claim = || -> io::Result<()> {
        fs::create_dir_all(claims())?;
        fs::File::create_new(&file)?.write_all(std::process::id().to_string().as_bytes())
    };
    claim().is_ok()
}

/// Where these files are.
fn claims() -> PathBuf {
    std::env::temp_dir().join(format!("walrelay-ports-{}", rustix::process::getuid().as_raw()))
}

/// Removes the folders of that kind whose process is gone, and its watchdog with it; best effort.
fn sweep(run: &Path, kind: &str) {
    let Ok(entries) = fs::read_dir(run) else { return };
    for entry in entries.flatten() {
        let is_gone = owner(&entry.file_name().to_string_lossy(), kind).is_some_and(|pid| !process::is_alive(pid));
        let age = entry.metadata().and_then(|it| it.modified()).ok().and_then(|changed| changed.elapsed().ok());
        if is_gone && age.is_some_and(|age| age > WATCHDOG) {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// The process that a folder's name tells, if we could have made it: `kind-PID-N`.
fn owner(name: &str, kind: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix(kind)?.strip_prefix('-')?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Copies a folder with everything as it is.
///
/// # Errors
/// `cp` says why not.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut copy = std::process::Command::new("cp");
    copy.args(["-a", "--reflink=auto", "--"]).arg(from).arg(to);
    process::finish(&mut copy).with_context(|| format!("cannot copy {}", from.display())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::time::SystemTime;

    #[test]
    fn a_folder_names_its_process() {
        assert_eq!(owner("kafka-4711-0", "kafka"), Some(4711));
        for others in ["kafka-4711-data", "kafka-tool-4711-0", "other-4711-0", "lost+found"] {
            assert_eq!(owner(others, "kafka"), None, "{others}");
        }
    }

    #[test]
    fn no_port_is_given_twice() {
        let ports: BTreeSet<u16> = (0..500).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 500);
    }

    #[test]
    fn a_port_is_its_process_own_as_long_as_that_runs() {
        let port = free_port().unwrap();
        assert!(!is_claimed(port));
        for (owner, is_free) in [(std::os::unix::process::parent_id(), false), (u32::MAX, true)] {
            fs::write(claims().join(port.to_string()), owner.to_string()).unwrap();
            assert_eq!(is_claimed(port), is_free, "{owner}");
        }
    }

    #[test]
    fn folders_of_processes_that_are_long_gone_are_swept_and_others_stay() {
        let run = std::env::temp_dir().join(format!("walrelay-sweep-{}", std::process::id()));
        let [dead, just_dead] = [0, 1].map(|number| run.join(format!("kafka-{}-{number}", u32::MAX)));
        account::make_passable(&dead).unwrap();
        account::make_passable(&just_dead).unwrap();
        fs::File::open(&dead).unwrap().set_modified(SystemTime::now() - 2 * WATCHDOG).unwrap();
        let first = make(&run, "kafka").unwrap();
        let second = make(&run, "kafka").unwrap();
        assert!(first.exists() && second.exists() && first != second);
        assert!(!dead.exists() && just_dead.exists());
        fs::remove_dir_all(&run).unwrap();
    }
}

//! The folder and the ports of one running service.
//!
//! In: where services run. Out: an empty folder whose name says which process it belongs to, and free loopback ports.
//! Folders that a crashed machine left behind are swept when the next one is made.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};

use crate::{account, process};

/// Below the range that Linux takes for outgoing connections (32768 and up), so that the port is still free when a
/// service comes back to it.
const PORTS: std::ops::Range<u16> = 10_240..32_000;

/// Ports that are remembered at most, so that enough are left to draw from.
const REMEMBERED: usize = 10_000;

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

/// A loopback port that nobody listens on, and that nobody in this process was given before: who has it may not listen
/// yet, or just not while it starts again.
///
/// # Errors
/// None of a hundred tried is free.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let free = |port: &u16| !given.contains(port) && TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let found = (0..100).map(|_| rand::random_range(PORTS)).find(free);
    match found {
        Some(port) => {
            if given.len() >= REMEMBERED {
                given.clear();
            }
            given.insert(port);
            Ok(port)
        }
        None => bail!("no free port on 127.0.0.1 between {} and {}", PORTS.start, PORTS.end),
    }
}

/// Removes the folders of that kind whose process is gone; best effort, its watchdog may be at it just now.
fn sweep(run: &Path, kind: &str) {
    let Ok(entries) = fs::read_dir(run) else { return };
    for entry in entries.flatten() {
        if owner(&entry.file_name().to_string_lossy(), kind).is_some_and(|pid| !process::is_alive(pid)) {
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
    let output = copy.output().context("cannot run cp")?;
    if !output.status.success() {
        bail!("cannot copy {}: {}", from.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn folders_of_gone_processes_are_swept_and_ours_stay() {
        let run = std::env::temp_dir().join(format!("walrelay-sweep-{}", std::process::id()));
        let dead = run.join(format!("kafka-{}-0", u32::MAX));
        account::make_passable(&dead).unwrap();
        let first = make(&run, "kafka").unwrap();
        let second = make(&run, "kafka").unwrap();
        assert!(first.exists() && second.exists() && first != second);
        assert!(!dead.exists());
        fs::remove_dir_all(&run).unwrap();
    }
}

//! A server of our own: a process in a folder that goes with it, and its log.
//!
//! In: the command that starts it. Out: a server that is stopped, killed, suspended and started again on the same folder. It knows no
//! protocol: the caller says when it answers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use rustix::process::Signal;

use crate::process::{self, Guarded, LastWill};

/// The pause between two checks whether a server answers.
const LOOK: Duration = Duration::from_millis(20);

/// Lines of the log in the message of a server that does not start.
const TAIL: usize = 20;

/// One server; it ends, and its folder is removed, when dropped.
#[derive(Debug)]
pub struct Service {
    name: &'static str,
    folder: PathBuf,
    process: Option<Guarded>,
}

impl Service {
    /// A server with this folder, which does not run yet.
    pub fn new(name: &'static str, folder: PathBuf) -> Self {
        Self { name, folder, process: None }
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file with what it prints.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        process::tail(&self.log(), TAIL)
    }

    /// Its process id, if it was started.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Guarded::pid)
    }

    /// Starts it unless it was started already. `will`: see [`LastWill`]; the folder is removed in any case.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn launch(&mut self, command: &mut Command, mut will: LastWill) -> Result<()> {
        if self.process.is_none() {
            let log = File::options().create(true).append(true).open(self.log())?;
            command.stdout(log.try_clone()?).stderr(log);
            will.remove.push(self.folder.clone());
            self.process = Some(Guarded::spawn(self.name, command, &will)?);
        }
        Ok(())
    }

    /// Waits until it answers.
    ///
    /// # Errors
    /// It has ended, or does not answer within `limit`; the message carries the end of its log.
    pub fn wait_until(&mut self, limit: Duration, mut answers: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !answers() {
            if self.exited()?.is_some() || Instant::now() >= deadline {
                self.process = None;
                bail!("{} does not start:\n{}", self.name, self.tail());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The exit code, if it has ended by itself.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn exited(&mut self) -> Result<Option<i32>> {
        let status = self.process.as_mut().map(Guarded::exited).transpose()?.flatten();
        Ok(status.map(process::code))
    }

    /// Asks it to end by this signal, and waits for its end. Returns whether it ran.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub fn stop(&mut self, signal: Signal, limit: Duration) -> Result<bool> {
        let Some(process) = self.process.as_mut() else { return Ok(false) };
        process.signal(signal)?;
        process.wait(limit)?;
        self.process = None;
        Ok(true)
    }

    /// Kills it and its children. Returns whether it ran.
    ///
    /// # Errors
    /// One of them cannot be ended.
    pub fn kill(&mut self) -> Result<bool> {
        let Some(mut process) = self.process.take() else { return Ok(false) };
        process.kill_tree()?;
        Ok(true)
    }

    /// Sends a signal to it alone; nothing happens where it does not run.
    ///
    /// # Errors
    /// The signal may not be sent.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.signal(signal))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.process = None;
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// What all tests of a process share: started by the first that asks; the same error for everybody who asks.
pub(crate) fn shared<T>(
    place: &'static OnceLock<Result<T, String>>,
    start: impl FnOnce() -> Result<T>,
) -> Result<&'static T> {
    let shared = place.get_or_init(|| start().map_err(|error| format!("{error:#}")));
    shared.as_ref().map_err(|error| anyhow!("{error}"))
}

//! The relay as its users run it: a process.
//!
//! In: the binary, its arguments and environment. Out: its state over HTTP, its exit code, its log, what CPU and memory
//! it took. It is never linked, so that what is tested is what is shipped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use crate::process::{self, Guarded, LastWill, Memory};
use crate::{account, http, provision, run_dir};

/// Names the binary to run.
pub const BINARY_VARIABLE: &str = "WALRELAY_BIN";

/// The binary to run: `WALRELAY_BIN` if that is set, else the one given.
pub fn binary(given: impl Into<PathBuf>) -> PathBuf {
    std::env::var_os(BINARY_VARIABLE).filter(|path| !path.is_empty()).map_or_else(|| given.into(), PathBuf::from)
}

/// The binary for tests: `WALRELAY_BIN`, or the one that cargo built beside them.
///
/// # Panics
/// There is none, or a source is newer: cargo builds it with tests of its own package, and not with these alone.
pub fn built() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let test = std::env::current_exe().unwrap_or_default();
        let beside = test.ancestors().nth(2).map(|profile| profile.join("walrelay")).unwrap_or_default();
        let binary = binary(&beside);
        let is_old = binary == beside && modified(&binary) < modified(&crate::repository().join("src"));
        assert!(!is_old, "{} is not there, or older than src/: cargo build --workspace --bins", binary.display());
        binary
    };
    BUILT.get_or_init(find).clone()
}

/// When a file, or the newest file below a folder, was changed last.
fn modified(path: &Path) -> Option<SystemTime> {
    match fs::read_dir(path) {
        Ok(entries) => entries.filter_map(|entry| modified(&entry.ok()?.path())).max(),
        Err(_) => fs::metadata(path).ok()?.modified().ok(),
    }
}

/// Runs a command of the binary to its end, such as `setup --apply`.
///
/// # Errors
/// It cannot be started. A failure of its own is in the output.
pub fn run<A: AsRef<std::ffi::OsStr>>(binary: &Path, arguments: &[A]) -> Result<Output> {
    let mut command = Command::new(binary);
    command.args(arguments).stdin(Stdio::null());
    command.output().with_context(|| format!("cannot run {}", binary.display()))
}

/// Runs a command of the binary to its end and wants exit code 0.
///
/// # Errors
/// It cannot be started, or fails; the message carries what it said.
pub fn run_well<A: AsRef<std::ffi::OsStr>>(binary: &Path, arguments: &[A]) -> Result<String> {
    process::finish(Command::new(binary).args(arguments).stdin(Stdio::null()))
}

/// A relay: running, or ended and ready to be started again with the same arguments.
#[derive(Debug)]
pub struct Relay {
    binary: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    folder: PathBuf,
    http_port: u16,
    process: Option<Guarded>,
}

/// How a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code; 128 plus the signal when it was killed by one.
    pub code: i32,
    /// CPU time over its life.
    pub cpu: Duration,
    /// From the signal to the end.
    pub took: Duration,
}

/// What a running relay has taken until now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// User and system time since its start.
    pub cpu: Duration,
    /// Resident memory.
    pub memory: Memory,
}

impl Relay {
    /// Starts `binary` with `arguments` (`run`, …) and with `--http` on a free port, which must not be among them.
    ///
    /// # Errors
    /// It cannot be started. That it may end at once with an error shows in [`Relay::wait_streaming`].
    pub fn start<A, K, V>(binary: &Path, arguments: &[A], environment: &[(K, V)]) -> Result<Self>
    where
        A: Into<OsString> + Clone,
        K: Into<OsString> + Clone,
        V: Into<OsString> + Clone,
    {
        let run = provision::dev_dir().join("run");
        account::make_passable(&run)?;
        let mut relay = Self {
            binary: binary.to_owned(),
            arguments: arguments.iter().cloned().map(Into::into).collect(),
            environment: environment.iter().cloned().map(|(key, value)| (key.into(), value.into())).collect(),
            folder: run_dir::make(&run, "relay")?,
            http_port: run_dir::free_port()?,
            process: None,
        };
        relay.start_again()?;
        Ok(relay)
    }

    /// Starts it once more after its end; nothing happens while it runs.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_again(&mut self) -> Result<()> {
        if let Some(process) = self.process.as_mut()
            && process.exited()?.is_none()
        {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let stdout = File::options().create(true).append(true).open(self.folder.join("stdout"))?;
        let mut command = Command::new(&self.binary);
        command
            .args(&self.arguments)
            .arg(format!("--http=127.0.0.1:{}", self.http_port))
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(log);
        let will = LastWill { ask_first: None, remove: vec![self.folder.clone()] };
        self.process = Some(Guarded::spawn("the relay", &mut command, &will)?);
        Ok(())
    }

    /// Starts it once more after its end by another program, such as another version, with the same arguments.
    ///
    /// # Errors
    /// As [`Relay::start_again`].
    pub fn start_again_as(&mut self, binary: &Path) -> Result<()> {
        binary.clone_into(&mut self.binary);
        self.start_again()
    }

    /// Waits until `/readyz` says that it streams, and says how long that took.
    ///
    /// # Errors
    /// It ends, or is not ready in time; the message carries the end of its log.
    pub fn wait_streaming(&mut self, limit: Duration) -> Result<Duration> {
        let started = Instant::now();
        loop {
            let answer = self.get("/readyz");
            if answer.as_ref().is_ok_and(|answer| answer.status == 200) {
                return Ok(started.elapsed());
            }
            if let Some(exit) = self.exited()? {
                bail!("the relay ended with {exit} before it streamed:\n{}", self.log_tail());
            }
            if started.elapsed() >= limit {
                let reason = answer.map_or_else(|error| format!("{error:#}"), |answer| answer.body);
                bail!("the relay does not stream after {limit:?} ({reason}):\n{}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks for one of its pages.
    ///
    /// # Errors
    /// It does not answer.
    pub fn get(&self, path: &str) -> Result<http::Answer> {
        http::get(self.http_port, path)
    }

    /// Its `/status`.
    ///
    /// # Errors
    /// It does not answer, or not with JSON.
    pub fn status(&self) -> Result<Value> {
        let answer = self.get("/status")?;
        serde_json::from_str(&answer.body).with_context(|| format!("/status is no JSON: {}", answer.body))
    }

    /// The records in flight by `/status`: sent and not acknowledged, with exactly once not committed. 0 if it does not answer.
    pub fn in_flight(&self) -> u64 {
        let count = || self.status().ok()?.get("in_flight_records")?.as_u64();
        count().unwrap_or(0)
    }

    /// The sum of a metric over its labels; 0 when it is not there.
    ///
    /// # Errors
    /// It does not answer.
    pub fn metric(&self, name: &str) -> Result<f64> {
        Ok(sum_metric(&self.get("/metrics")?.body, name))
    }

    /// The port of its HTTP pages.
    pub fn http_port(&self) -> u16 {
        self.http_port
    }

    /// Its process id; `None` once its end has been seen.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Guarded::pid)
    }

    /// The exit code if it has ended by itself.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn exited(&mut self) -> Result<Option<i32>> {
        let status = self.process.as_mut().map(Guarded::exited).transpose()?.flatten();
        Ok(status.map(process::code))
    }

    /// Waits until it ends by itself and gives the exit code.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub fn wait_exit(&mut self, limit: Duration) -> Result<i32> {
        let Some(process) = self.process.as_mut() else { bail!("the relay has been stopped already") };
        Ok(process::code(process.wait(limit)?))
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// It cannot be ended.
    pub fn kill9(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::KILL)?;
            process.wait(Duration::from_secs(10))?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// It is not running, or does not end within `limit` (it is then killed).
    pub fn terminate(&mut self, limit: Duration) -> Result<Exit> {
        let Some(mut process) = self.process.take() else { bail!("the relay has been stopped already") };
        let started = Instant::now();
        process.signal(Signal::TERM)?;
        let status = process.wait(limit).with_context(|| self.log_tail())?;
        let took = started.elapsed();
        let cpu = process.cpu()?;
        Ok(Exit { code: process::code(status), cpu, took })
    }

    /// Sends it a signal: STOP and CONT make it hang and go on.
    ///
    /// # Errors
    /// It may not be sent.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.signal(signal))
    }

    /// What it has taken until now.
    ///
    /// # Errors
    /// It does not run.
    pub fn usage(&self) -> Result<Usage> {
        let Some(process) = &self.process else { bail!("the relay does not run") };
        Ok(Usage { cpu: process::cpu_time(process.pid())?, memory: process::memory_kib(process.pid())? })
    }

    /// Where its stderr goes, over all its starts.
    pub fn log_path(&self) -> PathBuf {
        self.folder.join("stderr")
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// What it has written to stdout.
    pub fn stdout(&self) -> String {
        let bytes = fs::read(self.folder.join("stdout")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_tail(&self) -> String {
        process::tail(&self.log_path(), 15)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.process = None;
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Adds up a metric's samples in the Prometheus text format.
fn sum_metric(text: &str, name: &str) -> f64 {
    let samples = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = if rest.starts_with('{') { rest.rsplit_once('}')?.1 } else { rest };
        value.strip_prefix(' ')?.split(' ').next()?.parse::<f64>().ok()
    });
    // A sum of none is -0.
    samples.fold(0.0, std::ops::Add::add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_only() {
        let text =
            "# TYPE a_total counter\na_total{topic=\"x y\"} 2\na_total{topic=\"z\"} 3 1700000000\na_total_more 9\nb 1";
        assert!((sum_metric(text, "a_total") - 5.0).abs() < f64::EPSILON);
        assert!((sum_metric(text, "b") - 1.0).abs() < f64::EPSILON);
        assert!(sum_metric(text, "c").abs() < f64::EPSILON);
    }

    #[test]
    fn a_relay_that_ends_at_once_is_reported_with_its_words() {
        let arguments = ["-c", "echo 'error: no such slot' >&2; exit 2"];
        let mut relay = Relay::start(Path::new("/bin/sh"), &arguments, &[] as &[(&str, &str)]).unwrap();
        let error = relay.wait_streaming(Duration::from_secs(10)).unwrap_err().to_string();
        assert!(error.contains("ended with 2") && error.contains("no such slot"), "{error}");
    }

    #[test]
    fn a_stop_gives_code_and_cpu_and_the_relay_can_start_again() {
        let arguments = ["-c", "trap 'exit 7' TERM; echo up >&2; while :; do :; done"];
        let mut relay = Relay::start(Path::new("/bin/sh"), &arguments, &[("A", "b")]).unwrap();
        for start in 1..=2 {
            relay.start_again().unwrap();
            process::wait_until(Duration::from_secs(5), "up", || Ok(relay.log().matches("up").count() == start))
                .unwrap();
            process::wait_until(Duration::from_secs(5), "CPU time", || Ok(relay.usage()?.cpu > Duration::ZERO))
                .unwrap();
            let exit = relay.terminate(Duration::from_secs(5)).unwrap();
            assert_eq!(exit.code, 7);
            assert!(exit.cpu > Duration::ZERO);
        }
        assert!(relay.terminate(Duration::from_secs(5)).is_err());
    }
}

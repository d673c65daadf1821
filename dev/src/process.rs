//! Child processes that never outlive us.
//!
//! In: a [`Command`]. Out: a [`Guarded`] child that is signalled, waited for and measured by its pid. Every child gets
//! a watchdog: a `sh` in a process group of its own that reads from a pipe whose other end only we hold. When we end,
//! however that happens (panic, Ctrl-C, SIGKILL), the pipe closes, and the watchdog ends the child, its children, and
//! removes the child's folders.
//!
//! It does not restart anything and knows no service.
//!
//! Invariant: a child is only ever signalled before it was reaped, so a pid is never somebody else's.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// The script of the watchdog. Its arguments are the pid, the first signal, and the folders to remove.
///
/// The first signal lets Postgres release its shared memory; what is left after 5 s is killed. The children are
/// noted first, because they are nobody's once their parent is gone.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP QUIT
read -r word && [ "$word" = done ] && exit 0
pid=$1 signal=$2
shift 2
children=$(cat /proc/"$pid"/task/*/children 2>/dev/null)
kill -CONT "$pid" 2>/dev/null
kill -"$signal" "$pid" 2>/dev/null
tries=0
while [ "$tries" -lt 50 ] && read -r _ _ state _ 2>/dev/null </proc/"$pid"/stat && [ "$state" != Z ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -KILL "$pid" $children 2>/dev/null
[ "$#" -gt 0 ] && rm -rf -- "$@"
"#;

/// The pause between two checks of a condition.
const POLL: Duration = Duration::from_millis(5);

/// A child process with a watchdog.
#[derive(Debug)]
pub struct Guarded {
    name: String,
    child: Child,
    pid: Pid,
    status: Option<ExitStatus>,
    cpu: Duration,
    watchdog: Watchdog,
}

/// What the watchdog does with the child when this process ends.
#[derive(Debug, Clone, Default)]
pub struct LastWill {
    /// The signal sent first; SIGKILL follows after 5 s.
    pub ask_first: Option<Signal>,
    /// The folders removed when the child is gone.
    pub remove: Vec<PathBuf>,
}

impl Guarded {
    /// Starts `command` in a process group of its own, so that a terminal's Ctrl-C reaches only us.
    ///
    /// # Errors
    /// The program cannot be started; the message names it.
    pub fn spawn(name: impl Into<String>, command: &mut Command, will: &LastWill) -> Result<Self> {
        let name = name.into();
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", command.get_program().display()))?;
        let pid = pid_of(&child)?;
        let watchdog = Watchdog::start(pid, will)?;
        Ok(Self { name, child, pid, status: None, cpu: Duration::ZERO, watchdog })
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal; nothing happens when the child has ended already.
    ///
    /// # Errors
    /// The signal may not be sent.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.exited()?.is_some() {
            return Ok(());
        }
        rustix::process::kill_process(self.pid, signal)
            .with_context(|| format!("cannot send {signal:?} to {} ({})", self.name, self.pid()))
    }

    /// The exit status if it has ended, without waiting.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            let ended = rustix::process::waitid(WaitId::Pid(self.pid), look);
            if ended.with_context(|| format!("cannot look at {}", self.name))?.is_some() {
                // A zombie still has its CPU time; after `wait` it is gone.
                self.cpu = cpu_time(self.pid())?;
                self.status = Some(self.child.wait()?);
            }
        }
        Ok(self.status)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It still runs after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} ({}) still runs after {limit:?}", self.name, self.pid());
            }
            thread::sleep(POLL);
        }
    }

    /// The CPU time it has taken: until now, or in all when it has ended.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn cpu(&mut self) -> Result<Duration> {
        match self.exited()? {
            Some(_) => Ok(self.cpu),
            None => cpu_time(self.pid()),
        }
    }

    /// SIGKILL for the child and for every process it started itself, then waits until all of them are gone.
    ///
    /// # Errors
    /// One of them cannot be ended.
    pub fn kill_tree(&mut self) -> Result<ExitStatus> {
        let children = children_of(self.pid());
        self.signal(Signal::KILL)?;
        for child in &children {
            // Most end by themselves when they see that the parent is gone.
            signal_stranger(*child, Signal::KILL);
        }
        let status = self.wait(Duration::from_secs(10))?;
        wait_until(Duration::from_secs(10), "the children to end", || Ok(children.iter().all(|pid| !is_alive(*pid))))?;
        Ok(status)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if matches!(self.exited(), Ok(None)) {
            // SIGKILL also ends a stopped process.
            drop(self.kill_tree());
        }
        self.watchdog.dismiss();
    }
}

/// The process that ends the child if this process ends first.
#[derive(Debug)]
struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    fn start(pid: Pid, will: &LastWill) -> Result<Self> {
        let first = will.ask_first.unwrap_or(Signal::KILL);
        let mut child = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(pid.as_raw_nonzero().to_string())
            .arg(first.as_raw().to_string())
            .args(&will.remove)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .current_dir("/")
            .spawn()
            .context("cannot start sh as watchdog")?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Ends the watchdog: the child has been reaped by us, and another process may soon get its pid.
    fn dismiss(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            drop(pipe.write_all(b"done\n"));
        }
        drop(self.child.wait());
    }
}

/// CPU time (user and system) that a process has taken, its ended children not included; also of a zombie.
///
/// # Errors
/// There is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = stat_fields(pid).with_context(|| format!("no process {pid}"))?;
    let ticks = |index: usize| stat.get(index).and_then(|field| field.parse::<u64>().ok());
    // Fields 14 and 15 of proc(5); the first field after the name is the third.
    let (user, system) = ticks(11).zip(ticks(12)).ok_or_else(|| anyhow!("/proc/{pid}/stat is too short"))?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis((user + system) * 1000 / per_second))
}

/// The most memory the process ever held, in KiB (`VmHWM`), and what it holds now (`VmRSS`).
///
/// # Errors
/// There is no such process, or it is a zombie.
pub fn memory_kib(pid: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().ok()
    };
    let peak = field("VmHWM").ok_or_else(|| anyhow!("process {pid} holds no memory"))?;
    let now = field("VmRSS").ok_or_else(|| anyhow!("process {pid} holds no memory"))?;
    Ok(Memory { peak, now })
}

/// How many files, sockets and pipes a process has open.
///
/// # Errors
/// There is no such process, or it is somebody else's.
pub fn files(pid: u32) -> Result<u64> {
    Ok(u64::try_from(fs::read_dir(format!("/proc/{pid}/fd"))?.count())?)
}

/// Resident memory of a process, in KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// The most it ever was.
    pub peak: u64,
    /// What it is now.
    pub now: u64,
}

/// The processes whose parent is `pid`.
pub fn children_of(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = pid.to_string();
    pids.filter(|child| stat_fields(*child).is_some_and(|stat| stat.get(1) == Some(&parent))).collect()
}

/// Whether a process runs. A zombie does not: in a container whose init reaps late it stays for long.
pub fn is_alive(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|stat| !matches!(stat.first().map(String::as_str), Some("Z" | "X")))
}

/// Signals a process that is not our own child; one that has ended meanwhile is fine.
pub fn signal_stranger(pid: u32, signal: Signal) {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = raw {
        // ESRCH: it has ended by itself.
        let _ended_meanwhile = rustix::process::kill_process(pid, signal).is_err();
    }
}

/// The fields of `/proc/PID/stat` after the name: state, parent, …
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn pid_of(child: &Child) -> Result<Pid> {
    let raw = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    raw.ok_or_else(|| anyhow!("process id {} is out of range", child.id()))
}

/// Runs a command to its end. Returns what it said, on both of its outputs.
///
/// # Errors
/// It cannot be started, or fails; the message carries what it said.
pub fn finish(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    anyhow::ensure!(output.status.success(), "{program} ended with {}: {}", code(output.status), said.trim());
    Ok(said)
}

/// Checks a condition again and again until it holds.
///
/// # Errors
/// The condition's own error, or that it does not hold after `limit`; the message names `what`.
pub fn wait_until(limit: Duration, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !holds()? {
        if Instant::now() >= deadline {
            bail!("waited {limit:?} in vain for {what}");
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// The last lines of a log file, for an error message; empty when there is none.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}

/// How a process ended, as a shell would say it: its code, or 128 plus the signal.
pub fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Guarded {
        Guarded::spawn("sleeper", Command::new("sleep").arg("60"), &LastWill::default()).unwrap()
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let child = sleeper();
        let pid = child.pid();
        assert!(is_alive(pid));
        drop(child);
        assert!(!is_alive(pid));
    }

    #[test]
    fn kill_tree_ends_grandchildren_too() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & wait"]);
        let mut child = Guarded::spawn("shell", &mut command, &LastWill::default()).unwrap();
        wait_until(Duration::from_secs(5), "the grandchild", || Ok(!children_of(child.pid()).is_empty())).unwrap();
        let grandchildren = children_of(child.pid());
        assert_eq!(code(child.kill_tree().unwrap()), 137);
        assert!(grandchildren.iter().all(|pid| !is_alive(*pid)));
    }

    #[test]
    fn a_stopped_child_can_still_be_dropped() {
        let mut child = sleeper();
        child.signal(Signal::STOP).unwrap();
        let pid = child.pid();
        drop(child);
        assert!(!is_alive(pid));
    }

    #[test]
    fn cpu_time_is_known_after_the_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "n=0; while [ $n -lt 200000 ]; do n=$((n + 1)); done"]);
        let mut child = Guarded::spawn("counter", &mut command, &LastWill::default()).unwrap();
        assert!(child.wait(Duration::from_mins(1)).unwrap().success());
        assert!(child.cpu().unwrap() > Duration::ZERO);
    }

    #[test]
    fn own_memory_is_known_and_a_missing_process_is_not() {
        let memory = memory_kib(std::process::id()).unwrap();
        assert!(memory.peak >= memory.now && memory.now > 0);
        assert!(memory_kib(u32::MAX).is_err());
        assert!(!is_alive(u32::MAX));
    }
}

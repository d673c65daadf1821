//! The program and who reads its stderr: a reader that goes away, one that reads late, one that never reads. And what a crash leaves.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use rustix::process::{Pid, Signal, kill_process};

/// The program with this as its stderr.
fn with_stderr(arguments: &[&str], stderr: PipeWriter) -> Running {
    let mut command = Command::new(cargo_bin("walrelay"));
    command.env_clear().args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    Running(command.spawn().unwrap())
}

/// It is killed with the test.
struct Running(Child);

impl Running {
    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it still runs");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A relay that logs much, and can reach nobody.
const TALKATIVE: [&str; 7] =
    ["run", "--source", "postgres://u@127.0.0.1:1/d", "--brokers", "127.0.0.1:1", "--log-level", "trace"];

/// Its address for HTTP, on a port that is free.
fn talkative(stderr: PipeWriter) -> (Running, String) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    (with_stderr(&[&TALKATIVE[..], &["--http", &address]].concat(), stderr), address)
}

/// Asks until there is an answer with 200.
fn wait_alive(address: &str) {
    let ask = || -> std::io::Result<String> {
        let mut client = TcpStream::connect(address)?;
        client.set_read_timeout(Some(Duration::from_secs(2)))?;
        client.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        client.read_to_string(&mut answer).map(|_| answer)
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
        assert!(Instant::now() < deadline, "/livez does not answer");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_reader_of_stderr_that_goes_away_ends_no_relay() {
    let (reader, writer) = std::io::pipe().unwrap();
    let (mut relay, address) = talkative(writer);
    let mut lines = BufReader::new(reader).lines();
    assert!(lines.next().unwrap().is_ok());
    drop(lines);
    // Each answer is logged.
    for _ in 0..20 {
        wait_alive(&address);
    }
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait().code(), Some(0));
}

#[test]
fn a_reader_that_is_gone_changes_no_exit_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut wrong = with_stderr(&["run", "--no-such-flag"], writer.try_clone().unwrap());
    assert_eq!(wrong.wait().code(), Some(64));
    let mut help = Command::new(cargo_bin("walrelay"));
    let help = help.env_clear().arg("--help").stdout(writer).output().unwrap();
    assert_eq!((help.status.code(), String::from_utf8(help.stderr).unwrap()), (Some(0), String::new()));
}

/// A pipe that takes no byte more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(b"\n").is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

#[test]
fn a_full_stderr_blocks_neither_http_nor_signals() {
    let (_reader, writer) = full_pipe();
    let (mut relay, address) = talkative(writer);
    wait_alive(&address);
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait().code(), Some(0));
}

#[test]
fn the_error_is_seen_by_who_reads_late_and_waits_for_nobody_long() {
    let (_nobody, writer) = full_pipe();
    let mut unread = with_stderr(&["run", "--no-such-flag"], writer);
    assert_eq!(unread.wait().code(), Some(64));
    let (mut reader, writer) = full_pipe();
    let mut read = with_stderr(&["run", "--no-such-flag"], writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(text.trim_start().starts_with("error: "), "{text}");
    assert_eq!(read.wait().code(), Some(64));
}

#[test]
fn a_relay_that_crashes_leaves_no_core_with_its_passwords() {
    let folder = tempfile::tempdir().unwrap();
    let program = cargo_bin("walrelay");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]).arg(program).args(TALKATIVE).args(["--http", "off"]);
    command.env_clear().current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut relay = Running(command.spawn().unwrap());
    drop(command);
    // It is past its first steps.
    reader.read_exact(&mut [0; 1]).unwrap();
    relay.signal(Signal::ABORT);
    let status = relay.wait();
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false));
}

//! Reads secrets: a text, a file, or the output of a program.
//!
//! In: what a setting says of it. Out: the secret, read again each time it is asked for, so that whoever changes it need not restart
//! anything. It contacts nobody, and knows no setting.
//!
//! Invariants: no secret shows in `Debug`, `Display` or an error; a program has [`COMMAND_TIMEOUT`], and does not outlive it, and gets no
//! variable in which the relay itself is given a secret.

use crate::setting_text::shown_path;
use rustix::process::{Pid, Signal};
use secrecy::{ExposeSecret, SecretString};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a program may take.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long credentials may be wrong that were right before, at Postgres as at a destination. The supervisor also waits for so long if Postgres
/// refuses anything else to a relay that has streamed. Whoever replaces them changes server and
/// files one after the other; and a secret reaches a container within a minute or two (Kubernetes: the kubelet's sync period and its cache).
pub const CREDENTIALS_WITHIN: Duration = Duration::from_mins(5);

/// A program's output is used again for so long, unless the server refused it: a look at the slot each 10 s should not run a
/// program each time. Tokens of clouds last 15 minutes and more.
const KEPT: Duration = Duration::from_mins(1);

/// The wait for a failed program's standard error: a process that it started may keep that open.
const COMPLAINT_WITHIN: Duration = Duration::from_secs(1);

/// The time between two looks whether a program has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The longest output of a program, in bytes. No token is longer.
const LARGEST_OUTPUT: u64 = 64 * 1024;

/// The longest excerpt of a program's standard error in a message, in characters.
const LONGEST_COMPLAINT: usize = 200;

/// The source from which a secret is read.
#[derive(Debug, Clone)]
pub enum Secret {
    /// The secret itself.
    Text(SecretString),
    /// In a file, without the newline at its end.
    File(PathBuf),
    /// In the first line that a program prints.
    Command(SecretCommand),
}

/// A program with its arguments, which is run without a shell.
#[derive(Debug, Clone)]
pub struct SecretCommand {
    words: Vec<String>,
    kept: Arc<Mutex<Option<CachedSecret>>>,
}

/// A secret that a program printed a moment ago.
#[derive(Debug, Clone)]
struct CachedSecret {
    since: Instant,
    secret: SecretString,
    /// It was used again since.
    reused: bool,
}

/// The reason for which a secret cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", shown_path(path))]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        reason: String,
    },
    /// A command line that cannot be parsed.
    #[error("the command is empty, or a quote in it is not closed")]
    Malformed,
    /// The program cannot be started.
    #[error("cannot start {program}: {reason}")]
    Start {
        /// The program.
        program: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The program took too long, and was ended.
    #[error("{program} took longer than {} s", COMMAND_TIMEOUT.as_secs())]
    Hung {
        /// The program.
        program: String,
    },
    /// The program failed.
    #[error("{program} failed with {status}{complaint}")]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: String,
        /// The beginning of its standard error, after a colon; empty if there was none.
        complaint: String,
    },
    /// The program printed nothing.
    #[error("{program} printed nothing")]
    Empty {
        /// The program.
        program: String,
    },
}

impl Secret {
    /// A value that may say `@FILE`; `@@` begins a text with an `@`.
    pub fn of_value(text: &str) -> Self {
        match text.strip_prefix('@') {
            None => Self::Text(text.into()),
            Some(literal) if literal.starts_with('@') => Self::Text(literal.into()),
            Some(file) => Self::File(file.into()),
        }
    }

    /// Reads its present value.
    ///
    /// # Errors
    /// The file cannot be read; the program fails, takes too long, or prints nothing.
    pub fn read(&self) -> Result<SecretString, SecretError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => read_file(path.clone()),
            Self::Command(command) => command.first_line(),
        }
    }

    /// The value that was read last is not good (any more): what is kept of it goes. Whether another one may be had at once, since it
    /// was one that had been kept.
    pub fn refused(&self) -> bool {
        match self {
            Self::Text(_) | Self::File(_) => false,
            Self::Command(command) => command.kept().take().is_some_and(|kept| kept.reused),
        }
    }
}

fn read_file(path: PathBuf) -> Result<SecretString, SecretError> {
    match fs::read_to_string(&path) {
        Ok(text) => {
            let line = text.strip_suffix('\n').unwrap_or(&text);
            Ok(line.strip_suffix('\r').unwrap_or(line).into())
        }
        Err(error) => Err(SecretError::File { path, reason: error.to_string() }),
    }
}

impl SecretCommand {
    /// Takes a command line apart as a shell would, quotes and backslashes included; nothing in it is expanded.
    ///
    /// # Errors
    /// It is empty, or a quote is not closed.
    pub fn parse(line: &str) -> Result<Self, SecretError> {
        let words = shlex::split(line).filter(|words| !words.is_empty()).ok_or(SecretError::Malformed)?;
        Ok(Self { words, kept: Arc::default() })
    }

    /// The first line that it prints, or printed a moment ago.
    fn first_line(&self) -> Result<SecretString, SecretError> {
        if let Some(kept) = self.kept().as_mut().filter(|kept| kept.since.elapsed() < KEPT) {
            kept.reused = true;
            return Ok(kept.secret.clone());
        }
        let output = self.output()?;
        let line = output.expose_secret().lines().next().unwrap_or_default().to_owned();
        if line.is_empty() {
            return Err(SecretError::Empty { program: self.program() });
        }
        let secret = SecretString::from(line);
        *self.kept() = Some(CachedSecret { since: Instant::now(), secret: secret.clone(), reused: false });
        Ok(secret)
    }

    /// Everything that it prints.
    ///
    /// # Errors
    /// It cannot be started, fails, or takes too long.
    pub fn output(&self) -> Result<SecretString, SecretError> {
        let program = self.program();
        let mut command = Command::new(&program);
        command.args(self.words.iter().skip(1)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, _) in std::env::vars_os().filter(|(name, _)| may_hold_own_secret(name)) {
            command.env_remove(name);
        }
        // A group of its own: what it starts ends with it.
        let spawned = command.process_group(0).spawn();
        let mut child =
            spawned.map_err(|error| SecretError::Start { program: program.clone(), reason: error.to_string() })?;
        let (printed, said) = (drain(child.stdout.take()), drain(child.stderr.take()));
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let hung = || SecretError::Hung { program: program.clone() };
        let status = wait(&mut child, deadline).ok_or_else(hung)?;
        if !status.success() {
            let complaint = said.recv_timeout(COMPLAINT_WITHIN).map(|said| complaint(&said)).unwrap_or_default();
            return Err(SecretError::Failed { program, status: status.to_string(), complaint });
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let printed = printed.recv_timeout(left).map_err(|_| hung())?;
        Ok(String::from_utf8_lossy(&printed).into_owned().into())
    }

    fn program(&self) -> String {
        self.words.first().cloned().unwrap_or_default()
    }

    fn kept(&self) -> MutexGuard<'_, Option<CachedSecret>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a variable is one of the relay's settings, some of which are secrets. A program that prints one secret must not get the others.
fn may_hold_own_secret(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"WALRELAY_") || name == "DATABASE_URL" || name == "PGPASSWORD"
}

/// How it ended; `None`: not in time, and it was killed with all that it had started.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK),
            Ok(None) | Err(_) => {
                // Whatever of it is gone already needs no signal.
                let _ended = rustix::process::kill_process_group(Pid::from_child(child), Signal::KILL);
                drop(child.wait());
                return None;
            }
        }
    }
}

/// Reads a pipe to its end beside us, so that a full one stops nobody.
fn drain(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (done, all) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map(|pipe| pipe.take(LARGEST_OUTPUT).read_to_end(&mut bytes));
        if !matches!(read, Some(Err(_))) {
            // Nobody waits for it after the timeout.
            drop(done.send(bytes));
        }
    });
    all
}

fn complaint(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() { words } else { format!(": {}", words.chars().take(LONGEST_COMPLAINT).collect::<String>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> SecretCommand {
        SecretCommand::parse(line).unwrap()
    }

    #[track_caller]
    fn check(secret: &Secret, expected: &str) {
        assert_eq!(secret.read().unwrap().expose_secret(), expected);
    }

    #[test]
    fn a_value_is_itself_or_a_files_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "of the file\r\n").unwrap();
        check(&Secret::of_value("itself"), "itself");
        check(&Secret::of_value("@@itself"), "@itself");
        let secret = Secret::of_value(&format!("@{}", file.path().display()));
        check(&secret, "of the file");
        fs::write(file.path(), "another").unwrap();
        check(&secret, "another");
        let error = Secret::of_value("@/no/such/file").read().unwrap_err();
        assert!(error.to_string().starts_with("cannot read /no/such/file: "), "{error}");
    }

    #[test]
    fn a_commands_first_line_is_the_secret_and_no_shell_takes_part() {
        check(&Secret::Command(command("printf 'a b\\n%s\\n' second")), "a b");
        check(&Secret::Command(command("echo $HOME `id` * \"it's\"")), "$HOME `id` * it's");
        assert_eq!(SecretCommand::parse(" ").unwrap_err(), SecretError::Malformed);
        assert_eq!(SecretCommand::parse("cat 'x").unwrap_err(), SecretError::Malformed);
    }

    #[test]
    fn a_command_line_is_taken_apart_as_by_a_shell() {
        let check = |line: &str, expected: &[&str]| assert_eq!(command(line).words, expected, "{line}");
        check(" aws  rds\tgenerate ", &["aws", "rds", "generate"]);
        check(r#"a 'b c' "d e" f' 'g"#, &["a", "b c", "d e", "f g"]);
        check(r#"a\ b '\n' "\n" "\"" "\\" '' ''"#, &["a b", r"\n", r"\n", "\"", "\\", "", ""]);
        check("a b#c '#d' # e", &["a", "b#c", "#d"]);
        for open in ["a 'b", "a \"b", "a \\", "\"\\"] {
            assert_eq!(SecretCommand::parse(open).unwrap_err(), SecretError::Malformed, "{open}");
        }
    }

    #[test]
    fn what_a_command_printed_is_kept_for_a_moment_and_until_it_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "first").unwrap();
        let secret = Secret::Command(command(&format!("cat '{}'", file.path().display())));
        check(&secret, "first");
        fs::write(file.path(), "second").unwrap();
        check(&secret, "first");
        assert!(secret.clone().refused(), "another one may be had");
        check(&secret, "second");
        assert!(!secret.refused(), "that was the newest");
    }

    #[test]
    fn a_command_that_fails_says_how_and_never_what_it_printed() {
        let error = command("sh -c 'echo hunter2; echo no credentials >&2; exit 3'").output().unwrap_err();
        assert_eq!(error.to_string(), "sh failed with exit status: 3: no credentials");
        assert!(matches!(command("/no/such/program").output(), Err(SecretError::Start { .. })));
        let error = Secret::Command(command("true")).read().unwrap_err();
        assert_eq!(error, SecretError::Empty { program: "true".to_owned() });
        let shown = format!("{:?}", Secret::of_value("hunter2"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_child_that_is_given_up_takes_what_it_started_with_it() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & sleep 600"]).process_group(0).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let printed = drain(child.stdout.take());
        assert!(wait(&mut child, Instant::now()).is_none());
        // Nobody has the other end any more.
        assert_eq!(printed.recv_timeout(Duration::from_mins(1)).unwrap(), b"");
    }
}

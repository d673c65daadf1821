//! Who is measured, and how each is started on its own copy of the slot.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde::{Serialize, Serializer};
use walrelay_dev::{brokers, run_dir};

use super::case::{Delivery, Kind, Load, Reading, Way};
use super::debezium;
use super::ground::{Job, MESSAGE_PREFIX, PUBLICATION};
use super::sinks::Tuning;

/// A subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Name {
    /// Reads the slot and throws the rows away: what a walsender can give
    PgRecvlogical,
    Walrelay,
    /// Another build of it (`--before`)
    Before,
    /// Debezium Server with short polls and large batches
    DebeziumTuned,
    /// Debezium Server with its default settings
    Debezium,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PgRecvlogical => "pg_recvlogical",
            Self::Walrelay => "walrelay",
            Self::Before => "the build before",
            Self::DebeziumTuned => "Debezium, tuned",
            Self::Debezium => "Debezium, default settings",
        })
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Where the subjects' programs are.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Programs {
    /// The reference; of the path, unless a path is given
    #[arg(long, default_value = "pg_recvlogical")]
    pg_recvlogical: PathBuf,
    /// The binary of another build of the relay, such as the last release
    #[arg(long)]
    before: Option<PathBuf>,
    /// Further arguments of the relay
    #[arg(last = true)]
    relay: Vec<String>,
}

/// Starts subjects.
#[derive(Debug)]
pub(super) struct Subjects {
    walrelay: PathBuf,
    programs: Programs,
}

impl Name {
    /// Whether it is a relay: it publishes the rows, and resumes where it was, once it is started again.
    pub(super) const fn writes(self) -> bool {
        !matches!(self, Self::PgRecvlogical)
    }

    /// Why it is not measured in this case. `to`: the broker, if it is not Kafka.
    pub(super) fn cannot(self, load: &Load, reading: &Reading, to: Option<brokers::Kind>) -> Option<&'static str> {
        let is_debezium = matches!(self, Self::Debezium | Self::DebeziumTuned);
        let reasons = [
            (self.writes() && to == Some(brokers::Kind::ElasticMq) && load.topics > 1, "one queue"),
            (is_debezium && reading.nodes > 1, "not configured for a cluster here"),
            (reading.nodes > 1 && !reading.broker.is_none(), "a cluster has no distance here"),
            (reading.way == Way::Socket && !reading.postgres.is_none(), "a Unix socket has no distance"),
            (is_debezium && reading.delivery == Delivery::ExactlyOnce, "at least once only"),
            (is_debezium && reading.way == Way::Socket, "JDBC has no Unix sockets"),
            (is_debezium && matches!(load.kind, Kind::Message | Kind::Bytea), "not configured for it here"),
        ];
        reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason)
    }
}

impl Subjects {
    pub(super) fn new(walrelay: PathBuf, programs: Programs) -> Self {
        Self { walrelay, programs }
    }

    /// The version of a subject, or why it is not available.
    pub(super) fn look(&self, name: Name) -> Result<String, String> {
        match name {
            Name::PgRecvlogical => version(Command::new(&self.programs.pg_recvlogical).arg("--version")),
            Name::Walrelay => version(Command::new(&self.walrelay).arg("--version")),
            Name::Before => match &self.programs.before {
                Some(path) => version(Command::new(path).arg("--version")),
                None => Err("--before names no program".to_owned()),
            },
            Name::Debezium | Name::DebeziumTuned => debezium::look(),
        }
    }

    /// The command that starts a subject.
    pub(super) fn command(&self, name: Name, job: &Job<'_>) -> Result<Command> {
        let source = job.ground.url(&job.loaded.database, job.reading)?;
        let mut command = match name {
            Name::PgRecvlogical => self.pg_recvlogical(&source, job),
            Name::Walrelay => walrelay(&self.walrelay, &self.programs.relay, &source, job)?,
            Name::Before => {
                let before = self.programs.before.as_ref().context("--before names no program")?;
                walrelay(before, &self.programs.relay, &source, job)?
            }
            Name::Debezium => debezium::command(job, Tuning::AsItComes)?,
            Name::DebeziumTuned => debezium::command(job, Tuning::Tuned)?,
        };
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn pg_recvlogical(&self, source: &str, job: &Job<'_>) -> Command {
        let mut command = Command::new(&self.programs.pg_recvlogical);
        command.args(["-d", source, "-S", job.slot, "--start", "-f", "/dev/null", "--endpos", &job.loaded.end]);
        command.args(["-o", "proto_version=1", "-o", &format!("publication_names={PUBLICATION}")]);
        if job.loaded.load.kind == Kind::Message {
            command.args(["-o", "messages=true"]);
        }
        command
    }
}

/// The broker of a measurement is alone.
const ONE_REPLICA: &str = "--accept-one-replica";

fn walrelay(binary: &Path, more: &[String], source: &str, job: &Job<'_>) -> Result<Command> {
    let mut command = Command::new(binary);
    let to = job.ground.to(job.reading);
    let topic = if job.loaded.load.topics > 1 { format!("{}.{{route}}", job.topic) } else { job.topic.to_owned() };
    command.args(["run", "--source", source, "--slot", job.slot, "--publication", PUBLICATION]);
    command.args(["--to", &to, "--topic", &topic, "--log-format", "text"]);
    command.arg(format!("--http=127.0.0.1:{}", run_dir::free_port()?));
    if job.reading.compression != "none" {
        command.arg(format!("-Xcompression.type={}", job.reading.compression));
    }
    if job.reading.delivery == Delivery::ExactlyOnce {
        command.args(["--delivery", "exactly-once"]);
        // A build to compare with may be older than the flag.
        let help = Command::new(binary).args(["run", "--help"]).output()?;
        let knows = String::from_utf8_lossy(&help.stdout).contains(ONE_REPLICA);
        command.args(knows.then_some(ONE_REPLICA));
    }
    if job.loaded.load.kind == Kind::Message {
        command.args(["--message-prefix", MESSAGE_PREFIX]);
    }
    command.args(more);
    Ok(command)
}

/// The first line that a program says of itself.
fn version(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("cannot start {program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.lines().next().unwrap_or_default().to_owned())
}

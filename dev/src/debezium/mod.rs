//! A Debezium Server of one's own, to hold the relay against.
//!
//! In: `application.properties`. Out: a running server, that can be stopped and started again with the same files and the
//! same memory of its position.

mod provision;
mod running;
mod worker;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use crate::process::LastWill;
use crate::service::Service;
use crate::{http, run_dir};

pub use provision::{ConnectorTools, DebeziumTools, VERSION, connector, connector_version, debezium};
pub use running::Running;
pub use worker::{State, Worker};

/// What the names of headers begin with that are Debezium's own, and that the relay leaves out on purpose.
pub const CONTEXT: &str = "__debezium.context.";

/// A JVM that starts beside others.
const START: Duration = Duration::from_mins(3);

/// How long a stop may take: it waits for its last commit of offsets.
const STOP: Duration = Duration::from_mins(1);

/// The program that prints the keys that Debezium's and Kafka's classes declare.
const DECLARED_KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/debezium/DeclaredKeys.java");

/// The keys that the classes in the Server's jars declare, a line for each: who declares it, and its name.
///
/// # Errors
/// It cannot be brought, or Java fails.
pub fn declared_keys() -> Result<String> {
    let tools = debezium()?;
    let classes = tools.home.join("lib/*");
    let output = Command::new(&tools.java).arg("-cp").arg(classes).arg(DECLARED_KEYS).output()?;
    if !output.status.success() {
        bail!("the declared keys cannot be had: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A server: running, or stopped and ready to be started again.
#[derive(Debug)]
pub struct Debezium {
    tools: DebeziumTools,
    variables: BTreeMap<String, String>,
    port: u16,
    service: Service,
}

impl Debezium {
    /// Starts it with these properties, further files and environment variables in a folder of its own below `run`.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(
        run: &Path,
        properties: &str,
        files: &BTreeMap<String, String>,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let tools = debezium()?;
        let folder = run_dir::make(run, "debezium")?;
        let port = run_dir::free_port()?;
        fs::create_dir_all(folder.join("config"))?;
        fs::create_dir_all(folder.join("data"))?;
        for (path, text) in files {
            fs::write(folder.join(path), text)?;
        }
        let own = format!(
            "debezium.source.offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore\n\
             debezium.source.offset.storage.file.filename={}\n\
             debezium.source.offset.flush.interval.ms=0\n\
             quarkus.http.port={port}\nquarkus.log.console.json=false\nquarkus.log.level=WARN\n",
            folder.join("data/offsets.dat").display()
        );
        fs::write(folder.join("config/application.properties"), format!("{properties}\n{own}"))?;
        let service = Service::new("Debezium Server", folder);
        let mut server = Self { tools, variables: variables.clone(), port, service };
        server.start_again()?;
        Ok(server)
    }

    /// Starts it once more after its end, and waits until it has its slot.
    ///
    /// # Errors
    /// It does not start; the message carries the end of its log.
    pub fn start_again(&mut self) -> Result<()> {
        let mut command = self.tools.command(
            self.service.folder(),
            &["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"],
        );
        self.service.launch(command.envs(&self.variables), LastWill::default())?;
        let port = self.port;
        let answers = || http::get(port, "/q/health/live").is_ok_and(|answer| answer.status == 200);
        self.service.wait_until(START, answers).with_context(|| self.tail())
    }

    /// Makes it forget how far it was: it refuses a slot that is ahead of its own position.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget(&self) -> Result<()> {
        Ok(fs::remove_file(self.service.folder().join("data/offsets.dat"))?)
    }

    /// The exit code, if it has ended by itself.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn exited(&mut self) -> Result<Option<i32>> {
        self.service.exited()
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn stop(&mut self) -> Result<()> {
        self.service.stop(Signal::TERM, STOP).map(drop)
    }

    /// The end of what it has said, less the frames of Java's stacks.
    pub fn tail(&self) -> String {
        let log = fs::read_to_string(self.service.log()).unwrap_or_default();
        let lines = log.lines().filter(|line| !line.starts_with("\tat ")).collect::<Vec<_>>();
        lines.get(lines.len().saturating_sub(30)..).unwrap_or_default().join("\n")
    }
}

//! Brings Debezium Server and Debezium's connector through Maven, and finds a Java that is new enough for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};

use crate::provision::{self, OUTPUT, maven, parse_java_version, run, say, tool};

/// The Debezium Server that is brought, and the connector unless another one is chosen.
pub const VERSION: &str = "3.6.3.Final";

/// The connectors that can be brought, and the variable that chooses one. Maven has no archive of the Server from 3.7 on.
const CONNECTORS: [&str; 2] = [VERSION, "3.7.0.Final"];
const CONNECTOR_VARIABLE: &str = "WALRELAY_TEST_DEBEZIUM";

const POM: &str = include_str!("../../pom/debezium.xml");
const CONNECTOR_POM: &str = include_str!("../../pom/debezium-connector.xml");

/// The oldest Java that it runs on.
const OLDEST_JAVA: u32 = 21;

/// Where distributions put their Javas.
const JAVAS: &str = "/usr/lib/jvm";

/// One Debezium Server on disk.
#[derive(Debug, Clone)]
pub struct DebeziumTools {
    /// Holds the runner, `lib` and `config`.
    pub home: PathBuf,
    /// The program `java`, new enough.
    pub java: PathBuf,
    /// Its release, such as 21.
    pub release: u32,
}

impl DebeziumTools {
    /// The server, in a folder with its `config`, on a Java machine with these arguments.
    pub fn command(&self, folder: &Path, machine: &[&str]) -> Command {
        let runner = format!("debezium-server-dist-{VERSION}-runner.jar");
        let classes = [&runner, "config/lib", "lib/*"].map(|part| self.home.join(part).display().to_string()).join(":");
        let mut command = Command::new(&self.java);
        // Newer Javas fill the log with complaints of Quarkus' threads otherwise.
        command.args(machine).arg("--add-opens=java.base/java.lang=ALL-UNNAMED");
        command.args(["-cp", &classes, "io.debezium.server.Main"]).current_dir(folder);
        command
    }
}

/// Brings it unless it is there already: 700 MB.
///
/// # Errors
/// A prerequisite is missing, or Maven fails.
pub fn debezium() -> Result<DebeziumTools> {
    let (java, release) = java()?;
    let home = tool(&format!("debezium-server-{VERSION}"), bring)?;
    Ok(DebeziumTools { home, java, release })
}

/// One connector on disk.
#[derive(Debug, Clone)]
pub struct ConnectorTools {
    /// Such as `3.7.0.Final`.
    pub version: &'static str,
    /// Holds the jars of the connector, and of what it needs.
    pub libs: PathBuf,
    /// The program `java`, new enough.
    pub java: PathBuf,
}

/// The version of the connector: the one that `WALRELAY_TEST_DEBEZIUM` names, else that of the Server.
///
/// # Errors
/// It is none of those that can be brought.
pub fn connector_version() -> Result<&'static str> {
    let named = std::env::var(CONNECTOR_VARIABLE).ok().filter(|text| !text.is_empty());
    let Some(named) = named else { return Ok(VERSION) };
    CONNECTORS
        .into_iter()
        .find(|version| *version == named)
        .ok_or_else(|| anyhow!("{CONNECTOR_VARIABLE}={named}: only {} can be brought", CONNECTORS.join(", ")))
}

/// Brings the connector unless it is there already.
///
/// # Errors
/// A prerequisite is missing, or Maven fails.
pub fn connector() -> Result<ConnectorTools> {
    let (version, (java, _)) = (connector_version()?, java()?);
    let libs = tool(&format!("debezium-connector-{version}"), |libs| {
        say(&format!("Debezium's connector {version}: through Maven"));
        let defined = [("debezium.version", version), ("includeScope", "runtime"), OUTPUT];
        maven(libs, CONNECTOR_POM, "dependency:copy-dependencies", &defined)
    })?;
    Ok(ConnectorTools { version, libs, java })
}

fn bring(part: &Path) -> Result<()> {
    say(&format!("Debezium Server {VERSION}: through Maven, 700 MB"));
    let artifact = format!("io.debezium:debezium-server-dist:{VERSION}:tar.gz");
    maven(part, POM, "dependency:copy", &[("artifact", &artifact), OUTPUT])?;
    let archive = part.join(format!("debezium-server-dist-{VERSION}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(part).arg("--strip-components=1");
    run(&mut tar, "tar", "tar with gzip")?;
    Ok(fs::remove_file(&archive)?)
}

/// The `java` of `JAVA_HOME` or of the path if it is new enough, else one that stands beside it.
fn java() -> Result<(PathBuf, u32)> {
    let beside = fs::read_dir(JAVAS).into_iter().flatten().flatten().map(|entry| entry.path().join("bin/java"));
    let tried = std::iter::once(provision::java()).chain(beside);
    let mut enough =
        tried.filter_map(|java| release(&java).filter(|found| *found >= OLDEST_JAVA).map(|found| (java, found)));
    enough.next().with_context(|| {
        format!("Debezium Server needs Java {OLDEST_JAVA} or newer: set JAVA_HOME to one (none in {JAVAS})")
    })
}

fn release(java: &Path) -> Option<u32> {
    let output = Command::new(java).arg("-version").output().ok()?;
    parse_java_version(&String::from_utf8_lossy(&output.stderr))
}

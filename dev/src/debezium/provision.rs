//! Brings Debezium Server through Maven, and finds a Java that is new enough for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::account;
use crate::provision::{define, dev_dir, fill, lock, maven, parse_java_version, say};

/// The Debezium that is brought.
pub const VERSION: &str = "3.6.3.Final";

const POM: &str = include_str!("../../pom/debezium.xml");

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
}

/// Brings it unless it is there already: 700 MB.
///
/// # Errors
/// A prerequisite is missing, or Maven fails.
pub fn debezium() -> Result<DebeziumTools> {
    let java = java()?;
    let root = dev_dir();
    let home = root.join("tools").join(format!("debezium-server-{VERSION}"));
    if !home.exists() {
        account::make_passable(&root)?;
        let _lock = lock(&root)?;
        fill(&home, bring)?;
    }
    Ok(DebeziumTools { home, java })
}

fn bring(part: &Path) -> Result<()> {
    say(&format!("Debezium Server {VERSION}: through Maven, 700 MB"));
    let pom = part.join("pom.xml");
    fs::write(&pom, POM)?;
    let artifact = format!("io.debezium:debezium-server-dist:{VERSION}:tar.gz");
    maven(&[
        "-f".as_ref(),
        pom.as_os_str(),
        "dependency:copy".as_ref(),
        &define("artifact", artifact.as_ref()),
        &define("outputDirectory", part.as_os_str()),
    ])?;
    let archive = part.join(format!("debezium-server-dist-{VERSION}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(part).arg("--strip-components=1");
    let output = tar.output().context("cannot run tar")?;
    if !output.status.success() {
        bail!("cannot unpack {}: {}", archive.display(), String::from_utf8_lossy(&output.stderr));
    }
    fs::remove_file(&archive)?;
    Ok(())
}

/// The `java` of `JAVA_HOME` or of the path if it is new enough, else one that stands beside it.
fn java() -> Result<PathBuf> {
    let home = std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
    let own = home.map_or_else(|| PathBuf::from("java"), |home| Path::new(&home).join("bin/java"));
    let beside = fs::read_dir(JAVAS).into_iter().flatten().flatten().map(|entry| entry.path().join("bin/java"));
    let mut tried = std::iter::once(own).chain(beside);
    tried.find(|java| version(java).is_some_and(|found| found >= OLDEST_JAVA)).with_context(|| {
        format!("Debezium Server needs Java {OLDEST_JAVA} or newer: set JAVA_HOME to one (none in {JAVAS})")
    })
}

fn version(java: &Path) -> Option<u32> {
    let output = Command::new(java).arg("-version").output().ok()?;
    parse_java_version(&String::from_utf8_lossy(&output.stderr))
}

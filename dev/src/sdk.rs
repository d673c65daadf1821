//! Reads records by an SDK of another language: CloudEvents' own for Python.
//!
//! In: records as a consumer has them. Out: the events that the SDK makes of them. It is brought through pip, into a folder of its own.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::brokers::bring::{PYTHON, run, tool};
use crate::conformance::bytes::hex;
use crate::consume::Record;
use crate::provision::say;

const VERSION: &str = "1.12.0";

/// Reads JSON lines, and prints the events as JSON lines.
const SCRIPT: &str = include_str!("../cloudevents.py");

/// Brings the SDK unless it is there already, and says where its packages are.
///
/// # Errors
/// Python is missing, or the SDK cannot be had.
pub fn provision() -> Result<PathBuf> {
    Ok(tool(&format!("cloudevents-{VERSION}"), bring)?.join("packages"))
}

/// The events in the records: `attributes`, and `data` (JSON) or `data_hex` (bytes).
///
/// # Errors
/// The SDK cannot be had, or refuses a record; the message has its words.
pub fn cloudevents(records: &[Record]) -> Result<Vec<Value>> {
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).env("PYTHONPATH", provision()?);
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.spawn().with_context(|| format!("cannot run python3; needed: {PYTHON}"))?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    for record in records {
        writeln!(stdin, "{}", as_json(record))?;
    }
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("the SDK refuses a record: {}", String::from_utf8_lossy(&output.stderr));
    }
    let lines = String::from_utf8(output.stdout)?;
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn as_json(record: &Record) -> Value {
    let hex = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(hex);
    let headers: Vec<Value> = record.headers.iter().map(|(name, value)| json!([name, hex(value)])).collect();
    json!({"key": hex(&record.key), "value": hex(&record.value), "headers": headers})
}

fn bring(part: &Path) -> Result<()> {
    say(&format!("CloudEvents' SDK for Python {VERSION}: through pip"));
    let venv: PathBuf = part.join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv), "python3", PYTHON)?;
    let mut install = Command::new(venv.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
    run(install.arg(part.join("packages")).arg(format!("cloudevents=={VERSION}")), "pip", PYTHON)?;
    fs::remove_dir_all(venv).context("the folder of the venv")
}

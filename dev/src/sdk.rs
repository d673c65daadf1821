//! Reads records by SDKs for Python: that of CloudEvents, and Confluent's client with its deserializers. It also runs the manual's
//! consumers.
//!
//! In: records as a consumer has them, or a script. Out: what the SDK reads in them. Each SDK is brought through pip, into a folder of its
//! own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};

use crate::brokers::bring::{PYTHON, pip};
use crate::consume::Record;
use crate::provision::tool;

const VERSION: &str = "1.12.0";

/// Reads JSON lines, and prints the events as JSON lines.
const SCRIPT: &str = include_str!("../cloudevents.py");

/// Confluent's client, with what its JSON deserializer needs.
const CONFLUENT: (&str, &str) = ("confluent-kafka-2.8.0", "confluent-kafka[json,schemaregistry]==2.8.0");

/// Reads JSON lines, and prints the values as JSON lines; the registry's address is its argument.
const CONFLUENT_SCRIPT: &str = include_str!("../confluent.py");

/// The clients that the manual's consumers use.
const CONSUMERS: (&str, &str) = (
    "consumers-1",
    "psycopg[binary]==3.3.9 nats-py==2.16.0 redis==8.1.0 boto3==1.44.8 pika==1.4.4 confluent-kafka==2.8.0",
);

/// Brings the SDK unless it is there already, and says where its packages are.
///
/// # Errors
/// Python is missing, or the SDK cannot be had.
pub fn provision() -> Result<PathBuf> {
    packages(&format!("cloudevents-{VERSION}"), &format!("cloudevents=={VERSION}"))
}

/// The events in the records: `attributes`, and `data` (JSON) or `data_hex` (bytes).
///
/// # Errors
/// The SDK cannot be had, or refuses a record; the message has its words.
pub fn cloudevents(records: &[Record]) -> Result<Vec<Value>> {
    read(records, &["-c", SCRIPT], &provision()?)
}

/// The values of the records as Confluent's JSON deserializer reads them, which asks the registry for their schemas and validates them.
///
/// # Errors
/// The client cannot be had, or refuses a value; the message has its words.
pub fn confluent(records: &[Record], registry: &str) -> Result<Vec<Value>> {
    let (name, package) = CONFLUENT;
    read(records, &["-c", CONFLUENT_SCRIPT, registry], &packages(name, package)?)
}

/// A command that runs `script` with the clients that the manual's consumers use.
///
/// # Errors
/// The clients cannot be had.
pub fn consumer(script: &str) -> Result<Command> {
    let (name, wanted) = CONSUMERS;
    let mut python = Command::new("python3");
    python.args(["-u", "-c", script]).env("PYTHONPATH", packages(name, wanted)?);
    Ok(python)
}

fn read(records: &[Record], arguments: &[&str], packages: &Path) -> Result<Vec<Value>> {
    let mut python = Command::new("python3");
    // Not in the folder of `cloudevents.py`, which python would take for the package.
    python.args(arguments).current_dir(packages).env("PYTHONPATH", packages);
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
    let hex = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(|bytes| HEXLOWER.encode(bytes));
    let headers: Vec<Value> = record.headers.iter().map(|(name, value)| json!([name, hex(value)])).collect();
    json!({"key": hex(&record.key), "value": hex(&record.value), "headers": headers})
}

/// The folder of these packages of Python's.
fn packages(name: &str, wanted: &str) -> Result<PathBuf> {
    Ok(tool(name, |part| pip(part, wanted).map(drop))?.join("packages"))
}

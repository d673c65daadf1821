//! A Kafka Connect worker of one's own, with Debezium's connector of the chosen version.
//!
//! In: connectors' configurations. Out: a running `connect-standalone`, to which connectors are added and from which they
//! are taken while it runs, so that many share one Java.
//! Specification: Kafka's manual, "Kafka Connect", "REST API".

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::connector;
use crate::process::{self, LastWill};
use crate::service::Service;
use crate::{http, provision, run_dir};

/// A JVM that starts beside others.
const START: Duration = Duration::from_mins(3);

/// Kafka Connect answers within 90 s, also if it is not done by then.
const ANSWER: Duration = Duration::from_secs(100);

/// The jars of the connector, its router and its converters; Kafka has the others.
const JARS: [&str; 11] = [
    "debezium-api-",
    "debezium-config-",
    "debezium-connector-common-",
    "debezium-connector-postgres-",
    "debezium-connect-plugins-",
    "debezium-openlineage-api-",
    "debezium-util-",
    "postgresql-",
    "protobuf-java-",
    "caffeine-",
    "sketches-java-",
];

/// How a connector is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Its task runs.
    Running,
    /// It ended, with the first lines of what it said.
    Failed(String),
    /// Neither yet.
    Other,
}

/// A worker.
#[derive(Debug)]
pub struct Worker {
    port: u16,
    service: Service,
}

impl Worker {
    /// Starts it against these brokers in a folder of its own below `run`.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(run: &Path, brokers: &str) -> Result<Self> {
        let (debezium, kafka) = (connector()?, provision::kafka()?);
        let folder = run_dir::make(run, "connect")?;
        let plugins = folder.join("plugins/debezium");
        fs::create_dir_all(&plugins)?;
        for entry in fs::read_dir(&debezium.libs)?.flatten() {
            let name = entry.file_name();
            if JARS.iter().any(|jar| name.to_string_lossy().starts_with(jar)) {
                symlink(entry.path(), plugins.join(&name))?;
            }
        }
        let port = run_dir::free_port()?;
        let properties = format!(
            "bootstrap.servers={brokers}\nlisteners=http://127.0.0.1:{port}\nplugin.path={}\nplugin.discovery=service_load\n\
             key.converter=org.apache.kafka.connect.storage.StringConverter\n\
             value.converter=org.apache.kafka.connect.storage.StringConverter\n\
             offset.storage.file.filename={}\noffset.flush.interval.ms=200\n\
             connector.client.config.override.policy=All\nproducer.max.request.size=20000000\n",
            folder.join("plugins").display(),
            folder.join("offsets").display(),
        );
        let file = folder.join("worker.properties");
        fs::write(&file, properties)?;
        let mut command = Command::new(&debezium.java);
        command
            .args(["-Xmx700m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Duser.timezone=UTC"])
            .arg("-cp")
            .arg(kafka.libs.join("*"))
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .arg(&file);
        let mut worker = Self { port, service: Service::new("Kafka Connect", folder) };
        worker.service.launch(&mut command, LastWill::default())?;
        worker.service.wait_until(START, || http::get(port, "/connectors").is_ok_and(|answer| answer.status == 200))?;
        Ok(worker)
    }

    /// Adds a connector; it starts by itself.
    ///
    /// # Errors
    /// The worker refuses its configuration.
    pub fn add(&self, name: &str, config: &BTreeMap<String, String>) -> Result<()> {
        let body = json!({ "name": name, "config": config }).to_string();
        self.ask("POST", "/connectors", &body).map(drop)
    }

    /// Takes a connector away. Its offsets stay.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.ask("DELETE", &format!("/connectors/{name}"), "").map(drop)
    }

    /// Stops a connector, and does not wait.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn stop(&self, name: &str) -> Result<()> {
        self.ask("PUT", &format!("/connectors/{name}/stop"), "").map(drop)
    }

    /// Makes a stopped connector forget how far it was.
    ///
    /// # Errors
    /// There is none of that name, or it does not stop.
    pub fn forget(&self, name: &str) -> Result<()> {
        let path = format!("/connectors/{name}/offsets");
        process::wait_until(START, "the connector to forget its offsets", || {
            std::thread::sleep(Duration::from_millis(200));
            Ok(http::request(self.port, "DELETE", &path, "", ANSWER).is_ok_and(|answer| answer.status == 200))
        })
    }

    /// Lets a stopped connector run again.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn resume(&self, name: &str) -> Result<()> {
        self.ask("PUT", &format!("/connectors/{name}/resume"), "").map(drop)
    }

    /// How a connector is.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn state(&self, name: &str) -> Result<State> {
        let answer = http::request(self.port, "GET", &format!("/connectors/{name}/status"), "", ANSWER)?;
        let status: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let parts = [status.get("connector"), status.pointer("/tasks/0")];
        let is = |part: Option<&Value>, state| part.and_then(|part| part.get("state")) == Some(&Value::from(state));
        if let Some(part) = parts.into_iter().find(|part| is(*part, "FAILED")).flatten() {
            let trace = part.get("trace").and_then(Value::as_str).unwrap_or_default();
            let causes = trace.lines().filter(|line| !line.starts_with('\t') || line.contains("Caused"));
            return Ok(State::Failed(causes.take(4).collect::<Vec<_>>().join(" / ")));
        }
        Ok(if parts.into_iter().all(|part| is(part, "RUNNING")) { State::Running } else { State::Other })
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let answer = http::request(self.port, method, path, body, ANSWER)?;
        if !(200..300).contains(&answer.status) {
            bail!("Kafka Connect answers {method} {path} with {}: {}", answer.status, answer.body);
        }
        Ok(answer.body)
    }

    /// The end of what it has said.
    pub fn tail(&self) -> String {
        process::tail(&self.service.log(), 40)
    }
}

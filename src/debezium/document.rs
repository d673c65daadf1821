//! Reads files into one Debezium configuration: the kind of each file, and the program to which each key belongs.
//!
//! ```text
//!  application.properties, DEBEZIUM_* ──► debezium.source.*, .format.*, .transforms.* ──► connector's keys
//!                                         debezium.sink.kafka.producer.* ───────────────► producer's keys
//!  connector.json ──► connector's keys    producer.override.* ──────────────────────────► producer's keys
//!  worker.properties ──► worker's keys    producer.* ───────────────────────────────────► producer's keys, below those
//! ```
//!
//! In: files' bytes, the environment. Out: a [`Configuration`], whose values still have their `${…}`.
//! Specification: Debezium Server's `DebeziumServer`, Kafka Connect's REST interface.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::config_sources::ConfigSources;
use super::keys::Keys;
use super::properties::{self, PropertyEntry};
use crate::setting_text::{Foreign, Given, Origin, SettingError, shown};

/// The program that ran the Debezium configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// Debezium Server with its Kafka sink.
    Server,
    /// Kafka Connect.
    Connect,
}

/// One Debezium configuration.
pub(super) struct Configuration {
    pub(super) platform: Platform,
    /// The connector's keys, as Kafka Connect names them.
    pub(super) connector: Keys,
    /// The Kafka producer's keys.
    pub(super) producer: Keys,
    /// A Connect worker's keys, without its producer's.
    pub(super) worker: Keys,
    pub(super) has_worker: bool,
    /// Debezium Server's own keys: `debezium.sink.type` and the like.
    pub(super) server: Keys,
    /// The sources in which Debezium Server's expressions look names up.
    pub(super) sources: ConfigSources,
}

/// A file's kind, and its entries.
pub(super) enum Document {
    Server(Keys),
    Connector(Keys),
    Worker(Keys),
}

impl Document {
    /// Reads one file.
    pub(super) fn read(file: &Path, bytes: &[u8]) -> Result<Self, SettingError> {
        let text = properties::decode(bytes);
        if text.trim_start().starts_with(['{', '[']) {
            return json(file, &text).map(Self::Connector);
        }
        let keys = keys(file, properties_of(file, &text)?);
        let is_yaml = file.extension().is_some_and(|name| name == "yaml" || name == "yml");
        if is_yaml || keys.get("debezium").is_some_and(|value| value.text.is_empty()) {
            return Err(SettingError::syntax(
                file,
                1,
                "this is YAML, which is not read here: write its keys into a .properties file",
            ));
        }
        if keys.iter().any(|(key, _)| is_of_server(key)) {
            return Ok(Self::Server(keys));
        }
        let connector = keys.get("connector.class").is_some();
        Ok(if connector { Self::Connector(keys) } else { Self::Worker(keys) })
    }

    /// Reads the file of one profile. Its keys count only if the profile is active.
    pub(super) fn of_profile(file: &Path, bytes: &[u8], profile: &str) -> Result<Self, SettingError> {
        let mut keys = Keys::default();
        for (key, value) in variables(file, bytes)?.iter() {
            let key = if key.starts_with('%') { key.to_owned() } else { format!("%{profile}.{key}") };
            keys.insert(key, value.clone());
        }
        Ok(Self::Server(keys))
    }
}

/// Whether the key is one of Quarkus or of Debezium Server. Such a key may have underscores instead of dots.
fn is_of_server(key: &str) -> bool {
    let name = key.strip_prefix('%').and_then(|rest| rest.split_once('.')).map_or(key, |(_, name)| name);
    let name = name.replace('_', ".").to_ascii_lowercase();
    name.starts_with("debezium.") || name.starts_with("quarkus.")
}

/// Reads a file of names and values, such as `.env`.
pub(super) fn variables(file: &Path, bytes: &[u8]) -> Result<Keys, SettingError> {
    Ok(keys(file, properties_of(file, &properties::decode(bytes))?))
}

fn properties_of(file: &Path, text: &str) -> Result<Vec<PropertyEntry>, SettingError> {
    properties::parse(text).map_err(|bad| {
        SettingError::syntax(file, bad.line, "a \\u is to be followed by four hex digits of a character")
    })
}

/// Returns a file beside `file` that Debezium Server would read as well and walrelay does not. Its keys would count as much as
/// those of `file`, or more.
pub(super) fn unread_beside(file: &Path) -> Option<PathBuf> {
    let stem = file.file_stem()?.to_string_lossy().into_owned();
    let yaml = ["yaml", "yml"].map(|extension| format!("{stem}.{extension}"));
    let on_class_path = ["application.properties", "application.yaml", "META-INF/microprofile-config.properties"];
    let names = yaml.into_iter().chain(on_class_path.map(|name| format!("lib/{name}")));
    names.map(|name| file.with_file_name(name)).find(|path| path != file && path.is_file())
}

fn origin(file: &Path, line: usize, name: &str) -> Origin {
    Origin::Translated(Box::new(Foreign { name: name.to_owned(), place: Some((file.to_owned(), line)) }))
}

/// Reads a connector as `POST /connectors` takes it, or its configuration alone.
fn json(file: &Path, text: &str) -> Result<Keys, SettingError> {
    let parsed = serde_json::from_str::<Json>(text)
        .map_err(|error| SettingError::syntax(file, error.line(), &format!("this is not JSON: {error}")))?;
    let Json::Object(outer) = parsed else {
        return Err(SettingError::syntax(
            file,
            1,
            "a JSON object is wanted: {\"name\": …, \"config\": {…}}, or the config alone",
        ));
    };
    let config = match outer.get("config") {
        Some(Json::Object(config)) => config,
        _ => &outer,
    };
    let mut keys = Keys::default();
    for (key, value) in config {
        let line = line_of(text, key);
        let text = match value {
            Json::Null => continue,
            Json::String(text) => text.clone(),
            Json::Bool(value) => value.to_string(),
            Json::Number(value) => value.to_string(),
            Json::Array(_) | Json::Object(_) => {
                return Err(SettingError::syntax(
                    file,
                    line,
                    &format!("\"{}\" is to be a text, a number, true or false", shown(key.as_bytes())),
                ));
            }
        };
        keys.insert(key.clone(), Given { text, origin: origin(file, line, key) });
    }
    Ok(keys)
}

/// The line on which a key comes first. 1 if the key is written with escapes.
fn line_of(text: &str, key: &str) -> usize {
    let quoted = format!("\"{key}\"");
    let at = text.find(&quoted).unwrap_or(0);
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Collects entries by their names. An entry for several profiles counts once for each.
fn keys(file: &Path, entries: Vec<PropertyEntry>) -> Keys {
    let mut keys = Keys::default();
    for PropertyEntry { key, value, line } in entries {
        let value = Given { text: value, origin: origin(file, line, &key) };
        match key.strip_prefix('%').and_then(|rest| rest.split_once('.')) {
            None => keys.insert(key, value),
            Some((profiles, name)) => {
                for profile in profiles.split(',') {
                    keys.insert(format!("%{profile}.{name}"), value.clone());
                }
            }
        }
    }
    keys
}

impl Configuration {
    /// Merges documents. A later file's key takes precedence over an earlier file's. `sources`: the sources in which Debezium Server
    /// looks keys up.
    pub(super) fn assemble(documents: Vec<Document>, sources: ConfigSources) -> Result<Self, SettingError> {
        let (mut is_server, mut connector, mut worker) = (false, None::<Keys>, None::<Keys>);
        for document in documents {
            let (slot, keys) = match document {
                Document::Server(_) => {
                    is_server = true;
                    continue;
                }
                Document::Connector(keys) => (&mut connector, keys),
                Document::Worker(keys) => (&mut worker, keys),
            };
            *slot = Some(slot.take().unwrap_or_default().overlaid(keys));
        }
        match (is_server, connector, worker) {
            (true, None, _) => Self::of_server(sources),
            (false, Some(connector), worker) => Ok(Self::of_connect(connector, worker)),
            (true, Some(_), _) => Err(SettingError::usage(
                "--from-debezium: one file is Debezium Server's and another is Kafka Connect's",
                "give the files of one of them",
            )),
            (false, None, _) => Err(SettingError::usage(
                "--from-debezium: no file holds a connector (connector.class, or debezium.source.connector.class)",
                "give Debezium Server's application.properties or a connector's JSON; a Connect worker's properties go along with it",
            )),
        }
    }

    fn of_connect(mut connector: Keys, worker: Option<Keys>) -> Self {
        let has_worker = worker.is_some();
        let mut worker = worker.unwrap_or_default();
        let mut producer = worker.take_below("producer.");
        if let Some(brokers) = worker.take("bootstrap.servers") {
            let given = producer.take("bootstrap.servers").unwrap_or(brokers);
            producer.insert("bootstrap.servers".to_owned(), given);
        }
        let producer = producer.overlaid(connector.take_below("producer.override."));
        let (server, sources) = (Keys::default(), ConfigSources::default());
        Self { platform: Platform::Connect, connector, producer, worker, has_worker, server, sources }
    }

    /// Removes Debezium Server's prefixes. A key with a more specific prefix takes precedence.
    fn of_server(sources: ConfigSources) -> Result<Self, SettingError> {
        let mut server = sources.keys()?;
        let producer = server.take_below("debezium.sink.kafka.producer.");
        let mut connector = server.take_below("debezium.source.");
        for part in ["transforms", "predicates"] {
            connector =
                connector.overlaid(prefixed(&format!("{part}."), &server.take_below(&format!("debezium.{part}."))));
            if let Some(names) = server.take(&format!("debezium.{part}")) {
                connector.insert(part.to_owned(), names);
            }
        }
        let mut formats = server.take_below("debezium.format.");
        let special = ["key", "value", "header"].map(|part| {
            let selector = formats.take(part).map(|value| (format!("format.{part}"), value));
            (part, selector, formats.take_below(&format!("{part}.")))
        });
        for (part, selector, keys) in special {
            let converter = format!("{part}.converter.");
            connector = connector.overlaid(prefixed(&converter, &formats)).overlaid(prefixed(&converter, &keys));
            if let Some((name, value)) = selector {
                connector.insert(name, value);
            }
        }
        let (platform, worker) = (Platform::Server, Keys::default());
        Ok(Self { platform, connector, producer, worker, has_worker: false, server, sources })
    }
}

fn prefixed(prefix: &str, keys: &Keys) -> Keys {
    let mut all = Keys::default();
    keys.iter().for_each(|(key, value)| all.insert(format!("{prefix}{key}"), value.clone()));
    all
}

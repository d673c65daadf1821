//! Files into one Debezium configuration: which kind each file is, whose keys are whose, and which of Quarkus' profiles are active.
//!
//! ```text
//!  application.properties, DEBEZIUM_* ──► debezium.source.*, .format.*, .transforms.* ──► connector's keys
//!                                         debezium.sink.kafka.producer.* ───────────────► producer's keys
//!  connector.json ──► connector's keys    producer.override.* ──────────────────────────► producer's keys
//!  worker.properties ──► worker's keys    producer.* ───────────────────────────────────► producer's keys, below those
//! ```
//!
//! In: files' bytes, the environment. Out: a [`Job`], whose values still hold their `${…}`.
//! Specification: Debezium Server's `DebeziumServerConfigSourceFactory`, Quarkus' "Configuration Reference" (profiles), SmallRye
//! Config's environment variables, Kafka Connect's REST interface.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::error::DebeziumError;
use super::keys::{Keys, Value};
use super::properties::{self, Entry};
use crate::given::{Key, Origin, shown};
use crate::pg::source::Environment;

/// What ran the Debezium configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// Debezium Server with its Kafka sink.
    Server,
    /// Kafka Connect.
    Connect,
}

/// One Debezium configuration.
pub(super) struct Job {
    pub(super) platform: Platform,
    /// The connector's keys, as Kafka Connect names them.
    pub(super) connector: Keys,
    /// The Kafka producer's.
    pub(super) producer: Keys,
    /// A Connect worker's, but its producer's.
    pub(super) worker: Keys,
    pub(super) has_worker: bool,
    /// Debezium Server's own: `debezium.sink.type` and the like.
    pub(super) server: Keys,
}

/// A file's kind, and its entries.
pub(super) enum Document {
    Server(Keys),
    Connector(Keys),
    Worker(Keys),
}

impl Document {
    /// Reads one file.
    pub(super) fn read(file: &Path, bytes: &[u8]) -> Result<Self, DebeziumError> {
        let text = properties::decode(bytes);
        if text.trim_start().starts_with(['{', '[']) {
            return json(file, &text).map(Self::Connector);
        }
        let entries = properties::parse(&text)
            .map_err(|bad| syntax(file, bad.line, "a \\u is to be followed by four hex digits of a character"))?;
        let keys = keys(file, entries);
        if keys.iter().any(|(key, _)| is_of_server(key)) {
            return Ok(Self::Server(keys));
        }
        let connector = keys.get("connector.class").is_some();
        Ok(if connector { Self::Connector(keys) } else { Self::Worker(keys) })
    }
}

fn is_of_server(key: &str) -> bool {
    let name = key.strip_prefix('%').and_then(|rest| rest.split_once('.')).map_or(key, |(_, name)| name);
    name.starts_with("debezium.") || name.starts_with("quarkus.")
}

/// The files that Quarkus reads beside those named, `application-PROFILE.properties` beside `application.properties`, for
/// each active profile.
pub(super) fn beside(files: &[PathBuf], documents: &[Document], environment: &Environment) -> Vec<(PathBuf, String)> {
    let mut server = Keys::default();
    for document in documents {
        if let Document::Server(keys) = document {
            server = server.overlaid(keys.clone());
        }
    }
    let mut found = Vec::new();
    for profile in profiles(&server, environment) {
        for (file, document) in files.iter().zip(documents) {
            let (Document::Server(_), Some(stem)) = (document, file.file_stem()) else { continue };
            let path = file.with_file_name(format!("{}-{profile}.properties", stem.to_string_lossy()));
            if !files.contains(&path) && path.is_file() {
                found.push((path, profile.clone()));
            }
        }
    }
    found
}

impl Document {
    /// Reads the file of one profile, whose keys count only while that is active.
    pub(super) fn of_profile(file: &Path, bytes: &[u8], profile: &str) -> Result<Self, DebeziumError> {
        match Self::read(file, bytes)? {
            Self::Server(keys) => Ok(Self::Server(keys.iter().fold(Keys::default(), |mut all, (key, value)| {
                let key = if key.starts_with('%') { key.to_owned() } else { format!("%{profile}.{key}") };
                all.insert(key, value.clone());
                all
            }))),
            other @ (Self::Connector(_) | Self::Worker(_)) => Ok(other),
        }
    }
}

fn syntax(file: &Path, line: usize, message: impl Into<String>) -> DebeziumError {
    DebeziumError::Syntax { file: file.to_owned(), line, message: message.into() }
}

fn origin(file: &Path, line: usize, name: &str) -> Origin {
    Origin::Translated(Box::new(Key { file: file.to_owned(), line, name: name.to_owned() }))
}

/// A connector as `POST /connectors` takes it, or its configuration alone.
fn json(file: &Path, text: &str) -> Result<Keys, DebeziumError> {
    let parsed = serde_json::from_str::<Json>(text)
        .map_err(|error| syntax(file, error.line(), format!("this is not JSON: {error}")))?;
    let Json::Object(outer) = parsed else {
        return Err(syntax(file, 1, "a JSON object is wanted: {\"name\": …, \"config\": {…}}, or the config alone"));
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
                return Err(syntax(
                    file,
                    line,
                    format!("\"{}\" is to be a text, a number, true or false", shown(key.as_bytes())),
                ));
            }
        };
        keys.insert(key.clone(), Value { text, origin: origin(file, line, key) });
    }
    Ok(keys)
}

/// Where a key stands first; 1 where it is written with escapes.
fn line_of(text: &str, key: &str) -> usize {
    let quoted = format!("\"{key}\"");
    let at = text.find(&quoted).unwrap_or(0);
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Entries with the names that Quarkus gives them, those of profiles with their `%profile.` before them.
fn keys(file: &Path, entries: Vec<Entry>) -> Keys {
    let mut keys = Keys::default();
    for Entry { key, value, line } in entries {
        let value = Value { text: value, origin: origin(file, line, &key) };
        match key.strip_prefix('%').and_then(|rest| rest.split_once('.')) {
            None => keys.insert(name_of(&key), value),
            Some((profiles, name)) => keys.insert(format!("%{profiles}.{}", name_of(name)), value),
        }
    }
    keys
}

/// Quarkus' active profiles, the strongest last: those that a variable names beat those that a file does.
fn profiles(keys: &Keys, environment: &Environment) -> Vec<String> {
    const NAMES: [&str; 2] = ["quarkus.profile", "smallrye.config.profile"];
    let variable = NAMES.iter().find_map(|name| {
        let mut names = [(*name).to_owned(), variable_of(name)].into_iter();
        names.find_map(|name| environment.variables.get(&name)).filter(|value| !value.trim().is_empty())
    });
    let in_files = || NAMES.iter().find_map(|name| keys.get(name)).map(|value| value.text.clone());
    let given = variable.cloned().or_else(in_files).unwrap_or_default();
    let named = given.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    let named = named.collect::<Vec<_>>();
    if named.is_empty() { vec![DEFAULT_PROFILE.to_owned()] } else { named }
}

/// Keys of active profiles take the place of those without one, a later profile's that of an earlier one's. Those of other
/// profiles are left out.
fn profiled(keys: &Keys, profiles: &[String]) -> Keys {
    let mut plain = Keys::default();
    let mut layers = vec![Keys::default(); profiles.len()];
    for (key, value) in keys.iter() {
        let Some((names, name)) = key.strip_prefix('%').and_then(|rest| rest.split_once('.')) else {
            plain.insert(key.to_owned(), value.clone());
            continue;
        };
        for (profile, layer) in profiles.iter().zip(&mut layers) {
            if names.split(',').any(|name| name == profile) {
                layer.insert(name.to_owned(), value.clone());
            }
        }
    }
    layers.into_iter().fold(plain, Keys::overlaid)
}

/// What Debezium Server runs with where nobody says otherwise.
const DEFAULT_PROFILE: &str = "prod";

/// `DEBEZIUM_SOURCE_SLOT_NAME` is `debezium.source.slot.name`; two underscores are one that stays.
fn name_of(key: &str) -> String {
    let shell = key.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    if shell && (key.starts_with("DEBEZIUM_") || key.starts_with("QUARKUS_")) {
        return key.replace("__", "\0").replace('_', ".").replace('\0', "_").to_ascii_lowercase();
    }
    key.to_owned()
}

/// The name of a variable that stands for a key.
fn variable_of(key: &str) -> String {
    underscored(key).to_ascii_uppercase()
}

fn underscored(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

impl Job {
    /// Puts documents together; a later file's key beats an earlier one's.
    pub(super) fn assemble(documents: Vec<Document>, environment: &Environment) -> Result<Self, DebeziumError> {
        let (mut server, mut connector, mut worker) = (None::<Keys>, None::<Keys>, None::<Keys>);
        for document in documents {
            let (slot, keys) = match document {
                Document::Server(keys) => (&mut server, keys),
                Document::Connector(keys) => (&mut connector, keys),
                Document::Worker(keys) => (&mut worker, keys),
            };
            *slot = Some(slot.take().unwrap_or_default().overlaid(keys));
        }
        match (server, connector, worker) {
            (Some(server), None, worker) => {
                Ok(Self::of_server(&server.overlaid(worker.unwrap_or_default()), environment))
            }
            (None, Some(connector), worker) => Ok(Self::of_connect(connector, worker)),
            (Some(_), Some(_), _) => Err(DebeziumError::Together {
                message: "one file is Debezium Server's and another is Kafka Connect's".to_owned(),
                hint: "give the files of one of them",
            }),
            (None, None, _) => Err(DebeziumError::Together {
                message: "no file holds a connector (connector.class, or debezium.source.connector.class)".to_owned(),
                hint: "give Debezium Server's application.properties or a connector's JSON; a Connect worker's properties go along with it",
            }),
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
        Self { platform: Platform::Connect, connector, producer, worker, has_worker, server: Keys::default() }
    }

    /// Debezium Server's prefixes taken off; what is more special is laid over what is less.
    fn of_server(keys: &Keys, environment: &Environment) -> Self {
        let profiles = profiles(keys, environment);
        let mut server = with_variables(profiled(keys, &profiles), &profiles, environment);
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
        Self { platform: Platform::Server, connector, producer, worker: Keys::default(), has_worker: false, server }
    }
}

fn prefixed(prefix: &str, keys: &Keys) -> Keys {
    let mut all = Keys::default();
    keys.iter().for_each(|(key, value)| all.insert(format!("{prefix}{key}"), value.clone()));
    all
}

/// Variables beat the file, those of active profiles others: by the exact name of a key, dots and all, else by the name that theirs
/// stands for.
fn with_variables(keys: Keys, profiles: &[String], environment: &Environment) -> Keys {
    let mut known = BTreeMap::new();
    for (key, _) in keys.iter() {
        // In the key's own case, too.
        known.insert(underscored(key), key.to_owned());
        known.insert(variable_of(key), key.to_owned());
    }
    let (mut exact, mut given) = (Keys::default(), Keys::default());
    let mut of_profiles = vec![Keys::default(); profiles.len()];
    for (name, text) in environment.variables.iter().filter(|(_, text)| !text.is_empty()) {
        let value = Value { text: text.clone(), origin: Origin::Variable(name.clone()) };
        if is_key(name) {
            exact.insert(name.clone(), value);
        } else if is_variable(name) || known.contains_key(name) {
            given.insert(known.get(name).cloned().unwrap_or_else(|| name_of(name)), value);
        } else {
            for (profile, layer) in profiles.iter().zip(&mut of_profiles) {
                let prefix = format!("_{}_", variable_of(profile));
                let rest = name.strip_prefix(&prefix).filter(|rest| is_variable(rest));
                if let Some(rest) = rest {
                    layer.insert(known.get(rest).cloned().unwrap_or_else(|| name_of(rest)), value.clone());
                }
            }
        }
    }
    of_profiles.into_iter().fold(keys.overlaid(given).overlaid(exact), Keys::overlaid)
}

/// Whether a variable's name is a key as it stands.
fn is_key(name: &str) -> bool {
    let of_part = |part: &&str| name.strip_prefix("debezium.").is_some_and(|rest| rest.starts_with(*part));
    ["source.", "sink.", "format.", "transforms", "predicates"].iter().any(of_part)
}

/// Whether a variable's name stands for one of Debezium Server's keys; `DEBEZIUM_VERSION` and the like are its image's.
fn is_variable(name: &str) -> bool {
    let of_part = |part: &&str| name.strip_prefix("DEBEZIUM_").is_some_and(|rest| rest.starts_with(*part));
    ["SOURCE_", "SINK_", "FORMAT_", "TRANSFORMS", "PREDICATES"].iter().any(of_part)
}

//! Tests the translation of configurations as users have them, with one file for each subject. This file has the configurations, and
//! functions for all tests.

mod converters;
mod database;
mod files;
mod notes;
mod producer;
mod profiles;
mod router;

use super::*;
use crate::setting_text::SettingError;

/// A configuration that gives no notes.
pub(super) const SERVER: &str = "\
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=k:9092
debezium.format.key=simplestring
debezium.format.value=simplestring
debezium.format.header=clientprovided
debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.database.hostname=db
debezium.source.slot.name=dbz
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
";

/// The same for Kafka Connect: the members of an object.
pub(super) const CONNECTOR: &str = r#"
"connector.class": "io.debezium.connector.postgresql.PostgresConnector",
"plugin.name": "pgoutput",
"slot.name": "dbz",
"key.converter": "org.apache.kafka.connect.storage.StringConverter",
"value.converter": "org.apache.kafka.connect.storage.StringConverter",
"transforms": "outbox",
"transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter""#;

fn environment(variables: &[(&str, &str)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Environment { variables, ..Environment::default() }
}

fn read_all(files: &[&str], variables: &[(&str, &str)]) -> Result<Translation, SettingError> {
    let dir = tempfile::tempdir().unwrap();
    let write = |(at, text): (usize, &&str)| {
        let path = dir.path().join(format!("file{at}"));
        std::fs::write(&path, text).unwrap();
        path
    };
    let files = files.iter().enumerate().map(write).collect::<Vec<_>>();
    read(&files, &environment(variables))
}

#[track_caller]
pub(super) fn translated(files: &[&str]) -> Translation {
    read_all(files, &[]).unwrap_or_else(|error| panic!("{error}"))
}

/// Translates the configuration of Debezium Server, with further lines.
#[track_caller]
pub(super) fn server(lines: &str) -> Translation {
    translated(&[&format!("{SERVER}{lines}\n")])
}

/// Translates the configuration of the connector, with further members.
#[track_caller]
fn connect(members: &str) -> Translation {
    let comma = if members.is_empty() { "" } else { "," };
    translated(&[&format!("{{{CONNECTOR}{comma}{members}}}")])
}

/// The values of a setting, with blanks between them.
fn setting(translation: &Translation, name: &str) -> Option<String> {
    translation.settings.get(name).map(|setting| setting.values.join(" "))
}

fn property(translation: &Translation, name: &str) -> Option<String> {
    translation.properties.get(name).map(|setting| setting.values.join(" "))
}

/// The notes on a key: severity and text.
fn notes(translation: &Translation, key: &str) -> Vec<(Severity, String)> {
    let on = |note: &&Note| note.origin.split(" (").next() == Some(key);
    translation.notes.iter().filter(on).map(|note| (note.severity, note.text.clone())).collect()
}

#[track_caller]
fn noted(translation: &Translation, key: &str, severity: Severity, part: &str) {
    let found = notes(translation, key);
    assert!(found.iter().any(|(s, text)| *s == severity && text.contains(part)), "{key}: {found:?}");
}

/// Checks one option of the router, and the setting that it becomes.
#[track_caller]
fn router(option: &str, value: &str, name: &str, expected: &str) {
    let members = serde_json::json!({ format!("transforms.outbox.{option}"): value }).to_string();
    let translation = connect(members.trim_matches(['{', '}']));
    assert_eq!(setting(&translation, name).as_deref(), Some(expected), "{option}={value}");
    assert!(translation.verdict(false).is_ok(), "{option}={value}: {:?}", translation.notes);
}

/// Checks the note on one key of the connector.
#[track_caller]
fn of_key(key: &str, value: &str, severity: Severity, part: &str) {
    let translation = server(&format!("debezium.source.{key}={value}"));
    noted(&translation, &format!("debezium.source.{key}"), severity, part);
}

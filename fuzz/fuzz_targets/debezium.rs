//! Any files as a Debezium configuration.
//!
//! The input's first text says what the others are. `any`: up to three files and, behind a line `env`, variables as `NAME=value`.
//! What is translated is shown as it is: flags and TOML of the report, read back, are the settings, each once. A file is read
//! as one with the same keys written in another way, and no key is passed over in silence. Notes and errors are short lines.
//! `secret`: a key's name, the text around a secret in its value, then files. The secret is never shown.

#![no_main]

use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use serde_json::Value as Json;
use walrelay::debezium::{self, Setting, Translation};
use walrelay::setting_text::SettingError;
use walrelay::pg::source::Environment;
use walrelay_fuzz::{SECRET, Scratch, assert_short, assert_well_formed, names_devices, texts};

thread_local! {
    static FILES: [Scratch; 3] = ["first", "second", "third"].map(Scratch::new);
}

fuzz_target!(|input: &[u8]| {
    let whole = String::from_utf8_lossy(input);
    if (whole.contains('$') && names_devices(&whole)) || whole.contains(SECRET) {
        return;
    }
    let mut texts = texts(input);
    match texts.next() {
        Some(b"any") => any(&texts.collect::<Vec<_>>()),
        Some(b"secret") => {
            let mut next = || String::from_utf8_lossy(texts.next().unwrap_or_default()).into_owned();
            let (key, before, after) = (next(), next(), next());
            secret(&key, &before, &after, &texts.collect::<Vec<_>>());
        }
        _ => {}
    }
});

fn any(texts: &[&[u8]]) {
    let (variables, files): (Vec<&[u8]>, Vec<&[u8]>) = texts.iter().partition(|text| text.starts_with(b"env\n"));
    let variables = String::from_utf8_lossy(variables.first().copied().unwrap_or_default()).into_owned();
    let environment = environment(variables.lines().filter_map(|line| line.split_once('=')));
    let translation = match read(&files, &environment) {
        Ok(translation) => translation,
        Err(error) => return assert_short(&error.to_string(), 0),
    };
    judge(&translation);
    if let ([file], Some(pairs)) = (files.as_slice(), files.first().and_then(|file| pairs(file))) {
        let again = read(&[&as_properties(&pairs)], &environment).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(all(&again), all(&translation), "{}", String::from_utf8_lossy(file));
        nothing_in_silence(&translation, pairs, &environment);
    }
}

fn environment<'v>(variables: impl Iterator<Item = (&'v str, &'v str)>) -> Environment {
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Environment { variables, ..Environment::default() }
}

/// Up to three files.
fn read(texts: &[&[u8]], environment: &Environment) -> Result<Translation, SettingError> {
    let paths = FILES.with(|files| {
        let write = |(file, text): (&Scratch, &&[u8])| {
            file.write(text);
            file.path().to_owned()
        };
        files.iter().zip(texts).map(write).collect::<Vec<PathBuf>>()
    });
    debezium::read(&paths, environment)
}

fn judge(translation: &Translation) {
    for note in &translation.notes {
        assert_short(&note.to_string(), 0);
    }
    assert!(translation.verdict(false).is_err() || translation.verdict(true).is_ok(), "accepted, and yet not");
    let has = |name| translation.settings.contains_key(name);
    assert!(!(has("topic") && has("topic-regex")) && has("topic-regex") == has("topic-replacement"));
    let report = translation.report(&["a file".into()], false);
    let (flags, rest) = between(&report, "\nAs flags:\n\n");
    let (toml, _) = between(rest, "\nAs TOML:\n\n");
    // What a value holds may look like the next title.
    if report.matches("As TOML:").count() == 1 && report.matches("Only --from-debezium").count() == 1 {
        assert_eq!(flags_of(flags), expected_flags(translation), "{flags}");
        assert_eq!(toml_of(toml), expected_toml(translation), "{toml}");
    }
    if let Some(source) = translation.settings.get("source") {
        assert_well_formed(&source.values[0]);
    }
}

/// What stands behind a title up to the next one, and from there on.
fn between<'r>(report: &'r str, title: &str) -> (&'r str, &'r str) {
    let (_, behind) = report.split_once(title).unwrap();
    let end = ["\nAs TOML:", "\nOnly --from-debezium"].iter().filter_map(|next| behind.find(next)).min().unwrap();
    behind.split_at(end)
}

/// Names and values of flags, in their order.
fn flags_of(command: &str) -> Vec<(String, String)> {
    let mut words = words(command).into_iter().skip(2);
    let mut flags = Vec::new();
    while let Some(word) = words.next() {
        match word.strip_prefix("--").and_then(|word| word.split_once('=')) {
            Some((name, value)) => flags.push((format!("--{name}"), value.to_owned())),
            None => flags.push((word.clone(), words.next().filter(|value| !value.starts_with('-')).expect(&word))),
        }
    }
    flags
}

/// The words of a shell's command with single quotes and backslashes.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    let mut characters = command.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            _ if quoted => word.get_or_insert_default().push(character),
            '\\' => match characters.next() {
                Some('\n') => {}
                escaped => word.get_or_insert_default().extend(escaped),
            },
            ' ' | '\n' => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    assert!(!quoted, "{command}");
    words.extend(word);
    words
}

fn expected_flags(translation: &Translation) -> Vec<(String, String)> {
    let mut flags = vec![("--from-debezium".to_owned(), "a file".to_owned())];
    for (name, setting) in &translation.settings {
        flags.extend(shown(setting).iter().map(|value| (format!("--{name}"), value.clone())));
    }
    for (name, setting) in &translation.properties {
        let value = shown(setting).first().map_or("@FILE", |value| value);
        flags.push(("-X".to_owned(), format!("{name}={value}")));
    }
    flags
}

fn shown(setting: &Setting) -> &[String] {
    setting.shown.as_deref().unwrap_or_default()
}

fn toml_of(text: &str) -> toml::Table {
    text.parse().unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn expected_toml(translation: &Translation) -> toml::Table {
    let list = |values: &[String]| toml::Value::Array(values.iter().cloned().map(toml::Value::String).collect());
    let mut table = toml::Table::new();
    table.insert("from-debezium".to_owned(), list(&["a file".to_owned()]));
    for (name, setting) in &translation.settings {
        let value = match shown(setting) {
            [one] if !setting.is_list => toml::Value::String(one.clone()),
            several => list(several),
        };
        table.insert((*name).to_owned(), value);
    }
    let mut kafka = toml::Table::new();
    for (name, setting) in &translation.properties {
        kafka.extend(shown(setting).first().map(|value| (name.clone(), toml::Value::String(value.clone()))));
    }
    if !translation.properties.is_empty() {
        table.insert("kafka".to_owned(), toml::Value::Table(kafka));
    }
    table
}

/// All that is made of a configuration, but for the lines of its keys.
fn all(translation: &Translation) -> (String, Vec<String>) {
    let of = |name: &str, setting: &Setting| format!("{name}={:?} {:?}\n", setting.values, setting.shown);
    let settings = translation.settings.iter().map(|(name, setting)| of(name, setting));
    let properties = translation.properties.iter().map(|(name, setting)| of(name, setting));
    let made = settings.chain(properties).collect::<String>();
    let notes =
        translation.notes.iter().map(|note| format!("{:?} {}: {}", note.severity, key(&note.origin), note.text));
    (format!("{made}{:?}\n{}", translation.connect, translation.tables), notes.collect())
}

/// The key of `KEY (FILE, line N)`.
fn key(origin: &str) -> &str {
    origin.rsplit_once(" (").map_or(origin, |(key, _)| key)
}

/// The keys of a file and their values, where that is easily said: a connector in JSON, properties without any escape.
fn pairs(file: &[u8]) -> Option<Vec<(String, String)>> {
    let text = std::str::from_utf8(file).ok()?;
    if let Ok(Json::Object(outer)) = serde_json::from_str(text) {
        let config = outer.get("config").and_then(Json::as_object).unwrap_or(&outer);
        let value = |value: &Json| match value {
            Json::String(text) => text.clone(),
            other => other.to_string(),
        };
        let given = config.iter().filter(|(_, value)| !value.is_null());
        let pairs = given.map(|(key, text)| (key.clone(), value(text))).collect::<Vec<_>>();
        let of_server = ["%", "DEBEZIUM_", "QUARKUS_", "debezium.", "quarkus."];
        let odd = |key: &str| of_server.iter().any(|prefix| key.starts_with(prefix));
        let is_connector = pairs.iter().any(|(key, _)| key == "connector.class");
        return (is_connector && !pairs.iter().any(|(key, _)| odd(key))).then_some(pairs);
    }
    let lines = text.split('\n').filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pairs = lines.map(pair).collect::<Option<Vec<_>>>()?;
    let mut keys = pairs.iter().map(|(key, _)| key).collect::<Vec<_>>();
    keys.sort();
    keys.windows(2).all(|two| two[0] != two[1]).then_some(pairs)
}

fn pair(line: &str) -> Option<(String, String)> {
    let (key, value) = line.split_once('=')?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.';
    let odd = value.contains(['\\', '\r', '\u{FEFF}']) || value.starts_with([' ', '\t', '\x0C', '=', ':']);
    (key.starts_with(|c: char| c.is_ascii_lowercase()) && key.chars().all(plain) && !odd)
        .then(|| (key.to_owned(), value.to_owned()))
}

/// Every character as an escape.
fn as_properties(pairs: &[(String, String)]) -> Vec<u8> {
    let escaped = |text: &str| text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    pairs.iter().map(|(key, value)| format!("{} = {}\n", escaped(key), escaped(value))).collect::<String>().into_bytes()
}

/// A key without which all would be the same has a note that says so.
fn nothing_in_silence(with: &Translation, mut pairs: Vec<(String, String)>, environment: &Environment) {
    if pairs.is_empty() {
        return;
    }
    // Whichever: the input's length says it.
    let (dropped, value) = pairs.remove(pairs.iter().map(|(_, value)| value.len()).sum::<usize>() % pairs.len());
    let settings = with.settings.values().chain(with.properties.values()).map(|setting| setting.origin.to_string());
    let mut origins = settings.chain(with.notes.iter().map(|note| note.origin.clone()));
    let is_carried = origins.any(|origin| key(&origin) == dropped);
    let Ok(without) = read(&[&as_properties(&pairs)], environment) else { return };
    // Blank is as not given; and a note's name of a key is one line, and cut.
    let is_whole = !value.trim().is_empty() && dropped.len() <= 200 && !dropped.contains(char::is_control);
    if is_whole && !is_carried && !may_be_default(&dropped) {
        assert_ne!(all(with), all(&without), "{dropped}={value} changes nothing, and nothing is said of it");
    }
}

/// Keys that may say what holds without them, and that give no setting of their own.
fn may_be_default(key: &str) -> bool {
    key.contains("converter") || key.starts_with("debezium.format.") || key.contains(".route.topic.re")
}

/// Secrets of the connector and its producer; the last ones are nobody's, and look like secrets.
const SECRETS: [&str; 13] = [
    "database.password",
    "database.sslpassword",
    "producer.sasl.jaas.config",
    "producer.ssl.key.password",
    "producer.ssl.keystore.password",
    "producer.ssl.keystore.key",
    "producer.ssl.keystore.certificate.chain",
    "producer.ssl.truststore.password",
    "producer.ssl.truststore.certificates",
    "producer.sasl.oauthbearer.client.credentials.client.secret",
    "producer.sasl.oauthbearer.assertion.private.key.passphrase",
    "value.converter.basic.auth.user.info",
    "some.password",
];

/// Names of a login module's options that are shown.
const SHOWN_OPTIONS: [&str; 3] = ["username", "clientId", "scope"];

fn secret(key: &str, before: &str, after: &str, files: &[&[u8]]) {
    let Some((first, others)) = files.split_first() else { return };
    let is_jaas = key == "producer.sasl.jaas.config";
    let is_shown = is_jaas && SHOWN_OPTIONS.iter().any(|option| before.contains(option));
    if !SECRETS.contains(&key) || is_shown || [before, after].iter().any(|text| text.contains('$')) {
        return;
    }
    let value = format!("{before}{SECRET}{after}");
    let environment = environment([("THE_SECRET", value.as_str())].into_iter());
    for value in [value.as_str(), "${env:THE_SECRET}", "${THE_SECRET}"] {
        let with = with(first, key, value);
        let files = std::iter::once(with.as_slice()).chain(others.iter().copied()).collect::<Vec<_>>();
        let shown = match read(&files, &environment) {
            Ok(translation) => everything_shown(&translation),
            Err(error) => format!("{error:?} {error} {:?}", error.hint),
        };
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

/// The file with one more key.
fn with(file: &[u8], key: &str, value: &str) -> Vec<u8> {
    let is_server = file.windows(9).any(|window| window == b"debezium.");
    let name = match (key.strip_prefix("producer."), is_server) {
        (Some(rest), true) => format!("debezium.sink.kafka.producer.{rest}"),
        (Some(rest), false) => format!("producer.override.{rest}"),
        (None, true) => format!("debezium.source.{key}"),
        (None, false) => key.to_owned(),
    };
    if let Ok(Json::Object(mut object)) = serde_json::from_slice(file) {
        let config = match object.get_mut("config") {
            Some(Json::Object(config)) => config,
            _ => &mut object,
        };
        config.insert(name, value.into());
        return Json::Object(object).to_string().into_bytes();
    }
    // An empty line ends one that a backslash would join.
    [file, b"\n\n", &as_properties(&[(name, value.to_owned())])].concat()
}

fn everything_shown(translation: &Translation) -> String {
    let verdict = |accept| match translation.verdict(accept) {
        Ok(()) => String::new(),
        Err(error) => format!("{error:?} {error} {:?}", error.hint),
    };
    let reports = [false, true].map(|accept| translation.report(&["a file".into()], accept) + &verdict(accept));
    format!("{reports:?} {:?} {:?} {:?}", translation.warnings(), translation.notes, translation.connect)
}

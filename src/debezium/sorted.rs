//! Tests that each key which Debezium 3.6.3, its router, Kafka's producer or the converters declare is handled.
//!
//! In: `declared.txt`, which `walrelay-dev conformance-debezium --write` writes from the jars, and `sorted.tsv`. A line of `sorted.tsv`
//! has the class that declares a key, the key's name, a value with an effect, and a sort. The sort is the result of the translation:
//! `mapped` for a setting, `nothing` if nothing is lost, `reported` for a warning or a difference, and `refused`. `WALRELAY_BLESS=1`
//! writes the sorts again, and keeps the values.

use super::tests::{CONNECTOR, SERVER, server, translated};
use super::{Note, Severity, Translation};

const DECLARED: &str = include_str!("declared.txt");
const SORTED: &str = include_str!("sorted.tsv");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/debezium/sorted.tsv");

/// The value for a key that is not in `sorted.tsv` yet.
const ANY: &str = "1";

/// `(who, key)` of a declared line.
fn declared() -> Vec<(&'static str, &'static str)> {
    DECLARED.lines().map(|line| line.split_once(' ').unwrap()).collect()
}

fn sample(who: &str, key: &str) -> &'static str {
    let mut rows = SORTED.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&who) && row.get(1) == Some(&key));
    row.and_then(|row| row.get(2).copied()).unwrap_or(ANY)
}

/// The translation of a configuration with the key, and without it; and the key as notes name it.
fn with_and_without(who: &str, key: &str, value: &str) -> (Translation, Translation, String) {
    const CLASS: &str = "org.apache.kafka.connect";
    let connect = |members: &str| translated(&[&format!("{{{CONNECTOR}{members}}}")]);
    let member = |key: &str| format!(",{}:{}", serde_json::json!(key), serde_json::json!(value));
    let named = |key: String| (connect(&member(&key)), connect(""), key);
    let below = |class: &str, key: &str| {
        let converter = format!(",\"value.converter\":\"{class}\"");
        let key = format!("value.converter.{key}");
        (connect(&format!("{converter}{}", member(&key))), connect(&converter), key)
    };
    match who {
        "connector" | "connect" => named(key.to_owned()),
        "router" => named(format!("transforms.outbox.{key}")),
        "producer" => named(format!("producer.override.{key}")),
        "json" => below(&format!("{CLASS}.json.JsonConverter"), key),
        "string" => below(&format!("{CLASS}.storage.StringConverter"), key),
        "binary" => below("io.debezium.converters.BinaryDataConverter", key),
        "engine" if key == "transforms" => {
            // Debezium Server has a key of its own for them, which takes precedence.
            let without = SERVER.replace("debezium.transforms=outbox\n", "");
            let key = format!("debezium.source.{key}");
            (translated(&[&format!("{without}{key}={value}\n")]), translated(&[&without]), key)
        }
        "engine" => {
            let key = format!("debezium.source.{key}");
            (server(&format!("{key}={value}")), server(""), key)
        }
        _ => (server(&format!("{key}={value}")), server(""), key.to_owned()),
    }
}

/// Writes a translation as text, without its notes.
fn made(translation: &Translation) -> String {
    let settings = translation.settings.iter().map(|(name, setting)| format!("{name}={:?}", setting.values));
    let properties = translation.properties.iter().map(|(name, setting)| format!("{name}={:?}", setting.values));
    let both = settings.chain(properties).collect::<Vec<_>>().join(" ");
    format!("{both} {:?} {}", translation.connect, translation.tables)
}

fn sort(who: &str, key: &str, value: &str) -> &'static str {
    let (with, without, named) = with_and_without(who, key, value);
    let on = |note: &&Note| note.origin.split(" (").next() == Some(&named);
    let worst = with.notes.iter().filter(on).map(|note| note.severity).max();
    let unknown = with
        .notes
        .iter()
        .filter(on)
        .any(|note| note.text.contains("known here") || note.text.contains("knows no such"));
    match worst {
        _ if unknown => "unknown",
        Some(Severity::Refused) => "refused",
        Some(Severity::Differs | Severity::Warning) => "reported",
        _ if made(&with) != made(&without) => "mapped",
        Some(Severity::NotNeeded) => "nothing",
        None => "silent",
    }
}

fn row(who: &str, key: &str) -> String {
    let value = sample(who, key);
    format!("{who}\t{key}\t{value}\t{}", sort(who, key, value))
}

#[test]
fn every_declared_key_is_sorted_as_the_list_has_it() {
    let rows = declared().into_iter().map(|(who, key)| row(who, key)).collect::<Vec<_>>();
    if std::env::var_os("WALRELAY_BLESS").is_some() {
        std::fs::write(FILE, format!("{}\n", rows.join("\n"))).unwrap();
        return;
    }
    let listed = SORTED.lines().collect::<Vec<_>>();
    assert_eq!(rows, listed);
}

#[test]
fn no_declared_key_is_unknown_or_skipped_silently() {
    let rows = declared().into_iter().map(|(who, key)| row(who, key));
    let bad = rows.filter(|row| row.ends_with("unknown") || row.ends_with("silent")).collect::<Vec<_>>();
    assert_eq!(bad, Vec::<String>::new());
}

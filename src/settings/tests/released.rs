//! The settings' files of each version: `tests/golden/state/VERSION/settings`.

use super::*;
use crate::settings::cli;
use crate::sink::kinds::KINDS;
use crate::tests::{Golden, golden, golden_names};
use std::collections::BTreeSet;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The files of all versions.
fn files() -> Vec<Golden> {
    let names = golden_names("settings")
        .into_iter()
        .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "toml"));
    names.flat_map(|name| golden(&name)).collect()
}

/// The keys of a table, with those of tables in it: `kafka.linger.ms`.
fn keys(prefix: &str, table: &DeTable<'_>, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => keys(&format!("{name}."), table, found),
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_) => drop(found.insert(name.replace('_', "-"))),
        }
    }
}

#[test]
fn the_files_of_each_version_are_settings_without_a_warning() {
    for Golden { version, path, .. } in files() {
        match parse_in(&environment(&[]), &["run", "-c", path.to_str().unwrap()]) {
            Ok(Invocation { task: Task::Run(_), warnings, .. }) => {
                // The one of a Debezium configuration tells its differences.
                let is_translated = path.file_stem().is_some_and(|stem| stem == "debezium");
                assert!(warnings.is_empty() || is_translated, "version {version}: {}: {warnings:?}", path.display());
            }
            Ok(other) => panic!("{other:?}"),
            Err(exit) => panic!("version {version}: {}: {exit}", path.display()),
        }
    }
}

/// So that a setting that is renamed or removed is missed in the test above.
#[test]
fn every_setting_and_property_is_in_a_file_of_some_version() {
    let mut found = BTreeSet::new();
    for Golden { text, .. } in files() {
        keys("", DeTable::parse(&text).unwrap().get_ref(), &mut found);
    }
    let of_kinds =
        KINDS.iter().flat_map(|kind| kind.properties.iter().map(|property| format!("{}.{property}", kind.name)));
    let missing: Vec<String> =
        cli::settings().into_iter().map(str::to_owned).chain(of_kinds).filter(|name| !found.contains(name)).collect();
    assert!(missing.is_empty(), "in no file of tests/golden/state/VERSION/settings: {missing:?}");
}

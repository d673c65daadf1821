//! Quarkus' profiles, and variables in the place of keys.

use std::fs;

use super::*;

#[test]
fn variables_of_debezium_server_beat_its_file() {
    let variables = [
        ("DEBEZIUM_SOURCE_SLOT_NAME", "from_env"),
        ("DEBEZIUM_SOURCE_DATABASE_DBNAME", "shop"),
        ("DEBEZIUM_TRANSFORMS_OUTBOX_ROUTE_BY_FIELD", "my_area"),
        ("DEBEZIUM_SINK_KAFKA_PRODUCER_LINGER_MS", "3"),
        ("DEBEZIUM_VERSION", "3.6"),
    ];
    let translation = read_all(&[SERVER], &variables).unwrap();
    assert_eq!(setting(&translation, "slot").as_deref(), Some("from_env"));
    assert_eq!(setting(&translation, "source").as_deref(), Some("host=db dbname=shop"));
    assert_eq!(setting(&translation, "route-column").as_deref(), Some("my_area"));
    assert_eq!(property(&translation, "linger.ms").as_deref(), Some("3"));
    assert_eq!(translation.settings["slot"].origin.to_string(), "DEBEZIUM_SOURCE_SLOT_NAME");
}

#[test]
fn a_file_may_hold_the_names_of_variables() {
    let shell = SERVER.lines().map(|line| {
        let (key, value) = line.split_once('=').unwrap();
        format!("{}={value}", key.replace('.', "_").to_ascii_uppercase())
    });
    let translation = translated(&[&shell.collect::<Vec<_>>().join("\n")]);
    assert_eq!(setting(&translation, "slot").as_deref(), Some("dbz"));
    translation.verdict(false).unwrap();
}

#[test]
fn the_profile_prod_counts_and_others_do_not() {
    let translation = server("%prod.debezium.source.slot.name=real\n%dev.debezium.source.slot.name=toy");
    assert_eq!(setting(&translation, "slot").as_deref(), Some("real"));
}

const PROFILES: &str = "%prod.debezium.source.slot.name=prod\n%staging.debezium.source.slot.name=staging\n\
                        %common,eu.debezium.source.slot.name=common\n";

#[track_caller]
fn slot_with(lines: &str, variables: &[(&str, &str)], expected: &str) {
    let translation = read_all(&[&format!("{SERVER}{PROFILES}{lines}")], variables).unwrap();
    assert_eq!(setting(&translation, "slot").as_deref(), Some(expected), "{lines} {variables:?}");
}

#[test]
fn quarkus_profile_chooses_the_keys_of_a_profile() {
    slot_with("", &[], "prod");
    slot_with("", &[("QUARKUS_PROFILE", "staging")], "staging");
    slot_with("", &[("quarkus.profile", "staging")], "staging");
    slot_with("quarkus.profile=staging", &[], "staging");
    slot_with("quarkus.profile=prod", &[("QUARKUS_PROFILE", "staging")], "staging");
    slot_with("", &[("QUARKUS_PROFILE", "none-of-these")], "dbz");
}

#[test]
fn the_last_of_several_profiles_counts_most() {
    slot_with("quarkus.profile=eu,staging", &[], "staging");
    slot_with("quarkus.profile=staging,eu", &[], "common");
    slot_with("quarkus.profile=staging, other", &[], "staging");
}

#[test]
fn variables_of_a_profile_beat_variables_of_none_and_those_the_files() {
    let profile = ("QUARKUS_PROFILE", "staging");
    slot_with("", &[profile, ("DEBEZIUM_SOURCE_SLOT_NAME", "variable")], "variable");
    let both =
        [profile, ("DEBEZIUM_SOURCE_SLOT_NAME", "variable"), ("_STAGING_DEBEZIUM_SOURCE_SLOT_NAME", "of_profile")];
    slot_with("", &both, "of_profile");
    slot_with("", &[("_STAGING_DEBEZIUM_SOURCE_SLOT_NAME", "of_profile")], "prod");
}

#[test]
fn a_variable_may_have_a_keys_own_name() {
    let key = "debezium.transforms.outbox.table.field.event.key";
    let translation = read_all(&[SERVER], &[(key, "type")]).unwrap();
    assert_eq!(setting(&translation, "key-column").as_deref(), Some("type"));
    let shell = ("DEBEZIUM_SOURCE_SLOT_NAME", "shell");
    slot_with("", &[shell, ("debezium.source.slot.name", "dotted")], "dotted");
    slot_with("", &[("debezium_source_slot_name", "lower")], "lower");
}

#[test]
fn the_file_of_an_active_profile_is_read_beside_the_one_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("application.properties");
    fs::write(&path, format!("{SERVER}quarkus.profile=staging\n")).unwrap();
    fs::write(dir.path().join("application-staging.properties"), "debezium.source.slot.name=beside\n").unwrap();
    fs::write(dir.path().join("application-prod.properties"), "debezium.source.slot.name=wrong\n").unwrap();
    let translation = read(&[path], &environment(&[])).unwrap();
    assert_eq!(setting(&translation, "slot").as_deref(), Some("beside"));
}

//! Tests Quarkus' profiles, and variables that stand for keys.

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
fn a_file_may_have_underscores_in_the_place_of_dots_where_debezium_server_takes_them() {
    let shell = |upper: bool| {
        let lines = SERVER.lines().map(|line| {
            let (key, value) = line.split_once('=').unwrap();
            let of_engine = ["debezium.source.", "debezium.transforms."].iter().any(|prefix| key.starts_with(prefix));
            let key = if of_engine { key.replace('.', "_") } else { key.to_owned() };
            format!("{}={value}\n", if upper && of_engine { key.to_ascii_uppercase() } else { key })
        });
        lines.collect::<String>()
    };
    for upper in [true, false] {
        let translation = translated(&[&shell(upper)]);
        assert_eq!(setting(&translation, "slot").as_deref(), Some("dbz"));
        translation.verdict(false).unwrap();
    }
    let not_taken = server("debezium_sink_kafka_producer_linger_ms=7\ndebezium_format_key=json");
    assert_eq!(property(&not_taken, "linger.ms"), None);
    assert_eq!(not_taken.connect.key, crate::outbox::connect::Converter::Text);
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
    slot_with("", &[("QUARKUS_PROFILE", "")], "dbz");
    slot_with("quarkus.profile=${P}", &[("P", "staging")], "dbz");
}

#[test]
fn in_each_place_the_profile_of_microprofile_counts_most_and_that_of_smallrye_least() {
    let (mp, quarkus, smallrye) =
        (("MP_CONFIG_PROFILE", "prod"), ("QUARKUS_PROFILE", "staging"), ("SMALLRYE_CONFIG_PROFILE", "eu"));
    slot_with("", &[mp, quarkus, smallrye], "prod");
    slot_with("", &[quarkus, smallrye], "staging");
    slot_with("mp.config.profile=prod", &[smallrye], "common");
    slot_with("mp.config.profile=staging\nquarkus.profile=eu", &[], "staging");
    slot_with("quarkus.profile=staging\nsmallrye.config.profile=eu", &[], "staging");
    slot_with("smallrye.config.profile=eu", &[("mp_config_profile", "")], "dbz");
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
    slot_with("", &[("debezium_source_slot_name", "lower")], "lower");
    slot_with("", &[("Debezium_Source_slot_NAME", "mixed")], "mixed");
    slot_with("", &[("debezium.source.slot.name", "dotted")], "dotted");
}

#[test]
fn two_spellings_of_a_key_with_two_values_are_an_error() {
    let shell = ("DEBEZIUM_SOURCE_SLOT_NAME", "shell");
    let with = |lines: &str, variables: &[(&str, &str)]| read_all(&[&format!("{SERVER}{lines}\n")], variables).err();
    let error = with("", &[shell, ("debezium.source.slot.name", "dotted")]).unwrap().to_string();
    assert!(error.contains("are one key with two values") && !error.contains("dotted\""), "{error}");
    assert!(with("debezium_source_slot_name=lower", &[]).is_some());
    assert!(with("debezium_source_slot_name=dbz", &[]).is_none());
    assert!(with("", &[shell, ("debezium.source.slot.name", "shell")]).is_none());
}

#[test]
fn an_empty_variable_takes_the_place_of_a_key() {
    let variables = [("DEBEZIUM_SOURCE_TABLE_INCLUDE_LIST", "")];
    let file = format!("{SERVER}debezium.source.table.include.list=a.b\n");
    assert!(!translated(&[&file]).tables.is_empty());
    assert!(read_all(&[&file], &variables).unwrap().tables.is_empty());
}

#[test]
fn a_variable_in_capitals_counts_for_a_key_in_mixed_case() {
    let file = format!("{SERVER}debezium.source.database.tcpKeepAlive=true\n");
    let translation = read_all(&[&file], &[("DEBEZIUM_SOURCE_DATABASE_TCPKEEPALIVE", "false")]).unwrap();
    assert!(setting(&translation, "source").unwrap().contains("keepalives=0"));
}

#[test]
fn places_that_are_not_read_give_a_note() {
    let of = |name: &str, value: &str| read_all(&[SERVER], &[(name, value)]).unwrap();
    let option = "-Xmx1g -Ddebezium.source.slot.name=other";
    for (name, value) in [
        ("QUARKUS_CONFIG_LOCATIONS", "/etc/x.properties"),
        ("smallrye_config_locations", "/etc/x.properties"),
        ("JAVA_TOOL_OPTIONS", option),
        ("JAVA_OPTS", option),
        ("DEBEZIUM_OPTS", "-Dquarkus.profile=dev"),
    ] {
        noted(&of(name, value), name, Severity::Differs, "not");
        assert!(of(name, value).verdict(false).is_err());
    }
    of("QUARKUS_CONFIG_LOCATIONS", "").verdict(false).unwrap();
    of("JAVA_OPTS", "-Xmx1g").verdict(false).unwrap();
}

/// A folder of Debezium Server, with further files.
fn folder(lines: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config/application.properties");
    let text = format!("{SERVER}{lines}\n");
    for (name, text) in [("config/application.properties", text.as_str())].iter().chain(files) {
        let file = dir.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    (dir, path)
}

#[test]
fn dot_env_in_the_working_directory_counts_more_than_files_and_less_than_variables() {
    let env = "DEBEZIUM_SOURCE_SLOT_NAME=dot\n_PROD_DEBEZIUM_SOURCE_PUBLICATION_NAME=pub\nHOST=from-dot\n";
    let (_dir, path) =
        folder("%prod.debezium.source.slot.name=file\ndebezium.source.database.user=${host}", &[(".env", env)]);
    let of = |variables: &[(&str, &str)]| read(std::slice::from_ref(&path), &environment(variables)).unwrap();
    let plain = of(&[]);
    assert_eq!(setting(&plain, "slot").as_deref(), Some("dot"));
    assert_eq!(setting(&plain, "publication").as_deref(), Some("pub"));
    assert_eq!(setting(&plain, "source").as_deref(), Some("host=db user=from-dot"));
    assert!(plain.settings["slot"].origin.to_string().contains(".env"));
    let with = of(&[("DEBEZIUM_SOURCE_SLOT_NAME", "variable"), ("DEBEZIUM_SOURCE_PUBLICATION_NAME", "var")]);
    assert_eq!(setting(&with, "slot").as_deref(), Some("variable"));
    assert_eq!(setting(&with, "publication").as_deref(), Some("var"));
    let (_dir, path) = folder("%b.debezium.source.slot.name=b", &[(".env", "QUARKUS_PROFILE=b\n")]);
    assert_eq!(setting(&read(&[path], &environment(&[])).unwrap(), "slot").as_deref(), Some("b"));
}

#[test]
fn files_that_debezium_server_reads_as_well_and_yaml_are_refused() {
    for other in ["config/application.yaml", "config/application.yml", "config/lib/application.properties"] {
        let (_dir, path) = folder("", &[(other, "a: b\n")]);
        let error = read(&[path], &environment(&[])).err().unwrap().to_string();
        assert!(error.contains(other.rsplit('/').next().unwrap()) && error.contains("not read here"), "{error}");
    }
    for name in ["application.yaml", "config.yml", "application.conf"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, "debezium:\n  source:\n    slot.name: x\n").unwrap();
        let error = read(&[path], &environment(&[])).err().unwrap().to_string();
        assert!(error.contains("this is YAML"), "{error}");
    }
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

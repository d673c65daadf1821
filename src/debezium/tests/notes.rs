//! Tests the notes on keys that are not carried over, and the report.

use super::*;

#[test]
fn what_is_not_needed_is_said_with_the_reason() {
    of_key("snapshot.mode", "initial", Severity::NotNeeded, "rows older than the slot");
    of_key("snapshot.mode", "no_data", Severity::NotNeeded, "rows older than the slot");
    of_key("heartbeat.interval.ms", "0", Severity::NotNeeded, "asks for nothing");
    of_key("heartbeat.action.query", "INSERT", Severity::NotNeeded, "idle outbox");
    of_key("signal.data.collection", "public.signals", Severity::NotNeeded, "signals");
    of_key("offset.storage.file.filename", "x", Severity::NotNeeded, "the slot is the only memory");
    of_key("poll.interval.ms", "10", Severity::NotNeeded, "pace");
    of_key("publication.autocreate.mode", "filtered", Severity::NotNeeded, "there already");
    of_key("topic.prefix", "app", Severity::NotNeeded, "names of schemas");
    of_key("tombstones.on.delete", "false", Severity::NotNeeded, "deletes");
}

#[test]
fn a_key_that_asks_for_nothing_is_noted_too() {
    of_key("database.tcpKeepAlive", "true", Severity::NotNeeded, "asks for nothing");
    let connected = connect(
        r#""producer.override.partitioner.ignore.keys": "false", "topic.prefix": "a",
           "transforms.outbox.table.expand.json.payload": "false", "transforms.outbox.table.field.additional.missing": "error",
           "transforms.outbox.table.field.event.payload": "p""#,
    );
    for (key, part) in [
        ("producer.override.partitioner.ignore.keys", "asks for nothing"),
        ("transforms.outbox.table.expand.json.payload", "asks for nothing"),
        ("transforms.outbox.table.field.additional.missing", "asks for nothing"),
    ] {
        noted(&connected, key, Severity::NotNeeded, part);
    }
}

#[test]
fn what_changes_something_else_is_a_warning() {
    of_key("flush.lsn.source", "false", Severity::Warning, "far behind");
    of_key("errors.tolerance", "all", Severity::Warning, "--on-bad-row");
    of_key("message.prefix.include.list", "x", Severity::Warning, "--message-prefix");
    of_key("heartbeat.interval.ms", "1000", Severity::Warning, "heartbeat topic");
    of_key("nonsense.key", "x", Severity::Warning, "no key of Debezium's");
    of_key("slot.nam", "x", Severity::Warning, "slot.name is");
    of_key("driver.socketTimeout", "x", Severity::Warning, "JDBC");
}

#[test]
fn records_in_transactions_are_a_warning() {
    let required = connect(r#""exactly.once.support": "required""#);
    noted(&required, "exactly.once.support", Severity::Warning, "--delivery exactly-once");
    let requested = connect(r#""exactly.once.support": "requested""#);
    noted(&requested, "exactly.once.support", Severity::NotNeeded, "own affair");
    for (value, severity) in [("enabled", Severity::Warning), ("preparing", Severity::NotNeeded)] {
        let worker = format!("bootstrap.servers=a:1\nexactly.once.source.support={value}\n");
        let both = translated(&[&format!("{{{CONNECTOR}}}"), &worker]);
        noted(&both, "exactly.once.source.support", severity, "");
    }
}

#[test]
fn what_changes_records_is_a_difference() {
    of_key("column.mask.hash.SHA-256.with.salt.x", "a.b.c", Severity::Differs, "masked");
    of_key("column.truncate.to.20.chars", "a.b.c", Severity::Differs, "shortened");
    of_key("converters", "mine", Severity::Differs, "custom converters");
    of_key("post.processors", "mine", Severity::Differs, "post processors");
    of_key("skipped.operations", "c,u", Severity::Differs, "published nothing");
    of_key("provide.transaction.metadata", "true", Severity::Differs, "not written");
    of_key("provide.transaction.metadata", "false", Severity::NotNeeded, "nothing");
    of_key("skipped.operations", "t", Severity::NotNeeded, "anyway");
}

/// Keys that have an effect only on schemas, each with a value that has one.
const OF_SCHEMAS: [(&str, &str); 5] = [
    ("column.propagate.source.type", ".*"),
    ("datatype.propagate.source.type", ".*"),
    ("schema.name.adjustment.mode", "avro"),
    ("topic.delimiter", "_"),
    ("topic.naming.strategy", "io.debezium.schema.SchemaRegexTopicNamingStrategy"),
];

#[test]
fn what_changes_schemas_is_a_difference_where_schemas_are_written() {
    for (key, value) in OF_SCHEMAS {
        of_key(key, value, Severity::NotNeeded, "only where a JsonConverter writes schemas");
        let json = server(&format!("debezium.format.value=json\ndebezium.source.{key}={value}"));
        noted(&json, &format!("debezium.source.{key}"), Severity::Differs, "schemas.enable=false");
        let bare = "debezium.format.value=json\ndebezium.format.value.schemas.enable=false";
        let bare = server(&format!("{bare}\ndebezium.source.{key}={value}"));
        noted(&bare, &format!("debezium.source.{key}"), Severity::NotNeeded, "only where");
    }
    let json = server(
        "debezium.format.value=json\ndebezium.source.schema.name.adjustment.mode=none\ndebezium.source.topic.delimiter=.",
    );
    json.verdict(false).unwrap();
}

#[test]
fn logical_messages_that_debezium_would_write_are_named() {
    noted(&server(""), "logical messages", Severity::Warning, "PREFIX.message");
    let none = server("debezium.source.message.prefix.exclude.list=.*");
    assert!(none.notes.iter().all(|note| note.origin != "logical messages"));
}

#[test]
fn notes_name_key_file_and_line() {
    let translation = server("\ndebezium.source.heartbeat.interval.ms=1");
    let note = translation.notes.iter().find(|note| note.origin.contains("heartbeat")).unwrap();
    assert!(note.origin.ends_with("file0, line 14)"), "{note}");
    let json = connect("\n\"heartbeat.interval.ms\": 1");
    let note = json.notes.iter().find(|note| note.origin.contains("heartbeat")).unwrap();
    assert!(note.origin.ends_with("file0, line 9)"), "{note}");
}

#[test]
fn debeziums_own_headers_are_left_out_with_a_warning() {
    noted(&connect(""), "headers", Severity::Warning, "__debezium.context");
}

#[test]
fn a_report_shows_flags_toml_and_what_was_ignored_and_no_secret() {
    let secrets = "debezium.source.database.password=hunter2\ndebezium.sink.kafka.producer.ssl.key.password=hunter2\n\
                   debezium.sink.kafka.producer.sasl.jaas.config=a.PlainLoginModule required username=\"u\" password=\"hunter2\";\n\
                   debezium.sink.kafka.producer.linger.ms=5\ndebezium.source.heartbeat.interval.ms=1\n\
                   debezium.transforms.outbox.table.fields.additional.placement=type:header:eventType,a:header";
    let report = server(secrets).report(&["my app.properties".into()], false);
    assert!(!report.contains("hunter2"), "{report}");
    for part in [
        "Debezium Server: my app.properties",
        "--from-debezium 'my app.properties'",
        "--slot dbz",
        "--header eventType=type",
        "-X linger.ms=5",
        "-X sasl.password=@FILE",
        "slot = \"dbz\"",
        "header = [\"eventType=type\", \"a=a\"]",
        "[kafka]",
        "\"linger.ms\" = \"5\"",
        "# \"sasl.password\" = …, not shown",
        "version  3.6.3: of a few columns, Debezium 3.7 writes something else",
        "values   as Java's texts (StringConverter)",
        "zone     UTC, in which times in arrays are read: Debezium takes its Java's",
        "Ignored: nothing is lost:",
        "heartbeat.interval.ms",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

#[test]
fn the_toml_of_a_report_is_toml() {
    let report = server("debezium.sink.kafka.producer.linger.ms=5\ndebezium.source.database.user=o'b\\\"x")
        .report(&["a".into()], true);
    let toml = report.split("As TOML:\n").nth(1).unwrap().split("\nOnly --from").next().unwrap();
    let table = toml.parse::<toml::Table>().unwrap();
    assert_eq!(table["kafka"]["linger.ms"].as_str(), Some("5"));
    assert_eq!(table["slot"].as_str(), Some("dbz"));
}

#[test]
fn a_note_is_one_line_of_bounded_length() {
    let long = "x".repeat(10_000);
    let members = serde_json::json!({
        "time.precision.mode": format!("{long}\n"),
        "snapshot\nmode": "1",
        "producer.override.partitioner.class": long,
        long.clone(): "1",
    })
    .to_string();
    let of_file = connect(members.trim_matches(['{', '}']));
    let variables = [("debezium.source.\u{16}a\nb", "1"), (&format!("debezium.source.{long}"), "1")];
    let of_variables = read_all(&["debezium.sink.type=kafka"], &variables).unwrap();
    for note in of_file.notes.iter().chain(&of_variables.notes) {
        let note = note.to_string();
        assert!(note.chars().count() < 1000 && !note.contains(char::is_control), "{note:?}");
    }
    let error = read_all(&["{\"a\\nb\": [], \"connector.class\": \"x\"}"], &[]).err().unwrap().to_string();
    assert!(!error.contains('\n'), "{error:?}");
}

#[test]
fn the_reports_flags_are_taken_as_they_stand() {
    let translation = connect(
        r#""transforms": "a\nb", "transforms.a\nb.type": "io.debezium.transforms.outbox.EventRouter", "transforms.a\nb.route.by.field": "-x""#,
    );
    let report = translation.report(&["f".into()], false);
    assert!(report.contains("--route-column=-x"), "{report}");
    assert!(report.contains("# transforms.a\\nb.route.by.field ("), "{report}");
}

//! Old set-ups as their users have them: what they mean here, and what is said of the rest.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::outbox::connect::{BinaryMode, Converter, DecimalMode, Expand, IntervalMode, Json, TimePrecision};

/// A set-up that has nothing to complain of.
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

/// The same for Kafka Connect, as members of an object.
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

fn read_all(files: &[&str], variables: &[(&str, &str)]) -> Result<Translation, DebeziumError> {
    let dir = tempfile::tempdir().unwrap();
    let write = |(at, text): (usize, &&str)| {
        let path = dir.path().join(format!("file{at}"));
        fs::write(&path, text).unwrap();
        path
    };
    let files = files.iter().enumerate().map(write).collect::<Vec<_>>();
    read(&files, &environment(variables))
}

#[track_caller]
pub(super) fn translated(files: &[&str]) -> Translation {
    read_all(files, &[]).unwrap_or_else(|error| panic!("{error}"))
}

/// The set-up of Debezium Server with further lines.
#[track_caller]
pub(super) fn server(lines: &str) -> Translation {
    translated(&[&format!("{SERVER}{lines}\n")])
}

/// The connector with further members.
#[track_caller]
fn connect(members: &str) -> Translation {
    let comma = if members.is_empty() { "" } else { "," };
    translated(&[&format!("{{{CONNECTOR}{comma}{members}}}")])
}

/// Values of a setting, with blanks between them.
fn setting(translation: &Translation, name: &str) -> Option<String> {
    translation.settings.get(name).map(|setting| setting.values.join(" "))
}

fn property(translation: &Translation, name: &str) -> Option<String> {
    translation.properties.get(name).map(|setting| setting.values.join(" "))
}

/// Notes on a key, as severity and text.
fn notes(translation: &Translation, key: &str) -> Vec<(Severity, String)> {
    let on = |note: &&Note| note.origin.split(" (").next() == Some(key);
    translation.notes.iter().filter(on).map(|note| (note.severity, note.text.clone())).collect()
}

#[track_caller]
fn noted(translation: &Translation, key: &str, severity: Severity, part: &str) {
    let found = notes(translation, key);
    assert!(found.iter().any(|(s, text)| *s == severity && text.contains(part)), "{key}: {found:?}");
}

/// One option of the router, and the setting that it becomes.
#[track_caller]
fn router(option: &str, value: &str, name: &str, expected: &str) {
    let members = serde_json::json!({ format!("transforms.outbox.{option}"): value }).to_string();
    let translation = connect(members.trim_matches(['{', '}']));
    assert_eq!(setting(&translation, name).as_deref(), Some(expected), "{option}={value}");
    assert!(translation.verdict(false).is_ok(), "{option}={value}: {:?}", translation.notes);
}

/// One key of the connector, and what is said of it.
#[track_caller]
fn of_key(key: &str, value: &str, severity: Severity, part: &str) {
    let translation = server(&format!("debezium.source.{key}={value}"));
    noted(&translation, &format!("debezium.source.{key}"), severity, part);
}

#[test]
fn a_plain_set_up_of_debezium_server_is_carried_over_whole() {
    let translation = server("debezium.source.publication.name=dbz_pub");
    let names =
        ["slot", "publication", "brokers", "topic", "id-column", "key-column", "payload-column", "route-column"];
    let values = names.map(|name| setting(&translation, name).unwrap_or_default());
    let expected =
        ["dbz", "dbz_pub", "k:9092", "outbox.event.{route}", "id", "aggregateid", "payload", "aggregatetype"];
    assert_eq!(values, expected);
    assert_eq!(setting(&translation, "type-column").as_deref(), Some(""));
    assert_eq!(setting(&translation, "headers-column").as_deref(), Some(""));
    assert_eq!(translation.connect, Connect { skip_null_headers: true, ..Connect::default() });
    assert_eq!(translation.platform, Platform::Server);
    translation.verdict(false).unwrap();
}

#[test]
fn a_connector_may_be_wrapped_in_name_and_config_or_bare() {
    for text in [format!("{{{CONNECTOR}}}"), format!("{{\"name\": \"x\", \"config\": {{{CONNECTOR}}}}}")] {
        let translation = translated(&[&text]);
        assert_eq!(setting(&translation, "slot").as_deref(), Some("dbz"));
        assert_eq!(translation.platform, Platform::Connect);
        translation.verdict(false).unwrap();
    }
}

#[test]
fn a_connector_of_a_standalone_worker_is_properties() {
    let text = "name=x\nconnector.class=io.debezium.connector.postgresql.PostgresConnector\nslot.name=s\n";
    assert_eq!(setting(&translated(&[text]), "slot").as_deref(), Some("s"));
}

#[test]
fn numbers_and_booleans_of_json_are_texts() {
    let translation =
        connect(r#""database.hostname": "h", "database.port": 5433, "tombstones.on.delete": false, "x": null"#);
    assert_eq!(setting(&translation, "source").as_deref(), Some("host=h port=5433"));
}

#[test]
fn the_names_that_debezium_has_by_default_are_taken() {
    let bare = CONNECTOR.replace(r#""slot.name": "dbz","#, "");
    let translation = translated(&[&format!("{{{bare}}}")]);
    assert_eq!(setting(&translation, "slot").as_deref(), Some("debezium"));
    assert_eq!(setting(&translation, "publication").as_deref(), Some("dbz_publication"));
}

#[test]
fn the_database_becomes_one_connection_string() {
    let lines = "debezium.source.database.port=5433\ndebezium.source.database.user=app\n\
                 debezium.source.database.password=it's \\\\ secret\ndebezium.source.database.dbname=shop\n\
                 debezium.source.database.sslmode=verify-full\ndebezium.source.database.sslrootcert=/ca.pem\n\
                 debezium.source.database.sslcert=/c.pem\ndebezium.source.database.sslkey=/k.pem";
    let translation = server(lines);
    let expected = r"host=db port=5433 dbname=shop user=app password='it\'s \\ secret' sslmode=verify-full sslrootcert=/ca.pem sslcert=/c.pem sslkey=/k.pem";
    assert_eq!(setting(&translation, "source").as_deref(), Some(expected));
    let shown = translation.settings["source"].shown.clone().unwrap().join("");
    assert!(!shown.contains("secret") && shown.contains("user=app"), "{shown}");
}

#[test]
fn what_java_wants_for_tls_to_postgres_and_we_cannot_have_is_refused() {
    of_key("database.sslkey", "/k.pk8", Severity::Refused, "PEM is wanted");
    of_key("database.sslpassword", "x", Severity::Refused, "encrypted keys");
    of_key("database.sslfactory", "x", Severity::Warning, "Java class");
}

#[test]
fn the_slot_must_be_one_of_pgoutput() {
    let without = SERVER.replace("debezium.source.plugin.name=pgoutput\n", "");
    let translation = translated(&[&without]);
    noted(&translation, "plugin.name", Severity::Refused, "decoderbufs");
    let other = SERVER.replace("plugin.name=pgoutput", "plugin.name=decoderbufs");
    noted(&translated(&[&other]), "debezium.source.plugin.name", Severity::Refused, "pgoutput");
    of_key("slot.drop.on.stop", "true", Severity::Refused, "drops the slot");
    assert!(notes(&server("debezium.source.slot.drop.on.stop=false"), "debezium.source.slot.drop.on.stop").is_empty());
}

#[test]
fn another_database_is_refused() {
    let mysql = SERVER.replace("postgresql.PostgresConnector", "mysql.MySqlConnector");
    noted(&translated(&[&mysql]), "debezium.source.connector.class", Severity::Refused, "no PostgreSQL connector");
}

#[test]
fn each_column_of_the_router_is_a_flag() {
    router("table.field.event.id", "uid", "id-column", "uid");
    router("table.field.event.key", "k", "key-column", "k");
    router("table.field.event.payload", "body", "payload-column", "body");
    router("table.field.payload", "body", "payload-column", "body");
    router("route.by.field", "area", "route-column", "area");
    router("table.field.event.timestamp", "at", "timestamp", "at");
    router("table.field.event.type", "kind", "type-column", "");
}

#[test]
fn topics_are_templates_where_that_says_the_same() {
    router("route.topic.replacement", "${routedByValue}", "topic", "{route}");
    router("route.topic.replacement", "${routedByValue}.events", "topic", "{route}.events");
    router("route.topic.replacement", "a-b.${routedByValue}_c", "topic", "a-b.{route}_c");
    router("route.topic.replacement", "a.$1.b", "topic", "a.{route}.b");
    router("route.topic.replacement", "fixed", "topic-replacement", "fixed");
    router("route.topic.replacement", "$12", "topic-replacement", "$12");
    router("route.topic.replacement", r"${routedByValue}\$", "topic-replacement", r"${routedByValue}\$");
}

#[test]
fn another_regex_is_carried_over_with_its_replacement() {
    let translation = connect(
        r#""transforms.outbox.route.topic.regex": "(.*)_v(\\d)", "transforms.outbox.route.topic.replacement": "$1_x$2""#,
    );
    assert_eq!(setting(&translation, "topic-regex").as_deref(), Some(r"(.*)_v(\d)"));
    assert_eq!(setting(&translation, "topic-replacement").as_deref(), Some("$1_x$2"));
    assert_eq!(setting(&translation, "topic"), None);
    let alone = connect(r#""transforms.outbox.route.topic.regex": "(?<routedByValue>[a-z]+).*""#);
    assert_eq!(setting(&alone, "topic-replacement").as_deref(), Some("outbox.event.${routedByValue}"));
}

#[test]
fn an_expression_that_is_none_is_refused_where_it_stands() {
    let translation = connect(r#""transforms.outbox.route.topic.regex": "(a""#);
    noted(&translation, "transforms.outbox.route.topic.regex", Severity::Refused, "unclosed group");
    let translation = connect(r#""transforms.outbox.route.topic.replacement": "${other}""#);
    noted(&translation, "transforms.outbox.route.topic.replacement", Severity::Refused, "no group other");
}

#[test]
fn dollars_may_be_doubled_or_not() {
    for replacement in ["$${routedByValue}.x", "${routedByValue}.x"] {
        let translation = server(&format!("debezium.transforms.outbox.route.topic.replacement={replacement}"));
        assert_eq!(setting(&translation, "topic").as_deref(), Some("{route}.x"), "{replacement}");
    }
}

#[test]
fn placements_keep_their_order_and_repeat_names() {
    let placements = "type:header:eventType, region : HEADER ,a:header:x,b:header:x,c:envelope,d:envelope:e,f:header:";
    let option = format!(r#""transforms.outbox.table.fields.additional.placement": "{placements},p:partition""#);
    let translation = connect(&option);
    assert_eq!(setting(&translation, "header").as_deref(), Some("eventType=type region=region x=a x=b f=f"));
    assert_eq!(setting(&translation, "envelope").as_deref(), Some("c=c e=d"));
    assert_eq!(setting(&translation, "partition-column").as_deref(), Some("p"));
    translation.verdict(false).unwrap();
}

#[test]
fn an_empty_regular_expression_matches_no_route() {
    let translation =
        connect(r#""transforms.outbox.route.topic.regex": "", "transforms.outbox.route.topic.replacement": "x.$1""#);
    assert_eq!(setting(&translation, "topic").as_deref(), Some("{route}"));
    translation.verdict(false).unwrap();
}

#[test]
fn commas_at_the_end_of_placements_are_nothing_and_aliases_may_hold_an_equals_sign() {
    let translation =
        connect(r#""transforms.outbox.table.fields.additional.placement": "a:header:x=y,b:envelope:z=1,,""#);
    assert_eq!(setting(&translation, "header").as_deref(), Some("x=y=a"));
    assert_eq!(setting(&translation, "envelope").as_deref(), Some("z=1=b"));
    translation.verdict(false).unwrap();
}

#[test]
fn a_placement_that_is_none_is_refused() {
    for placements in ["a", "a:footer", "a:header:b:c", ":header", "a=b:header", "a:header,,b:header", "a:header, "] {
        let option = format!(r#""transforms.outbox.table.fields.additional.placement": "{placements}""#);
        assert!(matches!(connect(&option).verdict(true), Err(DebeziumError::Problems { .. })), "{placements}");
    }
}

#[test]
fn what_debezium_servers_sink_drops_stays_dropped() {
    let translation = server(
        "debezium.transforms.outbox.table.fields.additional.placement=p:partition\n\
         debezium.transforms.outbox.table.field.event.timestamp=at",
    );
    assert_eq!((setting(&translation, "partition-column"), setting(&translation, "timestamp")), (None, None));
    let key = "debezium.transforms.outbox.table.fields.additional.placement";
    noted(&translation, key, Severity::Warning, "--partition-column p");
    noted(&translation, "debezium.transforms.outbox.table.field.event.timestamp", Severity::Warning, "--timestamp at");
}

#[test]
fn missing_columns_may_be_left_out() {
    let of = |option: &str| connect(&format!(r#""transforms.outbox.table.{option}""#)).connect.skip_missing;
    assert!(of(r#"field.additional.missing": "ignore"#));
    assert!(!of(r#"field.additional.missing": "error"#));
    assert!(of(r#"fields.additional.error.on.missing": "false"#));
    assert!(!of(r#"fields.additional.error.on.missing": "true"#));
}

#[test]
fn tombstones_and_updates_are_settings() {
    router("route.tombstone.on.empty.payload", "true", "tombstone-on-empty-payload", "true");
    router("route.tombstone.on.empty.payload", "false", "tombstone-on-empty-payload", "false");
    router("table.op.invalid.behavior", "warn", "on-update", "warn");
    router("table.op.invalid.behavior", "error", "on-update", "warn");
    router("table.op.invalid.behavior", "FATAL", "on-update", "stop");
    router("debezium.op.invalid.behavior", "fatal", "on-update", "stop");
}

#[test]
fn a_word_that_debezium_does_not_know_is_refused() {
    for option in ["route.tombstone.on.empty.payload", "table.op.invalid.behavior", "table.field.additional.missing"] {
        let translation = connect(&format!(r#""transforms.outbox.{option}": "perhaps""#));
        noted(&translation, &format!("transforms.outbox.{option}"), Severity::Refused, "\"perhaps\" is none of");
    }
}

#[test]
fn an_expanded_payload_needs_json_without_schemas_and_a_word_of_consent() {
    let json = r#""value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false""#;
    let with = |value_converter: &str, more: &str| {
        connect(&format!(r#"{value_converter}"transforms.outbox.table.expand.json.payload": "true"{more}"#))
    };
    let translation = with(&format!("{json},"), "");
    assert_eq!(translation.connect.expand, Some(Expand { keep_nulls: false }));
    let error = translation.verdict(false).unwrap_err();
    assert!(error.hint().unwrap().contains("--accept-differences"), "{error}");
    translation.verdict(true).unwrap();
    let nulls = r#", "transforms.outbox.table.json.payload.null.behavior": "optional_bytes""#;
    assert_eq!(with(&format!("{json},"), nulls).connect.expand, Some(Expand { keep_nulls: true }));
    assert!(with("", "").verdict(true).is_err());
    let schemas = json.replace("false", "true");
    assert!(with(&format!("{schemas},"), "").verdict(true).is_err());
    assert_eq!(connect(r#""transforms.outbox.table.expand.json.payload": "false""#).connect.expand, None);
}

#[test]
fn other_transforms_and_predicates_change_records() {
    let translation = server(
        "debezium.transforms=outbox,route\ndebezium.transforms.route.type=org.apache.kafka.connect.transforms.RegexRouter\n\
         debezium.transforms.route.regex=a",
    );
    noted(&translation, "debezium.transforms.route.type", Severity::Differs, "RegexRouter");
    assert!(translation.verdict(false).is_err());
    translation.verdict(true).unwrap();
    let translation = connect(
        r#""transforms.outbox.predicate": "isOutbox", "predicates": "isOutbox", "predicates.isOutbox.type": "x.TopicNameMatches""#,
    );
    noted(&translation, "transforms.outbox.predicate", Severity::Differs, "every row");
    noted(&translation, "predicates.isOutbox.type", Severity::NotNeeded, "predicate");
}

#[test]
fn without_the_router_nothing_can_be_run() {
    let without = SERVER.replace("debezium.transforms=outbox\n", "");
    noted(&translated(&[&without]), "transforms", Severity::Refused, "change events");
    let other = SERVER.replace("outbox.EventRouter", "ByLogicalTableRouter");
    assert!(translated(&[&other]).verdict(true).is_err());
}

#[test]
fn an_option_that_the_router_does_not_know_names_the_nearest() {
    let translation = connect(r#""transforms.outbox.table.field.event.idd": "x""#);
    noted(&translation, "transforms.outbox.table.field.event.idd", Severity::Warning, "table.field.event.id is");
}

#[test]
fn converters_of_kafka_connect_are_the_connectors_or_else_the_workers() {
    let bare = r#"{"connector.class": "a.PostgresConnector", "plugin.name": "pgoutput", "transforms": "o",
        "transforms.o.type": "io.debezium.transforms.outbox.EventRouter"}"#;
    let alone = translated(&[bare]);
    noted(&alone, "key.converter", Severity::Refused, "give the worker's properties");
    let worker = "bootstrap.servers=a:1, b:2\nkey.converter=org.apache.kafka.connect.storage.StringConverter\n\
                  value.converter=org.apache.kafka.connect.json.JsonConverter\nvalue.converter.schemas.enable=false\n\
                  header.converter=org.apache.kafka.connect.storage.StringConverter\noffset.storage.topic=x\n";
    for files in [[bare, worker], [worker, bare]] {
        let both = translated(&files);
        both.verdict(false).unwrap();
        assert_eq!(both.connect.key, Converter::Text);
        assert_eq!(both.connect.value, Converter::Json(Json { schemas: false, numeric_decimals: false }));
        assert_eq!(both.connect.header, Converter::Text);
        assert_eq!(setting(&both, "brokers").as_deref(), Some("a:1 b:2"));
    }
}

#[test]
fn a_converters_options_belong_to_the_file_that_names_it() {
    let worker = "bootstrap.servers=a:1\nkey.converter=a.StringConverter\nvalue.converter=a.JsonConverter\n";
    let connector = r#"{"connector.class": "a.PostgresConnector", "value.converter.schemas.enable": "false"}"#;
    let translation = translated(&[connector, worker]);
    assert_eq!(translation.connect.value, Converter::Json(Json { schemas: true, numeric_decimals: false }));
    noted(&translation, "value.converter.schemas.enable", Severity::Warning, "only beside value.converter");
}

#[test]
fn formats_of_debezium_server_are_converters() {
    let of = |lines: &str| {
        let kept = SERVER.lines().filter(|line| !line.contains("format")).collect::<Vec<_>>().join("\n");
        translated(&[&format!("{kept}\n{lines}\n")]).connect
    };
    let json = |schemas| Converter::Json(Json { schemas, numeric_decimals: false });
    let default = of("");
    assert_eq!((default.key, default.value, default.header), (json(true), json(true), json(true)));
    let without = of("debezium.format.schemas.enable=false");
    assert_eq!((without.key, without.value, without.header), (json(false), json(false), json(false)));
    let special = of("debezium.format.schemas.enable=false\ndebezium.format.value.schemas.enable=true");
    assert_eq!((special.key, special.value), (json(false), json(true)));
    assert_eq!(of("debezium.format.value=binary").value, Converter::Bytes { other: None });
    assert_eq!(of("debezium.format.value=jsonbytearray").value, json(true));
    let named = of(
        "debezium.format.value=clientprovided\ndebezium.format.value.class=org.apache.kafka.connect.converters.ByteArrayConverter",
    );
    assert_eq!(named.value, Converter::Bytes { other: None });
    let delegate = of(
        "debezium.format.value=binary\ndebezium.format.value.delegate.converter.type=org.apache.kafka.connect.json.JsonConverter\n\
                       debezium.format.value.delegate.converter.type.schemas.enable=false",
    );
    assert_eq!(delegate.value, Converter::Bytes { other: Some(Box::new(json(false))) });
}

#[test]
fn formats_that_cannot_be_written_are_refused() {
    for format in ["avro", "protobuf", "cloudevents", "connect", "nonsense"] {
        let text = SERVER.replace("format.value=simplestring", &format!("format.value={format}"));
        noted(&translated(&[&text]), "debezium.format.value", Severity::Refused, format);
    }
    let class =
        r#""value.converter": "io.confluent.connect.avro.AvroConverter", "value.converter.schema.registry.url": "x""#;
    noted(&connect(class), "value.converter", Severity::Refused, "AvroConverter");
    let headers = SERVER.replace("format.header=clientprovided", "format.header=simplestring");
    assert!(translated(&[&headers]).verdict(true).is_err());
    let encoding = r#""value.converter": "a.StringConverter", "value.converter.encoding": "UTF-16""#;
    noted(&connect(encoding), "value.converter.encoding", Severity::Refused, "UTF-8");
}

#[test]
fn the_header_converter_of_kafka_connect_is_simple_unless_named() {
    assert_eq!(connect("").connect.header, Converter::Simple);
    let json = connect(
        r#""header.converter": "org.apache.kafka.connect.json.JsonConverter", "header.converter.schemas.enable": false"#,
    );
    assert_eq!(json.connect.header, Converter::Json(Json { schemas: false, numeric_decimals: false }));
}

#[test]
fn handling_modes_are_honoured() {
    let modes = server(
        "debezium.source.time.precision.mode=connect\ndebezium.source.decimal.handling.mode=string\n\
         debezium.source.binary.handling.mode=base64-url-safe\ndebezium.source.interval.handling.mode=STRING",
    )
    .connect
    .modes;
    assert_eq!(modes.time, TimePrecision::Connect);
    assert_eq!(modes.decimal, DecimalMode::Text);
    assert_eq!(modes.binary, BinaryMode::Base64UrlSafe);
    assert_eq!(modes.interval, IntervalMode::Text);
    of_key("time.precision.mode", "daily", Severity::Refused, "none of adaptive");
}

#[test]
fn the_producers_properties_get_librdkafkas_names() {
    let lines = [
        ("linger.ms", "5", "linger.ms"),
        ("batch.size", "100000", "batch.size"),
        ("compression.type", "lz4", "compression.type"),
        ("max.request.size", "2000000", "message.max.bytes"),
        ("client.id", "me", "client.id"),
        ("security.protocol", "SASL_SSL", "security.protocol"),
        ("request.timeout.ms", "1000", "request.timeout.ms"),
        ("send.buffer.bytes", "1000", "socket.send.buffer.bytes"),
    ];
    for (java, value, ours) in lines {
        let translation = server(&format!("debezium.sink.kafka.producer.{java}={value}"));
        assert_eq!(property(&translation, ours).as_deref(), Some(value), "{java}");
        let translation = connect(&format!(r#""producer.override.{java}": "{value}""#));
        assert_eq!(property(&translation, ours).as_deref(), Some(value), "{java}");
    }
}

#[test]
fn what_walrelay_fixes_itself_is_not_needed() {
    for (key, value) in
        [("acks", "1"), ("enable.idempotence", "false"), ("retries", "3"), ("delivery.timeout.ms", "5000")]
    {
        let translation = server(&format!("debezium.sink.kafka.producer.{key}={value}"));
        noted(&translation, &format!("debezium.sink.kafka.producer.{key}"), Severity::NotNeeded, "fixed here");
        assert!(translation.properties.is_empty());
        translation.verdict(false).unwrap();
    }
}

#[test]
fn the_producer_of_kafka_connect_has_the_workers_properties_below_its_own() {
    let worker = "bootstrap.servers=a:1\nproducer.linger.ms=7\nproducer.batch.size=8\nsecurity.protocol=SSL\n";
    let connector = format!(r#"{{{CONNECTOR}, "producer.override.linger.ms": "9"}}"#);
    let translation = translated(&[worker, &connector]);
    assert_eq!(property(&translation, "linger.ms").as_deref(), Some("9"));
    assert_eq!(property(&translation, "batch.size").as_deref(), Some("8"));
    assert_eq!(property(&translation, "security.protocol"), None);
    noted(&translation, "security.protocol", Severity::Warning, "producer.*");
}

#[track_caller]
fn jaas(config: &str, mechanism: &str) -> Translation {
    let lines = format!("debezium.sink.kafka.producer.sasl.jaas.config={config}");
    let mechanism = if mechanism.is_empty() {
        String::new()
    } else {
        format!("\ndebezium.sink.kafka.producer.sasl.mechanism={mechanism}")
    };
    server(&format!("{lines}{mechanism}"))
}

#[test]
fn a_log_in_with_a_password_is_translated() {
    let module =
        "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"u\" password=\"hunter2\";";
    let translation = jaas(module, "SCRAM-SHA-512");
    let properties =
        ["sasl.username", "sasl.password", "sasl.mechanism"].map(|name| property(&translation, name).unwrap());
    assert_eq!(properties, ["u", "hunter2", "SCRAM-SHA-512"]);
    let plain = jaas("a.PlainLoginModule required username=u password=p;", "");
    assert_eq!(property(&plain, "sasl.mechanism").as_deref(), Some("PLAIN"));
    let scram = jaas("a.ScramLoginModule required username=u password=p;", "");
    noted(&scram, "debezium.sink.kafka.producer.sasl.jaas.config", Severity::Refused, "sasl.mechanism is missing");
}

#[test]
fn other_log_ins_name_librdkafkas_properties() {
    let key = "debezium.sink.kafka.producer.sasl.jaas.config";
    noted(
        &jaas("software.amazon.msk.auth.iam.IAMLoginModule required;", "AWS_MSK_IAM"),
        key,
        Severity::Refused,
        "sasl.username",
    );
    noted(
        &jaas("com.sun.security.auth.module.Krb5LoginModule required;", "GSSAPI"),
        key,
        Severity::Refused,
        "sasl.mechanism",
    );
    noted(&jaas("nonsense", "PLAIN"), key, Severity::Refused, "no JAAS");
    let oauth = server(
        "debezium.sink.kafka.producer.sasl.jaas.config=a.OAuthBearerLoginModule required clientId=\"i\" clientSecret=\"s\" scope=\"x\";\n\
         debezium.sink.kafka.producer.sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n\
         debezium.sink.kafka.producer.sasl.oauthbearer.token.endpoint.url=https://t",
    );
    assert_eq!(property(&oauth, "sasl.oauthbearer.client.secret").as_deref(), Some("s"));
    assert_eq!(property(&oauth, "sasl.oauthbearer.method").as_deref(), Some("oidc"));
    oauth.verdict(false).unwrap();
}

#[test]
fn stores_of_certificates_are_taken_where_librdkafka_reads_them() {
    let of = |lines: &str| {
        let lines = lines.lines().map(|line| format!("debezium.sink.kafka.producer.ssl.{line}")).collect::<Vec<_>>();
        server(&lines.join("\n"))
    };
    let pem = of(
        "truststore.location=/ca.pem\ntruststore.type=PEM\nkeystore.location=/me.pem\nkeystore.type=PEM\nkey.password=k",
    );
    let names = ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"];
    assert_eq!(names.map(|name| property(&pem, name).unwrap()), ["/ca.pem", "/me.pem", "/me.pem", "k"]);
    let p12 = of("keystore.location=/me.p12\nkeystore.password=x");
    assert_eq!(property(&p12, "ssl.keystore.location").as_deref(), Some("/me.p12"));
    assert_eq!(property(&p12, "ssl.keystore.password").as_deref(), Some("x"));
    let key = "debezium.sink.kafka.producer.ssl.truststore.location";
    noted(&of("truststore.location=/t.jks\ntruststore.password=x"), key, Severity::Refused, "ssl.ca.location");
    noted(&of("truststore.location=/t.p12"), key, Severity::Refused, "ssl.ca.location");
    let key = "debezium.sink.kafka.producer.ssl.keystore.location";
    noted(&of("keystore.location=/k.jks"), key, Severity::Refused, "ssl.keystore.location");
    let inline = of("truststore.type=PEM\ntruststore.certificates=-----BEGIN");
    assert_eq!(property(&inline, "ssl.ca.pem").as_deref(), Some("-----BEGIN"));
    let names = of("endpoint.identification.algorithm=");
    assert_eq!(property(&names, "ssl.endpoint.identification.algorithm").as_deref(), Some("none"));
}

#[test]
fn what_would_send_records_elsewhere_is_a_difference() {
    for (key, value) in [
        ("partitioner.class", "org.apache.kafka.clients.producer.RoundRobinPartitioner"),
        ("partitioner.ignore.keys", "true"),
        ("interceptor.classes", "x.Y"),
        ("value.serializer", "io.confluent.kafka.serializers.KafkaAvroSerializer"),
    ] {
        let translation = server(&format!("debezium.sink.kafka.producer.{key}={value}"));
        assert!(translation.verdict(false).is_err(), "{key}");
        translation.verdict(true).unwrap();
    }
}

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

/// Keys whose effect shows in schemas alone, with a value that has one.
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
fn an_envelope_of_columns_that_some_tables_lack_is_a_difference_unless_there_is_one_table() {
    let lines = "debezium.transforms.outbox.table.fields.additional.placement=ver:envelope\n\
                 debezium.transforms.outbox.table.field.additional.missing=ignore";
    assert!(server(lines).verdict(false).is_err());
    server(&format!("{lines}\ndebezium.source.table.include.list=public.outbox")).verdict(false).unwrap();
}

#[test]
fn columns_that_are_not_captured_are_not_there() {
    let translation = server("debezium.source.column.exclude.list=public.outbox.sec.*");
    let captured = translation.connect.captured();
    assert!(captured.capture_column("public.outbox", "payload") && captured.capture_column("public.outbox2", "secret"));
    assert!(!captured.capture_column("public.outbox", "secret"));
    assert!(translation.tables.is_empty());
    let only = server("debezium.source.column.include.list=public.outbox.(id|payload)").connect.captured();
    assert!(only.capture_column("public.outbox", "id") && !only.capture_column("public.outbox", "secret"));
    of_key("column.exclude.list", "a(b", Severity::Refused, "no regular expression");
}

#[test]
fn another_sink_is_refused() {
    let text = SERVER.replace("sink.type=kafka", "sink.type=kinesis");
    noted(&translated(&[&text]), "debezium.sink.type", Severity::Refused, "Kafka alone");
}

#[test]
fn tables_are_expressions() {
    let translation = server("debezium.source.table.include.list=public.outbox,shop\\\\.ev.*");
    let captures = |schema: &str, name: &str| {
        let (namespace, name) = (schema.to_owned(), name.to_owned());
        let relation =
            crate::pgoutput::Relation { id: 1, namespace, name, replica_identity: b'd', columns: Vec::new() };
        translation.tables.capture(&relation)
    };
    assert!(captures("public", "outbox") && captures("shop", "events") && !captures("public", "outbox2"));
    assert!(server("").tables.is_empty());
    of_key("table.include.list", "a(b", Severity::Refused, "no regular expression");
    of_key("table.include.list", "public.outbox", Severity::NotNeeded, "--table public.outbox");
}

#[test]
fn expressions_are_resolved_and_what_cannot_be_is_refused() {
    let file = format!(
        "{SERVER}debezium.source.database.password=${{DB_PASS}}\ndebezium.source.database.user=${{DB_USER:app}}\n"
    );
    let translation = read_all(&[&file], &[("DB_PASS", "hunter2")]).unwrap();
    assert_eq!(setting(&translation, "source").as_deref(), Some("host=db user=app password=hunter2"));
    let unset = translated(&[&file]);
    noted(&unset, "debezium.source.database.password", Severity::Refused, "DB_PASS is neither");
    assert!(unset.verdict(true).is_err());
    let vault = connect(r#""database.password": "${vault:a:b}""#);
    noted(&vault, "database.password", Severity::Refused, "config provider \"vault\"");
}

#[test]
fn the_engine_of_debezium_server_asks_config_providers_where_quarkus_leaves_the_expression() {
    let lines = r"debezium.source.slot.name=\\${env:SLOT}";
    let providers = "debezium.source.config.providers=env\n\
                     debezium.source.config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider";
    let slot = |text: &str| {
        let translation = read_all(&[&format!("{SERVER}{text}\n")], &[("SLOT", "of_variable")]).unwrap();
        setting(&translation, "slot")
    };
    assert_eq!(slot(&format!("{lines}\n{providers}")).as_deref(), Some("of_variable"));
    assert_eq!(slot(lines).as_deref(), Some("${env:SLOT}"));
}

#[test]
fn a_worker_names_its_config_providers() {
    let worker = "bootstrap.servers=a:1\nconfig.providers=secrets\n\
                  config.providers.secrets.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n";
    let connector = format!(r#"{{{CONNECTOR}, "database.user": "${{secrets:DB_USER}}"}}"#);
    let translation = read_all(&[&connector, worker], &[("DB_USER", "app")]).unwrap();
    assert_eq!(setting(&translation, "source").as_deref(), Some("user=app"));
}

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

#[test]
fn a_later_file_beats_an_earlier_one() {
    let later = "debezium.source.slot.name=later\n";
    assert_eq!(setting(&translated(&[SERVER, later]), "slot").as_deref(), Some("later"));
}

#[test]
fn files_that_are_no_set_up_are_errors() {
    let message = |files: &[&str]| read_all(files, &[]).err().expect("must fail").to_string();
    assert!(message(&["a=b"]).contains("no file holds a connector"));
    assert!(message(&["{\"a\": "]).contains("line 1: this is no JSON"));
    assert!(message(&["[1]"]).contains("a JSON object is wanted"));
    assert!(message(&["{\"a\": {\"b\": 1}, \"connector.class\": \"x\"}"]).contains("\"a\" is to be a text"));
    assert!(message(&["a=\\u12"]).contains("line 1: "));
    let connector = format!("{{{CONNECTOR}}}");
    assert!(message(&[SERVER, &connector]).contains("one file is Debezium Server's"));
    let error = read(&["/no/such/file".into()], &environment(&[])).err().unwrap();
    assert_eq!(error.to_string(), "--from-debezium: cannot read /no/such/file");
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
        "values   as Java's texts (StringConverter)",
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

proptest! {
    #[test]
    fn no_file_panics(text in any::<String>()) {
        let _read = read_all(&[&text], &[]).is_ok();
    }

    #[test]
    fn no_value_panics(
        key in proptest::sample::select(SERVER.lines().map(|line| line.split('=').next().unwrap()).collect::<Vec<_>>()),
        option in "(table|route)\\.[a-z.]{1,30}",
        value in "[-a-z${}:,.*()\\\\=\" ]{0,20}",
    ) {
        let text = format!("{SERVER}{key}={value}\ndebezium.transforms.outbox.{option}={value}\n");
        if let Ok(translation) = read_all(&[&text], &[]) {
            let _shown = translation.report(&["f".into()], true);
        }
    }
}

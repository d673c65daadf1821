//! Tests the settings that turn columns into bytes.

use super::*;
use crate::outbox::connect::{BinaryMode, Converter, DecimalMode, Expand, IntervalMode, Json, TimePrecision};

#[test]
fn an_expanded_payload_needs_json_without_schemas_and_a_word_of_consent() {
    let json = r#""value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false""#;
    let with = |value_converter: &str, more: &str| {
        connect(&format!(r#"{value_converter}"transforms.outbox.table.expand.json.payload": "true"{more}"#))
    };
    let translation = with(&format!("{json},"), "");
    assert_eq!(translation.connect.expand, Some(Expand { keep_nulls: false }));
    let error = translation.verdict(false).unwrap_err();
    assert!(error.hint.as_ref().unwrap().contains("--accept-differences"), "{error}");
    translation.verdict(true).unwrap();
    let nulls = r#", "transforms.outbox.table.json.payload.null.behavior": "optional_bytes""#;
    assert_eq!(with(&format!("{json},"), nulls).connect.expand, Some(Expand { keep_nulls: true }));
    assert!(with("", "").verdict(true).is_err());
    let schemas = json.replace("false", "true");
    assert!(with(&format!("{schemas},"), "").verdict(true).is_err());
    assert_eq!(connect(r#""transforms.outbox.table.expand.json.payload": "false""#).connect.expand, None);
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
    let worker = "bootstrap.servers=a:1\nkey.converter=StringConverter\nvalue.converter=Json\n";
    let connector = r#"{"connector.class": "a.PostgresConnector", "value.converter.schemas.enable": "false"}"#;
    let translation = translated(&[connector, worker]);
    assert_eq!(translation.connect.value, Converter::Json(Json { schemas: true, numeric_decimals: false }));
    noted(&translation, "value.converter.schemas.enable", Severity::Warning, "only together with value.converter");
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
    let encoding = r#""value.converter": "StringConverter", "value.converter.encoding": "UTF-16""#;
    noted(&connect(encoding), "value.converter.encoding", Severity::Refused, "UTF-8");
}

#[test]
fn a_class_is_known_by_its_package_or_in_kafka_connect_by_its_short_name() {
    let of = |class: &str| connect(&format!(r#""value.converter": "{class}", "header.converter": "{class}""#));
    for class in ["String", "StringConverter", "org.apache.kafka.connect.storage.StringConverter"] {
        let Connect { value, header, .. } = of(class).connect;
        assert_eq!((value, header), (Converter::Text, Converter::Text), "{class}");
    }
    for class in ["ByteArray", "BinaryDataConverter"] {
        assert_eq!(of(class).connect.value, Converter::Bytes { other: None }, "{class}");
    }
    assert_eq!(connect(r#""header.converter": "Simple""#).connect.header, Converter::Simple);
    for class in ["com.example.JsonConverter", "com.example.StringConverter", "a.ByteArrayConverter", "AvroConverter"] {
        noted(&of(class), "value.converter", Severity::Refused, class);
    }
    for class in ["Json", "com.example.JsonConverter"] {
        let of_server = server(&format!("debezium.format.value.class={class}"));
        noted(&of_server, "debezium.format.value", Severity::Refused, class);
    }
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
fn an_envelope_whose_schema_is_named_after_a_row_is_reported() {
    let placement = r#""transforms.outbox.table.fields.additional.placement": "ver:envelope""#;
    let with = |converter: &str| connect(&format!(r#"{placement}, "value.converter": "{converter}""#));
    let key = "transforms.outbox.table.fields.additional.placement";
    let json = with("org.apache.kafka.connect.json.JsonConverter");
    noted(&json, key, Severity::Warning, "first row");
    json.verdict(false).unwrap();
    let delegate = r#""value.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter""#;
    let bytes = connect(&format!(
        r#"{placement}, "value.converter": "io.debezium.converters.BinaryDataConverter", {delegate}"#
    ));
    noted(&bytes, key, Severity::Warning, "first row");
    assert_eq!(notes(&with("org.apache.kafka.connect.storage.StringConverter"), key), []);
    let headers = placement.replace("envelope", "header");
    let headers = connect(&format!(r#"{headers}, "value.converter": "org.apache.kafka.connect.json.JsonConverter""#));
    assert_eq!(notes(&headers, key), []);
}

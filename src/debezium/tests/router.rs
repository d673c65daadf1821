//! Tests the router's options.

use super::*;

#[test]
fn each_column_of_the_router_is_a_flag() {
    router("table.field.event.id", "uid", "id-column", "uid");
    router("table.field.event.key", "k", "key-column", "k");
    router("table.field.event.payload", "body", "payload-column", "body");
    router("route.by.field", "area", "route-column", "area");
    router("table.field.event.timestamp", "at", "timestamp", "at");
    let timestamp = connect(r#""transforms.outbox.table.field.event.timestamp": "at""#);
    noted(&timestamp, "transforms.outbox.table.field.event.timestamp", Severity::Warning, "1970-01-01");
    router("table.field.event.type", "kind", "type-column", "");
}

#[test]
fn kafka_connect_takes_the_routers_short_name() {
    let members = r#""transforms.outbox.type": "EventRouter", "connector.class": "Postgres""#;
    connect(members).verdict(false).unwrap();
    for class in ["com.example.EventRouter", "io.debezium.connector.mongodb.transforms.outbox.MongoEventRouter"] {
        let other = connect(&format!(r#""transforms.outbox.type": "{class}""#));
        noted(&other, "transforms.outbox.type", Severity::Differs, class);
        assert!(other.verdict(true).is_err());
    }
    let server = SERVER.replace("io.debezium.transforms.outbox.EventRouter", "EventRouter");
    assert!(translated(&[&server]).verdict(true).is_err());
}

#[test]
fn the_options_of_a_transform_without_a_type_are_reported() {
    let connector = CONNECTOR.replace("transforms.outbox.type", "transforms.outbox.typ");
    let translation = translated(&[&format!("{{{connector}, \"transforms.outbox.route.by.field\": \"kind\"}}")]);
    noted(&translation, "transforms", Severity::Refused, "has no transforms.outbox.type");
    for option in ["typ", "route.by.field"] {
        noted(&translation, &format!("transforms.outbox.{option}"), Severity::NotNeeded, "that has no type");
    }
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
fn an_invalid_expression_is_refused_with_its_place() {
    let translation = connect(r#""transforms.outbox.route.topic.regex": "(a""#);
    noted(&translation, "transforms.outbox.route.topic.regex", Severity::Refused, "unclosed group");
    let translation = connect(r#""transforms.outbox.route.topic.replacement": "${other}""#);
    noted(&translation, "transforms.outbox.route.topic.replacement", Severity::Refused, "no group other");
}

#[test]
fn dollars_of_debezium_servers_files_are_doubled() {
    let key = "debezium.transforms.outbox.route.topic.replacement";
    for replacement in ["$${routedByValue}.x", r"\\${routedByValue}.x"] {
        let translation = server(&format!("{key}={replacement}"));
        assert_eq!(setting(&translation, "topic").as_deref(), Some("{route}.x"), "{replacement}");
    }
    // Debezium Server would not start.
    noted(&server(&format!("{key}=${{routedByValue}}.x")), key, Severity::Refused, "routedByValue is neither");
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
        assert!(connect(&option).verdict(true).is_err(), "{placements}");
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
}

#[test]
fn names_of_old_releases_give_a_note_and_have_no_effect() {
    let old = [
        "transforms.outbox.table.field.payload",
        "transforms.outbox.table.field.payload.id",
        "transforms.outbox.table.field.schema.version",
        "transforms.outbox.table.fields.additional.error.on.missing",
        "transforms.outbox.debezium.op.invalid.behavior",
        "schema.whitelist",
        "schema.blacklist",
        "table.whitelist",
        "table.blacklist",
        "column.whitelist",
        "column.blacklist",
        "database.server.name",
    ];
    let plain = connect("");
    for key in old {
        let with = connect(&format!(r#""{key}": "true""#));
        noted(&with, key, Severity::Warning, "no");
        assert_eq!((&with.connect, with.tables.to_string()), (&plain.connect, plain.tables.to_string()), "{key}");
        let settings = |translation: &Translation| {
            translation.settings.iter().map(|(name, setting)| (*name, setting.values.clone())).collect::<Vec<_>>()
        };
        assert_eq!(settings(&with), settings(&plain), "{key}");
    }
}

#[test]
fn tombstones_and_updates_are_settings() {
    router("route.tombstone.on.empty.payload", "true", "tombstone-on-empty-payload", "true");
    router("route.tombstone.on.empty.payload", "false", "tombstone-on-empty-payload", "false");
    router("table.op.invalid.behavior", "warn", "on-update", "warn");
    router("table.op.invalid.behavior", "error", "on-update", "warn");
    router("table.op.invalid.behavior", "FATAL", "on-update", "stop");
}

#[test]
fn updates_that_do_not_come_to_the_router_are_not_fatal_to_it() {
    let of = |skipped: &str| {
        let members =
            format!(r#""transforms.outbox.table.op.invalid.behavior": "fatal", "skipped.operations": "{skipped}""#);
        setting(&connect(&members), "on-update")
    };
    assert_eq!(of("u,d,t").as_deref(), Some("skip"));
    assert_eq!(of(" t , U ").as_deref(), Some("skip"));
    assert_eq!(of("t").as_deref(), Some("stop"));
}

#[test]
fn a_word_that_debezium_does_not_know_is_refused() {
    for option in ["route.tombstone.on.empty.payload", "table.op.invalid.behavior", "table.field.additional.missing"] {
        let translation = connect(&format!(r#""transforms.outbox.{option}": "perhaps""#));
        noted(&translation, &format!("transforms.outbox.{option}"), Severity::Refused, "\"perhaps\" is none of");
    }
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
fn tables_must_have_the_same_of_an_envelopes_columns_since_any_pattern_may_match_several() {
    let of = |tables: &str, option: &str| {
        let envelope = r#""transforms.outbox.table.fields.additional.placement": "v:envelope""#;
        connect(&format!(
            r#"{envelope}, "transforms.outbox.table.field.additional.missing": "{option}", "table.include.list": "{tables}""#
        ))
    };
    for tables in ["s.outbox", r"s\\.outbox", "s.outbox,s.events", ".*"] {
        assert!(of(tables, "ignore").connect.alike_envelopes, "{tables}");
        assert!(!of(tables, "error").connect.alike_envelopes, "{tables}");
    }
}

//! Command lines as users write them: what they mean, and what is said when they are wrong.

mod debezium;
mod help;
mod released;

use std::fs;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::lsn::{Lsn, Position};
use crate::outbox::{CloudEvents, Constant, Mapping, OnUpdate, SchemaId, Timestamp};
use crate::relay::BadRowAction;
use crate::route::{TOPICS, TopicSetting};
use crate::sink::destination::{Delivery, EventBinding};

fn environment(variables: &[(&str, &str)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Environment { variables, user: Some("me".into()), ..Environment::default() }
}

fn parse_in(environment: &Environment, arguments: &[&str]) -> Result<Invocation, Exit> {
    parse(["walrelay"].iter().chain(arguments).map(OsString::from), environment)
}

#[track_caller]
fn run_in(environment: &Environment, arguments: &[&str]) -> (run::RunRequest, Vec<String>) {
    let arguments = [&["run"], arguments].concat();
    match parse_in(environment, &arguments) {
        Ok(Invocation { task: Task::Run(config), warnings, .. }) => (*config, warnings),
        Ok(other) => panic!("{other:?}"),
        Err(exit) => panic!("{exit}"),
    }
}

#[track_caller]
fn run(arguments: &[&str]) -> run::RunRequest {
    run_in(&environment(&[]), arguments).0
}

/// What is printed, which must come with exit code 64.
#[track_caller]
fn refused(arguments: &[&str]) -> String {
    refused_in(&environment(&[]), arguments)
}

#[track_caller]
fn refused_in(environment: &Environment, arguments: &[&str]) -> String {
    let exit = parse_in(environment, arguments).expect_err("must be refused");
    assert_eq!(exit.code(), 64, "{exit}");
    exit.to_string()
}

#[test]
fn a_warning_is_given_once_although_settings_are_read_twice() {
    let arguments = ["setup", "--apply", "--backfill", "-t", "Outbox", "-d", "postgres://a:hunter2@db"];
    let Ok(Invocation { warnings, .. }) = parse_in(&environment(&[]), &arguments) else { panic!("refused") };
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[cfg(feature = "redis")]
#[test]
fn where_there_are_no_partitions_their_column_may_be_empty() {
    let to = ["--to=redis://h", "--partition-column"];
    assert_eq!(run(&[&to[..], &[""]].concat()).mapping.partition_column.as_deref(), Some(""));
    assert!(refused(&[&["run"], &to[..], &["p"]].concat()).contains("it has no partitions"));
}

#[test]
fn without_flags_run_means_the_documented_defaults() {
    let config = run(&[]);
    assert_eq!(config.source.to_string(), "me as me at localhost:5432");
    assert_eq!((config.publication.as_str(), config.slot.as_str()), ("walrelay", "walrelay"));
    assert!(!config.setup && !config.dry_run && config.tables.is_empty());
    assert_eq!(format!("{:?}", config.destination), r#"Kafka { brokers: "localhost:9092", properties: [], .. }"#);
    assert_eq!(config.mapping, Mapping::default());
    assert_eq!(config.mapping.topic, TopicSetting::Template("outbox.event.{route}".into()));
    assert_eq!(config.http.unwrap().to_string(), "127.0.0.1:9464");
    assert_eq!(
        config.limits,
        run::Limits {
            shutdown_timeout: Duration::from_secs(8),
            disconnect_after: Duration::from_secs(30),
            unready_after: Duration::from_secs(30),
            coalesce: Duration::from_micros(200),
            max_in_flight: 16_777_216,
            max_row: 268_435_456,
        }
    );
}

#[test]
fn every_flag_of_run_ends_where_it_belongs() {
    let config = run(&[
        "-d=postgres://app@db/shop",
        "-p=pub",
        "-S=relay_1",
        "-t=outbox",
        "-t=shop.events",
        "-t=public.outbox",
        "-b=a:1,b:2",
        "-Xlinger.ms=5",
        "--setup",
        "--origin=local",
        "--dry-run",
        "--accept-slot-at=16/B374D848",
        "--topic={type|kebab}",
        "--id-column=i",
        "--key-column=k",
        "--payload-column=p",
        "--type-column=t",
        "--route-column=r",
        "--headers-column=h",
        "--header=a=b",
        "--header=x==1=2",
        "--header=c=d",
        "--header=y==",
        "--content-type-header",
        "--envelope=e=f",
        "--partition-column=n",
        "--timestamp=created_at",
        "--tombstone-on-empty-payload",
        "--position-header",
        "--on-update=stop",
        "--on-bad-row=dead-letter",
        "--bad-row-at=16/B374D848:3=skip",
        "--dead-letter-topic=dead",
        "--on-stop=hold",
        "--delivery=exactly-once",
        "--message-prefix=outbox",
        "--http=off",
        "--shutdown-timeout=1min",
        "--disconnect-after=5s",
        "--unready-after=10s",
        "--coalesce=0",
        "--max-in-flight=64KiB",
        "--max-row=1MB",
    ]);
    assert_eq!(config.source.to_string(), "shop as app at db:5432");
    assert_eq!((config.publication.as_str(), config.slot.as_str()), ("pub", "relay_1"));
    assert_eq!(config.tables.iter().map(ToString::to_string).collect::<Vec<_>>(), ["public.outbox", "shop.events"]);
    let destination = r#"Kafka { brokers: "a:1,b:2", properties: [("linger.ms", "5")], .. }"#;
    assert_eq!(format!("{:?}", config.destination), destination);
    assert!(config.setup && config.dry_run);
    assert_eq!(config.accept_slot_at, Some("16/B374D848".parse().unwrap()));
    let pair = |name: &str, column: &str| (name.to_owned(), column.to_owned());
    let constant = |behind, name: &str, value: &str| Constant { behind, name: name.into(), value: value.into() };
    assert_eq!(
        config.mapping,
        Mapping {
            id_column: Some("i".into()),
            key_column: Some("k".into()),
            payload_column: Some("p".into()),
            type_column: Some("t".into()),
            route_column: Some("r".into()),
            headers_column: Some("h".into()),
            topic: TopicSetting::Template("{type|kebab}".into()),
            addresses: &TOPICS,
            headers: vec![pair("a", "b"), pair("c", "d")],
            constants: vec![constant(1, "x", "1=2"), constant(2, "y", "")],
            schema_id: None,
            cloudevents: None,
            content_type_header: true,
            envelope: vec![pair("e", "f")],
            partition_column: Some("n".into()),
            timestamp: Timestamp::Column("created_at".into()),
            tombstone_on_empty_payload: true,
            position_header: true,
            on_update: OnUpdate::Stop,
            message_prefixes: vec!["outbox".into()],
            connect: None,
        }
    );
    let at = Position { final_lsn: Lsn::new(0x16_B374_D848), ordinal: 3 };
    assert_eq!(config.bad_rows.at, [(at, BadRowAction::Skip)]);
    assert_eq!(
        (config.bad_rows.action, config.bad_rows.dead_letter_topic.as_str()),
        (BadRowAction::DeadLetter, "dead")
    );
    assert_eq!((config.on_stop, config.delivery), (run::OnStop::StayUp, Delivery::ExactlyOnce { one_replica: false }));
    assert_eq!(config.http, None);
    assert_eq!(
        config.limits,
        run::Limits {
            shutdown_timeout: Duration::from_mins(1),
            disconnect_after: Duration::from_secs(5),
            unready_after: Duration::from_secs(10),
            coalesce: Duration::ZERO,
            max_in_flight: 65_536,
            max_row: 1_000_000,
        }
    );
}

/// A value of a setting.
fn example(setting: &dyn AnySetting) -> &'static str {
    match (setting.name, setting.value) {
        ("accept-slot-at", _) => "0/10",
        ("bad-row-at", _) => "0/10:0=dead-letter",
        ("brokers", _) => "a:1",
        ("coalesce", _) => "1ms",
        ("http", _) => "off",
        ("source", _) => "postgres://app@db/shop",
        ("topic-regex", _) => "(.*)",
        (_, "BOOL") => "true",
        (_, "DURATION") => "1s",
        (_, "NAME=COLUMN") => "a=b",
        (_, "SIZE") => "1MiB",
        (_, "COLUMN" | "FILE" | "NAME" | "PREFIX" | "TABLE" | "TEXT" | "TOPIC") => "relay_1",
        _ => setting.words().pop().unwrap_or_else(|| panic!("--{} lacks an example", setting.name)),
    }
}

#[test]
fn every_setting_can_come_from_a_variable_and_from_the_file() {
    // The command excludes the file, a template the expression, an envelope schemas and events, and the set-up a shard.
    let excluded = ["from-debezium", "shard", "source-password-command", "to", "topic"];
    let is_excluded =
        |name: &str| excluded.contains(&name) || name.starts_with("schema-") || name.starts_with("cloudevents");
    let values = named().filter(|setting| !is_excluded(setting.name)).map(|setting| (setting.name, example(setting)));
    let values: Vec<_> = values.collect();

    let flags = values.iter().map(|(name, value)| format!("--{name}={value}")).collect::<Vec<_>>();
    let expected = format!("{:?}", run(&flags.iter().map(String::as_str).collect::<Vec<_>>()));

    let names: Vec<_> = values.iter().map(|(name, value)| (variable_of(name), *value)).collect();
    let variables: Vec<_> = names.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(format!("{:?}", run_in(&environment(&variables), &[]).0), expected);

    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<_> = values.iter().map(|(name, value)| format!("{name} = '{value}'")).collect();
    fs::write(file.path(), lines.join("\n")).unwrap();
    assert_eq!(format!("{:?}", run(&["-c", file.path().to_str().unwrap()])), expected);
    let variable = [("WALRELAY_CONFIG", file.path().to_str().unwrap())];
    assert_eq!(format!("{:?}", run_in(&environment(&variable), &[]).0), expected);
}

#[test]
fn a_shard_has_names_after_the_whole_and_dead_letters_of_all_shards_have_one_place() {
    let (config, _) = run_in(&environment(&[("WALRELAY_SHARD", "relay-2/3")]), &["-S=shop", "-p=Pub"]);
    assert_eq!((config.publication.as_str(), config.slot.as_str()), ("Pub_2_of_3", "shop_2_of_3"));
    assert_eq!(config.bad_rows.dead_letter_topic, "shop.dead-letter");
    assert!(refused(&["run", "--shard=3/3"]).contains("expected I/N with N from 1 to 16 and I from 0 to N - 1"));
    assert!(refused(&["run", "--shard=0/3", "--setup"]).contains("--shard: one shard does not set up the others"));
    let long = format!("--slot={}", "x".repeat(55));
    assert!(refused(&["run", "--shard=0/3", &long]).contains("too long"));
    assert!(refused(&["setup", "--shards=3", &long]).contains("too long"));
    assert_eq!(run(&["--shard=0/3", &format!("--slot={}", "x".repeat(54))]).slot.len(), 61);
    assert!(refused(&["backfill", "--shard=0/3"]).contains("which rows are older"));
    for wrong in [["setup", "--shards=0"], ["setup", "--reshard=17"], ["teardown", "--shards=x"]] {
        assert!(refused(&wrong).contains("expected a number of shards from 1 to 16"), "{wrong:?}");
    }
}

#[test]
fn the_source_falls_back_to_database_url_and_then_to_libpqs_variables() {
    let variables = [("PGHOST", "pg"), ("PGUSER", "app"), ("PGDATABASE", "shop")];
    let source = |environment: &Environment, flags: &[&str]| run_in(environment, flags).0.source.to_string();
    assert_eq!(source(&environment(&variables), &[]), "shop as app at pg:5432");
    let url = ("DATABASE_URL", "postgres://url");
    let all = [&variables[..], &[url]].concat();
    assert_eq!(source(&environment(&all), &[]), "shop as app at url:5432");
    assert_eq!(source(&environment(&all), &["--dsn", "postgres://dsn"]), "shop as app at dsn:5432");
    assert_eq!(source(&environment(&all), &["--database-url", "host=u"]), "shop as app at u:5432");
}

#[test]
fn errors_of_the_source_name_the_place_that_is_wrong() {
    assert_eq!(
        refused(&["run", "-d", "host=db sslmode=requir"]),
        "error: --source: sslmode \"requir\" is not valid: expected disable, prefer, require, verify-ca or verify-full\n\
         hint: the nearest valid value is require\n"
    );
    let in_variable = environment(&[("DATABASE_URL", "jdbc:postgresql://db/shop?user=a&password=hunter2")]);
    assert_eq!(
        refused_in(&in_variable, &["run"]),
        "error: DATABASE_URL: the scheme \"jdbc\" is not one of Postgres: expected postgres:// or postgresql://\n\
         hint: postgres://user@host:5432/dbname?sslmode=verify-full\n"
    );
    let output = refused_in(&environment(&[("PGSSLMODE", "on")]), &["run"]);
    assert!(output.starts_with("error: PGSSLMODE: sslmode \"on\" is not valid"), "{output}");
}

#[test]
#[cfg(feature = "ordered-queue")]
fn an_address_is_held_to_its_destinations_rule() {
    let topics = |to: &str, name: &str| refused(&["run", to, &format!("--dead-letter-topic={name}")]);
    assert!(topics("--to=kafka://h", "a:b").contains("expected 1 to 249 letters"));
    for (to, name) in [("--to=redis://h", "dead:letters {1}"), ("--to=nats://h", "dead:letters.Ä")] {
        let config = run(&[to, &format!("--dead-letter-topic={name}"), "--topic=shop:{route}"]);
        assert_eq!(config.bad_rows.dead_letter_topic, name);
        let rule = config.mapping.addresses;
        assert!(crate::route::TopicRule::new(&config.mapping.topic, rule).is_ok());
        assert!(crate::route::TopicRule::new(&config.mapping.topic, &TOPICS).is_err());
    }
    assert!(topics("--to=nats://h", "dead..letters").contains("expected a subject"));
    #[cfg(feature = "aws")]
    assert_eq!(run(&["--to=sqs://eu-central-1", "-S=shop"]).bad_rows.dead_letter_topic, "shop-dead-letter");
}

#[test]
fn of_a_bad_row_what_is_said_of_it_alone_counts_first_and_dead_letters_go_to_a_topic_of_the_slot() {
    let config = run(&["-S=shop", "--on-bad-row=skip", "--bad-row-at=0/10:1=dead-letter"]);
    let at = |ordinal| Position { final_lsn: Lsn::new(16), ordinal };
    assert_eq!(
        (config.bad_rows.action(at(0)), config.bad_rows.action(at(1))),
        (BadRowAction::Skip, BadRowAction::DeadLetter)
    );
    assert_eq!(config.bad_rows.dead_letter_topic, "shop.dead-letter");
    assert_eq!(run(&[]).bad_rows.action(at(1)), BadRowAction::Stop);
    for wrong in ["--bad-row-at=0/10:1", "--bad-row-at=0/10:1=stop", "--bad-row-at=1=skip", "--dead-letter-topic=a b"] {
        assert!(refused(&["run", wrong]).contains("is not valid"), "{wrong}");
    }
}

#[test]
fn a_password_on_the_command_line_is_a_warning_and_elsewhere_none() {
    let (_, warnings) = run_in(&environment(&[]), &["-d", "postgres://a:hunter2@db"]);
    assert!(warnings[0].contains("WALRELAY_SOURCE") && !warnings[0].contains("hunter2"), "{warnings:?}");
    let variable = environment(&[("WALRELAY_SOURCE", "postgres://a:hunter2@db")]);
    assert_eq!(run_in(&variable, &[]).1, [""; 0]);
}

#[test]
fn a_value_that_is_not_valid_names_flag_value_what_is_and_the_nearest() {
    assert_eq!(
        refused(&["run", "-S", "Wal-Relay"]),
        "error: --slot: \"Wal-Relay\" is not valid: expected 1 to 63 lower-case letters, digits and underscores\n\
         hint: the nearest valid value is wal_relay\n"
    );
    for (arguments, error, hint) in [
        (["--on-update", "wran"], "--on-update: \"wran\" is not valid: expected warn, skip, stop", "warn"),
        (["--on-bad-row", "skp"], "--on-bad-row: \"skp\" is not valid: expected stop, dead-letter, skip", "skip"),
        (["--bad-row-at", "0/10:0=skipp"], "--bad-row-at: \"0/10:0=skipp\" is not valid", "0/10:0=skip"),
        (["--log-level", "inof"], "--log-level: \"inof\" is not valid", "info"),
        (["--log-format", "jsno"], "--log-format: \"jsno\" is not valid: expected text, json", "json"),
        (["--shutdown-timeout", "5m"], "--shutdown-timeout: \"5m\" is not valid: expected a whole number", "5min"),
        (["--http", "9464"], "--http: \"9464\" is not valid: expected HOST:PORT", "127.0.0.1:9464"),
        (["--header", "shard"], "--header: \"shard\" is not valid: expected NAME=COLUMN", "shard=shard"),
    ] {
        let output = refused(&["run", arguments[0], arguments[1]]);
        assert!(output.starts_with(&format!("error: {error}")), "{output}");
        assert!(output.ends_with(&format!("\nhint: the nearest valid value is {hint}\n")), "{output}");
    }
}

#[test]
fn a_constant_that_some_destination_could_not_carry_is_refused() {
    for header in ["==v", " ==v", "a==b\nc: d", "walrelay-x==1"] {
        let output = refused(&["run", "--header", header]);
        assert!(output.contains("expected NAME==VALUE without control characters"), "{output}");
    }
}

#[test]
fn values_out_of_range_are_refused() {
    for arguments in [
        ["--max-in-flight", "63KiB"],
        ["--max-in-flight", "3TiB"],
        ["--max-row", "2GiB"],
        ["--max-row", "0"],
        ["--disconnect-after", "0"],
        ["--accept-slot-at", "here"],
        ["--unready-after", "0"],
        ["--coalesce", "1s"],
        ["--table", "a.b.c"],
        ["--table", "ONLY a.b.c"],
        ["--origin", "none"],
        ["--topic", ""],
        ["--envelope", "payload=x"],
        ["--envelope", "=x"],
        ["--message-prefix", ""],
        ["--id-column", ""],
        ["--source", ""],
        ["--brokers", "a:x"],
    ] {
        let output = refused(&["run", arguments[0], arguments[1]]);
        assert!(output.starts_with(&format!("error: {}: ", arguments[0])), "{output}");
    }
}

#[test]
fn settings_that_exclude_or_need_each_other_are_refused() {
    let regex = ["run", "--topic-regex", "x", "--topic-replacement", "y"];
    let output = refused(&[&regex[..], &["--topic", "z"]].concat());
    assert!(output.starts_with("error: --topic and --topic-regex exclude each other\n"), "{output}");
    assert_eq!(refused(&["run", "--topic-replacement", "y"]), "error: --topic-replacement needs --topic-regex\n");
    assert_eq!(refused(&["run", "--topic-regex", "y"]), "error: --topic-regex needs --topic-replacement\n");
    assert!(refused(&["status", "--ready", "--json"]).contains("--ready"));
    assert!(refused(&["status", "--ready", "--http=off"]).contains("off"));
    assert!(refused(&["run", "--envelope", "a=b", "--envelope", "a=c"]).contains("--envelope"));
}

#[test]
fn a_schemas_id_is_a_number_or_a_column_and_stands_alone() {
    assert_eq!(run(&["--schema-id", "2147483647"]).mapping.schema_id, Some(SchemaId::Number(2_147_483_647)));
    let variable = environment(&[("WALRELAY_SCHEMA_ID", "schema")]);
    assert_eq!(run_in(&variable, &[]).0.mapping.schema_id, Some(SchemaId::Column("schema".into())));
    assert!(refused(&["run", "--schema-id", "2147483648"]).contains("a number from 0 to 2147483647"));
    assert!(refused(&["run", "--schema-id", ""]).starts_with("error: --schema-id"));
    let events = ["--cloudevents", "binary", "--cloudevents-source", "/s"];
    for others in [&["--envelope", "a=b"][..], &events] {
        let output = refused(&[&["run", "--schema-id", "7"], others].concat());
        assert!(output.contains("--schema-id") && output.contains("exclude each other"), "{output}");
    }
}

#[test]
fn cloud_events_can_be_asked_for_in_a_variable_and_in_the_file() {
    let events = |environment: &Environment, flags: &[&str]| run_in(environment, flags).0.mapping.cloudevents;
    let variables = [("WALRELAY_CLOUDEVENTS", "structured"), ("WALRELAY_CLOUDEVENTS_SOURCE", "/s")];
    assert_eq!(events(&environment(&variables), &[]), Some(CloudEvents::structured("/s".to_owned())));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "cloudevents = 'binary'\ncloudevents-source = '/s'").unwrap();
    let binding = EventBinding { prefix: "ce_", percent_encoded: false };
    let found = events(&environment(&[]), &["-c", file.path().to_str().unwrap()]);
    assert_eq!(found, Some(CloudEvents::binary("/s".to_owned(), binding)));
}

#[test]
fn an_empty_name_turns_an_optional_column_off() {
    let mapping = run(&["--key-column=", "--type-column=", "--headers-column="]).mapping;
    let off = Some(String::new());
    assert_eq!((&mapping.key_column, &mapping.type_column, &mapping.headers_column), (&off, &off, &off));
}

#[test]
fn capitals_in_an_unquoted_table_are_a_warning() {
    let (config, warnings) = run_in(&environment(&[]), &["-t", "Outbox"]);
    assert_eq!(config.tables[0].to_string(), "public.outbox");
    assert!(warnings[0].contains("Outbox is read as public.outbox"), "{warnings:?}");
}

proptest! {
    #[test]
    fn no_command_line_panics(arguments in proptest::collection::vec("(run|setup|status|--?[a-zA-Z-]{1,12}=?|\\PC{0,8})", 0..5)) {
        let arguments = arguments.iter().map(String::as_str).collect::<Vec<_>>();
        if let Err(exit) = parse_in(&environment(&[]), &arguments) {
            let _shown = exit.to_string();
        }
    }

    #[test]
    fn no_value_panics(setting in proptest::sample::select(cli::settings()), value in any::<String>()) {
        let flag = format!("--{setting}={value}");
        if let Err(exit) = parse_in(&environment(&[]), &["run", &flag]) {
            let _shown = exit.to_string();
        }
    }
}

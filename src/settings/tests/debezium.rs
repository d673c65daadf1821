//! Settings from the files of a Debezium configuration.

use super::*;

/// A configuration of Debezium Server that may run as it is.
fn old_set_up(dir: &tempfile::TempDir, more: &str) -> String {
    let file = dir.path().join("application.properties");
    let text = "debezium.sink.type=kafka\n\
                debezium.sink.kafka.producer.bootstrap.servers=old:9092\n\
                debezium.sink.kafka.producer.linger.ms=9\n\
                debezium.format.key=simplestring\ndebezium.format.value=simplestring\n\
                debezium.source.connector.class=a.PostgresConnector\ndebezium.source.plugin.name=pgoutput\n\
                debezium.source.database.hostname=old\ndebezium.source.database.password=hunter2\n\
                debezium.source.slot.name=old_slot\ndebezium.source.publication.name=old_pub\n\
                debezium.source.table.include.list=public.outbox\n\
                debezium.transforms=o\ndebezium.transforms.o.type=io.debezium.transforms.outbox.EventRouter\n\
                debezium.transforms.o.route.topic.replacement=x.$$1\ndebezium.transforms.o.route.topic.regex=(a|b)\n";
    fs::write(&file, format!("{text}{more}\n")).unwrap();
    file.display().to_string()
}

#[test]
fn an_old_set_up_counts_below_flags_variables_and_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let old = old_set_up(&dir, "");
    let toml = dir.path().join("walrelay.toml");
    fs::write(&toml, format!("from-debezium = '{old}'\npublication = 'toml_pub'\n")).unwrap();
    let variables =
        environment(&[("WALRELAY_BROKERS", "env:1"), ("DATABASE_URL", "postgres://no"), ("PGPASSWORD", "no")]);
    let (config, warnings) = run_in(&variables, &["-c", toml.to_str().unwrap(), "-X", "batch.size=7"]);
    assert_eq!((config.slot.as_str(), config.publication.as_str()), ("old_slot", "toml_pub"));
    assert_eq!(config.source.to_string(), "me as me at old:5432");
    let destination = r#"Kafka { brokers: "env:1", properties: [("linger.ms", "9"), ("batch.size", "7")], .. }"#;
    assert_eq!(format!("{:?}", config.destination), destination);
    assert_eq!(config.mapping.topic, TopicSetting::Regex { regex: "(a|b)".into(), replacement: "x.$1".into() });
    assert!(config.mapping.connect.is_some() && !config.table_patterns.is_empty());
    assert!(warnings.iter().any(|warning| warning.contains("__debezium.context")), "{warnings:?}");
    let (config, _) = run_in(&environment(&[]), &["--from-debezium", &old, "--slot=s", "--topic={type}", "-t", "a"]);
    assert_eq!(config.slot, "s");
    assert_eq!(config.mapping.topic, TopicSetting::Template("{type}".into()));
    assert!(config.table_patterns.is_empty() && config.tables.len() == 1);
}

#[test]
fn an_old_set_up_whose_records_would_differ_is_refused_unless_that_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let old = old_set_up(&dir, "debezium.source.converters=mine");
    let output = refused(&["run", "--from-debezium", &old]);
    assert!(
        output.starts_with("error: debezium.source.converters (") && output.contains("--accept-differences"),
        "{output}"
    );
    assert!(!output.contains("hunter2"));
    let (_, warnings) = run_in(&environment(&[]), &["--from-debezium", &old, "--accept-differences"]);
    assert!(warnings.iter().any(|warning| warning.contains("custom converters")), "{warnings:?}");
}

#[test]
fn check_shows_what_an_old_set_up_means() {
    let dir = tempfile::tempdir().unwrap();
    let old = old_set_up(&dir, "debezium.source.converters=mine");
    let task = |arguments: &[&str]| parse_in(&environment(&[]), arguments).unwrap().task;
    let Task::CheckDebezium(config) = task(&["check", "--from-debezium", &old]) else { panic!("no check") };
    assert!(config.report.contains("--slot old_slot") && !config.report.contains("hunter2"));
    assert!(config.verdict.is_err());
    let Task::CheckDebezium(config) = task(&["check", "--from-debezium", &old, "--accept-differences"]) else {
        panic!("no check")
    };
    assert!(config.verdict.is_ok());
    let Task::Check(request) = task(&["check", "--json", "--slot", "s"]) else { panic!("no check") };
    assert_eq!((request.json, request.config.slot.as_str()), (true, "s"));
}

/// Lines more, of which `run` refuses the first by its key and line; `check` says the same.
#[track_caller]
fn both_refuse(lines: &str) {
    let dir = tempfile::tempdir().unwrap();
    let old = old_set_up(&dir, lines);
    let of_run = refused(&["run", "--from-debezium", &old]);
    let invocation = parse_in(&environment(&[]), &["check", "--from-debezium", &old]).unwrap();
    let Task::CheckDebezium(review) = invocation.task else { panic!("no check") };
    let of_check = Exit::Wrong(review.verdict.expect_err(lines)).to_string();
    assert_eq!(of_run, of_check, "{lines}");
    let (key, _) = lines.split_once('=').unwrap();
    let key = format!("{key} ({old}, line 17)");
    assert!(of_run.contains(&key), "{lines}: {of_run}");
}

#[test]
fn check_and_run_judge_an_old_set_up_alike_and_name_its_keys() {
    for line in [
        "debezium.source.database.sslmode=nonsense",
        "debezium.source.database.port=abc",
        "debezium.source.database.port=0",
        "debezium.source.slot.name=Bad-Slot",
        "debezium.sink.kafka.producer.bootstrap.servers=a:b:c",
        "debezium.sink.kafka.producer.compression.type=brotli",
        "debezium.sink.kafka.producer.linger.ms=-5",
        "debezium.sink.kafka.producer.security.protocol=SASL_SSL",
        "debezium.transforms.o.table.fields.additional.placement=a:envelope:payload",
        "debezium.transforms.o.table.fields.additional.placement=a:envelope:x,b:envelope:x",
        "debezium.transforms.o.table.fields.additional.placement=a:footer",
        "debezium.transforms.o.route.topic.regex=(",
        "debezium.source.topic.prefix=${nothing}",
        "debezium.source.plugin.name=wal2json",
        "debezium.sink.kafka.producer.client.dns.lookup=default",
    ] {
        both_refuse(line);
    }
}

/// What librdkafka sees when a client is created, and not before.
#[test]
fn check_and_run_refuse_files_and_properties_that_no_client_can_use() {
    let dir = tempfile::tempdir().unwrap();
    let rubbish = dir.path().join("rubbish.pem");
    fs::write(&rubbish, "rubbish").unwrap();
    let rubbish = format!("ssl.truststore.location={}", rubbish.display());
    let plain = "sasl.jaas.config=a.PlainLoginModule required username=u password=p;\nsasl.mechanism=PLAIN";
    for (first, more) in [
        ("ssl.truststore.location=/no/such.pem", "security.protocol=SSL"),
        (&rubbish, "security.protocol=SSL\nssl.keystore.type=PEM"),
        ("ssl.truststore.certificates=rubbish", "security.protocol=SSL\nssl.truststore.type=PEM"),
        ("ssl.keystore.location=/no/such.p12", "security.protocol=SSL\nssl.keystore.password=x"),
        ("ssl.truststore.location=/no/such.pem", &format!("security.protocol=SASL_SSL\n{plain}")),
        ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=SCRAM-SHA-256"),
        ("ssl.truststore.location=/no/such.pem", "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER"),
    ] {
        let lines = std::iter::once(first).chain(more.lines()).map(|line| format!("{PRODUCER}{line}"));
        both_refuse(&lines.collect::<Vec<_>>().join("\n"));
    }
}

const PRODUCER: &str = "debezium.sink.kafka.producer.";

#[test]
fn what_debezium_takes_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    for line in [
        "debezium.source.database.sslmode=Require",
        "debezium.source.database.port= 5433 ",
        "debezium.transforms.o.table.fields.additional.placement=a:header,b:header:x=y,",
        "debezium.sink.kafka.producer.batch.size=0",
        "debezium.sink.kafka.producer.send.buffer.bytes=-1",
        "debezium.sink.kafka.producer.connections.max.idle.ms=-1",
        "debezium.sink.kafka.producer.request.timeout.ms=2147483647",
        "debezium.sink.kafka.producer.reconnect.backoff.ms=5000",
        "debezium.sink.kafka.producer.compression.zstd.level=22",
        "debezium.sink.kafka.producer.security.protocol=sasl_plaintext\n\
         debezium.sink.kafka.producer.sasl.mechanism=PLAIN\n\
         debezium.sink.kafka.producer.sasl.jaas.config=a.PlainLoginModule required username=u password=p;",
    ] {
        let old = old_set_up(&dir, line);
        run_in(&environment(&[]), &["--from-debezium", &old]);
        let task = parse_in(&environment(&[]), &["check", "--from-debezium", &old]).unwrap().task;
        let Task::CheckDebezium(review) = task else { panic!("no check") };
        review.verdict.expect(line);
    }
    let (config, _) = run_in(
        &environment(&[]),
        &[
            "--from-debezium",
            &old_set_up(&dir, "debezium.transforms.o.table.fields.additional.placement=b:header:x=y,"),
        ],
    );
    assert_eq!(config.mapping.headers, [("x=y".to_owned(), "b".to_owned())]);
}

#[test]
fn a_variable_of_debeziums_counts_like_a_key_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let old = old_set_up(&dir, "");
    let of_debezium = environment(&[
        ("DEBEZIUM_TRANSFORMS_O_ROUTE_TOPIC_REGEX", "(c|d)"),
        ("DEBEZIUM_TRANSFORMS_O_TABLE_FIELDS_ADDITIONAL_PLACEMENT", "b:header:x=y"),
        ("DEBEZIUM_SINK_KAFKA_PRODUCER_BOOTSTRAP_SERVERS", "of-variable:1"),
    ]);
    let (config, _) = run_in(&of_debezium, &["--from-debezium", &old]);
    assert_eq!(config.mapping.topic, TopicSetting::Regex { regex: "(c|d)".into(), replacement: "x.$1".into() });
    assert_eq!(config.mapping.headers, [("x=y".to_owned(), "b".to_owned())]);
    let (config, _) = run_in(&of_debezium, &["--from-debezium", &old, "--topic", "own"]);
    assert_eq!(config.mapping.topic, TopicSetting::Template("own".into()));
}

#[test]
fn flags_of_topics_count_before_debeziums_default() {
    let dir = tempfile::tempdir().unwrap();
    let old = old_set_up(&dir, "");
    let text = fs::read_to_string(&old).unwrap();
    let lines = text.lines().filter(|line| !line.contains("route.topic"));
    fs::write(&old, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let flags = ["--from-debezium", &old, "--topic-regex", "(e)", "--topic-replacement", "y.$1"];
    let (config, _) = run_in(&environment(&[]), &flags);
    assert_eq!(config.mapping.topic, TopicSetting::Regex { regex: "(e)".into(), replacement: "y.$1".into() });
}

//! Kafka behind TLS and passwords, rights that come and go, and that no secret shows.

use std::fs;
use std::sync::OnceLock;

use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::{self, Relay};
use walrelay_dev::secure::SecureKafka;

use crate::check::checked_as;
use crate::hints::first_commands;
use crate::lane::{LONG, Lane, OUTBOX, binary, ended, hint, ids, wait_events};

pub(crate) const PASSWORD: &str = "s3cret-of-kafka";

/// The password that the tests' role has on the shared Postgres, which asks nobody for it.
const POSTGRES_PASSWORD: &str = "s3cret-of-postgres";

/// What a producer needs.
const RIGHTS: &[&str] = &["Write", "Describe", "Create"];

/// A broker where `scram` and `CN=client` may write every lane's topics, and the others none.
pub(crate) fn kafka() -> &'static SecureKafka {
    static SHARED: OnceLock<SecureKafka> = OnceLock::new();
    SHARED.get_or_init(|| {
        let users =
            ["scram", "nobody", "passing", "asking", "elsewhere", "creates_nothing"].map(|name| (name, PASSWORD));
        let kafka = SecureKafka::start(&users).unwrap();
        // `check` waits for ten seconds only.
        kafka.kafka.prepare_transactions().unwrap();
        for user in ["User:scram", "User:CN=client"] {
            kafka.allow(user, RIGHTS, "lane").unwrap();
        }
        kafka.allow("User:elsewhere", RIGHTS, "elsewhere").unwrap();
        kafka.allow("User:creates_nothing", &["Write", "Describe"], "lane").unwrap();
        kafka
    })
}

/// A lane on the guarded Kafka. What is read of its topics is read through the administrator's door.
pub(crate) fn lane() -> Lane {
    Lane::on(shared_postgres().unwrap(), &kafka().kafka).furnish(OUTBOX, "outbox")
}

/// Arguments for a door of the broker, with properties.
pub(crate) fn through(lane: &Lane, brokers: &str, properties: &[(&str, &str)]) -> Vec<String> {
    let mut arguments = lane.arguments(&[]);
    let place = arguments.iter().position(|argument| *argument == lane.brokers).unwrap();
    brokers.clone_into(&mut arguments[place]);
    arguments.extend(properties.iter().flat_map(|(key, value)| ["-X".to_owned(), format!("{key}={value}")]));
    arguments
}

pub(crate) fn start(arguments: &[String], password: Option<&str>) -> Relay {
    let environment: Vec<(&str, &str)> = password.map(|p| ("WALRELAY_KAFKA_SASL_PASSWORD", p)).into_iter().collect();
    Relay::start(&binary(), arguments, &environment).unwrap()
}

pub(crate) fn by_scram<'a>(mechanism: &'a str, user: &'a str, authority: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanism", mechanism),
        ("sasl.username", user),
        ("ssl.ca.location", authority),
    ]
}

/// Waits until `/readyz` says no, with these words.
#[track_caller]
fn wait_not_ready(relay: &Relay, words: &str) {
    let found = wait_until(LONG, &format!("{words:?} in /readyz"), || {
        Ok(relay.get("/readyz").is_ok_and(|answer| answer.status == 503 && answer.body.contains(words)))
    });
    found.unwrap_or_else(|error| panic!("{error}: {:?} {}", relay.get("/readyz"), relay.log()));
}

#[test]
fn records_pass_through_tls_with_a_password_by_each_mechanism() {
    let (lane, kafka) = (lane(), kafka());
    let authority = kafka.file("right.pem");
    for (id, mechanism) in ["SCRAM-SHA-256", "SCRAM-SHA-512"].into_iter().enumerate() {
        let properties = by_scram(mechanism, "scram", &authority);
        let mut relay = start(&through(&lane, &kafka.sasl_ssl, &properties), Some(PASSWORD));
        lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '1')"));
        wait_events(&relay, 1);
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
    assert_eq!(ids(&lane.records_now("order")), ["0", "1"]);
}

#[test]
fn records_pass_through_tls_with_a_client_certificate() {
    let (lane, kafka) = (lane(), kafka());
    let (authority, certificate, key) = (kafka.file("right.pem"), kafka.file("client.crt"), kafka.file("client.key"));
    let properties = [
        ("security.protocol", "SSL"),
        ("ssl.ca.location", authority.as_str()),
        ("ssl.certificate.location", &certificate),
        ("ssl.key.location", &key),
    ];
    let relay = start(&through(&lane, &kafka.ssl, &properties), None);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_events(&relay, 1);
    assert_eq!(lane.ids("order"), ["1"]);
}

/// Nothing gets out, and the reason is reported.
#[track_caller]
fn check_shut(brokers: &str, properties: &[(&str, &str)], password: Option<&str>, words: &str) {
    let lane = lane();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    let before = lane.confirmed();
    let mut relay = start(&through(&lane, brokers, properties), password);
    wait_not_ready(&relay, words);
    assert_eq!(relay.exited().unwrap(), None);
    assert_eq!((lane.records_now("order").len(), lane.confirmed()), (0, before));
}

#[test]
#[ignore = "slow"]
fn a_broker_by_an_authority_that_is_not_trusted_gets_nothing() {
    let wrong = kafka().file("wrong.pem");
    let properties = by_scram("SCRAM-SHA-256", "scram", &wrong);
    check_shut(&kafka().sasl_ssl, &properties, Some(PASSWORD), "certificate verify failed");
}

#[test]
#[ignore = "slow"]
fn a_broker_is_verified_when_nothing_is_said_of_it() {
    let properties =
        [("security.protocol", "SASL_SSL"), ("sasl.mechanism", "SCRAM-SHA-256"), ("sasl.username", "scram")];
    check_shut(&kafka().sasl_ssl, &properties, Some(PASSWORD), "certificate verify failed");
}

#[test]
#[ignore = "slow"]
fn a_broker_whose_certificate_has_another_name_gets_nothing() {
    let authority = kafka().file("right.pem");
    let by_address = kafka().sasl_ssl.replace("localhost", "127.0.0.1");
    let properties = by_scram("SCRAM-SHA-256", "scram", &authority);
    check_shut(&by_address, &properties, Some(PASSWORD), "certificate verify failed");
}

#[test]
#[ignore = "slow"]
fn a_client_whose_certificate_is_a_strangers_gets_nothing_out() {
    let kafka = kafka();
    let (authority, certificate, key) =
        (kafka.file("right.pem"), kafka.file("stranger.crt"), kafka.file("stranger.key"));
    let properties = [
        ("security.protocol", "SSL"),
        ("ssl.ca.location", authority.as_str()),
        ("ssl.certificate.location", &certificate),
        ("ssl.key.location", &key),
    ];
    check_shut(&kafka.ssl, &properties, None, "SSL");
}

#[test]
fn a_wrong_kafka_password_is_for_an_operator_and_never_shown() {
    let lane = lane();
    let authority = kafka().file("right.pem");
    let properties = by_scram("SCRAM-SHA-512", "scram", &authority);
    let mut relay = start(&through(&lane, &kafka().sasl_ssl, &properties), Some("hunter2"));
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("error: ") && log.contains("Authentication failed") && !log.contains("hunter2"), "{log}");
    assert!(hint(&log).contains("sasl.password"), "{log}");
}

#[test]
#[ignore = "slow"]
fn a_right_that_is_missing_is_named_and_once_it_is_given_the_rows_flow() {
    let lane = lane();
    let authority = kafka().file("right.pem");
    let topic = lane.topic("order");
    kafka().kafka.create_topic(&topic, 1, &[]).unwrap();
    let properties = by_scram("SCRAM-SHA-256", "nobody", &authority);
    let mut relay = start(&through(&lane, &kafka().sasl_ssl, &properties), Some(PASSWORD));
    relay.wait_streaming(LONG).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_not_ready(&relay, &topic);
    assert!(relay.log().contains("WRITE"), "{}", relay.log());
    kafka().allow("User:nobody", RIGHTS, &lane.name).unwrap();
    assert_eq!(lane.ids("order"), ["1"]);
}

#[test]
#[ignore = "slow"]
fn a_right_that_is_revoked_under_way_holds_the_slot_and_once_it_is_back_nothing_is_missing() {
    let lane = lane();
    let authority = kafka().file("right.pem");
    let topic = lane.topic("order");
    kafka().kafka.create_topic(&topic, 1, &[]).unwrap();
    kafka().allow("User:passing", RIGHTS, &lane.name).unwrap();
    let properties = by_scram("SCRAM-SHA-256", "passing", &authority);
    let mut relay = start(&through(&lane, &kafka().sasl_ssl, &properties), Some(PASSWORD));
    relay.wait_streaming(LONG).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('0', 'order', 'k', 't', '1')");
    lane.wait_confirmed();
    kafka().revoke("User:passing", &["Write"], &lane.name).unwrap();
    lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', 't', '1' FROM generate_series(1, 50) AS n");
    wait_not_ready(&relay, &topic);
    assert_eq!(relay.exited().unwrap(), None);
    assert_eq!(lane.records_now("order").len(), 1);
    kafka().allow("User:passing", RIGHTS, &lane.name).unwrap();
    let all: Vec<String> = (0..=50).map(|n| n.to_string()).collect();
    assert_eq!(lane.ids("order"), all, "{}", relay.log());
    relay.wait_streaming(LONG).unwrap();
}

#[test]
fn no_secret_shows_in_the_log_the_process_list_or_a_page() {
    let lane = lane();
    let authority = kafka().file("right.pem");
    let mut properties = by_scram("SCRAM-SHA-256", "scram", &authority);
    properties.push(("debug", "security,broker,conf"));
    let mut arguments = through(&lane, &kafka().sasl_ssl, &properties);
    arguments.extend(["--log-level=trace".to_owned(), "--slot=nowhere".to_owned()]);
    let environment = [("WALRELAY_KAFKA_SASL_PASSWORD", PASSWORD), ("PGPASSWORD", POSTGRES_PASSWORD)];
    let mut refused = Relay::start(&binary(), &arguments, &environment).unwrap();
    assert_eq!(refused.wait_exit(LONG).unwrap(), 2);
    arguments.pop();
    let mut relay = Relay::start(&binary(), &arguments, &environment).unwrap();
    relay.wait_streaming(LONG).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_events(&relay, 1);
    let process = format!("/proc/{}/cmdline", relay.pid().unwrap());
    let mut shown = vec![("the process list", String::from_utf8(fs::read(process).unwrap()).unwrap())];
    for path in ["/metrics", "/status", "/", "/readyz"] {
        shown.push((path, relay.get(path).unwrap().body));
    }
    let output = relay::run(&binary(), &["run", "--help"]).unwrap();
    shown.push(("--help", String::from_utf8(output.stdout).unwrap()));
    assert_eq!(relay.terminate(LONG).unwrap().code, 0);
    shown.extend([("the log", relay.log()), ("a refusal's log", refused.log())]);
    assert!(relay.log().contains("walrelay::librdkafka"), "the client's own lines are among them: {}", relay.log());
    for (place, text) in shown {
        for secret in [PASSWORD, POSTGRES_PASSWORD] {
            assert!(!text.contains(secret), "{secret} in {place}: {text}");
        }
    }
}

#[test]
#[ignore = "slow"]
fn a_protocol_that_the_listener_does_not_speak_is_reported_by_check_with_flags_that_work() {
    let (lane, kafka) = (lane(), kafka());
    let authority = kafka.file("right.pem");
    let by_password = by_scram("SCRAM-SHA-256", "scram", &authority);
    let spoken = |protocol: &'static str| -> Vec<(&str, &str)> {
        let others = by_password.iter().filter(|(name, _)| *name != "security.protocol").copied();
        others.chain([("security.protocol", protocol)]).collect()
    };
    for (brokers, properties) in [
        (&kafka.sasl_ssl, spoken("SASL_PLAINTEXT")),
        (&kafka.sasl_ssl, spoken("PLAINTEXT")),
        (&lane.brokers, spoken("SASL_SSL")),
        (&lane.brokers, spoken("SASL_PLAINTEXT")),
        (&lane.brokers, vec![("security.protocol", "SSL"), ("ssl.ca.location", &authority)]),
    ] {
        let mut arguments = through(&lane, brokers, &properties);
        "check".clone_into(&mut arguments[0]);
        arguments.push("--json".to_owned());
        let password = [("WALRELAY_KAFKA_SASL_PASSWORD", PASSWORD)];
        let fix = checked_as(&arguments, &password).level("connection", "fail", &["Kafka at"]);
        let commands = first_commands(&fix);
        assert_eq!(commands.len(), 1, "{properties:?}: {fix}");
        arguments.extend_from_slice(&commands[0][1..]);
        checked_as(&arguments, &password).level("connection", "ok", &["brokers that answer"]);
    }
}

//! Credentials for Kafka that change: tokens of seconds at Kafka's own OAUTHBEARER listeners, passwords that are rotated under load.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::{self, Relay};
use walrelay_dev::run_dir::free_port;
use walrelay_dev::tokens::{AUDIENCE, ISSUER, Issuer};

use crate::lane::{LONG, Lane, OUTBOX, binary, ended, fresh, hint, ids, wait_events, wait_log};
use crate::secure;

/// Seconds that a token lives for.
const LIFE: u64 = 6;

/// The user whose password is rotated.
const USER: &str = "rotating";

/// A broker with a listener for each way to log in.
struct Door {
    kafka: Kafka,
    issuer: Issuer,
    /// Takes unsecured tokens (`alg: none`).
    unsecured: u16,
    /// Takes tokens that the issuer has signed for it.
    signed: u16,
    /// SCRAM; a connection has to log in again after seconds.
    scram: u16,
    /// One test at a time changes what the issuer does.
    issuing: Mutex<()>,
}

fn door() -> &'static Door {
    static SHARED: OnceLock<Door> = OnceLock::new();
    SHARED.get_or_init(|| {
        let issuer = Issuer::start(LIFE).unwrap();
        let [unsecured, signed, scram] = [(); 3].map(|()| free_port().unwrap());
        let plain = "PLAINTEXT://127.0.0.1:{port}";
        let doors = format!("OAUTH://127.0.0.1:{unsecured},JWT://127.0.0.1:{signed},SCRAM://127.0.0.1:{scram}");
        let by_token = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required";
        let by_scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
        let validator = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler";
        let unsecured_login = format!("{by_token} unsecuredLoginStringClaim_sub=\"broker\";");
        let signed_login = format!("{by_token};");
        let protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,\
                         OAUTH:SASL_PLAINTEXT,JWT:SASL_PLAINTEXT,SCRAM:SASL_PLAINTEXT";
        let jwks = issuer.jwks();
        let properties = [
            ("listeners", format!("{plain},CONTROLLER://127.0.0.1:{{controller_port}},{doors}")),
            ("advertised.listeners", format!("{plain},{doors}")),
            ("listener.security.protocol.map", protocols.to_owned()),
            ("sasl.enabled.mechanisms", "OAUTHBEARER,SCRAM-SHA-256".to_owned()),
            ("listener.name.oauth.sasl.enabled.mechanisms", "OAUTHBEARER".to_owned()),
            ("listener.name.oauth.oauthbearer.sasl.jaas.config", unsecured_login),
            ("listener.name.jwt.sasl.enabled.mechanisms", "OAUTHBEARER".to_owned()),
            ("listener.name.jwt.oauthbearer.sasl.jaas.config", signed_login),
            ("listener.name.jwt.oauthbearer.sasl.server.callback.handler.class", validator.to_owned()),
            ("listener.name.jwt.oauthbearer.sasl.oauthbearer.jwks.endpoint.url", jwks.clone()),
            ("listener.name.jwt.oauthbearer.sasl.oauthbearer.jwks.endpoint.refresh.ms", "1000".to_owned()),
            ("listener.name.jwt.oauthbearer.sasl.oauthbearer.expected.audience", AUDIENCE.to_owned()),
            ("listener.name.jwt.oauthbearer.sasl.oauthbearer.expected.issuer", ISSUER.to_owned()),
            ("listener.name.jwt.oauthbearer.sasl.oauthbearer.clock.skew.seconds", "1".to_owned()),
            ("listener.name.scram.sasl.enabled.mechanisms", "SCRAM-SHA-256".to_owned()),
            ("listener.name.scram.scram-sha-256.sasl.jaas.config", by_scram.to_owned()),
            ("listener.name.scram.scram-sha-256.connections.max.reauth.ms", "3000".to_owned()),
            // A connection lasts as long as its token, if nobody logs in again.
            ("connections.max.reauth.ms", "60000".to_owned()),
        ];
        let properties = properties.map(|(key, value)| (key.to_owned(), value)).to_vec();
        let options = kafka::Options {
            properties,
            java_arguments: vec![format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks}")],
            format_arguments: ["--add-scram".to_owned(), format!("SCRAM-SHA-256=[name={USER},password=first]")].into(),
            ..kafka::Options::default()
        };
        Door { kafka: Kafka::start(&options).unwrap(), issuer, unsecured, signed, scram, issuing: Mutex::default() }
    })
}

impl Door {
    fn issuing(&self) -> MutexGuard<'_, ()> {
        self.issuing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The password of SCRAM's user is another one from now on.
    fn change_password(&self, password: &str) {
        let mut command = self.kafka.tool("kafka.admin.ConfigCommand");
        let change = format!("SCRAM-SHA-256=[password={password}]");
        command.args(["--bootstrap-server", &self.kafka.brokers(), "--alter", "--add-config", &change]);
        let output = command.args(["--entity-type", "users", "--entity-name", USER]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn lane() -> Lane {
    Lane::on(shared_postgres().unwrap(), &door().kafka).furnish(OUTBOX, "outbox")
}

fn start(lane: &Lane, port: u16, properties: &[(&str, &str)]) -> Relay {
    let mut all = vec![("security.protocol", "SASL_PLAINTEXT")];
    all.extend(properties);
    let arguments = secure::through(lane, &format!("127.0.0.1:{port}"), &all);
    Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap()
}

fn insert(lane: &Lane, id: u32) {
    lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '1')"));
}

#[track_caller]
fn wait_ready(relay: &Relay, status: u16) {
    let found =
        wait_until(LONG, &format!("/readyz {status}"), || Ok(relay.get("/readyz").is_ok_and(|a| a.status == status)));
    found.unwrap_or_else(|error| panic!("{error}: {:?} {}", relay.get("/readyz"), relay.log()));
}

/// A program that prints tokens which live for `LIFE` seconds, and keeps a tally of them; `broken` beside it makes it fail.
const PRINT_TOKEN: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ -e "$here/broken" ] && { echo "the token server is unavailable" >&2; exit 7; }
echo x >> "$here/tally"
now=$(date +%s)
encoded() { base64 -w0 | tr '+/' '-_' | tr -d '='; }
head=$(printf '{"alg":"none"}' | encoded)
claims=$(printf '{"sub":"relay","iat":%d,"exp":%d}' "$now" "$((now + LIFE))" | encoded)
PRINT
"#;

struct Program {
    lane: Lane,
    folder: tempfile::TempDir,
}

impl Program {
    /// `print`: the last line of the program.
    fn new(print: &str) -> Self {
        let it = Self { lane: lane(), folder: tempfile::tempdir().unwrap() };
        it.write(print);
        it
    }

    fn write(&self, print: &str) {
        let text = PRINT_TOKEN.replace("PRINT", print).replace("LIFE", &LIFE.to_string());
        fs::write(self.path(), text).unwrap();
        fs::set_permissions(self.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("print-token")
    }

    fn printed(&self) -> usize {
        fs::read_to_string(self.folder.path().join("tally")).map_or(0, |tally| tally.lines().count())
    }

    fn relay(&self) -> Relay {
        start(&self.lane, door().unsecured, &[("oauthbearer-token-command", &self.path().display().to_string())])
    }
}

#[test]
#[ignore = "slow"]
fn a_program_prints_tokens_which_are_renewed_before_they_expire_also_while_idle() {
    let it = Program::new(r#"echo "$head.$claims.""#);
    let mut relay = it.relay();
    insert(&it.lane, 1);
    wait_events(&relay, 1);
    // Nothing to do for as long as several tokens live.
    let least = it.printed() + 4;
    wait_until(LONG, "tokens", || Ok(it.printed() >= least)).unwrap();
    insert(&it.lane, 2);
    wait_events(&relay, 2);
    assert_eq!(ids(&it.lane.records_now("order")), ["1", "2"]);
    let log = relay.log();
    for problem in ["Kafka client error", "authentication failed", "no new credentials", "eyJ"] {
        assert!(!log.contains(problem), "{problem}: {log}");
    }
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn json_about_a_token_is_taken_and_a_program_that_fails_for_a_while_loses_nothing() {
    let json = r#"printf '{"token":"%s.%s.","expires_at":%d,"principal":"relay","extensions":{"traceId":"orders"}}' "$head" "$claims" "$((now + LIFE))""#;
    let it = Program::new(json);
    let mut relay = it.relay();
    insert(&it.lane, 1);
    wait_events(&relay, 1);
    let broken = it.folder.path().join("broken");
    fs::write(&broken, "").unwrap();
    wait_log(&relay, "the token server is unavailable");
    // The broker ends the connection whose token has expired, and lets nobody in with that token.
    wait_log(&relay, "Kafka authentication failed");
    insert(&it.lane, 2);
    wait_ready(&relay, 503);
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
    fs::remove_file(&broken).unwrap();
    wait_events(&relay, 2);
    wait_ready(&relay, 200);
    assert!(relay.log().contains("Kafka credentials renewed"), "{}", relay.log());
    assert_eq!(ids(&it.lane.records_now("order")), ["1", "2"]);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_program_that_never_prints_a_token_ends_the_first_start() {
    let it = Program::new("");
    for (print, words) in [
        ("sleep 600", "10 s"),
        ("echo", "neither a token"),
        ("exit 3", "exit status: 3"),
        (r#"echo "{\"token\":\"t\",\"expires_at\":1}""#, "has expired"),
    ] {
        it.write(print);
        let (code, log) = ended(&mut it.relay());
        assert!(
            code == 2 && log.contains(words) && log.contains("-X oauthbearer-token-command"),
            "{print}: {code} {log}"
        );
    }
}

#[test]
#[ignore = "slow"]
fn a_token_that_the_broker_refuses_ends_the_first_start_and_check_says_so() {
    let it = Program::new(r#"echo "$head.$claims.""#);
    let command = it.path().display().to_string();
    // This listener takes signed ones.
    let mut relay = start(&it.lane, door().signed, &[("oauthbearer-token-command", &command)]);
    let (code, log) = ended(&mut relay);
    assert!(code == 2 && hint(&log).contains("oauthbearer-token-command"), "{code} {log}");
    let brokers = format!("127.0.0.1:{}", door().signed);
    let properties = [("security.protocol", "SASL_PLAINTEXT"), ("oauthbearer-token-command", command.as_str())];
    let mut arguments = secure::through(&it.lane, &brokers, &properties);
    "check".clone_into(&mut arguments[0]);
    arguments.retain(|argument| !argument.starts_with("--shutdown-timeout"));
    let output = relay::run(&binary(), &arguments).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && text.contains("oauthbearer-token-command"), "{text}");
}

#[test]
fn a_token_for_msk_needs_access_keys_and_is_signed_with_them() {
    let lane = lane();
    let (home, brokers) = (tempfile::tempdir().unwrap(), format!("127.0.0.1:{}", door().signed));
    let properties =
        [("security.protocol", "SASL_PLAINTEXT"), ("oauthbearer", "aws-msk-iam"), ("aws-region", "eu-west-1")];
    let arguments = secure::through(&lane, &brokers, &properties);
    let home = home.path().display().to_string();
    let nobody = [("HOME", home.as_str()), ("AWS_EC2_METADATA_DISABLED", "true")];
    let (code, log) = ended(&mut Relay::start(&binary(), &arguments, &nobody).unwrap());
    assert!(code == 2 && log.contains("no credentials found in chain"), "{code} {log}");
    let keys = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];
    let (code, log) = ended(&mut Relay::start(&binary(), &arguments, &keys).unwrap());
    // No Kafka but MSK takes it.
    assert!(code == 2 && hint(&log).contains("aws-msk-iam") && !log.contains("hunter2"), "{code} {log}");
}

/// The properties of librdkafka's own OIDC.
fn oidc(endpoint: &str) -> [(&'static str, &str); 5] {
    [
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.client.id", "relay"),
        ("sasl.oauthbearer.client.secret", "s3cret"),
        ("sasl.oauthbearer.token.endpoint.url", endpoint),
    ]
}

#[test]
#[ignore = "slow"]
fn oidc_tokens_are_renewed_while_idle_and_keys_are_rotated() {
    let (door, lane) = (door(), lane());
    let _alone = door.issuing();
    let endpoint = door.issuer.endpoint();
    let mut relay = start(&lane, door.signed, &oidc(&endpoint));
    insert(&lane, 1);
    wait_events(&relay, 1);
    let more_tokens = |count: u64| {
        let least = door.issuer.issued() + count;
        wait_until(LONG, "tokens", || Ok(door.issuer.issued() >= least)).unwrap();
    };
    more_tokens(12);
    insert(&lane, 2);
    wait_events(&relay, 2);
    door.issuer.rotate_key().unwrap();
    more_tokens(12);
    insert(&lane, 3);
    wait_events(&relay, 3);
    assert_eq!(ids(&lane.records_now("order")), ["1", "2", "3"]);
    assert!(!relay.log().contains("s3cret") && !relay.log().contains("eyJ"), "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn an_issuer_that_is_unavailable_or_names_another_audience_is_waited_for_once_the_relay_has_streamed() {
    let (door, lane) = (door(), lane());
    let _alone = door.issuing();
    let endpoint = door.issuer.endpoint();
    let mut relay = start(&lane, door.signed, &oidc(&endpoint));
    insert(&lane, 1);
    wait_events(&relay, 1);
    door.issuer.set_unavailable(true);
    wait_log(&relay, "Kafka authentication failed");
    insert(&lane, 2);
    door.issuer.set_unavailable(false);
    wait_events(&relay, 2);
    door.issuer.set_audience("another service");
    wait_ready(&relay, 503);
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
    let (code, log) = ended(&mut start(&lane, door.signed, &oidc(&endpoint)));
    assert!(code == 2 && hint(&log).contains("token.endpoint.url"), "{code} {log}");
    door.issuer.set_audience(AUDIENCE);
    insert(&lane, 3);
    wait_events(&relay, 3);
    wait_ready(&relay, 200);
    assert_eq!(ids(&lane.records_now("order")), ["1", "2", "3"]);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn an_issuer_that_is_unavailable_ends_the_first_start() {
    let (door, lane) = (door(), lane());
    let nobody = format!("http://127.0.0.1:{}/token", free_port().unwrap());
    let (code, log) = ended(&mut start(&lane, door.signed, &oidc(&nobody)));
    assert!(code == 2 && hint(&log).contains("token.endpoint.url"), "{code} {log}");
}

/// Rows go in all the time; the broker's password changes, and what holds ours some time after it; and each row arrives once.
#[track_caller]
fn check_rotation(from: (&str, &str), properties: &[(&str, &str)], file: &std::path::Path) {
    let (door, lane) = (door(), lane());
    let (before, after) = from;
    fs::write(file, format!("{before}\n")).unwrap();
    let mut all = vec![("sasl.mechanism", "SCRAM-SHA-256"), ("sasl.username", USER)];
    all.extend(properties);
    let mut relay = start(&lane, door.scram, &all);
    insert(&lane, 0);
    wait_events(&relay, 1);
    let mut next = 1;
    let mut load = |relay: &Relay, words: &str| {
        wait_until(LONG, words, || {
            insert(&lane, next);
            next += 1;
            Ok(relay.log().contains(words))
        })
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    };
    door.change_password(after);
    load(&relay, "Kafka authentication failed");
    fs::write(file, format!("{after}\n")).unwrap();
    load(&relay, "Kafka recovered");
    wait_events(&relay, next);
    let all: Vec<String> = (0..next).map(|id| id.to_string()).collect();
    assert_eq!(lane.ids("order"), all, "{}", relay.log());
    let log = relay.log();
    assert!(!log.contains(&format!("password={after}")) && !log.contains(" second"), "{log}");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_password_for_kafka_that_is_rotated_under_load_is_read_again_from_its_file_or_program() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(fresh("password"));
    fs::write(&file, "first\n").unwrap();
    let value = format!("@{}", file.display());
    check_rotation(("first", "second"), &[("sasl.password", &value)], &file);
    let command = format!("cat '{}'", file.display());
    check_rotation(("second", "third"), &[("password-command", &command)], &file);
}

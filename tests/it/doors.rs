//! Ways in: authentication, and TLS with an authority of one's own.

use std::fs;
use std::ops::Deref;
use std::process::Command;
use std::sync::OnceLock;

use walrelay_dev::kafka::{Kafka, shared_kafka};
use walrelay_dev::postgres::{self, Mode, Postgres, TlsFiles, shared_postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::secure::Authority;

use crate::lane::{LONG, Lane, OUTBOX, binary, ended};

const PASSWORD: &str = "pass: w'ord \\ ü";

/// A server that asks each user for something else, with a certificate for `localhost`.
struct Guarded {
    server: Postgres,
    folder: tempfile::TempDir,
}

fn guarded() -> &'static Guarded {
    static SHARED: OnceLock<Guarded> = OnceLock::new();
    SHARED.get_or_init(|| Guarded::start(&[]))
}

impl Guarded {
    /// With more settings.
    fn start(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (right, wrong) = (Authority::new("right authority").unwrap(), Authority::new("wrong authority").unwrap());
        fs::write(folder.path().join("right.pem"), right.pem()).unwrap();
        fs::write(folder.path().join("wrong.pem"), wrong.pem()).unwrap();
        right.issue("localhost", &["localhost"]).unwrap().write(folder.path(), "server").unwrap();
        right.issue("by_certificate", &["by_certificate"]).unwrap().write(folder.path(), "client").unwrap();
        wrong.issue("by_certificate", &["by_certificate"]).unwrap().write(folder.path(), "stranger").unwrap();
        let file = |name: &str| folder.path().join(name);
        let rules = [
            "hostssl all by_certificate 127.0.0.1/32 cert",
            // Roles of tests that change their own password.
            "host all +rotating 127.0.0.1/32 scram-sha-256",
            "hostssl all +encrypted 127.0.0.1/32 scram-sha-256",
            "host all by_scram 127.0.0.1/32 scram-sha-256",
            "host all by_md5 127.0.0.1/32 md5",
            "host all by_password 127.0.0.1/32 password",
            "host all by_trust 127.0.0.1/32 trust",
            "hostssl all only_tls 127.0.0.1/32 trust",
            "hostnossl all never_tls 127.0.0.1/32 trust",
            "local all all trust",
        ];
        let options = postgres::Options {
            hba: rules.map(str::to_owned).to_vec(),
            tls: Some(TlsFiles {
                certificate: file("server.crt"),
                key: file("server.key"),
                client_authority: Some(file("right.pem")),
            }),
            settings: settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..postgres::Options::default()
        };
        let server = Postgres::start(&options).unwrap();
        let mut client = server.connect(None).unwrap();
        let password = PASSWORD.replace('\'', "''");
        client.batch_execute("CREATE ROLE rotating; CREATE ROLE encrypted").unwrap();
        for (user, encryption) in [
            ("by_scram", "scram-sha-256"),
            ("by_md5", "md5"),
            ("by_password", "scram-sha-256"),
            ("by_trust", "scram-sha-256"),
            ("by_certificate", "scram-sha-256"),
            ("only_tls", "scram-sha-256"),
            ("nowhere", "scram-sha-256"),
            ("never_tls", "scram-sha-256"),
        ] {
            client
                .batch_execute(&format!(
                    "SET password_encryption = '{encryption}'; CREATE ROLE {user} LOGIN REPLICATION PASSWORD '{password}'"
                ))
                .unwrap();
        }
        Self { server, folder }
    }
}

/// The one that most share, or one of the lane's own.
enum Server {
    Shared(&'static Guarded),
    Own(Box<Guarded>),
}

impl Deref for Server {
    type Target = Guarded;

    fn deref(&self) -> &Guarded {
        match self {
            Self::Shared(guarded) => guarded,
            Self::Own(guarded) => guarded,
        }
    }
}

/// A lane on a guarded server.
pub(crate) struct Door {
    pub(crate) lane: Lane,
    guarded: Server,
}

impl Door {
    pub(crate) fn open() -> Self {
        Self::beside(shared_kafka().unwrap(), "door")
    }

    /// The same with another Kafka, and topics whose names begin so.
    pub(crate) fn beside(kafka: &Kafka, prefix: &str) -> Self {
        let door = Self::on(Server::Shared(guarded()), kafka, prefix);
        door.lane.make_slot();
        door
    }

    /// On a server of its own with these settings, which can be restarted. There is no slot.
    pub(crate) fn with_settings(kafka: &Kafka, prefix: &str, settings: &[(&str, &str)]) -> Self {
        Self::on(Server::Own(Box::new(Guarded::start(settings))), kafka, prefix)
    }

    fn on(guarded: Server, kafka: &Kafka, prefix: &str) -> Self {
        let name = guarded.server.create_unique_database(prefix).unwrap();
        // Over the socket, where the superuser is trusted.
        let lane = Lane {
            source: guarded.server.socket_url(&name),
            name,
            brokers: kafka.brokers(),
            client: kafka.client_config(),
        };
        lane.sql(OUTBOX);
        lane.publish("outbox");
        Self { lane, guarded }
    }

    pub(crate) fn restart(&mut self) {
        let Server::Own(guarded) = &mut self.guarded else { panic!("others are on that server") };
        guarded.server.restart(Mode::Fast).unwrap();
    }

    pub(crate) fn port(&self) -> u16 {
        self.guarded.server.port()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.guarded.folder.path().join(name).display().to_string()
    }

    /// The URI of a user at a host, with parameters.
    pub(crate) fn source(&self, user: &str, host: &str, parameters: &str) -> String {
        format!("postgres://{user}@{host}:{}/{}?{parameters}", self.port(), self.lane.name)
    }

    fn relay(&self, source: &str, password: Option<&str>) -> Relay {
        let environment: Vec<(&str, &str)> = password.map(|password| ("PGPASSWORD", password)).into_iter().collect();
        let mut arguments = self.lane.arguments(&[]);
        source.clone_into(&mut arguments[2]);
        Relay::start(&binary(), &arguments, &environment).unwrap()
    }

    #[track_caller]
    fn opens(&self, source: &str, password: Option<&str>) {
        let mut relay = self.relay(source, password);
        relay.wait_streaming(LONG).unwrap_or_else(|error| panic!("{source}: {error}"));
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{source}: {}", relay.log());
    }

    /// The words of a refusal.
    #[track_caller]
    fn stays_shut(&self, source: &str, password: Option<&str>) -> String {
        let mut relay = self.relay(source, password);
        let (code, log) = ended(&mut relay);
        assert_eq!(code, 2, "{source}: {log}");
        for secret in [PASSWORD, "hunter2"] {
            assert!(!log.contains(secret), "{log}");
        }
        log
    }
}

#[test]
fn each_way_to_prove_a_password_opens() {
    let door = Door::open();
    for user in ["by_scram", "by_md5", "by_password"] {
        for sslmode in ["disable", "require"] {
            door.opens(&door.source(user, "127.0.0.1", &format!("sslmode={sslmode}")), Some(PASSWORD));
        }
    }
    door.opens(&door.source("by_trust", "127.0.0.1", ""), None);
    let in_the_uri = format!("by_scram:{}", "pass%3A%20w'ord%20%5C%20%C3%BC");
    door.opens(&door.source(&in_the_uri, "localhost", ""), None);
}

#[test]
#[ignore = "slow"]
fn a_wrong_password_is_refused_by_each_way_and_never_shown() {
    let door = Door::open();
    for user in ["by_scram", "by_md5", "by_password"] {
        let log = door.stays_shut(&door.source(user, "127.0.0.1", ""), Some("hunter2"));
        assert!(log.contains("28P01") && log.contains("hint: check user and password"), "{log}");
    }
    let log = door.stays_shut(&door.source("by_scram:hunter2", "127.0.0.1", ""), None);
    assert!(log.contains("28P01"), "{log}");
}

#[test]
fn a_password_that_is_asked_for_and_not_set_is_reported() {
    let door = Door::open();
    for user in ["by_scram", "by_md5", "by_password"] {
        let log = door.stays_shut(&door.source(user, "127.0.0.1", "passfile=/nonexistent"), None);
        assert!(log.contains("PGPASSWORD"), "{log}");
    }
}

#[test]
fn a_user_without_a_rule_and_one_without_a_role_are_reported() {
    let door = Door::open();
    let log = door.stays_shut(&door.source("nowhere", "127.0.0.1", ""), Some(PASSWORD));
    assert!(log.contains("pg_hba.conf") && log.contains("28000"), "{log}");
    let log = door.stays_shut(&door.source("nobody", "127.0.0.1", ""), Some(PASSWORD));
    assert!(log.contains("pg_hba.conf") && log.contains("hint: "), "{log}");
    let log = door.stays_shut(&door.source("only_tls", "127.0.0.1", "sslmode=disable"), None);
    assert!(log.contains("pg_hba.conf"), "{log}");
    door.opens(&door.source("only_tls", "127.0.0.1", "sslmode=prefer"), None);
    door.opens(&door.source("only_tls", "127.0.0.1", ""), None);
    door.opens(&door.source("never_tls", "127.0.0.1", ""), None);
    let log = door.stays_shut(&door.source("never_tls", "127.0.0.1", "sslmode=require"), None);
    assert!(log.contains("pg_hba.conf"), "{log}");
}

#[test]
#[ignore = "slow"]
fn a_servers_certificate_is_checked_as_the_mode_says() {
    let door = Door::open();
    let (right, wrong) = (door.file("right.pem"), door.file("wrong.pem"));
    let with = |host: &str, mode: &str, root: &str| {
        let root = if root.is_empty() { String::new() } else { format!("&sslrootcert={root}") };
        door.source("by_trust", host, &format!("sslmode={mode}{root}"))
    };
    for (host, mode, root) in [
        ("127.0.0.1", "require", ""),
        // Goes on without TLS, as libpq.
        ("127.0.0.1", "prefer", wrong.as_str()),
        ("127.0.0.1", "require", right.as_str()),
        ("127.0.0.1", "verify-ca", right.as_str()),
        ("localhost", "verify-full", right.as_str()),
    ] {
        door.opens(&with(host, mode, root), None);
    }
    // As libpq, `require` with a root certificate verifies the chain.
    for (host, mode, root, words) in [
        ("127.0.0.1", "require", wrong.as_str(), "UnknownIssuer"),
        ("localhost", "verify-ca", wrong.as_str(), "UnknownIssuer"),
        ("localhost", "verify-full", wrong.as_str(), "UnknownIssuer"),
        ("127.0.0.1", "verify-full", right.as_str(), "not valid for name"),
    ] {
        let log = door.stays_shut(&with(host, mode, root), None);
        assert!(log.contains(words) && log.contains("TLS"), "{host} {mode} {root}: {log}");
    }
}

#[test]
fn a_root_certificate_that_cannot_be_used_is_named() {
    let door = Door::open();
    let empty = door.file("empty.pem");
    fs::write(&empty, "nothing").unwrap();
    let log =
        door.stays_shut(&door.source("by_trust", "localhost", &format!("sslmode=verify-ca&sslrootcert={empty}")), None);
    assert!(log.contains(&empty) && log.contains("root certificate"), "{log}");
}

#[test]
fn a_client_certificate_and_a_bound_channel_open() {
    let door = Door::open();
    let (certificate, key) = (door.file("client.crt"), door.file("client.key"));
    let by_certificate = format!("sslmode=require&sslcert={certificate}&sslkey={key}");
    door.opens(&door.source("by_certificate", "127.0.0.1", &by_certificate), None);
    let log = door.stays_shut(&door.source("by_certificate", "127.0.0.1", "sslmode=require"), None);
    assert!(log.contains("certificate"), "{log}");
    // With TLS 1.3 its refusal comes after the handshake.
    let (certificate, key) = (door.file("stranger.crt"), door.file("stranger.key"));
    let by_stranger = format!("sslmode=require&sslcert={certificate}&sslkey={key}");
    let log = door.stays_shut(&door.source("by_certificate", "127.0.0.1", &by_stranger), None);
    assert!(log.contains("the server refuses our certificate"), "{log}");
    let bound = "sslmode=require&channel_binding=require";
    door.opens(&door.source("by_scram", "127.0.0.1", bound), Some(PASSWORD));
    for user in ["by_md5", "by_password", "by_trust"] {
        let log = door.stays_shut(&door.source(user, "127.0.0.1", bound), Some(PASSWORD));
        assert!(log.contains("channel_binding=require"), "{log}");
    }
    let plain = "sslmode=disable&channel_binding=require";
    let log = door.stays_shut(&door.source("by_scram", "127.0.0.1", plain), Some(PASSWORD));
    assert!(log.contains("channel_binding=require"), "{log}");
}

#[test]
#[ignore = "slow"]
fn rows_flow_through_tls_and_through_the_unix_socket() {
    let door = Door::open();
    let right = door.file("right.pem");
    let tls = door.source("by_scram", "localhost", &format!("sslmode=verify-full&sslrootcert={right}"));
    for (number, source) in [&tls, &door.lane.source].into_iter().enumerate() {
        let mut relay = door.relay(source, Some(PASSWORD));
        relay.wait_streaming(LONG).unwrap();
        let rows = "SELECT n || '', 'order', 'k', 't', to_jsonb(repeat(md5(n::text), 40)) FROM generate_series";
        let (first, last) = (number * 3000 + 1, (number + 1) * 3000);
        door.lane.sql(&format!("INSERT INTO outbox {rows}({first}, {last}) AS n"));
        assert_eq!(door.lane.records("order").len(), last);
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
}

/// A command at the place of a door, by TLS: what it said.
#[track_caller]
fn commanded(door: &Door, command: &[&str]) -> String {
    let source = door.source("only_tls", "localhost", "sslmode=require");
    let place = ["--source", &source, "--publication", &door.lane.name, "--slot", &door.lane.name];
    let output = Command::new(binary()).args(command).args(place).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

#[test]
#[ignore = "slow"]
fn statements_of_any_length_go_through_tls() {
    let door = Door::open();
    door.lane.sql("ALTER TABLE outbox OWNER TO only_tls, ADD created_at timestamptz DEFAULT now() - interval '1 day'");
    let rows = "SELECT md5(n::text) || md5(n::text), 'order', 'k', 't', '1' FROM generate_series(1, 4000) AS n";
    door.lane.sql(&format!("INSERT INTO outbox {rows}"));
    crate::prune::set_up(&door.lane, &[]);
    let _relay = door.lane.streaming(&[]);
    door.lane.wait_confirmed();
    crate::prune::state_published(&door.lane, "outbox");
    let text = commanded(&door, &["prune", "--older-than", "1h"]);
    assert!(text.contains("4,000 rows deleted"), "{text}");
}

#[test]
fn a_connection_is_closed_so_that_postgres_has_nothing_to_say_about_it() {
    let door = Door::open();
    let log = || fs::read_to_string(door.guarded.server.log()).unwrap();
    let abandoned = |door: &Door| {
        let sql = "SELECT sessions_abandoned, sessions FROM pg_stat_database WHERE datname = $1";
        let row = door.lane.connect().query_one(sql, &[&door.lane.name]).unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    for mode in ["require", "disable"] {
        let source = door.source("by_trust", "localhost", &format!("sslmode={mode}"));
        let mut relay = door.relay(&source, None);
        relay.wait_streaming(LONG).unwrap();
        commanded(&door, &["status"]);
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
    wait_until(LONG, "sessions to be counted", || Ok(abandoned(&door).1 >= 8)).unwrap();
    let name = &door.lane.name;
    assert_eq!(abandoned(&door).0, 0);
    let said: Vec<String> = log()
        .lines()
        .filter(|line| line.contains(&format!("walrelay/{name}")) && line.contains("could not"))
        .map(str::to_owned)
        .collect();
    assert_eq!(said, [""; 0]);
}

#[test]
fn a_server_without_tls_is_refused_where_tls_is_wanted_and_taken_where_it_is_preferred() {
    let lane = Lane::debezium();
    let port = shared_postgres().unwrap().port();
    for mode in ["require", "verify-full&sslrootcert=system"] {
        let source = format!("postgres://postgres@localhost:{port}/{}?sslmode={mode}", lane.name);
        let (code, log) = ended(&mut lane.relay(&["--source", &source]));
        assert!(code == 2 && log.contains("TLS"), "{code}: {log}");
    }
    let source = format!("postgres://postgres@localhost:{port}/{}?sslmode=prefer", lane.name);
    let _relay = lane.streaming(&["--source", &source]);
}

/// A server with a certificate of `src/tls/test_data`, which is its own authority; `sslrootcert` names it.
fn with_key(name: &str) -> (Postgres, Lane, impl Fn(&str) -> String + use<>) {
    let folder = walrelay_dev::repository().join("src/tls/test_data");
    let file = |extension: &str| folder.join(format!("{name}.{extension}"));
    let tls = TlsFiles { certificate: file("crt"), key: file("key"), client_authority: None };
    let server = Postgres::start(&postgres::Options { tls: Some(tls), ..postgres::Options::default() }).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let (port, database, root) = (server.port(), lane.name.clone(), file("crt").display().to_string());
    let source =
        move |mode: &str| format!("postgres://postgres@localhost:{port}/{database}?sslmode={mode}&sslrootcert={root}");
    (server, lane, source)
}

#[test]
fn a_server_with_a_key_on_p521_opens() {
    let (_server, lane, source) = with_key("p521");
    let mut relay = lane.streaming(&["--source", &source("verify-full")]);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn a_server_whose_key_is_not_supported_is_refused_with_the_keys_name_and_taken_where_tls_is_preferred() {
    for (name, words) in [("ed448", "Ed448"), ("rsa-pss", "RSASSA-PSS")] {
        let (_server, lane, source) = with_key(name);
        for mode in ["require", "verify-full"] {
            let (code, log) = ended(&mut lane.relay(&["--source", &source(mode)]));
            assert!(code == 2 && log.contains(words) && log.contains("P-256"), "{mode} {code}: {log}");
        }
        let relay = lane.streaming(&["--source", &source("prefer")]);
        // Nobody on the network can read what stays on this machine.
        assert!(!relay.log().contains("not encrypted"), "{}", relay.log());
    }
}

#[test]
fn a_password_with_as_many_iterations_as_owasp_advises_opens() {
    if postgres::default_major() < 16 {
        // Earlier versions have 4,096, always.
        return;
    }
    let door = Door::open();
    let role = door.lane.name.clone();
    door.lane.sql(&format!(
        "SET scram_iterations = 600000; CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'hunter2' IN ROLE rotating"
    ));
    door.opens(&door.source(&role, "localhost", "sslmode=require"), Some("hunter2"));
    door.stays_shut(&door.source(&role, "localhost", "sslmode=require"), Some("hunter3"));
    door.lane.sql(&format!("DROP ROLE {role}"));
}

/// The manual's shortest recipe: one certificate for everything, with the name in its subject alone.
#[test]
fn a_certificate_that_is_its_own_authority_and_names_its_host_in_the_subject_opens() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (own, same_name) = (Authority::new("localhost").unwrap(), Authority::new("localhost").unwrap());
    own.as_issued().write(folder.path(), "server").unwrap();
    fs::write(file("other.pem"), same_name.pem()).unwrap();
    let tls = TlsFiles { certificate: file("server.crt"), key: file("server.key"), client_authority: None };
    let server = Postgres::start(&postgres::Options { tls: Some(tls), ..postgres::Options::default() }).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let at = |host: &str, mode: &str, root: &str| {
        let (port, root) = (server.port(), file(root).display().to_string());
        format!("postgres://postgres@{host}:{port}/{}?sslmode={mode}&sslrootcert={root}", lane.name)
    };
    for (host, mode) in [("localhost", "verify-full"), ("127.0.0.1", "verify-ca")] {
        let mut relay = lane.streaming(&["--source", &at(host, mode, "server.crt")]);
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
    for (host, mode, root) in [
        ("127.0.0.1", "verify-full", "server.crt"),
        ("localhost", "verify-full", "other.pem"),
        ("localhost", "verify-ca", "other.pem"),
    ] {
        let (code, log) = ended(&mut lane.relay(&["--source", &at(host, mode, root)]));
        assert!(code == 2 && log.contains("TLS"), "{host} {mode} {root}: {code} {log}");
    }
}

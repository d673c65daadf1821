//! Postgres 18's OAuth authentication: tokens that a command prints, a server that accepts one of them at a time.
//!
//! Its validator is compiled here, against what the manual says of its interface: what walrelay sends is read by a real server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self, Postgres, TlsFiles};
use walrelay_dev::relay::Relay;
use walrelay_dev::secure::Authority;

use crate::lane::{LONG, Lane, OUTBOX, binary, ended, wait_events, wait_log};

const VALIDATOR: &str = include_str!("oauth_validator.c");

/// A token with all characters that one may have.
const TOKEN: &str = "eyJ.first-._~+/1==";

/// A server that asks role `by_token` for a token.
struct Issued {
    lane: Lane,
    server: Postgres,
    folder: tempfile::TempDir,
}

impl Issued {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The server is another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("valid"), TOKEN).unwrap();
        let authority = Authority::new("authority").unwrap();
        authority.issue("localhost", &["localhost"]).unwrap().write(folder.path(), "server").unwrap();
        fs::write(path("authority.pem"), authority.pem()).unwrap();
        compile(&path("validator.so"), &path("validator.c"), &path("valid"));
        let rule = r#"by_token 127.0.0.1/32 oauth issuer="https://issuer.example" scope="walrelay""#;
        let options = postgres::Options {
            major: 18,
            hba: vec![format!("host all {rule}"), "local all all trust".to_owned()],
            tls: Some(TlsFiles { certificate: path("server.crt"), key: path("server.key"), client_authority: None }),
            settings: vec![("oauth_validator_libraries".to_owned(), path("validator.so").display().to_string())],
            ..postgres::Options::default()
        };
        let server = Postgres::start(&options).unwrap();
        server.connect(None).unwrap().batch_execute("CREATE ROLE by_token LOGIN REPLICATION").unwrap();
        let kafka = shared_kafka().unwrap();
        let name = server.create_unique_database("oauth").unwrap();
        let source = server.socket_url(&name);
        let lane = Lane { source, name, brokers: kafka.brokers(), client: kafka.client_config() };
        lane.sql(OUTBOX);
        lane.publish("outbox");
        lane.make_slot();
        Self { lane, server, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A relay whose command prints what the file `token` holds.
    fn relay(&self, token: &str, parameters: &str) -> Relay {
        fs::write(self.path("token"), token).unwrap();
        let (port, database) = (self.server.port(), &self.lane.name);
        let command = format!("cat '{}'", self.path("token").display());
        let mut arguments = self.lane.arguments(&["--source-password-command", &command]);
        arguments[2] = format!("postgres://by_token@localhost:{port}/{database}?hostaddr=127.0.0.1&{parameters}");
        Relay::start(&binary(), &arguments, &[("PGAPPNAME", "relay")]).unwrap()
    }

    /// With TLS, and the server verified.
    fn verified(&self) -> String {
        format!("sslmode=verify-full&sslrootcert={}", self.path("authority.pem").display())
    }

    /// Why a relay ends at its start; the token is not in it.
    #[track_caller]
    fn refused(&self, token: &str, parameters: &str) -> String {
        let (code, log) = ended(&mut self.relay(token, parameters));
        assert_eq!(code, 2, "{log}");
        assert!(!log.contains(token), "{log}");
        log
    }
}

/// Compiles the validator, which accepts the token in the file `valid`.
fn compile(library: &Path, source: &Path, valid: &Path) {
    fs::write(source, VALIDATOR).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]).arg(format!("-DVALID=\"{}\"", valid.display()));
    let output = cc.arg("-o").arg(library).arg(source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_token_that_a_command_prints_opens_and_is_read_again_at_each_connection() {
    let it = Issued::new();
    let mut relay = it.relay(TOKEN, &it.verified());
    relay.wait_streaming(LONG).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    let insert = |id: u32| format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 'Placed', '{{}}')");
    it.lane.sql(&insert(1));
    wait_events(&relay, 1);

    // The first one has expired, and the command does not print the next yet.
    fs::write(it.path("valid"), "second").unwrap();
    it.lane.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'by_token'");
    it.lane.sql(&insert(2));
    wait_log(&relay, "the server refuses the token: OAuth bearer authentication failed");
    fs::write(it.path("token"), "second").unwrap();
    wait_events(&relay, 2);
    let ended = relay.terminate(LONG).unwrap();
    assert!(ended.code == 0 && !relay.log().contains(TOKEN), "{}", relay.log());
}

#[test]
fn a_token_that_is_refused_ends_the_first_start() {
    let it = Issued::new();
    let log = it.refused("another", &it.verified());
    assert!(log.contains("the server refuses the token") && log.contains("hint: "), "{log}");
    // Nor is it sent a second time where nobody encrypts.
    let log = it.refused("another", "sslmode=prefer");
    assert!(log.contains("the server refuses the token"), "{log}");
}

#[test]
fn no_token_goes_out_unencrypted_unbound_or_that_is_none() {
    let it = Issued::new();
    let log = it.refused(TOKEN, "sslmode=disable");
    assert!(log.contains("over TLS or a Unix socket only"), "{log}");
    let log = it.refused(TOKEN, &format!("{}&channel_binding=require", it.verified()));
    assert!(log.contains("channel_binding=require"), "{log}");
    let log = it.refused("pass: w'ord", &it.verified());
    assert!(log.contains("the password that is set is none"), "{log}");
}

//! Credentials that change while the relay runs: passwords in files, from commands and in service files, certificates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::doors::Door;
use crate::lane::{LONG, binary, ended, fresh, hint, wait_events, wait_log};

/// A role with a password that changes, and a folder for what holds the password.
struct Rotating {
    door: Door,
    role: String,
    folder: tempfile::TempDir,
}

impl Rotating {
    fn new() -> Self {
        let (door, role) = (Door::open(), fresh("rotating"));
        door.lane.sql(&format!("CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'first' IN ROLE rotating"));
        Self { door, role, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that only its owner may read.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    }

    fn source(&self) -> String {
        self.door.source(&self.role, "127.0.0.1", "sslmode=disable")
    }

    /// A relay, streaming or not.
    fn relay(&self, source: Option<&str>, more: &[&str], environment: &[(&str, &str)]) -> Relay {
        let mut arguments = self.door.lane.arguments(more);
        match source {
            Some(source) => source.clone_into(&mut arguments[2]),
            None => drop(arguments.drain(1..3)),
        }
        Relay::start(&binary(), &arguments, environment).unwrap()
    }

    /// The role's password is another one from now on.
    fn change_password(&self, password: &str) {
        self.door.lane.sql(&format!("ALTER ROLE {} PASSWORD '{password}'", self.role));
    }

    /// The relay has to connect again.
    fn disconnect(&self) {
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1";
        let ended: i64 = self.door.lane.connect().query_one(ended, &[&self.role]).unwrap().get(0);
        assert!(ended > 0);
    }

    fn insert(&self, id: u32) {
        self.door.lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '1')"));
    }

    /// The relay lets a row through; `rotate` changes the password to `second`; and it lets another row through, without an error.
    #[track_caller]
    fn check(&self, mut relay: Relay, rotate: impl FnOnce()) {
        relay.wait_streaming(LONG).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
        self.insert(1);
        wait_events(&relay, 1);
        self.change_password("second");
        rotate();
        self.disconnect();
        self.insert(2);
        wait_events(&relay, 2);
        let log = relay.log();
        assert!(!log.contains("28P01"), "{log}");
        for secret in ["first", "second"] {
            assert!(!log.contains(&format!("{secret}\n")) && !log.contains(&format!("={secret}")), "{log}");
        }
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
}

#[test]
fn a_password_file_is_read_again_at_each_connection() {
    let it = Rotating::new();
    let file = it.write("pgpass", "*:*:*:*:first\n");
    let relay = it.relay(Some(&it.source()), &[], &[("PGPASSFILE", &file)]);
    it.check(relay, || drop(it.write("pgpass", "*:*:*:*:second\n")));
}

#[test]
fn a_service_file_is_read_again_at_each_connection() {
    let it = Rotating::new();
    let source = it.source();
    let port = source.split(':').nth(2).unwrap().split('/').next().unwrap();
    let service = |password: &str| {
        format!(
            "[orders]\nhost=127.0.0.1\nport={port}\ndbname={}\nuser={}\npassword={password}\nsslmode=disable\n",
            it.door.lane.name, it.role
        )
    };
    let file = it.write("services", &service("first"));
    let relay = it.relay(None, &[], &[("PGSERVICEFILE", &file), ("PGSERVICE", "orders")]);
    it.check(relay, || drop(it.write("services", &service("second"))));
}

#[test]
fn a_file_that_stands_for_the_source_is_read_again_at_each_connection() {
    let it = Rotating::new();
    let with = |password: &str| it.source().replacen('@', &format!(":{password}@"), 1);
    let file = it.write("source", &format!("{}\n", with("first")));
    let relay = it.relay(None, &[], &[("WALRELAY_SOURCE", &format!("@{file}"))]);
    it.check(relay, || drop(it.write("source", &with("second"))));
}

#[test]
#[ignore = "slow"]
fn a_file_with_the_password_alone_is_read_again_at_each_connection() {
    let it = Rotating::new();
    let file = it.write("password", "first\n");
    let relay = it.relay(Some(&it.source()), &["--source-password-file", &file], &[]);
    it.check(relay, || drop(it.write("password", "second\n")));
    it.change_password("first");
    it.write("password", "first\n");
    let mut relay = it.relay(Some(&it.source()), &[], &[("PGPASSWORD", &format!("@{file}"))]);
    relay.wait_streaming(LONG).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
}

#[test]
#[ignore = "slow"]
fn a_command_prints_the_password_at_each_connection() {
    let it = Rotating::new();
    let file = it.write("password", "first\nanother line\n");
    let command = format!("head -n 2 '{file}'");
    let relay = it.relay(Some(&it.source()), &["--source-password-command", &command], &[]);
    it.check(relay, || drop(it.write("password", "second\n")));
}

#[test]
#[ignore = "slow"]
fn a_command_that_fails_hangs_or_says_nothing_ends_the_first_start() {
    let it = Rotating::new();
    for (command, words) in [
        ("/nonexistent/program", "/nonexistent/program"),
        ("cat /nonexistent/secret", "exit"),
        ("true", "printed nothing"),
        ("sleep 600", "10 s"),
        ("'", "quote"),
    ] {
        let mut relay = it.relay(Some(&it.source()), &["--source-password-command", command], &[]);
        let (code, log) = ended(&mut relay);
        let expected = if command == "'" { 64 } else { 2 };
        assert!(code == expected && log.contains(words), "{command}: {code} {log}");
        assert!(log.contains("--source-password-command"), "{command}: {log}");
    }
}

#[test]
fn a_relay_that_has_streamed_waits_for_a_password_that_is_right_again() {
    let it = Rotating::new();
    let file = it.write("pgpass", "*:*:*:*:first\n");
    let mut relay = it.relay(Some(&it.source()), &[], &[("PGPASSFILE", &file)]);
    relay.wait_streaming(LONG).unwrap();
    it.change_password("second");
    it.disconnect();
    // The query for the metrics may be refused first, which is a warning.
    let is_error = |line: &str| line.contains("28P01") && line.contains("ERROR");
    wait_until(LONG, "the relay to call it an error", || Ok(relay.log().lines().any(is_error))).unwrap();
    let not_ready =
        || Ok(relay.get("/readyz").is_ok_and(|answer| answer.status == 503 && answer.body.contains("28P01")));
    wait_until(LONG, "/readyz to say so", not_ready).unwrap();
    it.insert(1);
    it.write("pgpass", "*:*:*:*:second\n");
    wait_events(&relay, 1);
    relay.wait_streaming(LONG).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());

    it.change_password("third");
    let mut relay = it.relay(Some(&it.source()), &[], &[("PGPASSFILE", &file)]);
    let (code, log) = ended(&mut relay);
    assert!(code == 2 && hint(&log).contains("password"), "at the first start: {code} {log}");
}

/// Copies a certificate and its key, or one that does not fit.
fn place(folder: &Path, certificate: &str, key: &str) {
    for (from, name) in [(certificate, "mine.crt"), (key, "mine.key")] {
        let file = folder.join(name);
        fs::copy(from, &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

#[test]
fn a_relay_that_has_streamed_waits_for_a_certificate_that_fits_its_key_again() {
    let it = Rotating::new();
    let (certificate, key, other) =
        (it.door.file("client.crt"), it.door.file("client.key"), it.door.file("server.key"));
    place(it.folder.path(), &certificate, &key);
    let (mine, mine_key) = (it.path("mine.crt"), it.path("mine.key"));
    let files = format!("sslmode=require&sslcert={}&sslkey={}", mine.display(), mine_key.display());
    let mut relay = it.relay(Some(&it.door.source("by_certificate", "localhost", &files)), &[], &[]);
    relay.wait_streaming(LONG).unwrap();
    place(it.folder.path(), &certificate, &other);
    it.door.lane.sql(&format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'",
        it.door.lane.name
    ));
    wait_log(&relay, "ERROR");
    fs::remove_file(&mine_key).unwrap();
    wait_log(&relay, "mine.key");
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
    // The server refuses one that another authority has issued.
    place(it.folder.path(), &it.door.file("stranger.crt"), &it.door.file("stranger.key"));
    wait_log(&relay, "the server refuses our certificate");
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
    place(it.folder.path(), &certificate, &key);
    it.insert(1);
    wait_events(&relay, 1);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_look_at_the_slot_that_fails_is_said_once_and_counted() {
    let it = Rotating::new();
    let file = it.write("pgpass", "*:*:*:*:first\n");
    let mut relay = it.relay(Some(&it.source()), &[], &[("PGPASSFILE", &file)]);
    relay.wait_streaming(LONG).unwrap();
    let named = relay.get("/metrics").unwrap().body.contains("walrelay_slot_look_failures_total{");
    assert!(named, "it is there with 0");
    it.change_password("second");
    let failures = |least: f64| {
        let reached = || Ok(relay.metric("walrelay_slot_look_failures_total")? >= least);
        wait_until(LONG, "failed looks at the slot", reached).unwrap_or_else(|e| panic!("{e}: {}", relay.log()));
    };
    failures(2.0);
    let said = |words: &str| relay.log().lines().filter(|line| line.contains(words)).count();
    assert_eq!(said("slot query failed"), 1, "{}", relay.log());
    assert_eq!(relay.get("/readyz").unwrap().status, 200, "the stream goes on");
    it.write("pgpass", "*:*:*:*:second\n");
    wait_log(&relay, "slot query succeeds again");
    wait_until(LONG, "the slot's figures", || Ok(relay.metric("walrelay_slot_active")? > 0.0)).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

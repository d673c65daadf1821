//! Who gets into NATS: passwords, tokens and keys that change, credentials with a JWT, certificates, permissions, several servers.

use std::fs;
use std::path::Path;

use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use walrelay_dev::brokers::{Broker, Kind, shared};
use walrelay_dev::relay::Relay;
use walrelay_dev::secure::Authority;

use crate::elsewhere::{self, lane};
use crate::lane::{LONG, Lane, hint, wait_events, wait_log};

/// A server whose configuration lets some in, with a stream for the lane.
struct Guarded {
    broker: Broker,
    lane: Lane,
    folder: tempfile::TempDir,
}

impl Guarded {
    /// `as_whom`: how the test itself gets in.
    fn new(configuration: &str, as_whom: &Value) -> Self {
        let it = Self {
            broker: Broker::start(Kind::Nats, &[configuration]).unwrap(),
            lane: lane(),
            folder: tempfile::tempdir().unwrap(),
        };
        it.add_stream(as_whom);
        it
    }

    fn add_stream(&self, as_whom: &Value) {
        let subjects = format!("{}.>", self.lane.name);
        self.broker.jetstream(as_whom).unwrap().create_stream(&self.lane.name, &[&subjects], &json!({})).unwrap();
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn start(&self, more: &[&str]) -> Relay {
        elsewhere::start(&self.lane, &self.broker.url(), more)
    }

    fn insert(&self, id: u32) {
        self.lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '1')"));
    }

    /// The server knows only another secret from now on.
    fn change(&mut self, configuration: &str) {
        self.broker.stop().unwrap();
        self.broker.configure(&[configuration]).unwrap();
        self.broker.start_again().unwrap();
    }

    /// A row passes; the server's secret changes, and is refused until the file has it too.
    fn rotate(&mut self, more: &[&str], configuration: &str, rewrite: impl FnOnce(&Self)) {
        let mut relay = self.start(more);
        self.insert(1);
        wait_events(&relay, 1);
        self.change(configuration);
        self.insert(2);
        wait_log(&relay, "Authorization Violation");
        rewrite(self);
        wait_events(&relay, 2);
        self.lane.wait_confirmed();
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
        assert!(!relay.log().contains("secret"), "{}", relay.log());
    }
}

#[test]
fn a_password_in_a_file_is_read_again_at_each_connection() {
    let users = |password: &str| format!("authorization {{ user: app, password: {password} }}");
    let mut it = Guarded::new(&users("secret1"), &json!({ "user": "app", "pass": "secret1" }));
    let file = format!("password=@{}", it.write("password", "secret1\n"));
    // No library logs it, either.
    let more = ["--log-level", "trace,async_nats=trace", "-X", "username=app", "-X", &file];
    it.rotate(&more, &users("secret2"), |it| drop(it.write("password", "secret2\n")));
}

#[test]
#[ignore = "slow"]
fn a_token_in_a_file_is_read_again_at_each_connection() {
    let tokens = |token: &str| format!("authorization {{ token: {token} }}");
    let mut it = Guarded::new(&tokens("secret1"), &json!({ "auth_token": "secret1" }));
    let file = format!("token=@{}", it.write("token", "secret1"));
    it.rotate(&["-X", &file], &tokens("secret2"), |it| drop(it.write("token", "secret2")));
}

/// A key as nkeys has them: its kind's letter stands in front of what is public.
struct Key {
    pair: Ed25519KeyPair,
    kind: u8,
    seed: [u8; 32],
}

const OPERATOR: u8 = 14 << 3;
const ACCOUNT: u8 = 0;
const USER: u8 = 20 << 3;

impl Key {
    fn new(kind: u8) -> Self {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).unwrap();
        Self { pair: Ed25519KeyPair::from_seed_unchecked(&seed).unwrap(), kind, seed }
    }

    fn public(&self) -> String {
        summed(&[&[self.kind], self.pair.public_key().as_ref()].concat())
    }

    fn seed(&self) -> String {
        let kind = [18 << 3 | self.kind >> 5, (self.kind & 31) << 3];
        summed(&[&kind, &self.seed[..]].concat())
    }

    /// A JWT of this key's about another one.
    fn signed(&self, name: &str, subject: &Self, nats: &Value) -> String {
        let claims =
            json!({ "jti": name, "iat": 1, "iss": self.public(), "name": name, "sub": subject.public(), "nats": nats });
        let head = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
        let text = format!("{}.{}", url64(head.to_string().as_bytes()), url64(claims.to_string().as_bytes()));
        format!("{text}.{}", url64(self.pair.sign(text.as_bytes()).as_ref()))
    }
}

/// With its CRC-16, in base32.
fn summed(bytes: &[u8]) -> String {
    let mut sum = 0_u16;
    for byte in bytes {
        sum ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
        }
    }
    text(&[bytes, &sum.to_le_bytes()].concat(), 5, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
}

fn url64(bytes: &[u8]) -> String {
    text(bytes, 6, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
}

fn text(bytes: &[u8], bits: usize, alphabet: &str) -> String {
    let all: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let place = |chunk: &[u8]| chunk.iter().fold(0, |sum, bit| sum << 1 | usize::from(*bit)) << (bits - chunk.len());
    all.chunks(bits).map(|chunk| char::from(alphabet.as_bytes()[place(chunk)])).collect()
}

/// The users that the test may change the server with, and one with a key.
fn keyed(key: &Key) -> String {
    format!("authorization {{ users = [{{ user: admin, password: secret }}, {{ nkey: {} }}] }}", key.public())
}

#[test]
#[ignore = "slow"]
fn a_key_in_a_file_is_read_again_at_each_connection() {
    let (first, second) = (Key::new(USER), Key::new(USER));
    let mut it = Guarded::new(&keyed(&first), &json!({ "user": "admin", "pass": "secret" }));
    let file = format!("nkey={}", it.write("seed", &first.seed()));
    it.rotate(&["-X", &file], &keyed(&second), |it| drop(it.write("seed", &format!("{}\n", second.seed()))));
}

/// A user's JWT and seed, as nsc writes them.
fn credentials(account: &Key) -> String {
    let user = Key::new(USER);
    let limits = json!({ "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}, "type": "user", "version": 2 });
    let token = account.signed("relay", &user, &limits);
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        user.seed()
    )
}

#[test]
fn a_credentials_file_with_a_jwt_gets_in() {
    let (operator, account, system) = (Key::new(OPERATOR), Key::new(ACCOUNT), Key::new(ACCOUNT));
    let operators = json!({ "type": "operator", "version": 2, "system_account": system.public() });
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1
    });
    let accounts = json!({ "type": "account", "version": 2, "limits": limits });
    let configuration = format!(
        "operator: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}",
        operator.signed("operator", &operator, &operators),
        account.public(),
        operator.signed("account", &account, &accounts),
        system.public(),
        operator.signed("system", &system, &json!({ "type": "account", "version": 2 })),
    );
    let broker = Broker::start(Kind::Nats, &[&configuration]).unwrap();
    let it = Guarded { broker, lane: lane(), folder: tempfile::tempdir().unwrap() };
    let file = format!("credentials={}", it.write("app.creds", &credentials(&account)));
    it.insert(1);
    let relay = it.start(&["-X", &file]);
    // The test itself has no JWT: the relay says that it got in, and that only the stream is missing.
    wait_log(&relay, "no stream of NATS takes subject");
    let stranger = format!("credentials={}", it.write("other.creds", &credentials(&Key::new(ACCOUNT))));
    let mut refused = it.start(&["-X", &stranger]);
    assert_eq!(refused.wait_exit(LONG).unwrap(), 2, "{}", refused.log());
    assert!(refused.log().contains("Authorization Violation"), "{}", refused.log());
}

#[test]
fn encryption_checks_the_server_and_shows_the_clients_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (Authority::new("right").unwrap(), Authority::new("wrong").unwrap());
    right.issue("server", &["127.0.0.1"]).unwrap().write(folder.path(), "server").unwrap();
    right.issue("client", &["client"]).unwrap().write(folder.path(), "client").unwrap();
    fs::write(folder.path().join("right.pem"), right.pem()).unwrap();
    fs::write(folder.path().join("wrong.pem"), wrong.pem()).unwrap();
    let file = |name: &str| Path::new(folder.path()).join(name).display().to_string();
    let tls = format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}\nallow_non_tls: true",
        file("server.crt"),
        file("server.key"),
        file("right.pem")
    );
    let it = Guarded::new(&tls, &Value::Null);
    let to = it.broker.url().replace("nats://", "tls://");
    it.insert(1);
    let ca = |name: &str| format!("tls.ca={}", file(name));
    let certificate = format!("tls.certificate={}", file("client.crt"));
    let key = format!("tls.key={}", file("client.key"));
    let relay = it.start(&["--to", &to, "-X", &ca("right.pem"), "-X", &certificate, "-X", &key]);
    wait_events(&relay, 1);
    it.lane.wait_confirmed();
    drop(relay);
    it.insert(2);
    let relay = it.start(&["--to", &to, "-X", &ca("wrong.pem"), "-X", &certificate, "-X", &key]);
    wait_log(&relay, "invalid peer certificate");
    drop(relay);
    let relay = it.start(&["--to", &to, "-X", &ca("right.pem")]);
    wait_log(&relay, "cannot be reached");
    drop(relay);
    let plain = shared(Kind::Nats).unwrap().url().replace("nats://", "tls://");
    let relay = it.start(&["--to", &plain]);
    wait_log(&relay, "it offers no encryption");
}

/// As `openssl req -x509` makes it: a certificate that says of itself that it is an authority.
#[test]
fn a_certificate_that_is_its_own_authority_with_a_key_on_p521_is_trusted_where_it_is_named() {
    let folder = walrelay_dev::repository().join("src/tls/test_data");
    let file = |name: &str| folder.join(name).display().to_string();
    let tls = format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\" }}\nallow_non_tls: true",
        file("p521.crt"),
        file("p521.key")
    );
    let it = Guarded::new(&tls, &Value::Null);
    let to = it.broker.url().replace("nats://", "tls://");
    it.insert(1);
    let relay = it.start(&["--to", &to, "-X", &format!("tls.ca={}", file("ed448.crt"))]);
    wait_log(&relay, "invalid peer certificate");
    drop(relay);
    let relay = it.start(&["--to", &to, "-X", &format!("tls.ca={}", file("p521.crt"))]);
    wait_events(&relay, 1);
    it.lane.wait_confirmed();
}

#[test]
fn a_subject_that_the_user_may_not_publish_to_waits_and_others_do_not() {
    let permitted = |subjects: &str| {
        format!(
            "authorization {{ users = [{{ user: admin, password: secret }}, \
             {{ user: app, password: app, permissions: {{ publish: {subjects}, subscribe: \"_INBOX.>\" }} }}] }}"
        )
    };
    let administrator = json!({ "user": "admin", "pass": "secret" });
    let mut it = Guarded::new(&permitted("\"*.other\""), &administrator);
    it.insert(1);
    it.lane.sql("INSERT INTO outbox VALUES ('2', 'other', 'k', 't', '1'), ('3', 'order', 'k', 't', '1')");
    let to = it.broker.url().replace("://", "://app:app@");
    let relay = it.start(&["--to", &to]);
    wait_log(&relay, &format!("does not let this user publish to {}", it.lane.topic("order")));
    wait_events(&relay, 1);
    it.change(&permitted("[\"*.other\", \"*.order\"]"));
    it.lane.wait_confirmed();
    let stored = it.broker.jetstream(&administrator).unwrap().messages(&it.lane.name).unwrap();
    let ids: Vec<&str> = stored.iter().map(|message| message.header("id").unwrap()).collect();
    assert_eq!(ids, ["2", "1", "3"]);
}

#[test]
fn answers_that_the_user_may_not_hear_are_reported() {
    let deaf = "authorization { users = [{ user: app, password: app, permissions: { publish: \">\", subscribe: \"inbox.>\" } }] }";
    let broker = Broker::start(Kind::Nats, &[deaf]).unwrap();
    let it = Guarded { broker, lane: lane(), folder: tempfile::tempdir().unwrap() };
    it.insert(1);
    let to = it.broker.url().replace("://", "://app:app@");
    let relay = it.start(&["--to", &to]);
    wait_log(&relay, "Permissions Violation for Subscription");
    drop(relay);
    let relay = it.start(&["--to", &to, "-X", "inbox=inbox.relay"]);
    wait_log(&relay, "no stream of NATS takes subject");
}

#[test]
fn another_server_is_tried_where_one_does_not_answer() {
    let it = Guarded::new("", &Value::Null);
    it.insert(1);
    let gone = walrelay_dev::run_dir::free_port().unwrap();
    let to = format!("nats://127.0.0.1:{gone},127.0.0.1:{}", it.broker.port());
    let _relay = it.start(&["--to", &to]);
    it.lane.wait_confirmed();
    assert_eq!(it.broker.jetstream(&Value::Null).unwrap().count(&it.lane.name).unwrap(), 1);
}

#[test]
fn a_seed_that_is_none_ends_the_start_with_what_to_look_at() {
    let it = Guarded::new("", &Value::Null);
    let file = format!("nkey={}", it.write("seed", "no seed"));
    let mut relay = it.start(&["-X", &file]);
    assert_eq!(relay.wait_exit(LONG).unwrap(), 2, "{}", relay.log());
    assert!(relay.log().contains("holds no user's seed") && hint(&relay.log()).contains("-X nkey"), "{}", relay.log());
}

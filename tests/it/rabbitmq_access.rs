//! Who may publish to RabbitMQ: users and their rights, passwords, tokens, certificates.

use std::fs;
use std::process::Command;
use std::time::Duration;

use walrelay_dev::brokers::{Broker, Kind};
use walrelay_dev::run_dir::free_port;
use walrelay_dev::secure::Authority;
use walrelay_dev::tap::Tap;

use crate::elsewhere::{self, assert_complete, insert, lane};
use crate::lane::{LONG, ended, hint, wait_log};
use crate::rabbitmq::{bound, broker, ids, start, start_to};

#[test]
#[ignore = "slow"]
fn a_user_without_the_right_to_write_gets_it_by_the_command_of_the_error() {
    let (broker, lane) = (broker(), bound(broker()));
    let mut client = lane.connect();
    insert(&mut client, 1, 10);
    broker.control(&["add_user", &lane.name, "p"]).unwrap();
    broker.control(&["set_permissions", &lane.name, "", "", ""]).unwrap();
    let url = broker.url().replace("guest:guest", &format!("{}:p", lane.name));
    let relay = start_to(&lane, &url, &["-X", &format!("exchange={}", lane.name)]);
    wait_log(&relay, "ACCESS_REFUSED");
    let command = elsewhere::command_of(&relay, "rabbitmqctl ");
    broker.control(&command[1..].iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(&ids(broker, &lane), 10), 0);
    let found = elsewhere::check(&lane, &url, &["-X", &format!("exchange={}", lane.name)]);
    assert!(found.contains("no alarm blocks publishers"), "{found}");
}

#[test]
#[ignore = "slow"]
fn a_password_that_changes_is_read_again() {
    let lane = bound(broker());
    let user = lane.name.as_str();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "first\n").unwrap();
    broker().control(&["add_user", user, "first"]).unwrap();
    broker().control(&["set_permissions", user, ".*", ".*", ".*"]).unwrap();
    let (name, password) = (format!("username={user}"), format!("password=@{}", file.path().display()));
    let tap = Tap::start(format!("127.0.0.1:{}", broker().port())).unwrap();
    let url = format!("amqp://{}", tap.address());
    let relay = start_to(&lane, &url, &["-X", &name, "-X", &password]);
    let mut client = lane.connect();
    insert(&mut client, 1, 10);
    lane.wait_confirmed();
    broker().control(&["change_password", user, "second"]).unwrap();
    tap.cut();
    insert(&mut client, 11, 20);
    wait_log(&relay, "ACCESS_REFUSED");
    fs::write(file.path(), "second\n").unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(&ids(broker(), &lane), 20), 0);
    assert!(!relay.log().contains("first"), "{}", relay.log());
}

/// Prints a token that is good for some seconds, and notes that it did.
const ISSUER: &str = r#"
cd "$1"
echo >> issued
b64() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }
head=$(printf '{"alg":"RS256","typ":"JWT","kid":"k"}' | b64)
scope='rabbitmq.write:*/*/* rabbitmq.read:*/*/* rabbitmq.configure:*/*'
body=$(printf '{"aud":"rabbitmq","sub":"relay","exp":%s,"scope":"%s"}' $(($(date +%s) + 8)) "$scope" | b64)
printf '%s.%s.%s\n' "$head" "$body" "$(printf '%s.%s' "$head" "$body" | openssl dgst -sha256 -sign key.pem | b64)"
"#;

#[test]
#[ignore = "slow"]
fn a_token_that_has_expired_is_replaced_though_the_broker_keeps_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let openssl = |arguments: &[&str]| {
        let status = Command::new("openssl").args(arguments).current_dir(folder.path()).output().unwrap().status;
        assert!(status.success(), "{arguments:?}");
    };
    openssl(&["genrsa", "-out", "key.pem", "2048"]);
    openssl(&["rsa", "-in", "key.pem", "-pubout", "-out", "public.pem"]);
    fs::write(folder.path().join("issuer.sh"), ISSUER).unwrap();
    let mut broker = Broker::start(Kind::RabbitMq, &[]).unwrap();
    broker.stop().unwrap();
    let key = format!("auth_oauth2.signing_keys.k = {}", folder.path().join("public.pem").display());
    let backends = ["auth_backends.1 = rabbit_auth_backend_oauth2", "auth_backends.2 = internal"];
    let oauth = ["auth_oauth2.resource_server_id = rabbitmq", "auth_oauth2.default_key = k", &key];
    broker.configure(&[&backends[..], &oauth].concat()).unwrap();
    fs::write(broker.folder().join("enabled_plugins"), "[rabbitmq_auth_backend_oauth2].\n").unwrap();
    // How long a channel remembers what it may do.
    let remembers = "[{rabbit, [{channel_tick_interval, 1000}]}].\n";
    fs::write(broker.folder().join("advanced.config"), remembers).unwrap();
    broker.start_again().unwrap();
    let lane = bound(&broker);
    let issuer = folder.path().join("issuer.sh");
    let command = format!("password-command=sh {} {}", issuer.display(), folder.path().display());
    let url = format!("amqp://relay@127.0.0.1:{}", broker.port());
    let relay = start_to(&lane, &url, &["-X", &command, "--on-bad-row=skip"]);
    let mut client = lane.connect();
    let issued = || fs::read_to_string(folder.path().join("issued")).map_or(0, |text| text.lines().count());
    let mut last = 0;
    while issued() < 4 {
        insert(&mut client, last + 1, last + 1);
        lane.wait_confirmed();
        assert!(!relay.log().contains("row not published"), "{}", relay.log());
        last += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_complete(&ids(&broker, &lane), last);
}

#[test]
#[ignore = "slow"]
fn a_vhost_that_has_connections_enough_is_waited_for() {
    let broker = Broker::start(Kind::RabbitMq, &[]).unwrap();
    let lane = bound(&broker);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    broker.control(&["set_vhost_limits", r#"{"max-connections": 0}"#]).unwrap();
    let mut relay = start(&lane, &broker, &[]);
    wait_log(&relay, "connection limit");
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
    broker.control(&["clear_vhost_limits"]).unwrap();
    lane.wait_confirmed();
    assert_eq!(ids(&broker, &lane), ["1"]);
}

#[test]
#[ignore = "slow"]
fn a_connection_is_encrypted_and_authenticated_by_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let authority = Authority::new("authority").unwrap();
    fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    authority.issue("server", &["localhost", "127.0.0.1"]).unwrap().write(folder.path(), "server").unwrap();
    authority.issue("shop", &[]).unwrap().write(folder.path(), "client").unwrap();
    let port = free_port().unwrap();
    let lines = [
        format!("listeners.ssl.1 = 127.0.0.1:{port}"),
        format!("ssl_options.cacertfile = {}", file("ca.pem")),
        format!("ssl_options.certfile = {}", file("server.crt")),
        format!("ssl_options.keyfile = {}", file("server.key")),
        "ssl_options.verify = verify_peer".to_owned(),
        "ssl_options.fail_if_no_peer_cert = true".to_owned(),
        "ssl_cert_login_from = common_name".to_owned(),
        "auth_mechanisms.1 = PLAIN".to_owned(),
        "auth_mechanisms.2 = EXTERNAL".to_owned(),
    ];
    let mut broker = Broker::start(Kind::RabbitMq, &lines.each_ref().map(String::as_str)).unwrap();
    broker.stop().unwrap();
    fs::write(broker.folder().join("enabled_plugins"), "[rabbitmq_auth_mechanism_ssl].\n").unwrap();
    broker.start_again().unwrap();
    broker.control(&["add_user", "shop", "unused"]).unwrap();
    broker.control(&["set_permissions", "shop", ".*", ".*", ".*"]).unwrap();

    let lane = bound(&broker);
    let mut client = lane.connect();
    insert(&mut client, 1, 10);
    let url = format!("amqps://localhost:{port}");
    let properties = [
        format!("tls.ca={}", file("ca.pem")),
        format!("tls.certificate={}", file("client.crt")),
        format!("tls.key={}", file("client.key")),
    ];
    let said: Vec<&str> = properties.iter().flat_map(|property| ["-X", property.as_str()]).collect();
    let mut plain = start_to(&lane, &url, &said);
    lane.wait_confirmed();
    assert_eq!(plain.terminate(LONG).unwrap().code, 0);
    insert(&mut client, 11, 20);
    let external = start_to(&lane, &url, &[&said[..], &["-X", "auth=external"]].concat());
    lane.wait_confirmed();
    assert_eq!(assert_complete(&ids(&broker, &lane), 20), 0);
    drop(external);

    // Whoever has no certificate, or trusts another authority, does not get in.
    let found = elsewhere::check(&lane, &url, &said[..2]);
    assert!(found.contains("cannot be reached"), "{found}");
    let found = elsewhere::check(&lane, &url, &said[2..]);
    assert!(found.contains("certificate"), "{found}");
}

/// As `openssl req -x509` makes it: a certificate that says of itself that it is an authority.
#[test]
fn a_certificate_that_is_its_own_authority_with_a_key_on_p521_is_trusted_where_it_is_named() {
    let folder = walrelay_dev::repository().join("src/tls/test_data");
    let file = |name: &str| folder.join(name).display().to_string();
    let port = free_port().unwrap();
    let lines = [
        format!("listeners.ssl.1 = 127.0.0.1:{port}"),
        format!("ssl_options.certfile = {}", file("p521.crt")),
        format!("ssl_options.keyfile = {}", file("p521.key")),
    ];
    let broker = Broker::start(Kind::RabbitMq, &lines.each_ref().map(String::as_str)).unwrap();
    let lane = bound(&broker);
    insert(&mut lane.connect(), 1, 10);
    let url = format!("amqps://guest:guest@localhost:{port}");
    let _relay = start_to(&lane, &url, &["-X", &format!("tls.ca={}", file("p521.crt"))]);
    lane.wait_confirmed();
    assert_eq!(assert_complete(&ids(&broker, &lane), 10), 0);
}

#[test]
fn a_refused_log_in_and_what_rabbitmq_does_not_have_end_the_start() {
    let lane = lane();
    let url = broker().url().replace("guest:guest", "nobody:hush");
    let (code, log) = ended(&mut start_to(&lane, &url, &[]));
    assert!(code == 2 && log.contains("ACCESS_REFUSED") && !log.contains("hush"), "{log}");
    assert!(hint(&log).contains("WALRELAY_RABBITMQ_PASSWORD"), "{log}");
    for more in [&["--delivery", "exactly-once"][..], &["-X", "vhots=1"], &["-X", "declare=soon"]] {
        let (code, log) = ended(&mut start(&lane, broker(), more));
        assert_eq!(code, 64, "{log}");
    }
}

//! Who gets into Redis, and where it is: certificates, users with the rights that the manual names, Sentinels.

use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use walrelay_dev::brokers::{Broker, Kind, Reply, Sentinel, shared};
use walrelay_dev::process::wait_until;
use walrelay_dev::run_dir::free_port;
use walrelay_dev::secure::{Authority, Issued};

use crate::elsewhere::{self, insert, lane};
use crate::lane::{LONG, Lane, wait_log};

/// TLS on a free port of a loopback address, before a server that does none, as Valkey's program here; clients need a certificate. It ends when
/// dropped.
pub(crate) struct TlsFront {
    pub(crate) port: u16,
    _ends: oneshot::Sender<()>,
}

impl TlsFront {
    pub(crate) fn before(server: u16, address: &str, authority: &Authority, own: &Issued) -> Self {
        let listener = std::net::TcpListener::bind((address, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(configuration(authority, own)));
        let (ends, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let accepting = async {
                    while let Ok((client, _)) = listener.accept().await {
                        let acceptor = acceptor.clone();
                        tokio::spawn(async move {
                            let mut client = acceptor.accept(client).await?;
                            let mut server = TcpStream::connect(("127.0.0.1", server)).await?;
                            tokio::io::copy_bidirectional(&mut client, &mut server).await
                        });
                    }
                };
                tokio::select! {
                    () = accepting => {}
                    _ = ended => {}
                }
            });
        });
        Self { port, _ends: ends }
    }
}

fn configuration(authority: &Authority, own: &Issued) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    builder.with_client_cert_verifier(clients).with_single_cert(vec![certificate], key).unwrap()
}

fn length(broker: &Broker, lane: &Lane) -> i64 {
    broker.resp().unwrap().call(&["XLEN", &lane.topic("order")]).unwrap().integer().unwrap()
}

fn ids(broker: &Broker, lane: &Lane) -> Vec<String> {
    let entries = broker.resp().unwrap().call(&["XRANGE", &lane.topic("order"), "-", "+"]).unwrap();
    // Each begins with the field `id`.
    entries.items().iter().map(|entry| entry.items()[1].items()[1].text()).collect()
}

#[test]
fn tls_takes_a_known_authoritys_certificate_for_the_servers_name_only_and_shows_the_clients() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (Authority::new("right").unwrap(), Authority::new("wrong").unwrap());
    let front =
        TlsFront::before(broker.port(), "127.0.0.1", &right, &right.issue("localhost", &["localhost"]).unwrap());
    for (name, authority) in [("right", &right), ("wrong", &wrong)] {
        std::fs::write(folder.path().join(format!("{name}.pem")), authority.pem()).unwrap();
        authority.issue("walrelay", &[]).unwrap().write(folder.path(), name).unwrap();
    }
    let property = |name: &str, file: &str| format!("tls.{name}={}", folder.path().join(file).display());
    let properties = |authority: &str, client: Option<&str>| {
        let mut all = vec![property("ca", &format!("{authority}.pem"))];
        if let Some(client) = client {
            all.push(property("certificate", &format!("{client}.crt")));
            all.push(property("key", &format!("{client}.key")));
        }
        all.into_iter().flat_map(|property| ["-X".to_owned(), property]).collect::<Vec<_>>()
    };
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    for (host, authority, client, said) in [
        ("localhost", "wrong", Some("right"), "UnknownIssuer"),
        ("127.0.0.1", "right", Some("right"), "not valid for name"),
        ("localhost", "right", None, "cannot be reached"),
        ("localhost", "right", Some("wrong"), "cannot be reached"),
    ] {
        let properties = properties(authority, client);
        let more: Vec<&str> = properties.iter().map(String::as_str).collect();
        let relay = elsewhere::start(&lane, &format!("rediss://{host}:{}", front.port), &more);
        wait_log(&relay, said);
        assert_eq!(length(broker, &lane), 0, "{said}");
    }
    let properties = properties("right", Some("right"));
    let more: Vec<&str> = properties.iter().map(String::as_str).collect();
    let _relay = elsewhere::start(&lane, &format!("rediss://localhost:{}", front.port), &more);
    lane.wait_confirmed();
    assert_eq!(ids(broker, &lane), ["1"]);
}

/// The rules of the user that the manual creates, for this lane's streams.
pub(crate) fn rules_of_the_manual(lane: &Lane) -> Vec<String> {
    let page = walrelay_dev::repository().join("docs/destinations/redis.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rights = page.split("\n\n").find(|paragraph| paragraph.starts_with("Rights: ")).unwrap();
    let quoted = rights.split('`').skip(1).step_by(2);
    let words =
        quoted.flat_map(str::split_whitespace).filter(|word| word.starts_with(['+', '~', '>']) || *word == "on");
    words.map(|word| word.replace("outbox.", &format!("{}.", lane.name))).collect()
}

#[test]
fn a_user_needs_the_rights_that_the_manual_names_and_no_others() {
    let (lane, broker) = (lane(), Broker::start(Kind::Valkey, &[]).unwrap());
    let rules = rules_of_the_manual(&lane);
    assert!(rules.len() > 12 && rules.contains(&">SECRET".to_owned()), "{rules:?}");
    let mut administrator = broker.resp().unwrap();
    let mut set = |rules: &[&str]| {
        let words = [&["ACL", "SETUSER", "walrelay"], rules].concat();
        assert_eq!(administrator.call(&words).unwrap(), Reply::Text("OK".to_owned()), "{words:?}");
    };
    set(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    let to = broker.url().replace("://", "://walrelay:SECRET@");
    let more = ["-X", "dedupe=1h", "-X", "wait=0,1000"];
    insert(&mut lane.connect(), 1, 20);
    let relay = elsewhere::start(&lane, &to, &more);
    lane.wait_confirmed();
    let found = elsewhere::check(&lane, &to, &more);
    assert!(found.contains("appendfsync is always") && found.contains("order is there"), "{found}");
    set(&["-xadd"]);
    insert(&mut lane.connect(), 21, 40);
    wait_log(&relay, "NOPERM");
    set(&["+xadd"]);
    lane.wait_confirmed();
    assert_eq!(elsewhere::assert_complete(&ids(&broker, &lane), 40), 0);
}

/// A primary with its replica, and a Sentinel that knows both.
struct Watched {
    first: Broker,
    second: Broker,
    sentinel: Sentinel,
}

impl Watched {
    fn start() -> Self {
        // It would wait five seconds for other replicas.
        let at_once = "repl-diskless-sync-delay 0";
        let first = Broker::start(Kind::Valkey, &[at_once]).unwrap();
        let replica = format!("replicaof 127.0.0.1 {}", first.port());
        let second = Broker::start(Kind::Valkey, &[at_once, &replica]).unwrap();
        let sentinel = Sentinel::start("main", first.port(), &[]).unwrap();
        let it = Self { first, second, sentinel };
        it.wait_for_replica();
        it
    }

    fn wait_for_replica(&self) {
        wait_until(LONG, "Sentinel to see a replica", || Ok(self.sentinel.replicas()? == 1)).unwrap();
    }

    fn wait_for_primary(&self, port: u16) {
        wait_until(LONG, "the failover", || Ok(self.sentinel.primary()? == Some(port))).unwrap();
    }
}

#[test]
#[ignore = "slow"]
fn sentinels_name_the_primary_and_failovers_lose_and_swap_nothing_that_was_waited_for() {
    let (lane, mut it) = (lane(), Watched::start());
    let gone = free_port().unwrap();
    let to = format!("redis://127.0.0.1:{gone},127.0.0.1:{}", it.sentinel.port());
    let more = ["-X", "sentinel=main", "-X", "wait=1,1000"];
    let _relay = elsewhere::start(&lane, &to, &more);
    let mut writer = lane.connect();
    insert(&mut writer, 1, 300);
    wait_until(LONG, "some of them to arrive", || Ok(length(&it.first, &lane) > 0)).unwrap();
    it.first.kill().unwrap();
    insert(&mut writer, 301, 600);
    it.wait_for_primary(it.second.port());
    // Nothing counts before a replica has it.
    it.first.start_again().unwrap();
    lane.wait_confirmed();
    elsewhere::assert_complete(&ids(&it.second, &lane), 600);
    it.wait_for_replica();
    insert(&mut writer, 601, 900);
    let fails_over =
        || Ok(it.sentinel.resp()?.call(&["SENTINEL", "FAILOVER", "main"])? == Reply::Text("OK".to_owned()));
    wait_until(LONG, "Sentinel to begin a failover", fails_over).unwrap();
    it.wait_for_primary(it.first.port());
    insert(&mut writer, 901, 1200);
    lane.wait_confirmed();
    elsewhere::assert_complete(&ids(&it.first, &lane), 1200);
}

#[test]
fn check_asks_sentinels_and_tells_what_a_failover_loses() {
    let (lane, it) = (lane(), Watched::start());
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let to = format!("redis://127.0.0.1:{}", it.sentinel.port());
    let found = elsewhere::check(&lane, &to, &["-X", "sentinel=main"]);
    assert!(found.contains("Sentinel names the primary of main") && found.contains("-X wait=1,1000"), "{found}");
    let waits = elsewhere::check(&lane, &to, &["-X", "sentinel=main", "-X", "wait=1,1000"]);
    assert!(waits.contains("1 replicas are connected") && !waits.contains("a failover loses"), "{waits}");
    let unknown = elsewhere::check(&lane, &to, &["-X", "sentinel=other"]);
    assert!(unknown.contains("knows no primary of that name"), "{unknown}");
    let none = elsewhere::check(&lane, &it.first.url(), &["-X", "sentinel=main"]);
    assert!(none.contains("unknown command"), "{none}");
}

#[test]
fn a_sentinel_may_want_a_password_of_its_own() {
    let (lane, broker) = (lane(), Broker::start(Kind::Valkey, &[]).unwrap());
    let sentinel = Sentinel::start("main", broker.port(), &["requirepass hush"]).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let to = format!("redis://127.0.0.1:{}", sentinel.port());
    let found = elsewhere::check(&lane, &to, &["-X", "sentinel=main"]);
    assert!(found.contains("NOAUTH"), "{found}");
    let _relay = elsewhere::start(&lane, &to, &["-X", "sentinel=main", "-X", "sentinel.password=hush"]);
    lane.wait_confirmed();
    assert_eq!(ids(&broker, &lane), ["1"]);
}

#[test]
fn a_server_that_has_clients_enough_is_waited_for() {
    let (lane, broker) = (lane(), Broker::start(Kind::Valkey, &["requirepass hush"]).unwrap());
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let mut client = broker.resp().unwrap();
    let answers = |reply: Reply| assert_eq!(reply.text(), "OK");
    answers(client.call(&["AUTH", "hush"]).unwrap());
    answers(client.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap());
    let to = format!("redis://:hush@127.0.0.1:{}", broker.port());
    let mut relay = elsewhere::start(&lane, &to, &[]);
    wait_log(&relay, "max number of clients");
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
    answers(client.call(&["CONFIG", "SET", "maxclients", "100"]).unwrap());
    lane.wait_confirmed();
    assert_eq!(client.call(&["XLEN", &lane.topic("order")]).unwrap().integer(), Some(1));
}

#[test]
fn what_is_to_be_waited_for_and_may_not_be_asked_for_is_reported_and_nothing_counts_until_then() {
    let (lane, broker) = (lane(), Broker::start(Kind::Valkey, &[]).unwrap());
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let mut administrator = broker.resp().unwrap();
    let mut set = |rules: &[&str]| {
        let words = [&["ACL", "SETUSER", "walrelay"], rules].concat();
        assert_eq!(administrator.call(&words).unwrap(), Reply::Text("OK".to_owned()), "{words:?}");
    };
    set(&["on", ">SECRET", "~*", "+@all", "-info"]);
    let to = broker.url().replace("://", "://walrelay:SECRET@");
    let relay = elsewhere::start(&lane, &to, &["-X", "wait=0,1000"]);
    wait_log(&relay, "no permissions to run the 'info' command");
    assert_eq!(length(&broker, &lane), 0);
    set(&["+info"]);
    lane.wait_confirmed();
    assert_eq!(ids(&broker, &lane), ["1"]);
}

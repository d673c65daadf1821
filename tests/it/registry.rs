//! `--schema-registry`: values begin with the id of their subject's latest schema; a registry that is away holds rows up, and loses none.
//!
//! The registry is a small server of this file, since none that speaks Confluent's API can be had as a package. Its answers are those of the API's
//! documentation ("Schema Registry API Reference", `GET /subjects/(string: subject)/versions/(versionId: version)`, and its error codes).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use walrelay_dev::consume::Record;
use walrelay_dev::process::wait_until;
use walrelay_dev::sdk;

use crate::lane::{LONG, Lane, OUTBOX, binary, hint, ids};

/// A registry.
#[derive(Clone, Default)]
struct Registry(Arc<State>);

#[derive(Default)]
struct State {
    ids: Mutex<BTreeMap<String, u32>>,
    /// `Authorization`, if it is asked for.
    wanted: Mutex<Option<String>>,
    /// Closes each connection without an answer.
    away: AtomicBool,
    /// Subjects, in the order of the questions.
    asked: Mutex<Vec<String>>,
}

impl Registry {
    /// Serves on a port of its own; its address.
    fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/apis/ccompat/v7/", listener.local_addr().unwrap());
        let state = Arc::clone(&self.0);
        thread::spawn(move || listener.incoming().for_each(|stream| state.answer(stream.unwrap())));
        address
    }

    fn register(&self, subject: &str, id: u32) {
        self.0.ids.lock().unwrap().insert(subject.to_owned(), id);
    }

    fn asked(&self) -> Vec<String> {
        self.0.asked.lock().unwrap().clone()
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) {
        let mut request = Vec::new();
        let mut room = [0; 4096];
        while !request.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read(&mut room) {
                Ok(0) | Err(_) => return,
                Ok(read) => request.extend(&room[..read]),
            }
        }
        let request = String::from_utf8(request).unwrap();
        let path = request.split(' ').nth(1).unwrap();
        if path.contains("/schemas/ids/") {
            // What consumers ask for.
            let schema = r#"{"schema":"{\"type\":\"object\",\"required\":[\"n\"]}","schemaType":"JSON"}"#;
            return answered(&mut stream, "200 OK", schema);
        }
        let subject =
            path.strip_prefix("/apis/ccompat/v7/subjects/").unwrap().strip_suffix("/versions/latest").unwrap();
        self.asked.lock().unwrap().push(subject.to_owned());
        if self.away.load(Ordering::Relaxed) {
            return;
        }
        let is_let_in = self.wanted.lock().unwrap().as_ref().is_none_or(|wanted| {
            let is_it = |(name, value): (&str, &str)| name.eq_ignore_ascii_case("authorization") && value == wanted;
            request.lines().filter_map(|line| line.split_once(": ")).any(is_it)
        });
        let (status, body) = match (is_let_in, self.ids.lock().unwrap().get(subject)) {
            (false, _) => ("401 Unauthorized", r#"{"error_code":401,"message":"Unauthorized"}"#.to_owned()),
            (true, Some(id)) => (
                "200 OK",
                format!(
                    r#"{{"subject":"{subject}","version":1,"id":{id},"schema":"{{\"type\":\"object\"}}","schemaType":"JSON"}}"#
                ),
            ),
            (true, None) => {
                ("404 Not Found", format!(r#"{{"error_code":40401,"message":"Subject '{subject}' not found."}}"#))
            }
        };
        answered(&mut stream, status, &body);
    }
}

fn answered(stream: &mut TcpStream, status: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/vnd.schemaregistry.v1+json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    drop(stream.write_all((head + body).as_bytes()));
}

/// Rows of one route.
fn rows(route: &str, first: u32, last: u32) -> String {
    format!(
        "INSERT INTO outbox SELECT n::text, '{route}', 'k' || n % 3, 'Placed', '{{\"n\": 1}}' FROM generate_series({first}, {last}) AS n"
    )
}

/// The id that a value begins with, and what is behind it.
fn framed(record: &Record) -> (u32, &[u8]) {
    let (head, payload) = record.value.as_deref().unwrap().split_at(5);
    assert_eq!(head[0], 0);
    (u32::from_be_bytes(head[1..].try_into().unwrap()), payload)
}

#[test]
fn values_begin_with_the_id_of_their_subject_which_is_asked_for_once() {
    let registry = Registry::default();
    let url = registry.start();
    let lane = Lane::with(OUTBOX, "outbox");
    let subject = |route: &str| format!("{}-value", lane.topic(route));
    registry.register(&subject("order"), 7);
    registry.register(&subject("invoice"), 0x0102_0304);
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "wrong\n").unwrap();
    *registry.0.wanted.lock().unwrap() = Some("Basic YXBwOnMzY3JldA==".to_owned());
    let password = format!("--schema-registry-password=@{}", secret.path().display());
    let relay = lane.streaming(&["--schema-registry", &url, "--schema-registry-user=app", &password]);
    lane.sql(&format!("{}; {}; {}", rows("order", 1, 200), rows("invoice", 201, 250), rows("order", 251, 300)));
    lane.sql("INSERT INTO outbox VALUES ('null', 'order', 'k', 'Deleted', NULL)");
    wait_until(LONG, "the refused credentials to be reported", || {
        Ok(relay.status()?["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("refuses our credentials: Unauthorized (401)")))
    })
    .unwrap();
    fs::write(secret.path(), "s3cret\n").unwrap();
    let orders = lane.records("order");
    assert_eq!(orders.len(), 251);
    let with_value = orders.iter().filter(|record| record.value.is_some());
    assert!(with_value.clone().all(|record| framed(record) == (7, br#"{"n": 1}"#)));
    assert_eq!(with_value.count(), 250, "null stays null");
    let invoices = lane.records("invoice");
    assert!(invoices.len() == 50 && invoices.iter().all(|record| framed(record).0 == 0x0102_0304));
    assert_eq!(registry.asked().iter().filter(|asked| **asked == subject("invoice")).count(), 1);
    assert!(!relay.log().contains("s3cret"), "{}", relay.log());
    let read = sdk::confluent(&orders, url.trim_end_matches('/')).unwrap();
    assert!(read.len() == 251 && read.iter().filter(|value| **value == json!({"n": 1})).count() == 250);
    assert!(sdk::confluent(&[Record { value: Some(b"{\"n\": 1}".to_vec()), ..orders[0].clone() }], &url).is_err());
}

#[test]
#[ignore = "slow"]
fn rows_wait_for_a_registry_that_is_away_and_for_a_subject_in_their_order_and_known_ids_outlive_it() {
    let registry = Registry::default();
    registry.0.away.store(true, Ordering::Relaxed);
    let url = registry.start();
    let lane = Lane::with(OUTBOX, "outbox");
    let relay =
        lane.streaming(&["--schema-registry", &url, "--schema-subject", "{topic}-{type}", "--unready-after=1s"]);
    lane.sql(&rows("order", 1, 60));
    let says = |text: &str| {
        wait_until(LONG, text, || Ok(relay.status()?["last_error"].as_str().is_some_and(|error| error.contains(text))))
            .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    };
    says("schema registry http://");
    wait_until(LONG, "readiness to say so", || Ok(relay.get("/readyz")?.status == 503)).unwrap();
    registry.0.away.store(false, Ordering::Relaxed);
    says("not found. (40401)");
    assert!(lane.records_now("order").is_empty());
    registry.register(&format!("{}-Placed", lane.topic("order")), 9);
    let first = lane.records("order");
    assert!(first.iter().all(|record| framed(record).0 == 9));
    registry.0.away.store(true, Ordering::Relaxed);
    lane.sql(&rows("order", 61, 120));
    let records = lane.records("order");
    let expected: BTreeSet<String> = (1..=120).map(|n| n.to_string()).collect();
    assert_eq!(ids(&records).into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!(records.len(), 120, "none is repeated");
    let mut last = BTreeMap::new();
    for record in &records {
        let number: u32 = record.header("id").unwrap().parse().unwrap();
        assert!(last.insert(record.key_text(), number).is_none_or(|before| before < number), "{number}");
    }
}

#[test]
fn a_row_without_the_type_that_its_subject_needs_is_a_bad_row() {
    let registry = Registry::default();
    let url = registry.start();
    let lane = Lane::with(OUTBOX, "outbox");
    let mut relay = lane.streaming(&["--schema-registry", &url, "--schema-subject", "{type}"]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', NULL, '{}')");
    let code = relay.wait_exit(LONG).unwrap();
    assert_eq!(code, 2, "{}", relay.log());
    assert!(relay.log().contains("the row has no type, which its schema's subject is made of"), "{}", relay.log());
    assert!(hint(&relay.log()).contains("--bad-row-at"), "{}", relay.log());
    assert!(registry.asked().is_empty());
}

/// Consumers would take its first bytes for the id.
#[test]
fn a_dead_letter_record_without_an_id_is_not_published_again() {
    let registry = Registry::default();
    let url = registry.start();
    let lane = Lane::with(OUTBOX, "outbox");
    let (dead, other) = (lane.topic("dead"), lane.topic("other"));
    let _relay = lane.streaming(&["--schema-registry", &url, "--on-bad-row=dead-letter", "--dead-letter-topic", &dead]);
    lane.sql("INSERT INTO outbox VALUES ('1', NULL, 'k', 'Placed', '{}')");
    assert_eq!(lane.records("dead").len(), 1);
    let output = Command::new(binary())
        .args(["dead-letters", "--brokers", &lane.brokers, "--slot", &lane.name, "--dead-letter-topic", &dead])
        .args(["--replay", "--default-topic", &other])
        .env("WALRELAY_SCHEMA_REGISTRY", &url)
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("has no schema id before it"), "{text}");
    assert!(lane.records_now("other").is_empty());
}

#[test]
fn check_asks_for_the_subjects_of_the_latest_rows_and_says_what_the_registry_says() {
    let registry = Registry::default();
    let url = registry.start();
    let lane = Lane::with(OUTBOX, "outbox");
    lane.sql(&rows("order", 1, 3));
    let found = |url: &str| {
        let mut arguments = lane.arguments(&["--schema-registry", url, "--json"]);
        "check".clone_into(&mut arguments[0]);
        arguments.retain(|argument| !argument.starts_with("--shutdown"));
        let output = Command::new(binary()).args(arguments).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["check"] == "schema_registry").unwrap();
        format!("{} {}", finding["level"].as_str().unwrap(), finding["finding"].as_str().unwrap())
    };
    let text = found(&url);
    assert!(text.starts_with("fail ") && text.contains("not found. (40401)"), "{text}");
    registry.register(&format!("{}-value", lane.topic("order")), 12);
    let text = found(&url);
    assert!(text.starts_with("ok ") && text.ends_with("has id 12"), "{text}");
    let text = found("http://127.0.0.1:1");
    assert!(text.starts_with("fail schema registry http://127.0.0.1:1: "), "{text}");
}

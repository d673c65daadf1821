//! `--otlp-endpoint`: a span for each published transaction of a sampled trace, and a collector that fails holds no record up.
//!
//! The collector is a small server of this file that reads OTLP over HTTP with the protocol's own message types.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::exactly_once::EXACTLY_ONCE;
use crate::lane::{LONG, Lane, wait_log};

/// With a column of trace contexts.
const TABLE: &str = "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb, \
                     headers jsonb, trace text)";

/// The collector closes each connection without an answer.
const AWAY: u16 = 0;

/// A collector.
#[derive(Clone)]
struct Collector(Arc<State>);

struct State {
    /// With which it answers, or [`AWAY`].
    status: AtomicU16,
    /// Requests, answered or not.
    requests: Mutex<u32>,
    /// `x-api-key` of the last request.
    key: Mutex<Option<String>>,
    /// Of requests that were answered with 200: attributes of resources, and spans.
    resource: Mutex<BTreeMap<String, Value>>,
    spans: Mutex<Vec<Span>>,
}

impl Collector {
    /// Serves on a port of its own; with its address.
    fn start(status: u16) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            status: status.into(),
            requests: Mutex::default(),
            key: Mutex::default(),
            resource: Mutex::default(),
            spans: Mutex::default(),
        };
        let collector = Self(Arc::new(state));
        let state = Arc::clone(&collector.0);
        thread::spawn(move || listener.incoming().for_each(|stream| state.answer(stream.unwrap())));
        (collector, address)
    }

    fn answer_with(&self, status: u16) {
        self.0.status.store(status, Ordering::Relaxed);
    }

    fn spans(&self) -> Vec<Span> {
        self.0.spans.lock().unwrap().clone()
    }

    fn requests(&self) -> u32 {
        *self.0.requests.lock().unwrap()
    }

    #[track_caller]
    fn wait_spans(&self, count: usize, relay: &Relay) -> Vec<Span> {
        wait_until(LONG, &format!("{count} spans"), || Ok(self.spans().len() >= count))
            .unwrap_or_else(|error| panic!("{error}, there are {}: {}", self.spans().len(), relay.log()));
        self.spans()
    }

    #[track_caller]
    fn wait_requests(&self, count: u32) {
        wait_until(LONG, &format!("{count} requests"), || Ok(self.requests() >= count)).unwrap();
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) {
        let Some((head, body)) = request(&mut stream) else { return };
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: application/x-protobuf\r\n"), "{head}");
        *self.requests.lock().unwrap() += 1;
        *self.key.lock().unwrap() = head.lines().find_map(|line| line.strip_prefix("x-api-key: ")).map(str::to_owned);
        let status = self.status.load(Ordering::Relaxed);
        if status == AWAY {
            return;
        }
        if status == 200 {
            for resource in ExportTraceServiceRequest::decode(body.as_slice()).unwrap().resource_spans {
                *self.resource.lock().unwrap() = attributes(&resource.resource.unwrap().attributes);
                let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                self.spans.lock().unwrap().extend(spans);
            }
        }
        let answer = format!("HTTP/1.1 {status} -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        drop(stream.write_all(answer.as_bytes()));
    }
}

/// Head and body, as far as they come.
fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut room = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end + 2].to_vec()).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            if bytes.len() - end - 4 == length.parse::<usize>().unwrap() {
                return Some((head, bytes[end + 4..].to_vec()));
            }
        }
        match stream.read(&mut room) {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend(&room[..read]),
        }
    }
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, Value> {
    pairs.iter().map(|pair| (pair.key.clone(), pair.value.clone().unwrap().value.unwrap())).collect()
}

fn text(text: impl Into<String>) -> Value {
    Value::StringValue(text.into())
}

/// A context with this trace and span, each repeated.
fn traceparent(number: u32, flags: &str) -> String {
    format!("00-{number:032x}-{number:016x}-{flags}")
}

fn trace_of(span: &Span) -> u128 {
    u128::from_be_bytes(span.trace_id.as_slice().try_into().unwrap())
}

/// One transaction with a row for each context.
fn transaction(route: &str, first: u32, contexts: &[String]) -> String {
    let row = |(n, context): (u32, &String)| {
        format!("('{n}', '{route}', 'k', 'Placed', '{{}}', '{{\"traceparent\": \"{context}\"}}', '{context}')")
    };
    let rows: Vec<String> = (first..).zip(contexts).map(row).collect();
    format!("INSERT INTO outbox VALUES {}", rows.join(", "))
}

/// Transactions of one row, each of a trace of its own, with its number.
fn transactions(first: u32, last: u32) -> String {
    let each = |n| format!("BEGIN; {}; COMMIT", transaction("order", n, &[traceparent(n, "01")]));
    (first..=last).map(each).collect::<Vec<_>>().join("; ")
}

/// The sample of a family with this outcome.
fn spans_metric(relay: &Relay, outcome: &str) -> Option<u64> {
    let metrics = relay.get("/metrics").unwrap().body;
    let sample = metrics
        .lines()
        .find(|line| line.starts_with("walrelay_spans_total{") && line.contains(&format!("outcome=\"{outcome}\"")))?;
    sample.rsplit(' ').next().unwrap().parse().ok()
}

#[test]
fn each_transaction_of_a_sampled_trace_is_a_span_below_the_rows_and_records_stay_as_they_are() {
    let (collector, address) = Collector::start(200);
    let lane = Lane::with(TABLE, "outbox");
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(key.path(), "s3cret\n").unwrap();
    let header = format!("--otlp-header=x-api-key=@{}", key.path().display());
    let relay = lane.streaming(&["--otlp-endpoint", &address, &header]);
    // One sampled; one not; a malformed one; three rows of two traces, beside one without.
    let contexts = |all: &[(u32, &str)]| all.iter().map(|(n, flags)| traceparent(*n, flags)).collect::<Vec<_>>();
    lane.sql(&transaction("order", 1, &contexts(&[(1, "01")])));
    lane.sql(&transaction("order", 2, &contexts(&[(2, "00")])));
    lane.sql(&transaction("order", 3, &["00-no-context-01".to_owned()]));
    lane.sql(&transaction("order", 4, &contexts(&[(4, "01"), (4, "01"), (5, "01"), (6, "00")])));
    let both = format!(
        "{}; {}",
        transaction("order", 8, &contexts(&[(8, "01")])),
        transaction("other", 9, &contexts(&[(8, "01")]))
    );
    lane.sql(&format!("BEGIN; {both}; COMMIT"));
    let spans = collector.wait_spans(3, &relay);
    assert_eq!(spans.iter().map(trace_of).collect::<BTreeSet<_>>(), BTreeSet::from([1, 4, 8]), "{spans:?}");
    let of = |trace: u128| spans.iter().find(|span| trace_of(span) == trace).unwrap();
    let one = of(1);
    assert_eq!((one.parent_span_id.as_slice(), one.kind()), (1_u64.to_be_bytes().as_slice(), SpanKind::Producer));
    assert_eq!(one.name, format!("send {}", lane.topic("order")));
    assert!(one.end_time_unix_nano >= one.start_time_unix_nano && one.span_id.len() == 8);
    let found = attributes(&one.attributes);
    for (name, value) in [
        ("messaging.system", text("kafka")),
        ("messaging.operation.type", text("send")),
        ("messaging.operation.name", text("send")),
        ("messaging.destination.name", text(lane.topic("order"))),
        ("messaging.message.id", text("1")),
        ("messaging.client.id", text(format!("walrelay/{}", lane.name))),
    ] {
        assert_eq!(found.get(name), Some(&value), "{name}");
    }
    let four = of(4);
    assert_eq!(attributes(&four.attributes)["messaging.batch.message_count"], Value::IntValue(4));
    assert_eq!(four.links.iter().map(|link| link.span_id.clone()).collect::<Vec<_>>(), [5_u64.to_be_bytes().to_vec()]);
    assert_eq!((of(8).name.as_str(), of(8).links.len()), ("send", 0), "two topics, one trace");
    assert_eq!(collector.0.resource.lock().unwrap()["service.name"], text("walrelay"));
    assert_eq!(collector.0.key.lock().unwrap().as_deref(), Some("s3cret"));
    // Counted when the collector's answer has come back.
    wait_until(LONG, "the spans to be counted", || Ok(spans_metric(&relay, "exported") == Some(3))).unwrap();
    assert_eq!(spans_metric(&relay, "dropped"), Some(0));
    let records = lane.records("order");
    let contexts = records.iter().map(|record| record.header("traceparent").unwrap().to_owned());
    let expected = [(1, "01"), (2, "00"), (4, "01"), (4, "01"), (5, "01"), (6, "00"), (8, "01")];
    let expected = expected.map(|(n, flags)| traceparent(n, flags)).into_iter().chain(["00-no-context-01".to_owned()]);
    assert_eq!(contexts.collect::<BTreeSet<_>>(), expected.collect::<BTreeSet<_>>(), "malformed ones as well");
    assert!(!relay.log().contains("s3cret"), "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_collector_that_is_unavailable_holds_no_record_up_is_reported_once_and_gets_the_spans_later() {
    let (collector, address) = Collector::start(AWAY);
    let lane = Lane::with(TABLE, "outbox");
    let mut relay =
        lane.streaming(&["--otlp-endpoint", &address, "--header", "traceparent=trace", "--headers-column="]);
    lane.sql(&transactions(1, 20));
    assert_eq!(lane.records("order").len(), 20);
    collector.wait_requests(3);
    collector.answer_with(503);
    collector.wait_requests(collector.requests() + 2);
    assert_eq!(relay.log().matches("span export failed; retrying").count(), 1, "{}", relay.log());
    assert_eq!(relay.get("/readyz").unwrap().status, 200, "it is ready all the same");
    assert_eq!((spans_metric(&relay, "exported"), spans_metric(&relay, "dropped")), (Some(0), Some(0)));
    collector.answer_with(200);
    let spans = collector.wait_spans(20, &relay);
    assert_eq!(spans.iter().map(trace_of).collect::<Vec<_>>(), (1..=20).collect::<Vec<u128>>(), "each once, in order");
    wait_log(&relay, "span export recovered");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn a_graceful_shutdown_exports_what_is_left_and_does_not_wait_for_a_collector_that_is_unavailable() {
    let (collector, address) = Collector::start(200);
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&["--otlp-endpoint", &address]);
    lane.sql(&transactions(1, 700));
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    assert_eq!(collector.spans().len(), 700, "{}", relay.log());
    collector.answer_with(AWAY);
    let mut relay = lane.streaming(&["--otlp-endpoint", &address]);
    lane.sql(&transactions(701, 720));
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    assert_eq!((lane.records_now("order").len(), collector.spans().len()), (720, 700), "no record is repeated");
}

#[test]
fn spans_that_a_collector_refuses_are_dropped_and_counted() {
    let (collector, address) = Collector::start(400);
    let lane = Lane::with(TABLE, "outbox");
    let relay = lane.streaming(&["--otlp-endpoint", &address]);
    lane.sql(&transactions(1, 3));
    wait_log(&relay, "span export refused; spans are dropped");
    wait_until(LONG, "3 spans to be dropped", || Ok(spans_metric(&relay, "dropped") == Some(3))).unwrap();
    collector.answer_with(200);
    lane.sql(&transactions(4, 4));
    assert_eq!(trace_of(&collector.wait_spans(1, &relay)[0]), 4);
}

#[test]
fn in_kafka_transactions_a_span_ends_with_the_commit() {
    let (collector, address) = Collector::start(200);
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&["--otlp-endpoint", &address, EXACTLY_ONCE]);
    lane.sql(&transactions(1, 50));
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let spans = collector.spans();
    assert_eq!(spans.iter().map(trace_of).collect::<Vec<_>>(), (1..=50).collect::<Vec<u128>>(), "{}", relay.log());
}

#[test]
fn without_a_collector_there_is_no_thread_and_no_metric_of_spans() {
    let lane = Lane::with(TABLE, "outbox");
    let relay = lane.streaming(&[]);
    lane.sql(&transactions(1, 2));
    lane.wait_confirmed();
    assert_eq!(spans_metric(&relay, "exported"), None);
    let tasks = fs::read_dir(format!("/proc/{}/task", relay.pid().unwrap())).unwrap();
    let names: Vec<String> = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap()).collect();
    assert!(names.iter().any(|name| name == "relay\n") && !names.contains(&"otlp\n".to_owned()), "{names:?}");
}

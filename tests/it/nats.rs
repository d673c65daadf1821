//! Records to NATS JetStream, by the binary: what messages hold, refusals, outages, kills, graceful shutdowns.
//!
//! What is stored is read with a client of the test's own.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walrelay_dev::brokers::{Broker, JetStream, Kind, Stored, shared};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::run_dir::free_port;

use crate::elsewhere::{self, insert, killed_in_turns, lane};
use crate::lane::{LONG, Lane, ended, wait_events, wait_log};

/// A client of the test's own, as nobody.
pub(crate) fn client(broker: &Broker) -> JetStream {
    broker.jetstream(&Value::Null).unwrap()
}

/// A lane with a stream of its name that takes its subjects.
pub(crate) fn with_stream(broker: &Broker, more: &Value) -> Lane {
    let lane = lane();
    let subjects = format!("{}.>", lane.name);
    client(broker).create_stream(&lane.name, &[&subjects], more).unwrap();
    lane
}

pub(crate) fn start(lane: &Lane, broker: &Broker, more: &[&str]) -> Relay {
    elsewhere::start(lane, &broker.url(), more)
}

/// What the lane's stream holds for a route.
pub(crate) fn messages(broker: &Broker, lane: &Lane, route: &str) -> Vec<Stored> {
    let stored = client(broker).messages(&lane.name).unwrap();
    stored.into_iter().filter(|message| message.subject == lane.topic(route)).collect()
}

/// A message's headers, which have no order.
pub(crate) fn by_name(message: &Stored) -> Vec<(String, String)> {
    sorted(message.headers.clone())
}

pub(crate) fn sorted(mut headers: Vec<(String, String)>) -> Vec<(String, String)> {
    headers.sort();
    headers
}

pub(crate) fn ids(broker: &Broker, lane: &Lane) -> Vec<String> {
    let id = |message: &Stored| message.header("id").unwrap().to_owned();
    messages(broker, lane, "order").iter().map(id).collect()
}

/// As [`elsewhere::assert_complete`].
#[track_caller]
fn assert_complete(broker: &Broker, lane: &Lane, last: u32) -> usize {
    elsewhere::assert_complete(&ids(broker, lane), last)
}

fn wait_count(broker: &Broker, lane: &Lane, more_than: u64) {
    wait_until(LONG, "messages to arrive", || Ok(client(broker).count(&lane.name)? > more_than)).unwrap();
}

#[test]
fn a_message_holds_id_key_headers_and_value() {
    let broker = shared(Kind::Nats).unwrap();
    let lane = with_stream(broker, &json!({}));
    lane.sql("INSERT INTO outbox VALUES ('a', 'order', 'k', 'Placed', '{\"total\": 1.50}'), ('b', 'order', NULL, NULL, NULL)");
    let _relay = start(&lane, broker, &["--header", "Nats-Rollup=aggregatetype"]);
    lane.wait_confirmed();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let found = messages(broker, &lane, "order");
    let counted = |id: &str| [pair("Nats-Msg-Id", &format!("{}:{id}", lane.topic("order"))), pair("id", id)];
    let said = [pair("key", "k"), pair("eventType", "Placed"), pair("header-Nats-Rollup", "order")];
    let whole = [counted("a").as_slice(), &said].concat();
    assert_eq!((by_name(&found[0]), found[0].data.as_slice()), (sorted(whole), &b"{\"total\": 1.50}"[..]));
    let bare = [counted("b").as_slice(), &[pair("header-Nats-Rollup", "order")]].concat();
    assert_eq!((by_name(&found[1]), found[1].data.as_slice(), found.len()), (sorted(bare), &b""[..], 2));
}

#[test]
fn a_cloud_events_attributes_are_headers_percent_encoded_or_the_value_is_the_event() {
    let broker = shared(Kind::Nats).unwrap();
    let row = "INSERT INTO outbox VALUES ('a', 'order', 'k 1', 'Größe', '{\"total\": 1.50}')";
    let of = |mode: &str| {
        let lane = with_stream(broker, &json!({}));
        lane.sql(row);
        let _relay = start(&lane, broker, &["--cloudevents", mode, "--cloudevents-source", "/shop"]);
        lane.wait_confirmed();
        messages(broker, &lane, "order").remove(0)
    };
    let binary = of("binary");
    let attributes =
        [("specversion", "1.0"), ("id", "a"), ("source", "/shop"), ("subject", "k%201"), ("type", "Gr%C3%B6%C3%9Fe")];
    for (name, value) in attributes {
        assert_eq!(binary.header(&format!("ce-{name}")), Some(value), "{name}");
    }
    assert!(binary.header("ce-time").is_some_and(|time| time.ends_with('Z')));
    assert_eq!(
        (binary.header("content-type"), binary.data.as_slice()),
        (Some("application/json"), &b"{\"total\": 1.50}"[..])
    );
    let structured = of("structured");
    assert_eq!(structured.header("content-type"), Some("application/cloudevents+json; charset=UTF-8"));
    let event: Value = serde_json::from_slice(&structured.data).unwrap();
    assert_eq!(
        (&event["type"], &event["subject"], &event["data"]["total"]),
        (&"Größe".into(), &"k 1".into(), &1.5.into())
    );
}

#[test]
fn a_graceful_shutdown_repeats_nothing() {
    let broker = shared(Kind::Nats).unwrap();
    // What is stored twice is seen: nothing is dropped for its id.
    let lane = with_stream(broker, &json!({ "duplicate_window": 100_000_000 }));
    let mut writer = lane.connect();
    insert(&mut writer, 1, 700);
    let mut relay = start(&lane, broker, &[]);
    wait_count(broker, &lane, 0);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    insert(&mut writer, 701, 800);
    relay.start_again().unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(broker, &lane, 800), 0);
}

#[test]
fn a_row_with_the_id_of_another_one_is_counted_as_lost_and_a_repeat_is_not() {
    let broker = shared(Kind::Nats).unwrap();
    let lane = with_stream(broker, &json!({}));
    let row = |id: &str| format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '{{}}')");
    // Nobody can say that these two were not sent by another relay.
    lane.sql("ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_pkey");
    lane.sql(&row("a"));
    lane.sql(&row("a"));
    let mut relay = start(&lane, broker, &[]);
    lane.wait_confirmed();
    assert!(relay.metric("walrelay_bad_rows_total").unwrap() < 0.5, "{}", relay.log());
    lane.sql(&row("b"));
    lane.sql(&row("b"));
    lane.sql(&row("c"));
    lane.wait_confirmed();
    assert_eq!(ids(broker, &lane), ["a", "b", "c"]);
    assert_eq!(relay.metric("walrelay_bad_rows_total").unwrap().to_string(), "1");
    assert!(relay.get("/metrics").unwrap().body.contains("reason=\"duplicate\"} 1\n"));
    let log = relay.log();
    assert!(log.lines().any(|line| line.contains("row not published") && line.contains("\"id\":\"b\"")), "{log}");
    // What is sent again after a kill repeats itself.
    let (first, last) = (1, 600);
    insert(&mut lane.connect(), first, last);
    wait_count(broker, &lane, 100);
    relay.kill9().unwrap();
    relay.start_again().unwrap();
    lane.wait_confirmed();
    assert!(relay.metric("walrelay_bad_rows_total").unwrap() < 0.5, "{}", relay.log());
}

#[test]
fn a_subject_that_no_stream_takes_waits_for_one_and_other_subjects_do_not() {
    let (lane, broker) = (lane(), shared(Kind::Nats).unwrap());
    let others = format!("{}_others", lane.name);
    client(broker).create_stream(&others, &[&lane.topic("other")], &json!({})).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', 'order', 'k', 't', '{}'), ('3', 'other', 'k', 't', '{}')");
    let relay = start(&lane, broker, &[]);
    wait_log(&relay, &format!("no stream of NATS takes subject {}", lane.topic("order")));
    assert_eq!(client(broker).count(&others).unwrap(), 1);
    let command = elsewhere::command_of(&relay, "nats stream add ");
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let ["nats", "stream", "add", name, "--subjects", subject, "--storage", storage, "--defaults"] = words[..] else {
        panic!("{words:?}");
    };
    client(broker).create_stream(name, &[subject], &json!({ "storage": storage })).unwrap();
    lane.wait_confirmed();
    assert_eq!(client(broker).count(name).unwrap(), 2);
    assert_eq!(client(broker).count(&others).unwrap(), 1);
}

/// Three servers of one cluster.
fn cluster() -> Vec<Broker> {
    let ports: Vec<u16> = (0..3).map(|_| free_port().unwrap()).collect();
    let routes = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect::<Vec<_>>().join(", ");
    let start = |(number, port): (usize, &u16)| {
        let name = format!("server_name: n{number}");
        let cluster = format!("cluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}");
        Broker::start(Kind::Nats, &[&name, &cluster]).unwrap()
    };
    ports.iter().enumerate().map(start).collect()
}

#[test]
#[ignore = "slow"]
fn a_stream_whose_only_server_is_down_is_waited_for_and_no_row_is_bad_for_it() {
    let (lane, mut servers) = (lane(), cluster());
    let subjects = format!("{}.>", lane.name);
    let created = || Ok(client(&servers[0]).create_stream(&lane.name, &[&subjects], &json!({})).is_ok());
    wait_until(LONG, "the cluster to have a leader", created).unwrap();
    let info = client(&servers[0]).api(&format!("STREAM.INFO.{}", lane.name), &Value::Null).unwrap();
    let leader = info["cluster"]["leader"].as_str().unwrap();
    let home: usize = leader.strip_prefix('n').unwrap().parse().unwrap();
    let other = (home + 1) % 3;
    // Without the right to ask, the server's word would count.
    let relay = start(&lane, &servers[other], &["--on-bad-row=skip"]);
    let mut writer = lane.connect();
    insert(&mut writer, 1, 20);
    lane.wait_confirmed();
    servers[home].kill().unwrap();
    insert(&mut writer, 21, 40);
    wait_log(&relay, "it may be without a leader");
    // Longer than a subject without a stream is waited for.
    let until = Instant::now() + Duration::from_secs(40);
    while Instant::now() < until {
        assert!(!relay.log().contains("row not published"), "{}", relay.log());
        std::thread::sleep(Duration::from_millis(500));
    }
    servers[home].start_again().unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(&servers[other], &lane, 40), 0);
}

#[test]
#[ignore = "slow"]
fn a_stream_of_another_name_than_asked_for_takes_nothing() {
    let broker = shared(Kind::Nats).unwrap();
    let lane = with_stream(broker, &json!({}));
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let mut relay = start(&lane, broker, &["-X", "stream=another"]);
    wait_log(&relay, "(10060)");
    assert_eq!(client(broker).count(&lane.name).unwrap(), 0);
    relay.terminate(LONG).unwrap();
    let _right = start(&lane, broker, &["-X", &format!("stream={}", lane.name)]);
    lane.wait_confirmed();
    assert_eq!(ids(broker, &lane), ["1"]);
}

#[test]
fn a_stream_that_is_full_is_waited_for_and_another_one_is_not() {
    let broker = shared(Kind::Nats).unwrap();
    let lane = lane();
    let others = format!("{}_others", lane.name);
    client(broker).create_stream(&others, &[&lane.topic("other")], &json!({})).unwrap();
    let limits = json!({ "max_msgs": 5, "discard": "new", "retention": "limits" });
    client(broker).create_stream(&lane.name, &[&lane.topic("order")], &limits).unwrap();
    let mut writer = lane.connect();
    insert(&mut writer, 1, 20);
    let relay = start(&lane, broker, &[]);
    wait_log(&relay, "(10077)");
    assert_eq!(client(broker).count(&lane.name).unwrap(), 5);
    lane.sql("INSERT INTO outbox VALUES ('other', 'other', 'k', 't', '{}')");
    wait_until(LONG, "the other stream's row", || Ok(client(broker).count(&others)? == 1)).unwrap();
    client(broker).update_stream(&lane.name, &json!({ "max_msgs": -1 })).unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(broker, &lane, 20), 0);
    drop(relay);
}

#[test]
fn an_account_that_is_full_is_waited_for_and_no_row_is_bad_for_it() {
    let account = "accounts { app { jetstream { max_file: 64KB }, users = [{ user: app, password: secret }] } }";
    let broker = Broker::start(Kind::Nats, &[account]).unwrap();
    let mut client = broker.jetstream(&json!({ "user": "app", "pass": "secret" })).unwrap();
    let lane = lane();
    let filler = format!("{}_filler", lane.name);
    for (stream, route) in [(&filler, "filler"), (&lane.name, "order")] {
        client.create_stream(stream, &[&lane.topic(route)], &json!({})).unwrap();
    }
    let url = broker.url().replace("://", "://app:secret@");
    let relay = elsewhere::start(&lane, &url, &["--on-bad-row=skip"]);
    lane.sql("INSERT INTO outbox VALUES ('filler', 'filler', 'k', 't', to_jsonb(repeat('x', 60000)))");
    lane.wait_confirmed();
    insert(&mut lane.connect(), 1, 100);
    wait_log(&relay, "(10002)");
    client.api(&format!("STREAM.DELETE.{filler}"), &Value::Null).unwrap();
    lane.wait_confirmed();
    assert_eq!(client.count(&lane.name).unwrap(), 100);
}

#[test]
#[ignore = "slow"]
fn a_server_that_is_unavailable_or_hangs_is_waited_for() {
    let mut broker = Broker::start(Kind::Nats, &[]).unwrap();
    let lane = with_stream(&broker, &json!({}));
    let mut writer = lane.connect();
    let relay = start(&lane, &broker, &["--disconnect-after=2s"]);
    insert(&mut writer, 1, 20);
    lane.wait_confirmed();
    broker.stop().unwrap();
    insert(&mut writer, 21, 40);
    wait_log(&relay, "cannot be reached");
    broker.start_again().unwrap();
    lane.wait_confirmed();
    broker.suspend().unwrap();
    insert(&mut writer, 41, 60);
    let told = |text: &str| Ok(relay.status()?["last_error"].as_str().is_some_and(|error| error.contains(text)));
    wait_until(LONG, "a message that is not acknowledged", || told("has not acknowledged a message")).unwrap();
    wait_until(LONG, "a server that does not answer", || told("cannot be reached")).unwrap();
    broker.resume().unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(&broker, &lane, 60), 0);
}

#[test]
fn kills_of_relay_and_server_lose_nothing_swap_nothing_and_repeats_are_dropped() {
    let mut broker = Broker::start(Kind::Nats, &[]).unwrap();
    let lane = with_stream(&broker, &json!({}));
    let mut relay = start(&lane, &broker, &[]);
    let last = killed_in_turns(&lane, &mut relay, &mut broker, 8, |broker| client(broker).count(&lane.name));
    assert_eq!(assert_complete(&broker, &lane, last), 0);
}

#[test]
#[ignore = "slow"]
fn in_batches_kills_lose_nothing_and_swap_nothing_and_a_refused_row_is_found() {
    let mut broker = Broker::start(Kind::Nats, &[]).unwrap();
    let lane = with_stream(&broker, &json!({ "allow_atomic": true, "max_msg_size": 4000 }));
    let batches = ["-X", &format!("stream={}", lane.name), "-X", "atomic=true", "--on-bad-row=skip"];
    let mut writer = lane.connect();
    insert(&mut writer, 1, 1000);
    writer.batch_execute("INSERT INTO outbox SELECT 'large', 'order', 'k1', 't', to_jsonb(repeat('x', 5000))").unwrap();
    insert(&mut writer, 1001, 2000);
    let mut relay = start(&lane, &broker, &batches);
    wait_count(&broker, &lane, 100);
    relay.kill9().unwrap();
    relay.start_again().unwrap();
    wait_count(&broker, &lane, 500);
    broker.kill().unwrap();
    broker.start_again().unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(&broker, &lane, 2000), 0);
    let stored = client(&broker).messages(&lane.name).unwrap();
    assert!(stored.iter().any(|message| message.header("Nats-Batch-Sequence").is_some()), "no batch was sent");
}

/// Ids that two subjects share in one stream.
#[test]
fn rows_of_two_subjects_with_one_id_are_both_stored_unless_the_id_alone_counts() {
    let broker = shared(Kind::Nats).unwrap();
    let lane = with_stream(broker, &json!({}));
    lane.sql(
        "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; \
              INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('1', 'other', 'k', 't', '{}')",
    );
    let subjects = || -> Vec<String> {
        client(broker).messages(&lane.name).unwrap().into_iter().map(|message| message.subject).collect()
    };
    let mut relay = start(&lane, broker, &[]);
    wait_events(&relay, 2);
    lane.wait_confirmed();
    assert_eq!(subjects(), [lane.topic("order"), lane.topic("other")]);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let relay = start(&lane, broker, &["-X", "msg-id=id"]);
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '{}'), ('2', 'other', 'k', 't', '{}')");
    wait_events(&relay, 2);
    lane.wait_confirmed();
    assert_eq!(subjects()[2..], [lane.topic("order")], "the second counts as a repeat");
}

#[test]
fn check_names_what_is_wrong_with_the_server_and_its_streams() {
    let broker = Broker::start(Kind::Nats, &["max_payload: 4KB"]).unwrap();
    let lane = lane();
    let check = |more: &[&str]| elsewhere::check(&lane, &broker.url(), more);
    let found = check(&["--topic", "always.the.same"]);
    assert!(found.contains("no stream takes subject always.the.same"), "{found}");
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let found = check(&[]);
    assert!(
        found.contains("no stream takes subject")
            && found.contains(&format!("--subjects {} --storage", lane.topic("order"))),
        "{found}"
    );
    let (name, topic) = (lane.name.as_str(), lane.topic("order"));
    client(&broker).create_stream(name, &[&topic], &json!({ "storage": "memory" })).unwrap();
    let found = check(&["-X", "stream=another"]);
    assert!(found.contains("is kept in memory") && found.contains("drops repeats within 120 s"), "{found}");
    assert!(found.contains("and -X stream asks for another"), "{found}");
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', to_jsonb(repeat('x', 5000)))");
    let found = check(&[]);
    assert!(found.contains("max_payload is 4096 bytes"), "{found}");
    let without =
        Broker::start(Kind::Nats, &["accounts { app { users = [{ user: app, password: secret }] } }"]).unwrap();
    let to = without.url().replace("://", "://app:secret@");
    let found = check(&["--to", &to]);
    assert!(found.contains("JetStream is not there") && !found.contains("secret@"), "{found}");
}

#[test]
fn a_refused_log_in_and_what_nats_does_not_have_end_the_start() {
    let (lane, broker) = (lane(), shared(Kind::Nats).unwrap());
    let secured = Broker::start(Kind::Nats, &["authorization { user: app, password: secret }"]).unwrap();
    let url = secured.url().replace("://", "://app:hush@");
    let (code, log) = ended(&mut start(&lane, broker, &["--to", &url]));
    assert!(code == 2 && log.contains("Authorization Violation") && !log.contains("hush"), "{log}");
    for more in [
        &["--delivery", "exactly-once"][..],
        &["--tombstone-on-empty-payload"],
        &["-X", "streem=a"],
        &["-X", "stream=a.b"],
        &["--dead-letter-topic", "dead letters"],
    ] {
        let (code, log) = ended(&mut start(&lane, broker, more));
        assert_eq!(code, 64, "{log}");
    }
}

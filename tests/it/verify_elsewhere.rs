//! `walrelay verify` with NATS and Redis: no alarm through kills, faults are found, and what is gone is not judged. Queues cannot be read.

use serde_json::{Value, json};
use walrelay_dev::brokers::{Broker, Kind, Reply, shared};
use walrelay_dev::relay::{self, Relay};

use crate::elsewhere::{insert, lane, start};
use crate::lane::{LONG, Lane, binary, wait_log};
use crate::nats::{client, with_stream};
use crate::verify::{advance, counts, verdict};
use crate::verify_since::Advancing;

/// The arguments of `verify` for this place.
fn arguments(lane: &Lane, url: &str, more: &[&str]) -> Vec<String> {
    let topic = lane.topic("{route}");
    let place = ["verify", "--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let destination = ["--to", url, "--topic", &topic, "--json"];
    place.iter().chain(&destination).chain(more).map(|&argument| argument.to_owned()).collect()
}

#[track_caller]
fn comparing(lane: &Lane, url: &str, more: &[&str]) -> Relay {
    let arguments = arguments(lane, url, &[&["--follow=0"], more].concat());
    let comparison = Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    wait_log(&comparison, "comparing rows with records");
    comparison
}

/// Compares the rows of the table: the exit code, the report, what was said on stderr.
#[track_caller]
fn since(lane: &Lane, url: &str, more: &[&str]) -> (i32, Value, String) {
    let output = relay::run(&binary(), &arguments(lane, url, &[&["--since=1h"], more].concat())).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, log) = (text(output.stdout), text(output.stderr));
    let report = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{log}"));
    (output.status.code().unwrap(), report, log)
}

#[track_caller]
fn check(found: (i32, Value, String), code: i32, expected: &str) -> Value {
    let (was, report, log) = found;
    assert_eq!((was, counts(&report).as_str()), (code, expected), "{report:#}{log}");
    report
}

fn with_age(lane: &Lane) {
    lane.sql("ALTER TABLE outbox ADD created_at timestamptz DEFAULT now()");
}

/// A lane of each kind, and its server.
fn lanes() -> [(Lane, &'static Broker); 2] {
    let nats = shared(Kind::Nats).unwrap();
    [(with_stream(nats, &json!({})), nats), (lane(), shared(Kind::Valkey).unwrap())]
}

#[test]
fn a_busy_relay_that_is_killed_and_started_again_gives_no_alarm() {
    for (lane, broker) in lanes() {
        with_age(&lane);
        let url = broker.url();
        let mut client = lane.connect();
        insert(&mut client, 1, 50);
        // Headers may be null, and have an order that does not come back.
        let more = ["--header=second=type", "--header=first=aggregateid"];
        let mut relay = start(&lane, &url, &more);
        lane.wait_confirmed();
        let mut comparison = comparing(&lane, &url, &more);
        for round in 0..3 {
            insert(&mut client, 51 + round * 200, 250 + round * 200);
            relay.kill9().unwrap();
            relay.start_again().unwrap();
        }
        lane.sql("INSERT INTO outbox VALUES ('bare', 'other', NULL, NULL, NULL)");
        lane.wait_confirmed();
        let (code, report, log) = verdict(&mut comparison);
        let said = (code, &report["rows"], &report["right"]);
        assert_eq!(said, (0, &601.into(), &601.into()), "{url}: {report:#}{log}");
        let (code, report, log) = since(&lane, &url, &more);
        let said = (code, &report["rows"], &report["right"]);
        assert_eq!(said, (0, &651.into(), &651.into()), "{url}: {report:#}{log}");
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
}

#[test]
fn missing_and_altered_rows_are_found_and_named() {
    for (lane, broker) in lanes() {
        with_age(&lane);
        let url = broker.url();
        let mut relay = start(&lane, &url, &[]);
        lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
        lane.wait_confirmed();
        relay.terminate(LONG).unwrap();
        let mut comparison = comparing(&lane, &url, &[]);
        lane.sql("INSERT INTO outbox VALUES ('lost', 'order', 'k', 't', '2')");
        advance(&lane);
        // Its records have one header more.
        let other = start(&lane, &url, &["--header=more=type"]);
        lane.sql("INSERT INTO outbox VALUES ('3', 'order', 'k', 't', '3')");
        lane.wait_confirmed();
        drop(other);
        let (code, report, log) = verdict(&mut comparison);
        check((code, report.clone(), log), 2, "rows 2, missing 1, altered 1");
        let faults = report["faults"].as_array().unwrap();
        assert_eq!((&faults[0]["id"], &faults[1]["id"]), (&"lost".into(), &"3".into()), "{report:#}");
        assert_eq!(faults[1]["why"], "header more is too many", "{report:#}");
        assert!(faults[1]["offset"].as_i64() > Some(0), "{report:#}");
        let _advancing = Advancing::begin(&lane);
        let report = check(since(&lane, &url, &[]), 2, "rows 3, right 1, missing 1, altered 1");
        assert_eq!(report["faults"].as_array().unwrap().len(), 2, "{report:#}");
    }
}

#[test]
fn what_nats_deletes_is_not_judged() {
    let nats = shared(Kind::Nats).unwrap();
    let url = nats.url();
    // One message a subject: an older one of it is gone.
    let lane = with_stream(nats, &json!({ "max_msgs_per_subject": 1 }));
    with_age(&lane);
    let _relay = start(&lane, &url, &[]);
    let mut client = lane.connect();
    lane.sql("INSERT INTO outbox VALUES ('other', 'other', 'k', 't', '1')");
    insert(&mut client, 1, 20);
    lane.wait_confirmed();
    let report = check(since(&lane, &url, &[]), 1, "rows 21, right 2, not_judged 19");
    assert!(report["reasons"].to_string().contains("messages of its stream were deleted"), "{report:#}");

    // A message that is deleted from the front.
    let lane = with_stream(nats, &json!({ "max_msgs": 5 }));
    with_age(&lane);
    let _relay = start(&lane, &url, &[]);
    let mut client = lane.connect();
    insert(&mut client, 1, 20);
    lane.wait_confirmed();
    let report = check(since(&lane, &url, &[]), 1, "rows 20, right 5, not_judged 15");
    assert!(report["reasons"].to_string().contains("begins at offset 16"), "{report:#}");
}

#[test]
fn what_redis_trims_or_deletes_is_not_judged() {
    let redis = shared(Kind::Valkey).unwrap();
    let url = redis.url();
    let call = |words: &[&str]| redis.resp().unwrap().call(words).unwrap();
    let lane = lane();
    with_age(&lane);
    let relay = start(&lane, &url, &["-X", "maxlen=5", "-X", "approx=false"]);
    let mut client = lane.connect();
    insert(&mut client, 1, 20);
    lane.wait_confirmed();
    let report = check(since(&lane, &url, &[]), 1, "rows 20, right 5, not_judged 15");
    assert!(report["reasons"].to_string().contains("entries of it were trimmed"), "{report:#}");
    drop(relay);

    // In the window, by a consumer.
    let relay = start(&lane, &url, &[]);
    let mut comparison = comparing(&lane, &url, &["--wait=5s"]);
    comparison.signal(rustix::process::Signal::STOP).unwrap();
    insert(&mut client, 21, 23);
    lane.wait_confirmed();
    let found = call(&["XREVRANGE", &lane.topic("order"), "+", "-", "COUNT", "1"]);
    let Reply::Array(entries) = &found else { panic!("{found:?}") };
    let id = entries[0].items()[0].text();
    assert_eq!(call(&["XDEL", &lane.topic("order"), &id]).integer(), Some(1));
    comparison.signal(rustix::process::Signal::CONT).unwrap();
    let (code, report, log) = verdict(&mut comparison);
    let report = check((code, report, log), 1, "rows 3, right 2, not_judged 1");
    assert!(report["reasons"].to_string().contains("XDEL"), "{report:#}");
    drop(relay);
}

/// Compares 20 rows behind row `first`, of which only the last five records are left when the comparison goes on. `first`: 0 if there is no
/// row before. `inserted`: is called once their records are there.
#[track_caller]
fn check_deleted_meanwhile(lane: &Lane, url: &str, first: u32, inserted: &dyn Fn()) -> (i32, Value, String) {
    // The stream of the dead-letter topic is looked at from the beginning on: this is another one.
    let dead_letters = format!("--dead-letter-topic=dead.{}", lane.name);
    let mut comparison = comparing(lane, url, &["--wait=5s", &dead_letters]);
    if first > 0 {
        insert(&mut lane.connect(), first, first);
        lane.wait_confirmed();
    }
    comparison.signal(rustix::process::Signal::STOP).unwrap();
    insert(&mut lane.connect(), first + 1, first + 20);
    lane.wait_confirmed();
    inserted();
    comparison.signal(rustix::process::Signal::CONT).unwrap();
    verdict(&mut comparison)
}

/// Does it with a place that is new to the comparison, and with one that it knows.
#[track_caller]
fn deleted_meanwhile_is_not_judged(lane: &Lane, url: &str, reason: &str, inserted: &dyn Fn()) {
    let report = check(check_deleted_meanwhile(lane, url, 0, inserted), 1, "rows 20, right 5, not_judged 15");
    assert!(report["reasons"].to_string().contains(reason), "{report:#}");
    let (code, report, log) = check_deleted_meanwhile(lane, url, 100, inserted);
    // The first row's record may have been read in time.
    let expected = ["rows 21, right 5, not_judged 16", "rows 21, right 6, not_judged 15"];
    assert!(code == 1 && expected.contains(&counts(&report).as_str()), "{report:#}{log}");
    assert!(report["reasons"].to_string().contains(reason), "{report:#}");
}

#[test]
fn what_redis_trims_in_the_window_is_not_judged() {
    let url = shared(Kind::Valkey).unwrap().url();
    let lane = lane();
    let _relay = start(&lane, &url, &["-X", "maxlen=5", "-X", "approx=false"]);
    deleted_meanwhile_is_not_judged(&lane, &url, "entries of it were trimmed", &|| ());
}

#[test]
fn what_is_purged_from_nats_in_the_window_is_not_judged() {
    let nats = shared(Kind::Nats).unwrap();
    let url = nats.url();
    let lane = with_stream(nats, &json!({}));
    let _relay = start(&lane, &url, &[]);
    let purge = || drop(client(nats).api(&format!("STREAM.PURGE.{}", lane.name), &json!({ "keep": 5 })).unwrap());
    deleted_meanwhile_is_not_judged(&lane, &url, "messages of its stream were deleted before they were read", &purge);
}

/// Rows 1 to 10 come before `changed` is called, and rows 11 to 20 come behind it, while the comparison is held. These are not judged.
#[track_caller]
fn changed_in_the_window(lane: &Lane, url: &str, reason: &str, changed: &dyn Fn()) {
    let mut comparison = comparing(lane, url, &["--wait=5s"]);
    let mut client = lane.connect();
    insert(&mut client, 1, 10);
    lane.wait_confirmed();
    // Records of these rows that are not read by then are not judged either.
    comparison.signal(rustix::process::Signal::STOP).unwrap();
    changed();
    insert(&mut client, 11, 20);
    lane.wait_confirmed();
    comparison.signal(rustix::process::Signal::CONT).unwrap();
    let (code, report, log) = verdict(&mut comparison);
    let not_judged = report["not_judged"].as_u64().unwrap();
    let right = if not_judged < 20 { format!("right {}, ", 20 - not_judged) } else { String::new() };
    let report = check((code, report, log), 1, &format!("rows 20, {right}not_judged {not_judged}"));
    assert!(not_judged >= 10 && report["reasons"].to_string().contains(reason), "{report:#}");
}

#[test]
fn a_stream_that_is_created_again_in_the_window_is_not_read_further() {
    let nats = shared(Kind::Nats).unwrap();
    let url = nats.url();
    let lane = with_stream(nats, &json!({}));
    let _relay = start(&lane, &url, &[]);
    let again = || {
        let mut client = client(nats);
        client.api(&format!("STREAM.DELETE.{}", lane.name), &Value::Null).unwrap();
        client.create_stream(&lane.name, &[&format!("{}.>", lane.name)], &json!({})).unwrap();
    };
    changed_in_the_window(&lane, &url, "its stream was deleted and created again", &again);
}

#[test]
fn a_subject_that_moves_to_another_stream_in_the_window_is_not_read_there() {
    let nats = shared(Kind::Nats).unwrap();
    let url = nats.url();
    let lane = with_stream(nats, &json!({}));
    let _relay = start(&lane, &url, &[]);
    let moved = || {
        let mut client = client(nats);
        client.update_stream(&lane.name, &json!({ "subjects": [format!("{}.other", lane.name)] })).unwrap();
        client.create_stream(&format!("{}_2", lane.name), &[&lane.topic("order")], &json!({})).unwrap();
    };
    changed_in_the_window(&lane, &url, "it has moved to another stream", &moved);
}

#[test]
fn a_subject_that_no_stream_takes_is_not_said_to_be_deleted() {
    let nats = shared(Kind::Nats).unwrap();
    let url = nats.url();
    let lane = lane();
    let mut comparison = comparing(&lane, &url, &[]);
    lane.sql("INSERT INTO outbox VALUES ('lost', 'order', 'k', 't', '1')");
    advance(&lane);
    let report = check(verdict(&mut comparison), 1, "rows 1, not_judged 1");
    assert!(report["reasons"].to_string().contains("no stream takes it"), "{report:#}");
}

#[test]
fn more_subjects_than_are_asked_about_at_once_are_read() {
    let nats = shared(Kind::Nats).unwrap();
    let url = nats.url();
    let lane = with_stream(nats, &json!({}));
    with_age(&lane);
    let _relay = start(&lane, &url, &[]);
    let mut comparison = comparing(&lane, &url, &[]);
    lane.sql("INSERT INTO outbox SELECT 'r' || i, 'topic' || i, 'k', 't', '1' FROM generate_series(1, 1100) AS i");
    lane.wait_confirmed();
    check(verdict(&mut comparison), 0, "rows 1100, right 1100");
    check(since(&lane, &url, &[]), 0, "rows 1100, right 1100");
}

#[test]
fn records_that_are_too_many_bytes_for_one_reply_are_read() {
    for (lane, broker) in lanes() {
        with_age(&lane);
        let url = broker.url();
        let _relay = start(&lane, &url, &[]);
        let row =
            "SELECT i::text, 'order', 'k' || i % 7, 't', to_jsonb(repeat('x', 900000)) FROM generate_series(1, 80) i";
        lane.sql(&format!("INSERT INTO outbox {row}"));
        lane.wait_confirmed();
        check(since(&lane, &url, &[]), 0, "rows 80, right 80");
    }
}

#[test]
fn a_stream_is_known_from_before_the_window_however_many_there_are() {
    let nats = Broker::start(Kind::Nats, &[]).unwrap();
    let mut streams = client(&nats);
    // The server gives 1,024 names an answer, in their order.
    for number in 0..1030 {
        streams
            .create_stream(&format!("0{number}"), &[&format!("filler.{number}")], &json!({ "storage": "memory" }))
            .unwrap();
    }
    let lane = with_stream(&nats, &json!({}));
    let url = nats.url();
    let _relay = start(&lane, &url, &[]);
    let mut client = lane.connect();
    insert(&mut client, 1, 5);
    lane.wait_confirmed();
    let mut comparison = comparing(&lane, &url, &[]);
    insert(&mut client, 6, 10);
    lane.wait_confirmed();
    check(verdict(&mut comparison), 0, "rows 5, right 5");
}

#[test]
fn destinations_that_cannot_be_read_or_listed_are_refused() {
    let lane = lane();
    let refused = |url: &str, more: &[&str], text: &str| {
        let output = relay::run(&binary(), &arguments(&lane, url, more)).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(64) && said.contains(text), "{url}: {said}");
    };
    for (url, title) in [
        ("amqp://localhost", "RabbitMQ"),
        ("sqs://eu-central-1", "SQS"),
        ("sns://eu-central-1", "SNS"),
        ("stdout://", "standard output"),
    ] {
        refused(url, &[], &format!("the records of {title} cannot be read: "));
        refused(url, &["--since=1h"], "gives each message away once");
    }
    refused(&shared(Kind::Valkey).unwrap().url(), &["--exclusive"], "--exclusive is for Kafka");
}

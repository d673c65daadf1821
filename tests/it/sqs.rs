//! Records to SQS' queues, by the binary: what messages hold, bad rows, refusals, partial failures, throttling, outages, kills, clean
//! stops.
//!
//! The server is ElasticMQ; a gate before it does what the service does and ElasticMQ does not. What is stored is read with a client of
//! the test's own.

use std::time::Duration;

use walrelay_dev::brokers::{Broker, Kind, Queues, SqsMessage, shared};
use walrelay_dev::gate::{Failing, Gate};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::elsewhere::{self, assert_complete, insert, killed_in_turns, lane};
use crate::lane::{LONG, Lane, ended, hint, wait_log};

pub(crate) fn broker() -> &'static Broker {
    shared(Kind::ElasticMq).unwrap()
}

/// A lane's queue: a FIFO queue by its name.
fn queue(lane: &Lane, route: &str) -> String {
    format!("{}-{route}.fifo", lane.name)
}

/// A lane with the queue of its orders.
pub(crate) fn with_queue(queues: Queues) -> Lane {
    let lane = lane();
    queues.create(&queue(&lane, "order"), &[]).unwrap();
    lane
}

pub(crate) fn start(lane: &Lane, url: &str, more: &[&str]) -> Relay {
    let topic = queue(lane, "{route}");
    let dead = queue(lane, "dead");
    let fixed = ["--topic", &topic, "--dead-letter-topic", &dead];
    elsewhere::start(lane, url, &[&fixed, more].concat())
}

/// Takes out what is there.
fn messages(queues: Queues, lane: &Lane, route: &str) -> Vec<SqsMessage> {
    queues.drain(&queue(lane, route)).unwrap()
}

pub(crate) fn ids(queues: Queues, lane: &Lane, route: &str) -> Vec<String> {
    messages(queues, lane, route).iter().map(|message| message.attribute("id").to_owned()).collect()
}

#[test]
fn a_message_holds_payload_attributes_group_and_deduplication_id() {
    let lane = with_queue(broker().queues());
    lane.sql(
        "INSERT INTO outbox VALUES ('a', 'order', 'k', 'Placed', '{\"to\": \"ä\\n\", \"total\": 1.50}'),
                                   ('b', 'order', NULL, NULL, '{}'), ('c d', 'order', 'two words', 't', '[]')",
    );
    let _relay = start(&lane, &broker().url(), &["--header", "key=aggregatetype"]);
    lane.wait_confirmed();
    let mut found = messages(broker().queues(), &lane, "order");
    found.sort_by(|a, b| a.attribute("id").cmp(b.attribute("id")));
    let [whole, bare, odd] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(whole.body, "{\"to\": \"ä\\n\", \"total\": 1.50}");
    assert_eq!(
        ["id", "eventType", "key", "header.key"].map(|name| whole.attribute(name)),
        ["a", "Placed", "k", "order"]
    );
    assert_eq!((whole.group.as_str(), whole.deduplication_id.as_str()), ("k", "a"));
    assert_eq!((bare.group.as_str(), bare.attribute("key"), bare.attributes.len()), ("walrelay-no-key", "none", 2));
    assert!(odd.group.starts_with("sha256-") && odd.deduplication_id.starts_with("sha256-"), "{odd:?}");
    assert_eq!((odd.attribute("key"), odd.attribute("id")), ("two words", "c d"));
}

#[test]
#[ignore = "slow"]
fn keys_keep_their_order_one_message_of_a_group_at_a_time_and_a_graceful_shutdown_repeats_nothing() {
    let lane = with_queue(broker().queues());
    let gate = Gate::start(broker().port()).unwrap();
    gate.delay(Duration::from_millis(2));
    let mut client = lane.connect();
    insert(&mut client, 1, 700);
    let mut relay = start(&lane, &gate.url(), &[]);
    wait_until(LONG, "some batches", || Ok(gate.batches().0 > 20)).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    insert(&mut client, 701, 800);
    relay.start_again().unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(&ids(broker().queues(), &lane, "order"), 800), 0);
    assert_eq!(gate.overlaps(), 0, "messages of a group were under way together");
}

#[test]
#[ignore = "slow"]
fn several_batches_are_under_way_at_a_time_and_none_holds_two_messages_of_a_group() {
    let lane = with_queue(broker().queues());
    let gate = Gate::start(broker().port()).unwrap();
    gate.delay(Duration::from_millis(20));
    lane.sql(
        "INSERT INTO outbox SELECT n::text, 'order', 'k' || n % 100, 't', '{}' FROM generate_series(1, 1000) AS n",
    );
    let _relay = start(&lane, &gate.url(), &[]);
    lane.wait_confirmed();
    let (batches, at_once) = gate.batches();
    assert_eq!((gate.overlaps(), ids(broker().queues(), &lane, "order").len()), (0, 1000));
    assert!(at_once > 1 && batches < 1000, "{batches} batches, {at_once} at once");
}

#[test]
#[ignore = "slow"]
fn a_bad_row_stops_is_skipped_or_goes_to_the_dead_letter_queue() {
    let queues = broker().queues();
    // No queue, no body, no text, no attribute's name, too many attributes.
    let header = |names: u32| (0..names).map(|name| format!("\"h{name}\": \"x\"")).collect::<Vec<_>>().join(", ");
    let many = header(9);
    for (bad, with) in [
        ("NULL, 'k', 't', '{}', '{}'", "is null"),
        ("'order', 'k', 't', NULL, '{}'", "needs a body"),
        ("'order', 'k', 't', E'\\x1b', '{}'", "characters that a message cannot have"),
        ("'order', 'k', 't', '{}', '{\"a b\": \"x\"}'", "cannot be the name of an attribute"),
        (&format!("'order', 'k', 't', '{{}}', '{{{many}}}'"), "a message may have 10"),
    ] {
        let furnish = || {
            let lane = with_queue(queues);
            queues.create(&queue(&lane, "dead"), &[]).unwrap();
            lane.sql("ALTER TABLE outbox ALTER payload TYPE text, ADD headers jsonb");
            lane.sql(&format!(
                "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{{}}', '{{}}'), ('2', {bad}), ('3', 'order', 'k', 't', '{{}}', '{{}}')"
            ));
            lane
        };
        let stopped = furnish();
        let (code, log) = ended(&mut start(&stopped, &broker().url(), &[]));
        assert!(code == 2 && hint(&log).contains("id 2 ") && log.contains(with), "{with}: {log}");
        assert_eq!(ids(queues, &stopped, "order"), ["1"], "{with}");
        let skipped = furnish();
        let _relay = start(&skipped, &broker().url(), &["--on-bad-row", "skip"]);
        skipped.wait_confirmed();
        assert_eq!(ids(queues, &skipped, "order"), ["1", "3"], "{with}");
        let dead_lettered = furnish();
        let _relay = start(&dead_lettered, &broker().url(), &["--on-bad-row", "dead-letter"]);
        dead_lettered.wait_confirmed();
        assert_eq!(ids(queues, &dead_lettered, "order"), ["1", "3"], "{with}");
        let dead_letters = messages(queues, &dead_lettered, "dead");
        let said = dead_letters.iter().map(|dead_letter| dead_letter.attribute("id")).collect::<Vec<_>>();
        assert_eq!((said, dead_letters[0].attribute("walrelay-table")), (vec!["2"], "public.outbox"), "{with}");
    }
}

#[test]
fn bytes_are_base64_where_that_is_asked_for_and_attributes_are_those_that_are_named() {
    let lane = with_queue(broker().queues());
    lane.sql("ALTER TABLE outbox ALTER payload TYPE bytea USING 'x', ADD headers jsonb");
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '\\x00ff', '{\"a\": \"1\", \"b\": \"2\"}')");
    let _relay = start(&lane, &broker().url(), &["-X", "body=base64", "-X", "attributes=id,b"]);
    lane.wait_confirmed();
    let found = messages(broker().queues(), &lane, "order");
    assert_eq!((found[0].body.as_str(), found[0].attributes.len(), found[0].attribute("b")), ("AP8=", 2, "2"));
}

#[test]
fn a_row_above_the_queues_limit_stops_is_skipped_or_goes_to_dead_letters_without_its_payload() {
    let queues = broker().queues();
    // The message of 2 MiB is above what any queue takes.
    let furnish = || {
        let lane = with_queue(queues);
        queues.create(&queue(&lane, "dead"), &[]).unwrap();
        lane.sql("ALTER TABLE outbox ALTER payload TYPE text");
        lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', 'order', 'k', 't', repeat('x', 2000000)), ('3', 'order', 'k', 't', '{}')");
        lane
    };
    let stopped = furnish();
    let (code, log) = ended(&mut start(&stopped, &broker().url(), &[]));
    assert!(code == 2 && log.contains("1048576 are allowed"), "{log}");
    let skipped = furnish();
    let _relay = start(&skipped, &broker().url(), &["--on-bad-row", "skip"]);
    skipped.wait_confirmed();
    assert_eq!(ids(queues, &skipped, "order"), ["1", "3"]);
    let dead_lettered = furnish();
    let _relay = start(&dead_lettered, &broker().url(), &["--on-bad-row", "dead-letter"]);
    dead_lettered.wait_confirmed();
    assert_eq!(ids(queues, &dead_lettered, "order"), ["1", "3"]);
    let dead_letters = messages(queues, &dead_lettered, "dead");
    assert_eq!(
        (dead_letters[0].body.as_str(), dead_letters[0].attribute("walrelay-payload-bytes")),
        ("null", "2000000")
    );
}

#[test]
fn batches_keep_below_the_limit_of_all_their_messages() {
    let lane = with_queue(broker().queues());
    lane.sql("ALTER TABLE outbox ALTER payload TYPE text");
    lane.sql("INSERT INTO outbox SELECT n::text, 'order', 'k' || n, 't', repeat('x', 300000) FROM generate_series(1, 20) AS n");
    let _relay = start(&lane, &broker().url(), &[]);
    lane.wait_confirmed();
    assert_eq!(ids(broker().queues(), &lane, "order").len(), 20);
}

#[test]
fn each_message_of_a_batch_is_judged_by_its_own_result() {
    let queues = broker().queues();
    let lane = with_queue(queues);
    queues.create(&queue(&lane, "dead"), &[]).unwrap();
    let gate = Gate::start(broker().port()).unwrap();
    // One is refused for good, and some a few times for the service's own reasons.
    gate.fail(Failing { body: "guilty".to_owned(), code: "InvalidMessageContents", by_sender: true, times: 1 });
    gate.fail(Failing { body: "unlucky".to_owned(), code: "InternalError", by_sender: false, times: 30 });
    lane.sql("ALTER TABLE outbox ALTER payload TYPE text");
    lane.sql(
        "INSERT INTO outbox SELECT n::text, 'order', 'k' || n % 7, 't',
                CASE WHEN n = 50 THEN 'guilty' WHEN n % 10 = 3 THEN 'unlucky' ELSE 'fine' END
           FROM generate_series(1, 200) AS n",
    );
    let _relay = start(&lane, &gate.url(), &["--on-bad-row", "dead-letter"]);
    lane.wait_confirmed();
    let mut stored = ids(queues, &lane, "order");
    assert!(!stored.contains(&"50".to_owned()));
    let dead_letters = messages(queues, &lane, "dead");
    assert_eq!(
        (dead_letters.len(), dead_letters[0].body.as_str(), dead_letters[0].attribute("id")),
        (1, "guilty", "50")
    );
    assert!(dead_letters[0].attribute("walrelay-error").contains("InvalidMessageContents"), "{dead_letters:?}");
    // In its place, so that the order of the others of its key can be checked.
    let place = stored.iter().position(|id| *id == "57").unwrap();
    stored.insert(place, "50".to_owned());
    assert_eq!(assert_complete(&stored, 200), 0);
}

#[test]
#[ignore = "slow"]
fn a_queue_that_is_missing_or_forbidden_waits_and_other_queues_do_not() {
    let queues = broker().queues();
    let lane = with_queue(queues);
    let gate = Gate::start(broker().port()).unwrap();
    gate.refuse(&queue(&lane, "order"), "com.amazon.coral.service#AccessDeniedException");
    queues.create(&queue(&lane, "other"), &[]).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('3', 'other', 'k', 't', '{}')");
    let relay = start(&lane, &gate.url(), &[]);
    wait_log(&relay, "AccessDenied: by the gate");
    wait_until(LONG, "the other queue's row", || Ok(queues.count(&queue(&lane, "other"))? == 1)).unwrap();
    gate.allow(&queue(&lane, "order"));
    lane.wait_confirmed();
    lane.sql("INSERT INTO outbox VALUES ('2', 'missing', 'k', 't', '{}')");
    let command = elsewhere::command_of(&relay, "aws sqs create-queue ");
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let ["aws", "sqs", "create-queue", "--queue-name", name, "--attributes", "FifoQueue=true"] = words[..] else {
        panic!("{words:?}");
    };
    queues.create(name, &[]).unwrap();
    lane.wait_confirmed();
    assert_eq!(
        (ids(queues, &lane, "order"), ids(queues, &lane, "missing")),
        (vec!["1".to_owned()], vec!["2".to_owned()])
    );
}

#[test]
#[ignore = "slow"]
fn throttling_a_server_that_is_unavailable_and_one_that_hangs_are_waited_out() {
    let mut broker = Broker::start(Kind::ElasticMq, &[]).unwrap();
    let lane = with_queue(broker.queues());
    let gate = Gate::start(broker.port()).unwrap();
    let mut client = lane.connect();
    let relay = start(&lane, &gate.url(), &["--disconnect-after=2s", "-X", "timeout=2s"]);
    insert(&mut client, 1, 20);
    lane.wait_confirmed();
    gate.throttle(Some((400, "ThrottlingException")));
    insert(&mut client, 21, 40);
    wait_log(&relay, "Throttling: by the gate");
    gate.throttle(Some((503, "ServiceUnavailable")));
    let before = gate.batches().0;
    wait_until(LONG, "more attempts", || Ok(gate.batches().0 > before + 1)).unwrap();
    gate.throttle(None);
    lane.wait_confirmed();
    broker.stop().unwrap();
    insert(&mut client, 41, 60);
    wait_log(&relay, "cannot be reached");
    broker.start_again().unwrap();
    lane.wait_confirmed();
    broker.suspend().unwrap();
    insert(&mut client, 61, 80);
    wait_log(&relay, "no answer within 2 s");
    broker.resume().unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(&ids(broker.queues(), &lane, "order"), 80), 0);
}

#[test]
fn kills_of_relay_and_server_lose_nothing_and_swap_no_rows_of_a_key() {
    let mut broker = Broker::start(Kind::ElasticMq, &[]).unwrap();
    let lane = with_queue(broker.queues());
    let mut relay = start(&lane, &broker.url(), &[]);
    let count = |broker: &Broker| broker.queues().count(&queue(&lane, "order"));
    let last = killed_in_turns(&lane, &mut relay, &mut broker, 4, count);
    assert_complete(&ids(broker.queues(), &lane, "order"), last);
}

#[test]
#[ignore = "slow"]
fn a_standard_queue_takes_every_row_by_name_or_url_and_says_that_it_has_no_order() {
    let (lane, queues) = (lane(), broker().queues());
    queues.create(&format!("{}-order", lane.name), &[]).unwrap();
    let mut client = lane.connect();
    insert(&mut client, 1, 100);
    lane.sql("INSERT INTO outbox SELECT n::text, 'order', NULL, 't', '{}' FROM generate_series(101, 200) AS n");
    let url = format!("http://127.0.0.1:{}/000000000000/{}-{{route}}", broker().port(), lane.name);
    let relay = elsewhere::start(&lane, &broker().url(), &["--topic", &url]);
    wait_log(&relay, "standard queues and topics keep no order");
    lane.wait_confirmed();
    drop(relay);
    insert(&mut client, 201, 300);
    let topic = format!("{}-{{route}}", lane.name);
    let _by_name = elsewhere::start(&lane, &broker().url(), &["--topic", &topic]);
    lane.wait_confirmed();
    let found = queues.drain(&format!("{}-order", lane.name)).unwrap();
    let mut ids: Vec<u32> = found.iter().map(|message| message.attribute("id").parse().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids, (1..=300).collect::<Vec<_>>());
}

#[test]
fn check_names_what_is_wrong_with_the_service_and_its_queues() {
    let (lane, queues) = (with_queue(broker().queues()), broker().queues());
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let gate = Gate::start(broker().port()).unwrap();
    let topic = queue(&lane, "{route}");
    let found = elsewhere::check(&lane, &gate.url(), &["--topic", &topic]);
    assert!(found.contains("is a FIFO queue") && found.contains("answers"), "{found}");
    let standard = format!("{}-{{route}}", lane.name);
    let missing = elsewhere::check(&lane, &gate.url(), &["--topic", &standard]);
    assert!(missing.contains("aws sqs create-queue --queue-name"), "{missing}");
    queues.create(&format!("{}-order", lane.name), &[]).unwrap();
    let plain = elsewhere::check(&lane, &gate.url(), &["--topic", &standard]);
    assert!(plain.contains("is a standard queue") && plain.contains("FifoQueue=true"), "{plain}");
    gate.refuse(&queue(&lane, "order"), "AccessDeniedException");
    let forbidden = elsewhere::check(&lane, &gate.url(), &["--topic", &topic]);
    assert!(forbidden.contains("AccessDenied") && forbidden.contains("allow sqs:SendMessage"), "{forbidden}");
    assert_eq!(gate.batches().0, 3, "one batch without messages for each queue that was there");
    assert_eq!(
        (queues.count(&queue(&lane, "order")).unwrap(), queues.count(&format!("{}-order", lane.name)).unwrap()),
        (0, 0)
    );
}

#[test]
fn refused_keys_and_what_sqs_does_not_have_end_the_start() {
    let lane = with_queue(broker().queues());
    let gate = Gate::start(broker().port()).unwrap();
    gate.refuse_keys();
    let url = gate.url().replace("test:test", "AKID:hush");
    let (code, log) = ended(&mut start(&lane, &url, &[]));
    assert!(code == 2 && log.contains("UnrecognizedClient") && !log.contains("hush"), "{log}");
    assert!(hint(&log).contains("AWS_ACCESS_KEY_ID"), "{log}");
    for more in [
        &["--delivery", "exactly-once"][..],
        &["-X", "atributes=id"],
        &["-X", "body=hex"],
        &["-X", "timeout=0"],
        &["--topic", "a b"],
    ] {
        let (code, log) = ended(&mut start(&lane, &broker().url(), more));
        assert_eq!(code, 64, "{log}");
    }
}

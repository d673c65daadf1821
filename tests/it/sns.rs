//! Records to SNS' topics, by the binary: what messages hold, bad rows, refusals, partial failures, kills, graceful shutdowns.
//!
//! The topics are a gate's own, in the service's protocol.

use walrelay_dev::gate::{Failing, Gate};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::elsewhere::{self, assert_complete, insert, lane};
use crate::lane::{LONG, Lane, ended, hint, wait_log};

/// A topic's ARN, of a FIFO topic.
fn topic(route: &str) -> String {
    format!("arn:aws:sns:region-1:123456789012:{route}.fifo")
}

/// Topics, of which that of orders is there.
pub(crate) fn topics() -> Gate {
    let gate = Gate::of_topics().unwrap();
    gate.create_topic(&topic("order"));
    gate
}

pub(crate) fn start(lane: &Lane, gate: &Gate, more: &[&str]) -> Relay {
    let (topic, dead) = (topic("{route}"), topic("dead"));
    elsewhere::start(lane, &gate.url(), &[&["--topic", &topic, "--dead-letter-topic", &dead], more].concat())
}

pub(crate) fn ids(gate: &Gate, route: &str) -> Vec<String> {
    gate.published(&topic(route)).iter().map(|message| message.attribute("id").to_owned()).collect()
}

#[test]
fn a_message_holds_payload_attributes_group_and_deduplication_id() {
    let (lane, gate) = (lane(), topics());
    lane.sql("INSERT INTO outbox VALUES ('a', 'order', 'k&1', 'Placed', '{\"to\": \"ä+ =&\"}')");
    let _relay = start(&lane, &gate, &[]);
    lane.wait_confirmed();
    let found = gate.published(&topic("order"));
    assert_eq!(found[0].body, "{\"to\": \"ä+ =&\"}");
    assert_eq!(["id", "eventType", "key"].map(|name| found[0].attribute(name)), ["a", "Placed", "k&1"]);
    assert_eq!((found[0].group.as_str(), found[0].deduplication_id.as_str()), ("k&1", "a"));
}

#[test]
fn keys_keep_their_order_through_kills_partial_failures_and_lost_connections_and_repeats_are_dropped() {
    let (lane, gate) = (lane(), topics());
    let mut relay = start(&lane, &gate, &[]);
    let mut writer = lane.connect();
    for round in 0..6 {
        gate.fail(Failing { body: "{}".to_owned(), code: "InternalError", by_sender: false, times: 7 });
        insert(&mut writer, round * 100 + 1, round * 100 + 100);
        wait_until(LONG, "messages to arrive", || Ok(ids(&gate, "order").len() > round as usize * 100)).unwrap();
        if round % 2 == 0 {
            relay.kill9().unwrap();
            relay.start_again().unwrap();
        } else {
            gate.cut();
        }
    }
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    assert_eq!(assert_complete(&ids(&gate, "order"), 600), 0);
}

#[test]
#[ignore = "slow"]
fn a_bad_row_stops_is_skipped_or_goes_to_the_dead_letter_topic() {
    let rows = "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', 'order', 'k', 't', NULL), ('3', 'order', 'k', 't', '{}')";
    let (stopped, gate) = (lane(), topics());
    stopped.sql(rows);
    let (code, log) = ended(&mut start(&stopped, &gate, &[]));
    assert!(code == 2 && hint(&log).contains("id 2 ") && log.contains("needs a body"), "{log}");
    assert_eq!(ids(&gate, "order"), ["1"]);
    let (skipped, gate) = (lane(), topics());
    skipped.sql(rows);
    let _relay = start(&skipped, &gate, &["--on-bad-row", "skip"]);
    skipped.wait_confirmed();
    assert_eq!(ids(&gate, "order"), ["1", "3"]);
    let (dead_lettered, gate) = (lane(), topics());
    gate.create_topic(&topic("dead"));
    dead_lettered.sql(rows);
    let _relay = start(&dead_lettered, &gate, &["--on-bad-row", "dead-letter"]);
    dead_lettered.wait_confirmed();
    assert_eq!((ids(&gate, "order"), ids(&gate, "dead")), (vec!["1".to_owned(), "3".to_owned()], vec!["2".to_owned()]));
}

#[test]
fn a_topic_that_is_missing_is_waited_for_and_throttling_too() {
    let (lane, gate) = (lane(), topics());
    lane.sql("INSERT INTO outbox VALUES ('1', 'missing', 'k', 't', '{}'), ('2', 'order', 'k', 't', '{}')");
    let relay = start(&lane, &gate, &[]);
    wait_log(&relay, "NotFound");
    wait_until(LONG, "the other topic's row", || Ok(ids(&gate, "order").len() == 1)).unwrap();
    gate.throttle(Some((429, "Throttled")));
    gate.create_topic(&topic("missing"));
    gate.throttle(None);
    lane.wait_confirmed();
    assert_eq!(ids(&gate, "missing"), ["1"]);
}

#[test]
fn check_says_what_a_topic_lacks_and_refused_keys_end_the_start() {
    let (lane, gate) = (lane(), topics());
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let arn = topic("{route}");
    let found = elsewhere::check(&lane, &gate.url(), &["--topic", &arn]);
    assert!(found.contains("is a FIFO topic") && found.contains("aws sns subscribe"), "{found}");
    let missing = elsewhere::check(&lane, &gate.url(), &["--topic", &topic("nobody")]);
    assert!(missing.contains("aws sns create-topic --name nobody.fifo --attributes FifoTopic=true"), "{missing}");
    gate.refuse_keys();
    let (code, log) = ended(&mut start(&lane, &gate, &[]));
    assert!(code == 2 && log.contains("InvalidClientTokenId"), "{log}");
}

//! `check` where Kafka lets nobody do what they were not allowed to: it names the rights that are missing, and with them a relay runs.

use walrelay_dev::relay::Relay;

use crate::check::{Checked, checked_as};
use crate::lane::{LONG, Lane, ids, wait_events, wait_log};
use crate::secure::{PASSWORD, by_scram, kafka, lane, start, through};
use crate::verify::{advance, counts, verdict};

/// As a user who has no right yet.
fn arguments(lane: &Lane, more: &[&str]) -> Vec<String> {
    arguments_of("asking", lane, more)
}

fn arguments_of(user: &str, lane: &Lane, more: &[&str]) -> Vec<String> {
    let authority = kafka().file("right.pem");
    let mut arguments = through(lane, &kafka().sasl_ssl, &by_scram("SCRAM-SHA-256", user, &authority));
    arguments.extend(more.iter().map(|&argument| argument.to_owned()));
    arguments
}

#[track_caller]
fn check(lane: &Lane, more: &[&str]) -> Checked {
    checked_by(arguments(lane, more))
}

#[track_caller]
fn checked_by(mut arguments: Vec<String>) -> Checked {
    "check".clone_into(&mut arguments[0]);
    arguments.push("--json".to_owned());
    checked_as(&arguments, &[("WALRELAY_KAFKA_SASL_PASSWORD", PASSWORD)])
}

/// As of one who may write other topics: the cluster gives that user's producers an identity.
#[test]
#[ignore = "slow"]
fn a_topic_that_the_user_may_not_see_is_reported_with_the_right_to_it_and_not_to_be_created() {
    let (lane, kafka) = (lane(), kafka());
    kafka.kafka.create_topic(&lane.topic("order"), 1, &[]).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    let arguments = arguments_of("elsewhere", &lane, &[]);
    let found = checked_by(arguments.clone());
    found.level("write", "ok", &[]);
    let fix = found.level("topics", "fail", &["may not see", "User:elsewhere", "--operation Write"]);
    kafka.run_acls(&fix).unwrap();
    let found = checked_by(arguments.clone());
    assert_eq!(found.code, 0, "{:#}", found.report);
    let _relay = start(&arguments, Some(PASSWORD));
    assert_eq!(lane.ids("order"), ["1"]);
}

#[test]
#[ignore = "slow"]
fn verify_does_not_judge_rows_of_a_topic_that_its_user_may_not_see_and_names_the_right() {
    let (lane, kafka) = (lane(), kafka());
    kafka.kafka.create_topic(&lane.topic("order"), 1, &[]).unwrap();
    let mut arguments = arguments(&lane, &["--json", "--follow=0"]);
    "verify".clone_into(&mut arguments[0]);
    let mut comparison = start(&arguments, Some(PASSWORD));
    wait_log(&comparison, "comparing rows with records");
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    advance(&lane);
    let (code, report, log) = verdict(&mut comparison);
    assert_eq!((code, counts(&report).as_str()), (1, "rows 1, not_judged 1"), "{report:#}{log}");
    let reasons = report["reasons"].to_string();
    assert!(reasons.contains("kafka-acls.sh") && reasons.contains("User:asking --operation Read"), "{reasons}");
}

#[track_caller]
fn running(lane: &Lane, more: &[&str]) -> Relay {
    let mut relay = start(&arguments(lane, more), Some(PASSWORD));
    relay.wait_streaming(LONG).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    relay
}

#[test]
#[ignore = "slow"]
fn rights_that_are_missing_are_named_one_by_one_and_once_they_are_given_a_relay_runs() {
    let (lane, kafka) = (lane(), kafka());
    kafka.kafka.create_topic(&lane.topic("order"), 1, &[]).unwrap();
    // Nothing may be written, and what is there is not seen either.
    let found = check(&lane, &[]);
    assert_eq!(found.code, 2, "{:#}", found.report);
    let fix = found.level("write", "fail", &["User:asking", "--operation Write", &format!("'{}.'", lane.name)]);
    kafka.run_acls(&fix).unwrap();
    let found = check(&lane, &[]);
    assert_eq!(found.code, 0, "{:#}", found.report);
    found.level("write", "ok", &[]);
    // Exactly once wants more.
    let more = ["--delivery", "exactly-once", "--accept-one-replica"];
    let found = check(&lane, &more);
    assert_eq!(found.code, 2, "{:#}", found.report);
    found.level("write", "ok", &[]);
    for name in ["transactional_id", "progress"] {
        kafka.run_acls(&found.level(name, "fail", &["User:asking"])).unwrap();
    }
    let found = check(&lane, &more);
    assert_eq!(found.code, 0, "{:#}", found.report);
    found.level("progress", "ok", &["is created at the first start"]);
    // They are all that a relay needs, and another look does not take its transactions away.
    let mut relay = running(&lane, &more);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_events(&relay, 1);
    let found = check(&lane, &more);
    assert_eq!(found.code, 0, "{:#}", found.report);
    found.level("transactional_id", "ok", &[&format!("-{}", lane.name)]);
    found.level("progress", "ok", &["is there and can be read"]);
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '1')");
    wait_events(&relay, 2);
    assert_eq!(ids(&lane.records_now("order")), ["1", "2"]);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0);
    // Now there is progress to be read.
    relay.start_again().unwrap();
    relay.wait_streaming(LONG).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('3', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1", "2", "3"], "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0);
    assert!(!relay.log().to_lowercase().contains("fenced"), "{}", relay.log());
}

//! The first records of many topics: their topics are asked for together, while other records and the loop go on.

use std::time::Duration;

use walrelay_dev::consume;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::tap::Tap;

use crate::exactly_once::{EXACTLY_ONCE, TABLE};
use crate::lane::{LONG, Lane, wait_log};
use crate::own;

/// Asked for one after the other, they take 80 s. Their records take 3 s by four producers, and 16 s by one, since librdkafka puts one
/// partition into each request.
const TOPICS: usize = 400;

/// How far Kafka is, one way.
const DISTANCE: Duration = Duration::from_millis(100);

/// Long enough for the records, also on a machine that others use.
const SOON: Duration = Duration::from_secs(70);

#[test]
fn the_first_records_of_many_topics_ask_for_their_topics_together() {
    let tap = Tap::listen().unwrap();
    let options =
        kafka::Options { advertise_through: Some(tap.port()), auto_create_topics: false, ..kafka::Options::default() };
    let kafka = Kafka::start(&options).unwrap();
    kafka.prepare_transactions().unwrap();
    tap.set_target(kafka.tap_target());
    for delivery in ["--delivery=at-least-once", EXACTLY_ONCE] {
        tap.set_distance(Duration::ZERO);
        let mut lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
        lane.brokers = tap.address();
        let topics: Vec<String> = (0..TOPICS).map(|number| lane.topic(&format!("t{number}"))).collect();
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        kafka.create_topics(&topics, 1, &[]).unwrap();
        let known = || Ok(kafka.topics()?.iter().filter(|topic| topic.starts_with(&lane.name)).count() == TOPICS);
        wait_until(LONG, "the broker to know the topics", known).unwrap();
        lane.sql("INSERT INTO outbox VALUES (0, 't0', 'k', 't', 'p')");
        let mut relay = lane.streaming(&[delivery]);
        // The relay has begun, and knows one of them.
        lane.wait_confirmed();
        tap.set_distance(DISTANCE);
        lane.sql(&format!(
            "INSERT INTO outbox SELECT n, 't' || n % {TOPICS}, 'k' || n % 3, 't', 'p' FROM generate_series(1, {TOPICS}) AS n"
        ));
        let mut lives = true;
        let soon = wait_until(SOON, "the records of all topics", || {
            lives &= relay.get("/livez")?.status == 200;
            Ok(relay.metric("walrelay_events_total")? > f64::from(u32::try_from(TOPICS)?))
        });
        soon.unwrap_or_else(|error| panic!("{delivery}: {error}: {}", relay.log()));
        assert!(lives, "{delivery}: {}", relay.log());
        tap.set_distance(Duration::ZERO);
        lane.wait_confirmed();
        let records = consume::read_to_end(&lane.client, &topics).unwrap();
        assert_eq!(records.len(), TOPICS + 1, "{delivery}: {}", relay.log());
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
}

/// With exactly once, everything before the topic's first row is committed once it is there.
#[test]
fn a_topic_that_is_missing_keeps_no_record_of_another_topic_waiting() {
    let (kafka, _) = own::strict_kafka();
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(TABLE, "outbox");
    kafka.create_topic(&lane.topic("order"), 1, &[]).unwrap();
    let mut relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox SELECT n, CASE WHEN n = 1 THEN 'later' ELSE 'order' END, 'k', 't', 'p' FROM generate_series(1, 20) AS n");
    let topic = lane.topic("later");
    wait_until(LONG, "the records of the other topic", || Ok(lane.records_now("order").len() == 19))
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    wait_log(&relay, &format!("topic {topic} does not exist"));
    assert_eq!(relay.get("/readyz").unwrap().status, 503);
    kafka.create_topic(&topic, 1, &[]).unwrap();
    assert_eq!((lane.ids("later"), lane.records_now("order").len()), (vec!["1".to_owned()], 19), "{}", relay.log());
    wait_until(LONG, "that it is over", || Ok(relay.get("/readyz")?.status == 200)).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn a_topic_that_is_missing_is_waited_for_exactly_once_too() {
    let (kafka, _) = own::strict_kafka();
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(TABLE, "outbox");
    kafka.create_topic(&lane.topic("order"), 1, &[]).unwrap();
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    lane.sql("INSERT INTO outbox SELECT n, CASE WHEN n = 10 THEN 'later' ELSE 'order' END, 'k', 't', 'p' FROM generate_series(1, 20) AS n");
    let topic = lane.topic("later");
    wait_log(&relay, &format!("topic {topic} does not exist"));
    wait_until(LONG, "it to be named", || Ok(relay.get("/readyz")?.body.contains(&topic)))
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    kafka.create_topic(&topic, 1, &[]).unwrap();
    assert_eq!((lane.ids("later"), lane.records_now("order").len()), (vec!["10".to_owned()], 19), "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

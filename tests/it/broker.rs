//! What a broker's own condition makes of the relay.

use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;

use crate::check::check;
use crate::lane::{LONG, Lane, OUTBOX, ids, wait_events, wait_log};
use crate::own;

#[test]
fn a_broker_that_advertises_an_address_nobody_listens_at_is_named_with_it() {
    let (kafka, nobody) = own::strict_kafka();
    let mut lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(OUTBOX, "outbox");
    let bootstrap = kafka.tap_target();
    let right = std::mem::replace(&mut lane.brokers, bootstrap.clone());
    let mut relay = lane.relay(&[]);
    wait_log(&relay, &format!("{bootstrap} advertises 127.0.0.1:{nobody}, which cannot be reached"));
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    assert_eq!(relay.exited().unwrap(), None);
    // It stands where it stood: with the right address the row arrives.
    relay.kill9().unwrap();
    kafka.create_topic(&lane.topic("order"), 1, &[]).unwrap();
    lane.brokers = right;
    let _fixed = lane.relay(&[]);
    assert_eq!(lane.ids("order"), ["1"]);
}

#[test]
#[ignore = "slow"]
fn a_topic_that_does_not_exist_is_waited_for_and_named_while_others_go_on() {
    let (kafka, _) = own::strict_kafka();
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(OUTBOX, "outbox");
    kafka.create_topic(&lane.topic("there"), 1, &[]).unwrap();
    let mut relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'there', 'k', 't', '1')");
    wait_events(&relay, 1);
    lane.sql("INSERT INTO outbox VALUES ('2', 'missing', 'k', 't', '1'); INSERT INTO outbox VALUES ('3', 'there', 'k', 't', '1')");
    let missing = lane.topic("missing");
    let said = format!(
        "blocked: topic {missing} does not exist; to create it: kafka-topics.sh --bootstrap-server {} --create --topic {missing} --replication-factor 1",
        lane.brokers
    );
    wait_until(LONG, "the topic in /readyz", || {
        let answer = relay.get("/readyz")?;
        Ok(answer.status == 503 && answer.body.trim_end() == said)
    })
    .unwrap_or_else(|error| panic!("{error}: {:?} {}", relay.get("/readyz"), relay.log()));
    assert_eq!(relay.status().unwrap()["state"], "blocked");
    assert!(relay.log().contains(&format!("--topic {missing}")), "{}", relay.log());
    wait_until(LONG, "the other topic's row", || Ok(ids(&lane.records_now("there")) == ["1", "3"])).unwrap();
    kafka.create_topic(&missing, 2, &[]).unwrap();
    assert_eq!(lane.ids("missing"), ["2"]);
    assert_eq!(lane.ids("there"), ["1", "3"]);
    relay.wait_streaming(LONG).unwrap();
    assert_eq!(relay.status().unwrap()["state"], "streaming");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0);
}

#[test]
#[ignore = "slow"]
fn a_relay_that_waits_for_a_topic_stops_cleanly_before_it() {
    let (kafka, _) = own::strict_kafka();
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(OUTBOX, "outbox");
    kafka.create_topic(&lane.topic("there"), 1, &[]).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'there', 'k', 't', '1')");
    lane.sql("INSERT INTO outbox VALUES ('2', 'missing', 'k', 't', '1')");
    let mut relay = lane.relay(&["--shutdown-timeout=1s"]);
    wait_log(&relay, "does not exist");
    // Its transaction has been begun and cannot be ended.
    let exit = relay.terminate(LONG).unwrap();
    assert_eq!(exit.code, 1, "{}", relay.log());
    kafka.create_topic(&lane.topic("missing"), 1, &[]).unwrap();
    relay.start_again().unwrap();
    assert_eq!(lane.ids("missing"), ["2"]);
    assert_eq!(lane.ids("there"), ["1"]);
}

/// Follows the command of a hint.
fn follow(kafka: &Kafka, text: &str) {
    let command = text.split_once("kafka-topics.sh ").unwrap_or_else(|| panic!("{text}")).1;
    let command = command.lines().next().unwrap();
    let mut tool = kafka.tool("org.apache.kafka.tools.TopicCommand");
    let output = tool.args(command.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "slow"]
fn a_cluster_of_fewer_brokers_than_its_default_has_replicas_is_said_to_create_nothing() {
    let properties = vec![("default.replication.factor".to_owned(), "3".to_owned())];
    let kafka = Kafka::start(&kafka::Options { properties, ..kafka::Options::default() }).unwrap();
    let lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(OUTBOX, "outbox");
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', 'returns', 'k', 't', '{}')");
    let fix = check(&lane, &[]).level("topics", "fail", &["default.replication.factor=3 with 1 brokers"]);
    let relay = lane.streaming(&[]);
    let topic = format!("topic {} does not exist", lane.topic("order"));
    let mut body = String::new();
    wait_until(LONG, "the topic to be named", || {
        body = relay.get("/readyz")?.body;
        Ok(body.contains(&topic))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    follow(&kafka, &body);
    follow(&kafka, &fix.replace(&lane.topic("order"), &lane.topic("returns")));
    assert_eq!([lane.ids("order"), lane.ids("returns")], [["1"], ["2"]], "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_broker_that_closes_the_connection_upon_a_large_request_is_said_to_with_its_setting() {
    let properties = vec![("socket.request.max.bytes".to_owned(), "60000".to_owned())];
    let kafka = Kafka::start(&kafka::Options { properties, ..kafka::Options::default() }).unwrap();
    let lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(OUTBOX, "outbox");
    let found = check(&lane, &[]).level("request_size", "fail", &["socket.request.max.bytes of the brokers is 60000"]);
    let mut relay = lane.streaming(&[]);
    lane.sql(
        "INSERT INTO outbox SELECT n, 'order', 'k', 't', to_jsonb(repeat(md5(n::text), 200)) FROM generate_series(1, 100) AS n",
    );
    let mut said = String::new();
    wait_until(LONG, "the setting to be named", || {
        said = relay.get("/readyz")?.body;
        Ok(said.contains("socket.request.max.bytes"))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?} {}", relay.status(), relay.log()));
    relay.kill9().unwrap();
    for fix in [said, found] {
        let property = fix.split_once("walrelay run -X ").unwrap_or_else(|| panic!("{fix}")).1;
        let mut fixed = lane.streaming(&["-X", property.trim()]);
        lane.wait_confirmed();
        assert_eq!(fixed.terminate(LONG).unwrap().code, 0, "{}", fixed.log());
    }
    let all: Vec<String> = (1..=100).map(|n| n.to_string()).collect();
    let mut found = ids(&lane.records_now("order"));
    found.dedup();
    assert!(found.ends_with(&all), "{found:?}");
}

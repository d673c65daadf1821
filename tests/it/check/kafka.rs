//! Topics, transactions and addresses of Kafka.

use walrelay_dev::kafka::Kafka;
use walrelay_dev::postgres::shared_postgres;

use super::{GOOD, check, good};
use crate::lane::Lane;
use crate::own;

/// A Kafka of which nothing comes by itself.
fn strict() -> (&'static Kafka, u16) {
    let (kafka, port) = own::strict_kafka();
    (kafka, *port)
}

#[test]
#[ignore = "slow"]
fn topics_that_are_missing_too_small_compacted_or_short_of_replicas_are_fixed() {
    let kafka = strict().0;
    let lane = Lane::on(shared_postgres().unwrap(), kafka)
        .furnish("CREATE TABLE outbox (id text PRIMARY KEY, type text NOT NULL, payload text)", "outbox");
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', repeat('x', 30000))");
    let topic = lane.topic("order");
    let fix = check(&lane, &[]).level("topics", "fail", &[&topic, "is not there"]);
    assert!(fix.contains(&format!("--create --topic {topic}")), "{fix}");
    let settings = [("max.message.bytes", "20000"), ("min.insync.replicas", "2"), ("cleanup.policy", "compact")];
    kafka.create_topic(&topic, 3, &settings).unwrap();
    let found = check(&lane, &[]);
    assert_eq!(found.code, 2);
    found.level("topics", "ok", &[]);
    let mut given = Vec::new();
    for (name, setting) in [("record_size", "max.message.bytes"), ("replicas", "min.insync.replicas")] {
        let fix = found.level(name, "fail", &[&topic]);
        let value = fix.split_once(&format!("--add-config {setting}=")).unwrap_or_else(|| panic!("{fix}")).1;
        given.push((setting, value.to_owned()));
    }
    let fix = found.level("compaction", "fail", &[&topic]);
    assert!(fix.contains("--key-column") && !fix.contains("kafka-configs"), "{fix}");
    given.push(("cleanup.policy", "delete".to_owned()));
    let given: Vec<(&str, &str)> = given.iter().map(|(name, value)| (*name, value.as_str())).collect();
    kafka.alter_topic(&topic, &given).unwrap();
    let after = check(&lane, &[]);
    assert_eq!(after.code, 0, "{:#}", after.report);
    let dead = format!("{}.dead", lane.name);
    let more = ["--on-bad-row", "dead-letter", "--dead-letter-topic", dead.as_str()];
    check(&lane, &more).level("dead_letters", "fail", &[&dead, "--create --topic"]);
    kafka.create_topic(&dead, 1, &[]).unwrap();
    check(&lane, &more).level("dead_letters", "ok", &[]);
    let fix = check(&lane, &["-X", "message.max.bytes=10000"]).level("record_size", "fail", &["client refuses"]);
    let property = fix.split_once("-X ").unwrap().1.split(' ').next().unwrap();
    assert_eq!(check(&lane, &["-X", property]).code, 0);
}

#[test]
#[ignore = "slow"]
fn a_topic_of_progress_that_forgets_and_transactions_that_are_too_long_are_fixed() {
    let kafka = strict().0;
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(GOOD, "outbox");
    let more = ["--delivery", "exactly-once"];
    let fix = check(&lane, &[&more[..], &["--accept-one-replica=false"]].concat()).level(
        "replicas",
        "fail",
        &["one replica"],
    );
    assert!(fix.contains("--accept-one-replica"), "{fix}");
    let found = check(&lane, &more);
    found.level("transactional_id", "ok", &[&lane.name]);
    found.level("progress", "ok", &["is created at the first start"]);
    assert!(!kafka.topics().unwrap().contains(&"walrelay.progress".to_owned()), "check has made it");
    kafka.create_topic("walrelay.progress", 1, &[("cleanup.policy", "delete")]).unwrap();
    let found = check(&lane, &more);
    assert_eq!(found.code, 2);
    found.level("progress", "ok", &["is there and can be read"]);
    let fix = found.level("progress_policy", "fail", &["cleanup.policy=delete"]);
    let value = fix.split_once("--entity-name walrelay.progress --add-config cleanup.policy=").unwrap().1;
    kafka.alter_topic("walrelay.progress", &[("cleanup.policy", value)]).unwrap();
    let after = check(&lane, &more);
    assert_eq!(after.code, 0, "{:#}", after.report);
    after.level("progress_policy", "ok", &[]);
    let long = [&more[..], &["-X", "transaction.timeout.ms=3600000"]].concat();
    let fix = check(&lane, &long).level("transaction_timeout", "fail", &["3600000", "transaction.max.timeout.ms"]);
    let property = fix.split_once("-X ").unwrap().1.split(' ').next().unwrap();
    assert_eq!(check(&lane, &[&more[..], &["-X", property]].concat()).code, 0);
}

#[test]
#[ignore = "slow"]
fn an_advertised_address_that_leads_nowhere_is_named() {
    let (kafka, _) = strict();
    let mut lane = good();
    let there = std::mem::replace(&mut lane.brokers, kafka.tap_target());
    let fix = check(&lane, &[]).level("advertised", "fail", &["advertises", &lane.brokers]);
    assert!(fix.contains("advertised.listeners"), "{fix}");
    lane.brokers = there;
    assert!(check(&lane, &[]).of("advertised").is_empty());
}

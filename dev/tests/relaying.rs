//! What stands around the relay: reading topics to their end, and faults between client and broker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use walrelay_dev::consume::{self, Follower};
use walrelay_dev::kafka::{self, Kafka, shared_kafka};
use walrelay_dev::postgres::unique_name;
use walrelay_dev::tap::Tap;

const PATIENCE: Duration = Duration::from_secs(20);

fn produce(config: &ClientConfig, topic: &str, count: u32) {
    let producer: BaseProducer = config.create().unwrap();
    for number in 0..count {
        let (key, value) = (format!("key-{}", number % 7), number.to_string());
        let headers = OwnedHeaders::new().insert(Header { key: "id", value: Some(value.as_str()) });
        let headers = headers.insert(Header { key: "nothing", value: None::<&str> });
        producer
            .send(BaseRecord::to(topic).key(&key).payload(&value).headers(headers))
            .map_err(|(error, _)| error)
            .unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

#[test]
fn a_topic_is_read_to_its_end_with_keys_headers_and_order() {
    let kafka = shared_kafka().unwrap();
    let topic = unique_name("read");
    kafka.create_topic(&topic, 3, &[]).unwrap();
    let config = kafka.client_config();
    assert_eq!(consume::read_to_end(&config, &["no-such-topic"]).unwrap(), []);
    assert_eq!(consume::read_to_end(&config, &[&topic, "no-such-topic"]).unwrap(), []);
    produce(&config, &topic, 1000);
    let records = consume::read_to_end(&config, &[&topic]).unwrap();
    assert_eq!((records.len(), consume::count(&config, &topic).unwrap()), (1000, 1000));
    let of_one_key: Vec<u32> =
        records.iter().filter(|r| r.key_text() == "key-3").map(|r| r.value_text().parse().unwrap()).collect();
    assert!(of_one_key.is_sorted() && of_one_key.len() == 143);
    let first = records.first().unwrap();
    assert_eq!(first.header("id"), Some(first.value_text().as_str()));
    assert_eq!(first.headers.last().unwrap(), &("nothing".to_owned(), None));
}

#[test]
fn a_transaction_that_is_about_to_be_marked_is_waited_for_and_one_that_stays_open_is_not_read() {
    let kafka = shared_kafka().unwrap();
    let topic = unique_name("committed");
    kafka.create_topic(&topic, 12, &[]).unwrap();
    let config = kafka.client_config();
    let producer: BaseProducer = config.clone().set("transactional.id", &topic).create().unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    let write = || {
        producer.begin_transaction().unwrap();
        for partition in 0..12 {
            let record = BaseRecord::<(), _>::to(&topic).partition(partition).payload("value");
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
    };
    let read = || consume::read_to_end(&config, &[&topic]).unwrap().len();
    write();
    std::thread::scope(|scope| {
        let reading = scope.spawn(read);
        std::thread::sleep(Duration::from_secs(2));
        producer.commit_transaction(PATIENCE).unwrap();
        assert_eq!(reading.join().unwrap(), 12);
    });
    write();
    assert_eq!(read(), 12);
    producer.abort_transaction(PATIENCE).unwrap();
}

#[test]
fn a_follower_sees_what_is_there_and_what_comes() {
    let kafka = shared_kafka().unwrap();
    let topic = unique_name("follow");
    kafka.create_topic(&topic, 2, &[]).unwrap();
    let config = kafka.client_config();
    produce(&config, &topic, 10);
    let follower = Follower::from_beginning(&config, &[&topic]).unwrap();
    assert_eq!(follower.read_until(PATIENCE, |records| records.len() == 10).unwrap().len(), 10);
    produce(&config, &topic, 5);
    assert_eq!(follower.read_until(PATIENCE, |records| records.len() == 5).unwrap().len(), 5);
}

#[test]
fn a_client_of_the_tapped_listener_stays_behind_the_tap() {
    let tap = Tap::listen().unwrap();
    let kafka =
        Kafka::start(&kafka::Options { advertise_through: Some(tap.port()), ..kafka::Options::default() }).unwrap();
    tap.set_target(kafka.tap_target());
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", tap.address())
        .set("message.timeout.ms", "20000")
        .set("reconnect.backoff.max.ms", "100");
    produce(&config, "through", 100);
    tap.stall_both();
    let stalled = config.clone().set("message.timeout.ms", "500").create::<BaseProducer>().unwrap();
    stalled.send(BaseRecord::<(), str>::to("through").payload("lost")).map_err(|(error, _)| error).unwrap();
    drop(stalled.flush(Duration::from_secs(2)));
    assert_eq!(consume::count(&kafka.client_config(), "through").unwrap(), 100);
    tap.flow();
    tap.cut();
    produce(&config, "through", 100);
    assert!(consume::count(&kafka.client_config(), "through").unwrap() >= 200);
}

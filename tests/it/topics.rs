//! Topics that change under load: partitions that are added while rows are under way, and a topic that is deleted and created again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use walrelay_dev::consume::Record;
use walrelay_dev::kafka::{self, Kafka, shared_kafka};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, wait_events};
use crate::own;

const TABLE: &str =
    "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text, part int)";

/// Rows of a transaction.
const ROWS: u32 = 10;

/// Writes rows of these routes until `stop`; `parts`: how many partitions they ask for in turn, 0 for none.
fn write(lane: &Lane, routes: &[&str], parts: &AtomicU32, (stop, last): (&AtomicBool, &AtomicU32)) {
    let mut client = lane.connect();
    let sql = "INSERT INTO outbox SELECT n, $1::text, 'k' || n % 7, 't', 'p', n % nullif($4::int, 0)
               FROM generate_series($2::int, $3::int) AS n";
    let int = |number: u32| i32::try_from(number).unwrap();
    let mut next = 1;
    while !stop.load(Ordering::SeqCst) {
        let end = next + ROWS - 1;
        for route in routes {
            client.execute(sql, &[route, &int(next), &int(end), &int(parts.load(Ordering::SeqCst))]).unwrap();
        }
        last.store(end, Ordering::SeqCst);
        next = end + 1;
        // At this rate.
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Lets `act` happen under load; the last row.
fn under_load(lane: &Lane, routes: &[&str], parts: &AtomicU32, act: impl FnOnce(&AtomicU32)) -> u32 {
    let (stop, last) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(lane, routes, parts, (&stop, &last)));
        // Also when it fails, or the scope would wait for its writer.
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&last)));
        stop.store(true, Ordering::SeqCst);
        writer.join().unwrap();
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    last.load(Ordering::SeqCst)
}

fn number(record: &Record) -> u32 {
    record.header("id").unwrap().parse().unwrap()
}

/// The rows of each partition, as they appear for the first time; and how many came again.
fn first_appearances(records: &[Record]) -> (HashMap<i32, Vec<u32>>, usize) {
    let (mut rows, mut seen, mut repeats) = (HashMap::<i32, Vec<u32>>::new(), std::collections::HashSet::new(), 0);
    for record in records {
        if seen.insert(number(record)) {
            rows.entry(record.partition).or_default().push(number(record));
        } else {
            repeats += 1;
        }
    }
    (rows, repeats)
}

#[test]
fn partitions_that_are_added_under_load_are_used_and_every_row_is_there_once_and_in_order() {
    let lane = Lane::with(TABLE, "outbox");
    let (kafka, topic) = (shared_kafka().unwrap(), lane.topic("order"));
    kafka.create_topic(&topic, 2, &[]).unwrap();
    let relay = lane.streaming(&["--partition-column=part"]);
    let parts = AtomicU32::new(2);
    let last = under_load(&lane, &["order"], &parts, |last| {
        for count in [3, 6, 9] {
            let before = last.load(Ordering::SeqCst);
            wait_until(LONG, "rows", || Ok(last.load(Ordering::SeqCst) > before + 500)).unwrap();
            kafka.add_partitions(&topic, count).unwrap();
            parts.store(u32::try_from(count).unwrap(), Ordering::SeqCst);
        }
        let before = last.load(Ordering::SeqCst);
        wait_until(LONG, "rows", || Ok(last.load(Ordering::SeqCst) > before + 500)).unwrap();
    });
    let (rows, repeats) = first_appearances(&lane.records("order"));
    assert_eq!((rows.len(), repeats), (9, 0), "{}", relay.log());
    assert!(rows.values().all(|rows| rows.is_sorted()), "{}", relay.log());
    assert_eq!(rows.values().map(Vec::len).sum::<usize>(), last as usize, "{}", relay.log());
}

#[test]
fn a_topic_that_is_deleted_while_it_is_streamed_to_is_named_within_seconds_and_comes_back() {
    let (kafka, _) = own::strict_kafka();
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(TABLE, "outbox");
    let topic = lane.topic("order");
    kafka.create_topic(&topic, 1, &[]).unwrap();
    let mut relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p')");
    wait_events(&relay, 1);
    kafka.delete_topics(&[&topic]).unwrap();
    // Until then the broker takes records for the topic that is deleted.
    wait_until(LONG, "the topic to go", || Ok(!kafka.topics()?.contains(&topic))).unwrap();
    lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', 't', 'p' FROM generate_series(2, 20) AS n");
    // librdkafka takes 18 s.
    let named = wait_until(Duration::from_secs(10), "the topic to be named", || {
        let answer = relay.get("/readyz")?;
        Ok(answer.status == 503 && answer.body.contains(&format!("topic {topic} does not exist")))
    });
    named.unwrap_or_else(|error| panic!("{error}: {:?} {}", relay.status(), relay.log()));
    assert!(relay.status().unwrap()["last_error"].to_string().contains("does not exist"));
    kafka.create_topic(&topic, 1, &[]).unwrap();
    let found: Vec<u32> = lane.records("order").iter().map(number).collect();
    assert_eq!(found, (2..=20).collect::<Vec<_>>(), "{}", relay.log());
    wait_until(LONG, "that it is over", || Ok(relay.get("/readyz")?.status == 200)).unwrap();
    assert_eq!(relay.exited().unwrap(), None);
}

/// Deletes the topic and creates it again at once.
fn create_again(kafka: &Kafka, topic: &str) {
    kafka.delete_topics(&[topic]).unwrap();
    wait_until(LONG, "the topic to be there again", || Ok(kafka.create_topic(topic, 1, &[]).is_ok())).unwrap();
}

#[test]
fn a_topic_that_is_deleted_and_created_again_under_load_loses_and_swaps_nothing_that_follows() {
    let (kafka, _) = own::strict_kafka();
    let lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(TABLE, "outbox");
    for route in ["order", "invoice"] {
        kafka.create_topic(&lane.topic(route), 1, &[]).unwrap();
    }
    let mut relay = lane.streaming(&[]);
    let last = under_load(&lane, &["order", "invoice"], &AtomicU32::new(0), |last| {
        wait_events(&relay, 1000);
        for _ in 0..3 {
            create_again(kafka, &lane.topic("invoice"));
            let before = last.load(Ordering::SeqCst);
            wait_until(LONG, "rows", || Ok(last.load(Ordering::SeqCst) > before + 300)).unwrap();
        }
    });
    // What was confirmed before the last deletion is gone with the topic: what follows is whole.
    let (rows, _) = first_appearances(&lane.records("invoice"));
    let rows = &rows[&0];
    let whole: Vec<u32> = (rows[0]..=last).collect();
    assert!(*rows == whole, "from {} to {last}, and there are {rows:?}: {}", rows[0], relay.log());
    let (rows, repeats) = first_appearances(&lane.records("order"));
    assert_eq!((rows[&0].len(), repeats), (last as usize, 0), "{}", relay.log());
    assert!(rows[&0].is_sorted(), "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// librdkafka forgets a topic that is deleted, and does not ask for it while no broker answers.
#[test]
#[ignore = "slow"]
fn a_broker_that_was_frozen_once_a_topic_was_created_again_comes_back_to_all_rows() {
    let mut kafka = Kafka::start(&kafka::Options { auto_create_topics: false, ..kafka::Options::default() }).unwrap();
    let lane = Lane::on(shared_postgres().unwrap(), &kafka).furnish(TABLE, "outbox");
    let deleted = lane.topic("invoice");
    for topic in [&deleted, &lane.topic("order")] {
        kafka.create_topic(topic, 1, &[]).unwrap();
    }
    let mut relay = lane.streaming(&[]);
    let last = under_load(&lane, &["order", "invoice"], &AtomicU32::new(0), |_| {
        wait_events(&relay, 1000);
        kafka.delete_topics(&[&deleted]).unwrap();
        wait_until(LONG, "the relay to notice", || Ok(relay.status()?["state"] != "streaming")).unwrap();
        wait_until(LONG, "the topic to be there", || Ok(kafka.create_topic(&deleted, 1, &[]).is_ok())).unwrap();
        kafka.suspend().unwrap();
        // The length of the outage is what is tested: librdkafka's next questions about the topic fall into it.
        std::thread::sleep(Duration::from_secs(20));
        kafka.resume().unwrap();
        lane.wait_confirmed();
    });
    lane.wait_confirmed();
    let (rows, repeats) = first_appearances(&lane.records("order"));
    assert_eq!((rows[&0].len(), repeats), (last as usize, 0), "{}", relay.log());
    assert!(rows[&0].is_sorted(), "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

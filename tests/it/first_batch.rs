//! A partition's first batch is refused, whatever for, while later rows of its key come: none of them may be in the topic before it.
//!
//! A broker that does not know a producer in a partition takes a batch of any sequence number, so that whatever is under way behind a
//! refused one would be appended.

use std::collections::HashMap;
use std::time::Duration;

use walrelay_dev::consume;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::shared_postgres;
use walrelay_dev::refuser::{Refusal, Refuser};
use walrelay_dev::tap::Tap;

use crate::lane::{LONG, Lane};

/// Rows of each key.
const ROWS: u32 = 8;

const TABLE: &str = "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, payload text)";

/// Topics of each code.
const ROUNDS: u64 = 2;

/// So many codes at once.
const AT_ONCE: usize = 12;

/// Every code of Kafka's table that a broker could answer a Produce request with, retriable or not, and many that it would not, but for
/// 46: a duplicate sequence number says that the batch is there.
fn codes() -> impl Iterator<Item = i16> {
    [-1].into_iter().chain(1..=45).chain(47..=91)
}

/// In one topic the first row's batch was refused, once.
#[derive(Debug)]
struct Round {
    code: i16,
    route: String,
}

fn rounds() -> Vec<Round> {
    let round = |code: i16, number: u64| Round { code, route: format!("code{code}-{number}") };
    codes().flat_map(|code| (0..ROUNDS).map(move |number| round(code, number))).collect()
}

fn refusals(lane: &Lane, rounds: &[Round]) -> Vec<Refusal> {
    let refusal = |(place, round): (usize, &Round)| Refusal {
        topic: lane.topic(&round.route),
        code: round.code,
        delay: Duration::from_millis(10 + u64::try_from(place).unwrap() * 37 % 60),
        count: 1,
    };
    rounds.iter().enumerate().map(refusal).collect()
}

/// The rows of each topic, each where it came first.
fn first_appearances(lane: &Lane, topics: &[String]) -> HashMap<String, Vec<u32>> {
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let mut rows: HashMap<String, Vec<u32>> = HashMap::new();
    for record in consume::read_to_end(&lane.client, &topics).unwrap() {
        let number = record.header("id").unwrap().parse().unwrap();
        let its = rows.entry(record.topic).or_default();
        if !its.contains(&number) {
            its.push(number);
        }
    }
    rows
}

/// All rounds with one relay of so many producers.
fn play(kafka: &Kafka, tap: &Tap, producers: u32) {
    let mut lane = Lane::on(shared_postgres().unwrap(), kafka).furnish(TABLE, "outbox");
    let rounds = rounds();
    let topics: Vec<String> = rounds.iter().map(|round| lane.topic(&round.route)).collect();
    for group in topics.chunks(100) {
        kafka.create_topics(&group.iter().map(String::as_str).collect::<Vec<_>>(), 1, &[]).unwrap();
    }
    let refuser = Refuser::start(kafka.tap_target(), refusals(&lane, &rounds)).unwrap();
    tap.set_target(refuser.address());
    lane.brokers = tap.address();
    let property = format!("producers={producers}");
    let mut relay = lane.streaming(&["--on-bad-row=skip", "-X", &property]);
    let mut client = lane.connect();
    let sql = "INSERT INTO outbox SELECT $1::text, route, 'k', 't', '1' FROM unnest($2::text[]) AS route";
    for group in rounds.chunks(AT_ONCE * usize::try_from(ROUNDS).unwrap()) {
        let routes: Vec<&str> = group.iter().map(|round| round.route.as_str()).collect();
        for number in 1..=ROWS {
            client.execute(sql, &[&number.to_string(), &routes]).unwrap();
            std::thread::sleep(Duration::from_millis(15));
        }
        lane.wait_confirmed();
    }
    let found = first_appearances(&lane, &topics);
    for (Round { code, .. }, topic) in rounds.iter().zip(&topics) {
        assert_eq!(refuser.refused_of(topic), 1, "{code}");
        let rows = &found[topic];
        // The first was delivered in its turn, or skipped.
        let rest = rows.strip_prefix(&[1]).unwrap_or(rows);
        assert!(rest.iter().copied().eq(2..=ROWS), "{producers} producers, {code}: {rows:?}: {}", relay.log());
    }
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn no_row_passes_the_first_one_of_its_key_whatever_that_one_is_refused_for() {
    let tap = Tap::listen().unwrap();
    let options = kafka::Options { advertise_through: Some(tap.port()), ..kafka::Options::default() };
    let kafka = Kafka::start(&options).unwrap();
    for producers in [1, 4] {
        play(&kafka, &tap, producers);
    }
}

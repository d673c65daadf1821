//! Cases of calls that wait for somebody, one for each row: a turn ends all the same, and what is done between two turns is done.

use super::*;
use crate::pgoutput::{Relation, RelationColumn, encode};
use std::sync::atomic::AtomicU32;

/// A destination that takes each record, and has to ask for each topic before.
struct Asking {
    clock: TestClock,
    asks_for: Duration,
    last: String,
}

impl Sink for Asking {
    fn try_enqueue(&mut self, record: &Record<'_>, _tag: Tag) -> Enqueue {
        if self.last != record.topic {
            record.topic.clone_into(&mut self.last);
            self.clock.pause(self.asks_for);
        }
        Enqueue::Taken
    }

    fn poll(&mut self, _each: &mut dyn FnMut(Report)) {}

    fn in_flight(&self) -> InFlight {
        InFlight { records: 1, ..InFlight::default() }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn problem(&self) -> Option<String> {
        None
    }
}

/// A server that has sent everything it will, and notes when it gets a status update.
struct Noting {
    buffer: ReadBuffer,
    clock: TestClock,
    heard: Vec<Duration>,
}

impl Upstream for Noting {
    fn buffer(&self) -> &ReadBuffer {
        &self.buffer
    }

    fn buffer_mut(&mut self) -> &mut ReadBuffer {
        &mut self.buffer
    }

    fn read(&mut self, patience: Duration) -> Result<usize, pg::Error> {
        self.clock.pause(patience);
        Err(pg::Error::Ended)
    }

    fn send(&mut self, _message: &[u8]) -> Result<(), pg::Error> {
        self.heard.push(self.clock.since_boot());
        Ok(())
    }
}

/// Streams `sent` with a relay to a destination that takes `asks_for` for each new topic. Returns when status updates were sent, and how
/// long it took.
fn stream(
    sent: &[Vec<u8>],
    asks_for: Duration,
    mapping: Mapping,
    with: impl FnOnce(Relay<Asking, TestClock>, TestClock) -> Relay<Asking, TestClock>,
) -> (Vec<Duration>, Duration) {
    let began = Instant::now();
    let clock = TestClock(Rc::new(Cell::new(began)), began);
    let limits =
        Limits { coalesce: Duration::ZERO, shutdown_timeout: seconds(8), disconnect_after: Duration::from_mins(5) };
    let outbox = Outbox::new(Mapping { message_prefixes: vec!["p".to_owned()], ..mapping }, Vec::new()).unwrap();
    let metrics = Arc::new(Metrics::new("s", "p", clock.now()));
    let sink = Asking { clock: clock.clone(), asks_for, last: String::new() };
    let relay = Relay::new(outbox, sink, clock.clone(), metrics, Arc::default(), limits);
    let mut relay = with(relay, clock.clone());
    relay.acquired(Lsn::new(1000));
    let mut server = Noting { buffer: ReadBuffer::new(1 << 20), clock: clock.clone(), heard: Vec::new() };
    for message in sent {
        arrives(&mut server.buffer, message);
    }
    relay.stream(&mut server, None);
    (server.heard, clock.since_boot())
}

/// A second, a turn, and the call that it ends with.
#[track_caller]
fn heard_each_second((heard, took): (Vec<Duration>, Duration), at_least: u64) {
    assert!(took >= seconds(at_least), "it was to take long: {took:?}");
    let ends = heard.iter().chain([&took]);
    let longest =
        [Duration::ZERO].iter().chain(&heard).zip(ends).map(|(before, next)| next.saturating_sub(*before)).max();
    assert!(longest < Some(Duration::from_millis(1300)), "{heard:?} of {took:?}");
}

#[test]
fn first_records_of_many_topics_keep_no_status_update_from_the_server() {
    let rows = (0..200).map(|topic| row(&format!("\"r{topic}\"")));
    let sent: Vec<_> = [begin(2000)].into_iter().chain(rows).chain([commit(2000, 2040)]).collect();
    heard_each_second(stream(&sent, Duration::from_millis(50), Mapping::default(), |relay, _| relay), 10);
}

#[test]
fn dead_letters_that_take_long_keep_no_status_update_from_the_server() {
    // The topic of the dead letters is never the one before.
    let rows = (0..200).flat_map(|_| [row("null"), row("\"order\"")]);
    let sent: Vec<_> = [begin(2000)].into_iter().chain(rows).chain([commit(2000, 2040)]).collect();
    let action = BadRowAction::DeadLetter;
    let bad_rows = BadRows { action, dead_letter_topic: "dead".to_owned(), ..BadRows::default() };
    let with = |relay: Relay<Asking, TestClock>, _| relay.with_bad_rows(bad_rows);
    heard_each_second(stream(&sent, Duration::from_millis(40), Mapping::default(), with), 10);
}

#[test]
fn a_type_that_the_catalog_does_not_show_for_long_keeps_no_status_update_from_the_server() {
    let columns =
        [("id", 25), ("aggregatetype", 25), ("aggregateid", 25), ("type", 25), ("payload", 25), ("x", 90_000)];
    let column = |(name, type_id): &(&str, u32)| RelationColumn {
        name: (*name).to_owned(),
        type_id: *type_id,
        type_modifier: -1,
    };
    let (namespace, name) = ("public".to_owned(), "outbox".to_owned());
    let columns = columns.iter().map(column).collect();
    let mut table = Vec::new();
    encode::relation(&mut table, &Relation { id: 7, namespace, name, replica_identity: b'd', columns });
    let questions = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&questions);
    let with = move |relay: Relay<Asking, TestClock>, _| {
        relay.with_catalogue(Box::new(move || {
            counts.fetch_add(1, Ordering::Relaxed);
            Ok((Details::default(), Lsn::new(3000)))
        }))
    };
    let mapping = Mapping { connect: Some(Box::default()), ..Mapping::default() };
    let sent = [begin(2000), xlog_data(&table), commit(2000, 2040)];
    heard_each_second(stream(&sent, Duration::ZERO, mapping, with), 1);
    assert_eq!(questions.load(Ordering::Relaxed), 20);
}

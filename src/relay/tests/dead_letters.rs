//! Cases of bad rows whose action is a dead letter.

use super::*;
use crate::lsn::Position;
use crate::sink::{DUPLICATE, FailureClass, HeaderRoom, OwnedRecord, RefusalId, Refused, Resolution};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A destination that delivers at the next poll. A key whose next record is refused waits for what takes its place.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault by itself")]
pub(super) struct ByKey {
    /// The records of each topic and key.
    keys: BTreeMap<(String, Vec<u8>), VecDeque<Waiting>>,
    refusals: u64,
    /// Why it takes no dead letters now, or ever.
    no_dead_letters: Option<Enqueue>,
    /// It never takes a dead letter with a payload.
    no_payloads: bool,
    /// When it refuses a dead letter that it will never store.
    refuses: Refuses,
    /// It does not deliver dead letters now.
    dead_letters_wait: bool,
    /// The topics of rows are missing.
    missing: bool,
    /// It takes records in transactions.
    pub(super) transactions: bool,
    /// The topic and the event of each record that was delivered.
    pub(super) delivered: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Refuses {
    #[default]
    AtOnce,
    /// It takes the dead letter first.
    Later,
}

struct Waiting {
    record: OwnedRecord,
    tag: Tag,
    refused: Option<Failure>,
    /// The refusal that was reported to the relay.
    refusal: Option<RefusalId>,
}

const DEAD: &str = "dead";

fn too_large() -> Failure {
    Failure::new(FailureClass::Row, "too_large", "it is too large")
}

impl ByKey {
    /// Its answer to this dead letter, if it does not take it.
    fn refuses_dead_letter(&self, record: &Record<'_>) -> Option<Enqueue> {
        match &self.no_dead_letters {
            _ if self.no_payloads && record.value.is_some() => Some(Enqueue::Bad(too_large())),
            Some(Enqueue::Bad(failure)) => Some(Enqueue::Bad(failure.clone())),
            Some(_) => Some(Enqueue::Full),
            None => None,
        }
    }

    /// Its answer to this record. `Ok`: it takes the record, and may refuse it later.
    fn answer(&self, record: &Record<'_>) -> Result<Option<Failure>, Enqueue> {
        match self.refuses_dead_letter(record).filter(|_| record.topic == DEAD) {
            Some(Enqueue::Bad(failure)) if self.refuses == Refuses::Later => Ok(Some(failure)),
            Some(refuses) => Err(refuses),
            None => Ok(None),
        }
    }
}

pub(super) struct SharedByKey(Rc<RefCell<ByKey>>);

impl Sink for SharedByKey {
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        if record.value == Some(b"never") && record.topic != DEAD {
            return Enqueue::Bad(too_large());
        }
        let mut sink = self.0.borrow_mut();
        if sink.missing && record.topic != DEAD {
            return Enqueue::Blocked(Failure::new(FailureClass::Topic, "unknown_topic", "it is missing"));
        }
        let refused = match sink.answer(record) {
            Ok(refused) => refused,
            Err(answer) => return answer,
        };
        let key = (record.topic.to_owned(), record.key.unwrap_or_default().to_vec());
        let taken = Waiting { record: OwnedRecord::of(record), tag, refused, refusal: None };
        sink.keys.entry(key).or_default().push_back(taken);
        Enqueue::Taken
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        let ByKey { keys, refusals, delivered, dead_letters_wait, .. } = &mut *self.0.borrow_mut();
        for (_, queue) in keys.iter_mut().filter(|((topic, _), _)| topic != DEAD || !*dead_letters_wait) {
            while let Some(Waiting { record, tag, .. }) = queue.pop_front_if(|first| first.refused.is_none()) {
                delivered.push(record.with_record(&mut HeaderRoom::default(), |record| {
                    let header = |name: &str| {
                        let mut headers = record.headers.iter().filter(|it| it.name == name);
                        headers.next().filter(|_| headers.next().is_none()).and_then(|it| it.value)
                    };
                    let text = |name| header(name).map(|value| String::from_utf8_lossy(value).into_owned());
                    let parts = [Some(record.topic.to_owned()), text("eventType"), text("walrelay-error")];
                    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
                }));
                each(Report::Delivered(Delivered { token: tag.token, records: 1, bytes: 1 }));
            }
            if let Some(Waiting { record, tag, refused: Some(failure), refusal: refusal @ None }) = queue.front_mut() {
                *refusals += 1;
                let id = RefusalId(*refusals);
                *refusal = Some(id);
                let (record, failure) = (record.clone(), failure.clone());
                each(Report::Refused(Box::new(Refused { id, tag: *tag, record, failure })));
            }
        }
    }

    fn resolve(&mut self, refusal: RefusalId, resolution: Resolution<'_>) -> Enqueue {
        let mut sink = self.0.borrow_mut();
        let is_its = |queue: &&mut VecDeque<Waiting>| queue.front().is_some_and(|first| first.refusal == Some(refusal));
        let (record, token) = match resolution {
            Resolution::ReplaceWith(record, token) => (record, token),
            Resolution::Skip => {
                sink.keys.values_mut().find(is_its).and_then(VecDeque::pop_front).expect("a refused record");
                return Enqueue::Taken;
            }
            Resolution::Retry => panic!("{resolution:?}"),
        };
        let refused = match sink.answer(record) {
            Ok(refused) => refused,
            Err(answer) => return answer,
        };
        let first = sink.keys.values_mut().find(is_its).and_then(|queue| queue.front_mut()).expect("a refused record");
        (first.record, first.tag.token) = (OwnedRecord::of(record), token);
        (first.refused, first.refusal) = (refused, None);
        Enqueue::Taken
    }

    fn in_flight(&self) -> InFlight {
        let sink = self.0.borrow();
        let is_held = |queue: &&VecDeque<Waiting>| queue.front().is_some_and(|first| first.refusal.is_some());
        let count = |records: u64, queue: &VecDeque<Waiting>| records + queue.len() as u64;
        let held = sink.keys.values().filter(is_held).fold(0, count);
        InFlight { records: sink.keys.values().fold(0, count), held, ..InFlight::default() }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.0.borrow_mut().keys.clear();
        Ok(())
    }

    fn transaction_timeout(&self) -> Option<Duration> {
        self.0.borrow().transactions.then(|| seconds(60))
    }

    fn problem(&self) -> Option<String> {
        None
    }
}

/// A row of this key, as a message; its route may be bad.
fn row_of(key: &str, route: &str, kind: &str, payload: &str) -> Vec<u8> {
    let content = format!(
        r#"{{"id": "{kind}", "aggregatetype": {route}, "aggregateid": "{key}", "type": "{kind}", "payload": {payload}}}"#
    );
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    xlog_data(&[&b"M\x01"[..], &[0; 8], b"p\0", &length, content.as_bytes()].concat())
}

/// A relay whose bad rows become dead letters, its slot at 1000, and its server.
pub(super) fn with_dead_letters(sent: &[Vec<u8>]) -> (Relay<SharedByKey, TestClock>, Server, Rc<RefCell<ByKey>>) {
    with_dead_letters_in(ByKey::default(), sent)
}

pub(super) fn with_dead_letters_in(
    sink: ByKey,
    sent: &[Vec<u8>],
) -> (Relay<SharedByKey, TestClock>, Server, Rc<RefCell<ByKey>>) {
    let (sink, clock) = (Rc::new(RefCell::new(sink)), TestClock(Rc::new(Cell::new(Instant::now())), Instant::now()));
    let limits =
        Limits { coalesce: Duration::ZERO, shutdown_timeout: seconds(8), disconnect_after: Duration::from_mins(5) };
    let mapping = Mapping { message_prefixes: vec!["p".to_owned()], ..Mapping::default() };
    let outbox = Outbox::new(mapping, Vec::new()).unwrap();
    let metrics = Arc::new(Metrics::new("s", "p", clock.now()));
    let relay = Relay::new(outbox, SharedByKey(Rc::clone(&sink)), clock.clone(), metrics, Arc::default(), limits);
    let action = BadRowAction::DeadLetter;
    let bad_rows = BadRows { action, dead_letter_topic: DEAD.to_owned(), ..BadRows::default() };
    let mut relay = relay.with_bad_rows(bad_rows);
    relay.acquired(Lsn::new(1000));
    let sends = sent.iter().map(|message| (Duration::ZERO, message.clone())).collect();
    let began = clock.now();
    let server = Server { buffer: ReadBuffer::new(1 << 16), clock, began, until: seconds(2), sends, window: None };
    (relay, server, sink)
}

#[test]
fn nothing_waits_for_a_dead_letter_but_the_position() {
    let sent = [
        begin(2000),
        row_of("a", "\"order\"", "a1", "{}"),
        row_of("a", "\"order\"", "a2", "\"never\""),
        row_of("a", "\"order\"", "a3", "{}"),
        row_of("b", "null", "b1", "{}"),
        row_of("b", "\"order\"", "b2", "{}"),
        commit(2000, 2040),
    ];
    let (mut relay, mut server, sink) = with_dead_letters(&sent);
    sink.borrow_mut().dead_letters_wait = true;
    relay.stream(&mut server, None);
    let topic = "outbox.event.order";
    assert_eq!(sink.borrow().delivered, ["a1", "a3", "b2"].map(|kind| format!("{topic} {kind}")));
    assert_eq!((relay.acknowledged, relay.in_flight(), relay.flush_lsn()), (3, 2, Lsn::new(1000)));
    sink.borrow_mut().dead_letters_wait = false;
    relay.idle(seconds(1)).unwrap();
    let delivered = sink.borrow().delivered[3..].to_vec();
    let [first, second] = delivered.as_slice() else { panic!("{delivered:?}") };
    assert_eq!(first, &format!("{DEAD} a2 it is too large"));
    assert!(second.starts_with(&format!("{DEAD} b1 column")), "{second}");
    assert_eq!((relay.in_flight(), relay.flush_lsn(), relay.handled_bad_rows), (0, Lsn::new(2040), 2));
}

#[test]
fn a_bad_row_whose_dead_letter_is_refused_stops_the_relay_for_its_own_reason() {
    for (refuses, label) in [(Refuses::AtOnce, "null_route"), (Refuses::Later, "too_large")] {
        let sent =
            [begin(2000), row_of("c", "null", "c1", "{}"), row_of("b", "\"order\"", "b1", "{}"), commit(2000, 2040)];
        let (mut relay, mut server, sink) = with_dead_letters(&sent);
        let failure = Failure::new(FailureClass::Row, "too_large", "it is too large as well");
        sink.borrow_mut().no_dead_letters = Some(Enqueue::Bad(failure.clone()));
        sink.borrow_mut().refuses = refuses;
        let ended = relay.stream(&mut server, None);
        let StreamEnd::BadRow(bad) = &ended else { panic!("{ended:?}") };
        assert_eq!((bad.row.id.as_deref(), bad.row.reason.label()), (Some("c1"), label));
        assert!(bad.row.reason.to_string().starts_with("column \"aggregatetype\" is null"), "{}", bad.row.reason);
        assert_eq!((bad.position.ordinal, bad.confirmed), (0, Lsn::new(1000)));
        assert_eq!(bad.dead_letter_refused, Some((DEAD.to_owned(), failure)));
        assert_eq!(relay.in_flight(), u64::from(refuses == Refuses::Later), "the bad row alone");
        let mut counted = relay.metrics.bad_row_totals();
        counted.retain(|_, rows| *rows > 0);
        assert_eq!(counted, BTreeMap::from([("null_route".to_owned(), 1)]), "{refuses:?}");
    }
}

#[test]
fn a_row_that_is_named_has_its_fate_before_the_destination_sees_it() {
    for transactions in [false, true] {
        let sent = [
            begin(2000),
            row_of("a", "\"order\"", "a1", "{}"),
            row_of("a", "\"order\"", "a2", "{}"),
            row_of("a", "\"order\"", "a3", "\"never\""),
            row_of("a", "\"order\"", "a4", "{}"),
            commit(2000, 2040),
        ];
        let (mut relay, mut server, sink) = with_dead_letters_in(ByKey { transactions, ..ByKey::default() }, &sent);
        let at = |ordinal| Position { final_lsn: Lsn::new(2000), ordinal };
        relay.bad_rows.action = BadRowAction::Stop;
        relay.bad_rows.at =
            vec![(at(0), BadRowAction::Skip), (at(1), BadRowAction::DeadLetter), (at(2), BadRowAction::DeadLetter)];
        relay.set_dead_letter_source("7/s/1".to_owned());
        relay.stream(&mut server, None);
        let delivered = sink.borrow().delivered.join(", ");
        assert!(delivered.contains(&format!("{DEAD} a2 --bad-row-at names it")), "{delivered}");
        assert!(delivered.contains(&format!("{DEAD} a3 --bad-row-at names it")), "{delivered}");
        assert!(delivered.contains("outbox.event.order a4") && !delivered.contains("a1"), "{delivered}");
        assert_eq!((relay.handled_bad_rows, relay.flush_lsn()), (3, Lsn::new(2040)));
    }
}

/// What a topic that is missing for long makes of a row, and how often it was tried by then.
fn with_a_missing_topic(action: BadRowAction) -> (u64, u64) {
    let (mut relay, mut server, sink) =
        with_dead_letters(&[begin(2000), row_of("c", "\"order\"", "c1", "{}"), commit(2000, 2040)]);
    relay.bad_rows.action = action;
    server.until = seconds(120);
    sink.borrow_mut().missing = true;
    relay.stream(&mut server, None);
    (relay.handled_bad_rows, relay.flush_lsn().bytes())
}

#[test]
fn a_topic_that_is_missing_for_long_costs_a_row_only_where_it_is_kept() {
    assert_eq!(with_a_missing_topic(BadRowAction::DeadLetter), (1, 2040));
    assert_eq!(with_a_missing_topic(BadRowAction::Skip), (0, 1000));
    assert_eq!(with_a_missing_topic(BadRowAction::Stop), (0, 1000));
}

#[test]
fn a_dead_letter_that_is_dropped_as_a_duplicate_is_skipped_and_its_row_counted_once() {
    let (mut relay, mut server, sink) =
        with_dead_letters(&[begin(2000), row_of("c", "null", "c1", "{}"), commit(2000, 2040)]);
    let dropped = Failure::new(FailureClass::Row, DUPLICATE, "dropped as a repeat");
    sink.borrow_mut().no_dead_letters = Some(Enqueue::Bad(dropped));
    sink.borrow_mut().refuses = Refuses::Later;
    relay.stream(&mut server, None);
    assert_eq!((relay.in_flight(), relay.flush_lsn(), relay.handled_bad_rows), (0, Lsn::new(2040), 1));
    assert!(sink.borrow().delivered.is_empty());
}

#[test]
fn the_loss_of_a_payload_is_noted_once_however_often_the_dead_letter_is_offered() {
    for (transactions, refuses) in [(false, Refuses::AtOnce), (false, Refuses::Later), (true, Refuses::AtOnce)] {
        let [table, row] = table_and_row(["1", "order", "a", "a1", "never"]);
        let no_dead_letters = Some(Enqueue::Full);
        let sink = ByKey { transactions, refuses, no_payloads: true, no_dead_letters, ..ByKey::default() };
        let (relay, mut server, sink) = with_dead_letters_in(sink, &[begin(2000), table, row, commit(2000, 2040)]);
        server.until = Duration::from_hours(1);
        let (mut relay, noted) = noting(relay);
        let mut session = Session::new(relay.clock().now(), None, Lsn::new(1000));
        let mut turn = |relay: &mut Relay<_, _>| (0..500).for_each(|_| relay.turn(&mut server, &mut session).unwrap());
        turn(&mut relay);
        assert_eq!((noted.ids(), sink.borrow().delivered.len()), (vec![], 0), "{refuses:?}");
        sink.borrow_mut().no_dead_letters = None;
        turn(&mut relay);
        assert_eq!((noted.ids(), relay.handled_bad_rows), (vec![Some("1".to_owned())], 1), "{refuses:?}");
        assert_eq!(sink.borrow().delivered, [format!("{DEAD} a1 it is too large")]);
        assert_eq!((relay.in_flight(), relay.flush_lsn()), (0, Lsn::new(1000)), "the note is not committed");
        noted.commit(1);
        turn(&mut relay);
        assert_eq!(relay.flush_lsn(), Lsn::new(2040));
    }
}

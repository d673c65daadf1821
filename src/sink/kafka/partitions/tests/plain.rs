//! One partition, step by step.

use super::*;
use std::ops::Range;

fn record(value: &[u8]) -> Record<'_> {
    Record {
        topic: "plain",
        key: None,
        value: Some(value),
        headers: &[],
        timestamp_millis: 0,
        partition: None,
        content: Content::Unknown,
    }
}

/// One producer, one partition, so many records offered: how many the producer was handed.
fn handed(world: &World) -> usize {
    world.producers[0].waiting.values().map(VecDeque::len).sum()
}

#[test]
fn the_first_record_goes_alone_and_what_follows_its_report_goes_together() {
    let (mut world, mut partitions) = (World::new(1, 1), Partitions::default());
    world.bad.clear();
    let at = partitions.add(PartitionTarget { topic: 0, partition: 0, producer: 0 }, world.now);
    let now = world.now;
    offer_plain(&mut partitions, at, 10, now, &mut world);
    assert_eq!((handed(&world), partitions.in_flight().records), (1, 10));
    let first = world.producers[0].waiting.get_mut(&0).and_then(VecDeque::pop_front).unwrap();
    partitions.delivered(first.ticket, now);
    partitions.advance(now, &mut world, &mut |_| {});
    assert_eq!(handed(&world), 9);
    // With all of them delivered, and after a pause, it has to be proven again.
    for message in world.producers[0].waiting.remove(&0).unwrap() {
        partitions.delivered(message.ticket, now);
    }
    let later = now + partition::PROOF_HOLDS;
    offer_plain(&mut partitions, at, 2, later, &mut world);
    assert_eq!(handed(&world), 1);
    partitions.producer_renewed(0, later);
    partitions.forget(later);
    assert_eq!(partitions.in_flight(), InFlight::default());
}

#[test]
fn only_a_record_that_others_wait_for_or_that_has_waited_leaves_at_once() {
    let (mut world, mut partitions) = (World::new(1, 1), Partitions::default());
    world.bad.clear();
    let now = world.now;
    let at = partitions.add(PartitionTarget { topic: 0, partition: 0, producer: 0 }, now);
    let enqueue = |number: u64, partitions: &mut Partitions, world: &mut World| {
        let tag = Tag { token: Token::unpack(number), origin: Origin::default() };
        partitions.enqueue(at, &record(b"7"), tag, now, world);
        partitions.advance(now, world, &mut |_| {})
    };
    assert!(enqueue(0, &mut partitions, &mut world), "the first proves its partition");
    assert!(!enqueue(1, &mut partitions, &mut world), "the second waits for the proof");
    let first = world.producers[0].waiting.get_mut(&0).and_then(VecDeque::pop_front).unwrap();
    partitions.delivered(first.ticket, now);
    assert!(partitions.advance(now, &mut world, &mut |_| {}), "the second has waited");
    assert!(!enqueue(2, &mut partitions, &mut world), "others may join the third");
}

/// One producer, one proven partition.
fn proven() -> (World, Partitions, u32) {
    let (mut world, mut partitions) = (World::new(1, 1), Partitions::default());
    world.bad.clear();
    let now = world.now;
    let at = partitions.add(PartitionTarget { topic: 0, partition: 0, producer: 0 }, now);
    offer_plain(&mut partitions, at, 1, now, &mut world);
    answer(&mut partitions, 1, now, &mut world);
    partitions.advance(now, &mut world, &mut |_| {});
    (world, partitions, at)
}

fn offer_plain(partitions: &mut Partitions, at: u32, records: u64, now: Instant, world: &mut World) {
    for number in 0..records {
        let tag = Tag { token: Token::unpack(number), origin: Origin::default() };
        partitions.enqueue(at, &record(b"7"), tag, now, world);
    }
}

/// The first so many records that the producer has are delivered.
fn answer(partitions: &mut Partitions, records: usize, now: Instant, world: &mut World) {
    let waiting = world.producers[0].waiting.get_mut(&0).unwrap();
    let messages: Vec<Message> = waiting.drain(..records).collect();
    for message in messages {
        partitions.delivered(message.ticket, now);
    }
}

#[test]
fn what_librdkafka_would_hold_waits_here_until_few_enough_are_unanswered_and_then_leaves_together() {
    let (mut world, mut partitions, at) = proven();
    let now = world.now;
    offer_plain(&mut partitions, at, 7, now, &mut world);
    assert_eq!(handed(&world), 7, "they may still gather in the producer");
    partitions.flushed();
    offer_plain(&mut partitions, at, 20, now, &mut world);
    assert_eq!(handed(&world), 7, "they have left, and nothing leaves behind them");
    assert!(!partitions.advance(now, &mut world, &mut |_| {}));
    partitions.flushed();
    answer(&mut partitions, 2, now, &mut world);
    assert!(!partitions.advance(now, &mut world, &mut |_| {}));
    assert_eq!(handed(&world), 5);
    answer(&mut partitions, 1, now, &mut world);
    assert!(partitions.advance(now, &mut world, &mut |_| {}), "the producers were flushed while they waited");
    assert_eq!(handed(&world), 4 + 20);
}

#[test]
fn a_backlogs_records_gather_in_the_producer_however_many_are_unanswered() {
    let (mut world, mut partitions, at) = proven();
    let now = world.now;
    offer_plain(&mut partitions, at, 300, now, &mut world);
    assert_eq!(handed(&world), 300);
    partitions.flushed();
    offer_plain(&mut partitions, at, 300, now, &mut world);
    answer(&mut partitions, 300, now, &mut world);
    assert!(!partitions.advance(now, &mut world, &mut |_| {}), "the producers were not flushed since");
    offer_plain(&mut partitions, at, 300, now, &mut world);
    assert_eq!(handed(&world), 600);
}

#[test]
fn one_of_a_thousand_is_found_in_some_ten_requests() {
    let (mut world, mut partitions) = (World::new(1, 1), Partitions::default());
    world.limit = usize::MAX;
    world.cuts = false;
    world.bad = BTreeSet::from([700]);
    let at = partitions.add(PartitionTarget { topic: 0, partition: 0, producer: 0 }, world.now);
    let now = world.now;
    for number in 0..1001_u64 {
        let tag = Tag {
            token: Token::unpack(number),
            origin: Origin { position: Position { ordinal: number, ..Position::default() }, ..Origin::default() },
        };
        let value = number.to_string();
        partitions.enqueue(at, &record(value.as_bytes()), tag, now, &mut world);
    }
    // The first proves the partition, and the others are refused as one batch.
    let first = world.producers[0].waiting.get_mut(&0).and_then(VecDeque::pop_front).unwrap();
    partitions.delivered(first.ticket, now);
    partitions.advance(now, &mut world, &mut |_| {});
    let batch: Vec<Message> = world.producers[0].waiting.remove(&0).unwrap().into();
    fail(&mut partitions, batch, FailureClass::Row);
    let (mut requests, mut refused) = (0, None);
    while refused.is_none() {
        partitions.advance(now, &mut world, &mut |report| {
            let Report::Refused(one) = report else { panic!("{report:?}") };
            refused = Some(one.tag.origin.position.ordinal);
        });
        let Some(request) = world.producers[1].requests.pop() else { continue };
        requests += 1;
        if request.messages.iter().any(|one| one.number == 700) {
            fail(&mut partitions, request.messages, FailureClass::Row);
        } else {
            for one in request.messages {
                partitions.delivered(one.ticket, now);
            }
        }
    }
    assert_eq!(refused, Some(700));
    assert!(requests <= 20, "{requests} requests");
    assert_eq!(partitions.in_flight_by_state().held, 301);
}

#[test]
fn what_waits_for_a_dead_letter_in_another_partition_does_not_let_it_linger() {
    let (mut world, mut partitions, at) = proven();
    let now = world.now;
    let other = partitions.add(PartitionTarget { topic: 0, partition: 1, producer: 0 }, now);
    let tag = Tag { token: Token::unpack(7), origin: Origin::default() };
    let first_of_other =
        |world: &mut World| world.producers[0].waiting.get_mut(&1).and_then(VecDeque::pop_front).unwrap();
    // The broker knows the producer in the other partition, so that records may linger there.
    partitions.enqueue(other, &record(b"8"), tag, now, &mut world);
    partitions.delivered(first_of_other(&mut world).ticket, now);
    offer_plain(&mut partitions, at, 1, now, &mut world);
    let refused = world.producers[0].waiting.get_mut(&0).unwrap().drain(..).collect();
    fail(&mut partitions, refused, FailureClass::Row);
    let mut id = None;
    partitions.advance(now, &mut world, &mut |report| match report {
        Report::Refused(one) => id = Some(one.id),
        other @ (Report::Delivered(_) | Report::Failed(_)) => panic!("{other:?}"),
    });
    assert!(!partitions.advance(now, &mut world, &mut |_| {}), "the relay has not decided");
    let dead_letter = Resolution::ReplaceWith(&record(b"9"), Token::unpack(9));
    assert!(matches!(partitions.resolve(id.unwrap(), dead_letter, other, now, &mut world), Enqueue::Taken));
    for _ in 0..2 {
        assert!(partitions.advance(now, &mut world, &mut |_| {}), "its partition waits for the dead letter");
    }
    partitions.delivered(first_of_other(&mut world).ticket, now);
    assert!(!partitions.advance(now, &mut world, &mut |_| {}), "nothing waits any more");
    assert_eq!(partitions.in_flight(), InFlight::default());
}

/// A transaction with records of these numbers. A batch is as many as the producer has. Returns the batches up to the first that is refused; if
/// none is, the transaction was committed.
fn transact(
    (world, partitions, at): &mut (World, Partitions, u32),
    numbers: Range<u64>,
    is_refused: impl Fn(&[u64]) -> bool,
) -> Vec<Vec<u64>> {
    let (now, mut batches) = (world.now, Vec::new());
    for number in numbers {
        let tag = Tag {
            token: Token::unpack(number),
            origin: Origin { position: Position { ordinal: number, ..Position::default() }, ..Origin::default() },
        };
        partitions.enqueue(*at, &record(format!("{number:04}").as_bytes()), tag, now, world);
    }
    loop {
        partitions.advance(now, world, &mut |report| panic!("{report:?}"));
        let batch = world.producers[0].waiting.remove(&0).unwrap_or_default();
        if batch.is_empty() {
            partitions.committed();
            return batches;
        }
        let (tickets, numbers): (Vec<Ticket>, Vec<u64>) = batch.iter().map(|one| (one.ticket, one.number)).unzip();
        let refused = is_refused(&numbers);
        batches.push(numbers);
        if refused {
            let bytes = tickets.iter().map(|ticket| partitions.bytes_of(*ticket)).sum();
            partitions.refused_in_transaction(&tickets, bytes, now);
            partitions.forget(now);
            return batches;
        }
        for ticket in tickets {
            partitions.delivered(ticket, now);
        }
    }
}

#[test]
fn one_of_a_thousand_of_a_transaction_is_found_in_three_more_and_then_batches_are_as_large_as_ever() {
    let mut all = proven();
    let refused: Vec<Vec<u64>> =
        (0..4).map(|_| transact(&mut all, 0..1001, |it| it.contains(&700)).pop().unwrap()).collect();
    assert_eq!(refused.iter().map(Vec::len).collect::<Vec<_>>(), [1001, 62, 3, 1]);
    assert_eq!(refused[3], [700]);
    assert!(all.1.in_flight_by_state() == InFlight::default() && !all.1.suspects.is_empty());
    // Without the record, or with its dead letter, all others are delivered.
    let batches = transact(&mut all, 0..1001, |_| false);
    assert_eq!(batches.concat(), (0..1001).collect::<Vec<_>>(), "in their order");
    assert_eq!((all.1.suspects.is_empty(), all.1.take_events()), (true, Vec::new()));
    assert_eq!(transact(&mut all, 0..1001, |_| false).iter().map(Vec::len).max(), Some(1001));
}

#[test]
fn records_before_and_behind_a_refused_batch_go_as_ever() {
    let mut all = proven();
    let (world, partitions, at) = &mut all;
    let now = world.now;
    offer_plain(partitions, *at, 2, now, world);
    let origin = |ordinal| Origin { position: Position { ordinal, ..Position::default() }, ..Origin::default() };
    let tickets: Vec<Ticket> = [500, 600]
        .map(|number| {
            let tag = Tag { token: Token::unpack(number), origin: origin(number) };
            partitions.enqueue(*at, &record(b"7"), tag, now, world);
            world.producers[0].waiting.get_mut(&0).and_then(VecDeque::pop_back).unwrap().ticket
        })
        .into();
    // Of 1,001 of these records.
    partitions.refused_in_transaction(&tickets, 68_068, now);
    partitions.forget(now);
    world.producers[0].waiting.clear();
    let batches = transact(&mut all, 0..1001, |_| false);
    let longest = |from, to| batches.iter().filter(|it| it.iter().all(|n| (from..=to).contains(n))).map(Vec::len).max();
    assert_eq!(
        (longest(0, 499), longest(500, 600), longest(601, 1000)),
        (Some(499), Some(62), Some(377)),
        "{batches:?}"
    );
}

#[test]
fn batches_are_smaller_for_a_while_if_the_broker_refuses_none_of_a_transactions_records_alone() {
    let mut all = proven();
    let is_refused = |batch: &[u64]| batch.len() > 100;
    assert_eq!(transact(&mut all, 0..1001, is_refused).pop().unwrap().len(), 1001);
    transact(&mut all, 0..1001, is_refused);
    assert!(all.1.suspects.is_empty());
    assert!(matches!(all.1.take_events()[..], [(_, Event::SmallerBatches { .. })]));
    let longest = |all: &mut _| transact(all, 0..1001, |_| false).iter().map(Vec::len).max();
    assert_eq!(longest(&mut all), Some(500));
    all.0.now += partition::WINDOW_HOLDS;
    assert_eq!(longest(&mut all), Some(1000));
}

/// As with a broker that has taken both, and refuses the first one when it is sent again, since its answer was lost.
#[test]
fn a_record_that_fails_is_not_sent_again_behind_a_later_one_in_whichever_order_their_reports_come() {
    for failed_first in [true, false] {
        let (mut world, mut partitions, at) = proven();
        let now = world.now;
        offer_plain(&mut partitions, at, 2, now, &mut world);
        let waiting = world.producers[0].waiting.get_mut(&0).unwrap();
        let (first, second) = (waiting.pop_front().unwrap(), waiting.pop_front().unwrap());
        if failed_first {
            fail(&mut partitions, vec![first], FailureClass::Environment);
            partitions.delivered(second.ticket, now);
        } else {
            partitions.delivered(second.ticket, now);
            fail(&mut partitions, vec![first], FailureClass::Environment);
        }
        let mut starts_over = false;
        partitions.advance(now, &mut world, &mut |report| starts_over |= matches!(report, Report::Failed(_)));
        assert!(starts_over, "failed first: {failed_first}");
    }
}

/// Two records are taken for delivered, and the one behind them is stored at this offset; the first one of the partition was at 5.
/// Returns how many earlier records are delivered by that, and whether the relay hears of a failure.
fn implied_before(offset: i64) -> (usize, bool) {
    let (mut world, mut partitions, at) = proven();
    let now = world.now;
    offer_plain(&mut partitions, at, 3, now, &mut world);
    let waiting = world.producers[0].waiting.get_mut(&0).unwrap();
    let tickets: Vec<Ticket> = waiting.drain(..3).map(|message| message.ticket).collect();
    let first = partitions.list[0].offset;
    assert_eq!(first, -1);
    partitions.list[0].offset = 5;
    tickets[..2].iter().for_each(|ticket| partitions.implied(*ticket, now));
    assert_eq!(partitions.in_flight().records, 3, "nothing shows that they are stored");
    let mut delivered = 0;
    partitions.stored(tickets[2], offset, now, |_| delivered += 1);
    let mut failed = false;
    partitions.advance(now, &mut world, &mut |report| failed |= matches!(report, Report::Failed(_)));
    (delivered - 1, failed)
}

#[test]
fn a_record_without_an_answer_is_delivered_if_the_log_has_room_for_it_before_a_later_one() {
    assert_eq!(implied_before(8), (2, false));
    assert_eq!(implied_before(20), (2, false), "others have written as well");
    assert_eq!(implied_before(7), (0, true));
    assert_eq!(implied_before(0), (0, true), "the topic was created again");
}

#[test]
fn a_record_without_an_answer_is_given_up_if_no_later_one_is_reported() {
    let (mut world, mut partitions, at) = proven();
    let now = world.now;
    offer_plain(&mut partitions, at, 1, now, &mut world);
    let message = world.producers[0].waiting.get_mut(&0).and_then(VecDeque::pop_front).unwrap();
    partitions.implied(message.ticket, now);
    let mut failures = |at: Instant| {
        let mut failures = 0;
        partitions.advance(at, &mut world, &mut |report| failures += u32::from(matches!(report, Report::Failed(_))));
        failures
    };
    assert_eq!([now, now + Duration::from_millis(900), now + partition::IMPLIED_FOR].map(&mut failures), [0, 0, 1]);
}

/// A record with this number as its value and its row's.
fn offer_numbered(partitions: &mut Partitions, at: u32, number: u64, now: Instant, world: &mut World) {
    let value = number.to_string();
    let tag = Tag {
        token: Token::unpack(number),
        origin: Origin { position: Position { ordinal: number, ..Position::default() }, ..Origin::default() },
    };
    assert!(matches!(partitions.enqueue(at, &record(value.as_bytes()), tag, now, world), Enqueue::Taken));
}

/// Answers the search producer's request: by a code that is in no list if it has the record `poisoned`. Returns the request's size.
fn answer_search(partitions: &mut Partitions, poisoned: u64, now: Instant, world: &mut World) -> usize {
    partitions.advance(now, world, &mut |report| panic!("{report:?}"));
    let request: Vec<Message> = world.producers[1].waiting.remove(&0).unwrap_or_default().into();
    let size = request.len();
    if request.iter().any(|message| message.number == poisoned) {
        fail(partitions, request, FailureClass::Unlisted);
        partitions.search_producer_renewed(now);
    } else {
        for message in request {
            partitions.delivered(message.ticket, now);
        }
    }
    // The answer is acted on, and the next request collected.
    partitions.advance(now, world, &mut |report| panic!("{report:?}"));
    size
}

#[test]
fn a_code_in_no_list_names_its_record_after_sixteenths_and_only_its_partition_waits_ever_longer() {
    let (mut world, mut partitions, at) = proven();
    world.cuts = true;
    let other = partitions.add(PartitionTarget { topic: 0, partition: 1, producer: 0 }, world.now);
    let now = world.now;
    (0..200).for_each(|number| offer_numbered(&mut partitions, at, number, now, &mut world));
    let all: Vec<Message> = world.producers[0].waiting.remove(&0).unwrap().into();
    assert_eq!(all.len(), 200);
    fail(&mut partitions, all, FailureClass::Unlisted);
    partitions.producer_renewed(0, now);
    let mut sizes = Vec::new();
    while partitions.tried_alone().is_none() {
        sizes.push(answer_search(&mut partitions, 42, now, &mut world));
        assert!(sizes.len() < 60, "{sizes:?}");
    }
    assert!(sizes.iter().all(|size| *size <= 13), "{sizes:?}");
    let tried = |partitions: &Partitions| {
        let tried = partitions.tried_alone().unwrap();
        (tried.origin.position.ordinal, tried.attempts, tried.others_arrive)
    };
    assert_eq!(tried(&partitions), (42, 1, false));
    assert_eq!(partitions.blocked().map(|failure| failure.class), Some(FailureClass::Unlisted));
    let mut later = now;
    for (attempt, pause) in (2..).zip([5, 10, 20, 40, 60, 60]) {
        offer_numbered(&mut partitions, other, 1000 + u64::from(attempt), later, &mut world);
        let arrived = world.producers[0].waiting.get_mut(&1).and_then(VecDeque::pop_front).unwrap();
        partitions.delivered(arrived.ticket, later);
        later += Duration::from_millis(1000 * pause - 1);
        assert_eq!(answer_search(&mut partitions, 42, later, &mut world), 0, "{attempt}");
        later += Duration::from_millis(1);
        assert_eq!(answer_search(&mut partitions, 42, later, &mut world), 1, "{attempt}");
        assert_eq!(tried(&partitions), (42, attempt, true));
    }
    later += Duration::from_mins(1);
    assert_eq!(answer_search(&mut partitions, u64::MAX, later, &mut world), 1);
    assert!(partitions.tried_alone().is_none() && partitions.blocked().is_none());
}

#[test]
fn in_transactions_a_record_with_an_unknown_answer_is_not_taken_before_its_time_and_known_until_it_is_committed() {
    let (mut world, mut partitions, at) = proven();
    let now = world.now;
    offer_numbered(&mut partitions, at, 7, now, &mut world);
    let message = world.producers[0].waiting.get_mut(&0).and_then(VecDeque::pop_front).unwrap();
    let origin = partitions.tag(message.ticket).origin;
    partitions.try_alone_in_transaction(message.ticket, "orders", &failure(FailureClass::Unlisted), now);
    partitions.forget(now);
    let waits = |seconds| partitions.waits_alone(origin, now + Duration::from_secs(seconds)).is_some();
    assert!(waits(4) && !waits(5));
    assert!(
        partitions
            .waits_alone(Origin { position: Position { ordinal: 8, ..origin.position }, ..origin }, now)
            .is_none()
    );
    partitions.committed();
    assert_eq!(partitions.tried_alone().map(|tried| tried.origin), Some(origin), "it was not in that transaction");
    offer_numbered(&mut partitions, at, 7, now, &mut world);
    partitions.committed();
    assert!(partitions.tried_alone().is_none());
}

/// An unchosen partition with so many records, the values of which are their numbers, and two partitions of the same topic.
fn unchosen(records: u64) -> (World, Partitions, u32, [u32; 2]) {
    let (mut world, mut partitions) = (World::new(1, 1), Partitions::default());
    world.bad.clear();
    let now = world.now;
    let target = |partition| PartitionTarget { topic: 0, partition, producer: 0 };
    let at = partitions.add(target(UNCHOSEN), now);
    let chosen = [0, 1].map(|partition| partitions.add(target(partition), now));
    for number in 0..records {
        let tag = Tag { token: Token::unpack(number), origin: Origin::default() };
        partitions.enqueue(at, &record(number.to_string().as_bytes()), tag, now, &mut world);
    }
    (world, partitions, at, chosen)
}

/// The number of a record.
fn number_of(record: &Record<'_>) -> u64 {
    std::str::from_utf8(record.value.unwrap()).unwrap().parse().unwrap()
}

/// Delivers everything, and returns the numbers of the records of each partition as they were handed over.
fn delivered(world: &mut World, partitions: &mut Partitions) -> BTreeMap<i32, Vec<u64>> {
    let (now, mut found) = (world.now, BTreeMap::<i32, Vec<u64>>::new());
    loop {
        partitions.advance(now, world, &mut |report| panic!("{report:?}"));
        let waiting = &mut world.producers[0].waiting;
        let Some((partition, message)) = waiting.iter_mut().find_map(|(at, all)| Some((*at, all.pop_front()?))) else {
            return found;
        };
        found.entry(partition).or_default().push(message.number);
        partitions.delivered(message.ticket, now);
    }
}

#[test]
fn records_whose_partition_is_not_known_wait_in_order_and_are_handed_over_once_it_is() {
    let (mut world, mut partitions, at, chosen) = unchosen(10);
    let now = world.now;
    partitions.advance(now, &mut world, &mut |report| panic!("{report:?}"));
    assert_eq!((handed(&world), partitions.in_flight().records), (0, 10));
    assert_eq!(partitions.waiting(at), Waiting::For(None));
    partitions.waits_for(at, failure(FailureClass::Environment));
    assert!(partitions.blocked().is_some());
    // Number 3 asks for one that is not there.
    partitions.choose_for_waiting(at, |record, _| {
        let number = number_of(record);
        (number != 3).then(|| chosen[usize::try_from(number % 2).unwrap()])
    });
    assert_eq!(partitions.waiting(at), Waiting::For(None));
    assert!(partitions.blocked().is_none());
    let found = delivered(&mut world, &mut partitions);
    assert_eq!(found, BTreeMap::from([(0, vec![0, 2, 4, 6, 8]), (1, vec![1, 5, 7, 9])]));
    partitions.choose_for_waiting(at, |_, _| Some(chosen[1]));
    assert_eq!(delivered(&mut world, &mut partitions), BTreeMap::from([(1, vec![3])]));
    assert_eq!((partitions.waiting(at), partitions.in_flight()), (Waiting::Nothing, InFlight::default()));
}

#[test]
fn a_record_that_no_partition_takes_is_refused_and_those_behind_it_go_on_once_it_is_resolved() {
    let (mut world, mut partitions, at, chosen) = unchosen(4);
    let now = world.now;
    let refuse = |partitions: &mut Partitions, world: &mut World| {
        partitions.refuse_waiting(at, failure(FailureClass::Topic));
        assert_eq!(partitions.waiting(at), Waiting::Decided);
        partitions.choose_for_waiting(at, |_, _| panic!("the relay decides first"));
        let mut refused = Vec::new();
        partitions.advance(now, world, &mut |report| match report {
            Report::Refused(it) => refused.push(it.id),
            Report::Delivered(_) | Report::Failed(_) => panic!("{report:?}"),
        });
        assert_eq!(refused.len(), 1);
        refused[0]
    };
    let id = refuse(&mut partitions, &mut world);
    partitions.resolve(id, Resolution::Retry, at, now, &mut world);
    assert_eq!((partitions.waiting(at), partitions.in_flight().records), (Waiting::For(None), 4));
    let id = refuse(&mut partitions, &mut world);
    partitions.resolve(id, Resolution::Skip, at, now, &mut world);
    assert_eq!((partitions.waiting(at), partitions.in_flight().records), (Waiting::For(None), 3));
    // The dead letter's own topic is not known either: what it stands for goes on with it.
    let dead = partitions.add(PartitionTarget { topic: 1, partition: UNCHOSEN, producer: 0 }, now);
    let id = refuse(&mut partitions, &mut world);
    partitions.resolve(id, Resolution::ReplaceWith(&record(b"100"), Token::unpack(7)), dead, now, &mut world);
    assert_eq!(partitions.waiting(at), Waiting::Decided, "it waits for the dead letter");
    partitions.choose_for_waiting(dead, |_, _| Some(chosen[0]));
    assert_eq!(delivered(&mut world, &mut partitions), BTreeMap::from([(0, vec![100])]));
    assert_eq!(partitions.waiting(at), Waiting::For(None), "it goes on");
    partitions.choose_for_waiting(at, |_, _| Some(chosen[0]));
    assert_eq!(delivered(&mut world, &mut partitions), BTreeMap::from([(0, vec![2, 3])]));
    assert_eq!(partitions.in_flight(), InFlight::default());
}

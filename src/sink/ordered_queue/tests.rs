use super::sender::Sender;
use super::*;
use crate::lsn::{Lsn, Position};
use crate::sink::{
    Content, DUPLICATE, Failure, FailureClass, Origin, Record, RefusalId, Report, Resolution, Tag, Token,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// A plain model of the queue: a list for each key, of which some records are under way.
#[derive(Debug, Default)]
struct Model {
    queue: BTreeMap<u16, Queue>,
    pushed: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// The number of each, and what was pushed or took its place.
    records: VecDeque<(u64, u64)>,
    under_way: usize,
    held: bool,
    postponed: bool,
    /// The first takes the place of another, and is sent alone.
    instead: bool,
}

#[derive(Debug, Clone)]
enum Act {
    Push(u16),
    Take {
        at_most: usize,
        of_a_key: u32,
    },
    /// Something becomes of the n-th key that has records under way.
    Delivered(usize),
    Refused(usize),
    Returned(usize),
    Postponed(usize),
    /// The n-th key that waits goes on.
    Resume(usize),
    /// The n-th key that is held is resolved.
    Resolve(usize, Way),
    Clear,
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Again,
    Gone,
    Instead,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let way = prop_oneof![Just(Way::Again), Just(Way::Gone), Just(Way::Instead)];
    let act = prop_oneof![
        6 => (0..5_u16).prop_map(Act::Push),
        4 => (0..6_usize, 1..4_u32).prop_map(|(at_most, of_a_key)| Act::Take { at_most, of_a_key }),
        5 => (0..5_usize).prop_map(Act::Delivered),
        2 => (0..5_usize).prop_map(Act::Refused),
        2 => (0..5_usize).prop_map(Act::Returned),
        2 => (0..5_usize).prop_map(Act::Postponed),
        2 => (0..5_usize).prop_map(Act::Resume),
        3 => ((0..5_usize), way).prop_map(|(at, way)| Act::Resolve(at, way)),
        1 => Just(Act::Clear),
    ];
    prop::collection::vec(act, 0..80)
}

impl Queue {
    fn could_be_taken(&self) -> bool {
        !self.held && !self.postponed && self.under_way == 0 && !self.records.is_empty()
    }
}

impl Model {
    fn nth(&self, number: usize, holds: impl Fn(&Queue) -> bool) -> Option<u16> {
        let fitting: Vec<u16> = self.queue.iter().filter(|(_, queue)| holds(queue)).map(|(key, _)| *key).collect();
        fitting.get(number % fitting.len().max(1)).copied()
    }

    fn queue(&mut self, key: u16) -> &mut Queue {
        self.queue.entry(key).or_default()
    }

    fn held(&self) -> u64 {
        self.queue.values().filter(|queue| queue.held).map(|queue| queue.records.len() as u64).sum()
    }

    fn could_take(&self) -> bool {
        self.queue.values().any(Queue::could_be_taken)
    }

    /// What was taken has to be the front of queues of which nothing was under way or held, of those with the oldest first records, in the
    /// order of all.
    fn take(
        &mut self,
        queue: &OrderedQueue<u64>,
        batch: &[TakenRecord<u64>],
        at_most: usize,
        of_a_key: u32,
    ) -> Result<(), TestCaseError> {
        let mut queues: Vec<_> = self.queue.iter().filter(|(_, queue)| queue.could_be_taken()).collect();
        queues.sort_unstable_by_key(|(_, queue)| queue.records.front().map(|(number, _)| *number));
        let front = |(key, queue): (&u16, &Queue)| {
            let most = if queue.instead { 1 } else { of_a_key as usize };
            let to_send = queue.records.iter().take(most);
            to_send.map(|(number, item)| (*number, *item, *key)).collect::<Vec<_>>()
        };
        let mut fronts: Vec<_> = queues.into_iter().flat_map(front).take(at_most).collect();
        fronts.sort_unstable();
        let owner = |key: KeyId| u16::try_from(queue.states[key.0 as usize].hash.0).unwrap();
        let taken: Vec<_> = batch.iter().map(|taken| (taken.number, taken.item, owner(taken.key))).collect();
        prop_assert_eq!(&taken, &fronts);
        for (_, _, key) in taken {
            self.queue(key).under_way += 1;
        }
        Ok(())
    }
}

/// The key with this number as its hash.
fn of(queue: &mut OrderedQueue<u64>, number: u16) -> KeyId {
    queue.key(KeyHash(number.into()))
}

fn play(acts: Vec<Act>) -> Result<(), TestCaseError> {
    let (mut queue, mut model) = (OrderedQueue::<u64>::default(), Model::default());
    for act in acts {
        match act {
            Act::Push(key) => {
                let of = of(&mut queue, key);
                queue.push(of, model.pushed);
                let pushed = model.pushed;
                model.queue(key).records.push_back((pushed, pushed));
                model.pushed += 1;
            }
            Act::Take { at_most, of_a_key } => {
                let (mut batch, mut left) = (Vec::new(), at_most);
                queue.take(&mut batch, of_a_key, |_, _| {
                    left = left.wrapping_sub(1);
                    if left == usize::MAX { Fit::Full } else { Fit::Takes }
                });
                model.take(&queue, &batch, at_most, of_a_key)?;
            }
            Act::Delivered(number) => {
                if let Some(key) = model.nth(number, |queue| queue.under_way > 0) {
                    let of = of(&mut queue, key);
                    queue.delivered(of);
                    let queue = model.queue(key);
                    queue.under_way -= 1;
                    queue.instead = false;
                    queue.records.pop_front();
                }
            }
            Act::Refused(number) => {
                if let Some(key) = model.nth(number, |queue| queue.under_way > 0) {
                    let of = of(&mut queue, key);
                    queue.refused(of);
                    *model.queue(key) = Queue { under_way: 0, held: true, ..std::mem::take(model.queue(key)) };
                }
            }
            Act::Returned(number) => {
                if let Some(key) = model.nth(number, |queue| queue.under_way > 0) {
                    let of = of(&mut queue, key);
                    queue.returned(of);
                    model.queue(key).under_way = 0;
                }
            }
            Act::Postponed(number) => {
                if let Some(key) = model.nth(number, |queue| queue.under_way > 0) {
                    let of = of(&mut queue, key);
                    queue.postponed(of);
                    *model.queue(key) = Queue { under_way: 0, postponed: true, ..std::mem::take(model.queue(key)) };
                }
            }
            Act::Resume(number) => {
                if let Some(key) = model.nth(number, |queue| queue.postponed) {
                    let of = of(&mut queue, key);
                    queue.resume(of);
                    model.queue(key).postponed = false;
                }
            }
            Act::Resolve(number, way) => resolve(&mut queue, &mut model, number, way)?,
            Act::Clear => {
                queue.clear();
                model = Model::default();
            }
        }
        prop_assert_eq!((queue.has_ready(), queue.held()), (model.could_take(), model.held()));
    }
    Ok(())
}

fn resolve(queue: &mut OrderedQueue<u64>, model: &mut Model, number: usize, way: Way) -> Result<(), TestCaseError> {
    let Some(key) = model.nth(number, |queue| queue.held) else { return Ok(()) };
    let instead = u64::MAX - model.pushed;
    let first = model.queue(key).records.front().map(|(_, item)| *item);
    let of = of(queue, key);
    prop_assert_eq!(queue.first(of), first);
    let old = match way {
        Way::Again => {
            queue.resume(of);
            None
        }
        Way::Gone => queue.resolve(of, None),
        Way::Instead => queue.resolve(of, Some(instead)),
    };
    let queue = model.queue(key);
    queue.held = false;
    match way {
        Way::Again => prop_assert_eq!(old, None),
        Way::Gone => {
            queue.instead = false;
            prop_assert_eq!(old, queue.records.pop_front().map(|(_, item)| item));
        }
        Way::Instead => {
            prop_assert_eq!(old, first);
            queue.records[0].1 = instead;
            queue.instead = true;
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_queue_does_as_plain_lists_would(acts in acts()) {
        play(acts)?;
    }
}

fn taken(queue: &mut OrderedQueue<u64>, of_a_key: u32) -> Vec<u64> {
    let mut batch = Vec::new();
    queue.take(&mut batch, of_a_key, |_, _| Fit::Takes);
    batch.iter().map(|taken| taken.item).collect()
}

#[test]
fn a_key_that_does_not_fit_is_left_out_and_others_are_taken() {
    let mut queue = OrderedQueue::default();
    let (one, other) = (of(&mut queue, 1), of(&mut queue, 2));
    for item in [10, 20, 11] {
        queue.push(if item < 20 { one } else { other }, item);
    }
    let mut batch = Vec::new();
    queue.take(&mut batch, u32::MAX, |_, item| if *item < 20 { Fit::NotThis } else { Fit::Takes });
    assert_eq!(batch.iter().map(|taken| taken.item).collect::<Vec<_>>(), [20]);
    assert_eq!(taken(&mut queue, 1), [10]);
    assert_eq!(taken(&mut queue, 1), [0; 0], "one of a key at a time");
    queue.delivered(one);
    assert_eq!(taken(&mut queue, 1), [11]);
}

#[test]
fn what_is_unknown_goes_first_again() {
    let mut queue = OrderedQueue::default();
    let (one, other) = (of(&mut queue, 1), of(&mut queue, 2));
    queue.push(one, 1);
    assert_eq!(taken(&mut queue, 9), [1]);
    queue.push(other, 2);
    queue.returned(one);
    let mut batch = Vec::new();
    queue.take(&mut batch, 9, |_, item| if *item == 1 { Fit::Takes } else { Fit::Full });
    assert_eq!(batch.iter().map(|taken| taken.item).collect::<Vec<_>>(), [1]);
}

#[test]
#[should_panic(expected = "not under way")]
fn nothing_is_reported_twice() {
    let mut queue = OrderedQueue::default();
    let key = of(&mut queue, 1);
    queue.push(key, 1);
    assert_eq!(taken(&mut queue, 9), [1]);
    queue.delivered(key);
    queue.delivered(key);
}

#[test]
fn records_of_one_key_share_a_hash_and_those_without_share_their_address_own() {
    assert_eq!(KeyHash::of("orders", Some(b"k")), KeyHash::of("orders", Some(b"k")));
    assert_eq!(KeyHash::of("orders", None), KeyHash::of("orders", None));
    let keys = [None, Some(&b""[..]), Some(b"k"), Some(b"l")];
    for (key, other) in keys.iter().enumerate().flat_map(|(at, key)| keys[..at].iter().map(move |other| (key, other))) {
        assert_ne!(KeyHash::of("orders", *key), KeyHash::of("orders", *other));
    }
    assert_ne!(KeyHash::of("orders", Some(b"k")), KeyHash::of("order", Some(b"sk")));
}

#[test]
fn keys_do_not_wait_for_each_other_however_many_there_are() {
    let mut queue = OrderedQueue::default();
    for record in 0..20_000_u64 {
        let key = queue.key(KeyHash::of("orders", Some(&(record % 10_000).to_le_bytes())));
        queue.push(key, record);
    }
    assert!(taken(&mut queue, 1).into_iter().eq(0..10_000));
}

#[test]
fn an_empty_number_is_its_keys_again_or_anothers_and_never_two_keys_at_once() {
    let mut queue = OrderedQueue::default();
    let pass = |queue: &mut OrderedQueue<u64>, number: u16| {
        let key = of(queue, number);
        queue.push(key, number.into());
        assert_eq!(taken(queue, 9), [u64::from(number)]);
        queue.delivered(key);
        key
    };
    let first = pass(&mut queue, 0);
    assert_eq!(pass(&mut queue, 0), first);
    for key in 1..1000 {
        assert_eq!(pass(&mut queue, key), first, "one key at a time needs one number");
    }
    let kept = of(&mut queue, 7);
    queue.push(kept, 7);
    let other = of(&mut queue, 8);
    queue.push(other, 8);
    assert!(kept != other && of(&mut queue, 7) == kept);
    assert_eq!(taken(&mut queue, 9), [7, 8]);
}

fn record(topic: &str) -> Record<'_> {
    Record {
        topic,
        key: Some(b"k"),
        value: None,
        headers: &[],
        timestamp_millis: 0,
        partition: None,
        content: Content::Unknown,
    }
}

fn refusal(text: &str) -> Failure {
    Failure::new(FailureClass::Topic, "type", text.to_owned())
}

/// What the destination does with all that is ready: it keeps what is not in this topic.
fn offer(receiver: &mut Receiver, refused: &str) {
    let mut batch = Vec::new();
    receiver.take(&mut batch, u32::MAX, |_| Fit::Takes);
    for taken in batch {
        let is_refused = receiver.record(taken.item).is_some_and(|record| record.topic() == refused);
        let outcome = if is_refused { RecordOutcome::Refused(refusal(refused)) } else { RecordOutcome::Delivered };
        receiver.settle(taken, &outcome);
    }
    receiver.set_blocked(None);
    receiver.publish();
}

/// The refusals that come back.
fn refusals(sender: &mut Sender) -> Vec<RefusalId> {
    let mut refusals = Vec::new();
    sender.poll(&mut |report| match report {
        Report::Refused(refused) => refusals.push(refused.id),
        Report::Delivered(_) | Report::Failed(_) => {}
    });
    refusals
}

#[tokio::test]
async fn a_key_whose_record_is_tried_again_is_blocked_until_it_is_delivered() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
    let blocked = |sender: &Sender| sender.blocked().map(|failure| failure.text);
    sender.push(&record("refused"), tag);
    sender.flush();
    for _ in 0..2 {
        assert_eq!(receiver.next().await, Some(()));
        offer(&mut receiver, "refused");
        let ids = refusals(&mut sender);
        assert_eq!(ids.len(), 1);
        sender.resolve(ids[0], Resolution::Retry);
        assert_eq!(receiver.next().await, Some(()));
        assert_eq!(blocked(&sender).as_deref(), Some("refused"), "while it pauses");
        sender.push(&record("taken"), tag);
        sender.flush();
        assert_eq!(receiver.next().await, Some(()));
        offer(&mut receiver, "refused");
        assert_eq!(blocked(&sender).as_deref(), Some("refused"), "while others are delivered");
        assert_eq!(sender.reached(), Some(Ok(())), "the destination is there");
    }
    assert_eq!(receiver.next().await, Some(()));
    offer(&mut receiver, "none");
    assert_eq!(blocked(&sender), None);
}

#[tokio::test]
async fn records_that_come_behind_a_refused_one_count_as_held_until_it_is_tried_again() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
    sender.push(&record("refused"), tag);
    sender.flush();
    assert_eq!(receiver.next().await, Some(()));
    offer(&mut receiver, "refused");
    let id = refusals(&mut sender)[0];
    for records in 2..4 {
        sender.push(&record("refused"), tag);
        sender.flush();
        assert_eq!(receiver.next().await, Some(()));
        assert!(refusals(&mut sender).is_empty());
        assert_eq!((sender.in_flight().records, sender.in_flight().held), (records, records));
    }
    sender.resolve(id, Resolution::Retry);
    for held in [3, 0] {
        assert_eq!(receiver.next().await, Some(()));
        assert!(refusals(&mut sender).is_empty());
        assert_eq!((sender.in_flight().records, sender.in_flight().held), (3, held), "while it pauses, then no more");
    }
}

#[tokio::test]
async fn a_key_is_not_blocked_whose_refused_record_is_skipped_or_forgotten() {
    for forgotten in [false, true] {
        let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
        let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
        sender.push(&record("refused"), tag);
        sender.flush();
        for resolution in [Resolution::Retry, Resolution::Skip] {
            assert_eq!(receiver.next().await, Some(()));
            offer(&mut receiver, "refused");
            let ids = refusals(&mut sender);
            sender.resolve(ids[0], resolution);
            assert_eq!(receiver.next().await, Some(()));
            assert_eq!(sender.blocked().is_some(), matches!(resolution, Resolution::Retry));
            if forgotten {
                sender.restart();
                assert_eq!(receiver.next().await, Some(()));
                receiver.client_ended();
                assert_eq!(sender.blocked(), None);
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_repeat_of_what_nobody_can_have_sent_is_refused() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    sender.alone_from(Lsn::new(10));
    let mut answers = async |lsn: u64, outcomes: &[RecordOutcome]| {
        let origin = Origin { position: Position { final_lsn: Lsn::new(lsn), ordinal: 0 }, ..Origin::default() };
        sender.push(&record("orders"), Tag { token: Token::unpack(1), origin });
        sender.flush();
        assert_eq!(receiver.next().await, Some(()));
        for outcome in outcomes {
            let mut batch = Vec::new();
            receiver.take(&mut batch, 1, |_| Fit::Takes);
            receiver.settle(batch[0], outcome);
        }
        receiver.publish();
        let (mut said, mut refused) = ("nothing", None);
        sender.poll(&mut |report| match report {
            Report::Delivered(_) => said = "delivered",
            Report::Refused(one) => (said, refused) = (one.failure.reason, Some(one.id)),
            Report::Failed(failure) => panic!("{failure:?}"),
        });
        if let Some(id) = refused {
            sender.resolve(id, Resolution::Skip);
            assert_eq!(receiver.next().await, Some(()));
        }
        said
    };
    // It may be another relay's.
    assert_eq!(answers(10, &[RecordOutcome::Duplicate]).await, "delivered");
    assert_eq!(answers(11, &[RecordOutcome::Duplicate]).await, DUPLICATE);
    assert_eq!(answers(11, &[RecordOutcome::NotStored, RecordOutcome::Duplicate]).await, DUPLICATE);
    // It may have been stored at the first attempt.
    assert_eq!(answers(11, &[RecordOutcome::Unknown, RecordOutcome::Duplicate]).await, "delivered");
    assert_eq!(answers(11, &[RecordOutcome::Duplicate]).await, DUPLICATE);
}

#[tokio::test]
async fn a_key_without_room_waits_alone_and_is_tried_again_in_order() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    let full = Failure::new(FailureClass::Environment, "full", "no room");
    let push = |sender: &mut Sender, topic: &str, number: u64| {
        sender.push(&record(topic), Tag { token: Token::unpack(number), origin: Origin::default() });
        sender.flush();
    };
    let topics = |receiver: &mut Receiver, outcome: &RecordOutcome| {
        let mut batch = Vec::new();
        receiver.take(&mut batch, 1, |_| Fit::Takes);
        let topics: Vec<String> =
            batch.iter().map(|taken| receiver.record(taken.item).unwrap().topic().to_owned()).collect();
        for taken in batch {
            assert!(receiver.settle(taken, outcome));
        }
        receiver.publish();
        topics
    };
    push(&mut sender, "full", 1);
    push(&mut sender, "full", 2);
    assert_eq!(receiver.next().await, Some(()));
    assert_eq!(topics(&mut receiver, &RecordOutcome::Later(full)), ["full"]);
    assert_eq!(sender.problem().as_deref(), Some("no room"));
    assert_eq!(sender.blocked().map(|failure| failure.reason), Some("full"));
    push(&mut sender, "free", 3);
    assert_eq!(receiver.next().await, Some(()));
    assert_eq!(topics(&mut receiver, &RecordOutcome::Delivered), ["free"], "the key without room waits");
    assert_eq!(receiver.next().await, Some(()));
    assert_eq!(topics(&mut receiver, &RecordOutcome::Delivered), ["full"]);
    assert_eq!((sender.problem(), sender.blocked()), (None, None));
    assert_eq!(topics(&mut receiver, &RecordOutcome::Delivered), ["full"]);
    let mut delivered = Vec::new();
    sender.poll(&mut |report| match report {
        Report::Delivered(run) => delivered.push(run.token.pack()),
        other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
    });
    assert_eq!(delivered, [3, 1, 2]);
}

/// How many records have come to the receiver.
async fn come(receiver: &mut Receiver) -> usize {
    tokio::select! {
        biased;
        event = receiver.next() => assert_eq!(event, Some(())),
        () = std::future::ready(()) => {}
    }
    let mut batch = Vec::new();
    receiver.take(&mut batch, u32::MAX, |_| Fit::Takes);
    let count = batch.len();
    for taken in batch {
        assert!(receiver.settle(taken, &RecordOutcome::Delivered));
    }
    count
}

#[tokio::test]
async fn records_leave_at_once_to_an_idle_client_and_gather_beside_others_until_no_more_come() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    let push = |sender: &mut Sender| {
        sender.push(&record("orders"), Tag { token: Token::unpack(1), origin: Origin::default() });
        sender.poll(&mut |_| {});
    };
    push(&mut sender);
    assert_eq!(come(&mut receiver).await, 1, "the client had nothing to do");
    for _ in 0..3 {
        push(&mut sender);
        assert_eq!(come(&mut receiver).await, 0, "the first is not reported");
    }
    sender.poll(&mut |_| {});
    assert_eq!(come(&mut receiver).await, 3, "no more have come");
    push(&mut sender);
    receiver.publish();
    push(&mut sender);
    assert_eq!(come(&mut receiver).await, 2, "all that the client had are reported");
}

#[tokio::test]
async fn records_of_which_one_is_at_fault_are_taken_one_at_a_time_and_then_together_again() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
    for topic in ["a", "b", "c", "d", "e"] {
        sender.push(&record(topic), tag);
    }
    sender.flush();
    assert_eq!(receiver.next().await, Some(()));
    let take = |receiver: &mut Receiver| {
        let mut batch = Vec::new();
        receiver.take(&mut batch, u32::MAX, |_| Fit::Takes);
        batch
    };
    let all = take(&mut receiver);
    assert_eq!(all.len(), 5);
    for taken in &all[3..] {
        receiver.settle(*taken, &RecordOutcome::NotStored);
    }
    receiver.send_each_alone(&all[..3]);
    let mut sizes = Vec::new();
    while receiver.has_ready() {
        let batch = take(&mut receiver);
        sizes.push(batch.len());
        for taken in &batch {
            assert!(receiver.settle(*taken, &RecordOutcome::Delivered));
        }
    }
    assert_eq!(sizes, [1, 1, 1, 2]);
}

fn unlisted() -> Failure {
    Failure::new(FailureClass::Unlisted, "unlisted", "ERR what")
}

/// A destination that gives an answer in no list to each batch with this topic, and stores the others. Returns the sizes of the batches.
fn offer_to_search(receiver: &mut Receiver, poisoned: &str, ends: bool) -> Vec<usize> {
    let mut sizes = Vec::new();
    loop {
        let mut batch = Vec::new();
        receiver.take(&mut batch, u32::MAX, |_| Fit::Takes);
        if batch.is_empty() {
            receiver.publish();
            return sizes;
        }
        sizes.push(batch.len());
        let is_it = |it: &TakenRecord<RecordIndex>| receiver.record(it.item).is_some_and(|it| it.topic() == poisoned);
        if !batch.iter().any(is_it) {
            for taken in &batch {
                assert!(receiver.settle(*taken, &RecordOutcome::Delivered));
            }
        } else if ends {
            receiver.connection_lost(&batch, &unlisted(), false);
        } else {
            receiver.search(&batch, &unlisted());
        }
    }
}

/// What was delivered; nothing may be refused.
fn delivered(sender: &mut Sender) -> u64 {
    let mut delivered = 0;
    sender.poll(&mut |report| match report {
        Report::Delivered(run) => delivered += u64::from(run.records),
        other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
    });
    delivered
}

fn push_topics(sender: &mut Sender, topics: impl Iterator<Item = u64>) {
    for number in topics {
        let origin = Origin { position: Position { final_lsn: Lsn::new(number), ordinal: 0 }, ..Origin::default() };
        sender.push(&record(&format!("t{number}")), Tag { token: Token::unpack(1), origin });
    }
    sender.flush();
}

#[tokio::test]
async fn an_unknown_answer_is_searched_without_pauses_and_its_record_is_sent_alone_while_others_go_on() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    push_topics(&mut sender, 0..100);
    assert_eq!(receiver.next().await, Some(()));
    let sizes = offer_to_search(&mut receiver, "t42", false);
    assert!(sizes.len() <= 1 + 16 + 7 && sizes[0] == 100, "{sizes:?}");
    assert_eq!(delivered(&mut sender), 99);
    let tried = sender.tried_alone().unwrap();
    assert_eq!((tried.origin.position.final_lsn, tried.topic.as_str(), tried.attempts), (Lsn::new(42), "t42", 1));
    assert_eq!(sender.blocked().map(|it| it.class), Some(FailureClass::Unlisted));
    let mut pauses = Vec::new();
    for number in 0..6 {
        push_topics(&mut sender, 200 + number..201 + number);
        assert_eq!(receiver.next().await, Some(()));
        assert_eq!(offer_to_search(&mut receiver, "t42", false), [1], "another key goes on");
        pauses.push(receiver.end_pause());
        assert_eq!(offer_to_search(&mut receiver, "t42", false), [1]);
    }
    assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
    assert_eq!((sender.tried_alone().unwrap().attempts, delivered(&mut sender)), (7, 6));
    receiver.end_pause();
    assert_eq!(offer_to_search(&mut receiver, "none", false), [1]);
    assert_eq!((delivered(&mut sender), sender.tried_alone(), sender.blocked()), (1, None, None));
}

#[tokio::test]
async fn a_record_that_ends_its_connection_is_found_with_the_connection_for_itself() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    push_topics(&mut sender, 0..500);
    assert_eq!(receiver.next().await, Some(()));
    // Twice it may be the network.
    assert_eq!(offer_to_search(&mut receiver, "t42", true), [500, 500]);
    assert_eq!(delivered(&mut sender), 0);
    push_topics(&mut sender, 600..601);
    assert_eq!(receiver.next().await, Some(()));
    assert_eq!(offer_to_search(&mut receiver, "t42", true), [1], "what has not been sent goes on");
    (0..500).for_each(|_| assert_eq!(receiver.end_pause(), 1));
    let sizes = offer_to_search(&mut receiver, "t42", true);
    assert!(sizes[0] == 500 && sizes[1..].iter().all(|size| *size <= 32), "{sizes:?}");
    assert_eq!((delivered(&mut sender), sender.tried_alone().map(|tried| tried.topic)), (500, Some("t42".to_owned())));
}

#[tokio::test]
async fn while_a_sole_suspect_is_due_nothing_else_is_sent_beside_it() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    push_topics(&mut sender, 0..2);
    assert_eq!(receiver.next().await, Some(()));
    let mut batch = Vec::new();
    receiver.take(&mut batch, 1, |_| Fit::Takes);
    receiver.connection_lost(&batch, &unlisted(), true);
    push_topics(&mut sender, 2..3);
    assert_eq!(receiver.next().await, Some(()));
    let take = |receiver: &mut Receiver| {
        let mut batch = Vec::new();
        receiver.take(&mut batch, 1, |_| Fit::Takes);
        batch
    };
    let first = take(&mut receiver);
    assert_eq!((first.len(), take(&mut receiver).len()), (1, 0));
    receiver.settle(first[0], &RecordOutcome::Delivered);
    let second = take(&mut receiver);
    assert_eq!((second.len(), take(&mut receiver).len()), (1, 0));
    receiver.settle(second[0], &RecordOutcome::Delivered);
    assert_eq!(take(&mut receiver).len(), 1, "no suspect is left");
}

#[tokio::test]
async fn what_was_sent_without_an_answer_is_sent_again_at_once_and_then_ever_more_rarely() {
    let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
    push_topics(&mut sender, 0..1);
    assert_eq!(receiver.next().await, Some(()));
    let mut pauses = Vec::new();
    for sending in 1..=6 {
        let mut batch = Vec::new();
        receiver.take(&mut batch, 1, |_| Fit::Takes);
        assert_eq!(batch.len(), 1, "{sending}");
        receiver.settle(batch[0], &RecordOutcome::Unanswered);
        receiver.publish();
        if sending > 1 {
            pauses.push(receiver.end_pause());
        }
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16]);
    assert!(sender.blocked().unwrap().text.contains("was sent 6 times"), "{:?}", sender.blocked());
}

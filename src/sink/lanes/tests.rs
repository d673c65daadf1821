use super::hand_over::hand_over;
use super::sender::Sender;
use super::*;
use crate::lsn::Lsn;
use crate::sink::{
    Content, DUPLICATE, Failure, FailureClass, Origin, Record, RefusalId, Report, Resolution, Tag, Token,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// The same by plain means: each lane a list, of which some are under way.
#[derive(Debug, Default)]
struct Model {
    lanes: BTreeMap<u16, Queue>,
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
        of_a_lane: u32,
    },
    /// Something becomes of the n-th lane that has records under way.
    Delivered(usize),
    Refused(usize),
    Returned(usize),
    Postponed(usize),
    /// The n-th lane that waits goes on.
    Resume(usize),
    /// The n-th lane that is held is resolved.
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
        4 => (0..6_usize, 1..4_u32).prop_map(|(at_most, of_a_lane)| Act::Take { at_most, of_a_lane }),
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
        let fitting: Vec<u16> = self.lanes.iter().filter(|(_, queue)| holds(queue)).map(|(lane, _)| *lane).collect();
        fitting.get(number % fitting.len().max(1)).copied()
    }

    fn queue(&mut self, lane: u16) -> &mut Queue {
        self.lanes.entry(lane).or_default()
    }

    fn held(&self) -> u64 {
        self.lanes.values().filter(|queue| queue.held).map(|queue| queue.records.len() as u64).sum()
    }

    fn could_take(&self) -> bool {
        self.lanes.values().any(Queue::could_be_taken)
    }

    /// What was taken has to be the front of lanes of which nothing was under way or held, of those with the oldest first records, in the
    /// order of all.
    fn take(
        &mut self,
        lanes: &Lanes<u64>,
        batch: &[Taken<u64>],
        at_most: usize,
        of_a_lane: u32,
    ) -> Result<(), TestCaseError> {
        let mut queues: Vec<_> = self.lanes.iter().filter(|(_, queue)| queue.could_be_taken()).collect();
        queues.sort_unstable_by_key(|(_, queue)| queue.records.front().map(|(number, _)| *number));
        let front = |(lane, queue): (&u16, &Queue)| {
            let most = if queue.instead { 1 } else { of_a_lane as usize };
            queue.records.iter().take(most).map(|(number, item)| (*number, *item, *lane)).collect::<Vec<_>>()
        };
        let mut fronts: Vec<_> = queues.into_iter().flat_map(front).take(at_most).collect();
        fronts.sort_unstable();
        let owner = |lane: Lane| u16::try_from(lanes.states[lane.0 as usize].owner.0).unwrap();
        let taken: Vec<_> = batch.iter().map(|taken| (taken.number, taken.item, owner(taken.lane))).collect();
        prop_assert_eq!(&taken, &fronts);
        for (_, _, lane) in taken {
            self.queue(lane).under_way += 1;
        }
        Ok(())
    }
}

/// The lane of the owner with this number.
fn of(lanes: &mut Lanes<u64>, number: u16) -> Lane {
    lanes.lane(Owner(number.into()))
}

fn play(acts: Vec<Act>) -> Result<(), TestCaseError> {
    let (mut lanes, mut model) = (Lanes::<u64>::default(), Model::default());
    for act in acts {
        match act {
            Act::Push(lane) => {
                let of = of(&mut lanes, lane);
                lanes.push(of, model.pushed);
                let pushed = model.pushed;
                model.queue(lane).records.push_back((pushed, pushed));
                model.pushed += 1;
            }
            Act::Take { at_most, of_a_lane } => {
                let (mut batch, mut left) = (Vec::new(), at_most);
                lanes.take(&mut batch, of_a_lane, |_| {
                    left = left.wrapping_sub(1);
                    if left == usize::MAX { Fit::Full } else { Fit::Takes }
                });
                model.take(&lanes, &batch, at_most, of_a_lane)?;
            }
            Act::Delivered(number) => {
                if let Some(lane) = model.nth(number, |queue| queue.under_way > 0) {
                    let of = of(&mut lanes, lane);
                    lanes.delivered(of);
                    let queue = model.queue(lane);
                    queue.under_way -= 1;
                    queue.instead = false;
                    queue.records.pop_front();
                }
            }
            Act::Refused(number) => {
                if let Some(lane) = model.nth(number, |queue| queue.under_way > 0) {
                    let of = of(&mut lanes, lane);
                    lanes.refused(of);
                    *model.queue(lane) = Queue { under_way: 0, held: true, ..std::mem::take(model.queue(lane)) };
                }
            }
            Act::Returned(number) => {
                if let Some(lane) = model.nth(number, |queue| queue.under_way > 0) {
                    let of = of(&mut lanes, lane);
                    lanes.returned(of);
                    model.queue(lane).under_way = 0;
                }
            }
            Act::Postponed(number) => {
                if let Some(lane) = model.nth(number, |queue| queue.under_way > 0) {
                    let of = of(&mut lanes, lane);
                    lanes.postponed(of);
                    *model.queue(lane) = Queue { under_way: 0, postponed: true, ..std::mem::take(model.queue(lane)) };
                }
            }
            Act::Resume(number) => {
                if let Some(lane) = model.nth(number, |queue| queue.postponed) {
                    let of = of(&mut lanes, lane);
                    lanes.resume(of);
                    model.queue(lane).postponed = false;
                }
            }
            Act::Resolve(number, way) => resolve(&mut lanes, &mut model, number, way)?,
            Act::Clear => {
                lanes.clear();
                model = Model::default();
            }
        }
        prop_assert_eq!((lanes.has_ready(), lanes.held()), (model.could_take(), model.held()));
    }
    Ok(())
}

fn resolve(lanes: &mut Lanes<u64>, model: &mut Model, number: usize, way: Way) -> Result<(), TestCaseError> {
    let Some(lane) = model.nth(number, |queue| queue.held) else { return Ok(()) };
    let instead = u64::MAX - model.pushed;
    let first = model.queue(lane).records.front().map(|(_, item)| *item);
    let of = of(lanes, lane);
    prop_assert_eq!(lanes.first(of), first);
    let verdict = match way {
        Way::Again => Verdict::Again,
        Way::Gone => Verdict::Gone,
        Way::Instead => Verdict::Instead(instead),
    };
    let old = lanes.resolve(of, verdict);
    let queue = model.queue(lane);
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
    fn lanes_do_as_plain_lists_would(acts in acts()) {
        play(acts)?;
    }
}

fn taken(lanes: &mut Lanes<u64>, of_a_lane: u32) -> Vec<u64> {
    let mut batch = Vec::new();
    lanes.take(&mut batch, of_a_lane, |_| Fit::Takes);
    batch.iter().map(|taken| taken.item).collect()
}

#[test]
fn a_lane_that_does_not_fit_is_left_out_and_others_are_taken() {
    let mut lanes = Lanes::default();
    let (one, other) = (of(&mut lanes, 1), of(&mut lanes, 2));
    for item in [10, 20, 11] {
        lanes.push(if item < 20 { one } else { other }, item);
    }
    let mut batch = Vec::new();
    lanes.take(&mut batch, u32::MAX, |item| if *item < 20 { Fit::NotThis } else { Fit::Takes });
    assert_eq!(batch.iter().map(|taken| taken.item).collect::<Vec<_>>(), [20]);
    assert_eq!(taken(&mut lanes, 1), [10]);
    assert_eq!(taken(&mut lanes, 1), [0; 0], "one of a lane at a time");
    lanes.delivered(one);
    assert_eq!(taken(&mut lanes, 1), [11]);
}

#[test]
fn what_is_unknown_goes_first_again() {
    let mut lanes = Lanes::default();
    let (one, other) = (of(&mut lanes, 1), of(&mut lanes, 2));
    lanes.push(one, 1);
    assert_eq!(taken(&mut lanes, 9), [1]);
    lanes.push(other, 2);
    lanes.returned(one);
    let mut batch = Vec::new();
    lanes.take(&mut batch, 9, |item| if *item == 1 { Fit::Takes } else { Fit::Full });
    assert_eq!(batch.iter().map(|taken| taken.item).collect::<Vec<_>>(), [1]);
}

#[test]
#[should_panic(expected = "not under way")]
fn nothing_is_reported_twice() {
    let mut lanes = Lanes::default();
    let lane = of(&mut lanes, 1);
    lanes.push(lane, 1);
    assert_eq!(taken(&mut lanes, 9), [1]);
    lanes.delivered(lane);
    lanes.delivered(lane);
}

#[test]
fn records_of_one_key_share_a_lane_and_those_without_share_their_address_own() {
    assert_eq!(Owner::of("orders", Some(b"k")), Owner::of("orders", Some(b"k")));
    assert_eq!(Owner::of("orders", None), Owner::of("orders", None));
    let keys = [None, Some(&b""[..]), Some(b"k"), Some(b"l")];
    for (key, other) in keys.iter().enumerate().flat_map(|(at, key)| keys[..at].iter().map(move |other| (key, other))) {
        assert_ne!(Owner::of("orders", *key), Owner::of("orders", *other));
    }
    assert_ne!(Owner::of("orders", Some(b"k")), Owner::of("order", Some(b"sk")));
}

#[test]
fn keys_do_not_wait_for_each_other_however_many_there_are() {
    let mut lanes = Lanes::default();
    for record in 0..20_000_u64 {
        let lane = lanes.lane(Owner::of("orders", Some(&(record % 10_000).to_le_bytes())));
        lanes.push(lane, record);
    }
    assert!(taken(&mut lanes, 1).into_iter().eq(0..10_000));
}

#[test]
fn an_empty_lane_is_its_keys_again_or_anothers_and_never_two_keys_at_once() {
    let mut lanes = Lanes::default();
    let pass = |lanes: &mut Lanes<u64>, key: u16| {
        let lane = of(lanes, key);
        lanes.push(lane, key.into());
        assert_eq!(taken(lanes, 9), [u64::from(key)]);
        lanes.delivered(lane);
        lane
    };
    let first = pass(&mut lanes, 0);
    assert_eq!(pass(&mut lanes, 0), first);
    for key in 1..1000 {
        assert_eq!(pass(&mut lanes, key), first, "one at a time needs one lane");
    }
    let kept = of(&mut lanes, 7);
    lanes.push(kept, 7);
    let other = of(&mut lanes, 8);
    lanes.push(other, 8);
    assert!(kept != other && of(&mut lanes, 7) == kept);
    assert_eq!(taken(&mut lanes, 9), [7, 8]);
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
    Failure { class: FailureClass::Topic, reason: "type", text: text.to_owned() }
}

/// What the destination does with all that is ready: it keeps what is not in this topic.
fn offer(receiver: &mut Receiver, refused: &str) {
    let mut batch = Vec::new();
    receiver.take(&mut batch, u32::MAX, |_| Fit::Takes);
    for taken in batch {
        let is_refused = receiver.record(taken.item).is_some_and(|record| record.topic() == refused);
        let outcome = if is_refused { Outcome::Refused(refusal(refused)) } else { Outcome::Delivered };
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
async fn a_lane_whose_record_is_tried_again_is_blocked_until_it_is_delivered() {
    let (mut sender, mut receiver) = hand_over(1 << 20);
    let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
    let blocked = |sender: &Sender| sender.blocked().map(|failure| failure.text);
    sender.push(&record("refused"), tag);
    sender.flush();
    for _ in 0..2 {
        assert_eq!(receiver.next().await, Event::Work);
        offer(&mut receiver, "refused");
        let ids = refusals(&mut sender);
        assert_eq!(ids.len(), 1);
        sender.resolve(ids[0], Resolution::Retry);
        assert_eq!(receiver.next().await, Event::Work);
        assert_eq!(blocked(&sender).as_deref(), Some("refused"), "while it pauses");
        sender.push(&record("taken"), tag);
        sender.flush();
        assert_eq!(receiver.next().await, Event::Work);
        offer(&mut receiver, "refused");
        assert_eq!(blocked(&sender).as_deref(), Some("refused"), "while others are delivered");
        assert_eq!(sender.reached(), Some(Ok(())), "the destination is there");
    }
    assert_eq!(receiver.next().await, Event::Work);
    offer(&mut receiver, "none");
    assert_eq!(blocked(&sender), None);
}

#[tokio::test]
async fn a_lane_is_not_blocked_whose_refused_record_is_skipped_or_forgotten() {
    for forgotten in [false, true] {
        let (mut sender, mut receiver) = hand_over(1 << 20);
        let tag = Tag { token: Token::unpack(1), origin: Origin::default() };
        sender.push(&record("refused"), tag);
        sender.flush();
        for resolution in [Resolution::Retry, Resolution::Skip] {
            assert_eq!(receiver.next().await, Event::Work);
            offer(&mut receiver, "refused");
            let ids = refusals(&mut sender);
            sender.resolve(ids[0], resolution);
            assert_eq!(receiver.next().await, Event::Work);
            assert_eq!(sender.blocked().is_some(), matches!(resolution, Resolution::Retry));
            if forgotten {
                sender.restart();
                assert_eq!(receiver.next().await, Event::Work);
                receiver.client_ended();
                assert_eq!(sender.blocked(), None);
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_repeat_of_what_nobody_can_have_sent_is_refused() {
    let (mut sender, mut receiver) = hand_over(1 << 20);
    sender.alone_from(Lsn::new(10));
    let mut answers = async |lsn: u64, outcomes: &[Outcome]| {
        let origin = Origin { final_lsn: lsn, ..Origin::default() };
        sender.push(&record("orders"), Tag { token: Token::unpack(1), origin });
        sender.flush();
        assert_eq!(receiver.next().await, Event::Work);
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
            assert_eq!(receiver.next().await, Event::Work);
        }
        said
    };
    // It may be another relay's.
    assert_eq!(answers(10, &[Outcome::Duplicate]).await, "delivered");
    assert_eq!(answers(11, &[Outcome::Duplicate]).await, DUPLICATE);
    assert_eq!(answers(11, &[Outcome::NotStored, Outcome::Duplicate]).await, DUPLICATE);
    // It may have been stored at the first attempt.
    assert_eq!(answers(11, &[Outcome::Unknown, Outcome::Duplicate]).await, "delivered");
    assert_eq!(answers(11, &[Outcome::Duplicate]).await, DUPLICATE);
}

#[tokio::test]
async fn a_lane_without_room_waits_alone_and_is_tried_again_in_order() {
    let (mut sender, mut receiver) = hand_over(1 << 20);
    let full = Failure { class: FailureClass::Environment, reason: "full", text: "no room".to_owned() };
    let push = |sender: &mut Sender, topic: &str, number: u64| {
        sender.push(&record(topic), Tag { token: Token::unpack(number), origin: Origin::default() });
        sender.flush();
    };
    let topics = |receiver: &mut Receiver, outcome: &Outcome| {
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
    assert_eq!(receiver.next().await, Event::Work);
    assert_eq!(topics(&mut receiver, &Outcome::Later(full)), ["full"]);
    assert_eq!(sender.problem().as_deref(), Some("no room"));
    assert_eq!(sender.blocked().map(|failure| failure.reason), Some("full"));
    push(&mut sender, "free", 3);
    assert_eq!(receiver.next().await, Event::Work);
    assert_eq!(topics(&mut receiver, &Outcome::Delivered), ["free"], "the lane without room waits");
    assert_eq!(receiver.next().await, Event::Work);
    assert_eq!(topics(&mut receiver, &Outcome::Delivered), ["full"]);
    assert_eq!((sender.problem(), sender.blocked()), (None, None));
    assert_eq!(topics(&mut receiver, &Outcome::Delivered), ["full"]);
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
        event = receiver.next() => assert_eq!(event, Event::Work),
        () = std::future::ready(()) => {}
    }
    let mut batch = Vec::new();
    receiver.take(&mut batch, u32::MAX, |_| Fit::Takes);
    let count = batch.len();
    for taken in batch {
        assert!(receiver.settle(taken, &Outcome::Delivered));
    }
    count
}

#[tokio::test]
async fn records_leave_at_once_to_an_idle_client_and_gather_beside_others_until_no_more_come() {
    let (mut sender, mut receiver) = hand_over(1 << 20);
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

//! The rule against a broker that does not know producers, in any order of events: seeded, without a clock or a socket.

mod plain;

use super::*;
use crate::lsn::Position;
use crate::sink::{Content, Header, Origin, Refused, Resolution, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// As Kafka's idempotent producers have them.
const MOST_REQUESTS: usize = 5;
const PARTITIONS: i32 = 4;
const RECORDS: u64 = 120;

/// Splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone)]
struct Message {
    ticket: Ticket,
    number: u64,
    record: OwnedRecord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Taken,
    /// Refused for now, or out of order: it is sent again.
    Later,
    Refused,
}

struct Request {
    partition: i32,
    base: u64,
    messages: Vec<Message>,
    answer: Option<Answer>,
}

/// librdkafka's, as far as it matters.
#[derive(Default)]
struct Producer {
    id: u64,
    number: Option<u8>,
    waiting: BTreeMap<i32, VecDeque<Message>>,
    sequences: BTreeMap<i32, u64>,
    requests: Vec<Request>,
    fatal: bool,
}

struct World {
    dice: Dice,
    now: Instant,
    /// The producers that share the partitions first, then the search producer, then those that have ended.
    producers: Vec<Producer>,
    sharing: usize,
    ids: u64,
    logs: BTreeMap<i32, Vec<u64>>,
    /// What the broker knows of producers: the next sequence, by partition and producer.
    known: BTreeMap<(i32, u64), u64>,
    bad: BTreeSet<u64>,
    /// Most records of a request.
    limit: usize,
    /// What the search producer is given leaves in pieces: a flush that another partition needed cuts it anywhere.
    cuts: bool,
}

/// What is wrong in a run, so that it is seen that the judge finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// Nothing is.
    None,
    /// Requests of the search producer have several records before a broker knows it.
    SearchWithoutProof,
    /// So do those of a producer that shares the partitions.
    ProducerWithoutProof,
    /// A partition's records go to any producer.
    TwoProducers,
    /// What waits behind a record that failed is handed over before that one is back.
    NotHeld,
    /// Requests that were not answered for hours arrive although the broker has forgotten their producer.
    Forgotten,
}

impl Clients for World {
    fn hand_over(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let producer = &mut self.producers[usize::from(target.producer)];
        if producer.fatal {
            return Err(NotTaken::Later);
        }
        producer.waiting.entry(target.partition).or_default().push_back(message(record, target, ticket));
        Ok(())
    }

    fn collect(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let search_producer = &mut self.producers[self.sharing];
        if search_producer.fatal {
            return Err(NotTaken::Later);
        }
        search_producer.waiting.entry(target.partition).or_default().push_back(message(record, target, ticket));
        Ok(())
    }

    fn send_collected(&mut self) {
        let (at, cuts) = (self.sharing, self.cuts);
        let partitions: Vec<i32> = self.producers[at].waiting.keys().copied().collect();
        for partition in partitions.into_iter().filter(|_| !cuts) {
            self.form(at, partition, usize::MAX);
        }
    }

    fn request_bytes(&self) -> u64 {
        1 << 20
    }
}

/// A record's time, and the partition that its row asks for. Every second row asks for none.
fn given(number: u64, partition: i32) -> (i64, Option<i32>) {
    (i64::try_from(number).unwrap() + 7, (number % 2 == 1).then_some(partition))
}

/// As librdkafka gives it back when it fails: without its time, and with the partition that it was sent to.
fn message(record: &Record<'_>, target: PartitionTarget, ticket: Ticket) -> Message {
    let number = std::str::from_utf8(record.value.unwrap()).unwrap().parse().unwrap();
    if record.topic == "orders" {
        assert_eq!(
            (record.timestamp_millis, record.partition),
            given(number, target.partition),
            "record {number} changed"
        );
    }
    let record = OwnedRecord::of(&Record { timestamp_millis: 0, partition: Some(target.partition), ..*record });
    Message { ticket, number, record }
}

fn failure(class: FailureClass) -> Failure {
    Failure::new(class, "too_large", "too large")
}

impl World {
    fn new(seed: u64, sharing: usize) -> Self {
        let mut dice = Dice(seed);
        let rare = 3 + dice.below(40);
        let limit = if dice.one_in(4) { 2 } else { usize::MAX };
        let cuts = dice.one_in(2);
        let bad = (0..RECORDS).filter(|_| dice.one_in(rare)).collect();
        let producers = (0..=sharing).map(|at| Producer {
            id: at as u64,
            number: (at < sharing).then(|| u8::try_from(at).unwrap()),
            ..Producer::default()
        });
        let producers: Vec<Producer> = producers.collect();
        let ids = producers.len() as u64;
        let (logs, known) = (BTreeMap::new(), BTreeMap::new());
        Self { dice, now: Instant::now(), producers, sharing, ids, logs, known, bad, limit, cuts }
    }

    /// A request of what waits, of at most so many records.
    fn form(&mut self, at: usize, partition: i32, most: usize) {
        let producer = &mut self.producers[at];
        let Some(waiting) = producer.waiting.get_mut(&partition) else { return };
        let messages: Vec<Message> = waiting.drain(..waiting.len().min(most)).collect();
        if messages.is_empty() {
            return;
        }
        let sequence = producer.sequences.entry(partition).or_default();
        let base = *sequence;
        *sequence += messages.len() as u64;
        producer.requests.push(Request { partition, base, messages, answer: None });
    }

    /// What the broker says of the first request that has not come to it.
    fn arrive(&mut self, at: usize) {
        let Self { producers, dice, logs, known, bad, limit, .. } = self;
        let producer = &mut producers[at];
        let Some(request) = producer.requests.iter_mut().find(|request| request.answer.is_none()) else { return };
        let key = (request.partition, producer.id);
        let next = known.get(&key).copied();
        let is_refused =
            request.messages.len() > *limit || request.messages.iter().any(|one| bad.contains(&one.number));
        request.answer = Some(match next {
            Some(next) if request.base < next => Answer::Taken,
            Some(next) if request.base > next => Answer::Later,
            _ if dice.one_in(6) => Answer::Later,
            _ if is_refused => Answer::Refused,
            _ => {
                logs.entry(request.partition).or_default().extend(request.messages.iter().map(|one| one.number));
                known.insert(key, request.base + request.messages.len() as u64);
                Answer::Taken
            }
        });
    }

    /// The answer to the first request comes back.
    fn answer(&mut self, at: usize, partitions: &mut Partitions, reported: &mut Vec<u64>) {
        let now = self.now;
        let producer = &mut self.producers[at];
        let Some(index) = producer.requests.iter().position(|request| request.answer.is_some()) else { return };
        match producer.requests[index].answer {
            Some(Answer::Taken) => {
                for message in producer.requests.remove(index).messages {
                    partitions.delivered(message.ticket, now);
                    reported.push(message.number);
                }
            }
            Some(Answer::Later) if producer.fatal => {
                let request = producer.requests.remove(index);
                fail(partitions, request.messages, FailureClass::Client);
            }
            Some(Answer::Later) | None => producer.requests[index].answer = None,
            Some(Answer::Refused) => {
                let request = producer.requests.remove(index);
                producer.fatal = true;
                let waiting: Vec<Message> = std::mem::take(&mut producer.waiting).into_values().flatten().collect();
                fail(partitions, waiting, FailureClass::Client);
                fail(partitions, request.messages, FailureClass::Row);
            }
        }
    }

    /// Other producers instead of those that have ended, that no broker knows.
    fn renew(&mut self, partitions: &mut Partitions) {
        for at in 0..=self.sharing {
            if self.producers[at].fatal {
                let number = self.producers[at].number;
                let fresh = Producer { id: self.ids, number, ..Producer::default() };
                self.ids += 1;
                let old = std::mem::replace(&mut self.producers[at], fresh);
                self.producers.push(old);
                match number {
                    Some(number) => partitions.producer_renewed(number, self.now),
                    None => partitions.search_producer_renewed(self.now),
                }
            }
        }
    }

    /// After a pause the broker may have forgotten all producers.
    fn pause(&mut self) {
        self.now += partition::PROOF_HOLDS;
        self.known.clear();
    }

    /// Brokers are away for so long that they forget all producers. What has arrived was answered before.
    fn outage(&mut self, partitions: &mut Partitions, mutant: Mutant) {
        let answers = self.producers.iter().flat_map(|producer| &producer.requests).any(|one| one.answer.is_some());
        if answers {
            return;
        }
        // Those that have ended are replaced at once, and given up within seconds.
        self.renew(partitions);
        partitions.forgotten(self.now);
        self.now += partition::FORGOTTEN_AFTER + LOOK_EVERY;
        while let Some((target, search_producer)) =
            partitions.forgotten(self.now).filter(|_| mutant != Mutant::Forgotten)
        {
            let at = if search_producer { self.sharing } else { usize::from(target.producer) };
            let (id, number) = (self.ids, self.producers[at].number);
            self.ids += 1;
            let old = std::mem::replace(&mut self.producers[at], Producer { id, number, ..Producer::default() });
            match number {
                Some(number) => partitions.producer_renewed(number, self.now),
                None => partitions.search_producer_renewed(self.now),
            }
            let sent = old.requests.into_iter().flat_map(|request| request.messages);
            let purged = sent.chain(old.waiting.into_values().flatten()).collect();
            fail(partitions, purged, FailureClass::Client);
        }
        let ended = self.producers.drain(self.sharing + 1..).flat_map(|ended| ended.requests);
        fail(partitions, ended.flat_map(|request| request.messages).collect(), FailureClass::Client);
        self.known.clear();
    }

    /// Something happens between clients and broker.
    fn step(&mut self, partitions: &mut Partitions, reported: &mut Vec<u64>) {
        let at = usize::try_from(self.dice.below(self.producers.len() as u64)).unwrap();
        match self.dice.below(4) {
            0 if !self.producers[at].fatal && self.producers[at].requests.len() < MOST_REQUESTS => {
                let partition = i32::try_from(self.dice.below(u64::from(PARTITIONS.unsigned_abs()) + 1)).unwrap();
                let most = usize::try_from(1 + self.dice.below(6)).unwrap();
                self.form(at, partition, most);
            }
            1 => self.arrive(at),
            2 => self.answer(at, partitions, reported),
            _ if self.dice.one_in(3) => self.renew(partitions),
            _ => {}
        }
    }
}

fn fail(partitions: &mut Partitions, messages: Vec<Message>, class: FailureClass) {
    for message in messages {
        partitions.failed(message.ticket, message.record, failure(class));
    }
}

/// The next record that is taken.
fn offer(partitions: &mut Partitions, numbers: &[u32], number: u64, world: &mut World) -> i32 {
    let partition = i32::try_from(world.dice.below(PARTITIONS.unsigned_abs().into())).unwrap();
    let value = number.to_string();
    let headers = [Header { name: "id", value: Some(value.as_bytes()) }];
    let (timestamp_millis, asked) = given(number, partition);
    let record = Record {
        topic: "orders",
        key: Some(b"k"),
        value: Some(value.as_bytes()),
        headers: &headers,
        timestamp_millis,
        partition: asked,
        content: Content::Unknown,
    };
    let tag = Tag {
        token: Token::unpack(number),
        origin: Origin { position: Position { ordinal: number, ..Position::default() }, ..Origin::default() },
    };
    let now = world.now;
    let at = numbers[usize::try_from(partition).unwrap()];
    assert!(matches!(partitions.enqueue(at, &record, tag, now, world), Enqueue::Taken));
    partition
}

/// What becomes of the refused: some are skipped, some have a dead-letter record in partition 3, some are tried again first.
fn resolve(
    partitions: &mut Partitions,
    refused: &Refused,
    world: &mut World,
    over: &mut BTreeSet<u64>,
    dead_letters: u32,
) {
    let number = refused.tag.origin.position.ordinal;
    let now = world.now;
    match world.dice.below(4) {
        0 => {
            partitions.resolve(refused.id, Resolution::Retry, 0, now, world);
        }
        1 => {
            let value = (1000 + number).to_string();
            let record = Record {
                topic: "dead",
                key: None,
                value: Some(value.as_bytes()),
                headers: &[],
                timestamp_millis: 0,
                partition: None,
                content: Content::Unknown,
            };
            partitions.resolve(
                refused.id,
                Resolution::ReplaceWith(&record, refused.tag.token),
                dead_letters,
                now,
                world,
            );
            over.insert(number);
        }
        _ => {
            partitions.resolve(refused.id, Resolution::Skip, 0, now, world);
            over.insert(number);
        }
    }
}

impl Partitions {
    /// Breaks a rule.
    fn break_rule(&mut self, mutant: Mutant, world: &mut World) {
        let now = world.now;
        for at in 0..self.list.len() {
            let partition = &mut self.list[at];
            match (mutant, &partition.state) {
                (Mutant::SearchWithoutProof, _) => partition.search.proven = true,
                (Mutant::ProducerWithoutProof, PartitionState::Unproven) => {
                    (partition.state, partition.moved) = (PartitionState::Proven, now);
                }
                (Mutant::TwoProducers, _) => {
                    partition.target.producer = u8::try_from(world.dice.below(world.sharing as u64)).unwrap();
                }
                (Mutant::NotHeld, PartitionState::Draining) => {
                    (partition.state, partition.moved) = (PartitionState::Proven, now);
                    self.pump(u32::try_from(at).unwrap(), now, world);
                    self.list[at].state = PartitionState::Draining;
                }
                _ => {}
            }
        }
    }
}

/// Any order of events: each record in its partition's log, once and in order, but for those that were refused alone and resolved.
/// How many were refused.
///
/// # Errors
/// A partition's log has something else.
fn run(seed: u64, sharing: usize, mutant: Mutant) -> Result<usize, String> {
    let mut world = World::new(seed, sharing);
    let mut partitions = Partitions::default();
    let target = |partition: i32| PartitionTarget {
        topic: 0,
        partition,
        producer: u8::try_from(usize::try_from(partition).unwrap() % sharing).unwrap(),
    };
    let numbers: Vec<u32> = (0..PARTITIONS).map(|partition| partitions.add(target(partition), world.now)).collect();
    // Dead-letter records go to a partition of their own.
    let dead_letters = partitions.add(PartitionTarget { partition: PARTITIONS, ..target(PARTITIONS) }, world.now);
    let (mut offered, mut taken, mut over) = (0, BTreeMap::<i32, Vec<u64>>::new(), BTreeSet::new());
    let (mut refusals, mut found, mut reported) = (Vec::new(), 0, Vec::new());
    for steps in 0.. {
        assert!(steps < 2_000_000, "seed {seed}: it does not come to an end: {partitions:?}");
        if partitions.in_flight().records == 0 && world.dice.one_in(4) {
            world.pause();
        }
        partitions.break_rule(mutant, &mut world);
        if offered < RECORDS && world.dice.one_in(4) {
            let partition = offer(&mut partitions, &numbers, offered, &mut world);
            taken.entry(partition).or_default().push(offered);
            offered += 1;
        }
        if world.dice.one_in(50) {
            world.outage(&mut partitions, mutant);
        }
        world.step(&mut partitions, &mut reported);
        if world.dice.one_in(10) {
            world.form_dead_letters();
        }
        if world.dice.one_in(7) {
            partitions.flushed();
        }
        world.now += Duration::from_millis(world.dice.below(20));
        let now = world.now;
        partitions.break_rule(mutant, &mut world);
        partitions.advance(now, &mut world, &mut |report| match report {
            Report::Refused(refused) => refusals.push(*refused),
            // It may have seen it itself. The logs say more.
            Report::Failed(_) if mutant != Mutant::None => {}
            other @ (Report::Delivered(_) | Report::Failed(_)) => panic!("seed {seed}: {other:?}"),
        });
        if world.dice.one_in(5)
            && let Some(refused) = refusals.pop()
        {
            found += 1;
            let number = refused.tag.origin.position.ordinal;
            assert!(world.bad.contains(&number), "seed {seed}: {number} is refused, and nothing is wrong with it");
            refused.record.with_record(&mut HeaderRoom::default(), |record| {
                let partition = taken.iter().find(|(_, numbers)| numbers.contains(&number)).map(|(at, _)| *at);
                let expected = given(number, partition.unwrap());
                assert_eq!((record.timestamp_millis, record.partition), expected, "seed {seed}: {number} changed");
            });
            resolve(&mut partitions, &refused, &mut world, &mut over, dead_letters);
        }
        if offered == RECORDS && partitions.in_flight().records == 0 {
            break;
        }
    }
    for (partition, taken) in taken {
        let expected: Vec<u64> = taken.into_iter().filter(|number| !over.contains(number)).collect();
        let log = world.logs.get(&partition).cloned().unwrap_or_default();
        if log != expected {
            return Err(format!("seed {seed}, partition {partition}: the log is {log:?}, and not {expected:?}"));
        }
    }
    assert_eq!(partitions.in_flight(), InFlight::default());
    Ok(found)
}

impl World {
    /// The partition of dead-letter records is served as any other.
    fn form_dead_letters(&mut self) {
        for at in 0..self.sharing {
            if !self.producers[at].fatal && self.producers[at].requests.len() < MOST_REQUESTS {
                self.form(at, PARTITIONS, 2);
            }
        }
    }
}

#[test]
fn whatever_is_refused_and_when_nothing_is_lost_swapped_or_repeated() {
    let mut found = 0;
    for seed in 0..600 {
        for sharing in [1, 2] {
            found += run(seed, sharing, Mutant::None).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
    assert!(found > 1000, "refusals were found: {found}");
}

#[test]
fn each_part_of_the_rule_is_missed_when_it_is_not_kept() {
    let mutants = [
        Mutant::SearchWithoutProof,
        Mutant::ProducerWithoutProof,
        Mutant::TwoProducers,
        Mutant::NotHeld,
        Mutant::Forgotten,
    ];
    for mutant in mutants {
        let found = (0..600).find_map(|seed| run(seed, 2, mutant).err());
        println!("{mutant:?}: {}", found.expect("somebody misses it"));
    }
}

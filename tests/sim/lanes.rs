//! The Kafka sink without librdkafka: the real rule of what may be handed over when, between the relay and the scripted cluster.
//!
//! ```text
//!  record ──► its partition ──► Partitions (the product's) ──► a lane's producer, or the search producer ──► Cluster
//!                                        ▲                                                                    │
//!                                        └──────────────────────── answers, renewals ◄────────────────────────┘
//! ```
//!
//! What stands around the rule is done here with the same calls in the same order as the sink does it. A [`Mutant`] breaks the rule
//! from outside, so that it is seen that the judge notices.

use crate::broker::{Client, Partition, client_failure, refusal_of_size};
use crate::cluster::{Cluster, Message, Told};
use crate::truth::{Found, identify};
use crate::world::World;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use walrelay::sink::kafka::partitions::{Clients, NotTaken, PartitionTarget, Partitions, Ticket};
use walrelay::sink::{
    Enqueue, Failure, FailureClass, HeaderRoom, InFlight, OwnedRecord, Record, RefusalId, Report, Resolution, Tag,
};

/// What an ended producer has in flight is waited for so long.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// What is wrong with the sink, or with what holds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Two requests of a partition that may not know the producer: nobody is told of a lane's new one.
    Unproven,
    /// A key's rows in two lanes.
    TwoLanes,
    /// The queue goes on behind a record that was refused, which is tried again later.
    NotHeld,
    /// The clients are ended two seconds after the slot is free.
    ClosedLate,
    /// A client that is replaced goes on sending what it has.
    NotClosed,
    /// The relay forgets the records in flight when it closes the sink, and not once the connection is closed.
    ForgottenFirst,
    /// A sink that is parked goes on sending.
    ParkedSends,
    /// The relay does not see that a call took long before its turn is over.
    EndlessTurn,
    /// A relay that takes the slot sends at once.
    NoSecond,
    /// The clock does not count the time for which the machine stands still.
    StoppedClock,
    /// The note of a skipped row counts before it is committed.
    NotedEarly,
}

/// One sink.
pub(crate) struct Lanes {
    /// Where it runs.
    machine: usize,
    partitions: Partitions,
    /// Numbers in `partitions`: more than one of a partition only where it is in two lanes.
    numbers: BTreeMap<Partition, Vec<u32>>,
    topics: Vec<String>,
    /// The producers of the lanes.
    senders: Vec<u64>,
    search_producer: Option<u64>,
    retired: Vec<(u64, Duration)>,
    parked: bool,
    /// Reports that came while it was parked.
    late: Vec<Report>,
    settings: Client,
    /// A lane's producer ended of itself, and would again: nothing is taken before a restart.
    fruitless: bool,
    mutant: Option<Mutant>,
    /// For a mutant: what is tried again later, and the tags of all rows.
    aside: Vec<(u32, OwnedRecord, Tag)>,
    tags: BTreeMap<usize, Tag>,
}

/// The sink's producers, for one call.
struct Producers<'a> {
    world: &'a mut World,
    topics: &'a [String],
    senders: &'a [u64],
    search_producer: &'a mut Option<u64>,
    settings: Client,
    machine: usize,
}

impl Producers<'_> {
    fn send(&mut self, id: u64, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let Found { number, dead_letter, bytes } = identify(record, &self.world.postgres.wal);
        if bytes > self.settings.record {
            return Err(NotTaken::Refused(refusal_of_size()));
        }
        let topic = self.topics[target.topic as usize].clone();
        let message = Message { ticket, number, dead_letter, bytes, record: OwnedRecord::of(record) };
        let partition = (topic, u64::from(target.partition.unsigned_abs()));
        self.world.cluster.hand_over(id, partition, message)
    }
}

impl Clients for Producers<'_> {
    fn hand_over(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        self.send(self.senders[usize::from(target.producer)], target, record, ticket)
    }

    fn collect(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let (settings, machine) = (self.settings, self.machine);
        let id = *self.search_producer.get_or_insert_with(|| connect(&mut self.world.cluster, settings, machine));
        self.send(id, target, record, ticket)
    }

    fn send_collected(&mut self) {}

    fn request_bytes(&self) -> u64 {
        self.settings.batch
    }
}

fn connect(cluster: &mut Cluster, Client { batch, report, later, .. }: Client, machine: usize) -> u64 {
    cluster.connect((batch, report, later), machine)
}

impl Lanes {
    pub(crate) fn new(world: &mut World, settings: Client, machine: usize) -> Self {
        let senders = (0..world.nature.lanes).map(|_| connect(&mut world.cluster, settings, machine)).collect();
        Self {
            machine,
            partitions: Partitions::default(),
            numbers: BTreeMap::new(),
            topics: Vec::new(),
            senders,
            search_producer: None,
            retired: Vec::new(),
            parked: false,
            late: Vec::new(),
            settings,
            fruitless: false,
            mutant: world.nature.mutant,
            aside: Vec::new(),
            tags: BTreeMap::new(),
        }
    }

    pub(crate) fn in_flight(&self) -> InFlight {
        let mut in_flight = self.partitions.in_flight_by_state();
        in_flight.records += self.aside.len() as u64;
        in_flight
    }

    pub(crate) fn blocked(&self) -> Option<Failure> {
        self.partitions.blocked().cloned()
    }

    /// Where a record goes; the number of its partition.
    fn choose(&mut self, partition: &Partition, world: &mut World, now: Instant) -> u32 {
        let Self { partitions, numbers, topics, senders, mutant, .. } = self;
        let topic = topics.iter().position(|topic| *topic == partition.0).unwrap_or_else(|| {
            topics.push(partition.0.clone());
            topics.len() - 1
        });
        let numbers = numbers.entry(partition.clone()).or_insert_with(|| {
            let lane = u8::try_from((topic as u64 + partition.1) % senders.len() as u64).unwrap();
            let copies = if *mutant == Some(Mutant::TwoLanes) { senders.len() } else { 1 };
            let target = |lane| PartitionTarget {
                topic: u32::try_from(topic).unwrap(),
                partition: i32::try_from(partition.1).unwrap(),
                producer: lane,
            };
            let lane_of = |copy| (lane + u8::try_from(copy).unwrap()) % u8::try_from(senders.len()).unwrap();
            (0..copies).map(|copy| partitions.add(target(lane_of(copy)), now)).collect()
        });
        if numbers.len() > 1 { world.dice.pick(numbers) } else { numbers[0] }
    }

    pub(crate) fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag, world: &mut World, now: Instant) -> Enqueue {
        let in_flight = self.partitions.in_flight();
        if in_flight.records > 0 && in_flight.bytes + record.held_bytes() as u64 > self.settings.room {
            return Enqueue::Full;
        }
        if let Some(failure) = world.broker.refuses_topic(record.topic, world.now) {
            return Enqueue::Blocked(failure);
        }
        if self.fruitless {
            return Enqueue::Blocked(client_failure());
        }
        let found = identify(record, &world.postgres.wal);
        self.tags.insert(found.number, tag);
        let partition = world.broker.partition_of(found, &world.postgres.wal);
        let at = self.choose(&partition, world, now);
        let Self { partitions, topics, senders, search_producer, settings, machine, .. } = self;
        partitions.enqueue(
            at,
            record,
            tag,
            now,
            &mut Producers { world, topics, senders, search_producer, settings: *settings, machine: *machine },
        )
    }

    pub(crate) fn resolve(
        &mut self,
        refusal: RefusalId,
        resolution: Resolution<'_>,
        world: &mut World,
        now: Instant,
    ) -> Enqueue {
        let Some((at, _)) = self.partitions.held_at(refusal) else { return Enqueue::Taken };
        let mut to = at;
        if let Resolution::ReplaceWith(record, _) = resolution {
            if let Some(failure) = world.broker.refuses_topic(record.topic, world.now) {
                return Enqueue::Blocked(failure);
            }
            let found = identify(record, &world.postgres.wal);
            let partition = world.broker.partition_of(found, &world.postgres.wal);
            to = self.choose(&partition, world, now);
        }
        let Self { partitions, topics, senders, search_producer, settings, machine, .. } = self;
        let made = &mut Producers { world, topics, senders, search_producer, settings: *settings, machine: *machine };
        partitions.resolve(refusal, resolution, to, now, made)
    }

    /// What there is to report.
    pub(crate) fn poll(&mut self, world: &mut World, now: Instant) -> Vec<Report> {
        let mut reports = std::mem::take(&mut self.late);
        let retired = self.retired.iter().map(|(id, _)| *id);
        let all: Vec<u64> = self.senders.iter().copied().chain(self.search_producer).chain(retired).collect();
        for id in all {
            let told = world.cluster.answers(id, world.now, &mut world.dice);
            self.take(told, now, &mut reports);
        }
        if self.parked {
            return reports;
        }
        self.renew(world, now, &mut reports);
        self.again(world, now);
        let Self { partitions, topics, senders, search_producer, settings, machine, .. } = self;
        let made = &mut Producers { world, topics, senders, search_producer, settings: *settings, machine: *machine };
        partitions.advance(now, made, &mut |report| reports.push(report));
        partitions.take_events();
        reports
    }

    fn take(&mut self, told: Vec<Told>, now: Instant, reports: &mut Vec<Report>) {
        for told in told {
            match told {
                Told::Delivered(ticket) => reports.push(Report::Delivered(self.partitions.delivered(ticket, now))),
                Told::Failed((ticket, number), record, failure)
                    if self.mutant == Some(Mutant::NotHeld) && failure.class == FailureClass::Row =>
                {
                    let at = self.partitions.partition_of(ticket);
                    let tag = self.tags[&number];
                    self.partitions.delivered(ticket, now);
                    self.aside.push((at, record, tag));
                }
                Told::Failed((ticket, _), record, failure) => self.partitions.failed(ticket, record, failure),
            }
        }
    }

    /// For a mutant: what was refused is tried again.
    fn again(&mut self, world: &mut World, now: Instant) {
        if self.aside.is_empty() || !world.dice.one_in(5) {
            return;
        }
        for (at, record, tag) in std::mem::take(&mut self.aside) {
            let Self { partitions, topics, senders, search_producer, settings, machine, .. } = self;
            let made =
                &mut Producers { world, topics, senders, search_producer, settings: *settings, machine: *machine };
            record.with_record(&mut HeaderRoom::default(), |record| partitions.enqueue(at, record, tag, now, made));
        }
    }

    /// Producers that have ended make room for new ones, and go once nothing of theirs is in flight.
    fn renew(&mut self, world: &mut World, now: Instant, reports: &mut Vec<Report>) {
        for lane in 0..self.senders.len() {
            if !world.cluster.has_ended(self.senders[lane]) {
                continue;
            }
            if self.fruitless || world.calm_since.is_none() && world.dice.one_in(30) {
                self.fruitless = true;
                reports.push(Report::Failed(client_failure()));
                return;
            }
            let old =
                std::mem::replace(&mut self.senders[lane], connect(&mut world.cluster, self.settings, self.machine));
            self.retire(old, world, now, reports);
            if self.mutant != Some(Mutant::Unproven) {
                self.partitions.producer_renewed(u8::try_from(lane).unwrap(), now);
            }
        }
        if let Some(old) = self.search_producer.take_if(|id| world.cluster.has_ended(*id)) {
            self.retire(old, world, now, reports);
            self.partitions.search_producer_renewed(now);
        }
        let is_late = |(_, since): &mut (u64, Duration)| world.now.saturating_sub(*since) >= ANSWERED_WITHIN;
        for (id, _) in self.retired.extract_if(.., is_late).collect::<Vec<_>>() {
            let told = world.cluster.purge(id, true);
            self.take(told, now, reports);
        }
        self.retired.retain(|(id, _)| !world.cluster.is_empty(*id));
    }

    fn retire(&mut self, old: u64, world: &mut World, now: Instant, reports: &mut Vec<Report>) {
        let told = world.cluster.purge(old, false);
        self.take(told, now, reports);
        self.retired.push((old, world.now));
    }

    /// Nobody listens to its producers any more.
    pub(crate) fn give_up(&mut self, world: &mut World) {
        let retired = self.retired.drain(..).map(|(id, _)| id);
        for id in self.senders.drain(..).chain(self.search_producer.take()).chain(retired) {
            world.cluster.give_up(id, world.now, &mut world.dice);
        }
    }

    /// Nothing that was taken is on its way any more.
    pub(crate) fn close(&mut self, world: &mut World) {
        let retired = self.retired.iter().map(|(id, _)| id);
        self.senders.iter().chain(&self.search_producer).chain(retired).for_each(|id| world.cluster.close(*id));
    }

    /// All producers are purged, and nothing of theirs is on its way any more.
    pub(crate) fn park(&mut self, world: &mut World, now: Instant) {
        self.parked = true;
        let retired = self.retired.iter().map(|(id, _)| *id);
        let all: Vec<u64> = self.senders.iter().copied().chain(self.search_producer).chain(retired).collect();
        let mut reports = Vec::new();
        for id in all {
            // What has been answered is heard before.
            let mut told = world.cluster.answers(id, world.now, &mut world.dice);
            told.extend(world.cluster.purge(id, true));
            world.cluster.close(id);
            self.take(told, now, &mut reports);
        }
        self.late.extend(reports);
    }

    /// New producers take the places of those that were purged.
    pub(crate) fn unpark(&mut self, world: &mut World, now: Instant) {
        if !std::mem::take(&mut self.parked) {
            return;
        }
        for lane in 0..self.senders.len() {
            self.senders[lane] = connect(&mut world.cluster, self.settings, self.machine);
            self.partitions.producer_renewed(u8::try_from(lane).unwrap(), now);
        }
        self.retired.clear();
        self.search_producer = None;
        self.partitions.search_producer_renewed(now);
    }

    /// Everything that was taken is given up.
    pub(crate) fn restart(&mut self, world: &mut World, now: Instant) {
        let lanes = self.senders.len();
        self.close(world);
        self.give_up(world);
        self.senders = (0..lanes).map(|_| connect(&mut world.cluster, self.settings, self.machine)).collect();
        self.partitions.forget(now);
        self.parked = false;
        self.late.clear();
        self.aside.clear();
        self.tags.clear();
        self.fruitless = false;
    }
}

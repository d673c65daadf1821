//! A scripted broker with its producers. Outside transactions it answers for each record by itself, as brokers other than Kafka do: one
//! that is refused holds its partition. A batch of a transaction is taken as a whole, and a refused one ends its producer, as with Kafka.
//!
//! ```text
//!  try_enqueue ──► one queue per partition ──► batches ──► log       reports come late, in any order
//! ```
//!
//! Of a producer that ends, nothing later of a refused batch's partition gets in, and what was on its way to other partitions may. A
//! producer that was given up may still have batches on their way: a part of each queue, from its front, may arrive within
//! [`LINGERS`], also after what a newer producer has sent.

use crate::dice::Dice;
use crate::machines::{MACHINES, Machine};
use crate::transactions::Transaction;
use crate::truth::{DEAD_LETTERS, Found, Taken, Truth, identify};
use crate::wal::Wal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use walrelay::sink::{
    Delivered, Enqueue, Failure, FailureClass, InFlight, OwnedRecord, Record, RefusalId, Refused, Report, Resolution,
    Tag,
};

/// What a producer that was given up has on its way arrives within so long: its sockets are reset when it is closed, and when it is killed.
pub(crate) const LINGERS: Duration = Duration::from_millis(500);

/// Topic and number.
pub(crate) type Partition = (String, u64);

#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) producers: Vec<Producer>,
    /// Partitions of each topic.
    pub(crate) partitions: u64,
    pub(crate) rules: Rules,
    /// Answers nobody until then.
    pub(crate) down_until: Duration,
    /// Rows that a test holds back, and with them what comes after in their partitions.
    pub(crate) held: BTreeSet<usize>,
    /// Topics that take nothing until then.
    pub(crate) blocked: BTreeMap<String, Duration>,
    /// Topics that are missing until then.
    pub(crate) missing: BTreeMap<String, Duration>,
    /// What is kept of the relays' progress.
    pub(crate) progress: BTreeMap<String, String>,
}

/// What is refused.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Largest batch, in bytes.
    pub(crate) limit: u64,
    /// Largest dead letter, in bytes.
    pub(crate) dead_letter: u64,
    /// Rows that are refused whatever their size, until somebody fixes it.
    pub(crate) refused: BTreeSet<usize>,
    /// Rows that were refused once and would not be again: word of that may still be on its way.
    pub(crate) fixed: BTreeSet<usize>,
}

impl Rules {
    /// Whether a batch of such rows, dead letters and bytes is refused.
    pub(crate) fn refuse(&self, batch: impl Iterator<Item = (usize, bool, u64)> + Clone) -> bool {
        let bytes: u64 = batch.clone().map(|(_, _, bytes)| bytes).sum();
        if batch.clone().any(|(_, dead_letter, _)| dead_letter) {
            return bytes > self.dead_letter;
        }
        bytes > self.limit || batch.into_iter().any(|(number, _, _)| self.refused.contains(&number))
    }
}

/// One producer's client.
#[derive(Debug)]
pub(crate) struct Producer {
    /// Where it runs.
    machine: usize,
    queues: BTreeMap<Partition, VecDeque<Queued>>,
    paused: BTreeMap<Partition, Duration>,
    reports: Vec<(Duration, Told)>,
    in_flight: InFlight,
    /// Partitions whose first record is refused, by the number of the refusal; and the refusals that the relay does not know of.
    held: BTreeMap<RefusalId, Partition>,
    untold: Vec<(Duration, Refused)>,
    refusals: u64,
    /// Partitions that wait for a dead letter elsewhere.
    replaced: BTreeSet<Partition>,
    /// Rows of refused batches of a transaction. Each of them goes alone.
    pub(crate) suspects: BTreeSet<usize>,
    /// Takes and sends nothing any more.
    fatal: bool,
    /// Nobody listens to it any more.
    given_up: bool,
    /// It has no connection, and keeps what it has.
    parked: bool,
    /// The last row of each partition whose report was heard.
    heard: BTreeMap<Partition, usize>,
    /// What is on its way arrives until then or never.
    lingers_until: Duration,
    pub(crate) taken: Taken,
    /// Half of the smallest batch of several that was refused, in bytes: the next client's batches are no larger.
    pub(crate) refused: u64,
    pub(crate) settings: Client,
    /// For transactions; `None`: what is appended is there at once.
    pub(crate) transaction: Option<Transaction>,
}

/// How a client is set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    /// Largest batch, in bytes.
    pub(crate) batch: u64,
    /// Most bytes in flight.
    pub(crate) room: u64,
    /// Largest record, in bytes.
    pub(crate) record: u64,
    /// A report comes so late at most, in milliseconds; once in `later`, a hundred times as late.
    pub(crate) report: u64,
    pub(crate) later: u64,
}

/// What is reported of one record.
#[derive(Debug)]
struct Told {
    tag: Tag,
    bytes: u64,
    outcome: Result<(), Failure>,
    /// Where the record is stored that is reported as delivered.
    stored: Option<(Partition, Queued)>,
}

#[derive(Debug, Clone)]
struct Queued {
    number: usize,
    dead_letter: bool,
    bytes: u64,
    tag: Tag,
    record: OwnedRecord,
    /// The partition that waits for it, a dead letter.
    releases: Option<Partition>,
}

impl Queued {
    fn judged(&self) -> (usize, bool, u64) {
        (self.number, self.dead_letter, self.bytes)
    }
}

/// What happens to the batch that is sent next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is judged by what it holds.
    Judged,
    /// It is tried again, after a pause.
    Later,
    /// The topic's condition fails it: a right is missing.
    Forbidden,
    /// The cluster's condition fails it.
    Environment,
    /// The client dies of itself.
    Fatal,
}

impl Broker {
    pub(crate) fn new() -> Self {
        Self {
            producers: Vec::new(),
            partitions: 3,
            rules: Rules { limit: u64::MAX, dead_letter: u64::MAX, refused: BTreeSet::new(), fixed: BTreeSet::new() },
            down_until: Duration::ZERO,
            held: BTreeSet::new(),
            blocked: BTreeMap::new(),
            missing: BTreeMap::new(),
            progress: BTreeMap::new(),
        }
    }

    pub(crate) fn connect(&mut self, settings: Client, taken: Taken, machine: usize) -> usize {
        self.producers.push(Producer {
            machine,
            queues: BTreeMap::new(),
            paused: BTreeMap::new(),
            reports: Vec::new(),
            in_flight: InFlight::default(),
            held: BTreeMap::new(),
            untold: Vec::new(),
            refusals: 0,
            replaced: BTreeSet::new(),
            suspects: BTreeSet::new(),
            fatal: false,
            given_up: false,
            parked: false,
            heard: BTreeMap::new(),
            lingers_until: Duration::MAX,
            taken,
            refused: u64::MAX,
            settings,
            transaction: None,
        });
        self.producers.len() - 1
    }

    /// Whether the row is refused, alone in its batch.
    pub(crate) fn refuses(&self, number: usize, wal: &Wal) -> bool {
        self.rules.refused.contains(&number) || bytes_of(number, wal) > self.rules.limit
    }

    /// An operator sees to it that the row is taken.
    pub(crate) fn fix(&mut self, number: usize, wal: &Wal) {
        self.rules.fixed.insert(number);
        self.rules.refused.remove(&number);
        self.rules.limit = self.rules.limit.max(bytes_of(number, wal));
    }

    pub(crate) fn try_enqueue(
        &mut self,
        producer: usize,
        (record, tag): (&Record<'_>, Tag),
        wal: &Wal,
        now: Duration,
    ) -> Enqueue {
        let found @ Found { number, dead_letter, bytes } = identify(record, wal);
        let partition = self.partition_of(found, wal);
        let refuses = self.refuses_topic(&partition.0, now);
        let producer = &mut self.producers[producer];
        if producer.fatal {
            return Enqueue::Blocked(client_failure());
        }
        if bytes > producer.settings.record {
            return Enqueue::Bad(refusal_of_size());
        }
        if producer.in_flight.records > 0 && producer.in_flight.bytes + bytes > producer.settings.room {
            return Enqueue::Full;
        }
        if let Some(failure) = refuses {
            return Enqueue::Blocked(failure);
        }
        let record = OwnedRecord::of(record);
        producer.take(partition, Queued { number, dead_letter, bytes, tag, record, releases: None });
        Enqueue::Taken
    }

    /// The relay decides on a refused record.
    pub(crate) fn resolve(
        &mut self,
        producer: usize,
        (refusal, resolution): (RefusalId, Resolution<'_>),
        wal: &Wal,
        now: Duration,
    ) -> Enqueue {
        let Some(partition) = self.producers[producer].held.get(&refusal).cloned() else { return Enqueue::Taken };
        let (mut instead, mut blocked) = (None, None);
        if let Resolution::ReplaceWith(record, token) = resolution {
            let found = identify(record, wal);
            blocked = self.refuses_topic(record.topic, now);
            instead = Some((self.partition_of(found, wal), found, OwnedRecord::of(record), token));
        }
        let producer = &mut self.producers[producer];
        if let Some(failure) = blocked {
            return Enqueue::Blocked(failure);
        }
        if instead.as_ref().is_some_and(|(_, found, ..)| found.bytes > producer.settings.record) {
            return Enqueue::Bad(refusal_of_size());
        }
        producer.held.remove(&refusal);
        if matches!(resolution, Resolution::Retry) {
            producer.paused.insert(partition, now + Duration::from_secs(1));
            return Enqueue::Taken;
        }
        let queue = producer.queues.get_mut(&partition).expect("a partition that is held");
        let old = queue.pop_front().expect("a record that is refused");
        producer.in_flight.records -= 1;
        producer.in_flight.bytes -= old.bytes;
        match instead {
            None => {
                old.releases
                    .iter()
                    .for_each(|waits| assert!(producer.replaced.remove(waits), "{waits:?} does not wait"));
            }
            Some((to, Found { number, dead_letter, bytes }, record, token)) => {
                let tag = Tag { token, ..old.tag };
                let in_place = to == partition;
                let releases = if in_place { old.releases } else { Some(partition.clone()) };
                let queued = Queued { number, dead_letter, bytes, tag, record, releases };
                producer.take(to.clone(), queued);
                if in_place {
                    let queue = producer.queues.get_mut(&to).expect("it was taken");
                    queue.rotate_right(1);
                } else {
                    producer.replaced.insert(partition);
                }
            }
        }
        Enqueue::Taken
    }

    /// Why the topic takes nothing now.
    pub(crate) fn refuses_topic(&self, topic: &str, now: Duration) -> Option<Failure> {
        let is_so = |topics: &BTreeMap<String, Duration>| topics.get(topic).is_some_and(|until| now < *until);
        if is_so(&self.blocked) {
            return Some(environment_failure());
        }
        is_so(&self.missing).then(topic_failure)
    }

    /// Where a record goes.
    pub(crate) fn partition_of(&self, Found { number, dead_letter, .. }: Found, wal: &Wal) -> Partition {
        if dead_letter {
            return (DEAD_LETTERS.to_owned(), 0);
        }
        let row = &wal.rows[number];
        let hash = match &row.key {
            Some(key) => key.bytes().fold(5381u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(byte)),
            None => number as u64,
        };
        (crate::truth::topic(row), hash % self.partitions)
    }

    /// Sends one batch of one partition, if there is one.
    pub(crate) fn work(
        &mut self,
        action: Action,
        now: Duration,
        machines: &[Machine; MACHINES],
        (wal, truth): (&Wal, &mut Truth),
        dice: &mut Dice,
    ) {
        let gone = self.producers.iter_mut().filter(|it| it.lingers_until < now);
        gone.for_each(|it| it.queues.values_mut().for_each(VecDeque::clear));
        if now < self.down_until {
            return;
        }
        let Self { producers, rules, held, .. } = self;
        let able: Vec<(usize, Partition)> = producers
            .iter()
            .enumerate()
            .filter(|(_, producer)| machines[producer.machine].reaches_brokers(now))
            .flat_map(|(at, producer)| producer.able(now, held).map(move |partition| (at, partition.clone())))
            .collect();
        if able.is_empty() {
            return;
        }
        let (at, partition) = &able[dice.index(able.len())];
        let producer = &mut producers[*at];
        let judged = producer.given_up && action != Action::Later;
        match if judged { Action::Judged } else { action } {
            Action::Later => {
                producer.paused.insert(partition.clone(), now + Duration::from_millis(dice.below(2000)));
            }
            Action::Fatal => producer.die(Vec::new(), rules, now, (wal, truth), dice),
            Action::Environment if producer.transaction.is_none() => {
                producer.paused.insert(partition.clone(), now + Duration::from_secs(1));
            }
            Action::Forbidden if producer.transaction.is_none() => {
                let told = now + Duration::from_millis(dice.below(300));
                producer.hold(partition, topic_failure(), told);
            }
            Action::Judged if producer.transaction.is_none() => {
                producer.append_each(partition, (rules, held), now, (wal, truth), dice);
            }
            action @ (Action::Environment | Action::Forbidden) => {
                let batch = producer.batch(partition, held, dice);
                let told = now + Duration::from_millis(dice.below(300));
                let failure = if action == Action::Forbidden { topic_failure() } else { environment_failure() };
                let barred = producer.refuse(partition, batch, &failure, told);
                producer.die(barred, rules, told, (wal, truth), dice);
            }
            Action::Judged => {
                let batch = producer.batch(partition, held, dice);
                if rules.refuse(batch.iter().map(Queued::judged)) {
                    if batch.len() > 1 {
                        let bytes: u64 = batch.iter().map(|queued| queued.bytes).sum();
                        producer.refused = producer.refused.min((bytes / 2).max(1));
                    }
                    let told = now + Duration::from_millis(dice.below(300));
                    let barred = producer.refuse(partition, batch, &refusal(), told);
                    producer.die(barred, rules, told, (wal, truth), dice);
                } else {
                    producer.append(partition, batch, now, (wal, truth), dice);
                }
            }
        }
    }

    /// The producer's user is gone, or wants nothing more of it.
    pub(crate) fn give_up(&mut self, producer: usize, now: Duration, dice: &mut Dice) {
        let producer = &mut self.producers[producer];
        (producer.given_up, producer.lingers_until) = (true, now + LINGERS);
        producer.reports.clear();
        producer.untold.clear();
        producer.in_flight = InFlight::default();
        for queue in producer.queues.values_mut() {
            queue.truncate(if dice.one_in(2) { 0 } else { dice.index(queue.len() + 1) });
        }
    }

    /// Its connections are closed: nothing of it is on its way any more.
    pub(crate) fn close(&mut self, producer: usize) {
        let producer = &mut self.producers[producer];
        producer.given_up = true;
        producer.reports.clear();
        producer.untold.clear();
        producer.in_flight = InFlight::default();
        producer.queues.values_mut().for_each(VecDeque::clear);
    }

    /// Its connection is closed, and it keeps what it has. Reports that it has not heard are lost, from any of each partition on: those
    /// records wait again, in front.
    pub(crate) fn park(&mut self, producer: usize, dice: &mut Dice) {
        let producer = &mut self.producers[producer];
        producer.parked = true;
        let partitions: BTreeSet<Partition> =
            producer.reports.iter().filter_map(|(_, told)| told.stored.as_ref()).map(|(at, _)| at.clone()).collect();
        // Whoever waits for a decision on its first record has heard of all before it.
        for partition in partitions.into_iter().filter(|partition| !producer.waits(partition)).collect::<Vec<_>>() {
            let heard = producer.heard.get(&partition).copied();
            let is_its = |told: &Told| {
                let stored = told.stored.as_ref().filter(|(at, _)| *at == partition);
                // A dead letter's place among others' is not known by its row.
                stored.is_some_and(|(_, it)| !it.dead_letter && heard.is_none_or(|heard| heard < it.number))
            };
            let mut its: Vec<(Duration, Told)> = producer.reports.extract_if(.., |(_, told)| is_its(told)).collect();
            its.sort_by_key(|(_, told)| told.stored.as_ref().map(|(_, it)| it.number));
            let lost = its.split_off(dice.index(its.len() + 1));
            producer.reports.extend(its);
            let queue = producer.queues.entry(partition).or_default();
            let again = lost.into_iter().filter_map(|(_, told)| told.stored);
            again.rev().for_each(|(_, queued)| queue.push_front(Queued { releases: None, ..queued }));
        }
    }

    /// It has connections again.
    pub(crate) fn unpark(&mut self, producer: usize) {
        self.producers[producer].parked = false;
    }

    /// Whether nothing is on its way any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.producers.iter().all(|producer| producer.queues.values().all(VecDeque::is_empty))
    }

    /// No report takes long from here on.
    pub(crate) fn hurry(&mut self) {
        self.producers.iter_mut().for_each(|producer| producer.settings.later = 0);
    }

    /// The reports that have come, in any order.
    pub(crate) fn reports(&mut self, producer: usize, now: Duration, dice: &mut Dice) -> Vec<Report> {
        let producer = &mut self.producers[producer];
        let mut due = Vec::new();
        let mut rest = Vec::new();
        for (at, report) in producer.reports.drain(..) {
            if at <= now { due.push(report) } else { rest.push((at, report)) }
        }
        producer.reports = rest;
        let mut refused: Vec<Report> = producer.tell_refused(now);
        for place in (1..due.len()).rev() {
            due.swap(place, dice.index(place + 1));
        }
        for report in &due {
            producer.in_flight.records -= 1;
            producer.in_flight.bytes -= report.bytes;
            if let Some((partition, Queued { number, .. })) = &report.stored {
                let last = producer.heard.entry(partition.clone()).or_default();
                *last = (*last).max(*number);
            }
        }
        refused.extend(in_runs(due));
        refused
    }

    /// The producer's records in flight.
    pub(crate) fn in_flight(&self, producer: usize) -> InFlight {
        let producer = &self.producers[producer];
        let held = producer.held.values().map(|partition| producer.queues[partition].len() as u64).sum();
        InFlight { held, ..producer.in_flight }
    }
}

/// Reports of equal token and good outcome that follow each other come as one.
fn in_runs(told: Vec<Told>) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    for Told { tag: Tag { token, .. }, bytes, outcome, .. } in told {
        match (outcome, reports.last_mut()) {
            (Err(failure), _) => reports.push(Report::Failed(failure)),
            (Ok(()), Some(Report::Delivered(run))) if run.token == token => {
                run.records += 1;
                run.bytes += bytes;
            }
            (Ok(()), _) => reports.push(Report::Delivered(Delivered { token, records: 1, bytes })),
        }
    }
    reports
}

impl Producer {
    /// The partitions that a batch may be sent to.
    fn able<'a>(&'a self, now: Duration, held: &'a BTreeSet<usize>) -> impl Iterator<Item = &'a Partition> {
        let is_connected = !self.parked;
        let able = move |(partition, queue): &(&Partition, &VecDeque<Queued>)| {
            let is_free = |queued: &Queued| !held.contains(&queued.number);
            is_connected
                && queue.front().is_some_and(is_free)
                && !self.waits(partition)
                && self.paused.get(*partition).is_none_or(|until| now >= *until)
        };
        self.queues.iter().filter(able).map(|(partition, _)| partition)
    }

    fn take(&mut self, partition: Partition, queued: Queued) {
        self.in_flight.records += 1;
        self.in_flight.bytes += queued.bytes;
        self.queues.entry(partition).or_default().push_back(queued);
    }

    /// Whether a partition waits for the relay's decision, or for a dead letter.
    fn waits(&self, partition: &Partition) -> bool {
        self.replaced.contains(partition) || self.held.values().any(|held| held == partition)
    }

    /// The partition's first record is refused.
    fn hold(&mut self, partition: &Partition, failure: Failure, told: Duration) {
        if self.given_up {
            return;
        }
        self.refusals += 1;
        let id = RefusalId(self.refusals);
        let front = self.queues[partition].front().expect("a record that is refused");
        let refused = Refused { id, tag: front.tag, record: front.record.clone(), failure };
        self.held.insert(id, partition.clone());
        self.untold.push((told, refused));
    }

    /// The refusals that have come.
    fn tell_refused(&mut self, now: Duration) -> Vec<Report> {
        let told = self.untold.extract_if(.., |(told, _)| *told <= now);
        told.map(|(_, refused)| Report::Refused(Box::new(refused))).collect()
    }

    /// The broker judges each record of a batch, up to the first that it refuses.
    fn append_each(
        &mut self,
        partition: &Partition,
        (rules, held): (&Rules, &BTreeSet<usize>),
        now: Duration,
        (wal, truth): (&Wal, &mut Truth),
        dice: &mut Dice,
    ) {
        let mut batch: VecDeque<Queued> = self.batch(partition, held, dice).into();
        let good = batch.iter().take_while(|queued| !rules.refuse(std::iter::once(queued.judged()))).count();
        let rest = batch.split_off(good);
        let is_refused = !rest.is_empty();
        let queue = self.queues.get_mut(partition).expect("a batch's queue");
        rest.into_iter().rev().for_each(|queued| queue.push_front(queued));
        for released in batch.iter().filter_map(|queued| queued.releases.as_ref()) {
            self.replaced.remove(released);
        }
        self.append(partition, batch.into(), now, (wal, truth), dice);
        if is_refused {
            self.hold(partition, refusal(), now + Duration::from_millis(dice.below(300)));
        }
    }

    /// The front of a queue: at least one record, at most a batch.
    fn batch(&mut self, partition: &Partition, held: &BTreeSet<usize>, dice: &mut Dice) -> Vec<Queued> {
        let queue = self.queues.get_mut(partition).unwrap();
        // Mostly as much as there is: a queue that has waited makes full batches.
        let most = if dice.one_in(3) { dice.index(queue.len()) + 1 } else { queue.len() };
        let mut batch: Vec<Queued> = Vec::new();
        let mut bytes = 0;
        while let Some(queued) = queue.front().filter(|_| batch.len() < most) {
            bytes += queued.bytes;
            let goes_alone = |number: usize| self.suspects.contains(&number);
            let is_beside = |before: &Queued| goes_alone(before.number) || goes_alone(queued.number);
            if batch.last().is_some_and(is_beside)
                || !batch.is_empty() && bytes > self.settings.batch
                || held.contains(&queued.number)
            {
                break;
            }
            batch.extend(queue.pop_front());
        }
        batch
    }

    fn append(
        &mut self,
        partition: &Partition,
        batch: Vec<Queued>,
        now: Duration,
        (wal, truth): (&Wal, &mut Truth),
        dice: &mut Dice,
    ) {
        let Client { report, later, .. } = self.settings;
        let late = dice.below(report + 1) * if dice.one_in(later) { 100 } else { 1 };
        for queued in batch {
            let Queued { number, dead_letter, bytes, tag, .. } = queued;
            self.put(partition, (number, dead_letter), (wal, truth));
            if !self.given_up {
                let stored = Some((partition.clone(), queued));
                let delivered = Told { tag, bytes, outcome: Ok(()), stored };
                self.reports.push((now + Duration::from_millis(late), delivered));
            }
        }
    }

    /// This batch fails, and with it the client.
    fn refuse(&mut self, guilty: &Partition, batch: Vec<Queued>, failure: &Failure, now: Duration) -> Vec<Queued> {
        let is_known = batch.len() == 1 || failure.class == FailureClass::Topic;
        for queued in batch {
            if is_known && !self.given_up {
                let Queued { tag, record, .. } = queued;
                self.untold.push((now, Refused { id: RefusalId(0), tag, record, failure: failure.clone() }));
                continue;
            }
            if failure.class == FailureClass::Row {
                self.suspects.insert(queued.number);
            }
            self.fail(&queued, failure, now);
        }
        // Nothing behind it gets through.
        self.queues.remove(guilty).unwrap_or_default().into()
    }

    /// The client is fatally ill: everything is purged, though some of what it had sent has got through. Not `barred`.
    fn die(
        &mut self,
        barred: Vec<Queued>,
        rules: &Rules,
        now: Duration,
        (wal, truth): (&Wal, &mut Truth),
        dice: &mut Dice,
    ) {
        self.fatal = true;
        for (partition, queue) in std::mem::take(&mut self.queues) {
            let is_clean = |queued: &Queued| !rules.refuse(std::iter::once(queued.judged()));
            let clean = if self.waits(&partition) { 0 } else { queue.iter().take_while(|it| is_clean(it)).count() };
            let through = if dice.one_in(2) { 0 } else { dice.index(clean + 1) };
            for (place, queued) in queue.into_iter().enumerate() {
                if place < through {
                    self.put(&partition, (queued.number, queued.dead_letter), (wal, truth));
                }
                self.fail(&queued, &client_failure(), now);
            }
        }
        for queued in barred {
            self.fail(&queued, &client_failure(), now);
        }
        if self.transaction.is_none() {
            self.held.clear();
            self.untold.clear();
        }
    }

    fn put(&mut self, partition: &Partition, record: (usize, bool), (wal, truth): (&Wal, &mut Truth)) {
        match &mut self.transaction {
            None => append(truth, partition, record, wal),
            Some(transaction) => transaction.put(partition, record),
        }
    }

    /// Another producer has its name now: nothing it has not committed will be, unless the commit was asked for.
    pub(crate) fn fence(&mut self, rules: &Rules, now: Duration, (wal, truth): (&Wal, &mut Truth), dice: &mut Dice) {
        self.die(Vec::new(), rules, now, (wal, truth), dice);
        self.queues.clear();
    }

    fn fail(&mut self, queued: &Queued, failure: &Failure, now: Duration) {
        if self.given_up {
            return;
        }
        let Queued { bytes, tag, .. } = *queued;
        let outcome = Err(failure.clone());
        self.reports.push((now, Told { tag, bytes, outcome, stored: None }));
    }
}

pub(crate) fn append(truth: &mut Truth, partition: &Partition, (number, dead_letter): (usize, bool), wal: &Wal) {
    if dead_letter { truth.append_dead_letter(number, wal) } else { truth.append(partition, number, wal) }
}

pub(crate) fn bytes_of(number: usize, wal: &Wal) -> u64 {
    let row = &wal.rows[number];
    (row.payload.len() + row.key.as_ref().map_or(0, String::len)) as u64
}

pub(crate) fn refusal() -> Failure {
    Failure::new(FailureClass::Row, "too_large", "message size too large")
}

/// The client's own refusal.
pub(crate) fn refusal_of_size() -> Failure {
    Failure { text: "more than the client may send".to_owned(), ..refusal() }
}

pub(crate) fn topic_failure() -> Failure {
    Failure::new(FailureClass::Topic, "unknown_topic", "no such topic")
}

pub(crate) fn environment_failure() -> Failure {
    Failure::new(FailureClass::Environment, "authorization", "not allowed")
}

pub(crate) fn client_failure() -> Failure {
    Failure::new(FailureClass::Client, "client", "the producer is at its end")
}

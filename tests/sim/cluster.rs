//! A scripted Kafka cluster with idempotent producers, as far as what arrives and in which order depends on them.
//!
//! ```text
//!  hand over ──► what waits, by partition ──► requests, cut anywhere ──► judged in order ──► answers, late or lost
//! ```
//!
//! A broker that does not know a producer in a partition takes a request of any sequence number; one that knows it takes what comes
//! next, takes a repeat for what it has, and sends back what comes too early. It forgets a producer that has been silent in a partition
//! for long. A request that is refused for good ends its producer: what that has sent is still answered, what it has not is not sent.
//! A producer that was given up may still have requests on their way.
//! Specification: KIP-98, "Idempotent Producer Guarantees"; librdkafka's INTRODUCTION.md, "Idempotent Producer".

use crate::broker::{
    Action, Broker, LINGERS, Partition, append, client_failure, environment_failure, refusal, topic_failure,
};
use crate::dice::Dice;
use crate::machines::{MACHINES, Machine};
use crate::truth::Truth;
use crate::wal::Wal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use walrelay::sink::kafka::partitions::{NotTaken, Ticket};
use walrelay::sink::{Failure, OwnedRecord};

/// A connection takes so many requests before the first is answered.
const REQUESTS: usize = 5;

/// A broker may forget a producer that was silent in a partition for longer than a proof holds (10 s).
const FORGETS_AFTER: Duration = Duration::from_secs(11);

/// All brokers, and every producer that has anything to send or to hear.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    producers: BTreeMap<u64, Producer>,
    /// What is expected next of a producer in a partition, and when something of it came last.
    known: BTreeMap<(Partition, u64), (u64, Duration)>,
    /// Identifiers rise.
    next: u64,
    calm: bool,
    pub(crate) requests: u64,
    /// Requests that held several records and were refused.
    pub(crate) refused: u64,
}

#[derive(Debug)]
struct Producer {
    /// Where it runs.
    machine: usize,
    waiting: BTreeMap<Partition, VecDeque<Message>>,
    sequences: BTreeMap<Partition, u64>,
    requests: Vec<Request>,
    /// Largest request, in bytes.
    batch: u64,
    /// An answer takes so long at most, in milliseconds; once in `later`, a hundred times as long.
    report: u64,
    later: u64,
    /// It takes and sends nothing any more.
    ended: bool,
    /// Nobody listens to it any more.
    given_up: bool,
    /// What is on its way arrives until then or never.
    lingers_until: Duration,
}

/// A record on its way.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) ticket: Ticket,
    pub(crate) number: usize,
    pub(crate) dead_letter: bool,
    pub(crate) bytes: u64,
    pub(crate) record: OwnedRecord,
}

#[derive(Debug)]
struct Request {
    partition: Partition,
    base: u64,
    messages: Vec<Message>,
    /// What the broker said, and when that is there.
    answer: Option<(Duration, Answer)>,
    not_before: Duration,
    /// It, or one before it, is to be sent again. A producer that has ended sends nothing again: its outcome stays unknown.
    again: bool,
}

#[derive(Debug)]
enum Answer {
    Taken,
    /// It is sent again: refused for a while, too early, or the answer was lost.
    Later,
    Refused(Failure),
}

/// What becomes known of a record.
#[derive(Debug)]
pub(crate) enum Told {
    Delivered(Ticket),
    /// The record, and its row.
    Failed((Ticket, usize), OwnedRecord, Failure),
}

enum Act {
    Form(Partition),
    Arrive(usize),
}

impl Cluster {
    /// A producer that no broker knows.
    pub(crate) fn connect(&mut self, (batch, report, later): (u64, u64, u64), machine: usize) -> u64 {
        self.next += 1;
        let producer = Producer {
            machine,
            waiting: BTreeMap::new(),
            sequences: BTreeMap::new(),
            requests: Vec::new(),
            batch,
            report,
            later: if self.calm { 0 } else { later },
            ended: false,
            given_up: false,
            lingers_until: Duration::MAX,
        };
        self.producers.insert(self.next, producer);
        self.next
    }

    pub(crate) fn hand_over(&mut self, id: u64, partition: Partition, message: Message) -> Result<(), NotTaken> {
        let producer = self.producers.get_mut(&id).filter(|producer| !producer.ended).ok_or(NotTaken::Later)?;
        producer.waiting.entry(partition).or_default().push_back(message);
        Ok(())
    }

    pub(crate) fn has_ended(&self, id: u64) -> bool {
        self.producers.get(&id).is_none_or(|producer| producer.ended)
    }

    /// Whether everything that it was handed is answered.
    pub(crate) fn is_empty(&self, id: u64) -> bool {
        self.producers.get(&id).is_none_or(|it| it.requests.is_empty() && it.waiting.values().all(VecDeque::is_empty))
    }

    /// Nobody listens any more; what is on its way may still arrive, a part of it, from the front.
    pub(crate) fn give_up(&mut self, id: u64, now: Duration, dice: &mut Dice) {
        let Some(producer) = self.producers.get_mut(&id) else { return };
        (producer.given_up, producer.ended, producer.lingers_until) = (true, true, now + LINGERS);
        producer.waiting.clear();
        let kept = dice.index(producer.requests.len() + 1);
        producer.requests.truncate(kept);
        producer.requests.retain(|request| request.answer.is_none());
    }

    /// Its connections are closed: nothing of it is on its way any more.
    pub(crate) fn close(&mut self, id: u64) {
        let Some(producer) = self.producers.get_mut(&id) else { return };
        (producer.given_up, producer.ended) = (true, true);
        producer.waiting.clear();
        producer.requests.clear();
    }

    /// What it had not sent, and with `all` what is on its way as well, whose outcome stays unknown.
    pub(crate) fn purge(&mut self, id: u64, all: bool) -> Vec<Told> {
        let Some(producer) = self.producers.get_mut(&id) else { return Vec::new() };
        let waiting: Vec<Message> = std::mem::take(&mut producer.waiting).into_values().flatten().collect();
        let mut told = fail(waiting, &client_failure());
        if all {
            producer.given_up = true;
            for request in &mut producer.requests {
                let messages = request.messages.iter().map(|it| Message { record: it.record.clone(), ..*it }).collect();
                told.extend(fail(messages, &client_failure()));
            }
            producer.requests.clear();
        }
        told
    }

    /// The answers that have come.
    pub(crate) fn answers(&mut self, id: u64, now: Duration, dice: &mut Dice) -> Vec<Told> {
        let mut told = Vec::new();
        let Some(producer) = self.producers.get_mut(&id).filter(|producer| !producer.given_up) else { return told };
        let mut at = 0;
        while let Some(request) = producer.requests.get(at) {
            // Of a partition, the first request is answered first.
            let is_first = producer.requests[..at].iter().all(|before| before.partition != request.partition);
            // One that was taken proves that those before it were: librdkafka acknowledges them with it (`rd_kafka_dr_implicit_ack`).
            let is_refused = matches!(request.answer, Some((_, Answer::Refused(_))));
            let mut here = producer.requests[at..].iter().filter(|it| it.partition == request.partition);
            let is_taken = |it: &Request| matches!(it.answer, Some((due, Answer::Taken)) if due <= now);
            let is_acknowledged = !is_refused && here.any(is_taken);
            let is_unknown = producer.ended && request.again && request.answer.is_none();
            let is_due = is_acknowledged || is_unknown || request.answer.as_ref().is_some_and(|(due, _)| *due <= now);
            if !is_first || !is_due {
                at += 1;
                continue;
            }
            let mut request = producer.requests.remove(at);
            if is_acknowledged {
                told.extend(request.messages.into_iter().map(|it| Told::Delivered(it.ticket)));
                continue;
            }
            match request.answer.take() {
                Some((_, Answer::Refused(failure))) => {
                    producer.ended = true;
                    told.extend(fail(request.messages, &failure));
                }
                Some((_, Answer::Later)) | None if producer.ended => {
                    // With the connection, what came behind is lost.
                    let behind = producer.requests.iter_mut().skip(at).filter(|it| it.partition == request.partition);
                    behind.for_each(|it| (it.answer, it.again) = (None, true));
                    told.extend(fail(request.messages, &client_failure()));
                }
                Some((_, Answer::Later | Answer::Taken)) | None => {
                    request.again = true;
                    request.not_before = now + Duration::from_millis(dice.below(300));
                    producer.requests.insert(at, request);
                    at += 1;
                }
            }
        }
        told
    }

    /// Whether nothing is on its way any more.
    pub(crate) fn is_drained(&self, now: Duration) -> bool {
        self.producers.values().all(|it| it.acts(now).next().is_none())
    }

    /// One thing happens between the producers and the brokers.
    pub(crate) fn work(
        &mut self,
        action: Action,
        now: Duration,
        (broker, machines): (&Broker, &[Machine; MACHINES]),
        (wal, truth): (&Wal, &mut Truth),
        dice: &mut Dice,
    ) {
        self.producers.values_mut().filter(|it| it.lingers_until < now).for_each(|it| it.requests.clear());
        if now < broker.down_until {
            return;
        }
        self.producers.retain(|_, it| !it.given_up || !it.requests.is_empty());
        let connected = self.producers.iter().filter(|(_, it)| machines[it.machine].reaches_brokers(now));
        let acts: Vec<(u64, Act)> = connected.flat_map(|(id, it)| it.acts(now).map(move |act| (*id, act))).collect();
        if acts.is_empty() {
            return;
        }
        let place = dice.index(acts.len());
        let Some((id, act)) = acts.into_iter().nth(place) else { return };
        match act {
            Act::Form(partition) => self.form(id, &partition, dice),
            Act::Arrive(at) => self.arrive((id, at), action, now, broker, (wal, truth), dice),
        }
    }

    /// A request of what waits, cut anywhere.
    fn form(&mut self, id: u64, partition: &Partition, dice: &mut Dice) {
        let Some(producer) = self.producers.get_mut(&id) else { return };
        let Some(waiting) = producer.waiting.get_mut(partition) else { return };
        let most = if dice.one_in(3) { dice.index(waiting.len()) + 1 } else { waiting.len() };
        let mut messages: Vec<Message> = Vec::new();
        let mut bytes = 0;
        while let Some(message) = waiting.front().filter(|_| messages.len() < most) {
            bytes += message.bytes;
            if !messages.is_empty() && bytes > producer.batch {
                break;
            }
            messages.extend(waiting.pop_front());
        }
        let sequence = producer.sequences.entry(partition.clone()).or_default();
        let base = *sequence;
        *sequence += messages.len() as u64;
        let partition = partition.clone();
        producer.requests.push(Request {
            partition,
            base,
            messages,
            answer: None,
            not_before: Duration::ZERO,
            again: false,
        });
        self.requests += 1;
    }

    fn arrive(
        &mut self,
        (id, at): (u64, usize),
        action: Action,
        now: Duration,
        broker: &Broker,
        (wal, truth): (&Wal, &mut Truth),
        dice: &mut Dice,
    ) {
        let Self { producers, known, .. } = self;
        let Some(producer) = producers.get_mut(&id) else { return };
        // With the connection, the answers to all that came behind on it are lost, too.
        let is_behind_lost = producer.requests[..at]
            .iter()
            .any(|it| it.partition == producer.requests[at].partition && matches!(it.answer, Some((_, Answer::Later))));
        let request = &mut producer.requests[at];
        let topic = &request.partition.0;
        let is_gone = |topics: &BTreeMap<String, Duration>| topics.get(topic).is_some_and(|until| now < *until);
        let key = (request.partition.clone(), id);
        let next = known.get(&key).map(|(next, _)| *next);
        let records = request.messages.len() as u64;
        let answer = match action {
            _ if is_gone(&broker.missing) || is_gone(&broker.blocked) => Answer::Later,
            Action::Later => Answer::Later,
            Action::Forbidden => Answer::Refused(topic_failure()),
            Action::Environment => Answer::Refused(environment_failure()),
            Action::Fatal => {
                producer.ended = true;
                return;
            }
            Action::Judged => match next {
                Some(next) if request.base < next => Answer::Taken,
                Some(next) if request.base > next => Answer::Later,
                _ if broker.rules.refuse(request.messages.iter().map(|it| (it.number, it.dead_letter, it.bytes))) => {
                    self.refused += u64::from(records > 1);
                    Answer::Refused(refusal())
                }
                _ => {
                    for message in &request.messages {
                        append(truth, &request.partition, (message.number, message.dead_letter), wal);
                    }
                    known.insert(key, (request.base + records, now));
                    // Its answer may get lost, with the connection.
                    if is_behind_lost || dice.one_in(20) { Answer::Later } else { Answer::Taken }
                }
            },
        };
        if producer.given_up {
            producer.requests.remove(at);
            return;
        }
        let late = dice.below(producer.report + 1) * if dice.one_in(producer.later) { 100 } else { 1 };
        request.answer = Some((now + Duration::from_millis(late), answer));
    }

    /// A broker restarts, or leaders move: connections break, and answers that are on their way are lost. What it had not heard of for
    /// long it does not know any more.
    pub(crate) fn restart(&mut self, now: Duration, dice: &mut Dice) {
        for producer in self.producers.values_mut() {
            let mut lost = BTreeSet::new();
            for request in &mut producer.requests {
                let is_lost = dice.one_in(2) && matches!(request.answer, Some((_, Answer::Taken)));
                // A connection brings answers in order: with one, all behind it are lost.
                if is_lost || lost.contains(&request.partition) {
                    lost.insert(request.partition.clone());
                    (request.answer, request.again) = (None, true);
                }
            }
        }
        let Self { producers, known, .. } = self;
        known.retain(|(partition, id), (_, heard)| {
            // What a producer holds arrives before it is forgotten: brokers remember for a day (`producer.id.expiration.ms`).
            let busy = |it: &Producer| {
                it.requests.iter().any(|request| request.partition == *partition)
                    || it.waiting.get(partition).is_some_and(|waiting| !waiting.is_empty())
            };
            now.saturating_sub(*heard) < FORGETS_AFTER || producers.get(id).is_some_and(busy)
        });
    }

    /// No answer takes long from here on.
    pub(crate) fn hurry(&mut self) {
        self.calm = true;
        self.producers.values_mut().for_each(|producer| producer.later = 0);
    }
}

impl Producer {
    /// What may happen next.
    fn acts(&self, now: Duration) -> impl Iterator<Item = Act> {
        let forms = !self.ended && self.requests.len() < REQUESTS;
        let waiting = self.waiting.iter().filter(move |(_, waiting)| forms && !waiting.is_empty());
        let open = |at: &usize| {
            let request = &self.requests[*at];
            let before = self.requests[..*at].iter();
            let is_next = before.filter(|it| it.partition == request.partition).all(|it| it.answer.is_some());
            is_next && request.answer.is_none() && now >= request.not_before
        };
        let arrivals = (0..self.requests.len()).filter(open).map(Act::Arrive).collect::<Vec<_>>();
        waiting.map(|(partition, _)| Act::Form(partition.clone())).chain(arrivals).collect::<Vec<_>>().into_iter()
    }
}

fn fail(messages: Vec<Message>, failure: &Failure) -> Vec<Told> {
    let failed = |Message { ticket, number, record, .. }| Told::Failed((ticket, number), record, failure.clone());
    messages.into_iter().map(failed).collect()
}

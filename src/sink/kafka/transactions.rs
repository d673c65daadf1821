//! Records in Kafka transactions, for exactly once.
//!
//! ```text
//!  Foreign ──► Initializing ──► Reading ──► Looking ──► Idle ──► Open ──► Committing ──► Idle …
//!              init_transactions  progress    what is      begin    progress record, commit
//!                                             still open
//!                                           Marking ◄── the only broker may have been killed
//! ```
//!
//! In: records and, at the end of each transaction, a progress record, in the same transaction. Out: what was committed under
//! this name before. Blocking calls of librdkafka are made in slices, so that the caller can look after other things meanwhile.
//! Specification: KIP-98; librdkafka's INTRODUCTION.md, "Transactional Producer".

use super::context::Context;
use super::cover::{Cover, Found, Known, Look, Open, Outcome, Place};
use super::listed::Listed;
use super::progress::{self, First, Kept, LONG_SLICE, PARTITION, Read, Reading, SLICE, TOPIC};
use super::settings::Settings;
use super::stillness::{Clocks, Stillness, now};
use super::written::{self, Written};
use super::{KafkaSink, failure};
use crate::sink::{Failure, FailureClass, Initialized, Owner, Token};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often Kafka is asked for a sign of life while its coordinator gives none.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// What a relay that takes over waits for.
const LOOKING: &str = "looking for what is still open in its topics";
const COVERING: &str = "ending what is still open in its topics";

/// How long the last abort may take.
const ABANDON_WITHIN: Duration = Duration::from_secs(1);

/// The token of progress records. No row has it: topics' places are small.
pub(super) const PROGRESS: Token = Token { transaction: u32::MAX, tick: u16::MAX, topic: u16::MAX };

/// Where it stands.
#[derive(Default)]
pub(super) struct Transactions {
    phase: Phase,
    name: Option<String>,
    /// The topics that records may go to.
    listed: Listed,
    /// When Kafka was asked for a sign of life last.
    asked: Option<Instant>,
    /// Something of the transaction that is open has arrived: what was before it is marked.
    arrived: bool,
    /// Up to where.
    written: Written,
    /// The cluster has one broker, for all that is known.
    is_alone: bool,
    stillness: Stillness,
    /// That broker may have been killed since it was looked for what is open, although the client has not said so, or no longer does.
    doubtful: bool,
    /// What was open there was to be aborted, and nothing was committed since.
    aborted: BTreeSet<Place>,
    /// These had no leader when it was looked for what is open, and whether they have one again: nothing is written there before it was
    /// looked once more.
    leaderless: BTreeMap<Place, bool>,
}

#[derive(Default)]
enum Phase {
    /// Nothing is ours yet.
    #[default]
    Foreign,
    Initializing,
    /// The outcome is that of what was open in the topic of progress.
    Reading(Box<Reading>, Outcome),
    /// What is still open in the topics is looked for.
    Looking(Box<Look>, Kept),
    /// What was still open is covered, the last first.
    Covering(Vec<Cover>, Box<Next>),
    /// No transaction is open.
    Idle,
    /// Nor here: the only broker may have been killed, and what was committed last may not be marked.
    Marking(Marking),
    Open,
    /// The progress record is on its way until it is reported, then the commit.
    Committing {
        reported: bool,
    },
}

/// Sees that what was committed is marked.
enum Marking {
    Look(Box<Look>),
    Cover(Vec<Cover>),
}

/// What follows a cover.
enum Next {
    Reading(Box<Reading>, Outcome),
    Idle(Kept),
}

impl Transactions {
    /// Whether records may go to the topic; sees to it where they may not.
    pub(super) fn keep(&mut self, topic: &str, settings: &Settings) -> Result<bool, Failure> {
        let name = self.name.as_deref().unwrap_or_default();
        self.listed.keep(topic, settings, name)
    }

    /// Whether a record can be taken, with a transaction opened for it where there is none. None is opened while what was committed
    /// last may not be marked: should it be aborted, its marker would hide that.
    pub(super) fn open(&mut self, producer: &BaseProducer<Context>) -> Result<bool, Failure> {
        match self.phase {
            Phase::Open => Ok(true),
            Phase::Idle => {
                if self.is_in_doubt(producer, now()) {
                    return Ok(false);
                }
                producer.begin_transaction().map_err(|error| broken("begin a transaction", &error))?;
                (self.phase, self.arrived) = (Phase::Open, false);
                self.written.clear();
                Ok(true)
            }
            Phase::Foreign
            | Phase::Initializing
            | Phase::Reading(..)
            | Phase::Looking(..)
            | Phase::Covering(..)
            | Phase::Marking(_)
            | Phase::Committing { .. } => Ok(false),
        }
    }

    /// Whether the only broker may have been killed since it was looked for what is open. The connections of one that was killed all end,
    /// and the client says so before it makes the next. Only who stood still may be here before the client has had the time to.
    fn is_in_doubt(&mut self, producer: &BaseProducer<Context>, now: Clocks) -> bool {
        self.doubtful |= self.stillness.is_over(now);
        self.doubts(producer)
    }

    /// The same by what was seen until now. Of several brokers another one writes the markers.
    fn doubts(&self, producer: &BaseProducer<Context>) -> bool {
        self.is_alone && (self.doubtful || producer.context().is_lost())
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Committing { .. })
    }

    /// A record of the open transaction has arrived at this offset of the partition of this number.
    #[inline]
    pub(super) fn arrived(&mut self, at: u32, offset: i64) {
        self.arrived = true;
        self.written.arrived(at, offset);
    }

    pub(super) fn progress_reported(&mut self) {
        if let Phase::Committing { reported } = &mut self.phase {
            *reported = true;
        }
    }

    /// It was looked for what is open: what is to be ended now.
    fn found(&mut self, open: Open) -> Vec<Cover> {
        let Open { places, leaderless } = open;
        let aborted = places.iter().filter(|(_, outcome)| *outcome == Outcome::Aborted).map(|(place, _)| place.clone());
        self.aborted.extend(aborted);
        self.leaderless = leaderless.into_iter().map(|place| (place, false)).collect();
        Cover::all(places)
    }

    /// A producer for the name that was taken over last, and what has to be done with it again.
    pub(super) fn restart(&mut self, settings: &Settings) -> Result<Option<BaseProducer<Context>>, Failure> {
        self.phase = Phase::Foreign;
        let Some(name) = &self.name else { return Ok(None) };
        let producer = settings.transactional(name).map_err(|error| client(error.to_string()))?;
        self.phase = Phase::Initializing;
        // All of that is looked at again.
        self.aborted.clear();
        self.leaderless.clear();
        Ok(Some(producer))
    }
}

impl KafkaSink {
    pub(super) fn take_over(&mut self, owner: &Owner) -> Result<Initialized, Failure> {
        let Some(transactions) = &mut self.transactions else { return Ok(Initialized::Ready(Vec::new())) };
        match std::mem::take(&mut transactions.phase) {
            Phase::Foreign => {
                transactions.name = Some(owner.name.clone());
                if let Some(producer) = transactions.restart(&self.settings)? {
                    self.replace(producer)?;
                    self.hear();
                }
                Ok(Initialized::Pending { reason: None, answered: false })
            }
            Phase::Initializing => self.initialize(),
            Phase::Reading(reading, outcome) => self.read(reading, outcome, owner),
            Phase::Looking(look, kept) => self.look(look, kept),
            Phase::Covering(covers, next) => self.cover(covers, *next, owner),
            phase @ (Phase::Idle | Phase::Marking(_) | Phase::Open | Phase::Committing { .. }) => {
                transactions.phase = phase;
                Ok(Initialized::Ready(Vec::new()))
            }
        }
    }

    fn turn_to(&mut self, phase: Phase) {
        if let Some(transactions) = &mut self.transactions {
            transactions.phase = phase;
        }
    }

    /// Another phase has begun, or the current one continues.
    fn pending(&mut self, phase: Phase, reason: &str, answered: bool) -> Initialized {
        self.turn_to(phase);
        Initialized::Pending { reason: Some(reason.to_owned()), answered }
    }

    fn initialize(&mut self) -> Result<Initialized, Failure> {
        let outcome = self.producer.init_transactions(SLICE);
        self.producer.poll(Duration::ZERO);
        match outcome {
            Ok(()) => {
                let has_several = self.metadata(LONG_SLICE).is_ok_and(|metadata| metadata.brokers().len() > 1);
                // What is lost from here on may hide something, what was before it is looked at now. The client has said it all by now.
                self.forget_doubts();
                self.transactions.iter_mut().for_each(|transactions| transactions.is_alone = !has_several);
                let reading = Reading::new(&self.settings);
                Ok(self.pending(Phase::Reading(Box::new(reading), Outcome::Aborted), progress::READING, true))
            }
            Err(error) if is_passing(&error) => {
                self.remind();
                if let Some(failure) = self.fatal() {
                    return Err(failure);
                }
                let answered = self.is_alive();
                let problem = self.producer.context().problem();
                let reason =
                    problem.unwrap_or_else(|| format!("Kafka's transaction coordinator does not answer yet: {error}"));
                Ok(self.pending(Phase::Initializing, &reason, answered))
            }
            Err(error) => Err(broken("take over its transactions", &error)),
        }
    }

    /// Whether Kafka answers, though it may not do what it is asked for.
    fn is_alive(&mut self) -> bool {
        let Some(transactions) = &mut self.transactions else { return false };
        if transactions.asked.is_some_and(|at| at.elapsed() < ALIVE_EVERY) {
            return false;
        }
        transactions.asked = Some(Instant::now());
        self.metadata(SLICE).is_ok_and(|metadata| !metadata.brokers().is_empty())
    }

    fn read(&mut self, mut reading: Box<Reading>, outcome: Outcome, owner: &Owner) -> Result<Initialized, Failure> {
        match reading.read()? {
            Read::Pending { answered } => {
                let reason = reading.reason();
                Ok(self.pending(Phase::Reading(reading, outcome), &reason, answered))
            }
            Read::Open(first) => {
                let Some(its) = outcome_of(&first, owner) else {
                    let reason = reading.wait_for(first.key);
                    return Ok(self.pending(Phase::Reading(reading, outcome), &reason, true));
                };
                let place = (TOPIC.to_owned(), PARTITION);
                if let Some(transactions) = self.transactions.as_mut().filter(|_| its == Outcome::Aborted) {
                    transactions.aborted.insert(place.clone());
                }
                let cover = Cover::new(vec![place], its);
                let next = Box::new(Next::Reading(reading, its));
                Ok(self.pending(Phase::Covering(vec![cover], next), COVERING, true))
            }
            Read::Done(kept) => {
                let Some(transactions) = &mut self.transactions else { return Ok(Initialized::Ready(Vec::new())) };
                transactions.listed.read(&kept, &owner.name);
                let topics = transactions.listed.topics();
                if topics.is_empty() {
                    return Ok(self.is_ours(kept, owner));
                }
                let committed = kept.get(&owner.key).and_then(|value| value.written.clone());
                // What is behind that has no progress of its own. Who does not say how far it wrote wrote all of it.
                let otherwise = if committed.is_some() { Outcome::Aborted } else { outcome };
                let known = Known { committed, aborted: BTreeSet::new(), otherwise, is_alone: transactions.is_alone };
                let look = Look::new(&self.settings, topics.clone(), known);
                Ok(self.pending(Phase::Looking(Box::new(look), kept), LOOKING, true))
            }
        }
    }

    fn look(&mut self, mut look: Box<Look>, kept: Kept) -> Result<Initialized, Failure> {
        match look.look()? {
            Found::Nothing { answered } => {
                let stranger = |(topic, partition): &Place| {
                    format!("waiting for another's transaction in partition {partition} of topic {topic} to end")
                };
                let reason = look.waits_for().map_or_else(|| LOOKING.to_owned(), stranger);
                Ok(self.pending(Phase::Looking(look, kept), &reason, answered))
            }
            Found::Open(open) => {
                let Some(transactions) = &mut self.transactions else { return Ok(Initialized::Ready(Vec::new())) };
                let covers = transactions.found(open);
                Ok(self.pending(Phase::Covering(covers, Box::new(Next::Idle(kept))), COVERING, true))
            }
        }
    }

    fn cover(&mut self, mut covers: Vec<Cover>, next: Next, owner: &Owner) -> Result<Initialized, Failure> {
        if let Some(cover) = covers.last_mut() {
            let is_done = cover.cover(&self.producer, &owner.name)?;
            if is_done {
                covers.pop();
            }
            return Ok(self.pending(Phase::Covering(covers, Box::new(next)), COVERING, is_done));
        }
        match next {
            Next::Reading(reading, outcome) => {
                Ok(self.pending(Phase::Reading(reading, outcome), progress::READING, true))
            }
            Next::Idle(kept) => Ok(self.is_ours(kept, owner)),
        }
    }

    /// The only broker may have been killed before it had marked what was committed last. Where nothing is open, that is seen to. Where
    /// something is of which nothing has arrived, what becomes of it decides: see `begins_again`.
    pub(super) fn see_that_it_is_marked(&mut self) -> Result<(), Failure> {
        let Some(transactions) = &mut self.transactions else { return Ok(()) };
        let in_doubt = transactions.is_in_doubt(&self.producer, now());
        let outcome = match &mut transactions.phase {
            Phase::Idle if in_doubt => {
                if self.is_alive() {
                    self.forget_doubts();
                    self.begin_marking();
                }
                Ok(())
            }
            Phase::Open if !transactions.arrived && transactions.is_alone && self.producer.context().is_lost() => {
                self.begins_again()
            }
            Phase::Marking(_) => self.mark(),
            Phase::Foreign
            | Phase::Initializing
            | Phase::Reading(..)
            | Phase::Looking(..)
            | Phase::Covering(..)
            | Phase::Idle
            | Phase::Open
            | Phase::Committing { .. } => Ok(()),
        };
        // Its own questions do not count: while one of them waits, nothing is begun.
        self.transactions.iter_mut().for_each(|transactions| transactions.stillness.left(now()));
        outcome
    }

    /// What was lost or stood still before now is looked at now. The client has to have said it all.
    fn forget_doubts(&mut self) {
        self.producer.context().forget_lost();
        self.transactions.iter_mut().for_each(|transactions| transactions.doubtful = false);
    }

    /// The only broker was lost, and of the open transaction nothing has arrived: what was before it may be committed and not marked. As
    /// long as the broker is away it begins again, and finds that: nothing of it can arrive before. If it is back already, as after
    /// this process stood still, records may be there before an abort is, whose marker would hide what was committed. The marker
    /// of a commit shows it, so the transaction continues; what is not marked elsewhere is looked for afterwards.
    fn begins_again(&mut self) -> Result<(), Failure> {
        let was_committed = self.transactions.as_ref().is_some_and(|transactions| transactions.aborted.is_empty());
        if was_committed && self.metadata(SLICE).is_ok_and(|metadata| !metadata.brokers().is_empty()) {
            self.forget_doubts();
            self.transactions.iter_mut().for_each(|transactions| transactions.doubtful = true);
            return Ok(());
        }
        Err(client("the connection to the only broker was lost at the beginning of a transaction".to_owned()))
    }

    fn begin_marking(&mut self) {
        let Some(transactions) = &mut self.transactions else { return };
        let mut topics = transactions.listed.topics().clone();
        topics.insert(TOPIC.to_owned());
        let (aborted, is_alone) = (transactions.aborted.clone(), transactions.is_alone);
        let known = Known { committed: None, aborted, otherwise: Outcome::Committed, is_alone };
        let look = Look::new(&self.settings, topics, known);
        (transactions.phase, transactions.asked) = (Phase::Marking(Marking::Look(Box::new(look))), None);
    }

    fn mark(&mut self) -> Result<(), Failure> {
        let Some(transactions) = &mut self.transactions else { return Ok(()) };
        let name = transactions.name.as_deref().unwrap_or_default();
        if transactions.asked.is_some_and(|at| at.elapsed() < ALIVE_EVERY) {
            return Ok(());
        }
        let next = match &mut transactions.phase {
            Phase::Marking(Marking::Look(look)) => match look.look()? {
                Found::Nothing { answered } => {
                    // Each question that nobody answers takes a second.
                    transactions.asked = (!answered).then(Instant::now);
                    return Ok(());
                }
                Found::Open(open) => Phase::Marking(Marking::Cover(transactions.found(open))),
            },
            Phase::Marking(Marking::Cover(covers)) => {
                if let Some(cover) = covers.last_mut() {
                    if cover.cover(&self.producer, name)? {
                        covers.pop();
                    }
                    return Ok(());
                }
                Phase::Idle
            }
            Phase::Foreign
            | Phase::Initializing
            | Phase::Reading(..)
            | Phase::Looking(..)
            | Phase::Covering(..)
            | Phase::Idle
            | Phase::Open
            | Phase::Committing { .. } => return Ok(()),
        };
        transactions.phase = next;
        self.producer.context().recovered();
        Ok(())
    }

    /// Why no transaction can be opened, where that is not for want of room.
    #[cold]
    pub(super) fn unmarked(&self) -> Option<Failure> {
        let transactions = self.transactions.as_ref()?;
        let is_due = matches!(transactions.phase, Phase::Idle) && transactions.doubts(&self.producer);
        let is_marking = is_due || matches!(transactions.phase, Phase::Marking(_));
        let text = self.producer.context().problem().map_or_else(
            || "seeing that Kafka has marked what was committed before the connection was lost".to_owned(),
            |problem| format!("Kafka at {} does not answer: {problem}", self.settings.brokers()),
        );
        let (class, reason) = (FailureClass::Environment, failure::reason(self.producer.context().problem_code()));
        is_marking.then_some(Failure { class, reason, text })
    }

    /// Whether a record may go to the partition of this number: one that had no leader when it was looked for what is open may have
    /// something that nothing must end but a cover. It is looked again from the beginning, since a transaction may be open here.
    #[inline]
    pub(super) fn may_write(&mut self, at: u32) -> Result<(), Failure> {
        if self.transactions.as_ref().is_none_or(|transactions| transactions.leaderless.is_empty()) {
            return Ok(());
        }
        self.was_looked_at(at)
    }

    #[cold]
    fn was_looked_at(&mut self, at: u32) -> Result<(), Failure> {
        let Some(place) = self.partitions.place(at) else { return Ok(()) };
        let (topic, partition) = (self.topics.name(place.topic).to_owned(), place.partition);
        let place = (topic.clone(), partition);
        let is_due = |transactions: &mut Transactions| {
            let has_leader = transactions.leaderless.get(&place).copied()?;
            let is_due = !has_leader && transactions.asked.is_none_or(|at| at.elapsed() >= ALIVE_EVERY);
            transactions.asked = if is_due { Some(Instant::now()) } else { transactions.asked };
            Some((has_leader, is_due))
        };
        let Some((mut has_leader, is_due)) = self.transactions.as_mut().and_then(is_due) else { return Ok(()) };
        if is_due {
            has_leader = self.has_leader(&topic, partition);
            if let Some(transactions) = &mut self.transactions {
                transactions.leaderless.insert(place, has_leader);
            }
        }
        let (text, reason) = (format!("partition {partition} of topic {topic}"), failure::reason(None));
        Err(if has_leader {
            client(format!("{text} has a leader again: looking for what is still open in it"))
        } else {
            Failure { class: FailureClass::Environment, reason, text: format!("{text} has no leader") }
        })
    }

    fn has_leader(&self, topic: &str, partition: i32) -> bool {
        let metadata = self.producer.client().fetch_metadata(Some(topic), SLICE);
        metadata.is_ok_and(|metadata| {
            let partitions = metadata.topics().iter().flat_map(rdkafka::metadata::MetadataTopic::partitions);
            partitions.into_iter().any(|it| it.id() == partition && it.leader() >= 0)
        })
    }

    /// Everything is taken over.
    fn is_ours(&mut self, kept: Kept, owner: &Owner) -> Initialized {
        self.turn_to(Phase::Idle);
        self.producer.context().recovered();
        let its = kept.into_iter().filter(|(key, _)| key.ends_with(&owner.keys_ending));
        Initialized::Ready(its.map(|(key, value)| (key, value.text)).collect())
    }

    pub(super) fn commit_progress(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        let Some(transactions) = &mut self.transactions else { return Ok(true) };
        match transactions.phase {
            Phase::Idle => return Ok(true),
            Phase::Open => {
                #[allow(clippy::cast_possible_truncation, reason = "pointers are 64 bits wide, see above")]
                let record = BaseRecord::with_opaque_to(TOPIC, PROGRESS.pack() as usize);
                let (partitions, topics) = (&self.partitions, &self.topics);
                let named = |at| partitions.place(at).map(|place| (topics.name(place.topic), place.partition));
                let written = transactions.written.header(self.settings.request_bytes(), named);
                let header = Header { key: written::HEADER, value: written.as_deref() };
                let headers = OwnedHeaders::new().insert(header);
                let record = record.key(key).payload(value).partition(PARTITION).headers(headers);
                match self.producer.send(record) {
                    Ok(()) => transactions.phase = Phase::Committing { reported: false },
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => return Ok(false),
                    Err((error, _)) => return Err(broken("write its progress", &error)),
                }
            }
            // librdkafka's own count has its log lines in it.
            Phase::Committing { reported: true } => return self.commit_reported(),
            Phase::Committing { reported: false } => {}
            Phase::Foreign
            | Phase::Initializing
            | Phase::Reading(..)
            | Phase::Looking(..)
            | Phase::Covering(..)
            | Phase::Marking(_) => {
                return Err(client("a transaction was to be committed that is not ours".to_owned()));
            }
        }
        super::client::flush_for_a_millisecond(&self.producer);
        Ok(false)
    }

    /// Everything that is in it has been reported.
    fn commit_reported(&mut self) -> Result<bool, Failure> {
        match self.producer.commit_transaction(SLICE) {
            Ok(()) => {
                if let Some(transactions) = &mut self.transactions {
                    transactions.phase = Phase::Idle;
                    // It could begin only because what was before it is marked, or has been looked for.
                    transactions.aborted.clear();
                }
                self.producer.context().recovered();
                Ok(true)
            }
            Err(error) if is_passing(&error) => {
                self.remind();
                self.fatal().map_or(Ok(false), Err)
            }
            Err(error) => Err(broken("commit a transaction", &error)),
        }
    }

    /// Why the open transaction takes nothing any more: the client says so to whoever asks it for something else meanwhile.
    #[cold]
    pub(super) fn why_transaction_ended(&self) -> Option<Failure> {
        let refused = || self.producer.begin_transaction().err();
        let error = self.transactions.as_ref().is_some_and(Transactions::is_open).then(refused).flatten()?;
        Some(broken("continue its transaction", &error))
    }

    pub(super) fn abort(&mut self) {
        if self.transactions.as_ref().is_some_and(Transactions::is_open)
            && let Err(error) = self.producer.abort_transaction(ABANDON_WITHIN)
        {
            tracing::warn!(%error, "Kafka abort failed; read_committed consumers wait for the transaction timeout");
        }
    }
}

/// What became of the transaction that this record is the first of in the topic of progress, if it is ours.
fn outcome_of(first: &First, owner: &Owner) -> Option<Outcome> {
    if first.key == owner.name && first.value.is_none() {
        // A cover that ended with its broker: it covered nothing but what it covers again.
        return Some(Outcome::Aborted);
    }
    let position = first.value.as_deref().filter(|_| first.key == owner.key).map(|value| (owner.position)(value))?;
    // Postgres has heard of nothing that was not committed, whether or not the partitions are marked.
    Some(if position.is_some_and(|it| it <= owner.confirmed) { Outcome::Committed } else { Outcome::Aborted })
}

/// Whether the same call may succeed later.
pub(super) fn is_passing(error: &KafkaError) -> bool {
    #[allow(clippy::wildcard_enum_match_arm, reason = "transactional calls give these two")]
    match error {
        KafkaError::Transaction(error) => error.is_retriable() && !error.is_fatal() && !error.txn_requires_abort(),
        error => error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut),
    }
}

pub(super) fn client(text: String) -> Failure {
    Failure { class: FailureClass::Client, reason: "client", text }
}

/// The client has to be recreated. What the cluster says about rights is the environment's.
pub(super) fn broken(what: &str, error: &KafkaError) -> Failure {
    let code = error.rdkafka_error_code();
    let forbidden = [
        RDKafkaErrorCode::TransactionalIdAuthorizationFailed,
        RDKafkaErrorCode::ClusterAuthorizationFailed,
        RDKafkaErrorCode::TopicAuthorizationFailed,
    ];
    let is_forbidden = code.is_some_and(|code| forbidden.contains(&code));
    let class = if is_forbidden { FailureClass::Environment } else { FailureClass::Client };
    let reason = if is_forbidden { "authorization" } else { failure::reason(code) };
    Failure { class, reason, text: format!("Kafka did not let the relay {what}: {error}") }
}

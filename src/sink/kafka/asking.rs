//! What the sink asks the cluster: which topics are there, with how many partitions, and whether anybody answers at all.
//!
//! In: names. Out: facts into [`Topics`](super::topics::Topics), failures with the client's own words. Each question blocks for a bound.

use super::context::{Context, events};
use super::retire::retire_producer;
use super::topics::Chosen;
use super::transactions::replicas_of;
use super::{KafkaSink, client_failure, failure, probe};
use crate::sink::{Enqueue, Failure, FailureClass, Record, Report, Sink as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseProducer, Producer, PurgeConfig};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long to wait for the cluster's word on a topic before looking after other things; and at most, once it has shown to
/// take longer: an answer that comes too late is lost, and the next question starts over.
pub(super) const METADATA_PATIENCE: Duration = Duration::from_millis(100);
const MOST_METADATA_PATIENCE: Duration = Duration::from_secs(1);

/// However short the relay's hold is: a question that takes no time at all has no answer.
const LEAST_PATIENCE: Duration = Duration::from_millis(20);

/// How long nothing may come of what is in flight before librdkafka is told its bootstrap servers again.
///
/// When a cluster's metadata name topics and no broker, as those of one whose last broker is shutting down do, librdkafka
/// (2.12) drops every broker that it knows, the bootstrap servers included. Then it has nobody left to ask, and without a
/// question its own timer for starting over never begins: it stays without a connection forever. Where the servers' names do
/// not help either, the client is given up for a new one: see [`KafkaSink::is_passed_over`].
const FORGOTTEN: Duration = Duration::from_secs(10);

/// The client is given up once it was ignored so many times in a row. Once may be chance, at the end of an outage: a new
/// client connects at once, an old one when its pause is over (`reconnect.backoff.max.ms`, a second).
const LOST: u32 = 2;

/// A topic is asked for again this often at most.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// If a record that was sent has no answer for so long, the cluster is asked whether its topic is there. Of a topic that was deleted,
/// librdkafka says so only after 18 seconds.
pub(super) const UNANSWERED: Duration = Duration::from_secs(2);

/// Brokers that answer other questions for so long, and do not take what they are sent, close the connection upon it.
const CLOSED_FOR: Duration = Duration::from_secs(3);

/// More polls than a failed request leaves events behind.
const EVENTS: u32 = 32;

/// Log lines and errors that are served in a row, at most, before the caller may do other things: some ten milliseconds' worth.
pub(super) const MOST_EVENTS: u32 = 10_000;

impl KafkaSink {
    pub(super) fn metadata(&mut self, patience: Duration) -> Result<Metadata, Failure> {
        let metadata = self.producer.client().fetch_metadata(None, patience);
        self.serve_events();
        if let Ok(metadata) = &metadata {
            self.sockets.add(metadata.brokers().iter().filter_map(|broker| u16::try_from(broker.port()).ok()));
        }
        metadata.map_err(|error| self.metadata_failure(&error))
    }

    pub(super) fn unreachable(&self, metadata: &Metadata) -> Vec<String> {
        let advertised: Vec<String> =
            metadata.brokers().iter().map(|broker| format!("{}:{}", broker.host(), broker.port())).collect();
        probe::unreachable(self.settings.brokers(), &advertised)
    }

    /// Lets the client tell what happened meanwhile: one call serves one event, and does not say whether there was one.
    fn serve_events(&self) {
        let mut quiet = 0;
        for _ in 0..MOST_EVENTS {
            let before = events();
            self.producer.poll(Duration::ZERO);
            quiet = if events() == before { quiet + 1 } else { 0 };
            if quiet >= EVENTS {
                return;
            }
        }
    }

    /// What the client's own account of the problem adds to a failed metadata request, which says "timed out" at most.
    fn metadata_failure(&self, error: &KafkaError) -> Failure {
        let code = self.producer.context().problem_code().or_else(|| error.rdkafka_error_code());
        let text = match self.problem() {
            Some(problem) => format!("Kafka at {} does not answer: {problem}", self.settings.brokers()),
            None => format!("Kafka at {} does not answer: {error}", self.settings.brokers()),
        };
        let class = if failure::is_of_login(code) { FailureClass::LogIn } else { FailureClass::Environment };
        Failure { class, reason: failure::reason(code), text }
    }

    /// Makes sure that the cluster knows the topic (and creates it, where it creates topics on demand).
    pub(super) fn resolve_topic(&mut self, topic: &str) -> Result<(), Failure> {
        if self.topics.turn_to(topic) {
            return Ok(());
        }
        self.count_partitions(topic)?;
        self.topics.turn_to(topic);
        Ok(())
    }

    /// Asks how many partitions the topic has, and takes that for true. In transactions, the topic must have replicas enough.
    pub(super) fn count_partitions(&mut self, topic: &str) -> Result<i32, Failure> {
        let (partitions, replicas) = self.ask(topic)?;
        if let Some(transactions) = &mut self.transactions {
            transactions.replicas.see(topic, replicas, &self.settings)?;
        }
        let count = i32::try_from(partitions).unwrap_or(i32::MAX);
        if !self.topics.confirm(topic, count, self.now, &mut self.partitions) {
            let text = format!("topic {topic} was recreated with fewer partitions");
            self.shrunk = Some(client_failure(text));
        }
        Ok(count)
    }

    /// How many partitions the topic has, and the fewest replicas of one, in the cluster's words, which the first producer hears as
    /// well; others ask when they need to.
    fn ask(&mut self, topic: &str) -> Result<(usize, Option<usize>), Failure> {
        let metadata = self.producer.client().fetch_metadata(Some(topic), self.within(self.metadata_patience));
        self.serve_events();
        let metadata = metadata.map_err(|error| {
            // No broker at all is another error: an outage makes no attempt longer.
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut) {
                self.metadata_patience = (self.metadata_patience * 2).min(MOST_METADATA_PATIENCE);
            }
            self.metadata_failure(&error)
        })?;
        self.sockets.add(metadata.brokers().iter().filter_map(|broker| u16::try_from(broker.port()).ok()));
        let answer = metadata.topics().iter().find(|answer| answer.name() == topic);
        let refused = |code| failure::of_topic(topic, code, (&self.settings, metadata.brokers().len()));
        match answer.map(|answer| (answer.error(), answer.partitions().len(), replicas_of(answer))) {
            Some((Some(error), ..)) => Err(refused(RDKafkaErrorCode::from(error))),
            Some((None, 0, _)) | None => Err(refused(RDKafkaErrorCode::UnknownTopicOrPartition)),
            Some((None, partitions, replicas)) => {
                self.producer.context().recovered();
                Ok((partitions, replicas))
            }
        }
    }

    /// The partition for a record of the topic that was turned to. Partitions may have been added since the cluster was asked: it is
    /// asked again. A broker may learn of them a moment later than the one that made them, so its word counts when it has stood for
    /// that long.
    #[inline]
    pub(super) fn choose(&mut self, record: &Record<'_>) -> Result<u32, Enqueue> {
        match self.topics.choose(record, &self.partitions) {
            Chosen::At(at) => Ok(at),
            Chosen::Unknown(partition) => self.choose_added(record, partition),
        }
    }

    #[cold]
    fn choose_added(&mut self, record: &Record<'_>, partition: i32) -> Result<u32, Enqueue> {
        let count = self.count_partitions(record.topic).map_err(Enqueue::Blocked)?;
        if let Chosen::At(at) = self.topics.choose(record, &self.partitions) {
            self.short.remove(record.topic);
            return Ok(at);
        }
        let for_now = self.short.entry(record.topic.to_owned()).or_default().may_grow(count, Instant::now());
        let failure = failure::of_partition(record.topic, partition, for_now);
        Err(if for_now { Enqueue::Blocked(failure) } else { Enqueue::Bad(failure) })
    }

    /// Partitions may have been added to a topic, and a problem may be over: now and then the cluster is asked.
    pub(super) fn ask_again(&mut self) {
        if self.now.saturating_duration_since(self.asked) < ASK_EVERY {
            return;
        }
        self.asked = self.now;
        if self.problem().is_some() {
            // No report will say that it is over: there is nothing to deliver, or nobody who is let in.
            let is_told = self.partitions.in_flight().records > 0 && self.refusal().is_none();
            let waits = is_told && self.partitions.unanswered(UNANSWERED, self.now).is_some();
            let answers = (waits || !is_told) && self.metadata(METADATA_PATIENCE).is_ok();
            if answers && !is_told {
                self.producer.context().recovered();
            }
            self.answers = if answers && waits { Some(self.answers.unwrap_or(self.now)) } else { None };
            let is_closed = |since| self.now.saturating_duration_since(since) >= CLOSED_FOR;
            self.missing = self.answers.is_some_and(is_closed).then(failure::of_closed);
            return;
        }
        self.missing = self.missing_topic();
        if let Some(topic) = self.topics.turn_to_ask(self.now).map(str::to_owned)
            && let Err(failure) = self.count_partitions(&topic)
        {
            tracing::debug!(%failure, "a topic's partitions could not be asked for");
        }
    }

    /// Why the topic takes no records whose record has waited longest for its answer. `None`: it takes them, no record waits, or the cluster
    /// does not answer.
    fn missing_topic(&self) -> Option<Failure> {
        let place = self.partitions.unanswered(UNANSWERED, self.now)?;
        let topic = self.topics.name(place.topic);
        let (code, brokers) = self.why_missing(topic)?;
        Some(failure::of_topic(topic, code, (&self.settings, brokers)))
            .filter(|failure| failure.class == FailureClass::Topic)
    }

    /// What the cluster says of a topic that takes no records, and how many brokers it has. `None`: the topic is there, or the cluster does
    /// not answer.
    pub(super) fn why_missing(&self, topic: &str) -> Option<(RDKafkaErrorCode, usize)> {
        let metadata = self.producer.client().fetch_metadata(Some(topic), METADATA_PATIENCE);
        self.serve_events();
        let metadata = metadata.ok()?;
        let answer = metadata.topics().iter().find(|answer| answer.name() == topic);
        let code = match answer.map(|answer| (answer.error(), answer.partitions().len())) {
            Some((Some(error), _)) => RDKafkaErrorCode::from(error),
            Some((None, 0)) | None => RDKafkaErrorCode::UnknownTopicOrPartition,
            Some((None, _)) => return None,
        };
        Some((code, metadata.brokers().len()))
    }

    /// Tells librdkafka the bootstrap servers when it may have forgotten all brokers; one that it knows stays as it is.
    /// What is in flight stays in flight: nothing is repeated.
    pub(super) fn remind(&mut self) {
        if self.heard.elapsed() < FORGOTTEN {
            return;
        }
        self.heard = Instant::now();
        if let Ok(brokers) = CString::new(self.settings.brokers()) {
            self.senders.producers().for_each(|producer| add_brokers(producer, &brokers));
        }
        self.passed_over = if self.is_passed_over() { self.passed_over + 1 } else { 0 };
        if self.passed_over >= LOST {
            self.lost = true;
            // Their threads may be waiting for a name server.
            self.senders
                .producers()
                .for_each(|producer| producer.purge(PurgeConfig::default().queue().inflight().non_blocking()));
        }
    }

    /// How long a question may keep the thread, where `patience` is enough: the relay has to see in time that another one has taken its
    /// slot.
    fn within(&self, patience: Duration) -> Duration {
        self.hold.left().map_or(patience, |left| patience.min(left / 4).max(LEAST_PATIENCE))
    }

    /// Whether this client gets no answer where a new one gets one. In an outage neither does, and a broker that takes no
    /// records for a reason of its own answers both. The question itself may bring the client back to its senses.
    fn is_passed_over(&self) -> bool {
        let answers = |producer: &BaseProducer<Context>| {
            let metadata = producer.client().fetch_metadata(None, self.within(MOST_METADATA_PATIENCE));
            metadata.is_ok_and(|metadata| !metadata.brokers().is_empty())
        };
        if self.senders.producers().all(answers) {
            return false;
        }
        let Ok(fresh) = self.settings.producer() else { return false };
        let is_answered = answers(&fresh);
        retire_producer(fresh);
        is_answered
    }

    /// Something has come back, or a new client is there.
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
        self.passed_over = 0;
        self.answers = None;
    }

    /// Why brokers do not let us in.
    pub(super) fn refusal(&self) -> Option<Failure> {
        let context = self.producer.context();
        if !context.has_problem() {
            return None;
        }
        let refused = context.refused();
        let text = format!("Kafka at {} refuses the credentials: {}", self.settings.brokers(), refused.reason()?);
        Some(failure::of_login(text))
    }

    /// The same, once that is not waited for any longer.
    #[cold]
    pub(super) fn given_up(&self) -> Option<Failure> {
        let refused = self.producer.context().refused();
        let text = refused.given_up(Instant::now())?;
        let text = format!("Kafka at {} refuses the credentials: {text}", self.settings.brokers());
        Some(failure::of_login(text))
    }

    /// Says that brokers do not let us in, once that is not waited for any longer.
    pub(super) fn look_at_login(&mut self, each: &mut dyn FnMut(Report)) {
        if self.producer.context().has_problem() && self.refusal().is_some() {
            self.given_up().into_iter().for_each(|failure| each(Report::Failed(failure)));
        }
    }

    /// Whether a producer that serves the producer's partitions could not begin for want of a right.
    fn has_forbidden(&self, producer: u8) -> bool {
        self.senders.has_forbidden(producer) || self.retired.iter().any(|(client, _)| client.is_forbidden())
    }

    /// Why the producer takes nothing any more, which the refusal of a record does not say.
    #[cold]
    pub(super) fn fatal(&self) -> Option<Failure> {
        if self.lost {
            let text = "the Kafka client has lost all brokers, and a new one reaches them".to_owned();
            return Some(Failure { class: FailureClass::Client, reason: "client", text });
        }
        let (code, text) = self.producer.client().fatal_error()?;
        let text = format!("the Kafka producer has failed: {text}");
        Some(Failure { class: FailureClass::Client, reason: failure::reason(Some(code)), text })
    }

    /// "Local: Fatal error", or "purged", is all that the report of a record says that went down with the producer or with its
    /// transaction.
    #[cold]
    pub(super) fn say_why(&mut self, (producer, topic): (u8, &str), failure: &mut Failure) {
        if failure.class != FailureClass::Client {
            return;
        }
        if self.transactions.is_none() && self.has_forbidden(producer) {
            *failure = failure::of_forbidden(topic);
            self.forbidden = Some(failure.clone());
        } else if let Some(fatal) = self.fatal() {
            failure.text = fatal.text;
        } else if let Some(broken) = self.why_transaction_ended() {
            *failure = broken;
        }
    }
}

#[allow(unsafe_code, reason = "rdkafka wraps no way to add brokers to a client that is there")]
fn add_brokers(producer: &BaseProducer<Context>, brokers: &CString) {
    // SAFETY: both pointers live as long as the borrows; the call is thread-safe and copies the text.
    unsafe {
        rdkafka::bindings::rd_kafka_brokers_add(producer.client().native_ptr(), brokers.as_ptr());
    }
}

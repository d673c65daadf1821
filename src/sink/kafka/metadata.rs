//! The sink's questions to the cluster: which topics exist, how many partitions they have, and whether a broker answers at all.
//!
//! In: names of topics. Out: partition counts into [`Topics`], failures with librdkafka's own words. Each question blocks for a limited time.

use super::auth_state::AuthState;
use super::callbacks::{Context, events};
use super::config::KafkaSettings;
use super::producers::Client;
use super::replicas::replicas_of;
use super::retire::retire;
use super::{KafkaSink, METADATA_PATIENCE, errors, tools};
use crate::sink::{Enqueue, Failure, FailureClass, Record, Sink as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::producer::{BaseProducer, Producer, PurgeConfig};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// The longest wait, if the cluster takes longer. An answer that comes too late is lost, and the next question starts over.
const MOST_METADATA_PATIENCE: Duration = Duration::from_secs(1);

/// The shortest wait, however short the relay's hold is. No question has an answer at once.
const LEAST_PATIENCE: Duration = Duration::from_millis(20);

/// If no report comes for so long while records are in flight, the sink tells librdkafka the bootstrap servers again.
///
/// When a cluster's metadata name topics and no broker, as those of one whose last broker is shutting down do, librdkafka
/// (2.12) drops every broker that it knows, the bootstrap servers included. Then it has nobody left to ask, and without a
/// question its own timer for starting over never begins: it stays without a connection forever. If the servers' names do
/// not help either, the sink replaces the client: see [`KafkaSink::is_unanswered`].
const FORGOTTEN: Duration = Duration::from_secs(10);

/// The sink replaces the client once the cluster has left it unanswered so many times in a row. Once may be chance, at the end of an
/// outage: a new client connects at once, an old one when its pause is over (`reconnect.backoff.max.ms`, a second).
const LOST: u32 = 2;

/// How often the sink asks the cluster without need, at most.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// If a record that was sent has no report for so long, the sink asks the cluster whether its topic exists. librdkafka reports a deleted
/// topic only after 18 seconds.
pub(super) const UNANSWERED: Duration = Duration::from_secs(2);

/// If brokers answer other questions for so long, and acknowledge no record, they close the connection when records are sent.
const CLOSED_FOR: Duration = Duration::from_secs(3);

/// More polls than a failed request leaves events.
const EVENTS: u32 = 32;

/// The most log lines and errors that are served in a row, before the caller may do other things. They take some ten milliseconds.
pub(super) const MOST_EVENTS: u32 = 10_000;

impl KafkaSink {
    pub(super) fn metadata(&mut self, patience: Duration) -> Result<Metadata, Failure> {
        let metadata = self.ask(None, patience);
        metadata.map_err(|error| self.producers.first().context().unanswered(&error))
    }

    /// Asks for the cluster's brokers, with one topic or with all. The first producer's client asks, and learns the partitions by it. Other
    /// producers ask when they need to.
    fn ask(&mut self, topic: Option<&str>, patience: Duration) -> Result<Metadata, KafkaError> {
        let metadata = self.producers.first().client().fetch_metadata(topic, patience);
        self.serve_events();
        if let Ok(metadata) = &metadata {
            self.sockets.add(metadata.brokers().iter().filter_map(|broker| u16::try_from(broker.port()).ok()));
        }
        metadata
    }

    /// Serves the events of the client. One poll serves one event, and does not say whether there was one.
    fn serve_events(&self) {
        let mut quiet = 0;
        for _ in 0..MOST_EVENTS {
            let before = events();
            self.producers.first().poll(Duration::ZERO);
            quiet = if events() == before { quiet + 1 } else { 0 };
            if quiet >= EVENTS {
                return;
            }
        }
    }

    /// Makes sure that the cluster knows the topic. A cluster that creates topics on demand creates it.
    pub(super) fn resolve_topic(&mut self, topic: &str) -> Result<(), Failure> {
        if self.topics.turn_to(topic) {
            return Ok(());
        }
        self.count_partitions(topic)?;
        self.topics.turn_to(topic);
        Ok(())
    }

    /// Asks how many partitions the topic has, and notes the answer. With transactions, the topic must have enough replicas.
    pub(super) fn count_partitions(&mut self, topic: &str) -> Result<i32, Failure> {
        let metadata = self.ask(Some(topic), self.within(self.metadata_patience)).map_err(|error| {
            // Without any broker the error is another one: an outage makes no wait longer.
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut) {
                self.metadata_patience = (self.metadata_patience * 2).min(MOST_METADATA_PATIENCE);
            }
            self.producers.first().context().unanswered(&error)
        })?;
        let answer = topic_in(&metadata, topic)
            .map_err(|code| of_topic(topic, code, (&self.settings, metadata.brokers().len())))?;
        self.producers.first().context().recovered();
        if self.transactions.are_used() {
            self.transactions.replicas.see(topic, replicas_of(answer), &self.settings)?;
        }
        let count = i32::try_from(answer.partitions().len()).unwrap_or(i32::MAX);
        if !self.topics.confirm(topic, count, self.now, &mut self.partitions) {
            let text = format!("topic {topic} was recreated with fewer partitions");
            self.shrunk = Some(errors::client(text));
        }
        Ok(count)
    }

    /// The partition for a record of the present topic. If the partition is not known, it may have been added meanwhile, and the sink asks
    /// the cluster again. Other brokers learn of it a moment later than the one that created it. So the record is bad only if the cluster
    /// has given the same answer for that long.
    #[inline]
    pub(super) fn choose(&mut self, record: &Record<'_>) -> Result<u32, Enqueue> {
        self.topics.choose(record, &self.partitions).or_else(|partition| self.choose_added(record, partition))
    }

    #[cold]
    fn choose_added(&mut self, record: &Record<'_>, partition: i32) -> Result<u32, Enqueue> {
        let count = self.count_partitions(record.topic).map_err(Enqueue::Blocked)?;
        if let Ok(at) = self.topics.choose(record, &self.partitions) {
            self.missing_partitions.remove(record.topic);
            return Ok(at);
        }
        let for_now =
            self.missing_partitions.entry(record.topic.to_owned()).or_default().may_grow(count, Instant::now());
        let failure = errors::of_partition(record.topic, partition, for_now);
        Err(if for_now { Enqueue::Blocked(failure) } else { Enqueue::Bad(failure) })
    }

    /// Asks the cluster now and then, without need: partitions may have been added to a topic, and a problem may be over.
    pub(super) fn ask_again(&mut self) {
        if self.now.saturating_duration_since(self.last_question) < ASK_EVERY {
            return;
        }
        self.last_question = self.now;
        if self.problem().is_some() {
            return self.ask_in_trouble();
        }
        self.missing = self.missing_topic();
        if let Some(topic) = self.topics.turn_to_ask(self.now).map(str::to_owned)
            && let Err(failure) = self.count_partitions(&topic)
        {
            tracing::debug!(%failure, "a topic's partitions could not be asked for");
        }
    }

    /// There is a problem: asks whether it is over, or why a record has no report although brokers answer.
    fn ask_in_trouble(&mut self) {
        if self.partitions.in_flight().records == 0 || self.refusal().is_some() {
            // No report can show that it is over.
            if self.metadata(METADATA_PATIENCE).is_ok() {
                self.producers.first().context().recovered();
            }
            (self.answers, self.missing) = (None, None);
            return;
        }
        let waits = self.partitions.unanswered(UNANSWERED, self.now).is_some();
        let answers = waits && self.metadata(METADATA_PATIENCE).is_ok();
        self.answers = answers.then(|| self.answers.unwrap_or(self.now));
        let is_closed = |since| self.now.saturating_duration_since(since) >= CLOSED_FOR;
        self.missing = self.answers.is_some_and(is_closed).then(errors::of_closed);
    }

    /// The failure of the topic whose record has waited longest for its report. `None`: the topic takes records, no record waits, or the
    /// cluster does not answer.
    fn missing_topic(&mut self) -> Option<Failure> {
        let place = self.partitions.unanswered(UNANSWERED, self.now)?;
        let topic = self.topics.name(place.topic).to_owned();
        let (code, brokers) = self.why_missing(&topic)?;
        Some(of_topic(&topic, code, (&self.settings, brokers))).filter(|failure| failure.class == FailureClass::Topic)
    }

    /// The cluster's error for a topic that takes no records, and the number of brokers. `None`: the topic exists, or the cluster does not
    /// answer.
    pub(super) fn why_missing(&mut self, topic: &str) -> Option<(RDKafkaErrorCode, usize)> {
        let metadata = self.ask(Some(topic), METADATA_PATIENCE).ok()?;
        Some((topic_in(&metadata, topic).err()?, metadata.brokers().len()))
    }

    /// Tells librdkafka the bootstrap servers if it may have forgotten all brokers. Brokers that it knows stay as they are, and so do the
    /// records in flight: none is repeated.
    pub(super) fn remind(&mut self) {
        if self.last_report.elapsed() < FORGOTTEN {
            return;
        }
        self.last_report = Instant::now();
        if let Ok(brokers) = CString::new(self.settings.brokers.as_str()) {
            self.producers.all().for_each(|client| add_brokers(client.producer(), &brokers));
        }
        self.unanswered = if self.is_unanswered() { self.unanswered + 1 } else { 0 };
        if self.unanswered >= LOST {
            self.lost = true;
            // The purge does not wait: the producers' threads may be waiting for a name server.
            for client in self.producers.all() {
                client.producer().purge(PurgeConfig::default().queue().inflight().non_blocking());
            }
        }
    }

    /// How long a question may block the thread, at most `patience`. The relay has to notice in time that another one has taken its slot.
    fn within(&self, patience: Duration) -> Duration {
        self.hold.left().map_or(patience, |left| patience.min(left / 4).max(LEAST_PATIENCE))
    }

    /// Whether the cluster answers a new client and not this one. In an outage it answers neither. A broker that refuses records for a
    /// reason of its own answers both. The question alone may make the old client connect again.
    fn is_unanswered(&self) -> bool {
        let answers = |producer: &BaseProducer<Context>| {
            let metadata = producer.client().fetch_metadata(None, self.within(MOST_METADATA_PATIENCE));
            metadata.is_ok_and(|metadata| !metadata.brokers().is_empty())
        };
        if self.producers.all().map(Client::producer).all(answers) {
            return false;
        }
        let Ok(fresh) = self.settings.producer() else { return false };
        let is_answered = answers(&fresh);
        retire(fresh);
        is_answered
    }

    /// Notes that a report has come, or that there is a new client.
    pub(super) fn note_report(&mut self) {
        self.last_report = Instant::now();
        self.unanswered = 0;
        self.answers = None;
    }

    /// The failure if brokers refuse the credentials.
    pub(super) fn refusal(&self) -> Option<Failure> {
        self.login_failure(AuthState::reason)
    }

    /// The failure if brokers refuse the credentials, and the relay has waited for long enough.
    pub(super) fn given_up(&self) -> Option<Failure> {
        self.login_failure(|refused| refused.given_up(Instant::now()))
    }

    fn login_failure(&self, reason: impl FnOnce(&AuthState) -> Option<&str>) -> Option<Failure> {
        let context = self.producers.first().context();
        let refused = context.may_have_problem().then(|| context.refused())?;
        let reason = reason(&refused)?;
        Some(errors::of_login(format!("Kafka at {} refuses the credentials: {reason}", self.settings.brokers)))
    }

    /// Whether a producer for this number's partitions could not begin, since its user lacks a right.
    fn has_forbidden(&self, producer: u8) -> bool {
        self.producers.has_forbidden(producer) || self.retired.iter().any(|(client, _)| client.is_forbidden())
    }

    /// The failure of a producer that takes nothing any more. The refusal of a record does not contain it.
    #[cold]
    pub(super) fn fatal(&self) -> Option<Failure> {
        if self.lost {
            return Some(errors::client("the Kafka client has lost all brokers, and a new one reaches them"));
        }
        self.producers.fatal(0)
    }

    /// Completes the failure of a record that ended with its producer or its transaction. Its report says "Local: Fatal error" or "purged"
    /// and no more.
    #[cold]
    pub(super) fn say_why(&mut self, (producer, topic): (u8, &str), failure: &mut Failure) {
        if failure.class != FailureClass::Client {
            return;
        }
        if !self.transactions.are_used() && self.has_forbidden(producer) {
            *failure = errors::of_forbidden(topic);
            self.forbidden = Some(failure.clone());
        } else if let Some(fatal) = self.fatal() {
            failure.text = fatal.text;
        } else if let Some(broken) = self.why_transaction_ended() {
            *failure = broken;
        }
    }
}

/// The `host:port` that each broker advertises.
pub(super) fn advertised(metadata: &Metadata) -> Vec<String> {
    metadata.brokers().iter().map(|broker| format!("{}:{}", broker.host(), broker.port())).collect()
}

/// The topic in the cluster's answer, or the error code for which it takes no records.
pub(super) fn topic_in<'m>(metadata: &'m Metadata, topic: &str) -> Result<&'m MetadataTopic, RDKafkaErrorCode> {
    let Some(answer) = metadata.topics().iter().find(|answer| answer.name() == topic) else {
        return Err(RDKafkaErrorCode::UnknownTopicOrPartition);
    };
    match answer.error() {
        Some(error) => Err(error.into()),
        None if answer.partitions().is_empty() => Err(RDKafkaErrorCode::UnknownTopicOrPartition),
        None => Ok(answer),
    }
}

/// The failure of a topic with this error code. The cluster has `count` brokers.
fn of_topic(topic: &str, code: RDKafkaErrorCode, (settings, count): (&KafkaSettings, usize)) -> Failure {
    #[allow(clippy::wildcard_enum_match_arm, reason = "librdkafka has some two hundred codes, and grows")]
    let text = match code {
        RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition => {
            format!("topic {topic} does not exist; to create it: {}", tools::create(settings, topic, count, ""))
        }
        RDKafkaErrorCode::LeaderNotAvailable => format!("topic {topic} is being created"),
        RDKafkaErrorCode::TopicAuthorizationFailed => {
            let allow = tools::allow(settings, &["Write", "Describe"], &format!("--topic {topic}"));
            format!(
                "not allowed to write topic {topic}: the producer's user needs WRITE and DESCRIBE on it: {allow}; if it does not exist, to \
                 create it: {}",
                tools::create(settings, topic, count, "")
            )
        }
        code => format!("topic {topic}: {code}"),
    };
    Failure::new(errors::class(code), errors::reason(Some(code)), text)
}

#[allow(unsafe_code, reason = "rdkafka wraps no way to add brokers to a client that is there")]
fn add_brokers(producer: &BaseProducer<Context>, brokers: &CString) {
    // SAFETY: both pointers live as long as the borrows; the call is thread-safe and copies the text.
    unsafe {
        rdkafka::bindings::rd_kafka_brokers_add(producer.client().native_ptr(), brokers.as_ptr());
    }
}

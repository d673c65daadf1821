//! The sink's questions to the cluster: which topics exist, how many partitions they have, and whether a broker answers at all.
//!
//! In: names of topics. Out: partition counts into [`Topics`](super::topics::Topics), failures with librdkafka's own words. Topics are asked
//! for by [`Questions`](super::questions::Questions), which block nobody. Each other question blocks for a limited time.

use super::auth_state::AuthState;
use super::callbacks::{Context, events};
use super::config::KafkaSettings;
use super::describe::{TopicShape, topic_in};
use super::partitions::{Partitions, Waiting};
use super::producers::Client;
use super::questions::{Answers, AskedTopic, TopicAnswer};
use super::retire::retire;
use super::topics::{Confirmed, Outlook};
use super::watch::ClusterAnswer;
use super::{KafkaSink, METADATA_PATIENCE, errors, tools};
use crate::sink::{Enqueue, Failure, FailureClass, Record, Report, Sink as _, Tag};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseProducer, Producer, PurgeConfig};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long the cluster may take to answer a question by which the sink finds out whether its client is lost.
const MOST_METADATA_PATIENCE: Duration = Duration::from_secs(1);

/// The shortest wait, however short the relay's hold is. No question has an answer at once.
const LEAST_PATIENCE: Duration = Duration::from_millis(20);

/// If a record that was sent has no report for so long, the sink asks the cluster whether its topic exists. librdkafka reports a deleted
/// topic only after 18 seconds.
pub(super) const UNANSWERED: Duration = Duration::from_secs(2);

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

    /// Takes a record of a topic whose partitions are not known. It waits until the cluster has answered, and records of other topics do not.
    /// With transactions, a topic that the cluster has denied takes no further record: nothing in a transaction can be resolved.
    #[cold]
    pub(super) fn take_unknown(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        let number = self.topics.number(record.topic, self.now);
        if self.transactions.are_used()
            && let Some(failure) = self.topics.denied(number, self.now).cloned()
        {
            self.topics.want(number, self.now);
            return Enqueue::Blocked(failure);
        }
        let at = self.topics.wait(number, self.now, &mut self.partitions);
        self.enqueue_at(at, record, tag)
    }

    /// The partition for a record that is to be enqueued in any case.
    pub(super) fn choose_or_wait(&mut self, record: &Record<'_>) -> Result<u32, Enqueue> {
        if self.topics.turn_to(record.topic) {
            return self.choose(record);
        }
        let number = self.topics.number(record.topic, self.now);
        Ok(self.topics.wait(number, self.now, &mut self.partitions))
    }

    /// The partition for a record of the present topic. If the partition is not known, it may have been added meanwhile, and the sink asks
    /// the cluster again. Other brokers learn of it a moment later than the one that created it. So the record is bad only if the cluster
    /// has given the same answer for that long.
    #[inline]
    pub(super) fn choose(&mut self, record: &Record<'_>) -> Result<u32, Enqueue> {
        self.topics.choose(record, &self.partitions).or_else(|partition| self.wait_for_partition(partition))
    }

    #[cold]
    fn wait_for_partition(&mut self, partition: i32) -> Result<u32, Enqueue> {
        match self.topics.lacks(partition, self.now) {
            Ok(failure) => Err(Enqueue::Bad(failure)),
            Err(number) => Ok(self.topics.wait(number, self.now, &mut self.partitions)),
        }
    }

    /// Takes the cluster's answers about topics, decides on the records that wait for them, and asks for more.
    pub(super) fn serve_questions(&mut self, each: &mut dyn FnMut(Report)) {
        if let Some(Answers { topics, ports, .. }) = self.questions.answers() {
            self.sockets.add(ports);
            for (topic, answer) in topics {
                self.take_answer(&topic, answer).into_iter().for_each(|failure| each(Report::Failed(failure)));
            }
        }
        if self.topics.is_any_awaited() {
            self.serve_awaited();
        }
        if self.questions.are_answered() {
            let wanted = self.topics.take_wanted(self.now);
            if !wanted.is_empty() {
                let uses = self.transactions.are_used();
                let asked = |name: String| {
                    let needs_least = uses && !self.transactions.replicas.is_checked(&name);
                    AskedTopic { name, needs_least }
                };
                let asked = wanted.into_iter().map(asked).collect();
                self.questions.ask(self.producers.all().map(Client::shared).collect(), asked);
            }
        }
    }

    /// Notes an answer about a topic. Returns the failure for which the sink has to start over.
    fn take_answer(&mut self, topic: &str, answer: TopicAnswer) -> Option<Failure> {
        let number = self.topics.number(topic, self.now);
        let failure = match answer {
            TopicAnswer::Known { shape: TopicShape { partitions, replicas }, least } => {
                self.producers.first().context().recovered();
                if self.transactions.are_used()
                    && let Err(failure) = self.transactions.replicas.see_all(topic, (replicas, least), &self.settings)
                {
                    return Some(failure);
                }
                let confirmed = self.topics.confirm(number, partitions, self.now, &mut self.partitions);
                return (confirmed == Confirmed::Shrunk)
                    .then(|| errors::client(format!("topic {topic} was recreated with fewer partitions")));
            }
            TopicAnswer::Denied { code, brokers } => {
                self.producers.first().context().recovered();
                let failure = of_topic(topic, code, (&self.settings, brokers));
                self.topics.deny(number, failure.clone(), self.now);
                failure
            }
            TopicAnswer::Unanswered(error) => {
                self.topics.unanswered(number, self.now);
                self.producers.first().context().unanswered(&error)
            }
        };
        if let Some(at) = self.topics.waits_at(number) {
            self.partitions.waits_for(at, failure);
        } else {
            tracing::debug!(%failure, "a topic's partitions could not be asked for");
        }
        None
    }

    /// Decides on the records that wait for their topics.
    fn serve_awaited(&mut self) {
        for (number, at) in self.topics.awaited() {
            let Waiting::For(partition) = self.partitions.waiting(at) else {
                if self.partitions.waiting(at) == Waiting::Nothing {
                    self.topics.is_served(number);
                }
                continue;
            };
            match self.topics.outlook(number, partition, self.now) {
                Outlook::Waits => {}
                Outlook::IsKnown => {
                    let Self { topics, partitions, .. } = self;
                    let choose = |record: &Record<'_>, partitions: &Partitions| {
                        topics.choose_in(number, record, partitions).ok()
                    };
                    partitions.choose_for_waiting(at, choose);
                }
                Outlook::Refused(failure) => self.partitions.refuse_waiting(at, failure),
            }
        }
    }

    /// Asks the cluster now and then, without need: partitions may have been added to a topic, and a problem may be over.
    pub(super) fn ask_again(&mut self) {
        if !self.health.asks(self.now) {
            return;
        }
        self.watch.rest(self.now);
        if self.problem().is_some() {
            return self.ask_in_trouble();
        }
        let missing = self.missing_topic();
        self.health.is_well(missing);
        self.topics.want_old(self.now);
    }

    /// There is a problem: asks whether it is over, or why a record has no report although brokers answer.
    fn ask_in_trouble(&mut self) {
        let since = self.health.in_trouble(self.now);
        let answers = self.watch.answers_since(since, self.now);
        if self.partitions.in_flight().records == 0 || self.refusal().is_some() {
            // No report can show that it is over.
            if answers {
                self.producers.first().context().recovered();
            }
            return self.health.answers_others(false, self.now);
        }
        let waits = self.partitions.unanswered(UNANSWERED, self.now).is_some();
        self.health.answers_others(waits && answers, self.now);
    }

    /// The cluster's answer, if it answers. See [`Watch`](super::watch::Watch).
    pub(super) fn look(&mut self, now: Instant) -> Option<ClusterAnswer> {
        let answer = self.watch.look(now).cloned()?;
        self.sockets.add(answer.ports.iter().copied());
        Some(answer)
    }

    /// The failure of the topic whose record has waited longest for its report. `None`: the topic takes records, no record waits, or the
    /// cluster does not answer.
    fn missing_topic(&mut self) -> Option<Failure> {
        let target = self.partitions.unanswered(UNANSWERED, self.now)?;
        let topic = self.topics.name(target.topic).to_owned();
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
        if !self.health.is_forgotten(Instant::now()) {
            return;
        }
        if let Ok(brokers) = CString::new(self.settings.brokers.as_str()) {
            self.producers.all().for_each(|client| add_brokers(client.producer(), &brokers));
        }
        let is_unanswered = self.is_unanswered();
        self.health.left_unanswered(is_unanswered);
        if self.health.is_lost() {
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
        self.health.reported(Instant::now());
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
        if self.health.is_lost() {
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
            self.health.may_not_begin(failure.clone());
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

//! Kafka, by librdkafka: an idempotent producer, served on the thread that enqueues.
//!
//! In: records. Out: delivery reports, in runs of equal tokens. The token travels as the message's opaque pointer, so a
//! record in flight costs no memory of ours.
//!
//! Invariants: what is in flight never exceeds `--max-in-flight`, but for one record that is larger and goes alone; a
//! record that the broker refuses ends the producer (`enable.gapless.guarantee`) before any later record of its partition
//! gets in; a topic's first record is enqueued only after the cluster has said that the topic is there, since librdkafka
//! fails records of unknown topics by itself, and later ones would pass them.
//! Specification: librdkafka's INTRODUCTION.md, "Idempotent Producer"; KIP-98, KIP-360.

mod check;
mod context;
mod destination;
mod examine;
mod failure;
mod lines;
mod probe;
mod progress;
mod properties;
mod retire;
mod rights;
mod scratch;
mod settings;
mod topics;
mod transactions;

pub use destination::KIND;
pub use settings::{Settings, SettingsError};

use super::{Delivered, Enqueue, Failure, FailureClass, InFlight, Own, Owner, Reach, Record, Report, Sink, Tag, Token};
use context::{Context, Run, events, take_reports};
use failure::AUTHENTICATION;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseProducer, Producer, PurgeConfig};
use retire::retire_producer;
use std::collections::HashMap;
use std::ffi::CString;
use std::time::{Duration, Instant};
use topics::Topics;
use transactions::{PROGRESS, Transactions};

/// What a record in flight costs librdkafka beyond key and value, in bytes: its message, headers, queues. Measured around
/// 450 with three short headers; counted against `--max-in-flight`, so that short records are bounded as well.
pub const RECORD_OVERHEAD_BYTES: u64 = 512;

/// How long to wait for the cluster's word on a topic before looking after other things; and at most, once it has shown to
/// take longer: an answer that comes too late is lost, and the next question begins anew.
const METADATA_PATIENCE: Duration = Duration::from_millis(100);
const MOST_METADATA_PATIENCE: Duration = Duration::from_secs(1);

/// How long nothing may come of what is in flight before librdkafka is told its bootstrap servers again.
///
/// When a cluster's metadata name topics and no broker, as those of one whose last broker is shutting down do, librdkafka
/// (2.12) drops every broker that it knows, the bootstrap servers included. Then it has nobody left to ask, and without a
/// question its own timer for starting over never begins: it stays without a connection for ever. Where the servers' names do
/// not help either, the client is given up for a new one: see [`KafkaSink::is_passed_over`].
const FORGOTTEN: Duration = Duration::from_secs(10);

/// The client is given up once it was passed over so many times in a row. Once may be chance, at the end of an outage: a new
/// client connects at once, an old one when its pause is over (`reconnect.backoff.max.ms`, a second).
const LOST: u32 = 2;

/// Partitions that were added are known to every broker within this time.
const PARTITIONS_KNOWN_WITHIN: Duration = Duration::from_secs(1);

/// More polls than a failed request leaves events behind.
const EVENTS: u32 = 32;

/// Log lines and errors that are served in a row, at most, before the caller may do other things: some ten milliseconds' worth.
const MOST_EVENTS: u32 = 10_000;

const _: () = assert!(usize::BITS == 64, "a token must fit into a pointer");

/// The destination.
pub struct KafkaSink {
    settings: Settings,
    /// Topics that the cluster has confirmed, in this producer's time. Dropped before it.
    topics: Topics,
    producer: BaseProducer<Context>,
    in_flight: InFlight,
    /// How long the next question about a topic may take.
    metadata_patience: Duration,
    /// When something was last reported, nothing was in flight, or the bootstrap servers were told.
    heard: Instant,
    /// How many times in a row, since something was last reported, another client was answered and this one was not.
    passed_over: u32,
    /// The client reaches nobody any more, and another one would: it is to be made anew.
    lost: bool,
    /// Batches of at most so many bytes: larger ones were refused.
    batches: Option<u64>,
    /// Of those that were refused since the producer began, the largest.
    refused: u64,
    /// And how many records they were.
    refused_records: u32,
    /// Topics that had fewer partitions than a record asked for: how many, and since when.
    short: HashMap<String, (usize, Instant)>,
    /// For exactly once.
    transactions: Option<Transactions>,
}

impl KafkaSink {
    /// A producer, which begins to connect.
    ///
    /// # Errors
    /// librdkafka refuses the settings.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let producer = settings.producer(None)?;
        Ok(Self {
            settings,
            topics: Topics::default(),
            producer,
            in_flight: InFlight::default(),
            metadata_patience: METADATA_PATIENCE,
            heard: Instant::now(),
            passed_over: 0,
            lost: false,
            batches: None,
            refused: 0,
            refused_records: 0,
            short: HashMap::new(),
            transactions: None,
        })
    }

    /// The same, with records in transactions.
    #[must_use]
    pub fn in_transactions(self) -> Self {
        Self { transactions: Some(Transactions::default()), ..self }
    }

    fn metadata(&self, patience: Duration) -> Result<Metadata, Failure> {
        let metadata = self.producer.client().fetch_metadata(None, patience);
        self.serve_events();
        metadata.map_err(|error| self.metadata_failure(&error))
    }

    fn unreachable(&self, metadata: &Metadata) -> Vec<String> {
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

    /// What the client's own account of the trouble adds to a failed metadata request, which says "timed out" at most.
    fn metadata_failure(&self, error: &KafkaError) -> Failure {
        let code = self.producer.context().trouble_code().or_else(|| error.rdkafka_error_code());
        let text = match self.trouble() {
            Some(trouble) => format!("Kafka at {} does not answer: {trouble}", self.settings.brokers()),
            None => format!("Kafka at {} does not answer: {error}", self.settings.brokers()),
        };
        Failure { class: FailureClass::Environment, reason: failure::reason(code), text }
    }

    /// Makes sure that the cluster knows the topic (and creates it, where it creates topics on demand).
    fn resolve(&mut self, topic: &str) -> Result<(), Failure> {
        if self.topics.turn_to(topic) {
            return Ok(());
        }
        self.ask(topic)?;
        let refused = |code| failure::of_topic(topic, code, self.settings.brokers());
        self.topics.add(&self.producer, topic).map_err(refused)
    }

    /// How many partitions the topic has, in the cluster's words, which librdkafka hears as well.
    fn ask(&mut self, topic: &str) -> Result<usize, Failure> {
        let metadata = self.producer.client().fetch_metadata(Some(topic), self.metadata_patience);
        self.serve_events();
        let metadata = metadata.map_err(|error| {
            // No broker at all is another error: an outage makes no attempt longer.
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut) {
                self.metadata_patience = (self.metadata_patience * 2).min(MOST_METADATA_PATIENCE);
            }
            self.metadata_failure(&error)
        })?;
        let answer = metadata.topics().iter().find(|answer| answer.name() == topic);
        let refused = |code| failure::of_topic(topic, code, self.settings.brokers());
        match answer.map(|answer| (answer.error(), answer.partitions().len())) {
            Some((Some(error), _)) => Err(refused(RDKafkaErrorCode::from(error))),
            Some((None, 0)) | None => Err(refused(RDKafkaErrorCode::UnknownTopicOrPartition)),
            Some((None, partitions)) => {
                self.producer.context().recovered();
                Ok(partitions)
            }
        }
    }

    /// librdkafka holds that the topic has no such partition. It looks every five minutes, so partitions that were added since
    /// are not known to it: the cluster is asked. A broker may be told of them a moment later than the one that made them, so its
    /// word counts when it has stood for that long.
    #[cold]
    fn send_to_new_partition(
        &mut self,
        record: &Record<'_>,
        token: Token,
        refusal: &KafkaError,
    ) -> Result<(), Enqueue> {
        let partitions = self.ask(record.topic).map_err(Enqueue::Blocked)?;
        if usize::try_from(record.partition.unwrap_or(0)).is_ok_and(|partition| partition < partitions) {
            self.short.remove(record.topic);
            let again = self.topics.send(&self.producer, record, token);
            // It has been told; a refusal all the same is a matter of moments.
            return again.map_err(|error| Enqueue::Blocked(failure::of_new_partition(record, &error)));
        }
        let short = self.short.entry(record.topic.to_owned()).or_insert_with(|| (partitions, Instant::now()));
        if short.0 != partitions {
            *short = (partitions, Instant::now());
        }
        if short.1.elapsed() < PARTITIONS_KNOWN_WITHIN {
            return Err(Enqueue::Blocked(failure::of_new_partition(record, refusal)));
        }
        Err(failure::of_send(record, refusal))
    }

    /// Hands over to the topic that was turned to.
    fn send(&mut self, record: &Record<'_>, token: Token) -> Result<(), Enqueue> {
        let Err(error) = self.topics.send(&self.producer, record, token) else { return Ok(()) };
        if let Some(failure) = self.fatal() {
            return Err(Enqueue::Blocked(failure));
        }
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownPartition) {
            return self.send_to_new_partition(record, token, &error);
        }
        Err(failure::of_send(record, &error))
    }

    /// Tells librdkafka the bootstrap servers when it may have forgotten all brokers; one that it knows stays as it is.
    /// What is in flight stays in flight: nothing is repeated.
    fn remind(&mut self) {
        if self.heard.elapsed() < FORGOTTEN {
            return;
        }
        self.heard = Instant::now();
        if let Ok(brokers) = CString::new(self.settings.brokers()) {
            add_brokers(&self.producer, &brokers);
        }
        self.passed_over = if self.is_passed_over() { self.passed_over + 1 } else { 0 };
        if self.passed_over >= LOST {
            self.lost = true;
            // Its threads may be waiting for a name server.
            self.producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
        }
    }

    /// Whether this client gets no answer where a new one gets one. In an outage neither does, and a broker that takes no
    /// records for a reason of its own answers both. The question itself may bring the client back to its senses.
    fn is_passed_over(&self) -> bool {
        let answers = |producer: &BaseProducer<Context>| {
            let metadata = producer.client().fetch_metadata(None, MOST_METADATA_PATIENCE);
            metadata.is_ok_and(|metadata| !metadata.brokers().is_empty())
        };
        if answers(&self.producer) {
            return false;
        }
        let Ok(fresh) = self.settings.producer(None) else { return false };
        let is_answered = answers(&fresh);
        retire_producer(fresh);
        is_answered
    }

    /// Something has come back, or a new client is there.
    fn hear(&mut self) {
        self.heard = Instant::now();
        self.passed_over = 0;
    }

    /// Whether `bytes` more fit. A record above the whole bound goes alone.
    fn has_room(&self, bytes: u64) -> bool {
        let held = self.in_flight.bytes + self.in_flight.records * RECORD_OVERHEAD_BYTES;
        self.in_flight.records == 0 || held + bytes + RECORD_OVERHEAD_BYTES <= self.settings.max_in_flight()
    }

    /// Why the producer takes nothing any more, which the refusal of a record does not say.
    #[cold]
    fn fatal(&self) -> Option<Failure> {
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
    fn say_why(&self, failure: &mut Failure) {
        if failure.class != FailureClass::Client {
            return;
        }
        if let Some(fatal) = self.fatal() {
            failure.text = fatal.text;
        } else if let Some(broken) = self.why_transaction_ended() {
            *failure = broken;
        }
    }

    /// Another producer takes the place of this one, which ends.
    fn replace(&mut self, producer: BaseProducer<Context>) {
        self.topics.clear();
        retire_producer(std::mem::replace(&mut self.producer, producer));
    }
}

#[allow(unsafe_code, reason = "rdkafka wraps no way to add brokers to a client that is there")]
fn add_brokers(producer: &BaseProducer<Context>, brokers: &CString) {
    // SAFETY: both pointers live as long as the borrows; the call is thread-safe and copies the text.
    unsafe {
        rdkafka::bindings::rd_kafka_brokers_add(producer.client().native_ptr(), brokers.as_ptr());
    }
}

/// Its verdict is nearly always "timed out": reports are taken by polls.
#[allow(unsafe_code, reason = "rdkafka's flush never lets librdkafka's own last; see KafkaSink::ran_dry")]
fn flush_for_a_millisecond(producer: &BaseProducer<Context>) {
    // SAFETY: the pointer is the producer's own and lives as long as the borrow; the call is thread-safe and keeps nothing.
    unsafe {
        rdkafka::bindings::rd_kafka_flush(producer.client().native_ptr(), 1);
    }
}

impl Sink for KafkaSink {
    fn reach(&mut self, patience: Duration) -> Reach {
        match self.metadata(patience) {
            Ok(metadata) => Reach::There(self.unreachable(&metadata)),
            Err(failure) if failure.reason == AUTHENTICATION => Reach::Refused(failure),
            Err(failure) => Reach::Silent(failure),
        }
    }

    fn try_enqueue(&mut self, record: &Record<'_>, Tag { token, .. }: Tag) -> Enqueue {
        let bytes = record.bytes() as u64;
        if !self.has_room(bytes) {
            return Enqueue::Full;
        }
        if !self.topics.is_last(record.topic)
            && let Err(failure) = self.resolve(record.topic)
        {
            self.remind();
            return Enqueue::Blocked(self.fatal().filter(|_| self.lost).unwrap_or(failure));
        }
        if let Some(transactions) = &mut self.transactions {
            match transactions.open(&self.producer) {
                Ok(true) => {}
                Ok(false) => return Enqueue::Full,
                Err(failure) => return Enqueue::Blocked(failure),
            }
        }
        match self.send(record, token) {
            Ok(()) => {
                if self.in_flight.records == 0 {
                    self.hear();
                }
                self.in_flight.records += 1;
                self.in_flight.bytes += bytes;
                Enqueue::Taken
            }
            Err(outcome) => outcome,
        }
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        let mut served = 0;
        loop {
            // One call serves one batch of reports, or one event.
            let before = events();
            self.producer.poll(Duration::ZERO);
            let runs = take_reports();
            if runs.is_empty() {
                if events() > before && served < MOST_EVENTS {
                    served += 1;
                    continue;
                }
                if self.in_flight.records > 0 {
                    self.remind();
                }
                return;
            }
            self.hear();
            for run in runs {
                if run.token == PROGRESS {
                    // What becomes of it, the commit says.
                    self.transactions.iter_mut().for_each(Transactions::progress_reported);
                    continue;
                }
                self.in_flight.records -= u64::from(run.records);
                self.in_flight.bytes -= run.bytes;
                match run.outcome {
                    Ok(()) => {
                        self.producer.context().recovered();
                        let Run { token, records, bytes, .. } = run;
                        each(Report::Delivered(Delivered { token, records, bytes }));
                    }
                    Err(mut failure) => {
                        self.say_why(&mut failure);
                        if failure.class == FailureClass::Row {
                            self.refused += run.bytes;
                            self.refused_records += run.records;
                        }
                        each(Report::Failed(failure));
                    }
                }
            }
        }
    }

    fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    /// A flush in librdkafka overrides `linger.ms`, which can so be long enough for a backlog's batches and costs an idle
    /// stream nothing. The override holds only while the call lasts: asked for without waiting, two times out of three it is over
    /// before the broker's thread has woken up, and rdkafka's own flush does no more than that. So it lasts one millisecond.
    fn ran_dry(&mut self) {
        if self.in_flight.records > 0 {
            flush_for_a_millisecond(&self.producer);
        }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        // One record is as small as a batch can be.
        if std::mem::take(&mut self.refused_records) > 1 {
            self.batches = Some((self.refused / 2).max(1));
        }
        self.refused = 0;
        let batches = self.batches;
        let in_transactions = self.transactions.as_mut().map(|it| it.restart(&self.settings, batches)).transpose()?;
        let fresh = match in_transactions.flatten() {
            Some(fresh) => fresh,
            None => self.settings.producer(batches).map_err(|error| Failure {
                class: FailureClass::Client,
                reason: "client",
                text: error.to_string(),
            })?,
        };
        // Dropping purges queue and flight; the reports of that are of nobody's interest any more.
        self.replace(fresh);
        take_reports();
        self.in_flight = InFlight::default();
        self.lost = false;
        self.hear();
        Ok(())
    }

    fn trouble(&self) -> Option<String> {
        self.producer.context().trouble()
    }

    fn transaction_timeout(&self) -> Option<Duration> {
        self.transactions.as_ref().map(|_| self.settings.transaction_timeout())
    }

    fn own(&mut self, owner: &Owner) -> Result<Own, Failure> {
        self.take_over(owner)
    }

    fn seal(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        self.commit(key, value)
    }

    fn abandon(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Origin;
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use std::time::Instant;

    fn record(topic: &str) -> Record<'_> {
        Record { topic, key: Some(b"k"), value: Some(b"v"), headers: &[], timestamp_millis: 1, partition: None }
    }

    fn sink(brokers: &str) -> KafkaSink {
        KafkaSink::new(Settings::new(brokers, "walrelay", &[], 1 << 20).unwrap()).unwrap()
    }

    #[test]
    fn a_cluster_that_takes_its_time_to_answer_is_not_taken_for_one_that_does_not() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        cluster.broker_round_trip_time(-1, Duration::from_millis(300)).unwrap();
        let mut sink = sink(&cluster.bootstrap_servers());
        let token = Tag { token: Token { transaction: 0, tick: 0, topic: 0 }, origin: Origin::default() };
        let until = Instant::now() + Duration::from_secs(20);
        let mut taken = false;
        while !taken && Instant::now() < until {
            taken = matches!(sink.try_enqueue(&record("orders"), token), Enqueue::Taken);
        }
        assert!(taken, "{:?}", sink.trouble());
    }

    #[test]
    fn a_producer_that_has_failed_says_why() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        cluster.request_errors(RDKafkaApiKey::InitProducerId, &[forbidden; 20]);
        let mut sink = sink(&cluster.bootstrap_servers());
        let token = Tag { token: Token { transaction: 0, tick: 0, topic: 0 }, origin: Origin::default() };
        let until = Instant::now() + Duration::from_secs(20);
        let mut text = String::new();
        while text.is_empty() && Instant::now() < until {
            match sink.try_enqueue(&record("orders"), token) {
                Enqueue::Blocked(failure) if failure.class == FailureClass::Client => text = failure.text,
                Enqueue::Blocked(_) | Enqueue::Taken | Enqueue::Full | Enqueue::Bad(_) => sink.poll(&mut |_| {}),
            }
        }
        assert!(text.contains("authoriz"), "{text:?}");
    }
}

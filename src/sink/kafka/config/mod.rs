//! [`KafkaSettings`]: the properties of librdkafka's clients. Some are walrelay's defaults, some the user's, and some fixed for the guarantees.

pub(super) mod known;
pub(super) mod properties;

use super::callbacks::{Context, Problems};
use super::login::{Login, LoginError};
use super::partitioner::Partitioner;
use super::retire::Retirable;
use crate::setting_text::is_secret;
use rdkafka::ClientContext;
use rdkafka::admin::AdminClient;
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, NoCustomPartitioner, Producer as _, ProducerContext};
use rdkafka::types::{RDKafkaConfRes, RDKafkaType};
use secrecy::ExposeSecret as _;
use std::sync::Arc;
use std::time::Duration;

/// walrelay's defaults, which a user may change.
const DEFAULTS: [(&str, &str); 6] = [
    // Brokers keep the order of at most 5 requests. `partitions` hands over no record that must not be pipelined.
    ("max.in.flight.requests.per.connection", "5"),
    // A backlog's batches: fewer of them cost broker and client less, the more so the more partitions there are. Measured at a round
    // trip of 5 ms over 48 partitions, rows a second and CPU-seconds of the broker for a million: 57 thousand and 12.4 with 20 ms,
    // 104 thousand and 5.0 with 100 ms; memory grows with it. Live rows leave at once or within 2 ms, since the relay calls `on_idle`.
    ("linger.ms", "50"),
    // As in Java clients. The sink chooses the partition by it.
    ("partitioner", "murmur2_random"),
    // librdkafka's own 1,000,000 is below what Java clients send and what brokers take by default (1,048,588).
    ("message.max.bytes", "1048576"),
    // An outage ends: be back soon after.
    ("reconnect.backoff.max.ms", "1000"),
    ("compression.type", "none"),
];

/// The properties that the guarantees need. `properties` has refused the user's settings that contradict them.
const FIXED: [(&str, &str); 6] = [
    ("acks", "all"),
    ("enable.idempotence", "true"),
    // A refused record is fatal to the producer, so that no later one of its partition gets in before it.
    ("enable.gapless.guarantee", "true"),
    // No record expires: an outage is waited out.
    ("message.timeout.ms", "0"),
    // What is in flight is bounded by us, in bytes with overhead; librdkafka's own bounds stay out of the way.
    ("queue.buffering.max.messages", "0"),
    ("queue.buffering.max.kbytes", "2147483647"),
];

/// The search producer's properties: records leave only when they are flushed, and only the largest message size splits a request.
const SEARCH_PRODUCER: [(&str, &str); 3] =
    [("linger.ms", "60000"), ("batch.num.messages", "1000000"), ("batch.size", "2147483647")];

/// How long a transaction may be open. Brokers allow 15 minutes by default.
const TRANSACTION_TIMEOUT: &str = "transaction.timeout.ms";

/// The property for librdkafka's debug lines.
const DEBUG: &str = "debug";

/// More than a broker admits, unless its `transaction.max.timeout.ms` is as large as it can be.
pub(super) const LONGEST_TRANSACTION_MS: &str = "2147483647";

/// librdkafka refuses the settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A property's value is not allowed.
    #[error("Kafka property {key} = {value}: {reason}")]
    Property {
        /// The property.
        key: String,
        /// Its value; secrets are left out.
        value: String,
        /// librdkafka's words.
        reason: String,
    },
    /// librdkafka has no such property.
    #[error("Kafka has no property \"{key}\"")]
    Unknown {
        /// As it was given.
        key: String,
    },
    /// The first token or password is not to be had.
    #[error("no credentials for Kafka: {0}")]
    Login(LoginError),
    /// Each property is valid, but not together with the others; or a file that one names cannot be used.
    #[error("the Kafka properties cannot be used: {reason}")]
    Together {
        /// librdkafka's words.
        reason: String,
    },
}

/// How many producers share the partitions by default.
const PRODUCERS: u8 = 4;
/// The most producers that may share the partitions.
const MOST_PRODUCERS: u8 = 8;

/// The properties and other settings of Kafka's clients.
#[derive(Clone)]
pub struct KafkaSettings {
    /// The properties, for other clients of the same cluster.
    pub(super) client: ClientConfig,
    /// The bootstrap servers.
    pub(super) brokers: String,
    /// The most bytes in flight.
    pub(super) max_in_flight: u64,
    /// How many producers share the partitions. A partition always has the same one.
    pub(super) producers: u8,
    problems: Arc<Problems>,
    login: Option<Login>,
    /// Whether topics may have one replica: with at least once, or with `--accept-one-replica`. See [`replicas`](super::replicas).
    pub(super) accepts_one_replica: bool,
}

impl KafkaSettings {
    /// Checks the user's `properties` with librdkafka. Contacts nobody.
    ///
    /// # Errors
    /// A property is unknown, or its value is not allowed.
    pub fn new(
        brokers: &str,
        client_id: &str,
        properties: &[(String, String)],
        max_in_flight: u64,
    ) -> Result<Self, SettingsError> {
        let mut client = ClientConfig::new();
        let debugs = properties.iter().any(|(key, _)| key == DEBUG);
        client.set_log_level(if debugs { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info });
        client.set("bootstrap.servers", brokers).set("client.id", client_id);
        for (key, value) in DEFAULTS {
            client.set(key, value);
        }
        let mut producers = PRODUCERS;
        for (key, value) in properties {
            if key == "producers" {
                producers =
                    value.trim().parse().ok().filter(|producers| (1..=MOST_PRODUCERS).contains(producers)).ok_or_else(
                        || {
                            let reason = format!("expected a number from 1 to {MOST_PRODUCERS}");
                            SettingsError::Property { key: key.clone(), value: value.clone(), reason }
                        },
                    )?;
            } else {
                client.set(key, value);
            }
        }
        for (key, value) in FIXED {
            client.set(key, value);
        }
        client.create_native_config().map_err(refused)?;
        let brokers = brokers.to_owned();
        Ok(Self {
            client,
            brokers,
            max_in_flight,
            producers,
            problems: Arc::default(),
            login: None,
            accepts_one_replica: true,
        })
    }

    /// Sets the source of tokens or passwords, if they change.
    #[must_use]
    pub(super) fn with_login(self, login: Option<Login>) -> Self {
        Self { login, ..self }
    }

    /// Sets the rule for exactly once. `one_replica`: topics may have one replica.
    #[must_use]
    pub(super) fn exactly_once(self, one_replica: bool) -> Self {
        Self { accepts_one_replica: one_replica, ..self }
    }

    /// Creates a client without brokers, and drops it. Only then does librdkafka refuse files that it cannot read, and properties that
    /// contradict each other. Contacts nobody, unless librdkafka fetches tokens, which it does at once.
    pub(super) fn try_out(&self) -> Result<(), SettingsError> {
        let mut client = self.client.clone();
        client.remove("bootstrap.servers");
        if self.login.is_some() {
            // The password is read when a client needs it.
            client.set("sasl.password", "-");
        }
        let native = client.create_native_config().map_err(refused)?;
        Client::new(&client, native, RDKafkaType::RD_KAFKA_PRODUCER, DefaultClientContext).map(drop).map_err(refused)
    }

    /// How keys are spread over partitions.
    pub(super) fn partitioner(&self) -> Partitioner {
        Partitioner::named(self.property("partitioner").unwrap_or_default())
    }

    /// The value of a property: the user's, or walrelay's, or none.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.client.get(name)
    }

    /// How long a transaction may be open.
    pub fn transaction_timeout(&self) -> Duration {
        let given = self.client.get(TRANSACTION_TIMEOUT).and_then(|millis| millis.parse().ok());
        given.map_or(Duration::from_mins(10), Duration::from_millis)
    }

    /// A producer of transactions under `name`.
    pub(super) fn transactional(&self, name: &str) -> Result<BaseProducer<Context>, SettingsError> {
        let mut settings = self.clone();
        // In a transaction a refused record aborts everything: there is no gap to be prevented.
        settings.client.remove("enable.gapless.guarantee");
        let timeout = self.transaction_timeout().as_millis().to_string();
        settings.client.set("transactional.id", name).set(TRANSACTION_TIMEOUT, timeout);
        settings.producer()
    }

    /// A producer under `name` whose transaction timeout is longer than any broker admits.
    pub(super) fn inadmissible(&self, name: &str) -> Result<BaseProducer<Context>, SettingsError> {
        let mut settings = self.clone();
        settings.client.set(TRANSACTION_TIMEOUT, LONGEST_TRANSACTION_MS);
        settings.transactional(name)
    }

    /// A consumer without a group.
    pub(super) fn reader(&self, isolation: &str) -> Result<Retirable<BaseConsumer<Context>>, SettingsError> {
        self.reader_with(isolation, &[])
    }

    /// A consumer without a group, with these properties instead of its own.
    pub(super) fn reader_with(
        &self,
        isolation: &str,
        properties: &[(&str, &str)],
    ) -> Result<Retirable<BaseConsumer<Context>>, SettingsError> {
        let mut client = self.for_others();
        client
            .set("group.id", "walrelay-progress")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", isolation);
        for (name, value) in properties {
            client.set(*name, *value);
        }
        self.create(client, self.context(), BaseConsumer::client).map(Retirable::new)
    }

    /// A consumer that only asks questions: it has no group, and so no coordinator, and creates no topic.
    pub(super) fn watcher(&self) -> Result<Retirable<BaseConsumer<Context>>, SettingsError> {
        self.create(self.for_others(), self.context(), BaseConsumer::client).map(Retirable::new)
    }

    /// A client that creates and describes topics.
    pub(super) fn admin(&self) -> Result<Retirable<AdminClient<DefaultClientContext>>, SettingsError> {
        self.create(self.for_others(), DefaultClientContext, AdminClient::inner).map(Retirable::new)
    }

    /// The properties that other clients than producers understand.
    fn for_others(&self) -> ClientConfig {
        let mut client = self.client.clone();
        for (key, _) in FIXED.iter().chain(&DEFAULTS).filter(|(key, _)| *key != "reconnect.backoff.max.ms") {
            client.remove(key);
        }
        client.remove(TRANSACTION_TIMEOUT);
        client
    }

    /// The search producer, which sends records together when it is flushed. The search for a refused record has to know which records
    /// went together. As a rule there is one request for each partition. librdkafka may still split it, since a flush for another partition
    /// may be under way. A broker that knows the producer then refuses the requests behind a refused one, and the producer ends
    /// (`enable.gapless.guarantee`), as any other does.
    pub(super) fn search_producer(&self) -> Result<BaseProducer<Context>, SettingsError> {
        let mut settings = self.clone();
        for (key, value) in SEARCH_PRODUCER {
            settings.client.set(key, value);
        }
        settings.producer()
    }

    /// The most bytes of a request of the search producer. Half of the largest message size leaves room for headers of the protocol.
    pub(super) fn request_bytes(&self) -> u64 {
        self.property("message.max.bytes").and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(1_000_000) / 2
    }

    /// A producer that shares the partitions.
    pub(super) fn producer(&self) -> Result<BaseProducer<Context>, SettingsError> {
        self.producer_of(self.client.clone(), self.context())
    }

    /// A producer with these properties.
    pub(super) fn producer_of<C: ProducerContext<NoCustomPartitioner>>(
        &self,
        client: ClientConfig,
        context: C,
    ) -> Result<BaseProducer<C>, SettingsError> {
        self.create(client, context, BaseProducer::client)
    }

    fn context(&self) -> Context {
        Context::new(&self.brokers, &self.problems, self.property(DEBUG).is_some(), self.login.as_ref())
    }

    /// Creates a client, with the present password or token if they change. `inner`: its part that takes a token.
    fn create<T: FromClientConfigAndContext<C>, C: ClientContext>(
        &self,
        mut client: ClientConfig,
        context: C,
        inner: impl FnOnce(&T) -> &Client<C>,
    ) -> Result<T, SettingsError> {
        let Some(login) = &self.login else { return client.create_with_context(context).map_err(refused) };
        if let Some(password) = login.password().map_err(SettingsError::Login)? {
            client.set("sasl.password", password.expose_secret());
        }
        let created = client.create_with_context(context).map_err(refused)?;
        login.begin(inner(&created)).map_err(SettingsError::Login)?;
        Ok(created)
    }
}

fn refused(error: KafkaError) -> SettingsError {
    #[allow(clippy::wildcard_enum_match_arm, reason = "only one kind says more than its text")]
    match error {
        // The value may be a secret, under a misspelt name.
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, key, _) => SettingsError::Unknown { key },
        KafkaError::ClientConfig(_, reason, key, value) => {
            let value = if is_secret(&key) { "***".to_owned() } else { value };
            SettingsError::Property { key, value, reason }
        }
        KafkaError::ClientCreation(reason) => SettingsError::Together { reason },
        other => SettingsError::Together { reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(key: &str, value: &str) -> Result<KafkaSettings, SettingsError> {
        KafkaSettings::new("127.0.0.1:1", "walrelay", &[(key.to_owned(), value.to_owned())], 1 << 20)
    }

    #[test]
    fn a_property_that_librdkafka_does_not_know_is_named() {
        let error = settings("linger.msec", "5").err().unwrap();
        assert!(error.to_string().contains("linger.msec"), "{error}");
    }

    #[test]
    fn each_name_that_may_be_suggested_is_one_of_librdkafka() {
        for name in super::known::NAMES {
            let error = settings(name, "x").err();
            assert!(!matches!(error, Some(SettingsError::Unknown { .. })), "{name}");
        }
    }

    #[test]
    fn properties_that_cannot_be_used_together_say_why() {
        let pairs = [("security.protocol", "ssl"), ("ssl.ca.location", "/nowhere/ca.pem")];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let settings = KafkaSettings::new("127.0.0.1:1", "walrelay", &pairs, 1 << 20).unwrap();
        let error = settings.producer().err().unwrap().to_string();
        assert!(error.starts_with("the Kafka properties cannot be used: ") && error.contains("ca.location"), "{error}");
    }

    #[test]
    fn a_refused_secret_is_not_shown() {
        for key in ["ssl.key.password.x", "sasl.passwrd"] {
            let error = settings(key, "hunter2").err().unwrap();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_users_linger_beats_the_default_and_the_fixed_ones_stay() {
        let settings = settings("linger.ms", "5").unwrap();
        assert_eq!(settings.client.get("linger.ms"), Some("5"));
        assert_eq!(settings.client.get("acks"), Some("all"));
    }
}

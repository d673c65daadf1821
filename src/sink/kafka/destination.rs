//! Kafka as settings name it.
//!
//! In: `--brokers` or `--to kafka://…`, and properties. Out: a [`Kafka`], from which producers, checks and scratch topics come.

use super::dead_letters::Reading;
use super::login::{self, Login};
use super::properties;
use super::scratch::ScratchTopic;
use super::settings::{Settings, SettingsError};
use super::{KafkaSink, RECORD_OVERHEAD_BYTES, check, failure};
use crate::finding::Finding;
use crate::given::{Given, Origin, SettingError, is_secret};
use crate::route::TOPICS;
use crate::sink::destination::{
    Asked, Can, DeadLetters, Delivery, Destination, EventBinding, Kind, NoDeadLetters, Scratch, ScratchError, Wanted,
};
use crate::sink::{Failure, FailureClass, Sink};
use std::fmt;
use std::sync::Arc;

/// Kafka.
pub const KIND: Kind = Kind {
    name: "kafka",
    title: "Kafka",
    messaging_system: "kafka",
    schemes: &["kafka"],
    example: "kafka://HOST:PORT,HOST:PORT",
    topics: &TOPICS,
    can: Can { exactly_once: true, partitions: true, null_values: true, debezium: true },
    properties: &login::PROPERTIES,
    passes_others: true,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read,
    refusals: || failure::refusals().collect(),
    reasons: || failure::reasons().collect(),
    hint,
};

/// Where records go, and how librdkafka is to behave beyond what is fixed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Kafka {
    /// Bootstrap servers, `host:port` with commas between them.
    pub(super) brokers: String,
    /// The user's properties. Names are distinct; of librdkafka's aliases always `acks`, `linger.ms`, `compression.type`,
    /// `max.in.flight.requests.per.connection`, `message.timeout.ms`, `retries`. Those with a fixed value are not among them.
    pub(super) properties: Vec<(String, String)>,
    /// Bytes.
    pub(super) max_in_flight: u64,
    /// What proves who we are, where that changes.
    pub(super) login: Option<Login>,
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(name, value): &(String, String)| {
            let value = if is_secret(name) { "[REDACTED]".to_owned() } else { value.clone() };
            (name.clone(), value)
        };
        let properties = self.properties.iter().map(shown).collect::<Vec<_>>();
        f.debug_struct("Kafka").field("brokers", &self.brokers).field("properties", &properties).finish_non_exhaustive()
    }
}

fn read(asked: &mut Asked<'_>) -> Result<Arc<dyn Destination>, SettingError> {
    let places = translated(&asked.properties);
    let login = Login::take(&mut asked.properties, &asked.addresses)?;
    let kafka = Kafka {
        brokers: properties::brokers(&asked.addresses)?,
        properties: properties::judge_all(std::mem::take(&mut asked.properties), asked.max_in_flight)?,
        max_in_flight: asked.max_in_flight as u64,
        login,
    };
    // Librdkafka judges the rest.
    kafka.settings("walrelay").map_err(|error| named(&error, &places, kafka.lacks_mechanism()))?;
    Ok(Arc::new(kafka))
}

/// Where properties stand that another program's files gave: their names there are not librdkafka's.
fn translated(properties: &[(String, Given)]) -> Vec<(String, Origin)> {
    let of_files = properties.iter().filter(|(_, given)| matches!(given.origin, Origin::Translated(_)));
    of_files.map(|(name, given)| (name.clone(), given.origin.clone())).collect()
}

/// The error, with the place of the property that it names; of several together, with that of the first that may be meant.
fn named(error: &SettingsError, places: &[(String, Origin)], hint: Option<String>) -> SettingError {
    let is_meant = |name: &str| match error {
        SettingsError::Property { key, .. } => name == key,
        SettingsError::Together { .. } | SettingsError::Login(_) => {
            ["security.", "sasl.", "ssl."].iter().any(|part| name.starts_with(part))
        }
    };
    let place = places.iter().find(|(name, _)| is_meant(name)).map(|(_, origin)| format!("{origin}: "));
    SettingError::Client { text: format!("{}{error}", place.unwrap_or_default()), hint }
}

/// What fixes a failure for which an operator must act.
fn hint(found: &Failure) -> Option<String> {
    (found.class == FailureClass::LogIn).then(|| failure::LOGIN_HINT.to_owned())
}

impl Kafka {
    pub(super) fn settings(&self, client: &str) -> Result<Settings, SettingsError> {
        Ok(Settings::new(&self.brokers, client, &self.properties, self.max_in_flight)?.with_login(self.login.clone()))
    }

    /// What librdkafka refuses, or the credentials that are missing.
    fn refused(&self, error: &SettingsError) -> SettingError {
        let text = error.to_string();
        match error {
            SettingsError::Login(_) => SettingError::Credentials { text },
            SettingsError::Property { .. } => SettingError::Client { text, hint: None },
            SettingsError::Together { .. } => SettingError::Client { text, hint: self.lacks_mechanism() },
        }
    }

    /// What to set where SASL is to authenticate and no mechanism is named: librdkafka then takes one that is not built in.
    fn lacks_mechanism(&self) -> Option<String> {
        let protocol = self.property("security.protocol")?.to_ascii_lowercase();
        let is_named = ["sasl.mechanism", "sasl.mechanisms"].iter().any(|name| self.property(name).is_some());
        (protocol.starts_with("sasl_") && !is_named).then(|| {
            "-X sasl.mechanism=SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER, whichever the brokers offer"
                .to_owned()
        })
    }

    /// A property as the user gave it.
    pub(super) fn property(&self, name: &str) -> Option<&str> {
        self.properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl Destination for Kafka {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn address(&self) -> String {
        self.brokers.clone()
    }

    fn open(&self, client: &str, how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        let refused = |error| self.refused(&error);
        let settings = self.settings(client).map_err(refused)?;
        Ok(match how {
            Delivery::AtLeastOnce => Box::new(KafkaSink::new(settings).map_err(refused)?),
            Delivery::ExactlyOnce => Box::new(KafkaSink::in_transactions(settings).map_err(refused)?),
        })
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(self, wanted)
    }

    fn scratch(&self, client: &str, topic: &str, partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let refused = |error: SettingsError| ScratchError {
            what: "create topic",
            topic: topic.to_owned(),
            reason: error.to_string(),
        };
        let settings = self.settings(client).map_err(refused)?;
        Ok(Box::new(ScratchTopic::make(&settings, topic, partitions)?))
    }

    fn event_binding(&self) -> Option<EventBinding> {
        Some(EventBinding { prefix: "ce_", percent_encoded: false })
    }

    fn dead_letters(&self, client: &str, topic: &str) -> Result<Box<dyn DeadLetters>, NoDeadLetters> {
        let settings = self.settings(client).map_err(|error| self.refused(&error))?;
        Ok(Box::new(Reading::new(settings, topic)?))
    }
}

//! [`Kafka`]: the destination, as its settings describe it.
//!
//! In: `--brokers` or `--to kafka://…`, and properties. Out: a [`Kafka`], which opens sinks, checks the cluster, reads dead letters and makes
//! scratch topics.

use super::config::known::NAMES;
use super::config::properties;
use super::config::{KafkaSettings, SettingsError};
use super::dead_letters::TopicReading;
use super::login::{self, Login};
use super::reader::TopicReader;
use super::scratch::ScratchTopic;
use super::{KafkaSink, NAME, RECORD_OVERHEAD_BYTES, check, errors};
use crate::check_finding::Finding;
use crate::route::TOPICS;
use crate::setting_text::{Origin, SettingError, is_secret, nearest};
use crate::sink::Sink;
use crate::sink::destination::{
    Can, DeadLetters, Delivery, Destination, EventBinding, GivenSettings, Kind, NoDeadLetters, NoReader, Scratch,
    ScratchError, Wanted,
};
use crate::sink::reading::RecordReader;
use std::fmt;
use std::sync::Arc;

/// The kind `kafka`.
pub const KIND: Kind = Kind {
    name: NAME,
    title: "Kafka",
    schemes: &["kafka"],
    example: "kafka://HOST:PORT,HOST:PORT",
    topics: &TOPICS,
    can: Can { exactly_once: true, partitions: true, null_values: true, debezium: true, dead_letters: true },
    properties: &login::PROPERTIES,
    passes_others: true,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read,
    refusals: || errors::refusals().collect(),
    reasons: || errors::reasons().collect(),
};

/// A Kafka cluster, and the user's properties for librdkafka.
#[derive(Clone)]
struct Kafka {
    /// The bootstrap servers, `host:port` with commas between them.
    brokers: String,
    /// The user's properties. No name is there twice, and none is an alias of another. Properties with a fixed value are not among them.
    properties: Vec<(String, String)>,
    /// The most bytes in flight.
    max_in_flight: u64,
    /// The source of tokens or passwords, if they change.
    login: Option<Login>,
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

const PROTOCOL: &str = "security.protocol";

/// The mechanism whose tokens librdkafka fetches as soon as there is a client.
const BY_TOKEN: &str = "OAUTHBEARER";

fn read(asked: &mut GivenSettings<'_>) -> Result<Arc<dyn Destination>, SettingError> {
    let origins: Vec<_> = asked.properties.iter().map(|(name, given)| (name.clone(), given.origin.clone())).collect();
    // Properties from another program's files have other names there than librdkafka's.
    let is_translated = |(_, origin): &&(String, Origin)| matches!(origin, Origin::Translated(_));
    let translated: Vec<_> = origins.iter().filter(is_translated).cloned().collect();
    let login = Login::take(&mut asked.properties, &asked.addresses)?;
    let kafka = Kafka {
        brokers: properties::brokers(&asked.addresses)?,
        properties: properties::check_all(std::mem::take(&mut asked.properties), asked.max_in_flight)?,
        max_in_flight: asked.max_in_flight as u64,
        login,
    };
    properties::one_protocol(&asked.addresses, kafka.property(PROTOCOL))?;
    // librdkafka checks the other properties.
    let checked = kafka.settings("walrelay").map(drop);
    // Settings from another program's files are also tried out, so that a check of them reports everything that would end a run.
    let checked = if translated.is_empty() { checked } else { checked.and_then(|()| kafka.try_out(None)) };
    checked.map_err(|error| unknown(&error, &origins).unwrap_or_else(|| kafka.named(&error, &translated)))?;
    Ok(Arc::new(kafka))
}

/// The error about a property that librdkafka does not have, with the nearest one as its hint.
fn unknown(error: &SettingsError, origins: &[(String, Origin)]) -> Option<SettingError> {
    let SettingsError::Unknown { key } = error else { return None };
    let (_, origin) = origins.iter().find(|(name, _)| name == key)?;
    let hint = match nearest(key, NAMES.into_iter().chain(login::PROPERTIES)) {
        Some(nearest) => format!("the nearest property is {nearest}"),
        None => "its properties are those of librdkafka: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md".to_owned(),
    };
    Some(SettingError::unknown_property(origin, KIND.title, key, hint))
}

impl Kafka {
    fn settings(&self, client: &str) -> Result<KafkaSettings, SettingsError> {
        Ok(KafkaSettings::new(&self.brokers, client, &self.properties, self.max_in_flight)?
            .with_login(self.login.clone()))
    }

    /// Lets librdkafka create a client with all properties, or with all but one. Contacts nobody.
    fn try_out(&self, without: Option<&str>) -> Result<(), SettingsError> {
        let by_token = self.property("sasl.mechanism") == Some(BY_TOKEN);
        let tried = self.properties.iter().filter(|(name, _)| {
            let fetches = by_token && name.starts_with("sasl.");
            !fetches && without != Some(name.as_str())
        });
        let tried = tried.map(|(name, value)| {
            let protocol = name == PROTOCOL && by_token;
            let value = if protocol { value.to_ascii_lowercase().replace("sasl_", "") } else { value.clone() };
            (name.clone(), value)
        });
        let kafka = Self { properties: tried.collect(), ..self.clone() };
        kafka.settings("walrelay")?.try_out()
    }

    /// The error, with the origin of its property.
    fn named(&self, error: &SettingsError, origins: &[(String, Origin)]) -> SettingError {
        let origin = self.origin(error, origins).map(|origin| format!("{origin}: "));
        SettingError::new(format!("{}{error}", origin.unwrap_or_default())).with_hint(self.lacks_mechanism())
    }

    /// The origin of the property that librdkafka names, or else of the one without which librdkafka accepts the others.
    fn origin<'o>(&self, error: &SettingsError, origins: &'o [(String, Origin)]) -> Option<&'o Origin> {
        let found = match error {
            SettingsError::Property { key, .. } | SettingsError::Unknown { key } => {
                origins.iter().find(|(name, _)| name == key)
            }
            SettingsError::Together { .. } | SettingsError::Login(_) => {
                // Without the protocol librdkafka ignores all properties of TLS and SASL. So the protocol is the last one to try.
                let (protocol, others): (Vec<_>, Vec<_>) = origins.iter().partition(|(name, _)| name == PROTOCOL);
                let is_meant = |(name, _): &&(String, Origin)| self.try_out(Some(name)).is_ok();
                others.into_iter().find(is_meant).or_else(|| protocol.into_iter().next())
            }
        };
        found.map(|(_, origin)| origin)
    }

    /// The error for settings that librdkafka refuses, or for missing credentials.
    fn refused(&self, error: &SettingsError) -> SettingError {
        let said = SettingError::new(error.to_string());
        match error {
            SettingsError::Login(_) => said.lacking_secret(),
            SettingsError::Property { .. } | SettingsError::Unknown { .. } => said,
            SettingsError::Together { .. } => said.with_hint(self.lacks_mechanism()),
        }
    }

    /// The hint for SASL without a mechanism: librdkafka then takes one that this build does not have.
    fn lacks_mechanism(&self) -> Option<String> {
        let protocol = self.property(PROTOCOL)?.to_ascii_lowercase();
        (protocol.starts_with("sasl_") && self.property("sasl.mechanism").is_none()).then(|| {
            "-X sasl.mechanism=SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER, whichever the brokers offer"
                .to_owned()
        })
    }

    /// A property as the user gave it.
    fn property(&self, name: &str) -> Option<&str> {
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
            Delivery::ExactlyOnce { one_replica } => {
                Box::new(KafkaSink::in_transactions(settings.exactly_once(one_replica)).map_err(refused)?)
            }
        })
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(self.settings(wanted.client), wanted)
    }

    fn scratch(&self, client: &str, topic: &str, partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        Ok(Box::new(ScratchTopic::make(self.settings(client), topic, partitions)?))
    }

    fn deletes_by_time(&self) -> Option<&'static str> {
        Some("retention.ms of the topic, by default the brokers' log.retention.hours (a week)")
    }

    fn event_binding(&self) -> Option<EventBinding> {
        Some(EventBinding { prefix: "ce_", percent_encoded: false })
    }

    fn dead_letters(&self, client: &str, topic: &str) -> Result<Box<dyn DeadLetters>, NoDeadLetters> {
        let settings = self.settings(client).map_err(|error| self.refused(&error))?;
        Ok(Box::new(TopicReading::new(settings, topic)?))
    }

    fn reader(&self, client: &str) -> Result<Box<dyn RecordReader>, NoReader> {
        let settings = self.settings(client).map_err(|error| self.refused(&error))?;
        Ok(Box::new(TopicReader::new(settings).map_err(|error| self.refused(&error))?))
    }
}

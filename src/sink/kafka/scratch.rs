//! Makes a topic for a measurement, and removes it.
//!
//! In: a name. Out: the topic, or a refusal. It never touches a topic that exists already.

use super::admin::Admin;
use super::{KafkaSettings, SettingsError};
use crate::sink::destination::{Scratch, ScratchError};
use rdkafka::admin::{NewTopic, TopicReplication, TopicResult};
use rdkafka::error::KafkaError;
use std::time::{Duration, Instant};

/// How long the cluster may take for one request.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many requests are timed.
const ROUND_TRIPS: usize = 9;

/// A topic that was made for a measurement.
pub(super) struct ScratchTopic {
    admin: Admin,
    name: String,
}

impl ScratchTopic {
    /// Makes the topic, with the cluster's default number of replicas.
    ///
    /// # Errors
    /// The settings are refused; the topic exists already; or the cluster refuses or does not answer.
    pub(super) fn make(
        settings: Result<KafkaSettings, SettingsError>,
        name: &str,
        partitions: i32,
    ) -> Result<Self, ScratchError> {
        let error = |reason: String| ScratchError { what: "create topic", topic: name.to_owned(), reason };
        let admin = settings.and_then(|settings| Admin::new(&settings, PATIENCE));
        let admin = admin.map_err(|source| error(source.to_string()))?;
        outcome(admin.create(&[NewTopic::new(name, partitions, TopicReplication::Fixed(-1))], false)).map_err(error)?;
        Ok(Self { admin, name: name.to_owned() })
    }
}

impl Scratch for ScratchTopic {
    /// Times requests for the topic's metadata, for which a broker writes nothing.
    fn round_trip(&self) -> Option<Duration> {
        let times = (0..ROUND_TRIPS).filter_map(|_| {
            let asked = Instant::now();
            self.admin.metadata(Some(&self.name)).ok().map(|_| asked.elapsed())
        });
        times.min()
    }

    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        outcome(self.admin.remove(&self.name)).map_err(|reason| ScratchError {
            what: "remove topic",
            topic: self.name,
            reason,
        })
    }
}

/// The result for the only topic of a request.
fn outcome(answer: Result<Vec<TopicResult>, KafkaError>) -> Result<(), String> {
    let answers = answer.map_err(|error| error.to_string())?;
    match answers.into_iter().next() {
        Some(Err((_, code))) => Err(code.to_string()),
        Some(Ok(_)) | None => Ok(()),
    }
}

//! [`Admin`]: a client that creates, removes and describes topics.
//!
//! In: requests. Out: the cluster's answers. Each request blocks this thread, for the time that [`Admin::new`] is given at most. The client
//! ends on a thread of its own.

use super::config::{KafkaSettings, SettingsError};
use super::retire::Retirable;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicResult};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaResult;
use rdkafka::metadata::Metadata;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The settings of a topic or of a broker, or why they cannot be seen.
pub(super) type SettingsSeen = Result<BTreeMap<String, String>, String>;

/// The client, with the runtime that waits for its answers.
pub(super) struct Admin {
    client: Retirable<AdminClient<DefaultClientContext>>,
    runtime: Runtime,
    within: Duration,
}

impl Admin {
    /// Creates a client whose requests may take so long.
    pub(super) fn new(settings: &KafkaSettings, within: Duration) -> Result<Self, SettingsError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| SettingsError::Together { reason: error.to_string() })?;
        Ok(Self { client: settings.admin()?, runtime, within })
    }

    /// The cluster's brokers, with one topic, or else with all that this user may see. The question about one may create it.
    pub(super) fn metadata(&self, topic: Option<&str>) -> KafkaResult<Metadata> {
        self.client.inner().fetch_metadata(topic, self.within)
    }

    /// Creates topics. `for_trial`: the cluster answers as if it did, and creates nothing (`validate_only`).
    pub(super) fn create<'a>(&self, topics: &'a [NewTopic<'a>], for_trial: bool) -> KafkaResult<Vec<TopicResult>> {
        let options = self.options().operation_timeout(Some(self.within)).validate_only(for_trial);
        self.runtime.block_on(self.client.create_topics(topics, &options))
    }

    /// Removes a topic.
    pub(super) fn remove(&self, topic: &str) -> KafkaResult<Vec<TopicResult>> {
        let options = self.options().operation_timeout(Some(self.within));
        self.runtime.block_on(self.client.delete_topics(&[topic], &options))
    }

    /// The settings of topics and brokers, in the order in which they are asked for.
    pub(super) fn settings_of<'a>(&self, asked: &'a [ResourceSpecifier<'a>]) -> KafkaResult<Vec<SettingsSeen>> {
        let answers = self.runtime.block_on(self.client.describe_configs(asked, &self.options()))?;
        Ok(answers.into_iter().map(|answer| answer.map_err(|code| code.to_string()).and_then(entries)).collect())
    }

    /// A setting of a topic. `None`: this user may not see it.
    pub(super) fn setting_of(&self, topic: &str, name: &str) -> KafkaResult<Option<String>> {
        let seen = self.settings_of(&[ResourceSpecifier::Topic(topic)])?.pop();
        Ok(seen.and_then(Result::ok).and_then(|mut settings| settings.remove(name)))
    }

    fn options(&self) -> AdminOptions {
        AdminOptions::new().request_timeout(Some(self.within))
    }
}

/// The settings in an answer. Without the right to see them the answer has none, and no error.
fn entries(resource: ConfigResource) -> SettingsSeen {
    let entries: BTreeMap<_, _> =
        resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))).collect();
    if entries.is_empty() { Err("the right DescribeConfigs is missing".to_owned()) } else { Ok(entries) }
}

//! `dead-letters`: which records, and what is done with them.
//!
//! In: the layers, with the settings of `run` that it shares: the destination, the slot, the
//! dead-letter topic. Out: a [`DeadLettersRequest`].

use super::cli::DeadLettersArgs;
use super::read::SettingsReader;
use crate::commands::dead_letters::{Action, DeadLettersRequest};
use crate::setting_text::SettingError;

impl SettingsReader<'_> {
    pub(super) fn dead_letters(&mut self, args: &DeadLettersArgs) -> Result<DeadLettersRequest, SettingError> {
        let slot = self.slot()?;
        let destination = self.destination(self.limits()?.max_in_flight)?;
        let addresses = destination.kind().topics;
        let default_topic = self.layers.one("default-topic")?;
        if let Some(given) = default_topic.as_ref().filter(|given| addresses.check(&given.text).is_err()) {
            return Err(given.invalid(addresses.expected, None));
        }
        Ok(DeadLettersRequest {
            topic: self.dead_letter_topic(&slot, addresses)?,
            destination,
            slot,
            ids: self.layers.flags.all("id").to_vec(),
            again: args.again,
            default_topic: default_topic.map(|given| given.text),
            has_schema_ids: self.layers.one("schema-registry")?.or(self.layers.one("schema-id")?).is_some(),
            action: match (args.replay, args.show) {
                (true, _) => Action::Replay,
                (false, true) => Action::Show,
                (false, false) => Action::List,
            },
            json: args.json,
        })
    }
}

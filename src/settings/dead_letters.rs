//! `dead-letters`: which records, and what is done with them.
//!
//! In: the layers, with the settings of `run` that it shares: the destination, the slot, the
//! dead-letter topic. Out: a [`DeadLettersRequest`].

use super::read::SettingsReader;
use super::table::others::dead_letters as flags;
use super::table::run::{SCHEMA_ID, SCHEMA_REGISTRY, SLOT};
use crate::commands::dead_letters::{Action, DeadLettersRequest};
use crate::setting_text::SettingError;

impl SettingsReader<'_> {
    pub(super) fn dead_letters(&mut self) -> Result<DeadLettersRequest, SettingError> {
        let slot = self.get(&SLOT)?;
        let destination = self.destination(self.limits()?.max_in_flight)?;
        let addresses = destination.kind().topics;
        let default_topic = self.given(&flags::DEFAULT_TOPIC)?;
        if let Some(given) = default_topic.as_ref().filter(|given| addresses.check(&given.text).is_err()) {
            return Err(given.invalid(addresses.expected, None));
        }
        Ok(DeadLettersRequest {
            topic: self.dead_letter_topic(&slot, addresses)?,
            destination,
            slot,
            ids: self.layers.flags.all(flags::ID.name).to_vec(),
            again: self.get(&flags::AGAIN)?,
            default_topic: default_topic.map(|given| given.text),
            has_schema_ids: self.layers.one(&SCHEMA_REGISTRY)?.or(self.layers.one(&SCHEMA_ID)?).is_some(),
            action: match (self.get(&flags::REPLAY)?, self.get(&flags::SHOW)?) {
                (true, _) => Action::Replay,
                (false, true) => Action::Show,
                (false, false) => Action::List,
            },
            json: self.get(&flags::JSON)?,
        })
    }
}

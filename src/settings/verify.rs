//! `verify`: what is compared, and how.
//!
//! In: the layers, with the settings of `run`. Out: a [`VerifyRequest`].

use super::read::SettingsReader;
use super::table::verify as flags;
use crate::commands::run::RunRequest;
use crate::commands::verify::{TableWindow, VerifyRequest};
use crate::outbox::Timestamp;
use crate::setting_text::SettingError;

impl SettingsReader<'_> {
    pub(super) fn verify(&mut self) -> Result<VerifyRequest, SettingError> {
        let run = self.run()?;
        let begins = run.mapping.topic.begins();
        let exclusive = self.get(&flags::EXCLUSIVE)?;
        if exclusive && begins.is_empty() {
            return Err(SettingError::usage(
                "--exclusive needs a --topic that begins with a fixed text: else every topic of the cluster would be this slot's",
                "leave --exclusive out, or --topic 'outbox.event.{route}'",
            ));
        }
        let follow = self.get(&flags::FOLLOW)?;
        Ok(VerifyRequest {
            since: self.table_window(exclusive, &run)?,
            follow: (!follow.is_zero()).then_some(follow),
            wait: self.get(&flags::WAIT)?,
            exclusive,
            show: self.get(&flags::SHOW)?,
            show_values: self.get(&flags::SHOW_VALUES)?,
            memory: self.get(&flags::MEMORY)? as u64,
            json: self.get(&flags::JSON)?,
            run,
        })
    }

    /// The rows of `--since`, if it is given.
    fn table_window(&self, exclusive: bool, run: &RunRequest) -> Result<Option<TableWindow>, SettingError> {
        let condition = self.layers.flags.last(flags::WHERE.name).map(str::to_owned);
        let age_column = self.given(&flags::AGE_COLUMN)?;
        let Some(age) = self.given(&flags::SINCE)? else {
            if condition.is_some() || age_column.is_some() {
                let text = "--where and --age-column choose rows of the table, which only --since reads";
                return Err(SettingError::usage(text, "add --since 2h"));
            }
            return Ok(None);
        };
        let refused = |text: &str| Err(SettingError::usage(text, "compare new rows: --follow"));
        if exclusive {
            return refused("--exclusive does not go with --since: a record whose row was deleted has none");
        }
        if run.only_local {
            return refused("--since does not go with --origin local: a table does not say which rows were replicated");
        }
        if run.mapping.cloudevents.is_some() && !matches!(run.mapping.timestamp, Timestamp::Column(_)) {
            return refused(
                "--since needs --timestamp COLUMN here: CloudEvents have the commit's time, which is in no table",
            );
        }
        Ok(Some(TableWindow { age, condition, age_column }))
    }
}

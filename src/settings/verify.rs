//! `verify`: what is compared, and how.
//!
//! In: the layers, with the settings of `run`. Out: a [`VerifyRequest`].

use super::cli::VerifyArgs;
use super::read::{SettingsReader, bounds};
use crate::commands::run::RunRequest;
use crate::commands::verify::{TableWindow, VerifyRequest};
use crate::outbox::Timestamp;
use crate::setting_text::SettingError;
use std::time::Duration;

/// How long new rows are compared by default, and how long open rows are waited for.
const FOLLOW: Duration = Duration::from_mins(1);
const WAIT: Duration = Duration::from_mins(1);

/// The faults that are shown by default, and at most.
const SHOW: usize = 20;
const MOST_SHOWN: usize = 100_000;

impl SettingsReader<'_> {
    pub(super) fn verify(&mut self, args: &VerifyArgs) -> Result<VerifyRequest, SettingError> {
        let run = self.run()?;
        let begins = run.mapping.topic.begins();
        if args.exclusive && begins.is_empty() {
            return Err(SettingError::usage(
                "--exclusive needs a --topic that begins with a fixed text: else every topic of the cluster would be this slot's",
                "leave --exclusive out, or --topic 'outbox.event.{route}'",
            ));
        }
        let follow = self.span("follow")?.unwrap_or(FOLLOW);
        let memory = bounds(256 << 20, 1 << 20, usize::MAX, ", at least 1MiB");
        Ok(VerifyRequest {
            since: self.table_window(args, &run)?,
            follow: (!follow.is_zero()).then_some(follow),
            wait: self.span("wait")?.unwrap_or(WAIT),
            exclusive: args.exclusive,
            show: self.shown_faults()?,
            show_values: args.show_values,
            memory: self.size("memory", &memory)? as u64,
            json: args.json,
            run,
        })
    }

    /// The rows of `--since`, if it is given.
    fn table_window(&self, args: &VerifyArgs, run: &RunRequest) -> Result<Option<TableWindow>, SettingError> {
        let condition = self.layers.flags.last("where").map(str::to_owned);
        let age_column = self.name("age-column")?;
        let Some(age) = self.span("since")? else {
            if condition.is_some() || age_column.is_some() {
                let text = "--where and --age-column choose rows of the table, which only --since reads";
                return Err(SettingError::usage(text, "add --since 2h"));
            }
            return Ok(None);
        };
        let refused = |text: &str| Err(SettingError::usage(text, "compare new rows: --follow"));
        if args.exclusive {
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

    fn shown_faults(&self) -> Result<usize, SettingError> {
        let Some(given) = self.layers.one("show")? else { return Ok(SHOW) };
        let count = given.text.parse().ok().filter(|count| *count <= MOST_SHOWN);
        count.ok_or_else(|| given.invalid("a number from 0 to 100000", None))
    }
}

//! `verify`: what is compared, and how.
//!
//! In: the layers, with the settings of `run`. Out: a [`VerifyRequest`].

use super::cli::VerifyArgs;
use super::read::{SettingsReader, bounds};
use crate::commands::verify::VerifyRequest;
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

    fn shown_faults(&self) -> Result<usize, SettingError> {
        let Some(given) = self.layers.one("show")? else { return Ok(SHOW) };
        let count = given.text.parse().ok().filter(|count| *count <= MOST_SHOWN);
        count.ok_or_else(|| given.invalid("a number from 0 to 100000", None))
    }
}

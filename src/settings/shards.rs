//! Which shard a relay is, and how many there are to be.
//!
//! In: the layers. Out: names and numbers, of which every one is in range.

use super::read::{SettingsReader, SlotSettings};
use crate::commands::setup::Shards;
use crate::outbox::table_name::MAX_NAME_BYTES;
use crate::pg::shard::{MOST, SUFFIX_BYTES, Shard};
use crate::setting_text::{Given, SettingError};

impl SettingsReader<'_> {
    /// Which shard it is. What one cannot do beside others is refused.
    pub(super) fn shard(&self, place: &SlotSettings) -> Result<Option<Shard>, SettingError> {
        let Some(given) = self.layers.one("shard")? else { return Ok(None) };
        let expected = || format!("I/N with N from 1 to {MOST} and I from 0 to N - 1: 0/3");
        let shard = given.text.parse().map_err(|_| given.invalid(expected(), None))?;
        fits(place, &given)?;
        if self.layers.is_on("setup")? {
            return Err(SettingError::usage(
                format!("{}: one shard does not set up the others", given.origin),
                "once, before any of them runs: walrelay setup --shards N --apply; then run without --setup",
            ));
        }
        if let Some(prefix) = self.layers.many("message-prefix").first() {
            return Err(SettingError::usage(
                format!("{}: logical messages are in every slot, so each shard would publish them", prefix.origin),
                "insert into the outbox table instead",
            ));
        }
        Ok(Some(shard))
    }

    /// Sees that existing rows are not asked for shard by shard.
    pub(super) fn no_shard(&self) -> Result<(), SettingError> {
        match self.layers.one("shard")? {
            None => Ok(()),
            Some(given) => Err(SettingError::usage(
                format!("{}: a shard's slot does not say which rows are older than it", given.origin),
                "publish existing rows before: walrelay setup --apply --backfill, then walrelay setup --reshard N --apply",
            )),
        }
    }

    /// How many shards there are to be.
    pub(super) fn shards(&self, place: &SlotSettings) -> Result<Option<Shards>, SettingError> {
        let (given, moves) = match (self.layers.one("shards")?, self.layers.one("reshard")?) {
            (Some(given), _) => (given, false),
            (None, Some(given)) => (given, true),
            (None, None) => return Ok(None),
        };
        fits(place, &given)?;
        Ok(Some(Shards {
            count: count(&given)?,
            moves,
            key_column: self.optional_name("key-column")?,
            id_column: self.name("id-column")?,
        }))
    }

    /// The number of shards behind a flag.
    pub(super) fn count(&self, flag: &str) -> Result<Option<u8>, SettingError> {
        self.layers.one(flag)?.as_ref().map(count).transpose()
    }
}

/// A number of shards.
fn count(given: &Given) -> Result<u8, SettingError> {
    let count = given.text.trim().parse().ok().filter(|count| (1..=MOST).contains(count));
    count.ok_or_else(|| given.invalid(format!("a number of shards from 1 to {MOST}"), None))
}

/// Sees that the names of shards are no longer than Postgres takes.
fn fits(place: &SlotSettings, given: &Given) -> Result<(), SettingError> {
    let most = MAX_NAME_BYTES - SUFFIX_BYTES;
    let long = [&place.publication, &place.slot].into_iter().find(|name| name.len() > most);
    match long {
        None => Ok(()),
        Some(name) => Err(SettingError::usage(
            format!("{}: \"{name}\" is too long for names such as \"…_0_of_3\"", given.origin),
            format!("--publication and --slot of at most {most} bytes"),
        )),
    }
}

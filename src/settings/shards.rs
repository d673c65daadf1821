//! Reads the settings about shards: `--shard`, `--shards` and `--reshard`.
//!
//! In: the layers of settings. Out: a shard, or the number of shards. Each number is in its range, and Postgres takes the names of the
//! shards' publications and slots.

use super::read::{SettingsReader, SlotSettings};
use super::table::others::setup::{RESHARD, SHARDS};
use super::table::run::{ID_COLUMN, KEY_COLUMN, MESSAGE_PREFIX, SETUP, SHARD};
use crate::commands::setup::Shards;
use crate::outbox::table_name::MAX_NAME_BYTES;
use crate::pg::shard::{MOST, SUFFIX_BYTES, Shard};
use crate::setting_text::{Given, SettingError};

impl SettingsReader<'_> {
    /// The shard that `run` is. Settings that a relay alongside others cannot have are refused.
    pub(super) fn shard(&self, settings: &SlotSettings) -> Result<Option<Shard>, SettingError> {
        let Some(given) = self.layers.one(&SHARD)? else { return Ok(None) };
        let expected = || format!("I/N with N from 1 to {MOST} and I from 0 to N - 1: 0/3");
        let shard = Shard::parse(&given.text).ok_or_else(|| given.invalid(expected(), None))?;
        check_names(settings, &given)?;
        if self.get(&SETUP)? {
            return Err(SettingError::usage(
                format!("{}: one shard does not set up the others", given.origin),
                "once, before any of them runs: walrelay setup --shards N --apply; then run without --setup",
            ));
        }
        if let Some(prefix) = self.layers.many(&MESSAGE_PREFIX).first() {
            return Err(SettingError::usage(
                format!("{}: logical messages are in every slot, so each shard would publish them", prefix.origin),
                "insert into the outbox table instead",
            ));
        }
        Ok(Some(shard))
    }

    /// Refuses `--shard` of a command that publishes existing rows.
    pub(super) fn no_shard(&self) -> Result<(), SettingError> {
        let Some(given) = self.layers.one(&SHARD)? else { return Ok(()) };
        Err(SettingError::usage(
            format!("{}: a shard's slot does not say which rows are older than it", given.origin),
            "publish existing rows before: walrelay setup --apply --backfill, then walrelay setup --reshard N --apply",
        ))
    }

    /// The shards that `setup` makes.
    pub(super) fn shards(&self, settings: &SlotSettings) -> Result<Option<Shards>, SettingError> {
        let (shards, reshard) = (self.layers.one(&SHARDS)?, self.layers.one(&RESHARD)?);
        let moves = shards.is_none();
        let Some(given) = shards.or(reshard) else { return Ok(None) };
        check_names(settings, &given)?;
        let (key_column, id_column) = (self.given(&KEY_COLUMN)?, self.given(&ID_COLUMN)?);
        Ok(Some(Shards { count: SHARDS.parse(&given)?, moves, key_column, id_column }))
    }
}

/// Checks that Postgres takes the names of the shards' publications and slots, which are longer than the common names.
fn check_names(settings: &SlotSettings, given: &Given) -> Result<(), SettingError> {
    let most = MAX_NAME_BYTES - SUFFIX_BYTES;
    match [&settings.publication, &settings.slot].into_iter().find(|name| name.len() > most) {
        None => Ok(()),
        Some(name) => Err(SettingError::usage(
            format!("{}: \"{name}\" is too long for names such as \"…_0_of_3\"", given.origin),
            format!("--publication and --slot of at most {most} bytes"),
        )),
    }
}

//! Which shard a relay is, and how many there are to be.
//!
//! In: flags and the other layers. Out: names and numbers, of which every one is in range.

use super::cli::{RunArgs, SetupShardsArgs};
use super::error::ConfigError;
use super::read::{Place, Reader, flag};
use crate::commands::setup::Shards;
use crate::given::{Given, SettingError};
use crate::outbox::table_name::MAX_NAME_BYTES;
use crate::pg::shard::{MOST, SUFFIX_BYTES, Shard};

impl Reader<'_> {
    /// Which shard it is. What one cannot do beside others is refused.
    pub(super) fn shard(&self, args: &RunArgs, place: &Place) -> Result<Option<Shard>, ConfigError> {
        let Some(given) = self.layers.one("shard", args.shard.shard.as_deref())? else { return Ok(None) };
        let expected = || format!("I/N with N from 1 to {MOST} and I from 0 to N - 1: 0/3");
        let shard = given.text.parse().map_err(|_| given.invalid(expected(), None))?;
        fits(place, &given)?;
        if self.layers.is_on("setup", args.setup.as_deref())? {
            return Err(SettingError::Usage {
                message: format!("{}: one shard does not set up the others", given.origin),
                hint: "once, before any of them runs: walrelay setup --shards N --apply; then run without --setup"
                    .to_owned(),
            }
            .into());
        }
        if let Some(prefix) = self.layers.many("message-prefix", &args.rows.message_prefix).first() {
            return Err(SettingError::Usage {
                message: format!(
                    "{}: logical messages are in every slot, so each shard would publish them",
                    prefix.origin
                ),
                hint: "insert into the outbox table instead".to_owned(),
            }
            .into());
        }
        Ok(Some(shard))
    }

    /// Sees that existing rows are not asked for shard by shard.
    pub(super) fn no_shard(&self, args: &RunArgs) -> Result<(), ConfigError> {
        match self.layers.one("shard", args.shard.shard.as_deref())? {
            None => Ok(()),
            Some(given) => Err(SettingError::Usage {
                message: format!("{}: a shard's slot does not say which rows are older than it", given.origin),
                hint: "publish existing rows before: walrelay setup --apply --backfill, then walrelay setup --reshard N --apply".to_owned(),
            }
            .into()),
        }
    }

    /// How many shards there are to be.
    pub(super) fn shards(&self, args: &SetupShardsArgs, place: &Place) -> Result<Option<Shards>, ConfigError> {
        let (given, moves) = match (&args.shards, &args.reshard) {
            (Some(text), _) => (flag("--shards", text), false),
            (None, Some(text)) => (flag("--reshard", text), true),
            (None, None) => return Ok(None),
        };
        fits(place, &given)?;
        Ok(Some(Shards {
            count: count(&given)?,
            moves,
            key_column: self.optional_name("key-column", args.key_column.as_deref())?,
            id_column: self.name("id-column", args.id_column.as_deref())?,
        }))
    }
}

/// A number of shards.
pub(super) fn count(given: &Given) -> Result<u8, SettingError> {
    let count = given.text.trim().parse().ok().filter(|count| (1..=MOST).contains(count));
    count.ok_or_else(|| given.invalid(format!("a number of shards from 1 to {MOST}"), None))
}

/// Sees that the names of shards are no longer than Postgres takes.
fn fits(place: &Place, given: &Given) -> Result<(), ConfigError> {
    let most = MAX_NAME_BYTES - SUFFIX_BYTES;
    let long = [&place.publication, &place.slot].into_iter().find(|name| name.len() > most);
    match long {
        None => Ok(()),
        Some(name) => Err(SettingError::Usage {
            message: format!("{}: \"{name}\" is too long for names such as \"…_0_of_3\"", given.origin),
            hint: format!("--publication and --slot of at most {most} bytes"),
        }
        .into()),
    }
}

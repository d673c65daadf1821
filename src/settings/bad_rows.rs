//! The actions for rows that cannot be published.
//!
//! In: `--on-bad-row`, `--bad-row-at`, `--dead-letter-topic`. Out: the [`BadRowAction`] of a row by its position. Which rows are bad, and that
//! an action is decided before anything passes it, is the [`relay`](crate::relay)'s.

use super::read::SettingsReader;
use super::table::run::{BAD_ROW_ACTIONS, BAD_ROW_AT, DEAD_LETTER_TOPIC, ON_BAD_ROW};
use crate::lsn::Position;
use crate::relay::{BadRowAction, BadRows};
use crate::route::AddressRule;
use crate::setting_text::{Given, SettingError, nearest};
use crate::sink::destination::Kind;

/// The form of one row's action, for messages.
const ROW_AT: &str = "LSN:N=dead-letter or LSN:N=skip, as the stop's hint names it: 16/B374D848:3=skip";

impl SettingsReader<'_> {
    /// Reads them; `slot` names the default dead-letter topic, `kind` has the rule for another.
    pub(super) fn bad_rows(&self, slot: &str, kind: &Kind) -> Result<BadRows, SettingError> {
        let at = self.layers.many(&BAD_ROW_AT).iter().map(row_at).collect::<Result<_, _>>()?;
        Ok(BadRows {
            action: self.get(&ON_BAD_ROW)?,
            at,
            dead_letter_topic: self.dead_letter_topic(slot, kind.topics)?,
            readable: kind.can.dead_letters,
        })
    }

    /// Where dead-letter records of the relay of `slot` go.
    pub(super) fn dead_letter_topic(&self, slot: &str, addresses: &AddressRule) -> Result<String, SettingError> {
        match self.layers.one(&DEAD_LETTER_TOPIC)? {
            None => Ok(default_topic(slot, addresses)),
            Some(given) if addresses.check(&given.text).is_ok() => Ok(given.text),
            Some(given) => Err(given.invalid(addresses.expected, None)),
        }
    }
}

/// `SLOT.dead-letter`, or as near to that as the destination's names allow.
fn default_topic(slot: &str, addresses: &AddressRule) -> String {
    let usual = format!("{slot}.dead-letter");
    let other = format!("{slot}-dead-letter");
    if addresses.check(&usual).is_err() && addresses.check(&other).is_ok() { other } else { usual }
}

fn row_at(given: &Given) -> Result<(Position, BadRowAction), SettingError> {
    let parsed =
        given.text.trim().split_once('=').and_then(|(at, action)| Some((at.trim().parse().ok()?, action.trim())));
    let Some((position, text)) = parsed else { return Err(given.invalid(ROW_AT, None)) };
    let mut actions = BAD_ROW_ACTIONS.iter();
    let action =
        actions.find(|(name, action)| *name == text && *action != BadRowAction::Stop).map(|(_, action)| *action);
    action.map(|action| (position, action)).ok_or_else(|| {
        let near = nearest(text, ["dead-letter", "skip"]).map(|action| format!("{position}={action}"));
        given.invalid(ROW_AT, near)
    })
}

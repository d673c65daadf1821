//! The forms of values: how the text of a setting becomes a value of its type.
//!
//! In: a text, and where it was given. Out: a value in its range, or the error that names the setting. What a value means beside other
//! settings is not known here.

use crate::http::{HttpAddress, nearest_http};
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::outbox::table_name::is_name;
use crate::setting_text::{Given, SettingError, nearest, units};
use crate::settings::names;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// How a text becomes a value: a function, or one of the types here.
pub(crate) trait Form<T> {
    fn parse(&self, given: &Given) -> Result<T, SettingError>;

    /// The words that shells and the manual offer.
    fn words(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

impl<T, F: Fn(&Given) -> Result<T, SettingError>> Form<T> for F {
    fn parse(&self, given: &Given) -> Result<T, SettingError> {
        self(given)
    }
}

/// One of some words, with its meaning.
pub(super) struct Words<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy> Form<T> for Words<T> {
    fn parse(&self, given: &Given) -> Result<T, SettingError> {
        let text = given.text.trim().to_ascii_lowercase();
        if let Some((_, value)) = self.0.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let names = self.words();
        let nearest = nearest(&text, names.iter().copied());
        Err(given.invalid(names.join(", "), nearest.map(str::to_owned)))
    }

    fn words(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

/// A quantity with a unit, with both ends.
pub(super) struct Within<T> {
    least: T,
    most: T,
    read: fn(&str) -> Result<T, units::UnitError>,
    expected: &'static str,
    range: &'static str,
}

/// A duration. `range` is the end of the sentence that says what is expected.
pub(super) const fn duration(least: Duration, most: Duration, range: &'static str) -> Within<Duration> {
    Within { least, most, read: units::duration, expected: units::DURATION, range }
}

/// A duration of any length.
pub(super) const ANY_DURATION: Within<Duration> = duration(Duration::ZERO, Duration::MAX, "");

/// A size in bytes.
pub(super) const fn size(least: usize, most: usize, range: &'static str) -> Within<usize> {
    Within { least, most, read: units::size, expected: units::SIZE, range }
}

impl<T: Ord> Form<T> for Within<T> {
    fn parse(&self, given: &Given) -> Result<T, SettingError> {
        let invalid = |suggestion| given.invalid(format!("{}{}", self.expected, self.range), suggestion);
        let quantity = (self.read)(&given.text).map_err(|error| invalid(error.suggestion))?;
        if (&self.least..=&self.most).contains(&&quantity) { Ok(quantity) } else { Err(invalid(None)) }
    }
}

/// A whole number, with both ends and what is expected.
pub(super) struct Number<T>(pub(super) T, pub(super) T, pub(super) &'static str);

impl<T: FromStr + Ord> Form<T> for Number<T> {
    fn parse(&self, given: &Given) -> Result<T, SettingError> {
        let Self(least, most, expected) = self;
        let number = given.text.trim().parse().ok().filter(|number| (least..=most).contains(&number));
        number.ok_or_else(|| given.invalid(*expected, None))
    }
}

/// Any text, with where it was given.
#[allow(clippy::unnecessary_wraps, reason = "it is a form, as the others are")]
pub(super) fn any(given: &Given) -> Result<Given, SettingError> {
    Ok(given.clone())
}

/// A text that is not blank, with where it was given.
pub(super) fn not_blank(given: &Given) -> Result<Given, SettingError> {
    if given.text.trim().is_empty() { Err(given.invalid("a text that is not empty", None)) } else { Ok(given.clone()) }
}

/// `true` or `false`.
pub(super) fn on_or_off(given: &Given) -> Result<bool, SettingError> {
    match given.text.trim().to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err(given.invalid("true or false", None)),
    }
}

/// Rows a second, at least one: `500` or `500/s`.
pub(super) fn rate(given: &Given) -> Result<NonZeroU32, SettingError> {
    let text = given.text.as_str();
    let rows = text.trim().strip_suffix("/s").unwrap_or(text).trim().parse().ok();
    rows.ok_or_else(|| given.invalid("a number of rows a second, at least 1: 500 or 500/s", None))
}

/// The name of a column, a publication or a role, as it was typed.
pub(crate) fn name(given: &Given) -> Result<String, SettingError> {
    if is_name(&given.text) { Ok(given.text.clone()) } else { Err(given.invalid(names::NAME, None)) }
}

/// The name of a column, or an empty text: there is to be no such column, whatever the table has.
pub(super) fn name_or_empty(given: &Given) -> Result<String, SettingError> {
    if given.text.is_empty() { Ok(given.text.clone()) } else { name(given) }
}

/// The name of a slot.
pub(super) fn slot(given: &Given) -> Result<String, SettingError> {
    if names::is_slot(&given.text) {
        return Ok(given.text.clone());
    }
    Err(given.invalid(names::SLOT, names::nearest_slot(&given.text)))
}

/// A table.
pub(super) fn table(given: &Given) -> Result<TableName, SettingError> {
    TableName::parse(&given.text).ok_or_else(|| given.invalid(names::TABLE, None))
}

/// A position in the WAL.
pub(super) fn lsn(given: &Given) -> Result<Lsn, SettingError> {
    given.text.parse().map_err(|_| given.invalid("a WAL position such as 16/B374D848", None))
}

/// The address of the HTTP server; `None`: it is off.
pub(super) fn http(given: &Given) -> Result<Option<HttpAddress>, SettingError> {
    if given.text.trim().eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    let address = HttpAddress::parse(&given.text).map(Some);
    address.ok_or_else(|| given.invalid(names::HTTP, nearest_http(&given.text)))
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A filter of log lines. A misspelt level is refused: `tracing` would take it for the name of a target, and log nothing.
pub(super) struct Filter;

impl Form<String> for Filter {
    fn parse(&self, given: &Given) -> Result<String, SettingError> {
        let expected = "error, warn, info, debug, trace, off, or a filter such as info,walrelay::relay=debug";
        let parsed = EnvFilter::builder().parse(&given.text);
        let misspelt = given.text.split(',').map(str::trim).find_map(misspelt_level);
        if parsed.is_err() || misspelt.is_some() || given.text.trim().is_empty() {
            let nearest = misspelt.or_else(|| nearest(&given.text, LEVELS)).map(str::to_owned);
            return Err(given.invalid(expected, nearest));
        }
        Ok(given.text.clone())
    }

    fn words(&self) -> Vec<&'static str> {
        LEVELS.into_iter().filter(|level| *level != "off").collect()
    }
}

/// The level that the user probably meant by a word that is none.
fn misspelt_level(directive: &str) -> Option<&'static str> {
    let is_word = !directive.is_empty() && directive.bytes().all(|byte| byte.is_ascii_alphabetic());
    let known = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(directive));
    if is_word && !known { nearest(directive, LEVELS) } else { None }
}

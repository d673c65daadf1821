//! Durations and sizes as people write them.
//!
//! In: `200us`, `30s`, `5min`, `7d`, `0`; `16MiB`, `64kB`, `1000000`. Out: a [`Duration`], bytes; and bytes as
//! people read them.
//! A number without a unit is bytes; a duration has a unit, or is 0: one forgotten unit would change it a thousandfold.

use std::time::Duration;

/// The form of a duration, for messages.
pub const DURATION: &str = "a whole number and one of us, ms, s, min, h, d (200us, 30s, 5min), or 0";

/// The form of a size, for messages.
pub const SIZE: &str = "a whole number and one of kB, MB, GB (by 1000), KiB, MiB, GiB (by 1024) or none (bytes)";

/// Units of time, in microseconds.
const TIMES: [(&str, u64); 8] = [
    ("us", 1),
    ("µs", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("sec", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// Units of size, in bytes, in lower case: nobody means a bit.
const SIZES: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1_000),
    ("kb", 1_000),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
];

/// A text that is no duration or no size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitError {
    /// The text that the user probably meant.
    pub suggestion: Option<String>,
}

/// Reads a duration.
///
/// # Errors
/// No whole number, an unknown or missing unit, or more than 2^64 microseconds.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split(text).ok_or(UnitError { suggestion: None })?;
    if number == 0 && unit.is_empty() {
        return Ok(Duration::ZERO);
    }
    let micros = lookup(&TIMES, unit).ok_or_else(|| UnitError { suggestion: suggest_time(number, unit) })?;
    number.checked_mul(micros).map(Duration::from_micros).ok_or(UnitError { suggestion: None })
}

/// Reads a size, in bytes.
///
/// # Errors
/// No whole number, an unknown unit, or more than can be addressed.
pub fn size(text: &str) -> Result<usize, UnitError> {
    let (number, unit) = split(text).ok_or(UnitError { suggestion: None })?;
    let bytes = lookup(&SIZES, &unit.to_ascii_lowercase()).and_then(|bytes| number.checked_mul(bytes));
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(UnitError { suggestion: None })
}

fn lookup(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor)
}

/// Digits, and the unit behind them; a space between them is allowed.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit.trim_start()))
}

fn suggest_time(number: u64, unit: &str) -> Option<String> {
    match unit.to_lowercase().as_str() {
        "" => Some(format!("{number}s or {number}ms")),
        "m" | "mins" | "minute" | "minutes" => Some(format!("{number}min")),
        "secs" | "second" | "seconds" => Some(format!("{number}s")),
        "hr" | "hour" | "hours" => Some(format!("{number}h")),
        "day" | "days" => Some(format!("{number}d")),
        lower => TIMES.iter().find(|(name, _)| *name == lower).map(|(name, _)| format!("{number}{name}")),
    }
}

/// Bytes to one decimal: `0 B`, `1.2 MiB`.
pub fn bytes(count: u64) -> String {
    let (mut rest, mut tenths, mut unit) = (count, count.saturating_mul(10), "B");
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if rest < 1024 {
            break;
        }
        (rest, tenths, unit) = (rest / 1024, tenths / 1024, larger);
    }
    if unit == "B" { format!("{count} B") } else { format!("{}.{} {unit}", tenths / 10, tenths % 10) }
}

/// With a comma after each three digits: `100,000`.
pub fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_have_a_unit_or_are_zero() {
        for (text, micros) in [
            ("200us", 200),
            ("200µs", 200),
            ("5ms", 5_000),
            ("30s", 30_000_000),
            ("5min", 300_000_000),
            ("2h", 7_200_000_000),
            ("7d", 604_800_000_000),
            ("0", 0),
            ("0s", 0),
            (" 8 s ", 8_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_gets_a_suggestion_where_one_can_be_guessed() {
        for (text, suggestion) in [
            ("30", Some("30s or 30ms")),
            ("5m", Some("5min")),
            ("5S", Some("5s")),
            ("2 hours", Some("2h")),
            ("", None),
            ("-1s", None),
            ("1.5s", None),
            ("5parsecs", None),
            ("99999999999999999999s", None),
            ("999999999999999d", None),
        ] {
            assert_eq!(duration(text), Err(UnitError { suggestion: suggestion.map(str::to_owned) }), "{text}");
        }
    }

    #[test]
    fn sizes_are_by_1000_without_and_by_1024_with_an_i() {
        for (text, bytes) in [
            ("1000000", 1_000_000),
            ("64k", 64_000),
            ("64kB", 64_000),
            ("64KiB", 65_536),
            ("16MiB", 16 << 20),
            ("16MB", 16_000_000),
            ("1 GiB", 1 << 30),
            ("7B", 7),
            ("0", 0),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "MiB", "16 MiBs", "-1", "1.5MiB", "99999999999999999999", "99999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _read = (duration(&text), size(&text));
        }

        #[test]
        fn no_number_with_any_unit_panics(number in any::<u64>(), unit in "[a-zA-Zµ]{0,3}") {
            let text = format!("{number}{unit}");
            let _read = (duration(&text), size(&text));
        }
    }
}

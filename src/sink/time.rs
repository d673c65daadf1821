//! Times as NATS writes them.
//!
//! In: a text. Out: its time. Reads no clock. Specification: ISO 8601; Howard Hinnant, "chrono-Compatible Low-Level Date
//! Algorithms", for days.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// Parses a time such as `2026-11-22T18:30:05Z`, with or without a fraction. `None`: the text is no time since 1970.
pub(super) fn of_extended(text: &str) -> Option<SystemTime> {
    let text = text.trim().strip_suffix('Z').or_else(|| text.trim().strip_suffix("+00:00"))?;
    let (date, of_day) = text.split_once('T')?;
    let numbers =
        |text: &str, by: char| text.split(by).map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let of_day = of_day.split('.').next()?;
    match (numbers(date, '-')?.as_slice(), numbers(of_day, ':')?.as_slice()) {
        (&[year @ 1970..=9999, month @ 1..=12, day @ 1..=31], &[hours @ 0..24, minutes @ 0..60, seconds @ 0..=60]) => {
            let seconds = days(year, month, day) * DAY + hours * 3600 + minutes * 60 + seconds;
            Some(UNIX_EPOCH + Duration::from_secs(seconds))
        }
        _ => None,
    }
}

/// The days since 1970-01-01. The algorithm begins years in March, so that a leap day is the last of its year.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00.123Z"),
            (1_795_372_205, "2026-11-22T18:30:05Z"),
            (4_107_542_399, "2100-02-28T23:59:59+00:00"),
        ] {
            assert_eq!(of_extended(text), Some(UNIX_EPOCH + Duration::from_secs(seconds)));
        }
        for text in
            ["", "2026-11-22", "2026-11-22T18:30:05", "2026-13-22T18:30:05Z", "1066-10-14T09:00:00Z", "a-b-cTd:e:fZ"]
        {
            assert_eq!(of_extended(text), None, "{text}");
        }
    }
}

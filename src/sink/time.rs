//! Times as AWS and NATS write them.
//!
//! In: a time, or its text. Out: the other. Reads no clock. Specification: ISO 8601; Howard Hinnant, "chrono-Compatible Low-Level Date
//! Algorithms", for days and civil dates.

#![cfg_attr(
    not(any(feature = "kafka", feature = "sqs")),
    allow(dead_code, reason = "only AWS' signatures have times in their other form")
)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// As `20261122T183005Z`.
pub(super) fn basic(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(seconds / DAY);
    let of_day = seconds % DAY;
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Of `2026-11-22T18:30:05Z`, with or without a fraction; `None`: it is none since 1970.
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

/// Days since 1970-01-01. Years begin in March here, so that the odd day is their last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

/// Year, month and day of so many days since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_and_read() {
        for (seconds, text, extended) in [
            (0, "19700101T000000Z", "1970-01-01T00:00:00Z"),
            (951_782_400, "20000229T000000Z", "2000-02-29T00:00:00.123Z"),
            (1_795_372_205, "20261122T183005Z", "2026-11-22T18:30:05Z"),
            (4_107_542_399, "21000228T235959Z", "2100-02-28T23:59:59+00:00"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!((basic(time).as_str(), of_extended(extended)), (text, Some(time)));
        }
        for text in
            ["", "2026-11-22", "2026-11-22T18:30:05", "2026-13-22T18:30:05Z", "1066-10-14T09:00:00Z", "a-b-cTd:e:fZ"]
        {
            assert_eq!(of_extended(text), None, "{text}");
        }
    }
}

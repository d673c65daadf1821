//! Parses and writes points in time.
//!
//! In: `2025-11-21 09:08:07.654321+00` as `DateStyle=ISO` writes it (also with `T` and `Z`), or an integer: milliseconds since 1970.
//! Out: milliseconds since 1970. A time without a zone counts as UTC. Times are written by RFC 3339, in UTC.
//! Specification: PostgreSQL manual, section 8.5.2 "Date/Time Output"; RFC 3339, section 5.6.

use std::io::Write as _;

/// Milliseconds since 1970-01-01 UTC, rounded down. `None` if the text is not a time (`infinity`), or if no record can have it: before
/// 1970, or in its first millisecond, which librdkafka takes for "now".
pub(super) fn unix_millis(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let millis = text.parse().ok().or_else(|| timestamp_millis(text))?;
    (millis > 0).then_some(millis)
}

fn timestamp_millis(text: &str) -> Option<i64> {
    if text.ends_with(" BC") {
        return None;
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let (time, offset_seconds) = match time.find(['+', '-', 'Z']) {
        Some(at) => time.split_at_checked(at).and_then(|(time, offset)| Some((time, offset_seconds(offset)?)))?,
        None => (time, 0),
    };
    let (seconds, millis) = match time.split_once('.') {
        Some((whole, fraction)) => (time_of_day_seconds(whole)?, fraction_millis(fraction)?),
        None => (time_of_day_seconds(time)?, 0),
    };
    let (year, month, day) = date_parts(date)?;
    let days = days_from_civil(year, month, day)?;
    let seconds = days.checked_mul(86_400)?.checked_add(seconds - offset_seconds)?;
    seconds.checked_mul(1000)?.checked_add(millis)
}

/// Parses `+05:30`, `-03` or `Z`.
fn offset_seconds(text: &str) -> Option<i64> {
    match text.split_at_checked(1)? {
        ("Z", "") => Some(0),
        ("+", rest) => clock_seconds(rest),
        ("-", rest) => clock_seconds(rest).map(|seconds| -seconds),
        _ => None,
    }
}

fn time_of_day_seconds(text: &str) -> Option<i64> {
    (text.len() == 8).then(|| clock_seconds(text)).flatten()
}

/// Parses `HH`, `HH:MM` or `HH:MM:SS`.
fn clock_seconds(text: &str) -> Option<i64> {
    let mut seconds = 0;
    for (index, part) in text.split(':').enumerate() {
        let (unit, limit) = *[(3600, 24), (60, 59), (1, 60)].get(index)?;
        let value = digits(part).filter(|value| part.len() == 2 && *value <= limit)?;
        seconds += value * unit;
    }
    Some(seconds)
}

/// Parses the first three digits after the decimal point.
fn fraction_millis(text: &str) -> Option<i64> {
    digits(text)?;
    let padded = format!("{text:0<3}");
    digits(padded.get(..3)?)
}

pub(super) fn digits(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The year, the month and the day of a date such as `2025-11-21`.
pub(super) fn date_parts(date: &str) -> Option<(i64, i64, i64)> {
    let mut parts = date.split('-').map(digits);
    let date = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(date)
}

/// Days since 1970-01-01 in the Gregorian calendar, counted in eras of 400 years that begin on the first of March of year 0, the year
/// before year 1. `None`: there is no such month or day, or neither Postgres nor Java's driver has the year.
pub(super) fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    const DAYS_PER_ERA: i64 = 146_097;
    const DAYS_FROM_FIRST_ERA_TO_1970: i64 = 719_468;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(-5000..=300_000_000).contains(&year) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let months_since_march = (month + 9) % 12;
    let day_of_year = (153 * months_since_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * DAYS_PER_ERA + day_of_era - DAYS_FROM_FIRST_ERA_TO_1970)
}

/// Writes milliseconds since 1970-01-01 UTC as `2025-11-21T09:08:07.654Z`.
pub(crate) fn push_rfc3339(out: &mut Vec<u8>, unix_millis: i64) {
    let (days, millis) = (unix_millis.div_euclid(86_400_000), unix_millis.rem_euclid(86_400_000));
    let (year, month, day) = civil_from_days(days);
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    // Writing to a vector does not fail.
    drop(write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"));
}

/// The inverse of [`days_from_civil`]: year, month, day.
pub(super) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    const DAYS_PER_ERA: i64 = 146_097;
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 { months_since_march + 3 } else { months_since_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_reads_as_the_same_time(millis in 1_i64..253_402_300_800_000) {
            let mut text = Vec::new();
            push_rfc3339(&mut text, millis);
            prop_assert_eq!(unix_millis(&text), Some(millis), "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn a_time_is_written_in_utc_with_milliseconds() {
        let mut text = Vec::new();
        push_rfc3339(&mut text, 1_763_716_087_654);
        assert_eq!(String::from_utf8_lossy(&text), "2025-11-21T09:08:07.654Z");
    }

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(unix_millis(text.as_bytes()), expected, "{text}");
    }

    #[test]
    fn timestamps_read_as_postgres_writes_them() {
        check("1970-01-01 00:00:00.001", Some(1));
        check("2000-01-01 00:00:00", Some(946_684_800_000));
        check("2025-11-21 09:08:07.654321", Some(1_763_716_087_654));
        check("2025-11-21 09:08:07.6", Some(1_763_716_087_600));
        check("2024-02-29 23:59:59.999999+00", Some(1_709_251_199_999));
        check("9999-12-31 23:59:59", Some(253_402_300_799_000));
        check("12345-01-01 00:00:00", Some(327_403_382_400_000));
    }

    #[test]
    fn zones_are_taken_off() {
        check("2025-11-21 09:08:07+05:30", Some(1_763_696_287_000));
        check("2025-11-21 09:08:07-03", Some(1_763_726_887_000));
        check("1970-01-01 00:19:33+00:19:32", Some(1000));
        check("2025-11-21T09:08:07.5Z", Some(1_763_716_087_500));
    }

    #[test]
    fn integers_are_milliseconds() {
        check("1", Some(1));
        check("1763716087654", Some(1_763_716_087_654));
        check("-1", None);
        check("9223372036854775808", None);
    }

    #[test]
    fn what_no_record_can_carry_is_no_time() {
        for text in [
            "0",
            "1970-01-01 00:00:00",
            "infinity",
            "-infinity",
            "1969-12-31 23:59:59.999",
            "0044-03-15 00:00:00 BC",
            "",
            "2025-11-21",
        ] {
            check(text, None);
        }
        for text in ["2025-13-01 00:00:00", "2025-01-32 00:00:00", "2025-01-01 00:00", "2025-01-01 00:00:00.x"] {
            check(text, None);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9TZ:+. BC-]{0,40}") {
            prop_assert!(unix_millis(text.as_bytes()).is_none_or(|millis| millis > 0));
        }
    }
}

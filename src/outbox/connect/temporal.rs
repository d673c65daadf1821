//! Reads dates, times and intervals from Postgres' text, as Debezium does.
//!
//! In: text with `DateStyle=ISO`, `IntervalStyle=postgres`, `TimeZone=UTC`, which the connection sets. Out: numbers since the epoch or
//! midnight, or ISO 8601 texts. `None` if the text has another form. Infinities and extreme values follow Java's arithmetic, in which
//! numbers saturate or wrap around.
//! Specification: Debezium's PostgreSQL connector, "Temporal types"; PostgreSQL manual, section 8.5.

use super::super::time::{self, digits};
use super::number;

/// The unit of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Millis,
    Micros,
    Nanos,
}

impl Unit {
    /// A number of microseconds below a day, in this unit. Finer digits are cut off.
    const fn of_micros(self, micros: i64) -> i64 {
        match self {
            Self::Millis => micros.div_euclid(1000),
            Self::Micros => micros,
            Self::Nanos => micros * 1000,
        }
    }

    /// A point in time in this unit, in Java's arithmetic: milliseconds and microseconds saturate with the seconds, and the sum wraps
    /// around. `None`: the nanoseconds do not fit into 64 bits.
    fn of_instant(self, Instant { seconds, micros }: Instant) -> Option<i64> {
        let (per_second, rest) = (self.of_micros(MICROS_PER_SECOND), self.of_micros(micros));
        match self {
            Self::Millis | Self::Micros => Some(seconds.saturating_mul(per_second).wrapping_add(rest)),
            Self::Nanos => i64::try_from(i128::from(seconds) * i128::from(per_second) + i128::from(rest)).ok(),
        }
    }
}

/// Seconds since 1970, and microseconds from 0 to below a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instant {
    seconds: i64,
    micros: i64,
}

/// The instant that Java's driver has for infinity.
const INFINITY: Instant = Instant { seconds: 9_223_372_036_825, micros: 200_000 };
const MINUS_INFINITY: Instant = Instant { seconds: -9_223_372_036_833, micros: 600_000 };

/// The days that Debezium has for infinity: its date, cut to 32 bits.
const INFINITY_DAYS: i64 = -2_147_472_692;
const MINUS_INFINITY_DAYS: i64 = -2_147_472_691;

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// A date as days since 1970.
pub(super) fn days(text: &str) -> Option<i64> {
    match text {
        "infinity" => Some(INFINITY_DAYS),
        "-infinity" => Some(MINUS_INFINITY_DAYS),
        _ => {
            let (date, before_christ) = era(text);
            finite_days(date, before_christ)
        }
    }
}

fn finite_days(date: &str, before_christ: bool) -> Option<i64> {
    let (year, month, day) = time::date_parts(date)?;
    time::days_from_civil(if before_christ { 1 - year } else { year }, month, day)
}

/// The text without its ` BC`, and whether it had one.
fn era(text: &str) -> (&str, bool) {
    text.strip_suffix(" BC").map_or((text, false), |text| (text, true))
}

/// A time of day since midnight.
pub(super) fn time_of_day(text: &str, unit: Unit) -> Option<i64> {
    clock_micros(text).map(|micros| unit.of_micros(micros))
}

/// `HH:MM:SS` with up to six digits of a second, in microseconds.
fn clock_micros(text: &str) -> Option<i64> {
    let (clock, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = clock.split(':').map(digits);
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() || hours > 24 || minutes > 59 || seconds > 60 || fraction.len() > 6 {
        return None;
    }
    let fraction = digits(&format!("{fraction:0<6}"))?;
    Some(((hours * 60 + minutes) * 60 + seconds) * MICROS_PER_SECOND + fraction)
}

/// The time since 1970 of a timestamp without a zone, which counts as UTC. `Some(None)`: Debezium cannot convert it.
#[allow(clippy::option_option, reason = "what is not read, and what Debezium does not convert, are not the same")]
pub(super) fn timestamp(text: &str, unit: Unit) -> Option<Option<i64>> {
    Some(match (text, unit) {
        ("infinity", Unit::Nanos) => Some(i64::MAX),
        ("-infinity", Unit::Nanos) => Some(i64::MIN),
        ("infinity", Unit::Millis | Unit::Micros) => unit.of_instant(INFINITY),
        ("-infinity", Unit::Millis | Unit::Micros) => unit.of_instant(MINUS_INFINITY),
        _ => {
            let (text, before_christ) = era(text);
            let (date, clock) = text.split_once(' ')?;
            let days = finite_days(date, before_christ)?;
            let micros = clock_micros(clock)?;
            let seconds = days.checked_mul(SECONDS_PER_DAY)?.checked_add(micros / MICROS_PER_SECOND)?;
            unit.of_instant(Instant { seconds, micros: micros % MICROS_PER_SECOND })
        }
    })
}

/// A timestamp with a zone in ISO 8601, with as many digits of a second as its column has. 0: as many as it needs.
pub(super) fn zoned_timestamp(text: &str, fraction_digits: usize) -> Option<String> {
    if ["infinity", "-infinity"].contains(&text) {
        return Some(text.to_owned());
    }
    let (text, before_christ) = era(text);
    let (date, clock) = text.strip_suffix("+00")?.split_once(' ')?;
    clock_micros(clock)?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let fraction = match fraction_digits {
        0 => fraction.to_owned(),
        width => format!("{fraction:0<width$}"),
    };
    let point = if fraction.is_empty() { "" } else { "." };
    Some(format!("{}T{clock}{point}{fraction}Z", signed_date(date, before_christ)?))
}

/// The date, with a sign if its year does not have four digits, or is before year 1.
fn signed_date(date: &str, before_christ: bool) -> Option<String> {
    let (year, rest) = date.split_once('-')?;
    let year = digits(year)?;
    finite_days(date, false)?;
    Some(format!("{}-{rest}", iso_year(if before_christ { 1 - year } else { year })))
}

fn iso_year(year: i64) -> String {
    match year {
        0..=9999 => format!("{year:04}"),
        10_000.. => format!("+{year}"),
        _ => format!("-{:04}", year.abs()),
    }
}

/// A time of day with a zone, in UTC: `13:51:30.123Z`.
pub(super) fn zoned_time(text: &str) -> Option<String> {
    let at = text.find(['+', '-'])?;
    let (clock, offset) = text.split_at_checked(at)?;
    let micros = clock_micros(clock)?;
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let mut parts = offset.get(1..)?.split(':').map(digits);
    let seconds = parts.next()?? * 3600 + parts.next().unwrap_or(Some(0))? * 60 + parts.next().unwrap_or(Some(0))?;
    Some(clock_text(micros - sign * seconds * MICROS_PER_SECOND))
}

/// The microseconds of a day as `HH:MM:SS.ffffff`.
fn clock_text(micros: i64) -> String {
    let micros = micros.rem_euclid(SECONDS_PER_DAY * MICROS_PER_SECOND);
    let (second, fraction) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
    let fraction = format!("{fraction:06}");
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{:02}:{:02}:{:02}{point}{fraction}Z", second / 3600, second / 60 % 60, second % 60)
}

/// A time of day in an array. There, Java's driver has milliseconds, and 24:00 is 00:00.
pub(super) fn time_in_array(text: &str, unit: Unit) -> Option<i64> {
    let millis = Unit::Millis.of_micros(clock_micros(text)?) % (SECONDS_PER_DAY * 1000);
    Some(unit.of_micros(millis * 1000))
}

/// A time of day in an array, in ISO 8601.
pub(super) fn iso_time_in_array(text: &str) -> Option<String> {
    time_in_array(text, Unit::Micros).map(clock_text)
}

/// The year, month and day of a date in an array. There, Java's driver skips the ten days that the Gregorian calendar skipped, and has
/// years before Christ without their sign.
fn date_in_array(text: &str) -> Option<(i64, i64, i64)> {
    match text {
        "infinity" => return Some((292_278_994, 8, 16)),
        "-infinity" => return Some((292_269_055, 12, 2)),
        _ => {}
    }
    let (date, _) = era(text);
    finite_days(date, false)?;
    Some(match time::date_parts(date)? {
        (1582, 10, day @ 5..=14) => (1582, 10, day + 10),
        fields => fields,
    })
}

/// A timestamp in an array, in the Gregorian calendar. Java's driver reads dates before 15 October 1582 in the Julian calendar.
pub(super) fn in_gregorian(text: &str) -> Option<String> {
    const FIRST_GREGORIAN: i64 = -141_427;
    let (plain, before_christ) = era(text);
    let Some((date, clock)) = plain.split_once(' ') else { return Some(text.to_owned()) };
    let own = finite_days(date, before_christ)?;
    if own >= FIRST_GREGORIAN {
        return Some(text.to_owned());
    }
    let (year, month, day) = time::civil_from_days(own);
    let (year, month, day) = time::civil_from_days(julian_days(year, month, day));
    let (year, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    Some(format!("{year:04}-{month:02}-{day:02} {clock}{era}"))
}

/// Days from 1970-01-01 of a date in the Julian calendar, whose year 0 is the one before year 1.
fn julian_days(year: i64, month: i64, day: i64) -> i64 {
    const FROM_MARCH_OF_4801_BC_TO_1970: i64 = 2_472_671;
    let january_or_february = i64::from(month <= 2);
    let (year, month) = (year + 4800 - january_or_february, month + 12 * january_or_february - 3);
    day + (153 * month + 2) / 5 + 365 * year + year.div_euclid(4) - FROM_MARCH_OF_4801_BC_TO_1970
}

/// The days since 1970 of a date in an array, cut to 32 bits. `Some(None)`: there is no such day.
#[allow(clippy::option_option, clippy::cast_possible_truncation, reason = "as for timestamps; Java cuts it, too")]
pub(super) fn days_in_array(text: &str) -> Option<Option<i64>> {
    let (year, month, day) = date_in_array(text)?;
    Some(days_of(year, month, day).map(|days| i64::from(days as i32)))
}

/// A date in an array, in ISO 8601.
#[allow(clippy::option_option, reason = "as for days")]
pub(super) fn iso_date_in_array(text: &str) -> Option<Option<String>> {
    let (year, month, day) = date_in_array(text)?;
    Some(days_of(year, month, day).map(|_| format!("{}-{month:02}-{day:02}Z", iso_year(year))))
}

/// A timestamp with a zone in an array. Its date is read like any date in an array.
#[allow(clippy::option_option, reason = "as for days")]
pub(super) fn zoned_timestamp_in_array(text: &str, fraction_digits: usize) -> Option<Option<String>> {
    if text == "infinity" {
        return Some(Some(text.to_owned()));
    }
    let (plain, _) = era(text);
    let (date, clock) = if text == "-infinity" { (text, "23:00:00+00") } else { plain.split_once(' ')? };
    let (year, month, day) = date_in_array(date)?;
    let Some(_) = days_of(year, month, day) else { return Some(None) };
    zoned_timestamp(&format!("{year:04}-{month:02}-{day:02} {clock}"), fraction_digits).map(Some)
}

/// The days since 1970. `None`: there is no such day.
fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    let days = time::days_from_civil(year, month, day)?;
    (time::civil_from_days(days) == (year, month, day)).then_some(days)
}

/// A date in ISO 8601.
pub(super) fn iso_date(text: &str) -> Option<String> {
    let (date, before_christ) = era(text);
    match text {
        "infinity" => Some("-5877611-06-21Z".to_owned()),
        "-infinity" => Some("-5877611-06-22Z".to_owned()),
        _ => signed_date(date, before_christ).map(|date| format!("{date}Z")),
    }
}

/// A time of day in ISO 8601. 24:00 becomes 00:00.
pub(super) fn iso_time(text: &str) -> Option<String> {
    clock_micros(text).map(clock_text)
}

/// A timestamp without a zone in ISO 8601. It counts as UTC.
pub(super) fn iso_timestamp(text: &str) -> Option<String> {
    match text {
        "infinity" => Some("+294247-01-10T04:00:25.2Z".to_owned()),
        "-infinity" => Some("-290308-12-21T19:59:27.6Z".to_owned()),
        _ => match text.strip_suffix(" BC") {
            Some(text) => zoned_timestamp(&format!("{text}+00 BC"), 0),
            None => zoned_timestamp(&format!("{text}+00"), 0),
        },
    }
}

/// The parts of an interval. Each may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Interval {
    years: i64,
    months: i64,
    days: i64,
    hours: i64,
    minutes: i64,
    seconds: f64,
}

impl Interval {
    /// Parses `1 year 2 mons -3 days +04:05:06.7`. Java's driver turns an infinite interval into one of length zero.
    fn parse(text: &str) -> Option<Self> {
        let mut interval = Self::default();
        if matches!(text, "infinity" | "-infinity") {
            return Some(interval);
        }
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            if word.contains(':') {
                interval.clock(word)?;
                continue;
            }
            let number = word.parse().ok()?;
            match words.next()?.trim_end_matches('s') {
                "year" => interval.years = number,
                "mon" => interval.months = number,
                "day" => interval.days = number,
                _ => return None,
            }
        }
        Some(interval)
    }

    fn clock(&mut self, word: &str) -> Option<()> {
        let negative = word.starts_with('-');
        let mut parts = word.trim_start_matches(['-', '+']).split(':');
        let (hours, minutes) = (digits(parts.next()?)?, digits(parts.next()?)?);
        let seconds = parts.next()?.parse::<f64>().ok()?;
        let sign = if negative { -1 } else { 1 };
        (self.hours, self.minutes) = (sign * hours, sign * minutes);
        self.seconds = if negative { -seconds } else { seconds };
        Some(())
    }
}

/// An interval in microseconds, with months of 30.4375 days, in Java's arithmetic.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "Java's own arithmetic, in doubles")]
pub(super) fn interval_micros(text: &str) -> Option<i64> {
    const DAYS_PER_MONTH: f64 = 365.25 / 12.0;
    let Interval { years, months, days, hours, minutes, seconds } = Interval::parse(text)?;
    let days = (years * 12 + months) as f64 * DAYS_PER_MONTH + days as f64;
    let seconds = ((days * 24.0 + hours as f64) * 60.0 + minutes as f64) * 60.0 + seconds;
    Some((seconds * 1e6) as i64)
}

/// `P1Y2M-3DT4H5M6.7S`.
pub(super) fn interval_text(text: &str) -> Option<String> {
    let Interval { years, months, days, hours, minutes, seconds } = Interval::parse(text)?;
    let seconds = number::Decimal::parse(&format!("{seconds:.6}"))?.stripped().text();
    Some(format!("P{years}Y{months}M{days}DT{hours}H{minutes}M{seconds}S"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dates_are_days() {
        for (text, expected) in [
            ("1970-01-01", Some(0)),
            ("2025-11-21", Some(20_413)),
            ("1969-12-31", Some(-1)),
            ("0001-01-01", Some(-719_162)),
            ("0001-12-31 BC", Some(-719_163)),
            ("4713-01-01 BC", Some(-2_440_550)),
            ("5874897-12-31", Some(2_145_042_905)),
            ("infinity", Some(-2_147_472_692)),
            ("-infinity", Some(-2_147_472_691)),
            ("2025-13-01", None),
            ("x", None),
        ] {
            assert_eq!(days(text), expected, "{text}");
        }
    }

    #[test]
    fn times_of_day_are_since_midnight() {
        assert_eq!(time_of_day("13:51:30.123456", Unit::Micros), Some(49_890_123_456));
        assert_eq!(time_of_day("13:51:30.123", Unit::Millis), Some(49_890_123));
        assert_eq!(time_of_day("00:00:01", Unit::Nanos), Some(1_000_000_000));
        assert_eq!(time_of_day("24:00:00", Unit::Micros), Some(86_400_000_000));
        assert_eq!(time_of_day("1:2", Unit::Micros), None);
    }

    #[test]
    fn arrays_have_times_to_milliseconds_and_dates_of_the_gregorian_calendar() {
        assert_eq!(time_in_array("10:00:00.123456", Unit::Micros), Some(36_000_123_000));
        assert_eq!(time_in_array("24:00:00", Unit::Millis), Some(0));
        assert_eq!(days_in_array("1582-10-15"), Some(Some(-141_427)));
        assert_eq!(days_in_array("infinity"), Some(Some(-622_191_234)));
        assert_eq!(days_in_array("-infinity"), Some(Some(-625_821_272)));
        assert_eq!(iso_date_in_array("1582-10-14"), Some(Some("1582-10-24Z".to_owned())));
        assert_eq!(iso_date_in_array("0044-03-15 BC"), Some(Some("0044-03-15Z".to_owned())));
        assert_eq!(iso_date_in_array("0045-02-29 BC"), Some(None));
        assert_eq!(in_gregorian("1500-01-01 01:02:03.456789").as_deref(), Some("1500-01-10 01:02:03.456789"));
        assert_eq!(in_gregorian("0044-03-15 00:00:00 BC").as_deref(), Some("0044-03-13 00:00:00 BC"));
        assert_eq!(in_gregorian("1582-10-15 00:00:00").as_deref(), Some("1582-10-15 00:00:00"));
        let zoned = |text| zoned_timestamp_in_array(text, 6).flatten();
        assert_eq!(zoned("0044-03-15 01:02:03+00 BC").as_deref(), Some("0044-03-15T01:02:03.000000Z"));
        assert_eq!(zoned("-infinity").as_deref(), Some("+292269055-12-02T23:00:00.000000Z"));
        assert_eq!(days_in_array("x"), None);
    }

    #[test]
    fn iso_texts_have_their_zone_and_no_more_digits_than_they_need() {
        assert_eq!(iso_date("2024-02-29").as_deref(), Some("2024-02-29Z"));
        assert_eq!(iso_date("0044-03-15 BC").as_deref(), Some("-0043-03-15Z"));
        assert_eq!(iso_time("24:00:00").as_deref(), Some("00:00:00Z"));
        assert_eq!(iso_time("13:51:30.1200").as_deref(), Some("13:51:30.12Z"));
        assert_eq!(iso_timestamp("2025-11-21 09:08:07.65").as_deref(), Some("2025-11-21T09:08:07.65Z"));
        assert_eq!(iso_timestamp("0044-03-15 00:00:00 BC").as_deref(), Some("-0043-03-15T00:00:00Z"));
    }

    #[test]
    fn timestamps_are_since_the_epoch() {
        let last = "294276-12-31 23:59:59.999999";
        for (text, unit, expected) in [
            ("2025-11-21 09:08:07.654321", Unit::Micros, Some(1_763_716_087_654_321)),
            ("2025-11-21 09:08:07.654", Unit::Millis, Some(1_763_716_087_654)),
            ("1969-12-31 23:59:59.5", Unit::Millis, Some(-500)),
            ("infinity", Unit::Micros, Some(9_223_372_036_825_200_000)),
            ("-infinity", Unit::Millis, Some(-9_223_372_036_832_400)),
            ("infinity", Unit::Nanos, Some(i64::MAX)),
            ("-infinity", Unit::Nanos, Some(i64::MIN)),
            (last, Unit::Millis, Some(9_224_318_015_999_999)),
            (last, Unit::Micros, Some(-9_223_372_036_853_775_810)),
            (last, Unit::Nanos, None),
            ("4713-01-01 00:00:00 BC", Unit::Micros, Some(-210_863_520_000_000_000)),
        ] {
            assert_eq!(timestamp(text, unit), Some(expected), "{text}");
        }
        assert_eq!(timestamp("2025-11-21", Unit::Micros), None);
    }

    #[test]
    fn timestamps_with_a_zone_are_iso_8601_with_their_columns_digits() {
        let of = |text, digits| zoned_timestamp(text, digits);
        assert_eq!(of("2025-11-21 09:08:07.65+00", 6).as_deref(), Some("2025-11-21T09:08:07.650000Z"));
        assert_eq!(of("2025-11-21 09:08:07+00", 6).as_deref(), Some("2025-11-21T09:08:07.000000Z"));
        assert_eq!(of("2025-11-21 09:08:07.654+00", 3).as_deref(), Some("2025-11-21T09:08:07.654Z"));
        assert_eq!(of("2025-11-21 09:08:07+00", 0).as_deref(), Some("2025-11-21T09:08:07Z"));
        assert_eq!(of("12345-01-01 00:00:00+00", 0).as_deref(), Some("+12345-01-01T00:00:00Z"));
        assert_eq!(of("0044-03-15 00:00:00+00 BC", 0).as_deref(), Some("-0043-03-15T00:00:00Z"));
        assert_eq!(of("infinity", 6).as_deref(), Some("infinity"));
        assert_eq!(of("2025-11-21 09:08:07+01", 6), None);
    }

    #[test]
    fn times_with_a_zone_are_in_utc() {
        assert_eq!(zoned_time("13:51:30.5+02").as_deref(), Some("11:51:30.5Z"));
        assert_eq!(zoned_time("00:30:00+05:30").as_deref(), Some("19:00:00Z"));
        assert_eq!(zoned_time("23:00:00-03").as_deref(), Some("02:00:00Z"));
        assert_eq!(zoned_time("24:00:00+00").as_deref(), Some("00:00:00Z"));
        assert_eq!(zoned_time("24:00:00-05").as_deref(), Some("05:00:00Z"));
    }

    #[test]
    fn intervals_are_microseconds_or_iso_8601() {
        for (text, micros, iso) in [
            ("00:00:00", 0, "P0Y0M0DT0H0M0S"),
            ("1 day", 86_400_000_000, "P0Y0M1DT0H0M0S"),
            ("1 year 2 mons 3 days 04:05:06.789", 37_091_106_789_000, "P1Y2M3DT4H5M6.789S"),
            ("-1 days +02:03:00", -79_020_000_000, "P0Y0M-1DT2H3M0S"),
            ("-00:00:01.5", -1_500_000, "P0Y0M0DT0H0M-1.5S"),
            ("1 mon", 2_629_800_000_000, "P0Y1M0DT0H0M0S"),
        ] {
            assert_eq!(interval_micros(text), Some(micros), "{text}");
            assert_eq!(interval_text(text).as_deref(), Some(iso), "{text}");
        }
        assert_eq!(interval_micros("1 fortnight"), None);
        assert_eq!(
            (interval_micros("infinity"), interval_text("-infinity").as_deref()),
            (Some(0), Some("P0Y0M0DT0H0M0S"))
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-+0-9:. BCTdaysmonye]{0,30}") {
            let _read = (days(&text), time_of_day(&text, Unit::Nanos), timestamp(&text, Unit::Nanos));
            let _read = (zoned_timestamp(&text, 6), zoned_time(&text), interval_micros(&text), interval_text(&text));
        }
    }
}

//! `bench`: what is measured, and with how much.
//!
//! In: the flags, which stand on the command line alone, and the settings of `run` that a measurement shares. Out: a
//! [`Request`] whose numbers are in range.

use super::cli::{BenchArgs, DestinationArgs, OperationArgs};
use super::error::ConfigError;
use super::read::{Bounds, Reader, flag};
use crate::commands::bench::{PayloadType, Request};
use crate::given::{SettingError, nearest, units};

/// Rows that a measurement writes at most: more is a mistake.
const MOST_ROWS: u64 = 1_000_000_000;

/// Bytes of a payload at most.
const MOST_PAYLOAD_BYTES: usize = 100 << 20;

/// What `--sink` may say: whether there is a destination.
const SINKS: [(&str, bool); 2] = [("kafka", true), ("null", false)];

impl Reader<'_> {
    pub(super) fn bench(&mut self, args: &BenchArgs) -> Result<Request, ConfigError> {
        let source = self.source(args.source.as_deref(), &args.password)?;
        let operation = OperationArgs {
            coalesce: args.coalesce.clone(),
            max_in_flight: args.max_in_flight.clone(),
            ..OperationArgs::default()
        };
        let limits = self.limits(&operation)?;
        let (to, brokers, property) = (args.to.clone(), args.brokers.clone(), args.property.clone());
        let wanted = DestinationArgs { to, brokers, property, delivery: None };
        let is_wanted = one_of("--sink", args.sink.as_deref(), &SINKS, true)?;
        let destination = is_wanted.then(|| self.destination(&wanted, limits.max_in_flight)).transpose()?;
        let types = [
            ("jsonb", PayloadType::Jsonb),
            ("json", PayloadType::Json),
            ("text", PayloadType::Text),
            ("bytea", PayloadType::Bytea),
        ];
        Ok(Request {
            source,
            destination,
            limits,
            rows: whole("--rows", args.rows.as_deref(), &bounds(200_000, 1, MOST_ROWS, ", at least 1"))?,
            payload_bytes: payload_bytes(args.payload_bytes.as_deref())?,
            payload_type: one_of("--payload-type", args.payload_type.as_deref(), &types, PayloadType::Jsonb)?,
            rows_per_transaction: whole(
                "--rows-per-transaction",
                args.rows_per_transaction.as_deref(),
                &bounds(10, 1, MOST_ROWS, ", at least 1"),
            )?,
            partitions: whole("--partitions", args.partitions.as_deref(), &bounds(12, 1, 10_000, ", 1 to 10000"))?,
            rate: whole("--rate", args.rate.as_deref(), &bounds(200, 1, 1_000_000, ", 1 to 1000000"))?,
            seconds: whole("--seconds", args.seconds.as_deref(), &bounds(10, 0, 86_400, ", at most 86400"))?,
            json: args.json,
        })
    }
}

const fn bounds<T>(default: T, least: T, most: T, range: &'static str) -> Bounds<T> {
    Bounds { default, least, most, range }
}

fn whole<T>(name: &str, typed: Option<&str>, bounds: &Bounds<T>) -> Result<T, SettingError>
where
    T: std::str::FromStr + Ord + Copy,
{
    let Some(text) = typed else { return Ok(bounds.default) };
    let number = text.trim().parse().ok().filter(|number| bounds.hold(number));
    number.ok_or_else(|| flag(name, text).invalid(format!("a whole number{}", bounds.range), None))
}

fn payload_bytes(typed: Option<&str>) -> Result<usize, SettingError> {
    let Some(text) = typed else { return Ok(300) };
    let size = units::size(text).ok().filter(|size| (1..=MOST_PAYLOAD_BYTES).contains(size));
    size.ok_or_else(|| flag("--payload-bytes", text).invalid(format!("{}, at most 100MiB", units::SIZE), None))
}

fn one_of<T: Copy>(name: &str, typed: Option<&str>, values: &[(&str, T)], default: T) -> Result<T, SettingError> {
    let Some(text) = typed else { return Ok(default) };
    let found = values.iter().find(|(known, _)| known.eq_ignore_ascii_case(text.trim())).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names = values.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        flag(name, text).invalid(names.join(", "), nearest(text, names.iter().copied()).map(str::to_owned))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_with_the_flags_name() {
        assert_eq!(whole("--rows", None, &bounds(7u64, 1, 9, "")).unwrap(), 7);
        assert_eq!(whole("--rows", Some("9"), &bounds(7u64, 1, 9, "")).unwrap(), 9);
        for text in ["0", "10", "-1", "many"] {
            let error = whole("--rows", Some(text), &bounds(7u64, 1, 9, ", 1 to 9")).unwrap_err();
            assert!(error.to_string().contains("--rows"), "{error}");
        }
    }

    #[test]
    fn a_size_has_a_unit_or_is_bytes() {
        assert_eq!(payload_bytes(Some("10kB")).unwrap(), 10_000);
        assert!(payload_bytes(Some("0")).is_err() && payload_bytes(Some("1GiB")).is_err());
    }
}

//! `bench`: what is measured, and with how much.
//!
//! In: the layers, with the settings of `run` that a measurement shares. Out: a [`BenchRequest`] whose numbers are in range.

use super::read::{Bounds, SettingsReader, bounds};
use crate::commands::bench::{BenchRequest, PayloadType};
use crate::setting_text::SettingError;

/// Rows that a measurement writes at most: more is a mistake.
const MOST_ROWS: u64 = 1_000_000_000;

/// Bytes of a payload at most.
const MOST_PAYLOAD_BYTES: usize = 100 << 20;

/// The values of `--sink`: whether there is a destination.
const SINKS: [(&str, bool); 2] = [("kafka", true), ("null", false)];

const TYPES: [(&str, PayloadType); 4] = [
    ("jsonb", PayloadType::Jsonb),
    ("json", PayloadType::Json),
    ("text", PayloadType::Text),
    ("bytea", PayloadType::Bytea),
];

impl SettingsReader<'_> {
    pub(super) fn bench(&mut self, json: bool) -> Result<BenchRequest, SettingError> {
        let source = self.source()?;
        let limits = self.limits()?;
        let is_wanted = self.one_of("sink", &SINKS)?.unwrap_or(true);
        let destination = is_wanted.then(|| self.destination(limits.max_in_flight)).transpose()?;
        let at_least_one = |default| bounds(default, 1, MOST_ROWS, ", at least 1");
        Ok(BenchRequest {
            source,
            destination,
            limits,
            rows: self.whole("rows", &at_least_one(200_000))?,
            payload_bytes: self.size("payload-bytes", &bounds(300, 1, MOST_PAYLOAD_BYTES, ", at most 100MiB"))?,
            payload_type: self.one_of("payload-type", &TYPES)?.unwrap_or(PayloadType::Jsonb),
            rows_per_transaction: self.whole("rows-per-transaction", &at_least_one(10))?,
            partitions: self.whole("partitions", &bounds(12, 1, 10_000, ", 1 to 10000"))?,
            rate: self.whole("rate", &bounds(200, 1, 1_000_000, ", 1 to 1000000"))?,
            seconds: self.whole("seconds", &bounds(10, 0, 86_400, ", at most 86400"))?,
            json,
        })
    }

    fn whole<T: std::str::FromStr + Ord + Copy>(&self, flag: &str, bounds: &Bounds<T>) -> Result<T, SettingError> {
        let Some(given) = self.layers.one(flag)? else { return Ok(bounds.default) };
        let number = given.text.trim().parse().ok().filter(|number| bounds.hold(number));
        number.ok_or_else(|| given.invalid(format!("a whole number{}", bounds.range), None))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cli::FlagValues;
    use super::super::layers::Layers;
    use super::*;
    use crate::pg::source::Environment;

    fn read(flag: &str, value: &str) -> Result<BenchRequest, SettingError> {
        let environment = Environment::default();
        let flags = FlagValues::default().with("source", "host=h user=u").with("sink", "null").with(flag, value);
        let layers = Layers::open(flags, &environment)?;
        SettingsReader { layers, warnings: Vec::new() }.bench(false)
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_flags_name() {
        assert_eq!(read("rows", "9").unwrap().rows, 9);
        assert_eq!(read("rows", " 9").unwrap().rate, 200);
        for text in ["0", "1000000001", "-1", "many"] {
            let error = read("rows", text).unwrap_err();
            assert!(error.to_string().contains("--rows"), "{error}");
        }
    }

    #[test]
    fn a_size_has_a_unit_or_is_bytes() {
        assert_eq!(read("payload-bytes", "10kB").unwrap().payload_bytes, 10_000);
        assert!(read("payload-bytes", "0").is_err() && read("payload-bytes", "1GiB").is_err());
    }
}

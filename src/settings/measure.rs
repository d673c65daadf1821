//! `bench`: what is measured, and with how much.
//!
//! In: the layers, with the settings of `run` that a measurement shares. Out: a [`BenchRequest`] whose numbers are in range.

use super::read::SettingsReader;
use super::table::others::bench as flags;
use crate::commands::bench::BenchRequest;
use crate::setting_text::SettingError;

impl SettingsReader<'_> {
    pub(super) fn bench(&mut self) -> Result<BenchRequest, SettingError> {
        let source = self.source()?;
        let limits = self.limits()?;
        let is_wanted = self.get(&flags::SINK)?;
        let destination = is_wanted.then(|| self.destination(limits.max_in_flight)).transpose()?;
        Ok(BenchRequest {
            source,
            destination,
            limits,
            rows: self.get(&flags::ROWS)?,
            payload_bytes: self.get(&flags::PAYLOAD_BYTES)?,
            payload_type: self.get(&flags::PAYLOAD_TYPE)?,
            rows_per_transaction: self.get(&flags::ROWS_PER_TRANSACTION)?,
            partitions: self.get(&flags::PARTITIONS)?,
            rate: self.get(&flags::RATE)?,
            seconds: self.get(&flags::SECONDS)?,
            json: self.get(&flags::JSON)?,
        })
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
        SettingsReader { layers, warnings: Vec::new() }.bench()
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

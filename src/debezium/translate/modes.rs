//! Translates how Debezium reads columns, before a converter gets them.

use super::Translator;
use crate::outbox::connect::{BinaryMode, DecimalMode, HstoreMode, IntervalMode, TimePrecision};

impl Translator {
    pub(super) fn modes(&mut self) {
        self.mode("time.precision.mode", &TIMES, |this, mode| this.out.connect.modes.time = mode);
        self.mode("decimal.handling.mode", &DECIMALS, |this, mode| this.out.connect.modes.decimal = mode);
        self.mode("binary.handling.mode", &BINARIES, |this, mode| this.out.connect.modes.binary = mode);
        self.mode("interval.handling.mode", &INTERVALS, |this, mode| this.out.connect.modes.interval = mode);
        self.mode("hstore.handling.mode", &HSTORES, |this, mode| this.out.connect.modes.hstore = mode);
        self.mode("event.converting.failure.handling.mode", &FAILURES, |this, fails| {
            this.out.connect.fail_on_conversion = fails;
        });
        self.money_digits();
        if let Some(prefix) = self.configuration.connector.take_filled("topic.prefix") {
            prefix.text.trim().clone_into(&mut self.out.connect.schemas.prefix);
            self.not_needed(&prefix, "the router names topics without it; it shows only in the names of schemas");
        }
    }

    fn money_digits(&mut self) {
        let Some(value) = self.configuration.connector.take_filled("money.fraction.digits") else { return };
        match value.text.trim().parse::<u8>() {
            Ok(digits) => {
                self.out.connect.modes.money_digits = i32::from(digits);
                self.not_needed(&value, "honoured in keys, headers and envelopes; it has no flag");
            }
            Err(_) => self.refuse(&value, format!("\"{}\" is not a number from 0 to 255", value.text.trim())),
        }
    }

    fn mode<T: Copy>(&mut self, key: &str, words: &[(&str, T)], set: impl FnOnce(&mut Self, T)) {
        let Some(value) = self.configuration.connector.take_filled(key) else { return };
        if let Some(mode) = self.one_of(&value, words) {
            set(self, mode);
            self.not_needed(&value, "honoured in keys, headers and envelopes; it has no flag");
        }
    }
}

const TIMES: [(&str, TimePrecision); 6] = [
    ("adaptive", TimePrecision::Adaptive),
    ("adaptive_time_microseconds", TimePrecision::AdaptiveTimeMicroseconds),
    ("connect", TimePrecision::Connect),
    ("microseconds", TimePrecision::Microseconds),
    ("nanoseconds", TimePrecision::Nanoseconds),
    ("isostring", TimePrecision::IsoString),
];

const DECIMALS: [(&str, DecimalMode); 3] =
    [("precise", DecimalMode::Precise), ("double", DecimalMode::Double), ("string", DecimalMode::Text)];

const BINARIES: [(&str, BinaryMode); 4] = [
    ("bytes", BinaryMode::Bytes),
    ("base64", BinaryMode::Base64),
    ("base64-url-safe", BinaryMode::Base64UrlSafe),
    ("hex", BinaryMode::Hex),
];

const HSTORES: [(&str, HstoreMode); 2] = [("json", HstoreMode::Json), ("map", HstoreMode::Map)];

/// Whether a value that cannot be converted ends the task.
const FAILURES: [(&str, bool); 3] = [("warn", false), ("skip", false), ("fail", true)];

const INTERVALS: [(&str, IntervalMode); 2] = [("numeric", IntervalMode::Numeric), ("string", IntervalMode::Text)];

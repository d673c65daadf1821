//! The settings for records as Kafka Connect writes them with Debezium's outbox router.
//!
//! The reader of a Debezium configuration creates these values, and the rest of this folder uses them. They have no flags: only the
//! files of `--from-debezium` can set them.
//! Specification: Debezium's "Outbox Event Router" and PostgreSQL connector, Kafka Connect's converters.

use crate::outbox::{List, TablePatterns};

/// How columns become keys, values and headers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own in the files")]
pub struct Connect {
    /// The converter of the record's key.
    pub key: Converter,
    /// The converter of the record's value.
    pub value: Converter,
    /// The converter of each header's value.
    pub header: Converter,
    /// The modes that decide on a column's type and value before a converter gets it.
    pub modes: Modes,
    /// How a text payload with a JSON object or array is expanded. `None`: it stays a text.
    pub expand: Option<Expand>,
    /// Whether a header or envelope column may be missing in a table. It is then left out. Else it is an error.
    pub skip_missing: bool,
    /// Whether all tables must have the same columns of the envelope, if some may be missing.
    pub alike_envelopes: bool,
    /// Whether a header with a null value is left out, as by Debezium Server. Kafka Connect writes it as null.
    pub skip_null_headers: bool,
    /// `event.converting.failure.handling.mode=fail`: a value that cannot be converted ends the run. Else it becomes null.
    pub fail_on_conversion: bool,
    /// The names of schemas, if a converter writes them.
    pub schemas: Schemas,
    /// `column.include.list`, `column.exclude.list`, well-formed: for the records, the table has no columns that are not captured.
    /// Empty: all columns are captured.
    pub columns: Vec<(List, String)>,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            key: Converter::Text,
            value: Converter::Text,
            header: Converter::Simple,
            modes: Modes::default(),
            expand: None,
            skip_missing: false,
            alike_envelopes: false,
            skip_null_headers: false,
            fail_on_conversion: false,
            schemas: Schemas::default(),
            columns: Vec::new(),
        }
    }
}

impl Connect {
    /// The columns that are captured.
    pub fn captured(&self) -> TablePatterns {
        let mut patterns = TablePatterns::default();
        for (list, text) in &self.columns {
            // The expressions were parsed when the settings were read, so they are well-formed.
            drop(patterns.add(*list, text));
        }
        patterns
    }

    /// See [`Connect::alike_envelopes`].
    pub const fn wants_alike_envelopes(&self) -> bool {
        self.alike_envelopes
    }

    /// See [`Connect::skip_missing`].
    pub const fn skips_missing(&self) -> bool {
        self.skip_missing
    }

    /// Whether a converter writes schemas. Schemas need details that rows do not have.
    pub fn writes_schemas(&self) -> bool {
        [&self.key, &self.value, &self.header].into_iter().any(Converter::writes_schemas)
    }
}

/// Turns a column's value into bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Converter {
    /// `StringConverter`: Java's `toString`.
    Text,
    /// `SimpleHeaderConverter`: text, with bytes in base64 and lists that look like JSON.
    Simple,
    /// `JsonConverter`.
    Json(Json),
    /// `ByteArrayConverter`, `BinaryDataConverter`: bytes as they are.
    Bytes {
        /// The converter of values that are not bytes. `None`: such a value is an error.
        other: Option<Box<Self>>,
    },
}

impl Converter {
    /// Whether it writes schemas.
    pub fn writes_schemas(&self) -> bool {
        match self {
            Self::Json(json) => json.schemas,
            Self::Bytes { other: Some(other) } => other.writes_schemas(),
            Self::Text | Self::Simple | Self::Bytes { other: None } => false,
        }
    }
}

/// `JsonConverter`'s settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Json {
    /// `schemas.enable`: `{"schema":…,"payload":…}`.
    pub schemas: bool,
    /// `decimal.format=NUMERIC`. Else decimals are bytes in base64.
    pub numeric_decimals: bool,
}

/// The modes that decide on a column's type and value before a converter gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes {
    /// `time.precision.mode`.
    pub time: TimePrecision,
    /// `decimal.handling.mode`.
    pub decimal: DecimalMode,
    /// `binary.handling.mode`.
    pub binary: BinaryMode,
    /// `interval.handling.mode`.
    pub interval: IntervalMode,
    /// `hstore.handling.mode`.
    pub hstore: HstoreMode,
    /// `money.fraction.digits`: the digits after the point of a precise amount of money.
    pub money_digits: i32,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            time: TimePrecision::default(),
            decimal: DecimalMode::default(),
            binary: BinaryMode::default(),
            interval: IntervalMode::default(),
            hstore: HstoreMode::default(),
            money_digits: 2,
        }
    }
}

/// `hstore.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HstoreMode {
    /// A text that is a JSON object.
    #[default]
    Json,
    /// A structure.
    Map,
}

/// `time.precision.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimePrecision {
    /// Milliseconds for up to three digits of a second, else microseconds. Dates are days.
    #[default]
    Adaptive,
    /// As `Adaptive`, but times of day are always microseconds.
    AdaptiveTimeMicroseconds,
    /// Kafka Connect's own types: milliseconds.
    Connect,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
    /// Texts in ISO 8601.
    IsoString,
}

/// `decimal.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DecimalMode {
    /// Java's `BigDecimal`, as bytes.
    #[default]
    Precise,
    /// A double.
    Double,
    /// A text.
    Text,
}

/// `binary.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BinaryMode {
    /// Bytes.
    #[default]
    Bytes,
    /// A text in base64.
    Base64,
    /// A text in base64 with `-` and `_`.
    Base64UrlSafe,
    /// A text of hex digits.
    Hex,
}

/// `interval.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IntervalMode {
    /// Microseconds. A month has 30.4375 days.
    #[default]
    Numeric,
    /// `P1Y2M3DT4H5M6.7S`.
    Text,
}

/// The settings for the members of an expanded JSON payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expand {
    /// `table.json.payload.null.behavior=optional_bytes`: members that are null stay.
    pub keep_nulls: bool,
}

/// The names of schemas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schemas {
    /// `topic.prefix`.
    pub prefix: String,
    /// `table.field.event.schema.version`: an integer column with the version of an envelope's schema.
    pub version_column: Option<String>,
}

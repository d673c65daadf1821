//! Reads a column's text as a value.
//!
//! In: Postgres' text (for a bytea, bytes), and the type's reader. Out: a [`ConnectValue`]. It is [`ConnectValue::Nothing`] if Debezium
//! cannot convert the value and leaves it out. There is `None` if the value ends Debezium's task, or if walrelay does not know its
//! form.
//! Specification: Debezium's `PostgresValueConverter`, `SpecialValueDecimal`; the arrays of Java's driver.

use super::array::{self, Element};
use super::number::Decimal;
use super::special_types;
use super::temporal::{self, Unit};
use super::value::{self, ConnectValue};
use crate::outbox::connect::{BinaryMode, DecimalMode, HstoreMode, IntervalMode};
use crate::wire::Hex;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use std::borrow::Cow;

/// How a type's text (for a bytea, its bytes) is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TypeReader {
    Boolean,
    Integer,
    Float,
    Double,
    Text,
    Bytes(BinaryMode),
    Days,
    TimeOfDay(Unit),
    Timestamp(Unit),
    /// `time.precision.mode=isostring`.
    IsoDate,
    IsoTime,
    IsoTimestamp,
    ZonedTimestamp {
        fraction_digits: usize,
    },
    ZonedTime,
    Interval(IntervalMode),
    /// A decimal. Without a scale, each value has its own.
    Decimal {
        mode: DecimalMode,
        scale: Option<i32>,
    },
    Money {
        mode: DecimalMode,
        /// `money.fraction.digits`.
        digits: i32,
    },
    /// One bit, which is a boolean.
    Bit,
    Bits,
    Point,
    Hstore(HstoreMode),
    /// Debezium has no value for any text.
    Nothing,
    List {
        element: Box<Self>,
        /// Whether one null element makes the whole value null.
        required: bool,
    },
}

impl TypeReader {
    /// Whether the value is the text itself.
    pub(super) const fn is_text(&self) -> bool {
        matches!(self, Self::Text)
    }

    /// Reads the value. `None`: it cannot be read.
    pub(super) fn read<'a>(&self, bytes: &'a [u8]) -> Option<ConnectValue<'a>> {
        if let Self::Bytes(mode) = self {
            return Some(binary(bytes, *mode));
        }
        if self.is_text() {
            return Some(ConnectValue::Text(Cow::Borrowed(bytes)));
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let owned = |text: String| ConnectValue::Text(Cow::Owned(text.into_bytes()));
        Some(match self {
            Self::Boolean => ConnectValue::Boolean(matches!(text, "t" | "true")),
            Self::Integer => ConnectValue::Integer(text.parse().ok()?),
            Self::Float => ConnectValue::Float(text.parse().ok()?),
            Self::Double => ConnectValue::Double(text.parse().ok()?),
            Self::Days => ConnectValue::Integer(temporal::days(text)?),
            Self::TimeOfDay(unit) => ConnectValue::Integer(temporal::time_of_day(text, *unit)?),
            Self::Timestamp(unit) => {
                temporal::timestamp(text, *unit)?.map_or(ConnectValue::Nothing, ConnectValue::Integer)
            }
            Self::IsoDate => owned(temporal::iso_date(text)?),
            Self::IsoTime => owned(temporal::iso_time(text)?),
            Self::IsoTimestamp => owned(temporal::iso_timestamp(text)?),
            Self::ZonedTimestamp { fraction_digits } => owned(temporal::zoned_timestamp(text, *fraction_digits)?),
            Self::ZonedTime => owned(temporal::zoned_time(text)?),
            Self::Interval(IntervalMode::Numeric) => ConnectValue::Integer(temporal::interval_micros(text)?),
            Self::Interval(IntervalMode::Text) => owned(temporal::interval_text(text)?),
            Self::Decimal { mode, scale } => read_decimal(text, *mode, *scale)?,
            Self::Money { mode, digits } => read_money(text, *mode, *digits)?,
            Self::Bit => ConnectValue::Boolean(matches!(text, "1")),
            Self::Bits => ConnectValue::Bytes(Cow::Owned(special_types::bits(text)?)),
            Self::Point => special_types::point(text).map(|(x, y)| ConnectValue::Point(x, y))?,
            Self::Hstore(HstoreMode::Map) => ConnectValue::Map(special_types::hstore(text)?),
            Self::Hstore(HstoreMode::Json) => {
                ConnectValue::Text(Cow::Owned(value::members_json(&special_types::hstore(text)?)))
            }
            Self::Nothing => ConnectValue::Nothing,
            Self::List { element, required } => read_list(text, element, *required)?,
            Self::Text | Self::Bytes(_) => return None,
        })
    }
}

fn binary(bytes: &[u8], mode: BinaryMode) -> ConnectValue<'_> {
    let text = match mode {
        BinaryMode::Bytes => return ConnectValue::Bytes(Cow::Borrowed(bytes)),
        BinaryMode::Base64 => BASE64_STANDARD.encode(bytes),
        BinaryMode::Base64UrlSafe => BASE64_URL_SAFE.encode(bytes),
        BinaryMode::Hex => Hex(bytes).to_string(),
    };
    ConnectValue::Text(Cow::Owned(text.into_bytes()))
}

/// Reads a decimal. `NaN` and infinities have a form only as texts and doubles.
fn read_decimal(text: &str, mode: DecimalMode, scale: Option<i32>) -> Option<ConnectValue<'_>> {
    let special = is_special(text);
    Some(match (mode, scale) {
        (DecimalMode::Double, _) => ConnectValue::Double(text.parse().ok()?),
        (DecimalMode::Text, _) if special => ConnectValue::Text(Cow::Borrowed(special_name(text).as_bytes())),
        (DecimalMode::Precise, _) if special => ConnectValue::Nothing,
        (DecimalMode::Text, None) => ConnectValue::Text(Cow::Borrowed(text.as_bytes())),
        (DecimalMode::Text, Some(scale)) => {
            ConnectValue::Text(Cow::Owned(Decimal::parse(text)?.of_scale(scale).plain_text().into_bytes()))
        }
        (DecimalMode::Precise, None) => ConnectValue::VariableDecimal(Decimal::parse(text)?.stripped()),
        (DecimalMode::Precise, Some(scale)) => ConnectValue::Decimal(Decimal::parse(text)?.of_scale(scale)),
    })
}

fn is_special(text: &str) -> bool {
    matches!(text, "NaN" | "Infinity" | "-Infinity")
}

/// The names in Debezium's `SpecialValue`.
fn special_name(text: &str) -> &'static str {
    match text {
        "Infinity" => "POSITIVE_INFINITY",
        "-Infinity" => "NEGATIVE_INFINITY",
        _ => "NAN",
    }
}

fn read_money<'a>(text: &str, mode: DecimalMode, digits: i32) -> Option<ConnectValue<'a>> {
    let amount = special_types::money(text)?;
    Some(match mode {
        DecimalMode::Precise => ConnectValue::Decimal(amount.rounded(digits)),
        DecimalMode::Double => ConnectValue::Double(amount.plain_text().parse().ok()?),
        DecimalMode::Text => ConnectValue::Text(Cow::Owned(amount.plain_text().into_bytes())),
    })
}

fn read_list<'a>(text: &'a str, element: &TypeReader, required: bool) -> Option<ConnectValue<'a>> {
    let mut items = Vec::new();
    for item in array::elements(text)? {
        let value = match item {
            Element::Null if required => ConnectValue::Nothing,
            Element::Null => {
                items.push(None);
                continue;
            }
            // If a list comes where one value is expected, Debezium takes it for a null.
            Element::List if element.has_no_list() => {
                items.push(None);
                continue;
            }
            Element::List => return None,
            Element::Text(Cow::Borrowed(text)) => element.read_item(text)?,
            Element::Text(Cow::Owned(text)) => element.read_item(&text).map(owned)?,
        };
        match (&value, element) {
            // The nanoseconds do not fit into 64 bits.
            (ConnectValue::Nothing, TypeReader::Timestamp(_)) => items.push(None),
            (ConnectValue::Nothing, _) => return Some(ConnectValue::Nothing),
            _ => items.push(Some(value)),
        }
    }
    Some(ConnectValue::List(items))
}

impl TypeReader {
    /// Whether Debezium leaves out a list that comes instead of one value. For other types it writes the list's address in Java's
    /// memory.
    const fn has_no_list(&self) -> bool {
        matches!(
            self,
            Self::Boolean
                | Self::Integer
                | Self::Float
                | Self::Double
                | Self::Bytes(_)
                | Self::Decimal { .. }
                | Self::Days
                | Self::TimeOfDay(_)
                | Self::Timestamp(_)
                | Self::IsoDate
                | Self::IsoTime
                | Self::IsoTimestamp
                | Self::ZonedTimestamp { .. }
                | Self::ZonedTime
        )
    }

    /// Reads an element of an array. There, Java's driver has times of day to the millisecond, and 24:00 is 00:00.
    fn read_item<'a>(&self, text: &'a str) -> Option<ConnectValue<'a>> {
        let owned_text = |text: Option<String>| {
            text.map_or(ConnectValue::Nothing, |text| ConnectValue::Text(text.into_bytes().into()))
        };
        match self {
            Self::TimeOfDay(unit) => temporal::time_in_array(text, *unit).map(ConnectValue::Integer),
            Self::IsoTime => temporal::iso_time_in_array(text).map(|text| owned_text(Some(text))),
            Self::Days => {
                temporal::days_in_array(text).map(|days| days.map_or(ConnectValue::Nothing, ConnectValue::Integer))
            }
            Self::IsoDate => temporal::iso_date_in_array(text).map(owned_text),
            Self::Timestamp(unit) => {
                let value = temporal::timestamp(&temporal::in_gregorian(text)?, *unit)?;
                Some(value.map_or(ConnectValue::Nothing, ConnectValue::Integer))
            }
            Self::IsoTimestamp => {
                temporal::iso_timestamp(&temporal::in_gregorian(text)?).map(|text| owned_text(Some(text)))
            }
            Self::ZonedTimestamp { fraction_digits } => {
                temporal::zoned_timestamp_in_array(text, *fraction_digits).map(owned_text)
            }
            Self::Decimal { .. } if is_special(text) => Some(ConnectValue::Nothing),
            Self::Bytes(mode) => Some(owned(binary(&unhex(text)?, *mode))),
            Self::Boolean
            | Self::Integer
            | Self::Float
            | Self::Double
            | Self::Text
            | Self::ZonedTime
            | Self::Interval(_)
            | Self::Decimal { .. }
            | Self::Money { .. }
            | Self::Bit
            | Self::Bits
            | Self::Point
            | Self::Hstore(_)
            | Self::Nothing
            | Self::List { .. } => self.read(text.as_bytes()),
        }
    }
}

/// Decodes `\x` and two hex digits for each byte.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?;
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

fn owned<'a>(value: ConnectValue<'_>) -> ConnectValue<'a> {
    match value {
        ConnectValue::Boolean(value) => ConnectValue::Boolean(value),
        ConnectValue::Integer(value) => ConnectValue::Integer(value),
        ConnectValue::Float(value) => ConnectValue::Float(value),
        ConnectValue::Double(value) => ConnectValue::Double(value),
        ConnectValue::Text(text) => ConnectValue::Text(Cow::Owned(text.into_owned())),
        ConnectValue::Bytes(bytes) => ConnectValue::Bytes(Cow::Owned(bytes.into_owned())),
        ConnectValue::Decimal(decimal) => ConnectValue::Decimal(decimal),
        ConnectValue::VariableDecimal(decimal) => ConnectValue::VariableDecimal(decimal),
        ConnectValue::Point(x, y) => ConnectValue::Point(x, y),
        ConnectValue::Map(members) => ConnectValue::Map(members),
        ConnectValue::Nothing => ConnectValue::Nothing,
        ConnectValue::List(items) => ConnectValue::List(items.into_iter().map(|item| item.map(owned)).collect()),
    }
}

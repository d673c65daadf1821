//! [`Lsn`]: a position in the write-ahead log. [`Position`]: a row's position in the stream.
//!
//! In: a 64-bit byte position, a row's number, or a text such as `16/B374D848` and `16/B374D848:3`. Out: order, distance, text. Nothing here
//! knows where a position came from; which one may be confirmed is the [`Ledger`](crate::positions::Ledger)'s question.
//! Specification: PostgreSQL manual, section 8.20 "pg_lsn Type".

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A byte position in the write-ahead log, in the order of the WAL. In JSON it is Postgres' text form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Lsn(u64);

impl Lsn {
    /// `0/0`: Postgres' "invalid" position, before every real one.
    pub const ZERO: Self = Self(0);

    /// The position `bytes` bytes after the beginning of the WAL.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes since the beginning of the WAL.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Bytes from `earlier` to here; 0 when `earlier` is not earlier.
    pub const fn distance_from(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Lsn> for String {
    fn from(lsn: Lsn) -> Self {
        lsn.to_string()
    }
}

impl TryFrom<String> for Lsn {
    type Error = ParseLsnError;

    fn try_from(text: String) -> Result<Self, ParseLsnError> {
        text.parse()
    }
}

/// The text is not a position such as `16/B374D848`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a WAL position: expected two hexadecimal numbers such as 16/B374D848")]
pub struct ParseLsnError(String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let half = |digits: &str| match digits.len() {
            1..=8 if digits.bytes().all(|b| b.is_ascii_hexdigit()) => u64::from_str_radix(digits, 16).ok(),
            _ => None,
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Self((half(high)? << 32) | half(low)?)))
            .ok_or_else(|| ParseLsnError(text.to_owned()))
    }
}

/// A row's position in the stream. Later rows have higher positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Begin's `final_lsn`.
    pub final_lsn: Lsn,
    /// The row's number in the transaction, from 0.
    pub ordinal: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.final_lsn, self.ordinal)
    }
}

/// The text is not a position such as `16/B374D848:3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a row's place such as 16/B374D848:3")]
pub struct ParsePositionError;

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, ParsePositionError> {
        let (lsn, ordinal) = text.split_once(':').ok_or(ParsePositionError)?;
        let final_lsn = lsn.parse().map_err(|_| ParsePositionError)?;
        let plain = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
        let ordinal = ordinal.parse().ok().filter(|_| plain).ok_or(ParsePositionError)?;
        Ok(Self { final_lsn, ordinal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_the_one_that_postgres_prints() {
        assert_eq!(Lsn::new(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!(Lsn::ZERO.to_string(), "0/0");
        assert_eq!("16/b374d848".parse(), Ok(Lsn::new(0x16_B374_D848)));
        assert_eq!("FFFFFFFF/FFFFFFFF".parse(), Ok(Lsn::new(u64::MAX)));
    }

    #[test]
    fn what_is_no_position_is_refused() {
        for text in ["", "/", "1", "1/", "/1", "1/2/3", "+1/2", "100000000/0", "0/G", " 0/1"] {
            assert!(text.parse::<Lsn>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn distance_never_wraps() {
        assert_eq!(Lsn::new(7).distance_from(Lsn::new(5)), 2);
        assert_eq!(Lsn::new(5).distance_from(Lsn::new(7)), 0);
    }

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let position = Position { final_lsn: Lsn::new(0x16_B374_D848), ordinal: 3 };
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in ["", "16/B374D848", "16/B374D848:", "16/B374D848:x", "16/B374D848:+1", ":1", "16:1"] {
            assert_eq!(text.parse::<Position>(), Err(ParsePositionError), "{text}");
        }
    }
}

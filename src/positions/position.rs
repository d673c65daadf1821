//! [`Position`]: a row's position in the stream.
//!
//! In: text such as `16/B374D848:3`. Out: the position, and the same text.

use crate::lsn::Lsn;
use std::fmt;
use std::str::FromStr;

/// A row's position in the stream. Later rows have higher positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
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

//! `Reader`: the one reader by which a number or a length is taken from bytes that a server sent.
//!
//! In: a message's bytes. Out: integers, strings and slices, or a [`DecodeError`] that names the offset.
//! Invariant: a length from the wire is compared with what is there before it is used; it never drives an allocation or
//! a loop. Copies nothing.
//! Specification: PostgreSQL manual, section 54.6 "Message Data Types" (network byte order, zero-terminated strings).

use crate::lsn::Lsn;
use std::fmt;
use std::ops::Deref;

/// Bytes of the offending message that an error shows.
const SHOWN_BYTES: usize = 48;

/// A message from the server that does not have the documented shape. Boxed: each value of each row is returned beside it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct DecodeError(Box<Malformed>);

/// A malformed message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed {message}: {fault} at offset {offset} of {length} bytes: {}", Hex(.head))]
pub struct Malformed {
    /// The structure that was being read, by the manual's name: `Insert`, `XLogData`.
    pub message: &'static str,
    /// Where in the message, in bytes from its first.
    pub offset: usize,
    /// How long the message is, in bytes.
    pub length: usize,
    /// The fault there.
    pub fault: DecodeFault,
    /// The first bytes of the message.
    pub head: Box<[u8]>,
}

impl Deref for DecodeError {
    type Target = Malformed;

    fn deref(&self) -> &Malformed {
        &self.0
    }
}

impl fmt::Debug for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The fault in a malformed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeFault {
    /// A value runs past the end.
    #[error("{wanted} bytes wanted, {left} left")]
    Truncated {
        /// Bytes that the value needs.
        wanted: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// A string has no terminating zero byte.
    #[error("string without its terminating zero byte")]
    Unterminated,
    /// A string that must be UTF-8 is not.
    #[error("text that is not UTF-8")]
    NotUtf8,
    /// A count or length is negative.
    #[error("negative length {0}")]
    Negative(i32),
    /// A tag byte that the manual does not list.
    #[error("unknown {what} {:?}", char::from(*.byte))]
    UnknownTag {
        /// The meaning of the byte.
        what: &'static str,
        /// The byte.
        byte: u8,
    },
    /// Bytes are left after the last value.
    #[error("{0} bytes too many")]
    Trailing(usize),
}

/// Bytes as hexadecimal digits.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A cursor over one message. `at <= bytes.len()` always.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    message: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, which errors call `message`.
    pub fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self { message, bytes, at: 0 }
    }

    /// An error at the current offset.
    #[cold]
    pub fn error(&self, fault: DecodeFault) -> DecodeError {
        DecodeError(Box::new(Malformed {
            message: self.message,
            offset: self.at,
            length: self.bytes.len(),
            fault,
            head: self.bytes.iter().copied().take(SHOWN_BYTES).collect(),
        }))
    }

    /// The bytes that have not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// [`DecodeFault::Truncated`] when fewer are left.
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest().split_at_checked(length) {
            Some((taken, _)) => {
                self.at += length;
                Ok(taken)
            }
            None => Err(self.error(DecodeFault::Truncated { wanted: length, left: self.rest().len() })),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.rest().first_chunk::<N>() {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => Err(self.error(DecodeFault::Truncated { wanted: N, left: self.rest().len() })),
        }
    }

    /// One byte.
    ///
    /// # Errors
    /// [`DecodeFault::Truncated`] when none is left; likewise for the other fixed-size values.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes.
    ///
    /// # Errors
    /// As [`Reader::u8`].
    #[inline]
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// As [`Reader::u8`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Four bytes, signed.
    ///
    /// # Errors
    /// As [`Reader::u8`].
    #[inline]
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    /// Eight bytes, signed.
    ///
    /// # Errors
    /// As [`Reader::u8`].
    #[inline]
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    /// Eight bytes: a WAL position.
    ///
    /// # Errors
    /// As [`Reader::u8`].
    #[inline]
    pub fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.array().map(u64::from_be_bytes).map(Lsn::new)
    }

    /// A 32-bit length, checked not to be negative.
    ///
    /// # Errors
    /// [`DecodeFault::Negative`], [`DecodeFault::Truncated`].
    #[inline]
    pub fn length(&mut self) -> Result<usize, DecodeError> {
        let length = self.i32()?;
        usize::try_from(length).map_err(|_| self.error(DecodeFault::Negative(length)))
    }

    /// A zero-terminated string of any bytes, without its zero.
    ///
    /// # Errors
    /// [`DecodeFault::Unterminated`].
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let rest = self.rest();
        let Some(end) = rest.iter().position(|&byte| byte == 0) else {
            return Err(self.error(DecodeFault::Unterminated));
        };
        self.at += end + 1;
        Ok(rest.get(..end).unwrap_or_default())
    }

    /// A zero-terminated UTF-8 string, without its zero.
    ///
    /// # Errors
    /// [`DecodeFault::Unterminated`], [`DecodeFault::NotUtf8`].
    pub fn string(&mut self) -> Result<&'a str, DecodeError> {
        let before = *self;
        std::str::from_utf8(self.bytes()?).map_err(|_| before.error(DecodeFault::NotUtf8))
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// [`DecodeFault::Trailing`].
    #[inline]
    pub fn end(&self) -> Result<(), DecodeError> {
        match self.rest().len() {
            0 => Ok(()),
            left => Err(self.error(DecodeFault::Trailing(left))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_past_the_end_is_an_error_that_says_where() {
        let mut reader = Reader::new("Begin", &[0, 0, 0, 9, 1]);
        assert_eq!(reader.length(), Ok(9));
        let error = reader.take(9).unwrap_err();
        assert_eq!(error.fault, DecodeFault::Truncated { wanted: 9, left: 1 });
        assert_eq!(error.to_string(), "malformed Begin: 9 bytes wanted, 1 left at offset 4 of 5 bytes: 0000000901");
    }

    #[test]
    fn a_negative_length_is_refused() {
        let error = Reader::new("Insert", &[0xFF; 4]).length().unwrap_err();
        assert_eq!(error.fault, DecodeFault::Negative(-1));
    }

    #[test]
    fn strings_end_at_their_zero_and_must_be_utf8() {
        let mut reader = Reader::new("Relation", b"ab\0c");
        assert_eq!(reader.string(), Ok("ab"));
        assert_eq!(reader.string().unwrap_err().fault, DecodeFault::Unterminated);
        assert_eq!(Reader::new("Relation", b"\xFF\0").string().unwrap_err().fault, DecodeFault::NotUtf8);
    }
}

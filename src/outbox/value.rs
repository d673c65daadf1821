//! Turns a column's value into the bytes of a record.
//!
//! In: a column in text or binary form, and its type's kind. Out: a [`Piece`]. It borrows from the message if that has the bytes. Else
//! (the hex of a bytea, binary numbers) it is in the [`Arena`], which each row uses again. This file does not validate what Postgres
//! has validated, and does not encode payloads again.
//! Specification: PostgreSQL manual, sections 8.4 "Binary Data Types" and 54.9.

use super::column_kind::ColumnKind;
use crate::pgoutput::TupleValue;
use crate::wire::{DecodeError, DecodeFault, Reader};
use std::io::Write;

/// The decoded bytes of a row's values. It is emptied before each row, and keeps its memory.
pub(super) type Arena = Vec<u8>;

/// A value: null, bytes of the message, or a range of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Null,
    Borrowed(&'a [u8]),
    /// From the first index up to before the second.
    Decoded(usize, usize),
}

impl<'a> Piece<'a> {
    /// The bytes. `None`: null.
    #[inline]
    pub(super) fn bytes<'s>(self, arena: &'s Arena) -> Option<&'s [u8]>
    where
        'a: 's,
    {
        match self {
            Self::Null => None,
            Self::Borrowed(bytes) => Some(bytes),
            Self::Decoded(start, end) => Some(arena.get(start..end).unwrap_or_default()),
        }
    }

    /// The piece that `write` appends to the arena.
    pub(super) fn written(arena: &mut Arena, write: impl FnOnce(&mut Arena)) -> Self {
        let start = arena.len();
        write(arena);
        Self::Decoded(start, arena.len())
    }
}

/// The text form of a boolean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Booleans {
    /// `t` and `f`, as Postgres writes them.
    Letters,
    /// `true` and `false`.
    Words,
}

/// The reason for which a value has no bytes.
#[derive(Debug)]
pub(super) enum ValueError {
    Undecodable(DecodeError),
    /// The value came in a binary form that walrelay does not know.
    BinaryForm,
}

impl From<DecodeError> for ValueError {
    fn from(error: DecodeError) -> Self {
        Self::Undecodable(error)
    }
}

/// The value's text, or a bytea's own bytes.
///
/// # Errors
/// The server sent something that it never sends for this type, or a binary form that walrelay does not know.
#[inline]
pub(super) fn piece<'a>(
    column: TupleValue<'a>,
    kind: ColumnKind,
    booleans: Booleans,
    arena: &mut Arena,
) -> Result<Piece<'a>, ValueError> {
    match column {
        TupleValue::Null => Ok(Piece::Null),
        TupleValue::Text(text) => match kind {
            ColumnKind::Bytea => Ok(bytea(text, arena)?),
            ColumnKind::Bool if booleans == Booleans::Words => Ok(boolean(text == b"t", booleans)),
            ColumnKind::Bool
            | ColumnKind::Int2
            | ColumnKind::Int4
            | ColumnKind::Int8
            | ColumnKind::Text
            | ColumnKind::Uuid
            | ColumnKind::Json
            | ColumnKind::Jsonb
            | ColumnKind::Timestamp
            | ColumnKind::Timestamptz
            | ColumnKind::Number
            | ColumnKind::Custom
            | ColumnKind::Other => Ok(Piece::Borrowed(text)),
        },
        TupleValue::Binary(bytes) => binary(bytes, kind, booleans, arena),
        TupleValue::Unchanged => Err(unchanged().into()),
    }
}

#[cold]
fn unchanged() -> DecodeError {
    Reader::new("Insert", b"u").error(DecodeFault::UnknownTag { what: "column kind in a new row", byte: b'u' })
}

const fn boolean(value: bool, booleans: Booleans) -> Piece<'static> {
    Piece::Borrowed(match (booleans, value) {
        (Booleans::Letters, true) => b"t",
        (Booleans::Letters, false) => b"f",
        (Booleans::Words, true) => b"true",
        (Booleans::Words, false) => b"false",
    })
}

fn binary<'a>(
    bytes: &'a [u8],
    kind: ColumnKind,
    booleans: Booleans,
    arena: &mut Arena,
) -> Result<Piece<'a>, ValueError> {
    let mut reader = Reader::new("binary value", bytes);
    let piece = match kind {
        ColumnKind::Bytea | ColumnKind::Text | ColumnKind::Json => return Ok(Piece::Borrowed(bytes)),
        ColumnKind::Jsonb => return jsonb(reader),
        ColumnKind::Bool => boolean(reader.u8()? != 0, booleans),
        ColumnKind::Int2 => number(i64::from(reader.u16()?.cast_signed()), arena),
        ColumnKind::Int4 => number(i64::from(reader.i32()?), arena),
        ColumnKind::Int8 => number(reader.i64()?, arena),
        ColumnKind::Uuid => uuid(reader.take(16)?, arena),
        ColumnKind::Timestamp
        | ColumnKind::Timestamptz
        | ColumnKind::Number
        | ColumnKind::Custom
        | ColumnKind::Other => {
            return Err(ValueError::BinaryForm);
        }
    };
    reader.end()?;
    Ok(piece)
}

/// Reads a version byte. The text comes after it.
fn jsonb(mut reader: Reader<'_>) -> Result<Piece<'_>, ValueError> {
    match reader.u8()? {
        1 => Ok(Piece::Borrowed(reader.rest())),
        byte => Err(reader.error(DecodeFault::UnknownTag { what: "jsonb version", byte }).into()),
    }
}

fn number(value: i64, arena: &mut Arena) -> Piece<'static> {
    // Writing to a vector does not fail.
    Piece::written(arena, |arena| write!(arena, "{value}").unwrap_or_default())
}

fn uuid(bytes: &[u8], arena: &mut Arena) -> Piece<'static> {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digit = |half: u8| DIGITS.get(usize::from(half)).copied().unwrap_or(b'?');
    Piece::written(arena, |arena| {
        for (index, byte) in bytes.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                arena.push(b'-');
            }
            arena.extend([digit(byte >> 4), digit(byte & 15)]);
        }
    })
}

/// Decodes the text of a bytea: `\x` and hex digits, or the old escape format.
fn bytea<'a>(text: &'a [u8], arena: &mut Arena) -> Result<Piece<'a>, DecodeError> {
    match text.strip_prefix(br"\x") {
        Some(digits) => hex(text, digits, arena),
        None if text.contains(&b'\\') => escaped_bytea(text, arena),
        None => Ok(Piece::Borrowed(text)),
    }
}

fn hex(text: &[u8], digits: &[u8], arena: &mut Arena) -> Result<Piece<'static>, DecodeError> {
    let (pairs, odd) = digits.as_chunks::<2>();
    // The loop does not end early at a fault: faults never happen, and without branches it is several times faster.
    let mut seen = 0;
    let start = arena.len();
    arena.resize(start + pairs.len(), 0);
    for (decoded, &[high, low]) in arena.get_mut(start..).unwrap_or_default().iter_mut().zip(pairs) {
        let (high, low) = (nibble(high), nibble(low));
        seen |= high | low;
        *decoded = high << 4 | low & 15;
    }
    if seen > 15 {
        let byte = digits.iter().copied().find(|digit| !digit.is_ascii_hexdigit()).unwrap_or_default();
        return Err(Reader::new("bytea", text).error(DecodeFault::UnknownTag { what: "hex digit", byte }));
    }
    if !odd.is_empty() {
        return Err(Reader::new("bytea", text).error(DecodeFault::Truncated { wanted: 2, left: 1 }));
    }
    Ok(Piece::Decoded(start, arena.len()))
}

/// 0 to 15. 255 if the byte is not a hex digit.
const fn nibble(digit: u8) -> u8 {
    let decimal = digit.wrapping_sub(b'0');
    let letter = (digit | 0x20).wrapping_sub(b'a');
    if decimal < 10 {
        decimal
    } else if letter < 6 {
        letter + 10
    } else {
        255
    }
}

/// Decodes the escape format: `\\` is a backslash, and `\` with three octal digits is a byte.
fn escaped_bytea(text: &[u8], arena: &mut Arena) -> Result<Piece<'static>, DecodeError> {
    let start = arena.len();
    let mut reader = Reader::new("bytea", text);
    while !reader.rest().is_empty() {
        let mut byte = reader.u8()?;
        if byte == b'\\' {
            byte = match *reader.take(1)? {
                [b'\\'] => b'\\',
                [high @ b'0'..=b'3'] => (high - b'0') << 6 | octal(&mut reader)? << 3 | octal(&mut reader)?,
                _ => return Err(reader.error(DecodeFault::UnknownTag { what: "bytea escape", byte })),
            };
        }
        arena.push(byte);
    }
    Ok(Piece::Decoded(start, arena.len()))
}

fn octal(reader: &mut Reader<'_>) -> Result<u8, DecodeError> {
    match reader.u8()? {
        digit @ b'0'..=b'7' => Ok(digit - b'0'),
        byte => Err(reader.error(DecodeFault::UnknownTag { what: "octal digit", byte })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(column: TupleValue<'_>, kind: ColumnKind, booleans: Booleans, expected: Option<&[u8]>) {
        let mut arena = b"before".to_vec();
        let piece = piece(column, kind, booleans, &mut arena).unwrap();
        assert_eq!(piece.bytes(&arena), expected);
    }

    #[track_caller]
    fn text(text: &[u8], kind: ColumnKind, expected: &[u8]) {
        check(TupleValue::Text(text), kind, Booleans::Words, Some(expected));
    }

    #[track_caller]
    fn binary(bytes: &[u8], kind: ColumnKind, expected: &[u8]) {
        check(TupleValue::Binary(bytes), kind, Booleans::Words, Some(expected));
    }

    fn fails(column: TupleValue<'_>, kind: ColumnKind) -> bool {
        piece(column, kind, Booleans::Words, &mut Vec::new()).is_err()
    }

    #[test]
    fn text_is_taken_as_it_is_without_a_copy() {
        let bytes = br#"{"a": 1.50}"#;
        for kind in [
            ColumnKind::Text,
            ColumnKind::Json,
            ColumnKind::Jsonb,
            ColumnKind::Int4,
            ColumnKind::Uuid,
            ColumnKind::Other,
            ColumnKind::Custom,
        ] {
            let piece = piece(TupleValue::Text(bytes), kind, Booleans::Words, &mut Vec::new()).unwrap();
            assert_eq!(piece, Piece::Borrowed(bytes));
        }
    }

    #[test]
    fn null_is_null_in_every_type() {
        check(TupleValue::Null, ColumnKind::Bytea, Booleans::Words, None);
        check(TupleValue::Null, ColumnKind::Text, Booleans::Letters, None);
    }

    #[test]
    fn booleans_are_words_or_letters_in_either_form() {
        text(b"t", ColumnKind::Bool, b"true");
        text(b"f", ColumnKind::Bool, b"false");
        binary(&[1], ColumnKind::Bool, b"true");
        check(TupleValue::Text(b"t"), ColumnKind::Bool, Booleans::Letters, Some(b"t"));
        check(TupleValue::Binary(&[0]), ColumnKind::Bool, Booleans::Letters, Some(b"f"));
    }

    #[test]
    fn bytea_is_its_bytes_in_hex_and_in_the_escape_format() {
        text(br"\x00ffAb", ColumnKind::Bytea, &[0, 255, 0xAB]);
        text(br"\x", ColumnKind::Bytea, b"");
        text(b"", ColumnKind::Bytea, b"");
        text(b"plain", ColumnKind::Bytea, b"plain");
        text(br"a\\b\000\377", ColumnKind::Bytea, b"a\\b\0\xFF");
        binary(&[0, 1], ColumnKind::Bytea, &[0, 1]);
    }

    #[test]
    fn a_malformed_bytea_is_an_error() {
        for malformed in
            [br"\x0".as_slice(), br"\x0g", br"\x/0", br"\x0`", br"a\4", br"a\", br"a\08", br"\37", br"\400"]
        {
            assert!(fails(TupleValue::Text(malformed), ColumnKind::Bytea), "{}", String::from_utf8_lossy(malformed));
        }
    }

    #[test]
    fn binary_forms_read_as_their_text() {
        binary(&(-7_i16).to_be_bytes(), ColumnKind::Int2, b"-7");
        binary(&i32::MIN.to_be_bytes(), ColumnKind::Int4, b"-2147483648");
        binary(&i64::MAX.to_be_bytes(), ColumnKind::Int8, b"9223372036854775807");
        binary(b"\x01{\"a\": 1}", ColumnKind::Jsonb, b"{\"a\": 1}");
        binary(b"{ }", ColumnKind::Json, b"{ }");
        let uuid: [u8; 16] = std::array::from_fn(|index| 0x10 * u8::try_from(index).unwrap() + 1);
        binary(&uuid, ColumnKind::Uuid, b"01112131-4151-6171-8191-a1b1c1d1e1f1");
    }

    #[test]
    fn a_binary_form_of_the_wrong_size_or_of_another_type_is_an_error() {
        assert!(fails(TupleValue::Binary(&[1, 2, 3]), ColumnKind::Int4));
        assert!(fails(TupleValue::Binary(&[1, 2, 3, 4, 5]), ColumnKind::Int4));
        assert!(fails(TupleValue::Binary(&[0; 15]), ColumnKind::Uuid));
        assert!(fails(TupleValue::Binary(b"\x02{}"), ColumnKind::Jsonb));
        assert!(fails(TupleValue::Binary(b""), ColumnKind::Jsonb));
        for kind in
            [ColumnKind::Timestamp, ColumnKind::Timestamptz, ColumnKind::Number, ColumnKind::Custom, ColumnKind::Other]
        {
            let outcome = piece(TupleValue::Binary(&[0; 8]), kind, Booleans::Words, &mut Vec::new());
            assert!(matches!(outcome, Err(ValueError::BinaryForm)), "{kind:?}");
        }
    }

    #[test]
    fn a_value_that_was_not_sent_is_never_taken_for_null() {
        assert!(fails(TupleValue::Unchanged, ColumnKind::Text));
    }

    proptest! {
        #[test]
        fn hex_gives_back_every_byte(bytes: Vec<u8>) {
            let mut hex = br"\x".to_vec();
            for byte in &bytes {
                write!(hex, "{byte:02x}").unwrap();
            }
            text(&hex, ColumnKind::Bytea, &bytes);
        }
    }
}

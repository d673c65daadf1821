//! Reads the kind of a message whose frame is above `--max-row` from its first bytes.
//!
//! In: the front of a CopyData frame, as much of it as has come. Out: enough to decide what becomes of it: nothing of a row but
//! its table is known. Pure.
//! Specification: as for [`pgoutput`](crate::pgoutput).

use crate::pgoutput::RelationId;
use crate::wire::{DecodeError, Reader};

/// So many bytes are enough for any kind but a message with a longer prefix.
const HEAD_BYTES: usize = 512;

/// The message's kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Oversized<'a> {
    Insert(RelationId),
    Update(RelationId),
    Delete,
    Message { transactional: bool, prefix: &'a str },
    Unknown,
}

/// Reads the front; `None`: more of it has to come first.
pub(super) fn oversized(front: &[u8]) -> Option<Oversized<'_>> {
    let head = front.get(..HEAD_BYTES)?;
    Some(read(head).unwrap_or(Oversized::Unknown))
}

fn read(head: &[u8]) -> Result<Oversized<'_>, DecodeError> {
    let mut reader = Reader::new("CopyData", head);
    let (tag, _length) = (reader.u8()?, reader.u32()?);
    if tag != b'd' || reader.u8()? != b'w' {
        return Ok(Oversized::Unknown);
    }
    let (_start, _end, _sent) = (reader.lsn()?, reader.lsn()?, reader.i64()?);
    Ok(match reader.u8()? {
        b'I' => Oversized::Insert(reader.u32()?),
        b'U' => Oversized::Update(reader.u32()?),
        b'D' => Oversized::Delete,
        b'M' => {
            let transactional = reader.u8()? & 1 != 0;
            let _lsn = reader.lsn()?;
            Oversized::Message { transactional, prefix: reader.string()? }
        }
        _ => Oversized::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(message: &[u8]) -> Vec<u8> {
        let mut front = [&b"d\x7F\0\0\0w"[..], &[0; 24], message].concat();
        front.resize(HEAD_BYTES, b'x');
        front
    }

    #[test]
    fn the_first_bytes_tell_what_it_is() {
        let insert = front(b"I\0\0\0\x07N");
        assert_eq!(oversized(&insert), Some(Oversized::Insert(7)));
        assert_eq!(oversized(&insert[..HEAD_BYTES - 1]), None);
        assert_eq!(oversized(&front(b"U\0\0\0\x07N")), Some(Oversized::Update(7)));
        assert_eq!(oversized(&front(b"D\0\0\0\x07K")), Some(Oversized::Delete));
        let message = front(b"M\x01\0\0\0\0\0\0\0\x01outbox\0");
        assert_eq!(oversized(&message), Some(Oversized::Message { transactional: true, prefix: "outbox" }));
        assert_eq!(oversized(&front(b"M\x01\0\0\0\0\0\0\0\x01")), Some(Oversized::Unknown), "a longer prefix");
        assert_eq!(oversized(&front(b"Q")), Some(Oversized::Unknown));
        assert_eq!(oversized(&[b'E'; HEAD_BYTES]), Some(Oversized::Unknown));
    }
}

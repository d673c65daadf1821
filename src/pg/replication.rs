//! The messages inside CopyData while a slot is read. The server sends XLogData and PrimaryKeepalive, and the relay sends
//! StandbyStatusUpdate.
//!
//! In and out: bytes. This file has no socket and no clock. The positions of an XLogData are those of its change, and go back between
//! transactions. So only the `end_lsn` of a Commit may be confirmed.
//! Specification: PostgreSQL manual, section 54.4 "Streaming Replication Protocol".

use crate::lsn::Lsn;
use crate::pgoutput::PgTime;
use crate::wire::{DecodeError, DecodeFault, Reader};

/// One message from the walsender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationMessage<'a> {
    /// A change.
    XLogData(XLogData<'a>),
    /// The walsender's position.
    PrimaryKeepalive(PrimaryKeepalive),
}

/// One change, in the output plugin's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XLogData<'a> {
    /// The change's own position.
    pub wal_start: Lsn,
    /// When the server sent it, by the server's clock.
    pub sent_at: PgTime,
    /// The plugin's bytes.
    pub data: &'a [u8],
}

/// The walsender's position in the WAL, and whether it wants an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrimaryKeepalive {
    /// The server has sent all transactions that commit before this.
    pub wal_end: Lsn,
    /// Whether the walsender wants an answer now. Without one, it soon ends the connection.
    pub reply_requested: bool,
}

impl<'a> ReplicationMessage<'a> {
    /// Decodes the body of one CopyData.
    ///
    /// # Errors
    /// It is another message, or it is cut off.
    #[inline]
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("CopyData", body);
        match reader.u8()? {
            b'w' => {
                let wal_start = reader.lsn()?;
                let _wal_end = reader.lsn()?;
                let sent_at = PgTime(reader.i64()?);
                Ok(Self::XLogData(XLogData { wal_start, sent_at, data: reader.rest() }))
            }
            b'k' => {
                let wal_end = reader.lsn()?;
                let _send_time = reader.i64()?;
                let reply_requested = reader.u8()? != 0;
                reader.end()?;
                Ok(Self::PrimaryKeepalive(PrimaryKeepalive { wal_end, reply_requested }))
            }
            byte => {
                Err(Reader::new("CopyData", body).error(DecodeFault::UnknownTag { what: "replication message", byte }))
            }
        }
    }
}

/// Appends a CopyData with an XLogData, as a server would send it. `write` appends the plugin's bytes.
pub fn push_xlog_data(out: &mut Vec<u8>, at: Lsn, sent_at: PgTime, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(b"d\0\0\0\0w");
    out.extend(at.bytes().to_be_bytes());
    out.extend(at.bytes().to_be_bytes());
    out.extend(sent_at.0.to_be_bytes());
    write(out);
    let length = u32::try_from(out.len() - start - 1).unwrap_or(u32::MAX);
    if let Some(field) = out.get_mut(start + 1..start + 5) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

/// The bytes of an encoded StandbyStatusUpdate, with the header of its CopyData.
pub const STATUS_UPDATE_BYTES: usize = 39;

/// A StandbyStatusUpdate. Its three positions (written, flushed and applied) are all `flush_lsn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyStatusUpdate {
    /// The position to confirm. Postgres may remove WAL that only earlier transactions need.
    pub flush_lsn: Lsn,
    /// When the relay sent it, by the relay's clock.
    pub sent_at: PgTime,
    /// Whether the walsender has to answer with a keepalive.
    pub reply_requested: bool,
}

impl StandbyStatusUpdate {
    /// The position that an encoded status update confirms. `None`: `frame` is another message.
    pub fn flush_lsn_of(frame: &[u8]) -> Option<Lsn> {
        let body = frame.strip_prefix(b"d").filter(|_| frame.len() == STATUS_UPDATE_BYTES)?;
        let mut reader = Reader::new("StandbyStatusUpdate", body.get(4..)?);
        reader.u8().ok().filter(|tag| *tag == b'r')?;
        reader.lsn().ok()
    }

    /// Encodes it as a CopyData frame.
    pub fn encode(&self) -> [u8; STATUS_UPDATE_BYTES] {
        let lsn = self.flush_lsn.bytes().to_be_bytes();
        let time = self.sent_at.0.to_be_bytes();
        let fields: [&[u8]; 8] =
            [b"d", &38u32.to_be_bytes(), b"r", &lsn, &lsn, &lsn, &time, &[u8::from(self.reply_requested)]];
        let mut frame = [0; STATUS_UPDATE_BYTES];
        let mut room = frame.iter_mut();
        for byte in fields.into_iter().flatten() {
            if let Some(next) = room.next() {
                *next = *byte;
            }
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_update_has_the_documented_bytes() {
        let update = StandbyStatusUpdate {
            flush_lsn: Lsn::new(0x0102_0304_0506_0708),
            sent_at: PgTime(-2),
            reply_requested: true,
        };
        let lsn = [1, 2, 3, 4, 5, 6, 7, 8];
        let expected =
            [&b"d\0\0\0\x26r"[..], &lsn, &lsn, &lsn, &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFE], &[1]].concat();
        assert_eq!(update.encode(), expected[..]);
        assert_eq!(StandbyStatusUpdate::flush_lsn_of(&update.encode()), Some(update.flush_lsn));
        assert_eq!(StandbyStatusUpdate::flush_lsn_of(b"c\0\0\0\x04"), None);
    }

    #[test]
    fn what_is_wrapped_as_a_server_does_is_unwrapped() {
        let mut out = b"before".to_vec();
        push_xlog_data(&mut out, Lsn::new(7), PgTime(5), |out| out.extend(b"payload"));
        let frame = out.strip_prefix(b"before").unwrap();
        assert_eq!(frame[..5], [&b"d"[..], &u32::try_from(frame.len() - 1).unwrap().to_be_bytes()].concat());
        assert_eq!(
            ReplicationMessage::decode(&frame[5..]),
            Ok(ReplicationMessage::XLogData(XLogData { wal_start: Lsn::new(7), sent_at: PgTime(5), data: b"payload" }))
        );
    }

    #[test]
    fn a_keepalive_says_how_far_the_server_is_and_whether_it_wants_an_answer() {
        let body = [&b"k"[..], &42u64.to_be_bytes(), &0u64.to_be_bytes(), &[1]].concat();
        assert_eq!(
            ReplicationMessage::decode(&body),
            Ok(ReplicationMessage::PrimaryKeepalive(PrimaryKeepalive { wal_end: Lsn::new(42), reply_requested: true }))
        );
        for cut in 0..body.len() {
            assert!(ReplicationMessage::decode(&body[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn xlogdata_hands_the_plugins_bytes_on() {
        let body = [&b"w"[..], &7u64.to_be_bytes(), &9u64.to_be_bytes(), &5u64.to_be_bytes(), b"payload"].concat();
        assert_eq!(
            ReplicationMessage::decode(&body),
            Ok(ReplicationMessage::XLogData(XLogData { wal_start: Lsn::new(7), sent_at: PgTime(5), data: b"payload" }))
        );
    }

    #[test]
    fn another_message_is_an_error_that_shows_it() {
        let error = ReplicationMessage::decode(b"x123").unwrap_err();
        assert_eq!(
            error.to_string(),
            "malformed CopyData: unknown replication message 'x' at offset 0 of 4 bytes: 78313233"
        );
    }
}

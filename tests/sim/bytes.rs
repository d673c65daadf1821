//! What a walsender writes: frames, replication messages, pgoutput version 1. Written from the manual, not from the decoder.
//!
//! Specification: PostgreSQL manual, sections 54.4, 54.7 and 54.9.

use walrelay::lsn::Lsn;
use walrelay::pgoutput::PgTime;

pub(crate) type Bytes = Vec<u8>;

fn joined(parts: &[&[u8]]) -> Bytes {
    parts.concat()
}

fn lsn(at: Lsn) -> [u8; 8] {
    at.bytes().to_be_bytes()
}

fn counted(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap().to_be_bytes()
}

pub(crate) fn frame(tag: u8, body: &[u8]) -> Bytes {
    joined(&[&[tag], &counted(body.len() + 4), body])
}

pub(crate) fn xlog_data(at: Lsn, sent: Lsn, message: &[u8]) -> Bytes {
    frame(b'd', &joined(&[b"w", &lsn(at), &lsn(sent), &[0; 8], message]))
}

pub(crate) fn keepalive(wal_end: Lsn, reply_requested: bool) -> Bytes {
    frame(b'd', &joined(&[b"k", &lsn(wal_end), &[0; 8], &[u8::from(reply_requested)]]))
}

/// ErrorResponse, as `pg_terminate_backend` causes it.
pub(crate) fn terminated() -> Bytes {
    frame(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0")
}

/// CopyDone.
pub(crate) fn copy_done() -> Bytes {
    frame(b'c', b"")
}

pub(crate) fn begin(final_lsn: Lsn, commit_time: PgTime, xid: u32) -> Bytes {
    joined(&[b"B", &lsn(final_lsn), &commit_time.0.to_be_bytes(), &xid.to_be_bytes()])
}

pub(crate) fn commit(commit_lsn: Lsn, end_lsn: Lsn, commit_time: PgTime) -> Bytes {
    joined(&[b"C\0", &lsn(commit_lsn), &lsn(end_lsn), &commit_time.0.to_be_bytes()])
}

/// `columns`: name and type.
pub(crate) fn relation(id: u32, name: &str, columns: &[(&str, u32)]) -> Bytes {
    let mut bytes = joined(&[b"R", &id.to_be_bytes(), b"shop\0", name.as_bytes(), b"\0d"]);
    bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for (name, type_id) in columns {
        bytes.extend(joined(&[&[0], name.as_bytes(), &[0], &type_id.to_be_bytes(), &(-1i32).to_be_bytes()]));
    }
    bytes
}

fn tuple(values: &[Option<&str>]) -> Bytes {
    let mut bytes = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
    for value in values {
        match value {
            None => bytes.push(b'n'),
            Some(text) => bytes.extend(joined(&[b"t", &counted(text.len()), text.as_bytes()])),
        }
    }
    bytes
}

pub(crate) fn insert(relation: u32, values: &[Option<&str>]) -> Bytes {
    joined(&[b"I", &relation.to_be_bytes(), b"N", &tuple(values)])
}

/// With the old row, as `REPLICA IDENTITY FULL` sends it.
pub(crate) fn update(relation: u32, values: &[Option<&str>]) -> Bytes {
    joined(&[b"U", &relation.to_be_bytes(), b"O", &tuple(values), b"N", &tuple(values)])
}

pub(crate) fn delete(relation: u32, key: &[Option<&str>]) -> Bytes {
    joined(&[b"D", &relation.to_be_bytes(), b"K", &tuple(key)])
}

pub(crate) fn truncate(relation: u32) -> Bytes {
    joined(&[b"T", &1u32.to_be_bytes(), &[0], &relation.to_be_bytes()])
}

pub(crate) fn origin(at: Lsn) -> Bytes {
    joined(&[b"O", &lsn(at), b"elsewhere\0"])
}

pub(crate) fn data_type() -> Bytes {
    joined(&[b"Y", &99_999u32.to_be_bytes(), b"shop\0mood\0"])
}

pub(crate) fn stray_stream_abort(xid: u32) -> Bytes {
    joined(&[b"A", &xid.to_be_bytes(), &xid.to_be_bytes()])
}

pub(crate) fn logical_message(transactional: bool, at: Lsn, prefix: &str, content: &str) -> Bytes {
    let flags = u8::from(transactional);
    joined(&[b"M", &[flags], &lsn(at), prefix.as_bytes(), b"\0", &counted(content.len()), content.as_bytes()])
}

//! Decodes pgoutput, protocol version 1: the bytes of one change become a [`Message`].
//!
//! ```text
//!  XLogData's payload ──► Message::decode ──► Begin │ Relation │ Insert { Tuple } │ … │ Commit
//! ```
//!
//! All kinds of messages of protocol 1 are decoded. A message borrows from the buffer, so a row costs no allocation. Only a Relation
//! owns its names; it comes once for each table and connection. A [`Tuple`] is split into columns when [`Tuple::columns`] is iterated.
//! Kinds of other protocol versions (two-phase and streamed transactions) may have rows, so they are errors and are never skipped. The
//! only exception is the stray stream abort of Postgres 18, which has no content. This folder does not know what a column means (that
//! is [`outbox`](crate::outbox)), and no positions or sockets.
//! Specification: PostgreSQL manual, section 54.9 "Logical Replication Message Formats".

pub mod encode;

use crate::lsn::Lsn;
use crate::wire::{DecodeError, DecodeFault, Reader};

/// A table's object identifier, as Relation announces it.
pub type RelationId = u32;

/// Microseconds since 2000-01-01 00:00 UTC, as Postgres counts. Negative before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PgTime(pub i64);

impl PgTime {
    /// 2000-01-01 in microseconds since 1970-01-01.
    const EPOCH_UNIX_MICROS: i64 = 946_684_800_000_000;

    /// Microseconds since 1970-01-01 00:00 UTC.
    pub const fn unix_micros(self) -> i64 {
        self.0.saturating_add(Self::EPOCH_UNIX_MICROS)
    }

    /// Milliseconds since 1970-01-01 00:00 UTC, rounded down: Kafka's `CreateTime`.
    pub const fn unix_millis(self) -> i64 {
        self.unix_micros().div_euclid(1000)
    }

    /// From microseconds since 1970-01-01 00:00 UTC.
    pub const fn from_unix_micros(micros: i64) -> Self {
        Self(micros.saturating_sub(Self::EPOCH_UNIX_MICROS))
    }
}

/// One logical replication message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction begins.
    Begin(Begin),
    /// The transaction that was begun last ends.
    Commit(Commit),
    /// The origin of the transaction, if the server itself is a subscriber.
    Origin,
    /// A table's columns, before its first change and after each change of its columns.
    Relation(Relation),
    /// A data type that is not built in.
    Type(DataType<'a>),
    /// A row was inserted.
    Insert {
        /// The table.
        relation: RelationId,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row was updated.
    Update {
        /// The table.
        relation: RelationId,
        /// The row after the update.
        new: Tuple<'a>,
    },
    /// A row was deleted.
    Delete {
        /// The table.
        relation: RelationId,
    },
    /// Tables were truncated.
    Truncate,
    /// `pg_logical_emit_message` was called.
    LogicalMessage(LogicalMessage<'a>),
    /// A stream abort outside any stream. It has no content.
    StrayStreamAbort,
}

/// The beginning of a transaction. Transactions come whole, in the order of their commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where the commit record *starts*. It rises from transaction to transaction. To skip a transaction, Postgres compares it with
    /// `confirmed_flush_lsn`.
    pub final_lsn: Lsn,
    /// When the transaction was committed.
    pub commit_time: PgTime,
    /// The transaction's id.
    pub xid: u32,
}

/// A transaction's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Where the commit record starts: Begin's `final_lsn`.
    pub commit_lsn: Lsn,
    /// Where the commit record ends. If this position is confirmed, the transaction is.
    pub end_lsn: Lsn,
    /// When the transaction was committed.
    pub commit_time: PgTime,
}

/// A table and its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The identifier that rows refer to.
    pub id: RelationId,
    /// The schema. On the wire, empty means `pg_catalog`.
    pub namespace: String,
    /// The table.
    pub name: String,
    /// `pg_class.relreplident`: `d`, `n`, `f` or `i`.
    pub replica_identity: u8,
    /// The published columns, in the order in which rows have them. Generated columns are among them since Postgres 18, if the
    /// publication has them.
    pub columns: Vec<RelationColumn>,
}

impl Relation {
    /// The names of schema and table.
    pub fn full_name(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }
}

/// A data type that is not built in. It comes before the first [`Relation`] that has a column of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType<'a> {
    /// `pg_type.oid`.
    pub id: u32,
    /// The schema of `name`. Empty: `pg_catalog`.
    pub namespace: &'a str,
    /// `pg_type.typname`. For a domain, this is the name of its base type. That type is not a domain.
    pub name: &'a str,
}

/// A table that a publication has, as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// The table, as a Relation message will announce it.
    pub relation: Relation,
    /// The partitioned tables above it, nearest first, as schema and name.
    pub ancestors: Vec<(String, String)>,
    /// The domains among the types of its columns, each with its base type, which is not a domain. Both are `pg_type.oid`.
    pub domains: Vec<(u32, u32)>,
}

/// A column of a [`Relation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationColumn {
    /// The column's name, in the catalog's case.
    pub name: String,
    /// `pg_type.oid`.
    pub type_id: u32,
    /// `pg_attribute.atttypmod`; -1 for none.
    pub type_modifier: i32,
}

/// A message written by `pg_logical_emit_message`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Whether the message is part of a transaction. It then comes between Begin and Commit. Else it comes on its own.
    pub transactional: bool,
    /// The LSN of the message.
    pub lsn: Lsn,
    /// The prefix that its writer gave.
    pub prefix: &'a str,
    /// Its content, any bytes.
    pub content: &'a [u8],
}

/// The values of a row. It has as many columns as the [`Relation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    columns: u16,
    bytes: &'a [u8],
}

/// One value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TupleValue<'a> {
    /// SQL null.
    Null,
    /// A TOASTed value that the update did not change, and that is not in the WAL. An insert has no such value.
    Unchanged,
    /// The type's text form.
    Text(&'a [u8]),
    /// The type's binary form, if the connection asked for it.
    Binary(&'a [u8]),
}

impl<'a> Tuple<'a> {
    /// The number of columns of the row.
    pub const fn len(&self) -> u16 {
        self.columns
    }

    /// Whether the row has no columns.
    pub const fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// Iterates over the values, in order. After an error, nothing follows. The last step checks that no bytes are left.
    pub fn columns(&self) -> Columns<'a> {
        Columns { reader: Reader::new("TupleData", self.bytes), left: self.columns, ended: false }
    }
}

/// The iterator over the values of a [`Tuple`].
#[derive(Debug, Clone)]
pub struct Columns<'a> {
    reader: Reader<'a>,
    left: u16,
    ended: bool,
}

impl<'a> Columns<'a> {
    #[inline]
    fn column(&mut self) -> Result<TupleValue<'a>, DecodeError> {
        self.left -= 1;
        let kind = self.reader.u8()?;
        Ok(match kind {
            b'n' => TupleValue::Null,
            b'u' => TupleValue::Unchanged,
            b't' | b'b' => {
                let length = self.reader.length()?;
                let value = self.reader.take(length)?;
                if kind == b't' { TupleValue::Text(value) } else { TupleValue::Binary(value) }
            }
            byte => return Err(self.reader.error(DecodeFault::UnknownTag { what: "column kind", byte })),
        })
    }
}

impl<'a> Iterator for Columns<'a> {
    type Item = Result<TupleValue<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let step = match self.left {
            0 => self.reader.end().err().map(Err),
            _ => Some(self.column()),
        };
        self.ended = !matches!(step, Some(Ok(_)));
        step
    }
}

impl<'a> Message<'a> {
    /// Decodes the payload of one XLogData.
    ///
    /// # Errors
    /// The bytes are not one whole message of protocol version 1. The columns of a row are checked only by [`Tuple::columns`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("pgoutput message", bytes);
        match reader.u8()? {
            b'B' => begin(bytes),
            b'C' => commit(bytes),
            b'I' => insert(bytes),
            b'U' => update(bytes),
            b'D' => delete(bytes),
            b'R' => relation(bytes),
            b'M' => logical_message(bytes),
            b'O' => Ok(Message::Origin),
            b'Y' => data_type(bytes),
            b'T' => Ok(Message::Truncate),
            b'A' => Ok(Message::StrayStreamAbort),
            byte => {
                Err(Reader::new("pgoutput message", bytes)
                    .error(DecodeFault::UnknownTag { what: "message kind", byte }))
            }
        }
    }
}

/// A reader of the bytes behind the message's kind.
fn body<'a>(name: &'static str, bytes: &'a [u8]) -> Result<Reader<'a>, DecodeError> {
    let mut reader = Reader::new(name, bytes);
    reader.u8()?;
    Ok(reader)
}

fn begin(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = body("Begin", bytes)?;
    let begin = Begin { final_lsn: reader.lsn()?, commit_time: PgTime(reader.i64()?), xid: reader.u32()? };
    reader.end()?;
    Ok(Message::Begin(begin))
}

fn commit(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = body("Commit", bytes)?;
    let _flags = reader.u8()?;
    let commit = Commit { commit_lsn: reader.lsn()?, end_lsn: reader.lsn()?, commit_time: PgTime(reader.i64()?) };
    reader.end()?;
    Ok(Message::Commit(commit))
}

fn insert(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = body("Insert", bytes)?;
    let relation = reader.u32()?;
    match reader.u8()? {
        b'N' => Ok(Message::Insert { relation, new: tuple(&mut reader)? }),
        byte => Err(reader.error(DecodeFault::UnknownTag { what: "tuple kind", byte })),
    }
}

fn update(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = body("Update", bytes)?;
    let relation = reader.u32()?;
    let mut kind = reader.u8()?;
    if matches!(kind, b'K' | b'O') {
        skip_tuple(&mut reader)?;
        kind = reader.u8()?;
    }
    match kind {
        b'N' => Ok(Message::Update { relation, new: tuple(&mut reader)? }),
        byte => Err(reader.error(DecodeFault::UnknownTag { what: "tuple kind", byte })),
    }
}

fn delete(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = body("Delete", bytes)?;
    Ok(Message::Delete { relation: reader.u32()? })
}

/// The tuple that takes the rest of the message.
fn tuple<'a>(reader: &mut Reader<'a>) -> Result<Tuple<'a>, DecodeError> {
    Ok(Tuple { columns: reader.u16()?, bytes: reader.rest() })
}

/// Skips a tuple that is followed by another one.
fn skip_tuple(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    let left = reader.u16()?;
    let mut columns = Columns { reader: *reader, left, ended: false };
    while columns.left > 0 {
        columns.column()?;
    }
    *reader = columns.reader;
    Ok(())
}

fn relation(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = body("Relation", bytes)?;
    let id = reader.u32()?;
    let namespace = match reader.string()? {
        "" => "pg_catalog".to_owned(),
        name => name.to_owned(),
    };
    let name = reader.string()?.to_owned();
    let replica_identity = reader.u8()?;
    // The wire's count reserves no memory: each column takes memory only once it is read.
    let mut columns = Vec::new();
    for _ in 0..reader.u16()? {
        let _flags = reader.u8()?;
        columns.push(RelationColumn {
            name: reader.string()?.to_owned(),
            type_id: reader.u32()?,
            type_modifier: reader.i32()?,
        });
    }
    reader.end()?;
    Ok(Message::Relation(Relation { id, namespace, name, replica_identity, columns }))
}

fn data_type(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = body("Type", bytes)?;
    let (id, namespace, name) = (reader.u32()?, reader.string()?, reader.string()?);
    reader.end()?;
    Ok(Message::Type(DataType { id, namespace, name }))
}

fn logical_message(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut reader = body("Message", bytes)?;
    let transactional = reader.u8()? & 1 == 1;
    let lsn = reader.lsn()?;
    let prefix = reader.string()?;
    let length = reader.length()?;
    let content = reader.take(length)?;
    reader.end()?;
    Ok(Message::LogicalMessage(LogicalMessage { transactional, lsn, prefix, content }))
}

#[cfg(test)]
mod captured;
#[cfg(test)]
mod tests;

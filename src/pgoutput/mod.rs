//! pgoutput, protocol version 1: the bytes of one change in, a [`Message`] out.
//!
//! ```text
//!  XLogData's payload ──► Message::decode ──► Begin │ Relation │ Insert { Tuple } │ … │ Commit
//! ```
//!
//! Every message kind of protocol 1 is decoded, borrowing from the buffer: a row costs no allocation (only a Relation,
//! which comes once per table and connection, owns its names). A [`Tuple`] is split into columns as it is walked.
//! Kinds that may carry or end rows and that protocol 1 does not promise (two-phase, streamed transactions) are errors,
//! never skipped; the stray stream abort that Postgres 18 may send carries nothing and passes.
//! Deliberately not here: what a column means (that is [`outbox`](crate::outbox)), positions, sockets.
//! Specification: PostgreSQL manual, section 54.9 "Logical Replication Message Formats".

pub mod encode;

use crate::lsn::Lsn;
use crate::wire::{DecodeError, DecodeFault, Reader};

/// A table's object identifier, as Relation announces it.
pub type RelationId = u32;

/// Microseconds since 2000-01-01 00:00 UTC, Postgres' clock. Before that: negative.
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
    /// Where the transaction came from, when the server itself is a subscriber.
    Origin,
    /// A table's shape, before its first change and after each change of shape.
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
    /// A stream abort outside any stream: nothing was sent that could be aborted.
    StrayStreamAbort,
}

/// A transaction's beginning. Transactions come whole and in the order of their commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where the commit record *starts*: rises from transaction to transaction, and is what Postgres compares with
    /// `confirmed_flush_lsn` to skip a transaction.
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
    /// Where the commit record ends: the one position that says "up to here, this transaction included".
    pub end_lsn: Lsn,
    /// When the transaction was committed.
    pub commit_time: PgTime,
}

/// A table's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The identifier that rows refer to.
    pub id: RelationId,
    /// Schema; empty on the wire means `pg_catalog`.
    pub namespace: String,
    /// Table.
    pub name: String,
    /// `pg_class.relreplident`: `d`, `n`, `f` or `i`.
    pub replica_identity: u8,
    /// The published columns in the order in which rows carry them (generated ones: since 18, where the publication has them).
    pub columns: Vec<RelationColumn>,
}

impl Relation {
    /// Schema and table.
    pub fn full_name(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }
}

/// A data type that is not built in, before the first [`Relation`] with a column of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType<'a> {
    /// `pg_type.oid`.
    pub id: u32,
    /// The schema of `name`. Empty: `pg_catalog`.
    pub namespace: &'a str,
    /// `pg_type.typname`. For a domain, that of the type below it and below every domain between them.
    pub name: &'a str,
}

/// A table that a publication holds, as the catalogue has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// As a Relation message will announce it.
    pub relation: Relation,
    /// The partitioned tables that it is a part of, nearest first, as schema and name.
    pub ancestors: Vec<(String, String)>,
    /// The domains among its columns' types, each with the type below it and below every domain between them. Both are `pg_type.oid`.
    pub domains: Vec<(u32, u32)>,
}

/// A column of a [`Relation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationColumn {
    /// The column's name, case as in the catalogue.
    pub name: String,
    /// `pg_type.oid`.
    pub type_id: u32,
    /// `pg_attribute.atttypmod`; -1 for none.
    pub type_modifier: i32,
}

/// A message written by `pg_logical_emit_message`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Part of a transaction (then it comes between Begin and Commit), or sent on its own.
    pub transactional: bool,
    /// The LSN of the message.
    pub lsn: Lsn,
    /// The prefix that its writer gave.
    pub prefix: &'a str,
    /// Its content, any bytes.
    pub content: &'a [u8],
}

/// A row as it stands in the message: as many columns as the [`Relation`] has.
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
    /// A TOASTed value that the update did not change and that the WAL does not hold. Never in an insert.
    Unchanged,
    /// The type's text form.
    Text(&'a [u8]),
    /// The type's binary form, when the connection asked for it.
    Binary(&'a [u8]),
}

impl<'a> Tuple<'a> {
    /// How many columns the row has.
    pub const fn len(&self) -> u16 {
        self.columns
    }

    /// No column at all.
    pub const fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// The values in order. An error ends the walk; the last step checks that no byte is left over.
    pub fn columns(&self) -> Columns<'a> {
        Columns { reader: Reader::new("TupleData", self.bytes), left: self.columns, ended: false }
    }
}

/// Walks the values of a [`Tuple`].
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
    /// The bytes are not one whole message of protocol version 1. Columns are checked when the tuple is walked.
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

/// A reader behind the kind byte.
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

/// The tuple that runs to the end of the message.
fn tuple<'a>(reader: &mut Reader<'a>) -> Result<Tuple<'a>, DecodeError> {
    Ok(Tuple { columns: reader.u16()?, bytes: reader.rest() })
}

/// Skips a tuple that another one follows.
fn skip_tuple(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    for _ in 0..reader.u16()? {
        match reader.u8()? {
            b'n' | b'u' => {}
            b't' | b'b' => {
                let length = reader.length()?;
                reader.take(length)?;
            }
            byte => return Err(reader.error(DecodeFault::UnknownTag { what: "column kind", byte })),
        }
    }
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
    // No capacity from the wire: each column must be there before it takes room.
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

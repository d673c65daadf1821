//! One row becomes one [`Record`]: topic, key, value, headers (`headers`), time, partition.
//!
//! ```text
//!  Columns ──plan──► pieces (borrowed from the message, or decoded into the arena) ──► Record, borrowed by `take`
//! ```
//!
//! This takes two steps, since the arena grows while values are decoded. First every part of the record becomes a [`Piece`]. Then the
//! arena no longer grows, and the pieces become slices. Between rows only the memory is kept, so the same row gives the same record
//! again. The payload is copied only if it is a bytea in hex, or if it goes into an envelope.

use super::column_kind::{BPCHAR, ColumnKind};
#[cfg(feature = "debezium")]
use super::connect::EnvelopeSchemas;
use super::fault::{BadReason, BadRow, RowError};
use super::json::{self, Member};
use super::plan::TablePlan;
use super::value::{self, Arena, Booleans, Piece, ValueError};
use super::{RowContext, time};
use crate::outbox::{Mapping, SchemaId, Timestamp};
use crate::pgoutput::{Tuple, TupleValue};
use crate::route::{LastTopic, NoTopic, TopicRule};
use crate::setting_text::shown;
use crate::sink::{Content, Header, Record, emptied};
use std::borrow::Cow;
use std::io::Write;

/// The header that carries a row's position.
const POSITION_HEADER: &str = "walrelay-position";

/// The header with the value's media type.
pub(super) const CONTENT_TYPE: &str = "content-type";

/// If a row's decoded bytes took more memory than this, it is freed after the row.
const MOST_KEPT_BYTES: usize = 1 << 20;

/// The memory that each row uses again.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) arena: Arena,
    pub(super) envelope: Vec<u8>,
    /// The schemas that Debezium's router would remember.
    #[cfg(feature = "debezium")]
    pub(super) schemas: EnvelopeSchemas,
    topic: LastTopic,
    columns: Vec<TupleValue<'static>>,
    pub(super) topic_values: Vec<Piece<'static>>,
    pub(super) drafts: Vec<HeaderDraft<'static>>,
    headers: Vec<Header<'static>>,
}

impl Scratch {
    /// Empties the arena, and lends the lists for a row.
    pub(super) fn parts<'a>(&mut self) -> Parts<'a> {
        self.arena.clear();
        Parts { topic: std::mem::take(&mut self.topic_values), headers: std::mem::take(&mut self.drafts) }
    }

    /// The row's values, as many as the plan has columns.
    pub(super) fn columns<'a>(&mut self, plan: &TablePlan, tuple: &Tuple<'a>) -> Result<Vec<TupleValue<'a>>, RowError> {
        let mut columns: Vec<TupleValue<'a>> = std::mem::take(&mut self.columns);
        for column in tuple.columns() {
            columns.push(column?);
        }
        if columns.len() == plan.columns.len() {
            return Ok(columns);
        }
        let (table, relation, row) = (plan.table.clone(), plan.columns.len(), columns.len());
        Err(RowError::ColumnCount { table, relation, row })
    }

    /// The bytes reserved for decoded values.
    #[cfg(test)]
    pub(super) fn room_bytes(&self) -> usize {
        self.arena.capacity() + self.envelope.capacity()
    }

    /// Takes back the list of [`Scratch::columns`], for its memory.
    pub(super) fn return_columns(&mut self, columns: Vec<TupleValue<'_>>) {
        self.columns = emptied(columns);
        for bytes in [&mut self.arena, &mut self.envelope] {
            if bytes.capacity() > MOST_KEPT_BYTES {
                *bytes = Vec::new();
            }
        }
    }
}

/// A header whose value may be a range of the arena, which may still grow.
#[derive(Debug, Clone)]
pub(super) struct HeaderDraft<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) value: Piece<'a>,
}

/// A row, with all that decides on its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct MappedRow<'a> {
    pub(super) plan: &'a TablePlan,
    pub(super) columns: &'a [TupleValue<'a>],
    pub(super) mapping: &'a Mapping,
    pub(super) topic: &'a TopicRule,
    pub(super) context: &'a RowContext,
}

impl<'a> MappedRow<'a> {
    /// Calls `take` with the row's record.
    pub(super) fn with_record<T>(
        self,
        scratch: &mut Scratch,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<T, RowError> {
        if let Some(connect) = &self.plan.connect {
            return self.with_connect_record(connect, scratch, take);
        }
        let mut parts = scratch.parts();
        let Scratch { arena, envelope, .. } = &mut *scratch;
        let id = self.id(arena)?;
        self.topic_values(&mut parts.topic, arena)?;
        let key = self.key(Booleans::Letters, arena)?;
        let value = self.value(id, arena, envelope)?;
        self.headers(id, &mut parts.headers, arena)?;
        self.with_parts(parts, key, value, scratch, take)
    }

    /// Builds the record. Debezium's records differ only in how key, value and headers were written before.
    #[inline]
    pub(super) fn with_parts<T>(
        self,
        parts: Parts<'a>,
        key: Piece<'a>,
        value: RecordValue<'a>,
        scratch: &mut Scratch,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<T, RowError> {
        let Scratch { arena, envelope, topic, topic_values, drafts, headers, .. } = scratch;
        let timestamp_millis = self.timestamp_millis(arena)?;
        let partition = self.partition(arena)?;

        let arena = &*arena;
        let values = parts.topic.iter().map(|piece| piece.bytes(arena).unwrap_or_default());
        let topic = topic.resolve(self.topic, values).map_err(|fault| self.no_topic(fault, &parts.topic, arena))?;
        let mut list: Vec<Header<'_>> = std::mem::take(headers);
        list.extend(parts.headers.iter().map(|draft| Header { name: &draft.name, value: draft.value.bytes(arena) }));
        let (value, content) = match value {
            RecordValue::Bare(piece) => (piece.bytes(arena), self.kind(self.plan.payload).content()),
            RecordValue::Enveloped => (Some(envelope.as_slice()), Content::Json),
            RecordValue::Framed => (Some(envelope.as_slice()), Content::Bytes),
        };
        let key = key.bytes(arena);
        let taken = take(&Record { topic, key, value, headers: &list, timestamp_millis, partition, content });
        *headers = emptied(list);
        *topic_values = emptied(parts.topic);
        *drafts = emptied(parts.headers);
        Ok(taken)
    }

    /// The text of a column. For a bytea, its bytes.
    #[inline]
    pub(super) fn piece(self, index: usize, booleans: Booleans, arena: &mut Arena) -> Result<Piece<'a>, RowError> {
        let column = self.columns.get(index).copied().unwrap_or(TupleValue::Null);
        value::piece(column, self.kind(index), booleans, arena).map_err(|error| self.value_error(index, error))
    }

    pub(super) fn optional(
        self,
        index: Option<usize>,
        booleans: Booleans,
        arena: &mut Arena,
    ) -> Result<Piece<'a>, RowError> {
        index.map_or(Ok(Piece::Null), |index| self.piece(index, booleans, arena))
    }

    pub(super) fn key(self, booleans: Booleans, arena: &mut Arena) -> Result<Piece<'a>, RowError> {
        let Some(index) = self.plan.key else { return Ok(Piece::Null) };
        Ok(self.unpadded(index, self.piece(index, booleans, arena)?))
    }

    /// The text of a `char(n)` without its padding, as SQL's cast to text returns it. Debezium keeps the padding.
    fn unpadded(self, index: usize, piece: Piece<'a>) -> Piece<'a> {
        match piece {
            Piece::Borrowed(text) if self.plan.connect.is_none() && self.type_id(index) == BPCHAR => {
                let end = text.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
                Piece::Borrowed(text.get(..end).unwrap_or(text))
            }
            Piece::Null | Piece::Borrowed(_) | Piece::Decoded(..) => piece,
        }
    }

    fn type_id(self, index: usize) -> u32 {
        self.plan.columns.get(index).map_or(0, |column| column.type_id)
    }

    pub(super) fn kind(self, index: usize) -> ColumnKind {
        self.plan.columns.get(index).map_or(ColumnKind::Other, |column| column.kind)
    }

    pub(super) fn id(self, arena: &mut Arena) -> Result<Piece<'a>, RowError> {
        match self.piece(self.plan.id, Booleans::Words, arena)? {
            Piece::Null => Err(self.bad(self.plan.id, |column| BadReason::MissingId { column })),
            id @ (Piece::Borrowed(_) | Piece::Decoded(..)) => Ok(id),
        }
    }

    pub(super) fn topic_values(self, values: &mut Vec<Piece<'a>>, arena: &mut Arena) -> Result<(), RowError> {
        for &index in &self.plan.topic {
            let value = self.piece(index, Booleans::Letters, arena)?;
            match self.unpadded(index, value) {
                Piece::Null => return Err(self.bad(index, |column| BadReason::NullRoute { column })),
                value @ (Piece::Borrowed(_) | Piece::Decoded(..)) => values.push(value),
            }
        }
        Ok(())
    }

    fn value(self, id: Piece<'a>, arena: &mut Arena, envelope: &mut Vec<u8>) -> Result<RecordValue<'a>, RowError> {
        let payload = self.piece(self.plan.payload, Booleans::Letters, arena)?;
        if self.mapping.tombstone_on_empty_payload && self.blank(payload.bytes(arena)) {
            return Ok(RecordValue::Bare(Piece::Null));
        }
        if let Some(schema) = &self.mapping.schema_id {
            return self.framed(schema, payload, arena, envelope);
        }
        if let Some(events) = &self.mapping.cloudevents
            && let Some(value) = self.event_value(events, id, payload, arena, envelope)?
        {
            return Ok(value);
        }
        if self.plan.envelope.is_empty() {
            return Ok(RecordValue::Bare(payload));
        }
        envelope.clear();
        envelope.extend(b"{\"payload\":");
        self.push_member(self.plan.payload, arena, envelope)?;
        for member in &self.plan.envelope {
            envelope.push(b',');
            envelope.extend(member.quoted_name.as_bytes());
            envelope.push(b':');
            self.push_member(member.column, arena, envelope)?;
        }
        envelope.push(b'}');
        Ok(RecordValue::Enveloped)
    }

    /// Writes a zero byte, the schema's number in four bytes, most significant first, and the payload. Null stays null.
    fn framed(
        self,
        schema: &SchemaId,
        payload: Piece<'a>,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> Result<RecordValue<'a>, RowError> {
        if payload == Piece::Null {
            return Ok(RecordValue::Bare(Piece::Null));
        }
        let number = match (schema, self.plan.schema_id) {
            (SchemaId::Registry, _) => return Ok(RecordValue::Bare(payload)),
            (SchemaId::Number(number), _) => *number,
            (SchemaId::Column(_), index) => self.schema_number(index.unwrap_or_default(), arena)?,
        };
        out.clear();
        out.push(0);
        out.extend(number.to_be_bytes());
        out.extend(payload.bytes(arena).unwrap_or_default());
        Ok(RecordValue::Framed)
    }

    fn schema_number(self, index: usize, arena: &mut Arena) -> Result<u32, RowError> {
        let piece = self.piece(index, Booleans::Letters, arena)?;
        let text = piece.bytes(arena).unwrap_or(b"null");
        let number: Option<i32> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        number
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| self.bad(index, |column| BadReason::InvalidSchemaId { column, value: shown(text) }))
    }

    /// Whether a payload is empty, or is a text that consists of white space.
    pub(super) fn blank(self, payload: Option<&[u8]>) -> bool {
        let bytes = payload.unwrap_or_default();
        bytes.is_empty()
            || (self.kind(self.plan.payload) != ColumnKind::Bytea && bytes.iter().all(|&byte| byte <= b' '))
    }

    fn push_member(self, index: usize, arena: &mut Arena, envelope: &mut Vec<u8>) -> Result<(), RowError> {
        let piece = self.piece(index, Booleans::Words, arena)?;
        let bytes = piece.bytes(arena);
        json::push_value(envelope, bytes, self.kind(index)).map_err(|_| self.not_utf8(index, bytes.unwrap_or_default()))
    }

    /// Adds `id`, `eventType`, the headers of an event, the members of the headers column, each `--header`, the media type and the
    /// position, in this order.
    fn headers(self, id: Piece<'a>, drafts: &mut Vec<HeaderDraft<'a>>, arena: &mut Arena) -> Result<(), RowError> {
        drafts.push(HeaderDraft { name: "id".into(), value: id });
        if let Some(index) = self.plan.event_type {
            let value = self.piece(index, Booleans::Words, arena)?;
            drafts.push(HeaderDraft { name: "eventType".into(), value });
        }
        if let Some(events) = &self.mapping.cloudevents {
            self.event_headers(events, id, drafts, arena)?;
        }
        if let Some(index) = self.plan.headers {
            self.headers_column(index, drafts, arena)?;
        }
        for (at, (name, index)) in self.plan.extra_headers.iter().enumerate() {
            self.constants(at, drafts);
            let value = self.piece(*index, Booleans::Words, arena)?;
            drafts.push(HeaderDraft { name: name.into(), value });
        }
        self.last_headers(drafts, arena);
        Ok(())
    }

    /// Adds the constant headers that come after the first `behind` headers from columns.
    pub(super) fn constants(self, behind: usize, drafts: &mut Vec<HeaderDraft<'a>>) {
        let here = self.mapping.constants.iter().filter(|constant| constant.behind == behind);
        drafts.extend(here.map(|constant| HeaderDraft {
            name: constant.name.as_str().into(),
            value: Piece::Borrowed(constant.value.as_bytes()),
        }));
    }

    /// Adds the headers that come after all headers from columns.
    pub(super) fn last_headers(self, drafts: &mut Vec<HeaderDraft<'a>>, arena: &mut Arena) {
        self.constants(self.plan.extra_headers.len(), drafts);
        if self.mapping.content_type_header && self.mapping.cloudevents.is_none() {
            drafts
                .push(HeaderDraft { name: CONTENT_TYPE.into(), value: Piece::Borrowed(self.media_type().as_bytes()) });
        }
        if self.mapping.position_header {
            let position = self.context.position;
            // Writing to a vector does not fail.
            let value = Piece::written(arena, |arena| write!(arena, "{position}").unwrap_or_default());
            drafts.push(HeaderDraft { name: POSITION_HEADER.into(), value });
        }
    }

    /// The value's media type. An envelope is JSON. A value that begins with a schema's number is bytes.
    fn media_type(self) -> &'static str {
        let kind = match (&self.mapping.schema_id, self.plan.envelope.is_empty()) {
            (Some(_), _) => ColumnKind::Bytea,
            (None, false) => ColumnKind::Json,
            (None, true) => self.kind(self.plan.payload),
        };
        kind.media_type()
    }

    /// Adds a header for each member: a string as it is, null as null, another value as its JSON text.
    pub(super) fn headers_column(
        self,
        index: usize,
        drafts: &mut Vec<HeaderDraft<'a>>,
        arena: &mut Arena,
    ) -> Result<(), RowError> {
        let text = match self.piece(index, Booleans::Words, arena)? {
            Piece::Null => return Ok(()),
            Piece::Borrowed(text) => text,
            piece @ Piece::Decoded(..) => return Err(self.not_an_object(index, piece.bytes(arena))),
        };
        let json = std::str::from_utf8(text).map_err(|_| self.not_utf8(index, text))?;
        let each = |name, member| drafts.push(HeaderDraft { name, value: header_value(member, arena) });
        json::members(json, each).map_err(|_| self.not_an_object(index, Some(text)))
    }

    /// The record's time.
    pub(super) fn timestamp_millis(self, arena: &mut Arena) -> Result<i64, RowError> {
        match self.mapping.timestamp {
            Timestamp::Send => Ok(self.context.sent_at.unix_millis()),
            Timestamp::Commit | Timestamp::Column(_) => self.event_millis(arena),
        }
    }

    /// The row's own time, which is the same whenever it is sent: that of the column or, if there is none, of the commit.
    pub(super) fn event_millis(self, arena: &mut Arena) -> Result<i64, RowError> {
        let at_commit = self.context.commit_time.unix_millis();
        let Some(index) = self.plan.timestamp else { return Ok(at_commit) };
        let piece = self.piece(index, Booleans::Letters, arena)?;
        let Some(text) = piece.bytes(arena) else { return Ok(at_commit) };
        time::unix_millis(text)
            .ok_or_else(|| self.bad(index, |column| BadReason::InvalidTimestamp { column, value: shown(text) }))
    }

    pub(super) fn partition(self, arena: &mut Arena) -> Result<Option<i32>, RowError> {
        let Some(index) = self.plan.partition else {
            return Ok(None);
        };
        let piece = self.piece(index, Booleans::Letters, arena)?;
        let Some(text) = piece.bytes(arena) else {
            return Ok(None);
        };
        match std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
            Some(partition @ 0..) => Ok(Some(partition)),
            _ => Err(self.bad(index, |column| BadReason::InvalidPartition { column, value: shown(text) })),
        }
    }
}

/// Errors. They are rare.
impl MappedRow<'_> {
    /// The error for a bad row. `reason` gets the column's name.
    #[cold]
    fn bad(self, index: usize, reason: impl FnOnce(String) -> BadReason) -> RowError {
        self.bad_row(reason(self.plan.column_name(index).to_owned()))
    }

    #[cold]
    pub(super) fn bad_row(self, reason: BadReason) -> RowError {
        Box::new(BadRow { table: self.plan.table.clone(), id: self.shown_id(), reason }).into()
    }

    /// The id's text, shortened.
    pub(super) fn shown_id(self) -> Option<String> {
        let mut arena = Arena::new();
        let id = self.piece(self.plan.id, Booleans::Words, &mut arena).ok()?;
        id.bytes(&arena).map(shown)
    }

    #[cold]
    pub(super) fn not_utf8(self, index: usize, value: &[u8]) -> RowError {
        self.bad(index, |column| BadReason::NotUtf8 { column, value: shown(value) })
    }

    #[cold]
    fn not_an_object(self, index: usize, value: Option<&[u8]>) -> RowError {
        self.bad(index, |column| BadReason::HeadersNotObject { column, value: shown(value.unwrap_or_default()) })
    }

    #[cold]
    fn no_topic(self, fault: NoTopic, values: &[Piece<'_>], arena: &Arena) -> RowError {
        match fault {
            NoTopic::Invalid { topic, fault } => {
                self.bad_row(BadReason::InvalidTopic { topic: shown(topic.as_bytes()), fault })
            }
            NoTopic::NotUtf8 { name } => {
                let value = values.get(name).and_then(|piece| piece.bytes(arena)).unwrap_or_default();
                self.not_utf8(self.plan.topic.get(name).copied().unwrap_or_default(), value)
            }
        }
    }

    #[cold]
    fn value_error(self, index: usize, error: ValueError) -> RowError {
        match error {
            ValueError::Undecodable(error) => RowError::Undecodable(error),
            ValueError::BinaryForm => RowError::BinaryForm {
                table: self.plan.table.clone(),
                column: self.plan.column_name(index).to_owned(),
                type_id: self.type_id(index),
            },
        }
    }
}

/// The lists of one row.
pub(super) struct Parts<'a> {
    pub(super) topic: Vec<Piece<'a>>,
    pub(super) headers: Vec<HeaderDraft<'a>>,
}

/// A record's value, which may be a range of the arena, while that may still grow.
#[derive(Debug, Clone, Copy)]
pub(super) enum RecordValue<'a> {
    Bare(Piece<'a>),
    /// The value is JSON, and is in the envelope's buffer.
    Enveloped,
    /// The value is there, too, after a schema's number.
    Framed,
}

fn header_value<'a>(member: Member<'a>, arena: &mut Arena) -> Piece<'a> {
    match member {
        Member::Null => Piece::Null,
        Member::Json(text) | Member::Text(Cow::Borrowed(text)) => Piece::Borrowed(text.as_bytes()),
        Member::Text(Cow::Owned(text)) => Piece::written(arena, |arena| arena.extend(text.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_vector_keeps_its_room() {
        let vector: Vec<Header<'_>> = Vec::with_capacity(7);
        let room = vector.as_ptr().addr();
        let vector: Vec<Header<'static>> = emptied(vector);
        assert_eq!((vector.capacity(), vector.as_ptr().addr()), (7, room));
    }
}

//! Builds one record of one row, as Debezium's router and the converters do.
//!
//! As in [`record`](super::super::record), first every part becomes a [`Piece`], and then the caller gets the record. Between rows only
//! the memory is kept.

use std::borrow::Cow;

use super::super::fault::{BadReason, RowError};
use super::super::record::{HeaderDraft, RecordValue as Part, Row, Scratch};
use super::super::value::{Arena, Booleans, Piece};
use super::envelope::{EnvelopeField, EnvelopeSchema, EnvelopeSchemas};
use super::expand::{self, Expanded};
use super::value::{ConnectValue, Unwritable};
use super::{ConnectPlan, Encoder, NullForm, ValueForm, ValuePlan};
use crate::outbox::connect::Expand;
use crate::setting_text::shown;
use crate::sink::Record;

/// The reason why a column's value has no bytes.
pub(super) enum ValueFault {
    Row(RowError),
    Unreadable,
    NotUtf8,
}

impl From<RowError> for ValueFault {
    fn from(error: RowError) -> Self {
        Self::Row(error)
    }
}

impl From<Unwritable> for ValueFault {
    fn from(unwritable: Unwritable) -> Self {
        match unwritable {
            Unwritable::NotUtf8 => Self::NotUtf8,
            Unwritable::NoForm => Self::Unreadable,
        }
    }
}

impl<'a> Row<'a> {
    /// Calls `take` with the row's record.
    pub(in crate::outbox) fn with_connect_record<T>(
        self,
        connect: &'a ConnectPlan,
        scratch: &mut Scratch,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<T, RowError> {
        let mut parts = scratch.parts();
        let Scratch { arena, envelope, schemas, .. } = &mut *scratch;
        self.id(arena)?;
        let id = self.encoded(self.plan.id, &connect.id, arena)?;
        self.topic_values(&mut parts.topic, arena)?;
        let key = self.encoded_or_absent(self.plan.key, &connect.key, arena)?;
        let value = self.connect_value(connect, arena, schemas, envelope)?;
        parts.headers.push(HeaderDraft { name: "id".into(), value: id });
        let skip_null = self.mapping.connect.as_ref().is_some_and(|connect| connect.skip_null_headers);
        for (at, ((name, index), encoder)) in self.plan.extra_headers.iter().zip(&connect.headers).enumerate() {
            self.constants(at, &mut parts.headers);
            let value = self.encoded(*index, encoder, arena)?;
            if skip_null && matches!(value, Piece::Null) {
                continue;
            }
            parts.headers.push(HeaderDraft { name: name.into(), value });
        }
        self.last_headers(&mut parts.headers, arena);
        self.with_parts(parts, key, value, scratch, take)
    }

    /// Encodes a column's value.
    fn encoded(self, index: usize, encoder: &Encoder, arena: &mut Arena) -> Result<Piece<'a>, RowError> {
        self.encode(index, encoder, arena).map_err(|fault| self.unwritable(index, fault))
    }

    fn encoded_or_absent(
        self,
        index: Option<usize>,
        encoder: &Encoder,
        arena: &mut Arena,
    ) -> Result<Piece<'a>, RowError> {
        match (index, encoder) {
            (Some(index), _) => self.encoded(index, encoder, arena),
            (None, Encoder::Absent { null }) => Ok(null_piece(null, arena)),
            (None, Encoder::AsIs { .. } | Encoder::Write { .. }) => Ok(Piece::Null),
        }
    }

    fn encode(self, index: usize, encoder: &Encoder, arena: &mut Arena) -> Result<Piece<'a>, ValueFault> {
        let piece = self.piece(index, Booleans::Words, arena)?;
        let (reader, form, null, must_convert) = match encoder {
            Encoder::Write { reader, form, null, must_convert } => (reader, form, null, *must_convert),
            Encoder::AsIs { null } | Encoder::Absent { null } if piece == Piece::Null => {
                return Ok(null_piece(null, arena));
            }
            Encoder::AsIs { .. } | Encoder::Absent { .. } => return Ok(piece),
        };
        let Some(bytes) = piece.bytes(arena) else { return Ok(null_piece(null, arena)) };
        let mut out = Vec::new();
        match write(reader, form, bytes, &mut out)? {
            Written::Value => Ok(Piece::written(arena, |arena| arena.extend(&out))),
            Written::Nothing if must_convert => Err(ValueFault::Unreadable),
            Written::Nothing => Ok(null_piece(null, arena)),
        }
    }

    /// Builds the value. `Ok(true)`: it is in `envelope`. Else it is the piece.
    fn connect_value(
        self,
        connect: &ConnectPlan,
        arena: &mut Arena,
        schemas: &mut EnvelopeSchemas,
        envelope: &mut Vec<u8>,
    ) -> Result<Part<'a>, RowError> {
        envelope.clear();
        let fields = match &connect.value {
            ValuePlan::Json { schema, .. } => self.push_schema(schema, arena, schemas, envelope)?,
            ValuePlan::Payload { .. } | ValuePlan::Java { .. } => &[],
        };
        let payload = self.plan.payload;
        if self.mapping.tombstone_on_empty_payload {
            let text = self.payload_text(connect, arena)?;
            if text.is_none() || (connect.blank_counts && self.blank(text.as_deref())) {
                return Ok(Part::Bare(Piece::Null));
            }
        }
        match &connect.value {
            ValuePlan::Payload { encoder, expand } => {
                if let Some(json) = self.expanded(connect, *expand, arena)? {
                    return Ok(Part::Bare(Piece::written(arena, |arena| arena.extend(&json))));
                }
                Ok(Part::Bare(self.encoded(payload, encoder, arena)?))
            }
            ValuePlan::Json { members, expand, .. } => {
                let json = self.expanded(connect, *expand, arena)?;
                self.push_json_envelope(members, fields, json, arena, envelope)?;
                Ok(Part::Enveloped)
            }
            ValuePlan::Java { members } => {
                self.push_java_envelope(members, arena, envelope)?;
                Ok(Part::Enveloped)
            }
        }
    }

    /// The payload for the router: the text of the type's mode, or else what Postgres sends. A null, or a value that cannot be
    /// converted, is replaced by the default. `None`: there is no default.
    fn payload_text<'s>(self, connect: &'s ConnectPlan, arena: &'s mut Arena) -> Result<Option<Cow<'s, [u8]>>, RowError>
    where
        'a: 's,
    {
        let index = self.plan.payload;
        let piece = self.piece(index, Booleans::Words, arena)?;
        let default = connect.payload_default.as_deref().map(str::as_bytes);
        let Some(bytes) = piece.bytes(arena).or(default) else { return Ok(None) };
        let Some(reader) = &connect.payload_reader else { return Ok(Some(Cow::Borrowed(bytes))) };
        let fails = self.mapping.connect.as_ref().is_some_and(|connect| connect.fail_on_conversion);
        match reader.read(bytes) {
            Some(ConnectValue::Nothing) if !fails => Ok(default.map(Cow::Borrowed)),
            None | Some(ConnectValue::Nothing) => Err(self.unwritable(index, ValueFault::Unreadable)),
            Some(value) if connect.payload_is_text => {
                let mut text = Vec::new();
                value.push_java(&mut text).map_err(|why| self.unwritable(index, why.into()))?;
                Ok(Some(Cow::Owned(text)))
            }
            Some(_) => Ok(Some(Cow::Borrowed(bytes))),
        }
    }

    /// The payload as JSON. `None`: the payload stays as it is.
    fn expanded(
        self,
        connect: &ConnectPlan,
        expand: Option<Expand>,
        arena: &mut Arena,
    ) -> Result<Option<Vec<u8>>, RowError> {
        let Some(how) = expand else { return Ok(None) };
        let payload = self.plan.payload;
        let Some(bytes) = self.payload_text(connect, arena)? else { return Ok(None) };
        let text = std::str::from_utf8(&bytes).map_err(|_| self.unwritable(payload, ValueFault::NotUtf8))?;
        match expand::expand(text, how) {
            Expanded::Json(json) => Ok(Some(json)),
            Expanded::String => Ok(None),
            Expanded::Broken => Err(self.unwritable(payload, ValueFault::Unreadable)),
        }
    }

    /// The columns of an envelope. The payload's comes first.
    fn member_indexes(self) -> impl Iterator<Item = usize> {
        std::iter::once(self.plan.payload).chain(self.plan.envelope.iter().map(|(_, index)| *index))
    }

    fn push_json_envelope(
        self,
        members: &[(String, Encoder)],
        fields: &[EnvelopeField],
        expanded: Option<Vec<u8>>,
        arena: &mut Arena,
        envelope: &mut Vec<u8>,
    ) -> Result<(), RowError> {
        let has_schema = !envelope.is_empty();
        let mut expanded = expanded;
        let mut before = b'{';
        for field in fields {
            envelope.push(before);
            envelope.extend(field.name.as_bytes());
            before = b',';
            let member = members.iter().zip(self.member_indexes()).find(|((name, _), _)| *name == field.name);
            match (expanded.take(), member) {
                (Some(json), _) => envelope.extend(json),
                (None, Some(((_, encoder), index))) => {
                    envelope.extend(self.encoded(index, encoder, arena)?.bytes(arena).unwrap_or(b"null"));
                }
                (None, None) => envelope.extend(field.null.as_bytes()),
            }
        }
        envelope.push(b'}');
        if has_schema {
            envelope.push(b'}');
        }
        Ok(())
    }

    /// Writes from `{"schema":` up to and with `"payload":`, if schemas are written. Returns the members. The schema of a tombstone is
    /// stored as well, although it is not written.
    fn push_schema<'s>(
        self,
        schema: &'s EnvelopeSchema,
        arena: &mut Arena,
        schemas: &'s mut EnvelopeSchemas,
        envelope: &mut Vec<u8>,
    ) -> Result<&'s [EnvelopeField], RowError> {
        let route = self.piece(schema.route, Booleans::Words, arena)?;
        let version = schema.version.map_or(Ok(Piece::Null), |index| self.piece(index, Booleans::Words, arena))?;
        let route = std::str::from_utf8(route.bytes(arena).unwrap_or_default())
            .map_err(|_| self.unwritable(schema.route, ValueFault::NotUtf8))?;
        Ok(schemas.push(schema, version.bytes(arena), route, envelope))
    }

    fn push_java_envelope(
        self,
        members: &[(String, Encoder)],
        arena: &mut Arena,
        envelope: &mut Vec<u8>,
    ) -> Result<(), RowError> {
        envelope.extend(b"Struct{");
        let mut first = true;
        for ((name, encoder), index) in members.iter().zip(self.member_indexes()) {
            let piece = self.encoded(index, encoder, arena)?;
            let Some(bytes) = piece.bytes(arena) else { continue };
            if !std::mem::take(&mut first) {
                envelope.push(b',');
            }
            envelope.extend(name.as_bytes());
            envelope.push(b'=');
            envelope.extend(bytes);
        }
        envelope.push(b'}');
        Ok(())
    }

    #[cold]
    fn unwritable(self, index: usize, fault: ValueFault) -> RowError {
        let mut arena = Arena::new();
        let piece = self.piece(index, Booleans::Words, &mut arena).unwrap_or(Piece::Null);
        let value = shown(piece.bytes(&arena).unwrap_or_default());
        let column = self.plan.column_name(index).to_owned();
        match fault {
            ValueFault::Row(error) => error,
            ValueFault::Unreadable => self.bad_row(BadReason::Unwritable { column, value }),
            ValueFault::NotUtf8 => self.bad_row(BadReason::NotUtf8 { column, value }),
        }
    }
}

fn null_piece<'a>(null: &NullForm, arena: &mut Arena) -> Piece<'a> {
    match null {
        NullForm::Nothing => Piece::Null,
        NullForm::Text(text) => Piece::written(arena, |arena| arena.extend(text.as_bytes())),
    }
}

/// Whether a value was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Value,
    /// Debezium has no value for this text.
    Nothing,
}

pub(super) fn write(
    reader: &super::TypeReader,
    form: &ValueForm,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<Written, ValueFault> {
    let value = reader.read(bytes).ok_or(ValueFault::Unreadable)?;
    if value == ConnectValue::Nothing {
        return Ok(Written::Nothing);
    }
    match form {
        ValueForm::Java => value.push_java(out)?,
        ValueForm::Simple => value.push_simple(out, false)?,
        ValueForm::Json(json) => value.push_json(out, *json)?,
        ValueForm::JsonWithSchema { json, before } => {
            out.extend(before.as_bytes());
            value.push_json(out, *json)?;
            out.push(b'}');
        }
    }
    Ok(Written::Value)
}

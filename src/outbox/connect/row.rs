//! Builds one record of one row, as Debezium's router and the converters do.
//!
//! As in [`record`](super::super::record), first every part becomes a [`Piece`], and then the caller gets the record. Between rows only
//! the memory is kept.

use std::borrow::Cow;

use super::super::fault::{BadReason, RowError};
use super::super::record::{HeaderDraft, MappedRow, RecordValue as Part, Scratch};
use super::super::value::{Arena, Booleans, Piece};
use super::envelope::{EnvelopeField, EnvelopeSchema, EnvelopeSchemas};
use super::expand::{self, Expanded};
use super::value::{ConnectValue, Unwritable};
use super::{ConnectPlan, Encoder, ValueForm, ValuePlan};
use crate::setting_text::shown;
use crate::sink::Record;

impl<'a> MappedRow<'a> {
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
        let key = match (self.plan.key, &connect.key) {
            (Some(index), Some(encoder)) => self.encoded(index, encoder, arena)?,
            (_, _) => null_piece(connect.absent_key.as_ref(), arena),
        };
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
        let piece = self.piece(index, Booleans::Words, arena)?;
        let (Encoder::AsIs { null } | Encoder::Write { null, .. }) = encoder;
        let Some(bytes) = piece.bytes(arena) else { return Ok(null_piece(null.as_ref(), arena)) };
        let Encoder::Write { reader, form, must_convert, .. } = encoder else { return Ok(piece) };
        let mut out = Vec::new();
        match write(reader, form, bytes, &mut out) {
            Ok(true) => Ok(Piece::written(arena, |arena| arena.extend(&out))),
            Ok(false) if *must_convert => Err(self.unwritable(index, Unwritable::NoForm)),
            Ok(false) => Ok(null_piece(null.as_ref(), arena)),
            Err(fault) => Err(self.unwritable(index, fault)),
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
            ValuePlan::Payload(_) | ValuePlan::Java { .. } => &[],
        };
        let payload = self.plan.payload;
        if self.mapping.tombstone_on_empty_payload {
            let text = self.payload_text(connect, arena)?;
            if text.is_none() || (connect.blank_counts && self.blank(text.as_deref())) {
                return Ok(Part::Bare(Piece::Null));
            }
        }
        match &connect.value {
            ValuePlan::Payload(encoder) => {
                if let Some(json) = self.expanded(connect, arena)? {
                    return Ok(Part::Bare(Piece::written(arena, |arena| arena.extend(&json))));
                }
                Ok(Part::Bare(self.encoded(payload, encoder, arena)?))
            }
            ValuePlan::Json { members, .. } => {
                let json = self.expanded(connect, arena)?;
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
            None | Some(ConnectValue::Nothing) => Err(self.unwritable(index, Unwritable::NoForm)),
            Some(value) if connect.payload_is_text => {
                let mut text = Vec::new();
                value.push_java(&mut text).map_err(|why| self.unwritable(index, why))?;
                Ok(Some(Cow::Owned(text)))
            }
            Some(_) => Ok(Some(Cow::Borrowed(bytes))),
        }
    }

    /// The payload as JSON. `None`: the payload stays as it is.
    fn expanded(self, connect: &ConnectPlan, arena: &mut Arena) -> Result<Option<Vec<u8>>, RowError> {
        let Some(how) = connect.expand else { return Ok(None) };
        let payload = self.plan.payload;
        let Some(bytes) = self.payload_text(connect, arena)? else { return Ok(None) };
        let text = std::str::from_utf8(&bytes).map_err(|_| self.unwritable(payload, Unwritable::NotUtf8))?;
        match expand::expand(text, how) {
            Expanded::Json(json) => Ok(Some(json)),
            Expanded::String => Ok(None),
            Expanded::Broken => Err(self.unwritable(payload, Unwritable::NoForm)),
        }
    }

    /// The columns of an envelope. The payload's comes first.
    fn member_indexes(self) -> impl Iterator<Item = usize> {
        std::iter::once(self.plan.payload).chain(self.plan.envelope.iter().map(|member| member.column))
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
            .map_err(|_| self.unwritable(schema.route, Unwritable::NotUtf8))?;
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
    fn unwritable(self, index: usize, fault: Unwritable) -> RowError {
        let mut arena = Arena::new();
        let piece = self.piece(index, Booleans::Words, &mut arena).unwrap_or(Piece::Null);
        let value = shown(piece.bytes(&arena).unwrap_or_default());
        let column = self.plan.column_name(index).to_owned();
        self.bad_row(match fault {
            Unwritable::NoForm => BadReason::Unwritable { column, value },
            Unwritable::NotUtf8 => BadReason::NotUtf8 { column, value },
        })
    }
}

fn null_piece<'a>(null: Option<&String>, arena: &mut Arena) -> Piece<'a> {
    null.map_or(Piece::Null, |text| Piece::written(arena, |arena| arena.extend(text.as_bytes())))
}

/// Writes the value of a column's text. `Ok(false)`: Debezium has no value for this text.
pub(super) fn write(
    reader: &super::TypeReader,
    form: &ValueForm,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, Unwritable> {
    let value = reader.read(bytes).ok_or(Unwritable::NoForm)?;
    if value == ConnectValue::Nothing {
        return Ok(false);
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
    Ok(true)
}

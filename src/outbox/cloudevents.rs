//! Records as CloudEvents: the attributes as headers, or everything in one JSON object.
//!
//! ```text
//!  binary       headers ce_specversion, ce_id, ce_source, ce_type, ce_time, ce_subject, content-type; the value is the payload
//!  structured   {"specversion":…,"id":…,"source":…,"type":…,"time":…,"subject":…,"datacontenttype":…,"data":…}
//! ```
//!
//! In: a row. Out: headers, or a value. An event needs an id, a type and a source. The subject is the key, and the time is the
//! row's own, whenever the record is sent. If a row lacks another attribute, it is left out; if it lacks one that the event needs, the row is bad. A row allocates
//! nothing.
//! Specification: CloudEvents 1.0.2, "JSON Event Format", "Kafka Protocol Binding", "NATS Protocol Binding".

use super::fault::{BadReason, RowError};
use super::json;
use super::mapping::{CloudEvents, EventMode};
use super::record::{CONTENT_TYPE, HeaderDraft, MappedRow, RecordValue};
use super::time::push_rfc3339;
use super::value::{Arena, Booleans, Piece};
use crate::sink::Content;
use percent_encoding::percent_encode_byte;

/// The version of the specification.
const VERSION: &str = "1.0";

/// The media type of a value in structured mode.
const STRUCTURED: &str = "application/cloudevents+json; charset=UTF-8";

/// The attributes of an event, as the row has them.
#[derive(Clone, Copy)]
struct Attributes<'a> {
    id: Piece<'a>,
    kind: Piece<'a>,
    subject: Piece<'a>,
    time: Piece<'a>,
}

impl<'a> MappedRow<'a> {
    fn attributes(self, id: Piece<'a>, arena: &mut Arena) -> Result<Attributes<'a>, RowError> {
        let column = || self.plan.event_type.map_or("?", |index| self.plan.column_name(index)).to_owned();
        let missing = || self.bad_row(BadReason::MissingType { column: column() });
        let kind = self.optional(self.plan.event_type, Booleans::Words, arena)?;
        if kind.bytes(arena).unwrap_or_default().is_empty() {
            return Err(missing());
        }
        if id.bytes(arena).unwrap_or_default().is_empty() {
            return Err(self.bad_row(BadReason::MissingId { column: self.plan.column_name(self.plan.id).to_owned() }));
        }
        let subject = self.key(Booleans::Words, arena)?;
        // CloudEvents allows no empty attribute.
        let subject = if subject.bytes(arena).is_some_and(<[u8]>::is_empty) { Piece::Null } else { subject };
        let millis = self.event_millis(arena)?;
        let time = Piece::written(arena, |arena| push_rfc3339(arena, millis));
        Ok(Attributes { id, kind, subject, time })
    }

    /// Appends the headers of an event. They come after the headers of all records.
    pub(super) fn event_headers(
        self,
        events: &'a CloudEvents,
        id: Piece<'a>,
        drafts: &mut Vec<HeaderDraft<'a>>,
        arena: &mut Arena,
    ) -> Result<(), RowError> {
        let EventMode::Binary { names, percent } = &events.mode else {
            let value = Piece::Borrowed(STRUCTURED.as_bytes());
            drafts.push(HeaderDraft { name: CONTENT_TYPE.into(), value });
            return Ok(());
        };
        let Attributes { id, kind, subject, time } = self.attributes(id, arena)?;
        let text = |text: &'a str| Piece::Borrowed(text.as_bytes());
        let values = [text(VERSION), id, text(&events.source), kind, time, subject];
        for (name, value) in names.iter().zip(values) {
            let value = if *percent { percent_encoded(value, arena) } else { value };
            if value != Piece::Null {
                drafts.push(HeaderDraft { name: name.as_str().into(), value });
            }
        }
        drafts.push(HeaderDraft { name: CONTENT_TYPE.into(), value: text(self.kind(self.plan.payload).media_type()) });
        Ok(())
    }

    /// Writes the event as one JSON object. `None`: the payload is the value.
    pub(super) fn event_value(
        self,
        events: &'a CloudEvents,
        id: Piece<'a>,
        payload: Piece<'a>,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> Result<Option<RecordValue<'a>>, RowError> {
        if events.mode != EventMode::Structured {
            return Ok(None);
        }
        let Attributes { id, kind, subject, time } = self.attributes(id, arena)?;
        out.clear();
        out.extend(b"{\"specversion\":\"1.0\",\"source\":");
        json::push_text(out, &events.source);
        let texts: [(&[u8], Option<usize>, Piece<'a>); 4] = [
            (b",\"id\":", Some(self.plan.id), id),
            (b",\"type\":", self.plan.event_type, kind),
            (b",\"time\":", None, time),
            (b",\"subject\":", self.plan.key, subject),
        ];
        for (name, column, piece) in texts {
            let Some(bytes) = piece.bytes(arena) else { continue };
            out.extend(name);
            match std::str::from_utf8(bytes) {
                Ok(text) => json::push_text(out, text),
                Err(_) => return Err(self.not_utf8(column.unwrap_or(self.plan.id), bytes)),
            }
        }
        self.push_data(payload, arena, out)?;
        out.push(b'}');
        Ok(Some(RecordValue::Enveloped))
    }

    /// Appends the payload: JSON as it is, bytes in base64, and other types as a string.
    fn push_data(self, payload: Piece<'a>, arena: &Arena, out: &mut Vec<u8>) -> Result<(), RowError> {
        let Some(bytes) = payload.bytes(arena) else { return Ok(()) };
        let kind = self.kind(self.plan.payload);
        out.extend(b",\"datacontenttype\":");
        json::push_text(out, kind.media_type());
        match kind.content() {
            Content::Json => {
                out.extend(b",\"data\":");
                out.extend(bytes);
            }
            Content::Bytes => {
                out.extend(b",\"data_base64\":");
                json::push_base64(out, bytes);
            }
            Content::Text | Content::Unknown => {
                out.extend(b",\"data\":");
                let text = std::str::from_utf8(bytes).map_err(|_| self.not_utf8(self.plan.payload, bytes))?;
                json::push_text(out, text);
            }
        }
        Ok(())
    }
}

/// Encodes as HTTP's binding does: the quote, the percent sign and all that is not visible ASCII become `%XX`.
fn percent_encoded<'a>(value: Piece<'a>, arena: &mut Arena) -> Piece<'a> {
    let plain = |byte: u8| (0x21..=0x7E).contains(&byte) && byte != b'"' && byte != b'%';
    if value.bytes(arena).unwrap_or_default().iter().all(|&byte| plain(byte)) {
        return value;
    }
    let length = value.bytes(arena).map_or(0, <[u8]>::len);
    let start = arena.len();
    for at in 0..length {
        let Some(&byte) = value.bytes(arena).and_then(|bytes| bytes.get(at)) else { break };
        if plain(byte) {
            arena.push(byte);
        } else {
            arena.extend(percent_encode_byte(byte).as_bytes());
        }
    }
    Piece::Decoded(start, arena.len())
}

//! Takes a message whose frame is above `--max-row`, by its first bytes.
//!
//! In: the front of a CopyData frame, as much of it as has come. Out: whether the stream can skip the frame. The front says the message's
//! kind, and of a row only its table. So such a row has no dead letter: its action is stop or skip.
//! Specification: as for [`pgoutput`](crate::pgoutput).

use super::rows::unreadable;
use super::session::{FrameStep, Session, Turn, WaitCause, disconnected};
use super::verdict::{Kind, Seen, Verdict, decide};
use super::{Clock, Relay};
use crate::outbox::{BadReason, BadRow, Ignored, Outbox, RowContext, RowError};
use crate::pg::frame::FrameError;
use crate::pgoutput::RelationId;
use crate::sink::{Sink, Source};
use crate::wire::{DecodeError, Reader};

/// So many bytes are enough for any kind but a message with a longer prefix.
const HEAD_BYTES: usize = 512;

/// The message's kind.
#[derive(Debug, PartialEq, Eq)]
enum Oversized<'a> {
    Insert(RelationId),
    Update(RelationId),
    Delete,
    Message { transactional: bool, prefix: &'a str },
    Unknown,
}

/// Reads the front; `None`: more of it has to come first.
fn oversized(front: &[u8]) -> Option<Oversized<'_>> {
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

impl<S: Sink, C: Clock> Relay<S, C> {
    /// Takes a frame above `--max-row`. `Done`: the stream can skip it.
    #[cold]
    pub(super) fn take_oversized(&mut self, front: &[u8], error: FrameError, session: &mut Session) -> Turn<FrameStep> {
        let Some(found) = oversized(front) else { return Ok(FrameStep::Wait(WaitCause::ForBytes)) };
        match found {
            Oversized::Insert(relation) => {
                let published = |outbox: &mut Outbox, context: &RowContext| {
                    let listed = outbox.update(relation, context.position.final_lsn)?.is_some();
                    Ok(listed.then(|| outbox.table(relation).to_owned()))
                };
                self.take_oversized_row("Insert", Source::Table(relation), published, &error, session)
            }
            Oversized::Message { transactional: true, prefix } => {
                let published = |outbox: &mut Outbox, _: &RowContext| {
                    Ok(outbox.wants_message(prefix).then(|| format!("message {prefix:?}")))
                };
                let source = Source::Message(self.outbox.message_prefix_index(prefix));
                self.take_oversized_row("Message", source, published, &error, session)
            }
            Oversized::Message { transactional: false, prefix } => {
                if self.outbox.wants_message(prefix) {
                    self.metrics.ignored(Ignored::NonTransactionalMessage.label(), 1);
                }
                Ok(FrameStep::Done)
            }
            Oversized::Update(relation) => self.take_update(relation, None, session),
            Oversized::Delete => Ok(FrameStep::Done),
            // Records before it are delivered first.
            Oversized::Unknown if self.sink.in_flight().records > 0 => Ok(FrameStep::Wait(WaitCause::ForRoom)),
            Oversized::Unknown => Err(disconnected(error.into())),
        }
    }

    /// Takes a row above `--max-row`. Nothing of it can be read, so it cannot become a dead letter either.
    fn take_oversized_row(
        &mut self,
        message: &'static str,
        source: Source,
        published: impl FnOnce(&mut Outbox, &RowContext) -> Result<Option<String>, RowError>,
        error: &FrameError,
        session: &mut Session,
    ) -> Turn<FrameStep> {
        let Some(context) = session.row_context(message)? else {
            session.next_row();
            return Ok(FrameStep::Done);
        };
        let position = context.position;
        let table = match published(&mut self.outbox, &context) {
            Ok(Some(table)) => table,
            Ok(None) => return Ok(self.row_done(session)),
            Err(error) => return Err(unreadable(error, position)),
        };
        let reason = match *error {
            FrameError::TooLarge { length, limit, .. } => BadReason::TooLarge { bytes: length, limit },
            FrameError::BadLength { .. } => return Err(disconnected(error.clone().into())),
        };
        let row = BadRow { table, id: None, reason };
        Ok(match decide(self.bad_rows.action(position), Seen::Unreadable, Kind::Row) {
            Verdict::Skip => self.skip_row(&row, source, position, session),
            Verdict::Stop | Verdict::Wait | Verdict::DeadLetter { .. } => self.stop_at(row, position, None, session),
        })
    }
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

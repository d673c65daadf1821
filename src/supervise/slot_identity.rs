//! Whether the slot is still the one that this process saw: asked before the slot is taken, while it is waited for, and once it is ours.
//!
//! In: a connection, what was seen last, how far the relay has read. Out: where the slot is, or why nothing may be read from it.
//! Invariant: a slot that is ahead of what was read is read on only where something proves that it is the same slot
//! ([`instance`]), or where the operator has named its position. A process that begins has seen nothing: for it the setup marker speaks.
//!
//! The first look comes before the slot is taken: a relay that takes it, finds it new and leaves would look to the next one as a
//! relay that has worked.

use super::StreamTarget;
use super::error::RunError;
use crate::lsn::Lsn;
use crate::pg::instance::{self, Agreement, Sighting, Witness};
use crate::pg::{Connection, catalog, identifier, literal, marker};

/// The slot, as it was seen last.
#[derive(Debug, Default)]
pub(super) struct SlotIdentity {
    last: Option<Sighting>,
}

impl SlotIdentity {
    /// Looks at the slot, which walsender `own` holds for us. Where it is, and which walsender holds it.
    pub(super) fn look(
        &mut self,
        connection: &mut Connection,
        target: &StreamTarget,
        (witness, own): (Witness, Option<u32>),
    ) -> Result<(Lsn, Option<u32>), RunError> {
        let Some(now) = instance::sight(connection, &target.slot)? else {
            return Err(RunError::NoSlot { slot: target.slot.clone(), was_there: self.last.is_some() });
        };
        let reader = now.reader;
        let now = now.less(own);
        match &self.last {
            None => check_marker(connection, target, &now)?,
            Some(last) => compare(target, last, &now, witness)?,
        }
        let confirmed = now.confirmed.unwrap_or_default();
        self.last = Some(now);
        Ok((confirmed, reader))
    }

    /// Whether somebody has read the slot, as it was seen last; `comment`: of its publication.
    pub(super) fn was_read(&self, comment: Option<&str>, slot: &str) -> bool {
        self.last.as_ref().is_some_and(|seen| seen.was_read(marker::anchor(comment, slot).as_ref()))
    }

    /// The timeline was left at `switch_point`. What a relay that `has_read` nothing saw on the old one does not bind it.
    pub(super) fn timeline_left_at(&mut self, switch_point: Lsn, has_read: bool) {
        self.last = self.last.take().filter(|_| has_read).map(|last| last.before(switch_point));
    }
}

fn compare(target: &StreamTarget, last: &Sighting, now: &Sighting, witness: Witness) -> Result<(), RunError> {
    if let Some(proof) = last.proves(now, witness) {
        tracing::debug!(slot = target.slot, ?proof, "the slot is the one that was seen before");
        return Ok(());
    }
    let read = witness.read.max(last.confirmed.unwrap_or_default());
    let confirmed = now.confirmed.unwrap_or_default();
    if target.accept_slot_at == now.confirmed && now.confirmed.is_some() {
        tracing::warn!(
            slot = target.slot,
            %read, %confirmed,
            "--accept-slot-at: resuming there; rows committed in between may never have been published"
        );
        return Ok(());
    }
    Err(RunError::SlotUnproven { slot: target.slot.clone(), read, confirmed })
}

/// Sees that the slot is the one that the setup marker is for. While another relay reads the slot, that one has seen to it.
fn check_marker(connection: &mut Connection, target: &StreamTarget, now: &Sighting) -> Result<(), RunError> {
    let (publication, slot) = (&target.publication, &target.slot);
    let mark = catalog::publication_mark(connection, publication)?;
    let Err(error) = agrees(publication, slot, mark.comment.as_deref(), now) else { return Ok(()) };
    if now.confirmed.is_none() || target.accept_slot_at != now.confirmed || !mark.owned {
        return Err(error);
    }
    tracing::warn!(
        slot,
        confirmed = %now.confirmed.unwrap_or_default(),
        "--accept-slot-at: resuming there; the setup marker no longer says since when the slot carries every row"
    );
    // Nobody could tell from the slot, once it has been read, that this marker was another one's: prune would trust it.
    let text = marker::set(marker::removed(mark.comment.as_deref(), slot).as_deref(), slot);
    connection.query(&format!("COMMENT ON PUBLICATION {} IS {}", identifier(publication), literal(&text)))?;
    Ok(())
}

/// Whether the slot may be the one that the marker in `comment` is for.
pub(crate) fn agrees(publication: &str, slot: &str, comment: Option<&str>, now: &Sighting) -> Result<(), RunError> {
    let anchor = marker::anchor(comment, slot).filter(|_| now.reader.is_none());
    match anchor {
        Some(anchor) if anchor.agrees(now) == Agreement::Refuted => Err(RunError::SlotNotMarked {
            slot: slot.to_owned(),
            publication: publication.to_owned(),
            marked: anchor.written,
            confirmed: now.confirmed.unwrap_or_default(),
        }),
        Some(_) | None => Ok(()),
    }
}

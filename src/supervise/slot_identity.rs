//! Checks that the slot is still the one that this process saw: before it takes the slot, while it waits for it, and after it has taken
//! it.
//!
//! In: a connection, the last sighting, the position up to which the relay has read. Out: the slot's position, or why it must not be
//! read.
//! Invariant: if a slot is ahead of the relay's position, it is read only with a proof that it is the same slot ([`slot_sighting`]), or if
//! the operator has named its position. A new process has no sighting, and uses the setup marker. So a process that refuses the slot leaves
//! word of it, which keeps `prune` from deleting rows once another process reads the slot.
//!
//! The first check comes before the slot is taken. If a relay took it, found that it is new and released it, the next relay would take
//! this one for a relay that has published rows.

use super::StreamTarget;
use super::error::RunError;
use crate::lsn::Lsn;
use crate::pg::slot_sighting::{self, Agreement, Sighting, Witness};
use crate::pg::{Connection, Error, catalog, marker};

/// The slot when it was last seen.
#[derive(Debug, Default)]
pub(super) struct SlotIdentity {
    last: Option<Sighting>,
    /// Whether the operator has accepted the slot since this was asked last.
    accepted: bool,
    /// The position of a slot that was refused since this was asked last, since it may be another one.
    doubted: Option<Lsn>,
}

impl SlotIdentity {
    /// Reads the slot, which this relay's walsender `own` may hold. Returns its position, and the walsender that holds it.
    pub(super) fn check(
        &mut self,
        connection: &mut Connection,
        target: &StreamTarget,
        (witness, own): (Witness, Option<u32>),
    ) -> Result<(Lsn, Option<u32>), RunError> {
        let Some(now) = slot_sighting::sight(connection, &target.slot)? else {
            return Err(RunError::no_slot(&target.slot, self.last.is_some()));
        };
        // Without its position, nothing tells whether it is the same slot.
        let Some(confirmed) = now.confirmed else {
            return Err(Error::SlotUnfinished { slot: target.slot.clone() }.into());
        };
        let reader = now.reader;
        let now = now.without_reader(own);
        let accepted = match &self.last {
            None => check_marker(connection, target, (&now, confirmed)),
            Some(last) => compare(target, last, (&now, confirmed), witness),
        };
        let is_refused = accepted.as_ref().is_err_and(|error| error.postgres().is_none());
        self.doubted = self.doubted.or_else(|| is_refused.then_some(confirmed));
        self.accepted |= accepted?;
        self.last = Some(now);
        Ok((confirmed, reader))
    }

    /// Whether the operator has accepted the slot since this was asked last: rows from before its position may be in no topic.
    pub(super) fn take_accepted(&mut self) -> bool {
        std::mem::take(&mut self.accepted)
    }

    /// The position of a slot that was refused since this was asked last, since it may be another one: rows from before its position may be in no
    /// topic.
    pub(super) fn take_doubted(&mut self) -> Option<Lsn> {
        self.doubted.take()
    }

    /// Whether a relay has read the slot. `comment`: that of the publication.
    pub(super) fn was_read(&self, comment: Option<&str>, slot: &str) -> bool {
        self.last.as_ref().is_some_and(|seen| seen.was_read(marker::anchor(comment, slot).as_ref()))
    }

    /// The server has left the timeline at `switch_point`. If the relay `has_read` nothing, its sightings on the old timeline do not
    /// count.
    pub(super) fn timeline_left_at(&mut self, switch_point: Lsn, has_read: bool) {
        self.last = self.last.take().filter(|_| has_read).map(|last| last.after_switch(switch_point));
    }
}

/// Checks that the slot is the one that was seen last. `confirmed`: its position now. Returns whether only the operator says so.
fn compare(
    target: &StreamTarget,
    last: &Sighting,
    (now, confirmed): (&Sighting, Lsn),
    witness: Witness,
) -> Result<bool, RunError> {
    if let Some(proof) = last.proves(now, witness) {
        tracing::debug!(slot = target.slot, ?proof, "the slot is the one that was seen before");
        return Ok(false);
    }
    let read = witness.read.max(last.confirmed.unwrap_or_default());
    if target.accept_slot_at == Some(confirmed) {
        tracing::warn!(
            slot = target.slot,
            %read, %confirmed,
            "--accept-slot-at: resuming there; rows committed in between may never have been published"
        );
        return Ok(true);
    }
    Err(RunError::slot_unproven(&target.slot, read, confirmed))
}

/// Checks that the slot, which is at `confirmed`, fits the setup marker. If another relay reads the slot, that relay has checked it. Returns
/// whether only the operator says so.
fn check_marker(
    connection: &mut Connection,
    target: &StreamTarget,
    (now, confirmed): (&Sighting, Lsn),
) -> Result<bool, RunError> {
    let (publication, slot) = (&target.publication, &target.slot);
    let mark = catalog::publication_mark(connection, publication)?;
    let Err(error) = agrees(publication, slot, mark.comment.as_deref(), now) else { return Ok(false) };
    if target.accept_slot_at != Some(confirmed) || !mark.owned {
        return Err(error);
    }
    tracing::warn!(
        slot,
        %confirmed,
        "--accept-slot-at: resuming there; the setup marker no longer says which tables were empty"
    );
    // Once the slot was read, nobody could tell that this marker was another slot's, and prune would trust it. Another slot may be marked
    // meanwhile.
    connection.query(&format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_catalog.pg_advisory_xact_lock({})",
        marker::lock_key()
    ))?;
    let comment = catalog::publication_mark(connection, publication)?.comment;
    let text = marker::set(marker::removed(comment.as_deref(), slot).as_deref(), slot);
    connection.query(&marker::comment_sql(publication, Some(&text)))?;
    connection.query("COMMIT")?;
    Ok(true)
}

/// Whether the slot may be the one of the marker in `comment`.
pub(crate) fn agrees(publication: &str, slot: &str, comment: Option<&str>, now: &Sighting) -> Result<(), RunError> {
    let anchor = marker::anchor(comment, slot).filter(|_| now.reader.is_none());
    match anchor {
        Some(anchor) if anchor.agrees(now) == Agreement::Refuted => {
            Err(RunError::slot_not_marked(slot, publication, anchor.written, now.confirmed.unwrap_or_default()))
        }
        Some(_) | None => Ok(()),
    }
}

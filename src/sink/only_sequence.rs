//! [`OnlySequence`]: the refused record of a destination whose records are all one sequence.
//!
//! In: a record that is refused before it is sent, the relay's decision on it. Out: its refusal. While there is one, the destination takes
//! no other record, so that none overtakes what takes its place.

use super::{Failure, InFlight, OwnedRecord, Record, RefusalId, Refused, Report, Tag};

/// The refused record, if there is one.
#[derive(Debug, Default)]
pub(super) struct OnlySequence {
    held: Option<Box<Refused>>,
    /// The relay knows of it.
    told: bool,
    bytes: u64,
    refusals: u64,
}

impl OnlySequence {
    /// Whether a record is refused and not resolved.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Keeps a record that is refused. There is no other.
    pub(super) fn hold(&mut self, record: &Record<'_>, tag: Tag, failure: &Failure) {
        self.refusals += 1;
        let (id, bytes) = (RefusalId(self.refusals), record.held_bytes() as u64);
        let (record, failure) = (OwnedRecord::of(record), failure.clone());
        *self = Self { held: Some(Box::new(Refused { id, tag, record, failure })), told: false, bytes, ..*self };
    }

    /// Reports the refusal, once. The records before it have been reported.
    pub(super) fn tell(&mut self, each: &mut dyn FnMut(Report)) {
        if let Some(held) = &self.held
            && !std::mem::replace(&mut self.told, true)
        {
            each(Report::Refused(held.clone()));
        }
    }

    /// The tag of the record that this refusal is about.
    pub(super) fn tag(&self, refusal: RefusalId) -> Option<Tag> {
        self.held.as_ref().filter(|held| held.id == refusal).map(|held| held.tag)
    }

    /// Forgets the record: it was resolved, or the sink starts over.
    pub(super) fn forget(&mut self) {
        self.held = None;
    }

    /// Reports the refusal again.
    pub(super) fn tell_again(&mut self) {
        self.told = false;
    }

    /// The records in flight, with the refused one.
    pub(super) fn count(&self, others: InFlight) -> InFlight {
        let held = u64::from(self.is_held());
        InFlight { records: others.records + held, bytes: others.bytes + held * self.bytes, held, ..others }
    }
}

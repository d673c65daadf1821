//! [`OnlySequence`]: the refused record of a destination whose records are all one sequence.
//!
//! In: a record that is refused before it is sent, the relay's decision on it. Out: its refusal. While there is one, the destination takes
//! no other record, so that none overtakes the record that takes its place.

use super::{Enqueue, Failure, InFlight, OwnedRecord, Record, RefusalId, Refused, Report, Resolution, Tag, Token};

/// The refused record, if there is one.
#[derive(Debug, Default)]
pub(super) struct OnlySequence {
    held: Option<Box<Refused>>,
    /// It has been reported.
    reported: bool,
    bytes: u64,
    refusals: u64,
}

impl OnlySequence {
    /// Whether a record is refused and not resolved.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Keeps a record that is refused, unless there is another.
    pub(super) fn try_hold(&mut self, record: &Record<'_>, tag: Tag, failure: &Failure) -> Enqueue {
        if self.is_held() {
            return Enqueue::Full;
        }
        self.refusals += 1;
        let (id, bytes) = (RefusalId(self.refusals), record.held_bytes() as u64);
        let (record, failure) = (OwnedRecord::of(record), failure.clone());
        *self = Self { held: Some(Box::new(Refused { id, tag, record, failure })), reported: false, bytes, ..*self };
        Enqueue::Taken
    }

    /// Reports the refusal, once. The records before it have been reported.
    pub(super) fn report(&mut self, each: &mut dyn FnMut(Report)) {
        if let Some(held) = &self.held
            && !std::mem::replace(&mut self.reported, true)
        {
            each(Report::Refused(held.clone()));
        }
    }

    /// Applies the relay's decision. Returns the record that takes the refused one's place, which the destination has yet to take: after that it
    /// calls [`OnlySequence::forget`].
    pub(super) fn resolve<'a>(&mut self, id: RefusalId, resolution: Resolution<'a>) -> Option<(&'a Record<'a>, Token)> {
        self.held.as_ref().filter(|held| held.id == id)?;
        match resolution {
            Resolution::Retry => self.reported = false,
            Resolution::Skip => self.forget(),
            Resolution::ReplaceWith(record, token) => return Some((record, token)),
        }
        None
    }

    /// Forgets the record: it was resolved, or the sink starts over.
    pub(super) fn forget(&mut self) {
        self.held = None;
    }

    /// The records in flight, with the refused one.
    pub(super) fn count(&self, others: InFlight) -> InFlight {
        let held = u64::from(self.is_held());
        InFlight { records: others.records + held, bytes: others.bytes + held * self.bytes, held, ..others }
    }
}

//! [`decide`]: what becomes of a row whose record, or dead letter, cannot be stored.
//!
//! | what was seen of a record | `stop` | `dead-letter` | `skip` |
//! |---|---|---|---|
//! | no record can be made, or the destination says that it will never take it | stop | dead letter | skip |
//! | its topic has been missing or forbidden for 30 s | wait | dead letter | wait |
//! | its topic is missing or forbidden; anything else | wait | wait | wait |
//! | it is dropped as a repeat | skip | skip | skip |
//! | nothing of the row can be read | stop | stop | skip |
//!
//! | what was seen of a dead letter | with its payload | without |
//! |---|---|---|
//! | the destination says that it will never take it | dead letter without payload | stop |
//! | the dead-letter topic has been missing or forbidden for 5 s | stop | stop |
//! | the topic is missing or forbidden; anything else | wait | wait |
//! | it is dropped as a repeat | skip | skip |
//!
//! A row is at fault only by evidence about that row. That a topic is missing for long is none: with `skip`, the row would be lost. An answer
//! that no list has is none either: the destination then looks for the record by itself, and names it, and a person decides by
//! `--bad-row-at`.
//!
//! In: the action of the settings, what was seen, of which record. Out: a decision; the callers carry it out. Pure.

use super::BadRowAction;

/// The observation about a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// No record can be made of the row, or the destination says that it will never take this record.
    Fault,
    /// As [`Seen::Fault`], and nothing of the row can be read.
    Unreadable,
    /// The destination dropped the record as a repeat, although nobody can have sent it before.
    Dropped,
    /// The record's topic is missing or forbidden, and has been for long.
    TopicGivenUp,
    /// Anything else: the topic's fault, the environment's, or an answer that says nothing about the record.
    Other,
}

/// The record of which it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The row's own.
    Row,
    /// The row's dead letter.
    DeadLetter {
        /// The dead letter has a payload that can be left out.
        with_payload: bool,
    },
}

/// The outcome for the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The record is tried again.
    Wait,
    /// The row is skipped.
    Skip,
    /// The row's dead letter is sent.
    DeadLetter {
        /// It goes without its payload.
        without_payload: bool,
    },
    /// The row stops the relay.
    Stop,
}

/// Decides.
pub(super) const fn decide(action: BadRowAction, seen: Seen, kind: Kind) -> Verdict {
    match (seen, kind) {
        (Seen::Other, _) => Verdict::Wait,
        (Seen::Dropped, _) => Verdict::Skip,
        (Seen::Fault, Kind::DeadLetter { with_payload: true }) => Verdict::DeadLetter { without_payload: true },
        (Seen::Fault | Seen::Unreadable | Seen::TopicGivenUp, Kind::DeadLetter { .. }) => Verdict::Stop,
        (Seen::TopicGivenUp, Kind::Row) => match action {
            BadRowAction::DeadLetter => Verdict::DeadLetter { without_payload: false },
            BadRowAction::Stop | BadRowAction::Skip => Verdict::Wait,
        },
        (Seen::Fault | Seen::Unreadable, Kind::Row) => match action {
            BadRowAction::Skip => Verdict::Skip,
            BadRowAction::DeadLetter if matches!(seen, Seen::Fault) => Verdict::DeadLetter { without_payload: false },
            BadRowAction::Stop | BadRowAction::DeadLetter => Verdict::Stop,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_head_is_what_is_decided() {
        let dead_letter = Verdict::DeadLetter { without_payload: false };
        let bare = Verdict::DeadLetter { without_payload: true };
        let (wait, skip, stop) = (Verdict::Wait, Verdict::Skip, Verdict::Stop);
        for (seen, rows, dead_letters) in [
            (Seen::Fault, [stop, dead_letter, skip], [bare, stop]),
            (Seen::TopicGivenUp, [wait, dead_letter, wait], [stop, stop]),
            (Seen::Other, [wait, wait, wait], [wait, wait]),
            (Seen::Dropped, [skip, skip, skip], [skip, skip]),
            (Seen::Unreadable, [stop, stop, skip], [stop, stop]),
        ] {
            let actions = [BadRowAction::Stop, BadRowAction::DeadLetter, BadRowAction::Skip];
            assert_eq!(actions.map(|action| decide(action, seen, Kind::Row)), rows, "{seen:?}");
            for action in actions {
                let decided = [true, false].map(|with_payload| decide(action, seen, Kind::DeadLetter { with_payload }));
                assert_eq!(decided, dead_letters, "{seen:?}, {action:?}");
            }
        }
    }
}

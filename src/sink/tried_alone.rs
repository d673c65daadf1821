//! [`TriedAlone`]: the record that a destination sends alone, because it does not take it and nobody knows whose fault that is.
//!
//! In: what the destination's client saw. Out: the same, for the relay to show. It decides nothing: no row is given up for an answer that is in
//! no list, whatever `--on-bad-row` says.

use super::{Failure, Origin};
use std::time::Instant;

/// A record that is sent alone, again and again, after answers of the class [`Unlisted`](super::FailureClass::Unlisted).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriedAlone {
    /// The record's row.
    pub origin: Origin,
    /// The record's topic.
    pub topic: String,
    /// When it was first refused alone.
    pub since: Instant,
    /// How often it was refused alone, at least 1.
    pub attempts: u32,
    /// The last answer.
    pub answer: Failure,
    /// Whether the destination has acknowledged another record of the topic between two of these refusals.
    pub others_arrive: bool,
}

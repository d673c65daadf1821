//! [`TriedAlone`]: the record that a destination sends alone, because it does not take it and nobody knows whose fault that is.
//!
//! In: what the destination's client saw. Out: the same, for the relay to show. It decides nothing: no row is given up for an answer that is in
//! no list, whatever `--on-bad-row` says.

use super::{Failure, Origin};
use std::time::{Duration, Instant};

/// The pauses before the next attempts; the last one repeats.
const PAUSES: [u64; 5] = [5, 10, 20, 40, 60];

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

impl TriedAlone {
    /// A record that has not been refused alone yet.
    pub fn new(origin: Origin, topic: &str, answer: &Failure, now: Instant) -> Self {
        Self { origin, topic: topic.to_owned(), since: now, attempts: 0, answer: answer.clone(), others_arrive: false }
    }

    /// The record was refused alone. `other_arrived`: another record of its topic was acknowledged since the last time. Returns the pause
    /// before it is sent again.
    pub fn refused(&mut self, answer: &Failure, other_arrived: bool) -> Duration {
        self.others_arrive |= other_arrived && self.attempts > 0;
        self.answer.clone_from(answer);
        let pause = PAUSES.get(self.attempts as usize).or(PAUSES.last()).copied().unwrap_or_default();
        self.attempts = self.attempts.saturating_add(1);
        Duration::from_secs(pause)
    }
}

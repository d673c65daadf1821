//! Waits out a server that is unavailable, for a command that can be run again.
//!
//! In: a failure, and the word that it is over. Out: a pause, or the failure, once waiting has no use: it is not the environment's, or
//! has lasted too long. For threads of their own: it sleeps.

use crate::sink::{Failure, FailureClass};
use std::thread;
use std::time::{Duration, Instant};

/// How long the server may be unavailable: nothing is lost, and the command can be run again.
const AT_MOST: Duration = Duration::from_mins(1);

/// How long to wait before it is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// A server that may be unavailable.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Instant>,
}

impl Outage {
    /// Waits a moment, unless that has no use.
    ///
    /// # Errors
    /// It has none.
    pub fn wait(&mut self, failure: Failure) -> Result<(), Failure> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if failure.class != FailureClass::Environment || since.elapsed() >= AT_MOST {
            return Err(failure);
        }
        thread::sleep(PAUSE);
        Ok(())
    }

    /// The server has answered.
    pub fn over(&mut self) {
        self.since = None;
    }

    /// One that has lasted too long.
    #[cfg(test)]
    pub fn of_long() -> Self {
        Self { since: Instant::now().checked_sub(AT_MOST) }
    }
}

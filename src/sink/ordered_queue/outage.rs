//! [`Outage`]: how a command waits for a server that is unavailable.
//!
//! In: failures, and answers that end the outage. Out: a pause, or the failure if waiting has no use: it is not of the class
//! `Environment`, or the outage has lasted for too long. A pause blocks the thread.

use crate::sink::{Failure, FailureClass};
use std::thread;
use std::time::{Duration, Instant};

/// How long the server may be unavailable. After that the command fails: nothing is lost, and it can be run again.
const AT_MOST: Duration = Duration::from_mins(1);

/// The pause before the server is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// A server that may be unavailable.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Instant>,
}

impl Outage {
    /// Waits a moment, or returns the failure.
    ///
    /// # Errors
    /// Waiting has no use.
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

    /// An outage that has lasted for too long.
    #[cfg(test)]
    pub fn of_long() -> Self {
        Self { since: Instant::now().checked_sub(AT_MOST) }
    }
}

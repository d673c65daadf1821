//! A consumer that follows the topic and keeps the last number of each key.
//!
//! In: records whose payload begins with their number within their key. Out: how many came, came again, and came without their
//! predecessor.
//!
//! Invariant: a record is the next one of its key, or one that has come before (after a kill the relay begins again at what was
//! confirmed, and from there each follows its predecessor again). Everything else is a gap: a row that was lost or overtaken.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use walrelay_dev::background::Background;
use walrelay_dev::consume::{Follower, Record};

/// The counts of what was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Books {
    /// Records.
    pub(super) arrived: u64,
    /// Of those, rows that had come before.
    pub(super) repeated: u64,
    /// Of those, rows whose predecessor had not come.
    pub(super) gaps: u64,
}

impl Books {
    /// Rows that came at least once.
    pub(super) const fn distinct(&self) -> u64 {
        self.arrived - self.repeated
    }
}

/// The rows of a key that have come.
#[derive(Debug, Clone, Copy, Default)]
struct Key {
    last: u64,
    highest: u64,
}

#[derive(Debug, Default)]
struct State {
    books: Books,
    keys: HashMap<Vec<u8>, Key>,
}

impl State {
    fn see(&mut self, key: &[u8], number: u64) {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_vec(), Key::default());
        }
        let Some(place) = self.keys.get_mut(key) else { return };
        self.books.arrived += 1;
        self.books.gaps += u64::from(number > place.last + 1);
        self.books.repeated += u64::from(number <= place.highest);
        place.last = number;
        place.highest = place.highest.max(number);
    }
}

/// The consumer, on a thread of its own.
pub(super) struct Reader {
    state: Arc<Mutex<State>>,
    thread: Background<()>,
}

impl Reader {
    /// Starts it.
    pub(super) fn start(config: &ClientConfig, topic: &str) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let follower = Follower::from_beginning(config, &[topic])?;
        let its = Arc::clone(&state);
        Ok(Self { state, thread: Background::start(move |stop| read(&follower, &its, stop)) })
    }

    /// What has been read.
    pub(super) fn books(&self) -> Books {
        self.state.lock().books
    }

    /// The highest number of a key; 0: none.
    pub(super) fn highest(&self, key: &str) -> u64 {
        let state = self.state.lock();
        state.keys.get(key.as_bytes()).map_or(0, |key| key.highest)
    }

    /// An error when it has ended.
    pub(super) fn still_running(&self) -> Result<()> {
        self.thread.still_running().context("the consumer")
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<()> {
        self.thread.stop().context("the consumer")
    }
}

fn read(follower: &Follower, state: &Mutex<State>, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let Some(record) = follower.next(Duration::from_millis(200))? else { continue };
        let number = number(&record).with_context(|| format!("a payload without a number: {}", record.value_text()))?;
        let key = record.key.as_deref().unwrap_or_default();
        state.lock().see(key, number);
    }
    Ok(())
}

fn number(record: &Record) -> Option<u64> {
    let value = std::str::from_utf8(record.value.as_deref()?).ok()?;
    value.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books(numbers: &[u64]) -> Books {
        let mut state = State::default();
        for number in numbers {
            state.see(b"a", *number);
        }
        state.see(b"b", 1);
        state.books
    }

    #[test]
    fn a_kill_repeats_and_what_is_missing_or_swapped_is_a_gap() {
        let all = |arrived, repeated, gaps| Books { arrived, repeated, gaps };
        assert_eq!(books(&[1, 2, 3]), all(4, 0, 0));
        assert_eq!(books(&[1, 2, 3, 2, 3, 4]), all(7, 2, 0));
        assert_eq!(books(&[1, 3]), all(3, 0, 1));
        assert_eq!(books(&[1, 3, 2]), all(4, 1, 1));
        assert_eq!(books(&[1, 2, 3, 1, 3]), all(6, 2, 1));
        assert_eq!(books(&[2]).distinct(), 2);
    }
}

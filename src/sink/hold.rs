//! [`Hold`]: the moment until which records may leave.
//!
//! In: from the relay, the moment before which no other relay can have published from the slot. Out: for a destination, whether that
//! moment has passed. This file knows neither slots nor destinations.
//!
//! The clock is `CLOCK_BOOTTIME`, which goes on while the machine is suspended. Commands that hold no slot (`backfill`, `bench`,
//! `dead-letters --replay`) never set a moment, and their records may always leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The moment, shared between the relay's thread, which sets it, and a client's thread, which obeys it.
#[derive(Debug, Clone)]
pub struct Hold(Arc<AtomicU64>);

/// The value without a moment.
const ALWAYS: u64 = u64::MAX;

impl Default for Hold {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(ALWAYS)))
    }
}

impl Hold {
    /// Lets records leave until then, in time since the machine was started. `None`: without a limit.
    pub fn set(&self, until: Option<Duration>) {
        let nanos = until.map_or(ALWAYS, |until| u64::try_from(until.as_nanos()).unwrap_or(ALWAYS));
        self.0.store(nanos, Ordering::Release);
    }

    /// How long records may still leave. Zero: they may not. `None`: without a limit.
    pub fn left(&self) -> Option<Duration> {
        let nanos = self.0.load(Ordering::Acquire);
        (nanos != ALWAYS).then(|| Duration::from_nanos(nanos).saturating_sub(since_boot()))
    }

    /// Whether records may leave now.
    pub fn is_on(&self) -> bool {
        self.left().is_none_or(|left| !left.is_zero())
    }
}

/// How long ago the machine was started, the time that it was suspended included.
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_leave_until_the_moment_and_without_one_always() {
        let hold = Hold::default();
        assert!(hold.is_on() && hold.left().is_none());
        hold.set(Some(since_boot() + Duration::from_mins(1)));
        assert!(hold.is_on() && hold.left() > Some(Duration::from_secs(50)));
        hold.set(Some(since_boot()));
        assert!(!hold.is_on() && hold.clone().left() == Some(Duration::ZERO));
        hold.set(None);
        assert!(hold.is_on());
    }
}

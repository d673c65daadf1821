//! The loop's time: the system's, or a simulation's.

use crate::pgoutput::PgTime;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Tells the time and lets it pass.
pub trait Clock {
    /// Monotonic time.
    fn now(&self) -> Instant;

    /// How long ago the machine was started, the time that it was suspended included.
    fn since_boot(&self) -> Duration;

    /// The wall clock.
    fn wall(&self) -> PgTime;

    /// Waits.
    fn pause(&self, duration: Duration);
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn since_boot(&self) -> Duration {
        crate::sink::hold::since_boot()
    }

    fn wall(&self) -> PgTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        PgTime::from_unix_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn pause(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

//! How many requests are under way at a time, and when none may be sent.
//!
//! In: what became of requests, the time. Out: how many more. It does no I/O and reads no clock.
//!
//! A service throttles whoever sends too much: each failure halves what is under way and begins a pause, which doubles as long as
//! nothing succeeds; each success adds one request.

use std::time::Duration;
use tokio::time::Instant;

/// Requests under way at a time: as many as hide the way to the service and back.
const MOST_REQUESTS: usize = 16;

/// Pauses: the first, doubled up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The pace.
#[derive(Debug)]
pub(super) struct Pace {
    requests: usize,
    /// Since the last success.
    failures: u32,
    resumes_at: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { requests: MOST_REQUESTS, failures: 0, resumes_at: None }
    }
}

impl Pace {
    /// How many requests may be under way now.
    pub(super) fn requests(&mut self, now: Instant) -> usize {
        if self.resumes_at.is_some_and(|at| now < at) {
            return 0;
        }
        self.resumes_at = None;
        self.requests
    }

    /// When that changes by itself.
    pub(super) fn resumes_at(&self) -> Option<Instant> {
        self.resumes_at
    }

    /// A request was served. Whether it is the first one since a failure, or of all.
    pub(super) fn went(&mut self) -> bool {
        let before = std::mem::take(&mut self.failures);
        self.requests = MOST_REQUESTS.min(self.requests + 1);
        before > 0
    }

    /// A request was not served. How many were not since the last success: those that were under way together are one.
    pub(super) fn failed(&mut self, now: Instant) -> u32 {
        if self.resumes_at.is_some_and(|at| now < at) {
            return self.failures;
        }
        let doubled = PAUSES.0 * 2_u32.saturating_pow(self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.requests = 1.max(self.requests / 2);
        self.resumes_at = Some(now + doubled.min(PAUSES.1));
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_slow_down_and_successes_speed_up() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.requests(now), MOST_REQUESTS);
        assert_eq!((pace.failed(now), pace.failed(now), pace.requests(now)), (1, 1, 0));
        now += PAUSES.0;
        assert_eq!((pace.requests(now), pace.failed(now)), (MOST_REQUESTS / 2, 2));
        assert_eq!(pace.resumes_at(), Some(now + PAUSES.0 * 2));
        for _ in 0..40 {
            now += PAUSES.1;
            pace.failed(now);
        }
        assert_eq!(pace.resumes_at(), Some(now + PAUSES.1));
        now += PAUSES.1;
        assert_eq!((pace.requests(now), pace.went(), pace.went(), pace.requests(now)), (1, true, false, 3));
    }
}

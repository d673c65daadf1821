//! A progress bar for long work. A terminal shows it, and other outputs do not.
//!
//! In: counts, and the time. Out: one line on stderr, at most ten times a second. What is written to stdout stays whole.

use super::output::{duration, number};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often it is drawn at most.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Characters of the bar.
const WIDTH: u64 = 30;

/// Clears the line.
const CLEAR: &str = "\r\x1b[K";

/// A bar.
#[derive(Debug)]
pub(super) struct ProgressBar {
    label: &'static str,
    total: u64,
    started: Instant,
    drawn: Option<Instant>,
    terminal: bool,
}

impl ProgressBar {
    /// Of `total` things; `label`: what is being done.
    pub(super) fn new(label: &'static str, total: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { label, total, started: Instant::now(), drawn: None, terminal }
    }

    /// There are so many in all, as is known by now.
    pub(super) fn of(&mut self, total: u64) {
        self.total = total;
    }

    /// So many are done.
    pub(super) fn at(&mut self, done: u64) {
        let now = Instant::now();
        if !self.terminal || self.drawn.is_some_and(|drawn| now - drawn < DRAW_EVERY && done < self.total) {
            return;
        }
        self.drawn = Some(now);
        draw(&format!("{CLEAR}{}", line(self.label, done, self.total, now - self.started)));
    }

    /// How many a second are done, and how long the others take at that rate; `None`: it is less than one a second.
    pub(super) fn pace(&self, done: u64) -> (u64, Option<Duration>) {
        pace(done, self.total.max(done), self.started.elapsed())
    }

    /// Whether a terminal shows it.
    pub(super) fn is_shown(&self) -> bool {
        self.terminal
    }

    /// Something else is waited for.
    pub(super) fn note(&mut self, text: &str) {
        if self.terminal {
            self.drawn = Some(Instant::now());
            draw(&format!("{CLEAR}{text}"));
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            draw(CLEAR);
        }
    }
}

fn draw(text: &str) {
    let mut stderr = std::io::stderr();
    // Nothing hangs on it.
    drop(stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()));
}

fn line(label: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let total = total.max(done).max(1);
    let full = usize::try_from(done * WIDTH / total).unwrap_or_default();
    let empty = usize::try_from(WIDTH).unwrap_or_default() - full;
    let (rate, left) = pace(done, total, elapsed);
    let left = left.map_or_else(String::new, |left| format!(", {} left", duration(left)));
    format!(
        "{label} {}{} {} of {}, {}/s{left}",
        "█".repeat(full),
        "░".repeat(empty),
        number(done),
        number(total),
        number(rate)
    )
}

fn pace(done: u64, total: u64, elapsed: Duration) -> (u64, Option<Duration>) {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = done.saturating_mul(1000) / millis;
    (rate, (total - done).checked_div(rate).map(Duration::from_secs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_far_how_fast_and_how_long_still() {
        let half = line("deleting", 1_000, 2_000, Duration::from_secs(2));
        assert_eq!(half, format!("deleting {}{} 1,000 of 2,000, 500/s, 2 s left", "█".repeat(15), "░".repeat(15)));
    }

    #[test]
    fn nothing_done_more_than_expected_or_no_time_is_no_error() {
        assert!(line("x", 0, 0, Duration::ZERO).contains("0 of 1"));
        assert!(line("x", 5, 3, Duration::ZERO).contains("5 of 5"));
        assert!(line("x", u64::MAX / 64, u64::MAX, Duration::from_secs(1)).contains("left"));
    }
}

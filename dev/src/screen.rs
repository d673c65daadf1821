//! What a person sees while something takes long: numbered steps with their time, on stdout.
//!
//! On a terminal the running step's line counts seconds; elsewhere a line is written when a step begins to take long,
//! so that no log is silent.

use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Without a terminal: how often a sign of life is written.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// A step that runs.
#[derive(Debug)]
pub(crate) struct Step {
    head: String,
    started: Instant,
    stop: Option<Sender<()>>,
    ticker: Option<JoinHandle<()>>,
}

impl Step {
    /// Shows that step `number` of `all` has begun.
    pub(crate) fn begin(number: u32, all: u32, name: &str, doing: &str) -> Self {
        let head = format!("[{number}/{all}] {name:<7} ");
        let (stop, stopped) = channel();
        let (line, started) = (format!("{head}{doing}"), Instant::now());
        let ticker = std::thread::spawn(move || {
            let terminal = std::io::stdout().is_terminal();
            let every = if terminal { Duration::from_secs(1) } else { SIGN_OF_LIFE };
            if terminal {
                put(&line);
            }
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let seconds = started.elapsed().as_secs();
                put(&if terminal { format!("\r{line} {seconds} s") } else { format!("{line} {seconds} s\n") });
            }
            if terminal {
                put("\r\x1b[K");
            }
        });
        Self { head, started, stop: Some(stop), ticker: Some(ticker) }
    }

    /// Ends the step with its result and the time it took.
    pub(crate) fn done(self, result: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.done_after(result, seconds);
    }

    /// Ends the step with its result and a time that was measured elsewhere, in seconds.
    pub(crate) fn done_after(mut self, result: &str, seconds: f64) {
        self.quiet();
        let seconds = if seconds < 9.95 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") };
        put(&format!("{}{result:<72} {seconds:>7}\n", self.head));
    }

    /// Stops counting and shows the step's head with what is known; [`more`] goes on below it.
    pub(crate) fn open(mut self, text: &str) {
        self.quiet();
        put(&format!("{}{text}\n", self.head));
    }

    fn quiet(&mut self) {
        drop(self.stop.take());
        if let Some(ticker) = self.ticker.take() {
            drop(ticker.join());
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.quiet();
    }
}

/// A line that belongs to the step above it.
pub(crate) fn more(text: &str) {
    put(&format!("              {text}\n"));
}

/// A line of its own.
pub(crate) fn line(text: &str) {
    put(&format!("{text}\n"));
}

/// How many rows a second these are.
pub(crate) fn per_second(rows: u64, took: Duration) -> String {
    let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
    thousands(rows.saturating_mul(1000) / millis)
}

/// The command that plays the same again: as it was typed, with the seed that was drawn.
pub(crate) fn again(seed: u64) -> String {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if !words.iter().any(|word| word.starts_with("--seed")) {
        words.splice(1..1, [format!("--seed={seed}")]);
    }
    format!("walrelay-dev {}", words.join(" "))
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The first `limit` characters, with an ellipsis when there are more.
pub(crate) fn shorten(text: &str, limit: usize) -> String {
    let mut short: String = text.chars().take(limit).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// The first line says enough for a table.
pub(crate) fn failure(error: &anyhow::Error) -> String {
    let text = format!("failed: {error:#}");
    shorten(text.lines().next().unwrap_or_default(), 120)
}

/// The value below which `percent` of the sorted values lie; 0 when there are none.
pub(crate) fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    // Indices are far below 2^52.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small")]
    let index = (last as f64 * percent / 100.0).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}

/// A reader that has gone (`| head`) is no reason to fail.
fn put(text: &str) {
    let mut stdout = std::io::stdout();
    drop(stdout.write_all(text.as_bytes()));
    drop(stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }

    #[test]
    fn only_long_text_is_shortened() {
        assert_eq!((shorten("李雷", 2), shorten("李雷!", 2)), ("李雷".to_owned(), "李雷…".to_owned()));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let sorted = [1.0, 2.0, 3.0, 4.0, 100.0];
        for (percent, value) in [(0.0, 1.0), (50.0, 3.0), (99.0, 100.0), (100.0, 100.0)] {
            assert!((percentile(&sorted, percent) - value).abs() < f64::EPSILON);
        }
        assert!(percentile(&[], 50.0).abs() < f64::EPSILON);
    }
}

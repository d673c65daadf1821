//! The first signal ends work in an orderly way, so that what was made for it is removed, or a chunk is finished; the second ends
//! the process. A signal that comes right after the first is the first once more ([`REPEATED_WITHIN`]).
//!
//! A process that a container runs as its first one takes no notice of a signal that it does not listen for.

use super::error::CommandError;
use crate::stderr;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Programs such as `timeout` of coreutils signal the process and then its process group, and those that forward a terminal's Ctrl-C
/// send a second one: one wish of whoever wants the process to stop. Nobody presses a key twice as fast as this on purpose.
const REPEATED_WITHIN: Duration = Duration::from_millis(200);

/// How often a pause looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the end waits for a reader of stdout.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// Becomes true with the first SIGINT, SIGTERM or SIGHUP.
///
/// # Errors
/// Signals cannot be listened for.
pub fn stop_on_signal() -> Result<Arc<AtomicBool>, CommandError> {
    let failed = |error| CommandError::not_begun("listen for signals", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let stop = Arc::<AtomicBool>::default();
    let flag = Arc::clone(&stop);
    let listen = move || runtime.block_on(stop_on_first(&flag));
    thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(failed)?;
    Ok(stop)
}

/// Pauses for so long, or until it is to stop. Returns whether to go on.
pub(super) fn pause(time: Duration, stop: &dyn Fn() -> bool) -> bool {
    let next = Instant::now() + time;
    while Instant::now() < next {
        if stop() {
            return false;
        }
        thread::sleep(LOOK_EVERY.min(next.saturating_duration_since(Instant::now())));
    }
    true
}

/// Ends the process once stdout and stderr are written. A reader that takes nothing is waited for at most a second, each.
///
/// It runs no handlers that libraries left for the end: OpenSSL's frees what librdkafka's threads may still be using, since clients end on
/// threads of their own, which nothing waits for.
#[allow(unsafe_code, reason = "the standard library's exit runs those handlers")]
pub fn end(code: i32) -> ! {
    flush_stdout();
    stderr::finish();
    // SAFETY: it takes a number, and does not come back.
    unsafe { libc::_exit(code) }
}

/// On a thread of its own: one that writes into a full pipe has the lock of stdout until somebody reads.
fn flush_stdout() {
    let (flushed, done) = mpsc::channel();
    drop(thread::Builder::new().spawn(move || flushed.send(io::stdout().flush())));
    drop(done.recv_timeout(FLUSH_WITHIN));
}

async fn stop_on_first(stop: &AtomicBool) {
    let Ok(mut signals) = Signals::listen() else { return };
    loop {
        let number = signals.next().await;
        if stop.swap(true, Ordering::Relaxed) {
            end(128 + i32::from(number));
        }
        tracing::info!(signal = number, "stopping; a second signal stops at once");
    }
}

/// SIGTERM, SIGINT and SIGHUP stop; SIGPIPE is ignored by Rust's runtime.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    first: Option<Instant>,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            first: None,
        })
    }

    /// The number of the next one, without repetitions of the first.
    pub(super) async fn next(&mut self) -> u8 {
        loop {
            let number = tokio::select! {
                _ = self.terminate.recv() => 15,
                _ = self.interrupt.recv() => 2,
                _ = self.hangup.recv() => 15,
            };
            let now = Instant::now();
            let is_repeated = is_repeated(self.first, now);
            self.first.get_or_insert(now);
            if !is_repeated {
                return number;
            }
        }
    }
}

/// Whether a signal that comes `now` is the first one again.
fn is_repeated(first: Option<Instant>, now: Instant) -> bool {
    first.is_some_and(|first| now.saturating_duration_since(first) < REPEATED_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_signals_in_a_row_as_timeout_sends_them_are_one() {
        let first = Instant::now();
        assert!(!is_repeated(None, first));
        assert!(is_repeated(Some(first), first + Duration::from_millis(20)));
        assert!(!is_repeated(Some(first), first + REPEATED_WITHIN));
    }
}

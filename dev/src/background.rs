//! Runs work on other threads: one thread until its flag is set, or one thread for each of several items.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use parking_lot::Mutex;

/// A thread that ends soon after its flag is set. If the value is dropped, the flag is set, and nobody waits for the thread.
#[derive(Debug)]
pub struct Background<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts the thread. `work` has to end soon after its flag is set.
    pub fn start(work: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&stop);
        Self { stop, thread: Some(thread::spawn(move || work(&its))) }
    }

    /// Sets the flag, and waits for the result of the work.
    ///
    /// # Errors
    /// The work failed, or the thread panicked.
    pub fn stop(self) -> Result<T> {
        self.stop.store(true, Ordering::SeqCst);
        self.finish()
    }

    /// Waits for the result of work that ends by itself.
    ///
    /// # Errors
    /// The work failed, or the thread panicked.
    pub fn finish(mut self) -> Result<T> {
        let ended = self.thread.take().map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or_else(|| Err(anyhow!("a thread panicked")))
    }

    /// Checks that the thread still runs.
    ///
    /// # Errors
    /// The thread has ended by itself.
    pub fn still_running(&self) -> Result<()> {
        anyhow::ensure!(!self.is_finished(), "a thread has ended by itself");
        Ok(())
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Does something with each of the items, so many at the same time; the results are in the order in which they came.
pub fn each<I, R: Send>(
    items: impl IntoIterator<Item = I, IntoIter: Send>,
    at_once: usize,
    act: impl Fn(I) -> R + Sync,
) -> Vec<R> {
    let (items, results) = (Mutex::new(items.into_iter()), Mutex::new(Vec::new()));
    let next = || items.lock().next();
    thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let result = act(item);
                    results.lock().push(result);
                }
            });
        }
    });
    results.into_inner()
}

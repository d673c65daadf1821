//! Work beside what a thread does: until it is told to stop, or over many things at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};

/// A thread that looks at a flag; dropped, it is told to stop and not waited for.
#[derive(Debug)]
pub struct Background<T> {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts it; `work` ends soon after its flag is set.
    pub fn start(work: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&stop);
        Self { stop, thread: Some(thread::spawn(move || work(&its))) }
    }

    /// Tells it to stop, and waits for what it gives.
    ///
    /// # Errors
    /// Its own.
    pub fn stop(mut self) -> Result<T> {
        self.stop.store(true, Ordering::SeqCst);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or_else(|| Err(anyhow!("a thread panicked")))
    }

    /// An error when it has ended by itself.
    ///
    /// # Errors
    /// See above.
    pub fn still_running(&self) -> Result<()> {
        let runs = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        anyhow::ensure!(runs, "a thread has ended by itself");
        Ok(())
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
    let next = || items.lock().ok().and_then(|mut items| items.next());
    thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let result = act(item);
                    if let Ok(mut results) = results.lock() {
                        results.push(result);
                    }
                }
            });
        }
    });
    results.into_inner().unwrap_or_default()
}

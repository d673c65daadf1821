//! Who writes while existing rows are published: at a rate, one row a transaction, each connection with ids of its own.
//!
//! In: where, how fast. Out: how many rows each connection has committed: their ids are `connection × 10^9 + 1` and on, without gaps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::postgres::{Client, NoTls};
use anyhow::{Result, anyhow};

/// Connections that share the rate.
const CONNECTIONS: u64 = 4;

/// The distance of two connections' ids: above the number of any existing row.
pub(super) const APART: u64 = 1_000_000_000;

/// Writers that run.
pub(super) struct Writers {
    stop: Arc<AtomicBool>,
    started: Instant,
    threads: Vec<JoinHandle<Result<u64>>>,
}

/// What they have committed.
pub(super) struct Written {
    /// Rows by connection, from the first.
    pub(super) counts: Vec<u64>,
    took: Duration,
}

impl Written {
    /// Rows a second.
    pub(super) fn rate(&self) -> u64 {
        self.counts.iter().sum::<u64>().checked_div(self.took.as_secs()).unwrap_or_default()
    }
}

impl Writers {
    /// Starts them.
    pub(super) fn start(source: &str, rate: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let write = |connection: u64| {
            let (source, stop) = (source.to_owned(), Arc::clone(&stop));
            let each = rate * (connection + 1) / CONNECTIONS - rate * connection / CONNECTIONS;
            std::thread::spawn(move || write(&source, (connection + 1) * APART, each, &stop))
        };
        let threads = (0..CONNECTIONS).map(write).collect();
        Self { stop, started: Instant::now(), threads }
    }

    /// Stops them.
    pub(super) fn stop(mut self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let took = self.started.elapsed();
        let threads = std::mem::take(&mut self.threads).into_iter();
        let counts = threads.map(|thread| thread.join().map_err(|_| anyhow!("a writer panicked"))?);
        Ok(Written { counts: counts.collect::<Result<_>>()?, took })
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Rows behind `first`, so many a second, until it is stopped.
fn write(source: &str, first: u64, rate: u64, stop: &AtomicBool) -> Result<u64> {
    let mut client = Client::connect(source, NoTls)?;
    let insert = client.prepare("INSERT INTO outbox VALUES ($1, 'order', 'new', 'Placed', 'new')")?;
    let (started, mut written) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) && rate > 0 {
        let due = Duration::from_micros(written * 1_000_000 / rate);
        std::thread::sleep(due.saturating_sub(started.elapsed()).min(Duration::from_millis(100)));
        if started.elapsed() < due {
            continue;
        }
        client.execute(&insert, &[&i64::try_from(first + written + 1)?])?;
        written += 1;
    }
    Ok(written)
}

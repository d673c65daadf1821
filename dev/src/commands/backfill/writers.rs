//! Writers that run while existing rows are published: at a rate, one row a transaction, each connection with ids of its own.
//!
//! In: where, how fast. Out: how many rows each connection has committed: their ids are `connection × 10^9 + 1` and on, without gaps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::postgres::{Client, NoTls};
use anyhow::Result;
use walrelay_dev::background::Background;

/// Connections that share the rate.
const CONNECTIONS: u64 = 4;

/// The distance of two connections' ids: above the number of any existing row.
pub(super) const APART: u64 = 1_000_000_000;

/// Writers that run.
pub(super) struct Writers {
    started: Instant,
    threads: Vec<Background<u64>>,
}

/// The rows that the writers have committed.
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
        let write = |connection: u64| {
            let source = source.to_owned();
            let each = rate * (connection + 1) / CONNECTIONS - rate * connection / CONNECTIONS;
            Background::start(move |stop| write(&source, (connection + 1) * APART, each, stop))
        };
        Self { started: Instant::now(), threads: (0..CONNECTIONS).map(write).collect() }
    }

    /// Stops them.
    pub(super) fn stop(self) -> Result<Written> {
        let took = self.started.elapsed();
        Ok(Written { counts: self.threads.into_iter().map(Background::stop).collect::<Result<_>>()?, took })
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

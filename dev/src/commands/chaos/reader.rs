//! Reads the topics along, as a consumer of committed records: which rows have come, and in which round a row came again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use walrelay_dev::arrivals::{Arrivals, Ends, Follow, Gauge};
use walrelay_dev::background::Background;
use walrelay_dev::consume::Record;
use walrelay_dev::process;

/// How long the reader may lag behind.
const PATIENCE: Duration = Duration::from_mins(1);

/// A reader in a thread of its own.
pub(super) struct Reader {
    shared: Arc<Shared>,
    gauge: Box<dyn Gauge>,
    thread: Background<()>,
}

#[derive(Default)]
struct Shared {
    round: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: HashSet<String>,
    /// The offset behind the last record of each partition.
    positions: Ends,
    /// Repeats of each round, and the first of them by name.
    repeats: HashMap<usize, (usize, String)>,
}

impl Reader {
    /// Starts at the first record of the topics.
    pub(super) fn start(arrivals: &Arrivals, topics: &[String]) -> Result<Self> {
        let (follower, gauge) = (arrivals.follow(topics)?, arrivals.gauge(topics)?);
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let thread = Background::start(move |stop| read_along(follower, &its, stop));
        Ok(Self { shared, gauge, thread })
    }

    /// Repeats from now on count for this round.
    pub(super) fn begin_round(&self, number: usize) {
        self.shared.round.store(number, Ordering::SeqCst);
    }

    /// Waits until all that is in the topics now has been read. With transactions this never ends: their markers are no records.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        let wanted = self.gauge.ends()?;
        let there = || {
            let state = self.shared.state.lock();
            wanted.iter().all(|(place, end)| *end == 0 || state.positions.get(place).is_some_and(|read| read >= end))
        };
        process::wait_until(PATIENCE, "the reader to catch up", || self.thread.still_running().map(|()| there()))
    }

    /// How many rows have come.
    pub(super) fn seen(&self) -> usize {
        self.shared.state.lock().seen.len()
    }

    /// Returns the rows among these that have not come.
    pub(super) fn absent(&self, rows: &[String]) -> Vec<String> {
        let state = self.shared.state.lock();
        rows.iter().filter(|id| !state.seen.contains(*id)).cloned().collect()
    }

    /// The repeats of a round until now, and the first one by name.
    pub(super) fn repeats(&self, round: usize) -> (usize, String) {
        self.shared.state.lock().repeats.get(&round).cloned().unwrap_or_default()
    }

    /// Stops it, once nothing more comes.
    pub(super) fn stop(self) -> Result<()> {
        self.thread.stop()
    }
}

impl Shared {
    fn take(&self, record: &Record) {
        let round = self.round.load(Ordering::SeqCst);
        let mut state = self.state.lock();
        state.positions.insert((record.topic.clone(), record.partition), record.offset + 1);
        if record.topic.is_empty() {
            return;
        }
        let id = record.header("id").unwrap_or_default();
        if !state.seen.insert(id.to_owned()) {
            let Record { topic, partition, offset, .. } = record;
            let first = || (0, format!("{id} at {topic} p{partition} offset {offset}"));
            state.repeats.entry(round).or_insert_with(first).0 += 1;
        }
    }
}

fn read_along(mut follower: Box<dyn Follow>, shared: &Shared, stop: &AtomicBool) -> Result<()> {
    let mut last_news = Instant::now();
    // After the end it reads on until nothing has come for a moment, so that it has all that is there.
    while !stop.load(Ordering::SeqCst) || last_news.elapsed() < Duration::from_millis(500) {
        if let Some(record) = follower.next(Duration::from_millis(50)).context("the reader")? {
            last_news = Instant::now();
            shared.take(&record);
        }
    }
    Ok(())
}

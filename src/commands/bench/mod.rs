//! `bench`: how fast the user's own servers are with a relay between them.
//!
//! ```text
//!  make schema, publication, slot, topic ─▶ write a backlog ─▶ drain it ─▶ write at a fixed rate ─▶ remove everything
//! ```
//!
//! In: where, and how much. Out: rates, latencies, CPU, and which side set the pace. Everything is done in a schema, slot and
//! topic of its own, which go in the end, also after an error or a signal. The relay is the one that `run` uses, in a thread
//! of its own.

mod load;
mod relay;
mod report;
mod scratch;
mod stopwatch;

pub use scratch::PREFIX;

use super::CommandError;
use super::progress_bar::ProgressBar;
use super::run::Limits;
use crate::pg::source::Source;
use crate::pg::{Connection, Purpose};
use crate::sink::destination::Destination;
use relay::Running;
use report::{BenchReport, Distance, Steady};
use scratch::Scratch;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Rows of the steady phase that are not acknowledged so long after its end are missing.
const LAST_WITHIN: Duration = Duration::from_secs(5);

/// How often a statement is timed.
const ROUND_TRIPS: usize = 9;

/// The settings of a measurement.
#[derive(Debug, Clone)]
pub struct BenchRequest {
    /// The database.
    pub source: Source,
    /// Bounds of time and memory.
    pub limits: Limits,
    /// Rows in the backlog; at least 1.
    pub rows: u64,
    /// The payload's size as text, nearly.
    pub payload_bytes: usize,
    /// The payload's type.
    pub payload_type: PayloadType,
    /// Rows to a transaction; at least 1.
    pub rows_per_transaction: u64,
    /// Partitions of the topic; at least 1.
    pub partitions: i32,
    /// Where records go; `None`: they are thrown away, for what Postgres and the relay can do alone.
    pub destination: Option<Arc<dyn Destination>>,
    /// Single-row transactions a second in the steady phase.
    pub rate: u32,
    /// How long the steady phase takes; 0: there is none.
    pub seconds: u32,
    /// Print JSON.
    pub json: bool,
}

/// The payload column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadType {
    /// `jsonb`
    Jsonb,
    /// `json`
    Json,
    /// `text`
    Text,
    /// `bytea`
    Bytea,
}

impl PayloadType {
    /// Its name in SQL.
    pub const fn column(self) -> &'static str {
        match self {
            Self::Jsonb => "jsonb",
            Self::Json => "json",
            Self::Text => "text",
            Self::Bytea => "bytea",
        }
    }
}

/// Measures, and removes what it made. `stop` becomes true when a signal has come.
///
/// # Errors
/// Something cannot be made, the relay fails, or `stop`.
pub fn bench(request: &BenchRequest, out: &mut dyn Write, stop: &AtomicBool) -> Result<(), CommandError> {
    let scratch = Scratch::new(&request.source, &unique());
    let mut bench = Bench { request, scratch, stop, progress: ProgressBar::new("measuring", 0) };
    let measured = bench.measure();
    bench.progress.note("removing what was created");
    let left = bench.scratch.remove();
    drop(bench.progress);
    for step in left {
        tracing::warn!(step, "cannot be removed; remove it by hand");
    }
    let report = measured?;
    if request.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        write!(out, "{}", report.text())?;
    }
    Ok(())
}

/// A part of a name that no other measurement has.
fn unique() -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{:x}_{:x}", std::process::id(), nanos & 0xFFFF_FFFF)
}

struct Bench<'a> {
    request: &'a BenchRequest,
    scratch: Scratch,
    stop: &'a AtomicBool,
    progress: ProgressBar,
}

impl<'a> Bench<'a> {
    fn measure(&mut self) -> Result<BenchReport<'a>, CommandError> {
        let request = self.request;
        self.progress.note("creating a schema, a publication and a slot");
        let mut connection = Connection::open(&request.source, Purpose::Control)?;
        let version = connection.query("SHOW server_version")?;
        let version = version.first().and_then(|row| row.text(0)).unwrap_or("?").to_owned();
        let server = format!("Postgres {version} at {}", connection.host());
        // The cluster is asked first: what cannot be had there shall cost nothing here.
        if let Some(destination) = &request.destination {
            self.scratch.make_topic(destination.as_ref(), request.partitions).map_err(CommandError::no_scratch)?;
        }
        let distance =
            Distance { postgres: postgres_round_trip(&mut connection)?, destination: self.scratch.round_trip() };
        let stop = self.stop;
        let slot = self.scratch.make(request.payload_type.column(), &|| stop.load(Ordering::Relaxed))?;
        self.go_on()?;
        let fill_seconds = self.fill(&mut connection)?;
        let running = Running::start(request, self.scratch.name(), &self.scratch.topic_name(), slot)?;
        let measured = self.drain_and_steady(&running, &mut connection);
        let (stopped, peak_kib) = (running.stop(), relay::peak_kib());
        let (drain, steady) = measured?;
        self.go_on()?;
        stopped?;
        Ok(BenchReport { request, server, distance, fill_seconds, drain, steady, peak_kib })
    }

    fn fill(&mut self, connection: &mut Connection) -> Result<f64, CommandError> {
        let started = Instant::now();
        let Self { request, scratch, stop, .. } = self;
        let mut progress = ProgressBar::new("writing", request.rows);
        load::fill(connection, scratch.name(), request, &mut |rows| {
            progress.at(rows);
            !stop.load(Ordering::Relaxed)
        })?;
        self.go_on()?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn drain_and_steady(
        &mut self,
        running: &Running,
        connection: &mut Connection,
    ) -> Result<(relay::Drain, Option<Steady>), CommandError> {
        let request = self.request;
        let Self { scratch, stop, .. } = self;
        let batch = request.rows_per_transaction.min(request.rows);
        let rows = request.rows / batch * batch;
        let mut progress = ProgressBar::new("draining", rows);
        let drain = running.drain(request, scratch.name(), rows, &mut |done| {
            progress.at(done);
            !stop.load(Ordering::Relaxed)
        })?;
        let steady = if self.may_go_on(running) && request.seconds > 0 {
            Some(self.steady(running, connection, rows)?)
        } else {
            None
        };
        Ok((drain, steady))
    }

    /// Single rows at a fixed rate, from row `first` on.
    fn steady(&mut self, running: &Running, connection: &mut Connection, first: u64) -> Result<Steady, CommandError> {
        let BenchRequest { rate, seconds, .. } = *self.request;
        let rows = u64::from(rate) * u64::from(seconds);
        let mut progress = ProgressBar::new("steady", rows);
        running.acknowledged.begin();
        let (started, mut commits) = (Instant::now(), Vec::new());
        for number in 0..rows {
            if !self.may_go_on(running) {
                break;
            }
            let due = started + Duration::from_secs(number) / rate;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            connection.query(&load::single(self.scratch.name(), self.request, first + number))?;
            commits.push((first + number, Instant::now()));
            progress.at(number);
        }
        #[allow(clippy::cast_precision_loss, reason = "a count of rows")]
        let written_per_second = commits.len() as f64 / started.elapsed().as_secs_f64();
        let (deadline, mut acknowledged) = (Instant::now() + LAST_WITHIN, running.acknowledged.rows());
        while acknowledged.len() < commits.len() && Instant::now() < deadline && self.may_go_on(running) {
            thread::sleep(Duration::from_millis(20));
            acknowledged = running.acknowledged.rows();
        }
        // The broker can be faster than the return of COMMIT.
        let latency =
            |(row, at): &(u64, Instant)| acknowledged.get(row).map(|seen| seen.saturating_duration_since(*at));
        let mut latencies: Vec<Duration> = commits.iter().filter_map(latency).collect();
        latencies.sort_unstable();
        Ok(Steady { missing: commits.len() - latencies.len(), latencies, written_per_second })
    }

    fn may_go_on(&self, running: &Running) -> bool {
        !self.stop.load(Ordering::Relaxed) && !running.has_ended()
    }

    fn go_on(&self) -> Result<(), CommandError> {
        if self.stop.load(Ordering::Relaxed) { Err(CommandError::interrupted()) } else { Ok(()) }
    }
}

/// Returns the shortest round trip of some statements that do nothing.
fn postgres_round_trip(connection: &mut Connection) -> Result<Duration, crate::pg::Error> {
    let mut shortest = Duration::MAX;
    for _ in 0..ROUND_TRIPS {
        let asked = Instant::now();
        connection.query("SELECT 1")?;
        shortest = shortest.min(asked.elapsed());
    }
    Ok(shortest)
}
